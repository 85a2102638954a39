//! Objects: a record per object in an object store (docs/internals/cold-format.md#objects).
//!
//! A put is atomic, so an object is whole or absent. The list in memory grows while the store's
//! listing is read, a few pages at a time, and is renewed from time to time; a process enters its own
//! objects at once. Every process removes the oldest objects when they exceed the limit: two that do
//! it choose nearly the same ones, and removing one twice is no error.

mod http;
mod list;

use crate::backend::{Backend, Refreshed, Sealed, Used};
use crate::error::ColdError;
use crate::identity::{self, Identity};
use crate::record::{Aligned, Head, Name, PAYLOAD_MAX, SECTOR, record_bytes};
use crate::settings::DEFAULT_BYTES;
use crate::sums::{Sealing, Sums};
use crate::wait::{Threads, until};
use cenote_base::{BlockHash, Clock, Deadline, HashSeed};
use cenote_mem::files::OwnFolder;
use futures::stream::{BoxStream, StreamExt, TryStreamExt, iter};
use list::List;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutMode, PutOptions, PutPayload};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use url::Url;

/// Folder of all objects of this format.
const FOLDER: &str = "cenote-v2";
/// Folder of the blocks in it.
const BLOCKS: &str = "blocks";
/// Time between two listings, and until one that failed goes on.
const LIST_EVERY: Duration = Duration::from_secs(30);
/// Longest time of a page of a listing, an identity or a write.
const SLOW: Duration = Duration::from_secs(30);
/// Longest time for a put with a condition. A store without conditions may answer with an error that
/// is retried.
const CONDITION: Duration = Duration::from_secs(3);
/// Objects and time of one step of a listing. Blocks are written between two.
const STEP: usize = 4000;
const STEP_TIME: Duration = Duration::from_millis(200);
/// Names in a listing beyond those that a full place can have.
const NAMES_MORE: u64 = 10_000;
/// Objects that are removed at once.
const REMOVED_TOGETHER: usize = 1000;
/// Requests at once.
const TOGETHER: usize = 16;

/// A listing in progress.
struct Listing {
    /// `None`: it failed, and goes on after the last name.
    stream: Option<BoxStream<'static, Result<ObjectMeta, object_store::Error>>>,
    last: Option<Path>,
    /// The store names its objects in order, so that a listing can go on in the middle.
    is_sorted: bool,
    names: u64,
}

/// What the process follows the store with.
#[derive(Default)]
struct Follow {
    listing: Option<Listing>,
    /// When the listing begins or goes on; `None`: now.
    next: Option<Deadline>,
}

/// Blocks below a URL, as one process sees them.
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    folder: Path,
    url: String,
    /// The directory of a local store.
    directory: Option<PathBuf>,
    /// The wanted limit, as in [`crate::ExtentsConfig::bytes`].
    bytes: Option<u64>,
    has_asked: AtomicBool,
    deadline: Duration,
    sealing: Sealing,
    place: RwLock<Option<(Identity, Sums)>>,
    list: RwLock<List>,
    clock: Clock,
    follow: Mutex<Follow>,
    removed: AtomicU64,
    /// Failures since the last report that cost no call.
    damage: Mutex<Vec<ColdError>>,
    runtime: Threads,
}

/// A store, the path of a URL in it, and its directory if it is local.
type Parts = (Arc<dyn ObjectStore>, Path, Option<PathBuf>);

/// The store of a URL.
fn store_of(url: &Url, variables: impl Iterator<Item = (String, String)>) -> Result<Parts, object_store::Error> {
    let (scheme, path) = ObjectStoreScheme::parse(url)?;
    macro_rules! built {
        ($builder:ty) => {{
            let begun = <$builder>::new().with_url(url.to_string()).with_http_connector(http::Bounded);
            let builder = variables.fold(begun, |builder, (name, value)| match name.parse() {
                Ok(name) => builder.with_config(name, value),
                Err(_) => builder,
            });
            Arc::new(builder.build()?)
        }};
    }
    let mut directory = None;
    let store: Arc<dyn ObjectStore> = match scheme {
        ObjectStoreScheme::Local => {
            directory = url.to_file_path().ok();
            Arc::new(LocalFileSystem::new())
        }
        ObjectStoreScheme::AmazonS3 => built!(AmazonS3Builder),
        ObjectStoreScheme::GoogleCloudStorage => built!(GoogleCloudStorageBuilder),
        ObjectStoreScheme::MicrosoftAzure => built!(MicrosoftAzureBuilder),
        _ => {
            let source = "it is no object store that this program knows".into();
            return Err(object_store::Error::Generic { store: "cold tier", source });
        }
    };
    Ok((store, path, directory))
}

impl Objects {
    /// Blocks below a URL. The clouds' usual variables (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, …) hold
    /// keys and endpoints. Nothing is asked of the store yet.
    ///
    /// # Errors
    /// The URL or the variables are wrong.
    pub fn new(url: &str, bytes: Option<u64>, deadline: Duration, clock: Clock) -> Result<Self, ColdError> {
        Self::with_options(url, bytes, deadline, clock, std::env::vars())
    }

    /// As [`Objects::new`], with other variables than the environment's.
    ///
    /// # Errors
    /// The URL or the variables are wrong.
    pub fn with_options(
        url: &str,
        bytes: Option<u64>,
        deadline: Duration,
        clock: Clock,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ColdError> {
        let wrong = |error: String| ColdError::Io { at: url.to_owned(), error };
        let parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
        let variables = variables.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
        let (store, prefix, directory) = store_of(&parsed, variables).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { directory, ..Self::over(store, &prefix, url, bytes, deadline, clock)? })
    }

    /// As [`Objects::new`], over any store. `prefix`: the folder in it; `url`: its name in messages.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn over(
        store: Arc<dyn ObjectStore>,
        prefix: &Path,
        url: &str,
        bytes: Option<u64>,
        deadline: Duration,
        clock: Clock,
    ) -> Result<Self, ColdError> {
        let wrong = |error: String| ColdError::Io { at: url.to_owned(), error };
        let runtime = Threads::start("cold-objects").map_err(|error| wrong(error.to_string()))?;
        Ok(Self {
            store,
            folder: prefix.clone().join(FOLDER),
            url: url.to_owned(),
            directory: None,
            bytes,
            has_asked: AtomicBool::new(false),
            deadline,
            sealing: None,
            place: RwLock::default(),
            list: RwLock::default(),
            clock,
            follow: Mutex::default(),
            removed: AtomicU64::new(0),
            damage: Mutex::default(),
            runtime,
        })
    }

    /// The same place below a region with this seal.
    #[must_use]
    pub fn sealed_by(self, sealing: Sealing) -> Self {
        Self { sealing, ..self }
    }

    /// The identity of this place; a place without one gets `own`.
    ///
    /// # Errors
    /// The store does not answer, or the identity is damaged, of another version, or of another seal.
    pub fn identity(&self, own: &Identity) -> Result<Identity, ColdError> {
        if let Some(directory) = &self.directory {
            OwnFolder::make(directory).map_err(|error| ColdError::of(directory.display(), &error))?;
        }
        let path = self.identity_path();
        let found = self.within(SLOW, async {
            if let Some(found) = self.get_identity().await? {
                return Ok(found);
            }
            let bytes = || PutPayload::from(identity::encode(own, &self.sealing).to_vec());
            let created = self.store.put_opts(&path, bytes(), PutOptions::from(PutMode::Create));
            match until(self.clock.after(CONDITION), created).await {
                Some(Ok(_) | Err(object_store::Error::AlreadyExists { .. })) => {}
                // Stores without conditions refuse them in many ways. There the last of two first
                // processes wins. A store that refuses every write says why below.
                Some(Err(_)) | None if self.get_identity().await?.is_none() => {
                    drop(self.store.put(&path, bytes()).await?);
                }
                Some(Err(_)) | None => {}
            }
            Ok(self.get_identity().await?.unwrap_or_default())
        })?;
        identity::decode(&found, &self.url, &self.sealing)
    }

    /// Refuses a local store's directory that others can write. One that is not there holds nothing.
    fn check_directory(&self) -> Result<(), ColdError> {
        let Some(directory) = &self.directory else { return Ok(()) };
        match OwnFolder::open(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(ColdError::of(directory.display(), &error)),
            Ok(_) => Ok(()),
        }
    }

    fn identity_path(&self) -> Path {
        self.folder.clone().join(identity::FILE)
    }

    /// The identity's object; `None`: there is none. One that is too long is empty, which is damage.
    async fn get_identity(&self) -> Result<Option<Vec<u8>>, object_store::Error> {
        match self.get(&self.identity_path(), record_bytes(0)).await {
            Ok(found) => Ok(Some(found.unwrap_or_default())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// An object's content; `None`: it has more than `most` bytes, whatever the store says about it.
    async fn get(&self, path: &Path, most: u64) -> Result<Option<Vec<u8>>, object_store::Error> {
        let found = self.store.get(path).await?;
        if found.meta.size > most {
            return Ok(None);
        }
        let (mut pieces, mut bytes) = (found.into_stream(), Vec::new());
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            if (bytes.len() + piece.len()) as u64 > most {
                return Ok(None);
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Some(bytes))
    }

    /// Waits for requests, at most so long.
    fn within<T>(
        &self,
        longest: Duration,
        work: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, ColdError> {
        match self.runtime.block_on(until(self.clock.after(longest), work)) {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => Err(self.explain(&error)),
            None => Err(self.slow(longest)),
        }
    }

    fn slow(&self, longest: Duration) -> ColdError {
        ColdError::Slow { at: self.url.clone(), ms: longest.as_millis() as u64 }
    }

    fn explain(&self, error: &object_store::Error) -> ColdError {
        match error {
            object_store::Error::NotFound { path, .. } => ColdError::Gone(format!("{}: {path}", self.url)),
            other => ColdError::Io { at: self.url.clone(), error: other.to_string() },
        }
    }

    fn path(&self, name: &Name) -> Path {
        self.folder.clone().join(BLOCKS).join(hex::encode(name.namespace)).join(hex::encode(name.hash.0))
    }

    fn list(&self) -> RwLockReadGuard<'_, List> {
        // Entries are hints, so a poisoned list is usable.
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn list_mut(&self) -> RwLockWriteGuard<'_, List> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self) -> MutexGuard<'_, Follow> {
        self.follow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn damage(&self) -> MutexGuard<'_, Vec<ColdError>> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> Option<(Identity, Sums)> {
        self.place.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_place(&self, identity: Identity) {
        let place = Some((identity, Sums::of_place(&identity.seed, &self.sealing)));
        *self.place.write().unwrap_or_else(PoisonError::into_inner) = place;
    }

    fn known_place(&self) -> Result<(Identity, Sums), ColdError> {
        self.place().ok_or_else(|| ColdError::Gone(format!("{}: {}", self.url, identity::FILE)))
    }

    /// Writes the identity over the one that is there.
    fn put_identity(&self, identity: &Identity) -> Result<(), ColdError> {
        let bytes = PutPayload::from(identity::encode(identity, &self.sealing).to_vec());
        let path = self.identity_path();
        self.within(SLOW, self.store.put(&path, bytes)).map(drop)
    }

    /// Seals an identity of an older key with the first key, so that the older one can leave.
    fn renew_seal(&self, identity: &Identity) -> Result<(), ColdError> {
        let is_outdated = |bytes: Vec<u8>| identity::is_outdated(&bytes, &self.sealing);
        let found = if self.sealing.is_some() { self.within(SLOW, self.get_identity())? } else { None };
        if found.is_some_and(is_outdated) { self.put_identity(identity) } else { Ok(()) }
    }

    /// Follows the identity: its limit may change. Writes it again if it is gone or damaged, and returns
    /// what was repaired.
    fn watch_identity(&self) -> Result<Option<ColdError>, ColdError> {
        let (known, _) = self.known_place()?;
        let found = self.within(SLOW, self.get_identity())?;
        let gone = || ColdError::Gone(format!("{}: {}", self.url, identity::FILE));
        match found.ok_or_else(gone).and_then(|bytes| identity::decode(&bytes, &self.url, &self.sealing)) {
            Ok(found) if found.seed != known.seed => Err(ColdError::Foreign(self.url.clone())),
            Ok(found) => {
                self.set_place(found);
                Ok(None)
            }
            Err(error @ (ColdError::Gone(_) | ColdError::Damaged { .. })) => {
                self.put_identity(&known)?;
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the place's limit as large as this process wants it.
    fn ask_for_limit(&self, found: &Identity) -> Result<(), ColdError> {
        let Some(wanted) = self.bytes.filter(|_| !self.has_asked.swap(true, Relaxed)) else { return Ok(()) };
        if wanted > found.bytes_max {
            let identity = Identity { bytes_max: wanted, ..*found };
            self.put_identity(&identity).inspect_err(|_| self.has_asked.store(false, Relaxed))?;
            self.set_place(identity);
        } else if wanted < found.bytes_max {
            let (at, found) = (&self.url, found.bytes_max);
            tracing::warn!(
                "{at}: the place keeps its limit of {found} bytes, above size={wanted}; \
                 `cenote pool cold --cold {at} --size {wanted}` makes it smaller"
            );
        }
        Ok(())
    }

    /// Lets objects leave until the limit holds, and removes some of those that leave.
    fn make_room(&self) -> Result<(), ColdError> {
        let bytes_max = self.known_place()?.0.bytes_max;
        if self.list().used().bytes > bytes_max {
            self.list_mut().make_room(bytes_max);
        }
        if !self.list().has_leaving() {
            return Ok(());
        }
        let names = self.list_mut().take_leaving(REMOVED_TOGETHER);
        let paths: Vec<Result<Path, object_store::Error>> = names.iter().map(|name| Ok(self.path(name))).collect();
        let removed = self.within(SLOW, async {
            let mut removed = self.store.delete_stream(iter(paths).boxed());
            while let Some(one) = removed.next().await {
                match one {
                    Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        self.list_mut().have_left(&names);
        self.removed.fetch_add(names.len() as u64, Relaxed);
        removed
    }

    /// Most names of a listing. A full place has no more, however short its blocks are. One whose limit
    /// was lowered may have: each listing removes some.
    const fn names_max(bytes_max: u64) -> u64 {
        bytes_max / SECTOR as u64 + NAMES_MORE
    }

    /// Reads on in the listing, or begins one if it is time, and enters what it has. Returns whether there
    /// is more.
    fn list_on(&self) -> Result<bool, ColdError> {
        let mut follow = self.follow();
        if follow.next.is_some_and(|next| !next.passed()) {
            return Ok(false);
        }
        let listed = self.list_step(&mut follow);
        // From its end, also after a failure: a listing that takes long must not keep the writer from
        // writing.
        if !matches!(listed, Ok(true)) {
            follow.next = Some(self.clock.after(LIST_EVERY));
        }
        listed
    }

    fn list_step(&self, follow: &mut Follow) -> Result<bool, ColdError> {
        if follow.listing.is_none() {
            let repaired = self.watch_identity()?;
            self.damage().extend(repaired);
            self.list_mut().begin();
            follow.listing = Some(Listing { stream: None, last: None, is_sorted: true, names: 0 });
        }
        let Some(listing) = &mut follow.listing else { return Ok(false) };
        let blocks = self.folder.clone().join(BLOCKS);
        let stream = listing.stream.get_or_insert_with(|| match &listing.last {
            Some(last) => self.store.list_with_offset(Some(&blocks), last),
            None => self.store.list(Some(&blocks)),
        });
        let (objects, ended) = self.next_objects(stream);
        listing.names += objects.len() as u64;
        let mut list = self.list_mut();
        for object in &objects {
            if let Some(name) = name_of(&object.location) {
                let modified = u64::try_from(object.last_modified.timestamp_millis()).unwrap_or(0);
                list.enter_listed(name, object.size, modified);
            }
        }
        listing.is_sorted &= objects.is_sorted_by(|one, next| one.location < next.location)
            && objects.first().is_none_or(|first| listing.last.as_ref().is_none_or(|last| *last < first.location));
        listing.last = objects.into_iter().next_back().map(|object| object.location).or(listing.last.take());
        if listing.names > Self::names_max(self.known_place()?.0.bytes_max) {
            follow.listing = None;
            return Err(self.endless());
        }
        match ended {
            Ok(true) => {
                list.end();
                follow.listing = None;
                Ok(false)
            }
            Ok(false) => Ok(true),
            Err(error) => {
                listing.stream = None;
                // Without an order it begins again. What it had stays listed.
                if !listing.is_sorted {
                    follow.listing = None;
                }
                Err(error)
            }
        }
    }

    fn endless(&self) -> ColdError {
        ColdError::Damaged { at: self.url.clone(), what: "its listing has more names than its limit has sectors" }
    }

    /// The next objects of a listing, and whether it ended or failed. Each page has a deadline.
    fn next_objects(
        &self,
        stream: &mut BoxStream<'static, Result<ObjectMeta, object_store::Error>>,
    ) -> (Vec<ObjectMeta>, Result<bool, ColdError>) {
        let (mut objects, step) = (Vec::new(), self.clock.after(STEP_TIME));
        let ended = self.runtime.block_on(async {
            loop {
                match until(self.clock.after(SLOW), stream.next()).await {
                    Some(Some(Ok(object))) => objects.push(object),
                    Some(Some(Err(error))) => return Err(self.explain(&error)),
                    Some(None) => return Ok(true),
                    None => return Err(self.slow(SLOW)),
                }
                if objects.len() >= STEP || step.passed() {
                    return Ok(false);
                }
            }
        });
        (objects, ended)
    }
}

/// The name in an object's path.
fn name_of(path: &Path) -> Option<Name> {
    let parts: Vec<String> = path.parts().map(|part| part.as_ref().to_owned()).collect();
    let [.., namespace, hash] = parts.as_slice() else { return None };
    Some(Name { namespace: unhex(namespace)?, hash: BlockHash(unhex(hash)?) })
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok().map(|()| bytes)
}

impl Backend for Objects {
    fn open(&self, seed: &HashSeed) -> Result<(), ColdError> {
        let own = Identity { seed: *seed, bytes_max: self.bytes.unwrap_or(DEFAULT_BYTES) };
        let found = self.identity(&own)?;
        if found.seed != *seed {
            return Err(ColdError::Foreign(self.url.clone()));
        }
        self.set_place(found);
        self.renew_seal(&found).unwrap_or_else(|error| self.damage().push(error));
        *self.follow() = Follow::default();
        self.ask_for_limit(&found)
    }

    fn length(&self, name: &Name) -> Option<u64> {
        self.list().bytes_of(name)
    }

    fn used(&self) -> Used {
        let bytes_max = self.place().map_or(0, |(identity, _)| identity.bytes_max);
        Used { bytes_max, ..self.list().used() }
    }

    fn survey(&self) -> Result<Used, ColdError> {
        self.check_directory()?;
        let found = self.within(SLOW, self.get_identity())?;
        let found = found.map(|bytes| identity::decode(&bytes, &self.url, &self.sealing)).transpose()?;
        let mut used = Used { bytes_max: found.map_or(0, |found| found.bytes_max), ..Used::default() };
        let mut stream = self.store.list(Some(&self.folder.clone().join(BLOCKS)));
        loop {
            let (objects, ended) = self.next_objects(&mut stream);
            for object in objects.iter().filter(|object| name_of(&object.location).is_some()) {
                used.blocks += 1;
                used.bytes = used.bytes.saturating_add(object.size);
            }
            if ended? {
                return Ok(used);
            }
            if used.blocks > Self::names_max(used.bytes_max) {
                return Err(self.endless());
            }
        }
    }

    fn read(&self, name: &Name, length_max: u64, memory: &mut Aligned) -> Result<Head, ColdError> {
        let (path, (_, sums)) = (self.path(name), self.known_place()?);
        let mut read = || {
            let most = record_bytes(length_max.min(PAYLOAD_MAX));
            let found = self.within(self.deadline, self.get(&path, most))?;
            let too_long = || ColdError::Damaged { at: path.to_string(), what: "it is longer than its block's record" };
            let bytes = found.ok_or_else(too_long)?;
            memory.resize(bytes.len());
            memory.bytes_mut().copy_from_slice(&bytes);
            let (head, _) = sums.open(memory.bytes_mut(), Some(name), path.as_ref())?;
            Ok(head)
        };
        read().inspect_err(|error| {
            // A store that is slow or refuses may recover; anything else stays as it is.
            if !matches!(error, ColdError::Io { .. } | ColdError::Slow { .. }) {
                self.list_mut().forget(name);
            }
        })
    }

    fn write(&self, records: &[Sealed<'_>], _bytes: &[u8]) -> Result<(), ColdError> {
        self.make_room()?;
        let payloads: Vec<(Path, PutPayload)> = records
            .iter()
            .map(|record| (self.path(&record.head.name), PutPayload::from(record.bytes.to_vec())))
            .collect();
        self.within(SLOW, async {
            let puts = iter(payloads).map(|(path, payload)| async move { self.store.put(&path, payload).await });
            puts.buffer_unordered(TOGETHER).try_collect::<Vec<_>>().await.map(drop)
        })?;
        let mut list = self.list_mut();
        records.iter().for_each(|record| list.enter_own(record.head.name, record.bytes.len() as u64));
        drop(list);
        // These are written. A removal that fails is tried again before the next write.
        if let Err(error) = self.make_room() {
            self.damage().push(error);
        }
        Ok(())
    }

    fn refresh(&self) -> Result<Refreshed, ColdError> {
        let listed = self.list_on();
        self.make_room()?;
        let has_more = listed? || self.list().has_leaving();
        let damage = std::mem::take(&mut *self.damage());
        Ok(Refreshed { removed: self.removed.swap(0, Relaxed), damage, has_more })
    }

    fn sync(&self) -> Result<(), ColdError> {
        Ok(())
    }

    fn resize(&self, bytes_max: u64) -> Result<(), ColdError> {
        self.check_directory()?;
        let gone = || ColdError::Gone(format!("{}: {}", self.url, identity::FILE));
        let found = self.within(SLOW, self.get_identity())?.ok_or_else(gone)?;
        let identity = Identity { bytes_max, ..identity::decode(&found, &self.url, &self.sealing)? };
        self.put_identity(&identity)?;
        self.set_place(identity);
        *self.follow() = Follow::default();
        while self.refresh()?.has_more {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_block() {
        let objects = Objects::new("file:///tmp", None, Duration::ZERO, Clock::stopped()).expect("a URL");
        let name = Name { namespace: [0xab; 32], hash: BlockHash([0x01; 16]) };
        assert_eq!(name_of(&objects.path(&name)), Some(name));
        assert_eq!(name_of(&Path::from("x/y")), None);
    }
}
