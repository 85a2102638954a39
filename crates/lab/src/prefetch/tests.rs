use super::*;

#[test]
fn a_token_predictor_adds_nothing_to_a_dense_schedule() {
    let setup = scale::dense(cenote_serving_sim::tiers::dense::Arrival::Staged(3));
    for depth in DEPTHS {
        let (named, useful) = scale::token_predictor(&setup, depth);
        assert_eq!((named, useful), (u64::from(depth * setup.requests * setup.layers), 0));
    }
}

#[test]
fn the_paper_s_chatbot_fits_into_its_own_l1() {
    assert!(scale::chatbot_kv_bytes() < 8 * 8_000_000_000, "{} bytes", scale::chatbot_kv_bytes());
}

#[test]
fn learned_weights_lose_nothing_where_copies_bind() {
    for gain in adapt::weight_gains(1) {
        assert!(gain.learned.learned >= 0.98 * gain.learned.fixed, "{gain:?}");
    }
}

/// The schedule hides copies behind the computation, but the link carries less than a GPU's memory.
#[test]
fn kv_beyond_l1_first_costs_what_the_link_does_not_hide() {
    for rows in far_first().chunks(NEAR.len() + 1) {
        let speed: Vec<f64> = rows.iter().map(|row| row.outcome.tokens_per_s).collect();
        assert!(speed.is_sorted() && speed[0] < 0.7 * speed[NEAR.len()], "{speed:?}");
        assert_eq!(rows[NEAR.len()].outcome.stall_ns, 0);
    }
}
