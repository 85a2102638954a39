//! Measures the harm of a codec: a text runs through the engine with all past KV through the codec,
//! and through the engine without it.
//!
//! Windows of the text are computed block by block. When a block is full, its pages go through the
//! codec, so every later token attends to the decoded values. The partially filled block stays
//! unchanged, as in an engine with a pool. The logits of every token are compared with those of the
//! engine without a codec. Batches and kernels are the same, so a codec that changes nothing has a
//! divergence of exactly zero.

use crate::{StudyError, Subject, engine_page, values_of};
use cenote_base::TokenId;
use cenote_codec::Side;
use cenote_engine::LoadedModel;
use cenote_engine::kv::{KvArena, KvLayout};
use cenote_engine::llama::{LogitsOf, SeqChunk};
use serde::{Deserialize, Serialize};

/// Windows computed at once.
const BATCH: usize = 8;
/// Bits per raw value, the reference of ratios.
const RAW_BITS: f64 = 16.0;

/// What a change does to a model's output, measured on a text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Harm {
    /// Perplexity.
    pub perplexity: f64,
    /// Standard error of `perplexity` over windows, that is, for another text of the same kind.
    pub perplexity_se: f64,
    /// Rise of perplexity over that of the unchanged model, in percent.
    pub loss_percent: f64,
    /// Standard error of `loss_percent`. It is much smaller, because both runs use the same text.
    pub loss_percent_se: f64,
    /// Kullback-Leibler divergence from the unchanged model, in nats per token.
    pub kl: f64,
    /// Standard error of `kl` over windows.
    pub kl_se: f64,
    /// Share of tokens after which both models choose the same next token.
    pub greedy_agreement: f64,
}

/// Measured quality of a codec.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Quality {
    /// Name of the codec.
    pub codec: String,
    /// Bits per value, headers included.
    pub bits: f64,
    /// Compression ratio: 16 over `bits`.
    pub ratio: f64,
    /// Squared error of K over its squared values.
    pub k_mse: f64,
    /// Squared error of V over its squared values.
    pub v_mse: f64,
    /// What it does to the model's output.
    #[serde(flatten)]
    pub harm: Harm,
}

/// The settings of an evaluation, and its results.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// Number of windows.
    pub windows: usize,
    /// Tokens per window.
    pub context: usize,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Perplexity without a codec.
    pub perplexity: f64,
    /// Standard error of `perplexity` over windows.
    pub perplexity_se: f64,
    /// Quality by codec, in the order of the subjects.
    pub codecs: Vec<Quality>,
}

/// Bits per value at which codecs of one kind reach the divergence `kl`. Interpolates between two
/// rates, linear in the logarithm of the divergence. `None`: `kl` is outside the range of all
/// rates.
#[must_use]
pub fn bits_at(codecs: &[&Quality], kl: f64) -> Option<f64> {
    let mut points: Vec<(f64, f64)> =
        codecs.iter().filter(|one| one.harm.kl > 0.0).map(|one| (one.bits, one.harm.kl.ln())).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let wanted = kl.ln();
    let between = points.windows(2).find(|pair| pair[0].1 >= wanted && wanted >= pair[1].1);
    match between {
        Some(pair) => {
            let share = (pair[0].1 - wanted) / (pair[0].1 - pair[1].1).max(f64::MIN_POSITIVE);
            Some(pair[0].0 + share * (pair[1].0 - pair[0].0))
        }
        None => points.iter().find(|point| (point.1 - wanted).abs() < 1e-9).map(|point| point.0),
    }
}

/// Sums over one window.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sums {
    pub loss: f64,
    pub divergence: f64,
    pub agreed: u64,
    pub tokens: u64,
    pub predicted: u64,
}

/// Sums over all pages.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pages {
    pub bits: u64,
    pub values: u64,
    /// Squared errors and squares, of K and V.
    errors: [f64; 2],
    squares: [f64; 2],
}

/// Runs windows of equal length, in whole blocks, through the engine without a codec and with each
/// subject. `progress` receives the number of finished windows.
///
/// # Errors
/// A subject fails. The windows are not whole blocks, or longer than the model's context.
/// `block_tokens` is not a multiple of 16 up to 4096.
pub fn evaluate(
    model: &LoadedModel,
    windows: &[Vec<TokenId>],
    block_tokens: usize,
    subjects: &[&dyn Subject],
    progress: &mut dyn FnMut(usize),
) -> Result<Evaluation, StudyError> {
    let context = windows.first().map_or(0, Vec::len);
    check_windows(model, windows, block_tokens)?;
    let layout = KvLayout { block_tokens, ..*model.layout() };
    let blocks = context / block_tokens;
    let mut base_sums = Vec::new();
    let mut sums = vec![Vec::new(); subjects.len()];
    let mut pages = vec![Pages::default(); subjects.len()];
    for batch in windows.chunks(BATCH) {
        let mut base = KvArena::new(layout, batch.len() * blocks);
        let mut arenas: Vec<KvArena> = subjects.iter().map(|_| KvArena::new(layout, batch.len() * blocks)).collect();
        let tables: Vec<Vec<u32>> = (0..batch.len())
            .map(|window| (0..blocks).map(|block| (window * blocks + block) as u32).collect())
            .collect();
        let (first, zero) = (base_sums.len(), vec![Sums::default(); batch.len()]);
        base_sums.extend(&zero);
        sums.iter_mut().for_each(|sums| sums.extend(&zero));
        for block in 0..blocks {
            let start = block * block_tokens;
            let chunks: Vec<SeqChunk<'_>> = (batch.iter().zip(&tables))
                .map(|(window, table)| SeqChunk {
                    tokens: &window[start..start + block_tokens],
                    before: &window[..start],
                    start_position: start,
                    block_table: table,
                    logits: LogitsOf::All,
                })
                .collect();
            let truth = model.forward(&chunks, &mut base);
            compare(&truth, &truth, batch, start, block_tokens, &mut base_sums[first..]);
            for (subject, ((arena, sums), pages)) in
                subjects.iter().zip(arenas.iter_mut().zip(&mut sums).zip(&mut pages))
            {
                let logits = model.forward(&chunks, arena);
                compare(&truth, &logits, batch, start, block_tokens, &mut sums[first..]);
                for table in &tables {
                    through(*subject, &layout, arena.pages_mut(table[block]), block_tokens, pages)?;
                }
            }
        }
        progress(batch.len());
    }
    let (perplexity, perplexity_se) = perplexity(&base_sums);
    let codecs = subjects.iter().zip(sums.iter().zip(&pages));
    Ok(Evaluation {
        windows: windows.len(),
        context,
        block_tokens,
        perplexity,
        perplexity_se,
        codecs: codecs.map(|(subject, (sums, pages))| quality(subject.name(), &base_sums, sums, pages)).collect(),
    })
}

/// Checks that windows are whole blocks and fit the model's context.
///
/// # Errors
/// They do not, or there are none.
pub fn check_windows(model: &LoadedModel, windows: &[Vec<TokenId>], block_tokens: usize) -> Result<(), StudyError> {
    let context = windows.first().map_or(0, Vec::len);
    let most = longest_context(model);
    check_block_tokens(block_tokens)?;
    if context == 0 || !context.is_multiple_of(block_tokens) || windows.iter().any(|window| window.len() != context) {
        return Err(StudyError::Text(format!("windows of {context} tokens are not whole blocks of {block_tokens}")));
    }
    if context > most {
        return Err(StudyError::Model(format!(
            "windows of {context} tokens are longer than the model's context, {most}"
        )));
    }
    Ok(())
}

/// Checks that tokens of a block fit pages and frames.
pub(crate) fn check_block_tokens(block_tokens: usize) -> Result<(), StudyError> {
    match block_tokens > 0 && block_tokens.is_multiple_of(16) && block_tokens <= 4096 {
        true => Ok(()),
        false => Err(StudyError::Model(format!(
            "blocks of {block_tokens} tokens: they must be a multiple of 16, up to 4096"
        ))),
    }
}

/// Tokens that the model attends to at most. The engine computes no sliding window.
#[must_use]
pub fn longest_context(model: &LoadedModel) -> usize {
    let config = model.llama().config();
    config.sliding_window.map_or(config.max_position_embeddings, |window| window.min(config.max_position_embeddings))
}

/// Runs the first tokens of a block's pages through a subject.
pub(crate) fn through(
    subject: &dyn Subject,
    layout: &KvLayout,
    block: Vec<&mut [u8]>,
    tokens: usize,
    sums: &mut Pages,
) -> Result<(), StudyError> {
    for (index, page) in block.into_iter().enumerate() {
        let side = [Side::K, Side::V][index % 2];
        let mut kind = engine_page(layout, index / 2, side);
        // At most the tokens of a block, which fit.
        kind.shape.tokens = kind.shape.tokens.min(tokens as u16);
        let page = &mut page[..kind.bytes()];
        let before = values_of(&kind, page);
        sums.bits += subject.round_trip(&kind, page)?;
        sums.values += before.len() as u64;
        for (before, after) in before.iter().zip(values_of(&kind, page)) {
            sums.errors[side as usize] += f64::from(after - before).powi(2);
            sums.squares[side as usize] += f64::from(*before).powi(2);
        }
    }
    Ok(())
}

/// Compares the logits of one block of each window. `truth` are those without a codec.
pub(crate) fn compare(
    truth: &[f32],
    logits: &[f32],
    windows: &[Vec<TokenId>],
    start: usize,
    block_tokens: usize,
    sums: &mut [Sums],
) {
    let vocabulary = truth.len() / (windows.len() * block_tokens);
    let rows = truth.chunks_exact(vocabulary).zip(logits.chunks_exact(vocabulary)).enumerate();
    for (row, (truth, logits)) in rows {
        let (window, position) = (row / block_tokens, start + row % block_tokens);
        let sums = &mut sums[window];
        let (truth_norm, truth_best) = norm_and_best(truth);
        let (norm, best) = norm_and_best(logits);
        let divergence = |(&truth, &logit): (&f32, &f32)| {
            let (truth, other) = (f64::from(truth) - truth_norm, f64::from(logit) - norm);
            truth.exp() * (truth - other)
        };
        sums.divergence += truth.iter().zip(logits).map(divergence).sum::<f64>();
        sums.agreed += u64::from(truth_best == best);
        sums.tokens += 1;
        if let Some(&next) = windows[window].get(position + 1) {
            sums.loss += norm - f64::from(logits[next as usize]);
            sums.predicted += 1;
        }
    }
}

/// The logarithm of the sum of exponentials, and the index of the first largest logit.
pub(crate) fn norm_and_best(logits: &[f32]) -> (f64, usize) {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    let most = f64::from(logits[best]);
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - most).exp()).sum();
    (most + sum.ln(), best)
}

/// The mean, and its standard error.
fn mean_and_error(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, (variance / count).sqrt())
}

pub(crate) fn perplexity(sums: &[Sums]) -> (f64, f64) {
    let (loss, error) = mean_and_error(sums.iter().map(|sums| sums.loss / sums.predicted as f64));
    (loss.exp(), loss.exp() * error)
}

impl Harm {
    /// Of the sums of a changed model beside those of the unchanged one, by window.
    pub(crate) fn of(base: &[Sums], sums: &[Sums]) -> Self {
        let more = base.iter().zip(sums).map(|(base, sums)| (sums.loss - base.loss) / sums.predicted as f64);
        let (more, more_se) = mean_and_error(more);
        let (kl, kl_se) = mean_and_error(sums.iter().map(|sums| sums.divergence / sums.tokens as f64));
        let (perplexity, perplexity_se) = perplexity(sums);
        let (agreed, tokens) =
            sums.iter().fold((0, 0), |(agreed, tokens), sums| (agreed + sums.agreed, tokens + sums.tokens));
        Self {
            perplexity,
            perplexity_se,
            loss_percent: 100.0 * more.exp_m1(),
            loss_percent_se: 100.0 * more.exp() * more_se,
            kl,
            kl_se,
            greedy_agreement: agreed as f64 / tokens as f64,
        }
    }
}

fn quality(codec: String, base: &[Sums], sums: &[Sums], pages: &Pages) -> Quality {
    let bits = pages.bits as f64 / pages.values as f64;
    let relative = |side: Side| pages.errors[side as usize] / pages.squares[side as usize].max(f64::MIN_POSITIVE);
    Quality {
        codec,
        bits,
        ratio: RAW_BITS / bits,
        k_mse: relative(Side::K),
        v_mse: relative(Side::V),
        harm: Harm::of(base, sums),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_do_not_diverge_and_others_do() {
        let windows = [vec![1, 0]];
        let truth = [0.0, 1.0, 2.0, 1.0];
        let mut sums = [Sums::default()];
        compare(&truth, &truth, &windows, 0, 2, &mut sums);
        assert_eq!((sums[0].divergence, sums[0].agreed, sums[0].tokens, sums[0].predicted), (0.0, 2, 2, 1));
        let mut other = [Sums::default()];
        compare(&truth, &[1.0, 0.0, 2.0, 1.0], &windows, 0, 2, &mut other);
        // Two outcomes with inverted odds: e/(1+e) to 1/(1+e), of log odds 1.
        let odds = 1.0_f64.exp();
        assert!((other[0].divergence - (odds - 1.0) / (odds + 1.0)).abs() < 1e-12);
        assert_eq!(other[0].agreed, 1);
        // The loss of token 0 after token 1.
        assert!((other[0].loss - (odds.ln_1p() - 1.0)).abs() < 1e-12);
    }

    #[test]
    fn bits_lie_between_those_of_two_rates() {
        let rate = |bits: f64, kl: f64| {
            let text = format!(
                "{{\"bits\":{bits},\"kl\":{kl},\"codec\":\"\",\"ratio\":1,\"k_mse\":0,\"v_mse\":0,\"perplexity\":1,\
                 \"perplexity_se\":0,\"loss_percent\":0,\"loss_percent_se\":0,\"kl_se\":0,\"greedy_agreement\":1}}"
            );
            serde_json::from_str::<Quality>(&text).unwrap()
        };
        let rates = [rate(3.0, 1e-2), rate(5.0, 1e-4), rate(4.0, 1e-3)];
        let rates: Vec<&Quality> = rates.iter().collect();
        assert!((bits_at(&rates, 1e-3_f64.powf(0.5) * 1e-2_f64.powf(0.5)).unwrap() - 3.5).abs() < 1e-9);
        assert!((bits_at(&rates, 1e-4).unwrap() - 5.0).abs() < 1e-9);
        assert_eq!((bits_at(&rates, 1e-5), bits_at(&rates, 0.1)), (None, None));
    }

    #[test]
    fn the_standard_error_is_that_of_a_mean() {
        let (mean, error) = mean_and_error([1.0, 2.0, 3.0, 4.0].into_iter());
        assert!((mean - 2.5).abs() < 1e-12 && (error - (5.0_f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
    }
}
