//! Rows of pinned blocks, gathered into one buffer.

use crate::buffers::Lent;
use crate::errors::{guarded, wrong};
use crate::lease::Pin;
use crate::region::Open;
use cenote_mem::Mapped;
use cenote_pool::{PinnedRows, RowRef, RowShape};
use pyo3::prelude::*;
use std::sync::{Arc, PoisonError, RwLock};

type Set = PinnedRows<Arc<Mapped>>;

/// Bytes of a row in a list: two numbers of 32 bits.
const REF_BYTES: usize = size_of::<RowRef>();

/// Blocks that stay pinned so that their rows can be gathered.
#[pyclass(frozen, module = "cenote")]
pub struct Rows {
    open: Arc<Open>,
    /// `None` after `release`.
    set: RwLock<Option<Set>>,
}

impl Rows {
    /// Takes the pins of a lease. A block that a view shares is pinned once more. Encoded blocks
    /// have no rows, and are misses.
    pub fn new(open: Arc<Open>, pins: Vec<Arc<Pin>>) -> PyResult<Self> {
        let pool = open.pool()?;
        let mut set = pool.pin_rows(&[]);
        for pin in pins {
            let _ = match Arc::try_unwrap(pin) {
                Ok(pin) if pin.hit().encoding == 0 => set.push_pin(pin),
                Err(shared) if shared.hit().encoding == 0 => set.push(shared.hit()),
                _ => set.push_missing(),
            };
        }
        Ok(Self { open, set: RwLock::new(Some(set)) })
    }

    fn with<T>(&self, call: impl FnOnce(&Set) -> PyResult<T>) -> PyResult<T> {
        let set = self.set.read().unwrap_or_else(PoisonError::into_inner);
        call(set.as_ref().ok_or_else(|| wrong("the rows were released"))?)
    }
}

#[pymethods]
impl Rows {
    fn __len__(&self) -> usize {
        self.set.read().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, Set::len)
    }

    /// Verifies all blocks now. Returns the numbers of those that are misses.
    fn verify(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        guarded(|| py.detach(|| self.with(|set| Ok(set.verify()))))
    }

    /// Copies rows into writable memory, in order. Returns the numbers of the blocks that are
    /// misses.
    #[pyo3(signature = (rows, into, *, size, offset=0, stride=None, pieces=1, piece_stride=0, count=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords in Python")]
    fn gather(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        into: &Bound<'_, PyAny>,
        size: u64,
        offset: u64,
        stride: Option<u64>,
        pieces: u64,
        piece_stride: u64,
        count: Option<u64>,
    ) -> PyResult<Vec<u32>> {
        let (stride, count) = (stride.unwrap_or(size), count.unwrap_or(u64::MAX));
        let shape = RowShape { offset, stride, bytes: size, pieces, piece_stride, rows: count };
        let list = Lent::take(rows, false)?;
        let mut lent = Lent::take(into, true)?;
        let list = list_of(&list, lent.len().unwrap_or(u64::MAX), &shape)?;
        let mut parts = lent.parts_mut();
        let to: &mut [u8] = match &mut parts[..] {
            [] => &mut [],
            [to] => to,
            _ => return Err(wrong("rows go into one piece of memory; give one buffer or tensor")),
        };
        let gather = || {
            self.with(|set| {
                let gathered = set.gather(&list, &shape, to);
                gathered.map(|gathered| gathered.missed).map_err(|error| wrong(error.to_string()))
            })
        };
        guarded(|| py.detach(gather))
    }

    /// Unpins the blocks.
    fn release(&self) {
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.release();
    }

    fn __repr__(&self) -> String {
        format!("Rows({} blocks of {:?})", self.__len__(), self.open.name)
    }
}

/// The rows of a list in memory: pairs of block and row, each a native number of 32 bits. The buffer
/// of `buffer_bytes` determines its length, so a list of any other is not read.
fn list_of(lent: &Lent, buffer_bytes: u64, shape: &RowShape) -> PyResult<Vec<RowRef>> {
    let wanted = buffer_bytes.checked_div(shape.row_bytes()).and_then(|rows| rows.checked_mul(REF_BYTES as u64));
    if wanted.is_none() || lent.len() != wanted {
        return Err(wrong(format!(
            "the list has {} bytes, but {buffer_bytes} bytes for rows of {} need {}; give pairs of 32-bit numbers, such \
             as a uint32 array of shape (n, 2)",
            lent.len().unwrap_or(u64::MAX),
            shape.row_bytes(),
            wanted.unwrap_or(0),
        )));
    }
    let bytes = lent.parts().concat();
    let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("four bytes"));
    Ok(bytes.chunks_exact(REF_BYTES).map(|row| RowRef { block: number(&row[..4]), row: number(&row[4..]) }).collect())
}
