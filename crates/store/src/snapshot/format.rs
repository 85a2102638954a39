//! Bytes of a snapshot's parts beside its blocks, which are records of L4.

use cenote_base::HashSeed;
use cenote_cold::record::SECTOR;
use cenote_mem::Flush;
use cenote_mem::region::RegionFile;
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
    #[error("{0}: it is no snapshot, or both copies of its settings are damaged")]
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
}

/// What a part's header says.
pub struct Head {
    pub kind: Kind,
    pub length: u64,
    sum: u64,
}

/// Bytes of a part with its header and padding.
pub const fn part_bytes(length: u64) -> u64 {
    (HEADER_BYTES as u64 + length).next_multiple_of(SECTOR as u64)
}

fn digest(context: &[u8], bytes: &[u8]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(context).update(bytes);
    u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("eight bytes"))
}

/// Encodes a part.
pub fn encode(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut part = Vec::with_capacity(part_bytes(payload.len() as u64) as usize);
    part.extend_from_slice(&MAGIC);
    part.extend_from_slice(&VERSION.to_le_bytes());
    part.extend_from_slice(&(kind as u32).to_le_bytes());
    part.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    part.extend_from_slice(&digest(b"cenote snapshot payload v1", payload).to_le_bytes());
    part.resize(HEADER_BYTES - 8, 0);
    part.extend_from_slice(&digest(b"cenote snapshot header v1", &part).to_le_bytes());
    part.extend_from_slice(payload);
    part.resize(part_bytes(payload.len() as u64) as usize, 0);
    part
}

/// What stands at a sector.
pub enum Found {
    Part(Head),
    OtherVersion(u32),
    Nothing,
}

/// Reads a part's header.
pub fn decode_head(bytes: &[u8]) -> Found {
    let Some(header) = bytes.get(..HEADER_BYTES).filter(|header| header[..8] == MAGIC) else { return Found::Nothing };
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    if half(8) != VERSION {
        return Found::OtherVersion(half(8));
    }
    let is_sound = word(HEADER_BYTES - 8) == digest(b"cenote snapshot header v1", &header[..HEADER_BYTES - 8]);
    match Kind::from_number(half(12)) {
        Some(kind) if is_sound && word(16) <= PAYLOAD_MAX => {
            Found::Part(Head { kind, length: word(16), sum: word(24) })
        }
        _ => Found::Nothing,
    }
}

/// A part's payload, if its checksum holds.
pub fn decode_payload<'a>(head: &Head, part: &'a [u8]) -> Option<&'a [u8]> {
    let payload = part.get(HEADER_BYTES..HEADER_BYTES + usize::try_from(head.length).ok()?)?;
    (digest(b"cenote snapshot payload v1", payload) == head.sum).then_some(payload)
}

/// Lines of `name=value`.
pub fn lines(text: &[u8]) -> Option<BTreeMap<&str, &str>> {
    std::str::from_utf8(text).ok()?.lines().map(|line| line.split_once('=')).collect()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
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
    pub(super) fn of(superblock: &Superblock, file: Option<RegionFile>, id: [u8; 16]) -> Self {
        let Superblock { config, region_bytes, flush, .. } = superblock.clone();
        let sharing = file.map(|file| Sharing { mode: file.mode, group: file.group });
        Self { region_bytes, flush, config, sharing, id }
    }

    pub(super) fn encode(&self) -> String {
        let Self { region_bytes, flush, config, sharing, id } = self;
        let mut text = format!(
            "region_bytes={region_bytes}\nflush={flush}\nchunk_bytes={}\nmin_block_bytes={}\nmax_hosts={}\n\
             workers_per_host={}\nhazard_lines_per_worker={}\nrecords_per_host={}\nevents_per_host={}\n\
             namespaces={}\nhosts_lock={}\ndesign={}\neviction={}\nseed={}\nsnapshot={}\n",
            config.chunk_bytes,
            config.min_block_bytes,
            config.max_hosts,
            config.workers_per_host,
            config.hazard_lines_per_worker,
            config.records_per_host,
            config.events_per_host,
            config.namespaces,
            lock_name(config.hosts_lock),
            config.design.name(),
            config.eviction,
            hex(&config.seed.0),
            hex(id),
        );
        if let Some(Sharing { mode, group }) = sharing {
            text += &format!("mode={mode:o}\ngroup={group}\n");
        }
        text
    }

    pub(super) fn decode(text: &[u8]) -> Option<Self> {
        fn number<T: FromStr>(lines: &BTreeMap<&str, &str>, name: &str) -> Option<T> {
            lines.get(name)?.parse().ok()
        }
        let lines = lines(text)?;
        let locks = [HostsLock::Bakery, HostsLock::Manager];
        let config = PoolConfig {
            chunk_bytes: number(&lines, "chunk_bytes")?,
            min_block_bytes: number(&lines, "min_block_bytes")?,
            max_hosts: number(&lines, "max_hosts")?,
            workers_per_host: number(&lines, "workers_per_host")?,
            hazard_lines_per_worker: number(&lines, "hazard_lines_per_worker")?,
            records_per_host: number(&lines, "records_per_host")?,
            events_per_host: number(&lines, "events_per_host")?,
            namespaces: number(&lines, "namespaces")?,
            hosts_lock: locks.into_iter().find(|lock| lines.get("hosts_lock") == Some(&lock_name(*lock)))?,
            design: Design::ALL.into_iter().find(|design| lines.get("design") == Some(&design.name()))?,
            eviction: number::<Eviction>(&lines, "eviction")?,
            seed: HashSeed(unhex(lines.get("seed")?)?),
            seal: cenote_base::seal::Seal::None,
            seal_key: 0,
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

/// A namespace and its quota.
pub struct SavedNamespace {
    pub record: NamespaceRecord,
    pub quota_bytes: u64,
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
        Some(Self { record, quota_bytes: info.quota_bytes })
    }

    pub fn encode(&self) -> String {
        let NamespaceRecord { fingerprint, label, block_bytes, block_tokens, num_layers } = &self.record;
        // A label may have any characters, and a line ends at its end.
        let label: String = label.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        format!(
            "fingerprint={}\nblock_bytes={block_bytes}\nblock_tokens={block_tokens}\nnum_layers={num_layers}\n\
             quota_bytes={}\nlabel={label}\n",
            hex(fingerprint),
            self.quota_bytes
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
        Some(Self { record, quota_bytes: number("quota_bytes")? })
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
