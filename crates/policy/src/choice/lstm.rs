//! Predicts choices with a small recurrent network, as CXL-SpecKV §3.4.1 predicts tokens.
//!
//! The paper's LSTM reads tokens and names the next ones. A token names no page, so this one reads what
//! each page was worth: one network runs beside every page, and says how probable it is that the next
//! query chooses it. It has [`HIDDEN`] cells. `cenote-lab study sparse --record` writes what it is
//! trained with, and `cenote-train predictor` trains it.

use super::{ChoicePredictor, ChoiceShape, Chooser, PageNumber, rankable, top_pages};

/// Values that describe a page in a step.
pub const FEATURES: usize = 4;
/// Cells of the network.
pub const HIDDEN: usize = 8;
/// Gates of a cell: input, forget, cell, output.
const GATES: usize = 4 * HIDDEN;
/// Number of weights: of the features, of the state, the biases, and of the output and its bias.
pub const WEIGHTS: usize = GATES * (FEATURES + HIDDEN + 1) + HIDDEN + 1;

/// The weights that `cenote-train predictor` wrote: f32, little endian, in the order of [`WEIGHTS`].
const SHIPPED: &[u8; 4 * WEIGHTS] = include_bytes!("lstm.weights");

/// The features of each page: its share of the attention by the scores' bound; its score in standard
/// deviations from the mean; whether it was chosen; its nearness to the end of the context.
#[must_use]
pub fn features(scores: &[f32], chosen: &[PageNumber]) -> Vec<[f32; FEATURES]> {
    let finite = scores.iter().copied().filter(|score| score.is_finite());
    let count = finite.clone().count().max(1) as f32;
    let mean = finite.clone().sum::<f32>() / count;
    let deviation = (finite.map(|score| (score - mean).powi(2)).sum::<f32>() / count).sqrt().max(1e-6);
    let highest = scores.iter().copied().map(rankable).fold(f32::NEG_INFINITY, f32::max);
    let mut features: Vec<[f32; FEATURES]> = (0..scores.len())
        .map(|page| {
            let score = rankable(scores[page]);
            let share = if highest.is_finite() { (score - highest).exp() } else { 0.0 };
            let deviations = if score.is_finite() { ((score - mean) / deviation).clamp(-4.0, 4.0) } else { -4.0 };
            [share, deviations, 0.0, 1.0 / (scores.len() - page) as f32]
        })
        .collect();
    chosen.iter().for_each(|page| features[*page as usize][2] = 1.0);
    features
}

/// The network beside one page.
#[derive(Clone, Copy, Debug)]
struct Cell {
    hidden: [f32; HIDDEN],
    memory: [f32; HIDDEN],
    /// Logit of the next choice.
    logit: f32,
}

/// The weights in the order in which a step reads them.
#[derive(Clone, Debug)]
struct Network {
    input: [[f32; FEATURES]; GATES],
    state: [[f32; HIDDEN]; GATES],
    bias: [f32; GATES],
    output: [f32; HIDDEN],
    output_bias: f32,
}

/// The networks of all pages.
#[derive(Clone, Debug)]
pub struct Lstm {
    shape: ChoiceShape,
    network: Box<Network>,
    cells: Vec<Vec<Cell>>,
}

impl Network {
    fn read(bytes: &[u8; 4 * WEIGHTS]) -> Self {
        let mut weights = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let mut next = || weights.next().expect("the length is checked");
        Self {
            input: std::array::from_fn(|_| std::array::from_fn(|_| next())),
            state: std::array::from_fn(|_| std::array::from_fn(|_| next())),
            bias: std::array::from_fn(|_| next()),
            output: std::array::from_fn(|_| next()),
            output_bias: next(),
        }
    }

    fn step(&self, cell: &mut Cell, features: &[f32; FEATURES]) {
        let gate = |at: usize| {
            let of = |weights: &[f32], values: &[f32]| -> f32 { weights.iter().zip(values).map(|(w, v)| w * v).sum() };
            self.bias[at] + of(&self.input[at], features) + of(&self.state[at], &cell.hidden)
        };
        let gates: [f32; GATES] = std::array::from_fn(gate);
        for at in 0..HIDDEN {
            let [input, forget, memory, output] = [0, 1, 2, 3].map(|gate| gates[gate * HIDDEN + at]);
            cell.memory[at] = sigmoid(forget) * cell.memory[at] + sigmoid(input) * memory.tanh();
            cell.hidden[at] = sigmoid(output) * cell.memory[at].tanh();
        }
        cell.logit = self.output_bias + self.output.iter().zip(&cell.hidden).map(|(w, h)| w * h).sum::<f32>();
    }
}

fn sigmoid(value: f32) -> f32 {
    1.0 / (1.0 + (-value).exp())
}

impl Lstm {
    /// Without observations, with the weights that ship.
    #[must_use]
    pub fn new(shape: ChoiceShape) -> Self {
        Self::with_weights(shape, SHIPPED)
    }

    /// With other weights.
    #[must_use]
    pub fn with_weights(shape: ChoiceShape, weights: &[u8; 4 * WEIGHTS]) -> Self {
        Self { shape, network: Box::new(Network::read(weights)), cells: vec![Vec::new(); shape.count()] }
    }
}

impl ChoicePredictor for Lstm {
    fn predict(&self, of: Chooser, num_pages: u32, count: usize) -> Vec<PageNumber> {
        let cells = &self.cells[self.shape.index(of)];
        let logits: Vec<f32> = cells.iter().take(num_pages as usize).map(|cell| cell.logit).collect();
        top_pages(&logits, count)
    }

    fn observe(&mut self, of: Chooser, scores: &[f32], chosen: &[PageNumber]) {
        let cells = &mut self.cells[self.shape.index(of)];
        let new = Cell { hidden: [0.0; HIDDEN], memory: [0.0; HIDDEN], logit: 0.0 };
        cells.resize(scores.len().max(cells.len()), new);
        for (cell, features) in cells.iter_mut().zip(features(scores, chosen)) {
            self.network.step(cell, &features);
        }
    }
}
