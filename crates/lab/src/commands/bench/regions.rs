//! Regions of a bench. They go when it ends, also by a signal.

use cenote_base::units::ByteSize;
use cenote_console::args::{DesignArg, FlushArg, HostsLockArg, NewRegionArgs, RegionArgs};
use cenote_console::failure::Failure;
use cenote_console::region::TemporaryRegion;
use cenote_console::signals::EndSignals;
use cenote_mem::Flush;
use std::sync::{Arc, Mutex, PoisonError};

/// How a bench's region differs from the recommended one.
#[derive(Clone, Copy)]
pub struct Shape {
    pub bytes: u64,
    pub chunk_bytes: u64,
    pub min_block_bytes: u64,
    pub max_hosts: u8,
    pub flush: Flush,
    pub hosts_lock: HostsLockArg,
    /// Only pages that are used take memory; else all are touched now.
    pub sparse: bool,
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
        }
    }
}

/// The fabrics that are measured, by name: one host, and several where the processor has an
/// instruction for them.
pub fn fabrics() -> impl Iterator<Item = (&'static str, Flush)> {
    [Some(("Coherent", Flush::None)), Flush::best().map(|flush| ("Flushed", flush))].into_iter().flatten()
}

/// A host that reads what host 0 publishes: another one, where there can be several.
pub const fn other_host(flush: Flush) -> u8 {
    if flush.is_coherent() { 0 } else { 1 }
}

impl Drop for Regions {
    fn drop(&mut self) {
        // Who waits for signals has it too, and does not end.
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The last region that was made is there until the next is made.
pub struct Regions {
    current: Arc<Mutex<Option<TemporaryRegion>>>,
    /// What the next region is like.
    pub design: DesignArg,
}

impl Regions {
    pub fn until_signal() -> Result<Self, Failure> {
        let current = Arc::new(Mutex::new(None));
        let held = Arc::clone(&current);
        EndSignals::catch()?.then(move |code| {
            // Who makes a region holds the lock, so half of one is waited for.
            *held.lock().unwrap_or_else(PoisonError::into_inner) = None;
            std::process::exit(code.into());
        });
        Ok(Self { current, design: DesignArg::Cenote })
    }

    /// Makes one, in place of the last. Nobody has that one open any more.
    pub fn make(&self, shape: &Shape) -> Result<RegionArgs, Failure> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        *current = None;
        let new = NewRegionArgs {
            chunk_size: ByteSize(shape.chunk_bytes),
            min_block: ByteSize(shape.min_block_bytes),
            max_hosts: shape.max_hosts,
            flush: FlushArg::Fixed(shape.flush),
            hosts_lock: shape.hosts_lock,
            design: self.design,
            prefault: !shape.sparse,
            ..NewRegionArgs::of_size(shape.bytes)
        };
        let made =
            if shape.sparse { TemporaryRegion::sparse("bench", &new) } else { TemporaryRegion::make("bench", &new) };
        Ok(current.insert(made?).args().clone())
    }
}
