//! The identity of a place: its format version and the hash seed of its regions
//! (docs/internals/cold-format.md#identity).
//!
//! Block hashes derive from a region's seed. So a new region finds the blocks of an earlier one only
//! if it has the same seed, and the place keeps it.

use crate::disk::{Disk, draft};
use crate::error::ColdError;
use crate::record::{VERSION, digest};
use cenote_base::HashSeed;
use std::io;
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Name of the identity's file or object.
pub const FILE: &str = "tier";
/// Bytes of an identity.
pub const IDENTITY_BYTES: usize = 64;

const MAGIC: [u8; 8] = *b"CNTTIER\0";

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Bytes {
    magic: [u8; 8],
    version: u32,
    reserved: u32,
    seed: [u8; 32],
    reserved_too: u64,
    check: u64,
}

const _: () = assert!(size_of::<Bytes>() == IDENTITY_BYTES);

impl Bytes {
    fn own_check(&self) -> u64 {
        digest(b"cenote tier v1", &self.as_bytes()[..IDENTITY_BYTES - 8])
    }
}

/// The identity of a place for regions with this seed.
#[must_use]
pub fn encode(seed: &HashSeed) -> [u8; IDENTITY_BYTES] {
    let mut bytes = Bytes { magic: MAGIC, version: VERSION, reserved: 0, seed: seed.0, reserved_too: 0, check: 0 };
    bytes.check = bytes.own_check();
    bytes.as_bytes().try_into().expect("their size")
}

/// The seed of an identity.
///
/// # Errors
/// The bytes are no identity, or of another version.
pub fn decode(bytes: &[u8], at: &str) -> Result<HashSeed, ColdError> {
    let damaged = |what| ColdError::Damaged { at: at.to_owned(), what };
    let (bytes, _) = Bytes::read_from_prefix(bytes).map_err(|_| damaged("it ends within the identity"))?;
    if bytes.magic != MAGIC {
        return Err(damaged("it is no identity of a cold tier; remove it, and what lies beside it is lost"));
    }
    if bytes.version != VERSION {
        return Err(ColdError::Version { at: at.to_owned(), found: bytes.version, known: VERSION });
    }
    if bytes.check != bytes.own_check() {
        return Err(damaged("the identity has a wrong checksum; remove it, and what lies beside it is lost"));
    }
    Ok(HashSeed(bytes.seed))
}

/// The seed of a directory; one without identity gets `own`.
///
/// # Errors
/// The directory cannot be made, or its identity is damaged or of another version.
pub fn of_directory(disk: &dyn Disk, directory: &Path, own: &HashSeed) -> Result<HashSeed, ColdError> {
    let path = directory.join(FILE);
    let named = |error: &io::Error| ColdError::of(path.display(), error);
    disk.make_dir(directory).map_err(|error| ColdError::of(directory.display(), &error))?;
    for _ in 0..2 {
        match disk.open(&path, false, false) {
            Ok(file) => {
                let mut bytes = [0; IDENTITY_BYTES];
                file.read_at(&mut bytes, 0).map_err(|error| named(&error))?;
                return decode(&bytes, &path.display().to_string());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(named(&error)),
        }
        // The identity gets its name when it is complete, so no process reads half of one.
        let draft = draft(directory, unique()?);
        let written = disk.open(&draft, true, false).and_then(|file| {
            file.write_at(&encode(own), 0)?;
            file.sync()?;
            disk.link(&draft, &path)
        });
        let _ = disk.remove(&draft);
        match written {
            // Another process was first: read its identity.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(named(&error)),
            Ok(()) => return Ok(*own),
        }
    }
    Err(ColdError::Gone(path.display().to_string()))
}

/// The error of a place whose regions have another seed.
pub(crate) fn of_others(at: &str) -> ColdError {
    ColdError::Io {
        at: at.to_owned(),
        error: "it keeps blocks of regions with another hash seed; create the region with --cold, or use another place"
            .to_owned(),
    }
}

/// An unpredictable number.
pub(crate) fn unique() -> Result<u64, ColdError> {
    use std::io::Read;
    let mut bytes = [0; 8];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| ColdError::of("/dev/urandom", &error))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::LocalDisk;

    #[test]
    fn the_first_seed_of_a_directory_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let of = |seed| of_directory(&LocalDisk, directory.path(), &HashSeed([seed; 32])).expect("it works").0;
        assert_eq!((of(1), of(2)), ([1; 32], [1; 32]));
        assert_eq!(LocalDisk.list(directory.path()).expect("it is there").len(), 1, "no draft stays");
    }

    #[test]
    fn a_damaged_identity_is_refused() {
        let good = encode(&HashSeed([7; 32]));
        assert_eq!(decode(&good, "test").expect("it is whole").0, [7; 32]);
        for at in 0..IDENTITY_BYTES {
            let mut bad = good;
            bad[at] ^= 4;
            assert!(decode(&bad, "test").is_err(), "byte {at}");
            assert!(decode(&good[..at], "test").is_err(), "cut at {at}");
        }
    }
}
