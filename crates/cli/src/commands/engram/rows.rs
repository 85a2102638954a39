//! `cenote engram rows`: the rows that tokens read, for any checker.

use super::{config_of, read, read_json};
use crate::args::EngramRowsArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_engram::{Addresses, Family, LayerHash, MapError, TokenMap, Tokens};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

#[derive(Deserialize)]
struct Input {
    sequences: Vec<Sequence>,
    token_map: Option<Vec<u32>>,
    #[serde(flatten)]
    unknown: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Sequence {
    /// The whole history.
    tokens: Vec<i64>,
    /// The first position whose rows are wanted.
    from: Option<usize>,
    /// Masked positions.
    dead: Option<Vec<usize>>,
    #[serde(flatten)]
    unknown: BTreeMap<String, Value>,
}

#[derive(Serialize)]
struct Output<'a> {
    family: &'static str,
    pad: u32,
    map: Option<MapFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_map: Option<&'a [u32]>,
    layers: Vec<Layer<'a>>,
    /// `[sequence][position][layer][order][head]`
    rows: Vec<Vec<Nested>>,
}

/// `[layer][order][head]`
type Nested = Vec<Vec<Vec<u64>>>;

#[derive(Serialize)]
struct MapFacts {
    tokens: usize,
    ids: u64,
    sha256: String,
}

#[derive(Serialize)]
struct Layer<'a> {
    layer: u64,
    multipliers: &'a [u64],
    primes: &'a [Vec<u64>],
    offsets: &'a [Vec<u64>],
    rows: u64,
    row_values: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    padded_rows: Option<u64>,
}

pub fn run(args: &EngramRowsArgs) -> Result<(), Failure> {
    let (config, shown) = config_of(&args.tables)?;
    let input: Input = read_json(&args.tokens)?;
    report_unknown(&args.tokens, &input);
    let map = token_map(args, input.token_map, config.family())?;
    let addresses = Addresses::new(config, map).map_err(|error| Failure::new(format!("{shown}: {error}")))?;
    let rows: Result<Vec<Vec<Nested>>, Failure> = input
        .sequences
        .iter()
        .enumerate()
        .map(|(at, sequence)| {
            rows_of(&addresses, sequence)
                .map_err(|error| Failure::new(format!("{}: sequence {at}: {error}", args.tokens.display())))
        })
        .collect();
    let output = Output {
        family: addresses.config().family().name(),
        pad: addresses.pad(),
        map: addresses.map().map(map_facts),
        token_map: addresses.map().filter(|_| args.map).map(TokenMap::ids),
        layers: addresses.layers().iter().map(|layer| layer_facts(&addresses, layer)).collect(),
        rows: rows?,
    };
    args.output.show(&output, || table(&output))
}

/// A misspelled key would silently give other rows.
fn report_unknown(path: &Path, input: &Input) {
    let keys = input.sequences.iter().flat_map(|sequence| sequence.unknown.keys()).chain(input.unknown.keys());
    for key in keys {
        output::hint(&format!("{}: `{key}` has no meaning here and is not read", path.display()));
    }
}

fn token_map(args: &EngramRowsArgs, given: Option<Vec<u32>>, family: Family) -> Result<Option<TokenMap>, Failure> {
    if family == Family::Qwen {
        if given.is_some() || args.tokenizer.is_some() {
            output::hint("this model hashes token ids as they are; the token map is not used");
        }
        return Ok(None);
    }
    let of = |path: &Path, map: Result<TokenMap, MapError>| {
        map.map(Some).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    };
    match (given, &args.tokenizer) {
        (Some(ids), _) => of(&args.tokens, TokenMap::of_ids(ids)),
        (None, Some(path)) => of(path, TokenMap::of_tokenizer(&read(path)?)),
        (None, None) => Err(Failure::new("the model hashes compressed ids, and no token map is given")
            .hint("give --tokenizer, or `token_map` in the file of --tokens")),
    }
}

fn rows_of(addresses: &Addresses, sequence: &Sequence) -> Result<Vec<Nested>, String> {
    let vocabulary = addresses.vocabulary();
    let tokens: Result<Vec<u32>, String> = sequence
        .tokens
        .iter()
        .enumerate()
        .map(|(at, token)| {
            u32::try_from(*token)
                .ok()
                .filter(|token| addresses.knows(*token))
                .ok_or_else(|| format!("position {at}: token {token} is outside the map of {vocabulary} tokens"))
        })
        .collect();
    let tokens = tokens?;
    let length = tokens.len();
    let from = sequence.from.unwrap_or(0);
    if from > length {
        return Err(format!("`from` is {from}, and there are {length} tokens"));
    }
    let mut masked = vec![false; length];
    for position in sequence.dead.iter().flatten() {
        let place = masked.get_mut(*position);
        *place.ok_or_else(|| format!("`dead` has position {position}, and there are {length} tokens"))? = true;
    }
    let part = |from: usize, to: usize| Tokens { ids: &tokens[from..to], masked: Some(&masked[from..to]) };
    let mut history = addresses.start();
    let mut rows = Vec::new();
    addresses.skip(&mut history, part(0, from)).map_err(|error| error.to_string())?;
    addresses.rows(&mut history, part(from, length), &mut rows).map_err(|error| error.to_string())?;
    let (heads, per_layer) = (addresses.config().heads, addresses.config().rows_per_token());
    let layer = |rows: &[u64]| rows.chunks(heads).map(<[u64]>::to_vec).collect();
    Ok(rows.chunks(addresses.columns()).map(|position| position.chunks(per_layer).map(layer).collect()).collect())
}

fn map_facts(map: &TokenMap) -> MapFacts {
    let sha256 = map.sha256().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    MapFacts { tokens: map.ids().len(), ids: map.size(), sha256 }
}

fn layer_facts<'a>(addresses: &Addresses, layer: &'a LayerHash) -> Layer<'a> {
    let config = addresses.config();
    Layer {
        layer: layer.layer,
        multipliers: &layer.multipliers,
        primes: &layer.primes,
        offsets: &layer.offsets,
        rows: layer.rows,
        row_values: config.row_values,
        padded_rows: (config.family() == Family::Qwen).then_some(layer.padded_rows),
    }
}

fn table(output: &Output<'_>) -> String {
    let mut layers = output::table(&["layer", "orders", "heads", "rows", "values of a row"]);
    for layer in &output.layers {
        layers.add_row([
            layer.layer.to_string(),
            layer.primes.len().to_string(),
            layer.primes.first().map_or(0, Vec::len).to_string(),
            layer.rows.to_string(),
            layer.row_values.to_string(),
        ]);
    }
    let positions: usize = output.rows.iter().map(Vec::len).sum();
    let mut facts = vec![("family", output.family.to_owned()), ("pad", output.pad.to_string())];
    if let Some(map) = &output.map {
        facts.push(("map", format!("{} tokens to {} ids, SHA-256 {}", map.tokens, map.ids, map.sha256)));
    }
    facts.push(("sequences", output.rows.len().to_string()));
    facts.push(("positions", format!("{positions}; --json prints their rows")));
    format!("{}\n\n{layers}", output::facts(&facts))
}
