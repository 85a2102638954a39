use super::*;
use cenote_policy::watermark::SHIPPED;

/// Checks the documented quality of the shipped weights on held-out loads.
/// `docs/evidence/simulator.md` has the table.
#[test]
fn the_learned_watermark_halves_swaps_without_losing_throughput() {
    let cases = held_out_cases();
    let controllers = [Watermark::DEFAULT, Watermark::Learned(SHIPPED)];
    let rows = compare(&cases, &controllers, &mut || ());
    assert_eq!(rows.len(), 2 * cases.len());
    for row in rows.iter().filter(|row| row.watermark == "learned") {
        assert!(row.swapped_ratio <= 0.6 && row.throughput_ratio >= 0.99, "{row:?}");
    }
    let overall = overall(&rows, true);
    let learned = overall.iter().find(|one| one.watermark == "learned").expect("it was compared");
    assert!(learned.swapped_ratio <= 0.5, "{learned:?}");
}

#[test]
fn training_and_held_out_loads_differ() {
    let (training, held_out) = (training_cases(), held_out_cases());
    assert!(training.iter().all(|case| !case.held_out) && held_out.iter().all(|case| case.held_out));
    for case in &held_out {
        let same = |other: &Case| other.workload.requests() == case.workload.requests();
        assert!(!training.iter().any(same), "{} was trained on", case.name);
    }
}

#[test]
fn training_is_deterministic_and_finds_weights() {
    let cases = [Case::cpen("opt-1.3b", 200, 0.5, 111, false)];
    let mut told = Vec::new();
    let one = train(&cases, 1, 7, &mut |generation, reward| told.push((generation, reward)));
    let other = train(&cases, 1, 7, &mut |_, _| ());
    assert_eq!((one.weights, one.reward), (other.weights, other.reward));
    assert!(told == [(1, one.reward)] && one.reward > -1.0, "{told:?}");
    let source = weights_source(&one, 1, 7);
    let listed = source.split_once("= [").and_then(|(_, rest)| rest.split_once(']')).expect("the weights").0;
    let read: Vec<i32> = listed.split(", ").map(|weight| weight.parse().expect("a weight")).collect();
    assert_eq!(read, one.weights);
}

/// The shipped file, as the command would write it with the shipped weights.
const SHIPPED_FILE: &str = include_str!("../../../policy/src/watermark/weights.rs");

/// Generations and seed of the shipped training: the command's defaults.
const SHIPPED_TRAINING: (usize, u64) = (20, 3);

/// Checks all but the search, which takes a minute.
#[test]
fn the_shipped_weights_are_in_the_file_that_the_command_writes() {
    let (generations, seed) = SHIPPED_TRAINING;
    let shipped = Training { weights: SHIPPED, reward: reward_of(&training_cases(), &SHIPPED) };
    assert_eq!(SHIPPED_FILE, weights_source(&shipped, generations, seed));
}

#[test]
#[ignore = "trains for a minute in a release build"]
fn the_command_finds_the_shipped_weights() {
    let (generations, seed) = SHIPPED_TRAINING;
    let training = train(&training_cases(), generations, seed, &mut |_, _| ());
    assert_eq!(SHIPPED_FILE, weights_source(&training, generations, seed));
}

#[test]
fn figures_have_the_points_of_the_paper() {
    assert_eq!(FACTORS.count(), 61);
    let thresholds: Vec<u32> = thresholds().collect();
    assert_eq!((thresholds[0], thresholds.len(), thresholds[thresholds.len() - 1]), (1_800, 30, 7_500));
    let curve = |blocks: &[f64]| {
        let point = |(at, &swapped_blocks): (usize, &f64)| Point {
            x: at as f64,
            swapped_blocks,
            swaps: 0.0,
            throughput: 1.0,
            throughput_deviation: 0.0,
        };
        Curve { model: "m".to_owned(), points: blocks.iter().enumerate().map(point).collect() }
    };
    assert_eq!((curve(&[8.0, 4.0, 2.0]).change().0, curve(&[8.0, 4.0, 2.0]).rises()), (-0.75, 0.0));
    assert_eq!(curve(&[1.0, 2.0, 1.0]).rises(), 0.5);
}
