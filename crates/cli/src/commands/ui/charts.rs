//! The charts of the page: what their lines show of a look.

use crate::observer::Observed;
use crate::rates::{MISSES, Part, TIERS};
use cenote_pool::Counter;
use serde::Serialize;

/// What a chart's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// From 0 to 1.
    Share,
    BlocksPerSecond,
    BytesPerSecond,
}

type Value = Box<dyn Fn(&Observed) -> Option<f64> + Send + Sync>;

#[derive(Serialize)]
pub struct Line {
    label: &'static str,
    /// `None`: there is nothing to tell of that interval.
    #[serde(skip)]
    value: Value,
}

#[derive(Serialize)]
pub struct Chart {
    name: &'static str,
    title: &'static str,
    help: &'static str,
    scale: Scale,
    /// The lines are parts of a sum.
    is_stacked: bool,
    lines: Vec<Line>,
}

/// The values of all lines at a look.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Seconds since 1970.
    pub time: f64,
    pub values: Vec<Option<f64>>,
}

impl Point {
    pub fn of(charts: &[Chart], seen: &Observed) -> Self {
        let values = charts.iter().flat_map(|chart| &chart.lines).map(|line| (line.value)(seen));
        Self { time: seen.now_us as f64 / 1e6, values: values.collect() }
    }
}

fn line(label: &'static str, value: impl Fn(&Observed) -> Option<f64> + Send + Sync + 'static) -> Line {
    Line { label, value: Box::new(value) }
}

/// The increase of a counter a second.
fn rate(label: &'static str, counter: Counter) -> Line {
    line(label, move |seen| Some(seen.rates.as_ref()?.per_second(counter)))
}

/// A part of a whole; `None`: there is no whole.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

pub fn all() -> Vec<Chart> {
    let tier = |part: &'static Part| line(part.label, move |seen| seen.rates.as_ref()?.share(part.blocks));
    let reason =
        |part: &'static Part| line(part.label, move |seen| Some(seen.rates.as_ref()?.part_per_second(part.blocks)));
    vec![
        Chart {
            name: "fill",
            title: "Fill",
            help: "Chunks that hosts have taken, and what readable blocks take of the space for blocks",
            scale: Scale::Share,
            is_stacked: false,
            lines: vec![
                line("chunks taken", |seen| share(seen.look.info.chunks_taken, seen.look.info.num_chunks)),
                line("readable blocks", |seen| share(seen.look.info.bytes_ready, seen.look.info.data_bytes)),
            ],
        },
        Chart {
            name: "hits",
            title: "Hit rate",
            help: "Share of the blocks looked up, by the tier that had them; a gap: no lookups",
            scale: Scale::Share,
            is_stacked: true,
            lines: TIERS.iter().map(tier).collect(),
        },
        Chart {
            name: "misses",
            title: "Misses",
            help: "Blocks looked up and not found, or lost before they were read, by reason",
            scale: Scale::BlocksPerSecond,
            is_stacked: true,
            lines: MISSES.iter().map(reason).collect(),
        },
        Chart {
            name: "copies",
            title: "Copies",
            help: "Bytes of blocks read from the region, published to it, and moved from and to the cold tier",
            scale: Scale::BytesPerSecond,
            is_stacked: false,
            lines: vec![
                rate("read", Counter::ReadBytes),
                rate("published", Counter::PublishedBytes),
                rate("cold tier read", Counter::ColdReadBytes),
                rate("cold tier written", Counter::ColdWrittenBytes),
            ],
        },
        Chart {
            name: "changes",
            title: "Evictions",
            help: "Blocks published, evicted, and refused for want of room or quota",
            scale: Scale::BlocksPerSecond,
            is_stacked: false,
            lines: vec![
                rate("published", Counter::Published),
                rate("evicted", Counter::Evicted),
                line("refused", |seen| {
                    let rates = seen.rates.as_ref()?;
                    Some(rates.per_second(Counter::NoRoom) + rates.per_second(Counter::QuotaRefused))
                }),
            ],
        },
    ]
}
