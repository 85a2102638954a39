//! What goes wrong before serving, as Python's exceptions. Their texts are the pool's, which name the thing and the fact.

use cenote_mem::MapError;
use cenote_pool::{OpenError, PoolError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, PyResult, create_exception};
use std::panic::{AssertUnwindSafe, catch_unwind};

create_exception!(cenote, CenoteError, PyRuntimeError, "Something that a region cannot do, or not now.");
create_exception!(cenote, RegionMissing, CenoteError, "There is no such region.");
create_exception!(
    cenote,
    RegionMismatch,
    CenoteError,
    "The region was made by another version, with another seed, or for another machine; or it is damaged."
);
create_exception!(cenote, RegionFull, CenoteError, "The region has no room, or no free row, for one more.");

/// An error of the pool, of the region with this name.
pub fn of_pool(region: &str, error: &PoolError) -> PyErr {
    let text = format!("{region}: {error}");
    match error {
        PoolError::NotARegion { .. }
        | PoolError::Unfinished
        | PoolError::Version { .. }
        | PoolError::Layout { .. }
        | PoolError::Seed
        | PoolError::Flush { .. }
        | PoolError::Truncated { .. }
        | PoolError::Damaged(_) => RegionMismatch::new_err(text),
        PoolError::TableFull { .. } | PoolError::WorkersFull { .. } | PoolError::NoRoom(_) => RegionFull::new_err(text),
        _ => CenoteError::new_err(text),
    }
}

/// An error of opening or making a region.
pub fn of_opening(region: &str, error: &OpenError) -> PyErr {
    match error {
        OpenError::Map(MapError::Missing { .. }) => RegionMissing::new_err(error.to_string()),
        OpenError::Map(_) => CenoteError::new_err(error.to_string()),
        OpenError::Pool(error) => of_pool(region, error),
        OpenError::Flush(_) => RegionMismatch::new_err(format!("{region}: {error}")),
    }
}

/// Does what an engine asks for while it serves. A panic in it is a bug of ours; PyO3 would make it an exception that
/// `except Exception` lets pass, and so end the engine.
pub fn guarded<T>(call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words");
        Err(CenoteError::new_err(format!("a bug in cenote: {text}")))
    })
}

/// A mistake of the caller.
pub fn wrong(text: impl Into<String>) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(text.into())
}
