//! Bounds on readers that have not shown the key: exchanges at a time, and lines about refusals.

use cenote_base::Clock;
use cenote_base::time::nanoseconds;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most exchanges at a time, and most of one reader's address.
const ALL_MAX: usize = 64;
const ADDRESS_MAX: usize = 8;
/// Most refusals that are reported within a window; others are counted.
const REPORTS_MAX: u32 = 8;
const WINDOW: Duration = Duration::from_secs(10);

/// What hears of each exchange.
pub type Heard = dyn Fn(SocketAddr, io::Result<()>) + Send + Sync;

/// Exchanges that go on, by address.
#[derive(Default)]
pub struct Exchanges(Mutex<HashMap<IpAddr, usize>>);

/// One exchange. Dropping it makes room.
pub struct Exchange {
    all: Arc<Exchanges>,
    place: IpAddr,
}

/// The address that counts: a host may have all addresses of an IPv6 network.
fn place_of(from: SocketAddr) -> IpAddr {
    match from.ip().to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

impl Exchanges {
    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an exchange.
    ///
    /// # Errors
    /// Too many go on, in all or with this address.
    pub fn begin(self: &Arc<Self>, from: SocketAddr) -> io::Result<Exchange> {
        let place = place_of(from);
        let mut counts = self.counts();
        if counts.values().sum::<usize>() >= ALL_MAX {
            return Err(io::Error::other("too many readers ask at a time"));
        }
        let count = counts.entry(place).or_default();
        if *count >= ADDRESS_MAX {
            return Err(io::Error::other("too many readers of this address ask at a time"));
        }
        *count += 1;
        Ok(Exchange { all: Arc::clone(self), place })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mut counts = self.all.counts();
        if let Some(count) = counts.get_mut(&self.place) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.place);
            }
        }
    }
}

/// Chooses the refusals that are reported.
#[derive(Default)]
struct Refusals {
    window_ns: u64,
    reported: u32,
    hidden: u64,
}

impl Refusals {
    /// Returns how many refusals were not reported since the last report; `None`: nor is this one.
    fn admit(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns.saturating_sub(self.window_ns) >= nanoseconds(WINDOW) {
            (self.window_ns, self.reported) = (now_ns, 0);
        }
        if self.reported >= REPORTS_MAX {
            self.hidden += 1;
            return None;
        }
        self.reported += 1;
        Some(std::mem::take(&mut self.hidden))
    }
}

/// Hears all exchanges and passes on those that succeeded, and refusals as far as a log has use for them.
pub fn limited(heard: &Arc<Heard>, clock: Clock) -> Arc<Heard> {
    let (heard, refusals) = (Arc::clone(heard), Mutex::new(Refusals::default()));
    Arc::new(move |from, outcome| {
        let Err(error) = outcome else { return heard(from, Ok(())) };
        let admitted = refusals.lock().unwrap_or_else(PoisonError::into_inner).admit(clock.now_ns());
        match admitted {
            None => {}
            Some(0) => heard(from, Err(error)),
            Some(hidden) => {
                let text = format!("{error}; {hidden} more refusals were not logged");
                heard(from, Err(io::Error::new(error.kind(), text)));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::testing::ManualTime;

    fn at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().expect("an address"), 1)
    }

    /// A client without the key held all exchanges for their whole timeout, so no reader was answered.
    #[test]
    fn one_address_has_few_of_the_exchanges() {
        let all = Arc::<Exchanges>::default();
        for stalled in ["10.0.0.9", "fd00::1"] {
            let held: Vec<Exchange> = (0..ADDRESS_MAX).map(|_| all.begin(at(stalled)).expect("room")).collect();
            assert!(all.begin(at(stalled)).is_err());
            assert!(all.begin(at("10.0.0.2")).is_ok(), "another reader is answered");
            drop(held);
            assert!(all.begin(at(stalled)).is_ok());
        }
        let network = (0..ADDRESS_MAX).map(|number| all.begin(at(&format!("fd00::{number}"))).expect("room"));
        let network: Vec<Exchange> = network.collect();
        assert!(all.begin(at("fd00::ffff")).is_err(), "it is one network");
        assert!(all.begin(at("fd00:0:0:1::1")).is_ok());
        drop(network);
        let many = (0..ALL_MAX).map(|number| all.begin(at(&format!("10.0.1.{number}"))).expect("room"));
        let many: Vec<Exchange> = many.collect();
        assert!(all.begin(at("10.0.0.2")).is_err());
        drop(many);
        assert!(all.counts().is_empty());
    }

    #[test]
    fn refusals_are_reported_at_a_bounded_rate_and_the_others_counted() {
        let time = ManualTime::start();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard: Arc<Heard> = {
            let lines = Arc::clone(&lines);
            Arc::new(move |_, outcome| lines.lock().expect("no panic").push(outcome.map_err(|error| error.to_string())))
        };
        let limited = limited(&heard, time.clock());
        let refuse = || limited(at("10.0.0.9"), Err(io::Error::other("another key")));
        (0..100).for_each(|_| refuse());
        limited(at("10.0.0.2"), Ok(()));
        assert_eq!(lines.lock().expect("no panic").len(), REPORTS_MAX as usize + 1);
        time.advance(WINDOW);
        refuse();
        let last = lines.lock().expect("no panic").pop().expect("a line").expect_err("a refusal");
        assert_eq!(last, format!("another key; {} more refusals were not logged", 100 - REPORTS_MAX));
    }
}
