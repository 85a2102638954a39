//! A model, its requests and a region for their KV.

use super::super::rows::Times;
use crate::commands::greedy::{collect, request, submit};
use cenote_base::engine::Event;
use cenote_base::prng::Prng;
use cenote_base::{Clock, Engine, TokenId};
use cenote_console::args::{CodecArg, EngineArgs, WatchArgs};
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::region::{HostPool, TemporaryRegion};
use cenote_engine::{EngineConfig, LlmEngine, LoadedModel, Observer, StepRecord};
use cenote_store::RegionStore;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Tokens of a step while prompts are computed.
pub const STEP_TOKENS: usize = 256;
const SEED: u64 = 5;

/// Sends the duration of each step that only decodes.
struct Steps(Sender<StepRecord>);

impl Observer for Steps {
    fn stepped(&mut self, record: &StepRecord) {
        let _ = self.0.send(*record);
    }
}

/// A model and its requests.
pub struct Case {
    pub name: &'static str,
    pub dir: PathBuf,
    pub threads: usize,
    pub prompts: Vec<Vec<TokenId>>,
    pub output_tokens: usize,
    pub weight_bytes: u64,
    pub block_bytes: u64,
    pub block_tokens: usize,
    /// Profile of the model, for codecs that need one.
    pub profile: Option<PathBuf>,
    region: TemporaryRegion,
}

/// A run of all requests.
pub struct Ran {
    pub tokens: Vec<Vec<TokenId>>,
    /// Nanoseconds of each step in which all requests decoded.
    pub steps: Times,
    /// Bytes of KV that attention to all tokens reads in such a step, on average.
    pub kv_bytes: u64,
    pub stats: BTreeMap<String, f64>,
}

impl Case {
    /// `requests` prompts, each of as many tokens as `tokens` says for a model of these bytes of weights
    /// and of KV per token.
    pub fn new(
        name: &'static str,
        dir: &Path,
        threads: usize,
        requests: usize,
        output_tokens: usize,
        tokens: impl FnOnce(u64, u64) -> usize,
    ) -> Result<Self, Failure> {
        let config = EngineConfig { threads, ..EngineConfig::new(dir) };
        let model = LoadedModel::load(&config)?;
        let (weight_bytes, layout) = (model.llama().weight_bytes() as u64, *model.layout());
        let token_bytes = (layout.block_bytes() / layout.block_tokens) as u64;
        let most = model.llama().config().max_position_embeddings - output_tokens;
        let tokens = tokens(weight_bytes, token_bytes).min(most);
        let mut prng = Prng::new(SEED);
        let mut prompt = || (0..tokens).map(|_| 100 + prng.below(150) as TokenId).collect();
        let prompts: Vec<Vec<TokenId>> = (0..requests).map(|_| prompt()).collect();
        let working_set = (requests * (tokens + output_tokens).div_ceil(layout.block_tokens)) as u64;
        let region_bytes = 3 * working_set * layout.block_bytes() as u64 + (64 << 20);
        let region = TemporaryRegion::until_signal("tiers", region_bytes)?;
        Ok(Self {
            name,
            dir: dir.to_owned(),
            threads,
            prompts,
            output_tokens,
            weight_bytes,
            block_bytes: layout.block_bytes() as u64,
            block_tokens: layout.block_tokens,
            profile: None,
            region,
        })
    }

    pub fn requests(&self) -> usize {
        self.prompts.len()
    }

    /// Blocks of all requests at their end.
    pub fn working_set(&self) -> usize {
        let blocks = |prompt: &Vec<TokenId>| (prompt.len() + self.output_tokens).div_ceil(self.block_tokens);
        self.prompts.iter().map(blocks).sum()
    }

    /// Settings with `l1` of the working set in L1, or as little as an engine takes, and the rest in
    /// the region.
    pub fn config(&self, l1: f64) -> EngineConfig {
        let all = self.working_set();
        let least = self.requests() + STEP_TOKENS / self.block_tokens;
        let kv_blocks = if l1 < 1.0 { ((all as f64 * l1) as usize).max(least) } else { all + least };
        EngineConfig {
            threads: self.threads,
            kv_blocks: Some(kv_blocks),
            max_num_seqs: self.requests(),
            max_num_batched_tokens: STEP_TOKENS,
            // All requests at once, also where steps wait.
            spill_freely: true,
            spill_bytes: if l1 < 1.0 { all as u64 * self.block_bytes } else { 0 },
            ..EngineConfig::new(&self.dir)
        }
    }

    /// A store of raw blocks, or of encoded ones.
    pub fn store(
        &self,
        model: &LoadedModel,
        codec: Option<&CodecArg>,
    ) -> Result<(HostPool, RegionStore<std::sync::Arc<cenote_mem::Mapped>>), Failure> {
        let region = self.region.args();
        let pool = region.attach_watching("tiers", &WatchArgs::default())?;
        // Encoded blocks have a name of their own, so that a run finds blocks of its kind.
        let spec = model.namespace_spec(if codec.is_some() { "encoded" } else { "" });
        let mut store =
            RegionStore::new(pool.clone(), &spec, Clock::system()).map_err(|error| region.explain(&error))?;
        let args = EngineArgs {
            codec: codec.cloned(),
            profile: self.profile.clone(),
            ..EngineArgs::of_model(Some(self.dir.clone()))?
        };
        if let Some(codec) = engine::block_codec(&args, model)? {
            store = store.with_codec(codec, &spec);
        }
        Ok((pool, store))
    }

    /// Runs all requests at once, with raw blocks or encoded ones in the region.
    pub fn run(&self, config: &EngineConfig, codec: Option<&CodecArg>) -> Result<Ran, Failure> {
        let model = LoadedModel::load(config)?;
        let (_pool, store) = self.store(&model, codec)?;
        let (sender, records) = channel();
        let engine = LlmEngine::start_observed(model, Some(Box::new(store)), Box::new(Steps(sender)))?;
        let output = self.output_tokens as u32;
        let events: Vec<Receiver<Event>> = (1..)
            .zip(&self.prompts)
            .map(|(id, prompt)| submit(&engine, request(id, prompt, output)))
            .collect::<Result<_, _>>()?;
        let tokens = events.iter().map(collect).collect::<Result<Vec<_>, _>>()?;
        let stats = engine.stats().values;
        drop(engine);
        // Not the first steps of all requests together: their blocks may still move.
        let all: Vec<StepRecord> = records
            .iter()
            .filter(|step| step.requests == self.requests() as u64 && step.tokens == step.requests)
            .skip(4)
            .collect();
        if all.is_empty() {
            return Err(Failure::new("no step decoded all requests at once"));
        }
        let context = all.iter().map(|step| step.context).sum::<u64>() / all.len() as u64;
        let kv_bytes = context * self.block_bytes / self.block_tokens as u64;
        Ok(Ran { tokens, steps: all.iter().map(|step| step.ns as f64).collect(), kv_bytes, stats })
    }
}
