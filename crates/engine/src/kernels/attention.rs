//! Paged causal attention with grouped-query heads.
//!
//! A task covers one KV head and a few consecutive query tokens of one sequence. Its rows are those
//! tokens times the query heads that share the KV head. Scores of all rows are computed per key
//! panel (16 keys; K pages keep the key innermost, so a lane is a key) and stored. They are turned
//! into softmax terms and multiplied with the V panels (a lane is a dimension). Two passes over
//! stored scores, instead of an online softmax, make each output element one chain over keys 0, 1,
//! 2, … of its row. The chunk of a query and its neighbours cannot change that order.

use super::PANEL;
use super::buffer::{ElementType, widen};
use super::elementwise::softmax_terms;
use super::micro::{Tile, fma_chain, panel, panel_mut, with_vectors_per_panel, zero};
use crate::kv::{HeadPage, KvLayout, LayerView};
use cenote_policy::kv_blocks::BlockId;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// Rows per task. Enough rows use a key panel several times while it is in the L1 cache (or
/// widened). Few enough keep the rows' scores in the L2 cache for contexts of some thousand tokens.
const ROWS_PER_TASK: usize = 24;
/// Key panels per pass over the values: the V panels of a superblock stay in the L1/L2 cache.
const SUPERBLOCK: usize = 8;

/// Consecutive tokens of one sequence within a batch.
#[derive(Clone, Copy)]
pub struct QueryChunk<'a> {
    /// First row of the chunk in the batch.
    pub first_row: usize,
    /// Number of rows, one per token.
    pub rows: usize,
    /// Number of tokens before the first one. The layer must hold their KV, and the rows' own.
    pub start_position: usize,
    /// The pages of all these tokens.
    pub pages: ChunkPages<'a>,
}

/// Where the KV of a chunk lies.
#[derive(Clone, Copy)]
pub enum ChunkPages<'a> {
    /// In these blocks of a layer: all tokens of the sequence.
    All(&'a [BlockId]),
    /// In these pages of each KV head: the tokens that sparse attention reads.
    Chosen(&'a [Vec<HeadPage<'a>>]),
}

/// Computes attention for chunks of a ragged batch, in the order of their rows. `q` has `q_stride`
/// values per row; the first `heads · head_dim` are the rotated queries. `out` is
/// `[row][heads · head_dim]`; rows of other chunks and values of other KV heads than `of` stay as they
/// are.
pub fn attend(
    kv: LayerView<'_>,
    q: &[f32],
    q_stride: usize,
    heads: usize,
    of: Range<usize>,
    chunks: &[QueryChunk<'_>],
    out: &mut [f32],
) {
    let layout = kv.layout();
    let (kv_heads, head_dim) = (layout.num_kv_heads, layout.head_dim);
    let group = heads / kv_heads;
    let tokens_per_task = (ROWS_PER_TASK / group).max(1);
    // Per chunk and KV head.
    let pages: Vec<Cow<'_, [Vec<HeadPage<'_>>]>> = chunks.iter().map(|chunk| head_pages(kv, &of, chunk)).collect();
    let mut rows = out.chunks_exact_mut(heads * head_dim);
    let mut next_row = 0;
    let mut tasks = Vec::new();
    let mut work = 0;
    for (chunk, pages) in chunks.iter().zip(&pages) {
        rows.by_ref().take(chunk.first_row - next_row).for_each(drop);
        next_row = chunk.first_row + chunk.rows;
        work += chunk.rows * (chunk.start_position + chunk.rows) * of.len() * group * head_dim;
        for first in (0..chunk.rows).step_by(tokens_per_task) {
            let tokens = tokens_per_task.min(chunk.rows - first);
            let begin = tasks.len();
            tasks.extend(of.clone().zip(pages.iter()).map(|(kv_head, pages)| HeadTask {
                layout,
                kv_head,
                group,
                q,
                q_stride,
                first_row: chunk.first_row + first,
                start_position: chunk.start_position + first,
                pages,
                out: Vec::with_capacity(tokens),
            }));
            for row in rows.by_ref().take(tokens) {
                let own = row.chunks_exact_mut(group * head_dim).skip(of.start);
                for (task, part) in tasks[begin..].iter_mut().zip(own) {
                    task.out.push(part);
                }
            }
        }
    }
    let arch = Arch::new();
    if work < 1 << 17 {
        tasks.into_iter().for_each(|task| arch.dispatch(task));
    } else {
        // Later tokens see more keys. Starting the longest tasks first shortens the wait at the
        // end.
        tasks.into_par_iter().rev().with_max_len(1).for_each(|task| arch.dispatch(task));
    }
}

/// The pages of each of these KV heads that a chunk reads.
fn head_pages<'a>(kv: LayerView<'a>, of: &Range<usize>, chunk: &QueryChunk<'a>) -> Cow<'a, [Vec<HeadPage<'a>>]> {
    let layout = kv.layout();
    let table = match chunk.pages {
        ChunkPages::Chosen(pages) => return Cow::Borrowed(&pages[of.clone()]),
        ChunkPages::All(table) => table,
    };
    let table = &table[..(chunk.start_position + chunk.rows).div_ceil(layout.block_tokens)];
    let of_head = |kv_head: usize| table.iter().map(|block| kv.head_page(*block, kv_head)).collect();
    Cow::Owned(of.clone().map(of_head).collect())
}

struct HeadTask<'a> {
    layout: &'a KvLayout,
    kv_head: usize,
    group: usize,
    q: &'a [f32],
    q_stride: usize,
    first_row: usize,
    start_position: usize,
    pages: &'a [HeadPage<'a>],
    /// Per token, the outputs of this task's heads.
    out: Vec<&'a mut [f32]>,
}

impl WithSimd for HeadTask<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        with_vectors_per_panel!(S, V, self.run::<S, V>(simd));
    }
}

/// Expands to a call of `$function` with the number of rows as its const argument.
macro_rules! with_rows {
    ($rows:expr, $function:ident, $S:ident, $V:ident, ($($argument:expr),*)) => {
        // The first condition is constant: without vector instructions, tiles do not pay.
        if $V > 4 {
            $function::<$S, 1, $V>($($argument),*)
        } else {
            match $rows {
                6 => $function::<$S, 6, $V>($($argument),*),
                4 => $function::<$S, 4, $V>($($argument),*),
                2 => $function::<$S, 2, $V>($($argument),*),
                _ => $function::<$S, 1, $V>($($argument),*),
            }
        }
    };
}

/// Splits rows into tiles of the sizes that [`with_rows`] supports.
fn tiles(rows: usize, vectors_per_panel: usize) -> Vec<Range<usize>> {
    let sizes: &[usize] = if vectors_per_panel > 4 { &[1] } else { &[6, 4, 2, 1] };
    let mut tiles = Vec::new();
    let mut first = 0;
    while first < rows {
        let size = sizes.iter().copied().find(|size| *size <= rows - first).unwrap_or(1);
        tiles.push(first..first + size);
        first += size;
    }
    tiles
}

impl HeadTask<'_> {
    #[inline(always)]
    fn run<S: Simd, const V: usize>(&mut self, simd: S) {
        let layout = *self.layout;
        let panels_of_page = layout.block_tokens / PANEL;
        let (dim, padded_dim) = (layout.head_dim, layout.padded_head_dim());
        let tokens = self.out.len();
        let rows = tokens * self.group;
        let tiles = tiles(rows, V);
        let keys = self.start_position + tokens;
        let key_panels = keys.div_ceil(PANEL);
        // Row `r` is token `r / group`; it sees that token and all earlier ones.
        let visible = |row: usize| self.start_position + row / self.group + 1;

        // Scaling the query instead of the scores saves a multiplication per key.
        let scale = 1.0 / (dim as f32).sqrt();
        let mut queries = vec![0.0; rows * dim];
        for (row, query) in queries.chunks_exact_mut(dim).enumerate() {
            let token = self.first_row + row / self.group;
            let head = self.kv_head * self.group + row % self.group;
            let source = &self.q[token * self.q_stride + head * dim..][..dim];
            for (query, value) in query.iter_mut().zip(source) {
                *query = value * scale;
            }
        }

        // One extra cache line per row keeps the rows of a tile out of the same cache set.
        let stride = key_panels * PANEL + PANEL;
        let mut scores = vec![0.0; rows * stride];
        let mut scratch = Scratch::new(&layout);
        for key_panel in 0..key_panels {
            let page = &self.pages[key_panel / panels_of_page];
            let keys = page.k_panel(&layout, key_panel % panels_of_page, &mut scratch.k);
            let keys = panel::<S, V>(keys);
            for tile in &tiles {
                let (first, count) = (tile.start, tile.len());
                if visible(tile.end - 1) <= key_panel * PANEL {
                    continue;
                }
                let queries = &queries[first * dim..(first + count) * dim];
                let scores = &mut scores[first * stride + key_panel * PANEL..];
                with_rows!(count, score_tile, S, V, (simd, queries, dim, keys, scores, stride));
            }
        }

        // A loop instead of `map`: the adapter's code would be compiled for the baseline
        // instruction set.
        let mut sums = vec![0.0; rows];
        for (row, (sum, scores)) in sums.iter_mut().zip(scores.chunks_exact_mut(stride)).enumerate() {
            let visible = visible(row);
            *sum = softmax_terms(&mut scores[..visible.next_multiple_of(PANEL)], visible);
        }

        let mut sums_of_values = vec![0.0; rows * padded_dim];
        for first_panel in (0..key_panels).step_by(SUPERBLOCK) {
            let panels = first_panel..(first_panel + SUPERBLOCK).min(key_panels);
            let first_key = first_panel * PANEL;
            let keys_here = panels.len() * PANEL;
            for strip in 0..padded_dim / PANEL {
                let mut parts = scratch.v.chunks_exact_mut(PANEL * PANEL);
                let mut values: [&[[S::f32s; V]]; SUPERBLOCK] = [&[]; SUPERBLOCK];
                for (slot, key_panel) in values.iter_mut().zip(panels.clone()) {
                    let part = parts.next().unwrap_or_default();
                    let page = &self.pages[key_panel / panels_of_page];
                    let v = page.v_panel(&layout, key_panel % panels_of_page, strip, part);
                    *slot = panel::<S, V>(v);
                }
                for tile in &tiles {
                    let (first, count) = (tile.start, tile.len());
                    // All rows of the tile see the keys that its first row sees. Later keys are
                    // added row by row, so that no row reads an invisible value.
                    let common = visible(first).saturating_sub(first_key).min(keys_here);
                    let terms = &scores[first * stride + first_key..];
                    let out = &mut sums_of_values[first * padded_dim + strip * PANEL..];
                    with_rows!(count, value_tile, S, V, (simd, terms, stride, 0..common, &values, out, padded_dim));
                    for row in first + 1..tile.end {
                        let own = visible(row).saturating_sub(first_key).min(keys_here);
                        if own > common {
                            let terms = &scores[row * stride + first_key..];
                            let out = &mut sums_of_values[row * padded_dim + strip * PANEL..];
                            value_tile::<S, 1, V>(simd, terms, stride, common..own, &values, out, padded_dim);
                        }
                    }
                }
            }
        }

        for (row, values) in sums_of_values.chunks_exact(padded_dim).enumerate() {
            let out = &mut self.out[row / self.group][row % self.group * dim..][..dim];
            let inverse = 1.0 / sums[row];
            for (out, value) in out.iter_mut().zip(values) {
                *out = value * inverse;
            }
        }
    }
}

/// Buffers for widened bf16 panels; empty for f32, which is read in place.
struct Scratch {
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Scratch {
    #[inline(always)]
    fn new(layout: &KvLayout) -> Self {
        match layout.element {
            ElementType::F32 => Self { k: Vec::new(), v: Vec::new() },
            ElementType::Bf16 => {
                Self { k: vec![0.0; layout.head_dim * PANEL], v: vec![0.0; SUPERBLOCK * PANEL * PANEL] }
            }
        }
    }
}

/// Scores of `MR` rows against 16 keys.
#[inline(always)]
pub(super) fn score_tile<S: Simd, const MR: usize, const V: usize>(
    simd: S,
    queries: &[f32],
    dim: usize,
    keys: &[[S::f32s; V]],
    scores: &mut [f32],
    stride: usize,
) {
    let rows: [&[f32]; MR] = std::array::from_fn(|m| &queries[m * dim..(m + 1) * dim]);
    let tile: Tile<S, MR, 1, V> = fma_chain(simd, zero(simd), dim, |i, m| rows[m][i], [keys]);
    for m in 0..MR {
        panel_mut::<S, V>(&mut scores[m * stride..m * stride + PANEL])[0] = tile[m][0];
    }
}

/// Adds terms × values of the keys in `range` (relative to the superblock's first key) to `MR`
/// rows.
#[inline(always)]
fn value_tile<S: Simd, const MR: usize, const V: usize>(
    simd: S,
    terms: &[f32],
    stride: usize,
    range: Range<usize>,
    values: &[&[[S::f32s; V]]; SUPERBLOCK],
    out: &mut [f32],
    out_stride: usize,
) {
    let mut tile: Tile<S, MR, 1, V> =
        std::array::from_fn(|m| [panel::<S, V>(&out[m * out_stride..m * out_stride + PANEL])[0]]);
    let mut key = range.start;
    while key < range.end {
        let until = ((key / PANEL + 1) * PANEL).min(range.end);
        let rows: [&[f32]; MR] = std::array::from_fn(|m| &terms[m * stride + key..m * stride + until]);
        let v = &values[key / PANEL][key % PANEL..];
        tile = fma_chain(simd, tile, until - key, |i, m| rows[m][i], [v]);
        key = until;
    }
    for m in 0..MR {
        panel_mut::<S, V>(&mut out[m * out_stride..m * out_stride + PANEL])[0] = tile[m][0];
    }
}

/// Widens bf16 bits into `out`.
#[inline(always)]
pub(crate) fn widen_into<'a>(bits: &[u16], out: &'a mut [f32]) -> &'a [f32] {
    let out = &mut out[..bits.len()];
    for (slot, bits) in out.iter_mut().zip(bits) {
        *slot = widen(*bits);
    }
    out
}

#[cfg(test)]
mod tests;
