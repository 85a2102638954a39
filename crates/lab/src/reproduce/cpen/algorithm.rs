//! Algorithm 1 line by line, on blocks alone: without times, a pass of its outer loop is a step.

use crate::reproduce::row::Measured;
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::workload::{CPEN_PROMPTS, cpen};
use std::collections::VecDeque;

pub const EXPERIMENT: Experiment = Experiment {
    id: "cpen.algorithm",
    title: "the scheduler's listing as printed",
    covers: &["cpen.algorithm1"],
    is_quick: true,
    draws: true,
    run,
};

/// Blocks of the cache, as for opt-2.7b in the other experiments.
const BLOCKS: u32 = 150;

const ENDS: &str =
    "400 prompts in 150 blocks; the outer loop ends with the waiting queue, while tasks run and are swapped out";
const ORDER: &str = "no number is printed; beside: swaps of the listing, carried on to the end of all tasks, over those of the \
                     product's order, which admits new tasks after the swapped ones";

#[derive(Clone, Copy, Debug)]
struct Task {
    tokens: u32,
    left: u32,
}

impl Task {
    fn blocks(&self, block_tokens: u32) -> u32 {
        self.tokens.div_ceil(block_tokens)
    }
}

/// Which tasks get the free blocks first, and when the loop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// New tasks first, and no pass without waiting tasks.
    Printed,
    /// New tasks first, until all are complete.
    CarriedOn,
    /// Swapped tasks first, until all are complete.
    SwappedFirst,
}

/// Tasks that are complete at the end, and swaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    complete: usize,
    swaps: u64,
}

struct Queues {
    waiting: VecDeque<Task>,
    running: VecDeque<Task>,
    swapped: VecDeque<Task>,
    free: u32,
    block_tokens: u32,
    end: End,
}

impl Queues {
    /// Lines 6 to 9, and 28 to 30.
    fn take(&mut self, from: fn(&mut Self) -> &mut VecDeque<Task>) {
        while let Some(task) = from(self).front().copied().filter(|task| task.blocks(self.block_tokens) <= self.free) {
            from(self).pop_front();
            self.free -= task.blocks(self.block_tokens);
            self.running.push_back(task);
        }
    }

    /// Lines 10 to 24. Returns whether a task was swapped out.
    fn schedule(&mut self) -> bool {
        let (mut at, mut was_swapped) = (0, false);
        while at < self.running.len() {
            let task = &mut self.running[at];
            task.left -= 1;
            task.tokens += 1;
            // A complete task grows no more.
            let needs = task.left > 0 && task.tokens % self.block_tokens == 1;
            if needs && self.free == 0 {
                let last = self.running.pop_back().expect("a task is running");
                // The block for the new token is not there yet if it is the last task's own.
                let held = last.blocks(self.block_tokens) - u32::from(at == self.running.len());
                self.free += held;
                self.swapped.push_back(last);
                self.end.swaps += 1;
                was_swapped = true;
                if at == self.running.len() {
                    break;
                }
            }
            self.free -= u32::from(needs);
            if self.running[at].left == 0 {
                let task = self.running.remove(at).expect("it is there");
                self.free += task.blocks(self.block_tokens);
                self.end.complete += 1;
            } else {
                at += 1;
            }
        }
        was_swapped
    }
}

fn executed(tasks: &[Task], block_tokens: u32, listing: Listing) -> End {
    let mut queues = Queues {
        waiting: tasks.iter().copied().collect(),
        running: VecDeque::new(),
        swapped: VecDeque::new(),
        free: BLOCKS,
        block_tokens,
        end: End { complete: 0, swaps: 0 },
    };
    let goes_on = |queues: &Queues| match listing {
        Listing::Printed => !queues.waiting.is_empty(),
        _ => queues.end.complete < tasks.len(),
    };
    while goes_on(&queues) {
        if listing != Listing::SwappedFirst || queues.swapped.is_empty() {
            queues.take(|queues| &mut queues.waiting);
        }
        if !queues.schedule() {
            queues.take(|queues| &mut queues.swapped);
        }
    }
    queues.end
}

fn run(context: &Context) -> Vec<Measured> {
    let load = cpen(CPEN_PROMPTS, 1.0, context.seed);
    // The last token of an answer is never read back.
    let task = |request: &cenote_serving_sim::Request| Task {
        tokens: request.input_tokens,
        left: request.output_tokens.saturating_sub(1).max(1),
    };
    let tasks: Vec<Task> = load.requests().iter().map(task).collect();
    let of = |listing| executed(&tasks, load.block_tokens(), listing);
    let swaps = |listing| of(listing).swaps as f64;
    let unfinished = tasks.len() - of(Listing::Printed).complete;
    vec![
        Measured::new("cpen.algorithm1.unfinished", vec![unfinished as f64], ENDS)
            .fixed("a task of the last pass needs more passes, whatever the blocks"),
        Measured::beside(
            "cpen.algorithm1.order",
            ORDER,
            vec![swaps(Listing::CarriedOn) / swaps(Listing::SwappedFirst).max(1.0)],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(each: &[(u32, u32)]) -> Vec<Task> {
        each.iter().map(|&(tokens, left)| Task { tokens, left }).collect()
    }

    #[test]
    fn the_printed_loop_leaves_tasks_that_run() {
        let few = tasks(&[(16, 40), (16, 40)]);
        assert_eq!(executed(&few, 16, Listing::Printed), End { complete: 0, swaps: 0 });
        assert_eq!(executed(&few, 16, Listing::CarriedOn), End { complete: 2, swaps: 0 });
    }

    #[test]
    fn all_tasks_end_and_no_block_is_lost_under_pressure() {
        // A task whose last token opens a block is complete without it.
        let many: Vec<Task> = (0..200).map(|at| Task { tokens: 32, left: 64 + at % 40 }).collect();
        for listing in [Listing::CarriedOn, Listing::SwappedFirst] {
            let end = executed(&many, 16, listing);
            assert!(end.complete == 200 && end.swaps > 0, "{listing:?}: {end:?}");
        }
        let printed = executed(&many, 16, Listing::CarriedOn).swaps;
        assert!(printed > executed(&many, 16, Listing::SwappedFirst).swaps, "{printed}");
    }
}
