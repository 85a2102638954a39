//! `cenote-lab outliers`: makes a model with outlier channels, for tests of codecs.

use crate::args::OutliersArgs;
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::output;

pub fn run(args: &OutliersArgs) -> Result<(), Failure> {
    if args.out.join("config.json").exists() {
        return Err(Failure::new(format!("{}: there is a model already", args.out.display())));
    }
    let from = engine::named_dir(args.model.as_ref())?;
    let biased = cenote_lab::outliers::write(&from, &args.out, args.seed)?;
    output::say(&format!(
        "{}: as {}, with K channels scaled and {biased} of them far from zero",
        args.out.display(),
        from.display()
    ));
    Ok(())
}
