//! Floor 1: codecs for pages of a KV cache.
//!
//! A codec turns one [`Page`] into the payload of a [`Frame`] and back. It reads no other page. A
//! frame names its codec, so pages of different codecs can lie side by side. Frames are input:
//! decoding any bytes ends in a page or in a [`DecodeError`].
//!
//! | codec | bits a value | what it is |
//! |---|---|---|
//! | [`Raw`] | as the page | the values |
//! | [`SpecKv`] | 8 and less | INT8, differences, runs of zeros (SpecKV §3.5) |
//! | [`Oaken`] | 4.8 and scales | three groups by magnitude, thresholds from a profile (Oaken §4) |
//! | [`QPack`] | by the error bound | mean and step per channel from a profile, widths per page |
//! | [`QPackZ`] | half a bit less | the same codes, entropy-coded with tables from a profile |
//! | [`Prism`] | by the steps | principal components of several layers from a profile, entropy-coded |
//!
//! [`Prism`] is a [`GroupCodec`]: its frame has one side of several layers, so it is used through
//! [`encode_block`] and [`Codecs::split_block`].
#![deny(unsafe_code)]

mod bases;
mod block;
mod codec;
mod codecs;
mod error;
mod frame;
mod math;
#[allow(unsafe_code, reason = "vector instructions")]
mod oaken;
mod page;
#[allow(unsafe_code, reason = "vector instructions")]
mod prism;
pub mod profile;
#[allow(unsafe_code, reason = "vector instructions")]
mod qpack;
#[allow(unsafe_code, reason = "vector instructions")]
mod qpackz;
#[allow(unsafe_code, reason = "vector instructions")]
mod raw;
#[allow(unsafe_code, reason = "vector instructions")]
mod simd;
mod spec;
#[allow(unsafe_code, reason = "vector instructions")]
mod speckv;
mod tile;
mod writer;

pub use bases::{Bases, Basis, CHANNELS_MAX};
pub use block::{BlockPage, PlacedFrame, encode_block};
pub use codec::{GroupCodec, GrowingPayload, PageCodec};
pub use codecs::{Codecs, encode};
pub use error::{CodecId, Declined, DecodeError};
pub use frame::{Frame, HEADER_BYTES};
pub use oaken::{Groups, Oaken, OakenWriter, Thresholds};
pub use page::{Element, Layout, Order, Page, PageKind, PageMut, Shape, Side};
pub use prism::Prism;
pub use profile::{Profile, ProfileError, SideProfile};
pub use qpack::{Channels, QPack};
pub use qpackz::QPackZ;
pub use raw::Raw;
pub use simd::{Level, at_level};
pub use spec::{CodecSpec, LayerSpecs, SpecError};
pub use speckv::{SpecKv, SpecKvMode};
pub use writer::PageWriter;
