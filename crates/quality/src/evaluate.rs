//! Measures the harm of a codec: a text runs through the engine with full blocks of past KV through
//! the codec, and through the engine without it.
//!
//! Windows of the text are computed block by block. When a block is full, its pages go through the
//! codec, so every token of a later block attends to the decoded values. A token reads its own block
//! raw, as in an engine with a pool. So at equal bits the harm falls with the size of blocks;
//! [`Evaluation::raw_reads`] is the share of such reads. [`evaluate_by_token`] encodes each token as
//! soon as it is computed. The logits of every token are compared with those of the engine without a
//! codec. Batches and kernels are the same, so a codec that changes nothing has a divergence of
//! exactly zero.

use crate::{StudyError, Subject, engine_page, put_values, values_of};
use cenote_base::TokenId;
use cenote_codec::{PageKind, Side};
use cenote_engine::LoadedModel;
use cenote_engine::kv::{KvArena, KvLayout};
use cenote_engine::llama::{LogitsOf, SeqChunk};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Windows computed at once.
const BATCH: usize = 8;
/// Bits per raw value, the reference of ratios.
const RAW_BITS: f64 = 16.0;

/// What a change does to a model's output, measured on a text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Harm {
    /// Perplexity.
    pub perplexity: f64,
    /// Standard error of `perplexity` over windows, that is, for another text of the same kind. NaN,
    /// as all standard errors are, for one window.
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
    /// Tokens that go through the codec at once.
    pub step: usize,
    /// Share of (token, past token) pairs, each token with itself included, that read raw KV.
    pub raw_reads: f64,
    /// Perplexity without a codec.
    pub perplexity: f64,
    /// Standard error of `perplexity` over windows.
    pub perplexity_se: f64,
    /// Quality by codec, in the order of the subjects.
    pub codecs: Vec<Quality>,
}

/// The bits per value that codecs of one kind take for a divergence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BitsAt {
    /// They reach it with so many.
    Reached(f64),
    /// They diverge less even at their least bits, which are these.
    Better(f64),
    /// They diverge more at every rate.
    NotReached,
}

/// Bits per value at which codecs of one kind reach the divergence `kl`. Interpolates between two
/// rates, linear in the logarithm of the divergence.
#[must_use]
pub fn bits_at(codecs: &[&Quality], kl: f64) -> BitsAt {
    let mut points: Vec<(f64, f64)> =
        codecs.iter().filter(|one| one.harm.kl > 0.0).map(|one| (one.bits, one.harm.kl.ln())).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let wanted = kl.ln();
    let between = points.windows(2).find(|pair| pair[0].1 >= wanted && wanted >= pair[1].1);
    if let Some(pair) = between {
        let share = (pair[0].1 - wanted) / (pair[0].1 - pair[1].1).max(f64::MIN_POSITIVE);
        return BitsAt::Reached(pair[0].0 + share * (pair[1].0 - pair[0].0));
    }
    if let Some(same) = points.iter().find(|point| (point.1 - wanted).abs() < 1e-9) {
        return BitsAt::Reached(same.0);
    }
    let better = codecs.iter().filter(|one| one.harm.kl <= kl).map(|one| one.bits);
    better.min_by(f64::total_cmp).map_or(BitsAt::NotReached, BitsAt::Better)
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
/// A subject fails. The windows are not whole blocks, fewer than two blocks, or longer than the
/// model's context. `block_tokens` is not a multiple of 16 up to 4096.
pub fn evaluate(
    model: &LoadedModel,
    windows: &[Vec<TokenId>],
    block_tokens: usize,
    subjects: &[&dyn Subject],
    progress: &mut dyn FnMut(usize),
) -> Result<Evaluation, StudyError> {
    run(model, windows, [block_tokens, block_tokens], subjects, progress)
}

/// As [`evaluate`], with each token through the codec as soon as it is computed. A token reads
/// nothing raw but itself. Bits are those of whole blocks.
///
/// # Errors
/// As [`evaluate`]. A subject does not quantize each token alone.
pub fn evaluate_by_token(
    model: &LoadedModel,
    windows: &[Vec<TokenId>],
    block_tokens: usize,
    subjects: &[&dyn Subject],
    progress: &mut dyn FnMut(usize),
) -> Result<Evaluation, StudyError> {
    run(model, windows, [block_tokens, 1], subjects, progress)
}

fn run(
    model: &LoadedModel,
    windows: &[Vec<TokenId>],
    [block_tokens, step]: [usize; 2],
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
        let mut raw = vec![vec![RawBlock::default(); batch.len()]; subjects.len()];
        for start in (0..context).step_by(step) {
            let (block, within) = (start / block_tokens, start % block_tokens);
            let chunks: Vec<SeqChunk<'_>> = (batch.iter().zip(&tables))
                .map(|(window, table)| SeqChunk {
                    tokens: &window[start..start + step],
                    before: &window[..start],
                    start_position: start,
                    block_table: table,
                    logits: LogitsOf::All,
                })
                .collect();
            let truth = model.forward(&chunks, &mut base);
            compare(&truth, &truth, batch, start, step, &mut base_sums[first..]);
            let each = subjects.iter().zip(arenas.iter_mut().zip(&mut sums)).zip(pages.iter_mut().zip(&mut raw));
            for ((subject, (arena, sums)), (pages, raw)) in each {
                let logits = model.forward(&chunks, arena);
                compare(&truth, &logits, batch, start, step, &mut sums[first..]);
                for (table, raw) in tables.iter().zip(raw) {
                    let block = arena.pages_mut(table[block]);
                    if step == block_tokens {
                        through(*subject, &layout, block, [start, block_tokens], pages)?;
                    } else {
                        raw.through(*subject, &layout, block, within..within + step, pages)?;
                    }
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
        step,
        raw_reads: raw_reads(context, step),
        perplexity,
        perplexity_se,
        codecs: codecs.map(|(subject, (sums, pages))| quality(subject.name(), &base_sums, sums, pages)).collect(),
    })
}

/// The share of (token, past token) pairs, each token with itself included, that read raw KV in
/// windows of `context` tokens if `step` tokens are encoded at once.
#[must_use]
pub fn raw_reads(context: usize, step: usize) -> f64 {
    (step + 1) as f64 / (context + 1) as f64
}

/// Checks that windows are whole blocks, two or more, and fit the model's context. In a window of
/// one block no token reads encoded KV.
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
    if context == block_tokens {
        return Err(StudyError::Text(format!(
            "windows of one block of {context} tokens: no token would read encoded KV; take longer windows or smaller blocks"
        )));
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

/// Runs the first tokens of a block's pages through a subject: so many from a position on.
pub(crate) fn through(
    subject: &dyn Subject,
    layout: &KvLayout,
    block: Vec<&mut [u8]>,
    [position, tokens]: [usize; 2],
    sums: &mut Pages,
) -> Result<(), StudyError> {
    let mut pages: Vec<(PageKind, &mut [u8])> = Vec::with_capacity(block.len());
    for (index, page) in block.into_iter().enumerate() {
        let mut kind = engine_page(layout, index / 2, [Side::K, Side::V][index % 2]);
        // At most the tokens of a block, which fit.
        kind.shape.tokens = kind.shape.tokens.min(tokens as u16);
        pages.push((kind, &mut page[..kind.bytes()]));
    }
    let before: Vec<Vec<f32>> = pages.iter().map(|(kind, page)| values_of(kind, page)).collect();
    sums.bits += subject.round_trip_block(&mut pages, position)?;
    for ((kind, page), before) in pages.iter().zip(&before) {
        sums.add(kind.side, 0, before, &values_of(kind, page));
    }
    Ok(())
}

impl Pages {
    fn add(&mut self, side: Side, bits: u64, before: &[f32], after: &[f32]) {
        self.bits += bits;
        self.values += before.len() as u64;
        for (before, after) in before.iter().zip(after) {
            self.errors[side as usize] += f64::from(after - before).powi(2);
            self.squares[side as usize] += f64::from(*before).powi(2);
        }
    }
}

/// Raw values of a block whose tokens pass one after the other, by page as
/// `[head][token][channel]`.
#[derive(Clone, Default)]
struct RawBlock {
    pages: Vec<Vec<f32>>,
}

impl RawBlock {
    /// Runs some tokens of a block's pages through a subject. With the block's last token, the whole
    /// block passes too: its bits count, and its values must be the same.
    fn through(
        &mut self,
        subject: &dyn Subject,
        layout: &KvLayout,
        block: Vec<&mut [u8]>,
        tokens: Range<usize>,
        sums: &mut Pages,
    ) -> Result<(), StudyError> {
        self.pages.resize(block.len(), Vec::new());
        for (index, (page, raw)) in block.into_iter().zip(&mut self.pages).enumerate() {
            let side = [Side::K, Side::V][index % 2];
            let kind = engine_page(layout, index / 2, side);
            let page = &mut page[..kind.bytes()];
            let mut values = values_of(&kind, page);
            raw.resize(values.len(), 0.0);
            let small = |count: usize| u16::try_from(count).expect("tokens of a block fit a page");
            let mut part = kind;
            part.shape.tokens = small(tokens.len());
            part.layout.capacity = small(tokens.len());
            let dim = usize::from(kind.shape.dim);
            let place = |head: usize| head * kind.shape.head_values();
            let new = |head: usize| place(head) + tokens.start * dim..place(head) + tokens.end * dim;
            let heads = 0..usize::from(kind.shape.heads);
            let fresh: Vec<f32> = heads.clone().flat_map(|head| values[new(head)].to_vec()).collect();
            let mut bytes = vec![0; part.bytes()];
            put_values(&part, &mut bytes, &fresh);
            subject.round_trip(&part, &mut bytes)?;
            let passed = values_of(&part, &bytes);
            for (head, passed) in heads.zip(passed.chunks_exact(part.shape.head_values())) {
                raw[new(head)].copy_from_slice(&values[new(head)]);
                values[new(head)].copy_from_slice(passed);
            }
            put_values(&kind, page, &values);
            if tokens.end == layout.block_tokens {
                let mut whole = page.to_vec();
                put_values(&kind, &mut whole, raw);
                let bits = subject.round_trip(&kind, &mut whole)?;
                let same = values_of(&kind, &whole).iter().zip(&values).all(|(a, b)| a.to_bits() == b.to_bits());
                if !same {
                    return Err(StudyError::Model(format!(
                        "{}: it does not quantize each token alone, so it is measured by whole blocks only",
                        subject.name()
                    )));
                }
                sums.add(side, bits, raw, &values);
            }
        }
        Ok(())
    }
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
        // Scores that are no numbers choose nothing.
        sums.agreed += u64::from(truth_best == best && norm.is_finite());
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

/// The mean, and its standard error. One value tells no error: it is NaN.
fn mean_and_error(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
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
    use crate::CodecSubject;
    use cenote_codec::{PageKind, Raw};
    use cenote_engine::EngineConfig;
    use std::path::Path;
    use std::sync::Arc;

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
        let reached = |kl: f64| match bits_at(&rates, kl) {
            BitsAt::Reached(bits) => bits,
            other => panic!("{kl}: {other:?}"),
        };
        assert!((reached(1e-3_f64.powf(0.5) * 1e-2_f64.powf(0.5)) - 3.5).abs() < 1e-9);
        assert!((reached(1e-4) - 5.0).abs() < 1e-9);
        assert_eq!((bits_at(&rates, 1e-5), bits_at(&rates, 0.1)), (BitsAt::NotReached, BitsAt::Better(3.0)));
        assert_eq!(bits_at(&[&rate(16.0, 0.0)], 1e-3), BitsAt::Better(16.0), "a codec that loses nothing");
        assert_eq!(bits_at(&[&rate(4.0, 1.0)], 1e-3), BitsAt::NotReached);
    }

    #[test]
    fn the_standard_error_is_that_of_a_mean() {
        let (mean, error) = mean_and_error([1.0, 2.0, 3.0, 4.0].into_iter());
        assert!((mean - 2.5).abs() < 1e-12 && (error - (5.0_f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn one_value_tells_no_error() {
        let (mean, error) = mean_and_error([3.0].into_iter());
        assert!(mean == 3.0 && error.is_nan());
    }

    #[test]
    fn logits_that_are_no_numbers_agree_with_nothing() {
        let mut sums = [Sums::default()];
        compare(&[1.0, 0.0], &[f32::NAN, 0.0], &[vec![0]], 0, 1, &mut sums);
        assert_eq!((sums[0].agreed, sums[0].tokens), (0, 1));
    }

    /// Rounds values to multiples of a step, for each token alone or with a scale of the page.
    struct Rounds {
        has_page_scale: bool,
    }

    impl Subject for Rounds {
        fn name(&self) -> String {
            "rounds".to_owned()
        }

        fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
            let mut values = values_of(kind, page);
            let most = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let step = if self.has_page_scale { (most / 7.0).max(f32::MIN_POSITIVE) } else { 0.25 };
            values.iter_mut().for_each(|value| *value = (*value / step).round() * step);
            put_values(kind, page, &values);
            Ok(4 * values.len() as u64 + 128)
        }
    }

    fn demo() -> (LoadedModel, Vec<Vec<TokenId>>) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let model =
            LoadedModel::load(&EngineConfig { threads: 1, ..EngineConfig::new(dir, cenote_base::Clock::stopped()) })
                .expect("the demo model");
        let windows = (0..2).map(|window| (0..64).map(|at| 100 + 7 * at + 31 * window).collect()).collect();
        (model, windows)
    }

    #[test]
    fn windows_of_one_block_are_refused() {
        let (model, windows) = demo();
        let error = evaluate(&model, &windows, 64, &[], &mut |_| ()).expect_err("nothing would be encoded");
        assert!(error.to_string().contains("no token would read encoded KV"), "{error}");
        let evaluation = evaluate(&model, &windows, 32, &[], &mut |_| ()).expect("two blocks");
        assert!((evaluation.raw_reads - 33.0 / 65.0).abs() < 1e-12);
    }

    #[test]
    fn token_by_token_fewer_reads_are_raw_and_more_is_lost() {
        let (model, windows) = demo();
        let raw = CodecSubject::new("raw", Arc::new(Raw));
        let alone = Rounds { has_page_scale: false };
        let subjects: [&dyn Subject; 2] = [&raw, &alone];
        let blocks = evaluate(&model, &windows, 32, &subjects, &mut |_| ()).expect("by block");
        let tokens = evaluate_by_token(&model, &windows, 32, &subjects, &mut |_| ()).expect("by token");
        assert!((tokens.raw_reads - 2.0 / 65.0).abs() < 1e-12);
        assert!((tokens.perplexity / blocks.perplexity - 1.0).abs() < 1e-3);
        for (block, token) in blocks.codecs.iter().zip(&tokens.codecs) {
            assert_eq!(block.bits, token.bits, "{}", block.codec);
        }
        let [block, token] = [&blocks, &tokens].map(|one| one.codecs[1].harm.kl);
        assert!(token > 1.2 * block, "{token} and {block}");
        assert!(tokens.codecs[0].harm.kl < 1e-5, "{tokens:?}");
        let page = Rounds { has_page_scale: true };
        evaluate(&model, &windows, 32, &[&page], &mut |_| ()).expect("by block");
        let error = evaluate_by_token(&model, &windows, 32, &[&page], &mut |_| ()).expect_err("a scale of the page");
        assert!(error.to_string().contains("rounds: it does not quantize each token alone"), "{error}");
    }
}
