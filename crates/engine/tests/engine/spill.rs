//! Requests whose KV exceeds L1 give the same tokens as requests that fit.

use crate::common::region::{open, pool, while_damaged};
use crate::common::{MemoryStore, alone, config, crowd, greedy, model_dir, prompt, request, start_exact, start_with};
use cenote_base::Request;
use cenote_engine::{EngineConfig, LoadedModel};
use cenote_store::mover::{LinkSpeed, MoverKind};
use std::path::Path;

/// Eight blocks of L1, and `spill_blocks` in the region.
fn small(dir: &Path, spill_blocks: usize) -> EngineConfig {
    let block_bytes = LoadedModel::load(&config(dir)).unwrap().layout().block_bytes();
    EngineConfig {
        max_num_batched_tokens: 32,
        max_num_seqs: 4,
        kv_blocks: Some(8),
        spill_bytes: (spill_blocks * block_bytes) as u64,
        ..config(dir)
    }
}

/// Prompts of 1 to 177 tokens.
fn requests() -> Vec<Request> {
    (0..12).map(|seed| request(prompt(seed, 16 * seed as usize + 1), greedy(30))).collect()
}

#[test]
fn a_working_set_beyond_l1_gives_the_same_tokens() {
    for case in ["gqa-untied-llama3", "gqa-tied"] {
        let dir = model_dir(case);
        let requests = requests();
        let expected = alone(&config(dir.path()), &requests);
        let slow = LinkSpeed { bytes_per_s: 1e7, ..LinkSpeed::NIAGARA };
        // Where steps wait, a request may make room. The pages of one model are twice as long.
        let slowly = if case == "gqa-tied" { [8.0, 1048.0] } else { [17.0, 1038.0] };
        let cases =
            [(None, true, [0.0, 3602.0]), (Some(LinkSpeed::NIAGARA), true, [0.0, 3602.0]), (Some(slow), false, slowly)];
        for (link, spill_freely, counts) in cases {
            let (_, pool) = pool(8 << 20);
            let config = EngineConfig { link, spill_freely, ..small(dir.path(), 64) };
            let engine = start_exact(config, open(dir.path(), &pool));
            let (tokens, stats) = crowd(&engine, &requests);
            assert!(tokens == expected, "{case} {link:?}");
            assert_eq!(["preemptions_total", "staged_pages_total"].map(|name| stats[name]), counts, "{stats:?}");
            assert_eq!(stats["spill_lost_blocks_total"], 0.0, "{stats:?}");
            assert_eq!(stats["staging_stall_ns_total"] > 0.0, link.is_some(), "{stats:?}");
            // A second time the prompts are in the region, and longer than L1.
            let (tokens, again) = crowd(&engine, &requests);
            assert!(tokens == expected, "{case} {link:?}: from the region");
            assert!(again["spill_opened_blocks_total"] > stats["spill_opened_blocks_total"]);
            drop(engine);
            assert_eq!(pool.check(true).unwrap().reserved, 0, "no reservation is left");
        }
    }
}

/// How many requests run at once depends on the time that steps wait for copies, so that with threads no
/// two runs need be the same. The tokens are.
#[test]
fn movers_with_threads_give_the_same_tokens() {
    let dir = model_dir("gqa-tied");
    let requests = requests();
    let expected = alone(&config(dir.path()), &requests);
    for threads in [0, 1, 2] {
        for (link, spill_freely) in [(None, true), (Some(LinkSpeed::NIAGARA), false)] {
            let (_, pool) = pool(8 << 20);
            let mover = MoverKind::Threads(threads);
            let config = EngineConfig { mover, link, spill_freely, ..small(dir.path(), 64) };
            let (tokens, _) = crowd(&start_with(&config, open(dir.path(), &pool)), &requests);
            assert!(tokens == expected, "{threads} threads, {link:?}");
            assert_eq!(pool.check(true).unwrap().reserved, 0, "no reservation is left");
        }
    }
}

/// The order of steps and copies is that of calls and of manual time, so all counters repeat, and with
/// them the times.
#[test]
fn a_run_in_manual_time_repeats_exactly() {
    let dir = model_dir("gqa-tied");
    let run = || {
        let (_, pool) = pool(8 << 20);
        let config = EngineConfig { link: Some(LinkSpeed::NIAGARA), ..small(dir.path(), 64) };
        crowd(&start_exact(config, open(dir.path(), &pool)), &requests())
    };
    let first = run();
    assert!(first.1["staging_hidden_ns_total"] > 0.0 && first.1["staging_stall_ns_total"] > 0.0, "{:?}", first.1);
    assert_eq!(first, run());
}

/// A block returns to L1 when requests end before the one that owns it.
#[test]
fn spilled_blocks_return_to_l1() {
    let dir = model_dir("gqa-untied-llama3");
    let requests = requests();
    let expected = alone(&config(dir.path()), &requests);
    let (_, pool) = pool(8 << 20);
    let engine = start_exact(small(dir.path(), 64), open(dir.path(), &pool));
    let (tokens, stats) = crowd(&engine, &requests);
    assert!(tokens == expected);
    assert_eq!(stats["spill_promoted_blocks_total"], 6.0, "{stats:?}");
}

#[test]
fn damaged_pages_are_recomputed() {
    let dir = model_dir("gqa-untied-llama3");
    let requests = requests();
    let expected = alone(&config(dir.path()), &requests);
    let (fabric, pool) = pool(8 << 20);
    let engine = start_with(&small(dir.path(), 64), open(dir.path(), &pool));
    let (tokens, _) = while_damaged(&fabric, || crowd(&engine, &requests));
    assert!(tokens == expected);
}

/// Every eleventh block that leaves L1 does not come back.
#[test]
fn lost_blocks_are_recomputed() {
    let dir = model_dir("gqa-untied-llama3");
    let requests = requests();
    let expected = alone(&config(dir.path()), &requests);
    let store = MemoryStore::default();
    store.shared.lock().unwrap().swap_room = usize::MAX;
    store.shared.lock().unwrap().swap_damage = Some(11);
    let engine = start_exact(small(dir.path(), 64), Box::new(store));
    let (tokens, stats) = crowd(&engine, &requests);
    assert!(tokens == expected);
    assert_eq!(stats["spill_lost_blocks_total"], 12.0, "{stats:?}");
}

/// The store takes few blocks. The requests that fit run by preemption.
#[test]
fn a_full_region_preempts() {
    let dir = model_dir("gqa-untied-llama3");
    let requests: Vec<Request> = (0..8).map(|seed| request(prompt(seed, 60), greedy(30))).collect();
    let store = MemoryStore::default();
    store.shared.lock().unwrap().swap_room = 5;
    let engine = start_exact(small(dir.path(), 64), Box::new(store));
    let (tokens, stats) = crowd(&engine, &requests);
    assert!(tokens == alone(&config(dir.path()), &requests));
    assert_eq!(["spill_refused_blocks_total", "preemptions_total"].map(|name| stats[name]), [45.0, 63.0], "{stats:?}");
}

#[test]
fn too_little_l1_for_a_step_is_refused() {
    let dir = model_dir("gqa-tied");
    let error = LoadedModel::load(&EngineConfig { kv_blocks: Some(5), ..small(dir.path(), 8) }).err().unwrap();
    assert!(error.to_string().contains("kv_bytes"), "{error}");
}
