//! Regions of other hosts for commands.

use crate::failure::Failure;
use crate::region::HostPool;
use cenote_base::{Clock, Deadline};
use cenote_mem::Mapped;
use cenote_reach::nixl::Nixl;
use cenote_reach::{Beside, Key, ReadError, Remote, Settings, connect};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Opens NIXL's library: the named file, or what the dynamic linker finds.
pub fn nixl(path: Option<&Path>) -> Result<Arc<Nixl>, Failure> {
    Nixl::open(path).map_err(|error| Failure::new(error.to_string()))
}

/// Asks these peers for blocks that the pool lacks. They are connected to in the background: serving
/// begins without them.
pub fn start(
    pool: &HostPool,
    settings: &Settings,
    key: &Path,
    library: Option<&Path>,
) -> Result<Arc<Beside<Arc<Mapped>>>, Failure> {
    let (key, nixl) = (Key::from_file(key)?, nixl(library)?);
    let (seed, agents) = (pool.superblock().config.seed, AtomicU64::new(0));
    let connect = move |address: &str, deadline: Deadline| -> Result<Box<dyn Remote>, ReadError> {
        let name = format!("cenote-reader-{}-{}", std::process::id(), agents.fetch_add(1, Ordering::Relaxed));
        connect(&nixl, address, &key, &seed, &name, deadline)
    };
    Ok(Beside::start(pool.clone(), settings, connect, Clock::system()))
}
