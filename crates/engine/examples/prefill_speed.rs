//! Prints the prefill and decode speed of a model directory.
//!
//! ```text
//! cargo run --release -p cenote-engine --example prefill_speed -- --model DIR \
//!   [--tokens 2048] [--threads 0] [--dtype f32]
//! ```
#![allow(clippy::print_stdout, reason = "an example prints")]

use cenote_base::prng::Prng;
use cenote_engine::kv::KvArena;
use cenote_engine::llama::{LogitsOf, SeqChunk};
use cenote_engine::{EngineConfig, LoadedModel};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value =
        |name: &str| arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1));
    let number = |name: &str, default: usize| value(name).map_or(Ok(default), |text| text.parse::<usize>());
    let config = EngineConfig {
        threads: number("--threads", 0)?,
        dtype: value("--dtype").map_or("f32", String::as_str).parse()?,
        ..EngineConfig::new(value("--model").ok_or("--model DIR is needed")?)
    };
    let start = Instant::now();
    let model = LoadedModel::load(&config)?;
    let layout = *model.layout();
    println!(
        "{}: {} weight bytes, {} threads, {}, loaded in {:.1?}",
        model.name(),
        model.llama().weight_bytes(),
        model.threads(),
        layout.element,
        start.elapsed()
    );
    let count = number("--tokens", 2048)?.min(model.max_model_len() - 16);
    let mut prng = Prng::new(1);
    let tokens: Vec<u32> = (0..count).map(|_| prng.below(model.llama().config().vocab_size as u64) as u32).collect();
    let blocks = (count + 16).div_ceil(layout.block_tokens);
    let block_table: Vec<u32> = (0..blocks as u32).collect();
    let mut kv = KvArena::new(layout, blocks);
    let (mut best, mut best_cpu) = (f64::MAX, f64::MAX);
    for _ in 0..4 {
        let (start, start_cpu) = (Instant::now(), cpu_seconds());
        for start_position in (0..count).step_by(config.max_num_batched_tokens) {
            let (before, rest) = tokens.split_at(start_position);
            let tokens = &rest[..rest.len().min(config.max_num_batched_tokens)];
            let last = start_position + tokens.len() == count;
            let logits = if last { LogitsOf::Last } else { LogitsOf::Nothing };
            model.forward(&[SeqChunk { tokens, before, start_position, block_table: &block_table, logits }], &mut kv);
        }
        best = best.min(start.elapsed().as_secs_f64());
        best_cpu = best_cpu.min(cpu_seconds() - start_cpu);
    }
    println!("prefill of {count} tokens: {best:.4} s, {:.0} tokens/s; {best_cpu:.2} s of CPU", count as f64 / best);
    let start = Instant::now();
    let mut tokens = tokens;
    for step in 0..16 {
        let chunk = SeqChunk {
            tokens: &[1],
            before: &tokens,
            start_position: count + step,
            block_table: &block_table,
            logits: LogitsOf::Last,
        };
        model.forward(&[chunk], &mut kv);
        tokens.push(1);
    }
    println!("decode after it: {:.1} tokens/s", 16.0 / start.elapsed().as_secs_f64());
    Ok(())
}

/// User and system time of this process in seconds, in ticks of 10 ms; 0 without /proc. Load of
/// other processes affects it less than it affects wall-clock time.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
