//! `cenote pool diff`: the reason that two engines share nothing.

use super::pool::find_namespace;
use crate::args::PoolDiffArgs;
use cenote_console::facts::{self, CHUNKS_MIN, Facts};
use cenote_console::failure::Failure;
use cenote_pool::NamespaceInfo;
use serde::Serialize;
use std::cmp::Reverse;
use std::process::ExitCode;

/// Digits of a fingerprint, as `pool info` prints them.
const DIGITS: usize = 12;

#[derive(Serialize)]
struct Comparison {
    one: Named,
    other: Named,
    /// `None`: one of them has no recorded facts.
    differences: Option<Vec<Difference>>,
}

#[derive(Serialize)]
struct Named {
    id: u16,
    label: String,
    fingerprint: String,
    has_facts: bool,
}

/// A fact with different values in two namespaces; `None`: one of them does not have it.
#[derive(Serialize)]
struct Difference {
    fact: String,
    one: Option<String>,
    other: Option<String>,
}

pub fn run(args: &PoolDiffArgs) -> Result<ExitCode, Failure> {
    let source = args.region.source()?;
    let mut rows = args.region.inspect()?.namespaces();
    // Rows are assigned in order and never freed.
    rows.sort_by_key(|row| Reverse(row.id.0));
    let one = match &args.one {
        Some(name) => find_namespace(source, &rows, name)?,
        None => rows.first().ok_or_else(|| nothing_to_compare(source, 0))?,
    };
    let others: Vec<&NamespaceInfo> = match &args.other {
        Some(name) => vec![find_namespace(source, &rows, name)?],
        None => rows.iter().filter(|row| row.id != one.id).collect(),
    };
    if others.is_empty() {
        return Err(nothing_to_compare(source, rows.len()));
    }
    let pool = args.region.attach("diff")?;
    let read = |row: &NamespaceInfo| facts::read(&pool, &row.fingerprint).map_err(|error| args.region.explain(&error));
    let facts = read(one)?;
    let mut comparisons = Vec::new();
    for row in others {
        let of_other = read(row)?;
        let differences = facts.as_ref().zip(of_other.as_ref()).map(|(one, other)| differences(one, other));
        comparisons.push(Comparison {
            one: named(one, facts.is_some()),
            other: named(row, of_other.is_some()),
            differences,
        });
    }
    // The most alike first: their differences are most likely the reason.
    comparisons.sort_by_key(|comparison| comparison.differences.as_ref().map_or(usize::MAX, Vec::len));
    args.output.show(&comparisons, || comparisons.iter().map(text).collect::<Vec<_>>().join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn nothing_to_compare(source: &cenote_mem::RegionSource, rows: usize) -> Failure {
    Failure::new(format!("{source}: there is nothing to compare: the region has {rows} fingerprints"))
        .hint("each model, version and setting that uses the region enters one; `pool info` lists them")
}

fn named(row: &NamespaceInfo, has_facts: bool) -> Named {
    Named { id: row.id.0, label: row.label.clone(), fingerprint: row.fingerprint.clone(), has_facts }
}

fn differences(one: &Facts, other: &Facts) -> Vec<Difference> {
    let value = |facts: &Facts, name: &String| facts.get(name).cloned();
    facts::differing(one, other)
        .into_iter()
        .map(|fact| Difference { one: value(one, &fact), other: value(other, &fact), fact })
        .collect()
}

fn text(comparison: &Comparison) -> String {
    let Comparison { one, other, differences } = comparison;
    let called =
        |named: &Named| format!("{} {} ({:.DIGITS$})", named.id, named.label.escape_debug(), named.fingerprint);
    let both = format!("{} and {}", called(one), called(other));
    let Some(differences) = differences else {
        let missing: Vec<String> = [one, other].into_iter().filter(|named| !named.has_facts).map(called).collect();
        return format!(
            "{both}: no facts are recorded of {}; its program is older, or the region had no room or has fewer than \
             {CHUNKS_MIN} chunks",
            missing.join(" and ")
        );
    };
    let count = differences.len();
    let mut text = format!("{both} differ in {count} {}", if count == 1 { "fact" } else { "facts" });
    // Facts are bytes of the region, so they are unchecked input.
    let value = |value: &Option<String>| {
        value.as_ref().map_or_else(|| "(not given)".to_owned(), |value| value.escape_debug().to_string())
    };
    for difference in differences {
        let (one, other) = (value(&difference.one), value(&difference.other));
        text.push_str(&format!("\n  {}: {one} | {other}", difference.fact.escape_debug()));
    }
    text
}
