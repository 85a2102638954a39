//! Opens, creates and removes regions for commands.

use crate::args::{DesignArg, FlushArg, HostsLockArg, KeyArgs, NewRegionArgs, RegionArgs, SealArgs, WatchArgs};
use crate::failure::Failure;
use crate::signals::EndSignals;
use cenote_base::seal::{Seal, SealKeys};
use cenote_base::units::ByteSize;
use cenote_base::{BlockHash, Clock, HashSeed, HostId};
use cenote_mem::keys::processor_has_aes;
use cenote_mem::numa::{self, Place};
use cenote_mem::{
    Flush, MapError, MapOptions, Mapped, Mapping, ReadMapping, ReadOnly, RegionSource, UnsupportedFlush, files,
};
pub use cenote_pool::HostPool;
use cenote_pool::{
    AttachOptions, Eviction, Inspector, OpenError, Pool, PoolConfig, PoolError, Record, Returns, Superblock,
    make_region, open_region, peek, prepare_region, random_bytes, removals,
};
use cenote_store::cold::{Sealing, Settings};
use cenote_store::snapshot::{self, Restoring, Sharing, SnapshotError, SnapshotSettings};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The type of a region in commands.
pub type RegionInspector = Inspector<Arc<ReadOnly>>;

/// Most bytes of a server's own region; it also takes at most a quarter of the free shared memory.
const OWN_REGION_BYTES: u64 = 2 << 30;

/// Smallest slot in a region for encoded blocks.
pub const ENCODED_MIN_BLOCK: ByteSize = ByteSize(4 << 10);

/// Binds this thread, and the threads that it starts later, to the region's NUMA node (TraCT §4.4).
pub fn stay_near(fabric: &Mapped) {
    match numa::stay_near(fabric.mapping()) {
        Place::Bound(node) => tracing::info!(node, "threads are bound to the region's NUMA node"),
        Place::Unchanged => tracing::debug!("threads are not bound to a NUMA node: there is no choice"),
        Place::Refused(node, error) => {
            tracing::info!(node, %error, "threads are not bound to the region's NUMA node");
        }
    }
}

/// A region that a command reads for long, without joining it.
pub struct Watched {
    /// Reads the region.
    pub inspector: RegionInspector,
    fabric: Arc<ReadOnly>,
    source: RegionSource,
    /// The file behind the name when it was opened.
    file: Option<(u64, u64)>,
}

impl Watched {
    /// Whether the name still leads to this region, and all of its memory is there.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let identity = self.inspector.superblock().config.uuid;
        Superblock::read(&self.fabric).is_ok_and(|now| now.config.uuid == identity)
            && self.fabric.mapping().still_whole()
            && self.source.file().is_ok_and(|file| file == self.file)
    }

    /// The records of the region's flight recorder, the oldest first.
    ///
    /// # Errors
    /// The superblock is not readable.
    pub fn records(&self) -> Result<Vec<Record>, PoolError> {
        cenote_pool::history(&*self.fabric)
    }

    /// Which removals of blocks were in vain; `None`: the region keeps no removals, or is not readable.
    #[must_use]
    pub fn returns(&self) -> Option<Returns> {
        let keeps = self.inspector.superblock().config.removals_per_host > 0;
        let all = keeps.then(|| removals(&*self.fabric).ok()).flatten()?;
        let stored = |names: &[BlockHash]| {
            self.inspector.look_at(names).into_iter().map(|seen| seen.map(|seen| seen.stored)).collect()
        };
        Some(all.returns(stored))
    }
}

impl RegionArgs {
    /// The named region.
    pub fn source(&self) -> Result<&RegionSource, Failure> {
        self.region.as_ref().ok_or_else(|| {
            Failure::new("no region was named")
                .hint("give --region shm:NAME (or a file, or /dev/daxX.Y), or set CENOTE_REGION")
        })
    }

    /// Mapping options.
    #[must_use]
    pub const fn map_options(&self) -> MapOptions {
        MapOptions { numa_node: self.numa_node, huge_pages: !self.no_huge_pages, prefault: false }
    }

    /// Maps the named region with its flush instruction.
    pub fn map(&self) -> Result<Arc<Mapped>, Failure> {
        open_region(self.source()?, &self.map_options()).map_err(|error| self.explain_open(error))
    }

    /// Maps the named region read-only; changes nothing.
    pub fn map_read_only(&self) -> Result<Arc<ReadOnly>, Failure> {
        let source = self.source()?;
        let open = || ReadMapping::open(source).map_err(|error| self.explain_map(error));
        let fabric = ReadOnly::new(open()?, Flush::best().unwrap_or(Flush::None)).expect("this processor has it");
        let superblock = Superblock::read(&fabric).map_err(|error| self.explain(&error))?;
        let fabric = ReadOnly::new(open()?, superblock.flush).map_err(|error| self.explain_flush(&error))?;
        Ok(Arc::new(fabric))
    }

    /// Inspects the named region without joining it.
    pub fn inspect(&self) -> Result<RegionInspector, Failure> {
        let options = self.attach_options("", &WatchArgs::default())?;
        Inspector::open(&self.map_read_only()?, &options).map_err(|error| self.explain(&error))
    }

    /// As [`Self::inspect`], for a command that has to notice when the region is removed or made anew.
    pub fn watch(&self) -> Result<Watched, Failure> {
        let source = self.source()?.clone();
        let file = source.file().ok();
        let fabric = self.map_read_only()?;
        let options = self.attach_options("", &WatchArgs::default())?;
        let inspector = Inspector::open(&fabric, &options).map_err(|error| self.explain(&error))?;
        if source.file().ok() != file {
            return Err(Failure::new(format!("{source}: the region was replaced while it was opened"))
                .hint("run the command again"));
        }
        Ok(Watched { inspector, fabric, source, file: file.flatten() })
    }

    fn explain_open(&self, error: OpenError) -> Failure {
        match error {
            OpenError::Map(error) => self.explain_map(error),
            OpenError::Flush(error) => self.explain_flush(&error),
            OpenError::Pool(error) => self.explain(&error),
        }
    }

    /// An error of mapping, with the next step.
    pub fn explain_map(&self, error: MapError) -> Failure {
        let Some(source) = &self.region else { return error.into() };
        match &error {
            MapError::Missing { path } if matches!(source, RegionSource::DevDax(_)) => {
                Failure::new(format!("{}: there is no such device", path.display()))
                    .hint("`cenote doctor` lists the devices of this machine")
            }
            MapError::Missing { .. } => {
                Failure::from(error).hint(format!("cenote pool create --region {source} --size 1GiB"))
            }
            MapError::Exists { .. } => Failure::from(error).hint(format!(
                "`cenote pool info --region {source}` shows what it holds; --force formats it anew, and everything in it is lost"
            )),
            MapError::NoSpace { path, wanted, free } => {
                let (wanted, free) = (ByteSize(*wanted), ByteSize(*free));
                Failure::new(format!("{}: there is no space for {wanted}: {free} are free", path.display()))
                    .hint("give a smaller size, or remove a region with `cenote pool destroy`; `ls -l /dev/shm` lists those in shared memory")
            }
            MapError::Permission { .. } => Failure::from(error)
                .hint("run as the region's owner; `cenote pool create --mode 660` lets a group share a region"),
            _ => error.into(),
        }
    }

    fn explain_flush(&self, error: &UnsupportedFlush) -> Failure {
        let name = self.region.as_ref().map_or_else(String::new, |source| format!("{source}: "));
        Failure::new(format!("{name}{error}")).hint("the region's instruction is chosen by `pool create --flush`")
    }

    /// Joins the named region as a worker with this name.
    pub fn attach(&self, worker_name: &str) -> Result<HostPool, Failure> {
        self.attach_watching(worker_name, &WatchArgs::default())
    }

    /// As [`RegionArgs::attach`], for a worker that stays and watches other hosts.
    pub fn attach_watching(&self, worker_name: &str, watch: &WatchArgs) -> Result<HostPool, Failure> {
        let pool = attach(self, worker_name, watch)?;
        if let (Some(restoring), Some(source)) = (Restoring::of(&pool), &self.region) {
            let path = restoring.path;
            crate::output::say(&format!(
                "note: {source}: it is being restored from {path}; what is not there yet is computed. If that ended \
                 early, `cenote pool restore --region {source} {path}` goes on"
            ));
        }
        Ok(pool)
    }

    /// Attach options of a process with this name.
    pub fn attach_options(&self, worker_name: &str, watch: &WatchArgs) -> Result<AttachOptions, Failure> {
        Ok(AttachOptions {
            host: HostId(self.host_slot),
            host_timeout: watch.host_timeout,
            quarantine: watch.quarantine,
            keys: self.keys()?,
            ..AttachOptions::named(worker_name)
        })
    }

    /// The keys of a sealed region, if a source of them is named.
    pub fn keys(&self) -> Result<Option<SealKeys>, Failure> {
        Ok(self.keys.read()?)
    }

    /// Prefixes an error of the pool with the region's name.
    pub fn explain(&self, error: &PoolError) -> Failure {
        let name = self.region.as_ref().map_or_else(String::new, |source| format!("{source}: "));
        let failure = Failure::new(format!("{name}{error}"));
        match error {
            PoolError::Version { .. } | PoolError::Layout { .. } => {
                failure.hint("use the program that made the region, or make a new one")
            }
            PoolError::Unfinished | PoolError::NotARegion { .. } => failure.hint("cenote pool create makes a region"),
            _ => failure,
        }
    }
}

impl WatchArgs {
    /// Time between two ticks: short enough for users, and for hosts that wait for this one's
    /// heartbeat.
    pub fn tick(&self) -> Duration {
        Duration::from_secs(1).min(self.host_timeout / 4)
    }
}

impl NewRegionArgs {
    /// The default configuration of this size.
    pub fn of_size(size: u64) -> Self {
        Self {
            size: Some(cenote_base::units::ByteSize(size)),
            chunk_size: cenote_base::units::ByteSize(2 << 20),
            min_block: cenote_base::units::ByteSize(16 << 10),
            max_hosts: 16,
            flush: FlushArg::Fixed(Flush::None),
            hosts_lock: HostsLockArg::Bakery,
            design: DesignArg::Cenote,
            eviction: Eviction::Lru,
            sealing: SealArgs::NONE,
            pins_per_worker: Some(448),
            events: 1024,
            removals: None,
            requests: None,
            mode: 0o600,
            prefault: false,
            hash_seed: None,
            cold: None,
        }
    }

    fn config(&self, sealing: &Sealing) -> Result<PoolConfig, Failure> {
        let mut seed = HashSeed(match self.hash_seed {
            Some(seed) => seed,
            None => random_bytes()?,
        });
        if let Some(settings) = &self.cold {
            // A new place gets the seal of its region.
            let settings = &Settings { seal: sealing.clone(), ..settings.clone() };
            let found = crate::cold::seed(settings, &seed)?;
            if self.hash_seed.is_some() && found != seed {
                return Err(Failure::new(format!("--cold {}: its regions have another hash seed", settings.place))
                    .hint("leave --hash-seed out, or name another place"));
            }
            seed = found;
        }
        let config = PoolConfig {
            chunk_bytes: self.chunk_size.0,
            min_block_bytes: self.min_block.0,
            max_hosts: self.max_hosts,
            hosts_lock: self.hosts_lock.kind(),
            design: self.design.kind(),
            eviction: self.eviction,
            events_per_host: self.events,
            created: Clock::system().unix().as_secs(),
            ..PoolConfig::new(seed, random_bytes()?)
        };
        // A region without a size takes a whole device.
        let size = self.size.map_or(u64::MAX, |size| size.0);
        let lines = self.pins_per_worker.map_or_else(|| config.hazard_lines_in(size), PoolConfig::hazard_lines_for);
        let removals = self.removals.unwrap_or_else(|| config.removals_in(size));
        let requests = self.requests.unwrap_or_else(|| config.requests_in(size));
        let config = PoolConfig {
            hazard_lines_per_worker: lines,
            removals_per_host: removals,
            requests_per_host: requests,
            ..config
        };
        Ok(match sealing {
            Some((seal, keys)) => config.sealed(*seal, keys),
            None => config,
        })
    }

    /// The seal that is asked for, with the region's keys.
    fn sealing(&self, region: &RegionArgs) -> Result<Sealing, Failure> {
        let SealArgs { seal, seal_slowly } = self.sealing;
        let keys = region.keys()?;
        if seal == Seal::None {
            // No worker would join it with the key, and it would seem to be sealed.
            return match keys {
                None => Ok(None),
                Some(_) => Err(Failure::new("a key for seals is given, and --seal is none")
                    .hint("give --seal mac or --seal encrypt; or no --seal-key-file, CENOTE_SEAL_KEY_FILE or command")),
            };
        }
        let Some(keys) = keys else {
            return Err(Failure::new(format!("--seal {seal} needs a key")).hint(
                "make one with `openssl rand -hex 32 > seal.key; chmod 600 seal.key`, and give --seal-key-file seal.key",
            ));
        };
        if !processor_has_aes() && !seal_slowly {
            return Err(Failure::new(format!("--seal {seal}: this processor has no instructions for AES"))
                .hint("sealing takes many times as long as a copy here; --seal-slowly does it all the same"));
        }
        Ok(Some((seal, keys)))
    }

    fn flush(&self) -> Result<Flush, Failure> {
        match self.flush {
            FlushArg::Fixed(flush) => Ok(flush),
            FlushArg::Auto => {
                Flush::best().ok_or_else(|| Failure::new("this processor has no flush instruction that is known"))
            }
        }
    }
}

/// Creates the region and formats it. Removes it again if formatting fails.
pub fn create(region: &RegionArgs, new: &NewRegionArgs, force: bool) -> Result<(Arc<Mapped>, Superblock), Failure> {
    let source = region.source()?;
    let config = new.config(&new.sealing(region)?)?;
    config.validate()?;
    let flush = new.flush()?;
    if !flush.is_coherent() && !Flush::available().contains(&flush) {
        return Err(UnsupportedFlush { flush }.into());
    }
    let is_device = matches!(source, RegionSource::DevDax(_));
    let size = match new.size {
        Some(size) => size.0,
        None if is_device => 0,
        None => return Err(Failure::new("a new region needs a size").hint("give --size, as in --size 4GiB")),
    };
    let reuse = force && (is_device || source.path().is_some_and(|path| path.exists()));
    if is_device && !force {
        // A device always exists; only its owner knows whether its content matters.
        let mapping = Mapping::open(source, &region.map_options()).map_err(|error| region.explain_map(error))?;
        if !matches!(peek(mapping), Err(PoolError::Unfinished)) {
            return Err(Failure::new(format!("{source}: the device is not empty"))
                .hint("--force formats it; everything in it is lost"));
        }
    }
    let _ = cenote_pool::sweep_host_memory();
    let options = MapOptions { prefault: new.prefault, ..region.map_options() };
    let format = |mapping| {
        let fabric = Arc::new(Mapped::new(mapping, flush)?);
        let superblock = Superblock::format(&fabric, &config).map_err(|error| region.explain(&error))?;
        Ok::<_, Failure>((fabric, superblock))
    };
    if reuse || is_device {
        let mapping = Mapping::open(source, &options).map_err(|error| region.explain_map(error))?;
        if let (Some(path), true) = (source.path(), mapping.len() < size) {
            return Err(MapError::TooSmall { path, have: mapping.len(), wanted: size }.into());
        }
        let old = peek(Mapping::open(source, &options)?);
        if old.is_ok() {
            refuse_if_used(region)?;
        }
        let made = format(mapping)?;
        // The old pool's memory on this host has the old pool's name, and no later command would
        // remove it.
        if let Ok(old) = old {
            say_what_stays(&cenote_pool::remove_host_memory(&old)?);
        }
        return Ok(made);
    }
    let spinner = new.prefault.then(|| crate::output::spinner("touching every page of the region"));
    let made =
        make_region(source, size, new.mode, flush, &config, &options).map_err(|error| region.explain_open(error));
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    made
}

/// Name of a worker that restores a region.
const RESTORER: &str = "restore";

/// Joins the region that a snapshot is to be restored into. If there is none, creates it as the snapshot
/// describes it, with a new identity; if an earlier restoration of this snapshot was killed, joins that
/// one's region. A new region gets its name after its mark, so no process sees it as complete.
///
/// `mode` are the permissions of a new region's file, if they are not to be as before.
///
/// # Errors
/// The region has other content or is being restored by a living process, or cannot be created.
pub fn join_to_restore(
    region: &RegionArgs,
    path: &Path,
    settings: &SnapshotSettings,
    size: Option<ByteSize>,
    mode: Option<u32>,
) -> Result<HostPool, Failure> {
    let source = region.source()?;
    let is_there = match source {
        // A device always exists. One that holds no region is formatted.
        RegionSource::DevDax(_) => {
            let mapping = Mapping::open(source, &region.map_options()).map_err(|error| region.explain_map(error))?;
            !matches!(peek(mapping), Err(PoolError::Unfinished))
        }
        _ => source.path().is_some_and(|path| path.symlink_metadata().is_ok()),
    };
    if !is_there {
        create_again(region, path, settings, size)?;
    }
    let inspector = region.inspect()?;
    let info = inspector.info();
    if let Some(worker) = info.workers.iter().find(|worker| worker.name == RESTORER && worker.alive == Some(true)) {
        return Err(Failure::new(format!("{source}: process {} is restoring it", worker.pid))
            .hint("wait until it has ended; if it is killed, the same command goes on"));
    }
    // Before this process joins: this host's memory takes its permissions from those of the region's file.
    if let (Some(path), Some(mark)) = (source.path(), Restoring::seen(&inspector))
        && mark.snapshot == settings.id
        && !matches!(source, RegionSource::DevDax(_))
    {
        share(&path, settings.sharing, mode)?;
    }
    let pool = attach(region, RESTORER, &WatchArgs::default())?;
    snapshot::begin(&pool, settings, path).map_err(|error| no_target(region, &error))?;
    Ok(pool)
}

/// A snapshot's refusal, with the next step.
fn no_target(region: &RegionArgs, error: &SnapshotError) -> Failure {
    let name = region.region.as_ref().map_or_else(String::new, |source| format!("{source}: "));
    let failure = Failure::new(format!("{name}{error}"));
    match error {
        SnapshotError::NotEmpty(_) | SnapshotError::OtherSeed(_) => {
            failure.hint("name another region, or remove this one with `cenote pool destroy`")
        }
        SnapshotError::OtherSnapshot(_) => {
            failure.hint("name that snapshot, or remove the region with `cenote pool destroy`")
        }
        _ => failure,
    }
}

fn create_again(
    region: &RegionArgs,
    path: &Path,
    settings: &SnapshotSettings,
    size: Option<ByteSize>,
) -> Result<(), Failure> {
    let source = region.source()?;
    let size = size.map_or(settings.region_bytes, |size| size.0);
    let created = Clock::system().unix().as_secs();
    let config = PoolConfig { uuid: random_bytes()?, created, ..settings.config.clone() };
    let config = match region.keys()? {
        // The keys' names depend on the identity.
        Some(keys) if config.seal != Seal::None => config.clone().sealed(config.seal, &keys),
        _ => config,
    };
    let refused = |error| match error {
        OpenError::Map(error @ MapError::Exists { .. }) => {
            Failure::from(error).hint("another process has just made it; run the command again when that one has ended")
        }
        error => region.explain_open(error),
    };
    // Not shared until it has the right group.
    let (fabric, _, fresh) =
        prepare_region(source, size, 0o600, settings.flush, &config, &region.map_options()).map_err(refused)?;
    let options = region.attach_options(RESTORER, &WatchArgs::default())?;
    let pool = Pool::attach(fabric, &options).map_err(|error| region.explain(&error))?;
    snapshot::begin(&pool, settings, path)?;
    fresh.publish().map_err(|error| refused(error.into()))?;
    Ok(())
}

/// Gives a new region's file the permissions of the old one, or `mode`. If this user cannot give it the
/// old group, it is not shared with any. Until then the file is this user's alone.
fn share(path: &Path, old: Option<Sharing>, mode: Option<u32>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: cannot set its mode: {error}", path.display()));
    let status = path.symlink_metadata().map_err(failed)?;
    let (mode, group) = match (mode, old) {
        (Some(mode), _) => (mode, status.gid()),
        (None, Some(Sharing { mode, group })) => (mode, if mode & 0o070 == 0 { status.gid() } else { group }),
        (None, None) => return Ok(()),
    };
    if (status.mode() & 0o777, status.gid()) == (mode, group) {
        return Ok(());
    }
    let file = files::open_own(path)?;
    let set = |mode| rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(mode));
    let given = rustix::fs::fchown(&file, None, Some(rustix::fs::Gid::from_raw(group)));
    let set = match given {
        Ok(()) => set(mode),
        Err(error) => {
            crate::output::say(&format!(
                "warning: {}: it is not shared with group {group} as before: {error}; run as a member of that group, \
                 or give --mode",
                path.display()
            ));
            set(mode & !0o070)
        }
    };
    set.map_err(|error| failed(error.into()))
}

/// Joins a region without a word about a restoration.
fn attach(region: &RegionArgs, worker_name: &str, watch: &WatchArgs) -> Result<HostPool, Failure> {
    Pool::attach(region.map()?, &region.attach_options(worker_name, watch)?).map_err(|error| region.explain(&error))
}

/// Reports host memory that only other users of the group may remove.
pub fn say_what_stays(left: &[PathBuf]) {
    for path in left {
        let path = path.display();
        crate::output::say(&format!(
            "note: {path} is another user's; it goes when that user or root next joins or makes a region"
        ));
    }
}

/// Fails if live processes of this host use the region.
pub fn refuse_if_used(region: &RegionArgs) -> Result<(), Failure> {
    let info = region.inspect()?.info();
    match info.workers.iter().find(|worker| worker.alive == Some(true)) {
        None => Ok(()),
        Some(worker) => {
            Err(Failure::new(format!("{}: process {} ({}) uses it", region.source()?, worker.pid, worker.name))
                .hint("stop it first; `pool destroy --force` removes the region under it, which ends its sharing"))
        }
    }
}

/// A region of this process in shared memory, removed when this value is dropped.
pub struct TemporaryRegion {
    args: RegionArgs,
    superblock: Superblock,
    _owned: Option<crate::stale::Owned>,
}

impl TemporaryRegion {
    /// Creates it. `purpose` is part of its name; `prefault` touches its pages now.
    pub fn new(purpose: &str, size: u64, prefault: bool) -> Result<Self, Failure> {
        Self::make(purpose, &NewRegionArgs { prefault, ..NewRegionArgs::of_size(size) })
    }

    /// Creates one with the same settings.
    pub fn make(purpose: &str, new: &NewRegionArgs) -> Result<Self, Failure> {
        Self::make_with(purpose, new, None)
    }

    /// As [`TemporaryRegion::make`], with keys for its seal.
    pub fn make_with(purpose: &str, new: &NewRegionArgs, keys: Option<&KeyArgs>) -> Result<Self, Failure> {
        let region = RegionSource::Shm(crate::stale::own_name(purpose));
        let args = RegionArgs::of(region);
        let args = keys.map_or_else(|| args.clone(), |keys| RegionArgs { keys: keys.clone(), ..args.clone() });
        let (_, superblock) = create(&args, new, false)?;
        let owned = crate::stale::own(args.source()?)?;
        Ok(Self { args, superblock, _owned: owned })
    }

    /// As [`TemporaryRegion::make`], but pages take memory when they are first used. If the machine
    /// has too little memory, filling it kills the process, so this is for measurements of a
    /// region's size alone.
    pub fn sparse(purpose: &str, new: &NewRegionArgs) -> Result<Self, Failure> {
        let source = RegionSource::Shm(crate::stale::own_name(purpose));
        let path = source.path().expect("shared memory has a path");
        let size = new.size.expect("its maker gives a size").0;
        let made = std::fs::File::create_new(&path).and_then(|file| file.set_len(size));
        made.map_err(|error| Failure::new(format!("{}: cannot make the file: {error}", path.display())))?;
        // A huge page would take memory for the unused pages around a used one.
        let args = RegionArgs { no_huge_pages: true, ..RegionArgs::of(source) };
        let (_, superblock) = create(&args, new, true).inspect_err(|_| drop(std::fs::remove_file(&path)))?;
        let owned = crate::stale::own(args.source()?)?;
        Ok(Self { args, superblock, _owned: owned })
    }

    /// Creates it for a command that may end at once: SIGINT and SIGTERM remove the region and end
    /// the process. Such commands measure, so the region's pages are touched beforehand.
    pub fn until_signal(purpose: &str, size: u64) -> Result<Self, Failure> {
        let signals = EndSignals::catch()?;
        let region = Self::new(purpose, size, true)?;
        let (args, superblock) = (region.args.clone(), region.superblock.clone());
        // Freeing its pages takes long; while this is open, that happens after the process has
        // ended.
        let held = args.source()?.path().map(|path| files::open_own(&path)).transpose()?;
        signals.then(move |code| {
            let _held = held;
            remove(&args, &superblock);
            std::process::exit(code.into());
        });
        Ok(region)
    }

    /// Flags that name it.
    #[must_use]
    pub const fn args(&self) -> &RegionArgs {
        &self.args
    }

    /// Its superblock.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }
}

impl Drop for TemporaryRegion {
    fn drop(&mut self) {
        remove(&self.args, &self.superblock);
    }
}

fn remove(args: &RegionArgs, superblock: &Superblock) {
    if let Some(source) = &args.region {
        let _ = Mapping::remove(source);
    }
    let _ = cenote_pool::remove_host_memory(superblock);
}

/// Default size of a region, in bytes: a quarter of the free shared memory, at most 2 GiB.
pub fn own_region_bytes() -> u64 {
    let free = cenote_mem::cpu::probe(Path::new("/")).shm.map_or(OWN_REGION_BYTES, |shm| shm.free_bytes);
    (free / 4).min(OWN_REGION_BYTES)
}
