//! Number of blocks that admission leaves free, so that running requests can grow (CPEN 511 §VI to
//! §IX).
//!
//! An admitted request takes blocks at once, and more while it grows. If the scheduler admits too
//! many requests, the last ones lose their blocks again: they are swapped out or restart. If it
//! admits too few, the engine computes with smaller batches than it could. A controller gets the
//! [`Load`] and returns the number of blocks to keep free, or stops admission.
//!
//! Four kinds implement one trait:
//! * A fixed share of all blocks (vLLM keeps 1 %).
//! * `a·N/16` blocks for `N` running requests, the paper's *opt_factor* (§VII-B).
//! * The average block length `b/N` against a threshold (§VII-C), in two readings. As printed,
//!   admission stops while it is above the threshold; the other reading stops while it is below.
//!   The paper's figures show fewer swaps with larger thresholds. The first reading cannot do that:
//!   a controller that stops above a larger threshold stops later. The second can; so can a bound on
//!   all blocks of the cache per request, which caps the requests and is not a kind here.
//! * A factor that is learned from states (§IX), see [`Learned`].
//!
//! All arithmetic is on integers, so that a simulator and an engine decide alike on any machine.

mod learned;
mod weights;

pub use learned::{FEATURES, Learned, ONE, Weights};
pub use weights::SHIPPED;

use std::fmt;
use std::str::FromStr;

/// Input of a controller. Blocks are L1 blocks; totals count from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of all blocks.
    pub num_blocks: u32,
    /// Free blocks.
    pub free_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Requests that hold blocks.
    pub num_running: u32,
    /// Requests that were never admitted, or lost their blocks.
    pub num_waiting: u32,
    /// Requests with swapped-out blocks.
    pub num_swapped: u32,
    /// Tokens of running requests that have KV.
    pub running_tokens: u64,
    /// Known tokens of running requests that have no KV yet: partly computed prompts.
    pub pending_tokens: u64,
    /// Known tokens of the next request to admit, beyond those of its first step.
    pub next_tokens: u64,
    /// Blocks that were swapped out, and blocks that were freed for recomputation.
    pub lost_blocks: u64,
    /// Finished requests.
    pub finished_requests: u64,
    /// Tokens of finished requests, prompts and outputs.
    pub finished_tokens: u64,
}

impl Load {
    /// Blocks that requests hold.
    #[must_use]
    pub const fn used_blocks(&self) -> u32 {
        self.num_blocks - self.free_blocks
    }
}

/// Returns the number of blocks to keep free at an admission.
pub trait WatermarkController: fmt::Debug + Send {
    /// Observes the load; called once per step, before admissions.
    fn observe(&mut self, load: &Load);

    /// Number of blocks that must stay free after one more request has its own; `None` stops
    /// admission. Not called while no request runs: the first request may then take all blocks,
    /// because otherwise it could wait for ever.
    fn reserve_blocks(&self, load: &Load) -> Option<u32>;
}

/// The controllers, by name and setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watermark {
    /// A share of all blocks, in millionths.
    Fixed {
        /// Blocks per million blocks.
        share_millionths: u32,
    },
    /// `a·N/16` blocks, `a` in thousandths.
    OptFactor {
        /// Thousandths of `a`.
        factor_thousandths: u32,
    },
    /// Stops admission while `b/N` is above (or below) a threshold, in thousandths of a block.
    AverageLength {
        /// Thousandths of a block.
        threshold_thousandths: u32,
        /// Stops below the threshold; the paper prints above.
        stop_below: bool,
    },
    /// The learned controller, with these weights.
    Learned(Weights),
}

impl Watermark {
    /// vLLM's default: 1 % of the blocks.
    pub const DEFAULT: Self = Self::Fixed { share_millionths: 10_000 };

    /// Makes the controller.
    #[must_use]
    pub fn controller(&self) -> Box<dyn WatermarkController> {
        match *self {
            Self::Fixed { share_millionths } => Box::new(Fixed { share_millionths }),
            Self::OptFactor { factor_thousandths } => Box::new(OptFactor { factor_thousandths }),
            Self::AverageLength { threshold_thousandths, stop_below } => {
                Box::new(AverageLength { threshold_thousandths, stop_below })
            }
            Self::Learned(weights) => Box::new(Learned::new(weights)),
        }
    }

    /// A fixed share of all blocks, clamped to 0 to 1.
    #[must_use]
    pub fn share(share: f64) -> Self {
        Self::Fixed { share_millionths: (share.clamp(0.0, 1.0) * 1e6).round() as u32 }
    }
}

impl Default for Watermark {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[derive(Debug)]
struct Fixed {
    share_millionths: u32,
}

impl WatermarkController for Fixed {
    fn observe(&mut self, _: &Load) {}

    fn reserve_blocks(&self, load: &Load) -> Option<u32> {
        Some((u64::from(load.num_blocks) * u64::from(self.share_millionths) / 1_000_000) as u32)
    }
}

#[derive(Debug)]
struct OptFactor {
    factor_thousandths: u32,
}

impl WatermarkController for OptFactor {
    fn observe(&mut self, _: &Load) {}

    fn reserve_blocks(&self, load: &Load) -> Option<u32> {
        let blocks = u64::from(self.factor_thousandths) * u64::from(load.num_running) / 16_000;
        Some(u32::try_from(blocks).unwrap_or(u32::MAX))
    }
}

#[derive(Debug)]
struct AverageLength {
    threshold_thousandths: u32,
    stop_below: bool,
}

impl WatermarkController for AverageLength {
    fn observe(&mut self, _: &Load) {}

    fn reserve_blocks(&self, load: &Load) -> Option<u32> {
        let held = 1_000 * u64::from(load.used_blocks());
        let threshold = u64::from(self.threshold_thousandths) * u64::from(load.num_running);
        let stops = if self.stop_below { held < threshold } else { held > threshold };
        (!stops).then_some(0)
    }
}

impl fmt::Display for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thousandths = |value: u32| f64::from(value) / 1e3;
        match self {
            Self::Fixed { share_millionths } => write!(f, "fixed:{}", f64::from(*share_millionths) / 1e6),
            Self::OptFactor { factor_thousandths } => write!(f, "opt:{}", thousandths(*factor_thousandths)),
            Self::AverageLength { threshold_thousandths, stop_below: false } => {
                write!(f, "avg-above:{}", thousandths(*threshold_thousandths))
            }
            Self::AverageLength { threshold_thousandths, stop_below: true } => {
                write!(f, "avg-below:{}", thousandths(*threshold_thousandths))
            }
            Self::Learned(weights) if *weights == SHIPPED => f.write_str("learned"),
            Self::Learned(_) => f.write_str("learned (other weights)"),
        }
    }
}

/// A name that no controller has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWatermark(String);

impl fmt::Display for UnknownWatermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no watermark is called `{}`; there are fixed:SHARE, opt:FACTOR, avg-above:BLOCKS, avg-below:BLOCKS and learned",
            self.0
        )
    }
}

impl std::error::Error for UnknownWatermark {}

impl FromStr for Watermark {
    type Err = UnknownWatermark;

    fn from_str(text: &str) -> Result<Self, UnknownWatermark> {
        let unknown = || UnknownWatermark(text.to_owned());
        if text == "learned" {
            return Ok(Self::Learned(SHIPPED));
        }
        let (kind, value) = text.split_once(':').ok_or_else(unknown)?;
        let value: f64 = value.parse().map_err(|_| unknown())?;
        let thousandths = (0.0..=1e6).contains(&value).then(|| (value * 1e3).round() as u32).ok_or_else(unknown);
        match kind {
            "fixed" if (0.0..=1.0).contains(&value) => Ok(Self::share(value)),
            "opt" => Ok(Self::OptFactor { factor_thousandths: thousandths? }),
            "avg-above" => Ok(Self::AverageLength { threshold_thousandths: thousandths?, stop_below: false }),
            "avg-below" => Ok(Self::AverageLength { threshold_thousandths: thousandths?, stop_below: true }),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests;
