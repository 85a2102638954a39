//! Row numbers and decoded rows of one core.

use super::super::Setting;
use super::super::rows::{Row, Times};
use cenote_console::failure::Failure;
use cenote_engram::{Addresses, NgramConfig, RowFormat, Stored, TokenMap};
use std::hint::black_box;
use std::time::Instant;

const V41: &str = r#"{"engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256,
    "engram_vocab_size": 16000000, "engram_compressed_vocab_size": 99092, "engram_pad_token_id": 2}"#;
const QWEN: &str = r#"{"ple_layer_ids": [2], "ple_embed_dim": 2560, "vocab_size": 248320, "eos_token_id": 248044}"#;

/// Tokens of a call, as of a long prefill.
const TOKENS: usize = 4096;
/// N-grams per second.
const GOAL: f64 = 1e8;

/// Nanoseconds of each call.
fn times(setting: &Setting, mut call: impl FnMut()) -> Times {
    let timed = |_| {
        let start = Instant::now();
        call();
        start.elapsed().as_nanos() as f64
    };
    (0..setting.choose(2000, 200)).map(timed).collect()
}

pub fn measure(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut all = Vec::new();
    for (name, config) in [("DeepSeek-V4.1", V41), ("Qwen3.8", QWEN)] {
        let config = NgramConfig::parse(config.as_bytes())?;
        let ids = config.ids as u32;
        let map = TokenMap::of_ids((0..ids).collect())?;
        let ngrams = TOKENS * config.orders() * config.layer_ids.len();
        let addresses = Addresses::new(config, Some(map))?;
        let tokens: Vec<u32> = (0..TOKENS as u32).map(|at| at.wrapping_mul(2_654_435_761) % ids).collect();
        let (mut history, mut rows) = (addresses.start(), Vec::new());
        let times = times(setting, || {
            rows.clear();
            let known = addresses.rows(&mut history, black_box(tokens.as_slice()).into(), &mut rows);
            known.expect("the tokens are ids");
            black_box(&rows);
        });
        let each: Times = times.iter().map(|time| time / ngrams as f64).collect();
        let speed = 1e9 / super::super::rows::median(&each) / GOAL;
        all.push(
            Row::nanoseconds(format!("{name}: row numbers of an n-gram, over 100 M/s"), &each)
                .ratio_at_least(speed, 1.0),
        );
    }
    for (stored, scale, values) in
        [(Stored::E4m3Ue8m0, None, 256), (Stored::E4m3, Some(0.01), 160), (Stored::F16, None, 160)]
    {
        let format = RowFormat::new(stored, scale)?;
        let bytes = stored.row_bytes(values)?;
        let rows: Vec<u8> = (0..64 * bytes).map(|at| (at * 37 % 120) as u8).collect();
        let mut out = vec![0; values];
        let times = times(setting, || {
            for row in black_box(&rows).chunks_exact(bytes) {
                format.to_bf16(row, &mut out).expect("a row");
                black_box(&out);
            }
        });
        all.push(Row::rate(format!("{stored}: decode rows of {bytes} B"), 64 * bytes as u64, &times));
    }
    Ok(all)
}
