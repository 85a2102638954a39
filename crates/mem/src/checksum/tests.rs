//! Every level against an oracle, and the changes that a checksum must detect.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

/// The module's definition, word by word, without any kernel.
fn oracle(bytes: &[u8], key: u64) -> u64 {
    let (accumulators, bytes) = (oracle_lanes(bytes, key), bytes.len() as u64);
    fold_lanes(&accumulators, bytes, key)
}

/// The accumulators of the module's definition.
fn oracle_lanes(bytes: &[u8], key: u64) -> [u64; ACCUMULATORS] {
    let mut prng = Prng::new(key);
    let mut k: [u64; 8] = std::array::from_fn(|_| prng.next_u64());
    let (mut product, mut sum, mut prefix) = ([0_u64; 8], [0_u64; 8], [0_u64; 8]);
    for (index, chunk) in bytes.chunks(64).enumerate() {
        let mut line = [0; 64];
        line[..chunk.len()].copy_from_slice(chunk);
        for lane in 0..8 {
            let d = u64::from_le_bytes(line[8 * lane..8 * lane + 8].try_into().expect("eight bytes"));
            let x = d ^ k[lane];
            k[lane] = k[lane].wrapping_add(0x9e37_79b9_7f4a_7c15);
            product[lane] = product[lane].wrapping_add((x & 0xffff_ffff).wrapping_mul(x >> 32));
            sum[lane] = sum[lane].wrapping_add(d);
            prefix[lane] = prefix[lane].wrapping_add(sum[lane]);
            if index % 16 == 15 {
                let p = product[lane];
                product[lane] = (p ^ (p >> 47)).wrapping_add(prefix[lane]).wrapping_mul(0x9e37_79b1);
            }
        }
    }
    [product, sum, prefix].concat().try_into().expect("three times eight")
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    (0..len).map(|_| prng.next_u64() as u8).collect()
}

#[repr(align(64))]
struct Line64(#[allow(dead_code)] [u8; 64]);

struct Shared {
    memory: Vec<Line64>,
    len: usize,
}

impl Shared {
    fn new(bytes: &[u8]) -> Self {
        let mut memory: Vec<Line64> = Vec::new();
        for chunk in bytes.chunks(64) {
            // Bytes after the end must not count, so they are not zero.
            let mut line = [0xee; 64];
            line[..chunk.len()].copy_from_slice(chunk);
            memory.push(Line64(line));
        }
        memory.push(Line64([0xee; 64]));
        Self { memory, len: bytes.len() }
    }
    fn base(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr().cast()
    }
    fn bytes(&self) -> Vec<u8> {
        self.memory.iter().flat_map(|line| line.0).take(self.len).collect()
    }
    fn untouched_behind(&self) -> bool {
        self.memory.iter().flat_map(|line| line.0).skip(self.len).all(|byte| byte == 0xee)
    }
}

/// Sums `bytes` by all methods of one level, cut at `cuts` (in lines).
fn every_way(level: Level, bytes: &[u8], cuts: &[usize], key: u64) -> Vec<u64> {
    let mut bounds: Vec<usize> = cuts.iter().map(|cut| (cut * 64).min(bytes.len() / 64 * 64)).collect();
    bounds.extend([0, bytes.len()]);
    bounds.sort_unstable();
    let ranges: Vec<_> = bounds.windows(2).map(|pair| pair[0]..pair[1]).collect();
    let mut results = Vec::new();

    let mut private = Checksummer::at_level(level, key);
    ranges.iter().for_each(|range| private.absorb(&bytes[range.clone()]));
    results.push(private.finish());

    let mut shared = Shared::new(bytes);
    let base = shared.base();
    let mut in_place = Checksummer::at_level(level, key);
    for range in &ranges {
        // SAFETY: `Shared` holds all of `bytes`, aligned, and cuts are whole lines.
        unsafe { in_place.absorb_shared(base.add(range.start), range.len()) };
    }
    results.push(in_place.finish());

    // The private side is aligned to 16 bytes only, or not at all.
    for (stream, off) in [(false, 1), (true, 1), (true, 16), (true, 48)] {
        let mut out = Checksummer::at_level(level, key);
        let mut copy = vec![0; bytes.len() + 128];
        let start = copy.as_ptr().addr().wrapping_neg() % 64 + off;
        for range in &ranges {
            // SAFETY: as above.
            unsafe { out.copy_out(base.add(range.start), &mut copy[start..][range.clone()], stream) };
        }
        results.push(out.finish());
        assert_eq!(&copy[start..][..bytes.len()], bytes, "{level:?} copied out");
        let around = copy[..start].iter().chain(&copy[start + bytes.len()..]);
        assert!(around.eq(&vec![0; 128]), "{level:?} copied elsewhere");
    }

    for stream in [false, true] {
        let mut shared = Shared::new(&vec![0; bytes.len()]);
        let base = shared.base();
        let mut sum = Checksummer::at_level(level, key);
        let mut unaligned = vec![0];
        unaligned.extend_from_slice(bytes);
        for range in &ranges {
            // SAFETY: as above, for writing.
            unsafe { sum.copy_in(&unaligned[1..][range.clone()], base.add(range.start), stream) };
        }
        results.push(sum.finish());
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE is part of x86-64.
        #[allow(unused_unsafe)]
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
        assert_eq!(shared.bytes(), bytes, "{level:?} copied in");
        assert!(shared.untouched_behind(), "{level:?} wrote behind the end");
    }
    results
}

#[test]
fn every_level_equals_the_oracle_at_every_length_class() {
    let lengths = (0..=130).chain([191, 192, 1023, 1024, 1025, 1087, 1088, 2047, 2048, 2049, 4096, 65_536, 65_599]);
    for len in lengths {
        let bytes = random(len as u64, len);
        let wanted = oracle(&bytes, 42);
        assert_eq!(checksum(&bytes, 42), wanted);
        for level in Level::available() {
            for cuts in [&[][..], &[1], &[3, 15, 16, 17], &[16, 31, 32]] {
                for sum in every_way(level, &bytes, cuts, 42) {
                    assert_eq!(sum, wanted, "{level:?}, {len} bytes cut at lines {cuts:?}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn every_level_equals_the_oracle(
        seed: u64,
        key: u64,
        len in 0_usize..6000,
        cuts in proptest::collection::vec(0_usize..100, 0..5),
    ) {
        let bytes = random(seed, len);
        let wanted = oracle(&bytes, key);
        for level in Level::available() {
            for sum in every_way(level, &bytes, &cuts, key) {
                prop_assert_eq!(sum, wanted, "{:?}", level);
            }
        }
    }
}

#[test]
fn lanes_that_another_device_summed_fold_into_the_same_checksum() {
    for (key, len) in [(0, 0), (7, 64), (u64::MAX, 1024), (1 << 63, 4096 + 64)] {
        let bytes = random(key, len);
        let mut prng = Prng::new(key);
        assert_eq!(lane_keys(key), std::array::from_fn(|_| prng.next_u64()));
        let mut accumulators = oracle_lanes(&bytes, key);
        let length = len as u64;
        assert_eq!(fold_lanes(&accumulators, length, key), checksum(&bytes, key));
        for at in 0..ACCUMULATORS {
            accumulators[at] ^= 1 << 63;
            assert_ne!(fold_lanes(&accumulators, length, key), checksum(&bytes, key), "accumulator {at}");
            accumulators[at] ^= 1 << 63;
        }
        assert_ne!(fold_lanes(&accumulators, length + 64, key), checksum(&bytes, key));
    }
}

#[test]
fn every_changed_bit_shows() {
    for original in [random(3, 2300), vec![0; 2300], vec![0xff; 2300]] {
        let mut bytes = original;
        let mut seen = HashSet::from([checksum(&bytes, 9)]);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(checksum(&bytes, 9)), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn swapped_lines_and_pages_show() {
    let random = random(4, 64 << 10);
    // Lines that differ in one bit, the weakest case: first the lowest bit, then the sign bit of
    // the last 16-bit float of a word, which a position-weighted sum alone misses.
    let counted = |flip: u8, at: usize| -> Vec<u8> {
        let mut bytes = vec![0x3c; 64 << 10];
        bytes.chunks_exact_mut(64).step_by(3).for_each(|line| line[at] ^= flip);
        bytes
    };
    for original in [random, counted(1, 0), counted(0x80, 7), counted(0x80, 63)] {
        let wanted = checksum(&original, 5);
        for unit in [64, 1024, 4096] {
            let units = original.len() / unit;
            for first in 0..units {
                for second in [first + 1, first + 2, first + 3, first + 16, units - 1] {
                    let (a, b) = (first * unit, second * unit);
                    if second >= units || second <= first || original[a..a + unit] == original[b..b + unit] {
                        continue;
                    }
                    let mut bytes = original.clone();
                    let (left, right) = bytes.split_at_mut(b);
                    left[a..a + unit].swap_with_slice(&mut right[..unit]);
                    assert_ne!(checksum(&bytes, 5), wanted, "units {first} and {second} of {unit} bytes");
                }
            }
        }
    }
}

#[test]
fn length_and_key_show() {
    for fill in [0, 0xff] {
        let bytes = vec![fill; 5000];
        let sums: HashSet<u64> = (0..=bytes.len()).map(|len| checksum(&bytes[..len], 1)).collect();
        assert_eq!(sums.len(), bytes.len() + 1, "two lengths of the same bytes agree");
        let sums: HashSet<u64> = (0..5000).map(|key| checksum(&bytes, key)).collect();
        assert_eq!(sums.len(), 5000, "two keys agree");
    }
}

#[test]
fn every_bit_of_the_result_depends_on_every_word() {
    let original = random(8, 4096);
    let mut flips = [0_u32; 64];
    let mut changes = 0;
    for word in 0..original.len() / 8 {
        for bit in [0, 31, 32, 63] {
            let mut bytes = original.clone();
            bytes[word * 8 + bit / 8] ^= 1 << (bit % 8);
            let difference = checksum(&bytes, 2) ^ checksum(&original, 2);
            (0..64).for_each(|place| flips[place] += (difference >> place & 1) as u32);
            changes += 1;
        }
    }
    let (low, high) = (changes * 2 / 5, changes * 3 / 5);
    assert!(flips.iter().all(|count| (low..high).contains(count)), "{flips:?} of {changes}");
}

#[test]
#[should_panic(expected = "multiple of 64")]
fn a_part_after_a_partial_line_is_a_bug() {
    let mut sum = Checksummer::new(0);
    sum.absorb(&[1; 65]);
    sum.absorb(&[1; 64]);
}

#[test]
fn the_definition_stays() {
    // Checksums are stored in regions, so another result is another format version.
    assert_eq!(checksum(b"", 0), oracle(b"", 0));
    assert_eq!([checksum(b"", 0), checksum(b"cenote", 1), checksum(&[7; 4096], 2)], PINNED);
}

const PINNED: [u64; 3] = [579_019_224_570_982_230, 8_790_616_994_639_232_816, 3_613_807_005_830_810_375];
