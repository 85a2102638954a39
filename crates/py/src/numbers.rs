//! Sequences of numbers, of which Python may claim any length.

use crate::errors::wrong;
use pyo3::prelude::*;

/// Most items of one argument: far more than a prompt has tokens, and less than memory has room for.
pub const ITEMS_MAX: usize = 1 << 24;

/// The items of a sequence, taken one by one. PyO3's own vectors reserve what `len` says first: `range(1 << 40)` would end
/// the process.
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

/// What `of` makes of each item.
pub fn collect<'py, T>(object: &Bound<'py, PyAny>, of: impl Fn(&Bound<'py, PyAny>) -> PyResult<T>) -> PyResult<Vec<T>> {
    let too_many = || wrong(format!("more than {ITEMS_MAX} items in one argument"));
    // Only to refuse sooner: nothing is reserved for what an object claims.
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
