//! Deaths of torture children at fault points.
//!
//! Budget: three of four children are given a point, two of three of these a point at which a lock
//! is held. A child dies at a drawn pass of its point, if the parent does not kill it first.

use cenote_base::fault::{Plan, Point};
use cenote_base::prng::Prng;

/// A fault point and the passes until a death at it.
#[derive(Clone, Copy, Debug)]
struct Spot {
    point: Point,
    passes_max: u64,
    /// Whether a lock is held at it.
    critical: bool,
    when: When,
}

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

const fn locked(point: Point, passes_max: u64) -> Spot {
    Spot { point, passes_max, critical: true, when: When::Always }
}

const fn free(point: Point, passes_max: u64) -> Spot {
    Spot { point, passes_max, critical: false, when: When::Always }
}

const fn of_hosts(point: Point, when: When) -> Spot {
    Spot { point, passes_max: 1, critical: true, when }
}

/// The points, by the locks that are held at them.
const SPOTS: [Spot; 22] = [
    // The heap's lock and the chunks'.
    locked(Point::ChunkClaimed, 2),
    of_hosts(Point::ChunkAdopted, When::HostAway),
    // A shard's lock.
    locked(Point::IndexCounted, 300),
    // A shard's lock and the heap's.
    locked(Point::IndexUnlinked, 150),
    // The heap's lock.
    locked(Point::EvictMarked, 20),
    locked(Point::EvictUnlinked, 150),
    locked(Point::EvictFreed, 150),
    // The tables' lock.
    locked(Point::ObjectNamed, 10),
    // A user lock.
    locked(Point::TortureIncrement, 40),
    // The membership's lock.
    locked(Point::RecoverScanned, 2),
    locked(Point::RecoverFreed, 2),
    locked(Point::JoinRegistered, 1),
    of_hosts(Point::JoinRebuilt, When::HostReturns),
    of_hosts(Point::HostMarked, When::HostAway),
    // The membership's lock and the heap's.
    of_hosts(Point::HostReborn, When::HostReturns),
    // No lock.
    free(Point::PublishReserved, 300),
    free(Point::PublishPayload, 300),
    free(Point::PublishReady, 300),
    free(Point::PublishIndexed, 300),
    free(Point::ObjectWritten, 10),
    free(Point::ObjectEntered, 10),
    free(Point::ReadCopied, 300),
];

/// Whether a lock is held at a point.
pub fn is_critical(point: Point) -> bool {
    SPOTS.iter().any(|spot| spot.point == point && spot.critical)
}

/// Draws a death. `None`: this child lives until it is killed.
pub fn draw(prng: &mut Prng, now: When) -> Option<Plan> {
    if prng.below(4) == 0 {
        return None;
    }
    let critical = prng.below(3) > 0;
    // Half of these deaths are at the points that only this situation passes, because it is rare.
    let when = if critical && prng.below(2) == 0 { now } else { When::Always };
    let fits = |spot: &Spot| spot.critical == critical && spot.when == when;
    let possible: Vec<Spot> = SPOTS.into_iter().filter(fits).collect();
    let spot = possible[prng.below(possible.len() as u64) as usize];
    Some(Plan { point: spot.point, pass: 1 + prng.below(spot.passes_max) })
}
