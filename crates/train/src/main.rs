//! Trains Cenote's demo model: a small Llama with real, trained attention. Its KV cache therefore
//! has the statistics that codecs and predictors need. Also trains two predictors: of pages that
//! sparse attention chooses, and of tokens. See `models/demo/README.md` for the run that produced it.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a command line tool measures its steps")]

mod checkpoint;
mod corpus;
mod data;
mod dialogue;
mod engram;
mod error;
mod evaluate;
mod fused;
mod lanes;
mod model;
mod predictor;
mod token_predictor;
mod tokens;
mod train;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::data::{Streams, Texts};
use crate::error::{Error, Result, read_text, write_whole};
use crate::model::{Config, Model};

/// Trains Cenote's demo model
#[derive(Parser)]
#[command(version)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Gather freely licensed documentation text from the unpacked sources of the crates in a
    /// Cargo.lock
    Corpus(CorpusFlags),
    /// Learn a byte-level BPE tokenizer
    Tokenizer(TokenizerFlags),
    /// Train a model, and its tokenizer unless the folder has one
    Train(Box<TrainFlags>),
    /// Measure a model's loss on the held-out end of a text
    Evaluate(EvaluateFlags),
    /// Train the predictor of the pages that sparse attention chooses
    Predictor(predictor::PredictorFlags),
    /// Train the predictor of the next tokens
    TokenPredictor(token_predictor::TokenPredictorFlags),
}

#[derive(Args)]
struct CorpusFlags {
    /// The corpus file to write: one JSON document a line
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Lock file that lists the crates
    #[arg(long, value_name = "FILE", default_value = "Cargo.lock")]
    manifest: PathBuf,
    /// Folder of unpacked crates; Cargo's own unless given
    #[arg(long, value_name = "FOLDER")]
    sources: Vec<PathBuf>,
    /// Bytes of text to take from one crate at most
    #[arg(long, default_value_t = 150_000)]
    crate_bytes_max: usize,
}

#[derive(Args)]
struct TextFlags {
    /// The main text; its end is held out
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// A file that `cenote-train corpus` wrote
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Share of the main text that is held out
    #[arg(long, default_value_t = 0.05)]
    held_out: f64,
}

impl TextFlags {
    fn read(&self, seed: u64) -> Result<Texts> {
        let documents = self.corpus.as_deref().map(corpus::read).transpose()?.unwrap_or_default();
        Texts::new(&read_text(&self.text)?, &documents, self.held_out, seed)
    }
}

#[derive(Args)]
struct TokenizerFlags {
    #[command(flatten)]
    texts: TextFlags,
    /// Folder to write tokenizer.json and tokenizer_config.json into
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Tokens, special ones included
    #[arg(long, default_value_t = 4096)]
    vocab: usize,
    /// Longest sequence, in tokens
    #[arg(long, default_value_t = 4096)]
    context: usize,
}

#[derive(Args)]
struct TrainFlags {
    #[command(flatten)]
    tokenizer: TokenizerFlags,
    #[command(flatten)]
    schedule: train::Schedule,
    #[command(flatten)]
    tables: engram::EngramFlags,
    /// Width of the residual stream
    #[arg(long, default_value_t = 256)]
    hidden: usize,
    /// Width of the feed-forward
    #[arg(long, default_value_t = 512)]
    intermediate: usize,
    /// Layers
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// Query heads, of width 64
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Key-value heads, of width 64
    #[arg(long, default_value_t = 2)]
    kv_heads: usize,
    /// Continue from the weights in the folder instead of random ones
    #[arg(long)]
    resume: bool,
    /// Shares of windows cut from the main text, the documentation and the conversations
    #[arg(long, value_delimiter = ',', num_args = 3, default_values_t = [0.5, 0.3, 0.2])]
    shares: Vec<f64>,
    /// Share of windows that repeat a stretch of text, which teach attention to look back
    #[arg(long, default_value_t = 0.08)]
    repeats: f64,
}

#[derive(Args)]
struct EvaluateFlags {
    /// Folder with model.safetensors, config.json and tokenizer.json
    #[arg(long, value_name = "FOLDER")]
    model: PathBuf,
    #[command(flatten)]
    texts: TextFlags,
    /// Tokens of context
    #[arg(long, default_value_t = 1024)]
    window: usize,
}

fn main() -> ExitCode {
    match run(&Command::parse().action) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(action: &Action) -> Result<()> {
    match action {
        Action::Corpus(flags) => gather(flags),
        Action::Tokenizer(flags) => {
            make_folder(&flags.out)?;
            learn_tokenizer(flags, &flags.texts.read(1)?).map(|_| ())
        }
        Action::Train(flags) => train_model(flags),
        Action::Predictor(flags) => print_json(&predictor::run(flags)?),
        Action::TokenPredictor(flags) => print_json(&token_predictor::run(flags)?),
        Action::Evaluate(flags) => {
            let model = Model::load(&flags.model)?;
            let tokenizer = tokens::load(&flags.model.join("tokenizer.json"))?;
            let held_out = tokens::encode(&tokenizer, &flags.texts.read(1)?.held_out)?;
            print_json(&evaluate::evaluate(&model, &held_out, flags.window)?)
        }
    }
}

fn gather(flags: &CorpusFlags) -> Result<()> {
    let sources = if flags.sources.is_empty() { corpus::source_folders()? } else { flags.sources.clone() };
    let documents = corpus::gather(&flags.manifest, &sources, flags.crate_bytes_max)?;
    write_whole(&flags.out, corpus::to_lines(&documents)?.as_bytes())?;
    let bytes = documents.iter().map(|document| document.text.len()).sum::<usize>();
    say(&format!("{} documents, {bytes} bytes of text in {}", documents.len(), flags.out.display()));
    Ok(())
}

fn learn_tokenizer(flags: &TokenizerFlags, texts: &Texts) -> Result<tokenizers::Tokenizer> {
    let tokenizer = tokens::train(texts.training(), flags.vocab)?;
    tokens::save(&tokenizer, &flags.out, flags.context)?;
    say(&format!("{} tokens in {}", tokenizer.get_vocab_size(true), flags.out.join("tokenizer.json").display()));
    Ok(tokenizer)
}

fn train_model(flags: &TrainFlags) -> Result<()> {
    let TokenizerFlags { texts, out, vocab: _, context } = &flags.tokenizer;
    make_folder(out)?;
    let texts = texts.read(flags.schedule.seed)?;
    let path = out.join("tokenizer.json");
    let tokenizer = if path.exists() { tokens::load(&path)? } else { learn_tokenizer(&flags.tokenizer, &texts)? };
    let shares = <[f64; 3]>::try_from(flags.shares.as_slice())
        .map_err(|_| Error::Flag(format!("--shares wants 3 numbers, not {}", flags.shares.len())))?;
    let streams = Streams::new(&texts, &tokenizer, shares, flags.repeats)?;
    let held_out = tokens::encode(&tokenizer, &texts.held_out)?;
    let model = if flags.resume {
        Model::load(out)?
    } else {
        let vocab = tokenizer.get_vocab_size(true);
        let TrainFlags { hidden, intermediate, layers, heads, kv_heads, .. } = *flags;
        let mut config = Config::new(vocab, hidden, intermediate, layers, heads, kv_heads, *context)?;
        config.engram = flags.tables.keys(&path, layers)?;
        Model::random(config, flags.schedule.seed, &path)?
    };
    let [articles, documentation, conversations] = streams.lengths()[..] else { unreachable!("three streams") };
    say(&format!(
        "{} parameters; tokens: {articles} main text, {documentation} documentation, {conversations} conversations, \
         {} held out",
        model.parameter_count(),
        held_out.len(),
    ));
    print_json(&train::run(&model, &streams, &held_out, &flags.schedule, out)?)
}

fn make_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(Error::io(path))
}

/// Prints the program's result to standard output, as JSON.
#[allow(clippy::print_stdout)]
fn print_json(value: &impl serde::Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value).map_err(|error| Error::Flag(error.to_string()))?);
    Ok(())
}

/// Prints a message for the user to standard error.
#[allow(clippy::print_stderr)]
fn say(words: &str) {
    eprintln!("{words}");
}
