//! Rows of tables that a GPU reads out of a registered region.

use super::{Gpu, of_device};
use crate::errors::{CenoteError, wrong};
use cenote_device::driver::EngineStream;
use cenote_device::rows::{RowGather, RowKernel as Kernel, Stored};
use cenote_mem::fork::ProcessStamp;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;

/// A `cenote.device.TablePlace`.
#[derive(FromPyObject)]
struct TablePlace {
    region: u64,
    starts: u64,
    extent_rows: u64,
    row_bytes: u32,
    row_values: u32,
    format: String,
    scale: f32,
}

/// A `cenote.device.RowGather`.
#[derive(FromPyObject)]
struct Wanted {
    ids: u64,
    id_bytes: u32,
    id_strides: (i64, i64),
    tokens: u64,
    heads: u64,
    known_heads: u64,
    first_row: i64,
    end_row: i64,
    out: u64,
    out_stride: u64,
    decode: bool,
}

/// The kernel that gathers rows, loaded on a GPU.
#[pyclass(frozen, module = "cenote")]
pub struct RowKernel {
    kernel: ManuallyDrop<Kernel>,
    stamp: ProcessStamp,
}

impl Drop for RowKernel {
    fn drop(&mut self) {
        // A forked child has no use of its parent's context in the driver.
        if !self.stamp.is_inherited() {
            // SAFETY: this value ends here, so nothing uses the kernel after its drop.
            unsafe { ManuallyDrop::drop(&mut self.kernel) };
        }
    }
}

#[pymethods]
impl RowKernel {
    #[new]
    fn new(py: Python<'_>, gpu: &Gpu) -> PyResult<Self> {
        let device = gpu.device()?;
        let kernel = py.detach(|| Kernel::load(device)).map_err(|error| of_device(&error))?;
        Ok(Self { kernel: ManuallyDrop::new(kernel), stamp: ProcessStamp::current() })
    }

    /// Queues the gather of all rows with one launch, on this stream.
    fn gather(&self, py: Python<'_>, table: TablePlace, rows: Wanted, stream: usize) -> PyResult<()> {
        if self.stamp.is_inherited() {
            return Err(CenoteError::new_err("another process loaded this kernel; load it in this one"));
        }
        let stored = match (rows.decode, table.format.as_str()) {
            (false, _) => Stored::AsStored,
            (true, "e4m3-ue8m0") => Stored::E4m3Ue8m0,
            (true, "e4m3") => Stored::E4m3,
            (true, "f16") => Stored::F16,
            (true, "bf16") => Stored::Bf16,
            (true, other) => return Err(wrong(format!("rows of format {other} cannot be decoded"))),
        };
        if rows.decode && !(rows.out | rows.out_stride).is_multiple_of(2) {
            return Err(wrong("decoded rows are of 2 bytes a value; give an even address and an even stride"));
        }
        let count = rows.tokens.checked_mul(rows.heads).ok_or_else(|| wrong("too many rows"))?;
        if count == 0 {
            return Ok(());
        }
        let gather = RowGather {
            region: table.region,
            starts: table.starts,
            ids: rows.ids,
            out: rows.out,
            extent_rows: table.extent_rows,
            rows: count,
            heads: rows.heads,
            known_heads: rows.known_heads,
            id_stride_token: rows.id_strides.0,
            id_stride_head: rows.id_strides.1,
            first_row: rows.first_row,
            end_row: rows.end_row,
            out_stride: rows.out_stride,
            id_bytes: rows.id_bytes,
            row_bytes: table.row_bytes,
            values: table.row_values,
            stored,
            scale: table.scale,
            unused: 0,
        };
        // SAFETY: callers guarantee that the addresses are the GPU's until the kernel has ended.
        let queued = py.detach(|| unsafe { self.kernel.gather(EngineStream(stream), &gather) });
        queued.map_err(|error| if error.is_of_arguments() { wrong(error.to_string()) } else { of_device(&error) })
    }
}
