//! Which codec each layer is stored with: what [`cenote_policy::codec`] decides, measured.
//!
//! Each layer goes through each candidate alone, all else as it is. What that does to the model's output, what bits it takes
//! and how long it takes make up a [`CodecTable`]. Harms of single layers nearly add up, but only nearly; so what is chosen is
//! evaluated with all layers together, and where a limit is broken the layers get less to spend and are chosen again, until
//! every choice that any memory pressure leads to holds the limits on this text.

mod cost;
mod table;

pub use table::{CodecTable, PRESSURE_STEPS, Row, TableError};

use crate::evaluate::{Quality, evaluate};
use crate::{CodecSubject, StudyError, Subject};
use cenote_base::TokenId;
use cenote_codec::{CodecSpec, LayerSpecs, PageKind, Profile};
use cenote_engine::LoadedModel;
use cost::Pages;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Subjects that are computed at once: each has an arena of its own.
const AT_ONCE: usize = 8;
/// Where a limit is broken, layers get at most so much of what they had.
const TIGHTER: f64 = 0.95;
/// And at least so much.
const LEAST: f64 = 0.1;

/// What all layers together may do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Divergence from the model without codecs, nats a token.
    pub kl_max: f64,
    /// Rise of perplexity in percent, if that is limited as well.
    pub loss_percent_max: Option<f64>,
}

impl Limits {
    /// A limit of perplexity. Were the model right about the text, its loss would rise by the divergence, so that is
    /// limited to as much.
    #[must_use]
    pub fn of_loss(percent: f64) -> Self {
        Self { kl_max: (percent / 100.0).ln_1p(), loss_percent_max: Some(percent) }
    }

    pub(crate) fn are_sound(&self) -> bool {
        let positive = |number: f64| number.is_finite() && number > 0.0;
        positive(self.kl_max) && self.loss_percent_max.is_none_or(positive)
    }

    /// The most of any limit that this takes; above 1 one is broken.
    fn use_of(&self, quality: &Quality) -> f64 {
        let loss = self.loss_percent_max.map_or(0.0, |most| quality.loss_percent / most);
        let both = [quality.kl / self.kl_max, loss];
        if both.iter().all(|share| share.is_finite()) { both[0].max(both[1]) } else { f64::INFINITY }
    }
}

/// A choice for all layers, and what it was measured to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verified {
    /// The least pressure that leads to it.
    pub pressure: f64,
    /// The codecs, as `--codec` takes them.
    pub codec: String,
    /// 16 bits over what a value takes.
    pub ratio: f64,
    /// The sum of what its layers do alone, nats a token.
    pub kl_predicted: f64,
    /// What all of them do together.
    pub kl: f64,
    /// Its standard error over windows.
    pub kl_se: f64,
    /// Rise of perplexity, percent.
    pub loss_percent: f64,
    /// Its standard error over windows.
    pub loss_percent_se: f64,
}

/// Codecs by what flags call them; `raw` is always among them.
struct Known(BTreeMap<String, CodecSubject>);

impl Known {
    fn new(candidates: &[CodecSpec], profile: Option<&Profile>) -> Result<Self, StudyError> {
        let subject = |spec: &CodecSpec| {
            let codec = spec.build(profile).map_err(|error| StudyError::Model(error.to_string()))?;
            Ok((spec.to_string(), CodecSubject::new(spec.to_string(), codec)))
        };
        Ok(Self(candidates.iter().chain([&CodecSpec::Raw]).map(subject).collect::<Result<_, StudyError>>()?))
    }

    fn get(&self, spec: &CodecSpec) -> &CodecSubject {
        &self.0[&spec.to_string()]
    }
}

/// One layer through a codec, the others as they are.
struct Alone<'a> {
    layer: u16,
    through: &'a CodecSubject,
}

impl Subject for Alone<'_> {
    fn name(&self) -> String {
        format!("layer {} as {}", self.layer, self.through.name())
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        if kind.layer == self.layer { self.through.round_trip(kind, page) } else { Ok(0) }
    }
}

/// Each layer through its own codec. A layer that stays as it is takes what its frames take, and is not changed.
struct Together<'a> {
    name: String,
    layers: Vec<(&'a CodecSubject, bool)>,
}

impl<'a> Together<'a> {
    fn new(name: String, codecs: &[CodecSpec], known: &'a Known) -> Self {
        Self { name, layers: codecs.iter().map(|spec| (known.get(spec), *spec == CodecSpec::Raw)).collect() }
    }
}

impl Subject for Together<'_> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        match self.layers[usize::from(kind.layer)] {
            (through, false) => through.round_trip(kind, page),
            (through, true) => through.round_trip(kind, &mut page.to_vec()),
        }
    }
}

/// A text and how it goes through a model.
pub struct Trial<'a> {
    /// The model.
    pub model: &'a LoadedModel,
    /// Its profile, if codecs go by one.
    pub profile: Option<&'a Profile>,
    /// Windows of the text, of equal length.
    pub windows: &'a [Vec<TokenId>],
    /// Tokens of a block.
    pub block_tokens: usize,
}

impl Trial<'_> {
    fn evaluate(&self, subjects: &[&dyn Subject]) -> Result<Vec<Quality>, StudyError> {
        Ok(evaluate(self.model, self.windows, self.block_tokens, subjects, &mut |_| {})?.codecs)
    }

    /// Measures each layer with each candidate, and makes choices that hold the limits. `progress` hears of each measurement.
    ///
    /// # Errors
    /// A codec cannot be had or does not give pages back; windows do not fit blocks or the model; limits are no limits.
    pub fn choose(
        &self,
        candidates: &[CodecSpec],
        limits: Limits,
        progress: &mut dyn FnMut(usize),
    ) -> Result<CodecTable, StudyError> {
        if !limits.are_sound() {
            return Err(StudyError::Model("limits are positive numbers".to_owned()));
        }
        crate::evaluate::check_windows(self.model, self.windows, self.block_tokens)?;
        let known = Known::new(candidates, self.profile)?;
        let layers = self.measure(candidates, &known, progress)?;
        let sizes = [self.windows.len(), self.windows[0].len(), self.block_tokens];
        let mut table = CodecTable::new(&self.model.fingerprint(), self.profile, sizes, limits, layers);
        self.verify(&mut table, &known)?;
        Ok(table)
    }

    fn measure(
        &self,
        candidates: &[CodecSpec],
        known: &Known,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Vec<Vec<Row>>, StudyError> {
        let num_layers = self.model.layout().num_layers;
        let pages = Pages::compute(self.model, &self.windows[0], self.block_tokens);
        let candidates: Vec<&CodecSubject> =
            candidates.iter().filter(|spec| **spec != CodecSpec::Raw).map(|spec| known.get(spec)).collect();
        let mut layers = Vec::new();
        for layer in 0..num_layers {
            let mut rows = Vec::new();
            for some in candidates.chunks(AT_ONCE) {
                let alone: Vec<Alone<'_>> = some.iter().map(|through| Alone { layer: layer as u16, through }).collect();
                let subjects: Vec<&dyn Subject> = alone.iter().map(|one| one as &dyn Subject).collect();
                for (through, quality) in some.iter().zip(self.evaluate(&subjects)?) {
                    if !quality.kl.is_finite() {
                        return Err(StudyError::Model(format!("{}: what comes of it are no numbers", quality.codec)));
                    }
                    rows.push(Row {
                        codec: through.name(),
                        // Bits are over the values of all layers, which have equally many.
                        ratio: quality.ratio / num_layers as f64,
                        // Rounding of logits may leave less than nothing.
                        kl: quality.kl.max(0.0),
                        cost: pages.cost(layer, &through.codec),
                    });
                }
                progress(some.len());
            }
            layers.push(rows);
        }
        Ok(layers)
    }

    /// Evaluates what is chosen, and takes from the budget until all of it holds.
    fn verify(&self, table: &mut CodecTable, codecs: &Known) -> Result<(), StudyError> {
        hold_limits(table, &mut |choices| {
            let mut qualities = Vec::with_capacity(choices.len());
            for some in choices.chunks(AT_ONCE) {
                let together: Vec<Together<'_>> =
                    some.iter().map(|choice| Together::new(choice.name.clone(), &choice.specs, codecs)).collect();
                let subjects: Vec<&dyn Subject> = together.iter().map(|one| one as &dyn Subject).collect();
                qualities.extend(self.evaluate(&subjects)?);
            }
            Ok(qualities)
        })
    }
}

/// What choices do with all layers together, in their order.
type MeasureTogether<'a> = dyn FnMut(&[&Choice]) -> Result<Vec<Quality>, StudyError> + 'a;

/// Measures what is chosen under every pressure, and takes from the budget until all of it holds the limits. No choice is
/// measured twice.
fn hold_limits(table: &mut CodecTable, measure: &mut MeasureTogether<'_>) -> Result<(), StudyError> {
    let unsound = |error: TableError| StudyError::Model(error.to_string());
    let mut seen: BTreeMap<String, Quality> = BTreeMap::new();
    loop {
        let mut choices: Vec<Choice> = Vec::new();
        for step in 0..=PRESSURE_STEPS {
            let pressure = f64::from(step) / f64::from(PRESSURE_STEPS);
            let (specs, kl_predicted) = table.chosen(pressure, table.kl_budget).map_err(unsound)?;
            let name = LayerSpecs::of_layers(&specs).to_string();
            if choices.last().is_none_or(|last| last.name != name) {
                choices.push(Choice { pressure, name, specs, kl_predicted });
            }
        }
        let unseen: Vec<&Choice> = choices.iter().filter(|choice| !seen.contains_key(&choice.name)).collect();
        let names = unseen.iter().map(|choice| choice.name.clone());
        seen.extend(names.zip(measure(&unseen)?));
        let use_of = |choice: &Choice| table.limits.use_of(&seen[&choice.name]);
        let worst = choices.iter().map(use_of).fold(0.0, f64::max);
        // Layers that all stay as they are break nothing, so this ends.
        if worst <= 1.0 {
            table.choices = choices.into_iter().map(|choice| choice.verified(&seen)).collect();
            return Ok(());
        }
        // What does no harm alone no budget forbids. If it does together, it is no candidate.
        let harmless = |choice: &&Choice| choice.kl_predicted == 0.0 && use_of(choice) > 1.0;
        if let Some(Choice { specs, .. }) = choices.iter().find(harmless) {
            for (rows, spec) in table.layers.iter_mut().zip(specs) {
                rows.retain(|row| row.codec != spec.to_string());
            }
            continue;
        }
        table.kl_budget *= (1.0 / worst).clamp(LEAST, TIGHTER);
    }
}

/// What is chosen from a pressure on.
struct Choice {
    pressure: f64,
    name: String,
    specs: Vec<CodecSpec>,
    kl_predicted: f64,
}

impl Choice {
    fn verified(self, seen: &BTreeMap<String, Quality>) -> Verified {
        let Quality { ratio, kl, kl_se, loss_percent, loss_percent_se, .. } = seen[&self.name];
        let (pressure, codec, kl_predicted) = (self.pressure, self.name, self.kl_predicted);
        Verified { pressure, codec, ratio, kl_predicted, kl, kl_se, loss_percent, loss_percent_se }
    }
}

#[cfg(test)]
mod tests;
