//! The region of this process.

use crate::errors::{Fault, status, text};
use cenote_base::{HashSeed, HostId};
use cenote_mem::fork::ProcessStamp;
use cenote_mem::{Flush, MapOptions, Mapped, RegionSource};
use cenote_pool::{AttachOptions, Heart, HostPool, Pool, PoolConfig, make_region, open_region, random_bytes};
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// A region that is open.
pub struct Region {
    pub pool: HostPool,
    /// Of the process that opened it: a forked child has its memory and not its place in the region.
    stamp: ProcessStamp,
    /// Locks that threads hold.
    pub held: AtomicUsize,
    _heart: Heart,
}

impl Region {
    /// Whether the parent of this process opened it.
    pub fn is_inherited(&self) -> bool {
        self.stamp.is_inherited()
    }

    pub fn fabric(&self) -> &Mapped {
        self.pool.fabric()
    }
}

static OPEN: RwLock<Option<Arc<Region>>> = RwLock::new(None);

/// The region of this process.
pub fn region() -> Result<Arc<Region>, Fault> {
    let open = OPEN.read().unwrap_or_else(PoisonError::into_inner).clone();
    let region = open.ok_or_else(|| Fault::new(libc::ENXIO, "no region is open: call cenote_open first"))?;
    if region.is_inherited() {
        return Err(Fault::new(libc::EPERM, "the region was opened by the parent of this process: open it here"));
    }
    Ok(region)
}

fn source(region: &str) -> Result<RegionSource, Fault> {
    region.parse().map_err(|error| Fault::new(libc::EINVAL, format!("{region}: {error}")))
}

/// Makes a region of `size` bytes: `shm:NAME`, a file, or a hugetlbfs path. `chunk_size` is the largest piece of memory that can
/// be allocated, a power of two; 0: 2 MiB. `hosts` is how many may share it; with more than one the region is made for hosts
/// that do not share their caches. -EEXIST: it is there already.
///
/// # Safety
/// `region` must end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_create(region: *const c_char, size: u64, chunk_size: u64, hosts: u8) -> c_int {
    let make = || {
        // SAFETY: the caller's guarantee.
        let source = source(unsafe { text("region", region)? })?;
        let mut config = PoolConfig::new(HashSeed(random_bytes()?), random_bytes()?);
        config.max_hosts = hosts.max(1);
        if chunk_size != 0 {
            config.chunk_bytes = chunk_size;
        }
        let flush = match hosts {
            0 | 1 => Flush::None,
            _ => Flush::best().ok_or_else(|| Fault::new(libc::ENOTSUP, "this processor has no flush instruction"))?,
        };
        make_region(&source, size, 0o600, flush, &config, &MapOptions::default())?;
        Ok(0)
    };
    status(make())
}

/// Opens a region for this process, as host `host` of those that share it. `name` is what `cenote pool info` shows. -EBUSY: this process has
/// one open.
///
/// # Safety
/// `region` and `name` must end with zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_open(region: *const c_char, name: *const c_char, host: u8) -> c_int {
    let open = || {
        // SAFETY: the caller's guarantee.
        let (source, name) = unsafe { (source(text("region", region)?)?, text("name", name)?) };
        let mut place = OPEN.write().unwrap_or_else(PoisonError::into_inner);
        if place.as_ref().is_some_and(|open| !open.is_inherited()) {
            return Err(Fault::new(libc::EBUSY, "this process has a region open"));
        }
        // The parent's is the parent's to close.
        std::mem::forget(place.take());
        let fabric = open_region(&source, &MapOptions::default())?;
        let options = AttachOptions { host: HostId(host), ..AttachOptions::named(name) };
        let pace = Duration::from_secs(1).min(options.host_timeout / 4);
        let pool = Pool::attach(fabric, &options)?;
        let ticking = pool.clone();
        let beat = move || {
            ticking.tick();
            true
        };
        let heart = Heart::start(pace, beat).map_err(|error| Fault::new(libc::EAGAIN, error.to_string()))?;
        let stamp = ProcessStamp::current();
        *place = Some(Arc::new(Region { pool, stamp, held: AtomicUsize::new(0), _heart: heart }));
        Ok(0)
    };
    status(open())
}

/// Leaves the region. Memory that was not named by `cxl_shm_put` goes; pointers into the region must not be used any more.
/// -EBUSY: a thread holds a lock.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_close() -> c_int {
    let close = || {
        let region = region()?;
        let mut place = OPEN.write().unwrap_or_else(PoisonError::into_inner);
        if region.held.load(Ordering::Acquire) > 0 {
            return Err(Fault::new(libc::EBUSY, "a thread holds a lock of the region"));
        }
        place.take();
        Ok(0)
    };
    status(close())
}
