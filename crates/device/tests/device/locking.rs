//! A region that is page-locked beside its loads and saves.

use crate::orders::{pairs, save};
use crate::rig::{BLOCK, BLOCKS, ENGINE, Gpu, PIECE, PIECES, Rig, Way, share};
use cenote_base::testing::{ManualTime, PATIENCE, until};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const LOCK: &str = "cuMemHostRegister";

/// Waits until no thread of a registration keeps the memory.
fn is_left(memory: &Arc<Vec<u64>>) {
    until("the memory's only owner", || (Arc::strong_count(memory) == 1).then_some(()));
}

#[test]
fn all_users_share_a_registration_and_the_last_one_ends_it() {
    let gpu = Gpu::new(3);
    let clock = ManualTime::start().clock();
    let device = gpu.open(clock);
    let memory = Arc::new(vec![0_u64; 1000]);
    let (one, other) = (share(&device, &memory, 3000, clock), share(&device, &memory, 3000, clock));
    assert!(one.wait(PATIENCE) && other.wait(PATIENCE));
    assert_eq!((gpu.locked(), gpu.calls(LOCK)), (8000, 3));
    assert_eq!(one.seen().expect("it is locked"), memory.as_ptr().addr() as u64 + (1 << 60));
    drop(one);
    assert_eq!(gpu.locked(), 8000);
    drop(other);
    assert_eq!((gpu.locked(), gpu.calls("cuMemHostUnregister")), (0, 3));
    is_left(&memory);
}

#[test]
fn a_refused_piece_leaves_the_pieces_before_it_and_no_half_of_its_own() {
    let gpu = Gpu::new(4);
    let clock = ManualTime::start().clock();
    let device = gpu.open(clock);
    let memory = Arc::new(vec![0_u64; 1000]);
    gpu.fail(LOCK, 2);
    let registered = share(&device, &memory, 2000, clock);
    assert!(registered.wait(PATIENCE));
    let at = memory.as_ptr().addr() as u64;
    assert_eq!((gpu.locked(), gpu.calls(LOCK)), (4000, 3));
    assert!(registered.is_locked(at, 4000) && !registered.is_locked(at, 4001) && !registered.is_locked(at + 4000, 8));
    let error = registered.seen().expect_err("not all is locked").to_string();
    assert_eq!(error, "4000 of 8000 bytes are page-locked: cuMemHostRegister of 2000 bytes: CUDA_ERROR_UNKNOWN (999)");
    drop(registered);
    assert_eq!(gpu.locked(), 0);
    is_left(&memory);
    // The next user tries again.
    gpu.fail(LOCK, u64::MAX);
    let registered = share(&device, &memory, 2000, clock);
    assert!(registered.wait(PATIENCE) && registered.is_locked(at, 8000));
    drop(registered);
    assert_eq!((gpu.locked(), gpu.wrong()), (0, String::new()));
}

#[test]
fn blocks_of_unlocked_pieces_are_staged_and_those_of_locked_ones_are_not() {
    let mut rig = Rig::new(Way::Partly, 7, ManualTime::start().clock());
    let blocks = pairs(BLOCKS, 7);
    save(&mut rig, &blocks);
    let direct: Vec<bool> = (0..BLOCKS).map(|number| rig.is_direct(number)).collect();
    let locked = PIECE * PIECES as usize / BLOCK as usize;
    assert!(direct.iter().enumerate().all(|(number, &direct)| direct == (number < locked)), "{direct:?}");
    // The device sums what it copies to its place; a slot's bytes are the processor's to sum.
    let saved = rig.saved.lock().unwrap();
    assert!(saved.iter().all(|(&number, sums)| number < locked || sums.is_none()));
    assert!(saved.values().any(Option::is_some));
}

#[test]
fn loads_and_saves_are_served_while_the_region_is_being_locked() {
    let mut rig = Rig::locking(Way::Scattered, 8, ManualTime::start().clock());
    until("a thread that locks", || (rig.gpu.at_gate() == 1).then_some(()));
    // The kernel was tried at start.
    let tried = rig.gpu.calls("cenote_move");
    let blocks = pairs(60, 8);
    save(&mut rig, &blocks);
    assert_eq!(rig.mover.page_locked().map(|progress| progress.locked), Some(0));
    let load = |rig: &mut Rig| {
        rig.compute(&(0..BLOCKS).map(|block| (block, 1000)).collect::<Vec<_>>());
        let load = rig.mover.load(rig.loading(&blocks), ENGINE, PATIENCE).expect("it begins");
        assert!(load.wait(Some(PATIENCE)));
        assert_eq!(load.failed(ENGINE), [0; 0]);
        assert!(blocks.iter().all(|&(block, number)| rig.holds(block, number)));
    };
    load(&mut rig);
    assert_eq!(rig.gpu.calls("cenote_move"), tried, "nothing is in its place yet");
    rig.gpu.gate(LOCK, false);
    assert!(rig.mover.wait_locked(PATIENCE));
    load(&mut rig);
    assert!(rig.gpu.calls("cenote_move") > tried && (0..BLOCKS).all(|number| rig.is_direct(number)));
    assert!(rig.mover.close(PATIENCE));
    assert_eq!((rig.gpu.locked(), rig.gpu.allocations(), rig.gpu.wrong()), (0, 0, String::new()));
}

#[test]
fn a_close_waits_for_the_piece_that_is_being_locked() {
    let rig = Rig::locking(Way::Pieces, 9, ManualTime::start().clock());
    until("a thread that locks", || (rig.gpu.at_gate() == 1).then_some(()));
    thread::scope(|scope| {
        let closed = scope.spawn(|| rig.mover.close(PATIENCE));
        assert!(!closed.is_finished());
        rig.gpu.gate(LOCK, false);
        assert!(closed.join().expect("no panic"));
    });
    assert_eq!((rig.gpu.locked(), rig.gpu.allocations(), rig.gpu.wrong()), (0, 0, String::new()));
}

#[test]
fn a_close_waits_no_longer_than_its_patience_and_the_piece_is_unlocked_later() {
    let time = ManualTime::start();
    let rig = Rig::locking(Way::Pieces, 10, time.clock());
    until("a thread that locks", || (rig.gpu.at_gate() == 1).then_some(()));
    thread::scope(|scope| {
        let closed = scope.spawn(|| rig.mover.close(PATIENCE));
        until("an end of the wait", || {
            time.advance(Duration::from_secs(6));
            closed.is_finished().then_some(())
        });
        assert!(closed.join().expect("no panic"));
    });
    rig.gpu.gate(LOCK, false);
    until("its piece is unlocked", || (rig.gpu.calls("cuMemHostUnregister") == 1).then_some(()));
    assert_eq!((rig.gpu.calls(LOCK), rig.gpu.locked(), rig.gpu.wrong()), (1, 0, String::new()));
}

#[test]
fn a_region_is_locked_beside_the_capture_of_a_graph() {
    let mut rig = Rig::locking(Way::Pages, 13, ManualTime::start().clock());
    until("a thread that locks", || (rig.gpu.at_gate() == 1).then_some(()));
    rig.gpu.capture(true);
    rig.gpu.gate(LOCK, false);
    assert!(rig.mover.wait_locked(PATIENCE));
    assert!((0..BLOCKS).all(|number| rig.is_direct(number)));
    let blocks = pairs(20, 13);
    rig.compute(&blocks);
    rig.mover.save(rig.saving(&blocks), ENGINE).expect("it is queued");
    until("saved blocks", || {
        rig.gpu.run();
        (rig.saved.lock().unwrap().len() == blocks.len()).then_some(())
    });
    rig.gpu.capture(false);
    assert!(rig.mover.close(PATIENCE));
    assert_eq!(rig.gpu.wrong(), "");
}

#[test]
fn of_two_users_that_leave_at_once_one_ends_the_registration() {
    let clock = ManualTime::start().clock();
    for seed in 0..200 {
        let gpu = Gpu::new(seed);
        let device = gpu.open(clock);
        let memory = Arc::new(vec![0_u64; 100]);
        let users: Vec<_> = (0..4).map(|_| share(&device, &memory, 1 << 30, clock)).collect();
        assert!(users[0].wait(PATIENCE));
        thread::scope(|scope| users.into_iter().for_each(|user| _ = scope.spawn(move || drop(user))));
        is_left(&memory);
        assert_eq!(gpu.locked(), 0);
    }
}

#[test]
fn a_new_user_waits_for_the_piece_that_the_last_one_left_under_way() {
    let gpu = Gpu::new(14);
    let clock = ManualTime::start().clock();
    let device = gpu.open(clock);
    let memory = Arc::new(vec![0_u64; 1000]);
    gpu.gate(LOCK, true);
    thread::scope(|scope| {
        // The test's own thread may pass the gate that it closed.
        let first = scope.spawn(|| share(&device, &memory, 2000, clock)).join().expect("no panic");
        until("a thread that locks", || (gpu.at_gate() == 1).then_some(()));
        drop(first);
        let second = scope.spawn(|| {
            let second = share(&device, &memory, 2000, clock);
            assert!(second.wait(PATIENCE));
            second.progress()
        });
        assert!(!second.is_finished());
        gpu.gate(LOCK, false);
        let progress = second.join().expect("no panic");
        assert_eq!((progress.locked, progress.refused), (8000, None));
    });
    is_left(&memory);
    assert_eq!((gpu.locked(), gpu.wrong()), (0, String::new()));
}

#[test]
fn a_new_user_waits_until_the_last_ones_pieces_are_unlocked() {
    const UNLOCK: &str = "cuMemHostUnregister";
    for has_one_between in [false, true] {
        let gpu = Gpu::new(15);
        let clock = ManualTime::start().clock();
        let device = gpu.open(clock);
        let memory = Arc::new(vec![0_u64; 1000]);
        gpu.gate(LOCK, true);
        let first = share(&device, &memory, 2000, clock);
        until("a thread that locks", || (gpu.at_gate() == 1).then_some(()));
        drop(first);
        gpu.gate(UNLOCK, true);
        gpu.gate(LOCK, false);
        until("a thread that unlocks", || (gpu.at_gate() == 1).then_some(()));
        if has_one_between {
            drop(share(&device, &memory, 2000, clock));
        }
        let last = share(&device, &memory, 2000, clock);
        assert_eq!(last.progress().locked, 0);
        gpu.gate(UNLOCK, false);
        assert!(last.wait(PATIENCE));
        assert_eq!((last.progress().locked, last.progress().refused), (8000, None));
        drop(last);
        is_left(&memory);
        assert_eq!((gpu.locked(), gpu.wrong()), (0, String::new()));
    }
}
