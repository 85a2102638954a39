//! Two small nets, trained with Adam on all examples at once. The seed determines the net.

use cenote_base::prng::Prng;

/// Defaults of Kingma and Ba, except for the step size.
const STEP: f64 = 0.01;
const BETA_1: f64 = 0.9;
const BETA_2: f64 = 0.999;

struct Adam {
    first: Vec<f64>,
    second: Vec<f64>,
    steps: i32,
}

impl Adam {
    fn new(count: usize) -> Self {
        Self { first: vec![0.0; count], second: vec![0.0; count], steps: 0 }
    }

    fn step(&mut self, weights: &mut [f64], gradient: &[f64]) {
        self.steps += 1;
        let (scale_1, scale_2) = (1.0 - BETA_1.powi(self.steps), 1.0 - BETA_2.powi(self.steps));
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((weight, slope), (first, second)) in weights.iter_mut().zip(gradient).zip(moments) {
            *first += (1.0 - BETA_1) * (slope - *first);
            *second += (1.0 - BETA_2) * (slope * slope - *second);
            *weight -= STEP * (*first / scale_1) / ((*second / scale_2).sqrt() + 1e-8);
        }
    }
}

fn drawn(prng: &mut Prng, count: usize, fan_in: usize) -> Vec<f64> {
    let scale = (3.0 / fan_in.max(1) as f64).sqrt();
    (0..count).map(|_| scale * (2.0 * prng.next_f64() - 1.0)).collect()
}

/// A perceptron with one hidden layer.
pub(super) struct Mlp {
    inputs: usize,
    hidden: usize,
    outputs: usize,
    /// Per hidden unit its input weights and its bias; then per output its weights and its bias.
    weights: Vec<f64>,
}

impl Mlp {
    pub(super) fn new(inputs: usize, hidden: usize, outputs: usize, seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let mut weights = drawn(&mut prng, hidden * (inputs + 1), inputs);
        weights.extend(drawn(&mut prng, outputs * (hidden + 1), hidden));
        Self { inputs, hidden, outputs, weights }
    }

    fn forward(&self, input: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (into_hidden, into_output) = self.weights.split_at(self.hidden * (self.inputs + 1));
        let layer = |weights: &[f64], input: &[f64]| -> Vec<f64> {
            let unit = |row: &[f64]| row.iter().zip(input).map(|(w, x)| w * x).sum::<f64>() + row[input.len()];
            weights.chunks_exact(input.len() + 1).map(unit).collect()
        };
        let hidden: Vec<f64> = layer(into_hidden, input).into_iter().map(f64::tanh).collect();
        let output = layer(into_output, &hidden);
        (hidden, output)
    }

    pub(super) fn predict(&self, input: &[f64]) -> Vec<f64> {
        self.forward(input).1
    }

    /// Trains on all examples. `slope` is the gradient of the loss with respect to the outputs, for
    /// a target.
    pub(super) fn fit<T>(&mut self, examples: &[(Vec<f64>, T)], epochs: usize, slope: impl Fn(&[f64], &T) -> Vec<f64>) {
        let mut adam = Adam::new(self.weights.len());
        let split = self.hidden * (self.inputs + 1);
        for _ in 0..epochs {
            let mut gradient = vec![0.0; self.weights.len()];
            let (to_hidden, to_output) = gradient.split_at_mut(split);
            for (input, target) in examples {
                let (hidden, output) = self.forward(input);
                let slopes = slope(&output, target);
                let mut back = vec![0.0; self.hidden];
                for (at, slope) in slopes.iter().enumerate() {
                    let row = at * (self.hidden + 1);
                    for unit in 0..self.hidden {
                        to_output[row + unit] += slope * hidden[unit];
                        back[unit] += slope * self.weights[split + row + unit];
                    }
                    to_output[row + self.hidden] += slope;
                }
                for (unit, back) in back.iter().enumerate() {
                    let slope = back * (1.0 - hidden[unit] * hidden[unit]);
                    let row = unit * (self.inputs + 1);
                    for (at, value) in input.iter().enumerate() {
                        to_hidden[row + at] += slope * value;
                    }
                    to_hidden[row + self.inputs] += slope;
                }
            }
            let scale = 1.0 / examples.len().max(1) as f64;
            gradient.iter_mut().for_each(|slope| *slope *= scale);
            adam.step(&mut self.weights, &gradient);
        }
        debug_assert_eq!(self.weights.len(), split + self.outputs * (self.hidden + 1));
    }
}

/// An LSTM (Hochreiter and Schmidhuber 1997, with a forget gate): one number per step as input, and
/// one output after the last step.
pub(super) struct Lstm {
    hidden: usize,
    /// Per gate and unit: input weight, bias, and a weight per unit; then the output weights and
    /// the output bias.
    weights: Vec<f64>,
}

const GATES: usize = 4;

/// Values of one step that back-propagation needs.
struct Trace {
    input: f64,
    before: Vec<f64>,
    cell_before: Vec<f64>,
    /// Input, forget, output, candidate.
    gates: [Vec<f64>; GATES],
    cell: Vec<f64>,
}

impl Lstm {
    pub(super) fn new(hidden: usize, seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let mut weights = drawn(&mut prng, GATES * hidden * (hidden + 2), hidden + 1);
        weights.extend(drawn(&mut prng, hidden + 1, hidden));
        Self { hidden, weights }
    }

    fn row(&self, gate: usize, unit: usize) -> usize {
        (gate * self.hidden + unit) * (self.hidden + 2)
    }

    fn forward(&self, inputs: &[f64]) -> (Vec<Trace>, Vec<f64>, f64) {
        let mut state = vec![0.0; self.hidden];
        let mut cell = vec![0.0; self.hidden];
        let mut traces = Vec::with_capacity(inputs.len());
        for &input in inputs {
            let sum = |gate: usize, unit: usize| {
                let row = &self.weights[self.row(gate, unit)..][..self.hidden + 2];
                row[0] * input + row[1] + row[2..].iter().zip(&state).map(|(w, h)| w * h).sum::<f64>()
            };
            let gates: [Vec<f64>; GATES] = std::array::from_fn(|gate| {
                let shape = |value: f64| if gate == 3 { value.tanh() } else { 1.0 / (1.0 + (-value).exp()) };
                (0..self.hidden).map(|unit| shape(sum(gate, unit))).collect()
            });
            let next: Vec<f64> = (0..self.hidden).map(|u| gates[1][u] * cell[u] + gates[0][u] * gates[3][u]).collect();
            let after: Vec<f64> = (0..self.hidden).map(|u| gates[2][u] * next[u].tanh()).collect();
            let before = std::mem::replace(&mut state, after);
            let cell_before = std::mem::replace(&mut cell, next.clone());
            traces.push(Trace { input, before, cell_before, gates, cell: next });
        }
        let out = &self.weights[GATES * self.hidden * (self.hidden + 2)..];
        let value = out[..self.hidden].iter().zip(&state).map(|(w, h)| w * h).sum::<f64>() + out[self.hidden];
        (traces, state, value)
    }

    pub(super) fn predict(&self, inputs: &[f64]) -> f64 {
        self.forward(inputs).2
    }

    /// Trains with squared error as the loss.
    pub(super) fn fit(&mut self, examples: &[(Vec<f64>, f64)], epochs: usize) {
        let mut adam = Adam::new(self.weights.len());
        for _ in 0..epochs {
            let mut gradient = vec![0.0; self.weights.len()];
            for (inputs, target) in examples {
                self.backward(inputs, *target, &mut gradient);
            }
            let scale = 1.0 / examples.len().max(1) as f64;
            gradient.iter_mut().for_each(|slope| *slope *= scale);
            adam.step(&mut self.weights, &gradient);
        }
    }

    fn backward(&self, inputs: &[f64], target: f64, gradient: &mut [f64]) {
        let (traces, state, value) = self.forward(inputs);
        let slope = 2.0 * (value - target);
        let out = GATES * self.hidden * (self.hidden + 2);
        let mut to_state: Vec<f64> = (0..self.hidden).map(|unit| slope * self.weights[out + unit]).collect();
        for (unit, state) in state.iter().enumerate() {
            gradient[out + unit] += slope * state;
        }
        gradient[out + self.hidden] += slope;
        let mut to_cell = vec![0.0; self.hidden];
        for trace in traces.iter().rev() {
            let mut to_before = vec![0.0; self.hidden];
            for unit in 0..self.hidden {
                let [input, forget, output, candidate] = std::array::from_fn(|gate| trace.gates[gate][unit]);
                let squashed = trace.cell[unit].tanh();
                let cell = to_cell[unit] + to_state[unit] * output * (1.0 - squashed * squashed);
                // Chain rule through the activation of each gate.
                let slopes = [
                    cell * candidate * input * (1.0 - input),
                    cell * trace.cell_before[unit] * forget * (1.0 - forget),
                    to_state[unit] * squashed * output * (1.0 - output),
                    cell * input * (1.0 - candidate * candidate),
                ];
                for (gate, slope) in slopes.into_iter().enumerate() {
                    let row = self.row(gate, unit);
                    gradient[row] += slope * trace.input;
                    gradient[row + 1] += slope;
                    for from in 0..self.hidden {
                        gradient[row + 2 + from] += slope * trace.before[from];
                        to_before[from] += slope * self.weights[row + 2 + from];
                    }
                }
                to_cell[unit] = cell * forget;
            }
            to_state = to_before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the analytic gradient with central differences.
    #[test]
    fn the_lstm_gradient_equals_central_differences() {
        let mut net = Lstm::new(3, 5);
        let (inputs, target) = ([0.3, -0.7, 0.1], 0.4);
        let mut gradient = vec![0.0; net.weights.len()];
        net.backward(&inputs, target, &mut gradient);
        let loss = |net: &Lstm| (net.predict(&inputs) - target).powi(2);
        for (at, slope) in gradient.iter().enumerate() {
            let weight = net.weights[at];
            net.weights[at] = weight + 1e-6;
            let above = loss(&net);
            net.weights[at] = weight - 1e-6;
            let below = loss(&net);
            net.weights[at] = weight;
            let difference = (above - below) / 2e-6;
            assert!((slope - difference).abs() < 1e-6, "weight {at}: {slope} and {difference}");
        }
    }

    #[test]
    fn the_perceptron_fits_xor() {
        let examples: Vec<(Vec<f64>, f64)> =
            [([0.0, 0.0], 0.0), ([0.0, 1.0], 1.0), ([1.0, 0.0], 1.0), ([1.0, 1.0], 0.0)]
                .map(|(x, y)| (x.to_vec(), y))
                .to_vec();
        let mut net = Mlp::new(2, 8, 1, 1);
        net.fit(&examples, 800, |out, target| vec![2.0 * (out[0] - target)]);
        for (input, target) in &examples {
            assert!((net.predict(input)[0] - target).abs() < 0.1, "{input:?}");
        }
    }
}
