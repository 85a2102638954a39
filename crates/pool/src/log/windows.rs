//! Sketches of the blocks that requests have asked for, by windows of 15 minutes, an hour and a day:
//! which part of them was asked for before is the highest hit rate that any cache can have
//! (docs/internals/format.md#windows).
//!
//! Each host writes its own sketches, and only that of the current quarter of an hour for each request.
//! The first request of the next quarter merges it into those of its hour and its day. Registers are
//! stored without a lock: of two workers that raise neighbours at once, one may be lost, which lowers the
//! estimate by a block.

use super::Log;
use crate::error::PoolError;
use crate::region::layout::{Layout, SKETCH_LINES, SKETCHES};
use crate::region::superblock::Superblock;
use cenote_base::BlockHash;
use cenote_mem::{Fabric, HostLocal, LINE, Offset, Word};
use cenote_policy::distinct::{self, REGISTERS};
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

/// Seconds of the shortest window, in which requests are noted.
const QUARTER_S: u64 = 900;
/// Seconds of the windows.
const WINDOWS_S: [u64; 3] = [QUARTER_S, 3600, 86_400];
/// Periods after this one are forged: it is thousands of years ahead.
const PERIOD_MAX: u64 = u32::MAX as u64;

/// The blocks that were asked for within a window of time, on all hosts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Length of the window in seconds: 900, 3,600 or 86,400.
    pub seconds: u64,
    /// Its begin, in seconds since 1970: a multiple of its length.
    pub begin: u64,
    /// Whether it was over when the last request came. Otherwise it is the first one with requests.
    pub is_over: bool,
    /// Requests.
    pub requests: u64,
    /// Blocks that they asked for.
    pub blocks: u64,
    /// Estimated number of different ones, with a standard error of [`Window::ERROR`].
    pub distinct: f64,
    /// Share of the blocks that were asked for before within the window: no cache has a higher hit rate
    /// that was empty at its begin. `None`: no blocks were asked for.
    pub ceiling: Option<f64>,
}

impl Window {
    /// Standard error of the number of different blocks, as a part of it.
    pub const ERROR: f64 = distinct::ERROR;

    /// Standard error of the ceiling.
    #[must_use]
    pub fn ceiling_error(&self) -> f64 {
        self.ceiling.map_or(0.0, |ceiling| Self::ERROR * (1.0 - ceiling))
    }
}

/// A sketch's head: its period plus one, blocks, requests.
#[derive(Clone, Copy)]
struct Head {
    period: u64,
    blocks: u64,
    requests: u64,
}

impl Head {
    fn read<F: Fabric>(fabric: &F, at: u64) -> Option<Self> {
        let [period, blocks, requests, ..] = fabric.load_line(at);
        let period = period.checked_sub(1).filter(|period| *period <= PERIOD_MAX)?;
        Some(Self { period, blocks, requests })
    }

    const fn words(self) -> [u64; 8] {
        [self.period + 1, self.blocks, self.requests, 0, 0, 0, 0, 0]
    }
}

/// Where a host has the sketch of a period of a window.
const fn place(layout: &Layout, host: u64, window: u64, period: u64) -> u64 {
    layout.sketch(host, window * 2 + period % 2)
}

/// The word with a register, and the register's first bit in it.
const fn register(sketch: u64, number: usize) -> (u64, u32) {
    (sketch + LINE + number as u64 / 8 * 8, number as u32 % 8 * 8)
}

fn registers<F: Fabric>(fabric: &F, sketch: u64) -> [u8; REGISTERS] {
    let mut all = [0; REGISTERS];
    for (at, bytes) in (sketch + LINE..).step_by(LINE as usize).zip(all.chunks_mut(LINE as usize)) {
        let words = fabric.load_line(at);
        bytes.chunks_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
    }
    all
}

/// The last window of each length that was over when the last request came, or the first one with
/// requests. Needs no live process and writes nothing. Empty if the region keeps no record of requests, or
/// before the first one.
///
/// # Errors
/// The region is unreadable (see [`Superblock::read`]).
pub fn windows<F: Fabric>(fabric: &F) -> Result<Vec<Window>, PoolError> {
    let superblock = Superblock::read(fabric)?;
    let layout = Layout::new(&superblock.config, superblock.region_bytes)?;
    Ok(seen(fabric, &layout, superblock.flush.is_coherent()))
}

pub(crate) fn seen<F: Fabric>(fabric: &F, layout: &Layout, is_coherent: bool) -> Vec<Window> {
    if !layout.has_requests() {
        return Vec::new();
    }
    let hosts = if is_coherent { 1 } else { layout.max_hosts };
    if !is_coherent {
        (0..hosts).for_each(|host| {
            fabric.refresh_payload(layout.sketch(host, 0), SKETCHES * SKETCH_LINES * LINE);
        });
    }
    // The sketch of a host's last quarter is in no longer one yet.
    let last = |host| {
        let of = |turn| {
            let at = layout.sketch(host, turn);
            Head::read(fabric, at).map(|head| (head, at))
        };
        (0..2).filter_map(of).max_by_key(|(head, _)| head.period)
    };
    let lasts: Vec<Option<(Head, u64)>> = (0..hosts).map(last).collect();
    let Some(quarter) = lasts.iter().flatten().map(|(head, _)| head.period).max() else { return Vec::new() };
    let of_window = |(window, &seconds): (u64, &u64)| {
        let now = quarter * QUARTER_S / seconds;
        let of_period = |period: u64| {
            let (mut sum, mut union) = (Head { period, blocks: 0, requests: 0 }, [0; REGISTERS]);
            let mut add = |(head, at): (Head, u64)| {
                sum.blocks = sum.blocks.saturating_add(head.blocks);
                sum.requests = sum.requests.saturating_add(head.requests);
                distinct::merge(&mut union, &registers(fabric, at));
            };
            for (host, last) in (0..).zip(&lasts) {
                let at = place(layout, host, window, period);
                Head::read(fabric, at)
                    .filter(|head| head.period == period)
                    .into_iter()
                    .for_each(|head| add((head, at)));
                let unmerged = last.filter(|(head, _)| window > 0 && head.period * QUARTER_S / seconds == period);
                unmerged.into_iter().for_each(&mut add);
            }
            (sum, union)
        };
        let before = now.checked_sub(1).map(of_period).filter(|(sum, _)| sum.blocks > 0);
        let is_over = before.is_some();
        let (sum, union) = before.unwrap_or_else(|| of_period(now));
        let distinct = distinct::estimate(&union).min(sum.blocks as f64);
        Window {
            seconds,
            begin: sum.period * seconds,
            is_over,
            requests: sum.requests,
            blocks: sum.blocks,
            distinct,
            ceiling: (sum.blocks > 0).then(|| 1.0 - distinct / sum.blocks as f64),
        }
    };
    (0..).zip(&WINDOWS_S).map(of_window).collect()
}

/// Quarters by which a worker may be late.
const LATE_MAX: u64 = 4;

impl<F: Fabric, H: HostLocal> Log<F, H> {
    /// Notes a request that asks for these blocks now.
    pub(super) fn note_distinct(&self, names: &[BlockHash], unix_s: u64) {
        let region = &self.region;
        let mut quarter = unix_s / QUARTER_S;
        let known = region.quarter().load(Relaxed);
        if (quarter + 2..=quarter + LATE_MAX + 1).contains(&known) {
            // This worker was late, or its clock has gone back: what others have begun goes on.
            quarter = known - 1;
        } else if known != quarter + 1 {
            self.turn(quarter);
        }
        let sketch = place(&region.layout, region.host, 0, quarter);
        for name in names {
            let (number, value) = distinct::place(name.words()[0]);
            let (at, bit) = register(sketch, number);
            let word = region.fabric.load(Offset::new(at));
            if ((word >> bit) as u8) < value {
                region.fabric.store(Offset::new(at), word & !(0xff << bit) | u64::from(value) << bit);
                region.fabric.publish_unfenced(at / LINE * LINE);
            }
        }
        for ((word, at), more) in region.of_quarter().into_iter().zip([8, 16]).zip([names.len() as u64, 1]) {
            let sum = word.fetch_add(more, Relaxed).wrapping_add(more);
            region.fabric.write_word(Offset::new(sketch + at), sum);
        }
    }

    /// Begins a quarter of an hour: merges the last one into its hour and its day. Of several workers one
    /// does it. What the others note meanwhile may be lost.
    #[cold]
    fn turn(&self, quarter: u64) {
        let region = &self.region;
        let known = region.quarter().load(Relaxed);
        if known == quarter + 1 || region.quarter().compare_exchange(known, quarter + 1, Relaxed, Relaxed).is_err() {
            return;
        }
        let own = |turn| region.layout.sketch(region.host, turn);
        let head = |at| Head::read(&region.fabric, at).map(|head| (head, at));
        let last = (0..2).filter_map(|turn| head(own(turn))).max_by_key(|(head, _)| head.period);
        let now = place(&region.layout, region.host, 0, quarter);
        if let Some((last, at)) = last.filter(|(last, _)| last.period != quarter) {
            for (window, seconds) in (0..).zip(WINDOWS_S).skip(1) {
                let period = last.period * QUARTER_S / seconds;
                self.merge(&last, at, place(&region.layout, region.host, window, period), period);
            }
        }
        let resumed = last.filter(|(last, at)| known == 0 && last.period == quarter && *at == now);
        let (blocks, requests) = resumed.map_or((0, 0), |(head, _)| (head.blocks, head.requests));
        if resumed.is_none() {
            self.put_sketch(now, &[0; REGISTERS], Head { period: quarter, blocks: 0, requests: 0 });
        }
        region.of_quarter().into_iter().zip([blocks, requests]).for_each(|(word, count)| word.store(count, Relaxed));
    }

    /// Merges a sketch into that of a longer window.
    fn merge(&self, from: &Head, from_at: u64, into: u64, period: u64) {
        let fabric = &self.region.fabric;
        let mut union = registers(fabric, from_at);
        let known = Head::read(fabric, into).filter(|head| head.period == period);
        if known.is_some() {
            distinct::merge(&mut union, &registers(fabric, into));
        }
        let known = known.unwrap_or(Head { period, blocks: 0, requests: 0 });
        let head = Head {
            period,
            blocks: known.blocks.saturating_add(from.blocks),
            requests: known.requests.saturating_add(from.requests),
        };
        self.put_sketch(into, &union, head);
    }

    fn put_sketch(&self, at: u64, registers: &[u8; REGISTERS], head: Head) {
        let fabric = &self.region.fabric;
        for (line, bytes) in (at + LINE..).step_by(LINE as usize).zip(registers.chunks(LINE as usize)) {
            let mut words = [0; 8];
            words.iter_mut().zip(bytes.chunks(8)).for_each(|(word, bytes)| {
                *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            });
            fabric.store_line(line, &words);
            fabric.publish_unfenced(line);
        }
        fabric.write_line(at, &head.words());
    }
}
