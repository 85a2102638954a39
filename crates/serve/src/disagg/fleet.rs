//! The living workers, and the choice of a worker for each request.

use cenote_base::engine::{EngineDescription, EngineStats, Tenant};
use cenote_base::{Engine, Health};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::watch;

/// Role of a worker. Every worker can serve every stage; roles give preferences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Prefill; decodes only if no decode worker lives.
    Prefill,
    /// Decode; prefills only if no prefill worker lives.
    Decode,
    /// Both.
    Whole,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Whole => "whole",
        })
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "prefill" => Ok(Self::Prefill),
            "decode" => Ok(Self::Decode),
            "whole" => Ok(Self::Whole),
            other => Err(format!("role: `{other}` is not prefill, decode or whole")),
        }
    }
}

/// The stage of a request that needs a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From the prompt.
    Start,
    /// From a hand-over.
    Continue,
}

/// A worker process. A restarted worker is another one.
pub(super) type Life = (usize, u64);

/// Slots for workers; a supervisor fills and empties them.
pub struct Fleet {
    slots: Vec<Slot>,
    last_description: RwLock<Option<EngineDescription>>,
    tenants: RwLock<Arc<Vec<Tenant>>>,
    changed: watch::Sender<u64>,
}

struct Slot {
    role: Role,
    worker: RwLock<Worker>,
    load: Arc<AtomicU64>,
    tally: Mutex<Tally>,
}

struct Worker {
    engine: Option<Arc<dyn Engine>>,
    life: u64,
    /// Reason that the slot has no engine; empty until its first worker is ready or has failed.
    absence: String,
    /// Its last health check had no answer.
    is_silent: bool,
}

/// Counters of a slot's workers. A new worker counts from zero, and the slot's sums must not
/// decrease.
#[derive(Default)]
struct Tally {
    life: u64,
    /// Last report of the current worker.
    last: EngineStats,
    /// Sums of earlier workers.
    before: EngineStats,
}

impl Tally {
    /// Records a report of a worker.
    fn note(&mut self, life: u64, counters: EngineStats) {
        if life < self.life {
            return;
        }
        if life > self.life {
            self.before.merge(&std::mem::take(&mut self.last));
            self.life = life;
        }
        for (name, value) in counters.values {
            let last = self.last.values.entry(name).or_default();
            *last = last.max(value);
        }
    }

    /// Sums over all workers of the slot.
    fn sums(&self) -> EngineStats {
        let mut sums = self.before.clone();
        sums.merge(&self.last);
        sums
    }
}

/// A worker chosen for one attempt. Its load counts until this is dropped.
pub struct Lease {
    engine: Arc<dyn Engine>,
    life: Life,
    load: Arc<AtomicU64>,
    cost: u64,
}

impl Lease {
    /// The worker.
    #[must_use]
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    pub(super) const fn life(&self) -> Life {
        self.life
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.load.fetch_sub(self.cost, Ordering::Relaxed);
    }
}

impl Fleet {
    /// Empty slots with these roles.
    #[must_use]
    pub fn new(roles: &[Role]) -> Arc<Self> {
        let slots = roles.iter().map(|role| Slot {
            role: *role,
            worker: RwLock::new(Worker { engine: None, life: 0, absence: String::new(), is_silent: false }),
            load: Arc::default(),
            tally: Mutex::default(),
        });
        Arc::new(Self {
            slots: slots.collect(),
            last_description: RwLock::default(),
            tenants: RwLock::default(),
            changed: watch::Sender::new(0),
        })
    }

    /// The roles, by slot.
    #[must_use]
    pub fn roles(&self) -> Vec<Role> {
        self.slots.iter().map(|slot| slot.role).collect()
    }

    /// A worker's name: its role, and its number within the role.
    pub(crate) fn name(&self, slot: usize) -> String {
        let role = self.slots[slot].role;
        let index = self.slots[..slot].iter().filter(|before| before.role == role).count();
        format!("{role}-{index}")
    }

    /// Records a living worker in a slot.
    pub fn publish(&self, slot: usize, engine: Arc<dyn Engine>) {
        *self.last_description.write().unwrap_or_else(PoisonError::into_inner) = Some(engine.describe());
        let mut worker = self.slots[slot].worker.write().unwrap_or_else(PoisonError::into_inner);
        worker.life += 1;
        worker.is_silent = false;
        worker.engine = Some(engine);
        drop(worker);
        self.changed.send_modify(|version| *version += 1);
    }

    /// The tenants that every worker should have.
    #[must_use]
    pub fn tenants(&self) -> Arc<Vec<Tenant>> {
        self.tenants.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives all workers these tenants, those that start later too. Returns what is not as asked.
    pub(super) fn set_tenants(&self, tenants: &[Tenant]) -> Vec<String> {
        *self.tenants.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tenants.to_vec());
        let engines = self.engines();
        std::thread::scope(|scope| {
            let set: Vec<_> = engines.iter().map(|engine| scope.spawn(|| engine.set_tenants(tenants))).collect();
            let mut troubles: Vec<String> = set
                .into_iter()
                .flat_map(|set| set.join().unwrap_or_else(|_| vec!["a worker's client has panicked".to_owned()]))
                .collect();
            // All workers of a host say the same of its region.
            troubles.sort();
            troubles.dedup();
            troubles
        })
    }

    /// Records whether a worker answered its last health check.
    pub fn note_silence(&self, slot: usize, is_silent: bool) {
        self.slots[slot].worker.write().unwrap_or_else(PoisonError::into_inner).is_silent = is_silent;
    }

    /// Removes a dead worker from its slot, or records why none could be started.
    pub fn retract(&self, slot: usize, why: &str) {
        let mut worker = self.slots[slot].worker.write().unwrap_or_else(PoisonError::into_inner);
        worker.engine = None;
        why.clone_into(&mut worker.absence);
        drop(worker);
        self.changed.send_modify(|version| *version += 1);
    }

    /// The least loaded worker for `stage`, of the first group with a worker: those of the stage's
    /// role, then combined ones, then any. `avoid` names workers that have just failed this
    /// request.
    #[must_use]
    pub(super) fn choose(&self, stage: Stage, cost: u64, avoid: &[Life]) -> Option<Lease> {
        let preference = |role| match (stage, role) {
            (Stage::Start, Role::Prefill) | (Stage::Continue, Role::Decode) => 0,
            (_, Role::Whole) => 1,
            (Stage::Start, Role::Decode) | (Stage::Continue, Role::Prefill) => 2,
        };
        let living = self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let worker = slot.worker.read().unwrap_or_else(PoisonError::into_inner);
            let life = (at, worker.life);
            let engine = worker.engine.clone().filter(|_| !avoid.contains(&life))?;
            Some((slot, life, engine))
        });
        let best = living.min_by_key(|(slot, ..)| (preference(slot.role), slot.load.load(Ordering::Relaxed)));
        best.map(|(slot, life, engine)| {
            slot.load.fetch_add(cost, Ordering::Relaxed);
            Lease { engine, life, load: slot.load.clone(), cost }
        })
    }

    /// Whether prefill and decode are separate here.
    pub(super) fn is_split(&self) -> bool {
        let has = |role| self.slots.iter().any(|slot| slot.role == role);
        has(Role::Prefill) && has(Role::Decode)
    }

    /// A value that changes with every worker that starts or ends.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The living workers.
    #[must_use]
    pub fn engines(&self) -> Vec<Arc<dyn Engine>> {
        let living = self
            .slots
            .iter()
            .filter_map(|slot| slot.worker.read().unwrap_or_else(PoisonError::into_inner).engine.clone());
        living.collect()
    }

    /// The workers' common description, from the living ones; `None`: no worker lives.
    #[must_use]
    pub fn describe(&self) -> EngineDescription {
        let last = self.last_description.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut description = last.unwrap_or_else(|| EngineDescription {
            model: String::new(),
            max_model_len: 0,
            block_tokens: 0,
            dtype: String::new(),
            has_chat_template: false,
            region: None,
            process_ids: Vec::new(),
        });
        description.process_ids = self.engines().iter().flat_map(|engine| engine.describe().process_ids).collect();
        description
    }

    /// One degraded or missing worker degrades the whole; the reasons name the workers.
    #[must_use]
    pub fn health(&self) -> Health {
        Health::of_parts(self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let worker = slot.worker.read().unwrap_or_else(PoisonError::into_inner);
            let health = match &worker.engine {
                Some(_) if worker.is_silent => Health::degraded("it does not answer; it is restarted if it stays so"),
                Some(engine) => engine.health(),
                None if worker.absence.is_empty() => return None,
                None => Health::degraded(format!("not running: {}", worker.absence)),
            };
            Some((self.name(at), health))
        }))
    }

    /// The workers' statistics in sum, and the number of living workers.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let mut sum = EngineStats::default();
        // In parallel: a worker that does not answer costs its timeout once.
        std::thread::scope(|scope| {
            let ask = |slot: &Slot| {
                let worker = slot.worker.read().unwrap_or_else(PoisonError::into_inner);
                let (life, engine) = (worker.life, worker.engine.clone());
                engine.map(|engine| (life, scope.spawn(move || engine.stats())))
            };
            let asked: Vec<_> = self.slots.iter().map(ask).collect();
            for (slot, asked) in self.slots.iter().zip(asked) {
                // A panic in one engine's statistics must not lose the others'.
                let answer = asked.map(|(life, answer)| (life, answer.join().unwrap_or_default()));
                let mut tally = slot.tally.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((life, stats)) = answer {
                    let (counters, gauges) =
                        stats.values.into_iter().partition(|(name, _)| EngineStats::is_counter(name));
                    tally.note(life, EngineStats { values: counters });
                    sum.merge(&EngineStats { values: gauges });
                }
                sum.merge(&tally.sums());
            }
        });
        let mut add = |name: &str, value: f64| {
            sum.values.insert(name.to_owned(), value);
        };
        let restarts = |slot: &Slot| slot.worker.read().unwrap_or_else(PoisonError::into_inner).life.saturating_sub(1);
        add("workers_configured", self.slots.len() as f64);
        add("workers_alive", self.engines().len() as f64);
        add("worker_restarts_total", self.slots.iter().map(restarts).sum::<u64>() as f64);
        sum
    }
}
