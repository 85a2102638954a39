//! Hostile bytes: thousands of the fuzzer's inputs, drawn from seeds. `cargo xtask fuzz` searches
//! further, guided by coverage (docs/evidence/testing.md).

#[path = "../../../../fuzz/src/lib.rs"]
#[allow(dead_code, reason = "the fuzzer's targets use the rest")]
mod fuzz;

use cenote_base::prng::Prng;
use fuzz::{Flushing, Kind, World, attach};

/// The input of a seed, of 16 to 527 bytes.
fn input(seed: u64) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    let length = 16 + prng.below(512);
    (0..length).map(|_| prng.next_u64() as u8).collect()
}

#[allow(clippy::print_stderr, reason = "a failure names its seed")]
fn run_seeds(kind: Kind, flushing: Flushing, seeds: std::ops::Range<u64>) {
    let Some(mut world) = World::new(kind, flushing) else { return };
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| world.run(&input(seed)));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("{kind:?}: seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn one_host_survives_a_hostile_region() {
    run_seeds(Kind::OneHost, Flushing::Real, 0..1000);
}

#[test]
fn hosts_with_a_bakery_survive_a_hostile_region() {
    run_seeds(Kind::Bakery, Flushing::Pretended, 0..400);
    run_seeds(Kind::Bakery, Flushing::Real, 400..450);
}

#[test]
fn hosts_with_a_manager_survive_a_hostile_region() {
    run_seeds(Kind::Manager, Flushing::Pretended, 0..400);
    run_seeds(Kind::Manager, Flushing::Real, 400..450);
}

#[test]
fn hosts_of_the_plain_design_survive_a_hostile_region() {
    run_seeds(Kind::Plain, Flushing::Pretended, 0..400);
    run_seeds(Kind::Plain, Flushing::Real, 400..450);
}

#[test]
fn opening_survives_a_hostile_superblock() {
    for kind in [Kind::OneHost, Kind::Bakery, Kind::Plain] {
        let Some(world) = World::new(kind, Flushing::Pretended) else { continue };
        (0..1000).for_each(|seed| attach(&world, &input(seed)));
    }
}
