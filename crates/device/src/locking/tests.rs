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

fn start(fake: &Fake, bytes: usize, threads: usize) -> Locking {
    Locking::start(Box::new(fake.clone()), (START, bytes), PIECE, threads, Vec::new())
}

fn ends(locking: &Locking) -> bool {
    locking.end(ManualTime::start().clock(), Duration::ZERO)
}

fn end(locking: &Locking) {
    holds("the threads have ended", || ends(locking));
}

fn wait(locking: &Locking) {
    assert!(locking.wait(ManualTime::start().clock(), Duration::MAX));
}

#[test]
fn pieces_are_usable_one_after_the_other_as_they_are_locked() {
    let (fake, gate) = Fake::gated();
    let locking = start(&fake, 3 * PIECE + 10, 3);
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
    wait(&locking);
    assert_eq!(locking.progress().locked, 3 * PIECE + 10);
    let pieces = [0, 1, 2].map(|number| (START + number * PIECE, PIECE));
    assert_eq!(fake.state().locked, [&pieces[..], &[(START + 3 * PIECE, 10)]].concat());
    end(&locking);
    assert!(fake.state().locked.is_empty() && !locking.is_locked(START, 1));
}

#[test]
fn a_refused_piece_ends_the_locking_and_the_pieces_before_it_stay_usable() {
    for threads in [1, 4] {
        let fake = Fake { refuses_at: Some(START + 2 * PIECE), ..Fake::default() };
        let locking = start(&fake, 100 * PIECE, threads);
        holds("a refusal", || locking.progress().refused.is_some());
        wait(&locking);
        assert_eq!(fake.state().tried, 3, "no later piece is tried");
        assert!(locking.is_locked(START, 2 * PIECE));
        assert!(!locking.is_locked(START + 2 * PIECE, 1));
        let refused = Some("no more pages".to_owned());
        assert_eq!(locking.progress(), Progress { locked: 2 * PIECE, bytes: 100 * PIECE, refused });
        end(&locking);
        assert!(fake.state().locked.is_empty());
    }
}

#[test]
fn an_end_waits_for_the_piece_under_way_and_begins_no_other() {
    let (fake, gate) = Fake::gated();
    let locking = start(&fake, 50 * PIECE, 2);
    holds("a piece is under way", || fake.state().tried == 1);
    assert!(!ends(&locking), "it is still under way");
    gate.send(()).unwrap();
    end(&locking);
    assert_eq!(fake.state().tried, 1);
    assert!(fake.state().locked.is_empty());
}

#[test]
fn a_region_that_is_dropped_in_the_middle_is_unlocked_whole() {
    let (fake, gate) = Fake::gated();
    let locking = start(&fake, 50 * PIECE, 2);
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
    let locking = start(&fake, 0, 4);
    wait(&locking);
    assert!(locking.is_locked(START, 0));
    assert_eq!(fake.state().tried, 0);
}

#[test]
fn pages_are_locked_when_another_locking_of_them_has_ended() {
    let (fake, before) = (Fake::default(), Ending::default());
    let start = || Locking::start(Box::new(fake.clone()), (START, 4 * PIECE), PIECE, 2, vec![before.clone()]);
    // One that ends meanwhile has locked nothing, and leaves the other one to be waited for.
    let locking = start();
    holds("all pieces are touched", || fake.state().touched.len() == 4);
    end(&locking);
    assert_eq!((fake.state().tried, locking.endings().len()), (0, 1));
    drop(locking);

    let locking = start();
    holds("all pieces are touched", || fake.state().touched.len() == 8);
    assert_eq!((fake.state().tried, locking.endings().len()), (0, 2));
    before.tell();
    wait(&locking);
    assert!(locking.is_locked(START, 4 * PIECE));
    end(&locking);
    assert!(locking.endings().is_empty() && fake.state().locked.is_empty());
}

#[test]
fn pages_are_left_alone_while_a_mover_takes_its_memory() {
    let (fake, pause) = (Fake::default(), Pause::begin());
    let locking = start(&fake, 50 * PIECE, 2);
    end(&locking);
    assert!(fake.state().touched.is_empty(), "threads that wait end at a stop");
    let locking = start(&fake, 50 * PIECE, 2);
    assert!(fake.state().touched.is_empty());
    drop(pause);
    wait(&locking);
    assert!(locking.is_locked(START, 50 * PIECE));
    end(&locking);
}
