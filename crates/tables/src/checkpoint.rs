//! The tables of a model's folder, by the names that the published checkpoints use.
//!
//! | family | tensors of layer `l` |
//! |---|---|
//! | DeepSeek-V4.1 Engram | `layers.l.engram.embed.weight` and, for e4m3, `.scale`; or one `.weight_scale` |
//! | Qwen3.8 PLE | `layers.(l-1).…ngram_embedding.shard_N.weight` and, for e4m3, `….weight_scale` |
//!
//! vLLM 0.32's names (`embed_tokens`, `weight_scale_inv`) and prefixes before `layers.` are known,
//! too.

use crate::error::TableError;
use crate::facts::Facts;
use crate::safetensors::{Column, TensorFile, TensorRows};
use cenote_engram::{NgramConfig, Scheme, Stored, layer_hashes};
use cenote_mem::files;
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest `config.json`.
const CONFIG_BYTES_MAX: u64 = 64 << 20;

/// A table of a model.
pub struct ModelTable {
    /// The layer, as the model's configuration counts.
    pub layer: u64,
    /// Its rows.
    pub rows: TensorRows,
}

/// Tensors of a folder by name.
struct Folder {
    path: PathBuf,
    tensors: BTreeMap<String, Arc<TensorFile>>,
}

impl Folder {
    fn open(path: &Path) -> Result<Self, TableError> {
        let failed = |error| TableError::File { path: path.to_owned(), error };
        let mut files: Vec<PathBuf> = std::fs::read_dir(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(failed)?
            .into_iter()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
            .collect();
        files.sort_unstable();
        let mut tensors = BTreeMap::new();
        for file in files {
            let file = TensorFile::open(&file)?;
            for name in file.names() {
                tensors.entry(name).or_insert_with(|| Arc::clone(&file));
            }
        }
        Ok(Self { path: path.to_owned(), tensors })
    }

    /// The tensor with one of these last parts of a name, behind `layers.L.`.
    fn find(&self, layer: u64, endings: &[&str]) -> Option<(&str, &Arc<TensorFile>)> {
        let within = format!("layers.{layer}.");
        let is_it = |name: &str| {
            let is_in = name.starts_with(&within) || name.contains(&format!(".{within}"));
            is_in && endings.iter().any(|ending| name.ends_with(ending))
        };
        self.tensors.iter().find(|(name, _)| is_it(name)).map(|(name, file)| (name.as_str(), file))
    }

    fn missing(&self, layer: u64, what: &str) -> TableError {
        TableError::Source(format!("{}: no file has the {what} of layer {layer}'s table", self.path.display()))
    }
}

/// The format of values of a type.
fn format_of(dtype: Dtype, has_blocks: bool) -> Result<Stored, TableError> {
    match (dtype, has_blocks) {
        (Dtype::BF16, false) => Ok(Stored::Bf16),
        (Dtype::F16, false) => Ok(Stored::F16),
        (Dtype::F8_E4M3, true) => Ok(Stored::E4m3Ue8m0),
        (Dtype::F8_E4M3, false) => Ok(Stored::E4m3),
        (dtype, _) => Err(TableError::Source(format!("tables of {dtype:?} are not known; use BF16, F16 or F8_E4M3"))),
    }
}

/// Bytes of values with one scale byte (`e4m3-ue8m0`).
const VALUES_PER_SCALE: u64 = 32;

/// The scales of blocks of values: bytes, one for each 32 values.
fn block_scales(file: &Arc<TensorFile>, name: &str, values: &Column) -> Result<Column, TableError> {
    let scales = Column::of(file, name)?;
    if !matches!(scales.dtype, Dtype::F8_E8M0 | Dtype::U8) {
        return Err(TableError::Source(format!("`{name}` has values of {:?}; scales are F8_E8M0", scales.dtype)));
    }
    if scales.width().checked_mul(VALUES_PER_SCALE) != Some(values.width()) {
        return Err(TableError::Source(format!(
            "`{name}` has {} scales in a row for {} values; {VALUES_PER_SCALE} values have one",
            scales.width(),
            values.width()
        )));
    }
    Ok(scales)
}

/// The tables of the model in a folder, in the order of its configuration.
///
/// # Errors
/// The configuration has no tables, a file is missing or damaged, or a table has another size than
/// the configuration says.
pub fn model_tables(path: &Path) -> Result<Vec<ModelTable>, TableError> {
    let config_path = path.join("config.json");
    let bad = |fact: String| TableError::Source(format!("{}: {fact}", config_path.display()));
    let json = files::read_input(&config_path, CONFIG_BYTES_MAX).map_err(TableError::Open)?;
    let config = NgramConfig::parse(&json).map_err(|error| bad(error.to_string()))?;
    let hashes = layer_hashes(&config).map_err(|error| bad(error.to_string()))?;
    let folder = Folder::open(path)?;
    let model = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let model = model.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut tables = Vec::new();
    for (at, (&layer, hash)) in config.layer_ids.iter().zip(&hashes).enumerate() {
        let facts = Facts {
            format: String::new(),
            row_bytes: 0,
            rows: 0,
            scale: None,
            layer: Some(layer),
            model: model.clone(),
            source: Vec::new(),
            tensors: Vec::new(),
        };
        let (rows, wanted) = match &config.scheme {
            Scheme::DeepSeek { declared_rows, .. } => {
                (deepseek(&folder, layer, facts)?, declared_rows.get(at).copied().unwrap_or(hash.rows))
            }
            Scheme::Qwen { row_multiple, parts, .. } => {
                let padded = hash.rows.next_multiple_of(*row_multiple);
                (qwen(&folder, layer.saturating_sub(1), *parts, padded, facts)?, padded)
            }
        };
        let (has, values) = {
            let facts = crate::source::RowSource::facts(&rows);
            (facts.rows, facts.row_values()?)
        };
        if (has, values) != (wanted, config.row_values as usize) {
            return Err(bad(format!(
                "layer {layer} reads a table of {wanted} rows of {} values, and the files have {has} rows of {values}",
                config.row_values
            )));
        }
        tables.push(ModelTable { layer, rows });
    }
    Ok(tables)
}

fn deepseek(folder: &Folder, layer: u64, mut facts: Facts) -> Result<TensorRows, TableError> {
    let (name, file) = folder
        .find(layer, &[".engram.embed.weight", ".engram.embed_tokens.weight"])
        .ok_or_else(|| folder.missing(layer, "values"))?;
    let values = Column::of(file, name)?;
    if values.dtype != Dtype::F8_E4M3 {
        facts.format = format_of(values.dtype, false)?.to_string();
        return TensorRows::new(facts, vec![vec![values]]);
    }
    if let Some((name, file)) = folder.find(layer, &[".engram.embed.weight_scale"]) {
        facts.scale = Some(file.scalar(name)?);
        facts.format = format_of(values.dtype, false)?.to_string();
        return TensorRows::new(facts, vec![vec![values]]);
    }
    let endings = [".engram.embed.scale", ".engram.embed_tokens.weight_scale_inv", ".engram.embed_tokens.weight_scale"];
    let (name, file) = folder.find(layer, &endings).ok_or_else(|| folder.missing(layer, "scales"))?;
    facts.format = format_of(values.dtype, true)?.to_string();
    let scales = block_scales(file, name, &values)?;
    TensorRows::new(facts, vec![vec![values, scales]])
}

/// Most shards of a table. Published models have 512; each is looked for in the files.
const PARTS_MAX: u64 = 1 << 16;

fn qwen(folder: &Folder, index: u64, parts: u64, rows: u64, mut facts: Facts) -> Result<TensorRows, TableError> {
    if parts > PARTS_MAX {
        return Err(TableError::Source(format!("split_ngram_parts is {parts}; at most {PARTS_MAX} are read")));
    }
    let mut shards = Vec::new();
    let per_shard = rows.div_ceil(parts);
    for part in 0..parts {
        let expected = per_shard.min(rows.saturating_sub(part * per_shard));
        let Some((name, file)) = folder.find(index, &[&format!("ngram_embedding.shard_{part}.weight")]) else {
            // A table that was saved whole, or shards behind the last row.
            if part == 0 {
                let whole = folder.find(index, &["ngram_embedding.weight"]);
                let (name, file) = whole.ok_or_else(|| folder.missing(index + 1, "values"))?;
                shards.push(vec![Column::of(file, name)?]);
                break;
            }
            if expected == 0 {
                continue;
            }
            return Err(folder.missing(index + 1, &format!("shard {part} of {parts}")));
        };
        let column = Column::of(file, name)?;
        if column.rows() != expected {
            return Err(TableError::Source(format!("`{name}` has {} rows instead of {expected}", column.rows())));
        }
        if expected > 0 {
            shards.push(vec![column]);
        }
    }
    let dtype = shards.first().map_or(Dtype::BF16, |columns| columns[0].dtype);
    if shards.iter().any(|columns| columns[0].dtype != dtype) {
        return Err(TableError::Source("the shards have different types".to_owned()));
    }
    let stored = format_of(dtype, false)?;
    if stored == Stored::E4m3 {
        let scale = folder.find(index, &["ngram_embedding.weight_scale"]);
        let (name, file) = scale.ok_or_else(|| folder.missing(index + 1, "scale"))?;
        facts.scale = Some(file.scalar(name)?);
    }
    facts.format = stored.to_string();
    TensorRows::new(facts, shards)
}

/// A table of one tensor, or of values and their scales.
///
/// # Errors
/// The file does not have the tensors, or their types make no table.
pub fn tensor_table(
    path: &Path,
    values: &str,
    scales: Option<&str>,
    scale: Option<f32>,
) -> Result<TensorRows, TableError> {
    let file = TensorFile::open(path)?;
    let mut columns = vec![Column::of(&file, values)?];
    let stored = format_of(columns[0].dtype, scales.is_some())?;
    if let Some(scales) = scales {
        columns.push(block_scales(&file, scales, &columns[0])?);
    }
    let facts = Facts {
        format: stored.to_string(),
        row_bytes: 0,
        rows: 0,
        scale,
        layer: None,
        model: String::new(),
        source: Vec::new(),
        tensors: Vec::new(),
    };
    TensorRows::new(facts, vec![columns])
}
