//! One engine for prompts and one for answers, as TraCT §5.1 sets them up, with a prefix cache beside
//! the first.
//!
//! [`cenote_policy::Scheduler`] chooses the steps of both, [`cenote_policy::Eviction`] the victims of
//! the cache. A prompt's KV stays in the first engine until it is written (§3.2, step 12). The second
//! engine reads it while it decodes others (step 8), and computes the prompt's last token again, as
//! vLLM does. A link carries one transfer at a time.
//!
//! Simplifications: the second engine reserves memory when the KV has arrived. A finished prompt that
//! makes room for another counts as written.

use crate::cache::BlockCache;
use crate::kernel::{Calendar, Time};
use crate::model::{CostModel, Link, StepWork};
use crate::quantiles::Values;
use crate::steady::Ends;
use crate::workload::Workload;
use cenote_base::RequestId;
use cenote_policy::scheduler::{NewRequest, PrefixSource, Scheduler, SchedulerConfig, SchedulerOutput, SpillUse};
use cenote_policy::{Eviction, SwapConfig, Watermark};

/// The way of KV between the engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Both map one memory, which is the cache too. The first engine writes what it computed.
    SharedMemory {
        /// The device's link.
        link: Link,
        /// Whether each engine has this bandwidth to itself.
        is_split: bool,
    },
    /// The first engine sends whole prompts, and caches in its host's memory.
    Network {
        /// The network.
        link: Link,
        /// Link of the first engine to its host's memory.
        host: Link,
    },
}

/// The engines and their path.
#[derive(Clone, Debug, PartialEq)]
pub struct Roles {
    /// Cost of the steps of both.
    pub cost: CostModel,
    /// Bytes of K and V of one token.
    pub kv_bytes_per_token: u64,
    /// Blocks of each engine's own memory.
    pub l1_blocks: u32,
    /// Tokens per block of it.
    pub l1_block_tokens: u32,
    /// Most requests of an engine.
    pub max_num_seqs: usize,
    /// Most tokens of a step.
    pub max_num_batched_tokens: u32,
    /// The path.
    pub path: Path,
    /// Bytes of the prefix cache; 0: none.
    pub cache_bytes: u64,
    /// Its eviction policy.
    pub eviction: Eviction,
}

/// Results of a run. Times are simulated, in milliseconds unless named otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolesOutcome {
    /// Finished requests.
    pub requests: u64,
    /// Share of prompts' blocks that hit together with all before them.
    pub hit_rate: f64,
    /// Time from arrival to the first answer token: mean.
    pub ttft_mean_ms: f64,
    /// Quantiles of it: 1 %, 10 %, 50 %, 90 %, 99 %.
    pub ttft_quantiles_ms: [f64; 5],
    /// Its distribution: the values at 1 %, 2 %, … 99 %.
    pub ttft_percentiles_ms: Vec<f64>,
    /// Finished requests per second while the middle 60 % of them end.
    pub requests_per_s: f64,
    /// Prompts per second while the middle 60 % of them end.
    pub prompts_per_s: f64,
    /// Mean wait for the first engine.
    pub prefill_wait_ms: f64,
    /// Mean time to read cached KV.
    pub prefill_read_ms: f64,
    /// Mean time in steps that compute the prompt.
    pub prefill_compute_ms: f64,
    /// Mean time from the prompt's end until its memory is free.
    pub prefill_write_ms: f64,
    /// Mean time until a prompt's KV is in the second engine: from its end over a network, from its
    /// write in a shared memory.
    pub decode_read_ms: f64,
    /// Mean time from then to the first answer token.
    pub decode_first_ms: f64,
    /// Share of the makespan in which the first engine computes.
    pub prefill_busy: f64,
    /// Share of the makespan in which the second engine computes.
    pub decode_busy: f64,
    /// Rate at which the second engine received prompts, in bytes per second of [`Self::decode_read_ms`]:
    /// waits for the link count.
    pub decode_rx: f64,
    /// Rate at which the first engine read cached prompts, in bytes per second of its waits for them.
    pub prefill_rx: f64,
    /// Bytes that the first engine sent or wrote, per second of the makespan.
    pub prefill_tx: f64,
    /// Bytes that the first engine sent or wrote.
    pub prefill_tx_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrival,
    Prefill,
    Written(usize),
    Delivered(usize),
    Decode,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    was_admitted: bool,
    matched: u32,
    compute_from: Option<Time>,
    prefilled: Time,
    /// When the second engine could begin to read.
    readable: Time,
    is_held: bool,
    delivered: Time,
    generated: u32,
}

/// A link and the end of its last transfer.
#[derive(Clone, Copy, Debug)]
struct Queue {
    link: Link,
    free_at: Time,
}

impl Queue {
    const fn new(link: Link) -> Self {
        Self { link, free_at: 0 }
    }

    fn carry(&mut self, now: Time, bytes: u64) -> Time {
        if bytes == 0 {
            return now;
        }
        self.free_at = self.free_at.max(now) + self.link.time(bytes);
        self.free_at
    }
}

struct Engine {
    scheduler: Scheduler,
    output: SchedulerOutput,
    is_busy: bool,
    busy_ns: Time,
}

impl Engine {
    fn new(roles: &Roles) -> Self {
        let config = SchedulerConfig {
            max_num_seqs: roles.max_num_seqs,
            max_num_batched_tokens: roles.max_num_batched_tokens,
            long_prefill_token_threshold: 0,
            block_size: roles.l1_block_tokens,
            num_blocks: roles.l1_blocks,
            spill_blocks: 0,
            spill_use: SpillUse::Hidden,
            watermark: Watermark::DEFAULT,
            max_waiting: usize::MAX,
            swap: SwapConfig { num_blocks: 0, block_ns: 0, recompute_token_ns: 0 },
        };
        Self { scheduler: Scheduler::new(config), output: SchedulerOutput::default(), is_busy: false, busy_ns: 0 }
    }
}

/// What the first engine finds in the cache.
struct Cached<'a> {
    workload: &'a Workload,
    cache: Option<&'a BlockCache>,
}

impl Cached<'_> {
    fn num_found(&self, request: usize) -> usize {
        let blocks = self.workload.blocks(&self.workload.requests()[request]);
        self.cache.map_or(0, |cache| cache.num_found(blocks))
    }
}

impl PrefixSource for Cached<'_> {
    fn num_matched_tokens(&mut self, id: RequestId) -> u32 {
        let request = &self.workload.requests()[id.0 as usize];
        (self.num_found(id.0 as usize) as u32 * self.workload.block_tokens()).min(request.input_tokens)
    }
}

/// What the second engine has received: whole prompts, until it drops them.
struct Received<'a> {
    workload: &'a Workload,
    states: &'a [State],
}

impl PrefixSource for Received<'_> {
    fn num_matched_tokens(&mut self, id: RequestId) -> u32 {
        let at = id.0 as usize;
        if self.states[at].generated > 0 { 0 } else { self.workload.requests()[at].input_tokens }
    }
}

struct World<'a> {
    roles: &'a Roles,
    workload: &'a Workload,
    calendar: Calendar<Event>,
    next_arrival: usize,
    prefill: Engine,
    decode: Engine,
    /// The network, or the first engine's share of the shared memory.
    near: Queue,
    /// The second engine's share of the shared memory, if it has one of its own.
    far: Queue,
    /// The first engine's host memory.
    host: Queue,
    cache: Option<BlockCache>,
    lookups: u64,
    states: Vec<State>,
    ttft: Values,
    blocks: [u64; 2],
    sums: [Time; 6],
    /// Bytes of prompts in the second engine.
    received: u64,
    /// Bytes of cached prompts that the first engine read, and its time.
    hits: (u64, Time),
    out: RolesOutcome,
    last_token: Time,
    ends: Ends,
    prompts: Ends,
    num_prompts: u64,
}

/// Runs a load to its end.
///
/// # Panics
/// Panics if a request does not fit an engine alone.
#[must_use]
pub fn simulate_roles(roles: &Roles, workload: &Workload) -> RolesOutcome {
    let block_bytes = roles.kv_bytes_per_token * u64::from(workload.block_tokens());
    let capacity = (roles.cache_bytes / block_bytes.max(1)) as usize;
    let (near, host) = match roles.path {
        Path::SharedMemory { link, .. } => (link, link),
        Path::Network { link, host } => (link, host),
    };
    let mut world = World {
        roles,
        workload,
        calendar: Calendar::default(),
        next_arrival: 0,
        prefill: Engine::new(roles),
        decode: Engine::new(roles),
        near: Queue::new(near),
        far: Queue::new(near),
        host: Queue::new(host),
        cache: (capacity > 0).then(|| BlockCache::new(roles.eviction, Some(capacity), workload.num_blocks())),
        lookups: 0,
        states: vec![State::default(); workload.requests().len()],
        ttft: Values::default(),
        blocks: [0; 2],
        sums: [0; 6],
        received: 0,
        hits: (0, 0),
        out: RolesOutcome::default(),
        last_token: 0,
        ends: Ends::default(),
        prompts: Ends::default(),
        num_prompts: 0,
    };
    world.run()
}

impl World<'_> {
    fn run(&mut self) -> RolesOutcome {
        if let Some(first) = self.workload.requests().first() {
            self.calendar.schedule(first.arrival, Event::Arrival);
        }
        while let Some(event) = self.calendar.next_event() {
            match event {
                Event::Arrival => self.arrive(),
                Event::Prefill => {
                    self.end_prefill();
                    self.begin_prefill();
                }
                Event::Written(request) => self.written(request),
                Event::Delivered(request) => self.delivered(request),
                Event::Decode => {
                    self.end_decode();
                    self.begin_decode();
                }
            }
        }
        self.outcome()
    }

    fn arrive(&mut self) {
        let at = self.next_arrival;
        let request = &self.workload.requests()[at];
        self.next_arrival += 1;
        if let Some(next) = self.workload.requests().get(self.next_arrival) {
            self.calendar.schedule(next.arrival, Event::Arrival);
        }
        let new = NewRequest {
            id: RequestId(at as u64),
            num_tokens: request.input_tokens,
            max_num_tokens: request.input_tokens + 1,
            deadline_ns: u64::MAX,
            priority: request.priority,
        };
        self.prefill.scheduler.add(new).expect("a prompt fits alone");
        self.wake_prefill();
    }

    fn wake_prefill(&mut self) {
        if !self.prefill.is_busy {
            self.prefill.is_busy = true;
            self.calendar.schedule(self.calendar.now(), Event::Prefill);
        }
    }

    fn wake_decode(&mut self) {
        if !self.decode.is_busy {
            self.decode.is_busy = true;
            self.calendar.schedule(self.calendar.now(), Event::Decode);
        }
    }

    fn begin_prefill(&mut self) {
        let now = self.calendar.now();
        loop {
            let mut cached = Cached { workload: self.workload, cache: self.cache.as_ref() };
            self.prefill.scheduler.schedule_into(&mut cached, &mut self.prefill.output);
            for preempted in &self.prefill.output.preempted {
                let state = &mut self.states[preempted.id.0 as usize];
                // It is looked up and computed again.
                (state.compute_from, state.matched) = (None, 0);
                if std::mem::take(&mut state.is_held) {
                    self.prefill.scheduler.finish(preempted.id);
                }
            }
            if !self.prefill.output.scheduled.is_empty() {
                break;
            }
            if self.prefill.output.preempted.is_empty() {
                self.prefill.is_busy = false;
                return;
            }
        }
        let loaded = self.load(now);
        let mut work = StepWork::default();
        for part in &self.prefill.output.scheduled {
            work.add_within(part.num_computed_tokens, part.num_new_tokens, self.roles.cost.window_tokens);
            let state = &mut self.states[part.id.0 as usize];
            state.compute_from.get_or_insert(loaded);
        }
        let time = self.roles.cost.step(&work);
        self.prefill.busy_ns += time;
        self.calendar.schedule(loaded + time.max(1), Event::Prefill);
    }

    /// Reads the cached KV of admitted prompts. Returns when all is there.
    fn load(&mut self, now: Time) -> Time {
        let mut ready = now;
        let mut admitted = Vec::new();
        for part in &self.prefill.output.scheduled {
            let at = part.id.0 as usize;
            if self.states[at].was_admitted && part.num_loaded_tokens == 0 {
                continue;
            }
            let request = &self.workload.requests()[at];
            let found = Cached { workload: self.workload, cache: self.cache.as_ref() }.num_found(at);
            let blocks = self.workload.blocks(request);
            self.lookups += 1;
            if let Some(cache) = &mut self.cache {
                for (depth, &block) in (0..).zip(&blocks[..found]) {
                    cache.touch(block, depth, self.lookups);
                }
            }
            let bytes = u64::from(part.num_loaded_tokens) * self.roles.kv_bytes_per_token;
            let queue = match self.roles.path {
                Path::SharedMemory { .. } => &mut self.near,
                Path::Network { .. } => &mut self.host,
            };
            ready = ready.max(queue.carry(now, bytes));
            self.hits.0 += bytes;
            let state = &mut self.states[at];
            state.matched = part.num_loaded_tokens;
            if !state.was_admitted {
                state.was_admitted = true;
                self.blocks[0] += found as u64;
                self.blocks[1] += blocks.len() as u64;
                self.sums[0] += now - request.arrival;
                admitted.push(at);
            }
        }
        self.sums[1] += admitted.len() as u64 * (ready - now);
        self.hits.1 += ready - now;
        ready
    }

    fn end_prefill(&mut self) {
        let now = self.calendar.now();
        let output = std::mem::take(&mut self.prefill.output);
        for part in &output.scheduled {
            self.prefill.scheduler.computed(part.id, part.num_new_tokens);
            if !part.samples {
                continue;
            }
            let at = part.id.0 as usize;
            let input = self.workload.requests()[at].input_tokens;
            let state = &mut self.states[at];
            state.is_held = true;
            state.prefilled = now;
            state.readable = now;
            self.sums[2] += now - state.compute_from.unwrap_or(now);
            self.num_prompts += 1;
            self.prompts.push(now, self.num_prompts);
            let token = self.roles.kv_bytes_per_token;
            let new = u64::from(input - state.matched) * token;
            let whole = u64::from(input) * token;
            let written = match self.roles.path {
                Path::SharedMemory { .. } => {
                    self.out.prefill_tx_bytes += new;
                    self.near.carry(now, new)
                }
                Path::Network { .. } => {
                    let sent = self.near.carry(now, whole);
                    self.calendar.schedule(sent, Event::Delivered(at));
                    let cached = if self.cache.is_some() { self.host.carry(now, new) } else { now };
                    self.out.prefill_tx_bytes += whole + if self.cache.is_some() { new } else { 0 };
                    sent.max(cached)
                }
            };
            self.calendar.schedule(written, Event::Written(at));
        }
    }

    /// A prompt's KV is written: it is published, and its memory is free.
    fn written(&mut self, at: usize) {
        let now = self.calendar.now();
        let request = &self.workload.requests()[at];
        self.sums[3] += now - self.states[at].prefilled;
        if std::mem::take(&mut self.states[at].is_held) {
            self.prefill.scheduler.finish(RequestId(at as u64));
        }
        if let Some(cache) = &mut self.cache {
            self.lookups += 1;
            for (depth, &block) in (0..).zip(self.workload.blocks(request)) {
                cache.touch(block, depth, self.lookups);
            }
        }
        if let Path::SharedMemory { is_split, .. } = self.roles.path {
            let bytes = u64::from(request.input_tokens) * self.roles.kv_bytes_per_token;
            self.states[at].readable = now;
            let queue = if is_split { &mut self.far } else { &mut self.near };
            let read = queue.carry(now, bytes);
            self.calendar.schedule(read, Event::Delivered(at));
        }
        self.wake_prefill();
    }

    fn delivered(&mut self, at: usize) {
        let now = self.calendar.now();
        let request = &self.workload.requests()[at];
        let state = &mut self.states[at];
        state.delivered = now;
        self.sums[4] += now - state.readable;
        self.received += u64::from(request.input_tokens) * self.roles.kv_bytes_per_token;
        let new = NewRequest {
            id: RequestId(at as u64),
            num_tokens: request.input_tokens,
            max_num_tokens: request.input_tokens + request.output_tokens,
            deadline_ns: u64::MAX,
            priority: request.priority,
        };
        self.decode.scheduler.add(new).expect("a request fits alone");
        self.wake_decode();
    }

    fn begin_decode(&mut self) {
        loop {
            if self.decode.scheduler.is_idle() {
                self.decode.is_busy = false;
                return;
            }
            let mut received = Received { workload: self.workload, states: &self.states };
            self.decode.scheduler.schedule_into(&mut received, &mut self.decode.output);
            if !self.decode.output.scheduled.is_empty() {
                break;
            }
        }
        let mut work = StepWork::default();
        for part in &self.decode.output.scheduled {
            work.add_within(part.num_computed_tokens, part.num_new_tokens, self.roles.cost.window_tokens);
        }
        let time = self.roles.cost.step(&work);
        self.decode.busy_ns += time;
        self.calendar.schedule(self.calendar.now() + time.max(1), Event::Decode);
    }

    fn end_decode(&mut self) {
        let now = self.calendar.now();
        let output = std::mem::take(&mut self.decode.output);
        for part in &output.scheduled {
            self.decode.scheduler.computed(part.id, part.num_new_tokens);
            if !part.samples {
                continue;
            }
            let at = part.id.0 as usize;
            let request = &self.workload.requests()[at];
            let state = &mut self.states[at];
            state.generated += 1;
            if state.generated == 1 {
                self.ttft.record(now - request.arrival);
                self.sums[5] += now - state.delivered;
            }
            if state.generated >= request.output_tokens {
                self.decode.scheduler.finish(part.id);
                self.out.requests += 1;
                self.last_token = now;
                self.ends.push(now, self.out.requests);
            } else {
                self.decode.scheduler.append_token(part.id);
            }
        }
    }

    fn outcome(&self) -> RolesOutcome {
        let begin = self.workload.requests().first().map_or(0, |request| request.arrival);
        let makespan = (self.last_token.saturating_sub(begin)).max(1) as f64;
        let count = self.out.requests.max(1);
        let mean = |sum: Time| sum as f64 / count as f64 / 1e6;
        let ms = |ns: u64| ns as f64 / 1e6;
        let percentiles: [f64; 99] = std::array::from_fn(|at| (at + 1) as f64 / 100.0);
        RolesOutcome {
            hit_rate: self.blocks[0] as f64 / self.blocks[1].max(1) as f64,
            ttft_mean_ms: ms(self.ttft.mean()),
            ttft_quantiles_ms: self.ttft.quantiles([0.01, 0.1, 0.5, 0.9, 0.99]).map(ms),
            ttft_percentiles_ms: self.ttft.quantiles(percentiles).map(ms).to_vec(),
            requests_per_s: self.ends.per_s().unwrap_or(self.out.requests as f64 * 1e9 / makespan),
            prompts_per_s: self.prompts.per_s().unwrap_or(self.out.requests as f64 * 1e9 / makespan),
            prefill_wait_ms: mean(self.sums[0]),
            prefill_read_ms: mean(self.sums[1]),
            prefill_compute_ms: mean(self.sums[2]),
            prefill_write_ms: mean(self.sums[3]),
            decode_read_ms: mean(self.sums[4]),
            decode_first_ms: mean(self.sums[5]),
            decode_rx: self.received as f64 * 1e9 / self.sums[4].max(1) as f64,
            prefill_rx: self.hits.0 as f64 * 1e9 / self.hits.1.max(1) as f64,
            prefill_tx: self.out.prefill_tx_bytes as f64 * 1e9 / makespan,
            prefill_busy: self.prefill.busy_ns as f64 / makespan,
            decode_busy: self.decode.busy_ns as f64 / makespan,
            ..self.out.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::{niagara, pcie, rdma};
    use crate::model::{Device, ModelShape};

    fn roles(path: Path, cache_bytes: u64) -> Roles {
        let (device, shape) =
            (Device::named("a6000").expect("a preset"), ModelShape::named("llama-8b").expect("a preset"));
        Roles {
            cost: CostModel::roofline(device, shape),
            kv_bytes_per_token: shape.kv_bytes_per_token(),
            l1_blocks: 12_000,
            l1_block_tokens: 16,
            max_num_seqs: 256,
            max_num_batched_tokens: 8_192,
            path,
            cache_bytes,
            eviction: Eviction::Lru,
        }
    }

    const MEMORY: Path = Path::SharedMemory { link: niagara::NIAGARA_2, is_split: false };
    const NETWORK: Path = Path::Network { link: rdma::CX_100G.link, host: pcie::GEN4_X16 };

    #[test]
    fn one_request_takes_its_prompt_two_transfers_and_a_step() {
        let workload = Workload::alone(16, [(0, 1_600, 3)]);
        let roles = roles(MEMORY, 0);
        let outcome = simulate_roles(&roles, &workload);
        let mut prompt = StepWork::default();
        prompt.add(0, 1_600);
        let mut last = StepWork::default();
        last.add(1_584, 16);
        let copy = niagara::NIAGARA_2.time(1_600 * roles.kv_bytes_per_token);
        let expected = roles.cost.step(&prompt) + 2 * copy + roles.cost.step(&last);
        assert!((outcome.ttft_mean_ms - expected as f64 / 1e6).abs() < 0.1, "{outcome:?}");
        let network = simulate_roles(&Roles { path: NETWORK, ..roles }, &workload);
        let sent = rdma::CX_100G.link.time(1_600 * 131_072) as f64 / 1e6;
        assert!((network.decode_read_ms - sent).abs() < 0.1 && network.requests == 1, "{network:?}");
        // The write is none of the second engine's read.
        assert!((outcome.decode_read_ms - copy as f64 / 1e6).abs() < 0.1, "{outcome:?}");
        assert!((outcome.decode_rx / 10.1e9 - 1.0).abs() < 0.01, "{outcome:?}");
    }

    #[test]
    fn a_cached_prompt_is_neither_computed_nor_written_again() {
        let spec = crate::workload::Synthetic {
            requests: 40,
            rate: 0.2,
            input: crate::workload::Length::fixed(4_000),
            output: crate::workload::Length::fixed(8),
            unique: Some(crate::workload::Length::fixed(400)),
            groups: 1,
            block_tokens: 16,
        };
        let workload = spec.draw(3);
        let [none, all] = [0, 48_000_000_000].map(|bytes| simulate_roles(&roles(MEMORY, bytes), &workload));
        assert!(none.hit_rate == 0.0 && (all.hit_rate - 0.9 * 39.0 / 40.0).abs() < 0.01, "{all:?}");
        assert!(all.prefill_compute_ms < 0.2 * none.prefill_compute_ms);
        let share = all.prefill_tx_bytes as f64 / none.prefill_tx_bytes as f64;
        assert!((share - (1.0 - all.hit_rate)).abs() < 0.01, "{share}");
        let sent = simulate_roles(&roles(NETWORK, 48_000_000_000), &workload);
        assert!(sent.prefill_tx_bytes > none.prefill_tx_bytes, "a network sends hits too");
        assert_eq!(none, simulate_roles(&roles(MEMORY, 0), &workload));
    }

    #[test]
    fn a_full_engine_drops_finished_prompts_and_loses_no_request() {
        let workload = Workload::alone(16, (0..60).map(|at| (at * 1_000_000, 3_000, 40)));
        let slow = Link { bytes_per_s: 500_000_000, latency_ns: 640 };
        let small = Roles { l1_blocks: 700, ..roles(Path::SharedMemory { link: slow, is_split: true }, 0) };
        let outcome = simulate_roles(&small, &workload);
        assert_eq!(outcome.requests, 60);
        assert!(outcome.prefill_write_ms > 500.0, "{outcome:?}");
    }
}
