//! `cenote-lab torture-child`: one process that runs random operations on the region until it is
//! killed or told to end, and checks every byte that it reads.

use super::content;
use super::ledger::{LOCKS, Ledger};
use super::message::Message;
use super::operations::{COUNTERS, Operation, Operations};
use crate::args::TortureChildArgs;
#[cfg(any(feature = "canary", debug_assertions))]
use cenote_base::fault::Mistake;
use cenote_base::fault::{self, Point};
use cenote_base::prng::Prng;
use cenote_console::failure::Failure;
use cenote_console::region::HostPool;
use cenote_mem::{Fabric, HostArea, Mapped};
use cenote_pool::{Hit, Namespace, NamespaceRecord, NewBlock, Pin, PoolError, Publish, ReadOutcome, Recovered};
use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};
use std::io::Read as _;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest interval of messages to the parent while all is well.
const REPORT_PACE: Duration = Duration::from_millis(50);
/// Interval of checks of the region's fill level.
const FILL_PACE: Duration = Duration::from_millis(250);
/// Least interval of forks.
const FORK_PACE: Duration = Duration::from_millis(200);
/// Interval of heartbeats.
const TICK_MAX: Duration = Duration::from_millis(100);
/// Longest wait for a user lock; then the increment is skipped.
const USER_LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Most blocks that a child holds pinned at once.
const PINS_MAX: usize = 8;
const PIN_TIME_MS_MAX: u64 = 1500;
/// Objects that all children share.
const OBJECTS: u64 = 6;
/// Size of all keys' blocks in percent of the data area: more than 100, so that eviction never
/// stops.
const KEYS_PERCENT: u64 = 150;

/// The block sizes of a region with these chunks: two, so that chunks change from one to the other.
pub const fn block_sizes(chunk_bytes: u64) -> [u64; 2] {
    [chunk_bytes / 16, chunk_bytes / 64]
}

/// The region's namespaces, the same in all processes.
pub fn namespaces(pool: &HostPool) -> Result<Vec<Namespace>, PoolError> {
    let sizes = block_sizes(pool.superblock().config.chunk_bytes);
    (0_u8..)
        .zip(sizes)
        .map(|(number, block_bytes)| {
            pool.namespace(&NamespaceRecord {
                fingerprint: [number; 32],
                label: format!("torture {number}"),
                block_bytes,
                block_tokens: 16,
                num_layers: 1,
            })
        })
        .collect()
}

/// Number of keys of a namespace.
pub fn keys(namespace: &Namespace, data_bytes: u64) -> u64 {
    data_bytes * KEYS_PERCENT / 100 / 2 / namespace.block_bytes
}

pub fn run(args: &TortureChildArgs) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    #[cfg(any(feature = "canary", debug_assertions))]
    if args.mistake {
        fault::sabotage::choose(Some(Mistake::EvictScanSkipped));
    }
    if let Some(plan) = args.fault {
        let end: fn(Point) = |point| {
            Message::Fault(point).send();
            let _ = kill_process(getpid(), Signal::KILL);
        };
        // The parent stops all threads first, and then sends a byte. Signals of our own could come
        // after its signal to continue.
        let stop: fn(Point) = |point| {
            Message::Stopped(point).send();
            let _ = std::io::stdin().read_exact(&mut [0]);
        };
        fault::arm(plan, if args.stop { stop } else { end });
    }
    let pool = args.region.attach_watching(&format!("torture-{}", args.index), &args.watch)?;
    let ledger = Ledger::open(&args.ledger, pool.superblock().flush)?;
    ledger.settle(args.index);
    Message::Joined.send();
    let (stop, stopped) = channel::<()>();
    let (ticking, pace) = (pool.clone(), args.watch.tick().min(TICK_MAX));
    let ticker = std::thread::spawn(move || {
        while stopped.recv_timeout(pace) == Err(RecvTimeoutError::Timeout) {
            ticking.tick();
        }
    });
    let mut child = Child::new(pool, ledger, args).map_err(|error| args.region.explain(&error))?;
    while !child.ledger.is_stopped() {
        child.step();
    }
    child.release_pins();
    child.report();
    drop(stop);
    ticker.join().map_err(|_| Failure::new("the ticking thread panicked"))
}

/// A block that is used in place.
struct Held {
    pin: Pin<Arc<Mapped>, HostArea>,
    until: Instant,
    /// Pauses of the host before the pin was taken. After another one it holds nothing: others have
    /// declared the host dead.
    pauses: u64,
}

struct Child {
    pool: HostPool,
    ledger: Ledger,
    index: u64,
    prng: Prng,
    namespaces: Vec<Namespace>,
    data_bytes: u64,
    /// Probability of each of [`STEPS`] in this life.
    weights: [u64; STEPS.len()],
    held: Vec<Held>,
    buffer: Vec<u8>,
    did: Operations,
    reported: Instant,
    measured: Instant,
    forked: Instant,
    is_full: bool,
}

type Step = fn(&mut Child);

/// The operations of a child, and their limits.
const STEPS: [(Step, u64); 8] = [
    (Child::put, 16),
    (Child::get, 16),
    (Child::pin, 8),
    (Child::read_pinned, 8),
    (Child::evict, 1),
    (Child::object, 2),
    (Child::increment, 2),
    (Child::fork, 1),
];

impl Child {
    fn new(pool: HostPool, ledger: Ledger, args: &TortureChildArgs) -> Result<Self, PoolError> {
        let mut prng = Prng::new(args.seed);
        let namespaces = namespaces(&pool)?;
        // Some lives skip some of the steps, and others do little else; all put, or nothing
        // happens.
        let mut weights = STEPS.map(|(_, most)| if prng.below(4) == 0 { 0 } else { 1 + prng.below(most * 4) });
        weights[0] = weights[0].max(STEPS[0].1);
        let longest = namespaces.iter().map(|namespace| namespace.block_bytes).max().unwrap_or(0);
        Ok(Self {
            data_bytes: pool.info().data_bytes,
            pool,
            ledger,
            index: args.index,
            prng,
            namespaces,
            weights,
            held: Vec::new(),
            buffer: vec![0; longest as usize],
            did: Operations::default(),
            reported: Instant::now(),
            measured: Instant::now(),
            forked: Instant::now(),
            is_full: false,
        })
    }

    fn step(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.reported) >= REPORT_PACE {
            self.report();
        }
        if now.duration_since(self.measured) >= FILL_PACE {
            self.measure();
        }
        if let Some(expired) = self.held.iter().position(|held| held.until <= now) {
            self.release(expired);
        }
        // Until the region is full there is little to find in it.
        if !self.is_full && self.prng.below(8) != 0 {
            return self.put();
        }
        let mut draw = self.prng.below(self.weights.iter().sum());
        for ((step, _), weight) in STEPS.into_iter().zip(self.weights) {
            if draw < weight {
                return step(self);
            }
            draw -= weight;
        }
    }

    fn report(&mut self) {
        // An empty report is a heartbeat, too.
        Message::Did(std::mem::take(&mut self.did)).send();
        self.reported = Instant::now();
    }

    fn measure(&mut self) {
        let info = self.pool.info();
        self.is_full = info.bytes_ready * 100 >= info.data_bytes * 96;
        Message::Fill(info.bytes_ready, info.data_bytes).send();
        Message::Counters(COUNTERS.map(|counter| self.pool.counter(counter)).to_vec()).send();
        self.measured = Instant::now();
    }

    fn key(&mut self) -> (Namespace, cenote_base::BlockHash) {
        let namespace = self.namespaces[self.prng.below(self.namespaces.len() as u64) as usize].clone();
        let key = self.prng.below(keys(&namespace, self.data_bytes));
        let hash = namespace.hasher.block(None, &[key as u32]);
        (namespace, hash)
    }

    fn find(&mut self) -> Option<Hit> {
        let (_, hash) = self.key();
        let hit = self.pool.lookup(&[hash]).first().copied();
        if hit.is_none() {
            self.did.add(Operation::GetMissing, 1);
        }
        hit
    }

    fn put(&mut self) {
        let (namespace, hash) = self.key();
        let payload = &mut self.buffer[..namespace.block_bytes as usize];
        content::write_block(hash, payload);
        let operation = match self.pool.publish(&NewBlock::new(&namespace, hash, 0), &[payload]) {
            Publish::Published => Operation::Put,
            Publish::Duplicate => Operation::PutDuplicate,
            Publish::NoRoom | Publish::OverQuota => Operation::PutNoRoom,
        };
        self.did.add(operation, 1);
    }

    fn get(&mut self) {
        let Some(hit) = self.find() else { return };
        let payload = &mut self.buffer[..hit.length as usize];
        payload.fill(0);
        let operation = match self.pool.read(&hit, &mut [payload]) {
            ReadOutcome::Whole => Operation::GetWhole,
            ReadOutcome::Stale => Operation::GetStale,
            ReadOutcome::Damaged => Operation::GetDamaged,
        };
        self.did.add(operation, 1);
        let wrong = content::wrong_block_bytes(hit.hash, &self.buffer[..hit.length as usize]);
        if operation == Operation::GetWhole && wrong > 0 {
            Message::Wrong(wrong, format!("block {} was read whole", hit.block)).send();
        }
    }

    fn evict(&mut self) {
        let count = 1 + self.prng.below(2) as usize;
        let evicted = self.pool.evict(count);
        self.did.add(Operation::Evicted, evicted as u64);
    }

    fn pin(&mut self) {
        if self.held.len() == PINS_MAX {
            return self.read_pinned();
        }
        let Some(hit) = self.find() else { return };
        let pauses = self.ledger.pauses(self.index);
        let Some(pin) = self.pool.pin(&hit) else { return self.did.add(Operation::PinGone, 1) };
        let time = Duration::from_millis(self.prng.below(PIN_TIME_MS_MAX));
        self.did.add(Operation::Pin, 1);
        self.held.push(Held { pin, until: Instant::now() + time, pauses });
        self.read_held(self.held.len() - 1);
    }

    fn read_pinned(&mut self) {
        if !self.held.is_empty() {
            let chosen = self.prng.below(self.held.len() as u64) as usize;
            self.read_held(chosen);
        }
    }

    /// Reads a pinned payload in place, as a device would: only the pin protects it.
    fn read_held(&mut self, at: usize) {
        let hit = *self.held[at].pin.hit();
        let (offset, length) = self.held[at].pin.extent().expect("torture does not encrypt");
        let payload = &mut self.buffer[..length as usize];
        self.pool.fabric().read_payload(offset, &mut [payload], 0);
        self.did.add(Operation::PinRead, 1);
        let wrong = content::wrong_block_bytes(hit.hash, payload);
        // Read after the payload, so that a pause in between is seen.
        let held = self.ledger.pauses(self.index) == self.held[at].pauses;
        if wrong > 0 && held {
            Message::Wrong(wrong, format!("block {} changed while it was pinned", hit.block)).send();
        }
    }

    fn release(&mut self, at: usize) {
        self.read_held(at);
        drop(self.held.swap_remove(at));
    }

    fn release_pins(&mut self) {
        while !self.held.is_empty() {
            self.release(self.held.len() - 1);
        }
    }

    /// Forks a child, which drops all pins of this process and tries to publish and to tick, and
    /// ends. The dropped pins must still hold, which the next check of them shows.
    fn fork(&mut self) {
        // A fork copies the tables of all memory; a few per second are enough.
        if self.forked.elapsed() < FORK_PACE {
            return;
        }
        let (namespace, hash) = self.key();
        let payload = vec![0; namespace.block_bytes as usize];
        let forked = cenote_mem::fork::run_in_child(|| {
            self.held.clear();
            let inert = self.pool.publish(&NewBlock::new(&namespace, hash, 0), &[&payload]) == Publish::NoRoom
                && self.pool.lookup(&[hash]).is_empty()
                && self.pool.tick() == Recovered::default();
            u8::from(!inert)
        });
        match forked {
            Ok(0) => self.did.add(Operation::Fork, 1),
            Ok(code) => Message::Lock(format!("a forked child ended with {code}: it was not inert")).send(),
            Err(error) => Message::Lock(format!("fork: {error}")).send(),
        }
        self.forked = Instant::now();
        (0..self.held.len()).for_each(|at| self.read_held(at));
    }

    fn object(&mut self) {
        let number = self.prng.below(OBJECTS);
        let key = format!("torture/{number}");
        let operation = match self.prng.below(8) {
            0 => match self.pool.destroy_object(&key) {
                Ok(true) => Operation::ObjectDestroyed,
                _ => Operation::ObjectMissing,
            },
            1..4 => {
                let length = self
                    .prng
                    .below(*block_sizes(self.pool.superblock().config.chunk_bytes).iter().min().expect("two sizes"));
                let bytes = content::object(number, self.prng.next_u64(), length as usize);
                match self.pool.put_object(&key, &bytes) {
                    Ok(()) => Operation::ObjectPut,
                    Err(_) => Operation::ObjectNoRoom,
                }
            }
            _ => match self.pool.get_object(&key) {
                Ok(Some(bytes)) => {
                    let wrong = content::wrong_object_bytes(number, &bytes);
                    if wrong > 0 {
                        Message::Wrong(wrong, format!("object {number} was read whole")).send();
                    }
                    Operation::ObjectRead
                }
                _ => Operation::ObjectMissing,
            },
        };
        self.did.add(operation, 1);
    }

    fn increment(&mut self) {
        let lock = self.prng.below(LOCKS.into()) as u8;
        self.ledger.started(self.index);
        let Ok(held) = self.pool.lock_user(lock.into(), USER_LOCK_TIMEOUT) else {
            self.ledger.finished(self.index, false);
            return self.did.add(Operation::IncrementLate, 1);
        };
        let increment = self.ledger.increment(lock, held.abandoned(), || fault::point(Point::TortureIncrement));
        drop(held);
        self.ledger.finished(self.index, true);
        self.did.add(Operation::Increment, 1);
        if let Err(fact) = increment {
            Message::Lock(fact).send();
        }
    }
}
