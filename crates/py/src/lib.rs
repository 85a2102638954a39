//! Roof: the compiled part of the Python package `cenote`. `python/cenote/_native.pyi` declares it.
//!
//! Payload copies are only from and to the region, without the interpreter lock. Failures of the
//! serving path are misses or named outcomes, not exceptions.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 passes arguments by value")]

mod addresses;
mod buffers;
mod codec;
mod cold;
mod content;
mod creation;
mod device;
mod dlpack;
mod errors;
mod events;
mod filling;
mod hashes;
mod lease;
mod load;
mod memory;
mod namespace;
mod numbers;
mod region;
mod rows;
mod save;
mod tables;

use cenote_base::Clock;
use pyo3::prelude::*;

/// The clock of this package's waits and measurements.
#[allow(clippy::disallowed_methods, reason = "the one place that names it")]
fn clock() -> Clock {
    Clock::system()
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::addresses::Addresses;
    #[pymodule_export]
    use super::codec::Codec;
    #[pymodule_export]
    use super::cold::Promotion;
    #[pymodule_export]
    use super::content::{file_digests, file_stamps};
    #[pymodule_export]
    use super::device::{DeviceLoad, DeviceMemory, Gpu, Registration, RowKernel};
    #[pymodule_export]
    use super::errors::{CenoteError, RegionFull, RegionMismatch, RegionMissing};
    #[pymodule_export]
    use super::events::Follower;
    #[pymodule_export]
    use super::filling::Filling;
    #[pymodule_export]
    use super::hashes::Hashes;
    #[pymodule_export]
    use super::lease::{BlockView, Lease};
    #[pymodule_export]
    use super::load::Load;
    #[pymodule_export]
    use super::memory::KvMemory;
    #[pymodule_export]
    use super::namespace::Namespace;
    #[pymodule_export]
    use super::region::Region;
    #[pymodule_export]
    use super::rows::Rows;
    #[pymodule_export]
    use super::save::Save;
    #[pymodule_export]
    use super::tables::{Pending, Table, check_table, default_table_name, drop_table, load_tables, tables};

    use cenote_base::fault::{self, Plan, UnknownName};
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    /// Kills this process with SIGKILL at the `count`-th pass of a fault point. For tests.
    #[pyfunction]
    fn _kill_at(point: &str, count: u64) -> PyResult<()> {
        fault::arm(plan(point, count)?, |_| {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        });
        Ok(())
    }

    /// Panics at the `count`-th pass of a fault point. For tests.
    #[pyfunction]
    fn _panic_at(point: &str, count: u64) -> PyResult<()> {
        fault::arm(plan(point, count)?, |point| panic!("at {point}"));
        Ok(())
    }

    /// Makes every n-th block of later loads of this process fail; 0: none. For tests.
    #[pyfunction]
    fn _fail_loads(every: usize) {
        crate::load::fail_loads(every);
    }

    fn plan(point: &str, pass: u64) -> PyResult<Plan> {
        let point = point.parse().map_err(|error: UnknownName| PyValueError::new_err(error.to_string()))?;
        Ok(Plan { point, pass })
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        if let Some(every) = std::env::var("CENOTE_TEST_FAIL_LOADS").ok().and_then(|every| every.parse().ok()) {
            crate::load::fail_loads(every);
        }
        module.add("BlockName", crate::hashes::name_class(module.py())?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("FORMAT_VERSION", cenote_pool::FORMAT_VERSION)
    }
}
