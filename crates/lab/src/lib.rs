//! Roof: the studies of `cenote-lab`.
//!
//! [`accuracy`] scores tasks under codecs over several seeds.
//! [`choose`] measures each layer of a model with each codec and records the choice. [`agreement`]
//! compares profiles made from several texts. [`baselines`] are quantizers of other projects, for
//! comparison only: no pool stores their output. [`outliers`] makes a model with outlier key
//! channels, which large models have. [`papers`] holds the figures of two papers about their
//! codecs. [`report`] renders an evaluation with [`plot`].
//!
//! [`reproduce`] recomputes tables and figures of papers.
//! [`watermark`] and [`swap`] study the scheduler in the simulator, [`prefetch`] KV beyond L1,
//! [`budget`] one memory for KV and n-gram tables.
#![forbid(unsafe_code)]

pub mod accuracy;
pub mod agreement;
pub mod baselines;
pub mod budget;
pub mod choose;
pub mod outliers;
pub mod papers;
pub mod plot;
pub mod prefetch;
pub mod random_model;
pub mod report;
pub mod reproduce;
pub mod swap;
pub mod watermark;
