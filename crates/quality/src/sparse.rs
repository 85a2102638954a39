//! Measures what sparse decode costs in quality, and how well its choices can be predicted.
//!
//! Windows of a text are computed with attention to all pages up to a position. From there on each
//! token is a decode step of its own that reads only the pages it chooses, and later steps read the KV
//! of these steps, as in an engine. The text gives the tokens. The logits are compared with those of
//! attention to all pages.

use crate::StudyError;
use crate::evaluate::{Harm, Sums, check_windows, compare, perplexity};
use cenote_base::{RequestId, TokenId};
use cenote_engine::engram::Rows;
use cenote_engine::kv::{KvArena, KvLayout};
use cenote_engine::llama::{Beyond, LogitsOf, SeqChunk};
use cenote_engine::sparse::{ChoiceRecord, PrefetchDepth, SparseConfig, SparseDecode};
use cenote_engine::stream::Streamer;
use cenote_engine::{LoadedModel, MoverConfig, MoverKind};
use cenote_policy::choice::lstm::{FEATURES, features};
use cenote_policy::choice::{ChoiceKind, ChoiceShape, ChoiceTally, PageChoice};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Tokens computed at once before the decode steps begin.
const CHUNK: usize = 512;
/// Of so many pages, one is recorded.
const RECORDED: u32 = 4;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct SparseSettings<'a> {
    /// Tokens per block.
    pub block_tokens: usize,
    /// Tokens of a window that are computed with all pages; whole blocks.
    pub prompt: usize,
    /// Numbers of pages that a group of heads reads.
    pub pages: &'a [usize],
    /// Predictors to compare.
    pub predictors: &'a [ChoiceKind],
}

/// Sparse decode with one number of pages.
#[derive(Clone, Debug, Serialize)]
pub struct SparseQuality {
    /// Pages that a group of heads reads in a step, besides the newest tokens.
    pub pages: usize,
    /// Mean share of the context's pages.
    pub share: f64,
    /// What this does to the model's output.
    #[serde(flatten)]
    pub harm: Harm,
    /// Each predictor, asked for as many pages as are chosen.
    pub predictors: Vec<Predicted>,
}

/// What a predictor was worth.
#[derive(Clone, Debug, Serialize)]
pub struct Predicted {
    /// Its name.
    pub predictor: String,
    /// Share of the chosen pages that it named.
    pub hit_rate: f64,
    /// The same, among the pages that the step before had not chosen: what it adds to keeping them.
    pub new_hit_rate: f64,
    /// Share of the named pages that were chosen.
    pub precision: f64,
}

/// The settings of a measurement, and its results.
#[derive(Clone, Debug, Serialize)]
pub struct SparseEvaluation {
    /// Number of windows.
    pub windows: usize,
    /// Tokens per window, and of them those computed with all pages.
    pub context: usize,
    /// See [`SparseSettings::prompt`].
    pub prompt: usize,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Perplexity of the same tokens with attention to all pages.
    pub perplexity: f64,
    /// Standard error of `perplexity`.
    pub perplexity_se: f64,
    /// By number of pages.
    pub rows: Vec<SparseQuality>,
}

/// What a predictor is trained with: pages over the steps of a window.
#[derive(Clone, Debug, Default)]
pub struct ChoiceRecords {
    /// `[sequence][step][feature]`.
    pub features: Vec<f32>,
    /// Whether the step chose the page: `[sequence][step]`.
    pub chosen: Vec<u8>,
    /// Number of steps.
    pub steps: usize,
}

/// Follows all choices of a run.
struct Follower {
    predictors: Vec<ChoiceKind>,
    shape: ChoiceShape,
    followed: BTreeMap<RequestId, Followed>,
    new: Vec<[u64; 2]>,
    chosen: u64,
    of_pages: u64,
    records: Option<BTreeMap<PageOfRequest, Recorded>>,
}

/// Request, index of layer and group, page.
type PageOfRequest = (RequestId, u32, u32);
/// Features and choices of a page, by step.
type Recorded = (Vec<f32>, Vec<u8>);

struct Followed {
    choices: Vec<PageChoice>,
    /// By layer and group: the last choice.
    last: Vec<Vec<u32>>,
    /// By predictor, layer and group: what it named.
    named: Vec<Vec<Option<Vec<u32>>>>,
}

impl Follower {
    fn observe(&mut self, record: &ChoiceRecord<'_>) {
        let ChoiceRecord { request, of, scores, chosen } = *record;
        let shape = self.shape;
        let index = (of.layer * shape.groups + of.group) as usize;
        let count = (shape.layers * shape.groups) as usize;
        let new = || Followed {
            choices: self.predictors.iter().map(|kind| PageChoice::new(*kind, shape)).collect(),
            last: vec![Vec::new(); count],
            named: vec![vec![None; count]; self.predictors.len()],
        };
        let followed = self.followed.entry(request).or_insert_with(new);
        let is_new = |page: &&u32| !followed.last[index].contains(page);
        let fresh: Vec<u32> = chosen.iter().filter(is_new).copied().collect();
        let num_pages = u32::try_from(scores.len()).expect("contexts are shorter");
        for (at, (kind, choice)) in self.predictors.iter().zip(&mut followed.choices).enumerate() {
            if let Some(named) = followed.named[at][index].take() {
                self.new[at][0] += fresh.iter().filter(|page| named.contains(page)).count() as u64;
                self.new[at][1] += fresh.len() as u64;
            }
            choice.observe(of, scores, chosen);
            let target = kind.target(of, shape);
            let named = choice.predict(target, num_pages, chosen.len());
            followed.named[at][(target.layer * shape.groups + target.group) as usize] = Some(named);
        }
        followed.last[index] = chosen.to_vec();
        self.chosen += chosen.len() as u64;
        self.of_pages += u64::from(num_pages);
        if let Some(records) = &mut self.records {
            let described = features(scores, chosen);
            for page in (0..num_pages).filter(|page| page % RECORDED == request.0 as u32 % RECORDED) {
                let (all, labels) = records.entry((request, index as u32, page)).or_default();
                all.extend(described[page as usize]);
                labels.push(described[page as usize][2] as u8);
            }
        }
    }

    fn predicted(&self) -> Vec<Predicted> {
        let of = |(at, kind): (usize, &ChoiceKind)| {
            let mut tally = ChoiceTally::default();
            self.followed.values().for_each(|followed| tally.add(&followed.choices[at].total()));
            let [hits, fresh] = self.new[at];
            Predicted {
                predictor: kind.to_string(),
                hit_rate: tally.hit_rate(),
                new_hit_rate: hits as f64 / fresh.max(1) as f64,
                precision: tally.precision(),
            }
        };
        self.predictors.iter().enumerate().map(of).collect()
    }

    /// The records of pages that all steps saw.
    fn records(self, steps: usize) -> ChoiceRecords {
        let mut records = ChoiceRecords { steps, ..ChoiceRecords::default() };
        for (all, labels) in self.records.into_iter().flat_map(BTreeMap::into_values) {
            if labels.len() == steps {
                debug_assert_eq!(all.len(), steps * FEATURES);
                records.features.extend(all);
                records.chosen.extend(labels);
            }
        }
        records
    }
}

/// Runs windows of equal length, in whole blocks. `record`: also returns what a predictor is trained
/// with, for the first number of pages. `progress` receives the number of finished decode steps.
///
/// # Errors
/// The windows are not whole blocks, or longer than the model's context; the prompt is no whole number
/// of blocks or leaves no token; the model does not support sparse decode.
pub fn evaluate_sparse(
    model: &LoadedModel,
    windows: &[Vec<TokenId>],
    settings: &SparseSettings<'_>,
    record: bool,
    progress: &mut dyn FnMut(usize),
) -> Result<(SparseEvaluation, Option<ChoiceRecords>), StudyError> {
    let SparseSettings { block_tokens, prompt, pages, predictors } = *settings;
    check_windows(model, windows, block_tokens)?;
    let context = windows.first().map_or(0, Vec::len);
    if prompt == 0 || prompt >= context || !prompt.is_multiple_of(block_tokens) {
        return Err(StudyError::Text(format!(
            "{prompt} of {context} tokens before the decode steps: they must be whole blocks of {block_tokens}, and fewer"
        )));
    }
    let layout = KvLayout { block_tokens, ..*model.layout() };
    if layout.head_dim != layout.padded_head_dim() {
        return Err(StudyError::Model(format!(
            "heads of {} values; sparse decode needs a multiple of 16",
            layout.head_dim
        )));
    }
    let blocks = context / block_tokens;
    let tables: Vec<Vec<u32>> =
        (0..windows.len()).map(|window| (0..blocks).map(|block| (window * blocks + block) as u32).collect()).collect();
    let mut kv = KvArena::new(layout, windows.len() * blocks);
    let vocabulary = model.llama().config().vocab_size;
    // The truth of each window: logits of the decoded tokens, which the runs below overwrite in L1.
    let mut truth = Vec::new();
    for (window, table) in windows.iter().zip(&tables) {
        let mut start_position = 0;
        while start_position < prompt {
            let end = (start_position + CHUNK).min(prompt);
            let (before, tokens) = window[..end].split_at(start_position);
            model.forward(
                &[SeqChunk { tokens, before, start_position, block_table: table, logits: LogitsOf::Nothing }],
                &mut kv,
            );
            start_position = end;
        }
        let (before, tokens) = window.split_at(prompt);
        let chunk = SeqChunk { tokens, before, start_position: prompt, block_table: table, logits: LogitsOf::All };
        truth.push(model.forward(&[chunk], &mut kv));
    }
    let row = |window: usize, position: usize| &truth[window][(position - prompt) * vocabulary..][..vocabulary];
    let mut base = vec![Sums::default(); windows.len()];
    for position in prompt..context {
        let rows: Vec<f32> = (0..windows.len()).flat_map(|window| row(window, position)).copied().collect();
        compare(&rows, &rows, windows, position, 1, &mut base);
    }
    let (base_perplexity, base_perplexity_se) = perplexity(&base);
    let mut recorded = None;
    let mut rows = Vec::new();
    let requests: Vec<RequestId> = (0..windows.len() as u64).map(RequestId).collect();
    for (index, &pages) in pages.iter().enumerate() {
        let config = SparseConfig { pages, hot_pages: 0, predictor: None, depth: PrefetchDepth::Fixed(0) };
        let heads = model.llama().config().num_heads;
        // Everything is in L1, so nothing is copied.
        let mover = MoverConfig { kind: MoverKind::Threads(0), link: None, clock: model.config().clock };
        let mut sparse = SparseDecode::start(layout, heads, config, windows.len(), &mover)
            .map_err(|error| StudyError::Model(format!("no thread for the mover: {error}")))?;
        let follower = Arc::new(Mutex::new(Follower {
            predictors: predictors.to_vec(),
            shape: ChoiceShape { layers: layout.num_layers as u32, groups: layout.num_kv_heads as u32 },
            followed: BTreeMap::new(),
            new: vec![[0; 2]; predictors.len()],
            chosen: 0,
            of_pages: 0,
            records: (record && index == 0).then(BTreeMap::new),
        }));
        let follows = Arc::clone(&follower);
        sparse.observe(Box::new(move |record| follows.lock().unwrap_or_else(PoisonError::into_inner).observe(record)));
        let mut streamer = Streamer::off();
        let mut sums = vec![Sums::default(); windows.len()];
        for position in prompt..context {
            for (request, table) in requests.iter().zip(&tables) {
                sparse.extend(*request, table, position, &kv, &streamer);
            }
            let batch: Vec<SeqChunk<'_>> = (windows.iter().zip(&tables))
                .map(|(window, table)| SeqChunk {
                    tokens: &window[position..=position],
                    before: &window[..position],
                    start_position: position,
                    block_table: table,
                    logits: LogitsOf::Last,
                })
                .collect();
            let choosing: Vec<(usize, RequestId)> = requests.iter().copied().enumerate().collect();
            let mut ngrams = Rows::untimed();
            let beyond = Beyond {
                lazy: &[],
                streamer: &mut streamer,
                sparse: &mut sparse,
                choosing: &choosing,
                rows: &mut ngrams,
            };
            let logits = model.forward_beyond(&batch, &mut kv, beyond);
            if let Some((_, why)) = ngrams.take_failed().pop_first() {
                return Err(StudyError::Model(why));
            }
            let rows: Vec<f32> = (0..windows.len()).flat_map(|window| row(window, position)).copied().collect();
            compare(&rows, &logits, windows, position, 1, &mut sums);
            progress(windows.len());
        }
        drop(sparse);
        let follower = Arc::into_inner(follower).expect("the sparse decode has ended");
        let follower = follower.into_inner().unwrap_or_else(PoisonError::into_inner);
        rows.push(SparseQuality {
            pages,
            share: follower.chosen as f64 / follower.of_pages.max(1) as f64,
            harm: Harm::of(&base, &sums),
            predictors: follower.predicted(),
        });
        if follower.records.is_some() {
            recorded = Some(follower.records(context - prompt));
        }
    }
    let evaluation = SparseEvaluation {
        windows: windows.len(),
        context,
        prompt,
        block_tokens,
        perplexity: base_perplexity,
        perplexity_se: base_perplexity_se,
        rows,
    };
    Ok((evaluation, recorded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::Clock;
    use cenote_base::prng::Prng;
    use cenote_engine::EngineConfig;
    use std::path::Path;

    #[test]
    fn all_pages_lose_nothing_and_fewer_lose_more() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let model = LoadedModel::load(&EngineConfig { threads: 2, ..EngineConfig::new(fixture, Clock::stopped()) })
            .expect("the demo model");
        let mut prng = Prng::new(3);
        let windows: Vec<Vec<TokenId>> =
            (0..2).map(|_| (0..384).map(|_| 100 + prng.below(900) as TokenId).collect()).collect();
        let settings =
            SparseSettings { block_tokens: 16, prompt: 320, pages: &[24, 8, 2], predictors: &ChoiceKind::ALL };
        let mut steps = 0;
        let (evaluation, records) =
            evaluate_sparse(&model, &windows, &settings, true, &mut |done| steps += done).expect("a measurement");
        let [all, some, few] = &evaluation.rows[..] else { panic!("three rows") };
        assert_eq!((all.harm.kl, all.harm.greedy_agreement, all.share), (0.0, 1.0, 1.0));
        assert_eq!(all.harm.perplexity, evaluation.perplexity);
        assert!(few.harm.kl > some.harm.kl && some.harm.kl > 0.0, "{evaluation:?}");
        assert!(some.predictors.iter().all(|one| one.hit_rate > 0.0 && one.hit_rate < 1.0), "{some:?}");
        assert_eq!(steps, 3 * 2 * 64);
        let records = records.expect("they were asked for");
        // Of 20 pages of each layer and group, one in four.
        assert_eq!((records.steps, records.chosen.len()), (64, 2 * 4 * 2 * 5 * 64));
        assert!(records.chosen.iter().all(|chosen| *chosen == 1), "all pages are chosen");
        assert_eq!(records.features.len(), records.chosen.len() * FEATURES);
        let settings = SparseSettings { prompt: 330, ..settings };
        assert!(evaluate_sparse(&model, &windows, &settings, false, &mut |_| ()).is_err());
    }
}
