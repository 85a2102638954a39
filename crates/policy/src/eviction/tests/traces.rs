//! Hit ratios against the textbooks, on seeded traces of blocks that stand alone.

use super::harness::{Id, Pool};
use super::textbook::textbook;
use crate::eviction::Eviction;
use cenote_base::prng::Prng;

const CAPACITY: usize = 640;
const REQUESTS: usize = 60_000;

/// Id `n` is drawn with a weight of `1 / (n + 1)^skew`.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(ids: u32, skew: f64) -> Self {
        let weights = (1..=ids).scan(0.0, |sum, n| {
            *sum += f64::from(n).powf(-skew);
            Some(*sum)
        });
        Self(weights.collect())
    }

    fn draw(&self, prng: &mut Prng) -> Id {
        let at = prng.next_f64() * self.0[self.0.len() - 1];
        self.0.partition_point(|&sum| sum <= at) as Id
    }
}

fn zipf(seed: u64, skew: f64) -> Vec<Id> {
    let (zipf, mut prng) = (Zipf::new(10_000, skew), Prng::new(seed));
    (0..REQUESTS).map(|_| zipf.draw(&mut prng)).collect()
}

/// Zipf, and now and then a run of blocks that never come again, half as long as the pool.
fn scanned(seed: u64) -> Vec<Id> {
    let (zipf, mut prng) = (Zipf::new(10_000, 0.9), Prng::new(seed));
    let mut fresh = 1 << 32;
    let mut trace = Vec::with_capacity(REQUESTS);
    while trace.len() < REQUESTS {
        trace.extend((0..CAPACITY).map(|_| zipf.draw(&mut prng)));
        trace.extend(fresh..fresh + CAPACITY as u64 / 2);
        fresh += CAPACITY as u64 / 2;
    }
    trace
}

fn textbook_ratio(eviction: Eviction, trace: &[Id]) -> f64 {
    let mut cache = textbook(eviction, CAPACITY).expect("a published policy");
    trace.iter().filter(|&&id| cache.access(id)).count() as f64 / trace.len() as f64
}

fn ratio(eviction: Eviction, trace: &[Id], batch: usize) -> f64 {
    let mut pool = Pool::new(eviction, CAPACITY, batch);
    trace.iter().map(|&id| pool.request(&[id])).sum::<usize>() as f64 / trace.len() as f64
}

fn traces() -> [(&'static str, Vec<Id>); 4] {
    [
        ("zipf 0.7", zipf(1, 0.7)),
        ("zipf 1.0", zipf(2, 1.0)),
        ("zipf 1.2", zipf(3, 1.2)),
        ("zipf 0.9 with scans", scanned(4)),
    ]
}

#[test]
fn one_at_a_time_is_the_textbook() {
    for (name, trace) in traces() {
        for (eviction, tolerance) in [(Eviction::Lru, 0.0), (Eviction::Sieve, 0.0), (Eviction::S3Fifo, 0.003)] {
            let (expected, ours) = (textbook_ratio(eviction, &trace), ratio(eviction, &trace, 1));
            assert!((expected - ours).abs() <= tolerance, "{name}, {eviction}: textbook {expected}, ours {ours}");
        }
    }
}

#[test]
fn batches_cost_little() {
    for (name, trace) in traces() {
        for eviction in Eviction::ALL {
            let (single, batched) = (ratio(eviction, &trace, 1), ratio(eviction, &trace, CAPACITY / 64));
            assert!(batched > single - 0.01, "{name}, {eviction}: one {single}, batches {batched}");
        }
    }
}

#[test]
fn scans_hurt_lru_most() {
    let trace = scanned(4);
    for batch in [1, CAPACITY / 64] {
        let [lru, sieve, s3_fifo, _] = Eviction::ALL.map(|eviction| ratio(eviction, &trace, batch));
        assert!(sieve > lru + 0.02 && s3_fifo > lru + 0.02, "lru {lru}, sieve {sieve}, s3-fifo {s3_fifo}");
    }
}
