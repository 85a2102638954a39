//! KV memory on a GPU: the mover of `cenote_device`, with the pool's blocks at its other end.
//!
//! Each method is one call without the interpreter's lock, whatever the number of blocks. The mover's
//! threads never take that lock.

mod blocks;
mod rows;

use crate::clock;
use crate::errors::{CenoteError, guarded, wrong};
use crate::hashes::AnyHashes;
use crate::lease::{Lease, Pin};
use crate::memory::Pages;
use crate::namespace::{Namespace, chain_names};
use crate::numbers::{Items, collect};
use crate::region::Region;
use crate::save::Target;
pub use rows::RowKernel;

use blocks::{Copied, Pinned, Reserved};
use cenote_base::BlockHash;
use cenote_base::seal::Seal;
use cenote_device::driver::{Device, DeviceError, EngineStream};
use cenote_device::layout::{Layer, Layout};
use cenote_device::locking::{PIECE_BYTES_MAX, Progress};
use cenote_device::memory::{Mapped, Pieces, Registered, Staging};
use cenote_device::mover::{self, Counts, Loading, Mover, Saving, Settings};
use cenote_mem::fork::ProcessStamp;
use cenote_mem::{Fabric, numa};
use cenote_pool::Names;
use pyo3::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const LINE: u64 = 64;

/// Counts of save outcomes by name.
type Outcomes = Arc<Mutex<BTreeMap<&'static str, u64>>>;

fn add(outcomes: &Outcomes, name: &'static str, count: u64) {
    if count > 0 {
        *outcomes.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += count;
    }
}

fn of_device(error: &DeviceError) -> PyErr {
    CenoteError::new_err(error.to_string())
}

fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let duration = seconds.map(Duration::try_from_secs_f64).transpose();
    duration.map_err(|_| wrong("the timeout is negative or not a number; give seconds or None"))
}

/// A GPU, through the CUDA driver.
#[pyclass(frozen, module = "cenote")]
pub struct Gpu {
    device: ManuallyDrop<Arc<Device>>,
    stamp: ProcessStamp,
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // A forked child has no use of its parent's context in the driver.
        if !self.stamp.is_inherited() {
            // SAFETY: this value ends here, so nothing uses the device after its drop.
            unsafe { ManuallyDrop::drop(&mut self.device) };
        }
    }
}

#[pymethods]
impl Gpu {
    #[new]
    #[pyo3(signature = (number, *, library="libcuda.so.1"))]
    fn new(py: Python<'_>, number: u32, library: &str) -> PyResult<Self> {
        let device = py.detach(|| Device::open(library, number, clock())).map_err(|error| of_device(&error))?;
        Ok(Self { device: ManuallyDrop::new(device), stamp: ProcessStamp::current() })
    }

    /// Why each copy is a call of the driver; empty if many copies are one call.
    #[getter]
    fn why_one_by_one(&self) -> &str {
        self.device.why_one_by_one()
    }

    /// Page-locks a region, which all users of this process share. Waits at most `timeout` seconds.
    #[pyo3(signature = (region, *, piece_bytes=1 << 30, timeout=600.0))]
    fn register(&self, py: Python<'_>, region: &Region, piece_bytes: usize, timeout: f64) -> PyResult<Registration> {
        let (device, timeout) = (self.device()?, duration(Some(timeout))?.unwrap_or_default());
        let seen = || {
            let shared = share(device, &region.open.pool()?, piece_bytes);
            let _ = shared.wait(timeout);
            shared.seen().map(|seen| (shared, seen)).map_err(|error| of_device(&error))
        };
        let (shared, seen) = py.detach(seen)?;
        Ok(Registration { registered: Mutex::new(Some(shared)), seen, stamp: ProcessStamp::current() })
    }
}

impl Gpu {
    /// Refuses the GPU of a forked child's parent: the driver's state and locks are that process's.
    fn device(&self) -> PyResult<&Arc<Device>> {
        match self.stamp.is_inherited() {
            false => Ok(&self.device),
            true => Err(CenoteError::new_err("another process opened this GPU; open it in this one")),
        }
    }
}

fn share(device: &Arc<Device>, pool: &cenote_pool::HostPool, piece_bytes: usize) -> Registered {
    let fabric = pool.fabric();
    // The driver locks whole pages, and refuses a page twice.
    let page = usize::try_from(fabric.mapping().obtained().page_bytes).unwrap_or(1).max(4096);
    let piece_bytes = piece_bytes.clamp(1, PIECE_BYTES_MAX).next_multiple_of(page);
    let place = (fabric.address(0, LINE).addr(), fabric.len() as usize);
    let pieces = Pieces { bytes: piece_bytes, threads: touching_threads() };
    let memory = Arc::new(Memory { fabric: Arc::clone(fabric), address: place.0 });
    // SAFETY: the fabric keeps the region mapped.
    unsafe { Registered::share(device, place, memory, pieces, clock()) }
}

/// Threads that touch a region's pages. One page-locks beside them, and an engine starts meanwhile.
fn touching_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |threads| (threads.get() / 4).clamp(1, 4))
}

/// A region's memory, from this address.
struct Memory {
    fabric: Arc<cenote_mem::Mapped>,
    address: usize,
}

impl Mapped for Memory {
    fn touch(&self, address: usize, bytes: usize) {
        let mapping = self.fabric.mapping();
        // Both only make page-locking and copies faster.
        let _ = numa::stay_near(mapping);
        let _ = mapping.touch((address - self.address) as u64, bytes as u64);
    }
}

/// A page-locked region.
#[pyclass(frozen, module = "cenote")]
pub struct Registration {
    registered: Mutex<Option<Registered>>,
    /// The GPU's address of the region's first byte.
    #[pyo3(get)]
    seen: u64,
    stamp: ProcessStamp,
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A forked child must not unlock its parent's pages, and a lock may be held since the fork.
        if self.stamp.is_inherited() {
            std::mem::forget(self.registered.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

#[pymethods]
impl Registration {
    /// Ends this use of the pages; the last use unlocks them. The GPU must not read them any more.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.stamp.is_inherited() {
            return Err(CenoteError::new_err("another process registered this region with a GPU"));
        }
        // The whole region is locked, so there is nothing to wait for.
        py.detach(|| drop(self.registered.lock().unwrap_or_else(PoisonError::into_inner).take()));
        Ok(())
    }
}

/// A `cenote.device.PageLayout`.
#[derive(FromPyObject)]
struct PageLayout {
    stride: u64,
    runs: Vec<(u64, u64)>,
    num_blocks: usize,
}

/// Parts of a save that are begun together.
const PARTS_TOGETHER: usize = 2;

/// Blocks of one namespace that are saved at the end of a step.
struct Order {
    /// The address of the namespace's Python object, which the caller keeps, for comparison.
    id: usize,
    to: Target,
    hashes: Vec<BlockHash>,
    depths: Vec<u32>,
    blocks: Vec<usize>,
    names: Vec<Names>,
}

/// A block of a call, by its order's `id` and its hash.
type Name = (usize, BlockHash);

type Given<'py> = (Bound<'py, Namespace>, Bound<'py, PyAny>, Items<u32>, Items<usize>, Option<Items<u64>>, u64);

impl Order {
    fn of(given: &Bound<'_, PyAny>, keep: &mut Vec<Py<Namespace>>) -> PyResult<Self> {
        let (namespace, hashes, depths, blocks, names, parent): Given<'_> = given.extract()?;
        let hashes: AnyHashes<'_> = hashes.extract()?;
        let own = namespace.get();
        let hashes = hashes.names(&own.namespace.hasher).into_owned();
        let (depths, blocks, count) = (depths.0, blocks.0, hashes.len());
        if depths.len() != count || blocks.len() != count {
            let counts = format!("{count} hashes, {} depths, {} blocks", depths.len(), blocks.len());
            return Err(wrong(format!("{counts}: give one of each per block")));
        }
        let names = chain_names(names.map(|names| names.0), count, parent)?;
        let (pool, coding, below) = (own.open.pool()?, own.coding.clone(), own.below());
        let to = Target { pool, namespace: own.namespace.clone(), coding, below };
        let id = namespace.as_ptr().addr();
        keep.push(namespace.unbind());
        Ok(Self { id, to, hashes, depths, blocks, names })
    }

    /// One order for each run of requests of one namespace, so that their blocks share locks, copies
    /// and events.
    fn joined(orders: Vec<Self>) -> Vec<Self> {
        let mut joined: Vec<Self> = Vec::new();
        for mut order in orders {
            match joined.last_mut().filter(|last| last.id == order.id) {
                None => joined.push(order),
                Some(last) => {
                    last.hashes.append(&mut order.hashes);
                    last.depths.append(&mut order.depths);
                    last.blocks.append(&mut order.blocks);
                    last.names.append(&mut order.names);
                }
            }
        }
        joined
    }

    /// Drops blocks that are there already: earlier in this call, because requests of one step may
    /// share a prefix. Returns their names.
    fn take_repeated(&mut self, seen: &mut HashSet<Name>) -> Vec<Name> {
        let new: Vec<bool> = self.hashes.iter().map(|&hash| seen.insert((self.id, hash))).collect();
        let repeated = self.hashes.iter().zip(&new).filter(|(_, new)| !**new).map(|(&hash, _)| (self.id, hash));
        let repeated = repeated.collect();
        self.keep(&new);
        repeated
    }

    /// Keeps these blocks.
    fn keep(&mut self, kept: &[bool]) {
        fn retain<T>(all: &mut Vec<T>, kept: &[bool]) {
            let mut kept = kept.iter();
            all.retain(|_| *kept.next().expect("one for each block"));
        }
        retain(&mut self.hashes, kept);
        retain(&mut self.depths, kept);
        retain(&mut self.blocks, kept);
        retain(&mut self.names, kept);
    }
}

/// KV memory on a GPU.
#[pyclass(frozen, module = "cenote")]
pub struct DeviceMemory {
    mover: ManuallyDrop<Mover>,
    /// The staging memory's slots as blocks.
    slots: Arc<Pages>,
    /// The region whose blocks the GPU accesses in place; `None` if all are staged.
    direct: Option<Arc<cenote_mem::Mapped>>,
    outcomes: Outcomes,
    /// Returns the engine's current stream.
    stream: Py<PyAny>,
    /// Keeps the engine's memory alive while the GPU may access it.
    owner: Mutex<Option<Py<PyAny>>>,
    why_staged: String,
    stamp: ProcessStamp,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // Without `close`, the GPU may still access the engine's memory.
        std::mem::forget(self.owner.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        // A forked child has no threads, and one of the parent's may have held a lock at the fork.
        if !self.stamp.is_inherited() {
            // SAFETY: this value ends here, so nothing uses the mover after its drop.
            unsafe { ManuallyDrop::drop(&mut self.mover) };
        }
    }
}

#[pymethods]
impl DeviceMemory {
    /// `layers`: per layer the address of the first block and its `PageLayout`. `memory`: address and
    /// bytes of the allocations that hold them. `owner` keeps those alive. `stream` returns the
    /// engine's current stream.
    #[new]
    #[pyo3(signature = (gpu, region, layers, memory, owner, stream, *, staging_bytes=256 << 20, staged=false,
                        piece_bytes=1 << 30, threads=2, backlog_bytes=4 << 30, gpu_buffer_bytes=256 << 20,
                        scatter_below=None))]
    fn new(
        py: Python<'_>,
        gpu: &Gpu,
        region: &Region,
        layers: Items<(u64, PageLayout)>,
        memory: Items<(u64, u64)>,
        owner: Py<PyAny>,
        stream: Py<PyAny>,
        staging_bytes: usize,
        staged: bool,
        piece_bytes: usize,
        threads: usize,
        backlog_bytes: u64,
        gpu_buffer_bytes: u64,
        scatter_below: Option<u64>,
    ) -> PyResult<Self> {
        let (device, layers) = (gpu.device()?, layers.0);
        let num_blocks = layers.first().map_or(0, |(_, layout)| layout.num_blocks);
        if layers.iter().any(|(_, layout)| layout.num_blocks != num_blocks) || !(1..=64).contains(&threads) {
            let count = layers.len();
            return Err(wrong(format!(
                "{count} layers with different numbers of blocks, or {threads} threads; give 1 to 64"
            )));
        }
        let page = |layout: &PageLayout| layout.runs.iter().try_fold(0_u64, |page, run| page.checked_add(run.1));
        let pages: Option<Vec<u64>> = layers.iter().map(|(_, layout)| page(layout)).collect();
        let pages = pages.ok_or_else(|| wrong("the pages of a layer exceed the address space"))?;
        let pages: Vec<usize> = pages.into_iter().map(|page| page as usize).collect();
        let described =
            layers.into_iter().map(|(address, layout)| Layer { address, stride: layout.stride, runs: layout.runs });
        let layout = Layout::new(&described.collect::<Vec<_>>(), num_blocks, &memory.0).map_err(wrong)?;
        let pool = region.open.pool()?;
        let why_staged = if pool.seal() != Seal::None {
            "the region is sealed"
        } else if staged {
            "requested"
        } else {
            ""
        };
        let made = py.detach(|| {
            let staging = Staging::new(device, layout.block_bytes() as usize, staging_bytes)?;
            let slots = Arc::new(Pages::of_slots(staging.address(), &pages, staging.count()));
            let region = why_staged.is_empty().then_some(|| share(device, &pool, piece_bytes));
            let near = Arc::clone(pool.fabric());
            let place = move || _ = numa::stay_near(near.mapping());
            let settings = Settings { threads, backlog_bytes, gpu_buffer_bytes, scatter_below, clock: clock() };
            Ok((Mover::start(device, layout, staging, region, settings, place)?, slots))
        });
        let (mover, slots) = made.map_err(|error: DeviceError| match error.is_of_arguments() {
            true => wrong(error.to_string()),
            false => of_device(&error),
        })?;
        Ok(Self {
            mover: ManuallyDrop::new(mover),
            slots,
            direct: why_staged.is_empty().then(|| Arc::clone(pool.fabric())),
            outcomes: Outcomes::default(),
            stream,
            owner: Mutex::new(Some(owner)),
            why_staged: why_staged.to_owned(),
            stamp: ProcessStamp::current(),
        })
    }

    /// Begins to load the blocks of a lease into `blocks`. The call consumes the lease.
    ///
    /// Only the engine's stream may use the blocks before the load has ended.
    #[pyo3(signature = (lease, blocks, *, timeout=None))]
    fn load(&self, py: Python<'_>, lease: &Lease, blocks: Items<usize>, timeout: Option<f64>) -> PyResult<DeviceLoad> {
        let (mover, blocks, timeout) = (self.mover()?, blocks.0, duration(timeout)?.unwrap_or(Duration::MAX));
        let (fabric, coding) = (lease.fabric(), lease.coding.clone());
        let engine = self.engine(py)?;
        let begin = || {
            mover.layout().check(&blocks).map_err(wrong)?;
            let pins = lease.take();
            if pins.len() != blocks.len() {
                let (pins, blocks) = (pins.len(), blocks.len());
                return Err(wrong(format!("a lease of {pins} blocks cannot be loaded into {blocks} blocks")));
            }
            let is_raw = |pin: &&Arc<Pin>| self.direct.is_some() || pin.hit().encoding == 0 || coding.is_none();
            let wanted = mover.layout().block_bytes();
            if let Some(pin) = pins.iter().filter(is_raw).find(|pin| pin.hit().length != wanted) {
                let found = pin.hit().length;
                return Err(wrong(format!("a block of {found} bytes, but this memory's blocks have {wanted}")));
            }
            let fabric = fabric.ok_or_else(|| CenoteError::new_err("the region is closed"))?;
            self.check_region(&fabric)?;
            let all = pins.into_iter().zip(blocks).enumerate();
            let parts = self.parts(mover, all, |(_, (pin, _))| pin.extent()).into_iter().map(|(part, is_staged)| {
                let (numbers, part): (Vec<_>, Vec<_>) = part.into_iter().unzip();
                let (pins, blocks) = part.into_iter().unzip();
                let (fabric, coding, slots) = (Arc::clone(&fabric), coding.clone(), Arc::clone(&self.slots));
                let source = Box::new(Pinned { fabric, coding, slots, pins, numbers: numbers.clone() });
                Loading { source, blocks, numbers, is_staged }
            });
            mover.load(parts.collect(), engine, timeout).map_err(|error| of_device(&error))
        };
        let load = guarded(|| py.detach(begin))?;
        Ok(DeviceLoad { load, stream: self.stream.clone_ref(py), stamp: self.stamp })
    }

    /// Saves the blocks of a step, of all its requests: per request its namespace, hashes, depths,
    /// blocks, names (or None) and parent. The blocks are published when the GPU has copied them.
    ///
    /// The engine may reuse the blocks in the steps after this one. Blocks are skipped that are
    /// present, have no room, or would delay a step.
    fn save(&self, py: Python<'_>, orders: &Bound<'_, PyAny>) -> PyResult<()> {
        let mover = self.mover()?;
        // An iterator may make namespaces on the way, and two that follow one another may have one address.
        let mut kept = Vec::new();
        let orders = Order::joined(collect(orders, |order| Order::of(order, &mut kept))?);
        orders.iter().try_for_each(|order| mover.layout().check_bounds(&order.blocks)).map_err(wrong)?;
        let wanted = mover.layout().block_bytes();
        for order in &orders {
            let found = order.to.namespace.block_bytes;
            if found != wanted {
                return Err(wrong(format!(
                    "this memory's blocks have {wanted} bytes, but the namespace's have {found}"
                )));
            }
        }
        orders.iter().try_for_each(|order| self.check_region(order.to.pool.fabric()))?;
        let engine = self.engine(py)?;
        guarded(|| py.detach(|| self.begin_save(mover, orders, engine)).map_err(|error| of_device(&error)))
    }

    /// Tells that the engine's step has ended, so it may write its blocks: its stream waits for copies of
    /// saves that it does not wait for yet, and blocks that still wait for a buffer are dropped.
    fn end_step(&self, py: Python<'_>) -> PyResult<()> {
        let (mover, engine) = (self.mover()?, self.engine(py)?);
        guarded(|| {
            py.detach(|| mover.end_step(engine));
            Ok(())
        })
    }

    /// Counts of save outcomes since the last call, by name.
    fn take_outcomes(&self) -> BTreeMap<&'static str, u64> {
        if let Ok(mover) = self.mover() {
            let Counts { failed, late } = mover.take_counts();
            for (name, count) in [("failed", failed), ("late", late)] {
                add(&self.outcomes, name, count);
            }
        }
        std::mem::take(&mut *self.outcomes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Texts of the device's errors since the last call. Each was a miss.
    fn take_errors(&self) -> Vec<String> {
        self.mover().map_or_else(|_| Vec::new(), |mover| mover.take_errors())
    }

    /// Ends all loads and saves, and takes this memory from the GPU, within `timeout` seconds.
    ///
    /// Returns False after the timeout, or if the GPU failed. Then the memory that it may still
    /// access stays page-locked until the process ends.
    #[pyo3(signature = (timeout=5.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = duration(Some(timeout))?.unwrap_or_default();
        let mover = self.mover()?;
        let is_free = py.detach(|| mover.close(timeout));
        if is_free {
            let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
            // Without the lock: finalizers may let another thread run that closes too.
            drop(owner);
        }
        Ok(is_free)
    }

    /// Why the processor sums blocks, and each page crosses the bus by itself; empty if kernels of the
    /// GPU do it.
    #[getter]
    fn why_no_kernels(&self) -> PyResult<&str> {
        Ok(self.mover()?.why_no_kernels())
    }

    /// Why blocks pass through the staging memory; empty if they do not, or only until the region is
    /// page-locked.
    #[getter]
    fn why_staged(&self) -> PyResult<String> {
        let progress = self.mover()?.page_locked();
        let refused = progress.and_then(|Progress { locked, bytes, refused }| {
            refused.map(|why| format!("{locked} of {bytes} bytes of the region are page-locked: {why}"))
        });
        Ok(refused.unwrap_or_else(|| self.why_staged.clone()))
    }

    /// Bytes of the region that are page-locked, and all; None if blocks are staged in any case.
    #[getter]
    fn page_locked(&self) -> PyResult<Option<(usize, usize)>> {
        Ok(self.mover()?.page_locked().map(|progress| (progress.locked, progress.bytes)))
    }

    /// Waits until the region is page-locked, or that is refused. Returns False after `timeout` seconds.
    fn wait_locked(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let (mover, timeout) = (self.mover()?, duration(Some(timeout))?.unwrap_or_default());
        Ok(py.detach(|| mover.wait_locked(timeout)))
    }

    /// Whether whole blocks of loads cross the bus, and a kernel scatters their pages.
    #[getter]
    fn scatters(&self) -> PyResult<bool> {
        Ok(self.mover()?.scatters())
    }

    /// Number of free slots of the staging memory.
    #[getter]
    fn free_slots(&self) -> PyResult<usize> {
        Ok(self.mover()?.free_slots())
    }

    #[getter]
    fn num_layers(&self) -> PyResult<usize> {
        Ok(self.mover()?.layout().num_layers())
    }

    #[getter]
    fn num_blocks(&self) -> PyResult<usize> {
        Ok(self.mover()?.layout().num_blocks())
    }

    #[getter]
    fn block_bytes(&self) -> PyResult<u64> {
        Ok(self.mover()?.layout().block_bytes())
    }
}

impl DeviceMemory {
    fn mover(&self) -> PyResult<&Mover> {
        match self.stamp.is_inherited() {
            false => Ok(&self.mover),
            true => Err(CenoteError::new_err("another process opened this memory of a GPU")),
        }
    }

    fn engine(&self, py: Python<'_>) -> PyResult<EngineStream> {
        Ok(EngineStream(self.stream.bind(py).call0()?.extract()?))
    }

    /// Refuses blocks of a region that this memory's GPU does not access.
    fn check_region(&self, fabric: &Arc<cenote_mem::Mapped>) -> PyResult<()> {
        match self.direct.as_ref().is_none_or(|own| Arc::ptr_eq(own, fabric)) {
            true => Ok(()),
            false => Err(wrong("the blocks are of another region than this memory; use one `Region` for both")),
        }
    }

    /// Blocks in parts, each with whether it is staged: those that the GPU can access in their places,
    /// and the others. The order within both stays.
    fn parts<T>(
        &self,
        mover: &Mover,
        blocks: impl Iterator<Item = T>,
        extent: impl Fn(&T) -> Option<(u64, u64)>,
    ) -> Vec<(Vec<T>, bool)> {
        let is_direct = |block: &T| {
            let place = self.direct.as_ref().zip(extent(block));
            place.is_some_and(|(fabric, (at, bytes))| mover.is_direct(fabric.address(at, bytes).addr() as u64, bytes))
        };
        let (direct, staged): (Vec<T>, Vec<T>) = blocks.partition(is_direct);
        let mut parts = Vec::new();
        for (blocks, is_staged) in [(direct, false), (staged, true)] {
            let mut blocks = blocks.into_iter().peekable();
            while blocks.peek().is_some() {
                parts.push((blocks.by_ref().take(mover.part_blocks(is_staged)).collect(), is_staged));
            }
        }
        parts
    }

    fn begin_save(&self, mover: &Mover, mut orders: Vec<Order>, engine: EngineStream) -> Result<(), DeviceError> {
        let mut room = mover.room();
        let mut parts = Vec::<Saving>::new();
        let (mut seen, mut repeated, mut dropped) = (HashSet::new(), Vec::new(), HashMap::new());
        let mut begun = Ok(());
        // No block of a direct save is published before memory is reserved for all of this call: a later one
        // would evict it.
        let gate = Arc::new(Mutex::new(()));
        let reserving = gate.lock().unwrap_or_else(PoisonError::into_inner);
        for order in &mut orders {
            repeated.append(&mut order.take_repeated(&mut seen));
            let new: Vec<bool> = order.to.pool.duplicates(&order.hashes).into_iter().map(|there| !there).collect();
            add(&self.outcomes, "duplicate", new.iter().filter(|new| !**new).count() as u64);
            order.keep(&new);
            // Only new blocks take room.
            let (count, kept) = (order.blocks.len(), order.blocks.len().min(room));
            let id = order.id;
            dropped.extend(order.hashes[kept..].iter().map(|&hash| ((id, hash), "busy")));
            order.keep(&(0..count).map(|number| number < kept).collect::<Vec<_>>());
            room -= kept;
            if self.direct.is_none() {
                Copied::add_parts(order, mover.part_blocks(true), &self.slots, &self.outcomes, &mut parts);
                continue;
            }
            // The first blocks cross the bus while memory is reserved for the others.
            let together = PARTS_TOGETHER * mover.part_blocks(false);
            for first in (0..kept).step_by(together) {
                let some = first..kept.min(first + together);
                if begun.is_err() {
                    dropped.extend(order.hashes[some].iter().map(|&hash| ((id, hash), "failed")));
                    continue;
                }
                let (reserved, refused) = blocks::reserve(order, some);
                dropped.extend(refused.into_iter().map(|(hash, why)| ((id, hash), why)));
                let split = self.parts(mover, reserved.into_iter(), |(filling, ..)| Some(filling.extent()));
                let part = |(part, is_staged)| Reserved::part(order, part, is_staged, &self.outcomes, &gate);
                parts.extend(split.into_iter().map(part));
                if parts.len() >= PARTS_TOGETHER {
                    begun = self.save_parts(mover, &mut parts, engine);
                }
            }
        }
        drop(reserving);
        dropped.values().for_each(|why| add(&self.outcomes, why, 1));
        // A block that is repeated is there if its first one is.
        repeated.iter().for_each(|name| add(&self.outcomes, dropped.get(name).copied().unwrap_or("duplicate"), 1));
        begun.and_then(|()| self.save_parts(mover, &mut parts, engine))
    }

    fn save_parts(&self, mover: &Mover, parts: &mut Vec<Saving>, engine: EngineStream) -> Result<(), DeviceError> {
        let parts = std::mem::take(parts);
        if parts.is_empty() {
            return Ok(());
        }
        let count = parts.iter().map(|part| part.blocks.len() as u64).sum::<u64>();
        let begun = mover.save(parts, engine);
        if begun.is_err() {
            add(&self.outcomes, "failed", count);
        }
        begun
    }
}

/// A load in progress.
#[pyclass(frozen, module = "cenote")]
pub struct DeviceLoad {
    load: Arc<mover::Load>,
    stream: Py<PyAny>,
    stamp: ProcessStamp,
}

impl DeviceLoad {
    /// Refuses the load of a forked child's parent, whose locks a thread may have held at the fork.
    fn load(&self) -> PyResult<&mover::Load> {
        match self.stamp.is_inherited() {
            false => Ok(&self.load),
            true => Err(CenoteError::new_err("another process began this load")),
        }
    }

    fn engine(&self, py: Python<'_>) -> PyResult<EngineStream> {
        Ok(EngineStream(self.stream.bind(py).call0()?.extract()?))
    }
}

#[pymethods]
impl DeviceLoad {
    /// Waits until the load has ended. Returns False after `timeout` seconds.
    #[pyo3(signature = (timeout))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let (load, timeout) = (self.load()?, duration(timeout)?);
        Ok(py.detach(|| load.wait(timeout)))
    }

    /// True if the load has ended or was cancelled.
    #[getter]
    fn done(&self) -> bool {
        self.load.is_done()
    }

    /// Sorted numbers of the invalid blocks in the load; all before its end.
    ///
    /// After its end, later work of the engine on these blocks comes after the remaining copies.
    fn failed(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        let (load, engine) = (self.load()?, self.engine(py)?);
        guarded(|| py.detach(|| Ok(load.failed(engine))))
    }

    /// Cancels the load. Later work of the engine comes after the remaining copies.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let (load, engine) = (self.load()?, self.engine(py)?);
        guarded(|| {
            py.detach(|| load.cancel(engine));
            Ok(())
        })
    }

    fn __len__(&self) -> usize {
        self.load.len()
    }
}
