//! What was measured of codecs on the layers of a model: a small file that `--codec auto` goes by.
//!
//! It is JSON, so that people can read it. It counts for one model and, where a codec goes by a profile, for one profile, both
//! told by fingerprint. What is in it is input: numbers are checked, and a table cannot make a choice that its own limits
//! forbid.

use super::{Limits, Verified};
use cenote_codec::{CodecSpec, LayerSpecs, Profile, SpecError};
use cenote_policy::codec::{Measured, Weights, choose_layers};
use serde::{Deserialize, Serialize};

const FORMAT: &str = "cenote-codec-table";
const VERSION: u32 = 1;
/// Pressures are told apart in so many steps, so that every choice there can be was evaluated.
pub const PRESSURE_STEPS: u32 = 10;

/// One codec on one layer, the others as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The codec, as flags call it.
    pub codec: String,
    /// 16 bits over what a value takes, headers and all.
    pub ratio: f64,
    /// Divergence from the model without codecs, nats a token.
    pub kl: f64,
    /// Encoding and decoding, in copies there and back.
    pub cost: f64,
}

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodecTable {
    format: String,
    version: u32,
    /// Fingerprint of the model, hex.
    model: String,
    /// Fingerprint of the profile, hex, if there was one.
    profile: Option<String>,
    /// Windows of the text, tokens of one, and of a block.
    pub windows: usize,
    /// See `windows`.
    pub context: usize,
    /// See `windows`.
    pub block_tokens: usize,
    /// What all layers together may do.
    pub limits: Limits,
    /// What single layers may add up to, so that all together stay within the limits.
    pub kl_budget: f64,
    /// By layer, what was measured of each codec; `raw` is not among them, and may always be taken.
    pub layers: Vec<Vec<Row>>,
    /// What is chosen as pressure grows, and what it was measured to do.
    pub choices: Vec<Verified>,
}

/// Why bytes are no table, or none for this model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// It is no such file.
    #[error("it is no codec table: {0}")]
    File(String),
    /// It is one, and says what cannot be.
    #[error("{0}")]
    Content(String),
    /// Its codecs were measured on another model.
    #[error("it is the codec table of another model")]
    OtherModel,
    /// Its codecs were measured with another profile.
    #[error("its codecs were measured with another profile")]
    OtherProfile,
    /// More harm is asked for than it answers for.
    #[error("it was measured for a divergence of {measured} at most, and {asked} is asked for")]
    Laxer {
        /// What it answers for.
        measured: String,
        /// What was asked.
        asked: String,
    },
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl CodecTable {
    /// A table in which nothing is chosen yet.
    pub(super) fn new(
        model: &[u8; 32],
        profile: Option<&Profile>,
        [windows, context, block_tokens]: [usize; 3],
        limits: Limits,
        layers: Vec<Vec<Row>>,
    ) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            model: hex(model),
            profile: profile.map(|profile| hex(&profile.fingerprint())),
            windows,
            context,
            block_tokens,
            limits,
            kl_budget: limits.kl_max,
            layers,
            choices: Vec::new(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It is no table, or what it says cannot be.
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
            return wrong("its limits are no positive numbers");
        }
        if !(0.0..=table.limits.kl_max).contains(&table.kl_budget) {
            return wrong("its budget is above its limit");
        }
        Ok(table)
    }

    /// The file.
    ///
    /// # Panics
    /// Never: texts and numbers can always be written.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and finite numbers") + "\n"
    }

    /// Whether it counts for a model with so many layers, whose fingerprint may not be known yet, and for a profile; without one,
    /// codecs that need it say so themselves.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self, model: Option<&[u8; 32]>, layers: usize, profile: Option<&Profile>) -> Result<(), TableError> {
        let others = [model, profile.map(|profile| &profile.model)];
        if self.layers.len() != layers || others.into_iter().flatten().any(|other| hex(other) != self.model) {
            return Err(TableError::OtherModel);
        }
        let (Some(profile), Some(own)) = (profile, &self.profile) else { return Ok(()) };
        if hex(&profile.fingerprint()) == *own { Ok(()) } else { Err(TableError::OtherProfile) }
    }

    /// The codecs of the layers under memory pressure, 0 (hot blocks) to 1 (cold blocks). `kl_max` asks for less harm than the
    /// table's own limit, in the same proportion of single layers to all together.
    ///
    /// # Errors
    /// More harm is asked for than the table answers for.
    pub fn specs(&self, pressure: f64, kl_max: Option<f64>) -> Result<LayerSpecs, TableError> {
        let limit = self.limits.kl_max;
        let asked = kl_max.unwrap_or(limit);
        if !(0.0..=limit).contains(&asked) {
            return Err(TableError::Laxer { measured: limit.to_string(), asked: asked.to_string() });
        }
        Ok(LayerSpecs::of_layers(&self.chosen(pressure, self.kl_budget * (asked / limit))?.0))
    }

    /// The codecs of the layers, and the sum of what they do alone.
    pub(super) fn chosen(&self, pressure: f64, kl_budget: f64) -> Result<(Vec<CodecSpec>, f64), TableError> {
        let (measured, codecs) = (self.measured()?, self.codecs()?);
        let steps = f64::from(PRESSURE_STEPS);
        let weights = Weights::default().under((pressure * steps + 1e-9).floor() / steps);
        let chosen = choose_layers(weights, kl_budget, &measured);
        let each = chosen.iter().enumerate().map(|(layer, at)| match at {
            Some(at) => (codecs[layer][*at].clone(), measured[layer][*at].harm()),
            None => (CodecSpec::Raw, 0.0),
        });
        let (codecs, harms): (Vec<_>, Vec<f64>) = each.unzip();
        Ok((codecs, harms.iter().sum()))
    }

    fn measured(&self) -> Result<Vec<Vec<Measured>>, TableError> {
        let wrong = || TableError::Content("some of its measurements are no numbers".to_owned());
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
    fn a_table_comes_back_and_what_cannot_be_is_refused() {
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
    fn it_counts_for_one_model() {
        assert_eq!(table().check(Some(&[7; 32]), 3, None), Ok(()));
        assert_eq!(table().check(Some(&[8; 32]), 3, None), Err(TableError::OtherModel));
        assert_eq!(table().check(None, 4, None), Err(TableError::OtherModel));
    }
}
