//! The record of requests and the sketches of distinct blocks: each admitted request is there once, in
//! bounded memory, and a dead pool has them, too.

use crate::support::shared::Shared;
use crate::support::*;
use cenote_base::BlockHash;
use cenote_base::prng::Prng;
use cenote_base::testing::{ManualTime, beside};
use cenote_mem::{Fabric, Flush, MapOptions, Offset};
use cenote_policy::whatif::{Sampled, Trace};
use cenote_pool::{
    Asked, AttachOptions, Eviction, Inspector, Namespace, Pool, PoolConfig, Request, Requests, Superblock, Window,
    open_region, requests, windows,
};
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

fn config(identity: u8, lines: u32) -> PoolConfig {
    PoolConfig { requests_per_host: lines, ..small_config(identity) }
}

fn record<F: Fabric>(pool: &Pool<F>, ns: &Namespace, names: &[BlockHash]) -> Option<u64> {
    pool.record_request(ns, &Request { names, above: 0, tokens: names.len() as u32 * 16 + 5 })
}

fn kept<F: Fabric>(fabric: &F) -> Requests {
    requests(fabric).expect("a region")
}

/// The halves of the hashes that a record of all blocks has.
fn halves(names: &[BlockHash]) -> Vec<u32> {
    names.iter().map(|name| name.words()[1] as u32).collect()
}

#[test]
fn a_request_is_recorded_once_with_its_blocks_time_and_answer() {
    let time = ManualTime::start();
    let options = AttachOptions { clock: Some(time.clock()), ..private(0) };
    let (fabric, pool) = anonymous_for(2 << 20, &config(91, 256), &options);
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let [first, second] = [chain(&ns, 1, 40), chain(&ns, 2, 3)];
    // A request that waits is looked up in each step.
    (0..5).for_each(|_| _ = pool.find(&first));
    assert_eq!(kept(&fabric).all, []);
    let number = record(&pool, &ns, &first).expect("all blocks are recorded");
    time.advance(Duration::from_millis(1500));
    pool.record_request(&ns, &Request { names: &second, above: 2, tokens: 50 }).expect("one block is asked for");
    pool.record_answer(number, 77);
    drop(pool);
    let found = kept(&fabric);
    assert_eq!((found.all.len(), found.torn, found.shift()), (2, 0, 0));
    let [one, other] = [&found.all[0], &found.all[1]];
    assert_eq!((one.names.as_slice(), one.answer, one.asked, one.requests), (&halves(&first)[..], Some(77), 40, 1));
    assert_eq!((one.namespace, one.tokens, one.blocks, one.above, one.host), (ns.id, 645, 40, 0, 0));
    assert_eq!((other.names.as_slice(), other.answer, other.asked, other.requests), (&halves(&second)[..], None, 1, 1));
    assert_eq!((other.tokens, other.blocks, other.above, other.names_above), (50, 3, 2, 2));
    assert_eq!(other.time_us - one.time_us, 1_500_000);
    let sampled: Vec<Vec<u64>> = found.sampled().map(|(_, names)| names).collect();
    assert_eq!(sampled[1], [u64::from(halves(&second)[2])], "the region was not asked for the others");
    assert_eq!(Superblock::read(&fabric).expect("a region").config.requests_per_host, 256);
}

#[test]
fn the_rate_falls_until_the_ring_reaches_back_and_the_sums_stay_exact() {
    let (fabric, pool) = anonymous(8 << 20, &config(92, 2048));
    let ns = namespace(&pool, 1, 4 << 10);
    let fits = pool.info().data_bytes / (4 << 10);
    let (mut asked, mut prompts) = (0_u64, Vec::new());
    for prompt in 0..6_000 {
        let names = chain(&ns, prompt, 8 + prompt as usize % 5);
        asked += names.len() as u64;
        record(&pool, &ns, &names);
        prompts.push(names);
    }
    let found = kept(&fabric);
    assert!((1..=4).contains(&found.shift()) && found.all.len() <= 2048, "{}, {}", found.shift(), found.all.len());
    let reach: u64 = found.all.iter().map(|one| one.asked).sum();
    assert!(reach > 8 * fits && reach < asked, "{reach} of {asked} asked, and {fits} blocks fit");
    // A line has the blocks of its request that are in the sample, and no others.
    let shifts: BTreeSet<u8> = found.all.iter().map(|one| one.shift).collect();
    for shift in shifts {
        let known: BTreeSet<Vec<u32>> = prompts.iter().map(|names| sampled(names, shift)).collect();
        assert!(found.all.iter().filter(|one| one.shift == shift).all(|one| known.contains(&one.names)));
    }
}

fn sampled(names: &[BlockHash], shift: u8) -> Vec<u32> {
    let bits = names.iter().map(|name| name.words()[1]).filter(|bits| bits & ((1 << shift) - 1) == 0);
    bits.map(|bits| (bits >> shift) as u32).collect()
}

#[test]
fn the_record_of_two_hosts_is_one_and_goes_on_after_a_restart() {
    let (fabric, [zero, one]) = two_hosts(&config(93, 64));
    let ns = [namespace(&zero, 1, BLOCK_BYTES), namespace(&one, 1, BLOCK_BYTES)];
    for prompt in 0..3 {
        record(&zero, &ns[0], &chain(&ns[0], prompt, 2));
        record(&one, &ns[1], &chain(&ns[1], prompt, 2));
    }
    drop(zero);
    let zero = attach_host(&fabric, 0);
    let again = namespace(&zero, 1, BLOCK_BYTES);
    record(&zero, &again, &chain(&again, 9, 2));
    zero.tick();
    let found = kept(&fabric);
    let of = |host: u8| found.all.iter().filter(|asked| asked.host == host).collect::<Vec<&Asked>>();
    assert_eq!((of(0).len(), of(1).len()), (4, 3));
    assert_eq!(of(0).iter().map(|asked| asked.number).collect::<Vec<_>>(), [1, 2, 3, 4], "the ring goes on");
    assert!(of(0).iter().all(|asked| (asked.asked, asked.requests) == (2, 1)), "{:?}", of(0));
    assert_eq!(of(0)[1].names, of(1)[1].names, "both name a block alike");
}

#[test]
fn a_reader_of_all_blocks_gets_them_until_its_time_is_over() {
    let time = ManualTime::start();
    let options = AttachOptions { clock: Some(time.clock()), ..private(0) };
    let (fabric, pool) = anonymous_for(8 << 20, &config(94, 64), &options);
    let ns = namespace(&pool, 1, 4 << 10);
    let burst =
        |prompts: std::ops::Range<u32>| prompts.for_each(|prompt| _ = record(&pool, &ns, &chain(&ns, prompt, 8)));
    burst(0..3_000);
    let shift = kept(&fabric).shift();
    assert!(shift > 0);
    let now = time.clock().unix().as_secs();
    pool.record_all_until(now + 10);
    pool.tick();
    burst(0..64);
    assert_eq!(kept(&fabric).shift(), 0);
    time.advance(Duration::from_secs(11));
    pool.tick();
    burst(100..3_000);
    assert!(kept(&fabric).shift() > 0, "its reader has died");
}

#[test]
fn torn_and_planted_lines_are_left_out() {
    let (fabric, pool) = anonymous(2 << 20, &config(95, 64));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    for prompt in 0..4 {
        record(&pool, &ns, &chain(&ns, prompt, 20));
    }
    let all = kept(&fabric).all;
    let line = |asked: &Asked| {
        let is_it = |at: &u64| {
            let words = fabric.load_line(*at);
            words[0] == asked.number && words[1] & 0xff == 1 && words[2] >> 12 == asked.time_us
        };
        (0..fabric.len()).step_by(64).find(is_it).expect("it is in the region")
    };
    // A later line of the second request, and the head of the third.
    fabric.store(Offset::new(line(&all[1]) + 64 + 24), 77);
    fabric.store(Offset::new(line(&all[2]) + 24), 77);
    let found = kept(&fabric);
    assert_eq!((found.all.len(), found.torn), (2, 1));
    assert_eq!((found.all[0].names.len(), found.all[1].names.len()), (20, 20));
    assert_eq!(found.all.iter().map(|asked| asked.asked).sum::<u64>(), 80, "the sum has what is torn");
    // Any bytes are no request, or a harmless one.
    let mut prng = Prng::new(7);
    let start = line(&all[0]) / 4096 * 4096;
    (start..start + 4096).step_by(8).for_each(|at| fabric.store(Offset::new(at), prng.next_u64()));
    assert!(kept(&fabric).all.len() <= 4);
}

#[test]
fn a_region_without_a_record_keeps_none_and_odd_lengths_are_refused() {
    let (fabric, pool) = anonymous(2 << 20, &config(96, 0));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    assert_eq!(record(&pool, &ns, &chain(&ns, 1, 4)), None);
    pool.record_answer(1, 1);
    assert_eq!((kept(&fabric), windows(&fabric).expect("a region")), (Requests::default(), vec![]));
    for lines in [1, 15, (1 << 16) + 1] {
        let error = config(97, lines).validate().expect_err("no such length").to_string();
        assert!(error.contains(&format!("{lines} lines per host")), "{error}");
    }
    let of = |mib: u64, hosts| PoolConfig { max_hosts: hosts, ..config(98, 0) }.requests_in(mib << 20);
    assert_eq!([of(1, 16), of(64, 1), of(64, 16), of(1 << 20, 1), of(1 << 30, 16)], [0, 2048, 128, 65536, 65536]);
}

/// The prompts of an hour of conversations (Mooncake, FAST '25), as numbers of blocks.
fn conversations() -> Option<Vec<Vec<u64>>> {
    let text = std::fs::read_to_string(beside("data/mooncake_conversation.jsonl")?).expect("the trace");
    let ids = |line: &str| -> Option<Vec<u64>> {
        let ids = line.split_once("\"hash_ids\": [")?.1.split_once(']')?.0;
        ids.split(',').map(|id| id.trim().parse().ok()).collect()
    };
    Some(text.lines().map(|line| ids(line).expect("a line of the trace")).collect())
}

/// Past the test harness's capture, because a skip should be seen, and the table is the point of the test.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// The requests from one on, with all their blocks.
fn all_of(prompts: &[Vec<u64>]) -> Trace {
    let mut trace = Trace::new(1.0);
    for names in prompts {
        trace.push(&Sampled { model: 0, units: 1, names, asked: names.len() as u64, requests: 1 });
    }
    trace
}

#[test]
fn the_sampled_curve_of_a_public_trace_is_within_a_point_of_the_full_one() {
    let Some(prompts) = conversations() else { return };
    let capacity = 8192_u64;
    say("  lines  reach  one in  sampled    size  policy        full   sampled   error   2 s.e.");
    let mut worst: Vec<(u32, f64)> = Vec::new();
    for (draw, lines) in [(101, 8192), (102, 8192), (103, 16_384), (104, 16_384), (105, 65_536)] {
        let (fabric, pool) = anonymous(16 << 20, &config(draw, lines));
        let bytes = pool.info().data_bytes / capacity / 64 * 64;
        let ns = namespace(&pool, 1, bytes);
        for prompt in &prompts {
            let names: Vec<BlockHash> = prompt.iter().map(|id| ns.hasher.alias(&id.to_le_bytes())).collect();
            record(&pool, &ns, &names);
        }
        let found = kept(&fabric);
        let mut sample = found.trace(|_| 1);
        // The same requests as in the record.
        let mut left = sample.asked();
        let is_within = |prompt: &&Vec<u64>| {
            let fits = left >= prompt.len() as u64;
            left = left.saturating_sub(prompt.len() as u64);
            fits
        };
        let count = prompts.iter().rev().take_while(is_within).count();
        let mut full = all_of(&prompts[prompts.len() - count..]);
        [&mut sample, &mut full].into_iter().for_each(|trace| trace.warm(0.5));
        let reach = 100 * count / prompts.len();
        for (size, eviction) in [1, 2, 4, 8].into_iter().flat_map(|half| Eviction::ALL.map(|one| (half, one))) {
            let [full, sampled] = [&full, &sample].map(|trace| trace.replay(eviction, capacity * size / 2, None));
            let (error, stated) = (sampled.hit_rate() - full.hit_rate(), 2.0 * sampled.rate_error());
            say(&format!(
                "{lines:7} {reach:4} % {:7} {:8} {:7} {:11} {:5.2} % {:7.2} % {:+7.2} {:8.2}",
                1 << found.shift(),
                sample.sampled().0,
                size as f64 / 2.0,
                eviction.to_string(),
                100.0 * full.hit_rate(),
                100.0 * sampled.hit_rate(),
                100.0 * error,
                100.0 * stated
            ));
            worst.push((lines, error.abs()));
            assert!(error.abs() <= 2.0 * stated + 0.01, "{lines} lines, {size} halves, {eviction}: {error}");
        }
    }
    // A ring of a MiB has enough sampled blocks for a point, and one of 4 MiB has all.
    let of =
        |least: u32| worst.iter().filter(|(lines, _)| *lines >= least).map(|(_, error)| *error).fold(0.0, f64::max);
    say(&format!("worst: {:.2} points of all, {:.2} from a MiB on", 100.0 * of(0), 100.0 * of(16_384)));
    assert!(of(16_384) <= 0.01 && of(65_536) < 0.001, "{worst:?}");
}

fn ceilings<F: Fabric>(fabric: &F) -> Vec<Window> {
    windows(fabric).expect("a region")
}

/// Whether an estimate is within four standard errors.
fn is_near(window: &Window, distinct: usize) -> bool {
    (window.distinct - distinct as f64).abs() <= 4.0 * Window::ERROR * distinct as f64 + 0.5
}

#[test]
fn windows_tell_the_highest_hit_rate_of_known_sets() {
    let time = ManualTime::start();
    let options = AttachOptions { clock: Some(time.clock()), ..private(0) };
    let (fabric, pool) = anonymous_for(4 << 20, &config(99, 64), &options);
    let ns = namespace(&pool, 1, 4 << 10);
    // To the begin of a day.
    let into = time.clock().unix().as_secs() % 86_400;
    time.advance(Duration::from_secs(86_400 - into));
    let (mut all, mut hour): (BTreeSet<BlockHash>, BTreeSet<BlockHash>) = Default::default();
    for quarter in 0..6_u32 {
        let mut own = BTreeSet::new();
        for prompt in 0..200 {
            // Half of the prompts come again in the next quarter.
            let names = chain(&ns, quarter * 100 + prompt, 10);
            record(&pool, &ns, &names);
            own.extend(names);
        }
        all.extend(&own);
        if quarter < 4 {
            hour.extend(&own);
        }
        let [now, ..] = &ceilings(&fabric)[..] else { panic!("three windows") };
        assert_eq!(now.is_over, quarter > 0, "the one before is over");
        assert!(now.blocks == 2_000 && is_near(now, own.len()), "{now:?}");
        time.advance(Duration::from_secs(900));
    }
    let [quarter, of_hour, day] = &ceilings(&fabric)[..] else { panic!("three windows") };
    assert!(of_hour.is_over && of_hour.blocks == 8_000 && of_hour.requests == 800, "{of_hour:?}");
    assert!(is_near(of_hour, hour.len()), "{of_hour:?}: {}", hour.len());
    assert!(!day.is_over && day.blocks == 12_000 && is_near(day, all.len()), "{day:?}: {}", all.len());
    assert_eq!([quarter.seconds, of_hour.seconds, day.seconds], [900, 3600, 86_400]);
    let ceiling = 1.0 - all.len() as f64 / 12_000.0;
    assert!((day.ceiling.expect("blocks") - ceiling).abs() <= 4.0 * day.ceiling_error() + 0.001, "{day:?}");
    assert_eq!(Inspector::open(&fabric, &options).expect("a region").info().windows, ceilings(&fabric));

    // A restart goes on in the same quarter, and any bytes are registers.
    drop(pool);
    let pool = Pool::attach(Arc::clone(&fabric), &options).expect("it attaches");
    let ns = namespace(&pool, 1, 4 << 10);
    record(&pool, &ns, &chain(&ns, 1, 10));
    let [_, _, day] = &ceilings(&fabric)[..] else { panic!("three windows") };
    assert_eq!((day.blocks, day.requests), (12_010, 1_201));
    drop(pool);
    let at = |head: &u64| fabric.load_line(*head)[..3] == [day.begin / 86_400 + 1, 12_000, 1_200];
    let head = (0..fabric.len()).step_by(64).find(at).expect("the day's sketch");
    (head..head + 65 * 64).step_by(8).for_each(|at| fabric.store(Offset::new(at), u64::MAX));
    assert!(ceilings(&fabric).iter().all(|window| window.ceiling.is_none_or(|share| (0.0..=1.0).contains(&share))));
}

/// A worker that had read its clock before a quarter of an hour ended, and wrote after it, began the earlier
/// quarter again: the sketches of both were cleared.
#[test]
fn a_late_worker_clears_no_sketch() {
    let shared = Shared::make("late", 4 << 20, config(101, 64), Flush::None);
    let times = [ManualTime::start(), ManualTime::start()];
    let [pool, late] = times.map(|time| {
        let fabric = open_region(&shared.source, &MapOptions::default()).expect("the region is there");
        let options = AttachOptions { clock: Some(time.clock()), ..patient(0) };
        Pool::attach(fabric, &options).expect("it attaches")
    });
    let into = times[0].clock().unix().as_secs() % 86_400;
    times.iter().for_each(|time| time.advance(Duration::from_secs(86_400 - into)));
    let [ns, of_late] = [&pool, &late].map(|pool| namespace(pool, 1, BLOCK_BYTES));
    record(&late, &of_late, &chain(&of_late, 300, 10));
    times[0].advance(Duration::from_secs(900));
    for prompt in 0..200 {
        record(&pool, &ns, &chain(&ns, prompt, 10));
        if prompt == 100 {
            record(&late, &of_late, &chain(&of_late, 200, 10));
        }
    }
    times[0].advance(Duration::from_secs(900));
    record(&pool, &ns, &chain(&ns, 0, 10));
    let fabric = open_region(&shared.source, &MapOptions::default()).expect("the region is there");
    let [quarter, _, day] = &ceilings(&fabric)[..] else { panic!("three windows") };
    assert!(quarter.is_over && quarter.requests == 201 && quarter.blocks == 2_010, "{quarter:?}");
    assert!(is_near(quarter, 2_010), "{quarter:?}");
    assert_eq!((day.requests, day.blocks), (203, 2_030), "{day:?}");
}

#[test]
fn windows_of_two_hosts_are_of_the_union() {
    let (fabric, [zero, one]) = two_hosts(&config(100, 64));
    let ns = [namespace(&zero, 1, BLOCK_BYTES), namespace(&one, 1, BLOCK_BYTES)];
    for prompt in 0..100 {
        record(&zero, &ns[0], &chain(&ns[0], prompt, 10));
        record(&one, &ns[1], &chain(&ns[1], prompt + 50, 10));
    }
    zero.tick();
    one.tick();
    let distinct = (0..150).flat_map(|prompt| chain(&ns[0], prompt, 10)).collect::<BTreeSet<_>>().len();
    let windows = ceilings(&fabric);
    // A quarter of an hour may have begun meanwhile.
    let day = &windows[2];
    assert!(day.blocks == 2_000 && is_near(day, distinct) || windows.iter().any(|window| window.is_over), "{day:?}");
}
