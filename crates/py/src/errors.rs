//! Errors as Python exceptions. Their texts are those of the pool's errors.

use cenote_mem::MapError;
use cenote_pool::{OpenError, PoolError};
use cenote_tables::{GatherError, TableError};
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::{PyErr, PyResult, create_exception};
use std::panic::{AssertUnwindSafe, catch_unwind};

create_exception!(cenote, CenoteError, PyRuntimeError, "A region cannot do an operation, or cannot do it now.");
create_exception!(cenote, RegionMissing, CenoteError, "The region does not exist.");
create_exception!(
    cenote,
    RegionMismatch,
    CenoteError,
    "The region has another version or seed, is for another machine, or is damaged."
);
create_exception!(
    cenote,
    RegionFull,
    CenoteError,
    "The region has no free space, or no free table row, for the new entry."
);

/// The exception for a pool's error in the region with this name.
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

/// The exception for an error of opening or creating a region.
pub fn of_opening(region: &str, error: &OpenError) -> PyErr {
    match error {
        OpenError::Map(MapError::Missing { .. }) => RegionMissing::new_err(error.to_string()),
        OpenError::Map(_) => CenoteError::new_err(error.to_string()),
        OpenError::Pool(error) => of_pool(region, error),
        OpenError::Flush(_) => RegionMismatch::new_err(format!("{region}: {error}")),
    }
}

/// The exception for a table's error in the region with this name.
pub fn of_table(region: &str, error: &TableError) -> PyErr {
    let text = format!("{region}: {error}");
    match error {
        TableError::Pool(error) => of_pool(region, error),
        TableError::NoRoom { .. } | TableError::Chunks { .. } => RegionFull::new_err(text),
        TableError::Name(_) | TableError::Format(_) | TableError::Source(_) => wrong(error.to_string()),
        TableError::File { .. } | TableError::Open(_) => PyOSError::new_err(error.to_string()),
        _ => CenoteError::new_err(text),
    }
}

/// The exception for rows that were not read.
pub fn of_gather(region: &str, error: &GatherError) -> PyErr {
    match error {
        GatherError::Row { .. } | GatherError::Buffer { .. } => wrong(error.to_string()),
        _ => CenoteError::new_err(format!("{region}: {error}")),
    }
}

/// Runs a serving call and turns a panic, which is a bug of Cenote, into a `CenoteError`.
///
/// PyO3's `PanicException` is not an `Exception`. It would pass `except Exception` and end the
/// engine.
pub fn guarded<T>(call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        Err(CenoteError::new_err(format!("a bug in cenote: {text}")))
    })
}

/// A `ValueError` for an invalid argument.
pub fn wrong(text: impl Into<String>) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(text.into())
}
