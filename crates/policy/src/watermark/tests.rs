use super::*;
use proptest::prelude::*;

fn load() -> Load {
    Load {
        num_blocks: 400,
        free_blocks: 100,
        block_size: 16,
        num_running: 50,
        num_waiting: 7,
        num_swapped: 0,
        running_tokens: 50 * 90,
        pending_tokens: 50,
        next_tokens: 0,
        lost_blocks: 0,
        finished_requests: 0,
        finished_tokens: 0,
    }
}

fn reserve(text: &str, load: &Load) -> Option<u32> {
    text.parse::<Watermark>().expect("a watermark").controller().reserve_blocks(load)
}

#[test]
fn each_controller_matches_the_paper() {
    assert_eq!(reserve("fixed:0.01", &load()), Some(4));
    assert_eq!(reserve("fixed:1", &load()), Some(400));
    // a·N/16 of 50 requests.
    assert_eq!(reserve("opt:0", &load()), Some(0));
    assert_eq!(reserve("opt:3.2", &load()), Some(10));
    // 300 blocks of 50 requests: 6 on average.
    assert_eq!(reserve("avg-above:5.8", &load()), None);
    assert_eq!(reserve("avg-above:6", &load()), Some(0));
    assert_eq!(reserve("avg-below:6", &load()), Some(0));
    assert_eq!(reserve("avg-below:6.2", &load()), None);
}

#[test]
fn the_learned_one_keeps_more_for_the_young_than_for_the_old() {
    // Only what is to come counts: one block for each block that a request has before it.
    let weights = [0, 0, 0, 16 * ONE as i32, 0, 0, 0, 0];
    let learned = |load: &Load| Watermark::Learned(weights).controller().reserve_blocks(load);
    let ended = Load { finished_requests: 996, finished_tokens: 996 * 8 * 16, ..load() };
    // Requests have come to 8 blocks; these have two, or eight, or more.
    assert_eq!(learned(&Load { running_tokens: 50 * 32, ..ended }), Some(300));
    assert_eq!(learned(&Load { running_tokens: 50 * 128, ..ended }), Some(0));
    assert_eq!(learned(&Load { running_tokens: 50 * 200, ..ended }), Some(0));
}

#[test]
fn the_learned_watermark_counts_blocks_of_unfinished_prompts() {
    let learned =
        |load: &Load| Watermark::Learned([0, 0, 0, 0, 0, 0, 16 * ONE as i32, 0]).controller().reserve_blocks(load);
    assert_eq!(learned(&Load { pending_tokens: 50 * 32, ..load() }), Some(100));
    assert_eq!(learned(&Load { pending_tokens: 50 * 32, next_tokens: 50 * 16, ..load() }), Some(150));
}

#[test]
fn losses_are_remembered_and_forgotten() {
    let mut controller = Learned::new([0, 0, 0, 0, 0, 16 * ONE as i32, 0, 0]);
    let mut load = load();
    assert_eq!(controller.reserve_blocks(&load), Some(0));
    for _ in 0..64 {
        load.lost_blocks += 8;
        controller.observe(&load);
    }
    let after_losses = controller.reserve_blocks(&load).expect("it always lets in");
    assert!(after_losses > 50, "{after_losses}");
    (0..1_000).for_each(|_| controller.observe(&load));
    assert_eq!(controller.reserve_blocks(&load), Some(0), "what is long ago is forgotten");
}

#[test]
fn names_round_trip() {
    for name in ["fixed:0.01", "opt:2.4", "avg-above:3.6", "avg-below:7.5", "learned"] {
        assert_eq!(name.parse::<Watermark>().expect(name).to_string(), name);
    }
    for wrong in ["", "fixed", "fixed:2", "opt:-1", "opt:x", "avg:3", "learnt", "opt:1e9"] {
        let error = wrong.parse::<Watermark>().expect_err(wrong);
        assert!(error.to_string().contains(&format!("`{wrong}`")), "{error}");
    }
    assert_eq!(Watermark::default().to_string(), "fixed:0.01");
}

proptest! {
    #[test]
    fn nothing_overflows_whatever_the_load(
        weights in prop::array::uniform8(any::<i32>()),
        num_blocks in 1_u32..u32::MAX,
        free in 0.0..=1.0_f64,
        num_running: u32,
        num_swapped: u32,
        running_tokens in 0_u64..1 << 40,
        pending_tokens in 0_u64..1 << 40,
        next_tokens: u32,
        lost_blocks: u64,
        finished_requests in 0_u64..1 << 40,
        finished_tokens in 0_u64..1 << 50,
    ) {
        let load = Load {
            num_blocks, free_blocks: (f64::from(num_blocks) * free) as u32, num_running, num_swapped, running_tokens,
            pending_tokens, next_tokens: u64::from(next_tokens), lost_blocks, finished_requests, finished_tokens, ..load()
        };
        for watermark in [Watermark::Learned(weights), Watermark::DEFAULT, "opt:12".parse().expect("known")] {
            let mut controller = watermark.controller();
            controller.observe(&load);
            prop_assert!(controller.reserve_blocks(&load).is_some());
        }
    }
}
