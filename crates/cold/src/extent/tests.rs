use super::format::{EXTENT, INDEX, LINE_BYTES};
use super::*;
use crate::disk::{Fault, Faults, FaultyDisk, LocalDisk};
use crate::extent::space::OWNER_TIMEOUT;
use crate::record::{HEADER_BYTES, seal};
use cenote_base::BlockHash;
use cenote_base::testing::{ManualTime, until};
use cenote_base::time::TimeSource;
use std::path::Path;
use std::time::Duration;

const SEED: HashSeed = HashSeed([9; 32]);
const LENGTH: usize = 8192;

/// Time that passes with each look, so that no two extents have the same age.
struct Looks(AtomicU64);

impl TimeSource for Looks {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }

    fn unix(&self) -> Duration {
        Duration::from_nanos(self.now_ns())
    }

    fn block_for(&self, ahead: Duration) -> Duration {
        ahead.min(Duration::from_millis(1))
    }
}

fn clock() -> Clock {
    static LOOKS: Looks = Looks(AtomicU64::new(0));
    Clock::of(&LOOKS)
}

fn name(number: u64) -> Name {
    let mut hash = [1; 16];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    Name { namespace: [2; 32], hash: BlockHash(hash) }
}

fn byte(number: u64, at: usize) -> u8 {
    (number.wrapping_mul(31) as usize + at) as u8
}

fn write(extents: &Extents, numbers: std::ops::Range<u64>) -> Result<(), ColdError> {
    let size = record_bytes(LENGTH as u64) as usize;
    let mut memory = Aligned::default();
    memory.resize(size * numbers.clone().count());
    let heads: Vec<Head> = numbers
        .clone()
        .map(|number| Head { name: name(number), length: LENGTH as u64, depth: 0, encoding: 0, names: [0; 2] })
        .collect();
    for ((number, head), record) in numbers.zip(&heads).zip(memory.bytes_mut().chunks_exact_mut(size)) {
        record[HEADER_BYTES..HEADER_BYTES + LENGTH].iter_mut().enumerate().for_each(|(at, b)| *b = byte(number, at));
        seal(head, record);
    }
    let sealed: Vec<Sealed<'_>> =
        heads.iter().zip(memory.bytes().chunks_exact(size)).map(|(&head, bytes)| Sealed { head, bytes }).collect();
    extents.write(&sealed, memory.bytes())
}

/// Reads a block, and panics on a wrong byte.
fn read(extents: &Extents, number: u64) -> Result<(), ColdError> {
    let mut memory = Aligned::default();
    let head = extents.read(&name(number), &mut memory)?;
    assert_eq!((head.name, head.length), (name(number), LENGTH as u64));
    let payload = &memory.bytes()[HEADER_BYTES..HEADER_BYTES + LENGTH];
    assert!(payload.iter().enumerate().all(|(at, &found)| found == byte(number, at)), "wrong bytes of {number}");
    Ok(())
}

fn found(extents: &Extents, numbers: std::ops::Range<u64>) -> usize {
    numbers.filter(|&number| read(extents, number).is_ok()).count()
}

fn open_on(directory: &Path, bytes: u64, disk: Arc<dyn Disk>) -> Extents {
    let extents = Extents::new(ExtentsConfig::new(directory.to_owned(), bytes), disk, clock());
    extents.open(&SEED).expect("it opens");
    extents.refresh().expect("it lists");
    extents
}

fn open(directory: &Path, bytes: u64) -> Extents {
    open_on(directory, bytes, Arc::new(LocalDisk))
}

fn files(directory: &Path, end: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.to_string_lossy().ends_with(end))
        .collect();
    files.sort();
    files
}

#[test]
fn a_new_process_finds_every_record_and_its_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let extents = open(directory.path(), 64 << 20);
    (0..10).for_each(|batch| write(&extents, batch * 8..batch * 8 + 8).expect("it has space"));
    let other = open(directory.path(), 64 << 20);
    assert_eq!((found(&extents, 0..80), found(&other, 0..80), other.used().blocks), (80, 80, 80));
    // The other process tails what is written from now on, and writes a file of its own.
    write(&extents, 80..90).expect("it has space");
    write(&other, 90..95).expect("it has space");
    assert!(other.length(&name(80)).is_none(), "the list is memory");
    extents.refresh().expect("it lists");
    other.refresh().expect("it lists");
    assert_eq!((found(&extents, 0..95), found(&other, 0..95)), (95, 95));
}

#[test]
fn regions_with_another_seed_find_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    open(directory.path(), 64 << 20);
    let other = Extents::new(ExtentsConfig::new(directory.path().to_owned(), 64 << 20), Arc::new(LocalDisk), clock());
    let error = other.open(&HashSeed([1; 32])).expect_err("another seed").to_string();
    assert!(error.contains("another hash seed"), "{error}");
}

#[test]
fn the_oldest_extents_make_room_and_the_limit_holds() {
    let directory = tempfile::tempdir().expect("a directory");
    let limit = 4 << 20;
    let (one, two) = (open(directory.path(), limit), open(directory.path(), limit));
    let mut memory = Aligned::default();
    for number in 0..1000 {
        let writer = if number % 3 == 0 { &two } else { &one };
        write(writer, number..number + 1).expect("old extents are removed");
        let on_disk: u64 = [EXTENT, INDEX]
            .iter()
            .flat_map(|end| files(directory.path(), end))
            .map(|path| path.metadata().expect("it is there").len())
            .sum();
        assert!(on_disk <= limit, "{on_disk} of {limit} bytes after {number}");
        // A reader with an old list reads the right bytes or nothing.
        if let Ok(head) = two.read(&name(number / 2), &mut memory) {
            assert_eq!(head.name, name(number / 2));
        }
    }
    one.refresh().expect("it lists");
    let there = found(&one, 0..1000);
    assert!((200..500).contains(&there), "{there} blocks of 4 MiB stay");
    assert_eq!(found(&one, 900..1000), 100, "the latest stay");
    assert!(one.refresh().expect("it lists").removed + two.refresh().expect("it lists").removed > 0);
}

#[test]
fn every_damaged_byte_is_a_miss_and_never_wrong_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let extents = open(directory.path(), 64 << 20);
    write(&extents, 0..3).expect("it has space");
    drop(extents);
    for end in [EXTENT, INDEX] {
        let path = files(directory.path(), end).remove(0);
        let good = std::fs::read(&path).expect("it is there");
        let step = if end == INDEX { 1 } else { 37 };
        for at in (0..good.len()).step_by(step) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            std::fs::write(&path, &bad).expect("it is written");
            let after = found(&open(directory.path(), 64 << 20), 0..3);
            assert!(after >= if end == INDEX && at < LINE_BYTES { 0 } else { 2 }, "{after} after byte {at} of {end}");
            // A cut file: complete records stay.
            std::fs::write(&path, &good[..at]).expect("it is written");
            found(&open(directory.path(), 64 << 20), 0..3);
        }
        std::fs::write(&path, &good).expect("it is written");
    }
    assert_eq!(found(&open(directory.path(), 64 << 20), 0..3), 3);
}

#[test]
fn an_index_of_another_file_or_version_does_not_count() {
    let directory = tempfile::tempdir().expect("a directory");
    (0..2).for_each(|number| write(&open(directory.path(), 64 << 20), number..number + 1).expect("it has space"));
    let [one, two] = [0, 1].map(|at| files(directory.path(), INDEX).remove(at));
    let original = std::fs::read(&two).expect("it is there");
    std::fs::copy(&one, &two).expect("it is written");
    // The first extent's lines now lead into the second one, and records name themselves.
    assert_eq!(
        found(&open(directory.path(), 64 << 20), 0..2),
        usize::from(found(&open(directory.path(), 64 << 20), 0..1) == 1)
    );
    let mut newer = original;
    newer[8] = 2;
    std::fs::write(&two, newer).expect("it is written");
    let extents = Extents::new(ExtentsConfig::new(directory.path().to_owned(), 64 << 20), Arc::new(LocalDisk), clock());
    extents.open(&SEED).expect("it opens");
    let damage = extents.refresh().expect("it lists").damage;
    assert!(matches!(damage[..], [ColdError::Version { found: 2, .. }]), "{damage:?}");
    assert!(extents.refresh().expect("it lists").damage.is_empty(), "told once");
    assert_eq!(found(&extents, 0..2), 1);
}

#[test]
fn a_torn_write_is_overwritten_by_the_next() {
    let directory = tempfile::tempdir().expect("a directory");
    for tear in [0, 1, 100, 4096, 8191, 12287] {
        let faults = Arc::new(Faults::new(clock()));
        let extents = open_on(directory.path(), 64 << 20, Arc::new(FaultyDisk::new(Arc::clone(&faults))));
        write(&extents, 0..1).expect("it has space");
        faults.tear_at(tear);
        assert!(write(&extents, 1..2).is_err(), "torn at {tear}");
        assert!(extents.length(&name(1)).is_none());
        write(&extents, 2..3).expect("the disk works again");
        let other = open(directory.path(), 64 << 20);
        assert_eq!((found(&extents, 0..3), found(&other, 0..3)), (2, 2), "torn at {tear}");
        files(directory.path(), "").iter().filter(|path| !path.ends_with("tier")).for_each(|path| {
            std::fs::remove_file(path).expect("it is there");
        });
    }
}

#[test]
fn a_full_or_absent_disk_is_an_error_and_heals() {
    let directory = tempfile::tempdir().expect("a directory");
    let faults = Arc::new(Faults::new(clock()));
    let extents = open_on(directory.path(), 64 << 20, Arc::new(FaultyDisk::new(Arc::clone(&faults))));
    write(&extents, 0..1).expect("it has space");
    faults.set(Fault::Full);
    assert!(matches!(write(&extents, 1..2), Err(ColdError::Full { .. })));
    assert_eq!(found(&extents, 0..2), 1, "a full disk reads");
    faults.set(Fault::Gone);
    assert!(write(&extents, 1..2).is_err() && read(&extents, 0).is_err() && extents.refresh().is_err());
    faults.heal();
    write(&extents, 1..2).expect("the disk works again");
    assert_eq!(found(&extents, 0..2), 2);
    std::fs::remove_dir_all(directory.path()).expect("it is there");
    assert!(matches!(extents.refresh(), Err(ColdError::Gone(_))));
    extents.open(&SEED).expect("it is made anew");
    extents.refresh().expect("it lists");
    write(&extents, 2..3).expect("it has space");
    assert_eq!((found(&extents, 0..3), found(&open(directory.path(), 64 << 20), 0..3)), (1, 1));
}

#[test]
fn a_block_longer_than_the_limit_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let extents = open(directory.path(), 80 << 10);
    assert!(matches!(write(&extents, 0..10), Err(ColdError::Full { .. })));
    write(&extents, 0..1).expect("it fits");
}

/// The next write went over records that lines of the torn index write led to. Other processes had
/// read these lines, and never read the ones that took their place.
#[test]
fn a_torn_index_write_ends_its_extent() {
    let directory = tempfile::tempdir().expect("a directory");
    let record = record_bytes(LENGTH as u64);
    let faults = Arc::new(Faults::new(clock()));
    let extents = open_on(directory.path(), 64 << 20, Arc::new(FaultyDisk::new(Arc::clone(&faults))));
    let other = open(directory.path(), 64 << 20);
    write(&extents, 0..1).expect("it has space");
    // Four records, two lines, and half a line.
    faults.tear_at(4 * record + 5 * LINE_BYTES as u64 / 2);
    assert!(write(&extents, 1..5).is_err() && faults.was_hit());
    other.refresh().expect("it lists");
    write(&extents, 5..9).expect("the disk works again");
    assert!(other.refresh().expect("it lists").damage.is_empty());
    assert_eq!((found(&extents, 5..9), found(&other, 5..9)), (4, 4));
    assert_eq!(found(&other, 1..5), 2, "whole lines lead to whole records");
    assert_eq!(found(&open(directory.path(), 64 << 20), 0..9), 7);
}

/// The reader went on at the file's length, in the middle of a line, and took all later lines for
/// damaged ones.
#[test]
fn lines_after_a_damaged_one_are_read() {
    use std::io::Write;
    let directory = tempfile::tempdir().expect("a directory");
    let extents = open(directory.path(), 64 << 20);
    write(&extents, 0..8).expect("it has space");
    let path = files(directory.path(), INDEX).remove(0);
    let mut damaged = std::fs::read(&path).expect("it is there");
    damaged[2 * LINE_BYTES] ^= 1;
    // The last line is in the middle of its write.
    std::fs::write(&path, &damaged[..8 * LINE_BYTES + 20]).expect("it is written");
    let other = Extents::new(ExtentsConfig::new(directory.path().to_owned(), 64 << 20), Arc::new(LocalDisk), clock());
    assert_eq!(other.refresh().expect("it lists").damage.len(), 1);
    let mut file = std::fs::File::options().append(true).open(&path).expect("it is there");
    file.write_all(&damaged[8 * LINE_BYTES + 20..]).expect("it is written");
    assert!(other.refresh().expect("it lists").damage.is_empty(), "told once");
    assert_eq!(found(&other, 0..8), 7);
}

/// After one failed read of an index, its records were never listed.
#[test]
fn an_index_that_cannot_be_read_now_is_read_later() {
    let directory = tempfile::tempdir().expect("a directory");
    write(&open(directory.path(), 64 << 20), 0..8).expect("it has space");
    let path = files(directory.path(), INDEX).remove(0);
    let away = directory.path().join("away");
    std::fs::rename(&path, &away).expect("it is there");
    // A directory opens and does not read. Its length is above a head's.
    std::fs::create_dir(&path).expect("the name is free");
    let other = Extents::new(ExtentsConfig::new(directory.path().to_owned(), 64 << 20), Arc::new(LocalDisk), clock());
    let damage = other.refresh().expect("it lists").damage;
    assert!(matches!(damage[..], [ColdError::Io { .. }]), "{damage:?}");
    std::fs::remove_dir(&path).expect("it is there");
    std::fs::rename(&away, &path).expect("it is there");
    other.refresh().expect("it lists");
    assert_eq!(found(&other, 0..8), 8);
}

#[test]
fn a_block_in_two_extents_stays_until_the_younger_is_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (open(directory.path(), 64 << 20), open(directory.path(), 64 << 20));
    write(&one, 0..1).expect("it has space");
    write(&two, 0..1).expect("it has space");
    // The process that wrote the older one also lists the younger one, in any order.
    one.refresh().expect("it lists");
    two.refresh().expect("it lists");
    for end in [INDEX, EXTENT] {
        std::fs::remove_file(files(directory.path(), end).remove(0)).expect("it is there");
    }
    one.refresh().expect("it lists");
    two.refresh().expect("it lists");
    assert_eq!((found(&one, 0..1), found(&two, 0..1)), (1, 1));
}

#[test]
fn a_directory_that_another_process_keeps_is_slow() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = open(directory.path(), 64 << 20);
    let owner = one.own().expect("no other process has it");
    let time = ManualTime::start();
    let config = ExtentsConfig::new(directory.path().to_owned(), 64 << 20);
    let other = Arc::new(Extents::new(config, Arc::new(LocalDisk), time.clock()));
    let waiting = Arc::clone(&other);
    let waiting = std::thread::spawn(move || waiting.own().map(drop));
    until("the wait ends", || {
        time.advance(OWNER_TIMEOUT);
        waiting.is_finished().then_some(())
    });
    assert!(matches!(waiting.join().expect("no panic"), Err(ColdError::Slow { ms: 1000, .. })));
    drop(owner);
    other.own().expect("it is free");
}
