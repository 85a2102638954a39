//! Profiles: statistics of a model's KV, in a small file that is made once for each model.
//!
//! The file is a safetensors file. Metadata: `format` = `cenote-profile`, `version` = `1`, `model`
//! (fingerprint, hex), and the `tokens` and `prompts` of its text. Tensors are `f32`, each with K
//! and V of every layer, `[layer][side][…]`: `means`, `deviations` and `steps` by channel;
//! `values`, `centered` and `normal`, which are [curves](Curve).
//!
//! A profile with [`Bases`] has version `2`, and besides `group` in its metadata, `frequencies`, and
//! for each group and side (`0.k`, `0.v`, `1.k` …) `bases.0.k.means`, `metric`, `scales`,
//! `deviations` and `magnitudes`, and `matrix` in `i16`.

use crate::bases::{self, Bases, Basis, bytes_of};
use crate::oaken::{Groups, Thresholds};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::HashMap;

/// Points of a curve.
pub const CURVE_POINTS: usize = 2001;
const FORMAT: &str = "cenote-profile";
const VERSION: &str = "1";
/// The version of a profile with bases.
const VERSION_WITH_BASES: &str = "2";

/// Quantiles of the values of a prompt, at even steps from the least to the greatest, averaged over
/// prompts (Oaken §4.3: the order of magnitudes depends on the model, not on the prompt).
pub type Curve = Vec<f32>;

/// The curve of one prompt's values.
///
/// # Panics
/// There are no values, or some are not finite.
#[must_use]
pub fn curve_of(mut values: Vec<f32>) -> Curve {
    assert!(!values.is_empty() && values.iter().all(|value| value.is_finite()), "no values, or some are not finite");
    values.sort_by(f32::total_cmp);
    let last = (values.len() - 1) as f64;
    (0..CURVE_POINTS).map(|point| values[(point as f64 / (CURVE_POINTS - 1) as f64 * last).round() as usize]).collect()
}

/// Statistics of K or V of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SideProfile {
    /// The mean of each channel, `[head][channel]`.
    pub means: Vec<f32>,
    /// The standard deviation of each channel.
    pub deviations: Vec<f32>,
    /// A step for each channel: an error of one step does about the same harm in any channel, layer
    /// and side.
    pub steps: Vec<f32>,
    /// The curve of values.
    pub values: Curve,
    /// The curve of values less the mean of their channel.
    pub centered: Curve,
    /// The curve of centered values over the deviation of their channel.
    pub normal: Curve,
}

/// Statistics of a model's KV.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Fingerprint of the model, as in engines and namespaces.
    pub model: [u8; 32],
    /// Tokens of the text.
    pub tokens: u64,
    /// Prompts of the text.
    pub prompts: u64,
    /// K and V of each layer.
    pub layers: Vec<[SideProfile; 2]>,
    /// Principal components, which `prism` needs.
    pub bases: Option<Bases>,
}

/// Bytes that are not a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Not a safetensors file.
    #[error("it is not a safetensors file: {0}")]
    File(String),
    /// A safetensors file with other content.
    #[error("{0}")]
    Content(String),
}

fn content(fact: impl Into<String>) -> ProfileError {
    ProfileError::Content(fact.into())
}

type Part = fn(&SideProfile) -> &Vec<f32>;
type PartMut = fn(&mut SideProfile) -> &mut Vec<f32>;

/// Tensors by name.
const PARTS: [(&str, Part, PartMut); 6] = [
    ("means", |side| &side.means, |side| &mut side.means),
    ("deviations", |side| &side.deviations, |side| &mut side.deviations),
    ("steps", |side| &side.steps, |side| &mut side.steps),
    ("values", |side| &side.values, |side| &mut side.values),
    ("centered", |side| &side.centered, |side| &mut side.centered),
    ("normal", |side| &side.normal, |side| &mut side.normal),
];

impl Profile {
    /// The bytes of the file.
    ///
    /// # Panics
    /// Layers or sides have different numbers of channels.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let hex = hex::encode(self.model);
        let facts = [
            ("format", FORMAT.to_owned()),
            ("version", if self.bases.is_some() { VERSION_WITH_BASES } else { VERSION }.to_owned()),
            ("model", hex),
            ("tokens", self.tokens.to_string()),
            ("prompts", self.prompts.to_string()),
        ];
        let mut metadata: HashMap<String, String> =
            facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        if let Some(bases) = &self.bases {
            metadata.insert("group".to_owned(), bases.group.to_string());
        }
        let bytes = PARTS.map(|(name, part, _)| {
            let values: Vec<u8> =
                self.layers.iter().flatten().flat_map(part).flat_map(|value| value.to_le_bytes()).collect();
            (name, values)
        });
        let tensors = bytes.iter().map(|(name, bytes)| {
            let shape = vec![self.layers.len(), 2, bytes.len() / 8 / self.layers.len().max(1)];
            ((*name).to_owned(), TensorView::new(Dtype::F32, shape, bytes).expect("every side has as many values"))
        });
        let of_bases = self.bases.as_ref().map(tensors_of).unwrap_or_default();
        let of_bases = of_bases.iter().map(|(name, dtype, bytes)| {
            let shape = vec![bytes.len() / (dtype.bitsize() / 8)];
            (name.clone(), TensorView::new(*dtype, shape, bytes).expect("whole numbers"))
        });
        safetensors::serialize(tensors.chain(of_bases), Some(metadata)).expect("names and shapes are sound")
    }

    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// The bytes are not a profile, or its numbers are invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, ProfileError> {
        let file = |error: safetensors::SafeTensorError| ProfileError::File(error.to_string());
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(file)?;
        let facts = header.metadata().clone().unwrap_or_default();
        let fact = |name: &str| facts.get(name).map_or("", String::as_str);
        if fact("format") != FORMAT {
            return Err(content("it is a safetensors file, but no profile"));
        }
        let has_bases = fact("version") == VERSION_WITH_BASES;
        if fact("version") != VERSION && !has_bases {
            return Err(content(format!("profiles of version `{}` are not known", fact("version"))));
        }
        let model = parse_hex(fact("model")).ok_or_else(|| content("its model's fingerprint is not 64 hex digits"))?;
        let number = |name| fact(name).parse().map_err(|_| content(format!("`{name}` is not a number")));
        let tensors = SafeTensors::deserialize(bytes).map_err(file)?;
        let mut layers: Vec<[SideProfile; 2]> = Vec::new();
        for (name, _, part) in PARTS {
            let tensor = tensors.tensor(name).map_err(file)?;
            let &[num_layers, 2, width] = tensor.shape() else {
                return Err(content(format!("`{name}` is not of shape [layer][2][…]")));
            };
            if tensor.dtype() != Dtype::F32 || width == 0 || num_layers == 0 || num_layers > usize::from(u16::MAX) {
                return Err(content(format!("`{name}` is empty, too large or not of single precision")));
            }
            layers.resize(layers.len().max(num_layers), Default::default());
            let rows = tensor.data().chunks_exact(4 * width);
            for (side, row) in layers.iter_mut().flatten().zip(rows) {
                *part(side) =
                    row.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().expect("four"))).collect();
            }
        }
        let bases = if has_bases {
            let group = fact("group").parse().ok().filter(|group| *group > 0);
            Some(parse_bases(
                &tensors,
                group.ok_or_else(|| content("`group` is not a number of layers"))?,
                layers.len(),
            )?)
        } else {
            None
        };
        let profile = Self { model, tokens: number("tokens")?, prompts: number("prompts")?, layers, bases };
        profile.check()?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), ProfileError> {
        let channels = self.layers[0][0].means.len();
        if !self.bases.as_ref().is_none_or(|bases| bases.are_sound(self.layers.len(), channels)) {
            return Err(content("its bases do not fit its layers, or have numbers that are not usable"));
        }
        for side in self.layers.iter().flatten() {
            let by_channel = [&side.means, &side.deviations, &side.steps];
            let curves = [&side.values, &side.centered, &side.normal];
            if by_channel.iter().any(|part| part.len() != channels)
                || curves.iter().any(|curve| curve.len() != CURVE_POINTS)
            {
                return Err(content("its tensors do not fit each other"));
            }
            if by_channel.into_iter().chain(curves).flatten().any(|value| !value.is_finite()) {
                return Err(content("some of its values are no numbers"));
            }
            let usable = |step: &f32| *step > 0.0 && (1.0 / step).is_finite();
            if !side.steps.iter().all(usable) || !side.deviations.iter().all(|value| *value >= 0.0) {
                return Err(content("some steps or deviations are not positive"));
            }
        }
        Ok(())
    }

    /// A name of all that codecs use: files of the same name are the same profile.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        self.hash_into(&mut hasher);
        *hasher.finalize().as_bytes()
    }

    /// Hashes all that codecs use. (Files of one profile may differ in the order of their tensors.)
    pub(crate) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        hasher.update(&self.model).update(&(self.layers.len() as u64).to_le_bytes());
        for (_, part, _) in PARTS {
            for values in self.layers.iter().flatten().map(part) {
                hasher.update(&(values.len() as u64).to_le_bytes());
                for value in values {
                    hasher.update(&value.to_le_bytes());
                }
            }
        }
        if let Some(bases) = &self.bases {
            bases.hash_into(hasher);
        }
    }

    /// Oaken's thresholds of each layer, of values or of centered values.
    #[must_use]
    pub fn thresholds(&self, groups: &Groups, centered: bool) -> Vec<[Thresholds; 2]> {
        let of =
            |side: &SideProfile| Thresholds::of_sample(groups, if centered { &side.centered } else { &side.values });
        self.layers.iter().map(|[k, v]| [of(k), of(v)]).collect()
    }
}

/// Names, types and bytes of the tensors of bases.
fn tensors_of(bases: &Bases) -> Vec<(String, Dtype, Vec<u8>)> {
    let mut tensors = vec![("frequencies".to_owned(), Dtype::F32, bytes_of(&bases.frequencies))];
    for (number, sides) in bases.groups.iter().enumerate() {
        for (basis, side) in sides.iter().zip(["k", "v"]) {
            let name = |part: &str| format!("bases.{number}.{side}.{part}");
            tensors.extend(bases::PARTS.map(|(part, values, _)| (name(part), Dtype::F32, bytes_of(values(basis)))));
            let matrix = basis.matrix.iter().flat_map(|value| value.to_le_bytes()).collect();
            tensors.push((name("matrix"), Dtype::I16, matrix));
        }
    }
    tensors
}

fn parse_bases(tensors: &SafeTensors<'_>, group: u16, layers: usize) -> Result<Bases, ProfileError> {
    let data = |name: String, dtype: Dtype| {
        let tensor = tensors.tensor(&name).map_err(|error| ProfileError::File(error.to_string()))?;
        if tensor.dtype() == dtype { Ok(tensor.data()) } else { Err(content(format!("`{name}` is not of {dtype:?}"))) }
    };
    let floats = |name: String| {
        let bytes = data(name, Dtype::F32)?;
        Ok(bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect::<Vec<f32>>())
    };
    let basis = |number: usize, side: &str| {
        let name = |part: &str| format!("bases.{number}.{side}.{part}");
        let mut basis = Basis::default();
        for (part, _, values) in bases::PARTS {
            *values(&mut basis) = floats(name(part))?;
        }
        let bytes = data(name("matrix"), Dtype::I16)?;
        basis.matrix = bytes.as_chunks().0.iter().map(|value| i16::from_le_bytes(*value)).collect();
        Ok(basis)
    };
    let numbers = 0..layers.div_ceil(group.into());
    let groups: Result<_, ProfileError> =
        numbers.map(|number| Ok([basis(number, "k")?, basis(number, "v")?])).collect();
    Ok(Bases { frequencies: floats("frequencies".to_owned())?, group, groups: groups? })
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).ok().map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let side = |shift: f32| SideProfile {
            means: vec![shift, 1.0],
            deviations: vec![1.0, 0.5],
            steps: vec![0.25, 0.125],
            values: curve_of((0..500).map(|value| value as f32 + shift).collect()),
            centered: curve_of(vec![-1.0, 1.0]),
            normal: curve_of(vec![-2.0, 2.0]),
        };
        let layers = (0..3).map(|layer| [side(layer as f32), side(-1.0)]).collect();
        Profile { model: [0xab; 32], tokens: 4096, prompts: 16, layers, bases: None }
    }

    /// Two groups, of two layers and of one.
    fn bases() -> Bases {
        let basis = |layers: usize, side: usize| Basis {
            means: vec![0.5; 2 * layers],
            metric: vec![1.0; [2, 4][side] * layers],
            scales: vec![0.25; 2 * layers],
            matrix: (0..2 * layers as i16).collect(),
            deviations: vec![2.0],
            magnitudes: vec![1.5],
        };
        let groups = [2, 1].map(|layers| [basis(layers, 0), basis(layers, 1)]).to_vec();
        Bases { frequencies: vec![1.0], group: 2, groups }
    }

    #[test]
    fn a_profile_is_parsed_back_and_other_bytes_are_refused() {
        let bytes = profile().to_bytes();
        assert_eq!(Profile::parse(&bytes), Ok(profile()));
        (0..bytes.len()).for_each(|end| assert!(Profile::parse(&bytes[..end]).is_err(), "cut at {end}"));
        let mut unsound = profile();
        for step in [0.0, -1.0, f32::NAN, 1e-45] {
            unsound.layers[1][1].steps[1] = step;
            assert!(Profile::parse(&unsound.to_bytes()).is_err(), "{step}");
        }
    }

    #[test]
    fn bases_are_parsed_back_and_unsound_ones_are_refused() {
        let whole = Profile { bases: Some(bases()), ..profile() };
        let bytes = whole.to_bytes();
        assert_eq!(Profile::parse(&bytes).as_ref(), Ok(&whole));
        (0..bytes.len()).step_by(199).for_each(|end| assert!(Profile::parse(&bytes[..end]).is_err(), "cut at {end}"));
        assert_ne!(whole.fingerprint(), profile().fingerprint());
        let changes: [fn(&mut Bases); 8] = [
            |bases| bases.frequencies[0] = f32::NAN,
            |bases| bases.frequencies.push(1.0),
            |bases| bases.group = 3,
            |bases| bases.groups.truncate(1),
            |bases| bases.groups[1][0].matrix.truncate(1),
            |bases| bases.groups[0][1].metric.truncate(4),
            |bases| bases.groups[0][1].deviations[0] = -1.0,
            |bases| bases.groups[1][1].scales[1] = f32::INFINITY,
        ];
        for change in changes {
            let mut unsound = whole.clone();
            change(unsound.bases.as_mut().expect("it has some"));
            assert!(Profile::parse(&unsound.to_bytes()).is_err());
            let mut other = whole.clone();
            other.bases.as_mut().expect("it has some").groups[0][0].matrix[1] = 9;
            assert_ne!(other.fingerprint(), whole.fingerprint());
        }
    }

    #[test]
    fn a_curve_runs_from_the_least_to_the_greatest_value() {
        let curve = curve_of((0..=4000).rev().map(|value| value as f32).collect());
        assert_eq!((curve.len(), curve[0], curve[1000], curve[2000]), (CURVE_POINTS, 0.0, 2000.0, 4000.0));
    }
}
