//! Predicts the pages that sparse attention will choose.
//!
//! Sparse decode scores all pages of a context against the query and reads the best few (Quest). The
//! query decides the addresses, so no schedule knows them in advance, and a prediction can hide the
//! latency of a lower tier. Dense attention needs none of this: see [`crate::staging`].
//!
//! CXL-SpecKV §3.4 predicts tokens instead. A token does not name the pages that its query will
//! choose, so the predictors here work on scores and choices:
//!
//! | kind | predicts | known |
//! |---|---|---|
//! | [`ChoiceKind::Last`] | the last step's choice of the same layer | a step ahead |
//! | [`ChoiceKind::Averaged`] | the best exponentially averaged scores (PRR, arXiv 2606.30389; AttentionPredictor, 2502.04077) | a step ahead |
//! | [`ChoiceKind::Lstm`] | a small recurrent network beside each page | a step ahead |
//! | [`ChoiceKind::Neighbor`] | the same step's choice of an earlier layer (IndexShare) | some layers ahead |
//!
//! PRR and AttentionPredictor have more parts; only the averaging is taken from them.
//!
//! Engine and simulator keep one [`PageChoice`] per request and call, per step and layer:
//!
//! 1. [`PageChoice::predict`] as early as [`ChoiceKind::horizon`] allows, and prefetch the result.
//! 2. [`top_pages`] on the scores, once the query is known: the choice. Fetch what is missing.
//! 3. [`PageChoice::observe`] with scores and choice, in the order of the layers.
//!
//! A page's number is its position in the context: 0 for the first tokens. Contexts only grow.

mod averaged;
mod last;
pub mod lstm;
mod neighbor;

pub use averaged::{AVERAGE_WEIGHT, Averaged};
pub use last::Last;
pub use lstm::Lstm;
pub use neighbor::Neighbor;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Number of a page in its context.
pub type PageNumber = u32;

/// Number of independent choices of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChoiceShape {
    /// Layers of the model.
    pub layers: u32,
    /// Groups of heads that choose together, per layer.
    pub groups: u32,
}

/// One choice of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chooser {
    /// Layer, below [`ChoiceShape::layers`].
    pub layer: u32,
    /// Group of heads, below [`ChoiceShape::groups`].
    pub group: u32,
}

impl ChoiceShape {
    fn count(self) -> usize {
        self.layers as usize * self.groups as usize
    }

    fn index(self, of: Chooser) -> usize {
        assert!(of.layer < self.layers && of.group < self.groups, "{of:?} is outside {self:?}");
        of.layer as usize * self.groups as usize + of.group as usize
    }
}

/// How early a prediction is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Horizon {
    /// When the same layer of the step before has chosen.
    Step,
    /// When the layer this many layers earlier has chosen.
    Layers(u32),
}

/// A predictor for one request.
pub trait ChoicePredictor: fmt::Debug + Send {
    /// Expected pages of the next choice, the most probable first: at most `count` different pages
    /// below `num_pages`. Empty without observations to predict from.
    fn predict(&self, of: Chooser, num_pages: u32, count: usize) -> Vec<PageNumber>;

    /// Records a choice: the score of each page of the context, and the chosen pages. Scores that are
    /// no numbers count as the lowest.
    fn observe(&mut self, of: Chooser, scores: &[f32], chosen: &[PageNumber]);
}

/// Kinds of predictors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChoiceKind {
    /// The last step's choice.
    Last,
    /// The best averaged scores.
    #[default]
    Averaged,
    /// The most probable pages by a recurrent network.
    Lstm,
    /// The choice of an earlier layer.
    Neighbor {
        /// Number of layers in between, at least 1.
        distance: u32,
    },
}

impl ChoiceKind {
    /// One of each kind.
    pub const ALL: [Self; 4] = [Self::Last, Self::Averaged, Self::Lstm, Self::Neighbor { distance: 1 }];

    /// A predictor without observations.
    #[must_use]
    pub fn build(self, shape: ChoiceShape) -> Box<dyn ChoicePredictor> {
        match self {
            Self::Last => Box::new(Last::new(shape)),
            Self::Averaged => Box::new(Averaged::new(shape)),
            Self::Lstm => Box::new(Lstm::new(shape)),
            Self::Neighbor { distance } => Box::new(Neighbor::new(shape, distance)),
        }
    }

    /// How early its predictions are available.
    #[must_use]
    pub const fn horizon(self) -> Horizon {
        match self {
            Self::Last | Self::Averaged | Self::Lstm => Horizon::Step,
            Self::Neighbor { distance } => Horizon::Layers(distance),
        }
    }
}

impl ChoiceKind {
    /// The next choice that can be predicted once `of` has been made.
    #[must_use]
    pub const fn target(self, of: Chooser, shape: ChoiceShape) -> Chooser {
        match self.horizon() {
            Horizon::Step => of,
            // The first layers of the next step follow the last ones of this step.
            Horizon::Layers(distance) => Chooser { layer: (of.layer + distance) % shape.layers, ..of },
        }
    }
}

impl fmt::Display for ChoiceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Last => f.write_str("last"),
            Self::Averaged => f.write_str("averaged"),
            Self::Lstm => f.write_str("lstm"),
            Self::Neighbor { distance } => write!(f, "neighbor:{distance}"),
        }
    }
}

/// A name that no predictor has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownChoice(String);

impl fmt::Display for UnknownChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no page predictor is called `{}`; there are last, averaged, lstm and neighbor:LAYERS", self.0)
    }
}

impl std::error::Error for UnknownChoice {}

impl FromStr for ChoiceKind {
    type Err = UnknownChoice;

    fn from_str(text: &str) -> Result<Self, UnknownChoice> {
        let unknown = || UnknownChoice(text.to_owned());
        match text {
            "last" => Ok(Self::Last),
            "averaged" => Ok(Self::Averaged),
            "lstm" => Ok(Self::Lstm),
            _ => {
                let distance = text.strip_prefix("neighbor:").and_then(|number| number.parse().ok());
                distance
                    .filter(|distance| *distance > 0)
                    .map(|distance| Self::Neighbor { distance })
                    .ok_or_else(unknown)
            }
        }
    }
}

/// What predictions were worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChoiceTally {
    /// Chosen pages with a prediction beside them.
    pub chosen: u64,
    /// Predicted pages.
    pub predicted: u64,
    /// Chosen pages that were predicted.
    pub hits: u64,
}

impl ChoiceTally {
    /// Share of the chosen pages that were predicted: the hit rate. 0 without choices.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.chosen == 0 { 0.0 } else { self.hits as f64 / self.chosen as f64 }
    }

    /// Share of the predicted pages that were chosen: the precision. 0 without predictions.
    #[must_use]
    pub fn precision(&self) -> f64 {
        if self.predicted == 0 { 0.0 } else { self.hits as f64 / self.predicted as f64 }
    }

    /// Predicted pages that were not chosen.
    #[must_use]
    pub const fn wasted(&self) -> u64 {
        self.predicted - self.hits
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Self) {
        self.chosen += other.chosen;
        self.predicted += other.predicted;
        self.hits += other.hits;
    }
}

/// A request's predictor and what its predictions were worth.
#[derive(Debug)]
pub struct PageChoice {
    shape: ChoiceShape,
    predictor: Box<dyn ChoicePredictor>,
    /// The prediction that waits for its choice.
    pending: Vec<Option<Vec<PageNumber>>>,
    /// Per layer.
    tallies: Vec<ChoiceTally>,
}

impl PageChoice {
    /// A predictor for a new request.
    #[must_use]
    pub fn new(kind: ChoiceKind, shape: ChoiceShape) -> Self {
        Self {
            shape,
            predictor: kind.build(shape),
            pending: vec![None; shape.count()],
            tallies: vec![ChoiceTally::default(); shape.layers as usize],
        }
    }

    /// At most `count` pages that the next choice is expected to contain, the most probable first.
    ///
    /// # Panics
    /// Panics if `of` is outside the shape.
    pub fn predict(&mut self, of: Chooser, num_pages: u32, count: usize) -> Vec<PageNumber> {
        let pages = self.predictor.predict(of, num_pages, count);
        self.pending[self.shape.index(of)] = Some(pages.clone());
        pages
    }

    /// Records the choice, and counts the prediction made for it. Returns the predicted pages that were
    /// not chosen.
    ///
    /// # Panics
    /// Panics if `of` is outside the shape.
    pub fn observe(&mut self, of: Chooser, scores: &[f32], chosen: &[PageNumber]) -> Vec<PageNumber> {
        let mut mispredicted = Vec::new();
        if let Some(predicted) = self.pending[self.shape.index(of)].take() {
            let is_chosen: BTreeSet<PageNumber> = chosen.iter().copied().collect();
            let num_predicted = predicted.len() as u64;
            mispredicted = predicted;
            mispredicted.retain(|page| !is_chosen.contains(page));
            let hits = num_predicted - mispredicted.len() as u64;
            let tally = ChoiceTally { chosen: chosen.len() as u64, predicted: num_predicted, hits };
            self.tallies[of.layer as usize].add(&tally);
        }
        self.predictor.observe(of, scores, chosen);
        mispredicted
    }

    /// What the predictions of a layer were worth.
    ///
    /// # Panics
    /// Panics if the model has no such layer.
    #[must_use]
    pub fn tally(&self, layer: u32) -> &ChoiceTally {
        &self.tallies[layer as usize]
    }

    /// Starts all tallies from 0, for example after a warm-up.
    pub fn forget_tallies(&mut self) {
        self.tallies.fill(ChoiceTally::default());
    }

    /// Sum over all layers.
    #[must_use]
    pub fn total(&self) -> ChoiceTally {
        let mut total = ChoiceTally::default();
        self.tallies.iter().for_each(|tally| total.add(tally));
        total
    }
}

/// The pages with the `count` highest scores, the highest first. Ties go to the lower number. This is
/// the choice of sparse attention itself: engine and simulator choose by it.
#[must_use]
pub fn top_pages(scores: &[f32], count: usize) -> Vec<PageNumber> {
    let mut pages: Vec<PageNumber> = (0..scores.len() as u32).collect();
    let order = |a: &PageNumber, b: &PageNumber| {
        let [a_score, b_score] = [a, b].map(|page| rankable(scores[*page as usize]));
        b_score.total_cmp(&a_score).then(a.cmp(b))
    };
    if count < pages.len() {
        if count > 0 {
            pages.select_nth_unstable_by(count - 1, order);
        }
        pages.truncate(count);
    }
    pages.sort_unstable_by(order);
    pages
}

/// A score that is no number counts as the lowest.
const fn rankable(score: f32) -> f32 {
    if score.is_nan() { f32::NEG_INFINITY } else { score }
}

#[cfg(test)]
mod tests;
