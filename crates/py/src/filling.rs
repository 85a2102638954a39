//! A block that somebody else writes in place: a device, or Python through a buffer.

use crate::buffers::lend;
use crate::errors::{guarded, wrong};
use crate::namespace::outcome;
use cenote_mem::Mapped;
use cenote_pool::HostPool;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

type Inner = cenote_pool::InPlace<Arc<Mapped>>;

/// Memory of a block that nobody finds before `publish`.
#[pyclass(frozen, module = "cenote")]
pub struct Filling {
    pool: HostPool,
    /// Boxed, because Python aligns its objects to 16 bytes, and a checksum in the making wants 64.
    filling: Mutex<Option<Box<Inner>>>,
    /// Buffers that are lent out.
    lent: AtomicUsize,
}

impl Filling {
    pub fn new(pool: HostPool, filling: Inner) -> Self {
        Self { pool, filling: Mutex::new(Some(Box::new(filling))), lent: AtomicUsize::new(0) }
    }

    fn take(&self) -> PyResult<Box<Inner>> {
        let mut filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lent.load(Ordering::Acquire) != 0 {
            return Err(PyBufferError::new_err("its memory is still lent out; release the views first"));
        }
        filling.take().ok_or_else(|| wrong("the block was published or given up"))
    }

    fn place(&self) -> PyResult<(*mut u8, u64)> {
        let filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, len) = filling.as_ref().ok_or_else(|| wrong("the block was published or given up"))?.extent();
        Ok((self.pool.fabric().address(at, len), len))
    }
}

const _: () = assert!(align_of::<Filling>() <= 16);

#[pymethods]
impl Filling {
    /// Where its memory lies in this process, and how long it is, in bytes.
    #[getter]
    fn extent(&self) -> PyResult<(usize, u64)> {
        self.place().map(|(address, len)| (address.addr(), len))
    }

    /// Sums what was written and makes the block findable.
    fn publish(&self, py: Python<'_>) -> PyResult<&'static str> {
        let filling = self.take()?;
        guarded(|| Ok(outcome(py.detach(|| filling.publish()))))
    }

    /// Gives the memory back.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let filling = self.take()?;
        guarded(|| {
            py.detach(|| drop(filling));
            Ok(())
        })
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let place = this.place()?;
        // SAFETY: the memory is this block's until `take`, which refuses while a buffer is lent, and the mapping lives as
        // long as `pool`, which the owner has.
        unsafe { lend(slf.as_any(), view, place, false, flags)? };
        this.lent.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.lent.fetch_sub(1, Ordering::AcqRel);
    }
}
