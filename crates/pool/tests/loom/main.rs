//! Memory that processes of one host share beside the region, explored in every order in which they
//! may see it: free lists and the owners of slots, recency, counters, and the generations with
//! dropped stale lines. The pool's own code runs over loom's atomics and locks, with a small region
//! of plain memory (`world.rs`).
//!
//! Exploration is bounded: two preemptions, or one if a process dies
//! (docs/evidence/testing.md#loom). Deaths are not drawn but enumerated: a process lives for one
//! step, then for two, and so on, until it ends by itself. A step is a use of a word or a store to
//! the region.
//!
//! Each test lists the mistakes that it detects. One mistake is undetected and harmless: seen
//! generations may be stored relaxed, because the fence of the drop precedes the store. Shared
//! state in the region itself (words of lines, payload) is explored on the cache-line model
//! instead.

mod world;

use cenote_base::prng::Prng;
use cenote_base::{BlockHash, HashSeed, HostId};
use cenote_mem::{Flush, conformance};
use cenote_pool::{
    AttachOptions, CheckReport, Counter, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, Publish, ReadOutcome,
    Superblock,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use world::{Life, LoomFabric, LoomHost, live};

type LoomPool = Pool<LoomFabric, LoomHost>;

const BLOCK_BYTES: u64 = 64;
const CHUNK_BYTES: u64 = 64 << 10;

/// A region and its hosts.
struct Region {
    fabric: LoomFabric,
    hosts: Vec<(LoomFabric, LoomHost)>,
}

impl Region {
    /// A region of one chunk, or, with a second for objects, two; each has two slots.
    fn new(chunks: u64, flush: Flush) -> Self {
        let config = PoolConfig {
            chunk_bytes: CHUNK_BYTES,
            min_block_bytes: CHUNK_BYTES / 2,
            max_hosts: 2,
            workers_per_host: 3,
            hazard_lines_per_worker: 1,
            // Records change nothing here, and each doubles the orders to explore.
            records_per_host: 0,
            events_per_host: 0,
            ..PoolConfig::new(HashSeed([7; 32]), [9; 16])
        };
        let fabric = LoomFabric::new(CONTROL_BYTES + chunks * CHUNK_BYTES, flush);
        Superblock::format(&fabric, &config).expect("the configuration fits");
        Self { fabric, hosts: Vec::new() }
    }

    /// One more worker of an existing host, or of the next.
    fn attach(&mut self, host: usize, life: &Arc<Life>) -> LoomPool {
        let options = AttachOptions { host: HostId(host as u8), ..AttachOptions::named("loom") };
        let known = self.hosts.get(host).map(|(fabric, _)| fabric.clone());
        let fabric = known.unwrap_or_else(|| self.fabric.as_of_host(host));
        live(life);
        let pool = Pool::attach_on(fabric.clone(), &options, |_, spec| {
            if self.hosts.len() == host {
                self.hosts.push((fabric, LoomHost::new(spec)));
            }
            Ok(self.hosts[host].1.clone())
        });
        live(&Life::long());
        let pool = pool.expect("it attaches");
        // Workers publish only in namespaces that they have opened.
        namespace(&pool);
        pool
    }
}

/// Control areas of these regions take less than this, and almost as much.
const CONTROL_BYTES: u64 = 384 << 10;

fn namespace(pool: &LoomPool) -> Namespace {
    let record = NamespaceRecord {
        fingerprint: [1; 32],
        label: "loom".to_owned(),
        block_bytes: BLOCK_BYTES,
        block_tokens: 16,
        num_layers: 1,
    };
    pool.namespace(&record).expect("the table has room")
}

fn hash(number: u64) -> BlockHash {
    let mut prng = Prng::new(number + 1);
    BlockHash::from_words([prng.next_u64(), prng.next_u64()])
}

fn payload(number: u64) -> [u8; BLOCK_BYTES as usize] {
    [number as u8 + 1; BLOCK_BYTES as usize]
}

fn publish(pool: &LoomPool, namespace: &Namespace, number: u64) -> Publish {
    pool.publish(&NewBlock::new(namespace, hash(number), 0), &[&payload(number)])
}

/// `None`: the block is not there.
fn read(pool: &LoomPool, number: u64) -> Option<ReadOutcome> {
    let hits = pool.lookup(&[hash(number)]);
    let mut bytes = [0; BLOCK_BYTES as usize];
    let outcome = pool.read(hits.first()?, &mut [&mut bytes]);
    assert!(outcome != ReadOutcome::Whole || bytes == payload(number), "another block's bytes");
    Some(outcome)
}

fn is_there(pool: &LoomPool, number: u64) -> bool {
    read(pool, number) == Some(ReadOutcome::Whole)
}

/// Checks a region that no process uses.
fn check(pool: &LoomPool) -> CheckReport {
    let report = pool.check(true).expect("the heap is free");
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.reserved, report.pinned, report.draining), (0, 0, 0), "{report:?}");
    assert_eq!(report.slots, report.free + report.ready + report.objects, "{report:?}");
    report
}

/// Runs a model in all orders with at most this many preemptions; returns the number of runs.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) -> u64 {
    explore_some(preemptions, usize::MAX, model)
}

/// As [`explore`], in the first orders only.
fn explore_some(preemptions: usize, orders: usize, model: impl Fn() + Send + Sync + 'static) -> u64 {
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 1_000_000;
    builder.preemption_bound = Some(preemptions);
    builder.max_permutations = Some(orders);
    builder.expect_explicit_explore = true;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    runs.load(Ordering::Relaxed)
}

/// Runs both at the same time.
fn race(region: &LoomFabric, left: impl FnOnce() + 'static, right: impl FnOnce() + 'static) {
    region.watch_uses(true);
    loom::explore();
    let left = loom::thread::spawn(left);
    let right = loom::thread::spawn(right);
    left.join().expect("no panic");
    right.join().expect("no panic");
    loom::stop_exploring();
    region.watch_uses(false);
}

fn publisher(pool: &LoomPool, life: Arc<Life>, namespace: &Namespace, number: u64) -> impl FnOnce() + 'static {
    let (pool, namespace) = (pool.clone(), namespace.clone());
    move || {
        live(&life);
        life.count();
        let published = publish(&pool, &namespace, number);
        assert!(life.is_over() || published == Publish::Published, "{published:?}");
    }
}

/// A full region of one host, with this many workers: blocks 1 and 2 are there, and older than what
/// comes next.
fn full(workers: usize, lives: &[Arc<Life>]) -> (Vec<LoomPool>, Namespace) {
    let mut region = Region::new(1, Flush::None);
    let lives = lives.iter().cloned().chain(std::iter::repeat_with(Life::long)).take(workers);
    let pools: Vec<LoomPool> = lives.map(|life| region.attach(0, &life)).collect();
    let last = pools.last().expect("there is one");
    let namespace = namespace(last);
    for number in [1, 2] {
        assert_eq!(publish(last, &namespace, number), Publish::Published);
    }
    assert!(!is_there(last, 0), "a lookup moves the clock");
    (pools, namespace)
}

/// Detects: a reservation without the heap lock; counters that are loaded and stored.
#[test]
fn two_publishers_get_two_slots() {
    let runs = explore(2, || {
        let mut region = Region::new(1, Flush::None);
        let pools = [(); 2].map(|()| region.attach(0, &Life::long()));
        let namespace = namespace(&pools[0]);
        race(
            pools[0].fabric(),
            publisher(&pools[0], Life::long(), &namespace, 1),
            publisher(&pools[1], Life::long(), &namespace, 2),
        );
        let report = check(&pools[0]);
        assert_eq!((report.ready, report.slots), (2, 2));
        assert!(is_there(&pools[0], 1) && is_there(&pools[1], 2));
        assert_eq!(pools[0].counter(Counter::Published), 2);
    });
    assert!(runs > 20, "{runs} orders");
}

/// Detects: an entry inserted beside another with its hash.
#[test]
fn of_one_block_that_two_publish_one_stays() {
    let runs = explore(2, || {
        let mut region = Region::new(1, Flush::None);
        let pools = [(); 2].map(|()| region.attach(0, &Life::long()));
        let ns = namespace(&pools[0]);
        let twin = |pool: &LoomPool| {
            let (pool, ns) = (pool.clone(), ns.clone());
            move || assert_ne!(publish(&pool, &ns, 1), Publish::NoRoom)
        };
        race(pools[0].fabric(), twin(&pools[0]), twin(&pools[1]));
        let report = check(&pools[0]);
        assert_eq!((report.ready, report.free), (1, 1));
        assert_eq!((pools[0].counter(Counter::Published), pools[0].counter(Counter::Duplicates)), (1, 1));
    });
    assert!(runs > 20, "{runs} orders");
}

/// Detects: `PUBLISHED` stored relaxed by its publisher, or loaded relaxed by an evictor, or stored
/// before the word of recency: then a new block is taken for the slot's earlier one.
#[test]
fn a_new_block_is_not_the_oldest() {
    let runs = explore(2, || {
        let (pools, namespace) = full(2, &[]);
        race(
            pools[0].fabric(),
            publisher(&pools[0], Life::long(), &namespace, 3),
            publisher(&pools[1], Life::long(), &namespace, 4),
        );
        let report = check(&pools[0]);
        assert_eq!((report.ready, pools[0].counter(Counter::Evicted)), (2, 2));
        assert!(is_there(&pools[0], 3) && is_there(&pools[1], 4), "an older one had to leave");
    });
    assert!(runs > 20, "{runs} orders");
}

/// Detects: a reservation that is marked only after the heap lock was released.
#[test]
fn blocks_being_written_are_not_collected() {
    let runs = explore(2, || {
        let mut region = Region::new(1, Flush::None);
        let pools = [(); 2].map(|()| region.attach(0, &Life::long()));
        let namespace = namespace(&pools[0]);
        let collector = pools[1].clone();
        race(pools[0].fabric(), publisher(&pools[0], Life::long(), &namespace, 1), move || {
            assert_eq!(collector.gc().expect("no lock is busy for ever").blocks_freed, 0);
        });
        assert!(is_there(&pools[0], 1));
        assert_eq!(publish(&pools[0], &namespace, 2), Publish::Published);
        assert_eq!(check(&pools[0]).ready, 2);
        assert!(is_there(&pools[0], 1) && is_there(&pools[0], 2));
    });
    assert!(runs > 20, "{runs} orders");
}

/// Detects: a read that does not look at the descriptor again.
#[test]
fn a_concurrent_hit_keeps_its_block_or_misses() {
    let runs = explore(2, || {
        let (pools, namespace) = full(2, &[]);
        let reader = pools[1].clone();
        race(pools[0].fabric(), publisher(&pools[0], Life::long(), &namespace, 3), move || {
            let outcome = read(&reader, 1);
            assert_ne!(outcome, Some(ReadOutcome::Damaged));
        });
        assert_eq!(check(&pools[0]).ready, 2);
        assert!(is_there(&pools[0], 3));
        let left: Vec<u64> = [1, 2].into_iter().filter(|&number| is_there(&pools[0], number)).collect();
        assert_eq!(left.len(), 1);
    });
    assert!(runs > 20, "{runs} orders");
}

/// Detects: seen generations loaded relaxed, or stored before the drop of stale lines.
///
/// Two processes of a host read a block that another host has published, while their caches hold
/// older lines.
#[test]
fn no_process_reads_stale_payload_lines() {
    let runs = explore(2, || {
        let mut region = Region::new(1, Flush::ClflushOpt);
        let owner = region.attach(0, &Life::long());
        let readers = [(); 2].map(|()| region.attach(1, &Life::long()));
        let namespace = namespace(&owner);
        assert_eq!(publish(&owner, &namespace, 1), Publish::Published);
        let [left, right] = readers.each_ref().map(|pool| {
            let pool = pool.clone();
            move || assert_eq!(read(&pool, 1), Some(ReadOutcome::Whole))
        });
        race(owner.fabric(), left, right);
        assert_eq!((readers[0].counter(Counter::Reads), readers[0].counter(Counter::ReadsDamaged)), (2, 0));
    });
    assert!(runs > 20, "{runs} orders");
}

/// The same while the slot is reused, so that lines that one process dropped are stale when the
/// other reads.
#[test]
fn a_sweep_is_for_one_use_of_a_slot() {
    let runs = explore(2, || {
        let mut region = Region::new(1, Flush::ClflushOpt);
        let owner = region.attach(0, &Life::long());
        let readers = [(); 2].map(|()| region.attach(1, &Life::long()));
        let namespace = namespace(&owner);
        assert_eq!(publish(&owner, &namespace, 1), Publish::Published);
        owner.fabric().watch_uses(true);
        loom::explore();
        let threads = readers.each_ref().map(|pool| {
            let pool = pool.clone();
            loom::thread::spawn(move || {
                assert_ne!(read(&pool, 1), Some(ReadOutcome::Damaged));
                assert_ne!(read(&pool, 2), Some(ReadOutcome::Damaged));
            })
        });
        assert_eq!(owner.evict(1), 1);
        assert_eq!(publish(&owner, &namespace, 2), Publish::Published);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        loom::stop_exploring();
        owner.fabric().watch_uses(false);
        assert_eq!(readers[0].counter(Counter::ReadsDamaged), 0);
        assert!(is_there(&readers[0], 2));
    });
    assert!(runs > 20, "{runs} orders");
}

/// Detects: an object freed without a second look at its descriptor under the heap lock.
#[test]
fn an_object_that_loses_its_name_is_freed_once() {
    let runs = explore(1, || {
        let mut region = Region::new(2, Flush::None);
        let [first, second] = [(); 2].map(|()| region.attach(0, &Life::long()));
        first.put_object("key", b"old").expect("there is room");
        let putting = first.clone();
        race(
            first.fabric(),
            move || putting.put_object("key", b"new").expect("there is room"),
            // A worker that leaves frees objects that no row names.
            move || drop(second),
        );
        assert_eq!(first.get_object("key").expect("a key").as_deref(), Some(b"new".as_slice()));
        assert_eq!(check(&first).objects, 1);
        // An object that was freed twice would be in the free list twice.
        for key in ["one", "two", "three"] {
            first.put_object(key, key.as_bytes()).expect("three slots of four are free");
        }
        assert_eq!((check(&first).objects, first.counter(Counter::Damaged)), (4, 0));
    });
    assert!(runs > 20, "{runs} orders");
}

/// Detects: a slot freed for its descriptor alone, which a worker has described again meanwhile.
///
/// A worker frees memory and allocates in its slot anew, while another one looks for unused slots.
#[test]
fn memory_that_is_being_allocated_is_not_unused() {
    const HALF: u64 = CHUNK_BYTES / 2;
    // The mistake shows among these.
    let runs = explore_some(2, 1_000, || {
        let mut region = Region::new(1, Flush::None);
        let [first, second] = [(); 2].map(|()| region.attach(0, &Life::long()));
        let old = first.allocate(HALF).expect("there is room");
        let other = first.allocate(HALF).expect("there is room");
        let allocating = first.clone();
        race(
            first.fabric(),
            move || {
                allocating.free(old).expect("it is allocated");
                assert_eq!(allocating.allocate(HALF).expect("its slot is free"), old);
            },
            move || drop(second),
        );
        first.free(old).expect("it is allocated");
        first.free(other).expect("it is allocated");
        check(&first);
    });
    assert!(runs > 20, "{runs} orders");
}

/// Runs a victim that lives for `first` steps, then for `stride` more, and so on, until it ends by
/// itself; returns the number of steps, and the number of runs.
fn kill_everywhere(first: i64, stride: usize, model: impl Fn(&Arc<Life>) + Copy + Send + Sync + 'static) -> (u64, u64) {
    let mut runs = 0;
    for steps in (first..).step_by(stride) {
        let deaths = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&deaths);
        runs += explore(1, move || {
            let life = Life::of_steps(steps);
            model(&life);
            counted.fetch_add(u64::from(life.is_over()), Ordering::Relaxed);
        });
        if deaths.load(Ordering::Relaxed) == 0 {
            return (steps.unsigned_abs(), runs);
        }
    }
    unreachable!("a victim comes to its end")
}

/// Runs a function as a process of this life.
fn process(life: &Arc<Life>, work: impl FnOnce() + 'static) -> impl FnOnce() + 'static {
    let life = Arc::clone(life);
    move || {
        live(&life);
        life.count();
        work();
        if life.is_over() {
            life.end();
        }
    }
}

/// After deaths: every published block is found, and no slot is lost.
fn expect_all_slots(pool: &LoomPool, namespace: &Namespace, victims: u64) {
    assert!(pool.tick().workers <= victims);
    check(pool);
    for number in [10, 11] {
        assert!(!is_there(pool, 0), "a lookup moves the clock");
        assert_eq!(publish(pool, namespace, number), Publish::Published);
    }
    assert_eq!(check(pool).ready, 2);
    assert!(is_there(pool, 10) && is_there(pool, 11));
}

/// Detects: a heap that is not rebuilt after its holder died; and what the tests without deaths
/// detect.
#[test]
fn a_publisher_may_die_at_any_step_beside_another() {
    let (steps, runs) = kill_everywhere(1, 1, |life| {
        let (pools, ns) = full(2, &[Arc::clone(life)]);
        let (victim, dying) = (pools[0].clone(), ns.clone());
        let work = move || _ = publish(&victim, &dying, 4);
        race(pools[0].fabric(), process(life, work), publisher(&pools[1], Life::long(), &ns, 3));
        assert!(is_there(&pools[1], 3));
        expect_all_slots(&pools[1], &ns, 1);
    });
    assert!(steps > 20 && runs > steps, "{runs} orders of {steps} steps");
}

/// Deaths at every 40th step of the victim, each in all orders; with `CENOTE_TEST_WHOLE` at every 8th.
#[test]
fn the_dead_may_be_recovered_while_they_die() {
    let stride = if std::env::var_os("CENOTE_TEST_WHOLE").is_some() { 8 } else { 40 };
    let (steps, runs) = kill_everywhere(1, stride, |life| {
        let (pools, ns) = full(2, &[Arc::clone(life)]);
        let (victim, dying, survivor) = (pools[0].clone(), ns.clone(), pools[1].clone());
        let work = move || _ = publish(&victim, &dying, 4);
        race(pools[0].fabric(), process(life, work), move || {
            survivor.tick();
        });
        expect_all_slots(&pools[1], &ns, 1);
    });
    assert!(steps > 20 && runs > steps, "{runs} orders of {steps} steps");
}

/// Detects: a heap that is not rebuilt after its holder died.
#[test]
fn an_evictor_may_die_at_any_step() {
    let (steps, runs) = kill_everywhere(1, 1, |life| {
        let (pools, ns) = full(2, &[Arc::clone(life)]);
        let victim = pools[0].clone();
        race(pools[0].fabric(), process(life, move || _ = victim.evict(2)), publisher(&pools[1], Life::long(), &ns, 3));
        expect_all_slots(&pools[1], &ns, 1);
    });
    assert!(steps > 20 && runs > steps, "{runs} orders of {steps} steps");
}

/// Detects: the line of a dead worker cleared before all that it held was freed; a heap rebuilt
/// with reserved slots.
#[test]
fn a_recoverer_may_die_at_any_step() {
    let mut all = 0;
    // A publisher dies while reserving, writing, or indexing.
    for steps in (1..60).step_by(7) {
        let (_, runs) = kill_everywhere(1, 1, move |life| {
            let first = Life::of_steps(steps);
            let (pools, ns) = full(3, &[Arc::clone(&first), Arc::clone(life)]);
            let (victim, dying, recoverer) = (pools[0].clone(), ns.clone(), pools[1].clone());
            process(&first, move || _ = publish(&victim, &dying, 4))();
            process(life, move || {
                recoverer.tick();
            })();
            live(&Life::long());
            expect_all_slots(&pools[2], &ns, 2);
        });
        all += runs;
    }
    assert!(all > 50, "{all} deaths");
}

/// The fabric and the host memory of these tests meet the requirements of real ones.
#[test]
fn the_explored_memory_conforms() {
    let runs = explore(0, || {
        let host = LoomHost::new(conformance::HOST_SPEC);
        conformance::host_local(&host, &host.clone());
        let fabric = LoomFabric::new(conformance::REGION_BYTES, Flush::Clwb);
        conformance::fabric(&fabric.as_of_host(0), &fabric.as_of_host(1));
    });
    assert!(runs > 0);
}
