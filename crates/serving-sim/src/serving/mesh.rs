//! Hosts that share no memory and read each other's regions over a network, as `crates/reach` does.
//!
//! A request that its host's region cannot serve waits beside the engine while one peer after the other is
//! asked. [`cenote_policy::fetch`] decides whether that is worth it, and the order of peers. A visit is
//! those of the product: buckets, descriptors, then payloads of at most 8 MiB at a time, each with the
//! descriptors again. (The product reads pieces that follow each other as one; here each is counted.) What arrives is published in the own region, where other hosts find it.
//!
//! Each host has one card that sends and receives at once. A payload takes its time at the owner's sending
//! side first, then at the reader's receiving side. Lines of the index are small: they take time, and no
//! part of a card. A reader has one visit at a time at each peer, so an owner has at most one payload of each
//! reader before it. An owner's order of eviction does not learn of reads, which write nothing.

use super::stores::{Shared, SharedPool};
use super::world::Event;
use crate::cache::key;
use crate::kernel::{Calendar, Time};
use crate::rack::{Card, Hosts};
use crate::workload::{BlockNumber, Workload};
use cenote_policy::fetch::{Missing, Prefill, Route, asking_order, plan};
use serde::Serialize;
use std::collections::VecDeque;

/// Most peers of a reader, and most requests that wait for one of them: the product's.
const PEERS_MAX: usize = 64;
const QUEUE_MAX: usize = 64;
/// Longest time that a request waits for peers: the product's default.
const DEADLINE_NS: Time = 500_000_000;
/// Most bytes of one read, unless a block is longer.
const READ_BYTES: u64 = 8 << 20;
/// Bytes of a line of the index.
const LINE_BYTES: u64 = 64;
/// Pieces of a block beside its payload: names and namespace.
const EXTRA_PIECES: u64 = 2;

/// What hosts read from each other, or from an object store. Counts are of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkReads {
    /// Blocks that a request lacked, and that were sought elsewhere.
    pub sought: u64,
    /// Blocks that requests lacked and did not seek, because computing them takes less time.
    pub declined: u64,
    /// Blocks that arrived.
    pub read: u64,
    /// Blocks that arrived after their request had stopped waiting.
    pub late: u64,
    /// Bytes that arrived.
    pub read_bytes: u64,
    /// Most bytes that one host sent.
    pub sent_bytes_max: u64,
}

/// A reader's way to one peer.
#[derive(Default)]
struct Lane {
    route: Route,
    queue: VecDeque<u32>,
    is_busy: bool,
}

impl Lane {
    fn waiting(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.is_busy)
    }
}

/// An instance as a reader.
struct Reader {
    prefill: Prefill,
    lanes: Vec<Lane>,
}

/// A host's card: when each of its sides is free.
#[derive(Clone, Copy, Default)]
struct Sides {
    sends_at: Time,
    receives_at: Time,
    sent: u64,
}

/// A request that waits for peers.
struct Job {
    request: u32,
    reader: u32,
    /// Number of the first block that is not here, and that of the prompt's last one and one.
    done: usize,
    end: usize,
    is_over: bool,
    /// Lanes to ask, the next one last.
    ahead: Vec<u32>,
    lane: u32,
    /// Ends of the blocks that are asked of this peer, that it has, and that are on their way.
    asked: usize,
    found: usize,
    batch: usize,
    has_sought: bool,
    began: Time,
    read_bytes: u64,
    read_began: Time,
}

pub(super) struct Mesh {
    card: Card,
    /// Hosts that read each other.
    group: usize,
    hosts: usize,
    block_bytes: u64,
    block_tokens: u64,
    readers: Vec<Reader>,
    sides: Vec<Sides>,
    jobs: Vec<Job>,
    counts: NetworkReads,
}

/// What a step of the mesh may use of the world.
pub(super) struct Around<'a> {
    pub(super) calendar: &'a mut Calendar<Event>,
    /// Regions by host.
    pub(super) regions: &'a mut [Shared],
    pub(super) workload: &'a Workload,
}

impl<'a> Around<'a> {
    /// The blocks of a request.
    pub(super) fn of(&self, request: u32) -> &'a [BlockNumber] {
        self.workload.blocks(&self.workload.requests()[request as usize])
    }

    fn has(&self, host: usize, block: BlockNumber) -> bool {
        self.regions[host].pool.contains(block)
    }

    /// A host publishes a block, number `at` of its prompt.
    pub(super) fn publish(&mut self, host: usize, block: BlockNumber, at: usize) {
        if let SharedPool::Hosts { rack, .. } = &mut self.regions[host].pool {
            rack.publish(0, block, at as u32);
        }
    }
}

impl Mesh {
    pub(super) fn new(card: Card, hosts: Hosts, instances: usize, (block_bytes, block_tokens): (u64, u64)) -> Self {
        let lanes = (hosts.count - 1).min(PEERS_MAX);
        let reader = |_| Reader { prefill: Prefill::default(), lanes: (0..lanes).map(|_| Lane::default()).collect() };
        let all = hosts.count * hosts.racks;
        Self {
            card,
            group: hosts.count,
            hosts: all,
            block_bytes,
            block_tokens,
            readers: (0..instances).map(reader).collect(),
            sides: vec![Sides::default(); all],
            jobs: Vec::new(),
            counts: NetworkReads::default(),
        }
    }

    pub(super) fn counts(&self) -> NetworkReads {
        let sent_bytes_max = self.sides.iter().map(|sides| sides.sent).max().unwrap_or(0);
        NetworkReads { sent_bytes_max, ..self.counts }
    }

    /// An instance computed a step without loading.
    pub(super) fn has_computed(&mut self, reader: usize, tokens: u64, pairs: u64, ns: u64) {
        self.readers[reader].prefill.has_computed(tokens, pairs, ns);
    }

    fn host(&self, reader: u32) -> usize {
        reader as usize % self.hosts
    }

    /// The host at the other end of a lane: peers are the next hosts of the group.
    fn peer(&self, reader: u32, lane: u32) -> usize {
        let host = self.host(reader);
        let (first, own) = (host / self.group * self.group, host % self.group);
        first + (own + 1 + lane as usize) % self.group
    }

    fn missing(&self, done: usize, end: usize) -> Missing {
        let (blocks, before) = ((end - done) as u64, done as u64 * self.block_tokens);
        Missing { blocks, block_bytes: self.block_bytes, block_tokens: self.block_tokens, before_tokens: before }
    }

    /// Blocks that asking a peer is worth.
    fn worth(&self, reader: u32, lane: u32, missing: &Missing) -> u64 {
        let Reader { prefill, lanes } = &self.readers[reader as usize];
        let lane = &lanes[lane as usize];
        let way = lane.route.way(self.block_bytes, lane.waiting(), DEADLINE_NS);
        plan(missing, prefill, None, Some(&way)).peers
    }

    /// A request lacks the blocks from number `found` on. Returns whether it waits for some.
    pub(super) fn seek(&mut self, reader: usize, request: usize, found: usize, around: &mut Around<'_>) -> bool {
        let (reader, now) = (reader as u32, around.calendar.now());
        let lanes = self.readers[reader as usize].lanes.len();
        let blocks = around.of(request as u32);
        let order = asking_order(key(blocks[found]), self.host(reader) as u64, lanes);
        let mut ahead: Vec<u32> = order.map(|lane| lane as u32).collect();
        let missing = self.missing(found, blocks.len());
        ahead.reverse();
        let job = self.jobs.len() as u32;
        self.jobs.push(Job {
            request: request as u32,
            reader,
            done: found,
            end: blocks.len(),
            is_over: false,
            ahead,
            lane: 0,
            asked: 0,
            found: 0,
            batch: 0,
            has_sought: false,
            began: now,
            read_bytes: 0,
            read_began: now,
        });
        if !self.hand_on(job, around) {
            self.jobs.pop();
            self.counts.declined += missing.blocks;
            return false;
        }
        self.counts.sought += missing.blocks;
        around.calendar.schedule(now + DEADLINE_NS, Event::FetchLate { job });
        true
    }

    /// Queues a job at the next peer that is worth asking and has room. `false`: there is none.
    fn hand_on(&mut self, job: u32, around: &mut Around<'_>) -> bool {
        loop {
            let &Job { reader, done, end, .. } = &self.jobs[job as usize];
            let Some(lane) = self.jobs[job as usize].ahead.pop() else { return false };
            let worth = self.worth(reader, lane, &self.missing(done, end)) as usize;
            let one = &mut self.readers[reader as usize].lanes[lane as usize];
            if worth == 0 {
                one.route.has_declined();
                continue;
            }
            if one.queue.len() >= QUEUE_MAX {
                continue;
            }
            one.route.begins();
            one.queue.push_back(job);
            let is_busy = one.is_busy;
            let waits = &mut self.jobs[job as usize];
            (waits.lane, waits.asked) = (lane, done + worth);
            if !is_busy {
                self.start(reader, lane, around);
            }
            return true;
        }
    }

    /// Begins the next visit of a lane: its lookup.
    fn start(&mut self, reader: u32, lane: u32, around: &mut Around<'_>) {
        let one = &mut self.readers[reader as usize].lanes[lane as usize];
        let Some(job) = one.queue.pop_front() else { return };
        one.is_busy = true;
        let (now, peer) = (around.calendar.now(), self.peer(reader, lane));
        let visit = &mut self.jobs[job as usize];
        let blocks = around.of(visit.request);
        let found = (visit.done..visit.asked).take_while(|&at| around.has(peer, blocks[at])).count();
        let lines = |count: usize| self.card.messages_ns(count as u64 + 1, LINE_BYTES);
        let seek_ns = lines(visit.asked - visit.done) + if found > 0 { lines(found) } else { 0 };
        (visit.began, visit.read_began, visit.read_bytes) = (now, now + seek_ns, 0);
        (visit.found, visit.batch, visit.has_sought) = (visit.done + found, visit.done, false);
        around.calendar.schedule(now + seek_ns, Event::Fetch { job });
    }

    /// A step of a visit ended: its lookup, or a read.
    pub(super) fn step(&mut self, job: u32, around: &mut Around<'_>) {
        let now = around.calendar.now();
        let &Job { reader, lane, .. } = &self.jobs[job as usize];
        let (host, peer) = (self.host(reader), self.peer(reader, lane));
        let visit = &mut self.jobs[job as usize];
        let blocks = around.of(visit.request);
        let route = &mut self.readers[reader as usize].lanes[lane as usize].route;
        if !visit.has_sought {
            visit.has_sought = true;
            let (asked, found) = (visit.asked - visit.done, visit.found - visit.done);
            route.has_sought(asked as u64, found as u64, now - visit.began);
        }
        while visit.done < visit.batch {
            // Evicted while it was read: the second descriptor is another.
            if !around.has(peer, blocks[visit.done]) {
                visit.found = visit.done;
                break;
            }
            around.publish(host, blocks[visit.done], visit.done);
            visit.done += 1;
            visit.read_bytes += self.block_bytes;
            self.counts.read += 1;
            self.counts.late += u64::from(visit.is_over);
            self.counts.read_bytes += self.block_bytes;
        }
        // Another request may have brought some meanwhile.
        while visit.done < visit.found && around.has(host, blocks[visit.done]) {
            visit.done += 1;
        }
        if visit.done < visit.found && !visit.is_over {
            let count = (visit.found - visit.done).min((READ_BYTES / self.block_bytes).max(1) as usize);
            visit.batch = visit.done + count;
            let end = self.carry(peer, host, count as u64, now);
            around.calendar.schedule(end, Event::Fetch { job });
            return;
        }
        if visit.read_bytes > 0 {
            route.has_read(visit.read_bytes, now - visit.read_began);
        }
        route.has_served(now - visit.began);
        self.readers[reader as usize].lanes[lane as usize].is_busy = false;
        self.go_on(job, around);
        while !self.readers[reader as usize].lanes[lane as usize].is_busy {
            let Some(&next) = self.readers[reader as usize].lanes[lane as usize].queue.front() else { break };
            if self.jobs[next as usize].is_over {
                self.readers[reader as usize].lanes[lane as usize].queue.pop_front();
            } else {
                self.start(reader, lane, around);
            }
        }
    }

    /// Sends payloads from one card to another, and reads their descriptors again. Returns the end.
    fn carry(&mut self, from: usize, to: usize, blocks: u64, now: Time) -> Time {
        let bytes = blocks * self.block_bytes;
        let line_ns = self.card.line_ns(bytes);
        let begin = self.sides[from].sends_at.max(now);
        self.sides[from].sends_at = begin + line_ns;
        self.sides[from].sent += bytes;
        let received = self.sides[to].receives_at.max(begin) + line_ns;
        self.sides[to].receives_at = received;
        let pieces_ns = self.card.messages_ns(blocks * (1 + EXTRA_PIECES), LINE_BYTES);
        received.max(begin + pieces_ns) + self.card.link.latency_ns + self.card.messages_ns(blocks + 1, LINE_BYTES)
    }

    /// Asks the next peer for what a job lacks, or ends it.
    fn go_on(&mut self, job: u32, around: &mut Around<'_>) {
        let &Job { done, end, is_over, .. } = &self.jobs[job as usize];
        if is_over || (done < end && self.hand_on(job, around)) {
            return;
        }
        self.end(job, around.calendar);
    }

    fn end(&mut self, job: u32, calendar: &mut Calendar<Event>) {
        let job = &mut self.jobs[job as usize];
        if !std::mem::replace(&mut job.is_over, true) {
            job.ahead = Vec::new();
            calendar.schedule(calendar.now(), Event::Fetched { request: job.request });
        }
    }

    /// A job's deadline.
    pub(super) fn late(&mut self, job: u32, calendar: &mut Calendar<Event>) {
        self.end(job, calendar);
    }
}

#[cfg(test)]
mod tests;
