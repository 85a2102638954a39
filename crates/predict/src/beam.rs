//! Guesses at later tokens: the most probable continuations, four at a time.

use crate::guess::{Guess, best};
use crate::{BEAMS, Model};

/// A continuation of the request.
struct Beam<P> {
    place: P,
    probability: f32,
}

/// Guesses for each of the next `horizons` positions. The first ones are the model's. Later ones
/// weight what follows each kept continuation by the probability of that continuation, relative to
/// all kept ones.
pub fn search<M: Model>(model: &M, horizons: usize, count: usize) -> Vec<Vec<Guess>> {
    let vocabulary = model.vocabulary();
    let mut beams = vec![Beam { place: model.place(), probability: 1.0 }];
    let mut rows = Vec::new();
    let mut guesses = Vec::with_capacity(horizons);
    for horizon in 1..=horizons {
        let places: Vec<&M::Place> = beams.iter().map(|beam| &beam.place).collect();
        model.distributions(&places, &mut rows);
        let all: f32 = beams.iter().map(|beam| beam.probability).sum();
        for (beam, row) in beams.iter().zip(rows.chunks_exact_mut(vocabulary)) {
            let share = if all > 0.0 { beam.probability / all } else { 1.0 / beams.len() as f32 };
            row.iter_mut().for_each(|probability| *probability *= share);
        }
        if horizon < horizons {
            beams = extended(model, &beams, &rows);
        }
        let (sums, others) = rows.split_at_mut(vocabulary);
        for row in others.chunks_exact(vocabulary) {
            sums.iter_mut().zip(row).for_each(|(sum, probability)| *sum += probability);
        }
        guesses.push(best(sums, count));
    }
    guesses
}

/// The best continuations by one token. `rows` has the probabilities of each, beam after beam.
fn extended<M: Model>(model: &M, beams: &[Beam<M::Place>], rows: &[f32]) -> Vec<Beam<M::Place>> {
    let mut ends: Vec<(usize, Guess)> = Vec::new();
    for (beam, row) in rows.chunks_exact(model.vocabulary()).enumerate() {
        ends.extend(best(row, BEAMS).into_iter().map(|guess| (beam, guess)));
    }
    // A stable sort: of equal ones, the better beam and the lower token come first.
    ends.sort_by(|(_, a), (_, b)| b.probability.total_cmp(&a.probability));
    ends.truncate(BEAMS);
    let from: Vec<(&M::Place, u32)> = ends.iter().map(|(beam, end)| (&beams[*beam].place, end.token)).collect();
    let places = model.follow(&from);
    places.into_iter().zip(ends).map(|(place, (_, end))| Beam { place, probability: end.probability }).collect()
}
