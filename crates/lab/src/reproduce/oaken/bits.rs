//! Tables 1 to 4 and Figure 6: bits by the product's quantizer, and what needs the models' weights.

use super::systems::model;
use crate::reproduce::row::Measured;
use crate::reproduce::{Context, Experiment};
use cenote_codec::Groups;
use cenote_serving_sim::hardware::kv_kernels::{KIVI, KVQUANT, QSERVE};
use cenote_serving_sim::hardware::tender::TENDER;

pub const EXPERIMENT: Experiment = Experiment {
    id: "oaken.bits",
    title: "bits of the quantizer",
    covers: &[
        "oaken.table1",
        "oaken.figure6",
        "oaken.table2.perplexity",
        "oaken.table2.perplexity-others",
        "oaken.table2.perplexity-rivals",
        "oaken.table2.accuracy",
        "oaken.table2.accuracy-rivals",
        "oaken.s6-1",
        "oaken.figure12.gpu",
        "oaken.table2.bits",
        "oaken.table2.rivals",
        "oaken.table3",
        "oaken.figure12.perplexity",
        "oaken.table4.area",
    ],
    is_quick: true,
    draws: false,
    run,
};

const GROUPS: [&str; 9] = [
    "4/90/6:5",
    "90/10:5",
    "10/90:5",
    "4/90/3/3:5",
    "2/2/90/6:5",
    "2/2/90/3/3:5",
    "4/90/3/3:4",
    "2/2/90/6:4",
    "2/2/90/3/3:4",
];

const COUNTED: &str =
    "the product's codec, which also counts the outliers of 64 channels: 0.125 bits; 16-bit ends of groups";
const RIVALS: &str = "by the formats' own papers: 1 % of KVQuant's values are outliers with 16 bits of value and of index; \
                      scales of Tender's channels are not counted";
const FORMAT: &str = "a count of the format's bits";
const TASKS: &str = "needs Llama2's weights and the data sets of three tasks";
const OTHERS: &str = "needs the weights of OPT, Mistral and Mixtral, and WikiText-2";
const WEIGHTS: &str = "needs Llama2's weights and WikiText-2; `cenote-lab eval --papers` measures other models";

fn bits(groups: &str, width: u64) -> f64 {
    groups.parse::<Groups>().expect("groups of Table 3").bits(width as usize)
}

fn run(_: &Context) -> Vec<Measured> {
    let widths = ["llama-2-7b", "llama-2-13b", "llama-2-70b"].map(|name| {
        let model = model(name);
        model.kv_heads * model.head_dim
    });
    vec![
        Measured::not_testable("oaken.table1.bandwidth", "rates are inputs: 1,024 pins are those that give 1.1 TB/s"),
        Measured::not_testable(
            "oaken.figure6.range",
            "needs the weights of seven models and three data sets; on the demo model thresholds differ by up to 30 %",
        ),
        Measured::not_testable("oaken.table2.perplexity", WEIGHTS),
        Measured::not_testable("oaken.table2.perplexity-others", OTHERS),
        Measured::new("oaken.table2.bits", widths.iter().map(|&width| bits("4/90/6:5", width)).collect(), COUNTED)
            .fixed(FORMAT)
            .tied(FORMAT),
        Measured::new("oaken.table2.rivals", vec![KVQUANT.bits, KIVI.bits, TENDER.bits(), QSERVE.bits], RIVALS)
            .fixed(FORMAT)
            .tied("the whole table lies within 4.07 and 5.01 bits"),
        Measured::new("oaken.table3.bits", GROUPS.iter().map(|groups| bits(groups, widths[0])).collect(), COUNTED)
            .fixed(FORMAT)
            .tied(FORMAT),
        Measured::not_testable("oaken.table2.perplexity-rivals", WEIGHTS),
        Measured::not_testable("oaken.table2.accuracy", TASKS),
        Measured::not_testable("oaken.table2.accuracy-rivals", TASKS),
        Measured::not_testable("oaken.figure6.channels", "no number is printed; needs the weights of seven models"),
        Measured::not_testable(
            "oaken.s6-1.profiling",
            "needs an A100 and the models' weights; `cenote profile` makes a profile of any model and text",
        ),
        Measured::not_testable("oaken.figure12.gpu", "needs Oaken's quantization on a GPU, with its warps' divergence"),
        Measured::not_testable("oaken.table3.perplexity", WEIGHTS),
        Measured::not_testable("oaken.figure12.perplexity", WEIGHTS),
        Measured::not_testable("oaken.table4.area", "needs a synthesis of the paper's sources for 28 nm"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_entries_cost_a_byte() {
        assert!((bits("2/2/90/6:5", 4_096) - bits("2/2/90/6:4", 4_096) - 0.8).abs() < 1e-9);
        assert!((bits("4/90/6:5", 4_096) - (4.8 + 0.125 + 96.0 / 4_096.0)).abs() < 1e-9);
    }
}
