//! Spilled blocks, streamed through a staging area (L2) beside L1, tile by tile (CXL-SpecKV §3.3.1,
//! eq. 2).
//!
//! A tile is what attention reads at once: one layer's pages of a few sequences, or of some KV heads of a
//! long one. While a tile computes,
//! a mover fetches the next two into two of three buffers; `policy::staging` gives the order. The paper
//! fetches whole layers. Tiles of 2 MiB stay in the processor's caches until they are read, so
//! that a streamed byte crosses the memory bus once, and not three times (read, written, read again).
//! The next step's first tiles arrive while this one ends, because a running request reads the same
//! blocks again. A page that has not arrived in time
//! is copied by the compute thread itself, if the mover has not begun with it. A damaged or missing
//! page makes the results of its sequence invalid, and its request recomputes the block.
//!
//! A buffer's memory belongs to the job that fills it, so attention cannot see a half-written page.

mod tiles;

use crate::kernels::AlignedBuffer;
use crate::kv::{KvLayout, Staged, StagedPlace};
use cenote_policy::kv_blocks::BlockId;
use cenote_policy::staging::{Fetched, Place, Staging, StagingAction, StagingConfig, StagingCounts, StagingEvent};
use cenote_policy::transfer::{Class, Ticket, TransferCounts};
use cenote_store::FarBlock;
use cenote_store::mover::{Job, Moved, Mover, MoverConfig};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use tiles::Tile;

/// Buffers of the staging area: one that computes, and those of the next two tiles.
const BUFFERS: u32 = 3;
/// Least bytes of a tile, if its layer has as many: enough that a tile's start costs little.
const TILE_BYTES: usize = 2 << 20;
/// Bytes of staged pages that a processor's last cache keeps until they are read, 32 MiB or more in
/// today's servers. Beyond it a copy through the caches only costs more traffic.
const CACHED_BYTES: usize = 32 << 20;
/// Most bytes of a copy, if a page is not longer: enough that its queues cost little.
const RUN_BYTES: usize = 512 << 10;
/// Longest wait for a copy that has begun. Then the compute thread reads the page itself.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Spilled blocks that one copy brings: id and serial number of each. The number tells blocks apart that
/// have the same id in turn.
type Run = Arc<[(BlockId, u64)]>;

/// One layer's pages of a run, or some of their parts.
#[derive(Clone)]
struct RunPages {
    blocks: Run,
    layer: u32,
    parts: Range<usize>,
}

impl Fetched for RunPages {
    fn num_pages(&self) -> u64 {
        (self.blocks.len() * self.parts.len()) as u64
    }
}

/// The parts and the runs of each tile of a layer.
type Tiles = Vec<(Range<usize>, Vec<Run>)>;

/// What attention computes at once.
pub(crate) struct TileWork {
    /// The sequences, ascending, as indexes into the batch.
    pub sequences: Vec<usize>,
    /// The KV heads.
    pub heads: Range<usize>,
}

/// A spilled block, and the number that tells it apart from others with the same id.
#[derive(Clone)]
pub(crate) struct Far {
    pub serial: u64,
    pub block: Arc<dyn FarBlock>,
}

/// Copies the K and V pages of one layer of a few blocks.
struct RunJob {
    /// `None`: the block is unknown.
    from: Vec<(BlockId, Option<Arc<dyn FarBlock>>)>,
    /// The parts of the K pages, and of the V pages.
    parts: [Range<usize>; 2],
    /// Those of each block.
    pages: AlignedBuffer,
    part_bytes: usize,
    /// Whether to copy around the caches.
    around: bool,
    /// Blocks that are unknown, damaged or gone.
    failed: Vec<BlockId>,
}

impl Job for RunJob {
    fn bytes(&self) -> u64 {
        let known = self.from.iter().filter_map(|(_, far)| far.as_ref());
        let of = |far: &Arc<dyn FarBlock>| -> usize {
            self.parts.iter().cloned().flatten().map(|part| far.moved_bytes(part, self.part_bytes)).sum()
        };
        known.map(of).sum::<usize>() as u64
    }

    fn run(&mut self) {
        let around = self.around;
        let pages = self.pages.as_bytes_mut().chunks_exact_mut(2 * self.parts[0].len() * self.part_bytes);
        for ((block, far), pages) in self.from.iter().zip(pages) {
            let parts = self.parts.iter().cloned().flatten();
            let mut parts = parts.zip(pages.chunks_exact_mut(self.part_bytes));
            let is_whole = far.as_ref().is_some_and(|far| parts.all(|(part, bytes)| far.read(part, bytes, around)));
            self.failed.extend((!is_whole).then_some(*block));
        }
    }
}

/// Counters of a [`Streamer`]. Pages are pairs of K and V, or of their parts.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamCounts {
    /// Of the staging area.
    pub staging: StagingCounts,
    /// Of its mover.
    pub mover: TransferCounts,
    /// Pages that the compute thread copied itself, because the mover had not begun with them.
    pub taken: u64,
    /// Bytes of such a pair.
    pub page_bytes: u64,
}

/// The spilled blocks of an engine and their way into the computation.
pub struct Streamer(Option<Box<Inner>>);

struct Inner {
    layout: KvLayout,
    /// Parts of a page that are read by themselves.
    parts: usize,
    /// Steps whose pages are fetched: the current one, and the next if it probably reads the same.
    ahead: usize,
    /// Id of the first spilled block.
    first: usize,
    mover: Box<dyn Mover<RunJob>>,
    staging: Staging<RunPages>,
    /// Blocks by id, with their serial numbers.
    blocks: BTreeMap<BlockId, (u64, Arc<dyn FarBlock>)>,
    next_serial: u64,
    /// Steps whose tiles are pushed, the current or next one first.
    steps: VecDeque<(u64, Tiles)>,
    /// Tiles of a layer of the current step, and the blocks in them.
    tiles: usize,
    read: usize,
    /// Pages of a run by buffer and slot. `None`: unused, or with a job.
    buffers: Vec<Vec<Option<AlignedBuffer>>>,
    spare: Vec<AlignedBuffer>,
    /// Jobs that the mover has, by ticket.
    under_way: BTreeMap<Ticket, Place>,
    /// Those that are still wanted. The first are of the tile that is next.
    tickets: BTreeMap<Place, Ticket>,
    /// Whether the pages of the next tile are staged: the number of the tile in its step.
    ready: Option<usize>,
    /// Whether the buffers are larger than the caches, so that copies go around them.
    around: bool,
    /// Pages that the compute thread copied because the mover was behind.
    taken: u64,
    /// The tile that computes: its buffer, and the place of each spilled block.
    buffer: usize,
    places: Vec<StagedPlace>,
    /// Its KV heads.
    heads: (usize, usize),
    /// Blocks of this step with a page that was damaged or gone.
    failed: BTreeSet<BlockId>,
}

impl Streamer {
    /// For an engine without spill space.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// A streamer for `spill_blocks` blocks with ids from `first` on, whose pages have `parts` parts. It
    /// fetches for `ahead` steps: 2, if the next one probably reads the same.
    ///
    /// # Errors
    /// The operating system cannot create a thread.
    pub fn start(
        layout: KvLayout,
        parts: usize,
        first: usize,
        spill_blocks: usize,
        mover: &MoverConfig,
        ahead: usize,
    ) -> std::io::Result<Self> {
        if spill_blocks == 0 {
            return Ok(Self::off());
        }
        let buffer_pages = u32::try_from(spill_blocks).unwrap_or(u32::MAX);
        Ok(Self(Some(Box::new(Inner {
            layout,
            parts,
            ahead,
            first,
            mover: mover.start()?,
            staging: Staging::new(StagingConfig { buffers: BUFFERS, buffer_pages, tiles: false }),
            blocks: BTreeMap::new(),
            next_serial: 0,
            steps: VecDeque::new(),
            tiles: 1,
            read: 0,
            buffers: (0..BUFFERS).map(|_| Vec::new()).collect(),
            spare: Vec::new(),
            under_way: BTreeMap::new(),
            tickets: BTreeMap::new(),
            ready: None,
            around: false,
            taken: 0,
            buffer: 0,
            places: vec![StagedPlace::default(); spill_blocks],
            heads: (0, layout.num_kv_heads),
            failed: BTreeSet::new(),
        }))))
    }

    /// Adds a spilled block.
    pub fn insert(&mut self, block: BlockId, far: Box<dyn FarBlock>) {
        let Some(inner) = &mut self.0 else { return };
        inner.blocks.insert(block, (inner.next_serial, Arc::from(far)));
        inner.next_serial += 1;
    }

    /// Removes a block.
    pub fn remove(&mut self, block: BlockId) -> Option<Arc<dyn FarBlock>> {
        self.0.as_mut()?.blocks.remove(&block).map(|(_, far)| far)
    }

    /// A spilled block, to read all of it.
    #[must_use]
    pub fn get(&self, block: BlockId) -> Option<&dyn FarBlock> {
        self.0.as_ref()?.blocks.get(&block).map(|(_, far)| &**far)
    }

    /// As [`Self::get`], to keep.
    pub(crate) fn far(&self, block: BlockId) -> Option<Far> {
        let (serial, block) = self.0.as_ref()?.blocks.get(&block)?;
        Some(Far { serial: *serial, block: Arc::clone(block) })
    }

    /// Whether the id is one of a spilled block.
    #[must_use]
    pub fn is_spilled(&self, block: BlockId) -> bool {
        self.0.as_ref().is_some_and(|inner| block as usize >= inner.first)
    }

    /// Blocks of the last step with a page that was damaged or gone. Results of sequences with them
    /// are invalid.
    pub fn take_failed(&mut self) -> BTreeSet<BlockId> {
        self.0.as_mut().map(|inner| std::mem::take(&mut inner.failed)).unwrap_or_default()
    }

    /// Number of spilled blocks.
    #[must_use]
    pub fn num_blocks(&self) -> usize {
        self.0.as_ref().map_or(0, |inner| inner.blocks.len())
    }

    /// Number of spilled blocks that the last step read.
    #[must_use]
    pub fn num_read(&self) -> usize {
        self.0.as_ref().map_or(0, |inner| inner.read)
    }

    /// Counters since the start; all zero without spill space.
    #[must_use]
    pub fn counts(&self) -> StreamCounts {
        let counts = |inner: &Inner| StreamCounts {
            staging: *inner.staging.counts(),
            mover: inner.mover.counts(),
            taken: inner.taken,
            page_bytes: (2 * inner.layout.page_bytes() / inner.parts) as u64,
        };
        self.0.as_deref().map(counts).unwrap_or_default()
    }

    /// Brings the pages of all layers of these sequences' blocks to the staging area, without a
    /// computation: the least time of a step that reads them.
    pub fn pass(&mut self, sequences: &[Vec<BlockId>]) {
        let Some(layers) = self.0.as_ref().map(|inner| inner.layout.num_layers) else { return };
        let heads = self.0.as_ref().map_or(1, |inner| inner.layout.num_kv_heads);
        let tiles = self.begin(sequences.iter().map(Vec::as_slice), heads).len();
        (0..layers).for_each(|layer| (0..tiles).for_each(|tile| self.arrive(layer, tile)));
    }

    /// Begins a step in which each of `sequences` reads its blocks, of L1 and spilled, with `heads` KV
    /// heads. Returns the tiles: every layer computes them in this order.
    pub(crate) fn begin<'a>(
        &mut self,
        sequences: impl ExactSizeIterator<Item = &'a [BlockId]>,
        heads: usize,
    ) -> Vec<TileWork> {
        match &mut self.0 {
            None => vec![TileWork { sequences: (0..sequences.len()).collect(), heads: 0..heads }],
            Some(inner) => inner.begin(sequences),
        }
    }

    /// Waits until the pages of a layer's tile are staged.
    pub(crate) fn arrive(&mut self, layer: usize, tile: usize) {
        if let Some(inner) = &mut self.0 {
            inner.arrive(layer, tile);
        }
    }

    /// The pages of the tile that arrived last.
    pub(crate) fn staged(&self) -> Staged<'_> {
        match &self.0 {
            None => Staged { first: usize::MAX, ..Staged::default() },
            Some(inner) => Staged {
                first: inner.first,
                places: &inner.places,
                pages: &inner.buffers[inner.buffer],
                heads: inner.heads,
            },
        }
    }
}

impl Inner {
    fn begin<'a>(&mut self, sequences: impl Iterator<Item = &'a [BlockId]>) -> Vec<TileWork> {
        // The last tile of the step before.
        self.staging.handle(self.mover.now_ns(), StagingEvent::Computed);
        self.failed.clear();
        let first = self.first;
        let spilled = |blocks: &[BlockId]| blocks.iter().copied().filter(|block| *block as usize >= first).collect();
        let spilled: Vec<BTreeSet<BlockId>> = sequences.map(spilled).collect();
        let pair_bytes = 2 * self.layout.page_bytes();
        let divided = tiles::divide(&spilled, TILE_BYTES.div_ceil(pair_bytes), self.parts);
        let serial = |block: &BlockId| self.blocks.get(block).map_or(u64::MAX, |(serial, _)| *serial);
        let block_bytes = |tile: &Tile| pair_bytes / self.parts * tile.parts.len();
        let runs = |tile: &Tile| {
            let blocks: Vec<(BlockId, u64)> = tile.blocks.iter().map(|block| (*block, serial(block))).collect();
            let together = (RUN_BYTES / block_bytes(tile)).max(1);
            (tile.parts.clone(), blocks.chunks(together).map(Run::from).collect())
        };
        let tiles: Tiles = divided.iter().map(runs).collect();
        let largest = divided.iter().map(|tile| tile.blocks.len() * block_bytes(tile)).max().unwrap_or(0);
        self.around = largest * BUFFERS as usize > CACHED_BYTES;
        (self.tiles, self.read) = (tiles.len(), spilled.iter().flatten().collect::<BTreeSet<_>>().len());
        if self.steps.front().is_some_and(|(_, expected)| *expected != tiles) {
            self.staging.abandon_from(self.steps[0].0);
            self.steps.clear();
        }
        if largest == 0 && self.under_way.is_empty() {
            // A long prompt may have needed them; with sparse decode no later step does.
            self.spare.clear();
            self.buffers.iter_mut().for_each(Vec::clear);
        }
        while self.steps.len() < self.ahead {
            let pages = |layer: u32, (parts, runs): &(Range<usize>, Vec<Run>)| {
                let of_run = |run| RunPages { blocks: Arc::clone(run), layer, parts: parts.clone() };
                runs.iter().map(of_run).collect()
            };
            let layers = 0..self.layout.num_layers as u32;
            let all = layers.flat_map(|layer| tiles.iter().map(move |tile| pages(layer, tile))).collect();
            let step = self.staging.push_step(all).expect("a buffer has room for all spilled blocks");
            self.steps.push_back((step, tiles.clone()));
        }
        self.collect();
        self.act();
        let of_part = self.layout.num_kv_heads / self.parts;
        let work =
            |Tile { sequences, parts, .. }| TileWork { sequences, heads: parts.start * of_part..parts.end * of_part };
        divided.into_iter().map(work).collect()
    }

    fn arrive(&mut self, layer: usize, tile: usize) {
        let begin = self.mover.now_ns();
        // `begin` ended the last tile of the step before, and the first one of this step may be ready.
        if (layer, tile) > (0, 0) {
            self.staging.handle(begin, StagingEvent::Computed);
        }
        loop {
            self.collect();
            self.act();
            if let Some(found) = self.ready.take() {
                assert_eq!(found, layer * self.tiles + tile, "tiles compute in their order");
                if found + 1 == self.layout.num_layers * self.tiles {
                    self.steps.pop_front();
                }
                return;
            }
            if !self.take_one() {
                if self.mover.now_ns() - begin > PATIENCE_NS {
                    self.give_up();
                }
                self.mover.pause();
            }
        }
    }

    /// Does what the policy wants.
    fn act(&mut self) {
        let now = self.mover.now_ns();
        let (mut fetches, mut urgent) = (Vec::new(), Vec::new());
        while let Some(action) = self.staging.poll_action(now) {
            match action {
                StagingAction::Fetch { place, page, is_urgent, .. } => {
                    let job = self.job(place, &page);
                    let jobs = if is_urgent { &mut urgent } else { &mut fetches };
                    jobs.push((place, job));
                }
                // `arrive` takes the copies that have not begun.
                StagingAction::Urge(_) => {}
                StagingAction::Cancel(place) => self.cancel(place),
                StagingAction::ReadNow(place, page) => {
                    let job = self.job(place, &page);
                    self.run_now(place, job);
                }
                // `arrived` knows the blocks.
                StagingAction::Recompute(place, _) => self.staging.handle(now, StagingEvent::Arrived(place)),
                StagingAction::Compute { layer, buffer, pages, .. } => {
                    self.buffer = buffer as usize;
                    if let Some(RunPages { parts, .. }) = pages.first() {
                        let of_part = self.layout.num_kv_heads / self.parts;
                        self.heads = (parts.start * of_part, parts.end * of_part);
                    }
                    for (memory, run) in (0..).zip(&pages) {
                        for (index, (block, _)) in (0..).zip(run.blocks.iter()) {
                            self.places[*block as usize - self.first] = StagedPlace { memory, index };
                        }
                    }
                    self.ready = Some(layer as usize);
                }
            }
        }
        self.submit(Class::Demand, urgent);
        self.submit(Class::Exact, fetches);
    }

    /// A job that fills `place`.
    fn job(&mut self, place: Place, run: &RunPages) -> RunJob {
        let buffer = &mut self.buffers[place.buffer as usize];
        if buffer.len() <= place.slot as usize {
            buffer.resize_with(place.slot as usize + 1, || None);
        }
        let part_bytes = self.layout.page_bytes() / self.parts;
        let block_bytes = 2 * run.parts.len() * part_bytes;
        let bytes = run.blocks.len() * block_bytes;
        let fits = |pages: &AlignedBuffer| pages.as_bytes().len() >= bytes;
        let pages = buffer[place.slot as usize].take().or_else(|| self.spare.pop()).filter(fits);
        // A run is full or the last of its tile, so most memory fits the next one.
        let full = (RUN_BYTES / block_bytes).max(1) * block_bytes;
        let pages = pages.unwrap_or_else(|| AlignedBuffer::zeroed(full.max(bytes)));
        let far = |(block, serial): &(BlockId, u64)| {
            let known = self.blocks.get(block).filter(|(own, _)| own == serial);
            (*block, known.map(|(_, far)| Arc::clone(far)))
        };
        let of_side = |side: usize| {
            let first = (2 * run.layer as usize + side) * self.parts;
            first + run.parts.start..first + run.parts.end
        };
        RunJob {
            from: run.blocks.iter().map(far).collect(),
            parts: [of_side(0), of_side(1)],
            pages,
            part_bytes,
            around: self.around,
            failed: Vec::new(),
        }
    }

    fn submit(&mut self, class: Class, jobs: Vec<(Place, RunJob)>) {
        if jobs.is_empty() {
            return;
        }
        let (places, jobs): (Vec<Place>, Vec<RunJob>) = jobs.into_iter().unzip();
        for (ticket, place) in self.mover.submit(class, None, jobs).into_iter().zip(places) {
            self.under_way.insert(ticket, place);
            self.tickets.insert(place, ticket);
        }
    }

    /// Takes over the jobs that have ended.
    fn collect(&mut self) {
        while let Some((ticket, moved)) = self.mover.poll() {
            let Some(place) = self.under_way.remove(&ticket) else { continue };
            let is_wanted = self.tickets.get(&place) == Some(&ticket);
            match moved {
                Moved::Done(job) if is_wanted => self.arrived(place, job),
                other => {
                    self.spare.push(other.into_job().pages);
                    let event = if is_wanted { StagingEvent::GivenUp(place) } else { StagingEvent::Cancelled(place) };
                    self.staging.handle(self.mover.now_ns(), event);
                }
            }
        }
    }

    fn arrived(&mut self, place: Place, job: RunJob) {
        self.tickets.remove(&place);
        self.buffers[place.buffer as usize][place.slot as usize] = Some(job.pages);
        let is_whole = job.failed.is_empty();
        self.failed.extend(job.failed);
        let event = if is_whole { StagingEvent::Arrived(place) } else { StagingEvent::Damaged(place) };
        self.staging.handle(self.mover.now_ns(), event);
    }

    fn run_now(&mut self, place: Place, mut job: RunJob) {
        self.mover.run_now(&mut job);
        self.arrived(place, job);
    }

    /// Copies pages of the next tile that the mover has not begun with. The mover works from the
    /// first to the last, so this takes the last. Returns whether there was one.
    fn take_one(&mut self) -> bool {
        let Some((&Place { tile, .. }, _)) = self.tickets.first_key_value() else { return false };
        let behind = Place { tile: tile + 1, buffer: 0, slot: 0 };
        let Some((&place, &ticket)) = self.tickets.range(..behind).next_back() else { return false };
        let Some(job) = self.mover.take(ticket) else { return false };
        self.under_way.remove(&ticket);
        self.taken += (job.from.len() * job.parts[0].len()) as u64;
        self.run_now(place, job);
        true
    }

    /// Stops waiting for the copies of the next tile. Their memory returns when they end.
    fn give_up(&mut self) {
        let Some((&Place { tile, .. }, _)) = self.tickets.first_key_value() else { return };
        let behind = Place { tile: tile + 1, buffer: 0, slot: 0 };
        let places: Vec<Place> = self.tickets.range(..behind).map(|(place, _)| *place).collect();
        for place in places {
            self.tickets.remove(&place);
            self.staging.handle(self.mover.now_ns(), StagingEvent::GivenUp(place));
        }
    }

    /// Withdraws the copy to `place`, and reports when none can write there any more.
    fn cancel(&mut self, place: Place) {
        let job = match self.tickets.remove(&place) {
            // It has arrived already.
            None => None,
            Some(ticket) => match self.mover.cancel(ticket) {
                // `collect` reports its end.
                None => return,
                job => {
                    self.under_way.remove(&ticket);
                    job
                }
            },
        };
        self.spare.extend(job.map(|job| job.pages));
        self.staging.handle(self.mover.now_ns(), StagingEvent::Cancelled(place));
    }
}
