//! `cenote-lab study scale`: thousands of hosts in racks with a region, hosts that read each other's regions
//! or an object store, and how the simulator's own time grows.

use crate::args::{ScaleMemory, StudyScaleArgs};
use crate::commands::sim::{peak_memory_bytes, processor_time};
use cenote_base::units::ByteSize;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_serving_sim::hardware::h200::H200;
use cenote_serving_sim::hardware::objects::S3;
use cenote_serving_sim::hardware::rdma::{CX_100G, TCP_100G};
use cenote_serving_sim::model::CXL;
use cenote_serving_sim::provision::Engine;
use cenote_serving_sim::serving::{ConfigError, Pool};
use cenote_serving_sim::workload::{AGENTIC_BLOCK_TOKENS, Sessions, Synthetic, TraceFormat};
use cenote_serving_sim::{Hosts, ModelShape, Network, NetworkReads, Setup, Workload, simulate_on_network};
use serde::Serialize;

/// Tokens of a block: of a size that keeps the index of a hundred racks in memory.
const BLOCK_TOKENS: u32 = 128;

#[derive(Serialize)]
struct Row {
    memory: ScaleMemory,
    hosts: u32,
    racks: usize,
    requests: usize,
    hit_rate: f64,
    ttft_p50_ms: f64,
    ttft_p99_ms: f64,
    /// In steady state.
    tokens_per_s: f64,
    /// Simulated seconds.
    makespan_s: f64,
    /// What hosts read over their network.
    fetched: NetworkReads,
    events: u64,
    /// Processor time of the run, in seconds, on one core.
    core_s: f64,
    events_per_core_s: f64,
    /// Peak memory of the process so far.
    memory_bytes: Option<u64>,
}

pub fn run(args: &StudyScaleArgs) -> Result<(), Failure> {
    let mut hosts = args.hosts.clone();
    hosts.sort_unstable();
    let bar = output::progress(
        "simulating",
        args.memory.len() as u64 * hosts.iter().map(|&hosts| u64::from(hosts * args.requests)).sum::<u64>(),
    );
    let mut rows: Vec<Row> = Vec::new();
    for (hosts, memory) in hosts.into_iter().flat_map(|hosts| args.memory.iter().map(move |memory| (hosts, *memory))) {
        let racks = hosts.div_ceil(args.hosts_per_rack) as usize;
        let load = load(args, hosts, racks)?;
        let setup = setup(args, memory, hosts, racks)?;
        let (done, begin) = (bar.position(), processor_time());
        let run = simulate_on_network(&setup, &load, &mut |answered| bar.set_position(done + answered));
        let (outcome, fetched) = run.map_err(hinted)?;
        let core_s = (processor_time() - begin).as_secs_f64();
        rows.push(Row {
            memory,
            hosts,
            racks,
            requests: load.requests().len(),
            hit_rate: outcome.hit_rate,
            ttft_p50_ms: outcome.ttft_p50_ms,
            ttft_p99_ms: outcome.ttft_p99_ms,
            tokens_per_s: outcome.steady_tokens_per_s,
            makespan_s: outcome.makespan_s,
            fetched,
            events: outcome.events,
            core_s,
            events_per_core_s: outcome.events as f64 / core_s.max(1e-9),
            memory_bytes: peak_memory_bytes(),
        });
    }
    bar.finish_and_clear();
    args.output.show(&rows, || table(&rows))
}

fn hinted(error: ConfigError) -> Failure {
    let hint = match &error {
        ConfigError::TooSmall { .. } => "give a larger --pool",
        ConfigError::TooManyRacks { .. } => "give more --hosts-per-rack",
        _ => "give other flags",
    };
    Failure::from(error).hint(hint)
}

/// TraCT's workload A, or sessions; as many requests and groups as hosts and racks take.
fn load(args: &StudyScaleArgs, hosts: u32, racks: usize) -> Result<Workload, Failure> {
    if let Some(path) = &args.trace {
        let failed = |fact: String| Failure::new(format!("{}: {fact}", path.display()));
        let each = args.sessions.sessions(args.seed);
        let count = each.count.unwrap_or(1).saturating_mul(hosts as usize);
        let sessions = Sessions { count: Some(count), gap: each.gap / u64::from(hosts), ..each };
        let file = input::open(path).map_err(failed)?;
        let read = TraceFormat::Agentic(sessions).read(file, AGENTIC_BLOCK_TOKENS, false);
        let read = read.map_err(|error| failed(error.to_string()))?;
        read.remarks().iter().for_each(|line| output::say(&format!("{}: {line}", path.display())));
        return Ok(read.workload);
    }
    let requests = hosts as usize * args.requests as usize;
    let drawn = Synthetic::tract('A', requests, args.rate * f64::from(hosts)).expect("there is A");
    Ok(Synthetic { groups: args.groups * racks as u64, block_tokens: BLOCK_TOKENS, ..drawn }.draw(args.seed))
}

fn setup(args: &StudyScaleArgs, memory: ScaleMemory, hosts: u32, racks: usize) -> Result<Setup, Failure> {
    let shape = *ModelShape::named("llama-8b").expect("a preset");
    let alone = Engine { gpu: H200, gpus: 1, shape }.alone(256, 8_192)?;
    let count = hosts.min(args.hosts_per_rack);
    let of_rack = Hosts { racks, ..Hosts::new(count as usize) };
    let network = |network| Hosts { network: Some(network), ..of_rack };
    let of_memory = match memory {
        ScaleMemory::Cxl => Hosts { has_ports: true, ..of_rack },
        ScaleMemory::Rdma => network(Network::Mesh(CX_100G.card())),
        ScaleMemory::Tcp => network(Network::Mesh(TCP_100G.card())),
        ScaleMemory::Objects => network(Network::Objects(args.object_link.unwrap_or(S3))),
        ScaleMemory::Alone => Hosts { racks: hosts as usize, ..Hosts::new(1) },
    };
    let pool = match memory {
        ScaleMemory::Cxl => Pool { bytes: Some(args.pool.0), link: CXL },
        _ => Pool { bytes: Some(args.pool.0 / u64::from(count)), link: alone.swap_link },
    };
    Ok(Setup { instances: hosts, shared: Some(pool), hosts: Some(of_memory), ..alone })
}

fn table(rows: &[Row]) -> String {
    let mut table = output::table(&[
        "hosts",
        "racks",
        "KV lies in",
        "requests",
        "hit rate",
        "TTFT p50",
        "p99",
        "tokens/s a host",
        "blocks fetched",
        "declined",
        "a host sent at most",
        "events",
        "one core",
        "million events/s",
        "memory",
    ]);
    for row in rows {
        table.add_row([
            row.hosts.to_string(),
            row.racks.to_string(),
            name(row.memory).to_owned(),
            row.requests.to_string(),
            format!("{:.1} %", 100.0 * row.hit_rate),
            format!("{:.0} ms", row.ttft_p50_ms),
            format!("{:.0} ms", row.ttft_p99_ms),
            format!("{:.0}", row.tokens_per_s / f64::from(row.hosts)),
            row.fetched.read.to_string(),
            row.fetched.declined.to_string(),
            ByteSize(row.fetched.sent_bytes_max).to_string(),
            row.events.to_string(),
            format!("{:.2} s", row.core_s),
            format!("{:.1}", row.events_per_core_s / 1e6),
            row.memory_bytes.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string()),
        ]);
    }
    table.to_string()
}

const fn name(memory: ScaleMemory) -> &'static str {
    match memory {
        ScaleMemory::Cxl => "CXL rack",
        ScaleMemory::Rdma => "RDMA mesh",
        ScaleMemory::Tcp => "TCP mesh",
        ScaleMemory::Objects => "object store",
        ScaleMemory::Alone => "each host",
    }
}
