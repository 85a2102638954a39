//! What the report prints. Its figures have no numbers; where its text gives a direction, the row is a
//! bound; "significantly" is 15 %, "mostly" a half. No run reads this.

use crate::reproduce::row::Printed;

const MODELS: &[&str] = &["opt-125m", "opt-1.3b", "opt-2.7b", "r1-qwen-1.5b"];
const SMALL: &[&str] = &["opt-125m", "opt-1.3b"];
const OPT: &[&str] = &["opt-125m", "opt-1.3b", "opt-2.7b"];

/// All rows.
pub const PRINTED: &[Printed] = &[
    // §V-B, Figures 3 and 4
    Printed::new(
        "cpen.s5-b.accesses",
        "memory accesses of 400 sequences: allocations, appended blocks, swaps, frees",
        "",
        &[3_214.0],
    ),
    Printed::new("cpen.s5-b.regression", "regression's predictions within 2: mostly", "%", &[50.0]).at_least(),
    Printed::new("cpen.s5-b.lstm", "perceptron's right predictions over the LSTM's: significantly more", "", &[1.15])
        .at_least()
        .neutral(1.0),
    Printed::new("cpen.s5-b.window", "best over worst window of regression: the window matters", "", &[1.15])
        .at_least(),
    Printed::new("cpen.figure4.classes", "right predictions of classes over regression's: more", "", &[1.0]).more(),
    Printed::new("cpen.figure4.equal", "the same with equal inputs", "", &[1.0]).more(),
    Printed::new("cpen.s5-c.order", "swap-ins that take the head of the queue: deterministic", "%", &[100.0]),
    // Algorithm 1: "continues to schedule tasks until all tasks are completed"
    Printed::new("cpen.algorithm1.unfinished", "tasks that are not complete when the listing ends: none", "", &[0.0])
        .at_most(),
    Printed::new(
        "cpen.algorithm1.order",
        "throughput of Algorithm 1 as printed over that of the product's order",
        "",
        &[],
    ),
    // §VII-B
    Printed::new("cpen.figure5.blocks", "blocks swapped at a factor of 12 over 0: fewer", "", &[1.0; 4])
        .less()
        .named(MODELS),
    Printed::new("cpen.figure6.operations", "swap operations at a factor of 12 over 0: fewer", "", &[1.0; 4])
        .less()
        .named(MODELS),
    Printed::new("cpen.figure7.small", "throughput over that of fixed 1 %, small models: slightly more", "", &[1.0; 2])
        .more()
        .named(SMALL),
    Printed::new(
        "cpen.figure7.large",
        "throughput over that of fixed 1 %, opt-2.7b: no significant change",
        "",
        &[1.0],
    ),
    Printed::new("cpen.figure7.deepseek", "throughput over that of fixed 1 %, r1-qwen-1.5b: slightly less", "", &[1.0])
        .less(),
    Printed::new(
        "cpen.figure7.slight",
        "throughput over that of fixed 1 %, the others: the change is not significant",
        "",
        &[1.0; 3],
    )
    .named(&["opt-125m", "opt-1.3b", "r1-qwen-1.5b"]),
    // §VII-C
    Printed::new("cpen.figure8.above", "blocks swapped at a threshold of 7.5 over 1.8, rule as printed", "", &[1.0; 4])
        .less()
        .named(MODELS),
    Printed::new("cpen.figure8.below", "blocks swapped at 7.5 over 1.8, opposite rule: fewer", "", &[1.0; 4])
        .less()
        .named(MODELS),
    Printed::new("cpen.figure8.zero", "the same: near zero, a tenth at most", "", &[0.1; 4]).at_most().named(MODELS),
    Printed::new("cpen.figure9.above", "swap operations at 7.5 over 1.8, rule as printed: fewer", "", &[1.0; 4])
        .less()
        .named(MODELS),
    Printed::new("cpen.figure9.below", "swap operations at 7.5 over 1.8, opposite rule: fewer", "", &[1.0; 4])
        .less()
        .named(MODELS),
    Printed::new("cpen.figure10.above", "throughput at 7.5 over 1.8, rule as printed: less", "", &[1.0; 3])
        .less()
        .named(OPT),
    Printed::new("cpen.figure10.below", "throughput at 7.5 over 1.8, opposite rule: less", "", &[1.0; 3])
        .less()
        .named(OPT),
    Printed::new("cpen.figure10.deepseek", "throughput at 3.6 over 1.8, r1-qwen-1.5b: rises", "", &[1.0]).more(),
    Printed::new("cpen.figure10.deepseek-5", "throughput at 5 over 1.8, r1-qwen-1.5b: rises", "", &[1.0]).more(),
];
