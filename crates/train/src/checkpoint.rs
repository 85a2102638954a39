//! Writes the model in Hugging Face format: bf16 weights, configuration, generation settings, and
//! the tables of n-grams if the model has some.

use std::collections::HashMap;
use std::path::Path;

use half::bf16;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;

use crate::engram;
use crate::error::{Error, Result, write_whole};
use crate::model::Model;
use crate::tokens::{BOS_ID, EOS_ID};

/// Writes `model.safetensors` (weights rounded to nearest-even bf16), `config.json` and
/// `generation_config.json`, and `engram.safetensors` if the model has tables.
///
/// The tied output head is not written; `tie_word_embeddings` is set instead.
pub fn save(model: &Model, folder: &Path) -> Result<()> {
    let path = folder.join("model.safetensors");
    let mut rounded = Vec::new();
    for (name, var) in model.weights().iter().filter(|(name, _)| !engram::is_table(name)) {
        let values = var.flatten_all()?.to_vec1::<f32>()?;
        let bytes = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect::<Vec<_>>();
        rounded.push((name, var.dims().to_vec(), bytes));
    }
    let views = rounded
        .iter()
        .map(|(name, shape, bytes)| Ok((*name, TensorView::new(Dtype::BF16, shape.clone(), bytes)?)))
        .collect::<std::result::Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|error| Error::content(&path, error))?;
    // Without this metadata `transformers` refuses to guess the framework.
    let note = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = safetensors::serialize(views, Some(note)).map_err(|error| Error::content(&path, error))?;
    write_whole(&path, &bytes)?;
    engram::save(model.weights().iter(), folder)?;
    let path = folder.join("config.json");
    let config = serde_json::to_string_pretty(model.config()).map_err(|error| Error::content(&path, error))?;
    write_whole(&path, format!("{config}\n").as_bytes())?;
    let generation = json!({
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "do_sample": true,
        "temperature": 0.8,
        "top_p": 0.95,
    });
    write_whole(&folder.join("generation_config.json"), format!("{generation:#}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Config;

    #[test]
    fn a_saved_model_reloads_with_names_shapes_and_rounded_values() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::random(Config::new(30, 64, 96, 2, 2, 1, 32).unwrap(), 5, std::path::Path::new("")).unwrap();
        save(&model, folder.path()).unwrap();
        let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.len(), 2 + 9 * 2);
        let key = file.tensor("model.layers.1.self_attn.k_proj.weight").unwrap();
        assert_eq!((key.shape(), key.dtype()), (&[64, 64][..], Dtype::BF16));
        assert!(file.tensor("lm_head.weight").is_err(), "the tied head is not written");
        let loaded = Model::load(folder.path()).unwrap();
        assert_eq!(loaded.config(), model.config());
        for (name, var) in model.weights() {
            let values = |var: &candle_core::Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            for (ours, theirs) in values(var).iter().zip(values(&loaded.weights()[name])) {
                assert_eq!(bf16::from_f32(*ours).to_f32(), theirs, "{name}");
            }
        }
    }

    #[test]
    fn a_weight_of_another_shape_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        save(
            &Model::random(Config::new(30, 64, 96, 1, 2, 1, 32).unwrap(), 5, std::path::Path::new("")).unwrap(),
            folder.path(),
        )
        .unwrap();
        let path = folder.path().join("config.json");
        let config = std::fs::read_to_string(&path).unwrap().replace("\"vocab_size\": 30", "\"vocab_size\": 31");
        std::fs::write(&path, config).unwrap();
        let error = Model::load(folder.path()).err().unwrap().to_string();
        assert!(error.contains("model.embed_tokens.weight") && error.contains("[30, 64]"), "{error}");
    }
}
