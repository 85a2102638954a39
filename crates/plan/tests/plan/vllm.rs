//! What each layer keeps, as vLLM says it of the same configurations.
//!
//! `crates/py/tests/vllm/plan_specs.py` writes `vllm.json`, and `test_plan_specs.py` beside it compares
//! the file with the installed vLLM.

use cenote_plan::layer::Layer;
use cenote_plan::model::Model;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct File {
    architectures: Vec<Architecture>,
}

#[derive(Deserialize)]
struct Architecture {
    name: String,
    layers: Vec<Row>,
    config: Map<String, Value>,
}

#[derive(Deserialize)]
struct Row {
    kind: String,
    bytes: u64,
    tokens: u64,
    layers: u64,
}

/// Layers by kind, bytes of a token, of a state or of a run, and tokens of a window, a chunk or a run.
type Counts = BTreeMap<(String, u64, u64), u64>;

/// Models without a plan, and the key that a refusal names. vLLM keeps these latents in the model's type,
/// whatever the file says of KV.
const REFUSED: [(&str, &str); 1] = [("DeepSeek-V3 with KV in FP8", "quantization_config.kv_cache_scheme")];

fn all() -> Vec<Architecture> {
    let file: File = serde_json::from_slice(include_bytes!("vllm.json")).expect("the file of the script");
    file.architectures
}

/// Those that have a plan.
fn architectures() -> Vec<Architecture> {
    all().into_iter().filter(|one| REFUSED.iter().all(|(name, _)| *name != one.name)).collect()
}

/// vLLM keeps a compressor's recent inputs as windows of f32; to a plan they are states.
fn theirs(architecture: &Architecture) -> Counts {
    let mut counts = Counts::new();
    let vectors: Vec<u64> = architecture.layers.iter().filter(|row| row.kind == "run").map(|row| row.bytes).collect();
    for row in &architecture.layers {
        let is_inputs = row.kind == "window" && !vectors.is_empty() && !vectors.contains(&row.bytes);
        let key = if is_inputs {
            ("state".to_owned(), row.bytes * row.tokens, 0)
        } else {
            (row.kind.clone(), row.bytes, row.tokens)
        };
        *counts.entry(key).or_default() += row.layers;
    }
    counts
}

fn ours(model: &Model) -> Counts {
    let mut counts = Counts::new();
    model.layers.iter().for_each(|layer| count(layer, model.value_bytes, &mut counts));
    counts
}

fn count(layer: &Layer, value_bytes: u64, counts: &mut Counts) {
    let mut add =
        |kind: &str, bytes: u64, tokens: u64| *counts.entry((kind.to_owned(), bytes, tokens)).or_default() += 1;
    let written = layer.written_bytes(value_bytes) as u64;
    match layer {
        Layer::Full { .. } => add("full", written, 0),
        Layer::Window { tokens, .. } => add("window", written, *tokens),
        Layer::Chunk { tokens, .. } => add("chunk", written, *tokens),
        Layer::State { bytes } => add("state", *bytes, 0),
        Layer::Latent { index_bytes, .. } => {
            add("full", written - index_bytes, 0);
            if *index_bytes > 0 {
                add("full", *index_bytes, 0);
            }
        }
        Layer::Several { parts } => parts.iter().for_each(|part| count(part, value_bytes, counts)),
        Layer::Compressed { bytes, ratio, window, index_bytes } => {
            add("window", *bytes, *window);
            if *ratio > 0 {
                add("run", *bytes, *ratio);
            }
            if *index_bytes > 0 {
                add("run", *index_bytes, *ratio);
            }
        }
        Layer::Shared { .. } | Layer::Nothing => {}
    }
}

#[test]
fn layers_keep_what_vllm_keeps() {
    let all = architectures();
    assert!(all.len() >= 25, "{} architectures", all.len());
    let wrong = |architecture: &Architecture| {
        let config = Value::Object(architecture.config.clone()).to_string();
        let found = match Model::parse(config.as_bytes()) {
            Ok(model) if ours(&model) == theirs(architecture) => return None,
            Ok(model) => format!("{:?}", ours(&model)),
            Err(error) => error.to_string(),
        };
        Some(format!("{}: {found}\n  vLLM: {:?}", architecture.name, theirs(architecture)))
    };
    let wrong: Vec<String> = all.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn what_engines_keep_in_other_ways_is_refused_by_its_key() {
    for (name, key) in REFUSED {
        let one = all().into_iter().find(|one| one.name == name).expect("a row of the file");
        let error = Model::parse(Value::Object(one.config).to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{name}: {error}");
    }
}

#[test]
fn sums_follow_from_the_layers() {
    const TOKENS: u64 = 10_000;
    for architecture in architectures() {
        let model = Model::parse(Value::Object(architecture.config.clone()).to_string().as_bytes()).expect("as above");
        let (mut token, mut sequence) = (0.0, 0);
        for row in &architecture.layers {
            let bytes = row.bytes * row.layers;
            match row.kind.as_str() {
                "full" => (token, sequence) = (token + bytes as f64, sequence + bytes * TOKENS),
                "run" => {
                    (token, sequence) =
                        (token + bytes as f64 / row.tokens as f64, sequence + bytes * (TOKENS / row.tokens))
                }
                "state" => sequence += bytes,
                _ => sequence += bytes * row.tokens.min(TOKENS),
            }
        }
        let name = &architecture.name;
        assert!((model.token_bytes() - token).abs() < 1e-6, "{name}: {} and {token}", model.token_bytes());
        assert_eq!(model.sequence_bytes(TOKENS), sequence as f64, "{name}");
    }
}

/// A statement of layers that is not known must not pass as a plain model.
#[test]
fn a_renamed_statement_is_refused() {
    let statements = [
        "layer_types",
        "layers_block_type",
        "attn_layer_period",
        "hybrid_override_pattern",
        "linear_attn_config",
        "hybrid_layer_pattern",
        "attention_chunk_size",
        "kv_lora_rank",
        "num_kv_shared_layers",
        "sliding_window",
        "attn_type_list",
        "block_configs",
        "compress_ratios",
        "quantization_config",
    ];
    let mut renamed = 0;
    for architecture in architectures() {
        for key in statements {
            let mut config = architecture.config.clone();
            let Some(value) = config.remove(key).filter(|value| !value.is_null() && *value != 0) else { continue };
            config.insert(format!("{key}_v2"), value);
            // The class's own name says what the key said.
            config.insert("model_type".to_owned(), "newcomer".into());
            let read = Model::parse(Value::Object(config).to_string().as_bytes());
            let same = read.as_ref().is_ok_and(|model| ours(model) == theirs(&architecture));
            assert!(read.is_err() || same, "{}: `{key}_v2` is passed over", architecture.name);
            renamed += 1;
        }
    }
    assert!(renamed > 25, "{renamed} keys");
}
