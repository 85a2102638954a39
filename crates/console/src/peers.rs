//! Regions of other hosts for commands.

use crate::failure::Failure;
use crate::region::HostPool;
use cenote_base::Clock;
use cenote_mem::Mapped;
use cenote_reach::nixl::Nixl;
use cenote_reach::{Access, Beside, Settings};
use std::path::Path;
use std::sync::Arc;

/// Opens NIXL's library: the named file, or what the dynamic linker finds.
pub fn nixl(path: Option<&Path>) -> Result<Arc<Nixl>, Failure> {
    Nixl::open(path).map_err(|error| Failure::new(error.to_string()))
}

/// Asks these peers for blocks that the pool lacks.
pub fn start(
    pool: &HostPool,
    settings: &Settings,
    key: &Path,
    library: Option<&Path>,
) -> Result<Arc<Beside<Arc<Mapped>>>, Failure> {
    let access = Access::open(settings.clone(), key, library).map_err(|error| Failure::new(error.to_string()))?;
    Ok(access.start(pool.clone(), Clock::system()))
}
