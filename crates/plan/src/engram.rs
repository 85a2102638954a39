//! The plan of a model's n-gram tables.

use crate::cost::{Cost, Prices};
use crate::error::PlanError;
use crate::papers::{Figure, PricedTable, TABLE_3, table_1, table_5};
use crate::parallel::Parallel;
use crate::traffic::{Capacity, Fit, Link, Placement, Workload, fits, placements};
use cenote_engram::{NgramConfig, Scheme, Stored, layer_hashes};
use serde::Serialize;

/// What a plan is made for.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The engine's work.
    pub workload: Workload,
    /// Its ranks.
    pub parallel: Parallel,
    /// Links to compare.
    pub links: Vec<Link>,
    /// Prices of parts.
    pub prices: Prices,
    /// Memory of hosts and pool.
    pub capacity: Capacity,
    /// Numbers of nodes to price.
    pub priced_nodes: Vec<u32>,
}

impl Setting {
    /// Refuses settings that no engine has.
    ///
    /// # Errors
    /// A number is not positive, or there are more stages than layers.
    pub fn check(&self) -> Result<(), PlanError> {
        self.workload.check()?;
        self.parallel.check(self.workload.layers)?;
        self.prices.check()?;
        PlanError::unless_positive("a host's memory", self.capacity.host_bytes)?;
        PlanError::unless_positive("the pool's memory", self.capacity.pool_bytes)?;
        for link in &self.links {
            PlanError::unless_positive("a link's bandwidth", link.bytes_per_second)?;
        }
        self.priced_nodes
            .iter()
            .try_for_each(|nodes| PlanError::unless_positive("a number of nodes", f64::from(*nodes)))
    }
}

/// The table of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TablePlan {
    /// The layer's id in the configuration.
    pub layer: u64,
    /// Rows, padding included.
    pub rows: u64,
    /// Bytes.
    pub bytes: f64,
    /// Layers that are computed before it.
    pub layers_before: u64,
    /// Seconds that they take.
    pub window_seconds: f64,
    /// Bytes that a step must have fetched by then, those of earlier tables included.
    pub bytes_by_then: f64,
    /// Bytes per second that the window asks for.
    pub burst_bytes_per_second: f64,
    /// Links.
    pub links: Vec<Fit>,
}

/// What one rank reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankPlan {
    /// How ranks divide the rows.
    pub name: &'static str,
    /// Bytes that a rank reads in a step, at most.
    pub rank_step_bytes: f64,
    /// Bytes per second of a rank, at most.
    pub rank_bytes_per_second: f64,
    /// Bytes per second of all nodes' ranks.
    pub pool_bytes_per_second: f64,
    /// Seconds of the shortest window.
    pub window_seconds: f64,
}

/// A row of Table 3 beside this plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScalingPlan {
    /// The model.
    pub model: &'static str,
    /// Replicas per node.
    pub dp: u32,
    /// Nodes.
    pub nodes: u32,
    /// The paper's tokens per second.
    pub tokens_per_second: f64,
    /// Its throughput over that of its base.
    pub paper_ratio: f64,
    /// The ratio if the pool costs nothing: the base's, as the tokens per second are one node's.
    pub node_ratio: f64,
    /// Bytes per second that its nodes read with this plan's rows.
    pub pool_bytes_per_second: f64,
    /// Share of the first link.
    pub link_share: f64,
}

/// The plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngramPlan {
    /// The family.
    pub family: &'static str,
    /// The rows' format.
    pub format: &'static str,
    /// Rows that a token reads in a layer.
    pub rows_per_token: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Bytes of a token in one layer: `S_layer`.
    pub layer_bytes: f64,
    /// Bytes of a token in all layers.
    pub token_bytes: f64,
    /// Bytes of all tables.
    pub table_bytes: f64,
    /// Values of all tables.
    pub parameters: f64,
    /// Table 1.
    pub table_1: Vec<Figure>,
    /// Each table.
    pub tables: Vec<TablePlan>,
    /// Copies of the tables.
    pub placements: Vec<Placement>,
    /// Ranks.
    pub ranks: Vec<RankPlan>,
    /// Table 3.
    pub table_3: Vec<ScalingPlan>,
    /// Prices of parts (Table 4).
    pub prices: Prices,
    /// Those of the paper.
    pub paper_prices: Prices,
    /// Table 5.
    pub table_5: Vec<PricedTable>,
    /// This model's tables.
    pub costs: Vec<Cost>,
    /// Nodes from which on a pool is cheaper; none if it never is.
    pub break_even_nodes: Option<u32>,
}

/// The format that a family's checkpoint has. Rows too short for a block with a scale of its own have
/// one scale for the table.
#[must_use]
pub fn stored_format(config: &NgramConfig) -> Stored {
    match &config.scheme {
        Scheme::DeepSeek { .. } if Stored::E4m3Ue8m0.row_bytes(config.row_values).is_err() => Stored::E4m3,
        Scheme::DeepSeek { .. } => Stored::E4m3Ue8m0,
        Scheme::Qwen { embedding_dtype: Some(dtype), .. } if dtype == "float8_e4m3fn" => Stored::E4m3,
        Scheme::Qwen { .. } => Stored::Bf16,
    }
}

impl EngramPlan {
    /// Plans tables whose rows are stored in `format`.
    ///
    /// # Errors
    /// The setting or the tables are impossible, or the format does not fit the rows.
    pub fn new(config: &NgramConfig, format: Stored, setting: &Setting) -> Result<Self, PlanError> {
        setting.check()?;
        let row_bytes = format.row_bytes(config.row_values)?;
        let layer_bytes = (config.rows_per_token() * row_bytes) as f64;
        let tables = tables(config, row_bytes as f64, layer_bytes, setting)?;
        let (workload, prices) = (&setting.workload, &setting.prices);
        let table_bytes: f64 = tables.iter().map(|table| table.bytes).sum();
        let token_bytes = layer_bytes * tables.len() as f64;
        let parallel = &setting.parallel;
        let engines = u64::from(parallel.dp) * u64::from(parallel.tp) * u64::from(parallel.pp);
        Ok(Self {
            family: config.family().name(),
            format: format.name(),
            rows_per_token: config.rows_per_token() as u64,
            row_bytes: row_bytes as u64,
            layer_bytes,
            token_bytes,
            table_bytes,
            parameters: table_bytes / row_bytes as f64 * config.row_values as f64,
            table_1: figures(workload, layer_bytes, &tables),
            ranks: ranks(config, layer_bytes, &tables, setting),
            placements: placements(table_bytes, engines, u64::from(parallel.nodes), &setting.capacity),
            table_3: scalings(token_bytes, setting),
            prices: *prices,
            paper_prices: Prices::PAPER,
            table_5: table_5(prices),
            costs: setting.priced_nodes.iter().map(|nodes| prices.cost(table_bytes, *nodes)).collect(),
            break_even_nodes: prices.break_even_nodes(table_bytes),
            tables,
        })
    }
}

fn tables(
    config: &NgramConfig,
    row_bytes: f64,
    layer_bytes: f64,
    setting: &Setting,
) -> Result<Vec<TablePlan>, PlanError> {
    let workload = &setting.workload;
    let mut plans = Vec::new();
    for hash in layer_hashes(config)? {
        let layers_before = config.layers_before(hash.layer);
        if layers_before >= workload.layers {
            return Err(PlanError::Invalid {
                key: "layers".to_owned(),
                value: workload.layers.to_string(),
                expected: format!("above {layers_before}, since layer {} has a table", hash.layer),
            });
        }
        let before = |id: &&u64| config.layers_before(**id) <= layers_before;
        let needed = config.layer_ids.iter().filter(before).count() as f64;
        let bytes_by_then = needed * layer_bytes * workload.batch as f64;
        let window_seconds = layers_before as f64 * workload.layer_seconds();
        plans.push(TablePlan {
            layer: hash.layer,
            rows: hash.padded_rows,
            bytes: hash.padded_rows as f64 * row_bytes,
            layers_before,
            window_seconds,
            bytes_by_then,
            burst_bytes_per_second: bytes_by_then / window_seconds,
            links: fits(&setting.links, bytes_by_then, window_seconds),
        });
    }
    Ok(plans)
}

fn figures(workload: &Workload, layer_bytes: f64, tables: &[TablePlan]) -> Vec<Figure> {
    let figure = |name: &str, paper: Option<f64>, ours: f64, unit: &'static str, why: &str| Figure {
        name: name.to_owned(),
        paper,
        ours,
        unit,
        why: why.to_owned(),
    };
    let token_bytes = layer_bytes * tables.len() as f64;
    let mut figures = vec![
        figure(
            "throughput T",
            Some(table_1::TOKENS_PER_SECOND),
            workload.tokens_per_second,
            "tokens/s",
            "given; the paper's is Qwen3-32B on four H200",
        ),
        figure("step", Some(table_1::STEP_MS), workload.step_seconds * 1e3, "ms", "given"),
        figure("batch", Some(table_1::BATCH), workload.batch as f64, "tokens", "given"),
        figure(
            "layers with tables",
            Some(table_1::ENGRAM_LAYERS),
            tables.len() as f64,
            "layers",
            "of the configuration",
        ),
        figure(
            "bytes per token and layer",
            Some(table_1::LAYER_BYTES),
            layer_bytes,
            "B",
            "the paper's 5 KB are 16 rows of 320 B, rounded; its §3.3 reads 8 of them per retrieval, one order",
        ),
        figure(
            "average bandwidth",
            Some(table_1::BANDWIDTH_GB),
            workload.tokens_per_second * token_bytes / 1e9,
            "GB/s",
            "T × bytes × layers",
        ),
        figure(
            "time of a layer",
            Some(table_1::LAYER_US),
            workload.layer_seconds() * 1e6,
            "µs",
            "step / layers, which the paper rounds",
        ),
    ];
    if let Some(first) = tables.iter().min_by_key(|table| table.layers_before) {
        figures.push(figure(
            "shortest window",
            Some(table_1::LAYER_US),
            first.window_seconds * 1e6,
            "µs",
            "layers before the first table × time of a layer",
        ));
        figures.push(figure(
            "bandwidth in that window",
            None,
            first.burst_bytes_per_second / 1e9,
            "GB/s",
            "a step's rows come in a burst; the paper states the average only",
        ));
    }
    figures
}

/// What ranks read if each reads what it needs (§4.3), and if ranks of a layer divide the heads.
fn ranks(config: &NgramConfig, layer_bytes: f64, tables: &[TablePlan], setting: &Setting) -> Vec<RankPlan> {
    let (workload, parallel) = (&setting.workload, &setting.parallel);
    // A stage reads for its own layers only, and its window starts with the step.
    let stages: Vec<u64> = tables.iter().map(|table| parallel.stage_of(table.layers_before, workload.layers)).collect();
    let most = stages.iter().map(|stage| stages.iter().filter(|other| *other == stage).count()).max();
    let tokens = workload.batch as f64 / f64::from(parallel.dp);
    let stage_step = tokens * layer_bytes * most.unwrap_or(0) as f64;
    let steps = workload.tokens_per_second / workload.batch as f64;
    let all = workload.tokens_per_second * layer_bytes * tables.len() as f64 * f64::from(parallel.nodes);
    let columns = config.rows_per_token() as f64;
    // Whole heads go to each rank.
    let part = (columns / f64::from(parallel.tp)).ceil() / columns;
    let window = |start: &dyn Fn(u64) -> u64| {
        let windows = tables.iter().zip(&stages).map(|(table, stage)| table.layers_before - start(*stage));
        windows.min().unwrap_or(0) as f64 * workload.layer_seconds()
    };
    let starts = parallel.stages(workload.layers);
    let row = |name, share: f64, copies: f64, window_seconds| RankPlan {
        name,
        rank_step_bytes: stage_step * share,
        rank_bytes_per_second: stage_step * share * steps,
        pool_bytes_per_second: all * copies,
        window_seconds,
    };
    let tp = f64::from(parallel.tp);
    let mut plans = vec![row("each rank reads its tokens' rows", 1.0, tp, window(&|_| 0))];
    if parallel.tp > 1 {
        plans.push(row("ranks of a layer divide the heads and exchange them", part, 1.0, window(&|_| 0)));
    }
    if parallel.pp > 1 {
        plans.push(row("each rank reads when its stage starts", 1.0, tp, window(&|stage| starts[stage as usize])));
    }
    plans
}

fn scalings(token_bytes: f64, setting: &Setting) -> Vec<ScalingPlan> {
    let link = setting.links.first().map_or(f64::INFINITY, |link| link.bytes_per_second);
    let plan = |row: &crate::papers::Scaling| {
        let base = TABLE_3.iter().find(|base| base.model == row.model).unwrap_or(row);
        let pool = row.tokens_per_second * token_bytes * f64::from(row.nodes);
        ScalingPlan {
            model: row.model,
            dp: row.dp,
            nodes: row.nodes,
            tokens_per_second: row.tokens_per_second,
            paper_ratio: row.tokens_per_second / base.tokens_per_second,
            node_ratio: f64::from(row.dp) / f64::from(base.dp),
            pool_bytes_per_second: pool,
            link_share: pool / link,
        }
    };
    TABLE_3.iter().map(plan).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_engram::Preset;

    fn setting() -> Setting {
        Setting {
            workload: Workload::PAPER,
            parallel: Parallel::SINGLE,
            links: Link::of_paper(),
            prices: Prices::PAPER,
            capacity: Capacity::PAPER,
            priced_nodes: vec![2, 4, 8, 16],
        }
    }

    fn paper(setting: &Setting) -> EngramPlan {
        EngramPlan::new(&Preset::Engram27B.config().unwrap(), Stored::F16, setting).unwrap()
    }

    #[test]
    fn rows_of_two_tables_are_counted() {
        let plan = paper(&setting());
        assert_eq!((plan.rows_per_token, plan.row_bytes, plan.layer_bytes), (16, 320, 5120.0));
        let windows: Vec<f64> = plan.tables.iter().map(|table| table.window_seconds * 1e6).collect();
        assert!((windows[1] / windows[0] - 14.0).abs() < 1e-9, "{windows:?}");
    }

    #[test]
    fn a_later_table_waits_for_the_earlier_ones_too() {
        let plan = paper(&setting());
        assert_eq!(plan.tables[1].bytes_by_then, 2.0 * plan.tables[0].bytes_by_then);
        assert_eq!(plan.tables[0].bytes_by_then, 256.0 * 5120.0);
    }

    #[test]
    fn ranks_divide_tokens_heads_and_layers() {
        let base = paper(&setting()).ranks[0].clone();
        let parallel = |parallel| paper(&Setting { parallel, ..setting() }).ranks;
        let dp = parallel(Parallel { dp: 2, ..Parallel::SINGLE });
        assert_eq!(dp[0].rank_step_bytes, base.rank_step_bytes / 2.0);
        assert_eq!(dp[0].pool_bytes_per_second, base.pool_bytes_per_second);
        let tp = parallel(Parallel { tp: 4, ..Parallel::SINGLE });
        assert_eq!(tp[0].pool_bytes_per_second, base.pool_bytes_per_second * 4.0);
        assert_eq!(tp[1].rank_step_bytes, base.rank_step_bytes / 4.0);
        assert_eq!(tp[1].pool_bytes_per_second, base.pool_bytes_per_second);
        // Layer 14 of 64 is the 15th; with eight stages it is in the second, which starts at 8.
        let pp = parallel(Parallel { pp: 8, ..Parallel::SINGLE });
        assert_eq!(pp[0].rank_step_bytes, base.rank_step_bytes / 2.0);
        assert_eq!(pp[1].window_seconds, base.window_seconds);
    }

    #[test]
    fn the_published_models_have_their_sizes() {
        let v41 = br#"{"engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
            "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256,
            "engram_vocab_size": 16000000, "engram_compressed_vocab_size": 99092, "engram_pad_token_id": 2}"#;
        let config = NgramConfig::parse(v41).unwrap();
        let setting = Setting { workload: Workload { layers: 40, ..Workload::PAPER }, ..setting() };
        let plan = EngramPlan::new(&config, stored_format(&config), &setting).unwrap();
        assert_eq!((plan.row_bytes, plan.rows_per_token, plan.token_bytes), (264, 24, 2.0 * 24.0 * 264.0));
        assert_eq!(plan.table_bytes, (384_006_168.0 + 384_016_682.0) * 264.0);
    }

    #[test]
    fn rows_shorter_than_a_block_have_one_scale() {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo-engram/config.json");
        let config = NgramConfig::parse(&std::fs::read(demo).unwrap()).unwrap();
        let setting = Setting { workload: Workload { layers: 4, ..Workload::PAPER }, ..setting() };
        let plan = EngramPlan::new(&config, stored_format(&config), &setting).unwrap();
        // The sizes of the tensors in `engram.safetensors` beside it.
        assert_eq!((plan.row_bytes, plan.table_bytes), (16, (32_140.0 + 32_654.0) * 16.0));
    }

    #[test]
    fn impossible_settings_are_refused() {
        let config = Preset::Engram27B.config().unwrap();
        let refused = |setting: Setting, words: &str| {
            let error = EngramPlan::new(&config, Stored::F16, &setting).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        refused(Setting { workload: Workload { layers: 14, ..Workload::PAPER }, ..setting() }, "layer 14 has a table");
        refused(Setting { priced_nodes: vec![0], ..setting() }, "a number of nodes is 0");
        refused(Setting { links: vec![Link { name: "x".into(), bytes_per_second: 0.0 }], ..setting() }, "bandwidth");
        let odd = NgramConfig { row_values: 100, ..config.clone() };
        let error = EngramPlan::new(&odd, Stored::E4m3Ue8m0, &setting()).unwrap_err();
        assert!(error.to_string().contains("multiple of 32 values"), "{error}");
    }
}
