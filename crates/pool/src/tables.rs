//! The tables of a region: namespaces (models that share it) and objects (named bytes).

pub mod namespaces;
pub mod objects;

use crate::blocks::Blocks;
use crate::region::Region;
use crate::space::Space;
use cenote_mem::{Fabric, HostLocal};
use std::sync::Arc;

/// Reads and changes the tables, and frees objects that no row names.
pub(crate) struct Tables<F: Fabric, H: HostLocal> {
    region: Arc<Region<F, H>>,
    space: Arc<Space<F, H>>,
    blocks: Arc<Blocks<F, H>>,
}

impl<F: Fabric, H: HostLocal> Tables<F, H> {
    pub const fn new(region: Arc<Region<F, H>>, space: Arc<Space<F, H>>, blocks: Arc<Blocks<F, H>>) -> Self {
        Self { region, space, blocks }
    }
}
