//! An engine's own KV memory: a number of blocks, and in each a page of every layer.

use crate::codec::Coding;
use crate::errors::{guarded, wrong};
use crate::hashes::AnyHashes;
use crate::lease::Lease;
use crate::load::{Load, Task};
use crate::namespace::Namespace;
use crate::numbers::Items;
use crate::save::{Save, Target};
use cenote_mem::fork::ProcessStamp;
use cenote_pool::Names;
use pyo3::prelude::*;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// One layer's pages.
struct Layer {
    /// Of block 0's page.
    address: usize,
    /// Bytes from one block's page to the next.
    stride: usize,
    /// Bytes of a page.
    bytes: usize,
}

/// All layers' pages, and what keeps them alive.
pub struct Pages {
    layers: Vec<Layer>,
    num_blocks: usize,
    _owner: Py<PyAny>,
}

impl Pages {
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
    /// Callers must guarantee that nobody writes this block's pages while they have this.
    pub unsafe fn page(&self, layer: usize, block: usize) -> &[u8] {
        let (address, bytes) = self.place(layer, block);
        // SAFETY: whoever made this vouched for its addresses; the rest is the caller's guarantee.
        unsafe { std::slice::from_raw_parts(address, bytes) }
    }

    /// A page to write to.
    ///
    /// # Safety
    /// Callers must guarantee that nobody else uses this block's pages while they have this.
    #[allow(
        clippy::mut_from_ref,
        reason = "the memory is the engine's; who may write which block is its caller's to say"
    )]
    pub unsafe fn page_mut(&self, layer: usize, block: usize) -> &mut [u8] {
        let (address, bytes) = self.place(layer, block);
        // SAFETY: as in `page`.
        unsafe { std::slice::from_raw_parts_mut(address, bytes) }
    }

    /// Block numbers that are of this memory, each once.
    pub fn blocks(&self, numbers: &[usize]) -> PyResult<()> {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        if let Some(&last) = sorted.last().filter(|&&last| last >= self.num_blocks) {
            return Err(wrong(format!("block {last}, where there are {}", self.num_blocks)));
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
    /// To the threads that load; they end with it.
    tasks: Mutex<Option<Sender<Task>>>,
    stamp: ProcessStamp,
}

impl Drop for KvMemory {
    fn drop(&mut self) {
        if self.stamp.is_inherited() {
            // A forked child has none of the threads, one of which may have held the channel's lock.
            let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(tasks.take());
        }
    }
}

fn work(tasks: &Mutex<Receiver<Task>>) {
    loop {
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        task.run();
    }
}

#[pymethods]
impl KvMemory {
    /// `layers`: of each its first block's address, bytes from a block to the next, and bytes of a page.
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
            // Even of no blocks a page could be: its bytes are summed and made slices of.
            let all = num_blocks.max(1).checked_mul(stride).filter(|&all| all <= isize::MAX as usize);
            let end = all.and_then(|all| all.checked_add(address));
            if address == 0 || bytes == 0 || stride < bytes || end.is_none() {
                let shape = format!("address {address:#x}, stride {stride}, {bytes} bytes a page");
                return Err(wrong(format!("layer {number}: {shape}")));
            }
            if !bytes.is_multiple_of(64) {
                return Err(wrong(format!("layer {number}: a page of {bytes} bytes, which is no multiple of 64")));
            }
            let sum = block_bytes.checked_add(bytes).filter(|&sum| sum <= isize::MAX as usize);
            block_bytes = sum.ok_or_else(|| wrong(format!("layer {number}: pages of a block are more than memory")))?;
        }
        if layers.is_empty() || !(1..=64).contains(&load_threads) {
            return Err(wrong(format!("{} layers and {load_threads} threads", layers.len())));
        }
        let layers = layers.into_iter().map(|(address, stride, bytes)| Layer { address, stride, bytes }).collect();
        let (tasks, todo) = channel();
        let todo = Arc::new(Mutex::new(todo));
        for number in 0..load_threads {
            let todo = Arc::clone(&todo);
            std::thread::Builder::new().name(format!("cenote-load-{number}")).spawn(move || work(&todo))?;
        }
        let pages = Arc::new(Pages { layers, num_blocks, _owner: owner });
        Ok(Self { pages, tasks: Mutex::new(Some(tasks)), stamp: ProcessStamp::current() })
    }

    /// Begins to publish blocks, layer by layer. Those that are there already, or have no room, are left out.
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
        let (hashes, count) = (hashes.get(), hashes.get().len());
        if depths.len() != count || blocks.len() != count {
            let counts = format!("{count} hashes, {} depths, {} blocks", depths.len(), blocks.len());
            return Err(wrong(format!("{counts}: each block has one of each")));
        }
        let names = names.unwrap_or_else(|| vec![0; count]);
        if names.len() != count {
            return Err(wrong(format!("{} names of {count} blocks", names.len())));
        }
        // Each block follows from the one before it.
        let parents = std::iter::once(parent).chain(names.iter().copied());
        let names: Vec<Names> = names.iter().zip(parents).map(|(&name, parent)| Names { name, parent }).collect();
        self.same_size(&namespace)?;
        self.pages.blocks(&blocks)?;
        self.fits(namespace.coding.as_deref())?;
        let to = Target {
            pool: namespace.open.pool()?,
            namespace: namespace.namespace.clone(),
            coding: namespace.coding.clone(),
        };
        guarded(|| Ok(py.detach(|| Save::begin(to, Arc::clone(&self.pages), hashes, &depths, &blocks, &names))))
    }

    /// Begins to copy the blocks of a lease into these blocks, layer by layer, by threads of its own. The lease is spent.
    #[pyo3(signature = (lease, blocks, *, fail_every=0))]
    fn load(&self, lease: &Lease, blocks: Items<usize>, fail_every: usize) -> PyResult<Load> {
        let blocks = blocks.0;
        self.pages.blocks(&blocks)?;
        let pins = lease.take();
        if pins.len() != blocks.len() {
            return Err(wrong(format!("a lease of {} blocks, to be loaded into {}", pins.len(), blocks.len())));
        }
        self.fits(lease.coding.as_deref())?;
        let raw = pins.iter().filter(|pin| pin.hit().encoding == 0 || lease.coding.is_none());
        if let Some(pin) = raw.into_iter().find(|pin| pin.hit().length != self.pages.block_bytes()) {
            let (found, wanted) = (pin.hit().length, self.pages.block_bytes());
            return Err(wrong(format!("a block of {found} bytes, where this memory's have {wanted}")));
        }
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let tasks = tasks.as_ref().ok_or_else(|| wrong("the memory was closed"))?;
        guarded(|| Ok(Load::begin(Arc::clone(&self.pages), lease.coding.as_ref(), pins, &blocks, fail_every, tasks)))
    }

    /// Lets the threads end when they have done what was begun.
    fn close(&self) {
        drop(self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Bytes of a block: of all its pages.
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
    /// Refuses a codec that is for other pages.
    fn fits(&self, coding: Option<&Coding>) -> PyResult<()> {
        let Some(coding) = coding else { return Ok(()) };
        let (layers, bytes) = (coding.num_layers(), coding.page_bytes());
        if self.pages.num_layers() == layers && self.pages.layers.iter().all(|layer| layer.bytes == bytes) {
            return Ok(());
        }
        Err(wrong(format!("a codec for {layers} layers with pages of {bytes} bytes, which this memory's are not")))
    }

    fn same_size(&self, namespace: &Namespace) -> PyResult<()> {
        let (ours, theirs) = (self.pages.block_bytes(), namespace.namespace.block_bytes);
        if ours == theirs {
            return Ok(());
        }
        Err(wrong(format!("this memory's blocks have {ours} bytes, the namespace's {theirs}")))
    }
}
