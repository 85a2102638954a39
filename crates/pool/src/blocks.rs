//! Blocks: from a reserved slot to a readable block and back to a free slot ([`life`]), and the
//! repair of what a death leaves half done ([`rebuild`]) and of damaged payloads ([`doubt`]).

mod doubt;
pub mod life;
pub mod offers;
mod rebuild;

pub(crate) use life::Label;

use crate::hosts::Hosts;
use crate::index::Index;
use crate::log::Log;
use crate::region::Region;
use crate::space::Space;
use crate::sync::Locks;
use cenote_mem::{Fabric, HostLocal};
use std::sync::Arc;

/// Writes, finds, reads and retracts blocks.
pub(crate) struct Blocks<F: Fabric, H: HostLocal> {
    region: Arc<Region<F, H>>,
    log: Arc<Log<F, H>>,
    locks: Arc<Locks<F, H>>,
    hosts: Arc<Hosts<F, H>>,
    index: Arc<Index<F, H>>,
    space: Arc<Space<F, H>>,
    doubt: doubt::Doubt,
}

impl<F: Fabric, H: HostLocal> Blocks<F, H> {
    pub fn new(
        region: Arc<Region<F, H>>,
        log: Arc<Log<F, H>>,
        locks: Arc<Locks<F, H>>,
        hosts: Arc<Hosts<F, H>>,
        index: Arc<Index<F, H>>,
        space: Arc<Space<F, H>>,
    ) -> Self {
        Self { region, log, locks, hosts, index, space, doubt: doubt::Doubt::default() }
    }
}
