//! Multiple choices, scored by log-likelihood. Contexts, choices and borders are those of
//! lm-evaluation-harness, so that scores of whole files are comparable.
//!
//! A file has one JSON object per line. Known fields, as the data sets name them:
//!
//! | data set | context | choices | right one |
//! |---|---|---|---|
//! | any | `query`, `context` or `question` | `choices`: texts | `gold`, `label` or `answer`: index from 0 |
//! | HellaSwag | `ctx_a` and `ctx_b`, or else `ctx`, after `activity_label: ` | `endings` | `label`: index from 0 |
//! | PIQA | `goal`, as a question | `sol1`, `sol2` | `label`: index from 0 |
//! | ARC | `question`, or its `stem` | `choices`: `text` and `label` | `answerKey`: one of the labels |
//! | Winogrande | `sentence` up to `_`, and an option | the rest of `sentence` | `answer`: 1 or 2 |
//!
//! Questions are written as `Question: …`, a line feed and `Answer:`. A blank separates context and
//! choice. *acc* takes the choice of the largest log-likelihood, *acc_norm* of the largest one per
//! character of the choice. Equal ones go to the first. HellaSwag's `ctx_b` begins with a capital, and
//! all else in it is small. Blanks at a context's end belong to the choice.

use crate::StudyError;
use crate::past::{OpenBlock, Reader, Size};
use cenote_base::TokenId;
use cenote_base::prng::Prng;
use cenote_engine::tokenizer::Tokenizer;
use serde_json::Value;

/// Draws of a place before the text counts as too short.
const DRAWS_MAX: usize = 1_000;

/// A context and a continuation of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The text before.
    pub context: String,
    /// The text to score, without the blank between them.
    pub continuation: String,
}

/// Choices of which one is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The choices. All but Winogrande's share one context.
    pub choices: Vec<Choice>,
    /// The index of the right one.
    pub gold: usize,
}

impl Item {
    fn of_context(context: &str, continuations: Vec<String>, gold: usize) -> Self {
        let choice = |continuation| Choice { context: context.to_owned(), continuation };
        Self { choices: continuations.into_iter().map(choice).collect(), gold }
    }

    /// The item as a line of a file.
    #[must_use]
    pub fn to_line(&self) -> String {
        let choices: Vec<&str> = self.choices.iter().map(|choice| choice.continuation.as_str()).collect();
        let query = self.choices.first().map_or("", |choice| choice.context.as_str());
        serde_json::json!({ "query": query, "choices": choices, "gold": self.gold }).to_string()
    }
}

/// Parses a file; blank lines are skipped.
///
/// # Errors
/// A line is no item; the error names it. There are no items.
pub fn parse(text: &str) -> Result<Vec<Item>, StudyError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let item = |(index, line): (usize, &str)| {
        let wrong = |fact: String| StudyError::Text(format!("line {}: {fact}", index + 1));
        let value: Value = serde_json::from_str(line).map_err(|error| wrong(format!("not JSON: {error}")))?;
        item_of(&value).map_err(wrong)
    };
    let items: Vec<Item> = lines.map(item).collect::<Result<_, _>>()?;
    if items.is_empty() {
        return Err(StudyError::Text("there are no items".to_owned()));
    }
    Ok(items)
}

fn item_of(value: &Value) -> Result<Item, String> {
    let text = |name: &str| value[name].as_str();
    let item = if let Some(endings) = value["endings"].as_array() {
        let context = match (text("ctx_a"), text("ctx_b")) {
            (Some(first), Some(second)) => format!("{first} {}", capitalized(second)),
            _ => text("ctx").ok_or("no `ctx`, and no `ctx_a` with `ctx_b`")?.to_owned(),
        };
        let context = text("activity_label").map_or_else(|| context.clone(), |label| format!("{label}: {context}"));
        let endings = texts(endings)?.iter().map(|ending| cleaned(ending)).collect();
        Item::of_context(&cleaned(&context), endings, index(&value["label"]).ok_or("no `label`")?)
    } else if let (Some(goal), Some(first), Some(second)) = (text("goal"), text("sol1"), text("sol2")) {
        let gold = index(&value["label"]).ok_or("no `label`: join the file of labels to that of questions")?;
        Item::of_context(&question(goal), vec![first.to_owned(), second.to_owned()], gold)
    } else if let (Some(sentence), Some(first), Some(second)) = (text("sentence"), text("option1"), text("option2")) {
        let (before, behind) = sentence.split_once('_').ok_or("no `_` in `sentence`")?;
        let gold = index(&value["answer"]).and_then(|number| number.checked_sub(1)).ok_or("no `answer` of 1 or 2")?;
        let continuation = behind.trim().to_owned();
        let choice = |option| Choice { context: format!("{before}{option}"), continuation: continuation.clone() };
        Item { choices: vec![choice(first), choice(second)], gold }
    } else if !value["answerKey"].is_null() {
        arc(value)?
    } else {
        let context = text("query").or_else(|| text("context")).map(str::to_owned);
        let context = context.or_else(|| text("question").map(question)).ok_or("no context and no question")?;
        let choices = texts(value["choices"].as_array().ok_or("no `choices`")?)?;
        let gold = ["gold", "label", "answer"].iter().find_map(|name| index(&value[name]));
        Item::of_context(&context, choices, gold.ok_or("no `gold`, `label` or `answer`")?)
    };
    if item.choices.len() < 2 || item.gold >= item.choices.len() {
        return Err(format!("choice {} of {}", item.gold, item.choices.len()));
    }
    if item.choices.iter().any(|choice| choice.continuation.is_empty()) {
        return Err("a choice is empty".to_owned());
    }
    Ok(item)
}

/// Choices with labels, in either of the two forms.
fn arc(value: &Value) -> Result<Item, String> {
    let stem = value["question"].as_str().or_else(|| value["question"]["stem"].as_str()).ok_or("no `question`")?;
    let pairs: Vec<(String, String)> = match &value["question"]["choices"] {
        Value::Array(choices) => {
            let pair = |choice: &Value| Some((choice["text"].as_str()?.into(), choice["label"].as_str()?.into()));
            choices.iter().map(pair).collect::<Option<_>>().ok_or("a choice without `text` or `label`")?
        }
        _ => {
            let of = |name: &str| texts(value["choices"][name].as_array().ok_or("no `choices`")?);
            of("text")?.into_iter().zip(of("label")?).collect()
        }
    };
    let key = value["answerKey"].as_str().ok_or("`answerKey` is no text")?;
    let gold = pairs.iter().position(|(_, label)| label == key).ok_or("no choice has the `answerKey`")?;
    Ok(Item::of_context(&question(stem), pairs.into_iter().map(|(text, _)| text).collect(), gold))
}

fn question(text: &str) -> String {
    format!("Question: {text}\nAnswer:")
}

/// An index as a number or as its digits.
fn index(value: &Value) -> Option<usize> {
    match value {
        Value::Number(number) => number.as_u64().and_then(|number| usize::try_from(number).ok()),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn texts(values: &[Value]) -> Result<Vec<String>, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| "a choice is no text".to_owned());
    values.iter().map(text).collect()
}

/// A text whose first letter alone is a capital.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters.flat_map(char::to_lowercase)).collect()
}

/// HellaSwag's text without the marks of its source, which stand in brackets.
fn cleaned(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, behind)) = rest.split_once('[') {
        let Some((_, after)) = behind.split_once(']') else { break };
        clean.push_str(before);
        rest = after;
    }
    clean.push_str(rest);
    clean.replace("  ", " ")
}

/// Sizes of items that are made from a text, in words.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    /// Words of the context.
    pub context: usize,
    /// Words of a choice.
    pub choice: usize,
    /// Choices; one of them continues the context.
    pub choices: usize,
}

/// Makes items from a text: the true continuation among others from elsewhere in it.
///
/// # Errors
/// The text is too short.
pub fn draw(text: &str, count: usize, drawn: Drawn, seed: u64) -> Result<Vec<Item>, StudyError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let length = drawn.context + drawn.choice;
    let short = || StudyError::Text(format!("the text has too few words, {}, to draw choices from it", words.len()));
    let places = words.len().checked_sub(length).filter(|places| *places > 0).ok_or_else(short)?;
    let mut prng = Prng::new(seed);
    let item = |_| {
        let start = prng.below(places as u64) as usize;
        let gold = prng.below(drawn.choices as u64) as usize;
        let truth = &words[start + drawn.context..start + length];
        let mut others: Vec<&[&str]> = Vec::new();
        for _ in 0..DRAWS_MAX {
            let from = drawn.context + prng.below(places as u64) as usize;
            let other = &words[from..from + drawn.choice];
            let is_near = from + length > start && from < start + 2 * length;
            if !is_near && other != truth && !others.contains(&other) {
                others.push(other);
            }
            if others.len() + 1 == drawn.choices {
                others.insert(gold, truth);
                let context = words[start..start + drawn.context].join(" ");
                return Ok(Item::of_context(&context, others.iter().map(|words| words.join(" ")).collect(), gold));
            }
        }
        Err(short())
    };
    (0..count).map(item).collect()
}

/// What a model makes of one item.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// Log-likelihood of each choice, in nats.
    pub log_likelihoods: Vec<f64>,
    /// Whether the largest one is the right one's.
    pub is_right: bool,
    /// The same for log-likelihoods per character.
    pub is_right_by_length: bool,
}

/// Scores an item with the KV of its context through the reader's codec, and adds the size of it.
///
/// # Errors
/// A text cannot be tokenized, is too long for the model, the codec fails, or scores are not finite.
pub fn score(reader: Reader<'_>, item: &Item, size: &mut Size) -> Result<Scored, StudyError> {
    let mut log_likelihoods = Vec::with_capacity(item.choices.len());
    for same in item.choices.chunk_by(|a, b| a.context == b.context) {
        let tokenizer = reader.model.tokenizer();
        let context = encoded(tokenizer, same[0].context.trim_end(), true)?;
        let continuations: Vec<Vec<TokenId>> =
            same.iter().map(|choice| continuation(tokenizer, &context, choice)).collect::<Result<_, _>>()?;
        let longest = continuations.iter().map(Vec::len).max().unwrap_or(0);
        let mut past = reader.read(&context, OpenBlock::Passes, continuations.len(), longest)?;
        log_likelihoods.extend(past.score(&continuations)?);
        size.add(past.size());
    }
    Ok(judged(item, log_likelihoods))
}

fn judged(item: &Item, log_likelihoods: Vec<f64>) -> Scored {
    let lengths = item.choices.iter().map(|choice| choice.continuation.chars().count() as f64);
    let by_length: Vec<f64> = log_likelihoods.iter().zip(lengths).map(|(score, length)| score / length).collect();
    let (is_right, is_right_by_length) =
        (first_best(&log_likelihoods) == item.gold, first_best(&by_length) == item.gold);
    Scored { log_likelihoods, is_right, is_right_by_length }
}

fn first_best(scores: &[f64]) -> usize {
    (1..scores.len()).fold(0, |best, at| if scores[at] > scores[best] { at } else { best })
}

fn encoded(tokenizer: &Tokenizer, text: &str, begins: bool) -> Result<Vec<TokenId>, StudyError> {
    let tokens = if begins { tokenizer.encode(text) } else { tokenizer.encode_rendered(text) };
    tokens.map_err(|error| StudyError::Text(format!("the text cannot be tokenized: {error}")))
}

/// Tokens of a choice behind its context: those of the whole text behind as many as the context
/// has. Blanks at the context's end belong to the choice. If no tokens are left because one crosses
/// the border, the choice is tokenized alone.
fn continuation(tokenizer: &Tokenizer, context: &[TokenId], choice: &Choice) -> Result<Vec<TokenId>, StudyError> {
    let before = choice.context.trim_end();
    let behind = format!("{} {}", &choice.context[before.len()..], choice.continuation);
    let whole = encoded(tokenizer, &format!("{before}{behind}"), true)?;
    match whole.get(context.len()..) {
        Some(rest) if !rest.is_empty() => Ok(rest.to_vec()),
        _ => encoded(tokenizer, &behind, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CodecSubject;
    use cenote_codec::Raw;
    use cenote_engine::{EngineConfig, LoadedModel};
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn records_of_the_known_data_sets_are_read() {
        let text = r#"
{"query": "Two and two are", "choices": ["four", "five"], "gold": 0}
{"question": "What?", "choices": ["a", "b", "c"], "answer": "2"}
{"activity_label": "Baking", "ctx": "A cook [header] stirs", "endings": ["it [x] all.", "and sings", "c", "d"], "label": "1"}
{"goal": "Open it", "sol1": "Pull", "sol2": "Push", "label": 1}
{"question": {"stem": "Which?", "choices": [{"text": "x", "label": "A"}, {"text": "y", "label": "B"}]}, "answerKey": "B"}
{"question": "Which?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "1"}
{"sentence": "The cup fell off the table as _ was wet.", "option1": "the cup", "option2": "the table", "answer": "2"}
"#;
        let items = parse(text).expect("seven records");
        assert_eq!(items.iter().map(|item| item.gold).collect::<Vec<_>>(), [0, 2, 1, 1, 1, 0, 1]);
        assert_eq!(items[1].choices[0].context, "Question: What?\nAnswer:");
        assert_eq!(items[2].choices[0].context, "Baking: A cook stirs");
        assert_eq!(items[2].choices[0].continuation, "it all.");
        assert_eq!(items[3].choices[1].continuation, "Push");
        assert_eq!(items[4].choices[1].continuation, "y");
        assert_eq!(items[6].choices[1].context, "The cup fell off the table as the table");
        assert_eq!(items[6].choices[0].continuation, "was wet.");
        assert_eq!(parse(&items[0].to_line()).expect("a line"), items[..1]);
        for (line, fact) in [
            ("{", "line 1: not JSON"),
            (r#"{"goal": "g", "sol1": "a", "sol2": "b"}"#, "no `label`"),
            (r#"{"query": "q", "choices": ["a", "b"], "gold": 2}"#, "choice 2 of 2"),
            (r#"{"query": "q", "choices": ["a", ""], "gold": 0}"#, "a choice is empty"),
            (r#"{"text": "q"}"#, "no context"),
            ("", "no items"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(fact), "{error}");
        }
    }

    #[test]
    fn contexts_of_hellaswag_have_two_parts_and_the_second_begins_with_a_capital() {
        let record = |context: &str| {
            format!(
                "{{\"activity_label\": \"Roofing\", {context}, \"endings\": [\"climbs.\", \"falls.\"], \"label\": \"0\"}}"
            )
        };
        let context = |fields: &str| parse(&record(fields)).expect("an item")[0].choices[0].context.clone();
        let both = r#""ctx": "A man sits on a roof. he", "ctx_a": "A man sits on a roof.", "ctx_b": "he of NASA""#;
        assert_eq!(context(both), "Roofing: A man sits on a roof. He of nasa");
        // WikiHow's part has no second one.
        let one = r#""ctx": "[header] How to sit", "ctx_a": "[header] How to sit", "ctx_b": """#;
        assert_eq!(context(one), "Roofing: How to sit");
        assert_eq!(context(r#""ctx": "A man sits. he""#), "Roofing: A man sits. he");
        let error = parse(&record(r#""ctx_a": "A man sits.""#)).expect_err("no second part").to_string();
        assert!(error.contains("`ctx_b`"), "{error}");
    }

    #[test]
    fn blanks_at_a_contexts_end_belong_to_the_choice() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let model =
            LoadedModel::load(&EngineConfig { threads: 1, ..EngineConfig::new(dir, cenote_base::Clock::stopped()) })
                .expect("the demo model");
        let choice = Choice { context: "The film was ".to_owned(), continuation: "released".to_owned() };
        let tokens = |text: &str| encoded(model.tokenizer(), text, true).expect("tokens");
        let context = tokens("The film was");
        let rest = continuation(model.tokenizer(), &context, &choice).expect("tokens");
        assert_eq!([&context[..], &rest].concat(), tokens("The film was  released"));
        let item = Item { choices: vec![choice.clone(), choice], gold: 0 };
        let reader = Reader { model: &model, subject: None, block_tokens: 16 };
        let scored = score(reader, &item, &mut Size::default()).expect("scores");
        let mut past = reader.read(&context, OpenBlock::Passes, 1, rest.len()).expect("a context");
        assert_eq!(past.score(&[rest]).expect("scores")[0], scored.log_likelihoods[0]);
    }

    #[test]
    fn the_length_of_a_choice_counts_in_the_normalized_score() {
        let item = Item::of_context("", vec!["ab".to_owned(), "abcdefgh".to_owned()], 1);
        let scored = judged(&item, vec![-2.0, -4.0]);
        assert!(!scored.is_right && scored.is_right_by_length, "-1 and -0.5 per character");
        assert_eq!(first_best(&[1.0, 1.0]), 0);
    }

    #[test]
    fn drawn_items_have_the_true_continuation_once() {
        let text: String = (0..500).map(|word| format!("w{word} ")).collect();
        let drawn = Drawn { context: 10, choice: 3, choices: 4 };
        let items = draw(&text, 20, drawn, 7).expect("items");
        assert_eq!(items, draw(&text, 20, drawn, 7).expect("items"));
        assert_ne!(items, draw(&text, 20, drawn, 8).expect("items"));
        for item in &items {
            let number = |word: &str| word[1..].parse::<usize>().expect("a number");
            let last = number(item.choices[0].context.split(' ').next_back().expect("a word"));
            let continues =
                |choice: &Choice| number(choice.continuation.split(' ').next().expect("a word")) == last + 1;
            let right: Vec<usize> = (0..4).filter(|&at| continues(&item.choices[at])).collect();
            assert_eq!(right, [item.gold]);
        }
        assert!(draw("a few words", 1, drawn, 1).is_err());
    }

    /// The log-likelihoods of a whole computation without blocks, branches or codecs.
    #[test]
    fn scores_are_those_of_the_whole_text() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let model =
            LoadedModel::load(&EngineConfig { threads: 1, ..EngineConfig::new(dir, cenote_base::Clock::stopped()) })
                .expect("the demo model");
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/demo.txt"))
            .expect("the demo's text");
        let drawn = Drawn { context: 30, choice: 6, choices: 3 };
        let items = draw(&text, 6, drawn, 3).expect("items");
        let raw = CodecSubject::new("raw", Arc::new(Raw));
        let plain = Reader { model: &model, subject: None, block_tokens: 16 };
        for item in &items {
            let mut size = Size::default();
            let scored = score(plain, item, &mut size).expect("scores");
            assert_eq!(size.bits_per_value(), None);
            for (choice, found) in item.choices.iter().zip(&scored.log_likelihoods) {
                let context = encoded(model.tokenizer(), &choice.context, true).expect("tokens");
                let tokens = continuation(model.tokenizer(), &context, choice).expect("tokens");
                let all = Reader { block_tokens: 256, ..plain };
                let mut past = all.read(&context[..1], OpenBlock::Stays, 1, 256).expect("one token");
                let rest = [&context[1..], &tokens[..]].concat();
                let whole = past.score(std::slice::from_ref(&rest)).expect("scores")[0];
                let before = past.score(&[context[1..].to_vec()]).expect("scores")[0];
                assert!((whole - before - found).abs() < 1e-2, "{whole} - {before}, {found}");
            }
            // Half precision hardly changes a score.
            let half = score(Reader { subject: Some(&raw), ..plain }, item, &mut size).expect("scores");
            let far = half.log_likelihoods.iter().zip(&scored.log_likelihoods).map(|(a, b)| (a - b).abs());
            assert!(far.fold(0.0, f64::max) < 0.05 && size.bits_per_value().is_some_and(|bits| bits > 16.0));
        }
        let choices = ["qzx vkj wqp zxj".to_owned(), "the United States".to_owned()];
        let item = Item::of_context("The film was released in", choices.to_vec(), 1);
        let scored = score(plain, &item, &mut Size::default()).expect("scores");
        assert!(scored.is_right && scored.is_right_by_length, "words against letters: {scored:?}");
    }
}
