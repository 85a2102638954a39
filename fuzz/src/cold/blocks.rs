//! The blocks that are written. A name decides all that a block is, so that every reader detects a
//! wrong byte.

use cenote_base::prng::Prng;
use cenote_base::{BlockHash, HashSeed};
use cenote_cold::record::{Aligned, HEADER_BYTES, Head, Name, Sums, record_bytes};
use cenote_cold::{Backend, ColdError, Sealed};

/// The seed of the regions above.
pub const SEED: HashSeed = HashSeed([9; 32]);
/// Longest payload.
pub const LENGTH_MAX: u64 = 12 << 10;

/// The name of a number. Namespaces are equal in their first half, which is all that a list in memory
/// keeps.
pub fn name(number: u64) -> Name {
    let mut namespace = [2; 32];
    namespace[31] = (number % 2) as u8;
    Name { namespace, hash: BlockHash::from_words([number + 1, 0x5eed]) }
}

/// A name that nothing was written under, and that a list in memory takes for another one.
pub fn twin(number: u64) -> Name {
    let mut name = name(number);
    name.namespace[20] = 0xff;
    name
}

/// The number of a name.
pub fn number(name: &Name) -> u64 {
    name.hash.words()[0].wrapping_sub(1)
}

/// What is written under a name.
pub fn head(name: &Name) -> Head {
    let number = number(name);
    let lengths = [0, 64, 4096 - 128, 4096, LENGTH_MAX, 1000];
    Head {
        name: *name,
        length: lengths[(number % 6) as usize],
        depth: number as u32,
        encoding: (number % 3) as u8,
        names: [number * 3, number * 5],
    }
}

/// The payload of a name.
pub fn payload(name: &Name) -> Vec<u8> {
    let mut prng = Prng::new(number(name) ^ u64::from(name.namespace[31]) << 40);
    let mut bytes = vec![0; head(name).length as usize];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&prng.next_u64().to_le_bytes()[..part.len()]));
    bytes
}

/// Writes blocks.
///
/// # Errors
/// The place refuses.
pub fn write(place: &dyn Backend, names: &[Name]) -> Result<(), ColdError> {
    write_as(place, names, &SEED)
}

/// Writes blocks as a process above regions with this seed does. With another seed than [`SEED`] the
/// same names have other bytes.
///
/// # Errors
/// The place refuses.
pub fn write_as(place: &dyn Backend, names: &[Name], seed: &HashSeed) -> Result<(), ColdError> {
    let size = |name: &Name| record_bytes(head(name).length) as usize;
    let (mut memory, mut ranges, mut end) = (Aligned::default(), Vec::new(), 0);
    memory.resize(names.iter().map(size).sum());
    for name in names {
        let record = &mut memory.bytes_mut()[end..end + size(name)];
        let mut bytes = payload(name);
        bytes.iter_mut().for_each(|byte| *byte ^= seed.0[0] ^ SEED.0[0]);
        record[HEADER_BYTES..HEADER_BYTES + bytes.len()].copy_from_slice(&bytes);
        Sums::of(seed).seal(&head(name), record);
        ranges.push(end..end + size(name));
        end += size(name);
    }
    let sealed: Vec<Sealed<'_>> = names
        .iter()
        .zip(ranges)
        .map(|(name, range)| Sealed { head: head(name), bytes: &memory.bytes()[range] })
        .collect();
    place.write(&sealed, memory.bytes())
}

/// Reads a block. Returns whether it was found.
///
/// # Panics
/// It is whole and not what was written under its name.
pub fn read(place: &dyn Backend, name: &Name, memory: &mut Aligned) -> bool {
    match place.read(name, LENGTH_MAX, memory) {
        Ok(found) => {
            assert_eq!(found, head(name), "a block is described otherwise than it was written");
            let bytes = memory.bytes().get(HEADER_BYTES..).and_then(|bytes| bytes.get(..found.length as usize));
            assert!(bytes.is_some_and(|bytes| bytes == payload(name)), "block {} has other bytes", number(name));
            true
        }
        Err(error) => {
            let _ = error.to_string();
            false
        }
    }
}
