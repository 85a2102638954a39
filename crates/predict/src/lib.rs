//! Floor 1: guesses at the next tokens of a request.
//!
//! Where token ids decide addresses, as in n-gram embedding tables, a guess at the next token lets
//! its rows be fetched a step early (CXL-SpecKV §3.4.1). Nothing here does I/O or reads a clock, and
//! equal tokens give equal guesses on every machine.
//!
//! | predictor | reads | learns from the request |
//! |---|---|---|
//! | [`Ngram`] | the last tokens, up to its order | yes |
//! | [`Suffix`] | the longest end of the request that occurred before | yes |
//! | [`Lstm`] | all tokens of the request, or the last 16 | no |
//! | [`Mixed`] | what two predictors read | which of the two is right |
#![deny(unsafe_code)]

mod beam;
mod guess;
mod lstm;
mod mixed;
mod ngram;
#[allow(unsafe_code, reason = "vector instructions")]
mod simd;
mod suffix;
#[cfg(test)]
mod tests;

pub use guess::{Guess, best};
pub use lstm::{
    EMBEDDING, FloatLayer, FloatNetwork, HIDDEN, History, LAYERS, Lstm, Network, Place as LstmPlace, Weights,
    WeightsError,
};
pub use mixed::Mixed;
pub use ngram::Ngram;
pub use simd::{Level, at_level};
pub use suffix::{Automaton, Suffix};

/// Width of the search for later tokens (CXL-SpecKV §3.4.1).
pub const BEAMS: usize = 4;

/// Guesses at the next tokens of one request.
pub trait TokenPredictor {
    /// Forgets the request. What was learned from a corpus stays.
    fn restart(&mut self);

    /// Appends a token to the request.
    ///
    /// # Panics
    /// The token is outside the vocabulary.
    fn observe(&mut self, token: u32);

    /// For each of the next `horizons` positions, the `count` most probable tokens, best first.
    fn predict(&self, horizons: usize, count: usize) -> Vec<Vec<Guess>>;
}

/// A predictor as a distribution over the next token. The [`beam`] search makes later guesses of it.
pub trait Model {
    /// What the distribution depends on: a place behind some tokens.
    type Place: Clone;

    /// Number of tokens.
    fn vocabulary(&self) -> usize;

    /// As [`TokenPredictor::restart`].
    fn forget(&mut self);

    /// As [`TokenPredictor::observe`].
    fn append(&mut self, token: u32);

    /// The place behind the request.
    fn place(&self) -> Self::Place;

    /// The place behind each of these places and a token. Nothing is learned from it.
    fn follow(&self, from: &[(&Self::Place, u32)]) -> Vec<Self::Place>;

    /// Fills `out` with the probabilities of all tokens behind each place, place after place.
    fn distributions(&self, places: &[&Self::Place], out: &mut Vec<f32>);
}

impl<M: Model> TokenPredictor for M {
    fn restart(&mut self) {
        self.forget();
    }

    fn observe(&mut self, token: u32) {
        self.append(token);
    }

    fn predict(&self, horizons: usize, count: usize) -> Vec<Vec<Guess>> {
        beam::search(self, horizons, count)
    }
}
