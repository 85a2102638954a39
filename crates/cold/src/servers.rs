//! Servers: a record per key of a Redis or Valkey server or cluster
//! (docs/internals/cold-format.md#servers).
//!
//! A set is atomic, so a value is whole or absent. There is no list of the keys: the server is shared with
//! other programs, evicts by itself, and a scan would visit all of its keys. So lookups ask for the
//! lengths of the values, many at once, in a thread that reads. The server's `maxmemory` is the limit.

mod health;
mod known;
mod link;

use crate::address::Address;
use crate::backend::{Backend, Refreshed, Sealed, Used};
use crate::error::ColdError;
use crate::identity::{self, IDENTITY_BYTES, Identity};
use crate::record::{Aligned, Head, Name, PAYLOAD_MAX, SECTOR, record_bytes};
use crate::sums::{Sealing, Sums};
use crate::wait::{Threads, until};
use cenote_base::{Clock, Deadline, HashSeed};
use futures::stream::{StreamExt, iter};
use health::Health;
use known::{Known, State, Tally};
use link::{Access, Link};
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value, cmd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// Begin of all keys of this format, behind the prefix of the URL.
const FORMAT: &str = "cenote-v2:";
/// Longest time of a write, an identity or a trial.
const SLOW: Duration = Duration::from_secs(10);
/// Time between two looks at the identity. Each look keeps it from being evicted, too.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Keys that are asked for at once.
const ASKED_TOGETHER: usize = 256;
/// Values that are written at once.
const WRITTEN_TOGETHER: usize = 16;
/// Failures in a row after which a cluster is left alone. Of a single server it is one.
const CLUSTER_FAILURES: u32 = 8;
/// Most failures that wait for a report.
const DAMAGE_MAX: usize = 16;
/// Letters of a server's error that are shown.
const SHOWN_MAX: usize = 200;
/// Limit in the identity: the server has its own.
const NO_LIMIT: u64 = u64::MAX;

/// Blocks in a server, as one process sees them.
pub struct Servers {
    address: Address,
    access: Access,
    deadline: Duration,
    sealing: Sealing,
    place: RwLock<Option<(Identity, Sums)>>,
    clock: Clock,
    known: Mutex<Known>,
    /// Sums of what is known.
    tally: Arc<Tally>,
    health: Mutex<Health>,
    /// Connections that wait for a request. No more are made than threads that have one.
    idle: Mutex<Vec<Link>>,
    /// When the identity is looked at next; `None`: now.
    next_look: Mutex<Option<Deadline>>,
    /// Failures since the last report that cost no call.
    damage: Mutex<Vec<ColdError>>,
    runtime: Threads,
}

/// No statement leaves what these locks hold inconsistent, so a poisoned one is usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Servers {
    /// Blocks in the server of this address. Nothing is asked of it yet. A read has the deadline.
    ///
    /// # Errors
    /// The threads cannot be started, or the client library refuses the address.
    pub fn new(address: &Address, deadline: Duration, clock: Clock) -> Result<Self, ColdError> {
        let wrong = |error: String| ColdError::Io { at: address.to_string(), error };
        let access = Access::of(address).map_err(|error| wrong(error.to_string()))?;
        let runtime = Threads::start("cold-servers").map_err(|error| wrong(error.to_string()))?;
        let known = Known::new(clock);
        let failures_max = if address.is_cluster { CLUSTER_FAILURES } else { 1 };
        Ok(Self {
            address: address.clone(),
            access,
            deadline,
            sealing: None,
            place: RwLock::default(),
            clock,
            tally: known.tally(),
            known: Mutex::new(known),
            health: Mutex::new(Health::new(clock, failures_max)),
            idle: Mutex::default(),
            next_look: Mutex::default(),
            damage: Mutex::default(),
            runtime,
        })
    }

    /// The same place below a region with this seal.
    #[must_use]
    pub fn sealed_by(self, sealing: Sealing) -> Self {
        Self { sealing, ..self }
    }

    fn at(&self) -> String {
        self.address.to_string()
    }

    /// Without braces, so that a cluster spreads blocks over its slots.
    fn key(&self, name: &Name) -> String {
        format!("{}{FORMAT}{}:{}", self.address.prefix, hex::encode(name.namespace), hex::encode(name.hash.0))
    }

    fn identity_key(&self) -> String {
        format!("{}{FORMAT}{}", self.address.prefix, identity::FILE)
    }

    /// Works with a connection, at most so long. One that the server has closed meanwhile is replaced once.
    fn within<T>(&self, longest: Duration, work: &impl AsyncFn(&Link) -> RedisResult<T>) -> Result<T, ColdError> {
        if !lock(&self.health).may_send(longest) {
            let error = "it failed a moment ago, and is not asked again yet".to_owned();
            return Err(ColdError::Io { at: self.at(), error });
        }
        let work = async {
            loop {
                let idle = self.take_idle();
                let (was_idle, link) = match idle {
                    Some(link) => (true, link),
                    None => (false, Link::open(&self.access).await?),
                };
                let done = work(&link).await;
                // A cluster's connection repairs itself.
                if self.address.is_cluster || !done.as_ref().is_err_and(is_lost) {
                    self.put_idle(link);
                } else if was_idle {
                    lock(&self.idle).clear();
                    continue;
                }
                return done;
            }
        };
        match self.runtime.block_on(until(self.clock.after(longest), work)) {
            Some(Ok(value)) => {
                lock(&self.health).has_answered();
                Ok(value)
            }
            Some(Err(error)) => {
                if is_down(&error) {
                    self.has_failed();
                } else {
                    lock(&self.health).has_answered();
                }
                Err(self.explain(&error))
            }
            None => {
                // The rest of a question's time is no test of a server.
                if longest >= self.least_test() {
                    self.has_failed();
                } else {
                    lock(&self.health).has_said_nothing();
                }
                Err(ColdError::Slow { at: self.at(), ms: longest.as_millis() as u64 })
            }
        }
    }

    /// Least time without an answer that says something about the server.
    fn least_test(&self) -> Duration {
        self.deadline.min(SLOW) / 2
    }

    fn has_failed(&self) {
        let is_good = {
            let mut health = lock(&self.health);
            health.has_failed();
            health.is_good()
        };
        // The next connection of a cluster begins with the hosts of the URL.
        if !is_good {
            lock(&self.idle).clear();
        }
    }

    /// A single server's connection has one user at a time, so that a long value delays no other one's. A
    /// cluster's connections are shared.
    fn take_idle(&self) -> Option<Link> {
        let mut idle = lock(&self.idle);
        if self.address.is_cluster { idle.last().cloned() } else { idle.pop() }
    }

    fn put_idle(&self, link: Link) {
        let mut idle = lock(&self.idle);
        if !self.address.is_cluster || idle.is_empty() {
            idle.push(link);
        }
    }

    fn explain(&self, error: &RedisError) -> ColdError {
        let at = self.at();
        let error_text = shown(&error.to_string());
        let said = |hint: &str| ColdError::Io { at: self.at(), error: format!("{error_text}{hint}") };
        match error.code() {
            Some("OOM") => ColdError::Full { at, what: format!("the server is at its `maxmemory`: {error_text}") },
            Some("WRONGTYPE") => ColdError::Damaged { at, what: "a key holds something else than a string" },
            Some("NOAUTH" | "WRONGPASS") => said("; give user and password in the URL or in REDIS_PASSWORD"),
            Some("READONLY") => said("; name the primary, not a replica"),
            _ if error.kind() == ErrorKind::AuthenticationFailed => {
                said("; give user and password in the URL or in REDIS_PASSWORD")
            }
            _ if error.is_timeout() => ColdError::Slow { at, ms: self.deadline.as_millis() as u64 },
            _ => said(""),
        }
    }

    /// The identity of this place; a place without one gets `own`.
    ///
    /// # Errors
    /// The server does not answer, or the identity is damaged, of another version, or of another seal.
    pub fn identity(&self, own: &Identity) -> Result<Identity, ColdError> {
        let own = Identity { bytes_max: NO_LIMIT, ..*own };
        let bytes = identity::encode(&own, &self.sealing);
        let key = self.identity_key();
        let found = self.within(SLOW, &async |link: &Link| {
            let found = self.get_identity(link).await?;
            if !found.is_empty() {
                return Ok(found);
            }
            // Of two first processes one is first.
            let _: Value = link.call(cmd("SET").arg(&key).arg(&bytes[..]).arg("NX")).await?;
            self.get_identity(link).await
        })?;
        identity::decode(&found, &self.at(), &self.sealing)
    }

    /// The identity's value; empty: there is none.
    async fn get_identity(&self, link: &Link) -> RedisResult<Vec<u8>> {
        link.call(&range(&self.identity_key(), IDENTITY_BYTES as u64)).await
    }

    fn put_identity(&self, identity: &Identity) -> Result<(), ColdError> {
        let (key, bytes) = (self.identity_key(), identity::encode(identity, &self.sealing));
        self.within(SLOW, &async |link: &Link| link.call(cmd("SET").arg(&key).arg(&bytes[..])).await)
    }

    /// Seals an identity of an older key with the first key, so that the older one can leave.
    fn renew_seal(&self, identity: &Identity) -> Result<(), ColdError> {
        if self.sealing.is_none() {
            return Ok(());
        }
        let found = self.within(SLOW, &async |link: &Link| self.get_identity(link).await)?;
        if identity::is_outdated(&found, &self.sealing) { self.put_identity(identity) } else { Ok(()) }
    }

    /// Looks whether the identity is still there. Writes it again if it is gone or damaged, and returns what
    /// was repaired.
    fn watch_identity(&self) -> Result<Option<ColdError>, ColdError> {
        let (known, _) = self.known_place()?;
        // A key of another type is damage, too.
        let found = self.within(SLOW, &async |link: &Link| self.get_identity(link).await);
        let decoded = found.and_then(|found| match &*found {
            [] => Err(ColdError::Gone(self.gone())),
            found => identity::decode(found, &self.at(), &self.sealing),
        });
        match decoded {
            Ok(found) if found.seed != known.seed => Err(ColdError::Foreign(self.at())),
            Ok(_) => Ok(None),
            Err(error @ (ColdError::Gone(_) | ColdError::Damaged { .. })) => {
                self.put_identity(&known)?;
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    fn gone(&self) -> String {
        format!("{}: {}", self.address, self.identity_key())
    }

    fn known_place(&self) -> Result<(Identity, Sums), ColdError> {
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner).clone();
        place.ok_or_else(|| ColdError::Gone(self.gone()))
    }

    /// The lengths of values. An error of one key is no length; those of a cluster without one of its nodes
    /// are counted once. A node that is silent leaves a quarter of the time to those that have answered.
    fn lengths(&self, names: &[Name], end: Deadline) -> Result<Vec<State>, ColdError> {
        let commands: Vec<Cmd> = names.iter().map(|name| cmd("STRLEN").arg(self.key(name)).to_owned()).collect();
        let silent_at = self.clock.after(end.remaining() * 3 / 4);
        self.within(end.remaining(), &async |link: &Link| {
            let lengths: Vec<RedisResult<u64>> = link.call_all(&commands, silent_at).await;
            let is_failure = |error: &&RedisError| error.code() != Some("WRONGTYPE");
            if let Some(error) = lengths.iter().filter_map(|length| length.as_ref().err()).find(is_failure) {
                if lengths.iter().all(RedisResult::is_err) {
                    return Err(error.clone());
                }
                let mut damage = lock(&self.damage);
                if damage.len() < DAMAGE_MAX {
                    damage.push(self.explain(error));
                }
            }
            Ok(lengths.into_iter().map(|length| state_of(length.ok())).collect())
        })
    }
}

/// What a value's length says. `None`: it has none, which another type of value has as well.
fn state_of(length: Option<u64>) -> State {
    let is_record = |bytes: u64| {
        bytes >= SECTOR as u64 && bytes.is_multiple_of(SECTOR as u64) && bytes <= record_bytes(PAYLOAD_MAX)
    };
    match length {
        Some(bytes) if is_record(bytes) => State::Present(bytes),
        Some(0) | None => State::Absent,
        Some(_) => State::Damaged,
    }
}

/// A server's words: as many as a log line has room for, and none that ends it.
fn shown(text: &str) -> String {
    let escaped = text.chars().flat_map(|letter| {
        let escape = letter.is_control().then(|| letter.escape_default());
        escape.into_iter().flatten().chain((!letter.is_control()).then_some(letter))
    });
    escaped.take(SHOWN_MAX).collect()
}

/// Reads a value, and at most one byte more than `most`, so that the server does not send one that is too
/// long.
fn range(key: &str, most: u64) -> Cmd {
    cmd("GETRANGE").arg(key).arg(0).arg(most).to_owned()
}

/// The connection is of no use any more.
fn is_lost(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse | ErrorKind::ClusterConnectionNotFound)
}

/// The server answers nothing now, whatever it is asked.
fn is_down(error: &RedisError) -> bool {
    is_lost(error)
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
        || matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed
                | ErrorKind::Server(
                    ServerErrorKind::BusyLoading | ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown
                )
        )
}

impl Backend for Servers {
    fn open(&self, seed: &HashSeed) -> Result<(), ColdError> {
        let found = self.identity(&Identity { seed: *seed, bytes_max: NO_LIMIT })?;
        if found.seed != *seed {
            return Err(ColdError::Foreign(self.at()));
        }
        let place = Some((found, Sums::of_place(&found.seed, &self.sealing)));
        *self.place.write().unwrap_or_else(PoisonError::into_inner) = place;
        self.renew_seal(&found).unwrap_or_else(|error| lock(&self.damage).push(error));
        *lock(&self.next_look) = Some(self.clock.after(LOOK_EVERY));
        Ok(())
    }

    fn length(&self, name: &Name) -> Option<u64> {
        match lock(&self.known).get(name) {
            Some(State::Present(bytes)) => Some(bytes),
            _ => None,
        }
    }

    fn may_have(&self, name: &Name) -> bool {
        let known = lock(&self.known).get(name);
        !matches!(known, Some(State::Absent | State::Damaged)) && lock(&self.health).is_good()
    }

    fn ask(&self, names: &[Name], leading: bool) -> Result<(), ColdError> {
        let end = self.clock.after(self.deadline);
        let unknown: Vec<Name> = {
            let known = lock(&self.known);
            names.iter().filter(|name| known.get(name).is_none()).copied().collect()
        };
        for some in unknown.chunks(ASKED_TOGETHER) {
            // What is known by now is used.
            if end.passed() {
                break;
            }
            let granted = end.remaining();
            let states = match self.lengths(some, end) {
                Err(ColdError::Slow { .. }) if granted < self.least_test() => break,
                states => states?,
            };
            let mut known = lock(&self.known);
            some.iter().zip(&states).for_each(|(name, state)| known.enter(*name, *state));
            if leading && states.iter().any(|state| !matches!(state, State::Present(_))) {
                break;
            }
        }
        Ok(())
    }

    fn evicts(&self) -> bool {
        true
    }

    fn used(&self) -> Used {
        let (blocks, bytes) = self.tally.get();
        Used { blocks, bytes, bytes_max: 0 }
    }

    fn survey(&self) -> Result<Used, ColdError> {
        let found = self.within(SLOW, &async |link: &Link| self.get_identity(link).await)?;
        if !found.is_empty() {
            identity::decode(&found, &self.at(), &self.sealing)?;
        }
        // Counting keys would visit all of the server's.
        Ok(Used::default())
    }

    fn read(&self, name: &Name, length_max: u64, memory: &mut Aligned) -> Result<Head, ColdError> {
        let (key, (_, sums)) = (self.key(name), self.known_place()?);
        let mut read = || {
            let most = record_bytes(length_max.min(PAYLOAD_MAX));
            let command = range(&key, most);
            let bytes: Vec<u8> = self.within(self.deadline, &async |link: &Link| link.call(&command).await)?;
            if bytes.is_empty() {
                return Err(ColdError::Gone(key.clone()));
            }
            if bytes.len() as u64 > most {
                return Err(ColdError::Damaged { at: key.clone(), what: "it is longer than its block's record" });
            }
            memory.resize(bytes.len());
            memory.bytes_mut().copy_from_slice(&bytes);
            let (head, _) = sums.open(memory.bytes_mut(), Some(name), &key)?;
            Ok(head)
        };
        read().inspect_err(|error| {
            let state = match error {
                ColdError::Gone(_) => State::Absent,
                // A server that is slow or refuses may recover; anything else stays as it is.
                ColdError::Io { .. } | ColdError::Slow { .. } => return,
                _ => State::Damaged,
            };
            lock(&self.known).enter(*name, state);
        })
    }

    fn write(&self, records: &[Sealed<'_>], _bytes: &[u8]) -> Result<(), ColdError> {
        let set = |record: &Sealed<'_>| {
            let mut command = cmd("SET");
            command.arg(self.key(&record.head.name)).arg(record.bytes);
            if let Some(ttl) = self.address.ttl {
                command.arg("EX").arg(ttl.as_secs());
            }
            command
        };
        // Each that is written is known at once, whatever becomes of the others.
        let put = async |link: &Link, record: &Sealed<'_>| {
            link.call::<()>(&set(record)).await?;
            let state = State::Present(record.bytes.len() as u64);
            lock(&self.known).enter(record.head.name, state);
            Ok(())
        };
        self.within(SLOW, &async |link: &Link| {
            let puts = iter(records).map(|record| put(link, record)).buffer_unordered(WRITTEN_TOGETHER);
            puts.fold(Ok(()), async |all: RedisResult<()>, one| all.and(one)).await
        })
    }

    fn refresh(&self) -> Result<Refreshed, ColdError> {
        let is_due = lock(&self.next_look).is_none_or(Deadline::passed);
        let (is_good, trial_is_due) = {
            let mut health = lock(&self.health);
            // The node with the identity may be the one of a cluster that is gone.
            if self.address.is_cluster && health.trial_is_due() {
                health.is_given_a_chance();
            }
            // A server that failed is tried here, and not by a request.
            (health.is_good(), health.trial_is_due())
        };
        if trial_is_due || is_due && is_good {
            *lock(&self.next_look) = Some(self.clock.after(LOOK_EVERY));
            let repaired = self.watch_identity()?;
            lock(&self.damage).extend(repaired);
        }
        let damage = std::mem::take(&mut *lock(&self.damage));
        Ok(Refreshed { removed: 0, damage, has_more: false })
    }

    fn sync(&self) -> Result<(), ColdError> {
        Ok(())
    }

    fn resize(&self, _bytes_max: u64) -> Result<(), ColdError> {
        let error = "the server has its own limit; set its `maxmemory` and `maxmemory-policy`".to_owned();
        Err(ColdError::Io { at: self.at(), error })
    }
}
