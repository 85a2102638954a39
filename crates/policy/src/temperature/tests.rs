use super::*;
use proptest::prelude::*;

#[test]
fn heat_counts_the_tokens_of_the_window_that_read() {
    let mut heat = Heat::new(10);
    [11, 11, 14].into_iter().for_each(|token| heat.read(token));
    assert_eq!((heat.reads(14, 5), heat.reads(14, 4), heat.reads(14, 1)), (3, 2, 1));
    assert_eq!((heat.reads(20, 8), heat.reads(90, 64), heat.reads(u64::MAX, 64)), (1, 0, 0));
    heat.read(3);
    assert_eq!(heat.reads(14, 64), 3, "the past does not change");
}

#[test]
fn pressure_cools_and_misses_warm() {
    let config = ThresholdConfig::default();
    let after = |pressure, misses| {
        let mut thresholds = Thresholds::new(config);
        (0..20).for_each(|_| thresholds.observe(pressure, misses));
        (thresholds.cold(), thresholds.hot())
    };
    let rest = after(config.pressure_target, config.miss_target);
    let (pressed, missed) = (after(1.0, config.miss_target), after(config.pressure_target, 0.5));
    assert_eq!(rest, (2, 8));
    assert!(
        pressed.1 > rest.1 && pressed.0 >= rest.0 && missed.1 < rest.1 && missed.0 <= rest.0,
        "{pressed:?} {missed:?}"
    );
    let thresholds = Thresholds::new(config);
    let mut heat = Heat::new(0);
    assert_eq!(thresholds.temperature(&heat, 40), Temperature::Cold);
    (33..37).for_each(|token| heat.read(token));
    assert_eq!(thresholds.temperature(&heat, 40), Temperature::Warm);
    (33..41).for_each(|token| heat.read(token));
    (37..45).for_each(|token| heat.read(token));
    assert_eq!(thresholds.temperature(&heat, 45), Temperature::Hot);
}

const COSTS: LadderCosts =
    LadderCosts { encode_ns: 20_000, decode_ns: 10_000, l4_write_ns: Some(50_000), l4_read_ns: 80_000 };
const PAGE: PageFacts =
    PageFacts { bytes: 65_536, reuse: 0.5, compressed_bytes: Some(20_000), is_in_l4: false, recompute_ns: 2_000_000 };

#[test]
fn the_ladder_descends_with_the_probability_of_reuse() {
    let at = |reuse: f64, page: PageFacts| cheapest_rung(&PageFacts { reuse, ..page }, &COSTS);
    let compressed = PageFacts { compressed_bytes: None, ..PAGE };
    assert_eq!((at(0.5, PAGE), at(0.5, compressed), at(0.0, PAGE)), (Rung::Compress, Rung::Demote, Rung::Evict));
    assert_eq!(at(0.05, PageFacts { is_in_l4: true, ..PAGE }), Rung::Demote, "L4 has it already");
    let without = LadderCosts { l4_write_ns: None, ..COSTS };
    assert_eq!(cheapest_rung(&compressed, &without), Rung::Evict);
}

proptest! {
    #[test]
    fn thresholds_keep_their_order(observed in prop::collection::vec((any::<f64>(), any::<f64>()), 0..200), window in 0_u32..100) {
        let mut thresholds = Thresholds::new(ThresholdConfig { window, gain: 1.0, ..ThresholdConfig::default() });
        for (pressure, misses) in observed {
            thresholds.observe(pressure, misses);
            prop_assert!(thresholds.cold() < thresholds.hot() && thresholds.hot() <= thresholds.window());
        }
    }

    #[test]
    fn no_rung_is_cheaper_than_the_chosen_one(
        bytes in 1_u64..1 << 20, reuse in 0_f64..1.0, compressed in prop::option::of(0_u64..1 << 20), is_in_l4 in any::<bool>(),
        recompute_ns in 0_u64..1 << 30, write in prop::option::of(0_u64..1 << 24), read in 0_u64..1 << 24,
    ) {
        let page = PageFacts { bytes, reuse, compressed_bytes: compressed, is_in_l4, recompute_ns };
        let costs = LadderCosts { l4_write_ns: write, l4_read_ns: read, ..COSTS };
        let price = |rung: Rung| rung.expected_ns(&page, &costs) / rung.freed_bytes(&page, &costs) as f64;
        let chosen = cheapest_rung(&page, &costs);
        prop_assert!(chosen.freed_bytes(&page, &costs) > 0);
        for rung in [Rung::Compress, Rung::Demote, Rung::Evict] {
            prop_assert!(rung.freed_bytes(&page, &costs) == 0 || price(chosen) <= price(rung));
        }
    }
}

proptest! {
    #[test]
    fn a_hot_set_keeps_what_is_read_and_never_exceeds_its_room(
        reads in prop::collection::vec((0_u32..12, 0_u64..3), 1..200),
        room in 0_usize..6,
    ) {
        let thresholds = Thresholds::new(ThresholdConfig::default());
        let (mut set, mut kept, mut token) = (HotSet::default(), std::collections::BTreeSet::new(), 0);
        for (page, pause) in reads {
            token += pause;
            let had_room = kept.len() < room;
            let replaced = match set.read(page, token, room, &thresholds) {
                HotRead::Kept => {
                    prop_assert!(kept.contains(&page));
                    continue;
                }
                HotRead::Passed => {
                    prop_assert!(!had_room, "a free place is used");
                    prop_assert!(!set.contains(page));
                    continue;
                }
                HotRead::Admitted(replaced) => replaced,
            };
            prop_assert_eq!(replaced.is_none(), had_room);
            if let Some(replaced) = replaced {
                prop_assert!(kept.remove(&replaced), "only a kept page is replaced");
            }
            prop_assert!(kept.insert(page));
            prop_assert!(kept.len() <= room && kept.len() == set.len());
            prop_assert!(kept.iter().all(|page| set.contains(*page)));
        }
        set.truncate(6);
        prop_assert_eq!(set.len(), kept.range(..6).count());
    }
}

#[test]
fn a_page_that_is_read_often_replaces_one_that_is_not() {
    let thresholds = Thresholds::new(ThresholdConfig::default());
    let mut set = HotSet::default();
    assert_eq!(set.read(1, 1, 1, &thresholds), HotRead::Admitted(None));
    let replaced = (2..20).map(|token| set.read(2, token, 1, &thresholds)).find(|read| *read != HotRead::Passed);
    assert_eq!(replaced, Some(HotRead::Admitted(Some(1))));
    assert_eq!(set.read(1, 20, 1, &thresholds), HotRead::Passed);
}

const BLOCK: ColdBlock = ColdBlock { bytes: 1 << 20, tokens: 16, is_in_l4: false };
const SECOND: u64 = 1_000_000_000;

/// Reading takes 1 ms, writing 2 ms, computing `compute_ms`.
fn measured(compute_ms: u64) -> MeasuredLadder {
    let mut ladder = MeasuredLadder::default();
    ladder.has_read(0, BLOCK.bytes, 1_000_000);
    ladder.has_written(0, BLOCK.bytes, 2_000_000);
    ladder.has_computed(BLOCK.tokens, compute_ms * 1_000_000);
    ladder
}

#[test]
fn a_busy_disk_keeps_what_is_dear_to_compute() {
    let of = |compute_ms, waiting| measured(compute_ms).rung_of(&BLOCK, None, waiting, 100);
    assert_eq!((of(10, 0), of(10, 99), of(10, 100)), (Rung::Demote, Rung::Demote, Rung::Evict));
    // Half of the blocks are read again: 2 ms of writing for 1 ms less of computing.
    assert_eq!((of(3, 0), of(3, 40), of(3, 60)), (Rung::Demote, Rung::Demote, Rung::Evict));
    let mut unused = measured(10);
    unused.has_written(1000, 0, 0);
    assert_eq!(
        (unused.rung_of(&BLOCK, None, 0, 100), unused.rung_of(&BLOCK, None, 50, 100)),
        (Rung::Demote, Rung::Evict)
    );
    let kept = ColdBlock { is_in_l4: true, ..BLOCK };
    assert_eq!(measured(10).rung_of(&kept, None, 100, 100), Rung::Demote, "it costs nothing to keep");
}

#[test]
fn a_block_is_encoded_where_that_is_cheapest() {
    let encoding = Encoding { bytes: BLOCK.bytes / 4, encode_ns: 0, decode_ns: 100_000 };
    let of = |encoding, waiting| measured(10).rung_of(&BLOCK, Some(encoding), waiting, 100);
    assert_eq!(of(encoding, 0), Rung::Compress, "decoding takes less time than reading");
    let slow = Encoding { decode_ns: 5_000_000, ..encoding };
    assert_eq!((of(slow, 0), of(slow, 100)), (Rung::Demote, Rung::Compress));
    let busy = Encoding { encode_ns: 50_000_000, ..encoding };
    assert_eq!((of(busy, 0), of(busy, 100)), (Rung::Demote, Rung::Evict));
}

#[test]
fn blocks_return_if_that_is_faster_and_in_time() {
    let of = |compute_ms, listed, waiting, deadline_ms: u64| {
        measured(compute_ms).worth_promoting(&BLOCK, listed, waiting, deadline_ms * 1_000_000)
    };
    assert_eq!((of(10, 50, 0, 1000), of(10, 50, 0, 30), of(10, 50, 20, 30)), (50, 30, 10));
    assert_eq!(of(0, 50, 0, 1000), 0, "computing is faster");
    assert_eq!(MeasuredLadder::default().worth_promoting(&BLOCK, 50, 0, 1), 50, "nothing is known yet");
}

#[test]
fn one_slow_read_does_not_end_promotion() {
    let mut ladder = measured(2);
    ladder.has_read(1, BLOCK.bytes, SECOND);
    assert_eq!(ladder.worth_promoting(&BLOCK, 50, 0, SECOND), 0);
    assert!((0..100).any(|_| ladder.worth_promoting(&BLOCK, 50, 0, SECOND) > 0));
}

#[test]
fn the_oldest_parts_leave_and_open_ones_stay() {
    let part = |key, bytes, is_open| StoredPart { key, bytes, is_open };
    let of = |most| leaving_parts(vec![part(3, 40, false), part(1, 40, true), part(2, 40, false)], most);
    assert_eq!((of(120), of(119), of(79)), (Some(vec![]), Some(vec![2]), Some(vec![2, 3])));
    assert_eq!((of(40), of(39)), (Some(vec![2, 3]), None));
}

proptest! {
    #[test]
    fn the_measured_ladder_keeps_blocks_on_an_idle_disk(
        bytes in 1_u64..1 << 30, tokens in 0_u64..4096, times in prop::array::uniform3(1_u64..1 << 40), kept in 0_u64..1 << 40,
    ) {
        let [read, write, compute] = times;
        let mut ladder = MeasuredLadder::default();
        ladder.has_read(0, bytes, read);
        ladder.has_written(kept, bytes, write);
        ladder.has_computed(tokens, compute);
        let block = ColdBlock { bytes, tokens, is_in_l4: false };
        let is_faster = tokens == 0 || read <= compute;
        // However few blocks were read again, an idle disk goes on, so that some can be.
        prop_assert_eq!(ladder.rung_of(&block, None, 0, 9) == Rung::Demote, is_faster);
        prop_assert_eq!(ladder.rung_of(&block, None, 9, 9), Rung::Evict);
    }

    #[test]
    fn promotion_keeps_its_bounds(
        listed in 0_u64..100_000, waiting in 0_u64..100_000, read in 0_u64..1 << 40, deadline in 0_u64..1 << 40,
    ) {
        let mut ladder = MeasuredLadder::default();
        ladder.has_read(1, BLOCK.bytes, read);
        let worth = ladder.clone().worth_promoting(&BLOCK, listed, waiting, deadline);
        prop_assert!(worth <= listed);
        prop_assert!(u128::from(worth) * u128::from(read.saturating_sub(1)) <= u128::from(deadline) || read < 2);
        let later = ladder.worth_promoting(&BLOCK, listed, waiting, deadline.saturating_mul(2));
        prop_assert!(later >= worth);
    }

    #[test]
    fn leaving_parts_are_the_fewest_oldest(
        parts in prop::collection::btree_map(any::<u16>(), (0_u64..1000, any::<bool>()), 0..30), most in 0_u64..20_000,
    ) {
        let all: Vec<StoredPart<u16>> =
            parts.iter().map(|(&key, &(bytes, is_open))| StoredPart { key, bytes, is_open }).collect();
        let total: u64 = all.iter().map(|part| part.bytes).sum();
        let open: u64 = all.iter().filter(|part| part.is_open).map(|part| part.bytes).sum();
        let Some(leaving) = leaving_parts(all.clone(), most) else {
            prop_assert!(open > most);
            return Ok(());
        };
        let bytes_of = |keys: &[u16]| keys.iter().map(|key| parts[key].0).sum::<u64>();
        prop_assert!(leaving.iter().all(|key| !parts[key].1) && total - bytes_of(&leaving) <= most);
        if let Some((_, fewer)) = leaving.split_last() {
            prop_assert!(total - bytes_of(fewer) > most);
        }
        let oldest: Vec<u16> = all.iter().filter(|part| !part.is_open).map(|part| part.key).take(leaving.len()).collect();
        prop_assert_eq!(leaving, oldest);
    }
}
