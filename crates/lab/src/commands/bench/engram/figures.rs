//! Figures 3, 5 and 6 of the paper: latency of a layer's rows by batch, from local memory, from a CXL
//! pool into the processor and into a GPU, and over RDMA.
//!
//! Local memory is measured, with tables as large as this machine can hold. Links are modelled
//! (`fabrics.rs`). The window before layer 2 (§3.2) is beside each row.

use super::super::Setting;
use super::super::rows::{Row, Times, median};
use super::fabrics::{Fabric, gpu, niagara, niagara_64, rdma, rdma_aggregated, switched};
use super::gather::gatherer;
use super::pattern::{Pattern, check, table_in};
use super::{BATCHES, ROW_BYTES, ROWS_PER_TOKEN};
use cenote_base::prng::Prng;
use cenote_base::units::ByteSize;
use cenote_console::failure::Failure;
use cenote_engram::Preset;
use cenote_mem::Flush;
use cenote_plan::papers::table_1::LAYER_US;
use std::hint::black_box;
use std::time::Instant;

/// Share of the machine's free memory that a table may take.
const FREE_SHARE: f64 = 0.5;

fn free_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

pub fn measure(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut all = Vec::new();
    for (figures, (name, preset)) in [("Figures 3 and 5", Preset::ALL[0]), ("Figure 6", Preset::ALL[1])] {
        // 8 heads have the paper's rows each (§3.3).
        let whole = preset.rows() * 8 * ROW_BYTES;
        let most = (free_bytes() as f64 * FREE_SHARE) as u64;
        let bytes = whole.min(most).min(setting.choose(u64::MAX, 256 << 20)) / ROW_BYTES * ROW_BYTES;
        let table = table_in(setting, Flush::None, &Pattern::new("f16", ROW_BYTES, bytes / ROW_BYTES))?;
        let gatherer = gatherer(&table)?;
        for tokens in BATCHES {
            let count = tokens * ROWS_PER_TOKEN;
            let mut prng = Prng::new(tokens);
            let mut to = vec![0; (count * ROW_BYTES) as usize];
            let mut times = Times::new();
            for _ in 0..(setting.choose(400_000, 100_000) / count).clamp(40, 4000) {
                let rows: Vec<u64> = (0..count).map(|_| prng.below(table.facts().rows)).collect();
                let start = Instant::now();
                gatherer.gather(&table, &rows, black_box(&mut to))?;
                times.push(start.elapsed().as_nanos() as f64);
                check(&rows, ROW_BYTES, &to)?;
            }
            let of = format!("{figures}, {name}, {tokens} tokens");
            let size = if bytes < whole { format!(" of the paper's {}", ByteSize(whole)) } else { String::new() };
            let measured = median(&times);
            let local = format!("{of}: DRAM, {} threads, table of {}{size}", gatherer.threads(), ByteSize(bytes));
            all.push(Row::microseconds(local, &times).ratio(measured / 1e3 / LAYER_US));
            let server_gb_s = (count * ROW_BYTES) as f64 / measured;
            let links =
                [niagara(gatherer.threads()), niagara_64(), switched(), gpu(), rdma(), rdma_aggregated(server_gb_s)];
            all.extend(links.iter().map(|link| modelled(&of, link, count)));
        }
    }
    Ok(all)
}

/// A modelled row; its ratio is the part of the window before layer 2.
fn modelled(of: &str, link: &Fabric, rows: u64) -> Row {
    let time = link.gather_ns(rows, ROW_BYTES);
    Row::microseconds(format!("{of}: {}", link.name), &vec![time]).ratio(time / 1e3 / LAYER_US)
}
