//! `cenote-lab study watermark`.

use crate::args::StudyWatermarkArgs;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_lab::plot::{self, Axis, Scale, Series};
use cenote_lab::watermark::{
    CPEN_MODELS, Case, Compared, Curve, FACTORS, Figures, Open, Overall, Point, compare, controllers, figures,
    held_out_cases, overall, thresholds, train, training_cases, weights_source,
};
use cenote_serving_sim::workload::{MOONCAKE_BLOCK_TOKENS, Read, TraceError, read_azure, read_mooncake};
use serde::Serialize;
use std::fmt::Write;
use std::io::BufReader;
use std::path::Path;

/// Overload of one engine by public traces: requests, factor on their speed, and its blocks.
const MOONCAKE: (usize, f64, u32) = (500, 0.5, 12_000);
const AZURE: (usize, f64, u32) = (1_500, 1.0, 2_500);

#[derive(Serialize)]
struct Report {
    rows: Vec<Compared>,
    trained: Vec<Overall>,
    held_out: Vec<Overall>,
    figures: Option<Figures>,
}

pub fn run(args: &StudyWatermarkArgs) -> Result<(), Failure> {
    if let Some(path) = &args.train {
        return trained(args, path);
    }
    if args.real {
        return super::watermark_real::run(args);
    }
    let mut cases = training_cases();
    cases.extend(held_out_cases());
    if let Some(path) = &args.azure {
        let (requests, speed, blocks) = AZURE;
        cases.push(Case::trace("azure", read(path, read_azure)?.workload, requests, speed, blocks));
    }
    if let Some(path) = &args.mooncake {
        let (requests, speed, blocks) = MOONCAKE;
        cases.push(Case::trace("mooncake", read(path, read_mooncake)?.workload, requests, speed, blocks));
    }
    let controllers = controllers();
    let bar = output::progress("comparing", (cases.len() * controllers.len()) as u64);
    let rows = compare(&cases, &controllers, &mut || bar.inc(1));
    bar.finish_and_clear();
    let figures = (args.repeats > 0).then(|| {
        let points = CPEN_MODELS.len() * (FACTORS.count() + 2 * thresholds().count());
        let bar = output::progress("drawing figures", points as u64);
        let figures = figures(&Open::assumed(args.repeats), &mut || bar.inc(1));
        bar.finish_and_clear();
        figures
    });
    let report = Report { trained: overall(&rows, false), held_out: overall(&rows, true), rows, figures };
    if let Some(path) = &args.html {
        super::write(path, &html(&report))?;
    }
    args.output.show(&report, || table(&report))
}

fn read(
    path: &Path,
    with: fn(BufReader<std::fs::File>, u32, bool) -> Result<Read, TraceError>,
) -> Result<Read, Failure> {
    let failed = |fact: String| Failure::new(format!("{}: {fact}", path.display()));
    let file = input::open(path).map_err(failed)?;
    let read = with(BufReader::new(file), MOONCAKE_BLOCK_TOKENS, false).map_err(|error| failed(error.to_string()))?;
    if let Some(first) = read.bad.first() {
        output::say(&format!(
            "{}: {} lines are left out, the first because of {first}",
            path.display(),
            read.bad.len()
        ));
    }
    Ok(read)
}

fn trained(args: &StudyWatermarkArgs, path: &Path) -> Result<(), Failure> {
    let bar = output::progress("training", args.generations as u64);
    let training = train(&training_cases(), args.generations, args.seed, &mut |_, _| bar.inc(1));
    bar.finish_and_clear();
    super::write(path, &weights_source(&training, args.generations, args.seed))?;
    output::print(&format!("{:?}, reward {:.4}; fixed 1 % has -1", training.weights, training.reward))
}

const HEADER: [&str; 7] =
    ["load", "watermark", "blocks swapped", "× fixed 1 %", "tokens/s", "× fixed 1 %", "TTFT mean"];

fn cells(row: &Compared) -> Vec<String> {
    vec![
        format!("{}{}", if row.held_out { "* " } else { "" }, row.case),
        row.watermark.clone(),
        row.swapped_blocks.to_string(),
        format!("{:.3}", row.swapped_ratio),
        format!("{:.1}", row.throughput),
        format!("{:.4}", row.throughput_ratio),
        format!("{:.0} ms", row.ttft_mean_ms),
    ]
}

const OVERALL: [&str; 6] =
    ["watermark", "blocks swapped × fixed 1 %", "mean of loads", "worst", "throughput × fixed 1 %, worst", "mean"];

fn overall_cells(one: &Overall) -> Vec<String> {
    vec![
        one.watermark.clone(),
        format!("{:.3}", one.swapped_ratio),
        format!("{:.3}", one.swapped_mean),
        format!("{:.3}", one.swapped_worst),
        format!("{:.4}", one.throughput_worst),
        format!("{:.4}", one.throughput_mean),
    ]
}

fn table(report: &Report) -> String {
    let mut rows = output::table(&HEADER).keys(2);
    for row in &report.rows {
        rows.add_row(cells(row));
    }
    let mut text = format!("* held out: not trained on\n\n{rows}");
    for (name, summary) in [("trained on", &report.trained), ("held out", &report.held_out)] {
        let mut rows = output::table(&OVERALL);
        for one in summary {
            rows.add_row(overall_cells(one));
        }
        let _ = write!(text, "\n\nover all loads {name}\n\n{rows}");
    }
    if let Some(figures) = &report.figures {
        let mut rows =
            output::table(&["figures", "model", "blocks swapped, first to last", "steps that rise", "throughput"]);
        for (name, curves) in named(figures) {
            for curve in curves {
                let (swapped, throughput) = curve.change();
                rows.add_row([
                    name.to_owned(),
                    curve.model.clone(),
                    format!("{:+.0} %", 100.0 * swapped),
                    format!("{:.0} %", 100.0 * curve.rises()),
                    format!("{:+.1} %", 100.0 * throughput),
                ]);
            }
        }
        let _ = write!(text, "\n\n{rows}\n\n{}", output::wrapped(&findings(figures), ""));
    }
    text
}

fn named(figures: &Figures) -> [(&'static str, &[Curve]); 3] {
    [
        ("5 to 7: factor a", &figures.factor),
        ("8 to 10, stop above", &figures.stop_above),
        ("8 to 10, stop below", &figures.stop_below),
    ]
}

/// The paper's claims that hold, by the figures themselves.
fn findings(figures: &Figures) -> String {
    let all = |curves: &[Curve], holds: fn(&Curve) -> bool| {
        let count = curves.iter().filter(|curve| holds(curve)).count();
        format!("{count} of {} models", curves.len())
    };
    format!(
        "Fewer blocks are swapped with a larger factor (Figures 5, 6): {}.\n\
         Throughput changes by less than 3 % from first to last (Figure 7, \"not significant\"): {}.\n\
         Fewer blocks are swapped with a larger threshold (Figures 8, 9), if admission stops above it, as printed: {}; if it stops \
         below it: {}.\n\
         Throughput falls with the threshold (Figure 10), if admission stops above it: {}; below it: {}.",
        all(&figures.factor, |curve| curve.change().0 < -0.2),
        all(&figures.factor, |curve| curve.change().1.abs() < 0.03),
        all(&figures.stop_above, |curve| curve.change().0 < -0.2),
        all(&figures.stop_below, |curve| curve.change().0 < -0.2),
        all(&figures.stop_above, |curve| curve.change().1 < -0.03),
        all(&figures.stop_below, |curve| curve.change().1 < -0.03),
    )
}

/// A figure's value of a point.
type Measure = fn(&Point) -> f64;

fn html(report: &Report) -> String {
    let mut body = String::from("<h1>Watermarks</h1>\n");
    for (name, summary) in [("trained on", &report.trained), ("held out", &report.held_out)] {
        let _ = write!(
            body,
            "<h2>Over all loads {name}</h2>\n{}",
            plot::table(&OVERALL, summary.iter().map(overall_cells))
        );
    }
    if let Some(figures) = &report.figures {
        let what: [(&str, Measure); 3] = [
            ("blocks swapped", |point| point.swapped_blocks),
            ("swaps", |point| point.swaps),
            ("generated tokens a second", |point| point.throughput),
        ];
        for (name, curves) in named(figures) {
            for (label, of) in what {
                let series: Vec<Series> = curves.iter().map(|curve| series(curve, of)).collect();
                let title = format!("Figures {name}: {label}");
                let x_axis = Axis { label: "factor, or threshold in blocks", scale: Scale::Linear };
                let _ = writeln!(body, "<h2>{}</h2>", plot::escaped(&title));
                body += &plot::plot(&title, x_axis, Axis { label, scale: Scale::Linear }, &series);
            }
        }
        for line in findings(figures).lines() {
            let _ = writeln!(body, "<p>{}</p>", plot::escaped(line));
        }
    }
    body += "<h2>Every load</h2>\n<p>* held out: not trained on</p>\n";
    body += &plot::table(&HEADER, report.rows.iter().map(cells));
    plot::page("cenote-lab study watermark", &body)
}

fn series(curve: &Curve, of: Measure) -> Series {
    let point = |point: &Point| (point.x, of(point), format!("{}, {}: {:.1}", curve.model, point.x, of(point)));
    Series { name: curve.model.clone(), points: curve.points.iter().map(point).collect() }
}
