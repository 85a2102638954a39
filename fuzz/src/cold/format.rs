//! Bytes of L4's files, implemented a second time from docs/internals/cold-format.md alone.

use std::ops::Range;

/// Records begin at multiples of it.
pub const SECTOR: usize = 4096;
/// Bytes of an index line, of the heads of both files, and of the identity.
pub const LINE: usize = 64;
/// Ends of names.
pub const EXTENT: &str = ".extent";
pub const INDEX: &str = ".index";
/// Name of the identity.
pub const IDENTITY: &str = "tier";

/// What has a checksum of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The header of a record. The sum of its payload stays as it is.
    RecordHead,
    /// The head of an extent or of an index.
    FileHead,
    /// A line of the index with this number.
    Line(u64),
    /// The identity, or its copy in an extent.
    Identity,
}

impl Checked {
    /// Fields: places and widths.
    pub const fn fields(self) -> &'static [(usize, usize)] {
        match self {
            Self::RecordHead => &[
                (0, 8),
                (8, 4),
                (12, 4),
                (16, 8),
                (47, 1),
                (48, 8),
                (56, 8),
                (64, 8),
                (72, 8),
                (80, 8),
                (88, 8),
                (96, 8),
                (112, 8),
            ],
            Self::FileHead => &[(0, 8), (8, 4), (12, 4), (16, 8), (24, 8)],
            Self::Line(_) => &[(0, 8), (8, 8), (16, 8), (31, 1), (32, 8), (40, 8), (48, 8)],
            Self::Identity => &[(0, 8), (8, 4), (12, 4), (16, 8), (40, 8), (48, 8), (48, 8), (48, 8)],
        }
    }

    const fn bytes(self) -> usize {
        if matches!(self, Self::RecordHead) { 128 } else { LINE }
    }

    /// Makes the checksum hold in the place with this seed. Bytes that are too few stay as they are.
    pub fn seal(self, bytes: &mut [u8], seed: &[u8; 32]) {
        let Some(bytes) = bytes.get_mut(..self.bytes()) else { return };
        let (body, check) = bytes.split_at_mut(self.bytes() - 8);
        // An identity has the key of its own seed.
        let own: [u8; 32] = body[16..48].try_into().expect("32 bytes");
        let key = key_of(if self == Self::Identity { &own } else { seed });
        let sum = match self {
            Self::RecordHead => digest(&key, b"cenote record header v1", &[body]),
            Self::FileHead => digest(&key, b"cenote extent head v1", &[body]),
            Self::Line(id) => digest(&key, b"cenote index line v1", &[&id.to_le_bytes(), body]),
            Self::Identity => digest(&key, b"cenote tier v2", &[body]),
        };
        check.copy_from_slice(&sum);
    }
}

fn key_of(seed: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("cenote cold tier v2: key of a place's sums", seed)
}

fn digest(key: &[u8; 32], context: &[u8], parts: &[&[u8]]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(context);
    parts.iter().for_each(|part| _ = hasher.update(part));
    hasher.finalize().as_bytes()[..8].try_into().expect("eight bytes")
}

pub fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
}

/// The number in the head of an index or an extent.
pub fn id(file: &[u8]) -> u64 {
    word(file, 16)
}

/// Hash, namespace's first half, and the bytes of its record, of each line of an index.
pub fn lines(index: &[u8]) -> Vec<([u8; 16], [u8; 16], Range<u64>)> {
    let line = |line: &[u8]| {
        let record = (128 + word(line, 40)).next_multiple_of(SECTOR as u64);
        let hash = line[..16].try_into().expect("16 bytes");
        (hash, line[16..32].try_into().expect("16 bytes"), word(line, 32)..word(line, 32) + record)
    };
    index.chunks_exact(LINE).skip(1).map(line).collect()
}

/// Places of records in an extent.
pub fn records(extent: &[u8]) -> Vec<usize> {
    (0..extent.len()).step_by(SECTOR).filter(|&at| extent[at..].starts_with(b"CNTBLOCK")).collect()
}
