//! `cenote-lab random-model`: a model for measurements of speed.

use crate::args::RandomModelArgs;
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_lab::random_model::{self, Shape};

pub fn run(args: &RandomModelArgs) -> Result<(), Failure> {
    if args.out.join("config.json").exists() {
        return Err(Failure::new(format!("{}: there is a model already", args.out.display())));
    }
    let tokenizer = engine::named_dir(args.model.as_ref())?;
    let kv_heads = args.kv_heads.unwrap_or(args.hidden / 64);
    let shape = Shape { layers: args.layers, hidden: args.hidden, intermediate: args.intermediate, kv_heads };
    let weights = random_model::write(&shape, &tokenizer, &args.out, args.seed)?;
    output::say(&format!("{}: a Llama of {weights} random weights", args.out.display()));
    Ok(())
}
