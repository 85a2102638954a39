//! Files of n-gram tables that are hostile when they are loaded, and records of tables that are hostile when they are opened.
#![no_main]

use cenote_fuzz::memory::within;
use cenote_fuzz::tables::{MEMORY_MAX, Tables};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static WORLD: Tables = Tables::new();
}

fuzz_target!(|input: &[u8]| WORLD.with(|world| within(MEMORY_MAX, || world.run(input))));
