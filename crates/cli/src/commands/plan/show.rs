//! Parts that both plans print.

use cenote_console::output;
pub use cenote_console::output::quantity::{bytes, dollars, number, seconds};
use cenote_plan::cost::{Cost, Prices};
use cenote_plan::traffic::{Fit, Placement};

pub const fn yes(fact: bool) -> &'static str {
    if fact { "yes" } else { "no" }
}

pub fn links(fits: &[Fit]) -> String {
    let texts: Vec<String> =
        fits.iter().map(|fit| format!("{}: {} ({})", fit.link, seconds(fit.seconds), yes(fit.fits))).collect();
    texts.join(", ")
}

pub fn placements(rows: &[Placement]) -> String {
    let mut table = output::table(&["a copy in", "copies", "memory of a host", "memory of the pool", "fits"]);
    for row in rows {
        table.add_row([
            row.name.to_owned(),
            row.copies.to_string(),
            bytes(row.host_bytes),
            bytes(row.pool_bytes),
            yes(row.fits).to_owned(),
        ]);
    }
    table.to_string()
}

pub fn prices(used: &Prices, paper: &Prices) -> String {
    let mut table = output::table(&["part", "paper $", "used $"]);
    for (part, paper, used) in [
        ("DRAM, a GB", paper.dram_gb, used.dram_gb),
        ("CXL switch", paper.switch, used.switch),
        ("adapter of a host", paper.adapter, used.adapter),
        ("controller, one per host", paper.controller, used.controller),
    ] {
        table.add_row([part.to_owned(), format!("{paper:.2}"), format!("{used:.2}")]);
    }
    table.to_string()
}

pub fn costs(costs: &[Cost], break_even_nodes: Option<u32>) -> String {
    let mut table = output::table(&["nodes", "local $", "pool $", "savings $"]);
    for cost in costs {
        table.add_row([cost.nodes.to_string(), dollars(cost.local), dollars(cost.pool), dollars(cost.savings)]);
    }
    let even = match break_even_nodes {
        Some(nodes) => format!("A pool is cheaper from {nodes} nodes on."),
        None => "A pool is never cheaper: the memory costs less than a host's adapter and controller.".to_owned(),
    };
    format!("{table}\n{even}")
}

/// Parts of a plan under titles.
pub fn sections(sections: &[(&str, String)]) -> String {
    let texts: Vec<String> = sections.iter().map(|(title, text)| format!("{title}\n\n{text}")).collect();
    texts.join("\n\n")
}
