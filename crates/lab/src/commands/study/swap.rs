//! `cenote-lab study swap`.

use super::real::Cpen;
use crate::args::StudySwapArgs;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_lab::plot::{self, Axis, Scale, Series};
use cenote_lab::swap::{Accuracy, Sizes, SwapStudy, read_trace, sized_study, steps, study_traces, swaps_of};
use cenote_policy::Watermark;
use cenote_serving_sim::serving::Swap;
use std::path::PathBuf;

pub fn run(args: &StudySwapArgs) -> Result<(), Failure> {
    let traces = if args.real { Some(recorded(args.repeats)?) } else { read(&args.trace)? };
    let count = traces.as_ref().map_or(args.repeats, |traces| traces.len() as u64);
    let bar = output::progress("learning", steps(count));
    let sizes = Sizes {
        regression: args.hidden.map_or(Sizes::SMALL.regression, usize::from),
        classes: args.hidden.map_or(Sizes::SMALL.classes, usize::from),
        lstm: args.lstm_hidden.map_or(Sizes::SMALL.lstm, usize::from),
    };
    let study = match &traces {
        Some(traces) => study_traces(traces, sizes, &mut || bar.inc(1)),
        None => sized_study(1, args.repeats, sizes, &mut || bar.inc(1)),
    };
    bar.finish_and_clear();
    if let Some(path) = &args.html {
        super::write(path, &html(&study))?;
    }
    args.output.show(&study, || table(&study))
}

/// The engine's swaps under CPEN 511's load, once per seed.
fn recorded(repeats: u64) -> Result<Vec<Vec<Swap>>, Failure> {
    let cpen = Cpen::new()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut traces = Vec::new();
        for seed in 1..=repeats {
            traces.push(swaps_of(&cpen.run(&Watermark::DEFAULT, seed).await?.swaps));
        }
        Ok(traces)
    })
}

/// Traces from files, if any are named.
fn read(files: &[PathBuf]) -> Result<Option<Vec<Vec<Swap>>>, Failure> {
    let one = |path: &PathBuf| {
        let failed = |fact: String| Failure::new(format!("{}: {fact}", path.display()));
        let text = input::text(path).map_err(failed)?;
        let records = read_trace(&text).map_err(|(line, error)| failed(format!("line {line}: {error}")))?;
        Ok(swaps_of(&records))
    };
    if files.is_empty() { Ok(None) } else { files.iter().map(one).collect::<Result<_, _>>().map(Some) }
}

const HEADER: [&str; 4] = ["predictor", "window", "right", "within 2"];

fn cells(row: &Accuracy) -> Vec<String> {
    vec![
        row.predictor.to_owned(),
        row.window.to_string(),
        format!("{:.1} %", 100.0 * row.exact),
        format!("{:.1} %", 100.0 * row.near),
    ]
}

fn summary(study: &SwapStudy) -> String {
    format!(
        "{} traces, {:.0} swap-ins each ({:.0} swaps both ways). The head of the scheduler's swapped queue is the \
         next one in {:.1} % of all.",
        study.traces,
        study.swap_ins,
        study.accesses,
        100.0 * study.queue_head
    )
}

fn table(study: &SwapStudy) -> String {
    let mut rows = output::table(&HEADER);
    for row in &study.rows {
        rows.add_row(cells(row));
    }
    format!("{}\n\n{rows}\n\n{}", output::wrapped(&summary(study), ""), output::wrapped(&findings(study), ""))
}

/// The paper's claims that hold, by the figures themselves.
fn findings(study: &SwapStudy) -> String {
    let best = |name: &str, of: fn(&Accuracy) -> f64| {
        let rows = study.rows.iter().filter(|row| row.predictor.starts_with(name));
        rows.map(of).fold(0.0, f64::max)
    };
    let exact: fn(&Accuracy) -> f64 = |row| row.exact;
    let near: fn(&Accuracy) -> f64 = |row| row.near;
    let verdict = |holds: bool| if holds { "holds" } else { "does not hold here" };
    // The last fifth of each trace is asked.
    let asked = (study.traces as f64 * study.swap_ins / 5.0).max(1.0);
    let compared = |more: f64, less: f64| {
        let variance = (more * (1.0 - more) + less * (1.0 - less)) / asked;
        if (more - less).abs() < 2.0 * variance.sqrt() { "equal within the error" } else { verdict(more > less) }
    };
    let (mlp, lstm) = (best("perceptron, regression", near), best("LSTM", near));
    let (regression, classes) = (best("perceptron, regression", exact), best("perceptron, classes", exact));
    format!(
        "A perceptron regresses better than an LSTM: {} ({:.1} % within 2 against {:.1} %).\n\
         Regression is mostly within 2: {} ({:.1} %).\n\
         Classes do better than regression: {} ({:.1} % right against {:.1} %).\n\
         Swap-ins are the scheduler's own choice, so nothing need be learned: {} ({:.1} %).",
        compared(mlp, lstm),
        100.0 * mlp,
        100.0 * lstm,
        verdict(mlp > 0.5),
        100.0 * mlp,
        compared(classes, regression),
        100.0 * classes,
        100.0 * regression,
        verdict(study.queue_head > 0.999),
        100.0 * study.queue_head
    )
}

fn html(study: &SwapStudy) -> String {
    let mut body = format!("<h1>Swap-ins foreseen</h1>\n<p>{}</p>\n", plot::escaped(&summary(study)));
    for (title, of) in [
        ("Figure 3: within two of the right number, %", (|row| row.near) as fn(&Accuracy) -> f64),
        ("Figure 4: the right number, %", |row| row.exact),
    ] {
        let mut names: Vec<&str> = study.rows.iter().map(|row| row.predictor).collect();
        names.dedup();
        let point = |row: &Accuracy| {
            let value = 100.0 * of(row);
            (row.window as f64, value, format!("{}, window {}: {value:.1} %", row.predictor, row.window))
        };
        let series: Vec<Series> = (names.iter())
            .map(|name| Series {
                name: (*name).to_owned(),
                points: study.rows.iter().filter(|row| row.predictor == *name).map(point).collect(),
            })
            .collect();
        let x_axis = Axis { label: "window, swap-ins", scale: Scale::Linear };
        body += &format!("<h2>{title}</h2>\n");
        body += &plot::plot(title, x_axis, Axis { label: title, scale: Scale::Linear }, &series);
    }
    body += &plot::table(&HEADER, study.rows.iter().map(cells));
    for line in findings(study).lines() {
        body += &format!("<p>{}</p>\n", plot::escaped(line));
    }
    plot::page("cenote-lab study swap", &body)
}
