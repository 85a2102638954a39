use super::*;
use crate::model::SPECKV_L3;

fn setup() -> SparseSetup {
    SparseSetup {
        shape: ChoiceShape { layers: 6, groups: 1 },
        requests: 4,
        chosen: 8,
        page_bytes: 8_192,
        layer_ns: 80_000,
        step_ns: 10_000,
        l1_pages: 6,
        buffer_pages: 256,
        kind: ChoiceKind::Averaged,
        depth: Depth::Fixed(4),
        tier: SPECKV_L3,
        batch: 4,
        thresholds: ThresholdConfig::default(),
        steps: 60,
        warm_steps: 20,
    }
}

fn run(setup: &SparseSetup) -> SparseOutcome {
    let mut scores = DrawnScores::new(ScoreModel::default(), setup.shape, setup.requests, 64, 7);
    simulate(setup, &mut scores)
}

#[test]
fn prediction_turns_waits_into_hits() {
    let (with, without) = (run(&setup()), run(&SparseSetup { depth: Depth::None, ..setup() }));
    assert!(with.hit_rate > without.hit_rate + 0.1 && with.stall_ns < without.stall_ns, "{with:?} {without:?}");
    assert_eq!((without.hit_rate, without.precision, without.mean_depth), (without.l1_rate, 0.0, 0.0));
    assert!(with.coverage >= with.hit_rate && with.hit_rate >= with.l1_rate);
}

#[test]
fn depth_raises_the_hit_rate_and_lowers_the_precision() {
    let at = |depth| run(&SparseSetup { depth: Depth::Fixed(depth), ..setup() });
    let outcomes = [1, 2, 4, 8, 16].map(at);
    assert!(outcomes.windows(2).all(|pair| pair[1].hit_rate >= pair[0].hit_rate - 0.01), "{outcomes:?}");
    assert!(outcomes[4].predictor_precision < outcomes[0].predictor_precision, "{outcomes:?}");
}

#[test]
fn every_predictor_runs_and_equal_seeds_give_equal_results() {
    for kind in ChoiceKind::ALL {
        let setup = SparseSetup { kind, ..setup() };
        let (one, other) = (run(&setup), run(&setup));
        assert_eq!(one, other);
        assert!(one.predictor_hit_rate > 0.2 && one.tokens_per_s > 0.0, "{kind}: {one:?}");
    }
}

#[test]
fn a_learned_depth_stays_among_the_arms() {
    let outcome = run(&SparseSetup { depth: Depth::Learned(ThrottleConfig::default()), ..setup() });
    assert!((1.0..=16.0).contains(&outcome.mean_depth) && outcome.hit_rate > 0.3, "{outcome:?}");
}

#[test]
fn a_learner_changes_the_throttle_while_the_batch_decodes() {
    // A link that the default lets congest.
    let mut scarce = SparseSetup { steps: 120, warm_steps: 60, buffer_pages: 64, ..setup() };
    scarce.tier.link.bytes_per_s /= 16;
    let still = run(&SparseSetup { depth: Depth::Learned(ThrottleConfig::default()), ..scarce });
    let learning = run(&SparseSetup { depth: Depth::Learning(ThrottleConfig::default(), 1), ..scarce });
    assert_ne!(still, learning);
    assert!(learning.tokens_per_s > 0.7 * still.tokens_per_s, "{learning:?} {still:?}");
}
