//! The OpenAI API as data: bodies in, bodies out. Pure translation without sockets, clocks or
//! engines.
//!
//! A request is refused only for a nameable reason: the error carries the field (`param`) in the
//! client's spelling. Unknown fields are ignored, because clients send extra fields. Known fields
//! that this server does not support and that would change the answer are refused; all fields of
//! vLLM's requests are known.

mod chat;
mod completions;
mod error;
mod hints;
mod logprobs;
mod reply;
mod request;
mod unsupported;
mod words;

pub use error::ApiError;
pub use reply::{Answer, Piece, Reply, Shape};
pub use request::{Body, Call, Limits};
pub use unsupported::is_known;

pub(crate) use chat::chat_call;
pub(crate) use completions::completions_call;
pub(crate) use request::unknown_model;
