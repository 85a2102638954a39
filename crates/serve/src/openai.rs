//! The OpenAI API as data: bodies in, bodies out. Pure translation; no socket, clock or engine.
//!
//! A request is refused only for a reason that can be named: the error carries the field (`param`) in
//! the client's own spelling. Fields that nobody here knows are ignored, because clients send extras;
//! fields that are known and would change the answer are refused, because silence would be a lie.

mod chat;
mod completions;
mod error;
mod logprobs;
mod reply;
mod request;
mod unsupported;
mod words;

pub use error::ApiError;
pub use reply::{Answer, Piece, Reply, Shape};
pub use request::{Body, Call, Limits};

pub(crate) use chat::chat_call;
pub(crate) use completions::completions_call;
pub(crate) use request::unknown_model;
