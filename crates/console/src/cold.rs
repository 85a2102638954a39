//! L4 for commands.

use crate::failure::Failure;
use crate::output;
use crate::region::HostPool;
use cenote_base::{Clock, HashSeed};
use cenote_store::cold::{ColdTier, Place, Settings, seed_of};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for L4's list before serving starts without it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts L4 below a region. A place that cannot be opened now is opened later: serving begins
/// without it.
pub fn start(pool: &HostPool, settings: &Settings) -> Result<Arc<ColdTier>, Failure> {
    let tier =
        ColdTier::start(pool.clone(), settings, Clock::system()).map_err(|error| named(&settings.place, &error))?;
    if !tier.wait_open(Clock::system().after(OPEN_TIMEOUT)) {
        let reason = tier.last_error().unwrap_or_else(|| "its list is still being read".to_owned());
        output::say(&format!("warning: --cold {}: serving starts without it: {reason}", settings.place));
    }
    Ok(tier)
}

/// The hash seed of regions above a place. A new place gets `own`.
pub fn seed(place: &Place, own: &HashSeed) -> Result<HashSeed, Failure> {
    seed_of(place, own, Clock::system()).map_err(|error| named(place, &error))
}

fn named(place: &Place, error: &cenote_store::cold::ColdError) -> Failure {
    Failure::new(format!("--cold {place}: {error}")).hint("a region finds only blocks of regions with its hash seed")
}
