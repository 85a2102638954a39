//! `cenote-lab plan rack`: the cheapest rack for a load and a goal, by simulation.

use crate::args::{PlanRackArgs, StatisticArg};
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output::{self, quantity};
use cenote_plan::cost::RackPrices;
use cenote_serving_sim::hardware::GPUS;
use cenote_serving_sim::model::MODELS;
use cenote_serving_sim::provision::{Engine, Found, Goal, Memory, ProvisionError, Racks, Search, Statistic};
use cenote_serving_sim::serving::ConfigError;
use cenote_serving_sim::workload::{Synthetic, TraceError};
use cenote_serving_sim::{ModelShape, Workload};
use serde::Serialize;
use std::path::Path;

/// Requests of a drawn load.
const DRAWN: u64 = 2_000;
/// Tokens of an engine's block.
const ENGINE_BLOCK: u32 = 16;

#[derive(Serialize)]
struct Plan {
    model: &'static str,
    gpu: &'static str,
    gpus_per_engine: u32,
    requests: usize,
    goal: Goal,
    prices: RackPrices,
    /// Racks that meet the goal, the cheapest first, one of each kind of memory.
    racks: Vec<Rack>,
    /// Kinds of memory with which no rack meets it.
    missing: Vec<Memory>,
    /// Kinds of memory of which no size of the flags holds the largest request.
    too_small: Vec<Memory>,
}

#[derive(Serialize)]
struct Rack {
    gpus_per_host: u32,
    gpus: u32,
    /// Dollars for memory and what connects it.
    memory_cost: f64,
    #[serde(flatten)]
    found: Found,
}

pub fn run(args: &PlanRackArgs) -> Result<(), Failure> {
    if let Some(odd) = args.gpus_per_host.iter().find(|gpus| !gpus.is_multiple_of(args.tp)) {
        return Err(Failure::new(format!("--gpus-per-host {odd}: no multiple of --tp {}", args.tp)));
    }
    let memory = args.memory_prices.prices();
    let prices = RackPrices { memory, gpu: args.gpu_price, host: args.host_price, card: args.card_price };
    prices.check().map_err(Failure::from)?;
    let load = load(args)?;
    let mut sizes: Vec<u64> = args.memory.iter().map(|size| size.0).collect();
    sizes.sort_unstable();
    let goal = Goal { statistic: statistic(args.statistic), ttft_ms: args.ttft_ms };
    let engine = engine(args, mean_tokens(&load))?;
    let memory_cost = |kind: Memory, bytes: u64, hosts: u32| match kind {
        Memory::None => 0.0,
        Memory::Dram => prices.memory.local(bytes as f64, hosts),
        Memory::Tcp | Memory::Mesh => prices.mesh(bytes as f64, hosts),
        Memory::Rdma => prices.rdma(bytes as f64, hosts),
        Memory::Cxl => prices.memory.pool(bytes as f64, hosts),
    };
    let spinner = output::spinner("simulating racks");
    let mut runs = 0;
    let mut racks: Vec<Rack> = Vec::new();
    let mut nearest_ms = f64::INFINITY;
    let mut too_small: Option<Vec<(Memory, ConfigError)>> = None;
    for &gpus_per_host in &args.gpus_per_host {
        let search = Search {
            engine,
            engines_per_host: gpus_per_host / args.tp,
            hosts_max: args.hosts_max,
            sizes: sizes.clone(),
            max_num_seqs: args.max_num_seqs,
            max_num_batched_tokens: args.max_num_batched_tokens,
            goal,
        };
        let cost = |kind: Memory, bytes: u64, hosts: u32| {
            prices.machines(hosts, gpus_per_host) + memory_cost(kind, bytes, hosts)
        };
        let found = search.run(&load, cost, || {
            runs += 1;
            spinner.set_message(format!("simulating racks: {runs}"));
        });
        let Racks { found, nearest_ms: nearest, too_small: small } = found.map_err(|error| hinted(error, args))?;
        racks.extend(found.into_iter().map(|found| Rack {
            gpus_per_host,
            gpus: found.hosts * gpus_per_host,
            memory_cost: memory_cost(found.memory, found.bytes, found.hosts),
            found,
        }));
        nearest_ms = nearest_ms.min(nearest);
        // A size that some host can use is not too small.
        match &mut too_small {
            Some(known) => known.retain(|(kind, _)| small.iter().any(|(other, _)| kind == other)),
            None => too_small = Some(small),
        }
    }
    spinner.finish_and_clear();
    racks.sort_by(|a, b| a.found.cost.total_cmp(&b.found.cost));
    let mut kinds = Vec::new();
    racks.retain(|rack| {
        let is_first = !kinds.contains(&rack.found.memory);
        kinds.push(rack.found.memory);
        is_first
    });
    let mut too_small = too_small.unwrap_or_default();
    if racks.is_empty() {
        // A larger size might meet the goal.
        let error = match too_small.pop() {
            Some((_, error)) => error.into(),
            None => ProvisionError::NoneMeets { hosts_max: args.hosts_max, best_ms: nearest_ms, goal_ms: goal.ttft_ms },
        };
        return Err(hinted(error, args));
    }
    let too_small: Vec<Memory> = too_small.into_iter().map(|(kind, _)| kind).collect();
    let plan = Plan {
        model: engine.shape.name,
        gpu: engine.gpu.device.name,
        gpus_per_engine: args.tp,
        requests: load.requests().len(),
        goal,
        prices,
        missing: Memory::ALL.into_iter().filter(|kind| !kinds.contains(kind) && !too_small.contains(kind)).collect(),
        too_small,
        racks,
    };
    args.output.show(&plan, || text(&plan))
}

fn hinted(error: ProvisionError, args: &PlanRackArgs) -> Failure {
    let hint = match &error {
        ProvisionError::NoRoom { .. } => "give a larger --tp, or a --gpu with more memory",
        ProvisionError::Uneven { .. } => "give a --tp that divides the heads",
        ProvisionError::NoneMeets { .. } => {
            "raise --ttft-ms or --hosts-max; a prompt alone takes its computing time on any rack"
        }
        ProvisionError::Config(ConfigError::TooSmall { .. }) => "give a larger --memory",
        ProvisionError::Config(ConfigError::TooLate { .. }) => "give a higher --rate or --speed, or fewer --requests",
        ProvisionError::Config(_) if args.gpus_per_host.iter().any(|gpus| *gpus > args.tp) => {
            "a request exceeds an engine's memory: give a larger --tp"
        }
        ProvisionError::Config(_) => "a request exceeds an engine's memory: give a --gpu with more",
    };
    Failure::from(error).hint(hint)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    input::bytes(path).map_err(|error| Failure::new(format!("{}: cannot read the file: {error}", path.display())))
}

const fn statistic(argument: StatisticArg) -> Statistic {
    match argument {
        StatisticArg::Mean => Statistic::Mean,
        StatisticArg::P50 => Statistic::P50,
        StatisticArg::P99 => Statistic::P99,
    }
}

/// Tokens of a request, its answer included, over which windows are averaged.
fn mean_tokens(load: &Workload) -> u64 {
    let tokens =
        load.requests().iter().map(|request| u64::from(request.input_tokens) + u64::from(request.output_tokens));
    tokens.sum::<u64>() / load.requests().len().max(1) as u64
}

fn engine(args: &PlanRackArgs, tokens: u64) -> Result<Engine, Failure> {
    let gpu = GPUS.into_iter().find(|gpu| gpu.device.name == args.gpu).ok_or_else(|| {
        let names: Vec<&str> = GPUS.iter().map(|gpu| gpu.device.name).collect();
        Failure::new(format!("--gpu {}: there are {}", args.gpu, names.join(", ")))
    })?;
    let shape = match &args.model_config {
        Some(path) => ModelShape::of_config(&read(path)?, tokens)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?,
        None => *ModelShape::named(&args.model).ok_or_else(|| {
            let names: Vec<&str> = MODELS.iter().map(|shape| shape.name).collect();
            Failure::new(format!("--model {}: there are {}", args.model, names.join(", ")))
                .hint("--model-config FILE takes other models")
        })?,
    };
    Ok(Engine { gpu, gpus: args.tp, shape })
}

fn load(args: &PlanRackArgs) -> Result<Workload, Failure> {
    let requests = args.requests.map(|requests| requests as usize);
    let mut load = match (&args.trace, args.rate) {
        (Some(path), _) => trace(args, path)?,
        (None, rate) => {
            let rate = rate.unwrap_or(1.0);
            let drawn = Synthetic::tract('A', requests.unwrap_or(DRAWN as usize), rate).expect("there is A");
            Synthetic { block_tokens: args.block_tokens.unwrap_or(ENGINE_BLOCK), ..drawn }.draw(args.seed)
        }
    };
    if let Some(requests) = requests {
        load.truncate(requests);
    }
    load.speed_up(args.speed);
    Ok(load)
}

fn trace(args: &PlanRackArgs, path: &Path) -> Result<Workload, Failure> {
    let wrong = |error: String| Failure::new(format!("{}: {error}", path.display()));
    let format = args.sessions.format(args.format, path, args.seed);
    let block_tokens = format.block_tokens().unwrap_or(ENGINE_BLOCK);
    let read = format.read(input::open(path).map_err(wrong)?, args.block_tokens.unwrap_or(block_tokens), false);
    let read = read.map_err(|error| match &error {
        TraceError::Bad(_) => wrong(error.to_string()).hint("no line of it is a request; is --format right?"),
        _ => wrong(error.to_string()),
    })?;
    read.remarks().iter().for_each(|line| output::say(&format!("{}: {line}", path.display())));
    // Found blocks would count as more or fewer tokens than they have, and the plan would be another.
    match read.odd_blocks() {
        Some(odd) if 2 * read.odd_lengths > read.workload.requests().len() => {
            return Err(wrong(odd).hint("--block-tokens says how many tokens a block of the trace has"));
        }
        odd => odd.iter().for_each(|odd| output::say(&format!("{}: {odd}", path.display()))),
    }
    Ok(read.workload)
}

fn name(memory: Memory) -> &'static str {
    match memory {
        Memory::None => "engines alone",
        Memory::Dram => "DRAM of each host",
        Memory::Tcp => "hosts that read each other by TCP",
        Memory::Mesh => "hosts that read each other by RDMA",
        Memory::Rdma => "pool over RDMA",
        Memory::Cxl => "pool behind CXL",
    }
}

fn text(plan: &Plan) -> String {
    let mut table = output::table(&[
        "KV lies in",
        "size",
        "hosts",
        "GPUs",
        "TTFT p50",
        "p99",
        "hit rate",
        "tokens/s",
        "memory $",
        "rack $",
    ]);
    for Rack { gpus, memory_cost, found, .. } in &plan.racks {
        let Found { memory, bytes, hosts, cost, outcome } = found;
        table.add_row([
            name(*memory).to_owned(),
            if *memory == Memory::None { "-".to_owned() } else { quantity::bytes(*bytes as f64) },
            hosts.to_string(),
            gpus.to_string(),
            quantity::seconds(outcome.ttft_p50_ms / 1e3),
            quantity::seconds(outcome.ttft_p99_ms / 1e3),
            format!("{:.1} %", 100.0 * outcome.hit_rate),
            format!("{:.0}", outcome.throughput_tokens_per_s),
            quantity::dollars(*memory_cost),
            quantity::dollars(*cost),
        ]);
    }
    let best = &plan.racks[0].found;
    let goal = quantity::seconds(plan.goal.ttft_ms / 1e3);
    let statistic = match plan.goal.statistic {
        Statistic::Mean => "the mean",
        Statistic::P50 => "the median",
        Statistic::P99 => "99 %",
    };
    let of = |kinds: &[Memory], before: &str, after: &str| {
        let names: Vec<&str> = kinds.iter().map(|kind| name(*kind)).collect();
        if names.is_empty() { String::new() } else { format!("\n{before} {} {after}", names.join(" or in ")) }
    };
    let missing = of(&plan.missing, "No rack with KV in", "meets the goal.")
        + &of(&plan.too_small, "No --memory holds the largest request in", "(left out).");
    format!(
        "{} requests, {} on {} x {}; {statistic} of the times to the first token within {goal}.\n\
         The cheapest rack: {} hosts, KV in {}.\n\n{table}{missing}\n\
         Simulated, with prices that are assumptions but for memory's (--help).",
        plan.requests,
        plan.model,
        plan.gpus_per_engine,
        plan.gpu,
        best.hosts,
        name(best.memory),
    )
}
