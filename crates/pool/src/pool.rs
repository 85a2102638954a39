//! The door: a [`Pool`] is one worker's view of a region.

use crate::error::PoolError;
use crate::health::Breaker;
use crate::membership::{Beats, Member};
use crate::memory::Allocated;
use crate::pins::PinTable;
use crate::plain::Held;
use crate::region::Region;
use crate::region::area::{area_opener, hex, sweep_host_memory};
use crate::region::config::AttachOptions;
use crate::region::counters::Counter;
use crate::region::layout::NAMESPACES;
use crate::region::lines::{BlockState, NameLine, NamespaceLine, WorkerLine, unpack_text};
use crate::region::superblock::Superblock;
use crate::strays::Strays;
use cenote_base::{BlockIndex, NamespaceId};
use cenote_mem::host::HostError;
use cenote_mem::{Fabric, HostArea, HostLocal, HostSpec, LINE, Mapped};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A pool of one host or of several, as its region says, over a mapped file or device.
pub type HostPool = Pool<Arc<Mapped>>;

/// One worker's view of a region. Clones share the worker.
pub struct Pool<F: Fabric, H: HostLocal = HostArea>(pub(crate) Arc<Inner<F, H>>);

impl<F: Fabric, H: HostLocal> Clone for Pool<F, H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

pub(crate) struct Inner<F: Fabric, H: HostLocal> {
    pub region: Arc<Region<F, H>>,
    pub pins: PinTable,
    pub beats: Beats,
    pub breaker: Breaker,
    /// Counts that this worker raised, in the plain design.
    pub held: Mutex<Held>,
    pub allocated: Allocated,
    pub member: Member<H>,
}

impl<F: Fabric, H: HostLocal> Deref for Inner<F, H> {
    type Target = Region<F, H>;

    fn deref(&self) -> &Self::Target {
        &self.region
    }
}

impl<F: Fabric> Pool<F> {
    /// Opens the region as a worker of `options.host`, cleaning up after workers of this host that died.
    ///
    /// # Errors
    /// The region is not ours to read (see [`Superblock::read`]), has another seed, or no worker slot is free.
    pub fn attach(fabric: F, options: &AttachOptions) -> Result<Self, PoolError> {
        if !options.private {
            let _ = sweep_host_memory();
        }
        let area = area_opener(&fabric, options);
        Self::attach_on(fabric, options, area)
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
        let inner = Inner::over(Region::open(fabric, options, host)?);
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
        let inner = &*self.0;
        inner.info(|host, slot| (host == inner.host).then(|| inner.area.slot_alive(slot)))
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Whether calls of the serving path must leave the region alone: this process was forked by the member, or the member
    /// has found damage.
    #[inline]
    pub(crate) fn is_out(&self) -> bool {
        self.breaker.is_out() || self.area.is_inherited()
    }

    /// A view of the region that has not joined it.
    pub(crate) fn over(region: Region<F, H>) -> Self {
        Self {
            pins: PinTable::new(region.layout.hazard_lines_per_worker),
            beats: Beats::default(),
            breaker: Breaker::default(),
            held: Mutex::default(),
            allocated: Allocated::default(),
            member: Member::none(),
            region: Arc::new(region),
        }
    }

    /// `alive` tells whether the worker of a host's slot lives, where that is known.
    pub(crate) fn info(&self, alive: impl Fn(u64, u32) -> Option<bool>) -> PoolInfo {
        self.refresh_tables();
        let mut namespaces = self.namespace_rows();
        let mut hosts: Vec<HostInfo> = (0..self.layout.max_hosts).map(|host| self.host_info(host)).collect();
        let mut info = PoolInfo {
            region_bytes: self.superblock.region_bytes,
            data_bytes: self.layout.data_bytes(),
            chunk_bytes: self.layout.chunk_bytes,
            num_chunks: self.layout.num_chunks,
            fabric: if self.fabric.flush().is_coherent() { "coherent" } else { "flushed" },
            uuid: hex(&self.superblock.config.uuid),
            created: self.superblock.created,
            design: self.superblock.config.design.name(),
            eviction: self.superblock.config.eviction.policy().name(),
            pins_per_worker: self.layout.hazard_lines_per_worker * u64::from(crate::pins::SLOTS_PER_LINE),
            ..PoolInfo::default()
        };
        self.refresh_chunks();
        for chunk in 0..self.layout.num_chunks {
            let strays = self.strays(chunk);
            info.chunks_lost += u64::from(strays != Strays::Never);
            info.chunks_with_strays += u64::from(strays == Strays::Possible);
            let Some(line) = self.read_chunk(chunk) else { continue };
            let first = chunk * self.layout.descriptors_per_chunk;
            self.refresh_descriptors(first..first + self.layout.slots(line.slot_bytes));
            info.chunks_taken += 1;
            hosts.get_mut((line.owner - 1) as usize).into_iter().for_each(|host| host.chunks += 1);
            for slot in 0..self.layout.slots(line.slot_bytes) {
                let block = BlockIndex(first + slot);
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
            let row = &mut hosts[host as usize];
            let slots = line.workers_high.min(self.layout.workers_per_host);
            self.refresh_range(self.layout.worker(host, 0), self.layout.worker(host, slots));
            for slot in 0..slots {
                let at = self.layout.worker(host, slot);
                let Some(worker) = self.read::<WorkerLine>(at) else { continue };
                if worker.epoch & 1 == 1 {
                    info.workers.push(WorkerInfo {
                        host: host as u8,
                        slot: slot as u16,
                        pid: worker.pid,
                        name: unpack_text(&worker.name),
                        joined: worker.joined,
                        alive: alive(host, slot as u32),
                    });
                    row.workers += 1;
                }
            }
            // Where its workers' claims can be seen they decide; elsewhere its heart does.
            let of_host = info.workers.iter().filter(|worker| u64::from(worker.host) == host);
            let seen: Vec<bool> = of_host.filter_map(|worker| worker.alive).collect();
            if !seen.is_empty() || alive(host, 0).is_some() {
                row.alive = Some(seen.contains(&true));
            }
        }
        info.hosts = hosts.into_iter().filter(|host| host.incarnation > 0 || host.chunks > 0).collect();
        info.namespaces = namespaces;
        info.counters = Counter::ALL.iter().map(|&c| (c.name(), self.counters().get(c))).collect();
        info
    }

    /// What is known of a host but its workers and chunks.
    fn host_info(&self, host: u64) -> HostInfo {
        let line = self.read_host(host).unwrap_or_default();
        let marked_dead = self.is_dead(host, line.incarnation);
        let beat = self.beat(host);
        let silent_ms = (beat.incarnation != 0 && beat.incarnation == line.incarnation).then(|| {
            let still = beat.heartbeat == line.heartbeat;
            let silent = self.area.now().saturating_sub(Duration::from_nanos(beat.since));
            if still { u64::try_from(silent.as_millis()).unwrap_or(u64::MAX) } else { 0 }
        });
        let timeout_ms = u64::try_from(self.host_timeout.as_millis()).unwrap_or(u64::MAX);
        let alive = silent_ms.map(|silent| silent < timeout_ms);
        HostInfo {
            host: host as u8,
            incarnation: line.incarnation,
            alive: if marked_dead { Some(false) } else { alive },
            silent_ms,
            marked_dead,
            workers: 0,
            chunks: 0,
        }
    }

    pub(crate) fn namespace_rows(&self) -> Vec<NamespaceInfo> {
        (0..NAMESPACES)
            .filter_map(|row| {
                let at = self.layout.namespace(row);
                let line = self.read::<NamespaceLine>(at)?;
                let name = self.read::<NameLine>(at + LINE);
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
                    used_bytes: self.used_bytes(row),
                    quota_bytes: self.read_quota(row),
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
    /// Chunks that a host has lost by being declared dead.
    pub chunks_lost: u64,
    /// Those of them into which a host that was declared dead may still write. They take copies only ([`Pool::begin_in_place`]).
    pub chunks_with_strays: u64,
    /// Readable blocks.
    pub blocks_ready: u64,
    /// Their payload bytes.
    pub bytes_ready: u64,
    /// Objects.
    pub objects: u64,
    /// Name of the fabric.
    pub fabric: &'static str,
    /// Name of the design.
    pub design: &'static str,
    /// Name of the policy that says which blocks leave.
    pub eviction: &'static str,
    /// Blocks that one worker can pin at once.
    pub pins_per_worker: u64,
    /// Identity of the region.
    pub uuid: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Models that share the region.
    pub namespaces: Vec<NamespaceInfo>,
    /// Hosts that attached at least once.
    pub hosts: Vec<HostInfo>,
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
    /// Bytes of slots that are charged to it, as the hosts that live account them.
    pub used_bytes: u64,
    /// Bytes that it may take; 0: no limit.
    pub quota_bytes: u64,
}

/// A host that attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostInfo {
    /// Its slot.
    pub host: u8,
    /// Which life of it.
    pub incarnation: u64,
    /// Whether it lives: its workers' claims tell where they can be seen, its heart elsewhere; `None`: not known.
    pub alive: Option<bool>,
    /// Milliseconds that its heart has stood still, as the host that asks has seen it.
    pub silent_ms: Option<u64>,
    /// Whether somebody declared this life dead.
    pub marked_dead: bool,
    /// Workers that joined and have not left.
    pub workers: u64,
    /// Chunks that it owns.
    pub chunks: u64,
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
