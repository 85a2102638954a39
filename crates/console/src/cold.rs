//! L4 for commands.

use crate::failure::Failure;
use crate::output;
use crate::region::HostPool;
use cenote_base::{Clock, HashSeed};
use cenote_store::cold::{ColdTier, Settings, seed_of};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for L4's list before serving starts.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts L4 below a region. A place that cannot be opened now is opened later: serving begins
/// without it.
pub fn start(pool: &HostPool, settings: &Settings) -> Result<Arc<ColdTier>, Failure> {
    let tier = ColdTier::start(pool.clone(), settings, Clock::system()).map_err(|error| named(settings, &error))?;
    if !tier.wait_open(Clock::system().after(OPEN_TIMEOUT)) {
        let reason = match tier.last_error() {
            Some(error) if tier.stats()["cold_open"] == 0.0 => format!("serving starts without it: {error}"),
            _ => "serving starts while its list is still being read".to_owned(),
        };
        output::say(&format!("warning: --cold {}: {reason}", settings.place));
    }
    Ok(tier)
}

/// The hash seed of regions above a place. A new place gets `own`.
pub fn seed(settings: &Settings, own: &HashSeed) -> Result<HashSeed, Failure> {
    seed_of(settings, own, Clock::system()).map_err(|error| named(settings, &error))
}

/// The failure of a place.
pub fn named(settings: &Settings, error: &cenote_store::cold::ColdError) -> Failure {
    Failure::new(format!("--cold {}: {error}", settings.place))
}
