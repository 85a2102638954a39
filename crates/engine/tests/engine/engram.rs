//! Rows of n-grams that come late, damaged, in parts or not at all change no token.

use crate::common::engram::{TABLES, Tiny, tables_file};
use crate::common::{MemoryStore, collect, config, crowd, greedy, patience, request, run, submit};
use cenote_base::engine::{ErrorKind, Prompt};
use cenote_base::testing::ManualTime;
use cenote_base::{Deadline, Engine, Request};
use cenote_engine::engram::{
    Fetch, FetchError, Fetched, FileTables, InMemoryTables, RowBuffer, RowTables, Rows, TableShape,
};
use cenote_engine::kv::KvArena;
use cenote_engine::llama::{Beyond, LogitsOf, SeqChunk};
use cenote_engine::sparse::SparseDecode;
use cenote_engine::stream::Streamer;
use cenote_engine::{EngineConfig, LlmEngine, LoadedModel};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How a source treats a fetch.
#[derive(Clone, Copy, PartialEq)]
enum Treatment {
    /// The rows arrive before their layer asks for them.
    Early,
    /// The rows arrive only after their layer has asked for them.
    Late,
    /// The fetches of a step are answered when the last one has started, the last one first.
    Backwards,
    /// Every third fetch passes its deadline.
    Expired,
    /// Every third fetch fails.
    Failed,
    /// Some rows of each fetch are missing, and their content is NaN.
    Holes,
}

/// Time of a fetch.
const FETCH: Duration = Duration::from_micros(5);

/// Rows from another thread. It and the engine wait for each other, and time passes by fetches alone.
struct Remote {
    time: &'static ManualTime,
    memory: InMemoryTables,
    treatment: Treatment,
    jobs: Mutex<Sender<Job>>,
    fetches: AtomicUsize,
}

struct Job {
    fetch: Box<dyn Fetch>,
    from_ns: u64,
    done: Sender<Result<Fetched, FetchError>>,
}

struct Waiting {
    /// A job that starts only when its layer asks for the rows.
    held: Option<(Sender<Job>, Job)>,
    done: Receiver<Result<Fetched, FetchError>>,
    arrived: Option<Result<Fetched, FetchError>>,
    treatment: Treatment,
    number: usize,
}

impl Remote {
    fn new(memory: InMemoryTables, treatment: Treatment, time: &'static ManualTime) -> Arc<Self> {
        let (jobs, inbox) = channel::<Job>();
        std::thread::spawn(move || {
            let answer = |job: Job| {
                let mut fetched = job.fetch.finish(patience());
                time.advance(FETCH);
                if let Ok(fetched) = &mut fetched {
                    fetched.ns = time.clock().ns_since(job.from_ns);
                }
                let _ = job.done.send(fetched);
            };
            let mut step = Vec::new();
            while let Ok(job) = inbox.recv() {
                step.push(job);
                if treatment != Treatment::Backwards || step.len() == TABLES.len() {
                    step.drain(..).rev().for_each(answer);
                }
            }
        });
        Arc::new(Self { time, memory, treatment, jobs: Mutex::new(jobs), fetches: AtomicUsize::new(0) })
    }
}

impl RowTables for Remote {
    fn layers(&self) -> &[TableShape] {
        self.memory.layers()
    }

    fn digest(&self) -> [u8; 32] {
        self.memory.digest()
    }

    fn start(&self, table: usize, rows: &[u64], into: RowBuffer) -> Box<dyn Fetch> {
        let (sender, done) = channel();
        let (fetch, from_ns) = (self.memory.start(table, rows, into), self.time.clock().now_ns());
        let (job, jobs) = (Job { fetch, from_ns, done: sender }, self.jobs.lock().unwrap().clone());
        let number = self.fetches.fetch_add(1, Ordering::Relaxed);
        let mut waiting = Waiting { held: None, done, arrived: None, treatment: self.treatment, number };
        if self.treatment == Treatment::Late {
            waiting.held = Some((jobs, job));
        } else {
            jobs.send(job).unwrap();
        }
        if self.treatment == Treatment::Early {
            waiting.arrived = Some(waiting.done.recv().unwrap());
        }
        Box::new(waiting)
    }
}

impl Fetch for Waiting {
    fn poll(&mut self) -> bool {
        if self.arrived.is_none() {
            self.arrived = self.done.try_recv().ok();
        }
        self.arrived.is_some()
    }

    fn finish(mut self: Box<Self>, _: Deadline) -> Result<Fetched, FetchError> {
        if let Some((jobs, job)) = self.held.take() {
            jobs.send(job).unwrap();
        }
        let mut fetched = self.arrived.take().unwrap_or_else(|| self.done.recv().unwrap())?;
        match self.treatment {
            Treatment::Expired if self.number % 3 == 1 => Err(FetchError::Late),
            Treatment::Failed if self.number % 3 == 1 => Err(FetchError::Failed("the region is gone".to_owned())),
            Treatment::Holes => {
                fetched.missing = (0..fetched.rows.len()).filter(|index| index % 5 == 1).collect();
                for index in &fetched.missing {
                    poison(&mut fetched.rows, *index);
                }
                Ok(fetched)
            }
            _ => Ok(fetched),
        }
    }
}

/// Fills a row with NaN, which changes results if it is read.
fn poison(rows: &mut RowBuffer, index: usize) {
    rows.set_bf16(index, &[0x7fc0; crate::common::engram::ROW_VALUES]);
}

fn memory(tiny: &Tiny) -> InMemoryTables {
    InMemoryTables::load(&FileTables::open(tiny.path(), &tiny.addresses).unwrap().unwrap()).unwrap()
}

fn load(tiny: &Tiny, treatment: Treatment, time: &'static ManualTime) -> LoadedModel {
    let config = EngineConfig { clock: time.clock(), ..config(tiny.path()) };
    LoadedModel::load_with(&config, Some(Remote::new(memory(tiny), treatment, time))).unwrap()
}

fn requests(tiny: &Tiny) -> Vec<Request> {
    let lengths = [(1, 50), (2, 3), (3, 17), (4, 33), (5, 1)];
    let of = |(seed, length)| request(Prompt::Tokens(tiny.tokens(seed, length)), greedy(12));
    lengths.map(of).into()
}

fn tokens_alone(tiny: &Tiny) -> Vec<Vec<u32>> {
    let engine = LlmEngine::start(LoadedModel::load(&config(tiny.path())).unwrap(), None).unwrap();
    requests(tiny).into_iter().map(|request| run(&engine, request).unwrap().tokens).collect()
}

#[test]
fn tokens_do_not_depend_on_the_source_of_rows_and_waiting_is_counted() {
    let tiny = Tiny::new();
    let expected = tokens_alone(&tiny);
    for treatment in [
        Treatment::Early,
        Treatment::Late,
        Treatment::Backwards,
        Treatment::Expired,
        Treatment::Failed,
        Treatment::Holes,
    ] {
        let engine = LlmEngine::start(load(&tiny, treatment, ManualTime::start()), None).unwrap();
        let (tokens, stats) = crowd(&engine, &requests(&tiny));
        assert_eq!(tokens, expected);
        let count = |name: &str| stats[&format!("engram_{name}_total")];
        assert_eq!(count("fetches"), 3.0 * stats["engine_steps_total"], "{stats:?}");
        // Tokens of prompts, and all generated ones but the last of each request.
        assert_eq!(count("rows"), 3.0 * 4.0 * (104.0 + 5.0 * 11.0), "{stats:?}");
        assert_eq!(count("bytes"), count("rows") / 3.0 * (64.0 + 32.0 + 33.0), "{stats:?}");
        assert!(count("window_ns") > 0.0 && count("lost_rows") == 0.0, "{stats:?}");
        let fetched_ns = FETCH.as_nanos() as f64 * count("fetches");
        match treatment {
            Treatment::Early => {
                assert_eq!((count("late_fetches"), count("own_rows"), count("stall_ns")), (0.0, 0.0, 0.0));
                assert_eq!(count("hidden_ns"), fetched_ns);
                // All fetches of a step end before its first layer.
                assert_eq!(count("window_ns"), 3.0 * fetched_ns);
            }
            Treatment::Late => {
                assert_eq!(count("late_fetches"), count("fetches"));
                assert_eq!(count("stall_ns"), fetched_ns, "each layer waits for its own");
            }
            Treatment::Backwards => assert_eq!(count("own_rows"), 0.0),
            Treatment::Expired | Treatment::Failed | Treatment::Holes => {
                assert!(count("own_rows") > 0.0, "{stats:?}");
            }
        }
    }
}

#[test]
fn a_fetch_that_ends_in_its_window_is_hidden() {
    let tiny = Tiny::new();
    let time = ManualTime::start();
    let model = load(&tiny, Treatment::Early, time);
    let tokens = tiny.tokens(1, 40);
    let mut rows = Rows::new(time.clock());
    forward(&model, &[(&tokens[..], 0)], &mut rows);
    let counts = rows.counts();
    assert_eq!((counts.fetches, counts.rows, counts.late), (3, 3 * 4 * 40, 0));
    // The mock ends its fetches before the step goes on, so the time of all lies in each window.
    let fetch_ns = FETCH.as_nanos() as u64;
    assert_eq!((counts.hidden_ns, counts.window_ns, counts.stall_ns), (3 * fetch_ns, 9 * fetch_ns, 0));
}

/// Computes chunks of different sequences; returns all logits.
fn forward(model: &LoadedModel, batch: &[(&[u32], usize)], rows: &mut Rows) -> Vec<f32> {
    let tables: Vec<Vec<u32>> =
        (0..batch.len() as u32).map(|at| (0..4).map(|block| 4 * at + block).collect()).collect();
    let mut kv = KvArena::new(*model.layout(), 4 * batch.len());
    let mut logits = Vec::new();
    for until_start in [true, false] {
        // First the tokens before each chunk, then the chunks in one batch.
        let chunks: Vec<SeqChunk<'_>> = (batch.iter().zip(&tables))
            .filter(|((_, start), _)| !until_start || *start > 0)
            .map(|((tokens, start), table)| {
                let (before, tokens) = tokens.split_at(*start);
                let (tokens, before, start_position) =
                    if until_start { (before, &[][..], 0) } else { (tokens, before, *start) };
                SeqChunk { tokens, before, start_position, block_table: table, logits: LogitsOf::All }
            })
            .collect();
        if !chunks.is_empty() {
            let (streamer, sparse) = (&mut Streamer::off(), &mut SparseDecode::off());
            let beyond = Beyond { lazy: &[], streamer, sparse, choosing: &[], rows: &mut *rows };
            logits = model.forward_beyond(&chunks, &mut kv, beyond);
        }
    }
    logits
}

#[test]
fn a_chunk_reads_the_tokens_before_it() {
    let tiny = Tiny::new();
    let model = LoadedModel::load(&config(tiny.path())).unwrap();
    let (one, two) = (tiny.tokens(1, 40), tiny.tokens(2, 50));
    let bits = |logits: &[f32]| logits.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let whole = forward(&model, &[(&one[..], 0)], &mut Rows::untimed());
    for start in [1, 2, 3, 16, 39] {
        let both = forward(&model, &[(&two[..], 7), (&one[..], start)], &mut Rows::untimed());
        assert_eq!(bits(&both[43 * tiny.vocab..]), bits(&whole[start * tiny.vocab..]), "from {start}");
    }
}

#[test]
fn chunked_prefill_and_loaded_prefixes_have_the_tokens_of_whole_prompts() {
    let tiny = Tiny::new();
    let expected = tokens_alone(&tiny);
    let store = MemoryStore::default();
    let mut cached = Vec::new();
    for max_num_batched_tokens in [5, 16, 512] {
        let config = EngineConfig { max_num_batched_tokens, ..config(tiny.path()) };
        let engine = crate::common::start(&config, Some(store.clone()));
        for (request, expected) in requests(&tiny).into_iter().zip(&expected) {
            let outcome = run(&engine, request).unwrap();
            assert_eq!(outcome.tokens, *expected, "in chunks of {max_num_batched_tokens}");
            cached.push(outcome.usage.cached_tokens);
        }
    }
    // The second engine loads what the first has computed; the next token's n-grams read its tokens.
    assert_eq!(cached[5..8], [48, 0, 16]);
}

/// A folder without the tables: rows come from the source alone.
fn without_own_copy(tiny: &Tiny, treatment: Treatment) -> LoadedModel {
    let source = Remote::new(memory(tiny), treatment, ManualTime::start());
    std::fs::remove_file(tables_file(tiny.path())).unwrap();
    LoadedModel::load_with(&config(tiny.path()), Some(source)).unwrap()
}

#[test]
fn without_an_own_copy_a_request_ends_and_publishes_nothing() {
    for (treatment, words) in [
        (Treatment::Expired, "did not arrive within"),
        (Treatment::Failed, "the region is gone"),
        (Treatment::Holes, "damaged or gone"),
    ] {
        let tiny = Tiny::new();
        let store = MemoryStore::default();
        let engine = LlmEngine::start(without_own_copy(&tiny, treatment), Some(Box::new(store.clone()))).unwrap();
        let error = run(&engine, requests(&tiny).remove(0)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        assert!(error.message.contains("n-gram rows of layer") && error.message.contains(words), "{error}");
        assert!(store.shared.lock().unwrap().saved.is_empty(), "wrong KV was published");
        assert!(engine.drain(patience()));
        let stats = engine.stats().values;
        assert_eq!(stats["kv_blocks_free"], stats["kv_blocks"]);
    }
}

#[test]
fn a_missing_row_ends_only_the_sequence_that_reads_it() {
    let tiny = Tiny::new();
    let model = without_own_copy(&tiny, Treatment::Holes);
    let reference = Tiny::new();
    let reference = LoadedModel::load(&config(reference.path())).unwrap();
    let tokens = tiny.tokens(1, 20);
    let mut rows = Rows::untimed();
    // Four rows a token: the first token has the missing row 1, and the whole batch others.
    forward(&model, &[(&tokens[..1], 0)], &mut rows);
    assert_eq!(rows.take_failed().into_keys().collect::<Vec<_>>(), [0]);
    // With one token in each chunk, the missing rows 1, 6, 11 and 16 belong to all but the fourth.
    let batch = [(&tokens[..1], 0), (&tokens[1..2], 0), (&tokens[2..3], 0), (&tokens[3..4], 0), (&tokens[4..5], 0)];
    let logits = forward(&model, &batch, &mut rows);
    let failed = rows.take_failed();
    assert_eq!(failed.into_keys().collect::<Vec<_>>(), [0, 1, 2, 4]);
    let expected = forward(&reference, &batch, &mut Rows::untimed());
    let of = |logits: &[f32]| logits[3 * tiny.vocab..][..tiny.vocab].to_vec();
    assert_eq!(of(&logits), of(&expected));
}

#[test]
fn a_token_outside_the_tokenizer_ends_its_request_only() {
    let tiny = Tiny::new();
    // The embedding has more rows than the tokenizer has tokens, as padded vocabularies do.
    let path = tiny.path().join("config.json");
    let config_text = std::fs::read_to_string(&path).unwrap();
    let wider = format!("\"vocab_size\":{}", tiny.vocab + 1);
    let changed = config_text.replace(&format!("\"vocab_size\":{}", tiny.vocab), &wider);
    assert_ne!(changed, config_text);
    std::fs::write(&path, changed).unwrap();
    let mut weights = tiny.weights["model.embed_tokens.weight"].clone();
    weights.extend([0.1; crate::common::engram::HIDDEN]);
    tiny.write_weights("model.embed_tokens.weight", &weights, &[tiny.vocab + 1, crate::common::engram::HIDDEN]);
    let engine = LlmEngine::start(LoadedModel::load(&config(tiny.path())).unwrap(), None).unwrap();
    let outside = request(Prompt::Tokens(vec![1, tiny.vocab as u32]), greedy(3));
    let inside = request(Prompt::Tokens(vec![1, 2]), greedy(3));
    let (outside, inside) = (submit(&engine, outside).unwrap(), submit(&engine, inside).unwrap());
    let error = collect(&outside).unwrap_err();
    assert!(error.message.contains("outside the vocabulary"), "{error}");
    assert_eq!(collect(&inside).unwrap().tokens.len(), 3);
}

fn refusal(dir: &Path) -> String {
    LoadedModel::load(&config(dir)).err().expect("damage is refused").to_string()
}

#[test]
fn a_damaged_tables_file_is_refused_by_name() {
    let tiny = Tiny::new();
    let file = tables_file(tiny.path());
    let whole = std::fs::read(&file).unwrap();
    for (bytes, words) in [
        (&whole[..whole.len() - 1], "cut off"),
        (&whole[..4], "cut off"),
        (&[0xff; 64][..], "not a safetensors file"),
        (&[][..], "cut off"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let error = refusal(tiny.path());
        assert!(error.contains("engram.safetensors") && error.contains(words), "{error}");
    }
    let tensors = tiny.tensors();
    for (at, (name, ..)) in tensors.iter().enumerate() {
        let mut without = tensors.clone();
        without.remove(at);
        tiny.write_tables(&without);
        let error = refusal(tiny.path());
        // Without its scales, the type of a table asks for the other kind of scale.
        let layer = name.split(".engram").next().unwrap();
        assert!(error.contains(layer) && error.contains("is missing"), "{error}");
        let mut shorter = tensors.clone();
        let (_, _, shape, bytes) = &mut shorter[at];
        let row = bytes.len() / shape[0];
        bytes.extend_from_within(..row);
        shape[0] += 1;
        tiny.write_tables(&shorter);
        let error = refusal(tiny.path());
        assert!(error.contains(name.as_str()) && error.contains("the configuration needs"), "{error}");
    }
    let mut other = tensors;
    let (_, dtype, shape, bytes) = &mut other[0];
    (*dtype, shape[1], *bytes) = (safetensors::Dtype::U8, 2 * shape[1], bytes.clone());
    tiny.write_tables(&other);
    assert!(refusal(tiny.path()).contains("has element type U8"));
    std::fs::remove_file(&file).unwrap();
    assert!(refusal(tiny.path()).contains("neither engram.safetensors nor"));
}

#[test]
fn the_namespace_covers_rows_scales_and_the_token_map() {
    let tiny = Tiny::new();
    let fingerprint = || LoadedModel::load(&config(tiny.path())).unwrap().namespace_spec("").model_fingerprint;
    let first = fingerprint();
    assert_eq!(first, fingerprint());
    let tensors = tiny.tensors();
    let mut seen = BTreeMap::from([(first, "unchanged".to_owned())]);
    for (at, (name, ..)) in tensors.iter().enumerate() {
        let mut changed = tensors.clone();
        // The last byte of the last row, or of the scale's mantissa.
        let byte = if name.ends_with("weight_scale") { 2 } else { changed[at].3.len() - 1 };
        changed[at].3[byte] ^= 1;
        tiny.write_tables(&changed);
        assert_eq!(seen.insert(fingerprint(), name.clone()), None, "{name} and another change have one name");
    }
    tiny.write_tables(&tensors);
    // Another text for a token: the same number of ids, and other rows.
    let path = tiny.path().join("tokenizer.json");
    let tokenizer = std::fs::read_to_string(&path).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&tokenizer).unwrap();
    let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
    let id = |name: &str| vocabulary[name].clone();
    let (a, b) = (id("Q"), id("!"));
    vocabulary.insert("Q".to_owned(), b);
    vocabulary.insert("!".to_owned(), a);
    std::fs::write(&path, json.to_string()).unwrap();
    assert_eq!(seen.insert(fingerprint(), "the tokenizer".to_owned()), None, "the token map changes rows");
}

/// A source that does something when the engine asks for its digest: behind the opening of the
/// checkpoint, and before its weights are read.
struct Between<'a> {
    memory: InMemoryTables,
    act: Box<dyn Fn() + Send + Sync + 'a>,
}

impl RowTables for Between<'_> {
    fn layers(&self) -> &[TableShape] {
        self.memory.layers()
    }

    fn digest(&self) -> [u8; 32] {
        (self.act)();
        self.memory.digest()
    }

    fn start(&self, table: usize, rows: &[u64], into: RowBuffer) -> Box<dyn Fetch> {
        self.memory.start(table, rows, into)
    }
}

/// A checkpoint that was overwritten in place between hashing and loading gave its KV the name of the
/// weights before.
#[test]
fn the_name_of_kv_is_of_the_weights_that_were_loaded() {
    let tiny = Tiny::new();
    let file = tiny.path().join("model.safetensors");
    let first = std::fs::read(&file).unwrap();
    let mut second = first.clone();
    // The last value of the last tensor.
    let at = second.len() - 2;
    second[at] ^= 1;
    let name = |model: &LoadedModel| model.namespace_spec("").model_fingerprint;
    let of = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        name(&LoadedModel::load(&config(tiny.path())).unwrap())
    };
    let names = [of(&second), of(&first)];
    assert_ne!(names[0], names[1], "one value is another model");
    let (path, memory) = (file.clone(), memory(&tiny));
    let act = Box::new(move || std::fs::write(&path, &second).unwrap());
    let model = LoadedModel::load_with(&config(tiny.path()), Some(Arc::new(Between { memory, act }))).unwrap();
    assert_eq!(name(&model), names[0], "the weights that it runs");
}

/// Rows of a table's file were hashed when the engine started, and read later.
#[test]
fn rows_of_a_file_that_has_changed_are_not_read() {
    let tiny = Tiny::new();
    let path = tables_file(tiny.path());
    // An old time, so that a write changes it even under a coarse clock.
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    std::fs::File::options().write(true).open(&path).and_then(|file| file.set_modified(old)).unwrap();
    let file = FileTables::open(tiny.path(), &tiny.addresses).unwrap().unwrap();
    let digest = file.digest().unwrap();
    assert_eq!(InMemoryTables::load(&file).unwrap().digest(), digest);
    let mut row = RowBuffer::new(1, crate::common::engram::ROW_VALUES);
    file.read(0, 0, 0, &mut row).unwrap();
    let mut tensors = tiny.tensors();
    tensors[0].3[0] ^= 1;
    tiny.write_tables(&tensors);
    for error in [
        file.read(0, 0, 0, &mut row).unwrap_err(),
        file.digest().unwrap_err().to_string(),
        InMemoryTables::load(&file).err().unwrap().to_string(),
    ] {
        assert!(error.contains("has changed since it was opened"), "{error}");
    }
}

#[test]
fn a_source_with_other_rows_is_refused() {
    let tiny = Tiny::new();
    let source = memory(&tiny);
    let mut tensors = tiny.tensors();
    tensors[0].3[0] ^= 1;
    tiny.write_tables(&tensors);
    let load = |source: InMemoryTables| LoadedModel::load_with(&config(tiny.path()), Some(Arc::new(source)));
    let error = load(source).err().expect("its rows differ").to_string();
    assert!(error.contains("rows differ from those in the model's folder"), "{error}");
    // The same rows in the checkpoint itself are the same tables.
    let digest = memory(&tiny).digest();
    std::fs::remove_file(tables_file(tiny.path())).unwrap();
    tiny.write_all(&tensors);
    let model = load(memory(&tiny)).unwrap();
    assert_eq!(memory(&tiny).digest(), digest);
    assert!(model.llama().tables().is_some());
}

#[test]
fn a_model_without_tables_takes_no_source() {
    let (tiny, dir) = (Tiny::new(), crate::common::model_dir("gqa-tied"));
    let error = LoadedModel::load_with(&config(dir.path()), Some(Arc::new(memory(&tiny)))).err();
    assert!(error.expect("it has no layer for them").to_string().contains("no tables of n-grams"));
}
