//! The plan of a model's KV cache in a pool.

use crate::cost::{Cost, Prices};
use crate::engram::Setting;
use crate::error::PlanError;
use crate::layer::Layer;
use crate::model::Model;
use crate::traffic::{Fit, Placement, fits, placements};
use serde::Serialize;

/// Layers that keep the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerGroup {
    /// What each keeps.
    #[serde(flatten)]
    pub kept: Layer,
    /// The number of layers.
    pub layers: u64,
    /// Bytes of each for one more token of a long sequence.
    pub token_bytes: f64,
    /// Bytes of each for a sequence of the planned length.
    pub sequence_bytes: f64,
    /// Of these, the bytes of a state that has the same size for every length.
    pub state_bytes: f64,
}

/// What one rank keeps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankShare {
    /// How ranks divide it.
    pub name: &'static str,
    /// Bytes of a token on one rank, at most.
    pub token_bytes: f64,
    /// Copies of a token's bytes on all ranks of a replica; above one, some bytes are kept twice.
    pub copies: f64,
}

/// The plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KvPlan {
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Layers by what they keep.
    pub groups: Vec<LayerGroup>,
    /// Bytes of one more token of a long sequence, all layers.
    pub token_bytes: f64,
    /// Bytes of a sequence of `context` tokens.
    pub sequence_bytes: f64,
    /// Of these, the bytes of states, which do not grow.
    pub state_bytes: f64,
    /// Its tokens.
    pub context: u64,
    /// Sequences to keep.
    pub sequences: u64,
    /// Their bytes.
    pub total_bytes: f64,
    /// Bytes per second for this many tokens read from the pool or written to it.
    pub bytes_per_second: f64,
    /// Bytes of the largest layer for a step's tokens: what must arrive while a layer is computed.
    pub layer_step_bytes: f64,
    /// Seconds that a layer computes.
    pub window_seconds: f64,
    /// Links.
    pub links: Vec<Fit>,
    /// Copies of the kept bytes, if all replicas and hosts need them.
    pub placements: Vec<Placement>,
    /// Ranks.
    pub ranks: Vec<RankShare>,
    /// Prices of parts.
    pub prices: Prices,
    /// Those of the paper.
    pub paper_prices: Prices,
    /// Costs of the kept bytes.
    pub costs: Vec<Cost>,
    /// Nodes from which on a pool is cheaper; none if it never is.
    pub break_even_nodes: Option<u32>,
}

impl KvPlan {
    /// Plans `sequences` sequences of `context` tokens, with values of `value_bytes` bytes. The
    /// setting's tokens per second are those that the pool serves.
    ///
    /// # Errors
    /// The setting is impossible, or a number is zero.
    pub fn new(
        model: &Model,
        value_bytes: u64,
        context: u64,
        sequences: u64,
        setting: &Setting,
    ) -> Result<Self, PlanError> {
        setting.check()?;
        PlanError::unless_positive("the number of sequences", sequences as f64)?;
        PlanError::unless_positive("the context", context as f64)?;
        if context >= 1 << 40 {
            let expected = "below 2^40 tokens".to_owned();
            return Err(PlanError::Invalid { key: "context".to_owned(), value: context.to_string(), expected });
        }
        let groups = groups(model, value_bytes, context);
        let sum = |of: &dyn Fn(&LayerGroup) -> f64| groups.iter().map(|group| of(group) * group.layers as f64).sum();
        let token_bytes: f64 = sum(&|group| group.token_bytes);
        let sequence_bytes: f64 = sum(&|group| group.sequence_bytes);
        let state_bytes: f64 = sum(&|group| group.state_bytes);
        let total_bytes = sequence_bytes * sequences as f64;
        let (workload, prices, parallel) = (&setting.workload, &setting.prices, &setting.parallel);
        let largest = groups.iter().map(|group| group.token_bytes).fold(0.0, f64::max);
        let layer_step_bytes = largest * workload.batch as f64;
        let window_seconds = workload.layer_seconds();
        let engines = u64::from(parallel.dp);
        Ok(Self {
            value_bytes,
            token_bytes,
            sequence_bytes,
            state_bytes,
            context,
            sequences,
            total_bytes,
            bytes_per_second: token_bytes * workload.tokens_per_second,
            layer_step_bytes,
            window_seconds,
            links: fits(&setting.links, layer_step_bytes, window_seconds),
            placements: placements(total_bytes, engines, u64::from(parallel.nodes), &setting.capacity),
            ranks: ranks(model, value_bytes, token_bytes, setting),
            prices: *prices,
            paper_prices: Prices::PAPER,
            costs: setting.priced_nodes.iter().map(|nodes| prices.cost(total_bytes, *nodes)).collect(),
            break_even_nodes: prices.break_even_nodes(total_bytes),
            groups,
        })
    }
}

fn groups(model: &Model, value_bytes: u64, context: u64) -> Vec<LayerGroup> {
    let mut groups: Vec<LayerGroup> = Vec::new();
    for kept in &model.layers {
        if let Some(group) = groups.iter_mut().find(|group| group.kept == *kept) {
            group.layers += 1;
            continue;
        }
        groups.push(LayerGroup {
            token_bytes: kept.token_bytes(value_bytes),
            sequence_bytes: kept.sequence_bytes(context, value_bytes),
            state_bytes: kept.state_bytes(),
            kept: kept.clone(),
            layers: 1,
        });
    }
    groups
}

fn ranks(model: &Model, value_bytes: u64, token_bytes: f64, setting: &Setting) -> Vec<RankShare> {
    let parallel = &setting.parallel;
    let tp = u64::from(parallel.tp);
    let of_rank = |layer: &Layer| layer.rank_token_bytes(value_bytes, tp);
    let starts = parallel.stages(model.layers.len() as u64);
    let stage = |bytes: &dyn Fn(&Layer) -> f64| {
        let sums = starts.windows(2).map(|ends| {
            let layers = &model.layers[ends[0] as usize..ends[1] as usize];
            layers.iter().map(bytes).sum::<f64>()
        });
        sums.fold(0.0, f64::max)
    };
    let copies = |of: &dyn Fn(&Layer) -> f64| {
        let all: f64 = model.layers.iter().map(of).sum::<f64>() * tp as f64;
        if token_bytes > 0.0 { all / token_bytes } else { 1.0 }
    };
    let mut shares = vec![RankShare { name: "DP: a replica", token_bytes, copies: 1.0 }];
    if parallel.pp > 1 {
        let whole = |layer: &Layer| layer.token_bytes(value_bytes);
        shares.push(RankShare { name: "PP: a stage's layers", token_bytes: stage(&whole), copies: 1.0 });
    }
    if tp > 1 {
        shares.push(RankShare {
            name: "TP: a rank's heads, in its stage",
            token_bytes: stage(&of_rank),
            copies: copies(&of_rank),
        });
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Heads;
    use crate::parallel::Parallel;
    use crate::traffic::{Capacity, Link, Workload};

    fn setting(parallel: Parallel) -> Setting {
        Setting {
            workload: Workload::PAPER,
            parallel,
            links: Link::of_paper(),
            prices: Prices::PAPER,
            capacity: Capacity::PAPER,
            priced_nodes: vec![2, 16],
        }
    }

    fn model(layers: Vec<Layer>) -> Model {
        Model { layers, value_bytes: 2, context: None }
    }

    const HEADS: Heads = Heads { heads: 8, key_dim: 128, value_dim: 128 };
    const GROUPED: Layer = Layer::Full { heads: HEADS };

    #[test]
    fn a_token_of_the_papers_model_takes_256_kib() {
        let qwen3_32b = model(vec![GROUPED; 64]);
        let plan = KvPlan::new(&qwen3_32b, 2, 1024, 256, &setting(Parallel::SINGLE)).unwrap();
        assert_eq!(plan.token_bytes, 262_144.0);
        assert_eq!((plan.sequence_bytes, plan.total_bytes), (262_144.0 * 1024.0, 262_144.0 * 1024.0 * 256.0));
        assert_eq!(plan.bytes_per_second, 262_144.0 * 70_000.0);
        assert_eq!((plan.groups.len(), plan.groups[0].layers), (1, 64));
    }

    #[test]
    fn windows_and_states_do_not_grow() {
        let hybrid = model(vec![
            GROUPED,
            Layer::Window { heads: HEADS, tokens: 100 },
            Layer::State { bytes: 100 },
            Layer::Compressed { bytes: 1024, ratio: 4, window: 128, index_bytes: 0 },
            Layer::Compressed { bytes: 1024, ratio: 0, window: 128, index_bytes: 0 },
        ]);
        let plan = KvPlan::new(&hybrid, 2, 1000, 1, &setting(Parallel::SINGLE)).unwrap();
        let bytes: Vec<(f64, f64)> =
            plan.groups.iter().map(|group| (group.token_bytes, group.sequence_bytes)).collect();
        let expected = [
            (4096.0, 4_096_000.0),
            (0.0, 409_600.0),
            (0.0, 100.0),
            (256.0, (128.0 + 250.0) * 1024.0),
            (0.0, 128.0 * 1024.0),
        ];
        assert_eq!(bytes, expected);
        assert_eq!(plan.state_bytes, 100.0);
    }

    #[test]
    fn ranks_divide_heads_and_layers_but_no_latents() {
        let shares = |layers, parallel| KvPlan::new(&model(layers), 2, 16, 1, &setting(parallel)).unwrap().ranks;
        let tp = Parallel { tp: 16, ..Parallel::SINGLE };
        let grouped = shares(vec![GROUPED; 4], tp);
        assert_eq!((grouped[1].token_bytes, grouped[1].copies), (4.0 * 512.0, 2.0), "16 ranks share 8 heads");
        let latent = shares(vec![Layer::Latent { values: 576, index_bytes: 0 }; 4], tp);
        assert_eq!((latent[1].token_bytes, latent[1].copies), (4.0 * 1152.0, 16.0), "each rank has the latent");
        let staged = shares(vec![GROUPED; 5], Parallel { tp: 2, pp: 2, ..Parallel::SINGLE });
        let bytes: Vec<f64> = staged.iter().map(|share| share.token_bytes).collect();
        assert_eq!(bytes, [5.0 * 4096.0, 3.0 * 4096.0, 3.0 * 2048.0]);
    }

    #[test]
    fn zero_is_refused() {
        let one = model(vec![GROUPED]);
        let refused = |context, sequences| KvPlan::new(&one, 2, context, sequences, &setting(Parallel::SINGLE));
        assert!(refused(0, 1).unwrap_err().to_string().contains("the context is 0"));
        assert!(refused(1, 0).unwrap_err().to_string().contains("the number of sequences is 0"));
        assert!(refused(1 << 50, 1).unwrap_err().to_string().contains("below 2^40"));
    }
}
