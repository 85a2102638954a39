//! The recurrent predictor of CXL-SpecKV §3.4.1: embeddings of 64 values, two LSTM layers of 128
//! cells, and one output per token.
//!
//! The paper does not say how the output is computed. Here a projection leads back to 64 values, and
//! their product with a token's embedding is that token's logit. A matrix of its own for the output
//! would be twice as large as the embedding and is half of what an evaluation reads.
//!
//! The paper's model reads the last 16 tokens. A recurrent network need not read them again: its
//! state is what they left. So a token costs one evaluation, and [`History::Last`] is there to
//! measure what the difference is.

mod float;
mod network;
mod weights;

pub use float::{FloatLayer, FloatNetwork};
pub use network::{Network, Place};
pub use weights::{Weights, WeightsError};

use crate::Model;

/// Values of a token's embedding.
pub const EMBEDDING: usize = 64;
/// Cells of a layer.
pub const HIDDEN: usize = 128;
/// Layers.
pub const LAYERS: usize = 2;
/// Gates of a layer: input, forget, cell, output.
const GATES: usize = 4 * HIDDEN;

/// Tokens that a guess depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// All of the request.
    Request,
    /// So many of the last ones, read again for each token.
    Last(usize),
}

/// Predicts with a trained network.
#[derive(Clone, Debug)]
pub struct Lstm<'a> {
    network: &'a Network,
    history: History,
    /// The last tokens, if the history is bounded.
    tokens: Vec<u32>,
    place: Place,
}

impl<'a> Lstm<'a> {
    /// Behind no tokens.
    ///
    /// # Panics
    /// The history is of no tokens.
    #[must_use]
    pub fn new(network: &'a Network, history: History) -> Self {
        assert!(history != History::Last(0), "a guess depends on tokens");
        Self { network, history, tokens: Vec::new(), place: Place::EMPTY }
    }
}

impl Model for Lstm<'_> {
    type Place = Place;

    fn vocabulary(&self) -> usize {
        self.network.vocabulary()
    }

    fn forget(&mut self) {
        self.tokens.clear();
        self.place = Place::EMPTY;
    }

    fn append(&mut self, token: u32) {
        match self.history {
            History::Request => self.network.step(&mut [&mut self.place], &[token]),
            History::Last(count) => {
                if self.tokens.len() == count {
                    self.tokens.remove(0);
                }
                self.tokens.push(token);
                self.place = Place::EMPTY;
                self.tokens.iter().for_each(|token| self.network.step(&mut [&mut self.place], &[*token]));
            }
        }
    }

    fn place(&self) -> Place {
        self.place.clone()
    }

    fn follow(&self, from: &[(&Place, u32)]) -> Vec<Place> {
        let mut places: Vec<Place> = from.iter().map(|(place, _)| (*place).clone()).collect();
        let tokens: Vec<u32> = from.iter().map(|(_, token)| *token).collect();
        for (places, tokens) in places.chunks_mut(Network::TOGETHER).zip(tokens.chunks(Network::TOGETHER)) {
            self.network.step(&mut places.iter_mut().collect::<Vec<_>>(), tokens);
        }
        places
    }

    fn distributions(&self, places: &[&Place], out: &mut Vec<f32>) {
        let vocabulary = self.network.vocabulary();
        out.resize(places.len() * vocabulary, 0.0);
        for (places, out) in places.chunks(Network::TOGETHER).zip(out.chunks_mut(Network::TOGETHER * vocabulary)) {
            self.network.distributions(places, out);
        }
    }
}
