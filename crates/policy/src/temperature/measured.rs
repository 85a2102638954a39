//! The ladder for L4, with measured times: which blocks L4 keeps, and which come back.

use super::ladder::{LadderCosts, PageFacts, Rung, cheapest_rung};
use crate::fetch::Way;

/// Weight of a measurement in its average.
const GAIN: f64 = 0.125;
/// Part of the read time that an unused estimate loses, so that one slow read does not end promotion
/// for good.
const FADE: f64 = 1.0 / 16.0;

/// Time per unit of work, averaged exponentially.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Pace(Option<f64>);

impl Pace {
    fn observe(&mut self, units: u64, ns: u64) {
        if units > 0 {
            let found = ns as f64 / units as f64;
            self.0 = Some(self.0.map_or(found, |average| average + GAIN * (found - average)));
        }
    }

    fn ns(self, units: u64) -> Option<u64> {
        self.0.map(|pace| (pace * units as f64) as u64)
    }
}

/// A block beside L4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdBlock {
    /// Bytes of its payload.
    pub bytes: u64,
    /// Its tokens; 0: not known.
    pub tokens: u64,
    /// Whether L4 has it.
    pub is_in_l4: bool,
}

/// Another form of a block that leaves it where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Its bytes then.
    pub bytes: u64,
    /// Nanoseconds of other work that encoding it delays.
    pub encode_ns: u64,
    /// Nanoseconds to decode it, on each later read.
    pub decode_ns: u64,
}

/// What is known of L4's device, of computing KV, and of the use of blocks that L4 keeps. All times
/// are unknown at first: then L4 keeps each block and returns each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredLadder {
    read_byte: Pace,
    write_byte: Pace,
    compute_token: Pace,
    kept: u64,
    reused: u64,
}

impl MeasuredLadder {
    /// Blocks of so many bytes were read in `ns`. Of several readers at once, each reports its part of
    /// the time.
    pub fn has_read(&mut self, blocks: u64, bytes: u64, ns: u64) {
        self.reused += blocks;
        self.read_byte.observe(bytes, ns);
    }

    /// Blocks of so many bytes were written in `ns`.
    pub fn has_written(&mut self, blocks: u64, bytes: u64, ns: u64) {
        self.kept += blocks;
        self.write_byte.observe(bytes, ns);
    }

    /// KV of so many tokens was computed in `ns`.
    pub fn has_computed(&mut self, tokens: u64, ns: u64) {
        self.compute_token.observe(tokens, ns);
    }

    /// Share of the kept blocks that were read again, with a prior of a half.
    #[must_use]
    pub fn reuse(&self) -> f64 {
        ((self.reused as f64 + 1.0) / (self.kept as f64 + 2.0)).min(1.0)
    }

    /// What happens to a block that is about to leave the memory above L4, or may leave it later.
    /// `encoding`: it may stay there in this form instead. `waiting` of at most `most` blocks wait to
    /// be written.
    ///
    /// No step waits for a write. It costs what it delays: nothing on an idle disk, and all of its
    /// time when the queue is full. A full queue counts as an absent L4.
    #[must_use]
    pub fn rung_of(&self, block: &ColdBlock, encoding: Option<Encoding>, waiting: u64, most: u64) -> Rung {
        let page = PageFacts {
            bytes: block.bytes,
            reuse: self.reuse(),
            compressed_bytes: encoding.map(|encoding| encoding.bytes),
            is_in_l4: block.is_in_l4,
            recompute_ns: self.compute_ns(block).unwrap_or(u64::MAX),
        };
        let whole = self.write_byte.ns(block.bytes).unwrap_or(0);
        let share = |ns: u64| (u128::from(ns) * u128::from(waiting) / u128::from(most.max(1))) as u64;
        let costs = LadderCosts {
            encode_ns: encoding.map_or(0, |encoding| encoding.encode_ns),
            decode_ns: encoding.map_or(0, |encoding| encoding.decode_ns),
            l4_write_ns: (waiting < most).then(|| share(whole)),
            l4_read_ns: self.read_byte.ns(block.bytes).unwrap_or(0),
        };
        cheapest_rung(&page, &costs)
    }

    /// How many of a request's next `listed` blocks, all like `block`, are read from L4: those that
    /// arrive within `deadline_ns`, behind `waiting` others of the same size, if reading one takes
    /// less time than computing it.
    pub fn worth_promoting(&mut self, block: &ColdBlock, listed: u64, waiting: u64, deadline_ns: u64) -> u64 {
        let Some(read_ns) = self.read_byte.ns(block.bytes).filter(|ns| *ns > 0) else { return listed };
        let in_time = (deadline_ns / read_ns).saturating_sub(waiting).min(listed);
        let pays = self.compute_ns(block).is_none_or(|compute_ns| read_ns <= compute_ns);
        let worth = if pays { in_time } else { 0 };
        if worth < listed && waiting == 0 {
            // Nothing that is not read renews the estimate.
            self.read_byte.0 = self.read_byte.0.map(|pace| pace * (1.0 - FADE));
        }
        worth
    }

    /// What L4 offers to a request that lacks `listed` blocks like this one, behind `waiting` others.
    #[must_use]
    pub fn way(&self, block: &ColdBlock, listed: u64, waiting: u64, deadline_ns: u64) -> Way {
        let block_ns = self.read_byte.ns(block.bytes).map(|ns| ns as f64);
        let queue_ns = waiting as f64 * block_ns.unwrap_or(0.0);
        Way { blocks: listed, waiting, queue_ns, seek_ns: 0.0, block_ns, found: 1.0, deadline_ns }
    }

    fn compute_ns(&self, block: &ColdBlock) -> Option<u64> {
        self.compute_token.ns(block.tokens).filter(|_| block.tokens > 0)
    }
}

/// A part of L4 that leaves as a whole: an extent, or an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPart<K> {
    /// Its name. Names sort by age, the oldest first.
    pub key: K,
    /// Its bytes, or those that it may grow to.
    pub bytes: u64,
    /// It stays: a process appends to it.
    pub is_open: bool,
}

/// The parts that leave so that the others have at most `bytes`: the oldest. `None`: those that may
/// leave do not suffice.
///
/// Age decides, not use: a block of L4 that is read again enters the region, where eviction knows its
/// recency, and a part holds blocks of many requests.
#[must_use]
pub fn leaving_parts<K: Ord>(mut parts: Vec<StoredPart<K>>, bytes: u64) -> Option<Vec<K>> {
    let mut used = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
    parts.sort_by(|one, other| one.key.cmp(&other.key));
    let mut leaving = Vec::new();
    for part in parts.into_iter().filter(|part| !part.is_open) {
        if used <= bytes {
            break;
        }
        used -= part.bytes;
        leaving.push(part.key);
    }
    (used <= bytes).then_some(leaving)
}
