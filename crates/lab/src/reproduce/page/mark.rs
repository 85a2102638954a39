//! What a row's verdict looks like: sign, word and class of its colour.

use crate::reproduce::row::{Power, Row};
use crate::reproduce::verdict::Verdict;
use std::fmt;

/// A verdict as the page shows it. Reproduced rows that could not come out otherwise stand apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// By a model.
    Reproduced,
    Direction,
    DependsOn,
    Undecided,
    Contradicted,
    SelfContradictory,
    /// Reproduced, by an input, a tie or a number that another row has.
    Tied,
    /// Reproduced, by the paper's own numbers alone.
    Arithmetic,
    NotTestable,
}

impl Mark {
    /// All of them, in the order of the page.
    pub const ALL: [Self; 9] = [
        Self::Reproduced,
        Self::Direction,
        Self::DependsOn,
        Self::Undecided,
        Self::Contradicted,
        Self::SelfContradictory,
        Self::Tied,
        Self::Arithmetic,
        Self::NotTestable,
    ];

    /// The mark of a row.
    pub fn of(row: &Row) -> Self {
        match (row.verdict, row.power) {
            (Verdict::Reproduced, Power::Tied) => Self::Tied,
            (Verdict::Reproduced, Power::Arithmetic) => Self::Arithmetic,
            (verdict, _) => Self::from(verdict),
        }
    }

    /// A sign that tells verdicts apart without colours.
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Reproduced => "✓",
            Self::Direction => "↗",
            Self::DependsOn => "±",
            Self::Undecided => "≈",
            Self::Contradicted => "✗",
            Self::SelfContradictory => "≠",
            Self::Tied => "≡",
            Self::Arithmetic => "=",
            Self::NotTestable => "○",
        }
    }

    /// Class in the style.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Reproduced => "v reproduced",
            Self::Direction => "v direction",
            Self::DependsOn => "v depends",
            Self::Undecided => "v undecided",
            Self::Contradicted => "v contradicted",
            Self::SelfContradictory => "v self",
            Self::Tied => "v tied",
            Self::Arithmetic => "v arithmetic",
            Self::NotTestable => "v untestable",
        }
    }

    /// Name of its list.
    pub const fn list(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Direction => "direction-only",
            Self::DependsOn => "depends",
            Self::Undecided => "undecided",
            Self::Contradicted => "contradicted",
            Self::SelfContradictory => "self-contradictory",
            Self::Tied => "by-construction",
            Self::Arithmetic => "own-arithmetic",
            Self::NotTestable => "not-testable",
        }
    }

    /// Name of its list's part for a paper.
    pub fn list_of(self, paper: &str) -> String {
        format!("{}-{paper}", self.list())
    }

    /// What it means.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Reproduced => {
                "Every value is within 15\u{a0}% of the paper’s, of the nearest end of its range, or of its bound, and on its \
                 side of no effect, at all settings that were tried."
            }
            Self::Direction => {
                "All values have the paper’s order, lie on its side of no effect, and within ten times of it. Less than \
                 2\u{a0}% is no difference."
            }
            Self::DependsOn => {
                "The claim holds at some settings of a parameter that the paper leaves open, and not at others."
            }
            Self::Undecided => "The difference is within chance (99\u{a0}% interval over seeds) or within 2\u{a0}%.",
            Self::Contradicted => "None of these, in the models here, at any setting that was tried.",
            Self::SelfContradictory => {
                "Other numbers of the paper give another value: more than 2\u{a0}% and half a unit of the last digit away."
            }
            Self::Tied => {
                "Reproduced, but it could not come out otherwise: an input, a tie, or a number of another row. Counted \
                 apart."
            }
            Self::Arithmetic => "The paper’s own numbers give the printed value; no model computed it. Counted apart.",
            Self::NotTestable => "No model here decides the row. Grey values are of another design or measure.",
        }
    }
}

impl From<Verdict> for Mark {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Reproduced => Self::Reproduced,
            Verdict::DirectionOnly => Self::Direction,
            Verdict::DependsOn => Self::DependsOn,
            Verdict::Undecided => Self::Undecided,
            Verdict::Contradicted => Self::Contradicted,
            Verdict::SelfContradictory => Self::SelfContradictory,
            Verdict::NotTestable => Self::NotTestable,
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reproduced => "reproduced",
            Self::Direction => "direction only",
            Self::DependsOn => "depends",
            Self::Undecided => "undecided",
            Self::Contradicted => "contradicted",
            Self::SelfContradictory => "self-contradictory",
            Self::Tied => "by construction",
            Self::Arithmetic => "own arithmetic",
            Self::NotTestable => "not testable",
        })
    }
}

/// Number of rows of each mark.
pub(super) fn counts<'a>(rows: impl IntoIterator<Item = &'a Row>) -> [(Mark, usize); Mark::ALL.len()] {
    let mut counts = Mark::ALL.map(|mark| (mark, 0));
    for row in rows {
        let mark = Mark::of(row);
        counts.iter_mut().filter(|(one, _)| *one == mark).for_each(|(_, count)| *count += 1);
    }
    counts
}
