//! An engine's KV memory: blocks, each with one page per layer.

use crate::codec::Coding;
use crate::errors::{guarded, wrong};
use crate::hashes::AnyHashes;
use crate::lease::Lease;
use crate::load::{Load, Task};
use crate::namespace::{Namespace, chain_names};
use crate::numbers::Items;
use crate::save::{Save, Target};
use cenote_mem::fork::ProcessStamp;
use pyo3::prelude::*;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// One layer's pages.
struct Layer {
    /// Address of block 0's page.
    address: usize,
    /// Bytes between the pages of adjacent blocks.
    stride: usize,
    /// Bytes of a page.
    bytes: usize,
}

/// The pages of all layers, and the Python object that keeps them alive.
pub struct Pages {
    layers: Vec<Layer>,
    num_blocks: usize,
    _owner: Option<Py<PyAny>>,
}

impl Pages {
    /// Blocks that lie one after the other from `address`, each with pages of so many bytes.
    pub fn of_slots(address: usize, pages: &[usize], num_blocks: usize) -> Self {
        let stride = pages.iter().sum();
        let mut at = address;
        let layer = |&bytes: &usize| {
            at += bytes;
            Layer { address: at - bytes, stride, bytes }
        };
        Self { layers: pages.iter().map(layer).collect(), num_blocks, _owner: None }
    }

    pub const fn num_layers(&self) -> usize {
        self.layers.len()
    }

    pub fn block_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes as u64).sum()
    }

    fn place(&self, layer: usize, block: usize) -> (*mut u8, usize) {
        assert!(block < self.num_blocks, "block {block} of {}", self.num_blocks);
        let Layer { address, stride, bytes } = self.layers[layer];
        (std::ptr::with_exposed_provenance_mut(address + block * stride), bytes)
    }

    /// A page to read from.
    ///
    /// # Safety
    /// Callers must guarantee that nothing writes this block's pages during the borrow.
    pub unsafe fn page(&self, layer: usize, block: usize) -> &[u8] {
        let (address, bytes) = self.place(layer, block);
        // SAFETY: `place` asserted the block number, and `KvMemory::new` checked that all pages fit
        // into the address space. Callers of `KvMemory` guarantee that the addresses are valid, and
        // `_owner` keeps them so. By the contract above nothing writes the page.
        unsafe { std::slice::from_raw_parts(address, bytes) }
    }

    /// A page to write to.
    ///
    /// # Safety
    /// Callers must guarantee that nothing else accesses this block's pages during the borrow.
    #[allow(
        clippy::mut_from_ref,
        reason = "the memory belongs to the engine; callers guarantee exclusive access to the block"
    )]
    pub unsafe fn page_mut(&self, layer: usize, block: usize) -> &mut [u8] {
        let (address, bytes) = self.place(layer, block);
        // SAFETY: the range is valid as in `page`. By the contract above nothing else accesses it.
        unsafe { std::slice::from_raw_parts_mut(address, bytes) }
    }

    /// Checks that all block numbers are within this memory and distinct.
    pub fn blocks(&self, numbers: &[usize]) -> PyResult<()> {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        if let Some(&last) = sorted.last().filter(|&&last| last >= self.num_blocks) {
            return Err(wrong(format!("block {last} is outside of this memory of {} blocks", self.num_blocks)));
        }
        match sorted.array_windows().find(|[left, right]| left == right) {
            Some([twice, _]) => Err(wrong(format!("block {twice} is named twice"))),
            None => Ok(()),
        }
    }
}

/// An engine's KV memory, by addresses.
#[pyclass(frozen, module = "cenote")]
pub struct KvMemory {
    pages: Arc<Pages>,
    /// Sender to the load threads. They end when it is dropped.
    tasks: Mutex<Option<Sender<Task>>>,
    stamp: ProcessStamp,
}

impl Drop for KvMemory {
    fn drop(&mut self) {
        if self.stamp.is_inherited() {
            // Leak the sender: a forked child has no load threads, and one of the parent's threads
            // may have held the channel's lock at the fork.
            let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(tasks.take());
        }
    }
}

fn work(tasks: &Mutex<Receiver<Task>>) {
    let mut is_placed = false;
    loop {
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        if !is_placed {
            task.place_thread();
            is_placed = true;
        }
        task.run();
    }
}

#[pymethods]
impl KvMemory {
    /// `layers`: per layer the address of block 0's page, the stride and the bytes of a page.
    #[new]
    #[pyo3(signature = (layers, num_blocks, owner, *, load_threads=1))]
    fn new(
        layers: Items<(usize, usize, usize)>,
        num_blocks: usize,
        owner: Py<PyAny>,
        load_threads: usize,
    ) -> PyResult<Self> {
        let layers = layers.0;
        let mut block_bytes = 0_usize;
        for (number, &(address, stride, bytes)) in layers.iter().enumerate() {
            // Check at least one page even for 0 blocks, because page sizes are summed.
            let all = num_blocks.max(1).checked_mul(stride).filter(|&all| all <= isize::MAX as usize);
            let end = all.and_then(|all| all.checked_add(address));
            if address == 0 || bytes == 0 || stride < bytes || end.is_none() {
                let shape = format!("address {address:#x}, stride {stride}, {bytes} bytes a page");
                return Err(wrong(format!("layer {number}: {shape}")));
            }
            if !bytes.is_multiple_of(64) {
                return Err(wrong(format!("layer {number}: a page of {bytes} bytes is not a multiple of 64")));
            }
            let sum = block_bytes.checked_add(bytes).filter(|&sum| sum <= isize::MAX as usize);
            block_bytes =
                sum.ok_or_else(|| wrong(format!("layer {number}: the pages of a block exceed the address space")))?;
        }
        if layers.is_empty() || !(1..=64).contains(&load_threads) {
            return Err(wrong(format!(
                "{} layers and {load_threads} threads; give at least 1 layer and 1 to 64 threads",
                layers.len()
            )));
        }
        let layers = layers.into_iter().map(|(address, stride, bytes)| Layer { address, stride, bytes }).collect();
        let (tasks, todo) = channel();
        let todo = Arc::new(Mutex::new(todo));
        for number in 0..load_threads {
            let todo = Arc::clone(&todo);
            std::thread::Builder::new().name(format!("cenote-load-{number}")).spawn(move || work(&todo))?;
        }
        let pages = Arc::new(Pages { layers, num_blocks, _owner: Some(owner) });
        Ok(Self { pages, tasks: Mutex::new(Some(tasks)), stamp: ProcessStamp::current() })
    }

    /// Begins to publish blocks, layer by layer. Skips present blocks and blocks without room.
    #[pyo3(signature = (namespace, hashes, depths, blocks, *, names=None, parent=0))]
    fn save(
        &self,
        py: Python<'_>,
        namespace: PyRef<'_, Namespace>,
        hashes: AnyHashes<'_>,
        depths: Items<u32>,
        blocks: Items<usize>,
        names: Option<Items<u64>>,
        parent: u64,
    ) -> PyResult<Save> {
        let (depths, blocks, names) = (depths.0, blocks.0, names.map(|names| names.0));
        let hashes = hashes.names(&namespace.namespace.hasher);
        let count = hashes.len();
        if depths.len() != count || blocks.len() != count {
            let counts = format!("{count} hashes, {} depths, {} blocks", depths.len(), blocks.len());
            return Err(wrong(format!("{counts}: give one of each per block")));
        }
        let names = chain_names(names, count, parent)?;
        self.same_size(&namespace)?;
        self.pages.blocks(&blocks)?;
        self.fits(namespace.coding.as_deref())?;
        let to = Target {
            pool: namespace.open.pool()?,
            namespace: namespace.namespace.clone(),
            coding: namespace.coding.clone(),
            below: namespace.below(),
        };
        guarded(|| Ok(py.detach(|| Save::begin(to, Arc::clone(&self.pages), &hashes, &depths, &blocks, &names))))
    }

    /// Begins to copy the blocks of a lease into these blocks, layer by layer, in own threads.
    ///
    /// The call consumes the lease.
    fn load(&self, lease: &Lease, blocks: Items<usize>) -> PyResult<Load> {
        let blocks = blocks.0;
        self.pages.blocks(&blocks)?;
        let pins = lease.take();
        if pins.len() != blocks.len() {
            return Err(wrong(format!(
                "a lease of {} blocks cannot be loaded into {} blocks",
                pins.len(),
                blocks.len()
            )));
        }
        self.fits(lease.coding.as_deref())?;
        let raw = pins.iter().filter(|pin| pin.hit().encoding == 0 || lease.coding.is_none());
        if let Some(pin) = raw.into_iter().find(|pin| pin.hit().length != self.pages.block_bytes()) {
            let (found, wanted) = (pin.hit().length, self.pages.block_bytes());
            return Err(wrong(format!("a block of {found} bytes, but this memory's blocks have {wanted}")));
        }
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let tasks = tasks.as_ref().ok_or_else(|| wrong("the memory was closed"))?;
        guarded(|| Ok(Load::begin(Arc::clone(&self.pages), lease, pins, &blocks, tasks)))
    }

    /// Ends the threads after the loads in progress.
    fn close(&self) {
        drop(self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Bytes of a block: the sum of its pages.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.pages.block_bytes()
    }

    #[getter]
    fn num_layers(&self) -> usize {
        self.pages.num_layers()
    }

    #[getter]
    fn num_blocks(&self) -> usize {
        self.pages.num_blocks
    }
}

impl KvMemory {
    /// Refuses a codec for other pages.
    fn fits(&self, coding: Option<&Coding>) -> PyResult<()> {
        let Some(coding) = coding else { return Ok(()) };
        let (layers, bytes) = (coding.num_layers(), coding.page_bytes());
        if self.pages.num_layers() == layers && self.pages.layers.iter().all(|layer| layer.bytes == bytes) {
            return Ok(());
        }
        Err(wrong(format!("a codec for {layers} layers with pages of {bytes} bytes, but this memory has other pages")))
    }

    fn same_size(&self, namespace: &Namespace) -> PyResult<()> {
        let (ours, theirs) = (self.pages.block_bytes(), namespace.namespace.block_bytes);
        if ours == theirs {
            return Ok(());
        }
        Err(wrong(format!("this memory's blocks have {ours} bytes, but the namespace's have {theirs}")))
    }
}
