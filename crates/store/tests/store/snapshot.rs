//! A region in a file, and back.

use cenote_base::{BlockHash, HashSeed};
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{
    AttachOptions, Names, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, Publish, ReadOutcome, Superblock,
};
use cenote_store::snapshot::{Restored, SnapshotError, open, restore, save};
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = 4096;

fn pool_of(config: &PoolConfig, bytes: u64) -> Pool<Arc<Coherent>> {
    let mapping = Mapping::create(&RegionSource::Anon, bytes, 0o600, &MapOptions::default()).expect("memory");
    let fabric = Arc::new(Coherent::new(mapping));
    Superblock::format(&fabric, config).expect("it fits");
    Pool::attach(fabric, &AttachOptions { private: true, ..AttachOptions::named("test") }).expect("it attaches")
}

fn pool() -> Pool<Arc<Coherent>> {
    let config = PoolConfig {
        chunk_bytes: 64 << 10,
        min_block_bytes: 4 << 10,
        max_hosts: 1,
        workers_per_host: 4,
        hazard_lines_per_worker: 2,
        events_per_host: 16,
        ..PoolConfig::new(HashSeed([3; 32]), [4; 16])
    };
    pool_of(&config, 4 << 20)
}

fn namespace(pool: &Pool<Arc<Coherent>>, model: u8) -> Namespace {
    let record = NamespaceRecord {
        fingerprint: [model; 32],
        label: format!("model {model}"),
        block_bytes: BLOCK,
        block_tokens: 16,
        num_layers: 2,
    };
    pool.namespace(&record).expect("a row")
}

fn hash(model: u8, number: u8) -> BlockHash {
    BlockHash([model, number, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
}

fn payload(model: u8, number: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (usize::from(model) * 5 + usize::from(number) * 11 + at) as u8).collect()
}

/// Two models with ten blocks each, every third one encoded, and two objects.
fn fill(pool: &Pool<Arc<Coherent>>) {
    for model in 1..=2 {
        let namespace = namespace(pool, model);
        for number in 0..10 {
            let (encoding, length) = if number % 3 == 2 { (1, 1024) } else { (0, BLOCK as usize) };
            let names = Names { name: u64::from(number) + 1, parent: u64::from(number) };
            let new = NewBlock { encoding, names, ..NewBlock::new(&namespace, hash(model, number), number.into()) };
            assert_eq!(pool.publish(&new, &[&payload(model, number, length)]), Publish::Published);
        }
        pool.set_quota(namespace.id, u64::from(model) << 20).expect("the row");
    }
    pool.put_object("one", b"first").expect("room");
    pool.put_object("two", &[7; 9000]).expect("room");
}

/// Number of blocks in the pool, all with the right bytes.
fn right(pool: &Pool<Arc<Coherent>>) -> u64 {
    let mut count = 0;
    for (model, number) in (1..=2).flat_map(|model| (0..10).map(move |number| (model, number))) {
        let Some(hit) = pool.peek(&[hash(model, number)]).first().copied() else { continue };
        let length = if number % 3 == 2 { 1024 } else { BLOCK as usize };
        let mut bytes = vec![0; length];
        assert_eq!(pool.read(&hit, &mut [&mut bytes]), ReadOutcome::Whole);
        assert!(bytes == payload(model, number, length), "wrong bytes of {model}/{number}");
        let listed = pool.describe(&hit).expect("it is there");
        assert_eq!((listed.depth, listed.names.name), (number.into(), u64::from(number) + 1));
        count += 1;
    }
    count
}

fn back(path: &Path) -> Result<(Pool<Arc<Coherent>>, Restored), SnapshotError> {
    let settings = open(path)?;
    let pool = pool_of(&settings.config, settings.region_bytes);
    let restored = restore(&pool, path)?;
    Ok((pool, restored))
}

#[test]
fn a_region_comes_back_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("snapshot");
    let pool = pool();
    fill(&pool);
    let saved = save(&pool, &path).expect("it is written");
    assert_eq!((saved.namespaces, saved.objects, saved.blocks, saved.missed), (2, 2, 20, 0));
    let (again, restored) = back(&path).expect("it is read");
    assert!(restored.is_whole(), "{restored:?}");
    assert_eq!((restored.namespaces, restored.objects, restored.blocks), (2, 2, 20));
    assert_eq!((right(&again), again.get_object("one").expect("a key")), (20, Some(b"first".to_vec())));
    assert_eq!(again.get_object("two").expect("a key"), Some(vec![7; 9000]));
    let rows = again.namespaces();
    let row = rows.iter().find(|row| row.label == "model 2").expect("it is there");
    assert_eq!((row.quota_bytes, row.block_tokens, row.num_layers), (2 << 20, 16, 2));
    let (one, other) = (pool.superblock(), again.superblock());
    assert_eq!((one.config.seed, one.config.events_per_host), (other.config.seed, other.config.events_per_host));
    assert!(again.check(true).expect("no lock is held").is_clean());
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 1, "no draft stays");
}

#[test]
fn damage_costs_the_damaged_parts_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("snapshot");
    let pool = pool();
    fill(&pool);
    save(&pool, &path).expect("it is written");
    let good = std::fs::read(&path).expect("it is there");
    let mut bad_parts = 0;
    for at in (0..good.len()).step_by(997) {
        let mut bad = good.clone();
        bad[at] ^= 0x20;
        std::fs::write(&path, &bad).expect("it is written");
        let (again, restored) = back(&path).expect("settings are there twice");
        // A damaged namespace takes its ten blocks with it.
        assert!(right(&again) >= 10, "byte {at}: {restored:?}");
        assert!(right(&again) >= 19 || restored.namespaces == 1, "byte {at}: {restored:?}");
        bad_parts += u64::from(!restored.is_whole());
    }
    assert!(bad_parts > 20, "{bad_parts} damaged files are noticed; padding may change without consequence");
}

#[test]
fn a_torn_snapshot_gives_what_it_has() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("snapshot");
    let pool = pool();
    fill(&pool);
    save(&pool, &path).expect("it is written");
    let good = std::fs::read(&path).expect("it is there");
    let mut most = 0;
    for cut in (0..good.len()).step_by(1021) {
        std::fs::write(&path, &good[..cut]).expect("it is written");
        match back(&path) {
            Ok((again, restored)) => {
                let blocks = right(&again);
                assert!(
                    blocks >= most && (!restored.is_whole() || cut + 4096 > good.len()),
                    "cut at {cut}: {restored:?}"
                );
                most = blocks;
            }
            Err(error) => {
                assert!(matches!(error, SnapshotError::NotASnapshot(_)) && cut < 4096, "cut at {cut}: {error}")
            }
        }
    }
    assert!(most >= 19, "{most}");
}

#[test]
fn another_version_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("snapshot");
    let pool = pool();
    save(&pool, &path).expect("it is written");
    let mut bytes = std::fs::read(&path).expect("it is there");
    bytes.chunks_mut(4096).for_each(|part| part[8] = 9);
    std::fs::write(&path, bytes).expect("it is written");
    assert!(matches!(open(&path), Err(SnapshotError::Version { found: 9, .. })));
    std::fs::write(&path, b"something else").expect("it is written");
    assert!(matches!(open(&path), Err(SnapshotError::NotASnapshot(_))));
}
