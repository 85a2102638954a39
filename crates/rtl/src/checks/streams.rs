//! The shifters and joiners that all engines share.

use super::{same, same_bytes};
use crate::bench::{Bench, Failure, Pace};
use cenote_base::prng::Prng;

/// Words of bytes, the lowest first, with zeros to `words`.
#[must_use]
pub fn words_of(bytes: &[u8], words: usize) -> Vec<u32> {
    let mut padded = bytes.to_vec();
    padded.resize(4 * words, 0);
    padded.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

/// Bytes of words, the lowest first.
#[must_use]
pub fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn random_bytes(prng: &mut Prng, count: usize) -> Vec<u8> {
    (0..count).map(|_| prng.next_u64() as u8).collect()
}

/// The zero-remove shifter: every mask, in order, and its number of words.
///
/// # Errors
/// A word differs.
pub fn compact(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut bench = Bench::new("compact", seed);
    let pins = ["en", "s_valid", "s_data", "s_keep", "s_user", "m_valid", "m_data", "m_count", "m_user"];
    let [en, s_valid, s_data, s_keep, s_user, m_valid, m_data, m_count, m_user] =
        pins.map(|name| bench.model.pin(name));
    bench.model.set(s_valid, 0);
    bench.model.set(en, 1);
    bench.reset();
    let mut expected = std::collections::VecDeque::new();
    let mut number = 0;
    for _ in 0..200 * rounds {
        let moves = prng.below(4) > 0;
        let gives = prng.below(4) > 0;
        let bytes = random_bytes(&mut prng, 64);
        let mask = match prng.below(4) {
            0 => prng.next_u64() & prng.next_u64() & prng.next_u64(),
            1 => prng.next_u64() | prng.next_u64(),
            2 => u64::MAX << prng.below(64),
            _ => prng.next_u64(),
        };
        bench.model.set(en, u32::from(moves));
        bench.model.set(s_valid, u32::from(gives));
        bench.model.set_words(s_data, &words_of(&bytes, 16));
        bench.model.set_words(s_keep, &[mask as u32, (mask >> 32) as u32]);
        bench.model.set(s_user, number);
        if moves && gives {
            let kept: Vec<u8> = (0..64).filter(|at| mask >> at & 1 == 1).map(|at| bytes[at]).collect();
            expected.push_back((kept, number));
            number = (number + 1) % 128;
        }
        bench.step()?;
        if moves && bench.model.get(m_valid) == 1 {
            let (kept, user) = expected.pop_front().ok_or("a vector without an input")?;
            let mut words = [0; 16];
            bench.model.get_words(m_data, &mut words);
            same("number of words", &(bench.model.get(m_count) as usize), &kept.len())?;
            same_bytes("words", &bytes_of(&words)[..kept.len()], &kept)?;
            same("user bits", &bench.model.get(m_user), &user)?;
        }
    }
    if expected.len() > 8 { Err("vectors are missing".to_owned()) } else { Ok(()) }
}

/// Chunks of any length become beats without a gap.
///
/// # Errors
/// A byte differs.
pub fn byte_pack(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut bench = Bench::new("byte_pack", seed);
    let input = bench.input("s", &["data", "count", "last", "user"]);
    let output = bench.output("m", &["data", "count", "last", "user"]);
    bench.reset();
    for _ in 0..10 * rounds {
        bench.pace = Pace::any(&mut prng);
        let chunks = 1 + prng.below(12);
        let (most, flag) = (1 + prng.below(64), prng.below(2) as u32);
        let (mut all, mut last_count) = (Vec::new(), 0);
        for chunk in 0..chunks {
            let bytes = random_bytes(&mut prng, 64);
            let fills = chunk == chunks - 1 && prng.below(3) == 0;
            // Some pages end with a full beat.
            let count = if fills { 64 - all.len() % 64 } else { prng.below(most + 1) as usize };
            all.extend_from_slice(&bytes[..count]);
            last_count = count;
            let mut beat = words_of(&bytes, 16);
            let last = u32::from(chunk == chunks - 1);
            beat.extend([count as u32, last, flag & last]);
            bench.send(input, beat);
        }
        bench.run(2000, |bench| bench.got(output).last().is_some_and(|beat| beat[17] == 1))?;
        let beats = bench.take(output);
        // A full beat has left before a last chunk without bytes arrives.
        let empty = usize::from(last_count == 0 && all.len() % 64 == 0);
        same("beats", &beats.len(), &(all.len().div_ceil(64) + empty))?;
        let mut joined = Vec::new();
        for (at, beat) in beats.iter().enumerate() {
            let is_last = at == beats.len() - 1;
            joined.extend_from_slice(&bytes_of(&beat[..16])[..beat[16] as usize]);
            same("mark of the last beat", &(beat[17] == 1), &is_last)?;
            same("user bit", &beat[18], &(flag & u32::from(is_last)))?;
        }
        same_bytes("bytes", &joined, &all)?;
    }
    Ok(())
}
