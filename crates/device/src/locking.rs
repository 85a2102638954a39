//! Page-locks a region beside serving, in pieces.
//!
//! Nearly all of the time goes into finding and zeroing pages that were never touched
//! (docs/evidence/gpu.md). So several threads touch pieces, and pieces are locked in order as soon as
//! they are touched. Until then copies of their blocks pass through staging memory.

use cenote_base::Clock;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes that are touched between two looks for a [`Pause`].
const TOUCH_BYTES: usize = 64 << 20;

/// Largest piece: one call for hundreds of GiB fails on pages of 4 KiB, and a piece that is being locked
/// delays a stop by a second at most.
pub const PIECE_BYTES_MAX: usize = 1 << 30;

/// While a value lives, no thread of this process touches or locks further pages: the driver's calls for
/// memory are slow beside it, and a mover makes many of them.
pub(crate) struct Pause(());

/// Number of pauses.
static PAUSES: Mutex<usize> = Mutex::new(0);
static GOES_ON: Condvar = Condvar::new();

fn pauses() -> MutexGuard<'static, usize> {
    PAUSES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pause {
    pub fn begin() -> Self {
        *pauses() += 1;
        Self(())
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        *pauses() -= 1;
        GOES_ON.notify_all();
    }
}

/// Page-locking of one device.
pub trait PageLock: Send + Sync + 'static {
    /// Called in each thread before all else.
    fn enter_thread(&self) {}

    /// Faults the pages in, without changing a byte. A failure only makes [`PageLock::lock`] slower.
    fn touch(&self, address: usize, bytes: usize);

    /// Locks the pages for the device.
    ///
    /// # Errors
    /// Why they cannot be locked. Then none of them is locked, and no error of the driver is pending.
    fn lock(&self, address: usize, bytes: usize) -> Result<(), String>;

    /// Unlocks the pages that were locked at this address.
    fn unlock(&self, address: usize);
}

/// State of the locking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are locked, from the first on.
    pub locked: usize,
    /// Bytes of the region.
    pub bytes: usize,
    /// Why the rest stays unlocked, if a piece was refused.
    pub refused: Option<String>,
}

/// A region that is being page-locked. Its drop ends the locking; the last thread unlocks the region.
pub struct Locking(Arc<Shared>);

struct Shared {
    pages: Box<dyn PageLock>,
    address: usize,
    bytes: usize,
    piece: usize,
    /// Pieces that a thread has taken to touch.
    taken: AtomicUsize,
    /// Pieces that are locked: all before this one.
    locked: AtomicUsize,
    stopped: AtomicBool,
    front: Mutex<Front>,
    ended: Condvar,
    /// Other lockings of these pages: the driver would refuse them before their end.
    before: Vec<Ending>,
    ending: Ending,
}

#[derive(Default)]
struct Front {
    /// Touched pieces that are not locked.
    touched: BTreeSet<usize>,
    /// A thread is locking.
    is_locking: bool,
    threads: usize,
    refused: Option<String>,
}

impl Locking {
    /// Begins to lock `bytes` bytes from `address` in pieces of `piece` bytes, at most
    /// [`PIECE_BYTES_MAX`], with so many threads.
    ///
    /// A `piece` that is no multiple of a page would make two pieces share a page, which drivers refuse.
    /// The pages are locked after the ends of the lockings in `before`.
    #[must_use]
    pub fn start(
        pages: Box<dyn PageLock>,
        (address, bytes): (usize, usize),
        piece: usize,
        threads: usize,
        before: Vec<Ending>,
    ) -> Self {
        let shared = Arc::new(Shared {
            pages,
            address,
            bytes,
            piece: piece.clamp(1, PIECE_BYTES_MAX),
            taken: AtomicUsize::new(0),
            locked: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            front: Mutex::default(),
            ended: Condvar::new(),
            before,
            ending: Ending::default(),
        });
        let threads = threads.clamp(1, shared.count().max(1));
        shared.front().threads = threads;
        for number in 0..threads {
            let own = Arc::clone(&shared);
            let run = move || {
                own.run();
                own.end_thread(None);
            };
            if let Err(error) = thread::Builder::new().name("cenote-page-lock".to_owned()).spawn(run) {
                // One thread suffices.
                let refused = (number == 0).then(|| format!("no thread for page-locking: {error}"));
                for _ in number..threads {
                    shared.end_thread(refused.clone());
                }
                break;
            }
        }
        Self(shared)
    }

    /// True if the device can access these bytes in place, from then on until the end. False for bytes
    /// outside of the region.
    #[must_use]
    pub fn is_locked(&self, address: usize, bytes: usize) -> bool {
        let shared = &self.0;
        let end = shared.locked_bytes();
        address.checked_sub(shared.address).and_then(|at| at.checked_add(bytes)).is_some_and(|at| at <= end)
    }

    /// Bytes from this address of the region to the next border of pieces. No copy may cross a border.
    #[must_use]
    pub fn until_border(&self, address: usize) -> usize {
        let shared = &self.0;
        shared.piece - (address - shared.address) % shared.piece
    }

    /// Whether the region has several pieces.
    #[must_use]
    pub fn has_borders(&self) -> bool {
        self.0.count() > 1
    }

    /// The state now.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.0.progress()
    }

    /// Waits until all is locked, or a piece was refused. False after `timeout`.
    #[must_use]
    pub fn wait(&self, clock: Clock, timeout: Duration) -> bool {
        let shared = &self.0;
        let front = clock.after(timeout).wait_while(&shared.ended, shared.front(), |front| front.threads > 0);
        front.threads == 0
    }

    /// What has not ended of these pages' lockings: this one, and the ones before it.
    #[must_use]
    pub fn endings(&self) -> Vec<Ending> {
        let all = self.0.before.iter().chain([&self.0.ending]);
        all.filter(|ending| !ending.has_come()).cloned().collect()
    }

    /// Begins no further piece, waits for those under way, and unlocks everything. The device must not
    /// access the region any more. False: a piece is still under way after `timeout`, and its thread
    /// unlocks everything when it ends.
    #[must_use]
    pub fn end(&self, clock: Clock, timeout: Duration) -> bool {
        self.0.stop();
        let has_ended = self.wait(clock, timeout);
        if has_ended {
            self.0.unlock();
        }
        has_ended
    }
}

/// The end of a locking: all of its pieces are unlocked.
#[derive(Clone, Default)]
pub struct Ending(Arc<(Mutex<bool>, Condvar)>);

impl Ending {
    /// Whether it has come.
    #[must_use]
    pub fn has_come(&self) -> bool {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        *self.lock() = true;
        self.0.1.notify_all();
    }

    /// Waits for it, or for a `wake` after which `is_stopped` is true.
    fn wait(&self, is_stopped: impl Fn() -> bool) {
        let waited = self.0.1.wait_while(self.lock(), |has_come| !*has_come && !is_stopped());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn wake(&self) {
        // Under the lock, so that no thread is between its look and its wait.
        let _looking = self.lock();
        self.0.1.notify_all();
    }
}

impl Drop for Locking {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Shared {
    const fn count(&self) -> usize {
        self.bytes.div_ceil(self.piece)
    }

    /// Address and bytes of a piece.
    fn piece_at(&self, number: usize) -> (usize, usize) {
        let start = number * self.piece;
        (self.address + start, self.piece.min(self.bytes - start))
    }

    fn locked_bytes(&self) -> usize {
        (self.locked.load(Ordering::Acquire) * self.piece).min(self.bytes)
    }

    fn front(&self) -> MutexGuard<'_, Front> {
        self.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.before.iter().for_each(Ending::wake);
        // Under the lock, so that no thread is between its look and its wait.
        let _looking = pauses();
        GOES_ON.notify_all();
    }

    /// Waits for the end of all pauses, or for a stop.
    fn await_pauses(&self) {
        let waited = GOES_ON.wait_while(pauses(), |pauses| *pauses > 0 && !self.is_stopped());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn progress(&self) -> Progress {
        let refused = self.front().refused.clone();
        Progress { locked: self.locked_bytes(), bytes: self.bytes, refused }
    }

    fn end_thread(&self, refused: Option<String>) {
        let mut front = self.front();
        front.threads -= 1;
        front.refused = refused.or(front.refused.take());
        drop(front);
        self.ended.notify_all();
    }

    /// Unlocks the locked pieces, once. Called when no thread is left.
    fn unlock(&self) {
        for number in 0..self.locked.swap(0, Ordering::AcqRel) {
            self.pages.unlock(self.piece_at(number).0);
        }
        self.ending.tell();
    }

    /// Touches pieces until none is left, and locks those whose turn it is.
    fn run(&self) {
        self.pages.enter_thread();
        while !self.is_stopped() {
            let number = self.taken.fetch_add(1, Ordering::Relaxed);
            if number >= self.count() {
                return;
            }
            let (address, bytes) = self.piece_at(number);
            for at in (0..bytes).step_by(TOUCH_BYTES) {
                self.await_pauses();
                if self.is_stopped() {
                    return;
                }
                self.pages.touch(address + at, TOUCH_BYTES.min(bytes - at));
            }
            self.offer(number);
        }
    }

    /// Locks the pieces whose turn it is after this one was touched, unless another thread does.
    fn offer(&self, touched: usize) {
        let mut front = self.front();
        front.touched.insert(touched);
        if front.is_locking {
            return;
        }
        front.is_locking = true;
        loop {
            let next = self.locked.load(Ordering::Relaxed);
            if self.is_stopped() || !front.touched.remove(&next) {
                break;
            }
            drop(front);
            self.before.iter().for_each(|before| before.wait(|| self.is_stopped()));
            self.await_pauses();
            if self.is_stopped() {
                front = self.front();
                break;
            }
            let (address, bytes) = self.piece_at(next);
            let locked = self.pages.lock(address, bytes);
            front = self.front();
            match locked {
                Ok(()) => self.locked.store(next + 1, Ordering::Release),
                // Later pieces would be refused for the same reason, each after some time.
                Err(error) => {
                    front.refused = Some(error);
                    self.stop();
                }
            }
        }
        front.is_locking = false;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.unlock();
    }
}

#[cfg(test)]
mod tests;
