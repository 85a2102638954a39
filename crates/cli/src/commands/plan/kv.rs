//! `cenote plan kv`: a model's KV cache in a pool.

use super::{setting, show};
use crate::args::PlanKvArgs;
use crate::commands::engram::read;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_plan::kv::KvPlan;
use cenote_plan::layer::{Heads, Layer};
use cenote_plan::model::Model;

/// Tokens of a sequence, unless a flag or a shorter model says otherwise.
const CONTEXT: u64 = 32_768;

pub fn run(args: &PlanKvArgs) -> Result<(), Failure> {
    let wrong = |error: cenote_plan::PlanError| Failure::new(format!("{}: {error}", args.model_config.display()));
    let model = Model::parse(&read(&args.model_config)?).map_err(wrong)?;
    let context = args.context.unwrap_or_else(|| model.context.unwrap_or(CONTEXT).min(CONTEXT));
    if args.value_bytes.is_some() && model.layers.iter().any(Layer::has_own_format) {
        return Err(Failure::new("--value-bytes: vectors of this model's layers have a format of their own"));
    }
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
            kept(&group.kept),
            show::bytes(group.token_bytes),
            show::bytes(group.sequence_bytes),
        ]);
    }
    table.to_string()
}

fn kept(layer: &Layer) -> String {
    let of = |heads: &Heads| match heads {
        Heads { heads, key_dim, value_dim } if key_dim == value_dim => format!("K and V of {heads} heads of {key_dim}"),
        Heads { heads, key_dim, value_dim } => format!("K of {heads} heads of {key_dim}, V of {value_dim}"),
    };
    match layer {
        Layer::Full { heads } => of(heads),
        Layer::Window { heads, tokens } => format!("{}, {tokens} tokens", of(heads)),
        Layer::Chunk { heads, tokens } => format!("{}, chunks of {tokens} tokens", of(heads)),
        Layer::Latent { values, index_bytes: 0 } => format!("a latent vector of {values}"),
        Layer::Latent { values, index_bytes } => {
            format!("a latent vector of {values}, an index key of {index_bytes} B")
        }
        Layer::Compressed { bytes, ratio: 0, window, .. } => format!("vectors of {bytes} B, {window} tokens"),
        Layer::Compressed { bytes, ratio, window, index_bytes } => {
            let index = if *index_bytes > 0 { format!(" with an index key of {index_bytes} B") } else { String::new() };
            format!("vectors of {bytes} B, {window} tokens and one for each {ratio}{index}")
        }
        Layer::State { bytes } => format!("a state of {bytes} B"),
        Layer::Shared { with } => format!("nothing: it reads layer {with}"),
        Layer::Several { parts } => parts.iter().map(kept).collect::<Vec<_>>().join("; "),
        Layer::Nothing => "nothing".to_owned(),
    }
}

fn facts(plan: &KvPlan) -> String {
    let (sequence, all) = (format!("a sequence of {} tokens", plan.context), format!("{} sequences", plan.sequences));
    let facts = output::facts(&[
        ("a value", format!("{} B", plan.value_bytes)),
        ("one more token", show::bytes(plan.token_bytes)),
        (sequence.as_str(), show::bytes(plan.sequence_bytes)),
        ("of it states", show::bytes(plan.state_bytes)),
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
