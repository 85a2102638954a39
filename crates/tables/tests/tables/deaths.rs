//! Loaders and droppers that die, and callers that wait for them.

use crate::support::*;
use cenote_base::Clock;
use cenote_base::fault::{Plan, Point};
use cenote_base::prng::Prng;
use cenote_base::testing::{ManualTime, until};
use cenote_base::time::TimeSource;
use cenote_mem::Flush;
use cenote_pool::HostPool;
use cenote_tables::checkpoint::tensor_table;
use cenote_tables::{
    ListedState, LoadOptions, Opening, Outcome, Progress, RowSource, Table, TableError, check, drop_table, list, load,
};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

const ROWS: usize = 12_000;
const VALUES: usize = 64;

fn options(progress: &(dyn Fn(Progress) + Sync)) -> LoadOptions<'_> {
    LoadOptions { journal_bytes: 1 << 16, extent_bytes: 64 << 10, progress, ..LoadOptions::waiting(patience()) }
}

/// Variable with the step after which [`loader`] waits.
const HOLD: &str = "CENOTE_TEST_HOLD";

/// Loads `t` from the file, and says each step.
#[test]
#[ignore = "the process that another test starts"]
fn loader() {
    let (region, file) = given();
    let pool = attach(&region, 0);
    let source = tensor_table(&file, "table", None, None).expect("a table");
    let hold: u64 = std::env::var(HOLD).map_or(0, |step| step.parse().expect("a number"));
    let steps = AtomicU64::new(0);
    let say = |progress: Progress| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n@{}", progress.bytes).and_then(|()| out.flush()).expect("the test listens");
        drop(out);
        if steps.fetch_add(1, Relaxed) + 1 == hold {
            std::io::stdin().read_line(&mut String::new()).expect("the test kills this process");
        }
    };
    load(&pool, "t", &source, &options(&say)).expect("there is room");
    say(Progress { bytes: u64::MAX, total_bytes: 0, waiting: false });
}

#[test]
#[ignore = "the process that another test starts"]
fn dropper() {
    let (region, _) = given();
    drop_table(&attach(&region, 0), "t", patience()).expect("nothing else works on it");
}

/// Waits until a loader has said so many steps, or has ended.
fn after_steps(child: &mut Child, steps: u64) {
    let said = BufReader::new(child.stdout.take().expect("piped")).lines();
    let steps_said = said.map(|line| line.expect("text")).filter(|line| line.starts_with('@'));
    steps_said.take(steps as usize).for_each(drop);
}

/// No table or a complete one; returns whether it is there.
fn none_or_whole(pool: &HostPool, context: &str) -> bool {
    pool.tick();
    match check(pool, "t") {
        Ok(checked) => {
            assert!(checked.is_whole, "{context}: {checked:?}");
            Table::open(pool, "t", Opening::Verified).unwrap_or_else(|error| panic!("{context}: {error}"));
            true
        }
        Err(TableError::Missing(_)) => {
            assert!(Table::open(pool, "t", Opening::Verified).is_err(), "{context}");
            false
        }
        Err(error) => panic!("{context}: {error}"),
    }
}

/// Loads what a death left, compares it with the file, and drops it: nothing stays.
fn ends_well(pool: &HostPool, file: &Path, bytes: &[u8], context: &str) {
    let source = tensor_table(file, "table", None, None).unwrap();
    load(pool, "t", &source, &options(&|_| {})).unwrap_or_else(|error| panic!("{context}: {error}"));
    let table = Table::open(pool, "t", Opening::Verified).unwrap();
    let rows: Vec<u64> = (0..ROWS as u64).collect();
    let mut got = vec![0; bytes.len()];
    table.gather(&rows, &mut got).unwrap();
    assert!(got == bytes, "{context}");
    let extents = list(pool)[0].extents_total;
    assert_eq!(pieces(pool), extents, "{context}: memory beside the table");
    assert!(drop_table(pool, "t", patience()).unwrap());
    assert_eq!((pieces(pool), list(pool).len()), (0, 0), "{context}");
}

/// A loader dies after a random number of steps, again and again on one region, and the next one goes
/// on where it ended. Every second one waits for its death, and the others race with it.
#[test]
fn killed_loaders_leave_no_table_or_a_whole_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    let bytes = bf16_file(&file, ROWS, VALUES, 1);
    let region = Region::new("killed", 8 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    let mut prng = Prng::new(11);
    let (mut resumed, mut completed) = (0, 0);
    for kill in 0..40 {
        // The first two have written a part, and all.
        let steps = [2, u64::MAX].get(kill).copied().unwrap_or_else(|| prng.below(16));
        let mut command = region.process("deaths::loader", &file, None);
        if kill % 2 == 0 {
            command.env(HOLD, steps.to_string());
        }
        let mut loader = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        after_steps(&mut loader, steps);
        loader.kill().unwrap();
        loader.wait().unwrap();
        if none_or_whole(&pool, &format!("kill {kill}")) {
            completed += 1;
            ends_well(&pool, &file, &bytes, &format!("kill {kill}"));
        } else {
            let listed = list(&pool);
            resumed += u32::from(listed.first().is_some_and(|table| {
                assert_eq!(table.state, ListedState::Interrupted, "{listed:?}");
                table.extents > 0
            }));
        }
    }
    assert!(resumed > 0 && completed > 0, "{resumed} loads had something to resume, {completed} completed");
    ends_well(&pool, &file, &bytes, "at the end");
    assert!(pool.check(true).unwrap().is_clean());
}

/// A load of tensor B went on with the extents of a killed load of tensor A.
#[test]
fn a_load_of_another_tensor_keeps_no_rows_of_a_killed_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    let [_, bytes] = two_tables(&file, ROWS, VALUES, 5);
    let region = Region::new("tensors", 8 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    assert!(dies_at(&region, "deaths::loader", &file, Point::MemoryAllocated, 12));
    pool.tick();
    assert!(list(&pool)[0].extents > 0);
    let other = tensor_table(&file, "other", None, None).unwrap();
    let loaded = load(&pool, "t", &other, &options(&|_| {})).unwrap();
    assert!(matches!(loaded, Outcome::Loaded { resumed_bytes: 0, .. }), "{loaded:?}");
    let table = Table::open(&pool, "t", Opening::Verified).unwrap();
    let mut got = vec![0; bytes.len()];
    table.gather(&(0..ROWS as u64).collect::<Vec<_>>(), &mut got).unwrap();
    assert!(got == bytes);
    assert_eq!(pieces(&pool), list(&pool)[0].extents_total, "memory beside the table");
}

/// A load on a second host began anew, because its copy of the file had another time.
#[test]
fn a_load_goes_on_from_a_copy_of_the_file_as_far_as_its_rows_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    let bytes = bf16_file(&file, ROWS, VALUES, 6);
    let header = std::fs::metadata(&file).unwrap().len() as usize - bytes.len();
    let region = Region::new("copies", 8 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    let change = |at: usize| move |file: &mut Vec<u8>| file[header + at] ^= 1;
    let copies = [
        (copy_of(&file, &folder.path().join("same"), |_| {}), bytes.len()),
        (copy_of(&file, &folder.path().join("third extent"), change(150_000)), 150_000),
        (copy_of(&file, &folder.path().join("first extent"), change(7)), 7),
    ];
    for (copy, equal) in copies {
        assert!(dies_at(&region, "deaths::loader", &file, Point::MemoryAllocated, 12));
        pool.tick();
        let written = list(&pool)[0].bytes;
        assert!(written > 150_000, "{written}");
        let source = tensor_table(&copy, "table", None, None).unwrap();
        let loaded = load(&pool, "t", &source, &options(&|_| {})).unwrap();
        let Outcome::Loaded { resumed_bytes, .. } = loaded else { panic!("{loaded:?}") };
        assert_eq!(resumed_bytes, written.min(equal as u64 / (64 << 10) * (64 << 10)), "{}", copy.display());
        ends_well(&pool, &copy, &std::fs::read(&copy).unwrap()[header..], &copy.display().to_string());
    }
}

/// A process dies at the named place. Its parent sees a signal, or that the place was not reached.
fn dies_at(region: &Region, process: &str, file: &Path, point: Point, count: u64) -> bool {
    let plan: Plan = format!("{}:{count}", point.name()).parse().unwrap();
    let mut command = region.process(process, file, Some(plan));
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(status.success() || status.signal() == Some(9), "{point:?}: {status}");
    !status.success()
}

#[test]
fn deaths_at_named_places_leave_no_table_or_a_whole_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    let bytes = bf16_file(&file, ROWS, VALUES, 2);
    let region = Region::new("places", 8 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    let places = [
        Point::ObjectWritten,
        Point::ObjectNamed,
        Point::ObjectEntered,
        Point::MemoryDescribed,
        Point::MemoryAllocated,
    ];
    let mut deaths = 0;
    for point in places {
        for count in [1, 2, 3, 7, 20, 25] {
            deaths += u32::from(dies_at(&region, "deaths::loader", &file, point, count));
            none_or_whole(&pool, &format!("{point:?} {count}"));
            ends_well(&pool, &file, &bytes, &format!("{point:?} {count}"));
        }
    }
    let source = tensor_table(&file, "table", None, None).unwrap();
    for point in [Point::ObjectWritten, Point::ObjectEntered, Point::MemoryFreed] {
        for count in [1, 2, 5, 24] {
            load(&pool, "t", &source, &options(&|_| {})).unwrap();
            let died = dies_at(&region, "deaths::dropper", &file, point, count);
            deaths += u32::from(died);
            none_or_whole(&pool, &format!("drop, {point:?} {count}"));
            // The next drop goes on.
            let rest = drop_table(&pool, "t", patience()).unwrap();
            assert!(rest || pieces(&pool) == 0, "{point:?} {count}");
            assert_eq!((pieces(&pool), list(&pool).len()), (0, 0), "drop, {point:?} {count}, died: {died}");
        }
    }
    assert!(deaths > 25, "{deaths} deaths");
    assert!(pool.check(true).unwrap().is_clean());
}

const SEALED: &str = "cenote/engram/t";
const JOURNAL: &str = "cenote/engram-work/t";

/// A drop died when it had freed all extents. Its maker lived and loaded another table into their
/// places, and the next drop freed that.
#[test]
fn a_resumed_drop_leaves_later_tables_alone() {
    let folder = tempfile::tempdir().unwrap();
    let [file, later] = ["t", "u"].map(|name| folder.path().join(name));
    bf16_file(&file, ROWS, VALUES, 7);
    bf16_file(&later, ROWS, VALUES, 8);
    let [source, later] = [&file, &later].map(|file| tensor_table(file, "table", None, None).unwrap());
    for leaves in [false, true] {
        let region = Region::new(&format!("resumed{leaves}"), 8 << 20, 256 << 10, Flush::None);
        let pool = region.attach(0);
        let maker = region.attach(0);
        load(&maker, "t", &source, &options(&|_| {})).unwrap();
        let extents = list(&pool)[0].extents_total;
        let places = Table::open(&pool, "t", Opening::Trusted).unwrap().extents().0.to_vec();
        assert!(dies_at(&region, "deaths::dropper", &file, Point::MemoryFreed, extents));
        pool.tick();
        assert_eq!(pieces(&pool), 0);
        load(&maker, "u", &later, &options(&|_| {})).unwrap();
        let table = Table::open(&pool, "u", Opening::Trusted).unwrap();
        assert!(table.extents().0.iter().any(|place| places.contains(place)), "no place is used again");
        if leaves {
            drop(maker);
            pool.tick();
        }
        assert!(drop_table(&pool, "t", patience()).unwrap());
        assert_eq!(pieces(&pool), extents, "the maker has left: {leaves}");
        assert!(check(&pool, "u").unwrap().is_whole);
        assert!(drop_table(&pool, "u", patience()).unwrap());
        assert_eq!((pieces(&pool), list(&pool).len()), (0, 0));
    }
}

/// A loader died between its journal and its second look at the sealed record. The drop freed what
/// the empty journal names, and the table's memory stayed.
#[test]
fn a_drop_frees_the_sealed_tables_extents_beside_an_older_journal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, ROWS, VALUES, 9);
    let source = tensor_table(&file, "table", None, None).unwrap();
    let region = Region::new("older", 8 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    assert!(dies_at(&region, "deaths::loader", &file, Point::ObjectEntered, 1));
    pool.tick();
    let journal = pool.get_object(JOURNAL).unwrap().unwrap();
    load(&pool, "t", &source, &options(&|_| {})).unwrap();
    pool.put_object(JOURNAL, &journal).unwrap();
    assert!(drop_table(&pool, "t", patience()).unwrap());
    assert_eq!((pieces(&pool), list(&pool).len()), (0, 0));
}

/// A dropper read a sealed record, and the table was dropped and loaded again before it had its
/// journal. It destroyed the new record and freed the old one's extents.
#[test]
fn a_drop_frees_the_extents_of_the_record_that_it_destroys() {
    let folder = tempfile::tempdir().unwrap();
    let [file, other] = ["t", "u"].map(|name| folder.path().join(name));
    bf16_file(&file, ROWS, VALUES, 10);
    bf16_file(&other, ROWS, VALUES, 11);
    let [source, other] = [&file, &other].map(|file| tensor_table(file, "table", None, None).unwrap());
    let region = Region::new("newer", 16 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    load(&pool, "t", &source, &options(&|_| {})).unwrap();
    assert!(dies_at(&region, "deaths::dropper", &file, Point::ObjectEntered, 1));
    pool.tick();
    let journal = pool.get_object(JOURNAL).unwrap().unwrap();
    assert!(pool.get_object(SEALED).unwrap().is_some());
    assert!(drop_table(&pool, "t", patience()).unwrap());
    assert_eq!(pieces(&pool), 0);
    // It takes the places that the old journal names.
    load(&pool, "u", &other, &options(&|_| {})).unwrap();
    load(&pool, "t", &source, &options(&|_| {})).unwrap();
    let extents = list(&pool)[0].extents_total;
    pool.put_object(JOURNAL, &journal).unwrap();
    assert!(drop_table(&pool, "t", patience()).unwrap());
    assert_eq!(pieces(&pool), extents);
    assert!(list(&pool).len() == 1 && check(&pool, "u").unwrap().is_whole);
    assert!(drop_table(&pool, "u", patience()).unwrap());
    assert_eq!(pieces(&pool), 0);
}

/// A source whose first read waits for the test.
struct Slow<'a> {
    source: &'a dyn RowSource,
    reached: SyncSender<()>,
    go: Mutex<Receiver<()>>,
}

impl RowSource for Slow<'_> {
    fn facts(&self) -> &cenote_tables::Facts {
        self.source.facts()
    }

    fn read(&self, rows: std::ops::Range<u64>, to: &mut [u8]) -> Result<(), TableError> {
        if rows.start == 0 {
            self.reached.send(()).expect("the test listens");
            self.go.lock().unwrap().recv().expect("the test says so");
        }
        self.source.read(rows, to)
    }

    fn verify_unchanged(&self) -> Result<(), TableError> {
        self.source.verify_unchanged()
    }
}

/// A clock that tells the test when its caller waits.
struct Watched {
    time: &'static ManualTime,
    pauses: SyncSender<()>,
}

impl TimeSource for Watched {
    fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    fn unix(&self) -> Duration {
        self.time.unix()
    }

    fn block_for(&self, ahead: Duration) -> Duration {
        // The test needs the first one only.
        let _ = self.pauses.try_send(());
        self.time.block_for(ahead)
    }

    fn spin_until(&self, at_ns: u64) {
        self.time.spin_until(at_ns);
    }
}

/// `engram drop` said "wait longer" without having waited.
#[test]
fn a_drop_waits_for_a_living_loader() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, ROWS, VALUES, 3);
    let region = Region::new("waits", 8 << 20, 256 << 10, Flush::None);
    let source = tensor_table(&file, "table", None, None).unwrap();
    let (reached, is_reached) = sync_channel(1);
    let (go, gone) = sync_channel(1);
    let slow = Slow { source: &source, reached, go: Mutex::new(gone) };
    std::thread::scope(|scope| {
        // A test that fails drops it, so that the loader ends.
        let go = go;
        let loads = scope.spawn(|| load(&region.attach(0), "t", &slow, &options(&|_| {})));
        is_reached.recv().unwrap();
        let pool = region.attach(0);
        let error = drop_table(&pool, "t", Clock::system().after(Duration::ZERO)).unwrap_err().to_string();
        assert!(error.contains("loads table `t`") && error.contains("at this moment; wait for it"), "{error}");
        let (pauses, is_waiting) = sync_channel(1);
        let time: &'static Watched = Box::leak(Box::new(Watched { time: ManualTime::start(), pauses }));
        let (clock, wait) = (Clock::of(time), Duration::from_secs(5));
        let region = &region;
        let drops = scope.spawn(move || drop_table(&region.attach(0), "t", clock.after(wait)).unwrap_err());
        is_waiting.recv().unwrap();
        time.time.advance(wait);
        let error = drops.join().unwrap();
        assert!(matches!(error, TableError::Busy { waited, .. } if waited == wait), "{error}");
        assert!(error.to_string().contains("not done within 5.0 s; wait longer"), "{error}");
        // A caller with patience drops what the loader has sealed.
        let drops = scope.spawn(|| drop_table(&region.attach(0), "t", patience()).unwrap());
        go.send(()).unwrap();
        let loaded = loads.join().unwrap();
        assert!(matches!(loaded, Ok(Outcome::Loaded { .. })), "{loaded:?}");
        assert!(drops.join().unwrap(), "there was a table");
        assert_eq!((pieces(&pool), list(&pool).len()), (0, 0));
    });
}

/// A load went on with the extents of a killed one, because the other file had the same name, size,
/// header and time.
#[test]
fn a_load_keeps_no_rows_of_another_file_of_the_same_form_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    let bytes = bf16_file(&file, ROWS, VALUES, 6);
    let one = copy_of(&file, &folder.path().join("one"), |_| {});
    let two = copy_of(&file, &folder.path().join("two"), |file| *file.last_mut().unwrap() ^= 1);
    let first = copy_of(&file, &folder.path().join("first"), |file| {
        let header = file.len() - bytes.len();
        file[header] ^= 1;
    });
    let region = Region::new("forms", 8 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    for (other, kept) in [(two, true), (first, false)] {
        assert!(dies_at(&region, "deaths::loader", &one, Point::MemoryAllocated, 12));
        pool.tick();
        assert!(list(&pool)[0].extents > 0);
        let source = tensor_table(&other, "table", None, None).unwrap();
        assert_eq!(source.facts().source, tensor_table(&one, "table", None, None).unwrap().facts().source);
        let loaded = load(&pool, "t", &source, &options(&|_| {})).unwrap();
        let Outcome::Loaded { resumed_bytes, .. } = loaded else { panic!("{loaded:?}") };
        assert_eq!(resumed_bytes > 0, kept, "as far as its rows are equal");
        let content = std::fs::read(&other).unwrap();
        ends_well(&pool, &other, &content[content.len() - bytes.len()..], &other.display().to_string());
    }
}

/// A loader gave no heartbeat while it read a large extent, and another host declared its host dead.
#[test]
fn a_host_lives_while_a_load_reads_slowly() {
    let Some(flush) = flushes().into_iter().find(|&flush| flush != Flush::None) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, ROWS, VALUES, 3);
    let region = Region::new("slowly", 8 << 20, 256 << 10, flush);
    let source = tensor_table(&file, "table", None, None).unwrap();
    let (reached, is_reached) = sync_channel(1);
    let (go, gone) = sync_channel(1);
    let slow = Slow { source: &source, reached, go: Mutex::new(gone) };
    std::thread::scope(|scope| {
        let loads = scope.spawn(|| load(&region.attach(0), "t", &slow, &options(&|_| {})));
        is_reached.recv().unwrap();
        let time = ManualTime::start();
        let other = attach_timed(&region.source, 1, time);
        for beat in 1..=3 {
            // The other host sees a heartbeat before its timeout, again and again.
            time.advance(HOST_TIMEOUT - Duration::from_millis(1));
            until(&format!("heartbeat {beat}"), || {
                other.tick();
                other.info().hosts.iter().any(|host| host.host == 0 && host.silent_ms == Some(0)).then_some(())
            });
        }
        go.send(()).unwrap();
        let loaded = loads.join().unwrap();
        assert!(matches!(loaded, Ok(Outcome::Loaded { .. })), "{loaded:?}");
        assert!(check(&other, "t").unwrap().is_whole);
    });
}

/// Engram pooling §4.3: one rank loads, and the others find the table.
#[test]
fn one_rank_loads_and_the_others_wait() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    bf16_file(&file, ROWS, VALUES, 3);
    for flush in flushes() {
        let region = Region::new("ranks", 8 << 20, 256 << 10, flush);
        let other_host = u8::from(flush != Flush::None);
        let source = tensor_table(&file, "table", None, None).unwrap();
        let (reached, is_reached) = sync_channel(1);
        let (go, gone) = sync_channel(1);
        let slow = Slow { source: &source, reached, go: Mutex::new(gone) };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| load(&region.attach(0), "t", &slow, &options(&|_| {})));
            is_reached.recv().unwrap();
            let pool = region.attach(other_host);
            let hurried = LoadOptions { deadline: Clock::system().after(Duration::ZERO), ..options(&|_| {}) };
            let error = load(&pool, "t", &source, &hurried).unwrap_err();
            assert!(matches!(error, TableError::Busy { verb: "loads", .. }), "{error}");
            let error = drop_table(&pool, "t", Clock::system().after(Duration::ZERO)).unwrap_err();
            assert!(matches!(error, TableError::Busy { .. }), "{error}");
            assert_eq!(list(&pool)[0].state, ListedState::Loading);
            // The waiting rank lets the loader go on.
            let once = Mutex::new(Some(go));
            let waits = |progress: Progress| {
                if progress.waiting
                    && let Some(go) = once.lock().unwrap().take()
                {
                    go.send(()).unwrap();
                }
            };
            let second = load(&pool, "t", &source, &options(&waits)).unwrap();
            let Outcome::Loaded { digest, resumed_bytes: 0 } = first.join().unwrap().unwrap() else {
                panic!("it was first")
            };
            assert_eq!(second, Outcome::Found { digest }, "{flush:?}");
        });
    }
}
