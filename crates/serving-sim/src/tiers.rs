//! Engines with KV beyond L1: a staging area (L2), the region (L3) and a cold tier (L4).
//!
//! Decisions are [`cenote_policy`]'s: what stays resident and when the rest arrives
//! ([`cenote_policy::staging`]), what sparse attention will choose ([`cenote_policy::choice`]), what to
//! prefetch ([`cenote_policy::prefetch`]), and in which order copies start
//! ([`cenote_policy::transfer`]). Only devices are modelled here ([`Mover`]).
//!
//! - [`dense`]: decode whose attention reads every page in each step.
//! - [`sparse`]: decode whose queries choose pages.
//! - [`directory`]: messages of the paper's coherence directory beside generations.
//! - [`weights`]: the codec weights of eq. 8, learned from throughput.
//! - The cold tier of a shared pool is part of [`crate::serving`].

pub mod dense;
pub mod directory;
mod mover;
pub mod sparse;
pub mod weights;

pub use mover::{Job, Mover};
