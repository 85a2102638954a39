//! `cenote-lab soak`: four engines of three models serve tenants on one full region of two emulated hosts,
//! for hours, with a cold tier below. Every answer is compared with the one that the same prompt gets
//! without the region. Memory, descriptors, hit rate and latency are sampled, and should stay flat.
//!
//! Budget of faults: a kill every `--kill-every`, of a worker process of the split engine or of an engine of
//! host 1; every twelfth time all of host 1, which stays away until others declare it dead, and loses its
//! memory every other time. The first engine, the front of the split one and the exporter of metrics live as
//! long as the run: their memory would show a leak.

mod engines;
mod figure;
mod load;
mod report;
mod sample;
mod tally;
mod watch;

use crate::args::SoakArgs;
use cenote_base::prng::Prng;
use cenote_console::failure::Failure;
use cenote_console::measure::percentiles;
use cenote_console::{engine, input, output};
use cenote_lab::random_model::{self, Shape};
use cenote_mem::HostArea;
use engines::{Engine, Order, Part, Place, Victim};
use load::References;
use report::Report;
use rustix::process::Signal;
use sample::Sample;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tally::Tally;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Kills until a host restarts.
const KILLS_BY_HOST: u32 = 12;
/// Silence after which others declare host 1 dead, and their pause before they take its chunks.
const HOST_TIMEOUT: &str = "5";
const QUARANTINE: &str = "2";
/// Longer than both.
const HOST_AWAY: Duration = Duration::from_secs(9);
const HOSTS: &str = "2";
const DYING_HOST: u8 = 1;
const CLIENTS_BY_ENGINE: u64 = 2;
const COLD_SIZE: &str = "256MiB";
const EXPORTER: &str = "pool metrics";
const SPLIT: &str = "split";
/// For a command that reads or makes a region.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// Until recovery has freed what the last deaths left.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(120);

/// What all calls of a run share.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Setting {
    seed: u64,
    size_bytes: u64,
}

pub fn run(args: &SoakArgs) -> Result<ExitCode, Failure> {
    let folder = Folder::open(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut soak = Soak::new(args, &folder)?;
    let has_ended = soak.samples.last().is_some_and(|last| last.is_clean.is_some());
    let code = if has_ended && soak.is_over() { None } else { runtime.block_on(soak.run())? };
    if let Some(code) = code {
        output::say(&format!("{} has {} samples; the same command goes on", folder.path.display(), soak.samples.len()));
        return Ok(ExitCode::from(code));
    }
    let report = Report::of(&soak.samples, folder.setting.seed);
    folder.write(&report, &soak.samples)?;
    args.output.show(&report, || report.text())?;
    let code = report.code();
    if code != 0 {
        output::report_failure(&Failure::new(report.failure()).hint(format!("{}", folder.file("samples").display())));
    }
    Ok(ExitCode::from(code))
}

/// The folder of a run.
struct Folder {
    path: PathBuf,
    setting: Setting,
    region: String,
}

impl Folder {
    fn open(args: &SoakArgs) -> Result<Self, Failure> {
        std::fs::create_dir_all(&args.resume)?;
        let path = args.resume.canonicalize()?;
        let setting = Setting { seed: args.seed, size_bytes: args.size.0 };
        let name = blake3::hash(path.as_os_str().as_encoded_bytes());
        let region = format!("shm:soak-{}", &name.to_hex()[..12]);
        let folder = Self { path, setting, region };
        let file = folder.file("setting.json");
        if file.exists() {
            let text = input::text(&file).map_err(Failure::new)?;
            let before: Setting = serde_json::from_str(&text)?;
            if before != folder.setting {
                return Err(Failure::new(format!("{}: it was begun with {before:?}", folder.path.display()))
                    .hint("give the same --seed and --size, or another folder"));
            }
        } else {
            std::fs::write(&file, serde_json::to_string(&folder.setting)?)?;
        }
        folder.end_left_processes();
        Ok(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Kills processes that an earlier call left, because it was killed.
    fn end_left_processes(&self) {
        let file = self.file("processes");
        for line in input::text(&file).unwrap_or_default().lines() {
            let Some((pid, ticks)) = line.split_once(' ') else { continue };
            let (Ok(pid), Ok(ticks)) = (pid.parse::<u32>(), ticks.parse::<u64>()) else { continue };
            if ticks > 0 && engines::start_ticks(pid) == Some(ticks) {
                engines::signal(Some(pid), Signal::KILL);
            }
        }
        // The file is that of this call from now on. There may be none.
        let _ = std::fs::remove_file(file);
    }

    /// The folders of the three models. The third one is made here.
    fn models(&self, args: &SoakArgs) -> Result<[PathBuf; 3], Failure> {
        let demo = engine::named_dir(args.model.as_ref())?.canonicalize()?;
        let with_tables = demo.with_file_name("demo-engram");
        if !with_tables.is_dir() {
            return Err(Failure::new(format!("{}: there is no such model", with_tables.display()))
                .hint("run it in a checkout, or name its models/demo with --model"));
        }
        let random = self.file("random");
        if !random.join("config.json").exists() {
            let shape = Shape { layers: 3, hidden: 128, intermediate: 256, kv_heads: 2 };
            random_model::write(&shape, &demo, &random, args.seed)?;
        }
        Ok([demo, with_tables, random])
    }

    fn write(&self, report: &Report, samples: &[Sample]) -> Result<(), Failure> {
        std::fs::write(self.file("report.json"), serde_json::to_string_pretty(report)? + "\n")?;
        std::fs::write(self.file("report.svg"), figure::draw(samples))?;
        Ok(())
    }
}

/// A run.
struct Soak<'a> {
    args: &'a SoakArgs,
    folder: &'a Folder,
    program: PathBuf,
    models: [PathBuf; 3],
    tally: Arc<Tally>,
    samples: Vec<Sample>,
    /// The number of this call, from 1.
    call: u64,
    /// Seconds of earlier calls.
    before_s: f64,
    started: Instant,
    prng: Prng,
    page: Arc<Mutex<BTreeMap<String, f64>>>,
}

impl<'a> Soak<'a> {
    fn new(args: &'a SoakArgs, folder: &'a Folder) -> Result<Self, Failure> {
        let program = match &args.program {
            Some(program) => program.canonicalize()?,
            None => std::env::current_exe()?.with_file_name("cenote"),
        };
        if !program.is_file() {
            return Err(Failure::new(format!("{}: there is no such command", program.display()))
                .hint("build `cenote` in the same folder, or name the command with --program"));
        }
        let samples = sample::read(&folder.file("samples"))?;
        let call = samples.last().map_or(1, |last| last.call + 1);
        Ok(Self {
            args,
            folder,
            program,
            models: folder.models(args)?,
            tally: Arc::new(Tally::new(folder.file("processes"))),
            call,
            before_s: samples.last().map_or(0.0, |last| last.at_s),
            samples,
            started: Instant::now(),
            prng: Prng::at(args.seed, call),
            page: Arc::default(),
        })
    }

    /// `cenote`, with none of this process's settings.
    fn cenote(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(&self.folder.path).stdin(Stdio::null()).kill_on_drop(true);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CENOTE_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs `cenote` to its end; returns its exit code and its output.
    async fn ask(&self, arguments: &[&str]) -> Result<(Option<i32>, String, String), Failure> {
        let late = |_| Failure::new(format!("cenote {}: it did not end", arguments.join(" ")));
        let output = timeout(COMMAND_TIMEOUT, self.cenote(arguments).output()).await.map_err(late)??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
    }

    async fn json(&self, what: &str) -> Result<(Option<i32>, Value), Failure> {
        let (code, out, words) = self.ask(&["pool", what, "--json", "--region", &self.folder.region]).await?;
        let parsed = serde_json::from_str(&out);
        parsed.map(|value| (code, value)).map_err(|_| Failure::new(format!("pool {what}: {}", words.trim())))
    }

    /// Makes the region, unless an earlier call has left it. Returns its id.
    async fn region(&self) -> Result<String, Failure> {
        let id = |info: &Value| info["uuid"].as_str().map(str::to_owned);
        if let Ok((Some(0), info)) = self.json("info").await
            && let Some(id) = id(&info)
        {
            return Ok(id);
        }
        let (size, cold) = (self.args.size.to_string(), self.cold());
        let flags = ["--size", &size, "--max-hosts", HOSTS, "--flush", "auto", "--cold", &cold];
        let create = [&["pool", "create", "--region", &self.folder.region][..], &flags].concat();
        let (code, _, words) = self.ask(&create).await?;
        if code != Some(0) {
            return Err(Failure::new(format!("pool create: {}", words.trim())));
        }
        id(&self.json("info").await?.1).ok_or_else(|| Failure::new("pool info names no uuid"))
    }

    fn cold(&self) -> String {
        format!("{},size={COLD_SIZE}", self.folder.file("cold").display())
    }

    fn parts(&self) -> Vec<Part> {
        let [demo, with_tables, random] = &self.models;
        let part =
            |name, model: &Path, host, victim, flags| Part { name, model: model.to_owned(), host, victim, flags };
        vec![
            part("whole", demo, 0, Victim::Nothing, &[][..]),
            part(SPLIT, demo, 0, Victim::Workers, &["--prefill", "1", "--decode", "1"]),
            part("tables", with_tables, DYING_HOST, Victim::All, &[]),
            part("random", random, DYING_HOST, Victim::All, &[]),
        ]
    }

    /// The command of an engine.
    fn serve(&self, part: &Part) -> Command {
        let (host, cold, model) = (part.host.to_string(), self.cold(), part.model.display().to_string());
        let region = &self.folder.region;
        let flags =
            ["--threads", "1", "--kv-size", "16MiB", "--host-timeout", HOST_TIMEOUT, "--quarantine", QUARANTINE];
        let named = ["--region", region, "--host-slot", &host, "--cold", &cold, "--model", &model];
        self.cenote(&[&["serve", "--port", "0"], &flags[..], &named, part.flags].concat())
    }

    fn elapsed_s(&self) -> f64 {
        self.before_s + self.started.elapsed().as_secs_f64()
    }

    fn is_over(&self) -> bool {
        match self.args.kills {
            None => self.elapsed_s() >= self.args.hours * 3600.0,
            Some(kills) => {
                let sums = report::sums(&self.samples);
                sums.kills >= kills && sums.host_restarts > 0
            }
        }
    }

    /// Runs to the end of the run, or until a signal, whose exit code it returns.
    async fn run(&mut self) -> Result<Option<u8>, Failure> {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let uuid = self.region().await?;
        let (mut all, mut keepers) = (Vec::new(), JoinSet::new());
        for part in self.parts() {
            let command = self.commands(&part);
            let log = self.folder.file(&format!("{}.log", part.name));
            let (engine, keeper) = engines::engine(part, command, log, Arc::clone(&self.tally));
            keepers.spawn(keeper);
            all.push(engine);
        }
        let exporter = Part { name: EXPORTER, model: PathBuf::new(), host: 0, victim: Victim::Nothing, flags: &[] };
        let command = self.commands(&exporter);
        let (exporter, keeper) =
            engines::engine(exporter, command, self.folder.file("metrics.log"), Arc::clone(&self.tally));
        keepers.spawn(keeper);
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let mut tasks = self.clients(&all, &stopped);
        tasks.spawn(self.watcher(&all, &exporter, &stopped).run());

        let mut kill = interval(self.args.kill_every.max(Duration::from_millis(1)));
        let mut sample = interval(SAMPLE_EVERY);
        for ticks in [&mut kill, &mut sample] {
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first tick comes at once.
            ticks.tick().await;
        }
        let bar = output::progress("soak", (self.args.hours * 3600.0) as u64);
        let (mut restart, mut kills, mut code) = (None, 0_u32, None);
        while !self.is_over() {
            tokio::select! {
                _ = kill.tick() => {
                    kills += 1;
                    if kills.is_multiple_of(KILLS_BY_HOST) && restart.is_none() {
                        let of_host = all.iter().filter(|engine| engine.part.host == DYING_HOST);
                        let places = of_host.map(|engine| {
                            engine.order(Order::Leave);
                            engine.place.clone()
                        });
                        let loses_memory = (kills / KILLS_BY_HOST).is_multiple_of(2);
                        restart = Some(Box::pin(away(places.collect(), uuid.clone(), loses_memory)));
                        self.tally.count(|counts| counts.kills += 2);
                    } else {
                        self.kill(&all).await?;
                    }
                }
                done = async { restart.as_mut().expect("the branch has it").await }, if restart.is_some() => {
                    done?;
                    restart = None;
                    all.iter().filter(|engine| engine.part.host == DYING_HOST).for_each(|one| one.order(Order::Return));
                    self.tally.count(|counts| counts.host_restarts += 1);
                }
                _ = sample.tick() => {
                    self.sample(&all, &exporter, None)?;
                    bar.set_position(self.elapsed_s() as u64);
                }
                Some(ended) = tasks.join_next() => ended??,
                Some(ended) = keepers.join_next() => ended??,
                _ = interrupt.recv() => { code = Some(130); break; }
                _ = terminate.recv() => { code = Some(143); break; }
            }
        }
        bar.finish_and_clear();
        stop.send_replace(true);
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        all.iter().chain([&exporter]).for_each(|engine| engine.order(Order::End));
        while let Some(ended) = keepers.join_next().await {
            ended??;
        }
        let is_clean = if code.is_none() { Some(self.is_clean().await?) } else { None };
        self.sample(&[], &exporter, is_clean)?;
        if code.is_none() {
            self.ask(&["pool", "destroy", "--force", "--region", &self.folder.region]).await?;
        }
        Ok(code)
    }

    /// Makes the commands of a part, again and again.
    fn commands(&self, part: &Part) -> impl Fn() -> Command + Send + use<> {
        let (program, path) = (self.program.clone(), self.folder.path.clone());
        let made = if part.name == EXPORTER {
            self.cenote(&["pool", "metrics", "--region", &self.folder.region, "--listen", "127.0.0.1:0"])
        } else {
            self.serve(part)
        };
        let arguments: Vec<_> = made.as_std().get_args().map(ToOwned::to_owned).collect();
        let removed: Vec<_> = made.as_std().get_envs().map(|(name, _)| name.to_owned()).collect();
        move || {
            let mut command = Command::new(&program);
            command.args(&arguments).current_dir(&path);
            removed.iter().for_each(|name| {
                command.env_remove(name);
            });
            command
        }
    }

    fn clients(&self, all: &[Engine], stop: &tokio::sync::watch::Receiver<bool>) -> JoinSet<Result<(), Failure>> {
        let references = References::default();
        let mut tasks = JoinSet::new();
        for (engine, number) in all.iter().flat_map(|engine| (0..CLIENTS_BY_ENGINE).map(move |number| (engine, number)))
        {
            let name = engine.part.model.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let position = u64::from_le_bytes(
                blake3::hash(engine.part.name.as_bytes()).as_bytes()[..8].try_into().expect("8 bytes"),
            );
            tasks.spawn(
                load::Client {
                    engine: engine.part.name,
                    model: name,
                    dies: engine.part.victim == Victim::All,
                    seed: self.args.seed,
                    prng: Prng::at(self.args.seed ^ position, self.call * CLIENTS_BY_ENGINE + number),
                    place: engine.place.clone(),
                    references: Arc::clone(&references),
                    tally: Arc::clone(&self.tally),
                    stop: stop.clone(),
                }
                .run(),
            );
        }
        tasks
    }

    fn watcher(&self, all: &[Engine], exporter: &Engine, stop: &tokio::sync::watch::Receiver<bool>) -> watch::Watcher {
        let watched = |engine: &Engine| watch::Watched {
            name: engine.part.name,
            dies: engine.part.victim == Victim::All,
            place: engine.place.clone(),
        };
        watch::Watcher {
            watched: all.iter().chain([exporter]).map(watched).collect(),
            program: self.program.clone(),
            region: self.folder.region.clone(),
            prompt: self.folder.file("prompt"),
            seed: self.args.seed,
            prng: Prng::at(self.args.seed, self.call << 32),
            tally: Arc::clone(&self.tally),
            stop: stop.clone(),
            page: Arc::clone(&self.page),
            exporter: EXPORTER,
        }
    }

    /// Kills a process, if the drawn one is at work.
    async fn kill(&mut self, all: &[Engine]) -> Result<(), Failure> {
        let victims: Vec<&Engine> = all.iter().filter(|engine| engine.part.victim != Victim::Nothing).collect();
        let victim = victims[self.prng.below(victims.len() as u64) as usize];
        let Place::At { url, pid, .. } = victim.place.borrow().clone() else { return Ok(()) };
        let is_killed = if victim.part.victim == Victim::All {
            victim.order(Order::Kill);
            true
        } else {
            let health = reqwest::Client::builder().timeout(COMMAND_TIMEOUT).no_proxy().build()?;
            let health: Value = health.get(format!("{url}/health")).send().await?.json().await?;
            let pids = health["process_ids"].as_array().cloned().unwrap_or_default();
            let pids: Vec<u32> = pids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect();
            let workers: Vec<u32> = pids.into_iter().filter(|id| *id != pid).collect();
            // One of them lives, so that no stream loses all.
            workers.len() > 1 && {
                let chosen = self.prng.below(workers.len() as u64) as usize;
                engines::signal(Some(workers[chosen]), Signal::KILL)
            }
        };
        self.tally.count(|counts| counts.kills += u64::from(is_killed));
        Ok(())
    }

    fn sample(&mut self, all: &[Engine], exporter: &Engine, is_clean: Option<bool>) -> Result<(), Failure> {
        let interval = self.tally.take();
        let living = all.iter().chain([exporter]).filter(|engine| engine.part.victim != Victim::All);
        let facts = |engine: &Engine| match &*engine.place.borrow() {
            Place::At { pid, .. } => Some((engine.part.name.to_owned(), engines::facts(*pid)?)),
            _ => None,
        };
        let times = interval.first_token_ms;
        let sample = Sample {
            at_s: self.elapsed_s(),
            call: self.call,
            counts: interval.counts,
            first_token_ms: (!times.is_empty()).then(|| percentiles(times)),
            processes: living.filter_map(facts).collect(),
            region: self.page.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            cold_bytes: engines::bytes_below(&self.folder.file("cold")),
            findings: interval.findings,
            is_clean,
        };
        sample::append(&self.folder.file("samples"), &sample)?;
        self.samples.push(sample);
        Ok(())
    }

    /// Whether the region has no leak and no damage once recovery has run, and nothing reserved or pinned.
    async fn is_clean(&self) -> Result<bool, Failure> {
        let started = Instant::now();
        loop {
            let (code, found) = self.json("check").await?;
            let is_empty = |name: &str| found[name].as_array().is_some_and(Vec::is_empty);
            if code == Some(0)
                && is_empty("leaks")
                && is_empty("damage")
                && found["reserved"] == 0
                && found["pinned"] == 0
            {
                return Ok(true);
            }
            if started.elapsed() > CLEAN_TIMEOUT {
                self.tally.fail(format!("pool check: {found}"));
                return Ok(false);
            }
            self.ask(&["pool", "gc", "--region", &self.folder.region]).await?;
            sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Waits until all of a host's engines have ended, removes the host's memory if it `loses_memory`, and stays
/// away until others have declared the host dead.
async fn away(
    mut places: Vec<tokio::sync::watch::Receiver<Place>>,
    uuid: String,
    loses_memory: bool,
) -> Result<(), Failure> {
    for place in &mut places {
        place.wait_for(|place| *place == Place::Down).await?;
    }
    if loses_memory {
        HostArea::remove(&format!("cenote-{uuid}-h{DYING_HOST}"))?;
    }
    sleep(HOST_AWAY).await;
    Ok(())
}
