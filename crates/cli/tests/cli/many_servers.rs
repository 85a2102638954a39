//! Four servers share a region: two hundred simultaneous requests, each with the answer that it
//! gets alone.

use super::support::client::{Answer, greedy, without_pool};
use super::support::process::Server;
use super::support::region::Region;
use super::support::tokens;
use cenote_base::TokenId;
use cenote_base::prng::Prng;
use cenote_base::testing::beside;
use futures::future::{join, join_all};
use serde_json::Value;
use std::cell::Cell;
use std::collections::HashSet;

const SERVERS: usize = 4;
const REQUESTS: usize = 200;
const BLOCK: usize = 16;
/// Tokens of a prompt; enough for a shared beginning and an end of its own.
const BLOCKS_MAX: usize = 12;
const MAX_TOKENS: u32 = 6;

/// Prompts with the prefix structure of the first conversations of the Mooncake trace. Each hash id
/// stands for 512 tokens there, and for one block here.
fn from_trace(trace: &str) -> Vec<Vec<TokenId>> {
    let prompts = trace.lines().take(REQUESTS).enumerate().map(|(number, line)| {
        let request: Value = serde_json::from_str(line).expect("a line of the trace is JSON");
        let ids = request["hash_ids"].as_array().expect("an array").iter().map(|id| id.as_u64().expect("a number"));
        let mut prompt: Vec<TokenId> = ids.take(BLOCKS_MAX).flat_map(|id| tokens(id, BLOCK)).collect();
        prompt.extend(tokens(1 << 40 | number as u64, 1 + number % BLOCK));
        prompt
    });
    prompts.collect()
}

/// Groups of prompts with a common beginning, of all sizes: group *g* is twice as likely as group
/// *g + 1*.
fn synthetic(seed: u64) -> Vec<Vec<TokenId>> {
    let mut prng = Prng::new(seed);
    let prompts = (0..REQUESTS).map(|number| {
        let group = u64::from(prng.next_u64().trailing_zeros());
        let mut prompt = tokens(group, BLOCK * (2 + prng.below(BLOCKS_MAX as u64 - 2) as usize));
        prompt.extend(tokens(1 << 40 | number as u64, 1 + prng.below(2 * BLOCK as u64) as usize));
        prompt
    });
    prompts.collect()
}

fn prompts() -> Vec<Vec<TokenId>> {
    // Without the trace: synthetic groups of prefixes.
    beside("data/mooncake_conversation.jsonl")
        .map_or_else(|| synthetic(7), |trace| from_trace(&std::fs::read_to_string(trace).expect("the trace")))
}

#[test]
fn synthetic_prompts_differ_and_share_their_beginnings() {
    let prompts = synthetic(7);
    assert_eq!(prompts, synthetic(7));
    assert_eq!(prompts.iter().collect::<HashSet<_>>().len(), REQUESTS);
    let beginnings: HashSet<_> = prompts.iter().map(|prompt| &prompt[..2 * BLOCK]).collect();
    assert!((4..20).contains(&beginnings.len()), "{} beginnings", beginnings.len());
}

#[tokio::test]
async fn two_hundred_requests_at_four_servers_are_answered_as_by_one_alone() {
    let region = Region::create("512MiB").await;
    let servers = join_all((0..SERVERS).map(async |_| Server::start(&["--region", &region.name]).await)).await;
    let bodies: Vec<Value> = prompts().iter().map(|prompt| greedy(prompt, MAX_TOKENS)).collect();
    assert_eq!(bodies.len(), REQUESTS);

    let asked = bodies.iter().enumerate().map(|(n, body)| servers[n % SERVERS].client.complete(body));
    let done = Cell::new(false);
    let asked = async {
        let answers = join_all(asked).await;
        done.set(true);
        answers
    };
    // Polls the region while they work on it.
    let looks = async {
        while !done.get() {
            region.expect_clean().await;
        }
    };
    let (answers, ()) = join(asked, looks).await;
    region.expect_clean_and_idle().await;

    let undisturbed = Server::start(&["--no-pool"]).await;
    let alone = join_all(bodies.iter().map(|body| undisturbed.client.complete(body))).await;
    let texts = |answers: &[Answer]| answers.iter().map(|answer| answer.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&answers), texts(&alone));
    let different = texts(&alone).into_iter().collect::<HashSet<_>>().len();
    assert!(different > REQUESTS / 4, "only {different} answers differ; a wrong one could go unseen");
    assert!(alone.iter().all(|answer| answer.cached_tokens == 0));

    // Each server finds what the others computed: send each prompt again, to another server.
    let elsewhere = bodies.iter().enumerate().map(|(n, body)| servers[(n + 1) % SERVERS].client.complete(body));
    let again = join_all(elsewhere).await;
    assert_eq!(texts(&again), texts(&alone));
    let found: u64 = again.iter().map(|answer| answer.cached_tokens).sum();
    let prompt_tokens: u64 = bodies.iter().map(|body| body["prompt"].as_array().expect("tokens").len() as u64).sum();
    assert!(found * 2 > prompt_tokens, "only {found} of {prompt_tokens} prompt tokens were found");
    let spared = servers[0].client.complete(&without_pool(bodies[0].clone())).await;
    assert_eq!(spared, alone[0]);

    for server in servers {
        server.stop().await;
    }
    region.expect_clean_and_idle().await;
}
