//! Time to encode and decode a layer's own pages, relative to copying them.

use cenote_base::{Clock, TokenId};
use cenote_codec::{Codecs, Page, PageCodec, PageKind, PageMut, Side, encode};
use cenote_engine::LoadedModel;
use cenote_engine::kv::{KvArena, KvLayout};
use cenote_engine::llama::{LogitsOf, SeqChunk};
use cenote_quality::engine_page;
use std::hint::black_box;
use std::sync::Arc;

/// Counted passes over the pages; the median counts.
const PASSES: usize = 15;

/// The KV pages of a prompt.
pub(super) struct Pages {
    layout: KvLayout,
    arena: KvArena,
    blocks: u32,
}

impl Pages {
    /// Computes the KV of `prompt`.
    pub fn compute(model: &LoadedModel, prompt: &[TokenId], block_tokens: usize) -> Self {
        let layout = KvLayout { block_tokens, ..*model.layout() };
        let blocks = (prompt.len() / block_tokens) as u32;
        let mut arena = KvArena::new(layout, blocks as usize);
        let table: Vec<u32> = (0..blocks).collect();
        let chunk =
            SeqChunk { tokens: prompt, before: &[], start_position: 0, block_table: &table, logits: LogitsOf::Nothing };
        drop(model.forward(&[chunk], &mut arena));
        Self { layout, arena, blocks }
    }

    /// The K and V pages of a layer, of all blocks.
    fn of_layer(&self, layer: usize) -> Vec<(PageKind, &[u8])> {
        let kinds = [Side::K, Side::V].map(|side| engine_page(&self.layout, layer, side));
        let of_block = |block| {
            let pages = self.arena.pages(block);
            kinds
                .iter()
                .enumerate()
                .map(move |(side, kind)| (*kind, &pages[2 * layer + side][..kind.bytes()]))
                .collect()
        };
        (0..self.blocks).flat_map(|block| -> Vec<_> { of_block(block) }).collect()
    }

    /// Time of encoding and decoding over the time of copying there and back. Each pass covers all
    /// pages and times copies as well, so load from other processes affects only some passes.
    pub fn cost(&self, layer: usize, codec: &Arc<dyn PageCodec>, clock: Clock) -> f64 {
        let pages = self.of_layer(layer);
        let mut codecs = Codecs::default();
        codecs.add(Arc::clone(codec));
        let mut frames = vec![Vec::new(); pages.len()];
        let mut back: Vec<Vec<u8>> = pages.iter().map(|(kind, _)| vec![0; kind.bytes()]).collect();
        let (mut coded, mut copied) = (Vec::new(), Vec::new());
        // The first pass touches fresh memory and does not count.
        for pass in 0..=PASSES {
            let started = clock.now_ns();
            for ((kind, bytes), frame) in pages.iter().zip(&mut frames) {
                frame.clear();
                encode(&**codec, &Page::new(*kind, black_box(bytes)), frame);
            }
            for ((kind, _), (frame, back)) in pages.iter().zip(frames.iter().zip(&mut back)) {
                let decoded = codecs.decode(black_box(frame), &mut PageMut::new(*kind, back));
                debug_assert!(decoded.is_ok(), "{decoded:?}");
            }
            let between = clock.now_ns();
            for ((_, bytes), back) in pages.iter().zip(&mut back) {
                back.copy_from_slice(black_box(bytes));
            }
            // A copy there and back takes twice this time.
            let once = clock.ns_since(between);
            if pass > 0 {
                coded.push((between - started) as f64);
                copied.push(2.0 * once as f64);
            }
        }
        median(coded) / median(copied).max(f64::MIN_POSITIVE)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
