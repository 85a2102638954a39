//! Keeps what clients asked for: an engine's thread leaves wishes, and the store's upkeep marks blocks as used.

use cenote_base::engine::Retain;
use cenote_base::{BlockHash, Clock, TenantKey};
use cenote_mem::Fabric;
use cenote_policy::retention::{Change, Retention, Wish};
use cenote_pool::Pool;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Wishes that wait for the next upkeep. More are refused, and counted.
const WAITING_MAX: usize = 1024;
/// Part of the region's bytes that all wishes of one process may take.
const REGION_PART: u64 = 4;
/// Blocks that one upkeep marks, in whole sequences. A look in the index takes below a microsecond, so this
/// takes milliseconds of each second, whatever the region's size.
const MARKS_MAX: usize = 8192;

/// The wishes of one store.
pub(crate) struct Retained<F: Fabric> {
    wishes: SyncSender<(Option<TenantKey>, Vec<BlockHash>, Wish)>,
    keeper: Arc<Mutex<Keeper<F>>>,
    totals: Arc<Totals>,
}

struct Keeper<F: Fabric> {
    pool: Pool<F>,
    waiting: Receiver<(Option<TenantKey>, Vec<BlockHash>, Wish)>,
    retention: Retention,
}

/// What [`Change`] has, summed, and what is kept now. The engine's thread reads them without waiting for an upkeep.
#[derive(Default)]
struct Totals {
    blocks: AtomicU64,
    sequences: AtomicU64,
    added: AtomicU64,
    renewed: AtomicU64,
    dropped: AtomicU64,
    ended: AtomicU64,
    lost: AtomicU64,
    refused: AtomicU64,
}

impl<F: Fabric> Retained<F> {
    /// Keeps at most a quarter of the pool's region in blocks of `block_bytes`.
    pub fn new(pool: Pool<F>, block_bytes: u64) -> Self {
        let space = pool.space();
        let limit = (space.end - space.start) / REGION_PART / block_bytes.max(1);
        let (wishes, waiting) = sync_channel(WAITING_MAX);
        let retention = Retention::new(usize::try_from(limit).unwrap_or(usize::MAX));
        let keeper = Arc::new(Mutex::new(Keeper { pool, waiting, retention }));
        Self { wishes, keeper, totals: Arc::default() }
    }

    /// Leaves a wish. Never waits.
    pub fn ask(&self, tenant: Option<TenantKey>, names: &[BlockHash], retain: &Retain, now_ns: u64) {
        let until_ns = now_ns.saturating_add(retain.ms.saturating_mul(1_000_000));
        let wish = Wish { priority: retain.priority, until_ns, session: retain.session };
        if self.wishes.try_send((tenant, names.to_vec(), wish)).is_err() {
            self.totals.refused.fetch_add(1, Relaxed);
        }
    }

    /// A function that fulfils wishes and marks blocks. It waits only for another call of itself.
    pub fn upkeep(&self, clock: Clock) -> impl Fn() + Send + use<F> {
        let (keeper, totals) = (Arc::clone(&self.keeper), Arc::clone(&self.totals));
        move || {
            let mut keeper = keeper.lock().unwrap_or_else(PoisonError::into_inner);
            let Keeper { pool, waiting, retention } = &mut *keeper;
            let now_ns = clock.now_ns();
            for (tenant, names, wish) in waiting.try_iter().take(WAITING_MAX) {
                totals.add(retention.retain(tenant, names, wish, now_ns));
            }
            totals.add(retention.mark(now_ns, MARKS_MAX, |names| pool.find(names).len()));
            totals.blocks.store(retention.blocks() as u64, Relaxed);
            totals.sequences.store(retention.sequences() as u64, Relaxed);
        }
    }

    /// Counters and gauges by Prometheus name, without prefix.
    pub fn stats(&self) -> [(&'static str, u64); 8] {
        let Totals { blocks, sequences, added, renewed, dropped, ended, lost, refused } = &*self.totals;
        [
            ("retained_blocks", blocks),
            ("retained_sequences", sequences),
            ("retain_added_total", added),
            ("retain_renewed_total", renewed),
            ("retain_dropped_total", dropped),
            ("retain_ended_total", ended),
            ("retain_lost_total", lost),
            ("retain_refused_total", refused),
        ]
        .map(|(name, value)| (name, value.load(Relaxed)))
    }
}

impl Totals {
    fn add(&self, change: Change) {
        let Change { added, renewed, dropped, ended, lost } = change;
        for (total, blocks) in [
            (&self.added, added),
            (&self.renewed, renewed),
            (&self.dropped, dropped),
            (&self.ended, ended),
            (&self.lost, lost),
        ] {
            total.fetch_add(blocks as u64, Relaxed);
        }
    }
}
