//! Batch-invariant CPU kernels in safe Rust.
//!
//! Every output element is *one* sequential chain of fused multiply-adds. Its order depends only on
//! the element, not on the number of rows, tile boundaries, thread count or vector width. So a
//! token's logits have the same bits whether its prompt was computed at once, in chunks, beside
//! other requests or from cached KV. They are also the same on AVX2, AVX-512 and NEON.
//! Outer-product kernels give this order at no cost: each vector lane owns one output column, and
//! the inner loop runs over `k` alone.
//!
//! Vector code goes through [`pulp`], which selects the instruction set at run time and keeps this
//! crate free of `unsafe`. All kernels work on *panels*: 16 columns wide, `[k][16]`, one cache line
//! per `k` in f32 (one AVX-512 register, two of AVX2, four of NEON).

pub mod attention;
pub mod buffer;
pub mod elementwise;
pub mod gemm;
mod micro;
pub mod summary;

pub use buffer::{AlignedBuffer, ElementType};

/// Columns per panel.
pub const PANEL: usize = 16;
