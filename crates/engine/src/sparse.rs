//! Decode that reads only the pages that its query chooses (Quest, arXiv 2406.10774).
//!
//! Summaries of all pages stay in L1; the pages themselves may lie in the region. In each layer of a
//! decode step, each group of heads scores the summaries, chooses the best pages, and attends to them
//! and to the tokens since the last full page. Choices are exact: pages that L1 lacks are fetched
//! while the layer waits. Which ones are there already depends on two policies: pages that are read
//! often stay ([`cenote_policy::temperature`]), and a predictor prefetches
//! ([`cenote_policy::choice`], [`cenote_policy::prefetch`]). Neither changes a token.
//!
//! Prompts are computed with all pages. The KV of tokens that sparse steps computed differs from that
//! of dense ones, and depends on where the prompt ended, so it has no name and is never published.

mod near;
mod sequence;

use self::near::Near;
use self::sequence::Sequence;
use crate::kv::{HeadPage, KvArena, KvLayout, LayerView};
use crate::stream::{Far, Streamer};
use cenote_base::RequestId;
use cenote_policy::choice::{ChoiceKind, ChoiceShape, Chooser, PageNumber, top_pages};
use cenote_policy::kv_blocks::BlockId;
use cenote_policy::prefetch::{Offer, Source, StepResult, ThrottleConfig, ThrottleLearner};
use cenote_policy::temperature::{HotRead, ThresholdConfig, Thresholds};
use cenote_store::mover::MoverConfig;
use std::collections::{BTreeMap, BTreeSet};

/// Name of a page in L1: request, layer and group of heads, page of the context.
type Key = (RequestId, Chooser, PageNumber);

/// Tokens of a period in which the throttle's parameters stay.
const PERIOD_TOKENS: u64 = 64;

/// Settings of sparse decode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseConfig {
    /// *k*: pages that each group of heads reads in a step, besides the newest tokens.
    pub pages: usize,
    /// Pages that stay in L1, per request, layer and group of heads.
    pub hot_pages: usize,
    /// What predicts the next choice. `None`: nothing is prefetched.
    pub predictor: Option<ChoiceKind>,
    /// How many pages are prefetched.
    pub depth: PrefetchDepth,
}

/// How many pages a request prefetches in a step, in quarters of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchDepth {
    /// Always so many.
    Fixed(u32),
    /// As a bandit learns for the request (CXL-SpecKV eq. 9), less on a busy link (eq. 7).
    Learned,
}

impl SparseConfig {
    /// Settings for *k* pages, without prefetching: where the region is memory, fetching what is missing
    /// costs less than predicting it (docs/evidence/tiers.md).
    #[must_use]
    pub const fn with_pages(pages: usize) -> Self {
        Self { pages, hot_pages: 2 * pages, predictor: None, depth: PrefetchDepth::Learned }
    }
}

/// What one choice was: for studies of predictors.
pub struct ChoiceRecord<'a> {
    /// The request.
    pub request: RequestId,
    /// Layer and group.
    pub of: Chooser,
    /// The score of each page of the context.
    pub scores: &'a [f32],
    /// The chosen pages, the best first.
    pub chosen: &'a [PageNumber],
}

/// Receives each choice.
pub type ChoiceSink = Box<dyn FnMut(&ChoiceRecord<'_>) + Send>;

/// Counters of a [`SparseDecode`] since its start. Pages are those of one group of heads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SparseCounts {
    /// Steps of requests.
    pub steps: u64,
    /// Pages that queries chose.
    pub chosen: u64,
    /// Of them, pages in the engine's KV blocks.
    pub resident: u64,
    /// Pages that had stayed since an earlier step read them.
    pub hot: u64,
    /// Pages that a prefetch had brought, read for the first time.
    pub prefetched: u64,
    /// Pages whose prefetch was under way.
    pub late: u64,
    /// Pages that were fetched when they were chosen.
    pub demanded: u64,
    /// Prefetched pages that left without being read.
    pub wasted: u64,
    /// Bytes of all fetches.
    pub fetched_bytes: u64,
    /// Bytes of the prefetches among them.
    pub prefetched_bytes: u64,
    /// Nanoseconds for which layers waited.
    pub stall_ns: u64,
    /// Nanoseconds of copies that ended before their page was chosen.
    pub hidden_ns: u64,
}

/// Sparse decode of an engine's requests.
pub struct SparseDecode(Option<Box<Inner>>);

/// A decode step's query of one layer.
#[derive(Clone, Copy)]
pub(crate) struct SparseQuery<'a> {
    pub request: RequestId,
    /// All query heads, rotated.
    pub q: &'a [f32],
    pub block_table: &'a [BlockId],
    /// Tokens before the step's.
    pub position: usize,
}

struct Inner {
    layout: KvLayout,
    config: SparseConfig,
    shape: ChoiceShape,
    /// Values of the query heads that choose together.
    group_values: usize,
    sequences: BTreeMap<RequestId, Sequence>,
    near: Near,
    thresholds: Thresholds,
    learner: ThrottleLearner,
    /// Begin of the learner's period, the tokens in it, and the throughput of the first one.
    period: (u64, u64, Option<f64>),
    /// Number of steps, which is the clock of the temperature.
    step: u64,
    /// Blocks of this step with a page that was damaged or gone.
    failed: BTreeSet<BlockId>,
    counts: SparseCounts,
    sink: Option<ChoiceSink>,
}

impl SparseDecode {
    /// For an engine that always reads all pages.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// Sparse decode for `heads` query heads. `max_num_seqs` bounds the memory for prefetched pages.
    ///
    /// # Errors
    /// The operating system cannot create a thread.
    pub fn start(
        layout: KvLayout,
        heads: usize,
        config: SparseConfig,
        max_num_seqs: usize,
        mover: &MoverConfig,
    ) -> std::io::Result<Self> {
        let small = |value: usize| u32::try_from(value).expect("models are smaller");
        let shape = ChoiceShape { layers: small(layout.num_layers), groups: small(layout.num_kv_heads) };
        let buffered = config.pages * max_num_seqs * layout.num_layers * layout.num_kv_heads;
        let near = Near::start(layout, buffered, mover)?;
        Ok(Self(Some(Box::new(Inner {
            layout,
            config,
            shape,
            group_values: heads / layout.num_kv_heads * layout.head_dim,
            sequences: BTreeMap::new(),
            near,
            thresholds: Thresholds::new(ThresholdConfig::default()),
            learner: ThrottleLearner::new(ThrottleConfig::default(), 1),
            period: (0, 0, None),
            step: 0,
            failed: BTreeSet::new(),
            counts: SparseCounts::default(),
            sink: None,
        }))))
    }

    /// Whether decode steps choose their pages.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the pages of a request's first `tokens` tokens are known, so that a step can choose from
    /// them.
    #[must_use]
    pub fn knows(&self, request: RequestId, tokens: usize) -> bool {
        let Some(inner) = &self.0 else { return false };
        let sequence = inner.sequences.get(&request);
        sequence.is_some_and(|sequence| sequence.num_pages() == tokens / inner.layout.block_tokens)
    }

    /// Passes each choice to `sink`.
    pub fn observe(&mut self, sink: ChoiceSink) {
        if let Some(inner) = &mut self.0 {
            inner.sink = Some(sink);
        }
    }

    /// Adds the summaries of a request's full blocks, of which `tokens` tokens have KV. Call it after
    /// each step that computed or loaded tokens of the request.
    pub fn extend(&mut self, request: RequestId, table: &[BlockId], tokens: usize, kv: &KvArena, streamer: &Streamer) {
        if let Some(inner) = &mut self.0 {
            inner.extend(request, &table[..tokens / inner.layout.block_tokens], kv, streamer);
        }
    }

    /// Forgets a request's pages from number `blocks` on.
    pub fn truncate(&mut self, request: RequestId, blocks: usize) {
        if let Some(sequence) = self.0.as_mut().and_then(|inner| inner.sequences.get_mut(&request)) {
            sequence.truncate(blocks);
        }
    }

    /// Forgets a request.
    pub fn forget(&mut self, request: RequestId) {
        if let Some(inner) = &mut self.0
            && let Some(sequence) = inner.sequences.remove(&request)
        {
            inner.near.forget(request, sequence);
        }
    }

    /// Blocks of the last step with a page that was damaged or gone. Results of sequences with them
    /// are invalid.
    pub fn take_failed(&mut self) -> BTreeSet<BlockId> {
        self.0.as_mut().map(|inner| std::mem::take(&mut inner.failed)).unwrap_or_default()
    }

    /// Counters since the start; all zero if it is off.
    #[must_use]
    pub fn counts(&self) -> SparseCounts {
        self.0.as_ref().map(|inner| inner.counts()).unwrap_or_default()
    }

    /// Counters and sizes by Prometheus name; none if it is off.
    #[must_use]
    pub fn stats(&self) -> Vec<(String, f64)> {
        let Some(inner) = &self.0 else { return Vec::new() };
        let counts = inner.counts();
        let summaries: usize = inner.sequences.values().map(Sequence::summary_bytes).sum();
        let held: usize = inner.sequences.values().map(Sequence::num_held).sum();
        [
            ("sparse_steps_total", counts.steps),
            ("sparse_chosen_pages_total", counts.chosen),
            ("sparse_resident_pages_total", counts.resident),
            ("sparse_hot_pages_total", counts.hot),
            ("sparse_prefetched_pages_total", counts.prefetched),
            ("sparse_late_pages_total", counts.late),
            ("sparse_demanded_pages_total", counts.demanded),
            ("sparse_wasted_pages_total", counts.wasted),
            ("sparse_fetched_bytes_total", counts.fetched_bytes),
            ("sparse_prefetched_bytes_total", counts.prefetched_bytes),
            ("sparse_stall_ns_total", counts.stall_ns),
            ("sparse_hidden_ns_total", counts.hidden_ns),
            ("sparse_summary_bytes", summaries as u64),
            ("sparse_page_bytes", (held * inner.near.page_bytes()) as u64),
        ]
        .map(|(name, value)| (name.to_owned(), value as f64))
        .into()
    }

    /// Begins a step of these requests.
    pub(crate) fn begin(&mut self, requests: impl Iterator<Item = RequestId>) {
        if let Some(inner) = &mut self.0 {
            inner.begin(requests);
        }
    }

    /// Chooses the pages of a layer, and waits until they are in L1.
    pub(crate) fn choose(&mut self, layer: usize, queries: &[SparseQuery<'_>], streamer: &Streamer) {
        if let Some(inner) = &mut self.0 {
            let layer = u32::try_from(layer).expect("models have fewer layers");
            queries.iter().for_each(|query| inner.choose(layer, query, streamer));
            inner.arrive(queries, streamer);
        }
    }

    /// The chosen pages of each head group, and the number of tokens before the step's in them.
    pub(crate) fn chosen<'a>(
        &'a self,
        layer: usize,
        query: &SparseQuery<'_>,
        kv: LayerView<'a>,
    ) -> (usize, Vec<Vec<HeadPage<'a>>>) {
        let inner = self.0.as_ref().expect("a sparse query");
        inner.chosen(u32::try_from(layer).expect("models have fewer layers"), query, kv)
    }

    /// Records that a layer has read its pages, and prefetches for the next one.
    pub(crate) fn computed(&mut self, layer: usize, queries: &[SparseQuery<'_>], streamer: &Streamer) {
        if let Some(inner) = &mut self.0 {
            let layer = u32::try_from(layer).expect("models have fewer layers");
            queries.iter().for_each(|query| inner.keep(layer, query));
            queries.iter().for_each(|query| inner.predict(layer, query, streamer));
            inner.near.pump(&mut inner.sequences, &far_of(queries, streamer));
        }
    }

    /// Ends a step.
    pub(crate) fn end(&mut self, requests: impl Iterator<Item = RequestId>) {
        if let Some(inner) = &mut self.0 {
            inner.end(requests);
        }
    }
}

/// Finds the block in the region that holds a page. `None`: it is in the engine's blocks, or gone.
fn far_of<'a>(queries: &'a [SparseQuery<'a>], streamer: &'a Streamer) -> impl Fn(&Key) -> Option<Far> + use<'a> {
    move |(request, _, page)| {
        let query = queries.iter().find(|query| query.request == *request)?;
        streamer.far(*query.block_table.get(*page as usize)?)
    }
}

impl Inner {
    fn extend(&mut self, request: RequestId, full: &[BlockId], kv: &KvArena, streamer: &Streamer) {
        let (shape, layout, predictor) = (self.shape, self.layout, self.config.predictor);
        let new = || Sequence::new(layout, shape, predictor.unwrap_or_default());
        let sequence = self.sequences.entry(request).or_insert_with(new);
        while sequence.num_pages() < full.len() {
            let block = full[sequence.num_pages()];
            match streamer.far(block) {
                None if !streamer.is_spilled(block) => sequence.push(kv, block),
                // It never was in L1: its keys are read once for their summary. One that is damaged
                // or gone is detected when it is chosen, and then its block is computed.
                far => sequence.push_far(far.as_ref()),
            }
        }
    }

    fn begin(&mut self, requests: impl Iterator<Item = RequestId>) {
        self.step += 1;
        self.failed.clear();
        for request in requests {
            let depth = match (self.config.predictor, self.config.depth) {
                (None, _) => 0,
                (Some(_), PrefetchDepth::Fixed(depth)) => depth,
                (Some(_), PrefetchDepth::Learned) => self.near.planner().depth(request),
            };
            if let Some(sequence) = self.sequences.get_mut(&request) {
                (sequence.depth, sequence.result) = (depth, StepResult::default());
            }
            self.counts.steps += 1;
        }
    }

    fn choose(&mut self, layer: u32, query: &SparseQuery<'_>, streamer: &Streamer) {
        let Self { sequences, near, counts, sink, config, .. } = self;
        let Some(sequence) = sequences.get_mut(&query.request) else { return };
        for (group, q) in (0..).zip(query.q.chunks_exact(self.group_values)) {
            let of = Chooser { layer, group };
            let scores = sequence.scores(of, q);
            let chosen = top_pages(&scores, config.pages);
            if let Some(sink) = sink {
                sink(&ChoiceRecord { request: query.request, of, scores: &scores, chosen: &chosen });
            }
            for page in sequence.observe(of, &scores, &chosen) {
                sequence.result.wasted += u32::from(near.mispredicted((query.request, of, page)));
            }
            counts.chosen += chosen.len() as u64;
            for &page in &chosen {
                let block = query.block_table[page as usize];
                if streamer.is_spilled(block) {
                    let far = streamer.far(block);
                    near.need((query.request, of, page), far.as_ref(), sequence, counts);
                } else {
                    counts.resident += 1;
                }
            }
            sequence.set_chosen(of, chosen);
        }
    }

    fn arrive(&mut self, queries: &[SparseQuery<'_>], streamer: &Streamer) {
        let far = far_of(queries, streamer);
        for (request, _, page) in self.near.arrive(&mut self.sequences, &far, &mut self.counts) {
            let query = queries.iter().find(|query| query.request == request);
            self.failed.extend(query.map(|query| query.block_table[page as usize]));
        }
    }

    fn chosen<'a>(&'a self, layer: u32, query: &SparseQuery<'_>, kv: LayerView<'a>) -> (usize, Vec<Vec<HeadPage<'a>>>) {
        let block_tokens = self.layout.block_tokens;
        let Some(sequence) = self.sequences.get(&query.request) else { return (0, Vec::new()) };
        let newest = &query.block_table[sequence.num_pages()..=query.position / block_tokens];
        let mut read = 0;
        let of_group = |group: u32| {
            let of = Chooser { layer, group };
            let pages = sequence.chosen(of).iter().map(|page| {
                let block = query.block_table[*page as usize];
                if kv.holds(block) {
                    return kv.head_page(block, group as usize);
                }
                // The result of a step with a lost page is discarded: any page will do.
                let lost = || kv.head_page(newest[0], group as usize);
                sequence.held(of, *page).map_or_else(lost, |data| HeadPage::alone(data, &self.layout))
            });
            let pages: Vec<HeadPage<'a>> =
                pages.chain(newest.iter().map(|block| kv.head_page(*block, group as usize))).collect();
            read = (pages.len() - 1) * block_tokens + query.position % block_tokens;
            pages
        };
        let pages = (0..self.shape.groups).map(of_group).collect();
        (read, pages)
    }

    /// The pages were read: some stay in L1.
    fn keep(&mut self, layer: u32, query: &SparseQuery<'_>) {
        let Some(sequence) = self.sequences.get_mut(&query.request) else { return };
        for group in 0..self.shape.groups {
            let of = Chooser { layer, group };
            for page in sequence.chosen(of).to_vec() {
                if sequence.held(of, page).is_none() {
                    continue;
                }
                let left = match sequence.read(of, page, self.step, self.config.hot_pages, &self.thresholds) {
                    HotRead::Kept | HotRead::Admitted(None) => continue,
                    HotRead::Admitted(Some(replaced)) => replaced,
                    HotRead::Passed => page,
                };
                self.near.leave((query.request, of, left), sequence);
            }
        }
    }

    /// Offers what the predictor expects, as early as it can know it.
    fn predict(&mut self, layer: u32, query: &SparseQuery<'_>, streamer: &Streamer) {
        let Some(kind) = self.config.predictor else { return };
        let Some(sequence) = self.sequences.get_mut(&query.request).filter(|sequence| sequence.depth > 0) else {
            return;
        };
        let count = (sequence.depth as usize * self.config.pages).div_ceil(4);
        let bytes = self.near.page_bytes() as u64;
        for group in 0..self.shape.groups {
            let of = kind.target(Chooser { layer, group }, self.shape);
            for (rank, page) in (0..).zip(sequence.predict(of, count)) {
                let Some(far) = streamer.far(query.block_table[page as usize]) else { continue };
                if sequence.is_hot(of, page) {
                    continue;
                }
                let _ = self.near.planner().offer(Offer {
                    key: (query.request, of, page),
                    request: query.request,
                    source: Source::Speculative(rank),
                    bytes,
                    generation: far.serial,
                    needed_at_ns: None,
                });
            }
        }
    }

    fn end(&mut self, requests: impl Iterator<Item = RequestId>) {
        let (mut needed, mut missed, mut tokens) = (0, 0, 0);
        for request in requests {
            let Some(sequence) = self.sequences.get(&request) else { continue };
            self.near.planner().end_step(request, &sequence.result);
            needed += sequence.result.needed;
            missed += sequence.result.needed - sequence.result.hits;
            tokens += 1;
        }
        if tokens == 0 {
            return;
        }
        let (kept, room) = self.sequences.values().fold((0, 0), |(kept, room), sequence| {
            (kept + sequence.num_hot(), room + self.config.hot_pages * sequence.num_groups())
        });
        let miss_rate = f64::from(missed) / f64::from(needed.max(1));
        self.thresholds.observe(kept as f64 / room.max(1) as f64, miss_rate);
        let now = self.near.now_ns();
        self.near.observe_link(now);
        self.learn(now, tokens);
    }

    /// Tries other parameters of the throttle in each period, and learns from the throughput.
    fn learn(&mut self, now: u64, tokens: u64) {
        let (begin, done, usual) = &mut self.period;
        if *done == 0 {
            *begin = now;
        }
        *done += tokens;
        if *done < PERIOD_TOKENS {
            return;
        }
        let rate = *done as f64 / (now - *begin).max(1) as f64;
        let usual = *usual.get_or_insert(rate);
        self.learner.observe(rate / usual);
        self.near.planner().configure_throttle(self.learner.trial());
        self.period.1 = 0;
    }

    fn counts(&self) -> SparseCounts {
        let mut counts = self.counts;
        self.near.add_to(&mut counts);
        counts
    }
}
