//! Keeps what clients asked for: an engine's thread leaves wishes, and the store's upkeep marks blocks as used.

use cenote_base::engine::Retain;
use cenote_base::{BlockHash, Health, TenantKey};
use cenote_mem::Fabric;
use cenote_policy::retention::{Change, Retention, Term};
use cenote_pool::{Design, Pool};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Wishes that wait for the next upkeep. More are refused and counted, as all are that a pool cannot fulfil.
const WAITING_MAX: usize = 1024;
/// Part of the region's bytes that all wishes of one process may take.
const REGION_PART: u64 = 4;
/// Blocks that one upkeep marks, in whole sequences. A look in the index takes below a microsecond, so this
/// takes milliseconds of each second, whatever the region's size.
const MARKS_MAX: usize = 8192;

/// A sequence's tenant, names, bytes of a block, and how long they are kept.
type Asked = (Option<TenantKey>, Vec<BlockHash>, u64, Term);

/// The wishes of one process.
pub struct Retained<F: Fabric> {
    wishes: SyncSender<Asked>,
    /// Whether marks keep blocks: TraCT's plain design has none that a lookup alone makes.
    keeps: bool,
    keeper: Mutex<Keeper<F>>,
    totals: Totals,
}

struct Keeper<F: Fabric> {
    pool: Pool<F>,
    waiting: Receiver<Asked>,
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
    /// Keeps at most a quarter of the pool's region.
    #[must_use]
    pub fn new(pool: Pool<F>) -> Self {
        let space = pool.space();
        let keeps = pool.superblock().config.design != Design::Plain;
        let (wishes, waiting) = sync_channel(WAITING_MAX);
        let retention = Retention::new((space.end - space.start) / REGION_PART);
        Self { wishes, keeps, keeper: Mutex::new(Keeper { pool, waiting, retention }), totals: Totals::default() }
    }

    /// Leaves a wish for a sequence's first blocks, of `block_bytes` each before encoding. Never waits.
    pub fn ask(&self, tenant: Option<TenantKey>, names: &[BlockHash], block_bytes: u64, retain: &Retain, now_ns: u64) {
        let until_ns = now_ns.saturating_add(retain.ms.saturating_mul(1_000_000));
        let term = Term { priority: retain.priority, until_ns, session: retain.session };
        if !self.keeps || self.wishes.try_send((tenant, names.to_vec(), block_bytes, term)).is_err() {
            self.totals.refused.fetch_add(1, Relaxed);
        }
    }

    /// Marks blocks as used, and takes the wishes that wait: about once a second, on a thread that may wait for
    /// another call. The blocks of a new wish may still be on their way into the region, so the next call is the
    /// first that looks for them.
    pub fn keep_up(&self, now_ns: u64) {
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        let Keeper { pool, waiting, retention } = &mut *keeper;
        // Out of use for a while, the pool finds nothing, whatever it has.
        if self.keeps && matches!(pool.health(), Health::Ok) {
            self.totals.add(retention.mark(now_ns, MARKS_MAX, |names| pool.find(names).len()));
        }
        for (tenant, names, block_bytes, term) in waiting.try_iter().take(WAITING_MAX) {
            self.totals.add(retention.retain(tenant, names, block_bytes, term, now_ns));
        }
        self.totals.blocks.store(retention.blocks() as u64, Relaxed);
        self.totals.sequences.store(retention.sequences() as u64, Relaxed);
    }

    /// Counters and gauges by Prometheus name, without prefix.
    #[must_use]
    pub fn stats(&self) -> [(&'static str, u64); 8] {
        let Totals { blocks, sequences, added, renewed, dropped, ended, lost, refused } = &self.totals;
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
