//! The bytes: the layout of a region and of a host's memory, and one participant's view of both.
//! Every other module reads and writes through a [`Region`].

pub mod area;
pub mod cause;
pub mod config;
pub mod counters;
pub mod hit;
pub mod host_layout;
pub mod hosts;
pub mod layout;
pub mod lines;
pub mod make;
pub mod piece;
pub mod seal;
pub mod superblock;

use crate::error::PoolError;
use area::host_area_name;
use cenote_base::{BlockIndex, Generation};
use cenote_mem::host::HostError;
use cenote_mem::{Fabric, HostLocal, HostSpec, LINE};
use config::{AttachOptions, Design};
use host_layout::HostLayout;
use layout::{Layout, OBJECTS};
use lines::{BlockState, ChunkLine, Descriptor, Line};
use seal::RegionSeal;
use std::sync::OnceLock;
use std::time::Duration;
use superblock::Superblock;

/// Lines that share one fence when they are refreshed.
const REFRESH_GROUP: u64 = 4096;

/// One participant's view of a region and of its host's memory.
pub(crate) struct Region<F: Fabric, H: HostLocal> {
    pub fabric: F,
    pub superblock: Superblock,
    pub layout: Layout,
    /// Part of every check word: the region's identity.
    pub salt: u64,
    seal: RegionSeal,
    /// This host's slot.
    pub host: u64,
    /// This host's memory.
    pub area: H,
    pub host_layout: HostLayout,
    pub lock_timeout: Duration,
    pub host_timeout: Duration,
    pub quarantine: Duration,
    /// This worker's slot, from the time it joins.
    slot: OnceLock<u64>,
    /// Name of this host's memory in the line of its host, from the time this worker registers it; 0:
    /// memory of one process.
    memory: OnceLock<u64>,
}

/// Slot of a participant that has not joined.
pub(crate) const NO_SLOT: u64 = u64::MAX;

impl<F: Fabric, H: HostLocal> Region<F, H> {
    /// Opens the region without joining it: no other participant sees this one.
    pub fn open(
        fabric: F,
        options: &AttachOptions,
        host: impl FnOnce(&str, HostSpec) -> Result<H, HostError>,
    ) -> Result<Self, PoolError> {
        options.validate()?;
        let superblock = Superblock::read(&fabric)?;
        if options.expected_seed.is_some_and(|seed| seed != superblock.config.seed) {
            return Err(PoolError::Seed);
        }
        let seal = RegionSeal::new(superblock.config.seal, &superblock.config.uuid, options.keys.as_ref())?;
        let layout = Layout::new(&superblock.config, superblock.region_bytes)?;
        let number = u64::from(options.host.0);
        if superblock.flush != fabric.flush() {
            return Err(PoolError::Flush { recorded: superblock.flush, opened: fabric.flush() });
        }
        if superblock.flush.is_coherent() && number != 0 {
            return Err(PoolError::Config(format!(
                "host {number}: this region is shared by the processes of one host, which is host 0; one for several \
                 hosts is made with a flush instruction"
            )));
        }
        if number >= layout.max_hosts {
            return Err(PoolError::Config(format!(
                "host {number}: the region has host slots 0 to {}",
                layout.max_hosts - 1
            )));
        }
        let name = host_area_name(&superblock.config.uuid, options.host.0);
        let host_layout = HostLayout::new(&layout, superblock.config.eviction);
        let area = host(&name, host_layout.spec(&layout))?;
        Ok(Self {
            salt: superblock.salt(),
            seal,
            lock_timeout: options.lock_timeout,
            host_timeout: options.host_timeout,
            quarantine: options.quarantine,
            slot: OnceLock::new(),
            memory: OnceLock::new(),
            fabric,
            superblock,
            layout,
            host: number,
            area,
            host_layout,
        })
    }

    /// This worker's slot; [`NO_SLOT`] before it has joined.
    #[inline]
    pub fn slot(&self) -> u64 {
        self.slot.get().copied().unwrap_or(NO_SLOT)
    }

    /// Records the slot that this worker has joined in.
    pub fn set_slot(&self, slot: u64) {
        self.slot.set(slot).expect("a worker joins once");
    }

    /// The name of this host's memory; 0: it has none, or this participant has not registered it.
    #[inline]
    pub fn memory(&self) -> u64 {
        self.memory.get().copied().unwrap_or(0)
    }

    /// Records the name of this host's memory, which no later call changes.
    pub fn set_memory(&self, name: u64) {
        let _ = self.memory.set(name);
    }

    /// The owner word of a block slot that this worker has reserved.
    #[inline]
    pub fn owner_word(&self) -> u32 {
        u32::try_from(self.slot() + 1).expect("at most 1,024 workers")
    }

    /// Whether all participants share their caches.
    #[inline]
    pub fn is_coherent(&self) -> bool {
        self.superblock.flush.is_coherent()
    }

    /// Whether the region has TraCT's plain design.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.superblock.config.design == Design::Plain
    }

    /// Whether the region keeps events.
    #[inline]
    pub const fn has_events(&self) -> bool {
        self.layout.events_per_host > 0
    }

    /// The line at `at` as this host's caches have it, if its check word holds.
    #[inline(always)]
    pub fn read<L: Line>(&self, at: u64) -> Option<L> {
        L::open(self.fabric.load_line(at), at, self.salt)
    }

    /// Writes a line and its check word around the caches, without a fence. The release of a lock
    /// fences.
    #[track_caller]
    pub fn write<L: Line>(&self, at: u64, line: L) {
        self.fabric.write_line(at, &line.seal(at, self.salt));
    }

    /// Clears a line, as [`Region::write`].
    #[track_caller]
    pub fn clear(&self, at: u64) {
        self.fabric.write_line(at, &[0; 8]);
    }

    /// The words of a line as the device has them now.
    #[track_caller]
    pub fn fresh_line(&self, at: u64) -> [u64; 8] {
        self.fabric.refresh(&[at]);
        self.fabric.load_line(at)
    }

    /// Drops cached copies of all lines from `start` to `end`.
    #[track_caller]
    pub fn refresh_range(&self, start: u64, end: u64) {
        if self.is_coherent() {
            return;
        }
        let mut at = start;
        while at < end {
            let len = (end - at).min(REFRESH_GROUP * LINE);
            self.fabric.refresh_payload(at, len);
            at += len;
        }
    }

    /// Drops cached copies of the namespace table and of the usage words behind it.
    #[track_caller]
    pub fn refresh_namespaces(&self) {
        self.refresh_range(self.layout.namespace(0), self.layout.object(0));
    }

    /// Drops cached copies of the object table.
    #[track_caller]
    pub fn refresh_objects(&self) {
        self.refresh_range(self.layout.object(0), self.layout.object(OBJECTS));
    }

    /// Drops cached copies of all chunk lines.
    #[track_caller]
    pub fn refresh_chunks(&self) {
        self.refresh_range(self.layout.chunk(0), self.layout.chunk(self.layout.num_chunks));
    }

    /// Drops the cached copy of a chunk line.
    #[track_caller]
    pub fn refresh_chunk(&self, chunk: u64) {
        self.fabric.refresh(&[self.layout.chunk(chunk)]);
    }

    /// Drops cached copies of a range of descriptors.
    #[track_caller]
    pub fn refresh_descriptors(&self, blocks: std::ops::Range<u64>) {
        let [start, end] = [blocks.start, blocks.end].map(|block| self.layout.descriptor(BlockIndex(block)));
        self.refresh_range(start, end);
    }

    /// The line of a chunk that some host owns.
    pub fn read_chunk(&self, chunk: u64) -> Option<ChunkLine> {
        let line: ChunkLine = self.read(self.layout.chunk(chunk))?;
        (line.owner != 0 && self.layout.is_slot(line.slot_bytes)).then_some(line)
    }

    /// The line of a chunk when this host has taken it.
    pub fn taken(&self, line: ChunkLine) -> ChunkLine {
        let generation = line.generation.wrapping_add(1);
        ChunkLine { owner: self.host + 1, incarnation: self.incarnation(), generation, offered: 0, ..line }
    }

    /// The line of a chunk that this host owns.
    pub fn own_chunk(&self, chunk: u64) -> Option<ChunkLine> {
        self.read_chunk(chunk).filter(|line| line.owner == self.host + 1)
    }

    /// The line of a chunk that no host owns; `None` also if the line is corrupt.
    pub fn free_chunk(&self, chunk: u64) -> Option<ChunkLine> {
        let at = self.layout.chunk(chunk);
        match self.fabric.load_line(at) {
            [0, 0, 0, 0, 0, 0, 0, 0] => Some(ChunkLine::default()),
            words => ChunkLine::open(words, at, self.salt).filter(|line| line.owner == 0),
        }
    }

    /// The chunks in this host's free lists and owner words.
    pub fn listed_chunks(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.layout.num_chunks).filter(|&chunk| self.class_of_chunk(chunk).is_some())
    }

    /// The blocks of a chunk; none where its line is corrupt.
    pub fn slots_of(&self, chunk: u64) -> impl Iterator<Item = BlockIndex> + use<F, H> {
        let slot_bytes = self.read_chunk(chunk).map(|line| line.slot_bytes);
        slot_bytes.map_or(0..0, |slot_bytes| self.layout.blocks_of(chunk, slot_bytes)).map(BlockIndex)
    }

    /// An intact descriptor with a payload inside the data area.
    #[inline(always)]
    pub fn read_descriptor(&self, block: BlockIndex) -> Option<Descriptor> {
        let descriptor: Descriptor = self.read(self.layout.descriptor(block))?;
        descriptor.lies_in(&self.layout).then_some(descriptor)
    }

    /// The state of a block, if its descriptor is intact.
    pub fn block_state(&self, block: BlockIndex) -> Option<BlockState> {
        self.read_descriptor(block)?.block_state()
    }

    /// Generation of a descriptor. The first word is whole even where the line is torn.
    pub fn raw_generation(&self, block: BlockIndex) -> Generation {
        Generation(self.fabric.load_line(self.layout.descriptor(block))[0] >> 16)
    }
}
