//! One text under profiles of several others: whether profiles depend on their text (Oaken, Figure
//! 6).

use super::subjects::{needs_bases, subject};
use super::{PROFILE_PROMPTS, profile};
use crate::args::EvalArgs;
use cenote_codec::{Groups, Profile};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_engine::LoadedModel;
use cenote_lab::agreement::{Spread, spreads};
use cenote_lab::report::with_error;
use cenote_quality::Subject;
use cenote_quality::evaluate::{Quality, evaluate};
use cenote_quality::text::Windows;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// Default codecs.
const CODECS: [&str; 4] = ["oaken", "qpack:0.35", "qpack:0.5", "qpackz:0.5"];

#[derive(Serialize)]
struct Report {
    model: String,
    /// Texts of the profiles.
    profiles: Vec<String>,
    /// Disagreement of Oaken's thresholds under these profiles.
    thresholds: Vec<Spread>,
    windows: usize,
    context: usize,
    block_tokens: usize,
    perplexity: f64,
    /// By codec, then by profile.
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    profile: String,
    #[serde(flatten)]
    quality: Quality,
}

pub fn run(args: &EvalArgs, model: &LoadedModel) -> Result<(), Failure> {
    if args.papers || args.html.is_some() || args.by_token {
        return Err(Failure::new("--papers, --html and --by-token go with one profile, not with several"));
    }
    let windows = Windows::new(profile::open(&args.text)?, model.tokenizer(), args.context).take_some(args.windows)?;
    let codecs: Vec<&str> = match args.codec.as_slice() {
        [] => CODECS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let with_bases = codecs.iter().any(|name| needs_bases(name));
    let make = |text: &Path| profile::make(model, text, PROFILE_PROMPTS, args.context, with_bases).map(Arc::new);
    let profiles: Vec<Arc<Profile>> = args.profile_text.iter().map(|text| make(text)).collect::<Result<_, _>>()?;
    let names: Vec<String> = args.profile_text.iter().map(|text| text.display().to_string()).collect();
    let pairs =
        codecs.iter().flat_map(|codec| profiles.iter().map(move |profile| subject(codec, model, Some(profile))));
    let subjects: Vec<Box<dyn Subject>> = pairs.collect::<Result<_, _>>()?;
    let borrowed: Vec<&dyn Subject> = subjects.iter().map(|subject| &**subject).collect();
    let progress = output::progress("computing windows", windows.len() as u64);
    let evaluation = evaluate(model, &windows, args.block_tokens, &borrowed, &mut |steps| progress.inc(steps as u64))?;
    progress.finish_and_clear();
    let rows = evaluation.codecs.into_iter().zip(names.iter().cycle());
    let report = Report {
        model: model.name().to_owned(),
        thresholds: spreads(&profiles.iter().map(Arc::as_ref).collect::<Vec<_>>(), &Groups::default()),
        windows: evaluation.windows,
        context: evaluation.context,
        block_tokens: evaluation.block_tokens,
        perplexity: evaluation.perplexity,
        rows: rows.map(|(quality, profile)| Row { profile: profile.clone(), quality }).collect(),
        profiles: names.clone(),
    };
    args.output.show(&report, || table(&report))
}

fn table(report: &Report) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let mut apart = output::table(&["layer", "side", "thresholds apart: mean", "worst", "range apart"]);
    for spread in &report.thresholds {
        apart.add_row([
            spread.layer.to_string(),
            spread.side.to_owned(),
            percent(spread.mean),
            percent(spread.worst),
            percent(spread.range),
        ]);
    }
    let mut rows = output::table(&["codec", "profile of", "bits", "KL ×1000", "perplexity", "loss %"]);
    for Row { profile, quality } in &report.rows {
        rows.add_row([
            quality.codec.clone(),
            profile.clone(),
            format!("{:.3}", quality.bits),
            with_error(&format!("{:.3}", 1e3 * quality.harm.kl), 1e3 * quality.harm.kl_se),
            format!("{:.3}", quality.harm.perplexity),
            with_error(&format!("{:+.3}", quality.harm.loss_percent), quality.harm.loss_percent_se),
        ]);
    }
    let first = format!("{}: Oaken's thresholds under profiles of {}", report.model, report.profiles.join(", "));
    let second = format!(
        "{} windows of {} tokens, blocks of {}; perplexity without a codec {:.3}",
        report.windows, report.context, report.block_tokens, report.perplexity
    );
    format!("{}\n\n{apart}\n\n{}\n\n{rows}", output::wrapped(&first, ""), output::wrapped(&second, ""))
}
