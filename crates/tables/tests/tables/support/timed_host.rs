//! A host whose clock a test controls. All else is the machine's.

use cenote_base::testing::ManualTime;
use cenote_mem::host::{HostError, HostLock, LockTimeout, SlotClaim};
use cenote_mem::{HostArea, HostLocal};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct TimedHost {
    pub area: HostArea,
    pub time: &'static ManualTime,
}

impl HostLocal for TimedHost {
    type Lock<'a> = HostLock<'a>;
    type Claim = SlotClaim;
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    fn words32(&self) -> &[AtomicU32] {
        self.area.words32()
    }

    fn words64(&self) -> &[AtomicU64] {
        self.area.words64()
    }

    fn bare_words64(&self, from: usize) -> &[AtomicU64] {
        self.area.bare_words64(from)
    }

    fn lock(&self, index: u32, timeout: Duration) -> Result<HostLock<'_>, LockTimeout> {
        HostLocal::lock(&self.area, index, timeout)
    }

    fn claim_slot(&self, slot: u32) -> Result<Option<SlotClaim>, HostError> {
        self.area.claim_slot(slot)
    }

    fn slot_alive(&self, slot: u32) -> bool {
        self.area.slot_alive(slot)
    }

    fn is_inherited(&self) -> bool {
        self.area.is_inherited()
    }

    fn now(&self) -> Duration {
        self.time.clock().since(0)
    }

    fn unix_time(&self) -> Duration {
        self.time.clock().unix()
    }

    fn pause(&self, looks: u32) {
        self.area.pause(looks);
    }
}
