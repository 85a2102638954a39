//! `cenote pool`: regions from outside.

use crate::args::{
    MemoryOf, PoolArgs, PoolCheckArgs, PoolColdArgs, PoolCommands, PoolCreateArgs, PoolDestroyArgs, PoolFenceArgs,
    PoolGcArgs, PoolManageArgs, PoolQuotaArgs, PoolRotateArgs,
};
use cenote_base::seal::Seal;
use cenote_base::units::ByteSize;
use cenote_base::{Clock, HostId};
use cenote_console::args::WatchArgs;
use cenote_console::cold::named;
use cenote_console::failure::Failure;
use cenote_console::output::{self, facts, table, wrapped};
use cenote_console::region;
use cenote_console::signals::EndSignals;
use cenote_mem::{Fabric, Flush, MapError, Mapping, RegionSource};
use cenote_pool::{
    AttachOptions, CheckReport, Counter, Freed, GcReport, HostsLock, LockManager, MemoryInfo, NamespaceInfo, Pool,
    PoolInfo, Superblock, Window, key_names,
};
use cenote_store::cold::{Place, Settings, Used, check_size, resize, survey};
use cenote_store::snapshot::Restoring;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// Exit code of `check` if it finds leaks or damage.
const UNCLEAN: u8 = 2;

/// Digits of a fingerprint, more than a number has.
const FINGERPRINT_MIN: usize = 6;

/// Pause of a lock manager that found nothing to do.
const MANAGER_PAUSE: Duration = Duration::from_micros(50);

pub fn run(command: PoolCommands) -> Result<ExitCode, Failure> {
    match command {
        PoolCommands::Create(args) => create(&args),
        PoolCommands::List(args) => super::list::run(&args),
        PoolCommands::Info(args) => info(&args),
        PoolCommands::Metrics(args) => super::metrics::run(&args),
        PoolCommands::Check(args) => check(&args),
        PoolCommands::History(args) => super::history::run(&args),
        PoolCommands::Events(args) => super::events::run(&args),
        PoolCommands::Gc(args) => gc(&args),
        PoolCommands::Quota(args) => quota(&args),
        PoolCommands::Rotate(args) => rotate(&args),
        PoolCommands::Cold(args) => cold(&args),
        PoolCommands::Diff(args) => super::diff::run(&args),
        PoolCommands::Explain(args) => super::explain::run(&args),
        PoolCommands::Whatif(args) => super::whatif::run(&args).map(|()| ExitCode::SUCCESS),
        PoolCommands::Fence(args) => fence(&args),
        PoolCommands::Manage(args) => manage(&args),
        PoolCommands::Share(args) => super::share::run(&args),
        PoolCommands::ShareMemory(args) => super::share::run_holder(&args),
        PoolCommands::Snapshot(args) => super::snapshot::save(&args),
        PoolCommands::Restore(args) => super::snapshot::restore(&args),
        PoolCommands::Destroy(args) => destroy(&args),
    }
}

#[derive(Serialize)]
struct Created {
    region: String,
    region_bytes: u64,
    chunk_bytes: u64,
    min_block_bytes: u64,
    max_hosts: u8,
    flush: &'static str,
    hosts_lock: &'static str,
    design: &'static str,
    eviction: String,
    seal: &'static str,
    page_bytes: u64,
    transparent_huge: bool,
    numa_node: Option<u32>,
    notes: Vec<String>,
}

fn create(args: &PoolCreateArgs) -> Result<ExitCode, Failure> {
    let (fabric, superblock) = region::create(&args.region, &args.new, args.force)?;
    let obtained = fabric.mapping().obtained().clone();
    let created = Created {
        region: args.region.source()?.to_string(),
        region_bytes: fabric.len(),
        chunk_bytes: superblock.config.chunk_bytes,
        min_block_bytes: superblock.config.min_block_bytes,
        max_hosts: superblock.config.max_hosts,
        flush: superblock.flush.name(),
        hosts_lock: lock_name(superblock.config.hosts_lock),
        design: superblock.config.design.name(),
        eviction: superblock.config.eviction.to_string(),
        seal: superblock.config.seal.name(),
        page_bytes: obtained.page_bytes,
        transparent_huge: obtained.transparent_huge,
        numa_node: obtained.numa_node,
        notes: obtained.notes,
    };
    args.output.show(&created, || {
        let huge = if created.transparent_huge { ", transparent huge pages" } else { "" };
        facts(&[
            ("region", created.region.clone()),
            ("size", ByteSize(created.region_bytes).to_string()),
            ("chunks of", ByteSize(created.chunk_bytes).to_string()),
            ("hosts", hosts_text(superblock.flush, created.max_hosts, created.hosts_lock)),
            ("design", created.design.to_owned()),
            ("eviction", created.eviction.clone()),
            ("seal", created.seal.to_owned()),
            ("pages of", format!("{}{huge}", ByteSize(created.page_bytes))),
            ("NUMA node", created.numa_node.map_or_else(|| "not known".to_owned(), |node| node.to_string())),
        ])
    })?;
    created.notes.iter().for_each(|note| output::say(&format!("note: {note}")));
    Ok(ExitCode::SUCCESS)
}

const fn lock_name(lock: HostsLock) -> &'static str {
    match lock {
        HostsLock::Bakery => "bakery",
        HostsLock::Manager => "manager",
    }
}

/// How a region is sealed, and with which keys.
fn seal_text(info: &PoolInfo) -> String {
    match info.seal_keys.as_slice() {
        [] => info.seal.to_owned(),
        keys => format!("{}, with the keys named {}", info.seal, keys.join(", ")),
    }
}

/// The users that may share a region.
fn hosts_text(flush: Flush, max_hosts: u8, lock: &str) -> String {
    if flush.is_coherent() {
        return "one: its processes share their caches".to_owned();
    }
    format!("up to {max_hosts}, flushed with {flush}, locks of kind {lock}")
}

#[derive(Serialize)]
struct Info {
    #[serde(flatten)]
    pool: PoolInfo,
    /// The host of this command.
    host: u8,
    max_hosts: u8,
    flush: &'static str,
    hosts_lock: &'static str,
    /// The snapshot that the region is being restored from.
    restoring: Option<String>,
    /// What the place given with `--cold` holds.
    cold: Option<ColdInfo>,
}

#[derive(Serialize)]
struct ColdInfo {
    place: String,
    /// These are missing for a server, which counts no keys of one program, and has a limit of its own.
    blocks: Option<u64>,
    bytes: Option<u64>,
    bytes_max: Option<u64>,
}

impl ColdInfo {
    fn of(settings: &Settings) -> Result<Self, Failure> {
        let used = survey(settings, Clock::system()).map_err(|error| named(settings, &error))?;
        Ok(Self::with(settings, used))
    }

    fn with(settings: &Settings, used: Used) -> Self {
        let Used { blocks, bytes, bytes_max } = used;
        let counted = |value: u64| (!matches!(settings.place, Place::Server(_))).then_some(value);
        let place = settings.place.to_string();
        Self { place, blocks: counted(blocks), bytes: counted(bytes), bytes_max: counted(bytes_max) }
    }

    fn text(&self) -> String {
        let (Some(blocks), Some(bytes), Some(most)) = (self.blocks, self.bytes, self.bytes_max) else {
            return format!("{} answers; its own `maxmemory` is the limit, and it does not count our keys", self.place);
        };
        format!("{blocks} blocks, {} of {}, in {}", ByteSize(bytes), ByteSize(most), self.place)
    }
}

fn info(args: &PoolArgs) -> Result<ExitCode, Failure> {
    let inspector = args.region.inspect()?;
    let superblock = inspector.superblock();
    let seal = superblock.config.seal;
    let keys = if args.cold.is_none() || seal == Seal::None { None } else { args.region.keys()? };
    let sealed = |cold: &Settings| Settings { seal: keys.clone().map(|keys| (seal, keys)), ..cold.clone() };
    let info = Info {
        host: args.region.host_slot,
        max_hosts: superblock.config.max_hosts,
        flush: superblock.flush.name(),
        hosts_lock: lock_name(superblock.config.hosts_lock),
        restoring: Restoring::seen(&inspector).map(|restoring| restoring.path),
        cold: args.cold.as_ref().map(|cold| ColdInfo::of(&sealed(cold))).transpose()?,
        pool: inspector.info(),
    };
    args.output.show(&info, || info_text(&info, superblock.flush))?;
    Ok(ExitCode::SUCCESS)
}

fn info_text(info: &Info, flush: Flush) -> String {
    let hosts = hosts_text(flush, info.max_hosts, info.hosts_lock);
    let (restoring, info, cold) = (&info.restoring, &info.pool, &info.cold);
    let mut chunks = format!("{} of {} taken, {} each", info.chunks_taken, info.num_chunks, ByteSize(info.chunk_bytes));
    if info.chunks_with_strays > 0 {
        let _ = write!(
            chunks,
            "; {} take no writes in place (docs/internals/protocol.md, Stray writes)",
            info.chunks_with_strays
        );
    }
    let mut rows = vec![
        ("size", ByteSize(info.region_bytes).to_string()),
        ("for blocks", ByteSize(info.data_bytes).to_string()),
        ("chunks", chunks),
        ("blocks", format!("{} ({})", info.blocks_ready, ByteSize(info.bytes_ready))),
        ("objects", info.objects.to_string()),
        ("memory", memory_text(&info.memory)),
        ("locks given out", info.locks_given.to_string()),
        ("fabric", info.fabric.to_owned()),
        ("design", info.design.to_owned()),
        ("eviction", info.eviction.to_owned()),
        ("seal", seal_text(info)),
        ("pins", format!("{} a process", info.pins_per_worker)),
        ("hosts", hosts),
    ];
    if let Some(path) = restoring {
        rows.insert(0, ("restoring", format!("from {path}; it is not complete")));
    }
    if let Some(cold) = cold {
        rows.push(("cold tier", cold.text()));
    }
    if !info.windows.is_empty() {
        rows.push(("hit-rate ceiling", ceilings(&info.windows)));
    }
    if let Some(text) = cold_text(&info.counters) {
        rows.push(("to the cold tier", text.0));
        rows.push(("from the cold tier", text.1));
    }
    let mut text = facts(&rows);
    let mut models = table(&[
        "id",
        "model",
        "blocks",
        "bytes",
        "takes",
        "quota",
        "kept",
        "workers",
        "block size",
        "tokens",
        "fingerprint",
    ]);
    for row in &info.namespaces {
        models.add_row([
            row.id.0.to_string(),
            row.label.clone(),
            row.blocks.to_string(),
            ByteSize(row.bytes).to_string(),
            ByteSize(row.used_bytes).to_string(),
            if row.quota_bytes > 0 { ByteSize(row.quota_bytes).to_string() } else { "none".to_owned() },
            if row.kept_bytes > 0 { ByteSize(row.kept_bytes).to_string() } else { "none".to_owned() },
            row.workers.to_string(),
            ByteSize(row.block_bytes).to_string(),
            row.block_tokens.to_string(),
            row.fingerprint.chars().take(12).collect(),
        ]);
    }
    let mut hosts = table(&["host", "life", "alive", "heart still for", "workers", "chunks"]);
    for host in &info.hosts {
        let alive = if host.marked_dead { "declared dead" } else { known(host.alive) };
        hosts.add_row([
            host.host.to_string(),
            host.incarnation.to_string(),
            alive.to_owned(),
            host.silent_ms.map_or_else(String::new, |ms| format!("{:.1} s", ms as f64 / 1000.0)),
            host.workers.to_string(),
            host.chunks.to_string(),
        ]);
    }
    let mut workers = table(&["host", "slot", "pid", "worker", "alive"]);
    for worker in &info.workers {
        workers.add_row([
            worker.host.to_string(),
            worker.slot.to_string(),
            worker.pid.to_string(),
            worker.name.clone(),
            known(worker.alive).to_owned(),
        ]);
    }
    let mut memory = table(&["allocated by", "alive", "pieces", "bytes"]);
    for of in &info.memory.makers {
        let bytes = ByteSize(of.bytes).to_string();
        memory.add_row([of.maker.to_string(), known(of.alive).to_owned(), of.pieces.to_string(), bytes]);
    }
    let mut counters = table(&["counter", "value"]);
    for (name, value) in info.counters.iter().filter(|(_, value)| **value > 0) {
        counters.add_row([(*name).to_owned(), value.to_string()]);
    }
    for (title, table, empty) in [
        ("models", models, info.namespaces.is_empty()),
        ("hosts", hosts, info.hosts.is_empty()),
        ("workers", workers, info.workers.is_empty()),
        ("memory without a name, by host.slot.epoch of its worker", memory, info.memory.makers.is_empty()),
        ("counters of this host", counters, info.counters.values().all(|value| *value == 0)),
    ] {
        if !empty {
            text.push_str(&format!("\n\n{title}\n\n{table}"));
        }
    }
    text
}

/// The highest hit rates that the last windows allow.
pub(super) fn ceilings(windows: &[Window]) -> String {
    let text = |window: &Window| {
        let Some(ceiling) = window.ceiling else { return "no blocks".to_owned() };
        let name = match window.seconds {
            900 => "15 min".to_owned(),
            3600 => "1 h".to_owned(),
            _ => "1 day".to_owned(),
        };
        let error = 100.0 * window.ceiling_error();
        let part = if window.is_over { "" } else { ", not over yet" };
        format!("{:.1} % of {} blocks in {name} (± {error:.1}{part})", 100.0 * ceiling, window.blocks)
    };
    windows.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// What this host's processes wrote to L4 and read from it; `None`: nothing.
fn cold_text(counters: &BTreeMap<&'static str, u64>) -> Option<(String, String)> {
    let of = |counter: Counter| counters.get(counter.name()).copied().unwrap_or(0);
    let sum = |counters: &[Counter]| counters.iter().map(|&counter| of(counter)).sum::<u64>();
    let dropped = sum(&[Counter::ColdDroppedBusy, Counter::ColdDroppedGone, Counter::ColdDroppedFailed]);
    let (offered, written, there) = (of(Counter::ColdOffered), of(Counter::ColdWritten), of(Counter::ColdDuplicates));
    let skipped = of(Counter::ColdSkipped);
    // Processes that were killed lost what waited.
    let rest = offered.saturating_sub(written + there + skipped + dropped);
    let down = format!(
        "{offered} offered: {written} written, {there} there, {skipped} skipped, {dropped} dropped, {rest} waiting or lost"
    );
    let refused = sum(&[Counter::ColdReadsRefused, Counter::ColdReadsSkipped]);
    let [found, hits, misses, late] =
        [Counter::ColdFound, Counter::ColdHits, Counter::ColdMisses, Counter::ColdLate].map(of);
    let up = format!("{found} found: {hits} in time, {misses} missed, {late} late, {refused} refused");
    (offered + found > 0).then_some((down, up))
}

fn memory_text(memory: &MemoryInfo) -> String {
    let unnamed = format!("{} pieces without a name ({})", memory.pieces, ByteSize(memory.bytes));
    format!("{unnamed}, {} with one ({})", memory.named_pieces, ByteSize(memory.named_bytes))
}

fn known(alive: Option<bool>) -> &'static str {
    alive.map_or("not known", |alive| if alive { "yes" } else { "no" })
}

fn check(args: &PoolCheckArgs) -> Result<ExitCode, Failure> {
    let spinner = output::spinner("checking");
    let report = args.region.inspect()?.check(!args.quick);
    spinner.finish_and_clear();
    args.output.show(&report, || check_text(&report))?;
    if report.is_clean() {
        return Ok(ExitCode::SUCCESS);
    }
    output::hint(
        "cenote pool gc frees what leaks and takes damaged blocks out; `pool check` says what each finding means",
    );
    Ok(ExitCode::from(UNCLEAN))
}

fn check_text(report: &CheckReport) -> String {
    let verified = if report.payloads_verified > 0 {
        format!(", {} payloads verified", report.payloads_verified)
    } else {
        String::new()
    };
    let mut text = facts(&[
        ("blocks", format!("{} readable{verified}", report.ready)),
        (
            "slots",
            format!(
                "{} in {} chunks, {} free, {} being written",
                report.slots, report.chunks, report.free, report.reserved
            ),
        ),
        ("pinned", format!("{}, {} waiting to leave", report.pinned, report.draining)),
        ("objects", report.objects.to_string()),
        ("memory", memory_text(&report.memory_of_users)),
        ("index", format!("{} entries, {} stale", report.index_entries, report.index_stale)),
        ("left by the dead", report.pending.len().to_string()),
        ("leaks", format!("{} ({})", report.leaks.len(), ByteSize(report.leaked_bytes))),
        ("damage", report.damage.len().to_string()),
    ]);
    let findings = [("leaks", &report.leaks), ("damage", &report.damage), ("left by the dead", &report.pending)];
    for (title, findings) in findings.into_iter().filter(|(_, findings)| !findings.is_empty()) {
        text.push_str(&format!("\n\n{title}"));
        for (means, repair) in findings.iter().map(|f| (f.means, f.repair)).collect::<BTreeSet<_>>() {
            for finding in findings.iter().filter(|f| (f.means, f.repair) == (means, repair)) {
                text.push_str(&format!("\n{}", wrapped(&format!("{}: {}", finding.what, finding.fact), "  ")));
            }
            for words in [format!("means: {means}"), format!("repair: {repair}")] {
                text.push_str(&format!("\n{}", wrapped(&words, "    ")));
            }
        }
    }
    text
}

#[derive(Serialize)]
struct Collected {
    #[serde(flatten)]
    report: GcReport,
    /// Memory of dead workers, freed on request.
    memory_freed: Freed,
}

fn gc(args: &PoolGcArgs) -> Result<ExitCode, Failure> {
    let spinner = output::spinner("collecting");
    let pool = args.region.attach("gc")?;
    let explain = |error| args.region.explain(&error);
    let maker = match args.free_memory {
        Some(MemoryOf::AllDead) => Some(None),
        Some(MemoryOf::Worker(maker)) => Some(Some(maker)),
        None => None,
    };
    let memory_freed = match maker {
        Some(maker) => {
            let pieces = pool.dead_memory(maker).map_err(explain)?;
            // Tables of models outlive the commands that load them.
            cenote_tables::free_unrecorded(&pool, pieces)?
        }
        None => Freed::default(),
    };
    let report = pool.gc().map_err(explain)?;
    spinner.finish_and_clear();
    args.output.show(&Collected { report, memory_freed }, || {
        facts(&[
            ("memory freed", format!("{} pieces ({})", memory_freed.pieces, ByteSize(memory_freed.bytes))),
            ("dead workers", report.recovered.workers.to_string()),
            ("reservations given back", report.recovered.reservations.to_string()),
            ("blocks freed", report.blocks_freed.to_string()),
            ("chunks taken over", report.chunks_adopted.to_string()),
            ("chunks given back", report.chunks_released.to_string()),
            ("index entries dropped", report.index_dropped.to_string()),
        ])
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The row of a model, by its label, its number, or the start of its fingerprint.
pub(super) fn find_namespace<'a>(
    source: &RegionSource,
    rows: &'a [NamespaceInfo],
    name: &str,
) -> Result<&'a NamespaceInfo, Failure> {
    let names = |row: &&NamespaceInfo| {
        row.label == name
            || row.id.0.to_string() == name
            || (name.len() >= FINGERPRINT_MIN && row.fingerprint.starts_with(name))
    };
    if let [row] = rows.iter().filter(names).collect::<Vec<_>>()[..] {
        return Ok(row);
    }
    let known = |row: &NamespaceInfo| format!("{} ({}, {:.12})", row.id.0, row.label.escape_debug(), row.fingerprint);
    let known: Vec<String> = rows.iter().map(known).collect();
    Err(Failure::new(format!("{source}: `{name}` does not name one of its models"))
        .hint(format!("its models are: {}", if known.is_empty() { "none".to_owned() } else { known.join("; ") })))
}

fn quota(args: &PoolQuotaArgs) -> Result<ExitCode, Failure> {
    let source = args.region.source()?;
    let rows = args.region.inspect()?.info().namespaces;
    let row = find_namespace(source, &rows, &args.namespace)?;
    let pool = args.region.attach("quota")?;
    let takes = ByteSize(row.used_bytes);
    if let Some(bytes) = args.bytes {
        pool.set_quota(row.id, bytes.0).map_err(|error| args.region.explain(&error))?;
        output::say(&match bytes.0 {
            0 => format!("{source}: {} has no quota", row.label),
            _ => format!("{source}: {} may take {bytes}, and takes {takes}", row.label),
        });
    }
    if let Some(bytes) = args.keep {
        pool.keep(row.id, bytes.0).map_err(|error| args.region.explain(&error))?;
        output::say(&match bytes.0 {
            0 => format!("{source}: nothing is kept for {}", row.label),
            _ => format!("{source}: {} keeps {bytes} while others need room, and takes {takes}", row.label),
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// The keys of the file are the new one and older ones. The region knows an older one, so this process
/// joins with that.
fn rotate(args: &PoolRotateArgs) -> Result<ExitCode, Failure> {
    let source = args.region.source()?;
    let keys = args.region.keys()?.ok_or_else(|| {
        Failure::new("no key was named").hint("give --seal-key-file a file with the new key first, then the old ones")
    })?;
    let inspector = args.region.inspect()?;
    let (config, admitted) = (&inspector.superblock().config, inspector.keys());
    let names = key_names(&config.uuid, config.seal, &keys);
    let known = keys.ids().zip(names).find(|(_, name)| admitted.contains(name)).map(|(id, _)| id);
    let known = known.ok_or_else(|| {
        let names: Vec<String> = admitted.iter().map(ToString::to_string).collect();
        Failure::new(format!("{source}: none of the keys is one of the region's ({})", names.join(", ")))
            .hint("the file needs the new key in its first line, and the old one below it")
    })?;
    let options = args.region.attach_options("rotate", &WatchArgs::default())?;
    let options = AttachOptions { keys: Some(keys.sealing_with(known)), ..options };
    let pool = Pool::attach(args.region.map()?, &options).map_err(|error| args.region.explain(&error))?;
    let names = pool.admit_key(&keys, args.only).map_err(|error| args.region.explain(&error))?;
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    output::say(&format!("{source}: processes may seal with the keys named {}", names.join(", ")));
    Ok(ExitCode::SUCCESS)
}

fn cold(args: &PoolColdArgs) -> Result<ExitCode, Failure> {
    let settings = &args.settings()?;
    let info = match args.size {
        None => ColdInfo::of(settings)?,
        Some(ByteSize(bytes)) => {
            check_size(bytes).map_err(|error| Failure::new(format!("--size: {error}")))?;
            let used = resize(settings, bytes, Clock::system()).map_err(|error| named(settings, &error))?;
            ColdInfo::with(settings, used)
        }
    };
    args.output.show(&info, || facts(&[("cold tier", info.text())]))?;
    if info.bytes > info.bytes_max {
        output::say("note: running processes still write to it; the oldest blocks leave when they notice the limit");
    }
    Ok(ExitCode::SUCCESS)
}

fn fence(args: &PoolFenceArgs) -> Result<ExitCode, Failure> {
    let pool = args.region.attach("fence")?;
    pool.fence_host(HostId(args.dead_host)).map_err(|error| args.region.explain(&error))?;
    output::say(&format!("{}: host {} is declared dead", args.region.source()?, args.dead_host));
    Ok(ExitCode::SUCCESS)
}

fn manage(args: &PoolManageArgs) -> Result<ExitCode, Failure> {
    let pauses = EndSignals::catch()?.into_pauses();
    let fabric = args.region.map()?;
    let superblock = Superblock::read(&fabric).map_err(|error| args.region.explain(&error))?;
    if superblock.flush.is_coherent() || superblock.config.hosts_lock != HostsLock::Manager {
        return Err(Failure::new(format!("{}: the locks of this region need no manager", args.region.source()?)));
    }
    region::stay_near(&fabric);
    let options = args.region.attach_options("manage", &WatchArgs::default())?;
    let mut manager = LockManager::open(fabric, &options).map_err(|error| args.region.explain(&error))?;
    output::say(&format!("{}: granting locks", args.region.source()?));
    loop {
        let pause = if manager.round().granted > 0 { Duration::ZERO } else { MANAGER_PAUSE };
        if !pauses.pause(pause) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn destroy(args: &PoolDestroyArgs) -> Result<ExitCode, Failure> {
    let source = args.region.source()?;
    let opened = Mapping::open(source, &args.region.map_options()).map_err(|error| match error {
        // The region is gone already, as requested.
        MapError::Missing { .. } => error.into(),
        error => args.region.explain_map(error),
    })?;
    let superblock = match cenote_pool::peek(opened) {
        Ok(superblock) => Some(superblock),
        Err(_) if args.force => None,
        Err(error) => return Err(args.region.explain(&error).hint("--force removes it all the same")),
    };
    if superblock.is_some() && !args.force {
        region::refuse_if_used(&args.region)?;
    }
    Mapping::remove(source)?;
    if let Some(superblock) = superblock {
        region::say_what_stays(&cenote_pool::remove_host_memory(&superblock)?);
    }
    output::say(&format!("{source}: removed"));
    Ok(ExitCode::SUCCESS)
}
