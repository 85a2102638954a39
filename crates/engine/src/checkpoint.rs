//! Reads the tensors of a Hugging Face directory: `model.safetensors`, or the shards listed in
//! `model.safetensors.index.json`.
//!
//! A file is untrusted input. Headers are checked before they determine an allocation. Tensors are
//! read one at a time, so that loading needs memory for one tensor, not for one shard. Every
//! inconsistency is an error that names the file and the tensor.
//!
//! The name of a model's KV is of the bytes that were loaded: each tensor is hashed as it is read, so a
//! file that changes meanwhile gives another name, and nothing is read twice.

use crate::error::{LoadError, read_json};
use cenote_mem::files::{self, Stamp};
use cenote_store::content::digest;
use half::{bf16, f16};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Longer headers are refused, as in the format's reference reader.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// An open checkpoint.
pub struct Checkpoint {
    shards: Vec<Shard>,
    /// Tensor name to shard and entry.
    tensors: BTreeMap<String, (usize, Entry)>,
    /// Digests of the tensors that were taken; `None` for those that are read elsewhere.
    taken: BTreeMap<String, Option<[u8; 32]>>,
    /// The file that lists the tensors, for error messages.
    listing: PathBuf,
}

struct Shard {
    path: PathBuf,
    file: File,
    /// Of the file when it was opened.
    stamp: Stamp,
    /// Offset of the tensor data in the file, in bytes.
    data_start: u64,
}

/// A tensor's header entry.
#[derive(Clone, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// An element type that the engine reads. Files are little-endian.
#[derive(Clone, Copy)]
enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    fn values(self, bytes: &[u8]) -> Vec<f32> {
        let pairs = || bytes.as_chunks::<2>().0.iter();
        match self {
            Self::F32 => bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect(),
            Self::F16 => pairs().map(|value| f16::from_le_bytes(*value).to_f32()).collect(),
            Self::Bf16 => pairs().map(|value| bf16::from_le_bytes(*value).to_f32()).collect(),
        }
    }
}

/// Where a tensor lies.
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// The open file.
    pub file: File,
    /// Of the file before its header was read.
    pub stamp: Stamp,
    /// Offset of the tensor's first byte in the file.
    pub at: u64,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens the checkpoint of `dir` and checks its headers.
    ///
    /// # Errors
    /// The directory has no checkpoint, a shard is missing or truncated, or a header is damaged.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let index_path = dir.join("model.safetensors.index.json");
        let single = dir.join("model.safetensors");
        if single.exists() || !index_path.exists() {
            if !single.exists() {
                return Err(Self::nothing_there(dir));
            }
            return Self::open_file(&single);
        }
        let index: Index = read_json(&index_path)?;
        let mut shards = Vec::new();
        let mut tensors = BTreeMap::new();
        let files: BTreeSet<&String> = index.weight_map.values().collect();
        if files.is_empty() {
            return Err(LoadError::invalid(&index_path, "`weight_map` names no file"));
        }
        for file in files {
            // The index is untrusted: it must not name files outside the model's directory.
            if Path::new(file).file_name().is_none_or(|name| name != file.as_str()) {
                return Err(LoadError::invalid(&index_path, format!("`{file}` is not a plain file name")));
            }
            let (shard, mut entries) = Shard::open(dir.join(file))?;
            for (name, _) in index.weight_map.iter().filter(|(_, at)| *at == file) {
                let entry = entries.remove(name).ok_or_else(|| {
                    LoadError::tensor(
                        &shard.path,
                        name,
                        "is missing; model.safetensors.index.json says it is in this file",
                    )
                })?;
                tensors.insert(name.clone(), (shards.len(), entry));
            }
            if let Some(name) = entries.keys().next() {
                return Err(LoadError::tensor(&shard.path, name, "is not listed in model.safetensors.index.json"));
            }
            shards.push(shard);
        }
        Ok(Self { shards, tensors, taken: BTreeMap::new(), listing: index_path })
    }

    /// Opens one file and checks its header.
    ///
    /// # Errors
    /// The file is truncated, or its header is damaged.
    pub fn open_file(path: &Path) -> Result<Self, LoadError> {
        let (shard, entries) = Shard::open(path.to_owned())?;
        let tensors = entries.into_iter().map(|(name, entry)| (name, (0, entry))).collect();
        Ok(Self { shards: vec![shard], tensors, taken: BTreeMap::new(), listing: path.to_owned() })
    }

    fn nothing_there(dir: &Path) -> LoadError {
        if !dir.is_dir() {
            return LoadError::invalid(dir, "there is no such model directory");
        }
        let fact = if dir.join("pytorch_model.bin").exists() || dir.join("pytorch_model.bin.index.json").exists() {
            "has pytorch_model.bin, but neither model.safetensors nor model.safetensors.index.json; \
             save the model with safe_serialization=True"
        } else {
            "has neither model.safetensors nor model.safetensors.index.json"
        };
        LoadError::invalid(dir, fact)
    }

    /// Whether there is a tensor of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Reads tensor `name`, of shape `shape`, as f32 in row-major order.
    ///
    /// # Errors
    /// The tensor is missing, has another shape or an unsupported element type, or cannot be read.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let (shard, entry) = self.entry(name)?.clone();
        let shard = &mut self.shards[shard];
        if entry.shape != shape {
            let fact = format!("has shape {:?}; the configuration needs {shape:?}", entry.shape);
            return Err(LoadError::tensor(&shard.path, name, fact));
        }
        let dtype = entry.served_dtype().ok_or_else(|| {
            let fact = format!("has element type {}; this engine reads F32, F16 and BF16", entry.dtype);
            LoadError::tensor(&shard.path, name, fact)
        })?;
        let io = |source| LoadError::Io { path: shard.path.clone(), source };
        let (begin, end) = entry.data_offsets;
        shard.file.seek(SeekFrom::Start(shard.data_start + begin)).map_err(io)?;
        let mut bytes = vec![0; usize::try_from(end - begin).expect("the file was measured to hold it")];
        shard.file.read_exact(&mut bytes).map_err(io)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{} {shape:?} ", entry.dtype).as_bytes());
        hasher.update(&digest(&bytes));
        self.taken.insert(name.to_owned(), Some(*hasher.finalize().as_bytes()));
        Ok(dtype.values(&bytes))
    }

    /// The file that lists the tensors.
    #[must_use]
    pub fn listing(&self) -> &Path {
        &self.listing
    }

    /// The element type of tensor `name`, as the file names it.
    ///
    /// # Errors
    /// The tensor is missing.
    pub fn dtype(&self, name: &str) -> Result<String, LoadError> {
        Ok(self.entry(name)?.1.dtype.clone())
    }

    fn entry(&self, name: &str) -> Result<&(usize, Entry), LoadError> {
        self.tensors.get(name).ok_or_else(|| LoadError::tensor(&self.listing, name, "is missing"))
    }

    /// Where tensor `name` lies, which is read elsewhere: `bytes` bytes of shape `shape`.
    ///
    /// # Errors
    /// The tensor is missing or has another size, or the file cannot be opened once more.
    pub fn place(&self, name: &str, shape: &[u64], bytes: u64) -> Result<Place, LoadError> {
        let (shard, entry) = self.entry(name)?;
        let shard = &self.shards[*shard];
        let (begin, end) = entry.data_offsets;
        if entry.shape.iter().map(|size| *size as u64).ne(shape.iter().copied()) || end - begin != bytes {
            let fact = format!(
                "has shape {:?} and {} bytes; the configuration needs {shape:?} and {bytes} bytes",
                entry.shape,
                end - begin
            );
            return Err(LoadError::tensor(&shard.path, name, fact));
        }
        let file = shard.file.try_clone().map_err(|source| LoadError::Io { path: shard.path.clone(), source })?;
        Ok(Place { path: shard.path.clone(), file, stamp: shard.stamp, at: shard.data_start + begin })
    }

    /// Counts a tensor that is read elsewhere, if there is one, as taken.
    pub fn skip(&mut self, name: &str) {
        self.taken.insert(name.to_owned(), None);
    }

    /// Checks that every tensor was taken. A tensor left over means that the configuration
    /// describes another model. Buffers that old versions saved with the weights are ignored.
    ///
    /// # Errors
    /// A tensor was not taken.
    pub fn finish(&self) -> Result<(), LoadError> {
        let mut extra = self.tensors.iter().filter(|(name, _)| {
            !self.taken.contains_key(*name)
                && !name.ends_with(".rotary_emb.inv_freq")
                && !name.ends_with(".masked_bias")
        });
        match extra.next() {
            None => Ok(()),
            Some((name, (shard, entry))) => {
                let fact = format!("of shape {:?} has no place in the model that config.json describes", entry.shape);
                Err(LoadError::tensor(&self.shards[*shard].path, name, fact))
            }
        }
    }

    /// Hashes the tensors that were taken, in the order of their names: the bytes as they were read, so
    /// the name holds whatever happens to the files.
    pub fn hash_taken(&self, hasher: &mut blake3::Hasher) {
        for (name, digest) in &self.taken {
            if let Some(digest) = digest {
                hasher.update(format!("; {} {name} ", name.len()).as_bytes());
                hasher.update(digest);
            }
        }
    }
}

impl Shard {
    /// Opens a safetensors file: eight bytes of header length, a JSON header, then the data
    /// (<https://huggingface.co/docs/safetensors>, "Format").
    fn open(path: PathBuf) -> Result<(Self, BTreeMap<String, Entry>), LoadError> {
        let io = |source| LoadError::Io { path: path.clone(), source };
        let mut file = files::open_input(&path).map_err(LoadError::Open)?;
        let stamp = Stamp::of(&file).map_err(io)?;
        let length = stamp.size;
        let cut = |needed: u64| {
            LoadError::invalid(&path, format!("the file is cut off: it has {length} bytes and needs {needed}"))
        };
        let mut prefix = [0; 8];
        if length < 8 {
            return Err(cut(8));
        }
        file.read_exact(&mut prefix).map_err(io)?;
        let header_bytes = u64::from_le_bytes(prefix);
        if header_bytes > MAX_HEADER_BYTES {
            let fact = format!("not a safetensors file: its header would be {header_bytes} bytes long");
            return Err(LoadError::invalid(&path, fact));
        }
        let data_start = 8 + header_bytes;
        if data_start > length {
            return Err(cut(data_start));
        }
        let mut header = vec![0; usize::try_from(header_bytes).expect("bounded above")];
        file.read_exact(&mut header).map_err(io)?;
        let mut raw: BTreeMap<String, serde_json::Value> =
            serde_json::from_slice(&header).map_err(|source| LoadError::Json { path: path.clone(), source })?;
        raw.remove("__metadata__");
        let mut entries = BTreeMap::new();
        for (name, value) in raw {
            let entry: Entry = serde_json::from_value(value)
                .map_err(|error| LoadError::tensor(&path, &name, format!("has a damaged header entry: {error}")))?;
            let (begin, end) = entry.data_offsets;
            if begin > end {
                return Err(LoadError::tensor(&path, &name, format!("ends at byte {end}, before its begin {begin}")));
            }
            if end > length - data_start {
                return Err(cut(data_start.saturating_add(end)));
            }
            if let (Some(dtype), Some(elements)) = (entry.served_dtype(), entry.elements())
                && elements.checked_mul(dtype.bytes()) != Some(end - begin)
            {
                let fact = format!("has {} bytes, but {elements} values of type {}", end - begin, entry.dtype);
                return Err(LoadError::tensor(&path, &name, fact));
            }
            entries.insert(name, entry);
        }
        Ok((Self { path, file, stamp, data_start }, entries))
    }
}

impl Entry {
    fn served_dtype(&self) -> Option<Dtype> {
        match self.dtype.as_str() {
            "F32" => Some(Dtype::F32),
            "F16" => Some(Dtype::F16),
            "BF16" => Some(Dtype::Bf16),
            _ => None,
        }
    }

    /// Number of values; `None` if it overflows 64 bits, which no model's shape does.
    fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1_u64, |product, size| product.checked_mul(*size as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
    }

    fn open(files: &[(&str, Vec<u8>)]) -> Result<Checkpoint, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        Checkpoint::open(dir.path()).map_err(|error| error.to_string())
    }

    const PAIR: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

    #[test]
    fn tensors_are_returned_as_f32() {
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}"#;
        let mut checkpoint = open(&[("model.safetensors", file(header, &[0x80, 0x3f, 0x00, 0xc0]))]).unwrap();
        assert_eq!(checkpoint.take("a", &[1, 2]).unwrap(), [1.0, -2.0]);
        assert!(checkpoint.finish().is_ok());
        assert!(checkpoint.take("a", &[2]).unwrap_err().to_string().contains("has shape [1, 2]"));
        assert!(checkpoint.take("b", &[2]).unwrap_err().to_string().contains("`b` is missing"));
        let header = r#"{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]}}"#;
        let data = [0x00, 0x3c, 0x00, 0xc0, 0, 0, 0x20, 0x40];
        let mut checkpoint = open(&[("model.safetensors", file(header, &data))]).unwrap();
        assert_eq!(
            (checkpoint.take("a", &[2]).unwrap(), checkpoint.take("b", &[]).unwrap()),
            (vec![1.0, -2.0], vec![2.5])
        );
    }

    #[test]
    fn an_error_names_the_damage() {
        let whole = file(PAIR, &[0; 8]);
        let cut = |bytes: usize| vec![("model.safetensors", whole[..bytes].to_vec())];
        let one = |header: &str, data: usize| vec![("model.safetensors", file(header, &vec![0; data]))];
        for (files, words) in [
            (vec![], "has neither model.safetensors nor"),
            (vec![("pytorch_model.bin", vec![])], "pytorch_model.bin"),
            (cut(0), "cut off"),
            (cut(20), "cut off"),
            (cut(whole.len() - 1), "cut off: it has"),
            (one("{not json", 0), "not valid JSON"),
            (one(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8), "before its begin"),
            (one(r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8), "has 8 bytes, but 3 values"),
            (one(r#"{"a":{"dtype":"F32"}}"#, 8), "damaged header entry"),
            (vec![("model.safetensors", vec![0xff; 64])], "not a safetensors file"),
            (vec![("model.safetensors.index.json", b"{}".to_vec())], "weight_map"),
        ] {
            let error = open(&files).err().expect("damage is an error");
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn shards_and_their_index_must_agree() {
        let with_index = |index: &str| {
            vec![("model.safetensors.index.json", index.as_bytes().to_vec()), ("s1.safetensors", file(PAIR, &[0; 8]))]
        };
        assert!(open(&with_index(r#"{"weight_map":{"a":"s1.safetensors"}}"#)).is_ok());
        for (index, words) in [
            (r#"{"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}}"#, "s2.safetensors"),
            (r#"{"weight_map":{"a":"s1.safetensors","b":"s1.safetensors"}}"#, "`b` is missing"),
            (r#"{"weight_map":{"a":"../s1.safetensors"}}"#, "not a plain file name"),
            (r#"{"weight_map":{}}"#, "names no file"),
        ] {
            let error = open(&with_index(index)).err().expect("disagreement is an error");
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn an_unused_tensor_is_an_error() {
        let checkpoint = open(&[("model.safetensors", file(PAIR, &[0; 8]))]).unwrap();
        assert!(checkpoint.finish().unwrap_err().to_string().contains("`a` of shape [2] has no place"));
    }
}
