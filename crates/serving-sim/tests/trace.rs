//! Tests with a small synthetic trace in Mooncake's format, and with the public trace if it lies
//! beside the repository.

use cenote_base::testing::beside;
use cenote_policy::{Eviction, Watermark};
use cenote_serving_sim::hits::{Instants, Routing};
use cenote_serving_sim::model::{CXL, CostModel, Device, ModelShape, NVME_L4, NVME_L4_WRITE};
use cenote_serving_sim::serving::{Pool, Prefetch};
use cenote_serving_sim::workload::read_mooncake;
use cenote_serving_sim::{
    Cold, Hosts, Setup, Workload, hit_rate, hit_rate_on_hosts, simulate, simulate_with_cold_tier,
};
use std::collections::VecDeque;
use std::io::BufReader;
use std::path::Path;

fn read(path: &Path) -> Workload {
    let file = BufReader::new(std::fs::File::open(path).expect("the trace"));
    let read = read_mooncake(file, 512, true).expect("a trace");
    assert_eq!(read.odd_lengths, 0);
    read.workload
}

fn small() -> Workload {
    read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/conversations.jsonl")))
}

/// Reference implementation of the counting rule ([`cenote_serving_sim::hits`]) under LRU.
fn naive(workload: &Workload, capacity: usize) -> u64 {
    let mut oldest_first: VecDeque<u32> = VecDeque::new();
    let mut hits = 0;
    for request in workload.requests() {
        let blocks = workload.blocks(request);
        hits += blocks.iter().take_while(|block| oldest_first.contains(block)).count() as u64;
        for block in blocks {
            oldest_first.retain(|other| other != block);
            oldest_first.push_back(*block);
            if oldest_first.len() > capacity {
                oldest_first.pop_front();
            }
        }
    }
    hits
}

#[test]
fn hit_rates_follow_the_counting_rule() {
    let workload = small();
    assert_eq!((workload.requests().len(), workload.num_blocks()), (240, 1_669));
    let found = |capacity| hit_rate(&workload, Eviction::Lru, capacity, Instants::Block);
    assert_eq!((found(None).hit_blocks, found(None).blocks), (2_283, 3_952));
    for capacity in [103, 110, 150, 200, 400, 800] {
        assert_eq!(found(Some(capacity)).hit_blocks, naive(&workload, capacity), "{capacity} blocks");
    }
    // Computed by an independent program in another language.
    assert_eq!((found(Some(200)).hit_blocks, found(Some(400)).hit_blocks), (2_162, 2_279));
}

#[test]
fn a_pool_on_hosts_without_limit_loses_nothing() {
    let workload = small();
    for (count, eviction) in [1, 3, 16].into_iter().flat_map(|count| Eviction::ALL.map(|eviction| (count, eviction))) {
        for routing in [Routing::RoundRobin, Routing::Sticky, Routing::One] {
            let found = hit_rate_on_hosts(&workload, eviction, None, Hosts::new(count), routing);
            assert_eq!((found.hit_blocks, found.evicted_blocks), (2_283, 0), "{eviction}, {count} hosts, {routing:?}");
        }
    }
}

#[test]
fn space_moves_to_the_host_that_serves() {
    let workload = small();
    let one = |count| hit_rate_on_hosts(&workload, Eviction::Lru, Some(400), Hosts::new(count), Routing::One);
    let by_turns = hit_rate_on_hosts(&workload, Eviction::Lru, Some(400), Hosts::new(4), Routing::RoundRobin);
    assert_eq!(one(1).hit_blocks, one(4).hit_blocks, "the idle hosts have no chunk");
    assert!(by_turns.moved_chunks > 0, "{by_turns:?}");
    assert!(by_turns.hit_rate > one(1).hit_rate - 0.03, "{by_turns:?}, one host {:?}", one(1));
}

#[test]
fn engines_on_hosts_share_one_pool() {
    let workload = small();
    let setup = Setup { shared: Some(Pool { bytes: Some(24 << 30), link: CXL }), ..engines() };
    let run = |hosts| simulate(&Setup { hosts, ..setup.clone() }, &workload, &mut |_| ()).expect("it can be served");
    let ideal = run(None);
    for count in [1, 2, 4] {
        let on_hosts = run(Some(Hosts { chunk_blocks: 1, ..Hosts::new(count) }));
        assert_eq!((on_hosts.requests, on_hosts.generated_tokens), (240, ideal.generated_tokens));
        assert!(
            (on_hosts.hit_rate - ideal.hit_rate).abs() < 0.05,
            "{count}: {} of {}",
            on_hosts.hit_rate,
            ideal.hit_rate
        );
    }
    let none = simulate(&Setup { hosts: Some(Hosts::new(0)), ..setup }, &workload, &mut |_| ());
    assert!(none.unwrap_err().to_string().contains("without hosts"));
}

#[test]
fn engines_with_a_pool_reach_nearly_the_hit_rate_of_the_trace() {
    let workload = small();
    let setup = engines();
    let run = |setup: &Setup| simulate(setup, &workload, &mut |_| ()).expect("it can be served");
    let with = run(&setup);
    let without = run(&Setup { shared: None, ..setup });
    let offered = hit_rate(&workload, Eviction::Lru, None, Instants::Block).hit_rate;
    // A request that arrives while the previous one computes hits less than in a sequential replay.
    assert!(with.hit_rate <= offered && with.hit_rate > offered - 0.1, "{} of {offered}", with.hit_rate);
    assert_eq!((with.requests, without.requests, without.hit_rate), (240, 240, 0.0));
    assert!(with.ttft_mean_ms < without.ttft_mean_ms);
}

#[test]
fn each_source_fetches_blocks_ahead() {
    let workload = small();
    let continues = workload.previous_prompts().iter().filter(|previous| previous.is_some()).count();
    assert!(continues > 100, "{continues} of 240 prompts continue another");
    let shape = ModelShape::named("llama-8b").expect("a preset");
    let bytes = Some(200 * 512 * shape.kv_bytes_per_token());
    let setup = Setup { instances: 1, shared: Some(Pool { bytes, link: CXL }), ..engines() };
    let disk = Cold {
        bytes: None,
        tier: NVME_L4,
        write_bytes_per_s: NVME_L4_WRITE,
        writes_max: 4_096,
        compression: None,
        prefetch: Prefetch::NONE,
    };
    let run = |prefetch| {
        let cold = Cold { prefetch, ..disk };
        simulate_with_cold_tier(&setup, &cold, &workload, &mut |_| ()).expect("it can be served")
    };
    let (plain, none) = run(Prefetch::NONE);
    assert!(none.prefetched == [0; 4] && none.read_on_demand > 0, "{none:?}");
    let (_, waiting) = run(Prefetch::WAITING);
    assert!(waiting.prefetched[0] + waiting.prefetched[1] > 0, "{waiting:?}");
    let (hinted, hints) = run(Prefetch { hint_ns: Some(5_000_000_000), ..Prefetch::WAITING });
    assert!(hints.announced[0] > 0 && hints.prefetched[2] > 0 && hints.prefetch_hits[2] > 0, "{hints:?}");
    assert!(hints.read_on_demand < none.read_on_demand, "{hints:?} {none:?}");
    let (_, guessed) = run(Prefetch { speculate: true, ..Prefetch::WAITING });
    assert!(guessed.announced[1] > 0 && guessed.prefetched[3] > 0, "{guessed:?}");
    for told in [waiting, hints, guessed] {
        assert!(told.prefetched.iter().zip(told.prefetch_hits).all(|(fetched, hits)| hits <= *fetched), "{told:?}");
    }
    assert_eq!((plain.requests, plain.generated_tokens), (hinted.requests, hinted.generated_tokens));
}

/// Four engines and an unlimited pool.
fn engines() -> Setup {
    let (device, shape) = (Device::named("a100").expect("a preset"), ModelShape::named("llama-8b").expect("a preset"));
    Setup {
        instances: 4,
        cost: CostModel::roofline(device, shape),
        front_ns: 0,
        kv_bytes_per_token: shape.kv_bytes_per_token(),
        l1_blocks: 26_000,
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
        shared: Some(Pool { bytes: None, link: CXL }),
        hosts: None,
        eviction: Eviction::Lru,
    }
}

#[test]
fn the_mooncake_trace_has_its_known_hit_rate() {
    let Some(path) = beside("data/mooncake_conversation.jsonl") else { return };
    let workload = read(&path);
    let found = hit_rate(&workload, Eviction::Lru, None, Instants::Block);
    assert_eq!((found.requests, found.blocks, found.unique_blocks), (12_031, 288_500, 182_790));
    assert_eq!(format!("{:.3}", found.hit_rate), "0.366");
    let capacity = 1_000;
    let small = hit_rate(&workload, Eviction::Lru, Some(capacity), Instants::Block);
    assert_eq!(small.hit_blocks, naive(&workload, capacity));
}

#[test]
fn a_cold_tier_brings_back_what_a_tenth_of_the_working_set_loses() {
    let Some(path) = beside("data/mooncake_conversation.jsonl") else { return };
    let workload = read(&path);
    let shape = ModelShape::named("llama-8b").expect("a preset");
    let block_bytes = shape.kv_bytes_per_token() * 512;
    let tenth = Pool { bytes: Some(workload.num_blocks() as u64 / 10 * block_bytes), link: CXL };
    let setup = Setup { instances: 8, shared: Some(tenth), ..engines() };
    let cold = Cold {
        bytes: None,
        tier: NVME_L4,
        write_bytes_per_s: NVME_L4_WRITE,
        writes_max: 4_096,
        compression: None,
        prefetch: Prefetch::WAITING,
    };
    let alone = simulate(&setup, &workload, &mut |_| ()).expect("it can be served");
    let (with, told) = simulate_with_cold_tier(&setup, &cold, &workload, &mut |_| ()).expect("it can be served");
    assert!(with.hit_rate > alone.hit_rate + 0.05, "{} instead of {}: {told:?}", with.hit_rate, alone.hit_rate);
    assert_eq!((with.requests, with.generated_tokens), (alone.requests, alone.generated_tokens));
}

#[test]
fn hosts_stay_within_a_point_of_one_lru() {
    let Some(path) = beside("data/mooncake_conversation.jsonl") else { return };
    let workload = read(&path);
    let capacity = Some(10_000);
    let ideal = hit_rate(&workload, Eviction::Lru, capacity, Instants::Block).hit_rate;
    for count in [1, 2, 4, 8, 16] {
        let found = hit_rate_on_hosts(&workload, Eviction::Lru, capacity, Hosts::new(count), Routing::RoundRobin);
        assert!(found.hit_rate > ideal - 0.01, "{count} hosts find {:.4}, one LRU {ideal:.4}", found.hit_rate);
    }
}
