//! Objects that change hands: a caller replaces what it has read, and nothing newer.

use crate::support::shared::Shared;
use cenote_mem::Flush;
use cenote_pool::Over;

fn flushes() -> impl Iterator<Item = Flush> {
    [Flush::None].into_iter().chain(Flush::available().first().copied())
}

#[test]
fn a_root_stands_for_one_publication() {
    for flush in flushes() {
        let region = Shared::for_flush("root", flush);
        let pool = region.attach_host(0);
        let other = region.attach_host(u8::from(flush != Flush::None));
        assert!(other.get_root("key").unwrap().is_none());
        let first = pool.put_object_over("key", b"one", Over::Nothing).unwrap().expect("there was none");
        assert_eq!(pool.put_object_over("key", b"two", Over::Nothing).unwrap(), None);
        let (root, bytes) = other.get_root("key").unwrap().expect("it is there");
        assert_eq!((root, &*bytes), (first, &b"one"[..]));
        assert!(pool.holds(&root) && other.holds(&root));
        let second = other.put_object_over("key", b"two", Over::This(&root)).unwrap().expect("it had not changed");
        assert!(!pool.holds(&root) && pool.holds(&second), "{flush:?}");
        assert_eq!(pool.put_object_over("key", b"three", Over::This(&root)).unwrap(), None, "an old root");
        assert!(!pool.destroy_root("key", &root).unwrap());
        assert_eq!(pool.get_object("key").unwrap().as_deref(), Some(&b"two"[..]));
        assert!(pool.destroy_root("key", &second).unwrap());
        assert!(!other.holds(&second) && other.get_root("key").unwrap().is_none());
        // The same bytes again are another publication.
        let third = pool.put_object_over("key", b"two", Over::Any).unwrap().expect("any state");
        assert!(third != second && !other.holds(&second) && other.holds(&third));
        drop((pool, other));
        let pool = region.attach_host(0);
        pool.tick();
        assert!(pool.check(true).unwrap().is_clean());
    }
}

/// Workers count up in one object. Each step replaces what it has read, so none is lost.
#[test]
fn one_of_several_replacements_wins() {
    const STEPS: u64 = 50;
    for flush in flushes() {
        let region = Shared::for_flush("race", flush);
        region.attach_host(0).put_object("count", &0_u64.to_le_bytes()).unwrap();
        std::thread::scope(|scope| {
            for worker in 0..3_u8 {
                let host = if flush == Flush::None { 0 } else { worker % 2 };
                let region = &region;
                scope.spawn(move || {
                    let pool = region.attach_host(host);
                    let mut done = 0;
                    while done < STEPS {
                        let Some((root, bytes)) = pool.get_root("count").unwrap() else { continue };
                        let next = u64::from_le_bytes(bytes.try_into().unwrap()) + 1;
                        let put = pool.put_object_over("count", &next.to_le_bytes(), Over::This(&root)).unwrap();
                        done += u64::from(put.is_some());
                    }
                });
            }
        });
        let pool = region.attach_host(0);
        assert_eq!(pool.get_object("count").unwrap().unwrap(), (3 * STEPS).to_le_bytes(), "{flush:?}");
        pool.tick();
        assert!(pool.check(true).unwrap().is_clean());
    }
}

/// Memory goes back only if it is still as it was listed.
#[test]
fn pieces_are_freed_once_and_only_their_makers() {
    let region = Shared::for_flush("pieces", Flush::None);
    let (pool, other) = (region.attach_host(0), region.attach_host(0));
    let [small, large] = [100, 50_000].map(|bytes| pool.allocate(bytes).unwrap());
    let theirs = other.allocate(200).unwrap();
    let mut pieces = pool.memory_of(&[pool.maker()]);
    pieces.sort_unstable();
    let mut offsets: Vec<u64> = pieces.iter().map(|piece| piece.offset).collect();
    offsets.sort_unstable();
    let mut wanted = vec![small, large];
    wanted.sort_unstable();
    assert_eq!(offsets, wanted);
    assert_eq!((pool.is_alive(pool.maker()), pool.is_alive(other.maker())), (Some(true), Some(true)));
    assert_eq!(other.free_pieces(&pieces).unwrap().pieces, 2);
    // Another worker has the place now.
    let again = other.allocate(50_000).unwrap();
    assert_eq!(pool.free_pieces(&pieces).unwrap().pieces, 0, "{again:#x}");
    assert!(other.allocated_bytes(again).is_ok() && other.allocated_bytes(theirs).is_ok());
    let maker = other.maker();
    drop(other);
    pool.tick();
    assert_eq!(pool.is_alive(maker), Some(false));
    assert!(matches!(pool.dead_memory(Some(pool.maker())), Err(cenote_pool::PoolError::Config(_))), "it lives");
    let mut dead: Vec<u64> = pool.dead_memory(None).unwrap().iter().map(|piece| piece.offset).collect();
    dead.sort_unstable();
    assert!(dead.is_sorted() && dead.len() == 2 && dead.contains(&again) && dead.contains(&theirs), "{dead:?}");
    assert_eq!(pool.free_memory_of(Some(maker), |offset| offset == again).unwrap().pieces, 1);
    assert!(pool.allocated_bytes(again).is_ok() && pool.allocated_bytes(theirs).is_err());
}
