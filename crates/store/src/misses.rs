//! Why the region lacked a block of a prompt: a line of the log for each request, and counts by reason.
//! A thread of its own reads the region's ring of removed blocks, so the engine waits for none of it.

use cenote_base::{BlockHash, Clock};
use cenote_mem::Fabric;
use cenote_pool::{Cause, Pool, Removal, removals};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Target of the lines, for `--log`.
const TARGET: &str = "misses";
/// Misses that wait for the thread. More stay unexplained, and are counted so.
const WAITING_MAX: usize = 4096;
/// Pauses between looks at the ring, in lengths of a look: looks take a tenth of a processor at most.
const PAUSES: u32 = 9;
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The first block that an admitted request lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The request's name in logs.
    pub request: String,
    /// Full blocks of its prompt.
    pub blocks: usize,
    /// Blocks from the first one on that the store has: the index of the missing one.
    pub found: usize,
    /// The missing block.
    pub hash: BlockHash,
}

/// Why a block is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Removed(Cause),
    /// It was stored after the request had asked.
    Later,
    /// Never stored under its name, or removed before the oldest record.
    Unknown,
    /// Nothing was looked up.
    Unexplained,
}

impl Reason {
    const ALL: [Self; 8] = [
        Self::Removed(Cause::Evicted),
        Self::Removed(Cause::Quota),
        Self::Removed(Cause::Damaged),
        Self::Removed(Cause::Forgotten),
        Self::Removed(Cause::Collected),
        Self::Later,
        Self::Unknown,
        Self::Unexplained,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Removed(cause) => cause.name(),
            Self::Later => "later",
            Self::Unknown => "unknown",
            Self::Unexplained => "unexplained",
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Removed(Cause::Evicted) => "other blocks needed its space",
            Self::Removed(Cause::Quota) => "its model or tenant was over its quota",
            Self::Removed(Cause::Damaged) => "it did not have its checksum or its seal",
            Self::Removed(Cause::Forgotten) => "all blocks of its model were forgotten",
            Self::Removed(Cause::Collected) => "garbage collection could not use it",
            Self::Later => "it was stored after the request had asked",
            Self::Unknown => "it was never stored under its name, or removed before the oldest record",
            Self::Unexplained => "too many misses wait, or the region could not be read",
        }
    }
}

/// Requests by reason.
#[derive(Default)]
struct Counts([AtomicU64; Reason::ALL.len()]);

impl Counts {
    fn add(&self, reason: Reason) {
        let at = Reason::ALL.iter().position(|other| *other == reason).expect("all reasons are listed");
        self.0[at].fetch_add(1, Ordering::Relaxed);
    }
}

/// A miss, and the microseconds since 1970 when it happened.
type Asked = (Miss, u64);

fn unix_us(clock: Clock) -> u64 {
    u64::try_from(clock.unix().as_micros()).unwrap_or(u64::MAX)
}

/// Explains misses. Dropping it ends its thread.
pub(crate) struct MissLog {
    asked: Option<SyncSender<Asked>>,
    clock: Clock,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

impl MissLog {
    pub fn start<F: Fabric + 'static>(pool: Pool<F>, clock: Clock) -> io::Result<Self> {
        let (asked, waiting) = sync_channel(WAITING_MAX);
        let counts = Arc::<Counts>::default();
        let of_thread = Arc::clone(&counts);
        let run = move || explain_all(&pool, clock, &waiting, &of_thread);
        let thread = std::thread::Builder::new().name("cenote-misses".to_owned()).spawn(run)?;
        Ok(Self { asked: Some(asked), clock, counts, thread: Some(thread) })
    }

    /// Never waits.
    pub fn ask(&self, miss: Miss) {
        let miss = (miss, unix_us(self.clock));
        if self.asked.as_ref().is_none_or(|asked| asked.try_send(miss).is_err()) {
            self.counts.add(Reason::Unexplained);
        }
    }

    pub fn stats(&self) -> impl Iterator<Item = (String, f64)> + '_ {
        let counts = Reason::ALL.iter().zip(&self.counts.0);
        counts.map(|(reason, count)| (format!("misses_{}_total", reason.name()), count.load(Ordering::Relaxed) as f64))
    }
}

impl Drop for MissLog {
    fn drop(&mut self) {
        self.asked = None;
        // A thread that panicked has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn explain_all<F: Fabric>(pool: &Pool<F>, clock: Clock, waiting: &Receiver<Asked>, counts: &Counts) {
    let mut more = Vec::new();
    loop {
        let first = if more.is_empty() { waiting.recv().ok() } else { None };
        // One look at the ring serves all that wait.
        let misses: Vec<Asked> = more.drain(..).chain(first).chain(waiting.try_iter().take(WAITING_MAX)).collect();
        if misses.is_empty() {
            return;
        }
        let begin_ns = clock.now_ns();
        let removed = removals(pool.fabric());
        // The last removal of a name counts.
        let gone: Option<BTreeMap<BlockHash, &Removal>> =
            removed.as_ref().ok().map(|removed| removed.all.iter().map(|removal| (removal.hash, removal)).collect());
        let now_us = unix_us(clock);
        for (Miss { request, blocks, found, hash }, asked_us) in misses {
            let removal = gone.as_ref().and_then(|gone| gone.get(&hash));
            let reason = match removal {
                _ if gone.is_none() => Reason::Unexplained,
                // The request itself may have stored the block since.
                Some(removal) if removal.time_us <= asked_us => Reason::Removed(removal.cause),
                _ if pool.has(hash) => Reason::Later,
                Some(removal) => Reason::Removed(removal.cause),
                None => Reason::Unknown,
            };
            counts.add(reason);
            let ago_s = removal.map(|removal| now_us.saturating_sub(removal.time_us) / 1_000_000);
            let (reason, why) = (reason.name(), reason.words());
            tracing::info!(target: TARGET, ?request, blocks, found, %hash, reason, why, ago_s, "a hit ends early");
        }
        let pause = clock.since(begin_ns).saturating_mul(PAUSES).min(PAUSE_MAX);
        let end = clock.after(pause);
        while more.len() < WAITING_MAX && !end.passed() {
            match waiting.recv_timeout(end.remaining()) {
                Ok(miss) => more.push(miss),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        assert!(Cause::ALL.iter().all(|cause| Reason::ALL.contains(&Reason::Removed(*cause))));
    }
}
