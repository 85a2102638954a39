//! Errors, one type per operation.

/// A model's configuration that names no table, or tables that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is no JSON object.
    #[error("not a JSON object: {0}")]
    Json(String),
    /// No key of a family is there.
    #[error(
        "the model has no n-gram tables: neither `engram_layer_ids` (DeepSeek) nor `ple_layer_ids` (Qwen) lists a layer"
    )]
    NoTables,
    /// A key that the family needs is absent.
    #[error("`{0}` is missing; the family needs it")]
    Missing(&'static str),
    /// A key has a value that no table can have.
    #[error("`{key}` is {value}; it must be {expected}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// Its value as JSON.
        value: String,
        /// The allowed values.
        expected: String,
    },
    /// More heads than any model has.
    #[error("{columns} heads in all orders and layers; at most {most} are supported")]
    TooManyHeads {
        /// Heads of all orders and layers.
        columns: usize,
        /// The limit.
        most: usize,
    },
    /// The heads of a layer need more rows than the model declares.
    #[error(
        "layer {layer}: its heads need {needed} rows, and `engram_num_embeddings` declares {declared}; \
         the tables belong to another configuration"
    )]
    TooFewRows {
        /// The layer's id in the configuration.
        layer: u64,
        /// Sum of the heads' primes.
        needed: u64,
        /// Rows by the configuration.
        declared: u64,
    },
    /// The compressed vocabulary has another size than the model was trained with.
    #[error(
        "the token map has {found} ids, and `engram_compressed_vocab_size` is {expected}; \
         every multiplier depends on it, so take the tokenizer of this model"
    )]
    OtherVocabulary {
        /// Ids of the map.
        found: u64,
        /// Ids by the configuration.
        expected: u64,
    },
    /// The family compresses ids, and no map was given.
    #[error("the model hashes compressed ids; give its tokenizer or a token map")]
    NoMap,
    /// The token that fills n-grams is not in the vocabulary.
    #[error("`{key}` is {token}, and the vocabulary has {tokens} tokens")]
    PadOutside {
        /// The key of the token.
        key: &'static str,
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        tokens: u64,
    },
    /// Published hash values of a layer do not fit the configuration.
    #[error("layer {layer}: the checkpoint's {what}")]
    Published {
        /// The layer's id in the configuration.
        layer: u64,
        /// The value and the limit.
        what: String,
    },
}

/// A tokenizer or a list of ids that gives no token map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The tokenizer cannot be parsed.
    #[error("not a tokenizer: {0}")]
    Tokenizer(String),
    /// A token cannot be decoded.
    #[error("token {token} cannot be decoded: {why}")]
    Undecodable {
        /// The token.
        token: u32,
        /// The tokenizer's message.
        why: String,
    },
    /// There are no tokens.
    #[error("the token map is empty")]
    Empty,
    /// An id leaves no room for the number of ids in 32 bits.
    #[error("token {token} has the id {id}; ids must be below {}", u32::MAX)]
    IdTooLarge {
        /// The token.
        token: u32,
        /// Its id.
        id: u32,
    },
}

/// A token that the model does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {token} at index {index} is outside the vocabulary of {tokens} tokens")]
pub struct TokenError {
    /// Its place in the call's tokens.
    pub index: usize,
    /// The token.
    pub token: u32,
    /// Tokens of the vocabulary.
    pub tokens: u64,
}

/// A row format, or bytes that are no row of it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FormatError {
    /// No format has this name.
    #[error("`{0}` is no row format; the formats are e4m3-ue8m0, e4m3, f16 and bf16")]
    Unknown(String),
    /// A format with a table scale came without one.
    #[error("rows of e4m3 need the scale of their table (`weight_scale`)")]
    ScaleMissing,
    /// A scale that is no number, or none that values can have: bf16 has no number so large.
    #[error("the scale of a table is {0}; give a finite number that bf16 can hold")]
    ScaleInfinite(f32),
    /// A scale came with a format that has none.
    #[error("rows of {0} have no table scale; omit it")]
    ScaleUnused(&'static str),
    /// The number of values does not fill whole blocks.
    #[error("rows of {format} have a multiple of {block} values; {values} is none")]
    Values {
        /// The format.
        format: &'static str,
        /// Values that share a scale.
        block: usize,
        /// The number.
        values: usize,
    },
    /// Bytes of no whole number of values.
    #[error("a row of {bytes} bytes is no row of {format}, whose rows have a multiple of {unit} bytes")]
    RowBytes {
        /// The format.
        format: &'static str,
        /// Bytes of the row.
        bytes: usize,
        /// Bytes that belong together.
        unit: usize,
    },
}
