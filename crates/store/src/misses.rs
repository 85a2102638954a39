//! Why the region lacked a block of a prompt: a line of the log for each request, and counts by reason.
//! A thread of its own reads the region's ring of removed blocks, so the engine waits for none of it.

use cenote_base::{BlockHash, Clock, NamespaceId, TenantKey};
use cenote_mem::Fabric;
use cenote_pool::{Cause, Pool, Removal, removals};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
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
    /// Its tenant; `None`: the engine's own part.
    pub tenant: Option<TenantKey>,
    /// Full blocks of its prompt.
    pub blocks: usize,
    /// Blocks from the first one on that the store has: the index of the missing one.
    pub found: usize,
    /// Of these: the last ones, which came from a slower tier or a peer while the request waited.
    pub fetched: usize,
    /// The missing block.
    pub hash: BlockHash,
}

/// Message of the lines. `cenote pool explain --request` finds them by it, and those of vLLM's connector.
pub const MESSAGE: &str = "a hit ends early";

/// Why a block is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was there, and left.
    Removed(Cause),
    /// It was stored after the request had asked.
    Later,
    /// Never stored under its name, or removed before the oldest record.
    Unknown,
    /// Nothing was looked up.
    Unexplained,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Removed(Cause::Evicted),
        Self::Removed(Cause::Quota),
        Self::Removed(Cause::Damaged),
        Self::Removed(Cause::Forgotten),
        Self::Removed(Cause::Collected),
        Self::Later,
        Self::Unknown,
        Self::Unexplained,
    ];

    /// Its name in logs and counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Removed(cause) => cause.name(),
            Self::Later => "later",
            Self::Unknown => "unknown",
            Self::Unexplained => "unexplained",
        }
    }

    /// The reason of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }

    /// The reason as a clause.
    #[must_use]
    pub const fn words(self) -> &'static str {
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

    fn stats(&self) -> impl Iterator<Item = (String, f64)> + '_ {
        let counts = Reason::ALL.iter().zip(&self.0);
        counts.map(|(reason, count)| (format!("misses_{}_total", reason.name()), count.load(Ordering::Relaxed) as f64))
    }
}

/// A miss, the row of its namespace, and the microseconds since 1970 when it happened.
type Asked = (Miss, NamespaceId, u64);

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
        let run = move || {
            let look = || removals(pool.fabric()).ok().map(|removed| removed.all);
            explain_all(look, |name| pool.has(name), clock, &waiting, &of_thread);
        };
        let thread = std::thread::Builder::new().name("cenote-misses".to_owned()).spawn(run)?;
        Ok(Self { asked: Some(asked), clock, counts, thread: Some(thread) })
    }

    /// Takes a miss in the namespace of this row. Never waits.
    pub fn ask(&self, miss: Miss, row: NamespaceId) {
        let miss = (miss, row, unix_us(self.clock));
        if self.asked.as_ref().is_none_or(|asked| asked.try_send(miss).is_err()) {
            self.counts.add(Reason::Unexplained);
        }
    }

    pub fn stats(&self) -> impl Iterator<Item = (String, f64)> + '_ {
        self.counts.stats()
    }
}

impl Drop for MissLog {
    fn drop(&mut self) {
        self.asked = None;
        // A thread that panicked has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Explains misses until no sender is left. `look` reads the region's removals by time, `has` tells whether a
/// block is there.
fn explain_all(
    look: impl Fn() -> Option<Vec<Removal>>,
    has: impl Fn(BlockHash) -> bool,
    clock: Clock,
    waiting: &Receiver<Asked>,
    counts: &Counts,
) {
    let mut more = Vec::new();
    loop {
        let first = if more.is_empty() { waiting.recv().ok() } else { None };
        // One look at the ring serves all that wait.
        let misses: Vec<Asked> = more.drain(..).chain(first).chain(waiting.try_iter().take(WAITING_MAX)).collect();
        if misses.is_empty() {
            return;
        }
        let begin_ns = clock.now_ns();
        let removed = look();
        // The last removal of a name counts.
        let gone: Option<BTreeMap<BlockHash, &Removal>> =
            removed.as_ref().map(|removed| removed.iter().map(|removal| (removal.hash, removal)).collect());
        let now_us = unix_us(clock);
        for (Miss { request, blocks, found, fetched, hash, .. }, row, asked_us) in misses {
            let removal = gone.as_ref().and_then(|gone| gone.get(&hash));
            let reason = match removal {
                _ if gone.is_none() => Reason::Unexplained,
                // The request itself may have stored the block since.
                Some(removal) if removal.time_us <= asked_us => Reason::Removed(removal.cause),
                _ if has(hash) => Reason::Later,
                Some(removal) => Reason::Removed(removal.cause),
                None => Reason::Unknown,
            };
            counts.add(reason);
            let ago_s = removal.map(|removal| now_us.saturating_sub(removal.time_us) / 1_000_000);
            let (reason, why, at_s) = (reason.name(), reason.words(), asked_us / 1_000_000);
            let (request, model) = (request.as_str(), row.0);
            // `cenote pool explain --request` reads these fields (docs/guides/operate.md#one-request).
            tracing::info!(
                target: TARGET, request, blocks, found, fetched, %hash, model, at_s, reason, why, ago_s, "{MESSAGE}"
            );
        }
        let pause = clock.since(begin_ns).saturating_mul(PAUSES).min(PAUSE_MAX);
        let end = clock.after(pause);
        while more.len() < WAITING_MAX && !end.passed() {
            match end.receive(waiting) {
                Ok(miss) => more.push(miss),
                // Without a sender, those that wait are the last ones.
                Err(_) => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::testing::{ManualTime, until};

    fn miss(number: u8) -> Asked {
        let hash = BlockHash([number; 16]);
        let miss = Miss { request: "mine".to_owned(), tenant: None, blocks: 1, found: 0, fetched: 0, hash };
        (miss, NamespaceId(0), 1_000_000)
    }

    /// Looks took a whole processor when they were slow and misses came all the time.
    #[test]
    fn looks_at_the_ring_take_a_tenth_of_the_time() {
        let time = ManualTime::start();
        let (counts, looks) = (&Counts::default(), AtomicU64::new(0));
        // A sender goes on when its miss is received.
        let (asked, waiting) = sync_channel(0);
        let unknown = || counts.stats().find(|(name, _)| *name == "misses_unknown_total").map(|(_, count)| count);
        let look = || {
            looks.fetch_add(1, Ordering::Relaxed);
            time.advance(Duration::from_millis(100));
            Some(Vec::new())
        };
        let looks = || looks.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(move || explain_all(look, |_| false, time.clock(), &waiting, counts));
            let send = |number| asked.send(miss(number)).expect("it receives");
            send(1);
            until("the first reason", || (unknown() == Some(1.0)).then_some(()));
            for number in 2..=9 {
                send(number);
                assert_eq!(looks(), 1, "a look of 100 ms is followed by none for 900");
                time.advance(Duration::from_millis(100));
            }
            send(10);
            time.advance(Duration::from_millis(100));
            until("the other reasons", || (unknown() == Some(10.0)).then_some(()));
            assert_eq!(looks(), 2, "one look serves all that wait");
            // Those that wait when the store ends are explained, too.
            send(11);
            drop(asked);
        });
        assert_eq!((unknown(), looks()), (Some(11.0), 3));
    }

    #[test]
    fn each_reason_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        assert!(Cause::ALL.iter().all(|cause| Reason::ALL.contains(&Reason::Removed(*cause))));
    }
}
