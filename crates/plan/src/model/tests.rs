use super::*;
use crate::layer::Heads;
use serde_json::json;

fn parse(value: &Value) -> Result<Model, PlanError> {
    Model::parse(value.to_string().as_bytes())
}

const HEADS: Heads = Heads { heads: 2, key_dim: 64, value_dim: 64 };
const FULL: Layer = Layer::Full { heads: HEADS };
const WINDOW: Layer = Layer::Window { heads: HEADS, tokens: 128 };
const CHUNK: Layer = Layer::Chunk { heads: HEADS, tokens: 128 };

/// The layers of a model with four layers and these keys.
fn layers(more: &Value) -> Vec<Layer> {
    try_layers(more).unwrap_or_else(|error| panic!("{more}: {error}"))
}

fn try_layers(more: &Value) -> Result<Vec<Layer>, PlanError> {
    let mut config = json!({
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 256,
    });
    for (key, value) in more.as_object().expect("an object") {
        config[key] = value.clone();
    }
    Ok(parse(&config)?.layers)
}

#[test]
fn grouped_heads_are_read_from_both_generations_of_names() {
    let llama = json!({
        "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
        "torch_dtype": "bfloat16", "max_position_embeddings": 8192,
    });
    let full = |heads, dim| Layer::Full { heads: Heads { heads, key_dim: dim, value_dim: dim } };
    let model = Model { layers: vec![full(8, 128); 2], value_bytes: 2, context: Some(8192) };
    assert_eq!(parse(&llama).unwrap(), model);
    let gpt = parse(&json!({ "n_layer": 1, "n_head": 12, "n_embd": 768, "dtype": "float32" })).unwrap();
    assert_eq!((gpt.layers[0].clone(), gpt.value_bytes), (full(12, 64), 4));
    let falcon = json!({ "num_hidden_layers": 1, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": true });
    assert_eq!(parse(&falcon).unwrap().layers, [full(1, 64)]);
    let dbrx = json!({ "n_layers": 1, "n_heads": 48, "d_model": 6144, "attn_config": { "kv_n_heads": 8 } });
    assert_eq!(parse(&dbrx).unwrap().layers, [full(8, 128)]);
    let scaled = json!({ "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64, "num_kv_heads": [2, 3] });
    assert_eq!(parse(&scaled).unwrap().layers, [full(2, 64), full(3, 64)]);
}

#[test]
fn each_statement_of_layers_is_read() {
    let mamba = json!({ "mamba_d_state": 16, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_conv": 4 });
    let with = |more: Value| {
        let mut all = mamba.clone();
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        layers(&all)
    };
    let state = Layer::State { bytes: 2 * (64 * 3 + 32 * 16) };
    let one_in_four = vec![state.clone(), state.clone(), state.clone(), FULL];
    assert_eq!(with(json!({ "attn_layer_period": 4, "attn_layer_offset": 3 })), one_in_four);
    assert_eq!(with(json!({ "attn_layer_indices": [3] })), one_in_four);
    assert_eq!(with(json!({ "hybrid_override_pattern": "MMM*" })), one_in_four);
    assert_eq!(with(json!({ "layers_block_type": ["mamba", "mamba", "mamba", "attention"] })), one_in_four);
    let mixed = json!({ "layer_types": ["full_attention", "hybrid", "mamba", "moe"] });
    assert_eq!(with(mixed), [FULL, FULL.with(state.clone()), state.clone(), Layer::Nothing]);
    assert_eq!(with(json!({ "model_type": "falcon_h1" })), vec![FULL.with(state); 4]);
    let lightning = Layer::State { bytes: 2 * 4 * 64 * 64 };
    let minimax = layers(&json!({ "attn_type_list": [0, 1, 0, 0] }));
    assert_eq!(minimax, [lightning.clone(), FULL, lightning.clone(), lightning]);
    let kimi = json!({ "linear_attn_config": {
        "full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 4,
    }});
    let kda = Layer::State { bytes: 2 * 3 * 32 * 3 + 4 * 4 * 8 * 8 };
    assert_eq!(layers(&kimi), [kda.clone(), kda.clone(), kda, FULL]);
    let delta = json!({
        "full_attention_interval": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
    });
    let delta_state = Layer::State { bytes: 2 * 96 * 3 + 4 * 4 * 8 * 16 };
    assert_eq!(layers(&delta), [delta_state.clone(), delta_state.clone(), delta_state, FULL]);
    let conv = Layer::State { bytes: 2 * 256 * 2 };
    let lfm2 = json!({ "model_type": "lfm2", "full_attn_idxs": [1], "conv_L_cache": 3, "conv_bias": false });
    assert_eq!(layers(&lfm2), [conv.clone(), FULL, conv.clone(), conv]);
}

#[test]
fn windows_follow_a_pattern_or_the_class() {
    let with = |more: Value| {
        let mut all = json!({ "sliding_window": 128 });
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        try_layers(&all)
    };
    let last = vec![WINDOW, WINDOW, WINDOW, FULL];
    let one_more = Layer::Window { heads: HEADS, tokens: 129 };
    for (more, expected) in [
        (json!({ "sliding_window_pattern": 2 }), vec![WINDOW, FULL, WINDOW, FULL]),
        (json!({ "sliding_window_pattern": "LLLG" }), last.clone()),
        (json!({ "global_attn_every_n_layers": 4 }), last),
        (json!({ "model_type": "gemma2" }), vec![WINDOW, FULL, WINDOW, FULL]),
        (json!({ "model_type": "gemma3_text" }), vec![WINDOW; 4]),
        (json!({ "model_type": "cohere2" }), vec![one_more.clone(), one_more.clone(), one_more, FULL]),
        (json!({ "model_type": "mistral" }), vec![WINDOW; 4]),
        (
            json!({ "model_type": "qwen2", "max_window_layers": 3, "use_sliding_window": true }),
            vec![FULL, FULL, FULL, WINDOW],
        ),
        (json!({ "model_type": "qwen2", "max_window_layers": 3, "use_sliding_window": false }), vec![FULL; 4]),
        (json!({ "layer_types": vec!["full_attention"; 4] }), vec![FULL; 4]),
    ] {
        assert_eq!(with(more.clone()).unwrap_or_else(|error| panic!("{more}: {error}")), expected, "{more}");
    }
    let error = with(json!({ "model_type": "newcomer" })).unwrap_err().to_string();
    assert!(error.contains("`sliding_window`") && error.contains("`newcomer`"), "{error}");
    let mut other = HEADS;
    (other.heads, other.key_dim, other.value_dim) = (1, 48, 32);
    let mimo = with(json!({
        "hybrid_layer_pattern": [0, 1, 1, 1], "swa_num_key_value_heads": 1, "swa_head_dim": 48, "swa_v_head_dim": 32,
        "v_head_dim": 32,
    }));
    let window = Layer::Window { heads: other, tokens: 128 };
    let full = Layer::Full { heads: Heads { value_dim: 32, ..HEADS } };
    assert_eq!(mimo.unwrap(), [full, window.clone(), window.clone(), window]);
}

#[test]
fn llama_4_sees_all_tokens_in_each_fourth_layer() {
    let expected = [CHUNK, CHUNK, CHUNK, FULL];
    for more in [
        json!({}),
        json!({ "no_rope_layers": [1, 1, 1, 0] }),
        json!({ "no_rope_layer_interval": 4, "no_rope_layers": [] }),
        json!({ "layer_types": ["chunked_attention", "chunked_attention", "chunked_attention", "full_attention"] }),
    ] {
        let mut all = json!({ "model_type": "llama4_text", "attention_chunk_size": 128 });
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        assert_eq!(layers(&all), expected, "{more}");
    }
    let other = try_layers(&json!({ "model_type": "other", "attention_chunk_size": 128 })).unwrap_err().to_string();
    assert!(other.contains("`attention_chunk_size`"), "{other}");
    // Elsewhere they are about rotation alone.
    assert_eq!(layers(&json!({ "model_type": "smollm3", "no_rope_layers": [1, 1, 1, 0] })), vec![FULL; 4]);
}

#[test]
fn latents_have_a_rotary_part_and_maybe_an_index() {
    let mla = json!({ "num_hidden_layers": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128 });
    assert_eq!(parse(&mla).unwrap().layers, vec![Layer::Latent { values: 576, index_bytes: 0 }; 2]);
    let mut indexed = mla;
    (indexed["index_head_dim"], indexed["index_topk"]) = (json!(128), json!(2048));
    assert_eq!(parse(&indexed).unwrap().layers, vec![Layer::Latent { values: 576, index_bytes: 132 }; 2]);
    indexed["index_topk_pattern"] = json!("FS");
    assert_eq!(parse(&indexed).unwrap().layers[1], Layer::Latent { values: 576, index_bytes: 0 });
    indexed["index_topk_pattern"] = json!(null);
    indexed["indexer_types"] = json!(["full", "shared"]);
    let bytes: Vec<f64> = parse(&indexed).unwrap().layers.iter().map(|layer| layer.token_bytes(2)).collect();
    assert_eq!(bytes, [1284.0, 1152.0]);
}

#[test]
fn shared_layers_name_the_last_of_their_kind() {
    let types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"];
    let shared = layers(&json!({ "layer_types": types, "sliding_window": 128, "num_kv_shared_layers": 2 }));
    assert_eq!(shared, [WINDOW, FULL, Layer::Shared { with: 0 }, Layer::Shared { with: 1 }]);
    let error = try_layers(&json!({ "num_kv_shared_layers": 4 })).unwrap_err().to_string();
    assert!(error.contains("`num_kv_shared_layers` is 4"), "{error}");
}

#[test]
fn blocks_state_their_attention() {
    let attention =
        |group: Option<u64>| json!({ "attention": { "n_heads_in_group": group, "no_op": group.is_none() } });
    let blocks = [Some(2), None, Some(4), Some(1)].map(attention);
    let nas = layers(&json!({ "block_configs": blocks, "num_key_value_heads": null }));
    let full = |heads| Layer::Full { heads: Heads { heads, ..HEADS } };
    assert_eq!(nas, [full(2), Layer::Nothing, full(1), full(4)]);
    let mut odd = attention(Some(2));
    odd["attention"]["window_length"] = json!(64);
    let error = try_layers(&json!({ "block_configs": [odd, odd, odd, odd] })).unwrap_err().to_string();
    assert!(error.contains("block_configs.attention.window_length"), "{error}");
}

#[test]
fn runs_are_compressed() {
    let runs = layers(&json!({ "compress_ratios": [1, 4, 128, 4, 0], "sliding_window": 128, "qk_rope_head_dim": 16 }));
    // 48 values in FP8, 16 in BF16, and a scale in eight bytes.
    let of = |ratio, index_bytes| Layer::Compressed { bytes: 88, ratio, window: 128, index_bytes };
    let with = |ratio, bytes| of(ratio, 0).with(Layer::State { bytes });
    // Two runs of four inputs of twice 128 values, or a run of 128 of twice 64, in f32.
    let expected = [of(0, 0), with(4, 8 * 256 * 4), with(128, 128 * 128 * 4), with(4, 8 * 256 * 4)];
    assert_eq!(runs, expected);
    let by_types = |more: &[(&str, Value)]| {
        let types = ["sliding", "compressed_sparse", "heavily_compressed", "compressed_sparse"];
        let types = types.map(|kind| format!("{kind}_attention"));
        let mut config = json!({
            "model_type": "deepseek_v4", "layer_types": types, "sliding_window": 128, "partial_rotary_factor": 0.25,
        });
        more.iter().for_each(|(key, value)| config[*key] = value.clone());
        try_layers(&config)
    };
    assert_eq!(by_types(&[]).unwrap(), expected, "transformers' names of the same");
    assert_eq!(by_types(&[("compress_rates", json!({ "heavily_compressed_attention": 128 }))]).unwrap(), expected);
    let odd = by_types(&[("compress_rates", json!({ "heavily_compressed_attention": "128" }))]).unwrap_err();
    assert!(odd.to_string().contains("`compress_rates`"), "{odd}");
    let odd = by_types(&[("layer_types", json!(vec!["sliding_attention"; 3]))]).unwrap_err();
    assert!(odd.to_string().contains("`layer_types`"), "{odd}");
    let (odd, mut indexed) = (json!(128), json!({ "compress_ratios": [0, 4, 128, 4], "sliding_window": 128 }));
    let error = try_layers(&indexed).unwrap_err().to_string();
    assert!(error.contains("`qk_rope_head_dim` is missing"), "{error}");
    (indexed["index_head_dim"], indexed["qk_rope_head_dim"]) = (odd, json!(16));
    let bytes: Vec<f64> = layers(&indexed).iter().map(|layer| layer.token_bytes(2)).collect();
    assert_eq!(bytes, [0.0, (88.0 + 132.0) / 4.0, 88.0 / 128.0, (88.0 + 132.0) / 4.0]);
    assert_eq!(bytes[2], layers(&indexed)[2].token_bytes(1), "no type of KV changes them");
}

#[test]
fn kv_may_have_another_type_than_weights() {
    let with = |quantization: Value| {
        parse(&json!({
            "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 64, "torch_dtype": "bfloat16",
            "quantization_config": quantization,
        }))
    };
    let bytes = |quantization| with(quantization).unwrap().value_bytes;
    assert_eq!(bytes(json!({ "quant_method": "fp8" })), 2);
    assert_eq!(bytes(json!({ "kv_cache_scheme": null })), 2);
    assert_eq!(bytes(json!({ "kv_cache_scheme": { "num_bits": 8, "type": "float" } })), 1);
    assert_eq!(bytes(json!({ "kv_cache_quant_algo": "FP8" })), 1);
    assert_eq!(bytes(json!({ "quant_method": "modelopt", "quantization": { "kv_cache_quant_algo": "fp8" } })), 1);
    let older = json!({
        "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 64,
        "compression_config": { "kv_cache_scheme": { "num_bits": 8 } },
    });
    assert_eq!(parse(&older).unwrap().value_bytes, 1);
    // Engines keep latents of such files in other formats, but for ModelOpt's.
    let latent = |more: Value| {
        let mut config = json!({ "num_hidden_layers": 1, "kv_lora_rank": 512, "qk_rope_head_dim": 64 });
        config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        parse(&config).map(|model| model.token_bytes())
    };
    let scheme = json!({ "kv_cache_scheme": { "num_bits": 8 } });
    let by_modelopt = json!({ "quant_method": "modelopt", "kv_cache_quant_algo": "FP8" });
    assert_eq!(latent(json!({ "quantization_config": by_modelopt })).unwrap(), 576.0);
    for (quantization, index) in [(scheme, json!(null)), (by_modelopt, json!(128))] {
        let error =
            latent(json!({ "quantization_config": quantization, "index_head_dim": index })).unwrap_err().to_string();
        assert!(error.contains("`quantization_config.kv_cache_"), "{error}");
    }
    for (odd, key) in [
        (json!({ "kv_cache_scheme": { "num_bits": 4 } }), "quantization_config.kv_cache_scheme"),
        (json!({ "kv_cache_quant_algo": "NVFP4" }), "quantization_config.kv_cache_quant_algo"),
        (json!({ "kv_groups": 8 }), "quantization_config.kv_groups"),
    ] {
        let error = with(odd).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn a_nested_model_reads_as_a_plain_one() {
    let text = json!({
        "model_type": "gemma3_text", "num_hidden_layers": 7, "hidden_size": 2560, "sliding_window": 1024,
        "time_step_limit": [0.0, 1.0],
    });
    let nested = json!({ "model_type": "gemma3", "text_config": text, "vision_config": { "num_attention_heads": 16 } });
    let of = |value: &Value| parse(value).unwrap();
    assert_eq!(of(&nested), of(&text));
    // The published 4B leaves the class's heads out.
    assert_eq!(of(&nested).token_bytes(), 2.0 * 2.0 * 4.0 * 256.0);
    let infinite = text.to_string().replace("1.0]", "Infinity]");
    assert_eq!(Model::parse(infinite.as_bytes()).unwrap(), of(&text));
}

#[test]
fn a_key_that_may_change_kv_is_refused_by_its_name() {
    for (key, value) in [
        ("kv_reuse_interval", json!(2)),
        ("memory_layers", json!([1, 2])),
        ("mamba_d_state", json!(16)),
        ("attention_sink_window", json!(4)),
        ("sparse_attention_config", json!({ "block": 64 })),
        ("block_size", json!(64)),
        ("is_encoder_decoder", json!(true)),
    ] {
        let error = try_layers(&json!({ key: value })).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{error}");
        // Off, it changes nothing.
        assert_eq!(layers(&json!({ key: null })), vec![FULL; 4]);
    }
}

/// `as_bool` and `as_str` gave none for a value of another type, which read as if the key was absent.
#[test]
fn a_value_of_an_odd_type_is_no_absent_key() {
    for (key, value) in [
        ("use_sliding_window", json!("false")),
        ("multi_query", json!("true")),
        ("is_encoder_decoder", json!(1)),
        ("torch_dtype", json!(16)),
        ("torch_dtype", json!("int4")),
        ("dtype", json!({ "text_config": "float32" })),
        ("num_key_value_heads", json!(0)),
        ("num_key_value_heads", json!("2")),
        ("num_hidden_layers", json!(4.5)),
        ("v_head_dim", json!(0)),
        ("per_layer_config", json!({ "1": { "head_dim": "64" } })),
        ("attn_layer_indices", json!([1, 4])),
        ("full_attn_idxs", json!(["1"])),
        ("attn_config", json!({ "kv_n_heads": "8" })),
    ] {
        let mut config = json!({ "sliding_window": 128, "model_type": "mistral" });
        config[key] = value;
        let error = try_layers(&config).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{config}: {error}");
    }
    let period = json!({ "attn_layer_period": 4, "attn_layer_offset": 4, "mamba_d_state": 16 });
    let error = try_layers(&period).unwrap_err().to_string();
    assert!(error.contains("`attn_layer_offset` is 4"), "{error}");
}

#[test]
fn a_key_of_an_inner_object_is_read_or_refused() {
    let kimi = json!({ "linear_attn_config": {
        "full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 4,
        "num_k_heads": 2,
    }});
    for (config, key) in [
        (kimi, "linear_attn_config.num_k_heads"),
        (json!({ "attn_config": { "kv_n_heads": 2, "sliding_window_size": 64 } }), "attn_config.sliding_window_size"),
    ] {
        let error = try_layers(&config).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{error}");
    }
    let shared =
        layers(&json!({ "attn_config": { "attn_type": "multiquery_attention" }, "num_key_value_heads": null }));
    assert_eq!(shared, vec![Layer::Full { heads: Heads { heads: 1, ..HEADS } }; 4]);
    let text = json!({ "num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 64 });
    let omni = json!({ "thinker_config": { "text_config": text }, "talker_config": { "num_hidden_layers": 9 } });
    assert_eq!(parse(&omni).unwrap().layers, vec![FULL; 4]);
}

#[test]
fn what_cannot_be_counted_is_named() {
    for (config, words) in [
        (json!("x"), "not a JSON object"),
        (json!({}), "`num_hidden_layers` is missing"),
        (json!({ "num_hidden_layers": 0 }), "above zero"),
        (json!({ "num_hidden_layers": 1 }), "`num_attention_heads` is missing"),
        (json!({ "num_hidden_layers": 1, "num_attention_heads": 2 }), "`hidden_size` is missing"),
        (json!({ "num_hidden_layers": 1, "num_attention_heads": -2 }), "`num_attention_heads` is -2"),
        (json!({ "num_hidden_layers": 2, "layer_types": ["full_attention"] }), "a list of 2 names"),
        (json!({ "num_hidden_layers": 1, "layer_types": ["retention"] }), "layer 0 is of type `retention`"),
        (json!({ "num_hidden_layers": 1, "kv_lora_rank": 4 }), "`qk_rope_head_dim` is missing"),
        (json!({ "num_hidden_layers": 2, "hybrid_override_pattern": "M" }), "2 letters"),
        (json!({ "num_hidden_layers": 1, "num_attention_heads": 8, "hidden_size": 4 }), "`hidden_size` is 4"),
        (json!({ "num_hidden_layers": 1, "attn_type_list": [2] }), "zeros and ones"),
        (
            json!({ "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4, "block_configs": [{}] }),
            "`attention`",
        ),
    ] {
        let error = parse(&config).unwrap_err().to_string();
        assert!(error.contains(words), "`{error}` lacks `{words}`");
    }
}
