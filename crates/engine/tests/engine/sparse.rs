//! Sparse decode reads what it chose, wherever the pages lie.

use crate::common::region::{self, open, pool, while_damaged};
use crate::common::{
    MemoryStore, alone, config, crowd, greedy, model_dir, prompt, request, run, start, start_exact, start_with,
};
use cenote_base::Request;
use cenote_engine::{EngineConfig, LoadedModel, PrefetchDepth, SparseConfig};
use cenote_policy::choice::ChoiceKind;
use cenote_store::mover::LinkSpeed;
use std::path::Path;

const CASE: &str = "gqa-tied";

/// Everything in L1.
fn ample(dir: &Path, sparse: SparseConfig) -> EngineConfig {
    EngineConfig { sparse: Some(sparse), ..config(dir) }
}

/// Eight blocks of L1, the others in the region.
fn small(dir: &Path, sparse: SparseConfig) -> EngineConfig {
    let block_bytes = LoadedModel::load(&config(dir)).unwrap().layout().block_bytes();
    EngineConfig {
        max_num_batched_tokens: 32,
        max_num_seqs: 4,
        kv_blocks: Some(8),
        spill_bytes: (64 * block_bytes) as u64,
        ..ample(dir, sparse)
    }
}

/// Prompts of 100 to 170 tokens: 6 to 10 full pages.
fn requests() -> Vec<Request> {
    (0..8).map(|seed| request(prompt(seed, 100 + 10 * seed as usize), greedy(40))).collect()
}

#[test]
fn all_pages_give_the_tokens_of_dense_decode() {
    let dir = model_dir(CASE);
    let requests = requests();
    let dense = alone(&config(dir.path()), &requests);
    let sparse = SparseConfig::with_pages(64);
    assert!(alone(&ample(dir.path(), sparse), &requests) == dense, "in L1");
    let (_, pool) = pool(8 << 20);
    let engine = start_with(&small(dir.path(), sparse), open(dir.path(), &pool));
    for from in ["computed", "in the region"] {
        let (tokens, stats) = crowd(&engine, &requests);
        assert!(tokens == dense, "{from}");
        assert_eq!(stats["preemptions_total"], 0.0, "{stats:?}");
    }
    drop(engine);
    assert_eq!(pool.check(true).unwrap().reserved, 0, "no reservation is left");
}

/// Choices are exact, so tokens do not depend on where pages lie, on what stays in L1, and on what is
/// prefetched.
#[test]
fn tokens_do_not_depend_on_tiers_or_predictions() {
    let dir = model_dir(CASE);
    let requests = requests();
    let of = |pages| SparseConfig::with_pages(pages);
    let expected = alone(&ample(dir.path(), of(3)), &requests);
    assert!(expected != alone(&config(dir.path()), &requests), "three pages change the text");
    let slow = LinkSpeed { bytes_per_s: 1e7, ..LinkSpeed::NIAGARA };
    let cases = [
        (SparseConfig { hot_pages: 0, ..of(3) }, None),
        (of(3), None),
        (SparseConfig { predictor: Some(ChoiceKind::Last), hot_pages: 1, ..of(3) }, Some(slow)),
        (SparseConfig { predictor: Some(ChoiceKind::Averaged), ..of(3) }, None),
        (
            SparseConfig { predictor: Some(ChoiceKind::Lstm), depth: PrefetchDepth::Fixed(16), hot_pages: 0, ..of(3) },
            None,
        ),
        (SparseConfig { predictor: Some(ChoiceKind::Neighbor { distance: 1 }), ..of(3) }, Some(LinkSpeed::NIAGARA)),
    ];
    for (sparse, link) in cases {
        let (_, pool) = pool(8 << 20);
        let config = EngineConfig { link, ..small(dir.path(), sparse) };
        // With threads of a mover only the tokens are certain.
        let threaded = start_with(&config, open(dir.path(), &region::pool(8 << 20).1));
        assert!(crowd(&threaded, &requests).0 == expected, "{sparse:?} {link:?}, with a thread");
        let engine = start_exact(config, open(dir.path(), &pool));
        let (tokens, stats) = crowd(&engine, &requests);
        assert!(tokens == expected, "{sparse:?} {link:?}");
        assert_eq!((stats["preemptions_total"], stats["spill_lost_blocks_total"]), (0.0, 0.0), "{stats:?}");
        let count = |name: &str| stats[&format!("sparse_{name}_pages_total")];
        let near = count("resident") + count("hot") + count("prefetched");
        assert_eq!(near + count("late") + count("demanded"), count("chosen"), "{stats:?}");
        // Without a link a page arrives as soon as the mover is asked.
        assert!(count("demanded") > 0.0 && (count("late") > 0.0 || link.is_none()), "{sparse:?}: {stats:?}");
        assert_eq!(count("prefetched") > 0.0, sparse.predictor.is_some(), "{sparse:?}: {stats:?}");
        assert!(count("hot") > 0.0 || (sparse.hot_pages == 0 && sparse.predictor.is_none()), "{sparse:?}: {stats:?}");
        assert_eq!(stats["sparse_prefetched_bytes_total"] > 0.0, sparse.predictor.is_some(), "{sparse:?}: {stats:?}");
        // A second time the prompts are in the region, and most never were in L1.
        let (tokens, again) = crowd(&engine, &requests);
        assert!(tokens == expected, "{sparse:?} {link:?}: from the region");
        assert!(again["spill_opened_blocks_total"] > stats["spill_opened_blocks_total"]);
        assert_eq!(again["sparse_page_bytes"], 0.0, "nothing runs");
        drop(engine);
        assert_eq!(pool.check(true).unwrap().reserved, 0, "no reservation is left");
    }
}

/// The KV of sparse steps depends on where the prompt ended, so no other request may find it.
#[test]
fn only_what_dense_steps_computed_is_published() {
    let dir = model_dir(CASE);
    let store = MemoryStore::default();
    let engine = start(&ample(dir.path(), SparseConfig::with_pages(2)), Some(store.clone()));
    let outcome = run(&engine, request(prompt(5, 100), greedy(60))).unwrap();
    assert_eq!(outcome.tokens.len(), 60);
    assert_eq!(store.shared.lock().unwrap().saved.len(), 100 / 16);
    // A dense engine publishes the answer too.
    let store = MemoryStore::default();
    let engine = start(&config(dir.path()), Some(store.clone()));
    run(&engine, request(prompt(5, 100), greedy(60))).unwrap();
    assert_eq!(store.shared.lock().unwrap().saved.len(), 159 / 16);
}

/// Bytes of the region change while requests run. With all pages chosen, a page that was recomputed
/// equals the lost one.
#[test]
fn damaged_pages_are_recomputed() {
    let dir = model_dir(CASE);
    let requests = requests();
    let expected = alone(&config(dir.path()), &requests);
    let (fabric, pool) = pool(8 << 20);
    let engine = start_with(&small(dir.path(), SparseConfig::with_pages(64)), open(dir.path(), &pool));
    let (tokens, _) = while_damaged(&fabric, || crowd(&engine, &requests));
    assert!(tokens == expected);
}

/// Every eleventh block that leaves L1 does not come back.
#[test]
fn lost_blocks_are_recomputed() {
    let dir = model_dir(CASE);
    let requests = requests();
    let store = MemoryStore::default();
    store.shared.lock().unwrap().swap_room = usize::MAX;
    store.shared.lock().unwrap().swap_damage = Some(11);
    let engine = start_exact(small(dir.path(), SparseConfig::with_pages(3)), Box::new(store));
    let (tokens, stats) = crowd(&engine, &requests);
    assert!(tokens.iter().all(|tokens| tokens.len() == 40), "every request ends");
    assert!(stats["spill_lost_blocks_total"] > 0.0, "{stats:?}");
}

#[test]
fn heads_that_are_no_whole_panels_are_refused() {
    let dir = model_dir("gqa-untied-llama3");
    let error = LoadedModel::load(&ample(dir.path(), SparseConfig::with_pages(2))).err().unwrap();
    assert!(error.to_string().contains("heads of 24 values"), "{error}");
    let dir = model_dir(CASE);
    let error = LoadedModel::load(&ample(dir.path(), SparseConfig::with_pages(0))).err().unwrap();
    assert!(error.to_string().contains("sparse_pages"), "{error}");
}
