//! A part that a panic drops while the device has its copies. No driver makes the mover's own code panic, so
//! the test takes the part out of the queue.

use super::{Loading, Mover, Settings, Source, lock};
use crate::driver::{Device, EngineStream};
use crate::kernels::{LANES, SUM_WORDS};
use crate::layout::{Layer, Layout};
use crate::memory::{Mapped, Pieces, Registered, Slots, Staging};
use cenote_base::testing::{ManualTime, PATIENCE, until};
use libloading::Library;

const GPU: u32 = 1;
const ENGINE: EngineStream = EngineStream(0);
const WORDS: usize = 128;

struct Block(u64);

impl Source for Block {
    fn places(&self) -> Vec<u64> {
        vec![self.0]
    }

    fn check(&mut self) -> Vec<bool> {
        unreachable!("the part ends before its copies");
    }

    fn lane_keys(&self) -> Vec<[u64; LANES]> {
        unreachable!("there are no kernels");
    }

    fn check_sums(&mut self, _: &[[u64; SUM_WORDS]]) -> Vec<bool> {
        unreachable!("there are no kernels");
    }

    fn read(&mut self, _: &Slots) -> Vec<bool> {
        unreachable!("the region is page-locked");
    }
}

/// Memory that is there from the first.
struct Touched;

impl Mapped for Touched {
    fn touch(&self, _: usize, _: usize) {}
}

/// Lets the part on the device end as a panic ends it.
fn drop_part(mover: &Mover) {
    let shared = &mover.0;
    until("a part on the device", || {
        let mut queue = lock(&shared.queue);
        if !queue.may_poll() {
            return None;
        }
        let heads = queue.take_heads();
        let _ = queue.put_back([const { None }; 4], 0);
        drop(queue);
        heads.into_iter().flatten().next()
    });
    shared.change(super::Queue::end);
}

#[test]
fn a_panic_keeps_what_the_device_may_access_and_the_order_of_the_engine() {
    let program = std::env::current_exe().expect("a path");
    let built = program.parent().and_then(|deps| deps.parent()).expect("a folder of the build");
    let path = built.join("examples/libfake_driver.so");
    // SAFETY: the library has no initializers.
    let library = unsafe { Library::new(&path) }.expect("cargo built the fake driver");
    macro_rules! control {
        ($name:literal, $type:ty) => {
            // SAFETY: `fake/lib.rs` declares the control with this type.
            *unsafe { library.get::<$type>($name) }.expect("a control of the fake driver")
        };
    }
    let hold = control!(b"fake_hold\0", extern "C" fn(u32, u32, bool));
    let run = control!(b"fake_run\0", extern "C" fn(u32));
    let locked = control!(b"fake_locked\0", extern "C" fn(u32) -> usize);
    control!(b"fake_begin\0", extern "C" fn(u32, u64))(GPU, 1);
    let (mut blocks, region) = (vec![0_u64; WORDS], vec![7_u64; WORDS]);
    let (block, place) = (blocks.as_mut_ptr().expose_provenance(), region.as_ptr().expose_provenance());
    control!(b"fake_know\0", extern "C" fn(u32, usize, usize))(GPU, block, WORDS * 8);
    let clock = ManualTime::start().clock();
    let device = Device::open(path.to_str().expect("a path in UTF-8"), GPU, clock).expect("the fake driver opens");
    let layer = Layer { address: block as u64, stride: WORDS as u64 * 8, runs: vec![(0, WORDS as u64 * 8)] };
    let layout = Layout::new(&[layer], 1, &[(block as u64, WORDS as u64 * 8)]).expect("a layout");
    let staging = Staging::new(&device, WORDS * 8, WORDS * 8).expect("a slot");
    let pieces = Pieces { bytes: 1 << 30, threads: 1 };
    // SAFETY: the region lives as long as the test.
    let registered =
        || unsafe { Registered::share(&device, (place, WORDS * 8), std::sync::Arc::new(Touched), pieces, clock) };
    let settings = Settings { threads: 2, backlog_bytes: u64::MAX, gpu_buffer_bytes: 0, scatter_below: Some(0), clock };
    let mover = Mover::start(&device, layout, staging, Some(registered), settings, || {}).expect("threads");
    assert!(mover.wait_locked(PATIENCE));
    hold(GPU, 0, true);
    let part = Loading { source: Box::new(Block(place as u64)), blocks: vec![0], numbers: vec![0], is_staged: false };
    let load = mover.load(vec![part], ENGINE, PATIENCE).expect("it begins");
    drop_part(&mover);
    assert!(load.wait(Some(PATIENCE)));
    assert_eq!(load.failed(ENGINE), [0]);
    let computed = [9_u64; WORDS];
    let write = control!(b"fake_engine_writes\0", extern "C" fn(u32, usize, *const u8, usize));
    write(GPU, block, computed.as_ptr().cast(), WORDS * 8);
    run(GPU);
    assert_eq!(blocks[0], 0, "the engine's stream waits for the copies");
    assert!(!mover.close(PATIENCE));
    drop((load, mover));
    assert!(locked(GPU) >= WORDS * 8, "the region stays page-locked under the copies");
    hold(GPU, 0, false);
    run(GPU);
    assert_eq!(blocks, computed, "no late copy changes what the engine has computed");
}
