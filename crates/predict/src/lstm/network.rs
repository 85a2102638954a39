//! The network in int8: weights as a product reads them, and its state.

use super::weights::Weights;
use super::{EMBEDDING, GATES, HIDDEN, LAYERS};
use crate::guess::{Guess, best_by_maxima};
use crate::simd::{Matrix, Shape, multiply, probabilities, step_cells};

/// The factor of what cells show: 127 is 1.
const SHOWN_FACTOR: f32 = 1.0 / 127.0;

/// The state behind some tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// What the cells show: signed bytes plus 128.
    shown: [[u8; HIDDEN]; LAYERS],
    memory: [[f32; HIDDEN]; LAYERS],
}

impl Place {
    /// Behind no tokens.
    pub const EMPTY: Self = Self { shown: [[128; HIDDEN]; LAYERS], memory: [[0.0; HIDDEN]; LAYERS] };
}

#[derive(Clone, Debug)]
struct Layer {
    input: Matrix,
    state: Matrix,
    bias: Vec<f32>,
}

/// A trained network, ready to run.
#[derive(Clone, Debug)]
pub struct Network {
    /// Of each token: signed bytes plus 128.
    embedding: Vec<[u8; EMBEDDING]>,
    embedding_factors: Vec<f32>,
    layers: [Layer; LAYERS],
    projection: Matrix,
    /// The embedding again, in the order of a product.
    output: Matrix,
    output_bias: Vec<f32>,
}

impl Network {
    /// States that are evaluated together: weights are read once for all of them.
    pub const TOGETHER: usize = 4;

    /// Arranges weights for products.
    #[must_use]
    pub fn new(weights: &Weights) -> Self {
        let embedding = weights.embedding.codes.as_chunks::<EMBEDDING>().0.iter();
        let layer = |at: usize| {
            let layer = &weights.layers[at];
            let inputs = if at == 0 { EMBEDDING } else { HIDDEN };
            Layer {
                input: Matrix::new(Shape { rows: GATES, columns: inputs }, &layer.input.codes, &layer.input.scales),
                state: Matrix::new(Shape { rows: GATES, columns: HIDDEN }, &layer.state.codes, &layer.state.scales),
                bias: layer.bias.clone(),
            }
        };
        let shape = Shape { rows: weights.vocabulary(), columns: EMBEDDING };
        let Weights { projection, embedding: output, .. } = weights;
        Self {
            embedding: embedding.map(|codes| codes.map(|code| code as u8 ^ 0x80)).collect(),
            embedding_factors: weights.embedding.scales.clone(),
            layers: std::array::from_fn(layer),
            projection: Matrix::new(Shape { rows: EMBEDDING, columns: HIDDEN }, &projection.codes, &projection.scales),
            output: Matrix::new(shape, &output.codes, &output.scales),
            output_bias: weights.output_bias.clone(),
        }
    }

    /// Number of tokens.
    #[must_use]
    pub const fn vocabulary(&self) -> usize {
        self.embedding.len()
    }

    /// Moves each place behind a token.
    ///
    /// # Panics
    /// There are no places or more than [`Network::TOGETHER`], not as many tokens, or a token is
    /// outside the vocabulary.
    pub fn step(&self, places: &mut [&mut Place], tokens: &[u32]) {
        assert!(places.len() == tokens.len() && places.len() <= Self::TOGETHER, "a token for each place");
        let mut gates = [[0.0; GATES]; Self::TOGETHER];
        for (at, layer) in self.layers.iter().enumerate() {
            let mut sums: Vec<&mut [f32]> = gates[..places.len()].iter_mut().map(|row| row.as_mut_slice()).collect();
            if at == 0 {
                let inputs: Vec<&[u8]> = tokens.iter().map(|token| &self.embedding[*token as usize][..]).collect();
                let factors: Vec<f32> = tokens.iter().map(|token| self.embedding_factors[*token as usize]).collect();
                multiply(&layer.input, &inputs, &factors, Some(&layer.bias), &mut sums);
            } else {
                let inputs: Vec<&[u8]> = places.iter().map(|place| &place.shown[at - 1][..]).collect();
                multiply(
                    &layer.input,
                    &inputs,
                    &[SHOWN_FACTOR; Self::TOGETHER][..inputs.len()],
                    Some(&layer.bias),
                    &mut sums,
                );
            }
            let states: Vec<&[u8]> = places.iter().map(|place| &place.shown[at][..]).collect();
            multiply(&layer.state, &states, &[SHOWN_FACTOR; Self::TOGETHER][..states.len()], None, &mut sums);
            for (place, gates) in places.iter_mut().zip(&gates) {
                step_cells(gates, &mut place.memory[at], &mut place.shown[at]);
            }
        }
    }

    /// One evaluation: moves each place behind a token, fills `out` with the probabilities of all
    /// tokens behind it, and returns the `count` best of them.
    ///
    /// # Panics
    /// As [`Network::step`] and [`Network::distributions`].
    pub fn evaluate(
        &self,
        places: &mut [&mut Place],
        tokens: &[u32],
        count: usize,
        out: &mut [f32],
    ) -> Vec<Vec<Guess>> {
        self.step(places, tokens);
        let maxima = self.distributions(&places.iter().map(|place| &**place).collect::<Vec<_>>(), out);
        let rows = out.chunks_exact(self.vocabulary()).zip(&maxima);
        rows.map(|(row, maxima)| best_by_maxima(row, maxima, count)).collect()
    }

    /// Fills `out` with the probabilities of all tokens behind each place, place after place. Returns
    /// the highest of each 64 of them.
    ///
    /// # Panics
    /// There are no places or more than [`Network::TOGETHER`], or `out` has another length.
    pub fn distributions(&self, places: &[&Place], out: &mut [f32]) -> Vec<Vec<f32>> {
        let vocabulary = self.vocabulary();
        assert_eq!(out.len(), places.len() * vocabulary, "a probability for each token");
        let shown: Vec<&[u8]> = places.iter().map(|place| &place.shown[LAYERS - 1][..]).collect();
        let mut projected = [[0.0; EMBEDDING]; Self::TOGETHER];
        let mut sums: Vec<&mut [f32]> = projected[..places.len()].iter_mut().map(|row| row.as_mut_slice()).collect();
        multiply(&self.projection, &shown, &[SHOWN_FACTOR; Self::TOGETHER][..shown.len()], None, &mut sums);
        let rounded = projected.map(|values| rounded(&values));
        let inputs: Vec<&[u8]> = rounded[..places.len()].iter().map(|(codes, _)| &codes[..]).collect();
        let factors = rounded.map(|(_, factor)| factor);
        let mut rows: Vec<&mut [f32]> = out.chunks_exact_mut(vocabulary).collect();
        let mut maxima = vec![Vec::new(); places.len()];
        probabilities(&self.output, &inputs, &factors[..places.len()], Some(&self.output_bias), &mut rows, &mut maxima);
        maxima
    }
}

/// Values as signed bytes plus 128, and the factor of these bytes.
fn rounded(values: &[f32; EMBEDDING]) -> ([u8; EMBEDDING], f32) {
    let largest =
        values.iter().fold(0.0_f32, |largest, value| if value.abs() > largest { value.abs() } else { largest });
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    (values.map(|value| ((value * inverse).round_ties_even() as i8) as u8 ^ 0x80), largest / 127.0)
}
