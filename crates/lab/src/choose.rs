//! Chooses a codec for each layer: measurements for the decision of [`cenote_policy::codec`].
//!
//! Each candidate is applied to each layer alone, with all other layers unchanged. The harm to the
//! model's output, the bits and the time make up a [`CodecTable`]. Harms of single layers add up
//! only approximately, so the choice is evaluated with all layers together. If it exceeds a limit,
//! the budget of the layers shrinks and they are chosen again. At the end, the choices under all
//! memory pressures hold the limits on this text.

mod cost;

use cenote_base::{Clock, TokenId};
use cenote_codec::{CodecSpec, LayerSpecs, PageKind, Profile};
use cenote_engine::LoadedModel;
use cenote_quality::evaluate::{Harm, Quality, evaluate};
use cenote_quality::table::{CodecTable, Limits, PRESSURE_STEPS, Row, TableError, Verified};
use cenote_quality::{CodecSubject, StudyError, Subject};
use cost::Pages;
use std::collections::BTreeMap;

/// Subjects evaluated at once: each has its own arena.
const AT_ONCE: usize = 8;
/// Largest factor on the budget after a limit is exceeded.
const TIGHTER: f64 = 0.95;
/// Smallest factor on the budget after a limit is exceeded.
const LEAST: f64 = 0.1;

/// The largest used share of any limit; above 1 a limit is exceeded.
fn use_of(limits: &Limits, quality: &Quality) -> f64 {
    let loss = limits.loss_percent_max.map_or(0.0, |most| quality.harm.loss_percent / most);
    let both = [quality.harm.kl / limits.kl_max, loss];
    if both.iter().all(|share| share.is_finite()) { both[0].max(both[1]) } else { f64::INFINITY }
}

/// Codecs by their `--codec` names; `raw` is always among them.
struct Known(BTreeMap<String, CodecSubject>);

impl Known {
    fn new(candidates: &[CodecSpec], profile: Option<&Profile>) -> Result<Self, StudyError> {
        let subject = |spec: &CodecSpec| {
            let codec = spec.build(profile).map_err(|error| StudyError::Model(error.to_string()))?;
            if codec.as_group().is_some() {
                let fact = format!("`{spec}` encodes several layers together, so no layer can choose it alone");
                return Err(StudyError::Model(fact));
            }
            Ok((spec.to_string(), CodecSubject::new(spec.to_string(), codec)))
        };
        Ok(Self(candidates.iter().chain([&CodecSpec::Raw]).map(subject).collect::<Result<_, StudyError>>()?))
    }

    fn get(&self, spec: &CodecSpec) -> &CodecSubject {
        &self.0[&spec.to_string()]
    }
}

/// Applies a codec to one layer and leaves the others unchanged.
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

/// Applies a codec to each layer. A raw layer counts the bits of its frames but stays unchanged.
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

/// A model, a text, and the settings of an evaluation.
pub struct Trial<'a> {
    /// The model.
    pub model: &'a LoadedModel,
    /// The model's profile, for codecs that need one.
    pub profile: Option<&'a Profile>,
    /// Windows of the text, of equal length.
    pub windows: &'a [Vec<TokenId>],
    /// Tokens per block.
    pub block_tokens: usize,
    /// Times encoding and decoding.
    pub clock: Clock,
}

impl Trial<'_> {
    fn evaluate(&self, subjects: &[&dyn Subject]) -> Result<Vec<Quality>, StudyError> {
        Ok(evaluate(self.model, self.windows, self.block_tokens, subjects, &mut |_| {})?.codecs)
    }

    /// Measures each layer with each candidate and makes choices that hold the limits. `progress`
    /// receives the number of finished measurements of one layer.
    ///
    /// # Errors
    /// A codec cannot be built or decoded, the windows do not fit the blocks or the model, or a
    /// limit is not positive.
    pub fn choose(
        &self,
        candidates: &[CodecSpec],
        limits: Limits,
        progress: &mut dyn FnMut(usize),
    ) -> Result<CodecTable, StudyError> {
        if !limits.are_sound() {
            return Err(StudyError::Model("limits must be positive numbers".to_owned()));
        }
        cenote_quality::evaluate::check_windows(self.model, self.windows, self.block_tokens)?;
        if self.windows.len() < 2 {
            return Err(StudyError::Text("one window tells no standard error; a choice needs two or more".to_owned()));
        }
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
                    if !quality.harm.kl.is_finite() {
                        return Err(StudyError::Model(format!("{}: its divergence is not finite", quality.codec)));
                    }
                    rows.push(Row {
                        codec: through.name(),
                        // Bits are averaged over the values of all layers, which have equally many
                        // values.
                        ratio: quality.ratio / num_layers as f64,
                        // Rounding of logits may leave a negative divergence.
                        kl: quality.harm.kl.max(0.0),
                        cost: pages.cost(layer, through.codec(), self.clock),
                    });
                }
                progress(some.len());
            }
            layers.push(rows);
        }
        Ok(layers)
    }

    /// Evaluates the choices and shrinks the budget until all of them hold the limits.
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

/// Measures choices with all layers together. Returns their qualities in the same order.
type MeasureTogether<'a> = dyn FnMut(&[&Choice]) -> Result<Vec<Quality>, StudyError> + 'a;

/// Measures the choices under every pressure and shrinks the budget until all of them hold the
/// limits. No choice is measured twice.
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
        let share = |choice: &Choice| use_of(&table.limits, &seen[&choice.name]);
        let worst = choices.iter().map(share).fold(0.0, f64::max);
        // The choice of raw for all layers holds every limit, so the loop ends.
        if worst <= 1.0 {
            table.choices = choices.into_iter().map(|choice| choice.verified(&seen)).collect();
            return Ok(());
        }
        // A budget cannot exclude rows that do no harm alone. If they do harm together, remove
        // them.
        let harmless = |choice: &&Choice| choice.kl_predicted == 0.0 && share(choice) > 1.0;
        if let Some(Choice { specs, .. }) = choices.iter().find(harmless) {
            for (rows, spec) in table.layers.iter_mut().zip(specs) {
                rows.retain(|row| row.codec != spec.to_string());
            }
            continue;
        }
        table.kl_budget *= (1.0 / worst).clamp(LEAST, TIGHTER);
    }
}

/// The choice from a given pressure on.
struct Choice {
    pressure: f64,
    name: String,
    specs: Vec<CodecSpec>,
    kl_predicted: f64,
}

impl Choice {
    fn verified(self, seen: &BTreeMap<String, Quality>) -> Verified {
        let Quality { ratio, harm: Harm { kl, kl_se, loss_percent, loss_percent_se, .. }, .. } = seen[&self.name];
        let (pressure, codec, kl_predicted) = (self.pressure, self.name, self.kl_predicted);
        Verified { pressure, codec, ratio, kl_predicted, kl, kl_se, loss_percent, loss_percent_se }
    }
}

#[cfg(test)]
mod tests;
