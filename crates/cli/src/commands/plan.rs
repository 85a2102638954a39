//! `cenote plan`: what a model needs, before a machine is bought.

mod engram;
mod kv;
mod show;

use crate::args::{PlanCommands, SettingArgs};
use cenote_console::failure::Failure;
use cenote_plan::engram::Setting;
use cenote_plan::parallel::Parallel;
use cenote_plan::traffic::{Capacity, Link, Workload};

pub fn run(command: &PlanCommands) -> Result<(), Failure> {
    match command {
        PlanCommands::Engram(args) => engram::run(args),
        PlanCommands::Kv(args) => kv::run(args),
        PlanCommands::Rack { flags } => {
            let line = ["cenote-lab plan rack"].into_iter().chain(flags.iter().map(String::as_str));
            let line = line.collect::<Vec<_>>().join(" ");
            Err(Failure::new("`cenote` has no simulator, which plans racks").hint(format!("run `{line}`")))
        }
    }
}

fn setting(args: &SettingArgs, layers: u64) -> Setting {
    let links = if args.link.is_empty() { Link::of_paper() } else { args.link.clone() };
    Setting {
        workload: Workload {
            tokens_per_second: args.tokens_per_second,
            step_seconds: args.step_ms / 1e3,
            batch: args.batch,
            layers,
        },
        parallel: Parallel { dp: args.dp, tp: args.tp, pp: args.pp, nodes: args.nodes },
        links,
        prices: args.memory_prices.prices(),
        capacity: Capacity { host_bytes: args.host_memory.0 as f64, pool_bytes: args.pool_memory.0 as f64 },
        priced_nodes: args.priced_nodes.clone(),
    }
}
