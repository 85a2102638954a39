//! The record of requests: which blocks the requests of the last time have asked for. From it `cenote pool
//! whatif` tells what hit rate another size or another policy would have had, and `cenote record` writes a
//! trace.
//!
//! Each host writes its own ring, in lines that are stored and not waited for; nothing depends on them. The
//! record is a sample by the blocks' hashes (SHARDS: Waldspurger et al., FAST '15): it has the blocks with
//! [`Asked::shift`] zeros at the end of a word of their hash, the same ones in each request. A request
//! without such a block has no line. Its blocks are in the sums of the next line, so their number is known
//! exactly.
//!
//! Names are 32 bits of a block's hash, which is keyed with the region's secret seed.
//!
//! The rate adapts (`Log::pace`): the ring should reach back over [`REACH`] times as many blocks as the region
//! holds. A larger cache than the record reaches back over cannot be told from an unlimited one.

use super::Log;
use super::ring::RingLine;
use crate::error::PoolError;
use crate::region::layout::Layout;
use crate::region::lines::RequestLine;
use crate::region::superblock::Superblock;
use cenote_base::{BlockHash, NamespaceId};
use cenote_mem::{Fabric, HostLocal, Word};
use cenote_policy::whatif::{Sampled, Trace};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// Kinds of lines.
const HEAD: u64 = 1;
const MORE: u64 = 2;
const ANSWER: u64 = 3;
/// Names in a line of each kind.
const HEAD_NAMES: usize = 2;
const MORE_NAMES: usize = 11;
/// A sample has at least one in so many blocks.
const SHIFT_MAX: u64 = 20;
/// The ring reaches back over so many times the blocks that fit into the region.
const REACH: u64 = 16;
/// Fewest sampled blocks of those that fit into the region.
const SAMPLED_MIN: u64 = 64;
/// The rate is looked at so many times in a round of the ring.
const LOOKS: u64 = 8;
/// Bits of the sum of all blocks.
const SUM_BITS: u32 = 40;
const SUM: u64 = (1 << SUM_BITS) - 1;

/// A request that a worker has admitted.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Names of all full blocks of its prompt, in order.
    pub names: &'a [BlockHash],
    /// Number of the first ones that the engine had itself, and did not ask the region for.
    pub above: usize,
    /// Tokens of its prompt.
    pub tokens: u32,
}

/// A request in the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// Its number among the lines of its host.
    pub number: u64,
    /// The host that admitted it.
    pub host: u8,
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Microseconds since 1970, by the host's clock.
    pub time_us: u64,
    /// Tokens of its prompt.
    pub tokens: u32,
    /// Full blocks of its prompt.
    pub blocks: u32,
    /// Of these: the first ones, which the region was not asked for.
    pub above: u32,
    /// The names have so many zeros in their hash: one in 2^shift blocks is in the record.
    pub shift: u8,
    /// Names of its sampled blocks, in order. Those of equal [`Asked::shift`] are equal if the blocks are.
    pub names: Vec<u32>,
    /// Of these: the first ones, which the region was not asked for.
    pub names_above: u32,
    /// Blocks that the region was asked for on this host since the request before in the record, its own
    /// included.
    pub asked: u64,
    /// Requests of this host since the request before in the record, itself included.
    pub requests: u64,
    /// Its number among the requests of its host, from 1, modulo 2³²; it begins anew with the host's memory.
    pub ordinal: u32,
    /// Tokens of its answer; `None`: it goes on, or its end is not in the record.
    pub answer: Option<u32>,
}

/// The record of all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// By time.
    pub all: Vec<Asked>,
    /// Requests of which a line is missing: torn, or overwritten.
    pub torn: u64,
}

impl Requests {
    /// The least sampled request's [`Asked::shift`]: all have the blocks with so many zeros.
    #[must_use]
    pub fn shift(&self) -> u8 {
        self.all.iter().map(|asked| asked.shift).max().unwrap_or(0)
    }

    /// The requests with the names of their blocks that are in the sample of [`Requests::shift`] and that
    /// the region was asked for. Equal names are equal blocks of a namespace.
    pub fn sampled(&self) -> impl Iterator<Item = (&Asked, Vec<u64>)> {
        let (most, least) = (self.shift(), self.all.iter().map(|asked| asked.shift).min().unwrap_or(0));
        self.all.iter().map(move |asked| (asked, thinned(asked, least, most).collect()))
    }
}

impl Requests {
    /// The requests for replays. `units_of` is the size of a block of a namespace.
    #[must_use]
    pub fn trace(&self, units_of: impl Fn(NamespaceId) -> u32) -> Trace {
        let mut trace = Trace::new(1.0 / (1_u64 << self.shift().min(63)) as f64);
        for (asked, names) in self.sampled() {
            trace.push(&Sampled {
                model: asked.namespace.0,
                units: units_of(asked.namespace),
                names: &names,
                asked: asked.asked,
                requests: asked.requests,
            });
        }
        trace
    }
}

/// The names at the rate of `most` zeros, where some names were written with `least` zeros: they have
/// `32 - (most - least)` bits in common.
fn thinned(asked: &Asked, least: u8, most: u8) -> impl Iterator<Item = u64> + use<'_> {
    let more = u32::from(most.saturating_sub(asked.shift)).min(32);
    let bits = 32 - u32::from(most.saturating_sub(least)).min(31);
    let names = asked.names.iter().skip(asked.names_above as usize).map(|&name| u64::from(name));
    names.filter(move |name| name & ((1 << more) - 1) == 0).map(move |name| (name >> more) & ((1 << bits) - 1))
}

/// The record in the rings of all hosts. Needs no live process and writes nothing. Empty if the region keeps
/// none.
///
/// # Errors
/// The region is unreadable (see [`Superblock::read`]).
pub fn requests<F: Fabric>(fabric: &F) -> Result<Requests, PoolError> {
    let superblock = Superblock::read(fabric)?;
    let layout = Layout::new(&superblock.config, superblock.region_bytes)?;
    let mut found = Requests::default();
    for host in 0..layout.max_hosts {
        // A host that never joined has a line of zeros, and no requests.
        fabric.refresh(&[layout.host(host)]);
        if fabric.load_line(layout.host(host)) == [0; 8] {
            continue;
        }
        let lines = RequestLine::all(fabric, superblock.salt(), &layout, host);
        read_host(host, &lines.map(|line| (line.sequence, line)).collect(), &mut found);
    }
    // Stable, so that one host's requests of one time stay in order.
    found.all.sort_by_key(|asked| asked.time_us);
    Ok(found)
}

/// Adds a host's requests.
fn read_host(host: u64, lines: &BTreeMap<u64, RequestLine>, found: &mut Requests) {
    let answers: BTreeMap<u64, u32> = (lines.values().filter(|line| line.kind() == ANSWER))
        .map(|line| (line.words[2], u32::try_from(line.words[1]).unwrap_or(u32::MAX)))
        .collect();
    let mut before: Option<(u64, u64)> = None;
    for (&number, head) in lines.iter().filter(|(_, line)| line.kind() == HEAD) {
        let [time, size, asked, requests, first] = head.words;
        let mut names = Vec::with_capacity(head.names());
        names.extend([first as u32, (first >> 32) as u32].into_iter().take(head.names()));
        let more = time & 0xfff;
        let parts = (number + 1..=number + more).map(|number| lines.get(&number).filter(|line| line.kind() == MORE));
        let Some(parts) = parts.collect::<Option<Vec<_>>>() else {
            found.torn += 1;
            continue;
        };
        parts.into_iter().for_each(|part| part.more_names(&mut names));
        let (blocks, above) = ((size >> 32) as u32, (requests >> 32) as u32);
        let (sum, count) = (asked & SUM, requests & 0xffff_ffff);
        // The sums begin anew with the host's memory.
        let (asked_since, since) = match before.filter(|before| before.0 <= sum && before.1 <= count) {
            Some(before) => (sum - before.0, count - before.1),
            None => (u64::from(blocks.saturating_sub(above)), 1),
        };
        before = Some((sum, count));
        found.all.push(Asked {
            number,
            host: host as u8,
            namespace: NamespaceId((head.what >> 24) as u16),
            time_us: time >> 12,
            tokens: size as u32,
            blocks,
            above,
            shift: (head.what >> 16) as u8,
            names_above: ((asked >> SUM_BITS) as u32).min(names.len() as u32),
            names,
            asked: asked_since,
            requests: since,
            ordinal: count as u32,
            answer: answers.get(&number).copied(),
        });
    }
}

impl RequestLine {
    const fn kind(&self) -> u64 {
        self.what & 0xff
    }

    fn names(&self) -> usize {
        (self.what >> 8 & 0xff) as usize
    }

    /// The line of a request's next names.
    fn more(sequence: u64, names: &[u32]) -> Self {
        let mut halves = [0; MORE_NAMES];
        halves[..names.len()].copy_from_slice(names);
        let pair = |at: usize| u64::from(halves[at]) | u64::from(halves[at + 1]) << 32;
        Self {
            sequence,
            what: MORE | (names.len() as u64) << 8 | u64::from(halves[0]) << 32,
            words: [pair(1), pair(3), pair(5), pair(7), pair(9)],
            check: 0,
        }
    }

    fn more_names(&self, names: &mut Vec<u32>) {
        let pairs = self.words.into_iter().flat_map(|word| [word as u32, (word >> 32) as u32]);
        names.extend(std::iter::once((self.what >> 32) as u32).chain(pairs).take(self.names()));
    }
}

/// The part of a hash in the record; `None`: the block is not in a sample with so many zeros.
#[inline]
fn sample(name: BlockHash, shift: u64) -> Option<u32> {
    let bits = name.words()[1];
    if bits & ((1 << shift) - 1) == 0 { Some((bits >> shift) as u32) } else { None }
}

impl<F: Fabric, H: HostLocal> Log<F, H> {
    /// Notes a request of a namespace with blocks of so many bytes. Returns the number of its line, if it
    /// has one.
    pub(crate) fn note_request(&self, namespace: NamespaceId, block_bytes: u64, request: &Request<'_>) -> Option<u64> {
        let region = &self.region;
        let above = request.above.min(request.names.len());
        let wanted = &request.names[above..];
        if !region.layout.has_requests() || wanted.is_empty() {
            return None;
        }
        let time_us = u64::try_from(region.area.unix_time().as_micros()).unwrap_or(u64::MAX);
        self.note_distinct(wanted, time_us / 1_000_000);
        let shift =
            if region.all_until().load(Relaxed) > 0 { 0 } else { region.sample_shift().load(Relaxed).min(SHIFT_MAX) };
        let of = |names: &[BlockHash]| names.iter().filter_map(|&name| sample(name, shift)).collect::<Vec<u32>>();
        let (mut names, wanted_names) = (of(&request.names[..above]), of(wanted));
        let names_above = names.len();
        names.extend(&wanted_names);
        let more = names.len().saturating_sub(HEAD_NAMES).div_ceil(MORE_NAMES) as u64;
        let lines = region.layout.requests_per_host;
        let requests = region.requests_counted().fetch_add(1, Relaxed).wrapping_add(1);
        if more >= (lines / LOOKS).min(1 << 12) {
            // Such a request would push all others out. Its blocks are not counted either.
            let _ = region.sample_shift().compare_exchange(shift, (shift + 1).min(SHIFT_MAX), Relaxed, Relaxed);
            return None;
        }
        let count = wanted.len() as u64;
        let asked = region.blocks_asked().fetch_add(count, Relaxed).wrapping_add(count);
        if wanted_names.is_empty() {
            return None;
        }
        let number = self.next_number::<RequestLine>().fetch_add(1 + more, Relaxed);
        let (first, rest) = names.split_at(names.len().min(HEAD_NAMES));
        self.put_unfenced(RequestLine {
            sequence: number,
            what: HEAD | (first.len() as u64) << 8 | shift << 16 | u64::from(namespace.0) << 24,
            words: [
                time_us << 12 | more,
                u64::from(request.tokens) | (request.names.len() as u64) << 32,
                asked & SUM | (names_above as u64) << SUM_BITS,
                requests & 0xffff_ffff | (above as u64) << 32,
                u64::from(first[0]) | u64::from(first.get(1).copied().unwrap_or(0)) << 32,
            ],
            check: 0,
        });
        for (number, names) in (number + 1..).zip(rest.chunks(MORE_NAMES)) {
            self.put_unfenced(RequestLine::more(number, names));
        }
        let (end, eighth) = (number + 1 + more, lines.div_ceil(LOOKS));
        if number / eighth != end / eighth {
            self.pace(end, asked & SUM, shift, block_bytes);
        }
        Some(number)
    }

    /// Notes that the answer to a request has ended, after so many tokens.
    pub(crate) fn note_answer(&self, number: u64, tokens: u32) {
        if !self.region.layout.has_requests() {
            return;
        }
        let time_us = u64::try_from(self.region.area.unix_time().as_micros()).unwrap_or(u64::MAX);
        self.put_unfenced(RequestLine {
            sequence: self.next_number::<RequestLine>().fetch_add(1, Relaxed),
            what: ANSWER,
            words: [time_us << 12, u64::from(tokens), number, 0, 0],
            check: 0,
        });
    }

    /// Adapts the rate of the sample to the last eighth of the ring before line `end`.
    #[cold]
    fn pace(&self, end: u64, asked: u64, shift: u64, block_bytes: u64) {
        let region = &self.region;
        let lines = region.layout.requests_per_host;
        let fits = (region.layout.data_bytes() / block_bytes.max(1)).max(1);
        let from = end.saturating_sub(lines / LOOKS).max(1);
        let line = |number: u64| {
            let line: RequestLine = self.line_at(region.host, (number - 1) % lines)?;
            (line.sequence == number && line.kind() == HEAD).then_some(line)
        };
        let Some(then) = (from..end).find_map(line) else { return };
        // A rate is judged by lines of its own.
        if then.what >> 16 & 0xff != shift || region.all_until().load(Relaxed) > 0 {
            return;
        }
        let since = asked.wrapping_sub(then.words[2]) & SUM;
        let reach = since.saturating_mul(lines) / (end - then.sequence);
        let wanted = REACH * fits;
        let next = if reach < wanted && fits >> shift > SAMPLED_MIN {
            shift + u64::from((wanted / reach.max(1)).ilog2().max(1))
        } else if reach / 4 > wanted {
            shift.saturating_sub(1)
        } else {
            return;
        };
        let most = u64::from((fits / SAMPLED_MIN).max(1).ilog2());
        let _ = region.sample_shift().compare_exchange(shift, next.min(most).min(SHIFT_MAX), Relaxed, Relaxed);
    }

    /// Lets the record of this host have all blocks until this second since 1970; 0: a sample again.
    pub(crate) fn record_all_until(&self, unix_s: u64) {
        self.region.all_until().store(unix_s, Relaxed);
    }

    /// Ends a record of all blocks that its reader has not prolonged, because it died.
    pub(crate) fn end_record_of_all(&self) {
        let until = self.region.all_until();
        let known = until.load(Relaxed);
        if known > 0 && known < self.region.area.unix_seconds() {
            let _ = until.compare_exchange(known, 0, Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_the_names_that_they_are_given() {
        for count in 0..=MORE_NAMES {
            let names: Vec<u32> = (1..=count as u32).map(|name| name * 0x0101_0101).collect();
            let mut read = Vec::new();
            RequestLine::more(9, &names).more_names(&mut read);
            assert_eq!(read, names);
        }
    }

    #[test]
    fn a_sample_of_fewer_blocks_is_part_of_one_of_more() {
        let hash = |bits: u64| BlockHash::from_words([7, bits]);
        let request = |shift: u8, bits: &[u64]| Asked {
            number: 1,
            host: 0,
            namespace: NamespaceId(0),
            time_us: 0,
            tokens: 0,
            blocks: 0,
            above: 0,
            shift,
            names: bits.iter().filter_map(|&bits| sample(hash(bits), shift.into())).collect(),
            names_above: 0,
            asked: 0,
            requests: 0,
            ordinal: 0,
            answer: None,
        };
        let all: Vec<u64> = (0..64).map(|bits| bits << 30 | bits).collect();
        let found = Requests { all: vec![request(1, &all), request(3, &all)], torn: 0 };
        assert_eq!(found.shift(), 3);
        let thinned: Vec<Vec<u64>> = found.sampled().map(|(_, names)| names).collect();
        assert_eq!((thinned[0].len(), &thinned[0]), (8, &thinned[1]));
        assert_eq!(found.all[0].names.len(), 32);
    }
}
