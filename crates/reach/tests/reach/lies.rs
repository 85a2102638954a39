//! Peers that return any bytes.

use crate::support::{BLOCK_BYTES, Host, Tally, Trouble, chain, config, pace, patience, readable};
use cenote_base::prng::Prng;
use cenote_base::seal::Seal;
use cenote_pool::{Publish, Superblock};
use cenote_reach::{Piece, ReadError, Reader};

const BLOCKS: usize = 8;

fn owner(seal: Seal) -> Host {
    let owner = Host::new(2 << 20, &config(1, 7, seal));
    for (depth, hash) in (0..).zip(chain(&owner.namespace, 1, BLOCKS)) {
        assert_eq!(owner.publish(hash, depth), Publish::Published);
    }
    owner
}

/// Finds and fetches the owner's blocks.
fn fetch(owner: &Host, trouble: &Trouble) -> Result<Tally, ReadError> {
    let hashes = chain(&owner.namespace, 1, BLOCKS);
    let mut reader = trouble.reader(owner, 1)?;
    let hits = reader.find(&hashes, pace())?;
    let mut tally = Tally::default();
    reader.fetch((&owner.namespace, &readable()), &hits, pace(), |hit, fetched| tally.count(hit, fetched))?;
    Ok(tally)
}

/// The check word of a line (docs/internals/format.md#check-word): a forger knows the format.
fn sealed_line(mut words: [u64; 8], offset: u64, uuid: &[u8; 16]) -> [u64; 8] {
    let [low, high] = [0, 8].map(|at| u64::from_le_bytes(uuid[at..at + 8].try_into().unwrap()));
    let mut sum = low ^ high.rotate_left(17) ^ offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for word in &words[..7] {
        sum = (sum ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
        sum ^= sum >> 32;
    }
    sum = sum.wrapping_mul(0xd6e8_feb8_6659_fd93);
    words[7] = (sum ^ (sum >> 29)) | 1;
    words
}

fn words_of(bytes: &[u8]) -> [u64; 8] {
    std::array::from_fn(|at| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap()))
}

/// The pieces with their bytes.
fn each_piece<'a>(pieces: &[Piece], mut bytes: &'a mut [u8]) -> Vec<(Piece, &'a mut [u8])> {
    let part = |piece: &Piece| {
        let (first, rest) = std::mem::take(&mut bytes).split_at_mut(piece.length);
        bytes = rest;
        (*piece, first)
    };
    pieces.iter().map(part).collect()
}

#[test]
fn bytes_changed_anywhere_are_misses() {
    for seal in [Seal::None, Seal::Mac, Seal::Encrypt] {
        let owner = owner(seal);
        let (mut failed, mut missed) = (0, 0);
        for seed in 0..400 {
            let trouble = Trouble::default();
            let mut random = Prng::new(seed);
            trouble.set().lie = Some(Box::new(move |_, bytes| {
                let changes = random.below(4);
                for _ in 0..changes {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = random.next_u64() as u8;
                }
            }));
            match fetch(&owner, &trouble) {
                Ok(tally) => missed += BLOCKS - tally.whole,
                Err(ReadError::Remade | ReadError::Gone(_)) => failed += 1,
                Err(ReadError::Late) => panic!("no time has passed"),
            }
        }
        assert!(failed > 0 && missed > 100, "{failed} {missed}");
    }
}

/// Descriptors with right check words and other extents, namespaces, encodings and states.
#[test]
fn forged_descriptors_read_nothing_outside_and_take_no_memory() {
    let owner = owner(Seal::None);
    let uuid = owner.pool.superblock().config.uuid;
    let region_bytes = owner.pool.superblock().region_bytes;
    let mut most = 0;
    for seed in 0..600_u64 {
        let trouble = Trouble::default();
        let mut random = Prng::new(seed);
        let what = seed % 6;
        trouble.set().lie = Some(Box::new(move |pieces, bytes| {
            for (piece, bytes) in each_piece(pieces, bytes).into_iter().filter(|(piece, _)| piece.length == 64) {
                let mut words = words_of(bytes);
                if words[0] & 0xff != 1 || sealed_line(words, piece.at, &uuid) != words {
                    continue;
                }
                match what {
                    0 => words[3] = random.next_u64(),
                    // The longest payload that a descriptor can have, inside and outside of the region.
                    1 => words[3] |= 0xff_ffff,
                    2 => words[5] = (words[5] & !0xffff) | random.below(1 << 16),
                    3 => words[5] ^= random.below(256) << 16,
                    4 => words[0] = (words[0] & !0xff) | random.below(256),
                    _ => words[4] = random.next_u64(),
                }
                let words = sealed_line(words, piece.at, &uuid);
                bytes.copy_from_slice(&words.map(u64::to_le_bytes).concat());
            }
        }));
        let tally = fetch(&owner, &trouble).expect("the lines are well formed");
        assert!(tally.whole <= BLOCKS);
        most = most.max(trouble.set().bytes);
    }
    assert!(most < 4 * BLOCKS as u64 * BLOCK_BYTES + (64 << 10), "{most} bytes were read of {region_bytes}");
}

/// Buckets that name seven blocks for every hash, and always go on.
#[test]
fn forged_buckets_cost_a_bounded_number_of_reads() {
    let owner = owner(Seal::None);
    let hashes = chain(&owner.namespace, 9, 500);
    let trouble = Trouble::default();
    let tags: Vec<u64> = hashes.iter().map(|hash| hash.words()[1] >> 40).collect();
    let mut random = Prng::new(5);
    trouble.set().lie = Some(Box::new(move |pieces, bytes| {
        for (at, (piece, bytes)) in each_piece(pieces, bytes).into_iter().enumerate() {
            if piece.at != 0 && at > 0 {
                let tag = tags[(at - 1) % tags.len()] << 40;
                let words: [u64; 8] = std::array::from_fn(|_| tag | (1 + random.below(256)));
                bytes.copy_from_slice(&words.map(u64::to_le_bytes).concat());
            }
        }
    }));
    let mut reader = trouble.reader(&owner, 1).expect("the superblock is true");
    assert_eq!(reader.find(&hashes, pace()), Ok(Vec::new()));
    let reads = trouble.set().reads;
    assert!(reads < 100, "{reads} reads");
}

#[test]
fn no_superblock_and_no_length_ends_the_reader() {
    let owner = owner(Seal::None);
    let seed = owner.pool.superblock().config.seed;
    let open = |trouble: &Trouble| Reader::open(trouble.peer(&owner, 1), &seed, None, patience()).map(drop);
    assert_eq!(open(&Trouble::default()), Ok(()));
    for region_bytes in [0, 64, 191, 4096, 1 << 20] {
        let trouble = Trouble::default();
        trouble.set().region_bytes = Some(region_bytes);
        assert!(matches!(open(&trouble), Err(ReadError::Gone(_))), "{region_bytes}");
    }
    let trouble = Trouble::default();
    trouble.set().region_bytes = Some(u64::MAX);
    assert_eq!(open(&trouble), Ok(()), "its superblock says how much of that is the region");
    for round in 0..2_000 {
        let trouble = Trouble::default();
        let mut random = Prng::new(round);
        trouble.set().lie = Some(Box::new(move |_, bytes| {
            let mut words: Vec<u64> =
                bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            let at = 3 + random.below(19) as usize;
            words[at] = random.next_u64() >> random.below(64);
            let sum = words[..23].iter().fold(0x243f_6a88_85a3_08d3_u64, |sum, word| {
                let mixed = (sum ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
                mixed ^ (mixed >> 32)
            });
            words[23] = sum;
            bytes.copy_from_slice(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
        }));
        // A forged region with this seed is readable and empty; every other one is refused.
        match trouble.reader(&owner, 1) {
            Ok(mut reader) => {
                let _ = reader.find(&chain(&owner.namespace, 1, BLOCKS), pace());
            }
            Err(error) => assert!(matches!(error, ReadError::Gone(_)), "{error}"),
        }
    }
}

/// A writer of the owner's region without its key.
#[test]
fn a_payload_that_is_swapped_or_forged_in_a_sealed_region_is_a_miss() {
    for seal in [Seal::Mac, Seal::Encrypt] {
        let owner = owner(seal);
        for what in 0..3 {
            let trouble = Trouble::default();
            trouble.set().lie = Some(Box::new(move |pieces, bytes| {
                let mut all = each_piece(pieces, bytes);
                let of = |length: usize, all: &[(Piece, &mut [u8])]| -> Vec<usize> {
                    (0..all.len()).filter(|&at| all[at].0.length == length).collect()
                };
                let (payloads, seals) = (of(BLOCK_BYTES as usize, &all), of(16, &all));
                if payloads.len() < 2 {
                    return;
                }
                match what {
                    0 => all[payloads[0]].1.fill(7),
                    // Another block's payload, with its seal.
                    1 | 2 => {
                        let other = all[payloads[1]].1.to_vec();
                        all[payloads[0]].1.copy_from_slice(&other);
                        if what == 2 {
                            let other = all[seals[2]].1.to_vec();
                            all[seals[0]].1.copy_from_slice(&other);
                        }
                    }
                    _ => unreachable!(),
                }
            }));
            let tally = fetch(&owner, &trouble).expect("the peer answers");
            assert_eq!(tally, Tally { whole: BLOCKS - 1, wrong: 1, ..Tally::default() }, "{what}");
        }
    }
}

#[test]
fn a_region_made_anew_in_its_place_is_noticed() {
    let owner = owner(Seal::None);
    let mut reader = Trouble::default().reader(&owner, 1).expect("it is a region");
    assert_eq!(reader.check(patience()), Ok(()));
    let hits = reader.find(&chain(&owner.namespace, 1, BLOCKS), pace()).expect("it answers");
    Superblock::format(&owner.fabric, &config(2, 7, Seal::None)).expect("it fits");
    assert_eq!(reader.check(patience()), Err(ReadError::Remade));
    assert_eq!(reader.find(&chain(&owner.namespace, 1, 1), pace()), Err(ReadError::Remade));
    let fetched = reader.fetch((&owner.namespace, &readable()), &hits, pace(), |_, _| panic!("nothing was read whole"));
    assert_eq!(fetched, Err(ReadError::Remade));
}

#[test]
fn other_seeds_and_keys_are_refused_with_the_reason() {
    let refusal = |owner: &Host, seed: u8, keys| {
        let seed = cenote_base::HashSeed([seed; 32]);
        match Reader::open(Trouble::default().peer(owner, 1), &seed, keys, patience()) {
            Err(ReadError::Gone(text)) => text,
            other => panic!("{:?}", other.map(drop)),
        }
    };
    let (plain, sealed) = (owner(Seal::None), owner(Seal::Mac));
    assert!(refusal(&plain, 8, None).contains("hash seed"));
    assert!(refusal(&sealed, 7, None).contains("sealed"));
    let keys = crate::support::keys(1);
    refusal(&plain, 7, Some(&keys));
    // With another key nothing is whole.
    let others = crate::support::keys(2);
    let seed = sealed.pool.superblock().config.seed;
    let mut reader =
        Reader::open(Trouble::default().peer(&sealed, 1), &seed, Some(&others), patience()).expect("a sealed region");
    let hits = reader.find(&chain(&sealed.namespace, 1, BLOCKS), pace()).expect("it answers");
    let mut tally = Tally::default();
    reader
        .fetch((&sealed.namespace, &readable()), &hits, pace(), |hit, fetched| tally.count(hit, fetched))
        .expect("it answers");
    assert_eq!(tally, Tally { wrong: BLOCKS, ..Tally::default() });
}
