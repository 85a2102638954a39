//! Times of the LSTM on one core.

use super::super::rows::{Row, Times};
use cenote_base::prng::Prng;
use cenote_predict::{BEAMS, FloatNetwork, History, Level, Lstm, LstmPlace, Network, TokenPredictor, at_level};
use std::hint::black_box;
use std::time::Instant;

/// CXL-SpecKV §3.4.1: "< 10 µs per prediction".
const GOAL_US: f64 = 10.0;
/// A vocabulary of today's models.
const LARGE: usize = 131_072;
/// Positions that a whole prediction looks ahead: the paper's k.
const HORIZONS: usize = 4;

pub fn rows(network: &Network, quick: bool) -> Vec<Row> {
    let calls = if quick { 400 } else { 20_000 };
    let mut rows = Vec::new();
    for level in Level::available().iter().rev() {
        let times = at_level(*level, || evaluations(network, calls));
        let row = Row::microseconds(format!("lstm: one evaluation, 4,096 tokens, {}", level.name()), &times);
        rows.push(if *level == Level::current() { row.at_most(GOAL_US) } else { row });
    }
    let (token, history) = (together(network, calls), read_again(network, calls / 10));
    rows.push(Row::microseconds("lstm: four evaluations together", &token));
    rows.push(Row::microseconds("lstm: the last 16 tokens read again, then one evaluation", &history));
    rows.push(Row::microseconds("lstm: beam 4, 4 tokens ahead", &beams(network, calls / 10)));
    let large = Network::new(&FloatNetwork::random(LARGE, &mut Prng::new(1)).quantize());
    let times = evaluations(&large, calls / 20);
    rows.push(Row::microseconds("lstm: one evaluation, 131,072 tokens, random weights", &times));
    rows
}

/// Nanoseconds of each call, after a tenth as many that are not counted.
fn timed(calls: usize, mut call: impl FnMut(u32)) -> Times {
    let mut prng = Prng::new(7);
    let mut times = Times::with_capacity(calls);
    for at in 0..calls + calls / 10 {
        let token = prng.next_u64() as u32;
        let start = Instant::now();
        call(token);
        if at >= calls / 10 {
            times.push(start.elapsed().as_secs_f64() * 1e9);
        }
    }
    times
}

/// A token is read, and the four best next ones are found among all probabilities.
fn evaluations(network: &Network, calls: usize) -> Times {
    let vocabulary = network.vocabulary();
    let (mut place, mut row) = (LstmPlace::EMPTY, vec![0.0; vocabulary]);
    timed(calls, |token| {
        black_box(network.evaluate(&mut [&mut place], &[token % vocabulary as u32], BEAMS, &mut row));
    })
}

/// The same for four states, as a search needs it.
fn together(network: &Network, calls: usize) -> Times {
    let vocabulary = network.vocabulary();
    let (mut places, mut rows) = (vec![LstmPlace::EMPTY; BEAMS], vec![0.0; BEAMS * vocabulary]);
    timed(calls, |token| {
        let tokens: [u32; BEAMS] = std::array::from_fn(|at| token.wrapping_add(at as u32) % vocabulary as u32);
        black_box(network.evaluate(&mut places.iter_mut().collect::<Vec<_>>(), &tokens, BEAMS, &mut rows));
    })
}

fn read_again(network: &Network, calls: usize) -> Times {
    let mut lstm = Lstm::new(network, History::Last(16));
    timed(calls, |token| {
        lstm.observe(token % network.vocabulary() as u32);
        black_box(lstm.predict(1, BEAMS));
    })
}

fn beams(network: &Network, calls: usize) -> Times {
    let mut lstm = Lstm::new(network, History::Request);
    timed(calls, |token| {
        lstm.observe(token % network.vocabulary() as u32);
        black_box(lstm.predict(HORIZONS, BEAMS));
    })
}
