//! `cenote-lab bench engram`: n-gram tables in the region, beside the same work on private memory,
//! and the figures of "Pooling Engram Conditional Memory in Large Language Models using CXL".
//!
//! | part | content |
//! |---|---|
//! | `addresses` | n-grams and decoded rows per second of one core |
//! | `gather` | rows from the region, from private memory, and by the paper's Listing 1 |
//! | `figures` | Figures 3, 5 and 6: memory measured, CXL, RDMA and GPU modelled |
//! | `hot` | a cache of hot rows on Zipf and on real text |
//! | `kills` | loaders that are killed |
//! | `guesses` | time of a guess at the next token (`bench predict` has the rest) |

mod addresses;
mod fabrics;
mod figures;
mod gather;
mod hot;
mod kills;
mod pattern;

use super::Part;

pub use kills::run_child as run_load_child;

pub const PARTS: &[Part] = &[
    Part { name: "addresses", measure: addresses::measure },
    Part { name: "gather", measure: gather::measure },
    Part { name: "figures", measure: figures::measure },
    Part { name: "hot", measure: hot::measure },
    Part { name: "kills", measure: kills::measure },
    Part { name: "guesses", measure: super::predict::latencies },
];

/// Rows of a token in one layer: orders 2 and 3 of 8 heads (§3.1).
const ROWS_PER_TOKEN: u64 = 16;
/// Bytes of a row: 160 values of f16.
const ROW_BYTES: u64 = 320;
/// Tokens of a batch.
const BATCHES: [u64; 5] = [1, 8, 64, 512, 4096];
