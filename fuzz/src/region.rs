//! A fabric with bytes that change between two loads, as another process would change them.

use super::change::Change;
use super::format::Map;
use cenote_mem::PayloadSum;
use cenote_mem::{Fabric, Flush, Mapped, Offset};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Unit in which changes are recorded, so that only they are undone.
const PAGE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Region {
    mapped: Mapped,
    /// The flush instruction that `mapped` reports.
    flush: Flush,
    map: Option<Map>,
    /// Pages written since the last image.
    dirty: Vec<AtomicBool>,
    /// Number of loads.
    loads: AtomicU64,
    /// Loads until the change in `pending`.
    loads_left: AtomicU64,
    pending: Mutex<Option<Change>>,
}

impl Region {
    /// Memory to be formatted, and the flush instruction that it reports.
    pub fn new(mapped: Mapped, flush: Flush) -> Self {
        let dirty = (0..mapped.len().div_ceil(PAGE)).map(|_| AtomicBool::new(true)).collect();
        Self {
            mapped,
            flush,
            map: None,
            dirty,
            loads: AtomicU64::new(0),
            loads_left: AtomicU64::new(u64::MAX),
            pending: Mutex::new(None),
        }
    }

    /// Sets the offsets, once the superblock is there.
    pub const fn set_map(&mut self, map: Map) {
        self.map = Some(map);
    }

    pub const fn map(&self) -> &Map {
        self.map.as_ref().expect("the region is formatted")
    }

    /// Changes a line now.
    pub fn change(&self, change: &Change) {
        change.apply(self, self.map());
    }

    /// Changes a line after this many loads.
    pub fn change_after(&self, loads: u64, change: Change) {
        *self.pending.lock().expect("no load panics with it") = Some(change);
        self.loads_left.store(loads, Relaxed);
    }

    /// Cancels a pending change.
    pub fn calm(&self) {
        self.loads_left.store(u64::MAX, Relaxed);
    }

    pub fn image(&self) -> Vec<[u64; 8]> {
        (0..self.mapped.len()).step_by(64).map(|at| self.mapped.load_line(at)).collect()
    }

    /// Restores the bytes of an image; `all`: also pages that were not written since the last
    /// restoration.
    pub fn restore(&self, image: &[[u64; 8]], all: bool) {
        self.calm();
        let pages = (0..).step_by(PAGE as usize).zip(image.chunks(PAGE as usize / 64));
        for ((page, lines), dirty) in pages.zip(&self.dirty) {
            if !dirty.swap(false, Relaxed) && !all {
                continue;
            }
            for (at, line) in (page..).step_by(64).zip(lines) {
                if self.mapped.load_line(at) != *line {
                    self.mapped.publish_line(at, line);
                }
            }
        }
    }

    fn soil(&self, at: u64, len: u64) {
        let pages = at / PAGE..at.saturating_add(len).div_ceil(PAGE);
        pages.filter_map(|page| self.dirty.get(page as usize)).for_each(|page| page.store(true, Relaxed));
    }

    pub fn loads(&self) -> u64 {
        self.loads.load(Relaxed)
    }

    fn before_load(&self) {
        self.loads.fetch_add(1, Relaxed);
        if self.loads_left.load(Relaxed) == u64::MAX {
            return;
        }
        if self.loads_left.fetch_sub(1, Relaxed) == 0 {
            self.calm();
            let change = self.pending.lock().expect("no load panics with it").take();
            if let Some(change) = change {
                self.change(&change);
            }
        }
    }
}

impl Fabric for Region {
    fn len(&self) -> u64 {
        self.mapped.len()
    }
    #[track_caller]
    fn load(&self, at: Offset<u64>) -> u64 {
        self.before_load();
        self.mapped.load(at)
    }
    #[track_caller]
    fn store(&self, at: Offset<u64>, value: u64) {
        self.soil(at.raw(), 8);
        self.mapped.store(at, value);
    }
    #[track_caller]
    fn load_line(&self, at: u64) -> [u64; 8] {
        self.before_load();
        self.mapped.load_line(at)
    }
    #[track_caller]
    fn store_line(&self, at: u64, words: &[u64; 8]) {
        self.soil(at, 64);
        self.mapped.store_line(at, words);
    }
    #[track_caller]
    fn publish(&self, lines: &[u64]) {
        self.mapped.publish(lines);
    }
    #[track_caller]
    fn write_line(&self, at: u64, words: &[u64; 8]) {
        self.soil(at, 64);
        self.mapped.write_line(at, words);
    }
    #[track_caller]
    fn write_word(&self, at: Offset<u64>, value: u64) {
        self.soil(at.raw(), 8);
        self.mapped.write_word(at, value);
    }
    #[track_caller]
    fn fence(&self) {
        self.mapped.fence();
    }
    #[track_caller]
    fn publish_unfenced(&self, line: u64) {
        self.mapped.publish_unfenced(line);
    }
    #[track_caller]
    fn refresh(&self, lines: &[u64]) {
        self.mapped.refresh(lines);
    }
    #[track_caller]
    fn write_payload_part(&self, at: u64, part: &[u8], whole: u64, sum: &mut PayloadSum) {
        self.soil(at, part.len() as u64);
        self.mapped.write_payload_part(at, part, whole, sum);
    }
    fn publish_payload(&self) {
        self.mapped.publish_payload();
    }
    #[track_caller]
    fn read_payload_part(&self, at: u64, part: &mut [u8], whole: u64, sum: &mut PayloadSum) {
        self.before_load();
        self.mapped.read_payload_part(at, part, whole, sum);
    }
    #[track_caller]
    fn refresh_payload(&self, at: u64, len: u64) {
        self.mapped.refresh_payload(at, len);
    }
    #[track_caller]
    fn absorb_payload(&self, at: u64, len: u64, sum: &mut PayloadSum) {
        self.before_load();
        self.mapped.absorb_payload(at, len, sum);
    }
    fn flush(&self) -> Flush {
        self.flush
    }
}
