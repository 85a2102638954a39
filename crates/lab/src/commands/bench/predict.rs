//! `cenote-lab bench predict`: what a guess at the next tokens costs, how often it is right, and what
//! it gains where token ids decide addresses (CXL-SpecKV §3.4.1).
//!
//! Latencies need the demo model's predictor only. Accuracy and rows fetched early need a text, whose
//! last 5 % no predictor has seen.

mod accuracy;
mod early;
mod latency;
mod texts;

use super::rows::{Row, rows_table};
use crate::args::BenchPredictArgs;
use accuracy::Accuracy;
use cenote_console::engine::named_dir;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_predict::{History, Level, Lstm, Mixed, Network, Ngram, Suffix, TokenPredictor, Weights};
use early::{Early, Hidden};
use serde::Serialize;
use std::path::Path;
use texts::Texts;

/// Tokens of the longest n-gram.
const ORDER: usize = 4;
/// The file of the LSTM's weights, in the model's directory.
const WEIGHTS: &str = "token_predictor.weights";

#[derive(Serialize)]
struct Report {
    quick: bool,
    /// Instruction set of the LSTM's products.
    kernel: &'static str,
    /// Weights and biases of the LSTM.
    parameters: usize,
    /// Why there is no accuracy, if there is none.
    skipped: Option<String>,
    rows: Vec<Row>,
    accuracy: Vec<Accuracy>,
    early: Vec<Early>,
    hidden: Vec<Hidden>,
}

fn read_network(dir: &Path) -> Result<(Network, usize), Failure> {
    let path = dir.join(WEIGHTS);
    let fail = |fact: String| {
        Failure::new(format!("{}: {fact}", path.display())).hint("`cenote-train token-predictor` writes the file")
    };
    let bytes = input::bytes(&path).map_err(fail)?;
    let weights = Weights::from_bytes(&bytes).map_err(|error| fail(error.to_string()))?;
    Ok((Network::new(&weights), weights.parameters()))
}

/// Something that predicts, by its name in tables.
type Named<'a> = (&'static str, Box<dyn TokenPredictor + 'a>);

/// All predictors. Those that count have read the part of the text that is not held out.
fn predictors<'a>(network: &'a Network, texts: &Texts) -> Vec<Named<'a>> {
    let vocabulary = network.vocabulary();
    let ngram = |text: &[u32]| {
        let mut ngram = Ngram::new(vocabulary, ORDER);
        ngram.learn(text);
        ngram
    };
    let suffix = |text: &[u32]| Suffix::with_corpus(vocabulary, text.iter().copied().collect());
    let lstm = || Lstm::new(network, History::Request);
    // The weights of the mixture are learned where the counting predictor has not read.
    let (read, unread) = texts.known.split_at(texts.known.len() - texts.known.len() / 20);
    let mut learner = Mixed::new(suffix(read), lstm());
    learner.learn_weights(unread);
    let mixed = learner.with(suffix(&texts.known), lstm());
    vec![
        ("n-gram", Box::new(ngram(&texts.known))),
        ("suffix, request", Box::new(Suffix::new(vocabulary))),
        ("suffix", Box::new(suffix(&texts.known))),
        ("lstm, last 16", Box::new(Lstm::new(network, History::Last(16)))),
        ("lstm", Box::new(lstm())),
        ("suffix and lstm", Box::new(mixed)),
    ]
}

/// The times of the demo model's predictor, for `bench engram`.
pub fn latencies(setting: &super::Setting) -> Result<Vec<Row>, Failure> {
    let (network, _) = read_network(&named_dir(None)?)?;
    Ok(latency::rows(&network, setting.quick))
}

pub fn run(args: &BenchPredictArgs) -> Result<(), Failure> {
    let dir = named_dir(args.model.as_ref())?;
    let (network, parameters) = read_network(&dir)?;
    let progress = output::progress("measuring", 8);
    let mut rows = latency::rows(&network, args.quick);
    progress.inc(1);
    let (texts, skipped) = match Texts::read(&dir, args.text.as_deref(), args.quick)? {
        texts::Found::Texts(texts) => (Some(texts), None),
        texts::Found::Missing(why) => (None, Some(why)),
    };
    let (mut accuracy, mut early, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
    if let Some(texts) = &texts {
        if network.vocabulary() != texts.vocabulary {
            return Err(Failure::new("the predictor's weights and the tokenizer have different vocabularies"));
        }
        let addresses = early::addresses(&dir)?;
        for (name, mut predictor) in predictors(&network, texts) {
            let walked = accuracy::walk(name, predictor.as_mut(), texts, &addresses)?;
            rows.push(walked.row);
            accuracy.extend(walked.accuracy);
            early.extend(walked.early);
            progress.inc(1);
        }
        hidden = early::hidden(&early)?;
    }
    progress.finish_and_clear();
    if let Some(why) = &skipped {
        output::say(&format!("skipped: accuracy and rows fetched early: {why}"));
    }
    let kernel = Level::current().name();
    let rows = rows.into_iter().map(|row| Row { bench: "predict", ..row }).collect();
    let report = Report { quick: args.quick, kernel, parameters, skipped, rows, accuracy, early, hidden };
    args.output.show(&report, || {
        let mut parts = vec![rows_table(&report.rows)];
        if texts.is_some() {
            parts.extend([accuracy::table(&report.accuracy), early::table(&report.early)]);
            parts.push(early::hidden_table(&report.hidden));
        }
        parts.join("\n")
    })
}
