//! `cenote engram load`: a model's tables into a region.

use crate::args::EngramLoadArgs;
use cenote_base::Clock;
use cenote_base::units::ByteSize;
use cenote_console::failure::Failure;
use cenote_console::output::{self, table};
use cenote_tables::checkpoint::{model_tables, tensor_table};
use cenote_tables::safetensors::TensorRows;
use cenote_tables::{LoadOptions, Outcome, Progress, RowSource, TableError, default_name, load};
use serde::Serialize;
use std::time::Instant;

const MIB: u64 = 1 << 20;

#[derive(Serialize)]
struct Report {
    table: String,
    /// "loaded" or "found".
    outcome: &'static str,
    format: String,
    rows: u64,
    bytes: u64,
    /// Bytes that an earlier load had written.
    resumed_bytes: u64,
    digest: String,
    seconds: f64,
}

pub fn run(args: &EngramLoadArgs) -> Result<(), Failure> {
    let sources = sources(args)?;
    let pool = args.region.attach("engram load")?;
    let mut reports = Vec::new();
    for (name, source) in &sources {
        let started = Instant::now();
        let bar = output::progress("loading", source.facts().bytes().div_ceil(MIB));
        let show = |progress: Progress| {
            bar.set_message(if progress.waiting { "waiting for another loader" } else { "loading" });
            bar.set_position(progress.bytes / MIB);
        };
        let options = LoadOptions { progress: &show, ..LoadOptions::waiting(Clock::system().after(args.wait)) };
        let outcome = load(&pool, name, source, &options).map_err(explain)?;
        bar.finish_and_clear();
        let facts = source.facts();
        let (word, resumed_bytes, digest) = match outcome {
            Outcome::Loaded { resumed_bytes, digest } => ("loaded", resumed_bytes, digest),
            Outcome::Found { digest } => ("found", 0, digest),
        };
        reports.push(Report {
            table: name.clone(),
            outcome: word,
            format: facts.format.clone(),
            rows: facts.rows,
            bytes: facts.bytes(),
            resumed_bytes,
            digest,
            seconds: started.elapsed().as_secs_f64(),
        });
    }
    args.output.show(&reports, || {
        let mut shown = table(&["table", "", "format", "rows", "bytes", "resumed", "seconds", "digest"]);
        for report in &reports {
            shown.add_row([
                report.table.clone(),
                report.outcome.to_owned(),
                report.format.clone(),
                report.rows.to_string(),
                ByteSize(report.bytes).to_string(),
                ByteSize(report.resumed_bytes).to_string(),
                format!("{:.2}", report.seconds),
                report.digest[..16].to_owned(),
            ]);
        }
        shown.to_string()
    })
}

/// The tables to load, and their names.
fn sources(args: &EngramLoadArgs) -> Result<Vec<(String, TensorRows)>, Failure> {
    if let (Some(file), Some(tensor), Some(name)) = (&args.weights, &args.tensor, &args.table) {
        let rows = tensor_table(file, tensor, args.scales.as_deref(), args.scale).map_err(explain)?;
        return Ok(vec![(name.clone(), rows)]);
    }
    let Some(folder) = &args.model else {
        return Err(Failure::new("no table is named").hint("give --model, or --weights with --tensor and --table"));
    };
    let mut tables = model_tables(folder).map_err(explain)?;
    if let Some(layer) = args.layers.iter().find(|&&layer| tables.iter().all(|table| table.layer != layer)) {
        let has: Vec<String> = tables.iter().map(|table| table.layer.to_string()).collect();
        return Err(Failure::new(format!("layer {layer} has no table; the model's tables: layers {}", has.join(", "))));
    }
    tables.retain(|table| args.layers.is_empty() || args.layers.contains(&table.layer));
    let base = args.table.clone().unwrap_or_else(|| default_name(folder));
    Ok(tables.into_iter().map(|table| (format!("{base}.L{}", table.layer), table.rows)).collect())
}

/// An error with the next step.
pub fn explain(error: TableError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        TableError::Different { name, .. } => failure.hint(format!("cenote engram drop --region … {name}")),
        TableError::Busy { .. } => failure.hint("--wait gives a longer time"),
        _ => failure,
    }
}
