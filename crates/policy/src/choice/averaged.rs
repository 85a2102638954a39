//! Predicts the pages with the best exponentially averaged scores.
//!
//! A page that one query passes over often returns a few steps later. The average remembers it, and
//! forgets a page that one query alone chose. Scores are upper bounds of logits and differ in level
//! from step to step, so each is averaged as `exp(score - highest score)`: a bound on the page's part
//! of the attention.

use super::{ChoicePredictor, ChoiceShape, Chooser, PageNumber, rankable, top_pages};

/// Weight of the newest score in the average.
pub const AVERAGE_WEIGHT: f32 = 0.5;

/// Averaged scores of each choice.
#[derive(Clone, Debug)]
pub struct Averaged {
    shape: ChoiceShape,
    averages: Vec<Vec<f32>>,
}

impl Averaged {
    /// Without observations.
    #[must_use]
    pub fn new(shape: ChoiceShape) -> Self {
        Self { shape, averages: vec![Vec::new(); shape.count()] }
    }
}

impl ChoicePredictor for Averaged {
    fn predict(&self, of: Chooser, num_pages: u32, count: usize) -> Vec<PageNumber> {
        let averages = &self.averages[self.shape.index(of)];
        top_pages(&averages[..averages.len().min(num_pages as usize)], count)
    }

    fn observe(&mut self, of: Chooser, scores: &[f32], _: &[PageNumber]) {
        let averages = &mut self.averages[self.shape.index(of)];
        let highest = scores.iter().copied().map(rankable).fold(f32::NEG_INFINITY, f32::max);
        // The first score of a page is its average.
        let known = averages.len();
        averages.resize(scores.len(), 0.0);
        for (at, (average, score)) in averages.iter_mut().zip(scores).enumerate() {
            let share = if highest.is_finite() { (rankable(*score) - highest).exp() } else { 0.0 };
            *average = if at < known { *average + AVERAGE_WEIGHT * (share - *average) } else { share };
        }
    }
}
