//! Frames of the exchange before a peer's region is read, at both ends, and readers without the key.
#![no_main]

use cenote_fuzz::answers::{Exchanging, MEMORY_MAX};
use cenote_fuzz::memory::within;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static WORLD: Exchanging = Exchanging::new();
}

fuzz_target!(|input: &[u8]| WORLD.with(|world| within(MEMORY_MAX, || world.run(input))));
