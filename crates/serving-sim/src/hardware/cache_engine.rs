//! SpecKV's cache engine by cycle (§3.5): address translation, channels of HBM with conflicts,
//! pipelines, and a window of outstanding requests per engine.
//!
//! A load keeps every window full. A request is translated, waits for its channel, and streams its
//! entry through one pipeline of its engine, a beat a cycle.

use super::hbm::Hbm;
use crate::model::cache_engine::ATU;
use cenote_base::prng::Prng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Engines on an FPGA.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheEngine {
    /// Cycles per second.
    pub clock_hz: f64,
    /// Engines.
    pub engines: u32,
    /// Decompression pipelines of an engine.
    pub pipelines: u32,
    /// Bytes of a beat.
    pub beat_bytes: u32,
    /// *Ω*: outstanding requests of an engine.
    pub outstanding_max: u32,
    /// Bytes of an entry.
    pub entry_bytes: u32,
    /// Share of translations that hit.
    pub tlb_hit_rate: f64,
    /// Cycles of a hit, and what a walk adds.
    pub translation_cycles: [u64; 2],
    /// Cycles through the decompressor.
    pub decompress_cycles: u64,
    /// Cycles of an entry that is not compressed.
    pub bypass_cycles: u64,
    /// Share of entries that are not compressed.
    pub bypass_rate: f64,
    /// The memory.
    pub hbm: Hbm,
}

/// The engine as §3.4.2 and §3.5 describe it: 800 MHz, beats of 512 bits, one pipeline, Ω = 16, entries
/// of 4 KB, translations that hit in 92 % of the cases (3 cycles, as in the RTL here; 15 more for a walk,
/// as printed), 25 cycles to decompress and 5 to bypass, which 30 % do.
pub const SPECKV: CacheEngine = CacheEngine {
    clock_hz: 800e6,
    engines: 1,
    pipelines: 1,
    beat_bytes: 64,
    outstanding_max: 16,
    entry_bytes: 4_096,
    tlb_hit_rate: 0.92,
    translation_cycles: [ATU[0], 15],
    decompress_cycles: 25,
    bypass_cycles: 5,
    bypass_rate: 0.3,
    hbm: super::hbm::SPECKV_FPGA,
};

/// The results of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineOutcome {
    /// Bytes per second of all engines.
    pub bytes_per_s: f64,
    /// Mean nanoseconds of a request.
    pub mean_ns: f64,
    /// 99th percentile of it.
    pub p99_ns: f64,
    /// Share of the memory's bandwidth in use.
    pub memory_use: f64,
}

impl CacheEngine {
    /// Serves `requests` entries at random addresses.
    ///
    /// # Panics
    /// Panics without engines, pipelines, a window or requests.
    #[must_use]
    pub fn run(&self, requests: u32, seed: u64) -> EngineOutcome {
        assert!(self.engines > 0 && self.pipelines > 0 && self.outstanding_max > 0 && requests > 0, "nothing to run");
        let mut prng = Prng::new(seed);
        let mut draw = |share: f64| prng.next_f64() < share;
        let per_ns = self.clock_hz / 1e9;
        let channel_bytes_per_cycle = self.hbm.bytes_per_s as f64 / f64::from(self.hbm.channels) / self.clock_hz;
        let service = f64::from(self.entry_bytes) / channel_bytes_per_cycle;
        let beats = u64::from(self.entry_bytes.div_ceil(self.beat_bytes));
        let mut channels = vec![0.0_f64; self.hbm.channels as usize];
        let mut pipelines = vec![0.0_f64; (self.engines * self.pipelines) as usize];
        // (cycle, number, engine) of places in the windows that become free; cycles in 1/1024.
        let mut free: BinaryHeap<Reverse<(u64, u32, u32)>> = BinaryHeap::new();
        for place in 0..self.engines * self.outstanding_max {
            free.push(Reverse((0, place, place % self.engines)));
        }
        let mut latencies = Vec::with_capacity(requests as usize);
        let mut last = 0.0_f64;
        let mut chooser = Prng::new(seed ^ 0x9e37_79b9);
        for number in 0..requests {
            let Reverse((begin, _, engine)) = free.pop().expect("places return");
            let begin = begin as f64 / 1_024.0;
            let [hit, walk] = self.translation_cycles;
            let translated = begin + (hit + if draw(self.tlb_hit_rate) { 0 } else { walk }) as f64;
            let channel = &mut channels[chooser.below(u64::from(self.hbm.channels)) as usize];
            let conflict = if draw(self.hbm.conflict_rate) { self.hbm.conflict_ns * per_ns } else { 0.0 };
            let served = translated.max(*channel);
            *channel = served + conflict + service;
            let first_beat = served + conflict + self.hbm.latency_ns * per_ns;
            let own = (engine * self.pipelines) as usize..((engine + 1) * self.pipelines) as usize;
            let pipeline = pipelines[own].iter_mut().min_by(|a, b| a.total_cmp(b)).expect("an engine has a pipeline");
            let start = first_beat.max(*pipeline);
            *pipeline = start + beats as f64;
            let depth = if draw(self.bypass_rate) { self.bypass_cycles } else { self.decompress_cycles };
            let end = start + (beats + depth) as f64;
            latencies.push((end - begin) / per_ns);
            last = last.max(end);
            free.push(Reverse(((end * 1_024.0) as u64, number, engine)));
        }
        let bytes_per_s = f64::from(requests) * f64::from(self.entry_bytes) * self.clock_hz / last;
        latencies.sort_unstable_by(f64::total_cmp);
        EngineOutcome {
            bytes_per_s,
            mean_ns: latencies.iter().sum::<f64>() / f64::from(requests),
            p99_ns: latencies[(latencies.len() * 99 / 100).min(latencies.len() - 1)],
            memory_use: bytes_per_s / self.hbm.bytes_per_s as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pipeline_bounds_an_engine() {
        let outcome = SPECKV.run(20_000, 1);
        let pipeline = f64::from(SPECKV.beat_bytes) * SPECKV.clock_hz;
        assert!((0.97..=1.0).contains(&(outcome.bytes_per_s / pipeline)), "{outcome:?}");
        assert!((SPECKV.run(20_000, 1).mean_ns - outcome.mean_ns).abs() < f64::EPSILON, "the same seed");
    }

    #[test]
    fn the_window_bounds_many_pipelines() {
        let wide = CacheEngine { pipelines: 64, ..SPECKV };
        let outcome = wide.run(20_000, 1);
        let little = f64::from(SPECKV.outstanding_max) * 4_096.0 * 1e9 / outcome.mean_ns;
        assert!((outcome.bytes_per_s / little - 1.0).abs() < 0.02, "{outcome:?} {little}");
    }

    #[test]
    fn engines_add_up_until_the_memory_is_full() {
        let of = |engines: u32| CacheEngine { engines, pipelines: 8, ..SPECKV }.run(40_000, 1);
        let (one, four, many) = (of(1), of(4), of(32));
        assert!(four.bytes_per_s > 2.5 * one.bytes_per_s && four.mean_ns > one.mean_ns);
        assert!(many.bytes_per_s <= 1.6e12 && many.p99_ns > four.p99_ns);
    }
}
