//! Sealed places: what the owner of the storage can do with all of its bytes and no key.

use cenote_base::seal::{Seal, SealKeys};
use cenote_base::testing::ManualTime;
use cenote_base::{BlockHash, HashSeed};
use cenote_cold::disk::LocalDisk;
use cenote_cold::identity::{self, FILE, IDENTITY_BYTES, Identity};
use cenote_cold::record::{Aligned, HEADER_BYTES, Head, Name, Sums, record_bytes};
use cenote_cold::{Backend, ColdError, Extents, ExtentsConfig, Objects, Sealed, Sealing};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const SEED: HashSeed = HashSeed([9; 32]);
const LENGTH: usize = 4160;
const LIMIT: u64 = 64 << 20;
const SEALS: [Seal; 2] = [Seal::Mac, Seal::Encrypt];

fn keys(numbers: &[u64]) -> SealKeys {
    let key = |number: &u64| format!("{number:064x}\n");
    SealKeys::parse(&numbers.iter().map(key).collect::<String>()).expect("they are keys")
}

/// A seal with the keys of these numbers, or none.
fn sealing(seal: Seal, numbers: &[u64]) -> Sealing {
    (seal != Seal::None).then(|| (seal, keys(numbers)))
}

fn name(number: u8) -> Name {
    Name { namespace: [2; 32], hash: BlockHash([number; 16]) }
}

fn head(number: u8) -> Head {
    Head { name: name(number), length: LENGTH as u64, depth: 3, encoding: 1, names: [5, 6] }
}

/// Bytes that no other block has.
fn payload(number: u8) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    blake3::Hasher::new().update(&[number]).finalize_xof().fill(&mut bytes);
    bytes
}

/// A record of block `number` with the payload of block `content`.
fn record(sums: &Sums, number: u8, content: u8) -> Vec<u8> {
    let mut record = vec![0; record_bytes(LENGTH as u64) as usize];
    record[HEADER_BYTES..HEADER_BYTES + LENGTH].copy_from_slice(&payload(content));
    sums.seal(&head(number), &mut record);
    record
}

/// A kind of place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Directory,
    Store,
}

const KINDS: [Kind; 2] = [Kind::Directory, Kind::Store];

impl Kind {
    fn unopened(self, directory: &Path, sealing: &Sealing) -> Box<dyn Backend> {
        let clock = ManualTime::start().clock();
        match self {
            Self::Directory => {
                let config = ExtentsConfig { directory: directory.to_owned(), bytes: Some(LIMIT) };
                Box::new(Extents::new(config, Arc::new(LocalDisk), clock).sealed_by(sealing.clone()))
            }
            Self::Store => {
                let url = format!("file://{}", directory.display());
                let objects = Objects::new(&url, Some(LIMIT), Duration::from_secs(20), clock).expect("a URL");
                Box::new(objects.sealed_by(sealing.clone()))
            }
        }
    }

    fn open(self, directory: &Path, sealing: &Sealing) -> Box<dyn Backend> {
        let place = self.unopened(directory, sealing);
        place.open(&SEED).expect("it opens");
        let looked = place.refresh().expect("it lists");
        assert!(looked.damage.is_empty(), "{:?}", looked.damage);
        place
    }

    fn refusal(self, directory: &Path, sealing: &Sealing) -> ColdError {
        let before = content(directory);
        let error = self.unopened(directory, sealing).open(&SEED).expect_err("it is refused");
        assert!(content(directory) == before, "a refused place is left alone");
        error
    }

    fn identity(self, directory: &Path) -> PathBuf {
        match self {
            Self::Directory => directory.join(FILE),
            Self::Store => directory.join("cenote-v2").join(FILE),
        }
    }

    /// Where the record of a block lies: its file, and its offset there. Blocks were written from 0 on.
    fn spot(self, directory: &Path, number: u8) -> (PathBuf, usize) {
        match self {
            Self::Directory => {
                (find(directory, ".extent"), 4096 + usize::from(number) * record_bytes(LENGTH as u64) as usize)
            }
            Self::Store => (find(directory, &format!("{number:02x}").repeat(16)), 0),
        }
    }

    /// Puts bytes over the record of a block.
    fn overwrite(self, directory: &Path, number: u8, bytes: &[u8]) {
        let (path, at) = self.spot(directory, number);
        let mut all = std::fs::read(&path).expect("it is there");
        all[at..at + bytes.len()].copy_from_slice(bytes);
        std::fs::write(path, all).expect("it is written");
    }

    fn record(self, directory: &Path, number: u8) -> Vec<u8> {
        let (path, at) = self.spot(directory, number);
        std::fs::read(path).expect("it is there")[at..at + record_bytes(LENGTH as u64) as usize].to_vec()
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all.sort();
    all
}

fn find(directory: &Path, end: &str) -> PathBuf {
    files(directory).into_iter().find(|path| path.to_string_lossy().ends_with(end)).expect("its file")
}

/// All bytes of a place.
fn content(directory: &Path) -> Vec<u8> {
    files(directory).iter().flat_map(|path| std::fs::read(path).expect("it is there")).collect()
}

fn shows(bytes: &[u8], payload: &[u8]) -> bool {
    let all: std::collections::BTreeSet<&[u8]> = bytes.chunks_exact(8).collect();
    payload.chunks_exact(8).any(|part| all.contains(part))
}

fn write(place: &dyn Backend, sealing: &Sealing, numbers: std::ops::Range<u8>) {
    let sums = Sums::of_place(&SEED, sealing);
    let records: Vec<Vec<u8>> = numbers.clone().map(|number| record(&sums, number, number)).collect();
    let mut memory = Aligned::default();
    memory.resize(records.iter().map(Vec::len).sum());
    memory.bytes_mut().copy_from_slice(&records.concat());
    let sealed: Vec<Sealed<'_>> =
        numbers.zip(&records).map(|(number, bytes)| Sealed { head: head(number), bytes }).collect();
    place.write(&sealed, memory.bytes()).expect("it has space");
}

/// The payload of a block, if the place believes that it has it.
fn read(place: &dyn Backend, number: u8) -> Option<Vec<u8>> {
    let mut memory = Aligned::default();
    let head = place.read(&name(number), LENGTH as u64, &mut memory).ok()?;
    assert_eq!(head, self::head(number));
    Some(memory.bytes()[HEADER_BYTES..HEADER_BYTES + LENGTH].to_vec())
}

fn found(place: &dyn Backend, numbers: std::ops::Range<u8>) -> usize {
    numbers.filter(|&number| read(place, number).is_some_and(|bytes| bytes == payload(number))).count()
}

/// A digest as an unsealed place has it: its key is made of the seed, which lies in the place.
fn digest_of_the_seed(context: &[u8], bytes: &[u8]) -> [u8; 8] {
    let key = blake3::derive_key("cenote cold tier v2: key of a place's sums", &SEED.0);
    let hash = blake3::Hasher::new_keyed(&key).update(context).update(bytes).finalize();
    hash.as_bytes()[..8].try_into().expect("eight bytes")
}

#[test]
fn a_sealed_place_returns_its_blocks_and_an_encrypted_one_shows_none() {
    for (kind, seal) in KINDS.into_iter().flat_map(|kind| SEALS.map(|seal| (kind, seal))) {
        let directory = tempfile::tempdir().expect("a directory");
        let sealing = sealing(seal, &[1]);
        let first = kind.open(directory.path(), &sealing);
        write(&*first, &sealing, 0..8);
        assert_eq!(found(&*first, 0..8), 8, "{kind:?} {seal}");
        drop(first);
        let next = kind.open(directory.path(), &sealing);
        assert_eq!((found(&*next, 0..8), next.used().blocks), (8, 8), "{kind:?} {seal}");
        let bytes = content(directory.path());
        for number in 0..8 {
            assert_eq!(shows(&bytes, &payload(number)), seal == Seal::Mac, "{kind:?} {seal}");
        }
    }
}

/// Records with right sums that need no key of the place: under the key of the seed, and under another
/// key. They have the payload of another block. The first is believed by an unsealed place, so the test
/// would notice if it were a bad forgery.
#[test]
fn a_forged_record_is_believed_only_without_a_seal() {
    for (kind, seal) in KINDS.into_iter().flat_map(|kind| Seal::ALL.map(|seal| (kind, seal))) {
        let directory = tempfile::tempdir().expect("a directory");
        let sealing = sealing(seal, &[1]);
        write(&*kind.open(directory.path(), &sealing), &sealing, 0..3);
        let read_forged = |forged: &[u8]| {
            kind.overwrite(directory.path(), 1, forged);
            read(&*kind.open(directory.path(), &sealing), 1)
        };
        let of_seed = record(&Sums::of(&SEED), 1, 2);
        // With the word of the right key.
        let mut named = of_seed.clone();
        named[96..104].copy_from_slice(&kind.record(directory.path(), 1)[96..104]);
        let check = digest_of_the_seed(b"cenote record header v1", &named[..120]);
        named[120..128].copy_from_slice(&check);
        let believed = (seal == Seal::None).then(|| payload(2));
        assert_eq!(read_forged(&of_seed), believed, "{kind:?} {seal}");
        assert_eq!(read_forged(&named), believed, "{kind:?} {seal}");
        let of_other_key = record(&Sums::of_place(&SEED, &Some((Seal::Mac, keys(&[2])))), 1, 2);
        assert_eq!(read_forged(&of_other_key), None, "{kind:?} {seal}");
    }
}

/// A record under another name, and its payload with its tag under another header.
#[test]
fn a_replayed_record_is_a_miss() {
    for (kind, seal) in KINDS.into_iter().flat_map(|kind| SEALS.map(|seal| (kind, seal))) {
        let directory = tempfile::tempdir().expect("a directory");
        let sealing = sealing(seal, &[1]);
        write(&*kind.open(directory.path(), &sealing), &sealing, 0..3);
        let [one, two] = [1, 2].map(|number| kind.record(directory.path(), number));
        kind.overwrite(directory.path(), 2, &one);
        assert_eq!(read(&*kind.open(directory.path(), &sealing), 2), None, "{kind:?} {seal}");
        let sums = Sums::of_place(&SEED, &sealing);
        // Even with a right digest of the header, which needs the key.
        let mut mixed = two.clone();
        mixed[96..120].copy_from_slice(&one[96..120]);
        mixed[HEADER_BYTES..].copy_from_slice(&one[HEADER_BYTES..]);
        let key = u16::from_le_bytes([mixed[96], mixed[97]]);
        let check = sums.digest(key, b"cenote record header v1", &mixed[..120]).expect("its key");
        mixed[120..128].copy_from_slice(&check.to_le_bytes());
        kind.overwrite(directory.path(), 2, &mixed);
        assert_eq!(read(&*kind.open(directory.path(), &sealing), 2), None, "{kind:?} {seal}");
        // What was there is believed again: only names and content decide.
        kind.overwrite(directory.path(), 2, &two);
        assert_eq!(read(&*kind.open(directory.path(), &sealing), 2), Some(payload(2)), "{kind:?} {seal}");
    }
}

#[test]
fn every_changed_byte_of_a_sealed_record_is_a_miss() {
    for seal in SEALS {
        let sums = Sums::of_place(&SEED, &sealing(seal, &[1]));
        let good = record(&sums, 1, 1);
        assert_eq!(sums.open(&mut good.clone(), Some(&name(1)), "test").expect("it is whole").1, payload(1));
        for at in 0..HEADER_BYTES + LENGTH {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(sums.open(&mut bad, Some(&name(1)), "test").is_err(), "{seal}: byte {at}");
        }
        // Two records of one block share no tag: their words differ.
        assert_ne!(good[96..128], record(&sums, 1, 1)[96..128]);
    }
}

/// An index line that leads a name to a record of the forger's choice.
#[test]
fn a_forged_index_line_is_believed_only_without_a_seal() {
    for seal in Seal::ALL {
        let directory = tempfile::tempdir().expect("a directory");
        let sealing = sealing(seal, &[1]);
        write(&*Kind::Directory.open(directory.path(), &sealing), &sealing, 0..3);
        let path = find(directory.path(), ".index");
        let mut index = std::fs::read(&path).expect("it is there");
        let mut line = index[64..128].to_vec();
        line[..16].copy_from_slice(&name(7).hash.0);
        let check = digest_of_the_seed(b"cenote index line v1", &[&index[16..24], &line[..56]].concat());
        line[56..].copy_from_slice(&check);
        // Not the last one: that may be in the middle of its write.
        let last = index.split_off(index.len() - 64);
        index.extend([line, last].concat());
        std::fs::write(&path, index).expect("it is written");
        let place = Kind::Directory.unopened(directory.path(), &sealing);
        place.open(&SEED).expect("it opens");
        let looked = place.refresh().expect("it lists");
        assert_eq!(place.length(&name(7)).is_some(), seal == Seal::None, "{seal}");
        assert_eq!((looked.damage.len(), found(&*place, 0..3)), (usize::from(seal != Seal::None), 3), "{seal}");
    }
}

/// Another limit lets the place be emptied or grow; an unsealed identity lets unsealed records in.
#[test]
fn a_forged_identity_is_believed_only_without_a_seal() {
    for (kind, seal) in KINDS.into_iter().flat_map(|kind| Seal::ALL.map(|seal| (kind, seal))) {
        let directory = tempfile::tempdir().expect("a directory");
        let sealing = sealing(seal, &[1]);
        drop(kind.open(directory.path(), &sealing));
        let path = kind.identity(directory.path());
        let good = std::fs::read(&path).expect("it is there");
        let mut forged = identity::encode(&Identity { seed: SEED, bytes_max: 2 * LIMIT }, &None);
        std::fs::write(&path, forged).expect("it is written");
        if seal == Seal::None {
            assert_eq!(kind.open(directory.path(), &sealing).used().bytes_max, 2 * LIMIT);
            continue;
        }
        assert!(matches!(kind.refusal(directory.path(), &sealing), ColdError::NotSealed { .. }), "{kind:?} {seal}");
        // With the name of the right key.
        forged[12..16].copy_from_slice(&good[12..16]);
        let check = digest_of_the_seed(b"cenote tier v2", &forged[..IDENTITY_BYTES - 8]);
        forged[IDENTITY_BYTES - 8..].copy_from_slice(&check);
        std::fs::write(&path, forged).expect("it is written");
        assert!(matches!(kind.refusal(directory.path(), &sealing), ColdError::Damaged { .. }), "{kind:?} {seal}");
        for at in 0..IDENTITY_BYTES {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(identity::decode(&bad, "tier", &sealing).is_err(), "{seal}: byte {at}");
        }
        assert!(identity::decode(&good, "tier", &sealing).is_ok());
    }
}

#[test]
fn a_place_with_another_seal_or_key_is_refused_by_name() {
    for kind in KINDS {
        let directory = tempfile::tempdir().expect("a directory");
        let own = sealing(Seal::Mac, &[1]);
        write(&*kind.open(directory.path(), &own), &own, 0..2);
        let short = format!("{:04x}", keys(&[1]).sealing().short());
        let without = kind.refusal(directory.path(), &None);
        assert!(matches!(without, ColdError::Sealed { .. }), "{without}");
        let other = kind.refusal(directory.path(), &sealing(Seal::Mac, &[2]));
        assert!(matches!(other, ColdError::OtherKey { .. }), "{other}");
        for error in [&without, &other] {
            let text = error.to_string();
            assert!(text.contains(&short) && text.contains("another place"), "{text}");
        }
        let way = kind.refusal(directory.path(), &sealing(Seal::Encrypt, &[1]));
        assert!(matches!(way, ColdError::OtherSeal { .. }) && way.to_string().contains("`mac`"), "{way}");
        for refused in [&None, &sealing(Seal::Mac, &[2])] {
            assert!(kind.unopened(directory.path(), refused).survey().expect_err("it has no key").is_refusal());
            assert!(
                kind.unopened(directory.path(), refused).resize(LIMIT / 2).expect_err("it has no key").is_refusal()
            );
        }
        let plain = tempfile::tempdir().expect("a directory");
        write(&*kind.open(plain.path(), &None), &None, 0..2);
        let unsealed = kind.refusal(plain.path(), &own);
        assert!(matches!(unsealed, ColdError::NotSealed { .. }), "{unsealed}");
        assert!(unsealed.to_string().contains("another place"), "{unsealed}");
    }
}

/// A directory whose identity was removed takes the copy in an extent, which names the seal as well.
#[test]
fn a_sealed_directory_without_its_identity_is_no_unsealed_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let own = sealing(Seal::Mac, &[1]);
    write(&*Kind::Directory.open(directory.path(), &own), &own, 0..2);
    std::fs::remove_file(directory.path().join(FILE)).expect("it is there");
    for other in [None, sealing(Seal::Mac, &[2])] {
        assert!(Kind::Directory.refusal(directory.path(), &other).is_refusal());
    }
    assert_eq!(found(&*Kind::Directory.open(directory.path(), &own), 0..2), 2);
}

/// A running process learns that its place was replaced, and does not follow it.
#[test]
fn an_unsealed_identity_closes_a_sealed_place() {
    let directory = tempfile::tempdir().expect("a directory");
    let own = sealing(Seal::Encrypt, &[1]);
    let place = Kind::Directory.open(directory.path(), &own);
    let path = directory.path().join(FILE);
    let good = std::fs::read(&path).expect("it is there");
    let forged = identity::encode(&Identity { seed: SEED, bytes_max: LIMIT }, &None);
    std::fs::write(&path, forged).expect("it is written");
    assert!(place.refresh().expect_err("it is not sealed").is_refusal());
    let mut damaged = good.clone();
    damaged[50] ^= 1;
    std::fs::write(&path, damaged).expect("it is written");
    assert!(matches!(place.refresh().expect("it is repaired").damage[..], [ColdError::Damaged { .. }]));
    assert!(std::fs::read(&path).expect("it is there") == good);
}

/// The first key seals and all open. What a key that left has sealed is a miss, and no failure.
#[test]
fn keys_change_while_blocks_stay() {
    for (kind, seal) in KINDS.into_iter().flat_map(|kind| SEALS.map(|seal| (kind, seal))) {
        let directory = tempfile::tempdir().expect("a directory");
        let (old, both, new) = (sealing(seal, &[1]), sealing(seal, &[2, 1]), sealing(seal, &[2]));
        write(&*kind.open(directory.path(), &old), &old, 0..3);
        let place = kind.open(directory.path(), &both);
        assert_eq!(found(&*place, 0..3), 3, "{kind:?} {seal}");
        write(&*place, &both, 3..6);
        drop(place);
        assert_eq!(found(&*kind.open(directory.path(), &both), 0..6), 6, "{kind:?} {seal}");
        let place = kind.open(directory.path(), &new);
        assert_eq!((found(&*place, 0..3), found(&*place, 3..6)), (0, 3), "{kind:?} {seal}");
        drop(place);
        let error = kind.refusal(directory.path(), &old);
        assert!(matches!(error, ColdError::OtherKey { .. }), "the identity has the new key: {error}");
    }
}
