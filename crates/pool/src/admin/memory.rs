//! Memory of users in reports: which workers allocated what has no name, and whether they live. It
//! outlives its makers on purpose, so only an explicit call frees it.

use super::check::{CheckReport, finding};
use crate::error::PoolError;
use crate::members::Member;
use crate::region::lines::WorkerLine;
use crate::region::piece::Maker;
use crate::tables::memory::Memory;
use cenote_mem::{Fabric, HostLocal};
use serde::Serialize;
use std::collections::BTreeMap;

/// Memory of users in the whole region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryInfo {
    /// Pieces with a name.
    pub named_pieces: u64,
    /// Their bytes.
    pub named_bytes: u64,
    /// Pieces without a name.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The pieces without a name, by the worker that allocated them.
    pub makers: Vec<MakerInfo>,
}

/// A worker's memory without a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MakerInfo {
    /// The worker.
    pub maker: Maker,
    /// Whether it lives. `None`: unknown, because it is another host's.
    pub alive: Option<bool>,
    /// Pieces that it allocated and that no process has freed or named.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Result of [`crate::Pool::free_memory_of`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Freed {
    /// Pieces freed.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// `alive` tells whether the worker of a host's slot lives, if that is known.
    pub(crate) fn memory(&self, alive: impl Fn(u64, u32) -> Option<bool>) -> MemoryInfo {
        let mut info = MemoryInfo::default();
        let mut unnamed = BTreeMap::<Maker, (u64, u64)>::new();
        for memory in self.tables.all_memory() {
            if memory.piece.named {
                info.named_pieces += 1;
                info.named_bytes += memory.bytes;
                continue;
            }
            info.pieces += 1;
            info.bytes += memory.bytes;
            let sum = unnamed.entry(memory.piece.maker).or_default();
            *sum = (sum.0 + 1, sum.1 + memory.bytes);
        }
        let of = |(maker, (pieces, bytes))| MakerInfo { maker, alive: self.maker_alive(maker, &alive), pieces, bytes };
        info.makers = unnamed.into_iter().map(of).collect();
        info
    }

    pub(crate) fn maker_alive(&self, maker: Maker, alive: &impl Fn(u64, u32) -> Option<bool>) -> Option<bool> {
        let region = &self.region;
        let (host, slot) = (u64::from(maker.host), u64::from(maker.slot));
        if host >= region.layout.max_hosts || slot >= region.layout.workers_per_host {
            return Some(false);
        }
        let at = region.layout.worker(host, slot);
        region.fabric.refresh(&[at]);
        // A torn line is being written.
        let line = region.read::<WorkerLine>(at)?;
        let is_there = line.epoch & 1 == 1 && Maker::of(host, slot, line.epoch) == maker;
        let life = region.read_host(host)?.incarnation;
        if !is_there || region.is_dead(host, life) { Some(false) } else { alive(host, slot as u32) }
    }

    /// This worker, or all workers that have memory without a name, if they are known to be dead.
    pub(crate) fn dead_makers(
        &self,
        maker: Option<Maker>,
        alive: impl Fn(u64, u32) -> Option<bool>,
    ) -> Result<Vec<Maker>, PoolError> {
        match maker {
            Some(maker) if self.maker_alive(maker, &alive) != Some(false) => Err(PoolError::Config(format!(
                "worker {maker} is not known to be dead, and may use its memory; declare its host dead first, or end \
                 the worker"
            ))),
            Some(maker) => Ok(vec![maker]),
            None => {
                let makers = self.memory(&alive).makers.into_iter();
                Ok(makers.filter(|of| of.alive == Some(false)).map(|of| of.maker).collect())
            }
        }
    }

    /// See [`crate::Pool::free_memory_of`].
    pub(crate) fn free_memory_of(
        &self,
        maker: Option<Maker>,
        keep: impl Fn(u64) -> bool,
        alive: impl Fn(u64, u32) -> Option<bool>,
    ) -> Result<Freed, PoolError> {
        let makers = self.dead_makers(maker, alive)?;
        let mut freed = Freed::default();
        let mut unused = Vec::new();
        for chunk in 0..self.region.layout.num_chunks {
            let is_theirs =
                |memory: &Memory| !memory.piece.named && makers.contains(&memory.piece.maker) && !keep(memory.offset);
            if !self.tables.memory_in(chunk).iter().any(is_theirs) {
                continue;
            }
            let held = self.tables.lock(self.locks.patient()).map_err(PoolError::lock("table"))?;
            // Again, because another process may have freed or named some of it.
            for memory in self.tables.memory_in(chunk).into_iter().filter(is_theirs) {
                unused.extend(self.tables.release(&held, &memory)?);
                freed.pieces += 1;
                freed.bytes += memory.bytes;
            }
        }
        self.tables.free_objects(&unused);
        Ok(freed)
    }

    /// Reports arenas without a piece, and arenas with corrupt words.
    pub(super) fn check_arenas(&self, report: &mut CheckReport) {
        for (block, arena) in self.tables.arenas() {
            let what = format!("block {block}");
            match arena {
                None => report.damage.push(finding(
                    what,
                    "it holds memory, and its word is corrupt",
                    "its memory cannot be freed or named",
                    "cenote pool gc, on the host that owns it",
                )),
                Some((_, false)) => report.damage.push(finding(
                    what,
                    "it is an arena of memory with a corrupt word",
                    "memory behind the word is not allocated, and memory at it cannot be freed",
                    "cenote pool gc, when the rest of the arena is free",
                )),
                Some((0, true)) => {
                    let fact = "it is an arena without a piece: a process died while it took or freed one";
                    let means = "its space is not free yet";
                    report.pending.push(finding(what, fact, means, "cenote pool gc, on the host that owns it"));
                }
                Some((_, true)) => {}
            }
        }
    }
}
