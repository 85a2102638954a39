//! `cenote outliers`: a model with outlier channels, to see what they do to codecs.

use super::engine;
use crate::args::OutliersArgs;
use crate::failure::Failure;
use crate::output;

pub fn run(args: &OutliersArgs) -> Result<(), Failure> {
    if args.out.join("config.json").exists() {
        return Err(Failure::new(format!("{}: there is a model already", args.out.display())));
    }
    let from = engine::named_dir(args.model.as_ref())?;
    let biased = cenote_study::outliers::write(&from, &args.out, args.seed)?;
    output::say(&format!(
        "{}: as {}, with K channels scaled and {biased} of them far from zero",
        args.out.display(),
        from.display()
    ));
    Ok(())
}
