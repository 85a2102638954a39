//! `cenote-lab bench sessions`: sessions of agents, replayed against servers of the OpenAI API.
//!
//! Without `--url` it starts `cenote serve` four times, one after the other: without a region; with a region
//! that holds all sessions; with one that is too small; and with that and L4 below it. All get the same
//! requests, at the same times after the answers before them.

mod plan;
mod replay;
mod report;
mod server;
mod tiers;

use crate::args::BenchSessionsArgs;
use cenote_base::units::ByteSize;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_store::cold;
use plan::Plan;
use replay::Pace;
use report::{Report, Row};
use server::Server;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;
use tiers::{PUBLISHED_BYTES, Tiers};
use tokio::signal::unix::{SignalKind, signal};

/// Limit of L4.
const COLD_SIZE: &str = "8GiB";
/// Tables of the region that is too small, about.
const TABLES_BYTES: u64 = 1 << 20;
/// Least bytes of its blocks: a few chunks.
const SMALL_MIN: u64 = 1 << 20;
/// Tokens of a block of a server that does not say.
const BLOCK_TOKENS: u32 = 16;

pub fn run(args: &BenchSessionsArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            report = measure(args) => report,
            // Servers, regions and folders end with the future that owns them.
            _ = interrupt.recv() => Err(Failure::new("interrupted")),
            _ = terminate.recv() => Err(Failure::new("terminated")),
        }
    })?;
    if let Some(path) = &args.html {
        write(path, &report.page())?;
    }
    if let Some(path) = &args.svg {
        write(path, &report.picture())?;
    }
    args.output.show(&report, || report.text())?;
    report.verdict()
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// A server of a run.
enum Kind {
    /// It runs already.
    Running(Box<Server>),
    NoRegion,
    /// A region that holds everything.
    Region,
    /// One that is too small.
    Small,
    /// The same, with L4.
    SmallCold,
}

async fn measure(args: &BenchSessionsArgs) -> Result<Report, Failure> {
    let mut own = Own::new(args)?;
    let mut kinds: Vec<(String, Kind)> = Vec::new();
    for named in &args.url {
        kinds.push((named.name.clone(), Kind::Running(Box::new(Server::at(&named.url).await?))));
    }
    if kinds.is_empty() {
        let own = [
            ("no region", Kind::NoRegion),
            ("region", Kind::Region),
            ("small region", Kind::Small),
            ("small region, L4", Kind::SmallCold),
        ];
        kinds.extend(own.map(|(name, kind)| (name.to_owned(), kind)));
    } else if let (true, [(name, Kind::Running(server))]) = (args.check, &kinds[..]) {
        let again = (format!("{name}, again"), Kind::Running(Box::new(Server::at(&server.url).await?)));
        kinds.push(again);
    }
    // The shortest context of all servers; those of this run serve the same model.
    let running = kinds.iter().filter_map(|(_, kind)| match kind {
        Kind::Running(server) => server.max_model_len,
        _ => None,
    });
    let mut longest = running.min();
    let mut first = None;
    if args.url.is_empty() {
        let server = own.start(&Kind::NoRegion).await?;
        longest = server.max_model_len;
        first = Some(server);
    }
    let context = [args.context, longest].into_iter().flatten().min().unwrap_or(u32::MAX);
    let prompt_max = context.checked_sub(args.output_tokens).filter(|&tokens| tokens > 0).ok_or_else(|| {
        Failure::new(format!("--output-tokens {}: the context has {context} tokens", args.output_tokens))
    })?;
    let plan = Arc::new(Plan::read(args, prompt_max)?);
    let pace = Pace {
        output_tokens: args.output_tokens,
        think_scale: args.think_scale(),
        think_max: args.think_max,
        concurrency: args.concurrency,
        timeout: args.timeout,
    };
    let bar = output::progress("asking", (plan.requests * kinds.len()) as u64);
    let (mut rows, mut model) = (Vec::<Row>::new(), String::new());
    for (name, kind) in kinds {
        let server = match (first.take(), kind) {
            (Some(server), _) => server,
            (None, Kind::Running(server)) => *server,
            (None, kind) => own.start(&kind).await?,
        };
        model.clone_from(&server.model);
        let before = server.metrics().await;
        let (begin, counted) = (Instant::now(), bar.clone());
        let asked = replay::replay(&server, &plan, pace, move |count| counted.inc(count)).await?;
        let wall = begin.elapsed();
        let after = server.metrics().await;
        server.end().await?;
        let pages = before.as_ref().zip(after.as_ref());
        let block_tokens = |page: &tiers::Page| args.block_tokens.or(page.block_tokens).unwrap_or(BLOCK_TOKENS);
        let tiers = pages.and_then(|(before, after)| Tiers::between(before, after, block_tokens(after)));
        let published = pages.and_then(|(before, after)| after.since(before, PUBLISHED_BYTES));
        // The first one that publishes holds everything.
        own.published = own.published.or(published.filter(|&bytes| bytes > 0.0));
        rows.push(Row::new(name, asked, tiers, wall));
    }
    bar.finish_and_clear();
    Ok(Report::new(args, model, &plan, context, own.small_bytes, rows))
}

/// What servers of this run need.
struct Own<'a> {
    args: &'a BenchSessionsArgs,
    program: PathBuf,
    /// Logs, and L4 unless another directory is named.
    folder: TempDir,
    /// Bytes that the sessions have published.
    published: Option<f64>,
    small_bytes: Option<u64>,
}

impl<'a> Own<'a> {
    fn new(args: &'a BenchSessionsArgs) -> Result<Self, Failure> {
        let program = match &args.program {
            Some(program) => program.canonicalize()?,
            None => std::env::current_exe()?.with_file_name("cenote"),
        };
        if args.url.is_empty() && !program.is_file() {
            return Err(Failure::new(format!("{}: there is no such command", program.display()))
                .hint("build `cenote` in the same folder, name the command with --program, or a server with --url"));
        }
        let folder = tempfile::Builder::new().prefix("cenote-sessions-").tempdir()?;
        Ok(Self { args, program, folder, published: None, small_bytes: None })
    }

    async fn start(&mut self, kind: &Kind) -> Result<Server, Failure> {
        let place = match (kind, &self.args.cold_dir) {
            (Kind::SmallCold, Some(dir)) => Some(std::path::absolute(dir)?),
            (Kind::SmallCold, None) => Some(self.folder.path().join("cold")),
            _ => None,
        };
        let cold = place.map(|dir| format!("{},size={COLD_SIZE}", dir.display()));
        let parsed = cold.as_deref().map(str::parse::<cold::Settings>).transpose();
        let settings = parsed.map_err(|error| Failure::new(error.to_string()))?;
        let region = match kind {
            Kind::NoRegion | Kind::Running(_) => None,
            Kind::Region => Some(server::region(self.args.region_size.0, None)?),
            Kind::Small | Kind::SmallCold => {
                let published = self.published.ok_or_else(|| Failure::new("the server published nothing"))?;
                let blocks = ((published * self.args.share) as u64).max(SMALL_MIN);
                let bytes = (TABLES_BYTES + blocks).next_multiple_of(256 << 10);
                self.small_bytes = Some(bytes);
                Some(server::region(bytes, settings.as_ref())?)
            }
        };
        let mut flags = match region.as_ref().and_then(|region| region.args().region.as_ref()) {
            None => vec!["--no-pool".to_owned()],
            Some(source) => vec!["--region".to_owned(), source.to_string()],
        };
        flags.extend(cold.into_iter().flat_map(|cold| ["--cold".to_owned(), cold]));
        let model = &self.args.model;
        flags.extend(["--dtype".to_owned(), model.dtype.name().to_owned()]);
        flags.extend(model.model.iter().flat_map(|dir| ["--model".to_owned(), dir.display().to_string()]));
        flags.extend(model.threads.iter().flat_map(|count| ["--threads".to_owned(), count.to_string()]));
        flags.extend(self.args.block_tokens.iter().flat_map(|count| ["--block-tokens".to_owned(), count.to_string()]));
        Server::start(&self.program, &flags, region, &self.folder.path().join("serve.log")).await
    }
}

/// Words for a size.
fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}
