//! Page-locked memory: regions that are shared by all users of a process, and slots for blocks.

use crate::driver::{Device, DeviceBytes, DeviceError, Locked};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Memory that is page-locked for a device, as a whole or in pieces. The last user unlocks it.
pub struct Registered(Arc<Pieces>);

struct Pieces {
    device: Arc<Device>,
    address: usize,
    /// Bytes of a piece; the whole, if there is one piece.
    piece: usize,
    pieces: Vec<usize>,
    /// Keeps the memory mapped.
    _owner: Arc<dyn Send + Sync>,
}

type Key = (usize, usize);

/// All registrations of this process, by device and address.
static ALL: LazyLock<Mutex<HashMap<Key, Arc<Pieces>>>> = LazyLock::new(Mutex::default);

impl Registered {
    /// The registration of this memory, which all users of the process share. A new one is tried as a
    /// whole, then in pieces.
    ///
    /// # Safety
    /// Callers must guarantee that the memory stays mapped while `owner` lives.
    ///
    /// # Errors
    /// The memory cannot be page-locked. Nothing of it is locked then.
    pub unsafe fn share(
        device: &Arc<Device>,
        address: usize,
        bytes: usize,
        piece: usize,
        owner: &Arc<dyn Send + Sync>,
    ) -> Result<Self, DeviceError> {
        let key = (Arc::as_ptr(device).addr(), address);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&key) {
            return Ok(Self(Arc::clone(known)));
        }
        let new = |piece| {
            let (device, _owner) = (Arc::clone(device), Arc::clone(owner));
            // SAFETY: the owner keeps the memory mapped, by the contract of this function.
            unsafe { Pieces { device, address, piece, pieces: Vec::new(), _owner }.lock(bytes) }
        };
        let made = match new(bytes.max(1)) {
            Err(_) if piece < bytes => new(piece.max(1))?,
            made => made?,
        };
        let made = Arc::new(made);
        all.insert(key, Arc::clone(&made));
        Ok(Self(made))
    }

    /// The device's address of the first byte.
    ///
    /// # Errors
    /// The device cannot read the memory in place.
    pub fn seen(&self) -> Result<u64, DeviceError> {
        self.0.device.seen(self.0.address)
    }

    pub(crate) fn has_borders(&self) -> bool {
        self.0.pieces.len() > 1
    }

    /// Bytes from this address to the next border of pieces.
    pub(crate) fn until_border(&self, address: u64) -> u64 {
        let piece = self.0.piece as u64;
        piece - (address - self.0.address as u64) % piece
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Under the lock, so that no new user registers pages that are still locked.
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::strong_count(&self.0) == 2 {
            all.remove(&(Arc::as_ptr(&self.0.device).addr(), self.0.address));
            self.0.unlock();
        }
    }
}

impl Pieces {
    /// # Safety
    /// Callers must guarantee that the memory is mapped while the owner lives.
    unsafe fn lock(mut self, bytes: usize) -> Result<Self, DeviceError> {
        let mut done = 0;
        while done < bytes {
            let now = self.piece.min(bytes - done);
            // SAFETY: the memory is mapped by the contract of this function.
            if let Err(error) = unsafe { self.device.register(self.address + done, now) } {
                self.unlock();
                return Err(error);
            }
            self.pieces.push(self.address + done);
            done += now;
        }
        Ok(self)
    }

    /// Unlocks all pieces. A piece that the driver keeps stays locked until the process ends.
    fn unlock(&self) {
        self.pieces.iter().for_each(|&piece| _ = self.device.unregister(piece));
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

    /// Takes `count` slots, or none if fewer are free.
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
