//! `cenote pool explain`: which blocks of a prompt are in a region, and why the others are not.

mod log;
mod request;

use super::pool::find_namespace;
use crate::args::PoolExplainArgs;
use cenote_base::{BlockHash, CacheSalt, ChainHasher, Clock, HashSeed, TokenId};
use cenote_console::args::RegionArgs;
use cenote_console::facts;
use cenote_console::failure::Failure;
use cenote_console::output::{self, table};
use cenote_console::region::RegionInspector;
use cenote_engine::tokenizer::Tokenizer;
use cenote_mem::files::read_input_text;
use cenote_pool::{Cause, NamespaceInfo, Removal, Removals, Seen, removals};
use cenote_store::Naming;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Longest file of tokens, text or names.
const INPUT_MAX: u64 = 256 << 20;
/// Removals within this time of another one left with it.
const TOGETHER_US: u64 = 1_000_000;
const TOKENS_HINT: &str = "give numbers, separated by spaces, commas or lines";

#[derive(Serialize)]
pub(super) struct Explanation {
    region: String,
    model: Model,
    /// Tokens of the prompt; `None`: names were given.
    tokens: Option<usize>,
    /// Blocks from the first one on that are there: the prompt's hit.
    prefix_blocks: usize,
    blocks: Vec<Block>,
    removals: Ring,
    /// The answer in a sentence or two.
    summary: String,
}

#[derive(Serialize)]
struct Model {
    id: u16,
    label: String,
    fingerprint: String,
    block_tokens: u32,
}

/// What the region remembers of removed blocks.
#[derive(Serialize)]
struct Ring {
    /// Lines of each host; 0: the region keeps none.
    lines: u32,
    /// Removals in all of them.
    noted: usize,
    /// Microseconds since 1970 of the oldest one, if a ring is full: what left before is forgotten.
    since_us: Option<u64>,
}

#[derive(Serialize)]
struct Block {
    /// Index in the prompt.
    block: usize,
    name: String,
    #[serde(flatten)]
    fate: Fate,
}

#[derive(Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum Fate {
    /// It is readable.
    Present {
        /// The host in whose space it lies.
        host: Option<u8>,
        bytes: u64,
        encoded: bool,
        /// Seconds since it was published.
        age_s: u64,
    },
    /// It was there, and left.
    Removed {
        cause: Cause,
        /// Seconds since it left.
        ago_s: f64,
        /// Seconds for which it was there.
        stayed_s: u64,
        host: u8,
        pid: u32,
        /// Blocks that this host removed for the same cause within a second of it, itself included.
        together: usize,
        /// Some ring does not reach back to it, so the block may have come and left again since.
        may_be_older: bool,
    },
    /// It is there, for requests without the salts.
    OtherSalt,
    /// The same tokens are there under another model.
    OtherModel {
        id: u16,
        label: String,
        fingerprint: String,
        /// Facts in which the models differ; `None`: they are not recorded.
        differs: Option<Vec<String>>,
    },
    /// Nothing is known of it.
    NeverSeen,
}

impl Fate {
    const fn is_present(&self) -> bool {
        matches!(self, Self::Present { .. })
    }
}

pub fn run(args: &PoolExplainArgs) -> Result<ExitCode, Failure> {
    if let (Some(id), Some(log)) = (&args.request, &args.log_file) {
        return request::run(args, id, log);
    }
    let explanation = Explanation::of(&args.region, args.model.as_deref(), || Asked::of(args))?;
    args.output.show(&explanation, || text(&explanation))?;
    Ok(ExitCode::SUCCESS)
}

impl Explanation {
    /// What a region knows of the blocks of a prompt, under a model: by default the one with the highest
    /// number.
    pub(super) fn of(
        region: &RegionArgs,
        model: Option<&str>,
        asked: impl FnOnce() -> Result<Asked, Failure>,
    ) -> Result<Self, Failure> {
        let source = region.source()?;
        let inspector = region.inspect()?;
        let mut rows = inspector.namespaces();
        rows.sort_by_key(|row| Reverse(row.id.0));
        let none = || {
            Failure::new(format!("{source}: no model has used the region"))
                .hint("each model, version and setting that uses it enters one; `pool info` lists them")
        };
        let row = match model {
            Some(name) => find_namespace(source, &rows, name)?,
            None => rows.first().ok_or_else(none)?,
        };
        let asked = asked()?;
        let removed = removals(&*region.map_read_only()?).map_err(|error| region.explain(&error))?;
        let teller = Teller { inspector: &inspector, rows: &rows, row, asked: &asked };
        let blocks = teller.blocks(&Past::new(&removed))?;
        let ring = ring(&inspector, &removed);
        let prefix_blocks = blocks.iter().take_while(|block| block.fate.is_present()).count();
        Ok(Self {
            region: source.to_string(),
            model: Model {
                id: row.id.0,
                label: row.label.clone(),
                fingerprint: row.fingerprint.clone(),
                block_tokens: row.block_tokens,
            },
            tokens: asked.tokens().map(<[TokenId]>::len),
            prefix_blocks,
            summary: summary(&asked, row, &blocks, prefix_blocks, &ring),
            blocks,
            removals: ring,
        })
    }

    /// The blocks as a table: neighbours with one history share a row.
    pub(super) fn rows(&self) -> Vec<Row> {
        let (blocks, mut rows, mut at) = (&self.blocks, Vec::new(), 0);
        while let Some(first) = blocks.get(at) {
            let what = what(&first.fate);
            let count = blocks[at..].iter().take_while(|block| self::what(&block.fate) == what).count();
            rows.push(Row { first: at, last: at + count - 1, is_present: first.fate.is_present(), what });
            at += count;
        }
        rows
    }
}

/// Neighbouring blocks with one history.
#[derive(Serialize)]
pub(super) struct Row {
    first: usize,
    last: usize,
    is_present: bool,
    what: String,
}

/// The prompt that is asked for.
pub(super) enum Asked {
    Tokens(Vec<TokenId>, Option<CacheSalt>),
    Names(Vec<BlockHash>),
}

impl Asked {
    fn of(args: &PoolExplainArgs) -> Result<Self, Failure> {
        let salt = CacheSalt::of(args.key_salt.as_deref(), args.cache_salt.as_deref());
        if let Some(path) = &args.names {
            return names("--names", &read(path)?).map(Self::Names);
        }
        if let Some(path) = &args.tokens {
            let tokens = tokens("--tokens", &read(path)?)
                .map_err(|failure| failure.hint(format!("{TOKENS_HINT}; --prompt takes text")))?;
            return Ok(Self::Tokens(tokens, salt));
        }
        let (Some(path), Some(folder)) = (&args.prompt, &args.tokenizer) else {
            unreachable!("the flags need one of the four, and --prompt its tokenizer")
        };
        let tokenizer =
            Tokenizer::load(folder, Clock::system()).map_err(|error| Failure::new(format!("--tokenizer: {error}")))?;
        let encoded = tokenizer.encode(&read(path)?).map_err(|error| Failure::new(format!("--prompt: {error}")))?;
        Ok(Self::Tokens(encoded, salt))
    }

    fn tokens(&self) -> Option<&[TokenId]> {
        match self {
            Self::Tokens(tokens, _) => Some(tokens),
            Self::Names(_) => None,
        }
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let named = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    if path == Path::new("-") {
        return std::io::read_to_string(std::io::stdin()).map_err(named);
    }
    read_input_text(path, INPUT_MAX).map_err(named)
}

/// Numbers, separated by anything that a list of them may have.
pub(super) fn tokens(field: &str, text: &str) -> Result<Vec<TokenId>, Failure> {
    let words =
        text.split(|letter: char| letter.is_whitespace() || "[],".contains(letter)).filter(|word| !word.is_empty());
    words
        .map(|word| {
            word.parse().map_err(|_| {
                Failure::new(format!("{field}: `{}` is no token's number", word.escape_debug())).hint(TOKENS_HINT)
            })
        })
        .collect()
}

pub(super) fn names(field: &str, text: &str) -> Result<Vec<BlockHash>, Failure> {
    text.split_whitespace()
        .map(|word| {
            BlockHash::from_hex(word).ok_or_else(|| {
                Failure::new(format!("{field}: `{}` is no name of a block: 32 hex digits", word.escape_debug()))
            })
        })
        .collect()
}

/// What the region remembers of blocks by their names.
struct Past<'a> {
    /// The last removal of a name counts.
    gone: BTreeMap<BlockHash, &'a Removal>,
    /// Times of the removals of a host for a cause, in order.
    times: BTreeMap<(u8, Cause), Vec<u64>>,
    since_us: Option<u64>,
    now: Duration,
}

impl<'a> Past<'a> {
    fn new(removed: &'a Removals) -> Self {
        let mut times: BTreeMap<(u8, Cause), Vec<u64>> = BTreeMap::new();
        for removal in &removed.all {
            times.entry((removal.host, removal.cause)).or_default().push(removal.time_us);
        }
        let gone = removed.all.iter().map(|removal| (removal.hash, removal)).collect();
        Self { gone, times, since_us: removed.since_us, now: Clock::system().unix() }
    }

    /// What became of a block, if it is there or left.
    fn fate(&self, name: BlockHash, seen: Option<&Seen>) -> Option<Fate> {
        match seen {
            Some(seen) => Some(present(seen, self.now.as_secs())),
            None => self.gone.get(&name).map(|removal| self.removed(removal)),
        }
    }

    fn removed(&self, removal: &Removal) -> Fate {
        let now_us = u64::try_from(self.now.as_micros()).unwrap_or(u64::MAX);
        let times = self.times.get(&(removal.host, removal.cause)).map_or(&[][..], Vec::as_slice);
        let from = times.partition_point(|time| time.saturating_add(TOGETHER_US) < removal.time_us);
        let to = times.partition_point(|time| *time <= removal.time_us.saturating_add(TOGETHER_US));
        Fate::Removed {
            cause: removal.cause,
            ago_s: now_us.saturating_sub(removal.time_us) as f64 / 1e6,
            stayed_s: (removal.time_us / 1_000_000).saturating_sub(removal.stored.into()),
            host: removal.host,
            pid: removal.pid,
            together: to.saturating_sub(from),
            may_be_older: self.since_us.is_some_and(|since| removal.time_us < since),
        }
    }
}

/// Finds out what happened to the blocks of a prompt.
struct Teller<'a> {
    inspector: &'a RegionInspector,
    rows: &'a [NamespaceInfo],
    row: &'a NamespaceInfo,
    asked: &'a Asked,
}

impl Teller<'_> {
    fn blocks(&self, past: &Past<'_>) -> Result<Vec<Block>, Failure> {
        let names = match self.asked {
            Asked::Names(names) => names.clone(),
            Asked::Tokens(tokens, salt) => self.names_under(self.row, salt.as_ref(), tokens)?,
        };
        let elsewhere = self.elsewhere()?;
        let fates = names.iter().zip(self.inspector.look_at(&names)).enumerate().map(|(at, (name, seen))| {
            let elsewhere = || elsewhere.iter().find(|other| other.there.get(at) == Some(&true));
            past.fate(*name, seen.as_ref()).unwrap_or_else(|| elsewhere().map_or(Fate::NeverSeen, Elsewhere::fate))
        });
        Ok(names
            .iter()
            .zip(fates)
            .enumerate()
            .map(|(block, (&name, fate))| Block { block, name: name.to_string(), fate })
            .collect())
    }

    fn names_under(
        &self,
        row: &NamespaceInfo,
        salt: Option<&CacheSalt>,
        tokens: &[TokenId],
    ) -> Result<Vec<BlockHash>, Failure> {
        let seed: &HashSeed = &self.inspector.superblock().config.seed;
        let fingerprint = row
            .fingerprint_bytes()
            .ok_or_else(|| Failure::new(format!("row {} of the region has a damaged fingerprint", row.id.0)))?;
        let naming = Naming::new(ChainHasher::new(seed, &fingerprint), row.block_tokens.max(1) as usize);
        Ok(naming.names(salt, tokens).to_vec())
    }

    /// Where else the same tokens may be: without the request's salts, and under other models.
    fn elsewhere(&self) -> Result<Vec<Elsewhere<'_>>, Failure> {
        let Asked::Tokens(tokens, salt) = self.asked else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        if salt.is_some() {
            all.push(Elsewhere { row: None, differs: None, there: self.there(self.row, None, tokens)? });
        }
        let facts = self.facts(self.row);
        for row in self.rows.iter().filter(|row| row.id != self.row.id && row.block_tokens == self.row.block_tokens) {
            let there = self.there(row, salt.as_ref(), tokens)?;
            if there.contains(&true) {
                let differs =
                    facts.as_ref().zip(self.facts(row).as_ref()).map(|(one, other)| facts::differing(one, other));
                all.push(Elsewhere { row: Some(row), differs, there });
            }
        }
        Ok(all)
    }

    fn there(&self, row: &NamespaceInfo, salt: Option<&CacheSalt>, tokens: &[TokenId]) -> Result<Vec<bool>, Failure> {
        Ok(self.inspector.may_have(&self.names_under(row, salt, tokens)?))
    }

    fn facts(&self, row: &NamespaceInfo) -> Option<facts::Facts> {
        facts::seen(self.inspector, &row.fingerprint)
    }
}

/// Blocks of the same tokens that a request like this one cannot use.
struct Elsewhere<'a> {
    /// `None`: the same model without salts.
    row: Option<&'a NamespaceInfo>,
    differs: Option<Vec<String>>,
    there: Vec<bool>,
}

impl Elsewhere<'_> {
    fn fate(&self) -> Fate {
        let Some(row) = self.row else { return Fate::OtherSalt };
        Fate::OtherModel {
            id: row.id.0,
            label: row.label.clone(),
            fingerprint: row.fingerprint.clone(),
            differs: self.differs.clone(),
        }
    }
}

fn present(seen: &Seen, now_s: u64) -> Fate {
    Fate::Present {
        host: seen.host,
        bytes: seen.length,
        encoded: seen.encoding != 0,
        age_s: now_s.saturating_sub(seen.stored.into()),
    }
}

fn ring(inspector: &RegionInspector, removed: &Removals) -> Ring {
    let lines = inspector.superblock().config.removals_per_host;
    Ring { lines, noted: removed.all.len(), since_us: removed.since_us }
}

fn summary(asked: &Asked, row: &NamespaceInfo, blocks: &[Block], prefix: usize, ring: &Ring) -> String {
    if blocks.is_empty() {
        let tokens = asked.tokens().map_or(0, <[TokenId]>::len);
        return format!("{tokens} tokens fill no block of {} tokens, so nothing can be shared", row.block_tokens);
    }
    let Some(first) = blocks.get(prefix) else {
        return format!("all {} blocks are here", blocks.len());
    };
    let behind = blocks[prefix..].iter().filter(|block| block.fate.is_present()).count();
    let tokens = match asked {
        Asked::Names(_) => String::new(),
        Asked::Tokens(..) => {
            let size = row.block_tokens.max(1) as usize;
            format!(" (tokens {} to {})", prefix * size, (prefix + 1) * size - 1)
        }
    };
    let mut text = format!(
        "the first {prefix} of {} blocks are here; block {prefix}{tokens} is not: {}",
        blocks.len(),
        reason(&first.fate, ring)
    );
    if behind > 0 {
        text += &format!("; {behind} later ones are here and cannot be used without it");
    }
    text
}

/// Why a block is not here.
fn reason(fate: &Fate, ring: &Ring) -> String {
    match fate {
        Fate::Present { .. } => "it is".to_owned(),
        Fate::Removed { cause, ago_s, stayed_s, host, pid, together, may_be_older } => {
            let why = match cause {
                Cause::Evicted => "evicted, because other blocks needed its space,",
                Cause::Quota => "evicted, because its model was over its quota,",
                Cause::Damaged => "dropped, because its bytes had changed,",
                Cause::Forgotten => "dropped with all blocks of its model",
                Cause::Collected => "dropped by `pool gc`",
            };
            let with =
                if *together > 1 { format!(", with {} others within a second", together - 1) } else { String::new() };
            let later = if *may_be_older { ", or again later" } else { "" };
            format!("{why} {ago_s:.0} s ago by process {pid} of host {host}{with}; it was here for {stayed_s} s{later}")
        }
        Fate::OtherSalt => "it is here for requests without these salts".to_owned(),
        Fate::OtherModel { id, label, differs, .. } => {
            let differs = match differs {
                Some(differs) => format!(
                    ", which differs in: {}",
                    differs.iter().map(|fact| fact.escape_debug().to_string()).collect::<Vec<_>>().join(", ")
                ),
                None => String::new(),
            };
            format!("it is here under model {id} ({}){differs}", label.escape_debug())
        }
        Fate::NeverSeen if ring.lines == 0 => {
            "never stored, or gone: the region keeps no removals (`pool create --removals`)".to_owned()
        }
        Fate::NeverSeen => match ring.since_us {
            Some(since) => {
                format!("never stored, or gone before {}, to which the removals reach back", output::utc(since))
            }
            None => "never stored under this model and these salts, or lost without a trace".to_owned(),
        },
    }
}

fn text(explanation: &Explanation) -> String {
    let mut rows = table(&["blocks", "state", "what"]).log();
    for row in explanation.rows() {
        let range = if row.first == row.last { row.first.to_string() } else { format!("{}-{}", row.first, row.last) };
        let state = if row.is_present { "here" } else { "not here" };
        rows.add_row([range, state.to_owned(), row.what]);
    }
    format!("{}\n\n{rows}", output::wrapped(&explanation.summary, ""))
}

/// What is said of a block in the table: the same for neighbours with one history.
fn what(fate: &Fate) -> String {
    match fate {
        Fate::Present { host, encoded, .. } => {
            let host = host.map_or_else(|| "a host".to_owned(), |host| format!("host {host}"));
            format!("on {host}{}", if *encoded { ", encoded" } else { "" })
        }
        Fate::Removed { cause, ago_s, host, pid, .. } => {
            format!("{} {ago_s:.0} s ago by process {pid} of host {host}", cause.name())
        }
        Fate::OtherSalt => "for requests without these salts".to_owned(),
        Fate::OtherModel { id, label, .. } => format!("under model {id} ({})", label.escape_debug()),
        Fate::NeverSeen => "not seen".to_owned(),
    }
}
