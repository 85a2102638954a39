//! What a mover has on the GPU: kernels, a buffer of whole blocks, and tables for the kernels.
//!
//! The region's blocks are contiguous, the engine's pages are scattered. Copies of small pages are
//! bound by the driver's time for each, so whole blocks cross the bus, and a kernel scatters or
//! gathers their pages in GPU memory. Kernels copy nothing over the bus: that would take
//! multiprocessors from the engine.

use super::{Settings, lock, part_blocks, proof, trial};
use crate::driver::{Device, DeviceBytes, DeviceError, Locked, Stream};
use crate::kernels::{Kernels, LANES, Pages, SUM_WORDS, Sums};
use crate::layout::Layout;
use crate::memory::{Slots, Staging};
use std::sync::{Arc, Mutex};

/// Tables in use at once: as many parts are between the begin of their copies and their check.
const BOARDS: usize = 16;

/// Of these, and of the buffer's places, loads leave some to saves, which do not wait.
const BOARDS_OF_SAVES: usize = 4;
const BUFFER_OF_SAVES: usize = 4;

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
    buffer: Arc<Staging>,
    boards: Arc<Boards>,
    /// Loads pass through the buffer.
    pub scatters: bool,
    /// Most blocks of a part.
    pub part_blocks: usize,
}

struct Boards {
    free: Mutex<Vec<Memory>>,
    shape: Shape,
}

/// Sizes of a board's tables, which are of 64-bit words: places, mirror, keys, sums.
#[derive(Clone, Copy)]
struct Shape {
    blocks: usize,
    pages: usize,
    page_bytes: u32,
}

struct Memory {
    /// The processor's side, which kernels may access over the bus.
    host: Locked,
    seen: u64,
    /// A copy of the tables that kernels read often.
    device: DeviceBytes,
}

/// Whose part takes tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// It waits until some are free.
    Load,
    /// It goes page by page if none are free.
    Save,
}

/// Tables of a part. The drop gives them back, so the GPU must have ended its work.
pub(crate) struct Board {
    of: Arc<Boards>,
    memory: Option<Memory>,
    /// Blocks of the part.
    blocks: usize,
    /// The part's blocks in the buffer.
    pub slots: Option<Slots>,
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
        let buffer = Staging::on_gpu(device, layout.block_bytes() as usize, settings.gpu_buffer_bytes as usize)?;
        let part_blocks = part_blocks(buffer.count()).min(PAGES_MAX / pages);
        let shape = Shape { blocks: part_blocks, pages, page_bytes: page_bytes as u32 };
        let board = |_| -> Result<Memory, DeviceError> {
            let host = device.lock(shape.words() * 8)?;
            let seen = device.seen(host.address())?;
            Ok(Memory { host, seen, device: device.allocate(shape.words() * 8)? })
        };
        let free = Mutex::new((0..BOARDS).map(board).collect::<Result<_, _>>()?);
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
            buffer,
            boards: Arc::new(Boards { free, shape }),
            scatters,
            part_blocks,
        })
    }

    /// Tables for so many blocks, with places in the buffer if `buffered`; `None` if none are free for
    /// this user.
    pub fn take(&self, user: User, blocks: usize, buffered: bool) -> Option<Board> {
        let (boards, places) = match user {
            User::Load => (BOARDS_OF_SAVES, self.buffer.count() / BUFFER_OF_SAVES),
            User::Save => (0, 0),
        };
        let slots = if buffered { Some(self.buffer.take(blocks, places)?) } else { None };
        let mut free = lock(&self.boards.free);
        let memory = if free.len() > boards { free.pop() } else { None }?;
        drop(free);
        Some(Board { of: Arc::clone(&self.boards), memory: Some(memory), blocks, slots })
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
}

impl Board {
    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("a board has memory until its drop")
    }

    /// Fills the tables: addresses of the pages of each block, and of their mirror in the buffer.
    pub fn fill(&mut self, layout: &Layout, blocks: &[usize], keys: &[[u64; LANES]]) {
        let (shape, start) = (self.of.shape, self.memory().host.address());
        assert!(blocks.len() == self.blocks && keys.len() == self.blocks && self.blocks <= shape.blocks);
        let table: *mut u64 = std::ptr::with_exposed_provenance_mut(start);
        let put = |word: usize, value: u64| {
            assert!(word < shape.words());
            // SAFETY: the word is within the board's memory, which the GPU does not use now.
            unsafe { table.add(word).write(value) };
        };
        let pages = blocks.iter().flat_map(|&block| layout.kernel_pages(block, u64::from(shape.page_bytes)));
        pages.enumerate().for_each(|(number, address)| put(number, address));
        if let Some(slots) = &self.slots {
            let mirror = slots
                .places()
                .into_iter()
                .flat_map(|slot| (0..shape.pages as u64).map(move |page| slot + page * u64::from(shape.page_bytes)));
            mirror.enumerate().for_each(|(number, address)| put(shape.places() + number, address));
        }
        let keys = keys.iter().flatten().enumerate();
        keys.for_each(|(number, &key)| put(2 * shape.places() + number, key));
        put(shape.words() - 2, self.memory().device.address());
        put(shape.words() - 1, self.memory().seen);
    }

    /// The tables, as a page from the processor's side to the GPU's. A kernel moves it, because a copy
    /// would wait behind the copies of loads.
    pub fn upload(&self) -> Pages {
        let (shape, last) = (self.of.shape, self.memory().seen + (self.of.shape.words() as u64 - 2) * 8);
        Pages { to: last, from: last + 8, page_bytes: shape.tables() as u32 * 8, count: 1 }
    }

    /// Pages from the engine's blocks to the buffer. The kernel reads the tables over the bus, once.
    pub fn gather(&self) -> Pages {
        let (shape, seen) = (self.of.shape, self.memory().seen);
        Pages { to: seen + shape.places() as u64 * 8, from: seen, page_bytes: shape.page_bytes, count: self.pages() }
    }

    /// Pages from the buffer to the engine's blocks.
    pub fn scatter(&self) -> Pages {
        let (shape, tables) = (self.of.shape, self.memory().device.address());
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
        let (shape, tables) = (self.of.shape, self.memory().device.address());
        Sums {
            pages: tables + first as u64 * 8,
            pages_per_block: shape.pages as u32,
            page_bytes: shape.page_bytes,
            keys: tables + 2 * shape.places() as u64 * 8,
            out: self.memory().seen + self.first_sum() as u64 * 8,
            blocks: self.blocks as u32,
        }
    }

    /// The sums, when the kernel has ended.
    pub fn take_sums(&self) -> Vec<[u64; SUM_WORDS]> {
        let table: *const u64 = std::ptr::with_exposed_provenance(self.memory().host.address());
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
        lock(&self.of.free).extend(self.memory.take());
    }
}
