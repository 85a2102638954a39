//! Makes a model's profile in three passes over a text: means and steps, curves, and the error that
//! each part tolerates.
//!
//! The step of a K channel starts as the inverse of the magnitude of its queries. The step of a V
//! channel starts as the inverse of its gain in the output projection. Magnitude and gain are the
//! sensitivities to errors in the channel. The balance between layers and between K and V is
//! measured instead. Each part alone is rounded to its steps, and the steps are scaled so that each
//! part does the same harm. Harm is the Kullback-Leibler divergence, which grows with the square of
//! the step. At a given number of bits, equal harm is least harm.

use crate::evaluate::{check_windows, evaluate};
use crate::{StudyError, Subject, put_values, values_of};
use cenote_base::TokenId;
use cenote_codec::profile::{CURVE_POINTS, Curve, curve_of};
use cenote_codec::{PageKind, Profile, Side, SideProfile};
use cenote_engine::LoadedModel;
use cenote_engine::kv::{KvArena, KvLayout};
use cenote_engine::llama::{LogitsOf, Observed, SeqChunk};

/// Number of leading prompts for the measurement of harm.
const PROBED_PROMPTS: usize = 16;
/// Step size of that measurement: standard deviations, on average over the channels.
const PROBE: f32 = 0.5;
/// Bound on the factor by which a part's steps change.
const GAIN_MAX: f64 = 8.0;

/// Sums and sums of squares over tokens, by channel.
#[derive(Clone, Default)]
struct Moments {
    sums: Vec<f64>,
    squares: Vec<f64>,
}

impl Moments {
    fn add(&mut self, values: &[f32]) {
        self.sums.resize(values.len(), 0.0);
        self.squares.resize(values.len(), 0.0);
        for ((sum, square), &value) in self.sums.iter_mut().zip(&mut self.squares).zip(values) {
            *sum += f64::from(value);
            *square += f64::from(value).powi(2);
        }
    }
}

/// Profiles a model on prompts of equal length. `progress` receives 1 per prompt in each of the
/// first two passes.
///
/// # Errors
/// The prompts are not whole blocks of 16, or too long for the model, or its KV is not finite.
pub fn profile(
    model: &LoadedModel,
    prompts: &[Vec<TokenId>],
    progress: &mut dyn FnMut(usize),
) -> Result<Profile, StudyError> {
    check_windows(model, prompts, 16)?;
    let config = model.llama().config();
    let (layers, dim, group) = (config.num_layers, config.head_dim, config.num_heads / config.num_kv_heads);
    let mut moments = vec![[Moments::default(), Moments::default()]; layers];
    let mut queries = vec![Moments::default(); layers];
    for prompt in prompts {
        look(model, prompt, &mut |seen| {
            for [q, k, v] in seen.tokens() {
                queries[seen.layer].add(q);
                moments[seen.layer][0].add(k);
                moments[seen.layer][1].add(v);
            }
        });
        progress(1);
    }
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let mut sides: Vec<[SideProfile; 2]> =
        moments.iter().map(|sides| sides.each_ref().map(|moments| of_moments(moments, tokens))).collect();
    if !sides.iter().flatten().flat_map(|side| &side.deviations).all(|value| value.is_finite()) {
        return Err(StudyError::Model("its KV is not finite".to_owned()));
    }
    for (layer, sides) in sides.iter_mut().enumerate() {
        // All query heads of a group attend to the same keys.
        let felt: Vec<f64> = (0..sides[0].means.len())
            .map(|channel| {
                let (head, channel) = (channel / dim, channel % dim);
                (0..group)
                    .map(|query| queries[layer].squares[(head * group + query) * dim + channel])
                    .sum::<f64>()
                    .sqrt()
            })
            .collect();
        sides[0].steps = steps(&felt, &sides[0].deviations);
        let felt: Vec<f64> = model.llama().value_gains(layer).into_iter().map(f64::from).collect();
        sides[1].steps = steps(&felt, &sides[1].deviations);
    }
    add_curves(model, prompts, &mut sides, progress);
    even_out(model, &prompts[..prompts.len().min(PROBED_PROMPTS)], &mut sides)?;
    Ok(Profile {
        model: model.fingerprint(),
        tokens: tokens as u64,
        prompts: prompts.len() as u64,
        layers: sides,
        bases: None,
    })
}

/// Computes a prompt and passes each layer's attention inputs to `observe`.
pub(crate) fn look(model: &LoadedModel, prompt: &[TokenId], observe: &mut (dyn FnMut(Observed<'_>) + Send)) {
    let layout = KvLayout { block_tokens: 16, ..*model.layout() };
    let table: Vec<u32> = (0..prompt.len().div_ceil(16) as u32).collect();
    let mut arena = KvArena::new(layout, table.len());
    let chunk =
        SeqChunk { tokens: prompt, before: &[], start_position: 0, block_table: &table, logits: LogitsOf::Nothing };
    drop(model.forward_observed(&[chunk], &mut arena, observe));
}

fn of_moments(moments: &Moments, tokens: usize) -> SideProfile {
    let count = tokens as f64;
    let means: Vec<f64> = moments.sums.iter().map(|sum| sum / count).collect();
    let variances = moments.squares.iter().zip(&means).map(|(square, mean)| (square / count - mean * mean).max(0.0));
    let deviations = variances.map(|variance| variance.sqrt() as f32).collect();
    SideProfile { means: means.into_iter().map(|mean| mean as f32).collect(), deviations, ..Default::default() }
}

/// Steps inversely proportional to the sensitivities `felt`, scaled to one standard deviation on
/// average.
fn steps(felt: &[f64], deviations: &[f32]) -> Vec<f32> {
    // The floors bound the step of a channel without sensitivity or variance.
    let floor = |values: &dyn Fn(usize) -> f64| {
        let mean = (0..felt.len()).map(values).sum::<f64>() / felt.len() as f64;
        (mean * 1e-3).max(1e-12)
    };
    let (felt_floor, deviation_floor) = (floor(&|at| felt[at]), floor(&|at| f64::from(deviations[at])));
    let inverse: Vec<f64> = felt.iter().map(|felt| 1.0 / felt.max(felt_floor)).collect();
    let logarithms = inverse
        .iter()
        .zip(deviations)
        .map(|(inverse, deviation)| inverse.ln() - f64::from(*deviation).max(deviation_floor).ln());
    let mean = logarithms.sum::<f64>() / felt.len() as f64;
    inverse.into_iter().map(|inverse| (inverse / mean.exp()) as f32).collect()
}

/// Second pass: adds the curves of values, of values less their means, and of those over their
/// deviations.
fn add_curves(
    model: &LoadedModel,
    prompts: &[Vec<TokenId>],
    sides: &mut [[SideProfile; 2]],
    progress: &mut dyn FnMut(usize),
) {
    let mut sums = vec![[[const { Vec::new() }; 3], [const { Vec::new() }; 3]]; sides.len()];
    for prompt in prompts {
        look(model, prompt, &mut |seen| {
            let mut values = [Vec::new(), Vec::new()];
            for [_, k, v] in seen.tokens() {
                values[0].extend_from_slice(k);
                values[1].extend_from_slice(v);
            }
            for ((values, side), sums) in values.into_iter().zip(&sides[seen.layer]).zip(&mut sums[seen.layer]) {
                let channels = side.means.len();
                let by_channel = |change: &dyn Fn(f32, usize) -> f32| {
                    values.iter().enumerate().map(|(at, value)| change(*value, at % channels)).collect::<Vec<f32>>()
                };
                let centered = by_channel(&|value, channel| value - side.means[channel]);
                let normal = by_channel(&|value, channel| {
                    (value - side.means[channel]) / side.deviations[channel].max(f32::MIN_POSITIVE)
                });
                for (sums, sample) in sums.iter_mut().zip([values.clone(), centered, normal]) {
                    add_curve(sums, &curve_of(sample));
                }
            }
        });
        progress(1);
    }
    let mean = |sums: &[f64]| sums.iter().map(|sum| (sum / prompts.len() as f64) as f32).collect::<Curve>();
    for (side, [values, centered, normal]) in sides.iter_mut().flatten().zip(sums.iter().flatten()) {
        (side.values, side.centered, side.normal) = (mean(values), mean(centered), mean(normal));
    }
}

fn add_curve(sums: &mut Vec<f64>, curve: &Curve) {
    sums.resize(CURVE_POINTS, 0.0);
    sums.iter_mut().zip(curve).for_each(|(sum, value)| *sum += f64::from(*value));
}

/// Rounds one side of one layer to its steps and leaves all else unchanged.
struct Probe<'a> {
    layer: usize,
    side: Side,
    of: &'a SideProfile,
}

impl Subject for Probe<'_> {
    fn name(&self) -> String {
        format!("{:?} of layer {}", self.side, self.layer)
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        if usize::from(kind.layer) == self.layer && kind.side == self.side {
            let mut values = values_of(kind, page);
            let (dim, tokens) = (usize::from(kind.shape.dim), usize::from(kind.shape.tokens));
            for (at, value) in values.iter_mut().enumerate() {
                let channel = at / (tokens * dim) * dim + at % dim;
                let (mean, step) = (self.of.means[channel], self.of.steps[channel] * PROBE);
                *value = ((*value - mean) / step).round_ties_even() * step + mean;
            }
            put_values(kind, page, &values);
        }
        Ok(0)
    }
}

/// Scales the steps so that each part does the same harm.
fn even_out(model: &LoadedModel, prompts: &[Vec<TokenId>], sides: &mut [[SideProfile; 2]]) -> Result<(), StudyError> {
    let probes: Vec<Probe<'_>> = (sides.iter().enumerate())
        .flat_map(|(layer, [k, v])| [Probe { layer, side: Side::K, of: k }, Probe { layer, side: Side::V, of: v }])
        .collect();
    let subjects: Vec<&dyn Subject> = probes.iter().map(|probe| probe as &dyn Subject).collect();
    let mut harms = Vec::new();
    // A few at a time: each subject has its own arena.
    for subjects in subjects.chunks(8) {
        let measured = evaluate(model, prompts, 16, subjects, &mut |_| {})?;
        harms.extend(measured.codecs.iter().map(|quality| quality.harm.kl.max(1e-12).ln()));
    }
    let mean = harms.iter().sum::<f64>() / harms.len() as f64;
    for (side, harm) in sides.iter_mut().flatten().zip(harms) {
        let gain = ((mean - harm) / 2.0).exp().clamp(1.0 / GAIN_MAX, GAIN_MAX);
        side.steps.iter_mut().for_each(|step| *step = (f64::from(*step) * gain) as f32);
    }
    Ok(())
}
