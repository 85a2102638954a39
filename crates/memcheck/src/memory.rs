//! Operations on memory of users and on the locks that they allocate.

use crate::objects::KEYS;
use crate::oracle::Checker;
use crate::scenario::{Actor, SimPool};
use cenote_base::prng::Prng;
use cenote_mem::{Fabric, Offset};
use cenote_pool::PoolError;
use std::time::Duration;

/// Most pieces that the processes of a run keep, so that blocks have room, too.
const PIECES_MAX: usize = 12;

/// A piece of memory that some process has allocated and that no process is freeing.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub offset: u64,
    pub bytes: u64,
    /// Content of its first and its last line.
    pub mark: u64,
}

impl Actor {
    fn is_alive(&self) -> bool {
        self.process.lives(self.process.number())
    }

    /// Allocates, frees, names or reads memory, or allocates, frees or takes a lock.
    pub fn use_memory(&self, pool: &SimPool, prng: &mut Prng) {
        match prng.below(12) {
            0..4 => self.allocate(pool, prng),
            4..6 => self.free_any(pool, prng),
            6 => self.read_any(pool, prng),
            7 => self.name_any(pool, prng),
            8 if prng.below(2) == 0 => drop(pool.destroy_object(&KEYS[2])),
            8 => self.read_named(pool),
            _ => self.use_lock(pool, prng),
        }
    }

    fn allocate(&self, pool: &SimPool, prng: &mut Prng) {
        if self.oracle.notes().pieces.len() >= PIECES_MAX {
            return self.free_any(pool, prng);
        }
        let wanted = [40, 64 + prng.below(500), 3000][prng.below(3) as usize];
        // From here on a death may leave a piece that no process knows.
        self.oracle.notes().pieces_unsure += 1;
        let allocated = pool.allocate(wanted);
        if !self.is_alive() {
            return;
        }
        let Ok(offset) = allocated else {
            // A lock timeout may leave a slot reserved, but no memory.
            self.oracle.notes().pieces_unsure -= 1;
            return;
        };
        let bytes = match pool.allocated_bytes(offset) {
            Ok(bytes) if bytes >= wanted => bytes,
            found => {
                if self.is_alive() {
                    let fact = format!("{wanted} bytes were just allocated at {offset:#x}, and are {found:?}");
                    self.oracle.report_unless_lossy(Checker::Allocator, fact);
                }
                return;
            }
        };
        if !self.is_alive() {
            return;
        }
        let mark = prng.next_u64() | 1;
        let piece = Known { offset, bytes, mark };
        let notes = self.oracle.notes();
        let overlaps = |other: &&Known| other.offset < offset + bytes && offset < other.offset + other.bytes;
        let twice = notes.pieces.iter().find(overlaps).copied();
        drop(notes);
        if let Some(other) = twice {
            let fact = format!("memory was handed out twice: {piece:x?} and {other:x?}");
            return self.oracle.report_unless_lossy(Checker::Allocator, fact);
        }
        self.mark(pool, &piece);
        self.give_back(piece);
    }

    /// Writes a piece's first and last line, around the caches.
    fn mark(&self, pool: &SimPool, piece: &Known) {
        let lines = [piece.offset, piece.offset + piece.bytes - 64].map(|line| (line, [piece.mark; 8]));
        pool.fabric().publish_lines(&lines);
    }

    /// A piece that this process alone works with from here on.
    fn take_known(&self, prng: &mut Prng) -> Option<Known> {
        let mut notes = self.oracle.notes();
        let count = notes.pieces.len() as u64;
        (count > 0).then(|| {
            let piece = notes.pieces.swap_remove(prng.below(count) as usize);
            // It may die with it.
            notes.pieces_unsure += 1;
            piece
        })
    }

    fn give_back(&self, piece: Known) {
        if self.is_alive() {
            let mut notes = self.oracle.notes();
            notes.pieces.push(piece);
            notes.pieces_unsure -= 1;
        }
    }

    fn free_any(&self, pool: &SimPool, prng: &mut Prng) {
        let Some(piece) = self.take_known(prng) else { return };
        self.expect_content(pool, &piece);
        // A program writes through its caches. The line must not arrive after the memory has
        // another user.
        pool.fabric().store(Offset::new(piece.offset), 0);
        match pool.free(piece.offset) {
            Ok(()) if self.is_alive() => self.oracle.notes().pieces_unsure -= 1,
            Err(PoolError::Lock { .. } | PoolError::DeclaredDead | PoolError::LeftToDead) => {
                self.mark(pool, &piece);
                self.give_back(piece);
            }
            Err(error) if self.is_alive() => {
                let fact = format!("memory that was allocated cannot be freed: {piece:x?}: {error}");
                self.oracle.report_unless_lossy(Checker::Allocator, fact);
            }
            _ => {}
        }
    }

    fn read_any(&self, pool: &SimPool, prng: &mut Prng) {
        let Some(piece) = self.take_known(prng) else { return };
        self.expect_content(pool, &piece);
        self.give_back(piece);
    }

    /// Checks that a piece has what its maker wrote, on any host and after any death.
    fn expect_content(&self, pool: &SimPool, piece: &Known) {
        for line in [piece.offset, piece.offset + piece.bytes - 64] {
            pool.fabric().refresh(&[line]);
            let words = pool.fabric().load_line(line);
            if words != [piece.mark; 8] && self.is_alive() {
                let fact = format!("memory at {line:#x} has {words:x?}, and not what was written: {piece:x?}");
                self.oracle.report_unless_lossy(Checker::Blocks, fact);
            }
        }
    }

    /// Names a piece. It goes with the next one that gets the name.
    fn name_any(&self, pool: &SimPool, prng: &mut Prng) {
        let Some(piece) = self.take_known(prng) else { return };
        match pool.name_memory(&KEYS[2], piece.offset) {
            Ok(()) if self.is_alive() => self.oracle.notes().pieces_unsure -= 1,
            Err(
                PoolError::Lock { .. } | PoolError::DeclaredDead | PoolError::LeftToDead | PoolError::TableFull { .. },
            ) => {
                self.give_back(piece);
            }
            Err(error) if self.is_alive() => {
                let fact = format!("memory that was allocated cannot be named: {piece:x?}: {error}");
                self.oracle.report_unless_lossy(Checker::Allocator, fact);
            }
            _ => {}
        }
    }

    /// Follows the name. Its memory may be freed and taken again at once, so its content says
    /// nothing.
    fn read_named(&self, pool: &SimPool) {
        if let Ok(Some((offset, bytes))) = pool.find_memory(&KEYS[2]) {
            let space = pool.space();
            if !space.contains(&offset) || offset + bytes > space.end {
                self.oracle.report(Checker::Blocks, format!("{bytes} bytes at {offset:#x} are no memory"));
            }
        }
    }

    /// Allocates a lock and takes it. No other process may have it meanwhile.
    fn use_lock(&self, pool: &SimPool, prng: &mut Prng) {
        let kept = if prng.below(2) == 0 { self.oracle.notes().locks_kept.pop() } else { None };
        if let Some(lock) = kept {
            return self.free_lock(pool, lock);
        }
        let Ok(lock) = pool.allocate_lock() else { return };
        if !self.is_alive() {
            return;
        }
        if !self.oracle.notes().locks.insert(lock) {
            self.oracle.report_unless_lossy(Checker::Locks, format!("lock {lock} was given out twice"));
        }
        match pool.lock_user(lock, Duration::ZERO) {
            Ok(held) => {
                if !matches!(pool.free_lock(lock), Err(PoolError::Lock { .. })) && self.is_alive() {
                    self.oracle.report_unless_lossy(Checker::Locks, format!("lock {lock} was freed while it was held"));
                }
                drop(held);
            }
            Err(PoolError::Config(error)) if self.is_alive() => {
                let fact = format!("lock {lock} was allocated and is refused: {error}");
                self.oracle.report_unless_lossy(Checker::Locks, fact);
            }
            Err(_) => {}
        }
        if prng.below(2) == 0 {
            self.free_lock(pool, lock);
        } else if self.is_alive() {
            self.oracle.notes().locks_kept.push(lock);
        }
    }

    /// Takes and frees a lock that any process of any host has allocated.
    fn free_lock(&self, pool: &SimPool, lock: u16) {
        // Before it is free: another process may allocate it at once.
        if !self.is_alive() || !self.oracle.notes().locks.remove(&lock) {
            return;
        }
        match pool.free_lock(lock) {
            Err(PoolError::Config(error)) if self.is_alive() => {
                let fact = format!("lock {lock} is allocated and cannot be freed: {error}");
                self.oracle.report_unless_lossy(Checker::Locks, fact);
            }
            Err(_) if self.is_alive() => {
                let mut notes = self.oracle.notes();
                notes.locks.insert(lock);
                notes.locks_kept.push(lock);
            }
            _ => {}
        }
    }

    /// Checks, while no process works, that exactly the known memory is allocated, apart from
    /// pieces that processes died with, and frees all of it.
    pub fn free_all(&self, pool: &SimPool) {
        let report = match pool.check(false) {
            Ok(report) => report.memory_of_users,
            Err(error) => {
                return self.oracle.report_unless_lossy(Checker::Liveness, format!("check failed: {error}"));
            }
        };
        let (known, unsure) = {
            let mut notes = self.oracle.notes();
            (std::mem::take(&mut notes.pieces), notes.pieces_unsure)
        };
        let sum = known.len() as u64;
        if !(sum..=sum + unsure).contains(&report.pieces) || report.named_pieces > 1 + unsure {
            let fact = format!("{sum} pieces are known and up to {unsure} may be left, but {report:?} are there");
            self.oracle.report_unless_lossy(Checker::Allocator, fact);
        }
        for piece in known {
            self.expect_content(pool, &piece);
            if let Err(error) = pool.free(piece.offset) {
                let fact = format!("memory that outlives its maker cannot be freed: {piece:x?}: {error}");
                self.oracle.report_unless_lossy(Checker::Allocator, fact);
            }
        }
        // Workers of the run have all ended: what is left is what they died with.
        let freed = pool.free_memory_of(None, |_| false).unwrap_or_default();
        if freed.pieces > unsure {
            let fact = format!("{} pieces of dead workers were left, and at most {unsure} could be", freed.pieces);
            self.oracle.report_unless_lossy(Checker::Allocator, fact);
        }
        let _ = pool.destroy_object(&KEYS[2]);
    }
}
