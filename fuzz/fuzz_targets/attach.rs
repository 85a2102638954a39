//! Opens regions with hostile superblocks and control areas.
#![no_main]

use cenote_fuzz::regions::{Flushing, Kind, World, attach};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static WORLDS: Vec<World> = [Kind::OneHost, Kind::Bakery, Kind::Plain]
        .into_iter()
        .filter_map(|kind| World::new(kind, Flushing::Pretended))
        .collect();
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    WORLDS.with(|worlds| attach(&worlds[usize::from(*first) % worlds.len()], rest));
});
