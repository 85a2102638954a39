//! What staging did, and the time that it hid.

/// Counters of a staging area since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagingCounts {
    /// Tiles handed to the computation.
    pub tiles: u64,
    /// Their pages.
    pub pages: u64,
    /// Fetches.
    pub fetched: u64,
    /// Pages whose copy was under way when the computation needed them.
    pub late: u64,
    /// Pages whose copy had not begun when the computation needed them: no buffer was free, or the
    /// step was not known before.
    pub cold: u64,
    /// Copies that the mover gave up, each replaced by a synchronous read.
    pub read_now: u64,
    /// Damaged or missing pages, each recomputed.
    pub recomputed: u64,
    /// Fetches of tiles that were abandoned.
    pub wasted: u64,
    /// Nanoseconds in which the computation waited for pages.
    pub stall_ns: u64,
    /// Nanoseconds from a tile's first fetch to its last arrival, summed over the tiles.
    pub arrival_ns: u64,
    /// The part of `arrival_ns` in which the computation did not wait for the tile.
    pub hidden_ns: u64,
}

impl StagingCounts {
    pub(super) fn computed(&mut self, pages: u64, stall_ns: u64, arrival_ns: u64) {
        self.tiles += 1;
        self.pages += pages;
        self.stall_ns += stall_ns;
        self.arrival_ns += arrival_ns;
        self.hidden_ns += arrival_ns.saturating_sub(stall_ns);
    }
}

/// Eq. 2: the time of a layer whose pages arrive while `ahead` earlier layers compute, in the units
/// of the arguments. The paper has `ahead` = 2, which takes three buffers.
///
/// It assumes that the mover serves one layer alone. A mover that also serves the layers before and
/// after it needs at least its own time for each layer, so a steady stream takes `max(compute,
/// arrival)` per layer, for any `ahead`.
#[must_use]
pub fn effective_ns(compute: u64, arrival: u64, layer: u64, ahead: u64) -> u64 {
    compute + arrival.saturating_sub(ahead * layer)
}
