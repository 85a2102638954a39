//! Peers beside an engine: one thread for each, which connects, reads, and publishes what it finds in
//! the local region. Serving threads queue requests and wait for a promotion.
//!
//! A request asks a peer if that is expected to take less time than computing ([`cenote_policy::fetch`]), by
//! the times of this peer's earlier reads. It asks one peer after the other for the blocks that it still
//! lacks, until its deadline. A peer that fails, or takes longer for one read than a request waits, is
//! *suspect*: no request goes to it until its own thread has connected to it again. A request's own deadline
//! says nothing of a peer: its time may have passed in a queue, at another peer, or with many reads. One more
//! thread ends promotions at their deadlines and finds reads that are late, because a call of the fabric may
//! never return.

mod deadlines;

use crate::counters::{Count, Counters};
use crate::reader::{Fetched, Reader};
use crate::remote::{Pace, ReadError, Remote};
use crate::settings::Settings;
use cenote_base::time::nanoseconds;
use cenote_base::{BlockHash, Clock, Deadline};
use cenote_mem::Fabric;
use cenote_mem::fork::ProcessStamp;
use cenote_policy::fetch::{Route, Way, asking_order, plan};
use cenote_pool::{Hit, Namespace, Pool};
use cenote_store::{BlockCopy, Computing, Peers, Promotion, Readable, Wanted, publish_copy};
use deadlines::{Watch, Watched};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most requests that wait for one peer.
const QUEUE_MAX: usize = 64;
/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// First and longest pause before a suspect peer is connected to again.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// An idle peer is looked at so often, so that a dead one is noticed before a request asks it.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// Most wrong blocks of a peer in a row. Damage and races are rare, so more of them are a rule.
const WRONG_MAX: u32 = 8;
/// Longest wait for the threads at the end. One that the fabric keeps longer is left behind.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens a peer's region.
pub trait Connect: Send + Sync + 'static {
    /// Connects to the peer of this address.
    ///
    /// # Errors
    /// It cannot be reached, or refuses.
    fn connect(&self, address: &str, deadline: Deadline) -> Result<Box<dyn Remote>, ReadError>;
}

impl<C> Connect for C
where
    C: Fn(&str, Deadline) -> Result<Box<dyn Remote>, ReadError> + Send + Sync + 'static,
{
    fn connect(&self, address: &str, deadline: Deadline) -> Result<Box<dyn Remote>, ReadError> {
        self(address, deadline)
    }
}

/// A request: blocks of one sequence that the region lacks.
struct Job {
    namespace: Namespace,
    readable: Readable,
    wanted: Wanted,
    /// Blocks that were missing at first.
    blocks: usize,
    computing: Computing,
    promotion: Promotion,
    /// Its promotion has ended.
    is_over: AtomicBool,
}

impl Job {
    /// Ends the promotion, unless it has ended.
    fn end(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            self.promotion.one_done();
        }
    }

    /// Whether the request waits no longer.
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || self.promotion.until().passed()
    }
}

/// A job on its way through the peers.
struct Visit {
    job: Arc<Job>,
    /// Blocks that are not here yet, in order.
    left: Vec<BlockHash>,
    /// Blocks that the peer is asked for at most.
    most: usize,
    /// Peers to ask after this one, the next one last.
    ahead: Vec<usize>,
}

/// Whether requests may go to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Its thread has not connected yet.
    New,
    Good,
    Suspect,
}

struct Peer {
    address: String,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    standing: Standing,
    /// Measured times of its reads.
    route: Route,
    /// Its thread serves a visit.
    is_busy: bool,
    queue: VecDeque<Visit>,
    error: Option<String>,
    is_closed: bool,
}

impl State {
    /// What it offers to one more request.
    fn way(&self, block_bytes: u64, deadline: Duration) -> Way {
        let waiting = self.queue.len() as u64 + u64::from(self.is_busy);
        self.route.way(block_bytes, waiting, nanoseconds(deadline))
    }
}

impl Peer {
    fn state(&self) -> MutexGuard<'_, State> {
        // No statement leaves the state inconsistent, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, error: &ReadError) {
        tracing::warn!(peer = self.address, %error, "the peer is suspect; serving goes on without it");
    }
}

/// How a peer has served its thread, over all connections.
struct Conduct {
    /// Pause before the next connection. It doubles until a visit has ended in time.
    pause: Duration,
    /// Whether one has since the last connection.
    is_proven: bool,
    /// Wrong blocks since the last whole one.
    wrong: u32,
}

struct Shared<F: Fabric> {
    pool: Pool<F>,
    connect: Box<dyn Connect>,
    deadline: Duration,
    clock: Clock,
    counters: Counters,
    peers: Vec<Peer>,
    watch: Mutex<Watch>,
    watch_changed: Condvar,
    /// Threads that have not ended.
    threads: Mutex<usize>,
    ended: Condvar,
}

/// The peers of one process. Dropping it ends all requests.
pub struct Beside<F: Fabric + 'static> {
    shared: Arc<Shared<F>>,
    /// A forked child has the memory of this, but none of its threads.
    stamp: ProcessStamp,
    handles: Vec<JoinHandle<()>>,
}

impl<F: Fabric + 'static> Beside<F> {
    /// Starts the threads, which connect in the background. Until then nothing is sought.
    #[must_use]
    pub fn start(pool: Pool<F>, settings: &Settings, connect: impl Connect, clock: Clock) -> Arc<Self> {
        let peer = |address: &String| Peer {
            address: address.clone(),
            state: Mutex::new(State {
                standing: Standing::New,
                route: Route::default(),
                is_busy: false,
                queue: VecDeque::new(),
                error: None,
                is_closed: false,
            }),
            changed: Condvar::new(),
        };
        let shared = Arc::new(Shared {
            pool,
            connect: Box::new(connect),
            deadline: settings.deadline,
            clock,
            counters: Counters::default(),
            peers: settings.peers.iter().map(peer).collect(),
            watch: Mutex::new(Watch::new(settings.peers.len())),
            watch_changed: Condvar::new(),
            threads: Mutex::new(0),
            ended: Condvar::new(),
        });
        let mut beside = Self { shared, stamp: ProcessStamp::current(), handles: Vec::new() };
        beside.spawn("reach-deadlines".to_owned(), None, Shared::keep_deadlines);
        for number in 0..beside.shared.peers.len() {
            beside.spawn(format!("reach-{number}"), Some(number), move |shared| shared.run_peer(number));
        }
        Arc::new(beside)
    }

    /// A thread that cannot be started leaves a peer that is not asked, and nothing else.
    fn spawn(&mut self, name: String, peer: Option<usize>, run: impl FnOnce(&Shared<F>) + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        *shared.living() += 1;
        let body = move || {
            let _ended = Ended { shared: &shared, peer };
            run(&shared);
        };
        match std::thread::Builder::new().name(name).spawn(body) {
            Ok(handle) => self.handles.push(handle),
            Err(error) => {
                *self.shared.living() -= 1;
                tracing::warn!(%error, "no thread for a peer");
            }
        }
    }

    /// The counters of this process.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

impl<F: Fabric + 'static> Peers for Beside<F> {
    fn may_have(&self) -> bool {
        let is_good = |peer: &Peer| peer.state().standing == Standing::Good;
        !self.stamp.is_inherited() && self.shared.peers.iter().any(is_good)
    }

    fn way(&self, namespace: &Namespace, first: BlockHash) -> Option<Way> {
        if !self.may_have() {
            return None;
        }
        let shared = &self.shared;
        shared.order(first).find_map(|peer| {
            let state = shared.peers[peer].state();
            (state.standing == Standing::Good).then(|| state.way(namespace.block_bytes, shared.deadline))
        })
    }

    fn promote(
        &self,
        namespace: &Namespace,
        missing: &[BlockHash],
        readable: &Readable,
        wanted: Wanted,
        computing: &Computing,
    ) -> Option<Promotion> {
        let first = missing.first()?;
        if !self.may_have() {
            return None;
        }
        let shared = &self.shared;
        let job = Arc::new(Job {
            namespace: namespace.clone(),
            readable: readable.clone(),
            wanted,
            blocks: missing.len(),
            computing: *computing,
            promotion: Promotion::of(1, shared.clock.after(shared.deadline)),
            is_over: AtomicBool::new(false),
        });
        let ahead = shared.order(*first).rev().collect();
        let peer = match shared.hand_on(Visit { job: Arc::clone(&job), left: missing.to_vec(), most: 0, ahead }) {
            Ok(peer) => peer,
            Err(why) => {
                shared.counters.add(why, missing.len() as u64);
                return None;
            }
        };
        shared.counters.add(Count::Sought, missing.len() as u64);
        shared.watch(job.promotion.until(), |watch| watch.jobs.push(Arc::clone(&job)));
        shared.peers[peer].changed.notify_all();
        Some(job.promotion.clone())
    }

    fn stats(&self) -> BTreeMap<String, f64> {
        let mut stats = self.shared.counters.values();
        // Locks that a thread of the parent held stay locked.
        if self.stamp.is_inherited() {
            return stats;
        }
        let standing = |wanted| self.shared.peers.iter().filter(|peer| peer.state().standing == wanted).count();
        let waiting: usize = self.shared.peers.iter().map(|peer| peer.state().queue.len()).sum();
        for (name, value) in [
            ("remote_peers", self.shared.peers.len()),
            ("remote_peers_good", standing(Standing::Good)),
            ("remote_peers_suspect", standing(Standing::Suspect)),
            ("remote_queue", waiting),
        ] {
            stats.insert(name.to_owned(), value as f64);
        }
        stats
    }

    fn trouble(&self) -> Option<String> {
        if self.stamp.is_inherited() {
            return None;
        }
        let mut suspects = self.shared.peers.iter().filter_map(|peer| {
            let state = peer.state();
            let error = state.error.as_deref().unwrap_or("no answer");
            (state.standing == Standing::Suspect).then(|| format!("peer {}: {error}", peer.address))
        });
        let first = suspects.next()?;
        Some(match suspects.count() {
            0 => format!("{first}; its blocks are computed here"),
            more => format!("{first}, and {more} more; their blocks are computed here"),
        })
    }
}

impl<F: Fabric + 'static> Shared<F> {
    fn living(&self) -> MutexGuard<'_, usize> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The order in which peers are asked for a sequence whose first missing block is this. The region's name
    /// tells this reader from others.
    fn order(&self, first: BlockHash) -> impl DoubleEndedIterator<Item = usize> + use<F> {
        let [reader, _] = BlockHash(self.pool.superblock().config.uuid).words();
        asking_order(first.words()[0], reader, self.peers.len())
    }

    /// Queues a visit at the next peer that is good, has room, and is worth asking. If there is none the visit
    /// is dropped, and the count for what it lacks is returned.
    fn hand_on(&self, mut visit: Visit) -> Result<usize, Count> {
        let mut why = Count::Refused;
        while let Some(next) = visit.ahead.pop() {
            let mut state = self.peers[next].state();
            if state.standing != Standing::Good || state.is_closed || state.queue.len() >= QUEUE_MAX {
                continue;
            }
            let (Job { namespace, blocks, computing, .. }, left) = (&*visit.job, visit.left.len());
            let missing = computing.missing(blocks - left, left, namespace.block_bytes);
            let way = state.way(namespace.block_bytes, self.deadline);
            let worth = plan(&missing, &computing.prefill, None, Some(&way)).peers;
            if worth == 0 {
                state.route.has_declined();
                why = Count::Declined;
                continue;
            }
            state.route.begins();
            visit.most = usize::try_from(worth).unwrap_or(usize::MAX);
            state.queue.push_back(visit);
            return Ok(next);
        }
        Err(why)
    }

    /// Asks the next peer for what a visit lacks, or ends its job.
    fn go_on(&self, visit: Visit) {
        let (job, left) = (Arc::clone(&visit.job), visit.left.len());
        let is_late = job.is_over();
        let next = if left == 0 || is_late { Err(Count::Late) } else { self.hand_on(visit) };
        let why = match next {
            Ok(peer) => return self.peers[peer].changed.notify_all(),
            Err(Count::Refused) => Count::Absent,
            Err(why) => why,
        };
        self.counters.add(why, left as u64);
        job.end();
    }

    /// Marks a peer as suspect. Returns whether it was not. The caller logs that with [`Peer::log`] when it has
    /// let go of the state, which serving threads take: a log may wait.
    fn suspect(&self, state: &mut State, error: &ReadError) -> bool {
        if state.standing == Standing::Good {
            self.counters.add(Count::Suspected, 1);
        }
        state.error = Some(error.to_string());
        std::mem::replace(&mut state.standing, Standing::Suspect) != Standing::Suspect
    }

    /// The life of a peer's thread.
    fn run_peer(&self, number: usize) {
        let peer = &self.peers[number];
        let mut conduct = Conduct { pause: PAUSE_MIN, is_proven: false, wrong: 0 };
        while !peer.state().is_closed {
            let mut is_remade = false;
            conduct.is_proven = false;
            match self.open(number) {
                Ok(mut reader) => {
                    tracing::info!(peer = peer.address, "the peer's region is open");
                    self.counters.add(Count::Connections, 1);
                    {
                        let mut state = peer.state();
                        (state.standing, state.error) = (Standing::Good, None);
                    }
                    let error = self.serve(peer, &mut reader, &mut conduct);
                    // Dropping a connection may take time: requests must know before.
                    self.leave(peer, error.as_ref());
                    is_remade = error == Some(ReadError::Remade);
                    if is_remade {
                        conduct.wrong = 0;
                    }
                    drop(reader);
                }
                Err(error) => self.leave(peer, Some(&error)),
            }
            // A region that was made anew is opened at once, but not again and again.
            let pause = if is_remade && conduct.is_proven { Duration::ZERO } else { conduct.pause };
            let until = self.clock.after(pause);
            drop(until.wait_while(&peer.changed, peer.state(), |state| !state.is_closed));
            conduct.pause = (conduct.pause * 2).min(PAUSE_MAX);
        }
        self.leave(peer, None);
    }

    fn open(&self, number: usize) -> Result<Reader<Watched<'_, F>>, ReadError> {
        let deadline = self.clock.after(CONNECT_TIMEOUT);
        let remote = self.connect.connect(&self.peers[number].address, deadline)?;
        let remote = Watched { remote, shared: self, number };
        Reader::open(remote, &self.pool.superblock().config.seed, self.pool.seal_keys(), deadline)
    }

    /// Marks a peer as suspect, and hands its visits on.
    fn leave(&self, peer: &Peer, error: Option<&ReadError>) {
        let mut state = peer.state();
        let news = error.filter(|error| self.suspect(&mut state, error));
        let visits = std::mem::take(&mut state.queue);
        drop(state);
        if let Some(error) = news {
            peer.log(error);
        }
        visits.into_iter().for_each(|visit| self.go_on(visit));
    }

    /// Serves visits until the connection is of no more use, or this process ends (`None`).
    fn serve(&self, peer: &Peer, reader: &mut Reader<Watched<'_, F>>, conduct: &mut Conduct) -> Option<ReadError> {
        loop {
            let until = self.clock.after(LOOK_PAUSE);
            let idle = |state: &mut State| state.queue.is_empty() && !state.is_closed;
            let mut state = until.wait_while(&peer.changed, peer.state(), idle);
            if state.is_closed {
                return None;
            }
            // Another thread saw a read that was late.
            if state.standing == Standing::Suspect {
                return Some(ReadError::Late);
            }
            let Some(mut visit) = state.queue.pop_front() else {
                drop(state);
                if let Err(error) = reader.check(self.clock.after(self.deadline)) {
                    return Some(error);
                }
                continue;
            };
            state.is_busy = true;
            drop(state);
            if visit.job.is_over() {
                peer.state().is_busy = false;
                self.go_on(visit);
                continue;
            }
            let begin_ns = self.clock.now_ns();
            let outcome = self.visit(peer, reader, &mut visit, &mut conduct.wrong);
            {
                let mut state = peer.state();
                state.is_busy = false;
                state.route.has_served(self.clock.now_ns().saturating_sub(begin_ns));
            }
            if let Err(error) = outcome {
                let left = visit.left.len() as u64;
                self.counters.add(if error == ReadError::Late { Count::Late } else { Count::Failed }, left);
                // Before the request goes on.
                let is_new = self.suspect(&mut peer.state(), &error);
                if is_new {
                    peer.log(&error);
                }
                if visit.job.is_over() {
                    visit.job.end();
                } else {
                    self.go_on(visit);
                }
                return Some(error);
            }
            if !visit.job.is_over() && conduct.wrong == 0 {
                (conduct.pause, conduct.is_proven) = (PAUSE_MIN, true);
            }
            self.go_on(visit);
        }
    }

    /// Reads the blocks that the peer has and the job wants of those that a visit lacks, until its deadline.
    fn visit(
        &self,
        peer: &Peer,
        reader: &mut Reader<Watched<'_, F>>,
        visit: &mut Visit,
        wrong: &mut u32,
    ) -> Result<(), ReadError> {
        let job = &visit.job;
        let pace = Pace { until: job.promotion.until(), read_timeout: self.deadline };
        let begin_ns = self.clock.now_ns();
        let asked = &visit.left[..visit.most.min(visit.left.len())];
        let found = match job.wanted {
            Wanted::Leading => reader.find(asked, pace)?,
            Wanted::All => reader.find_all(asked, pace)?,
        };
        let found_ns = self.clock.now_ns();
        self.counters.add(Count::Found, found.len() as u64);
        peer.state().route.has_sought(asked.len() as u64, found.len() as u64, found_ns.saturating_sub(begin_ns));
        let (mut is_wrong, mut bytes) = (false, 0);
        // Another request may have brought some meanwhile.
        let here = |hit: &Hit| !self.pool.peek(&[hit.hash]).is_empty();
        let wanted: Vec<Hit> = found.iter().filter(|hit| !here(hit)).copied().collect();
        let fetched = reader.fetch((&job.namespace, &job.readable), &wanted, pace, |hit, fetched| {
            is_wrong |= matches!(fetched, Fetched::Wrong);
            // An encoded block has fewer; the estimate of the next ones counts whole blocks.
            bytes += if matches!(fetched, Fetched::Whole { .. }) { job.namespace.block_bytes } else { 0 };
            *wrong = match &fetched {
                Fetched::Whole { .. } => 0,
                Fetched::Wrong => wrong.saturating_add(1),
                Fetched::Stale | Fetched::Unreadable => *wrong,
            };
            self.take(job, hit, fetched);
        });
        peer.state().route.has_read(bytes, self.clock.now_ns().saturating_sub(found_ns));
        match job.wanted {
            // Blocks behind one that is missing are shared, but of no use to this request yet.
            Wanted::Leading => _ = visit.left.drain(..self.pool.peek(&visit.left[..found.len()]).len()),
            Wanted::All => visit.left.retain(|&hash| self.pool.peek(&[hash]).is_empty()),
        }
        fetched?;
        if is_wrong && *wrong >= WRONG_MAX {
            let fact = format!("{wrong} blocks in a row had a wrong checksum, seal, namespace or length");
            return Err(ReadError::Gone(fact));
        }
        Ok(())
    }

    /// Publishes a block that was read.
    fn take(&self, job: &Job, hit: &Hit, fetched: Fetched<'_>) {
        let (names, payload) = match fetched {
            Fetched::Whole { names, payload } => (names, payload),
            Fetched::Stale => return self.counters.add(Count::Stale, 1),
            Fetched::Wrong => return self.counters.add(Count::Wrong, 1),
            Fetched::Unreadable => return self.counters.add(Count::Unreadable, 1),
        };
        self.counters.add(Count::ReadBytes, payload.len() as u64);
        let copy = BlockCopy { hash: hit.hash, depth: hit.depth(), encoding: hit.encoding, names };
        let is_here = publish_copy(&self.pool, &job.namespace, &copy, payload);
        self.counters.add(
            match is_here {
                false => Count::NoRoom,
                true if job.is_over() => Count::Late,
                true => Count::Hits,
            },
            1,
        );
    }
}

/// Counts a thread's end, also after a panic.
struct Ended<'a, F: Fabric + 'static> {
    shared: &'a Shared<F>,
    /// The peer of the thread.
    peer: Option<usize>,
}

impl<F: Fabric + 'static> Drop for Ended<'_, F> {
    fn drop(&mut self) {
        if let Some(peer) = self.peer.filter(|_| std::thread::panicking()) {
            let peer = &self.shared.peers[peer];
            peer.state().is_closed = true;
            let fact = "its thread ended by an error of this program; restart to connect again";
            self.shared.leave(peer, Some(&ReadError::Gone(fact.to_owned())));
        }
        *self.shared.living() -= 1;
        self.shared.ended.notify_all();
    }
}

impl<F: Fabric + 'static> Drop for Beside<F> {
    fn drop(&mut self) {
        if self.stamp.is_inherited() {
            return;
        }
        for peer in &self.shared.peers {
            peer.state().is_closed = true;
            peer.changed.notify_all();
        }
        self.shared.watched().is_closed = true;
        self.shared.watch_changed.notify_all();
        let end = self.shared.clock.after(JOIN_TIMEOUT);
        let all_ended = *end.wait_while(&self.shared.ended, self.shared.living(), |threads| *threads > 0) == 0;
        if all_ended {
            // They let go of the pool, so that its worker leaves with this.
            self.handles.drain(..).for_each(|handle| drop(handle.join()));
        }
    }
}
