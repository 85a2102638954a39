//! Hosts and workers: who has the region open, and how the dead are told from the living.
//!
//! A worker lives as long as its claim on a slot of the host-local memory, which the kernel drops when the
//! process has gone, whatever its end and whatever pid namespace it lived in. A host's heart beats for other
//! hosts; on one host nothing is concluded from it.

use crate::error::PoolError;
use crate::history::Event;
use crate::locks::Name;
use crate::pool::{Inner, Pool};
use crate::recovery::Recovered;
use crate::region::NO_SLOT;
use crate::region::lines::{HostLine, Line, WorkerLine, pack_text};
use cenote_base::fault;
use cenote_mem::{Fabric, HostLocal, LINE, Word};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// This worker's place.
pub(crate) struct Member<H: HostLocal> {
    name: String,
    /// Held as long as the worker lives.
    _claim: Option<H::Claim>,
}

impl<H: HostLocal> Member<H> {
    /// Before joining.
    pub const fn none() -> Self {
        Self { name: String::new(), _claim: None }
    }
}

/// What this process knows of its host's heart while it waits.
#[derive(Default)]
pub(crate) struct Beats {
    /// When a wait last thought of it, in nanoseconds.
    last: AtomicU64,
    /// The thread that has the membership lock; 0: none of this process.
    keeper: AtomicU64,
}

impl Beats {
    /// This thread has the membership lock, or not any more.
    pub fn keep(&self, has: bool) {
        self.keeper.store(if has { this_thread() } else { 0 }, Relaxed);
    }
}

/// A number that no other thread has that lives.
fn this_thread() -> u64 {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here) as u64)
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Joins the region: registers the host, takes a worker slot, cleans up after the dead.
    pub(crate) fn join(mut self, worker_name: &str) -> Result<Self, PoolError> {
        if self.rebuilt().load(Acquire) == 0 {
            // This host may have looked at an older region here, and does not refresh what only it writes.
            // Taking the lock fences.
            let own = self.layout.written_by(self.host).into_iter().filter(|_| !self.is_coherent());
            let lines = own.flat_map(|(start, end)| (start..end).step_by(LINE as usize));
            lines.for_each(|line| self.fabric.refresh_unfenced(line));
        }
        let guard = self.lock_patiently(Name::Membership).map_err(PoolError::lock("membership"))?;
        let area_is_new = self.rebuilt().load(Acquire) == 0;
        let slots = u32::try_from(self.layout.workers_per_host).expect("validated");
        // While nobody was here the heart stood still, and another host may be about to say that this life is over.
        let was_silent = !self.is_coherent() && !(0..slots).any(|slot| self.area.slot_alive(slot));
        let new_life = self.register_host(area_is_new || was_silent);
        if was_silent {
            self.sweep_strays();
        }
        let mut claimed = None;
        for slot in 0..self.layout.workers_per_host {
            let slot32 = u32::try_from(slot).expect("validated");
            if let Some(claim) = self.area.claim_slot(slot32)? {
                claimed = Some((slot, claim));
                break;
            }
        }
        let Some((slot, claim)) = claimed else {
            return Err(PoolError::WorkersFull { slots: self.layout.workers_per_host, host: self.host as u8 });
        };
        if area_is_new {
            // Nobody of this host has the region open, so whatever its lines say is what the dead left.
            self.begin_life()?;
            let heap = self.lock_patiently(Name::Heap).map_err(PoolError::lock("heap"))?;
            for other in 0..self.layout.workers_per_host {
                self.clear_hazards(other);
                self.clear_worker_line(other);
            }
            // Pins of the dead no longer hold anything back.
            self.rebuild_heap();
            self.enter_unfindable()?;
            self.retry_draining();
            fault::point("join.rebuilt");
            self.rebuilt().store(1, Release);
            drop(heap);
            // Who died putting an object may have left it without a name, and left no trace of himself here.
            self.free_unnamed_objects();
        } else {
            if new_life {
                self.begin_life()?;
            }
            // The slot's last holder may have died with things in hand.
            self.recover_last_worker(slot, slot)?;
        }
        let epoch = self.write_worker(slot, worker_name);
        self.record_as(slot, Event::Attached, epoch >> 1, 0);
        self.raise_workers_high(slot + 1);
        fault::point("join.registered");
        self.recover_dead_locked(slot)?;
        if self.is_plain() {
            self.forget_counts_of_the_dead(slot);
        }
        drop(guard);
        self.region.set_slot(slot);
        self.member = Member { name: worker_name.to_owned(), _claim: Some(claim) };
        self.pins.adopt(epoch);
        Ok(self)
    }

    /// Makes this host known, and begins a new life of it if there was none, if the last one was declared
    /// dead, or if it `is_new`. Returns whether it did.
    pub(crate) fn register_host(&self, is_new: bool) -> bool {
        let boot_id = boot_id();
        let known = self.read_host(self.host);
        let mut line = known.unwrap_or_default();
        let buried = self.highest_mark(self.host);
        let begins = is_new || known.is_none() || line.boot_id != boot_id || line.incarnation <= buried;
        if begins {
            line.incarnation = line.incarnation.max(buried).wrapping_add(1);
            line.boot_id = boot_id;
            line.heartbeat = line.heartbeat.wrapping_add(1);
            self.put_host(line);
        }
        self.set_incarnation(line.incarnation);
        if begins {
            self.record(Event::LifeBegun, line.incarnation, buried);
        }
        begins
    }

    /// Shows the other hosts that this one lives, from time to time, in the middle of a wait for one of them: whoever is waited for
    /// may be dead, and is declared so only after a time in which this host would be as well.
    pub(crate) fn beat_in_wait(&self) {
        let now = u64::try_from(self.area.now().as_nanos()).unwrap_or(u64::MAX);
        let pace = u64::try_from(self.host_timeout.as_nanos() / 4).unwrap_or(u64::MAX);
        if now.saturating_sub(self.beats.last.load(Relaxed)) < pace {
            return;
        }
        self.beats.last.store(now, Relaxed);
        // Nobody waits until others see it: it is due again long before they would miss it.
        if self.beats.keeper.load(Relaxed) == this_thread() {
            self.beat_heart();
        } else if let Some(_membership) = self.try_lock(Name::Membership) {
            self.beat_heart();
        }
        // Otherwise whoever has it beats.
    }

    /// Shows the other hosts that this one lives. The caller holds the membership lock.
    pub(crate) fn beat_heart(&self) {
        if let Some(mut line) = self.read_host(self.host) {
            line.heartbeat = line.heartbeat.wrapping_add(1);
            line.wants = self.wants_chunk().load(Acquire);
            self.put_host(line);
        }
    }

    /// Notes that nothing of this host's earlier lives is left in its caches. The caller holds the membership lock.
    pub(crate) fn note_swept(&self) {
        if let Some(line) = self.read_host(self.host) {
            self.put_host(HostLine { swept: self.incarnation(), ..line });
        }
    }

    /// Writes this host's line. The caller holds the membership lock.
    fn put_host(&self, line: HostLine) {
        let at = self.layout.host(self.host);
        self.write(at, line);
    }

    /// A host's line; `None` if that host never attached. A line that is just being written, or whose writer
    /// died at it, tells nothing of who pins what, so it stands for every slot in use.
    pub(crate) fn read_host(&self, host: u64) -> Option<HostLine> {
        let at = self.layout.host(host);
        let words = if host == self.host { self.fabric.load_line(at) } else { self.fresh_line(at) };
        if words == [0; 8] {
            return None;
        }
        let torn =
            HostLine { incarnation: words[0], workers_high: self.layout.workers_per_host, ..HostLine::default() };
        Some(HostLine::open(words, at, self.salt).unwrap_or(torn))
    }

    fn host_is_torn(&self, host: u64) -> bool {
        let at = self.layout.host(host);
        self.read::<HostLine>(at).is_none()
    }

    fn raise_workers_high(&self, workers_high: u64) {
        let mut line = self.read_host(self.host).unwrap_or_default();
        if line.workers_high < workers_high || self.host_is_torn(self.host) {
            line.workers_high = workers_high;
            self.put_host(line);
        }
    }

    fn write_worker(&self, slot: u64, name: &str) -> u64 {
        let at = self.layout.worker(self.host, slot);
        let last = self.read::<WorkerLine>(at).unwrap_or_default();
        let epoch = (last.epoch >> 1).wrapping_add(1) << 1 | 1;
        let mut line = WorkerLine {
            epoch,
            pid: u64::from(std::process::id()),
            joined: self.area.unix_seconds(),
            ..WorkerLine::default()
        };
        pack_text(name, &mut line.name);
        self.put_worker(slot, line);
        epoch
    }

    /// Writes again what only this worker and this host write about themselves, where it does not hold. The caller holds the
    /// membership lock.
    pub(crate) fn rewrite_own_lines(&self) {
        let host = self.layout.host(self.host);
        if self.read::<HostLine>(host).is_none() {
            let (incarnation, boot_id) = (self.incarnation(), boot_id());
            let workers_high = self.layout.workers_per_host;
            self.put_host(HostLine { incarnation, boot_id, workers_high, ..HostLine::default() });
        }
        let worker = self.layout.worker(self.host, self.slot());
        if self.read::<WorkerLine>(worker).is_none() {
            self.write_worker(self.slot(), &self.member.name);
        }
        if self.is_coherent() {
            // There is no other host, and lines that say so are read for its pins.
            for other in (0..self.layout.max_hosts).filter(|&other| other != self.host) {
                self.clear(self.layout.host(other));
            }
        }
        self.clear_free_pins();
    }

    /// Writes the line of a worker of this host. The caller holds the membership lock.
    fn put_worker(&self, slot: u64, line: WorkerLine) {
        let at = self.layout.worker(self.host, slot);
        self.write(at, line);
    }

    /// Process id of the last worker of a slot, as its line says.
    pub(crate) fn worker_pid(&self, slot: u64) -> u64 {
        self.fabric.load_line(self.layout.worker(self.host, slot))[1]
    }

    /// Takes back a worker's pins. The caller holds the membership lock or is that worker.
    pub(crate) fn clear_hazards(&self, slot: u64) {
        for index in 0..self.layout.hazard_lines_per_worker {
            let at = self.layout.hazard(self.host, slot, index);
            if self.fabric.load_line(at) != [0; 8] {
                self.clear(at);
            }
        }
    }

    /// Marks a worker's slot as left, also where its line is torn.
    pub(crate) fn clear_worker_line(&self, slot: u64) {
        if !self.worker_joined(slot) {
            return;
        }
        let at = self.layout.worker(self.host, slot);
        let words = self.fabric.load_line(at);
        let mut line =
            WorkerLine::open(words, at, self.salt).unwrap_or(WorkerLine { epoch: words[0], ..Default::default() });
        line.epoch &= !1;
        self.put_worker(slot, line);
    }

    /// Whether the slot's line says that a worker holds it. A torn line does: its worker may have died while
    /// writing it, and that the living hold their slots is known from elsewhere.
    pub(crate) fn worker_joined(&self, slot: u64) -> bool {
        self.joined(self.host, slot)
    }

    /// The same of any host.
    pub(crate) fn joined(&self, host: u64, slot: u64) -> bool {
        let at = self.layout.worker(host, slot);
        let words = self.fabric.load_line(at);
        words != [0; 8] && WorkerLine::open(words, at, self.salt).is_none_or(|line| line.epoch & 1 == 1)
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Beats this host's heart, cleans up after workers of this host that died, and declares
    /// hosts dead that were silent for too long. Call it about once a second, and more often than the host
    /// timeout; it is cheap when nobody died.
    pub fn tick(&self) -> Recovered {
        let inner = &*self.0;
        if inner.area.is_inherited() {
            return Recovered::default();
        }
        if inner.is_plain() {
            inner.give_owed_counts();
        }
        // What is locked for too long now is done at the next tick.
        let _ = inner.watch_hosts();
        let recovered = inner.recover_dead().unwrap_or_default();
        inner.look_after_health();
        recovered
    }
}

impl<F: Fabric, H: HostLocal> Drop for Inner<F, H> {
    fn drop(&mut self) {
        if self.slot() != NO_SLOT && !self.area.is_inherited() {
            if self.is_plain() {
                self.give_all_counts();
            }
            // A worker that leaves in order leaves nothing behind. If the lock is not to be had, the next
            // one to take the slot finds what the dead leave, and cleans it up the same way.
            if let Ok(_guard) = self.lock(Name::Membership) {
                let _ = self.recover_slot(self.slot());
                self.record(Event::Left, 0, 0);
            }
        }
    }
}

/// The kernel's boot id; zero where there is none, which then tells nothing.
fn boot_id() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let word =
        |range: std::ops::Range<usize>| hex.get(range).and_then(|h| u64::from_str_radix(h, 16).ok()).unwrap_or(0);
    [word(0..16), word(16..32)]
}
