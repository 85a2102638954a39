//! `cenote-lab bench index`: lookups of prompts of 64 blocks that all hit.

use super::child::{Child, perform_together};
use super::regions::{Shape, fabrics, other_host};
use super::rows::{Row, Times, median};
use super::worker::{Job, PROMPT};
use super::{Part, Setting};
use cenote_console::args::DesignArg;
use cenote_console::failure::Failure;
use cenote_mem::Flush;

pub const PARTS: &[Part] = &[Part { name: "lookup", measure: lookups }, Part { name: "bare", measure: beside_bare }];

const COHERENT_GOAL_NS: f64 = 100.0;
const FLUSHED_GOAL_NS: f64 = 1000.0;
const BARE_GOAL: f64 = 3.0;
const SCALING_GOAL: f64 = 1.8;
const FEW: u64 = 10_048;
const BLOCK: u64 = 64;
/// Number of measurements with one process and with two.
const TURNS: u64 = 21;
/// Smallest slot, which determines the number of descriptors; the blocks here are smaller still.
const SMALLEST: u64 = 256;

fn lookups(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let rounds = setting.choose(10_000, 2_000);
    for (fabric, flush) in fabrics() {
        let region = setting.regions.make(&shape(setting, flush, FEW))?;
        let (mut owner, mut reader) = (Child::start(&region, 0)?, Child::start(&region, other_host(flush))?);
        owner.perform(&Job::Fill { block_bytes: BLOCK, first: 0, count: FEW })?;
        let [mine, theirs] = [1, 2].map(|seed| Job::Lookup { blocks: FEW, rounds, seed });
        let (mut one, mut two, mut ratios) = (Times::new(), Times::new(), Vec::new());
        // Alternating, so that changes of the processor's speed affect both.
        for _ in 0..setting.choose(TURNS, 3) {
            let alone = [owner.perform(&mine)?.remove(0), reader.perform(&theirs)?.remove(0)];
            let both = perform_together(&mut [(&mut owner, &mine), (&mut reader, &theirs)])?;
            let both: Vec<Times> = both.into_iter().map(|mut times| times.remove(0)).collect();
            // By medians, so that other load of the machine counts little.
            ratios.push(alone.iter().zip(&both).map(|(alone, both)| median(alone) / median(both)).sum::<f64>());
            one.extend(alone.concat());
            two.extend(both.concat());
        }
        let goal = if flush.is_coherent() { COHERENT_GOAL_NS } else { FLUSHED_GOAL_NS };
        rows.push(Row::nanoseconds(format!("{fabric}: lookup per block, {FEW} entries"), &one).at_most(goal));
        let name = format!("{fabric}: lookup per block, 2 processes at once, / 1 process");
        rows.push(Row::nanoseconds(name, &two).ratio_at_least(median(&ratios), SCALING_GOAL));
    }
    Ok(rows)
}

fn shape(setting: &Setting, flush: Flush, entries: u64) -> Shape {
    let chunk_bytes = if entries > 1 << 17 { 4 << 20 } else { 64 << 10 };
    // Control areas take three quarters as much again, and in the plain design one more line per
    // block.
    let quarters = if setting.regions.design == DesignArg::Plain { 16 } else { 8 };
    let bytes = entries * SMALLEST * quarters / 4 + (8 << 20);
    Shape { chunk_bytes, min_block_bytes: SMALLEST, ..Shape::of(flush, bytes) }
}

/// Against a table of the same form, which is the goal, and against a program's own table.
fn beside_bare(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let rounds = setting.choose(20_000, 4_000);
    for entries in [FEW, setting.choose(10_000_000, 1_000_000) / PROMPT * PROMPT] {
        let region = setting.regions.make(&shape(setting, Flush::None, entries))?;
        let (mut owner, mut reader) = (Child::start(&region, 0)?, Child::start(&region, 0)?);
        owner.perform(&Job::Fill { block_bytes: BLOCK, first: 0, count: entries })?;
        let times = reader.perform(&Job::LookupBesideBare { blocks: entries, rounds, seed: 4 })?;
        let ratio = |bare: &Times| median(&times[0]) / median(bare);
        let row = |name: &str, times| Row::nanoseconds(format!("{name} per block, {entries} entries"), times);
        rows.extend([
            row("lookup / bare table", &times[0]).ratio_at_most(ratio(&times[1]), BARE_GOAL),
            row("bare table of two levels", &times[1]),
            row("flat bare table; lookup / it", &times[2]).ratio(ratio(&times[2])),
        ]);
    }
    Ok(rows)
}
