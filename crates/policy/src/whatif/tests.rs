use super::*;
use cenote_base::prng::Prng;

/// Conversations that return with more blocks, behind a system prompt of eight blocks. Names are uniform.
fn conversations(seed: u64, requests: usize) -> Vec<Vec<u64>> {
    let mut prng = Prng::new(seed);
    let system: Vec<u64> = (0..8).map(|_| prng.next_u64()).collect();
    let mut open: Vec<Vec<u64>> = Vec::new();
    (0..requests)
        .map(|_| {
            let which = prng.below(400) as usize;
            if which >= open.len() {
                open.push(system.clone());
            }
            let at = which.min(open.len() - 1);
            if open[at].len() > 120 {
                open[at].clone_from(&system);
            }
            let more = prng.below(16);
            open[at].extend((0..more).map(|_| prng.next_u64()));
            open[at].clone()
        })
        .collect()
}

fn trace(requests: &[Vec<u64>], shift: u32) -> Trace {
    let mut trace = Trace::new(1.0 / f64::from(1_u32 << shift));
    let (mut asked, mut count) = (0, 0);
    for request in requests {
        let names: Vec<u64> = request.iter().copied().filter(|name| name % (1 << shift) == 0).collect();
        asked += request.len() as u64;
        count += 1;
        if !names.is_empty() {
            trace.push(&Sampled { model: 0, units: 1, names: &names, asked, requests: count });
            (asked, count) = (0, 0);
        }
    }
    trace
}

#[test]
fn a_full_trace_has_the_hits_of_a_list_from_oldest_to_newest() {
    let requests = conversations(1, 600);
    let full = trace(&requests, 0);
    for size in [300, 1_000, 100_000] {
        let (mut held, mut hits, mut all): (Vec<u64>, usize, usize) = (Vec::new(), 0, 0);
        for request in &requests {
            all += request.len();
            hits += request.iter().take_while(|name| held.contains(name)).count();
            // One instant: the deepest block of a request is the oldest.
            held.retain(|name| !request.contains(name));
            held.extend(request.iter().rev());
            held.drain(..held.len().saturating_sub(size));
        }
        let replayed = full.replay(Eviction::Lru, size as u64, Some(0));
        assert_eq!((replayed.asked, replayed.requests, replayed.error), (all as f64, 600.0, 0.0));
        let list = hits as f64 / all as f64;
        // The cache evicts some blocks at once, and never those of the request itself.
        assert!((replayed.hit_rate() - list).abs() < 0.01, "{size}: {} and {list}", replayed.hit_rate());
        assert_eq!(replayed.hit_rate_with_cold(), replayed.hit_rate());
    }
}

#[test]
fn a_sample_is_within_three_standard_errors_of_the_full_trace() {
    for seed in 0..4 {
        let requests = conversations(seed, 4_000);
        let (full, sample) = (trace(&requests, 0), trace(&requests, 3));
        for eviction in Eviction::ALL {
            for size in [2_000, 8_000, 1 << 40] {
                let [full, sample] = [&full, &sample].map(|trace| trace.replay(eviction, size, None));
                let error = sample.hit_rate() - full.hit_rate();
                assert!(sample.rate_error() > 0.0 && sample.rate_error() < 0.02);
                // A smaller cache has coarser batches, too.
                let most = 3.0 * sample.rate_error() + 0.005;
                assert!(error.abs() <= most, "{eviction} {size} seed {seed}: {error} of {most}");
            }
        }
    }
}

#[test]
fn an_unlimited_cold_tier_serves_what_was_ever_computed() {
    let requests = conversations(3, 800);
    let full = trace(&requests, 0);
    let unlimited = full.replay(Eviction::Lru, 1 << 40, None);
    let small = full.replay(Eviction::Lru, 200, None);
    assert!(!unlimited.was_full && small.was_full && small.hit_rate() < unlimited.hit_rate());
    assert_eq!(small.hit_rate_with_cold(), unlimited.hit_rate());
    let some = full.replay(Eviction::Lru, 200, Some(1_000)).hit_rate_with_cold();
    assert!(small.hit_rate() < some && some < unlimited.hit_rate());
}

#[test]
fn warm_requests_fill_the_caches_and_do_not_count() {
    let requests = conversations(5, 800);
    let mut full = trace(&requests, 0);
    let cold_start = full.replay(Eviction::Lru, 1 << 40, None);
    full.warm(0.5);
    let warm = full.replay(Eviction::Lru, 1 << 40, None);
    let part = warm.asked / cold_start.asked;
    assert!((0.48..=0.52).contains(&part) && warm.missed[0] < cold_start.missed[0], "{part}");
}

#[test]
fn models_have_blocks_of_their_own_and_sizes_of_their_own() {
    let mut two = Trace::new(1.0);
    for _ in 0..2 {
        for (model, units) in [(0, 1), (1, 3)] {
            two.push(&Sampled { model, units, names: &[7, 8], asked: 2, requests: 1 });
        }
    }
    assert_eq!(two.sampled(), (8, 4));
    assert_eq!(two.replay(Eviction::Lru, 8, Some(0)).missed, [2.0, 2.0]);
    assert_eq!(two.replay(Eviction::Lru, 2, Some(0)).missed, [2.0, 4.0], "a block of three units does not fit");
    let empty = Trace::default().replay(Eviction::Lru, 8, None);
    assert_eq!((empty.hit_rate(), empty.rate_error()), (0.0, 0.0));
}
