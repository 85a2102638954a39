use super::*;
use crate::model::{Link, SPECKV_L3};
use cenote_policy::staging::effective_ns;
use proptest::prelude::*;

fn setup() -> DenseSetup {
    DenseSetup {
        layers: 8,
        requests: 4,
        pages: 16,
        page_bytes: 8_192,
        layer_ns: 50_000,
        step_ns: 10_000,
        l1_pages: 128,
        arrival: Arrival::Staged(3),
        tier: SPECKV_L3,
        batch: 4,
        placement: Placement::BatchAware,
        order: FetchOrder::Interleaved,
        steps: 6,
    }
}

#[test]
fn with_everything_in_l1_a_step_is_its_computation() {
    let outcome = simulate(&DenseSetup { l1_pages: 512, ..setup() });
    assert_eq!((outcome.step_ns, outcome.stall_ns, outcome.hit_rate), (8 * 50_000 + 10_000, 0, 1.0));
}

#[test]
fn staging_hides_what_demand_waits_for() {
    let staged = simulate(&setup());
    let on_demand = simulate(&DenseSetup { arrival: Arrival::OnDemand, ..setup() });
    assert!(staged.stall_ns == 0 && staged.hit_rate == 1.0 && staged.hidden == 1.0, "{staged:?}");
    assert!(on_demand.stall_ns > 50_000 && on_demand.hit_rate < 0.3 && on_demand.hidden == 0.0, "{on_demand:?}");
}

#[test]
fn a_slow_tier_binds_the_step_and_stays_busy() {
    let tier = TierLink { link: Link { bytes_per_s: 4_000_000_000, latency_ns: 400 }, ..SPECKV_L3 };
    let outcome = simulate(&DenseSetup { tier, ..setup() });
    assert!(outcome.copy_bound > 0.9 && outcome.copy_bound <= 1.01, "{outcome:?}");
}

/// One layer beyond L1 and a fast computation before it: eq. 2 gives the wait.
#[test]
fn a_layer_that_arrives_alone_waits_as_eq_2_says() {
    let tier = TierLink { channels: 1, doorbell_ns: 0, outstanding_max: 64, ..SPECKV_L3 };
    // All layers but the last are in L1.
    let one =
        DenseSetup { layers: 8, requests: 1, pages: 32, layer_ns: 2_000, l1_pages: 7 * 32, tier, batch: 32, ..setup() };
    for (buffers, ahead) in [(2, 1), (3, 2)] {
        let mut world = World::new(&DenseSetup { arrival: Arrival::Staged(buffers), ..one });
        world.absent = vec![Vec::new(); 8];
        world.absent[7] = (0..32).map(|index| Page { request: 0, index, layer: 7 }).collect();
        let outcome = world.run();
        let arrival = tier.link.time(32 * 8_192);
        let expected = effective_ns(2_000, arrival, 2_000, ahead) - 2_000;
        let error = outcome.stall_ns.abs_diff(expected) as f64 / expected as f64;
        assert!(error < 0.05, "{buffers} buffers: waits {} ns, eq. 2 says {expected} ns", outcome.stall_ns);
    }
}

#[test]
fn a_token_predictor_names_no_page_that_dense_attention_lacks() {
    for depth in [1, 2, 4, 8, 16] {
        for tokens in 1..200 {
            let (named, useful) = token_addresses(tokens, 16, depth, |_| true);
            assert_eq!((named, useful), (depth, 0), "{tokens} tokens");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_step_is_never_faster_than_computation_or_copies(
        l1_pages in 0_usize..512, gigabytes in 1_u64..64, buffers in 2_u32..4, channels in 1_u32..17,
    ) {
        let tier = TierLink { link: Link { bytes_per_s: gigabytes * 1_000_000_000, latency_ns: 400 }, channels, ..SPECKV_L3 };
        let outcome = simulate(&DenseSetup { l1_pages, tier, arrival: Arrival::Staged(buffers), ..setup() });
        prop_assert!(outcome.step_ns >= 8 * 50_000 + 10_000 && outcome.copy_bound <= 1.02, "{outcome:?}");
        let on_demand = simulate(&DenseSetup { l1_pages, tier, arrival: Arrival::OnDemand, ..setup() });
        prop_assert!(outcome.step_ns <= on_demand.step_ns + on_demand.step_ns / 50, "{outcome:?} {on_demand:?}");
    }
}
