//! Regions of this machine: mapped with the instruction that they were made for, and made whole before they have a name.

use crate::error::PoolError;
use crate::region::area::sweep_host_memory;
use crate::region::config::PoolConfig;
use crate::region::layout::{REGION_BYTES_MAX, too_long};
use crate::region::superblock::Superblock;
use cenote_mem::{Flush, MapError, MapOptions, Mapped, Mapping, RegionSource, UnsupportedFlush};
use std::io::Read;
use std::sync::Arc;
use thiserror::Error;

/// Why a region cannot be opened or made.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Its memory.
    #[error(transparent)]
    Map(#[from] MapError),
    /// This processor has not what the region needs.
    #[error(transparent)]
    Flush(#[from] UnsupportedFlush),
    /// What is in it.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Reads what a mapped region says of itself. Its own instruction is not known yet; any that drops stale lines
/// will do, and without one the caches are all there is to go by.
///
/// # Errors
/// It is no region of ours (see [`Superblock::read`]).
pub fn peek(mapping: Mapping) -> Result<Superblock, PoolError> {
    let fabric = Mapped::new(mapping, Flush::best().unwrap_or(Flush::None)).expect("this processor has it");
    Superblock::read(&fabric)
}

/// Maps a region with the flush instruction that it was made for.
///
/// # Errors
/// There is none, it is not ours, or this processor lacks its instruction.
pub fn open_region(source: &RegionSource, options: &MapOptions) -> Result<Arc<Mapped>, OpenError> {
    let superblock = peek(Mapping::open(source, options)?)?;
    Ok(Arc::new(Mapped::new(Mapping::open(source, options)?, superblock.flush)?))
}

/// Makes a region of `size` bytes that is not there yet. `mode` are the permissions of its file.
///
/// It gets its name when it is whole: nobody ever opens half of one, whatever becomes of its maker.
///
/// # Errors
/// There is one, the configuration cannot be, or there is not enough memory.
pub fn make_region(
    source: &RegionSource,
    size: u64,
    mode: u32,
    flush: Flush,
    config: &PoolConfig,
    options: &MapOptions,
) -> Result<(Arc<Mapped>, Superblock), OpenError> {
    config.validate()?;
    if size > REGION_BYTES_MAX {
        return Err(PoolError::Config(too_long(size)).into());
    }
    let _ = sweep_host_memory();
    let (mapping, fresh) = Mapping::prepare(source, size, mode, options)?;
    let fabric = Arc::new(Mapped::new(mapping, flush)?);
    let superblock = Superblock::format(&fabric, config)?;
    fresh.publish()?;
    Ok((fabric, superblock))
}

/// Bytes that nobody can guess, for a region's seeds.
///
/// # Errors
/// The system's generator cannot be read.
pub fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let opened = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    let named = |error| std::io::Error::other(format!("/dev/urandom: cannot draw random bytes: {error}"));
    opened.map_err(named).map(|()| bytes)
}
