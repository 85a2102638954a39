//! `--codec` and `--cold-codec`: named codecs, or `auto`, which reads a codec table.

use crate::args::{CodecArg, EngineArgs};
use crate::failure::Failure;
use crate::input;
use cenote_codec::{LayerSpecs, Profile};
use cenote_quality::table::{CodecTable, TableError};
use std::path::Path;

/// Reads a table without checking its model.
///
/// # Errors
/// The file cannot be read, or is no table.
pub fn parse(path: &Path) -> Result<CodecTable, Failure> {
    let bytes = input::bytes(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    CodecTable::parse(&bytes).map_err(|error| refused(path, &error))
}

fn refused(path: &Path, error: &TableError) -> Failure {
    let failure = Failure::new(format!("{}: {error}", path.display()));
    match error {
        TableError::OtherModel | TableError::OtherProfile => {
            failure.hint("make one with `cenote-lab choose` for this model and profile")
        }
        TableError::Laxer { .. } => failure.hint("make one for it with `cenote-lab choose --kl-max`"),
        TableError::File(_) | TableError::Content(_) => failure,
    }
}

/// The codecs that `--codec` or `--cold-codec` names. `auto` reads the table at `pressure`: 0 for
/// blocks that were just computed, 1 for blocks that would be evicted. `model` is its fingerprint,
/// if it is known.
///
/// # Errors
/// The table is missing, damaged, or for another model or profile.
pub fn layer_specs(
    codec: &CodecArg,
    pressure: f64,
    args: &EngineArgs,
    model: Option<&[u8; 32]>,
    layers: usize,
    profile: Option<&Profile>,
) -> Result<LayerSpecs, Failure> {
    if let CodecArg::Named(specs) = codec {
        return Ok(specs.clone());
    }
    let path = args.codec_table.as_ref().ok_or_else(|| {
        Failure::new("`auto` needs a codec table")
            .hint("make one with `cenote-lab choose` and name it with --codec-table")
    })?;
    let table = parse(path)?;
    let fits = table.check(model, layers, profile);
    fits.and_then(|()| table.specs(pressure, args.kl_max)).map_err(|error| refused(path, &error))
}
