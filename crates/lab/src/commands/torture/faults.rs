//! Deaths and stops of torture children at fault points.
//!
//! Budget: three of four children are given a point, two of three of these a point at which a lock
//! is held. A child dies at a drawn pass of its point, if the parent does not kill it first; one of
//! three stops there instead.

use cenote_base::fault::{Plan, Point};
use cenote_base::prng::Prng;

/// What happens while a child lives, as far as it decides which points are passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Nothing but the usual.
    Always,
    /// Its host comes back after all of its children were killed.
    HostReturns,
    /// Another host stays away and is declared dead.
    HostAway,
}

/// When a child can die at a fault point.
#[derive(Clone, Copy, Debug)]
struct Spot {
    passes_max: u64,
    /// Whether a lock is held at the point.
    critical: bool,
    when: When,
}

const fn locked(passes_max: u64) -> Option<Spot> {
    Some(Spot { passes_max, critical: true, when: When::Always })
}

const fn free(passes_max: u64) -> Option<Spot> {
    Some(Spot { passes_max, critical: false, when: When::Always })
}

const fn of_hosts(when: When) -> Option<Spot> {
    Some(Spot { passes_max: 1, critical: true, when })
}

/// `None`: no child passes the point, or none often enough.
const fn spot(point: Point) -> Option<Spot> {
    match point {
        // The heap's lock.
        Point::SlotTaken => locked(300),
        // The locks of the heap and of the chunks.
        Point::ChunkAdopted => of_hosts(When::HostAway),
        Point::ChunkClaimed | Point::ChunkFound | Point::ChunkNamed => locked(2),
        // The same locks; passed where chunks move between hosts.
        Point::ChunkMoved | Point::ChunkOffered => locked(8),
        // A shard's lock.
        Point::IndexCounted => locked(300),
        // Any lock between hosts.
        Point::LockEntered => locked(300),
        // The locks of a shard and of the heap.
        Point::IndexUnlinked => locked(150),
        // The heap's lock.
        Point::EvictMarked => locked(20),
        Point::EvictUnlinked | Point::EvictFreed => locked(150),
        // The tables' lock.
        Point::ObjectNamed | Point::TableFound | Point::TableNamed => locked(10),
        // A user lock.
        Point::TortureIncrement | Point::UserLocked => locked(40),
        // The membership's lock.
        Point::JoinRebuilt => of_hosts(When::HostReturns),
        Point::JoinRegistered => locked(1),
        Point::RecoverFreed | Point::RecoverScanned => locked(2),
        Point::HostMarked => of_hosts(When::HostAway),
        // The locks of the membership and of the heap.
        Point::HostReborn => of_hosts(When::HostReturns),
        Point::EventNumbered
        | Point::EventTold
        | Point::PublishCopied
        | Point::PublishIndexed
        | Point::PublishPayload
        | Point::PublishReady
        | Point::PublishReserved
        | Point::ReadCopied
        | Point::UsageStored => free(300),
        Point::ObjectEntered | Point::ObjectWritten => free(10),
        // Passed once per region or per namespace of a region.
        Point::FormatCleared | Point::FormatWritten | Point::NamespaceNamed | Point::NamespaceReclaimed => None,
        // Passed only where the region is shared by several hosts.
        Point::LockLeft | Point::ReadUnseen => None,
        // No child swaps, repacks, or allocates memory and locks of its own.
        Point::LockGiven
        | Point::LockTakenBack
        | Point::MemoryAllocated
        | Point::MemoryCounted
        | Point::MemoryDescribed
        | Point::MemoryFreed
        | Point::MemoryNamed
        | Point::RepackEmptied
        | Point::RepackReserved
        | Point::SwapReserved
        | Point::SwapWritten => None,
        // Host memory is tested in `mem`, engines in theirs.
        Point::EngineBlockSaved
        | Point::EngineHandOver
        | Point::EngineStep
        | Point::HostAreaAllocated
        | Point::HostAreaEmptied
        | Point::HostAreaHeader
        | Point::HostAreaSweeping
        | Point::LoadLayer
        | Point::SavePage => None,
    }
}

/// Whether a lock is held at a point.
pub fn is_critical(point: Point) -> bool {
    spot(point).is_some_and(|spot| spot.critical)
}

/// What happens to a child, and where.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    pub plan: Plan,
    /// It stops until its parent continues it, and dies later.
    pub stops: bool,
}

/// Draws a fate. `None`: this child runs until it is killed.
pub fn draw(prng: &mut Prng, now: When) -> Option<Fate> {
    if prng.below(4) == 0 {
        return None;
    }
    let critical = prng.below(3) > 0;
    // Half of these deaths are at the points that only this situation passes, because it is rare.
    let when = if critical && prng.below(2) == 0 { now } else { When::Always };
    let spots = Point::ALL.iter().filter_map(|&point| Some((point, spot(point)?)));
    let possible: Vec<_> = spots.filter(|(_, spot)| spot.critical == critical && spot.when == when).collect();
    let (point, spot) = possible[prng.below(possible.len() as u64) as usize];
    let plan = Plan { point, pass: 1 + prng.below(spot.passes_max) };
    Some(Fate { plan, stops: prng.below(3) == 0 })
}
