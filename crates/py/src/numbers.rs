//! Sequences from Python, with any claimed length, and memory of whole numbers.

use crate::buffers::{Integer, Lent};
use crate::errors::wrong;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

/// Most items of one argument: far above the tokens of a prompt, and small enough for memory.
pub const ITEMS_MAX: usize = 1 << 24;

/// The items of a sequence, collected one by one.
///
/// PyO3's conversion to `Vec` reserves `len` items first, so `range(1 << 40)` would abort the
/// process.
pub struct Items<T>(pub Vec<T>);

impl<'a, 'py, T> FromPyObject<'a, 'py> for Items<T>
where
    T: for<'b> FromPyObject<'b, 'py>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        collect(&object, |item| item.extract().map_err(Into::into)).map(Self)
    }
}

/// Collects `of(item)` for each item. Fails above `ITEMS_MAX` items.
pub fn collect<'py, T>(
    object: &Bound<'py, PyAny>,
    mut of: impl FnMut(&Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let too_many = || wrong(format!("more than {ITEMS_MAX} items in one argument"));
    // An early refusal only; no memory is reserved for a claimed length.
    if object.len().is_ok_and(|claimed| claimed > ITEMS_MAX) {
        return Err(too_many());
    }
    let mut items = Vec::new();
    for item in object.try_iter()? {
        if items.len() == ITEMS_MAX {
            return Err(too_many());
        }
        items.push(of(&item?)?);
    }
    Ok(items)
}

/// Whole numbers: contiguous memory of any integer type (a numpy array, a tensor on the CPU, an
/// `array.array`), or a sequence of numbers.
pub fn integers(object: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if PyUntypedBuffer::get(object).is_err() && !object.hasattr("__dlpack__")? {
        return collect(object, |item| item.extract());
    }
    let lent = Lent::take(object, false)?;
    let kind = lent.integer().ok_or_else(|| wrong("the elements are not whole numbers of this machine"))?;
    let bytes = lent.parts().concat();
    let read = match kind {
        Integer { signed: true, bytes: 8 } => numbers(&bytes, i64::from_ne_bytes),
        Integer { signed: true, bytes: 4 } => numbers(&bytes, |bytes| i32::from_ne_bytes(bytes).into()),
        Integer { signed: true, bytes: 2 } => numbers(&bytes, |bytes| i16::from_ne_bytes(bytes).into()),
        Integer { signed: true, bytes: 1 } => numbers(&bytes, |bytes| i8::from_ne_bytes(bytes).into()),
        Integer { signed: false, bytes: 8 } => {
            let read = numbers(&bytes, |bytes| u64::from_ne_bytes(bytes).cast_signed());
            if let Some(at) = read.iter().position(|&number| number < 0) {
                return Err(wrong(format!("the number at place {at} is too large")));
            }
            read
        }
        Integer { signed: false, bytes: 4 } => numbers(&bytes, |bytes| u32::from_ne_bytes(bytes).into()),
        Integer { signed: false, bytes: 2 } => numbers(&bytes, |bytes| u16::from_ne_bytes(bytes).into()),
        Integer { signed: false, bytes: 1 } => numbers(&bytes, |bytes| u8::from_ne_bytes(bytes).into()),
        Integer { bytes, .. } => return Err(wrong(format!("whole numbers of {bytes} bytes are not supported"))),
    };
    Ok(read)
}

fn numbers<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> i64) -> Vec<i64> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| read(*bytes)).collect()
}
