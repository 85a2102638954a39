//! What the simulated processes do: serve, pin, evict, count under locks, come and go.

use crate::oracle::{Checker, Oracle};
use cenote_base::prng::Prng;
use cenote_base::{BlockHash, HashSeed, HostId};
use cenote_mem::{Fabric, Offset};
use cenote_pool::{
    AttachOptions, CheckReport, ColdBlock, Counter, Design, Event, Eviction, Hit, HostsLock, LockManager, Names,
    Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, PoolError, Publish, ReadOutcome, Shorter, Strays,
};
use cenote_weakmem::{Process, SimFabric, SimHost};
use std::sync::Arc;
use std::time::Duration;

pub type SimPool = Pool<SimFabric, SimHost>;

/// The counter of a user lock, in a line of its own that nothing of the pool uses: at the end of the
/// superblock's page. Two locks must not guard one line.
const fn counter_line(lock: u8) -> u64 {
    4096 - 64 * (lock as u64 + 1)
}

pub const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// Longer than a worker may wait for two locks, one after the other, without a tick: nobody beats the heart meanwhile.
const HOST_TIMEOUT: Duration = Duration::from_millis(600);
const QUARANTINE: Duration = Duration::from_millis(100);
/// Blocks that every host publishes after all deaths.
pub const RECOVERED: usize = 3;
/// Numbers of blocks that nobody has published.
pub const UNLIKE: usize = 1000;
/// Encoding of blocks that are a line shorter than they were.
const SHORT: u8 = 1;
/// Operations of a worker that comes late.
const LATE_ROUNDS: u64 = 12;
/// A tick interval well below the host timeout.
const TICK_NS: u64 = 100_000_000;

/// The shape of a run, drawn from its seed.
#[derive(Clone, Debug)]
pub struct Shape {
    pub hosts: usize,
    pub processes_per_host: usize,
    /// Different blocks that the processes want.
    pub universe: usize,
    pub block_bytes: u64,
    min_block_bytes: u64,
    chunks: u64,
    /// All hashes share a home bucket, so that probes overflow.
    crowded: bool,
    hosts_lock: HostsLock,
    eviction: Eviction,
    /// Blocks that all hosts may have together; 0: any number.
    quota_blocks: u64,
    pub design: Design,
    /// This host only stands by when all have recovered: what its dead left must not wait for it to want something.
    idle_host: Option<usize>,
    /// This host comes back only when those who died on it have long been declared dead.
    late_host: Option<usize>,
    /// Lines of each event log: few are soon written over.
    events_per_host: u32,
    /// Operations of each process.
    pub rounds: u64,
    /// Weight of each kind of operation; a swarm leaves some out.
    weights: [u64; 11],
}

impl Shape {
    pub fn of_seed(seed: u64) -> Self {
        let mut prng = Prng::at(seed, 11);
        let hosts = 2 + prng.below(2) as usize;
        let processes_per_host = 1 + prng.below(2) as usize;
        let block_bytes = [128, 192, 320][prng.below(3) as usize];
        let late_host = (seed / 5).is_multiple_of(3).then_some((seed / 15) as usize % hosts);
        // Who comes back late may find all that it had taken over, and have nothing to do either.
        let idle_host = match seed / 8 % 4 {
            0 => late_host.or(Some((seed / 16) as usize % hosts)),
            2 => Some((seed / 16) as usize % hosts),
            _ => None,
        };
        let common = Self {
            hosts,
            processes_per_host,
            universe: 4 + prng.below(10) as usize,
            block_bytes,
            min_block_bytes: 32 << 10,
            chunks: hosts as u64 + prng.below(3),
            crowded: false,
            hosts_lock: if prng.below(6) == 0 { HostsLock::Manager } else { HostsLock::Bakery },
            eviction: Eviction::ALL[prng.below(3) as usize],
            quota_blocks: [0, 0, 2 + seed % 5][(seed / 7 % 3) as usize],
            design: Design::Cenote,
            idle_host,
            late_host,
            events_per_host: [16, 32, 128][(seed / 3 % 3) as usize],
            rounds: 8 + prng.below(24),
            weights: [12, 12, 6, 4, 2, 3, 2, 1, 1, 1, 2],
        };
        match prng.below(8) {
            // Few blocks, few slots: pins and reads meet reuse.
            0 | 1 => Self {
                universe: 2 + prng.below(2) as usize,
                chunks: hosts as u64,
                rounds: 30 + prng.below(40),
                weights: [12, 6, 10, 12, 1, 0, 0, 0, 0, 0, 4],
                ..common
            },
            // Many at few locks.
            2 => Self { rounds: 20 + prng.below(30), weights: [2, 1, 0, 1, 1, 20, 0, 0, 0, 0, 0], ..common },
            // One bucket for all hashes: probes overflow.
            3 => Self {
                universe: 20,
                min_block_bytes: 1 << 10,
                chunks: 8,
                crowded: true,
                rounds: 20 + prng.below(30),
                weights: [16, 8, 2, 6, 1, 0, 1, 1, 0, 0, 2],
                ..common
            },
            // Chunks go from hand to hand: few of them, emptied and given back as soon as may be.
            4 => Self {
                universe: 4 + prng.below(6) as usize,
                min_block_bytes: 1 << 10,
                chunks: hosts as u64,
                rounds: 20 + prng.below(20),
                weights: [10, 6, 2, 6, 3, 0, 2, 6, 1, 1, 4],
                ..common
            },
            // Much in the tables, by comers and goers.
            5 => Self { rounds: 16 + prng.below(20), weights: [3, 2, 0, 1, 1, 0, 12, 1, 3, 8, 1], ..common },
            // Anything, some of it left out, some of it much.
            _ => {
                let mut weights = common.weights;
                for weight in &mut weights[2..] {
                    *weight *= [0, 1, 1, 4][prng.below(4) as usize];
                }
                Self { weights, ..common }
            }
        }
    }

    /// The same where hosts are held up until they are declared dead: others wait for that now and then.
    pub fn with_sleepers(mut self) -> Self {
        self.weights[4] *= 4;
        self
    }

    /// Whether a host comes back late. With TraCT's manager nobody is declared dead in time.
    pub fn has_late_host(&self) -> bool {
        self.late_host.is_some() && !self.has_manager()
    }

    /// The same in another design, which may have an order of eviction of its own.
    pub fn of_design(self, design: Design) -> Self {
        let eviction = if design == Design::Plain { Eviction::Lru } else { self.eviction };
        Self { design, eviction, ..self }
    }

    pub fn config(&self) -> PoolConfig {
        PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: self.min_block_bytes,
            max_hosts: 3,
            workers_per_host: 4,
            hazard_lines_per_worker: 1,
            records_per_host: 32,
            events_per_host: self.events_per_host,
            hosts_lock: self.hosts_lock,
            eviction: self.eviction,
            design: self.design,
            ..PoolConfig::new(HashSeed([7; 32]), [9; 16])
        }
    }

    /// Bytes for exactly this many chunks: control areas take less than half a mebibyte.
    pub const fn region_bytes(&self) -> u64 {
        (448 << 10) + self.chunks * (64 << 10)
    }

    pub fn has_manager(&self) -> bool {
        self.hosts_lock == HostsLock::Manager
    }

    /// A waiter that gives up just when TraCT's manager grants leaves its lock taken until it comes again, so there
    /// nobody gives up.
    fn lock_timeout(&self) -> Duration {
        if self.has_manager() { 100 * LOCK_TIMEOUT } else { LOCK_TIMEOUT }
    }

    /// The hash of block `number`. Not a chain: the pool does not care, and homes must be chosen.
    pub fn hash(&self, number: usize) -> BlockHash {
        let mut prng = Prng::new(number as u64 + 1);
        let low = if self.crowded { 64 * 5 + 3 } else { prng.next_u64() % 128 };
        BlockHash::from_words([low | (number as u64 + 1) << 32, prng.next_u64()])
    }

    /// The only bytes that block `number` may ever have.
    pub fn payload(&self, number: usize) -> Vec<u8> {
        let mut prng = Prng::new(1000 + number as u64);
        let mut bytes = vec![0; self.block_bytes as usize];
        bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&prng.next_u64().to_le_bytes()[..part.len()]));
        bytes
    }
}

pub struct Actor {
    pub shape: Shape,
    pub oracle: Arc<Oracle>,
    pub process: Process,
}

impl Actor {
    fn options(&self) -> AttachOptions {
        AttachOptions {
            host: HostId(self.process.host() as u8),
            lock_timeout: self.shape.lock_timeout(),
            // Nobody dies where there is a manager, but a host may wait for it and not tick for long.
            host_timeout: if self.shape.has_manager() { 100 * HOST_TIMEOUT } else { HOST_TIMEOUT },
            quarantine: QUARANTINE,
            ..AttachOptions::named("sim")
        }
    }

    pub fn attach(&self) -> Option<SimPool> {
        let process = self.process.clone();
        let attached = Pool::attach_on(self.process.fabric(), &self.options(), |_, spec| Ok(process.host_memory(spec)));
        match attached {
            Ok(pool) => Some(pool),
            // A lock whose holder just died is waited for in vain until somebody declares it dead.
            Err(PoolError::Lock { .. } | PoolError::WorkersFull { .. }) => None,
            Err(error) => {
                self.oracle.report(Checker::Liveness, format!("attaching fails: {error}"));
                None
            }
        }
    }

    fn namespace(&self, pool: &SimPool) -> Option<Namespace> {
        let namespace = self.named(pool, "sim")?;
        if self.shape.quota_blocks > 0 {
            // Where a lock is not to be had there is none yet.
            let _ = pool.set_quota(namespace.id, self.shape.quota_blocks * self.shape.block_bytes);
        }
        Some(namespace)
    }

    /// Opens a namespace, which must have the row that anybody else saw.
    pub fn named(&self, pool: &SimPool, label: &str) -> Option<Namespace> {
        let record = NamespaceRecord {
            fingerprint: [label.len() as u8; 32],
            label: label.to_owned(),
            block_bytes: self.shape.block_bytes,
            block_tokens: 16,
            num_layers: 1,
        };
        let namespace = pool.namespace(&record).ok()?;
        if self.process.lives(self.process.number()) {
            let id = namespace.id.0;
            let known = *self.oracle.notes().namespaces.entry(label.to_owned()).or_insert(id);
            if known != id {
                let fact = format!("namespace `{label}` has row {id} and had row {known}");
                self.oracle.report_unless_lossy(Checker::Index, fact);
            }
        }
        Some(namespace)
    }

    /// Opens one of several namespaces and limits it.
    fn limit(&self, pool: &SimPool, prng: &mut Prng) {
        let label = "other".repeat(1 + prng.below(3) as usize);
        let Some(namespace) = self.named(pool, &label) else { return };
        let bytes = 1 + prng.below(1 << 40);
        let write = self.oracle.notes().begin_write(&label, Some(bytes));
        if pool.set_quota(namespace.id, bytes).is_ok() && self.process.lives(self.process.number()) {
            self.oracle.notes().end_write(&label, write);
        }
    }

    /// Attaches and opens the namespace, waiting for the dead to be declared dead.
    fn open(&self, pool: &mut Option<SimPool>) -> Option<Namespace> {
        for _ in 0..40 {
            if pool.is_none() {
                *pool = self.attach();
            }
            if let Some(pool) = pool
                && let Some(namespace) = self.namespace(pool)
            {
                return Some(namespace);
            }
            if let Some(pool) = pool {
                pool.tick();
            }
            if !self.process.sleep(TICK_NS) {
                return None;
            }
        }
        self.oracle.report_unless_lossy(Checker::Liveness, "attaching takes for ever");
        None
    }

    /// The life of a worker.
    pub fn work(&self, seed: u64) {
        let mut prng = Prng::at(seed, 100 + self.process.number() as u64);
        if prng.below(3) == 0 && !self.process.sleep(prng.below(3) * 1_000_000) {
            return;
        }
        self.work_on(prng, self.shape.rounds);
    }

    /// The life of a worker of a host that others may have declared dead meanwhile: the host `heir` comes first, and takes
    /// over what the dead had.
    pub fn come_late(&self, seed: u64, heir: usize) {
        let mut prng = Prng::at(seed, 100 + self.process.number() as u64);
        if self.process.host() != heir {
            let wait = prng.below(16) * TICK_NS;
            if self.process.sleep(wait) {
                self.work_on(prng, LATE_ROUNDS);
            }
            return;
        }
        let mut pool = None;
        if self.open(&mut pool).is_none() {
            return;
        }
        if let Some(pool) = pool {
            self.rest(&pool);
        }
        self.work_on(prng, LATE_ROUNDS);
    }

    fn work_on(&self, mut prng: Prng, rounds: u64) {
        let mut pool = None;
        let Some(namespace) = self.open(&mut pool) else { return };
        // Where much is pinned, who comes pins at once: nobody has heard of him.
        if self.shape.weights[2] >= 10 {
            for number in 0..self.shape.universe {
                self.use_in_place(pool.as_ref().expect("open"), number);
            }
        }
        let mut last_tick = self.process.time();
        for _ in 0..rounds {
            let Some(open) = &pool else { return };
            if self.process.is_cut() {
                break;
            }
            // In the plain design, counts that a worker loses stay raised.
            if self.shape.design == Design::Cenote && self.process.time().is_multiple_of(29) {
                self.fork(open, &namespace, prng.below(self.shape.universe as u64) as usize);
                pool = None;
                if self.open(&mut pool).is_none() {
                    return;
                }
                continue;
            }
            if self.process.time() - last_tick > TICK_NS {
                open.tick();
                last_tick = self.process.time();
            }
            if prng.below(3) == 0 {
                self.follow(open);
            }
            let mut draw = prng.below(self.shape.weights.iter().sum());
            let kind = self.shape.weights.iter().position(|&weight| {
                let here = draw < weight;
                draw = draw.wrapping_sub(if here { 0 } else { weight });
                here
            });
            match kind.expect("the draw is below the sum") {
                0 => drop(self.publish(open, &namespace, prng.below(self.shape.universe as u64) as usize)),
                1 => drop(self.read(open, prng.below(self.shape.universe as u64) as usize)),
                2 => self.use_in_place(open, prng.below(self.shape.universe as u64) as usize),
                3 if prng.below(20) == 0 => self.notes_evicted(open.forget(&namespace)),
                3 => self.notes_evicted(open.evict(1 + prng.below(3) as usize)),
                4 if prng.below(2) == 0 => drop(open.tick()),
                4 => self.rest(open),
                5 => self.count(open, prng.below(2) as u8),
                6 => self.object(open, prng.below(2) as u8, &mut prng),
                7 => drop(open.gc()),
                8 if prng.below(2) == 0 => drop(open.info()),
                8 => self.limit(open, &mut prng),
                10 => self.shorten(open, &namespace, prng.below(4) == 0),
                _ => {
                    pool = None;
                    if self.open(&mut pool).is_none() {
                        return;
                    }
                }
            }
        }
        if let Some(pool) = pool {
            self.look_at_counters(&pool);
        }
    }

    /// Waits so long that the dead are declared dead and their quarantine ends, with the heart beating. What they
    /// had is there to be taken over then.
    fn rest(&self, pool: &SimPool) {
        for _ in 0..7 {
            if !self.process.sleep(TICK_NS) {
                return;
            }
            pool.tick();
        }
        drop(pool.gc());
    }

    fn notes_evicted(&self, count: usize) {
        self.oracle.notes().evicted += count as u64;
    }

    fn look_at_counters(&self, pool: &SimPool) {
        let timeouts = pool.counter(Counter::LockTimeouts);
        let mut notes = self.oracle.notes();
        notes.lock_timeouts = notes.lock_timeouts.max(timeouts);
    }

    pub fn publish(&self, pool: &SimPool, namespace: &Namespace, number: usize) -> Publish {
        let payload = self.shape.payload(number);
        let (left, right) = payload.split_at(64);
        let (hash, depth, names) = (self.shape.hash(number), number as u32, names_of(number));
        let outcome = match self.process.time() % 9 {
            1 | 4 => self.publish_in_place(pool, namespace, number, &payload),
            0 | 3 | 6 => pool.begin(&NewBlock { names, ..NewBlock::new(namespace, hash, depth) }).map_or_else(
                |outcome| outcome,
                |mut filling| {
                    // Pieces may be written by one thread and published by another.
                    filling.append(left);
                    filling.append(right);
                    self.process.change_thread();
                    filling.publish()
                },
            ),
            _ => pool.publish(&NewBlock { names, ..NewBlock::new(namespace, hash, depth) }, &[left, right]),
        };
        self.process.note(&format!("publish {number}: {outcome:?}"));
        outcome
    }

    /// Makes the blocks of the coldest chunk, or two, a line shorter. With `leave` those that were made shorter before are
    /// among them, and leave.
    fn shorten(&self, pool: &SimPool, namespace: &Namespace, leave: bool) {
        let whole = |hit: &Hit| leave || hit.length == self.shape.block_bytes;
        let cold = pool.coldest(namespace, 1 + usize::from(self.shape.block_bytes == 192), &whole).concat();
        let payload = |block: &ColdBlock| {
            let mut all = (0..self.shape.universe.max(RECOVERED)).chain(UNLIKE..UNLIKE + self.shape.hosts);
            let number = all.find(|&number| self.shape.hash(number) == block.hit.hash);
            let is_whole = block.hit.length == self.shape.block_bytes;
            number.filter(|_| is_whole).map(|number| self.shape.payload(number)).unwrap_or_default()
        };
        let payloads: Vec<Vec<u8>> = cold.iter().map(payload).collect();
        let shorter = |(of, payload)| {
            let payload: &Vec<u8> = payload;
            Shorter { of, encoding: SHORT, payload: &payload[..payload.len().saturating_sub(64)] }
        };
        let count = pool.repack(namespace, &cold.iter().zip(&payloads).map(shorter).collect::<Vec<_>>());
        self.process.note(&format!("{count} of {} cold blocks are shorter", cold.len()));
    }

    /// Looks a block up and reads it; returns whether it was whole.
    fn read(&self, pool: &SimPool, number: usize) -> bool {
        let hits = pool.lookup(&[self.shape.hash(number)]);
        let Some(hit) = hits.first() else { return false };
        let mut bytes = vec![0; hit.length.min(self.shape.block_bytes) as usize];
        let outcome = pool.read(hit, &mut [&mut bytes]);
        self.process.note(&format!("read {number} ({hit:?}): {outcome:?}"));
        match outcome {
            ReadOutcome::Whole if !self.is_right(hit, number, &bytes) => {
                self.oracle.report(Checker::Blocks, format!("block {number} was read whole with wrong bytes"));
            }
            ReadOutcome::Damaged => {
                if pool.strays(hit) == Strays::Never {
                    let fact = format!("block {number} does not have its checksum: {hit:?}");
                    self.oracle.report_unless_lossy(Checker::Blocks, fact);
                }
                self.oracle.notes().damaged.insert(number);
            }
            _ => {}
        }
        let whole = outcome == ReadOutcome::Whole;
        let mut notes = self.oracle.notes();
        if whole {
            notes.reads_whole += 1;
        } else {
            notes.reads_missed += 1;
        }
        whole
    }

    /// Whether these are the bytes of a block, all of them or one line less.
    fn is_right(&self, hit: &Hit, number: usize, bytes: &[u8]) -> bool {
        let is_short = hit.encoding == SHORT;
        let length = self.shape.block_bytes as usize - if is_short { 64 } else { 0 };
        bytes == &self.shape.payload(number)[..length]
    }

    /// Pins a block, waits, and reads it in place: no check of ours may be needed.
    fn use_in_place(&self, pool: &SimPool, number: usize) {
        let hits = pool.lookup(&[self.shape.hash(number)]);
        let Some(pin) = hits.first().and_then(|hit| pool.pin(hit)) else { return };
        self.process.note(&format!("pinned {number}: {:?}", pin.hit()));
        let (offset, length) = pin.extent();
        let while_ns = [4_000, 15_000, 50_000][(self.process.time() % 3) as usize];
        for _ in 0..3 {
            if !self.process.sleep(while_ns) {
                return;
            }
            let mut bytes = vec![0; length as usize];
            pool.fabric().read_payload(offset, &mut [&mut bytes], 0);
            let is_wrong = !self.is_right(pin.hit(), number, &bytes) && pin.protects();
            if is_wrong && self.process.lives(self.process.number()) {
                let fact = format!("block {number} changed while it was pinned: {:?}", pin.hit());
                self.oracle.report_unless_lossy(Checker::Blocks, fact);
            }
        }
        self.oracle.notes().pins += 1;
    }

    /// Adds one to a counter that a user lock guards.
    fn count(&self, pool: &SimPool, lock: u8) {
        let Ok(guard) = pool.lock_user(lock, self.shape.lock_timeout()) else { return };
        let number = self.process.number();
        self.process.note(&format!("inside lock {lock}"));
        {
            let mut notes = self.oracle.notes();
            let other = notes.inside.insert(lock, number);
            notes.counted.entry(lock).or_default().0 += 1;
            drop(notes);
            if let Some(other) = other.filter(|&other| self.process.lives(other)) {
                let fact = format!("processes {other} and {number} are both inside lock {lock}");
                self.oracle.report_unless_lossy(Checker::Locks, fact);
            } else if let Some(other) = other.filter(|_| !guard.abandoned()) {
                let fact = format!("process {other} died inside lock {lock} and {number}, the next, was not told");
                self.oracle.report_unless_lossy(Checker::Locks, fact);
            }
        }
        // Now and then somebody stays, so that another would be met.
        let now = self.process.time();
        if now.is_multiple_of(3) && !self.process.sleep(now % 7 * 500) {
            return;
        }
        let fabric = pool.fabric();
        let line = counter_line(lock);
        let word = Offset::new(line);
        fabric.refresh(&[line]);
        let value = fabric.load(word);
        // Around the cache: a line that stayed dirty in it could be written back over what others count.
        fabric.publish_word(word, value + 1);
        {
            let mut notes = self.oracle.notes();
            if self.process.lives(number) {
                notes.counted.entry(lock).or_default().1 += 1;
                notes.inside.remove(&lock);
            }
        }
        drop(guard);
    }

    fn object(&self, pool: &SimPool, key: u8, prng: &mut Prng) {
        let name = format!("object {key}");
        let value = prng.next_u64();
        match prng.below(8) {
            0..3 => {
                let write = self.oracle.notes().begin_write(&name, Some(value));
                let put = pool.put_object(&name, &value.to_le_bytes().repeat(12));
                if put.is_ok() && self.process.lives(self.process.number()) {
                    self.oracle.notes().end_write(&name, write);
                }
            }
            3 => {
                let write = self.oracle.notes().begin_write(&name, None);
                if pool.destroy_object(&name).is_ok() && self.process.lives(self.process.number()) {
                    self.oracle.notes().end_write(&name, write);
                }
            }
            _ => self.get_object(pool, &name, false),
        }
    }

    /// Reads an object, which must be one that was put last. `strict`: nobody puts any.
    fn get_object(&self, pool: &SimPool, name: &str, strict: bool) {
        let from = self.oracle.notes().now();
        let Ok(bytes) = pool.get_object(name) else { return };
        let value = bytes.as_ref().and_then(|bytes| bytes.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes));
        if !self.process.lives(self.process.number()) {
            return;
        }
        if bytes != value.map(|value| value.to_le_bytes().repeat(12)) {
            self.oracle.report(Checker::Blocks, format!("{name} has bytes that nobody put"));
        } else if !self.oracle.notes().may_be(name, value, from, strict) {
            // A damaged object is not there.
            if value.is_some() || pool.info().chunks_lost == 0 {
                let fact = format!("{name} has value {value:x?}, which was not the last");
                self.oracle.report_unless_lossy(Checker::Index, fact);
            }
        }
    }

    /// TraCT's manager, for as long as others work.
    pub fn manage(&self, others: &[usize]) {
        let process = self.process.clone();
        let opened =
            LockManager::open_on(self.process.fabric(), &self.options(), |_, spec| Ok(process.host_memory(spec)));
        let mut manager = match opened {
            Ok(manager) => manager,
            Err(error) => return self.oracle.report(Checker::Liveness, format!("no manager: {error}")),
        };
        // Where nobody wants a lock for long, most of a run would be the manager's looks.
        let mut pause_ns = 0;
        while others.iter().any(|&other| self.process.lives(other)) {
            let is_idle = manager.round().granted == 0;
            pause_ns = if is_idle { (2 * pause_ns).clamp(1_000_000, 4_000_000) } else { 1_000 };
            if !self.process.sleep(pause_ns) {
                return;
            }
        }
    }

    /// After all deaths: waits until they are noticed, then everything must work again.
    pub fn recover(&self) {
        if self.shape.has_late_host()
            && self.shape.late_host == Some(self.process.host())
            && !self.process.sleep(4 * HOST_TIMEOUT.as_nanos() as u64)
        {
            return;
        }
        let mut pool = None;
        let now = self.now_us();
        self.oracle.notes().attached.push((self.process.host(), now));
        let Some(namespace) = self.open(&mut pool) else { return };
        let Some(pool) = pool else { return };
        for _ in 0..10 {
            pool.tick();
            // Hosts say that they live a new life: what is told after that is told once only.
            self.follow(&pool);
            if !self.process.sleep(TICK_NS) {
                return;
            }
        }
        if self.process.is_cut() {
            self.look_around(&pool, 0);
            // What was found makes way for what is published now.
            self.oracle.notes().found.clear();
        }
        if self.oracle.sleepers {
            self.oversleep(&pool);
        }
        if self.shape.idle_host != Some(self.process.host()) {
            self.use_everything(&pool, &namespace);
            // Something goes, and nothing comes in its place.
            self.follow(&pool);
            self.notes_evicted(pool.evict(1));
        }
        self.look_around(&pool, 10);
        let evicted = pool.counter(Counter::Evicted);
        self.obey(&pool);
        self.share_a_limit(&pool);
        if self.oracle.sleepers {
            self.mend(&pool);
        }
        // For a host that wanted room.
        self.oracle.notes().left += pool.counter(Counter::Evicted) - evicted;
    }

    /// A host sleeps until the others have declared it dead. When it has looked again, they know that it lives: who did
    /// not hear of his own death would go on with pins and locks that nobody heeds.
    fn oversleep(&self, pool: &SimPool) {
        if !self.meet(50, true, pool) {
            return;
        }
        if self.process.host() == 0 {
            if !self.process.sleep(4 * HOST_TIMEOUT.as_nanos() as u64) {
                return;
            }
            pool.tick();
        }
        if self.meet(51, true, pool) && self.meet(52, false, pool) {
            self.expect_living(pool);
        }
        self.meet(53, true, pool);
    }

    /// Nobody is held dead.
    fn expect_living(&self, pool: &SimPool) {
        for host in pool.info().hosts.iter().filter(|host| host.marked_dead) {
            self.oracle.report(Checker::Liveness, format!("host {} is held dead and lives", host.host));
        }
    }

    /// Space and locks are to be had.
    fn use_everything(&self, pool: &SimPool, namespace: &Namespace) {
        let before = pool.counter(Counter::LockTimeouts);
        for number in 0..RECOVERED {
            // A host without space gets some when those that have more tick.
            let published = (0..20).any(|_| {
                let outcome = self.publish(pool, namespace, number);
                self.follow(pool);
                pool.tick();
                outcome != Publish::NoRoom || !self.process.sleep(TICK_NS)
            });
            // A host each of whose chunks has an object in it, which does not leave, gets another from one that has two more.
            // Where chunks are few, nobody may.
            let (others, objects) = (self.shape.hosts as u64 - 1, pool.info().objects);
            let may_starve = objects > 0 && self.shape.chunks <= objects + (objects + 1) * others;
            if !published && !may_starve {
                let fact = format!("no room for block {number} after recovery");
                self.oracle.report_unless_lossy(Checker::Liveness, fact);
            }
        }
        self.count(pool, 0);
        self.count(pool, 1);
        if pool.counter(Counter::LockTimeouts) > before {
            self.oracle.report_unless_lossy(Checker::Liveness, "a lock is not to be had after recovery");
        }
    }

    /// Whatever a host that was taken for dead and went on has done, garbage collection mends it.
    fn mend(&self, pool: &SimPool) {
        for round in 0..2 {
            if self.meet(30 + 2 * round, true, pool) {
                drop(pool.gc());
            }
        }
        if self.meet(36, true, pool) && self.meet(37, false, pool) {
            self.check(pool, true);
        }
        self.meet(38, false, pool);
    }

    /// With nothing going on, what does this host find, and what does it find wrong?
    pub fn inspect(&self) {
        self.check_history();
        let mut pool = None;
        if self.open(&mut pool).is_none() {
            return;
        }
        if let Some(pool) = pool {
            self.look_around(&pool, 20);
            // This host's memory is new: these left since the power came back, to make room for another host.
            self.oracle.notes().left += pool.counter(Counter::Evicted);
        }
    }

    fn now_us(&self) -> u64 {
        1_700_000_000_000_000 + self.process.time() / 1_000
    }

    /// What was recorded long before the power went is on the device: that each host had attached.
    fn check_history(&self) {
        let (now, attached) = (self.now_us(), self.oracle.notes().attached.clone());
        let records = match cenote_pool::history(&self.process.fabric()) {
            Ok(records) => records,
            Err(error) => return self.oracle.report(Checker::History, format!("no history: {error}")),
        };
        for (host, since) in attached {
            let told = records.iter().any(|record| {
                record.event == Event::Attached
                    && usize::from(record.host) == host
                    && (since..now).contains(&record.time_us)
            });
            if !told {
                self.oracle.report_unless_lossy(Checker::History, format!("nothing tells that host {host} attached"));
            }
        }
    }

    /// `first`: number of the first meeting.
    fn look_around(&self, pool: &SimPool, first: u8) {
        if self.meet(first, true, pool) && self.meet(first + 1, false, pool) {
            // Every other look begins with the index: who looks first sees what is stale.
            if self.shape.universe.is_multiple_of(2)
                && let Ok(checked) = pool.check(true)
            {
                self.compare_entries(&checked, !self.oracle.is_lossy());
            }
            // What was pinned is not, once it is let go.
            let hits = pool.lookup(&[self.shape.hash(0)]);
            drop(hits.first().and_then(|hit| pool.pin(hit)));
            // At the first look: a second one may go by what the first has dropped from the caches.
            let picture = picture(pool);
            self.oracle.notes().pictures.push((self.process.host(), picture));
            self.take_stock(pool);
        }
        if self.meet(first + 2, false, pool) {
            self.compare_pictures();
            self.check_history();
            self.check_followed(pool);
            self.check(pool, !self.oracle.is_lossy());
        }
        self.meet(first + 3, false, pool);
        if self.process.host() == 0 {
            self.oracle.notes().pictures.clear();
            self.oracle.notes().entries.clear();
        }
        self.meet(first + 4, false, pool);
    }

    /// All hosts see the same region when nobody changes it.
    fn compare_pictures(&self) {
        // A read that meets a damaged block takes it out.
        if self.oracle.is_lossy() {
            return;
        }
        let pictures = self.oracle.notes().pictures.clone();
        if let [(host, picture), others @ ..] = pictures.as_slice()
            && let Some((other, different)) = others.iter().find(|(_, other)| other != picture)
        {
            let fact = format!("hosts {host} and {other} see different things: {picture} and {different}");
            self.oracle.report(Checker::Index, fact);
        }
    }

    /// Waits until all hosts have come here.
    pub fn meet(&self, place: u8, ticking: bool, pool: &SimPool) -> bool {
        *self.oracle.notes().arrived.entry(place).or_default() += 1;
        for _ in 0..2000 {
            if self.oracle.notes().arrived[&place] == self.shape.hosts {
                return true;
            }
            // A tick could give a chunk away while others still look at what is there.
            if ticking {
                pool.tick();
            }
            self.follow(pool);
            if !self.process.sleep(TICK_NS / 20) {
                return false;
            }
        }
        self.oracle.report_unless_lossy(Checker::Liveness, format!("not all hosts came to meeting {place}"));
        false
    }

    /// Which blocks this host finds and reads whole. A first look may go by a stale line.
    fn take_stock(&self, pool: &SimPool) {
        for number in 0..self.shape.universe.max(RECOVERED) {
            let is_missed = pool.peek(&[self.shape.hash(number)]).is_empty();
            if (0..3).any(|_| self.read(pool, number)) {
                self.oracle.notes().found.push((self.process.host(), number));
                // What a lookup finds may be stale, but what it does not find must not be there.
                if is_missed {
                    let fact = format!("block {number} was there and a lookup missed it");
                    self.oracle.report_unless_lossy(Checker::Index, fact);
                }
            }
        }
        let ready = pool.info().blocks_ready;
        let mut notes = self.oracle.notes();
        let found = notes.found.iter().filter(|(host, _)| *host == self.process.host()).count() as u64;
        notes.duplicates = notes.duplicates.max(ready.saturating_sub(found));
        notes.kept += pool.counter(Counter::EvictionsPinned);
        drop(notes);
        let keys = pool.object_keys();
        for key in ["object 0", "object 1"] {
            self.get_object(pool, key, true);
            if pool.get_object(key).is_ok_and(|bytes| bytes.is_some()) && !keys.iter().any(|known| known == key) {
                self.oracle.report_unless_lossy(Checker::Index, format!("{key} is not among {keys:?}"));
            }
        }
        self.look_at_namespaces(pool);
        self.expect_living(pool);
    }

    /// Rows, labels and limits of all namespaces that anybody opened.
    fn look_at_namespaces(&self, pool: &SimPool) {
        let from = self.oracle.notes().now();
        let rows = pool.info().namespaces;
        let known = self.oracle.notes().namespaces.clone();
        for (label, id) in known {
            let Some(row) = rows.iter().find(|row| row.id.0 == id && row.label == label) else {
                let fact = format!("no row {id} with the label `{label}`: {rows:?}");
                self.oracle.report_unless_lossy(Checker::Index, fact);
                continue;
            };
            if label == "sim" && self.shape.quota_blocks > 0 {
                let over = row.used_bytes.saturating_sub(self.shape.quota_blocks * self.shape.block_bytes);
                let mut notes = self.oracle.notes();
                notes.overshoot = notes.overshoot.max(over);
            }
            let limit = Some(row.quota_bytes).filter(|&bytes| bytes > 0);
            if label != "sim" && !self.oracle.notes().may_be(&label, limit, from, true) {
                let fact = format!("namespace `{label}` has the limit {limit:?}, which was not the last");
                self.oracle.report_unless_lossy(Checker::Index, fact);
            }
        }
    }

    /// Nothing may be lost, nothing may be damaged, where it is `settled` that nobody took the living for dead.
    fn check(&self, pool: &SimPool, settled: bool) {
        let host = self.process.host();
        let report = |checker, fact: String| {
            if settled {
                self.oracle.report(checker, format!("host {host}: {fact}"));
            }
        };
        let checked = match pool.check(true) {
            Ok(checked) => checked,
            Err(error) => return report(Checker::Liveness, format!("check fails: {error}")),
        };
        for finding in &checked.damage {
            report(Checker::Blocks, format!("{}: {}", finding.what, finding.fact));
        }
        for finding in &checked.leaks {
            let checker = if finding.fact.contains("index") { Checker::Index } else { Checker::Allocator };
            report(checker, format!("{}: {}", finding.what, finding.fact));
        }
        if checked.reserved + checked.pinned > 0 {
            let fact = format!("{} reserved and {} pinned when nobody works", checked.reserved, checked.pinned);
            report(Checker::Allocator, fact);
        }
        self.compare_entries(&checked, settled);
    }

    /// All hosts count the same entries, and who leads nowhere, where nobody changes any.
    fn compare_entries(&self, checked: &CheckReport, settled: bool) {
        let host = self.process.host();
        let entries = (checked.index_entries, checked.index_stale);
        let mut notes = self.oracle.notes();
        notes.stale_entries = notes.stale_entries.max(checked.index_stale);
        notes.entries.push((host, entries));
        let (other, others) = notes.entries[0];
        drop(notes);
        if entries != others && settled {
            let fact =
                format!("host {host}: {entries:?} entries and stale ones, and {others:?} as host {other} sees it");
            self.oracle.report(Checker::Index, fact);
        }
    }

    /// The counters under user locks, at the end.
    pub fn audit_counters(&self) {
        let fabric = self.process.fabric();
        let counted = self.oracle.notes().counted.clone();
        for (lock, (begun, finished)) in counted {
            let line = counter_line(lock);
            fabric.refresh(&[line]);
            let value = fabric.load(Offset::new(line));
            if value < finished || value > begun {
                let fact = format!("the counter under lock {lock} is {value}; {finished} of {begun} increments ended");
                self.oracle.report_unless_lossy(Checker::Locks, fact);
            }
        }
    }
}

/// What others call block `number`.
pub const fn names_of(number: usize) -> Names {
    Names { name: number as u64 + 1, parent: number as u64 }
}

/// What a host sees of the region that all hosts should see alike.
fn picture(pool: &SimPool) -> String {
    let info = pool.info();
    let hosts: Vec<_> =
        info.hosts.iter().map(|host| (host.host, host.incarnation, host.workers, host.chunks)).collect();
    let workers: Vec<_> = info.workers.iter().map(|worker| (worker.host, worker.slot, worker.joined)).collect();
    format!(
        "{} chunks, {} blocks, {} objects, hosts {hosts:?}, workers {workers:?}, {:?}",
        info.chunks_taken, info.blocks_ready, info.objects, info.namespaces
    )
}
