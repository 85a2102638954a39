//! The tables of `top`: rows as text, filtered and sorted. Columns come from the registry of gauges.

use super::state::Sort;
use crate::gauges::{self, Gauge, Unit, host_labels, model_labels, state_of};
use crate::observer::Observed;
use cenote_base::units::ByteSize;
use cenote_console::output;
use cenote_pool::Counter;
use std::cmp::Ordering;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    Models,
    Hosts,
    Workers,
    Counters,
    Events,
    Region,
    Findings,
}

/// A value with the text that shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub text: String,
    /// `None`: it is sorted by its text.
    number: Option<f64>,
}

impl Cell {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    fn number(value: f64) -> Self {
        Self { text: number(value), number: Some(value) }
    }

    pub const fn is_number(&self) -> bool {
        self.number.is_some()
    }

    fn of<T>(gauge: &Gauge<T>, row: &T) -> Self {
        let Some(value) = (gauge.value)(row) else { return Self { text: "?".to_owned(), number: Some(-1.0) } };
        let text = match gauge.unit {
            Unit::Bytes => ByteSize(value as u64).to_string(),
            Unit::Seconds => format!("{value:.1} s"),
            Unit::Share => format!("{:.1} %", 100.0 * value),
            Unit::Count => number(value),
        };
        Self { text, number: Some(value) }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(left), Some(right)) => left.total_cmp(&right),
            _ => self.text.cmp(&other.text),
        }
    }
}

/// A number with at most one decimal.
fn number(value: f64) -> String {
    if value.fract() == 0.0 || value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

impl Panel {
    pub const ALL: [Self; 7] =
        [Self::Models, Self::Hosts, Self::Workers, Self::Counters, Self::Events, Self::Region, Self::Findings];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Models => "models",
            Self::Hosts => "hosts",
            Self::Workers => "workers",
            Self::Counters => "counters",
            Self::Events => "events",
            Self::Region => "region",
            Self::Findings => "findings",
        }
    }

    pub fn headings(self) -> Vec<&'static str> {
        let of = |first: &[&'static str], more: Vec<&'static str>| [first, &more].concat();
        match self {
            Self::Models => {
                of(&["model", "row", "salt and facts"], gauges::MODEL.iter().map(|gauge| gauge.heading).collect())
            }
            Self::Hosts => of(&["host"], gauges::HOST.iter().map(|gauge| gauge.heading).collect()),
            Self::Workers => vec!["host", "slot", "pid", "name", "state", "joined (UTC)"],
            Self::Counters => vec!["counter", "total", "a second"],
            Self::Events => vec!["time (UTC)", "host", "pid", "what"],
            Self::Region => vec!["gauge", "value", "meaning"],
            Self::Findings => vec!["finding", "what", "next"],
        }
    }

    /// The rows that contain `filter`, in the order of `sort`.
    pub fn rows(self, seen: &Observed, filter: &str, sort: Sort) -> Vec<Vec<Cell>> {
        let mut rows = self.all(seen);
        let filter = filter.to_lowercase();
        rows.retain(|row| row.iter().any(|cell| cell.text.to_lowercase().contains(&filter)));
        if let Some(column) = sort.column {
            // Numbers begin with the largest, words with the first.
            let order = |left: &Vec<Cell>, right: &Vec<Cell>| {
                let order = left[column].compare(&right[column]);
                if left[column].is_number() { order.reverse() } else { order }
            };
            rows.sort_by(order);
        }
        if sort.is_ascending {
            rows.reverse();
        }
        rows
    }

    fn all(self, seen: &Observed) -> Vec<Vec<Cell>> {
        let (look, info) = (&*seen.look, &seen.look.info);
        match self {
            Self::Models => info
                .namespaces
                .iter()
                .map(|row| {
                    let labels = model_labels(row).into_iter();
                    let [model, fingerprint, number] = labels
                        .map(|(_, label)| label)
                        .collect::<Vec<_>>()
                        .try_into()
                        .expect("a model has three labels");
                    let number = Cell { text: number, number: Some(f64::from(row.id.0)) };
                    let gauges = gauges::MODEL.iter().map(|gauge| Cell::of(gauge, row));
                    [Cell::text(model), number, Cell::text(fingerprint)].into_iter().chain(gauges).collect()
                })
                .collect(),
            Self::Hosts => info
                .hosts
                .iter()
                .map(|row| {
                    let labels = host_labels(row).into_iter().map(|(_, label)| Cell::text(label));
                    labels.chain(gauges::HOST.iter().map(|gauge| Cell::of(gauge, row))).collect()
                })
                .collect(),
            Self::Workers => info
                .workers
                .iter()
                .map(|row| {
                    vec![
                        Cell::number(f64::from(row.host)),
                        Cell::number(f64::from(row.slot)),
                        Cell::number(row.pid as f64),
                        Cell::text(row.name.clone()),
                        Cell::text(state_of(row.alive)),
                        Cell::text(second(row.joined.saturating_mul(1_000_000))),
                    ]
                })
                .collect(),
            Self::Counters => Counter::ALL
                .iter()
                .map(|&counter| {
                    let rate = seen.rates.as_ref().map_or(0.0, |rates| rates.per_second(counter));
                    let total = look.counter(counter) as f64;
                    vec![Cell::text(counter.name()), Cell::number(total), Cell::number(rate)]
                })
                .collect(),
            Self::Events => seen
                .records
                .iter()
                .rev()
                .map(|record| {
                    vec![
                        Cell::text(second(record.time_us)),
                        Cell::number(f64::from(record.host)),
                        Cell::number(f64::from(record.pid)),
                        Cell::text(record.what.clone()),
                    ]
                })
                .collect(),
            Self::Region => gauges::REGION
                .iter()
                .map(|gauge| vec![Cell::text(gauge.heading), Cell::of(gauge, look), Cell::text(gauge.help)])
                .collect(),
            Self::Findings => seen
                .findings
                .iter()
                .map(|finding| {
                    vec![Cell::text(finding.kind), Cell::text(finding.what.clone()), Cell::text(finding.next.clone())]
                })
                .collect(),
        }
    }
}

/// A time without its fraction.
fn second(time_us: u64) -> String {
    output::utc(time_us).split('.').next().unwrap_or_default().to_owned()
}
