//! Decode with a working set beyond L1: when the pages outside it arrive (CXL-SpecKV §3.3.1, §3.4.4,
//! eq. 2).
//!
//! Dense attention reads every page of every layer in each step. So the schedule gives the
//! addresses. [`Staging`] orders the arrival of the pages outside L1 in a few buffers (L2). While
//! layer *l* computes, the pages of *l* + 1 and, with three buffers, of *l* + 2 arrive.
//!
//! **What stays in L1 is a fixed subset**, which [`crate::scheduler`] chooses. The order of reads is a
//! cycle, on which LRU evicts each page just before its next use. A hit needs a slot of L1 from a
//! page's last read to this one, which is *N* reads for *N* pages. *C* slots over *T* reads are *C·T*
//! slot-reads, so no policy has more than *C·T/N* hits, not even Belady's, if it may read a page
//! without keeping it. A fixed subset has them (`staging/tests.rs`).
//!
//! The engine and the simulator drive a [`Staging`] alike, per decode step:
//!
//! 1. [`Staging::push_step`] with the pages that each layer needs from outside L1. Push the next step
//!    before the current one ends, so that the buffers do not run empty between steps.
//! 2. [`Staging::poll_action`] until `None`. [`StagingAction::Fetch`]: submit the copy to
//!    [`crate::transfer::Transfers`]. [`StagingAction::Urge`]: promote it. [`StagingAction::Compute`]:
//!    compute this tile of this layer.
//! 3. [`Staging::handle`] with what happened; then poll again.
//!
//! **Late and lost pages.** A page that is missing when its tile is next counts as late, and its copy
//! is urged. If the mover gives up, [`StagingAction::ReadNow`] asks for a synchronous read. A damaged
//! or missing page leads to [`StagingAction::Recompute`]. Both end with [`StagingEvent::Arrived`], so
//! each needed page arrives or is reported, and no step hangs on the policy.
//!
//! **Tiles.** A layer with more pages than a buffer is split into tiles, if the engine can compute
//! attention in parts ([`StagingConfig::tiles`]). An engine that chooses its tiles itself pushes each
//! as a layer. It may also fetch a few pages with one copy ([`Fetched::num_pages`]).

mod stats;

pub use stats::{StagingCounts, effective_ns};

use std::collections::{BTreeSet, VecDeque};

/// What one copy brings: a page, or a few together. A buffer has a place for each, and counters count
/// pages.
pub trait Fetched: Clone {
    /// Number of pages.
    fn num_pages(&self) -> u64 {
        1
    }
}

/// The staging area of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingConfig {
    /// Number of buffers: the tile that computes has one, and the others receive the next tiles. 2
    /// is double buffering; 3 lets *l* + 1 and *l* + 2 arrive while *l* computes (eq. 2).
    pub buffers: u32,
    /// Pages per buffer.
    pub buffer_pages: u32,
    /// Whether a layer may be computed in parts. If not, a layer that exceeds a buffer is an error.
    pub tiles: bool,
}

/// A layer does not fit into a buffer, and [`StagingConfig::tiles`] is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerTooLarge {
    /// Index of the layer.
    pub layer: u32,
    /// Pages that it needs beyond L1.
    pub pages: usize,
    /// Pages of a buffer.
    pub buffer_pages: u32,
}

impl std::fmt::Display for LayerTooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { layer, pages, buffer_pages } = self;
        write!(f, "layer {layer} needs {pages} pages beyond L1, but a staging buffer has {buffer_pages}; enlarge it")
    }
}

impl std::error::Error for LayerTooLarge {}

/// Place of a page in the staging area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Number of the tile; later tiles have larger numbers. With the slot it names one fetch.
    pub tile: u64,
    /// Buffer, below [`StagingConfig::buffers`].
    pub buffer: u32,
    /// Slot in the buffer, below [`StagingConfig::buffer_pages`].
    pub slot: u32,
}

/// What the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StagingAction<P> {
    /// Copy the page to the place. `is_urgent`: its tile is next, so this is a demand copy.
    Fetch {
        /// The destination.
        place: Place,
        /// Layer of the page.
        layer: u32,
        /// The page.
        page: P,
        /// Whether the computation waits for it already.
        is_urgent: bool,
    },
    /// The computation waits for this earlier fetch: promote it to demand.
    Urge(Place),
    /// The fetch, or its repair, has no use any more: cancel it. Report [`StagingEvent::Cancelled`]
    /// as soon as no copy can write to the place; until then it receives no other page.
    Cancel(Place),
    /// The mover gave the copy up: read the page synchronously into the place.
    ReadNow(Place, P),
    /// The page is damaged or missing: recompute it into the place.
    Recompute(Place, P),
    /// All pages of the tile are staged: compute it. Report [`StagingEvent::Computed`].
    Compute {
        /// Number of the step, in the order of [`Staging::push_step`].
        step: u64,
        /// Layer to compute.
        layer: u32,
        /// Number of the tile.
        tile: u64,
        /// Buffer that holds its pages.
        buffer: u32,
        /// The pages by slot.
        pages: Vec<P>,
        /// Whether this is the layer's last tile in this step.
        is_last: bool,
    },
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagingEvent {
    /// The page is in its place.
    Arrived(Place),
    /// The mover gave the copy up: it expired, or its source is busy.
    GivenUp(Place),
    /// The page failed its checksum, or no tier has it.
    Damaged(Place),
    /// The copy that [`StagingAction::Cancel`] named never started, or has ended.
    Cancelled(Place),
    /// The tile that [`StagingAction::Compute`] named is computed. Its buffer is free.
    Computed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    Waiting,
    Fetching,
    Staged,
}

#[derive(Clone, Debug)]
struct Tile<P> {
    number: u64,
    step: u64,
    layer: u32,
    is_last: bool,
    pages: Vec<P>,
    states: Vec<PageState>,
    num_staged: usize,
    /// Slots before it were fetched.
    num_fetched: usize,
    /// Slots before it were urged, or are staged.
    num_urged: usize,
    /// Instants of the first fetch and of the last arrival.
    fetched_at: u64,
    staged_at: u64,
}

impl<P: Fetched> Tile<P> {
    fn is_staged(&self) -> bool {
        self.num_staged == self.pages.len()
    }

    /// Pages in this state.
    fn num_pages(&self, state: PageState) -> u64 {
        self.pages.iter().zip(&self.states).filter(|(_, own)| **own == state).map(|(page, _)| page.num_pages()).sum()
    }
}

/// The order of arrival and computation of all tiles.
#[derive(Clone, Debug)]
pub struct Staging<P> {
    config: StagingConfig,
    /// Tiles from the one that computes or is next, by rising number.
    tiles: VecDeque<Tile<P>>,
    next_number: u64,
    next_step: u64,
    is_computing: bool,
    /// Since when the computation waits for the first tile.
    stalled_since: Option<u64>,
    repairs: VecDeque<StagingAction<P>>,
    cancels: VecDeque<Place>,
    /// (buffer, slot) that a cancelled copy may still write.
    draining: BTreeSet<(u32, u32)>,
    counts: StagingCounts,
}

impl<P: Fetched> Staging<P> {
    /// An empty staging area.
    ///
    /// # Panics
    /// Panics with fewer than two buffers, or with buffers without pages.
    #[must_use]
    pub fn new(config: StagingConfig) -> Self {
        assert!(config.buffers >= 2, "one buffer cannot receive a tile while another computes");
        assert!(config.buffer_pages > 0, "a buffer has pages");
        Self {
            config,
            tiles: VecDeque::new(),
            next_number: 0,
            next_step: 0,
            is_computing: false,
            stalled_since: None,
            repairs: VecDeque::new(),
            cancels: VecDeque::new(),
            draining: BTreeSet::new(),
            counts: StagingCounts::default(),
        }
    }

    /// Appends a step: per layer, in order, the pages that attention reads and L1 does not hold. A
    /// layer without such pages still gets a tile, because it computes too. Returns the number of
    /// the step, from 0.
    ///
    /// # Errors
    /// A layer exceeds a buffer and tiles are off. Then nothing was appended.
    pub fn push_step(&mut self, layers: Vec<Vec<P>>) -> Result<u64, LayerTooLarge> {
        let most = self.config.buffer_pages as usize;
        let too_large = (0..).zip(&layers).find(|(_, pages)| !self.config.tiles && pages.len() > most);
        if let Some((layer, pages)) = too_large {
            return Err(LayerTooLarge { layer, pages: pages.len(), buffer_pages: self.config.buffer_pages });
        }
        let step = self.next_step;
        self.next_step += 1;
        for (layer, mut rest) in (0..).zip(layers) {
            while rest.len() > most {
                let after = rest.split_off(most);
                self.push_tile(step, layer, false, rest);
                rest = after;
            }
            self.push_tile(step, layer, true, rest);
        }
        Ok(step)
    }

    fn push_tile(&mut self, step: u64, layer: u32, is_last: bool, pages: Vec<P>) {
        self.tiles.push_back(Tile {
            number: self.next_number,
            step,
            layer,
            is_last,
            states: vec![PageState::Waiting; pages.len()],
            pages,
            num_staged: 0,
            num_fetched: 0,
            num_urged: 0,
            fetched_at: 0,
            staged_at: 0,
        });
        self.next_number += 1;
    }

    /// Drops the tiles of `step` and of later steps, except one that computes, because a request of
    /// the batch ended or joined. Returns the number of dropped tiles. The result of a layer with
    /// dropped tiles is incomplete: discard it, and push the steps anew.
    pub fn abandon_from(&mut self, step: u64) -> usize {
        let first = self.tiles.iter().position(|tile| tile.step >= step).unwrap_or(self.tiles.len());
        let keep = first.max(usize::from(self.is_computing)).min(self.tiles.len());
        let dropped: Vec<_> = self.tiles.drain(keep..).collect();
        for tile in &dropped {
            for (slot, _) in (0..).zip(&tile.states).filter(|(_, state)| **state == PageState::Fetching) {
                let place = self.place(tile.number, slot);
                self.cancels.push_back(place);
                self.draining.insert((place.buffer, slot));
            }
            self.counts.wasted += tile.num_pages(PageState::Fetching) + tile.num_pages(PageState::Staged);
        }
        let is_kept = |place: &Place| dropped.first().is_none_or(|tile| place.tile < tile.number);
        self.repairs.retain(|repair| match repair {
            StagingAction::ReadNow(place, _) | StagingAction::Recompute(place, _) => is_kept(place),
            _ => true,
        });
        // A tile's buffer follows from its number, so new numbers continue the ring of buffers. They
        // are larger than all dropped ones, so that a late arrival of those names no new tile.
        let ring = u64::from(self.config.buffers);
        self.next_number += (ring - dropped.len() as u64 % ring) % ring;
        if keep == 0 {
            self.stalled_since = None;
        }
        dropped.len()
    }

    fn place(&self, tile: u64, slot: u32) -> Place {
        Place { tile, buffer: (tile % u64::from(self.config.buffers)) as u32, slot }
    }

    /// The next action at `now` (nanoseconds). Call it until it returns `None`.
    #[must_use]
    pub fn poll_action(&mut self, now: u64) -> Option<StagingAction<P>> {
        if let Some(place) = self.cancels.pop_front() {
            return Some(StagingAction::Cancel(place));
        }
        if let Some(repair) = self.repairs.pop_front() {
            return Some(repair);
        }
        self.compute(now).or_else(|| self.urge()).or_else(|| self.fetch(now))
    }

    fn compute(&mut self, now: u64) -> Option<StagingAction<P>> {
        let tile = self.tiles.front().filter(|_| !self.is_computing)?;
        if !tile.is_staged() {
            if self.stalled_since.is_none() {
                self.stalled_since = Some(now);
                self.counts.late += tile.num_pages(PageState::Fetching);
                self.counts.cold += tile.num_pages(PageState::Waiting);
            }
            return None;
        }
        let stall = self.stalled_since.take().map_or(0, |since| now.saturating_sub(since));
        self.counts.computed(tile.num_pages(PageState::Staged), stall, tile.staged_at.saturating_sub(tile.fetched_at));
        self.is_computing = true;
        Some(StagingAction::Compute {
            step: tile.step,
            layer: tile.layer,
            tile: tile.number,
            buffer: self.place(tile.number, 0).buffer,
            pages: tile.pages.clone(),
            is_last: tile.is_last,
        })
    }

    /// The next fetch of the first tile that was not urgent when it began.
    fn urge(&mut self) -> Option<StagingAction<P>> {
        self.stalled_since?;
        let tile = self.tiles.front_mut()?;
        while tile.num_urged < tile.num_fetched {
            let slot = tile.num_urged;
            tile.num_urged += 1;
            if tile.states[slot] == PageState::Fetching {
                let number = tile.number;
                return Some(StagingAction::Urge(self.place(number, slot as u32)));
            }
        }
        None
    }

    fn fetch(&mut self, now: u64) -> Option<StagingAction<P>> {
        let window = self.config.buffers as usize;
        let at = self.tiles.iter().take(window).position(|tile| tile.num_fetched < tile.pages.len())?;
        let slot = self.tiles[at].num_fetched as u32;
        let place = self.place(self.tiles[at].number, slot);
        if self.draining.contains(&(place.buffer, slot)) {
            return None;
        }
        let is_urgent = at == 0 && self.stalled_since.is_some();
        let tile = &mut self.tiles[at];
        if tile.num_fetched == 0 {
            tile.fetched_at = now;
        }
        tile.states[slot as usize] = PageState::Fetching;
        tile.num_fetched += 1;
        if is_urgent {
            tile.num_urged = tile.num_fetched;
        }
        let page = tile.pages[slot as usize].clone();
        self.counts.fetched += page.num_pages();
        Some(StagingAction::Fetch { place, layer: tile.layer, page, is_urgent })
    }

    /// Records an event at `now` (nanoseconds). Events of places that are not fetched are ignored: a
    /// synchronous read and a late copy may both arrive.
    pub fn handle(&mut self, now: u64, event: StagingEvent) {
        match event {
            StagingEvent::Computed if self.is_computing => {
                self.is_computing = false;
                self.tiles.pop_front();
            }
            StagingEvent::Computed => {}
            StagingEvent::Cancelled(place) => {
                self.draining.remove(&(place.buffer, place.slot));
            }
            StagingEvent::Arrived(place) => {
                let Some(tile) = self.fetching(place) else { return };
                tile.states[place.slot as usize] = PageState::Staged;
                tile.num_staged += 1;
                tile.staged_at = now;
            }
            StagingEvent::GivenUp(place) => {
                let Some(page) = self.fetching(place).map(|tile| tile.pages[place.slot as usize].clone()) else {
                    return;
                };
                self.counts.read_now += page.num_pages();
                self.repairs.push_back(StagingAction::ReadNow(place, page));
            }
            StagingEvent::Damaged(place) => {
                let Some(page) = self.fetching(place).map(|tile| tile.pages[place.slot as usize].clone()) else {
                    return;
                };
                self.counts.recomputed += page.num_pages();
                self.repairs.push_back(StagingAction::Recompute(place, page));
            }
        }
    }

    /// The tile of a page that is being fetched.
    fn fetching(&mut self, place: Place) -> Option<&mut Tile<P>> {
        let at = self.tiles.binary_search_by_key(&place.tile, |tile| tile.number).ok()?;
        let tile = &mut self.tiles[at];
        (tile.states.get(place.slot as usize) == Some(&PageState::Fetching)).then_some(tile)
    }

    /// Number of tiles that wait or compute.
    #[must_use]
    pub fn num_tiles(&self) -> usize {
        self.tiles.len()
    }

    /// The counters.
    #[must_use]
    pub const fn counts(&self) -> &StagingCounts {
        &self.counts
    }
}

#[cfg(test)]
mod tests;
