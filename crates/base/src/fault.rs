//! Named points at which a test can kill the process or count passes.
//!
//! Cost: one relaxed atomic load per point while nothing is armed. [`arm`] arms a point for the
//! whole process, by name and count; the command line takes them from `CENOTE_FAULT=name:count`.
//! The handler runs when the count is reached. The command's handler kills the process with
//! SIGKILL, because the pool must survive that death.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

static ARMED: AtomicBool = AtomicBool::new(false);
static PLAN: Mutex<Option<Plan>> = Mutex::new(None);
static OBSERVER: OnceLock<fn(&'static str)> = OnceLock::new();

struct Plan {
    name: String,
    passes_left: u64,
    handler: fn(&str),
}

/// Runs `handler` when the point `name` is passed for the `count`-th time (1 is the first time).
pub fn arm(name: &str, count: u64, handler: fn(&str)) {
    *PLAN.lock().expect("no fault handler panics") =
        Some(Plan { name: name.to_owned(), passes_left: count.max(1), handler });
    ARMED.store(true, Ordering::Release);
}

/// Calls `observer` at every point from now on, whether armed or not. Simulations use it to decide
/// the effect of a point on the simulated process. Only the first observer is kept.
pub fn observe(observer: fn(&'static str)) {
    let _ = OBSERVER.set(observer);
    ARMED.store(true, Ordering::Release);
}

/// Whether the code must make the deliberate mistake `name` here. Always false without the feature
/// `sabotage`. With it, a test that does not detect the mistake fails.
#[inline]
#[must_use]
pub fn sabotaged(name: &str) -> bool {
    #[cfg(feature = "sabotage")]
    return sabotage::chosen(name);
    #[cfg(not(feature = "sabotage"))]
    {
        let _ = name;
        false
    }
}

#[cfg(feature = "sabotage")]
pub mod sabotage {
    //! Selects the deliberate mistake of this process.

    use std::sync::RwLock;

    static CHOSEN: RwLock<Option<String>> = RwLock::new(None);

    /// Selects the mistake to make from now on; `None` makes none.
    pub fn choose(name: Option<&str>) {
        *CHOSEN.write().expect("no reader panics") = name.map(str::to_owned);
    }

    pub(super) fn chosen(name: &str) -> bool {
        CHOSEN.read().expect("no writer panics").as_deref() == Some(name)
    }
}

/// Disarms the armed point. An observer stays, but is no longer called.
pub fn disarm() {
    ARMED.store(false, Ordering::Release);
    *PLAN.lock().expect("no fault handler panics") = None;
}

/// Marks a point at which a test may kill the process.
#[inline]
pub fn point(name: &'static str) {
    if ARMED.load(Ordering::Relaxed) {
        reached(name);
    }
}

#[cold]
fn reached(name: &'static str) {
    if let Some(observer) = OBSERVER.get() {
        return observer(name);
    }
    let mut plan = PLAN.lock().expect("no fault handler panics");
    let Some(armed) = plan.as_mut().filter(|armed| armed.name == name) else { return };
    armed.passes_left -= 1;
    if armed.passes_left == 0 {
        let handler = armed.handler;
        *plan = None;
        ARMED.store(false, Ordering::Release);
        drop(plan);
        handler(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    static FIRED: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn a_point_fires_once_at_its_count() {
        arm("here", 3, |_| {
            FIRED.fetch_add(1, Ordering::Relaxed);
        });
        for passes in 1..=5 {
            point("elsewhere");
            point("here");
            assert_eq!(FIRED.load(Ordering::Relaxed), u64::from(passes >= 3));
        }
        disarm();
    }
}
