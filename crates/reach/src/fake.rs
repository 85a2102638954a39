//! A peer in this process, with faults.
//!
//! Budget of faults: a read may be slow, fail for ever, see each word of a line at another time, or
//! return any bytes. It cannot return more bytes than were asked for, and not those of a later read:
//! the trait has no place for either.

use crate::remote::{Landing, Piece, ReadError, Remote, checked_sum};
use cenote_base::Deadline;
use cenote_base::prng::Prng;
use cenote_mem::{Fabric, Offset};
use std::sync::{Arc, Mutex, PoisonError};

/// Changes the bytes of a read.
pub type Lie = Box<dyn FnMut(&[Piece], &mut [u8]) + Send>;

/// What is wrong with a peer.
#[derive(Default)]
pub struct Faults {
    /// Every read fails.
    pub is_dead: bool,
    /// Called before each read, and may let time pass.
    pub before: Option<Box<dyn FnMut() + Send>>,
    /// Words are read in a random order, and this is called between some of them: the owner works on.
    pub between: Option<Box<dyn FnMut() + Send>>,
    /// One in so many reads calls `between` so many times.
    pub tears: Option<(u64, u64)>,
    /// Called with the pieces and their bytes: it lies.
    pub lie: Option<Lie>,
    /// What the peer says of its length instead of the truth.
    pub region_bytes: Option<u64>,
    /// Reads so far, and their bytes.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
}

/// A region of this process as a peer.
pub struct Fake<F: Fabric> {
    fabric: F,
    faults: Arc<Mutex<Faults>>,
    random: Prng,
    memory: [Vec<u8>; 2],
}

impl<F: Fabric> Fake<F> {
    /// A peer with this region and these faults, which may change.
    pub fn new(fabric: F, faults: &Arc<Mutex<Faults>>, seed: u64) -> Self {
        Self { fabric, faults: Arc::clone(faults), random: Prng::new(seed), memory: Default::default() }
    }
}

impl<F: Fabric> Remote for Fake<F> {
    fn region_bytes(&self) -> u64 {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.region_bytes.unwrap_or(self.fabric.len())
    }

    fn read(&mut self, pieces: &[Piece], landing: Landing, deadline: Deadline) -> Result<(), ReadError> {
        let sum = checked_sum(pieces, self.region_bytes())?;
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let faults = &mut *faults;
        faults.reads += 1;
        faults.bytes += sum as u64;
        if let Some(before) = &mut faults.before {
            before();
        }
        if faults.is_dead {
            return Err(ReadError::Gone("the peer is dead".to_owned()));
        }
        if deadline.passed() {
            return Err(ReadError::Late);
        }
        let memory = &mut self.memory[landing as usize];
        memory.clear();
        memory.resize(sum, 0);
        let mut words: Vec<(u64, usize)> = Vec::with_capacity(sum / 8);
        let mut start = 0;
        for piece in pieces {
            words.extend((0..piece.length).step_by(8).map(|at| (piece.at + at as u64, start + at)));
            start += piece.length;
        }
        let mut pauses = 0;
        if let Some((one_in, times)) = faults.tears.filter(|_| faults.between.is_some())
            && self.random.below(one_in) == 0
        {
            for at in (1..words.len()).rev() {
                words.swap(at, self.random.below(at as u64 + 1) as usize);
            }
            pauses = times;
        }
        let every = (words.len() as u64 / (pauses + 1)).max(1);
        for (number, (from, to)) in words.into_iter().enumerate() {
            if pauses > 0 && number > 0 && (number as u64).is_multiple_of(every) {
                pauses -= 1;
                faults.between.as_mut().expect("it was there above")();
            }
            let end = memory.len().min(to + 8);
            // A region's mapped length is whole lines; a peer that claims more has nothing there.
            let word = if from + 8 <= self.fabric.len() { self.fabric.load(Offset::new(from)) } else { 0 };
            memory[to..end].copy_from_slice(&word.to_le_bytes()[..end - to]);
        }
        if let Some(lie) = &mut faults.lie {
            lie(pieces, memory);
        }
        Ok(())
    }

    fn landed(&mut self, landing: Landing) -> &mut [u8] {
        &mut self.memory[landing as usize]
    }
}
