use super::depth::DEPTHS;
use super::*;
use crate::transfer::Class;
use cenote_base::RequestId;
use cenote_base::prng::Prng;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGE: u64 = 100;

fn offer(key: u32, source: Source) -> Offer<u32> {
    Offer { key, request: RequestId(1), source, bytes: PAGE, generation: 1, needed_at_ns: None }
}

fn planner(buffer_pages: u64, speculative_pages: u64) -> Planner<u32> {
    let config = PlannerConfig::with_buffer(buffer_pages * PAGE);
    Planner::new(PlannerConfig { speculative_bytes_max: speculative_pages * PAGE, ..config })
}

fn fetched(planner: &mut Planner<u32>) -> Vec<u32> {
    let actions = std::iter::from_fn(|| planner.poll_action(0));
    actions.filter_map(|action| if let PrefetchAction::Fetch { key, .. } = action { Some(key) } else { None }).collect()
}

#[test]
fn exact_pages_go_first_and_speculation_keeps_to_its_budget() {
    let mut planner = planner(10, 2);
    for (key, source) in [
        (6, Source::Speculative(2)),
        (5, Source::Speculative(1)),
        (4, Source::Speculative(0)),
        (3, Source::Hint),
        (2, Source::Waiting(0)),
        (1, Source::NextStep(1)),
    ] {
        planner.offer(offer(key, source));
    }
    assert_eq!(fetched(&mut planner), [1, 2, 3, 4, 5]);
    planner.handle(PrefetchEvent::Arrived(4, 1));
    assert_eq!(fetched(&mut planner), [0; 0]);
    planner.handle(PrefetchEvent::Used(4));
    assert_eq!(fetched(&mut planner), [6], "a used page is off the budget");
}

#[test]
fn an_invalid_page_revives_until_its_bytes_are_needed() {
    let mut planner = planner(2, 2);
    [1, 2].into_iter().for_each(|key| {
        planner.offer(offer(key, Source::Speculative(0)));
    });
    fetched(&mut planner);
    [1, 2].into_iter().for_each(|key| planner.handle(PrefetchEvent::Arrived(key, 1)));
    [1, 2].into_iter().for_each(|key| planner.handle(PrefetchEvent::Mispredicted(key)));
    assert!(!planner.is_ready(&1));
    assert_eq!(planner.offer(offer(1, Source::Speculative(0))), Offered::Revived);
    assert!(planner.is_ready(&1));
    planner.offer(offer(3, Source::Speculative(0)));
    assert_eq!(planner.poll_action(0), Some(PrefetchAction::Discard(2)), "the invalid page leaves first");
    assert_eq!(fetched(&mut planner), [3]);
    assert_eq!((planner.counts().revived, planner.counts().wasted[3]), (1, 1));
}

#[test]
fn a_page_of_another_generation_is_never_ready() {
    let mut planner = planner(4, 4);
    planner.offer(offer(1, Source::Hint));
    fetched(&mut planner);
    planner.handle(PrefetchEvent::Arrived(1, 2));
    assert!(!planner.is_ready(&1), "the reader expected generation 1");
    assert_eq!(planner.offer(Offer { generation: 2, ..offer(1, Source::Hint) }), Offered::Revived);
    planner.handle(PrefetchEvent::Written(1, 3));
    assert!(!planner.is_ready(&1));
    assert_eq!(planner.offer(Offer { generation: 3, ..offer(1, Source::Hint) }), Offered::Queued);
    assert_eq!(planner.poll_action(0), Some(PrefetchAction::Discard(1)));
    assert_eq!(fetched(&mut planner), [1]);
    assert_eq!(planner.counts().stale, 2);
}

#[test]
fn a_more_urgent_source_promotes_a_copy_under_way() {
    let mut planner = planner(4, 4);
    planner.offer(offer(1, Source::Speculative(0)));
    fetched(&mut planner);
    assert_eq!(planner.offer(offer(1, Source::NextStep(1))), Offered::Present);
    assert_eq!(planner.poll_action(0), Some(PrefetchAction::Promote(1, Class::Exact)));
    assert_eq!(planner.speculative_bytes(), 0);
    planner.handle(PrefetchEvent::Used(1));
    assert_eq!(planner.counts().late, [1, 0, 0, 0]);
}

#[test]
fn an_ended_request_leaves_no_copy_under_way() {
    let mut planner = planner(4, 4);
    planner.offer(offer(1, Source::Hint));
    planner.offer(offer(2, Source::Hint));
    assert_eq!(fetched(&mut planner).len(), 2);
    planner.handle(PrefetchEvent::Arrived(2, 1));
    planner.offer(offer(3, Source::Speculative(9)));
    planner.handle(PrefetchEvent::Ended(RequestId(1)));
    assert_eq!(planner.poll_action(0), Some(PrefetchAction::Cancel(1)));
    assert_eq!(planner.offer(offer(1, Source::Hint)), Offered::Busy);
    planner.handle(PrefetchEvent::Failed(1));
    assert_eq!((planner.poll_action(0), planner.is_ready(&2), planner.used_bytes()), (None, false, PAGE));
}

#[test]
fn the_printed_throttle_never_recovers_and_ours_does() {
    let (mut printed, mut ours) = (Throttle::new(ThrottleConfig::AS_PRINTED), Throttle::new(ThrottleConfig::default()));
    for _ in 0..20 {
        printed.observe(1.0);
        ours.observe(1.0);
    }
    let (low, lowest) = (printed.beta(), ours.beta());
    assert!(low < 0.02 && lowest == ThrottleConfig::default().floor, "{low} {lowest}");
    for _ in 0..50 {
        printed.observe(0.1);
        ours.observe(0.1);
    }
    assert!(printed.beta() == low && ours.beta() > 0.99, "{} {}", printed.beta(), ours.beta());
}

#[test]
fn an_accurate_request_goes_deeper_than_an_inaccurate_one() {
    let mut shared = SharedDepth::new(DepthConfig::default());
    // Depth d predicts d pages for each 4 needed; a share of them is right.
    let mut mean_depth = |right: f64| {
        let (mut bandit, mut prng, mut sum) = (shared.request(), Prng::new(7), 0);
        for step in 0..300 {
            let depth = bandit.depth();
            assert!(DEPTHS.contains(&depth));
            let hits = (0..depth.min(4)).filter(|_| prng.next_f64() < right).count() as u32;
            let result = StepResult { needed: 4, hits, wasted: depth - hits };
            bandit.observe(depth, &result, 0.7, &mut shared);
            sum += if step >= 100 { depth } else { 0 };
        }
        f64::from(sum) / 200.0
    };
    let (accurate, inaccurate) = (mean_depth(0.95), mean_depth(0.2));
    assert!(accurate > 3.0 && inaccurate < 2.0, "{accurate} and {inaccurate}");
}

#[test]
fn the_throttle_learner_finds_a_better_target() {
    let mut learner = ThrottleLearner::new(ThrottleConfig::default(), 3);
    let throughput =
        |config: &ThrottleConfig| 1.0 - (config.target - 0.5).powi(2) - 0.01 * (config.kappa - 2.0).powi(2);
    for _ in 0..400 {
        let trial = learner.trial();
        assert!(trial.kappa > 0.0 && (0.0..1.0).contains(&trial.target));
        learner.observe(throughput(&trial));
    }
    let (before, after) = (throughput(&ThrottleConfig::default()), throughput(&learner.learned()));
    assert!(after > before + 0.05, "{before} to {after}: {:?}", learner.learned());
}

#[derive(Clone, Debug)]
enum Step {
    Offer { key: u32, request: u64, source: u8, generation: u64 },
    Poll,
    Arrive(usize, u64),
    Fail(usize),
    Use(u32),
    Write(u32, u64),
    Mispredict(u32),
    Next(u64),
    End(u64),
    Link(f64),
}

fn step() -> impl Strategy<Value = Step> {
    let generation = || prop_oneof![8 => Just(1_u64), 1 => 2_u64..4];
    prop_oneof![
        6 => (0_u32..20, 0_u64..3, 0_u8..4, generation())
            .prop_map(|(key, request, source, generation)| Step::Offer { key, request, source, generation }),
        4 => Just(Step::Poll),
        4 => (any::<usize>(), generation()).prop_map(|(at, generation)| Step::Arrive(at, generation)),
        1 => any::<usize>().prop_map(Step::Fail),
        3 => (0_u32..20).prop_map(Step::Use),
        1 => (0_u32..20, generation()).prop_map(|(key, generation)| Step::Write(key, generation)),
        1 => (0_u32..20).prop_map(Step::Mispredict),
        1 => (0_u64..3).prop_map(Step::Next),
        1 => (0_u64..3).prop_map(Step::End),
        1 => (0_f64..1.0).prop_map(Step::Link),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn buffers_budgets_and_generations_hold(
        steps in prop::collection::vec(step(), 1..300), buffer in 1_u64..8, budget in 0_u64..8,
    ) {
        let mut planner = planner(buffer, budget);
        // Copies under way, and the generation of each page in the buffer.
        let (mut flying, mut memory): (Vec<(u32, u64)>, BTreeMap<u32, u64>) = (Vec::new(), BTreeMap::new());
        for (now, step) in (0..).zip(steps) {
            match step {
                Step::Offer { key, request, source, generation } => {
                    let source = [Source::NextStep(1), Source::Waiting(0), Source::Hint, Source::Speculative(key)][source as usize];
                    planner.offer(Offer { request: RequestId(request), generation, needed_at_ns: None, ..offer(key, source) });
                }
                Step::Poll => while let Some(action) = planner.poll_action(now) {
                    match action {
                        PrefetchAction::Fetch { key, class, generation, .. } => {
                            prop_assert!(flying.iter().all(|(other, _)| *other != key) && !memory.contains_key(&key));
                            flying.push((key, generation));
                            let allowed = (budget * PAGE) as f64 * planner.beta();
                            prop_assert!(class != Class::Speculative || planner.speculative_bytes() as f64 <= allowed);
                        }
                        PrefetchAction::Discard(key) => prop_assert!(memory.remove(&key).is_some(), "no such page"),
                        PrefetchAction::Promote(key, _) | PrefetchAction::Cancel(key) => {
                            prop_assert!(flying.iter().any(|(other, _)| *other == key), "no such copy");
                        }
                    }
                },
                Step::Arrive(at, generation) if !flying.is_empty() => {
                    let (key, expected) = flying.swap_remove(at % flying.len());
                    memory.insert(key, generation);
                    planner.handle(PrefetchEvent::Arrived(key, generation));
                    prop_assert!(!planner.is_ready(&key) || generation == expected, "a stale copy is ready");
                }
                Step::Fail(at) if !flying.is_empty() => {
                    let (key, _) = flying.swap_remove(at % flying.len());
                    planner.handle(PrefetchEvent::Failed(key));
                }
                Step::Use(key) => planner.handle(PrefetchEvent::Used(key)),
                Step::Write(key, generation) => planner.handle(PrefetchEvent::Written(key, generation)),
                Step::Mispredict(key) => planner.handle(PrefetchEvent::Mispredicted(key)),
                Step::Next(request) => {
                    let depth = planner.depth(RequestId(request));
                    prop_assert!((1..=16).contains(&depth));
                    planner.end_step(RequestId(request), &StepResult { needed: 4, hits: 1, wasted: 2 });
                }
                Step::End(request) => planner.handle(PrefetchEvent::Ended(RequestId(request))),
                Step::Link(utilization) => planner.observe_link(utilization),
                _ => {}
            }
            prop_assert!(planner.used_bytes() <= buffer * PAGE && planner.speculative_bytes() <= budget * PAGE);
            prop_assert!((0..20).all(|key| !planner.is_ready(&key) || memory.contains_key(&key)), "a ready page is absent");
        }
    }

    #[test]
    fn beta_stays_in_range_and_recovers(
        config in (any::<f64>(), any::<f64>(), 0.05_f64..1.0, 0.01_f64..0.5), loads in prop::collection::vec(any::<f64>(), 0..100),
    ) {
        let (kappa, target, recovery, floor) = config;
        let mut throttle = Throttle::new(ThrottleConfig { kappa, target, recovery, floor });
        for load in loads {
            let beta = throttle.observe(load);
            prop_assert!((floor..=1.0).contains(&beta));
        }
        throttle.configure(ThrottleConfig { kappa, target: 0.8, recovery, floor });
        (0..400).for_each(|_| {
            throttle.observe(0.0);
        });
        prop_assert!(throttle.beta() > 0.99);
    }
}
