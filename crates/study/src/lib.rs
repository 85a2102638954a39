//! Floor 5: what codecs do to a model, measured on the reference engine.
//!
//! [`profile`] looks at a model at work and makes the [`cenote_codec::Profile`] that codecs go by. [`evaluate`] runs a text
//! through the engine with all past KV through a codec, and compares with the same engine without one. [`choose`] measures each
//! layer with each codec and writes down which to take, [`agreement`] compares profiles of several texts. [`baselines`] are other
//! people's quantizers, for comparison only: no pool stores what they make. [`outliers`] makes a model whose keys have outlier
//! channels, as large models have. [`papers`] has what two papers say of
//! theirs. [`report`] draws it, with [`plot`].
//!
//! [`watermark`] and [`swap`] look at the scheduler instead, in the simulator.
#![forbid(unsafe_code)]

pub mod agreement;
pub mod baselines;
pub mod choose;
pub mod evaluate;
pub mod outliers;
pub mod papers;
pub mod plot;
pub mod profile;
pub mod report;
pub mod swap;
pub mod text;
pub mod watermark;

use cenote_codec::{Codecs, Element, Layout, Order, Page, PageCodec, PageKind, PageMut, Shape, Side, encode};
use cenote_engine::ElementType;
use cenote_engine::kv::KvLayout;
use std::sync::Arc;

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The text cannot be read, or is too short.
    #[error("{0}")]
    Text(String),
    /// The model is not one that this can be asked of.
    #[error("{0}")]
    Model(String),
    /// A codec's frame did not come back: a bug of the codec.
    #[error("{subject}: a page of layer {layer} did not come back: {fact}")]
    Lost {
        /// Which codec.
        subject: String,
        /// Of which layer the page was.
        layer: u16,
        /// What decoding said.
        fact: String,
    },
}

/// Something that pages go through.
pub trait Subject: Send + Sync {
    /// What tables call it.
    fn name(&self) -> String;

    /// Puts what comes out of a page in its place; returns the bits that it takes between, all of them counted.
    ///
    /// # Errors
    /// It cannot.
    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError>;
}

/// A codec of the pool, frames and all. Pages go in with 16 bits a value, as pools have them.
pub struct CodecSubject {
    name: String,
    codec: Arc<dyn PageCodec>,
    codecs: Codecs,
}

impl CodecSubject {
    /// The codec under a name.
    #[must_use]
    pub fn new(name: impl Into<String>, codec: Arc<dyn PageCodec>) -> Self {
        let mut codecs = Codecs::default();
        codecs.add(Arc::clone(&codec));
        Self { name: name.into(), codec, codecs }
    }
}

impl Subject for CodecSubject {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
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
}

/// The page with 16 bits a value.
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
fn values_of(kind: &PageKind, page: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; kind.shape.values()];
    for (head, values) in values.chunks_exact_mut(kind.shape.head_values()).enumerate() {
        Page::new(*kind, page).read_head(head, values);
    }
    values
}

/// Puts all values of a page in their places.
fn put_values(kind: &PageKind, page: &mut [u8], values: &[f32]) {
    let mut page = PageMut::new(*kind, page);
    for (head, values) in values.chunks_exact(kind.shape.head_values()).enumerate() {
        page.write_head(head, values);
    }
}

/// The kind of a whole page of the engine; its bytes may be followed by padding.
///
/// # Panics
/// A shape is too large for frames, which the engine's configuration rules out.
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
