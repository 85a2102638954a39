//! The engine's thread: receives messages, runs steps and sends events. A turn takes all messages,
//! ends expired requests, and runs one [`step`].

mod step;

use super::Shared;
use super::observe::{Observer, TakenRecord};
use super::promoting::Promoting;
use super::request::{Admission, Running};
use super::spill::Spills;
use super::swap::{self, Swapper};
use crate::engram::Rows;
use crate::kv::KvArena;
use crate::model::{EngineConfig, LoadedModel};
use crate::sparse::SparseDecode;
use cenote_base::engine::{ErrorKind, FinishReason};
use cenote_base::fault::{self, Point};
use cenote_base::{Clock, Deadline, EngineError, Event, Health, RequestId};
use cenote_policy::scheduler::{AddError, NewRequest, Scheduler, SchedulerConfig, SpillUse};
use cenote_store::PrefixStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

/// A message to the engine's thread.
pub(super) enum Message {
    Admit(Box<Admission>),
    Abort(RequestId),
    Release(RequestId),
    /// The last block of a promotion is published, or failed.
    Promoted,
    Stop,
}

/// Monotonic counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub taken: u64,
    pub prompt_tokens: u64,
    pub generation_tokens: u64,
    pub cached_tokens: u64,
    pub finished: u64,
    pub errors: u64,
    pub steps: u64,
}

/// Period in which the store's counters are read while requests run.
const STATS_PERIOD_NS: u64 = 50_000_000;
/// Period in which an idle engine reads its store's health: a region may be damaged while no
/// request runs.
const IDLE_PERIOD: Duration = Duration::from_secs(1);

/// State of the engine's thread.
pub(super) struct Core {
    model: Arc<LoadedModel>,
    store: Option<Box<dyn PrefixStore>>,
    kv: KvArena,
    scheduler: Scheduler,
    requests: BTreeMap<RequestId, Running>,
    promoting: Promoting,
    swapper: Swapper,
    spills: Spills,
    sparse: SparseDecode,
    rows: Rows,
    clock: Clock,
    shared: Arc<Shared>,
    counters: Counters,
    stats_due_ns: u64,
    /// Holds on the blocks of handed-over requests.
    holds: BTreeMap<RequestId, Hold>,
}

/// A hold that protects a handed-over request's blocks from eviction. `ticket` identifies it in the
/// store.
struct Hold {
    ticket: u64,
    until_ns: u64,
}

impl Core {
    pub fn new(
        model: Arc<LoadedModel>,
        store: Option<Box<dyn PrefixStore>>,
        mut observer: Box<dyn Observer>,
        shared: Arc<Shared>,
        own_inbox: Sender<Message>,
    ) -> Self {
        let config = model.config();
        let clock = config.clock;
        let mut store = store.map(|store| match model.near() {
            Some(near) => near.store(store, config.block_tokens),
            None => store,
        });
        let blocks = model.kv_blocks();
        let mut kv = KvArena::new(*model.layout(), blocks);
        let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let spill_blocks = if store.is_some() { model.spill_blocks() } else { 0 };
        let spills = Spills::start(&model, spill_blocks, store.as_ref().is_some_and(|store| store.is_exact()));
        let sparse = start_sparse(&model);
        let scheduler = Scheduler::new(SchedulerConfig {
            spill_blocks: small(spills.capacity()),
            spill_use: spill_use(config),
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: small(config.max_num_batched_tokens),
            long_prefill_token_threshold: 0,
            block_size: small(config.block_tokens),
            num_blocks: small(blocks),
            watermark: config.watermark.clone(),
            max_waiting: config.max_waiting,
            swap: swap::config(&model, &mut kv, store.as_deref_mut(), &mut *observer),
        });
        let wake = move || {
            // Sending fails if this thread has ended.
            let _ = own_inbox.send(Message::Promoted);
        };
        let promoting = Promoting::new(model.layout().block_bytes(), wake);
        let mut core = Self {
            kv,
            model,
            store,
            scheduler,
            requests: BTreeMap::new(),
            promoting,
            swapper: Swapper::new(observer),
            spills,
            sparse,
            rows: Rows::new(clock),
            clock,
            shared,
            counters: Counters::default(),
            stats_due_ns: 0,
            holds: BTreeMap::new(),
        };
        core.publish_stats(true);
        core
    }

    /// Serves until `Stop` arrives.
    pub fn run(&mut self, inbox: &Receiver<Message>) {
        loop {
            if self.scheduler.is_idle() {
                // Publish the idle state before blocking on the next message.
                self.publish_stats(true);
                match self.sleep(inbox) {
                    Ok(message) => {
                        if !self.take(message) {
                            return;
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        self.expire();
                        self.admit_promoted();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            loop {
                match inbox.try_recv() {
                    Ok(message) => {
                        if !self.take(message) {
                            return;
                        }
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            // Requests that expire make room for others.
            self.expire();
            self.admit_promoted();
            if !self.step() && !self.scheduler.is_idle() && !self.wait(inbox) {
                return;
            }
            self.publish_stats(false);
        }
    }

    /// Waits for a message. With a store the wait ends after `IDLE_PERIOD`, to read the store's
    /// health, and sooner if a promotion has a deadline or is due.
    fn sleep(&self, inbox: &Receiver<Message>) -> Result<Message, RecvTimeoutError> {
        if self.store.is_none() {
            return inbox.recv().map_err(|_| RecvTimeoutError::Disconnected);
        }
        // An idle scheduler has room for a request that it had none for.
        let patience = if self.promoting.has_over() { Duration::ZERO } else { IDLE_PERIOD };
        self.or_promoting(self.clock.after(patience)).receive(inbox)
    }

    /// The earlier of `deadline` and the next one of promotions.
    fn or_promoting(&self, deadline: Deadline) -> Deadline {
        // Without a store nothing is ever fetched for an announced turn.
        let next = self.store.as_ref().and_then(|_| self.promoting.poll_timeout(self.clock.now_ns()));
        next.map_or(deadline, |at_ns| deadline.min(self.clock.at(at_ns)))
    }

    /// Waits for a message or a deadline: nothing else makes the waiting requests schedulable.
    /// Returns `false` if the thread must end.
    fn wait(&mut self, inbox: &Receiver<Message>) -> bool {
        let until = self.scheduler.poll_timeout().unwrap_or(0);
        match self.or_promoting(self.clock.at(until)).receive(inbox) {
            Ok(message) => self.take(message),
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Admit(admission) => {
                let (store, most) = (self.store.as_deref_mut(), self.model.config().max_waiting);
                if self.promoting.has(admission.id) {
                    self.refuse(admission, EngineError::new(ErrorKind::Internal, "the request id is in use"));
                } else if let Some(admission) = self.promoting.keep(store, admission, most, self.clock.now_ns()) {
                    self.admit(admission);
                }
            }
            Message::Abort(id) => self.fail(id, EngineError::new(ErrorKind::Aborted, "the request was aborted")),
            Message::Release(id) => self.release(id),
            // The turn admits the requests whose blocks have arrived.
            Message::Promoted => {}
            Message::Stop => return false,
        }
        true
    }

    /// Admits the requests that wait for no blocks any more. Those for which the scheduler has no room
    /// stay: a request that was accepted is not refused later.
    fn admit_promoted(&mut self) {
        self.promoting.advance(self.store.as_deref_mut(), self.clock.now_ns());
        let room = self.model.config().max_waiting.saturating_sub(self.scheduler.num_waiting());
        let over: Vec<_> = self.promoting.take_over(room).collect();
        over.into_iter().for_each(|admission| self.admit(admission));
    }

    fn refuse(&mut self, mut admission: Box<Admission>, error: EngineError) {
        self.counters.errors += 1;
        (admission.sink)(Event::Failed(error));
        self.shared.request_ended();
    }

    fn admit(&mut self, admission: Box<Admission>) {
        let id = admission.id;
        let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let refused = if self.requests.contains_key(&id) {
            Some(EngineError::new(ErrorKind::Internal, format!("request id {id} is in use")))
        } else {
            let new = NewRequest {
                id,
                num_tokens: small(admission.prompt.len() + admission.output.len()),
                max_num_tokens: small(admission.max_num_tokens),
                deadline_ns: admission.deadline_ns,
                priority: admission.priority,
            };
            self.scheduler.add(new).err().map(|error| match error {
                AddError::QueueFull => self.shared.queue_full(self.model.config().max_waiting),
                AddError::NeverFits { needed, num_blocks } => EngineError::invalid(
                    "max_tokens",
                    format!("the request needs {needed} KV blocks; this engine has {num_blocks}"),
                ),
            })
        };
        if let Some(error) = refused {
            self.refuse(admission, error);
            return;
        }
        self.swapper.observer.taken(&TakenRecord {
            sequence: self.counters.taken,
            prompt_tokens: small(admission.prompt.len()),
            max_num_tokens: small(admission.max_num_tokens),
        });
        self.counters.prompt_tokens += admission.prompt.len() as u64;
        self.requests.insert(id, Running::new(*admission, self.counters.taken, &self.model));
        self.counters.taken += 1;
        // A handed-over request may have nothing left to generate.
        self.end_if_finished(id);
    }

    fn expire(&mut self) {
        let now = self.clock.now_ns();
        for id in self.scheduler.expired(now).into_iter().chain(self.promoting.expired(now)) {
            let message = "the request's timeout passed before it was done";
            self.fail(id, EngineError::new(ErrorKind::DeadlineExceeded, message));
        }
    }

    fn end_if_finished(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let Some(reason) = request.finish else { return };
        let (text, hand_over) = if reason == FinishReason::HandOver {
            if let Some(store) = self.store.as_mut().filter(|_| request.published > 0) {
                let time_ms = self.model.config().hand_over_hold_ms;
                let ticket = store.hold(request.published(), time_ms);
                let now_ns = self.clock.now_ns();
                // The store ends expired holds itself.
                self.holds.retain(|_, hold| hold.until_ns > now_ns);
                let until_ns = now_ns.saturating_add(time_ms.saturating_mul(1_000_000));
                self.holds.insert(id, Hold { ticket, until_ns });
            }
            fault::point(Point::EngineHandOver);
            (String::new(), Some(request.hand_over()))
        } else {
            (request.text.finish(&self.model), None)
        };
        let is_whole = reason != FinishReason::HandOver;
        if let Some((retain, store)) = request.retain.zip(self.store.as_mut()).filter(|_| is_whole) {
            store.retain(request.tenant(), request.published(), &retain);
        }
        if let Some(ms) = request.continues_in_ms.filter(|_| is_whole) {
            self.promoting.expect(request, ms, self.clock.now_ns());
        }
        let usage = request.usage();
        if let Some((number, store)) = request.recorded.zip(self.store.as_mut()).filter(|_| is_whole) {
            store.record_answer(number, usage.completion_tokens);
        }
        (request.sink)(Event::Finished { reason, text, usage, hand_over });
        self.counters.finished += 1;
        self.forget(id);
    }

    fn fail(&mut self, id: RequestId, error: EngineError) {
        if let Some(request) = self.requests.get_mut(&id) {
            self.counters.errors += 1;
            (request.sink)(Event::Failed(error));
            self.forget(id);
        } else if let Some(admission) = self.promoting.take(id) {
            self.refuse(admission, error);
        }
    }

    /// Ends the hold on the blocks of a handed-over request.
    fn release(&mut self, id: RequestId) {
        if let (Some(hold), Some(store)) = (self.holds.remove(&id), self.store.as_mut()) {
            store.release(hold.ticket);
        }
    }

    fn forget(&mut self, id: RequestId) {
        self.scheduler.finish(id);
        self.sparse.forget(id);
        self.swapper.forget(self.counters.steps + 1, id);
        if self.requests.remove(&id).is_some() {
            self.shared.request_ended();
        }
    }

    /// Fails all requests with `error`, including those still in the channel. If `stopped`, the
    /// loop has ended normally, so only messages already queued remain. Otherwise waits for `Stop`.
    pub fn fail_all(&mut self, inbox: &Receiver<Message>, error: &EngineError, stopped: bool) {
        for (_, mut request) in std::mem::take(&mut self.requests) {
            (request.sink)(Event::Failed(error.clone()));
            self.shared.request_ended();
        }
        for mut admission in self.promoting.take_all() {
            (admission.sink)(Event::Failed(error.clone()));
            self.shared.request_ended();
        }
        let next = || if stopped { inbox.try_recv().ok() } else { inbox.recv().ok() };
        while let Some(message) = next() {
            match message {
                Message::Admit(mut admission) => {
                    (admission.sink)(Event::Failed(error.clone()));
                    self.shared.request_ended();
                }
                Message::Abort(_) | Message::Release(_) | Message::Promoted => {}
                Message::Stop => return,
            }
        }
    }

    fn publish_stats(&mut self, now: bool) {
        let now_ns = self.clock.now_ns();
        if !now && now_ns < self.stats_due_ns {
            return;
        }
        self.stats_due_ns = now_ns + STATS_PERIOD_NS;
        let (counters, swaps) = (&self.counters, &self.swapper.totals);
        let own = [
            ("requests_waiting", (self.scheduler.num_waiting() + self.promoting.len()) as f64),
            ("requests_running", self.scheduler.num_running() as f64),
            ("kv_blocks", f64::from(self.scheduler.num_blocks())),
            ("kv_blocks_free", f64::from(self.scheduler.num_free_blocks())),
            ("requests_swapped", self.scheduler.num_swapped() as f64),
            ("preemptions_total", self.scheduler.num_preemptions() as f64),
            ("swaps_total", swaps.swaps as f64),
            ("swap_out_blocks_total", swaps.out_blocks as f64),
            ("swap_in_blocks_total", swaps.in_blocks as f64),
            ("swaps_refused_total", swaps.refused as f64),
            ("swap_damaged_blocks_total", swaps.damaged_blocks as f64),
            ("prompt_tokens_total", counters.prompt_tokens as f64),
            ("generation_tokens_total", counters.generation_tokens as f64),
            ("cached_tokens_total", counters.cached_tokens as f64),
            ("requests_finished_total", counters.finished as f64),
            ("request_errors_total", counters.errors as f64),
            ("engine_steps_total", counters.steps as f64),
        ];
        let mut values: BTreeMap<String, f64> = own.map(|(name, value)| (name.to_owned(), value)).into();
        values.extend(self.spills.stats());
        values.extend(self.sparse.stats());
        if self.model.llama().tables().is_some() {
            values.extend(self.rows.stats());
        }
        if let Some(near) = self.model.near() {
            values.extend(near.stats());
        }
        values.extend(self.promoting.stats());
        let mut health = Health::Ok;
        if let Some(store) = &self.store {
            values.extend(store.stats());
            health = store.health();
        }
        self.shared.set_stats(values, health);
    }
}

/// Sparse decode as configured.
const fn spill_use(config: &EngineConfig) -> SpillUse {
    match config {
        EngineConfig { spill_freely: true, .. } => SpillUse::All,
        EngineConfig { sparse: Some(_), .. } => SpillUse::Growth,
        _ => SpillUse::Hidden,
    }
}

fn start_sparse(model: &LoadedModel) -> SparseDecode {
    let config = model.config();
    let Some(sparse) = config.sparse else { return SparseDecode::off() };
    let heads = model.llama().config().num_heads;
    let started = SparseDecode::start(*model.layout(), heads, sparse, config.max_num_seqs, &config.mover_config());
    started.unwrap_or_else(|error| {
        tracing::error!(%error, "no thread for the mover: decode steps read all pages");
        SparseDecode::off()
    })
}
