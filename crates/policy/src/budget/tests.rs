use super::*;
use cenote_base::prng::Prng;
use proptest::prelude::*;

/// Hits of a real LRU cache.
fn lru_hits(keys: &[u64], entries: usize) -> usize {
    let mut stack: Vec<u64> = Vec::new();
    let mut hits = 0;
    for &key in keys {
        let depth = stack.iter().position(|&other| other == key);
        hits += usize::from(depth.is_some_and(|depth| depth < entries));
        if let Some(depth) = depth {
            stack.remove(depth);
        }
        stack.insert(0, key);
    }
    hits
}

/// Keys with a skew: the product of uniform numbers is often small.
fn skewed(count: usize, keys: u64, seed: u64) -> Vec<u64> {
    let mut prng = Prng::new(seed);
    (0..count).map(|_| (keys as f64 * prng.next_f64().powi(3)) as u64).collect()
}

#[test]
fn a_curve_of_few_entries_equals_a_real_cache_at_every_size() {
    let keys = skewed(5000, 400, 1);
    let mut curve = HitCurve::new(100, 256 * 100);
    keys.iter().for_each(|&key| curve.record(key, 7));
    for entries in [0, 1, 2, 10, 100, 255, 256] {
        let expected = lru_hits(&keys, entries) as f64;
        assert_eq!(curve.hits(entries as u64 * 100), expected, "{entries} entries");
        assert_eq!(curve.saved_ns(entries as u64 * 100), 7.0 * expected);
    }
    assert_eq!(curve.hits(u64::MAX), curve.hits(25_600), "it knows no larger size");
}

#[test]
fn a_sampled_curve_is_near_a_real_cache() {
    let keys = skewed(100_000, 40_000, 2);
    let entries = 16 * SAMPLES_MAX as u64 / 2;
    let mut curve = HitCurve::new(64, entries * 64);
    keys.iter().for_each(|&key| curve.record(key, 1));
    for cached in [entries / 16, entries / 4, entries / 2] {
        let real = lru_hits(&keys, cached as usize) as f64 / keys.len() as f64;
        let found = curve.hits(cached * 64) / keys.len() as f64;
        assert!((real - found).abs() < 0.03, "{cached} entries: {found:.3}, really {real:.3}");
    }
    assert!(curve.hits(entries * 64) <= curve.accesses() * 1.03);
}

#[test]
fn a_curve_without_room_counts_no_hits() {
    let mut curve = HitCurve::new(100, 99);
    for _ in 0..10 {
        curve.record(1, 1);
    }
    assert_eq!((curve.hits(99), curve.accesses()), (0.0, 10.0));
}

#[test]
fn old_accesses_fade_and_their_keys_stay() {
    let mut curve = HitCurve::new(1, 256);
    (0..2).for_each(|_| curve.record(5, 10));
    curve.age(0.5);
    assert_eq!((curve.hits(256), curve.saved_ns(256)), (0.5, 5.0));
    curve.record(5, 10);
    assert_eq!(curve.hits(256), 1.5, "the key was still known");
}

/// All splits of `total` units between the caches, by trying each.
fn tried(gains: &[Vec<f64>], total: usize) -> f64 {
    match gains {
        [] => {
            if total == 0 {
                0.0
            } else {
                f64::NEG_INFINITY
            }
        }
        [first, rest @ ..] => {
            (0..=total).map(|own| first[own] + tried(rest, total - own)).fold(f64::NEG_INFINITY, f64::max)
        }
    }
}

/// A gain that never falls, with jumps and flat parts.
fn gain() -> impl Strategy<Value = Vec<f64>> {
    let step = prop_oneof![3 => Just(0_u32), 2 => 0..10_u32, 1 => 0..200_u32];
    proptest::collection::vec(step, UNITS).prop_map(|steps| {
        let mut sum = 0;
        std::iter::once(0)
            .chain(steps.into_iter().map(|step| {
                sum += step;
                sum
            }))
            .map(f64::from)
            .collect()
    })
}

fn sum_of<const N: usize>(gains: &[Vec<f64>; N], units: &[usize; N]) -> f64 {
    gains.iter().zip(units).map(|(gains, &units)| gains[units]).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_best_split_is_that_of_trying_all(one in gain(), two in gain(), three in gain(), at in 0..=UNITS) {
        let pair = [one.clone(), two.clone()];
        let best = best_split(&pair, [at, UNITS - at]);
        prop_assert_eq!(best.iter().sum::<usize>(), UNITS);
        prop_assert_eq!(sum_of(&pair, &best), tried(&pair, UNITS));
        let all = [one, two, three];
        let best = best_split(&all, [0, at, UNITS - at]);
        prop_assert_eq!(best.iter().sum::<usize>(), UNITS);
        prop_assert_eq!(sum_of(&all, &best), tried(&all, UNITS));
    }

    #[test]
    fn on_concave_curves_the_next_unit_goes_to_the_cache_that_gains_more(
        mut one in proptest::collection::vec(0..1000_u32, UNITS),
        mut two in proptest::collection::vec(0..1000_u32, UNITS),
    ) {
        one.sort_by_key(|step| std::cmp::Reverse(*step));
        two.sort_by_key(|step| std::cmp::Reverse(*step));
        let (mut at, mut greedy) = ([0, 0], 0.0);
        for _ in 0..UNITS {
            let steps = [one.get(at[0]), two.get(at[1])].map(|step| step.map_or(-1.0, |&step| f64::from(step)));
            let winner = usize::from(steps[1] > steps[0]);
            greedy += steps[winner];
            at[winner] += 1;
        }
        let sums = |steps: &[u32]| -> Vec<f64> { (0..=UNITS).map(|n| f64::from(steps[..n].iter().sum::<u32>())).collect() };
        let gains = [sums(&one), sums(&two)];
        prop_assert_eq!(sum_of(&gains, &best_split(&gains, [UNITS, 0])), greedy);
    }

    #[test]
    fn a_split_reaches_the_best_in_bounded_steps_and_rests(one in gain(), two in gain(), at in 0..=UNITS) {
        let gains = [one, two];
        let mut units = [at, UNITS - at];
        for _ in 0..=UNITS / STEP_MAX {
            let next = next_split(&gains, units);
            prop_assert!(next[0].abs_diff(units[0]) <= STEP_MAX);
            prop_assert_eq!(next.iter().sum::<usize>(), UNITS);
            units = next;
        }
        prop_assert_eq!(next_split(&gains, units), units, "it rests");
        let best = tried(&gains, UNITS);
        prop_assert!(sum_of(&gains, &units) * (1.0 + 1.0 / f64::from(MARGIN)) >= best);
    }
}

#[test]
fn equal_gains_move_nothing() {
    let flat = [vec![1.0; UNITS + 1], vec![1.0; UNITS + 1]];
    for at in 0..=UNITS {
        assert_eq!(next_split(&flat, [at, UNITS - at]), [at, UNITS - at]);
    }
    let none = [vec![0.0; UNITS + 1], vec![0.0; UNITS + 1]];
    assert_eq!(next_split(&none, [5, UNITS - 5]), [5, UNITS - 5]);
}

/// Two caches of entries of 100 bytes; `hot` entries of one are read in turn.
fn loops(arbiter: &mut Arbiter<2>, hot: [u64; 2], rounds: usize) {
    for _ in 0..rounds {
        for (at, &count) in hot.iter().enumerate() {
            (0..count).for_each(|key| arbiter.record(at, key, 50));
        }
        arbiter.serve(10);
    }
}

#[test]
fn bytes_follow_the_load_and_stay_within_the_budget() {
    let share = Share { entry_bytes: 100, units: UNITS / 2 };
    let mut arbiter = Arbiter::new(6400, 10, [share; 2]);
    assert_eq!(arbiter.split(), [3200, 3200]);
    loops(&mut arbiter, [60, 2], 30);
    let [kv, rows] = arbiter.split();
    assert!(kv >= 6000 && rows >= 200 && kv + rows <= 6400, "{kv} and {rows}: a loop fits whole or is worthless");
    loops(&mut arbiter, [2, 60], 30);
    let [kv, rows] = arbiter.split();
    assert!(rows >= 6000 && kv >= 200, "{kv} and {rows}");
    let moves = arbiter.moves();
    loops(&mut arbiter, [2, 60], 100);
    assert_eq!(arbiter.moves(), moves, "an unchanged load moves nothing");
}

#[test]
fn noise_between_equal_loads_does_not_move_bytes_back_and_forth() {
    let share = Share { entry_bytes: 100, units: UNITS / 2 };
    let mut arbiter = Arbiter::new(6400, 1000, [share; 2]);
    let (one, two) = (skewed(400_000, 200, 8), skewed(400_000, 200, 9));
    for (one, two) in one.iter().zip(&two) {
        arbiter.record(0, *one, 50);
        arbiter.record(1, *two, 50);
        arbiter.serve(1);
    }
    let [first, _] = arbiter.split();
    assert!((1600..=4800).contains(&first), "equal loads have about equal shares: {first}");
    assert!(arbiter.moves() <= 20, "{} moves in 400 periods", arbiter.moves());
}

#[test]
fn an_idle_budget_keeps_its_split() {
    let mut arbiter =
        Arbiter::new(1 << 20, 10, [Share { entry_bytes: 4096, units: 3 }, Share { entry_bytes: 64, units: UNITS - 3 }]);
    let split = arbiter.split();
    assert!((0..100).all(|_| arbiter.serve(10).is_none()));
    assert_eq!(arbiter.split(), split);
}
