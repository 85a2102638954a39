//! Leases of blocks that a lookup has found and pinned.

use crate::buffers::{Lent, lend};
use crate::codec::Coding;
use crate::errors::{guarded, wrong};
use crate::hashes::Hashes;
use crate::region::Open;
use crate::rows::Rows;
use cenote_mem::Mapped;
use cenote_pool::{Hit, HostPool, ReadOutcome};
use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

pub type Pin = cenote_pool::Pin<Arc<Mapped>>;

/// Pinned blocks of one lookup, in order. `release` or the drop of the object unpins them.
#[pyclass(frozen, module = "cenote")]
pub struct Lease {
    open: Arc<Open>,
    /// Decoder of the encoded blocks.
    pub coding: Option<Arc<Coding>>,
    pins: Mutex<Vec<Arc<Pin>>>,
}

impl Lease {
    /// The region, if it is open.
    pub fn fabric(&self) -> Option<Arc<Mapped>> {
        self.open.pool().ok().map(|pool| Arc::clone(pool.fabric()))
    }

    pub fn new(open: Arc<Open>, coding: Option<Arc<Coding>>, pins: Vec<Pin>) -> Self {
        Self { open, coding, pins: Mutex::new(pins.into_iter().map(Arc::new).collect()) }
    }

    fn pin(&self, index: usize) -> PyResult<Arc<Pin>> {
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        pins.get(index).cloned().ok_or_else(|| PyIndexError::new_err(format!("block {index} of {}", pins.len())))
    }

    /// Takes all pins out of the lease.
    pub fn take(&self) -> Vec<Arc<Pin>> {
        std::mem::take(&mut *self.pins.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Lease {
    fn __len__(&self) -> usize {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Copies a block into buffers, part after part. False: the block is gone or damaged, a miss.
    fn read_into(&self, py: Python<'_>, index: usize, parts: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (pool, pin) = (self.open.pool()?, self.pin(index)?);
        let mut lent = Lent::take(parts, true)?;
        let coding = self.coding.as_deref().filter(|_| pin.hit().encoding != 0);
        lent.fit(coding.map_or(pin.hit().length, Coding::block_bytes))?;
        let mut parts = lent.parts_mut();
        let mut read = || match coding {
            None => pool.read(pin.hit(), &mut parts) == ReadOutcome::Whole,
            Some(coding) => decode(&pool, coding, pin.hit(), &mut parts),
        };
        guarded(|| Ok(py.detach(&mut read)))
    }

    /// A view of a block in the region. The view and its buffers keep the block pinned. None: the
    /// block is damaged or the pin does not protect its bytes, a miss, or the region is sealed, so
    /// that a block is only copied out. `verify=False` checks neither damage nor pin.
    #[pyo3(signature = (index, *, verify=true))]
    fn view(&self, py: Python<'_>, index: usize, verify: bool) -> PyResult<Option<BlockView>> {
        let (pool, pin) = (self.open.pool()?, self.pin(index)?);
        // Another writer could change them after the check.
        let Some(extent) = pin.extent() else {
            let why = "view: the region is sealed, so its blocks are only copied out: use read_into";
            return if verify { Ok(None) } else { Err(wrong(why)) };
        };
        let view = BlockView { pool, pin, extent };
        let usable = !verify || guarded(|| Ok(py.detach(|| view.pin.confirm())))?;
        Ok(usable.then_some(view))
    }

    /// Names of the blocks.
    fn hashes(&self) -> Hashes {
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        Hashes(pins.iter().map(|pin| pin.hit().hash).collect())
    }

    /// Moves the first `count` blocks into a new lease.
    fn split(&self, count: usize) -> Self {
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let count = count.min(pins.len());
        let first = pins.drain(..count).collect();
        Self { open: Arc::clone(&self.open), coding: self.coding.clone(), pins: Mutex::new(first) }
    }

    /// Moves the blocks into a set whose rows can be gathered. They keep their numbers.
    fn rows(&self) -> PyResult<Rows> {
        Rows::new(Arc::clone(&self.open), self.take())
    }

    /// Keeps only the first `count` blocks.
    fn truncate(&self, count: usize) {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner).truncate(count);
    }

    /// Ends the lease. Views keep their blocks pinned.
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

/// Reads and decodes an encoded block into `parts`. False: it is gone, damaged or undecodable.
fn decode(pool: &HostPool, coding: &Coding, hit: &Hit, parts: &mut [&mut [u8]]) -> bool {
    let mut frames = vec![0; usize::try_from(hit.length).unwrap_or(0)];
    if pool.read(hit, &mut [&mut frames]) != ReadOutcome::Whole {
        return false;
    }
    let Ok(pages) = coding.split(&frames) else { return false };
    let mut block = vec![0; coding.num_layers() * coding.page_bytes()];
    let mut layers = block.chunks_exact_mut(coding.page_bytes()).enumerate();
    if layers.any(|(layer, page)| coding.decode(layer, &pages, &frames, page).is_err()) {
        return false;
    }
    let mut rest = &*block;
    for part in parts {
        let (now, behind) = rest.split_at(part.len());
        part.copy_from_slice(now);
        rest = behind;
    }
    true
}

/// One pinned block in place.
#[pyclass(frozen, module = "cenote")]
pub struct BlockView {
    pool: HostPool,
    pin: Arc<Pin>,
    /// Offset and length in the region.
    extent: (u64, u64),
}

impl BlockView {
    fn place(&self) -> (*mut u8, u64) {
        let (at, len) = self.extent;
        (self.pool.fabric().address(at, len), len)
    }
}

#[pymethods]
impl BlockView {
    /// Address in this process and length in bytes.
    #[getter]
    fn extent(&self) -> (usize, u64) {
        let (address, len) = self.place();
        (address.addr(), len)
    }

    /// True if the bytes match the published checksum.
    fn verify(&self, py: Python<'_>) -> PyResult<bool> {
        guarded(|| Ok(py.detach(|| self.pin.verify()) == ReadOutcome::Whole))
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("a published block is read-only"));
        }
        let place = slf.get().place();
        // SAFETY: `view` is the argument of this `__getbuffer__` call. The owner's `pin` keeps the
        // bytes in place, and its `pool` keeps the mapping.
        unsafe { lend(slf.as_any(), view, place, true, flags) }
    }
}
