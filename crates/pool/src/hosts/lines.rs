//! Lines of this host and its workers, and this host's marks of dead ones.

use super::Hosts;
use crate::log::recorder::Event;
use crate::region::counters::Counter;
use crate::region::host_layout::LONG_AGO;
use crate::region::lines::{HostLine, Line, WorkerLine, pack_text};
use crate::sync::{Holds, Membership};
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, Offset};
use std::time::Duration;

impl<F: Fabric, H: HostLocal> Hosts<F, H> {
    /// Registers this host, with the name of its memory. Begins a new life if there was none, if the
    /// last one was declared dead, or if `is_new`. Returns whether it did.
    pub fn register_host(&self, membership: &Holds<Membership>, is_new: bool) -> bool {
        let region = &self.region;
        let boot_id = boot_id();
        let known = region.read_host(region.host);
        let mut line = known.unwrap_or_default();
        let buried = region.highest_mark(region.host);
        let begins = is_new || known.is_none() || line.boot_id != boot_id || line.incarnation <= buried;
        if begins {
            line.incarnation = line.incarnation.max(buried).wrapping_add(1);
            line.boot_id = boot_id;
            line.heartbeat = line.heartbeat.wrapping_add(1);
            self.write_host(membership, line);
        }
        region.set_incarnation(line.incarnation);
        if begins {
            self.log.record(Event::LifeBegun, line.incarnation, buried);
        }
        begins
    }

    fn write_host(&self, _: &Holds<Membership>, line: HostLine) {
        let line = HostLine { memory: self.region.memory(), ..line };
        self.region.write(self.region.layout.host(self.region.host), line);
    }

    /// Records that this host's caches hold nothing that its earlier lives left dirty.
    pub fn note_swept(&self, membership: &Holds<Membership>) {
        if let Some(line) = self.region.read_host(self.region.host) {
            self.write_host(membership, HostLine { swept: self.region.incarnation(), ..line });
        }
    }

    /// Records that worker slots below `workers_high` have been used.
    pub fn raise_workers_high(&self, membership: &Holds<Membership>, workers_high: u64) {
        let region = &self.region;
        let line = region.read_host(region.host).unwrap_or_default();
        let is_torn = region.read::<HostLine>(region.layout.host(region.host)).is_none();
        if line.workers_high < workers_high || is_torn {
            self.write_host(membership, HostLine { workers_high, ..line });
        }
    }

    /// Declares a life of another host dead.
    pub fn mark_dead(&self, _: &Holds<Membership>, host: u64, incarnation: u64) {
        let region = &self.region;
        let word = Offset::new(region.layout.mark(region.host, host));
        if region.fabric.load(word) < incarnation {
            // The host may have died between a change and its event.
            self.log.tell_gap();
            region.fabric.write_word(word, incarnation);
            region.counters().add(Counter::HostsDeclaredDead, 1);
            self.log.record(Event::HostDead, host, incarnation);
            fault::point(Point::HostMarked);
        }
    }

    /// Whether another host has been silent for the host timeout and the quarantine.
    pub fn is_past_quarantine(&self, host: u64) -> bool {
        let region = &self.region;
        if host == region.host {
            return false;
        }
        let beat = region.beat(host);
        let waited = region.area.now().saturating_sub(Duration::from_nanos(beat.since));
        let is_past = beat.since == LONG_AGO || waited > region.host_timeout + region.quarantine;
        beat.incarnation != 0 && is_past
    }

    /// Enters a worker in its slot; returns its epoch.
    pub fn write_worker(&self, membership: &Holds<Membership>, slot: u64, name: &str) -> u64 {
        let region = &self.region;
        let last: WorkerLine = region.read(region.layout.worker(region.host, slot)).unwrap_or_default();
        let epoch = (last.epoch >> 1).wrapping_add(1) << 1 | 1;
        let mut line = WorkerLine {
            epoch,
            pid: u64::from(std::process::id()),
            joined: region.area.unix_seconds(),
            ..WorkerLine::default()
        };
        pack_text(name, &mut line.name);
        self.put_worker(membership, slot, line);
        epoch
    }

    fn put_worker(&self, _: &Holds<Membership>, slot: u64, line: WorkerLine) {
        self.region.write(self.region.layout.worker(self.region.host, slot), line);
    }

    /// Process id of the last worker of a slot of this host.
    pub fn worker_pid(&self, slot: u64) -> u64 {
        self.region.fabric.load_line(self.region.layout.worker(self.region.host, slot))[1]
    }

    /// Marks a worker slot of this host as left, also where its line is torn.
    pub fn clear_worker_line(&self, membership: &Holds<Membership>, slot: u64) {
        let region = &self.region;
        if !region.joined(region.host, slot) {
            return;
        }
        let at = region.layout.worker(region.host, slot);
        let words = region.fabric.load_line(at);
        let torn = WorkerLine { epoch: words[0], ..WorkerLine::default() };
        let mut line = WorkerLine::open(words, at, region.salt).unwrap_or(torn);
        line.epoch &= !1;
        self.put_worker(membership, slot, line);
    }

    /// Records that the last worker of a slot of this host has no namespace open. The caller has
    /// settled all that the worker had reserved.
    pub fn clear_opened(&self, _: &Holds<Membership>, slot: u64) {
        let region = &self.region;
        let at = region.layout.opened(region.host, slot);
        if region.fabric.load_line(at) != [0; 8] {
            region.clear(at);
            // The next worker of the slot writes the line from another process.
            region.fabric.fence();
        }
    }

    /// Clears the lines of slots that no worker has: only damage leaves content there.
    pub fn clear_opened_of_none(&self, membership: &Holds<Membership>) {
        let region = &self.region;
        let has_worker = |slot: u64| region.joined(region.host, slot) || region.area.slot_alive(slot as u32);
        let free = (0..region.layout.workers_per_host).filter(|&slot| !has_worker(slot));
        free.for_each(|slot| self.clear_opened(membership, slot));
    }

    /// Whether a worker slot of this host was joined by a process that is dead now.
    pub fn died(&self, slot: u64) -> bool {
        self.region.joined(self.region.host, slot) && !self.region.area.slot_alive(slot as u32)
    }

    /// Whether a host has a living worker, other than slot `own` of this host.
    pub fn has_other_worker(&self, host: u64, own: u64) -> bool {
        let region = &self.region;
        let Some(line) = region.read_host(host) else { return false };
        let mut slots = 0..line.workers_high.min(region.layout.workers_per_host);
        if host == region.host {
            return slots.any(|slot| slot != own && region.area.slot_alive(slot as u32));
        }
        let has_joined = |slot| {
            region.fabric.refresh(&[region.layout.worker(host, slot)]);
            region.joined(host, slot)
        };
        !region.is_dead(host, line.incarnation) && slots.any(has_joined)
    }

    /// Writes again the lines that only this worker and this host write, where they do not hold.
    pub fn rewrite_own_lines(&self, membership: &Holds<Membership>, worker_name: &str) {
        let region = &self.region;
        if region.read::<HostLine>(region.layout.host(region.host)).is_none() {
            let (incarnation, boot_id) = (region.incarnation(), boot_id());
            let workers_high = region.layout.workers_per_host;
            self.write_host(membership, HostLine { incarnation, boot_id, workers_high, ..HostLine::default() });
        }
        if region.read::<WorkerLine>(region.layout.worker(region.host, region.slot())).is_none() {
            self.write_worker(membership, region.slot(), worker_name);
        }
        if region.is_coherent() {
            // There is no other host, and a corrupt line would have its pins read.
            for other in (0..region.layout.max_hosts).filter(|&other| other != region.host) {
                region.clear(region.layout.host(other));
            }
        }
        self.clear_free_pins();
    }
}

/// Half of the kernel's boot id; zero where there is none, which distinguishes no boots.
fn boot_id() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    hex.get(..16).and_then(|half| u64::from_str_radix(half, 16).ok()).unwrap_or(0)
}
