//! Errors of plans.

use cenote_engram::{ConfigError, FormatError};

/// A plan that cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The configuration has no usable n-gram tables.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The rows cannot be stored in the format.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The text is no JSON object.
    #[error("not a JSON object: {0}")]
    Json(String),
    /// A key that the plan needs is absent.
    #[error("`{0}` is missing; the bytes of a token depend on it")]
    Missing(String),
    /// A key has an impossible value.
    #[error("`{key}` is {value}; it must be {expected}")]
    Invalid {
        /// The key.
        key: String,
        /// Its value as JSON.
        value: String,
        /// The allowed values.
        expected: String,
    },
    /// A layer keeps something that this plan cannot count.
    #[error("layer {layer} is of type `{kind}`, whose memory per token is not known; known are {known}")]
    UnknownLayer {
        /// The layer, counted from zero.
        layer: usize,
        /// Its type.
        kind: String,
        /// The known types.
        known: String,
    },
    /// A key says that layers have windows or chunks, and nothing says which layers.
    #[error(
        "`{key}` is stated, but neither a list of layers nor a pattern, and which layers of the class `{class}` it \
         covers is not known; add `layer_types`, one name for each layer"
    )]
    NoPattern {
        /// The key.
        key: String,
        /// The model's class.
        class: String,
    },
    /// A key may change what layers keep, and its meaning is not known.
    #[error(
        "`{key}` may change what a layer keeps, and its meaning is not known; no plan is made instead of a wrong \
         one. If it changes no KV, remove it from a copy of the file"
    )]
    Unread {
        /// The key.
        key: String,
    },
    /// A layer's work is not simulated.
    #[error("layer {layer} keeps a state or compressed runs, and the work of such layers is not simulated")]
    NotServed {
        /// The layer, counted from zero.
        layer: usize,
    },
    /// A number of the workload is not positive.
    #[error("{what} is {value}; it must be above zero")]
    NotPositive {
        /// The name.
        what: &'static str,
        /// The value.
        value: String,
    },
}

impl PlanError {
    /// Refuses what is not a positive, finite number.
    pub(crate) fn unless_positive(what: &'static str, value: f64) -> Result<(), Self> {
        match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(Self::NotPositive { what, value: value.to_string() }),
        }
    }
}
