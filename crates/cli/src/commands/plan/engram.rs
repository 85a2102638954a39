//! `cenote plan engram`: n-gram tables, and the Engram paper's figures beside them.

use super::{setting, show};
use crate::args::PlanEngramArgs;
use crate::commands::engram::{config_of, read};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_engram::Stored;
use cenote_plan::engram::{EngramPlan, stored_format};
use cenote_plan::traffic::Workload;
use serde_json::Value;

pub fn run(args: &PlanEngramArgs) -> Result<(), Failure> {
    let (config, shown) = config_of(&args.tables)?;
    let format = match (args.row_format, args.tables.preset) {
        (Some(format), _) => format,
        (None, Some(_)) => Stored::F16,
        (None, None) => stored_format(&config),
    };
    let layers = match (args.layers, &args.tables.model_config) {
        (Some(layers), _) => layers,
        (None, Some(path)) => layers_of(&read(path)?).unwrap_or(Workload::PAPER.layers),
        (None, None) => Workload::PAPER.layers,
    };
    let plan = EngramPlan::new(&config, format, &setting(&args.setting, layers)).map_err(|error| {
        Failure::new(format!("{shown}: {error}")).hint("--row-format and --layers replace what the configuration says")
    })?;
    args.output.show(&plan, || text(&plan))
}

/// The number of layers, which the family's own keys do not state.
fn layers_of(json: &[u8]) -> Option<u64> {
    let root: Value = serde_json::from_slice(json).ok()?;
    let key = "num_hidden_layers";
    root.get("text_config").and_then(|inner| inner.get(key)).or_else(|| root.get(key))?.as_u64()
}

fn text(plan: &EngramPlan) -> String {
    show::sections(&[
        ("Tables", facts(plan)),
        ("Window and bandwidth (Table 1)", format!("{}\n\n{}", table_1(plan), windows(plan))),
        ("Placement", show::placements(&plan.placements)),
        ("Ranks (§4.3)", ranks(plan)),
        ("Scaling (Table 3)", table_3(plan)),
        ("Prices (Table 4)", show::prices(&plan.prices, &plan.paper_prices)),
        ("Costs of the paper's tables (Table 5)", table_5(plan)),
        ("Costs of these tables", show::costs(&plan.costs, plan.break_even_nodes)),
    ])
}

fn facts(plan: &EngramPlan) -> String {
    let row = format!("{} B ({})", plan.row_bytes, plan.format);
    output::facts(&[
        ("family", plan.family.to_owned()),
        ("row", row),
        ("rows per token and layer", plan.rows_per_token.to_string()),
        ("bytes per token and layer", show::bytes(plan.layer_bytes)),
        ("bytes per token", show::bytes(plan.token_bytes)),
        ("values", format!("{} billion", show::number(plan.parameters / 1e9))),
        ("size", show::bytes(plan.table_bytes)),
    ])
}

fn table_1(plan: &EngramPlan) -> String {
    let mut table = output::table(&["figure", "paper", "ours", "unit", "note"]);
    for figure in &plan.table_1 {
        table.add_row([
            figure.name.clone(),
            figure.paper.map_or_else(|| "-".to_owned(), show::number),
            if figure.ours.is_finite() { show::number(figure.ours) } else { "infinite".to_owned() },
            figure.unit.to_owned(),
            figure.why.clone(),
        ]);
    }
    table.to_string()
}

fn windows(plan: &EngramPlan) -> String {
    let mut table =
        output::table(&["layer", "rows", "size", "window", "a step's bytes by then", "bandwidth", "link: time (fits)"]);
    for row in &plan.tables {
        table.add_row([
            row.layer.to_string(),
            row.rows.to_string(),
            show::bytes(row.bytes),
            show::seconds(row.window_seconds),
            show::bytes(row.bytes_by_then),
            format!("{}/s", show::bytes(row.burst_bytes_per_second)),
            show::links(&row.links),
        ]);
    }
    format!("{table}\nTimes are at full bandwidth without latency: lower bounds.")
}

fn ranks(plan: &EngramPlan) -> String {
    let mut table = output::table(&["division", "a rank's step", "a rank", "the pool", "shortest window"]);
    for row in &plan.ranks {
        table.add_row([
            row.name.to_owned(),
            show::bytes(row.rank_step_bytes),
            format!("{}/s", show::bytes(row.rank_bytes_per_second)),
            format!("{}/s", show::bytes(row.pool_bytes_per_second)),
            show::seconds(row.window_seconds),
        ]);
    }
    table.to_string()
}

fn table_3(plan: &EngramPlan) -> String {
    let header = ["model", "DP", "nodes", "paper tokens/s", "paper ratio", "ours", "pool reads", "of the link"];
    let mut table = output::table(&header).keys(3);
    for row in &plan.table_3 {
        table.add_row([
            row.model.to_owned(),
            row.dp.to_string(),
            row.nodes.to_string(),
            row.tokens_per_second.to_string(),
            format!("{:.3}", row.paper_ratio),
            format!("{:.3}", row.node_ratio),
            format!("{}/s", show::bytes(row.pool_bytes_per_second)),
            format!("{:.3} %", 100.0 * row.link_share),
        ]);
    }
    let why = "The paper's throughputs are taken as those of one node. Ours is the ratio if the pool costs nothing: \
               replicas scale, and a second node does not slow the first. The pool's reads are a small share of \
               one link, so bandwidth does not explain the paper's loss; the paper names no cause.";
    format!("{table}\n{}", output::wrapped(why, ""))
}

fn table_5(plan: &EngramPlan) -> String {
    let header =
        ["parameters", "nodes", "paper local $", "paper pool $", "paper savings $", "local $", "pool $", "savings $"];
    let mut table = output::table(&header).keys(2);
    for row in &plan.table_5 {
        let (paper, ours) = (&row.paper, &row.ours);
        let dollars = [paper.local, paper.pool, paper.savings, ours.local, ours.pool, ours.savings].map(show::dollars);
        table.add_row([format!("{}B", row.billions), paper.nodes.to_string()].into_iter().chain(dollars));
    }
    let why = "A parameter has two bytes. A pool has one switch for 16 nodes, an adapter and a controller for each \
               node, and one copy in DRAM. With the paper's prices both are equal.";
    format!("{table}\n{}", output::wrapped(why, ""))
}
