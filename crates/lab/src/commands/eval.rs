//! `cenote-lab eval`: savings and costs of codecs, in one table.

mod accuracy;
mod agreement;
mod subjects;

use crate::args::EvalArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::{engine, profile};
use cenote_lab::papers::{self, Compared};
use cenote_lab::report::{self, with_error};
use cenote_quality::Subject;
use cenote_quality::evaluate::{BitsAt, Evaluation, Quality, bits_at, evaluate, evaluate_by_token};
use cenote_quality::text::Windows;
use serde::Serialize;
use std::sync::Arc;

/// Default codecs.
const ALL: &[&str] = &[
    "raw",
    "int8",
    "int8+delta",
    "int8+delta+rle",
    "oaken",
    "oaken:2/2/90/6:5",
    "oaken:10/90:5",
    "oaken:4/90/6:4",
    "oaken-mean",
    "qpack:0.13",
    "qpack:0.18",
    "qpack:0.25",
    "qpack:0.35",
    "qpack:0.5",
    "qpack:0.7",
    "qpack:0.9",
    "qpack:1.2",
    "qpackz:0.13",
    "qpackz:0.25",
    "qpackz:0.35",
    "qpackz:0.5",
    "qpackz:0.7",
    "qpackz:0.9",
    "qpackz:1.2",
    "group:4:32",
    "group:4:64",
    "kivi:2",
    "kivi:3",
    "kivi:4",
    "kivi:5",
    "kvquant:2",
    "kvquant:3",
    "kvquant:4",
    "kvquant:5",
    "tender:4",
    "atom:4",
    "qserve:4",
    "oaken-sign",
];
/// Prompts for a profile that is made for an evaluation.
const PROFILE_PROMPTS: usize = 100;
/// The codec whose divergence is the common reference.
const REFERENCE: &str = "kivi:4";

#[derive(Serialize)]
struct Report {
    model: String,
    #[serde(flatten)]
    evaluation: Evaluation,
    /// Bits that kinds of codecs need at the reference's divergence.
    at_equal_kl: Vec<AtEqualKl>,
    /// The papers' figures beside the measured ones, if requested.
    papers: Vec<Compared>,
}

/// A kind of codecs at a given divergence.
#[derive(Serialize)]
struct AtEqualKl {
    kind: String,
    kl: f64,
    /// None: no rate is as good, or all are better.
    bits: Option<f64>,
    ratio: Option<f64>,
    /// The least bits, if the kind is better at all of its rates.
    better_at: Option<f64>,
}

pub fn run(args: &EvalArgs) -> Result<(), Failure> {
    let model = engine::load_to_study(&args.model)?;
    if !args.task.is_empty() {
        return accuracy::run(args, &model);
    }
    if args.profile_text.len() > 1 {
        return agreement::run(args, &model);
    }
    let names: Vec<String> = match args.codec.as_slice() {
        [] if args.papers => papers::codecs().map(str::to_owned).collect(),
        [] => ALL.iter().map(|name| (*name).to_owned()).collect(),
        names => names.to_vec(),
    };
    let with_bases = names.iter().any(|name| subjects::needs_bases(name));
    let mut text = Windows::new(profile::open(&args.text)?, model.tokenizer(), args.context);
    let (profile, windows) = match (&args.profile, args.profile_text.first()) {
        (Some(path), _) => (Some(profile::read(path, &model)?), text.take_some(args.windows)?),
        (None, Some(other)) => (
            Some(profile::make(&model, other, PROFILE_PROMPTS, args.context, with_bases)?),
            text.take_some(args.windows)?,
        ),
        (None, None) if names.iter().any(|name| subjects::needs_profile(name)) => {
            let mut prompts = text.take_some(PROFILE_PROMPTS + args.windows)?;
            let windows = prompts.split_off(prompts.len() - args.windows.min(prompts.len() / 2));
            if windows.is_empty() {
                return Err(Failure::new(format!(
                    "{}: too short to make a profile from it as well",
                    args.text.display()
                ))
                .hint("name a profile with --profile, or a text to make one from with --profile-text"));
            }
            output::say(&format!(
                "no profile was named: it is made from the first {} windows of the text, and the {} behind them are looked at",
                prompts.len(),
                windows.len()
            ));
            (Some(profile::of_prompts(&model, &prompts, with_bases)?), windows)
        }
        (None, None) => (None, text.take_some(args.windows)?),
    };
    let profile = profile.map(Arc::new);
    let subjects = subjects::of_names(&names, &model, profile.as_ref())?;
    let borrowed: Vec<&dyn Subject> = subjects.iter().map(|subject| &**subject).collect();
    let progress = output::progress("computing windows", windows.len() as u64);
    let measure = if args.by_token { evaluate_by_token } else { evaluate };
    let evaluation = measure(&model, &windows, args.block_tokens, &borrowed, &mut |steps| progress.inc(steps as u64))?;
    progress.finish_and_clear();
    if let Some(path) = &args.html {
        std::fs::write(path, report::html(model.name(), &evaluation))
            .map_err(|error| Failure::new(format!("{}: cannot write the page: {error}", path.display())))?;
    }
    let at_equal_kl = at_equal_kl(&evaluation.codecs);
    let papers = if args.papers { papers::compare(&evaluation) } else { Vec::new() };
    let report = Report { model: model.name().to_owned(), evaluation, at_equal_kl, papers };
    args.output.show(&report, || table(&report))
}

/// A codec's name without its rate. Other settings make another quantizer, which is a kind of its
/// own.
fn kind(name: &str) -> &str {
    match name.split_once(':') {
        Some((kind, rate)) if rate.parse::<f64>().is_ok() => kind,
        _ => name,
    }
}

fn at_equal_kl(codecs: &[Quality]) -> Vec<AtEqualKl> {
    let Some(reference) = codecs.iter().find(|quality| quality.codec == REFERENCE) else { return Vec::new() };
    let mut kinds: Vec<&str> = Vec::new();
    for quality in codecs {
        if !kinds.contains(&kind(&quality.codec)) {
            kinds.push(kind(&quality.codec));
        }
    }
    let of_kind = |name: &&str| {
        let members: Vec<&Quality> = codecs.iter().filter(|quality| kind(&quality.codec) == *name).collect();
        let (bits, better_at) = match bits_at(&members, reference.harm.kl) {
            BitsAt::Reached(bits) => (Some(bits), None),
            BitsAt::Better(bits) => (None, Some(bits)),
            BitsAt::NotReached => (None, None),
        };
        let ratio = bits.map(|bits| 16.0 / bits);
        AtEqualKl { kind: (*name).to_owned(), kl: reference.harm.kl, bits, ratio, better_at }
    };
    kinds.iter().map(of_kind).collect()
}

fn table(report: &Report) -> String {
    let evaluation = &report.evaluation;
    let mut rows = output::table(&[
        "codec",
        "bits",
        "ratio",
        "KL ×1000",
        "perplexity",
        "loss %",
        "same token %",
        "K error",
        "V error",
    ]);
    for quality in &evaluation.codecs {
        rows.add_row([
            quality.codec.clone(),
            format!("{:.3}", quality.bits),
            format!("{:.2}", quality.ratio),
            with_error(&format!("{:.3}", 1e3 * quality.harm.kl), 1e3 * quality.harm.kl_se),
            format!("{:.3}", quality.harm.perplexity),
            with_error(&format!("{:+.3}", quality.harm.loss_percent), quality.harm.loss_percent_se),
            format!("{:.2}", 100.0 * quality.harm.greedy_agreement),
            format!("{:.1e}", quality.k_mse),
            format!("{:.1e}", quality.v_mse),
        ]);
    }
    let words = format!(
        "{}: {} windows of {} tokens, blocks of {}; {}; perplexity without a codec {}",
        report.model,
        evaluation.windows,
        evaluation.context,
        evaluation.block_tokens,
        report::raw_reads(evaluation),
        with_error(&format!("{:.3}", evaluation.perplexity), evaluation.perplexity_se)
    );
    let mut text = format!("{}\n\n{rows}", output::wrapped(&words, ""));
    if !report.papers.is_empty() {
        let mut rows = output::table(&[
            "table",
            "codec",
            "bits: paper",
            "bits: ours",
            "loss %: paper",
            "loss %: ours",
            "why they differ",
        ]);
        for one in &report.papers {
            rows.add_row([
                one.table.to_owned(),
                one.codec.to_owned(),
                format!("{:.2}", one.paper_bits),
                format!("{:.2}", one.ours.bits),
                format!("{:+.2}", one.paper_loss_percent),
                format!("{:+.2}", one.ours.harm.loss_percent),
                one.why.to_owned(),
            ]);
        }
        text += &format!("\n\n{rows}");
    }
    if let Some(first) = report.at_equal_kl.first() {
        let mut rows = output::table(&["kind", "bits", "ratio"]);
        for one in &report.at_equal_kl {
            let number = |value: f64| format!("{value:.2}");
            let (bits, ratio) = match (one.bits, one.better_at) {
                (Some(bits), _) => (number(bits), number(16.0 / bits)),
                (None, Some(bits)) => (format!("better at {bits:.2}"), String::new()),
                (None, None) => ("not reached".to_owned(), String::new()),
            };
            rows.add_row([one.kind.clone(), bits, ratio]);
        }
        text += &format!("\n\nat the divergence of {REFERENCE}, KL ×1000 = {:.3}\n\n{rows}", 1e3 * first.kl);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_one_quantizer_are_a_kind_and_other_settings_are_not() {
        let kinds = ["qpack:0.5", "kivi:4", "raw", "oaken", "oaken:10/90:5", "group:4:32", "int8+delta"].map(kind);
        assert_eq!(kinds, ["qpack", "kivi", "raw", "oaken", "oaken:10/90:5", "group:4:32", "int8+delta"]);
    }
}
