//! Makes the bases of a profile: principal components of K and V over groups of layers
//! ([`cenote_codec::Bases`]).
//!
//! One pass over prompts sums means and second moments of each group's vectors, keys rotated back to
//! position zero. What errors cost is the metric: for a channel of K the mean square of the queries
//! there, for V of a head the square of the output projection, over the variance of the layer's
//! output. Under this metric the eigenvectors of the covariance are the components.
//!
//! The last prompts are not part of these sums. A second pass over them measures deviation and
//! magnitude of each component on text that did not shape it, so that tables of probabilities fit
//! other texts.

use crate::eigen::eigen;
use crate::profile::look;
use crate::{StudyError, evaluate::check_windows};
use cenote_base::TokenId;
use cenote_codec::{Bases, Basis, CHANNELS_MAX, Prism, Side};
use cenote_engine::LoadedModel;

/// Channels of a group, unless a single layer has more.
const GROUP_CHANNELS: usize = 1024;
/// One in so many prompts is kept for the second pass.
const HELD_OUT: usize = 8;
/// Fewer prompts than this count in both passes.
const FEWEST: usize = 4;
/// Rows of a covariance that are summed together.
const ROWS: usize = 8;
/// The least eigenvalue of a metric, over the greatest: values without effect are still restored.
const LEAST_METRIC: f64 = 1e-6;

/// Sums over the tokens of one side of a group.
struct Sums {
    channels: usize,
    tokens: f64,
    /// Subtracted from all values, so that squares stay small: the mean of the first prompt.
    origin: Vec<f32>,
    sums: Vec<f64>,
    /// Products of channels, the upper triangle by row.
    products: Vec<f64>,
}

impl Sums {
    fn new(channels: usize) -> Self {
        let zero = || vec![0.0; channels];
        Self { channels, tokens: 0.0, origin: Vec::new(), sums: zero(), products: vec![0.0; channels * channels] }
    }

    /// Adds tokens, `[token][channel]`.
    fn add(&mut self, mut values: Vec<f32>) {
        let channels = self.channels;
        let count = values.len() / channels;
        if self.origin.is_empty() {
            let mean = |channel| values.iter().skip(channel).step_by(channels).sum::<f32>() / count as f32;
            self.origin = (0..channels).map(mean).collect();
        }
        for token in values.chunks_exact_mut(channels) {
            for ((value, origin), sum) in token.iter_mut().zip(&self.origin).zip(&mut self.sums) {
                *value -= origin;
                *sum += f64::from(*value);
            }
        }
        self.tokens += count as f64;
        let mut some = vec![0.0_f32; ROWS * channels];
        for first in (0..channels).step_by(ROWS) {
            let rows = ROWS.min(channels - first);
            some.fill(0.0);
            for token in values.chunks_exact(channels) {
                let right = &token[first..];
                for (row, factor) in some.chunks_exact_mut(channels).zip(&right[..rows]) {
                    row[first..].iter_mut().zip(right).for_each(|(sum, value)| *sum += factor * value);
                }
            }
            for (row, some) in (first..first + rows).zip(some.chunks_exact(channels)) {
                let products = &mut self.products[row * channels..][..channels];
                products.iter_mut().zip(some).for_each(|(sum, value)| *sum += f64::from(*value));
            }
        }
    }

    fn mean(&self, channel: usize) -> f64 {
        self.sums[channel] / self.tokens
    }

    /// The covariance of two channels.
    fn covariance(&self, a: usize, b: usize) -> f64 {
        let (first, second) = (a.min(b), a.max(b));
        self.products[first * self.channels + second] / self.tokens - self.mean(a) * self.mean(b)
    }
}

/// The metric of a group: its square root and the inverse of that, both symmetric.
enum Root {
    /// By channel.
    Diagonal(Vec<f64>),
    /// A matrix and its inverse for each head.
    Heads { dim: usize, roots: Vec<f64>, inverses: Vec<f64> },
}

impl Root {
    /// Multiplies each row of a square matrix by the root or its inverse: rows are vectors.
    fn apply(&self, rows: &mut [f64], width: usize, is_inverse: bool) {
        for row in rows.chunks_exact_mut(width) {
            match self {
                Self::Diagonal(roots) => {
                    let all = row.iter_mut().zip(roots);
                    all.for_each(|(value, root)| if is_inverse { *value /= root } else { *value *= root });
                }
                Self::Heads { dim, roots, inverses } => {
                    let matrices = if is_inverse { inverses } else { roots };
                    for (head, matrix) in row.chunks_exact_mut(*dim).zip(matrices.chunks_exact(dim * dim)) {
                        let old = head.to_vec();
                        for (value, weights) in head.iter_mut().zip(matrix.chunks_exact(*dim)) {
                            *value = weights.iter().zip(&old).map(|(weight, old)| weight * old).sum();
                        }
                    }
                }
            }
        }
    }

    /// The metric itself, as codecs take it.
    fn metric(&self) -> Vec<f32> {
        match self {
            Self::Diagonal(roots) => roots.iter().map(|root| (root * root) as f32).collect(),
            Self::Heads { dim, roots, .. } => roots
                .chunks_exact(dim * dim)
                .flat_map(|root| {
                    (0..dim * dim).map(move |at| {
                        let [a, b] = [at / dim, at % dim].map(|row| &root[row * dim..][..*dim]);
                        a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() as f32
                    })
                })
                .collect(),
        }
    }
}

/// The root of the metric of a head's values, and its inverse.
fn root_of(metric: &[f64], dim: usize) -> Option<[Vec<f64>; 2]> {
    let (values, vectors) = eigen(metric.to_vec(), dim)?;
    let least = (values[0] * LEAST_METRIC).max(1e-30);
    let build = |of: &dyn Fn(f64) -> f64| -> Vec<f64> {
        let mut all = vec![0.0; dim * dim];
        for (value, vector) in values.iter().zip(vectors.chunks_exact(dim)) {
            let factor = of(value.max(least).sqrt());
            for (row, a) in all.chunks_exact_mut(dim).zip(vector) {
                row.iter_mut().zip(vector).for_each(|(sum, b)| *sum += factor * a * b);
            }
        }
        all
    };
    Some([build(&|root| root), build(&|root| 1.0 / root)])
}

/// The model's shape, as bases see it.
struct Shapes {
    layers: usize,
    /// Layers of a group.
    group: usize,
    /// Channels of a layer.
    channels: usize,
    dim: usize,
    frequencies: Vec<f32>,
}

impl Shapes {
    fn groups(&self) -> usize {
        self.layers.div_ceil(self.group)
    }

    fn group_channels(&self, number: usize) -> usize {
        (self.layers - number * self.group).min(self.group) * self.channels
    }

    /// Rotates keys of a token back to position zero.
    fn rotate_back(&self, keys: &mut [f32], position: usize) {
        let half = self.dim / 2;
        for (pair, frequency) in self.frequencies.iter().enumerate() {
            let (sin, cos) = (position as f64 * f64::from(*frequency)).sin_cos();
            let (sin, cos) = (sin as f32, cos as f32);
            for head in keys.chunks_exact_mut(self.dim) {
                let (a, b) = (head[pair], head[pair + half]);
                head[pair] = a * cos + b * sin;
                head[pair + half] = b * cos - a * sin;
            }
        }
    }

    /// Computes a prompt. Calls `take` with each group's tokens of K and of V,
    /// `[token][layer][head][channel]`, without the first tokens, which stay raw. `queries` receives
    /// the sums of squares of the queries of a layer, `[head][channel]`.
    fn observe(
        &self,
        model: &LoadedModel,
        prompt: &[TokenId],
        take: &mut (dyn FnMut(usize, [Vec<f32>; 2]) + Send),
        queries: &mut (dyn FnMut(usize, &[f32]) + Send),
    ) {
        let skipped = Prism::FIRST_TOKENS.min(prompt.len());
        let mut of_group: [Vec<f32>; 2] = Default::default();
        look(model, prompt, &mut |seen| {
            let (number, at) = (seen.layer / self.group, seen.layer % self.group);
            let width = self.group_channels(number);
            if at == 0 {
                of_group = [0, 1].map(|_| vec![0.0; (prompt.len() - skipped) * width]);
            }
            for (token, [q, k, v]) in seen.tokens().enumerate().skip(skipped) {
                let place = (token - skipped) * width + at * self.channels;
                let [keys, values] = &mut of_group;
                let keys = &mut keys[place..place + self.channels];
                keys.copy_from_slice(k);
                self.rotate_back(keys, token);
                values[place..place + self.channels].copy_from_slice(v);
                queries(seen.layer, q);
            }
            if (at + 1) * self.channels == width {
                take(number, std::mem::take(&mut of_group));
            }
        });
    }
}

/// Makes bases from prompts of equal length. `progress` receives 1 for each prompt and each group.
///
/// # Errors
/// The prompts are not whole blocks of 16, or too long for the model, or its KV is not finite, or a
/// layer has too many channels.
pub fn bases(
    model: &LoadedModel,
    prompts: &[Vec<TokenId>],
    progress: &mut dyn FnMut(usize),
) -> Result<Bases, StudyError> {
    check_windows(model, prompts, 16)?;
    let config = model.llama().config();
    let channels = config.num_kv_heads * config.head_dim;
    if channels > CHANNELS_MAX {
        return Err(StudyError::Model(format!("{channels} channels of a layer are too many for bases")));
    }
    let shapes = Shapes {
        layers: config.num_layers,
        group: (GROUP_CHANNELS / channels).clamp(1, config.num_layers),
        channels,
        dim: config.head_dim,
        frequencies: config.rope.inverse_frequencies(config.head_dim),
    };
    let held_out = if prompts.len() < FEWEST { 0 } else { prompts.len().div_ceil(HELD_OUT) };
    let (shaping, judging) = prompts.split_at(prompts.len() - held_out);
    let judging = if judging.is_empty() { shaping } else { judging };
    let new = |number| [Sums::new(shapes.group_channels(number)), Sums::new(shapes.group_channels(number))];
    let mut sums: Vec<[Sums; 2]> = (0..shapes.groups()).map(new).collect();
    let mut queries = vec![vec![0.0_f64; config.num_heads * config.head_dim]; config.num_layers];
    for prompt in shaping {
        let mut take = |number: usize, [k, v]: [Vec<f32>; 2]| {
            sums[number][0].add(k);
            sums[number][1].add(v);
        };
        let mut add = |layer: usize, q: &[f32]| {
            queries[layer].iter_mut().zip(q).for_each(|(sum, value)| *sum += f64::from(*value).powi(2));
        };
        shapes.observe(model, prompt, &mut take, &mut add);
        progress(1);
    }
    let broken = || StudyError::Model("its KV is not finite, or has no principal components".to_owned());
    let mut groups = Vec::with_capacity(sums.len());
    for (number, [k, v]) in sums.iter().enumerate() {
        let layers = number * shapes.group..(number * shapes.group + shapes.group).min(shapes.layers);
        let metric_k = layers.clone().flat_map(|layer| key_roots(model, &queries[layer], k.tokens)).collect();
        let metric_v = value_roots(model, layers, v).ok_or_else(broken)?;
        groups.push([
            basis(k, &Root::Diagonal(metric_k), Side::K).ok_or_else(broken)?,
            basis(v, &metric_v, Side::V).ok_or_else(broken)?,
        ]);
        progress(1);
    }
    let mut spreads: Vec<[Spread; 2]> = groups.iter().map(|sides| sides.each_ref().map(Spread::new)).collect();
    for prompt in judging {
        let mut take = |number: usize, sides: [Vec<f32>; 2]| {
            for (spread, values) in spreads[number].iter_mut().zip(sides) {
                spread.add(&values, shapes.dim);
            }
        };
        shapes.observe(model, prompt, &mut take, &mut |_, _| {});
        progress(1);
    }
    let measured: Vec<_> = spreads.into_iter().map(|sides| sides.map(Spread::end)).collect();
    for (basis, (deviations, magnitudes)) in groups.iter_mut().flatten().zip(measured.into_iter().flatten()) {
        (basis.deviations, basis.magnitudes) = (deviations, magnitudes);
    }
    Ok(Bases { frequencies: shapes.frequencies.clone(), group: shapes.group as u16, groups })
}

/// How often `progress` of [`bases`] is called.
#[must_use]
pub fn steps(model: &LoadedModel, prompts: usize) -> usize {
    let config = model.llama().config();
    let group = (GROUP_CHANNELS / (config.num_kv_heads * config.head_dim).max(1)).clamp(1, config.num_layers);
    let again = if prompts < FEWEST { prompts } else { 0 };
    prompts + again + config.num_layers.div_ceil(group)
}

/// The roots of the metric of a layer's K: the size of a pair's queries over the root of the
/// channels.
fn key_roots(model: &LoadedModel, queries: &[f64], tokens: f64) -> Vec<f64> {
    let config = model.llama().config();
    let (dim, group) = (config.head_dim, config.num_heads / config.num_kv_heads);
    let mut squares = vec![0.0; config.num_kv_heads * dim];
    for (head, queries) in queries.chunks_exact(dim).enumerate() {
        for (at, query) in queries.iter().enumerate() {
            // Rotation mixes a pair, so both channels have the mean of both.
            for channel in [at, (at + dim / 2) % dim] {
                squares[head / group * dim + channel] += query / (2 * group) as f64;
            }
        }
    }
    let mean = squares.iter().sum::<f64>() / squares.len() as f64;
    squares.iter().map(|square| (square.max(mean * LEAST_METRIC).max(1e-30) / (tokens * dim as f64)).sqrt()).collect()
}

/// The roots of the metric of V of some layers.
fn value_roots(model: &LoadedModel, layers: std::ops::Range<usize>, sums: &Sums) -> Option<Root> {
    let dim = model.llama().config().head_dim;
    let (mut roots, mut inverses, mut first) = (Vec::new(), Vec::new(), 0);
    for layer in layers {
        let metrics: Vec<f64> = model.llama().value_metrics(layer).into_iter().map(f64::from).collect();
        // The variance of what the layer would add if each query attended to one token.
        let mut variance = 0.0;
        for (head, metric) in metrics.chunks_exact(dim * dim).enumerate() {
            for (at, weight) in metric.iter().enumerate() {
                let [a, b] = [at / dim, at % dim].map(|channel| first + head * dim + channel);
                variance += weight * sums.covariance(a, b);
            }
        }
        for metric in metrics.chunks_exact(dim * dim) {
            let scaled: Vec<f64> = metric.iter().map(|value| value / variance.max(1e-30)).collect();
            let [root, inverse] = root_of(&scaled, dim)?;
            roots.extend(root);
            inverses.extend(inverse);
        }
        first += metrics.len() / dim;
    }
    Some(Root::Heads { dim, roots, inverses })
}

/// The components of a side of a group. Magnitudes are not known yet.
fn basis(sums: &Sums, root: &Root, side: Side) -> Option<Basis> {
    let channels = sums.channels;
    // The covariance with the root on both sides: rows, then columns, which symmetry makes rows.
    let mut weighted: Vec<f64> =
        (0..channels * channels).map(|at| sums.covariance(at / channels, at % channels)).collect();
    root.apply(&mut weighted, channels, false);
    transpose(&mut weighted, channels);
    root.apply(&mut weighted, channels, false);
    let (variances, mut vectors) = eigen(weighted, channels)?;
    let least = f64::from(Prism::least_deviation(side));
    let count = variances.iter().take_while(|variance| variance.max(0.0).sqrt() >= least).count().max(1);
    vectors.truncate(count * channels);
    root.apply(&mut vectors, channels, true);
    let mut basis = Basis {
        means: (0..channels).map(|at| (f64::from(sums.origin[at]) + sums.mean(at)) as f32).collect(),
        metric: root.metric(),
        deviations: variances[..count].iter().map(|variance| variance.max(0.0).sqrt() as f32).collect(),
        magnitudes: vec![0.0; count],
        ..Basis::default()
    };
    for channel in 0..channels {
        let weights = || vectors.iter().skip(channel).step_by(channels);
        let most = weights().fold(0.0_f64, |most, weight| most.max(weight.abs()));
        let scale = most / f64::from(i16::MAX);
        basis.scales.push(scale as f32);
        basis.matrix.extend(weights().map(|weight| if scale > 0.0 { (weight / scale).round() as i16 } else { 0 }));
    }
    Some(basis)
}

fn transpose(matrix: &mut [f64], size: usize) {
    for row in 0..size {
        for column in 0..row {
            matrix.swap(row * size + column, column * size + row);
        }
    }
}

/// Squares and magnitudes of components over tokens.
struct Spread {
    basis: Basis,
    tokens: f64,
    squares: Vec<f64>,
    magnitudes: Vec<f64>,
}

impl Spread {
    fn new(basis: &Basis) -> Self {
        let zero = || vec![0.0; basis.components()];
        Self { basis: basis.clone(), tokens: 0.0, squares: zero(), magnitudes: zero() }
    }

    /// Adds tokens, `[token][channel]`.
    fn add(&mut self, values: &[f32], dim: usize) {
        let (channels, count) = (self.basis.means.len(), self.basis.components());
        let mut components = vec![0.0_f32; count];
        for token in values.chunks_exact(channels) {
            let centered: Vec<f32> = token.iter().zip(&self.basis.means).map(|(value, mean)| value - mean).collect();
            components.fill(0.0);
            for (channel, weights) in self.basis.matrix.chunks_exact(count).enumerate() {
                let felt = if self.basis.metric.len() == channels {
                    self.basis.metric[channel] * centered[channel]
                } else {
                    let row = &self.basis.metric[channel * dim..][..dim];
                    row.iter().zip(&centered[channel / dim * dim..]).map(|(weight, value)| weight * value).sum()
                };
                let factor = felt * self.basis.scales[channel];
                components.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += factor * f32::from(*weight));
            }
            for ((component, square), magnitude) in components.iter().zip(&mut self.squares).zip(&mut self.magnitudes) {
                *square += f64::from(*component).powi(2);
                *magnitude += f64::from(component.abs());
            }
            self.tokens += 1.0;
        }
    }

    /// Deviations and mean magnitudes.
    fn end(self) -> (Vec<f32>, Vec<f32>) {
        let deviations = self.squares.iter().map(|square| (square / self.tokens).sqrt() as f32).collect();
        let magnitudes = self.magnitudes.iter().map(|magnitude| (magnitude / self.tokens) as f32).collect();
        (deviations, magnitudes)
    }
}
