//! The fabric of a simulated process. Each call takes one or several steps of the model.

use crate::machine::LINE;
use crate::mutation::Effect;
use crate::world::{Kind, Process};
use cenote_mem::PayloadSum;
use cenote_mem::{Fabric, Flush, Offset};
use std::panic::Location;

/// The region as seen by one simulated process.
pub struct SimFabric {
    process: Process,
    bytes: u64,
}

impl SimFabric {
    pub(crate) fn new(process: Process) -> Self {
        let bytes = process.shared.state().machine.bytes();
        Self { process, bytes }
    }

    fn check(&self, at: u64, len: u64, unit: u64) {
        assert!(at.is_multiple_of(unit), "{at:#x} is not aligned to {unit} bytes");
        let bytes = self.len();
        assert!(at.checked_add(len).is_some_and(|end| end <= bytes), "{len} bytes at {at:#x} of {bytes:#x}");
    }

    /// Queues flushes of these lines, unless the mutation leaves out the effect of this call.
    fn flush_lines(
        &self,
        lines: impl Iterator<Item = u64>,
        method: &'static str,
        effect: Effect,
        place: &'static Location<'static>,
    ) {
        let process = self.process.number;
        let kind = if method.starts_with("refresh") { Kind::Look } else { Kind::Act };
        let Ok(mut state) = self.process.shared.step(process, kind) else { return };
        state.call(method, place);
        if state.leaves_out(place, effect) {
            return;
        }
        for line in lines {
            // A repeated refresh completes the previous one, so a poll lags by at most one refresh.
            if kind == Kind::Look {
                state.machine.run_flush_of(process, line);
            }
            state.machine.flush(process, line);
        }
        state
            .note(|| format!("p{process} {method} {}:{}", place.file().rsplit('/').next().unwrap_or(""), place.line()));
    }

    /// Stores words around the cache, or through it if the mutation leaves out the flush.
    fn stream(&self, line: u64, words: [u64; 8], mask: u8, method: &'static str, place: &'static Location<'static>) {
        let process = self.process.number;
        let Ok(mut state) = self.process.shared.step(process, Kind::Act) else { return };
        state.call(method, place);
        state.note(|| format!("p{process} line {line:#x} {words:x?} {mask:#010b}"));
        // Stores of one process to one line keep their order.
        state.machine.drain_stores(process);
        if !state.leaves_out(place, Effect::Flush) {
            state.machine.stream(process, line, words, mask);
            return;
        }
        for (index, word) in words.into_iter().enumerate().filter(|(index, _)| mask >> index & 1 == 1) {
            state.machine.store(process, line + 8 * index as u64, word);
        }
    }

    /// Ends a call on these lines. Perturbs the run here if the place is in focus.
    fn end_call(&self, place: &'static Location<'static>, lines: &[u64]) {
        self.process.shared.state().strike(self.process.number, place, lines);
    }

    /// As [`SimFabric::end_call`] on all lines that the process has under way.
    fn end_wait(&self, place: &'static Location<'static>) {
        let mut state = self.process.shared.state();
        if state.is_focused() {
            let under_way = state.machine.under_way(self.process.number);
            state.strike(self.process.number, place, &under_way);
        }
    }

    /// May invalidate and fetch the lines of a refresh before the process's earlier stores arrive.
    fn look_early(&self, lines: &[u64]) {
        let process = self.process.number;
        if self.process.shared.state().look_early(process, lines) {
            drop(self.process.shared.step(process, Kind::Look));
        }
    }

    fn wait(&self, method: &'static str, place: &'static Location<'static>) {
        let process = self.process.number;
        let Ok(mut state) = self.process.shared.step(process, Kind::Look) else { return };
        state.call(method, place);
        if state.leaves_out(place, Effect::Fence) {
            return;
        }
        // The flushes complete one by one, and other processes run in between.
        while !state.scripted && state.machine.prng.below(6) == 0 && state.machine.run_a_flush(process) {
            drop(state);
            let Ok(again) = self.process.shared.step(process, Kind::Look) else { return };
            state = again;
        }
        // Other hosts may load a line of which only some words have arrived.
        if state.machine.begin_fence(process) {
            state.torn(process);
            drop(state);
            let Ok(again) = self.process.shared.step(process, Kind::Look) else { return };
            state = again;
        }
        state.machine.fence(process);
    }
}

impl Fabric for SimFabric {
    fn len(&self) -> u64 {
        self.bytes
    }

    #[track_caller]
    fn load(&self, at: Offset<u64>) -> u64 {
        self.check(at.raw(), 8, 8);
        let Ok(mut state) = self.process.shared.look(self.process.number) else { return 0 };
        state.machine.load(self.process.number, at.raw())
    }

    #[track_caller]
    fn store(&self, at: Offset<u64>, value: u64) {
        self.check(at.raw(), 8, 8);
        let Ok(mut state) = self.process.shared.step(self.process.number, Kind::Act) else { return };
        let process = self.process.number;
        state.machine.store(process, at.raw(), value);
        state.note(|| format!("p{process} store {:#x} = {value:#x}", at.raw()));
    }

    #[track_caller]
    fn load_line(&self, at: u64) -> [u64; 8] {
        self.check(at, LINE, LINE);
        let mut words = [0; 8];
        let Ok(mut state) = self.process.shared.look(self.process.number) else { return words };
        let (first, second) = words.split_at_mut(4);
        state.machine.load_words(self.process.number, at, first);
        // Another process may run here, so the words may come from different writes.
        if !state.scripted && state.machine.prng.below(16) == 0 {
            drop(state);
            let Ok(again) = self.process.shared.step(self.process.number, Kind::Look) else { return [0; 8] };
            state = again;
        }
        state.machine.load_words(self.process.number, at + 32, second);
        words
    }

    #[track_caller]
    fn store_line(&self, at: u64, words: &[u64; 8]) {
        self.check(at, LINE, LINE);
        let Ok(mut state) = self.process.shared.step(self.process.number, Kind::Act) else { return };
        let process = self.process.number;
        for (index, &word) in words.iter().enumerate().rev() {
            state.machine.store(process, at + 8 * index as u64, word);
        }
        state.note(|| format!("p{process} line {at:#x} w0={:#x}", words[0]));
    }

    #[track_caller]
    fn publish(&self, lines: &[u64]) {
        let place = Location::caller();
        lines.iter().for_each(|&line| self.check(line, LINE, LINE));
        self.flush_lines(lines.iter().copied(), "publish", Effect::Flush, place);
        self.wait("fence", place);
        self.end_call(place, lines);
    }

    #[track_caller]
    fn write_line(&self, at: u64, words: &[u64; 8]) {
        let place = Location::caller();
        self.check(at, LINE, LINE);
        self.stream(at, *words, u8::MAX, "write_line", place);
        self.end_call(place, &[at]);
    }

    #[track_caller]
    fn write_word(&self, at: Offset<u64>, value: u64) {
        let place = Location::caller();
        self.check(at.raw(), 8, 8);
        let (line, word) = (at.raw() / LINE * LINE, at.raw() % LINE / 8);
        let mut words = [0; 8];
        words[word as usize] = value;
        self.stream(line, words, 1 << word, "write_word", place);
        self.end_call(place, &[line]);
    }

    #[track_caller]
    fn fence(&self) {
        let place = Location::caller();
        self.wait("fence", place);
        self.end_wait(place);
    }

    #[track_caller]
    fn publish_unfenced(&self, line: u64) {
        self.check(line, LINE, LINE);
        let place = Location::caller();
        self.flush_lines(std::iter::once(line), "publish_unfenced", Effect::Flush, place);
        self.end_call(place, &[line]);
    }

    #[track_caller]
    fn refresh(&self, lines: &[u64]) {
        let place = Location::caller();
        lines.iter().for_each(|&line| self.check(line, LINE, LINE));
        self.flush_lines(lines.iter().copied(), "refresh", Effect::Invalidation, place);
        self.look_early(lines);
        self.wait("fence", place);
        self.end_call(place, lines);
    }

    #[track_caller]
    fn refresh_unfenced(&self, line: u64) {
        let place = Location::caller();
        self.check(line, LINE, LINE);
        self.flush_lines(std::iter::once(line), "refresh_unfenced", Effect::Invalidation, place);
        self.look_early(&[line]);
        self.end_call(place, &[line]);
    }

    #[track_caller]
    fn write_payload_part(&self, at: u64, part: &[u8], _whole: u64, sum: &mut PayloadSum) {
        self.check(at, part.len() as u64, LINE);
        let process = self.process.number;
        for (index, part) in part.chunks(LINE as usize).enumerate() {
            let part = sum.outgoing(part);
            let Ok(mut state) = self.process.shared.step(process, Kind::Act) else { return };
            let mut line = [0; LINE as usize];
            line[..part.len()].copy_from_slice(part);
            let words =
                std::array::from_fn(|word| u64::from_le_bytes(line[8 * word..8 * word + 8].try_into().expect("8")));
            state.machine.stream(process, at + index as u64 * LINE, words, u8::MAX);
        }
    }

    #[track_caller]
    fn publish_payload(&self) {
        let place = Location::caller();
        self.wait("publish_payload", place);
        self.end_wait(place);
    }

    #[track_caller]
    fn read_payload_part(&self, at: u64, part: &mut [u8], _whole: u64, sum: &mut PayloadSum) {
        self.check(at, part.len() as u64, LINE);
        let process = self.process.number;
        for (index, line) in part.chunks_mut(LINE as usize).enumerate() {
            let Ok(mut state) = self.process.shared.look(process) else { return };
            let mut words = [0; 8];
            let words = &mut words[..line.len().div_ceil(8)];
            state.machine.load_words(process, at + index as u64 * LINE, words);
            for (word, bytes) in words.iter().zip(line.chunks_mut(8)) {
                bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
            }
        }
        sum.incoming(part);
    }

    #[track_caller]
    fn refresh_payload(&self, at: u64, len: u64) {
        let place = Location::caller();
        self.check(at, len, LINE);
        let lines: Vec<u64> = (0..len.div_ceil(LINE)).map(|line| at + line * LINE).collect();
        self.flush_lines(lines.iter().copied(), "refresh_payload", Effect::Invalidation, place);
        self.wait("fence", place);
        self.end_call(place, &lines);
    }

    #[track_caller]
    fn absorb_payload(&self, at: u64, len: u64, sum: &mut PayloadSum) {
        self.read_payload_part(at, &mut vec![0; len as usize], len, sum);
    }

    fn flush(&self) -> Flush {
        Flush::ClflushOpt
    }
}
