//! Keys and values of the demo model through every pipeline, bit by bit.

use cenote_codec::{Order, Shape, Side};
use cenote_engine::kv::{KvArena, KvLayout};
use cenote_engine::llama::{LogitsOf, Observed, SeqChunk};
use cenote_engine::{EngineConfig, LoadedModel};
use cenote_rtl::checks::{engine, oaken, qpack, speckv};
use cenote_rtl::kv::TestPage;
use cenote_rtl::model::is_available;
use half::f16;
use std::path::Path;
use std::sync::LazyLock;

/// Tokens of a page.
const TOKENS: usize = 16;
/// Prompt tokens of the demo model that become pages.
const PROMPT: usize = if cfg!(feature = "whole") { 64 } else { 32 };

/// Pages of keys and values of the demo model reading its own demo text: every layer, both sides, and
/// all blocks of sixteen tokens, every second one as bfloats.
///
/// # Panics
/// The demo model of this repository cannot be loaded.
fn of_the_demo_model() -> &'static [TestPage] {
    static PAGES: LazyLock<Vec<TestPage>> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let text = std::fs::read_to_string(folder.join("demo.txt")).expect("the demo text is part of the repository");
        let model = LoadedModel::load(&EngineConfig::new(folder, cenote_base::Clock::stopped()))
            .expect("the demo model is part of the repository");
        let tokens = model.tokenizer().encode(&text).expect("the demo text has tokens");
        let config = model.llama().config();
        let (heads, dim) = (config.num_kv_heads, config.head_dim);
        let mut sides = vec![[Vec::new(), Vec::new()]; config.num_layers];
        let mut observe = |seen: Observed<'_>| {
            for [_, keys, values] in seen.tokens() {
                sides[seen.layer][0].push(keys.to_vec());
                sides[seen.layer][1].push(values.to_vec());
            }
        };
        let layout = KvLayout { block_tokens: TOKENS, ..*model.layout() };
        let table: Vec<u32> = (0..PROMPT.div_ceil(TOKENS) as u32).collect();
        let mut arena = KvArena::new(layout, table.len());
        let (tokens, logits) = (&tokens[..PROMPT], LogitsOf::Nothing);
        let chunk = SeqChunk { tokens, before: &[], start_position: 0, block_table: &table, logits };
        drop(model.forward_observed(&[chunk], &mut arena, &mut observe));
        let shape = Shape { heads: heads as u16, tokens: TOKENS as u16, dim: dim as u16 };
        let mut pages = Vec::new();
        for (layer, rows) in sides.iter().enumerate() {
            for (side, rows) in [Side::K, Side::V].into_iter().zip(rows) {
                for (block, rows) in rows.chunks_exact(TOKENS).enumerate() {
                    let row = |head: usize| move |row: &Vec<f32>| row[head * dim..][..dim].to_vec();
                    let values = (0..heads).flat_map(|head| rows.iter().flat_map(row(head)));
                    let values: Vec<f16> = values.map(f16::from_f32).collect();
                    let name = format!("demo model, layer {layer} {side:?}, block {block}");
                    let page = TestPage::new(&name, side, layer as u16, shape, Order::TokenMajor, &values);
                    pages.push(if block % 2 == 0 { page } else { page.as_bfloats(true) });
                }
            }
        }
        pages
    });
    &PAGES
}

fn is_skipped() -> bool {
    if !is_available() {
        cenote_base::testing::skip("Verilator is not installed, so the RTL is not compared with the codecs");
    }
    !is_available()
}

#[test]
fn speckv_encodes_and_decodes_pages_of_the_demo_model() {
    if !is_skipped() {
        speckv::pages(1, of_the_demo_model()).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn qpack_encodes_and_decodes_pages_of_the_demo_model() {
    if !is_skipped() {
        qpack::pages(1, of_the_demo_model()).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn oaken_encodes_and_decodes_pages_of_the_demo_model() {
    if !is_skipped() {
        oaken::pages(1, of_the_demo_model()).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Every third page, halves and bfloats by turns.
#[test]
fn the_engine_frames_pages_of_the_demo_model() {
    if !is_skipped() {
        let pages: Vec<TestPage> = of_the_demo_model().iter().step_by(3).cloned().collect();
        engine::pages(1, &pages).unwrap_or_else(|failure| panic!("{failure}"));
    }
}
