//! Memory of others: what Python lends through its buffer protocol, and what we lend of the region.

use crate::errors::wrong;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Buffers that Python lent for one call, contiguous, one after the other.
pub struct Lent(Vec<PyUntypedBuffer>);

impl Lent {
    /// Takes `parts`: one object with a buffer, or a sequence of them. With `writable` each must be.
    pub fn take(parts: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let one = PyUntypedBuffer::get(parts);
        let all = match one {
            Ok(buffer) => vec![buffer],
            Err(_) => parts.try_iter()?.map(|part| PyUntypedBuffer::get(&part?)).collect::<PyResult<_>>()?,
        };
        for buffer in &all {
            if !buffer.is_c_contiguous() {
                return Err(PyBufferError::new_err("the buffer is not contiguous"));
            }
            if writable && buffer.readonly() {
                return Err(PyBufferError::new_err("the buffer is read-only"));
            }
        }
        Ok(Self(all))
    }

    /// Bytes of all of them.
    pub fn len(&self) -> usize {
        self.0.iter().map(PyUntypedBuffer::len_bytes).sum()
    }

    /// Refuses parts that cannot lie one after the other in a payload of `wanted` bytes.
    pub fn fit(&self, wanted: u64) -> PyResult<()> {
        let count = self.0.len();
        let ragged = self.0.iter().take(count.saturating_sub(1)).any(|part| !part.len_bytes().is_multiple_of(64));
        if ragged {
            return Err(wrong("each part but the last must be a multiple of 64 bytes long"));
        }
        if self.len() as u64 != wanted {
            return Err(wrong(format!("{} bytes in {count} parts, but a block has {wanted}", self.len())));
        }
        Ok(())
    }

    /// The parts to read from.
    pub fn parts(&self) -> Vec<&[u8]> {
        self.0
            .iter()
            // SAFETY: Python keeps the memory of a buffer at its place while it is lent. That nobody writes it
            // meanwhile is the caller's promise (documented on every method that takes buffers).
            .map(|part| unsafe { std::slice::from_raw_parts(part.buf_ptr().cast(), part.len_bytes()) })
            .filter(|part| !part.is_empty())
            .collect()
    }

    /// The parts to write to.
    pub fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        self.0
            .iter()
            // SAFETY: as in `parts`, and `take` saw that they may be written; that they do not overlap and that
            // nobody else uses them is the caller's promise.
            .map(|part| unsafe { std::slice::from_raw_parts_mut(part.buf_ptr().cast(), part.len_bytes()) })
            .filter(|part| !part.is_empty())
            .collect()
    }
}

/// Lends `len` bytes at `address` through a `Py_buffer`, which keeps `owner` alive.
///
/// # Safety
/// Callers must guarantee that `view` is Python's, and that the memory stays while `owner` lives.
pub unsafe fn lend(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    (address, len): (*mut u8, u64),
    readonly: bool,
    flags: c_int,
) -> PyResult<()> {
    // SAFETY: the caller's guarantee; `PyBuffer_FillInfo` takes a reference to the owner of its own.
    let result = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), address.cast(), len as ffi::Py_ssize_t, readonly.into(), flags)
    };
    if result == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}
