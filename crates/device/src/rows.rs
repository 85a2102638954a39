//! Rows of tables, which a kernel reads out of the processor's memory (`kernels/kernels.cu`).

use crate::calls::Handle;
use crate::driver::{Device, DeviceError, EngineStream};
use crate::kernels::{grid, load, pointer};
use std::sync::Arc;

/// Threads of a thread block, as the kernel is compiled, and rows that they read at once.
const THREADS: u32 = 128;
const ROWS: u64 = THREADS as u64 / 32;

/// How a table stores its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stored {
    /// Values, then a scale for each 32 of them.
    E4m3Ue8m0,
    /// Values, and one scale for the table.
    E4m3,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Of any kind: the output has the same bytes.
    AsStored,
}

/// The kernel's parameter, which `kernels.cu` describes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RowGather {
    /// The GPU's address of the region's first byte.
    pub region: u64,
    /// Address of the extents' offsets in the region, 64-bit numbers.
    pub starts: u64,
    /// Address of the row numbers.
    pub ids: u64,
    /// Address of the output.
    pub out: u64,
    /// Rows of an extent.
    pub extent_rows: u64,
    /// Tokens times heads.
    pub rows: u64,
    /// Rows of a token.
    pub heads: u64,
    /// Further heads get zeros.
    pub known_heads: u64,
    /// Row numbers from one token to the next.
    pub id_stride_token: i64,
    /// Row numbers from one head to the next.
    pub id_stride_head: i64,
    /// Row numbers below it give zeros.
    pub first_row: i64,
    /// Row numbers from it on give zeros.
    pub end_row: i64,
    /// Bytes of the output from one token to the next.
    pub out_stride: u64,
    /// Bytes of a row number: 4 or 8.
    pub id_bytes: u32,
    /// Bytes of a stored row.
    pub row_bytes: u32,
    /// Values of a row.
    pub values: u32,
    /// How rows are stored. Rows of known formats become bfloat16.
    pub stored: Stored,
    /// The table's scale, a bfloat16 ([`Stored::E4m3`] only).
    pub scale: f32,
    /// 0.
    pub unused: u32,
}

/// The kernel, on one GPU.
pub struct RowKernel {
    device: Arc<Device>,
    function: Handle,
}

impl RowKernel {
    /// Loads the kernel. Later launches allocate nothing, so graphs can hold them.
    ///
    /// # Errors
    /// The driver cannot compile it.
    pub fn load(device: &Arc<Device>) -> Result<Self, DeviceError> {
        let function = device.function(load(device)?, c"cenote_rows")?;
        Ok(Self { device: Arc::clone(device), function })
    }

    /// Queues a gather on the engine's stream, with one launch.
    ///
    /// # Safety
    /// Callers must guarantee that all addresses are the GPU's until the kernel has ended, and that it
    /// may write the output; in bfloat16 that is at an even address, with an even stride.
    ///
    /// # Errors
    /// Numbers that the kernel would take for others, or the driver refuses.
    pub unsafe fn gather(&self, stream: EngineStream, of: &RowGather) -> Result<(), DeviceError> {
        if !matches!(of.id_bytes, 4 | 8) || of.first_row < 0 || (of.first_row < of.end_row && of.extent_rows == 0) {
            let what = format!("row numbers of {} bytes, rows {} to {}", of.id_bytes, of.first_row, of.end_row);
            let why = format!("give 4 or 8 bytes, and rows of a table's extents of {}", of.extent_rows);
            return Err(DeviceError::of_arguments(what, why));
        }
        // SAFETY: the kernel has this one parameter, and the memory is valid by the contract.
        unsafe {
            self.device.launch(self.function, grid(of.rows.div_ceil(ROWS)), THREADS, stream.0, &mut [pointer(of)])
        }
    }
}
