//! Page-locking with a fake device whose calls wait for the test.

use super::*;
use cenote_base::testing::{ManualTime, until};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Waits until the condition holds.
fn holds(what: &str, mut so: impl FnMut() -> bool) {
    until(what, || so().then_some(()));
}

const START: usize = 4096;
const PIECE: usize = 64;

#[derive(Default)]
struct State {
    touched: Vec<usize>,
    locked: Vec<(usize, usize)>,
    /// Calls of `lock`, refused ones too.
    tried: usize,
}

/// A device. With a gate, each call of `lock` waits for a word from the test.
#[derive(Clone, Default)]
struct Fake {
    state: Arc<Mutex<State>>,
    gate: Option<Arc<Mutex<Receiver<()>>>>,
    refuses_at: Option<usize>,
}

impl Fake {
    fn gated() -> (Self, Sender<()>) {
        let (sender, receiver) = channel();
        (Self { gate: Some(Arc::new(Mutex::new(receiver))), ..Self::default() }, sender)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl PageLock for Fake {
    fn touch(&self, address: usize, _: usize) {
        self.state().touched.push(address);
    }

    fn lock(&self, address: usize, bytes: usize) -> Result<(), String> {
        self.state().tried += 1;
        if let Some(gate) = &self.gate {
            // An error: the test has ended its side, and permits everything.
            let _ = gate.lock().unwrap().recv();
        }
        let mut state = self.state();
        assert!(state.touched.contains(&address), "touched before it is locked");
        if self.refuses_at == Some(address) {
            return Err("no more pages".to_owned());
        }
        assert!(state.locked.iter().all(|&(other, _)| other != address), "locked twice");
        state.locked.push((address, bytes));
        Ok(())
    }

    fn unlock(&self, address: usize) {
        let mut state = self.state();
        let at = state.locked.iter().position(|&(other, _)| other == address).expect("it was locked");
        state.locked.remove(at);
    }
}

fn start(fake: &Fake, bytes: usize, threads: usize) -> (Locking, Arc<Mutex<Vec<Progress>>>) {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&reports);
    let report = Box::new(move |progress: &Progress| own.lock().unwrap().push(progress.clone()));
    (Locking::start(Box::new(fake.clone()), (START, bytes), PIECE, threads, report), reports)
}

fn is_stopped(locking: &Locking) -> bool {
    locking.stop(ManualTime::start().clock(), Duration::ZERO)
}

fn stop(locking: &Locking) {
    holds("the threads have ended", || is_stopped(locking));
}

#[test]
fn pieces_are_usable_one_after_the_other_as_they_are_locked() {
    let (fake, gate) = Fake::gated();
    let (locking, reports) = start(&fake, 3 * PIECE + 10, 3);
    holds("all pieces are touched", || fake.state().touched.len() == 4);
    assert!(!locking.is_locked(START, 1));
    gate.send(()).unwrap();
    holds("the first piece is locked", || locking.is_locked(START, PIECE));
    assert!(!locking.is_locked(START + PIECE - 8, 16), "a block across a border needs both pieces");
    gate.send(()).unwrap();
    holds("the second piece is locked", || locking.is_locked(START + PIECE - 8, 16));
    assert!(!locking.is_locked(START - 8, 16), "bytes before the region");
    drop(gate);
    holds("all is locked", || locking.is_locked(START, 3 * PIECE + 10));
    assert!(!locking.is_locked(START, 3 * PIECE + 11), "bytes behind the region");
    assert_eq!((locking.until_border(START), locking.until_border(START + PIECE - 8)), (PIECE, 8));
    stop(&locking);
    let wanted = [PIECE, 2 * PIECE, 3 * PIECE, 3 * PIECE + 10];
    assert_eq!(reports.lock().unwrap().iter().map(|report| report.locked).collect::<Vec<_>>(), wanted);
    let pieces = [0, 1, 2].map(|number| (START + number * PIECE, PIECE));
    assert_eq!(fake.state().locked, [&pieces[..], &[(START + 3 * PIECE, 10)]].concat());
    let other = locking.clone();
    drop(locking);
    assert_eq!(fake.state().locked.len(), 4, "another user is left");
    drop(other);
    holds("all is unlocked", || fake.state().locked.is_empty());
}

#[test]
fn a_refused_piece_ends_the_locking_and_the_pieces_before_it_stay_usable() {
    for threads in [1, 4] {
        let fake = Fake { refuses_at: Some(START + 2 * PIECE), ..Fake::default() };
        let (locking, reports) = start(&fake, 100 * PIECE, threads);
        holds("a refusal", || locking.progress().refused.is_some());
        stop(&locking);
        assert_eq!(fake.state().tried, 3, "no later piece is tried");
        assert!(locking.is_locked(START, 2 * PIECE));
        assert!(!locking.is_locked(START + 2 * PIECE, 1));
        let last = reports.lock().unwrap().last().cloned();
        let refused = Some("no more pages".to_owned());
        assert_eq!(last, Some(Progress { locked: 2 * PIECE, bytes: 100 * PIECE, refused }));
        drop(locking);
        holds("all is unlocked", || fake.state().locked.is_empty());
    }
}

#[test]
fn a_stop_waits_for_the_piece_under_way_and_begins_no_other() {
    let (fake, gate) = Fake::gated();
    let (locking, _) = start(&fake, 50 * PIECE, 2);
    holds("a piece is under way", || fake.state().tried == 1);
    assert!(!is_stopped(&locking), "it is still under way");
    gate.send(()).unwrap();
    stop(&locking);
    assert_eq!((fake.state().tried, locking.progress().locked), (1, PIECE));
    drop(locking);
    holds("all is unlocked", || fake.state().locked.is_empty());
}

#[test]
fn a_region_that_is_dropped_in_the_middle_is_unlocked_whole() {
    let (fake, gate) = Fake::gated();
    let (locking, _) = start(&fake, 50 * PIECE, 2);
    holds("a piece is under way", || fake.state().tried == 1);
    drop(locking);
    drop(gate);
    holds("the thread has unlocked its piece", || {
        fake.state().locked.is_empty() && Arc::strong_count(&fake.state) == 1
    });
    assert_eq!(fake.state().tried, 1);
}

#[test]
fn a_region_without_bytes_has_nothing_to_lock() {
    let fake = Fake::default();
    let (locking, reports) = start(&fake, 0, 4);
    stop(&locking);
    assert!(locking.is_locked(START, 0));
    assert_eq!((fake.state().tried, reports.lock().unwrap().len()), (0, 0));
}
