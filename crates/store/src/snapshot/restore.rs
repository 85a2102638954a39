//! Reads a snapshot.

use super::format::{
    Found, Head, Kind, SavedNamespace, SnapshotError, SnapshotSettings, count, decode_head, decode_object,
    decode_payload, part_bytes,
};
use super::restoring::{RESTORING_KEY, begin};
use super::seal::{admit, is_signed};
use cenote_base::seal::SealKeys;
use cenote_cold::ColdError;
use cenote_cold::record::{Aligned, Name, SECTOR, Sums, record_bytes};
use cenote_mem::{Fabric, LINE, files};
use cenote_pool::{Names, Namespace, NewBlock, Over, PLACED_KEYS, Pool, PoolError, Publish};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What became of a snapshot's parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Namespaces.
    pub namespaces: u64,
    /// Objects.
    pub objects: u64,
    /// Blocks.
    pub blocks: u64,
    /// Blocks and objects for which the region has no room.
    pub no_room: u64,
    /// Damaged parts: they are missing in the region. Stretches of the file that are no part count
    /// as one each.
    pub damaged: u64,
    /// Parts that the snapshot had; `None`: its end is missing.
    pub expected: Option<u64>,
}

impl Restored {
    /// Whether every part of the snapshot was read whole, whatever is there twice.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let read = self.namespaces + self.objects + self.blocks + self.no_room;
        self.damaged == 0 && self.expected == Some(read)
    }
}

/// The settings of a snapshot, from its beginning or its end.
///
/// # Errors
/// The file cannot be read, is no snapshot, is of another version, or is sealed.
pub fn open(path: &Path) -> Result<SnapshotSettings, SnapshotError> {
    open_with(path, None)
}

/// As [`open`], with the keys of a sealed snapshot. A region of these settings is sealed with the first
/// key, whichever of them sealed the snapshot.
///
/// # Errors
/// As [`open`], or the snapshot is not sealed or has another key.
pub fn open_with(path: &Path, keys: Option<&SealKeys>) -> Result<SnapshotSettings, SnapshotError> {
    Source::open(path)?.settings(keys, path)
}

/// Publishes a snapshot's content into the region of `pool`, which is empty, or was being restored
/// from this snapshot. Until all parts were read, the region is marked as [`Restoring`]. What is there
/// already stays.
///
/// # Errors
/// The file cannot be read, or as [`begin`]. Damaged parts are counted.
///
/// [`Restoring`]: super::Restoring
pub fn restore<F: Fabric>(pool: &Pool<F>, path: &Path) -> Result<Restored, SnapshotError> {
    let mut source = Source::open(path)?;
    begin(pool, &source.settings(pool.seal_keys(), path)?, path)?;
    let mut target = Target {
        pool,
        opened: HashMap::new(),
        limited: Vec::new(),
        seen: HashSet::new(),
        restored: Restored::default(),
    };
    let (mut at, mut was_nothing) = (0, false);
    while at < source.length {
        let step = source.next(at)?;
        let is_nothing = matches!(step, Step::Nothing | Step::OtherVersion(_));
        at += match step {
            Step::Part(head) => {
                target.enter(&head, source.payload(&head));
                part_bytes(head.length)
            }
            Step::Block(length) => {
                target.publish(&source.sums, source.memory.bytes_mut());
                record_bytes(length)
            }
            Step::Nothing | Step::OtherVersion(_) => {
                target.restored.damaged += u64::from(!was_nothing);
                SECTOR as u64
            }
        };
        was_nothing = is_nothing;
    }
    target.set_limits();
    pool.destroy_object(RESTORING_KEY)?;
    Ok(target.restored)
}

/// What stands at a place of the file.
enum Step {
    Part(Head),
    /// A record with a payload of so many bytes.
    Block(u64),
    OtherVersion(u32),
    Nothing,
}

struct Source {
    file: File,
    path: String,
    length: u64,
    /// Of the parts that are no settings; those of an unsealed snapshot until its settings are read.
    sums: Sums,
    /// The bytes of the last step: the whole part or record, as far as the file has it.
    memory: Aligned,
}

impl Source {
    fn open(path: &Path) -> Result<Self, SnapshotError> {
        let failed = |error| SnapshotError::File { path: path.display().to_string(), error };
        let file = files::open_own(path).map_err(SnapshotError::Refused)?;
        let length = file.metadata().map_err(failed)?.len();
        Ok(Self { file, path: path.display().to_string(), length, sums: Sums::PLAIN, memory: Aligned::default() })
    }

    /// Reads the settings, and knows the snapshot's sums from then on. A copy of the settings that is not
    /// authentic does not hide the other one.
    fn settings(&mut self, keys: Option<&SealKeys>, path: &Path) -> Result<SnapshotSettings, SnapshotError> {
        let (mut other_version, mut refused) = (None, None);
        // The end has few sectors.
        let last = self.length.saturating_sub(1) / SECTOR as u64;
        for sector in std::iter::once(0).chain((0..=last).rev().take(16)) {
            match self.next(sector * SECTOR as u64)? {
                Step::Part(head) if head.kind.is_open() => {
                    let Some(text) = self.payload(&head).map(<[u8]>::to_vec) else { continue };
                    let Some(mut settings) = SnapshotSettings::decode(&text) else { continue };
                    let sealing = match admit(&settings, keys, path) {
                        Ok(sealing) => sealing,
                        Err(error) => {
                            refused.get_or_insert(error);
                            continue;
                        }
                    };
                    let sums = Sums::of_snapshot(&settings.id, &sealing);
                    if is_signed(&sums, head.kind, &text) {
                        settings.config.seal_key = sealing.map_or(0, |(_, keys)| keys.sealing().0);
                        self.sums = sums;
                        return Ok(settings);
                    }
                }
                Step::OtherVersion(found) => other_version = Some(found),
                _ => {}
            }
        }
        let path = path.display().to_string();
        Err(match (refused, other_version) {
            (Some(error), _) => error,
            (None, Some(found)) => SnapshotError::Version { path, found },
            (None, None) => SnapshotError::NotASnapshot(path),
        })
    }

    /// Reads up to `bytes` bytes; the file may end earlier.
    fn read(&mut self, at: u64, bytes: u64) -> Result<(), SnapshotError> {
        let bytes = usize::try_from(bytes.min(self.length.saturating_sub(at))).unwrap_or(0);
        self.memory.resize(bytes);
        match self.file.read_exact_at(self.memory.bytes_mut(), at) {
            // A file that became shorter meanwhile, or a bad sector: damage of this part.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof && error.raw_os_error() != Some(5) => {
                Err(SnapshotError::File { path: self.path.clone(), error })
            }
            Err(_) => {
                self.memory.bytes_mut().fill(0);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn next(&mut self, at: u64) -> Result<Step, SnapshotError> {
        self.read(at, SECTOR as u64)?;
        match decode_head(&self.sums, self.memory.bytes()) {
            Found::Part(head) => {
                self.read(at, part_bytes(head.length))?;
                return Ok(Step::Part(head));
            }
            Found::OtherVersion(found) => return Ok(Step::OtherVersion(found)),
            Found::Nothing => {}
        }
        match self.sums.open_head(self.memory.bytes(), &self.path) {
            Ok(head) => {
                self.read(at, record_bytes(head.length))?;
                Ok(Step::Block(head.length))
            }
            Err(ColdError::Version { found, .. }) => Ok(Step::OtherVersion(found)),
            Err(_) => Ok(Step::Nothing),
        }
    }

    fn payload(&mut self, head: &Head) -> Option<&[u8]> {
        let payload = decode_payload(&self.sums, head, self.memory.bytes_mut())?;
        (!head.kind.is_open() || is_signed(&self.sums, head.kind, payload)).then_some(payload)
    }
}

struct Target<'a, F: Fabric> {
    pool: &'a Pool<F>,
    opened: HashMap<[u8; 32], Namespace>,
    /// Namespaces with their quota and kept bytes.
    limited: Vec<(Namespace, u64, u64)>,
    /// Parts that were read, so that one that is there twice does not stand for a missing one.
    seen: HashSet<Part>,
    restored: Restored,
}

#[derive(PartialEq, Eq, Hash)]
enum Part {
    Namespace([u8; 32]),
    Object(String),
    Block(Name),
}

impl<F: Fabric> Target<'_, F> {
    /// Enters a part that is no block; `None`: its payload is damaged.
    fn enter(&mut self, head: &Head, payload: Option<&[u8]>) {
        let entered = payload.and_then(|payload| match head.kind {
            Kind::Settings => Some(()),
            Kind::Namespace => self.open(payload),
            Kind::Object => {
                let (key, bytes) = decode_object(payload)?;
                if key == RESTORING_KEY || key.starts_with(PLACED_KEYS) {
                    return None;
                }
                if !self.seen.insert(Part::Object(key.to_owned())) {
                    return Some(());
                }
                // A program may have put a newer one while the region was being restored.
                match self.pool.put_object_over(key, bytes, Over::Nothing) {
                    Ok(_) => self.restored.objects += 1,
                    // No key of a region.
                    Err(PoolError::Config(_)) => return None,
                    Err(_) => self.restored.no_room += 1,
                }
                Some(())
            }
            Kind::End => {
                self.restored.expected = Some(count(payload)?);
                Some(())
            }
        });
        self.restored.damaged += u64::from(entered.is_none());
    }

    fn open(&mut self, payload: &[u8]) -> Option<()> {
        let saved = SavedNamespace::decode(payload)?;
        if !self.seen.insert(Part::Namespace(saved.record.fingerprint)) {
            return Some(());
        }
        let namespace = self.pool.namespace(&saved.record).ok()?;
        if saved.quota_bytes > 0 || saved.kept_bytes > 0 {
            self.limited.push((namespace.clone(), saved.quota_bytes, saved.kept_bytes));
        }
        self.opened.insert(saved.record.fingerprint, namespace);
        self.restored.namespaces += 1;
        Some(())
    }

    fn publish(&mut self, sums: &Sums, record: &mut [u8]) {
        let outcome = sums.open(record, None, "snapshot").ok().and_then(|(head, payload)| {
            let namespace = self.opened.get(&head.name.namespace)?;
            let suits = match head.encoding {
                0 => head.length == namespace.block_bytes,
                _ => head.length > 0 && head.length <= namespace.block_bytes && head.length.is_multiple_of(LINE),
            };
            let [name, parent] = head.names;
            let names = Names { name, parent };
            let new =
                NewBlock { encoding: head.encoding, names, ..NewBlock::new(namespace, head.name.hash, head.depth) };
            suits.then(|| (head.name, self.pool.publish(&new, &[payload])))
        });
        let is_new = outcome.as_ref().is_none_or(|(name, _)| self.seen.insert(Part::Block(*name)));
        match outcome.map(|(_, publish)| publish) {
            _ if !is_new => {}
            Some(Publish::Published | Publish::Duplicate) => self.restored.blocks += 1,
            Some(Publish::NoRoom | Publish::OverQuota) => self.restored.no_room += 1,
            None => self.restored.damaged += 1,
        }
    }

    /// Last: blocks over a quota that was lowered after they were published come back as well.
    fn set_limits(&self) {
        for (namespace, quota, kept) in &self.limited {
            let set = self.pool.set_quota(namespace.id, *quota).and_then(|()| self.pool.keep(namespace.id, *kept));
            if let Err(error) = set {
                tracing::warn!(%error, namespace = namespace.id.0, "the snapshot's limits of a model are not set");
            }
        }
    }
}
