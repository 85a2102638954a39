//! A clock, streams with random stalls, and the rules that every stream keeps.

use crate::model::{Model, Pin};
use cenote_base::prng::Prng;
use std::collections::VecDeque;

/// The words of all fields of a beat, one field behind the other.
pub type Beat = Vec<u32>;
/// Why a module failed.
pub type Failure = String;

/// How often streams stall: of 256 cycles, an input offers a beat in `offers` and an output takes
/// one in `takes`.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Cycles in which an input offers a beat.
    pub offers: u64,
    /// Cycles in which an output takes one.
    pub takes: u64,
    /// Each stream departs from these rates for a while, on its own: it pauses, runs without stalls,
    /// or is slow.
    pub varies: bool,
}

impl Pace {
    /// No stalls.
    pub const FULL: Self = Self { offers: 256, takes: 256, varies: false };

    /// Any mixture of stalls, none among them.
    pub fn any(prng: &mut Prng) -> Self {
        let mut rate = || [256, 256, 200, 128, 40][prng.below(5) as usize];
        Self { offers: rate(), takes: rate(), varies: prng.below(2) == 0 }
    }
}

/// The rate of one stream while it departs from the others.
#[derive(Default)]
struct Mood(Option<u64>);

impl Mood {
    /// Whether the stream moves in this cycle.
    fn moves(&mut self, prng: &mut Prng, rate: u64, varies: bool) -> bool {
        if !varies {
            self.0 = None;
        } else if prng.below(48) == 0 {
            self.0 = [None, Some(0), Some(256), Some(24)][prng.below(4) as usize];
        }
        prng.below(256) < self.0.unwrap_or(rate)
    }
}

struct Source {
    valid: Pin,
    ready: Pin,
    fields: Vec<Pin>,
    queue: VecDeque<Beat>,
    offering: bool,
    mood: Mood,
    times: Vec<u64>,
}

struct Sink {
    valid: Pin,
    ready: Pin,
    fields: Vec<Pin>,
    got: Vec<Beat>,
    times: Vec<u64>,
    takes: bool,
    mood: Mood,
    /// The beat of the last cycle, if it was offered and not taken.
    waiting: Option<Beat>,
}

/// A module with a clock, a reset and streams.
pub struct Bench {
    /// The module.
    pub model: Model,
    clk: Pin,
    rst: Pin,
    sources: Vec<Source>,
    sinks: Vec<Sink>,
    /// Stalls of all streams.
    pub pace: Pace,
    prng: Prng,
    /// Clock cycles so far.
    pub cycle: u64,
}

impl Bench {
    /// A module whose registers and stalls follow from `seed`. It is reset.
    #[must_use]
    pub fn new(name: &'static str, seed: u64) -> Self {
        let model = Model::open(name, seed as u32 | 1);
        let (clk, rst) = (model.pin("clk"), model.pin("rst"));
        let (sources, sinks) = (Vec::new(), Vec::new());
        Self { model, clk, rst, sources, sinks, pace: Pace::FULL, prng: Prng::new(seed), cycle: 0 }
    }

    /// Adds an input stream: ports `{prefix}_valid`, `{prefix}_ready` and fields. Returns its number.
    pub fn input(&mut self, prefix: &str, fields: &[&str]) -> usize {
        let pin = |name: &str| self.model.pin(&format!("{prefix}_{name}"));
        let (valid, ready, fields) = (pin("valid"), pin("ready"), fields.iter().map(|name| pin(name)).collect());
        let (queue, times) = (VecDeque::new(), Vec::new());
        self.sources.push(Source { valid, ready, fields, queue, offering: false, mood: Mood::default(), times });
        self.sources.len() - 1
    }

    /// Adds an output stream, as [`Self::input`].
    pub fn output(&mut self, prefix: &str, fields: &[&str]) -> usize {
        let pin = |name: &str| self.model.pin(&format!("{prefix}_{name}"));
        let (valid, ready, fields) = (pin("valid"), pin("ready"), fields.iter().map(|name| pin(name)).collect());
        let (got, times) = (Vec::new(), Vec::new());
        self.sinks.push(Sink { valid, ready, fields, got, times, takes: false, mood: Mood::default(), waiting: None });
        self.sinks.len() - 1
    }

    /// Sets a port that is no stream.
    pub fn set(&mut self, port: &str, value: u32) {
        let pin = self.model.pin(port);
        self.model.set(pin, value);
    }

    /// Resets the module for two cycles and forgets all beats.
    pub fn reset(&mut self) {
        for source in &mut self.sources {
            source.queue.clear();
            source.times.clear();
            source.offering = false;
            self.model.set(source.valid, 0);
        }
        for sink in &mut self.sinks {
            sink.got.clear();
            sink.times.clear();
            sink.waiting = None;
            sink.takes = false;
            self.model.set(sink.ready, 0);
        }
        self.model.set(self.rst, 1);
        for _ in 0..2 {
            self.edge();
        }
        self.model.set(self.rst, 0);
    }

    /// Appends a beat to an input.
    pub fn send(&mut self, input: usize, beat: Beat) {
        self.sources[input].queue.push_back(beat);
    }

    /// Beats of an output so far.
    #[must_use]
    pub fn got(&self, output: usize) -> &[Beat] {
        &self.sinks[output].got
    }

    /// Removes the beats of an output, and forgets when inputs were taken.
    pub fn take(&mut self, output: usize) -> Vec<Beat> {
        self.sources.iter_mut().for_each(|source| source.times.clear());
        self.sinks[output].times.clear();
        std::mem::take(&mut self.sinks[output].got)
    }

    /// The cycles in which an input's beats were taken.
    #[must_use]
    pub fn sent_at(&self, input: usize) -> &[u64] {
        &self.sources[input].times
    }

    /// The cycles in which an output's beats were taken.
    #[must_use]
    pub fn got_at(&self, output: usize) -> &[u64] {
        &self.sinks[output].times
    }

    /// Whether all beats of an input were taken.
    #[must_use]
    pub fn is_sent(&self, input: usize) -> bool {
        self.sources[input].queue.is_empty()
    }

    /// Whether a page is inside: not all of it was taken, or its last beat did not leave. `mark` is
    /// the word of an output's beat with the mark of the last.
    #[must_use]
    pub fn is_inside(&self, input: usize, output: usize, mark: usize) -> bool {
        let begun = !self.sent_at(input).is_empty();
        begun && (!self.is_sent(input) || self.got(output).last().is_none_or(|beat| beat[mark] == 0))
    }

    fn edge(&mut self) {
        self.model.set(self.clk, 0);
        self.model.eval();
        self.model.set(self.clk, 1);
        self.model.eval();
        self.cycle += 1;
    }

    /// One clock cycle without streams: inputs stay as they are set.
    pub fn step_alone(&mut self) {
        self.edge();
    }

    /// One clock cycle.
    ///
    /// # Errors
    /// An output changed or withdrew a beat before it was taken.
    pub fn step(&mut self) -> Result<(), Failure> {
        self.step_with(|_| {})
    }

    /// One clock cycle. `sample` reads pins before the clock's edge, when all inputs are set.
    ///
    /// # Errors
    /// As for [`Self::step`].
    pub fn step_with(&mut self, sample: impl FnOnce(&Model)) -> Result<(), Failure> {
        let Self { model, sources, sinks, prng, pace, .. } = self;
        for source in sources.iter_mut() {
            // An offered beat stays until it is taken.
            source.offering |= !source.queue.is_empty() && source.mood.moves(prng, pace.offers, pace.varies);
            model.set(source.valid, u32::from(source.offering));
            let mut at = 0;
            for field in &source.fields {
                if source.offering {
                    model.set_words(*field, &source.queue[0][at..at + field.words()]);
                    at += field.words();
                } else {
                    // Fields without a valid beat must not matter.
                    let noise: Vec<u32> = (0..field.words()).map(|_| prng.next_u64() as u32).collect();
                    model.set_words(*field, &noise);
                }
            }
        }
        for sink in sinks.iter_mut() {
            sink.takes = sink.mood.moves(prng, pace.takes, pace.varies);
            model.set(sink.ready, u32::from(sink.takes));
        }
        model.set(self.clk, 0);
        model.eval();
        sample(model);
        for source in sources.iter_mut() {
            if source.offering && model.get(source.ready) == 1 {
                source.queue.pop_front();
                source.offering = false;
                source.times.push(self.cycle);
            }
        }
        for (number, sink) in sinks.iter_mut().enumerate() {
            let offered = (model.get(sink.valid) == 1).then(|| {
                let mut beat = Vec::new();
                for field in &sink.fields {
                    let at = beat.len();
                    beat.resize(at + field.words(), 0);
                    model.get_words(*field, &mut beat[at..]);
                }
                beat
            });
            if sink.waiting.is_some() && sink.waiting != offered {
                return Err(format!("cycle {}: output {number} changed a beat before it was taken", self.cycle));
            }
            sink.waiting = None;
            match offered {
                Some(beat) if sink.takes => {
                    sink.got.push(beat);
                    sink.times.push(self.cycle);
                }
                offered => sink.waiting = offered,
            }
        }
        model.set(self.clk, 1);
        model.eval();
        self.cycle += 1;
        Ok(())
    }

    /// Steps until a condition holds.
    ///
    /// # Errors
    /// A stream broke a rule, or the condition does not hold within `limit` cycles.
    pub fn run(&mut self, limit: u64, mut until: impl FnMut(&Self) -> bool) -> Result<u64, Failure> {
        let start = self.cycle;
        while !until(self) {
            if self.cycle - start >= limit {
                return Err(format!("no end within {limit} cycles"));
            }
            self.step()?;
        }
        Ok(self.cycle - start)
    }
}
