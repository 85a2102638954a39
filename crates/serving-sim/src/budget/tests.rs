use super::*;
use crate::workload::{Length, Synthetic, Workload};

const GIB: u64 = 1 << 30;

/// Prompts of 64 groups that share most of their tokens, or nothing.
fn prompts(requests: usize, share: bool) -> Workload {
    Synthetic {
        requests,
        rate: 1.0,
        input: Length { mean: 4096.0, deviation: 1000.0 },
        output: Length::fixed(100),
        unique: share.then_some(Length::fixed(600)),
        groups: 256,
        block_tokens: 512,
    }
    .draw(3)
}

fn setup() -> Setup {
    Setup { thinning: 128, period_tokens: 1 << 17, ..Setup::engram_40b(16 * GIB, 1) }
}

#[test]
fn times_are_those_of_the_misses() {
    let setup = setup();
    let load = MixedLoad::of(&setup, &[&prompts(400, true)], 1);
    let block_ns = setup.link.time(512 * setup.kv_token_bytes);
    let [none, half, all] = [0, 50, 100].map(|percent| serve(&setup, &load, Division::Fixed(percent)));
    for outcome in [&none, &half, &all] {
        assert_eq!(outcome.kv_ns, (outcome.reused_blocks - outcome.kv_hits) * block_ns);
        assert_eq!(outcome.rows_ns, (outcome.ngrams - outcome.row_hits) * setup.entry_ns());
        assert!(outcome.moves == 0 && outcome.shares.len() == 1);
    }
    assert!(none.kv_hits == 0 && half.kv_hits > 0 && all.kv_hits > half.kv_hits);
    assert!(all.row_hits == 0 && half.row_hits > 0 && none.row_hits >= half.row_hits, "{none:?} {half:?} {all:?}");
    assert_eq!([none.ngrams, none.reused_blocks], [all.ngrams, all.reused_blocks], "the load is the same");
    let twice = [(); 2].map(|()| serve(&setup, &load, Division::Arbiter));
    assert_eq!(twice[0], twice[1]);
}

#[test]
fn simulated_ngrams_stand_for_all() {
    let dense = Setup { thinning: 4, ..setup() };
    let sparse = Setup { thinning: 16, ..setup() };
    let workload = prompts(60, false);
    let hits = [dense, sparse].map(|setup| {
        let outcome = serve(&setup, &MixedLoad::of(&setup, &[&workload], 1), Division::Fixed(0));
        outcome.rows_ns as f64 / outcome.tokens as f64
    });
    assert!((hits[0] / hits[1] - 1.0).abs() < 0.1, "{hits:?} ns per token");
}

/// The time per token with the arbiter, and with the best fixed share of KV and that share.
fn beside_fixed(setup: &Setup, load: &MixedLoad) -> (f64, f64, u64) {
    let fixed = |part: u64| (serve(setup, load, Division::Fixed(10 * part)).ns_per_token(), 10 * part);
    let (best, share) =
        (0..=10).map(fixed).fold((f64::INFINITY, 0), |best, one| if one.0 < best.0 { one } else { best });
    (serve(setup, load, Division::Arbiter).ns_per_token(), best, share)
}

#[test]
fn the_arbiter_is_near_the_best_fixed_share() {
    let setup = setup();
    for (share, requests) in [(true, 2000), (false, 600)] {
        let load = MixedLoad::of(&setup, &[&prompts(requests, share)], 1);
        let (arbiter, best, part) = beside_fixed(&setup, &load);
        assert!(arbiter < 1.05 * best, "shared: {share}: {arbiter} ns, {best} with {part} % for KV");
    }
}

#[test]
fn a_load_in_phases_needs_the_arbiter() {
    let setup = setup();
    let load = MixedLoad::of(&setup, &[&prompts(2400, true), &prompts(2400, false)], 800);
    let arbiter = serve(&setup, &load, Division::Arbiter);
    let best = (0..=10).map(|part| serve(&setup, &load, Division::Fixed(10 * part)).ns_per_token());
    let best = best.fold(f64::INFINITY, f64::min);
    assert!(arbiter.ns_per_token() < best, "{} ns, at best {best} with fixed shares", arbiter.ns_per_token());
    assert!(arbiter.moves >= 10, "{:?}", arbiter.shares);
}
