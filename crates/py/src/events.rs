//! Events of stored and removed blocks, for publishers to routers.

use crate::errors::{guarded, of_pool};
use crate::hashes::named;
use crate::region::Open;
use cenote_pool::{BlockEvent, Followed, Resync};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// A reader of a region's event logs.
#[pyclass(frozen, module = "cenote")]
pub struct Follower {
    open: Arc<Open>,
    follower: Mutex<cenote_pool::Follower>,
}

impl Follower {
    pub fn new(open: Arc<Open>) -> Self {
        Self { open, follower: Mutex::default() }
    }
}

/// `stored` or `removed`, namespace id, hash, name, name of the parent, depth.
type Event<'py> = (&'static str, u16, Bound<'py, PyAny>, u64, u64, u16);

fn event<'py>(py: Python<'py>, event: &BlockEvent) -> PyResult<Event<'py>> {
    let kind = match event {
        BlockEvent::Stored(_) => "stored",
        BlockEvent::Removed(_) => "removed",
    };
    let told = event.told();
    let (namespace, hash, names) = (told.namespace.0, named(py, &told.hash)?, told.names);
    Ok((kind, namespace, hash, names.name, names.parent, told.depth))
}

const fn reason(resync: Resync) -> &'static str {
    match resync {
        Resync::Begun => "begun",
        Resync::Overtaken => "overtaken",
        Resync::Lost => "lost",
        Resync::Gap => "gap",
    }
}

#[pymethods]
impl Follower {
    /// Events since the last poll, and the reason for a walk over all blocks if there was one.
    fn poll<'py>(&self, py: Python<'py>) -> PyResult<(Vec<Event<'py>>, Option<&'static str>)> {
        let pool = self.open.pool()?;
        let look = || pool.follow(&mut self.follower.lock().unwrap_or_else(PoisonError::into_inner));
        let look = || py.detach(look).map_err(|error| of_pool(&self.open.name, &error));
        let Followed { events, resync } = guarded(look)?;
        Ok((events.iter().map(|told| event(py, told)).collect::<PyResult<_>>()?, resync.map(reason)))
    }
}
