//! Figures of "Pooling Engram Conditional Memory in Large Language Models using CXL".

use crate::cost::{Cost, GB, Prices};
use serde::Serialize;

/// A figure of the paper beside this plan's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// The paper's, if it has one.
    pub paper: Option<f64>,
    /// This plan's.
    pub ours: f64,
    /// The unit of both.
    pub unit: &'static str,
    /// Why they differ, or what the figure is.
    pub why: String,
}

/// Table 1 and the case study below it (§3.2).
pub mod table_1 {
    /// System throughput, tokens per second.
    pub const TOKENS_PER_SECOND: f64 = 70_000.0;
    /// Decode step, milliseconds.
    pub const STEP_MS: f64 = 3.6;
    /// Layers with tables.
    pub const ENGRAM_LAYERS: f64 = 2.0;
    /// Bytes per token and layer: "5 KB".
    pub const LAYER_BYTES: f64 = 5_000.0;
    /// Tokens of a step.
    pub const BATCH: f64 = 256.0;
    /// Average bandwidth, GB/s.
    pub const BANDWIDTH_GB: f64 = 0.7;
    /// Computation of a layer, and so the window before layer 2, microseconds.
    pub const LAYER_US: f64 = 56.0;
}

/// A row of Table 3: throughput of an engine whose tables lie in the CXL pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// The model.
    pub model: &'static str,
    /// Replicas per node.
    pub dp: u32,
    /// Nodes.
    pub nodes: u32,
    /// Tokens per second.
    pub tokens_per_second: f64,
}

const fn scaling(model: &'static str, dp: u32, nodes: u32, tokens_per_second: f64) -> Scaling {
    Scaling { model, dp, nodes, tokens_per_second }
}

/// Table 3. The first row of a model is its base.
pub const TABLE_3: [Scaling; 8] = [
    scaling("Qwen3-4B", 1, 1, 5614.4),
    scaling("Qwen3-4B", 1, 2, 5528.3),
    scaling("Qwen3-4B", 2, 1, 8180.6),
    scaling("Qwen3-4B", 2, 2, 8106.2),
    scaling("Qwen3-8B", 1, 1, 3895.0),
    scaling("Qwen3-8B", 1, 2, 3883.2),
    scaling("Qwen3-8B", 2, 1, 5661.5),
    scaling("Qwen3-8B", 2, 2, 5629.7),
];

/// A row of Table 5: parameters of the tables in billions, nodes, dollars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Parameters in billions, of two bytes each.
    pub billions: u32,
    /// Nodes.
    pub nodes: u32,
    /// Memory of each node.
    pub local: f64,
    /// One copy in a pool.
    pub pool: f64,
}

const fn price(billions: u32, nodes: u32, local: f64, pool: f64) -> Price {
    Price { billions, nodes, local, pool }
}

/// Table 5.
pub const TABLE_5: [Price; 8] = [
    price(100, 2, 6_000.0, 9_820.0),
    price(100, 4, 12_000.0, 10_840.0),
    price(100, 8, 24_000.0, 12_880.0),
    price(100, 16, 48_000.0, 16_960.0),
    price(400, 2, 24_000.0, 18_820.0),
    price(400, 4, 48_000.0, 19_840.0),
    price(400, 8, 96_000.0, 21_880.0),
    price(400, 16, 192_000.0, 25_960.0),
];

/// A row of Table 5 beside this plan's prices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PricedTable {
    /// Parameters in billions.
    pub billions: u32,
    /// The paper's dollars.
    pub paper: Cost,
    /// Dollars by the prices in use.
    pub ours: Cost,
}

/// Table 5 by these prices.
#[must_use]
pub fn table_5(prices: &Prices) -> Vec<PricedTable> {
    let row = |row: &Price| PricedTable {
        billions: row.billions,
        paper: Cost { nodes: row.nodes, local: row.local, pool: row.pool, savings: row.local - row.pool },
        ours: prices.cost(f64::from(row.billions) * 2.0 * GB, row.nodes),
    };
    TABLE_5.iter().map(row).collect()
}
