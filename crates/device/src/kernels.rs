//! The kernels of `kernels/kernels.cu`: checksums of blocks in GPU memory, and pages from or to a
//! buffer; and rows of tables (`rows.rs`). The driver compiles the PTX when it loads it.

use crate::calls::Handle;
use crate::driver::{Device, DeviceError, EngineStream, Stream};
use std::ffi::{CStr, c_void};
use std::sync::Arc;

const PTX: &str = concat!(include_str!("../kernels/kernels.ptx"), "\0");

/// Threads of a thread block, as the kernels are compiled.
const SUM_THREADS: u32 = 288;
const MOVE_THREADS: u32 = 256;
/// Most thread blocks of a launch: each takes several blocks or pages, one after the other.
const GRID_MAX: u64 = 528;

/// Words of a block's sums.
pub const SUM_WORDS: usize = 24;
/// Lanes of a checksum, which has a key for each.
pub const LANES: usize = 8;

/// The loaded kernels.
pub(crate) struct Kernels {
    device: Arc<Device>,
    sums: Handle,
    pages: Handle,
}

/// Pages of equal size: addresses of tables in memory that the GPU reads.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    pub to: u64,
    pub from: u64,
    pub page_bytes: u32,
    pub count: u64,
}

/// Blocks of pages: addresses of tables in memory that the GPU reads, and of the output.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    pub pages: u64,
    pub pages_per_block: u32,
    pub page_bytes: u32,
    pub keys: u64,
    pub out: u64,
    pub blocks: u32,
}

impl Kernels {
    pub fn load(device: &Arc<Device>) -> Result<Self, DeviceError> {
        let module = load(device)?;
        let (sums, pages) = (device.function(module, c"cenote_sums")?, device.function(module, c"cenote_move")?);
        Ok(Self { device: Arc::clone(device), sums, pages })
    }

    /// Queues copies of pages on the engine's stream.
    ///
    /// # Safety
    /// Callers must guarantee that the tables and all pages are memory of the GPU until the kernel has
    /// ended, and that no page overlaps another.
    pub unsafe fn move_for_engine(&self, stream: EngineStream, pages: Pages) -> Result<(), DeviceError> {
        // SAFETY: by the contract of this function.
        unsafe { self.launch_move(stream.0, pages) }
    }

    /// As [`Kernels::move_for_engine`], on a stream of the mover.
    ///
    /// # Safety
    /// As [`Kernels::move_for_engine`].
    pub unsafe fn move_pages(&self, stream: &Stream, pages: Pages) -> Result<(), DeviceError> {
        // SAFETY: by the contract of this function.
        unsafe { self.launch_move(stream.handle(), pages) }
    }

    unsafe fn launch_move(&self, stream: Handle, pages: Pages) -> Result<(), DeviceError> {
        let Pages { to, from, page_bytes, count } = pages;
        let mut parameters = [pointer(&to), pointer(&from), pointer(&page_bytes), pointer(&count)];
        // SAFETY: the parameters are those of the kernel, and the memory is valid by the contract.
        unsafe { self.device.launch(self.pages, grid(count), MOVE_THREADS, stream, &mut parameters) }
    }

    /// Queues the sums of blocks.
    ///
    /// # Safety
    /// Callers must guarantee that the tables, all pages and the output are memory that the GPU may
    /// access until the kernel has ended.
    pub unsafe fn sum(&self, stream: &Stream, of: Sums) -> Result<(), DeviceError> {
        let Sums { pages, pages_per_block, page_bytes, keys, out, blocks } = of;
        let mut parameters = [
            pointer(&pages),
            pointer(&pages_per_block),
            pointer(&page_bytes),
            pointer(&keys),
            pointer(&out),
            pointer(&blocks),
        ];
        let grid = grid(u64::from(blocks));
        // SAFETY: the parameters are those of the kernel, and the memory is valid by the contract.
        unsafe { self.device.launch(self.sums, grid, SUM_THREADS, stream.handle(), &mut parameters) }
    }
}

pub(crate) fn load(device: &Device) -> Result<Handle, DeviceError> {
    device.module(CStr::from_bytes_with_nul(PTX.as_bytes()).expect("PTX is a string"))
}

pub(crate) fn grid(work: u64) -> u32 {
    work.clamp(1, GRID_MAX) as u32
}

pub(crate) fn pointer<T>(of: &T) -> *mut c_void {
    std::ptr::from_ref(of).cast_mut().cast()
}
