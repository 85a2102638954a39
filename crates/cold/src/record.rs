//! A record: a block with its full name, as extents, objects and snapshots store it
//! (docs/internals/cold-format.md#record).

use crate::error::ColdError;
pub use crate::sums::{Sealing, Sums, VERSION};
use cenote_base::BlockHash;
use cenote_base::seal::SealWord;
use cenote_mem::{Guard, PayloadSum, Tag};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 128;
/// Unit of direct I/O: records begin at multiples of it, and are padded to it.
pub const SECTOR: usize = 4096;
/// Longest payload that a reader allocates memory for: the largest chunk of a region.
pub const PAYLOAD_MAX: u64 = 512 << 20;

const MAGIC: [u8; 8] = *b"CNTBLOCK";
const NO_KEY: &str = "it is sealed with a key that this process does not have";

/// All that names KV. The hash already covers the region's seed, the namespace's fingerprint and
/// all tokens up to the block's end; the fingerprint is stored and compared as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// Fingerprint of the namespace.
    pub namespace: [u8; 32],
    /// The block's hash.
    pub hash: BlockHash,
}

/// What a record says about its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The block's name.
    pub name: Name,
    /// Bytes of its payload.
    pub length: u64,
    /// Number of the block in its sequence.
    pub depth: u32,
    /// Encoding of the payload, as in the region.
    pub encoding: u8,
    /// The block's own name and its parent's, by which other programs know it; 0: none.
    pub names: [u64; 2],
}

/// The header's bytes; integers are little-endian.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: u32,
    encoding: u32,
    namespace: [u8; 32],
    hash: [u8; 16],
    length: u64,
    depth: u64,
    names: [u64; 2],
    /// Names the key of a sealed payload; 0 without a seal.
    seal_word: u64,
    /// Second half of a sealed payload's tag.
    tag_high: u64,
    /// The first half, or the checksum.
    payload_sum: u64,
    check: u64,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

impl Sums {
    /// Seals the payload of `record` in its place, and writes the header over the first bytes.
    ///
    /// # Panics
    /// The record is shorter than its header and payload (a bug in the caller).
    pub fn seal(&self, head: &Head, record: &mut [u8]) {
        let end = HEADER_BYTES + usize::try_from(head.length).expect("a payload in memory");
        let mut header = Header::of(head, self.version());
        header.seal_word = self.new_word().0;
        let mut sum = header.sum(self, PayloadSum::writing).expect("the key that seals");
        sum.outgoing_in_place(&mut record[HEADER_BYTES..end]);
        Tag { low: header.payload_sum, high: header.tag_high } = sum.finish();
        header.check = header.own_check(self).expect("the key that seals");
        record[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        record[end..].fill(0);
    }

    /// Checks a record, decrypts its payload in its place, and returns its head and payload.
    ///
    /// # Errors
    /// The record is damaged, ends early, is of another version, or is not `wanted`, or this process does
    /// not have its key. The payload's bytes are then arbitrary.
    pub fn open<'a>(
        &self,
        record: &'a mut [u8],
        wanted: Option<&Name>,
        at: &str,
    ) -> Result<(Head, &'a [u8]), ColdError> {
        let damaged = |what| ColdError::Damaged { at: at.to_owned(), what };
        let (header, head) = self.header(record, at).map(|header| (header, header.head()))?;
        if wanted.is_some_and(|wanted| *wanted != head.name) {
            return Err(damaged("the record is another block's"));
        }
        let end = HEADER_BYTES + head.length as usize;
        let payload = record.get_mut(HEADER_BYTES..end).ok_or_else(|| damaged("it ends before its record does"))?;
        let mut sum = header.sum(self, PayloadSum::reading).ok_or_else(|| damaged(NO_KEY))?;
        sum.incoming(payload);
        if !sum.matches(&Tag { low: header.payload_sum, high: header.tag_high }) {
            return Err(damaged("a record's payload has a wrong checksum"));
        }
        Ok((head, payload))
    }

    /// Reads a record's header, without its payload.
    ///
    /// # Errors
    /// The bytes are no header of this version, or this process does not have its key.
    pub fn open_head(&self, record: &[u8], at: &str) -> Result<Head, ColdError> {
        Ok(self.header(record, at)?.head())
    }

    fn header(&self, record: &[u8], at: &str) -> Result<Header, ColdError> {
        let damaged = |what| ColdError::Damaged { at: at.to_owned(), what };
        let (header, _) = Header::read_from_prefix(record).map_err(|_| damaged("it ends within a record's header"))?;
        if header.magic != MAGIC {
            return Err(damaged("there is no record"));
        }
        if header.version != self.version() {
            return Err(ColdError::Version { at: at.to_owned(), found: header.version, known: self.version() });
        }
        if header.own_check(self).ok_or_else(|| damaged(NO_KEY))? != header.check {
            return Err(damaged("a record's header has a wrong checksum"));
        }
        if header.length > PAYLOAD_MAX || header.depth > u32::MAX.into() || header.encoding > u8::MAX.into() {
            return Err(damaged("a record's header has impossible values"));
        }
        Ok(header)
    }
}

/// Bytes of a record with a payload of so many bytes, with its padding.
#[must_use]
pub const fn record_bytes(length: u64) -> u64 {
    (HEADER_BYTES as u64 + length).next_multiple_of(SECTOR as u64)
}

impl Header {
    /// A header without sums.
    fn of(head: &Head, version: u32) -> Self {
        Self {
            magic: MAGIC,
            version,
            encoding: head.encoding.into(),
            namespace: head.name.namespace,
            hash: head.name.hash.0,
            length: head.length,
            depth: head.depth.into(),
            names: head.names,
            seal_word: 0,
            tag_high: 0,
            payload_sum: 0,
            check: 0,
        }
    }

    /// A sum of the payload, without bytes yet; `None`: this process does not have its key. The key
    /// covers the name and all other facts, so a payload under another header has a wrong sum.
    fn sum(&self, sums: &Sums, new: impl FnOnce(&Guard) -> PayloadSum) -> Option<PayloadSum> {
        let facts = Self { tag_high: 0, ..*self };
        let facts = &facts.as_bytes()[..HEADER_BYTES - 16];
        sums.guard(SealWord(self.seal_word), b"cenote record payload v1", facts).map(|guard| new(&guard))
    }

    fn own_check(&self, sums: &Sums) -> Option<u64> {
        let key = SealWord(self.seal_word).key();
        sums.digest(key, b"cenote record header v1", &self.as_bytes()[..HEADER_BYTES - 8])
    }

    fn head(&self) -> Head {
        Head {
            name: Name { namespace: self.namespace, hash: BlockHash(self.hash) },
            length: self.length,
            depth: self.depth as u32,
            encoding: self.encoding as u8,
            names: self.names,
        }
    }
}

/// Memory for records that begins at a multiple of [`SECTOR`], as direct I/O needs it.
#[derive(Default)]
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// Changes the length; the content is arbitrary afterwards.
    pub fn resize(&mut self, length: usize) {
        if self.memory.len() < self.start + length {
            self.memory = vec![0; length + SECTOR];
            self.start = self.memory.as_ptr().align_offset(SECTOR);
        }
        self.length = length;
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::HashSeed;

    /// As unsealed snapshots have them.
    fn seal(head: &Head, record: &mut [u8]) {
        Sums::PLAIN.seal(head, record);
    }

    fn open<'a>(record: &'a mut [u8], wanted: Option<&Name>, at: &str) -> Result<(Head, &'a [u8]), ColdError> {
        Sums::PLAIN.open(record, wanted, at)
    }

    fn sample() -> (Head, Vec<u8>) {
        let name = Name { namespace: [3; 32], hash: BlockHash([5; 16]) };
        let head = Head { name, length: 192, depth: 7, encoding: 2, names: [11, 13] };
        let mut record = vec![0; record_bytes(192) as usize];
        record[HEADER_BYTES..HEADER_BYTES + 192].iter_mut().zip(1..).for_each(|(byte, value)| *byte = value);
        seal(&head, &mut record);
        (head, record)
    }

    #[test]
    fn a_record_returns_what_was_sealed() {
        let (head, mut record) = sample();
        let (found, payload) = open(&mut record, Some(&head.name), "test").expect("it is whole");
        assert_eq!((found, payload.len(), payload[0]), (head, 192, 1));
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_a_miss() {
        let (head, record) = sample();
        let used = HEADER_BYTES + head.length as usize;
        for at in 0..used {
            for change in [1, 0x80, 0xff] {
                let mut torn = record.clone();
                torn[at] ^= change;
                assert!(open(&mut torn, None, "test").is_err(), "byte {at} changed by {change}");
            }
            assert!(open(&mut record.clone()[..at], None, "test").is_err(), "cut at {at}");
        }
    }

    #[test]
    fn another_name_is_a_miss() {
        let (head, mut record) = sample();
        for name in [Name { namespace: [4; 32], ..head.name }, Name { hash: BlockHash([6; 16]), ..head.name }] {
            assert!(open(&mut record, Some(&name), "test").is_err());
        }
        // The payload of one record under the header of another.
        let mut other = record.clone();
        seal(&Head { depth: 8, ..head }, &mut other);
        other[HEADER_BYTES..].copy_from_slice(&record[HEADER_BYTES..]);
        assert!(open(&mut other, None, "test").is_ok(), "equal payloads");
        other[..HEADER_BYTES - 16].copy_from_slice(&record[..HEADER_BYTES - 16]);
        assert!(open(&mut other, None, "test").is_err(), "a header of two records");
    }

    #[test]
    fn another_version_is_named() {
        let (_, mut record) = sample();
        record[8] = 9;
        let error = open(&mut record, None, "file").expect_err("another version");
        assert!(matches!(error, ColdError::Version { found: 9, .. }), "{error}");
    }

    /// Sums had no key: a process that knew nothing of a place made records that others believed.
    #[test]
    fn a_record_counts_only_with_the_key_of_its_place() {
        let (head, mut record) = sample();
        let [one, other] = [1, 2].map(|seed| Sums::of(&HashSeed([seed; 32])));
        one.seal(&head, &mut record);
        assert!(one.open(&mut record, Some(&head.name), "test").is_ok());
        assert!(other.open(&mut record, None, "test").is_err(), "another place");
        assert!(open(&mut record, None, "test").is_err(), "a snapshot");
        seal(&head, &mut record);
        record[8] = VERSION as u8;
        assert!(one.open(&mut record, None, "test").is_err(), "no key");
        assert!(!format!("{one:?}").contains("key"));
    }

    #[test]
    fn aligned_memory_stays_aligned_as_it_grows() {
        let mut memory = Aligned::default();
        for length in [1, SECTOR, 10, 5 * SECTOR, 0, 9 * SECTOR] {
            memory.resize(length);
            assert_eq!((memory.bytes().len(), memory.bytes().as_ptr().align_offset(SECTOR)), (length, 0));
        }
    }
}
