//! An engine of this process, with its store in a region.

use crate::args::{CodecArg, EngineArgs, RegionArgs, StudiedModelArgs, WatchArgs};
use crate::codec_table;
use crate::cold;
use crate::demo_model;
use crate::facts;
use crate::failure::Failure;
use crate::output;
use crate::peers;
use crate::profile;
use crate::region::{self, HostPool};
use crate::tables::RegionTables;
use cenote_base::Clock;
use cenote_codec::{LayerSpecs, PageCodec, Profile, Raw, Side, SpecError};
use cenote_engine::config::ModelConfig;
use cenote_engine::engram::RowTables;
use cenote_engine::{EngineConfig, LlmEngine, LoadedModel, MoverKind, Observer, SparseConfig, SwapRecord};
use cenote_pool::Ticker;
use cenote_store::{BlockCodec, RegionStore};
use std::fs::File;
use std::io::{LineWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Memory pressure for choosing codecs: of blocks that were just computed, and of cold blocks.
const HOT: f64 = 0.0;
const COLD: f64 = 1.0;

/// An engine and its worker in the region.
pub struct Running {
    /// The engine.
    pub engine: Arc<LlmEngine>,
    /// Dropped after the engine, so that the pool outlives it.
    _ticker: Option<Ticker>,
}

/// Loads the model and starts the engine; with a region, as its worker `worker_name`.
pub fn start(
    args: &EngineArgs,
    region: Option<&RegionArgs>,
    watch: &WatchArgs,
    worker_name: &str,
) -> Result<Running, Failure> {
    let observer: Box<dyn Observer> = match &args.swap_trace {
        Some(path) => Box::new(SwapFile::create(path)?),
        None => Box::new(()),
    };
    start_observed(args, region, watch, worker_name, observer)
}

/// As [`start`], with another observer than `--swap-trace`'s.
pub fn start_observed(
    args: &EngineArgs,
    region: Option<&RegionArgs>,
    watch: &WatchArgs,
    worker_name: &str,
    observer: Box<dyn Observer>,
) -> Result<Running, Failure> {
    if let (None, Some(settings)) = (region, &args.cold) {
        return Err(Failure::new(format!("--cold {}: without a region there is nothing below it", settings.place)));
    }
    if let (None, Some(settings)) = (region, &args.peers) {
        let peers = settings.peers.join(",");
        return Err(Failure::new(format!("--peers {peers}: without a region their blocks have no place")));
    }
    if region.is_none() && args.swap.0 > 0 {
        return Err(Failure::new(format!("--swap {}: without a region there is nothing to swap to", args.swap)));
    }
    if region.is_none() && args.spill.0 > 0 {
        return Err(Failure::new(format!("--spill {}: without a region there is nothing to spill to", args.spill)));
    }
    if region.is_none() && args.log_misses {
        return Err(Failure::new("--log-misses: without a region there is nothing that could lack a block"));
    }
    if region.is_none() && args.near_size.0 > 0 {
        let fact = format!("--near-size {}: without a region there is nothing to keep copies of", args.near_size);
        return Err(Failure::new(fact));
    }
    let pool = region.map(|region| region.attach_watching(worker_name, watch)).transpose()?;
    if let Some(pool) = &pool {
        // Every thread of the engine and of its store starts from this one.
        region::stay_near(pool.fabric());
    }
    let tables = region_tables(args, pool.as_ref())?;
    let spinner = output::spinner("loading the model");
    let model = LoadedModel::load_with(&config(args, region)?, tables)?;
    spinner.finish_and_clear();
    let Some((pool, region)) = pool.zip(region) else {
        return Ok(Running { engine: Arc::new(LlmEngine::start_observed(model, None, observer)?), _ticker: None });
    };
    let spec = model.namespace_spec(&args.tenant_salt);
    let mut store = RegionStore::new(pool.clone(), &spec, Clock::system()).map_err(|error| region.explain(&error))?;
    facts::record(&pool, &spec);
    let recorder = pool.clone();
    store = store.on_tenant(move |spec| facts::record(&recorder, spec));
    if let Some(codec) = block_codec(args, &model)? {
        store = store.with_codec(codec, &spec);
    }
    if args.log_misses {
        store = store
            .with_miss_log()
            .map_err(|error| Failure::new(format!("--log-misses: no thread for the log of misses: {error}")))?;
    }
    if let Some(settings) = &args.cold {
        store = store.with_cold(cold::start(&pool, settings)?);
    }
    if let (Some(settings), Some(key)) = (&args.peers, &args.peer_key_file) {
        store = store.with_peers(peers::start(&pool, settings, key, args.nixl.as_deref())?);
    }
    let ticker = beat(pool, watch.tick(), store.upkeep())?;
    let engine = LlmEngine::start_observed(model, Some(Box::new(store)), observer)?;
    Ok(Running { engine: Arc::new(engine), _ticker: Some(ticker) })
}

/// Writes swaps to a file, each at once, so that readers see them while the engine runs. A file
/// that can no longer be written ends the trace, not the engine.
struct SwapFile {
    path: PathBuf,
    file: Option<LineWriter<File>>,
}

impl SwapFile {
    fn create(path: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::new(format!("{}: cannot write the swap trace: {error}", path.display()));
        let file = LineWriter::new(File::create(path).map_err(failed)?);
        Ok(Self { path: path.to_owned(), file: Some(file) })
    }
}

impl Observer for SwapFile {
    fn swapped(&mut self, record: &SwapRecord) {
        let Some(file) = &mut self.file else { return };
        let line = serde_json::to_string(record).expect("plain data");
        if let Err(error) = writeln!(file, "{line}") {
            tracing::warn!(path = %self.path.display(), %error, "the swap trace ends here");
            self.file = None;
        }
    }
}

/// Codecs of blocks, if they are not stored in the engine's own layout.
///
/// # Errors
/// The profile does not fit the model, or there is no such codec for it.
pub fn block_codec(args: &EngineArgs, model: &LoadedModel) -> Result<Option<BlockCodec>, Failure> {
    if !args.encodes() {
        return Ok(None);
    }
    let profile = args.profile.as_ref().map(|path| profile::read(path, model)).transpose()?;
    let layout = model.layout();
    let of_layers = codecs(args, Some(&model.fingerprint()), layout.num_layers, profile.as_ref())?;
    let of_pages = |codecs: Vec<Arc<dyn PageCodec>>| -> Vec<_> {
        codecs.into_iter().flat_map(|codec| [Arc::clone(&codec), codec]).collect()
    };
    let [fresh, cold] = of_layers.map(|codecs| codecs.map(of_pages));
    let raw: Arc<dyn PageCodec> = Arc::new(Raw);
    let fresh = fresh.unwrap_or_else(|| vec![raw; 2 * layout.num_layers]);
    let kinds = (0..layout.num_layers)
        .flat_map(|layer| [Side::K, Side::V].map(|side| cenote_quality::engine_page(layout, layer, side)));
    let codec = BlockCodec::new(kinds.zip(fresh).collect());
    Ok(Some(match cold {
        Some(cold) => codec.with_cold(cold),
        None => codec,
    }))
}

/// Codecs of the layers, one each: of blocks that were just computed, and of cold blocks.
type LayerCodecs = [Option<Vec<Arc<dyn PageCodec>>>; 2];

/// The codecs that arguments name. `model`: its fingerprint, if it is known.
fn codecs(
    args: &EngineArgs,
    model: Option<&[u8; 32]>,
    layers: usize,
    profile: Option<&Profile>,
) -> Result<LayerCodecs, Failure> {
    let named = |codec: &Option<CodecArg>, pressure: f64| {
        let codec = codec.as_ref();
        let specs =
            codec.map(|codec| codec_table::layer_specs(codec, pressure, args, model, layers, profile)).transpose()?;
        specs.map(|specs| layer_codecs(&specs, layers, profile)).transpose()
    };
    Ok([named(&args.codec, HOT)?, named(&args.cold_codec, COLD)?])
}

fn layer_codecs(
    specs: &LayerSpecs,
    layers: usize,
    profile: Option<&Profile>,
) -> Result<Vec<Arc<dyn PageCodec>>, Failure> {
    let layers = u16::try_from(layers).map_err(|_| Failure::new(format!("{layers} layers are too many for frames")))?;
    specs.build(layers, profile).map_err(|error| match error {
        SpecError::NoProfile(_) => Failure::from(error).hint("name it with --profile"),
        other => other.into(),
    })
}

/// Refuses codecs that would fail in every worker, before any starts.
pub fn check_codec(args: &EngineArgs, model_dir: &Path) -> Result<(), Failure> {
    if !args.encodes() {
        return Ok(());
    }
    let profile = args.profile.as_ref().map(|path| profile::parse(path)).transpose()?;
    codecs(args, None, ModelConfig::load(model_dir)?.num_layers, profile.as_ref()).map(drop)
}

/// Loads the model that the arguments name.
pub fn load(args: &EngineArgs, region: Option<&RegionArgs>) -> Result<LoadedModel, Failure> {
    Ok(LoadedModel::load(&config(args, region)?)?)
}

/// The n-gram tables of the region that `--engram-tables` names.
fn region_tables(args: &EngineArgs, pool: Option<&HostPool>) -> Result<Option<Arc<dyn RowTables>>, Failure> {
    let Some(name) = &args.engram_tables else { return Ok(None) };
    let Some(pool) = pool else {
        return Err(Failure::new(format!("--engram-tables {name}: without a region there are no such tables")));
    };
    let model = ModelConfig::load(&model_dir(args)?)?;
    let Some(engram) = model.engram else {
        return Err(Failure::new(format!("--engram-tables {name}: the model reads no n-gram tables")));
    };
    Ok(Some(Arc::new(RegionTables::open(pool, name, &engram.layer_ids)?)))
}

fn config(args: &EngineArgs, region: Option<&RegionArgs>) -> Result<EngineConfig, Failure> {
    Ok(EngineConfig {
        model_name: args.model_name.clone(),
        dtype: args.dtype.element(),
        threads: args.threads.unwrap_or(0),
        max_model_len: args.max_model_len.map(|tokens| tokens as usize),
        block_tokens: args.block_tokens as usize,
        kv_bytes: args.kv_size.0,
        max_num_seqs: args.max_num_seqs,
        max_num_batched_tokens: args.max_num_batched_tokens,
        max_waiting: args.max_waiting,
        watermark: args.watermark.clone(),
        swap_bytes: args.swap.0,
        spill_bytes: if region.is_some() { args.spill.0 } else { 0 },
        spill_freely: false,
        near_bytes: args.near_size.0,
        mover: MoverKind::Threads(args.mover_threads),
        sparse: args.sparse_pages.map(|pages| SparseConfig {
            hot_pages: args.sparse_hot_pages.unwrap_or(2 * pages),
            predictor: args.sparse_predictor.0,
            ..SparseConfig::with_pages(pages)
        }),
        always_swap: args.always_swap,
        decode_first: args.decode_first,
        region: region.and_then(|region| region.region.as_ref()).map(ToString::to_string),
        ..EngineConfig::new(model_dir(args)?, Clock::system())
    })
}

/// The model's directory: as given, or the project's demo model.
pub fn model_dir(args: &EngineArgs) -> Result<PathBuf, Failure> {
    named_dir(args.model.as_ref())
}

/// A model for inspection, with its full context.
pub fn load_to_study(args: &StudiedModelArgs) -> Result<LoadedModel, Failure> {
    let spinner = output::spinner("loading the model");
    let config = EngineConfig {
        dtype: args.dtype.element(),
        threads: args.threads.unwrap_or(0),
        ..EngineConfig::new(named_dir(args.model.as_ref())?, Clock::system())
    };
    let model = LoadedModel::load(&config)?;
    spinner.finish_and_clear();
    Ok(model)
}

/// The model's directory, or that of the demo model: the checkout's, or the one that this program carries.
pub fn named_dir(model: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    if let Some(dir) = model {
        if !dir.is_dir() {
            return Err(Failure::new(format!("{}: there is no such model directory", dir.display()))
                .hint("--model names a directory with config.json, tokenizer.json and the weights as safetensors"));
        }
        return Ok(dir.clone());
    }
    let executable = std::env::current_exe().unwrap_or_default();
    // Below the working directory, or above the build folder of this program.
    let of_checkout = std::iter::once(Path::new("."))
        .chain(executable.ancestors())
        .map(|dir| dir.join("models/demo"))
        .find(|dir| dir.join("config.json").is_file());
    match of_checkout {
        Some(dir) => Ok(dir.strip_prefix(".").map(Path::to_path_buf).unwrap_or(dir)),
        None => demo_model::unpacked(),
    }
}

/// Ticks the worker's pool and releases expired holds every `pace`, until dropped. `pace` bounds
/// the time until a dead neighbour is recovered.
fn beat(pool: HostPool, pace: Duration, upkeep: impl Fn() + Send + 'static) -> Result<Ticker, Failure> {
    let beat = move || {
        let recovered = pool.tick();
        upkeep();
        if recovered.workers > 0 {
            tracing::warn!(?recovered, "recovered dead workers");
        }
        true
    };
    Ticker::start(pace, beat).map_err(|error| Failure::new(format!("no thread for the worker's heart: {error}")))
}
