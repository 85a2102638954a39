//! The driver's calls, page-locked memory, and layouts.

use crate::orders::{pairs, save};
use crate::rig::{ENGINE, Gpu, Rig, Way};
use cenote_base::testing::{ManualTime, PATIENCE};
use cenote_device::driver::{COPIES_A_CALL, Copies, Device};
use cenote_device::layout::{Layer, Layout};

#[test]
fn a_library_that_is_no_driver_is_named() {
    let error = |library| Device::open(library, 0, ManualTime::start().clock()).err().expect("no driver").to_string();
    assert!(error("libno-such-driver.so.1").starts_with("libno-such-driver.so.1: "));
    let of_c = error("libc.so.6");
    assert_eq!(of_c, "libc.so.6: it has no cuInit; the NVIDIA driver must be of CUDA 12 or newer");
}

#[test]
fn a_driver_that_refuses_batches_gets_each_copy_by_itself() {
    let gpu = Gpu::new(1);
    assert_eq!(gpu.open(ManualTime::start().clock()).why_one_by_one(), "");
    gpu.fail("cuMemcpyBatchAsync", 0);
    let device = gpu.open(ManualTime::start().clock());
    let why = "cuMemcpyBatchAsync of 2 copies, at copy 0: CUDA_ERROR_UNKNOWN (999)";
    assert_eq!(device.why_one_by_one(), why);
    drop(device);
    assert_eq!(gpu.wrong(), "");
}

#[test]
fn copies_are_as_few_calls_as_their_number_allows() {
    let mut copies = Copies::default();
    (0..700).for_each(|at| copies.push(at, at, 64));
    let calls: Vec<_> = copies.calls().map(|call| call.len()).collect();
    assert_eq!(calls, [COPIES_A_CALL, COPIES_A_CALL, 700 - 2 * COPIES_A_CALL]);
    assert!((128..=1024).contains(&COPIES_A_CALL));

    let mut rig = Rig::new(Way::Pages, 2, ManualTime::start().clock());
    let blocks = pairs(64, 2);
    let before = rig.gpu.calls("cuMemcpyBatchAsync");
    save(&mut rig, &blocks);
    // Two parts of 32 blocks of three layers with two runs.
    assert_eq!(rig.gpu.calls("cuMemcpyBatchAsync") - before, 2);
    let load = rig.mover.load(rig.loading(&blocks), ENGINE, PATIENCE).expect("it begins");
    assert!(load.wait(Some(PATIENCE)));
    assert_eq!(rig.gpu.calls("cuMemcpyBatchAsync") - before, 4);
    assert_eq!(rig.gpu.calls("cuMemcpyAsync"), 0);
}

#[test]
fn layouts_that_leave_the_engines_memory_are_refused() {
    let layer = |address, stride, runs: &[(u64, u64)]| Layer { address, stride, runs: runs.to_vec() };
    let memory = [(1 << 20, 64_000), (1 << 30, 64_000)];
    let of = |layers: &[Layer], blocks| Layout::new(layers, blocks, &memory).err();
    assert_eq!(of(&[layer(1 << 20, 640, &[(0, 640)])], 100), None);
    assert_eq!(of(&[layer(1 << 30, 320, &[(0, 320), (32_000, 320)])], 100), None);
    for (bad, blocks, why) in [
        (layer(1 << 20, 640, &[(0, 640)]), 101, "leave the engine's memory"),
        (layer((1 << 20) - 64, 640, &[(0, 640)]), 1, "leave the engine's memory"),
        (layer(1 << 20, u64::MAX / 2, &[(0, 640)]), 100, "leave the engine's memory"),
        (layer(u64::MAX - 64, 640, &[(640, 640)]), 1, "leave the engine's memory"),
        (layer(1 << 20, 640, &[(0, 640)]), 0, "leave the engine's memory"),
        (layer(1 << 20, 100, &[(0, 100)]), 1, "a page of 100 bytes is not a multiple of 64"),
        (layer(1 << 20, 64, &[]), 1, "has no pages"),
    ] {
        let said = of(&[bad], blocks).unwrap_or_default();
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(of(&[], 1).as_deref(), Some("there are no layers"));
    let layout = Layout::new(&[layer(1 << 20, 640, &[(0, 640)])], 100, &memory).expect("a layout");
    assert_eq!(layout.check(&[0, 99, 50]), Ok(()));
    assert_eq!(layout.check(&[3, 100]).unwrap_err(), "block 100 is outside of this memory of 100 blocks");
    assert_eq!(layout.check(&[3, 7, 3]).unwrap_err(), "block 3 is named twice");
}
