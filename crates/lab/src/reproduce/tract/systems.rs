//! The systems of §5.1: NIXL without a cache, LMCache in the prefill host's memory, and TraCT in
//! Niagara's. Each has one A6000 for prompts and one for answers.

use cenote_policy::Eviction;
use cenote_serving_sim::hardware::{a6000, niagara, pcie, rdma};
use cenote_serving_sim::model::ModelShape;
use cenote_serving_sim::roles::{Path, Roles, RolesOutcome, simulate_roles};
use cenote_serving_sim::workload::{Length, Synthetic};
use cenote_serving_sim::{CostModel, Link, Workload};

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Dynamo over NIXL and UCX.
    Nixl,
    /// A cache in host memory, transfers as NIXL's.
    LmCache,
    /// The shared memory as path and cache.
    Tract,
    /// The shared memory as path only.
    TractNoCache,
}

/// What the paper leaves open.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Share of the card's line rate that NIXL over UCX reaches.
    pub network_share: f64,
    /// Whether each host has the memory's measured bandwidth to itself.
    pub is_split: bool,
    /// Groups of prompts that share a prefix.
    pub groups: u64,
}

/// The base: the line rate, one memory for both hosts, 64 groups.
pub const BASE: Open = Open { network_share: 1.0, is_split: false, groups: 64 };

/// §5.1.
const CACHE_BYTES: u64 = 48_000_000_000;
/// vLLM's block, and its default budget of a step on this card.
const BLOCK_TOKENS: u32 = 16;
const STEP_TOKENS: u32 = 2_048;

/// Requests of a synthetic load: fewer are a cold start.
const REQUESTS: usize = 2_000;

impl System {
    /// The system as engines and links.
    ///
    /// # Panics
    /// Never: the model is a preset.
    #[must_use]
    pub fn roles(self, open: Open) -> Roles {
        let shape = ModelShape::named("llama-8b").expect("a preset");
        let gpu = a6000::A6000;
        let token = shape.kv_bytes_per_token();
        let line = rdma::CX_100G.link;
        let network = Link { bytes_per_s: (line.bytes_per_s as f64 * open.network_share) as u64, ..line };
        let path = match self {
            Self::Nixl | Self::LmCache => Path::Network { link: network, host: pcie::GEN4_X16 },
            Self::Tract | Self::TractNoCache => {
                Path::SharedMemory { link: niagara::NIAGARA_2, is_split: open.is_split }
            }
        };
        let has_cache = matches!(self, Self::LmCache | Self::Tract);
        Roles {
            cost: CostModel::roofline(&gpu.device, shape),
            kv_bytes_per_token: token,
            l1_blocks: ((gpu.usable_bytes() - shape.weight_bytes()) / (token * u64::from(BLOCK_TOKENS))) as u32,
            l1_block_tokens: BLOCK_TOKENS,
            max_num_seqs: 256,
            max_num_batched_tokens: STEP_TOKENS,
            path,
            cache_bytes: if has_cache { CACHE_BYTES } else { 0 },
            eviction: Eviction::Lru,
        }
    }

    /// Serves a load.
    #[must_use]
    pub fn run(self, open: Open, load: &Workload) -> RolesOutcome {
        simulate_roles(&self.roles(open), load)
    }
}

/// A workload of Table 1.
///
/// # Panics
/// Panics if Table 1 has no such workload.
#[must_use]
pub fn load(name: char, rate: f64, open: Open, seed: u64) -> Workload {
    let spec = Synthetic::tract(name, REQUESTS, rate).expect("a workload of Table 1");
    Synthetic { groups: open.groups, ..spec }.draw(seed)
}

/// A static load: prompts of `tokens` tokens that share nothing, answers of 3.
#[must_use]
pub fn static_load(tokens: u32, rate: f64, seed: u64) -> Workload {
    let spec = Synthetic {
        requests: 120,
        rate,
        input: Length::fixed(tokens),
        output: Length::fixed(3),
        unique: None,
        groups: 1,
        block_tokens: BLOCK_TOKENS,
    };
    spec.draw(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_holds_what_the_weights_leave() {
        // 48 GB, 90 % of it, less 16.06 GB of weights, in blocks of 2 MiB.
        assert_eq!(System::Nixl.roles(BASE).l1_blocks, ((43.2e9 - 16.06e9) / 2_097_152.0) as u32);
        assert_eq!(System::TractNoCache.roles(BASE).cache_bytes, 0);
    }
}
