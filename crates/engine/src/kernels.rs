//! Batch-invariant CPU kernels in safe Rust.
//!
//! Every output element is *one* sequential chain of fused multiply-adds, in an order that depends on
//! nothing but the element itself: not on how many rows are multiplied together, not on where a tile
//! begins, not on the number of threads and not on the width of the machine's vectors. So the logits of
//! a token are the same bits whether its prompt was computed at once, in chunks, beside other requests
//! or from cached KV, and on AVX2 as on AVX-512 or NEON. Outer-product kernels give that for nothing:
//! a vector lane owns one output column, and the inner loop runs over `k` alone.
//!
//! Vector code goes through [`pulp`], which picks the instruction set at run time and keeps this crate
//! free of `unsafe`. The unit of everything is a *panel*: 16 columns wide, `[k][16]`, one cache line per
//! `k` in f32 (one AVX-512 register, two of AVX2, four of NEON).

pub mod attention;
pub mod buffer;
pub mod elementwise;
pub mod gemm;
mod micro;

pub use buffer::{AlignedBuffer, ElementType};

/// Columns of a panel.
pub const PANEL: usize = 16;
