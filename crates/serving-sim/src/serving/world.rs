//! The state and events of a run.

use super::cold::{ColdOutcome, ColdTier};
use super::far::Far;
use super::near::NearCache;
use super::router::Router;
use super::spill::{Spilled, Streamer};
use super::stores::{Busy, Prefix, Shared, SharedPool, Store};
use super::{Outcome, Setup, Swap};
use crate::cache::{BlockCache, MakeRoom, WHOLE};
use crate::kernel::{Calendar, Time};
use crate::model::StepWork;
use crate::quantiles::{Histogram, Values};
use crate::rack::{Hosts, Rack};
use crate::steady::Ends;
use crate::workload::{BlockNumber, Workload};
use cenote_base::RequestId;
use cenote_policy::prefetch::Source;
use cenote_policy::scheduler::{NewRequest, Scheduler, SchedulerOutput, StreamedStep};
use cenote_policy::transfer::Ticket;

/// Finished requests between two calls of `progress`.
const PROGRESS_EVERY: u64 = 256;

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The next request arrives.
    Arrival,
    /// An instance's step ends.
    Step { instance: usize },
    /// A host of the pool ticks; ticks of the rack count from 0.
    Tick { number: u64 },
    /// A copy to or from the cold tier ends.
    Cold { ticket: Ticket },
    /// A client announces a request.
    Hint { request: usize },
    /// The conversation of a request is expected to continue.
    Expected { request: usize },
    /// It has not continued.
    Forgotten { request: usize },
    /// A step of a read from another host or from an object store ends.
    Fetch { job: u32 },
    /// A request stops waiting for such a read.
    FetchLate { job: u32 },
    /// A request goes on to its engine.
    Fetched { request: u32 },
}

/// The state of a request.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    generated: u32,
    was_admitted: bool,
    /// The instance that it was sent to.
    instance: u32,
    last_token: Time,
    /// The instant of the lookup. The blocks are published with it.
    instant: u64,
}

pub(super) struct Instance {
    pub(super) scheduler: Scheduler,
    output: SchedulerOutput,
    streamer: Option<Streamer>,
    near: Option<NearCache>,
    private: Option<Store>,
    is_busy: bool,
}

#[derive(Default)]
struct Totals {
    finished: u64,
    generated: u64,
    /// Tokens of requests that have not ended, too.
    emitted: u64,
    ends: Ends,
    prompt_tokens: u64,
    blocks: u64,
    hit_blocks: u64,
    swaps: u64,
    swapped_out: u64,
    swapped_in: u64,
    steps: u64,
    events: u64,
    last_token: Time,
}

pub(super) struct World<'a> {
    setup: &'a Setup,
    pub(super) workload: &'a Workload,
    block_bytes: u64,
    pub(super) calendar: Calendar<Event>,
    next_arrival: usize,
    pub(super) instances: Vec<Instance>,
    /// The pool of each rack.
    pub(super) shared: Vec<Shared>,
    router: Router,
    requests: Vec<Progress>,
    /// Number of lookups: the eviction policy's clock, as in the pool.
    lookups: u64,
    ttft: Values,
    gaps: Histogram,
    totals: Totals,
    swap_trace: Option<Vec<Swap>>,
    pub(super) cold: Option<ColdTier>,
    pub(super) far: Option<Far>,
}

impl<'a> World<'a> {
    pub(super) fn new(setup: &'a Setup, workload: &'a Workload) -> Self {
        let block_bytes = setup.block_bytes(workload);
        let capacity =
            |pool: &super::Pool| pool.bytes.map(|bytes| usize::try_from(bytes / block_bytes).unwrap_or(usize::MAX));
        let cache = |pool: &super::Pool| BlockCache::new(setup.eviction, capacity(pool), workload.num_blocks());
        let store = |pool: &super::Pool| Store { cache: cache(pool), busy: Busy::new(pool.link) };
        let shared = |pool: &super::Pool| match setup.hosts {
            None => Shared { pool: SharedPool::Ideal(cache(pool)), links: vec![Busy::new(pool.link)], stride: 1 },
            Some(hosts) if hosts.network.is_some() => {
                let alone = Hosts { count: 1, racks: hosts.regions(), ..hosts };
                let rack = Rack::new(setup.eviction, capacity(pool), workload.num_blocks(), alone);
                // Each engine of a host has a link of its own to the host's memory.
                let engines = (setup.instances as usize).div_ceil(hosts.regions());
                let links = vec![Busy::new(pool.link); engines];
                Shared { pool: SharedPool::Hosts { rack, hosts: alone }, links, stride: hosts.regions() }
            }
            Some(hosts) => {
                let rack = Rack::new(setup.eviction, capacity(pool), workload.num_blocks(), hosts);
                let ports = if hosts.has_ports { hosts.count } else { 1 };
                Shared { pool: SharedPool::Hosts { rack, hosts }, links: vec![Busy::new(pool.link); ports], stride: 1 }
            }
        };
        let regions = setup.hosts.map_or(1, |hosts| hosts.regions());
        let instance = |_| Instance {
            scheduler: Scheduler::new(setup.scheduler()),
            output: SchedulerOutput::default(),
            streamer: setup.spill.map(|spill| Streamer::new(spill, setup.l1_block_bytes())),
            near: setup.has_prefix_cache.then(|| NearCache::new(setup, workload)),
            private: setup.private.as_ref().map(store),
            is_busy: false,
        };
        let mut calendar = Calendar::default();
        if let Some(first) = workload.requests().first() {
            calendar.schedule(first.arrival + setup.front_ns, Event::Arrival);
            if let Some(hosts) = setup.hosts.filter(|hosts| setup.shared.is_some() && hosts.network.is_none()) {
                calendar.schedule(hosts.tick_at(0), Event::Tick { number: 0 });
            }
        }
        Self {
            setup,
            workload,
            block_bytes,
            calendar,
            next_arrival: 0,
            instances: (0..setup.instances).map(instance).collect(),
            shared: setup.shared.iter().flat_map(|pool| (0..regions).map(|_| shared(pool))).collect(),
            router: Router::new(setup, workload.num_blocks()),
            requests: vec![Progress::default(); workload.requests().len()],
            lookups: 0,
            ttft: Values::default(),
            gaps: Histogram::default(),
            totals: Totals::default(),
            swap_trace: None,
            cold: None,
            far: Far::new(setup, workload),
        }
    }

    /// The region of an instance.
    fn region_of(&self, at: usize) -> usize {
        match self.setup.hosts {
            Some(hosts) if hosts.network.is_some() => at % hosts.regions(),
            _ => self.router.rack_of(at),
        }
    }

    pub(super) fn prefix(&mut self, at: usize) -> Prefix<'_> {
        let region = self.region_of(at);
        let instance = &self.instances[at];
        Prefix {
            workload: self.workload,
            near: instance.near.as_ref(),
            private: instance.private.as_ref().map(|store| &store.cache),
            shared: self.shared.get(region).map(|shared| &shared.pool),
            cold: self.cold.as_mut(),
            lookups: 0,
        }
    }

    /// Adds a cold tier below the shared pool.
    pub(super) fn add_cold_tier(&mut self, mut cold: ColdTier) {
        if let Some(ahead_ns) = cold.ahead().config().hint_ns {
            for (at, request) in self.workload.requests().iter().enumerate() {
                if cold.ahead().previous(at).is_some() {
                    self.calendar.schedule(request.arrival.saturating_sub(ahead_ns), Event::Hint { request: at });
                }
            }
        }
        self.cold = Some(cold);
    }

    pub(super) fn cold_outcome(&self) -> ColdOutcome {
        self.cold.as_ref().map_or_else(ColdOutcome::default, ColdTier::outcome)
    }

    pub(super) fn record_swaps(&mut self) {
        self.swap_trace = Some(Vec::new());
    }

    pub(super) fn into_swap_trace(self) -> Vec<Swap> {
        self.swap_trace.unwrap_or_default()
    }

    pub(super) fn run(&mut self, progress: &mut dyn FnMut(u64)) -> Outcome {
        let mut told = 0;
        while let Some(event) = self.calendar.next_event() {
            self.totals.events += u64::from(!matches!(event, Event::Tick { .. }));
            match event {
                Event::Tick { number } => self.tick(number),
                Event::Arrival => self.arrive(),
                Event::Cold { ticket } => self.end_cold_copy(ticket),
                Event::Hint { request } => self.hint(request),
                Event::Expected { request } => self.expect(request),
                Event::Forgotten { request } => self.forget(request),
                Event::Fetch { job } => self.fetch(job),
                Event::FetchLate { job } => self.fetch_late(job),
                Event::Fetched { request } => self.enqueue(request as usize),
                Event::Step { instance } => {
                    self.end_step(instance);
                    self.begin_step(instance);
                }
            }
            if self.totals.finished >= told + PROGRESS_EVERY {
                told = self.totals.finished;
                progress(told);
            }
        }
        self.outcome()
    }

    fn tick(&mut self, number: u64) {
        let Some(hosts) = self.setup.hosts else { return };
        for shared in &mut self.shared {
            if let SharedPool::Hosts { rack, .. } = &mut shared.pool {
                rack.tick(hosts.ticks(number));
            }
        }
        if self.totals.finished < self.workload.requests().len() as u64 {
            self.calendar.schedule(hosts.tick_at(number + 1), Event::Tick { number: number + 1 });
        }
    }

    fn arrive(&mut self) {
        let index = self.next_arrival;
        let request = &self.workload.requests()[index];
        self.next_arrival += 1;
        if let Some(next) = self.workload.requests().get(self.next_arrival) {
            self.calendar.schedule(next.arrival + self.setup.front_ns, Event::Arrival);
        }
        let at = self.router.route(self.workload.blocks(request));
        self.totals.prompt_tokens += u64::from(request.input_tokens);
        self.requests[index].instance = at as u32;
        if !self.seeks(at, index) {
            self.enqueue(index);
        }
    }

    /// A request enters its engine's queue.
    fn enqueue(&mut self, index: usize) {
        let request = &self.workload.requests()[index];
        let at = self.requests[index].instance as usize;
        let instance = &mut self.instances[at];
        let new = NewRequest {
            id: RequestId(index as u64),
            num_tokens: request.input_tokens,
            max_num_tokens: request.input_tokens + request.output_tokens,
            deadline_ns: u64::MAX,
            priority: request.priority,
        };
        instance.scheduler.add(new).expect("`Setup::check` refuses requests that never fit");
        let position = instance.scheduler.num_waiting() as u32;
        if !instance.is_busy {
            // Schedule the step behind other arrivals at this instant, so that it admits them too.
            instance.is_busy = true;
            self.calendar.schedule(self.calendar.now(), Event::Step { instance: at });
        }
        self.await_blocks(index, Source::Waiting(position), true);
    }

    pub(super) fn pump_cold(&mut self) {
        let (Some(cold), now) = (&mut self.cold, self.calendar.now()) else { return };
        let calendar = &mut self.calendar;
        cold.pump(now, |end, ticket| calendar.schedule(end.max(now), Event::Cold { ticket }));
    }

    /// A prefetched block enters the pool, or a demoted one is in the cold tier.
    fn end_cold_copy(&mut self, ticket: Ticket) {
        let (Some(cold), Some(shared)) = (&mut self.cold, self.shared.first_mut()) else { return };
        let instant = self.lookups;
        if let Some((depth, block)) = cold.completed(ticket) {
            let units = cold.units(block);
            shared.pool.insert((depth, block), units, instant, &mut |victim| cold.make_room(victim));
        }
        self.pump_cold();
    }

    /// Chooses an instance's next step and schedules its end.
    fn begin_step(&mut self, at: usize) {
        let (now, rack) = (self.calendar.now(), self.region_of(at));
        let instance = &mut self.instances[at];
        loop {
            if instance.scheduler.is_idle() {
                instance.is_busy = false;
                return;
            }
            let mut prefix = Prefix {
                workload: self.workload,
                near: instance.near.as_ref(),
                private: instance.private.as_ref().map(|store| &store.cache),
                shared: self.shared.get(rack).map(|shared| &shared.pool),
                cold: self.cold.as_mut(),
                lookups: 0,
            };
            instance.scheduler.schedule_into(&mut prefix, &mut instance.output);
            self.totals.events += prefix.lookups;
            // A request that only preempted others leaves an empty step. The next one has work.
            if !instance.output.scheduled.is_empty() {
                break;
            }
        }
        self.await_next(at);
        let swapped = self.swap(at, now);
        let spilled = self.spill(at, swapped);
        let loaded = self.load_admitted(at, spilled);
        let Instance { near, scheduler, .. } = &mut self.instances[at];
        near.iter_mut().for_each(|near| near.fit(scheduler, self.lookups));
        let mut work = StepWork::default();
        for part in &self.instances[at].output.scheduled {
            work.add_within(part.num_computed_tokens, part.num_new_tokens, self.setup.cost.window_tokens);
        }
        self.totals.steps += 1;
        self.totals.events += work.requests;
        let end = self.compute(at, loaded, &work).max(loaded + 1);
        if let Some(far) = &mut self.far
            && loaded == now
            && work.tokens >= u64::from(self.workload.block_tokens())
        {
            far.has_computed(at, &work, end - now);
        }
        self.calendar.schedule(end, Event::Step { instance: at });
    }

    /// Computes a step while its spilled blocks arrive. Returns its end.
    fn compute(&mut self, at: usize, now: Time, work: &StepWork) -> Time {
        let mut time = self.setup.cost.step(work);
        let Instance { scheduler, output, streamer, .. } = &mut self.instances[at];
        let Some(streamer) = streamer else { return now + time };
        let block_tokens = self.setup.l1_block_tokens;
        let near_tokens = streamer.near_tokens();
        if near_tokens.is_some() {
            // Every token's KV is written to the tier. No step waits for that, but it uses the same link.
            streamer.write(now, output.scheduled.iter().map(|part| u64::from(part.num_new_tokens)).sum(), block_tokens);
        }
        let far = |id: RequestId, computed: u32| match near_tokens {
            Some(near) => computed.saturating_sub(near) / block_tokens,
            None => scheduler.num_spilled_blocks(id) as u32,
        };
        let spilled: Spilled = (output.scheduled.iter())
            .map(|part| (part.id, far(part.id, part.num_computed_tokens)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let streamed = spilled.iter().map(|(_, count)| u64::from(*count)).sum::<u64>();
        time += streamed * u64::from(self.setup.l1_block_tokens) * self.setup.cost.streamed_ps / 1_000;
        let first = (self.setup.cost.step_ns + work.requests * self.setup.cost.request_ns).min(time);
        let waited = streamer.counts().stall_ns;
        let end = streamer.step(now, &spilled, first, time - first);
        if near_tokens.is_none() {
            scheduler.streamed(StreamedStep {
                ns: end - now,
                waited_ns: streamer.counts().stall_ns - waited,
                blocks: spilled.iter().map(|(_, count)| count).sum(),
            });
        }
        end
    }

    /// Copies spilled blocks out, and promoted ones back. Returns the end of both.
    fn spill(&mut self, at: usize, now: Time) -> Time {
        let Instance { scheduler, output, streamer, .. } = &mut self.instances[at];
        let Some(streamer) = streamer else { return now };
        scheduler.take_freed_spill();
        streamer.exchange(now, output.spilled.len() as u64, output.promoted.len() as u64)
    }

    /// Transfers swapped blocks. Returns the time at which both directions are complete.
    fn swap(&mut self, at: usize, now: Time) -> Time {
        let output = &self.instances[at].output;
        if output.swapped_out.is_empty() && output.swapped_in.is_empty() {
            return now;
        }
        let blocks = |transfers: &[cenote_policy::scheduler::SwapTransfer]| -> u64 {
            transfers.iter().map(|transfer| transfer.blocks.len() as u64).sum()
        };
        let (out, back) = (blocks(&output.swapped_out), blocks(&output.swapped_in));
        self.totals.swaps += output.swapped_out.len() as u64;
        self.totals.swapped_out += out;
        self.totals.swapped_in += back;
        if let Some(trace) = &mut self.swap_trace {
            trace.extend(output.swapped_out.iter().map(|transfer| Swap::Out(transfer.id.0 as u32)));
            trace.extend(output.swapped_in.iter().map(|transfer| Swap::In(transfer.id.0 as u32)));
        }
        let bytes = self.setup.l1_block_bytes();
        let link = &self.setup.swap_link;
        now + link.time(out * bytes) + link.time(back * bytes)
    }

    /// Counts the lookups of admitted requests and loads their matched blocks. Returns the time at
    /// which the loads are complete.
    fn load_admitted(&mut self, at: usize, now: Time) -> Time {
        let rack = self.region_of(at);
        let instance = &mut self.instances[at];
        let mut ready = now;
        for part in &instance.output.scheduled {
            let index = part.id.0 as usize;
            let progress = &mut self.requests[index];
            if progress.was_admitted && part.num_loaded_tokens == 0 {
                continue;
            }
            let request = &self.workload.requests()[index];
            let blocks = self.workload.blocks(request);
            let mut prefix = Prefix {
                workload: self.workload,
                near: instance.near.as_ref(),
                private: instance.private.as_ref().map(|store| &store.cache),
                shared: self.shared.get(rack).map(|shared| &shared.pool),
                cold: self.cold.as_mut(),
                lookups: 0,
            };
            let found = prefix.num_found(index);
            self.lookups += 1;
            progress.instant = self.lookups;
            if !progress.was_admitted {
                progress.was_admitted = true;
                self.totals.blocks += blocks.len() as u64;
                self.totals.hit_blocks += found as u64;
            }
            self.totals.events += found as u64;
            if let (Some(cold), Some(shared)) = (&mut self.cold, self.shared.first_mut()) {
                // Blocks that only the cold tier has are read while the step waits, and are shared from
                // then on.
                let absent: Vec<(u32, BlockNumber)> = (0..)
                    .zip(&blocks[..found])
                    .filter(|(_, block)| !shared.pool.contains(**block))
                    .map(|(depth, block)| (depth, *block))
                    .collect();
                let numbers: Vec<BlockNumber> = absent.iter().map(|(_, block)| *block).collect();
                ready = ready.max(cold.read_now(now, &numbers));
                // Before a block that is read now evicts one that was prefetched.
                cold.admitted(index, &blocks[..found]);
                for (depth, block) in absent {
                    let (units, instant) = (cold.units(block), self.lookups);
                    shared.pool.insert((depth, block), units, instant, &mut |victim| cold.make_room(victim));
                }
            }
            // All found blocks are touched. Only the blocks that hold the matched tokens are
            // loaded.
            // A matched block that is spilled stays in the pool.
            let loaded = part.num_loaded_tokens.div_ceil(self.workload.block_tokens()) as usize;
            let spilled = instance.scheduler.num_spilled_blocks(part.id) as u64;
            let stays = spilled * u64::from(self.setup.l1_block_tokens) / u64::from(self.workload.block_tokens());
            let (mut near, mut far, mut decoding) = (0, 0, 0);
            for (depth, &block) in blocks[..found].iter().enumerate() {
                let is_near = instance
                    .private
                    .as_mut()
                    .is_some_and(|own| own.cache.contains(block) && own.cache.touch(block, depth as u32, self.lookups));
                let is_in_memory = instance.near.as_ref().is_some_and(|near| near.contains(block));
                if (stays as usize..loaded).contains(&depth) && !is_in_memory {
                    // A block that its own insertion evicted again was read all the same.
                    let units = self.shared.get(rack).map_or(0, |shared| shared.pool.units(block));
                    let units = if is_near || units == 0 { WHOLE } else { units };
                    let bytes = self.block_bytes * u64::from(units) / u64::from(WHOLE);
                    *(if is_near { &mut near } else { &mut far }) += bytes;
                    decoding += self.cold.as_ref().map_or(0, |cold| cold.decode_ns(units));
                }
            }
            if let Some(near) = &mut instance.near {
                near.touch(&blocks[..found], self.lookups);
            }
            if let Some(own) = &mut instance.private {
                own.busy.read += near;
                ready = ready.max(own.busy.carry(now, near));
            }
            if let Some(shared) = self.shared.get_mut(rack) {
                shared.pool.lookup(at, &blocks[..found], self.lookups);
                let link = shared.link(at);
                link.read += far;
                ready = ready.max(link.carry(now, far) + decoding);
            }
        }
        self.pump_cold();
        ready
    }

    fn end_step(&mut self, at: usize) {
        let now = self.calendar.now();
        let output = std::mem::take(&mut self.instances[at].output);
        for part in &output.scheduled {
            let index = part.id.0 as usize;
            self.instances[at].scheduler.computed(part.id, part.num_new_tokens);
            if !part.samples {
                continue;
            }
            let request = &self.workload.requests()[index];
            let progress = &mut self.requests[index];
            progress.generated += 1;
            self.totals.emitted += 1;
            let is_first = progress.generated == 1;
            if is_first {
                self.ttft.record(now - request.arrival);
            } else {
                self.gaps.record(now - progress.last_token);
            }
            progress.last_token = now;
            let is_last = progress.generated >= request.output_tokens;
            if is_first {
                self.publish(at, index);
            }
            let instance = &mut self.instances[at];
            if is_last {
                if let Some(expected) = self.cold.as_mut().and_then(|cold| cold.ahead().ended(index, now)) {
                    self.calendar.schedule(expected, Event::Expected { request: index });
                }
                instance.scheduler.finish(part.id);
                if let Some(near) = &mut instance.near {
                    near.finished(self.workload.blocks(request));
                }
                self.router.finished(at);
                self.totals.finished += 1;
                self.totals.events += 1;
                self.totals.generated += u64::from(request.output_tokens);
                self.totals.last_token = now;
                self.totals.ends.push(now, self.totals.emitted);
            } else {
                instance.scheduler.append_token(part.id);
            }
        }
        self.instances[at].output = output;
        self.instances[at].output.scheduled.clear();
    }

    /// Publishes a prompt's blocks into the instance's cache and the pool. No step waits for it.
    fn publish(&mut self, at: usize, index: usize) {
        let now = self.calendar.now();
        let region = self.region_of(at);
        let blocks = self.workload.blocks(&self.workload.requests()[index]);
        let instant = self.requests[index].instant;
        let mut write = |busy: &mut Busy, new: u64| {
            self.totals.events += blocks.len() as u64;
            busy.written += new * self.block_bytes;
            busy.carry(now, new * self.block_bytes);
        };
        if let Some(near) = &mut self.instances[at].near {
            near.publish(blocks, instant);
        }
        if let Some(own) = &mut self.instances[at].private {
            let touched = (0..).zip(blocks).map(|(depth, &block)| own.cache.touch(block, depth, instant));
            let new = touched.filter(|was_there| !was_there).count() as u64;
            write(&mut own.busy, new);
        }
        if let Some(shared) = self.shared.get_mut(region) {
            let cold = &mut self.cold;
            let mut room = |victim| cold.as_mut().map_or(MakeRoom::Evict, |cold| cold.make_room(victim));
            let new = shared.pool.publish(at, blocks, instant, &mut room);
            write(shared.link(at), new);
        }
        if let Some(far) = &mut self.far {
            far.published(at, blocks, now);
        }
        self.pump_cold();
    }

    fn outcome(&self) -> Outcome {
        let totals = &self.totals;
        let ms = |ns: u64| ns as f64 / 1e6;
        let [ttft_p50, ttft_p99] = self.ttft.quantiles([0.5, 0.99]);
        let begin = self.workload.requests().first().map_or(0, |request| request.arrival);
        let makespan = totals.last_token.saturating_sub(begin);
        let seconds = makespan as f64 / 1e9;
        let per_s = |count: u64| if makespan == 0 { 0.0 } else { count as f64 / seconds };
        let private = || self.instances.iter().filter_map(|instance| instance.private.as_ref());
        let shared = || self.shared.iter();
        let block = self.setup.l1_block_bytes();
        let streamers = || self.instances.iter().filter_map(|instance| instance.streamer.as_ref());
        let spills = || streamers().map(Streamer::counts);
        Outcome {
            requests: totals.finished,
            prompt_tokens: totals.prompt_tokens,
            generated_tokens: totals.generated,
            hit_rate: if totals.blocks == 0 { 0.0 } else { totals.hit_blocks as f64 / totals.blocks as f64 },
            ttft_mean_ms: ms(self.ttft.mean()),
            ttft_p50_ms: ms(ttft_p50),
            ttft_p99_ms: ms(ttft_p99),
            token_mean_ms: ms(self.gaps.mean()),
            token_p50_ms: ms(self.gaps.quantile(0.5)),
            token_p95_ms: ms(self.gaps.quantile(0.95)),
            token_p99_ms: ms(self.gaps.quantile(0.99)),
            makespan_s: seconds,
            throughput_tokens_per_s: per_s(totals.generated),
            steady_tokens_per_s: totals.ends.per_s().unwrap_or_else(|| per_s(totals.generated)),
            throughput_requests_per_s: per_s(totals.finished),
            pool_read_bytes: shared().flat_map(|shared| &shared.links).map(|link| link.read).sum(),
            pool_written_bytes: shared().flat_map(|shared| &shared.links).map(|link| link.written).sum(),
            private_read_bytes: private().map(|store| store.busy.read).sum(),
            private_written_bytes: private().map(|store| store.busy.written).sum(),
            evicted_blocks: private().map(|own| own.cache.evicted()).sum::<u64>()
                + shared().map(|shared| shared.pool.evicted()).sum::<u64>(),
            swaps: totals.swaps,
            swapped_out_blocks: totals.swapped_out,
            swapped_in_blocks: totals.swapped_in,
            swapped_bytes: (totals.swapped_out + totals.swapped_in) * block,
            preemptions: self.instances.iter().map(|instance| instance.scheduler.num_preemptions()).sum(),
            spilled_blocks: spills().map(|counts| counts.spilled).sum(),
            promoted_blocks: spills().map(|counts| counts.promoted).sum(),
            streamed_bytes: spills().map(|counts| counts.streamed).sum::<u64>() * block,
            streaming_stall_s: spills().map(|counts| counts.stall_ns).sum::<Time>() as f64 / 1e9,
            steps: totals.steps,
            events: totals.events,
        }
    }
}
