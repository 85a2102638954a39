//! The loss on held-out text.

use serde::Serialize;

use crate::error::{Error, Result};
use crate::fused::row_losses;
use crate::model::Model;

/// Losses in nats per token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Most tokens of context: the text is cut into windows of this length.
    pub window: usize,
    /// Number of predicted tokens.
    pub tokens: usize,
    /// Mean loss.
    pub loss: f64,
    /// Mean losses by position in the window, in ranges from 0 that double in length:
    /// `[first position, mean loss]`. A rise shows that the model fails at long range.
    pub by_position: Vec<(usize, f64)>,
}

/// Cuts `tokens` into windows of `window` tokens, the last one possibly shorter, and predicts each
/// window's next tokens.
pub fn evaluate(model: &Model, tokens: &[u32], window: usize) -> Result<Evaluation> {
    if tokens.len() < 2 || window == 0 || window > model.config().max_position_embeddings {
        return Err(Error::Flag(format!(
            "cannot evaluate {} tokens in windows of {window}: the model's context is {}",
            tokens.len(),
            model.config().max_position_embeddings
        )));
    }
    let mut losses = Vec::new();
    let last = tokens.len() - 1;
    for start in (0..last).step_by(window) {
        let end = (start + window).min(last);
        let logits = model.logits(&tokens[start..end], 1)?.flatten_all()?.to_vec1::<f32>()?;
        losses.extend(row_losses(&logits, &tokens[start + 1..end + 1]));
    }
    let mean = |from: usize, to: usize| {
        let (mut sum, mut count) = (0.0, 0usize);
        for (index, loss) in losses.iter().enumerate() {
            if (from..to).contains(&(index % window)) {
                (sum, count) = (sum + f64::from(*loss), count + 1);
            }
        }
        (count > 0).then(|| sum / count as f64)
    };
    let mut by_position = Vec::new();
    let (mut from, mut to) = (0, 64);
    while from < window {
        by_position.extend(mean(from, to).map(|loss| (from, loss)));
        (from, to) = (to, to * 2);
    }
    Ok(Evaluation { window, tokens: losses.len(), loss: mean(0, window).unwrap_or(f64::NAN), by_position })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Config;

    #[test]
    fn every_token_but_the_first_is_counted_and_an_untrained_model_guesses() {
        let model = Model::random(Config::new(30, 64, 96, 1, 2, 1, 128).unwrap(), 5, std::path::Path::new("")).unwrap();
        let tokens = (0..200).map(|index| index * 7 % 30).collect::<Vec<u32>>();
        let evaluation = evaluate(&model, &tokens, 128).unwrap();
        assert_eq!((evaluation.tokens, evaluation.by_position.len()), (199, 2));
        assert!((evaluation.loss - 30f64.ln()).abs() < 0.2, "{evaluation:?}");
        assert!(evaluate(&model, &tokens, 129).is_err());
    }
}
