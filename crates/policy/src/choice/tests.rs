//! What holds for every predictor, and what each is for.

use super::*;
use cenote_base::prng::Prng;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SHAPE: ChoiceShape = ChoiceShape { layers: 3, groups: 2 };

fn choosers() -> impl Iterator<Item = Chooser> {
    (0..SHAPE.layers).flat_map(|layer| (0..SHAPE.groups).map(move |group| Chooser { layer, group }))
}

fn kind() -> impl Strategy<Value = ChoiceKind> {
    prop::sample::select(ChoiceKind::ALL.to_vec())
}

/// Predictors that follow a rule; the network was only trained.
fn rule() -> impl Strategy<Value = ChoiceKind> {
    kind().prop_filter("a rule", |kind| *kind != ChoiceKind::Lstm)
}

/// Scores of any kind, also infinite ones and ones that are no numbers.
fn scores() -> impl Strategy<Value = Vec<f32>> {
    let score =
        prop_oneof![8 => -20_f32..20.0, 1 => Just(f32::NAN), 1 => Just(f32::INFINITY), 1 => Just(f32::NEG_INFINITY)];
    prop::collection::vec(score, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn predictions_are_distinct_pages_within_their_count_and_repeat(
        kind in kind(),
        steps in prop::collection::vec(scores(), 0..6),
        count in 0_usize..12,
    ) {
        let (mut one, mut other) = (kind.build(SHAPE), kind.build(SHAPE));
        let mut num_pages = 0;
        for step in &steps {
            // Contexts grow: later steps have at least as many pages.
            let mut scores = step.clone();
            num_pages = num_pages.max(scores.len());
            scores.resize(num_pages, 0.0);
            let chosen = top_pages(&scores, count);
            for of in choosers() {
                let predicted = one.predict(of, num_pages as u32, count);
                prop_assert_eq!(&predicted, &other.predict(of, num_pages as u32, count));
                let distinct: BTreeSet<_> = predicted.iter().collect();
                prop_assert!(distinct.len() == predicted.len() && predicted.len() <= count);
                prop_assert!(predicted.iter().all(|page| (*page as usize) < num_pages));
                one.observe(of, &scores, &chosen);
                other.observe(of, &scores, &chosen);
            }
        }
    }

    #[test]
    fn a_constant_choice_is_predicted_from_the_second_step_on(kind in rule(), seed in any::<u64>(), count in 1_usize..8) {
        let mut prng = Prng::new(seed);
        let scores: Vec<f32> = (0..24).map(|_| prng.next_f64() as f32 * 8.0).collect();
        let chosen = top_pages(&scores, count);
        let mut choice = PageChoice::new(kind, SHAPE);
        for step in 0..4 {
            for of in choosers() {
                let predicted = choice.predict(of, 24, count);
                prop_assert!(step == 0 || predicted.iter().collect::<BTreeSet<_>>() == chosen.iter().collect());
                choice.observe(of, &scores, &chosen);
            }
        }
        let total = choice.total();
        prop_assert!(total.hits <= total.predicted.min(total.chosen));
        prop_assert_eq!(total.hits + total.wasted(), total.predicted);
        prop_assert_eq!(total.chosen, 4 * choosers().count() as u64 * count as u64);
    }

    #[test]
    fn the_top_pages_are_those_of_a_full_sort(scores in scores(), count in 0_usize..40) {
        let mut sorted: Vec<PageNumber> = (0..scores.len() as u32).collect();
        sorted.sort_by(|a, b| rankable(scores[*b as usize]).total_cmp(&rankable(scores[*a as usize])));
        sorted.truncate(count);
        prop_assert_eq!(top_pages(&scores, count), sorted);
    }
}

#[test]
fn names_round_trip() {
    for kind in ChoiceKind::ALL.into_iter().chain([ChoiceKind::Neighbor { distance: 4 }]) {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    for name in ["", "neighbor", "neighbor:0", "oracle"] {
        assert!(name.parse::<ChoiceKind>().is_err(), "{name}");
    }
}

/// Hit rate in 200 steps of one chooser, of which `scores` draws the scores.
fn hit_rate(kind: ChoiceKind, mut scores: impl FnMut(u64, Chooser) -> Vec<f32>) -> f64 {
    let mut choice = PageChoice::new(kind, SHAPE);
    for step in 0..200 {
        for of in choosers() {
            let scores = scores(step, of);
            choice.predict(of, scores.len() as u32, 4);
            choice.observe(of, &scores, &top_pages(&scores, 4));
        }
    }
    choice.total().hit_rate()
}

#[test]
fn averaging_sees_through_noise_that_the_last_choice_follows() {
    let mut prng = Prng::new(3);
    let noisy = |_: u64, _: Chooser| -> Vec<f32> {
        (0..32).map(|page| if page < 4 { 2.0 } else { 0.0 } + 3.0 * prng.next_f64() as f32).collect()
    };
    let mut draws = noisy;
    let averaged = hit_rate(ChoiceKind::Averaged, &mut draws);
    let last = hit_rate(ChoiceKind::Last, &mut draws);
    let lstm = hit_rate(ChoiceKind::Lstm, &mut draws);
    assert!(averaged > last + 0.05 && lstm > last + 0.05, "averaged {averaged}, lstm {lstm}, last {last}");
}

#[test]
fn a_neighbor_knows_a_jump_that_no_past_step_tells() {
    // Each step chooses four new pages, in all layers alike.
    let jumps = |step: u64, _: Chooser| -> Vec<f32> {
        let mut prng = Prng::new(step);
        (0..64).map(|_| prng.next_f64() as f32).collect()
    };
    let neighbor = hit_rate(ChoiceKind::Neighbor { distance: 1 }, jumps);
    let last = hit_rate(ChoiceKind::Last, jumps);
    assert!(neighbor > 0.6 && last < 0.15, "neighbor {neighbor}, last {last}");
}
