//! A cache of hot rows in local memory (§6): its hit rate, its cost, and the time of a batch over a
//! slower link with and without it.

use super::super::Setting;
use super::super::rows::{Row, Times, median};
use super::fabrics::niagara_64;
use super::pattern::{Pattern, stamp, table_in};
use super::{ROW_BYTES, ROWS_PER_TOKEN};
use cenote_base::Clock;
use cenote_base::prng::Prng;
use cenote_base::units::ByteSize;
use cenote_console::engine::named_dir;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_engine::tokenizer::Tokenizer;
use cenote_engram::{Addresses, Preset, TokenMap};
use cenote_mem::Flush;
use cenote_tables::HotRows;
use std::convert::Infallible;
use std::path::Path;
use std::time::Instant;

/// Sequences that decode together.
const SEQUENCES: usize = 64;
const CACHES: [u64; 4] = [4 << 20, 16 << 20, 64 << 20, 256 << 20];

pub fn measure(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut all = Vec::new();
    let (name, batches) = text_batches(setting)?;
    let distinct = distinct(&batches);
    let caches = &CACHES[..setting.choose(4, 2) as usize];
    for &bytes in caches {
        let of = format!(
            "hot rows, {SEQUENCES} sequences of {name} ({} rows are distinct), cache of {}",
            distinct,
            ByteSize(bytes)
        );
        all.extend(gain(&of, bytes, &batches)?);
    }
    for exponent in [0.8, 1.0, 1.2] {
        let batches = zipf_batches(setting, exponent);
        for &bytes in caches {
            let of = format!("hot rows, Zipf {exponent} over {} n-grams, cache of {}", ZIPF_NGRAMS, ByteSize(bytes));
            all.extend(gain(&of, bytes, &batches)?);
        }
    }
    all.extend(cost(setting)?);
    Ok(all)
}

fn distinct(batches: &[Vec<u64>]) -> usize {
    let mut rows: Vec<u64> = batches.iter().flatten().copied().collect();
    rows.sort_unstable();
    rows.dedup();
    rows.len()
}

/// Rows of layer 2 of Engram-27B for a text, as decode reads them: the text is cut into sequences,
/// and a batch has one token of each. The demo model's tokens stand for the model's.
fn text_batches(setting: &Setting) -> Result<(&'static str, Vec<Vec<u64>>), Failure> {
    let model = named_dir(None)?;
    let wikitext = Path::new("../shared/data/wikitext2_valid.txt");
    let (name, path) = match wikitext.exists() {
        true => ("WikiText-2", wikitext.to_owned()),
        false => ("models/demo/demo.txt", model.join("demo.txt")),
    };
    let text = input::text(&path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    let tokenizer = Tokenizer::load(&model, Clock::stopped())?;
    let tokens = tokenizer.encode_rendered(&text).map_err(Failure::new)?;
    let config = Preset::Engram27B.config()?;
    let (ids, columns) = (config.ids as u32, config.rows_per_token());
    let addresses = Addresses::new(config, Some(TokenMap::of_ids((0..ids).collect())?))?;
    let length = (tokens.len() / SEQUENCES).min(setting.choose(u64::MAX, 500) as usize);
    let mut batches = vec![Vec::with_capacity(SEQUENCES * columns); length];
    for sequence in tokens.chunks_exact(tokens.len() / SEQUENCES).take(SEQUENCES) {
        let (mut history, mut rows) = (addresses.start(), Vec::new());
        addresses.rows(&mut history, sequence[..length].into(), &mut rows)?;
        // All layers of a position lie side by side; the first layer is read here.
        for (batch, rows) in batches.iter_mut().zip(rows.chunks_exact(addresses.columns())) {
            batch.extend_from_slice(&rows[..columns]);
        }
    }
    Ok((name, batches))
}

/// N-grams of a skewed load. Each has a row in every head.
const ZIPF_NGRAMS: u64 = 10_000_000;

fn zipf_batches(setting: &Setting, exponent: f64) -> Vec<Vec<u64>> {
    let mut prng = Prng::new(exponent.to_bits());
    // Weights of geometrically growing runs of ranks, and within a run equal ones.
    let mut sums = vec![0.0];
    let mut bounds = vec![1.0_f64];
    while *bounds.last().expect("one") < ZIPF_NGRAMS as f64 {
        let from = *bounds.last().expect("one");
        let to = (from * 1.1 + 1.0).min(ZIPF_NGRAMS as f64);
        sums.push(sums.last().expect("one") + (to - from) * ((from + to) / 2.0).powf(-exponent));
        bounds.push(to);
    }
    let total = *sums.last().expect("one");
    let mut draw = || {
        let at = prng.next_f64() * total;
        let run = sums.partition_point(|&sum| sum <= at).clamp(1, sums.len() - 1);
        let within = (at - sums[run - 1]) / (sums[run] - sums[run - 1]);
        (bounds[run - 1] + within * (bounds[run] - bounds[run - 1])) as u64
    };
    (0..setting.choose(4000, 500))
        .map(|_| {
            let ngrams: Vec<u64> = (0..SEQUENCES).map(|_| draw()).collect();
            // A hash of n-gram and head is a row.
            let row = |ngram: u64, head: u64| {
                Prng::at(ngram, head).below(Preset::Engram27B.rows()) + head * Preset::Engram27B.rows()
            };
            ngrams.iter().flat_map(|&ngram| (0..ROWS_PER_TOKEN).map(move |head| row(ngram, head))).collect()
        })
        .collect()
}

/// Hit rate in the second half of the batches, and the modelled time of a batch over CXL with and
/// without the cache.
fn gain(of: &str, bytes: u64, batches: &[Vec<u64>]) -> Result<Vec<Row>, Failure> {
    let mut hot = HotRows::new(ROW_BYTES as usize, bytes as usize);
    let mut to = Vec::new();
    let (warm, measured) = batches.split_at(batches.len() / 2);
    let mut read = |hot: &mut HotRows, rows: &Vec<u64>| {
        to.resize(rows.len() * ROW_BYTES as usize, 0);
        let pattern = |wanted: &[u64], read: &mut [u8]| -> Result<(), Infallible> {
            wanted.iter().zip(read.chunks_exact_mut(ROW_BYTES as usize)).for_each(|(&row, to)| stamp(row, to));
            Ok(())
        };
        hot.through(rows, &mut to, pattern).expect("it cannot fail");
        super::pattern::check(rows, ROW_BYTES, &to)
    };
    for rows in warm {
        read(&mut hot, rows)?;
    }
    let before = hot.counts();
    let (mut with, mut without) = (Times::new(), Times::new());
    let link = niagara_64();
    for rows in measured {
        let misses = hot.counts().misses;
        read(&mut hot, rows)?;
        let missed = hot.counts().misses - misses;
        with.push(if missed == 0 { 0.0 } else { link.gather_ns(missed, ROW_BYTES) });
        without.push(link.gather_ns(rows.len() as u64, ROW_BYTES));
    }
    let after = hot.counts();
    let rate =
        (after.hits - before.hits) as f64 / (after.hits + after.misses - before.hits - before.misses).max(1) as f64;
    let name = format!("{of}: {:.1} % hits; a batch over {}, against no cache", 100.0 * rate, link.name);
    Ok(vec![Row::microseconds(name, &with).ratio(median(&without) / median(&with).max(1.0))])
}

/// The cache in front of a table in this machine's memory, where it gains nothing: its cost.
fn cost(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let bytes = setting.choose(1 << 30, 128 << 20);
    let table = table_in(setting, Flush::None, &Pattern::new("f16", ROW_BYTES, bytes / ROW_BYTES))?;
    let mut hot = HotRows::new(ROW_BYTES as usize, 64 << 20);
    let mut prng = Prng::new(5);
    let count = SEQUENCES as u64 * ROWS_PER_TOKEN;
    let mut to = vec![0; (count * ROW_BYTES) as usize];
    let mut times = vec![Times::new(); 2];
    for _ in 0..setting.choose(2000, 200) {
        for (way, times) in times.iter_mut().enumerate() {
            let rows: Vec<u64> = (0..count).map(|_| prng.below(table.facts().rows)).collect();
            let start = Instant::now();
            match way {
                0 => table.gather(&rows, &mut to)?,
                _ => hot.gather(&table, &rows, &mut to)?,
            }
            times.push(start.elapsed().as_nanos() as f64);
        }
    }
    let ratio = median(&times[0]) / median(&times[1]);
    let rate = 100.0 * hot.counts().rate();
    let name =
        format!("hot rows before local memory, uniform rows, {rate:.1} % hits, one thread (table alone over both)");
    Ok(vec![Row::microseconds(name, &times[1]).ratio(ratio)])
}
