//! When a directory is listed, and what is read otherwise.
//!
//! A listing asks for each file's length, which takes a share of a processor in a tier of thousands of
//! extents. So the directory is listed when something says that names changed: the mark that each
//! process changes when it begins, continues or removes an extent, the directory's own times, or a
//! long time. In between, only the indexes of extents that grew lately are looked at.

use super::list::{LIVE, Look, News};
use super::place::{Place, copied};
use super::{Extents, space};
use crate::backend::Refreshed;
use crate::disk::Access;
use crate::error::ColdError;
use crate::identity;
use cenote_base::{Clock, Deadline};
use cenote_mem::files::Stamp;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// Longest time between two listings.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// A listing that took longer is followed by a pause of [`PAUSE`] times its own.
const SHORT: Duration = Duration::from_millis(10);
const PAUSE: u32 = 50;
/// Records that are entered under one lock. It keeps serving threads waiting for a fraction of a
/// millisecond.
const LEARNED_TOGETHER: usize = 1024;

/// What the last listing saw.
#[derive(Default)]
pub(super) struct Follow {
    /// The directory and its mark, as before that listing.
    seen: Option<(Stamp, u64)>,
    /// When the next one is due without a sign.
    next: Option<Deadline>,
    /// None begins before.
    earliest: Option<Deadline>,
    /// It did not read everything.
    has_more: bool,
}

impl Follow {
    fn is_due(&self, seen: (Stamp, u64)) -> bool {
        let has_sign = self.has_more || self.seen != Some(seen) || self.next.is_none_or(Deadline::passed);
        has_sign && (self.has_more || self.earliest.is_none_or(Deadline::passed))
    }

    fn listed(&mut self, clock: Clock, begin_ns: u64) {
        let took = clock.since(begin_ns);
        let pause = if took > SHORT { took * PAUSE } else { Duration::ZERO };
        self.earliest = Some(clock.after(pause));
        self.next = Some(clock.after(LIST_EVERY.max(pause)));
    }
}

impl Extents {
    pub(super) fn follow(&self) -> MutexGuard<'_, Follow> {
        self.follow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns what other processes wrote and removed.
    pub(super) fn learn(&self) -> Result<Refreshed, ColdError> {
        let (directory, clock) = (&self.config.directory, self.clock);
        let (_, sums) = self.known_place()?;
        let look = Look { disk: &*self.disk, directory, sums, clock };
        let mut follow = self.follow();
        // Before the listing: what changes meanwhile is a sign for the next one.
        let stamp = self.disk.stamp(directory).map_err(|error| ColdError::of(directory.display(), &error))?;
        let seen = (stamp, self.mark());
        let begin_ns = clock.now_ns();
        // Read without the list's lock: its readers are serving threads.
        let (is_listing, news) = if follow.is_due(seen) {
            let known = self.list().known();
            (true, look.at_all(&known)?)
        } else {
            let live = self.list().live(clock);
            (false, look.at(live))
        };
        let News { files, entries, damage, has_more } = news;
        if is_listing {
            follow.seen = Some(seen);
            follow.has_more = has_more;
            follow.listed(clock, begin_ns);
            self.list_mut().learn_files(files);
        } else {
            self.list_mut().renew_files(files);
        }
        for part in entries.chunks(LEARNED_TOGETHER) {
            self.list_mut().learn(part);
            // Serving threads that wait for the list go first.
            std::thread::yield_now();
        }
        // A directory that was removed takes its open extent with it.
        self.writer().leave_unless(|stem| self.list().has_file(stem));
        let mut all = std::mem::take(&mut *self.damage.lock().unwrap_or_else(PoisonError::into_inner));
        all.extend(damage);
        Ok(Refreshed { removed: self.removed.swap(0, Relaxed), damage: all, has_more })
    }

    /// Knows the place as it is, without making or repairing anything.
    pub(super) fn look_from_outside(&self) -> Result<(), ColdError> {
        let (disk, directory) = (&*self.disk, &self.config.directory);
        let found = match identity::read(disk, directory, &self.sealing) {
            Err(ColdError::Gone(at)) => copied(disk, directory, &self.sealing)?.ok_or(ColdError::Gone(at)),
            found => found,
        };
        *self.place() = Some(Place::of(found?, &self.sealing));
        Ok(())
    }

    /// The mark of the directory: another number after each change of its names.
    fn mark(&self) -> u64 {
        let mut bytes = [0; 8];
        let path = self.config.directory.join(space::OWNER);
        let file = self.disk.open(&path, Access::Read, false);
        let _ = file.and_then(|file| file.read_at(&mut bytes, 0));
        u64::from_le_bytes(bytes)
    }

    /// Whether other processes may have stopped to look at an extent that grew last at this time.
    pub(super) fn is_quiet(&self, grown_ns: u64) -> bool {
        // They look at it for longer, but their clocks are not this one.
        self.clock.since(grown_ns) > LIVE / 2
    }
}
