//! What builds before this one have left: snapshots are read, regions are refused.
//!
//! `data/november-2026.snapshot` and [`SUPERBLOCK`] are of one region, made by a build of 27 November 2026
//! from Python:
//!
//! ```python
//! cenote.Region.create("shm:old", "8MiB", chunk_size="64KiB", max_hosts=2, events=64)
//! region = cenote.Region.open("shm:old")
//! blocks = region.namespace(b"a model of an earlier build", 4096)
//! for depth, name in enumerate(blocks.hash_tokens(range(48), 16)):
//!     blocks.publish(name, depth, bytes([depth + 1]) * 4096)
//! blocks.set_quota(1 << 20)
//! region.put_object("a key", b"an object")
//! ```

use cenote_base::BlockHash;
use cenote_mem::{Coherent, Fabric, MapOptions, Mapping, Offset, RegionSource};
use cenote_pool::{AttachOptions, Inspector, Pool, PoolError, ReadOutcome, Superblock};
use cenote_store::snapshot::{open, restore};
use std::path::Path;
use std::sync::Arc;

/// The names of its blocks.
const NAMES: [u128; 3] =
    [0xa5f281734595fa771e38a9f9bb6a91cd, 0x41a0e21b560c4b2a00634c0b2f5a8c3e, 0x8e637fe529c3a8dde9715493ee7ff581];

/// The first lines of its region.
const SUPERBLOCK: [&str; 3] = [
    "43454e4f54451a000100000000000000949c5da2ca5d48dd00008000000000000000010000000000004000000000000002400040000001004a04000100040000",
    "11fb6c2df4f4248b9fc21cce91d0c1e8036b096b000000000000000000000000a656182cfdeaba75cd3a412b4c730d2590cd03d3212b5003bb485f8410b02d4d",
    "4000000000000000000000000000000040000000000000000000000000000000000000000000000000000000000000000000000000000000322dc8a868bc7c6e",
];

fn empty(bytes: u64) -> Arc<Coherent> {
    let mapping = Mapping::create(&RegionSource::Anon, bytes, 0o600, &MapOptions::default()).expect("memory");
    Arc::new(Coherent::new(mapping))
}

fn options() -> AttachOptions {
    AttachOptions { private: true, ..AttachOptions::named("test") }
}

#[test]
fn a_snapshot_of_an_earlier_build_comes_back() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/data/november-2026.snapshot");
    let settings = open(&path).expect("settings");
    let fabric = empty(settings.region_bytes);
    Superblock::format(&fabric, &settings.config).expect("it fits");
    let pool = Pool::attach(fabric, &options()).expect("it attaches");
    let restored = restore(&pool, &path).expect("it is read");
    assert!(restored.is_whole(), "{restored:?}");
    assert_eq!((restored.namespaces, restored.objects, restored.blocks), (1, 1, 3));
    for (depth, name) in (1..).zip(NAMES) {
        let hit = pool.peek(&[BlockHash(name.to_be_bytes())])[0];
        let mut bytes = vec![0; 4096];
        assert_eq!(pool.read(&hit, &mut [&mut bytes]), ReadOutcome::Whole);
        assert!(bytes.iter().all(|&byte| byte == depth), "block {depth}");
    }
    assert_eq!(pool.get_object("a key").expect("a key"), Some(b"an object".to_vec()));
    let row = &pool.namespaces()[0];
    assert_eq!((row.quota_bytes, row.kept_bytes), (1 << 20, 0), "that build kept nothing");
}

#[test]
fn a_region_of_an_earlier_layout_is_refused_and_stays_as_it_is() {
    let fabric = empty(8 << 20);
    let words: Vec<u64> = SUPERBLOCK
        .iter()
        .flat_map(|line| hex::decode(line).expect("digits"))
        .collect::<Vec<u8>>()
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight")))
        .collect();
    let places = || (0..).step_by(8).map(Offset::new);
    places().zip(&words).for_each(|(at, &word)| fabric.store(at, word));
    let refused = |error: PoolError| {
        assert!(matches!(error, PoolError::Layout { found: 0xdd48_5dca_a25d_9c94, .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("another build") && said.contains("snapshot"), "{said}");
    };
    refused(Pool::attach(Arc::clone(&fabric), &options()).map(drop).expect_err("another layout"));
    refused(Inspector::open(&fabric, &options()).map(drop).expect_err("another layout"));
    assert!(places().zip(&words).all(|(at, &word)| fabric.load(at) == word), "nothing was written");
}
