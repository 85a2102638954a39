use super::paper::{Verdict, rows, verdict};
use super::*;

#[test]
fn verdicts_follow_values_and_directions() {
    let paper = [10.0, 20.0, 30.0];
    assert_eq!(verdict(&paper, &[10.5, 19.0, 31.0]), Verdict::Reproduced);
    assert_eq!(verdict(&paper, &[1.0, 2.0, 30.0]), Verdict::DirectionOnly);
    assert_eq!(verdict(&paper, &[10.0, 20.0, 5.0]), Verdict::Contradicted);
    assert_eq!(verdict(&paper, &[5.0, 5.0, 5.0]), Verdict::Contradicted);
    assert_eq!(verdict(&[76.0], &[100.0]), Verdict::Contradicted);
    assert_eq!(verdict(&[95.0], &[]), Verdict::NotTestable);
}

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
#[ignore = "runs the whole study, some minutes"]
fn every_figure_has_a_verdict() {
    let study = study(1, &mut || ());
    let rows = rows(&study);
    assert!(rows.len() > 15);
    for row in rows {
        assert!(row.ours.len() == row.paper.len() || row.verdict == Verdict::NotTestable, "{row:?}");
    }
}

#[test]
fn learned_weights_lose_nothing_where_copies_bind() {
    for gain in adapt::weight_gains(1) {
        assert!(gain.learned.learned >= 0.98 * gain.learned.fixed, "{gain:?}");
    }
}
