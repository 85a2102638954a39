//! One request: summaries, the last choices, and the pages that lie in L1 beside its blocks.

use super::near::parts;
use crate::kernels::AlignedBuffer;
use crate::kernels::summary::PageSummaries;
use crate::kv::{HeadPage, KvArena, KvLayout};
use crate::stream::Far;
use cenote_policy::choice::{ChoiceKind, ChoiceShape, Chooser, PageChoice, PageNumber};
use cenote_policy::kv_blocks::BlockId;
use cenote_policy::prefetch::StepResult;
use cenote_policy::temperature::{HotRead, HotSet, Thresholds};
use std::collections::BTreeMap;

/// A page of one group of heads in memory of its own.
pub(super) struct Held {
    /// K part, then V part.
    pub data: AlignedBuffer,
    /// Serial number of the block that it was copied from.
    pub serial: u64,
    /// Nanoseconds of its copy, if nothing has waited for it and it was not read yet.
    pub hidden_ns: Option<u64>,
}

/// A group of heads of one layer.
struct Group {
    summaries: PageSummaries,
    hot: HotSet,
    held: BTreeMap<PageNumber, Held>,
    chosen: Vec<PageNumber>,
}

pub(super) struct Sequence {
    layout: KvLayout,
    shape: ChoiceShape,
    groups: Vec<Group>,
    choice: PageChoice,
    /// Quarters of a choice to prefetch in this step, and what prefetches were worth in it.
    pub depth: u32,
    pub result: StepResult,
}

impl Sequence {
    pub fn new(layout: KvLayout, shape: ChoiceShape, kind: ChoiceKind) -> Self {
        let new = |_| Group {
            summaries: PageSummaries::new(layout),
            hot: HotSet::default(),
            held: BTreeMap::new(),
            chosen: Vec::new(),
        };
        let groups = (0..shape.layers * shape.groups).map(new).collect();
        let choice = PageChoice::new(kind, shape);
        Self { layout, shape, groups, choice, depth: 0, result: StepResult::default() }
    }

    const fn index(&self, of: Chooser) -> usize {
        (of.layer * self.shape.groups + of.group) as usize
    }

    fn group(&self, of: Chooser) -> &Group {
        &self.groups[self.index(of)]
    }

    fn group_mut(&mut self, of: Chooser) -> &mut Group {
        let index = self.index(of);
        &mut self.groups[index]
    }

    /// Number of full pages with a summary.
    pub fn num_pages(&self) -> usize {
        self.groups[0].summaries.len()
    }

    pub const fn num_groups(&self) -> usize {
        self.groups.len()
    }

    /// Adds the summaries of a block in L1.
    pub fn push(&mut self, kv: &KvArena, block: BlockId) {
        let per_layer = self.shape.groups as usize;
        for (layer, groups) in self.groups.chunks_exact_mut(per_layer).enumerate() {
            let view = kv.view(layer);
            groups.iter_mut().enumerate().for_each(|(head, group)| group.summaries.push(&view.head_page(block, head)));
        }
    }

    /// As [`Self::push`], for a block in the region. Pages that cannot be read count as zeros.
    pub fn push_far(&mut self, far: Option<&Far>) {
        let mut page = AlignedBuffer::zeroed(2 * self.layout.page_bytes() / self.layout.num_kv_heads);
        for (index, group) in self.groups.iter_mut().enumerate() {
            let of = Chooser { layer: index as u32 / self.shape.groups, group: index as u32 % self.shape.groups };
            let [k, _] = parts(self.layout.num_kv_heads, of);
            let bytes = page.as_bytes_mut();
            let keys = bytes.len() / 2;
            if !far.is_some_and(|far| far.block.read(k, &mut bytes[..keys], false)) {
                bytes.fill(0);
            }
            group.summaries.push(&HeadPage::alone(&page, &self.layout));
        }
    }

    pub fn truncate(&mut self, pages: usize) {
        let first = u32::try_from(pages).unwrap_or(u32::MAX);
        for group in &mut self.groups {
            group.summaries.truncate(pages);
            group.hot.truncate(first);
            group.held.split_off(&first);
            group.chosen.clear();
        }
    }

    pub fn scores(&self, of: Chooser, q: &[f32]) -> Vec<f32> {
        self.group(of).summaries.scores(q)
    }

    /// Records a choice; returns the predicted pages that it does not contain.
    pub fn observe(&mut self, of: Chooser, scores: &[f32], chosen: &[PageNumber]) -> Vec<PageNumber> {
        self.choice.observe(of, scores, chosen)
    }

    /// Keeps a choice until the layer has read it, in the order of the context.
    pub fn set_chosen(&mut self, of: Chooser, mut chosen: Vec<PageNumber>) {
        chosen.sort_unstable();
        self.group_mut(of).chosen = chosen;
    }

    pub fn chosen(&self, of: Chooser) -> &[PageNumber] {
        &self.group(of).chosen
    }

    pub fn predict(&mut self, of: Chooser, count: usize) -> Vec<PageNumber> {
        let pages = u32::try_from(self.num_pages()).expect("contexts are shorter");
        self.choice.predict(of, pages, count)
    }

    pub fn held(&self, of: Chooser, page: PageNumber) -> Option<&AlignedBuffer> {
        self.group(of).held.get(&page).map(|held| &held.data)
    }

    pub fn held_mut(&mut self, of: Chooser, page: PageNumber) -> Option<&mut Held> {
        self.group_mut(of).held.get_mut(&page)
    }

    pub fn hold(&mut self, of: Chooser, page: PageNumber, held: Held) -> Option<Held> {
        self.group_mut(of).held.insert(page, held)
    }

    /// Takes a page out of L1.
    pub fn drop_held(&mut self, of: Chooser, page: PageNumber) -> Option<Held> {
        self.group_mut(of).held.remove(&page)
    }

    pub fn into_held(self) -> impl Iterator<Item = AlignedBuffer> {
        self.groups.into_iter().flat_map(|group| group.held.into_values().map(|held| held.data))
    }

    pub fn is_hot(&self, of: Chooser, page: PageNumber) -> bool {
        let group = self.group(of);
        group.hot.contains(page) && group.held.contains_key(&page)
    }

    pub fn read(&mut self, of: Chooser, page: PageNumber, step: u64, room: usize, thresholds: &Thresholds) -> HotRead {
        self.group_mut(of).hot.read(page, step, room, thresholds)
    }

    pub fn num_hot(&self) -> usize {
        self.groups.iter().map(|group| group.hot.len()).sum()
    }

    pub fn num_held(&self) -> usize {
        self.groups.iter().map(|group| group.held.len()).sum()
    }

    pub fn summary_bytes(&self) -> usize {
        self.num_pages() * self.groups.len() * PageSummaries::bytes_per_page(&self.layout)
    }
}
