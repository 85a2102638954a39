//! `cenote plan kv`: a model's KV cache in a pool.

use super::{setting, show};
use crate::args::PlanKvArgs;
use crate::commands::engram::read;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_plan::kv::{KvPlan, LayerGroup};
use cenote_plan::model::{Kept, Model};

/// Tokens of a sequence, unless a flag or a shorter model says otherwise.
const CONTEXT: u64 = 32_768;

pub fn run(args: &PlanKvArgs) -> Result<(), Failure> {
    let wrong = |error: cenote_plan::PlanError| Failure::new(format!("{}: {error}", args.model_config.display()));
    let model = Model::parse(&read(&args.model_config)?).map_err(wrong)?;
    let context = args.context.unwrap_or_else(|| model.context.unwrap_or(CONTEXT).min(CONTEXT));
    let value_bytes = args.value_bytes.unwrap_or(model.value_bytes);
    let setting = setting(&args.setting, model.layers.len() as u64);
    let plan = KvPlan::new(&model, value_bytes, context, args.sequences, &setting).map_err(wrong)?;
    args.output.show(&plan, || text(&plan))
}

fn text(plan: &KvPlan) -> String {
    show::sections(&[
        ("Layers", layers(plan)),
        ("Bytes", facts(plan)),
        ("Placement", show::placements(&plan.placements)),
        ("Ranks", ranks(plan)),
        ("Prices", show::prices(&plan.prices, &plan.paper_prices)),
        ("Costs, if every node keeps all sequences", show::costs(&plan.costs, plan.break_even_nodes)),
    ])
}

fn layers(plan: &KvPlan) -> String {
    let mut table = output::table(&["layers", "each keeps", "one more token", "a sequence"]);
    for group in &plan.groups {
        table.add_row([
            group.layers.to_string(),
            kept(group),
            show::bytes(group.token_bytes),
            show::bytes(group.sequence_bytes),
        ]);
    }
    table.to_string()
}

fn kept(group: &LayerGroup) -> String {
    match &group.kept {
        Kept::Attention { heads, head_dim, window: None } => format!("K and V of {heads} heads of {head_dim}"),
        Kept::Attention { heads, head_dim, window: Some(window) } => {
            format!("K and V of {heads} heads of {head_dim}, {window} tokens")
        }
        Kept::Latent { values } => format!("a latent vector of {values}"),
        Kept::Compressed { values, ratio: 0, window } => format!("vectors of {values}, {window} tokens"),
        Kept::Compressed { values, ratio, window } => {
            format!("vectors of {values}, {window} tokens and one for each {ratio}")
        }
        Kept::Recurrent { values, wide_values } => format!("a state of {values} values and {wide_values} in f32"),
        Kept::Nothing => "nothing".to_owned(),
    }
}

fn facts(plan: &KvPlan) -> String {
    let (sequence, all) = (format!("a sequence of {} tokens", plan.context), format!("{} sequences", plan.sequences));
    let facts = output::facts(&[
        ("a value", format!("{} B", plan.value_bytes)),
        ("one more token", show::bytes(plan.token_bytes)),
        (sequence.as_str(), show::bytes(plan.sequence_bytes)),
        (all.as_str(), show::bytes(plan.total_bytes)),
        ("tokens from the pool", format!("{}/s", show::bytes(plan.bytes_per_second))),
        ("a layer of a step", show::bytes(plan.layer_step_bytes)),
        ("time of a layer", show::seconds(plan.window_seconds)),
        ("link: time (fits)", show::links(&plan.links)),
    ]);
    format!("{facts}\nA link that fits hides the loads of all layers but the first.")
}

fn ranks(plan: &KvPlan) -> String {
    let mut table = output::table(&["division", "one more token of a rank", "copies of a token"]);
    for row in &plan.ranks {
        table.add_row([row.name.to_owned(), show::bytes(row.token_bytes), show::number(row.copies)]);
    }
    table.to_string()
}
