//! Membership: a worker joins a region, watches other hosts, recovers dead workers, and leaves.
//!
//! A worker lives as long as its claim on a slot of the host's memory. The kernel drops the claim
//! when the process is gone, whatever its end and its PID namespace. Heartbeats tell other hosts
//! that a host lives; processes of one host conclude nothing from them.

mod join;
pub mod recovery;
pub mod ticker;
mod troubles;
mod watch;

use crate::blocks::Blocks;
use crate::eviction::Evictor;
use crate::hosts::Hosts;
use crate::index::Index;
use crate::log::Log;
use crate::region::{NO_SLOT, Region};
use crate::space::Space;
use crate::sync::Locks;
use crate::tables::Tables;
use cenote_mem::{Fabric, HostLocal};
use std::sync::Arc;
use troubles::Troubles;

/// All parts of one participant: a worker once it has joined, an observer before.
pub(crate) struct Member<F: Fabric, H: HostLocal> {
    pub region: Arc<Region<F, H>>,
    pub log: Arc<Log<F, H>>,
    pub locks: Arc<Locks<F, H>>,
    pub hosts: Arc<Hosts<F, H>>,
    pub index: Arc<Index<F, H>>,
    pub space: Arc<Space<F, H>>,
    pub blocks: Arc<Blocks<F, H>>,
    pub evictor: Evictor<F, H>,
    pub tables: Tables<F, H>,
    pub troubles: Troubles,
    name: String,
    /// Held while the worker lives.
    _claim: Option<H::Claim>,
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// An observer of the region that has not joined.
    pub fn observe(region: Region<F, H>) -> Self {
        let region = Arc::new(region);
        let log = Arc::new(Log::new(Arc::clone(&region)));
        let locks = Arc::new(Locks::new(Arc::clone(&region), Arc::clone(&log)));
        let hosts = Arc::new(Hosts::new(Arc::clone(&region), Arc::clone(&log)));
        let index = Arc::new(Index::new(Arc::clone(&region), Arc::clone(&locks)));
        let space = Arc::new(Space::new(Arc::clone(&region), Arc::clone(&log), Arc::clone(&locks)));
        let blocks = Arc::new(Blocks::new(
            Arc::clone(&region),
            Arc::clone(&log),
            Arc::clone(&locks),
            Arc::clone(&hosts),
            Arc::clone(&index),
            Arc::clone(&space),
        ));
        let evictor = Evictor::new(
            Arc::clone(&region),
            Arc::clone(&log),
            Arc::clone(&hosts),
            Arc::clone(&index),
            Arc::clone(&space),
            Arc::clone(&blocks),
        );
        let tables = Tables::new(
            Arc::clone(&region),
            Arc::clone(&locks),
            Arc::clone(&hosts),
            Arc::clone(&space),
            Arc::clone(&blocks),
        );
        let (name, troubles) = (String::new(), Troubles::default());
        Self { region, log, locks, hosts, index, space, blocks, evictor, tables, troubles, name, _claim: None }
    }

    /// Whether calls of the serving path must leave the region alone: this process was forked by
    /// the member, or the breaker is open.
    #[inline]
    pub fn is_out(&self) -> bool {
        self.locks.breaker.is_out() || self.region.area.is_inherited()
    }

    /// Whether the worker of a slot lives; `None`: another host's is not visible.
    pub fn slot_alive(&self, host: u64, slot: u32) -> Option<bool> {
        (host == self.region.host).then(|| self.region.area.slot_alive(slot))
    }

    /// The name under which this worker has joined.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn has_joined(&self) -> bool {
        self.region.slot() != NO_SLOT
    }
}
