//! The order in which a request's missing blocks are sought below and beside the region.

use crate::cold::ColdTier;
use crate::{Computing, Peers, Promotion, Readable, Wanted};
use cenote_base::BlockHash;
use cenote_policy::fetch::plan;
use cenote_pool::Namespace;

/// Begins to promote blocks that the region lacks: from L4 those that it lists, and the others from peers, as
/// far as that takes less time than computing. Blocks for which L4 must ask its place are sought in both.
/// `None`: neither has any that is worth it.
#[must_use]
pub fn promote(
    (cold, peers): (Option<&ColdTier>, Option<&dyn Peers>),
    namespace: &Namespace,
    missing: &[BlockHash],
    readable: &Readable,
    wanted: Wanted,
    computing: &Computing,
) -> Option<Promotion> {
    let count = |hashes: &[BlockHash]| cold.map_or(0, |cold| cold.count(namespace, hashes));
    let may_have = |hashes: &[BlockHash]| cold.map_or(0, |cold| cold.may_have(namespace, hashes));
    let (below, others, skipped) = match wanted {
        Wanted::Leading => {
            let listed = count(missing);
            let (below, from) = parts((cold, peers), namespace, missing, listed, computing);
            let asked = may_have(missing);
            let below = if asked > listed { asked } else { below };
            (missing[..below].to_vec(), missing[from..].to_vec(), from)
        }
        Wanted::All => {
            let (listed, others): (Vec<_>, Vec<_>) =
                missing.iter().partition(|hash| count(std::slice::from_ref(*hash)) == 1);
            let asked = others.iter().filter(|hash| may_have(std::slice::from_ref(*hash)) == 1);
            (listed.iter().chain(asked).copied().collect(), others, 0)
        }
    };
    let cold = cold.and_then(|cold| match wanted {
        Wanted::Leading => cold.promote(namespace, &below),
        Wanted::All => cold.promote_any(namespace, &below),
    });
    let before_tokens = computing.before_tokens + skipped as u64 * computing.block_tokens;
    let computing = Computing { before_tokens, ..*computing };
    let peers = peers.and_then(|peers| peers.promote(namespace, &others, readable, wanted, &computing));
    match (cold, peers) {
        (Some(cold), Some(peers)) => Some(Promotion::both(&cold, &peers)),
        (cold, peers) => cold.or(peers),
    }
}

/// Where L4's part of the missing blocks ends, of which it lists the first ones, and where that of peers
/// begins. L4 bounds its part itself; peers are asked for what it lists, too, if they are expected to be
/// sooner.
fn parts(
    (cold, peers): (Option<&ColdTier>, Option<&dyn Peers>),
    namespace: &Namespace,
    missing: &[BlockHash],
    listed: usize,
    computing: &Computing,
) -> (usize, usize) {
    let Some((peers, first)) = peers.zip(missing.first()) else { return (listed, listed) };
    let l4 = cold.and_then(|cold| cold.way(namespace, &missing[..listed]));
    let way = peers.way(namespace, *first);
    let all = computing.missing(0, missing.len(), namespace.block_bytes);
    let chosen = plan(&all, &computing.prefill, l4.as_ref(), way.as_ref());
    let from = usize::try_from(chosen.l4).unwrap_or(usize::MAX).min(listed);
    (if chosen.peers > 0 { from } else { listed }, from)
}
