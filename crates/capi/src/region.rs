//! The region of this process.

use crate::blocks::Namespaces;
use crate::errors::{Fault, status, text};
use crate::rows::RowSets;
use cenote_base::{Clock, HashSeed, HostId};
use cenote_mem::fork::ProcessStamp;
use cenote_mem::keys::KeySource;
use cenote_mem::{Flush, MapOptions, Mapped, RegionSource};
use cenote_pool::{AttachOptions, HostPool, Pool, PoolConfig, Ticker, make_region, open_region, random_bytes};
use std::ffi::{c_char, c_int};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// An open region.
pub struct Region {
    pub pool: HostPool,
    pub namespaces: Namespaces,
    pub rows: RowSets,
    /// Stamp of the process that opened it. A forked child has its memory but is no worker of the
    /// region.
    stamp: ProcessStamp,
    /// Number of locks that threads hold or wait for.
    busy: AtomicUsize,
    _ticker: Ticker,
}

/// Keeps a region from being closed while a thread holds a lock of it or waits for one.
pub struct Busy(Arc<Region>);

impl Deref for Busy {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
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
    of_this_process(OPEN.read().unwrap_or_else(PoisonError::into_inner).as_ref())
}

/// The region of this process, kept open until the result is dropped.
pub fn busy_region() -> Result<Busy, Fault> {
    // Count before releasing the place: closing holds the place while it reads the count.
    let open = OPEN.read().unwrap_or_else(PoisonError::into_inner);
    let region = of_this_process(open.as_ref())?;
    region.busy.fetch_add(1, Ordering::AcqRel);
    Ok(Busy(region))
}

fn of_this_process(open: Option<&Arc<Region>>) -> Result<Arc<Region>, Fault> {
    let region = open.ok_or_else(|| Fault::new(libc::ENXIO, "no region is open: call cenote_open first"))?;
    if region.is_inherited() {
        return Err(Fault::new(libc::EPERM, "the region was opened by the parent of this process: open it here"));
    }
    Ok(Arc::clone(region))
}

fn source(region: &str) -> Result<RegionSource, Fault> {
    region.parse().map_err(|error| Fault::new(libc::EINVAL, format!("{region}: {error}")))
}

/// Creates a region of `size` bytes: `shm:NAME`, a file, or a hugetlbfs path. `chunk_size` is the
/// largest piece of memory that can be allocated, a power of two from 64 KiB to 512 MiB; 0: 2 MiB.
/// `hosts`, 1 to 64, is the number of hosts that may share it; with more than one, the region is
/// made for hosts that do not share their caches. -EEXIST: it exists already. -EINVAL: an invalid
/// argument, `hosts` 0 included. -ENOSPC: there is no space for it.
///
/// # Safety
/// `region` must end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_create(region: *const c_char, size: u64, chunk_size: u64, hosts: u8) -> c_int {
    status(|| {
        // SAFETY: callers guarantee that `region` ends with a zero.
        let source = source(unsafe { text("region", region)? })?;
        if source == RegionSource::Anon {
            return Err(Fault::new(
                libc::EINVAL,
                "anonymous memory cannot be opened by its name: give a name or a path",
            ));
        }
        let mut config = PoolConfig::new(HashSeed(random_bytes()?), random_bytes()?);
        config.max_hosts = hosts;
        config.created = Clock::system().unix().as_secs();
        config.validate()?;
        if chunk_size != 0 {
            config.chunk_bytes = chunk_size;
        }
        let flush = match hosts {
            1 => Flush::None,
            _ => Flush::best().ok_or_else(|| Fault::new(libc::ENOTSUP, "this processor has no flush instruction"))?,
        };
        make_region(&source, size, 0o600, flush, &config, &MapOptions::default())?;
        Ok(0)
    })
}

/// Opens a region for this process, as host `host` of those that share it. `cenote pool info` shows
/// `name`. The keys of a sealed region are those of the file that `CENOTE_SEAL_KEY_FILE` names, or
/// of what the command in `CENOTE_SEAL_KEY_COMMAND` prints. -EBUSY: this process has a region open.
///
/// # Safety
/// `region` and `name` must end with zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_open(region: *const c_char, name: *const c_char, host: u8) -> c_int {
    status(|| {
        // SAFETY: callers guarantee that both end with zeros.
        let (source, name) = unsafe { (source(text("region", region)?)?, text("name", name)?) };
        let mut place = OPEN.write().unwrap_or_else(PoisonError::into_inner);
        if place.as_ref().is_some_and(|open| !open.is_inherited()) {
            return Err(Fault::new(libc::EBUSY, "this process has a region open"));
        }
        // The parent's region is the parent's to close.
        std::mem::forget(place.take());
        let fabric = open_region(&source, &MapOptions::default())?;
        let keys = KeySource::of_environment().map(|source| source.read()).transpose()?;
        let options = AttachOptions { host: HostId(host), keys, ..AttachOptions::named(name) };
        let pace = Duration::from_secs(1).min(options.host_timeout / 4);
        let pool = Pool::attach(fabric, &options)?;
        let ticking = pool.clone();
        let beat = move || {
            ticking.tick();
            true
        };
        let ticker = Ticker::start(pace, beat).map_err(|error| Fault::new(libc::EAGAIN, error.to_string()))?;
        let (stamp, busy) = (ProcessStamp::current(), AtomicUsize::new(0));
        *place = Some(Arc::new(Region {
            pool,
            namespaces: Namespaces::default(),
            rows: RowSets::default(),
            stamp,
            busy,
            _ticker: ticker,
        }));
        Ok(0)
    })
}

/// Leaves the region. Memory stays allocated; pointers into the region are invalid from then on.
/// -EBUSY: a thread holds a lock or waits for one.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_close() -> c_int {
    status(|| {
        let mut place = OPEN.write().unwrap_or_else(PoisonError::into_inner);
        let region = of_this_process(place.as_ref())?;
        if region.busy.load(Ordering::Acquire) > 0 {
            return Err(Fault::new(libc::EBUSY, "a thread holds a lock of the region or waits for one"));
        }
        // The worker leaves before the place is released, so that a program that opens the region
        // at once finds its slot free.
        place.take();
        drop(region);
        Ok(0)
    })
}
