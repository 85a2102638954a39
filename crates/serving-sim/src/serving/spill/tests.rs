use super::*;
use crate::model::{Link, SPECKV_L3};
use crate::tiers::dense::{self, Arrival, DenseSetup};
use crate::tiers::dense::{FetchOrder, Placement};
use proptest::prelude::*;

/// A block has a page of 8 KiB in each of 8 layers.
const LAYERS: u32 = 8;
const BLOCK_BYTES: u64 = 8_192 * LAYERS as u64;

fn streamer(tier: TierLink) -> Streamer {
    Streamer::new(
        Spill { blocks: 1_000, layers: LAYERS, tier, is_ahead: true, near_tokens: None, fills: false },
        BLOCK_BYTES,
    )
}

/// Mean nanoseconds of a step after the first, which reads `blocks` spilled ones.
fn steady(tier: TierLink, blocks: u32, layer_ns: u64) -> u64 {
    let mut streamer = streamer(tier);
    let of = |streamer: &mut Streamer, now| {
        streamer.step(now, &[(RequestId(1), blocks)], 10_000, u64::from(LAYERS) * layer_ns)
    };
    let begin = of(&mut streamer, 0);
    let end = (0..20).fold(begin, |now, _| of(&mut streamer, now));
    (end - begin) / 20
}

#[test]
fn parts_are_all_pages() {
    for pages in 1..50 {
        let parts = parts(pages);
        assert!(parts.iter().map(|part| part.0).sum::<u32>() == pages && parts.len() <= PARTS as usize, "{parts:?}");
    }
}

#[test]
fn a_step_that_reads_other_blocks_loses_what_was_staged() {
    let mut streamer = streamer(SPECKV_L3);
    let mut now = 0;
    for count in [40, 40, 41, 41, 0, 41] {
        now = streamer.step(now, &[(RequestId(1), count)], 0, 8 * 100_000);
    }
    assert!(streamer.staging.counts().wasted > 0, "{:?}", streamer.staging.counts());
    assert_eq!(streamer.counts().streamed, 40 + 40 + 41 + 41 + 41);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The same batch with an event for each page.
    #[test]
    fn quarters_of_a_layer_take_as_long_as_its_pages(
        blocks in 16_u32..400, gigabytes in 1_u64..64, layer_us in 5_u64..200, doorbell_ns in 0_u64..1_000,
    ) {
        let link = Link { bytes_per_s: gigabytes * 1_000_000_000, latency_ns: 400 };
        let tier = TierLink { link, doorbell_ns, channels: 1, ..SPECKV_L3 };
        let setup = DenseSetup {
            layers: LAYERS,
            requests: 1,
            pages: blocks,
            page_bytes: 8_192,
            layer_ns: layer_us * 1_000,
            step_ns: 10_000,
            l1_pages: 0,
            arrival: Arrival::Staged(BUFFERS),
            tier,
            batch: 4,
            placement: Placement::Sequential,
            order: FetchOrder::ByRequest,
            steps: 21,
        };
        let pages = dense::simulate(&setup).step_ns;
        let quarters = steady(tier, blocks, layer_us * 1_000);
        let difference = pages.abs_diff(quarters) as f64 / pages as f64;
        prop_assert!(difference < 0.1, "{quarters} ns, with an event for each page {pages} ns");
    }
}

#[test]
fn without_prefetch_a_step_computes_and_copies_in_turn() {
    let layer_ns = 100_000;
    let spill =
        Spill { blocks: 1_000, layers: LAYERS, tier: SPECKV_L3, is_ahead: false, near_tokens: None, fills: false };
    let mut streamer = Streamer::new(spill, BLOCK_BYTES);
    let mut of = |now| streamer.step(now, &[(RequestId(1), 200)], 10_000, u64::from(LAYERS) * layer_ns);
    let begin = of(0);
    let late = of(begin) - begin;
    let copies = 200 * BLOCK_BYTES * 1_000_000_000 / SPECKV_L3.link.bytes_per_s;
    let least = 10_000 + u64::from(LAYERS) * layer_ns + copies;
    assert!((least..least * 11 / 10).contains(&late), "{late} ns, at least {least} ns");
    assert!(steady(SPECKV_L3, 200, layer_ns) < late);
}
