//! Three hosts on one flushed region that turns hostile, with either lock between hosts and in the
//! plain design.
#![no_main]

use cenote_fuzz::regions::{Flushing, Kind, World};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

thread_local! {
    /// Without flushes and with them; with the bakery, with the manager, in the plain design.
    static WORLDS: RefCell<Vec<World>> = RefCell::new(
        [Flushing::Pretended, Flushing::Real]
            .into_iter()
            .flat_map(|flushing| [Kind::Bakery, Kind::Manager, Kind::Plain].map(|kind| World::new(kind, flushing)))
            .flatten()
            .collect(),
    );
}

fuzz_target!(|input: &[u8]| {
    let Some((&first, rest)) = input.split_first() else { return };
    // Most inputs use no flushes: flush instructions take most of the time of those that do.
    let flushing = usize::from(first >= 240);
    WORLDS.with_borrow_mut(|worlds| {
        // A processor without flush instructions has no such regions.
        if let Some(world) = worlds.get_mut(flushing * 3 + usize::from(first % 3)) {
            world.run(rest);
        }
    });
});
