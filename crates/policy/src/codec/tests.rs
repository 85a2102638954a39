use super::*;
use proptest::prelude::*;

fn measured(ratio: f64, harm: f64, cost: f64) -> Measured {
    Measured::new(ratio, harm, cost).expect("numbers")
}

/// Some are drawn from few values, so that ties are common.
fn any_measured() -> impl Strategy<Value = Measured> {
    let fine = (0.5..9.0, 0.0..2.0, 0.0..500.0);
    let coarse = (1..6_u8, 0..4_u8, 0..3_u8)
        .prop_map(|(ratio, harm, cost)| (f64::from(ratio), f64::from(harm) * 0.5, f64::from(cost) * COPIES));
    prop_oneof![fine, coarse].prop_map(|(ratio, harm, cost)| measured(ratio, harm, cost))
}

fn any_weights() -> impl Strategy<Value = Weights> {
    let one = prop_oneof![Just(0.0), 0.0..1.0, Just(1e6)];
    (one.clone(), one.clone(), one).prop_filter_map("all zero", |(r, q, c)| Weights::new(r, q, c))
}

fn any_layers() -> impl Strategy<Value = Vec<Vec<Measured>>> {
    prop::collection::vec(prop::collection::vec(any_measured(), 0..8), 1..6)
}

fn of(layers: &[Vec<Measured>], chosen: &[Option<usize>]) -> Vec<Measured> {
    let pick = |(layer, at): (&Vec<Measured>, &Option<usize>)| at.map_or(Measured::RAW, |at| layer[at]);
    layers.iter().zip(chosen).map(pick).collect()
}

proptest! {
    #[test]
    fn the_floor_is_never_crossed(layers in any_layers(), weights in any_weights(), harm_max in 0.0..4.0, pressure in 0.0..1.0) {
        let chosen = of(&layers, &choose_layers(weights.under(pressure), harm_max, &layers));
        let share = harm_max / layers.len() as f64;
        prop_assert!(chosen.iter().all(|one| one.harm() <= share), "{chosen:?}");
        prop_assert!(chosen.iter().map(Measured::harm).sum::<f64>() <= harm_max * (1.0 + 1e-12));
    }

    #[test]
    fn more_pressure_never_makes_anything_larger(
        layers in any_layers(), weights in any_weights(), harm_max in 0.0..4.0, less in 0.0..=1.0, more in 0.0..=1.0
    ) {
        let (less, more) = if less < more { (less, more) } else { (more, less) };
        let at = |pressure| of(&layers, &choose_layers(weights.under(pressure), harm_max, &layers));
        let bits = |chosen: &[Measured]| chosen.iter().map(|one| 16.0 / one.ratio()).sum::<f64>();
        let (less, more) = (at(less), at(more));
        prop_assert!(bits(&more) <= bits(&less), "{less:?} {more:?}");
        prop_assert!(less.iter().zip(&more).all(|(less, more)| less.ratio() <= more.ratio()));
    }

    #[test]
    fn the_best_is_taken_wherever_it_stands(
        layer in prop::collection::vec(any_measured(), 0..8), weights in any_weights(), harm_max in 0.0..2.0, turn in 0_usize..8
    ) {
        let pick = |layer: &[Measured]| choose(weights, harm_max, layer).map_or(Measured::RAW, |at| layer[at]);
        let chosen = pick(&layer);
        let score = |one: &Measured| one.quality(harm_max).map(|quality| weights.score(one, quality));
        let best = score(&chosen).expect("it is not below the floor");
        prop_assert!(layer.iter().chain([&Measured::RAW]).filter_map(score).all(|score| score <= best));
        // Equal inputs give equal answers, and in another order the same kind of candidate.
        prop_assert_eq!(choose(weights, harm_max, &layer), choose(weights, harm_max, &layer));
        let mut turned = layer.clone();
        turned.rotate_left(turn % layer.len().max(1));
        let other = pick(&turned);
        prop_assert_eq!((chosen.harm(), chosen.cost()), (other.harm(), other.cost()));
        prop_assert_eq!(score(&chosen), score(&other));
    }

    #[test]
    fn weights_stay_weights_whatever_is_observed(
        from in any_weights(), seed: u64, seen in prop::collection::vec((any::<f64>(), any::<f64>()), 0..100)
    ) {
        let mut learner = WeightLearner::new(from, Reward { quality_target: 0.5, quality_weight: 2.0 }, seed);
        for (throughput, quality) in seen {
            let before = learner.learned().as_array();
            learner.observe(throughput, quality);
            for weights in [learner.learned(), learner.trial()] {
                prop_assert!(weights.as_array().iter().all(|weight| *weight > 0.0));
                prop_assert!((weights.as_array().iter().sum::<f64>() - 1.0).abs() < 1e-9);
            }
            // No logarithm moves by more than a quarter; what makes them sum to 1 again, by as
            // much.
            let after = learner.learned().as_array();
            prop_assert!(before.iter().zip(after).all(|(before, after)| (after / before).ln().abs() < 0.51));
        }
    }
}

#[test]
fn the_first_of_equals_is_taken_and_none_before_all() {
    let (one, cheap, mild) = (measured(4.0, 0.1, 10.0), measured(4.0, 0.1, 5.0), measured(4.0, 0.05, 20.0));
    let ratio_only = Weights::default().under(1.0);
    assert_eq!(choose(ratio_only, 1.0, &[one, one]), Some(0));
    assert_eq!(choose(ratio_only, 1.0, &[one, cheap]), Some(1));
    assert_eq!(choose(ratio_only, 1.0, &[one, cheap, mild]), Some(2));
    assert_eq!(choose(ratio_only, 1.0, &[measured(1.0, 0.0, 0.0)]), None);
    assert_eq!(choose(Weights::default(), 1.0, &[]), None);
    assert!(choose_layers(Weights::default(), 1.0, &[]).is_empty());
}

#[test]
fn dense_slow_codecs_are_chosen_under_pressure() {
    let (fast, dense) = (measured(3.9, 1e-4, 20.0), measured(4.4, 1e-4, 200.0));
    let at = |pressure| choose(Weights::default().under(pressure), 1e-3, &[fast, dense]);
    assert_eq!((at(0.0), at(1.0)), (Some(0), Some(1)));
    assert_eq!((at(-1.0), at(f64::NAN), at(7.0)), (Some(0), Some(0), Some(1)));
    for harm_max in [0.0, 5e-5, f64::NAN, -1.0] {
        assert_eq!(choose(Weights::default().under(1.0), harm_max, &[fast, dense]), None, "{harm_max}");
    }
}

#[test]
fn invalid_measurements_are_refused() {
    let no_numbers = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0];
    for wrong in no_numbers {
        assert_eq!(Measured::new(wrong, 0.0, 1.0), None);
        assert_eq!(Measured::new(2.0, wrong, 1.0), None);
        assert_eq!(Measured::new(2.0, 0.0, wrong), None);
        assert_eq!(Weights::new(wrong, 1.0, 1.0), None);
    }
    assert_eq!((Measured::new(0.0, 0.0, 0.0), Weights::new(0.0, 0.0, 0.0)), (None, None));
}

/// A system that is fastest with one mixture of weights: they get there, from far away, and stay.
#[test]
fn weights_go_where_the_reward_is() {
    for seed in 0..20 {
        let reward = Reward { quality_target: 0.8, quality_weight: 0.5 };
        let mut learner = WeightLearner::new(Weights::new(0.1, 0.1, 0.8).expect("weights"), reward, seed);
        let best = [0.6, 0.3, 0.1];
        for _ in 0..4000 {
            let weights = learner.trial().as_array();
            let off: f64 = weights.iter().zip(best).map(|(weight, best): (&f64, f64)| (weight - best).powi(2)).sum();
            learner.observe(1.0 - 4.0 * off, 0.8 - off);
        }
        let learned = learner.learned().as_array();
        assert!(learned.iter().zip(best).all(|(weight, best)| (weight - best).abs() < 0.05), "{seed}: {learned:?}");
    }
}
