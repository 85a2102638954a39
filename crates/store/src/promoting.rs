//! The order in which a request's missing blocks are sought below and beside the region.

use crate::cold::ColdTier;
use crate::{Peers, Promotion, Readable, Wanted};
use cenote_base::BlockHash;
use cenote_pool::Namespace;

/// Begins to promote blocks that the region lacks: from L4 those that it lists, and the others from peers.
/// `None`: neither has any.
#[must_use]
pub fn promote(
    (cold, peers): (Option<&ColdTier>, Option<&dyn Peers>),
    namespace: &Namespace,
    missing: &[BlockHash],
    readable: &Readable,
    wanted: Wanted,
) -> Option<Promotion> {
    let count = |hashes: &[BlockHash]| cold.map_or(0, |cold| cold.count(namespace, hashes));
    let (listed, others) = match wanted {
        Wanted::Leading => {
            let (listed, others) = missing.split_at(count(missing));
            (listed.to_vec(), others.to_vec())
        }
        Wanted::All => missing.iter().partition(|hash| count(std::slice::from_ref(*hash)) == 1),
    };
    let cold = cold.and_then(|cold| match wanted {
        Wanted::Leading => cold.promote(namespace, &listed),
        Wanted::All => cold.promote_any(namespace, &listed),
    });
    let peers = peers.and_then(|peers| peers.promote(namespace, &others, readable, wanted));
    match (cold, peers) {
        (Some(cold), Some(peers)) => Some(Promotion::both(&cold, &peers)),
        (cold, peers) => cold.or(peers),
    }
}
