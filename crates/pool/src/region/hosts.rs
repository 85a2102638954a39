//! Host lines of the region: hosts' lives, and which of them were declared dead.

use crate::region::Region;
use crate::region::lines::{HostLine, Line, WorkerLine};
use cenote_mem::{Fabric, HostLocal, LINE, Offset};

impl<F: Fabric, H: HostLocal> Region<F, H> {
    /// A host's line; `None` if that host never attached. A torn line stands for every worker slot
    /// in use, because its writer may be alive.
    pub fn read_host(&self, host: u64) -> Option<HostLine> {
        let at = self.layout.host(host);
        let words = if host == self.host { self.fabric.load_line(at) } else { self.fresh_line(at) };
        if words == [0; 8] {
            return None;
        }
        let torn =
            HostLine { incarnation: words[0], workers_high: self.layout.workers_per_host, ..HostLine::default() };
        Some(HostLine::open(words, at, self.salt).unwrap_or(torn))
    }

    /// Whether another host memory has taken this host's slot, by the host's line as this host's
    /// caches have it. Then this memory describes an ended life.
    #[inline]
    pub fn is_superseded(&self) -> bool {
        let (ours, at) = (self.memory(), self.layout.host(self.host));
        ours != 0
            && self.fabric.load(Offset::new(at + HostLine::MEMORY)) != ours
            && self.read::<HostLine>(at).is_some_and(|line| line.memory != ours)
    }

    /// As [`Region::is_superseded`], by the device's line.
    pub fn is_superseded_now(&self) -> bool {
        if self.memory() != 0 {
            self.fabric.refresh(&[self.layout.host(self.host)]);
        }
        self.is_superseded()
    }

    /// Whether a worker's line, in this host's caches, shows that a process holds the slot. A torn
    /// line counts as held: its worker may have died while it wrote the line.
    pub fn joined(&self, host: u64, slot: u64) -> bool {
        let at = self.layout.worker(host, slot);
        let words = self.fabric.load_line(at);
        words != [0; 8] && WorkerLine::open(words, at, self.salt).is_none_or(|line| line.epoch & 1 == 1)
    }

    /// Whether any host declared this life of a host dead.
    pub fn is_dead(&self, host: u64, incarnation: u64) -> bool {
        incarnation != 0 && self.highest_mark(host) >= incarnation
    }

    /// The last life of a host that any host declared dead; 0: none.
    pub fn highest_mark(&self, host: u64) -> u64 {
        if self.is_coherent() || host >= self.layout.max_hosts {
            return 0;
        }
        let observers = 0..self.layout.max_hosts;
        let words: Vec<u64> = observers.clone().map(|observer| self.layout.mark(observer, host)).collect();
        let others = observers.zip(&words).filter(|(observer, _)| *observer != self.host);
        let lines: Vec<u64> = others.map(|(_, word)| word / LINE * LINE).collect();
        self.fabric.refresh(&lines);
        words.into_iter().map(|word| self.fabric.load(Offset::new(word))).max().unwrap_or(0)
    }
}
