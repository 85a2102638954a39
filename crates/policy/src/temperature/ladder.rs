//! The cost ladder: compress, demote to L4, evict.
//!
//! Each rung frees bytes and costs time twice: once now, and once more if the page is read again. The
//! choice is the rung with the least expected time per freed byte.

/// Facts about a page that may make room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PageFacts {
    /// Its bytes where room is needed.
    pub bytes: u64,
    /// Probability that it is read again before it would have left anyway, 0 to 1.
    pub reuse: f64,
    /// Bytes after compression. `None`: it is compressed already, or has no admissible codec.
    pub compressed_bytes: Option<u64>,
    /// Whether L4 holds a copy already, so that demotion writes nothing.
    pub is_in_l4: bool,
    /// Nanoseconds to compute its KV again, if no tier has it.
    pub recompute_ns: u64,
}

/// Times of the rungs, in nanoseconds: what other work is delayed by them. A write-behind on an idle
/// disk delays nothing and costs 0. Its whole time at every load would stop demotion, and then no
/// block is ever found in L4, which is the reason to stop: the loop never recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LadderCosts {
    /// Encoding a page.
    pub encode_ns: u64,
    /// Decoding it, on each later read.
    pub decode_ns: u64,
    /// Writing it to L4. `None`: L4 is absent, full or out of order.
    pub l4_write_ns: Option<u64>,
    /// Reading it from L4.
    pub l4_read_ns: u64,
}

/// A rung of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// Encode the page where it is.
    Compress,
    /// Move it to L4.
    Demote,
    /// Forget it.
    Evict,
}

impl Rung {
    /// Bytes that the rung frees; 0 if it is not possible.
    #[must_use]
    pub fn freed_bytes(self, page: &PageFacts, costs: &LadderCosts) -> u64 {
        match self {
            Self::Compress => page.compressed_bytes.map_or(0, |bytes| page.bytes.saturating_sub(bytes)),
            Self::Demote if page.is_in_l4 || costs.l4_write_ns.is_some() => page.bytes,
            Self::Demote => 0,
            Self::Evict => page.bytes,
        }
    }

    /// Expected nanoseconds: now, and at the next read if there is one.
    #[must_use]
    pub fn expected_ns(self, page: &PageFacts, costs: &LadderCosts) -> f64 {
        let reuse = if page.reuse.is_finite() { page.reuse.clamp(0.0, 1.0) } else { 1.0 };
        let (now, later) = match self {
            Self::Compress => (costs.encode_ns, costs.decode_ns),
            Self::Demote if page.is_in_l4 => (0, costs.l4_read_ns),
            Self::Demote => (costs.l4_write_ns.unwrap_or(u64::MAX), costs.l4_read_ns),
            Self::Evict => (0, page.recompute_ns),
        };
        now as f64 + reuse * later as f64
    }
}

/// The rung with the least expected time per freed byte. Ties go to the earlier rung, which loses
/// less. A page of 0 bytes is evicted.
#[must_use]
pub fn cheapest_rung(page: &PageFacts, costs: &LadderCosts) -> Rung {
    let price = |rung: Rung| {
        let freed = rung.freed_bytes(page, costs);
        (freed > 0).then(|| rung.expected_ns(page, costs) / freed as f64)
    };
    let rungs = [Rung::Compress, Rung::Demote, Rung::Evict].into_iter();
    let priced = rungs.filter_map(|rung| Some((rung, price(rung)?)));
    priced.min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0))).map_or(Rung::Evict, |(rung, _)| rung)
}
