//! What to prefetch, and how much (CXL-SpecKV §3.4, §3.6.3).
//!
//! **Exact first.** The next steps of the schedule, waiting requests with a prefix in L3 or L4, and a
//! caller's hint that a conversation continues name their pages exactly. Speculation, which follows a
//! predictor such as [`crate::choice`], has a budget of its own and starts only behind them.
//!
//! **How much.** [`depth`] is a bandit per request (eq. 9), [`throttle`] reduces and restores
//! aggressiveness with the utilization of the link (eq. 7). The planner combines both: a request
//! speculates `depth · β` deep, and all of them together hold at most `β` times the budget.
//!
//! **Lazy invalidation** (§3.4.3). A page that a step did not need, or that a write made stale, stays
//! in the buffer until its bytes are needed. If it is predicted again in the same generation, it
//! revives without a copy.
//!
//! **Generations** (§3.3.2). Prefetches read the lower tier without any coherence action. Each carries
//! the generation that the index named. If the page arrives in another generation, or is rewritten
//! later, it is discarded.
//!
//! Engine and simulator drive one [`Planner`] per L1:
//!
//! 1. [`Planner::offer`] for each page worth fetching; [`Planner::depth`] says how many a request may
//!    offer speculatively.
//! 2. [`Planner::poll_action`] until `None`. [`PrefetchAction::Fetch`]: submit the copy to
//!    [`crate::transfer::Transfers`] with the class and deadline given.
//! 3. [`Planner::handle`] with what happened to copies and pages. Report each page that
//!    [`crate::choice::PageChoice::observe`] returns as [`PrefetchEvent::Mispredicted`].
//! 4. [`Planner::end_step`] per request and step, and [`Planner::observe_link`] now and then.

pub mod depth;
mod offer;
mod planner;
pub mod throttle;

pub use depth::{DEPTHS, DepthBandit, DepthConfig, SharedDepth, StepResult};
pub use offer::{Offer, Offered, PlannerConfig, PrefetchAction, PrefetchCounts, PrefetchEvent, SOURCES, Source};
pub use planner::Planner;
pub use throttle::{Throttle, ThrottleConfig, ThrottleLearner};

#[cfg(test)]
mod tests;
