//! The engine's logits of a model with tables of n-grams, against the definition in f64.

use crate::common::engram::{
    EPS, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, MIDDLE, ROW_VALUES, SCALE, TABLES, Tiny, WIDTH,
};
use cenote_engine::kv::KvArena;
use cenote_engine::llama::{LogitsOf, SeqChunk};
use cenote_engine::{EngineConfig, LoadedModel};
use cenote_engram::Stored;

/// `weight · x`, with `weight` `[out][in]`.
fn product(weight: &[f32], x: &[f64]) -> Vec<f64> {
    weight.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
}

fn norm(x: &[f64], weight: &[f32]) -> Vec<f64> {
    let scale = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + EPS).sqrt().recip();
    x.iter().zip(weight).map(|(x, weight)| x * scale * f64::from(*weight)).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn rotate(head: &mut [f64], position: usize) {
    let half = head.len() / 2;
    for pair in 0..half {
        let angle = position as f64 / 10_000_f64.powf(2.0 * pair as f64 / head.len() as f64);
        let (a, b) = (head[pair], head[pair + half]);
        (head[pair], head[pair + half]) = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin());
    }
}

/// Value `at` of a stored row.
fn value(tiny: &Tiny, (layer, stored): (usize, Stored), row: usize, at: usize) -> f64 {
    let bytes = &tiny.rows[&layer];
    let place = row * ROW_VALUES + at;
    if stored == Stored::Bf16 {
        return half::bf16::from_le_bytes([bytes[2 * place], bytes[2 * place + 1]]).to_f64();
    }
    let (exponent, mantissa) = (i32::from(bytes[place] >> 3 & 15), f64::from(bytes[place] & 7));
    let magnitude = match exponent {
        0 => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2_f64.powi(exponent - 7),
    };
    let scale = match stored {
        Stored::E4m3 => f64::from(SCALE),
        _ => 2_f64.powi(i32::from(bytes[bytes.len() - bytes.len() / 33 + row]) - 127),
    };
    if bytes[place] & 0x80 == 0 { magnitude * scale } else { -magnitude * scale }
}

/// The rows of a position in a table, by the published formula.
fn rows(tiny: &Tiny, table: usize, tokens: &[u32], position: usize) -> Vec<usize> {
    let (addresses, hash) = (&tiny.addresses, &tiny.addresses.layers()[table]);
    let map = addresses.map().unwrap().ids();
    let id = |back: usize| u64::from(position.checked_sub(back).map_or(addresses.pad(), |at| map[tokens[at] as usize]));
    let mut rows = Vec::new();
    let mut mixed = id(0).wrapping_mul(hash.multipliers[0]);
    for (order, (primes, offsets)) in hash.primes.iter().zip(&hash.offsets).enumerate() {
        mixed ^= id(order + 1).wrapping_mul(hash.multipliers[order + 1]);
        rows.extend(primes.iter().zip(offsets).map(|(prime, offset)| (mixed % prime + offset) as usize));
    }
    rows
}

fn add_engram(tiny: &Tiny, layer: usize, tokens: &[u32], x: &mut [Vec<f64>]) {
    let table = TABLES.iter().position(|(own, _)| *own == layer).unwrap();
    let weight = |part: &str| &tiny.weights[&format!("model.layers.{layer}.engram.{part}.weight")];
    for (position, x) in x.iter_mut().enumerate() {
        let read = rows(tiny, table, tokens, position);
        let flat: Vec<f64> =
            read.iter().flat_map(|row| (0..ROW_VALUES).map(move |at| value(tiny, TABLES[table], *row, at))).collect();
        assert_eq!(flat.len(), WIDTH);
        let both = product(weight("wkv"), &flat);
        let (key, added) = both.split_at(HIDDEN);
        let (query, key) = (norm(x, weight("q_norm")), norm(key, weight("k_norm")));
        let dot = query.iter().zip(&key).map(|(query, key)| query * key).sum::<f64>() / (HIDDEN as f64).sqrt();
        let root = dot.abs().max(1e-6).sqrt();
        let gate = sigmoid(if dot < 0.0 { -root } else { root });
        x.iter_mut().zip(added).for_each(|(x, added)| *x += gate * added);
    }
}

/// Logits of all tokens.
fn reference(tiny: &Tiny, tokens: &[u32], with_tables: bool) -> Vec<f64> {
    let embedding = &tiny.weights["model.embed_tokens.weight"];
    let row = |token: &u32| embedding[*token as usize * HIDDEN..][..HIDDEN].iter().map(|x| f64::from(*x)).collect();
    let mut x: Vec<Vec<f64>> = tokens.iter().map(row).collect();
    for layer in 0..LAYERS {
        let weight = |part: &str| &tiny.weights[&format!("model.layers.{layer}.{part}.weight")];
        if with_tables {
            add_engram(tiny, layer, tokens, &mut x);
        }
        let normed: Vec<Vec<f64>> = x.iter().map(|x| norm(x, weight("input_layernorm"))).collect();
        let rotated = |name: &str| {
            let mut all: Vec<Vec<f64>> = normed.iter().map(|x| product(weight(name), x)).collect();
            for (position, row) in all.iter_mut().enumerate() {
                row.chunks_exact_mut(HEAD_DIM).for_each(|head| rotate(head, position));
            }
            all
        };
        let (queries, keys) = (rotated("self_attn.q_proj"), rotated("self_attn.k_proj"));
        let values: Vec<Vec<f64>> = normed.iter().map(|x| product(weight("self_attn.v_proj"), x)).collect();
        for (position, x) in x.iter_mut().enumerate() {
            let mut attended = Vec::new();
            for head in 0..HEADS {
                let (own, shared) = (head * HEAD_DIM, head / (HEADS / KV_HEADS) * HEAD_DIM);
                let query = &queries[position][own..own + HEAD_DIM];
                let score = |key: &Vec<f64>| {
                    let dot: f64 = query.iter().zip(&key[shared..]).map(|(query, key)| query * key).sum();
                    (dot / (HEAD_DIM as f64).sqrt()).exp()
                };
                let scores: Vec<f64> = keys[..=position].iter().map(score).collect();
                let total: f64 = scores.iter().sum();
                attended.extend((0..HEAD_DIM).map(|at| {
                    scores.iter().zip(&values).map(|(score, value)| score * value[shared + at]).sum::<f64>() / total
                }));
            }
            let projected = product(weight("self_attn.o_proj"), &attended);
            x.iter_mut().zip(projected).for_each(|(x, projected)| *x += projected);
            let normed = norm(x, weight("post_attention_layernorm"));
            let (gate, up) = (product(weight("mlp.gate_proj"), &normed), product(weight("mlp.up_proj"), &normed));
            let middle: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| gate * sigmoid(*gate) * up).collect();
            assert_eq!(middle.len(), MIDDLE);
            x.iter_mut().zip(product(weight("mlp.down_proj"), &middle)).for_each(|(x, down)| *x += down);
        }
    }
    x.iter().flat_map(|x| product(embedding, &norm(x, &tiny.weights["model.norm.weight"]))).collect()
}

#[test]
fn logits_are_those_of_the_definition_for_every_row_format() {
    let tiny = Tiny::new();
    let model = LoadedModel::load(&EngineConfig {
        threads: 2,
        ..EngineConfig::new(tiny.path(), cenote_base::Clock::stopped())
    })
    .unwrap();
    let tokens = tiny.tokens(3, 40);
    let table = [2, 0, 1];
    let chunk =
        SeqChunk { tokens: &tokens, before: &[], start_position: 0, block_table: &table, logits: LogitsOf::All };
    let logits = model.forward(&[chunk], &mut KvArena::new(*model.layout(), 3));
    let expected = reference(&tiny, &tokens, true);
    assert_eq!(logits.len(), expected.len());
    let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let worst = logits.iter().zip(&expected).map(|(ours, exact)| (f64::from(*ours) - exact).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-4 * largest, "a logit is off by {worst} of {largest}");
    // The tables matter, or the comparison would show nothing.
    let without = reference(&tiny, &tokens, false);
    let change = without.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(change > 0.1 * largest, "the tables change logits by {change} of {largest}");
}
