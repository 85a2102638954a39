//! Floor 2: what a model's n-gram tables or its KV need, from its `config.json`: bytes, bandwidth,
//! prefetch windows, copies, and the price of private memory beside a CXL pool.
//!
//! The formulas are those of "Pooling Engram Conditional Memory in Large Language Models using
//! CXL" (§3.2, §4.3, §5.4). [`papers`] has its figures, so that a plan stands beside them. A plan
//! is arithmetic: it measures nothing.
#![forbid(unsafe_code)]

pub mod cost;
pub mod engram;
mod error;
pub mod kv;
pub mod layer;
pub mod model;
pub mod papers;
pub mod parallel;
pub mod serving;
pub mod traffic;

pub use error::PlanError;
