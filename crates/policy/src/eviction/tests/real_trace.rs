//! An hour of conversations (Mooncake, FAST '25), if it lies beside the repository.

use super::harness::{Id, Pool};
use super::textbook::textbook;
use crate::eviction::Eviction;
use cenote_base::testing::beside;
use std::io::Write;

/// Past the test harness's capture, because the table is the point of the test.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn prompt(line: &str) -> Option<Vec<Id>> {
    let ids = line.split_once("\"hash_ids\": [")?.1.split_once(']')?.0;
    ids.split(',').map(|id| id.trim().parse().ok()).collect()
}

#[test]
fn mooncake_conversations() {
    let Some(path) = beside("data/mooncake_conversation.jsonl") else { return };
    let text = std::fs::read_to_string(path).expect("the trace");
    let prompts: Vec<Vec<Id>> = text.lines().map(|line| prompt(line).expect("a line of the trace")).collect();
    let total: usize = prompts.iter().map(Vec::len).sum();
    let distinct = prompts.iter().flatten().collect::<std::collections::HashSet<_>>().len();
    say(&format!("Mooncake conversations: {} prompts, {total} blocks, {distinct} distinct", prompts.len()));
    // The textbook's blocks stand alone: it counts hits behind a gap, which a prefix cannot use.
    say("  blocks  policy     found   textbook   evicted   heads lost before their tails");
    for capacity in [1 << 10, 1 << 12, 1 << 14, 1 << 16] {
        for eviction in Eviction::ALL {
            let mut pool = Pool::new(eviction, capacity, capacity / 64);
            let found: usize = prompts.iter().map(|prompt| pool.request(prompt)).sum();
            let alone = textbook(eviction, capacity)
                .map(|mut alone| prompts.iter().flatten().filter(|&&id| alone.access(id)).count());
            let percent = |count: usize| format!("{:5.2} %", 100.0 * count as f64 / total as f64);
            let (evicted, beheaded) = (pool.evicted, pool.beheaded);
            let alone = alone.map_or_else(|| "   none".to_owned(), percent);
            say(&format!("{capacity:8}  {eviction:10} {}    {alone} {evicted:9}   {beheaded}", percent(found)));
            // Measured: a few of a hundred thousand, where arrival order alone gave a hundredth.
            assert!(beheaded * 1000 <= evicted, "{eviction}: {beheaded} of {evicted}");
        }
    }
}
