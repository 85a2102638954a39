//! Prints how many rows and n-grams a second one core computes:
//! `cargo run --release -p cenote-engram --example speed`

use cenote_engram::{Addresses, NgramConfig, RowFormat, Stored, TokenMap, vector_level};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

const V41: &str = r#"{"engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256,
    "engram_vocab_size": 16000000, "engram_compressed_vocab_size": 99092, "engram_pad_token_id": 2}"#;
const QWEN: &str = r#"{"ple_layer_ids": [2], "ple_embed_dim": 2560, "vocab_size": 248320, "eos_token_id": 248044}"#;

/// Tokens of a call, as of a long prefill.
const TOKENS: usize = 4096;
/// Each figure is the fastest of the rounds.
const ROUNDS: usize = 7;
/// Seconds of a round.
const ROUND: f64 = 0.2;

/// Seconds that this thread ran: the machine may have other work.
fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Calls in a second of a core, in the fastest round.
fn calls_per_second(mut call: impl FnMut()) -> f64 {
    let round = |call: &mut dyn FnMut()| {
        let (start, mut calls) = (thread_seconds(), 0);
        loop {
            (0..16).for_each(|_| call());
            calls += 16;
            let seconds = thread_seconds() - start;
            if seconds > ROUND {
                return f64::from(calls) / seconds;
            }
        }
    };
    (0..ROUNDS).map(|_| round(&mut call)).fold(0.0, f64::max)
}

#[allow(clippy::print_stdout, reason = "it prints what it measures")]
fn main() {
    println!("one core, {}, {TOKENS} tokens a call, fastest of {ROUNDS} rounds", vector_level());
    for (name, config) in [("DeepSeek-V4.1", V41), ("Qwen3.8", QWEN)] {
        let config = NgramConfig::parse(config.as_bytes()).expect("a configuration");
        let ids = config.ids as u32;
        let map = TokenMap::of_ids((0..ids).collect()).expect("a map");
        let ngrams = TOKENS * config.orders() * config.layer_ids.len();
        let addresses = Addresses::new(config, Some(map)).expect("tables");
        let tokens: Vec<u32> = (0..TOKENS as u32).map(|at| at.wrapping_mul(2_654_435_761) % ids).collect();
        let (mut history, mut rows) = (addresses.start(), Vec::new());
        let calls = calls_per_second(|| {
            rows.clear();
            addresses.rows(&mut history, black_box(tokens.as_slice()).into(), &mut rows).expect("known tokens");
            black_box(&rows);
        });
        println!(
            "{name}: {:.0} M n-grams/s, {:.0} M rows/s, {:.1} M tokens/s",
            calls * ngrams as f64 / 1e6,
            calls * rows.len() as f64 / 1e6,
            calls * TOKENS as f64 / 1e6
        );
    }
    for (stored, scale, values) in
        [(Stored::E4m3Ue8m0, None, 256), (Stored::E4m3, Some(0.01), 160), (Stored::F16, None, 160)]
    {
        let format = RowFormat::new(stored, scale).expect("a format");
        let bytes = stored.row_bytes(values).expect("whole blocks");
        let row: Vec<u8> = (0..bytes).map(|at| (at * 37 % 120) as u8).collect();
        let mut out = vec![0; values];
        let calls = calls_per_second(|| {
            format.to_bf16(black_box(&row), &mut out).expect("a row");
            black_box(&out);
        });
        println!("{stored}, rows of {bytes} B: {:.1} M rows/s, {:.2} GB/s", calls / 1e6, calls * bytes as f64 / 1e9);
    }
}
