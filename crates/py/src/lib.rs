//! Roof: the Python package `cenote`. What Python sees is in `python/cenote/_native.pyi`; this is how it is done.
//!
//! Nothing here copies but from or to the region, and whoever copies has let go of the interpreter. In the serving path
//! nothing raises: what does not hold is a miss, or an outcome by name.

#![allow(clippy::needless_pass_by_value, reason = "what Python gives comes by value")]

mod buffers;
mod codec;
mod content;
mod creation;
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
mod save;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::codec::Codec;
    #[pymodule_export]
    use super::content::{file_digests, file_stamps};
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
    use super::save::Save;

    use pyo3::prelude::*;

    /// Kills this process with SIGKILL when it comes to a fault point for the `count`-th time. For tests.
    #[pyfunction]
    fn _kill_at(point: &str, count: u64) {
        cenote_base::fault::arm(point, count, |_| {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        });
    }

    /// Panics when it comes to a fault point for the `count`-th time. For tests.
    #[pyfunction]
    fn _panic_at(point: &str, count: u64) {
        cenote_base::fault::arm(point, count, |point| panic!("at {point}"));
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("FORMAT_VERSION", cenote_pool::FORMAT_VERSION)
    }
}
