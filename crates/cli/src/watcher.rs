//! Looks at a region again and again, without joining it.

use crate::gauges::Look;
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_console::region::Watched;
use cenote_pool::Record;
use cenote_store::snapshot::Restoring;

/// Looks at the region that has a name: it may be removed and made anew.
pub struct Watcher {
    region: RegionArgs,
    watched: Option<Watched>,
}

impl Watcher {
    /// # Errors
    /// The name leads to no region that this process can read.
    pub fn open(region: &RegionArgs) -> Result<Self, Failure> {
        Ok(Self { region: region.clone(), watched: Some(region.watch()?) })
    }

    fn current(&mut self) -> Result<&Watched, Failure> {
        // Processes that came later are not in an older view.
        let still = |watched: &Watched| watched.is_current() && watched.inspector.sees_all_hosts();
        let watched = match self.watched.take().filter(still) {
            Some(watched) => watched,
            None => self.region.watch()?,
        };
        Ok(self.watched.insert(watched))
    }

    /// # Errors
    /// As [`Self::open`].
    pub fn look(&mut self) -> Result<Look, Failure> {
        let inspector = &self.current()?.inspector;
        let is_restoring = Restoring::seen(inspector).is_some();
        let (info, chunks) = inspector.survey();
        Ok(Look { info, chunks, is_restoring, pinned: inspector.pinned() })
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
