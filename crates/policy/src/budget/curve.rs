//! Hits of an LRU cache as a function of its size, from a sample of the keys (SHARDS: Waldspurger et
//! al., FAST '15).
//!
//! A key belongs to the sample if its hash is below a threshold, so all accesses to it do. The sample
//! is one LRU stack. A key at depth *d* of a sample of rate *r* hits in caches of *(d + 1) / r* entries
//! and more. The hottest keys may be in the sample or not by chance; the difference between the
//! expected and the real number of sampled accesses counts as hits of the smallest cache (SHARDS-adj,
//! §3.3 there).

/// Most keys of a sample. A cache of the largest size has about as many sampled entries.
pub const SAMPLES_MAX: usize = 4096;
/// Sizes that a curve distinguishes.
const BINS: usize = 256;

/// Accesses, and the time that they save if they hit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Weight {
    hits: f64,
    saved_ns: f64,
}

impl Weight {
    fn add(&mut self, other: Self) {
        self.hits += other.hits;
        self.saved_ns += other.saved_ns;
    }

    fn scaled(self, by: f64) -> Self {
        Self { hits: self.hits * by, saved_ns: self.saved_ns * by }
    }
}

/// A hit curve of one cache. Old accesses fade ([`Self::age`]).
#[derive(Clone, Debug)]
pub struct HitCurve {
    bytes_max: u64,
    /// Share of the keys that are sampled.
    rate: f64,
    threshold: u64,
    /// Depth below which the sample is cut: that of a cache of `bytes_max`.
    depth_max: usize,
    /// Sampled keys, the latest first.
    stack: Vec<u64>,
    /// By the least size that hits, as a share of `bytes_max`.
    bins: Vec<Weight>,
    all: Weight,
    sampled: Weight,
}

impl HitCurve {
    /// A curve for sizes up to `bytes_max`, of entries of `entry_bytes` bytes.
    ///
    /// # Panics
    /// An entry has no bytes.
    #[must_use]
    pub fn new(entry_bytes: u64, bytes_max: u64) -> Self {
        assert!(entry_bytes > 0, "an entry has bytes");
        let entries = bytes_max / entry_bytes;
        let rate = (SAMPLES_MAX as f64 / entries.max(1) as f64).min(1.0);
        Self {
            bytes_max,
            rate,
            threshold: if rate < 1.0 { (rate * u64::MAX as f64) as u64 } else { u64::MAX },
            depth_max: usize::try_from(entries).unwrap_or(usize::MAX).min(SAMPLES_MAX),
            stack: Vec::new(),
            bins: vec![Weight::default(); BINS],
            all: Weight::default(),
            sampled: Weight::default(),
        }
    }

    /// An access to a key, which saves so much time if it hits.
    pub fn record(&mut self, key: u64, saved_ns: u64) {
        let weight = Weight { hits: 1.0, saved_ns: saved_ns as f64 };
        self.all.add(weight);
        if self.depth_max == 0 || mixed(key) > self.threshold {
            return;
        }
        self.sampled.add(weight);
        match self.stack.iter().position(|&other| other == key) {
            Some(depth) => {
                self.stack[..=depth].rotate_right(1);
                self.bins[((depth + 1) * BINS).div_ceil(self.depth_max) - 1].add(weight);
            }
            None => {
                self.stack.truncate(self.depth_max - 1);
                self.stack.insert(0, key);
            }
        }
    }

    /// Accesses that hit in a cache of so many bytes, with forgetting.
    #[must_use]
    pub fn hits(&self, bytes: u64) -> f64 {
        self.at(bytes).hits
    }

    /// Nanoseconds that a cache of so many bytes saves, with forgetting.
    #[must_use]
    pub fn saved_ns(&self, bytes: u64) -> f64 {
        self.at(bytes).saved_ns
    }

    fn at(&self, bytes: u64) -> Weight {
        if self.bytes_max == 0 || self.depth_max == 0 {
            return Weight::default();
        }
        let bins = (u128::from(bytes.min(self.bytes_max)) * BINS as u128 / u128::from(self.bytes_max)) as usize;
        if bins == 0 {
            return Weight::default();
        }
        let mut sum = Weight::default();
        self.bins[..bins].iter().for_each(|bin| sum.add(*bin));
        if self.rate < 1.0 {
            sum.add(self.all.scaled(self.rate));
            sum.add(self.sampled.scaled(-1.0));
        }
        let sum = sum.scaled(1.0 / self.rate);
        Weight { hits: sum.hits.max(0.0), saved_ns: sum.saved_ns.max(0.0) }
    }

    /// All accesses, with forgetting.
    #[must_use]
    pub const fn accesses(&self) -> f64 {
        self.all.hits
    }

    /// Forgets all but the share `kept` of what it counted. The sampled keys stay.
    pub fn age(&mut self, kept: f64) {
        for weight in self.bins.iter_mut().chain([&mut self.all, &mut self.sampled]) {
            *weight = weight.scaled(kept);
        }
    }
}

/// Spreads keys that are not uniform, e.g. row numbers.
const fn mixed(key: u64) -> u64 {
    let mixed = (key ^ key >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}
