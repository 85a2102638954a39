//! The host-local memory of a simulated host: words, robust locks, slots and time.

use crate::world::{Kind, MutexState, Process, in_child};
use cenote_mem::HostSpec;
use cenote_mem::host::{HeldLock, HostError, HostLocal, LockTimeout};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

pub(crate) struct Words {
    words32: Vec<AtomicU32>,
    words64: Vec<AtomicU64>,
}

/// A process's view of its host's memory.
#[derive(Clone)]
pub struct SimHost {
    process: Process,
    words: Arc<Words>,
}

impl fmt::Debug for SimHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimHost({})", self.process.host)
    }
}

impl Process {
    /// This host's local memory. The first call after the host started creates it, all zeros.
    #[must_use]
    pub fn host_memory(&self, spec: HostSpec) -> SimHost {
        let mut state = self.shared.state();
        let host = &mut state.hosts[self.host];
        let words = host.locals.get_or_insert_with(|| {
            host.mutexes = (0..spec.mutexes).map(|_| MutexState::default()).collect();
            host.slots = vec![None; spec.slots as usize];
            Arc::new(Words {
                words32: (0..spec.words32).map(|_| AtomicU32::new(0)).collect(),
                words64: (0..spec.words64).map(|_| AtomicU64::new(0)).collect(),
            })
        });
        SimHost { words: Arc::clone(words), process: self.clone() }
    }
}

/// A lock of a simulated host, held until it is dropped.
pub struct SimLock<'a> {
    host: &'a SimHost,
    index: u32,
    abandoned: bool,
}

impl HeldLock for SimLock<'_> {
    fn abandoned(&self) -> bool {
        self.abandoned
    }

    fn abandon(self) {
        self.release(true);
        std::mem::forget(self);
    }
}

impl Drop for SimLock<'_> {
    fn drop(&mut self) {
        self.release(false);
    }
}

impl SimLock<'_> {
    fn release(&self, abandoned: bool) {
        if in_child() {
            return;
        }
        let process = &self.host.process;
        let Ok(mut state) = process.shared.step(process.number, Kind::Act) else { return };
        // The next holder sees the stores made under the lock.
        state.machine.drain_stores(process.number);
        let number = process.number;
        let index = self.index;
        state.note(|| format!("p{number} unlock {index}"));
        if let Some(mutex) = state.hosts[process.host].mutexes.get_mut(self.index as usize) {
            *mutex = MutexState { owner: None, abandoned };
        }
    }
}

/// A claim on a slot of a simulated host, released when it is dropped.
pub struct SimClaim {
    process: Process,
    slot: u32,
}

impl Drop for SimClaim {
    fn drop(&mut self) {
        if in_child() {
            return;
        }
        let Ok(mut state) = self.process.shared.step(self.process.number, Kind::Act) else { return };
        if let Some(slot) = state.hosts[self.process.host].slots.get_mut(self.slot as usize)
            && *slot == Some(self.process.number)
        {
            *slot = None;
        }
    }
}

impl HostLocal for SimHost {
    type Lock<'a> = SimLock<'a>;
    type Claim = SimClaim;
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    fn words32(&self) -> &[AtomicU32] {
        &self.words.words32
    }

    fn words64(&self) -> &[AtomicU64] {
        &self.words.words64
    }

    fn bare_words64(&self, from: usize) -> &[AtomicU64] {
        &self.words.words64[from..]
    }

    fn lock(&self, index: u32, timeout: Duration) -> Result<SimLock<'_>, LockTimeout> {
        if in_child() {
            return Err(LockTimeout::Inherited { index });
        }
        let process = &self.process;
        let mut deadline = None;
        loop {
            let late = Err(LockTimeout::Passed { index });
            let Ok(mut state) =
                process.shared.step(process.number, if deadline.is_some() { Kind::Wait } else { Kind::Act })
            else {
                return late;
            };
            let deadline = *deadline.get_or_insert(state.time.saturating_add(timeout.as_nanos() as u64));
            let MutexState { owner, abandoned } = state.hosts[process.host].mutexes[index as usize];
            let abandoned = abandoned || owner.is_some_and(|owner| !state.is_live(owner));
            if owner.is_none() || abandoned {
                state.machine.drain_stores(process.number);
                state.hosts[process.host].mutexes[index as usize] =
                    MutexState { owner: Some(process.number), abandoned: false };
                let number = process.number;
                state.note(|| format!("p{number} lock {index}{}", if abandoned { " (abandoned)" } else { "" }));
                return Ok(SimLock { host: self, index, abandoned });
            }
            if state.time >= deadline {
                return late;
            }
        }
    }

    fn claim_slot(&self, slot: u32) -> Result<Option<SimClaim>, HostError> {
        let process = &self.process;
        let Ok(mut state) = process.shared.step(process.number, Kind::Act) else { return Ok(None) };
        let held = &mut state.hosts[process.host].slots[slot as usize];
        if held.is_some() {
            return Ok(None);
        }
        *held = Some(process.number);
        Ok(Some(SimClaim { process: process.clone(), slot }))
    }

    fn slot_alive(&self, slot: u32) -> bool {
        let state = self.process.shared.state();
        state.hosts[self.process.host].slots.get(slot as usize).is_some_and(Option::is_some)
    }

    fn is_inherited(&self) -> bool {
        in_child()
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.process.shared.state().time)
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + Duration::from_nanos(self.process.shared.state().time)
    }

    fn pause(&self, _looks: u32) {
        drop(self.process.shared.step(self.process.number, Kind::Wait));
    }
}
