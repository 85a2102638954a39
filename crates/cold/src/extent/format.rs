//! Bytes of extents and index files (docs/internals/cold-format.md#extents).

use crate::error::ColdError;
use crate::identity::{self, IDENTITY_BYTES, Identity};
use crate::record::{Head, Name, PAYLOAD_MAX, SECTOR};
use crate::sums::{Sealing, Sums, VERSION};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Ends of the names of an extent and of its index.
pub const EXTENT: &str = ".extent";
pub const INDEX: &str = ".index";
/// Bytes of an index line, and of the index's head.
pub const LINE_BYTES: usize = 64;
/// Bytes of an extent's head.
pub const HEAD_BYTES: u64 = SECTOR as u64;

const EXTENT_MAGIC: [u8; 8] = *b"CNTEXTNT";
const INDEX_MAGIC: [u8; 8] = *b"CNTINDEX";

/// The first line of both files. `id` binds an index to its extent.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct FileHead {
    magic: [u8; 8],
    version: u32,
    /// Short name of the key of `check`; 0 without a seal.
    key: u32,
    id: u64,
    reserved_too: [u64; 4],
    check: u64,
}

/// A line of an index: a record of the extent.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Line {
    hash: [u8; 16],
    /// First bytes of the namespace's fingerprint. The record has all of it.
    namespace: [u8; 16],
    offset: u64,
    length: u64,
    /// Short name of the key of `check`; 0 without a seal.
    key: u64,
    check: u64,
}

const _: () = assert!(size_of::<FileHead>() == LINE_BYTES && size_of::<Line>() == LINE_BYTES);

/// A record's place, as an index line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Key,
    pub offset: u64,
    pub length: u64,
}

/// A name, cut to what the list in memory keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    hash: [u8; 16],
    namespace: [u8; 16],
}

impl Key {
    pub fn of(name: &Name) -> Self {
        Self { hash: name.hash.0, namespace: name.namespace[..16].try_into().expect("half of it") }
    }
}

fn file_head(sums: &Sums, magic: [u8; 8], id: u64) -> [u8; LINE_BYTES] {
    let key = sums.key_name().into();
    let mut head = FileHead { magic, version: VERSION, key, id, reserved_too: [0; 4], check: 0 };
    head.check = head_check(sums, &head).expect("the key that seals");
    head.as_bytes().try_into().expect("its size")
}

fn head_check(sums: &Sums, head: &FileHead) -> Option<u64> {
    sums.digest(head.key as u16, b"cenote extent head v1", &head.as_bytes()[..LINE_BYTES - 8])
}

/// The head of an extent, with a copy of the place's identity.
pub fn extent_head(sums: &Sums, id: u64, identity: &Identity, sealing: &Sealing) -> Vec<u8> {
    let mut head = file_head(sums, EXTENT_MAGIC, id).to_vec();
    head.extend_from_slice(&identity::encode(identity, sealing));
    head.resize(SECTOR, 0);
    head
}

/// The number and the copied identity in an extent's head.
pub fn open_extent(bytes: &[u8], at: &str, sealing: &Sealing) -> Result<(u64, Identity), ColdError> {
    let damaged = |what| ColdError::Damaged { at: at.to_owned(), what };
    let copy = bytes.get(LINE_BYTES..LINE_BYTES + IDENTITY_BYTES).ok_or_else(|| damaged("it ends within its head"))?;
    let identity = identity::decode(copy, at, sealing)?;
    let id = open_head(&Sums::of_place(&identity.seed, sealing), EXTENT_MAGIC, bytes, at)?;
    Ok((id, identity))
}

/// The head of an index.
pub fn index_head(sums: &Sums, id: u64) -> [u8; LINE_BYTES] {
    file_head(sums, INDEX_MAGIC, id)
}

/// The id in an index's head.
pub fn open_index(sums: &Sums, bytes: &[u8], at: &str) -> Result<u64, ColdError> {
    open_head(sums, INDEX_MAGIC, bytes, at)
}

fn open_head(sums: &Sums, magic: [u8; 8], bytes: &[u8], at: &str) -> Result<u64, ColdError> {
    let damaged = |what| ColdError::Damaged { at: at.to_owned(), what };
    let (head, _) = FileHead::read_from_prefix(bytes).map_err(|_| damaged("it ends within its head"))?;
    if head.magic != magic {
        return Err(damaged("it is no extent, or no index of one"));
    }
    if head.version != VERSION {
        return Err(ColdError::Version { at: at.to_owned(), found: head.version, known: VERSION });
    }
    if Some(head.check) != head_check(sums, &head) {
        return Err(damaged("its head has a wrong checksum"));
    }
    Ok(head.id)
}

/// Check of a line. The id keeps a line of another file from counting.
fn line_check(sums: &Sums, line: &Line, id: u64) -> Option<u64> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend_from_slice(&line.as_bytes()[..LINE_BYTES - 8]);
    sums.digest(line.key as u16, b"cenote index line v1", &bytes)
}

/// The key of a file's head, by its short name.
pub fn key_of_head(bytes: &[u8]) -> Option<u16> {
    FileHead::read_from_prefix(bytes).ok().map(|(head, _)| head.key as u16)
}

/// The key of an index line, by its short name.
pub fn key_of_line(bytes: &[u8]) -> Option<u16> {
    Line::read_from_bytes(bytes).ok().map(|line| line.key as u16)
}

/// The line of a record at `offset`.
pub fn line(sums: &Sums, head: &Head, offset: u64, id: u64) -> [u8; LINE_BYTES] {
    let Key { hash, namespace } = Key::of(&head.name);
    let mut line = Line { hash, namespace, offset, length: head.length, key: sums.key_name().into(), check: 0 };
    line.check = line_check(sums, &line, id).expect("the key that seals");
    line.as_bytes().try_into().expect("its size")
}

/// The entry of a line; `None`: it is torn or damaged.
pub fn entry(sums: &Sums, bytes: &[u8], id: u64) -> Option<Entry> {
    let line = Line::read_from_bytes(bytes).ok()?;
    let is_sound = Some(line.check) == line_check(sums, &line, id)
        && line.length <= PAYLOAD_MAX
        && line.offset >= HEAD_BYTES
        && line.offset <= i64::MAX as u64
        && line.offset.is_multiple_of(SECTOR as u64);
    is_sound.then_some(Entry {
        key: Key { hash: line.hash, namespace: line.namespace },
        offset: line.offset,
        length: line.length,
    })
}

/// Name of an extent without its end. Names sort by age.
pub fn stem(number: u64, id: u64) -> String {
    format!("{number:020}-{id:016x}")
}

/// The number in the name of an extent; `None`: it is no such name.
pub fn number_of(stem: &str) -> Option<u64> {
    let (number, id) = stem.split_once('-')?;
    let is_name = number.len() == 20 && id.len() == 16 && number.bytes().all(|digit| digit.is_ascii_digit());
    if is_name { number.parse().ok() } else { None }
}

/// The name of an extent without its end, in the name of one of its files.
pub fn stem_of(file: &str) -> Option<&str> {
    let stem = file.strip_suffix(EXTENT).or_else(|| file.strip_suffix(INDEX))?;
    number_of(stem).map(|_| stem)
}
