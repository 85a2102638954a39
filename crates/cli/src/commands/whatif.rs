//! `cenote pool whatif`: hit rates and times of other sizes and eviction policies, from the record of requests.

use crate::args::PoolWhatifArgs;
use cenote_base::units::ByteSize;
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_console::output::{self, facts, table, wrapped};
use cenote_console::whatif::{self, Question, Rates, WhatIf};
use cenote_pool::Eviction;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Answer {
    region: String,
    #[serde(flatten)]
    answer: WhatIf,
}

/// Replays the record of a region.
pub(super) fn answer(region: &RegionArgs, question: &Question) -> Result<Answer, Failure> {
    let source = region.source()?.to_string();
    let inspector = region.inspect()?;
    let bar = output::progress("replaying", (question.sizes.len() * question.policies.len()) as u64);
    let answer = whatif::ask(&*region.map_read_only()?, &inspector, question, || bar.inc(1))
        .map_err(|error| region.explain(&error))?;
    bar.finish_and_clear();
    match answer {
        Some(answer) => Ok(Answer { region: source, answer }),
        None => Err(whatif::none(&source, inspector.superblock().config.requests_per_host)),
    }
}

pub fn run(args: &PoolWhatifArgs) -> Result<(), Failure> {
    let question = Question {
        sizes: args.sizes.clone(),
        policies: if args.policies.is_empty() { Eviction::ALL.to_vec() } else { args.policies.clone() },
        cold_bytes: args.cold_size.map(|size| size.0),
        warm: f64::from(args.warm) / 100.0,
        rates: Rates {
            prefill_tokens_per_s: args.prefill_rate,
            load_bytes_per_s: args.load_rate.map(|rate| rate.0 as f64).filter(|rate| *rate > 0.0),
            cold_bytes_per_s: args.cold_rate.map(|rate| rate.0 as f64).filter(|rate| *rate > 0.0),
        },
    };
    let answer = answer(&args.region, &question)?;
    args.output.show(&answer, || text(&answer.answer))
}

/// A share as percent.
fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn rate(tokens: Option<f64>, unit: impl Fn(f64) -> String, is_measured: bool) -> String {
    tokens.map_or_else(
        || "not known".to_owned(),
        |rate| format!("{}, {}", unit(rate), if is_measured { "measured by this host's engines" } else { "given" }),
    )
}

fn text(answer: &WhatIf) -> String {
    let WhatIf { record, rates, measured, .. } = answer;
    let bytes = |rate: f64| format!("{}/s", ByteSize(rate as u64));
    let sample = match record.one_in {
        1 => format!("all blocks, {} different", record.different),
        one_in => format!("one in {one_in} blocks: {} of {} different ones", record.sampled, record.different),
    };
    let mut rows = vec![
        ("region", format!("{} for blocks, {}", ByteSize(answer.bytes), answer.eviction)),
        (
            "record",
            format!(
                "{} requests for {} blocks, from {} to {} UTC",
                record.requests,
                record.blocks,
                &output::utc(record.since_us)[..19],
                &output::utc(record.until_us)[..19]
            ),
        ),
        ("sample", sample),
        ("fills the caches", format!("the first {:.0} % of the blocks asked for", 100.0 * record.warm)),
        (
            "cold tier",
            answer.cold_bytes.map_or_else(
                || "keeps all blocks that were ever computed".to_owned(),
                |bytes| ByteSize(bytes).to_string(),
            ),
        ),
        (
            "computing",
            rate(
                rates.prefill_tokens_per_s,
                |rate| format!("{rate:.0} tokens/s"),
                rates.prefill_tokens_per_s == measured.prefill_tokens_per_s,
            ),
        ),
        ("loading", rate(rates.load_bytes_per_s, bytes, rates.load_bytes_per_s == measured.load_bytes_per_s)),
        ("cold tier's rate", rate(rates.cold_bytes_per_s, bytes, false)),
    ];
    if record.torn > 0 {
        rows.push(("left out", format!("{} requests, overwritten or torn", record.torn)));
    }
    let mut shown = table(&["size", "bytes", "eviction", "hits", "±", "with cold", "TTFT", "with cold tier"]).keys(3);
    let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms"));
    for row in &answer.rows {
        shown.add_row([
            row.size.to_string(),
            ByteSize(row.bytes).to_string(),
            row.eviction.to_owned(),
            format!("{}{}", percent(row.hit_rate), if row.was_full { "" } else { " *" }),
            format!("{:.1}", 200.0 * row.error),
            percent(row.hit_rate_with_cold),
            ms(row.ttft_ms),
            ms(row.ttft_with_cold_ms),
        ]);
    }
    let mut notes = vec!["± is two standard errors of the sample, in points.".to_owned()];
    if answer.rows.iter().any(|row| !row.was_full) {
        notes.push("* The record is too short to fill this size: a larger one has the same hits in it.".to_owned());
    }
    notes.push(match rates.prefill_tokens_per_s {
        Some(_) => "TTFT is the mean time to compute and load the full blocks of a prompt, without queues.".to_owned(),
        None => "No engine of this host has measured its rate; --prefill-rate gives one for TTFT.".to_owned(),
    });
    format!("{}\n\n{shown}\n\n{}", facts(&rows), wrapped(&notes.join(" "), ""))
}
