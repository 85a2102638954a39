//! The history of a region: the flight recorder, the event log of stored and removed blocks, the ring of
//! removed blocks with causes, and the record of requests with its sketches of distinct blocks.

pub mod events;
pub mod follow;
pub mod recorder;
pub mod removals;
pub mod requests;
mod ring;
pub mod view;
pub mod windows;

use crate::region::Region;
use cenote_mem::{Fabric, HostLocal};
use std::sync::Arc;

/// Writes this host's rings and reads those of all hosts.
pub(crate) struct Log<F: Fabric, H: HostLocal> {
    region: Arc<Region<F, H>>,
}

impl<F: Fabric, H: HostLocal> Log<F, H> {
    pub const fn new(region: Arc<Region<F, H>>) -> Self {
        Self { region }
    }
}
