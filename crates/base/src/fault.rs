//! Named places where a test can end the process, or count that they were passed.
//!
//! Budget: one relaxed atomic load per point while nothing is armed. A point is armed for the whole
//! process, by name and count, from [`arm`] (the `CENOTE_FAULT=name:count` variable, read by the
//! command line). When the count is reached the handler runs; the command's handler kills the process
//! with SIGKILL, because that is the death the pool must survive.

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

/// Runs `handler` when the point `name` is passed for the `count`-th time (1: the first time).
pub fn arm(name: &str, count: u64, handler: fn(&str)) {
    *PLAN.lock().expect("no fault handler panics") =
        Some(Plan { name: name.to_owned(), passes_left: count.max(1), handler });
    ARMED.store(true, Ordering::Release);
}

/// Calls `observer` at every point from now on, armed or not; for simulations, which decide themselves
/// what a point means to the process that passes it. The first observer stays.
pub fn observe(observer: fn(&'static str)) {
    let _ = OBSERVER.set(observer);
    ARMED.store(true, Ordering::Release);
}

/// Whether a deliberate mistake is to be made here: never, but in builds with the feature `sabotage`, where a
/// test that does not notice the mistake fails.
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
    //! Which deliberate mistake this process makes.

    use std::sync::RwLock;

    static CHOSEN: RwLock<Option<String>> = RwLock::new(None);

    /// Makes this mistake from now on, or none.
    pub fn choose(name: Option<&str>) {
        *CHOSEN.write().expect("no reader panics") = name.map(str::to_owned);
    }

    pub(super) fn chosen(name: &str) -> bool {
        CHOSEN.read().expect("no writer panics").as_deref() == Some(name)
    }
}

/// Forgets what was armed.
pub fn disarm() {
    ARMED.store(false, Ordering::Release);
    *PLAN.lock().expect("no fault handler panics") = None;
}

/// Marks a place where a process may be made to die.
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
