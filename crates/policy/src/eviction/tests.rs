//! One conformance test for all policies, and each against its textbook.

mod conformance;
mod harness;
mod real_trace;
mod textbook;
mod traces;

use super::Eviction;

#[test]
fn numbers_in_superblocks_stay() {
    // docs/internals/format.md
    let known = ["lru", "sieve", "s3-fifo", "cost-aware"];
    let named = (0..).map_while(|number| Some(Eviction::from_number(number)?.to_string()));
    assert_eq!(named.collect::<Vec<_>>(), known);
}
