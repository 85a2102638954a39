use super::*;
use crate::scheduler::tests::{config, request};
use crate::scheduler::{PrefixSource, SchedulerConfig, StreamedStep, SwapConfig};
use cenote_base::prng::Prng;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Content of a block: a request, and the index of the block in its table.
type Content = (RequestId, u32);

/// A driver that knows the content of each block. It checks that a step finds the computed tokens of
/// its requests.
struct Driver {
    scheduler: Scheduler,
    blocks: BTreeMap<BlockId, Content>,
    known: BTreeMap<RequestId, u32>,
    spilled: u64,
    promoted: u64,
    matched: u64,
    /// Spilled blocks that a step hides. It waits for all others.
    hidden: u32,
}

struct Matched(u32);

impl PrefixSource for Matched {
    fn num_matched_tokens(&mut self, _: RequestId) -> u32 {
        self.0
    }
}

impl Driver {
    fn new(config: SchedulerConfig) -> Self {
        let scheduler = Scheduler::new(config);
        Self {
            scheduler,
            blocks: BTreeMap::new(),
            known: BTreeMap::new(),
            spilled: 0,
            promoted: 0,
            matched: 0,
            hidden: u32::MAX,
        }
    }

    fn add(&mut self, id: u64, num_tokens: u32, output: u32) {
        self.scheduler.add(request(id, num_tokens, output)).expect("it fits");
        self.known.insert(RequestId(id), num_tokens + output);
    }

    fn first_spilled(&self) -> BlockId {
        self.scheduler.config.num_blocks
    }

    /// Runs a step with prompts of which `matched` tokens are found. `lose` draws spilled blocks that
    /// are damaged.
    fn step(&mut self, matched: u32, lose: &mut dyn FnMut() -> bool) {
        let output = self.scheduler.schedule(&mut Matched(matched));
        for block in self.scheduler.take_freed_spill() {
            self.blocks.remove(&block);
        }
        for moved in &output.spilled {
            assert_eq!(self.blocks.remove(&moved.block), Some((moved.id, moved.index)), "{moved:?}");
            assert!(self.blocks.insert(moved.spilled, (moved.id, moved.index)).is_none(), "{moved:?}");
        }
        for moved in &output.promoted {
            assert_eq!(self.blocks.remove(&moved.spilled), Some((moved.id, moved.index)), "{moved:?}");
            self.blocks.insert(moved.block, (moved.id, moved.index));
        }
        (self.spilled, self.promoted) =
            (self.spilled + output.spilled.len() as u64, self.promoted + output.promoted.len() as u64);
        let size = self.scheduler.config.block_size;
        for part in &output.scheduled {
            let table = self.scheduler.block_table(part.id).to_vec();
            for (index, block) in (0..).zip(&table) {
                if index * size < part.num_loaded_tokens {
                    self.matched += u64::from(*block >= self.first_spilled());
                    self.blocks.insert(*block, (part.id, index));
                }
                if index * size < part.num_computed_tokens {
                    assert_eq!(self.blocks.get(block), Some(&(part.id, index)), "{part:?} {table:?}");
                } else {
                    assert!(*block < self.first_spilled(), "new KV is written to L1");
                    self.blocks.insert(*block, (part.id, index));
                }
            }
            assert!(table.len() as u32 * size >= part.num_computed_tokens + part.num_new_tokens);
            let num_spilled = self.scheduler.num_spilled_blocks(part.id);
            assert!((0..).zip(&table).all(|(index, block)| (index < num_spilled) == (*block >= self.first_spilled())));
            if num_spilled > 0 && lose() {
                self.scheduler.rollback(part.id, (num_spilled as u32 - 1) * size);
                continue;
            }
            self.scheduler.computed(part.id, part.num_new_tokens);
            if part.samples {
                self.scheduler.append_token(part.id);
            }
        }
        let blocks: u32 = output.scheduled.iter().map(|part| self.scheduler.num_spilled_blocks(part.id) as u32).sum();
        let waited_ns = u64::from(blocks.saturating_sub(self.hidden));
        let ns = u64::from(self.hidden).saturating_add(waited_ns);
        self.scheduler.streamed(StreamedStep { ns, waited_ns, blocks });
        let is_done =
            |(id, most): (&RequestId, &u32)| (self.scheduler.num_computed_tokens(*id) + 1 >= *most).then_some(*id);
        let done: Vec<RequestId> = self.known.iter().filter_map(is_done).collect();
        for id in done {
            self.known.remove(&id);
            self.scheduler.finish(id);
        }
    }

    fn run(&mut self, matched: u32, lose: &mut dyn FnMut() -> bool) {
        for _ in 0..4_000 {
            if self.scheduler.is_idle() {
                assert_eq!(self.scheduler.num_free_blocks(), self.scheduler.num_blocks(), "a block leaked");
                return;
            }
            self.step(matched, lose);
        }
        panic!("the requests do not end: {:?}", self.scheduler);
    }
}

fn small(num_blocks: u32, spill_blocks: u32) -> SchedulerConfig {
    SchedulerConfig { num_blocks, spill_blocks, ..config() }
}

/// The same, where a token takes so long to compute again.
fn dear(num_blocks: u32, spill_blocks: u32, recompute_token_ns: u64) -> SchedulerConfig {
    SchedulerConfig { swap: SwapConfig { recompute_token_ns, ..SwapConfig::OFF }, ..small(num_blocks, spill_blocks) }
}

#[test]
fn a_request_longer_than_l1_runs_alone() {
    let mut driver = Driver::new(small(16, 64));
    assert!(driver.scheduler.add(request(9, 4 * 81, 0)).is_err(), "longer than L1 and the spill space");
    driver.add(1, 200, 60);
    driver.run(0, &mut || false);
    assert!(driver.spilled >= 65 - 16, "{}", driver.spilled);
}

#[test]
fn requests_run_at_once_that_do_not_fit_l1_together() {
    let mut driver = Driver::new(small(16, 64));
    (1..=4).for_each(|id| driver.add(id, 40, 30));
    let mut most = 0;
    while !driver.scheduler.is_idle() {
        driver.step(0, &mut || false);
        most = most.max(driver.scheduler.num_running());
    }
    assert_eq!((most, driver.scheduler.num_preemptions()), (4, 0));
}

#[test]
fn admission_stops_where_steps_wait() {
    let mut most_spilled = [0, 0];
    for (most, hidden) in most_spilled.iter_mut().zip([u32::MAX, 8]) {
        let mut driver = Driver { hidden, ..Driver::new(dear(16, 200, u64::MAX)) };
        (1..=40).for_each(|id| driver.add(id, 48, 8));
        let mut steps = 0;
        while !driver.scheduler.is_idle() {
            driver.step(0, &mut || false);
            let spilled = |slot: &Slot| driver.scheduler.requests[*slot].num_spilled;
            // What was admitted before the bound was learned has ended by then.
            steps += 1;
            if steps > 80 {
                *most = driver.scheduler.running.iter().map(spilled).sum::<u32>().max(*most);
            }
        }
        assert_eq!(driver.scheduler.num_preemptions(), 0);
    }
    assert!(most_spilled[0] > 30 && most_spilled[1] < 20, "{most_spilled:?}");
}

/// Four requests that grow to 24 blocks each, in 16 of L1. Steps hide 8 of the others.
#[test]
fn a_request_makes_room_when_steps_have_waited_as_long_as_it_takes_again() {
    let made_room = [0, 1, 4, 1_000, u64::MAX].map(|recompute_token_ns| {
        let mut driver = Driver { hidden: 8, ..Driver::new(dear(16, 200, recompute_token_ns)) };
        (1..=4).for_each(|id| driver.add(id, 16, 80));
        let (mut waited, mut admitted) = (0, 0);
        while !driver.scheduler.is_idle() {
            let (over, running) = (driver.scheduler.spills_too_much(), driver.scheduler.num_running());
            driver.step(0, &mut || false);
            assert!(!over || driver.scheduler.num_running() <= running, "nothing is admitted");
            admitted = admitted.max(driver.scheduler.num_running());
            waited = driver.scheduler.spill_bound.waited_ns().max(waited);
        }
        assert!(admitted > 1 && (waited > 0 || recompute_token_ns == 0), "{recompute_token_ns}: {waited} {admitted}");
        driver.scheduler.num_preemptions()
    });
    assert!(made_room.is_sorted_by(|a, b| a >= b) && made_room[0] > made_room[2], "{made_room:?}");
    assert_eq!(made_room[3..], [0, 0], "{made_room:?}");
}

#[test]
fn blocks_return_to_l1_when_others_end() {
    let mut driver = Driver::new(small(16, 64));
    driver.add(1, 60, 60);
    driver.add(2, 60, 2);
    driver.run(0, &mut || false);
    assert!(driver.promoted > 0);
}

#[test]
fn a_matched_prefix_longer_than_l1_is_not_loaded() {
    let mut driver = Driver::new(small(16, 64));
    driver.add(1, 200, 4);
    driver.run(180, &mut || false);
    assert!(driver.matched >= 45 - 16, "{}", driver.matched);
}

proptest! {
    /// The driver asserts what each step finds.
    #[test]
    fn every_step_finds_its_tokens(seed in any::<u64>()) {
        let mut prng = Prng::new(seed);
        let spill_blocks = 1 + prng.below(60) as u32;
        let mut driver = Driver::new(small(13 + prng.below(12) as u32, spill_blocks));
        driver.hidden = 1 + prng.below(60) as u32;
        let room = 4 * (driver.scheduler.num_blocks());
        let mut id = 0;
        for _ in 0..60 {
            if prng.below(4) == 0 {
                id += 1;
                let tokens = 1 + prng.below(u64::from(room - 1)) as u32;
                driver.add(id, tokens, prng.below(u64::from(room - tokens) + 1) as u32);
            }
            let matched = [0, 16, 64, 200][prng.below(4) as usize];
            let damage = prng.below(3) == 0;
            driver.step(matched, &mut || damage && prng.below(8) == 0);
            if let Some((&id, _)) = driver.known.iter().next().filter(|_| prng.below(16) == 0) {
                driver.known.remove(&id);
                driver.scheduler.finish(id);
            }
        }
        driver.run(0, &mut || false);
    }
}
