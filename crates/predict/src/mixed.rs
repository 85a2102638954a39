//! Two predictors, weighted by how right they were.
//!
//! A predictor's weight is multiplied by the probability that it gave each token of the request, as
//! Bayes' rule demands. A small share is exchanged, so that a predictor that was wrong for long can
//! recover. Predictors differ most where one is sure, so there is a weight for each pair of levels of
//! their highest probabilities.

use crate::Model;

/// Share that the weights exchange with each token.
const EXCHANGED: f32 = 0.02;
/// Levels of a highest probability: the upper bounds of all but the last.
const LEVELS: [f32; 5] = [0.05, 0.15, 0.35, 0.6, 0.85];
const CASES: usize = (LEVELS.len() + 1) * (LEVELS.len() + 1);

/// Mixes two predictors of one vocabulary.
#[derive(Clone, Debug)]
pub struct Mixed<A, B> {
    first: A,
    second: B,
    /// Weight of the first, in each case.
    weights: [f32; CASES],
    /// The weights that a request begins with.
    learned: [f32; CASES],
}

impl<A: Model, B: Model> Mixed<A, B> {
    /// Begins with equal weights.
    ///
    /// # Panics
    /// The vocabularies differ.
    #[must_use]
    pub fn new(first: A, second: B) -> Self {
        assert_eq!(first.vocabulary(), second.vocabulary(), "one vocabulary");
        Self { first, second, weights: [0.5; CASES], learned: [0.5; CASES] }
    }

    /// Observes a text, and begins later requests with the weights of its end.
    pub fn learn_weights(&mut self, text: &[u32]) {
        self.forget();
        text.iter().for_each(|token| self.append(*token));
        self.learned = self.weights;
        self.forget();
    }

    /// A mixture of others, which begins with the weights of this one.
    ///
    /// # Panics
    /// The vocabularies differ.
    #[must_use]
    pub fn with(&self, first: A, second: B) -> Self {
        Self { weights: self.learned, learned: self.learned, ..Self::new(first, second) }
    }

    fn both(&self, places: &[&(A::Place, B::Place)], rows: &mut [Vec<f32>; 2]) {
        let [first, second] = rows;
        self.first.distributions(&places.iter().map(|place| &place.0).collect::<Vec<_>>(), first);
        self.second.distributions(&places.iter().map(|place| &place.1).collect::<Vec<_>>(), second);
    }
}

/// The case of two distributions.
fn case(first: &[f32], second: &[f32]) -> usize {
    let level = |row: &[f32]| {
        let highest = row.iter().copied().fold(0.0, f32::max);
        LEVELS.partition_point(|bound| *bound < highest)
    };
    level(first) * (LEVELS.len() + 1) + level(second)
}

impl<A: Model, B: Model> Model for Mixed<A, B> {
    type Place = (A::Place, B::Place);

    fn vocabulary(&self) -> usize {
        self.first.vocabulary()
    }

    fn forget(&mut self) {
        self.first.forget();
        self.second.forget();
        self.weights = self.learned;
    }

    fn append(&mut self, token: u32) {
        let mut rows = [Vec::new(), Vec::new()];
        self.both(&[&self.place()], &mut rows);
        let weight = &mut self.weights[case(&rows[0], &rows[1])];
        let [first, second] = [*weight * rows[0][token as usize], (1.0 - *weight) * rows[1][token as usize]];
        if first + second > 0.0 {
            *weight = EXCHANGED * 0.5 + (1.0 - EXCHANGED) * first / (first + second);
        }
        self.first.append(token);
        self.second.append(token);
    }

    fn place(&self) -> Self::Place {
        (self.first.place(), self.second.place())
    }

    fn follow(&self, from: &[(&Self::Place, u32)]) -> Vec<Self::Place> {
        let first = self.first.follow(&from.iter().map(|(place, token)| (&place.0, *token)).collect::<Vec<_>>());
        let second = self.second.follow(&from.iter().map(|(place, token)| (&place.1, *token)).collect::<Vec<_>>());
        first.into_iter().zip(second).collect()
    }

    fn distributions(&self, places: &[&Self::Place], out: &mut Vec<f32>) {
        let mut rows = [Vec::new(), Vec::new()];
        self.both(places, &mut rows);
        let [first, second] = rows;
        *out = first;
        let vocabulary = self.vocabulary();
        for (out, second) in out.chunks_exact_mut(vocabulary).zip(second.chunks_exact(vocabulary)) {
            let weight = self.weights[case(out, second)];
            out.iter_mut().zip(second).for_each(|(out, second)| *out = weight * *out + (1.0 - weight) * second);
        }
    }
}
