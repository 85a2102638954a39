//! Index files and the identity of a directory of L4 that are changed, cut, swapped and renamed.
#![no_main]

use cenote_fuzz::cold::{Aim, Directory, MEMORY_MAX};
use cenote_fuzz::memory::within;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static WORLD: Directory = Directory::new();
}

fuzz_target!(|input: &[u8]| WORLD.with(|world| within(MEMORY_MAX, || world.run(Aim::Indexes, input))));
