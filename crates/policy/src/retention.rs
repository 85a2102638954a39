//! Which blocks are kept because a client asked for it.
//!
//! Retention is soft: the user of a [`Retention`] marks its blocks as used now and then, so that eviction
//! takes others first. Nothing is pinned, so a wish can make no request wait or fail.
//!
//! All wishes together have a limit in bytes. Beyond it the tenant that keeps most gives way: its least
//! important sequence loses blocks from its end. So a tenant that keeps no more than its equal share of the
//! limit loses nothing to the wishes of others, but for the rest of a block.

use cenote_base::{BlockHash, TenantKey};
use std::collections::{BTreeMap, BTreeSet};

/// Time in which the blocks of a new wish may still be on their way into the pool, in ns.
pub const ARRIVING_NS: u64 = 10_000_000_000;

/// How long a sequence's blocks are kept, and how firmly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Sequences with a smaller priority lose their blocks first.
    pub priority: u8,
    /// Its end, in ns of the caller's clock.
    pub until_ns: u64,
    /// A conversation, by a number that the client chose. Its next wish replaces this one.
    pub session: Option<u64>,
}

/// What [`Retention::retain`] and [`Retention::mark`] changed, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Kept from now on, that were not before.
    pub added: usize,
    /// Their conversation went on: the new wish covers them.
    pub renewed: usize,
    /// Given up because of the limit, or for another branch of their conversation.
    pub dropped: usize,
    /// Their time is over, or a client released them.
    pub ended: usize,
    /// Gone from the pool though they were kept.
    pub lost: usize,
}

struct Kept {
    tenant: Option<TenantKey>,
    /// A sequence's blocks from its first one on; never empty.
    names: Vec<BlockHash>,
    block_bytes: u64,
    term: Term,
    /// When all its blocks are expected to be there.
    arrived_ns: u64,
}

impl Kept {
    const fn bytes(&self) -> u64 {
        self.names.len() as u64 * self.block_bytes
    }
}

/// Order in which a tenant's sequences lose blocks.
type Rank = (Option<TenantKey>, u8, u64, u64);

/// The blocks that clients asked to keep, up to a limit.
pub struct Retention {
    limit_bytes: u64,
    bytes: u64,
    blocks: usize,
    next: u64,
    /// The last sequence that was marked.
    marked: u64,
    kept: BTreeMap<u64, Kept>,
    ranks: BTreeSet<Rank>,
    /// Sequences by their last block.
    ends: BTreeMap<(Option<TenantKey>, BlockHash), u64>,
    sessions: BTreeMap<(Option<TenantKey>, u64), u64>,
    of_tenants: BTreeMap<Option<TenantKey>, u64>,
}

impl Retention {
    /// Keeps nothing yet, and never more than `limit_bytes`. A block of two sequences counts twice.
    #[must_use]
    pub const fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            bytes: 0,
            blocks: 0,
            next: 0,
            marked: 0,
            kept: BTreeMap::new(),
            ranks: BTreeSet::new(),
            ends: BTreeMap::new(),
            sessions: BTreeMap::new(),
            of_tenants: BTreeMap::new(),
        }
    }

    /// Blocks that are kept.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.blocks
    }

    /// Sequences that are kept.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.kept.len()
    }

    /// Bytes of the blocks that a tenant keeps.
    #[must_use]
    pub fn bytes_of(&self, tenant: Option<TenantKey>) -> u64 {
        self.of_tenants.get(&tenant).copied().unwrap_or(0)
    }

    /// Keeps a sequence's blocks of `block_bytes` each, given the names of its first ones. It replaces what the session kept, and
    /// shorter sequences of the tenant that are its beginning, unless those are kept longer or more firmly. A wish
    /// that has ended by `now_ns` releases what the session kept, or without one the longest such sequence of no
    /// session: a beginning that others keep is shorter.
    pub fn retain(
        &mut self,
        tenant: Option<TenantKey>,
        names: Vec<BlockHash>,
        block_bytes: u64,
        term: Term,
        now_ns: u64,
    ) -> Change {
        let mut change = Change::default();
        let is_over = term.until_ns <= now_ns;
        let earlier = term.session.and_then(|session| self.sessions.get(&(tenant, session)).copied());
        let earlier = earlier.and_then(|number| self.remove(number));
        let mut replaced: Vec<Kept> = earlier.into_iter().collect();
        for name in names.iter().rev() {
            let Some(number) = self.ends.get(&(tenant, *name)).copied() else { continue };
            let other = self.kept[&number].term;
            let is_replaced = if is_over {
                replaced.is_empty() && term.session.is_none() && other.session.is_none()
            } else {
                other.priority <= term.priority && other.until_ns <= term.until_ns
            };
            if is_replaced {
                replaced.extend(self.remove(number));
            }
        }
        // Of one conversation the sequences are beginnings of each other, but for rewound branches.
        let mut common = 0;
        for kept in replaced {
            let shared = kept.names.iter().zip(&names).take_while(|(old, new)| old == new).count();
            let gone = kept.names.len() - shared;
            if is_over {
                change.ended += kept.names.len();
            } else {
                change.dropped += gone;
                change.renewed += shared.saturating_sub(common);
                common = common.max(shared);
            }
        }
        if !is_over && !names.is_empty() {
            change.added = names.len() - common;
            let arrived_ns = now_ns.saturating_add(ARRIVING_NS);
            self.insert(Kept { tenant, names, block_bytes: block_bytes.max(1), term, arrived_ns });
            change.dropped += self.shrink();
        }
        change
    }

    /// Calls `count` with the names of one sequence after the other, until `most` blocks or all were given. It
    /// marks those as used that are there, and returns how many of the first ones are; later ones are kept no
    /// more, but for those that may still arrive. The next call goes on behind the last sequence. Sequences
    /// whose time is over leave before.
    pub fn mark(&mut self, now_ns: u64, most: usize, mut count: impl FnMut(&[BlockHash]) -> usize) -> Change {
        let over: Vec<u64> =
            self.kept.iter().filter(|(_, kept)| kept.term.until_ns <= now_ns).map(|(number, _)| *number).collect();
        let ended = over.into_iter().filter_map(|number| self.remove(number)).map(|kept| kept.names.len()).sum();
        let mut change = Change { ended, ..Change::default() };
        let behind = self.kept.range(self.marked + 1..).chain(self.kept.range(..=self.marked));
        let turn: Vec<u64> = behind.map(|(number, _)| *number).collect();
        let mut given = 0;
        for number in turn {
            if given >= most {
                break;
            }
            let Some(kept) = self.kept.get(&number) else { continue };
            self.marked = number;
            given += kept.names.len();
            let (there, is_settled) = (count(&kept.names), kept.arrived_ns <= now_ns);
            if is_settled {
                change.lost += self.cut(number, there);
            }
        }
        change
    }

    fn insert(&mut self, kept: Kept) {
        self.next += 1;
        let number = self.next;
        self.blocks += kept.names.len();
        self.bytes += kept.bytes();
        *self.of_tenants.entry(kept.tenant).or_default() += kept.bytes();
        self.index(number, &kept);
        self.kept.insert(number, kept);
    }

    fn remove(&mut self, number: u64) -> Option<Kept> {
        let kept = self.kept.remove(&number)?;
        self.unindex(number, &kept);
        self.give_back(&kept, kept.names.len());
        Some(kept)
    }

    fn give_back(&mut self, kept: &Kept, blocks: usize) {
        let bytes = blocks as u64 * kept.block_bytes;
        self.blocks -= blocks;
        self.bytes -= bytes;
        if let Some(of_tenant) = self.of_tenants.get_mut(&kept.tenant) {
            *of_tenant -= bytes;
            if *of_tenant == 0 {
                self.of_tenants.remove(&kept.tenant);
            }
        }
    }

    fn index(&mut self, number: u64, kept: &Kept) {
        let Kept { tenant, names, term, .. } = kept;
        self.ranks.insert((*tenant, term.priority, term.until_ns, number));
        // Of two sequences with one end the later one is found; the earlier one ends by its time.
        self.ends.insert((*tenant, names[names.len() - 1]), number);
        if let Some(session) = term.session {
            self.sessions.insert((*tenant, session), number);
        }
    }

    fn unindex(&mut self, number: u64, kept: &Kept) {
        let Kept { tenant, names, term, .. } = kept;
        self.ranks.remove(&(*tenant, term.priority, term.until_ns, number));
        let end = (*tenant, names[names.len() - 1]);
        if self.ends.get(&end) == Some(&number) {
            self.ends.remove(&end);
        }
        if let Some(session) = term.session.map(|session| (*tenant, session))
            && self.sessions.get(&session) == Some(&number)
        {
            self.sessions.remove(&session);
        }
    }

    /// Keeps only the first `length` blocks of a sequence. Returns how many it kept beyond them.
    fn cut(&mut self, number: u64, length: usize) -> usize {
        let Some(gone) = self.kept.get(&number).map(|kept| kept.names.len().saturating_sub(length)) else { return 0 };
        if gone == 0 {
            return 0;
        }
        if length == 0 {
            self.remove(number);
            return gone;
        }
        let Some(mut kept) = self.kept.remove(&number) else { return 0 };
        self.unindex(number, &kept);
        kept.names.truncate(length);
        self.give_back(&kept, gone);
        self.index(number, &kept);
        self.kept.insert(number, kept);
        gone
    }

    /// The most bytes that a tenant may keep if all are cut to it, and smaller ones keep what they have.
    fn level(&self) -> u64 {
        let mut sizes: Vec<u64> = self.of_tenants.values().copied().collect();
        sizes.sort_unstable();
        let (mut left, mut tenants) = (self.limit_bytes, sizes.len() as u64);
        for size in sizes {
            let share = left / tenants;
            if size > share {
                return share;
            }
            (left, tenants) = (left - size, tenants - 1);
        }
        u64::MAX
    }

    /// Gives up blocks until the limit holds. Returns how many.
    fn shrink(&mut self) -> usize {
        if self.bytes <= self.limit_bytes {
            return 0;
        }
        let level = self.level();
        let large: Vec<_> =
            self.of_tenants.iter().filter(|(_, bytes)| **bytes > level).map(|(tenant, _)| *tenant).collect();
        let mut dropped = 0;
        for tenant in large {
            while self.bytes > self.limit_bytes
                && let excess = self.bytes_of(tenant).saturating_sub(level)
                && excess > 0
                && let Some(&(_, _, _, number)) = self.ranks.range((tenant, 0, 0, 0)..).next()
            {
                let kept = &self.kept[&number];
                let blocks = usize::try_from(excess.div_ceil(kept.block_bytes)).unwrap_or(usize::MAX);
                let left = kept.names.len().saturating_sub(blocks);
                dropped += self.cut(number, left);
            }
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::{collection, option};

    fn name(branch: u8, depth: usize) -> BlockHash {
        let mut bytes = [branch; 16];
        bytes[..8].copy_from_slice(&(depth as u64).to_le_bytes());
        BlockHash(bytes)
    }

    fn sequence(branch: u8, length: usize) -> Vec<BlockHash> {
        (0..length).map(|depth| name(branch, depth)).collect()
    }

    /// A branch that leaves another one at a block.
    fn rewound(branch: u8, at: usize, to: u8, length: usize) -> Vec<BlockHash> {
        (0..length).map(|depth| name(if depth < at { branch } else { to }, depth)).collect()
    }

    fn until(until_ns: u64) -> Term {
        Term { priority: 0, until_ns, session: None }
    }

    fn tenant(salt: &str) -> Option<TenantKey> {
        Some(TenantKey::of_salt(salt))
    }

    #[test]
    fn a_conversation_that_goes_on_is_kept_once() {
        let mut retention = Retention::new(1000);
        let first = retention.retain(None, sequence(1, 10), 10, until(50), 0);
        assert_eq!(first, Change { added: 10, ..Change::default() });
        let second = retention.retain(None, sequence(1, 14), 10, until(60), 1);
        assert_eq!(second, Change { added: 4, renewed: 10, ..Change::default() });
        assert_eq!((retention.blocks(), retention.sequences()), (14, 1));
    }

    #[test]
    fn a_beginning_that_is_kept_longer_stays() {
        let mut retention = Retention::new(1000);
        retention.retain(None, sequence(1, 4), 10, until(1000), 0);
        retention.retain(None, sequence(1, 10), 10, until(50), 0);
        assert_eq!(retention.sequences(), 2);
        let ended = retention.mark(60, 100, |names| names.len()).ended;
        assert_eq!((ended, retention.blocks()), (10, 4), "the beginning outlives the turn");
    }

    #[test]
    fn a_session_drops_its_rewound_branch() {
        let mut retention = Retention::new(1000);
        let term = Term { session: Some(7), ..until(50) };
        retention.retain(None, sequence(1, 10), 10, term, 0);
        let change = retention.retain(None, rewound(1, 6, 2, 9), 10, term, 0);
        assert_eq!(change, Change { added: 3, renewed: 6, dropped: 4, ..Change::default() });
        assert_eq!(retention.blocks(), 9);
        // Another tenant's session of the same number is another one.
        retention.retain(tenant("a"), sequence(3, 5), 10, term, 0);
        assert_eq!(retention.blocks(), 14);
    }

    #[test]
    fn a_wish_without_time_releases() {
        let mut retention = Retention::new(1000);
        retention.retain(None, sequence(1, 10), 10, until(50), 0);
        let change = retention.retain(None, sequence(1, 12), 10, until(0), 1);
        assert_eq!((change.ended, retention.blocks(), retention.sequences()), (10, 0, 0));
    }

    /// A client without a session once ended what others keep of a shared beginning.
    #[test]
    fn a_release_ends_one_sequence() {
        let mut retention = Retention::new(1000);
        let of_session = |session| Term { session: Some(session), ..until(40) };
        retention.retain(None, sequence(1, 2), 10, Term { priority: 99, ..until(1000) }, 0);
        retention.retain(None, sequence(1, 6), 10, of_session(7), 0);
        retention.retain(None, sequence(1, 8), 10, until(50), 0);
        assert_eq!((retention.blocks(), retention.sequences()), (10, 2), "the longer one replaced the session's");
        retention.retain(None, sequence(1, 6), 10, of_session(7), 0);
        let over = |session| Term { session, ..until(0) };
        assert_eq!(retention.retain(None, sequence(1, 12), 10, over(None), 1).ended, 8);
        assert_eq!((retention.blocks(), retention.sequences()), (8, 2));
        assert_eq!(retention.retain(None, sequence(1, 12), 10, over(Some(9)), 1).ended, 0, "of no such session");
        assert_eq!(retention.retain(None, sequence(1, 12), 10, over(Some(7)), 1).ended, 6);
        assert_eq!((retention.blocks(), retention.sequences()), (2, 1), "the shared beginning stays");
    }

    #[test]
    fn what_the_pool_lost_is_not_kept() {
        let mut retention = Retention::new(1000);
        retention.retain(None, sequence(1, 10), 10, until(u64::MAX), 0);
        assert_eq!(retention.mark(ARRIVING_NS - 1, 100, |_| 0).lost, 0, "they may still arrive");
        assert_eq!(retention.mark(ARRIVING_NS, 100, |_| 3).lost, 7);
        assert_eq!(retention.blocks(), 3);
        assert_eq!(retention.mark(ARRIVING_NS, 100, |_| 0).lost, 3);
        assert_eq!(retention.sequences(), 0);
    }

    #[test]
    fn marks_take_turns() {
        let mut retention = Retention::new(10000);
        (1..=5).for_each(|branch| _ = retention.retain(None, sequence(branch, 10), 10, until(50), 0));
        let mut seen = Vec::new();
        for _ in 0..5 {
            retention.mark(1, 15, |names| {
                seen.push(names[0].0[15]);
                names.len()
            });
        }
        assert_eq!(seen, [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn the_least_important_sequence_of_the_largest_tenant_gives_way() {
        let mut retention = Retention::new(300);
        let firm = Term { priority: 9, ..until(50) };
        retention.retain(tenant("a"), sequence(1, 12), 10, firm, 0);
        retention.retain(tenant("a"), sequence(2, 12), 10, until(60), 0);
        let change = retention.retain(tenant("b"), sequence(3, 10), 10, until(10), 0);
        assert_eq!(change.dropped, 4);
        assert_eq!((retention.bytes_of(tenant("a")), retention.bytes_of(tenant("b"))), (200, 100));
        let mut lengths = Vec::new();
        retention.mark(1, 100, |names| {
            lengths.push((names[0].0[15], names.len()));
            names.len()
        });
        assert_eq!(lengths, [(1, 12), (2, 8), (3, 10)]);
    }

    proptest! {
        /// No wish takes from a tenant what is within its equal share of the limit, but for the rest of a block.
        #[test]
        fn an_equal_share_is_safe(
            wishes in collection::vec(
                (0_u8..4, 0_u8..6, 1_usize..40, 1_u64..30, 0_u8..3, 0_u64..20, option::of(0_u64..3)),
                1..60,
            ),
            limit in 1_u64..800,
        ) {
            let mut retention = Retention::new(limit);
            for (now_ns, (of, branch, length, block_bytes, priority, ns, session)) in (0_u64..).zip(wishes) {
                let of = tenant(&of.to_string());
                let before = retention.of_tenants.clone();
                let term = Term { priority, until_ns: now_ns + ns, session };
                retention.retain(of, sequence(branch, length), block_bytes, term, now_ns);
                prop_assert!(retention.bytes <= limit);
                prop_assert_eq!(retention.of_tenants.values().sum::<u64>(), retention.bytes);
                prop_assert_eq!(retention.kept.values().map(Kept::bytes).sum::<u64>(), retention.bytes);
                prop_assert_eq!(retention.kept.values().map(|kept| kept.names.len()).sum::<usize>(), retention.blocks());
                prop_assert_eq!(retention.ranks.len(), retention.kept.len());
                let share = limit / (before.len() as u64 + u64::from(!before.contains_key(&of)));
                for (other, bytes) in before.iter().filter(|(other, _)| **other != of) {
                    prop_assert!(retention.bytes_of(*other) + 30 > (*bytes).min(share));
                }
                if now_ns % 7 == 0 {
                    retention.mark(now_ns, 50, |names| names.len() - usize::from(names.len() % 3 == 0));
                    prop_assert!(retention.kept.values().all(|kept| kept.term.until_ns > now_ns));
                }
            }
        }
    }
}
