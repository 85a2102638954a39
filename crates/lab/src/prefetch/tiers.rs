//! A public trace on pools with and without a cold tier, and the messages of two coherence protocols.

use cenote_policy::watermark::SHIPPED;
use cenote_policy::{Eviction, Watermark};
use cenote_serving_sim::model::{CXL, CostModel, Device, ModelShape, NVME_L4, NVME_L4_WRITE};
use cenote_serving_sim::serving::{Compression, Pool, Prefetch};
use cenote_serving_sim::tiers::directory::{Coherence, replay};
use cenote_serving_sim::{Cold, ColdOutcome, ConfigError, Setup, Workload, simulate, simulate_with_cold_tier};
use serde::Serialize;

/// A run of the trace.
#[derive(Clone, Debug, Serialize)]
pub struct ColdRow {
    /// The pool.
    pub name: &'static str,
    /// Share of the prompts' blocks that hit.
    pub hit_rate: f64,
    /// Time to first token, in milliseconds.
    pub ttft_mean_ms: f64,
    /// Median of it.
    pub ttft_p50_ms: f64,
    /// 99th percentile of it.
    pub ttft_p99_ms: f64,
    /// Generated tokens per second.
    pub tokens_per_s: f64,
    /// What the cold tier did.
    pub cold: ColdOutcome,
}

/// Engines of the runs: as in the evidence for pools.
const INSTANCES: u32 = 8;
/// Disks: one for each two engines, as one device of as many channels.
const DISKS: u64 = 4;
/// Blocks that may wait to be written.
const WRITES_MAX: usize = 4_096;
/// Part of the working set that the region holds.
const PART: usize = 10;

fn engines(pool: Pool) -> Setup {
    let (device, shape) = (Device::named("a100").expect("a preset"), ModelShape::named("llama-8b").expect("a preset"));
    let l1_bytes = device.memory_bytes * device.usable_percent / 100 - shape.weight_bytes();
    Setup {
        instances: INSTANCES,
        cost: CostModel::roofline(device, shape),
        front_ns: 0,
        kv_bytes_per_token: shape.kv_bytes_per_token(),
        l1_blocks: (l1_bytes / (16 * shape.kv_bytes_per_token())) as u32,
        l1_block_tokens: 16,
        max_num_seqs: 256,
        max_num_batched_tokens: 8_192,
        // With a fixed share some loads preempt so much that small delays decide the result.
        watermark: Watermark::Learned(SHIPPED),
        swap_blocks: 0,
        has_prefix_cache: false,
        swap_link: device.host,
        always_swap: false,
        spill: None,
        private: None,
        shared: Some(pool),
        hosts: None,
        eviction: Eviction::Lru,
    }
}

/// Time from a client's hint to the prompt that it announces.
const HINT_NS: u64 = 10_000_000_000;

/// Number of runs, for a progress bar.
pub const RUNS: u64 = 10;

/// The trace on a region of a tenth of its working set: alone, with a codec, with L4, and with L4 and
/// each source of prefetches; and on an unlimited region. Calls `progress` after each run.
///
/// # Errors
/// The engines cannot serve the trace.
pub fn cold_rows(workload: &Workload, progress: &mut dyn FnMut()) -> Result<Vec<ColdRow>, ConfigError> {
    let shape = ModelShape::named("llama-8b").expect("a preset");
    let block_bytes = shape.kv_bytes_per_token() * u64::from(workload.block_tokens());
    let tenth = Pool { bytes: Some((workload.num_blocks() / PART) as u64 * block_bytes), link: CXL };
    let mut tier = NVME_L4;
    tier.link.bytes_per_s *= DISKS;
    let waiting = Prefetch::WAITING;
    let disk = Cold {
        bytes: None,
        tier,
        write_bytes_per_s: DISKS * NVME_L4_WRITE,
        writes_max: WRITES_MAX,
        compression: None,
        prefetch: Prefetch::NONE,
    };
    let codec = Cold { compression: Some(Compression::QPACK), ..disk };
    // An eighth of a disk writes less than the pool evicts.
    tier.link.bytes_per_s /= 8 * DISKS;
    let slow = Cold { tier, write_bytes_per_s: NVME_L4_WRITE / 8, ..disk };
    let runs = [
        ("a tenth in L3", tenth, None),
        ("and qpack", tenth, Some(Cold { bytes: Some(0), ..codec })),
        ("and L4", tenth, Some(disk)),
        ("and L4, qpack", tenth, Some(codec)),
        ("and L4, waiting", tenth, Some(Cold { prefetch: waiting, ..disk })),
        ("and L4, hints", tenth, Some(Cold { prefetch: Prefetch { hint_ns: Some(HINT_NS), ..waiting }, ..disk })),
        ("and L4, speculation", tenth, Some(Cold { prefetch: Prefetch { speculate: true, ..waiting }, ..disk })),
        ("and slow L4", tenth, Some(slow)),
        ("and slow L4, qpack", tenth, Some(Cold { compression: codec.compression, ..slow })),
        ("all in L3", Pool { bytes: None, ..tenth }, None),
    ];
    let mut rows = Vec::new();
    for (name, pool, cold) in runs {
        let setup = engines(pool);
        let (outcome, cold) = match cold {
            None => (simulate(&setup, workload, &mut |_| ())?, ColdOutcome::default()),
            Some(cold) => simulate_with_cold_tier(&setup, &cold, workload, &mut |_| ())?,
        };
        rows.push(ColdRow {
            name,
            hit_rate: outcome.hit_rate,
            ttft_mean_ms: outcome.ttft_mean_ms,
            ttft_p50_ms: outcome.ttft_p50_ms,
            ttft_p99_ms: outcome.ttft_p99_ms,
            tokens_per_s: outcome.throughput_tokens_per_s,
            cold,
        });
        progress();
    }
    Ok(rows)
}

/// Messages of both protocols for the trace: eight workers that keep 1,000 blocks each, and a region of
/// a tenth of the working set.
#[must_use]
pub fn coherence(workload: &Workload) -> Coherence {
    replay(workload, INSTANCES as usize, 1_000, workload.num_blocks() / PART)
}
