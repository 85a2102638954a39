//! What a mover has on the GPU: kernels, a buffer of whole blocks, and tables for the kernels.
//!
//! The region's blocks are contiguous, the engine's pages are scattered. Copies of small pages are
//! bound by the driver's time for each, so whole blocks cross the bus, and a kernel scatters or
//! gathers their pages in GPU memory. Kernels copy nothing over the bus: that would take
//! multiprocessors from the engine.

use super::ring::{Places, Ring};
use super::{Settings, lock, proof, trial};
use crate::driver::{Device, DeviceBytes, DeviceError, Event, Locked, Stream};
use crate::kernels::{Kernels, LANES, Pages, SUM_WORDS, Sums};
use crate::layout::Layout;
use crate::memory::{Slots, Staging};
use std::sync::{Arc, Mutex};

/// Tables of loads: as many parts are between the begin of their copies and their check.
const BOARDS_OF_LOADS: usize = 12;
/// Tables of saves: parts that are under way. The most, the fewest, and the bytes of all if they are large.
const BOARDS_OF_SAVES: (usize, usize) = (160, 4);
const BOARD_BYTES: usize = 16 << 20;
/// The bytes of a board are a multiple, as the kernels' wide accesses need it.
const BOARD_ALIGN: usize = 256;
/// Most blocks of a part: each part is some calls of the driver and some wakes of threads.
const PART_BLOCKS_MAX: usize = 64;
/// Parts that find room in the half of the buffer for loads, or for saves: the bus works on one while others
/// are summed, checked and begun.
const PARTS_IN_BUFFER: usize = 4;

/// Fewer bytes keep a thread block of the kernel that moves pages idle, and their tables are large.
const PAGE_MIN: u64 = 512;
/// Most pages of a part, so that a board has at most 1 MiB of places, which the engine's thread fills.
const PAGES_MAX: usize = 1 << 16;

/// Smaller pages are slower by themselves on all machines that were measured (docs/evidence/gpu.md).
const SCATTER_BELOW: u64 = 32 << 10;

/// A GPU's facilities for blocks of one layout.
pub(crate) struct Kit {
    pub kernels: Kernels,
    /// Scatters and sums loaded blocks, beside the copies of later parts.
    pub loads: Stream,
    /// Sums gathered blocks. A stream of its own: the other one waits for the copies of loads.
    pub saves: Stream,
    /// Half of the buffer is for loads, which wait for places, and half for saves, which take them in turn.
    /// `None`: loads do not pass through it.
    buffer: Option<Arc<Staging>>,
    ring: Arc<Ring>,
    boards_of_loads: Arc<Boards>,
    boards_of_saves: Arc<Boards>,
    /// Most blocks of a part.
    pub part_blocks: usize,
}

/// Memory for tables.
struct Boards {
    /// The processor's side, which kernels may access over the bus.
    host: Locked,
    seen: u64,
    /// A copy of the tables that kernels read often.
    device: DeviceBytes,
    free: Mutex<Vec<usize>>,
    shape: Shape,
}

/// Sizes of a board's tables, which are of 64-bit words: places, mirror, keys, sums.
#[derive(Clone, Copy)]
struct Shape {
    blocks: usize,
    pages: usize,
    page_bytes: u32,
}

/// Tables of a part. The drop gives them and its places back, so the GPU must have ended its work.
pub(crate) struct Board {
    of: Arc<Boards>,
    number: usize,
    /// Blocks of the part.
    blocks: usize,
    mirror: Mirror,
}

/// A part's blocks in the buffer.
enum Mirror {
    None,
    OfLoad(Slots),
    OfSave(Places),
}

impl Kit {
    /// Fails if the layout's pages do not fit the kernels, if these move other bytes, or if the GPU's memory
    /// is short. Nothing uses the staging memory yet.
    pub fn new(
        device: &Arc<Device>,
        layout: &Layout,
        staging: &Arc<Staging>,
        settings: &Settings,
    ) -> Result<Self, DeviceError> {
        let unfit = || DeviceError::new("kernels", "the pages are not of whole lines at addresses of whole words");
        let page_bytes = layout.kernel_page().ok_or_else(unfit)?;
        let pages = (layout.block_bytes() / page_bytes) as usize;
        if page_bytes < PAGE_MIN || pages > PAGES_MAX {
            let why = format!(
                "{pages} pages of {page_bytes} bytes a block, the common divisor of all, are too many or too small"
            );
            return Err(DeviceError::new("kernels", why));
        }
        let kernels = Kernels::load(device)?;
        let (block, bytes) = (layout.block_bytes() as usize, settings.gpu_buffer_bytes as usize);
        let places = bytes / 2 / block;
        if places == 0 {
            let why = format!("two blocks have {}; give at least so many", 2 * block);
            return Err(DeviceError::of_arguments(format!("{bytes} bytes of GPU buffer"), why));
        }
        let buffer = Staging::on_gpu(device, block, places * block)?;
        let ring = Ring::new(device, block as u64, places)?;
        let part_blocks = PART_BLOCKS_MAX.min(places / PARTS_IN_BUFFER).clamp(1, PAGES_MAX / pages);
        let shape = Shape { blocks: part_blocks, pages, page_bytes: page_bytes as u32 };
        let (most, fewest) = BOARDS_OF_SAVES;
        let of_saves = (BOARD_BYTES / shape.bytes()).clamp(fewest, most);
        let boards_of_loads = Boards::new(device, shape, BOARDS_OF_LOADS)?;
        let boards_of_saves = Boards::new(device, shape, of_saves)?;
        proof::moves_pages(device, &kernels, page_bytes, settings.clock)?;
        let run = layout.smallest_run();
        let scatters = match settings.scatter_below {
            Some(below) => run < below,
            None => trial::are_slow(device, run, staging, &buffer, settings.clock)?.unwrap_or(run < SCATTER_BELOW),
        };
        Ok(Self {
            kernels,
            loads: Stream::new(device)?,
            saves: Stream::new(device)?,
            buffer: scatters.then_some(buffer),
            ring,
            boards_of_loads,
            boards_of_saves,
            part_blocks,
        })
    }

    /// Tables for a load of so many blocks, with places in the buffer if loads pass through it; `None` until
    /// other loads give some back.
    pub fn for_load(&self, blocks: usize) -> Option<Board> {
        let mut board = self.boards_of_loads.take(blocks)?;
        if let Some(buffer) = &self.buffer {
            board.mirror = Mirror::OfLoad(buffer.take(blocks)?);
        }
        Some(board)
    }

    /// Whether loads pass through the buffer.
    pub const fn scatters(&self) -> bool {
        self.buffer.is_some()
    }

    /// Tables for a save of so many blocks, with places in the buffer, and the events behind which these are
    /// free; `None` if there are no tables, or if no event tells when places are free.
    pub fn for_save(&self, blocks: usize) -> Option<(Board, Vec<Arc<Event>>)> {
        let mut board = self.boards_of_saves.take(blocks)?;
        let (places, before) = self.ring.take(blocks)?;
        board.mirror = Mirror::OfSave(places);
        Some((board, before))
    }
}

impl Boards {
    fn new(device: &Arc<Device>, shape: Shape, count: usize) -> Result<Arc<Self>, DeviceError> {
        let host = device.lock(count * shape.bytes())?;
        let seen = device.seen(host.address())?;
        let device = device.allocate(count * shape.bytes())?;
        Ok(Arc::new(Self { host, seen, device, free: Mutex::new((0..count).collect()), shape }))
    }

    fn take(self: &Arc<Self>, blocks: usize) -> Option<Board> {
        let number = lock(&self.free).pop()?;
        Some(Board { of: Arc::clone(self), number, blocks, mirror: Mirror::None })
    }
}

impl Shape {
    const fn places(self) -> usize {
        self.blocks * self.pages
    }

    /// Words before the sums.
    const fn tables(self) -> usize {
        2 * self.places() + self.blocks * LANES
    }

    /// All words. The last two are the addresses of the board's own copy.
    const fn words(self) -> usize {
        self.tables() + self.blocks * SUM_WORDS + 2
    }

    const fn bytes(self) -> usize {
        (self.words() * 8).next_multiple_of(BOARD_ALIGN)
    }
}

impl Board {
    /// Addresses of the tables: for the processor, for kernels over the bus, and of their copy on the GPU.
    fn host(&self) -> usize {
        self.of.host.address() + self.number * self.of.shape.bytes()
    }

    fn seen(&self) -> u64 {
        self.of.seen + (self.number * self.of.shape.bytes()) as u64
    }

    fn device(&self) -> u64 {
        self.of.device.address() + (self.number * self.of.shape.bytes()) as u64
    }

    /// Addresses of the part's blocks in the buffer; empty if they do not pass through it.
    pub fn mirror(&self) -> Vec<u64> {
        match &self.mirror {
            Mirror::None => Vec::new(),
            Mirror::OfLoad(slots) => slots.places(),
            Mirror::OfSave(places) => places.addresses().collect(),
        }
    }

    /// Tells the event behind which the device has left the places of a save.
    pub fn end_behind(&self, event: Event) {
        if let Mirror::OfSave(places) = &self.mirror {
            places.end_behind(event);
        }
    }

    /// Fills the tables: addresses of the pages of each block, and of their mirror in the buffer.
    pub fn fill(&mut self, layout: &Layout, blocks: &[usize], keys: &[[u64; LANES]]) {
        let (shape, start) = (self.of.shape, self.host());
        assert!(blocks.len() == self.blocks && keys.len() == self.blocks && self.blocks <= shape.blocks);
        let table: *mut u64 = std::ptr::with_exposed_provenance_mut(start);
        let put = |word: usize, value: u64| {
            assert!(word < shape.words());
            // SAFETY: the word is within the board's memory, which the GPU does not use now.
            unsafe { table.add(word).write(value) };
        };
        let pages = blocks.iter().flat_map(|&block| layout.kernel_pages(block, u64::from(shape.page_bytes)));
        pages.enumerate().for_each(|(number, address)| put(number, address));
        let of_slot = |slot| (0..shape.pages as u64).map(move |page| slot + page * u64::from(shape.page_bytes));
        let mirror = self.mirror().into_iter().flat_map(of_slot);
        mirror.enumerate().for_each(|(number, address)| put(shape.places() + number, address));
        let keys = keys.iter().flatten().enumerate();
        keys.for_each(|(number, &key)| put(2 * shape.places() + number, key));
        put(shape.words() - 2, self.device());
        put(shape.words() - 1, self.seen());
    }

    /// The tables, as a page from the processor's side to the GPU's. A kernel moves it, because a copy
    /// would wait behind the copies of loads.
    pub fn upload(&self) -> Pages {
        let (shape, last) = (self.of.shape, self.seen() + (self.of.shape.words() as u64 - 2) * 8);
        Pages { to: last, from: last + 8, page_bytes: shape.tables() as u32 * 8, count: 1 }
    }

    /// Pages from the engine's blocks to the buffer. The kernel reads the tables over the bus, once.
    pub fn gather(&self) -> Pages {
        let (shape, seen) = (self.of.shape, self.seen());
        Pages { to: seen + shape.places() as u64 * 8, from: seen, page_bytes: shape.page_bytes, count: self.pages() }
    }

    /// Pages from the buffer to the engine's blocks.
    pub fn scatter(&self) -> Pages {
        let (shape, tables) = (self.of.shape, self.device());
        Pages {
            to: tables,
            from: tables + shape.places() as u64 * 8,
            page_bytes: shape.page_bytes,
            count: self.pages(),
        }
    }

    /// Sums of the engine's blocks.
    pub fn sum_places(&self) -> Sums {
        self.sums(0)
    }

    /// Sums of the buffer's blocks.
    pub fn sum_mirror(&self) -> Sums {
        self.sums(self.of.shape.places())
    }

    fn sums(&self, first: usize) -> Sums {
        let (shape, tables) = (self.of.shape, self.device());
        Sums {
            pages: tables + first as u64 * 8,
            pages_per_block: shape.pages as u32,
            page_bytes: shape.page_bytes,
            keys: tables + 2 * shape.places() as u64 * 8,
            out: self.seen() + self.first_sum() as u64 * 8,
            blocks: self.blocks as u32,
        }
    }

    /// The sums, when the kernel has ended.
    pub fn take_sums(&self) -> Vec<[u64; SUM_WORDS]> {
        let table: *const u64 = std::ptr::with_exposed_provenance(self.host());
        let word = |at: usize| {
            assert!(at < self.of.shape.words());
            // SAFETY: the word is within the board's memory, and the GPU has ended its work.
            unsafe { table.add(at).read() }
        };
        let sum = |block| std::array::from_fn(|number| word(self.first_sum() + block * SUM_WORDS + number));
        (0..self.blocks).map(sum).collect()
    }

    fn pages(&self) -> u64 {
        (self.blocks * self.of.shape.pages) as u64
    }

    fn first_sum(&self) -> usize {
        self.of.shape.tables()
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        lock(&self.of.free).push(self.number);
    }
}
