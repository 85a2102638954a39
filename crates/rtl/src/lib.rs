//! The RTL of the cache engine (`rtl/`) under test: Verilated models, streams with random stalls,
//! and checks that compare every module with the Rust codecs bit by bit.
//!
//! A check takes a seed and returns an error instead of a panic, so that `cenote-rtl mutate` can
//! demand that a fault makes it fail.

pub mod bench;
pub mod checks;
pub mod cycles;
pub mod kv;
pub mod latency;
pub mod model;
pub mod waveform;

#[allow(missing_docs, reason = "build.rs includes the same file")]
pub mod tops {
    include!("tops.rs");
}

#[allow(missing_docs, reason = "build.rs includes the same file")]
pub mod faults {
    include!("faults.rs");
}
