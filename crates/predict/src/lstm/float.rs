//! The network in f32, as it is trained, and its rounding to int8.

use super::weights::{Layer, Rows, Weights};
use super::{EMBEDDING, GATES, HIDDEN, LAYERS};
use cenote_base::prng::Prng;

/// A layer, its rows ordered by gate (input, forget, cell, output) and then by cell.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatLayer {
    /// Weights of the inputs, row by row.
    pub input: Vec<f32>,
    /// Weights of what the layer's cells showed before, row by row.
    pub state: Vec<f32>,
    /// One value for each row.
    pub bias: Vec<f32>,
}

/// A trained network.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatNetwork {
    /// 64 values for each token.
    pub embedding: Vec<f32>,
    /// The layers.
    pub layers: [FloatLayer; LAYERS],
    /// 64 rows of 128 weights. What they make of the second layer is multiplied by a token's
    /// embedding: its logit.
    pub projection: Vec<f32>,
    /// One value for each token.
    pub output_bias: Vec<f32>,
}

/// What the cells of each layer show, and their values.
pub type FloatState = [[Vec<f32>; 2]; LAYERS];

impl FloatNetwork {
    /// Random weights, for measurements that do not depend on them.
    #[must_use]
    pub fn random(vocabulary: usize, prng: &mut Prng) -> Self {
        let mut values = |count: usize, bound: f64| -> Vec<f32> {
            (0..count).map(|_| ((2.0 * prng.next_f64() - 1.0) * bound) as f32).collect()
        };
        let mut layer = |inputs: usize| FloatLayer {
            input: values(GATES * inputs, 0.3),
            state: values(GATES * HIDDEN, 0.2),
            bias: values(GATES, 0.5),
        };
        let layers = [layer(EMBEDDING), layer(HIDDEN)];
        Self {
            layers,
            embedding: values(vocabulary * EMBEDDING, 1.0),
            projection: values(EMBEDDING * HIDDEN, 0.5),
            output_bias: values(vocabulary, 1.0),
        }
    }

    /// The trained values: weights and biases.
    #[must_use]
    pub fn parameters(&self) -> usize {
        let layers = self.layers.iter().map(|layer| layer.input.len() + layer.state.len() + layer.bias.len());
        self.embedding.len() + layers.sum::<usize>() + self.projection.len() + self.output_bias.len()
    }

    /// The state behind no tokens.
    #[must_use]
    pub fn start(&self) -> FloatState {
        std::array::from_fn(|_| std::array::from_fn(|_| vec![0.0; HIDDEN]))
    }

    /// Moves a state behind a token.
    pub fn step(&self, state: &mut FloatState, token: u32) {
        let mut input = self.embedding[token as usize * EMBEDDING..][..EMBEDDING].to_vec();
        for (layer, [shown, memory]) in self.layers.iter().zip(state) {
            let mut sums = layer.bias.clone();
            add_products(&layer.input, &input, &mut sums);
            add_products(&layer.state, shown, &mut sums);
            let sigmoid = |sum: f32| 1.0 / (1.0 + (-sum).exp());
            for cell in 0..HIDDEN {
                let [input, forget, value, output] = [0, 1, 2, 3].map(|gate| sums[gate * HIDDEN + cell]);
                memory[cell] = sigmoid(forget) * memory[cell] + sigmoid(input) * value.tanh();
                shown[cell] = sigmoid(output) * memory[cell].tanh();
            }
            input.clone_from(shown);
        }
    }

    /// Logits of all tokens.
    #[must_use]
    pub fn logits(&self, state: &FloatState) -> Vec<f32> {
        let mut logits = self.output_bias.clone();
        let mut projected = vec![0.0; EMBEDDING];
        add_products(&self.projection, &state[LAYERS - 1][0], &mut projected);
        add_products(&self.embedding, &projected, &mut logits);
        logits
    }

    /// Rounds weights to int8, each row with its own scale.
    #[must_use]
    pub fn quantize(&self) -> Weights {
        let layer = |layer: &FloatLayer| Layer {
            input: Rows::quantize(&layer.input, layer.input.len() / GATES),
            state: Rows::quantize(&layer.state, HIDDEN),
            bias: layer.bias.clone(),
        };
        Weights {
            embedding: Rows::quantize(&self.embedding, EMBEDDING),
            layers: self.layers.each_ref().map(layer),
            projection: Rows::quantize(&self.projection, HIDDEN),
            output_bias: self.output_bias.clone(),
        }
    }
}

fn add_products(weights: &[f32], values: &[f32], sums: &mut [f32]) {
    for (sum, weights) in sums.iter_mut().zip(weights.chunks_exact(values.len())) {
        *sum += weights.iter().zip(values).map(|(weight, value)| weight * value).sum::<f32>();
    }
}

impl Rows {
    fn quantize(values: &[f32], columns: usize) -> Self {
        let (mut codes, mut scales) = (Vec::with_capacity(values.len()), Vec::new());
        for row in values.chunks_exact(columns) {
            let scale = row.iter().fold(0.0_f32, |largest, value| largest.max(value.abs())) / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            codes.extend(row.iter().map(|value| (value * inverse).round().clamp(-127.0, 127.0) as i8));
            scales.push(scale);
        }
        Self { codes, scales }
    }
}
