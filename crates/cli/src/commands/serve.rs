//! `cenote serve`: the OpenAI API over one combined engine, or over prefill and decode workers.

use crate::args::{ServeArgs, WorkerSettings};
use cenote_base::seal::Seal;
use cenote_base::units::ByteSize;
use cenote_base::{Clock, Engine};
use cenote_console::args::{EngineArgs, NewRegionArgs, RegionArgs};
use cenote_console::engine::{self, Running};
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_console::region::{self, ENCODED_MIN_BLOCK, TemporaryRegion, own_region_bytes};
use cenote_console::settings;
use cenote_mem::keys::secret_text;
use cenote_mem::{MapError, Mapping, RegionSource};
use cenote_serve::{
    ApiKeys, AppState, Disaggregated, DisaggregatedConfig, Grace, HttpConfig, Role, Supervisor, SupervisorConfig,
    TenantFile,
};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Longest start, which includes loading the model in every worker.
const START_TIMEOUT: Duration = Duration::from_secs(300);

pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Before anything else, because its default action would end this process and leave its region.
    let hangup = {
        let _context = runtime.enter();
        signal(SignalKind::hangup())?
    };
    // The front checks the model, before any worker starts.
    let dir = engine::model_dir(&args.engine)?;
    engine::check_codec(&args.engine, &dir)?;
    let api_keys = api_keys(args)?;
    let tenants = args.tenants.as_deref().map(|path| read_tenants(path, args.no_pool)).transpose()?;
    // Last, because it takes memory that a wrong flag must not cost.
    let region = if args.no_pool { None } else { Some(ServedRegion::open(args)?) };
    let region_args = region.as_ref().map(ServedRegion::args);
    runtime.block_on(async {
        let address = SocketAddr::new(args.host, args.port);
        let listener =
            TcpListener::bind(address).await.map_err(|error| cannot_listen(address, ["--host", "--port"], &error))?;
        let mut signals = Signals::new()?;
        let backend = if args.prefill == 0 {
            let running =
                tokio::task::block_in_place(|| engine::start(&args.engine, region_args, &args.watch, "serve"))?;
            Backend::Combined(running)
        } else {
            let region = region_args.ok_or_else(|| Failure::new("prefill and decode workers need a region"))?;
            let workers = Workers::start(args, region, dir)?;
            tokio::select! {
                ready = workers.supervisor.all_ready(Clock::system().after(START_TIMEOUT)) => ready?,
                () = signals.first() => {
                    workers.supervisor.shutdown().await;
                    return Ok(());
                }
            }
            Backend::Workers(workers)
        };
        let config = HttpConfig {
            api_keys,
            request_timeout: Duration::from_secs(args.request_timeout),
            connections_max: args.max_connections,
            head_timeout: Duration::from_secs(args.idle_timeout),
            body_bytes_total: usize::try_from(args.body_memory.0).unwrap_or(usize::MAX),
            ..HttpConfig::default()
        };
        let state = AppState::new(backend.engine(), config, Clock::system());
        if let (Some(file), Some(path)) = (tenants, &args.tenants) {
            let set = tokio::task::block_in_place(|| state.set_tenants(file));
            if !set.troubles.is_empty() {
                if let Backend::Workers(workers) = backend {
                    workers.supervisor.shutdown().await;
                }
                return Err(of_tenants(path, &set.troubles.join("; ")));
            }
        }
        let reloads = tokio::spawn(reload(hangup, state.clone(), args.tenants.clone(), args.no_pool));
        let url = format!("http://{}", listener.local_addr()?);
        output::say(&format!("serving {} on {url}/v1", state.engine().describe().model));
        output::print(&url)?;
        let grace = Grace { drain: Duration::from_secs(args.drain_timeout), ..Grace::default() };
        let drained = cenote_serve::serve(listener, state, signals.first(), grace).await;
        reloads.abort();
        if let Backend::Workers(workers) = backend {
            workers.supervisor.shutdown().await;
        }
        if drained { Ok(()) } else { Err(Failure::new("some requests were still running at the end and were aborted")) }
    })
}

fn of_tenants(path: &Path, fact: &str) -> Failure {
    Failure::new(format!("--tenants {}: {fact}", path.display()))
}

/// Longest file of tenants: as many as are possible, with many keys each.
const TENANTS_BYTES_MAX: u64 = 1 << 20;

/// The file of tenants. Its readers could use the server as any tenant.
fn read_tenants(path: &Path, no_pool: bool) -> Result<TenantFile, Failure> {
    let text = secret_text(path, TENANTS_BYTES_MAX).map_err(|error| of_tenants(path, &input::fact(path, &error)))?;
    let file = TenantFile::parse(&text).map_err(|fact| of_tenants(path, &fact))?;
    match file.limited() {
        Some(name) if no_pool => {
            Err(of_tenants(path, &format!("tenant `{name}`: without a region there is nothing to limit or to keep")))
        }
        _ => Ok(file),
    }
}

/// Reads the file of tenants again at each SIGHUP. A file that is wrong changes nothing.
async fn reload(mut hangup: Signal, state: Arc<AppState>, path: Option<PathBuf>, no_pool: bool) {
    while hangup.recv().await.is_some() {
        let Some(path) = path.clone() else {
            tracing::warn!("SIGHUP: there is no file to read again; --tenants names one");
            continue;
        };
        let state = state.clone();
        let taken = tokio::task::spawn_blocking(move || {
            let file = read_tenants(&path, no_pool)?;
            Ok::<_, Failure>(state.set_tenants(file))
        });
        match taken.await {
            Ok(Ok(set)) => {
                output::say(&format!("read the tenants again: {}", set.tenants));
                for trouble in set.troubles {
                    tracing::error!(trouble, "a tenant's part of the region is not as the file says");
                }
            }
            Ok(Err(error)) => tracing::error!(%error, "the earlier tenants stay"),
            Err(error) => tracing::error!(%error, "the earlier tenants stay"),
        }
    }
}

/// The keys of the command line and of the file.
fn api_keys(args: &ServeArgs) -> Result<ApiKeys, Failure> {
    // The settings file may have given both, of which the command line says nothing.
    if args.tenants.is_some() && (args.api_key.is_some() || args.api_key_file.is_some()) {
        return Err(Failure::new("--tenants has all keys; leave out --api-key and --api-key-file"));
    }
    let keys = match &args.api_key_file {
        None => ApiKeys::default(),
        Some(path) => {
            let wrong = |fact: String| Failure::new(format!("--api-key-file {}: {fact}", path.display()));
            // A writer of this file can use the server.
            let text = settings::read_obeyed(path).map_err(|error| wrong(input::fact(path, &error)))?;
            ApiKeys::parse(&text).map_err(wrong)?
        }
    };
    Ok(args.api_key.iter().fold(keys, ApiKeys::with))
}

/// `host` and `port`: the flags that name them.
pub(super) fn cannot_listen(address: SocketAddr, [host, port]: [&str; 2], error: &std::io::Error) -> Failure {
    let failure = Failure::new(format!("{address}: cannot listen: {error}"));
    let number = address.port();
    match error.kind() {
        ErrorKind::AddrInUse => Failure::new(format!("{address}: the port is in use")).hint(format!(
            "give another {port}, or 0 for a free one; `ss -ltnp 'sport = :{number}'` shows the process that has it"
        )),
        ErrorKind::AddrNotAvailable => {
            failure.hint(format!("{host} must be an address of this machine, or 0.0.0.0 for all"))
        }
        ErrorKind::PermissionDenied => failure.hint(format!("ports below 1024 need a privilege; give another {port}")),
        _ => failure,
    }
}

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(super) async fn first(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

enum Backend {
    Combined(Running),
    Workers(Workers),
}

impl Backend {
    fn engine(&self) -> Arc<dyn Engine> {
        match self {
            Self::Combined(running) => running.engine.clone(),
            Self::Workers(workers) => workers.engine.clone(),
        }
    }
}

/// Worker processes and the router over them.
pub struct Workers {
    pub supervisor: Supervisor,
    pub engine: Arc<Disaggregated>,
}

impl Workers {
    fn start(args: &ServeArgs, region: &RegionArgs, model_dir: PathBuf) -> Result<Self, Failure> {
        let engine = EngineArgs { model: Some(model_dir), ..args.engine.clone() };
        let settings = WorkerSettings { engine, region: region.clone(), watch: args.watch.clone() };
        Self::spawn(args.prefill, args.decode, &settings, args.drain_timeout)
    }

    /// Starts `prefill` and `decode` workers of one model on one region. Within a tokio runtime.
    pub fn spawn(
        prefill: usize,
        decode: usize,
        settings: &WorkerSettings,
        drain_timeout: u64,
    ) -> Result<Self, Failure> {
        let mut roles = vec![Role::Prefill; prefill];
        roles.extend(vec![Role::Decode; decode]);
        let settings = settings.to_text()?;
        let executable = std::env::current_exe()
            .map_err(|error| Failure::new(format!("this program cannot find itself: {error}")))?;
        let command = move |role: Role, index: usize| {
            let mut command = Command::new(&executable);
            command.arg("worker").args(["--role", if role == Role::Prefill { "prefill" } else { "decode" }]);
            command.args(["--index", &index.to_string(), "--drain-timeout", &drain_timeout.to_string()]);
            command.env(WorkerSettings::ENVIRONMENT, &settings);
            // Tests of recovery kill workers of one role at a fault point.
            if let (Role::Decode, Some(fault)) = (role, std::env::var_os("CENOTE_FAULT_DECODE")) {
                command.env("CENOTE_FAULT", fault);
            }
            command
        };
        let clock = Clock::system();
        let supervisor = Supervisor::start(&roles, command, &SupervisorConfig::default(), clock)?;
        let engine = Arc::new(Disaggregated::new(supervisor.fleet().clone(), DisaggregatedConfig::default(), clock));
        Ok(Self { supervisor, engine })
    }
}

/// The region a server uses: named, or its own.
enum ServedRegion {
    Named(RegionArgs),
    Own(TemporaryRegion),
}

impl ServedRegion {
    fn open(args: &ServeArgs) -> Result<Self, Failure> {
        let new = |size: u64| {
            let (cold, sealing) = (args.engine.cold.clone(), args.sealing);
            let new = NewRegionArgs { cold, sealing, ..NewRegionArgs::of_size(size) };
            // Encoded blocks have a fraction of the default block size.
            if args.engine.encodes() { NewRegionArgs { min_block: ENCODED_MIN_BLOCK, ..new } } else { new }
        };
        let Some(source) = &args.region.region else {
            let size = args.region_size.map_or_else(own_region_bytes, |size| size.0);
            // With the keys, also if no seal is asked for: joining refuses keys without a seal.
            let own = TemporaryRegion::make_with("serve", &new(size), Some(&args.region.keys))?;
            output::say(&format!(
                "made a region of {} for this server; --region shares one with others",
                ByteSize(size)
            ));
            return Ok(Self::Own(own));
        };
        let existing = Mapping::open(source, &args.region.map_options());
        if let (Err(MapError::Missing { .. }), Some(size)) = (&existing, args.region_size) {
            match region::create(&args.region, &new(size.0), false) {
                Ok(_) => output::say(&format!("made the region {source} of {size}")),
                // Another server may have been faster; then use its region.
                Err(failure) => args.region.map().map(drop).map_err(|_| failure)?,
            }
        }
        // Refuse now what would fail in the workers.
        let pool = args.region.attach_watching("front", &args.watch)?;
        let (wanted, found) = (args.sealing.seal, pool.seal());
        drop(pool);
        if wanted != Seal::None && wanted != found {
            return Err(Failure::new(format!("{source}: --seal {wanted}, but the region exists with seal `{found}`"))
                .hint("name another region, or remove this one with `cenote pool destroy`"));
        }
        if let (Ok(mapping), Some(size)) = (&existing, args.region_size) {
            warn_if_ignored(source, size, mapping);
        }
        Ok(Self::Named(args.region.clone()))
    }

    const fn args(&self) -> &RegionArgs {
        match self {
            Self::Named(args) => args,
            Self::Own(own) => own.args(),
        }
    }
}

/// Warns of a size that has no effect because the region exists. A file is rounded up to pages, and
/// a device is taken whole.
fn warn_if_ignored(source: &RegionSource, size: ByteSize, mapping: &Mapping) {
    let actual = mapping.len();
    let is_rounded = actual >= size.0 && actual - size.0 < mapping.obtained().page_bytes;
    if !is_rounded && !matches!(source, RegionSource::DevDax(_)) {
        output::say(&format!(
            "warning: --region-size {size} has no effect: {source} exists already and has {}; leave it out, or remove the region \
             with its blocks: cenote pool destroy --region {source}",
            ByteSize(actual)
        ));
    }
}
