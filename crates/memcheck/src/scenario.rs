//! The programs of the simulated processes: publish, read, pin, evict, count under locks, attach
//! and detach. The checks of the pool's state run in them too.

use crate::objects::KEYS;
use crate::oracle::{Checker, Oracle};
use crate::shape::Shape;
use cenote_base::HostId;
use cenote_base::prng::Prng;
use cenote_mem::{Fabric, Offset};
use cenote_memmodel::{Process, SimFabric, SimHost};
use cenote_pool::{
    AttachOptions, CheckReport, ColdBlock, Counter, Design, Event, Hit, LockManager, Names, Namespace, NewBlock, Pool,
    PoolError, Publish, ReadOutcome, Shorter, Strays,
};
use std::sync::Arc;
use std::time::Duration;

pub type SimPool = Pool<SimFabric, SimHost>;

/// Offset of the line with the counter of a user lock. It lies at the end of the superblock's page,
/// which the pool does not use. Each counter has its own line, because a line must have one lock.
const fn counter_line(lock: u8) -> u64 {
    4096 - 64 * (lock as u64 + 1)
}

pub const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// Longer than two lock timeouts: a worker that waits for two locks in turn sends no heartbeat.
const HOST_TIMEOUT: Duration = Duration::from_millis(600);
const QUARANTINE: Duration = Duration::from_millis(100);
/// Number of blocks that every host publishes after the crashes.
pub const RECOVERED: usize = 3;
/// First block number outside the universe, for blocks that the random work never publishes.
pub const UNLIKE: usize = 1000;
/// Encoding byte of blocks that were repacked to one line less.
const SHORT: u8 = 1;
/// Number of operations of a late worker.
const LATE_ROUNDS: u64 = 12;
/// Nanoseconds between two ticks, well below the host timeout.
const TICK_NS: u64 = 100_000_000;

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
            // Runs with a manager have no crashes, but a host may wait for it without a tick for
            // long.
            host_timeout: if self.shape.has_manager() { 100 * HOST_TIMEOUT } else { HOST_TIMEOUT },
            quarantine: QUARANTINE,
            keys: self.shape.keys(),
            ..AttachOptions::named("sim")
        }
    }

    pub fn attach(&self) -> Option<SimPool> {
        let process = self.process.clone();
        let attached = Pool::attach_on(self.process.fabric(), &self.options(), |_, spec| Ok(process.host_memory(spec)));
        match attached {
            Ok(pool) => Some(pool),
            // A lock times out while its crashed holder has not been declared dead.
            Err(PoolError::Lock { .. } | PoolError::WorkersFull { .. }) => None,
            Err(error) => {
                self.oracle.report(Checker::Liveness, format!("attach failed: {error}"));
                None
            }
        }
    }

    fn namespace(&self, pool: &SimPool) -> Option<Namespace> {
        let namespace = self.named(pool, "sim")?;
        if self.shape.quota_blocks > 0 {
            // If the lock times out, there is no quota yet.
            let _ = pool.set_quota(namespace.id, self.shape.quota_blocks * self.shape.block_bytes);
        }
        Some(namespace)
    }

    /// Opens one of several namespaces and sets its quota.
    fn limit(&self, pool: &SimPool, prng: &mut Prng) {
        let label = "other".repeat(1 + prng.below(3) as usize);
        let Some(namespace) = self.named(pool, &label) else { return };
        let bytes = 1 + prng.below(1 << 40);
        let write = self.oracle.notes().begin_write(&label, Some(bytes));
        if pool.set_quota(namespace.id, bytes).is_ok() && self.process.lives(self.process.number()) {
            self.oracle.notes().end_write(&label, write);
        }
    }

    /// Attaches and opens the namespace. Retries until crashed lock holders have been declared
    /// dead.
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
        self.oracle.report_unless_lossy(Checker::Liveness, "attach did not succeed within 40 ticks");
        None
    }

    /// Detaches, and attaches as a new worker.
    fn open_again(&self, pool: &mut Option<SimPool>) -> Option<Namespace> {
        drop(self.held_rows());
        *pool = None;
        self.open(pool)
    }

    /// The program of a worker.
    pub fn work(&self, seed: u64) {
        let mut prng = Prng::at(seed, 100 + self.process.number() as u64);
        if prng.below(3) == 0 && !self.process.sleep(prng.below(3) * 1_000_000) {
            return;
        }
        self.work_on(prng, self.shape.rounds);
    }

    /// The program of a late worker. The other hosts may have declared its host dead. The host
    /// `heir` attaches first and may take over the chunks of dead hosts.
    pub fn come_late(&self, seed: u64, heir: usize) {
        let mut prng = Prng::at(seed, 100 + self.process.number() as u64);
        if self.process.host() != heir {
            let wait = prng.below(16) * TICK_NS;
            if self.process.sleep(wait) {
                self.work_on(prng, LATE_ROUNDS);
            }
            return;
        }
        {
            let mut pool = None;
            let _rows = self.held_rows();
            if self.open(&mut pool).is_none() {
                return;
            }
            if let Some(pool) = &pool {
                self.rest(pool);
            }
        }
        self.work_on(prng, LATE_ROUNDS);
    }

    fn work_on(&self, mut prng: Prng, rounds: u64) {
        let mut pool = None;
        // Dropped before the pool, which frees the rows.
        let _rows = self.held_rows();
        let Some(mut namespace) = self.open(&mut pool) else { return };
        // In shapes with many pins, a new worker pins at once, before other hosts have seen its
        // slot.
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
            // Not in the plain design: the fork loses handles, and their counts would stay raised.
            if self.shape.design == Design::Cenote && self.process.time().is_multiple_of(29) {
                self.fork(open, &namespace, prng.below(self.shape.universe as u64) as usize);
                let Some(again) = self.open_again(&mut pool) else { return };
                namespace = again;
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
                0 if prng.below(3) == 0 => self.publish_several(open, &namespace, &mut prng),
                0 => drop(self.publish(open, &namespace, prng.below(self.shape.universe as u64) as usize)),
                1 => drop(self.read(open, prng.below(self.shape.universe as u64) as usize)),
                2 if prng.below(3) == 0 => self.gather_rows(open, &mut prng),
                2 => self.use_in_place(open, prng.below(self.shape.universe as u64) as usize),
                3 if prng.below(20) == 0 => self.notes_evicted(open.forget(&namespace)),
                3 => self.notes_evicted(open.evict(1 + prng.below(3) as usize)),
                4 => match prng.below(4) {
                    0 | 1 => drop(open.tick()),
                    2 => self.idle(open),
                    _ => self.rest(open),
                },
                5 => self.count(open, prng.below(2) as u8),
                6 => self.object(open, prng.below(2) as u8, &mut prng),
                7 => drop(open.gc()),
                8 if self.shape.has_few_rows() && prng.below(3) > 0 => {
                    // A worker of another model comes.
                    let Some(again) = self.open_again(&mut pool) else { return };
                    namespace = again;
                    self.use_other_model(pool.as_ref().expect("open"), &mut prng);
                }
                8 if prng.below(2) == 0 => drop(open.info()),
                8 => self.limit(open, &mut prng),
                10 => self.shorten(open, &namespace, prng.below(4) == 0),
                11 => self.use_memory(open, &mut prng),
                _ => {
                    let Some(again) = self.open_again(&mut pool) else { return };
                    namespace = again;
                }
            }
        }
        if let Some(pool) = &pool {
            self.look_at_counters(pool);
        }
    }

    /// Sleeps and ticks until crashed hosts have been declared dead and their quarantine has ended.
    /// Then their chunks can be taken over.
    fn rest(&self, pool: &SimPool) {
        for _ in 0..7 {
            if !self.process.sleep(TICK_NS) {
                return;
            }
            pool.tick();
        }
        drop(pool.gc());
    }

    /// Sleeps and ticks for so long that this host offers its chunks to the others.
    pub fn idle(&self, pool: &SimPool) {
        for _ in 0..12 {
            if !self.process.sleep(TICK_NS) {
                return;
            }
            pool.tick();
        }
    }

    /// Records that blocks will be published.
    pub fn notes_published(&self, namespace: &Namespace, number: usize) {
        self.oracle.notes().published.insert((namespace.fingerprint(), number));
    }

    pub fn notes_evicted(&self, count: usize) {
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
        self.notes_published(namespace, number);
        let outcome = match self.process.time() % 9 {
            1 | 4 => self.publish_in_place(pool, namespace, number, &payload),
            0 | 3 | 6 => pool.begin(&NewBlock { names, ..NewBlock::new(namespace, hash, depth) }).map_or_else(
                |outcome| outcome,
                |mut filling| {
                    // One thread may write the pieces and another publish them.
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

    /// Repacks the blocks of the coldest one or two chunks to one line less. With `leave`, blocks
    /// that were repacked before are included; they are evicted.
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

    /// Looks a block up and reads it. Returns whether the read was whole.
    fn read(&self, pool: &SimPool, number: usize) -> bool {
        let hits = pool.lookup(&[self.shape.hash(number)]);
        let Some(hit) = hits.first() else { return false };
        let mut bytes = vec![0; hit.length.min(self.shape.block_bytes) as usize];
        let outcome = pool.read(hit, &mut [&mut bytes]);
        self.process.note(&format!("read {number} ({hit:?}): {outcome:?}"));
        match outcome {
            ReadOutcome::Whole if !self.is_right(hit, number, &bytes) => {
                self.oracle.report(Checker::Blocks, format!("a whole read of block {number} returned wrong bytes"));
            }
            ReadOutcome::Damaged => {
                if pool.strays(hit) == Strays::Never {
                    let fact = format!("the checksum of block {number} does not match: {hit:?}");
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

    /// Whether these bytes are the payload of the block, without its last line if it was repacked.
    fn is_right(&self, hit: &Hit, number: usize, bytes: &[u8]) -> bool {
        let is_short = hit.encoding == SHORT;
        let length = self.shape.block_bytes as usize - if is_short { 64 } else { 0 };
        bytes == &self.shape.payload(number)[..length]
    }

    /// Pins a block, waits, and reads it in place without checks. The pin alone must protect the
    /// bytes.
    fn use_in_place(&self, pool: &SimPool, number: usize) {
        let hits = pool.lookup(&[self.shape.hash(number)]);
        let Some(pin) = hits.first().and_then(|hit| pool.pin(hit)) else { return };
        self.process.note(&format!("pinned {number}: {:?}", pin.hit()));
        let Some((offset, length)) = pin.extent() else { return };
        // Where a host that was declared dead may have written, only bytes that were verified since count.
        if pool.strays(pin.hit()) != Strays::Never && !pin.confirm() {
            return;
        }
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
                self.oracle.report(Checker::Blocks, fact);
            }
        }
        self.oracle.notes().pins += 1;
    }

    /// Increments a counter under a user lock.
    fn count(&self, pool: &SimPool, lock: u8) {
        let Ok(guard) = pool.lock_user(lock.into(), self.shape.lock_timeout()) else { return };
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
                let fact = format!(
                    "process {other} crashed inside lock {lock}, but {number}, the next holder, did not get it as abandoned"
                );
                self.oracle.report_unless_lossy(Checker::Locks, fact);
            }
        }
        // A third of the holders stay for a while, so that a second holder would be detected.
        let now = self.process.time();
        if now.is_multiple_of(3) && !self.process.sleep(now % 7 * 500) {
            return;
        }
        let fabric = pool.fabric();
        let line = counter_line(lock);
        let word = Offset::new(line);
        fabric.refresh(&[line]);
        let value = fabric.load(word);
        // Store around the cache: a dirty line could be written back over another host's count.
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

    /// Runs TraCT's lock manager until the other processes have ended.
    pub fn manage(&self, others: &[usize]) {
        let process = self.process.clone();
        let opened =
            LockManager::open_on(self.process.fabric(), &self.options(), |_, spec| Ok(process.host_memory(spec)));
        let mut manager = match opened {
            Ok(manager) => manager,
            Err(error) => return self.oracle.report(Checker::Liveness, format!("no lock manager: {error}")),
        };
        // Back off while idle. Otherwise the manager's polls would be most of the run.
        let mut pause_ns = 0;
        while others.iter().any(|&other| self.process.lives(other)) {
            let is_idle = manager.round().granted == 0;
            pause_ns = if is_idle { (2 * pause_ns).clamp(1_000_000, 4_000_000) } else { 1_000 };
            if !self.process.sleep(pause_ns) {
                return;
            }
        }
    }

    /// Checks recovery after all crashes: waits until they have been detected, then every operation
    /// must work again.
    pub fn recover(&self) {
        if self.shape.has_late_host()
            && self.shape.late_host == Some(self.process.host())
            && !self.process.sleep(4 * HOST_TIMEOUT.as_nanos() as u64)
        {
            return;
        }
        let mut pool = None;
        let _rows = self.held_rows();
        let now = self.now_us();
        self.oracle.notes().attached.push((self.process.host(), now));
        let Some(namespace) = self.open(&mut pool) else { return };
        let Some(pool) = &pool else { return };
        for _ in 0..10 {
            pool.tick();
            // Restarted hosts log their new incarnation. Later events appear only once.
            self.follow(pool);
            if !self.process.sleep(TICK_NS) {
                return;
            }
        }
        if self.process.is_cut() {
            self.look_around(pool, 0);
            // The blocks found here may be evicted for the blocks published next.
            self.oracle.notes().found.clear();
        }
        if self.oracle.sleepers {
            self.oversleep(pool);
        }
        if self.meet(54, true, pool) && self.process.host() == 0 {
            self.free_all(pool);
        }
        self.meet(55, true, pool);
        // It frees this host's slots of the memory that host 0 has freed.
        pool.tick();
        if self.shape.idle_host != Some(self.process.host()) {
            self.use_everything(pool, &namespace);
            // Evict a block without publishing another.
            self.follow(pool);
            self.notes_evicted(pool.evict(1));
        }
        self.look_around(pool, 10);
        let evicted = pool.counter(Counter::Evicted);
        self.obey(pool);
        self.share_a_limit(pool);
        if self.oracle.sleepers {
            self.mend(pool);
        }
        // Evictions since `look_around` made room for another host.
        self.oracle.notes().left += pool.counter(Counter::Evicted) - evicted;
    }

    /// Lets host 0 sleep until the others have declared it dead. After its next tick all hosts must
    /// see it alive. A host that missed its own mark would keep pins and locks that the others
    /// ignore.
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

    /// Checks that no host is marked dead.
    fn expect_living(&self, pool: &SimPool) {
        for host in pool.info().hosts.iter().filter(|host| host.marked_dead) {
            self.oracle.report(Checker::Liveness, format!("host {} is marked dead but is alive", host.host));
        }
    }

    /// Checks that this host can allocate space and take locks.
    fn use_everything(&self, pool: &SimPool, namespace: &Namespace) {
        let before = pool.counter(Counter::LockTimeouts);
        for number in 0..RECOVERED {
            // A host without space gets a chunk when hosts with more chunks tick.
            let published = (0..20).any(|_| {
                let outcome = self.publish(pool, namespace, number);
                self.follow(pool);
                pool.tick();
                outcome != Publish::NoRoom || !self.process.sleep(TICK_NS)
            });
            // Objects are not evicted. If each chunk of a host holds an object, it gets another
            // chunk only from a host with at least two more. With few chunks no host may have that
            // many.
            let info = pool.info();
            let (others, objects) = (self.shape.hosts as u64 - 1, info.objects + info.memory_slots);
            let may_starve = objects > 0 && self.shape.chunks <= objects + (objects + 1) * others;
            if !published && !may_starve {
                let fact = format!("no room for block {number} after recovery");
                self.oracle.report_unless_lossy(Checker::Liveness, fact);
            }
        }
        self.count(pool, 0);
        self.count(pool, 1);
        if pool.counter(Counter::LockTimeouts) > before {
            self.oracle.report_unless_lossy(Checker::Liveness, "a lock timed out after recovery");
        }
    }

    /// Checks that garbage collection repairs all damage by live hosts that were declared dead.
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

    /// Inspects the pool from this host while no process changes it.
    pub fn inspect(&self) {
        self.check_history();
        let mut pool = None;
        let _rows = self.held_rows();
        if self.open(&mut pool).is_none() {
            return;
        }
        if let Some(pool) = &pool {
            self.look_around(pool, 20);
            // The host's counters are new, so these evictions came after the power cut. They made
            // room for another host.
            self.oracle.notes().left += pool.counter(Counter::Evicted);
        }
    }

    fn now_us(&self) -> u64 {
        1_700_000_000_000_000 + self.process.time() / 1_000
    }

    /// Checks that the flight recorder on the device has the attach of each host.
    fn check_history(&self) {
        let (now, attached) = (self.now_us(), self.oracle.notes().attached.clone());
        let records = match cenote_pool::history(&self.process.fabric()) {
            Ok(records) => records,
            Err(error) => return self.oracle.report(Checker::History, format!("reading the history failed: {error}")),
        };
        for (host, since) in attached {
            let told = records.iter().any(|record| {
                record.event == Event::Attached
                    && usize::from(record.host) == host
                    && (since..now).contains(&record.time_us)
            });
            if !told {
                self.oracle
                    .report_unless_lossy(Checker::History, format!("the history lacks the attach of host {host}"));
            }
        }
    }

    /// Compares the views of all hosts. `first` is the number of its first meeting; it uses five.
    fn look_around(&self, pool: &SimPool, first: u8) {
        if self.meet(first, true, pool) && self.meet(first + 1, false, pool) {
            // In half of the shapes the check comes first, because only the first access finds
            // stale lines.
            if self.shape.universe.is_multiple_of(2)
                && let Ok(checked) = pool.check(true)
            {
                self.compare_entries(&checked, !self.oracle.is_lossy());
            }
            // A dropped pin must not count as pinned in the check below.
            let hits = pool.lookup(&[self.shape.hash(0)]);
            drop(hits.first().and_then(|hit| pool.pin(hit)));
            // Take the summary at the first access. A later one would use lines that the first has
            // invalidated.
            let picture = picture(pool);
            self.oracle.notes().pictures.push((self.process.host(), picture));
            self.take_stock(pool);
            if self.shape.design == Design::Plain {
                // A worker lowers the counts of its last reads when it next takes the lock. A tick
                // could release a chunk.
                drop(pool.check(false));
            }
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

    /// Checks that all hosts see the same region while no process changes it.
    fn compare_pictures(&self) {
        // A read of a damaged block removes the block, so the views may differ.
        if self.oracle.is_lossy() {
            return;
        }
        let pictures = self.oracle.notes().pictures.clone();
        if let [(host, picture), others @ ..] = pictures.as_slice()
            && let Some((other, different)) = others.iter().find(|(_, other)| other != picture)
        {
            let fact = format!("hosts {host} and {other} see different regions: {picture} and {different}");
            self.oracle.report(Checker::Index, fact);
        }
    }

    /// Waits until all hosts have arrived at meeting `place`. Returns false on a timeout or a
    /// crash.
    pub fn meet(&self, place: u8, ticking: bool, pool: &SimPool) -> bool {
        *self.oracle.notes().arrived.entry(place).or_default() += 1;
        for _ in 0..2000 {
            if self.oracle.notes().arrived[&place] == self.shape.hosts {
                return true;
            }
            // A tick may release a chunk, so phases of inspection do not tick.
            if ticking {
                pool.tick();
            }
            self.follow(pool);
            if !self.process.sleep(TICK_NS / 20) {
                return false;
            }
        }
        self.oracle.report_unless_lossy(Checker::Liveness, format!("not all hosts arrived at meeting {place}"));
        false
    }

    /// Records the blocks that this host finds and reads whole. A first read may use a stale line,
    /// so each block has three attempts.
    fn take_stock(&self, pool: &SimPool) {
        for number in 0..self.shape.universe.max(RECOVERED) {
            let is_missed = pool.peek(&[self.shape.hash(number)]).is_empty();
            if (0..3).any(|_| self.read(pool, number)) {
                self.oracle.notes().found.push((self.process.host(), number));
                // A lookup may return a stale hit, but it must not miss a published block.
                if is_missed {
                    let fact = format!("a lookup missed block {number}, which is readable");
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
        for key in KEYS[..2].iter().map(String::as_str) {
            self.get_object(pool, key, true);
            if pool.get_object(key).is_ok_and(|bytes| bytes.is_some()) && !keys.iter().any(|known| known == key) {
                self.oracle
                    .report_unless_lossy(Checker::Index, format!("{key} is not in the list of objects {keys:?}"));
            }
        }
        self.look_at_namespaces(pool);
        self.expect_living(pool);
    }

    /// Runs the pool's check. If `settled`, its findings are violations: no live host was declared
    /// dead, so nothing may be leaked or damaged.
    fn check(&self, pool: &SimPool, settled: bool) {
        let host = self.process.host();
        let report = |checker, fact: String| {
            if settled {
                self.oracle.report(checker, format!("host {host}: {fact}"));
            }
        };
        let checked = match pool.check(true) {
            Ok(checked) => checked,
            Err(error) => return report(Checker::Liveness, format!("check failed: {error}")),
        };
        self.process.note(&format!("checked {:?} {:?}", checked.damage, checked.leaks));
        for finding in &checked.damage {
            report(Checker::Blocks, format!("{}: {}", finding.what, finding.fact));
        }
        for finding in &checked.leaks {
            let checker = if finding.fact.contains("index") { Checker::Index } else { Checker::Allocator };
            report(checker, format!("{}: {}", finding.what, finding.fact));
        }
        if checked.reserved + checked.pinned > 0 {
            let fact =
                format!("{} slots are reserved and {} pinned while no process works", checked.reserved, checked.pinned);
            report(Checker::Allocator, fact);
        }
        self.compare_entries(&checked, settled);
    }

    /// Checks, if `settled`, that all hosts count the same index entries and stale entries.
    fn compare_entries(&self, checked: &CheckReport, settled: bool) {
        let host = self.process.host();
        let entries = (checked.index_entries, checked.index_stale);
        let mut notes = self.oracle.notes();
        notes.stale_entries = notes.stale_entries.max(checked.index_stale);
        notes.entries.push((host, entries));
        let (other, others) = notes.entries[0];
        drop(notes);
        if entries != others && settled {
            let fact = format!(
                "host {host} counts {entries:?} index entries (all, stale), and host {other} counts {others:?}"
            );
            self.oracle.report(Checker::Index, fact);
        }
    }

    /// Checks the counters under user locks at the end of the run.
    pub fn audit_counters(&self) {
        let fabric = self.process.fabric();
        let counted = self.oracle.notes().counted.clone();
        for (lock, (begun, finished)) in counted {
            let line = counter_line(lock);
            fabric.refresh(&[line]);
            let value = fabric.load(Offset::new(line));
            if value < finished || value > begun {
                let fact =
                    format!("the counter under lock {lock} is {value}, but {finished} of {begun} increments completed");
                self.oracle.report_unless_lossy(Checker::Locks, fact);
            }
        }
    }
}

/// The external names of block `number` and its parent, which events carry.
pub const fn names_of(number: usize) -> Names {
    Names { name: number as u64 + 1, parent: number as u64 }
}

/// Summary of the region that must be equal on all hosts.
fn picture(pool: &SimPool) -> String {
    let info = pool.info();
    let hosts: Vec<_> =
        info.hosts.iter().map(|host| (host.host, host.incarnation, host.workers, host.chunks)).collect();
    let workers: Vec<_> = info.workers.iter().map(|worker| (worker.host, worker.slot, worker.joined)).collect();
    format!(
        "{} chunks, {} blocks, {} objects, {} slots of memory, hosts {hosts:?}, workers {workers:?}, {:?}",
        info.chunks_taken, info.blocks_ready, info.objects, info.memory_slots, info.namespaces
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
    use cenote_pool::Superblock;

    #[test]
    fn a_region_has_the_chunks_of_its_shape() {
        for seed in 0..100 {
            let shape = Shape::of_seed(seed);
            let mapping = Mapping::create(&RegionSource::Anon, shape.region_bytes(), 0o600, &MapOptions::default());
            let fabric = Arc::new(Coherent::new(mapping.expect("anonymous memory")));
            Superblock::format(&fabric, &shape.config()).expect("the shape fits");
            let options = AttachOptions { private: true, keys: shape.keys(), ..AttachOptions::named("test") };
            let pool = Pool::attach(fabric, &options).expect("a fresh region attaches");
            assert_eq!(pool.info().num_chunks, shape.chunks, "seed {seed}: {shape:?}");
        }
    }
}
