//! What a trace allows: the hit rate with knowledge of the future, how soon blocks return, and which
//! blocks each policy evicts.

use super::Instants;
use crate::cache::{BlockCache, MakeRoom};
use crate::kernel::Time;
use crate::workload::Workload;
use cenote_policy::Eviction;
use serde::Serialize;
use std::collections::BTreeSet;

/// No later request.
const NEVER: u32 = u32::MAX;
/// Upper ends of the classes of idle time, in seconds; the last class has none.
const CLASSES_S: [u64; 7] = [15, 30, 60, 120, 300, 1_200, 3_600];

/// Per occurrence of a block, in the order of the requests: the next request with it, or [`NEVER`].
fn next_uses(workload: &Workload) -> Vec<u32> {
    let total = workload.requests().iter().map(|request| workload.blocks(request).len()).sum();
    let (mut next, mut latest) = (vec![NEVER; total], vec![NEVER; workload.num_blocks()]);
    let mut end = total;
    for (at, request) in workload.requests().iter().enumerate().rev() {
        let blocks = workload.blocks(request);
        end -= blocks.len();
        for (slot, &block) in next[end..].iter_mut().zip(blocks) {
            *slot = std::mem::replace(&mut latest[block as usize], at as u32);
        }
    }
    next
}

/// Hit rate of a cache of `capacity` blocks that knows all later requests: the block that is asked for
/// last leaves, the deepest first, and a new block may be the one that leaves (Belady, 1966). No policy
/// finds more blocks. Counted as in [`super::hit_rate`].
#[must_use]
pub fn best_hit_rate(workload: &Workload, capacity: usize) -> f64 {
    let next = next_uses(workload);
    // Next use and depth of a cached block.
    let mut cached: Vec<Option<(u32, u32)>> = vec![None; workload.num_blocks()];
    let mut order: BTreeSet<(u32, u32, u32)> = BTreeSet::new();
    let (mut begin, mut hits) = (0, 0);
    for request in workload.requests() {
        let blocks = workload.blocks(request);
        hits += blocks.iter().take_while(|&&block| cached[block as usize].is_some()).count();
        for (depth, (&block, &next)) in (0..).zip(blocks.iter().zip(&next[begin..])) {
            if let Some((next, depth)) = cached[block as usize].replace((next, depth)) {
                order.remove(&(next, depth, block));
            }
            order.insert((next, depth, block));
            if order.len() > capacity {
                let (_, _, last) = order.pop_last().expect("a block was inserted");
                cached[last as usize] = None;
            }
        }
        begin += blocks.len();
    }
    if begin == 0 { 0.0 } else { hits as f64 / begin as f64 }
}

/// Blocks that were idle for some time, and how many of them were asked for again soon after.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Returns {
    /// Begin of the class, in seconds since the last use.
    pub from_s: u64,
    /// Its end. None: there is no end.
    pub to_s: Option<u64>,
    /// Uses of blocks with no later use before `from_s`.
    pub idle: u64,
    /// Those of them with the next use before `to_s`.
    pub returned: u64,
    /// `returned` over the seconds that those blocks were idle in this class; 0 in the last class.
    pub per_s: f64,
}

/// How soon blocks return, by the time since their last use.
#[must_use]
pub fn returns(workload: &Workload) -> Vec<Returns> {
    let next = next_uses(workload);
    let requests = workload.requests();
    let mut begins: Vec<u64> = vec![0];
    begins.extend(CLASSES_S);
    let mut rows: Vec<Returns> = (begins.iter().enumerate())
        .map(|(at, &from_s)| Returns { from_s, to_s: begins.get(at + 1).copied(), idle: 0, returned: 0, per_s: 0.0 })
        .collect();
    let mut exposed = vec![0.0; rows.len()];
    let mut begin = 0;
    for request in requests {
        let count = workload.blocks(request).len();
        for &next in &next[begin..begin + count] {
            let gap: Option<Time> = (next != NEVER).then(|| requests[next as usize].arrival - request.arrival);
            let gap_s = gap.map_or(f64::INFINITY, |gap| gap as f64 / 1e9);
            for (row, exposed) in rows.iter_mut().zip(&mut exposed) {
                let (from, to) = (row.from_s as f64, row.to_s.map_or(f64::INFINITY, |to| to as f64));
                if gap_s < from {
                    break;
                }
                row.idle += 1;
                row.returned += u64::from(gap_s < to);
                *exposed += gap_s.min(to) - from;
            }
        }
        begin += count;
    }
    for (row, exposed) in rows.iter_mut().zip(exposed) {
        let is_measured = row.to_s.is_some() && exposed > 0.0;
        row.per_s = if is_measured { row.returned as f64 / exposed } else { 0.0 };
    }
    rows
}

/// The blocks that a policy evicts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evicted {
    /// Number of evictions.
    pub blocks: u64,
    /// Share of them that a later request asks for.
    pub wanted: f64,
    /// Share of them that no request had found since they were stored, and that a later one asks for.
    pub wanted_unfound: f64,
    /// Median of the seconds since their last use.
    pub idle_p50_s: f64,
    /// Share of the blocks in a full cache that no later request asks for, averaged over requests.
    pub dead: f64,
}

/// Replays a trace as [`super::hit_rate`] does, and states which blocks leave.
#[must_use]
pub fn evictions(workload: &Workload, eviction: Eviction, capacity: usize, instants: Instants) -> Evicted {
    let next = next_uses(workload);
    let mut cache = BlockCache::new(eviction, Some(capacity), workload.num_blocks());
    // Of each block: the next request with it, the time of its last use, and whether it was found.
    let mut of: Vec<(u32, Time, bool)> = vec![(NEVER, 0, false); workload.num_blocks()];
    let (mut instant, mut begin, mut dead) = (0_u64, 0, 0_usize);
    let (mut wanted, mut unfound, mut idle) = (0_u64, 0_u64, Vec::new());
    let (mut dead_sum, mut full) = (0.0, 0_u64);
    for request in workload.requests() {
        let blocks = workload.blocks(request);
        instant += 1;
        for (depth, (&block, &next)) in (0..).zip(blocks.iter().zip(&next[begin..])) {
            let now = request.arrival;
            let was_cached = cache.touch_in(block, depth, instant, crate::cache::WHOLE, &mut |victim| {
                let (next, last, was_found) = of[victim.block as usize];
                wanted += u64::from(next != NEVER);
                unfound += u64::from(next != NEVER && !was_found);
                dead -= usize::from(next == NEVER);
                idle.push(now - last);
                MakeRoom::Evict
            });
            dead += usize::from(next == NEVER && cache.contains(block));
            of[block as usize] = (next, now, was_cached);
            instant += u64::from(instants == Instants::Block);
        }
        begin += blocks.len();
        if cache.len() == capacity {
            full += 1;
            dead_sum += dead as f64 / capacity as f64;
        }
    }
    let blocks = idle.len() as u64;
    let share = |part: u64| if blocks == 0 { 0.0 } else { part as f64 / blocks as f64 };
    idle.sort_unstable();
    Evicted {
        blocks,
        wanted: share(wanted),
        wanted_unfound: share(unfound),
        idle_p50_s: idle.get(idle.len() / 2).map_or(0.0, |idle| *idle as f64 / 1e9),
        dead: if full == 0 { 0.0 } else { dead_sum / full as f64 },
    }
}
