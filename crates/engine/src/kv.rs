//! The engine's own KV memory (L1): an arena of blocks, paged per layer.
//!
//! A block holds `block_tokens` tokens of all layers: K and V page of layer 0, K and V page of
//! layer 1, and so on. A [`cenote_store::PrefixStore`] takes the pages in this order. Each layer
//! has its own memory, so one layer can be filled while another is computed with. Pages are
//! sequences of 16-wide panels, the layout that the kernels read:
//! * K page `[kv_head][token / 16][dim][token % 16]`: a lane is a key;
//! * V page `[kv_head][dim / 16][token][dim % 16]`: a lane is a dimension, the last panel padded.

use crate::kernels::buffer::{AlignedBuffer, ElementType, narrow};
use crate::kernels::{PANEL, attention::widen_into};
use cenote_policy::kv_blocks::BlockId;

/// Shape of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers in the model.
    pub num_layers: usize,
    /// K and V heads per layer.
    pub num_kv_heads: usize,
    /// Values per head and token.
    pub head_dim: usize,
    /// Tokens per block: a multiple of 16.
    pub block_tokens: usize,
    /// Element type of the stored values.
    pub element: ElementType,
}

impl KvLayout {
    /// Names the order of values in a page. Engines that share KV must agree on it.
    pub const PAGE_LAYOUT: &'static str =
        "k:[kv_head][token/16][dim][token%16] v:[kv_head][dim/16][token][dim%16], page padded to dim%16=0";

    /// `head_dim` rounded up to whole panels.
    #[must_use]
    pub const fn padded_head_dim(&self) -> usize {
        self.head_dim.next_multiple_of(PANEL)
    }

    /// Values per page. K and V pages are equally long; where V is padded, the end of a K page
    /// is unused.
    #[must_use]
    pub const fn page_elements(&self) -> usize {
        self.num_kv_heads * self.padded_head_dim() * self.block_tokens
    }

    /// Bytes per page.
    #[must_use]
    pub const fn page_bytes(&self) -> usize {
        self.page_elements() * self.element.bytes()
    }

    /// Bytes per block: K and V pages of all layers.
    #[must_use]
    pub const fn block_bytes(&self) -> usize {
        2 * self.num_layers * self.page_bytes()
    }
}

/// Memory for KV blocks: one [`KvLayer`] per layer.
pub struct KvArena {
    layout: KvLayout,
    layers: Vec<KvLayer>,
}

/// One layer's part of all blocks: K then V page of each block.
pub struct KvLayer {
    layout: KvLayout,
    data: AlignedBuffer,
}

/// One layer's pages as attention reads them: those in L1, and those of spilled blocks, staged for
/// this layer.
#[derive(Clone, Copy)]
pub struct LayerView<'a> {
    layer: &'a KvLayer,
    staged: Staged<'a>,
}

/// Staged pages of one layer.
#[derive(Clone, Copy, Default)]
pub struct Staged<'a> {
    /// Id of the first spilled block: the number of blocks in L1.
    pub first: usize,
    /// For each spilled block from `first` on, its place in `pages`.
    pub places: &'a [StagedPlace],
    /// K then V page of a few blocks each, of KV heads from `heads.0` until before `heads.1`. `None`:
    /// free.
    pub pages: &'a [Option<AlignedBuffer>],
    /// The staged KV heads.
    pub heads: (usize, usize),
}

/// Place of a staged block.
#[derive(Clone, Copy, Debug, Default)]
pub struct StagedPlace {
    /// Index of the memory.
    pub memory: u32,
    /// Index of the block in it.
    pub index: u32,
}

/// One KV head's part of a block's K and V page.
#[derive(Clone, Copy)]
pub struct HeadPage<'a> {
    data: &'a AlignedBuffer,
    /// Indexes of the first elements.
    k: usize,
    v: usize,
}

impl KvArena {
    /// Creates an arena of `num_blocks` zeroed blocks.
    ///
    /// # Panics
    /// `block_tokens` is not a multiple of 16.
    #[must_use]
    pub fn new(layout: KvLayout, num_blocks: usize) -> Self {
        assert!(layout.block_tokens.is_multiple_of(PANEL) && layout.block_tokens > 0, "a block is whole key panels");
        Self { layout, layers: (0..layout.num_layers).map(|_| KvLayer::new(layout, num_blocks)).collect() }
    }

    /// The shape of the blocks.
    #[must_use]
    pub const fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The layers, in model order.
    pub(crate) fn layers_mut(&mut self) -> &mut [KvLayer] {
        &mut self.layers
    }

    /// One layer.
    pub(crate) fn view(&self, layer: usize) -> LayerView<'_> {
        self.layers[layer].view()
    }

    /// The pages of a block: K then V of each layer, `page_bytes` each.
    #[must_use]
    pub fn pages(&self, block: BlockId) -> Vec<&[u8]> {
        let bytes = self.layout.page_bytes();
        let at = block as usize * 2 * bytes;
        self.layers.iter().flat_map(|layer| layer.data.as_bytes()[at..at + 2 * bytes].chunks_exact(bytes)).collect()
    }

    /// As [`Self::pages`], each page in `parts` equal parts.
    #[must_use]
    pub fn parts(&self, block: BlockId, parts: usize) -> Vec<&[u8]> {
        let bytes = self.layout.page_bytes() / parts;
        self.pages(block).into_iter().flat_map(|page| page.chunks_exact(bytes)).collect()
    }

    /// As [`Self::pages`], writable.
    pub fn pages_mut(&mut self, block: BlockId) -> Vec<&mut [u8]> {
        let bytes = self.layout.page_bytes();
        let at = block as usize * 2 * bytes;
        let layers = self.layers.iter_mut().map(|layer| layer.data.as_bytes_mut());
        layers.flat_map(|layer| layer[at..at + 2 * bytes].chunks_exact_mut(bytes)).collect()
    }
}

impl KvLayer {
    pub(crate) fn new(layout: KvLayout, num_blocks: usize) -> Self {
        Self { layout, data: AlignedBuffer::zeroed(num_blocks * 2 * layout.page_bytes()) }
    }

    /// The shape of the blocks.
    #[must_use]
    pub const fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn num_blocks(&self) -> usize {
        self.data.as_bytes().len() / (2 * self.layout.page_bytes())
    }

    /// The K and V pages of each of `blocks` as one slice per block. Block numbers must ascend.
    pub(crate) fn pages_of(&mut self, blocks: impl IntoIterator<Item = BlockId>) -> Vec<&mut [u8]> {
        let bytes = 2 * self.layout.page_bytes();
        let (mut first, mut rest) = (0, self.data.as_bytes_mut());
        let blocks = blocks.into_iter().map(|block| {
            let (_, from) = std::mem::take(&mut rest).split_at_mut((block as usize - first) * bytes);
            let (pages, behind) = from.split_at_mut(bytes);
            (first, rest) = (block as usize + 1, behind);
            pages
        });
        blocks.collect()
    }

    /// Stores K and V (`[kv_head][dim]` each) of the token at `position`, rounded to the
    /// layer's element type. `block_table` holds the sequence's blocks.
    pub fn write(&mut self, block_table: &[BlockId], position: usize, k: &[f32], v: &[f32]) {
        let layout = self.layout;
        let (dim, token) = (layout.head_dim, position % layout.block_tokens);
        let k_page = self.page(block_table[position / layout.block_tokens]);
        let v_page = k_page + layout.page_elements();
        for head in 0..layout.num_kv_heads {
            let k_at = k_page + head * dim * layout.block_tokens + token / PANEL * dim * PANEL + token % PANEL;
            let v_at = v_page + head * layout.padded_head_dim() * layout.block_tokens + token * PANEL;
            let (k, v) = (&k[head * dim..(head + 1) * dim], &v[head * dim..(head + 1) * dim]);
            let v_strips =
                v.chunks(PANEL).enumerate().map(|(strip, v)| (v_at + strip * layout.block_tokens * PANEL, v));
            match layout.element {
                ElementType::F32 => {
                    let data = self.data.as_f32_mut();
                    k.iter().enumerate().for_each(|(d, value)| data[k_at + d * PANEL] = *value);
                    v_strips.for_each(|(at, v)| data[at..at + v.len()].copy_from_slice(v));
                }
                ElementType::Bf16 => {
                    let data = self.data.as_bf16_mut();
                    k.iter().enumerate().for_each(|(d, value)| data[k_at + d * PANEL] = narrow(*value));
                    for (at, v) in v_strips {
                        data[at..].iter_mut().zip(v).for_each(|(slot, value)| *slot = narrow(*value));
                    }
                }
            }
        }
    }

    /// This layer without staged pages.
    #[must_use]
    pub const fn view(&self) -> LayerView<'_> {
        self.view_with(Staged { first: usize::MAX, places: &[], pages: &[], heads: (0, 0) })
    }

    /// This layer and staged pages.
    #[must_use]
    pub const fn view_with<'a>(&'a self, staged: Staged<'a>) -> LayerView<'a> {
        LayerView { layer: self, staged }
    }

    /// Index of the first element of the block's K page.
    #[inline(always)]
    fn page(&self, block: BlockId) -> usize {
        block as usize * 2 * self.layout.page_elements()
    }

    /// Fills the layer with NaN (all ones), so that tests detect reads of unwritten values.
    #[cfg(test)]
    pub(crate) fn poison(&mut self) {
        self.data.as_bytes_mut().fill(0xff);
    }
}

impl<'a> LayerView<'a> {
    /// The shape of the blocks.
    #[must_use]
    pub const fn layout(&self) -> &'a KvLayout {
        &self.layer.layout
    }

    /// Whether a block lies in L1.
    pub(crate) fn holds(&self, block: BlockId) -> bool {
        (block as usize) < self.layer.num_blocks()
    }

    /// One head's part of a block's pages. The head of a spilled block is staged.
    pub(crate) fn head_page(&self, block: BlockId, kv_head: usize) -> HeadPage<'a> {
        let layout = &self.layer.layout;
        let of_head = layout.padded_head_dim() * layout.block_tokens;
        let (data, page, head, heads) = match (block as usize).checked_sub(self.staged.first) {
            None => (&self.layer.data, self.layer.page(block), kv_head, layout.num_kv_heads),
            Some(spilled) => {
                let StagedPlace { memory, index } = self.staged.places[spilled];
                let (first, end) = self.staged.heads;
                let pages = self.staged.pages[memory as usize].as_ref();
                let page = index as usize * 2 * (end - first) * of_head;
                (pages.expect("a layer is computed when its pages are staged"), page, kv_head - first, end - first)
            }
        };
        let k = page + head * layout.head_dim * layout.block_tokens;
        HeadPage { data, k, v: page + (heads + head) * of_head }
    }
}

impl<'a> HeadPage<'a> {
    /// A copy of one head's part: the K part, then the V part.
    pub(crate) fn alone(data: &'a AlignedBuffer, layout: &KvLayout) -> Self {
        Self { data, k: 0, v: layout.head_dim * layout.block_tokens }
    }

    /// Keys `16 · panel ..` as `[dim][16]`. `scratch` receives widened bf16 values.
    #[inline(always)]
    pub(crate) fn k_panel(&self, layout: &KvLayout, panel: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        let length = layout.head_dim * PANEL;
        values(self.data, layout.element, self.k + panel * length, length, scratch)
    }

    /// Values of the same 16 tokens, dimensions `16 · strip ..`, as `[token][16]`.
    #[inline(always)]
    pub(crate) fn v_panel(&self, layout: &KvLayout, panel: usize, strip: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        let at = self.v + (strip * layout.block_tokens + panel * PANEL) * PANEL;
        values(self.data, layout.element, at, PANEL * PANEL, scratch)
    }
}

/// `length` elements from `at` on. `scratch` receives widened bf16 values.
#[inline(always)]
pub(crate) fn values<'a>(
    data: &'a AlignedBuffer,
    element: ElementType,
    at: usize,
    length: usize,
    scratch: &'a mut [f32],
) -> &'a [f32] {
    match element {
        ElementType::F32 => &data.as_f32()[at..at + length],
        ElementType::Bf16 => widen_into(&data.as_bf16()[at..at + length], scratch),
    }
}
