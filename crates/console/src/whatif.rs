//! What a region's record of requests says of other sizes and eviction policies.

use crate::failure::Failure;
use crate::region::RegionInspector;
use cenote_base::NamespaceId;
use cenote_mem::{Fabric, LINE};
use cenote_policy::eviction::Eviction;
use cenote_policy::whatif::Replayed;
use cenote_pool::{Counter, NamespaceInfo, PoolError, PoolInfo, requests};
use serde::Serialize;
use std::collections::BTreeMap;

/// Sizes in a replay are counted in lines.
const UNIT_BYTES: u64 = 64;
/// Bytes of a block of a model that left the region, if no other is known.
const BLOCK_BYTES: u64 = 64 << 10;

/// What to replay.
#[derive(Clone, Debug)]
pub struct Question {
    /// Sizes, as factors of the region's.
    pub sizes: Vec<f64>,
    /// Eviction policies.
    pub policies: Vec<Eviction>,
    /// Bytes of the cold tier; `None`: it has all blocks that were ever computed.
    pub cold_bytes: Option<u64>,
    /// Share of the blocks asked for that only fill the caches.
    pub warm: f64,
    /// Rates that were not measured, or are to be taken instead.
    pub rates: Rates,
}

impl Default for Question {
    /// Half the region's size to four times it, with every policy.
    fn default() -> Self {
        Self {
            sizes: vec![0.5, 1.0, 2.0, 4.0],
            policies: Eviction::ALL.to_vec(),
            cold_bytes: None,
            warm: 0.5,
            rates: Rates::default(),
        }
    }
}

/// Rates from which times follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Tokens a second that are computed.
    pub prefill_tokens_per_s: Option<f64>,
    /// Bytes a second from the region.
    pub load_bytes_per_s: Option<f64>,
    /// Bytes a second from the cold tier.
    pub cold_bytes_per_s: Option<f64>,
}

impl Rates {
    /// The rates that this host's engines have measured.
    #[must_use]
    pub fn measured(info: &PoolInfo) -> Self {
        let of = |counter: Counter| info.counters.get(counter.name()).copied().unwrap_or(0) as f64;
        let rate = |count, ns| (of(count) > 0.0 && of(ns) > 0.0).then(|| of(count) / of(ns) * 1e9);
        Self {
            prefill_tokens_per_s: rate(Counter::ComputedTokens, Counter::ComputedNs),
            load_bytes_per_s: rate(Counter::LoadedBytes, Counter::LoadedNs),
            cold_bytes_per_s: None,
        }
    }

    /// These rates, and those of `other` where there are none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            prefill_tokens_per_s: self.prefill_tokens_per_s.or(other.prefill_tokens_per_s),
            load_bytes_per_s: self.load_bytes_per_s.or(other.load_bytes_per_s),
            cold_bytes_per_s: self.cold_bytes_per_s.or(other.cold_bytes_per_s),
        }
    }
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIf {
    /// The record that it is from.
    pub record: Record,
    /// Bytes of the region for blocks: size 1.
    pub bytes: u64,
    /// The region's own policy.
    pub eviction: &'static str,
    /// Bytes of the cold tier; `None`: it has all blocks that were ever computed.
    pub cold_bytes: Option<u64>,
    /// Rates from which the times follow.
    pub rates: Rates,
    /// Of these: what the region's engines measured.
    pub measured: Rates,
    /// By size, then by policy.
    pub rows: Vec<Row>,
}

/// The part of the record that was replayed.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Microseconds since 1970 of the first and the last request; 0 without any.
    pub since_us: u64,
    /// See `since_us`.
    pub until_us: u64,
    /// All requests in this time.
    pub requests: u64,
    /// Blocks that they asked for.
    pub blocks: u64,
    /// One in so many blocks is in the record.
    pub one_in: u64,
    /// Sampled blocks asked for.
    pub sampled: usize,
    /// Of these: different ones.
    pub different: usize,
    /// Requests that are left out, because a part of them was overwritten or torn.
    pub torn: u64,
    /// Share of the blocks asked for that only filled the caches.
    pub warm: f64,
}

/// A size and a policy.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Factor of the region's size.
    pub size: f64,
    /// Bytes for blocks.
    pub bytes: u64,
    /// Policy.
    pub eviction: &'static str,
    /// Share of the blocks asked for that the region would have had.
    pub hit_rate: f64,
    /// As `hit_rate`, of the region and the cold tier together.
    pub hit_rate_with_cold: f64,
    /// Standard error of both that sampling causes.
    pub error: f64,
    /// Mean time of a request to compute and load its full blocks, in milliseconds; `None`: no rate of
    /// computing is known.
    pub ttft_ms: Option<f64>,
    /// As `ttft_ms`, with the cold tier; `None`: its rate is not known, either.
    pub ttft_with_cold_ms: Option<f64>,
    /// Whether this size was ever full. Otherwise the record is too short to tell it from a larger one.
    pub was_full: bool,
}

/// A model's blocks.
#[derive(Clone, Copy, Debug)]
struct Model {
    bytes: u64,
    tokens: u64,
}

impl Model {
    /// What a block of it takes in the region: its part of a chunk that is full of blocks of the mean length.
    /// An encoded block has fewer bytes than its engine's.
    fn of(row: &NamespaceInfo, chunk_bytes: u64) -> Self {
        let mean = row.bytes.checked_div(row.blocks).filter(|bytes| *bytes > 0).unwrap_or(row.block_bytes);
        let slots = (chunk_bytes / mean.next_multiple_of(LINE).max(LINE)).max(1);
        Self { bytes: chunk_bytes / slots, tokens: row.block_tokens.into() }
    }
}

/// Replays a region's record. `None`: it has none, or no requests yet.
///
/// # Errors
/// The region is unreadable.
pub fn ask<F: Fabric>(
    fabric: &F,
    inspector: &RegionInspector,
    question: &Question,
    mut done: impl FnMut(),
) -> Result<Option<WhatIf>, PoolError> {
    let found = requests(fabric)?;
    let (Some(first), Some(last)) = (found.all.first(), found.all.last()) else { return Ok(None) };
    let info = inspector.info();
    let models: BTreeMap<u16, Model> =
        info.namespaces.iter().map(|row| (row.id.0, Model::of(row, info.chunk_bytes))).collect();
    let known = models.values().next().map_or(BLOCK_BYTES, |model| model.bytes);
    let bytes_of = |row: NamespaceId| models.get(&row.0).map_or(known, |model| model.bytes);
    let mut trace = found.trace(|row| u32::try_from(bytes_of(row).div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX));
    trace.warm(question.warm);
    let (sampled, different) = trace.sampled();
    let record = Record {
        since_us: first.time_us,
        until_us: last.time_us,
        requests: found.all.iter().map(|asked| asked.requests).sum(),
        blocks: trace.asked(),
        one_in: 1 << found.shift().min(63),
        sampled,
        different,
        torn: found.torn,
        warm: question.warm,
    };
    let bytes = info.data_bytes.saturating_sub(info.memory.bytes + info.memory.named_bytes);
    let measured = Rates::measured(&info);
    let rates = question.rates.or(measured);
    let cold = question.cold_bytes.map(|bytes| bytes / UNIT_BYTES);
    let row = |size: f64, eviction: Eviction| {
        let bytes = (bytes as f64 * size) as u64;
        let replayed = trace.replay(eviction, bytes / UNIT_BYTES, cold);
        Row {
            size,
            bytes,
            eviction: eviction.policy().name(),
            hit_rate: replayed.hit_rate(),
            hit_rate_with_cold: replayed.hit_rate_with_cold(),
            error: replayed.rate_error(),
            ttft_ms: ttft_ms(&replayed, &models, rates, false),
            ttft_with_cold_ms: ttft_ms(&replayed, &models, rates, true),
            was_full: replayed.was_full,
        }
    };
    let mut rows = Vec::new();
    for &size in &question.sizes {
        for &eviction in &question.policies {
            rows.push(row(size, eviction));
            done();
        }
    }
    let eviction = inspector.superblock().config.eviction.policy().name();
    Ok(Some(WhatIf { record, bytes, eviction, cold_bytes: question.cold_bytes, rates, measured, rows }))
}

/// Mean milliseconds of a request for its full blocks: those that miss are computed, the others loaded.
/// Without a rate of loading, loads take no time.
fn ttft_ms(replayed: &Replayed, models: &BTreeMap<u16, Model>, rates: Rates, with_cold: bool) -> Option<f64> {
    let prefill = rates.prefill_tokens_per_s?;
    let of_cold = if with_cold { Some(rates.cold_bytes_per_s?) } else { None };
    let mut seconds = 0.0;
    let mut missed = 0.0;
    for (number, (&misses, &cold)) in (0..).zip(replayed.missed.iter().zip(&replayed.cold)) {
        missed += misses;
        let Some(model) = models.get(&number) else { continue };
        let cold = if with_cold { cold } else { 0.0 };
        seconds += (misses - cold) * model.tokens as f64 / prefill;
        seconds += of_cold.map_or(0.0, |rate| cold * model.bytes as f64 / rate);
    }
    let mean_bytes = models.values().map(|model| model.bytes as f64).sum::<f64>() / (models.len() as f64).max(1.0);
    let hits = (replayed.asked - missed).max(0.0);
    seconds += rates.load_bytes_per_s.map_or(0.0, |rate| hits * mean_bytes / rate);
    (replayed.requests > 0.0).then(|| seconds / replayed.requests * 1e3)
}

/// The failure of a region without a record of requests.
#[must_use]
pub fn none(region: &str, lines: u32) -> Failure {
    if lines == 0 {
        return Failure::new(format!("{region}: the region keeps no record of requests"))
            .hint("`cenote pool create --requests` says how many lines each host's record has");
    }
    Failure::new(format!("{region}: no engine has recorded a request yet"))
        .hint("`cenote serve` and the connector for vLLM record what they admit; other programs call `record`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(blocks: u64, bytes: u64) -> NamespaceInfo {
        NamespaceInfo {
            id: NamespaceId(0),
            label: "demo".to_owned(),
            fingerprint: String::new(),
            block_bytes: 100 << 10,
            block_tokens: 16,
            num_layers: 2,
            blocks,
            bytes,
            new_bytes: 0,
            // A chunk that has just begun is charged whole.
            used_bytes: 1 << 20,
            quota_bytes: 0,
            kept_bytes: 0,
            workers: 0,
        }
    }

    /// A block counted as all bytes that its model was charged with, so a region with few blocks seemed to
    /// hold fewer of them than it does.
    #[test]
    fn a_block_takes_its_part_of_a_full_chunk() {
        let bytes = |row: &NamespaceInfo| Model::of(row, 1 << 20).bytes;
        // Ten blocks of 100 KiB fit into a chunk of 1 MiB.
        assert_eq!(bytes(&row(1, 100 << 10)), (1 << 20) / 10);
        assert_eq!(bytes(&row(0, 0)), (1 << 20) / 10, "before the first block, as its engine has them");
        // Encoded blocks have the mean of their lengths, in whole lines.
        assert_eq!(bytes(&row(4, 4 * 1000)), (1 << 20) / 1024);
        assert_eq!(bytes(&row(2, 2)), 64);
        assert_eq!(bytes(&row(1, 3 << 20)), 1 << 20, "whatever a region says");
    }

    /// Blocks of a model whose row is gone counted as hits, so their requests took no time.
    #[test]
    fn misses_of_a_model_without_a_row_are_no_hits() {
        let replayed = Replayed {
            asked: 30.0,
            missed: vec![10.0, 20.0],
            cold: vec![4.0, 0.0],
            requests: 2.0,
            error: 0.0,
            was_full: true,
        };
        let models = BTreeMap::from([(0, Model { bytes: 1000, tokens: 16 })]);
        let rates =
            Rates { prefill_tokens_per_s: Some(160.0), load_bytes_per_s: Some(1.0), cold_bytes_per_s: Some(1000.0) };
        // Ten blocks take a second, and nothing was loaded.
        assert_eq!(ttft_ms(&replayed, &models, rates, false), Some(500.0));
        assert_eq!(ttft_ms(&replayed, &models, rates, true), Some((0.6 + 4.0) / 2.0 * 1e3));
        assert_eq!(ttft_ms(&replayed, &models, Rates { prefill_tokens_per_s: None, ..rates }, false), None);
    }
}
