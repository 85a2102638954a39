//! `cenote engram info`, `check` and `drop`.

use super::load::explain;
use crate::args::{EngramCheckArgs, EngramDropArgs, EngramInfoArgs};
use cenote_base::Clock;
use cenote_base::units::ByteSize;
use cenote_console::failure::Failure;
use cenote_console::output::{self, table};
use cenote_tables::{Checked, ListedState, drop_table, list};
use serde::Serialize;
use std::process::ExitCode;

/// Exit code of `check` if a table is damaged.
const DAMAGED: u8 = 2;

pub fn info(args: &EngramInfoArgs) -> Result<(), Failure> {
    let pool = args.region.attach("engram info")?;
    let tables = list(&pool);
    args.output.show(&tables, || {
        if tables.is_empty() {
            return "The region has no tables. `cenote engram load` brings them.\n".to_owned();
        }
        let mut shown =
            table(&["table", "state", "format", "row", "rows", "bytes", "layer", "model", "changed", "digest"]);
        for listed in &tables {
            let of = |text: fn(&cenote_tables::Facts) -> String| listed.facts.as_ref().map_or_else(String::new, text);
            let state = match listed.state {
                ListedState::Sealed => "sealed".to_owned(),
                ListedState::Loading => format!("loading, {} of {} extents", listed.extents, listed.extents_total),
                ListedState::Interrupted => {
                    format!("interrupted at {} of {} extents", listed.extents, listed.extents_total)
                }
                ListedState::Dropping => "being dropped".to_owned(),
                ListedState::Damaged => "damaged record".to_owned(),
            };
            shown.add_row([
                listed.name.clone(),
                state,
                of(|facts| facts.format.clone()),
                of(|facts| format!("{} B", facts.row_bytes)),
                of(|facts| facts.rows.to_string()),
                ByteSize(listed.bytes).to_string(),
                of(|facts| facts.layer.map_or_else(String::new, |layer| layer.to_string())),
                of(|facts| facts.model.clone()),
                output::utc(listed.changed.saturating_mul(1_000_000)).split('.').next().unwrap_or_default().to_owned(),
                listed.digest.chars().take(16).collect(),
            ]);
        }
        shown.to_string()
    })
}

#[derive(Serialize)]
struct Report {
    table: String,
    #[serde(flatten)]
    checked: Checked,
}

pub fn check(args: &EngramCheckArgs) -> Result<ExitCode, Failure> {
    let pool = args.region.attach("engram check")?;
    let all = || list(&pool).into_iter().filter(|listed| listed.state == ListedState::Sealed).map(|listed| listed.name);
    let names: Vec<String> = if args.tables.is_empty() { all().collect() } else { args.tables.clone() };
    let bar = output::progress("checking", names.len() as u64);
    let mut reports = Vec::new();
    for name in names {
        let checked = cenote_tables::check(&pool, &name).map_err(explain)?;
        reports.push(Report { table: name, checked });
        bar.inc(1);
    }
    bar.finish_and_clear();
    args.output.show(&reports, || {
        let mut shown = table(&["table", "extents", "damaged", "digest"]);
        for Report { table, checked } in &reports {
            let digest = match (&checked.digest, checked.is_whole) {
                (Some(digest), true) => digest[..16].to_owned(),
                (Some(_), false) => "another one".to_owned(),
                (None, _) => String::new(),
            };
            shown.add_row([table.clone(), checked.extents.to_string(), checked.damaged.len().to_string(), digest]);
        }
        shown.to_string()
    })?;
    let whole = reports.iter().all(|report| report.checked.is_whole);
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

pub fn drop_all(args: &EngramDropArgs) -> Result<(), Failure> {
    let pool = args.region.attach("engram drop")?;
    for name in &args.tables {
        if !drop_table(&pool, name, Clock::system().after(args.wait)).map_err(explain)? {
            return Err(
                Failure::new(format!("the region has no table `{name}`")).hint("`cenote engram info` lists its tables")
            );
        }
    }
    Ok(())
}
