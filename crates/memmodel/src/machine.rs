//! The memory: a device, one cache per host, and each process's pending stores, flushes and
//! streams. It has no threads and no schedule: the caller chooses the next operation. Where the
//! hardware is free to choose, one seeded generator does.

use crate::cache::{Cache, CachedLine};
use crate::flushes::Flushes;
use cenote_base::prng::Prng;
use std::collections::VecDeque;

/// Bytes of a line.
pub(crate) const LINE: u64 = 64;

/// Most lines that may be hot.
const HOT_MAX: usize = 256;

/// Capacity of a process's store buffer, in stores.
const STORE_BUFFER: usize = 24;

pub(crate) type Words = [u64; 8];

/// A process's pending operations.
#[derive(Default)]
struct Buffers {
    host: usize,
    /// The store buffer, oldest first: (number, offset, value).
    stores: VecDeque<(u64, u64, u64)>,
    stored: u64,
    flushes: Flushes,
    /// Pending streamed stores: (line, words, mask of the words that are stored).
    streams: Vec<(u64, Words, u8)>,
    /// Lines with deferred flushes and streams: they wait for a fence, or until `drift` clears this
    /// list.
    slow: Vec<u64>,
    /// Pending flushes and streams of the process's other threads. A fence does not wait for them.
    elsewhere: Vec<Elsewhere>,
}

/// A flush or stream that was pending when the process changed its thread.
enum Elsewhere {
    Flush(u64),
    Stream(u64, Words, u8),
}

/// A word that a cache has written back and that has not reached the device.
struct InFlight {
    host: usize,
    at: u64,
    value: u64,
}

/// Rates of spontaneous events, in 1/1024 per operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spontaneous {
    pub drain: u64,
    pub flush: u64,
    pub stream: u64,
    pub write_back: u64,
    pub evict: u64,
    pub prefetch: u64,
    pub tear: u64,
    /// A host writes its dirty line back just after another host wrote that line.
    pub spite: u64,
}

pub(crate) struct Machine {
    device: Vec<u64>,
    caches: Vec<Cache>,
    processes: Vec<Buffers>,
    in_flight: Vec<InFlight>,
    /// A sample of the lines that caches fetched: candidates for prefetching.
    touched: Vec<u64>,
    /// By line of the device: whether it is hot. Other hosts fetch a hot line just before it
    /// changes, and its words arrive apart.
    hot: Vec<bool>,
    hot_lines: Vec<u64>,
    pub prng: Prng,
    pub rates: Spontaneous,
}

const fn line_of(at: u64) -> u64 {
    at / LINE * LINE
}

const fn word_of(at: u64) -> usize {
    (at % LINE / 8) as usize
}

impl Machine {
    pub fn new(seed: u64, bytes: u64, hosts: usize, rates: Spontaneous) -> Self {
        Self {
            device: vec![0; (bytes / 8) as usize],
            caches: (0..hosts).map(|_| Cache::new(bytes / LINE)).collect(),
            processes: Vec::new(),
            in_flight: Vec::new(),
            touched: Vec::new(),
            hot: vec![false; (bytes / LINE) as usize],
            hot_lines: Vec::new(),
            prng: Prng::new(seed),
            rates,
        }
    }

    pub const fn bytes(&self) -> u64 {
        self.device.len() as u64 * 8
    }

    pub fn add_process(&mut self, host: usize) -> usize {
        self.processes.push(Buffers { host, ..Buffers::default() });
        self.processes.len() - 1
    }

    fn chance(&mut self, rate: u64) -> bool {
        rate > 0 && self.prng.below(1024) < rate
    }

    // --- operations of a process

    pub fn load(&mut self, process: usize, at: u64) -> u64 {
        let mut word = [0];
        self.load_words(process, at, &mut word);
        word[0]
    }

    /// Loads adjacent words of one line, from `at` on: each from the process's newest store to it, or else from
    /// the host's cache.
    pub fn load_words(&mut self, process: usize, at: u64, words: &mut [u64]) {
        let line = line_of(at);
        let buffers = &self.processes[process];
        let (mut stored, first) = (0_u8, word_of(at));
        for &(_, place, value) in buffers.stores.iter().filter(|store| line_of(store.1) == line) {
            if let Some(word) = word_of(place).checked_sub(first).filter(|&word| word < words.len()) {
                words[word] = value;
                stored |= 1 << word;
            }
        }
        if stored.count_ones() as usize == words.len() {
            return;
        }
        let host = buffers.host;
        let cached = self.cached(host, line);
        for (word, value) in words.iter_mut().enumerate().filter(|(word, _)| stored >> word & 1 == 0) {
            *value = cached.words[first + word];
        }
    }

    pub fn store(&mut self, process: usize, at: u64, value: u64) {
        let buffers = &mut self.processes[process];
        buffers.stored += 1;
        buffers.stores.push_back((buffers.stored, at, value));
        if buffers.stores.len() > STORE_BUFFER {
            self.drain_one(process);
        }
    }

    /// Queues a flush: at the latest at the next fence, the cache writes the line back if it is
    /// dirty and drops it.
    ///
    /// The flush has no effect if the host does not cache the line and the process has no buffered
    /// store to it.
    pub fn flush(&mut self, process: usize, line: u64) {
        let buffers = &self.processes[process];
        let has_work =
            self.caches[buffers.host].has(line) || buffers.stores.iter().any(|store| line_of(store.1) == line);
        let buffers = &mut self.processes[process];
        if has_work {
            buffers.flushes.push(line, buffers.stored);
        }
    }

    /// Queues a streamed store of the words that `mask` selects. The host's own cache writes the
    /// line back if it is dirty and drops it at once. Streams of one process to one line arrive in
    /// order.
    pub fn stream(&mut self, process: usize, line: u64, words: Words, mask: u8) {
        let host = self.processes[process].host;
        self.write_back(host, line);
        self.caches[host].remove(line);
        while let Some(older) = self.processes[process].streams.iter().position(|stream| stream.0 == line) {
            self.land_stream(process, older);
        }
        self.processes[process].streams.push((line, words, mask));
    }

    /// Moves the process's buffered stores into its host's cache.
    pub fn drain_stores(&mut self, process: usize) {
        while !self.processes[process].stores.is_empty() {
            self.drain_one(process);
        }
    }

    /// Completes the process's stores, flushes and streams, and the write-backs of its host.
    /// Flushes and streams of its other threads stay pending.
    pub fn fence(&mut self, process: usize) {
        self.drain_stores(process);
        self.processes[process].slow.clear();
        while self.run_a_flush(process) {}
        while self.run_a_stream(process) {}
        let host = self.processes[process].host;
        self.land(|word| word.host == host);
    }

    /// Continues the process on another thread and core. The new thread sees the old thread's
    /// stores, as a hand-over by lock or channel guarantees. Its fences do not complete the old
    /// thread's flushes and streams.
    pub fn change_thread(&mut self, process: usize) {
        self.drain_stores(process);
        let buffers = &mut self.processes[process];
        let flushes = buffers.flushes.take_lines().into_iter().map(Elsewhere::Flush);
        let streams = buffers.streams.drain(..).map(|(line, words, mask)| Elsewhere::Stream(line, words, mask));
        buffers.elsewhere.extend(flushes.chain(streams));
        buffers.slow.clear();
    }

    /// Completes the oldest pending flush or stream of the process's other threads. Returns false
    /// if there is none.
    fn run_elsewhere(&mut self, process: usize) -> bool {
        if self.processes[process].elsewhere.is_empty() {
            return false;
        }
        let host = self.processes[process].host;
        let arrived = self.processes[process].elsewhere.remove(0);
        let (Elsewhere::Flush(line) | Elsewhere::Stream(line, ..)) = arrived;
        self.write_back(host, line);
        self.caches[host].remove(line);
        if let Elsewhere::Stream(line, words, mask) = arrived {
            self.write_line(host, line, words, mask);
        }
        true
    }

    /// Defers the process's pending flushes and streams of these lines to its next fence.
    pub fn slow_down(&mut self, process: usize, lines: &[u64]) {
        self.processes[process].slow.extend(lines);
    }

    /// Lines with a pending stream or flush of the process.
    pub fn under_way(&self, process: usize) -> Vec<u64> {
        let buffers = &self.processes[process];
        let streamed = buffers.streams.iter().map(|stream| stream.0);
        streamed.chain(buffers.flushes.lines()).collect()
    }

    /// Makes these lines hot, until `HOT_MAX` lines are.
    pub fn heat(&mut self, lines: &[u64]) {
        for &line in lines {
            let hot = &mut self.hot[(line / LINE) as usize];
            if !*hot && self.hot_lines.len() < HOT_MAX {
                *hot = true;
                self.hot_lines.push(line);
            }
        }
    }

    fn is_hot(&self, line: u64) -> bool {
        self.hot[(line / LINE) as usize]
    }

    pub fn hot_lines(&self) -> &[u64] {
        &self.hot_lines
    }

    /// Fetches a line into a host's cache, unless it is there.
    pub fn prefetch(&mut self, host: usize, line: u64) {
        self.cached(host, line);
    }

    /// Starts a fence. At the `tear` rate, leaves its write-backs half done: some words of the
    /// flushed and streamed lines have arrived, the others are in flight. Returns whether a word is
    /// in flight or a stream has arrived.
    pub fn begin_fence(&mut self, process: usize) -> bool {
        self.drain_stores(process);
        if !self.chance(self.rates.tear) {
            return false;
        }
        self.processes[process].slow.clear();
        let before = self.in_flight.len();
        let saved = self.rates.tear;
        self.rates.tear = 1024;
        while self.run_a_flush(process) {}
        let streams = self.processes[process].streams.len();
        while self.chance(512) && self.run_a_stream(process) {}
        self.rates.tear = saved;
        self.in_flight.len() > before || self.processes[process].streams.len() < streams
    }

    /// A line as a reader outside of all hosts sees it now. `through`: the host whose caches answer; without
    /// one, what has arrived on the device. No cache changes, and no store buffer is seen.
    pub fn seen_from_outside(&self, through: Option<usize>, line: u64) -> Words {
        if let Some(cached) = through.and_then(|host| self.caches[host].get(line)) {
            return cached.words;
        }
        let first = (line / 8) as usize;
        let mut words: Words = std::array::from_fn(|word| self.device[first + word]);
        // The host's own write-backs are coherent for it before they arrive.
        for word in self.in_flight.iter().filter(|word| Some(word.host) == through && line_of(word.at) == line) {
            words[word_of(word.at)] = word.value;
        }
        words
    }

    /// Flips bits of a word, on the device and in all caches.
    pub fn damage(&mut self, at: u64, bits: u64) {
        self.device[(at / 8) as usize] ^= bits;
        for cached in self.caches.iter_mut().filter_map(|cache| cache.get_mut(line_of(at))) {
            cached.words[word_of(at)] ^= bits;
        }
    }

    // --- caches and write-backs

    fn touch(&mut self, line: u64) {
        if self.touched.len() < 512 {
            self.touched.push(line);
        } else {
            let at = self.prng.below(512) as usize;
            self.touched[at] = line;
        }
    }

    /// The host's copy of a line. Fetches it from the device if it is not cached.
    fn cached(&mut self, host: usize, line: u64) -> &mut CachedLine {
        if !self.caches[host].has(line) {
            self.fetch(host, line);
        }
        self.caches[host].get_mut(line).expect("it is cached, or was just fetched")
    }

    fn fetch(&mut self, host: usize, line: u64) {
        self.land(|word| word.host == host && line_of(word.at) == line);
        let first = (line / 8) as usize;
        let words = self.device[first..first + 8].try_into().expect("eight words");
        self.caches[host].insert(CachedLine { line, words, dirty: false });
        self.touch(line);
    }

    fn drain_one(&mut self, process: usize) {
        let buffers = &mut self.processes[process];
        let host = buffers.host;
        if let Some((_, at, value)) = buffers.stores.pop_front() {
            let line = self.cached(host, line_of(at));
            line.words[word_of(at)] = value;
            line.dirty = true;
        }
    }

    /// Writes the words in flight that `which` selects to the device.
    fn land(&mut self, which: impl Fn(&InFlight) -> bool) {
        if self.in_flight.is_empty() {
            return;
        }
        let device = &mut self.device;
        self.in_flight.retain(|word| {
            if which(word) {
                device[(word.at / 8) as usize] = word.value;
            }
            !which(word)
        });
    }

    /// Writes all eight words of a dirty line to the device. Some of them may stay in flight.
    fn write_back(&mut self, host: usize, line: u64) {
        let Some(cached) = self.caches[host].get_mut(line).filter(|cached| cached.dirty) else { return };
        cached.dirty = false;
        let words = cached.words;
        self.write_line(host, line, words, u8::MAX);
    }

    fn write_line(&mut self, host: usize, line: u64, words: Words, mask: u8) {
        if self.is_hot(line) {
            for other in (0..self.caches.len()).filter(|&other| other != host) {
                if self.chance(512) {
                    self.prefetch(other, line);
                }
            }
        }
        // Words in flight of an older state of the line arrive before this one.
        self.land(|word| word.host == host && line_of(word.at) == line);
        let late = if self.chance(self.rates.tear) { self.prng.next_u64() } else { 0 };
        for (word, &value) in words.iter().enumerate().filter(|(word, _)| mask >> word & 1 == 1) {
            let at = line + 8 * word as u64;
            if late >> word & 1 == 1 {
                self.in_flight.push(InFlight { host, at, value });
            } else {
                self.device[(at / 8) as usize] = value;
            }
        }
        if self.rates.spite > 0 {
            self.spite(host, line);
        }
    }

    /// Other hosts that hold the line dirty may write it back now. Code under test must keep a line
    /// dirty only on the one host that writes it, so this exposes a second writer.
    fn spite(&mut self, host: usize, line: u64) {
        for other in (0..self.caches.len()).filter(|&other| other != host) {
            if self.caches[other].get_mut(line).is_some_and(|cached| cached.dirty) && self.chance(self.rates.spite) {
                self.write_back(other, line);
            }
        }
    }

    /// Completes a random pending flush. Returns false if there is none, or if the chosen one is
    /// slow.
    pub fn run_a_flush(&mut self, process: usize) -> bool {
        let count = self.processes[process].flushes.len();
        if count == 0 {
            return false;
        }
        let chosen = self.prng.below(count as u64) as usize;
        if self.processes[process].slow.contains(&self.processes[process].flushes.line(chosen)) {
            return false;
        }
        self.run_flush(process, chosen);
        true
    }

    /// Completes the first pending flush of the line, if there is one.
    pub fn run_flush_of(&mut self, process: usize, line: u64) {
        if let Some(chosen) = self.processes[process].flushes.place_of(line) {
            self.run_flush(process, chosen);
        }
    }

    fn run_flush(&mut self, process: usize, chosen: usize) {
        let (line, after) = self.processes[process].flushes.swap_remove(chosen);
        // A flush takes effect after older stores to its line, and the store buffer drains in
        // order.
        let older = |stores: &VecDeque<(u64, u64, u64)>| {
            stores.iter().any(|&(number, at, _)| number <= after && line_of(at) == line)
        };
        while older(&self.processes[process].stores) {
            self.drain_one(process);
        }
        let host = self.processes[process].host;
        self.write_back(host, line);
        self.caches[host].remove(line);
    }

    /// Completes a random pending stream. Returns false if there is none, or if the chosen one is
    /// slow.
    fn run_a_stream(&mut self, process: usize) -> bool {
        let count = self.processes[process].streams.len();
        if count == 0 {
            return false;
        }
        let chosen = self.prng.below(count as u64) as usize;
        if self.processes[process].slow.contains(&self.processes[process].streams[chosen].0) {
            return false;
        }
        self.land_stream(process, chosen);
        true
    }

    fn land_stream(&mut self, process: usize, chosen: usize) {
        let (line, words, mask) = self.processes[process].streams.swap_remove(chosen);
        let host = self.processes[process].host;
        // Caches within a host are coherent: drop the copy that the host fetched since the stream
        // began.
        self.write_back(host, line);
        self.caches[host].remove(line);
        self.write_line(host, line, words, mask);
    }

    // --- spontaneous events

    /// The spontaneous events between two operations. `live` are the live processes, at least one.
    pub fn drift(&mut self, live: &[usize]) {
        let rates = self.rates;
        let anyone = live[self.prng.below(live.len() as u64) as usize];
        if self.chance(rates.drain) {
            self.drain_one(anyone);
        }
        if self.chance(rates.flush) {
            self.run_a_flush(anyone);
        }
        if self.chance(rates.stream) {
            self.run_a_stream(anyone);
        }
        if !self.in_flight.is_empty() && self.chance(128) {
            let chosen = self.prng.below(self.in_flight.len() as u64) as usize;
            if !self.is_hot(line_of(self.in_flight[chosen].at)) || self.chance(64) {
                let word = self.in_flight.swap_remove(chosen);
                self.device[(word.at / 8) as usize] = word.value;
            }
        }
        if self.chance(rates.stream.max(8)) {
            self.run_elsewhere(anyone);
        }
        // Slow flushes and streams arrive eventually, even without a fence.
        if !self.processes[anyone].slow.is_empty() && self.chance(8) {
            self.processes[anyone].slow.clear();
        }
        let host = self.processes[anyone].host;
        if self.chance(rates.write_back)
            && let Some(line) = self.any_line(host)
        {
            self.write_back(host, line);
        }
        if self.chance(rates.evict)
            && let Some(line) = self.any_line(host)
        {
            self.write_back(host, line);
            self.caches[host].remove(line);
        }
        if self.chance(rates.prefetch) && !self.touched.is_empty() {
            let chosen = self.prng.below(self.touched.len() as u64) as usize;
            let line = self.touched[chosen];
            self.cached(host, line);
        }
    }

    /// A random line of a host's cache.
    fn any_line(&mut self, host: usize) -> Option<u64> {
        let lines = self.caches[host].lines();
        (!lines.is_empty()).then(|| lines[self.prng.below(lines.len() as u64) as usize].line)
    }

    // --- exits and crashes

    /// Ends a process. Its retired stores, flushes and streams arrive, including those of its other
    /// threads.
    pub fn end_process(&mut self, process: usize) {
        self.fence(process);
        while self.run_elsewhere(process) {}
    }

    /// Cuts a host's power. Of its streams, dirty lines and words in flight, a random part arrives
    /// and the rest is lost. Buffered stores and the pending streams of other threads are all lost.
    pub fn lose_host(&mut self, host: usize) {
        for process in 0..self.processes.len() {
            if self.processes[process].host != host {
                continue;
            }
            while self.prng.below(3) > 0 && self.run_a_stream(process) {}
            self.processes[process].streams.clear();
            self.processes[process].stores.clear();
            self.processes[process].flushes.take_lines();
            self.processes[process].elsewhere.clear();
        }
        let dirty: Vec<u64> =
            self.caches[host].lines().iter().filter(|cached| cached.dirty).map(|cached| cached.line).collect();
        for line in dirty {
            if self.prng.below(2) == 0 {
                self.write_back(host, line);
            }
        }
        let arrived = self.prng.next_u64();
        let mut turn = 0_u64;
        let arrives: Vec<bool> = self
            .in_flight
            .iter()
            .map(|_| {
                turn += 1;
                arrived.rotate_left((turn * 7 % 64) as u32) & 1 == 1
            })
            .collect();
        let mut index = 0;
        let device = &mut self.device;
        self.in_flight.retain(|word| {
            let own = word.host == host;
            if own && arrives[index] {
                device[(word.at / 8) as usize] = word.value;
            }
            index += 1;
            !own
        });
        self.caches[host].clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(rates: Spontaneous) -> (Machine, usize, usize) {
        let mut machine = Machine::new(1, 4096, 2, rates);
        let (a, b) = (machine.add_process(0), machine.add_process(1));
        (machine, a, b)
    }

    #[test]
    fn another_host_sees_a_store_only_after_a_flush_and_an_invalidation() {
        let (mut machine, a, b) = machine(Spontaneous::default());
        assert_eq!(machine.load(b, 64), 0);
        machine.store(a, 64, 7);
        assert_eq!((machine.load(a, 64), machine.load(b, 64)), (7, 0));
        machine.flush(a, 64);
        machine.fence(a);
        assert_eq!(machine.load(b, 64), 0, "the host's copy is stale");
        machine.flush(b, 64);
        assert_eq!(machine.load(b, 64), 0, "the flush completes at the fence");
        machine.fence(b);
        assert_eq!(machine.load(b, 64), 7);
    }

    #[test]
    fn a_fence_waits_for_its_own_thread_only() {
        for is_flush in [true, false] {
            let (mut machine, a, b) = machine(Spontaneous::default());
            let write = |machine: &mut Machine| {
                if is_flush {
                    machine.store(a, 64, 7);
                    machine.flush(a, 64);
                } else {
                    machine.stream(a, 64, [7; 8], u8::MAX);
                }
            };
            write(&mut machine);
            machine.change_thread(a);
            machine.fence(a);
            assert_eq!(machine.device[8], 0, "another thread's fence completed the write");
            machine.end_process(a);
            assert_eq!(machine.device[8], 7, "the write arrives when the process ends");
            // The writing thread fences before the hand-over.
            write(&mut machine);
            machine.fence(a);
            machine.change_thread(a);
            assert_eq!(machine.load(b, 64), 7);
        }
    }

    #[test]
    fn a_line_is_written_back_whole() {
        let (mut machine, a, b) = machine(Spontaneous::default());
        machine.load(a, 8);
        machine.store(b, 8, 2);
        machine.flush(b, 0);
        machine.fence(b);
        machine.store(a, 0, 1);
        machine.flush(a, 0);
        machine.fence(a);
        assert_eq!(machine.device[..2], [1, 0], "the write-back overwrites the other host's word");
    }

    #[test]
    fn a_host_crash_may_lose_dirty_lines_and_a_process_exit_loses_no_stream() {
        let (mut lost, mut kept) = (0, 0);
        for seed in 0..64 {
            let mut machine = Machine::new(seed, 4096, 1, Spontaneous::default());
            let process = machine.add_process(0);
            machine.store(process, 0, 1);
            machine.drain_stores(process);
            machine.lose_host(0);
            if machine.device[0] == 1 {
                kept += 1
            } else {
                lost += 1
            }
            machine.stream(process, 64, [5; 8], u8::MAX);
            machine.end_process(process);
            assert_eq!(machine.device[8..16], [5; 8]);
        }
        assert!(lost > 8 && kept > 8, "{lost} {kept}");
    }

    #[test]
    fn a_reader_outside_sees_the_device_or_the_caches_of_one_host() {
        let rates = Spontaneous { tear: 1024, ..Spontaneous::default() };
        let (mut machine, a, _) = machine(rates);
        let seen =
            |machine: &Machine| [None, Some(0), Some(1)].map(|through| machine.seen_from_outside(through, 64)[0]);
        machine.store(a, 64, 7);
        assert_eq!(seen(&machine), [0, 0, 0], "the store is in the processor's buffer");
        machine.drain_stores(a);
        assert_eq!(seen(&machine), [0, 7, 0]);
        while machine.in_flight.iter().all(|word| word.at != 64) {
            machine.store(a, 64, 7);
            machine.flush(a, 64);
            machine.begin_fence(a);
        }
        assert_eq!(seen(&machine), [0, 7, 0], "the write-back is on its way");
        machine.fence(a);
        assert_eq!(seen(&machine), [7, 7, 7]);
        assert!(!machine.caches[1].has(64), "nothing was fetched");
    }

    #[test]
    fn a_fence_may_write_a_line_back_in_parts() {
        let rates = Spontaneous { tear: 1024, ..Spontaneous::default() };
        let (mut machine, a, _) = machine(rates);
        (0..8).for_each(|word| machine.store(a, word * 8, 1));
        machine.flush(a, 0);
        let torn = machine.begin_fence(a);
        let arrived = machine.device[..8].iter().sum::<u64>();
        assert!(torn && arrived < 8);
        machine.fence(a);
        assert_eq!(machine.device[..8], [1; 8]);
    }
}
