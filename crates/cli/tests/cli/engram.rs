//! `cenote engram`: rows and decoded values as the published code has them, and what is refused.

use super::support::process::{Cenote, bare};
use super::support::repository;
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

/// A published vector of the crate `engram`.
fn vectors(name: &str) -> Value {
    let path = repository("crates/engram/tests/vectors").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

/// A folder with files, for one call.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, value: &Value) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, value.to_string()).expect("the folder can be written");
        path.to_str().expect("UTF-8").to_owned()
    }

    fn rows(&self, config: &Value, tokens: &Value, more: &[&str]) -> Cenote {
        let (config, tokens) = (self.write("config.json", config), self.write("tokens.json", tokens));
        let line = ["engram", "rows", "--model-config", &config, "--tokens", &tokens, "--json"];
        bare(line.into_iter().chain(more.iter().copied()))
    }

    fn dequant(&self, rows: &Value, more: &[&str]) -> Cenote {
        let rows = self.write("rows.json", &json!({ "rows": rows }));
        bare(["engram", "dequant", "--rows", &rows, "--json"].into_iter().chain(more.iter().copied()))
    }
}

async fn json_of(command: Cenote) -> Value {
    serde_json::from_str(&command.ok().await.out).expect("JSON")
}

fn case(name: &str, at: usize) -> Value {
    vectors(name)[at].clone()
}

/// The case's sequences without their rows.
fn sequences(case: &Value) -> Value {
    let bare = |sequence: &Value| json!({ "tokens": sequence["tokens"], "dead": sequence["dead"] });
    case["sequences"].as_array().expect("sequences").iter().map(bare).collect()
}

fn rows(case: &Value) -> Value {
    case["sequences"].as_array().expect("sequences").iter().map(|sequence| sequence["rows"].clone()).collect()
}

#[tokio::test]
async fn deepseeks_rows_come_with_their_hashes() {
    let (files, case) = (Files::new(), case("deepseek.json", 0));
    let tokens = json!({ "sequences": sequences(&case), "token_map": case["token_map"] });
    let told = json_of(files.rows(&case["config"], &tokens, &["--map"])).await;
    assert_eq!(told["rows"], rows(&case));
    assert_eq!((&told["family"], &told["pad"]), (&json!("deepseek"), &case["pad"]));
    assert_eq!(told["token_map"], case["token_map"]);
    assert_eq!((&told["map"]["tokens"], &told["map"]["ids"]), (&json!(40), &json!(24)));
    for (at, layer) in told["layers"].as_array().expect("layers").iter().enumerate() {
        for key in ["multipliers", "primes", "offsets"] {
            assert_eq!(layer[key], case[key][at], "layer {at}, {key}");
        }
        assert_eq!(layer["layer"], case["config"]["engram_layer_ids"][at]);
        assert_eq!(layer["rows"], case["config"]["engram_num_embeddings"][at]);
        assert_eq!((&layer["row_values"], layer.get("padded_rows")), (&json!(32), None));
    }
    // The same in `text_config`, from a position on, without the map.
    let nested = json!({ "text_config": case["config"] });
    let from = 7;
    let mut tokens = tokens;
    tokens["sequences"][2]["from"] = json!(from);
    let told = json_of(files.rows(&nested, &tokens, &[])).await;
    assert_eq!(told["rows"][2].as_array().expect("rows")[..], rows(&case)[2].as_array().expect("rows")[from..]);
    assert_eq!((told["rows"][1].clone(), told.get("token_map")), (rows(&case)[1].clone(), None));
}

/// Rows around images were those of the image token, because only the list of dead positions counted.
#[tokio::test]
async fn image_tokens_are_masked_without_a_list() {
    let (files, case) = (Files::new(), case("deepseek.json", 0));
    let image = 129_264;
    let with_images = |sequence: &Value| {
        let mut tokens = sequence["tokens"].clone();
        for at in sequence["dead"].as_array().expect("positions") {
            tokens[at.as_u64().expect("a number") as usize] = json!(image);
        }
        json!({ "tokens": tokens })
    };
    let sequences: Value = case["sequences"].as_array().expect("sequences").iter().map(with_images).collect();
    let tokens = json!({ "sequences": sequences, "token_map": case["token_map"] });
    let config = json!({ "image_token_id": image, "text_config": case["config"] });
    assert_eq!(json_of(files.rows(&config, &tokens, &[])).await["rows"], rows(&case));
    files.rows(&case["config"], &tokens, &[]).fails(&["token 129264 is outside the map"]).await;
}

#[tokio::test]
async fn qwens_tables_are_padded_and_hash_raw_ids() {
    let files = Files::new();
    for at in 0..4 {
        let case = case("qwen.json", at);
        let told = json_of(files.rows(&case["config"], &json!({ "sequences": sequences(&case) }), &[])).await;
        assert_eq!(told["rows"], rows(&case), "{}", case["name"]);
        assert_eq!((&told["family"], &told["map"]), (&json!("qwen"), &Value::Null));
        assert_eq!(told["pad"], case["config"]["eos_token_id"]);
        for (layer, hash) in told["layers"].as_array().expect("layers").iter().zip(case["hashes"].as_array().unwrap()) {
            assert_eq!(layer["rows"], hash["rows"], "{}", case["name"]);
            let multiple = case["config"]["make_ngram_vocab_size_divisible_by"].as_u64().expect("a number");
            let padded = hash["rows"].as_u64().expect("a number").next_multiple_of(multiple);
            assert_eq!(layer["padded_rows"], json!(padded), "{}", case["name"]);
        }
    }
}

#[tokio::test]
async fn a_tokenizer_gives_the_map() {
    let files = Files::new();
    let maps = vectors("maps.json");
    let map = &maps.as_array().expect("maps")[0];
    let mut config = case("deepseek.json", 0)["config"].clone();
    config["engram_compressed_vocab_size"] = map["ids"].clone();
    let tokenizer = repository("crates/engram/tests/vectors/strange-tokenizer.json");
    let flags = ["--map", "--tokenizer", tokenizer.to_str().expect("UTF-8")];
    let told = json_of(files.rows(&config, &json!({ "sequences": [] }), &flags)).await;
    assert_eq!(told["token_map"], map["token_map"]);
    assert_eq!(told["map"]["sha256"], map["sha256"]);
    // A map in the file replaces the tokenizer's.
    let tokens = json!({ "sequences": [], "token_map": [0, 1, 2] });
    files.rows(&config, &tokens, &flags).fails(&["the token map has 3 ids", "is 253"]).await;
}

#[tokio::test]
async fn the_papers_sizes_need_no_configuration() {
    let files = Files::new();
    let map: Vec<u32> = (0..99_092).collect();
    let tokens = files.write("tokens.json", &json!({ "sequences": [{ "tokens": [5, 6] }], "token_map": map }));
    let line = ["engram", "rows", "--preset", "engram-40b", "--tokens", &tokens];
    let told = bare(line).ok().await;
    assert!(told.out.contains("deepseek") && told.out.contains("--json prints their rows"), "{told:?}");
}

#[tokio::test]
async fn wrong_inputs_are_refused() {
    let (files, case) = (Files::new(), case("deepseek.json", 0));
    let config = &case["config"];
    let tokens = |sequence: Value| json!({ "sequences": [sequence], "token_map": case["token_map"] });
    for (sequence, facts) in [
        (json!({ "tokens": [1, 40] }), "sequence 0: position 1: token 40 is outside the map of 40 tokens"),
        (json!({ "tokens": [-1] }), "position 0: token -1 is outside the map"),
        (json!({ "tokens": [1], "from": 2 }), "`from` is 2, and there are 1 tokens"),
        (json!({ "tokens": [1], "dead": [1] }), "`dead` has position 1, and there are 1 tokens"),
        (json!({ "tokens": "x" }), "tokens.json: invalid type: string"),
    ] {
        files.rows(config, &tokens(sequence), &[]).fails(&["tokens.json", facts]).await;
    }
    let none = json!({ "sequences": [] });
    files.rows(config, &none, &[]).fails(&["no token map is given", "hint: give --tokenizer"]).await;
    let other = json!({ "sequences": [], "token_map": [0, 1, 2] });
    files.rows(config, &other, &[]).fails(&["the token map has 3 ids", "`engram_compressed_vocab_size` is 24"]).await;
    let mut few = config.clone();
    few["engram_num_embeddings"][0] = json!(3);
    files.rows(&few, &tokens(json!({ "tokens": [] })), &[]).fails(&["config.json: layer 1", "declares 3"]).await;
    files.rows(&json!({ "hidden_size": 8 }), &none, &[]).fails(&["config.json: the model has no n-gram tables"]).await;
    files.rows(config, &none, &["--tokenizer", "no-such-file"]).fails(&["no-such-file: cannot read the file"]).await;
    bare(["engram", "rows", "--preset", "engram-1b", "--tokens", "x"]).fails(&["engram-27b or engram-40b"]).await;
    bare(["engram", "rows", "--tokens", "x"]).fails(&["--model-config", "--preset"]).await;
}

#[tokio::test]
async fn an_unknown_key_is_reported() {
    let (files, case) = (Files::new(), case("qwen.json", 1));
    let tokens = json!({ "sequences": [{ "tokens": [1], "form": 1 }], "token_map": [0] });
    let told = files.rows(&case["config"], &tokens, &[]).ok().await;
    assert!(told.err.contains("`form` has no meaning here"), "{told:?}");
    assert!(told.err.contains("the token map is not used"), "{told:?}");
}

#[tokio::test]
async fn rows_are_decoded_as_published() {
    let files = Files::new();
    let cases = vectors("dequant.json");
    let blocks = cases["e4m3-ue8m0"].as_array().expect("rows");
    let column = |key: &str| -> Value { blocks.iter().map(|block| block[key].clone()).collect() };
    let told = json_of(files.dequant(&column("row"), &["--format", "e4m3-ue8m0"])).await;
    assert_eq!(told, json!({ "bf16": column("bf16") }));
    for case in cases["e4m3"].as_array().expect("rows") {
        let scale = case["scale"].to_string();
        let told = json_of(files.dequant(&json!([case["row"]]), &["--format", "e4m3", "--scale", &scale])).await;
        assert_eq!(told, json!({ "bf16": [case["bf16"]] }), "{scale}");
    }
    let told = json_of(files.dequant(&json!(["003C", "00c2"]), &["--format", "f16"])).await;
    assert_eq!(told, json!({ "bf16": ["803f", "40c0"] }));
    let told = files.dequant(&json!(["803f40c0"]), &["--format", "bf16"]);
    assert_eq!(json_of(told).await, json!({ "bf16": ["803f40c0"] }));
    let path = Path::new(files.0.path()).join("rows.json");
    let table = bare(["engram", "dequant", "--format", "bf16", "--rows", path.to_str().expect("UTF-8")]).ok().await;
    assert!(table.out.contains("1, -3"), "{table:?}");
}

#[tokio::test]
async fn what_is_no_row_is_refused() {
    let files = Files::new();
    for (rows, flags, facts) in [
        (json!(["00"]), vec!["--format", "e4m3-ue8m0"], "row 0: a row of 1 bytes is no row of e4m3-ue8m0"),
        (json!(["00", "0"]), vec!["--format", "e4m3", "--scale", "1"], "row 1: 1 digits are no whole bytes"),
        (json!(["xy"]), vec!["--format", "e4m3", "--scale", "1"], "row 0: not hexadecimal"),
        (json!(["é0"]), vec!["--format", "e4m3", "--scale", "1"], "row 0: not hexadecimal"),
        (json!([""]), vec!["--format", "f16"], "row 0: a row of 0 bytes"),
        (json!(["00"]), vec!["--format", "e4m3"], "need the scale of their table"),
        (json!(["0000"]), vec!["--format", "bf16", "--scale", "2"], "have no table scale"),
        (json!(["00"]), vec!["--format", "nvfp4"], "`nvfp4` is no row format"),
        (json!(["00"]), vec!["--format", "e4m3", "--scale", "inf"], "not a finite number"),
        (json!("00"), vec!["--format", "f16"], "rows.json: invalid type"),
    ] {
        files.dequant(&rows, &flags).fails(&[facts]).await;
    }
}
