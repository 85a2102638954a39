use super::*;
use cenote_base::prng::Prng;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A watermark of so many of the 64 blocks that most tests have.
fn fixed(blocks: u32) -> Watermark {
    Watermark::share(f64::from(blocks) / 64.0)
}

/// Swap space that is always worth its way.
fn swap_of(num_blocks: u32) -> SwapConfig {
    SwapConfig { num_blocks, block_ns: 1, recompute_token_ns: u64::MAX }
}

pub(super) fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 4,
        max_num_batched_tokens: 32,
        long_prefill_token_threshold: 0,
        block_size: 4,
        num_blocks: 64,
        spill_blocks: 0,
        spill_use: SpillUse::Hidden,
        watermark: fixed(0),
        max_waiting: 100,
        swap: SwapConfig::OFF,
    }
}

pub(super) fn request(id: u64, num_tokens: u32, output: u32) -> NewRequest {
    NewRequest {
        id: RequestId(id),
        num_tokens,
        max_num_tokens: num_tokens + output,
        deadline_ns: u64::MAX,
        priority: 0,
    }
}

fn compute(scheduler: &mut Scheduler, output: &SchedulerOutput) {
    for part in &output.scheduled {
        scheduler.computed(part.id, part.num_new_tokens);
        if part.samples {
            scheduler.append_token(part.id);
        }
    }
}

#[test]
fn a_long_prompt_leaves_room_for_decodes_in_every_step() {
    let mut scheduler = Scheduler::new(config());
    scheduler.add(request(1, 8, 100)).unwrap();
    let first = scheduler.schedule(&mut ());
    compute(&mut scheduler, &first);
    scheduler.add(request(2, 100, 10)).unwrap();
    for step in 0..4 {
        let output = scheduler.schedule(&mut ());
        assert_eq!(output.scheduled[0].id, RequestId(1), "step {step}: the decode comes first");
        assert_eq!(output.scheduled[0].num_new_tokens, 1);
        assert_eq!(output.num_batched_tokens(), if step < 3 { 32 } else { 1 + 100 - 3 * 31 });
        assert_eq!(output.scheduled[1].samples, step == 3);
        compute(&mut scheduler, &output);
    }
}

#[test]
fn the_next_step_admits_what_was_named() {
    let mut scheduler = Scheduler::new(config());
    for id in 1..=6 {
        scheduler.add(request(id, 12, 20)).unwrap();
    }
    let mut named: Vec<RequestId> = scheduler.next_admissions().collect();
    assert_eq!(named, [RequestId(1), RequestId(2), RequestId(3)], "12 + 12 + 8 tokens");
    for _ in 0..4 {
        let output = scheduler.schedule(&mut ());
        let admitted = output.scheduled.iter().map(|part| part.id).filter(|id| named.contains(id)).count();
        assert_eq!(admitted, named.len(), "{named:?} {output:?}");
        compute(&mut scheduler, &output);
        named = scheduler.next_admissions().collect();
    }
    assert!(named.is_empty() && scheduler.num_running() == 4, "{named:?}");
}

struct Matched(u32);

impl PrefixSource for Matched {
    fn num_matched_tokens(&mut self, _: RequestId) -> u32 {
        self.0
    }
}

#[test]
fn a_prompt_found_whole_still_computes_its_last_token() {
    let mut scheduler = Scheduler::new(config());
    scheduler.add(request(1, 16, 4)).unwrap();
    let output = scheduler.schedule(&mut Matched(16));
    assert_eq!(
        output.scheduled,
        [ScheduledRequest {
            id: RequestId(1),
            num_computed_tokens: 12,
            num_new_tokens: 4,
            num_loaded_tokens: 12,
            samples: true
        }]
    );
    assert_eq!(scheduler.block_table(RequestId(1)).len(), 4);
}

#[test]
fn a_failed_load_is_computed_in_the_next_step() {
    let mut scheduler = Scheduler::new(config());
    scheduler.add(request(1, 18, 4)).unwrap();
    assert_eq!(scheduler.schedule(&mut Matched(16)).scheduled[0].num_computed_tokens, 16);
    scheduler.rollback(RequestId(1), 4);
    let output = scheduler.schedule(&mut ());
    assert_eq!((output.scheduled[0].num_computed_tokens, output.scheduled[0].num_new_tokens), (4, 14));
    assert_eq!(output.scheduled[0].num_loaded_tokens, 0);
}

#[test]
fn the_newest_is_preempted_and_resumed_first() {
    let mut scheduler = Scheduler::new(SchedulerConfig { num_blocks: 5, ..config() });
    scheduler.add(request(1, 8, 8)).unwrap();
    scheduler.add(request(2, 8, 8)).unwrap();
    scheduler.add(request(3, 4, 1)).unwrap();
    let mut preempted = Vec::new();
    for _ in 0..6 {
        let output = scheduler.schedule(&mut ());
        compute(&mut scheduler, &output);
        preempted.extend(output.preempted.iter().map(|preempted| preempted.id));
        if !preempted.is_empty() {
            break;
        }
    }
    assert_eq!(preempted.first(), Some(&RequestId(3)), "admitted last, so preempted first");
    let first = scheduler.waiting.front().map(|&slot| scheduler.requests[slot].id);
    assert_eq!(first.as_ref(), preempted.last());
}

#[test]
fn impossible_requests_are_refused_at_once() {
    let mut scheduler = Scheduler::new(SchedulerConfig { num_blocks: 4, max_waiting: 1, ..config() });
    assert_eq!(scheduler.add(request(1, 16, 1)), Err(AddError::NeverFits { needed: 5, num_blocks: 4 }));
    scheduler.add(request(2, 15, 1)).unwrap();
    assert_eq!(scheduler.add(request(3, 1, 1)), Err(AddError::QueueFull));
}

#[test]
fn deadlines_expire_in_order() {
    let mut scheduler = Scheduler::new(config());
    for (id, deadline_ns) in [(1, 50), (2, 20), (3, 90)] {
        scheduler.add(NewRequest { deadline_ns, ..request(id, 4, 4) }).unwrap();
    }
    assert_eq!(scheduler.poll_timeout(), Some(20));
    assert_eq!(scheduler.expired(50), [RequestId(1), RequestId(2)]);
    assert!(scheduler.finish(RequestId(2)) && scheduler.finish(RequestId(1)) && !scheduler.finish(RequestId(1)));
    assert_eq!(scheduler.poll_timeout(), Some(90));
}

#[test]
fn the_tail_is_swapped_out_and_in_again_without_pressure() {
    // Two requests of two blocks fit; with a third block each they do not.
    let mut scheduler = Scheduler::new(SchedulerConfig { num_blocks: 5, swap: swap_of(8), ..config() });
    scheduler.add(request(1, 8, 4)).unwrap();
    scheduler.add(request(2, 8, 4)).unwrap();
    let first = scheduler.schedule(&mut ());
    compute(&mut scheduler, &first);
    let pressed = scheduler.schedule(&mut ());
    let out = &pressed.swapped_out[0];
    assert_eq!((out.id, out.blocks.len(), out.swap_blocks.len()), (RequestId(2), 2, 2));
    assert!(pressed.preempted.is_empty() && pressed.swapped_in.is_empty());
    assert_eq!(pressed.scheduled.len(), 1, "only the first goes on");
    assert_eq!((scheduler.num_swapped(), scheduler.num_running(), scheduler.num_waiting()), (1, 1, 0));
    assert_eq!(scheduler.block_table(RequestId(2)), [], "what is out is not in L1");
    compute(&mut scheduler, &pressed);
    scheduler.add(request(3, 4, 1)).unwrap();
    let calm = scheduler.schedule(&mut ());
    assert!(calm.swapped_in.is_empty() && scheduler.num_waiting() == 1, "no request overtakes the swapped one");
    compute(&mut scheduler, &calm);
    assert!(scheduler.finish(RequestId(1)));
    let back = scheduler.schedule(&mut ());
    assert_eq!((back.swapped_in[0].id, &back.swapped_in[0].swap_blocks), (RequestId(2), &out.swap_blocks));
    assert_eq!(back.swapped_in[0].blocks, scheduler.block_table(RequestId(2))[..2]);
    assert_eq!(
        (back.scheduled[0].id, back.scheduled[0].num_computed_tokens),
        (RequestId(2), 8),
        "it goes on where it was"
    );
    assert_eq!(back.scheduled[1].id, RequestId(3));
    assert_eq!(scheduler.load().lost_blocks, 2);
}

#[test]
fn a_request_without_swap_space_restarts_first() {
    let mut scheduler = Scheduler::new(SchedulerConfig { num_blocks: 5, swap: swap_of(8), ..config() });
    for id in 1..=3 {
        scheduler.add(request(id, 8, 4)).unwrap();
    }
    let first = scheduler.schedule(&mut ());
    compute(&mut scheduler, &first);
    let pressed = scheduler.schedule(&mut ());
    assert_eq!(pressed.swapped_out[0].id, RequestId(2));
    scheduler.lose_swapped(RequestId(2));
    assert_eq!((scheduler.num_swapped(), scheduler.num_waiting(), scheduler.num_preemptions()), (0, 2, 1));
    compute(&mut scheduler, &pressed);
    assert!(scheduler.finish(RequestId(1)));
    let next = scheduler.schedule(&mut ());
    assert_eq!((next.scheduled[0].id, next.scheduled[0].num_computed_tokens), (RequestId(2), 0));
}

#[test]
fn short_swaps_are_recomputed() {
    let swap = SwapConfig { num_blocks: 8, block_ns: 100, recompute_token_ns: 49 };
    for (recompute_token_ns, swaps) in [(49, false), (50, true)] {
        let swap = SwapConfig { recompute_token_ns, ..swap };
        let mut scheduler = Scheduler::new(SchedulerConfig { num_blocks: 5, swap, ..config() });
        scheduler.add(request(1, 8, 4)).unwrap();
        scheduler.add(request(2, 8, 4)).unwrap();
        let first = scheduler.schedule(&mut ());
        compute(&mut scheduler, &first);
        // Two blocks there and back take 400; eight tokens take 392 or 400.
        let pressed = scheduler.schedule(&mut ());
        assert_eq!((!pressed.swapped_out.is_empty(), pressed.preempted.is_empty()), (swaps, swaps));
        let why = pressed.preempted.first().map(|preempted| (preempted.blocks, preempted.why));
        assert_eq!(why, (!swaps).then_some((2, NoSwap::Quicker)));
    }
}

#[test]
fn the_urgent_come_first_and_make_room_last() {
    let mut scheduler = Scheduler::new(SchedulerConfig { num_blocks: 5, ..config() });
    scheduler.add(NewRequest { priority: 1, ..request(1, 8, 4) }).unwrap();
    scheduler.add(NewRequest { priority: 1, ..request(2, 8, 4) }).unwrap();
    scheduler.add(NewRequest { priority: 0, ..request(3, 8, 4) }).unwrap();
    let first = scheduler.schedule(&mut ());
    let ids: Vec<u64> = first.scheduled.iter().map(|part| part.id.0).collect();
    assert_eq!(ids, [3, 1], "the urgent one overtook, the rest keep their order");
    compute(&mut scheduler, &first);
    let preempted = Preemption { id: RequestId(1), blocks: 2, why: NoSwap::Full };
    assert_eq!(scheduler.schedule(&mut ()).preempted, [preempted]);
}

#[test]
fn a_watermark_that_admits_none_still_runs_one() {
    let watermark = Watermark::AverageLength { threshold_thousandths: 1_000_000, stop_below: true };
    let mut scheduler = Scheduler::new(SchedulerConfig { watermark, ..config() });
    scheduler.add(request(1, 4, 1)).unwrap();
    scheduler.add(request(2, 4, 1)).unwrap();
    assert_eq!(scheduler.schedule(&mut ()).scheduled.len(), 1);
}

/// Blocks are conserved, none is held twice, and every running request's table covers its KV.
fn check(scheduler: &Scheduler) {
    let states = || scheduler.requests.iter();
    for (place, total, free) in [
        (Place::Running, scheduler.config.num_blocks, scheduler.num_free_blocks()),
        (Place::Swapped, scheduler.config.swap.num_blocks, scheduler.swap.free()),
    ] {
        let there = states().filter(|state| state.place == place);
        let mut held: Vec<BlockId> = there.flat_map(|state| state.block_table.iter().copied()).collect();
        let count = held.len();
        held.sort_unstable();
        held.dedup();
        assert_eq!(held.len(), count, "a block is held twice");
        assert_eq!(count as u32 + free, total);
    }
    let queued = scheduler.running.len() + scheduler.waiting.len() + scheduler.swapped.len();
    assert_eq!(queued, scheduler.requests.len());
    let tokens =
        states().filter(|state| state.place == Place::Running).map(|state| u64::from(state.num_computed_tokens));
    assert_eq!(tokens.sum::<u64>(), scheduler.load().running_tokens);
    let known = states().filter(|state| state.place == Place::Running).map(|state| u64::from(state.num_tokens));
    assert_eq!(known.sum::<u64>(), scheduler.load().running_tokens + scheduler.load().pending_tokens);
    for state in states() {
        let slot = scheduler.requests.slot(state.id);
        assert_eq!(state.place == Place::Running, scheduler.running.contains(&slot));
        assert_eq!(state.place == Place::Swapped, scheduler.swapped.contains(&slot));
        let is_empty = state.num_computed_tokens == 0 && state.block_table.is_empty();
        assert!(state.place != Place::Waiting || is_empty);
        assert!(state.block_table.len() as u32 * scheduler.config.block_size >= state.num_computed_tokens);
    }
}

/// Any kind of watermark, by a number.
fn watermark(kind: u32, value: u32) -> Watermark {
    match kind {
        0 => fixed(value),
        1 => Watermark::OptFactor { factor_thousandths: 2_000 * value },
        2 => Watermark::AverageLength { threshold_thousandths: 300 * value, stop_below: false },
        3 => Watermark::AverageLength { threshold_thousandths: 300 * value, stop_below: true },
        _ => Watermark::Learned([0, 0, 0, 2_000 * value as i32, 500, 1_000, -300, 20]),
    }
}

proptest! {
    #[test]
    fn every_request_ends_whatever_the_load(
        seed: u64,
        num_blocks in 8_u32..40,
        max_num_seqs in 1_usize..8,
        max_num_batched_tokens in 1_u32..64,
        kind in 0_u32..5,
        watermark_value in 0_u32..8,
        threshold in 0_u32..20,
        swap_blocks in prop_oneof![Just(0_u32), 1_u32..40],
        recompute_token_ns in 0_u64..3,
    ) {
        let config = SchedulerConfig {
            max_num_seqs, max_num_batched_tokens, num_blocks,
            watermark: watermark(kind, watermark_value),
            long_prefill_token_threshold: threshold,
            swap: SwapConfig { num_blocks: swap_blocks, block_ns: 2, recompute_token_ns },
            ..config()
        };
        let mut prng = Prng::new(seed);
        let mut scheduler = Scheduler::new(config.clone());
        let mut left: BTreeMap<RequestId, u32> = BTreeMap::new();
        for id in 0..12 {
            let (prompt, output) = (1 + prng.below(24) as u32, 1 + prng.below(8) as u32);
            let new = NewRequest { priority: prng.below(3) as u32, ..request(id, prompt, output) };
            if scheduler.add(new).is_ok() {
                left.insert(RequestId(id), output);
            }
        }
        let mut steps = 0;
        let mut in_swap: BTreeMap<RequestId, Vec<BlockId>> = BTreeMap::new();
        while !scheduler.is_idle() {
            steps += 1;
            prop_assert!(steps < 50_000, "no progress: {scheduler:?}");
            let output = scheduler.schedule(&mut Matched(prng.below(30) as u32));
            prop_assert!(output.num_batched_tokens() <= config.max_num_batched_tokens);
            prop_assert!(scheduler.num_running() <= config.max_num_seqs);
            prop_assert!(!output.is_under_pressure() || output.swapped_in.is_empty());
            for out in &output.swapped_out {
                if prng.below(4) == 0 {
                    scheduler.lose_swapped(out.id);
                    continue;
                }
                prop_assert!(in_swap.insert(out.id, out.swap_blocks.clone()).is_none());
            }
            let mut rolled_back = Vec::new();
            for back in &output.swapped_in {
                let out = in_swap.remove(&back.id);
                prop_assert_eq!(out.as_ref(), Some(&back.swap_blocks));
                if prng.below(4) == 0 {
                    let whole = prng.below(back.blocks.len() as u64) as u32;
                    scheduler.rollback(back.id, whole * config.block_size);
                    rolled_back.push(back.id);
                }
            }
            for part in output.scheduled.iter().filter(|part| !rolled_back.contains(&part.id)) {
                if part.num_loaded_tokens > 0 && prng.below(3) == 0 {
                    scheduler.rollback(part.id, prng.below(u64::from(part.num_loaded_tokens) + 1) as u32);
                    continue;
                }
                scheduler.computed(part.id, part.num_new_tokens);
                if part.samples {
                    let output_left = left.get_mut(&part.id).unwrap();
                    *output_left -= 1;
                    if *output_left == 0 {
                        prop_assert!(scheduler.finish(part.id));
                    } else {
                        scheduler.append_token(part.id);
                    }
                }
            }
            check(&scheduler);
        }
        prop_assert_eq!(scheduler.num_free_blocks(), num_blocks);
        prop_assert!(in_swap.is_empty());
    }
}
