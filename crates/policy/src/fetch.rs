//! Is a read worth it? Where the blocks come from that a request lacks: L4, another host, or computing.
//!
//! The blocks are one run, and only leading ones help. A request waits for its reads, which go on in both
//! tiers at once, and computes the rest. [`plan`] estimates when each split ends and takes the earliest:
//! computing all; L4's blocks first; peers from the first block on; L4's first and peers for what is
//! behind them. The last blocks are the dearest to compute, since their tokens attend to all before them.
//! So of a tier all blocks that arrive by its deadline are read, or none.
//!
//! Times are measured: [`Prefill`] from steps, a [`Route`] from reads that have ended. What is not known
//! is tried within bounds:
//!
//! - Without a measured prefill there is nothing to compare: all is sought, and the deadline bounds the wait.
//! - A way without a measured read gives [`EXPLORED_BYTES`], and at least a block, to one request at a
//!   time. The others compute.
//! - A way that was declined [`PATIENCE_MIN`] times in a row is tried so again, because only reads renew
//!   its times. Each such try that ends in more declines doubles the number, up to [`PATIENCE_MAX`].

/// Part of the earlier sums that is kept when a measurement is added.
const KEPT: f64 = 0.875;
/// Bytes that a way without measured times gives to one request.
pub const EXPLORED_BYTES: u64 = 8 << 20;
/// Declined requests before a way is tried again, at first and at most.
pub const PATIENCE_MIN: u32 = 16;
/// See [`PATIENCE_MIN`].
pub const PATIENCE_MAX: u32 = 1024;
/// Part of the product of moments below which tokens and pairs cannot be told apart.
const DEPENDENT: f64 = 1e-3;

/// Time of work: sums in which older work counts less, so that large work counts more than small.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    units: f64,
    ns: f64,
}

impl Sums {
    fn add(&mut self, units: u64, ns: u64) {
        if units > 0 {
            self.units = KEPT * self.units + units as f64;
            self.ns = KEPT * self.ns + ns as f64;
        }
    }

    /// Nanoseconds of a unit.
    fn pace(&self) -> Option<f64> {
        (self.units > 0.0).then(|| self.ns / self.units)
    }
}

/// The run of blocks that a request lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of one.
    pub block_bytes: u64,
    /// Tokens of one.
    pub block_tokens: u64,
    /// Tokens before the first one, whose KV is here.
    pub before_tokens: u64,
}

/// Measured time to compute prompts: nanoseconds of a token, and of a pair of a token and one that it
/// attends to. Pairs cost nothing as long as they are not reported, or never vary apart from tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prefill {
    token_token: f64,
    token_pair: f64,
    pair_pair: f64,
    token_ns: f64,
    pair_ns: f64,
}

impl Prefill {
    /// A step computed so many tokens, with so many pairs (0: not known), in `ns`.
    pub fn has_computed(&mut self, tokens: u64, pairs: u64, ns: u64) {
        if tokens == 0 {
            return;
        }
        let (tokens, pairs, ns) = (tokens as f64, pairs as f64, ns as f64);
        for (sum, more) in [
            (&mut self.token_token, tokens * tokens),
            (&mut self.token_pair, tokens * pairs),
            (&mut self.pair_pair, pairs * pairs),
            (&mut self.token_ns, tokens * ns),
            (&mut self.pair_ns, pairs * ns),
        ] {
            *sum = KEPT * *sum + more;
        }
    }

    /// Nanoseconds of a token and of a pair, by least squares, neither below 0. `None`: nothing was computed.
    fn costs(&self) -> Option<(f64, f64)> {
        if self.token_token <= 0.0 {
            return None;
        }
        let by_tokens = (self.token_ns / self.token_token, 0.0);
        let product = self.token_token * self.pair_pair;
        let apart = product - self.token_pair * self.token_pair;
        if apart <= DEPENDENT * product {
            return Some(by_tokens);
        }
        let token = (self.token_ns * self.pair_pair - self.pair_ns * self.token_pair) / apart;
        let pair = (self.pair_ns * self.token_token - self.token_ns * self.token_pair) / apart;
        Some(match (token >= 0.0, pair >= 0.0) {
            (true, true) => (token, pair),
            (true, false) => by_tokens,
            (false, _) => (0.0, self.pair_ns / self.pair_pair),
        })
    }

    /// Nanoseconds to compute the blocks from number `from` on. `None`: nothing was computed yet.
    #[must_use]
    pub fn compute_ns(&self, missing: &Missing, from: u64) -> Option<f64> {
        let (token, pair) = self.costs()?;
        let block = missing.block_tokens as f64;
        let new = missing.blocks.saturating_sub(from) as f64 * block;
        let before = missing.before_tokens as f64 + from.min(missing.blocks) as f64 * block;
        Some(new * token + (new * before + new * (new + 1.0) / 2.0) * pair)
    }
}

/// Measured times of a peer, and how its blocks are in demand.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    seek: Sums,
    read: Sums,
    visit: Sums,
    /// Blocks that were sought, and those of them that were found.
    sought: f64,
    found: f64,
    /// Requests that were declined since the last one that was not, and how many are until a trial.
    declined: u32,
    patience: u32,
}

impl Default for Route {
    /// Nothing is known; a block counts as likely there.
    fn default() -> Self {
        let zero = Sums::default();
        Self { seek: zero, read: zero, visit: zero, sought: 1.0, found: 1.0, declined: 0, patience: PATIENCE_MIN }
    }
}

impl Route {
    /// A lookup of so many blocks took `ns` and found some.
    pub fn has_sought(&mut self, blocks: u64, found: u64, ns: u64) {
        if blocks > 0 {
            self.seek.add(1, ns);
            self.sought = KEPT * self.sought + blocks as f64;
            self.found = KEPT * self.found + found.min(blocks) as f64;
        }
    }

    /// Blocks of so many bytes were read in `ns`.
    pub fn has_read(&mut self, bytes: u64, ns: u64) {
        self.read.add(bytes, ns);
    }

    /// A request was served in `ns`, found or not: what the next one waits for.
    pub fn has_served(&mut self, ns: u64) {
        self.visit.add(1, ns);
    }

    /// A request that could have come computes instead.
    pub fn has_declined(&mut self) {
        self.declined = self.declined.saturating_add(1);
    }

    /// A request comes. After as many declines as patience lasts it is a trial, and a longer patience begins.
    pub fn begins(&mut self) {
        let is_trial = self.declined >= self.patience;
        self.patience = if is_trial { (2 * self.patience).min(PATIENCE_MAX) } else { PATIENCE_MIN };
        self.declined = 0;
    }

    /// What it offers to a request behind `waiting` others, for blocks of so many bytes, by a deadline.
    #[must_use]
    pub fn way(&self, block_bytes: u64, waiting: u64, deadline_ns: u64) -> Way {
        let is_trial = self.declined >= self.patience && waiting == 0;
        Way {
            blocks: u64::MAX,
            waiting,
            queue_ns: waiting as f64 * self.visit.pace().unwrap_or(0.0),
            seek_ns: self.seek.pace().filter(|_| !is_trial).unwrap_or(0.0),
            block_ns: self.read.pace().filter(|_| !is_trial).map(|pace| pace * block_bytes as f64),
            found: self.found / self.sought,
            deadline_ns,
        }
    }
}

/// A way to read blocks, as one request sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// Leading blocks that it may give.
    pub blocks: u64,
    /// Requests before this one.
    pub waiting: u64,
    /// Nanoseconds until they are done.
    pub queue_ns: f64,
    /// Nanoseconds to find the blocks.
    pub seek_ns: f64,
    /// Nanoseconds of each block. `None`: none was read yet, or a trial is due.
    pub block_ns: Option<f64>,
    /// Likelihood, 0 to 1, that the blocks are there.
    pub found: f64,
    /// Nanoseconds after which the request waits no longer.
    pub deadline_ns: u64,
}

impl Way {
    /// Nanoseconds until blocks would be found.
    fn found_ns(&self) -> f64 {
        self.queue_ns + self.seek_ns
    }

    /// Leading blocks of so many that arrive by the deadline, with known times.
    fn in_time(&self, blocks: u64) -> u64 {
        let left = self.deadline_ns as f64 - self.found_ns();
        let most = blocks.min(self.blocks);
        match self.block_ns {
            _ if left <= 0.0 => 0,
            Some(ns) if ns > 0.0 => most.min((left / ns) as u64),
            _ => most,
        }
    }

    /// Blocks that an untried way gives.
    fn explored(&self, blocks: u64, block_bytes: u64) -> u64 {
        if self.waiting > 0 { 0 } else { blocks.min(self.blocks).min((EXPLORED_BYTES / block_bytes.max(1)).max(1)) }
    }

    fn read_ns(&self, blocks: u64) -> f64 {
        if blocks == 0 { 0.0 } else { self.found_ns() + blocks as f64 * self.block_ns.unwrap_or(0.0) }
    }
}

/// Where a request's missing blocks come from. The rest is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Leading blocks from L4.
    pub l4: u64,
    /// Blocks behind those that are sought at peers.
    pub peers: u64,
}

/// Expected nanoseconds until all blocks are here, if this plan is carried out. `None`: computing was not
/// measured.
#[must_use]
pub fn expected_ns(
    missing: &Missing,
    prefill: &Prefill,
    l4: Option<&Way>,
    peers: Option<&Way>,
    plan: Plan,
) -> Option<f64> {
    let below = l4.map_or(0.0, |way| way.read_ns(plan.l4));
    let Some(way) = peers.filter(|_| plan.peers > 0) else {
        return Some(below + prefill.compute_ns(missing, plan.l4)?);
    };
    let found = below.max(way.read_ns(plan.peers)) + prefill.compute_ns(missing, plan.l4 + plan.peers)?;
    let absent = below.max(way.found_ns()) + prefill.compute_ns(missing, plan.l4)?;
    Some(way.found * found + (1.0 - way.found) * absent)
}

/// Decides where a request's missing blocks come from. `l4` and `peers` are the tiers that may have some.
#[must_use]
pub fn plan(missing: &Missing, prefill: &Prefill, l4: Option<&Way>, peers: Option<&Way>) -> Plan {
    let in_time = |way: Option<&Way>, blocks: u64| way.map_or(0, |way| way.in_time(blocks));
    if prefill.compute_ns(missing, 0).is_none() {
        let below = in_time(l4, missing.blocks);
        return Plan { l4: below, peers: peers.map_or(0, |_| missing.blocks - below) };
    }
    let known = |way: &&Way| way.block_ns.is_some();
    let (known_l4, known_peers) = (l4.filter(known), peers.filter(known));
    let below = in_time(known_l4, missing.blocks);
    let splits = [(below, false), (0, true), (below, true)]
        .map(|(l4, asks)| Plan { l4, peers: if asks { in_time(known_peers, missing.blocks - l4) } else { 0 } });
    let mut best = Plan::default();
    let expected = |plan: Plan| expected_ns(missing, prefill, known_l4, known_peers, plan);
    for split in splits {
        if expected(split) < expected(best) {
            best = split;
        }
    }
    // What was never read is tried beside that, a little of it.
    let untried = |way: Option<&Way>, blocks: u64| {
        way.filter(|way| way.block_ns.is_none()).map_or(0, |way| way.explored(blocks, missing.block_bytes))
    };
    if best.peers == 0 && best.l4 == 0 {
        best.l4 = untried(l4, missing.blocks);
    }
    // Even a lookup that finds nothing must end before computing would.
    let pays = |way: &&Way| prefill.compute_ns(missing, 0).is_none_or(|ns| way.found_ns() < ns);
    if best.peers == 0 {
        best.peers = untried(peers.filter(pays), missing.blocks - best.l4);
    }
    best
}

/// Whether a request that still lacks these blocks should ask a further peer.
#[must_use]
pub fn asks(missing: &Missing, prefill: &Prefill, way: &Way) -> bool {
    plan(missing, prefill, None, Some(way)).peers > 0
}

/// The order in which a reader asks its `peers`, for a prompt with this first block: by turns, from a peer
/// that both choose. So the prompts of one reader begin at different peers, and the readers of one prompt
/// as well: copies of hot blocks are found wherever they have spread, and no holder gets all readers.
pub fn asking_order(first_block: u64, reader: u64, peers: usize) -> impl DoubleEndedIterator<Item = usize> {
    // Products with an odd number spread low bits over high ones.
    let mixed = (first_block ^ reader.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let begin = ((mixed >> 32) % (peers.max(1) as u64)) as usize;
    (0..peers).map(move |step| (begin + step) % peers)
}

#[cfg(test)]
mod tests;
