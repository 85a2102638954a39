//! The cheapest rack for a load and a goal: hosts, and where they keep KV beyond their engines' own
//! memory, by simulation.
//!
//! For each kind of memory and each size, the least number of hosts that meets the goal is searched by
//! halving. More memory never needs more hosts, so a size's search ends where the smaller size's did.
//! Both assume that a larger rack is not slower; the found rack itself was simulated.

use crate::hardware::Gpu;
use crate::hardware::rdma::{CX_100G, TCP_100G};
use crate::model::{CXL, CostModel, Link, ModelShape, RDMA_100G};
use crate::serving::{ConfigError, Outcome, Pool, Setup, simulate};
use crate::workload::Workload;
use crate::{Card, Device, Hosts, Network};
use cenote_policy::{Eviction, Watermark};
use serde::Serialize;

/// Where KV lies beyond the engines' own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// Nowhere: what leaves an engine's own prefix cache is computed again. No engine reads another's, so
    /// the router sends a prompt to the engine that was sent its beginning, unless that one is busier.
    None,
    /// In DRAM of each host, in equal parts for its engines, with the same router.
    Dram,
    /// In DRAM of each host, for all its engines; hosts read each other's by TCP, as `--peers` does.
    Tcp,
    /// The same by RDMA.
    Mesh,
    /// In one pool over RDMA; each host has a card.
    Rdma,
    /// In one pool behind a CXL switch; each host has a port.
    Cxl,
}

impl Memory {
    /// All kinds.
    pub const ALL: [Self; 6] = [Self::None, Self::Dram, Self::Tcp, Self::Mesh, Self::Rdma, Self::Cxl];

    /// The link of a host to the pool: 100 Gb/s as in TraCT §5.1, or an x16 port as in SpecKV §4.1.1.
    const fn link(self) -> Option<Link> {
        match self {
            Self::None | Self::Dram | Self::Tcp | Self::Mesh => None,
            Self::Rdma => Some(RDMA_100G),
            Self::Cxl => Some(CXL),
        }
    }

    /// The card of a host that reads others' memory: 100 Gb/s.
    const fn card(self) -> Option<Card> {
        match self {
            Self::Tcp => Some(TCP_100G.card()),
            Self::Mesh => Some(CX_100G.card()),
            Self::None | Self::Dram | Self::Rdma | Self::Cxl => None,
        }
    }
}

/// The statistic of the times to the first token that the goal limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Statistic {
    /// Their mean.
    Mean,
    /// Their median.
    P50,
    /// Their 99th percentile.
    P99,
}

/// A bound on the time to the first token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// What is bounded.
    pub statistic: Statistic,
    /// The bound in milliseconds.
    pub ttft_ms: f64,
}

impl Goal {
    /// The bounded value of a run, in milliseconds.
    #[must_use]
    pub const fn of(&self, outcome: &Outcome) -> f64 {
        match self.statistic {
            Statistic::Mean => outcome.ttft_mean_ms,
            Statistic::P50 => outcome.ttft_p50_ms,
            Statistic::P99 => outcome.ttft_p99_ms,
        }
    }
}

/// A model on GPUs that share its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    /// One of the GPUs.
    pub gpu: Gpu,
    /// How many share each tensor.
    pub gpus: u32,
    /// The model.
    pub shape: ModelShape,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the message explains the fields")]
pub enum ProvisionError {
    #[error("{model} does not fit {gpus} of {gpu}: its weights take {weights} bytes, and an engine may use {usable}")]
    NoRoom { model: String, gpu: String, gpus: u32, weights: u64, usable: u64 },
    #[error(
        "no rack of {hosts_max} hosts or fewer meets the goal; the best one reaches {best_ms:.1} ms, and the goal is \
         {goal_ms:.1} ms"
    )]
    NoneMeets { hosts_max: u32, best_ms: f64, goal_ms: f64 },
    #[error("{gpus} GPUs cannot share the {heads} heads of {model} evenly")]
    Uneven { model: String, gpus: u32, heads: u64 },
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Engine {
    /// Costs of its steps, and bytes for KV. Arithmetic, memory and host links are those of all GPUs
    /// together; two all-reduces a layer are added.
    ///
    /// # Errors
    /// The weights leave no room, or the GPUs cannot share the heads evenly.
    pub fn cost(&self) -> Result<(CostModel, u64), ProvisionError> {
        let (device, gpus) = (self.gpu.device, u64::from(self.gpus));
        if !self.shape.heads.is_multiple_of(gpus) {
            let model = self.shape.name.to_owned();
            return Err(ProvisionError::Uneven { model, gpus: self.gpus, heads: self.shape.heads });
        }
        let all = Device {
            flops: device.flops * gpus,
            memory_bytes: device.memory_bytes * gpus,
            memory_bytes_per_s: device.memory_bytes_per_s * gpus,
            ..device
        };
        let mut cost = CostModel::roofline(&all, &self.shape);
        let ModelShape { layers, heads, head_dim, element_bytes, .. } = self.shape;
        cost.context_ps *= self.kv_copies();
        let reduces = 2.0 * layers as f64;
        let start = self.gpu.tensor.all_reduce_ns(0.0, self.gpus);
        // A token's residual stream is as wide as its heads.
        let token = self.gpu.tensor.all_reduce_ns((heads * head_dim * element_bytes) as f64, self.gpus) - start;
        cost.step_ns += (reduces * start) as u64;
        cost.token_ps += (1e3 * reduces * token) as u64;
        let usable = self.gpu.usable_bytes() * gpus;
        match usable.checked_sub(self.shape.weight_bytes()).filter(|free| *free > 0) {
            Some(free) => Ok((cost, free)),
            None => Err(ProvisionError::NoRoom {
                model: self.shape.name.to_owned(),
                gpu: device.name.to_owned(),
                gpus: self.gpus,
                weights: self.shape.weight_bytes(),
                usable,
            }),
        }
    }
}

impl Engine {
    /// How many GPUs hold the KV of the same token and head: each holds that of one KV head at least.
    fn kv_copies(&self) -> u64 {
        u64::from(self.gpus).div_ceil(self.shape.kv_heads)
    }

    /// One such engine without memory beyond its own, with vLLM's limits of these names. It swaps nothing;
    /// `swap_link` is the link to its host.
    ///
    /// # Errors
    /// The weights leave no room.
    pub fn alone(&self, max_num_seqs: usize, max_num_batched_tokens: u32) -> Result<Setup, ProvisionError> {
        const L1_BLOCK_TOKENS: u32 = 16;
        let (cost, kv_bytes) = self.cost()?;
        let kv_bytes_per_token = self.shape.kv_bytes_per_token();
        let block_bytes = kv_bytes_per_token * u64::from(L1_BLOCK_TOKENS);
        let Link { bytes_per_s, latency_ns } = self.gpu.device.host;
        Ok(Setup {
            instances: 1,
            cost,
            front_ns: 0,
            kv_bytes_per_token,
            l1_blocks: u32::try_from(kv_bytes / (block_bytes * self.kv_copies())).unwrap_or(u32::MAX),
            l1_block_tokens: L1_BLOCK_TOKENS,
            max_num_seqs,
            max_num_batched_tokens,
            watermark: Watermark::DEFAULT,
            swap_blocks: 0,
            has_prefix_cache: false,
            swap_link: Link { bytes_per_s: bytes_per_s * u64::from(self.gpus), latency_ns },
            always_swap: false,
            spill: None,
            private: None,
            shared: None,
            hosts: None,
            eviction: Eviction::Lru,
        })
    }
}

/// What is searched.
#[derive(Clone, Debug)]
pub struct Search {
    /// An engine.
    pub engine: Engine,
    /// Engines of a host.
    pub engines_per_host: u32,
    /// Most hosts of the rack.
    pub hosts_max: u32,
    /// Sizes of memory in bytes, ascending: of each host, or of the pool.
    pub sizes: Vec<u64>,
    /// Most requests that an engine runs at once.
    pub max_num_seqs: usize,
    /// Most tokens of a step.
    pub max_num_batched_tokens: u32,
    /// The goal.
    pub goal: Goal,
}

/// A rack that meets the goal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// Kind of memory.
    pub memory: Memory,
    /// Its bytes: of each host, or of the pool.
    pub bytes: u64,
    /// Hosts.
    pub hosts: u32,
    /// Dollars, by the caller's prices.
    pub cost: f64,
    /// The simulated run.
    pub outcome: Outcome,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Racks {
    /// The cheapest rack of each kind of memory that meets the goal, the cheapest first.
    pub found: Vec<Found>,
    /// The least value of the goal's statistic that a simulated rack reached; infinite without any.
    pub nearest_ms: f64,
    /// Kinds of memory of which no size holds the largest request, with the reason of the first size.
    pub too_small: Vec<(Memory, ConfigError)>,
}

impl Search {
    /// Searches. `cost` gives the dollars of a rack of this kind, bytes and hosts. `simulated` is called
    /// after each run.
    ///
    /// A size that does not hold a request is left out.
    ///
    /// # Errors
    /// No rack can serve the load.
    pub fn run(
        &self,
        load: &Workload,
        cost: impl Fn(Memory, u64, u32) -> f64,
        mut simulated: impl FnMut(),
    ) -> Result<Racks, ProvisionError> {
        let mut racks = Racks { found: Vec::new(), nearest_ms: f64::INFINITY, too_small: Vec::new() };
        for memory in Memory::ALL {
            let sizes: &[u64] = if memory == Memory::None { &[0] } else { &self.sizes };
            let (mut cheapest, mut hosts_max): (Option<Found>, u32) = (None, self.hosts_max);
            let mut too_small = Vec::new();
            for &bytes in sizes {
                // No number of hosts makes this memory cheaper than one host.
                if cheapest.as_ref().is_some_and(|found| cost(memory, bytes, 1) >= found.cost) {
                    break;
                }
                let (hosts, outcome) =
                    match self.fewest(load, (memory, bytes), hosts_max, &mut racks.nearest_ms, &mut simulated) {
                        Ok(Some(found)) => found,
                        Ok(None) => continue,
                        Err(ProvisionError::Config(error @ ConfigError::TooSmall { .. })) => {
                            too_small.push(error);
                            continue;
                        }
                        Err(error) => return Err(error),
                    };
                hosts_max = hosts;
                let found = Found { memory, bytes, hosts, cost: cost(memory, bytes, hosts), outcome };
                if cheapest.as_ref().is_none_or(|known| found.cost < known.cost) {
                    cheapest = Some(found);
                }
            }
            racks.found.extend(cheapest);
            if too_small.len() == sizes.len() {
                racks.too_small.extend(too_small.into_iter().next().map(|error| (memory, error)));
            }
        }
        racks.found.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        Ok(racks)
    }

    /// The fewest hosts that meet the goal, at most `hosts_max`, and their run.
    fn fewest(
        &self,
        load: &Workload,
        (memory, bytes): (Memory, u64),
        hosts_max: u32,
        nearest_ms: &mut f64,
        simulated: &mut impl FnMut(),
    ) -> Result<Option<(u32, Outcome)>, ProvisionError> {
        let mut meets = |hosts: u32| -> Result<Option<Outcome>, ProvisionError> {
            let outcome = simulate(&self.setup(memory, bytes, hosts)?, load, &mut |_| ())?;
            simulated();
            let reached = self.goal.of(&outcome);
            *nearest_ms = nearest_ms.min(reached);
            Ok((reached <= self.goal.ttft_ms).then_some(outcome))
        };
        // Double up to a number that meets the goal, then halve between it and the last that does not.
        let (mut below, mut hosts) = (0, 1.min(hosts_max));
        let mut found = loop {
            match meets(hosts)? {
                Some(outcome) => break (hosts, outcome),
                None if hosts == hosts_max => return Ok(None),
                None => (below, hosts) = (hosts, (2 * hosts).min(hosts_max)),
            }
        };
        while found.0 - below > 1 {
            let middle = below + (found.0 - below) / 2;
            match meets(middle)? {
                Some(outcome) => found = (middle, outcome),
                None => below = middle,
            }
        }
        Ok(Some(found))
    }

    fn setup(&self, memory: Memory, bytes: u64, hosts: u32) -> Result<Setup, ProvisionError> {
        let alone = self.engine.alone(self.max_num_seqs, self.max_num_batched_tokens)?;
        let pool = |bytes, link| Pool { bytes: Some(bytes), link };
        Ok(Setup {
            instances: hosts * self.engines_per_host,
            private: (memory == Memory::Dram)
                .then_some(pool(bytes / u64::from(self.engines_per_host), alone.swap_link)),
            shared: memory.link().or(memory.card().map(|_| alone.swap_link)).map(|link| pool(bytes, link)),
            has_prefix_cache: true,
            hosts: match memory {
                // Each engine is a rack of its own to the router, so that prompts follow their beginnings.
                Memory::None | Memory::Dram => {
                    Some(Hosts { racks: (hosts * self.engines_per_host) as usize, ..Hosts::new(1) })
                }
                Memory::Tcp | Memory::Mesh => {
                    Some(Hosts { network: memory.card().map(Network::Mesh), ..Hosts::new(hosts as usize) })
                }
                Memory::Rdma | Memory::Cxl => Some(Hosts { has_ports: true, ..Hosts::new(hosts as usize) }),
            },
            ..alone
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::h200::H200;
    use crate::workload::Synthetic;

    fn search(ttft_ms: f64) -> Search {
        let shape = *ModelShape::named("llama-8b").expect("a preset");
        Search {
            engine: Engine { gpu: H200, gpus: 1, shape },
            engines_per_host: 2,
            hosts_max: 16,
            sizes: vec![64 << 30, 256 << 30],
            max_num_seqs: 256,
            max_num_batched_tokens: 2_048,
            goal: Goal { statistic: Statistic::P99, ttft_ms },
        }
    }

    fn load(rate: f64) -> Workload {
        Synthetic::tract('A', 600, rate).expect("there is A").draw(1)
    }

    fn dollars(memory: Memory, bytes: u64, hosts: u32) -> f64 {
        let copies = if matches!(memory, Memory::Dram | Memory::Tcp | Memory::Mesh) { f64::from(hosts) } else { 1.0 };
        f64::from(hosts) * 100_000.0 + copies * bytes as f64 / 1e9 * 15.0
    }

    #[test]
    fn more_load_needs_more_hosts_and_a_found_rack_meets_the_goal() {
        let hosts = |rate: f64| {
            let found = search(1_000.0).run(&load(rate), dollars, || ()).expect("a rack").found;
            assert!(found.iter().all(|found| found.outcome.ttft_p99_ms <= 1_000.0), "{found:?}");
            assert!(found.is_sorted_by(|a, b| a.cost <= b.cost), "{found:?}");
            let none = found.iter().find(|found| found.memory == Memory::None).expect("without memory").hosts;
            (found[0].hosts, none)
        };
        let (few, many) = (hosts(10.0), hosts(80.0));
        assert!(few.0 < many.0 && many.0 <= many.1, "{few:?} {many:?}");
    }

    #[test]
    fn one_host_less_does_not_meet_the_goal() {
        let (search, load) = (search(1_000.0), load(80.0));
        for found in search.run(&load, dollars, || ()).expect("a rack").found {
            let setup = search.setup(found.memory, found.bytes, found.hosts - 1).expect("it fits");
            let less = simulate(&setup, &load, &mut |_| ()).map_or(f64::INFINITY, |outcome| outcome.ttft_p99_ms);
            assert!(found.hosts == 1 || less > 1_000.0, "{:?}: {less}", found.memory);
        }
    }

    #[test]
    fn a_goal_that_nothing_meets_says_how_near_it_came() {
        let racks = search(0.1).run(&load(10.0), dollars, || ()).expect("simulated");
        assert!(racks.found.is_empty() && racks.too_small.is_empty(), "{racks:?}");
        assert!(racks.nearest_ms > 0.1 && racks.nearest_ms < 10_000.0, "{racks:?}");
    }

    /// Engines of H200 have some 110 GB for KV, in which vLLM keeps prompts.
    #[test]
    fn engines_alone_have_their_prefix_cache() {
        let search = search(1_000.0);
        let setup = search.setup(Memory::None, 0, 1).expect("it fits");
        let hits = |setup: &Setup| simulate(setup, &load(10.0), &mut |_| ()).expect("it runs").hit_rate;
        let with = hits(&setup);
        let without = hits(&Setup { has_prefix_cache: false, ..setup.clone() });
        let little = hits(&Setup { l1_blocks: 2_000, ..setup });
        assert!(without == 0.0 && little > 0.0 && little < with && with > 0.5, "{without} {little} {with}");
    }

    #[test]
    fn memory_too_small_for_a_request_is_left_out() {
        let sized = |sizes: Vec<u64>, goal_ms: f64| {
            Search { sizes, ..search(goal_ms) }.run(&load(10.0), dollars, || ()).expect("engines alone serve it")
        };
        let kinds = |racks: &Racks| racks.too_small.iter().map(|(kind, _)| *kind).collect::<Vec<Memory>>();
        // Engines alone meet this goal.
        let alone = sized(vec![1 << 20], 1_000.0);
        assert!(alone.found.iter().all(|found| found.memory == Memory::None), "{alone:?}");
        assert_eq!(kinds(&alone), Memory::ALL[1..]);
        let nothing = sized(vec![1 << 20], 1.0);
        assert!(nothing.found.is_empty() && nothing.nearest_ms > 1.0 && kinds(&nothing).len() == 5, "{nothing:?}");
        let both = sized(vec![1 << 20, 256 << 30], 1_000.0);
        assert!(both.found.len() == 6 && both.found.iter().all(|found| found.bytes != 1 << 20), "{both:?}");
        assert!(both.too_small.is_empty(), "{both:?}");
    }

    #[test]
    fn a_model_that_does_not_fit_is_refused() {
        let engine = Engine { shape: *ModelShape::named("llama-70b").expect("a preset"), ..search(1.0).engine };
        let error = engine.cost().unwrap_err().to_string();
        assert!(error.contains("llama-70b does not fit 1 of h200"), "{error}");
        let error = Engine { gpus: 3, ..engine }.cost().unwrap_err().to_string();
        assert!(error.contains("3 GPUs cannot share the 64 heads"), "{error}");
        // Sixteen GPUs hold each of eight KV heads twice.
        let blocks = |gpus| Engine { gpus, ..search(1.0).engine }.alone(1, 1).expect("it fits").l1_blocks;
        assert!(blocks(8) > 7 * blocks(1) && blocks(16) < blocks(8) + blocks(1), "{} {}", blocks(8), blocks(16));
        let (cost, free) = Engine { gpus: 2, ..engine }.cost().expect("two hold it");
        assert!(free > 100 << 30 && cost.step_ns > H200.device.step_ns, "{cost:?}");
    }
}
