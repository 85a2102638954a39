//! Three hosts on one flushed region that turns hostile, under either lock between hosts.
#![no_main]

use cenote_fuzz::{Kind, World};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

thread_local! {
    static WORLDS: RefCell<Vec<World>> =
        RefCell::new([Kind::Bakery, Kind::Manager].into_iter().filter_map(World::new).collect());
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    WORLDS.with_borrow_mut(|worlds| {
        // A processor without flush instructions has no such regions.
        let count = worlds.len().max(1);
        if let Some(world) = worlds.get_mut(usize::from(*first) % count) {
            world.run(rest);
        }
    });
});
