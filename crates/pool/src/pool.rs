//! The API: a [`Pool`] is one worker's view of a region, with the handles that it gives out.

pub mod fill;
pub mod listing;
pub mod locks;
pub mod memory;
pub mod parts;
pub mod publish;
pub mod read;
pub mod roots;
pub mod rows;
pub mod swap;
mod tables;
pub mod upkeep;

use crate::error::PoolError;
use crate::members::Member;
use crate::region::Region;
use crate::region::area::{area_opener, sweep_host_memory};
use crate::region::config::AttachOptions;
use crate::region::counters::Counter;
use crate::region::superblock::Superblock;
use cenote_base::seal::{Seal, SealKeys};
use cenote_mem::host::HostError;
use cenote_mem::{Fabric, HostArea, HostLocal, HostSpec, Mapped};
use std::sync::Arc;

/// A pool over a mapped file or device, of one host or of several.
pub type HostPool = Pool<Arc<Mapped>>;

/// One worker's view of a region. Clones share the worker.
pub struct Pool<F: Fabric, H: HostLocal = HostArea>(pub(crate) Arc<Member<F, H>>);

impl<F: Fabric, H: HostLocal> Clone for Pool<F, H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: Fabric> Pool<F> {
    /// Joins the region as a worker of `options.host`, and recovers dead workers of this host.
    ///
    /// # Errors
    /// The region is unreadable (see [`Superblock::read`]) or has another seed, or no worker slot
    /// is free.
    pub fn attach(fabric: F, options: &AttachOptions) -> Result<Self, PoolError> {
        if !options.private {
            let _ = sweep_host_memory();
        }
        let area = area_opener(&fabric, options);
        Self::attach_on(fabric, options, area)
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// As [`Pool::attach`], with host memory that `host` opens by name and shape.
    pub fn attach_on(
        fabric: F,
        options: &AttachOptions,
        host: impl FnOnce(&str, HostSpec) -> Result<H, HostError>,
    ) -> Result<Self, PoolError> {
        let region = Region::open(fabric, options, host)?;
        region.demand_keys()?;
        let member = Member::observe(region);
        Ok(Self(Arc::new(member.join(&options.worker_name)?)))
    }

    /// Whether both are of one worker.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The settings that the region's creator chose.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.0.region.superblock
    }

    /// How payloads of the region are sealed.
    #[must_use]
    pub fn seal(&self) -> Seal {
        self.0.region.seal_mode()
    }

    /// The keys of a sealed region that this worker was given. Places below the region are sealed with
    /// them as well.
    #[must_use]
    pub fn seal_keys(&self) -> Option<&SealKeys> {
        self.0.region.seal_keys()
    }

    /// The fabric, for callers that place buffers of their own in the region.
    #[must_use]
    pub fn fabric(&self) -> &F {
        &self.0.region.fabric
    }

    /// Adds to a counter of this host, for a tier that other code keeps below the region.
    pub fn count(&self, counter: Counter, by: u64) {
        self.0.region.counters().add(counter, by);
    }

    /// Value of a counter of this host.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.0.region.counters().get(counter)
    }
}
