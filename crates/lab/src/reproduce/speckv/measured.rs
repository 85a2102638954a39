//! §3.6: times of calls, batches, polls and pages.
//!
//! The paper's are those of its device and driver, which no model has. `cenote-lab bench memory` measures the
//! product's in shared memory; a run of `reproduce` reads no clock, so that its output is the same each time.

use crate::reproduce::row::Measured;
use crate::reproduce::{Context, Experiment};

pub const EXPERIMENT: Experiment = Experiment {
    id: "speckv.measured",
    title: "calls, batches, polls and pages",
    covers: &["speckv.s3-6-1", "speckv.s3-6-2"],
    is_quick: true,
    draws: false,
    run,
};

fn run(_: &Context) -> Vec<Measured> {
    const BENCH: [(&str, &str); 5] = [
        ("speckv.s3-6-1.api", "needs the paper's device and driver; `bench memory` times the product's calls"),
        (
            "speckv.s3-6-2.batching",
            "needs the paper's registers; `bench memory` times the product's calls of 1 to 64 blocks",
        ),
        ("speckv.s3-6-2.polling", "needs the paper's interrupts; `bench memory` times wake-ups beside polls"),
        ("speckv.s3-6-2.pages", "needs the paper's memory; `bench memory` times random rows in both kinds of pages"),
        (
            "speckv.s3-6-2.numa",
            "needs the paper's memory; `bench memory` times a bound thread where there are two nodes",
        ),
    ];
    BENCH.map(|(id, why)| Measured::not_testable(id, why)).into()
}
