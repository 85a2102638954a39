//! Quantiles: exact ones of values that are kept, and approximate ones of many values in constant memory.

/// Base-2 logarithm of the buckets per power of two: the relative resolution is 1/128.
const FINE_BITS: u32 = 7;
const BUCKETS: usize = (64 - FINE_BITS as usize + 1) << FINE_BITS;

/// Counts of values by magnitude. Quantiles have a relative error of at most 1/128; the mean is
/// exact before rounding.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], count: 0, sum: 0 }
    }
}

fn bucket(value: u64) -> usize {
    let power = (63 - (value | 1).leading_zeros()).max(FINE_BITS);
    let shift = power - FINE_BITS;
    ((shift as usize) << FINE_BITS) + (value >> shift) as usize
}

/// The middle of a bucket.
fn value_of(bucket: usize) -> u64 {
    let shift = (bucket >> FINE_BITS).saturating_sub(1);
    let low = ((bucket - (shift << FINE_BITS)) as u64) << shift;
    low + ((1 << shift) >> 1)
}

/// Values that are kept, one per request.
#[derive(Clone, Debug, Default)]
pub struct Values(Vec<u64>);

impl Values {
    /// Adds a value.
    pub fn record(&mut self, value: u64) {
        self.0.push(value);
    }

    /// Mean, rounded down; 0 without values.
    #[must_use]
    pub fn mean(&self) -> u64 {
        let sum: u128 = self.0.iter().map(|&value| u128::from(value)).sum();
        (sum / self.0.len().max(1) as u128) as u64
    }

    /// For each share (0.0 to 1.0), the smallest value that at least this share of all values do not exceed;
    /// 0 without values.
    #[must_use]
    pub fn quantiles<const N: usize>(&self, shares: [f64; N]) -> [u64; N] {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        shares.map(|share| sorted.get(rank(sorted.len() as u64, share) as usize - 1).copied().unwrap_or(0))
    }
}

/// The place of a quantile among `count` values, from 1.
fn rank(count: u64, share: f64) -> u64 {
    ((count as f64 * share).ceil() as u64).clamp(1, count.max(1))
}

impl Histogram {
    /// Adds a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
    }

    /// Number of values.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Mean, rounded down; 0 without values.
    #[must_use]
    pub fn mean(&self) -> u64 {
        (self.sum / u128::from(self.count.max(1))) as u64
    }

    /// The smallest value that at least `share` (0.0 to 1.0) of all values do not exceed; 0 without
    /// values.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = rank(self.count, share);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        found.map_or(0, value_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::prng::Prng;

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let mut prng = Prng::new(3);
        let mut values: Vec<u64> = (0..20_000).map(|_| prng.next_u64() >> prng.below(64)).collect();
        let mut histogram = Histogram::default();
        values.iter().for_each(|&value| histogram.record(value));
        values.sort_unstable();
        let mut kept = Values::default();
        values.iter().rev().for_each(|&value| kept.record(value));
        assert_eq!(kept.quantiles([0.0, 0.5, 1.0]), [values[0], values[9_999], values[19_999]]);
        assert_eq!((kept.mean(), Values::default().quantiles([0.5])), (histogram.mean(), [0]));
        for share in [0.0, 0.01, 0.5, 0.9, 0.99, 1.0] {
            let rank = ((values.len() as f64 * share).ceil() as usize).max(1) - 1;
            let (exact, found) = (values[rank] as f64, histogram.quantile(share) as f64);
            assert!((exact - found).abs() <= exact / 128.0 + 0.5, "{share}: {exact}, {found}");
        }
        assert_eq!(Histogram::default().quantile(0.5), 0);
        let mut one = Histogram::default();
        one.record(u64::MAX);
        assert_eq!((one.count(), one.mean()), (1, u64::MAX));
    }
}
