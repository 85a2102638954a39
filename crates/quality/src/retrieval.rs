//! Retrieval of a fact from a long context.
//!
//! A sentence that gives a name a number stands at some depth of a filler text. The context ends with
//! the beginning of the same sentence. The number is scored among distractors of as many digits, and
//! compared with the model's greedy answer. A model that has not learned to copy scores at chance:
//! one in the number of candidates, and no greedy match.

use crate::StudyError;
use crate::past::{OpenBlock, Reader, Size};
use cenote_base::TokenId;
use cenote_base::prng::Prng;
use cenote_engine::tokenizer::Tokenizer;

/// Names of facts.
const NAMES: [&str; 8] = ["Arlen", "Borin", "Calder", "Dorset", "Elwin", "Farley", "Garnet", "Holm"];
/// Digits of a number.
const DIGITS: u32 = 5;

/// A fact, and numbers that it is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Whose number it is.
    pub name: &'static str,
    /// The number and its distractors; the first is right.
    pub numbers: Vec<u32>,
}

impl Fact {
    /// Draws a fact with `candidates` numbers, all different.
    #[must_use]
    pub fn draw(prng: &mut Prng, candidates: usize) -> Self {
        let name = NAMES[prng.below(NAMES.len() as u64) as usize];
        let least = 10_u64.pow(DIGITS - 1);
        let mut numbers: Vec<u32> = Vec::new();
        while numbers.len() < candidates {
            let number = (least + prng.below(9 * least)) as u32;
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        Self { name, numbers }
    }

    fn question(&self) -> String {
        format!(" The secret number of {} is", self.name)
    }

    fn sentence(&self) -> String {
        format!("{} {} .", self.question(), self.numbers[0])
    }
}

/// A context with its fact.
#[derive(Clone, Debug)]
pub struct Haystack {
    /// The tokens, up to the number that is asked for.
    pub context: Vec<TokenId>,
    /// Tokens of each candidate; the first is right.
    pub candidates: Vec<Vec<TokenId>>,
}

impl Haystack {
    /// Hides a fact in `filler`. The context and the longest candidate have `length` tokens together.
    /// Depth 0 puts the fact at the beginning, depth 1 just before the question.
    ///
    /// # Errors
    /// A text cannot be tokenized, `filler` is too short, or `length` is too small for the fact.
    pub fn new(
        tokenizer: &Tokenizer,
        filler: &[TokenId],
        fact: &Fact,
        length: usize,
        depth: f64,
    ) -> Result<Self, StudyError> {
        let wrong = |error| StudyError::Text(format!("the fact cannot be tokenized: {error}"));
        let encode = |text: &str| tokenizer.encode_rendered(text).map_err(wrong);
        let start = tokenizer.encode("").map_err(wrong)?;
        let (sentence, question) = (encode(&fact.sentence())?, encode(&fact.question())?);
        let candidates: Vec<Vec<TokenId>> =
            fact.numbers.iter().map(|number| encode(&format!(" {number}"))).collect::<Result<_, _>>()?;
        let longest = candidates.iter().map(Vec::len).max().unwrap_or(0);
        let fixed = start.len() + sentence.len() + question.len() + longest;
        let fill = length
            .checked_sub(fixed)
            .ok_or_else(|| StudyError::Text(format!("{length} tokens do not hold a fact of {fixed}")))?;
        if filler.len() < fill {
            return Err(StudyError::Text(format!("the text has fewer than {fill} tokens to fill a context")));
        }
        let (before, behind) = filler[..fill].split_at((depth.clamp(0.0, 1.0) * fill as f64).round() as usize);
        let context = [&start[..], before, &sentence, behind, &question].concat();
        Ok(Self { context, candidates })
    }
}

/// What a model makes of one context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Place of the right number by log-likelihood, from 1. Equal candidates stand before it.
    pub rank: usize,
    /// Whether the greedy answer is the number.
    pub is_greedy: bool,
}

/// Asks for the fact with the context's KV through the reader's codec, and adds the size of it.
///
/// # Errors
/// The context is too long for the model, the codec fails, or scores are not finite.
pub fn ask(reader: Reader<'_>, haystack: &Haystack, size: &mut Size) -> Result<Found, StudyError> {
    let candidates = &haystack.candidates;
    let longest = candidates.iter().map(Vec::len).max().unwrap_or(0);
    let mut past = reader.read(&haystack.context, OpenBlock::Passes, candidates.len(), longest)?;
    let scores = past.score(candidates)?;
    let is_greedy = past.greedy(candidates[0].len())? == candidates[0];
    size.add(past.size());
    Ok(Found { rank: rank(&scores), is_greedy })
}

/// The place of the first score, from 1. A score that is no number is below none.
fn rank(scores: &[f64]) -> usize {
    let is_below = |score: &f64| *score < scores[0];
    scores.len() - scores[1..].iter().filter(|score| is_below(score)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Subject, choice, put_values};
    use cenote_codec::PageKind;
    use cenote_engine::{EngineConfig, LoadedModel};
    use std::path::Path;

    #[test]
    fn the_rank_counts_scores_that_are_not_below() {
        assert_eq!(rank(&[-1.0, -2.0, -3.0]), 1);
        assert_eq!(rank(&[-2.0, -2.0, -1.0, -3.0]), 3);
        assert_eq!(rank(&[0.0]), 1);
        assert_eq!(rank(&[f64::NAN, f64::NAN, f64::NAN]), 3);
    }

    #[test]
    fn a_fact_lies_at_its_depth_and_the_context_has_its_length() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let model =
            LoadedModel::load(&EngineConfig { threads: 1, ..EngineConfig::new(dir, cenote_base::Clock::stopped()) })
                .expect("the demo model");
        let tokenizer = model.tokenizer();
        let fact = Fact::draw(&mut Prng::new(5), 10);
        assert_eq!(fact, Fact::draw(&mut Prng::new(5), 10));
        let filler = vec![300; 200];
        let sentence = tokenizer.encode_rendered(&fact.sentence()).expect("tokens");
        for (depth, share) in [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)] {
            let haystack = Haystack::new(tokenizer, &filler, &fact, 128, depth).expect("a context");
            let longest = haystack.candidates.iter().map(Vec::len).max().expect("candidates");
            assert_eq!(haystack.context.len() + longest, 128);
            let at = haystack.context.windows(sentence.len()).position(|part| part == sentence).expect("the fact");
            let start = tokenizer.encode("").expect("tokens").len();
            let question = tokenizer.encode_rendered(&fact.question()).expect("tokens");
            let fill = haystack.context.len() - start - sentence.len() - question.len();
            assert_eq!(at - start, (share * fill as f64).round() as usize);
            let reader = Reader { model: &model, subject: None, block_tokens: 16 };
            let mut size = Size::default();
            let scores = |reader: Reader<'_>| {
                let longest = haystack.candidates.iter().map(Vec::len).max().expect("candidates");
                let mut past = reader.read(&haystack.context, OpenBlock::Passes, 10, longest).expect("a context");
                past.score(&haystack.candidates).expect("scores")
            };
            let [plain, cleared] = [reader, Reader { subject: Some(&Cleared), ..reader }].map(scores);
            let far = plain.iter().zip(&cleared).map(|(a, b)| (a - b).abs());
            assert!(far.fold(f64::INFINITY, f64::min) > 0.01, "each score depends on the context: {plain:?}");
            let found = ask(reader, &haystack, &mut size).expect("an answer");
            assert_eq!(found.rank, rank(&plain));
        }
        assert!(Haystack::new(tokenizer, &filler, &fact, 8, 0.0).is_err(), "too short for the fact");
        assert!(Haystack::new(tokenizer, &filler, &fact, 1000, 0.0).is_err(), "too little filler");
    }

    /// A greedy answer is the argmax of the scores of single tokens.
    #[test]
    fn greedy_tokens_have_the_best_scores() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let model =
            LoadedModel::load(&EngineConfig { threads: 1, ..EngineConfig::new(dir, cenote_base::Clock::stopped()) })
                .expect("the demo model");
        let context: Vec<TokenId> = (0..40).map(|at| 100 + 7 * at).collect();
        let reader = Reader { model: &model, subject: None, block_tokens: 16 };
        let mut past = reader.read(&context, OpenBlock::Stays, 512, 20).expect("a context");
        let answer = past.greedy(20).expect("an answer");
        assert_eq!(answer, past.greedy(20).expect("the same answer"));
        let first: Vec<Vec<TokenId>> = (0..511).chain([answer[0]]).map(|token| vec![token]).collect();
        let scores = past.score(&first).expect("scores");
        assert!(scores[..511].iter().all(|score| *score <= scores[511] + 1e-4));
        assert_eq!(past.size().values, 0);
        assert!(reader.read(&[], OpenBlock::Stays, 1, 1).is_err());
        assert!(reader.read(&context, OpenBlock::Stays, 1, 4096).is_err());
    }

    /// A codec that loses everything.
    struct Cleared;

    impl Subject for Cleared {
        fn name(&self) -> String {
            "cleared".to_owned()
        }

        fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
            put_values(kind, page, &vec![0.0; kind.shape.values()]);
            Ok(1)
        }
    }

    /// A codec that decodes to no numbers.
    struct Broken;

    impl Subject for Broken {
        fn name(&self) -> String {
            "broken".to_owned()
        }

        fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
            put_values(kind, page, &vec![f32::NAN; kind.shape.values()]);
            Ok(1)
        }
    }

    #[test]
    fn scores_that_are_no_numbers_are_an_error_and_no_hit() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let model =
            LoadedModel::load(&EngineConfig { threads: 1, ..EngineConfig::new(dir, cenote_base::Clock::stopped()) })
                .expect("the demo model");
        let fact = Fact::draw(&mut Prng::new(5), 10);
        let haystack = Haystack::new(model.tokenizer(), &[300; 200], &fact, 96, 0.5).expect("a context");
        let reader = Reader { model: &model, subject: Some(&Broken), block_tokens: 16 };
        let error = ask(reader, &haystack, &mut Size::default()).expect_err("nothing can be ranked");
        assert!(error.to_string().contains("broken: scores are not finite"), "{error}");
        let item = choice::parse(r#"{"query": "Two and two are", "choices": ["four", "five"], "gold": 0}"#);
        let item = &item.expect("an item")[0];
        assert!(choice::score(reader, item, &mut Size::default()).is_err(), "no choice is right");
        let mut past = reader.read(&haystack.context, OpenBlock::Stays, 1, 4).expect("a context");
        assert!(past.greedy(4).is_err(), "no token is the likeliest");
    }
}
