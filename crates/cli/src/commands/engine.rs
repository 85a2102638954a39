//! An engine of this process, with its store in a region.

use crate::args::{DtypeArg, EngineArgs, RegionArgs};
use crate::failure::Failure;
use crate::output;
use crate::region::HostPool;
use cenote_engine::{ElementType, EngineConfig, LlmEngine, LoadedModel};
use cenote_store::{PrefixStore, RegionStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Time between two heartbeats, and the longest that a dead neighbour's things wait to be given back.
const TICK: Duration = Duration::from_secs(1);

/// An engine and what keeps its place in the region.
pub struct Running {
    pub engine: Arc<LlmEngine>,
    /// After the engine, so that the pool outlives it.
    _ticker: Option<Ticker>,
}

/// Loads the model and starts the engine; with a region, as its worker `worker_name`.
pub fn start(args: &EngineArgs, region: Option<&RegionArgs>, worker_name: &str) -> Result<Running, Failure> {
    let pool = region.map(|region| region.attach(worker_name)).transpose()?;
    let spinner = output::spinner("loading the model");
    let model = load(args, region)?;
    spinner.finish_and_clear();
    let store: Option<Box<dyn PrefixStore>> = match (&pool, region) {
        (Some(pool), Some(region)) => {
            let spec = model.namespace_spec(&args.tenant_salt);
            Some(Box::new(RegionStore::new(pool.clone(), &spec).map_err(|error| region.explain(&error))?))
        }
        _ => None,
    };
    let engine = LlmEngine::start(model, store)?;
    Ok(Running { engine: Arc::new(engine), _ticker: pool.map(Ticker::start) })
}

/// Loads the model that the arguments name.
pub fn load(args: &EngineArgs, region: Option<&RegionArgs>) -> Result<LoadedModel, Failure> {
    Ok(LoadedModel::load(&config(args, region)?)?)
}

fn config(args: &EngineArgs, region: Option<&RegionArgs>) -> Result<EngineConfig, Failure> {
    Ok(EngineConfig {
        model_name: args.model_name.clone(),
        dtype: match args.dtype {
            DtypeArg::F32 => ElementType::F32,
            DtypeArg::Bf16 => ElementType::Bf16,
        },
        threads: args.threads.unwrap_or(0),
        max_model_len: args.max_model_len.map(|tokens| tokens as usize),
        block_tokens: args.block_tokens as usize,
        kv_bytes: args.kv_size.0,
        max_num_seqs: args.max_num_seqs,
        max_num_batched_tokens: args.max_num_batched_tokens,
        max_waiting: args.max_waiting,
        region: region.and_then(|region| region.region.as_ref()).map(ToString::to_string),
        ..EngineConfig::new(model_dir(args)?)
    })
}

/// The model's directory: as given, or the demo model that comes with the project.
pub fn model_dir(args: &EngineArgs) -> Result<PathBuf, Failure> {
    if let Some(dir) = &args.model {
        return Ok(dir.clone());
    }
    let executable = std::env::current_exe().unwrap_or_default();
    // Beside the working directory, or above the build folder that this program was built into.
    std::iter::once(Path::new("."))
        .chain(executable.ancestors())
        .map(|dir| dir.join("models/demo"))
        .find(|dir| dir.join("config.json").is_file())
        .map(|dir| dir.strip_prefix(".").map(Path::to_path_buf).unwrap_or(dir))
        .ok_or_else(|| Failure::new("models/demo: the demo model is not here").hint("name a model with --model DIR"))
}

/// Beats the worker's heart in the region until dropped.
struct Ticker {
    /// Dropping it ends the thread.
    _stop: Sender<()>,
}

impl Ticker {
    fn start(pool: HostPool) -> Self {
        let (stop, stopped) = channel::<()>();
        std::thread::spawn(move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let recovered = pool.tick();
                if recovered.workers > 0 {
                    tracing::warn!(?recovered, "cleaned up after workers that died");
                }
            }
        });
        Self { _stop: stop }
    }
}
