//! The file of a network's weights in int8.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `CenTok01` |
//! | 4 | tokens of the vocabulary, `V` |
//! | 64 V + 4 V | embedding: codes, scales |
//! | 512 × 64 + 4 × 512 | first layer, weights of its inputs: codes, scales |
//! | 512 × 128 + 4 × 512 | weights of its state: codes, scales |
//! | 4 × 512 | its biases |
//! | 512 × 128 + 4 × 512, twice, and 4 × 512 | second layer, likewise |
//! | 64 × 128 + 4 × 64 | projection of the state to an embedding: codes, scales |
//! | 4 V | biases of the tokens |
//! | 4 | CRC-32 of all bytes before |
//!
//! There is no output matrix: a token's logit is the product of its embedding and the projection,
//! plus its bias.
//!
//! Codes are signed bytes other than -128, row by row. A weight is its code times the scale of its
//! row. Scales and biases are f32. All words are little-endian.

use super::{EMBEDDING, GATES, HIDDEN, LAYERS};

const MAGIC: &[u8; 8] = b"CenTok01";
const VOCABULARY_MAX: usize = 1 << 22;

/// A file that is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// It begins with other bytes.
    #[error("not a file of a token predictor's weights")]
    Magic,
    /// It is longer or shorter than its vocabulary demands.
    #[error("{found} bytes, but a vocabulary of {vocabulary} tokens takes {expected}")]
    Length {
        /// Bytes of the file.
        found: usize,
        /// Tokens by its header.
        vocabulary: usize,
        /// Bytes of such a network.
        expected: usize,
    },
    /// The vocabulary is empty or larger than any tokenizer's.
    #[error("a vocabulary of {0} tokens")]
    Vocabulary(usize),
    /// Bytes changed.
    #[error("wrong checksum: the file is damaged")]
    Checksum,
    /// A scale or a bias is not a finite number, or a code is -128.
    #[error("a value that no network has")]
    Value,
}

/// Rows of codes, with one scale each.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rows {
    pub codes: Vec<i8>,
    pub scales: Vec<f32>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layer {
    pub input: Rows,
    pub state: Rows,
    pub bias: Vec<f32>,
}

/// A trained network's weights in int8.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    pub(super) embedding: Rows,
    pub(super) layers: [Layer; LAYERS],
    pub(super) projection: Rows,
    pub(super) output_bias: Vec<f32>,
}

/// Bytes of a file for so many tokens.
const fn file_bytes(vocabulary: usize) -> usize {
    let layers = GATES * (EMBEDDING + HIDDEN + 12) + GATES * (HIDDEN + HIDDEN + 12);
    MAGIC.len() + 4 + vocabulary * (EMBEDDING + 8) + EMBEDDING * (HIDDEN + 4) + layers + 4
}

/// What is left to read. Lengths were checked.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn floats(&mut self, count: usize) -> Result<Vec<f32>, WeightsError> {
        let (bytes, rest) = self.0.split_at(4 * count);
        self.0 = rest;
        let floats: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        floats.iter().all(|value| value.is_finite()).then_some(floats).ok_or(WeightsError::Value)
    }

    fn rows(&mut self, rows: usize, columns: usize) -> Result<Rows, WeightsError> {
        let (bytes, rest) = self.0.split_at(rows * columns);
        self.0 = rest;
        let codes: Vec<i8> = bytes.iter().map(|byte| *byte as i8).collect();
        if codes.contains(&i8::MIN) {
            return Err(WeightsError::Value);
        }
        Ok(Rows { codes, scales: self.floats(rows)? })
    }

    fn layer(&mut self, inputs: usize) -> Result<Layer, WeightsError> {
        Ok(Layer { input: self.rows(GATES, inputs)?, state: self.rows(GATES, HIDDEN)?, bias: self.floats(GATES)? })
    }
}

impl Weights {
    /// Number of tokens.
    #[must_use]
    pub const fn vocabulary(&self) -> usize {
        self.output_bias.len()
    }

    /// The trained values: weights and biases, without the scales.
    #[must_use]
    pub fn parameters(&self) -> usize {
        let layers =
            self.layers.iter().map(|layer| layer.input.codes.len() + layer.state.codes.len() + layer.bias.len());
        self.embedding.codes.len() + layers.sum::<usize>() + self.projection.codes.len() + self.output_bias.len()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file is no network, or is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WeightsError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(WeightsError::Magic)?;
        let (vocabulary, _) = rest.split_first_chunk::<4>().ok_or(WeightsError::Magic)?;
        let vocabulary = u32::from_le_bytes(*vocabulary) as usize;
        if !(1..=VOCABULARY_MAX).contains(&vocabulary) {
            return Err(WeightsError::Vocabulary(vocabulary));
        }
        let expected = file_bytes(vocabulary);
        if bytes.len() != expected {
            return Err(WeightsError::Length { found: bytes.len(), vocabulary, expected });
        }
        let (content, sum) = bytes.split_at(expected - 4);
        if crc32fast::hash(content).to_le_bytes() != sum {
            return Err(WeightsError::Checksum);
        }
        let mut reader = Reader(&content[MAGIC.len() + 4..]);
        let weights = Self {
            embedding: reader.rows(vocabulary, EMBEDDING)?,
            layers: [reader.layer(EMBEDDING)?, reader.layer(HIDDEN)?],
            projection: reader.rows(EMBEDDING, HIDDEN)?,
            output_bias: reader.floats(vocabulary)?,
        };
        assert!(reader.0.is_empty(), "the length is that of all parts");
        Ok(weights)
    }

    /// The content of a file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((self.vocabulary() as u32).to_le_bytes());
        let floats =
            |bytes: &mut Vec<u8>, values: &[f32]| bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let rows = |bytes: &mut Vec<u8>, rows: &Rows| {
            bytes.extend(rows.codes.iter().map(|code| *code as u8));
            floats(bytes, &rows.scales);
        };
        rows(&mut bytes, &self.embedding);
        for layer in &self.layers {
            rows(&mut bytes, &layer.input);
            rows(&mut bytes, &layer.state);
            floats(&mut bytes, &layer.bias);
        }
        rows(&mut bytes, &self.projection);
        floats(&mut bytes, &self.output_bias);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::FloatNetwork;
    use super::*;
    use cenote_base::prng::Prng;
    use proptest::prelude::*;

    fn file(vocabulary: usize) -> Vec<u8> {
        FloatNetwork::random(vocabulary, &mut Prng::new(3)).quantize().to_bytes()
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let network = FloatNetwork::random(37, &mut Prng::new(3));
        let weights = network.quantize();
        assert_eq!(weights.parameters(), network.parameters());
        assert_eq!(Weights::from_bytes(&weights.to_bytes()), Ok(weights));
    }

    #[test]
    fn values_that_would_differ_between_instruction_sets_are_refused() {
        let sound = file(5);
        let with = |at: usize, bytes: &[u8]| {
            let mut file = sound.clone();
            file[at..at + bytes.len()].copy_from_slice(bytes);
            let end = file.len() - 4;
            let sum = crc32fast::hash(&file[..end]);
            file[end..].copy_from_slice(&sum.to_le_bytes());
            Weights::from_bytes(&file).err()
        };
        assert_eq!(with(12, &[0x80]), Some(WeightsError::Value), "a code of -128");
        assert_eq!(with(12 + 5 * 64, &f32::NAN.to_le_bytes()), Some(WeightsError::Value));
        assert_eq!(with(8, &0_u32.to_le_bytes()), Some(WeightsError::Vocabulary(0)));
        assert!(matches!(with(8, &6_u32.to_le_bytes()), Some(WeightsError::Length { vocabulary: 6, .. })));
        assert_eq!(with(0, b"x"), Some(WeightsError::Magic));
        assert_eq!(with(12, &[1]), None);
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_an_error(at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<prop::sample::Index>()) {
            let sound = file(3);
            let mut damaged = sound.clone();
            damaged[at.index(sound.len())] ^= flip;
            prop_assert!(Weights::from_bytes(&damaged).is_err());
            prop_assert!(Weights::from_bytes(&sound[..cut.index(sound.len())]).is_err());
        }
    }
}
