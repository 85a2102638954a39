//! `cenote-lab study sparse`.

use crate::args::StudySparseArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::{engine, profile};
use cenote_policy::choice::ChoiceKind;
use cenote_policy::choice::lstm::FEATURES;
use cenote_quality::sparse::{ChoiceRecords, SparseEvaluation, SparseSettings, evaluate_sparse};
use cenote_quality::text::Windows;
use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct Report {
    model: String,
    #[serde(flatten)]
    evaluation: SparseEvaluation,
}

pub fn run(args: &StudySparseArgs) -> Result<(), Failure> {
    let model = engine::load_to_study(&args.model)?;
    let mut text = Windows::new(profile::open(&args.text)?, model.tokenizer(), args.context);
    let mut windows = text.take_some(args.skip + args.windows)?;
    let windows = windows.split_off(args.skip.min(windows.len()));
    if windows.is_empty() {
        return Err(Failure::new(format!("{}: nothing is left behind {} windows", args.text.display(), args.skip)));
    }
    let decoded = windows.len() * args.context.saturating_sub(args.prompt) * args.pages.len();
    let progress = output::progress("decoding tokens", decoded as u64);
    let settings = SparseSettings {
        block_tokens: args.block_tokens,
        prompt: args.prompt,
        pages: &args.pages,
        predictors: &ChoiceKind::ALL,
    };
    let record = args.record.is_some();
    let (evaluation, records) =
        evaluate_sparse(&model, &windows, &settings, record, &mut |steps| progress.inc(steps as u64))?;
    progress.finish_and_clear();
    if let (Some(path), Some(records)) = (&args.record, records) {
        write(path, &records)?;
    }
    let report = Report { model: model.name().to_owned(), evaluation };
    args.output.show(&report, || table(&report))
}

fn write(path: &Path, records: &ChoiceRecords) -> Result<(), Failure> {
    let failed = |fact: String| Failure::new(format!("{}: cannot write it: {fact}", path.display()));
    let bytes: Vec<u8> = records.features.iter().flat_map(|value| value.to_le_bytes()).collect();
    let sequences = records.chosen.len() / records.steps.max(1);
    let view = |dtype, shape: Vec<usize>, bytes| {
        TensorView::new(dtype, shape, bytes).map_err(|error| failed(error.to_string()))
    };
    let features = view(Dtype::F32, vec![sequences, records.steps, FEATURES], &bytes)?;
    let chosen = view(Dtype::U8, vec![sequences, records.steps], &records.chosen)?;
    safetensors::serialize_to_file([("features", features), ("chosen", chosen)], None, path)
        .map_err(|error| failed(error.to_string()))
}

fn table(report: &Report) -> String {
    let evaluation = &report.evaluation;
    let mut rows =
        output::table(&["pages", "of the context", "KL ×1000", "perplexity", "loss %", "same token %"]).keys(1);
    let mut predictors = output::table(&["pages", "predictor", "hit rate", "of new pages", "precision"]).keys(2);
    for row in &evaluation.rows {
        rows.add_row([
            row.pages.to_string(),
            format!("{:.1} %", 100.0 * row.share),
            format!("{:.3} ± {:.3}", 1e3 * row.harm.kl, 1e3 * row.harm.kl_se),
            format!("{:.3}", row.harm.perplexity),
            format!("{:+.3} ± {:.3}", row.harm.loss_percent, row.harm.loss_percent_se),
            format!("{:.2}", 100.0 * row.harm.greedy_agreement),
        ]);
        for predicted in &row.predictors {
            predictors.add_row([
                row.pages.to_string(),
                predicted.predictor.clone(),
                format!("{:.1} %", 100.0 * predicted.hit_rate),
                format!("{:.1} %", 100.0 * predicted.new_hit_rate),
                format!("{:.1} %", 100.0 * predicted.precision),
            ]);
        }
    }
    let words = format!(
        "{}: {} windows of {} tokens, the last {} decoded; pages of {}; perplexity with all pages {:.3} ± {:.3}",
        report.model,
        evaluation.windows,
        evaluation.context,
        evaluation.context - evaluation.prompt,
        evaluation.block_tokens,
        evaluation.perplexity,
        evaluation.perplexity_se
    );
    format!("{}\n\n{rows}\n\n{predictors}", output::wrapped(&words, ""))
}
