//! The longest end of the request that occurred before, in the request or in a corpus.
//!
//! A suffix automaton finds it in constant time per token. Its shorter ends are contexts too. They
//! are blended from the longest to the empty one by the rule of [`Ngram`](crate::Ngram), so this is
//! an n-gram predictor without an order.

mod automaton;

pub use automaton::Automaton;

use crate::Model;
use automaton::State;

/// Share of the probability below which shorter contexts are not read.
const SHARE_MIN: f32 = 1e-3;

/// Predicts what followed the longest end of the request that occurred before.
#[derive(Clone, Debug)]
pub struct Suffix {
    vocabulary: usize,
    corpus: Automaton,
    request: Automaton,
    in_corpus: State,
}

/// The longest known ends, in the corpus and in the request.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    corpus: State,
    request: State,
}

impl Suffix {
    /// Without a corpus.
    ///
    /// # Panics
    /// The vocabulary is empty.
    #[must_use]
    pub fn new(vocabulary: usize) -> Self {
        Self::with_corpus(vocabulary, Automaton::default())
    }

    /// Over the texts of an automaton.
    ///
    /// # Panics
    /// The vocabulary is empty, or lacks a token of the automaton.
    #[must_use]
    pub fn with_corpus(vocabulary: usize, corpus: Automaton) -> Self {
        assert!(vocabulary > 0, "there are tokens");
        let is_known = corpus.followers(State::EMPTY).all(|(token, _)| (token as usize) < vocabulary);
        assert!(is_known, "tokens are in the vocabulary");
        Self { vocabulary, corpus, request: Automaton::default(), in_corpus: State::EMPTY }
    }

    fn add(&self, ends: &Ends, row: &mut [f32]) {
        let mut left = 1.0;
        let (mut corpus, mut request) = (Some(ends.corpus), Some(ends.request));
        // The longer context first; of equal ones, that of the request.
        while let Some((automaton, state)) = match (corpus, request) {
            (Some(state), other) if other.is_none_or(|other| other.length < state.length) => {
                corpus = self.corpus.shorter(state);
                Some((&self.corpus, state))
            }
            (_, Some(state)) => {
                request = self.request.shorter(state);
                Some((&self.request, state))
            }
            (_, None) => None,
        } {
            let (occurrences, distinct) = automaton
                .followers(state)
                .fold((0.0, 0.0), |(all, distinct), (_, count)| (all + count as f32, distinct + 1.0));
            if distinct > 0.0 {
                let each = left / (occurrences + distinct);
                for (token, count) in automaton.followers(state) {
                    row[token as usize] += each * count as f32;
                }
                left = each * distinct;
                if left < SHARE_MIN {
                    break;
                }
            }
        }
        let each = left / self.vocabulary as f32;
        row.iter_mut().for_each(|probability| *probability += each);
    }
}

impl Model for Suffix {
    type Place = Ends;

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn forget(&mut self) {
        self.request = Automaton::default();
        self.in_corpus = State::EMPTY;
    }

    fn append(&mut self, token: u32) {
        assert!((token as usize) < self.vocabulary, "token {token} is outside the vocabulary");
        self.request.push(token);
        self.in_corpus = self.corpus.follow(self.in_corpus, token);
    }

    fn place(&self) -> Ends {
        Ends { corpus: self.in_corpus, request: self.request.repeated_end() }
    }

    fn follow(&self, from: &[(&Ends, u32)]) -> Vec<Ends> {
        let behind = |(ends, token): &(&Ends, u32)| Ends {
            corpus: self.corpus.follow(ends.corpus, *token),
            request: self.request.follow(ends.request, *token),
        };
        from.iter().map(behind).collect()
    }

    fn distributions(&self, places: &[&Ends], out: &mut Vec<f32>) {
        out.clear();
        out.resize(places.len() * self.vocabulary, 0.0);
        for (place, row) in places.iter().zip(out.chunks_exact_mut(self.vocabulary)) {
            self.add(place, row);
        }
    }
}
