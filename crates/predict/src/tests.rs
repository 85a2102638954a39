//! Predictors beside what they state, and the rules that all of them keep.

use super::*;
use cenote_base::prng::Prng;
use proptest::prelude::*;

const TOKENS: u32 = 6;

/// The rule of Witten and Bell by recursion, from the texts.
fn stated(corpus: &[u32], request: &[u32], context: &[u32], token: u32) -> f64 {
    let count = |text: &[u32], run: &[u32]| text.windows(run.len()).filter(|window| *window == run).count() as f64;
    let with = |last: u32| [context, &[last]].concat();
    let lower = match context {
        [] => 1.0 / f64::from(TOKENS),
        [_, shorter @ ..] => stated(corpus, request, shorter, token),
    };
    let (mut occurrences, mut distinct) = (0.0, 0.0);
    for last in 0..TOKENS {
        for (text, weight) in [(corpus, 1.0), (request, 4.0)] {
            occurrences += weight * count(text, &with(last));
            distinct += f64::from(u8::from(count(text, &with(last)) > 0.0));
        }
    }
    if occurrences == 0.0 {
        return lower;
    }
    let seen = count(corpus, &with(token)) + 4.0 * count(request, &with(token));
    (seen + distinct * lower) / (occurrences + distinct)
}

fn distribution<M: Model>(model: &M) -> Vec<f32> {
    let mut row = Vec::new();
    model.distributions(&[&model.place()], &mut row);
    row
}

fn network() -> Network {
    Network::new(&FloatNetwork::random(TOKENS as usize, &mut Prng::new(5)).quantize())
}

/// The rules of every predictor, behind a request.
fn check<M: Model>(name: &str, model: &mut M, request: &[u32]) -> Result<(), TestCaseError> {
    let fresh = distribution(model);
    request.iter().for_each(|token| model.append(*token));
    let row = distribution(model);
    let sum: f32 = row.iter().sum();
    prop_assert!((sum - 1.0).abs() < 1e-4 && row.iter().all(|value| *value >= 0.0), "{} sums to {}", name, sum);
    let guesses = model.predict(3, 4);
    prop_assert_eq!(&guesses[0], &best(&row, 4), "{}: the first guesses are the model's", name);
    prop_assert!(guesses.iter().all(|guesses| guesses.len() == 4), "{}", name);
    prop_assert_eq!(&guesses, &model.predict(3, 4), "{}: guessing teaches nothing", name);
    // The second position by hand.
    let first = best(&row, BEAMS);
    let all: f32 = first.iter().map(|guess| guess.probability).sum();
    let place = model.place();
    let behind = model.follow(&first.iter().map(|guess| (&place, guess.token)).collect::<Vec<_>>());
    let mut rows = Vec::new();
    model.distributions(&behind.iter().collect::<Vec<_>>(), &mut rows);
    for guess in &guesses[1] {
        let parts = first.iter().zip(rows.chunks_exact(row.len()));
        let sum: f32 =
            parts.map(|(guess_before, row)| guess_before.probability / all * row[guess.token as usize]).sum();
        prop_assert!((sum - guess.probability).abs() < 1e-5, "{}", name);
    }
    model.forget();
    prop_assert_eq!(fresh, distribution(model), "{}: a new request begins as the first", name);
    Ok(())
}

proptest! {
    #[test]
    fn every_predictor_keeps_the_rules(
        corpus in prop::collection::vec(0..TOKENS, 0..60),
        request in prop::collection::vec(0..TOKENS, 0..40),
    ) {
        let network = network();
        let ngram = || {
            let mut ngram = Ngram::new(TOKENS as usize, 3);
            ngram.learn(&corpus);
            ngram
        };
        let suffix = || Suffix::with_corpus(TOKENS as usize, corpus.iter().copied().collect());
        check("ngram", &mut ngram(), &request)?;
        check("suffix", &mut suffix(), &request)?;
        check("suffix without a corpus", &mut Suffix::new(TOKENS as usize), &request)?;
        check("lstm", &mut Lstm::new(&network, History::Request), &request)?;
        check("lstm of 16", &mut Lstm::new(&network, History::Last(16)), &request)?;
        check("mixed", &mut Mixed::new(suffix(), ngram()), &request)?;
    }

    #[test]
    fn ngrams_have_the_stated_probabilities(
        corpus in prop::collection::vec(0..TOKENS, 0..60),
        request in prop::collection::vec(0..TOKENS, 0..40),
        order in 1usize..5,
    ) {
        let mut ngram = Ngram::new(TOKENS as usize, order);
        ngram.learn(&corpus);
        request.iter().for_each(|token| ngram.append(*token));
        let context = &request[request.len().saturating_sub(order - 1)..];
        for (token, probability) in (0..).zip(distribution(&ngram)) {
            let expected = stated(&corpus, &request, context, token);
            prop_assert!((f64::from(probability) - expected).abs() < 1e-5, "{} {} {}", token, probability, expected);
        }
        prop_assert!(ngram.follow(&[(&ngram.place(), 1)])[0].len() < order);
    }

    /// A suffix predictor without a corpus is an n-gram predictor of unlimited order.
    #[test]
    fn suffixes_are_ngrams_of_any_order(request in prop::collection::vec(0..TOKENS, 0..30)) {
        let mut suffix = Suffix::new(TOKENS as usize);
        request.iter().for_each(|token| suffix.append(*token));
        let row = distribution(&suffix);
        // Contexts with equal followers are one state, so the blend is that of the states' longest
        // contexts: `end` runs over them.
        let occurrences = |run: &[u32]| -> Vec<usize> {
            (run.len()..=request.len()).filter(|end| request[end - run.len()..*end] == *run).collect()
        };
        let ends = (0..request.len()).map(|length| &request[request.len() - length..]).filter(|run| occurrences(run).len() > 1 || run.is_empty());
        let mut ends: Vec<&[u32]> = ends.collect();
        ends.sort_by_key(|run| run.len());
        let longest: Vec<&[u32]> = ends.iter().enumerate().filter(|(at, run)| {
            ends.get(at + 1).is_none_or(|next| occurrences(next).len() != occurrences(run).len())
        }).map(|(_, run)| *run).collect();
        let mut expected = vec![1.0 / f64::from(TOKENS); TOKENS as usize];
        for run in longest {
            let next: Vec<u32> = occurrences(run).iter().filter_map(|end| request.get(*end).copied()).collect();
            let mut distinct = next.clone();
            distinct.sort_unstable();
            distinct.dedup();
            if next.is_empty() { continue }
            let all = (next.len() + distinct.len()) as f64;
            for (token, value) in (0..).zip(&mut expected) {
                let seen = next.iter().filter(|next| **next == token).count() as f64;
                *value = (seen + distinct.len() as f64 * *value) / all;
            }
        }
        for (found, expected) in row.iter().zip(expected) {
            prop_assert!((f64::from(*found) - expected).abs() < 2e-3, "{} {}", found, expected);
        }
    }

    #[test]
    fn every_level_and_any_company_gives_the_same_guesses(tokens in prop::collection::vec(0..TOKENS, 1..20)) {
        let network = network();
        let guesses = |level| at_level(level, || {
            let mut lstm = Lstm::new(&network, History::Request);
            tokens.iter().for_each(|token| lstm.append(*token));
            let place = lstm.place();
            let behind = lstm.follow(&(0..TOKENS).map(|token| (&place, token)).collect::<Vec<_>>());
            let alone: Vec<LstmPlace> = (0..TOKENS).map(|token| lstm.follow(&[(&place, token)]).remove(0)).collect();
            assert_eq!(behind, alone, "states that are stepped together");
            lstm.predict(4, 6)
        });
        let expected = guesses(Level::Scalar);
        for level in Level::available() {
            prop_assert_eq!(guesses(*level), expected.clone(), "{:?}", level);
        }
    }

    #[test]
    fn a_bounded_history_forgets(tokens in prop::collection::vec(0..TOKENS, 16..40)) {
        let network = network();
        let behind = |tokens: &[u32], history| {
            let mut lstm = Lstm::new(&network, history);
            tokens.iter().for_each(|token| lstm.append(*token));
            lstm.place()
        };
        prop_assert_eq!(behind(&tokens, History::Last(16)), behind(&tokens[tokens.len() - 16..], History::Request));
    }
}

#[test]
fn a_repeated_request_is_foreseen() {
    let text: Vec<u32> = (0..40).map(|at| (at * at) % 5).chain([5]).collect();
    let mut suffix = Suffix::new(TOKENS as usize);
    let mut mixed = Mixed::new(Suffix::new(TOKENS as usize), Ngram::new(TOKENS as usize, 2));
    for token in text.iter().chain(&text[..20]) {
        suffix.append(*token);
        mixed.append(*token);
    }
    for model in [&suffix.predict(4, 1), &mixed.predict(4, 1)] {
        let found: Vec<u32> = model.iter().map(|guesses| guesses[0].token).collect();
        assert_eq!(found, text[20..24]);
    }
}

/// Rounding moves no probability far, though errors of one step are inputs of the next.
#[test]
fn the_rounded_network_is_close_to_the_trained_one() {
    let (mut sum, mut count, mut largest) = (0.0, 0.0, 0.0_f64);
    for seed in 0..20 {
        let mut prng = Prng::new(seed);
        let float = FloatNetwork::random(TOKENS as usize, &mut prng);
        let network = Network::new(&float.quantize());
        let mut lstm = Lstm::new(&network, History::Request);
        let mut state = float.start();
        for _ in 0..50 {
            let token = prng.below(TOKENS.into()) as u32;
            lstm.append(token);
            float.step(&mut state, token);
            let exact: Vec<f64> = float.logits(&state).iter().map(|logit| f64::from(*logit).exp()).collect();
            let all: f64 = exact.iter().sum();
            for (found, exact) in distribution(&lstm).iter().zip(exact) {
                let difference = (f64::from(*found) - exact / all).abs();
                (sum, count, largest) = (sum + difference, count + 1.0, largest.max(difference));
            }
        }
    }
    assert!(sum / count < 0.01 && largest < 0.1, "mean {} largest {largest}", sum / count);
}
