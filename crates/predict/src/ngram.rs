//! Counts of n-grams, of a corpus and of the request.
//!
//! A context of `n` tokens that occurred gives its followers their counts, and what it never saw a
//! share by the rule of Witten and Bell (1991): with `C` occurrences and `T` distinct followers, the
//! next shorter context has `T / (C + T)` of the probability. Below the empty context, all tokens
//! are equal.

use crate::Model;
use std::collections::HashMap;

/// Weight of an occurrence in the request, beside one in the corpus.
const REQUEST_WEIGHT: f32 = 4.0;

/// What followed a context.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followers {
    occurrences: u32,
    /// Tokens and how often each followed, by token.
    counts: Vec<(u32, u32)>,
}

impl Followers {
    fn add(&mut self, token: u32) {
        self.occurrences += 1;
        match self.counts.binary_search_by_key(&token, |(token, _)| *token) {
            Ok(at) => self.counts[at].1 += 1,
            Err(at) => self.counts.insert(at, (token, 1)),
        }
    }
}

/// Followers of each context of each length. Nothing depends on the order of the map.
#[derive(Clone, Debug, Default)]
struct Counts {
    contexts: HashMap<Box<[u32]>, Followers>,
}

impl Counts {
    /// Counts the last token of `tokens` behind its contexts.
    fn add_last(&mut self, tokens: &[u32], order: usize) {
        let Some((token, before)) = tokens.split_last() else { return };
        for length in 0..order.min(before.len() + 1) {
            let context = &before[before.len() - length..];
            match self.contexts.get_mut(context) {
                Some(followers) => followers.add(*token),
                None => self.contexts.entry(context.into()).or_default().add(*token),
            }
        }
    }
}

/// Predicts what followed the last tokens, in the corpus and in the request.
#[derive(Clone, Debug)]
pub struct Ngram {
    vocabulary: usize,
    order: usize,
    corpus: Counts,
    request: Counts,
    tokens: Vec<u32>,
}

impl Ngram {
    /// N-grams up to `order` tokens over `vocabulary` tokens.
    ///
    /// # Panics
    /// One of them is 0.
    #[must_use]
    pub fn new(vocabulary: usize, order: usize) -> Self {
        assert!(vocabulary > 0 && order > 0, "n-grams have tokens");
        let (corpus, request) = (Counts::default(), Counts::default());
        Self { vocabulary, order, corpus, request, tokens: Vec::new() }
    }

    /// Counts a text of the corpus.
    ///
    /// # Panics
    /// A token is outside the vocabulary.
    pub fn learn(&mut self, text: &[u32]) {
        assert!(text.iter().all(|token| (*token as usize) < self.vocabulary), "tokens are in the vocabulary");
        for end in 1..=text.len() {
            self.corpus.add_last(&text[end.saturating_sub(self.order)..end], self.order);
        }
    }

    fn add(&self, context: &[u32], row: &mut [f32]) {
        let mut left = 1.0;
        for length in (0..=context.len().min(self.order - 1)).rev() {
            let context = &context[context.len() - length..];
            let found = [(&self.corpus, 1.0), (&self.request, REQUEST_WEIGHT)];
            let found = found.map(|(counts, weight)| counts.contexts.get(context).map(|found| (found, weight)));
            let found = || found.iter().flatten();
            let occurrences: f32 = found().map(|(found, weight)| found.occurrences as f32 * weight).sum();
            if occurrences > 0.0 {
                let distinct: f32 = found().map(|(found, _)| found.counts.len() as f32).sum();
                let each = left / (occurrences + distinct);
                for (found, weight) in found() {
                    for (token, count) in &found.counts {
                        row[*token as usize] += each * weight * *count as f32;
                    }
                }
                left = each * distinct;
            }
        }
        let each = left / self.vocabulary as f32;
        row.iter_mut().for_each(|probability| *probability += each);
    }
}

impl Model for Ngram {
    /// The last tokens.
    type Place = Vec<u32>;

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn forget(&mut self) {
        self.request = Counts::default();
        self.tokens.clear();
    }

    fn append(&mut self, token: u32) {
        assert!((token as usize) < self.vocabulary, "token {token} is outside the vocabulary");
        self.tokens.push(token);
        if self.tokens.len() > self.order {
            self.tokens.remove(0);
        }
        self.request.add_last(&self.tokens, self.order);
    }

    fn place(&self) -> Vec<u32> {
        self.tokens[self.tokens.len().saturating_sub(self.order - 1)..].to_vec()
    }

    fn follow(&self, from: &[(&Vec<u32>, u32)]) -> Vec<Vec<u32>> {
        let behind = |(place, token): &(&Vec<u32>, u32)| {
            let mut place = [&place[..], &[*token]].concat();
            place.drain(..place.len().saturating_sub(self.order - 1));
            place
        };
        from.iter().map(behind).collect()
    }

    fn distributions(&self, places: &[&Vec<u32>], out: &mut Vec<f32>) {
        out.clear();
        out.resize(places.len() * self.vocabulary, 0.0);
        for (place, row) in places.iter().zip(out.chunks_exact_mut(self.vocabulary)) {
            self.add(place, row);
        }
    }
}
