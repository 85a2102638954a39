//! Rows: what a paper prints, what an experiment measures, and both together.

use super::groups;
use super::verdict::{Claim, Interval, Meaning, Verdict, agrees, deviation, verdict_over, verdict_within};
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

    /// As the word "more": a lower bound at no effect, which is 1.
    #[must_use]
    pub const fn more(self) -> Self {
        self.at_least().neutral(1.0)
    }

    /// As the word "less": an upper bound at no effect, which is 1.
    #[must_use]
    pub const fn less(self) -> Self {
        self.at_most().neutral(1.0)
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
    /// Whether it shows another system, metric or figure, and not the range of a parameter that the paper
    /// leaves open: the verdict does not depend on it.
    pub is_aside: bool,
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
        Self { parameter: parameter.to_owned(), settings, ours, effect, is_aside: false }
    }

    /// As an aside.
    #[must_use]
    pub const fn aside(mut self) -> Self {
        self.is_aside = true;
        self
    }

    /// The mean of several runs' effects on a row, for all settings.
    fn mean(base: &[f64], each: &[&Self]) -> Self {
        let first = each[0];
        let of = |at: usize| mean(&each.iter().map(|one| one.ours[at].as_slice()).collect::<Vec<_>>());
        let ours = (0..first.settings.len()).map(of).collect();
        Self { is_aside: first.is_aside, ..Self::from(&first.parameter, base, first.settings.clone(), ours) }
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
    /// Values of ours that are shown although they do not decide the row.
    pub beside: Vec<f64>,
    /// Assumptions, and the reason for a difference.
    pub why: &'static str,
    /// Fitted parameters that the values depend on.
    pub fitted: &'static [&'static str],
    /// Effects of parameters.
    pub sensitivity: Vec<Sensitivity>,
    /// Why no parameter has an effect.
    pub fixed: &'static str,
    /// Why the values could not come out otherwise; empty if they could.
    pub tied: &'static str,
    /// Interval of the mean and number of runs, if the values are the mean of several.
    pub spread: Option<(Interval, usize)>,
    /// Plots beside the row.
    pub distributions: Vec<Distributions>,
}

/// Mean of each value.
fn mean(runs: &[&[f64]]) -> Vec<f64> {
    (0..runs[0].len()).map(|at| runs.iter().map(|run| run[at]).sum::<f64>() / runs.len() as f64).collect()
}

/// Quantile of Student's distribution for an interval of 99 % of the mean of two to ten runs.
const STUDENT: [f64; 9] = [63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250];

/// The interval of 99 % of runs' mean; `None` if all runs are alike.
fn interval(runs: &[&[f64]], mean: &[f64]) -> Option<Interval> {
    let half = |at: usize| {
        let squares = runs.iter().map(|run| (run[at] - mean[at]).powi(2)).sum::<f64>();
        let count = runs.len() as f64;
        STUDENT[(runs.len() - 2).min(STUDENT.len() - 1)] * (squares / (count - 1.0) / count).sqrt()
    };
    if runs.len() < 2 || runs.iter().all(|run| *run == runs[0]) {
        return None;
    }
    let halves: Vec<f64> = (0..mean.len()).map(half).collect();
    let ends = |sign: f64| mean.iter().zip(&halves).map(|(mean, half)| mean + sign * half).collect();
    Some(Interval { low: ends(-1.0), high: ends(1.0) })
}

impl Measured {
    /// Values of a row.
    #[must_use]
    pub const fn new(id: &'static str, values: Vec<f64>, why: &'static str) -> Self {
        Self {
            id,
            values: Ok(values),
            beside: Vec::new(),
            why,
            fitted: &[],
            sensitivity: Vec::new(),
            fixed: "",
            tied: "",
            spread: None,
            distributions: Vec::new(),
        }
    }

    /// The mean of the same row over runs with other seeds. Plots are the first run's; a sensitivity that
    /// only some runs have is theirs.
    ///
    /// # Panics
    /// Panics without runs, or if they disagree about the row's shape.
    #[must_use]
    pub fn combine(runs: &[Self]) -> Self {
        let values: Result<Vec<&[f64]>, &'static str> =
            runs.iter().map(|run| run.values.as_deref().map_err(|reason| *reason)).collect();
        let first = runs.first().expect("a run");
        let Ok(values) = values else {
            let beside: Vec<&[f64]> = runs.iter().map(|run| run.beside.as_slice()).collect();
            return Self { beside: mean(&beside), ..first.clone() };
        };
        let mean = mean(&values);
        let spread = interval(&values, &mean).map(|interval| (interval, runs.len()));
        let names = first.sensitivity.iter().map(|one| one.parameter.as_str());
        let of = |name: &str| {
            let all = runs.iter().flat_map(|run| run.sensitivity.iter().find(|one| one.parameter == name));
            Sensitivity::mean(&mean, &all.collect::<Vec<_>>())
        };
        let sensitivity = names.map(of).collect();
        Self { values: Ok(mean), spread, sensitivity, ..first.clone() }
    }

    /// A row that no model decides.
    #[must_use]
    pub fn not_testable(id: &'static str, reason: &'static str) -> Self {
        Self { values: Err(reason), ..Self::new(id, Vec::new(), "") }
    }

    /// A row that no model decides, with values of another design or measure beside it.
    #[must_use]
    pub fn beside(id: &'static str, reason: &'static str, values: Vec<f64>) -> Self {
        Self { beside: values, ..Self::not_testable(id, reason) }
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

    /// Says why the values could not come out otherwise, as in "the same number as in figure 3".
    #[must_use]
    pub const fn tied(mut self, why: &'static str) -> Self {
        self.tied = why;
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

/// What stands behind a row's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Power {
    /// A model that could have given other values.
    Model,
    /// A model that could not: an input, a tie, or a number that another row has.
    Tied,
    /// The paper's own numbers.
    Arithmetic,
    /// Nothing: the row is not testable.
    None,
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
    /// Our values; empty if none were computed. Of a row that is not testable: those of another design or
    /// measure.
    pub ours: Vec<f64>,
    /// Largest relative difference of ours, or else of the implied values.
    pub deviation: Option<f64>,
    /// Interval of 99 % of our values' means, if seeds change them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// Runs with other seeds, of which ours are the means.
    pub runs: usize,
    /// The verdict.
    pub verdict: Verdict,
    /// What it rests on.
    pub power: Power,
    /// Parameters on which it depends: their settings decide whether the claim holds. Chance for an
    /// interval that does not decide.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    /// Other verdicts that settings of open parameters give.
    pub elsewhere: Vec<Verdict>,
    /// Letter of the row's group in [`groups::GROUPS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<&'static str>,
    /// Assumptions and reasons.
    pub why: &'static str,
    /// Fitted parameters.
    pub fitted: &'static [&'static str],
    /// Effects of parameters, the largest first.
    pub sensitivity: Vec<Sensitivity>,
    /// Why no parameter has an effect.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub fixed: &'static str,
    /// Why the values could not come out otherwise.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub tied: &'static str,
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
    let is_fitted = !fitted.is_empty();
    let spread = measured.and_then(|measured| measured.spread.as_ref());
    let interval = spread.map(|(interval, _)| interval);
    let base = match (&ours, measured.map(|measured| measured.values.as_ref())) {
        _ if is_broken => Verdict::SelfContradictory,
        (Some(ours), _) => verdict_within(printed.claim(), ours, interval, is_fitted),
        (None, Some(_)) => Verdict::NotTestable,
        (None, None) => {
            assert!(printed.is_arithmetic, "{} has no experiment", printed.id);
            Verdict::Reproduced
        }
    };
    let tied = measured.map_or("", |measured| measured.tied);
    let power = match base {
        Verdict::NotTestable => Power::None,
        _ if ours.is_none() || is_broken => Power::Arithmetic,
        _ if tied.is_empty() => Power::Model,
        _ => Power::Tied,
    };
    let why = match measured {
        Some(Measured { values: Err(reason), .. }) => reason,
        Some(measured) => measured.why,
        None => "",
    };
    let compared = ours.as_deref().or(implied.as_deref());
    let deviation = compared.and_then(|ours| deviation(printed.values, ours));
    let mut sensitivity = measured.map_or_else(Vec::new, |measured| measured.sensitivity.clone());
    sensitivity.sort_by(|a, b| b.effect.total_cmp(&a.effect));
    let (mut elsewhere, mut depends_on, mut verdict) = (Vec::new(), Vec::new(), base);
    if power == Power::Model || power == Power::Tied {
        let of = |ours: &Vec<f64>| super::verdict::verdict(printed.claim(), ours, is_fitted);
        let open = sensitivity.iter().filter(|one| !one.is_aside);
        let each: Vec<(&str, Vec<Verdict>)> =
            open.map(|one| (one.parameter.as_str(), one.ours.iter().map(of).collect())).collect();
        elsewhere.extend(each.iter().flat_map(|(_, verdicts)| verdicts));
        verdict = verdict_over(base, &elsewhere);
        if verdict == Verdict::DependsOn {
            let flips = |verdicts: &[Verdict]| verdicts.iter().any(|one| one.holds() != base.holds());
            depends_on.extend(each.iter().filter(|(_, verdicts)| flips(verdicts)).map(|(name, _)| (*name).to_owned()));
        }
        elsewhere.push(base);
        elsewhere.sort_unstable();
        elsewhere.dedup();
        elsewhere.retain(|other| *other != verdict);
    }
    if verdict == Verdict::Undecided && interval.is_some() {
        depends_on.push("the seed".to_owned());
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
        deviation,
        ours: ours.or_else(|| measured.map(|measured| measured.beside.clone())).unwrap_or_default(),
        implied,
        interval: interval.cloned(),
        runs: spread.map_or(1, |(_, runs)| *runs),
        verdict,
        power,
        depends_on,
        elsewhere,
        group: groups::of(printed.id),
        why,
        fitted,
        sensitivity,
        fixed: measured.map_or("", |measured| measured.fixed),
        tied,
        distributions: measured.map_or_else(Vec::new, |measured| measured.distributions.clone()),
    }
}
