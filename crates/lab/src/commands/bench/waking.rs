//! Completions between two threads: a polled word of shared memory beside sleeping until the other
//! one wakes it (CXL-SpecKV §3.6.2: polling beside interrupts).

use super::Setting;
use super::regions::fabrics;
use super::rows::{Row, Times, median};
use super::worker::{bare_memory, nanoseconds};
use cenote_console::failure::Failure;
use cenote_mem::{Fabric, Mapped, Offset};
use std::hint::spin_loop;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for the other thread.
const PATIENCE: Duration = Duration::from_secs(60);

/// A place where one of two threads announces its turn, and the other waits for it.
trait Word: Sync {
    fn announce(&self, turn: u64);
    fn wait(&self, turn: u64);
}

/// A word of shared memory, on a line of its own.
struct Polled<'a> {
    memory: &'a Mapped,
    line: u64,
}

impl Word for Polled<'_> {
    fn announce(&self, turn: u64) {
        self.memory.publish_word(Offset::new(self.line), turn);
    }

    fn wait(&self, turn: u64) {
        let begun = Instant::now();
        loop {
            self.memory.refresh_unfenced(self.line);
            if self.memory.load(Offset::new(self.line)) >= turn {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "the other thread has ended");
            spin_loop();
        }
    }
}

/// The kernel wakes the waiter.
#[derive(Default)]
struct Woken {
    turn: Mutex<u64>,
    bell: Condvar,
}

impl Word for Woken {
    fn announce(&self, turn: u64) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = turn;
        self.bell.notify_one();
    }

    fn wait(&self, turn: u64) {
        let held = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.bell.wait_timeout_while(held, PATIENCE, |now| *now < turn);
        assert!(*waited.unwrap_or_else(PoisonError::into_inner).0 >= turn, "the other thread has ended");
    }
}

/// Nanoseconds from an announcement to the end of its wait: half of a round between two threads.
fn rounds(rounds: u64, there: &impl Word, back: &impl Word) -> Times {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1..=rounds {
                there.wait(turn);
                back.announce(turn);
            }
        });
        let one = |turn| {
            let start = Instant::now();
            there.announce(turn);
            back.wait(turn);
            nanoseconds(start) / 2.0
        };
        (1..=rounds).map(one).collect()
    })
}

pub fn measure(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let count = setting.choose(20_000, 4_000);
    let woken = rounds(count, &Woken::default(), &Woken::default());
    let mut all = vec![Row::nanoseconds("completion: woken by the kernel", &woken)];
    for (fabric, flush) in fabrics() {
        let memory = bare_memory(1 << 20, flush)?;
        let word = |line| Polled { memory: &memory, line };
        let polled = rounds(count, &word(0), &word(4096));
        let gain = median(&woken) / median(&polled);
        all.push(Row::nanoseconds(format!("{fabric}: completion, polled"), &polled).ratio(gain));
    }
    Ok(all)
}
