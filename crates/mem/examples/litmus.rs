//! Two hosts that share one region test each other: published data must arrive whole and in order.
//!
//! `litmus REGION a|b TEST[=COUNT]…` runs one side; the other side runs the same tests as `b`. The
//! region is all zero at the start. `cargo xtask two-host` runs both sides in two virtual machines
//! that share a CXL memory device. On one machine, two processes and a tmpfs file suffice:
//! `truncate -s 2M /dev/shm/litmus`, then `litmus shm:litmus a …` beside `litmus shm:litmus b …`.
//!
//! Tests: `messages` (payload line, then flag line, in both directions), `crossing` (each side
//! publishes a word and then reads the other's: one of them must see it), `lock` (a counter under a
//! lock of plain words), `xadd` (one word with locked instructions: the control, because a region
//! promises none), `takeover` (`a` is killed while it holds the lock, `b` detects it and repairs).
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks")]
#![allow(clippy::disallowed_methods, reason = "it runs on real machines, by their clocks")]

use cenote_base::prng::Prng;
use cenote_base::time::{Clock, Deadline};
use cenote_mem::{Fabric, Flush, Flushed, LINE, MapOptions, Mapping, Offset, RegionSource};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The fabric under test.
type Wire = Flushed;

fn wire(mapping: Mapping) -> Result<Wire, String> {
    let flush = Flush::best().ok_or("this processor has no flush instruction")?;
    Wire::new(mapping, flush).map_err(|error| error.to_string())
}

/// Longest wait for the other host's next step. Guests' clocks may run fast.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time without a heartbeat after which a host counts as dead.
const SILENCE: Duration = Duration::from_secs(5);
/// Messages in flight in one direction.
const SLOTS: u64 = 64;
/// Page size of the device's mapping; the control needs only the first page.
const DEVICE_PAGE: usize = 2 << 20;

/// Lines that only side `side` writes.
const fn own(side: u64, line: u64) -> u64 {
    0x1000 * (1 + side) + line * LINE
}
const fn phase(side: u64) -> u64 {
    own(side, 0)
}
const fn heartbeat(side: u64) -> u64 {
    own(side, 1)
}
/// Word 0: wants or holds the lock. Word 1: this side's half of the turn.
const fn wish(side: u64) -> u64 {
    own(side, 2)
}
const fn acknowledged(side: u64) -> u64 {
    own(side, 3)
}
const fn crossing(side: u64) -> u64 {
    own(side, 4)
}
/// The other side's word, as this side read it.
const fn sighting(side: u64) -> u64 {
    own(side, 5)
}
const fn payload(side: u64, slot: u64) -> u64 {
    0x10000 * (1 + side) + slot * 2 * LINE
}
const fn flag(side: u64, slot: u64) -> u64 {
    payload(side, slot) + LINE
}
/// Two words that are equal except during an update under the lock. A death in between leaves them
/// different.
const COUNTER: u64 = 0x4000;
const MIRROR: u64 = 0x5000;
/// The word of the locked instructions.
const XADD: u64 = 0x8000;

/// One side of the pair.
struct Host {
    fabric: Wire,
    source: RegionSource,
    me: u64,
    step: u64,
}

/// Loops that wait for the other side end at a deadline. They read the clock rarely and never at
/// first: in an emulator that takes microseconds, and the sides would hardly ever meet at the same
/// instant.
#[derive(Default)]
struct Patience {
    deadline: Option<Deadline>,
    turns: u32,
}

impl Patience {
    fn turn(&mut self, what: &str) -> Result<(), String> {
        self.turns = self.turns.wrapping_add(1);
        // No spin-loop hint either, because it takes an emulator off its fast path.
        if !self.turns.is_multiple_of(1 << 14) {
            return Ok(());
        }
        let deadline = *self.deadline.get_or_insert_with(|| Clock::system().after(PATIENCE));
        if deadline.passed() { Err(format!("waited {} s for {what}", PATIENCE.as_secs())) } else { Ok(()) }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let side = arguments.get(1).cloned().unwrap_or_default();
    match run(&arguments) {
        Ok(()) => {
            println!("litmus {side}: all passed");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            println!("litmus {side}: FAILED: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), String> {
    let [region, side, tests @ ..] = arguments else {
        return Err("usage: litmus REGION a|b TEST[=COUNT]…".to_owned());
    };
    let me = match side.as_str() {
        "a" => 0,
        "b" => 1,
        other => return Err(format!("`{other}` is no side; there are a and b")),
    };
    let source: RegionSource = region.parse().map_err(|error| format!("{error}"))?;
    let mapping = Mapping::open(&source, &MapOptions::default()).map_err(|error| format!("{error}"))?;
    println!("litmus {side}: {region} has {} MiB, {:?}", mapping.len() >> 20, mapping.obtained());
    let mut host = Host { fabric: wire(mapping)?, source, me, step: 0 };
    host.handshake()?;
    println!("litmus {side}: handshake done");
    for test in tests {
        let (name, count) = test.split_once('=').unwrap_or((test, "1"));
        let count: u64 = count.parse().map_err(|error| format!("`{test}`: {error}"))?;
        let start = Instant::now();
        let outcome = match name {
            "messages" => host.messages(count),
            "crossing" => host.crossing(count),
            "lock" => host.lock(count),
            "xadd" => host.xadd(count),
            "takeover" if me == 0 => host.die_in_the_lock(),
            "takeover" => host.take_over(),
            other => Err(format!("there is no test `{other}`")),
        }
        .map_err(|reason| format!("{name}: {reason}"))?;
        println!("litmus {side}: {name}: {outcome}; {:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

impl Host {
    const fn other(&self) -> u64 {
        1 - self.me
    }

    fn load(&self, line: u64, word: u64) -> u64 {
        self.fabric.load(Offset::new(line + 8 * word))
    }

    fn fresh(&self, line: u64, word: u64) -> u64 {
        self.fabric.refresh(&[line]);
        self.load(line, word)
    }

    fn tell(&self, line: u64, word: u64, value: u64) {
        self.fabric.store(Offset::new(line + 8 * word), value);
        self.fabric.publish(&[line]);
    }

    fn handshake(&mut self) -> Result<(), String> {
        match self.fresh(phase(self.me), 0) {
            0 => self.meet("the other host's greeting"),
            _ => Err("the region is not fresh: this side has been here before".to_owned()),
        }
    }

    /// Both sides reach this point before either continues.
    fn meet(&mut self, what: &str) -> Result<(), String> {
        self.step += 1;
        self.tell(phase(self.me), 0, self.step);
        let mut patience = Patience::default();
        while self.fresh(phase(self.other()), 0) < self.step {
            patience.turn(what)?;
        }
        Ok(())
    }

    /// Message `sequence` of a side: every word is different in every message.
    fn message(side: u64, sequence: u64) -> [u64; 8] {
        let mut prng = Prng::new(sequence << 1 | side);
        std::array::from_fn(|_| prng.next_u64())
    }

    fn messages(&mut self, count: u64) -> Result<String, String> {
        self.meet("the start of the messages")?;
        let (me, other) = (self.me, self.other());
        let (mut sent, mut taken, mut known_taken) = (0, 0, 0);
        let (mut full, mut empty) = (0_u64, 0_u64);
        let mut patience = Patience::default();
        while sent < count || taken < count {
            let before = (sent, taken);
            if sent < count {
                if sent - known_taken == SLOTS {
                    known_taken = self.fresh(acknowledged(other), 0);
                }
                if sent.checked_sub(known_taken).is_none_or(|flying| flying > SLOTS) {
                    return Err(format!("{sent} messages were sent, but {known_taken} are acknowledged"));
                }
                if sent - known_taken < SLOTS {
                    let slot = sent % SLOTS;
                    self.fabric.store_line(payload(me, slot), &Self::message(me, sent));
                    self.fabric.publish(&[payload(me, slot)]);
                    sent += 1;
                    self.tell(flag(me, slot), 0, sent);
                } else {
                    full += 1;
                }
            }
            if taken < count {
                let slot = taken % SLOTS;
                let seen = self.fresh(flag(other, slot), 0);
                if seen == taken + 1 {
                    self.fabric.refresh(&[payload(other, slot)]);
                    let found = self.fabric.load_line(payload(other, slot));
                    check_message(other, taken, &found)?;
                    taken += 1;
                    self.tell(acknowledged(me), 0, taken);
                } else if seen == (taken + 1).saturating_sub(SLOTS) {
                    empty += 1;
                } else {
                    return Err(format!("the flag of message {} holds {seen}", taken + 1));
                }
            }
            if before == (sent, taken) {
                patience.turn("a message or room for one")?;
            } else {
                patience = Patience::default();
            }
        }
        self.meet("the end of the messages")?;
        Ok(format!("{count} each way, none stale, none torn; {full} waits for room, {empty} for a message"))
    }

    /// The assumption under every lock of plain words: the later of two writers sees the earlier
    /// one's word.
    fn crossing(&mut self, count: u64) -> Result<String, String> {
        let (me, other) = (self.me, self.other());
        let mut prng = Prng::new(me);
        let mut both = 0_u64;
        for round in 1..=count {
            self.meet("the other host's next crossing")?;
            // The sides leave a meeting one after the other; occasional pauses compensate for that.
            for turn in 0..prng.next_u64() % 64 {
                std::hint::black_box(turn);
            }
            self.tell(crossing(me), 0, round);
            let saw = self.fresh(crossing(other), 0);
            self.tell(sighting(me), 0, saw);
            self.meet("the other host's sighting")?;
            let other_saw = self.fresh(sighting(other), 0);
            if saw < round && other_saw < round {
                return Err(format!("in round {round} neither saw the other's word"));
            }
            both += u64::from(saw == round && other_saw == round);
        }
        self.meet("the end of the crossings")?;
        Ok(format!("{count} rounds, never both blind; both saw the other in {both}"))
    }

    /// Kessels' lock for two: Peterson's, with the turn split so that each side writes only its own
    /// words.
    fn enter(&self, mut is_dead: impl FnMut() -> bool) -> Result<(), String> {
        let (mine, theirs) = (wish(self.me), wish(self.other()));
        self.tell(mine, 0, 1);
        let turn = self.fresh(theirs, 1) ^ self.me;
        self.tell(mine, 1, turn);
        let mut patience = Patience::default();
        loop {
            self.fabric.refresh(&[theirs]);
            let waits = self.load(theirs, 0) == 1 && turn == self.load(theirs, 1) ^ self.me;
            if !waits || is_dead() {
                return Ok(());
            }
            patience.turn("the lock")?;
        }
    }

    fn leave(&self) {
        self.tell(wish(self.me), 0, 0);
    }

    /// A line of the lock's data: the value, its last writer, and words that are inconsistent if
    /// the other side was inside as well.
    fn guarded(&self, line: u64) -> Result<(u64, u64), String> {
        self.fabric.refresh(&[line]);
        let words = self.fabric.load_line(line);
        if words != Self::guarded_words(words[0], words[1]) {
            return Err(format!("the line under the lock is torn: {words:?}"));
        }
        Ok((words[0], words[1]))
    }

    fn guarded_words(value: u64, writer: u64) -> [u64; 8] {
        std::array::from_fn(|word| match word {
            1 => writer,
            _ => value * (1 + word as u64),
        })
    }

    fn write_guarded(&self, line: u64, value: u64) {
        self.fabric.store_line(line, &Self::guarded_words(value, self.me));
        self.fabric.publish(&[line]);
    }

    fn lock(&mut self, count: u64) -> Result<String, String> {
        let (start, _) = self.guarded(COUNTER)?;
        self.meet("the start of the lock test")?;
        let mut changes = 0_u64;
        for _ in 0..count {
            self.enter(|| false)?;
            let (value, writer) = self.guarded(COUNTER)?;
            let (mirror, _) = self.guarded(MIRROR)?;
            if value != mirror {
                return Err(format!("under the lock the counter is {value} and its mirror {mirror}"));
            }
            changes += u64::from(writer != self.me);
            self.write_guarded(COUNTER, value + 1);
            self.write_guarded(MIRROR, value + 1);
            self.leave();
        }
        self.meet("the end of the lock test")?;
        let (value, _) = self.guarded(COUNTER)?;
        let (got, expected) = (value - start, 2 * count);
        if got != expected {
            return Err(format!("the counter is {got}, not {expected}"));
        }
        Ok(format!("counter {got} exact; {changes} entries after the other host"))
    }

    /// The region's interface has no such instruction, so the control maps the first bytes a second
    /// time.
    fn xadd(&mut self, count: u64) -> Result<String, String> {
        let path = self.source.path().ok_or("anonymous memory is not shared")?;
        let file = std::fs::File::options().read(true).write(true).open(&path).map_err(|error| error.to_string())?;
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let (shared, nowhere) = (rustix::mm::MapFlags::SHARED, std::ptr::null_mut());
        // SAFETY: the kernel picks the address of a new mapping, so no memory in use changes.
        let base = unsafe { rustix::mm::mmap(nowhere, DEVICE_PAGE, protection, shared, &file, 0) }
            .map_err(|error| format!("mapping once more: {error}"))?;
        // SAFETY: the word lies inside the mapping, which is page aligned and stays until the
        // process ends, and all accesses to it are atomic.
        #[allow(clippy::cast_ptr_alignment, reason = "the place is a multiple of a line")]
        let word: &AtomicU64 = unsafe { &*base.cast::<u8>().add(XADD as usize).cast::<AtomicU64>() };
        let start = word.load(Ordering::SeqCst);
        self.meet("the start of the locked instructions")?;
        for _ in 0..count {
            std::hint::black_box(word.fetch_add(1, Ordering::SeqCst));
        }
        self.meet("the end of the locked instructions")?;
        let (got, expected) = (word.load(Ordering::SeqCst) - start, 2 * count);
        // Neither side changes a value that the other has not read yet.
        self.meet("the other host's reading")?;
        Ok(if got == expected {
            format!("{got} of {expected} exact")
        } else {
            format!("{got} of {expected}, LOST {}", expected.saturating_sub(got))
        })
    }

    /// Holds the lock with one of two lines written, until this host is killed.
    fn die_in_the_lock(&mut self) -> Result<String, String> {
        self.meet("the start of the takeover")?;
        self.enter(|| false)?;
        let (value, _) = self.guarded(COUNTER)?;
        self.write_guarded(COUNTER, value + 1);
        self.meet("the other host to come for the lock")?;
        // The other host sees the heartbeat advance when it takes its next step.
        let deadline = Clock::system().after(PATIENCE);
        let (mut beat, mut said) = (0, false);
        while !deadline.passed() {
            beat += 1;
            self.tell(heartbeat(self.me), 0, beat);
            if !said && self.fresh(phase(self.other()), 0) > self.step {
                println!("litmus a: holds the lock in the middle of an update, heartbeat {beat}");
                said = true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err("this host was not killed".to_owned())
    }

    fn take_over(&mut self) -> Result<String, String> {
        self.meet("the start of the takeover")?;
        self.meet("the other host to take the lock")?;
        let (start, mut asked) = (self.fresh(heartbeat(self.other()), 0), false);
        let (mut last, mut since) = (start, Instant::now());
        // In `enter` every turn reads the clock. It is this host's own, so only its speed matters.
        self.enter(|| {
            let beat = self.fresh(heartbeat(self.other()), 0);
            if beat != last {
                (last, since) = (beat, Instant::now());
            }
            if !asked && beat >= start + 3 {
                asked = true;
                println!("litmus b: waits for the lock of a living host, heartbeat {beat}");
                self.tell(phase(self.me), 0, self.step + 1);
            }
            asked && since.elapsed() >= SILENCE
        })?;
        if self.fresh(wish(self.other()), 0) != 1 || !asked {
            return Err("the lock was given back by a host that was to die with it".to_owned());
        }
        println!("litmus b: the heartbeat stopped at {last}; the lock is taken over");
        let ((value, writer), (mirror, _)) = (self.guarded(COUNTER)?, self.guarded(MIRROR)?);
        if (value, writer) != (mirror + 1, self.other()) {
            return Err(format!("the dead host left counter {value} of host {writer} and mirror {mirror}"));
        }
        self.write_guarded(MIRROR, value);
        self.write_guarded(COUNTER, value + 1);
        self.write_guarded(MIRROR, value + 1);
        let (counter, mirror) = (self.guarded(COUNTER)?, self.guarded(MIRROR)?);
        if counter != mirror || counter != (value + 1, self.me) {
            return Err(format!("after the repair the counter is {counter:?} and its mirror {mirror:?}"));
        }
        let beat = self.fresh(heartbeat(self.other()), 0);
        if beat != last {
            return Err(format!("the dead host's heartbeat went on from {last} to {beat}"));
        }
        self.leave();
        Ok(format!("half an update found and finished, counter {}", value + 1))
    }
}

fn check_message(side: u64, sequence: u64, found: &[u64; 8]) -> Result<(), String> {
    let right = |sequence| Host::message(side, sequence);
    if *found == right(sequence) {
        return Ok(());
    }
    let old = sequence.checked_sub(SLOTS).map_or([0; 8], right);
    let word = if *found == old { "STALE" } else { "TORN" };
    Err(format!("the payload of message {} is {word}: {found:x?}", sequence + 1))
}
