//! A GPU of the fake driver, an engine's blocks on it, and memory that stands for the region.

use cenote_base::Clock;
use cenote_base::testing::{PATIENCE, until};
use cenote_device::driver::{Device, EngineStream};
use cenote_device::kernels::{LANES, SUM_WORDS};
use cenote_device::layout::{Layer, Layout};
use cenote_device::memory::{Mapped, Pieces, Registered, Slots, Staging};
use cenote_device::mover::{Loading, Mover, Saving, Settings, Sink, Source};
use libloading::Library;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

pub const LAYERS: u64 = 3;
pub const BLOCKS: usize = 96;
pub const RUN: u64 = 512;
pub const BLOCK: u64 = LAYERS * 2 * RUN;
pub const ENGINE: EngineStream = EngineStream(0);

/// Cargo builds the library beside the tests: it is an example of this crate.
pub static DRIVER: LazyLock<PathBuf> = LazyLock::new(|| {
    let program = std::env::current_exe().expect("a path");
    let built = program.parent().and_then(|deps| deps.parent()).expect("a folder of the build");
    built.join("examples/libfake_driver.so")
});

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    // SAFETY: the library has no initializers.
    unsafe { Library::new(&*DRIVER) }.expect("cargo built the fake driver")
});

/// A control of the fake driver.
macro_rules! control {
    ($name:literal, $type:ty) => {{
        // SAFETY: `fake/lib.rs` declares the control with this type.
        *unsafe { LIBRARY.get::<$type>($name) }.expect("a control of the fake driver")
    }};
}

/// A GPU of a test's own.
pub struct Gpu(pub u32);

impl Gpu {
    pub fn new(seed: u64) -> Self {
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        control!(b"fake_begin\0", extern "C" fn(u32, u64))(number, seed);
        Self(number)
    }

    pub fn open(&self, clock: Clock) -> Arc<Device> {
        Device::open(DRIVER.to_str().expect("a path in UTF-8"), self.0, clock).expect("the fake driver opens")
    }

    pub fn know(&self, memory: &[u64]) {
        let know = control!(b"fake_know\0", extern "C" fn(u32, usize, usize));
        know(self.0, memory.as_ptr().expose_provenance(), memory.len() * 8);
    }

    pub fn hold(&self, what: u32, held: bool) {
        control!(b"fake_hold\0", extern "C" fn(u32, u32, bool))(self.0, what, held);
    }

    pub fn fail(&self, call: &str, after: u64) {
        let call = CString::new(call).expect("a name");
        control!(b"fake_fail\0", extern "C" fn(u32, *const i8, u64))(self.0, call.as_ptr(), after);
    }

    /// Makes the kernel that moves pages change a byte of each launch.
    pub fn spoil_moves(&self) {
        control!(b"fake_spoil_moves\0", extern "C" fn(u32))(self.0);
    }

    /// As `fail`, but only so many calls.
    pub fn fail_times(&self, call: &str, after: u64, times: u64) {
        let call = CString::new(call).expect("a name");
        control!(b"fake_fail_times\0", extern "C" fn(u32, *const i8, u64, u64))(self.0, call.as_ptr(), after, times);
    }

    pub fn capture(&self, captures: bool) {
        control!(b"fake_capture\0", extern "C" fn(u32, bool))(self.0, captures);
    }

    pub fn gate(&self, call: &str, closed: bool) {
        let call = CString::new(call).expect("a name");
        control!(b"fake_gate\0", extern "C" fn(u32, *const i8, bool))(self.0, call.as_ptr(), closed);
    }

    /// Number of threads that stand at a gate.
    pub fn at_gate(&self) -> u64 {
        control!(b"fake_at_gate\0", extern "C" fn(u32) -> u64)(self.0)
    }

    pub fn allocate_max(&self, bytes: usize) {
        control!(b"fake_allocate_max\0", extern "C" fn(u32, usize))(self.0, bytes);
    }

    pub fn register_max(&self, bytes: usize) {
        control!(b"fake_register_max\0", extern "C" fn(u32, usize))(self.0, bytes);
    }

    pub fn run(&self) {
        control!(b"fake_run\0", extern "C" fn(u32))(self.0);
    }

    pub fn calls(&self, call: &str) -> u64 {
        let call = CString::new(call).expect("a name");
        control!(b"fake_calls\0", extern "C" fn(u32, *const i8) -> u64)(self.0, call.as_ptr())
    }

    pub fn locked(&self) -> usize {
        control!(b"fake_locked\0", extern "C" fn(u32) -> usize)(self.0)
    }

    pub fn allocations(&self) -> usize {
        control!(b"fake_allocations\0", extern "C" fn(u32) -> usize)(self.0)
    }

    pub fn wrong(&self) -> String {
        let mut text = vec![0_u8; 4096];
        let length = control!(b"fake_wrong\0", extern "C" fn(u32, *mut u8, usize) -> usize);
        let length = length(self.0, text.as_mut_ptr(), 4096);
        text.truncate(length);
        String::from_utf8(text).expect("a text")
    }
}

/// A way of blocks to the region and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Pages one by one, sums by the processor.
    Pages,
    /// The same over a region that is locked in pieces.
    Pieces,
    /// Saves through the buffer, loads page by page, sums by the GPU.
    Gathered,
    /// Both through the buffer.
    Scattered,
    Staged,
    /// As `Scattered`, through a buffer of three blocks.
    Narrow,
    /// As `Scattered`, but the driver refuses to lock more than the first pieces of the region, so other
    /// blocks are staged.
    Partly,
}

pub const WAYS: [Way; 7] =
    [Way::Pages, Way::Pieces, Way::Gathered, Way::Scattered, Way::Narrow, Way::Staged, Way::Partly];

/// Bytes of a piece of the region: no multiple of a block.
pub const PIECE: usize = 50_048;
/// Pieces that the driver locks for [`Way::Partly`].
pub const PIECES: u64 = 3;
/// Slots of the staging memory.
pub const SLOTS: usize = 24;

impl Way {
    /// Blocks pass through the buffer, and the GPU sums them.
    pub fn has_kernels(self) -> bool {
        self == Self::Gathered || self.scatters()
    }

    fn scatters(self) -> bool {
        matches!(self, Self::Scattered | Self::Narrow | Self::Partly)
    }
}

/// Blocks with their numbers in a load, each with its number in the region; and whether they are staged.
type Part = (Vec<(usize, (usize, usize))>, bool);

/// Blocks of the region that the mover published, by their numbers.
#[derive(Default)]
pub struct Published {
    /// All, in order.
    pub order: Vec<usize>,
    /// Those that did not have all of their bytes then.
    wrong: Vec<usize>,
}

/// An engine, its mover, and a region of as many blocks.
pub struct Rig {
    pub gpu: Gpu,
    pub mover: Mover,
    blocks: Vec<u64>,
    region: Arc<Vec<u64>>,
    /// The sums of saved blocks, by their numbers in the region.
    pub saved: Arc<Mutex<BTreeMap<usize, Option<[u64; SUM_WORDS]>>>>,
    /// What the mover published.
    pub published: Arc<Mutex<Published>>,
    /// Each thread of the mover has a clone.
    pub threads: Arc<()>,
}

impl Rig {
    /// A rig whose region is locked, as far as the driver does that.
    pub fn new(way: Way, seed: u64, clock: Clock) -> Self {
        let rig = Self::begin(way, seed, clock, false);
        assert!(rig.mover.wait_locked(PATIENCE));
        rig
    }

    /// A rig whose region is being locked: the driver's call stands at a gate.
    pub fn locking(way: Way, seed: u64, clock: Clock) -> Self {
        Self::begin(way, seed, clock, true)
    }

    fn begin(way: Way, seed: u64, clock: Clock, is_gated: bool) -> Self {
        let gpu = Gpu::new(seed);
        gpu.gate("cuMemHostRegister", is_gated);
        let blocks = vec![0_u64; BLOCKS * BLOCK as usize / 8];
        gpu.know(&blocks);
        let device = gpu.open(clock);
        let start = blocks.as_ptr().expose_provenance() as u64;
        let half = BLOCKS as u64 * RUN;
        let layer = |layer| Layer { address: start + layer * 2 * half, stride: RUN, runs: vec![(0, RUN), (half, RUN)] };
        let memory = [(start, BLOCKS as u64 * BLOCK)];
        let layout = Layout::new(&(0..LAYERS).map(layer).collect::<Vec<_>>(), BLOCKS, &memory).expect("a layout");
        let region = Arc::new(vec![0_u64; BLOCKS * BLOCK as usize / 8]);
        match way {
            Way::Pieces => gpu.register_max(PIECE),
            Way::Partly => gpu.fail("cuMemHostRegister", PIECES),
            _ => {}
        }
        let staging = Staging::new(&device, BLOCK as usize, SLOTS * BLOCK as usize).expect("slots");
        let piece = if matches!(way, Way::Pieces | Way::Partly) { PIECE } else { 1 << 30 };
        let registered = (way != Way::Staged).then_some(|| share(&device, &region, piece, clock));
        let settings = Settings {
            threads: 2,
            backlog_bytes: u64::MAX,
            gpu_buffer_bytes: match way {
                Way::Narrow => 3 * BLOCK,
                way if way.has_kernels() => 80 * BLOCK,
                _ => 0,
            },
            scatter_below: Some(if way.scatters() { u64::MAX } else { 0 }),
            clock,
        };
        let threads = Arc::new(());
        let of_thread = Arc::clone(&threads);
        let place = move || assert!(Arc::strong_count(&of_thread) > 0);
        let mover = Mover::start(&device, layout, staging, registered, settings, place).expect("threads");
        assert_eq!(mover.why_no_kernels().is_empty(), settings.gpu_buffer_bytes > 0, "{}", mover.why_no_kernels());
        Self { gpu, mover, blocks, region, saved: Arc::default(), published: Arc::default(), threads }
    }

    /// The words of a block that are its own.
    fn word(number: usize, layer: u64) -> u64 {
        (number as u64 * 7 + layer + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn runs(block: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
        (0..2 * LAYERS).map(move |run| {
            let first = ((run * BLOCKS as u64 + block as u64) * RUN / 8) as usize;
            (run, first..first + RUN as usize / 8)
        })
    }

    /// Computes blocks: their content is that of these numbers.
    pub fn compute(&mut self, blocks: &[(usize, usize)]) {
        for &(block, number) in blocks {
            for (run, words) in Self::runs(block) {
                self.blocks[words].fill(Self::word(number, run));
            }
        }
    }

    /// As [`Rig::compute`], on the engine's stream.
    pub fn queue_compute(&self, blocks: &[(usize, usize)]) {
        let write = control!(b"fake_engine_writes\0", extern "C" fn(u32, usize, *const u8, usize));
        for &(block, number) in blocks {
            for (run, words) in Self::runs(block) {
                let content = vec![Self::word(number, run); words.len()];
                let to = self.blocks[words].as_ptr().expose_provenance();
                write(self.gpu.0, to, content.as_ptr().cast(), content.len() * 8);
            }
        }
    }

    /// Lets the device run until all of these blocks were saved.
    pub fn await_saved(&self, count: usize) {
        until("saved blocks", || {
            self.gpu.run();
            (self.saved.lock().unwrap().len() == count).then_some(())
        });
        self.assert_whole("saved blocks");
    }

    /// All blocks that were published had all of their bytes.
    pub fn assert_whole(&self, what: &str) {
        assert_eq!(self.published.lock().unwrap().wrong, [0; 0], "{what}: blocks with other bytes were published");
    }

    /// Ends the mover, which leaves nothing.
    pub fn end(self, what: &str) {
        self.assert_whole(what);
        assert!(self.mover.close(PATIENCE), "{what}");
        assert_eq!(Arc::strong_count(&self.threads), 1, "{what}: threads are left");
        let left = (self.gpu.locked(), self.gpu.allocations(), self.gpu.wrong());
        assert_eq!(left, (0, 0, String::new()), "{what}");
    }

    /// Whether a block has the content of this number.
    pub fn holds(&self, block: usize, number: usize) -> bool {
        Self::runs(block).all(|(run, words)| self.blocks[words].iter().all(|&word| word == Self::word(number, run)))
    }

    fn place(region: &[u64], number: usize) -> u64 {
        region.as_ptr().expose_provenance() as u64 + number as u64 * BLOCK
    }

    fn place_of(&self, numbers: Vec<usize>) -> Place {
        let (region, saved) = (Arc::clone(&self.region), Arc::clone(&self.saved));
        Place { region, numbers, saved, published: Arc::clone(&self.published) }
    }

    /// Whether the GPU accesses a block of the region in its place.
    pub fn is_direct(&self, number: usize) -> bool {
        self.mover.is_direct(Self::place(&self.region, number), BLOCK)
    }

    /// These blocks in parts.
    fn parts(&self, blocks: &[(usize, usize)]) -> Vec<Part> {
        let all = blocks.iter().copied().enumerate();
        let (direct, staged): (Vec<_>, Vec<_>) = all.partition(|&(_, (_, number))| self.is_direct(number));
        let parts = |blocks: Vec<_>, is_staged| {
            let parts: Vec<_> = blocks.chunks(self.mover.part_blocks(is_staged)).map(<[_]>::to_vec).collect();
            parts.into_iter().map(move |part| (part, is_staged))
        };
        parts(direct, false).chain(parts(staged, true)).collect()
    }

    /// Parts of a save of the engine's blocks to these numbers.
    pub fn saving(&self, blocks: &[(usize, usize)]) -> Vec<Saving> {
        let part = |(part, is_staged): Part| {
            let (blocks, numbers) = part.into_iter().map(|(_, pair)| pair).unzip();
            Saving { sink: Box::new(self.place_of(numbers)), blocks, is_staged }
        };
        self.parts(blocks).into_iter().map(part).collect()
    }

    /// Parts of a load of these numbers to the engine's blocks.
    pub fn loading(&self, blocks: &[(usize, usize)]) -> Vec<Loading> {
        let part = |(part, is_staged): Part| {
            let (numbers, pairs): (Vec<_>, Vec<_>) = part.into_iter().unzip();
            let (blocks, places) = pairs.into_iter().unzip();
            Loading { source: Box::new(self.place_of(places)), blocks, numbers, is_staged }
        };
        self.parts(blocks).into_iter().map(part).collect()
    }
}

/// Memory of a test, which is there from the first.
struct Touched(#[allow(dead_code, reason = "it keeps the memory")] Arc<Vec<u64>>);

impl Mapped for Touched {
    fn touch(&self, _: usize, _: usize) {}
}

/// Begins to page-lock this memory.
pub fn share(device: &Arc<Device>, memory: &Arc<Vec<u64>>, piece: usize, clock: Clock) -> Registered {
    let place = (memory.as_ptr().expose_provenance(), memory.len() * 8);
    let pieces = Pieces { bytes: piece, threads: 2 };
    // SAFETY: `Touched` keeps the memory.
    unsafe { Registered::share(device, place, Arc::new(Touched(Arc::clone(memory))), pieces, clock) }
}

/// Blocks of the region with these numbers.
struct Place {
    region: Arc<Vec<u64>>,
    numbers: Vec<usize>,
    saved: Arc<Mutex<BTreeMap<usize, Option<[u64; SUM_WORDS]>>>>,
    published: Arc<Mutex<Published>>,
}

impl Place {
    fn addresses(&self) -> Vec<u64> {
        self.numbers.iter().map(|&number| Rig::place(&self.region, number)).collect()
    }

    fn keys(&self) -> Vec<[u64; LANES]> {
        self.numbers.iter().map(|&number| std::array::from_fn(|lane| (number * 8 + lane) as u64)).collect()
    }

    /// Whether the region has all bytes of a block.
    fn is_whole(&self, number: usize) -> bool {
        let words = RUN as usize / 8;
        let at: *const u64 = std::ptr::with_exposed_provenance(Rig::place(&self.region, number) as usize);
        // SAFETY: the block is within the region, and the device has ended its copies of it.
        (0..2 * LAYERS as usize * words)
            .all(|word| unsafe { at.add(word).read() } == Rig::word(number, (word / words) as u64))
    }
}

impl Source for Place {
    fn places(&self) -> Vec<u64> {
        self.addresses()
    }

    fn check(&mut self) -> Vec<bool> {
        self.numbers.iter().map(|&number| self.is_whole(number)).collect()
    }

    fn lane_keys(&self) -> Vec<[u64; LANES]> {
        self.keys()
    }

    fn check_sums(&mut self, sums: &[[u64; SUM_WORDS]]) -> Vec<bool> {
        let saved = self.saved.lock().expect("no panic");
        let same = |number: &usize, sums: &[u64; SUM_WORDS]| saved[number].is_none_or(|saved| saved == *sums);
        self.numbers.iter().zip(sums).map(|(number, sums)| same(number, sums)).collect()
    }

    fn read(&mut self, slots: &Slots) -> Vec<bool> {
        for (place, slot) in self.addresses().into_iter().zip(slots.places()) {
            let (to, from) = (slot as usize, place as usize);
            // SAFETY: the slot is this part's own, and the block is within the region.
            unsafe {
                std::ptr::with_exposed_provenance_mut::<u8>(to)
                    .copy_from_nonoverlapping(std::ptr::with_exposed_provenance(from), BLOCK as usize);
            }
        }
        self.check()
    }
}

impl Place {
    /// Notes the blocks as published, with their sums.
    fn note(&self, sums: &[Option<[u64; SUM_WORDS]>]) {
        for (&number, &sums) in self.numbers.iter().zip(sums) {
            let mut published = self.published.lock().expect("no panic");
            published.order.push(number);
            if !self.is_whole(number) {
                published.wrong.push(number);
            }
            drop(published);
            self.saved.lock().expect("no panic").insert(number, sums);
        }
    }
}

impl Sink for Place {
    fn places(&self) -> Vec<u64> {
        self.addresses()
    }

    fn publish(&mut self) {
        self.note(&vec![None; self.numbers.len()]);
    }

    fn lane_keys(&self) -> Vec<[u64; LANES]> {
        self.keys()
    }

    fn publish_with_sums(&mut self, sums: &[[u64; SUM_WORDS]]) {
        self.note(&sums.iter().copied().map(Some).collect::<Vec<_>>());
    }

    fn publish_from(&mut self, slots: &Slots) {
        for (place, slot) in self.addresses().into_iter().zip(slots.places()) {
            let (to, from) = (place as usize, slot as usize);
            // SAFETY: the slot is this part's own, and the block is within the region.
            unsafe {
                std::ptr::with_exposed_provenance_mut::<u8>(to)
                    .copy_from_nonoverlapping(std::ptr::with_exposed_provenance(from), BLOCK as usize);
            }
        }
        self.publish();
    }
}
