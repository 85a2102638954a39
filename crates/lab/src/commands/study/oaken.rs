//! `cenote-lab study oaken`: when reads and engines of a batch overlap.

use crate::args::StudyOakenArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_serving_sim::hardware::Architecture;
use cenote_serving_sim::hardware::architecture::{LLAMA_2_70B, SPECKV_MODELS};
use cenote_serving_sim::hardware::oaken::{OAKEN_HBM, OAKEN_LPDDR, Oaken};
use serde::Serialize;

const BATCHES: [u32; 8] = [1, 4, 16, 32, 64, 96, 128, 256];
/// Cycles per second of Table 1.
const CYCLES: f64 = 1e9;

#[derive(Serialize)]
struct Row {
    model: &'static str,
    memory: &'static str,
    batch: u32,
    /// Microseconds of a layer's attention.
    read_us: f64,
    dequantize_us: f64,
    scheduled_us: f64,
    /// Over the slower of all reads and all engines together.
    over_bound: f64,
    /// A step with the schedule over one with that bound.
    step_over_bound: f64,
}

pub fn run(args: &StudyOakenArgs) -> Result<(), Failure> {
    let models: [&Architecture; 2] = [&SPECKV_MODELS[0], &LLAMA_2_70B];
    let mut rows = Vec::new();
    for model in models {
        for (memory, oaken) in [("HBM", OAKEN_HBM), ("LPDDR", OAKEN_LPDDR)] {
            let oaken = match args.lanes {
                Some(lanes) => {
                    let per_s = f64::from(lanes) * f64::from(oaken.cores) * CYCLES;
                    Oaken { quantize_per_s: per_s, dequantize_per_s: per_s, ..oaken }
                }
                None => oaken,
            };
            rows.extend(BATCHES.map(|batch| row(&oaken, (model, memory), batch, args.context)));
        }
    }
    args.output.show(&rows, || table(&rows))
}

fn row(oaken: &Oaken, (model, memory): (&Architecture, &'static str), batch: u32, context: u32) -> Row {
    let attention = oaken.attention(model, &vec![context; batch as usize]);
    let bound = oaken.context_ns(model) * f64::from(batch) * f64::from(context);
    let scheduled = oaken.scheduled_context_ns(model, batch, context) * f64::from(batch) * f64::from(context);
    // A step of answers is bound by memory: weights, and context.
    let weights = oaken.cost_model(model, f64::from(batch)).weights_ps as f64 / 1e3;
    Row {
        model: model.name,
        memory,
        batch,
        read_us: attention.read_ns / 1e3,
        dequantize_us: attention.dequantize_ns / 1e3,
        scheduled_us: attention.ns / 1e3,
        over_bound: scheduled / bound,
        step_over_bound: (weights + scheduled) / (weights + bound),
    }
}

fn table(rows: &[Row]) -> String {
    let header = ["model", "memory", "batch", "reads", "a core's engine", "scheduled", "over the bound", "step"];
    let mut table = output::table(&header).keys(3);
    for row in rows {
        table.add_row([
            row.model.to_owned(),
            row.memory.to_owned(),
            row.batch.to_string(),
            format!("{:.1} us", row.read_us),
            format!("{:.1} us", row.dequantize_us),
            format!("{:.1} us", row.scheduled_us),
            format!("{:.2}", row.over_bound),
            format!("{:.2}", row.step_over_bound),
        ]);
    }
    let why = "One token of each request, one layer. The bound is the slower of all reads and all engines together; \
               the step counts weights and attention.";
    format!("{table}\n{}", output::wrapped(why, ""))
}
