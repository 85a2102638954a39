//! Encoding of blocks in the region, for engines with a known page layout.

use crate::errors::wrong;
use cenote_codec::{CodecSpec, DecodeError, Element, Layout, Order, PageCodec, PageKind, Profile, Shape, Side};
use cenote_store::{BlockCodec, PageFrame, Readable};
use pyo3::prelude::*;
use std::sync::Arc;

/// Bytes of the largest block, which is the size of the largest chunk.
const BLOCK_BYTES_MAX: u128 = 512 << 20;

/// Layout of a layer's page in an engine: K and V of the tokens of a block.
#[derive(Clone, Copy)]
struct PageLayout {
    shape: Shape,
    element: Element,
    /// True if the heads of a token are contiguous; otherwise the tokens of a head are.
    by_token: bool,
    /// True if each key is followed by its value; otherwise all values follow all keys.
    joint: bool,
}

impl PageLayout {
    /// Bytes of K, or of V.
    const fn side_bytes(&self) -> usize {
        self.shape.values() * self.element.bytes()
    }

    /// Calls `each` with the byte offsets of each row (one head's channels of one token).
    ///
    /// The first offset is in the engine's page, the second in `[head][token][channel]`.
    fn rows(&self, side: Side, mut each: impl FnMut(usize, usize)) {
        let (heads, tokens) = (usize::from(self.shape.heads), usize::from(self.shape.tokens));
        let row_bytes = usize::from(self.shape.dim) * self.element.bytes();
        let side = usize::from(side == Side::V);
        for head in 0..heads {
            for token in 0..tokens {
                let row = head * tokens + token;
                let in_page = if self.by_token { token * heads + head } else { row };
                let in_page = if self.joint { 2 * in_page + side } else { side * heads * tokens + in_page };
                each(in_page * row_bytes, row * row_bytes);
            }
        }
    }
}

/// Encoder and decoder of an engine's blocks.
pub struct Coding {
    layout: PageLayout,
    blocks: Arc<BlockCodec>,
    layers: usize,
}

impl Coding {
    /// Bytes of a layer's page.
    pub const fn page_bytes(&self) -> usize {
        2 * self.layout.side_bytes()
    }

    /// Bytes of an unencoded block.
    pub const fn block_bytes(&self) -> u64 {
        (self.layers * self.page_bytes()) as u64
    }

    pub const fn num_layers(&self) -> usize {
        self.layers
    }

    /// The blocks that a user without or with this coding can read.
    pub fn readable(coding: Option<&Self>) -> Readable {
        Readable::of(coding.map(|coding| Arc::clone(&coding.blocks)))
    }

    const fn row_bytes(&self) -> usize {
        self.layout.shape.dim as usize * self.layout.element.bytes()
    }

    /// Appends the frames of a layer's page.
    pub fn encode(&self, layer: usize, page: &[u8], frames: &mut Vec<u8>) {
        let mut values = vec![0; self.layout.side_bytes()];
        for side in [Side::K, Side::V] {
            let len = self.row_bytes();
            self.layout.rows(side, |from, to| values[to..to + len].copy_from_slice(&page[from..from + len]));
            self.blocks.encode_page(2 * layer + usize::from(side == Side::V), &values, frames);
        }
    }

    /// The frames of a block's pages. Fails if a frame is malformed or unknown.
    pub fn split(&self, frames: &[u8]) -> Result<Vec<PageFrame>, DecodeError> {
        self.blocks.split(frames)
    }

    /// Decodes a layer's page. `pages` is the result of `split` for `frames`.
    pub fn decode(&self, layer: usize, pages: &[PageFrame], frames: &[u8], page: &mut [u8]) -> Result<(), DecodeError> {
        let mut values = vec![0; self.layout.side_bytes()];
        for side in [Side::K, Side::V] {
            let index = 2 * layer + usize::from(side == Side::V);
            self.blocks.decode(index, &pages[index], frames, &mut values)?;
            let len = self.row_bytes();
            self.layout.rows(side, |to, from| page[to..to + len].copy_from_slice(&values[from..from + len]));
        }
        Ok(())
    }
}

/// Encoding of a namespace's blocks.
#[pyclass(frozen, module = "cenote")]
pub struct Codec {
    pub coding: Arc<Coding>,
    name: String,
    profile: Option<[u8; 32]>,
}

#[pymethods]
impl Codec {
    #[new]
    #[pyo3(signature = (codec, *, num_layers, num_heads, head_dim, block_tokens, dtype, order, kv, profile=None))]
    fn new(
        codec: &str,
        num_layers: u16,
        num_heads: u16,
        head_dim: u16,
        block_tokens: u16,
        dtype: &str,
        order: &str,
        kv: &str,
        profile: Option<&[u8]>,
    ) -> PyResult<Self> {
        let spec: CodecSpec = codec.parse().map_err(|error: cenote_codec::SpecError| wrong(error.to_string()))?;
        let element = match dtype {
            "f16" => Element::F16,
            "bf16" => Element::Bf16,
            "f32" => Element::F32,
            other => return Err(wrong(format!("codecs are for f16, bf16 and f32, not for {other}"))),
        };
        let by_token = match order {
            "NHD" => true,
            "HND" => false,
            other => return Err(wrong(format!("the order is {other}; it may be NHD or HND"))),
        };
        let joint = match kv {
            "joint" => true,
            "split" => false,
            other => return Err(wrong(format!("kv is {other}; it may be joint or split"))),
        };
        let shape = Shape { heads: num_heads, tokens: block_tokens, dim: head_dim };
        if shape.values() == 0 || num_layers == 0 {
            return Err(wrong(format!(
                "a page has no values: {num_layers} layers of {num_heads} heads, {block_tokens} tokens, {head_dim} channels"
            )));
        }
        // No overflow: the factors are four `u16`, the bytes of an element, and 2.
        let block_bytes = 2 * shape.values() as u128 * u128::from(num_layers) * element.bytes() as u128;
        if block_bytes > BLOCK_BYTES_MAX {
            return Err(wrong(format!("blocks of {block_bytes} bytes; a region stores none above {BLOCK_BYTES_MAX}")));
        }
        let known = profile.map(Profile::parse).transpose().map_err(|error| wrong(format!("the profile: {error}")))?;
        if let Some(known) = &known {
            let (layers, channels) = (known.layers.len(), known.layers.first().map_or(0, |sides| sides[0].means.len()));
            let (wanted, wanted_channels) = (usize::from(num_layers), shape.token_values());
            if (layers, channels) != (wanted, wanted_channels) {
                return Err(wrong(format!(
                    "the profile has {layers} layers of {channels} channels, but the blocks have {wanted} of {wanted_channels}"
                )));
            }
        }
        let built: Arc<dyn PageCodec> = spec.build(known.as_ref()).map_err(|error| wrong(error.to_string()))?;
        if built.as_group().is_some() {
            return Err(wrong(format!(
                "{spec} encodes several layers together, and connectors encode page by page; only `cenote serve` can"
            )));
        }
        let layout = PageLayout { shape, element, by_token, joint };
        let order = Layout { order: Order::TokenMajor, capacity: block_tokens };
        let pages = (0..num_layers).flat_map(|layer| {
            [Side::K, Side::V].map(|side| (PageKind { shape, element, layout: order, side, layer }, Arc::clone(&built)))
        });
        let coding = Coding { layout, blocks: Arc::new(BlockCodec::new(pages.collect())), layers: num_layers.into() };
        let profile = known.as_ref().map(Profile::fingerprint);
        Ok(Self { coding: Arc::new(coding), name: spec.to_string(), profile })
    }

    /// The codec's name with its settings, and the fingerprint of the profile if it has one.
    ///
    /// Two users with equal names can read each other's blocks.
    #[getter]
    fn name(&self) -> String {
        let profile = self.profile.map(hex::encode);
        profile.map_or_else(|| self.name.clone(), |hex| format!("{} {hex}", self.name))
    }

    /// Bytes of an unencoded block.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.coding.block_bytes()
    }

    fn __repr__(&self) -> String {
        format!("Codec({:?}, blocks of {} bytes)", self.name, self.coding.block_bytes())
    }
}
