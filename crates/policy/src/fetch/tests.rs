use super::*;
use proptest::prelude::*;

const BLOCK: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const DEADLINE: u64 = 500 * MS;

fn missing(blocks: u64) -> Missing {
    Missing { blocks, block_bytes: BLOCK, block_tokens: 16, before_tokens: 0 }
}

/// Computing a block of 16 tokens takes so long.
fn prefill(block_ns: u64) -> Prefill {
    let mut prefill = Prefill::default();
    prefill.has_computed(16, 0, block_ns);
    prefill
}

/// A way of which all is known.
fn way(seek_ns: u64, block_ns: u64) -> Way {
    let mut route = Route::default();
    route.has_sought(10, 10, seek_ns);
    route.has_read(BLOCK, block_ns);
    route.way(BLOCK, 0, DEADLINE)
}

fn listed(blocks: u64, block_ns: u64) -> Way {
    Way { blocks, seek_ns: 0.0, ..way(1, block_ns) }
}

#[test]
fn blocks_come_from_where_they_arrive_first() {
    let of = |compute, l4: Option<Way>, peers: Option<Way>| {
        let Plan { l4, peers } = plan(&missing(20), &prefill(compute), l4.as_ref(), peers.as_ref());
        (l4, peers)
    };
    let fast = way(MS / 100, MS / 10);
    assert_eq!(of(MS, None, Some(fast)), (0, 20));
    assert_eq!(of(MS / 20, None, Some(fast)), (0, 0), "computing is faster");
    assert_eq!(of(MS, Some(listed(8, MS / 2)), None), (8, 0));
    assert_eq!(of(MS, Some(listed(8, MS / 5)), Some(fast)), (8, 12), "both tiers at once");
    assert_eq!(of(MS, Some(listed(8, 9 * MS)), Some(fast)), (0, 20), "the peer has it sooner than the disk");
    assert_eq!(of(20 * MS, Some(listed(8, MS)), Some(way(MS, 30 * MS))), (8, 0));
}

#[test]
fn only_blocks_that_arrive_by_the_deadline_are_read() {
    let of = |way: Way| plan(&missing(1_000), &prefill(5 * MS), None, Some(&way)).peers;
    assert_eq!(of(way(MS, MS / 2)), 998);
    assert_eq!(of(Way { queue_ns: 400.0 * MS as f64, ..way(MS, MS / 2) }), 198);
    assert_eq!(of(way(600 * MS, 1)), 0, "the lookup alone takes longer");
}

#[test]
fn a_lookup_must_pay_for_those_that_find_nothing() {
    let of = |found: u64, seek: u64| {
        let mut route = Route::default();
        (0..100).for_each(|_| route.has_sought(100, found, seek));
        route.has_read(BLOCK, MS / 10);
        plan(&missing(20), &prefill(MS), None, Some(&route.way(BLOCK, 0, DEADLINE))).peers
    };
    assert_eq!((of(90, MS), of(5, MS / 100), of(5, 2 * MS)), (20, 20, 0));
}

#[test]
fn without_a_measured_prefill_all_is_read() {
    let l4 = listed(8, 900 * MS / 8);
    let slow = way(2 * DEADLINE, MS);
    assert_eq!(plan(&missing(20), &Prefill::default(), Some(&l4), Some(&slow)), Plan { l4: 4, peers: 16 });
}

#[test]
fn an_untried_way_is_tried_by_one_request_at_a_time() {
    let route = Route::default();
    let of = |waiting| plan(&missing(20), &prefill(MS), None, Some(&route.way(BLOCK, waiting, DEADLINE))).peers;
    assert_eq!((of(0), of(1)), (8, 0));
    let large = Missing { block_bytes: 64 << 20, ..missing(20) };
    assert_eq!(plan(&large, &prefill(MS), None, Some(&route.way(64 << 20, 0, DEADLINE))).peers, 1);
}

#[test]
fn a_way_whose_lookups_took_longer_than_the_deadline_is_tried_again() {
    let mut route = Route::default();
    route.has_sought(10, 10, 2 * DEADLINE);
    route.has_read(BLOCK, MS / 10);
    let of = |route: &Route| plan(&missing(20), &prefill(MS), None, Some(&route.way(BLOCK, 0, DEADLINE))).peers;
    assert_eq!(of(&route), 0);
    (0..PATIENCE_MIN).for_each(|_| route.has_declined());
    assert_eq!(of(&route), 8);
}

/// A peer that was slow once was never asked again, because only reads renew its times.
#[test]
fn a_slow_way_is_tried_again_ever_more_rarely() {
    let mut route = Route::default();
    let mut tries = Vec::new();
    for request in 0..4_000 {
        let planned = plan(&missing(20), &prefill(MS), None, Some(&route.way(BLOCK, 0, DEADLINE)));
        if planned.peers == 0 {
            route.has_declined();
            continue;
        }
        assert!(planned.peers <= 8, "a try is small");
        tries.push(request);
        route.begins();
        route.has_sought(20, 20, 10 * MS);
        route.has_read(planned.peers * BLOCK, planned.peers * 30 * MS);
    }
    assert_eq!(tries, [0, 17, 50, 115, 244, 501, 1014, 2039, 3064], "{tries:?}");
    // It is fast again: the next try finds it out.
    for _ in 0..PATIENCE_MAX {
        route.has_declined();
    }
    for _ in 0..40 {
        route.has_read(8 * BLOCK, MS);
        route.has_sought(20, 20, MS / 100);
    }
    route.begins();
    assert_eq!(plan(&missing(20), &prefill(MS), None, Some(&route.way(BLOCK, 0, DEADLINE))).peers, 20);
}

#[test]
fn attention_makes_later_blocks_dearer() {
    let mut prefill = Prefill::default();
    // 1 us a token, 1 ns a pair.
    for (tokens, before) in [(1_000_u64, 0_u64), (1_000, 50_000), (2_000, 10_000)] {
        let pairs = tokens * before + tokens * (tokens + 1) / 2;
        prefill.has_computed(tokens, pairs, tokens * 1_000 + pairs);
    }
    let near = |found: f64, of: f64| (found / of - 1.0).abs() < 1e-6;
    let (early, late) = (missing(10), Missing { before_tokens: 100_000, ..missing(10) });
    let of = |missing: &Missing| prefill.compute_ns(missing, 0).expect("it was measured");
    assert!(near(of(&early), 160_000.0 + 160.0 * 161.0 / 2.0), "{}", of(&early));
    assert!(near(of(&late), of(&early) + 160.0 * 100_000.0), "{}", of(&late));
    let way = way(1_000, 100_000);
    assert_eq!([early, late].map(|missing| plan(&missing, &prefill, None, Some(&way)).peers), [0, 10]);
}

#[test]
fn readers_of_one_prompt_and_prompts_of_one_reader_begin_apart() {
    let begins = |of: &dyn Fn(u64) -> (u64, u64)| {
        let mut count = [0; 16];
        for number in 0..16_000 {
            let (prompt, reader) = of(number);
            count[asking_order(prompt, reader, 16).next().expect("a peer")] += 1;
        }
        count
    };
    for counts in [begins(&|number| (number, 7)), begins(&|number| (7, number))] {
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }
    assert_eq!(asking_order(1, 2, 0).next(), None);
    let mut all: Vec<usize> = asking_order(3, 4, 5).collect();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4]);
}

fn any_way() -> impl Strategy<Value = Way> {
    let times = (0_u64..1 << 32, 0_u64..1 << 32, 1_u64..1 << 32, 1_u64..1 << 34);
    (times, 0_u64..200, 0.0..=1.0).prop_map(|((queue, seek, block, deadline_ns), blocks, found)| Way {
        blocks,
        waiting: 0,
        queue_ns: queue as f64,
        seek_ns: seek as f64,
        block_ns: Some(block as f64),
        found,
        deadline_ns,
    })
}

proptest! {
    #[test]
    fn a_plan_is_never_later_than_computing_by_its_own_estimate(
        blocks in 0_u64..200, before_tokens in 0_u64..1 << 20, work in prop::collection::vec((1_u64..1 << 16, 0_u64..1 << 30, 0_u64..1 << 36), 1..5),
        l4 in prop::option::of(any_way()), peers in prop::option::of(any_way()),
    ) {
        let mut prefill = Prefill::default();
        work.iter().for_each(|&(tokens, pairs, ns)| prefill.has_computed(tokens, pairs, ns));
        let missing = Missing { before_tokens, ..missing(blocks) };
        let of = |plan| expected_ns(&missing, &prefill, l4.as_ref(), peers.as_ref(), plan).expect("it was measured");
        let chosen = plan(&missing, &prefill, l4.as_ref(), peers.as_ref());
        prop_assert!(of(chosen) <= of(Plan::default()));
        prop_assert!(chosen.l4 + chosen.peers <= blocks);
        prop_assert!(chosen.l4 <= l4.map_or(0, |way| way.blocks));
        for (way, count) in [(l4, chosen.l4), (peers, chosen.peers)] {
            let late = way.filter(|_| count > 0).is_some_and(|way| way.read_ns(count) > way.deadline_ns as f64 * 1.000_001);
            prop_assert!(!late, "{count} blocks of {way:?} are late");
        }
    }

    #[test]
    fn a_faster_way_gives_no_fewer_blocks_and_slower_computing_asks_for_no_fewer(
        blocks in 0_u64..200, block_ns in 1_u64..1 << 32, slow in any_way(), parts in prop::array::uniform3(0.0..=1.0_f64), more in 0_u64..1 << 32,
    ) {
        let fast = Way {
            queue_ns: slow.queue_ns * parts[0],
            seek_ns: slow.seek_ns * parts[1],
            block_ns: slow.block_ns.map(|ns| (ns * parts[2]).max(1.0)),
            ..slow
        };
        let of = |block_ns, way: &Way| plan(&missing(blocks), &prefill(block_ns), None, Some(way)).peers;
        prop_assert!(of(block_ns, &fast) >= of(block_ns, &slow));
        prop_assert!(of(block_ns + more, &slow) >= of(block_ns, &slow));
    }

    #[test]
    fn measured_costs_are_never_negative(work in prop::collection::vec((0_u64..1 << 20, 0_u64..1 << 40, 0_u64..1 << 40), 0..20)) {
        let mut prefill = Prefill::default();
        work.iter().for_each(|&(tokens, pairs, ns)| prefill.has_computed(tokens, pairs, ns));
        if let Some((token, pair)) = prefill.costs() {
            prop_assert!(token >= 0.0 && pair >= 0.0 && token.is_finite() && pair.is_finite());
        }
        prop_assert_eq!(prefill.costs().is_some(), work.iter().any(|(tokens, ..)| *tokens > 0));
    }
}
