use super::*;
use cenote_base::prng::Prng;
use proptest::prelude::*;

fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 4,
        max_num_batched_tokens: 32,
        long_prefill_token_threshold: 0,
        block_size: 4,
        num_blocks: 64,
        watermark_blocks: 0,
        max_waiting: 100,
    }
}

fn request(id: u64, num_tokens: u32, output: u32) -> NewRequest {
    NewRequest { id: RequestId(id), num_tokens, max_num_tokens: num_tokens + output, deadline_ns: u64::MAX }
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
fn the_newest_is_preempted_and_comes_back_first() {
    let mut scheduler = Scheduler::new(SchedulerConfig { num_blocks: 5, ..config() });
    scheduler.add(request(1, 8, 8)).unwrap();
    scheduler.add(request(2, 8, 8)).unwrap();
    scheduler.add(request(3, 4, 1)).unwrap();
    let mut preempted = Vec::new();
    for _ in 0..6 {
        let output = scheduler.schedule(&mut ());
        compute(&mut scheduler, &output);
        preempted.extend(output.preempted);
        if !preempted.is_empty() {
            break;
        }
    }
    assert_eq!(preempted.first(), Some(&RequestId(3)), "admitted last, so preempted first");
    assert_eq!(scheduler.waiting.front(), preempted.last());
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let mut scheduler = Scheduler::new(SchedulerConfig { num_blocks: 4, max_waiting: 1, ..config() });
    assert_eq!(scheduler.add(request(1, 16, 1)), Err(AddError::NeverFits { needed: 5, num_blocks: 4 }));
    scheduler.add(request(2, 15, 1)).unwrap();
    assert_eq!(scheduler.add(request(3, 1, 1)), Err(AddError::QueueFull));
}

#[test]
fn deadlines_are_told_in_order() {
    let mut scheduler = Scheduler::new(config());
    for (id, deadline_ns) in [(1, 50), (2, 20), (3, 90)] {
        scheduler.add(NewRequest { deadline_ns, ..request(id, 4, 4) }).unwrap();
    }
    assert_eq!(scheduler.poll_timeout(), Some(20));
    assert_eq!(scheduler.expired(50), [RequestId(1), RequestId(2)]);
    assert!(scheduler.finish(RequestId(2)) && scheduler.finish(RequestId(1)) && !scheduler.finish(RequestId(1)));
    assert_eq!(scheduler.poll_timeout(), Some(90));
}

/// Blocks are conserved, none is held twice, and every running request's table covers its KV.
fn check(scheduler: &Scheduler) {
    let mut held: Vec<BlockId> = scheduler.requests.values().flat_map(|s| s.block_table.iter().copied()).collect();
    let count = held.len();
    held.sort_unstable();
    held.dedup();
    assert_eq!(held.len(), count, "a block is held twice");
    assert_eq!(count as u32 + scheduler.num_free_blocks(), scheduler.config.num_blocks);
    assert_eq!(scheduler.running.len() + scheduler.waiting.len(), scheduler.requests.len());
    for (id, state) in &scheduler.requests {
        assert_eq!(state.running, scheduler.running.contains(id));
        assert!(state.running || (state.num_computed_tokens == 0 && state.block_table.is_empty()));
        assert!(state.block_table.len() as u32 * scheduler.config.block_size >= state.num_computed_tokens);
    }
}

proptest! {
    #[test]
    fn every_request_ends_whatever_the_load(
        seed: u64,
        num_blocks in 8_u32..40,
        max_num_seqs in 1_usize..8,
        max_num_batched_tokens in 1_u32..64,
        watermark_blocks in 0_u32..8,
        threshold in 0_u32..20,
    ) {
        let config = SchedulerConfig {
            max_num_seqs, max_num_batched_tokens, num_blocks, watermark_blocks,
            long_prefill_token_threshold: threshold, ..config()
        };
        let mut prng = Prng::new(seed);
        let mut scheduler = Scheduler::new(config.clone());
        let mut left: BTreeMap<RequestId, u32> = BTreeMap::new();
        for id in 0..12 {
            let (prompt, output) = (1 + prng.below(24) as u32, 1 + prng.below(8) as u32);
            if scheduler.add(request(id, prompt, output)).is_ok() {
                left.insert(RequestId(id), output);
            }
        }
        let mut steps = 0;
        while !scheduler.is_idle() {
            steps += 1;
            prop_assert!(steps < 50_000, "no progress: {scheduler:?}");
            let output = scheduler.schedule(&mut Matched(prng.below(30) as u32));
            prop_assert!(output.num_batched_tokens() <= config.max_num_batched_tokens);
            prop_assert!(scheduler.num_running() <= config.max_num_seqs);
            for part in &output.scheduled {
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
    }
}
