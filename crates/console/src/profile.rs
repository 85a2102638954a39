//! Profiles: made from a text, and read from a file.

use crate::failure::Failure;
use crate::{input, output};
use cenote_base::TokenId;
use cenote_codec::{CodecSpec, Profile};
use cenote_engine::LoadedModel;
use cenote_quality::bases;
use cenote_quality::text::Windows;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Collects statistics of a model's KV on the beginning of a text; with the bases that `prism` needs,
/// if they are asked for.
pub fn make(
    model: &LoadedModel,
    text: &Path,
    prompts: usize,
    context: usize,
    with_bases: bool,
) -> Result<Profile, Failure> {
    of_prompts(model, &Windows::new(open(text)?, model.tokenizer(), context).take_some(prompts)?, with_bases)
}

/// Collects statistics of a model's KV on prompts.
pub fn of_prompts(model: &LoadedModel, prompts: &[Vec<TokenId>], with_bases: bool) -> Result<Profile, Failure> {
    let progress = output::progress("looking at prompts", 2 * prompts.len() as u64);
    let mut profile = cenote_quality::profile::profile(model, prompts, &mut |steps| progress.inc(steps as u64))?;
    progress.finish_and_clear();
    if with_bases {
        let progress = output::progress("computing bases", bases::steps(model, prompts.len()) as u64);
        profile.bases = Some(bases::bases(model, prompts, &mut |steps| progress.inc(steps as u64))?);
        progress.finish_and_clear();
    }
    Ok(profile)
}

/// Whether a codec needs a profile with bases.
#[must_use]
pub const fn needs_bases(spec: &CodecSpec) -> bool {
    matches!(spec, CodecSpec::Prism(_))
}

/// A text.
pub fn open(text: &Path) -> Result<BufReader<File>, Failure> {
    let file = input::open(text).map_err(|error| Failure::new(format!("{}: {error}", text.display())))?;
    Ok(BufReader::new(file))
}

/// A profile of any model.
pub fn parse(path: &Path) -> Result<Profile, Failure> {
    let failed = |fact: String| Failure::new(format!("{}: {fact}", path.display()));
    let bytes = input::bytes(path).map_err(failed)?;
    Profile::parse(&bytes).map_err(|error| failed(error.to_string()))
}

/// A profile of this model.
pub fn read(path: &Path, model: &LoadedModel) -> Result<Profile, Failure> {
    let profile = parse(path)?;
    let layout = model.layout();
    let channels = layout.num_kv_heads * layout.head_dim;
    if profile.model != model.fingerprint()
        || profile.layers.len() != layout.num_layers
        || profile.layers.iter().flatten().any(|side| side.means.len() != channels)
    {
        return Err(Failure::new(format!("{}: it is the profile of another model", path.display()))
            .hint("make one for this model with `cenote profile`"));
    }
    Ok(profile)
}
