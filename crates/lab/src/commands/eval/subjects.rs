//! Codecs and quantizers by name.

use cenote_codec::{CodecSpec, Groups, Profile, SpecError};
use cenote_console::failure::Failure;
use cenote_engine::LoadedModel;
use cenote_lab::baselines::atom::Atom;
use cenote_lab::baselines::qserve::QServe;
use cenote_lab::baselines::sign::OakenSign;
use cenote_lab::baselines::tender::Tender;
use cenote_lab::baselines::{Int4, Kivi, KvQuant};
use cenote_quality::{CodecSubject, Subject};
use std::sync::Arc;

/// Values per group of KIVI.
const KIVI_GROUP: usize = 32;
/// Quantizers for comparison that need a profile.
const PROFILED: [&str; 5] = ["kvquant", "tender", "atom", "qserve", "oaken-sign"];

/// Whether a codec needs a profile.
pub fn needs_profile(name: &str) -> bool {
    PROFILED.contains(&name.split(':').next().unwrap_or_default())
        || name.parse::<CodecSpec>().is_ok_and(|spec| matches!(spec.build(None), Err(SpecError::NoProfile(_))))
}

/// Whether a codec needs a profile with bases.
pub fn needs_bases(name: &str) -> bool {
    name.parse::<CodecSpec>().is_ok_and(|spec| cenote_console::profile::needs_bases(&spec))
}

/// Builds all codecs for a model.
pub fn of_names<T: AsRef<str>>(
    names: &[T],
    model: &LoadedModel,
    profile: Option<&Arc<Profile>>,
) -> Result<Vec<Box<dyn Subject>>, Failure> {
    names.iter().map(|name| subject(name.as_ref(), model, profile)).collect()
}

/// Builds a codec for a model.
pub fn subject(name: &str, model: &LoadedModel, profile: Option<&Arc<Profile>>) -> Result<Box<dyn Subject>, Failure> {
    let unknown = || {
        let hint = "for comparison there are group:BITS:CHANNELS, and kivi:BITS, kvquant:BITS, tender:BITS, \
                    atom:BITS and qserve:BITS, of 2 to 8 bits, and oaken-sign[:SHARES]";
        Failure::from(SpecError::Unknown(name.to_owned())).hint(hint)
    };
    let profiled = || profile.ok_or_else(|| Failure::from(SpecError::NoProfile(name.to_owned())));
    let bits = |text: &str| text.parse().ok().filter(|bits| (2..=8).contains(bits)).ok_or_else(unknown);
    let dim = model.layout().head_dim;
    let mut parts = name.split(':');
    let subject: Box<dyn Subject> = match (parts.next(), parts.next(), parts.next()) {
        (Some("group"), Some(number), Some(group)) => {
            let group = group.parse().ok().filter(|group| *group > 0).ok_or_else(unknown)?;
            Box::new(Int4 { bits: bits(number)?, group })
        }
        (Some("kivi"), Some(number), None) => Box::new(Kivi { bits: bits(number)?, group: KIVI_GROUP }),
        (Some("kvquant"), Some(number), None) => Box::new(KvQuant::new(bits(number)?, Arc::clone(profiled()?))),
        (Some("tender"), Some(number), None) => Box::new(Tender::new(bits(number)?, dim, Arc::clone(profiled()?))),
        (Some("atom"), Some(number), None) => Box::new(Atom::new(bits(number)?, profiled()?)),
        (Some("qserve"), Some(number), None) => Box::new(QServe::new(bits(number)?, dim, profiled()?)),
        (Some("oaken-sign"), shares, None) => {
            let groups: Groups = shares.map_or_else(|| Ok(Groups::default()), str::parse).map_err(Failure::new)?;
            let thresholds = profiled()?.thresholds(&groups, false);
            Box::new(OakenSign::new(groups, thresholds))
        }
        _ => {
            let spec: CodecSpec = name.parse().map_err(|error| match error {
                SpecError::Unknown(_) => unknown(),
                other => Failure::from(other),
            })?;
            return Ok(Box::new(CodecSubject::new(name, spec.build(profile.map(Arc::as_ref))?)));
        }
    };
    Ok(subject)
}
