//! The history of a region: the flight recorder, the event log of stored and removed blocks, and the
//! ring of removed blocks with causes.

pub mod events;
pub mod follow;
pub mod recorder;
pub mod removals;
mod ring;
pub mod view;

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
