//! Snapshots of sealed regions: what the owner of the file can do without the key.

use crate::snapshot::{BLOCK, config, fill, hash, payload, pool_with, right};
use cenote_base::seal::{Seal, SealKeys};
use cenote_cold::record::{HEADER_BYTES, Sums, record_bytes};
use cenote_mem::Coherent;
use cenote_pool::{Pool, ReadOutcome, key_names};
use cenote_store::snapshot::{Restored, SnapshotError, open, open_with, restore, save};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SEALS: [Seal; 2] = [Seal::Mac, Seal::Encrypt];
const SECTOR: usize = 4096;
const PART_HEADER: usize = 64;

fn keys(numbers: &[u64]) -> SealKeys {
    let key = |number: &u64| format!("{number:064x}\n");
    SealKeys::parse(&numbers.iter().map(key).collect::<String>()).expect("they are keys")
}

/// The keys of a region with this seal; an unsealed one has none.
fn keys_for(seal: Seal, numbers: &[u64]) -> Option<SealKeys> {
    (seal != Seal::None).then(|| keys(numbers))
}

fn pool_of(seal: Seal, numbers: &[u64]) -> Pool<Arc<Coherent>> {
    let keys = keys_for(seal, numbers);
    let config = keys.as_ref().map_or_else(config, |keys| config().sealed(seal, keys));
    pool_with(&config, keys).expect("it attaches")
}

/// A saved region with this seal, and its snapshot.
fn saved(directory: &Path, seal: Seal, numbers: &[u64]) -> PathBuf {
    let (path, pool) = (directory.join(format!("{seal}{}", numbers[0])), pool_of(seal, numbers));
    fill(&pool);
    let saved = save(&pool, &path).expect("it is written");
    assert_eq!((saved.namespaces, saved.objects, saved.blocks, saved.missed), (2, 2, 20, 0));
    path
}

/// Makes the region again, as its settings say.
fn back(path: &Path, keys: Option<SealKeys>) -> Result<(Pool<Arc<Coherent>>, Restored), SnapshotError> {
    let settings = open_with(path, keys.as_ref())?;
    let (config, seal) = (settings.config.clone(), settings.config.seal);
    let config = match &keys {
        Some(keys) if seal != Seal::None => config.sealed(seal, keys),
        _ => config,
    };
    let pool = pool_with(&config, keys)?;
    let restored = restore(&pool, path)?;
    assert!(pool.check(true).expect("no lock is held").is_clean());
    Ok((pool, restored))
}

/// Where parts and records with this beginning lie.
fn starts(bytes: &[u8], magic: &[u8]) -> Vec<usize> {
    (0..bytes.len()).step_by(SECTOR).filter(|&at| bytes[at..].starts_with(magic)).collect()
}

fn plain_digest(context: &[u8], bytes: &[u8]) -> [u8; 8] {
    let hash = blake3::Hasher::new().update(context).update(bytes).finalize();
    hash.as_bytes()[..8].try_into().expect("eight bytes")
}

/// A part as an unsealed snapshot has it, padded to a sector.
fn plain_part(kind: u32, payload: &[u8]) -> Vec<u8> {
    let mut part = b"CNTPART\0".to_vec();
    part.extend([1_u32.to_le_bytes(), kind.to_le_bytes()].concat());
    part.extend((payload.len() as u64).to_le_bytes());
    part.extend(plain_digest(b"cenote snapshot payload v1", payload));
    part.resize(PART_HEADER - 8, 0);
    part.extend(plain_digest(b"cenote snapshot header v1", &part));
    part.extend(payload);
    part.resize(part.len().next_multiple_of(SECTOR), 0);
    part
}

/// Kind and payload of a part that is shown.
fn part_at(bytes: &[u8], at: usize) -> (u32, Vec<u8>) {
    let length = u64::from_le_bytes(bytes[at + 16..at + 24].try_into().expect("eight bytes")) as usize;
    let kind = u32::from_le_bytes(bytes[at + 12..at + 16].try_into().expect("four bytes"));
    (kind, bytes[at + PART_HEADER..at + PART_HEADER + length].to_vec())
}

#[test]
fn a_sealed_region_comes_back_whole_and_an_encrypted_snapshot_shows_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    for seal in SEALS {
        let path = saved(directory.path(), seal, &[1]);
        let (again, restored) = back(&path, Some(keys(&[1]))).expect("it is read");
        assert!(restored.is_whole(), "{restored:?}");
        assert_eq!((again.seal(), right(&again)), (seal, 20));
        assert_eq!(again.get_object("two").expect("a key"), Some(vec![7; 9000]));
        assert_eq!(again.keys(), key_names(&again.superblock().config.uuid, seal, &keys(&[1])));
        let bytes = std::fs::read(&path).expect("it is there");
        let shown = [payload(1, 0, BLOCK as usize)[..64].to_vec(), vec![7; 64], b"label=model 1".to_vec()];
        for part in shown {
            assert_eq!(bytes.windows(part.len()).any(|found| found == part), seal == Seal::Mac, "{seal}");
        }
    }
}

/// Settings without a seal, parts with plain digests and zeros in what a seal uses.
#[test]
fn an_unsealed_snapshot_is_as_before() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = saved(directory.path(), Seal::None, &[1]);
    let bytes = std::fs::read(&path).expect("it is there");
    let parts = starts(&bytes, b"CNTPART\0");
    assert_eq!(parts.len(), 6);
    for at in parts {
        let (kind, payload) = part_at(&bytes, at);
        let part = plain_part(kind, &payload);
        assert!(bytes[at..at + part.len()] == part, "the part at {at}");
        assert!(kind != 1 || !String::from_utf8(payload).expect("lines").contains("seal"));
    }
    for at in starts(&bytes, b"CNTBLOCK") {
        assert_eq!(bytes[at + 96..at + 112], [0; 16]);
        assert_eq!(bytes[at + 120..at + 128], plain_digest(b"cenote record header v1", &bytes[at..at + 120]));
    }
}

#[test]
fn a_snapshot_without_its_key_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = saved(directory.path(), Seal::Encrypt, &[1]);
    let name = keys(&[1]).sealing().to_string();
    let without = open(&path).expect_err("there is no key");
    assert!(matches!(without, SnapshotError::Sealed { .. }) && without.to_string().contains(&name), "{without}");
    let other = open_with(&path, Some(&keys(&[2]))).expect_err("another key");
    assert!(matches!(other, SnapshotError::OtherKey { .. }) && other.to_string().contains(&name), "{other}");
    // The region decides in the same way when it is there already.
    let error = |seal, numbers: &[u64]| restore(&pool_of(seal, numbers), &path).expect_err("it is refused");
    assert!(matches!(error(Seal::None, &[1]), SnapshotError::Sealed { .. }));
    assert!(matches!(error(Seal::Encrypt, &[2]), SnapshotError::OtherKey { .. }));
    assert!(matches!(error(Seal::Mac, &[1]), SnapshotError::OtherSeal { .. }));
    let plain = saved(directory.path(), Seal::None, &[1]);
    assert!(matches!(open_with(&plain, Some(&keys(&[1]))), Err(SnapshotError::NotSealed(_))));
    let refused = restore(&pool_of(Seal::Mac, &[1]), &plain).expect_err("it is not sealed");
    assert!(matches!(refused, SnapshotError::NotSealed(_)), "{refused}");
}

/// The snapshot's key opens it, and the first key seals the new region.
#[test]
fn keys_may_change_between_saving_and_restoring() {
    let directory = tempfile::tempdir().expect("a directory");
    for seal in SEALS {
        let path = saved(directory.path(), seal, &[1]);
        let (again, restored) = back(&path, Some(keys(&[2, 1]))).expect("it has the key");
        assert!(restored.is_whole() && right(&again) == 20, "{restored:?}");
        assert_eq!(again.keys(), key_names(&again.superblock().config.uuid, seal, &keys(&[2])));
        save(&again, &path).expect("it is written");
        assert!(back(&path, Some(keys(&[2]))).expect("it has the new key").1.is_whole());
        assert!(matches!(open_with(&path, Some(&keys(&[1]))), Err(SnapshotError::OtherKey { .. })));
    }
}

/// A block with the payload of the forger's choice and right sums of an unsealed snapshot.
#[test]
fn a_forged_block_is_believed_only_without_a_seal() {
    let directory = tempfile::tempdir().expect("a directory");
    for seal in Seal::ALL {
        let path = saved(directory.path(), seal, &[1]);
        let mut bytes = std::fs::read(&path).expect("it is there");
        let whole_block = |at: &usize| bytes[at + 64..at + 72] == BLOCK.to_le_bytes();
        let at = starts(&bytes, b"CNTBLOCK").into_iter().find(whole_block).expect("a block");
        let end = at + record_bytes(BLOCK) as usize;
        let (model, number) = (bytes[at + 48], bytes[at + 49]);
        let sums = Sums::PLAIN;
        // The header without what a seal has put there.
        let mut forged = bytes[at..end].to_vec();
        let head = {
            forged[96..112].fill(0);
            let check = plain_digest(b"cenote record header v1", &forged[..120]);
            forged[120..128].copy_from_slice(&check);
            sums.open_head(&forged, "forged").expect("it is one")
        };
        forged[HEADER_BYTES..HEADER_BYTES + BLOCK as usize].fill(0xee);
        sums.seal(&head, &mut forged);
        bytes[at..end].copy_from_slice(&forged);
        std::fs::write(&path, &bytes).expect("it is written");
        let (again, restored) = back(&path, keys_for(seal, &[1])).expect("the settings hold");
        assert_eq!(restored.blocks, if seal == Seal::None { 20 } else { 19 }, "{seal}: {restored:?}");
        let hits = again.peek(&[hash(model, number)]);
        assert_eq!(hits.len(), usize::from(seal == Seal::None), "{seal}");
        if let Some(hit) = hits.first() {
            let mut read = vec![0; BLOCK as usize];
            assert_eq!(again.read(hit, &mut [&mut read]), ReadOutcome::Whole);
            assert!(read == [0xee; BLOCK as usize], "the forgery is a good one");
        }
    }
}

/// Objects with right sums of an unsealed snapshot, and sealed parts of another snapshot of the region.
#[test]
fn parts_of_elsewhere_are_damage() {
    let directory = tempfile::tempdir().expect("a directory");
    for seal in Seal::ALL {
        let path = saved(directory.path(), seal, &[1]);
        let good = std::fs::read(&path).expect("it is there");
        let other = std::fs::read(saved(directory.path(), seal, &[1])).expect("it is there");
        let at = starts(&good, b"CNTPART\0").into_iter().find(|at| good[at + 12] == 3).expect("an object");
        let objects = [plain_part(3, b"\x03\0\0\0\0\0\0\0newforged"), other[at..at + SECTOR].to_vec()];
        for (object, is_of_unsealed) in objects.into_iter().zip([true, false]) {
            let mut bytes = good.clone();
            bytes[at..at + SECTOR].copy_from_slice(&object);
            std::fs::write(&path, bytes).expect("it is written");
            let (again, restored) = back(&path, keys_for(seal, &[1])).expect("the settings hold");
            assert_eq!(restored.objects, if seal == Seal::None { 2 } else { 1 }, "{seal}: {restored:?}");
            let forged = again.get_object("new").expect("a key");
            assert_eq!(forged.is_some(), seal == Seal::None && is_of_unsealed, "{seal}");
        }
    }
}

/// Settings with right sums of an unsealed snapshot: another size, or no seal at all.
#[test]
fn forged_settings_are_believed_only_without_a_seal() {
    let directory = tempfile::tempdir().expect("a directory");
    for seal in Seal::ALL {
        let path = saved(directory.path(), seal, &[1]);
        let good = std::fs::read(&path).expect("it is there");
        let end = starts(&good, b"CNTPART\0").into_iter().find(|at| good[at + 12] == 4).expect("an end");
        let forge = |places: &[usize], change: fn(&str) -> String| {
            let mut bytes = good.clone();
            for &at in places {
                let (kind, text) = part_at(&good, at);
                let forged = plain_part(kind, change(std::str::from_utf8(&text).expect("lines")).as_bytes());
                bytes[at..at + SECTOR].copy_from_slice(&forged);
            }
            std::fs::write(&path, bytes).expect("it is written");
            open_with(&path, keys_for(seal, &[1]).as_ref())
        };
        let larger = |text: &str| text.replace("region_bytes=4194304", "region_bytes=8388608");
        let unsealed = |text: &str| {
            let is_of_seal = |line: &&str| line.starts_with("seal");
            text.lines().filter(|line| !is_of_seal(line)).map(|line| format!("{line}\n")).collect()
        };
        let found = forge(&[0, end], larger);
        if seal == Seal::None {
            assert_eq!(found.expect("it is believed").region_bytes, 8 << 20);
            continue;
        }
        assert!(matches!(found, Err(SnapshotError::NotASnapshot(_))), "{seal}: {found:?}");
        assert!(matches!(forge(&[0, end], unsealed), Err(SnapshotError::NotSealed(_))), "{seal}");
        // The copy that is left decides.
        for change in [larger, unsealed] {
            for places in [[0], [end]] {
                let settings = forge(&places, change).expect("the other copy is authentic");
                assert_eq!((settings.region_bytes, settings.config.seal), (4 << 20, seal));
                let (_, restored) = back(&path, Some(keys(&[1]))).expect("it is read");
                assert!(!restored.is_whole(), "a forged part is noticed: {restored:?}");
            }
        }
        // Numbers of parts, which tell that some are missing.
        let fewer = |text: &str| text.replace("saved_blocks=20", "saved_blocks=19");
        forge(&[end], fewer).expect("the beginning is authentic");
        assert_eq!(back(&path, Some(keys(&[1]))).expect("it is read").1.expected, None);
    }
}

#[test]
fn every_changed_byte_of_a_sealed_snapshot_costs_its_part() {
    let directory = tempfile::tempdir().expect("a directory");
    for seal in SEALS {
        let path = saved(directory.path(), seal, &[1]);
        let good = std::fs::read(&path).expect("it is there");
        let mut damaged = 0;
        // The headers of all parts and of two blocks, and some other bytes.
        let blocks = starts(&good, b"CNTBLOCK");
        let parts = starts(&good, b"CNTPART\0");
        let headers = parts.iter().chain(&blocks[..2]).flat_map(|&at| (at..at + HEADER_BYTES).step_by(3));
        for at in headers.chain((1999..good.len()).step_by(4999)) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            std::fs::write(&path, &bad).expect("it is written");
            let (again, restored) = back(&path, Some(keys(&[1]))).expect("settings are there twice");
            // `right` compares every byte that came back.
            let blocks = right(&again);
            assert!(blocks >= 10, "byte {at}: {restored:?}");
            assert!(restored.objects < 2 || again.get_object("two").expect("a key") == Some(vec![7; 9000]));
            damaged += u64::from(!restored.is_whole());
        }
        assert!(damaged > 200, "{seal}: {damaged} damaged files are noticed; padding may change");
    }
}
