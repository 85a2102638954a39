//! Findings of the fuzzer, each with its cause.

use super::change::{Change, superblock_words};
use super::format::{Area, LINE, check_word, superblock_check};
use super::world::{Flushing, Kind, Run, World, attach};
use cenote_base::HostId;
use cenote_pool::Counter;
use std::time::Duration;

/// An object row that names a slot which its chunk does not have. Freeing the object put the slot
/// into the free list, and the next object was written after the chunk: over other blocks, or past
/// the region's end, where the fabric panics.
#[test]
fn an_object_outside_of_its_chunks_slots_is_not_reused() {
    let world = World::new(Kind::OneHost, Flushing::Real).expect("every processor can be one host");
    world.restore(1);
    let mut run = Run::new(&world);
    run.attach_named(0, true);
    let map = *run.region.map();
    let (rows, _) = map.area(Area::Objects);
    let (chunks, _) = map.area(Area::Chunks);
    let per_chunk = map.descriptors / map.chunks;
    let named = |row: &u64| run.region.image()[(*row / LINE) as usize][2] > 0;
    let rows: Vec<u64> = (0..1024).map(|row| rows + row * 2 * LINE).filter(named).collect();
    assert_eq!(rows.len(), 3, "the world has three objects");
    for row in rows {
        let named = run.region.image()[(row / LINE) as usize];
        let chunk = (named[2] - 1) / per_chunk;
        assert!(named[2] > 0 && run.region.image()[(chunks / LINE + chunk) as usize][2] > 1 << 10, "a slot too many");
        // The last descriptor of the object's chunk.
        run.region.change(&Change::rename(row, (chunk + 1) * per_chunk - 1));
    }
    (0..300).for_each(|prompt| run.publish(0, 0, prompt, 0));
    for (key, length) in [(0, 3000), (1, 3000), (2, 9000)] {
        (2..5).for_each(|version| run.put(0, key, length, version));
    }
    let pool = run.pool(0).expect("it attached");
    assert!(pool.check(true).expect("one host").damage.is_empty(), "an object was written over other blocks");
    run.finish(true);
}

/// A living host that holds a lock and never releases it. Every eviction waited for its block's
/// shard in turn, half a second each, with the heap locked: minutes for one publication.
#[test]
fn many_evictions_wait_for_stuck_shards_only_once() {
    let Some(world) = World::new(Kind::Bakery, Flushing::Real) else { return };
    world.restore(0);
    let mut run = Run::new(&world);
    (0..3).for_each(|host| run.attach_named(host, true));
    let map = *run.region.map();
    let (locks, _) = map.area(Area::Locks);
    for shard in 0..64 {
        // Host 2 holds it: a ticket that is lower than any later one, of a life that no host
        // declared dead.
        run.region.change(&Change::field(locks + (2 * 1098 + shard) * LINE, 0, 2));
    }
    let pool = run.pool(0).expect("it attached");
    run.timed_within("evict", Duration::from_secs(2), |_| pool.evict(60));
    run.timed_within("put", Duration::from_secs(30), |run| run.put(0, 3, 60_000, 1));
    drop(pool);
    // It releases the lock, so that the others can leave.
    world.restore(0);
}

/// A crash that left every lock taken, and another host that holds all of them: each attach waited
/// ten seconds for each lock, twelve minutes in all, with the membership locked.
#[test]
fn a_new_life_settles_all_locks_within_one_deadline() {
    let Some(world) = World::new(Kind::Bakery, Flushing::Real) else { return };
    world.restore(0);
    let mut run = Run::new(&world);
    let map = *run.region.map();
    let (locks, lines) = map.area(Area::Locks);
    for lock in 0..lines / 6 {
        run.region.change(&Change::field(locks + (lock * 3 + 1) * 2 * LINE, 0, 4));
        run.region.change(&Change::field(locks + (lock * 3 + 2) * 2 * LINE, 0, 2));
    }
    run.attach_named(1, true);
    world.restore(0);
}

/// A chunk line without an incarnation counted as one of a dead life whenever any other host was
/// dead. Chunks of living hosts were adopted, and this host's own ones again, with their slots
/// listed twice.
#[test]
fn only_chunks_of_the_dead_are_adopted() {
    let Some(world) = World::new(Kind::Bakery, Flushing::Real) else { return };
    world.restore(0);
    let mut run = Run::new(&world);
    (0..2).for_each(|host| run.attach_named(host, true));
    let (chunks, count) = run.region.map().area(Area::Chunks);
    let owners = |run: &Run| -> Vec<u64> {
        let image = run.region.image();
        (0..count).map(|chunk| image[(chunks / LINE + chunk) as usize][0]).collect()
    };
    let before = owners(&run);
    for chunk in 0..count {
        run.region.change(&Change::field(chunks + chunk * LINE, 1, 0));
    }
    let pool = run.pool(0).expect("it attached");
    pool.fence_host(HostId(2)).expect("it has attached once");
    (0..200).for_each(|prompt| run.publish(0, 2, prompt, 0));
    let after = owners(&run);
    let adopted = |owner: u64| before.iter().zip(&after).any(|(before, after)| *before == owner && *after == 1);
    assert!(adopted(3), "the dead host's chunks serve the living: {before:?}, {after:?}");
    assert!(!adopted(2), "a living host lost a chunk: {before:?}, {after:?}");
    assert_eq!(pool.counter(Counter::ChunksAdopted), before.iter().filter(|&&owner| owner == 3).count() as u64);
    assert!(pool.check(false).expect("no other lock is held").damage.is_empty());
}

/// Every descriptor says that it holds an object. `check` and `gc` walked the whole object table
/// for each of them, with the heap locked: minutes in a region of a million blocks.
#[test]
fn objects_without_names_cost_a_check_one_more_look() {
    let world = World::new(Kind::OneHost, Flushing::Real).expect("every processor can be one host");
    world.restore(1);
    let mut run = Run::new(&world);
    run.attach_named(0, true);
    let map = *run.region.map();
    let (descriptors, count) = map.area(Area::Descriptors);
    for block in 0..count {
        let at = descriptors + block * LINE;
        run.region.change(&Change::field(at, 3, 16 | (map.area(Area::Data).0 / LINE) << 24));
        run.region.change(&Change::field(at, 0, 3 | 1 << 16));
    }
    // The next holder of the heap lock trusts the descriptors.
    run.abandon_lock(0, 1);
    let pool = run.pool(0).expect("it attached");
    let report = run.timed("check", |_| pool.check(true)).expect("one host");
    assert!(report.leaks.len() > 64, "{} objects without names", report.leaks.len());
    run.finish(true);
}

/// Attaches while pins of earlier attachments keep their workers alive, each with its slot. The
/// checks took the fifth refusal for hostile bytes that keep processes out; slots are not in the
/// region at all.
#[test]
fn workers_that_live_by_their_pins_keep_their_slots() {
    let mut world = World::new(Kind::OneHost, Flushing::Real).expect("every processor can be one host");
    world.run(include_bytes!("../inputs/slots-kept-by-pins"));
}

/// A readable descriptor in a slot that counted as free. Garbage collection listed the block and
/// left it without an index entry until the next collection.
#[test]
fn gc_frees_a_readable_block_in_a_slot_that_counted_as_free() {
    let mut world = World::new(Kind::OneHost, Flushing::Real).expect("every processor can be one host");
    world.run(include_bytes!("../inputs/readable-block-in-a-free-slot"));
}

/// An object's descriptor in a slot that counted as free. Garbage collection listed the object and
/// left it without a key until the next collection.
#[test]
fn gc_frees_an_object_in_a_slot_that_counted_as_free() {
    let mut world = World::new(Kind::OneHost, Flushing::Real).expect("every processor can be one host");
    world.run(include_bytes!("../inputs/object-in-a-free-slot"));
}

/// The second implementation of the format must find in a region what the first one wrote.
#[test]
fn the_format_document_matches_the_pool() {
    for kind in [Kind::OneHost, Kind::Bakery, Kind::Plain] {
        let Some(world) = World::new(kind, Flushing::Pretended) else { continue };
        world.restore(0);
        let mut run = Run::new(&world);
        run.attach_named(0, true);
        // Its worker has a namespace open then.
        run.publish(0, 0, 0, 0);
        run.pool(0).expect("it attached").tick();
        let (map, image) = (*run.region.map(), run.region.image());
        assert_eq!(image[2][7], superblock_check(&superblock_words(&*run.region)));
        let mut found = Vec::new();
        for area in Area::ALL.into_iter().filter(|area| area.is_checked()) {
            let (start, lines) = map.area(area);
            let written = (start..start + lines * LINE).step_by(64).map(|at| (at, image[(at / LINE) as usize]));
            let written: Vec<_> = written.filter(|(_, words)| *words != [0; 8]).collect();
            // Only hosts that share space tell of it.
            let is_told = area != Area::Demands || kind == Kind::Bakery;
            assert_eq!(!written.is_empty(), is_told, "{area:?}");
            assert!(written.iter().all(|(at, words)| words[7] == check_word(words, *at, map.salt)), "{area:?}");
            found.push((area, written));
        }
        let states = |state| {
            let (_, lines) = found.iter().find(|(area, _)| *area == Area::Descriptors).expect("it is checked");
            lines.iter().filter(|(_, words)| words[0] & 0xff == state).count() as u64
        };
        let info = run.pool(0).expect("it attached").info();
        assert_eq!((info.num_chunks, info.blocks_ready, info.objects), (map.chunks, states(1), states(3)));
    }
}

/// A chunk whose line names larger slots than it has was released, and only so many of its free slots
/// left the free list as the line has. Another class took the chunk, so that one list led into the
/// other, and a slot of the smaller size served a larger payload: past its chunk, and the region.
#[test]
fn a_released_chunk_leaves_no_slot_in_a_list() {
    let mut world = World::new(Kind::OneHost, Flushing::Real).expect("every processor can be one host");
    world.run(include_bytes!("../inputs/slots-of-a-released-chunk"));
}

/// A superblock that puts the lines of demand where all bytes are ones: the ring of hits went on at the last
/// number there is, and the next one overflowed.
#[test]
fn hits_go_on_behind_any_number() {
    let world = World::new(Kind::Bakery, Flushing::Pretended).expect("pretended flushes need no instructions");
    attach(&world, include_bytes!("../inputs/hits-at-the-last-number"));
}
