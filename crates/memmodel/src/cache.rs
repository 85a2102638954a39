//! The lines of a host's cache, with lookup, insertion, removal and random choice in constant time.

use crate::machine::{LINE, Words};

#[derive(Clone, Copy)]
pub(crate) struct CachedLine {
    pub line: u64,
    pub words: Words,
    pub dirty: bool,
}

pub(crate) struct Cache {
    /// By line of the device: its index in `lines` plus one, or 0 if it is not cached.
    places: Vec<u32>,
    lines: Vec<CachedLine>,
}

impl Cache {
    /// An empty cache for a device of `lines` lines.
    pub fn new(lines: u64) -> Self {
        Self { places: vec![0; lines as usize], lines: Vec::new() }
    }

    pub fn lines(&self) -> &[CachedLine] {
        &self.lines
    }

    pub fn has(&self, line: u64) -> bool {
        self.places[(line / LINE) as usize] != 0
    }

    pub fn get(&self, line: u64) -> Option<&CachedLine> {
        let place = self.places[(line / LINE) as usize].checked_sub(1)?;
        self.lines.get(place as usize)
    }

    pub fn get_mut(&mut self, line: u64) -> Option<&mut CachedLine> {
        let place = self.places[(line / LINE) as usize].checked_sub(1)?;
        self.lines.get_mut(place as usize)
    }

    /// Adds a line. Callers must have checked that it is not cached.
    pub fn insert(&mut self, line: CachedLine) {
        self.lines.push(line);
        self.places[(line.line / LINE) as usize] = self.lines.len() as u32;
    }

    pub fn remove(&mut self, line: u64) {
        let Some(place) = std::mem::take(&mut self.places[(line / LINE) as usize]).checked_sub(1) else { return };
        self.lines.swap_remove(place as usize);
        if let Some(moved) = self.lines.get(place as usize) {
            self.places[(moved.line / LINE) as usize] = place + 1;
        }
    }

    pub fn clear(&mut self) {
        for line in self.lines.drain(..) {
            self.places[(line.line / LINE) as usize] = 0;
        }
    }
}
