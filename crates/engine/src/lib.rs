//! The reference engine: Llama-family models on CPU, with paged KV, continuous batching and a
//! shared prefix store.
//!
//! Start reading at [`llama`], which is the model on one page. [`kernels`] explains why results do
//! not depend on batching. [`runtime`] is the serving loop around the scheduler of `cenote-policy`.
//! [`model`] loads a Hugging Face directory. To start an engine:
//!
//! ```no_run
//! use cenote_base::Clock;
//! use cenote_engine::{EngineConfig, LlmEngine, LoadedModel};
//! let model = LoadedModel::load(&EngineConfig::new("models/demo", Clock::system()))?;
//! let namespace = model.namespace_spec("tenant");
//! let engine = LlmEngine::start(model, None)?; // or a store opened with `namespace`
//! # drop((namespace, engine));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod config;
pub mod engram;
pub mod error;
pub mod kernels;
pub mod kv;
pub mod lazy;
pub mod llama;
pub mod model;
pub mod near;
pub mod runtime;
pub mod sampler;
pub mod sparse;
pub mod stream;
pub mod tokenizer;

pub use cenote_store::mover::{LinkSpeed, MoverConfig, MoverKind};
pub use error::LoadError;
pub use kernels::ElementType;
pub use model::{EngineConfig, LoadedModel};
pub use runtime::{LlmEngine, Observer, StepRecord, SwapRecord, TakenRecord};
pub use sparse::{PrefetchDepth, SparseConfig};
