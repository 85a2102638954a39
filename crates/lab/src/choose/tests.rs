//! The tightening loop against made-up measurements, in which layers together do more or less harm
//! than the sum of their harms alone.

use super::*;
use proptest::prelude::*;

const CODECS: [&str; 4] = ["int8", "qpack:0.5", "qpack:0.9", "qpackz:0.9"];

fn row(codec: &str, ratio: f64, kl: f64, cost: f64) -> Row {
    Row { codec: codec.to_owned(), ratio, kl, cost }
}

fn table(limits: Limits, layers: Vec<Vec<Row>>) -> CodecTable {
    CodecTable::new(&[7; 32], None, [4, 64, 16], limits, layers)
}

/// A quality with meaningful harm and loss only.
fn quality(name: &str, kl: f64, loss_percent: f64) -> Quality {
    Quality {
        codec: name.to_owned(),
        bits: 8.0,
        ratio: 2.0,
        k_mse: 0.0,
        v_mse: 0.0,
        harm: Harm {
            perplexity: 1.0,
            perplexity_se: 0.0,
            loss_percent,
            loss_percent_se: 0.0,
            kl,
            kl_se: 0.0,
            greedy_agreement: 1.0,
        },
    }
}

/// Layers with random rows; some rows do no harm alone.
fn any_layers() -> impl Strategy<Value = Vec<Vec<Row>>> {
    let kl = prop_oneof![1 => Just(0.0), 6 => (-7.0..0.0_f64).prop_map(|exponent| 10_f64.powf(exponent))];
    let one = (1.0..9.0_f64, kl, 0.0..200.0_f64);
    let layer = prop::array::uniform4(one)
        .prop_map(|all| CODECS.iter().zip(all).map(|(codec, (ratio, kl, cost))| row(codec, ratio, kl, cost)).collect());
    prop::collection::vec(layer, 1..6)
}

/// Divergence of one row alone, by layer and codec.
fn alone(layers: &[Vec<Row>], layer: usize, spec: &CodecSpec) -> f64 {
    let row = layers[layer].iter().find(|row| row.codec == spec.to_string());
    row.map_or(0.0, |row| row.kl)
}

proptest! {
    /// The final choices hold all limits, however far the sum over single layers is off. No choice
    /// is measured twice.
    #[test]
    fn limits_hold_together_for_any_harm_of_single_layers(
        layers in any_layers(),
        factor in prop_oneof![Just(1.0), 0.1..1.0, 1.0..100.0, Just(1e12)],
        unseen_harm in prop_oneof![Just(0.0), 0.0..0.01],
        percent in prop_oneof![Just(None), (0.01..5.0).prop_map(Some)],
    ) {
        let limits = percent.map_or(Limits { kl_max: 5e-3, loss_percent_max: None }, Limits::of_loss);
        let mut table = table(limits, layers.clone());
        let mut measured = Vec::new();
        let result = hold_limits(&mut table, &mut |choices| {
            let of = |choice: &&Choice| {
                measured.push(choice.name.clone());
                let sum: f64 = choice.specs.iter().enumerate().map(|(layer, spec)| alone(&layers, layer, spec)).sum();
                assert!((sum - choice.kl_predicted).abs() <= 1e-12 * sum.max(1.0), "the sum is what is predicted");
                // Harm that no single layer shows grows with the number of encoded layers.
                let encoded = choice.specs.iter().filter(|spec| **spec != CodecSpec::Raw).count() as f64;
                let kl = factor * sum + unseen_harm * encoded;
                quality(&choice.name, kl, 120.0 * kl)
            };
            Ok(choices.iter().map(of).collect())
        });
        prop_assert!(result.is_ok());
        prop_assert!(!table.choices.is_empty() && table.choices[0].pressure == 0.0);
        for choice in &table.choices {
            prop_assert!(choice.kl <= limits.kl_max && limits.loss_percent_max.is_none_or(|most| choice.loss_percent <= most));
        }
        let mut once = measured.clone();
        once.sort();
        once.dedup();
        prop_assert_eq!(once.len(), measured.len(), "{:?}", measured);
        // `--codec auto` takes the choices that were measured last.
        for choice in &table.choices {
            prop_assert_eq!(table.specs(choice.pressure, None).expect("a choice").to_string(), choice.codec.clone());
        }
        // If the first choices hold the limits, nothing is removed.
        if factor <= 1.0 && unseen_harm == 0.0 && percent.is_none() {
            prop_assert_eq!(table.kl_budget, limits.kl_max);
            prop_assert_eq!(&table.layers, &layers);
        }
    }
}

/// Layers do twice as much harm together as alone: the budget shrinks until the second-best codec
/// holds.
#[test]
fn the_budget_shrinks_if_the_sum_understates_the_harm() {
    let limits = Limits { kl_max: 4e-3, loss_percent_max: None };
    let layer =
        || vec![row("int8", 2.0, 1e-4, 1.0), row("qpack:0.5", 4.0, 9e-4, 1.0), row("qpack:0.9", 6.0, 1.9e-3, 1.0)];
    let mut table = table(limits, vec![layer(), layer()]);
    let (mut rounds, layers) = (0, table.layers.clone());
    let measure = &mut |choices: &[&Choice]| {
        rounds += 1;
        let of = |choice: &&Choice| {
            let sum: f64 = choice.specs.iter().enumerate().map(|(layer, spec)| alone(&layers, layer, spec)).sum();
            quality(&choice.name, 2.0 * sum, 0.0)
        };
        Ok(choices.iter().map(of).collect())
    };
    assert!(hold_limits(&mut table, measure).is_ok());
    assert!(rounds >= 2 && table.kl_budget < limits.kl_max);
    let last = table.choices.last().expect("a choice");
    assert_eq!((last.codec.as_str(), last.kl_predicted, last.kl), ("qpack:0.5", 1.8e-3, 3.6e-3));
}

/// If no candidate holds the limits, alone or together, all layers stay raw.
#[test]
fn all_layers_stay_raw_if_no_candidate_holds_the_limits() {
    let limits = Limits { kl_max: 1e-3, loss_percent_max: Some(0.5) };
    let measure = |kl: f64| {
        move |choices: &[&Choice]| {
            let of = |choice: &&Choice| {
                let is_raw = choice.specs.iter().all(|spec| *spec == CodecSpec::Raw);
                if is_raw { quality(&choice.name, 0.0, 0.0) } else { quality(&choice.name, kl, f64::NAN) }
            };
            Ok(choices.iter().map(of).collect())
        }
    };
    for (alone, together) in [(2e-3, 2e-3), (1e-5, 1.0), (0.0, 1.0), (0.0, f64::NAN), (1e-300, f64::INFINITY)] {
        let layer = || vec![row("int8", 2.0, alone, 1.0), row("qpack:0.5", 4.0, alone, 1.0)];
        let mut table = table(limits, vec![layer(), layer()]);
        assert!(hold_limits(&mut table, &mut measure(together)).is_ok());
        let codecs: Vec<&str> = table.choices.iter().map(|choice| choice.codec.as_str()).collect();
        assert_eq!(codecs, ["raw"], "{alone} {together}");
    }
}

#[test]
fn a_failed_measurement_is_an_error() {
    let limits = Limits { kl_max: 1e-3, loss_percent_max: None };
    let mut table = table(limits, vec![vec![row("int8", 2.0, 1e-5, 1.0)]]);
    let failed = hold_limits(&mut table, &mut |_| Err(StudyError::Model("no memory".to_owned())));
    assert!(failed.is_err() && table.choices.is_empty());
}
