//! The flight recorder: the last operations on a region and the process that did each. It is
//! readable without any live process.
//!
//! Each host has a ring of lines that only it writes. A process takes the number of its record from
//! a word of the host's memory and stores the line without waiting for it, so recording costs the
//! data path nothing. Two processes that meet at one line tear it, and its check word then fails. A
//! repeated record without another in between is counted in the line of the first, so a host that
//! evicts all day keeps its other records.

use crate::error::PoolError;
use crate::log::Log;
use crate::log::ring::RingLine;
use crate::region::layout::{Layout, SHARDS};
use crate::region::lines::RecordLine;
use crate::region::superblock::Superblock;
use cenote_mem::{Fabric, HostLocal, Word};
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

/// The kind of a record. [`Record::what`] explains its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Event {
    /// A worker joined.
    Attached = 1,
    /// A worker left.
    Left = 2,
    /// A worker was found dead: its slot, its process id.
    WorkerDead = 3,
    /// A dead worker's resources were recovered: reservations freed, blocks published.
    Recovered = 4,
    /// A host was declared dead: its number, its life.
    HostDead = 5,
    /// This host began a life: the number of the life, the last life that was declared dead.
    LifeBegun = 6,
    /// A chunk was claimed: its number, bytes of its slots.
    ChunkTaken = 7,
    /// A dead host's chunk was adopted: its number, the host.
    ChunkAdopted = 8,
    /// A chunk was released: its number, bytes of its slots.
    ChunkGivenBack = 9,
    /// A lock's holder died in the critical section, and the guarded state was repaired: lock,
    /// intent.
    LockRepaired = 10,
    /// Garbage was collected: blocks freed, chunks released.
    Collected = 11,
    /// Blocks were evicted: how many were freed, how many stayed because of pins.
    Evicted = 12,
    /// A block was taken out because its payload has not its checksum: block, first word of its hash.
    ReadDamaged = 13,
    /// A publish exceeded its namespace's quota: namespace, bytes of the block.
    QuotaRefused = 14,
    /// A chunk that another host offered was taken: its number, the host.
    ChunkMoved = 15,
}

impl Event {
    const ALL: [Self; 15] = [
        Self::Attached,
        Self::Left,
        Self::WorkerDead,
        Self::Recovered,
        Self::HostDead,
        Self::LifeBegun,
        Self::ChunkTaken,
        Self::ChunkAdopted,
        Self::ChunkGivenBack,
        Self::LockRepaired,
        Self::Collected,
        Self::Evicted,
        Self::ReadDamaged,
        Self::QuotaRefused,
        Self::ChunkMoved,
    ];

    fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|event| *event as u64 == number)
    }

    /// The operands of one record that stands for `last` and `now`; `None` if each needs its own.
    fn again(self, last: [u64; 2], now: [u64; 2]) -> Option<[u64; 2]> {
        match self {
            Self::Evicted => Some([last[0].saturating_add(now[0]), last[1].saturating_add(now[1])]),
            Self::ChunkTaken | Self::ChunkAdopted | Self::ChunkMoved | Self::ChunkGivenBack if last[1] == now[1] => {
                Some(now)
            }
            Self::QuotaRefused if last[0] == now[0] => Some(now),
            // Damage of a large area must not push all other records out.
            Self::ReadDamaged => Some(now),
            _ => None,
        }
    }
}

/// One recorded operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Microseconds since 1970, by the host's clock.
    pub time_us: u64,
    /// Number of the host that wrote it.
    pub host: u8,
    /// The worker's slot; `None` for a process that had not joined.
    pub slot: Option<u16>,
    /// Process id, in the host's numbering.
    pub pid: u32,
    /// Number of the host's life.
    pub life: u64,
    /// Number of the record among its host's.
    pub sequence: u64,
    /// The kind of operation.
    pub event: Event,
    /// Numbers; the event defines their meaning.
    pub operands: [u64; 2],
    /// Number of consecutive occurrences.
    pub times: u64,
    /// The record as text.
    pub what: String,
}

/// Worker slot of a process that has not joined.
const NO_WORKER: u64 = 0xffff;

/// The records in the flight recorders of all hosts, by time. Needs no live process and writes
/// nothing.
///
/// # Errors
/// The region is unreadable (see [`Superblock::read`]).
pub fn history<F: Fabric>(fabric: &F) -> Result<Vec<Record>, PoolError> {
    let superblock = Superblock::read(fabric)?;
    let layout = Layout::new(&superblock.config, superblock.region_bytes)?;
    let salt = superblock.salt();
    let of_host = |host| RecordLine::all(fabric, salt, &layout, host).filter_map(move |line| Record::of(&line, host));
    let mut records: Vec<Record> = (0..layout.max_hosts).flat_map(of_host).collect();
    records.sort_by_key(|record| (record.time_us, record.host, record.sequence));
    Ok(records)
}

impl Record {
    /// `None`: the line is another host's or of an unknown kind.
    fn of(line: &RecordLine, host: u64) -> Option<Self> {
        let event = Event::from_number(line.kind & 0xff)?;
        let (slot, operands) = (line.writer >> 16 & 0xffff, [line.first, line.second]);
        (line.writer & 0xffff == host).then(|| Self {
            time_us: line.time,
            host: host as u8,
            slot: (slot != NO_WORKER).then_some(slot as u16),
            pid: (line.writer >> 32) as u32,
            life: line.kind >> 8,
            sequence: line.sequence,
            event,
            operands,
            times: line.times,
            what: words(event, operands, line.times),
        })
    }
}

fn words(event: Event, [first, second]: [u64; 2], times: u64) -> String {
    let before = || match times.saturating_sub(1) {
        0 => String::new(),
        others => format!(", and {others} before it"),
    };
    match event {
        Event::Attached => format!("attached, as holder {first} of its slot"),
        Event::Left => "left".to_owned(),
        Event::WorkerDead => format!("found worker slot {first} (process {second}) dead"),
        Event::Recovered => format!("recovered it: {first} reservations freed, {second} blocks published"),
        Event::HostDead => format!("declared life {second} of host {first} dead"),
        Event::LifeBegun if second > 0 => format!("began life {first} of the host; life {second} was declared dead"),
        Event::LifeBegun => format!("began life {first} of the host"),
        Event::ChunkTaken => format!("took chunk {first} for slots of {second} bytes{}", before()),
        Event::ChunkAdopted => format!("took chunk {first} over from dead host {second}{}", before()),
        Event::ChunkMoved => format!("took chunk {first} that host {second} offered{}", before()),
        Event::ChunkGivenBack => format!("gave chunk {first} with slots of {second} bytes back{}", before()),
        Event::LockRepaired => lock_words(first, second),
        Event::Collected => format!("collected garbage: {first} blocks freed, {second} chunks given back"),
        Event::Evicted => format!("evicted {first} blocks, kept {second} for their pins, in {times} goes"),
        Event::ReadDamaged => {
            format!("dropped block {first} (hash {second:016x}…), which had not its checksum{}", before())
        }
        Event::QuotaRefused => {
            format!("did not publish a block of {second} bytes over the quota of namespace {first}, {times} times")
        }
    }
}

fn lock_words(lock: u64, holder: u64) -> String {
    let name = match lock {
        0 => "membership lock".to_owned(),
        1 => "heap lock".to_owned(),
        2 => "table lock".to_owned(),
        3 => "chunk lock".to_owned(),
        _ if lock < 4 + SHARDS => format!("lock of index shard {}", lock - 4),
        _ => format!("user lock {}", lock.saturating_sub(4 + SHARDS)),
    };
    let (host, intent) = (holder & 0xff, holder >> 8);
    let aim = match intent.checked_sub(2) {
        Some(bucket) => format!("a probe from bucket {bucket} on"),
        None => "anything it guards".to_owned(),
    };
    format!("repaired the {name}, which a process of host {host} died with; it was changing {aim}")
}

impl<F: Fabric, H: HostLocal> Log<F, H> {
    /// Records an operation of this worker.
    pub(crate) fn record(&self, event: Event, first: u64, second: u64) {
        self.record_as(self.region.slot(), event, first, second);
    }

    /// As [`Log::record`], for a worker that has no slot yet.
    pub(crate) fn record_as(&self, slot: u64, event: Event, first: u64, second: u64) {
        if self.region.layout.records_per_host == 0 {
            return;
        }
        let next = self.next_number::<RecordLine>();
        let now = RecordLine {
            time: u64::try_from(self.region.area.unix_time().as_micros()).unwrap_or(u64::MAX),
            writer: self.region.host | slot.min(NO_WORKER) << 16 | u64::from(std::process::id()) << 32,
            kind: event as u64 | self.region.incarnation() << 8,
            first,
            second,
            times: 1,
            ..RecordLine::default()
        };
        let line = self
            .record_again(event, &now, next.load(Relaxed).wrapping_sub(1))
            .unwrap_or_else(|| RecordLine { sequence: next.fetch_add(1, Relaxed), ..now });
        self.put_unfenced(line);
    }

    /// The host's last record, changed to count `now` as well.
    fn record_again(&self, event: Event, now: &RecordLine, last: u64) -> Option<RecordLine> {
        let at = RecordLine::place(&self.region.layout, self.region.host, last);
        let line = self.region.read::<RecordLine>(at)?;
        let same = line.sequence == last && line.kind == now.kind;
        let [first, second] = event.again([line.first, line.second], [now.first, now.second]).filter(|_| same)?;
        Some(RecordLine { sequence: last, first, second, times: line.times.saturating_add(1), ..*now })
    }
}
