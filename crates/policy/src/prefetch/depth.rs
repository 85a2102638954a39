//! Prefetch depth of each request, as a bandit (CXL-SpecKV §3.4.3, eq. 9).
//!
//! *k\* = argmax μ_k + β_UCB·√(2·ln T / N_k)* over the arms [`DEPTHS`]. The paper names no reward.
//! Here it is the hit rate minus the wasted part of the prefetches. Waste costs as much as the link is
//! busy, and at least [`DepthConfig::planning`]: a page that was planned and copied in vain costs time
//! of the processor even on an idle link.
//!
//! A request lives for some hundred steps and its accuracy changes. So each request has arms of its
//! own that forget (discounted UCB, Garivier and Moulines 2011), and starts with a weak prior from all
//! earlier requests. Accurate requests thus get larger depths, as §3.4.3 asks.

/// Arms: the depths of the paper's Table 8.
pub const DEPTHS: [u32; 5] = [1, 2, 4, 8, 16];

/// Parameters of the bandit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthConfig {
    /// *β_UCB*: weight of exploration, not negative.
    pub exploration: f64,
    /// Factor by which a step's weight decreases with each later step, above 0 and at most 1.
    pub memory: f64,
    /// Least price of a wasted page, 0 to 1, relative to the gain of one that was needed.
    pub planning: f64,
    /// Most observations that the prior from other requests counts as, per arm.
    pub prior: f64,
}

impl Default for DepthConfig {
    fn default() -> Self {
        Self { exploration: 0.1, memory: 0.98, planning: 0.25, prior: 2.0 }
    }
}

/// What a step's prefetches were worth. Counts are of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepResult {
    /// Pages that the step needed and no near tier held before.
    pub needed: u32,
    /// Of them, pages that were prefetched.
    pub hits: u32,
    /// Prefetched pages that were not needed.
    pub wasted: u32,
}

impl StepResult {
    /// Reward, -1 to 1. The price of waste is the `utilization` of the link, 0 to 1, and at least
    /// `planning`.
    #[must_use]
    pub fn reward(&self, utilization: f64, planning: f64) -> f64 {
        let price = if utilization.is_finite() { utilization.clamp(planning, 1.0) } else { 1.0 };
        let needed = f64::from(self.needed.max(1));
        (f64::from(self.hits) / needed - price * f64::from(self.wasted) / needed).clamp(-1.0, 1.0)
    }
}

/// Weights and sums of rewards per arm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Arms {
    counts: [f64; DEPTHS.len()],
    sums: [f64; DEPTHS.len()],
}

impl Arms {
    fn add(&mut self, arm: usize, reward: f64, memory: f64) {
        self.counts.iter_mut().chain(&mut self.sums).for_each(|value| *value *= memory);
        self.counts[arm] += 1.0;
        self.sums[arm] += reward;
    }
}

/// What all requests taught: the prior of new ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedDepth {
    config: DepthConfig,
    arms: Arms,
}

impl SharedDepth {
    /// Without observations. Parameters outside their range are replaced by the defaults.
    #[must_use]
    pub fn new(config: DepthConfig) -> Self {
        let usual = DepthConfig::default();
        let sound = |value: f64, is_sound: bool, usual: f64| if value.is_finite() && is_sound { value } else { usual };
        let DepthConfig { exploration, memory, planning, prior } = config;
        let config = DepthConfig {
            exploration: sound(exploration, exploration >= 0.0, usual.exploration),
            memory: sound(memory, memory > 0.0 && memory <= 1.0, usual.memory),
            planning: sound(planning, (0.0..=1.0).contains(&planning), usual.planning),
            prior: sound(prior, prior >= 0.0, usual.prior),
        };
        Self { config, arms: Arms::default() }
    }

    /// The bandit of a new request.
    #[must_use]
    pub fn request(&self) -> DepthBandit {
        let mut arms = self.arms;
        for (count, sum) in arms.counts.iter_mut().zip(&mut arms.sums) {
            let scale = if *count > self.config.prior { self.config.prior / *count } else { 1.0 };
            *count *= scale;
            *sum *= scale;
        }
        DepthBandit { config: self.config, arms }
    }
}

/// The bandit of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthBandit {
    config: DepthConfig,
    arms: Arms,
}

impl DepthBandit {
    /// The depth of the next step, one of [`DEPTHS`]. Arms without observations go first, from the
    /// smallest.
    #[must_use]
    pub fn depth(&self) -> u32 {
        DEPTHS[self.arm()]
    }

    fn arm(&self) -> usize {
        let Arms { counts, sums } = &self.arms;
        let total: f64 = counts.iter().sum();
        let bound = |arm: usize| {
            if counts[arm] < 1e-6 {
                return f64::INFINITY;
            }
            sums[arm] / counts[arm] + self.config.exploration * (2.0 * total.max(1.0).ln() / counts[arm]).sqrt()
        };
        (0..DEPTHS.len()).max_by(|&a, &b| bound(a).total_cmp(&bound(b)).then(b.cmp(&a))).expect("there are arms")
    }

    /// Records the result of a step with this depth. A depth that is no arm counts as the largest arm
    /// below it, because a throttle may have reduced it. A step that needed nothing teaches nothing.
    pub fn observe(&mut self, depth: u32, result: &StepResult, utilization: f64, shared: &mut SharedDepth) {
        if result.needed == 0 && result.wasted == 0 {
            return;
        }
        let arm = DEPTHS.iter().rposition(|arm| *arm <= depth).unwrap_or(0);
        let reward = result.reward(utilization, self.config.planning);
        self.arms.add(arm, reward, self.config.memory);
        shared.arms.add(arm, reward, self.config.memory);
    }
}
