//! How often the next tokens are among the guesses, on held-out text.

use super::super::rows::{Row, Times};
use super::early::{Count, Early};
use super::texts::Texts;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_engram::{Addresses, Tokens};
use cenote_predict::TokenPredictor;
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Positions ahead.
const HORIZONS: usize = 4;
/// Guesses that may contain the token.
const TOP: [usize; 4] = [1, 4, 8, 16];

/// Accuracy of a predictor at a position ahead.
#[derive(Serialize)]
pub struct Accuracy {
    predictor: &'static str,
    horizon: usize,
    /// Shares of tokens among the best 1, 4, 8 and 16 guesses.
    top: [f64; 4],
    tokens: u64,
}

/// What CXL-SpecKV says of all its workloads (§4.3.1): k, and shares of tokens among the best k.
const PAPER: [(usize, &str); 3] = [(4, "94 to 97"), (8, "88 to 92"), (16, "78 to 85")];

/// Results of a predictor on all requests.
pub struct Walked {
    /// The time of a token and its four guesses.
    pub row: Row,
    pub accuracy: Vec<Accuracy>,
    pub early: Vec<Early>,
}

/// Reads the requests token by token, and holds guesses against what follows.
pub fn walk(
    name: &'static str,
    predictor: &mut dyn TokenPredictor,
    texts: &Texts,
    addresses: &Addresses,
) -> Result<Walked, Failure> {
    let mut found = [[0_u64; TOP.len()]; HORIZONS];
    let mut tokens = [0_u64; HORIZONS];
    let mut counts = Count::all();
    let mut times = Times::new();
    for request in &texts.requests {
        predictor.restart();
        let mut history = addresses.start();
        for (at, token) in request.iter().enumerate() {
            let start = Instant::now();
            predictor.observe(*token);
            black_box(predictor.predict(1, 4));
            times.push(start.elapsed().as_secs_f64() * 1e9);
            addresses.skip(&mut history, Tokens::from(&[*token][..]))?;
            let guesses = predictor.predict(HORIZONS, TOP[TOP.len() - 1]);
            for (horizon, (guesses, next)) in guesses.iter().zip(&request[at + 1..]).enumerate() {
                tokens[horizon] += 1;
                let place = guesses.iter().position(|guess| guess.token == *next).unwrap_or(usize::MAX);
                for (found, top) in found[horizon].iter_mut().zip(TOP) {
                    *found += u64::from(place < top);
                }
            }
            if let Some(next) = request.get(at + 1) {
                counts.iter_mut().try_for_each(|count| count.add(addresses, &history, &guesses[0], *next))?;
            }
        }
    }
    let accuracy = (1..).zip(tokens.iter().zip(found)).map(|(horizon, (tokens, found))| {
        let top = found.map(|found| found as f64 / (*tokens).max(1) as f64);
        Accuracy { predictor: name, horizon, top, tokens: *tokens }
    });
    Ok(Walked {
        row: Row::microseconds(format!("{name}: a token of the text, four guesses"), &times),
        accuracy: accuracy.collect(),
        early: counts.into_iter().map(|count| count.result(name)).collect(),
    })
}

pub fn table(all: &[Accuracy]) -> String {
    let header = ["predictor", "tokens ahead", "top 1, %", "top 4, %", "top 8, %", "top 16, %"];
    let mut out = output::table(&header).keys(2);
    for row in all {
        let mut cells = vec![row.predictor.to_owned(), row.horizon.to_string()];
        cells.extend(row.top.map(|share| format!("{:.1}", 100.0 * share)));
        out.add_row(cells);
    }
    for (k, shares) in PAPER {
        let cell = |top| if top == k { shares.to_owned() } else { String::new() };
        let mut cells = vec!["SpecKV, Figure 2".to_owned(), format!("k = {k}")];
        cells.extend(TOP.map(cell));
        out.add_row(cells);
    }
    out.to_string()
}
