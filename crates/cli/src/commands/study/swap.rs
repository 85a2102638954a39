//! `cenote study swap`.

use crate::args::StudySwapArgs;
use crate::failure::Failure;
use crate::output;
use cenote_study::plot::{self, Axis, Scale, Series};
use cenote_study::swap::{Accuracy, SwapStudy, steps, swap_study};

pub fn run(args: &StudySwapArgs) -> Result<(), Failure> {
    let bar = output::progress("learning", steps(args.repeats));
    let study = swap_study(args.repeats, &mut || bar.inc(1));
    bar.finish_and_clear();
    if let Some(path) = &args.html {
        super::write(path, &html(&study))?;
    }
    args.output.show(&study, || table(&study))
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
        "{} traces of 400 prompts, {:.0} swap-ins each ({:.0} swaps both ways). The head of the scheduler's swapped queue is the \
         next one in {:.1} % of all.",
        study.traces,
        study.swap_ins,
        study.accesses,
        100.0 * study.queue_head
    )
}

fn table(study: &SwapStudy) -> String {
    let mut rows = output::list(&HEADER);
    for row in &study.rows {
        rows.add_row(cells(row));
    }
    format!("{}\n{rows}\n{}", summary(study), findings(study))
}

/// What of the paper holds, from the figures themselves.
fn findings(study: &SwapStudy) -> String {
    let best = |name: &str, of: fn(&Accuracy) -> f64| {
        let rows = study.rows.iter().filter(|row| row.predictor.starts_with(name));
        rows.map(of).fold(0.0, f64::max)
    };
    let exact: fn(&Accuracy) -> f64 = |row| row.exact;
    let near: fn(&Accuracy) -> f64 = |row| row.near;
    let verdict = |holds: bool| if holds { "holds" } else { "does not hold here" };
    let (mlp, lstm) = (best("perceptron, regression", near), best("LSTM", near));
    let (regression, classes) = (best("perceptron, regression", exact), best("perceptron, classes", exact));
    format!(
        "A perceptron regresses better than an LSTM: {} ({:.1} % within 2 against {:.1} %).\n\
         Regression is mostly within 2: {} ({:.1} %).\n\
         Classes do better than regression: {} ({:.1} % right against {:.1} %).\n\
         Swap-ins are the scheduler's own choice, so nothing need be learned: {} ({:.1} %).",
        verdict(mlp > lstm),
        100.0 * mlp,
        100.0 * lstm,
        verdict(mlp > 0.5),
        100.0 * mlp,
        verdict(classes > regression),
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
    plot::page("cenote study swap", &body)
}
