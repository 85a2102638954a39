//! Health of an engine or a store, beyond whether it answers.

use serde::{Deserialize, Serialize};

/// Whether all parts of a component work.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Everything works.
    #[default]
    Ok,
    /// Answers are correct, but a part is out of use. Example: an engine with a damaged region
    /// computes without it.
    Degraded {
        /// Sentences that name the failing part and the fact; at least one.
        reasons: Vec<String>,
    },
}

impl Health {
    /// Degraded for one reason.
    #[must_use]
    pub fn degraded(reason: impl Into<String>) -> Self {
        Self::Degraded { reasons: vec![reason.into()] }
    }

    /// Reasons of degradation; empty if healthy.
    #[must_use]
    pub fn reasons(&self) -> &[String] {
        match self {
            Self::Ok => &[],
            Self::Degraded { reasons } => reasons,
        }
    }

    /// Whether a part is out of use.
    #[must_use]
    pub const fn is_degraded(&self) -> bool {
        matches!(self, Self::Degraded { .. })
    }

    /// Combined health of several parts; each reason is prefixed with the name of its part.
    #[must_use]
    pub fn of_parts(parts: impl IntoIterator<Item = (String, Self)>) -> Self {
        let mut all = Vec::new();
        let mut is_degraded = false;
        for (name, health) in parts {
            is_degraded |= health.is_degraded();
            all.extend(health.reasons().iter().map(|reason| format!("{name}: {reason}")));
        }
        if is_degraded { Self::Degraded { reasons: all } } else { Self::Ok }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_degraded_part_degrades_the_whole_and_is_named() {
        let part = |name: &str, health: Health| (name.to_owned(), health);
        assert_eq!(Health::of_parts([part("a", Health::Ok), part("b", Health::Ok)]), Health::Ok);
        let whole = Health::of_parts([part("a", Health::Ok), part("b", Health::degraded("the region is damaged"))]);
        assert_eq!(whole, Health::degraded("b: the region is damaged"));
        let silent = Health::of_parts([part("a", Health::Degraded { reasons: Vec::new() })]);
        assert!(silent.is_degraded(), "a part that gives no reason is degraded all the same");
    }
}
