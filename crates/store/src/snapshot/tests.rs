//! Snapshots that no region wrote, with checksums that hold.

use super::format::{self, HEADER_BYTES, Kind};
use super::{Restored, open, restore, save};
use cenote_base::{BlockHash, HashSeed};
use cenote_cold::record::{self, Name, Sums, record_bytes};
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{AttachOptions, Pool, PoolConfig, Superblock};
use std::sync::Arc;

/// A part of an unsealed snapshot.
fn encode(kind: Kind, payload: &[u8]) -> Vec<u8> {
    format::encode(&Sums::PLAIN, kind, payload)
}

fn pool() -> Pool<Arc<Coherent>> {
    let config = PoolConfig {
        chunk_bytes: 64 << 10,
        min_block_bytes: 4 << 10,
        max_hosts: 1,
        workers_per_host: 4,
        hazard_lines_per_worker: 2,
        ..PoolConfig::new(HashSeed([3; 32]), [4; 16])
    };
    let mapping = Mapping::create(&RegionSource::Anon, 4 << 20, 0o600, &MapOptions::default()).expect("memory");
    let fabric = Arc::new(Coherent::new(mapping));
    Superblock::format(&fabric, &config).expect("it fits");
    Pool::attach(fabric, &AttachOptions { private: true, ..AttachOptions::named("test") }).expect("it attaches")
}

/// Restores a file of these parts between the settings and the end of an empty region.
fn restored(parts: &[Vec<u8>]) -> Restored {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("snapshot");
    let pool = pool();
    save(&pool, &path).expect("it is written");
    let empty = std::fs::read(&path).expect("it is there");
    let (settings, end) = empty.split_at(4096);
    std::fs::write(&path, [settings, &parts.concat(), end].concat()).expect("it is written");
    let restored = restore(&pool, &path).expect("it is read");
    assert!(pool.check(true).expect("no lock is held").is_clean());
    restored
}

fn namespace(fingerprint: u64, block_bytes: u64, label: &str) -> Vec<u8> {
    let text = format!(
        "fingerprint={fingerprint:064x}\nblock_bytes={block_bytes}\nblock_tokens=0\nnum_layers=0\n\
         quota_bytes={}\nlabel={label}\n",
        u64::MAX
    );
    encode(Kind::Namespace, text.as_bytes())
}

fn object(key_bytes: u64, rest: &[u8]) -> Vec<u8> {
    encode(Kind::Object, &[&key_bytes.to_le_bytes(), rest].concat())
}

fn block(fingerprint: u8, hash: u8, encoding: u8, length: usize) -> Vec<u8> {
    let mut namespace = [0; 32];
    namespace[31] = fingerprint;
    let name = Name { namespace, hash: BlockHash([hash; 16]) };
    let head = record::Head { name, length: length as u64, depth: u32::MAX, encoding, names: [u64::MAX; 2] };
    let mut record = vec![0; record_bytes(length as u64) as usize];
    Sums::PLAIN.seal(&head, &mut record);
    record
}

#[test]
fn numbers_that_overflow_are_damage() {
    let end = format!("saved_namespaces={0}\nsaved_objects={0}\nsaved_blocks={0}\n", u64::MAX);
    let restored = restored(&[encode(Kind::End, end.as_bytes())]);
    assert_eq!((restored.damaged, restored.expected), (1, Some(0)));
}

#[test]
fn namespaces_of_no_region_are_damage() {
    let sizes = [0, 1, 63, 4097, 1 << 40, u64::MAX];
    let parts: Vec<Vec<u8>> = (1..).zip(sizes).map(|(number, bytes)| namespace(number, bytes, "model")).collect();
    assert_eq!(restored(&parts).damaged, sizes.len() as u64);
    // Odd names are names.
    let long = "x".repeat(1 << 20);
    let labels = ["", "=", "a=b", "\u{85}\u{2028}", "\u{1f4a7}\u{1f4a7}\u{1f4a7}", &long];
    let parts: Vec<Vec<u8>> = (1..).zip(labels).map(|(number, label)| namespace(number, 4096, label)).collect();
    let restored = restored(&parts);
    assert_eq!((restored.namespaces, restored.damaged), (labels.len() as u64, 0));
}

#[test]
fn more_namespaces_than_rows_are_left_out() {
    let parts: Vec<Vec<u8>> = (1..2000).map(|number| namespace(number, 4096, "model")).collect();
    let restored = restored(&parts);
    assert!(restored.namespaces > 0 && restored.damaged > 0, "{restored:?}");
    assert_eq!(restored.namespaces + restored.damaged, 1999);
}

#[test]
fn objects_of_no_region_are_damage() {
    let parts = [
        object(u64::MAX, b"key"),
        object(4, b"key"),
        object(0, b"value without a key"),
        object(2, &[0xff, 0xfe, 1]),
        object(1 << 20, &vec![b'k'; 1 << 20]),
        object(4096, &vec![b'k'; 4096]),
        encode(Kind::Object, b"short"),
    ];
    let restored = restored(&parts);
    assert_eq!((restored.damaged, restored.objects), (parts.len() as u64, 0));
    // Longer than a chunk.
    let long = object(3, &[&b"key"[..], &[0; 128 << 10]].concat());
    assert_eq!(super::tests::restored(&[long]).no_room, 1);
}

#[test]
fn blocks_of_no_region_are_damage() {
    let parts = [
        namespace(1, 4096, "model"),
        block(1, 1, 0, 64),
        block(1, 2, 0, 8192),
        block(1, 3, 200, 0),
        block(1, 4, 200, 65),
        block(1, 5, 200, 4160),
        block(2, 6, 0, 4096),
    ];
    let restored = restored(&parts);
    assert_eq!((restored.damaged, restored.blocks), (6, 0));
    // Odd names, depths and encodings are content.
    let odd = [namespace(1, 4096, "model"), block(1, 0, 0, 4096), block(1, 0xff, 255, 64)];
    let restored = super::tests::restored(&odd);
    assert_eq!((restored.damaged, restored.blocks + restored.no_room), (0, 2));
}

#[test]
fn lengths_past_the_end_are_damage() {
    // A header that promises half a gibibyte.
    let mut part = encode(Kind::Object, &vec![0; 8192]);
    part.truncate(HEADER_BYTES);
    part[16..24].copy_from_slice(&(512_u64 << 20).to_le_bytes());
    let check = blake3::Hasher::new().update(b"cenote snapshot header v1").update(&part[..HEADER_BYTES - 8]).finalize();
    part[HEADER_BYTES - 8..].copy_from_slice(&check.as_bytes()[..8]);
    part.resize(4096, 0);
    let restored = restored(&[part]);
    assert_eq!((restored.damaged, restored.expected), (1, None), "it takes the end with it");
}

#[test]
fn settings_of_no_region_make_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("snapshot");
    save(&pool(), &path).expect("it is written");
    let settings = open(&path).expect("they are there");
    let text = settings.encode();
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    for name in names.iter().filter(|name| !matches!(**name, "region_bytes" | "seed" | "flush" | "eviction")) {
        for value in ["0", "1", "3", "255", "65535", "4294967295", "18446744073709551615", "-1", "", "x"] {
            let changed: String = text
                .lines()
                .map(|line| {
                    if line.starts_with(&format!("{name}=")) {
                        format!("{name}={value}\n")
                    } else {
                        format!("{line}\n")
                    }
                })
                .collect();
            std::fs::write(&path, encode(Kind::Settings, changed.as_bytes())).expect("it is written");
            let Ok(settings) = open(&path) else { continue };
            let mapping = Mapping::create(&RegionSource::Anon, settings.region_bytes, 0o600, &MapOptions::default());
            let fabric = Arc::new(Coherent::new(mapping.expect("memory")));
            // An error or a region, and no panic.
            if Superblock::format(&fabric, &settings.config).is_ok() {
                let options = AttachOptions { private: true, ..AttachOptions::named("test") };
                drop(Pool::attach(fabric, &options));
            }
        }
    }
}
