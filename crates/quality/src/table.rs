//! Measurements of codecs on the layers of a model, in a small file for `--codec auto`.
//!
//! The file is JSON, so that it is readable. It applies to one model and, if a codec needs a
//! profile, to one profile, both identified by fingerprint. The file is untrusted input: numbers
//! are checked, and a table cannot make a choice that exceeds its own limits.

use cenote_codec::{CodecSpec, LayerSpecs, Profile, SpecError};
use cenote_policy::codec::{Measured, Weights, choose_layers};
use serde::{Deserialize, Serialize};

const FORMAT: &str = "cenote-codec-table";
const VERSION: u32 = 1;
/// Pressure is rounded down to multiples of 1 / `PRESSURE_STEPS`, so that every possible choice was
/// evaluated.
pub const PRESSURE_STEPS: u32 = 10;

/// Limits on the harm of all layers together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Divergence from the model without codecs, in nats per token.
    pub kl_max: f64,
    /// Rise of perplexity in percent; `None`: no limit.
    pub loss_percent_max: Option<f64>,
}

impl Limits {
    /// A limit on the rise of perplexity, in percent. If the text followed the model's
    /// distribution, the loss would rise by the divergence, so the divergence gets the same limit.
    #[must_use]
    pub fn of_loss(percent: f64) -> Self {
        Self { kl_max: (percent / 100.0).ln_1p(), loss_percent_max: Some(percent) }
    }

    /// Whether both limits are positive numbers.
    #[must_use]
    pub fn are_sound(&self) -> bool {
        let positive = |number: f64| number.is_finite() && number > 0.0;
        positive(self.kl_max) && self.loss_percent_max.is_none_or(positive)
    }
}

/// A choice for all layers, with its measured harm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verified {
    /// The lowest pressure that leads to this choice.
    pub pressure: f64,
    /// The codecs, in the syntax of `--codec`.
    pub codec: String,
    /// Compression ratio: 16 bits over the bits per value.
    pub ratio: f64,
    /// Sum of the divergences of its layers alone, in nats per token.
    pub kl_predicted: f64,
    /// Measured divergence of all layers together, in nats per token.
    pub kl: f64,
    /// Standard error of `kl` over windows.
    pub kl_se: f64,
    /// Rise of perplexity, in percent.
    pub loss_percent: f64,
    /// Standard error of `loss_percent` over windows.
    pub loss_percent_se: f64,
}

/// Measurements of one codec on one layer, with the other layers unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The codec, in the syntax of `--codec`.
    pub codec: String,
    /// Compression ratio: 16 bits over the bits per value, headers included.
    pub ratio: f64,
    /// Divergence from the model without codecs, in nats per token.
    pub kl: f64,
    /// Time of encoding and decoding, in units of copying there and back.
    pub cost: f64,
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodecTable {
    format: String,
    version: u32,
    /// Fingerprint of the model, in hex.
    model: String,
    /// Fingerprint of the profile, in hex, if there was one.
    profile: Option<String>,
    /// Number of windows of the measured text.
    pub windows: usize,
    /// Tokens per window.
    pub context: usize,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Limits for all layers together.
    pub limits: Limits,
    /// Budget for the sum over single layers that keeps all layers together within the limits.
    pub kl_budget: f64,
    /// Rows by layer. `raw` is not among them and is always allowed.
    pub layers: Vec<Vec<Row>>,
    /// Choices by rising pressure, with their measured harm.
    pub choices: Vec<Verified>,
}

/// The reason why a file is not a table, or not one for this model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The file is not a codec table.
    #[error("it is not a codec table: {0}")]
    File(String),
    /// The file is a codec table with invalid content.
    #[error("{0}")]
    Content(String),
    /// The codecs were measured on another model.
    #[error("it is the codec table of another model")]
    OtherModel,
    /// The codecs were measured with another profile.
    #[error("its codecs were measured with another profile")]
    OtherProfile,
    /// The requested limit is above the table's own.
    #[error("it was measured for a divergence of at most {measured}, but {asked} was requested")]
    Laxer {
        /// The table's limit, in nats per token.
        measured: String,
        /// The requested limit, in nats per token.
        asked: String,
    },
}

impl CodecTable {
    /// Creates a table without choices.
    pub fn new(
        model: &[u8; 32],
        profile: Option<&Profile>,
        [windows, context, block_tokens]: [usize; 3],
        limits: Limits,
        layers: Vec<Vec<Row>>,
    ) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            model: hex::encode(model),
            profile: profile.map(|profile| hex::encode(profile.fingerprint())),
            windows,
            context,
            block_tokens,
            limits,
            kl_budget: limits.kl_max,
            layers,
            choices: Vec::new(),
        }
    }

    /// Parses a file.
    ///
    /// # Errors
    /// The file is not a codec table, or its content is invalid.
    pub fn parse(text: &[u8]) -> Result<Self, TableError> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let file = |error: serde_json::Error| TableError::File(error.to_string());
        let head: Head = serde_json::from_slice(text).map_err(file)?;
        if head.format != FORMAT {
            return Err(TableError::File(format!("its format is `{}`", head.format)));
        }
        if head.version != VERSION {
            return Err(TableError::Content(format!("codec tables of version {} are not known", head.version)));
        }
        let table: Self = serde_json::from_slice(text).map_err(file)?;
        table.measured()?;
        table.codecs()?;
        let wrong = |fact: &str| Err(TableError::Content(fact.to_owned()));
        if table.layers.is_empty() || table.layers.len() > usize::from(u16::MAX) {
            return wrong("it has no layers, or too many");
        }
        if !table.limits.are_sound() {
            return wrong("its limits are not positive numbers");
        }
        if !(0.0..=table.limits.kl_max).contains(&table.kl_budget) {
            return wrong("its budget is above its limit");
        }
        Ok(table)
    }

    /// The content of the file, as JSON.
    ///
    /// # Panics
    /// Never: strings and numbers always serialize.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and finite numbers") + "\n"
    }

    /// Checks that the table applies to a model with `layers` layers and to `profile`. `model` is
    /// `None` if its fingerprint is not known yet. Without a profile, codecs that need one report
    /// that themselves.
    ///
    /// # Errors
    /// The table is for another model or another profile.
    pub fn check(&self, model: Option<&[u8; 32]>, layers: usize, profile: Option<&Profile>) -> Result<(), TableError> {
        let others = [model, profile.map(|profile| &profile.model)];
        if self.layers.len() != layers || others.into_iter().flatten().any(|other| hex::encode(other) != self.model) {
            return Err(TableError::OtherModel);
        }
        let (Some(profile), Some(own)) = (profile, &self.profile) else { return Ok(()) };
        if hex::encode(profile.fingerprint()) == *own { Ok(()) } else { Err(TableError::OtherProfile) }
    }

    /// The codecs of the layers at a memory pressure from 0 (hot blocks) to 1 (cold blocks).
    /// `kl_max` sets a lower limit than the table's; the budget shrinks in proportion.
    ///
    /// # Errors
    /// `kl_max` is above the table's limit.
    pub fn specs(&self, pressure: f64, kl_max: Option<f64>) -> Result<LayerSpecs, TableError> {
        let limit = self.limits.kl_max;
        let asked = kl_max.unwrap_or(limit);
        if !(0.0..=limit).contains(&asked) {
            return Err(TableError::Laxer { measured: limit.to_string(), asked: asked.to_string() });
        }
        Ok(LayerSpecs::of_layers(&self.chosen(pressure, self.kl_budget * (asked / limit))?.0))
    }

    /// The codecs of the layers, and the sum of their divergences alone.
    pub fn chosen(&self, pressure: f64, kl_budget: f64) -> Result<(Vec<CodecSpec>, f64), TableError> {
        let steps = f64::from(PRESSURE_STEPS);
        self.chosen_by(Weights::default().under((pressure * steps + 1e-9).floor() / steps), kl_budget)
    }

    /// The codecs of all layers by these weights, and the sum of their harms alone, within a budget.
    ///
    /// # Errors
    /// A measurement or a codec's name is invalid.
    pub fn chosen_by(&self, weights: Weights, kl_budget: f64) -> Result<(Vec<CodecSpec>, f64), TableError> {
        let (measured, codecs) = (self.measured()?, self.codecs()?);
        let chosen = choose_layers(weights, kl_budget, &measured);
        let each = chosen.iter().enumerate().map(|(layer, at)| match at {
            Some(at) => (codecs[layer][*at].clone(), measured[layer][*at].harm()),
            None => (CodecSpec::Raw, 0.0),
        });
        let (codecs, harms): (Vec<_>, Vec<f64>) = each.unzip();
        Ok((codecs, harms.iter().sum()))
    }

    fn measured(&self) -> Result<Vec<Vec<Measured>>, TableError> {
        let wrong = || TableError::Content("some of its measurements are not valid numbers".to_owned());
        let one = |row: &Row| Measured::new(row.ratio, row.kl, row.cost).ok_or_else(wrong);
        self.layers.iter().map(|rows| rows.iter().map(one).collect()).collect()
    }

    fn codecs(&self) -> Result<Vec<Vec<CodecSpec>>, TableError> {
        let one = |row: &Row| row.codec.parse().map_err(|error: SpecError| TableError::Content(error.to_string()));
        self.layers.iter().map(|rows| rows.iter().map(one).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(codec: &str, ratio: f64, kl: f64, cost: f64) -> Row {
        Row { codec: codec.to_owned(), ratio, kl, cost }
    }

    fn table() -> CodecTable {
        let rows = |more: f64| {
            vec![
                row("int8", 2.0, 1e-5, 5.0),
                row("qpack:0.5", 4.4, 1e-4 * more, 20.0),
                row("qpackz:0.5", 5.0, 1e-4 * more, 250.0),
            ]
        };
        let limits = Limits { kl_max: 4e-4, loss_percent_max: None };
        CodecTable::new(&[7; 32], None, [4, 64, 16], limits, vec![rows(1.0), rows(1.0), rows(3.0)])
    }

    fn specs(table: &CodecTable, pressure: f64, kl_max: Option<f64>) -> String {
        table.specs(pressure, kl_max).expect("specs").to_string()
    }

    #[test]
    fn pressure_makes_layers_smaller_and_the_limit_holds() {
        let table = table();
        assert_eq!(specs(&table, 0.0, None), "0-1=qpack:0.5,2=int8");
        assert_eq!(specs(&table, 1.0, None), "0-1=qpackz:0.5,2=int8");
        assert_eq!(specs(&table, 1.0, Some(1e-4)), "int8");
        assert_eq!(specs(&table, 1.0, Some(0.0)), "raw");
        assert!(matches!(table.specs(0.0, Some(5e-4)), Err(TableError::Laxer { .. })));
        assert!(table.specs(0.0, Some(f64::NAN)).is_err());
    }

    #[test]
    fn a_table_round_trips_and_invalid_content_is_refused() {
        let text = table().to_json();
        assert_eq!(CodecTable::parse(text.as_bytes()), Ok(table()));
        for (from, to) in [
            ("\"version\": 1", "\"version\": 2"),
            ("cenote-codec-table", "cenote-profile"),
            ("\"ratio\": 2.0", "\"ratio\": 0.0"),
            ("\"ratio\": 2.0", "\"ratio\": 1e999"),
            ("\"kl\": 0.00001", "\"kl\": -1"),
            ("\"codec\": \"int8\"", "\"codec\": \"int9\""),
            ("\"kl_budget\": 0.0004", "\"kl_budget\": 0.0005"),
            ("\"windows\"", "\"widows\""),
        ] {
            let text = text.replace("1e-5", "0.00001").replacen(from, to, 1);
            assert!(CodecTable::parse(text.as_bytes()).is_err(), "{to}: {text}");
        }
        assert!(CodecTable::parse(b"").is_err() && CodecTable::parse(b"[]").is_err());
    }

    #[test]
    fn a_table_applies_to_one_model() {
        assert_eq!(table().check(Some(&[7; 32]), 3, None), Ok(()));
        assert_eq!(table().check(Some(&[8; 32]), 3, None), Err(TableError::OtherModel));
        assert_eq!(table().check(None, 4, None), Err(TableError::OtherModel));
    }
}
