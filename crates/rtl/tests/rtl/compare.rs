//! Every module against the Rust codecs, bit by bit.

use cenote_rtl::checks::CHECKS;
use cenote_rtl::model::is_available;

/// Seeds of each check.
const SEEDS: u64 = if cfg!(feature = "whole") { 3 } else { 1 };
/// What scales the work of a check.
const ROUNDS: u64 = if cfg!(feature = "whole") { 4 } else { 2 };

fn passes(name: &str) {
    if !is_available() {
        cenote_base::testing::skip("Verilator is not installed, so the RTL is not compared with the codecs");
        return;
    }
    for seed in 1..=SEEDS {
        let check = cenote_rtl::checks::by_name(name);
        check(seed, ROUNDS).unwrap_or_else(|failure| panic!("{name}, seed {seed}: {failure}"));
    }
}

macro_rules! checks {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            passes(stringify!($name));
        })*

        #[test]
        fn every_check_is_a_test() {
            let tests = [$(stringify!($name)),*].into_iter().chain(cfg!(feature = "whole").then_some("cache_system"));
            assert!(CHECKS.iter().map(|(name, _)| *name).eq(tests));
        }
    };
}

checks! {
    float
    latency
    compact
    byte_pack
    speckv_encode
    speckv_decode
    speckv_forged
    speckv_reset
    qpack_encode
    qpack_decode
    qpack_reset
    oaken_encode
    oaken_decode
    oaken_reset
    oaken_stream
    oaken_store
    oaken_engine
    atu
    atu_flush
    dma_read
    dma_write
    service_meter
    wrr_weights
    channel_front
    frame_write
    frame_read
    registers
    cache_engine
    memory_path
}

/// All engines at their memory. `cargo xtask rtl` runs it.
#[cfg(feature = "whole")]
#[test]
fn cache_system() {
    passes("cache_system");
}

/// A change of a latency must change the file that models of the hardware read.
#[test]
fn measured_cycles_are_those_of_the_file() {
    if !is_available() {
        cenote_base::testing::skip("Verilator is not installed, so no cycles are measured");
        return;
    }
    let measured = cenote_rtl::cycles::measure().unwrap_or_else(|failure| panic!("{failure}"));
    let advice = "`cargo run -p cenote-rtl -- cycles > rtl/cycles.json` writes the file again";
    assert_eq!(cenote_rtl::cycles::json(&measured), include_str!("../../../../rtl/cycles.json"), "{advice}");
}

/// The table in the documentation and the heads of modules have the cycles of the file, whose test is
/// above.
#[test]
fn the_cycles_are_those_of_the_documentation() {
    let text = include_str!("../../../../rtl/cycles.json");
    let line = |line: &str| {
        let (name, cycles) = line.trim().trim_end_matches(',').split_once("\": ")?;
        Some((name.trim_start_matches('"').to_owned(), cycles.parse().ok()?))
    };
    let measured: cenote_rtl::cycles::Measured = text.lines().filter_map(line).collect();
    cenote_rtl::latency::engines(&measured).unwrap_or_else(|failure| panic!("{failure}"));
    let table = cenote_rtl::cycles::table(&measured);
    let advice = "`cargo run -p cenote-rtl -- table` prints it";
    assert!(
        include_str!("../../../../rtl/README.md").contains(&table),
        "rtl/README.md lacks this table; {advice}\n{table}"
    );
}

/// The picture in the documentation shows the module as it is.
#[test]
fn the_waveform_is_the_one_of_the_file() {
    if !is_available() {
        cenote_base::testing::skip("Verilator is not installed, so no waveform is drawn");
        return;
    }
    let drawn = cenote_rtl::waveform::svg().unwrap_or_else(|failure| panic!("{failure}"));
    let advice = "`cargo run -p cenote-rtl -- waveform > rtl/waveform.svg` draws it again";
    assert!(drawn == include_str!("../../../../rtl/waveform.svg"), "{advice}");
}
