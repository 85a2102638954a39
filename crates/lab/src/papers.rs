//! Figures of two papers about their codecs, for comparison with the measurements here.

use cenote_quality::evaluate::{Evaluation, Quality};
use serde::Serialize;

/// A row of a paper's table.
struct Line {
    codec: &'static str,
    bits: f64,
    loss_percent: f64,
    why: &'static str,
}

struct Paper {
    table: &'static str,
    lines: &'static [Line],
}

/// Perplexity of Llama2-7B without quantization (Oaken, Table 2), the reference for its Table 3.
const LLAMA2_7B: f64 = 5.47;

const fn oaken(codec: &'static str, bits: f64, perplexity: f64, why: &'static str) -> Line {
    Line { codec, bits, loss_percent: 100.0 * (perplexity / LLAMA2_7B - 1.0), why }
}

const SCALES: &str = "scales count here: 4 bytes per token and group, which many channels per token make small";
const WIDE: &str = "an entry of two bytes, as the paper pads it; scales count, of one more group";
const NARROW: &str = "fits a byte; scales count, of one more group";
const NARROW_5: &str = "fits a byte; scales count, of two more groups";

const PAPERS: [Paper; 2] = [
    Paper {
        table: "CXL-SpecKV, Table 9 (Llama-2-70B)",
        lines: &[
            Line { codec: "raw", bits: 16.0, loss_percent: 0.0, why: "the frame's header" },
            Line {
                codec: "int8",
                bits: 8.0,
                loss_percent: 0.6,
                why: "read as q = round(x / s): as printed it leaves eight bits",
            },
            Line {
                codec: "int8+delta",
                bits: 16.0 / 2.73,
                loss_percent: 0.9,
                why: "neighbouring channels are not alike: differences take more bits, so codes stay; nothing is lost beyond INT8",
            },
            Line {
                codec: "int8+delta+rle",
                bits: 16.0 / 3.21,
                loss_percent: 1.2,
                why: "hardly any code is zero, so there are no runs; a page that would grow stays INT8 (early exit)",
            },
        ],
    },
    Paper {
        table: "Oaken, Table 3 (Llama2-7B)",
        lines: &[
            oaken("oaken:4/90/6:5", 4.8, 5.526, SCALES),
            oaken("oaken:90/10:5", 4.8, 5.804, SCALES),
            oaken("oaken:10/90:5", 4.8, 5.546, SCALES),
            oaken("oaken:4/90/3/3:5", 5.6, 5.523, WIDE),
            oaken("oaken:2/2/90/6:5", 5.6, 5.516, WIDE),
            oaken("oaken:2/2/90/3/3:5", 5.6, 5.516, WIDE),
            oaken("oaken:4/90/3/3:4", 4.8, 5.572, NARROW),
            oaken("oaken:2/2/90/6:4", 4.8, 5.531, NARROW),
            oaken("oaken:2/2/90/3/3:4", 4.8, 5.532, NARROW_5),
        ],
    },
];

/// A paper's figures beside the measured ones.
#[derive(Serialize)]
pub struct Compared {
    /// The paper and its table.
    pub table: &'static str,
    /// The codec, by its name in this project.
    pub codec: &'static str,
    /// The paper's bits per value.
    pub paper_bits: f64,
    /// The paper's rise of perplexity, in percent.
    pub paper_loss_percent: f64,
    /// The measured figures.
    pub ours: Quality,
    /// Reason for the difference.
    pub why: &'static str,
}

/// All codecs of the papers' tables.
pub fn codecs() -> impl Iterator<Item = &'static str> {
    PAPERS.iter().flat_map(|paper| paper.lines.iter().map(|line| line.codec))
}

/// Pairs the papers' rows with an evaluation of their codecs; rows without an evaluation are left
/// out.
#[must_use]
pub fn compare(evaluation: &Evaluation) -> Vec<Compared> {
    let lines = PAPERS.iter().flat_map(|paper| paper.lines.iter().map(move |line| (paper.table, line)));
    let compared = lines.filter_map(|(table, line)| {
        let ours = evaluation.codecs.iter().find(|quality| quality.codec == line.codec)?.clone();
        let (paper_bits, paper_loss_percent) = (line.bits, line.loss_percent);
        Some(Compared { table, codec: line.codec, paper_bits, paper_loss_percent, ours, why: line.why })
    });
    compared.collect()
}
