//! Namespaces of tenants over a real region, and why blocks of a prompt are missing.

use crate::support::{region, spec};
use cenote_base::engine::Tenant;
use cenote_base::testing::{ManualTime, until};
use cenote_base::{Clock, HashSeed, TenantKey, TokenId};
use cenote_mem::Coherent;
use cenote_pool::{Pool, PoolConfig};
use cenote_store::{Computed, Miss, NamespaceSpec, PrefixStore, RegionStore};
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = 1024;

fn pool() -> Pool<Arc<Coherent>> {
    let config = PoolConfig {
        max_hosts: 1,
        workers_per_host: 4,
        removals_per_host: 64,
        ..PoolConfig::new(HashSeed([3; 32]), [4; 16])
    };
    region(&config, 16 << 20)
}

fn store(pool: &Pool<Arc<Coherent>>) -> RegionStore<Arc<Coherent>> {
    store_of(pool, "tiny", Clock::stopped())
}

fn store_of(pool: &Pool<Arc<Coherent>>, label: &str, clock: Clock) -> RegionStore<Arc<Coherent>> {
    let spec = NamespaceSpec { label: label.to_owned(), ..spec(9, PAGE, "") };
    RegionStore::new(pool.clone(), &spec, clock).expect("a row is free")
}

fn tenant(name: &str, quota_bytes: u64, kept_bytes: u64) -> Tenant {
    Tenant { key: TenantKey::of_name(name), name: name.to_owned(), quota_bytes, kept_bytes }
}

/// Label, quota and kept bytes of the region's rows.
fn rows(pool: &Pool<Arc<Coherent>>) -> Vec<(String, u64, u64)> {
    pool.namespaces().into_iter().map(|row| (row.label, row.quota_bytes, row.kept_bytes)).collect()
}

fn row(name: &str, quota: u64, kept: u64) -> (String, u64, u64) {
    (name.to_owned(), quota, kept)
}

/// Saves the blocks of a prompt of a tenant. Returns how many are saved.
fn save(store: &mut RegionStore<Arc<Coherent>>, of: Option<TenantKey>, tokens: &[TokenId]) -> usize {
    let names = store.naming().of(of).expect("a region has tenants").names(None, tokens);
    let page = vec![7; PAGE];
    let pages = [&page[..]; 4];
    let computed = |(depth, &hash)| Computed { hash, depth, pages: &pages };
    let computed: Vec<_> = (0..).zip(names.iter()).map(computed).collect();
    store.save_all(of, &computed)
}

fn found(store: &mut RegionStore<Arc<Coherent>>, of: Option<TenantKey>, tokens: &[TokenId]) -> usize {
    let names = store.naming().of(of).expect("a region has tenants").names(None, tokens);
    store.match_prefix(&names)
}

#[test]
fn each_tenant_has_a_row_with_its_limits() {
    let pool = pool();
    let store = store(&pool);
    let tenants = store.tenants().expect("a region has tenants");
    assert_eq!(tenants.set(&[tenant("a", 1 << 20, 0), tenant("b", 0, 4 << 20)]), [""; 0]);
    assert_eq!(rows(&pool), [row("tiny", 0, 0), row("tiny/a", 1 << 20, 0), row("tiny/b", 0, 4 << 20)]);
    // The region keeps at most half of its bytes, so `a` gets its part only when `b` has given up its own.
    assert_eq!(tenants.set(&[tenant("a", 0, 4 << 20), tenant("b", 0, 1 << 20)]), [""; 0]);
    assert_eq!(rows(&pool)[1..], [row("tiny/a", 0, 4 << 20), row("tiny/b", 0, 1 << 20)]);
    let troubles = tenants.set(&[tenant("a", 0, 6 << 20), tenant("b", 0, 6 << 20)]);
    assert_eq!(troubles.len(), 1);
    assert!(troubles[0].starts_with("tenant `"), "{troubles:?}");
    // One that leaves the file has no limits any more.
    assert_eq!(tenants.set(&[tenant("b", 0, 0)]), [""; 0]);
    assert_eq!(rows(&pool)[1..], [row("tiny/a", 0, 0), row("tiny/b", 0, 0)]);
}

#[test]
fn a_tenant_saves_in_its_own_row_and_only_while_it_has_one() {
    let pool = pool();
    let mut store = store(&pool);
    let tokens: Vec<TokenId> = (0..48).collect();
    let [a, b] = ["a", "b"].map(TenantKey::of_name);
    assert_eq!(save(&mut store, Some(a), &tokens), 0, "it has no row yet");
    let tenants = store.tenants().expect("a region has tenants");
    assert_eq!(tenants.set(&[tenant("a", 0, 0), tenant("b", 8 << 10, 0)]), [""; 0]);
    assert_eq!(save(&mut store, Some(a), &tokens), 3);
    assert_eq!([None, Some(a), Some(b)].map(|of| found(&mut store, of, &tokens)), [0, 3, 0]);
    // A block has 4 KiB, so the third evicts one of the first two.
    save(&mut store, Some(b), &tokens);
    let used = |label: &str| pool.namespaces().iter().find(|row| row.label == label).map(|row| row.used_bytes);
    assert_eq!((used("tiny/a"), used("tiny/b")), (Some(12 << 10), Some(8 << 10)));
    assert_eq!(found(&mut store, Some(a), &tokens), 3, "a quota is no other tenant's");
    assert_eq!(tenants.set(&[]), [""; 0]);
    assert_eq!(save(&mut store, Some(a), &(48..96).collect::<Vec<_>>()), 0);
    assert_eq!(found(&mut store, Some(a), &tokens), 3, "what is there stays");
}

/// Labels were cut at their end, where those of tenants differ, so metrics and `pool quota` mixed them up.
#[test]
fn tenants_of_a_model_with_a_long_name_have_different_labels() {
    let pool = pool();
    let long = "organisation/a-model-with-\u{e9}\u{e9}-a-rather-long-name-70b-instruct";
    let names = ["one-of-the-tenants-of-one-account", "one-of-the-tenants-of-one-accoun2"].map(|name| &name[1..]);
    for model in [long.to_owned(), long.replace("70b", "80b")] {
        let store = store_of(&pool, &model, Clock::stopped());
        let tenants = store.tenants().expect("a region has tenants");
        // Of each model others, because rows are those of salts.
        let of_model: Vec<Tenant> = names.iter().map(|name| tenant(name, 0, 0)).collect();
        let keyed = of_model
            .into_iter()
            .map(|tenant| Tenant { key: TenantKey::of_salt(&format!("{model}{}", tenant.name)), ..tenant });
        assert_eq!(tenants.set(&keyed.collect::<Vec<_>>()), [""; 0]);
    }
    let labels: Vec<String> = rows(&pool).into_iter().map(|row| row.0).filter(|label| label.contains('~')).collect();
    let different: std::collections::BTreeSet<&String> = labels.iter().collect();
    assert_eq!((labels.len(), different.len()), (4, 4), "{labels:?}");
    for label in &labels {
        assert!(label.starts_with("organisation/a-") && label.len() <= 56, "{label}");
        assert!(names.iter().any(|name| label.ends_with(&format!("/{name}"))), "{label}");
    }
}

/// A file of many tenants on a region with slow locks kept a reload waiting for minutes.
#[test]
fn tenants_are_set_within_a_deadline_and_the_others_are_named() {
    let pool = pool();
    let time = ManualTime::start();
    let store = store_of(&pool, "tiny", time.clock()).on_tenant(|_| time.advance(Duration::from_secs(15)));
    let tenants = store.tenants().expect("a region has tenants");
    let all = ["a", "b", "c", "d"].map(|name| tenant(name, 0, 0));
    let troubles = tenants.set(&all);
    assert_eq!(troubles.len(), 2, "{troubles:?}");
    for (trouble, name) in troubles.iter().zip(["c", "d"]) {
        assert!(trouble.starts_with(&format!("tenant `{name}`: the region took longer than 20 s")), "{trouble}");
    }
    assert_eq!(rows(&pool).len(), 3, "the engine's own, and two");
    assert_eq!(tenants.set(&all), [""; 0], "each time has its own deadline");
}

/// Its request lost its KV when it was preempted, because a tenant that is gone has no part.
#[test]
fn a_tenant_that_is_gone_swaps_in_the_engines_own_part() {
    let pool = pool();
    let mut store = store(&pool);
    let key = TenantKey::of_name("a");
    let tenants = store.tenants().expect("a region has tenants");
    assert_eq!(tenants.set(&[tenant("a", 0, 0)]), [""; 0]);
    let part = vec![3; 4 * PAGE];
    let used = |label: &str| pool.namespaces().iter().find(|row| row.label == label).map(|row| row.used_bytes);
    let own = store.swap_out(Some(key), &[&part]).expect("there is room");
    assert_eq!((used("tiny"), used("tiny/a")), (Some(0), Some(4 * PAGE as u64)));
    assert_eq!(tenants.set(&[]), [""; 0]);
    let fallen_back = store.swap_out(Some(key), &[&part]).expect("its request goes on");
    assert_eq!((used("tiny"), used("tiny/a")), (Some(4 * PAGE as u64), Some(4 * PAGE as u64)));
    let mut read = vec![0; 4 * PAGE];
    for swapped in [own, fallen_back] {
        assert!(swapped.read_all(&mut [&mut read]));
        assert!(read.iter().all(|byte| *byte == 3));
    }
}

#[test]
fn a_missing_block_is_counted_by_its_reason() {
    let pool = pool();
    let mut store = store(&pool).with_miss_log().expect("a thread");
    let tokens: Vec<TokenId> = (0..32).collect();
    assert_eq!(save(&mut store, None, &tokens), 2);
    let names = store.naming().names(None, &tokens);
    let missed = |store: &mut RegionStore<_>, hash| {
        store.missed(Miss { request: "mine".to_owned(), tenant: None, blocks: 2, found: 0, fetched: 0, hash });
    };
    let count = |store: &RegionStore<_>, reason: &str| store.stats()[&format!("misses_{reason}_total")];
    missed(&mut store, names[0]);
    until("it is there by now", || (count(&store, "later") == 1.0).then_some(()));
    assert!(pool.evict(2) == 2);
    missed(&mut store, names[0]);
    until("the eviction is found", || (count(&store, "evicted") == 1.0).then_some(()));
    let other = store.naming().names(None, &(100..116).collect::<Vec<_>>());
    missed(&mut store, other[0]);
    until("no record is found", || (count(&store, "unknown") == 1.0).then_some(()));
}
