//! Whether pages of a size cross the bus by themselves as fast as whole blocks do. Measured once, at
//! start: it depends on the driver's time for a copy and on the bus.

use crate::driver::{Copies, Device, DeviceError, Stream};
use crate::memory::Staging;
use cenote_base::Clock;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a round, and the fewest that are a measurement.
const BYTES: usize = 32 << 20;
const BYTES_MIN: usize = 8 << 20;
/// Rounds of each kind; the fastest counts, because others may use the bus.
const ROUNDS: usize = 3;
/// No round begins later, and one that has not ended by then is given up with its memory.
const PATIENCE: Duration = Duration::from_millis(250);
const ROUND_PATIENCE: Duration = Duration::from_secs(5);

/// Whether pages of `page` bytes are slower by themselves; `None`: the measurement says nothing.
///
/// # Errors
/// The device fails. Then it may still access the memory, which is kept until the process ends.
pub fn are_slow(
    device: &Arc<Device>,
    page: u64,
    host: &Arc<Staging>,
    gpu: &Arc<Staging>,
    clock: Clock,
) -> Result<Option<bool>, DeviceError> {
    let page = page as usize;
    let bytes = BYTES.min(host.bytes()).min(gpu.bytes()) / page * page;
    if bytes < BYTES_MIN {
        return Ok(None);
    }
    let measured = measure(device, page, bytes, (gpu.address() as u64, host.address() as u64), clock);
    if measured.is_err() {
        std::mem::forget((Arc::clone(host), Arc::clone(gpu)));
    }
    measured
}

fn measure(
    device: &Arc<Device>,
    page: usize,
    bytes: usize,
    places: (u64, u64),
    clock: Clock,
) -> Result<Option<bool>, DeviceError> {
    let stream = Stream::new(device)?;
    let (whole, pages) = (copies(places, bytes, bytes), copies(places, page, bytes));
    let (mut alone, mut together, deadline) = (Duration::MAX, Duration::MAX, clock.after(PATIENCE));
    for _ in 0..ROUNDS {
        together = together.min(round(device, &stream, &whole, clock)?);
        alone = alone.min(round(device, &stream, &pages, clock)?);
        if deadline.passed() {
            break;
        }
    }
    Ok(verdict(alone, together))
}

/// A kernel that scatters pages in GPU memory takes some time too, so a tenth more is no loss.
fn verdict(alone: Duration, together: Duration) -> Option<bool> {
    (!alone.is_zero() && !together.is_zero()).then(|| alone > together + together / 10)
}

/// Copies of pages to other places than their neighbours', as blocks have them.
fn copies((to, from): (u64, u64), page: usize, bytes: usize) -> Copies {
    let (count, mut copies) = (bytes / page, Copies::default());
    for number in 0..count {
        let place = place_of(number, count);
        copies.push(to + (place * page) as u64, from + (number * page) as u64, page);
    }
    copies
}

const fn place_of(number: usize, count: usize) -> usize {
    // A prime beyond all counts, so that all places differ.
    const STEP: usize = 1_000_003;
    number * STEP % count
}

fn round(device: &Arc<Device>, stream: &Stream, copies: &Copies, clock: Clock) -> Result<Duration, DeviceError> {
    let begun = clock.now_ns();
    for call in copies.calls() {
        // SAFETY: both sides are whole buffers that nothing else uses yet, and `are_slow` keeps them
        // after an error.
        unsafe { device.copy(stream, copies, call)? };
    }
    stream.wait("a trial of the bus", clock, ROUND_PATIENCE)?;
    Ok(clock.since(begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_slow_if_they_take_a_tenth_more() {
        let of = |alone, together| verdict(Duration::from_micros(alone), Duration::from_micros(together));
        assert_eq!(of(1800, 600), Some(true));
        assert_eq!(of(661, 600), Some(true));
        assert_eq!(of(660, 600), Some(false));
        assert_eq!(of(580, 600), Some(false));
        // A clock that stands still.
        assert_eq!((of(0, 600), of(600, 0), of(0, 0)), (None, None, None));
    }

    #[test]
    fn every_page_has_a_place_of_its_own() {
        for (page, count) in [(8 << 10, 4096), (192, 43_690), (1 << 20, 32), (64, 524_288)] {
            let mut places: Vec<usize> = (0..count).map(|number| place_of(number, count)).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..count), "{count} pages of {page}");
        }
    }
}
