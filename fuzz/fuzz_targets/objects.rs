//! An object store below L4 whose answers are hostile.
#![no_main]

use cenote_fuzz::cold::{BUCKET_MEMORY_MAX, Bucket};
use cenote_fuzz::memory::within;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static WORLD: Bucket = Bucket::new();
}

fuzz_target!(|input: &[u8]| WORLD.with(|world| within(BUCKET_MEMORY_MAX, || world.run(input))));
