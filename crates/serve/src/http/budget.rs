//! Bytes of request bodies that the front holds, over all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of each body that are not counted, so that small requests pass while large ones fill the
/// budget. Connections are limited, so these bytes are limited as well.
const FREE_BYTES: usize = 16 << 10;

/// A limit of bytes.
pub(crate) struct Budget {
    max: usize,
    used: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicUsize::new(0) })
    }

    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Bytes in use now.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// An empty share.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), counted: 0 }
    }
}

/// One body's share of the budget, returned on drop.
pub(crate) struct Share {
    budget: Arc<Budget>,
    counted: usize,
}

impl Share {
    /// Grows the share to `bytes`. `false`: there is no room, and nothing changed.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(FREE_BYTES);
        let more = wanted.saturating_sub(self.counted);
        let fits = |used: usize| used.checked_add(more).filter(|sum| *sum <= self.budget.max);
        let grown = self.budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if grown {
            self.counted += more;
        }
        grown
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_budget_and_come_back() {
        let budget = Budget::new(100);
        let (mut one, mut two) = (budget.share(), budget.share());
        assert!(one.grow_to(FREE_BYTES + 60) && one.grow_to(FREE_BYTES + 60));
        assert!(!two.grow_to(FREE_BYTES + 41));
        assert!(two.grow_to(FREE_BYTES + 40));
        assert_eq!(budget.used(), 100);
        assert!(budget.share().grow_to(FREE_BYTES), "a small body passes a full budget");
        drop((one, two));
        assert_eq!(budget.used(), 0);
    }
}
