//! Inspection and repair of a region: summary, check, garbage collection, health, and the view from
//! outside.

pub mod check;
pub mod gc;
mod health;
pub mod info;
pub mod inspect;
pub mod memory;
pub mod outline;
