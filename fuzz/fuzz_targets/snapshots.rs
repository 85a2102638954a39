//! Snapshots with changed, cut, doubled and swapped parts, restored into a fresh region.
#![no_main]

use cenote_fuzz::snapshots::{MEMORY_MAX, Snapshots};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static WORLD: Snapshots = Snapshots::new();
}

fuzz_target!(|input: &[u8]| WORLD.with(|world| world.run_within(MEMORY_MAX, input)));
