//! A peer's region whose bytes change on their way to a reader.
#![no_main]

use cenote_fuzz::answers::{Answers, MEMORY_MAX};
use cenote_fuzz::memory::within;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static WORLD: Answers = Answers::new();
}

fuzz_target!(|input: &[u8]| WORLD.with(|world| within(MEMORY_MAX, || world.run(input))));
