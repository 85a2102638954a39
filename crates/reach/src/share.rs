//! The process beside a region that lets peers read it: it registers the memory, and tells readers with
//! the key where it is. It decides nothing, and its death costs remote misses only.
//!
//! It follows the region's name: a region that is removed and made anew is registered anew.

use crate::auth::{Key, answer, ask};
use crate::exchanges::{Exchanges, Heard, limited};
use crate::nixl::{Nixl, NixlError, NixlRemote, Registered};
use crate::remote::{ReadError, Remote};
use cenote_base::{Clock, Deadline, HashSeed};
use cenote_mem::{Flush, MapError, ReadMapping, ReadOnly, RegionSource};
use cenote_pool::{PoolError, Superblock};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thiserror::Error;

/// Longest exchange with one reader.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most connections that are taken before the next look at other work.
const ACCEPTS_MAX: usize = 64;
/// What the seed's keyed hash is of.
const SEED: &str = "hash seed";

/// What a share says to a reader with the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The region's identity, in hex: it is another one after the region was made anew.
    pub region: String,
    /// Seconds since 1970 of its making.
    pub created: u64,
    /// Keyed hash of its hash seed, in hex. Readers with another seed find nothing.
    seed: String,
    /// Bytes of the mapping.
    pub region_bytes: u64,
    /// Address of its first byte in the sharing process.
    base: u64,
    /// Number of this registration in the sharing process.
    pub registration: u64,
    /// NIXL's metadata, in hex.
    metadata: String,
}

impl Offer {
    /// The offer in a share's message; `None`: it has no region now.
    pub(crate) fn parse(message: &[u8]) -> io::Result<Option<Self>> {
        serde_json::from_slice(message).map_err(|_| io::Error::other("its offer is none"))
    }

    /// NIXL's metadata, if the region has this seed.
    pub(crate) fn metadata_of(&self, key: &Key, seed: &HashSeed) -> Result<Vec<u8>, ReadError> {
        let gone = |fact: &str| ReadError::Gone(fact.to_owned());
        if self.seed != hex::encode(key.name_of(SEED, &seed.0)) {
            return Err(gone("its region has another hash seed; make both with the same --hash-seed"));
        }
        hex::decode(&self.metadata).map_err(|_| gone("its metadata is no hex"))
    }
}

/// Why a region is not shared now.
#[derive(Debug, Error)]
pub enum ShareError {
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// It is no region of this version.
    #[error(transparent)]
    Region(#[from] PoolError),
    /// Hosts whose caches are not coherent share it: NIXL reads through this host's caches.
    #[error(
        "its {hosts} hosts flush lines ({flush}), and peers would read this host's stale copies of them; make the \
         region for one host, with --max-hosts 1 or --flush none"
    )]
    Flushed {
        /// Host slots.
        hosts: u8,
        /// Its instruction.
        flush: Flush,
    },
    /// NIXL refuses.
    #[error(transparent)]
    Nixl(#[from] NixlError),
    /// The file cannot be looked at.
    #[error(transparent)]
    Io(#[from] io::Error),
}

struct Shown {
    registered: Registered,
    offer: Offer,
    file: Option<(u64, u64)>,
    identity: [u8; 16],
}

/// A region that peers may read.
pub struct Share {
    source: RegionSource,
    nixl: Arc<Nixl>,
    key: Key,
    clock: Clock,
    shown: Mutex<Option<Shown>>,
    registrations: AtomicU64,
    exchanges: Arc<Exchanges>,
}

impl Share {
    /// Prepares to share the region of this name, which need not exist yet: see [`Share::follow`].
    #[must_use]
    pub fn new(source: RegionSource, nixl: Arc<Nixl>, key: Key, clock: Clock) -> Self {
        let (registrations, exchanges) = (AtomicU64::new(0), Arc::default());
        Self { source, nixl, key, clock, shown: Mutex::new(None), registrations, exchanges }
    }

    fn shown(&self) -> MutexGuard<'_, Option<Shown>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the region's name, and registers what is there unless it is registered. Returns the offer that
    /// readers get from now on. The caller calls it about once a second, from one thread.
    ///
    /// # Errors
    /// There is no such region, or it cannot be shared. Readers get no offer then.
    pub fn follow(&self) -> Result<Offer, ShareError> {
        let outcome = self.look();
        if outcome.is_err() {
            // Dropped outside of the lock: ending a registration takes time.
            let old = self.shown().take();
            drop(old);
        }
        outcome
    }

    fn look(&self) -> Result<Offer, ShareError> {
        let file = self.source.file().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                ShareError::Map(MapError::Missing { path: self.source.path().unwrap_or_default() })
            }
            _ => error.into(),
        })?;
        if let Some(shown) = &*self.shown()
            && shown.file == file
            && Superblock::read(shown.registered.fabric())?.config.uuid == shown.identity
        {
            return Ok(shown.offer.clone());
        }
        let old = self.shown().take();
        drop(old);
        let shown = self.register(file)?;
        let offer = shown.offer.clone();
        *self.shown() = Some(shown);
        Ok(offer)
    }

    fn register(&self, file: Option<(u64, u64)>) -> Result<Shown, ShareError> {
        // Of this process's own reads: another host may have made the region.
        let flush = Flush::best().unwrap_or(Flush::None);
        let fabric = ReadOnly::new(ReadMapping::open(&self.source)?, flush).expect("this processor has it");
        let fabric = Arc::new(fabric);
        let superblock = Superblock::read(&fabric)?;
        let config = &superblock.config;
        if !superblock.flush.is_coherent() && config.max_hosts > 1 {
            return Err(ShareError::Flushed { hosts: config.max_hosts, flush: superblock.flush });
        }
        let registration = self.registrations.fetch_add(1, Ordering::Relaxed) + 1;
        let region = hex::encode(config.uuid);
        let name = format!("cenote-{region}-{}-{registration}", std::process::id());
        let registered = Registered::new(&self.nixl, &name, Arc::clone(&fabric))?;
        let offer = Offer {
            region,
            created: config.created,
            seed: hex::encode(self.key.name_of(SEED, &config.seed.0)),
            region_bytes: superblock.region_bytes,
            base: registered.address() as u64,
            registration,
            metadata: hex::encode(registered.metadata()),
        };
        Ok(Shown { registered, offer, file, identity: config.uuid })
    }

    /// Answers readers until `wait` returns false. Calls `heard` for each exchange that succeeds, and for
    /// refusals at a bounded rate. The caller has made the listener non-blocking, and pauses in `wait`.
    pub fn serve(self: &Arc<Self>, listener: &TcpListener, heard: &Arc<Heard>, mut wait: impl FnMut() -> bool) {
        let heard = &limited(heard, self.clock);
        loop {
            // Failures of one connection, and lacks of this process, pass.
            for (stream, from) in (0..ACCEPTS_MAX).map_while(|_| listener.accept().ok()) {
                self.exchange(stream, from, heard);
            }
            if !wait() {
                return;
            }
        }
    }

    fn exchange(self: &Arc<Self>, stream: TcpStream, from: SocketAddr, heard: &Arc<Heard>) {
        let exchange = match self.exchanges.begin(from) {
            Ok(exchange) => exchange,
            Err(error) => return heard(from, Err(error)),
        };
        let (share, told) = (Arc::clone(self), Arc::clone(heard));
        let started = std::thread::Builder::new().name("reach-answer".to_owned()).spawn(move || {
            let deadline = share.clock.after(EXCHANGE_TIMEOUT);
            let message = || {
                let offer = share.shown().as_ref().map(|shown| shown.offer.clone());
                serde_json::to_vec(&offer).expect("plain data")
            };
            let outcome = stream.set_nonblocking(false).and_then(|()| answer(&stream, &share.key, deadline, message));
            let _ = stream.shutdown(Shutdown::Both);
            drop(exchange);
            told(from, outcome);
        });
        if let Err(error) = started {
            heard(from, Err(error));
        }
    }
}

/// Asks a share for its offer, and connects to its memory by NIXL. `name` is of the new agent.
///
/// # Errors
/// The share cannot be reached, has another key, shares nothing or a region with another seed, or NIXL
/// refuses.
pub fn connect(
    nixl: &Arc<Nixl>,
    address: &str,
    key: &Key,
    seed: &HashSeed,
    name: &str,
    deadline: Deadline,
) -> Result<Box<dyn Remote>, ReadError> {
    let failed = |error: io::Error| ReadError::Gone(error.to_string());
    let offer = offer_of(address, key, deadline).map_err(failed)?;
    let offer = offer.ok_or_else(|| ReadError::Gone("it has no region now".to_owned()))?;
    let metadata = offer.metadata_of(key, seed)?;
    let remote = NixlRemote::connect(nixl, name, address, &metadata, offer.base, offer.region_bytes);
    Ok(Box::new(remote.map_err(|error| ReadError::Gone(error.to_string()))?))
}

/// Asks a share for its offer; `None`: it has no region now.
///
/// # Errors
/// It cannot be reached, or has another key.
pub fn offer_of(address: &str, key: &Key, deadline: Deadline) -> io::Result<Option<Offer>> {
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        let time = deadline.block_for();
        if time.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, time).and_then(|stream| ask(&stream, key, deadline)) {
            Ok(message) => return Offer::parse(&message),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nixl::tests::{fake, registers};
    use cenote_mem::{MapOptions, Mapped, Mapping};
    use cenote_pool::PoolConfig;

    /// What a share says of a region with such hosts and flushes.
    fn shared(max_hosts: u8, flush: Flush) -> Result<Offer, ShareError> {
        let folder = tempfile::tempdir().expect("a folder");
        share_of(folder.path(), max_hosts, flush).follow()
    }

    fn share_of(folder: &std::path::Path, max_hosts: u8, flush: Flush) -> Share {
        let path = folder.join("region").display().to_string();
        let source: RegionSource = path.parse().expect("a file");
        let mapping = Mapping::create(&source, 2 << 20, 0o600, &MapOptions::default()).expect("a file");
        let fabric = Arc::new(Mapped::new(mapping, flush).expect("this processor has it"));
        let config = PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: 1 << 10,
            max_hosts,
            workers_per_host: 4,
            ..PoolConfig::new(HashSeed([7; 32]), [1; 16])
        };
        Superblock::format(&fabric, &config).expect("it fits");
        Share::new(source, fake(), Key::new([1; 32]), Clock::stopped())
    }

    #[test]
    fn a_region_is_shared_when_there_is_a_registration_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let share = share_of(folder.path(), 1, Flush::None);
        registers(false);
        let error = share.follow().expect_err("there is none").to_string();
        assert!(error.contains("register memory"), "{error}");
        assert!(share.shown().is_none(), "peers are told of nothing");
        registers(true);
        assert!(share.follow().is_ok());
    }

    /// NIXL reads through this host's caches, which keep lines that other hosts have written since.
    #[test]
    fn a_region_of_hosts_that_flush_is_not_shared() {
        for flush in Flush::available() {
            let error = shared(2, flush).expect_err("peers would read stale lines").to_string();
            assert!(error.contains(flush.name()) && error.contains("--max-hosts 1"), "{error}");
            assert!(shared(1, flush).is_ok(), "one host's caches are coherent");
        }
        assert!(shared(2, Flush::None).is_ok());
    }
}
