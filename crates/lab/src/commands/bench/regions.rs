//! Regions of a bench, removed when it ends, also by a signal.

use cenote_base::units::ByteSize;
use cenote_console::args::{DesignArg, FlushArg, HostsLockArg, NewRegionArgs, RegionArgs};
use cenote_console::failure::Failure;
use cenote_console::region::TemporaryRegion;
use cenote_console::signals::EndSignals;
use cenote_mem::Flush;
use std::sync::{Arc, Mutex, PoisonError};

/// Differences of a bench's region from the recommended one.
#[derive(Clone, Copy)]
pub struct Shape {
    pub bytes: u64,
    pub chunk_bytes: u64,
    pub min_block_bytes: u64,
    pub max_hosts: u8,
    pub flush: Flush,
    pub hosts_lock: HostsLockArg,
    /// Only used pages take memory; otherwise all are touched now.
    pub sparse: bool,
    /// The seed of names; otherwise one of its own.
    pub hash_seed: Option<[u8; 32]>,
}

impl Shape {
    pub const fn of(flush: Flush, bytes: u64) -> Self {
        Self {
            bytes,
            chunk_bytes: 2 << 20,
            min_block_bytes: 16 << 10,
            max_hosts: 2,
            flush,
            hosts_lock: HostsLockArg::Bakery,
            sparse: false,
            hash_seed: None,
        }
    }
}

/// The measured fabrics, by name: one host, and several if the processor has an instruction for
/// them.
pub fn fabrics() -> impl Iterator<Item = (&'static str, Flush)> {
    [Some(("Coherent", Flush::None)), Flush::best().map(|flush| ("Flushed", flush))].into_iter().flatten()
}

/// The host that reads what host 0 publishes: another one, if there are several.
pub const fn other_host(flush: Flush) -> u8 {
    if flush.is_coherent() { 0 } else { 1 }
}

impl Drop for Regions {
    fn drop(&mut self) {
        // The thread that waits for signals holds it too, and does not end.
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The last regions, kept until the next is created in their place.
pub struct Regions {
    current: Arc<Mutex<Vec<TemporaryRegion>>>,
    /// Settings of the next region.
    pub design: DesignArg,
}

impl Regions {
    pub fn until_signal() -> Result<Self, Failure> {
        let current = Arc::<Mutex<Vec<TemporaryRegion>>>::default();
        let held = Arc::clone(&current);
        EndSignals::catch()?.then(move |code| {
            // The lock is held during creation, so that a signal handler waits for a complete
            // region.
            held.lock().unwrap_or_else(PoisonError::into_inner).clear();
            std::process::exit(code.into());
        });
        Ok(Self { current, design: DesignArg::Cenote })
    }

    /// Creates one in place of the last ones, which no process has open any more.
    pub fn make(&self, shape: &Shape) -> Result<RegionArgs, Failure> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.make_beside(shape)
    }

    /// Creates one beside the last.
    pub fn make_beside(&self, shape: &Shape) -> Result<RegionArgs, Failure> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // Names differ within this process.
        let purpose = ["bench", "bench-beside"][current.len()];
        let new = NewRegionArgs {
            chunk_size: ByteSize(shape.chunk_bytes),
            min_block: ByteSize(shape.min_block_bytes),
            max_hosts: shape.max_hosts,
            flush: FlushArg::Fixed(shape.flush),
            hosts_lock: shape.hosts_lock,
            design: self.design,
            prefault: !shape.sparse,
            hash_seed: shape.hash_seed,
            ..NewRegionArgs::of_size(shape.bytes)
        };
        let made =
            if shape.sparse { TemporaryRegion::sparse(purpose, &new) } else { TemporaryRegion::make(purpose, &new) };
        let made = made?;
        let args = made.args().clone();
        current.push(made);
        Ok(args)
    }
}
