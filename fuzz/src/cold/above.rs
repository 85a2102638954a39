//! A tier over a hostile place: the threads of production, on time that passes only where it must.

use super::blocks::{LENGTH_MAX, SEED, head, number, payload};
use super::clock::Still;
use cenote_cold::record::{Head, Name};
use cenote_cold::{Backend, Count, Promotion, Tier, TierConfig, Upper, WriteBehind};
use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The region: it has every block, and keeps the names of those that are published.
#[derive(Clone, Default)]
struct Region(Arc<Mutex<BTreeSet<Name>>>);

impl Upper for Region {
    fn describe(&self, name: &Name) -> Option<Head> {
        Some(head(name))
    }

    fn copy(&self, head: &Head, bytes: &mut [u8]) -> bool {
        bytes.copy_from_slice(&payload(&head.name));
        true
    }

    fn publish(&self, found: &Head, bytes: &[u8]) -> bool {
        assert_eq!(*found, head(&found.name), "a block is described otherwise than it was written");
        assert!(bytes == payload(&found.name), "block {} has other bytes", number(&found.name));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(found.name);
        true
    }

    fn coldest(&self) -> Vec<Name> {
        Vec::new()
    }

    fn tokens(&self, _: &Name) -> u64 {
        16
    }

    fn length_max(&self, _: &Name) -> u64 {
        LENGTH_MAX
    }

    fn count(&self, _: Count, _: u64) {}
}

/// Opens a tier, promotes blocks and writes others. Returns the names that came up,
/// and what the tier says of itself.
pub fn run(place: Box<dyn Backend>, names: &[Name], new: &[Name]) -> (BTreeSet<Name>, String) {
    let region = Region::default();
    let config = TierConfig {
        seal: None,
        seed: SEED,
        write: WriteBehind::Published,
        deadline: Duration::from_secs(20),
        clock: Still::clock(),
    };
    let tier = Tier::start(Box::new(region.clone()), place, config);
    // Time stands still, so a place that fails is not tried again.
    while !tier.is_listed() && tier.counters().get(Count::Errors) == 0 {
        std::thread::park_timeout(Duration::from_micros(50));
    }
    if let Some(promotion) = tier.promote_any(names) {
        wait(&promotion);
    }
    tier.offer(new.iter().copied());
    // Blocks wait for a place that is closed.
    while tier.is_open() && !tier.settle(Still::clock().at(0)) {
        // After a failure the writer pauses.
        Still::advance(Duration::from_millis(200));
        std::thread::park_timeout(Duration::from_micros(50));
    }
    let words = format!(
        "open: {}, last error: {:?}, counters: {:?}",
        tier.is_open(),
        tier.last_error(),
        tier.counters().values()
    );
    drop(tier);
    let mut published = region.0.lock().unwrap_or_else(PoisonError::into_inner);
    (std::mem::take(&mut *published), words)
}

fn wait(promotion: &Promotion) {
    let (sender, over) = channel();
    promotion.on_over(move || _ = sender.send(()));
    over.recv().expect("every read ends");
}

const _: () = assert!(LENGTH_MAX < 1 << 20, "blocks fit into one batch of the writer");
