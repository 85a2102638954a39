//! Sealed regions: what a process that may write the region, but has no key, can do.

use crate::support::*;
use cenote_base::seal::Seal;
use cenote_mem::checksum::checksum;
use cenote_mem::{Coherent, Fabric, Offset};
use cenote_pool::{
    AttachOptions, Counter, Hit, Inspector, NewBlock, Pool, PoolConfig, PoolError, Publish, ReadOutcome, RowRef,
    RowShape,
};
use std::sync::Arc;

const BYTES: u64 = 2 << 20;

/// All words of the region.
fn words(fabric: &Coherent) -> Vec<u64> {
    (0..fabric.len() / 8).map(|word| fabric.load(Offset::new(word * 8))).collect()
}

/// Where a payload lies: the place of its bytes in an unsealed or authenticated region.
fn place_of(fabric: &Coherent, payload: &[u8]) -> u64 {
    let first = u64::from_le_bytes(payload[..8].try_into().expect("8 bytes"));
    let second = u64::from_le_bytes(payload[8..16].try_into().expect("8 bytes"));
    let at = words(fabric).windows(2).position(|pair| pair == [first, second]);
    at.expect("the payload is in the region") as u64 * 8
}

/// The place of a block's descriptor.
fn descriptor_of(fabric: &Coherent, hit: &Hit) -> u64 {
    let [low, high] = hit.hash.words();
    let ready = hit.generation.0 << 16 | 1;
    let at = words(fabric).windows(3).position(|found| found == [ready, low, high]);
    at.expect("the descriptor is in the region") as u64 * 8
}

/// Whether any eight bytes of a payload are in the region.
fn shows(fabric: &Coherent, payload: &[u8]) -> bool {
    let all: std::collections::BTreeSet<u64> = words(fabric).into_iter().collect();
    payload.chunks_exact(8).any(|part| all.contains(&u64::from_le_bytes(part.try_into().expect("8 bytes"))))
}

/// Every access returns what was published, by every way into the region and out of it.
#[test]
fn sealed_blocks_objects_and_swap_space_come_back_and_encrypted_ones_are_unreadable() {
    for seal in [Seal::Mac, Seal::Encrypt] {
        let (fabric, pool) = anonymous(BYTES, &sealed(seal, 90));
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hashes = chain(&ns, 1, 8);
        assert_eq!(pool.seal(), seal);
        // Whole, together, encoded, and piece by piece.
        assert_eq!(publish(&pool, &ns, hashes[0], 0), Publish::Published);
        let payloads: Vec<Vec<u8>> = hashes.iter().map(|hash| payload(*hash, BLOCK_BYTES)).collect();
        let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [payload.as_slice()]).collect();
        let block = |at: usize| (NewBlock::new(&ns, hashes[at], at as u32), parts[at].as_slice());
        assert_eq!(pool.publish_all(&[block(1), block(2), block(3)]), [Publish::Published; 3]);
        let mut filling = pool.begin(&NewBlock::new(&ns, hashes[4], 4)).expect("there is room");
        payloads[4].chunks(4096).for_each(|piece| filling.append(piece));
        assert_eq!(filling.publish(), Publish::Published);
        let short = NewBlock { encoding: 2, ..NewBlock::new(&ns, hashes[5], 5) };
        assert_eq!(pool.publish(&short, &[&payloads[5][..4160]]), Publish::Published);
        let hits = pool.lookup(&hashes);
        assert_eq!(hits.len(), 6);
        for hit in &hits[..5] {
            assert_eq!(read(&pool, hit), ReadOutcome::Whole);
            let mut reading = pool.pin(hit).expect("it is there").read();
            let mut bytes = vec![0; BLOCK_BYTES as usize];
            bytes.chunks_mut(8192).for_each(|piece| reading.copy(piece));
            assert_eq!(reading.finish(), ReadOutcome::Whole);
            assert!(bytes == payload(hit.hash, BLOCK_BYTES));
            assert_eq!(pool.pin(hit).expect("it is there").verify(), ReadOutcome::Whole);
        }
        let mut bytes = vec![0; 4160];
        assert_eq!(pool.read(&hits[5], &mut [&mut bytes]), ReadOutcome::Whole);
        assert!(bytes == payloads[5][..4160]);
        let object = payload(hashes[6], 5000);
        pool.put_object("root", &object).expect("there is room");
        assert!(pool.get_object("root").expect("it is a key").as_deref() == Some(&object));
        let swapped = pool.swap_out(&ns, &parts[7]).expect("there is room");
        let mut back = vec![0; BLOCK_BYTES as usize];
        assert_eq!(swapped.read(&mut [&mut back]), ReadOutcome::Whole);
        assert!(back == payloads[7]);

        let encrypted = seal == Seal::Encrypt;
        for payload in payloads[..6].iter().map(|payload| &payload[..4160]).chain([&*object, &payloads[7]]) {
            assert_eq!(shows(&fabric, payload), !encrypted, "{seal}");
        }
        // Sealed bytes are never handed out in their place.
        assert!(pool.pin(&hits[0]).expect("it is there").extent().is_none());
        assert_eq!(pool.part_reader(&hits[0], &payloads[0], std::slice::from_ref(&(0..4096))).is_none(), encrypted);
        let shape = RowShape { offset: 0, stride: 64, bytes: 64, pieces: 1, piece_stride: 0, rows: 4 };
        let rows = pool.pin_rows(&hits[..1]);
        let gathered = rows.gather(&[RowRef { block: 0, row: 1 }], &shape, &mut [0; 64]).expect("a row of the block");
        assert_eq!(gathered.missed.len(), 1);
        drop(rows);
        let in_place = pool.begin_in_place(&NewBlock::new(&ns, hashes[6], 6));
        assert!(matches!(in_place, Err(Publish::NoRoom)), "another writer could change it before it is sealed");
        drop((in_place, swapped));
        let report = pool.check(true).expect("it checks");
        assert!(report.is_clean(), "{report:?}");
    }
}

#[test]
fn parts_of_an_authenticated_block_are_checked_one_by_one() {
    let (fabric, pool) = anonymous(BYTES, &sealed(Seal::Mac, 91));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let hash = chain(&ns, 1, 1)[0];
    publish(&pool, &ns, hash, 0);
    let hit = pool.lookup(&[hash])[0];
    let bytes = payload(hash, BLOCK_BYTES);
    let reader = pool.part_reader(&hit, &bytes, &[0..4096, 4096..8192]).expect("it is not encrypted");
    let at = place_of(&fabric, &bytes) + 4096;
    fabric.store(Offset::new(at), fabric.load(Offset::new(at)) ^ 1);
    let mut part = [0; 4096];
    assert_eq!(reader.read(0, &mut part, false), ReadOutcome::Whole);
    assert_eq!(reader.read(1, &mut part, false), ReadOutcome::Damaged);
}

/// A device sums blocks of a region without a seal. Sealed blocks have no place for it, and its sum of
/// one says nothing.
#[test]
fn the_sum_of_a_device_counts_only_without_a_seal() {
    let (fabric, pool) = anonymous(BYTES, &small_config(99));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let hash = chain(&ns, 1, 1)[0];
    let bytes = payload(hash, BLOCK_BYTES);
    let filling = pool.begin_in_place(&NewBlock::new(&ns, hash, 0)).expect("there is room");
    let at = filling.extent().0;
    fabric.copy_plain_in(at, &bytes);
    let sum = checksum(&bytes, filling.checksum_key());
    assert_eq!(pool.publish_with_sums(vec![(filling, sum)]), [Publish::Published]);
    let hit = pool.lookup(&[hash])[0];
    assert_eq!(read(&pool, &hit), ReadOutcome::Whole);
    let pin = pool.pin(&hit).expect("it is there");
    assert_eq!(checksum(&bytes, pin.checksum_key()), sum);
    // The device has its copy, which is what was published.
    fabric.store(Offset::new(at), fabric.load(Offset::new(at)) ^ 1);
    assert_eq!(pin.verify_sum(sum), ReadOutcome::Whole);
    assert_eq!(pin.verify_sum(sum ^ 1), ReadOutcome::Damaged);

    for seal in [Seal::Mac, Seal::Encrypt] {
        let (fabric, pool) = anonymous(BYTES, &sealed(seal, 99));
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hash = chain(&ns, 1, 1)[0];
        assert_eq!(pool.begin_in_place(&NewBlock::new(&ns, hash, 0)).err(), Some(Publish::NoRoom));
        publish(&pool, &ns, hash, 0);
        let hit = pool.lookup(&[hash])[0];
        // The word that a checksum has in the descriptor.
        let stored = fabric.load(Offset::new(descriptor_of(&fabric, &hit) + 32));
        let pin = pool.pin(&hit).expect("it is there");
        assert_eq!((pin.extent(), pin.verify_sum(stored)), (None, ReadOutcome::Stale));
        assert_eq!(read(&pool, &hit), ReadOutcome::Whole);
    }
}

/// Each word of a payload, a descriptor and a seal, changed by one bit: the block is gone or whole.
#[test]
fn no_changed_bit_is_believed() {
    for seal in [Seal::Mac, Seal::Encrypt] {
        let (fabric, pool) = anonymous(BYTES, &sealed(seal, 92));
        let ns = namespace(&pool, 1, 4 << 10);
        let hash = chain(&ns, 1, 1)[0];
        let before = words(&fabric);
        publish(&pool, &ns, hash, 0);
        let hit = pool.lookup(&[hash])[0];
        let changed: Vec<u64> = (0..)
            .zip(before.iter().zip(&words(&fabric)))
            .filter(|(_, (old, new))| old != new)
            .map(|(word, _)| word * 8)
            .collect();
        assert!(changed.len() > 512, "the payload and its seal are among them");
        let (mut whole, mut lost) = (0, 0);
        for at in changed {
            let was = fabric.load(Offset::new(at));
            fabric.store(Offset::new(at), was ^ 1 << (at / 8 % 64));
            let mut bytes = vec![0; 4 << 10];
            // A view that changes nothing: it has the keys of a worker.
            let options = AttachOptions { keys: Some(keys(&[1])), ..private(0) };
            let viewer = Pool::attach(Arc::clone(&fabric), &options);
            match viewer.as_ref().map(|viewer| viewer.read(&hit, &mut [&mut bytes])) {
                Ok(ReadOutcome::Whole) => {
                    assert!(bytes == payload(hash, 4 << 10), "{seal}: a changed bit at {at:#x} was believed");
                    whole += 1;
                }
                _ => lost += 1,
            }
            fabric.store(Offset::new(at), was);
        }
        assert!(lost >= 514 && whole > 0, "{seal}: {lost} lost, {whole} whole");
    }
}

/// A forger with the region but without the key: it does what the unsealed format asks for. The same
/// forgery is believed by a region without a seal, so the test would notice if it were a bad one.
#[test]
fn a_forged_payload_with_a_right_checksum_is_believed_only_without_a_seal() {
    for (config, believed) in
        [(small_config(93), true), (sealed(Seal::Mac, 93), false), (sealed(Seal::Encrypt, 93), false)]
    {
        let (fabric, pool) = anonymous(BYTES, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hash = chain(&ns, 1, 1)[0];
        publish(&pool, &ns, hash, 0);
        let hit = pool.lookup(&[hash])[0];
        let forged = payload(chain(&ns, 2, 1)[0], BLOCK_BYTES);
        let descriptor = forge(&fabric, &pool, &hit, &forged);
        let hit = pool.lookup(&[hash]);
        assert_eq!(hit.len(), 1, "the forged descriptor at {descriptor:#x} holds");
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        let outcome = pool.read(&hit[0], &mut [&mut bytes]);
        assert_eq!(outcome == ReadOutcome::Whole && bytes == forged, believed, "{:?}", config.seal);
        assert_eq!(pool.counter(Counter::ReadsDamaged), u64::from(!believed));
    }
}

/// Writes `payload` into a block's slot, with the checksum and the check word that an unsealed block
/// would have. Returns the descriptor's place.
fn forge(fabric: &Coherent, pool: &TestPool, hit: &Hit, payload: &[u8]) -> u64 {
    let [low, high] = hit.hash.words();
    let at = descriptor_of(fabric, hit);
    let mut line = fabric.load_line(at);
    let offset = (line[3] >> 24) * 64;
    let mixed = (low ^ high.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let key = (mixed ^ line[0] >> 16).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ (mixed >> 31);
    line[4] = fabric.write_payload(offset, &[payload], key);
    let uuid = u128::from_le_bytes(pool.superblock().config.uuid);
    let identity = [uuid as u64, (uuid >> 64) as u64];
    let start = (identity[0] ^ identity[1].rotate_left(17)) ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mix = |sum: u64, word: &u64| {
        let sum = (sum ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
        sum ^ (sum >> 32)
    };
    let sum = line[..7].iter().fold(start, mix).wrapping_mul(0xd6e8_feb8_6659_fd93);
    line[7] = (sum ^ (sum >> 29)) | 1;
    fabric.store_line(at, &line);
    at
}

/// Bytes of an older use of a slot, put back with their seal beside a newer descriptor, and those of
/// another block.
#[test]
fn a_replayed_payload_is_damaged() {
    for seal in [Seal::Mac, Seal::Encrypt] {
        let (fabric, pool) = anonymous(BYTES, &sealed(seal, 94));
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let [first, second] = [1, 2].map(|prompt| chain(&ns, prompt, 1)[0]);
        publish(&pool, &ns, first, 0);
        let old_hit = pool.lookup(&[first])[0];
        let old = words(&fabric);
        assert_eq!(pool.evict(1), 1);
        publish(&pool, &ns, second, 0);
        let hit = pool.lookup(&[second])[0];
        assert_eq!((hit.block, hit.generation.0), (old_hit.block, old_hit.generation.0 + 1), "the slot is used again");
        let new = words(&fabric);
        // All that changed but the descriptor and what else is below it: payload and seal.
        let after = descriptor_of(&fabric, &hit) as usize / 8 + 8;
        for at in (after..new.len()).filter(|&at| old[at] != new[at]) {
            fabric.store(Offset::new(at as u64 * 8), old[at]);
        }
        let outcome = read(&pool, &hit);
        assert_eq!(outcome, ReadOutcome::Damaged, "{seal}");
        assert!(pool.lookup(&[second]).is_empty(), "readers do not try it again");
    }
}

#[test]
fn a_worker_without_the_key_is_refused_by_name() {
    let attach = |fabric: &Arc<Coherent>, keys| {
        Pool::attach(Arc::clone(fabric), &AttachOptions { keys, ..private(0) }).map(|_| ())
    };
    let (fabric, pool) = anonymous(BYTES, &sealed(Seal::Encrypt, 95));
    let name = pool.keys()[0].to_string();
    let without = attach(&fabric, None).expect_err("it has no key");
    assert!(matches!(without, PoolError::Sealed { .. }) && without.to_string().contains(&name), "{without}");
    let other = attach(&fabric, Some(keys(&[2, 1]))).expect_err("the first key is not the region's");
    assert!(matches!(other, PoolError::OtherKey { .. }) && other.to_string().contains("cenote pool rotate"), "{other}");
    attach(&fabric, Some(keys(&[1, 2]))).expect("the first key is the region's");
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    publish(&pool, &ns, chain(&ns, 1, 1)[0], 0);
    let view = Inspector::open(&fabric, &private(0)).expect("a view needs no key");
    let report = view.check(true);
    assert!(report.is_clean() && report.payloads_verified == 0, "a view without keys verifies nothing: {report:?}");

    let (fabric, _pool) = anonymous(BYTES, &small_config(95));
    let unsealed = attach(&fabric, Some(keys(&[1]))).expect_err("the region is not sealed");
    assert!(matches!(unsealed, PoolError::NotSealed), "{unsealed}");
    let half = PoolConfig { seal: Seal::Mac, ..small_config(95) };
    assert!(half.validate().expect_err("a seal needs a key").to_string().contains("key"));
}

/// Rotation: the region takes a new key; workers that have both read all; those with the new one only
/// miss what the old one sealed.
#[test]
fn keys_change_while_blocks_stay() {
    let (fabric, old) = anonymous(BYTES, &sealed(Seal::Encrypt, 96));
    let ns = namespace(&old, 1, BLOCK_BYTES);
    let hashes = [1, 2].map(|prompt| chain(&ns, prompt, 1)[0]);
    publish(&old, &ns, hashes[0], 0);
    let creators = old.keys();
    let admitted = old.admit_key(&keys(&[2]), false).expect("it takes it");
    assert_eq!((admitted.len(), admitted[1]), (2, creators[0]));
    let attach =
        |numbers: &[u64]| Pool::attach(Arc::clone(&fabric), &AttachOptions { keys: Some(keys(numbers)), ..private(0) });
    let both = attach(&[2, 1]).expect("the region has both");
    let ns_of_both = namespace(&both, 1, BLOCK_BYTES);
    publish(&both, &ns_of_both, hashes[1], 0);
    for hash in hashes {
        assert_eq!(read(&both, &both.lookup(&[hash])[0]), ReadOutcome::Whole);
    }
    assert_eq!(both.admit_key(&keys(&[2]), true).expect("it drops the old one"), admitted[..1]);
    assert!(attach(&[1, 2]).is_err(), "the old key seals no more");
    let new = attach(&[2]).expect("the region has it");
    assert_eq!(read(&new, &new.lookup(&[hashes[1]])[0]), ReadOutcome::Whole);
    // What a worker cannot open is a miss for it alone.
    for _ in 0..2 {
        assert_eq!(read(&new, &new.lookup(&[hashes[0]])[0]), ReadOutcome::Stale);
        assert_eq!(new.pin(&new.lookup(&[hashes[0]])[0]).expect("it is there").verify(), ReadOutcome::Stale);
        assert_eq!(read(&old, &old.lookup(&[hashes[1]])[0]), ReadOutcome::Stale);
        assert_eq!(read(&both, &both.lookup(&[hashes[0]])[0]), ReadOutcome::Whole);
    }
    let report = new.check(true).expect("it checks");
    assert!(report.is_clean() && report.payloads_verified == 1, "{report:?}");
    for number in 3..8 {
        new.admit_key(&keys(&[number]), false).expect("six names have room");
    }
    assert!(new.admit_key(&keys(&[9]), false).expect_err("a seventh has none").to_string().contains("--only"));
}

#[test]
fn hosts_without_coherence_read_each_others_sealed_blocks() {
    for seal in [Seal::Mac, Seal::Encrypt] {
        let fabric = without_coherence(BYTES, &sealed(seal, 97));
        let options = |host| AttachOptions { keys: Some(keys(&[1])), ..private(host) };
        let hosts = [0, 1].map(|host| Pool::attach(Arc::clone(&fabric), &options(host)).expect("each has its slot"));
        let spaces = [0, 1].map(|host: usize| namespace(&hosts[host], 1, BLOCK_BYTES));
        for prompt in 0..40 {
            let writer = prompt as usize % 2;
            for (depth, hash) in (0..).zip(chain(&spaces[writer], prompt, 4)) {
                publish(&hosts[writer], &spaces[writer], hash, depth);
            }
            for hash in chain(&spaces[0], prompt, 4) {
                let hits = hosts[1 - writer].lookup(&[hash]);
                assert_eq!(hits.len(), 1, "{seal}: prompt {prompt}");
                assert_eq!(read(&hosts[1 - writer], &hits[0]), ReadOutcome::Whole, "{seal}: prompt {prompt}");
            }
        }
        assert!(hosts.iter().any(|host| host.counter(Counter::Evicted) > 0), "slots were used again");
    }
}

/// A writer of the region rewrites the superblock, check word included, so that workers that attach later
/// would write plain bytes.
#[test]
fn a_writer_of_the_region_cannot_weaken_its_seal() {
    let (fabric, pool) = anonymous(BYTES, &sealed(Seal::Encrypt, 98));
    drop(pool);
    for weaker in [Seal::Mac, Seal::None] {
        let old: Vec<u64> = (0..24).map(|word| fabric.load(Offset::new(word * 8))).collect();
        let mut words = old.clone();
        words[11] = words[11] & 0xffff_ffff | (weaker as u64) << 32;
        if weaker == Seal::None {
            words[17] = 0;
        }
        words[23] = words[..23].iter().fold(0x243f_6a88_85a3_08d3, |sum, word| {
            let mixed = (sum ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
            mixed ^ (mixed >> 32)
        });
        (0..).zip(&words).for_each(|(word, value)| fabric.store(Offset::new(word * 8), *value));
        let options = AttachOptions { keys: Some(keys(&[1])), ..private(0) };
        let refused = Pool::attach(Arc::clone(&fabric), &options).map(|_| ()).expect_err("the seal is weaker");
        let is_named = matches!(refused, PoolError::OtherKey { .. } | PoolError::NotSealed);
        assert!(is_named, "{weaker}: {refused}");
        (0..).zip(&old).for_each(|(word, value)| fabric.store(Offset::new(word * 8), *value));
        Pool::attach(Arc::clone(&fabric), &options).expect("the seal is the creator's again");
    }
}
