//! A pool on one host with a region that turns hostile before, between and during its calls.
#![no_main]

use cenote_fuzz::regions::{Flushing, Kind, World};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

thread_local! {
    static WORLD: RefCell<World> =
        RefCell::new(World::new(Kind::OneHost, Flushing::Real).expect("every processor can be one host"));
}

fuzz_target!(|input: &[u8]| WORLD.with_borrow_mut(|world| world.run(input)));
