//! Which blocks leave the pool when it is full.
//!
//! The pool hands over what it knows of every block that may go; a policy names victims. Policies see
//! no region and keep no pointers, so the simulator can drive the same code.

use cenote_base::BlockIndex;

/// A block that may be evicted: published, unpinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The block.
    pub block: BlockIndex,
    /// When it was last read or published, in any monotonic unit.
    pub last_access: u64,
    /// Its place in the sequence it belongs to: 0 is the first block of a prompt.
    pub depth: u32,
}

/// Chooses victims.
pub trait EvictionPolicy: Send {
    /// Name on command lines and in reports.
    fn name(&self) -> &'static str;

    /// Picks at most `want` of `candidates`, the first to go first. May reorder `candidates`.
    fn victims(&mut self, candidates: &mut [Candidate], want: usize) -> Vec<BlockIndex>;
}

/// Least recently used (TraCT §4.2). A prompt's blocks are touched together, so among equals the deepest
/// goes first: a block without its predecessors can never be found again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lru;

impl EvictionPolicy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn victims(&mut self, candidates: &mut [Candidate], want: usize) -> Vec<BlockIndex> {
        let key = |c: &Candidate| (c.last_access, std::cmp::Reverse(c.depth), c.block);
        let want = want.min(candidates.len());
        if want == 0 {
            return Vec::new();
        }
        // Linear selection first: a pool holds millions of blocks and a call asks for few.
        let (left, pivot, _) = candidates.select_nth_unstable_by_key(want - 1, key);
        left.sort_unstable_by_key(key);
        left.iter().chain(std::iter::once(&*pivot)).map(|c| c.block).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(block: u64, last_access: u64, depth: u32) -> Candidate {
        Candidate { block: BlockIndex(block), last_access, depth }
    }

    #[test]
    fn oldest_first_and_tails_before_heads() {
        let mut all =
            [candidate(0, 5, 0), candidate(1, 5, 1), candidate(2, 9, 0), candidate(3, 1, 0), candidate(4, 5, 2)];
        let order: Vec<u64> = Lru.victims(&mut all, 4).into_iter().map(|b| b.0).collect();
        assert_eq!(order, [3, 4, 1, 0]);
        assert_eq!(Lru.victims(&mut all, 99).len(), 5);
        assert!(Lru.victims(&mut [], 3).is_empty());
    }
}
