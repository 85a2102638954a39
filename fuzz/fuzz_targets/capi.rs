//! A C program's calls, by two threads, with hostile sizes, offsets, pointers and keys, on one
//! region.
#![no_main]

use libfuzzer_sys::fuzz_target;

// Beside the library's tests, which draw inputs from seeds: its calls take raw pointers.
#[path = "../../crates/capi/tests/capi/calls/mod.rs"]
mod calls;

fuzz_target!(|input: &[u8]| calls::play(input));
