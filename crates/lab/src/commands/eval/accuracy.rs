//! Tasks under codecs, over several seeds (`--task`).

use super::subjects;
use crate::args::EvalArgs;
use cenote_base::TokenId;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::{output, profile};
use cenote_engine::LoadedModel;
use cenote_lab::accuracy::{Score, Settings, Source, Table, Task, draw_choices, measure};
use cenote_quality::evaluate::longest_context;
use cenote_quality::text::Windows;
use cenote_quality::{Subject, choice};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// Default codecs.
const CODECS: [&str; 11] = [
    "int8",
    "oaken",
    "oaken-sign",
    "qpack:0.5",
    "qpackz:0.5",
    "kivi:4",
    "kvquant:4",
    "tender:4",
    "atom:4",
    "qserve:4",
    "kivi:2",
];
/// Bytes of the text from which tasks are drawn.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Lengths of contexts for `retrieval`.
const LENGTHS: [usize; 2] = [256, 1024];

#[derive(Serialize)]
struct Report {
    model: String,
    /// The file of the text.
    text: String,
    block_tokens: usize,
    tasks: Vec<Table>,
}

pub fn run(args: &EvalArgs, model: &LoadedModel) -> Result<(), Failure> {
    if args.papers || args.html.is_some() || args.by_token {
        return Err(Failure::new("--papers, --html and --by-token do not go with --task"));
    }
    let text = read(&args.text)?;
    let tasks: Vec<Vec<Task>> = args.task.iter().map(|name| tasks(name, args, model)).collect::<Result<_, _>>()?;
    let tasks = tasks.concat();
    if let Some(path) = &args.items_out {
        write_items(path, &text, args)?;
    }
    let names: Vec<&str> = match args.codec.as_slice() {
        [] => CODECS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let profile = match (&args.profile, args.profile_text.first()) {
        (Some(path), _) => Some(profile::read(path, model)?),
        (None, Some(other)) => {
            let with_bases = names.iter().any(|name| subjects::needs_bases(name));
            Some(profile::make(model, other, super::PROFILE_PROMPTS, args.context, with_bases)?)
        }
        (None, None) => None,
    };
    if let (None, Some(name)) = (&profile, names.iter().find(|name| subjects::needs_profile(name))) {
        return Err(Failure::new(format!("`{name}` needs a profile of the model"))
            .hint("--profile names one, --profile-text makes one from another text"));
    }
    let subjects = subjects::of_names(&names, model, profile.map(Arc::new).as_ref())?;
    let borrowed: Vec<&dyn Subject> = subjects.iter().map(|subject| &**subject).collect();
    let windows: Vec<Vec<TokenId>> =
        Windows::new(text.as_bytes(), model.tokenizer(), args.context).collect::<Result<_, _>>()?;
    let source = Source { text: &text, windows: &windows };
    let settings = Settings {
        seeds: args.seeds,
        windows: args.windows,
        context: args.context,
        block_tokens: args.block_tokens,
        items: args.items,
    };
    let steps = tasks.len() as u64 * args.seeds * (borrowed.len() + 1) as u64;
    let progress = output::progress("computing tasks", steps);
    let tables: Vec<Table> = tasks
        .iter()
        .map(|task| measure(model, task, &source, settings, &borrowed, &mut || progress.inc(1)))
        .collect::<Result<_, _>>()?;
    progress.finish_and_clear();
    let report = Report {
        model: model.name().to_owned(),
        text: args.text.display().to_string(),
        block_tokens: args.block_tokens,
        tasks: tables,
    };
    args.output.show(&report, || shown(&report))
}

/// The beginning of a text, as whole characters.
fn read(path: &Path) -> Result<String, Failure> {
    let mut text = input::text(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    Ok(text)
}

/// The tasks that a name stands for.
fn tasks(name: &str, args: &EvalArgs, model: &LoadedModel) -> Result<Vec<Task>, Failure> {
    Ok(match name {
        "perplexity" => vec![Task::Perplexity],
        "choices" => vec![Task::Choices],
        "bleu" => vec![Task::Bleu],
        "retrieval" => {
            let most = longest_context(model);
            let lengths = if args.lengths.is_empty() { &LENGTHS[..] } else { &args.lengths };
            if let Some(length) = lengths.iter().find(|length| **length > most) {
                return Err(Failure::new(format!("--lengths {length}: the model's context has {most} tokens")));
            }
            lengths.iter().map(|length| Task::Retrieval(*length)).collect()
        }
        file => {
            let path = Path::new(file);
            let failed = |fact: String| {
                Failure::new(format!("{file}: {fact}"))
                    .hint("--task takes perplexity, choices, retrieval, bleu, or a file with a JSON object per line")
            };
            let text = input::text(path).map_err(failed)?;
            let items = choice::parse(&text).map_err(|error| failed(error.to_string()))?;
            let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
            vec![Task::Items { name, items }]
        }
    })
}

/// Writes the items of `choices`, of all seeds.
fn write_items(path: &Path, text: &str, args: &EvalArgs) -> Result<(), Failure> {
    let mut lines = String::new();
    for seed in 1..=args.seeds {
        for item in draw_choices(text, args.items, seed)? {
            lines += &item.to_line();
            lines.push('\n');
        }
    }
    std::fs::write(path, lines).map_err(|error| Failure::new(format!("{}: cannot write it: {error}", path.display())))
}

fn shown(report: &Report) -> String {
    let tables: Vec<String> = report.tasks.iter().map(table).collect();
    let words = format!(
        "{} on {}, blocks of {}; means over seeds ± half of an interval of 95 % confidence, for draws from this text \
         or file; in brackets the difference from the run without a codec",
        report.model, report.text, report.block_tokens
    );
    // CXL-SpecKV §4.1.4; Oaken §6.2 measures WikiText-2 itself.
    let stands = "CXL-SpecKV measures perplexity on WikiText-103; where the text is WikiText-2, it stands for it";
    format!("{}\n{}\n\n{}", output::wrapped(&words, ""), output::wrapped(stands, ""), tables.join("\n\n"))
}

fn table(table: &Table) -> String {
    let names = table.rows.first().map_or(&[][..], |row| &row.scores[..]).iter().map(|score| score.name.as_str());
    let header: Vec<&str> = ["codec", "bits"].into_iter().chain(names).collect();
    let mut rows = output::table(&header);
    for (index, row) in table.rows.iter().enumerate() {
        let bits = row.bits.map_or_else(String::new, |bits| format!("{bits:.2}"));
        let scores = row.scores.iter().map(|score| cell(score, index > 0));
        rows.add_row([row.codec.clone(), bits].into_iter().chain(scores).collect::<Vec<_>>());
    }
    format!("{}: {}\n\n{rows}", table.task, table.about)
}

fn cell(score: &Score, has_difference: bool) -> String {
    if score.mean.mean.is_nan() {
        return "—".to_owned();
    }
    // Scores at one depth are of few items.
    if score.name.contains(" at ") {
        return format!("{:.0}", score.mean.mean);
    }
    let mean = format!("{:.2} ± {:.2}", score.mean.mean, score.mean.half);
    match has_difference && !score.name.starts_with("loss") && !score.name.starts_with("KL") {
        true => format!("{mean} ({:+.2} ± {:.2})", score.difference.mean, score.difference.half),
        false => mean,
    }
}
