//! Roof: a region as Dynamo's shared KV cache.
//!
//! Dynamo's router asks a [`SharedKvCache`](dynamo_kv_router::SharedKvCache) which blocks of a prompt
//! a shared pool has, and prefers workers accordingly. [`CenoteCache`] answers from the region by
//! reads alone: it maps the region read-only, takes no lock and no pin, and needs no server. See
//! `docs/guides/events.md`.
#![forbid(unsafe_code)]

mod cache;
mod counts;
mod naming;
mod sglang;
mod view;
mod vllm;

pub use cache::{CenoteCache, Settings, SettingsError};
pub use counts::{Counts, Miss};
pub use naming::{Naming, Vllm, names};
pub use vllm::{Algorithm, DEFAULT_SEED};
