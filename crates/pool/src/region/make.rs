//! Creates and opens regions of this machine. A region is mapped with the flush instruction that it
//! was created for, and gets its name only when it is complete.

use crate::error::PoolError;
use crate::region::area::sweep_host_memory;
use crate::region::config::PoolConfig;
use crate::region::layout::{REGION_BYTES_MAX, too_long};
use crate::region::superblock::Superblock;
use cenote_mem::{Flush, Fresh, MapError, MapOptions, Mapped, Mapping, RegionSource, UnsupportedFlush};
use std::io::Read;
use std::sync::Arc;
use thiserror::Error;

/// Reasons for which a region cannot be opened or created.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Mapping its memory failed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// This processor lacks the region's flush instruction.
    #[error(transparent)]
    Flush(#[from] UnsupportedFlush),
    /// Its content is not a usable region.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Reads the superblock of a mapped region. The region's own flush instruction is not known yet.
/// Any instruction that drops stale lines is good; without one the caches are read.
///
/// # Errors
/// It is no region of this format (see [`Superblock::read`]).
pub fn peek(mapping: Mapping) -> Result<Superblock, PoolError> {
    let fabric = Mapped::new(mapping, Flush::best().unwrap_or(Flush::None)).expect("this processor has it");
    Superblock::read(&fabric)
}

/// Maps a region with the flush instruction that it was created for.
///
/// # Errors
/// It does not exist, is no region of this format, or this processor lacks its instruction.
pub fn open_region(source: &RegionSource, options: &MapOptions) -> Result<Arc<Mapped>, OpenError> {
    let superblock = peek(Mapping::open(source, options)?)?;
    Ok(Arc::new(Mapped::new(Mapping::open(source, options)?, superblock.flush)?))
}

/// Creates a region of `size` bytes that does not exist yet. `mode` holds the permissions of its
/// file.
///
/// The region gets its name when it is complete, so no process opens an incomplete one, even if the
/// creator dies.
///
/// # Errors
/// It exists already, the configuration is invalid, or there is not enough memory.
pub fn make_region(
    source: &RegionSource,
    size: u64,
    mode: u32,
    flush: Flush,
    config: &PoolConfig,
    options: &MapOptions,
) -> Result<(Arc<Mapped>, Superblock), OpenError> {
    let (fabric, superblock, fresh) = prepare_region(source, size, mode, flush, config, options)?;
    fresh.publish()?;
    Ok((fabric, superblock))
}

/// As [`make_region`], but the region has no name before [`Fresh::publish`], so that its creator may
/// write what must be there for the first process that opens it. A device always has its name.
///
/// # Errors
/// As for [`make_region`].
pub fn prepare_region(
    source: &RegionSource,
    size: u64,
    mode: u32,
    flush: Flush,
    config: &PoolConfig,
    options: &MapOptions,
) -> Result<(Arc<Mapped>, Superblock, Fresh), OpenError> {
    config.validate()?;
    if size > REGION_BYTES_MAX {
        return Err(PoolError::Config(too_long(size)).into());
    }
    let _ = sweep_host_memory();
    let (mapping, fresh) = Mapping::prepare(source, size, mode, options)?;
    let fabric = Arc::new(Mapped::new(mapping, flush)?);
    let superblock = Superblock::format(&fabric, config)?;
    Ok((fabric, superblock, fresh))
}

/// Unpredictable bytes, for a region's seeds.
///
/// # Errors
/// The system's generator cannot be read.
pub fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let opened = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    let named = |error| std::io::Error::other(format!("/dev/urandom: cannot draw random bytes: {error}"));
    opened.map_err(named).map(|()| bytes)
}
