//! The cache that a router asks.

use crate::counts::{Counters, Counts, Miss};
use crate::naming::Naming;
use crate::view::{Asked, View};
use async_trait::async_trait;
use cenote_base::{Clock, Deadline};
use cenote_mem::RegionSource;
use dynamo_kv_router::indexer::KvRouterError;
use dynamo_kv_router::{SharedCacheHits, SharedKvCache};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Settings of a cache.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The region.
    pub region: RegionSource,
    /// This machine's number, if several share a device.
    pub host_slot: u8,
    /// Namespaces by label, or by the first digits of their fingerprints (at least 12). A block
    /// counts if all of them have it: name those of all ranks and KV cache groups.
    pub namespaces: Vec<String>,
    /// How the engines name blocks.
    pub naming: Naming,
    /// Longest time of a query, above 0.
    pub deadline: Duration,
    /// Time after which a query looks whether the region and the weights are still the same.
    pub recheck: Duration,
    /// Queries that may run at the same time, above 0; further ones are misses.
    pub lookups: usize,
    /// The clock of `deadline` and `recheck`.
    pub clock: Clock,
}

impl Settings {
    /// The recommended settings.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "a router has the machine's clock")]
    pub fn new(region: RegionSource, namespaces: Vec<String>, naming: Naming) -> Self {
        Self {
            region,
            host_slot: 0,
            namespaces,
            naming,
            deadline: Duration::from_millis(5),
            recheck: Duration::from_secs(1),
            lookups: 8,
            clock: Clock::system(),
        }
    }
}

/// Settings that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Without a namespace every block would count.
    #[error("no namespace is given; `cenote pool info` lists those of a region")]
    NoNamespace,
    /// The setting must be above 0.
    #[error("{0} is 0; give at least 1")]
    Zero(&'static str),
}

/// A region as Dynamo's shared KV cache. Clones share one view and its counters.
///
/// The answer is a hint: an observer cannot pin, so a block may leave before the engine looks. Any
/// fault is a counted miss.
#[derive(Clone)]
pub struct CenoteCache {
    inner: Arc<Inner>,
    lookups: Arc<Semaphore>,
}

struct Inner {
    settings: Settings,
    counters: Counters,
    seen: Mutex<Seen>,
}

/// What the last look at the region found.
#[derive(Default)]
struct Seen {
    /// The deadline of this look, after which a query looks again.
    fresh: Option<Deadline>,
    found: Option<Found>,
}

/// What a query needs.
#[derive(Clone)]
struct Found {
    view: Arc<View>,
    /// The configured namespaces; `None`: one of them is missing.
    asked: Option<Arc<[Asked]>>,
    /// The version of the weights.
    weights: Arc<[u8]>,
}

impl CenoteCache {
    /// A cache over a region, which may be made later.
    ///
    /// # Errors
    /// The settings cannot work.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        if settings.namespaces.is_empty() {
            return Err(SettingsError::NoNamespace);
        }
        if settings.deadline.is_zero() {
            return Err(SettingsError::Zero("deadline"));
        }
        if settings.lookups == 0 {
            return Err(SettingsError::Zero("lookups"));
        }
        let lookups = Arc::new(Semaphore::new(settings.lookups.min(Semaphore::MAX_PERMITS)));
        let inner = Inner { settings, counters: Counters::default(), seen: Mutex::default() };
        Ok(Self { inner: Arc::new(inner), lookups })
    }

    /// What was answered until now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.inner.counters.snapshot()
    }

    async fn ask(&self, tokens: &[u32], block_tokens: u32, salt: Option<&str>) -> Result<SharedCacheHits, Miss> {
        // A permit ends with its lookup, not with the wait for it, so lookups that hang do not pile up.
        let permit = Arc::clone(&self.lookups).try_acquire_owned().map_err(|_| Miss::Busy)?;
        let (inner, tokens) = (Arc::clone(&self.inner), tokens.to_vec());
        let salt = salt.filter(|salt| !salt.is_empty()).map(str::to_owned);
        let deadline = self.inner.settings.clock.after(self.inner.settings.deadline);
        let mut lookup = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            inner.look(&tokens, block_tokens as usize, salt.as_deref(), deadline)
        });
        loop {
            let patience = deadline.block_for();
            match tokio::time::timeout(patience, &mut lookup).await {
                Ok(Ok(there)) => return there.map(|there| SharedCacheHits::from_hits(&there)),
                Ok(Err(_)) => return Err(Miss::Panic),
                Err(_) if patience.is_zero() => return Err(Miss::Late),
                Err(_) => {}
            }
        }
    }
}

#[async_trait]
impl SharedKvCache for CenoteCache {
    async fn check_blocks(
        &self,
        tokens: &[u32],
        block_size: u32,
        cache_namespace: Option<&str>,
    ) -> Result<SharedCacheHits, KvRouterError> {
        let counters = &self.inner.counters;
        counters.asked();
        match self.ask(tokens, block_size, cache_namespace).await {
            Ok(hits) => {
                let blocks = tokens.len().checked_div(block_size as usize).unwrap_or(0);
                counters.answered(blocks as u64, u64::from(hits.total_hits));
                Ok(hits)
            }
            Err(reason) => {
                if counters.missed(reason) {
                    tracing::warn!(?reason, "Cenote: a query is a miss; later ones for this reason are not logged");
                }
                Ok(SharedCacheHits::default())
            }
        }
    }
}

impl Inner {
    fn look(
        &self,
        tokens: &[u32],
        block_tokens: usize,
        salt: Option<&str>,
        deadline: Deadline,
    ) -> Result<Vec<bool>, Miss> {
        let Found { view, asked, weights } = self.found().ok_or(Miss::Region)?;
        let asked = asked.ok_or(Miss::Namespace)?;
        view.look(&asked, &self.settings.naming, &weights, tokens, block_tokens, salt, deadline)
    }

    /// What the last look at the region found. Looks again if that was too long ago.
    fn found(&self) -> Option<Found> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.fresh.is_none_or(Deadline::passed) {
            // A look that panics counts as one that found nothing.
            let before = seen.found.take();
            seen.fresh = Some(self.settings.clock.after(self.settings.recheck));
            seen.found = self.find(before.map(|found| found.view));
        }
        seen.found.clone()
    }

    fn find(&self, before: Option<Arc<View>>) -> Option<Found> {
        let Settings { region, host_slot, naming, namespaces, .. } = &self.settings;
        let view = match before.filter(|view| view.is_current(region)) {
            Some(view) => view,
            None => Arc::new(told(View::open(region, *host_slot))?),
        };
        let weights = told(naming.weights().map_err(|error| format!("weights_version_file: {error}")))?.into();
        let asked = told(view.namespaces(namespaces)).map(Into::into);
        Some(Found { view, asked, weights })
    }
}

/// The value, or a line in the log. The counters have what it costs.
fn told<T>(result: Result<T, String>) -> Option<T> {
    result.inspect_err(|error| tracing::debug!(error, "Cenote: the region cannot be asked")).ok()
}
