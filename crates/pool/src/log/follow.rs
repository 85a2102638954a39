//! Reads the event logs of all hosts and recovers from missing events.
//!
//! A follower knows the number of each host's next event. A number without a line is a *hole*: its
//! writer has taken the number and not written the line yet, or died. Each poll looks at the holes
//! again. An event may be lost if a hole stays empty for [`PATIENCE`], if its line was overwritten,
//! if a ring was overwritten since the last poll, or if a host logs a gap. Then the follower walks
//! all descriptors once and learns from them which blocks exist. So it misses no removal silently.

use crate::error::PoolError;
use crate::log::Log;
use crate::log::events::{Kind, Names};
use crate::log::ring::RingLine;
use crate::log::view::{BlockEvent, LoggedBlock, News, View};
use crate::region::lines::{BlockState, ChunkLine, Descriptor, EventLine, Line};
use cenote_base::{BlockHash, BlockIndex, NamespaceId};
use cenote_mem::{Fabric, HostLocal, LINE};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Lines of each ring that one poll reads beyond the last event: at most this many consecutive
/// numbers may lack their line.
const AHEAD: u64 = 16;
/// Longest time that a number may lack its line.
const PATIENCE: Duration = Duration::from_millis(100);

/// Reason for which a follower walked the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resync {
    /// It was the first poll.
    Begun,
    /// A host overwrote events before they were read: its ring is small or polls are rare.
    Overtaken,
    /// A numbered event was not written.
    Lost,
    /// A host logged that events of its own, or of a host that it declared dead, may be missing.
    Gap,
}

/// Result of one poll.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Followed {
    /// Blocks that came and left since the last poll. A block that did both is not listed.
    pub events: Vec<BlockEvent>,
    /// Set if the follower walked the descriptors. The events are right in any case.
    pub resync: Option<Resync>,
}

/// One reader's knowledge of the readable blocks. It is bound to no process: any worker of any
/// host, or an observer, can poll with it.
#[derive(Default)]
pub struct Follower {
    /// Identity of the region that it has polled.
    salt: u64,
    /// By host; empty before the first poll.
    rings: Vec<Ring>,
    view: View,
    /// Blocks with a corrupt descriptor at the last walk, and the time since when.
    unsure: BTreeMap<u64, Duration>,
    /// Time since when some chunk's line is corrupt; until it is not, all descriptors are walked
    /// again.
    torn: Option<Duration>,
}

#[derive(Default)]
struct Ring {
    next: u64,
    holes: BTreeMap<u64, Hole>,
}

struct Hole {
    since: Duration,
    /// All descriptors were walked since the hole was found.
    walked: bool,
}

impl Follower {
    /// The logged block of a hash, if it is readable.
    #[must_use]
    pub fn told(&self, namespace: NamespaceId, hash: BlockHash) -> Option<LoggedBlock> {
        self.view.told(namespace, hash)
    }

    /// All readable blocks.
    pub fn all(&self) -> impl Iterator<Item = LoggedBlock> + '_ {
        self.view.all()
    }

    /// Whether no hole is open.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.unsure.is_empty()
            && self.torn.is_none()
            && self.rings.iter().all(|ring| ring.holes.values().all(|hole| hole.walked))
    }

    fn learn(&mut self, line: &EventLine, blocks: u64) -> Option<Resync> {
        let (block, generation) = (line.block().0, line.generation());
        match line.kind() {
            Some(Kind::Stored) if block < blocks => {
                let told = LoggedBlock {
                    namespace: line.namespace(),
                    hash: line.block_hash(),
                    names: Names { name: line.names[0], parent: line.names[1] },
                    depth: line.depth(),
                };
                self.view.learn(block, generation, News::Stored(told));
            }
            Some(Kind::Removed) if block < blocks => self.view.learn(block, generation, News::Gone),
            Some(Kind::Gap) => return Some(Resync::Gap),
            // The line is forged.
            _ => {}
        }
        None
    }
}

impl<F: Fabric, H: HostLocal> Log<F, H> {
    pub(crate) fn read_log(&self, follower: &mut Follower) -> Result<Followed, PoolError> {
        if !self.region.has_events() {
            return Err(PoolError::Config(
                "the region keeps no events; `pool create --events` says how many".to_owned(),
            ));
        }
        let now = self.region.area.now();
        let resync = if follower.rings.is_empty() || follower.salt != self.region.salt {
            *follower = Follower { salt: self.region.salt, ..Follower::default() };
            // Read the ends of the rings before the walk, so that later events are read after it.
            let hosts = if self.region.is_coherent() { 1 } else { self.region.layout.max_hosts };
            for host in 0..hosts {
                let ring = self.read_ring(follower, host, now);
                follower.rings.push(ring);
            }
            Some(Resync::Begun)
        } else {
            let read = self.read_rings(follower, now);
            self.fill_holes(follower, now).or(read)
        };
        if resync.is_some() || follower.torn.is_some() {
            self.walk_blocks(follower, now);
        } else if !follower.unsure.is_empty() {
            self.look_at_unsure(follower, now);
        }
        Ok(Followed { events: follower.view.take_changes(), resync })
    }

    /// Learns all events in a host's ring, from this host's caches. Missing lines are polled again:
    /// those before the last event as holes, those after it as the next events.
    fn read_ring(&self, follower: &mut Follower, host: u64, now: Duration) -> Ring {
        let events = self.region.layout.events_per_host;
        let lines: Vec<Option<EventLine>> = (0..events).map(|position| self.line_at(host, position)).collect();
        for line in lines.iter().flatten() {
            // The caller walks all blocks after it reads whole rings.
            let _ = follower.learn(line, self.region.layout.num_descriptors());
        }
        let number = |position: u64| lines[position as usize].map_or(0, |line| line.sequence);
        let last = (0..events).map(number).max().unwrap_or(0);
        let missing = (last.saturating_sub(events) + 1..=last)
            .filter(|sequence| number((sequence - 1) % events) != *sequence)
            .map(|sequence| (sequence, Hole { since: now, walked: false }));
        Ring { next: last + 1, holes: missing.collect() }
    }

    /// Learns the events since the last poll.
    fn read_rings(&self, follower: &mut Follower, now: Duration) -> Option<Resync> {
        let ahead = AHEAD.min(self.region.layout.events_per_host);
        let mut resync = None;
        let mut open: Vec<usize> = (0..follower.rings.len()).collect();
        // If a host writes faster than this loop reads, the next poll reads the rest.
        for _ in 0..=self.region.layout.events_per_host / ahead {
            let window = |&host: &usize| {
                let next = follower.rings[host].next;
                (next..next + ahead).map(move |sequence| EventLine::place(&self.region.layout, host as u64, sequence))
            };
            let lines: Vec<u64> = open.iter().flat_map(window).collect();
            self.region.fabric.refresh(&lines);
            open.retain(|&host| {
                let before = follower.rings[host].next;
                resync = self.read_window(follower, host, ahead, now).or(resync);
                follower.rings[host].next > before
            });
            if open.is_empty() {
                break;
            }
        }
        resync
    }

    fn read_window(&self, follower: &mut Follower, host: usize, ahead: u64, now: Duration) -> Option<Resync> {
        let (events, first) = (self.region.layout.events_per_host, follower.rings[host].next);
        let lines: Vec<Option<EventLine>> =
            (first..first + ahead).map(|sequence| self.line_at(host as u64, (sequence - 1) % events)).collect();
        let number = |line: &Option<EventLine>| line.map_or(0, |line| line.sequence);
        if (first..).zip(&lines).any(|(sequence, line)| number(line) > sequence) {
            follower.rings[host] = self.read_ring(follower, host as u64, now);
            return Some(Resync::Overtaken);
        }
        let newest = lines.iter().flatten().map(|line| line.sequence).max();
        // Each position has the line of this round or of the last one. If all are older, dead writers have left
        // theirs, or a forged number has led too far ahead.
        if newest.is_some_and(|newest| newest.saturating_add(events) < first) {
            // The whole ring, because the forged line may be overwritten by now.
            let all: Vec<u64> = (0..events).map(|at| EventLine::at(&self.region.layout, host as u64, at)).collect();
            self.region.fabric.refresh(&all);
            let ring = self.read_ring(follower, host as u64, now);
            let is_back = ring.next < first;
            follower.rings[host] = ring;
            return is_back.then_some(Resync::Overtaken);
        }
        let last = (first..).zip(&lines).filter(|(sequence, line)| number(line) == *sequence).last()?.0;
        let mut resync = None;
        for (sequence, line) in (first..=last).zip(lines) {
            match line.filter(|line| line.sequence == sequence) {
                Some(line) => resync = follower.learn(&line, self.region.layout.num_descriptors()).or(resync),
                None => drop(follower.rings[host].holes.insert(sequence, Hole { since: now, walked: false })),
            }
        }
        follower.rings[host].next = last + 1;
        resync
    }

    /// Polls the numbers that had no line.
    fn fill_holes(&self, follower: &mut Follower, now: Duration) -> Option<Resync> {
        let all = |ring: (usize, &Ring)| {
            let host = ring.0 as u64;
            ring.1.holes.keys().map(move |&sequence| (host, sequence)).collect::<Vec<_>>()
        };
        let holes: Vec<(u64, u64)> = follower.rings.iter().enumerate().flat_map(all).collect();
        if holes.is_empty() {
            return None;
        }
        let lines: Vec<u64> =
            holes.iter().map(|&(host, sequence)| EventLine::place(&self.region.layout, host, sequence)).collect();
        self.region.fabric.refresh(&lines);
        let mut resync = None;
        for (host, sequence) in holes {
            let line = self.line_at::<EventLine>(host, (sequence - 1) % self.region.layout.events_per_host);
            let number = line.map_or(0, |line| line.sequence);
            let holes = &mut follower.rings[host as usize].holes;
            if number >= sequence {
                let was_walked = holes.remove(&sequence).is_none_or(|hole| hole.walked);
                match line.filter(|_| number == sequence) {
                    Some(line) => resync = follower.learn(&line, self.region.layout.num_descriptors()).or(resync),
                    None if !was_walked => resync = Some(Resync::Overtaken),
                    None => {}
                }
            } else if let Some(hole) = holes.get_mut(&sequence).filter(|hole| !hole.walked)
                && now.saturating_sub(hole.since) > PATIENCE
            {
                hole.walked = true;
                resync = Some(Resync::Lost);
            }
        }
        resync
    }

    /// Learns from all descriptors which blocks exist and which do not.
    fn walk_blocks(&self, follower: &mut Follower, now: Duration) {
        follower.unsure.clear();
        self.region.refresh_chunks();
        let mut all_hold = true;
        // Slots that were walked, by chunk; `None`: the chunk's line is corrupt.
        let mut walked = vec![None; self.region.layout.num_chunks as usize];
        for chunk in 0..self.region.layout.num_chunks {
            let Some(slots) = self.chunk_slots(chunk) else {
                all_hold = false;
                continue;
            };
            let first = chunk * self.region.layout.descriptors_per_chunk;
            walked[chunk as usize] = Some(slots);
            if slots > 0 {
                self.region.refresh_descriptors(first..first + slots);
            }
            for block in first..first + slots {
                self.look_at(follower, block, now);
            }
        }
        for block in follower.view.there() {
            let (chunk, slot) =
                (block / self.region.layout.descriptors_per_chunk, block % self.region.layout.descriptors_per_chunk);
            // The event's writer had claimed the chunk before, so the chunk was released since, and
            // the block is gone.
            if walked[chunk as usize].is_some_and(|slots| slot >= slots)
                && let Some(generation) = follower.view.generation(block)
            {
                follower.view.learn(block, generation, News::Gone);
            }
        }
        // A line that stays corrupt for this long belongs to a dead host; survivors log a gap for
        // those.
        let since = follower.torn.unwrap_or(now);
        follower.torn = (!all_hold && now.saturating_sub(since) <= PATIENCE).then_some(since);
    }

    /// Number of slots of a chunk, from this host's caches; `None`: the line is corrupt.
    fn chunk_slots(&self, chunk: u64) -> Option<u64> {
        if let Some(line) = self.region.read_chunk(chunk) {
            return Some(self.region.layout.slots(line.slot_bytes));
        }
        let at = self.region.layout.chunk(chunk);
        let words = self.region.fabric.load_line(at);
        (words == [0; 8] || ChunkLine::open(words, at, self.region.salt).is_some()).then_some(0)
    }

    /// Learns a block's state from its descriptor, in this host's caches. A corrupt descriptor may
    /// be in the middle of a write.
    fn look_at(&self, follower: &mut Follower, block: u64, now: Duration) {
        let news = match self.region.read_descriptor(BlockIndex(block)) {
            Some(descriptor) => match descriptor.block_state() {
                Some(BlockState::Ready) => self.told_by(block, &descriptor).map(News::Stored),
                Some(BlockState::Evicting) => self.told_by(block, &descriptor).map(News::Leaving),
                _ => Some(News::Gone),
            }
            .map(|news| (descriptor.generation(), news)),
            None if self.region.fabric.load_line(self.region.layout.descriptor(BlockIndex(block))) == [0; 8] => return,
            None => None,
        };
        if let Some((generation, news)) = news {
            follower.unsure.remove(&block);
            follower.view.learn(block, generation, news);
        } else {
            follower.unsure.entry(block).or_insert(now);
        }
    }

    /// The block that a descriptor describes; `None`: the descriptor has changed since. Names are
    /// written before the descriptor and stay until the next one, so they belong to it if it is the
    /// same before and after reading them.
    fn told_by(&self, block: u64, descriptor: &Descriptor) -> Option<LoggedBlock> {
        let block = BlockIndex(block);
        self.region.fabric.refresh(&[self.region.layout.names(block) / LINE * LINE]);
        let names = self.names_of(block);
        let state = self.region.fresh_line(self.region.layout.descriptor(block))[0];
        (state == descriptor.state).then(|| LoggedBlock {
            namespace: NamespaceId(descriptor.namespace()),
            hash: descriptor.block_hash(),
            names,
            depth: descriptor.depth().min(0xffff) as u16,
        })
    }

    /// Polls the descriptors that were corrupt. A descriptor that stays corrupt is no readable
    /// block.
    fn look_at_unsure(&self, follower: &mut Follower, now: Duration) {
        for (block, since) in follower.unsure.clone() {
            self.region.refresh_descriptors(block..block + 1);
            self.look_at(follower, block, now);
            if now.saturating_sub(since) > PATIENCE && follower.unsure.remove(&block).is_some() {
                follower.view.hide(block);
            }
        }
    }
}
