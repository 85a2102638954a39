//! Sequences from Python, with any claimed length.

use crate::errors::wrong;
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
pub fn collect<'py, T>(object: &Bound<'py, PyAny>, of: impl Fn(&Bound<'py, PyAny>) -> PyResult<T>) -> PyResult<Vec<T>> {
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
