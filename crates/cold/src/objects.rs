//! Objects: a record per object in an object store (docs/internals/cold-format.md#objects).
//!
//! A put is atomic, so an object is whole or absent. The list in memory is made from the store's
//! listing and renewed from time to time; a process enters its own objects at once. Every process
//! removes the oldest objects of the listing when they exceed the limit: two that do it choose the
//! same ones, and removing one twice is no error.

use crate::backend::{Backend, Refreshed, Sealed, Used};
use crate::error::ColdError;
use crate::identity;
use crate::record::{self, Aligned, Head, Name, PAYLOAD_MAX, record_bytes};
use cenote_base::{BlockHash, Clock, Deadline, HashSeed};
use cenote_policy::temperature::{StoredPart, leaving_parts};
use futures::stream::{StreamExt, TryStreamExt, iter};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Folder of all objects of this format.
const FOLDER: &str = "cenote-v1";
/// Folder of the blocks in it.
const BLOCKS: &str = "blocks";
/// Time between two listings.
const LIST_EVERY: Duration = Duration::from_secs(30);
/// Longest time of a listing, an identity or a write.
const SLOW: Duration = Duration::from_secs(30);
/// Longest time for a put with a condition. A store without conditions may answer with an error that
/// is retried.
const CONDITION: Duration = Duration::from_secs(3);
/// Requests at once.
const TOGETHER: usize = 16;
/// Part of the limit that a removal leaves free, so that not every write removes.
const FREE_SHARE: u64 = 16;

/// A listed object.
#[derive(Clone, Copy)]
struct Object {
    bytes: u64,
    /// Milliseconds since 1970.
    modified: u64,
}

#[derive(Default)]
struct List {
    objects: HashMap<Name, Object>,
    bytes: u64,
}

impl List {
    fn enter(&mut self, name: Name, object: Object) {
        self.bytes += object.bytes;
        self.forget(&name);
        self.objects.insert(name, object);
    }

    fn used(&self) -> Used {
        Used { blocks: self.objects.len() as u64, bytes: self.bytes }
    }

    fn forget(&mut self, name: &Name) {
        self.bytes -= self.objects.remove(name).map_or(0, |object| object.bytes);
    }
}

/// Blocks below a URL, as one process sees them.
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    folder: Path,
    url: String,
    bytes: u64,
    deadline: Duration,
    list: RwLock<List>,
    clock: Clock,
    /// `None`: now.
    next_listing: Mutex<Option<Deadline>>,
    removed: AtomicU64,
    runtime: Runtime,
}

impl Objects {
    /// Blocks below a URL. The clouds' usual variables (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, …) hold
    /// keys and endpoints. Nothing is asked of the store yet.
    ///
    /// # Errors
    /// The URL or the variables are wrong.
    pub fn new(url: &str, bytes: u64, deadline: Duration, clock: Clock) -> Result<Self, ColdError> {
        Self::with_options(url, bytes, deadline, clock, std::env::vars())
    }

    /// As [`Objects::new`], with other variables than the environment's.
    ///
    /// # Errors
    /// The URL or the variables are wrong.
    pub fn with_options(
        url: &str,
        bytes: u64,
        deadline: Duration,
        clock: Clock,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ColdError> {
        let wrong = |error: String| ColdError::Io { at: url.to_owned(), error };
        let parsed = url::Url::parse(url).map_err(|error| wrong(error.to_string()))?;
        let variables = variables.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
        let opened = object_store::parse_url_opts(&parsed, variables);
        let (store, prefix) = opened.map_err(|error| wrong(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("cold-objects")
            .enable_all()
            .build()
            .map_err(|error| wrong(error.to_string()))?;
        Ok(Self {
            store: Arc::from(store),
            folder: prefix.join(FOLDER),
            url: url.to_owned(),
            bytes,
            deadline,
            clock,
            list: RwLock::default(),
            next_listing: Mutex::default(),
            removed: AtomicU64::new(0),
            runtime,
        })
    }

    /// The seed of this place; a place without identity gets `own`.
    ///
    /// # Errors
    /// The store does not answer, or the identity is damaged or of another version.
    pub fn seed(&self, own: &HashSeed) -> Result<HashSeed, ColdError> {
        let path = self.folder.clone().join(identity::FILE);
        let get = || async {
            match self.store.get(&path).await {
                // Longer than an identity: damage, which its check tells.
                Ok(found) if found.meta.size > record_bytes(0) => Ok(Some(Vec::new().into())),
                Ok(found) => found.bytes().await.map(Some),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let seed = self.within(SLOW, async {
            if let Some(found) = get().await? {
                return Ok(found);
            }
            let bytes = || PutPayload::from(identity::encode(own).to_vec());
            let created = self.store.put_opts(&path, bytes(), PutOptions::from(PutMode::Create));
            match until(self.clock.after(CONDITION), created).await {
                Some(Ok(_) | Err(object_store::Error::AlreadyExists { .. })) => {}
                // Stores without conditions refuse them in many ways. There the last of two first
                // processes wins. A store that refuses every write says why below.
                Some(Err(_)) | None if get().await?.is_none() => drop(self.store.put(&path, bytes()).await?),
                Some(Err(_)) | None => {}
            }
            Ok(get().await?.unwrap_or_default())
        })?;
        identity::decode(&seed, &self.url)
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
            None => Err(ColdError::Slow { at: self.url.clone(), ms: longest.as_millis() as u64 }),
        }
    }

    fn explain(&self, error: &object_store::Error) -> ColdError {
        match error {
            object_store::Error::NotFound { path, .. } => ColdError::Gone(format!("{}: {path}", self.url)),
            other => ColdError::Io { at: self.url.clone(), error: other.to_string() },
        }
    }

    fn path(&self, name: &Name) -> Path {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.folder.clone().join(BLOCKS).join(hex(&name.namespace)).join(hex(&name.hash.0))
    }

    fn list(&self) -> RwLockReadGuard<'_, List> {
        // Entries are hints, so a poisoned list is usable.
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn list_mut(&self) -> RwLockWriteGuard<'_, List> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_listing(&self) -> MutexGuard<'_, Option<Deadline>> {
        self.next_listing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes objects until the limit holds.
    fn make_room(&self) -> Result<(), ColdError> {
        let victims = victims(&self.list(), self.bytes);
        if victims.is_empty() {
            return Ok(());
        }
        let mut list = self.list_mut();
        victims.iter().for_each(|name| list.forget(name));
        drop(list);
        self.removed.fetch_add(victims.len() as u64, Relaxed);
        let paths: Vec<Path> = victims.iter().map(|name| self.path(name)).collect();
        self.within(SLOW, async {
            let removals = iter(paths).map(|path| async move {
                match self.store.delete(&path).await {
                    Err(object_store::Error::NotFound { .. }) | Ok(()) => Ok(()),
                    Err(error) => Err(error),
                }
            });
            removals.buffer_unordered(TOGETHER).try_collect::<Vec<()>>().await.map(drop)
        })
    }

    /// Asks the store for all objects.
    fn ask_list(&self) -> Result<List, ColdError> {
        let blocks = self.folder.clone().join(BLOCKS);
        let listed = self.within(SLOW, async { self.store.list(Some(&blocks)).try_collect::<Vec<_>>().await })?;
        let mut list = List::default();
        for object in listed {
            if let Some(name) = name_of(&object.location) {
                let modified = u64::try_from(object.last_modified.timestamp_millis()).unwrap_or(0);
                list.enter(name, Object { bytes: object.size, modified });
            }
        }
        Ok(list)
    }
}

/// Work's result; `None` if it is not there when the deadline passes.
async fn until<T>(deadline: Deadline, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    loop {
        match tokio::time::timeout(deadline.block_for(), &mut work).await {
            Ok(done) => return Some(done),
            Err(_) if deadline.passed() => return None,
            Err(_) => {}
        }
    }
}

/// The oldest objects, as many as exceed the limit and a little more; none while it holds.
fn victims(list: &List, limit: u64) -> Vec<Name> {
    if list.bytes <= limit {
        return Vec::new();
    }
    let part = |(name, object): (&Name, &Object)| StoredPart {
        key: (object.modified, *name),
        bytes: object.bytes,
        is_open: false,
    };
    let leaving = leaving_parts(list.objects.iter().map(part).collect(), limit - limit / FREE_SHARE);
    leaving.into_iter().flatten().map(|(_, name)| name).collect()
}

/// The name in an object's path.
fn name_of(path: &Path) -> Option<Name> {
    let parts: Vec<String> = path.parts().map(|part| part.as_ref().to_owned()).collect();
    let [.., namespace, hash] = parts.as_slice() else { return None };
    Some(Name { namespace: unhex(namespace)?, hash: BlockHash(unhex(hash)?) })
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = (text.len() == 2 * N && text.is_ascii()).then_some(text)?;
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

impl Backend for Objects {
    fn open(&self, seed: &HashSeed) -> Result<(), ColdError> {
        if self.seed(seed)? != *seed {
            return Err(identity::of_others(&self.url));
        }
        *self.next_listing() = None;
        Ok(())
    }

    fn length(&self, name: &Name) -> Option<u64> {
        self.list().objects.get(name).map(|object| object.bytes)
    }

    fn used(&self) -> Used {
        self.list().used()
    }

    fn survey(&self) -> Result<Used, ColdError> {
        Ok(self.ask_list()?.used())
    }

    fn read(&self, name: &Name, memory: &mut Aligned) -> Result<Head, ColdError> {
        let path = self.path(name);
        let mut read = || {
            let found = self.within(self.deadline, async {
                let found = self.store.get(&path).await?;
                let is_record = found.meta.size <= record_bytes(PAYLOAD_MAX);
                if is_record { found.bytes().await.map(Some) } else { Ok(None) }
            });
            let too_long = || ColdError::Damaged { at: path.to_string(), what: "it is longer than a record" };
            let bytes = found?.ok_or_else(too_long)?;
            let (head, _) = record::open(&bytes, Some(name), path.as_ref())?;
            memory.resize(bytes.len());
            memory.bytes_mut().copy_from_slice(&bytes);
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
        let payloads: Vec<(Path, PutPayload)> = records
            .iter()
            .map(|record| (self.path(&record.head.name), PutPayload::from(record.bytes.to_vec())))
            .collect();
        self.within(SLOW, async {
            let puts = iter(payloads).map(|(path, payload)| async move { self.store.put(&path, payload).await });
            puts.buffer_unordered(TOGETHER).try_collect::<Vec<_>>().await.map(drop)
        })?;
        let now = self.clock.unix().as_millis() as u64;
        let mut list = self.list_mut();
        for record in records {
            list.enter(record.head.name, Object { bytes: record.bytes.len() as u64, modified: now });
        }
        drop(list);
        self.make_room()
    }

    fn refresh(&self) -> Result<Refreshed, ColdError> {
        if self.next_listing().is_none_or(Deadline::passed) {
            let listed = self.ask_list();
            // From its end, also after a failure: a listing that takes long must not keep the writer
            // from writing.
            *self.next_listing() = Some(self.clock.after(LIST_EVERY));
            let list = listed?;
            // The old list is dropped after the lock.
            let _old = std::mem::replace(&mut *self.list_mut(), list);
            self.make_room()?;
        }
        Ok(Refreshed { removed: self.removed.swap(0, Relaxed), ..Refreshed::default() })
    }

    fn sync(&self) -> Result<(), ColdError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_objects_make_room() {
        let mut list = List::default();
        for number in 0..32 {
            let name = Name { namespace: [1; 32], hash: BlockHash([number; 16]) };
            list.enter(name, Object { bytes: 100, modified: u64::from(99 - number) });
            list.enter(name, Object { bytes: 100, modified: u64::from(99 - number) });
        }
        assert_eq!((list.bytes, victims(&list, 3200).len()), (3200, 0));
        let victims = victims(&list, 1600);
        assert_eq!((victims.len(), victims[0].hash.0[0]), (17, 31), "the oldest first, and a little more than needed");
    }

    #[test]
    fn a_path_names_its_block() {
        let objects = Objects::new("file:///tmp", 1, Duration::ZERO, Clock::stopped()).expect("a URL");
        let name = Name { namespace: [0xab; 32], hash: BlockHash([0x01; 16]) };
        assert_eq!(name_of(&objects.path(&name)), Some(name));
        assert_eq!(name_of(&Path::from("x/y")), None);
    }
}
