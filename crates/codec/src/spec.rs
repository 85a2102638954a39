//! Codecs as text, in flags, settings and tables.

use crate::codec::PageCodec;
use crate::oaken::{Groups, Oaken};
use crate::prism::Prism;
use crate::profile::Profile;
use crate::qpack::{Channels, QPack};
use crate::qpackz::QPackZ;
use crate::raw::Raw;
use crate::speckv::{SpecKv, SpecKvMode};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A codec with its settings.
#[derive(Clone, Debug, PartialEq)]
pub enum CodecSpec {
    /// `raw`
    Raw,
    /// `int8`, `int8+delta` or `int8+delta+rle`
    SpecKv(SpecKvMode),
    /// `oaken`, or with other groups as in `oaken:4/90/6:5`; `oaken-mean`: of values less the means
    /// of their channels
    Oaken {
        /// The shares of the groups and the bits of outliers.
        groups: Groups,
        /// Whether means are subtracted first.
        centered: bool,
    },
    /// `qpack:0.5`: the profile's steps times 0.5
    QPack(f32),
    /// `qpackz:0.5`: the same codes, entropy-coded
    QPackZ(f32),
    /// `prism:1`: components of several layers in steps times 1
    Prism(f32),
}

/// The default rate of `qpack` and `qpackz`: about four bits a value.
pub const QPACK_RATE: f32 = 0.5;

/// The default rate of `prism`.
pub const PRISM_RATE: f32 = 1.0;

/// A codec that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// An unknown name.
    #[error(
        "`{0}` is no codec: raw, int8, int8+delta, int8+delta+rle, oaken[:SHARES:BITS], oaken-mean[:…], qpack[:RATE], qpackz[:RATE] or prism[:RATE]"
    )]
    Unknown(String),
    /// An invalid setting.
    #[error("`{codec}`: {fact}")]
    Setting {
        /// The codec's text.
        codec: String,
        /// The problem.
        fact: String,
    },
    /// The codec needs a profile.
    #[error("`{0}` needs a profile of the model: make one with `cenote profile`")]
    NoProfile(String),
    /// The codec needs bases, which the profile does not have.
    #[error("`{0}` needs a profile with bases, and this one has none: make it with `cenote profile --bases`")]
    NoBases(String),
}

impl FromStr for CodecSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (name, setting) = text.split_once(':').map_or((text, None), |(name, setting)| (name, Some(setting)));
        let wrong = |fact: String| SpecError::Setting { codec: text.to_owned(), fact };
        let spec = match name {
            "raw" => Self::Raw,
            "int8" => Self::SpecKv(SpecKvMode::Int8),
            "int8+delta" => Self::SpecKv(SpecKvMode::Delta),
            "int8+delta+rle" => Self::SpecKv(SpecKvMode::DeltaRle),
            "oaken" | "oaken-mean" => {
                let groups = setting.map_or_else(|| Ok(Groups::default()), str::parse).map_err(wrong)?;
                return Ok(Self::Oaken { groups, centered: name == "oaken-mean" });
            }
            "qpack" | "qpackz" | "prism" => {
                let rate = setting
                    .map_or(Ok(if name == "prism" { PRISM_RATE } else { QPACK_RATE }), str::parse)
                    .map_err(|_| wrong("its rate is not a number".to_owned()))?;
                if !(1e-3..=1e3).contains(&rate) {
                    return Err(wrong("its rate is not between 0.001 and 1000".to_owned()));
                }
                return Ok(match name {
                    "qpack" => Self::QPack(rate),
                    "qpackz" => Self::QPackZ(rate),
                    _ => Self::Prism(rate),
                });
            }
            _ => return Err(SpecError::Unknown(text.to_owned())),
        };
        match setting {
            None => Ok(spec),
            Some(_) => Err(wrong(format!("{name} has no settings"))),
        }
    }
}

impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw => f.write_str("raw"),
            Self::SpecKv(SpecKvMode::Int8) => f.write_str("int8"),
            Self::SpecKv(SpecKvMode::Delta) => f.write_str("int8+delta"),
            Self::SpecKv(SpecKvMode::DeltaRle) => f.write_str("int8+delta+rle"),
            Self::Oaken { groups, centered } => {
                write!(f, "oaken{}:{groups}", if *centered { "-mean" } else { "" })
            }
            Self::QPack(rate) => write!(f, "qpack:{rate}"),
            Self::QPackZ(rate) => write!(f, "qpackz:{rate}"),
            Self::Prism(rate) => write!(f, "prism:{rate}"),
        }
    }
}

impl CodecSpec {
    /// Builds the codec. Its frames name the profile and these settings together.
    ///
    /// # Errors
    /// The profile is missing, or its steps do not fit the rate.
    pub fn build(&self, profile: Option<&Profile>) -> Result<Arc<dyn PageCodec>, SpecError> {
        let known = || profile.ok_or_else(|| SpecError::NoProfile(self.to_string()));
        Ok(match self {
            Self::Raw => Arc::new(Raw),
            Self::SpecKv(mode) => Arc::new(SpecKv { mode: *mode }),
            Self::Oaken { groups, centered } => {
                let profile = known()?;
                let codec = Oaken::new(groups.clone(), profile.thresholds(groups, *centered), self.id_with(profile));
                let means =
                    || profile.layers.iter().map(|sides| sides.each_ref().map(|side| side.means.clone())).collect();
                Arc::new(if *centered { codec.with_means(means()) } else { codec })
            }
            Self::Prism(rate) => {
                let profile = known()?;
                let bases = profile.bases.as_ref().ok_or_else(|| SpecError::NoBases(self.to_string()))?;
                let codec = Prism::new(bases, profile.layers.len(), Prism::steps(*rate), self.id_with(profile));
                Arc::new(codec.ok_or_else(|| self.unsound_steps())?)
            }
            Self::QPackZ(rate) => {
                let profile = known()?;
                let codec = QPackZ::new(profile, *rate, self.id_with(profile));
                Arc::new(codec.ok_or_else(|| self.unsound_steps())?)
            }
            Self::QPack(rate) => {
                let profile = known()?;
                let channels: Vec<[Channels; 2]> = (profile.layers.iter())
                    .map(|sides| {
                        sides.each_ref().map(|side| Channels {
                            means: side.means.clone(),
                            steps: side.steps.iter().map(|step| step * rate).collect(),
                        })
                    })
                    .collect();
                if !channels.iter().flatten().all(Channels::is_sound) {
                    return Err(self.unsound_steps());
                }
                Arc::new(QPack::new(channels, self.id_with(profile)))
            }
        })
    }

    fn unsound_steps(&self) -> SpecError {
        let fact = "at this rate some steps are too small or too large".to_owned();
        SpecError::Setting { codec: self.to_string(), fact }
    }

    /// The id of the profile and the settings in frames; never 0.
    fn id_with(&self, profile: &Profile) -> u32 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.to_string().as_bytes()).update(&[0]);
        profile.hash_into(&mut hasher);
        let hash = hasher.finalize();
        u32::from_le_bytes(hash.as_bytes()[..4].try_into().expect("four")).max(1)
    }
}

/// A codec for each layer, as in `0-1=int8,qpack:0.5`. The first entry that names a layer applies;
/// an entry without layers applies to all others.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpecs(Vec<(Option<(u16, u16)>, CodecSpec)>);

impl FromStr for LayerSpecs {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let wrong = |fact: &str| SpecError::Setting { codec: text.to_owned(), fact: fact.to_owned() };
        let mut specs = Vec::new();
        for part in text.split(',') {
            let Some((layers, codec)) = part.split_once('=') else {
                specs.push((None, part.parse()?));
                continue;
            };
            let (first, last) = layers.split_once('-').unwrap_or((layers, layers));
            let number =
                |text: &str| text.parse::<u16>().map_err(|_| wrong("layers are numbers from 0, as in 0-3=int8"));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong("the first layer of a range is not behind the last"));
            }
            specs.push((Some((first, last)), codec.parse()?));
        }
        Ok(Self(specs))
    }
}

impl fmt::Display for LayerSpecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (layers, spec)) in self.0.iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            match layers {
                Some((first, last)) if first == last => write!(f, "{first}={spec}")?,
                Some((first, last)) => write!(f, "{first}-{last}={spec}")?,
                None => write!(f, "{spec}")?,
            }
        }
        Ok(())
    }
}

impl LayerSpecs {
    /// Entries for the codecs of the layers, in their order.
    #[must_use]
    pub fn of_layers(layers: &[CodecSpec]) -> Self {
        let mut specs: Vec<(Option<(u16, u16)>, CodecSpec)> = Vec::new();
        for (layer, spec) in (0..).zip(layers) {
            match specs.last_mut() {
                Some((Some((_, last)), same)) if same == spec => *last = layer,
                _ => specs.push((Some((layer, layer)), spec.clone())),
            }
        }
        if let [(layers, _)] = specs.as_mut_slice() {
            *layers = None;
        }
        Self(specs)
    }

    /// Builds the codec of each layer.
    ///
    /// # Errors
    /// A layer has no codec, or a codec cannot be built.
    pub fn build(&self, layers: u16, profile: Option<&Profile>) -> Result<Vec<Arc<dyn PageCodec>>, SpecError> {
        let built: Result<Vec<_>, _> = self.0.iter().map(|(_, spec)| spec.build(profile)).collect();
        let built = built?;
        let of_layer = |layer: u16| {
            let names = |range: &Option<(u16, u16)>| range.is_none_or(|(first, last)| (first..=last).contains(&layer));
            let at = self.0.iter().position(|(range, _)| range.is_some() && names(range));
            let at = at.or_else(|| self.0.iter().position(|(range, _)| range.is_none()));
            let none = || SpecError::Setting { codec: self.to_string(), fact: format!("layer {layer} has no codec") };
            at.map(|at| Arc::clone(&built[at])).ok_or_else(none)
        };
        let codecs: Vec<_> = (0..layers).map(of_layer).collect::<Result<_, _>>()?;
        for (layer, codec) in (0..layers).zip(&codecs) {
            let Some(group) = codec.as_group() else { continue };
            let own = group.layers(layer);
            let is_same = |other: u16| {
                codecs
                    .get(usize::from(other))
                    .is_some_and(|other| (other.id(), other.profile()) == (codec.id(), codec.profile()))
            };
            if !own.contains(&layer) || !own.clone().all(is_same) {
                let fact = format!(
                    "layer {layer} is encoded together with all of {}-{}; name one codec for them",
                    own.start,
                    own.end.saturating_sub(1)
                );
                return Err(SpecError::Setting { codec: self.to_string(), fact });
            }
        }
        Ok(codecs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_gets_the_codec_that_names_it_or_the_default() {
        let ids = |text: &str| {
            let codecs = text.parse::<LayerSpecs>().unwrap().build(4, None);
            codecs.map(|codecs| codecs.iter().map(|codec| codec.id() as u8).collect::<Vec<u8>>())
        };
        assert_eq!(ids("int8"), Ok(vec![1; 4]));
        assert_eq!(ids("raw,1-2=int8"), Ok(vec![0, 1, 1, 0]));
        assert_eq!(ids("3=raw,int8"), Ok(vec![1, 1, 1, 0]));
        assert!(ids("0-2=int8").is_err() && ids("qpack").is_err());
        assert_eq!("0-1=int8,7=raw,qpack:0.5".parse::<LayerSpecs>().unwrap().to_string(), "0-1=int8,7=raw,qpack:0.5");
        assert!(["", "x=int8", "3-1=int8", "1=", "int8,"].iter().all(|text| text.parse::<LayerSpecs>().is_err()));
    }

    #[test]
    fn adjacent_layers_with_one_codec_share_an_entry() {
        let told = |layers: &[&str]| {
            let layers: Vec<CodecSpec> = layers.iter().map(|layer| layer.parse().unwrap()).collect();
            LayerSpecs::of_layers(&layers).to_string()
        };
        assert_eq!(told(&["raw", "int8", "int8", "raw"]), "0=raw,1-2=int8,3=raw");
        assert_eq!(told(&["int8", "int8"]), "int8");
    }

    #[test]
    fn texts_of_codecs_are_parsed_back() {
        for text in
            ["raw", "int8", "int8+delta", "int8+delta+rle", "oaken:4/90/6:5", "oaken-mean:10/90:4", "qpack:0.35"]
        {
            assert_eq!(text.parse::<CodecSpec>().unwrap().to_string(), text);
        }
        assert_eq!("oaken".parse::<CodecSpec>().unwrap().to_string(), "oaken:4/90/6:5");
        assert_eq!("qpack".parse(), Ok(CodecSpec::QPack(QPACK_RATE)));
        for text in ["", "int4", "raw:1", "qpack:", "qpack:0", "qpack:NaN", "oaken:", "oaken:50/60:4", "int8:3"] {
            assert!(text.parse::<CodecSpec>().is_err(), "{text}");
        }
        let refused = CodecSpec::QPack(1.0).build(None).err();
        assert_eq!(refused, Some(SpecError::NoProfile("qpack:1".to_owned())));
    }
}
