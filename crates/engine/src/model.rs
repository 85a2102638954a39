//! Engine settings, and a model directory loaded with them.

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::engram::{FileTables, InMemoryTables, RowTables, Tables};
use crate::error::{LoadError, read};
use crate::kernels::ElementType;
use crate::kv::{KvArena, KvLayout};
use crate::llama::{Beyond, Llama, Observed, SeqChunk};
use crate::near::NearMemory;
use crate::sampler;
use crate::sparse::SparseConfig;
use crate::tokenizer::Tokenizer;
use cenote_base::engine::{TokenLogprob, TokenLogprobs};
use cenote_base::{Clock, TokenId};
use cenote_engram::{Addresses, TokenMap};
use cenote_policy::Watermark;
use cenote_store::NamespaceSpec;
use cenote_store::mover::{LinkSpeed, MoverConfig, MoverKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Least bytes of a page's part: enough that reading it costs little more than its bytes.
const PART_BYTES: usize = 8 << 10;

/// Settings of an engine. [`EngineConfig::new`] fills in defaults for all but the directory and the
/// clock.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// A Hugging Face directory: `config.json`, safetensors, `tokenizer.json`.
    pub model_dir: PathBuf,
    /// Model name for clients; `None`: the directory's name.
    pub model_name: Option<String>,
    /// Element type of weights and KV.
    pub dtype: ElementType,
    /// Compute threads; 0: one per core.
    pub threads: usize,
    /// Most tokens of prompt and output together. `None`: the smallest of the model's
    /// `max_position_embeddings`, its sliding window and the KV capacity.
    pub max_model_len: Option<usize>,
    /// Tokens per block: a multiple of 16.
    pub block_tokens: usize,
    /// KV blocks in this engine's own memory (L1); `None`: as many as `kv_bytes` holds.
    pub kv_blocks: Option<usize>,
    /// Bytes of this engine's own KV memory. A page is touched on its first use.
    pub kv_bytes: u64,
    /// Most requests that run at once.
    pub max_num_seqs: usize,
    /// Most tokens computed in one step. It bounds the time that prefill delays a decoding request.
    pub max_num_batched_tokens: usize,
    /// Most waiting requests; further ones are refused.
    pub max_waiting: usize,
    /// Free KV blocks that admission reserves for running requests to grow into.
    pub watermark: Watermark,
    /// Bytes of the region used as swap space for preempted requests. 0: preempted requests are
    /// recomputed. Without a store there is no swap space.
    pub swap_bytes: u64,
    /// Swap out even if recomputing would be quicker.
    pub always_swap: bool,
    /// Bytes of the region for blocks of running requests that L1 has no room for. Each step streams
    /// them through a staging area. 0: none. Without a store there is no such space.
    pub spill_bytes: u64,
    /// Admit requests although their steps would wait for spilled blocks. For measurements.
    pub spill_freely: bool,
    /// Where spilled blocks are copied beside the computation. Without a thread each page is copied when
    /// its layer is next, on a compute thread.
    pub mover: MoverKind,
    /// Holds these copies back to the speed of a link. For measurements.
    pub link: Option<LinkSpeed>,
    /// Decode steps read only the pages that their queries choose. `None`: all pages.
    pub sparse: Option<SparseConfig>,
    /// Time for which a prefill worker protects handed-over blocks from eviction, in milliseconds.
    pub hand_over_hold_ms: u64,
    /// Decode blocks from the store before a step instead of during it. For measurements of the
    /// overlap.
    pub decode_first: bool,
    /// Bytes of host memory for copies of blocks and of rows of n-gram tables that the region returned.
    /// 0: none. A policy divides them ([`crate::near`]).
    pub near_bytes: u64,
    /// The shared region's name, for [`cenote_base::engine::EngineDescription`].
    pub region: Option<String>,
    /// Clock of all waits, timeouts and measurements.
    pub clock: Clock,
}

impl EngineConfig {
    /// Defaults for the model in `model_dir`.
    #[must_use]
    pub fn new(model_dir: impl Into<PathBuf>, clock: Clock) -> Self {
        Self {
            model_dir: model_dir.into(),
            model_name: None,
            dtype: ElementType::F32,
            threads: 0,
            max_model_len: None,
            block_tokens: 16,
            kv_blocks: None,
            kv_bytes: 1 << 30,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            max_waiting: 256,
            watermark: Watermark::DEFAULT,
            swap_bytes: 0,
            always_swap: false,
            spill_bytes: 0,
            spill_freely: false,
            mover: MoverKind::Threads(1),
            link: None,
            sparse: None,
            hand_over_hold_ms: 10_000,
            decode_first: false,
            near_bytes: 0,
            region: None,
            clock,
        }
    }

    /// The movers of its blocks and pages.
    pub(crate) const fn mover_config(&self) -> MoverConfig {
        MoverConfig { kind: self.mover, link: self.link, clock: self.clock }
    }
}

/// A model with its tokenizer, for an engine or for direct computation.
pub struct LoadedModel {
    config: EngineConfig,
    llama: Llama,
    tokenizer: Tokenizer,
    name: String,
    fingerprint: [u8; 32],
    layout: KvLayout,
    kv_blocks: usize,
    spill_blocks: usize,
    max_model_len: usize,
    near: Option<NearMemory>,
    threads: rayon::ThreadPool,
}

impl LoadedModel {
    /// Loads the directory `config.model_dir`.
    ///
    /// # Errors
    /// A file is missing or damaged, the model is not of the Llama family, or a setting is invalid
    /// or does not fit the model.
    pub fn load(config: &EngineConfig) -> Result<Self, LoadError> {
        Self::load_with(config, None)
    }

    /// As [`Self::load`], with rows of n-grams from `source` instead of the model's folder. The
    /// folder may have them too; then rows that `source` cannot bring are read there.
    ///
    /// # Errors
    /// As [`Self::load`]. `source` has other tables than the model, or the model has none.
    pub fn load_with(config: &EngineConfig, source: Option<Arc<dyn RowTables>>) -> Result<Self, LoadError> {
        let dir = &config.model_dir;
        if !dir.is_dir() {
            return Err(LoadError::invalid(dir, "there is no such model directory"));
        }
        let model = ModelConfig::load(dir)?;
        let tokenizer = Tokenizer::load(dir, config.clock)?;
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(config.threads)
            .thread_name(|index| format!("cenote-compute-{index}"))
            .build()
            .map_err(|error| LoadError::setting("threads", error.to_string()))?;
        let mut checkpoint = Checkpoint::open(dir)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(model.kv_identity().as_bytes());
        let near = near(config, &model, source.is_some());
        let tables = tables(dir, &model, source, near.as_ref())?;
        if let Some(tables) = &tables {
            hasher.update(&tables.identity());
        }
        let llama = threads.install(|| Llama::load(model, &mut checkpoint, config.dtype))?;
        checkpoint.hash_taken(&mut hasher);
        let llama = match tables {
            Some(tables) => llama.with_tables(tables),
            None => llama,
        };

        if config.block_tokens == 0 || !config.block_tokens.is_multiple_of(16) {
            let fact = format!("{} is not a multiple of 16", config.block_tokens);
            return Err(LoadError::setting("block_tokens", fact));
        }
        for (setting, value) in [
            ("max_num_seqs", config.max_num_seqs),
            ("max_num_batched_tokens", config.max_num_batched_tokens),
            ("max_waiting", config.max_waiting),
        ] {
            if value == 0 {
                return Err(LoadError::setting(setting, "0 would serve nothing"));
            }
        }
        let layout = llama.kv_layout(config.block_tokens, config.dtype);
        if let Some(sparse) = config.sparse {
            if sparse.pages == 0 {
                return Err(LoadError::setting("sparse_pages", "0 pages leave only the newest tokens"));
            }
            if layout.head_dim != layout.padded_head_dim() {
                let fact = format!("heads of {} values; sparse decode needs a multiple of 16", layout.head_dim);
                return Err(LoadError::setting("sparse_pages", fact));
            }
        }
        let in_bytes = || usize::try_from(config.kv_bytes).unwrap_or(usize::MAX) / layout.block_bytes();
        let mut kv_blocks = config.kv_blocks.unwrap_or_else(in_bytes);
        if kv_blocks == 0 {
            let fact = format!("{} bytes do not hold one block of {} bytes", config.kv_bytes, layout.block_bytes());
            return Err(LoadError::setting("kv_bytes", fact));
        }
        // `max_num_seqs` sequences of full context cannot fill more blocks than this.
        let context = config.max_model_len.unwrap_or(llama.config().max_position_embeddings);
        kv_blocks = kv_blocks.min(config.max_num_seqs.saturating_mul(context.div_ceil(config.block_tokens)).max(1));
        let spill_blocks = usize::try_from(config.spill_bytes).unwrap_or(usize::MAX) / layout.block_bytes();
        let spill_blocks = spill_blocks.min(u32::MAX as usize / 2);
        let least = config.max_num_seqs.saturating_add(config.max_num_batched_tokens.div_ceil(config.block_tokens));
        if spill_blocks > 0 && kv_blocks < least {
            let fact = format!(
                "{kv_blocks} blocks are too few to spill others: {least} hold a block of each of max_num_seqs requests \
                 and the max_num_batched_tokens tokens of a step"
            );
            return Err(LoadError::setting("kv_bytes", fact));
        }
        let max_model_len = max_model_len(config, llama.config(), kv_blocks.saturating_add(spill_blocks))?;
        let name = config.model_name.clone().unwrap_or_else(|| {
            let canonical = dir.canonicalize().unwrap_or_else(|_| dir.clone());
            canonical.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
        });
        let fingerprint = *hasher.finalize().as_bytes();
        Ok(Self {
            config: config.clone(),
            llama,
            tokenizer,
            name,
            fingerprint,
            layout,
            kv_blocks,
            spill_blocks,
            max_model_len,
            near,
            threads,
        })
    }

    /// The settings that the model was loaded with.
    #[must_use]
    pub const fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Host memory in front of the region, if there is some.
    #[must_use]
    pub const fn near(&self) -> Option<&NearMemory> {
        self.near.as_ref()
    }

    /// The weights and the configuration.
    #[must_use]
    pub const fn llama(&self) -> &Llama {
        &self.llama
    }

    /// The tokenizer.
    #[must_use]
    pub const fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model name for clients.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Log-probabilities of `token` and of the `top` likeliest tokens, from the logits of one row.
    pub(crate) fn logprobs(&self, logits: &[f32], token: TokenId, top: usize) -> TokenLogprobs {
        let (chosen, top) = sampler::logprobs(logits, token, top);
        let named = |token, logprob| TokenLogprob { text: self.tokenizer.piece(token), logprob };
        TokenLogprobs {
            chosen: named(token, chosen),
            top: top.into_iter().map(|(token, logprob)| named(token, logprob)).collect(),
        }
    }

    /// Shape of a KV block.
    #[must_use]
    pub const fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// KV blocks in the engine's own memory.
    #[must_use]
    pub const fn kv_blocks(&self) -> usize {
        self.kv_blocks
    }

    /// KV blocks of running requests that may lie in the region.
    #[must_use]
    pub const fn spill_blocks(&self) -> usize {
        self.spill_blocks
    }

    /// Parts of a page that are read by themselves: the groups of heads that choose pages, or as many
    /// as have a few kilobytes. `is_exact`: the store has pages as the engine does. A page that must be
    /// decoded is one part.
    #[must_use]
    pub fn page_parts(&self, is_exact: bool) -> usize {
        let (heads, page_bytes) = (self.layout.num_kv_heads, self.layout.page_bytes());
        if self.config.sparse.is_some() {
            return heads;
        }
        // A part begins with a head, if no head of a V page is padded.
        let is_whole = is_exact && self.layout.padded_head_dim() == self.layout.head_dim;
        let fits = |parts: &usize| heads.is_multiple_of(*parts) && page_bytes / parts >= PART_BYTES;
        if is_whole { (1..=heads).rev().find(fits).unwrap_or(1) } else { 1 }
    }

    /// Most tokens of prompt and output together.
    #[must_use]
    pub const fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    /// Number of compute threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// blake3 of the weights and of every configuration value that KV depends on.
    #[must_use]
    pub const fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// The namespace in which this engine shares its KV. The salt separates tenants.
    #[must_use]
    pub fn namespace_spec(&self, tenant_salt: &str) -> NamespaceSpec {
        let small =
            |value: usize| u32::try_from(value).expect("the configuration's bounds keep layouts within 32 bits");
        NamespaceSpec {
            model_fingerprint: self.fingerprint,
            label: self.name.clone(),
            dtype: self.layout.element.name().to_owned(),
            block_tokens: small(self.layout.block_tokens),
            num_layers: small(self.layout.num_layers),
            page_bytes: small(self.layout.page_bytes()),
            page_layout: KvLayout::PAGE_LAYOUT.to_owned(),
            shard: "0/1".to_owned(),
            tenant_salt: tenant_salt.to_owned(),
        }
    }

    /// Computes a batch on this model's threads; see [`Llama::forward`] for shapes.
    pub fn forward(&self, batch: &[SeqChunk<'_>], kv: &mut KvArena) -> Vec<f32> {
        self.threads.install(|| self.llama.forward(batch, kv))
    }

    /// Computes a batch with KV that is not all in L1; see [`Llama::forward_beyond`].
    pub fn forward_beyond(&self, batch: &[SeqChunk<'_>], kv: &mut KvArena, beyond: Beyond<'_>) -> Vec<f32> {
        self.threads.install(|| self.llama.forward_beyond(batch, kv, beyond, &mut |_| {}))
    }

    /// Computes a batch and passes each layer's attention inputs to `observe`; see
    /// [`Llama::forward_observed`].
    pub fn forward_observed(
        &self,
        batch: &[SeqChunk<'_>],
        kv: &mut KvArena,
        observe: &mut (dyn FnMut(Observed<'_>) + Send),
    ) -> Vec<f32> {
        self.threads.install(|| self.llama.forward_observed(batch, kv, observe))
    }
}

/// Host memory in front of the region, if the settings ask for it. `far_rows`: n-gram rows come from
/// there too.
fn near(config: &EngineConfig, model: &ModelConfig, far_rows: bool) -> Option<NearMemory> {
    let layout = KvLayout {
        num_layers: model.num_layers,
        num_kv_heads: model.num_kv_heads,
        head_dim: model.head_dim,
        block_tokens: config.block_tokens,
        element: config.dtype,
    };
    let row_values = model.engram.as_ref().map(|engram| engram.row_values).filter(|_| far_rows);
    let bytes = config.near_bytes;
    (bytes > 0).then(|| NearMemory::new(bytes, layout.block_bytes(), row_values, config.clock))
}

/// The model's tables of n-grams, if it has some.
fn tables(
    dir: &Path,
    model: &ModelConfig,
    source: Option<Arc<dyn RowTables>>,
    near: Option<&NearMemory>,
) -> Result<Option<Tables>, LoadError> {
    let Some(engram) = &model.engram else {
        return match source {
            Some(_) => Err(LoadError::invalid(&dir.join("config.json"), "the model has no tables of n-grams")),
            None => Ok(None),
        };
    };
    let path = dir.join("tokenizer.json");
    let map = TokenMap::of_tokenizer(read(&path)?.as_bytes())
        .map_err(|error| LoadError::invalid(&path, error.to_string()))?;
    let addresses = Addresses::new(engram.clone(), Some(map))
        .map_err(|error| LoadError::invalid(&dir.join("config.json"), error.to_string()))?;
    let own = FileTables::open(dir, &addresses)?;
    let source = match (source, &own) {
        (Some(source), _) => near.map_or(Arc::clone(&source), |near| near.tables(source, engram.rows_per_token())),
        (None, Some(own)) => {
            let memory: Arc<dyn RowTables> = Arc::new(InMemoryTables::load(own)?);
            // It lacks no row, so the file is not read again.
            return Tables::new(addresses, memory, None).map(Some).map_err(|fact| LoadError::invalid(dir, fact));
        }
        (None, None) => {
            let fact = "the model has tables of n-grams, but neither engram.safetensors nor tensors of them";
            return Err(LoadError::invalid(dir, fact));
        }
    };
    Tables::new(addresses, source, own).map(Some).map_err(|fact| LoadError::invalid(dir, fact))
}

fn max_model_len(config: &EngineConfig, model: &ModelConfig, kv_blocks: usize) -> Result<usize, LoadError> {
    let capacity = kv_blocks.saturating_mul(config.block_tokens);
    let window = model.sliding_window.unwrap_or(usize::MAX);
    let Some(wanted) = config.max_model_len else {
        return Ok(model.max_position_embeddings.min(capacity).min(window));
    };
    let refuse = |fact: String| Err(LoadError::setting("max_model_len", fact));
    match wanted {
        0 | 1 => refuse(format!("{wanted} leaves no room for a prompt and an answer")),
        _ if wanted > model.max_position_embeddings => refuse(format!(
            "{wanted} is more than the model's max_position_embeddings, {}",
            model.max_position_embeddings
        )),
        _ if wanted > window => refuse(format!(
            "{wanted} is more than the model's sliding_window, {window}; this engine computes full attention"
        )),
        _ if wanted > capacity => {
            refuse(format!("{wanted} tokens do not fit into {kv_blocks} KV blocks of {} tokens", config.block_tokens))
        }
        _ => Ok(wanted),
    }
}
