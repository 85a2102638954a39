//! What hosts without common memory read from elsewhere, and the requests that wait for it.

use super::Setup;
use super::mesh::{Around, Mesh, NetworkReads};
use super::objects::Objects;
use super::world::World;
use crate::kernel::Time;
use crate::model::StepWork;
use crate::rack::Network;
use crate::workload::{BlockNumber, Workload};

pub(super) enum Far {
    Mesh(Mesh),
    Objects(Objects),
}

impl Far {
    /// `None`: hosts share a region.
    pub(super) fn new(setup: &Setup, workload: &Workload) -> Option<Self> {
        let hosts = setup.hosts.filter(|_| setup.shared.is_some())?;
        let block = (setup.block_bytes(workload), u64::from(workload.block_tokens()));
        match hosts.network? {
            Network::Mesh(card) => Some(Self::Mesh(Mesh::new(card, hosts, setup.instances as usize, block))),
            Network::Objects(link) => Some(Self::Objects(Objects::new(link, hosts.regions(), block))),
        }
    }

    /// An instance computed a step without loading.
    pub(super) fn has_computed(&mut self, at: usize, work: &StepWork, ns: Time) {
        match self {
            Self::Mesh(mesh) => mesh.has_computed(at, work.tokens, work.pairs, ns),
            Self::Objects(objects) => objects.has_computed(at, work.tokens, ns),
        }
    }

    /// An instance computed these blocks.
    pub(super) fn published(&mut self, at: usize, blocks: &[BlockNumber], now: Time) {
        if let Self::Objects(objects) = self {
            objects.upload(at, blocks, now);
        }
    }
}

impl World<'_> {
    /// What the hosts read.
    pub(super) fn fetched(&self) -> NetworkReads {
        match &self.far {
            None => NetworkReads::default(),
            Some(Far::Mesh(mesh)) => mesh.counts(),
            Some(Far::Objects(objects)) => objects.counts(),
        }
    }

    /// Whether a request of an instance waits for blocks from elsewhere.
    pub(super) fn seeks(&mut self, at: usize, request: usize) -> bool {
        if self.far.is_none() {
            return false;
        }
        let found = self.prefix(at).num_found(request);
        let Self { far: Some(far), calendar, shared, workload, .. } = self else { return false };
        if found == workload.blocks(&workload.requests()[request]).len() {
            return false;
        }
        let mut around = Around { calendar, regions: shared, workload };
        match far {
            Far::Mesh(mesh) => mesh.seek(at, request, found, &mut around),
            Far::Objects(objects) => objects.seek(at, request, found, &mut around),
        }
    }

    /// A step of a read ended.
    pub(super) fn fetch(&mut self, job: u32) {
        let Self { far: Some(far), calendar, shared, workload, .. } = self else { return };
        let mut around = Around { calendar, regions: shared, workload };
        match far {
            Far::Mesh(mesh) => mesh.step(job, &mut around),
            Far::Objects(objects) => objects.step(job, &mut around),
        }
    }

    /// A request waits no longer.
    pub(super) fn fetch_late(&mut self, job: u32) {
        match &mut self.far {
            None => (),
            Some(Far::Mesh(mesh)) => mesh.late(job, &mut self.calendar),
            Some(Far::Objects(objects)) => objects.late(job, &mut self.calendar),
        }
    }
}
