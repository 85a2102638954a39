//! Blocks that were found and are kept.

use crate::buffers::{Lent, lend};
use crate::hashes::Hashes;
use crate::region::Open;
use cenote_mem::Mapped;
use cenote_pool::{HostPool, ReadOutcome};
use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

pub type Pin = cenote_pool::Pin<Arc<Mapped>>;

/// Pinned blocks of one lookup, in order. Ends with `release`, or when nobody has it any more.
#[pyclass(frozen, module = "cenote")]
pub struct Lease {
    open: Arc<Open>,
    pins: Mutex<Vec<Arc<Pin>>>,
}

impl Lease {
    pub fn new(open: Arc<Open>, pins: Vec<Pin>) -> Self {
        Self { open, pins: Mutex::new(pins.into_iter().map(Arc::new).collect()) }
    }

    fn pin(&self, index: usize) -> PyResult<Arc<Pin>> {
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        pins.get(index).cloned().ok_or_else(|| PyIndexError::new_err(format!("block {index} of {}", pins.len())))
    }

    /// The pins, which are the lease's no longer.
    pub fn take(&self) -> Vec<Arc<Pin>> {
        std::mem::take(&mut *self.pins.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Lease {
    fn __len__(&self) -> usize {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Copies a block into buffers, one after the other. False: it is gone or damaged after all, a miss.
    fn read_into(&self, py: Python<'_>, index: usize, parts: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (pool, pin) = (self.open.pool()?, self.pin(index)?);
        let mut lent = Lent::take(parts, true)?;
        lent.fit(pin.hit().length)?;
        let mut parts = lent.parts_mut();
        Ok(py.detach(|| pool.read(pin.hit(), &mut parts)) == ReadOutcome::Whole)
    }

    /// A view of a block in the region, which stays pinned while a buffer of it is lent.
    fn view(&self, index: usize) -> PyResult<BlockView> {
        Ok(BlockView { pool: self.open.pool()?, pin: self.pin(index)? })
    }

    /// Names of the blocks.
    fn hashes(&self) -> Hashes {
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        Hashes(pins.iter().map(|pin| pin.hit().hash).collect())
    }

    /// Takes the first `count` blocks out, into a lease of their own.
    fn split(&self, count: usize) -> Self {
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let count = count.min(pins.len());
        let first = pins.drain(..count).collect();
        Self { open: Arc::clone(&self.open), pins: Mutex::new(first) }
    }

    /// Keeps only the first `count` blocks.
    fn truncate(&self, count: usize) {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner).truncate(count);
    }

    /// Ends the lease. Views keep their blocks.
    fn release(&self) {
        drop(self.take());
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.release();
    }

    fn __repr__(&self) -> String {
        format!("Lease({} blocks of {:?})", self.__len__(), self.open.name)
    }
}

/// One pinned block in place.
#[pyclass(frozen, module = "cenote")]
pub struct BlockView {
    pool: HostPool,
    pin: Arc<Pin>,
}

impl BlockView {
    fn place(&self) -> (*mut u8, u64) {
        let (at, len) = self.pin.extent();
        (self.pool.fabric().address(at, len), len)
    }
}

#[pymethods]
impl BlockView {
    /// Where it lies in this process, and how long it is, in bytes.
    #[getter]
    fn extent(&self) -> (usize, u64) {
        let (address, len) = self.place();
        (address.addr(), len)
    }

    /// Whether its bytes are as they were published.
    fn verify(&self, py: Python<'_>) -> bool {
        py.detach(|| self.pin.verify()) == ReadOutcome::Whole
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("a published block is read-only"));
        }
        let place = slf.get().place();
        // SAFETY: the owner has the pin, which keeps the bytes, and the pool, which keeps the mapping.
        unsafe { lend(slf.as_any(), view, place, true, flags) }
    }
}
