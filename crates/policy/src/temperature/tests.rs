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
