//! The door: a [`Pool`] is one worker's view of a region.

use crate::config::AttachOptions;
use crate::error::PoolError;
use crate::layout::{Layout, NAMESPACES};
use crate::lines::{BlockState, NameLine, NamespaceLine, WorkerLine, unpack_text};
use crate::locks::MUTEXES;
use crate::membership::Member;
use crate::pins::PinTable;
use crate::stats::{Counter, Counters};
use crate::superblock::Superblock;
use cenote_base::{BlockIndex, NamespaceId};
use cenote_mem::host::HostError;
use cenote_mem::{Fabric, HostArea, HostLocal, HostSpec};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Block sizes a host can serve at once.
pub(crate) const CLASSES: usize = 64;

/// One worker's view of a region. Clones share the worker.
pub struct Pool<F: Fabric, H: HostLocal = HostArea>(pub(crate) Arc<Inner<F, H>>);

impl<F: Fabric, H: HostLocal> Clone for Pool<F, H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

pub(crate) struct Inner<F: Fabric, H: HostLocal> {
    pub fabric: F,
    pub superblock: Superblock,
    pub layout: Layout,
    /// Salt of line checks: the region's identity.
    pub salt: u64,
    pub host: u64,
    pub incarnation: u64,
    pub area: H,
    pub lock_timeout: Duration,
    pub pins: Mutex<PinTable>,
    pub member: Member<H>,
}

impl<F: Fabric> Pool<F> {
    /// Opens the region as a worker of `options.host`, cleaning up after workers of this host that died.
    ///
    /// # Errors
    /// The region is not ours to read (see [`Superblock::read`]), has another seed, or no worker slot is free.
    pub fn attach(fabric: F, options: &AttachOptions) -> Result<Self, PoolError> {
        let private = options.private;
        Self::attach_on(fabric, options, |name, spec| Ok(HostArea::open(name, spec, private)?.0))
    }

    /// Removes the host-local memory of a region that is being destroyed.
    ///
    /// # Errors
    /// It exists and cannot be removed.
    pub fn remove_host_memory(superblock: &Superblock) -> Result<(), PoolError> {
        Ok(HostArea::remove(&host_area_name(&superblock.config.uuid, 0))?)
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// As [`Pool::attach`], with host-local memory of the caller's making: `host` gets its name and shape.
    ///
    /// # Errors
    /// As for [`Pool::attach`].
    pub fn attach_on(
        fabric: F,
        options: &AttachOptions,
        host: impl FnOnce(&str, HostSpec) -> Result<H, HostError>,
    ) -> Result<Self, PoolError> {
        let superblock = Superblock::read(&fabric)?;
        if options.expected_seed.is_some_and(|seed| seed != superblock.config.seed) {
            return Err(PoolError::Seed);
        }
        let layout = Layout::new(&superblock.config, superblock.region_bytes)?;
        let number = u64::from(options.host.0);
        if number != 0 {
            // The locks between hosts are not built yet; without them two hosts would take the same chunks.
            return Err(PoolError::Config(format!(
                "host {number}: this version shares a region among the processes of one host, which is host 0"
            )));
        }
        let name = host_area_name(&superblock.config.uuid, options.host.0);
        let area = host(&name, host_spec(&layout))?;
        let uuid: [u64; 2] = zerocopy::transmute!(superblock.config.uuid);
        let inner = Inner {
            salt: uuid[0] ^ uuid[1].rotate_left(17),
            pins: Mutex::new(PinTable::new(layout.hazard_lines_per_worker)),
            lock_timeout: options.lock_timeout,
            incarnation: 0,
            member: Member::none(),
            fabric,
            superblock,
            layout,
            host: number,
            area,
        };
        Ok(Self(Arc::new(inner.join(&options.worker_name)?)))
    }

    /// What the region's creator chose.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.0.superblock
    }

    /// The fabric, for callers that lay buffers beside it.
    #[must_use]
    pub fn fabric(&self) -> &F {
        &self.0.fabric
    }

    /// Value of a counter of this host.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.0.counters().get(counter)
    }

    /// A summary for people and metrics. Counts are of one pass over the descriptors and may be a little
    /// apart from each other while others work.
    #[must_use]
    pub fn info(&self) -> PoolInfo {
        self.0.info()
    }
}

/// Name of a host's local memory for a region.
pub(crate) fn host_area_name(uuid: &[u8; 16], host: u8) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("cenote-{hex}-h{host}")
}

/// Shapes of the arrays in host-local memory:
/// words32 = slot owners, free-list links (one each per descriptor), chunk classes (per chunk), class heads, the chunk hint;
/// words64 = recency (per descriptor), class sizes, counters, the recency clock, whether it was rebuilt.
fn host_spec(layout: &Layout) -> HostSpec {
    let descriptors = layout.num_descriptors();
    HostSpec {
        mutexes: MUTEXES,
        words32: 2 * descriptors + layout.num_chunks + CLASSES as u64 + 1,
        words64: descriptors + CLASSES as u64 + Counter::ALL.len() as u64 + 2,
        slots: u32::try_from(layout.workers_per_host).expect("validated"),
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    fn descriptors(&self) -> usize {
        usize::try_from(self.layout.num_descriptors()).expect("checked when attaching")
    }

    /// Who holds each block slot: see [`crate::heap`].
    pub fn slot_owner(&self, block: BlockIndex) -> &AtomicU32 {
        &self.area.words32()[block.0 as usize]
    }

    pub fn slot_owners(&self) -> &[AtomicU32] {
        &self.area.words32()[..self.descriptors()]
    }

    pub fn free_link(&self, block: BlockIndex) -> &AtomicU32 {
        &self.area.words32()[self.descriptors() + block.0 as usize]
    }

    /// Class plus one of each chunk this host owns; 0: not owned.
    pub fn chunk_class(&self, chunk: u64) -> &AtomicU32 {
        &self.area.words32()[2 * self.descriptors() + chunk as usize]
    }

    /// First free block plus one of a class.
    pub fn class_head(&self, class: usize) -> &AtomicU32 {
        &self.area.words32()[2 * self.descriptors() + self.layout.num_chunks as usize + class]
    }

    /// No chunk before this one is free.
    pub fn chunk_hint(&self) -> &AtomicU32 {
        self.class_head(CLASSES)
    }

    pub fn last_access(&self, block: BlockIndex) -> &AtomicU64 {
        &self.area.words64()[block.0 as usize]
    }

    /// Slot bytes of a class; 0: unused.
    pub fn class_bytes(&self, class: usize) -> &AtomicU64 {
        &self.area.words64()[self.descriptors() + class]
    }

    pub fn counters(&self) -> Counters<'_> {
        let start = self.descriptors() + CLASSES;
        Counters(&self.area.words64()[start..start + Counter::ALL.len()])
    }

    pub fn access_clock(&self) -> &AtomicU64 {
        &self.area.words64()[self.descriptors() + CLASSES + Counter::ALL.len()]
    }

    /// 1 once this host-local memory agrees with the region; new memory is all zeros, and whoever made it may
    /// have died before it filled it.
    pub fn rebuilt(&self) -> &AtomicU64 {
        &self.area.words64()[self.descriptors() + CLASSES + Counter::ALL.len() + 1]
    }

    fn info(&self) -> PoolInfo {
        let mut namespaces = self.namespace_rows();
        let mut info = PoolInfo {
            region_bytes: self.superblock.region_bytes,
            data_bytes: self.layout.data_bytes(),
            chunk_bytes: self.layout.chunk_bytes,
            num_chunks: self.layout.num_chunks,
            fabric: if self.fabric.flush().is_coherent() { "coherent" } else { "flushed" },
            uuid: self.superblock.config.uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
            created: self.superblock.created,
            ..PoolInfo::default()
        };
        for chunk in 0..self.layout.num_chunks {
            let Some(line) = self.read_chunk(chunk) else { continue };
            info.chunks_taken += 1;
            for slot in 0..self.layout.slots(line.slot_bytes) {
                let block = BlockIndex(chunk * self.layout.descriptors_per_chunk + slot);
                let Some(descriptor) = self.read_descriptor(block) else { continue };
                match descriptor.block_state() {
                    Some(BlockState::Ready) => {
                        info.blocks_ready += 1;
                        info.bytes_ready += descriptor.extent().0;
                        if let Some(row) = namespaces.iter_mut().find(|row| row.id.0 == descriptor.namespace()) {
                            row.blocks += 1;
                            row.bytes += descriptor.extent().0;
                        }
                    }
                    Some(BlockState::Object) => info.objects += 1,
                    _ => {}
                }
            }
        }
        for host in 0..self.layout.max_hosts {
            let Some(line) = self.read_host(host) else { continue };
            for slot in 0..line.workers_high.min(self.layout.workers_per_host) {
                let at = self.layout.worker(host, slot);
                let Some(worker) = WorkerLine::open(self.fabric.load_line(at), at, self.salt) else { continue };
                if worker.epoch & 1 == 1 {
                    info.workers.push(WorkerInfo {
                        host: host as u8,
                        slot: slot as u16,
                        pid: worker.pid,
                        name: unpack_text(&worker.name),
                        joined: worker.joined,
                        alive: (host == self.host).then(|| self.area.slot_alive(slot as u32)),
                    });
                }
            }
        }
        info.namespaces = namespaces;
        info.counters = Counter::ALL.iter().map(|&c| (c.name(), self.counters().get(c))).collect();
        info
    }

    fn namespace_rows(&self) -> Vec<NamespaceInfo> {
        (0..NAMESPACES)
            .filter_map(|row| {
                let at = self.layout.namespace(row);
                let line = NamespaceLine::open(self.fabric.load_line(at), at, self.salt)?;
                let name = NameLine::open(self.fabric.load_line(at + 64), at + 64, self.salt);
                Some(NamespaceInfo {
                    id: NamespaceId(row as u16),
                    label: name.map(|name| name.text()).unwrap_or_default(),
                    fingerprint: line
                        .fingerprint
                        .iter()
                        .flat_map(|w| w.to_le_bytes())
                        .map(|b| format!("{b:02x}"))
                        .collect(),
                    block_bytes: line.block_bytes,
                    block_tokens: line.shape as u32,
                    blocks: 0,
                    bytes: 0,
                })
            })
            .collect()
    }
}

/// What [`Pool::info`] tells.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PoolInfo {
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Bytes for blocks.
    pub data_bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Chunks in all.
    pub num_chunks: u64,
    /// Chunks owned by some host.
    pub chunks_taken: u64,
    /// Readable blocks.
    pub blocks_ready: u64,
    /// Their payload bytes.
    pub bytes_ready: u64,
    /// Objects.
    pub objects: u64,
    /// Name of the fabric.
    pub fabric: &'static str,
    /// Identity of the region.
    pub uuid: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Models that share the region.
    pub namespaces: Vec<NamespaceInfo>,
    /// Processes that have it open.
    pub workers: Vec<WorkerInfo>,
    /// This host's counters by name.
    pub counters: BTreeMap<&'static str, u64>,
}

/// A namespace and what it holds.
#[derive(Clone, Debug, Serialize)]
pub struct NamespaceInfo {
    /// Row.
    pub id: NamespaceId,
    /// The model's name, for people.
    pub label: String,
    /// Hex of the fingerprint.
    pub fingerprint: String,
    /// Payload bytes of a block.
    pub block_bytes: u64,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Readable blocks.
    pub blocks: u64,
    /// Their payload bytes.
    pub bytes: u64,
}

/// A worker that joined and has not left.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerInfo {
    /// Its host.
    pub host: u8,
    /// Its slot there.
    pub slot: u16,
    /// Process id, as its host counts.
    pub pid: u64,
    /// Name it gave.
    pub name: String,
    /// Seconds since 1970.
    pub joined: u64,
    /// Whether it lives; unknown for other hosts.
    pub alive: Option<bool>,
}
