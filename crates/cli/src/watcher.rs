//! Looks at a region again and again, without joining it.

use crate::gauges::Look;
use cenote_base::Clock;
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_console::region::Watched;
use cenote_pool::{Record, Returns};
use cenote_store::snapshot::Restoring;
use std::time::Duration;

/// Time for which the returns of removed blocks count as current: finding them reads all removals.
const RETURNS_STAY: Duration = Duration::from_secs(30);

/// Looks at the region that has a name: it may be removed and made anew.
pub struct Watcher {
    region: RegionArgs,
    watched: Option<Watched>,
    clock: Clock,
    /// The returns, and when they were found.
    returns: Option<(Duration, Option<Returns>)>,
}

impl Watcher {
    /// # Errors
    /// The name leads to no region that this process can read.
    pub fn open(region: &RegionArgs) -> Result<Self, Failure> {
        let watched = Some(region.watch()?);
        Ok(Self { region: region.clone(), watched, clock: Clock::system(), returns: None })
    }

    fn current(&mut self) -> Result<&Watched, Failure> {
        // Processes that came later are not in an older view.
        let still = |watched: &Watched| watched.is_current() && watched.inspector.sees_all_hosts();
        let watched = match self.watched.take().filter(still) {
            Some(watched) => watched,
            None => {
                self.returns = None;
                self.region.watch()?
            }
        };
        Ok(self.watched.insert(watched))
    }

    /// # Errors
    /// As [`Self::open`].
    pub fn look(&mut self) -> Result<Look, Failure> {
        let now = Duration::from_nanos(self.clock.now_ns());
        self.current()?;
        let is_old = |at: Duration| now.saturating_sub(at) >= RETURNS_STAY;
        if self.returns.as_ref().is_none_or(|(at, _)| is_old(*at)) {
            self.returns = Some((now, self.current()?.returns()));
        }
        let returns = self.returns.as_ref().and_then(|(_, returns)| returns.clone());
        let inspector = &self.current()?.inspector;
        let is_restoring = Restoring::seen(inspector).is_some();
        let (info, chunks) = inspector.survey();
        Ok(Look { info, chunks, is_restoring, pinned: inspector.pinned(), returns })
    }

    /// The records of the region's flight recorder, the oldest first.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn records(&mut self) -> Result<Vec<Record>, Failure> {
        let records = self.current()?.records();
        records.map_err(|error| self.region.explain(&error))
    }
}
