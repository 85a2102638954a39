//! Page-locked memory: regions that are shared by all users of a process, and slots for blocks.

use crate::driver::{Device, DeviceBytes, DeviceError, Locked};
use crate::locking::{Ending, Locking, PageLock, Progress};
use cenote_base::Clock;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// Mapped memory of the processor. It stays mapped while the value lives.
pub trait Mapped: Send + Sync + 'static {
    /// Faults pages in, without changing a byte.
    fn touch(&self, address: usize, bytes: usize);
}

/// How a region is page-locked.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    /// Bytes of a piece, of whole pages.
    pub bytes: usize,
    /// Threads that touch them.
    pub threads: usize,
}

/// Memory that is page-locked for a device, in pieces, beside serving. The last user unlocks it.
pub struct Registered(ManuallyDrop<Arc<Region>>);

struct Region {
    device: Arc<Device>,
    address: usize,
    locking: Locking,
    clock: Clock,
}

type Key = (usize, usize);

/// All registrations of this process, by device and address.
static ALL: LazyLock<Mutex<All>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct All {
    regions: HashMap<Key, Arc<Region>>,
    /// Regions without users, of which a piece was being locked when the last user left. The driver refuses
    /// to lock its pages again before it is unlocked.
    ending: HashMap<Key, Vec<Ending>>,
}

/// The driver's page-locking of some memory, which it keeps mapped.
struct Driver {
    device: Arc<Device>,
    memory: Arc<dyn Mapped>,
}

impl PageLock for Driver {
    fn enter_thread(&self) {
        self.device.enter_thread();
    }

    fn touch(&self, address: usize, bytes: usize) {
        self.memory.touch(address, bytes);
    }

    fn lock(&self, address: usize, bytes: usize) -> Result<(), String> {
        // SAFETY: `memory` keeps the piece mapped, by the contract of `Registered::share`.
        unsafe { self.device.register(address, bytes) }.map_err(|error| error.to_string())
    }

    fn unlock(&self, address: usize) {
        // A piece that the driver keeps stays locked until the process ends.
        let _ = self.device.unregister(address);
    }
}

impl Registered {
    /// The registration of this memory, which all users of the process share. It begins to lock the
    /// memory if no other user has.
    ///
    /// # Safety
    /// Callers must guarantee that `bytes` bytes from `address` stay mapped while `memory` lives.
    #[must_use]
    pub unsafe fn share(
        device: &Arc<Device>,
        (address, bytes): (usize, usize),
        memory: Arc<dyn Mapped>,
        pieces: Pieces,
        clock: Clock,
    ) -> Self {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (Arc::as_ptr(device).addr(), address);
        let All { regions, ending } = &mut *all;
        let region = regions.entry(key).or_insert_with(|| {
            let driver = Box::new(Driver { device: Arc::clone(device), memory });
            let before = ending.remove(&key).unwrap_or_default();
            let locking = Locking::start(driver, (address, bytes), pieces.bytes, pieces.threads, before);
            Arc::new(Region { device: Arc::clone(device), address, locking, clock })
        });
        Self(ManuallyDrop::new(Arc::clone(region)))
    }

    /// How much is locked.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.0.locking.progress()
    }

    /// Waits until all is locked, or a piece was refused. False after `timeout`.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        self.0.locking.wait(self.0.clock, timeout)
    }

    /// Whether the device can access these bytes in place. That stays so while this value lives.
    #[must_use]
    pub fn is_locked(&self, address: u64, bytes: u64) -> bool {
        self.0.locking.is_locked(address as usize, bytes as usize)
    }

    /// The device's address of the first byte.
    ///
    /// # Errors
    /// The device cannot read the memory in place, because not all of it is locked.
    pub fn seen(&self) -> Result<u64, DeviceError> {
        let Progress { locked, bytes, refused } = self.progress();
        if locked < bytes {
            let why = refused.unwrap_or_else(|| "page-locking has not ended in time".to_owned());
            return Err(DeviceError::new(format!("{locked} of {bytes} bytes are page-locked"), why));
        }
        let Region { device, address, locking, .. } = &**self.0;
        let seen = device.seen(*address)?;
        let mut at = 0;
        while at < bytes {
            // A kernel addresses the whole region from its first byte.
            if device.seen(address + at)? != seen + at as u64 {
                let what = format!("the page-locked region of {bytes} bytes");
                return Err(DeviceError::new(what, format!("the device sees its piece at {at} elsewhere")));
            }
            at += locking.until_border(address + at);
        }
        Ok(seen)
    }

    pub(crate) fn has_borders(&self) -> bool {
        self.0.locking.has_borders()
    }

    /// Bytes from this address to the next border of pieces.
    pub(crate) fn until_border(&self, address: u64) -> u64 {
        self.0.locking.until_border(address as usize) as u64
    }
}

impl Registered {
    /// Ends this use. The last one waits at most `timeout` for a piece that is being locked; its thread
    /// unlocks it otherwise. The device must not access the memory any more.
    pub fn leave(&self, timeout: Duration) {
        self.end_if_last(timeout, &mut ALL.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn end_if_last(&self, timeout: Duration, all: &mut All) {
        let key = (Arc::as_ptr(&self.0.device).addr(), self.0.address);
        // Two owners: this user and the table.
        if Arc::strong_count(&self.0) == 2 && all.regions.remove(&key).is_some() {
            all.ending.retain(|_, endings| !endings.iter().all(Ending::has_come));
            let _ = self.0.locking.end(self.0.clock, timeout);
            all.ending.insert(key, self.0.locking.endings());
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Under the lock: no new user locks pages that are still locked, and of two users that leave at
        // once one is the last.
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        self.end_if_last(Duration::ZERO, &mut all);
        // SAFETY: the value ends here, so nothing uses the region through it any more.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// Slots, each for one block: page-locked, or on the GPU.
pub struct Staging {
    /// Keeps the memory.
    _memory: Memory,
    address: usize,
    block_bytes: usize,
    free: Mutex<Vec<usize>>,
    count: usize,
}

enum Memory {
    Locked(#[allow(dead_code, reason = "it is dropped with the slots")] Locked),
    OfGpu(#[allow(dead_code, reason = "it is dropped with the slots")] DeviceBytes),
}

impl Staging {
    /// As many page-locked slots as fit into so many bytes.
    ///
    /// # Errors
    /// There is not so much memory, or it is too little for one block.
    pub fn new(device: &Arc<Device>, block_bytes: usize, bytes: usize) -> Result<Arc<Self>, DeviceError> {
        let count = Self::slots("staging memory", block_bytes, bytes)?;
        let memory = device.lock(count * block_bytes)?;
        let address = memory.address();
        Ok(Self::of(Memory::Locked(memory), address, block_bytes, count))
    }

    /// As many slots of the GPU as fit into so many bytes.
    ///
    /// # Errors
    /// There is not so much memory, or it is too little for one block.
    pub fn on_gpu(device: &Arc<Device>, block_bytes: usize, bytes: usize) -> Result<Arc<Self>, DeviceError> {
        let count = Self::slots("GPU buffer", block_bytes, bytes)?;
        let memory = device.allocate(count * block_bytes)?;
        let address = memory.address() as usize;
        Ok(Self::of(Memory::OfGpu(memory), address, block_bytes, count))
    }

    fn slots(what: &str, block_bytes: usize, bytes: usize) -> Result<usize, DeviceError> {
        match bytes / block_bytes {
            0 => {
                let why = format!("one block has {block_bytes}; give at least so many");
                Err(DeviceError::of_arguments(format!("{bytes} bytes of {what}"), why))
            }
            count => Ok(count),
        }
    }

    fn of(memory: Memory, address: usize, block_bytes: usize, count: usize) -> Arc<Self> {
        let free = Mutex::new((0..count).rev().collect());
        Arc::new(Self { _memory: memory, address, block_bytes, free, count })
    }

    /// Address of the first slot. The others follow it.
    #[must_use]
    pub const fn address(&self) -> usize {
        self.address
    }

    /// Bytes of all slots.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.count * self.block_bytes
    }

    /// Number of slots.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Number of free slots.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Takes `count` slots, or none if there are fewer.
    pub(crate) fn take(self: &Arc<Self>, count: usize) -> Option<Slots> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let left = free.len().checked_sub(count)?;
        Some(Slots { of: Arc::clone(self), numbers: free.split_off(left) })
    }
}

/// Slots in use. The drop gives them back, so the device must have ended its copies.
pub struct Slots {
    of: Arc<Staging>,
    numbers: Vec<usize>,
}

impl Slots {
    /// Number of slots.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Numbers of the slots in the staging memory.
    #[must_use]
    pub fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// The bytes of a page-locked slot, by its place in [`Slots::numbers`].
    ///
    /// # Safety
    /// Callers must guarantee that the slots are page-locked, and that the device does not write them
    /// during the borrow.
    #[must_use]
    pub unsafe fn payload(&self, number: usize) -> &[u8] {
        let place = std::ptr::with_exposed_provenance(self.of.address() + self.numbers[number] * self.of.block_bytes);
        // SAFETY: the slot is this value's, and by the contract nothing writes it.
        unsafe { std::slice::from_raw_parts(place, self.of.block_bytes) }
    }

    /// Addresses of the slots.
    #[must_use]
    pub fn places(&self) -> Vec<u64> {
        self.numbers.iter().map(|number| (self.of.address() + number * self.of.block_bytes) as u64).collect()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.of.free.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.numbers);
    }
}
