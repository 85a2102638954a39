//! `cenote profile`: statistics of a model's KV that codecs need.

use crate::args::ProfileArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::{engine, profile};

pub fn run(args: &ProfileArgs) -> Result<(), Failure> {
    let model = engine::load_to_study(&args.model)?;
    let profile = profile::make(&model, &args.text, args.prompts, args.context, args.bases)?;
    std::fs::write(&args.out, profile.to_bytes())
        .map_err(|error| Failure::new(format!("{}: cannot write the profile: {error}", args.out.display())))?;
    let of_bases = profile.bases.as_ref().map(|bases| {
        let (groups, bytes) = (bases.groups.len(), bases.bytes() as f64 / 1e6);
        format!("; bases of {groups} groups of layers, {bytes:.1} MB")
    });
    output::say(&format!(
        "{}: {} layers, from {} prompts of {} tokens{}",
        args.out.display(),
        profile.layers.len(),
        profile.prompts,
        args.context,
        of_bases.unwrap_or_default()
    ));
    Ok(())
}
