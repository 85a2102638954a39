//! The owner publishes and evicts while its blocks are read.

use crate::support::{Host, Tally, Trouble, chain, codec, config, frames, pace, readable};
use cenote_base::BlockHash;
use cenote_base::prng::Prng;
use cenote_base::seal::Seal;
use cenote_pool::{NewBlock, Publish};
use cenote_reach::Fetched;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn a_peers_blocks_are_found_and_whole() {
    for seal in [Seal::None, Seal::Mac, Seal::Encrypt] {
        let owner = Host::new(4 << 20, &config(1, 7, seal));
        let hashes = chain(&owner.namespace, 1, 300);
        for (depth, &hash) in (0..).zip(&hashes[..280]) {
            assert_eq!(owner.publish(hash, depth), Publish::Published);
        }
        // A shorter one, as codecs publish them.
        let frames = frames(&codec(1));
        let new = NewBlock {
            encoding: 1,
            names: crate::support::names(hashes[280]),
            ..NewBlock::new(&owner.namespace, hashes[280], 280)
        };
        assert_eq!(owner.pool.publish(&new, &[&frames]), Publish::Published);
        let mut reader = Trouble::default().reader(&owner, 1).expect("it is a region");
        let hits = reader.find(&hashes, pace()).expect("the peer answers");
        assert_eq!(hits.len(), 281, "up to the first that is not there");
        assert!(hits.iter().zip(0..).all(|(hit, depth)| hit.depth() == depth));
        let mut tally = Tally::default();
        reader
            .fetch((&owner.namespace, &readable()), &hits, pace(), |hit, fetched| match fetched {
                Fetched::Whole { payload, .. } if hit.encoding == 1 => assert!(*payload == *frames),
                fetched => tally.count_named(hit, fetched),
            })
            .expect("it answers");
        assert_eq!(tally, Tally { whole: 280, ..Tally::default() });
    }
}

#[test]
fn another_namespace_is_not_taken_for_ours() {
    let owner = Host::new(4 << 20, &config(1, 7, Seal::None));
    let other = crate::support::namespace(&owner.pool, 2);
    let hashes = chain(&owner.namespace, 1, 4);
    hashes.iter().for_each(|&hash| assert_eq!(owner.publish(hash, 0), Publish::Published));
    let mut reader = Trouble::default().reader(&owner, 1).expect("it is a region");
    let hits = reader.find(&hashes, pace()).expect("the peer answers");
    let mut tally = Tally::default();
    reader
        .fetch((&other, &readable()), &hits, pace(), |hit, fetched| tally.count_named(hit, fetched))
        .expect("it answers");
    assert_eq!(tally, Tally { wrong: 4, ..Tally::default() });
}

/// Words of lines and payloads are read in any order while the owner evicts and publishes between them.
fn churn(seal: Seal, reads: usize, seed: u64) {
    let config = config(1, 7, seal);
    // Few blocks, so that one often leaves while it is read.
    let owner = Arc::new(Host::new(config.region_bytes(2).expect("it exists"), &config));
    let prompts: Vec<Vec<BlockHash>> = (0..16).map(|prompt| chain(&owner.namespace, prompt, 12)).collect();
    let all: Vec<BlockHash> = prompts.concat();
    let trouble = Trouble::default();
    let evicted = Arc::new(AtomicU64::new(0));
    {
        let (owner, all, evicted) = (Arc::clone(&owner), all.clone(), Arc::clone(&evicted));
        let mut random = Prng::new(seed);
        let mut faults = trouble.set();
        faults.between = Some(Box::new(move || {
            for _ in 0..=random.below(64) {
                let at = random.below(all.len() as u64) as usize;
                if owner.has(&all[at..=at]) == 0 && owner.publish(all[at], at as u32 % 12) == Publish::Published {
                    evicted.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
        faults.tears = Some((4, 1));
    }
    let mut reader = trouble.reader(&owner, seed).expect("it is a region");
    let (mut random, mut tally) = (Prng::new(seed + 1), Tally::default());
    while tally.whole + tally.stale + tally.wrong < reads {
        let prompt = &prompts[random.below(prompts.len() as u64) as usize];
        // A reader looks for any part of a prompt: most of it is not there any more.
        let begin = random.below(prompt.len() as u64) as usize;
        let hits = reader.find(&prompt[begin..], pace()).expect("the peer answers");
        if hits.is_empty() {
            let at = random.below(all.len() as u64) as usize;
            owner.publish(all[at], at as u32 % 12);
        }
        reader
            .fetch((&owner.namespace, &readable()), &hits, pace(), |hit, fetched| tally.count_named(hit, fetched))
            .expect("it answers");
    }
    // Without checks most of the others would have been wrong bytes.
    assert!(tally.whole > reads / 20 && tally.stale + tally.wrong >= reads / 500, "{tally:?}");
    assert!(evicted.load(Ordering::Relaxed) > reads as u64 / 10);
}

#[test]
fn ten_thousand_reads_under_eviction_bring_no_wrong_byte() {
    churn(Seal::None, 10_000, 11);
}

#[test]
fn nor_of_a_sealed_region() {
    churn(Seal::Mac, 500, 12);
    churn(Seal::Encrypt, 500, 13);
}
