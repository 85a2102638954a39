//! Whether the kernel that moves pages moves them on this GPU. The sum of a gathered block is that of its
//! copy, so the blocks of a kernel that moves other bytes would be published with sums that hold.

use crate::driver::{Copies, Device, DeviceError, Stream};
use crate::kernels::{Kernels, Pages};
use cenote_base::Clock;
use std::sync::Arc;
use std::time::Duration;

/// Pages that are moved, each to the place of another.
const PAGES: usize = 5;
/// Largest pages of the trial: a kernel moves larger ones in the same way.
const PAGE_MAX: u64 = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(5);

/// Moves some pages of so many bytes, or of [`PAGE_MAX`], in the GPU's memory, and compares them.
///
/// # Errors
/// The device fails, or other bytes arrive.
pub fn moves_pages(device: &Arc<Device>, kernels: &Kernels, page: u64, clock: Clock) -> Result<(), DeviceError> {
    let page = page.min(PAGE_MAX) as usize;
    let pages = PAGES * page;
    // The pages, their new places, and the tables of both.
    let tables = 2 * pages;
    let bytes = tables + 2 * PAGES * 8;
    let (here, there, stream) = (device.lock(bytes)?, device.allocate(bytes)?, Stream::new(device)?);
    let start: *mut u8 = std::ptr::with_exposed_provenance_mut(here.address());
    // SAFETY: the memory has so many bytes, is this function's own, and no copy has begun.
    let memory = unsafe { std::slice::from_raw_parts_mut(start, bytes) };
    let pattern = |at: usize| (at * 31 + at / page * 7 + at / 251) as u8;
    memory[..pages].iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
    memory[pages..tables].fill(0);
    let (host, gpu) = (here.address() as u64, there.address());
    for number in 0..PAGES {
        let (to, from) = (gpu + (pages + place_of(number) * page) as u64, gpu + (number * page) as u64);
        memory[tables + number * 8..][..8].copy_from_slice(&to.to_le_bytes());
        memory[tables + (PAGES + number) * 8..][..8].copy_from_slice(&from.to_le_bytes());
    }
    let (to, from) = (gpu + tables as u64, gpu + (tables + PAGES * 8) as u64);
    let moved = Pages { to, from, page_bytes: page as u32, count: PAGES as u64 };
    let ended =
        queue(device, kernels, &stream, moved, [(gpu, host, bytes), (host + pages as u64, gpu + pages as u64, pages)])
            .and_then(|()| stream.wait("cenote_move", clock, PATIENCE));
    if let Err(error) = ended {
        // The device may still access them.
        std::mem::forget((here, there));
        return Err(error);
    }
    // SAFETY: as above; the device has done its copies.
    let memory = unsafe { std::slice::from_raw_parts(start, bytes) };
    let is_moved = |number: usize| memory[pages + place_of(number) * page..][..page] == memory[number * page..][..page];
    if (0..PAGES).all(is_moved) {
        return Ok(());
    }
    Err(DeviceError::new("cenote_move", "the kernel moved other bytes than it was given"))
}

/// Queues the copy to the GPU, the kernel, and the copy back.
fn queue(
    device: &Arc<Device>,
    kernels: &Kernels,
    stream: &Stream,
    moved: Pages,
    [there, back]: [(u64, u64, usize); 2],
) -> Result<(), DeviceError> {
    let copy = |(to, from, bytes): (u64, u64, usize)| {
        let mut copies = Copies::default();
        copies.push(to, from, bytes);
        // SAFETY: both sides are memory of `moves_pages`, which keeps it until the device has ended, or
        // for ever after an error.
        copies.calls().try_for_each(|call| unsafe { device.copy(stream, &copies, call) })
    };
    copy(there)?;
    // SAFETY: the tables and the pages lie in the GPU's memory, which lives as the copies' does, and all
    // places differ.
    unsafe { kernels.move_pages(stream, moved)? };
    copy(back)
}

const fn place_of(number: usize) -> usize {
    (number * 2 + 1) % PAGES
}
