//! The way of pages into L1: what the planner wants early, and what a layer waits for.
//!
//! A page's memory belongs to the job that fills it and then to its request, so attention cannot see
//! a half-written page. Whether a page is in L1 is decided by [`Sequence::held`] alone; the planner
//! only says what is worth a copy.

use super::sequence::{Held, Sequence};
use super::{Key, SparseCounts};
use crate::kernels::AlignedBuffer;
use crate::kv::KvLayout;
use crate::stream::Far;
use cenote_base::{Clock, RequestId};
use cenote_policy::choice::Chooser;
use cenote_policy::prefetch::{Planner, PlannerConfig, PrefetchAction, PrefetchEvent, Source};
use cenote_policy::transfer::{Class, Ticket};
use cenote_store::FarBlock;
use cenote_store::mover::{Job, Moved, Mover, MoverConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Longest wait for a copy that has begun. Then the compute thread reads the page itself.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Most unused buffers that are kept.
const SPARE_MAX: usize = 4096;

/// Copies one group's part of a block's K and V page of a layer.
struct PartJob {
    from: Arc<dyn FarBlock>,
    parts: [usize; 2],
    data: AlignedBuffer,
    is_whole: bool,
    clock: Clock,
    ns: u64,
}

impl Job for PartJob {
    fn bytes(&self) -> u64 {
        self.data.as_bytes().len() as u64
    }

    fn run(&mut self) {
        let begin_ns = self.clock.now_ns();
        let bytes = self.data.as_bytes_mut();
        let (k, v) = bytes.split_at_mut(bytes.len() / 2);
        self.is_whole = self.from.read(self.parts[0], k, false) && self.from.read(self.parts[1], v, false);
        self.ns = self.clock.ns_since(begin_ns);
    }
}

/// A copy under way.
struct Flight {
    ticket: Ticket,
    /// Serial number of the block that it reads.
    serial: u64,
    /// Whether the planner wants it.
    is_planned: bool,
}

pub(super) struct Near {
    mover: Box<dyn Mover<PartJob>>,
    config: MoverConfig,
    planner: Planner<Key>,
    /// Groups of heads, which is the number of parts of a page.
    groups: usize,
    page_bytes: usize,
    flights: BTreeMap<Key, Flight>,
    keys: BTreeMap<Ticket, Key>,
    /// Pages that the layer waits for: those to fetch, and those on their way.
    wanted: Vec<(Key, Far)>,
    awaited: BTreeSet<Key>,
    /// Pages that were damaged or gone when a layer wanted them.
    lost: Vec<Key>,
    spare: Vec<AlignedBuffer>,
    fetched_bytes: u64,
    /// Nanoseconds in which copies ran; this value and the time at the last observation of the link.
    busy_ns: u64,
    observed: [u64; 2],
}

/// The K and V part of a group in a block: their numbers in a [`FarBlock`].
pub(super) const fn parts(groups: usize, of: Chooser) -> [usize; 2] {
    let k = 2 * of.layer as usize * groups + of.group as usize;
    [k, k + groups]
}

impl Near {
    /// `buffered`: the most prefetched pages.
    pub fn start(layout: KvLayout, buffered: usize, mover: &MoverConfig) -> std::io::Result<Self> {
        let groups = layout.num_kv_heads;
        let page_bytes = 2 * layout.page_bytes() / groups;
        let config = PlannerConfig::with_buffer((buffered * page_bytes) as u64);
        // The buffer has no other use.
        let config = PlannerConfig { speculative_bytes_max: config.buffer_bytes, ..config };
        Ok(Self {
            mover: mover.start()?,
            config: *mover,
            planner: Planner::new(config),
            groups,
            page_bytes,
            flights: BTreeMap::new(),
            keys: BTreeMap::new(),
            wanted: Vec::new(),
            awaited: BTreeSet::new(),
            lost: Vec::new(),
            spare: Vec::new(),
            fetched_bytes: 0,
            busy_ns: 0,
            observed: [0, mover.clock.now_ns()],
        })
    }

    pub const fn planner(&mut self) -> &mut Planner<Key> {
        &mut self.planner
    }

    pub const fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub fn now_ns(&self) -> u64 {
        self.mover.now_ns()
    }

    /// A query chose a page of a spilled block. `far`: the block, if it is known.
    pub fn need(&mut self, key: Key, far: Option<&Far>, sequence: &mut Sequence, counts: &mut SparseCounts) {
        let (_, of, page) = key;
        let Some(far) = far else {
            self.lost.push(key);
            return;
        };
        let is_hot = sequence.is_hot(of, page);
        match sequence.held_mut(of, page) {
            Some(held) if held.serial == far.serial => {
                let hidden_ns = held.hidden_ns.take();
                if is_hot || hidden_ns.is_none() {
                    counts.hot += 1;
                } else {
                    sequence.result.needed += 1;
                    sequence.result.hits += 1;
                    counts.prefetched += 1;
                    counts.hidden_ns += hidden_ns.unwrap_or(0);
                }
                self.planner.handle(PrefetchEvent::Used(key));
                return;
            }
            // Of a block that was replaced.
            Some(_) => drop(sequence.drop_held(of, page)),
            None => {}
        }
        sequence.result.needed += 1;
        match self.flights.get(&key) {
            Some(flight) if flight.serial == far.serial => {
                counts.late += 1;
                self.planner.handle(PrefetchEvent::Used(key));
            }
            _ => {
                counts.demanded += 1;
                self.wanted.push((key, far.clone()));
            }
        }
        self.awaited.insert(key);
    }

    /// A predicted page was not chosen. Returns whether it was copied, or is being copied.
    pub fn mispredicted(&mut self, key: Key) -> bool {
        let was_copied = self.planner.is_ready(&key) || self.planner.is_in_flight(&key);
        self.planner.handle(PrefetchEvent::Mispredicted(key));
        was_copied
    }

    /// A page need not stay. The planner may still have a use for it.
    pub fn leave(&mut self, key: Key, sequence: &mut Sequence) {
        if !self.planner.is_buffered(&key) {
            let held = sequence.drop_held(key.1, key.2);
            self.recycle(held.map(|held| held.data));
        }
    }

    /// Drops a request's pages.
    pub fn forget(&mut self, request: RequestId, sequence: Sequence) {
        self.planner.handle(PrefetchEvent::Ended(request));
        self.recycle(sequence.into_held());
    }

    fn recycle(&mut self, buffers: impl IntoIterator<Item = AlignedBuffer>) {
        let room = SPARE_MAX.saturating_sub(self.spare.len());
        self.spare.extend(buffers.into_iter().take(room));
    }

    fn job(&mut self, of: Chooser, far: &Far) -> PartJob {
        let data = self.spare.pop().unwrap_or_else(|| AlignedBuffer::zeroed(self.page_bytes));
        let (from, parts) = (Arc::clone(&far.block), parts(self.groups, of));
        PartJob { from, parts, data, is_whole: false, clock: self.config.clock, ns: 0 }
    }

    fn submit(&mut self, class: Class, wanted: Vec<(Key, Far)>, is_planned: bool) {
        if wanted.is_empty() {
            return;
        }
        let jobs = wanted.iter().map(|(key, far)| self.job(key.1, far)).collect();
        for (ticket, (key, far)) in self.mover.submit(class, None, jobs).into_iter().zip(wanted) {
            self.keys.insert(ticket, key);
            // The copy of a replaced block, if there is one, comes back without a flight.
            self.flights.insert(key, Flight { ticket, serial: far.serial, is_planned });
        }
    }

    /// Waits until the layer's pages are in L1. Returns those that are damaged or gone.
    pub fn arrive(
        &mut self,
        sequences: &mut BTreeMap<RequestId, Sequence>,
        far: &impl Fn(&Key) -> Option<Far>,
        counts: &mut SparseCounts,
    ) -> Vec<Key> {
        let begin = self.mover.now_ns();
        let wanted = std::mem::take(&mut self.wanted);
        self.submit(Class::Demand, wanted, false);
        loop {
            self.collect(sequences);
            if self.awaited.is_empty() {
                break;
            }
            if self.take_one(sequences) {
                continue;
            }
            if self.mover.now_ns() - begin > PATIENCE_NS {
                self.read_now(sequences, far);
            }
            self.mover.pause();
        }
        counts.stall_ns += self.mover.now_ns() - begin;
        std::mem::take(&mut self.lost)
    }

    /// Runs a copy that the layer waits for and that the mover has not begun with. The mover works from
    /// the first to the last, so this looks from behind. Returns whether there was one.
    fn take_one(&mut self, sequences: &mut BTreeMap<RequestId, Sequence>) -> bool {
        let tickets = self.awaited.iter().rev().take(4).filter_map(|key| self.flights.get(key).map(|f| f.ticket));
        for ticket in tickets.collect::<Vec<_>>() {
            if let Some(mut job) = self.mover.take(ticket) {
                self.mover.run_now(&mut job);
                self.ended(ticket, job, true, sequences);
                return true;
            }
        }
        false
    }

    /// Reads the pages that have not arrived. What is on its way comes too late.
    fn read_now(&mut self, sequences: &mut BTreeMap<RequestId, Sequence>, far: &impl Fn(&Key) -> Option<Far>) {
        for key in std::mem::take(&mut self.awaited) {
            let Some(far) = far(&key) else {
                self.lost.push(key);
                continue;
            };
            let mut job = self.job(key.1, &far);
            self.mover.run_now(&mut job);
            self.hold(key, far.serial, job, false, sequences);
        }
    }

    /// Takes over the copies that have ended.
    fn collect(&mut self, sequences: &mut BTreeMap<RequestId, Sequence>) {
        while let Some((ticket, moved)) = self.mover.poll() {
            let has_run = !matches!(moved, Moved::Expired(_));
            self.ended(ticket, moved.into_job(), has_run, sequences);
        }
    }

    fn ended(&mut self, ticket: Ticket, job: PartJob, has_run: bool, sequences: &mut BTreeMap<RequestId, Sequence>) {
        let key = self.keys.remove(&ticket);
        let flight = key.and_then(|key| self.flights.get(&key).filter(|flight| flight.ticket == ticket).map(|_| key));
        let Some((key, flight)) = flight.and_then(|key| Some((key, self.flights.remove(&key)?))) else {
            self.recycle([job.data]);
            return;
        };
        if flight.is_planned {
            let is_there = has_run && job.is_whole;
            let event = if is_there { PrefetchEvent::Arrived(key, flight.serial) } else { PrefetchEvent::Failed(key) };
            self.planner.handle(event);
        }
        if has_run {
            self.hold(key, flight.serial, job, flight.is_planned, sequences);
        } else {
            self.recycle([job.data]);
        }
    }

    /// Gives a copied page to its request.
    fn hold(
        &mut self,
        key: Key,
        serial: u64,
        job: PartJob,
        is_planned: bool,
        sequences: &mut BTreeMap<RequestId, Sequence>,
    ) {
        let (request, of, page) = key;
        self.busy_ns += job.ns;
        self.fetched_bytes += job.bytes();
        let was_awaited = self.awaited.remove(&key);
        match sequences.get_mut(&request).filter(|sequence| (page as usize) < sequence.num_pages()) {
            Some(sequence) if job.is_whole => {
                let hidden_ns = (is_planned && !was_awaited).then_some(job.ns);
                let old = sequence.hold(of, page, Held { data: job.data, serial, hidden_ns });
                self.recycle(old.map(|old| old.data));
            }
            _ => {
                if was_awaited {
                    self.lost.push(key);
                }
                self.recycle([job.data]);
            }
        }
    }

    /// Does what the planner wants.
    pub fn pump(&mut self, sequences: &mut BTreeMap<RequestId, Sequence>, far: &impl Fn(&Key) -> Option<Far>) {
        self.collect(sequences);
        let now = self.mover.now_ns();
        let mut fetches: [Vec<(Key, Far)>; 2] = [Vec::new(), Vec::new()];
        while let Some(action) = self.planner.poll_action(now) {
            match action {
                PrefetchAction::Fetch { key, class, generation, .. } => {
                    let held = sequences.get_mut(&key.0).and_then(|sequence| sequence.held_mut(key.1, key.2));
                    if held.is_some_and(|held| held.serial == generation) {
                        self.planner.handle(PrefetchEvent::Arrived(key, generation));
                        continue;
                    }
                    match (self.flights.get_mut(&key), far(&key).filter(|far| far.serial == generation)) {
                        (Some(flight), _) if flight.serial == generation => flight.is_planned = true,
                        (_, Some(far)) => fetches[usize::from(class == Class::Speculative)].push((key, far)),
                        _ => self.planner.handle(PrefetchEvent::Failed(key)),
                    }
                }
                // A layer that waits takes what has not begun.
                PrefetchAction::Promote(..) => {}
                PrefetchAction::Cancel(key) => self.cancel(key),
                PrefetchAction::Discard(key) => {
                    let (request, of, page) = key;
                    if let Some(sequence) = sequences.get_mut(&request)
                        && !sequence.is_hot(of, page)
                    {
                        let held = sequence.drop_held(of, page);
                        self.recycle(held.map(|held| held.data));
                    }
                }
            }
        }
        let [exact, speculative] = fetches;
        self.submit(Class::Exact, exact, true);
        self.submit(Class::Speculative, speculative, true);
    }

    fn cancel(&mut self, key: Key) {
        let Some(flight) = self.flights.get(&key).filter(|flight| flight.is_planned) else { return };
        // A copy that has started comes from `collect`: then the page can revive.
        if let Some(job) = self.mover.cancel(flight.ticket) {
            self.keys.remove(&flight.ticket);
            self.flights.remove(&key);
            self.recycle([job.data]);
            self.planner.handle(PrefetchEvent::Failed(key));
        }
    }

    /// Reports the part of the time since the last call in which copies ran.
    pub fn observe_link(&mut self, now: u64) {
        let [busy, since] = std::mem::replace(&mut self.observed, [self.busy_ns, now]);
        let threads = self.config.kind.threads().max(1) as f64;
        let share = (self.busy_ns - busy) as f64 / (now - since).max(1) as f64 / threads;
        self.planner.observe_link(share.min(1.0));
    }

    pub fn add_to(&self, counts: &mut SparseCounts) {
        let speculative = Source::Speculative(0).index();
        counts.wasted = self.planner.counts().wasted[speculative];
        counts.prefetched_bytes = self.planner.counts().bytes[speculative];
        counts.fetched_bytes = self.fetched_bytes;
    }
}
