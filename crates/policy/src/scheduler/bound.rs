//! How many spilled blocks admission and growth may lead to.
//!
//! The copies of a step's spilled blocks hide behind its computation up to some number of blocks. Below
//! it spilling costs nothing, and a larger batch is faster. Beyond it a step takes as long as its
//! copies. Then one more request adds its token to the batch, and all of its blocks to every step:
//! `n` requests of `c` blocks with `m` blocks of L1 generate `n / (n·c − m)` tokens per unit of time,
//! which falls with `n`. So no request is admitted as long as more is spilled, not even into L1, whose free
//! blocks take spilled ones back.
//!
//! Requests that run grow beyond the bound, and steps wait. Making room ends the waiting and costs
//! computing a request again. How long steps would wait otherwise is not known. So a request makes room
//! when steps have waited as long as that takes (the rule for renting or buying): what was waited in vain
//! exceeds what making room costs by one step at most.
//!
//! Where that is depends on the model, the link and the batch, so it is learned from steps. The bound
//! begins low and doubles until a step waits, because a burst of requests that was admitted stays.

/// Which requests may use how much of the spill space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpillUse {
    /// Admission as much as steps hide. Running requests grow until steps have waited too long.
    Hidden,
    /// Admission as much as steps hide, and running requests all of it: for sparse attention, whose steps
    /// do not read every block, and whose text changes if a request is computed again.
    Growth,
    /// All requests all of it.
    All,
}

/// What a step with its spilled blocks took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamedStep {
    /// Nanoseconds of the step.
    pub ns: u64,
    /// The part of it in which it waited for copies.
    pub waited_ns: u64,
    /// Spilled blocks that it read.
    pub blocks: u32,
}

/// Steps between two decisions. When the batch changes, the next step waits for its first layers,
/// which says nothing about the steps after it.
const WINDOW: u32 = 8;
/// A waited share of the time above 1/8 lowers the bound. One below 1/32 raises it: it doubles if it kept
/// a request out. After it was lowered once, it grows by an eighth if steps read nearly as much: one more
/// request for which they did wait would stay for its whole life.
const MUCH: u64 = 8;
const LITTLE: u64 = 32;
/// Part of L1 that the first bound is.
const FIRST: u32 = 8;

/// The learned bound, in blocks.
#[derive(Clone, Debug)]
pub(super) struct SpillBound {
    most: u32,
    blocks: u32,
    was_lowered: bool,
    kept_out: bool,
    steps: u32,
    sum: Sum,
    waited_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    ns: u64,
    waited_ns: u64,
    blocks: u64,
}

impl SpillBound {
    /// For a spill space of `most` blocks beside `num_blocks` of L1.
    pub fn new(most: u32, num_blocks: u32) -> Self {
        let blocks = most.min(num_blocks / FIRST + 1);
        Self { most, blocks, was_lowered: false, kept_out: false, steps: 0, sum: Sum::default(), waited_ns: 0 }
    }

    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Nanoseconds that steps with more spilled blocks have waited since a request last made room.
    pub const fn waited_ns(&self) -> u64 {
        self.waited_ns
    }

    /// A request made room.
    pub const fn makes_room(&mut self) {
        self.waited_ns = 0;
    }

    /// A request was not admitted that the spill space has room for.
    pub const fn keeps_out(&mut self) {
        self.kept_out = true;
    }

    pub fn observe(&mut self, step: StreamedStep) {
        if step.blocks > self.blocks {
            self.waited_ns = self.waited_ns.saturating_add(step.waited_ns.min(step.ns));
        }
        self.steps += 1;
        self.sum.ns = self.sum.ns.saturating_add(step.ns);
        self.sum.waited_ns = self.sum.waited_ns.saturating_add(step.waited_ns.min(step.ns));
        self.sum.blocks += u64::from(step.blocks);
        if self.steps == WINDOW {
            let Sum { ns, waited_ns, blocks } = std::mem::take(&mut self.sum);
            let read = blocks / u64::from(std::mem::take(&mut self.steps));
            let kept_out = std::mem::take(&mut self.kept_out);
            let is_near = read + read / 4 >= u64::from(self.blocks);
            let pays = if self.was_lowered { is_near } else { kept_out };
            if waited_ns > ns / MUCH {
                // As many as would have arrived without waiting.
                let hidden = u128::from(read) * u128::from(ns - waited_ns) / u128::from(ns.max(1));
                self.blocks = self.blocks.min(u32::try_from(hidden).unwrap_or(u32::MAX));
                self.was_lowered = true;
            } else if pays && waited_ns < ns / LITTLE {
                let more = if self.was_lowered { self.blocks / 8 } else { self.blocks };
                self.blocks = self.blocks.saturating_add(more + 1).min(self.most);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Steps that compute for `compute` while blocks of `block` arrive.
    fn run(bound: &mut SpillBound, steps: u32, compute: u64, block: u64, blocks: impl Fn(&SpillBound) -> u32) {
        for _ in 0..steps {
            let blocks = blocks(bound);
            let ns = compute.max(u64::from(blocks) * block);
            bound.keeps_out();
            bound.observe(StreamedStep { ns, waited_ns: ns - compute, blocks });
        }
    }

    #[test]
    fn it_grows_only_if_it_keeps_a_request_out() {
        let mut bound = SpillBound::new(1_000, 64);
        (0..100).for_each(|_| bound.observe(StreamedStep { ns: 1_000, waited_ns: 0, blocks: 9 }));
        assert_eq!(bound.blocks(), 9);
    }

    #[test]
    fn waiting_counts_beyond_the_bound_only() {
        let mut bound = SpillBound::new(1_000, 64);
        let waits = |blocks| StreamedStep { ns: 10, waited_ns: 3, blocks };
        bound.observe(waits(9));
        bound.observe(waits(10));
        bound.observe(waits(11));
        assert_eq!((bound.blocks(), bound.waited_ns()), (9, 6));
        bound.makes_room();
        assert_eq!(bound.waited_ns(), 0);
    }

    proptest! {
        #[test]
        fn it_finds_what_the_computation_hides(
            most in 64..10_000_u32,
            compute in 1_000_000..100_000_000_u64,
            block in 1_000..100_000_u64,
        ) {
            let mut bound = SpillBound::new(most, 64);
            // Admission fills it.
            run(&mut bound, 2_000, compute, block, SpillBound::blocks);
            let hidden = (compute / block).min(u64::from(most)) as f64;
            let found = f64::from(bound.blocks());
            prop_assert!(found >= 0.8 * hidden - 2.0 && found <= 1.2 * hidden + 2.0, "{found} of {hidden}");
            // A link that is four times as fast.
            run(&mut bound, 2_000, compute, block / 4, SpillBound::blocks);
            let hidden = (compute / (block / 4)).min(u64::from(most)) as f64;
            prop_assert!(f64::from(bound.blocks()) >= 0.8 * hidden - 2.0, "{} of {hidden}", bound.blocks());
        }
    }

    #[test]
    fn it_recovers_from_nothing() {
        let mut bound = SpillBound::new(1_000, 64);
        run(&mut bound, WINDOW, 1, 1_000_000, |_| 1_000);
        assert_eq!(bound.blocks(), 0);
        run(&mut bound, 1_000, 1_000_000, 1, SpillBound::blocks);
        assert_eq!(bound.blocks(), 1_000);
    }

    #[test]
    fn it_doubles_until_steps_wait() {
        let mut bound = SpillBound::new(100_000, 800);
        run(&mut bound, 5 * WINDOW, 1_000_000, 1, SpillBound::blocks);
        assert!(bound.blocks() > 16 * 100, "{}", bound.blocks());
    }

    #[test]
    fn one_step_that_waits_changes_nothing() {
        let mut bound = SpillBound::new(1_000, 16_000);
        for round in 0..100 {
            let waited_ns = if round % WINDOW == 3 { 500 } else { 0 };
            bound.observe(StreamedStep { ns: 1_000, waited_ns, blocks: 900 });
        }
        assert_eq!(bound.blocks(), 1_000);
    }
}
