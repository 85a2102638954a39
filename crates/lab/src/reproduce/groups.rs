//! Groups of rows whose first verdict, "contradicted", an audit questioned, with what settled each group.

use super::Reproduction;
use super::report;
use super::row::{Power, Row};
use super::verdict::Verdict;
use std::fmt::Write;

/// Rows with one question.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Its letter.
    pub letter: &'static str,
    /// What its rows have in common.
    pub title: &'static str,
    /// How the rows are settled, and why.
    pub settled: &'static str,
    /// Names of the rows.
    pub rows: &'static [&'static str],
}

/// All groups.
pub const GROUPS: &[Group] = &[
    Group {
        letter: "A",
        title: "TraCT beside rivals at line rate",
        settled: "The paper states neither the rate that NIXL reached nor how many prompts share a prefix. \
                  Both are open parameters and vary together: the line rate down to 3 % of it, 16 to 256 \
                  groups, 2,000 requests, rates in steady state. \"At all load levels\" is not testable: below \
                  saturation every system serves what arrives.",
        rows: &[
            "tract.figure5.median",
            "tract.figure5.p99",
            "tract.figure7.peak",
            "tract.figure7.lmcache",
            "tract.figure7.all-lmcache",
            "tract.figure9.mean-lmcache",
            "tract.figure9.p99-lmcache",
            "tract.figure10.read-tract",
            "tract.figure10.transfer",
            "tract.figure11.rx",
        ],
    },
    Group {
        letter: "B",
        title: "bounds that no text prints",
        settled: "No text prints these bounds. The rows show our values and decide nothing.",
        rows: &["speckv.s3-4-2.stability", "tract.s3-3.hosts"],
    },
    Group {
        letter: "C",
        title: "another metric than the paper's",
        settled: "SM occupancy needs a model of SMs; the part of time in steps is another metric. Not \
                  testable, as the power of the same figure.",
        rows: &["tract.figure11.prefill", "tract.figure11.decode"],
    },
    Group {
        letter: "D",
        title: "eq. 2",
        settled: "The base has the paper's 8 GB of L1 (§3.3.1) and its codec of 3.2 (§3.5.2). The length of \
                  the context is open.",
        rows: &["speckv.eq2.hiding"],
    },
    Group {
        letter: "E",
        title: "cycles of another design",
        settled: "Cycles of another design neither support nor contradict the paper's. Not testable, with our \
                  RTL's cycles beside; so are the two rows of the same kind that agreed, \
                  `speckv.s3-5-2.bandwidth` and `speckv.s3-5-3.bypass`.",
        rows: &["speckv.s3-5-2.busy", "speckv.eq3.critical-path", "speckv.s3-5-3.mean"],
    },
    Group {
        letter: "F",
        title: "sparse attention on drawn scores",
        settled: "What queries choose needs recorded scores of a real model, and k counts tokens in the paper. \
                  Rows on drawn scores are not testable, with our values beside, as `speckv.eq9.depth` was; so \
                  are those that agreed. The two dense rows need no scores: they depend on the share of pages \
                  near and on the link.",
        rows: &[
            "speckv.table3.hit-rate",
            "speckv.table3.hit-rate-dense",
            "speckv.table3.coverage",
            "speckv.table3.prefetch-latency",
            "speckv.table3.synchronous-latency",
            "speckv.table3.link-use",
            "speckv.table3.link-use-dense",
            "speckv.table8.hit-rate",
            "speckv.table8.precision",
            "speckv.table8.throughput",
            "speckv.table8.latency",
        ],
    },
    Group {
        letter: "F2",
        title: "pages that no token names",
        settled: "The argument needs no scores: Algorithm 1 names pages that are not written yet. The row of \
                  throughput said the same and is merged into this one.",
        rows: &["speckv.table8.precision-of-tokens"],
    },
    Group {
        letter: "G",
        title: "codecs on a small model",
        settled: "Another model's values decide no row, as they do not for Figure 2. The rows show ours \
                  beside, with the entropies that bound any coder (`speckv.table9.entropy`). What the paper's \
                  own numbers decide has rows: steps that lose nothing cannot raise perplexity \
                  (`speckv.table9.lossless`), and differences of eight bits save nothing by themselves \
                  (`speckv.table9.differences`). `speckv.s3-1.delta` had Table 9's number and is gone.",
        rows: &[
            "speckv.s3-1.layer-ratios",
            "speckv.s3-5-2.ratio",
            "speckv.table9.ratio",
            "speckv.table9.loss",
            "speckv.table9.steps",
        ],
    },
    Group {
        letter: "H",
        title: "one A100 with nothing far",
        settled: "SpecKV is a system as the paper describes it: all KV is allocated far, the newest 256 tokens \
                  stay near, and batches grow to 512. GPUs from 1 to 8 and usable memory of 90 and 95 % vary \
                  together.",
        rows: &[
            "speckv.table2.ttft",
            "speckv.table2.decode",
            "speckv.table2.p95",
            "speckv.table2.p99",
            "speckv.table2.overhead",
            "speckv.table5.use",
            "speckv.table7.gpu-power",
            "speckv.figure6.gpu-only-plateau",
            "speckv.figure6.peak",
            "speckv.figure6.fast",
        ],
    },
    Group {
        letter: "I",
        title: "headline gains",
        settled: "The same system, in steady state. The product's policy, which spills only what steps hide, \
                  stands beside. Gains for every model need models whose KV does not fit; most of the 22 fit.",
        rows: &[
            "speckv.figure1.over-gpu-only",
            "speckv.s4-2.over-cpu-offload",
            "speckv.s4-2.over-compression",
            "speckv.s4-2.over-no-speculation",
            "speckv.figure4.small-gpu",
            "speckv.figure4.small-gpu-34b",
            "speckv.figure4.eight-gpus",
        ],
    },
    Group {
        letter: "J",
        title: "51.2 against 412 GB/s",
        settled: "The paper: one pipeline of 51.2 GB/s gives neither 412 GB/s nor these latencies.",
        rows: &["speckv.table6.mean", "speckv.table6.p99", "speckv.table6.growth"],
    },
    Group {
        letter: "K",
        title: "the step of Engram's Table 1",
        settled: "One finding, the step. Throughput, window and bandwidth follow from it by the paper's own \
                  arithmetic and are counted as that.",
        rows: &["engram.table1.step", "engram.table1.throughput", "engram.table1.window", "engram.table1.bandwidth"],
    },
    Group {
        letter: "L",
        title: "Engram's baselines",
        settled: "Host work has no source: it is an open parameter up to 10 ms. A key of Mooncake Store takes \
                  2.1 us and more, as this project measured (docs/evidence/peers.md); the card alone stands \
                  beside.",
        rows: &["engram.table2.dram", "engram.figure3.rdma"],
    },
    Group {
        letter: "M",
        title: "GPU kernels' share of HBM",
        settled: "No kernel of these systems was measured. The part of HBM's bandwidth that GPU kernels reach \
                  (60 to 95 %) and the part of their peak that accelerators reach (0.3 to 0.9) vary together.",
        rows: &[
            "oaken.figure1.throughput",
            "oaken.figure11.qserve",
            "oaken.figure11.baselines",
            "oaken.figure13.short-vllm",
            "oaken.figure14.llama",
            "oaken.figure14.mixtral-advantage",
            "oaken.figure14.gain",
            "oaken.figure14.mixtral-burst",
        ],
    },
    Group {
        letter: "N",
        title: "thresholds and seeds",
        settled: "Bounds have the tolerance of equalities, words (\"more\") hold beyond 2 %, and values are \
                  means of ten seeds with an interval that must decide.",
        rows: &["oaken.figure11.scaling", "cpen.figure7.small", "cpen.figure8.zero", "cpen.s5-b.lstm"],
    },
    Group {
        letter: "N2",
        title: "thresholds that matter",
        settled: "A sweep over models is their mean, with the least beside; \"minimal\" is read as 15 % with \
                  the tolerance of all values.",
        rows: &["oaken.figure11.sweep", "oaken.figure5.weights"],
    },
    Group {
        letter: "O",
        title: "capacity",
        settled: "The paper: 16 requests of 4 GB beside 26 GB of weights exceed 80 GB whatever is assumed.",
        rows: &["oaken.figure13.fits"],
    },
    Group {
        letter: "P",
        title: "no data",
        settled: "The part of BurstGPT that the paper took is not public. Not testable, with the whole trace's \
                  mean beside.",
        rows: &["oaken.figure14.outputs"],
    },
    Group {
        letter: "Q",
        title: "CPEN's rule as printed",
        settled: "The paper: the rule as printed does the opposite of its figures.",
        rows: &["cpen.figure8.above", "cpen.figure9.above", "cpen.figure10.above"],
    },
    Group {
        letter: "R",
        title: "DeepSeek's rises in CPEN",
        settled: "Open: a model that is known by its sizes has no such rises.",
        rows: &["cpen.figure10.deepseek", "cpen.figure10.deepseek-5"],
    },
];

/// The groups as sections of a document, with each row's verdict and reason.
#[must_use]
pub fn markdown(papers: &[Reproduction]) -> String {
    let mut text = String::new();
    for group in GROUPS {
        let _ = writeln!(text, "**{}: {}.** {}\n", group.letter, group.title, group.settled);
        let _ = writeln!(text, "| row | verdict | here | why |\n|---|---|---|---|");
        let all = || papers.iter().flat_map(|paper| &paper.rows);
        for row in group.rows.iter().filter_map(|id| all().find(|row| row.id == *id)) {
            let cells = [format!("`{}`", row.id), report::verdict(row), report::ours(row), row.why.to_owned()];
            let _ =
                writeln!(text, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | ").replace("|  |", "| |"));
        }
        text.push('\n');
    }
    text
}

/// The numbers of verdicts by paper.
#[must_use]
pub fn counts(papers: &[Reproduction]) -> String {
    let mut text = "| paper | rows |".to_owned();
    Verdict::ALL.iter().for_each(|verdict| {
        let _ = write!(text, " {verdict} |");
    });
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(Verdict::ALL.len()));
    text.push('\n');
    let mut line = |name: &str, rows: &[&Row]| {
        let _ = write!(text, "| {name} | {} |", rows.len());
        for verdict in Verdict::ALL {
            let of = |power: Option<Power>| {
                rows.iter().filter(|row| row.verdict == verdict && power.is_none_or(|power| row.power == power)).count()
            };
            let _ = match (verdict, of(Some(Power::Arithmetic)), of(Some(Power::Tied))) {
                (Verdict::Reproduced, arithmetic, tied) => {
                    write!(text, " {} + {arithmetic} + {tied} |", of(Some(Power::Model)))
                }
                _ => write!(text, " {} |", of(None)),
            };
        }
        text.push('\n');
    };
    for paper in papers {
        line(paper.paper, &paper.rows.iter().collect::<Vec<_>>());
    }
    line("all", &papers.iter().flat_map(|paper| &paper.rows).collect::<Vec<_>>());
    text
}

/// The letter of a row's group.
#[must_use]
pub fn of(row: &str) -> Option<&'static str> {
    GROUPS.iter().find(|group| group.rows.contains(&row)).map(|group| group.letter)
}
