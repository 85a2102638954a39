//! Bytes of a snapshot's parts beside its blocks, which are records of L4.

use cenote_base::HashSeed;
use cenote_base::seal::{KeyId, Seal, SealWord};
use cenote_cold::Sealing;
use cenote_cold::record::{SECTOR, Sums};
use cenote_mem::region::RegionFile;
use cenote_mem::{Flush, Guard, PayloadSum, Tag};
use cenote_pool::{Design, Eviction, HostsLock, NamespaceInfo, NamespaceRecord, PoolConfig, PoolError, Superblock};
use std::collections::BTreeMap;
use std::io;
use std::str::FromStr;
use thiserror::Error;

/// Version of parts.
pub const VERSION: u32 = 1;
/// Bytes of a part's header.
pub const HEADER_BYTES: usize = 64;
/// Longest payload of a part: an object fills a chunk at most.
pub const PAYLOAD_MAX: u64 = 512 << 20;

const MAGIC: [u8; 8] = *b"CNTPART\0";

/// Reasons for which a snapshot is not written or not restored.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// The system's words.
        error: io::Error,
    },
    /// The file has no settings that hold.
    #[error("{0}: it is no snapshot, or both copies of its settings are damaged or forged")]
    NotASnapshot(String),
    /// The file is of another version.
    #[error(
        "{path}: it has version {found}, this program reads version {VERSION}; restore it with the program that wrote it"
    )]
    Version {
        /// The file.
        path: String,
        /// Its version.
        found: u32,
    },
    /// The file is another user's, can be changed by other users, or is no regular file.
    #[error("{0}")]
    Refused(io::Error),
    /// The snapshot is sealed, and there is no key.
    #[error(
        "{path}: the snapshot is sealed (`{seal}`) with the key named {key}; name the file that has it with \
         --seal-key-file, CENOTE_SEAL_KEY_FILE or `seal_key_file`"
    )]
    Sealed {
        /// The file.
        path: String,
        /// How.
        seal: Seal,
        /// Name of its key.
        key: KeyId,
    },
    /// The snapshot's key is not among those that were given.
    #[error(
        "{path}: the snapshot is sealed with the key named {key}, and the key file does not have it (its first is \
         {given}); add that key below the one that seals"
    )]
    OtherKey {
        /// The file.
        path: String,
        /// Name of the first key.
        given: KeyId,
        /// Name of its key.
        key: KeyId,
    },
    /// A key was given for a snapshot without a seal.
    #[error(
        "{0}: a seal key is given, but the snapshot is not sealed, so others could have forged or read it; leave the \
         key out if you trust it, and save a region that was made with --seal"
    )]
    NotSealed(String),
    /// The region is sealed in another way.
    #[error("{path}: the snapshot has seal `{found}`, and the region `{region}`; restore it into a region of its own")]
    OtherSeal {
        /// The file.
        path: String,
        /// The snapshot's seal.
        found: Seal,
        /// The region's seal.
        region: Seal,
    },
    /// The region has another hash seed, so the snapshot's blocks have no meaning in it.
    #[error("{0}: the region has another hash seed than the snapshot; restore it into a region of its own")]
    OtherSeed(String),
    /// The region has content, and was not being restored from this snapshot.
    #[error("{0}: the region has other content: blocks or objects, and no restoration began in it")]
    NotEmpty(String),
    /// The region is being restored from another snapshot.
    #[error("the region is being restored from another snapshot, {0}")]
    OtherSnapshot(String),
    /// A region that is not complete is not saved.
    #[error("the region is being restored from {0}, and is not complete")]
    Restoring(String),
    /// The region refuses.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Kinds of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The region's settings.
    Settings = 1,
    /// A namespace.
    Namespace = 2,
    /// An object.
    Object = 3,
    /// The settings again, and the numbers of all parts.
    End = 4,
}

impl Kind {
    fn from_number(number: u32) -> Option<Self> {
        [Self::Settings, Self::Namespace, Self::Object, Self::End].into_iter().find(|kind| *kind as u32 == number)
    }

    /// Whether a sealed snapshot shows it without a key: it names the key. A line with a tag seals it.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Settings | Self::End)
    }
}

/// What a part's header says.
pub struct Head {
    pub kind: Kind,
    pub length: u64,
    header: [u8; HEADER_BYTES],
}

impl Head {
    fn tag(&self) -> Tag {
        Tag { low: word(&self.header, SUM), high: word(&self.header, SUM_HIGH) }
    }
}

/// Places in a header.
const SUM: usize = 24;
const SEAL_WORD: usize = 32;
const SUM_HIGH: usize = 40;
const CHECK: usize = HEADER_BYTES - 8;

fn word(header: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"))
}

fn put(header: &mut [u8], at: usize, word: u64) {
    header[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// Bytes of a part with its header and padding.
pub const fn part_bytes(length: u64) -> u64 {
    (HEADER_BYTES as u64 + length).next_multiple_of(SECTOR as u64)
}

/// The sums of a part of this kind in a snapshot with these sums.
const fn sums_of(kind: Kind, sums: &Sums) -> &Sums {
    if kind.is_open() { &Sums::PLAIN } else { sums }
}

fn check(sums: &Sums, header: &[u8]) -> Option<u64> {
    sums.digest(SealWord(word(header, SEAL_WORD)).key(), b"cenote snapshot header v1", &header[..CHECK])
}

/// Encodes a part. Its payload is sealed in the part.
pub fn encode(sums: &Sums, kind: Kind, payload: &[u8]) -> Vec<u8> {
    let sums = sums_of(kind, sums);
    let mut part = vec![0; part_bytes(payload.len() as u64) as usize];
    let (header, rest) = part.split_at_mut(HEADER_BYTES);
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(kind as u32).to_le_bytes());
    put(header, 16, payload.len() as u64);
    let rest = &mut rest[..payload.len()];
    rest.copy_from_slice(payload);
    if sums.seal_mode() == Seal::None {
        put(header, SUM, payload_digest(payload));
    } else {
        put(header, SEAL_WORD, sums.new_word().0);
        let mut sum = sum(sums, header, PayloadSum::writing).expect("the key that seals");
        sum.outgoing_in_place(rest);
        let Tag { low, high } = sum.finish();
        put(header, SUM, low);
        put(header, SUM_HIGH, high);
    }
    put(header, CHECK, check(sums, header).expect("the key that seals"));
    part
}

fn payload_digest(payload: &[u8]) -> u64 {
    Sums::PLAIN.digest(0, b"cenote snapshot payload v1", payload).expect("it has no key")
}

/// The sum of a sealed part's payload, without bytes yet. The key covers what the header says.
fn sum(sums: &Sums, header: &[u8], new: impl FnOnce(&Guard) -> PayloadSum) -> Option<PayloadSum> {
    let mut facts: [u8; CHECK] = header[..CHECK].try_into().expect("a header");
    put(&mut facts, SUM, 0);
    put(&mut facts, SUM_HIGH, 0);
    sums.guard(SealWord(word(header, SEAL_WORD)), b"", &facts).map(|guard| new(&guard))
}

/// What stands at a sector.
pub enum Found {
    Part(Head),
    OtherVersion(u32),
    Nothing,
}

/// Reads a part's header.
pub fn decode_head(sums: &Sums, bytes: &[u8]) -> Found {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>().filter(|header| header[..8] == MAGIC) else {
        return Found::Nothing;
    };
    let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    if half(8) != VERSION {
        return Found::OtherVersion(half(8));
    }
    let Some(kind) = Kind::from_number(half(12)) else { return Found::Nothing };
    let length = word(header, 16);
    let is_sound = check(sums_of(kind, sums), header) == Some(word(header, CHECK)) && length <= PAYLOAD_MAX;
    if is_sound { Found::Part(Head { kind, length, header: *header }) } else { Found::Nothing }
}

/// A part's payload, decrypted in its place, if its sum holds.
pub fn decode_payload<'a>(sums: &Sums, head: &Head, part: &'a mut [u8]) -> Option<&'a [u8]> {
    let payload = part.get_mut(HEADER_BYTES..HEADER_BYTES + usize::try_from(head.length).ok()?)?;
    let sums = sums_of(head.kind, sums);
    if sums.seal_mode() == Seal::None {
        return (payload_digest(payload) == head.tag().low).then_some(&*payload);
    }
    let mut sum = sum(sums, &head.header, PayloadSum::reading)?;
    sum.incoming(payload);
    sum.matches(&head.tag()).then_some(&*payload)
}

/// Lines of `name=value`.
pub fn lines(text: &[u8]) -> Option<BTreeMap<&str, &str>> {
    std::str::from_utf8(text).ok()?.lines().map(|line| line.split_once('=')).collect()
}

pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok().map(|()| bytes)
}

/// How to make the region again. Its identity is new.
#[derive(Clone, Debug)]
pub struct SnapshotSettings {
    /// Bytes of the region.
    pub region_bytes: u64,
    /// The flush instruction.
    pub flush: Flush,
    /// The other settings.
    pub config: PoolConfig,
    /// Permission bits of the region's file and its group; `None`: it had no file.
    pub sharing: Option<Sharing>,
    /// A random number that tells one snapshot from another. Snapshots of earlier programs have 0.
    pub id: [u8; 16],
}

/// The users that may open a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Permission bits of the region's file.
    pub mode: u32,
    /// Its group.
    pub group: u32,
}

const fn lock_name(lock: HostsLock) -> &'static str {
    match lock {
        HostsLock::Bakery => "bakery",
        HostsLock::Manager => "manager",
    }
}

impl SnapshotSettings {
    /// The settings of a region for a new snapshot.
    pub(super) fn of(superblock: &Superblock, file: Option<RegionFile>, id: [u8; 16], sealing: &Sealing) -> Self {
        let Superblock { mut config, region_bytes, flush, .. } = superblock.clone();
        if let Some((_, keys)) = sealing {
            config.seal_key = keys.sealing().0;
        }
        let sharing = file.map(|file| Sharing { mode: file.mode, group: file.group });
        Self { region_bytes, flush, config, sharing, id }
    }

    pub(super) fn encode(&self) -> String {
        let Self { region_bytes, flush, config, sharing, id } = self;
        let mut text = format!(
            "region_bytes={region_bytes}\nflush={flush}\nchunk_bytes={}\nmin_block_bytes={}\nmax_hosts={}\n\
             workers_per_host={}\nhazard_lines_per_worker={}\nrecords_per_host={}\nevents_per_host={}\n\
             removals_per_host={}\nrequests_per_host={}\nnamespaces={}\nhosts_lock={}\ndesign={}\neviction={}\nseed={}\nsnapshot={}\n",
            config.chunk_bytes,
            config.min_block_bytes,
            config.max_hosts,
            config.workers_per_host,
            config.hazard_lines_per_worker,
            config.records_per_host,
            config.events_per_host,
            config.removals_per_host,
            config.requests_per_host,
            config.namespaces,
            lock_name(config.hosts_lock),
            config.design.name(),
            config.eviction,
            hex::encode(config.seed.0),
            hex::encode(id),
        );
        if let Some(Sharing { mode, group }) = sharing {
            text += &format!("mode={mode:o}\ngroup={group}\n");
        }
        if config.seal != Seal::None {
            text += &format!("seal={}\nseal_key={}\n", config.seal, KeyId(config.seal_key));
        }
        text
    }

    pub(super) fn decode(text: &[u8]) -> Option<Self> {
        fn number<T: FromStr>(lines: &BTreeMap<&str, &str>, name: &str) -> Option<T> {
            lines.get(name)?.parse().ok()
        }
        let lines = lines(text)?;
        let locks = [HostsLock::Bakery, HostsLock::Manager];
        // Unsealed snapshots have neither.
        let seal = lines.get("seal").map_or(Some(Seal::None), |name| Seal::from_name(name))?;
        let seal_key = lines.get("seal_key").map_or(Some(0), |key| u64::from_str_radix(key, 16).ok())?;
        let config = PoolConfig {
            chunk_bytes: number(&lines, "chunk_bytes")?,
            min_block_bytes: number(&lines, "min_block_bytes")?,
            max_hosts: number(&lines, "max_hosts")?,
            workers_per_host: number(&lines, "workers_per_host")?,
            hazard_lines_per_worker: number(&lines, "hazard_lines_per_worker")?,
            records_per_host: number(&lines, "records_per_host")?,
            events_per_host: number(&lines, "events_per_host")?,
            // Earlier programs kept none.
            removals_per_host: lines.get("removals_per_host").map_or(Some(0), |lines| lines.parse().ok())?,
            requests_per_host: lines.get("requests_per_host").map_or(Some(0), |lines| lines.parse().ok())?,
            namespaces: number(&lines, "namespaces")?,
            hosts_lock: locks.into_iter().find(|lock| lines.get("hosts_lock") == Some(&lock_name(*lock)))?,
            design: Design::ALL.into_iter().find(|design| lines.get("design") == Some(&design.name()))?,
            eviction: number::<Eviction>(&lines, "eviction")?,
            seed: HashSeed(unhex(lines.get("seed")?)?),
            seal,
            seal_key,
            uuid: [0; 16],
            created: 0,
        };
        // Earlier programs wrote neither of these.
        let id = lines.get("snapshot").map_or(Some([0; 16]), |id| unhex(id))?;
        let mode = lines.get("mode").and_then(|mode| u32::from_str_radix(mode, 8).ok());
        let sharing = mode.filter(|mode| *mode <= 0o777 && mode & 0o600 == 0o600).zip(number(&lines, "group"));
        let sharing = sharing.map(|(mode, group)| Sharing { mode, group });
        Some(Self {
            region_bytes: number(&lines, "region_bytes")?,
            flush: number(&lines, "flush")?,
            config,
            sharing,
            id,
        })
    }
}

/// A namespace and its limits.
pub struct SavedNamespace {
    pub record: NamespaceRecord,
    pub quota_bytes: u64,
    pub kept_bytes: u64,
}

impl SavedNamespace {
    /// `None`: the row is damaged.
    pub fn of(info: &NamespaceInfo) -> Option<Self> {
        let record = NamespaceRecord {
            fingerprint: unhex(&info.fingerprint)?,
            label: info.label.clone(),
            block_bytes: info.block_bytes,
            block_tokens: info.block_tokens,
            num_layers: info.num_layers,
        };
        Some(Self { record, quota_bytes: info.quota_bytes, kept_bytes: info.kept_bytes })
    }

    pub fn encode(&self) -> String {
        let NamespaceRecord { fingerprint, label, block_bytes, block_tokens, num_layers } = &self.record;
        // A label may have any characters, and a line ends at its end.
        let label: String = label.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        format!(
            "fingerprint={}\nblock_bytes={block_bytes}\nblock_tokens={block_tokens}\nnum_layers={num_layers}\n\
             quota_bytes={}\nkept_bytes={}\nlabel={label}\n",
            hex::encode(fingerprint),
            self.quota_bytes,
            self.kept_bytes
        )
    }

    pub fn decode(text: &[u8]) -> Option<Self> {
        let lines = lines(text)?;
        let number = |name: &str| lines.get(name)?.parse::<u64>().ok();
        let record = NamespaceRecord {
            fingerprint: unhex(lines.get("fingerprint")?)?,
            label: (*lines.get("label")?).to_owned(),
            block_bytes: number("block_bytes")?,
            block_tokens: u32::try_from(number("block_tokens")?).ok()?,
            num_layers: u32::try_from(number("num_layers")?).ok()?,
        };
        // Earlier builds write no kept bytes.
        let kept_bytes = if lines.contains_key("kept_bytes") { number("kept_bytes")? } else { 0 };
        Some(Self { record, quota_bytes: number("quota_bytes")?, kept_bytes })
    }
}

/// An object: the length of its key, its key, its bytes.
pub fn encode_object(key: &str, bytes: &[u8]) -> Vec<u8> {
    [&(key.len() as u64).to_le_bytes(), key.as_bytes(), bytes].concat()
}

/// Longest key that a reader accepts; regions have shorter ones.
const KEY_BYTES_MAX: usize = 4096;

/// The key and the bytes of an object.
pub fn decode_object(payload: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = payload.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok().filter(|length| *length <= KEY_BYTES_MAX)?;
    let (key, bytes) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(key).ok()?, bytes))
}

/// The number of all parts in an end.
pub fn count(text: &[u8]) -> Option<u64> {
    let lines = lines(text)?;
    let number = |name: &str| lines.get(name)?.parse::<u64>().ok();
    number("saved_namespaces")?.checked_add(number("saved_objects")?)?.checked_add(number("saved_blocks")?)
}
