//! Loads of a host with two caches: requests with their blocks, and the n-grams of their tokens.

use super::{Ngrams, Setup};
use crate::workload::{BlockNumber, Workload};
use std::ops::Range;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
    blocks: Range<usize>,
}

/// Requests in order. All divisions of the memory are compared on the same load.
#[derive(Clone, Debug)]
pub struct MixedLoad {
    block_tokens: u32,
    jobs: Vec<Job>,
    blocks: Vec<BlockNumber>,
    num_blocks: usize,
    num_entries: usize,
    /// Simulated entries of all jobs, and the end of each job's.
    ngrams: Vec<u32>,
    ends: Vec<usize>,
}

impl MixedLoad {
    /// Requests of several workloads by turns: `run` of the first, then `run` of the next. It ends
    /// with the first workload that has no more.
    ///
    /// # Panics
    /// There is no workload, `run` is 0, or blocks differ in their tokens.
    #[must_use]
    pub fn of(setup: &Setup, workloads: &[&Workload], run: usize) -> Self {
        assert!(run > 0, "a run has requests");
        let block_tokens = workloads[0].block_tokens();
        let mut load = Self {
            block_tokens,
            jobs: Vec::new(),
            blocks: Vec::new(),
            num_blocks: workloads.iter().map(|workload| workload.num_blocks()).sum(),
            num_entries: Ngrams::num_entries(setup) as usize,
            ngrams: Vec::new(),
            ends: Vec::new(),
        };
        let mut ngrams = Ngrams::new(setup);
        let shortest = workloads.iter().map(|workload| workload.requests().len()).min().unwrap_or(0);
        for from in (0..shortest).step_by(run) {
            let mut offset = 0;
            for workload in workloads {
                assert_eq!(workload.block_tokens(), block_tokens, "blocks of all workloads have equal tokens");
                for request in &workload.requests()[from..(from + run).min(shortest)] {
                    let begin = load.blocks.len();
                    load.blocks.extend(workload.blocks(request).iter().map(|block| block + offset));
                    let (input_tokens, output_tokens) = (request.input_tokens, request.output_tokens);
                    load.jobs.push(Job { input_tokens, output_tokens, blocks: begin..load.blocks.len() });
                    ngrams.draw(u64::from(input_tokens) + u64::from(output_tokens), &mut load.ngrams);
                    load.ends.push(load.ngrams.len());
                }
                offset += workload.num_blocks() as u32;
            }
        }
        load
    }

    /// Tokens of a block.
    #[must_use]
    pub const fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// The requests.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Blocks of a request, first to last.
    #[must_use]
    pub fn blocks(&self, job: &Job) -> &[BlockNumber] {
        &self.blocks[job.blocks.clone()]
    }

    /// Number of different blocks.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Number of different simulated entries of rows.
    pub(super) const fn num_entries(&self) -> usize {
        self.num_entries
    }

    /// Simulated entries of rows that the tokens of request `at` read.
    pub(super) fn ngrams(&self, at: usize) -> &[u32] {
        let begin = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.ngrams[begin..self.ends[at]]
    }
}
