//! A summary of a region, for reports and metrics.

use super::memory::MemoryInfo;
use crate::log::windows::{self, Window};
use crate::members::Member;
use crate::region::cause::Cause;
use crate::region::counters::{Counter, Residence};
use crate::region::layout::PINS_PER_LINE;
use crate::region::lines::{BlockState, NameLine, NamespaceLine, WorkerLine, unpack_text};
use crate::region::piece::Kind;
use crate::space::strays::Strays;
use cenote_base::seal::{KeyId, Seal};
use cenote_base::{BlockIndex, NamespaceId};
use cenote_mem::{Fabric, HostLocal, LINE};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Age in seconds up to which a block counts as new.
const NEW_SECONDS: u32 = 60;

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// `alive` tells whether the worker of a host's slot lives, if that is known.
    pub(crate) fn info(&self, alive: impl Fn(u64, u32) -> Option<bool>) -> PoolInfo {
        self.survey(alive).0
    }

    /// The summary, with the chunks that it sums up.
    pub(crate) fn survey(&self, alive: impl Fn(u64, u32) -> Option<bool>) -> (PoolInfo, Vec<ChunkInfo>) {
        self.region.refresh_namespaces();
        let mut namespaces = self.namespace_rows();
        let mut hosts: Vec<HostInfo> = (0..self.region.layout.max_hosts).map(|host| self.host_info(host)).collect();
        let mut info = PoolInfo {
            region_bytes: self.region.superblock.region_bytes,
            data_bytes: self.region.layout.data_bytes(),
            chunk_bytes: self.region.layout.chunk_bytes,
            num_chunks: self.region.layout.num_chunks,
            fabric: if self.region.fabric.flush().is_coherent() { "coherent" } else { "flushed" },
            uuid: hex::encode(self.region.superblock.config.uuid),
            created: self.region.superblock.config.created,
            design: self.region.superblock.config.design.name(),
            seal: self.region.seal_mode().name(),
            seal_keys: if self.region.seal_mode() == Seal::None {
                Vec::new()
            } else {
                self.region.admitted_keys().iter().map(KeyId::to_string).collect()
            },
            eviction: self.region.superblock.config.eviction.policy().name(),
            pins_per_worker: self.region.layout.hazard_lines_per_worker * u64::from(PINS_PER_LINE),
            ..PoolInfo::default()
        };
        let chunks = self.chunk_rows();
        for chunk in &chunks {
            info.chunks_lost += u64::from(chunk.is_lost);
            info.chunks_with_strays += u64::from(chunk.has_strays);
            info.chunks_taken += u64::from(chunk.slots > 0);
            let owner = chunk.owner.and_then(|owner| hosts.get_mut(usize::from(owner)));
            owner.into_iter().for_each(|host| host.chunks += 1);
            info.blocks_ready += chunk.blocks;
            info.bytes_ready += chunk.bytes;
            info.objects += chunk.objects;
            info.memory_slots += chunk.memory_slots;
            for model in &chunk.models {
                let Some(row) = namespaces.iter_mut().find(|row| row.id == model.id) else { continue };
                row.blocks += model.blocks;
                row.bytes += model.bytes;
                row.new_bytes += model.new_bytes;
            }
        }
        for host in 0..self.region.layout.max_hosts {
            let Some(line) = self.region.read_host(host) else { continue };
            let row = &mut hosts[host as usize];
            let slots = line.workers_high.min(self.region.layout.workers_per_host);
            self.region.refresh_range(self.region.layout.worker(host, 0), self.region.layout.worker(host, slots));
            for slot in 0..slots {
                let at = self.region.layout.worker(host, slot);
                let Some(worker) = self.region.read::<WorkerLine>(at) else { continue };
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
            // Visible claims of workers decide; without them the heartbeat does.
            let of_host = info.workers.iter().filter(|worker| u64::from(worker.host) == host);
            let seen: Vec<bool> = of_host.filter_map(|worker| worker.alive).collect();
            if !seen.is_empty() || alive(host, 0).is_some() {
                row.alive = Some(seen.contains(&true));
            }
        }
        info.memory = self.memory(&alive);
        info.locks_given = self.locks.given_words().into_iter().map(|word| u64::from(word.count_ones())).sum();
        info.hosts = hosts.into_iter().filter(|host| host.incarnation > 0 || host.chunks > 0).collect();
        info.namespaces = namespaces;
        info.windows = windows::seen(&self.region.fabric, &self.region.layout, self.region.is_coherent());
        info.counters = Counter::ALL.iter().map(|&c| (c.name(), self.region.counters().get(c))).collect();
        info.removed = Cause::ALL.map(|cause| (cause.name(), self.region.counters().removed_by(cause))).into();
        info.residence = self.region.counters().residence();
        (info, chunks)
    }

    /// The chunks in order, by the device's current copies.
    fn chunk_rows(&self) -> Vec<ChunkInfo> {
        self.region.refresh_chunks();
        // A descriptor has the low half of the seconds since 1970.
        let now = self.region.area.unix_seconds() as u32;
        (0..self.region.layout.num_chunks).map(|chunk| self.chunk_row(chunk, now)).collect()
    }

    fn chunk_row(&self, chunk: u64, now: u32) -> ChunkInfo {
        let strays = self.space.strays(chunk);
        let mut row = ChunkInfo {
            is_lost: strays != Strays::Never,
            has_strays: strays == Strays::Possible,
            ..ChunkInfo::default()
        };
        let Some(line) = self.region.read_chunk(chunk) else { return row };
        (row.owner, row.slot_bytes) = (u8::try_from(line.owner - 1).ok(), line.slot_bytes);
        row.slots = self.region.layout.slots(line.slot_bytes);
        let first = chunk * self.region.layout.descriptors_per_chunk;
        self.region.refresh_descriptors(first..first + row.slots);
        for block in (first..first + row.slots).map(BlockIndex) {
            let Some(descriptor) = self.region.read_descriptor(block) else { continue };
            match descriptor.block_state() {
                Some(BlockState::Ready) => {
                    let (id, bytes) = (NamespaceId(descriptor.namespace()), descriptor.extent().0);
                    let has_row = u64::from(id.0) < self.region.layout.num_namespaces;
                    row.add_block(id, has_row, bytes, now.wrapping_sub(descriptor.stamp as u32));
                }
                Some(BlockState::Object) if !Kind::of(&descriptor).is_memory() => row.objects += 1,
                Some(BlockState::Object) => row.memory_slots += 1,
                _ => {}
            }
        }
        row
    }

    /// A host's row without its workers and chunks.
    fn host_info(&self, host: u64) -> HostInfo {
        let line = self.region.read_host(host).unwrap_or_default();
        let marked_dead = self.region.is_dead(host, line.incarnation);
        let beat = self.region.beat(host);
        let silent_ms = (beat.incarnation != 0 && beat.incarnation == line.incarnation).then(|| {
            let still = beat.heartbeat == line.heartbeat;
            let silent = self.region.area.now().saturating_sub(Duration::from_nanos(beat.since));
            if still { u64::try_from(silent.as_millis()).unwrap_or(u64::MAX) } else { 0 }
        });
        let timeout_ms = u64::try_from(self.region.host_timeout.as_millis()).unwrap_or(u64::MAX);
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
        let workers = self.tables.workers_by_row();
        (0..self.region.layout.num_namespaces)
            .filter_map(|row| {
                let at = self.region.layout.namespace(row);
                let line = self.region.read::<NamespaceLine>(at)?;
                let name = self.region.read::<NameLine>(at + LINE);
                let limits = self.space.read_limits(row);
                Some(NamespaceInfo {
                    id: NamespaceId(row as u16),
                    label: name.map(|name| name.text()).unwrap_or_default(),
                    fingerprint: hex::encode(zerocopy::IntoBytes::as_bytes(&line.fingerprint)),
                    block_bytes: line.block_bytes,
                    block_tokens: line.shape as u32,
                    num_layers: (line.shape >> 32) as u32,
                    blocks: 0,
                    bytes: 0,
                    new_bytes: 0,
                    used_bytes: self.space.used_bytes(row),
                    quota_bytes: limits.quota,
                    kept_bytes: limits.kept,
                    workers: workers[row as usize],
                })
            })
            .collect()
    }
}

/// Summary of a region: [`crate::Pool::info`].
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
    /// Chunks lost by hosts that were declared dead.
    pub chunks_lost: u64,
    /// Those of them that such a host may still write to. They take copies only
    /// ([`crate::Pool::begin_in_place`]).
    pub chunks_with_strays: u64,
    /// Readable blocks.
    pub blocks_ready: u64,
    /// Their payload bytes.
    pub bytes_ready: u64,
    /// Objects, without named memory.
    pub objects: u64,
    /// Slots with memory of users: pieces, or arenas of pieces.
    pub memory_slots: u64,
    /// Memory of users.
    pub memory: MemoryInfo,
    /// Locks that users have allocated.
    pub locks_given: u64,
    /// Name of the fabric.
    pub fabric: &'static str,
    /// Name of the design.
    pub design: &'static str,
    /// How payloads are sealed: `none`, `mac` or `encrypt`.
    pub seal: &'static str,
    /// Public names of the keys that seal them.
    pub seal_keys: Vec<String>,
    /// Name of the eviction policy.
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
    /// Processes that have joined.
    pub workers: Vec<WorkerInfo>,
    /// Blocks that were asked for, by windows of time, and the highest hit rate that they allow; empty: the
    /// region keeps no record of requests, or there were none.
    pub windows: Vec<Window>,
    /// This host's counters by name.
    pub counters: BTreeMap<&'static str, u64>,
    /// Blocks that this host has removed, by the name of the cause.
    pub removed: BTreeMap<&'static str, u64>,
    /// How long these were in the pool.
    pub residence: Residence,
}

/// What a chunk holds: [`crate::Inspector::survey`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkInfo {
    /// The host that owns it.
    pub owner: Option<u8>,
    /// A host that was declared dead may have lost content of it.
    pub is_lost: bool,
    /// Such a host may still write it.
    pub has_strays: bool,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Slots of this size in it; 0: no host has taken it.
    pub slots: u64,
    /// Readable blocks.
    pub blocks: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Objects, without named memory.
    pub objects: u64,
    /// Slots with memory of users.
    pub memory_slots: u64,
    /// Seconds since the first and since the last publication of its blocks, by the publishers' clocks;
    /// `None`: it has no blocks.
    pub ages: Option<(u32, u32)>,
    /// Seconds since publication, summed over its blocks.
    pub age_sum: u64,
    /// The namespaces of its blocks, in the order in which they were found. A damaged descriptor may name
    /// one that the region has no row for; its block is in no share.
    pub models: Vec<ModelShare>,
}

/// A namespace's part of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShare {
    /// Row.
    pub id: NamespaceId,
    /// Readable blocks.
    pub blocks: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Of these: published within the last minute, by the publishers' clocks.
    pub new_bytes: u64,
}

impl ChunkInfo {
    /// Counts a readable block. `age`: seconds since its publication, modulo 2³²; `has_row`: the region
    /// has this namespace, which bounds the number of shares.
    fn add_block(&mut self, id: NamespaceId, has_row: bool, bytes: u64, age: u32) {
        let new_bytes = if age < NEW_SECONDS { bytes } else { 0 };
        // A publisher's clock may be ahead of this one's.
        let age = if age > u32::MAX / 2 { 0 } else { age };
        self.blocks += 1;
        self.bytes += bytes;
        self.age_sum += u64::from(age);
        self.ages = Some(self.ages.map_or((age, age), |(oldest, newest)| (oldest.max(age), newest.min(age))));
        if !has_row {
            return;
        }
        match self.models.iter_mut().find(|model| model.id == id) {
            Some(model) => {
                model.blocks += 1;
                model.bytes += bytes;
                model.new_bytes += new_bytes;
            }
            None => self.models.push(ModelShare { id, blocks: 1, bytes, new_bytes }),
        }
    }
}

/// A namespace and its use of the region.
#[derive(Clone, Debug, Serialize)]
pub struct NamespaceInfo {
    /// Row.
    pub id: NamespaceId,
    /// The model's name, for reports.
    pub label: String,
    /// Hex of the fingerprint.
    pub fingerprint: String,
    /// Payload bytes of a block.
    pub block_bytes: u64,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Layers of a block.
    pub num_layers: u32,
    /// Readable blocks.
    pub blocks: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Of these: published within the last minute, by the publishers' clocks.
    pub new_bytes: u64,
    /// Bytes of slots that are charged to it, as the living hosts count them.
    pub used_bytes: u64,
    /// Limit of those bytes; 0: none.
    pub quota_bytes: u64,
    /// Bytes that stay with it while others need room.
    pub kept_bytes: u64,
    /// Workers that have it open. Without any, and without bytes, its row may be given to another
    /// namespace.
    pub workers: u64,
}

impl NamespaceInfo {
    /// The bytes of the fingerprint.
    #[must_use]
    pub fn fingerprint_bytes(&self) -> Option<[u8; 32]> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(&self.fingerprint, &mut bytes).ok().map(|()| bytes)
    }
}

/// A host that has attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostInfo {
    /// Its slot.
    pub host: u8,
    /// Number of its life.
    pub incarnation: u64,
    /// Whether it lives: by its workers' claims where they are visible, otherwise by its heartbeat.
    /// `None`: unknown.
    pub alive: Option<bool>,
    /// Milliseconds since this host last saw its heartbeat advance.
    pub silent_ms: Option<u64>,
    /// Whether a host declared this life dead.
    pub marked_dead: bool,
    /// Workers that have joined and not left.
    pub workers: u64,
    /// Chunks that it owns.
    pub chunks: u64,
}

/// A worker that has joined and not left.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerInfo {
    /// Its host.
    pub host: u8,
    /// Its slot there.
    pub slot: u16,
    /// Process id, in its host's numbering.
    pub pid: u64,
    /// The name that it gave when it joined.
    pub name: String,
    /// Seconds since 1970.
    pub joined: u64,
    /// Whether it lives; unknown for other hosts.
    pub alive: Option<bool>,
}
