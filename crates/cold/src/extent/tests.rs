use super::format::{EXTENT, INDEX, LINE_BYTES};
use super::*;
use crate::disk::{Fault, Faults, FaultyDisk, LocalDisk};
use crate::extent::list::{INDEX_BYTES_MAX, LIVE, LIVE_AT_FIRST, OPEN_MAX};
use crate::extent::space::OWNER_TIMEOUT;
use crate::identity::{self, FILE};
use crate::record::{HEADER_BYTES, Sums};
use cenote_base::BlockHash;
use cenote_base::testing::{ManualTime, until};
use cenote_base::time::TimeSource;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

const SEED: HashSeed = HashSeed([9; 32]);
const LENGTH: usize = 8192;

/// Time that passes with each look.
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
        Sums::of(&SEED).seal(head, record);
    }
    let sealed: Vec<Sealed<'_>> =
        heads.iter().zip(memory.bytes().chunks_exact(size)).map(|(&head, bytes)| Sealed { head, bytes }).collect();
    extents.write(&sealed, memory.bytes())
}

/// Reads a block, and panics on a wrong byte.
fn read(extents: &Extents, number: u64) -> Result<(), ColdError> {
    let mut memory = Aligned::default();
    let head = extents.read(&name(number), LENGTH as u64, &mut memory)?;
    assert_eq!((head.name, head.length), (name(number), LENGTH as u64));
    let payload = &memory.bytes()[HEADER_BYTES..HEADER_BYTES + LENGTH];
    assert!(payload.iter().enumerate().all(|(at, &found)| found == byte(number, at)), "wrong bytes of {number}");
    Ok(())
}

fn found(extents: &Extents, numbers: std::ops::Range<u64>) -> usize {
    numbers.filter(|&number| read(extents, number).is_ok()).count()
}

fn open_on(directory: &Path, bytes: u64, disk: Arc<dyn Disk>) -> Extents {
    let extents = unopened(directory, bytes, disk);
    extents.open(&SEED).expect("it opens");
    extents.refresh().expect("it lists");
    extents
}

fn unopened(directory: &Path, bytes: u64, disk: Arc<dyn Disk>) -> Extents {
    Extents::new(ExtentsConfig { directory: directory.to_owned(), bytes: Some(bytes) }, disk, clock())
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
    let other = unopened(directory.path(), 64 << 20, Arc::new(LocalDisk));
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
        if let Ok(head) = two.read(&name(number / 2), LENGTH as u64, &mut memory) {
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
    let both = [0, 1].map(|_| open(directory.path(), 64 << 20));
    (0..).zip(&both).for_each(|(number, one)| write(one, number..number + 1).expect("it has space"));
    drop(both);
    let [one, two] = [0, 1].map(|at| files(directory.path(), INDEX).remove(at));
    let original = std::fs::read(&two).expect("it is there");
    std::fs::copy(&one, &two).expect("it is written");
    // The first extent's lines now lead into the second one, and records name themselves.
    assert_eq!(
        found(&open(directory.path(), 64 << 20), 0..2),
        usize::from(found(&open(directory.path(), 64 << 20), 0..1) == 1)
    );
    let mut newer = original;
    newer[8] = 9;
    std::fs::write(&two, newer).expect("it is written");
    let extents = unopened(directory.path(), 64 << 20, Arc::new(LocalDisk));
    extents.open(&SEED).expect("it opens");
    let damage = extents.refresh().expect("it lists").damage;
    assert!(matches!(damage[..], [ColdError::Version { found: 9, .. }]), "{damage:?}");
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
    let other = unopened(directory.path(), 64 << 20, Arc::new(LocalDisk));
    other.open(&SEED).expect("it opens");
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
    set_mode(&path, 0o666);
    let other = unopened(directory.path(), 64 << 20, Arc::new(LocalDisk));
    other.open(&SEED).expect("it opens");
    let damage = other.refresh().expect("it lists").damage;
    assert!(matches!(damage[..], [ColdError::Io { .. }]), "{damage:?}");
    set_mode(&path, 0o600);
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
    let config = ExtentsConfig { directory: directory.path().to_owned(), bytes: None };
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

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
}

/// A directory that another user had made was believed, with its seed and its blocks.
#[test]
fn a_place_that_others_can_write_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    write(&open(directory.path(), 64 << 20), 0..1).expect("it has space");
    let refused = |what: &str| {
        let error = unopened(directory.path(), 64 << 20, Arc::new(LocalDisk)).open(&SEED).expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    };
    set_mode(directory.path(), 0o777);
    refused("other users can write the folder");
    set_mode(directory.path(), 0o700);
    set_mode(&directory.path().join(FILE), 0o666);
    refused("other users can write the file");
    set_mode(&directory.path().join(FILE), 0o600);
    for end in [EXTENT, INDEX] {
        let path = files(directory.path(), end).remove(0);
        set_mode(&path, 0o622);
        assert_eq!(found(&open(directory.path(), 64 << 20), 0..1), 0, "{end}");
        set_mode(&path, 0o600);
    }
    assert_eq!(found(&open(directory.path(), 64 << 20), 0..1), 1);
    // Only root can give a directory away.
    if std::os::unix::fs::chown(directory.path(), Some(65_534), None).is_ok() {
        refused("belongs to user 65534");
    }
}

/// One process with a smaller limit emptied a tier that others shared.
#[test]
fn a_smaller_wanted_limit_removes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = open(directory.path(), 32 << 20);
    (0..20).for_each(|batch| write(&one, batch * 8..batch * 8 + 8).expect("it has space"));
    let small = open(directory.path(), 1 << 20);
    assert_eq!(small.used().bytes_max, 32 << 20);
    write(&small, 200..208).expect("it has space");
    assert_eq!((found(&small, 0..160), found(&one, 0..160)), (160, 160));
    // A larger one counts, for those that are open as well.
    assert_eq!(open(directory.path(), 64 << 20).used().bytes_max, 64 << 20);
    one.refresh().expect("it lists");
    assert_eq!(one.used().bytes_max, 64 << 20);
    // A command makes it smaller. A process that is open obeys, and does not ask for its own again.
    let command = Extents::new(
        ExtentsConfig { directory: directory.path().to_owned(), bytes: None },
        Arc::new(LocalDisk),
        clock(),
    );
    command.resize(1 << 20).expect("it is there");
    one.refresh().expect("it lists");
    small.refresh().expect("it lists");
    let Used { bytes, bytes_max, .. } = command.survey().expect("it is there");
    assert!(bytes <= bytes_max && bytes_max == 1 << 20, "{bytes} of {bytes_max}");
    one.open(&SEED).expect("it opens");
    assert_eq!(one.used().bytes_max, 1 << 20);
    write(&one, 300..308).expect("old ones leave");
    assert_eq!(found(&one, 300..308), 8);
}

/// Extents from a time when the clock was ahead never left, and all that was new left first.
#[test]
fn a_new_extent_is_above_every_name_that_is_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let both = [0, 1].map(|_| open(directory.path(), 1 << 20));
    both.iter().for_each(|one| write(one, 0..4).expect("it has space"));
    drop(both);
    for end in [EXTENT, INDEX] {
        for (number, path) in files(directory.path(), end).into_iter().enumerate() {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let ahead = format!("0900000000000000000{number}{}", &name[20..]);
            std::fs::rename(&path, directory.path().join(ahead)).expect("the name is free");
        }
    }
    let extents = open(directory.path(), 1 << 20);
    assert_eq!(found(&extents, 0..4), 4);
    (4..200).for_each(|number| write(&extents, number..number + 1).expect("old extents are removed"));
    assert_eq!((found(&extents, 0..4), found(&extents, 180..200)), (0, 20), "the oldest leave first");
}

/// An index that could not be read, and was long, kept the tier from opening: it always had more.
#[test]
fn a_file_that_cannot_be_read_has_no_more() {
    let directory = tempfile::tempdir().expect("a directory");
    write(&open(directory.path(), 64 << 20), 0..4).expect("it has space");
    let plant = |number: u64, length: u64, mode: u32| {
        for end in [EXTENT, INDEX] {
            let path = directory.path().join(format!("{}{end}", format::stem(number, 7)));
            std::fs::File::create(&path).expect("the name is free").set_len(length).expect("it is sparse");
            set_mode(&path, mode);
        }
    };
    // Another program's file, one that is too long, and one without a head.
    plant(50, 5 << 20, 0o666);
    plant(51, INDEX_BYTES_MAX + 1, 0o600);
    plant(52, 5 << 20, 0o600);
    let other = unopened(directory.path(), 64 << 20, Arc::new(LocalDisk));
    other.open(&SEED).expect("it opens");
    let looked = other.refresh().expect("it lists");
    assert!(!looked.has_more && looked.damage.len() == 3, "{looked:?}");
    let again = other.refresh().expect("it lists");
    assert!(!again.has_more && again.damage.is_empty(), "told once: {again:?}");
    assert_eq!((found(&other, 0..4), other.survey().expect("it ends").blocks), (4, 4));
}

/// Files that were deleted under a running process took all that it wrote later with them.
#[test]
fn what_is_written_after_files_were_deleted_is_found_later() {
    for deleted in ["nothing", EXTENT, INDEX, FILE, "owner", ""] {
        let directory = tempfile::tempdir().expect("a directory");
        let one = open(directory.path(), 64 << 20);
        write(&one, 0..4).expect("it has space");
        for path in files(directory.path(), deleted) {
            std::fs::remove_file(path).expect("it is there");
        }
        // With and without a look in between.
        if deleted != EXTENT {
            let damage = one.refresh().expect("it lists").damage;
            assert_eq!(damage.is_empty(), ["nothing", "owner"].contains(&deleted), "{deleted}: {damage:?}");
        }
        write(&one, 4..8).expect("it has space");
        one.refresh().expect("it lists");
        let identity = identity::read(&LocalDisk, directory.path(), &None).expect("it is written again");
        assert!(identity.seed == SEED && identity.bytes_max == 64 << 20, "{deleted}");
        drop(one);
        let other = open(directory.path(), 64 << 20);
        let kept = if ["nothing", FILE, "owner"].contains(&deleted) { 4 } else { 0 };
        assert_eq!((found(&other, 4..8), found(&other, 0..4)), (4, kept), "without {deleted}");
    }
}

/// Sixty-four bytes were the only way to all records.
#[test]
fn the_identity_is_found_again_in_the_extents() {
    let directory = tempfile::tempdir().expect("a directory");
    write(&open(directory.path(), 64 << 20), 0..4).expect("it has space");
    std::fs::remove_file(directory.path().join(FILE)).expect("it is there");
    let new = identity::Identity { seed: HashSeed([1; 32]), bytes_max: 1 << 20 };
    let found_again = identity_of(&LocalDisk, directory.path(), &new, &None).expect("it works");
    assert!(found_again.seed == SEED && found_again.bytes_max == 64 << 20);
    assert_eq!(found(&open(directory.path(), 64 << 20), 0..4), 4);
}

/// A place whose identity was replaced by another region's took blocks that no process found.
#[test]
fn another_identity_closes_a_place() {
    let directory = tempfile::tempdir().expect("a directory");
    let extents = open(directory.path(), 64 << 20);
    let other = identity::Identity { seed: HashSeed([1; 32]), bytes_max: 1 << 20 };
    assert!(identity::write(&LocalDisk, directory.path(), &other, true, &None).expect("it is written"));
    assert!(matches!(extents.refresh(), Err(ColdError::Foreign(_))));
}

/// Each extent that was read stayed open, until the server could accept no connection.
#[test]
fn few_extents_are_open_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let count = 3 * OPEN_MAX as u64;
    let writers: Vec<Extents> = (0..count).map(|_| open(directory.path(), 64 << 30)).collect();
    (0..).zip(&writers).for_each(|(number, one)| write(one, number..number + 1).expect("it has space"));
    drop(writers);
    assert_eq!(files(directory.path(), EXTENT).len() as u64, count);
    let faults = Arc::new(Faults::new(clock()));
    let reader = open_on(directory.path(), 64 << 30, Arc::new(FaultyDisk::new(Arc::clone(&faults))));
    // Old extents are not expected to grow, so they are not looked at five times a second.
    assert_eq!(reader.list().live(reader.clock).0.len(), LIVE_AT_FIRST);
    for _ in 0..2 {
        assert_eq!(found(&reader, 0..count) as u64, count);
        assert_eq!(faults.open_files(), OPEN_MAX as u64);
    }
    drop(reader);
    assert_eq!(faults.open_files(), 0);
}

/// Each process began an extent, and fifteen thousand small ones kept a processor busy.
#[test]
fn processes_with_short_lives_continue_one_extent() {
    let directory = tempfile::tempdir().expect("a directory");
    let long = open(directory.path(), 64 << 20);
    write(&long, 0..1).expect("it has space");
    for number in 1..20 {
        write(&open(directory.path(), 64 << 20), number..number + 1).expect("it has space");
        long.refresh().expect("it lists");
        assert_eq!((found(&long, 0..20), long.used().blocks), (number as usize + 1, number + 1));
    }
    assert_eq!(files(directory.path(), EXTENT).len(), 2);
    assert_eq!(found(&open(directory.path(), 64 << 20), 0..20), 20);
    // A line in the middle of its write, a damaged line, and a damaged head: none is continued.
    let index = files(directory.path(), INDEX).remove(1);
    let whole = std::fs::read(&index).expect("it is there");
    for (length, at) in [(whole.len() - 1, 0), (whole.len(), whole.len() - 1), (whole.len(), 3)] {
        let mut bad = whole[..length].to_vec();
        bad[at] ^= u8::from(at > 0);
        std::fs::write(&index, &bad).expect("it is there");
        write(&open(directory.path(), 64 << 20), 30..31).expect("it has space");
        assert_eq!(std::fs::read(&index).expect("it is there"), bad);
        for end in [EXTENT, INDEX] {
            std::fs::remove_file(files(directory.path(), end).remove(2)).expect("a new one was begun");
        }
    }
}

/// Records in an old extent would leave before their time.
#[test]
fn an_old_extent_is_not_continued() {
    let directory = tempfile::tempdir().expect("a directory");
    write(&open(directory.path(), 4 << 20), 0..1).expect("it has space");
    let path = files(directory.path(), EXTENT).remove(0);
    let before = std::fs::metadata(&path).expect("it is there").len();
    let long = open(directory.path(), 4 << 20);
    let locked = std::fs::File::open(&path).expect("it is there");
    locked.lock().expect("no process writes it");
    (1..120).for_each(|number| write(&long, number..number + 1).expect("it has space"));
    drop(locked);
    write(&open(directory.path(), 4 << 20), 120..121).expect("it has space");
    assert_eq!(std::fs::metadata(&path).expect("it is there").len(), before);
}

/// A directory of many files was listed five times a second, without any change.
#[test]
fn an_idle_directory_is_seldom_listed() {
    let directory = tempfile::tempdir().expect("a directory");
    let time = ManualTime::start();
    let config = ExtentsConfig { directory: directory.path().to_owned(), bytes: None };
    let writer = Extents::new(config.clone(), Arc::new(LocalDisk), time.clock());
    writer.open(&SEED).expect("it opens");
    write(&writer, 0..1).expect("it has space");
    let faults = Arc::new(Faults::new(time.clock()));
    let other = Extents::new(config, Arc::new(FaultyDisk::new(Arc::clone(&faults))), time.clock());
    other.open(&SEED).expect("it opens");
    let look = |times: u64| {
        let before = faults.listings();
        for _ in 0..times {
            time.advance(Duration::from_millis(200));
            other.refresh().expect("it lists");
        }
        faults.listings() - before
    };
    look(3);
    assert_eq!(look(500), 10, "every ten seconds");
    // The next listing is far.
    let until_listed = || while look(1) == 0 {};
    // An extent that grows is read without a listing; one that grew long ago is no more, and its writer
    // says so.
    until_listed();
    write(&writer, 1..2).expect("it has space");
    assert_eq!((look(1), found(&other, 0..2)), (1, 2), "a sign");
    write(&writer, 2..3).expect("it has space");
    assert_eq!((look(1), found(&other, 0..3)), (0, 3), "it is read");
    time.advance(LIVE);
    until_listed();
    write(&writer, 3..4).expect("it has space");
    assert_eq!((look(1), found(&other, 0..4)), (1, 4), "a sign");
    // A new extent is a sign, too.
    until_listed();
    write(&open(directory.path(), 64 << 20), 4..5).expect("it has space");
    assert_eq!((look(1), found(&other, 0..5)), (1, 5));
}
