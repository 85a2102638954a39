//! Accuracy of a model under codecs, on tasks that are drawn anew for each seed.
//!
//! Each task runs without a codec first. Then each codec reads the same windows, items, facts and
//! prompts. A table has a mean over seeds with its interval of 95 % confidence. The difference from
//! the run without a codec has an interval of its own, seed by seed. Seeds share no window, prompt or
//! item of a file: the same ones drawn twice would narrow the interval for nothing. Choices and facts
//! are drawn from the text at random places, which may overlap.

use cenote_base::TokenId;
use cenote_base::prng::Prng;
use cenote_engine::LoadedModel;
use cenote_quality::bleu::bleu;
use cenote_quality::choice::{self, Drawn, Item};
use cenote_quality::evaluate::{evaluate, raw_reads};
use cenote_quality::interval::Interval;
use cenote_quality::past::{OpenBlock, Reader, Size};
use cenote_quality::retrieval::{Fact, Haystack, ask};
use cenote_quality::{StudyError, Subject};
use serde::Serialize;
use std::collections::BTreeSet;

/// Items that are made from a text.
const DRAWN: Drawn = Drawn { context: 64, choice: 24, choices: 4 };
/// Depths of facts.
const DEPTHS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
/// Numbers among which the right one is sought.
const CANDIDATES: usize = 10;
/// Decides the shares of seeds.
const SHARES: u64 = 1;
/// Tokens of a prompt, and of its answer.
const PROMPT: usize = 64;
const ANSWER: usize = 48;

/// Something to measure.
#[derive(Clone, Debug)]
pub enum Task {
    /// Perplexity of drawn windows.
    Perplexity,
    /// Multiple choices from the text.
    Choices,
    /// Multiple choices of a file.
    Items {
        /// Name in tables.
        name: String,
        /// All items, of which each seed draws some.
        items: Vec<Item>,
    },
    /// Facts in contexts of so many tokens.
    Retrieval(usize),
    /// Greedy answers against those without a codec.
    Bleu,
}

/// Sizes of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of seeds, from 1 on.
    pub seeds: u64,
    /// Windows per seed.
    pub windows: usize,
    /// Tokens per window.
    pub context: usize,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Items, facts or prompts per seed. Where the pool has too few, each seed gets fewer.
    pub items: usize,
}

/// Where tasks come from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The text.
    pub text: &'a str,
    /// The same as windows.
    pub windows: &'a [Vec<TokenId>],
}

/// Results of one task.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The task.
    pub task: String,
    /// Sizes, and the score of guesses.
    pub about: String,
    /// The run without a codec, then each codec.
    pub rows: Vec<Row>,
}

/// Results of one codec.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The codec; `none` for the run without one.
    pub codec: String,
    /// Bits per value in this task.
    pub bits: Option<f64>,
    /// Its scores, the same ones in each row.
    pub scores: Vec<Score>,
}

/// One score.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// What it is.
    pub name: String,
    /// One value per seed.
    pub seeds: Vec<f64>,
    /// Their mean. NaN: there was nothing to score, such as no fact at a depth.
    pub mean: Interval,
    /// Difference from the run without a codec, seed by seed.
    pub difference: Interval,
}

/// What one codec gets from one seed: bits, and a value for each score.
type Run = (Size, Vec<f64>);

/// Measures a task without a codec and with each subject. `progress` gets 1 per seed and codec.
///
/// # Errors
/// The text is too short, an item is too long for the model, a codec fails, or contexts are so short
/// that a codec encodes nothing.
pub fn measure(
    model: &LoadedModel,
    task: &Task,
    source: &Source<'_>,
    settings: Settings,
    subjects: &[&dyn Subject],
    progress: &mut dyn FnMut(),
) -> Result<Table, StudyError> {
    let all: Vec<Option<&dyn Subject>> = std::iter::once(None).chain(subjects.iter().copied().map(Some)).collect();
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); all.len()];
    for seed in 1..=settings.seeds {
        let of_seed = match task {
            Task::Perplexity => {
                let windows = share(source.windows, "windows", settings.windows, settings.seeds, seed)?;
                perplexities(model, &windows, settings, subjects)?
            }
            Task::Choices => {
                let items = draw_choices(source.text, settings.items, seed)?;
                each(&all, progress, |subject| choices(reader(model, subject, settings), &items))?
            }
            Task::Items { items, .. } => {
                let items = share(items, "items", settings.items, settings.seeds, seed)?;
                each(&all, progress, |subject| choices(reader(model, subject, settings), &items))?
            }
            Task::Retrieval(length) => {
                let haystacks = haystacks(model, source, settings.items, *length, seed)?;
                each(&all, progress, |subject| retrievals(reader(model, subject, settings), &haystacks))?
            }
            Task::Bleu => {
                let prompts = share(source.windows, "prompts", settings.items, settings.seeds, seed)?;
                let mut reference = None;
                each(&all, progress, |subject| answers(reader(model, subject, settings), &prompts, &mut reference))?
            }
        };
        if matches!(task, Task::Perplexity) {
            all.iter().for_each(|_| progress());
        }
        runs.iter_mut().zip(of_seed).for_each(|(runs, run)| runs.push(run));
    }
    for (subject, runs) in subjects.iter().zip(&runs[1..]) {
        if runs.iter().all(|(size, _)| size.values == 0) {
            return Err(StudyError::Text(format!(
                "{}: {} encodes nothing: no context fills a block of {} tokens; take smaller blocks",
                task.name(),
                subject.name(),
                settings.block_tokens
            )));
        }
    }
    let base = runs[0].clone();
    let rows = all.iter().zip(&runs).map(|(subject, runs)| row(*subject, task, runs, &base)).collect();
    Ok(Table { task: task.name(), about: about(task, source, settings), rows })
}

/// The items of a seed that are made from a text.
///
/// # Errors
/// The text is too short.
pub fn draw_choices(text: &str, items: usize, seed: u64) -> Result<Vec<Item>, StudyError> {
    choice::draw(text, items, DRAWN, seed)
}

impl Task {
    /// The name in tables.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Perplexity => "perplexity".to_owned(),
            Self::Choices => "choices".to_owned(),
            Self::Items { name, .. } => name.clone(),
            Self::Retrieval(length) => format!("retrieval from {length} tokens"),
            Self::Bleu => "BLEU".to_owned(),
        }
    }

    fn scores(&self) -> Vec<String> {
        let names: &[&str] = match self {
            Self::Perplexity => &["perplexity", "loss %", "KL ×1000"],
            Self::Choices | Self::Items { .. } => &["acc %", "acc_norm %"],
            Self::Retrieval(_) => &["recall %", "greedy %", "rank"],
            Self::Bleu => &["BLEU", "same answer %"],
        };
        let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        if let Self::Retrieval(_) = self {
            names.extend(DEPTHS.map(|depth| format!("recall % at {depth}")));
        }
        names
    }
}

fn about(task: &Task, source: &Source<'_>, settings: Settings) -> String {
    let Settings { seeds, context, items, .. } = settings;
    let Drawn { context: before, choice, choices } = DRAWN;
    let shares = |what: &str, asked: usize, all: usize| {
        let each = of_seed(all, asked, seeds);
        let fewer = if each < asked { format!(" ({asked} were asked for)") } else { String::new() };
        format!("{seeds} seeds of {each} {what}{fewer} out of {all}")
    };
    match task {
        Task::Perplexity => {
            let raw = 100.0 * raw_reads(context, settings.block_tokens);
            let windows = shares(&format!("windows of {context} tokens"), settings.windows, source.windows.len());
            format!("{windows}; {raw:.0} % of reads see raw KV")
        }
        Task::Choices => {
            let chance = 100.0 / choices as f64;
            format!(
                "{seeds} seeds of {items} items: {before} words, then {choice} words among {choices}; chance is {chance:.0} %"
            )
        }
        Task::Items { items: all, .. } => {
            let chance = all.iter().map(|item| 1.0 / item.choices.len() as f64).sum::<f64>() / all.len() as f64;
            format!("{}; chance is {:.0} %", shares("items", items, all.len()), 100.0 * chance)
        }
        Task::Retrieval(_) => {
            let chance = 100.0 / CANDIDATES as f64;
            let rank = (CANDIDATES + 1) as f64 / 2.0;
            let depths: Vec<String> = DEPTHS.iter().take(items).map(f64::to_string).collect();
            let depths = depths.join(", ");
            format!(
                "{seeds} seeds of {items} facts at depths {depths}; {CANDIDATES} candidates; chance is {chance:.0} %, rank {rank}"
            )
        }
        Task::Bleu => {
            let prompt = context.min(PROMPT);
            let prompts = shares(&format!("prompts of {prompt} tokens"), items, source.windows.len());
            format!("{prompts}, greedy answers of {ANSWER}")
        }
    }
}

const fn reader<'a>(model: &'a LoadedModel, subject: Option<&'a dyn Subject>, settings: Settings) -> Reader<'a> {
    Reader { model, subject, block_tokens: settings.block_tokens }
}

fn each<'a>(
    all: &[Option<&'a dyn Subject>],
    progress: &mut dyn FnMut(),
    mut run: impl FnMut(Option<&'a dyn Subject>) -> Result<Run, StudyError>,
) -> Result<Vec<Run>, StudyError> {
    all.iter().map(|subject| run(*subject).inspect(|_| progress())).collect()
}

fn row(subject: Option<&dyn Subject>, task: &Task, runs: &[Run], base: &[Run]) -> Row {
    let mut size = Size::default();
    runs.iter().for_each(|(one, _)| size.add(*one));
    let column = |runs: &[Run], at: usize| runs.iter().map(|(_, values)| values[at]).collect::<Vec<f64>>();
    let score = |(at, name): (usize, String)| {
        let seeds = column(runs, at);
        let difference = Interval::of_differences(&seeds, &column(base, at));
        Score { name, mean: Interval::of(&seeds), difference, seeds }
    };
    Row {
        codec: subject.map_or_else(|| "none".to_owned(), Subject::name),
        bits: size.bits_per_value(),
        scores: task.scores().into_iter().enumerate().map(score).collect(),
    }
}

/// How many of all items each seed gets.
fn of_seed(all: usize, asked: usize, seeds: u64) -> usize {
    asked.min(all / seeds.max(1) as usize)
}

/// A seed's share of the items, in their order. No two seeds share an item.
fn share<T: Clone>(all: &[T], what: &str, asked: usize, seeds: u64, seed: u64) -> Result<Vec<T>, StudyError> {
    let each = of_seed(all.len(), asked, seeds);
    if each == 0 {
        let fact = format!("{} {what} for {seeds} seeds: each needs one of its own", all.len());
        return Err(StudyError::Text(format!("{fact}; take a longer text, shorter windows or fewer seeds")));
    }
    let mut places: Vec<usize> = (0..all.len()).collect();
    let mut prng = Prng::new(SHARES);
    for last in (1..places.len()).rev() {
        places.swap(last, prng.below(last as u64 + 1) as usize);
    }
    let chosen: BTreeSet<usize> = places.into_iter().skip((seed - 1) as usize * each).take(each).collect();
    Ok(chosen.into_iter().map(|at| all[at].clone()).collect())
}

fn perplexities(
    model: &LoadedModel,
    windows: &[Vec<TokenId>],
    settings: Settings,
    subjects: &[&dyn Subject],
) -> Result<Vec<Run>, StudyError> {
    let evaluation = evaluate(model, windows, settings.block_tokens, subjects, &mut |_| ())?;
    let mut runs = vec![(Size::default(), vec![evaluation.perplexity, 0.0, 0.0])];
    runs.extend(evaluation.codecs.iter().map(|quality| {
        // Each window has as many values, so any number of them gives the mean.
        let size = Size { bits: (quality.bits * 1e6).round() as u64, values: 1_000_000 };
        let harm = &quality.harm;
        (size, vec![harm.perplexity, harm.loss_percent, 1e3 * harm.kl])
    }));
    Ok(runs)
}

/// NaN: of none, so there is no score.
fn percent(count: usize, of: usize) -> f64 {
    100.0 * count as f64 / of as f64
}

fn choices(reader: Reader<'_>, items: &[Item]) -> Result<Run, StudyError> {
    let mut size = Size::default();
    let scored: Vec<choice::Scored> =
        items.iter().map(|item| choice::score(reader, item, &mut size)).collect::<Result<_, _>>()?;
    let share =
        |right: fn(&choice::Scored) -> bool| percent(scored.iter().filter(|one| right(one)).count(), scored.len());
    Ok((size, vec![share(|one| one.is_right), share(|one| one.is_right_by_length)]))
}

/// Contexts of one length, their depths in turn.
fn haystacks(
    model: &LoadedModel,
    source: &Source<'_>,
    items: usize,
    length: usize,
    seed: u64,
) -> Result<Vec<Haystack>, StudyError> {
    let mut prng = Prng::new(seed);
    let one = |item: usize| {
        let fact = Fact::draw(&mut prng, CANDIDATES);
        let needed = length.div_ceil(source.windows.first().map_or(1, Vec::len));
        let places = source.windows.len().checked_sub(needed).filter(|places| *places > 0);
        let places = places.ok_or_else(|| StudyError::Text(format!("the text has too few tokens to fill {length}")))?;
        let first = prng.below(places as u64) as usize;
        let filler = source.windows[first..first + needed].concat();
        Haystack::new(model.tokenizer(), &filler, &fact, length, DEPTHS[item % DEPTHS.len()])
    };
    (0..items).map(one).collect()
}

fn retrievals(reader: Reader<'_>, haystacks: &[Haystack]) -> Result<Run, StudyError> {
    let mut size = Size::default();
    let found: Vec<_> = haystacks.iter().map(|one| ask(reader, one, &mut size)).collect::<Result<_, _>>()?;
    let recalled = |found: &[cenote_quality::retrieval::Found]| {
        percent(found.iter().filter(|one| one.rank == 1).count(), found.len())
    };
    let greedy = percent(found.iter().filter(|one| one.is_greedy).count(), found.len());
    let rank = found.iter().map(|one| one.rank as f64).sum::<f64>() / found.len() as f64;
    let mut values = vec![recalled(&found), greedy, rank];
    for depth in 0..DEPTHS.len() {
        let at: Vec<_> = found.iter().skip(depth).step_by(DEPTHS.len()).copied().collect();
        values.push(recalled(&at));
    }
    Ok((size, values))
}

/// Answers of one codec. The first call gives the reference.
fn answers(
    reader: Reader<'_>,
    prompts: &[Vec<TokenId>],
    reference: &mut Option<Vec<Vec<TokenId>>>,
) -> Result<Run, StudyError> {
    let mut size = Size::default();
    let mut answers = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let prompt = &prompt[..prompt.len().min(PROMPT)];
        let mut past = reader.read(prompt, OpenBlock::Stays, 1, ANSWER)?;
        answers.push(past.greedy(ANSWER)?);
        size.add(past.size());
    }
    let reference = reference.get_or_insert_with(|| answers.clone());
    let same = answers.iter().zip(reference.iter()).filter(|(answer, reference)| answer == reference).count();
    let bleu = bleu(&answers, reference).ok_or_else(|| StudyError::Text("there are no answers".to_owned()))?;
    Ok((size, vec![bleu, percent(same, answers.len())]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::Clock;
    use cenote_base::testing::beside;
    use cenote_codec::Raw;
    use cenote_engine::EngineConfig;
    use cenote_quality::CodecSubject;
    use cenote_quality::text::Windows;
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn seeds_share_no_item() {
        let all: Vec<u32> = (0..50).collect();
        let of = |asked: usize, seeds: u64, seed: u64| share(&all, "items", asked, seeds, seed).expect("a share");
        assert_eq!(of(20, 2, 1), of(20, 2, 1));
        let both = [of(20, 2, 1), of(20, 2, 2)].concat();
        assert_eq!(BTreeSet::from_iter(&both).len(), 40);
        assert!(of(20, 2, 1).is_sorted());
        // All items are drawn, each for one seed.
        let every: Vec<u32> = (1..=5).flat_map(|seed| of(60, 5, seed)).collect();
        assert_eq!((every.len(), BTreeSet::from_iter(&every).len()), (50, 50));
        let error = share(&all[..4], "windows", 40, 5, 1).expect_err("too few").to_string();
        assert!(error.contains("4 windows for 5 seeds"), "{error}");
        assert!(share::<u32>(&[], "windows", 40, 2, 1).is_err());
    }

    fn model() -> LoadedModel {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        LoadedModel::load(&EngineConfig { threads: 2, ..EngineConfig::new(dir, Clock::stopped()) })
            .expect("the demo model")
    }

    fn demo_windows(model: &LoadedModel, length: usize) -> Vec<Vec<TokenId>> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/demo.txt");
        let text = std::fs::read(file).expect("the demo's text");
        Windows::new(&text[..], model.tokenizer(), length).take_some(20).expect("windows")
    }

    #[test]
    fn answers_that_read_no_encoded_block_are_refused() {
        let model = model();
        let raw = CodecSubject::new("raw", Arc::new(Raw));
        let windows = demo_windows(&model, 64);
        let source = Source { text: "", windows: &windows };
        let answers = |block_tokens: usize, windows: &[Vec<TokenId>]| {
            let settings = Settings { seeds: 2, windows: 2, context: 64, block_tokens, items: 2 };
            measure(&model, &Task::Bleu, &Source { windows, ..source }, settings, &[&raw], &mut || ())
        };
        let error = answers(112, &windows).expect_err("nothing is encoded").to_string();
        assert!(error.contains("BLEU: raw encodes nothing"), "{error}");
        let table = answers(96, &windows).expect("the end of an answer reads a block");
        assert!(table.about.contains("2 seeds of 2 prompts of 64 tokens out of 20"), "{}", table.about);
        // The answer's last token fills the block, and nothing reads it.
        let short: Vec<Vec<TokenId>> = windows.iter().map(|window| window[..17].to_vec()).collect();
        assert!(answers(64, &short).is_err());
        assert!(answers(16, &[]).is_err(), "no prompts");
    }

    #[test]
    fn a_depth_without_facts_has_no_score() {
        let model = model();
        let windows = demo_windows(&model, 64);
        let source = Source { text: "", windows: &windows };
        let settings = Settings { seeds: 2, windows: 2, context: 64, block_tokens: 16, items: 2 };
        let table = measure(&model, &Task::Retrieval(96), &source, settings, &[], &mut || ()).expect("a table");
        let scores = &table.rows[0].scores[3..];
        assert_eq!(
            scores.iter().map(|score| score.mean.mean.is_nan()).collect::<Vec<_>>(),
            [false, false, true, true, true]
        );
        assert!(table.about.contains("2 facts at depths 0, 0.25;"), "{}", table.about);
    }

    /// On held-out text, so that scores are no memory of training.
    #[test]
    fn tasks_of_a_text_tell_codecs_apart() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let Some(text) = beside("data/wikitext2_valid.txt") else { return };
        let text = std::fs::read_to_string(text).expect("the text");
        let held_out = &text[text.floor_char_boundary(text.len() / 20 * 19)..];
        let config = EngineConfig { threads: 2, ..EngineConfig::new(root.join("models/demo"), Clock::stopped()) };
        let model = LoadedModel::load(&config).expect("the demo model");
        let windows: Vec<Vec<TokenId>> =
            Windows::new(held_out.as_bytes(), model.tokenizer(), 64).collect::<Result<_, _>>().expect("windows");
        let source = Source { text: held_out, windows: &windows };
        let settings = Settings { seeds: 2, windows: 4, context: 64, block_tokens: 16, items: 10 };
        let raw = CodecSubject::new("raw", Arc::new(Raw));
        let coarse = crate::baselines::Int4 { bits: 2, group: 64 };
        let mut steps = 0;
        let mut table = |task: Task| {
            measure(&model, &task, &source, settings, &[&raw, &coarse], &mut || steps += 1).expect("a table")
        };
        let mean = |table: &Table, row: usize, score: usize| table.rows[row].scores[score].mean.mean;

        let perplexity = table(Task::Perplexity);
        assert!(mean(&perplexity, 1, 1).abs() < 0.1 && mean(&perplexity, 2, 1) > 0.3, "{perplexity:?}");
        let answers = table(Task::Bleu);
        assert_eq!(mean(&answers, 0, 0), 100.0);
        assert!(mean(&answers, 1, 0) > 98.0 && mean(&answers, 2, 0) < 98.0, "{answers:?}");
        let choices = table(Task::Choices);
        assert!((mean(&choices, 1, 0) - mean(&choices, 0, 0)).abs() <= 10.0, "half precision: {choices:?}");
        assert_eq!(choices.rows[0].bits, None);
        assert!(choices.rows[1].bits.is_some_and(|bits| bits > 16.0));
        let retrieval = table(Task::Retrieval(96));
        assert_eq!(retrieval.rows[0].scores.len(), 3 + DEPTHS.len());
        assert!(mean(&retrieval, 0, 2) > 1.0, "the model has not learned to copy: {retrieval:?}");
        assert_eq!(steps, 4 * 2 * 3, "tasks, seeds, runs");
    }
}
