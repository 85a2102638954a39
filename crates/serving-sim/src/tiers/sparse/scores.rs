//! Scores of pages, drawn: no public trace has them.
//!
//! The score of a page is the sum of four parts, in units of logits:
//!
//! | part | shared by | changes |
//! |---|---|---|
//! | relevance to the text | layers | drifts; all pages are drawn anew when the topic changes |
//! | relevance to the layer | none | drifts |
//! | query of the token | layers | each step |
//! | query of the layer | none | each step |
//!
//! The first pages and the last ones score higher (StreamingLLM's sinks, and recency). All weights are
//! our assumptions. They decide which predictor is best, so only a model's own scores can rank them:
//! [`super::ScoreSource`] takes recorded ones too.

use super::ScoreSource;
use cenote_base::prng::Prng;
use cenote_policy::choice::{ChoiceShape, Chooser};

/// Weights of the parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreModel {
    /// Deviation of the relevance to the text.
    pub text: f32,
    /// Deviation of the relevance to the layer.
    pub layer: f32,
    /// Deviation of the token's query.
    pub token: f32,
    /// Deviation of the layer's query.
    pub query: f32,
    /// Share of a relevance that stays from step to step.
    pub memory: f32,
    /// Steps between changes of the topic, on average.
    pub topic_steps: u64,
}

impl Default for ScoreModel {
    fn default() -> Self {
        Self { text: 1.5, layer: 1.0, token: 0.4, query: 0.4, memory: 0.98, topic_steps: 64 }
    }
}

/// Drawn scores of all requests of a batch.
#[derive(Clone, Debug)]
pub struct DrawnScores {
    model: ScoreModel,
    shape: ChoiceShape,
    pages: u32,
    seed: u64,
    requests: Vec<Relevance>,
}

#[derive(Clone, Debug)]
struct Relevance {
    step: u64,
    text: Vec<f32>,
    /// By chooser and page.
    layers: Vec<f32>,
    token: Vec<f32>,
    prng: Prng,
}

impl DrawnScores {
    /// Scores of `requests` requests with `pages` pages each.
    #[must_use]
    pub fn new(model: ScoreModel, shape: ChoiceShape, requests: u32, pages: u32, seed: u64) -> Self {
        let count = (shape.layers * shape.groups * pages) as usize;
        let request = |request: u32| {
            let mut prng = Prng::at(seed, u64::from(request));
            let text = (0..pages).map(|_| model.text * normal(&mut prng)).collect();
            let layers = (0..count).map(|_| model.layer * normal(&mut prng)).collect();
            Relevance { step: 0, text, layers, token: vec![0.0; pages as usize], prng }
        };
        Self { model, shape, pages, seed, requests: (0..requests).map(request).collect() }
    }

    fn begin_step(&mut self, request: usize, step: u64) {
        let (model, pages) = (self.model, self.pages as usize);
        let of = &mut self.requests[request];
        of.step = step;
        let fresh = (1.0 - model.memory * model.memory).sqrt();
        let changes = of.prng.below(model.topic_steps.max(1)) == 0;
        let keep = if changes { 0.0 } else { model.memory };
        let new = if changes { 1.0 } else { fresh };
        for value in &mut of.text {
            *value = keep * *value + new * model.text * normal(&mut of.prng);
        }
        for value in &mut of.layers {
            *value = model.memory * *value + fresh * model.layer * normal(&mut of.prng);
        }
        of.token = (0..pages).map(|_| model.token * normal(&mut of.prng)).collect();
    }
}

impl ScoreSource for DrawnScores {
    fn scores(&mut self, step: u64, request: u32, of: Chooser) -> Vec<f32> {
        let at = request as usize;
        if self.requests[at].step != step {
            self.begin_step(at, step);
        }
        let index = (of.layer * self.shape.groups + of.group) as usize;
        let mut prng = Prng::at(self.seed ^ step.rotate_left(32), (u64::from(request) << 32) + index as u64);
        let relevance = &self.requests[at];
        let layers = &relevance.layers[index * self.pages as usize..];
        let edge = |page: u32| if page == 0 || page + 2 >= self.pages { 4.0 } else { 0.0 };
        (0..self.pages)
            .map(|page| {
                let i = page as usize;
                relevance.text[i] + layers[i] + relevance.token[i] + edge(page) + self.model.query * normal(&mut prng)
            })
            .collect()
    }
}

/// Approximately normal, and equal on every machine: the sum of four uniform numbers.
fn normal(prng: &mut Prng) -> f32 {
    let bits = prng.next_u64();
    let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xffff).sum();
    (sum as f32 / 65_536.0 - 2.0) * 1.732_050_8
}
