//! Where children kill themselves. Budget: three of four children are given a point, two of three
//! of these one where a lock is held, and die when they have passed it so often as was drawn, if
//! the parent does not kill them first.

use cenote_base::prng::Prng;

/// A fault point and how often it may be passed before the death.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub name: &'static str,
    passes_max: u64,
    /// Whether whoever passes it holds a lock.
    pub critical: bool,
    /// When it is passed.
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

const fn locked(name: &'static str, passes_max: u64) -> Point {
    Point { name, passes_max, critical: true, when: When::Always }
}

const fn free(name: &'static str, passes_max: u64) -> Point {
    Point { name, passes_max, critical: false, when: When::Always }
}

const fn of_hosts(name: &'static str, when: When) -> Point {
    Point { name, passes_max: 1, critical: true, when }
}

/// In the middle of an increment, with a user lock in hand.
pub const INCREMENT: &str = "torture.increment";

/// What stands behind a name: which lock is held there.
const POINTS: [Point; 22] = [
    // The heap's, and that of the chunks.
    locked("chunk.claimed", 2),
    // A shard's.
    locked("index.counted", 300),
    // A shard's, and the heap's.
    locked("index.unlinked", 150),
    // The heap's.
    locked("evict.marked", 20),
    locked("evict.unlinked", 150),
    locked("evict.freed", 150),
    // That of the tables.
    locked("object.named", 10),
    // A user's.
    locked(INCREMENT, 40),
    // That of the membership.
    locked("recover.scanned", 2),
    locked("recover.freed", 2),
    locked("join.registered", 1),
    of_hosts("join.rebuilt", When::HostReturns),
    of_hosts("host.marked", When::HostAway),
    // That of the membership, and the heap's.
    of_hosts("host.reborn", When::HostReturns),
    // The heap's, and that of the chunks.
    of_hosts("chunk.adopted", When::HostAway),
    free("publish.reserved", 300),
    free("publish.payload", 300),
    free("publish.ready", 300),
    free("publish.indexed", 300),
    free("object.written", 10),
    free("object.entered", 10),
    free("read.copied", 300),
];

/// The point of this name.
pub fn named(name: &str) -> Option<Point> {
    POINTS.into_iter().find(|point| point.name == name)
}

/// Draws a death: a point and the pass at which it comes. `None`: this child lives until it is
/// killed.
pub fn draw(prng: &mut Prng, now: When) -> Option<(Point, u64)> {
    if prng.below(4) == 0 {
        return None;
    }
    let critical = prng.below(3) > 0;
    // What is rare is not left to chance alone.
    let when = if critical && prng.below(2) == 0 { now } else { When::Always };
    let fits = |point: &Point| point.critical == critical && point.when == when;
    let possible: Vec<Point> = POINTS.into_iter().filter(fits).collect();
    let point = possible[prng.below(possible.len() as u64) as usize];
    Some((point, 1 + prng.below(point.passes_max)))
}
