//! The identity of a place: its format version, the hash seed of its regions, and its limit
//! (docs/internals/cold-format.md#identity).
//!
//! Block hashes derive from a region's seed. So a new region finds the blocks of an earlier one only
//! if it has the same seed, and the place keeps it. The limit lies here as well: processes with
//! different settings must not remove each other's blocks.

use crate::disk::{Access, Disk};
use crate::error::ColdError;
use crate::sums::{Sealing, Sums, VERSION};
use cenote_base::HashSeed;
use cenote_base::seal::Seal;
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
    /// How the place is sealed, and the short name of the key of `check` in the upper half; 0 without a
    /// seal.
    seal: u32,
    seed: [u8; 32],
    bytes_max: u64,
    check: u64,
}

const _: () = assert!(size_of::<Bytes>() == IDENTITY_BYTES);

impl Bytes {
    const fn key(&self) -> u16 {
        (self.seal >> 16) as u16
    }

    fn own_check(&self, sums: &Sums) -> Option<u64> {
        sums.digest(self.key(), b"cenote tier v2", &self.as_bytes()[..IDENTITY_BYTES - 8])
    }

    /// Refuses a place with another seal than the region above it, or with a key that is not there.
    fn admit(&self, sealing: &Sealing, at: &str) -> Result<(), ColdError> {
        let (at, key) = (at.to_owned(), self.key());
        let found = Seal::from_number(u64::from(self.seal & 0xffff));
        let found = found.ok_or_else(|| ColdError::Damaged { at: at.clone(), what: "it has an unknown seal" })?;
        match (found, sealing) {
            (Seal::None, None) => Ok(()),
            (Seal::None, Some((seal, _))) => Err(ColdError::NotSealed { at, seal: *seal }),
            (seal, None) => Err(ColdError::Sealed { at, seal, key }),
            (found, Some((wanted, _))) if found != *wanted => Err(ColdError::OtherSeal { at, found, wanted: *wanted }),
            (_, Some((_, keys))) if keys.ids().all(|id| id.short() != key) => {
                Err(ColdError::OtherKey { at, given: keys.sealing(), key })
            }
            _ => Ok(()),
        }
    }
}

/// What a place keeps about itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Hash seed of the regions above.
    pub seed: HashSeed,
    /// Limit of the place's bytes, with headers and padding.
    pub bytes_max: u64,
}

/// The file or object of an identity, sealed by the first key.
#[must_use]
pub fn encode(identity: &Identity, sealing: &Sealing) -> [u8; IDENTITY_BYTES] {
    let Identity { seed, bytes_max } = *identity;
    let sums = Sums::of_place(&seed, sealing);
    let seal = sums.seal_mode() as u32 | u32::from(sums.key_name()) << 16;
    let mut bytes = Bytes { magic: MAGIC, version: VERSION, seal, seed: seed.0, bytes_max, check: 0 };
    bytes.check = bytes.own_check(&sums).expect("the key that seals");
    bytes.as_bytes().try_into().expect("their size")
}

/// The identity in a file or an object.
///
/// # Errors
/// The bytes are no identity, or of another version, or the place has another seal or key.
pub fn decode(bytes: &[u8], at: &str, sealing: &Sealing) -> Result<Identity, ColdError> {
    let damaged = |what| ColdError::Damaged { at: at.to_owned(), what };
    let (bytes, _) = Bytes::read_from_prefix(bytes).map_err(|_| damaged("it ends within the identity"))?;
    if bytes.magic != MAGIC {
        return Err(damaged("it is no identity of a cold tier; remove it, and what lies beside it is lost"));
    }
    if bytes.version != VERSION {
        return Err(ColdError::Version { at: at.to_owned(), found: bytes.version, known: VERSION });
    }
    bytes.admit(sealing, at)?;
    let sums = Sums::of_place(&HashSeed(bytes.seed), sealing);
    if bytes.own_check(&sums) != Some(bytes.check) || bytes.bytes_max == 0 {
        return Err(damaged("the identity has a wrong checksum; remove it, and what lies beside it is lost"));
    }
    Ok(Identity { seed: HashSeed(bytes.seed), bytes_max: bytes.bytes_max })
}

/// Whether an identity was sealed by an older key than the first.
pub(crate) fn is_outdated(bytes: &[u8], sealing: &Sealing) -> bool {
    let key = Bytes::read_from_prefix(bytes).map(|(bytes, _)| bytes.key());
    sealing.as_ref().is_some_and(|(_, keys)| key != Ok(keys.sealing().short()))
}

/// The identity of a directory that exists.
///
/// # Errors
/// It has none ([`ColdError::Gone`]), or one that is damaged, of another version, with
/// another seal, or not this user's.
pub fn read(disk: &dyn Disk, directory: &Path, sealing: &Sealing) -> Result<Identity, ColdError> {
    decode(&read_bytes(disk, directory)?, &directory.join(FILE).display().to_string(), sealing)
}

pub(crate) fn read_bytes(disk: &dyn Disk, directory: &Path) -> Result<[u8; IDENTITY_BYTES], ColdError> {
    let path = directory.join(FILE);
    let named = |error: io::Error| ColdError::of(path.display(), &error);
    let file = disk.open(&path, Access::Read, false).map_err(named)?;
    let mut bytes = [0; IDENTITY_BYTES];
    file.read_at(&mut bytes, 0).map_err(named)?;
    Ok(bytes)
}

/// Writes the identity of a directory. False: another process was first, and nothing is written.
///
/// # Errors
/// The directory cannot be written.
pub(crate) fn write(
    disk: &dyn Disk,
    directory: &Path,
    identity: &Identity,
    replaces: bool,
    sealing: &Sealing,
) -> Result<bool, ColdError> {
    let path = directory.join(FILE);
    match disk.publish(&path, &encode(identity, sealing), replaces) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(ColdError::of(path.display(), &error)),
        Ok(()) => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::LocalDisk;

    fn identity(seed: u8) -> Identity {
        Identity { seed: HashSeed([seed; 32]), bytes_max: 1 << 20 }
    }

    #[test]
    fn a_damaged_identity_is_refused() {
        let good = encode(&identity(7), &None);
        assert!(decode(&good, "test", &None).expect("it is whole") == identity(7));
        for at in 0..IDENTITY_BYTES {
            let mut bad = good;
            bad[at] ^= 4;
            assert!(decode(&bad, "test", &None).is_err(), "byte {at}");
            assert!(decode(&good[..at], "test", &None).is_err(), "cut at {at}");
        }
    }

    /// A tier of an earlier version has records without a key.
    #[test]
    fn an_identity_of_another_version_says_what_to_do() {
        let mut old = encode(&identity(7), &None);
        old[8] = 1;
        let error = decode(&old, "tier", &None).err().expect("another version").to_string();
        assert!(error.contains("version 1") && error.contains("remove the place"), "{error}");
    }

    /// A pipe under the identity's name kept `pool create --cold` waiting for ever.
    #[test]
    fn an_identity_that_is_no_regular_file_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("the name is free");
        let error = read(&LocalDisk, directory.path(), &None).err().expect("a pipe").to_string();
        assert!(error.contains("no regular file"), "{error}");
        std::fs::remove_file(&path).expect("it is there");
        // Another directory's identity, through a link.
        let other = tempfile::tempdir().expect("a directory");
        assert!(write(&LocalDisk, other.path(), &identity(2), false, &None).expect("it works"));
        std::os::unix::fs::symlink(other.path().join(FILE), &path).expect("the name is free");
        let error = read(&LocalDisk, directory.path(), &None).err().expect("a link").to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }
}
