//! Where children kill themselves. Budget: three of four children are given a point, two of three of these one where a
//! lock is held, and die when they have passed it so often as was drawn, if the parent does not kill them first.

use cenote_base::prng::Prng;

/// A fault point and how often it may be passed before the death.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub name: &'static str,
    passes_max: u64,
    /// Whether whoever passes it holds a lock.
    pub critical: bool,
    /// Whether it is passed only where several hosts share a region.
    hosts: bool,
}

const fn locked(name: &'static str, passes_max: u64) -> Point {
    Point { name, passes_max, critical: true, hosts: false }
}

const fn free(name: &'static str, passes_max: u64) -> Point {
    Point { name, passes_max, critical: false, hosts: false }
}

const fn of_hosts(name: &'static str) -> Point {
    Point { name, passes_max: 1, critical: true, hosts: true }
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
    of_hosts("join.rebuilt"),
    of_hosts("host.marked"),
    // That of the membership, and the heap's.
    of_hosts("host.reborn"),
    // The heap's, and that of the chunks.
    of_hosts("chunk.adopted"),
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

/// Draws a death: a point and the pass at which it comes. `None`: this child lives until it is killed.
pub fn draw(prng: &mut Prng, several_hosts: bool) -> Option<(Point, u64)> {
    if prng.below(4) == 0 {
        return None;
    }
    let critical = prng.below(3) > 0;
    let fits = |point: &Point| point.critical == critical && (several_hosts || !point.hosts);
    let possible: Vec<Point> = POINTS.into_iter().filter(fits).collect();
    let point = possible[prng.below(possible.len() as u64) as usize];
    Some((point, 1 + prng.below(point.passes_max)))
}
