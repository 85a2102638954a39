//! Files of n-gram tables that are hostile when they are loaded, and records of tables in a region that
//! are hostile when tables are opened.
//!
//! Whatever a model's folder has, a load ends with an error that leaves nothing in the region, or with a
//! table whose rows are the bytes that the files have where their headers say. Whatever a record is, no
//! call leaves the region or takes long; a record that was not made whole again opens no table, a changed
//! row fails the verification, and the other table keeps its rows.
//!
//! Not covered: a record that is made whole with other facts, or under another table's key. Its digest
//! has no key, and a program that can write the region can make one.

mod json;

use super::edit::{edit, in_place, number, put};
use super::input::Input;
use super::scratch::Scratch;
use cenote_base::prng::Prng;
use cenote_base::{Clock, Deadline, HashSeed};
use cenote_engram::{NgramConfig, layer_hashes};
use cenote_mem::{Coherent, Fabric, MapOptions, Mapping, Offset, RegionSource};
use cenote_pool::{AttachOptions, Pool, PoolConfig, PoolError, Superblock};
use cenote_tables::checkpoint::{model_tables, tensor_table};
use cenote_tables::safetensors::TensorRows;
use cenote_tables::{
    Facts, KEY_PREFIX, Listed, ListedState, LoadOptions, Opening, Outcome, RowSource, SourceTensor, Table, TableError,
    check, drop_table, list, load,
};
use std::sync::Arc;
use std::time::Duration;

/// Most memory that an input may take: the longest header that a file may claim, and as much again.
pub const MEMORY_MAX: u64 = 256 << 20;
const REGION_BYTES: u64 = 1 << 20;
/// Bytes of rows that an input gathers at once.
const GATHERED_BYTES_MAX: u64 = 4 << 20;

type TestPool = Pool<Arc<Coherent>>;

/// Files of a folder, by name.
type File = (&'static str, Vec<u8>);
type Files = Vec<File>;

/// Valid folders, and what loading them yields.
pub struct Tables {
    folders: Vec<Files>,
    /// A file with two tables of one shape.
    pair: Vec<u8>,
}

fn random_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    (0..count.div_ceil(8)).flat_map(|_| prng.next_u64().to_le_bytes()).take(count).collect()
}

/// A safetensors file of tensors: name, type, shape, bytes.
fn tensors(tensors: &[(&str, &str, &[usize], Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let from = data.len();
        data.extend_from_slice(bytes);
        header.push(format!(
            "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{from},{}]}}",
            data.len()
        ));
    }
    file_of(format!("{{{}}}", header.join(",")).as_bytes(), &data)
}

fn file_of(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// Two tables of DeepSeek's family, with scales of blocks and with one scale.
fn deepseek() -> Files {
    let config = |rows: &[u64]| {
        format!(
            "{{\"text_config\":{{\"engram_layer_ids\":[1,14],\"engram_num_embeddings\":{rows:?},\
             \"engram_max_ngram_size\":3,\"engram_n_heads\":2,\"engram_head_dim\":32,\"engram_vocab_size\":30,\
             \"engram_compressed_vocab_size\":20,\"engram_pad_token_id\":2}}}}"
        )
    };
    let first = NgramConfig::parse(config(&[1000, 1000]).as_bytes()).expect("a configuration");
    let rows: Vec<u64> = layer_hashes(&first).expect("small tables").iter().map(|layer| layer.rows).collect();
    let [one, two] = [rows[0] as usize, rows[1] as usize];
    let scaled = tensors(&[
        ("layers.1.engram.embed.weight", "F8_E4M3", &[one, 32], random_bytes(one * 32, 1)),
        ("layers.1.engram.embed.scale", "F8_E8M0", &[one, 1], random_bytes(one, 2)),
        ("layers.1.attn.weight", "F32", &[1], vec![0; 4]),
    ]);
    let single = tensors(&[
        ("model.layers.14.engram.embed.weight", "F8_E4M3", &[two, 32], random_bytes(two * 32, 3)),
        ("model.layers.14.engram.embed.weight_scale", "F32", &[1], 0.5_f32.to_le_bytes().to_vec()),
    ]);
    vec![("config.json", config(&rows).into_bytes()), ("model-0.safetensors", scaled), ("model-1.safetensors", single)]
}

/// A table of Qwen's family in shards. Its rows are few, so that shards may be many.
fn qwen() -> Files {
    let config = "{\"ple_layer_ids\":[2],\"ple_embed_dim\":16,\"ngram_size\":2,\"heads_per_ngram\":1,\
                  \"ngram_vocab_size_base\":5,\"make_ngram_vocab_size_divisible_by\":1,\"seed\":1234,\
                  \"split_ngram_parts\":3,\"vocab_size\":1000,\"eos_token_id\":7}";
    let parsed = NgramConfig::parse(config.as_bytes()).expect("a configuration");
    let rows = layer_hashes(&parsed).expect("a small table")[0].padded_rows as usize;
    let per = rows.div_ceil(3);
    let shard = |part: usize| per.min(rows - part * per);
    let name = |part: usize| format!("layers.1.ple.ngram_embedding.shard_{part}.weight");
    let of = |part: usize, seed| random_bytes(shard(part) * 32, seed);
    vec![
        ("config.json", config.into()),
        ("model-0.safetensors", tensors(&[(&name(0), "BF16", &[shard(0), 16], of(0, 4))])),
        (
            "model-1.safetensors",
            tensors(&[(&name(1), "BF16", &[shard(1), 16], of(1, 5)), (&name(2), "BF16", &[shard(2), 16], of(2, 6))]),
        ),
    ]
}

fn pool() -> TestPool {
    let config = PoolConfig {
        chunk_bytes: 64 << 10,
        min_block_bytes: 1 << 10,
        max_hosts: 1,
        workers_per_host: 4,
        hazard_lines_per_worker: 2,
        ..PoolConfig::new(HashSeed([3; 32]), [4; 16])
    };
    let mapping = Mapping::create(&RegionSource::Anon, REGION_BYTES, 0o600, &MapOptions::default()).expect("memory");
    let fabric = Arc::new(Coherent::new(mapping));
    Superblock::format(&fabric, &config).expect("it fits");
    let options = AttachOptions { private: true, ..AttachOptions::named("tables") };
    Pool::attach(fabric, &options).expect("it attaches")
}

/// A deadline that has passed: nothing here waits for another worker.
fn now() -> Deadline {
    Clock::stopped().after(Duration::ZERO)
}

/// Extents as short as they can be, so that tables have several.
fn options() -> LoadOptions<'static> {
    LoadOptions { extent_bytes: 8 << 10, journal_bytes: 16 << 10, ..LoadOptions::waiting(now()) }
}

/// An error must have a text.
fn show(error: &TableError) {
    let _ = error.to_string();
}

fn key(name: &str) -> String {
    format!("{KEY_PREFIX}/{name}")
}

/// A table's rows; `None`: it cannot be opened, or has too many for a test.
fn rows_of(pool: &TestPool, name: &str, opening: Opening) -> Option<(Facts, Vec<u8>)> {
    let table = Table::open(pool, name, opening).inspect_err(show).ok()?;
    let facts = table.facts().clone();
    let wanted = facts.rows.min(GATHERED_BYTES_MAX / facts.row_bytes.max(1));
    let all: Vec<u64> = (0..wanted).collect();
    let mut rows = vec![0; all.len() * table.row_bytes()];
    table.gather(&all, &mut rows).inspect_err(|error| drop(error.to_string())).ok()?;
    // The last row, and one behind it.
    if facts.row_bytes <= GATHERED_BYTES_MAX {
        let mut row = vec![0; table.row_bytes()];
        table.gather(&[facts.rows - 1], &mut row).inspect_err(|error| drop(error.to_string())).ok()?;
        assert!(table.gather(&[facts.rows], &mut row).is_err(), "a row behind the last one");
        let mut values = vec![0; table.row_values()];
        let _ = table.gather_bf16(&[facts.rows / 2], &mut values);
    }
    (wanted == facts.rows).then_some((facts, rows))
}

/// The rows that files have now where their headers said when they were opened.
fn rows_in(facts: &Facts, opened: &[File], now: &[File]) -> Vec<u8> {
    let file = |files: &'_ [File], at: u64| {
        let name = &facts.source[at as usize].name;
        files.iter().find(|(file, _)| file == name).expect("it was opened").1.clone()
    };
    let row_bytes = facts.row_bytes as usize;
    // Each shard has one column, or values and their scales: one for each 32.
    let widths = if facts.format == "e4m3-ue8m0" { vec![row_bytes / 33 * 32, row_bytes / 33] } else { vec![row_bytes] };
    let mut rows = Vec::new();
    for shard in facts.tensors.chunks(widths.len()) {
        let column = |(tensor, &width): (&SourceTensor, &usize)| {
            let count = length_of(&file(opened, tensor.file), &tensor.name) / width;
            file(now, tensor.file)[tensor.begin as usize..][..count * width].to_vec()
        };
        let columns: Vec<Vec<u8>> = shard.iter().zip(&widths).map(column).collect();
        for row in 0..columns[0].len() / widths[0] {
            for (column, &width) in columns.iter().zip(&widths) {
                rows.extend_from_slice(&column[row * width..][..width]);
            }
        }
    }
    rows
}

/// Bytes of a tensor, as the header of its file says.
fn length_of(file: &[u8], name: &str) -> usize {
    let header = u64::from_le_bytes(file[..8].try_into().expect("a header")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + header]).expect("it was read a moment ago");
    let offset = |at: usize| header[name]["data_offsets"][at].as_u64().expect("an offset") as usize;
    offset(1) - offset(0)
}

impl Default for Tables {
    fn default() -> Self {
        Self::new()
    }
}

impl Tables {
    /// Makes the valid folders, and loads each.
    ///
    /// # Panics
    /// A valid folder does not load.
    #[must_use]
    pub fn new() -> Self {
        const SHAPE: &[usize] = &[300, 20];
        let pair = ["t", "u"].map(|name| (name, "BF16", SHAPE, random_bytes(300 * 40, name.as_bytes()[0].into())));
        let tables = Self { folders: vec![deepseek(), qwen()], pair: tensors(&pair) };
        for folder in 0..tables.folders.len() as u8 {
            tables.run(&[folder << 1]);
        }
        tables.run(&[1]);
        tables
    }

    /// Runs an input.
    ///
    /// # Panics
    /// The product broke a rule.
    pub fn run(&self, input: &[u8]) {
        let mut input = Input::new(input);
        let choices = input.byte();
        let files = &self.folders[usize::from(choices >> 1) % self.folders.len()];
        if choices & 1 == 0 { Self::files(&mut input, choices, files) } else { self.records(&mut input, choices) }
    }

    /// Loads tables of hostile files.
    fn files(input: &mut Input<'_>, choices: u8, original: &Files) {
        let scratch = Scratch::new("tables");
        let mut files = original.clone();
        let mut is_changed = false;
        for _ in 0..(choices >> 2) % 8 {
            is_changed |= change_file(input, &mut files, original);
        }
        files.iter().for_each(|(name, bytes)| scratch.write(name, bytes));
        let pool = pool();
        let mut sources: Vec<TensorRows> = match model_tables(scratch.path()).inspect_err(show) {
            Ok(tables) => tables.into_iter().map(|table| table.rows).collect(),
            Err(_) => Vec::new(),
        };
        assert!(is_changed || !sources.is_empty(), "a valid folder has no table");
        let one = "layers.1.engram.embed.weight";
        let scales = (choices & 64 != 0).then_some("layers.1.engram.embed.scale");
        let path = scratch.file("model-0.safetensors");
        sources.extend(tensor_table(&path, one, scales, Some(1.0)).inspect_err(show));
        let opened = files.clone();
        if choices & 128 != 0 && change_file(input, &mut files, original) {
            // In their places, so that open files show it.
            files.iter().for_each(|(name, bytes)| scratch.write(name, bytes));
            is_changed = true;
        }
        for (at, source) in sources.iter().take(4).enumerate() {
            let name = format!("t{at}");
            match load(&pool, &name, source, &options()).inspect_err(show) {
                Ok(Outcome::Loaded { digest, .. }) => {
                    assert!(check(&pool, &name).expect("it is sealed").is_whole);
                    let (facts, rows) = rows_of(&pool, &name, Opening::Verified).expect("it is sealed, and small");
                    assert_eq!(facts, *source.facts());
                    assert!(rows == rows_in(&facts, &opened, &files), "a table has other rows than its files");
                    assert!(!digest.is_empty());
                }
                Ok(Outcome::Found { .. }) => panic!("there was no table `{name}`"),
                Err(_) => {
                    assert!(is_changed && list(&pool).iter().all(|table| table.name != name), "a load left a part")
                }
            }
        }
        let names: Vec<String> = list(&pool).into_iter().map(|table| table.name).collect();
        for name in names {
            assert!(dropped(&pool, &name).expect("nothing else works on it"));
        }
        Self::is_empty(&pool);
    }

    fn is_empty(pool: &TestPool) {
        assert!(pool.check(true).expect("no lock is held").is_clean(), "tables left something in the region");
        assert!(pool.memory_of(&[pool.maker()]).is_empty(), "tables left memory in the region");
    }

    /// Opens tables whose records and rows are hostile.
    fn records(&self, input: &mut Input<'_>, choices: u8) {
        let scratch = Scratch::new("tables");
        let files = [("t", self.pair.clone())];
        scratch.write("t", &self.pair);
        let pool = pool();
        let sources = ["t", "u"].map(|name| tensor_table(&scratch.file("t"), name, None, None).expect("a table"));
        let rows = ["t", "u"].map(|name| {
            let at = usize::from(name == "u");
            load(&pool, name, &sources[at], &options()).expect("there is room");
            rows_in(sources[at].facts(), &files, &files)
        });
        let records = ["t", "u"].map(|name| pool.get_object(&key(name)).expect("a key").expect("it is sealed"));
        let mut record = records[0].clone();
        (0..(choices >> 1) % 8).for_each(|_| change_record(input, &mut record, &records[1]));
        let is_forged = record != records[0] && input.chance(128);
        if is_forged {
            seal_record(&mut record);
        }
        // In place of the table's record, as a journal beside it, or as another table.
        let (name, place) = match choices >> 4 & 3 {
            0 => ("t", format!("{KEY_PREFIX}-work/t")),
            1 => ("v", key("v")),
            _ => ("t", key("t")),
        };
        // One that is too long is not put.
        let is_damaged = record != records[0] && pool.put_object(&place, &record).inspect_err(show_pool).is_ok();
        let has_wrong_rows = choices & 64 != 0 && change_rows(input, &pool, &records[0]);
        for opening in [Opening::Verified, Opening::Trusted] {
            let opened = rows_of(&pool, name, opening);
            if place == key(name) && is_damaged {
                assert!(is_forged || opened.is_none(), "a damaged record opened a table");
            } else if opening == Opening::Verified && has_wrong_rows {
                assert!(opened.is_none(), "changed rows passed the verification");
            } else if name == "t" {
                let (_, found) = opened.expect("table `t` cannot be opened");
                assert!(found == rows[0] || has_wrong_rows, "table `t` has other rows");
            }
        }
        let _ = check(&pool, name).inspect_err(show);
        let is_there = |table: &Listed| table.name == "u" && table.state == ListedState::Sealed;
        assert!(list(&pool).iter().any(is_there), "table `u` is not listed");
        if choices & 128 != 0 {
            let _ = load(&pool, name, &sources[0], &options()).inspect_err(show);
            let _ = rows_of(&pool, name, Opening::Verified);
        }
        let _ = dropped(&pool, name).inspect_err(show);
        if !is_forged {
            let (_, found) = rows_of(&pool, "u", Opening::Verified).expect("table `u` cannot be opened");
            assert!(found == rows[1], "table `u` has other rows");
        }
        let _ = dropped(&pool, "u").inspect_err(show);
        assert!(pool.check(true).expect("no lock is held").is_clean(), "the region is damaged");
    }
}

/// Drops a table, if there is one that nothing else works on.
fn dropped(pool: &TestPool, name: &str) -> Result<bool, TableError> {
    drop_table(pool, name, now())
}

/// Changes one of the files. Returns whether its bytes are others now.
fn change_file(input: &mut Input<'_>, files: &mut Files, original: &Files) -> bool {
    if input.is_spent() {
        return false;
    }
    let (at, other) = (input.below(files.len() as u64) as usize, input.below(files.len() as u64) as usize);
    let (name, bytes) = &mut files[at];
    let kept = bytes.clone();
    let what = input.byte() % 8;
    if *name == "config.json" {
        if what == 0 { drop(edit(input, bytes, &original[other].1, 64)) } else { json::change(input, bytes) }
    } else {
        match what {
            0 => drop(edit(input, bytes, &original[other].1, 64)),
            1 => drop(in_place(input, bytes, 8)),
            2 => put(bytes, 0, number(input), 8),
            3 => *bytes = original[other].1.clone(),
            _ => {
                let length = bytes.first_chunk::<8>().map_or(0, |length| u64::from_le_bytes(*length));
                let end = 8_usize.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
                if let Some(header) = bytes.get(8..end) {
                    let (mut header, data) = (header.to_vec(), bytes[end..].to_vec());
                    json::change(input, &mut header);
                    *bytes = file_of(&header, &data);
                }
            }
        }
    }
    *bytes != kept
}

/// Changes a record: its header, its extents, or any bytes.
fn change_record(input: &mut Input<'_>, record: &mut Vec<u8>, other: &[u8]) {
    if input.is_spent() {
        return;
    }
    let length = record.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length)) as usize;
    let end = (4 + length).min(record.len());
    match input.byte() % 8 {
        0 => drop(edit(input, record, other, 16)),
        1 => *record = other.to_vec(),
        2 | 3 => {
            // A word of the extents, which lie before the digest.
            let words = record.len().saturating_sub(end + 32) / 8;
            if words > 0 {
                let at = end + 8 * input.below(words as u64) as usize;
                put(record, at, number(input), 8);
            }
        }
        _ => {
            let (mut header, rest) = (record[4.min(end)..end].to_vec(), record[end..].to_vec());
            json::change(input, &mut header);
            *record = [&(header.len() as u32).to_le_bytes()[..], &header, &rest].concat();
        }
    }
}

/// Makes the digest of a record hold.
fn seal_record(record: &mut Vec<u8>) {
    record.truncate(record.len().saturating_sub(32));
    let digest = *blake3::hash(record).as_bytes();
    record.extend_from_slice(&digest);
}

/// Changes a word of a table's rows in the region.
fn change_rows(input: &mut Input<'_>, pool: &TestPool, record: &[u8]) -> bool {
    let length = u32::from_le_bytes(record[..4].try_into().expect("a length")) as usize;
    let extents = &record[4 + length..record.len() - 32];
    let at = 16 * input.below(extents.len() as u64 / 16) as usize;
    let offset = u64::from_le_bytes(extents[at..at + 8].try_into().expect("an offset"));
    // Every extent has a run of rows at least, but perhaps the last one.
    let word = Offset::new(offset + 8 * input.below(8));
    pool.fabric().store(word, pool.fabric().load(word) ^ (1 << (input.byte() % 64)));
    true
}

fn show_pool(error: &PoolError) {
    let _ = error.to_string();
}
