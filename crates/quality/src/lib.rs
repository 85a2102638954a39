//! Floor 5: what codecs do to a model, measured on the reference engine.
//!
//! [`profile`] observes a model and makes the [`cenote_codec::Profile`] that codecs use; [`bases`] makes
//! the principal components in it.
//! [`evaluate`] runs a text through the engine with full blocks of past KV through a codec, and
//! compares the result with the same engine without a codec. A token reads its own block raw, or, by
//! token, itself only. [`table`] reads measured choices of a codec for
//! each layer. [`sparse`] does the same for decode that reads chosen pages.
//!
//! [`past`] computes a context through a codec. On it [`choice`] scores multiple choices and
//! [`retrieval`] facts in long contexts. [`bleu`] compares answers, [`interval`] several seeds.
#![forbid(unsafe_code)]

pub mod bases;
pub mod bleu;
pub mod choice;
mod eigen;
pub mod evaluate;
pub mod interval;
pub mod past;
pub mod profile;
pub mod retrieval;
pub mod sparse;
pub mod table;
pub mod text;

use cenote_codec::{
    BlockPage, Codecs, DecodeError, Element, Layout, Order, Page, PageCodec, PageKind, PageMut, Shape, Side, encode,
    encode_block,
};
use cenote_engine::ElementType;
use cenote_engine::kv::KvLayout;
use std::sync::Arc;

/// The reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The text cannot be read or tokenized, is too short, or its windows are not whole blocks.
    #[error("{0}")]
    Text(String),
    /// The model, its files or the settings do not support this measurement.
    #[error("{0}")]
    Model(String),
    /// Scores are no numbers: values beyond their type's range.
    #[error("{0}: scores are not finite; values overflow in the model or in the codec, so nothing is scored")]
    NotFinite(String),
    /// A codec's frame cannot be decoded: a bug in the codec.
    #[error("{subject}: a page of layer {layer} cannot be decoded: {fact}")]
    Lost {
        /// Name of the codec.
        subject: String,
        /// Layer of the page.
        layer: u16,
        /// The decoding error.
        fact: String,
    },
    /// The frames of a block cannot be decoded: a bug in the codec.
    #[error("{subject}: a block cannot be decoded: {fact}")]
    LostBlock {
        /// Name of the codec.
        subject: String,
        /// The decoding error.
        fact: String,
    },
}

/// A transformation of pages under study: a codec or a quantizer.
pub trait Subject: Send + Sync {
    /// The name in tables.
    fn name(&self) -> String;

    /// Replaces a page by its round trip. Returns the bits of the encoded form, headers and scales
    /// included.
    ///
    /// # Errors
    /// The page cannot be encoded or decoded.
    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError>;

    /// The same for all pages of a block, each with its kind. `position`: that of the block's first
    /// token in its sequence.
    ///
    /// # Errors
    /// A page cannot be encoded or decoded.
    fn round_trip_block(&self, pages: &mut [(PageKind, &mut [u8])], position: usize) -> Result<u64, StudyError> {
        let _ = position;
        pages.iter_mut().try_fold(0, |bits, (kind, page)| Ok(bits + self.round_trip(kind, page)?))
    }
}

/// A codec of the pool with its frames. It encodes values of 16 bits, as pools store them.
pub struct CodecSubject {
    name: String,
    codec: Arc<dyn PageCodec>,
    codecs: Codecs,
}

impl CodecSubject {
    /// Creates a subject for `codec`; `name` is its name in tables.
    #[must_use]
    pub fn new(name: impl Into<String>, codec: Arc<dyn PageCodec>) -> Self {
        let mut codecs = Codecs::default();
        codecs.add(Arc::clone(&codec));
        Self { name: name.into(), codec, codecs }
    }

    /// The codec.
    #[must_use]
    pub fn codec(&self) -> &Arc<dyn PageCodec> {
        &self.codec
    }
}

impl Subject for CodecSubject {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        if self.codec.as_group().is_some() {
            let fact = "it encodes several layers together, so it is measured by whole blocks only";
            return Err(StudyError::Model(format!("{}: {fact}", self.name)));
        }
        let (narrow, bytes) = narrowed(kind, page);
        let mut frame = Vec::new();
        encode(&*self.codec, &Page::new(narrow, &bytes), &mut frame);
        let decoded = self.codecs.decode(&frame, &mut PageMut::new(*kind, page));
        decoded.map_err(|error| StudyError::Lost {
            subject: self.name.clone(),
            layer: kind.layer,
            fact: error.to_string(),
        })?;
        Ok(8 * frame.len() as u64)
    }

    fn round_trip_block(&self, pages: &mut [(PageKind, &mut [u8])], position: usize) -> Result<u64, StudyError> {
        let narrow: Vec<(PageKind, Vec<u8>)> = pages.iter().map(|(kind, page)| narrowed(kind, page)).collect();
        let block: Vec<BlockPage<'_>> =
            narrow.iter().map(|(kind, bytes)| BlockPage { kind, bytes, codec: &*self.codec }).collect();
        let mut bytes = Vec::new();
        encode_block(&block, u32::try_from(position).expect("contexts are shorter"), &mut bytes);
        let decoded = pages.iter_mut().map(|(kind, page)| PageMut::new(*kind, page)).collect();
        let len = self.codecs.decode_block(&bytes, decoded);
        let lost = |error: DecodeError| StudyError::LostBlock { subject: self.name.clone(), fact: error.to_string() };
        Ok(8 * len.map_err(lost)? as u64)
    }
}

/// Converts a page to 16 bits per value.
fn narrowed(kind: &PageKind, page: &[u8]) -> (PageKind, Vec<u8>) {
    if kind.element.bytes() == 2 {
        return (*kind, page.to_vec());
    }
    let narrow = PageKind { element: Element::F16, ..*kind };
    let mut bytes = vec![0; narrow.bytes()];
    let mut values = vec![0.0; kind.shape.head_values()];
    let mut narrowed = PageMut::new(narrow, &mut bytes);
    for head in 0..usize::from(kind.shape.heads) {
        Page::new(*kind, page).read_head(head, &mut values);
        narrowed.write_head(head, &values);
    }
    (narrow, bytes)
}

/// All values of a page, `[head][token][channel]`.
#[must_use]
pub fn values_of(kind: &PageKind, page: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; kind.shape.values()];
    for (head, values) in values.chunks_exact_mut(kind.shape.head_values()).enumerate() {
        Page::new(*kind, page).read_head(head, values);
    }
    values
}

/// Writes all values of a page, `[head][token][channel]`.
pub fn put_values(kind: &PageKind, page: &mut [u8], values: &[f32]) {
    let mut page = PageMut::new(*kind, page);
    for (head, values) in values.chunks_exact(kind.shape.head_values()).enumerate() {
        page.write_head(head, values);
    }
}

/// The kind of a whole engine page. Padding may follow the page's bytes.
///
/// # Panics
/// A shape is too large for frames. The engine's configuration excludes that.
#[must_use]
pub fn engine_page(layout: &KvLayout, layer: usize, side: Side) -> PageKind {
    let small = |value: usize| u16::try_from(value).expect("the engine's configuration bounds shapes");
    let shape =
        Shape { heads: small(layout.num_kv_heads), tokens: small(layout.block_tokens), dim: small(layout.head_dim) };
    let order = if side == Side::K { Order::KeyPanels } else { Order::ValuePanels };
    let element = match layout.element {
        ElementType::F32 => Element::F32,
        ElementType::Bf16 => Element::Bf16,
    };
    PageKind { shape, element, layout: Layout { order, capacity: shape.tokens }, side, layer: small(layer) }
}
