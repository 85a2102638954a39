//! A region in a file, and back.

use crate::support::{region, region_in};
use cenote_base::seal::SealKeys;
use cenote_base::{BlockHash, HashSeed};
use cenote_mem::{Coherent, RegionSource};
use cenote_pool::{Names, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, PoolError, Publish, ReadOutcome};
use cenote_store::snapshot::{Restored, Restoring, Sharing, SnapshotError, begin, open, restore, save};
use std::path::Path;
use std::sync::Arc;

pub(crate) const BLOCK: u64 = 4096;

/// A region for a worker with these keys.
pub(crate) fn pool_with(config: &PoolConfig, keys: Option<SealKeys>) -> Result<Pool<Arc<Coherent>>, PoolError> {
    region_in(&RegionSource::Anon, config, 4 << 20, keys)
}

/// A region whose file has mode 0640.
fn pool_in(source: &RegionSource, config: &PoolConfig, bytes: u64) -> Pool<Arc<Coherent>> {
    region_in(source, config, bytes, None).expect("it attaches")
}

fn pool() -> Pool<Arc<Coherent>> {
    region(&config(), 4 << 20)
}

pub(crate) fn config() -> PoolConfig {
    PoolConfig {
        chunk_bytes: 64 << 10,
        min_block_bytes: 4 << 10,
        max_hosts: 1,
        workers_per_host: 4,
        hazard_lines_per_worker: 2,
        events_per_host: 16,
        ..PoolConfig::new(HashSeed([3; 32]), [4; 16])
    }
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

pub(crate) fn hash(model: u8, number: u8) -> BlockHash {
    BlockHash([model, number, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
}

pub(crate) fn payload(model: u8, number: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (usize::from(model) * 5 + usize::from(number) * 11 + at) as u8).collect()
}

/// Two models with ten blocks each, every third one encoded, and two objects.
pub(crate) fn fill(pool: &Pool<Arc<Coherent>>) {
    for model in 1..=2 {
        let namespace = namespace(pool, model);
        for number in 0..10 {
            let (encoding, length) = if number % 3 == 2 { (1, 1024) } else { (0, BLOCK as usize) };
            let names = Names { name: u64::from(number) + 1, parent: u64::from(number) };
            let new = NewBlock { encoding, names, ..NewBlock::new(&namespace, hash(model, number), number.into()) };
            assert_eq!(pool.publish(&new, &[&payload(model, number, length)]), Publish::Published);
        }
        pool.set_quota(namespace.id, u64::from(model) << 20).expect("the row");
        pool.keep(namespace.id, u64::from(model) << 16).expect("the row");
    }
    pool.put_object("one", b"first").expect("room");
    pool.put_object("two", &[7; 9000]).expect("room");
}

/// Number of blocks in the pool, all with the right bytes.
pub(crate) fn right(pool: &Pool<Arc<Coherent>>) -> u64 {
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
    let pool = region(&settings.config, settings.region_bytes);
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
    assert_eq!((row.quota_bytes, row.kept_bytes, row.block_tokens, row.num_layers), (2 << 20, 2 << 16, 16, 2));
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
fn a_part_that_is_there_twice_stands_for_no_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("snapshot");
    let pool = pool();
    fill(&pool);
    save(&pool, &path).expect("it is written");
    let mut bytes = std::fs::read(&path).expect("it is there");
    let starts: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b"CNTBLOCK")).collect();
    assert_eq!(starts.len(), 20);
    // Neighbours with records of one length.
    let pair = starts.windows(3).find(|at| at[1] - at[0] == at[2] - at[1]).expect("blocks of one length");
    bytes.copy_within(pair[0]..pair[1], pair[1]);
    std::fs::write(&path, &bytes).expect("it is written");
    let (again, restored) = back(&path).expect("it is read");
    assert_eq!((right(&again), restored.blocks, restored.damaged), (19, 19, 0));
    assert!(!restored.is_whole(), "{restored:?}");
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

/// As a killed `restore` leaves it: some parts are there, and the mark.
#[test]
fn a_region_under_restoration_says_so_and_is_continued() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("snapshot");
    fill_and_save(&pool(), &path);
    let settings = open(&path).expect("it is a snapshot");
    let again = region(&settings.config, settings.region_bytes);
    assert_eq!(Restoring::of(&again), None);
    begin(&again, &settings, &path).expect("it is empty");
    let mark = Restoring::of(&again).expect("it is marked");
    assert_eq!((mark.snapshot, mark.path), (settings.id, path.display().to_string()));
    let namespace = namespace(&again, 1);
    let new = NewBlock { names: Names { name: 1, parent: 0 }, ..NewBlock::new(&namespace, hash(1, 0), 0) };
    assert_eq!(again.publish(&new, &[&payload(1, 0, BLOCK as usize)]), Publish::Published);
    again.put_object("one", b"newer").expect("room");

    // It is not complete, so it replaces no snapshot.
    let before = std::fs::read(&path).expect("it is there");
    assert!(matches!(save(&again, &path), Err(SnapshotError::Restoring(_))));
    assert!(std::fs::read(&path).expect("it is there") == before);
    let other = directory.path().join("other");
    fill_and_save(&pool(), &other);
    assert!(
        matches!(restore(&again, &other), Err(SnapshotError::OtherSnapshot(of)) if of == path.display().to_string())
    );

    let restored = restore(&again, &path).expect("it goes on");
    assert!(restored.is_whole(), "{restored:?}");
    assert_eq!((restored.objects, restored.blocks, right(&again)), (2, 20, 20));
    assert_eq!(again.get_object("one").expect("a key"), Some(b"newer".to_vec()), "what a program put stays");
    assert_eq!(Restoring::of(&again), None);
    let saved = save(&again, &path).expect("it is complete");
    assert_eq!((saved.objects, saved.blocks), (2, 20), "the mark is no content");
}

fn fill_and_save(pool: &Pool<Arc<Coherent>>, path: &Path) {
    fill(pool);
    save(pool, path).expect("it is written");
}

#[test]
fn regions_with_other_content_or_another_seed_are_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("snapshot");
    let pool = pool();
    fill_and_save(&pool, &path);
    assert!(matches!(restore(&pool, &path), Err(SnapshotError::NotEmpty(_))));
    let other = region(&PoolConfig { seed: HashSeed([5; 32]), ..config() }, 4 << 20);
    assert!(matches!(restore(&other, &path), Err(SnapshotError::OtherSeed(_))));
    assert!(Restoring::of(&pool).is_none() && Restoring::of(&other).is_none());
}

/// Threads of one process have one process number, as writers in two containers may.
#[test]
fn writers_with_equal_process_numbers_do_not_meet() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("snapshot");
    let pool = pool();
    fill_and_save(&pool, &path);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..10 {
                        save(&pool, &path).expect("it is written");
                        let (again, restored) = back(&path).expect("it is a snapshot");
                        assert!(restored.is_whole() && right(&again) == 20, "{restored:?}");
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().expect("no torn file"));
    });
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 1, "no draft stays");
}

#[test]
fn a_snapshot_of_others_is_refused() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let directory = tempfile::tempdir().expect("a directory");
    let (path, link) = (directory.path().join("snapshot"), directory.path().join("snapshot-link"));
    fill_and_save(&pool(), &path);
    symlink(&path, &link).expect("a link");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).expect("our file");
    for path in [&path, &link] {
        let error = open(path).expect_err("it may be planted");
        assert!(matches!(error, SnapshotError::Refused(_)) && error.to_string().contains("snapshot"), "{error}");
    }
}

#[test]
fn a_snapshot_keeps_the_mode_of_the_region() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("snapshot");
    let region = RegionSource::File(directory.path().join("region"));
    fill_and_save(&pool_in(&region, &config(), 4 << 20), &path);
    let sharing = open(&path).expect("it is a snapshot").sharing;
    assert!(matches!(sharing, Some(Sharing { mode: 0o640, .. })), "{sharing:?}");
}
