//! Compares with PyPI transformers on its own checkpoints (`fixtures/make_fixtures.py`).

use cenote_engine::checkpoint::Checkpoint;
use cenote_engine::config::ModelConfig;
use cenote_engine::kernels::ElementType;
use cenote_engine::kv::KvArena;
use cenote_engine::llama::{Llama, LogitsOf, SeqChunk};
use cenote_engine::sampler::greedy;
use std::path::PathBuf;

const CASES: [&str; 5] = ["gqa-tied", "gqa-untied-llama3", "sharded", "mha-bias", "bf16-file"];

fn folder(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(case)
}

fn load(case: &str, element: ElementType) -> Llama {
    let dir = folder(case);
    let config = ModelConfig::load(&dir).unwrap();
    Llama::load(config, &mut Checkpoint::open(&dir).unwrap(), element).unwrap()
}

struct Expected {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    logits: Vec<f32>,
}

fn expected(case: &str) -> Expected {
    let bytes = std::fs::read(folder(case).join("expected.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: &str| {
        let data = tensors.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(8).map(|id| i64::from_le_bytes(id.try_into().unwrap()).try_into().unwrap()).collect()
    };
    let data = tensors.tensor("logits").unwrap().data().to_vec();
    let logits = data.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect();
    Expected { prompt: ids("prompt"), greedy: ids("greedy"), logits }
}

/// Computes `tokens` from position `start` on; returns the logits of all of them.
fn forward(model: &Llama, kv: &mut KvArena, tokens: &[u32], start: usize) -> Vec<f32> {
    let block_table: Vec<u32> = (0..16).rev().collect();
    let chunk =
        SeqChunk { tokens, before: &[], start_position: start, block_table: &block_table, logits: LogitsOf::All };
    model.forward(&[chunk], kv)
}

fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let pairs = got.iter().zip(want);
    norm(&mut pairs.map(|(a, b)| f64::from(*a) - f64::from(*b))) / norm(&mut want.iter().map(|v| f64::from(*v)))
}

#[test]
fn logits_and_greedy_tokens_match_transformers() {
    for case in CASES {
        let model = load(case, ElementType::F32);
        let want = expected(case);
        let mut kv = KvArena::new(model.kv_layout(16, ElementType::F32), 16);
        let logits = forward(&model, &mut kv, &want.prompt, 0);
        assert_eq!(logits.len(), want.logits.len(), "{case}");
        let error = relative_error(&logits, &want.logits);
        assert!(error < 1e-4, "{case}: relative logit error {error:e}");
        let largest = want.logits.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
        let worst = logits.iter().zip(&want.logits).map(|(a, b)| (a - b).abs()).fold(0.0_f32, f32::max);
        assert!(worst < 1e-3 * largest, "{case}: a logit is off by {worst} of {largest}");

        let vocab = model.config().vocab_size;
        let mut token = greedy(&logits[logits.len() - vocab..]);
        let mut tokens = Vec::new();
        while tokens.len() < want.greedy.len() {
            tokens.push(token);
            token = greedy(&forward(&model, &mut kv, &[token], want.prompt.len() + tokens.len() - 1));
        }
        assert_eq!(tokens, want.greedy, "{case}");
    }
}

/// bf16 keeps 8 significant bits: the logits change, but only a little.
#[test]
fn bf16_logits_stay_near_the_f32_ones() {
    for case in CASES {
        let model = load(case, ElementType::Bf16);
        let want = expected(case);
        let mut kv = KvArena::new(model.kv_layout(16, ElementType::Bf16), 16);
        let error = relative_error(&forward(&model, &mut kv, &want.prompt, 0), &want.logits);
        assert!((1e-6..5e-2).contains(&error), "{case}: relative logit error {error:e}");
    }
}
