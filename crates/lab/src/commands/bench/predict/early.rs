//! Rows of n-gram tables fetched a step early, by guesses at the next token.
//!
//! At the start of a step its token is known, and so are the rows that the step reads: fetching them
//! then is exact. The rows of the next step depend on one more token. If it is guessed, they are
//! fetched a whole step earlier, and a wrong guess fetches rows for nothing.

use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_engram::{Addresses, History, Preset, TokenMap, Tokens};
use cenote_plan::traffic::Workload;
use cenote_predict::Guess;
use cenote_serving_sim::Link;
use cenote_serving_sim::model::{CXL, NIAGARA, RDMA_100G};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// Bytes of a value in a row: f16.
const VALUE_BYTES: usize = 2;

/// Links to a pool, with the sources of their numbers in `serving-sim/src/model/devices.rs`.
const LINKS: [(&str, Link); 3] =
    [("CXL, 64 GB/s", CXL), ("Niagara, 10.1 GB/s", NIAGARA), ("RDMA, 12.5 GB/s", RDMA_100G)];

/// The tables of Engram-27B (orders 2 and 3, 8 heads, layers 2 and 15), addressed by the tokens of a
/// model's tokenizer.
pub fn addresses(dir: &Path) -> Result<Addresses, Failure> {
    let path = dir.join("tokenizer.json");
    let json = input::bytes(&path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    let map = TokenMap::of_tokenizer(&json)?;
    let mut config = Preset::Engram27B.config()?;
    config.ids = map.size();
    Ok(Addresses::new(config, Some(map))?)
}

/// Which guesses fetch rows.
#[derive(Clone, Copy)]
struct Policy {
    name: &'static str,
    guesses: usize,
    /// Least probability of a guess.
    least: f32,
}

const POLICIES: [Policy; 3] = [
    Policy { name: "top 1", guesses: 1, least: 0.0 },
    Policy { name: "top 4", guesses: 4, least: 0.0 },
    Policy { name: "top 1 of 50 % or more", guesses: 1, least: 0.5 },
];

/// Rows of a policy so far.
pub struct Count {
    policy: Policy,
    tokens: u64,
    needed: u64,
    fetched: u64,
    used: u64,
    /// Tokens whose rows were all fetched.
    whole: u64,
}

/// Rows per token of both tables, and how many of the needed ones came early.
#[derive(Clone, Serialize)]
pub struct Early {
    predictor: &'static str,
    policy: &'static str,
    needed: f64,
    fetched: f64,
    used: f64,
    wasted: f64,
    /// Used rows over needed ones.
    used_share: f64,
    /// Share of tokens whose rows were all fetched.
    whole_share: f64,
}

impl Count {
    pub fn all() -> Vec<Self> {
        POLICIES.map(|policy| Self { policy, tokens: 0, needed: 0, fetched: 0, used: 0, whole: 0 }).into()
    }

    /// Fetches the rows of some guesses behind a history, and compares them with those of the next
    /// token.
    pub fn add(&mut self, of: &Addresses, history: &History, guesses: &[Guess], next: u32) -> Result<(), Failure> {
        let rows = |token: u32| {
            let mut rows = Vec::new();
            of.rows(&mut history.clone(), Tokens::from(&[token][..]), &mut rows)?;
            Ok::<_, Failure>(rows)
        };
        let needed = rows(next)?;
        let chosen = guesses.iter().take(self.policy.guesses).filter(|guess| guess.probability >= self.policy.least);
        let early = chosen.map(|guess| rows(guess.token)).collect::<Result<Vec<_>, _>>()?;
        // A column is a table's head, whose rows no other head has.
        let columns = (0..needed.len()).map(|column| early.iter().map(|rows| rows[column]).collect::<BTreeSet<_>>());
        let (mut fetched, mut used) = (0, 0);
        for (rows, needed) in columns.zip(&needed) {
            fetched += rows.len() as u64;
            used += u64::from(rows.contains(needed));
        }
        self.tokens += 1;
        self.needed += needed.len() as u64;
        self.fetched += fetched;
        self.used += used;
        self.whole += u64::from(used == needed.len() as u64);
        Ok(())
    }

    pub fn result(&self, predictor: &'static str) -> Early {
        let each = |rows: u64| rows as f64 / self.tokens.max(1) as f64;
        Early {
            predictor,
            policy: self.policy.name,
            needed: each(self.needed),
            fetched: each(self.fetched),
            used: each(self.used),
            wasted: each(self.fetched - self.used),
            used_share: self.used as f64 / self.needed.max(1) as f64,
            whole_share: each(self.whole),
        }
    }
}

/// Waiting for a table's rows in each step, modelled (Engram pool, §3.2).
#[derive(Serialize)]
pub struct Hidden {
    predictor: &'static str,
    policy: &'static str,
    link: &'static str,
    /// Sequences of a step.
    batch: u64,
    /// Microseconds from the start of the step to the layer that reads the rows.
    window_us: f64,
    /// Microseconds to fetch all rows of the step.
    fetch_us: f64,
    /// Waiting with exact prefetch alone.
    exact_wait_us: f64,
    /// Waiting if guessed rows came a step early.
    early_wait_us: f64,
    /// The difference, in per cent of a step.
    gain_percent: f64,
    /// Bytes over the link beside those of exact prefetch alone.
    traffic: f64,
}

/// Waiting by link, batch and table, for the predictor whose four guesses fetch the most rows that
/// are used.
///
/// # Errors
/// Never; the type is that of configurations.
pub fn hidden(all: &[Early]) -> Result<Vec<Hidden>, Failure> {
    let config = Preset::Engram27B.config()?;
    let row_bytes = (config.row_values * VALUE_BYTES) as u64;
    let sequence_bytes = config.rows_per_token() as u64 * row_bytes;
    let layers: Vec<u64> = config.layer_ids.iter().map(|id| config.layers_before(*id)).collect();
    let four = all.iter().filter(|early| early.policy == POLICIES[1].name);
    let Some(best) = four.max_by(|a, b| a.used_share.total_cmp(&b.used_share)) else { return Ok(Vec::new()) };
    let mut rows = Vec::new();
    for early in all.iter().filter(|early| early.predictor == best.predictor) {
        for (name, link) in LINKS {
            for batch in [1, Workload::PAPER.batch] {
                // A table before the first layer has no window.
                let layers = std::iter::once(0).chain(layers.iter().copied());
                rows.extend(layers.map(|layers| wait(early, (name, link), batch, batch * sequence_bytes, layers)));
            }
        }
    }
    Ok(rows)
}

/// Waiting for `bytes` of a table behind `layers` layers. The rows of one sequence arrive together. Of a large
/// batch, the share that was not guessed remains to be fetched.
fn wait(early: &Early, (name, link): (&'static str, Link), batch: u64, bytes: u64, layers: u64) -> Hidden {
    let workload = Workload::PAPER;
    let window_us = 1e6 * workload.layer_seconds() * layers as f64;
    let latency_us = link.latency_ns as f64 / 1e3;
    let fetch = |share: f64| latency_us + 1e6 * share * bytes as f64 / link.bytes_per_s as f64;
    let beyond = |time: f64| (time - window_us).max(0.0);
    let exact = beyond(fetch(1.0));
    let with_guesses = match batch {
        1 => (1.0 - early.whole_share) * exact,
        _ => beyond(fetch(1.0 - early.used_share)),
    };
    Hidden {
        predictor: early.predictor,
        policy: early.policy,
        link: name,
        batch,
        window_us,
        fetch_us: fetch(1.0),
        exact_wait_us: exact,
        early_wait_us: with_guesses,
        gain_percent: 100.0 * (exact - with_guesses) / (1e6 * workload.step_seconds),
        traffic: (early.fetched + early.needed - early.used) / early.needed,
    }
}

pub fn table(all: &[Early]) -> String {
    let header = ["predictor", "fetches", "rows needed", "fetched early", "used", "wasted", "used, %", "all rows, %"];
    let mut out = output::table(&header).keys(2);
    for row in all {
        let mut cells = vec![row.predictor.to_owned(), row.policy.to_owned()];
        cells.extend([row.needed, row.fetched, row.used, row.wasted].map(|rows| format!("{rows:.1}")));
        cells.extend([row.used_share, row.whole_share].map(|share| format!("{:.1}", 100.0 * share)));
        out.add_row(cells);
    }
    out.to_string()
}

pub fn hidden_table(all: &[Hidden]) -> String {
    let header = [
        "fetches",
        "link",
        "batch",
        "window, us",
        "fetch, us",
        "exact waits, us",
        "early waits, us",
        "gain, % of a step",
        "traffic",
    ];
    let mut out = output::table(&header).keys(2);
    for row in all {
        let mut cells = vec![format!("{}, {}", row.predictor, row.policy), row.link.to_owned(), row.batch.to_string()];
        cells.extend([row.window_us, row.fetch_us, row.exact_wait_us, row.early_wait_us].map(|us| format!("{us:.1}")));
        cells.extend([format!("{:.2}", row.gain_percent), format!("{:.2}", row.traffic)]);
        out.add_row(cells);
    }
    out.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn early(share: f64) -> Early {
        Early {
            predictor: "it",
            policy: POLICIES[1].name,
            needed: 32.0,
            fetched: 128.0,
            used: 32.0 * share,
            wasted: 128.0 - 32.0 * share,
            used_share: share,
            whole_share: share,
        }
    }

    #[test]
    fn guesses_gain_only_where_the_window_is_too_short() {
        // 256 × 5,120 B take 20.9 us over CXL, which the paper's window of 56 us hides.
        let enough = wait(&early(0.4), ("CXL", CXL), 256, 256 * 5120, 1);
        assert!((enough.fetch_us - 20.88).abs() < 0.01 && (enough.window_us - 56.25).abs() < 1e-9);
        assert_eq!((enough.exact_wait_us, enough.early_wait_us, enough.gain_percent), (0.0, 0.0, 0.0));
        // 109.9 us over RDMA wait for 53.6 us; with 40 % of the rows early, 67.9 us wait for 11.7.
        let short = wait(&early(0.4), ("RDMA", RDMA_100G), 256, 256 * 5120, 1);
        assert!((short.exact_wait_us - 53.61).abs() < 0.01 && (short.early_wait_us - 11.66).abs() < 0.01);
        assert!((short.gain_percent - 100.0 * 41.94 / 3600.0).abs() < 0.01 && short.traffic == 4.6);
        // Without a window, one sequence waits only if its token was not guessed.
        let none = wait(&early(0.4), ("CXL", CXL), 1, 5120, 0);
        assert!((none.early_wait_us - 0.6 * none.exact_wait_us).abs() < 1e-12);
    }

    #[test]
    fn rows_of_the_right_guess_are_used_and_others_wasted() {
        let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let addresses = addresses(&tokenizer).unwrap();
        let guess = |token| Guess { token, probability: 0.3 };
        let mut counts = Count::all();
        for count in &mut counts {
            count.add(&addresses, &addresses.start(), &[guess(700), guess(800), guess(900)], 800).unwrap();
        }
        let rows: Vec<_> = counts.iter().map(|count| (count.fetched, count.used, count.whole)).collect();
        assert_eq!(rows, [(32, 0, 0), (96, 32, 1), (0, 0, 0)]);
    }
}
