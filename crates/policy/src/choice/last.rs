//! Predicts the last step's choice. Queries of neighboring tokens are similar, so most pages stay.

use super::{ChoicePredictor, ChoiceShape, Chooser, PageNumber};

/// The last choice, in the order of its scores.
#[derive(Clone, Debug)]
pub struct Last {
    shape: ChoiceShape,
    choices: Vec<Vec<PageNumber>>,
}

impl Last {
    /// Without observations.
    #[must_use]
    pub fn new(shape: ChoiceShape) -> Self {
        Self { shape, choices: vec![Vec::new(); shape.count()] }
    }
}

impl ChoicePredictor for Last {
    fn predict(&self, of: Chooser, num_pages: u32, count: usize) -> Vec<PageNumber> {
        let choice = &self.choices[self.shape.index(of)];
        choice.iter().copied().filter(|page| *page < num_pages).take(count).collect()
    }

    fn observe(&mut self, of: Chooser, _: &[f32], chosen: &[PageNumber]) {
        let choice = &mut self.choices[self.shape.index(of)];
        choice.clear();
        choice.extend_from_slice(chosen);
    }
}
