//! `config.json` and `generation_config.json` of a Hugging Face Llama directory.
//!
//! Defaults are those of `LlamaConfig` in transformers (PyPI). A model that this engine cannot
//! compute is refused with the name of the unsupported setting.

use crate::error::{LoadError, read, read_json_if_present};
use cenote_base::TokenId;
use cenote_engram::{ConfigError, Family, NgramConfig};
use serde::Deserialize;
use std::path::Path;

/// The model's shape and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Values per head; even.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// The norm's epsilon.
    pub rms_norm_eps: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// Whether the embedding is also the output projection.
    pub tie_word_embeddings: bool,
    /// Whether Q, K, V and O have biases.
    pub attention_bias: bool,
    /// Whether the MLP has biases.
    pub mlp_bias: bool,
    /// Longest sequence that the model supports, in tokens.
    pub max_position_embeddings: usize,
    /// Number of most recent tokens that attention sees (Mistral); `None`: all.
    pub sliding_window: Option<usize>,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<TokenId>,
    /// Tables of n-grams, if some layers have them.
    pub engram: Option<NgramConfig>,
}

/// Rotary embedding (Su et al., 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling of the frequencies for longer contexts.
    pub scaling: RopeScaling,
}

/// Scaling of rotary frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: low frequencies divided by `factor`, high ones kept, those between interpolated.
    Llama3 {
        /// The divisor.
        factor: f64,
        /// Frequencies are low if their wavelength exceeds
        /// `original_max_position_embeddings / low_freq_factor`.
        low_freq_factor: f64,
        /// Frequencies are high if their wavelength is below
        /// `original_max_position_embeddings / high_freq_factor`.
        high_freq_factor: f64,
        /// Context length before the scaling.
        original_max_position_embeddings: f64,
    },
}

impl Rope {
    /// Angle per position for each pair of dimensions of a head, in f32 with transformers' order of
    /// operations.
    #[must_use]
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|pair| {
                let exponent = (2 * pair) as f32 / head_dim as f32;
                let plain = 1.0 / self.theta.powf(f64::from(exponent)) as f32;
                match self.scaling {
                    RopeScaling::Default => plain,
                    RopeScaling::Linear { factor } => plain / factor as f32,
                    RopeScaling::Llama3 {
                        factor,
                        low_freq_factor: low,
                        high_freq_factor: high,
                        original_max_position_embeddings: original,
                    } => {
                        let wavelength = 2.0 * std::f64::consts::PI / f64::from(plain);
                        if wavelength < original / high {
                            plain
                        } else if wavelength > original / low {
                            plain / factor as f32
                        } else {
                            let smooth = (original / wavelength - low) / (high - low);
                            ((1.0 - smooth) * f64::from(plain) / factor + smooth * f64::from(plain)) as f32
                        }
                    }
                }
            })
            .collect()
    }
}

#[derive(Deserialize)]
struct RawConfig {
    architectures: Option<Vec<String>>,
    model_type: Option<String>,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    hidden_act: Option<String>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RawRope>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    max_position_embeddings: Option<usize>,
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<serde_json::Value>,
    quantization_config: Option<serde_json::Value>,
    partial_rotary_factor: Option<f64>,
    #[serde(default, deserialize_with = "present")]
    eos_token_id: Option<serde_json::Value>,
}

/// `rope_scaling` (until transformers 4) or `rope_parameters` (since 5).
#[derive(Deserialize)]
struct RawRope {
    rope_type: Option<String>,
    /// The older name of `rope_type`. Transformers since 4.43 save both.
    #[serde(rename = "type")]
    older_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

#[derive(Deserialize, Default)]
struct RawGenerationConfig {
    #[serde(default, deserialize_with = "present")]
    eos_token_id: Option<serde_json::Value>,
}

/// Distinguishes `null` from an absent key. `eos_token_id: null` means that no token ends a
/// sequence, and `sliding_window: null` that there is no window.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<serde_json::Value>, D::Error> {
    serde_json::Value::deserialize(deserializer).map(Some)
}

impl ModelConfig {
    /// Reads the configuration files of `dir`.
    ///
    /// # Errors
    /// A file is missing or not JSON, a value is invalid, or this engine cannot compute the model.
    pub fn load(dir: &Path) -> Result<Self, LoadError> {
        let path = dir.join("config.json");
        // Read once: the engine and the tables are of one content.
        let text = read(&path)?;
        let raw: RawConfig =
            serde_json::from_str(&text).map_err(|source| LoadError::Json { path: path.clone(), source })?;
        raw.check_supported(&path)?;
        let rope = raw.rope(&path)?;

        let positive = |name: &str, value: usize| match value {
            // Larger sizes are typing errors; the bound keeps products of sizes within 64 bits.
            1..=16_777_216 => Ok(value),
            _ => Err(LoadError::invalid(&path, format!("`{name}` is {value}; it must be 1 to 16777216"))),
        };
        let hidden_size = positive("hidden_size", raw.hidden_size)?;
        let num_heads = positive("num_attention_heads", raw.num_attention_heads)?;
        let num_kv_heads = positive(
            "num_key_value_heads",
            raw.num_key_value_heads.unwrap_or(if raw.is_mistral() { 8 } else { num_heads }),
        )?;
        let head_dim = positive("head_dim", raw.head_dim.unwrap_or(hidden_size / num_heads))?;
        if !num_heads.is_multiple_of(num_kv_heads) {
            let fact = format!("{num_heads} attention heads cannot share {num_kv_heads} key/value heads evenly");
            return Err(LoadError::invalid(&path, fact));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(LoadError::invalid(&path, format!("`head_dim` is {head_dim}; rotary embedding needs pairs")));
        }
        let rms_norm_eps = raw.rms_norm_eps.unwrap_or(1e-6);
        if !(rms_norm_eps.is_finite() && rms_norm_eps >= 0.0) {
            return Err(LoadError::invalid(&path, format!("`rms_norm_eps` is {rms_norm_eps}")));
        }
        let vocab_size = positive("vocab_size", raw.vocab_size)?;
        let longest = raw.max_position_embeddings.unwrap_or(if raw.is_mistral() { 131_072 } else { 2048 });
        let max_position_embeddings = positive("max_position_embeddings", longest)?;
        Ok(Self {
            hidden_size,
            intermediate_size: positive("intermediate_size", raw.intermediate_size)?,
            num_layers: positive("num_hidden_layers", raw.num_hidden_layers)?,
            num_heads,
            num_kv_heads,
            head_dim,
            vocab_size,
            rms_norm_eps: rms_norm_eps as f32,
            rope,
            tie_word_embeddings: raw.tie_word_embeddings.unwrap_or(false),
            attention_bias: raw.attention_bias.unwrap_or(false),
            mlp_bias: raw.mlp_bias.unwrap_or(false),
            max_position_embeddings,
            sliding_window: raw.sliding_window(&path)?.filter(|window| *window < max_position_embeddings),
            eos_token_ids: eos_token_ids(dir, raw.eos_token_id.as_ref())?,
            engram: engram(&path, &text, raw.num_hidden_layers)?,
        })
    }

    /// Every value besides the weights that KV depends on, as text for a fingerprint.
    #[must_use]
    pub fn kv_identity(&self) -> String {
        format!(
            "llama kv 1; hidden {} inter {} layers {} heads {}/{} dim {} eps {:08x} rope {:?}",
            self.hidden_size,
            self.intermediate_size,
            self.num_layers,
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            self.rms_norm_eps.to_bits(),
            self.rope,
        )
    }
}

impl RawConfig {
    fn check_supported(&self, path: &Path) -> Result<(), LoadError> {
        const KNOWN: [&str; 2] = ["LlamaForCausalLM", "MistralForCausalLM"];
        let refuse = |fact: String| Err(LoadError::unsupported(path, fact));
        match self.architectures.as_deref() {
            Some([]) | None => {
                let model_type = self.model_type.as_deref().unwrap_or("llama");
                if !["llama", "mistral"].contains(&model_type) {
                    return refuse(format!("model type `{model_type}` is not of the Llama family"));
                }
            }
            Some(names) => {
                if let Some(name) = names.iter().find(|name| !KNOWN.contains(&name.as_str())) {
                    return refuse(format!(
                        "architecture `{name}` is not served; this engine computes {}",
                        KNOWN.join(" and ")
                    ));
                }
            }
        }
        if let Some(activation) = self.hidden_act.as_deref().filter(|name| !["silu", "swish"].contains(name)) {
            return refuse(format!("`hidden_act` is `{activation}`; this engine computes `silu`"));
        }
        if self.quantization_config.is_some() {
            return refuse("`quantization_config` is set; this engine reads F32, F16 and BF16 weights".to_owned());
        }
        Ok(())
    }

    fn is_mistral(&self) -> bool {
        match self.architectures.as_deref() {
            Some([name, ..]) => name == "MistralForCausalLM",
            Some([]) | None => self.model_type.as_deref() == Some("mistral"),
        }
    }

    /// The attention window. Only Mistral models use it; their default is 4096 tokens.
    fn sliding_window(&self, path: &Path) -> Result<Option<usize>, LoadError> {
        match &self.sliding_window {
            _ if !self.is_mistral() => Ok(None),
            None => Ok(Some(4096)),
            Some(serde_json::Value::Null) => Ok(None),
            Some(value) => {
                match value.as_u64().and_then(|window| usize::try_from(window).ok()).filter(|window| *window > 1) {
                    Some(window) => Ok(Some(window)),
                    None => Err(LoadError::invalid(path, format!("`sliding_window` is {value}"))),
                }
            }
        }
    }

    fn rope(&self, path: &Path) -> Result<Rope, LoadError> {
        let raw = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let partial = raw.and_then(|raw| raw.partial_rotary_factor).or(self.partial_rotary_factor);
        if let Some(factor) = partial.filter(|factor| *factor != 1.0) {
            return Err(LoadError::unsupported(
                path,
                format!("`partial_rotary_factor` is {factor}; this engine rotates whole heads"),
            ));
        }
        let theta = raw.and_then(|raw| raw.rope_theta).or(self.rope_theta).unwrap_or(10_000.0);
        if !(theta.is_finite() && theta > 0.0) {
            return Err(LoadError::invalid(path, format!("`rope_theta` is {theta}")));
        }
        let Some(raw) = raw else { return Ok(Rope { theta, scaling: RopeScaling::Default }) };
        let kind = match (raw.rope_type.as_deref(), raw.older_type.as_deref()) {
            (Some(new), Some(old)) if new != old => {
                let fact = format!("the rope has `rope_type` {new:?} and `type` {old:?}; they must be equal");
                return Err(LoadError::invalid(path, fact));
            }
            (new, old) => new.or(old).unwrap_or("default"),
        };
        let value = |name: &str, value: Option<f64>| match value {
            Some(value) if value.is_finite() && value > 0.0 => Ok(value),
            Some(value) => Err(LoadError::invalid(path, format!("rope `{kind}`: `{name}` is {value}"))),
            None => Err(LoadError::invalid(path, format!("rope `{kind}` needs `{name}`"))),
        };
        let scaling = match kind {
            "default" => RopeScaling::Default,
            "linear" => RopeScaling::Linear { factor: value("factor", raw.factor)? },
            "llama3" => RopeScaling::Llama3 {
                factor: value("factor", raw.factor)?,
                low_freq_factor: value("low_freq_factor", raw.low_freq_factor)?,
                high_freq_factor: value("high_freq_factor", raw.high_freq_factor)?,
                original_max_position_embeddings: value(
                    "original_max_position_embeddings",
                    raw.original_max_position_embeddings,
                )?,
            },
            other => {
                let fact =
                    format!("rope type `{other}` is not served; this engine computes default, linear and llama3");
                return Err(LoadError::unsupported(path, fact));
            }
        };
        Ok(Rope { theta, scaling })
    }
}

/// The tables of n-grams that `config.json` describes.
fn engram(path: &Path, text: &str, layers: usize) -> Result<Option<NgramConfig>, LoadError> {
    let config = match NgramConfig::parse(text.as_bytes()) {
        Err(ConfigError::NoTables) => return Ok(None),
        Err(error) => return Err(LoadError::invalid(path, error.to_string())),
        Ok(config) => config,
    };
    if config.family() == Family::Qwen {
        let fact = "`ple_layer_ids` is set; of tables of n-grams, this engine computes DeepSeek's";
        return Err(LoadError::unsupported(path, fact));
    }
    let mut known = std::collections::BTreeSet::new();
    match config.layer_ids.iter().find(|id| **id >= layers as u64 || !known.insert(**id)) {
        Some(id) => {
            let fact = format!("`engram_layer_ids` has {id}; it must list different layers below {layers}");
            Err(LoadError::invalid(path, fact))
        }
        None => Ok(Some(config)),
    }
}

/// As transformers' `generate`: `generation_config.json` wins over `config.json`; the default is
/// token 2.
fn eos_token_ids(dir: &Path, config: Option<&serde_json::Value>) -> Result<Vec<TokenId>, LoadError> {
    let path = dir.join("generation_config.json");
    let generation = read_json_if_present::<RawGenerationConfig>(&path)?.and_then(|raw| raw.eos_token_id);
    let (path, value) = match (&generation, config) {
        (Some(value), _) => (path, value),
        (None, Some(value)) => (dir.join("config.json"), value),
        (None, None) => return Ok(vec![2]),
    };
    let ids = match value {
        serde_json::Value::Null => Some(Vec::new()),
        serde_json::Value::Array(ids) => ids.iter().map(token_id).collect(),
        one => token_id(one).map(|id| vec![id]),
    };
    ids.ok_or_else(|| {
        LoadError::invalid(&path, format!("`eos_token_id` is {value}; it must be a token id or a list of them"))
    })
}

fn token_id(value: &serde_json::Value) -> Option<TokenId> {
    value.as_u64().and_then(|id| id.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#""hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100"#;

    fn load(config: &str, generation: Option<&str>) -> Result<ModelConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        if let Some(text) = generation {
            std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
        }
        ModelConfig::load(dir.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn absent_values_take_transformers_defaults() {
        let config = load(&format!("{{{SMALL}}}"), None).unwrap();
        assert_eq!((config.num_kv_heads, config.head_dim, config.tie_word_embeddings), (4, 16, false));
        assert_eq!(config.rope, Rope { theta: 10_000.0, scaling: RopeScaling::Default });
        assert_eq!(config.eos_token_ids, [2]);
    }

    #[test]
    fn both_forms_of_rope_parameters_are_read() {
        let scaling = r#""factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3""#;
        let old =
            load(&format!(r#"{{{SMALL}, "rope_theta": 500000.0, "rope_scaling": {{{scaling}}}}}"#), None).unwrap();
        let new =
            load(&format!(r#"{{{SMALL}, "rope_parameters": {{"rope_theta": 500000.0, {scaling}}}}}"#), None).unwrap();
        assert_eq!(old, new);
        assert!(matches!(old.rope.scaling, RopeScaling::Llama3 { .. }));
        let linear =
            load(&format!(r#"{{{SMALL}, "rope_scaling": {{"type": "linear", "factor": 2.0}}}}"#), None).unwrap();
        assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 2.0 });
        // Both names of the type, as transformers 4.43 and newer save an older file.
        for keys in ["rope_scaling", "rope_parameters"] {
            let both = |old: &str| {
                let rope = format!(r#""type": {old}, "rope_type": "linear", "factor": 2.0"#);
                load(&format!(r#"{{{SMALL}, "{keys}": {{{rope}}}}}"#), None)
            };
            assert_eq!(both(r#""linear""#).unwrap(), linear);
            assert_eq!(both("null").unwrap(), linear);
            let error = both(r#""llama3""#).unwrap_err();
            assert!(error.contains("they must be equal"), "{error}");
        }
    }

    #[test]
    fn only_mistral_has_a_window() {
        let with = |text: &str| {
            load(&format!("{{{SMALL}, \"num_key_value_heads\": 4, {text}}}"), None).unwrap().sliding_window
        };
        let mistral = r#""architectures": ["MistralForCausalLM"]"#;
        assert_eq!(with(r#""sliding_window": 512"#), None);
        assert_eq!(with(mistral), Some(4096));
        assert_eq!(with(&format!(r#"{mistral}, "sliding_window": null"#)), None);
        assert_eq!(with(&format!(r#"{mistral}, "sliding_window": 512"#)), Some(512));
        assert_eq!(with(&format!(r#"{mistral}, "max_position_embeddings": 512, "sliding_window": 512"#)), None);
    }

    #[test]
    fn eos_is_one_token_or_many_or_none() {
        let with = |config: &str, generation| load(&format!("{{{SMALL}{config}}}"), generation).unwrap().eos_token_ids;
        assert_eq!(with(r#", "eos_token_id": 7"#, None), [7]);
        assert_eq!(with(r#", "eos_token_id": [7, 9]"#, None), [7, 9]);
        assert_eq!(with(r#", "eos_token_id": 7"#, Some(r#"{"eos_token_id": [1, 3]}"#)), [1, 3]);
        assert_eq!(with(r#", "eos_token_id": 7"#, Some("{}")), [7]);
        assert_eq!(with(r#", "eos_token_id": null"#, None), [0_u32; 0]);
    }

    #[test]
    fn an_unsupported_model_is_refused_by_name() {
        for (config, words) in [
            (format!(r#"{{{SMALL}, "architectures": ["GPT2LMHeadModel"]}}"#), "GPT2LMHeadModel"),
            (format!(r#"{{{SMALL}, "rope_scaling": {{"rope_type": "yarn", "factor": 2.0}}}}"#), "yarn"),
            (format!(r#"{{{SMALL}, "rope_scaling": {{"rope_type": "llama3"}}}}"#), "needs `factor`"),
            (format!(r#"{{{SMALL}, "hidden_act": "gelu"}}"#), "gelu"),
            (format!(r#"{{{SMALL}, "num_key_value_heads": 3}}"#), "3 key/value heads"),
            (format!(r#"{{{SMALL}, "num_key_value_heads": 0}}"#), "num_key_value_heads"),
            (format!(r#"{{{SMALL}, "quantization_config": {{"bits": 4}}}}"#), "quantization_config"),
            (r#"{"hidden_size": 64}"#.to_owned(), "intermediate_size"),
            ("not json".to_owned(), "not valid JSON"),
        ] {
            let error = load(&config, None).unwrap_err();
            assert!(error.contains("config.json") && error.contains(words), "{error}");
        }
    }
}
