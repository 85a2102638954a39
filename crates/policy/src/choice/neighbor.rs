//! Predicts the choice that an earlier layer made in the same step (IndexShare). It knows the current
//! query's neighborhood, but only a few layers ahead. The first layers have no earlier one, so they
//! repeat their last choice.

use super::{ChoicePredictor, ChoiceShape, Chooser, Last, PageNumber};

/// The last choices of all layers, of which an earlier layer's is the prediction.
#[derive(Clone, Debug)]
pub struct Neighbor {
    distance: u32,
    last: Last,
}

impl Neighbor {
    /// Without observations. `distance` is the number of layers to the earlier one.
    ///
    /// # Panics
    /// Panics if `distance` is 0.
    #[must_use]
    pub fn new(shape: ChoiceShape, distance: u32) -> Self {
        assert!(distance > 0, "a layer is not its own neighbor");
        Self { distance, last: Last::new(shape) }
    }
}

impl ChoicePredictor for Neighbor {
    fn predict(&self, of: Chooser, num_pages: u32, count: usize) -> Vec<PageNumber> {
        let layer = of.layer.checked_sub(self.distance).unwrap_or(of.layer);
        self.last.predict(Chooser { layer, ..of }, num_pages, count)
    }

    fn observe(&mut self, of: Chooser, scores: &[f32], chosen: &[PageNumber]) {
        self.last.observe(of, scores, chosen);
    }
}
