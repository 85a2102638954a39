use super::cold::{Compression, Prefetch};
use super::*;
use crate::model::cache_engine::QPACK;
use crate::model::{CostModel, Device, Link, ModelShape, NVME_L4, NVME_L4_WRITE, PCIE_5, SPECKV_L3};
use crate::workload::{Length, Synthetic, cpen};
use cenote_policy::{Eviction, Watermark};

const GIB: u64 = 1 << 30;

fn setup() -> Setup {
    let (device, shape) = (Device::named("a100").expect("a preset"), ModelShape::named("llama-8b").expect("a preset"));
    Setup {
        front_ns: 0,
        instances: 2,
        cost: CostModel::roofline(device, shape),
        kv_bytes_per_token: shape.kv_bytes_per_token(),
        l1_blocks: 20_000,
        l1_block_tokens: 16,
        max_num_seqs: 256,
        max_num_batched_tokens: 8_192,
        watermark: Watermark::DEFAULT,
        swap_blocks: 0,
        has_prefix_cache: false,
        swap_link: device.host,
        always_swap: false,
        spill: None,
        private: None,
        shared: None,
        hosts: None,
        eviction: Eviction::Lru,
    }
}

fn pool(bytes: Option<u64>) -> Option<Pool> {
    Some(Pool { bytes, link: PCIE_5 })
}

fn load() -> Workload {
    Synthetic { groups: 4, block_tokens: 64, ..Synthetic::tract('A', 300, 6.0).expect("workload A") }.draw(3)
}

fn run(setup: &Setup, workload: &Workload) -> Outcome {
    simulate(setup, workload, &mut |_| ()).expect("it can be served")
}

#[test]
fn every_request_is_answered_and_counted_once() {
    let (setup, workload) = (setup(), load());
    let mut told = Vec::new();
    let outcome = simulate(&setup, &workload, &mut |done| told.push(done)).expect("the setup can serve the load");
    let sum = |of: fn(&crate::Request) -> u32| workload.requests().iter().map(|r| u64::from(of(r))).sum::<u64>();
    assert_eq!(outcome.requests, 300);
    assert_eq!(outcome.prompt_tokens, sum(|request| request.input_tokens));
    assert_eq!(outcome.generated_tokens, sum(|request| request.output_tokens));
    assert_eq!((outcome.hit_rate, outcome.pool_read_bytes, outcome.swaps), (0.0, 0, 0));
    assert!(outcome.ttft_p50_ms <= outcome.ttft_p99_ms && outcome.token_p50_ms <= outcome.token_p99_ms);
    assert!(told.len() == 1 && told[0] >= 256, "{told:?}");
}

#[test]
fn equal_seeds_give_equal_results() {
    let setup = Setup { shared: pool(Some(8 * GIB)), eviction: Eviction::S3Fifo, ..setup() };
    assert_eq!(run(&setup, &load()), run(&setup, &load()));
}

#[test]
fn a_single_request_takes_the_time_of_the_cost_model() {
    let spec = Synthetic { unique: None, output: Length::fixed(3), input: Length::fixed(1_000), ..tract_alone() };
    let workload = spec.draw(1);
    let setup = setup();
    let outcome = run(&setup, &workload);
    let step = |computed, new| {
        let mut work = crate::model::StepWork::default();
        work.add(computed, new);
        setup.cost.step(&work) as f64 / 1e6
    };
    assert!((outcome.ttft_mean_ms - step(0, 1_000)).abs() < 1e-3, "{outcome:?}");
    let expected = step(0, 1_000) + step(1_000, 1) + step(1_001, 1);
    assert!((1e3 * outcome.makespan_s - expected).abs() < 1e-3, "{outcome:?}");
    assert_eq!(outcome.steps, 3);
}

fn tract_alone() -> Synthetic {
    Synthetic::tract('A', 1, 0.0).expect("workload A")
}

#[test]
fn a_shared_pool_hits_more_than_private_caches() {
    let workload = load();
    let nothing = run(&setup(), &workload);
    let shared = run(&Setup { shared: pool(None), ..setup() }, &workload);
    let private = run(&Setup { private: pool(None), ..setup() }, &workload);
    assert!(shared.hit_rate > private.hit_rate && private.hit_rate > 0.3, "{} {}", shared.hit_rate, private.hit_rate);
    assert!(shared.ttft_mean_ms < nothing.ttft_mean_ms, "{} {}", shared.ttft_mean_ms, nothing.ttft_mean_ms);
    assert!(shared.pool_read_bytes > 0 && shared.private_read_bytes == 0 && private.private_read_bytes > 0);
    let small = run(&Setup { shared: pool(Some(4 * GIB)), ..setup() }, &workload);
    assert!(small.hit_rate < shared.hit_rate && small.evicted_blocks > 0);
}

#[test]
fn a_slow_link_raises_the_time_to_first_token() {
    let workload = load();
    let with = |bytes_per_s| {
        let link = Link { bytes_per_s, latency_ns: 640 };
        run(&Setup { shared: Some(Pool { bytes: None, link }), ..setup() }, &workload).ttft_mean_ms
    };
    assert!(with(1_000_000_000) > 1.5 * with(100_000_000_000));
}

/// CPEN 511's setup: 400 prompts at once, few blocks.
fn pressed(watermark: Watermark) -> Setup {
    let shape = ModelShape::named("opt-1.3b").expect("a preset");
    let device = Device::named("a100").expect("a preset");
    Setup {
        front_ns: 0,
        instances: 1,
        cost: CostModel::roofline(device, shape),
        kv_bytes_per_token: shape.kv_bytes_per_token(),
        l1_blocks: 300,
        watermark,
        swap_blocks: 10_000,
        always_swap: true,
        ..setup()
    }
}

#[test]
fn memory_pressure_swaps_and_a_watermark_reduces_it() {
    let workload = cpen(400, 1.0, 1);
    let (fixed, trace) = swap_trace(&pressed(Watermark::DEFAULT), &workload).expect("it can be served");
    assert_eq!(fixed.requests, 400);
    assert!(fixed.swaps > 50 && fixed.preemptions == 0, "{fixed:?}");
    assert_eq!((fixed.swapped_out_blocks, 2 * fixed.swaps), (fixed.swapped_in_blocks, trace.len() as u64));
    // Requests are swapped in in the order in which they were swapped out.
    let mut out = std::collections::VecDeque::new();
    for swap in trace {
        match swap {
            Swap::Out(id) => out.push_back(id),
            Swap::In(id) => assert_eq!(out.pop_front(), Some(id)),
        }
    }
    let relieved = run(&pressed("opt:12".parse().expect("a watermark")), &workload);
    assert!(relieved.swapped_out_blocks < fixed.swapped_out_blocks, "{relieved:?}");
    let recomputed = run(&Setup { swap_blocks: 0, ..pressed(Watermark::DEFAULT) }, &workload);
    assert!(
        recomputed.preemptions > 50 && recomputed.swaps == 0 && recomputed.generated_tokens == fixed.generated_tokens
    );
}

#[test]
fn an_impossible_setup_is_refused_with_its_reason() {
    let workload = load();
    let refused = |setup: &Setup| simulate(setup, &workload, &mut |_| ()).expect_err("impossible").to_string();
    let dead = Link { bytes_per_s: 0, latency_ns: 0 };
    for (setup, words) in [
        (Setup { instances: 0, ..setup() }, "no instances"),
        (
            Setup { shared: pool(Some(1 << 20)), ..setup() },
            "a pool of 1048576 bytes holds 0 blocks of 64 tokens, but request",
        ),
        (Setup { private: pool(Some(1 << 20)), ..setup() }, "an instance's own cache of 1048576 bytes"),
        (Setup { shared: Some(Pool { bytes: None, link: dead }), ..setup() }, "the pool's link has no bandwidth"),
        (Setup { swap_blocks: 1, swap_link: dead, ..setup() }, "the link to the swap space has no bandwidth"),
        (Setup { l1_blocks: 10, ..setup() }, "holds 160 tokens of KV, but request"),
        (Setup { l1_blocks: 0, ..setup() }, "without blocks"),
        (Setup { max_num_batched_tokens: 0, ..setup() }, "a step is without"),
    ] {
        let said = refused(&setup);
        assert!(said.contains(words), "{said}");
    }
}

/// A disk that is fast enough for the load.
const DISK: Cold = Cold {
    bytes: None,
    tier: NVME_L4,
    write_bytes_per_s: NVME_L4_WRITE,
    writes_max: 1_000,
    compression: None,
    prefetch: Prefetch::WAITING,
};

fn run_cold(setup: &Setup, cold: &Cold, workload: &Workload) -> (Outcome, ColdOutcome) {
    simulate_with_cold_tier(setup, cold, workload, &mut |_| ()).expect("it can be served")
}

#[test]
fn a_cold_tier_keeps_what_a_small_pool_evicts() {
    let (small, workload) = (Setup { shared: pool(Some(3 * GIB)), ..setup() }, load());
    let alone = run(&small, &workload);
    let unlimited = run(&Setup { shared: pool(None), ..setup() }, &workload);
    for prefetch in [Prefetch::NONE, Prefetch::WAITING] {
        let (outcome, cold) = run_cold(&small, &Cold { prefetch, ..DISK }, &workload);
        let hits: u64 = cold.prefetch_hits.iter().sum();
        let rates = (alone.hit_rate, outcome.hit_rate, unlimited.hit_rate);
        assert!(rates.0 < rates.1 && rates.1 <= rates.2 + 0.05, "{rates:?}");
        assert!(cold.demoted > 0 && cold.read_on_demand + hits > 0, "{cold:?}");
        assert_eq!(cold.prefetched.iter().sum::<u64>() > 0, prefetch.waiting, "{cold:?}");
        assert_eq!((outcome.requests, outcome.generated_tokens), (alone.requests, alone.generated_tokens));
    }
}

#[test]
fn a_disk_that_cannot_keep_up_with_writes_is_left_out() {
    let small = Setup { shared: pool(Some(3 * GIB)), ..setup() };
    let (_, cold) = run_cold(&small, &Cold { write_bytes_per_s: 1_000_000, writes_max: 2, ..DISK }, &load());
    assert!(cold.evicted > 0, "{cold:?}");
}

#[test]
fn a_cold_tier_needs_a_pool_above() {
    let error = simulate_with_cold_tier(&setup(), &DISK, &load(), &mut |_| ()).expect_err("there is no pool");
    assert_eq!(error, ConfigError::NoPoolAbove);
    let private = Setup { shared: pool(None), private: pool(None), ..setup() };
    let error = simulate_with_cold_tier(&private, &DISK, &load(), &mut |_| ()).expect_err("caches of instances");
    assert_eq!(error, ConfigError::NoPoolAbove);
}

#[test]
fn an_arrival_beyond_a_year_is_refused() {
    let load = Workload::alone(16, [(0, 16, 1), (400 * 86_400 * 1_000_000_000, 16, 1)]);
    let error = simulate(&setup(), &load, &mut |_| ()).expect_err("too late");
    assert_eq!(error, ConfigError::TooLate { request: 2 });
}

/// One engine with few blocks of its own, and `spill_blocks` outside.
fn spilling(l1_blocks: u32, spill_blocks: u32) -> Setup {
    let spill =
        (spill_blocks > 0).then_some(Spill { blocks: spill_blocks, layers: 32, tier: SPECKV_L3, is_ahead: true });
    Setup { instances: 1, l1_blocks, spill, max_num_seqs: 64, max_num_batched_tokens: 512, ..setup() }
}

#[test]
fn spilled_requests_run_slower_than_in_memory_and_faster_than_preempted_ones() {
    // 29 blocks each at their ends, 1,856 in all.
    let workload = Workload::alone(16, (0..64).map(|at| (at, 64, 400)));
    let whole = run(&spilling(1_900, 0), &workload);
    let preempted = run(&spilling(1_700, 0), &workload);
    let spilled = run(&spilling(1_700, 200), &workload);
    for outcome in [&whole, &preempted, &spilled] {
        assert_eq!((outcome.requests, outcome.generated_tokens), (64, 64 * 400), "{outcome:?}");
    }
    assert_eq!((whole.preemptions, whole.spilled_blocks, whole.streamed_bytes), (0, 0, 0));
    assert!(preempted.preemptions > 0 && spilled.preemptions == 0, "{preempted:?} {spilled:?}");
    assert!(spilled.spilled_blocks > 0 && spilled.streamed_bytes > 0, "{spilled:?}");
    let [whole, preempted, spilled] = [whole, preempted, spilled].map(|outcome| outcome.makespan_s);
    assert!(
        whole < spilled && spilled < preempted,
        "{whole} s in memory, {spilled} s spilled, {preempted} s preempted"
    );
}

#[test]
fn a_link_that_cannot_hide_the_spilled_blocks_makes_steps_wait() {
    let workload = Workload::alone(16, (0..64).map(|at| (at, 64, 400)));
    let fast = run(&spilling(1_700, 200), &workload);
    let mut setup = spilling(1_700, 200);
    setup.spill.as_mut().expect("it spills").tier.link.bytes_per_s /= 32;
    let slow = run(&setup, &workload);
    assert!(slow.streaming_stall_s > 10.0 * fast.streaming_stall_s, "{slow:?} {fast:?}");
    assert!(slow.makespan_s > fast.makespan_s && slow.generated_tokens == fast.generated_tokens);
}

#[test]
fn spill_space_enlarges_the_engine_and_needs_room_for_a_step() {
    let workload = Workload::alone(16, [(0, 8_000, 4)]);
    let small = spilling(300, 0);
    let refused = |setup: &Setup| simulate(setup, &workload, &mut |_| ()).expect_err("impossible").to_string();
    assert!(refused(&small).contains("holds 4800 tokens of KV, but request 1 needs 8004"), "{}", refused(&small));
    assert_eq!(run(&spilling(300, 300), &workload).generated_tokens, 4);
    let said = refused(&spilling(95, 1_000));
    assert!(said.contains("95 blocks of an engine's own memory are too few to spill others: 96"), "{said}");
}

#[test]
fn the_ladder_uses_every_rung() {
    let (small, workload) = (Setup { shared: pool(Some(3 * GIB)), ..setup() }, load());
    let alone = run(&small, &workload);
    let compression = Some(Compression::QPACK);
    let (packed, cold) = run_cold(&small, &Cold { bytes: Some(0), compression, ..DISK }, &workload);
    assert!(cold.compressed > 0 && cold.demoted == 0 && cold.evicted > 0, "{cold:?}");
    assert!(packed.hit_rate > alone.hit_rate, "{} compressed, {} alone", packed.hit_rate, alone.hit_rate);
    assert!(packed.pool_read_bytes > 0 && packed.generated_tokens == alone.generated_tokens);
    let (both, cold) = run_cold(&small, &Cold { compression, ..DISK }, &workload);
    assert!(cold.compressed > 0 && cold.demoted > 0, "{cold:?}");
    assert!(both.hit_rate > packed.hit_rate, "{} with L4, {} without", both.hit_rate, packed.hit_rate);
    let slow = Cold { write_bytes_per_s: 20_000_000, writes_max: 8, compression, ..DISK };
    let (_, cold) = run_cold(&small, &slow, &workload);
    assert!(cold.compressed > 0 && cold.demoted > 0 && cold.evicted > 0, "{cold:?}");
    assert!(cold.writes_waiting_max <= 8, "{cold:?}");
}

/// The clock of a hardware codec decides whether compressing is worth its time.
#[test]
fn a_slow_engine_in_hardware_compresses_less() {
    let (small, workload) = (Setup { shared: pool(Some(3 * GIB)), ..setup() }, load());
    let at = |clock_hz: u64| {
        let compression = Some(Compression::by_engine(&QPACK, Compression::QPACK.percent, clock_hz));
        run_cold(&small, &Cold { bytes: Some(0), compression, ..DISK }, &workload)
    };
    let ((fast, fast_cold), (slow, slow_cold)) = (at(200_000_000), at(100_000));
    assert!(fast_cold.compressed > 2 * slow_cold.compressed, "{fast_cold:?} {slow_cold:?}");
    assert!(fast.hit_rate > slow.hit_rate, "{} at 200 MHz, {} at 0.1 MHz", fast.hit_rate, slow.hit_rate);
}

#[test]
fn engines_in_hardware_share_their_memorys_channels() {
    let of = |engines| Compression::by_engines(&QPACK, Compression::QPACK.percent, 200_000_000, engines);
    let one = Compression::by_engine(&QPACK, Compression::QPACK.percent, 200_000_000);
    assert_eq!(of(1), one);
    let gain = of(4).decode_bytes_per_s as f64 / one.decode_bytes_per_s as f64;
    assert!(gain > 3.5 && gain < 4.0, "{gain}");
    let fast = Compression::by_engines(&QPACK, Compression::QPACK.percent, 1_000_000_000_000, 4);
    assert_eq!(fast.decode_bytes_per_s, 1_600_000_000_000, "no more than the memory's");
}

/// An engine's own cache is at most as large as its memory, and a hit in it takes no time.
#[test]
fn prompts_stay_in_an_engines_memory_until_others_need_it() {
    let (one, workload) = (Setup { instances: 1, ..setup() }, load());
    let alone = run(&one, &workload);
    let with = run(&Setup { has_prefix_cache: true, ..one.clone() }, &workload);
    assert!(alone.hit_rate == 0.0 && with.hit_rate > 0.0 && with.ttft_mean_ms < alone.ttft_mean_ms, "{with:?}");
    assert_eq!((with.private_read_bytes, with.pool_read_bytes), (0, 0));
    // A pool whose link takes no time, of the same size, finds no less.
    let free = Link { bytes_per_s: u64::MAX, latency_ns: 0 };
    let bytes = Some(u64::from(one.l1_blocks) * one.l1_block_bytes());
    let pool = run(&Setup { private: Some(Pool { bytes, link: free }), ..one.clone() }, &workload);
    assert!(with.hit_rate <= pool.hit_rate + 0.01, "{} {}", with.hit_rate, pool.hit_rate);
    // Beside a pool it takes reads from the link.
    let shared = Setup { shared: Some(Pool { bytes: None, link: one.swap_link }), ..one };
    let (far, near) = (run(&shared, &workload), run(&Setup { has_prefix_cache: true, ..shared }, &workload));
    assert!(near.pool_read_bytes < far.pool_read_bytes && near.hit_rate >= far.hit_rate, "{near:?}");
}
