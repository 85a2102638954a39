//! Rows of any configuration follow the rules as they are stated, in calls of any lengths.

use cenote_engram::{Addresses, Family, NgramConfig, TokenMap, Tokens};
use proptest::prelude::*;
use serde_json::json;

/// The ids that the n-grams at `position` read, the newest first: the rule without shortcuts.
fn read_back(addresses: &Addresses, tokens: &[u32], masked: &[bool], position: usize) -> Vec<u32> {
    let (pad, config) = (addresses.pad(), addresses.config());
    let mut blocked = false;
    let id = |shift: usize| {
        let at = position.checked_sub(shift);
        let token = at.map(|at| tokens[at]);
        match config.family() {
            Family::DeepSeek => {
                blocked |= at.is_none_or(|at| masked[at]);
                let map = addresses.map().expect("the family has one");
                if blocked { pad } else { map.ids()[token.expect("not blocked") as usize] }
            }
            Family::Qwen => {
                let token = token.filter(|_| !masked[at.expect("a token has a place")]).unwrap_or(pad);
                let id = if blocked { pad } else { token };
                blocked |= shift > 0 && token == pad || at.is_none();
                id
            }
        }
    };
    (0..config.order_max).map(id).collect()
}

fn stated(addresses: &Addresses, tokens: &[u32], masked: &[bool]) -> Vec<u64> {
    let mut rows = Vec::new();
    for position in 0..tokens.len() {
        let ids = read_back(addresses, tokens, masked, position);
        for layer in addresses.layers() {
            let mut hash = u64::from(ids[0]) * layer.multipliers[0];
            for (order, (primes, offsets)) in layer.primes.iter().zip(&layer.offsets).enumerate() {
                hash ^= u64::from(ids[order + 1]) * layer.multipliers[order + 1];
                rows.extend(primes.iter().zip(offsets).map(|(prime, offset)| hash % prime + offset));
            }
        }
    }
    rows
}

fn addresses(is_qwen: bool, order_max: usize, heads: usize, start: u64, ids: u32) -> Addresses {
    let config = match is_qwen {
        true => json!({
            "ple_layer_ids": [1, 6], "ngram_size": order_max, "heads_per_ngram": heads,
            "ple_embed_dim": (order_max - 1) * heads, "ngram_vocab_size_base": start, "vocab_size": ids,
            "eos_token_id": ids / 2,
        }),
        false => json!({
            "engram_layer_ids": [6, 1], "engram_num_embeddings": [u64::MAX, u64::MAX],
            "engram_max_ngram_size": order_max, "engram_n_heads": heads, "engram_head_dim": 1,
            "engram_vocab_size": start, "engram_compressed_vocab_size": ids, "engram_pad_token_id": 3,
        }),
    };
    let config = NgramConfig::parse(config.to_string().as_bytes()).expect("a configuration");
    let map = TokenMap::of_ids((0..ids).rev().chain(0..ids).collect()).expect("a map");
    Addresses::new(config, Some(map)).expect("tables")
}

proptest! {
    #[test]
    fn rows_follow_the_rules(
        is_qwen in any::<bool>(),
        order_max in 2usize..6,
        heads in 1usize..10,
        start in prop_oneof![0u64..100, 10_000u64..20_000, 1_000_000u64..3_000_000_000],
        ids in 4u32..12,
        draws in prop::collection::vec((any::<u32>(), 0u8..6), 1..150),
        cuts in prop::collection::vec(1usize..80, 1..5),
    ) {
        let addresses = addresses(is_qwen, order_max, heads, start, ids);
        let tokens: Vec<u32> = draws.iter().map(|(token, _)| token % addresses.vocabulary() as u32).collect();
        let masked: Vec<bool> = draws.iter().map(|(_, mask)| *mask == 0).collect();
        let (mut history, mut rows, mut at) = (addresses.start(), Vec::new(), 0);
        for cut in cuts.iter().cycle() {
            let end = tokens.len().min(at + cut);
            let part = Tokens { ids: &tokens[at..end], masked: Some(&masked[at..end]) };
            addresses.rows(&mut history, part, &mut rows).expect("known tokens");
            at = end;
            if at == tokens.len() {
                break;
            }
        }
        prop_assert_eq!(rows, stated(&addresses, &tokens, &masked));
    }
}
