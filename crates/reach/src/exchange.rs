//! Both ends of an exchange over any connection, for tests that play the other end.

use crate::auth::Key;
pub use crate::auth::{Duplex, answer, ask};
pub use crate::exchanges::{Exchange, Exchanges};
use crate::remote::ReadError;
use crate::share::Offer;
use cenote_base::HashSeed;
use std::io;

/// The metadata in a message of a share for a region with this seed; `None`: it has no region now.
///
/// # Errors
/// The message is no offer, or one of a region with another seed.
pub fn metadata_in(message: &[u8], key: &Key, seed: &HashSeed) -> io::Result<Option<Vec<u8>>> {
    let metadata_of = |offer: Offer| offer.metadata_of(key, seed);
    Offer::parse(message)?.map(metadata_of).transpose().map_err(|error: ReadError| io::Error::other(error.to_string()))
}
