//! Lines that this host and its workers write: the host's line, worker lines, marks of dead hosts,
//! and hazard lines (pins).

pub mod demand;
pub mod hazards;
pub mod hits;
mod lines;

use crate::log::Log;
use crate::region::Region;
use cenote_mem::{Fabric, HostLocal};
use hazards::PinTable;
use std::sync::Arc;

/// Writes this host's lines and reads those of all hosts.
pub(crate) struct Hosts<F: Fabric, H: HostLocal> {
    region: Arc<Region<F, H>>,
    log: Arc<Log<F, H>>,
    /// Hazard slots of this worker.
    pub pins: PinTable,
}

impl<F: Fabric, H: HostLocal> Hosts<F, H> {
    pub fn new(region: Arc<Region<F, H>>, log: Arc<Log<F, H>>) -> Self {
        let pins = PinTable::new(region.layout.hazard_lines_per_worker);
        Self { region, log, pins }
    }
}
