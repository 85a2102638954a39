//! Rows of tables that a GPU reads out of a registered region.

use super::{Gpu, of_device};
use crate::errors::wrong;
use cenote_device::driver::EngineStream;
use cenote_device::rows::{RowGather, RowKernel as Kernel, Stored};
use pyo3::prelude::*;

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
pub struct RowKernel(Kernel);

#[pymethods]
impl RowKernel {
    #[new]
    fn new(py: Python<'_>, gpu: &Gpu) -> PyResult<Self> {
        py.detach(|| Kernel::load(&gpu.0)).map(Self).map_err(|error| of_device(&error))
    }

    /// Queues the gather of all rows with one launch, on this stream.
    fn gather(&self, py: Python<'_>, table: TablePlace, rows: Wanted, stream: usize) -> PyResult<()> {
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
        let queued = py.detach(|| unsafe { self.0.gather(EngineStream(stream), &gather) });
        queued.map_err(|error| if error.is_of_arguments() { wrong(error.to_string()) } else { of_device(&error) })
    }
}
