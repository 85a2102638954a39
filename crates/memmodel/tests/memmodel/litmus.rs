//! Litmus tests of the cache-line model. They run the classic shapes (MP, SB, LB, 2+2W, CoRR)
//! between hosts with private caches, and crashes of hosts.
//!
//! A test has one program per process. Its flushes, invalidations and fences are marked: without a
//! `needed` step the weak outcome is reachable, without a `spare` one it is not. Spare steps only
//! make a store visible sooner. The tests run every program under a fixed range of seeds. Each seed
//! draws its own schedule, pauses and rates of spontaneous write-backs, evictions, prefetches and
//! torn lines. Every test checks both directions: an outcome that no seed may show, and one that
//! some seed must show. The absence of an outcome from all seeds is no proof. That the seeds reach
//! it once any needed step is removed shows that they would find it.
//!
//! # CXL0
//!
//! The crash tests are written after the primitives of CXL0 (Assa et al., "A Programming Model for
//! Disaggregated Memory over CXL", arXiv 2407.16300). In CXL0 each machine has a cache and a
//! memory, and an address belongs to one machine's memory. Caches are coherent, and a machine may
//! crash alone. Here the device belongs to no host, has no cache and never crashes. The primitives
//! map as follows:
//! - `LStore` (store into the own cache) is [`Fabric::store`].
//! - `MStore` (store into the memory) is [`Fabric::write_word`] with a fence.
//! - `RFlush` (write back to the memory) is [`Fabric::publish`]: a flush and a fence.
//! - `Load` has no exact equal: CXL0 always returns the newest store. [`Fabric::load`] after
//!   [`Fabric::refresh`] returns the device's value, which is the newest published one. Without the
//!   refresh it may return a stale copy.
//! - `RStore` and `LFlush` (store or write back into the owner's cache) have no equal, because the
//!   device has no cache. A value that only the owner's cache holds does not exist here.
//! - The read-modify-writes have no equal: the fabric has none between hosts
//!   (docs/internals/format.md#assumptions-about-the-fabric).
//!
//! The model adds states that CXL0 does not have: a store that is flushed and not fenced, a stale
//! copy, and a torn line. It also adds the crash of one process, which loses no retired store.

use Op::{Fence, Flush, Invalidate, Read, Store, Stream};
use cenote_base::prng::Prng;
use cenote_mem::{Fabric, Offset};
use cenote_memmodel::{Process, Program, Rates, World};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Seeds that must not show a forbidden outcome.
const SEEDS: u64 = 6_000;
/// Most seeds of a search for an outcome that must occur. The rarest occurs once in about 10,000.
const SEARCH_SEEDS: u64 = 100_000;
/// Most operations of one run: far more than any program here takes.
const OPERATIONS_MAX: u64 = 20_000;
const LINE: u64 = 64;
/// Bytes of the device: a line per variable, and one unused.
const BYTES: u64 = 3 * LINE;

/// Offset of a word: the first of its line, unless it says otherwise.
type Word = u64;
const X: Word = 0;
const Y: Word = LINE;
/// The second word of X's line.
const X_NEXT: Word = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// Stores through the cache.
    Store(Word, u64),
    /// Stores around the cache.
    Stream(Word, u64),
    /// Loads into the next register of the outcome.
    Read(Word),
    /// Starts writing the line back.
    Flush(Word),
    /// Starts dropping the cached copy of the line.
    Invalidate(Word),
    /// Waits for flushes, streams and invalidations.
    Fence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A load or store of the test itself.
    Access,
    /// Its removal makes the weak outcome reachable.
    Needed,
    /// Its removal does not.
    Spare,
}

type Step = (Op, Role);

const fn access(op: Op) -> Step {
    (op, Role::Access)
}

const fn needed(op: Op) -> Step {
    (op, Role::Needed)
}

const fn spare(op: Op) -> Step {
    (op, Role::Spare)
}

/// One process: its host and its steps.
#[derive(Clone, Debug)]
struct Thread {
    host: usize,
    steps: Vec<Step>,
}

fn thread<const N: usize>(host: usize, steps: [Step; N]) -> Thread {
    Thread { host, steps: steps.to_vec() }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Outcome {
    /// Loaded values, by process and in program order.
    loads: Vec<u64>,
    /// X and Y on the device after every host has flushed its cache.
    last: [u64; 2],
}

impl Outcome {
    fn loaded(&self, values: &[u64]) -> bool {
        self.loads == values
    }
}

/// Number of seeds by outcome.
type Outcomes = BTreeMap<Outcome, u64>;

fn perform(process: &Process, op: Op, loads: &mut Vec<u64>) {
    let fabric = process.fabric();
    let line = |word: Word| word / LINE * LINE;
    match op {
        Store(word, value) => fabric.store(Offset::new(word), value),
        Stream(word, value) => fabric.write_word(Offset::new(word), value),
        Read(word) => loads.push(fabric.load(Offset::new(word))),
        Flush(word) => fabric.publish_unfenced(line(word)),
        Invalidate(word) => fabric.refresh_unfenced(line(word)),
        Fence => fabric.fence(),
    }
}

/// The rates of a seed, with a rate of switches that fits programs of a few operations.
fn rates(seed: u64) -> Rates {
    let mut rates = Rates::of_seed(seed, false);
    rates.switch = [40, 200, 512][(seed % 3) as usize];
    rates
}

/// Fetches X and Y into the cache of each host.
fn warm(world: &World, hosts: usize) {
    for host in 0..hosts {
        let fabric = world.scene_setter(host).fabric();
        let _ = (fabric.load(Offset::new(X)), fabric.load(Offset::new(Y)));
    }
}

/// Flushes the caches of all hosts, in an order that the seed determines, and returns X and Y.
fn settle(world: &World, hosts: usize, seed: u64) -> [u64; 2] {
    let mut order: Vec<usize> = (0..hosts).collect();
    order.rotate_left((seed % hosts as u64) as usize);
    for host in order {
        world.scene_setter(host).fabric().publish(&[X, Y]);
    }
    let fabric = world.scene_setter(0).fabric();
    fabric.refresh(&[X, Y]);
    [X, Y].map(|word| fabric.load(Offset::new(word)))
}

/// Runs one seed. In every other seed all hosts start with a copy of X and Y.
fn run(threads: &[Thread], seed: u64) -> Outcome {
    let hosts = threads.iter().map(|thread| thread.host + 1).max().expect("a thread");
    let world = World::new(seed, hosts, BYTES, rates(seed), OPERATIONS_MAX);
    if seed.is_multiple_of(2) {
        warm(&world, hosts);
    }
    let loads = Arc::new(Mutex::new(vec![Vec::new(); threads.len()]));
    let programs = threads.iter().enumerate().map(|(number, thread)| {
        let (loads, steps) = (Arc::clone(&loads), thread.steps.clone());
        let mut prng = Prng::at(seed, 100 + number as u64);
        let program: Program = Box::new(move |process| {
            let mut own = Vec::new();
            for (op, _) in steps {
                pause(&process, &mut prng);
                perform(&process, op, &mut own);
            }
            // The end of a program fences.
            pause(&process, &mut prng);
            loads.lock().expect("plain stores")[number] = own;
        });
        (thread.host, program)
    });
    world.run(programs.collect());
    let report = world.report();
    assert!(report.panics.is_empty() && !report.endless, "seed {seed}: {:?}", report.panics);
    let loads = loads.lock().expect("plain stores").concat();
    Outcome { loads, last: settle(&world, hosts, seed) }
}

/// Idles for a random number of operations, often none, in which other processes run and
/// spontaneous events happen.
fn pause(process: &Process, prng: &mut Prng) {
    let operations = [0, 0, 0, 1, 2, 5, 12, 30][prng.below(8) as usize];
    (0..operations).for_each(|_| _ = process.sleep(0));
}

fn outcomes(threads: &[Thread]) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for seed in 0..SEEDS {
        *outcomes.entry(run(threads, seed)).or_default() += 1;
    }
    outcomes
}

/// The first of `seeds` seeds with this outcome.
fn find(threads: &[Thread], seeds: u64, is_wanted: impl Fn(&Outcome) -> bool) -> Option<u64> {
    (0..seeds).find(|&seed| is_wanted(&run(threads, seed)))
}

fn is_protection(step: &Step) -> bool {
    step.1 != Role::Access
}

/// The same programs without any flush, invalidation and fence.
fn bare(threads: &[Thread]) -> Vec<Thread> {
    let strip = |thread: &Thread| Thread {
        steps: thread.steps.iter().copied().filter(|step| !is_protection(step)).collect(),
        ..*thread
    };
    threads.iter().map(strip).collect()
}

/// The same programs without one step.
fn without(threads: &[Thread], number: usize, at: usize) -> Vec<Thread> {
    let mut threads = threads.to_vec();
    threads[number].steps.remove(at);
    threads
}

/// Checks that no seed shows the weak outcome with all steps, and that some seed shows `witness`.
/// Checks that some seed shows the weak outcome without each one `needed` step, and none without
/// each one `spare` step.
fn expect_needed(threads: &[Thread], weak: impl Fn(&Outcome) -> bool, witness: impl Fn(&Outcome) -> bool) {
    let found = outcomes(threads);
    assert!(!found.keys().any(&weak), "the protected program shows the weak outcome: {found:?}");
    assert!(found.keys().any(witness), "no seed shows the witness, so the test checks nothing: {found:?}");
    for (number, thread) in threads.iter().enumerate() {
        for (at, step) in thread.steps.iter().enumerate().filter(|(_, step)| is_protection(step)) {
            let threads = without(threads, number, at);
            let place = format!("without {:?}, step {at} of process {number}", step.0);
            if step.1 == Role::Needed {
                let seed = find(&threads, SEARCH_SEEDS, &weak);
                assert!(seed.is_some(), "{place}, no seed shows the weak outcome");
            } else {
                let seed = find(&threads, SEEDS, &weak);
                assert_eq!(seed, None, "{place}, a seed shows the weak outcome");
            }
        }
    }
}

/// Checks that some seed shows the weak outcome.
fn expect_weak(threads: &[Thread], weak: impl Fn(&Outcome) -> bool) {
    assert!(find(threads, SEARCH_SEEDS, &weak).is_some(), "no seed shows the weak outcome: {:?}", outcomes(threads));
}

/// Checks that the seeds show exactly these loads.
fn expect_exactly(threads: &[Thread], expected: &[&[u64]]) {
    let found = outcomes(threads);
    let mut loads: Vec<&[u64]> = found.keys().map(|outcome| outcome.loads.as_slice()).collect();
    loads.dedup();
    assert_eq!(loads, expected, "{found:?}");
}

// --- message passing: the flag is in Y, the message in X

fn mp() -> [Thread; 2] {
    [
        thread(
            0,
            [access(Store(X, 1)), needed(Flush(X)), needed(Fence), access(Store(Y, 1)), spare(Flush(Y)), spare(Fence)],
        ),
        thread(
            1,
            [
                spare(Invalidate(Y)),
                spare(Fence),
                access(Read(Y)),
                needed(Invalidate(X)),
                needed(Fence),
                access(Read(X)),
            ],
        ),
    ]
}

/// The flag is set and the message is old.
fn is_mp_weak(outcome: &Outcome) -> bool {
    outcome.loaded(&[1, 0])
}

#[test]
fn mp_needs_a_fenced_flush_of_the_message_and_a_fenced_invalidation() {
    expect_needed(&mp(), is_mp_weak, |outcome| outcome.loaded(&[1, 1]));
}

#[test]
fn mp_without_flushes_and_invalidations_reads_an_old_message() {
    expect_weak(&bare(&mp()), is_mp_weak);
}

#[test]
fn mp_with_streamed_stores_needs_a_fence_between_them() {
    let writer = thread(0, [access(Stream(X, 1)), needed(Fence), access(Stream(Y, 1)), spare(Fence)]);
    let [_, reader] = mp();
    expect_needed(&[writer, reader], is_mp_weak, |outcome| outcome.loaded(&[1, 1]));
}

#[test]
fn mp_within_one_host_needs_nothing() {
    let [writer, reader] = bare(&mp()).try_into().expect("two threads");
    let one_host = [writer, Thread { host: 0, ..reader }];
    expect_exactly(&one_host, &[&[0, 0], &[0, 1], &[1, 1]]);
}

// --- store buffering: each process stores, then looks for the other's store

fn sb() -> [Thread; 2] {
    let side = |host, own, other| {
        thread(
            host,
            [
                access(Store(own, 1)),
                needed(Flush(own)),
                needed(Fence),
                needed(Invalidate(other)),
                needed(Fence),
                access(Read(other)),
            ],
        )
    };
    [side(0, X, Y), side(1, Y, X)]
}

/// Neither process sees the other's store.
fn is_sb_weak(outcome: &Outcome) -> bool {
    outcome.loaded(&[0, 0])
}

#[test]
fn sb_needs_a_fenced_flush_before_a_fenced_invalidation() {
    expect_needed(&sb(), is_sb_weak, |outcome| outcome.loaded(&[1, 1]));
}

#[test]
fn sb_without_flushes_and_invalidations_misses_both_stores() {
    expect_weak(&bare(&sb()), is_sb_weak);
}

#[test]
fn sb_within_one_host_needs_a_fence() {
    let side = |own, other| thread(0, [access(Store(own, 1)), needed(Fence), access(Read(other))]);
    let threads = [side(X, Y), side(Y, X)];
    expect_needed(&threads, is_sb_weak, |outcome| outcome.loaded(&[1, 1]));
    expect_weak(&bare(&threads), is_sb_weak);
}

// --- load buffering: each process loads, then stores what the other loads

fn lb() -> [Thread; 2] {
    let side = |host, from, to| {
        thread(
            host,
            [
                spare(Invalidate(from)),
                spare(Fence),
                access(Read(from)),
                access(Store(to, 1)),
                spare(Flush(to)),
                spare(Fence),
            ],
        )
    };
    [side(0, X, Y), side(1, Y, X)]
}

#[test]
fn lb_needs_nothing_because_loads_are_not_delayed() {
    // With and without protections: every outcome but the one in which both loads see later stores.
    expect_exactly(&lb(), &[&[0, 0], &[0, 1], &[1, 0]]);
    expect_exactly(&bare(&lb()), &[&[0, 0], &[0, 1], &[1, 0]]);
}

// --- 2+2W: both hosts store to both lines, in opposite orders

fn two_plus_two_w(store: fn(Word, u64) -> Op, role: fn(Op) -> Step) -> [Thread; 2] {
    let side = |host, first, second| {
        let steps = [
            access(store(first, 1)),
            role(Flush(first)),
            needed(Fence),
            access(store(second, 2)),
            spare(Flush(second)),
            spare(Fence),
        ];
        thread(host, steps)
    };
    [side(0, X, Y), side(1, Y, X)]
}

/// Each line ends with the value that its host stored first.
fn is_2_2w_weak(outcome: &Outcome) -> bool {
    outcome.last == [1, 1]
}

#[test]
fn two_plus_two_w_needs_a_fenced_flush_between_the_stores() {
    expect_needed(&two_plus_two_w(Store, needed), is_2_2w_weak, |outcome| outcome.last == [2, 2]);
}

#[test]
fn two_plus_two_w_with_streamed_stores_needs_only_the_fence() {
    expect_needed(&two_plus_two_w(Stream, spare), is_2_2w_weak, |outcome| outcome.last == [2, 2]);
}

#[test]
fn two_plus_two_w_without_flush_and_fence_keeps_both_first_stores() {
    expect_weak(&bare(&two_plus_two_w(Store, needed)), is_2_2w_weak);
    expect_weak(&bare(&two_plus_two_w(Stream, spare)), is_2_2w_weak);
}

// --- CoRR: two loads of one word

fn read_twice(host: usize) -> Thread {
    thread(
        host,
        [spare(Invalidate(X)), spare(Fence), access(Read(X)), spare(Invalidate(X)), spare(Fence), access(Read(X))],
    )
}

#[test]
fn corr_of_a_line_with_one_writing_host_needs_nothing() {
    let writer = thread(0, [access(Store(X, 1)), spare(Flush(X)), spare(Fence)]);
    let threads = [writer, read_twice(1)];
    expect_exactly(&threads, &[&[0, 0], &[0, 1], &[1, 1]]);
    expect_exactly(&bare(&threads), &[&[0, 0], &[0, 1], &[1, 1]]);
}

#[test]
fn corr_of_a_line_with_two_writing_hosts_needs_streamed_stores() {
    // Each host writes its own word of the line. A write-back carries the other, older word along.
    let writers = |store: fn(Word, u64) -> Op| {
        let writer = |host, word| thread(host, [access(store(word, 1)), spare(Flush(word)), spare(Fence)]);
        [writer(0, X), read_twice(1), writer(2, X_NEXT)]
    };
    expect_weak(&writers(Store), |outcome| outcome.loaded(&[1, 0]));
    expect_exactly(&writers(Stream), &[&[0, 0], &[0, 1], &[1, 1]]);
}

#[test]
fn words_of_one_line_arrive_in_order_only_if_each_is_fenced() {
    let steps = [access(Store(X, 1)), needed(Flush(X)), needed(Fence), access(Store(X_NEXT, 1)), spare(Flush(X))];
    let reader = [spare(Invalidate(X)), spare(Fence), access(Read(X_NEXT)), access(Read(X))];
    expect_needed(&[thread(0, steps), thread(1, reader)], is_mp_weak, |outcome| outcome.loaded(&[1, 1]));
}

#[test]
fn a_reader_without_invalidation_keeps_its_stale_copy() {
    let stale = |steps: &[Op]| {
        let mut seen = [false; 2];
        for seed in 0..SEEDS {
            let world = World::new(seed, 2, BYTES, rates(seed), OPERATIONS_MAX);
            warm(&world, 2);
            world.scene_setter(0).fabric().publish_word(Offset::new(X), 1);
            let value = run_alone(&world, 1, steps);
            seen[value as usize] = true;
        }
        seen
    };
    assert_eq!(stale(&[Read(X)]), [true, true], "stale, or evicted and fetched again");
    assert_eq!(stale(&[Invalidate(X), Read(X)]), [true, true], "an unfenced invalidation may be late");
    assert_eq!(stale(&[Invalidate(X), Fence, Read(X)]), [false, true], "a fenced invalidation is not");
}

// --- crashes of hosts, after CXL0

/// Runs `steps` on `host` as the only process and returns the value of the last load.
fn run_alone(world: &World, host: usize, steps: &[Op]) -> u64 {
    let (loads, steps) = (Arc::new(Mutex::new(Vec::new())), steps.to_vec());
    let given = Arc::clone(&loads);
    let program: Program = Box::new(move |process| {
        let mut own = Vec::new();
        steps.iter().for_each(|&op| perform(&process, op, &mut own));
        *given.lock().expect("plain stores") = own;
    });
    world.run(vec![(host, program)]);
    let value = loads.lock().expect("plain stores").last().copied();
    value.expect("the steps end with a load")
}

const LOAD_X: [Op; 3] = [Invalidate(X), Fence, Read(X)];
const LOAD_Y: [Op; 3] = [Invalidate(Y), Fence, Read(Y)];

/// Runs `steps` on host 0, which crashes at a random operation of them or after the last. Returns
/// the number of steps that were complete, and X and Y as host 1 loads them after the crash.
fn crash_amid(steps: &[Op], seed: u64) -> (usize, [u64; 2]) {
    let mut rates = rates(seed);
    rates.host_crash = 1 << 17;
    let world = World::new(seed, 2, BYTES, rates, OPERATIONS_MAX);
    if seed.is_multiple_of(2) {
        warm(&world, 2);
    }
    let done = Arc::new(Mutex::new(0));
    let (given, steps) = (Arc::clone(&done), steps.to_vec());
    let mut prng = Prng::at(seed, 100);
    let program: Program = Box::new(move |process| {
        for op in steps {
            pause(&process, &mut prng);
            perform(&process, op, &mut Vec::new());
            *given.lock().expect("plain stores") += 1;
        }
        // The end of a program fences. Crash before it.
        while process.sleep(1) {}
    });
    world.run(vec![(0, program)]);
    let report = world.report();
    assert!(report.host_crashes == 1 && report.panics.is_empty() && !report.endless, "seed {seed}: {report:?}");
    world.calm();
    let values = [LOAD_X, LOAD_Y].map(|steps| run_alone(&world, 1, &steps));
    let done = *done.lock().expect("plain stores");
    (done, values)
}

/// Values of X and Y after crashes that came when at least `complete` of the steps were complete.
fn after_crashes(steps: &[Op], complete: usize) -> Vec<[u64; 2]> {
    let found = (0..SEEDS).map(|seed| crash_amid(steps, seed)).filter(|(done, _)| *done >= complete);
    let mut values: Vec<[u64; 2]> = found.map(|(_, values)| values).collect();
    values.sort_unstable();
    values.dedup();
    values
}

#[test]
fn a_crash_may_lose_an_lstore() {
    assert_eq!(after_crashes(&[Store(X, 1)], 1), [[0, 0], [1, 0]]);
    // A fence moves it from the store buffer into the cache, which the crash loses as well.
    assert_eq!(after_crashes(&[Store(X, 1), Fence], 2), [[0, 0], [1, 0]]);
}

#[test]
fn a_crash_may_lose_an_lstore_with_an_unfenced_flush() {
    assert_eq!(after_crashes(&[Store(X, 1), Flush(X)], 2), [[0, 0], [1, 0]]);
}

#[test]
fn a_crash_does_not_lose_an_lstore_after_its_rflush() {
    assert_eq!(after_crashes(&[Store(X, 1), Flush(X), Fence], 3), [[1, 0]]);
    // Before the end of the RFlush it may.
    assert_eq!(after_crashes(&[Store(X, 1), Flush(X), Fence], 0), [[0, 0], [1, 0]]);
}

#[test]
fn a_crash_does_not_lose_an_mstore() {
    assert_eq!(after_crashes(&[Stream(X, 1), Fence], 2), [[1, 0]]);
    // A streamed store that is not fenced is no MStore.
    assert_eq!(after_crashes(&[Stream(X, 1)], 1), [[0, 0], [1, 0]]);
}

#[test]
fn an_rflush_between_two_lstores_orders_them_across_a_crash() {
    let unordered = after_crashes(&[Store(X, 1), Store(Y, 1)], 0);
    assert_eq!(unordered, [[0, 0], [0, 1], [1, 0], [1, 1]]);
    let unfenced = after_crashes(&[Store(X, 1), Flush(X), Store(Y, 1)], 0);
    assert_eq!(unfenced, [[0, 0], [0, 1], [1, 0], [1, 1]]);
    let ordered = after_crashes(&[Store(X, 1), Flush(X), Fence, Store(Y, 1)], 0);
    assert_eq!(ordered, [[0, 0], [1, 0], [1, 1]]);
}

/// Host 0 stores to X. The reader loads X, then host 0 crashes, then host 1 loads X. Returns the
/// pairs of loaded values.
fn load_crash_load(reader_host: usize) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for seed in 0..SEEDS {
        let world = World::new(seed, 2, BYTES, rates(seed), OPERATIONS_MAX);
        let loads = Arc::new(Mutex::new(0));
        let given = Arc::clone(&loads);
        let mut prng = Prng::at(seed, 100);
        let writer: Program = Box::new(move |process| {
            perform(&process, Store(X, 1), &mut Vec::new());
            (0..4).for_each(|_| pause(&process, &mut prng));
        });
        let mut prng = Prng::at(seed, 101);
        let reader: Program = Box::new(move |process| {
            let mut own = Vec::new();
            for op in LOAD_X {
                pause(&process, &mut prng);
                perform(&process, op, &mut own);
            }
            *given.lock().expect("plain stores") = own[0];
        });
        world.run(vec![(0, writer), (reader_host, reader)]);
        world.power_off(0);
        let first = *loads.lock().expect("plain stores");
        found.push((first, run_alone(&world, 1, &LOAD_X)));
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn a_value_that_another_host_loaded_survives_the_crash_of_its_writer() {
    assert_eq!(load_crash_load(1), [(0, 0), (0, 1), (1, 1)]);
}

#[test]
fn a_value_that_only_its_own_host_loaded_may_be_lost() {
    // Then two loads around the crash disagree, although no other value was stored.
    assert_eq!(load_crash_load(0), [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

#[test]
fn the_crash_of_another_host_loses_nothing_and_clears_its_stale_copies() {
    for seed in 0..SEEDS {
        let world = World::new(seed, 2, BYTES, rates(seed), OPERATIONS_MAX);
        warm(&world, 2);
        // An LStore that its host has not flushed: host 0 keeps it while host 1 crashes.
        world.scene_setter(0).fabric().store(Offset::new(Y), 1);
        world.scene_setter(0).fabric().publish_word(Offset::new(X), 1);
        world.power_off(1);
        assert_eq!(run_alone(&world, 1, &[Read(X)]), 1, "seed {seed}: a restarted host has no copies");
        assert_eq!(run_alone(&world, 0, &[Read(Y)]), 1, "seed {seed}: the live host lost its store");
    }
    // Without the crash a stale copy remains: `a_reader_without_invalidation_keeps_its_stale_copy`.
}

#[test]
fn the_crash_of_a_process_loses_no_retired_store() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let mut rates = rates(seed);
        rates.process_crash = 1 << 17;
        let world = World::new(seed, 1, BYTES, rates, OPERATIONS_MAX);
        let is_stored = Arc::new(Mutex::new(false));
        let given = Arc::clone(&is_stored);
        let program: Program = Box::new(move |process| {
            perform(&process, Store(X, 1), &mut Vec::new());
            *given.lock().expect("plain stores") = true;
            while process.sleep(1) {}
        });
        world.run(vec![(0, program)]);
        world.calm();
        let is_stored = *is_stored.lock().expect("plain stores");
        assert_eq!(run_alone(&world, 0, &[Read(X)]), u64::from(is_stored), "seed {seed}");
        lost += u64::from(!is_stored);
    }
    assert!(lost > 0 && lost < SEEDS, "crashes come before the store and after it: {lost}");
}
