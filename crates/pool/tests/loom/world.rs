//! A host for loom: its words and locks are loom's, so that loom explores every order in which
//! processes may see them. The region's bytes are plain memory, visible to all at once; loom only
//! orders the uses of lines. Other faults of the region are explored on the cache-line model
//! (crates/memmodel). A process is a loom thread with a [`Life`].

use cenote_mem::LINE;
use cenote_mem::PayloadSum;
use cenote_mem::host::{HeldLock, HostError, LockTimeout};
use cenote_mem::{Coherent, Fabric, Flush, HostLocal, HostSpec, MapOptions, Mapping, Offset, RegionSource, Word};
use loom::sync::atomic as model;
use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Length of a process's life in steps. Each use of a word and each store to the region is a step.
/// Operations of the dead have no effect: their code runs on, but takes no lock, and its locks are
/// abandoned.
#[derive(Debug)]
pub struct Life {
    steps: i64,
    steps_left: AtomicI64,
    /// The kernel's report that a process has ended; its reader sees everything that the process
    /// did.
    gone: model::AtomicBool,
}

impl Life {
    /// A life that ends this many steps after [`Life::count`] is called.
    pub fn of_steps(steps: i64) -> Arc<Self> {
        let steps_left = AtomicI64::new(i64::MAX);
        Arc::new(Self { steps, steps_left, gone: model::AtomicBool::new(false) })
    }

    /// A life without end.
    pub fn long() -> Arc<Self> {
        Self::of_steps(i64::MAX)
    }

    pub fn count(&self) {
        self.steps_left.store(self.steps, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.steps_left.load(Ordering::Relaxed) <= 0
    }

    /// Makes a step, if any are left.
    fn step(&self) -> bool {
        let lives = self.steps_left.fetch_sub(1, Ordering::Relaxed) > 0;
        if !lives {
            self.end();
        }
        lives
    }

    /// Ends the process: the kernel releases its resources.
    pub fn end(&self) {
        self.steps_left.store(0, Ordering::Relaxed);
        self.gone.store(true, Ordering::Release);
    }

    fn is_known_to_be_over(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

loom::thread_local! {
    static LIFE: RefCell<Option<Arc<Life>>> = RefCell::new(None);
}

/// Makes the calling thread this process from now on.
pub fn live(life: &Arc<Life>) {
    LIFE.with(|mine| *mine.borrow_mut() = Some(Arc::clone(life)));
}

/// Makes a step, if the calling process still lives.
fn step() -> bool {
    LIFE.with(|life| life.borrow().as_ref().is_none_or(|life| life.step()))
}

fn is_dead() -> bool {
    LIFE.with(|life| life.borrow().as_ref().is_some_and(|life| life.is_over()))
}

/// One of loom's atomics, without effect for the dead.
#[derive(Debug, Default)]
pub struct Modelled<A>(A);

macro_rules! modelled {
    ($atomic:ty, $value:ty) => {
        impl Word<$value> for Modelled<$atomic> {
            fn load(&self, order: Ordering) -> $value {
                if step() { self.0.load(order) } else { 0 }
            }

            fn store(&self, value: $value, order: Ordering) {
                if step() {
                    self.0.store(value, order);
                }
            }

            fn swap(&self, value: $value, order: Ordering) -> $value {
                if step() { self.0.swap(value, order) } else { 0 }
            }

            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                if step() { self.0.fetch_add(value, order) } else { 0 }
            }

            fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                if step() { self.0.fetch_min(value, order) } else { 0 }
            }
            fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                if step() { self.0.fetch_max(value, order) } else { 0 }
            }

            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                if step() { self.0.compare_exchange(current, new, success, failure) } else { Err(0) }
            }
        }
    };
}

modelled!(model::AtomicU32, u32);
modelled!(model::AtomicU64, u64);

/// Memory that the processes of a host share.
#[derive(Clone, Debug)]
pub struct LoomHost(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    words32: Vec<Modelled<model::AtomicU32>>,
    words64: Vec<Modelled<model::AtomicU64>>,
    mutexes: Vec<loom::sync::Mutex<()>>,
    /// Mutexes left by a dead holder.
    abandoned: Vec<AtomicBool>,
    slots: Mutex<Vec<Option<Arc<Life>>>>,
}

impl LoomHost {
    pub fn new(spec: HostSpec) -> Self {
        Self(Arc::new(Shared {
            words32: (0..spec.words32).map(|_| Modelled::default()).collect(),
            words64: (0..spec.words64).map(|_| Modelled::default()).collect(),
            mutexes: (0..spec.mutexes).map(|_| loom::sync::Mutex::new(())).collect(),
            abandoned: (0..spec.mutexes).map(|_| AtomicBool::new(false)).collect(),
            slots: Mutex::new(vec![None; spec.slots as usize]),
        }))
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Vec<Option<Arc<Life>>>> {
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A held lock; a dead holder abandons it.
pub struct LoomLock<'a> {
    host: &'a Shared,
    index: usize,
    abandoned: bool,
    _guard: loom::sync::MutexGuard<'a, ()>,
}

impl HeldLock for LoomLock<'_> {
    fn abandoned(&self) -> bool {
        self.abandoned
    }

    fn abandon(self) {
        self.host.abandoned[self.index].store(true, Ordering::Relaxed);
    }
}

impl Drop for LoomLock<'_> {
    fn drop(&mut self) {
        if is_dead() {
            self.host.abandoned[self.index].store(true, Ordering::Relaxed);
        }
    }
}

pub struct Claim {
    host: LoomHost,
    slot: usize,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.host.slots()[self.slot] = None;
    }
}

impl HostLocal for LoomHost {
    type Lock<'a> = LoomLock<'a>;
    type Claim = Claim;
    type Word32 = Modelled<model::AtomicU32>;
    type Word64 = Modelled<model::AtomicU64>;

    fn words32(&self) -> &[Self::Word32] {
        &self.0.words32
    }

    fn words64(&self) -> &[Self::Word64] {
        &self.0.words64
    }

    /// Empty: the policy here is LRU, which has no shared state.
    fn bare_words64(&self, _: usize) -> &[AtomicU64] {
        &[]
    }

    /// Waits without limit, because time stands still here.
    fn lock(&self, index: u32, timeout: Duration) -> Result<LoomLock<'_>, LockTimeout> {
        let late = LockTimeout::Passed { index };
        if is_dead() {
            return Err(late);
        }
        let index = index as usize;
        let mutex = &self.0.mutexes[index];
        let guard = if timeout.is_zero() { mutex.try_lock().ok() } else { mutex.lock().ok() };
        let guard = guard.ok_or(late)?;
        let abandoned = self.0.abandoned[index].swap(false, Ordering::Relaxed);
        Ok(LoomLock { host: &self.0, index, abandoned, _guard: guard })
    }

    fn claim_slot(&self, slot: u32) -> Result<Option<Claim>, HostError> {
        let slot = slot as usize;
        let holder = self.slots()[slot].clone();
        if holder.is_some_and(|life| !life.is_known_to_be_over()) {
            return Ok(None);
        }
        let life = Some(LIFE.with(|life| life.borrow().clone()).unwrap_or_else(Life::long));
        self.slots()[slot] = life;
        Ok(Some(Claim { host: self.clone(), slot }))
    }

    fn slot_alive(&self, slot: u32) -> bool {
        let holder = self.slots()[slot as usize].clone();
        holder.is_some_and(|life| !life.is_known_to_be_over())
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1_700_000_000)
    }

    fn pause(&self, _: u32) {
        loom::thread::yield_now();
    }
}

thread_local! {
    /// A test's region is formatted again for each of its thousands of runs, in the same memory,
    /// because mapping takes longer than a run.
    static MEMORY: RefCell<Option<Arc<Coherent>>> = const { RefCell::new(None) };
}

/// One block's payload in one host's caches: the number of the write that its lines are from.
#[derive(Debug)]
struct Cached {
    lines_from: model::AtomicU64,
}

/// Uses of a region's lines: loom orders each before or after every other use of the same line. It
/// adds no order among uses of other words. Many lines share one of these, which only makes loom
/// explore more.
type Uses = Arc<[model::AtomicU64; USES]>;

const USES: usize = 127;

/// A region as one host sees it.
#[derive(Clone)]
pub struct LoomFabric {
    memory: Arc<Coherent>,
    /// `None`: only one process is active, so there is nothing to explore.
    uses: Arc<Mutex<Option<Uses>>>,
    /// Number of payload writes; all payloads count as one.
    written: Arc<AtomicU64>,
    cached: Option<Arc<Cached>>,
    flush: Flush,
}

impl LoomFabric {
    /// A region of one host, or, with a flush instruction, of several.
    pub fn new(bytes: u64, flush: Flush) -> Self {
        let memory = MEMORY.with(|memory| {
            let mut memory = memory.borrow_mut();
            let used = memory.take().filter(|used| used.len() == bytes);
            Arc::clone(memory.insert(used.unwrap_or_else(|| {
                let source = RegionSource::Anon;
                let mapping = Mapping::create(&source, bytes, 0o600, &MapOptions::default()).expect("memory");
                Arc::new(Coherent::new(mapping))
            })))
        });
        Self { memory, uses: Arc::default(), written: Arc::default(), cached: None, flush }
    }

    /// Starts or stops exploring other orders of uses of the region's lines.
    pub fn watch_uses(&self, watch: bool) {
        let uses = watch.then(|| Arc::new(std::array::from_fn(|_| model::AtomicU64::new(0))));
        *self.uses.lock().unwrap_or_else(PoisonError::into_inner) = uses;
    }

    fn uses_line(&self, at: u64) {
        let uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(uses) = uses {
            uses[(at / LINE) as usize % USES].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The region as a host sees it. Only host 0 writes payload, and the others keep cached copies
    /// until they drop them.
    pub fn as_of_host(&self, host: usize) -> Self {
        let cached = (host > 0).then(|| Arc::new(Cached { lines_from: model::AtomicU64::new(0) }));
        Self { cached, ..self.clone() }
    }
}

impl Fabric for LoomFabric {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn load(&self, at: Offset<u64>) -> u64 {
        self.uses_line(at.raw());
        self.memory.load(at)
    }

    fn store(&self, at: Offset<u64>, value: u64) {
        self.uses_line(at.raw());
        if step() {
            self.memory.store(at, value);
        }
    }

    fn load_line(&self, at: u64) -> [u64; 8] {
        self.uses_line(at);
        self.memory.load_line(at)
    }

    fn store_line(&self, at: u64, words: &[u64; 8]) {
        self.uses_line(at);
        if step() {
            self.memory.store_line(at, words);
        }
    }

    fn write_line(&self, at: u64, words: &[u64; 8]) {
        self.store_line(at, words);
    }

    fn write_word(&self, at: Offset<u64>, value: u64) {
        self.store(at, value);
    }

    fn fence(&self) {}

    fn publish(&self, _: &[u64]) {}

    fn publish_unfenced(&self, _: u64) {}

    fn refresh(&self, _: &[u64]) {}

    fn write_payload_part(&self, at: u64, part: &[u8], whole: u64, sum: &mut PayloadSum) {
        self.uses_line(at);
        if step() {
            self.written.fetch_add(1, Ordering::Relaxed);
            self.memory.write_payload_part(at, part, whole, sum);
        }
    }

    fn publish_payload(&self) {}

    /// Cached payload of an earlier write has another sum.
    fn read_payload_part(&self, at: u64, part: &mut [u8], whole: u64, sum: &mut PayloadSum) {
        self.uses_line(at);
        self.memory.read_payload_part(at, part, whole, sum);
        let stale = self
            .cached
            .as_ref()
            .is_some_and(|cached| cached.lines_from.load(Ordering::Relaxed) != self.written.load(Ordering::Relaxed));
        if stale {
            // Some other bytes.
            sum.absorb(&[1; 64]);
        }
    }

    fn refresh_payload(&self, _: u64, _: u64) {
        if let Some(cached) = &self.cached {
            // Dropped lines come back with their current content, never older.
            cached.lines_from.fetch_max(self.written.load(Ordering::Relaxed), Ordering::Relaxed);
            model::fence(Ordering::SeqCst);
        }
    }

    fn absorb_payload(&self, at: u64, len: u64, sum: &mut PayloadSum) {
        self.memory.absorb_payload(at, len, sum);
    }

    fn flush(&self) -> Flush {
        self.flush
    }
}
