//! One region, its images, and the run of an input.

use super::change::{Aim, Change, seal_superblock, superblock_words};
use super::format::{LINE, Map, SUPERBLOCK_LINES};
use super::host::{Clock, ThreadHost};
use super::input::Input;
use super::region::Region;
use cenote_base::prng::Prng;
use cenote_base::{BlockHash, HashSeed, HostId};
use cenote_mem::{Fabric, Flush, HostLocal, MapOptions, Mapped, Mapping, Offset, RegionSource};
use cenote_pool::{
    AttachOptions, Design, Follower, Hit, HostsLock, Inspector, LockManager, Namespace, NamespaceRecord, NewBlock, Pin,
    Pool, PoolConfig, PoolError, Publish, ReadOutcome, Superblock,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Most calls of one input.
const STEPS_MAX: u32 = 96;
/// Most calls among them that walk the whole region.
const WALKS_MAX: u32 = 10;
/// Longest time that one call may wait. An administrator's call waits ten seconds for a lock; a
/// call that waits for several in turn must give up at the first or share one deadline.
const WAIT_MAX: Duration = Duration::from_secs(45);
/// Most words, lines and payloads that one call may load. The worlds have about 10,000 lines
/// outside of their payload; a walk that loads each a few times is far below, one that walks a
/// table for every block far above.
const LOADS_MAX: u64 = 80_000;
/// As [`LOADS_MAX`], with TraCT's manager. Each round visits every lock that is given out, and
/// damage may give out a thousand.
const LOADS_MAX_MANAGED: u64 = 10 * LOADS_MAX;
/// Payload bytes of the namespaces' blocks.
const BLOCK_BYTES: [u64; 3] = [1 << 10, 65 * LINE, 16 << 10];
const KEYS: [&str; 4] =
    ["root", "weights/index", "table", "a key of fifty-six bytes, which is the longest there can be"];
const HOSTS_MAX: u8 = 3;

type TestPool<H = ThreadHost> = Pool<Arc<Region>, H>;

/// Kind of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One host, coherent.
    OneHost,
    /// Three hosts with a flush instruction, and the bakery.
    Bakery,
    /// Three hosts with TraCT's lock manager.
    Manager,
    /// Three hosts with the bakery, in TraCT's plain design.
    Plain,
}

/// The flush instruction in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushing {
    /// The processor's.
    Real,
    /// None: all hosts of a world are one process, which needs none, and instructions are slow.
    Pretended,
}

/// A region in anonymous memory, and the images that it starts from.
pub struct World {
    kind: Kind,
    region: Arc<Region>,
    images: Vec<Vec<[u64; 8]>>,
    /// The image that the region began with.
    current: Cell<Option<u8>>,
}

thread_local! {
    /// The manager that grants locks while a call waits, because there is one thread.
    static MANAGER: RefCell<Option<LockManager<Arc<Region>, ThreadHost>>> = const { RefCell::new(None) };
}

/// A round of the manager, if there is one.
pub(crate) fn grant_locks() {
    MANAGER.with(|manager| {
        if let Ok(mut manager) = manager.try_borrow_mut()
            && let Some(manager) = manager.as_mut()
        {
            manager.round();
        }
    });
}

fn appoint_manager(manager: Option<LockManager<Arc<Region>, ThreadHost>>) {
    let old = MANAGER.with(|place| std::mem::replace(&mut *place.borrow_mut(), manager));
    drop(old);
}

impl World {
    /// A world of this kind; `None` if the processor lacks a flush instruction that it needs.
    ///
    /// # Panics
    /// There is no memory, or an intact region does not work.
    #[must_use]
    pub fn new(kind: Kind, flushing: Flushing) -> Option<Self> {
        let flush = if kind == Kind::OneHost { Flush::None } else { Flush::best()? };
        let config = PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: 1 << 10,
            max_hosts: if kind == Kind::OneHost { 2 } else { HOSTS_MAX },
            workers_per_host: 4,
            hazard_lines_per_worker: 2,
            records_per_host: 16,
            events_per_host: 16,
            hosts_lock: if kind == Kind::Manager { HostsLock::Manager } else { HostsLock::Bakery },
            design: if kind == Kind::Plain { Design::Plain } else { Design::Cenote },
            ..PoolConfig::new(HashSeed([7; 32]), *b"a region to hurt")
        };
        let bytes = if kind == Kind::OneHost { 896 << 10 } else { 1472 << 10 };
        let mapping =
            Mapping::create(&RegionSource::Anon, bytes, 0o600, &MapOptions::default()).expect("anonymous memory");
        let instruction = if flushing == Flushing::Real { flush } else { Flush::None };
        let mapped = Mapped::new(mapping, instruction).expect("the flush instruction was asked for");
        let mut region = Region::new(mapped, flush);
        Superblock::format(&region, &config).expect("the configuration fits");
        region.set_map(Map::of(&superblock_words(&region)));
        let mut world = Self { kind, region: Arc::new(region), images: Vec::new(), current: Cell::new(None) };
        world.populate();
        Some(world)
    }

    /// Makes the images: after all processes died in the middle, and after they left.
    fn populate(&mut self) {
        let mut run = Run::new(self);
        let hosts = run.hosts.len();
        for host in 0..hosts {
            run.attach(host, true).expect("a fresh region attaches");
            if self.kind == Kind::Manager && host == 0 {
                run.appoint_manager();
            }
        }
        for host in 0..hosts {
            for (class, blocks) in [(0, 60), (1, 12), (2, 4)] {
                for prompt in 0..blocks {
                    run.publish(host, class, (prompt + host as u32) % 64, 0);
                }
            }
            run.lookup(host, 0, host as u32, 4, true);
        }
        for (key, length) in [(0, 5), (1, 4000), (2, 9000)] {
            run.put(0, key, length, 1);
        }
        let crashed = self.region.image();
        appoint_manager(None);
        drop(run);
        self.images = vec![crashed, self.region.image()];
    }

    /// Replaces the region by the image of a crash (0) or of an orderly end (1).
    pub(crate) fn restore(&self, image: u8) {
        let last = self.current.replace(Some(image));
        self.region.restore(&self.images[usize::from(image)], last != Some(image));
    }

    /// Runs an input.
    ///
    /// # Panics
    /// The pool broke a rule.
    pub fn run(&mut self, input: &[u8]) {
        let mut input = Input::new(input);
        let choices = input.byte();
        self.restore(choices & 1);
        for _ in 0..choices >> 5 {
            self.region.change(&Change::draw(&mut input, self.region.map(), Aim::Control));
        }
        let mut run = Run::new(self);
        run.attach_named(0, true);
        if self.kind == Kind::Manager && choices & 2 == 0 {
            run.appoint_manager();
        }
        for _ in 0..STEPS_MAX {
            if input.is_spent() {
                break;
            }
            run.step(&mut input);
        }
        run.finish(choices & 0x0c == 0x0c);
    }
}

/// Opens a region with an input's changes, the superblock's first.
///
/// # Panics
/// The pool broke a rule.
pub fn attach(world: &World, input: &[u8]) {
    let mut input = Input::new(input);
    let choices = input.byte();
    let region = &world.region;
    world.restore(choices & 1);
    if choices & 2 == 0 {
        for _ in 0..choices >> 4 {
            region.change(&Change::draw(&mut input, region.map(), Aim::Superblock));
        }
    } else {
        // The superblock and the following areas, as the input changed them.
        let changed = input.rest();
        for (at, bytes) in (0..region.len()).step_by(8).zip(changed.chunks(8)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            region.store(Offset::new(at), region.load(Offset::new(at)) ^ u64::from_le_bytes(word));
        }
        if choices & 4 == 0 && changed.len() as u64 <= SUPERBLOCK_LINES * LINE {
            seal_superblock(&**region);
        }
    }
    let Ok(superblock) = Superblock::read(&**region).inspect_err(show) else { return };
    let options = AttachOptions { private: true, host: HostId(choices >> 3 & 3), ..AttachOptions::named("opened") };
    if superblock.flush.is_coherent() {
        // With the host-local memory of production.
        if let Ok(pool) = Pool::attach(Arc::clone(region), &options).inspect_err(show) {
            use_once(&pool);
        }
    } else {
        let clock = Clock::default();
        let attached =
            Pool::attach_on(Arc::clone(region), &options, |_, spec| Ok(ThreadHost::new(spec, clock.clone())));
        if let Ok(pool) = attached.inspect_err(show) {
            use_once(&pool);
        }
    }
}

/// Calls of all kinds.
fn use_once<H: HostLocal>(pool: &TestPool<H>) {
    if let Ok(namespace) = pool.namespace(&record(0, 0)).inspect_err(show) {
        let hashes = chain(&namespace, 1, 2);
        for hit in pool.lookup(&hashes) {
            read(pool, &hit);
            drop(pool.pin(&hit));
        }
        let bytes = payload(hashes[1], namespace.block_bytes);
        if pool.publish(&NewBlock::new(&namespace, hashes[1], 1), &[&bytes]) == Publish::Published {
            pool.lookup(&hashes[1..]).iter().for_each(|hit| {
                read(pool, hit);
            });
        }
    }
    let _ = pool.get_object(KEYS[0]).inspect_err(show);
    let mut follower = Follower::default();
    let _ = (pool.follow(&mut follower).inspect_err(show), pool.follow(&mut follower));
    let _ = (pool.check(true).inspect_err(show), pool.gc().inspect_err(show), pool.tick(), pool.info());
}

/// An error must have a text.
fn show(error: &PoolError) {
    let _ = error.to_string();
}

fn record(fingerprint: u8, class: usize) -> NamespaceRecord {
    NamespaceRecord {
        fingerprint: [fingerprint + 1; 32],
        label: format!("model {fingerprint}"),
        block_bytes: BLOCK_BYTES[class],
        block_tokens: 16,
        num_layers: 2,
    }
}

fn chain(namespace: &Namespace, prompt: u32, blocks: u32) -> Vec<BlockHash> {
    let tokens: Vec<u32> = (0..blocks * 16).map(|token| token ^ (prompt << 12)).collect();
    namespace.hasher.chain(&tokens, 16)
}

/// The bytes for a seed.
fn bytes_of(seed: u64, length: u64) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    let mut bytes = vec![0; length as usize];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&prng.next_u64().to_le_bytes()[..part.len()]));
    bytes
}

/// The payload for a hash.
fn payload(hash: BlockHash, length: u64) -> Vec<u8> {
    bytes_of(hash.words()[0], length)
}

/// The object of a key. Its first byte is its version, so that each identifies itself.
fn object(key: usize, length: u64, version: u8) -> Vec<u8> {
    let mut bytes = bytes_of(key as u64 | length << 8 | u64::from(version) << 40, length);
    if let Some(first) = bytes.first_mut() {
        *first = version;
    }
    bytes
}

/// Reads a block and asserts that a whole one is right.
fn read<H: HostLocal>(pool: &TestPool<H>, hit: &Hit) -> ReadOutcome {
    let mut bytes = vec![0; hit.length as usize];
    let (left, right) = bytes.split_at_mut(hit.length as usize / 128 * 64);
    let outcome = pool.read(hit, &mut [left, right]);
    if outcome == ReadOutcome::Whole {
        assert!(bytes == payload(hit.hash, hit.length), "a whole read returned other bytes than were published");
    }
    outcome
}

struct Host {
    /// The host's memory, once there is some.
    area: Option<ThreadHost>,
    pool: Option<TestPool>,
    worker: Worker,
}

/// Attachment of a pool or a pin. A worker lives, and keeps its slot, as long as one of its pins
/// does.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Worker {
    /// Number of its host memory, over all hosts.
    memory: u64,
    /// Number of its attachment, over all hosts.
    number: u64,
}

/// The run of one input.
pub(crate) struct Run {
    kind: Kind,
    pub region: Arc<Region>,
    clock: Clock,
    hosts: Vec<Host>,
    pins: Vec<(Worker, Pin<Arc<Region>, ThreadHost>)>,
    attached: u64,
    hits: Vec<Hit>,
    follower: Follower,
    walks_left: u32,
}

impl Run {
    pub fn new(world: &World) -> Self {
        let hosts = if world.kind == Kind::OneHost { 1 } else { usize::from(HOSTS_MAX) };
        let clock = Clock::default();
        clock.advance(Duration::from_secs(1000));
        Self {
            kind: world.kind,
            region: Arc::clone(&world.region),
            clock,
            hosts: (0..hosts).map(|_| Host { area: None, pool: None, worker: Worker::default() }).collect(),
            pins: Vec::new(),
            attached: 0,
            hits: Vec::new(),
            follower: Follower::default(),
            walks_left: WALKS_MAX,
        }
    }

    fn attach(&mut self, host: usize, fresh: bool) -> Result<(), PoolError> {
        self.hosts[host].pool = None;
        self.attached += 1;
        let kept = self.hosts[host].area.take().filter(|_| !fresh);
        let mut worker = Worker { number: self.attached, ..self.hosts[host].worker };
        let options = AttachOptions { host: HostId(host as u8), ..AttachOptions::named("hurt") };
        let pool = Pool::attach_on(Arc::clone(&self.region), &options, |_, spec| {
            let kept = kept.filter(|area| area.spec() == spec);
            if kept.is_none() {
                worker.memory = worker.number;
            }
            let area = kept.unwrap_or_else(|| ThreadHost::new(spec, self.clock.clone()));
            self.hosts[host].area = Some(area.clone());
            Ok(area)
        });
        self.hosts[host].worker = worker;
        let pool = pool?;
        self.hosts[host].pool = Some(pool);
        Ok(())
    }

    pub fn attach_named(&mut self, host: usize, fresh: bool) {
        let attached = self.timed("attach", |run| run.attach(host, fresh));
        if let Err(PoolError::WorkersFull { slots, .. }) = attached {
            // No bytes of a region may keep a process out: only living workers have slots.
            let memory = self.hosts[host].worker.memory;
            let living: BTreeSet<Worker> =
                self.pins.iter().map(|(worker, _)| *worker).filter(|worker| worker.memory == memory).collect();
            assert_eq!(living.len() as u64, slots, "attach: all slots are taken, but not by as many living workers");
            return;
        }
        self.permit("attach", attached);
    }

    /// On one host, no content of a region may make a call fail, because no other host can hold a
    /// lock. Between hosts a lock may seem taken.
    fn permit<T>(&self, what: &str, result: Result<T, PoolError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(PoolError::Lock { .. }) if self.kind != Kind::OneHost => None,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    /// Asserts that a call does not wait for long.
    pub fn timed<T>(&mut self, what: &str, call: impl FnOnce(&mut Self) -> T) -> T {
        self.timed_within(what, WAIT_MAX, call)
    }

    pub fn timed_within<T>(&mut self, what: &str, wait_max: Duration, call: impl FnOnce(&mut Self) -> T) -> T {
        let (start, loads) = (self.clock.waited(), self.region.loads());
        let value = call(self);
        let (waited, loads) = (self.clock.waited().saturating_sub(start), self.region.loads() - loads);
        assert!(waited <= wait_max, "{what} waited for {waited:?}");
        let loads_max = if self.kind == Kind::Manager { LOADS_MAX_MANAGED } else { LOADS_MAX };
        // A waiter loads repeatedly.
        assert!(loads <= loads_max || waited > Duration::from_secs(1), "{what} looked at {loads} words and lines");
        value
    }

    pub fn pool(&self, host: usize) -> Option<TestPool> {
        self.hosts[host].pool.clone()
    }

    fn appoint_manager(&self) {
        let options = AttachOptions { host: HostId(0), ..AttachOptions::named("manager") };
        let manager = LockManager::open_on(Arc::clone(&self.region), &options, |_, spec| {
            let area = self.hosts[0].area.clone().filter(|area| area.spec() == spec);
            Ok(area.unwrap_or_else(|| ThreadHost::new(spec, self.clock.clone())))
        });
        appoint_manager(manager.inspect_err(show).ok());
    }

    fn namespace(&self, host: usize, fingerprint: u8, class: usize) -> Option<(TestPool, Namespace)> {
        let pool = self.pool(host)?;
        // A row of another block size, or a full table, makes the region unusable for this model.
        let namespace = pool.namespace(&record(fingerprint, class)).inspect_err(show).ok()?;
        Some((pool, namespace))
    }

    pub fn publish(&mut self, host: usize, class: usize, prompt: u32, depth: u32) {
        let Some((pool, namespace)) = self.namespace(host, class as u8, class) else { return };
        let hash = *chain(&namespace, prompt, depth + 1).last().expect("one at least");
        let bytes = payload(hash, namespace.block_bytes);
        let (left, right) = bytes.split_at(bytes.len() / 128 * 64);
        let _ = pool.publish(&NewBlock::new(&namespace, hash, depth), &[left, right]);
    }

    /// Makes the next holder of one of a host's own locks believe that its last one died.
    #[cfg(test)]
    pub fn abandon_lock(&self, host: usize, index: u64) {
        self.hosts[host].area.as_ref().expect("it attached").abandon(index);
    }

    pub fn lookup(&mut self, host: usize, class: usize, prompt: u32, blocks: u32, pin: bool) {
        let Some((pool, namespace)) = self.namespace(host, class as u8, class) else { return };
        for hit in pool.lookup(&chain(&namespace, prompt, blocks)) {
            read(&pool, &hit);
            if pin && self.pins.len() < 8 {
                let worker = self.hosts[host].worker;
                self.pins.extend(pool.pin(&hit).map(|pin| (worker, pin)));
            }
            self.hits.push(hit);
        }
        if self.hits.len() > 16 {
            self.hits.drain(..8);
        }
    }

    pub fn put(&mut self, host: usize, key: usize, length: u64, version: u8) {
        let Some(pool) = self.pool(host) else { return };
        let _ = pool.put_object(KEYS[key], &object(key, length, version)).inspect_err(show);
    }

    fn get(&mut self, host: usize, key: usize) {
        let Some(pool) = self.pool(host) else { return };
        let Ok(Some(bytes)) = pool.get_object(KEYS[key]) else { return };
        let version = bytes.first().copied().unwrap_or(0);
        assert!(bytes == object(key, bytes.len() as u64, version), "an object has other bytes than were put");
    }

    fn step(&mut self, input: &mut Input<'_>) {
        self.clock.advance(Duration::from_millis(1));
        let what = input.byte();
        let host = usize::from(what >> 6) % self.hosts.len();
        self.timed(&format!("call {}", what & 0x3f), |run| run.call(what & 0x3f, host, input));
    }

    fn call(&mut self, what: u8, host: usize, input: &mut Input<'_>) {
        let map = *self.region.map();
        match what {
            0..=7 => {
                let (class, prompt) = (input.below(3) as usize, input.below(80) as u32);
                self.lookup(host, class, prompt, 1 + u32::from(what & 1), what & 2 != 0);
            }
            8..=17 => {
                let (class, prompt) = (input.below(3) as usize, input.below(200) as u32);
                self.publish(host, class, prompt, u32::from(what & 1));
            }
            18 | 19 => {
                if let Some(pool) = self.pool(host) {
                    pool.evict(input.below(70) as usize);
                }
            }
            20..=22 => {
                let (key, length) = (input.below(4) as usize, input.below(70_000));
                self.put(host, key, length, input.byte());
            }
            23 => self.get(host, input.below(4) as usize),
            24 => {
                if let Some(pool) = self.pool(host) {
                    let _ = pool.destroy_object(KEYS[input.below(4) as usize]).inspect_err(show);
                }
            }
            25 => {
                let (fingerprint, class) = (input.byte() % 8, input.below(3) as usize);
                let _ = self.namespace(host, fingerprint, class);
            }
            26 => {
                if let (Some(hit), Some(pool)) = (self.hits.last().copied(), self.pool(host)) {
                    read(&pool, &hit);
                }
            }
            27 => {
                let pin = self.pins.pop();
                if let (Some((_, pin)), Some(pool)) = (&pin, self.pool(host)) {
                    read(&pool, pin.hit());
                }
            }
            28..=33 => self.walk(what, host, input),
            34 => self.clock.advance(Duration::from_secs(input.byte().into())),
            35 => {
                if let Some(area) = &self.hosts[host].area {
                    area.abandon(input.byte().into());
                }
            }
            36 => {
                if let Some(pool) = self.pool(host) {
                    let _ = pool.lock_user(u16::from(input.byte() % 8), Duration::from_secs(1)).inspect_err(show);
                }
            }
            37 => {
                if let Some(pool) = self.pool(host) {
                    let _ = pool.fence_host(HostId(input.byte() % 5)).inspect_err(show);
                }
            }
            38 => {
                if let Some(pool) = self.pool(host) {
                    pool.tick();
                }
            }
            39..=44 => {
                let loads = input.below(1 << 12);
                self.region.change_after(loads, Change::draw(input, &map, Aim::Control));
            }
            _ => self.region.change(&Change::draw(input, &map, Aim::Control)),
        }
    }

    /// Calls that walk the whole region.
    fn walk(&mut self, what: u8, host: usize, input: &mut Input<'_>) {
        if self.walks_left == 0 {
            return;
        }
        self.walks_left -= 1;
        match what {
            28 => return self.attach_named(host, false),
            29 => return self.attach_named(host, true),
            _ => {}
        }
        let Some(pool) = self.pool(host) else { return };
        match what {
            30 if input.chance(128) => drop(self.permit("check", pool.check(input.chance(128)))),
            30 => self.inspect(host, input.chance(128)),
            31 => drop(self.permit("gc", pool.gc())),
            32 if input.chance(128) => drop((pool.info(), cenote_pool::history(pool.fabric()))),
            32 => drop(pool.follow(&mut self.follower).inspect_err(show)),
            _ => {
                pool.tick();
                // After all heartbeats have stood still, every host looks again.
                self.clock.advance(Duration::from_secs(11));
                pool.tick();
            }
        }
    }

    /// Checks the region from outside, as `cenote pool check` does.
    fn inspect(&self, host: usize, payloads: bool) {
        let options = AttachOptions { private: true, host: HostId(host as u8), ..AttachOptions::named("inspector") };
        let Ok(inspector) = Inspector::open(&self.region, &options).inspect_err(show) else { return };
        drop((inspector.info(), inspector.namespaces()));
        // With several hosts it would wait in real time for those that may live.
        if self.region.flush().is_coherent() {
            drop(inspector.check(payloads));
        }
    }

    /// After any change, the region can be repaired (if `clean`) and left.
    pub fn finish(mut self, clean: bool) {
        self.region.calm();
        self.pins.clear();
        self.hits.clear();
        for host in (0..self.hosts.len()).filter(|_| clean) {
            let Some(pool) = self.pool(host) else { continue };
            let _ = pool.info();
            let collected = self.timed("gc", |_| pool.gc());
            let collected = self.permit("gc", collected).is_some();
            let checked = self.timed("check", |_| pool.check(true));
            let checked = self.permit("check", checked);
            if let Some(report) = checked.filter(|_| collected && self.kind == Kind::OneHost) {
                // A pinned block stays.
                assert!(report.leaks.is_empty() || report.pinned > 0, "gc leaves leaks: {report:?}");
            }
            self.timed("publish", |run| run.publish(host, 0, 900, 0));
            self.timed("lookup", |run| run.lookup(host, 0, 900, 1, false));
        }
        appoint_manager(None);
        for host in 0..self.hosts.len() {
            self.timed("leave", |run| run.hosts[host].pool = None);
        }
    }
}
