//! L4 below a region, for Python.

use crate::clock;
use crate::errors::{CenoteError, wrong};
use cenote_base::{BlockHash, HashSeed};
use cenote_pool::random_bytes;
use cenote_store::cold::{self, ColdTier, Sealing, Settings};
use pyo3::prelude::*;
use std::sync::Arc;

/// The setting `cold`.
pub fn settings(text: &str) -> PyResult<Settings> {
    text.parse().map_err(|error: cold::ParseSettingsError| wrong(format!("cold: {error}")))
}

/// The hash seed for a new region with this seal above a place. A new place gets the seal.
pub fn seed(text: &str, given: Option<[u8; 32]>, seal: Sealing) -> PyResult<[u8; 32]> {
    let settings = Settings { seal, ..settings(text)? };
    let place = &settings.place;
    let own = given.map_or_else(random_bytes, Ok)?;
    let named = |error| CenoteError::new_err(format!("cold: {error}"));
    let found = cold::seed_of(&settings, &HashSeed(own), clock()).map_err(|error| named(error.to_string()))?.0;
    if given.is_some_and(|given| given != found) {
        return Err(named(format!("{place}: its regions have another hash seed; leave hash_seed out")));
    }
    Ok(found)
}

/// L4 for the blocks of one namespace.
#[derive(Clone)]
pub struct Below {
    pub tier: Arc<ColdTier>,
    pub namespace: cenote_pool::Namespace,
}

impl Below {
    /// Queues published blocks for writing. Never waits.
    pub fn offer(&self, hashes: impl IntoIterator<Item = BlockHash>) {
        self.tier.offer(&self.namespace, hashes);
    }
}

/// Blocks that are on their way from L4 or peers into the region.
#[pyclass(frozen, module = "cenote")]
pub struct Promotion(pub cold::Promotion);

#[pymethods]
impl Promotion {
    /// True if no block is on its way any more, or the deadline has passed.
    #[getter]
    fn over(&self) -> bool {
        self.0.is_over()
    }

    /// Waits until `over`, at most until the deadline. Returns false if blocks are late.
    fn wait(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.wait())
    }
}
