//! Tables from files into regions and back, as rows.

use crate::support::*;
use cenote_base::Clock;
use cenote_base::testing::ManualTime;
use cenote_mem::{Fabric, Flush, Offset};
use cenote_pool::HostPool;
use cenote_tables::checkpoint::tensor_table;
use cenote_tables::safetensors::TensorRows;
use cenote_tables::{
    GatherError, Gatherer, HotRows, ListedState, LoadOptions, Opening, Outcome, Output, RowSource, Table, TableError,
    check, drop_table, free_unrecorded, list, load,
};
use std::path::Path;
use std::time::Duration;

fn options() -> LoadOptions<'static> {
    LoadOptions { journal_bytes: 1 << 16, ..LoadOptions::waiting(patience()) }
}

fn source(path: &Path) -> TensorRows {
    tensor_table(path, "table", None, None).expect("a table")
}

/// Rows in an order of their own, some twice.
fn some_rows(rows: u64, count: usize) -> Vec<u64> {
    let mut prng = cenote_base::prng::Prng::new(rows);
    [0, rows - 1, 0].into_iter().chain((3..count).map(|_| prng.below(rows))).collect()
}

fn expected(bytes: &[u8], row_bytes: usize, rows: &[u64]) -> Vec<u8> {
    rows.iter().flat_map(|&row| bytes[row as usize * row_bytes..][..row_bytes].to_vec()).collect()
}

#[test]
fn rows_of_a_loaded_table_are_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.safetensors");
    let bytes = bf16_file(&file, 10_000, 160, 1);
    for flush in flushes() {
        let region = Region::new("rows", 16 << 20, 256 << 10, flush);
        let loader = region.attach(0);
        let Outcome::Loaded { resumed_bytes: 0, digest } = load(&loader, "t", &source(&file), &options()).unwrap()
        else {
            panic!("nothing was there")
        };
        assert!(matches!(load(&loader, "t", &source(&file), &options()), Ok(Outcome::Found { .. })));
        drop(loader);
        let reader = region.attach(u8::from(flush != Flush::None));
        let rows = some_rows(10_000, 3000);
        let wanted = expected(&bytes, 320, &rows);
        for opening in [Opening::Verified, Opening::Trusted] {
            let table = Table::open(&reader, "t", opening).unwrap();
            assert_eq!((table.digest(), table.row_values()), (&*digest, 160));
            let mut got = vec![0; wanted.len()];
            table.gather(&rows, &mut got).unwrap();
            assert!(got == wanted, "{flush:?}: one thread");
            let gatherer = Gatherer::new(3, || {}).unwrap();
            got.fill(0);
            gatherer.gather(&table, &rows, &mut got).unwrap();
            assert!(got == wanted, "{flush:?}: three threads");
            let mut pending = gatherer.start(&table, rows.clone(), Output::Stored(Vec::new()), Clock::stopped());
            let arrived = pending.wait(patience()).unwrap();
            assert!(arrived.rows == Output::Stored(wanted.clone()), "{flush:?}: beside this thread");
            let halves: Vec<u16> = wanted.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
            let mut values = vec![0; halves.len()];
            gatherer.gather_bf16(&table, &rows, &mut values).unwrap();
            assert!(values == halves, "bf16 rows decode to themselves");
        }
        let checked = check(&reader, "t").unwrap();
        assert!(checked.is_whole && checked.digest.as_ref() == Some(&digest));
    }
}

#[test]
fn digests_do_not_depend_on_the_region() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.safetensors");
    bf16_file(&file, 3000, 100, 2);
    let digest = |chunk: u64, extent_bytes| {
        let region = Region::new(&format!("digest{chunk}"), 8 << 20, chunk, Flush::None);
        let options = LoadOptions { extent_bytes, ..options() };
        match load(&region.attach(0), "t", &source(&file), &options).unwrap() {
            Outcome::Loaded { digest, .. } => digest,
            Outcome::Found { .. } => panic!("a new region"),
        }
    };
    assert_eq!(digest(64 << 10, 64 << 10), digest(1 << 20, 1 << 20));
}

#[test]
fn several_tables_lie_side_by_side_and_go_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::new("several", 16 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    let files: Vec<_> = (0..3).map(|at| folder.path().join(format!("{at}.safetensors"))).collect();
    let bytes: Vec<_> = (0..).zip(&files).map(|(at, file)| bf16_file(file, 2000 + 100 * at, 64, at as u64)).collect();
    for (at, file) in files.iter().enumerate() {
        load(&pool, &format!("t{at}"), &source(file), &options()).unwrap();
    }
    assert!(list(&pool).iter().map(|table| (&*table.name, table.state)).eq([
        ("t0", ListedState::Sealed),
        ("t1", ListedState::Sealed),
        ("t2", ListedState::Sealed)
    ]));
    let tables: Vec<_> = (0..3).map(|at| Table::open(&pool, &format!("t{at}"), Opening::Verified).unwrap()).collect();
    let before = pieces(&pool);
    assert!(drop_table(&pool, "t1", patience()).unwrap());
    assert!(!drop_table(&pool, "t1", patience()).unwrap());
    assert!(pieces(&pool) < before);
    let mut row = [0; 128];
    assert_eq!(tables[1].gather(&[5], &mut row), Err(GatherError::Dropped("t1".to_owned())));
    for at in [0, 2] {
        tables[at].gather(&[1999], &mut row).unwrap();
        assert!(row[..] == bytes[at][1999 * 128..][..128], "table {at}");
        assert!(check(&pool, &format!("t{at}")).unwrap().is_whole);
    }
    // The name is free for another table, which the old handle does not read.
    load(&pool, "t1", &source(&files[0]), &options()).unwrap();
    assert!(tables[1].gather(&[5], &mut row).is_err());
    for name in ["t0", "t1", "t2"] {
        assert!(drop_table(&pool, name, patience()).unwrap());
    }
    assert_eq!((pieces(&pool), list(&pool).len()), (0, 0));
    assert!(pool.check(true).unwrap().is_clean());
}

/// Nothing of a load that failed stays in the region.
fn nothing_is_left(pool: &HostPool) {
    assert_eq!((pieces(pool), pool.object_keys().len()), (0, 0));
    assert!(pool.check(true).unwrap().is_clean());
}

/// A table whose files fail after some rows.
struct Failing<'a>(&'a TensorRows, u64);

impl RowSource for Failing<'_> {
    fn facts(&self) -> &cenote_tables::Facts {
        self.0.facts()
    }

    fn read(&self, rows: std::ops::Range<u64>, to: &mut [u8]) -> Result<(), TableError> {
        if rows.end > self.1 {
            return Err(TableError::Source("the disk is gone".to_owned()));
        }
        self.0.read(rows, to)
    }

    fn verify_unchanged(&self) -> Result<(), TableError> {
        self.0.verify_unchanged()
    }
}

#[test]
fn failed_loads_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.safetensors");
    let bytes = bf16_file(&file, 20_000, 160, 3);
    let region = Region::new("failed", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    let refused = |error: TableError, words: &str| assert!(error.to_string().contains(words), "{error}");

    refused(load(&pool, "t", &source(&file), &options()).unwrap_err(), "make a larger region");
    nothing_is_left(&pool);
    refused(load(&pool, "t", &Failing(&source(&file), 2000), &options()).unwrap_err(), "the disk is gone");
    nothing_is_left(&pool);
    for name in ["", "a/b", "a b", &"x".repeat(37)] {
        refused(load(&pool, name, &source(&file), &options()).unwrap_err(), "is no name of a table");
    }
    // Rows so long that a chunk has no room for 64 of them.
    let wide = folder.path().join("wide.safetensors");
    bf16_file(&wide, 100, 4096, 4);
    refused(load(&pool, "t", &source(&wide), &options()).unwrap_err(), "too small for 64 rows");
    refused(Table::open(&pool, "t", Opening::Verified).err().unwrap(), "has no table `t`");
    refused(check(&pool, "t").unwrap_err(), "has no table `t`");
    nothing_is_left(&pool);

    let short = folder.path().join("short.safetensors");
    let whole = std::fs::read(&file).unwrap();
    for length in [0, 7, 30, whole.len() - bytes.len(), whole.len() - 1] {
        std::fs::write(&short, &whole[..length]).unwrap();
        assert!(tensor_table(&short, "table", None, None).is_err(), "{length} bytes");
    }
    std::fs::write(&short, &whole).unwrap();
    let source_of_short = source(&short);
    std::fs::write(&short, &whole[..whole.len() / 2]).unwrap();
    let larger = Region::new("truncated", 16 << 20, 256 << 10, Flush::None);
    let pool = larger.attach(0);
    refused(load(&pool, "t", &source_of_short, &options()).unwrap_err(), "short.safetensors");
    nothing_is_left(&pool);
}

/// The journal of a load that failed had grown, and the full region had no room for it. All extents
/// stayed.
#[test]
fn a_load_that_fills_the_region_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.safetensors");
    bf16_file(&file, 100_000, 32, 3);
    let region = Region::new("fills", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    for journal_bytes in [1 << 40, 1 << 18] {
        let options = LoadOptions { extent_bytes: 4096, journal_bytes, ..options() };
        let error = load(&pool, "t", &source(&file), &options).unwrap_err();
        assert!(error.to_string().contains("make a larger region"), "{error}");
        nothing_is_left(&pool);
    }
}

#[test]
fn another_table_under_the_same_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    bf16_file(&one, 1000, 64, 5);
    bf16_file(&two, 1000, 64, 6);
    let region = Region::new("another", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    load(&pool, "t", &source(&one), &options()).unwrap();
    let error = load(&pool, "t", &source(&two), &options()).unwrap_err();
    assert!(matches!(error, TableError::Different { .. }), "{error}");
    assert!(check(&pool, "t").unwrap().is_whole);
}

/// `pool gc --free-memory` read the records first: a table that was sealed after that lost its memory
/// when its loader had left.
#[test]
fn a_table_that_is_sealed_while_leaks_are_freed_keeps_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, 4000, 64, 8);
    let region = Region::new("leaks", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    let leak = region.attach(0);
    leak.allocate(5000).unwrap();
    drop(leak);
    pool.tick();
    let loader = region.attach(0);
    let dead = pool.dead_memory(None).unwrap();
    assert_eq!(dead.len(), 1);
    load(&loader, "t", &source(&file), &options()).unwrap();
    drop(loader);
    pool.tick();
    assert_eq!(free_unrecorded(&pool, dead).unwrap().pieces, 1);
    // The loader is dead now, and its record names the memory.
    let dead = pool.dead_memory(None).unwrap();
    assert!(!dead.is_empty());
    assert_eq!(free_unrecorded(&pool, dead).unwrap().pieces, 0);
    assert!(check(&pool, "t").unwrap().is_whole);
}

/// Loaders and droppers come and go beside a caller that frees leaks.
#[test]
fn leaks_are_freed_beside_loads_and_drops() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, 500, 64, 8);
    let region = Region::new("beside", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let frees = scope.spawn(|| {
            let pool = region.attach(0);
            let mut rounds = 0;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                match free_unrecorded(&pool, pool.dead_memory(None).unwrap()) {
                    Ok(freed) => assert_eq!(freed.pieces, 0, "round {rounds}"),
                    Err(error) => assert!(matches!(error, TableError::Unsettled), "{error}"),
                }
                rounds += 1;
            }
        });
        let source = source(&file);
        for round in 0..200 {
            load(&region.attach(0), "t", &source, &options()).unwrap();
            assert_eq!(pieces(&pool), 1, "round {round}");
            assert!(drop_table(&region.attach(0), "t", patience()).unwrap());
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        frees.join().unwrap();
    });
    assert_eq!(pieces(&pool), 0);
}

/// Memory of a table with a damaged record was freed as a leak.
#[test]
fn nothing_is_freed_while_a_record_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, 4000, 64, 8);
    let region = Region::new("unreadable", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    load(&region.attach(0), "t", &source(&file), &options()).unwrap();
    pool.tick();
    let record = pool.get_object("cenote/engram/t").unwrap().unwrap();
    let damaged = |bytes: &[u8]| {
        pool.put_object("cenote/engram/t", bytes).unwrap();
        let before = pieces(&pool);
        let error = free_unrecorded(&pool, pool.dead_memory(None).unwrap()).unwrap_err();
        assert!(matches!(error, TableError::Record(_)), "{error}");
        assert_eq!(pieces(&pool), before);
    };
    damaged(&record[..record.len() - 1]);
    assert_eq!(list(&pool)[0].state, ListedState::Damaged);
    pool.put_object("cenote/engram/t", &record).unwrap();
    assert!(check(&pool, "t").unwrap().is_whole);
    // A load beside the damaged record is none of its business.
    damaged(b"x");
    load(&pool, "u", &source(&file), &options()).unwrap();
    assert!(drop_table(&pool, "t", patience()).unwrap());
    assert!(free_unrecorded(&pool, pool.dead_memory(None).unwrap()).unwrap().pieces > 0);
    assert!(check(&pool, "u").unwrap().is_whole && drop_table(&pool, "u", patience()).unwrap());
    assert_eq!(pieces(&pool), 0);
}

/// Each host had downloaded the checkpoint, and found "another table" because of the files' times.
#[test]
fn a_copy_with_another_time_is_the_same_table_if_its_rows_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, 5000, 64, 5);
    let region = Region::new("times", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    let Outcome::Loaded { digest, .. } = load(&pool, "t", &source(&file), &options()).unwrap() else {
        panic!("nothing was there")
    };
    let copy = copy_of(&file, &folder.path().join("same"), |_| {});
    assert_ne!(source(&copy).facts().source, source(&file).facts().source);
    assert_eq!(load(&pool, "t", &source(&copy), &options()).unwrap(), Outcome::Found { digest });
    let other = copy_of(&file, &folder.path().join("other"), |bytes| *bytes.last_mut().unwrap() ^= 1);
    let error = load(&pool, "t", &source(&other), &options()).unwrap_err();
    assert!(matches!(error, TableError::Different { .. }), "{error}");
}

/// Folders of reproducible images have one time for all files: equal names, sizes, headers and times
/// passed for equal rows.
#[test]
fn a_file_of_the_same_form_and_time_is_another_table_if_its_rows_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, 5000, 64, 5);
    let region = Region::new("forms", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    let [one, same] = ["one", "same"].map(|name| copy_of(&file, &folder.path().join(name), |_| {}));
    let Outcome::Loaded { digest, .. } = load(&pool, "t", &source(&one), &options()).unwrap() else {
        panic!("nothing was there")
    };
    let length = std::fs::metadata(&file).unwrap().len() as usize;
    for at in [length - 1, length / 2, length - 5000 * 128] {
        let other = copy_of(&file, &folder.path().join(at.to_string()), |bytes| bytes[at] ^= 1);
        assert_eq!(source(&other).facts().source, source(&one).facts().source, "nothing but the rows differs");
        let error = load(&pool, "t", &source(&other), &options()).unwrap_err();
        assert!(matches!(error, TableError::Different { .. }), "byte {at}: {error}");
    }
    assert_eq!(load(&pool, "t", &source(&same), &options()).unwrap(), Outcome::Found { digest });
}

/// A source whose file changes behind the first read.
struct Changing<'a> {
    source: &'a TensorRows,
    change: Box<dyn Fn() + Sync + 'a>,
    once: std::sync::Once,
}

impl RowSource for Changing<'_> {
    fn facts(&self) -> &cenote_tables::Facts {
        self.source.facts()
    }

    fn read(&self, rows: std::ops::Range<u64>, to: &mut [u8]) -> Result<(), TableError> {
        self.source.read(rows, to)?;
        self.once.call_once(&*self.change);
        Ok(())
    }

    fn verify_unchanged(&self) -> Result<(), TableError> {
        self.source.verify_unchanged()
    }
}

/// A file that was overwritten during its load was sealed as a mixture of both contents.
#[test]
fn a_file_that_changes_during_its_load_makes_no_table() {
    let folder = tempfile::tempdir().unwrap();
    let original = folder.path().join("t");
    bf16_file(&original, 20_000, 160, 3);
    // An old time, so that a write changes it even under a coarse clock.
    let file = copy_of(&original, &folder.path().join("used"), |_| {});
    let other = copy_of(&original, &folder.path().join("other"), |bytes| *bytes.last_mut().unwrap() ^= 1);
    let region = Region::new("changes", 16 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    let in_place = || std::fs::write(&file, std::fs::read(&other).unwrap()).unwrap();
    let renamed = || {
        let beside = folder.path().join("beside");
        std::fs::copy(&original, &beside).unwrap();
        std::fs::rename(&beside, &file).unwrap();
    };
    let removed = || std::fs::remove_file(&file).unwrap();
    let changes: [&(dyn Fn() + Sync); 3] = [&in_place, &renamed, &removed];
    for change in changes {
        std::fs::remove_file(&file).unwrap();
        copy_of(&original, &folder.path().join("used"), |_| {});
        let opened = source(&file);
        let changing = Changing { source: &opened, change: Box::new(change), once: std::sync::Once::new() };
        let error = load(&pool, "t", &changing, &options()).unwrap_err();
        assert!(matches!(&error, TableError::Changed(path) if *path == file), "{error}");
        nothing_is_left(&pool);
        if !file.exists() {
            std::fs::write(&file, "").unwrap();
        }
    }
    // A comparison with a table that is there is no better.
    copy_of(&original, &folder.path().join("used"), |_| {});
    load(&pool, "t", &source(&file), &options()).unwrap();
    let opened = source(&file);
    let changing = Changing { source: &opened, change: Box::new(&in_place), once: std::sync::Once::new() };
    let error = load(&pool, "t", &changing, &options()).unwrap_err();
    assert!(matches!(error, TableError::Changed(_)), "{error}");
    assert!(check(&pool, "t").unwrap().is_whole);
}

/// Facts of another table.
struct Of<'a>(&'a TensorRows, cenote_tables::Facts);

impl RowSource for Of<'_> {
    fn facts(&self) -> &cenote_tables::Facts {
        &self.1
    }

    fn read(&self, rows: std::ops::Range<u64>, to: &mut [u8]) -> Result<(), TableError> {
        self.0.read(rows, to)
    }

    fn verify_unchanged(&self) -> Result<(), TableError> {
        self.0.verify_unchanged()
    }
}

/// A load of tensor B found the table of tensor A, because only files and shapes were compared.
#[test]
fn another_tensor_or_layer_of_the_same_file_is_another_table() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    two_tables(&file, 1000, 64, 5);
    let region = Region::new("tensor", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    load(&pool, "t", &source(&file), &options()).unwrap();
    let refused = |source: &dyn RowSource, words: &str| {
        let error = load(&pool, "t", source, &options()).unwrap_err();
        assert!(matches!(error, TableError::Different { .. }) && error.to_string().contains(words), "{error}");
    };
    refused(&tensor_table(&file, "other", None, None).unwrap(), "it has the tensor `table` instead of `other`");
    let same = source(&file);
    let of_layer = cenote_tables::Facts { layer: Some(3), ..same.facts().clone() };
    refused(&Of(&same, of_layer), "it is of no layer, the files have layer 3");
    let mut moved = same.facts().clone();
    moved.tensors[0].begin += 2;
    refused(&Of(&same, moved), "lie elsewhere");
    assert!(matches!(load(&pool, "t", &same, &options()), Ok(Outcome::Found { .. })));
}

/// The engine counted a fetch that waited for the thread as hidden for the copy's time alone.
#[test]
fn the_time_of_a_gather_begins_at_its_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, 100, 64, 8);
    let region = Region::new("time", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    load(&pool, "t", &source(&file), &options()).unwrap();
    let table = Table::open(&pool, "t", Opening::Verified).unwrap();
    let gatherer = Gatherer::new(1, || {}).unwrap();
    let (go, gone) = std::sync::mpsc::channel();
    gatherer.spawn(move || gone.recv().expect("the test says so"));
    let time = ManualTime::start();
    let (clock, busy) = (time.clock(), Duration::from_millis(20));
    let mut pending = gatherer.start(&table, vec![1], Output::Stored(Vec::new()), clock);
    let deadline = clock.after(busy);
    time.advance(busy);
    assert_eq!((pending.wait(deadline), pending.age()), (Err(GatherError::Late), busy));
    go.send(()).unwrap();
    let arrived = pending.wait(patience()).unwrap();
    assert_eq!((arrived.took, arrived.after), (Duration::ZERO, busy));
}

#[test]
fn damaged_bytes_are_detected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, 4000, 64, 7);
    let region = Region::new("damage", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    load(&pool, "t", &source(&file), &options()).unwrap();
    let table = Table::open(&pool, "t", Opening::Verified).unwrap();
    let at = Offset::<u64>::new(table.offset_of(3999) / 8 * 8);
    pool.fabric().store(at, pool.fabric().load(at) ^ 1 << 40);
    let checked = check(&pool, "t").unwrap();
    assert!(!checked.is_whole && checked.damaged == [checked.extents - 1], "{checked:?}");
    let error = Table::open(&pool, "t", Opening::Verified).err().unwrap();
    assert!(matches!(error, TableError::Damaged { damaged: 1, .. }), "{error}");
    assert!(Table::open(&pool, "t", Opening::Trusted).is_ok());
}

#[test]
fn bad_lists_are_refused_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, 100, 64, 8);
    let region = Region::new("lists", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    load(&pool, "t", &source(&file), &options()).unwrap();
    let table = Table::open(&pool, "t", Opening::Verified).unwrap();
    let mut to = [7; 256];
    let row = GatherError::Row { at: 1, row: 100, rows: 100, name: "t".to_owned() };
    assert_eq!(table.gather(&[99, 100], &mut to), Err(row));
    let buffer = GatherError::Buffer { got: 256, wanted: 384, rows: 3 };
    assert_eq!(table.gather(&[1, 2, 3], &mut to), Err(buffer));
    assert_eq!(to, [7; 256]);
    table.gather(&[], &mut []).unwrap();
}

#[test]
fn hot_rows_equal_the_tables() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    let bytes = bf16_file(&file, 5000, 64, 9);
    let region = Region::new("hot", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    load(&pool, "t", &source(&file), &options()).unwrap();
    let table = Table::open(&pool, "t", Opening::Verified).unwrap();
    let mut prng = cenote_base::prng::Prng::new(1);
    let mut hot = HotRows::new(128, 100_000);
    assert!(hot.capacity() > 600 && hot.bytes() <= 100_000);
    let mut to = vec![0; 40 * 128];
    for batch in 0..500 {
        // Squares of uniform numbers are mostly small.
        let rows: Vec<u64> = (0..40).map(|_| (prng.next_f64().powi(4) * 5000.0) as u64).collect();
        hot.gather(&table, &rows, &mut to).unwrap();
        assert!(to == expected(&bytes, 128, &rows), "batch {batch}");
        match batch {
            200 => hot.resize(50_000),
            300 => hot.resize(0),
            400 => hot.resize(150_000),
            _ => {}
        }
    }
    let counts = hot.counts();
    assert_eq!(counts.hits + counts.misses, 500 * 40);
    assert!(counts.rate() > 0.3 && counts.rate() < 0.9, "{counts:?}");
    drop_table(&pool, "t", patience()).unwrap();
    assert!(hot.gather(&table, &[1], &mut to[..128]).is_err(), "also if the cache has the row");
}

/// A cache that a caller kept for a table loaded anew returned rows of the table before.
#[test]
fn hot_rows_of_one_table_are_none_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::new("hots", 4 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    let mut hot = HotRows::new(128, 100_000);
    let mut to = [0; 128];
    let tables: Vec<_> = (0..2)
        .map(|at| {
            let (file, name) = (folder.path().join(format!("{at}")), format!("t{at}"));
            let bytes = bf16_file(&file, 500, 64, at);
            load(&pool, &name, &source(&file), &options()).unwrap();
            (Table::open(&pool, &name, Opening::Verified).unwrap(), bytes)
        })
        .collect();
    for (table, bytes) in [&tables[0], &tables[0], &tables[1], &tables[0]] {
        hot.gather(table, &[7], &mut to).unwrap();
        assert!(to == bytes[7 * 128..8 * 128]);
    }
    assert_eq!((hot.counts().hits, hot.counts().misses), (1, 3));
}

/// The number of empty places was found in the cache, with bytes of no row.
#[test]
fn the_largest_row_number_is_found_in_no_empty_place() {
    let mut hot = HotRows::new(8, 10_000);
    for value in [3, 4] {
        let mut to = [0; 8];
        hot.through(&[u64::MAX], &mut to, |rows, read| {
            assert_eq!(rows, [u64::MAX]);
            read.fill(value);
            Ok::<_, ()>(())
        })
        .unwrap();
        assert_eq!(to, [value; 8]);
    }
    assert_eq!(hot.counts().hits, 0);
}
