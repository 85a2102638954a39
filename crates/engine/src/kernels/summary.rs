//! Summaries of key pages, and how a query scores them (Quest, arXiv 2406.10774).
//!
//! A page's summary is the largest and the least value of each dimension of its keys. No key of the
//! page has a larger product with a query than the bound that both give: *Σ_d max(q_d·max_d,
//! q_d·min_d)*. With the query's positive part before its negative part, the bound is one product of
//! vectors of twice the dimensions. So a summary is stored and multiplied as a key is: panels of 16
//! pages, `[2 · dim][16]`, the largest values first.

use super::PANEL;
use super::attention::score_tile;
use super::buffer::{AlignedBuffer, ElementType, narrow};
use super::micro::{panel, with_vectors_per_panel};
use crate::kv::{HeadPage, KvLayout, values};
use pulp::{Arch, Simd, WithSimd};

/// The summaries of one head's pages, in the order of the context.
pub struct PageSummaries {
    layout: KvLayout,
    panels: Vec<AlignedBuffer>,
    num_pages: usize,
}

impl PageSummaries {
    /// Without pages.
    #[must_use]
    pub const fn new(layout: KvLayout) -> Self {
        Self { layout, panels: Vec::new(), num_pages: 0 }
    }

    /// Number of pages.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.num_pages
    }

    /// Whether there are no pages.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.num_pages == 0
    }

    /// Bytes of a page's summary.
    #[must_use]
    pub const fn bytes_per_page(layout: &KvLayout) -> usize {
        2 * layout.head_dim * layout.element.bytes()
    }

    /// Adds the next page, all of whose tokens are written.
    pub fn push(&mut self, page: &HeadPage<'_>) {
        let KvLayout { head_dim, block_tokens, element, .. } = self.layout;
        if self.num_pages.is_multiple_of(PANEL) {
            self.panels.push(AlignedBuffer::zeroed(PANEL * Self::bytes_per_page(&self.layout)));
        }
        let mut bounds = vec![(f32::NEG_INFINITY, f32::INFINITY); head_dim];
        let mut scratch = vec![0.0; head_dim * PANEL];
        for panel in 0..block_tokens / PANEL {
            let keys = page.k_panel(&self.layout, panel, &mut scratch);
            for ((largest, least), keys) in bounds.iter_mut().zip(keys.chunks_exact(PANEL)) {
                *largest = keys.iter().copied().fold(*largest, f32::max);
                *least = keys.iter().copied().fold(*least, f32::min);
            }
        }
        let at = self.num_pages % PANEL;
        let target = self.panels.last_mut().expect("a panel was added");
        let both = bounds.iter().map(|bound| bound.0).chain(bounds.iter().map(|bound| bound.1));
        match element {
            ElementType::F32 => {
                let rows = target.as_f32_mut().chunks_exact_mut(PANEL);
                rows.zip(both).for_each(|(row, bound)| row[at] = bound);
            }
            // Keys are bf16 values, so narrowing changes nothing.
            ElementType::Bf16 => {
                let rows = target.as_bf16_mut().chunks_exact_mut(PANEL);
                rows.zip(both).for_each(|(row, bound)| row[at] = narrow(bound));
            }
        }
        self.num_pages += 1;
    }

    /// Forgets the pages from number `first` on.
    pub fn truncate(&mut self, first: usize) {
        self.num_pages = self.num_pages.min(first);
        self.panels.truncate(self.num_pages.div_ceil(PANEL));
    }

    /// Scores of all pages for the query heads that share this head's keys, `head_dim` values each.
    /// A score is the logarithm of the page's share of attention if each key had its page's bound,
    /// summed over the heads; for one head it orders pages as the bound does.
    #[must_use]
    pub fn scores(&self, queries: &[f32]) -> Vec<f32> {
        let dim = self.layout.head_dim;
        let scale = 1.0 / (dim as f32).sqrt();
        let mut shares: Vec<f32> = Vec::new();
        for query in queries.chunks_exact(dim) {
            let positive = query.iter().map(|value| value.max(0.0) * scale);
            let signed: Vec<f32> = positive.chain(query.iter().map(|value| value.min(0.0) * scale)).collect();
            let mut bounds = vec![0.0; self.panels.len() * PANEL];
            Arch::new().dispatch(Bounds { summaries: self, query: &signed, bounds: &mut bounds });
            bounds.truncate(self.num_pages);
            let highest = bounds.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = bounds.iter().map(|bound| (bound - highest).exp()).sum();
            let level = highest + sum.ln();
            bounds.iter_mut().for_each(|bound| *bound -= level);
            if shares.is_empty() {
                shares = bounds;
            } else {
                shares.iter_mut().zip(bounds).for_each(|(share, bound)| {
                    let (more, less) = (share.max(bound), share.min(bound));
                    *share = more + (less - more).exp().ln_1p();
                });
            }
        }
        shares
    }
}

/// Multiplies one query with all summaries.
struct Bounds<'a> {
    summaries: &'a PageSummaries,
    query: &'a [f32],
    bounds: &'a mut [f32],
}

impl WithSimd for Bounds<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        with_vectors_per_panel!(S, V, self.run::<S, V>(simd));
    }
}

impl Bounds<'_> {
    #[inline(always)]
    fn run<S: Simd, const V: usize>(self, simd: S) {
        let length = self.query.len() * PANEL;
        let element = self.summaries.layout.element;
        let mut scratch = vec![0.0; if element == ElementType::Bf16 { length } else { 0 }];
        for (summaries, bounds) in self.summaries.panels.iter().zip(self.bounds.chunks_exact_mut(PANEL)) {
            let keys = values(summaries, element, 0, length, &mut scratch);
            score_tile::<S, 1, V>(simd, self.query, self.query.len(), panel::<S, V>(keys), bounds, PANEL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvLayer;
    use cenote_base::prng::Prng;

    #[test]
    fn no_key_exceeds_its_pages_bound_and_some_bound_is_reached() {
        let mut prng = Prng::new(3);
        let mut random = |count: usize| -> Vec<f32> { (0..count).map(|_| prng.next_f64() as f32 - 0.5).collect() };
        for (element, block_tokens) in [(ElementType::F32, 16), (ElementType::Bf16, 32)] {
            let layout = KvLayout { num_layers: 1, num_kv_heads: 2, head_dim: 32, block_tokens, element };
            let pages = 19;
            let table: Vec<u32> = (0..pages as u32).rev().collect();
            let mut layer = KvLayer::new(layout, pages);
            let mut keys = Vec::new();
            for position in 0..pages * block_tokens {
                let (k, v) = (random(64), random(64));
                layer.write(&table, position, &k, &v);
                keys.push(k);
            }
            for head in 0..2 {
                let mut summaries = PageSummaries::new(layout);
                table.iter().for_each(|block| summaries.push(&layer.view().head_page(*block, head)));
                assert_eq!(summaries.len(), pages);
                let query = random(32);
                let scores = summaries.scores(&query);
                let scale = 32_f32.sqrt();
                let products = |page: usize| {
                    let keys = &keys[page * block_tokens..(page + 1) * block_tokens];
                    keys.iter().map(|key| -> f32 {
                        let key = &key[head * 32..(head + 1) * 32];
                        key.iter().zip(&query).map(|(k, q)| k * q / scale).sum()
                    })
                };
                // Scores are bounds less a level that all pages share.
                let bound = |page: usize| -> f32 {
                    let keys = &keys[page * block_tokens..(page + 1) * block_tokens];
                    let of = |d: usize| {
                        let products = keys.iter().map(|key| key[head * 32 + d] * query[d] / scale);
                        products.fold(f32::NEG_INFINITY, f32::max)
                    };
                    (0..32).map(of).sum()
                };
                let level = bound(0) - scores[0];
                for (page, score) in scores.iter().enumerate() {
                    assert!((bound(page) - score - level).abs() < 5e-3, "page {page}");
                    assert!(products(page).all(|product| product <= score + level + 5e-3), "page {page}");
                }
                let sum: f32 = scores.iter().map(|score| score.exp()).sum();
                assert!((sum - 1.0).abs() < 1e-4, "the shares of one head sum to 1: {sum}");
                summaries.truncate(17);
                assert_eq!(summaries.scores(&query).len(), 17);
            }
        }
    }

    #[test]
    fn heads_vote_with_their_shares() {
        let layout =
            KvLayout { num_layers: 1, num_kv_heads: 1, head_dim: 16, block_tokens: 16, element: ElementType::F32 };
        let mut layer = KvLayer::new(layout, 3);
        for position in 0..48 {
            let mut key = [0.0; 16];
            key[position / 16] = 1.0;
            layer.write(&[0, 1, 2], position, &key, &[0.0; 16]);
        }
        let mut summaries = PageSummaries::new(layout);
        (0..3).for_each(|block| summaries.push(&layer.view().head_page(block, 0)));
        let mut queries = [0.0; 32];
        // The first head wants page 0, the second page 2.
        (queries[0], queries[16 + 2]) = (40.0, 40.0);
        let shares: Vec<f32> = summaries.scores(&queries).iter().map(|score| score.exp()).collect();
        assert!((shares[0] - shares[2]).abs() < 1e-3 && shares[0] > 0.9 && shares[1] < 0.1, "{shares:?}");
    }
}
