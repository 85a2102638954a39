//! A block that a device, or Python through a buffer, writes in place.

use crate::buffers::lend;
use crate::cold::Below;
use crate::errors::{guarded, wrong};
use crate::namespace::outcome;
use cenote_base::BlockHash;
use cenote_mem::Mapped;
use cenote_pool::{HostPool, Publish};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

type Inner = cenote_pool::InPlace<Arc<Mapped>>;

/// Memory of a block that lookups cannot find before `publish`.
#[pyclass(frozen, module = "cenote")]
pub struct Filling {
    pool: HostPool,
    /// Boxed, because Python aligns objects to 16 bytes, and the checksum state needs 64.
    filling: Mutex<Option<Box<Inner>>>,
    /// Number of buffers lent to Python.
    lent: AtomicUsize,
    /// L4, which gets the block when it is published.
    below: Option<Below>,
    pub hash: BlockHash,
}

impl Filling {
    pub fn new(pool: HostPool, filling: Inner, below: Option<Below>, hash: BlockHash) -> Self {
        Self { pool, filling: Mutex::new(Some(Box::new(filling))), lent: AtomicUsize::new(0), below, hash }
    }

    fn take(&self) -> PyResult<Box<Inner>> {
        let mut filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lent.load(Ordering::Acquire) != 0 {
            return Err(PyBufferError::new_err("the block's memory is still lent; release the views first"));
        }
        filling.take().ok_or_else(|| wrong("the block was published or aborted"))
    }

    /// Takes blocks of this pool to publish them: all, or on an error none.
    pub fn take_all<'a>(pool: &HostPool, fillings: impl Iterator<Item = &'a Self>) -> PyResult<Vec<Inner>> {
        let mut taken: Vec<(&Self, Box<Inner>)> = Vec::new();
        for filling in fillings {
            let one = if filling.pool.is_same(pool) {
                filling.take()
            } else {
                Err(wrong("the block is of another region, or of an earlier use of it"))
            };
            match one {
                Ok(inner) => taken.push((filling, inner)),
                Err(error) => {
                    for (filling, inner) in taken {
                        *filling.filling.lock().unwrap_or_else(PoisonError::into_inner) = Some(inner);
                    }
                    return Err(error);
                }
            }
        }
        Ok(taken.into_iter().map(|(_, inner)| *inner).collect())
    }

    fn place(&self) -> PyResult<(*mut u8, u64)> {
        let filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, len) = filling.as_ref().ok_or_else(|| wrong("the block was published or aborted"))?.extent();
        Ok((self.pool.fabric().address(at, len), len))
    }
}

const _: () = assert!(align_of::<Filling>() <= 16);

#[pymethods]
impl Filling {
    /// Address in this process and length in bytes.
    #[getter]
    fn extent(&self) -> PyResult<(usize, u64)> {
        self.place().map(|(address, len)| (address.addr(), len))
    }

    /// Computes the checksum and publishes the block.
    fn publish(&self, py: Python<'_>) -> PyResult<&'static str> {
        let filling = self.take()?;
        let publish = || {
            let published = filling.publish();
            if let (Some(below), Publish::Published) = (&self.below, published) {
                below.offer([self.hash]);
            }
            published
        };
        guarded(|| Ok(outcome(py.detach(publish))))
    }

    /// Frees the memory.
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
        // SAFETY: `view` is the argument of this `__getbuffer__` call. `take` fails while `lent` is
        // not 0, so the reservation outlives the buffer. The owner's `pool` keeps the mapping.
        unsafe { lend(slf.as_any(), view, place, false, flags)? };
        this.lent.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.lent.fetch_sub(1, Ordering::AcqRel);
    }
}
