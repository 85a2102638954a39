//! An object store that answers what an input says.

use super::super::edit::number as odd_number;
use super::super::input::Input;
use super::blocks::{LENGTH_MAX, SEED, name, read, twin, write};
use super::clock::Looks;
use async_trait::async_trait;
use bytes::Bytes;
use cenote_cold::record::{Aligned, Name};
use cenote_cold::{Backend, Objects};
use futures::future::FutureExt;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Most memory that an input may take.
pub const BUCKET_MEMORY_MAX: u64 = 128 << 20;
/// Most objects that a store lists before an input counts as one that reads without a bound.
const LISTED_MAX: u64 = 60_000;
/// Most bytes of one answer before an input counts as one that reads without a bound.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
const BLOCKS: u64 = 24;
const NEW: u64 = 1000;
const STEPS_MAX: u32 = 32;
/// The limit that lies in the bucket: nothing has to leave.
const LIMIT: u64 = 1 << 20;

/// Objects and when they were put, in seconds.
type Kept = BTreeMap<Path, (Bytes, u64)>;

/// Objects that L4 has put.
pub struct Bucket {
    objects: Kept,
}

/// What the store answers with.
struct Store {
    objects: Mutex<Kept>,
    /// The input's bytes, and how many of them are spent. A store whose input is spent is honest.
    script: Mutex<(Vec<u8>, usize)>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a hostile store")
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a hostile store")
    }
}

fn gone(path: &Path) -> Error {
    Error::NotFound { path: path.to_string(), source: "there is none".into() }
}

impl Store {
    fn objects(&self) -> MutexGuard<'_, Kept> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws from the input.
    fn draw<T>(&self, draw: impl FnOnce(&mut Input<'_>) -> T) -> T {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        let (bytes, spent) = &mut *script;
        let mut input = Input::new(&bytes[*spent..]);
        let drawn = draw(&mut input);
        let left = input.rest().len();
        *spent = bytes.len() - left;
        drawn
    }

    /// An error, or none.
    fn fault(&self, path: &Path) -> Option<Error> {
        let source = || "the store says so".into();
        let path = path.to_string();
        Some(match self.draw(|input| input.byte()) {
            1..=4 => Error::NotFound { path, source: source() },
            5..=8 => Error::Generic { store: "hostile", source: source() },
            9 => Error::AlreadyExists { path, source: source() },
            10 => Error::Precondition { path, source: source() },
            11 => Error::NotModified { path, source: source() },
            12 => Error::PermissionDenied { path, source: source() },
            13 => Error::Unauthenticated { path, source: source() },
            14 => Error::NotSupported { source: source() },
            _ => return None,
        })
    }

    /// A call that does not return; otherwise at once.
    async fn hang(&self) {
        if self.draw(|input| input.byte()) == 255 {
            std::future::pending::<()>().await;
        }
    }

    fn meta(path: &Path, size: u64, seconds: u64) -> ObjectMeta {
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        ObjectMeta { location: path.clone(), last_modified: modified.into(), size, e_tag: None, version: None }
    }

    /// The bytes of an answer, and the size that the store says.
    fn answer(&self, path: &Path) -> Result<(Bytes, u64)> {
        let objects = self.objects();
        let found = objects.get(path).map(|(bytes, _)| bytes.clone());
        let other = |input: &mut Input<'_>| {
            let at = input.below(objects.len().max(1) as u64) as usize;
            objects.values().nth(at).map_or_else(Bytes::new, |(bytes, _)| bytes.clone())
        };
        self.draw(|input| {
            let what = input.byte();
            let bytes = match (what, found) {
                (1..=24, _) => other(input),
                (_, None) => return Err(gone(path)),
                (25..=48, Some(bytes)) => {
                    let mut bytes = bytes.to_vec();
                    super::super::edit::in_place(input, &mut bytes, 4096);
                    bytes.into()
                }
                (49..=64, Some(bytes)) => bytes.slice(..input.below(bytes.len() as u64 + 1) as usize),
                (65..=80, Some(bytes)) => [&bytes[..], &other(input)[..]].concat().into(),
                (_, Some(bytes)) => bytes,
            };
            let says = match what {
                81..=120 => odd_number(input),
                _ => bytes.len() as u64,
            };
            Ok((bytes, says))
        })
    }
}

/// Pieces of an answer; some come late, some never, some without an end.
fn pieces(input: &mut Input<'_>, bytes: Bytes) -> BoxStream<'static, Result<Bytes>> {
    let error = || Error::Generic { store: "hostile", source: "in the middle".into() };
    match input.byte() {
        1..=16 => {
            let size = 1 + input.below(5000) as usize;
            stream::iter((0..bytes.len().div_ceil(size)).map(move |at| {
                let from = at * size;
                Ok(bytes.slice(from..(from + size).min(bytes.len())))
            }))
            .boxed()
        }
        17..=24 => {
            let half = bytes.slice(..bytes.len() / 2);
            stream::iter([Ok(half), Err(error())]).boxed()
        }
        25..=28 => stream::once(async move { Ok(bytes) }).chain(stream::pending()).boxed(),
        29 => {
            let piece = Bytes::from(vec![0x5a; 1 << 20]);
            let endless = (0_u64..).map(move |at| {
                assert!(at << 20 < ANSWER_BYTES_MAX, "an answer is read without a bound");
                Ok(piece.clone())
            });
            stream::once(async move { Ok(bytes) }).chain(stream::iter(endless)).boxed()
        }
        _ => stream::once(async move { Ok(bytes) }).boxed(),
    }
}

#[async_trait]
impl ObjectStore for Store {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.hang().await;
        if let Some(error) = self.fault(path) {
            return Err(error);
        }
        let mut bytes: Bytes = payload.into();
        let lies = self.draw(|input| input.byte());
        let mut objects = self.objects();
        if options.mode == PutMode::Create && objects.contains_key(path) {
            return Err(Error::AlreadyExists { path: path.to_string(), source: "it is there".into() });
        }
        if (1..=8).contains(&lies) {
            bytes = objects.values().next().map_or_else(Bytes::new, |(bytes, _)| bytes.clone());
        }
        if !(9..=16).contains(&lies) {
            let seconds = 1_790_000_000 + objects.len() as u64;
            objects.insert(path.clone(), (bytes, seconds));
        }
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotSupported { source: "parts".into() })
    }

    async fn get_opts(&self, path: &Path, _: GetOptions) -> Result<GetResult> {
        self.hang().await;
        if let Some(error) = self.fault(path) {
            return Err(error);
        }
        let (bytes, says) = self.answer(path)?;
        let payload = GetResultPayload::Stream(self.draw(|input| pieces(input, bytes)));
        Ok(GetResult { payload, meta: Self::meta(path, says, 1), range: 0..says, attributes: Attributes::default() })
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let error = self.fault(&Path::from("deleted"));
        let lies = self.draw(|input| input.byte()) % 16 == 1;
        // Names come from memory.
        let paths: Vec<Result<Path>> = paths.collect().now_or_never().expect("the names are in memory");
        let mut objects = self.objects();
        for path in paths.iter().flatten().filter(|_| !lies && error.is_none()) {
            objects.remove(path);
        }
        match error {
            Some(error) => stream::iter([Err(error)]).boxed(),
            None => stream::iter(paths).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if let Some(error) = self.fault(&Path::from("listed")) {
            return stream::iter([Err(error)]).boxed();
        }
        let is_below = |path: &Path| prefix.is_none_or(|prefix| path.prefix_matches(prefix));
        let mut listed: Vec<Result<ObjectMeta>> = self
            .objects()
            .iter()
            .filter(|(path, _)| is_below(path))
            .map(|(path, (bytes, seconds))| Ok(Self::meta(path, bytes.len() as u64, *seconds)))
            .collect();
        let prefix = prefix.cloned().unwrap_or_default();
        self.draw(|input| {
            let what = input.byte();
            for _ in 0..(what / 16) % 8 {
                let at = input.below(listed.len() as u64 + 1) as usize;
                let size = odd_number(input);
                let seconds = odd_number(input) % (1 << 33);
                match input.byte() % 8 {
                    0 => listed.insert(at, Err(Error::Generic { store: "hostile", source: "a page".into() })),
                    1 => listed.insert(at, Ok(Self::meta(&prefix.clone().join("x"), size, seconds))),
                    2 => listed.insert(at, Ok(Self::meta(&Path::from("elsewhere/x"), size, seconds))),
                    3 => {
                        let of = name(NEW + input.below(40));
                        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
                        let path = prefix.clone().join(hex(&of.namespace)).join(hex(&of.hash.0));
                        listed.insert(at, Ok(Self::meta(&path, size, seconds)));
                    }
                    4 if at < listed.len() => drop(listed.remove(at)),
                    5 => listed.reverse(),
                    _ => {
                        if let Some(Ok(meta)) = listed.get(at) {
                            let meta = Self::meta(&meta.location, size, seconds);
                            if input.chance(128) { listed[at] = Ok(meta) } else { listed.push(Ok(meta)) }
                        }
                    }
                }
            }
            let listed = stream::iter(listed);
            match what % 16 {
                1 => listed.chain(stream::pending()).boxed(),
                2 if input.byte() < 8 => listed.chain(endless(prefix)).boxed(),
                _ => listed.boxed(),
            }
        })
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(Error::NotSupported { source: "folders".into() })
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(Error::NotSupported { source: "copies".into() })
    }
}

/// A listing without an end, with a name of its own for each object.
fn endless(prefix: Path) -> BoxStream<'static, Result<ObjectMeta>> {
    stream::iter((0_u64..).map(move |at| {
        assert!(at < LISTED_MAX, "a listing is read without a bound");
        let path = prefix.clone().join(format!("{at:064x}")).join(format!("{at:032x}"));
        Ok(Store::meta(&path, 4096, 1))
    }))
    .boxed()
}

impl Default for Bucket {
    fn default() -> Self {
        Self::new()
    }
}

fn over(store: &Arc<Store>) -> Objects {
    let store: Arc<dyn ObjectStore> = Arc::clone(store) as _;
    let (prefix, deadline) = (Path::from("kv"), Duration::from_secs(2));
    Objects::over(store, &prefix, "hostile://store/kv", Some(LIMIT), deadline, Looks::clock()).expect("threads start")
}

impl Bucket {
    /// Puts the blocks.
    ///
    /// # Panics
    /// They cannot be put, or are not found.
    #[must_use]
    pub fn new() -> Self {
        let store = Arc::new(Store { objects: Mutex::default(), script: Mutex::default() });
        let place = over(&store);
        place.open(&SEED).expect("an honest store");
        let names: Vec<Name> = (0..BLOCKS).map(name).collect();
        names.chunks(5).for_each(|names| write(&place, names).expect("an honest store"));
        let objects = store.objects().clone();
        assert_eq!(objects.len() as u64, BLOCKS + 1, "an object for each block, and the identity");
        let bucket = Self { objects };
        bucket.run(&[]);
        bucket
    }

    /// Runs an input.
    ///
    /// # Panics
    /// The product broke a rule.
    pub fn run(&self, input: &[u8]) {
        // The first half is spent on answers, the second on calls.
        let (answers, calls) = input.split_at(input.len() / 2);
        let mut input = Input::new(calls);
        let script = Mutex::new((answers.to_vec(), 0));
        let store = Arc::new(Store { objects: Mutex::new(self.objects.clone()), script });
        let mut place = over(&store);
        let mut memory = Aligned::default();
        let is_open = place.open(&SEED).inspect_err(|error| drop(error.to_string())).is_ok();
        list(&place);
        let found = (0..BLOCKS).filter(|&number| read(&place, &name(number), &mut memory)).count() as u64;
        assert!(!answers.is_empty() || (is_open && found == BLOCKS), "an honest store loses blocks");
        let mut next = NEW;
        for _ in 0..STEPS_MAX {
            if input.is_spent() {
                break;
            }
            match input.byte() % 16 {
                0..=5 => {
                    let number = if input.chance(200) { input.below(BLOCKS) } else { NEW + input.below(40) };
                    read(&place, &name(number), &mut memory);
                }
                6 => {
                    let found = place.read(&twin(input.below(BLOCKS)), LENGTH_MAX, &mut memory);
                    assert!(found.is_err(), "a block was found that nothing was written under");
                }
                7 | 8 => list(&place),
                9 | 10 => {
                    let new: Vec<Name> = (next..next + 1 + input.below(4)).map(name).collect();
                    next += new.len() as u64;
                    let _ = write(&place, &new).inspect_err(|error| drop(error.to_string()));
                }
                11 => drop(place.survey().inspect_err(|error| drop(error.to_string()))),
                12 => Looks::advance(Duration::from_secs(31)),
                13 => drop(place.open(&SEED).inspect_err(|error| drop(error.to_string()))),
                14 => {
                    let wanted = [16 << 10, 100 << 10, LIMIT, 64 << 20, 1][input.below(5) as usize];
                    let _ = place.resize(wanted).inspect_err(|error| drop(error.to_string()));
                    let _ = place.used();
                }
                _ => {
                    place = over(&store);
                    let _ = place.open(&SEED).inspect_err(|error| drop(error.to_string()));
                    list(&place);
                }
            }
        }
        (0..BLOCKS).for_each(|number| _ = read(&place, &name(number), &mut memory));
        (NEW..next).for_each(|number| _ = read(&place, &name(number), &mut memory));
    }
}

/// Looks until the list is complete. Each look but the last finds at least one object.
fn list(place: &Objects) {
    for _ in 0..LISTED_MAX {
        match place.refresh().inspect_err(|error| drop(error.to_string())) {
            Ok(refreshed) if refreshed.has_more => {}
            _ => return,
        }
    }
    panic!("a listing has no end");
}
