//! Rows: what a paper prints, what an experiment measures, and both together.

use super::verdict::{Claim, Meaning, Verdict, agrees, deviation, verdict};
use serde::Serialize;

/// A table's row, a figure's line or a sentence's number, as the paper prints it.
#[derive(Clone, Copy, Debug)]
pub struct Printed {
    /// Name, as in `speckv.table3.hit-rate`.
    pub id: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Unit of the values; empty for ratios.
    pub unit: &'static str,
    /// The values.
    pub values: &'static [f64],
    /// How they are meant.
    pub meaning: Meaning,
    /// The value that means no effect.
    pub neutral: Option<f64>,
    /// Name of the horizontal axis, and its values.
    pub axis: Option<(&'static str, &'static [f64])>,
    /// Names of the values, where they lie on no axis.
    pub names: &'static [&'static str],
    /// The printed ranges of which the values are the middles; empty if values are printed.
    pub ranges: &'static [(f64, f64)],
    /// The values by the paper's other numbers.
    pub implied: Option<fn() -> Vec<f64>>,
    /// Whether these alone judge the row: no experiment computes it.
    pub is_arithmetic: bool,
}

impl Printed {
    /// Values of a row.
    #[must_use]
    pub const fn new(id: &'static str, what: &'static str, unit: &'static str, values: &'static [f64]) -> Self {
        Self {
            id,
            what,
            unit,
            values,
            meaning: Meaning::Equal,
            neutral: None,
            axis: None,
            names: &[],
            ranges: &[],
            implied: None,
            is_arithmetic: false,
        }
    }

    /// As an upper bound.
    #[must_use]
    pub const fn at_most(mut self) -> Self {
        self.meaning = Meaning::AtMost;
        self
    }

    /// As a lower bound.
    #[must_use]
    pub const fn at_least(mut self) -> Self {
        self.meaning = Meaning::AtLeast;
        self
    }

    /// As ranges, least and most, of which the values are the middles.
    #[must_use]
    pub const fn between(mut self, ranges: &'static [(f64, f64)]) -> Self {
        self.ranges = ranges;
        self
    }

    /// With the value that means no effect.
    #[must_use]
    pub const fn neutral(mut self, value: f64) -> Self {
        self.neutral = Some(value);
        self
    }

    /// Along an axis.
    #[must_use]
    pub const fn over(mut self, label: &'static str, at: &'static [f64]) -> Self {
        self.axis = Some((label, at));
        self
    }

    /// With a name for each value.
    #[must_use]
    pub const fn named(mut self, names: &'static [&'static str]) -> Self {
        self.names = names;
        self
    }

    /// With the values that the paper's other numbers give.
    #[must_use]
    pub const fn implied(mut self, by: fn() -> Vec<f64>) -> Self {
        self.implied = Some(by);
        self
    }

    /// With the values that the paper's other numbers give, which alone judge the row.
    #[must_use]
    pub const fn arithmetic(mut self, by: fn() -> Vec<f64>) -> Self {
        self.is_arithmetic = true;
        self.implied(by)
    }

    const fn claim(&self) -> Claim<'static> {
        Claim { values: self.values, meaning: self.meaning, neutral: self.neutral, ranges: self.ranges }
    }
}

/// Effect of a parameter on a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sensitivity {
    /// The parameter.
    pub parameter: String,
    /// Its settings beside the one that the row uses.
    pub settings: Vec<String>,
    /// The row's values with each of them.
    pub ours: Vec<Vec<f64>>,
    /// Largest relative change of a value.
    pub effect: f64,
}

impl Sensitivity {
    /// Runs a row with other settings of a parameter. `base` are its values with the usual one.
    pub fn of<T: ToString>(parameter: &str, base: &[f64], settings: &[T], run: impl FnMut(&T) -> Vec<f64>) -> Self {
        let ours: Vec<Vec<f64>> = settings.iter().map(run).collect();
        Self::from(parameter, base, settings.iter().map(ToString::to_string).collect(), ours)
    }

    /// From values that are computed already.
    #[must_use]
    pub fn from(parameter: &str, base: &[f64], settings: Vec<String>, ours: Vec<Vec<f64>>) -> Self {
        // A change from nothing has no relative size; it counts as a whole one.
        let changes =
            ours.iter().map(|ours| if ours == base { 0.0 } else { deviation(base, ours).map_or(1.0, f64::abs) });
        let effect = changes.fold(0.0, f64::max);
        Self { parameter: parameter.to_owned(), settings, ours, effect }
    }
}

/// Distributions of a quantity, for a plot beside a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distributions {
    /// What differs between plots of a row.
    pub title: String,
    /// The quantity and its unit.
    pub label: &'static str,
    /// Names, and the values at 1 %, 2 %, … 99 %.
    pub series: Vec<(String, Vec<f64>)>,
}

/// What an experiment computes for a row.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The row.
    pub id: &'static str,
    /// Our values, or the reason why no model decides them.
    pub values: Result<Vec<f64>, &'static str>,
    /// Assumptions, and the reason for a difference.
    pub why: &'static str,
    /// Fitted parameters that the values depend on.
    pub fitted: &'static [&'static str],
    /// Effects of parameters.
    pub sensitivity: Vec<Sensitivity>,
    /// Why no parameter has an effect.
    pub fixed: &'static str,
    /// Plots beside the row.
    pub distributions: Vec<Distributions>,
}

impl Measured {
    /// Values of a row.
    #[must_use]
    pub const fn new(id: &'static str, values: Vec<f64>, why: &'static str) -> Self {
        Self { id, values: Ok(values), why, fitted: &[], sensitivity: Vec::new(), fixed: "", distributions: Vec::new() }
    }

    /// A row that no model decides.
    #[must_use]
    pub fn not_testable(id: &'static str, reason: &'static str) -> Self {
        Self { values: Err(reason), ..Self::new(id, Vec::new(), "") }
    }

    /// Names fitted parameters.
    #[must_use]
    pub const fn fitted(mut self, parameters: &'static [&'static str]) -> Self {
        self.fitted = parameters;
        self
    }

    /// Says why no open parameter has an effect, as in "a count of the format's bytes".
    #[must_use]
    pub const fn fixed(mut self, why: &'static str) -> Self {
        self.fixed = why;
        self
    }

    /// Adds a plot.
    #[must_use]
    pub fn with(mut self, distributions: Distributions) -> Self {
        self.distributions.push(distributions);
        self
    }

    /// Adds the effect of a parameter.
    #[must_use]
    pub fn sensitive(mut self, sensitivity: Sensitivity) -> Self {
        self.sensitivity.push(sensitivity);
        self
    }
}

/// A row with both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name.
    pub id: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    /// How the paper's values are meant.
    pub meaning: Meaning,
    /// Name of the horizontal axis.
    pub axis: Option<&'static str>,
    /// Values on it.
    pub at: &'static [f64],
    /// Names of the values.
    pub names: &'static [&'static str],
    /// The paper's values.
    pub paper: &'static [f64],
    /// The paper's ranges, of which the values are the middles.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub ranges: &'static [(f64, f64)],
    /// The values by the paper's other numbers, where there are some.
    pub implied: Option<Vec<f64>>,
    /// Our values; empty if none were computed.
    pub ours: Vec<f64>,
    /// Largest relative difference of ours, or else of the implied values.
    pub deviation: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
    /// Other verdicts that settings of open parameters give.
    pub elsewhere: Vec<Verdict>,
    /// Assumptions and reasons.
    pub why: &'static str,
    /// Fitted parameters.
    pub fitted: &'static [&'static str],
    /// Effects of parameters, the largest first.
    pub sensitivity: Vec<Sensitivity>,
    /// Why no parameter has an effect.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub fixed: &'static str,
    /// Plots beside the row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub distributions: Vec<Distributions>,
}

/// Joins a printed row and a measured one, and computes the verdict. A row that the paper's own
/// numbers contradict stays so whatever is measured.
///
/// # Panics
/// Panics if the row is measured although it is arithmetic, or the other way round.
#[must_use]
pub fn join(printed: &Printed, measured: Option<&Measured>) -> Row {
    assert!(measured.is_none() || !printed.is_arithmetic, "{} is arithmetic, and measured", printed.id);
    let implied = printed.implied.map(|by| by());
    let ours = measured.and_then(|measured| measured.values.clone().ok());
    let fitted = measured.map_or(&[][..], |measured| measured.fitted);
    let is_broken = implied.as_ref().is_some_and(|implied| !agrees(printed.claim(), implied));
    let verdict = match (&ours, measured.map(|measured| measured.values.as_ref())) {
        _ if is_broken => Verdict::SelfContradictory,
        (Some(ours), _) => verdict(printed.claim(), ours, !fitted.is_empty()),
        (None, Some(_)) => Verdict::NotTestable,
        (None, None) => {
            assert!(printed.is_arithmetic, "{} has no experiment", printed.id);
            Verdict::Reproduced
        }
    };
    let why = match measured {
        Some(Measured { values: Err(reason), .. }) => reason,
        Some(measured) => measured.why,
        None => "",
    };
    let compared = ours.as_deref().or(implied.as_deref());
    let mut sensitivity = measured.map_or_else(Vec::new, |measured| measured.sensitivity.clone());
    sensitivity.sort_by(|a, b| b.effect.total_cmp(&a.effect));
    let mut elsewhere = Vec::new();
    if !matches!(verdict, Verdict::SelfContradictory | Verdict::NotTestable) {
        let settings = sensitivity.iter().flat_map(|one| &one.ours);
        elsewhere.extend(settings.map(|ours| super::verdict::verdict(printed.claim(), ours, !fitted.is_empty())));
        elsewhere.sort_unstable();
        elsewhere.dedup();
        elsewhere.retain(|other| *other != verdict);
    }
    Row {
        id: printed.id,
        what: printed.what,
        unit: printed.unit,
        meaning: printed.meaning,
        axis: printed.axis.map(|(label, _)| label),
        at: printed.axis.map_or(&[], |(_, at)| at),
        names: printed.names,
        paper: printed.values,
        ranges: printed.ranges,
        deviation: compared.and_then(|ours| deviation(printed.values, ours)),
        ours: ours.unwrap_or_default(),
        implied,
        verdict,
        elsewhere,
        why,
        fitted,
        sensitivity,
        fixed: measured.map_or("", |measured| measured.fixed),
        distributions: measured.map_or_else(Vec::new, |measured| measured.distributions.clone()),
    }
}
