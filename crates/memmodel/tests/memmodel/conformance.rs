//! The model's fabric and host memory meet the requirements of real ones.

use cenote_mem::conformance;
use cenote_memmodel::{Rates, World};

fn world(seed: u64) -> World {
    let rates = Rates::of_seed(seed, false);
    World::new(seed, 2, conformance::REGION_BYTES, rates, u64::MAX)
}

#[test]
fn the_models_fabric_conforms() {
    for seed in 0..64 {
        let world = world(seed);
        conformance::fabric(&world.scene_setter(0).fabric(), &world.scene_setter(1).fabric());
    }
}

#[test]
fn the_models_fabric_refuses_bad_offsets() {
    conformance::bad_offsets_panic(&world(1).scene_setter(0).fabric());
}

#[test]
fn the_models_host_memory_conforms() {
    for seed in 0..64 {
        let world = world(seed);
        let process = || world.scene_setter(0).host_memory(conformance::HOST_SPEC);
        conformance::host_local(&process(), &process());
    }
}
