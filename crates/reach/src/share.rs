//! What lets peers read a region: it tells readers with the key where the region's memory is registered
//! ([`Memory`](crate::Memory)). It decides nothing, and its death costs remote misses only.

use crate::auth::{Key, answer, ask};
use crate::exchanges::{Exchanges, Heard, limited};
use crate::memory::Registration;
use crate::nixl::{Nixl, NixlRemote};
use crate::remote::{ReadError, Remote};
use cenote_base::{Clock, Deadline, HashSeed};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    fn new(of: &Registration, key: &Key) -> Self {
        let Registration { region, created, seed, region_bytes, base, registration, metadata } = of.clone();
        let seed = hex::encode(key.name_of(SEED, &seed));
        Self { region, created, seed, region_bytes, base, registration, metadata }
    }

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

/// A region that peers may read.
pub struct Share {
    key: Key,
    clock: Clock,
    offer: Mutex<Option<Offer>>,
    exchanges: Arc<Exchanges>,
}

impl Share {
    /// Tells readers with this key of no region yet.
    #[must_use]
    pub fn new(key: Key, clock: Clock) -> Self {
        Self { key, clock, offer: Mutex::new(None), exchanges: Arc::default() }
    }

    /// What readers hear from now on; `None`: there is no region.
    pub fn set(&self, registration: Option<&Registration>) {
        let offer = registration.map(|registration| Offer::new(registration, &self.key));
        *self.offer.lock().unwrap_or_else(PoisonError::into_inner) = offer;
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
                let offer = share.offer.lock().unwrap_or_else(PoisonError::into_inner).clone();
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
