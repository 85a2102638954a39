//! A view of a region from outside: it joins, locks and writes nothing and needs no live process.
//!
//! Hosts' own memory (free lists, slot owners) is read if it is on this machine. For other hosts'
//! chunks, and for hosts whose memory is gone, only the region itself is read. Workers may be
//! active meanwhile, so a disagreement may be the middle of a change. The check repeats and reports
//! only what stays.

use super::check::{CheckReport, Finding, Walk, finding};
use super::info::{ChunkInfo, NamespaceInfo, PoolInfo};
use crate::error::PoolError;
use crate::log::follow::{Followed, Follower};
use crate::members::Member;
use crate::region::Region;
use crate::region::area::on_clock;
use crate::region::config::AttachOptions;
use crate::region::lines::ChunkLine;
use crate::region::superblock::Superblock;
use crate::tables::objects::READ_ATTEMPTS;
use cenote_base::seal::{KeyId, Seal};
use cenote_base::{BlockHash, BlockIndex, HostId, NamespaceId};
use cenote_mem::host::HostError;
use cenote_mem::{Fabric, HostArea, HostLocal};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

/// Longest time for which a disagreement may be the middle of a change.
const PATIENCE: Duration = Duration::from_millis(500);
/// Fewest repetitions that a reported disagreement must survive.
const LOOKS_MIN: u32 = 3;

/// A region, seen from outside.
pub struct Inspector<F: Fabric + Clone> {
    /// The view of the asking host.
    own: Member<F, HostArea>,
    /// Hosts with memory of this region on this machine.
    seen: BTreeMap<u64, Member<F, HostArea>>,
}

/// A readable block, as an observer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Bytes of its payload, in whole lines.
    pub length: u64,
    /// Encoding of the payload; 0: the engine's own layout.
    pub encoding: u8,
    /// Seconds since 1970 of its publication, by the publisher's clock.
    pub stored: u32,
    /// The host in whose space it lies; `None`: its chunk changes hands just now.
    pub host: Option<u8>,
}

impl<F: Fabric + Clone> Inspector<F> {
    /// Opens the region as `options.host` sees it.
    ///
    /// # Errors
    /// The region is unreadable (see [`Superblock::read`]), or a host's memory on this machine is.
    pub fn open(fabric: &F, options: &AttachOptions) -> Result<Self, PoolError> {
        let (own, _) = view(fabric.clone(), options)?;
        let mut seen = BTreeMap::new();
        let hosts = if own.region.is_coherent() { 1 } else { own.region.superblock.config.max_hosts };
        for host in 0..hosts {
            let options = AttachOptions { host: HostId(host), ..options.clone() };
            let (inner, found) = view(fabric.clone(), &options)?;
            if found && inner.region.rebuilt().load(Acquire) == 1 {
                seen.insert(u64::from(host), inner);
            }
        }
        Ok(Self { own, seen })
    }

    /// Whether the memory of each host that has joined is in view. An inspector from before a host's first
    /// worker, or of a host's earlier life, counts its workers as dead and its counters as 0: open another.
    /// Memory on another machine never comes into view.
    #[must_use]
    pub fn sees_all_hosts(&self) -> bool {
        let has_joined = |host| self.own.region.read_host(host).is_some_and(|line| line.incarnation > 0);
        (0..self.own.region.layout.max_hosts).all(|host| !has_joined(host) || self.current(host).is_some())
    }

    /// The settings that the region's creator chose.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.own.region.superblock
    }

    /// As [`crate::Pool::keys`].
    #[must_use]
    pub fn keys(&self) -> Vec<KeyId> {
        let region = &self.own.region;
        if region.seal_mode() == Seal::None { Vec::new() } else { region.admitted_keys() }
    }

    /// As [`crate::Pool::info`].
    #[must_use]
    pub fn info(&self) -> PoolInfo {
        self.survey().0
    }

    /// The summary, with the chunks that it sums up, in order.
    #[must_use]
    pub fn survey(&self) -> (PoolInfo, Vec<ChunkInfo>) {
        self.own.survey(|host, slot| self.slot_alive(host, slot))
    }

    /// Number of blocks that living workers have pinned.
    #[must_use]
    pub fn pinned(&self) -> u64 {
        self.pinned_by_the_living().len() as u64
    }

    /// The models that share the region, without counts of their blocks.
    #[must_use]
    pub fn namespaces(&self) -> Vec<NamespaceInfo> {
        self.own.region.refresh_namespaces();
        self.own.namespace_rows()
    }

    /// As [`crate::Pool::get_object`], without joining.
    ///
    /// # Errors
    /// The key is empty or too long.
    pub fn get_object(&self, key: &str) -> Result<Option<Vec<u8>>, PoolError> {
        let tables = &self.own.tables;
        let hash = tables.object_hash(key)?;
        Ok((0..READ_ATTEMPTS).find_map(|_| tables.read_object(hash)).map(|(_, _, bytes)| bytes))
    }

    /// For each hash, whether a readable block has it, by the device's current copies.
    ///
    /// An observer cannot pin, so a block may leave at any time after the answer. The answer marks
    /// no block as used: queries keep no block alive.
    #[must_use]
    pub fn may_have(&self, hashes: &[BlockHash]) -> Vec<bool> {
        let mut there = vec![false; hashes.len()];
        self.own.index.find_each_now(hashes, |at, found| {
            there[at] = found.is_some();
            true
        });
        there
    }

    /// As [`Inspector::may_have`], with what the descriptors say of the blocks.
    #[must_use]
    pub fn look_at(&self, hashes: &[BlockHash]) -> Vec<Option<Seen>> {
        let region = &self.own.region;
        let mut seen = vec![None; hashes.len()];
        region.refresh_chunks();
        self.own.index.find_each_now(hashes, |at, found| {
            seen[at] = found.map(|(block, descriptor)| Seen {
                namespace: NamespaceId(descriptor.namespace()),
                length: descriptor.extent().0,
                encoding: descriptor.encoding(),
                stored: descriptor.stamp as u32,
                host: region
                    .read_chunk(region.layout.chunk_of(block))
                    .and_then(|line| u8::try_from(line.owner.checked_sub(1)?).ok()),
            });
            true
        });
        seen
    }

    /// As [`crate::Pool::follow`], without joining.
    ///
    /// # Errors
    /// As for [`crate::Pool::follow`].
    pub fn follow(&self, follower: &mut Follower) -> Result<Followed, PoolError> {
        self.own.log.read_log(follower)
    }

    /// Walks chunks, descriptors, free lists and index of all hosts, and with `payloads` verifies
    /// every payload.
    #[must_use]
    pub fn check(&self, payloads: bool) -> CheckReport {
        let mut report = self.walk(&|_| payloads);
        let start = self.own.region.area.now();
        let mut looks = 1;
        while !report.is_clean() && self.somebody_lives() {
            if looks >= LOOKS_MIN && self.own.region.area.now().saturating_sub(start) > PATIENCE {
                break;
            }
            self.own.region.area.pause(u32::MAX);
            let odd: BTreeSet<String> = report.damage.iter().map(|finding| finding.what.clone()).collect();
            let again = self.walk(&|block| payloads && odd.contains(&format!("block {block}")));
            keep_what_stays(&mut report.leaks, &again.leaks);
            keep_what_stays(&mut report.damage, &again.damage);
            looks += 1;
        }
        report.sum_leaked_bytes();
        report
    }

    /// Whether a worker's claim lives. If a region of one host has no host memory here, no worker
    /// lives.
    fn slot_alive(&self, host: u64, slot: u32) -> Option<bool> {
        let seen = self.current(host).map(|inner| inner.region.area.slot_alive(slot));
        seen.or_else(|| self.own.region.is_coherent().then_some(false))
    }

    /// A host's memory, unless it is of another life.
    fn current(&self, host: u64) -> Option<&Member<F, HostArea>> {
        let life = self.own.region.read_host(host)?.incarnation;
        self.seen.get(&host).filter(|inner| inner.region.incarnation() == life)
    }

    /// Whether a host may have living workers.
    fn may_live(&self, host: u64) -> bool {
        let Some(line) = self.own.region.read_host(host) else { return false };
        let workers = u32::try_from(self.own.region.layout.workers_per_host).expect("validated");
        match self.slot_alive(host, 0) {
            Some(first) => first || (1..workers).any(|slot| self.slot_alive(host, slot) == Some(true)),
            None => !self.own.region.is_dead(host, line.incarnation),
        }
    }

    fn somebody_lives(&self) -> bool {
        (0..self.own.region.layout.max_hosts).any(|host| self.may_live(host))
    }

    fn walk(&self, payloads: &dyn Fn(BlockIndex) -> bool) -> CheckReport {
        let mut report = CheckReport::default();
        let own = &self.own;
        let (entries, stale) = own.index.look_at_index();
        let mut lines = Vec::new();
        // A line that another host is writing is whole at the next attempt.
        for _ in 0..3 {
            report = CheckReport::default();
            own.region.refresh_chunks();
            lines = own.check_chunk_lines(&mut report);
            if report.damage.is_empty() {
                break;
            }
        }
        for host in 0..own.region.layout.max_hosts {
            let left = self.left_workers(host);
            let (leaks, damage) = (report.leaks.len(), report.damage.len());
            if let Some(inner) = self.current(host) {
                inner.check_own(&lines, payloads, false, &mut report);
                if !left.is_empty() {
                    report.blame_the_dead(leaks, damage);
                }
            } else {
                let lives = self.may_live(host);
                let walk = Walk { listed: BTreeSet::new(), is_locked: false, payloads };
                for (chunk, line) in lines.iter().filter(|(_, line)| line.owner == host + 1) {
                    own.check_from_outside(*chunk, line, lives, &walk, &mut report);
                }
                if !lives {
                    own.check_usage_from_outside(host, &lines, &mut report);
                }
            }
            own.region.refresh_range(own.region.layout.event(host, 0), own.region.layout.event(host + 1, 0));
            own.check_events(host, &mut report);
            own.region.refresh_range(own.region.layout.opened(host, 0), own.region.layout.opened(host + 1, 0));
            own.check_opened(host, &mut report);
            report.pending.extend(left);
            report.pending.extend(self.left_chunks(host, &lines));
            report.leaks.extend(self.ownerless_chunks(host, &lines));
        }
        own.check_arenas(&mut report);
        report.memory_of_users = own.memory(|host, slot| self.slot_alive(host, slot));
        report.pinned = self.pinned();
        (report.index_entries, report.index_stale) = (entries, stale);
        report
    }

    /// Dead workers that were not recovered.
    fn left_workers(&self, host: u64) -> Vec<Finding> {
        let own = &self.own;
        let high =
            own.region.read_host(host).map_or(0, |line| line.workers_high.min(own.region.layout.workers_per_host));
        let died = (0..high).filter(|&slot| {
            own.region.fabric.refresh(&[own.region.layout.worker(host, slot)]);
            own.region.joined(host, slot) && self.slot_alive(host, slot as u32) == Some(false)
        });
        died.map(|slot| {
            let pid = own.region.fabric.load_line(own.region.layout.worker(host, slot))[1];
            finding(
                format!("worker slot {slot} of host {host}"),
                &format!("its process {pid} is dead and not recovered yet"),
                "its reservations are not free yet, and blocks that it pinned stay",
                "the next worker that attaches, or the next tick of that host; `cenote pool gc` does it now",
            )
        })
        .collect()
    }

    /// Chunks of a host that was declared dead.
    fn left_chunks(&self, host: u64, lines: &[(u64, ChunkLine)]) -> Option<Finding> {
        let life = self.own.region.read_host(host).map_or(0, |line| line.incarnation);
        let chunks = lines.iter().filter(|(_, line)| line.owner == host + 1).count();
        (chunks > 0 && self.own.region.is_dead(host, life)).then(|| {
            finding(
                format!("host {host}"),
                &format!("it is declared dead and owns {chunks} chunks"),
                "its blocks stay readable; its space takes no new blocks",
                "hosts that need space adopt it when the quarantine is over, or the host returns",
            )
        })
    }

    /// Chunks of a host that never attached.
    fn ownerless_chunks(&self, host: u64, lines: &[(u64, ChunkLine)]) -> Vec<Finding> {
        let own = lines.iter().filter(|(_, line)| line.owner == host + 1 && self.own.region.read_host(host).is_none());
        own.map(|(chunk, _)| Finding {
            bytes: self.own.region.layout.chunk_bytes,
            ..finding(
                format!("chunk {chunk}"),
                &format!("its owner, host {host}, never attached"),
                "its space is lost",
                "cenote pool gc, with that host's number",
            )
        })
        .collect()
    }

    /// Blocks pinned by workers that may live.
    fn pinned_by_the_living(&self) -> BTreeSet<BlockIndex> {
        let own = &self.own;
        let mut pinned = BTreeSet::new();
        for host in (0..own.region.layout.max_hosts).filter(|&host| self.may_live(host)) {
            let high =
                own.region.read_host(host).map_or(0, |line| line.workers_high.min(own.region.layout.workers_per_host));
            for slot in (0..high).filter(|&slot| self.slot_alive(host, slot as u32) != Some(false)) {
                own.hosts.add_pins(host, slot, &mut pinned);
            }
        }
        pinned
    }
}

/// A view of the region with a host's memory, and whether there was any on this machine.
fn view<F: Fabric>(fabric: F, options: &AttachOptions) -> Result<(Member<F, HostArea>, bool), PoolError> {
    let (found, region) = (Cell::new(false), fabric.region_file());
    let region = Region::open(fabric, options, |name, spec| {
        let there = if options.private { None } else { HostArea::view(name, spec, region.as_ref())? };
        found.set(there.is_some());
        let area = there.map_or_else(|| Ok::<_, HostError>(HostArea::open(name, spec, true)?.0), Ok)?;
        Ok(on_clock(area, options.clock))
    })?;
    Ok((Member::observe(region), found.get()))
}

fn keep_what_stays(findings: &mut Vec<Finding>, again: &[Finding]) {
    findings.retain(|finding| again.iter().any(|other| (&other.what, &other.fact) == (&finding.what, &finding.fact)));
}
