//! An object store below the regions of hosts that share no memory: the cold tier of each host, in one place.
//!
//! The product's [`MeasuredLadder`] decides how many of a request's blocks are read. The request waits for
//! them beside the engine, up to the cold tier's deadline. Each host uploads what it computed, one block after
//! the other; the store lists a block when it is there, and keeps all.

use super::mesh::{Around, NetworkReads};
use super::world::Event;
use crate::kernel::{Calendar, Time};
use crate::model::Link;
use crate::workload::BlockNumber;
use cenote_policy::temperature::{ColdBlock, MeasuredLadder};
use std::collections::HashMap;

/// Longest time that a request waits for the cold tier, and the threads of a host that read: the product's.
const DEADLINE_NS: Time = 2_000_000_000;
const READERS: u64 = 4;

/// A host as a client of the store.
struct Client {
    ladder: MeasuredLadder,
    /// When its readers and its writer are free, and blocks on their way here.
    reads_at: Time,
    writes_at: Time,
    waiting: u64,
}

/// Blocks that a request waits for.
struct Job {
    request: u32,
    host: usize,
    first: usize,
    end: usize,
    ns: Time,
    is_over: bool,
}

pub(super) struct Objects {
    link: Link,
    block: ColdBlock,
    clients: Vec<Client>,
    /// When each block is in the store.
    listed_at: HashMap<BlockNumber, Time>,
    jobs: Vec<Job>,
    counts: NetworkReads,
}

impl Objects {
    pub(super) fn new(link: Link, hosts: usize, (bytes, tokens): (u64, u64)) -> Self {
        let client = |_| Client { ladder: MeasuredLadder::default(), reads_at: 0, writes_at: 0, waiting: 0 };
        Self {
            link,
            block: ColdBlock { bytes, tokens, is_in_l4: true },
            clients: (0..hosts).map(client).collect(),
            listed_at: HashMap::new(),
            jobs: Vec::new(),
            counts: NetworkReads::default(),
        }
    }

    pub(super) const fn counts(&self) -> NetworkReads {
        self.counts
    }

    pub(super) fn has_computed(&mut self, reader: usize, tokens: u64, ns: u64) {
        let clients = self.clients.len();
        self.clients[reader % clients].ladder.has_computed(tokens, ns);
    }

    /// Nanoseconds of a block's bytes.
    fn line_ns(&self) -> Time {
        self.link.time(self.block.bytes) - self.link.latency_ns
    }

    /// Nanoseconds of a host's readers for so many blocks: each request's latency, four at a time.
    fn read_ns(&self, blocks: u64) -> Time {
        blocks.div_ceil(READERS) * self.link.latency_ns + blocks * self.line_ns()
    }

    /// A host uploads a prompt's blocks that the store does not list.
    pub(super) fn upload(&mut self, reader: usize, blocks: &[BlockNumber], now: Time) {
        let (clients, line_ns) = (self.clients.len(), self.line_ns());
        let writes_at = &mut self.clients[reader % clients].writes_at;
        for &block in blocks {
            self.listed_at.entry(block).or_insert_with(|| {
                *writes_at = now.max(*writes_at) + line_ns;
                *writes_at + self.link.latency_ns
            });
        }
    }

    /// A request lacks the blocks from number `found` on. Returns whether it waits for some.
    pub(super) fn seek(&mut self, reader: usize, request: usize, found: usize, around: &mut Around<'_>) -> bool {
        let (host, now) = (reader % self.clients.len(), around.calendar.now());
        let blocks = &around.of(request as u32)[found..];
        let listed = blocks.iter().take_while(|block| self.listed_at.get(block).is_some_and(|at| *at <= now)).count();
        let client = &mut self.clients[host];
        let worth = client.ladder.worth_promoting(&self.block, listed as u64, client.waiting, DEADLINE_NS);
        self.counts.sought += worth;
        self.counts.declined += listed as u64 - worth;
        if worth == 0 {
            return false;
        }
        client.waiting += worth;
        let job = self.jobs.len() as u32;
        let (begin, ns) = (client.reads_at.max(now), self.read_ns(worth));
        self.clients[host].reads_at = begin + ns;
        let end = found + worth as usize;
        self.jobs.push(Job { request: request as u32, host, first: found, end, ns, is_over: false });
        around.calendar.schedule(begin + ns, Event::Fetch { job });
        if begin + ns > now + DEADLINE_NS {
            around.calendar.schedule(now + DEADLINE_NS, Event::FetchLate { job });
        }
        true
    }

    /// A job's blocks have arrived.
    pub(super) fn step(&mut self, number: u32, around: &mut Around<'_>) {
        let job = &self.jobs[number as usize];
        let (host, count) = (job.host, (job.end - job.first) as u64);
        let client = &mut self.clients[host];
        client.waiting -= count;
        client.ladder.has_read(count, count * self.block.bytes, job.ns);
        self.counts.read += count;
        self.counts.read_bytes += count * self.block.bytes;
        self.counts.late += if job.is_over { count } else { 0 };
        let blocks = around.of(job.request);
        for (at, &block) in blocks.iter().enumerate().take(job.end).skip(job.first) {
            around.publish(host, block, at);
        }
        self.late(number, around.calendar);
    }

    /// A job's request waits no longer.
    pub(super) fn late(&mut self, job: u32, calendar: &mut Calendar<Event>) {
        let job = &mut self.jobs[job as usize];
        if !std::mem::replace(&mut job.is_over, true) {
            calendar.schedule(calendar.now(), Event::Fetched { request: job.request });
        }
    }
}
