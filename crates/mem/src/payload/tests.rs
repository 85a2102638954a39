//! Seals against the crate's own AEAD and MAC, at every length around a piece.

use super::*;
use aegis::aegis128x2::{Aegis128X2, Aegis128X2Mac};
use cenote_base::prng::Prng;

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    (0..len).map(|_| prng.next_u64() as u8).collect()
}

fn key(seed: u64) -> PayloadKey {
    let bytes = random(seed, 32);
    PayloadKey { key: bytes[..16].try_into().expect("16"), nonce: bytes[16..].try_into().expect("16") }
}

fn lengths() -> impl Iterator<Item = usize> {
    [0, 1, 63, 64, 65, 128, 4096, 5000].into_iter().chain([PIECE_BYTES - 64, PIECE_BYTES, PIECE_BYTES + 64, 50_000])
}

/// Pieces of a payload as a copy makes them: whole lines, and at most [`PIECE_BYTES`].
fn pieces(bytes: &[u8], seed: u64) -> Vec<&[u8]> {
    let (mut prng, mut rest, mut pieces) = (Prng::new(seed), bytes, Vec::new());
    while !rest.is_empty() {
        let (piece, left) = rest.split_at(rest.len().min(64 * (1 + prng.below(PIECE_BYTES as u64 / 64) as usize)));
        pieces.push(piece);
        rest = left;
    }
    pieces
}

#[test]
fn pieces_are_sealed_as_the_whole_is() {
    for (seed, len) in (0..).zip(lengths()) {
        let (plain, key) = (random(seed, len), key(seed + 100));
        let aead = Aegis128X2::<16>::new(&key.key, &key.nonce);
        let (encrypted, tag) = aead.encrypt(&plain, &[]);
        let mut sum = PayloadSum::writing(&Guard::Encrypt(key.clone()));
        let stored: Vec<u8> = pieces(&plain, seed).into_iter().flat_map(|piece| sum.outgoing(piece).to_vec()).collect();
        assert!(stored == encrypted, "{len} bytes");
        let ours = sum.finish();
        assert_eq!(ours, Tag::of(tag), "{len} bytes");

        let mut mac = Aegis128X2Mac::<16>::new_with_nonce(&key.key, &key.nonce);
        mac.update(&plain);
        let mut sum = PayloadSum::writing(&Guard::Mac(key.clone()));
        pieces(&plain, seed).into_iter().for_each(|piece| assert!(sum.outgoing(piece) == piece));
        assert_eq!(sum.finish(), Tag::of(mac.finalize()), "{len} bytes");

        let mut back = Vec::new();
        let mut sum = PayloadSum::reading(&Guard::Encrypt(key.clone()));
        for piece in pieces(&stored, seed + 1) {
            let mut piece = piece.to_vec();
            sum.incoming(&mut piece);
            back.extend(piece);
        }
        assert!(back == plain && sum.matches(&ours), "{len} bytes");
        let mut sum = PayloadSum::reading(&Guard::Encrypt(key));
        sum.absorb(&stored);
        assert!(sum.matches(&ours), "{len} bytes, checked only");
    }
}

#[test]
fn another_byte_tag_key_or_length_does_not_match() {
    for guard in [Guard::Mac as fn(PayloadKey) -> Guard, Guard::Encrypt] {
        let plain = random(1, 5000);
        let mut sum = PayloadSum::writing(&guard(key(1)));
        let stored = sum.outgoing(&plain).to_vec();
        let tag = sum.finish();
        let matches = |bytes: &[u8], key: PayloadKey, tag: &Tag| {
            let mut sum = PayloadSum::reading(&guard(key));
            sum.incoming(&mut bytes.to_vec());
            sum.matches(tag)
        };
        assert!(matches(&stored, key(1), &tag));
        for at in [0, 15, 16, 63, 64, 2500, 4999] {
            let mut changed = stored.clone();
            changed[at] ^= 0x10;
            assert!(!matches(&changed, key(1), &tag), "byte {at}");
        }
        assert!(!matches(&stored[..4999], key(1), &tag));
        assert!(!matches(&stored, key(2), &tag));
        for bit in 0..64 {
            assert!(!matches(&stored, key(1), &Tag { low: tag.low ^ 1 << bit, ..tag }), "bit {bit}");
            assert!(!matches(&stored, key(1), &Tag { high: tag.high ^ 1 << bit, ..tag }), "bit {}", bit + 64);
        }
    }
}
