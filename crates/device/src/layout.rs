//! The places of an engine's blocks: per layer one page, in one or more runs of bytes.
//!
//! All bounds are checked when the layout is made. Afterwards a block needs one comparison, and its
//! pages none.

use crate::driver::Copies;
use crate::memory::Registered;

const LINE: u64 = 64;

/// One layer, as the engine describes it.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Address of block 0.
    pub address: u64,
    /// Bytes from one block to the next.
    pub stride: u64,
    /// Per run: offset from the block's first byte, and length.
    pub runs: Vec<(u64, u64)>,
}

/// A run of every block.
struct Run {
    /// Address of the run of block 0.
    address: u64,
    stride: u64,
    /// Offset in the block's payload.
    within: u64,
    bytes: u64,
}

/// Direction of copies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ToDevice,
    FromDevice,
}

/// The places of all blocks.
pub struct Layout {
    runs: Vec<Run>,
    layers: usize,
    num_blocks: usize,
    block_bytes: u64,
}

impl Layout {
    /// A layout within `memory`, which has address and length of each of the engine's allocations.
    ///
    /// # Errors
    /// A page is not of whole lines of 64 bytes, or leaves the engine's memory.
    pub fn new(layers: &[Layer], num_blocks: usize, memory: &[(u64, u64)]) -> Result<Self, String> {
        let (mut runs, mut within) = (Vec::new(), 0_u64);
        for (number, layer) in layers.iter().enumerate() {
            let page = layer.runs.iter().try_fold(0_u64, |sum, run| sum.checked_add(run.1));
            let page = page.filter(|page| *page > 0).ok_or_else(|| format!("layer {number} has no pages"))?;
            if page % LINE != 0 {
                return Err(format!("layer {number}: a page of {page} bytes is not a multiple of {LINE}"));
            }
            for &(offset, bytes) in &layer.runs {
                let last = (num_blocks as u64).saturating_sub(1).checked_mul(layer.stride);
                let first = layer.address.checked_add(offset);
                let end = first.zip(last).and_then(|(first, last)| first.checked_add(last)?.checked_add(bytes));
                let inside = |&(start, length): &(u64, u64)| {
                    start <= layer.address && end.is_some_and(|end| end <= start.saturating_add(length))
                };
                if num_blocks == 0 || !memory.iter().any(inside) {
                    let address = layer.address;
                    return Err(format!(
                        "layer {number}: {num_blocks} blocks at {address:#x} leave the engine's memory"
                    ));
                }
                runs.push(Run { address: layer.address + offset, stride: layer.stride, within, bytes });
                within = within.checked_add(bytes).ok_or("the pages of a block exceed the address space")?;
            }
        }
        if layers.is_empty() {
            return Err("there are no layers".to_owned());
        }
        Ok(Self { runs, layers: layers.len(), num_blocks, block_bytes: within })
    }

    /// Number of layers.
    #[must_use]
    pub const fn num_layers(&self) -> usize {
        self.layers
    }

    /// Number of blocks.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Bytes of a block: the sum of its pages.
    #[must_use]
    pub const fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Copies that a block takes.
    #[must_use]
    pub const fn copies_a_block(&self) -> usize {
        self.runs.len()
    }

    /// The largest page size that divides all runs, for the kernels; `None` if they cannot take it.
    pub(crate) fn kernel_page(&self) -> Option<u64> {
        let page = self.runs.iter().fold(0, |page, run| common_divisor(page, run.bytes));
        let words = self.runs.iter().all(|run| (run.address | run.stride) % 8 == 0);
        (words && page % LINE == 0 && page <= u64::from(u32::MAX)).then_some(page)
    }

    /// The smallest run: each is a copy, if pages cross the bus by themselves.
    pub(crate) fn smallest_run(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).min().unwrap_or(0)
    }

    /// Addresses of a block's pages of this size, in the order of the payload.
    pub(crate) fn kernel_pages(&self, block: usize, page: u64) -> impl Iterator<Item = u64> {
        let pages = move |run: &Run| {
            let start = run.address + block as u64 * run.stride;
            (0..run.bytes / page).map(move |number| start + number * page)
        };
        self.runs.iter().flat_map(pages)
    }

    /// Checks that all blocks exist. A save may read one twice.
    ///
    /// # Errors
    /// A wrong number.
    pub fn check_bounds(&self, blocks: &[usize]) -> Result<(), String> {
        match blocks.iter().find(|&&block| block >= self.num_blocks) {
            Some(block) => Err(format!("block {block} is outside of this memory of {} blocks", self.num_blocks)),
            None => Ok(()),
        }
    }

    /// Checks that all blocks exist, and none is named twice, so that they can be written.
    ///
    /// # Errors
    /// A wrong number.
    pub fn check(&self, blocks: &[usize]) -> Result<(), String> {
        self.check_bounds(blocks)?;
        let mut sorted = blocks.to_vec();
        sorted.sort_unstable();
        match sorted.array_windows().find(|[left, right]| left == right) {
            Some([twice, _]) => Err(format!("block {twice} is named twice")),
            None => Ok(()),
        }
    }

    /// Adds the copies between a block and its payload at `host`, split where `locked` has a border.
    pub(crate) fn add(&self, copies: &mut Copies, way: Way, block: usize, host: u64, locked: Option<&Registered>) {
        assert!(block < self.num_blocks, "block {block} of {}", self.num_blocks);
        for run in &self.runs {
            let there = run.address + block as u64 * run.stride;
            add_run(copies, way, there, host + run.within, run.bytes, locked);
        }
    }

    /// As [`Layout::add`] for a block that is whole on the device too.
    pub(crate) fn add_whole(&self, copies: &mut Copies, way: Way, device: u64, host: u64, locked: Option<&Registered>) {
        add_run(copies, way, device, host, self.block_bytes, locked);
    }
}

fn add_run(copies: &mut Copies, way: Way, mut there: u64, mut here: u64, mut left: u64, locked: Option<&Registered>) {
    let pieces = locked.filter(|locked| locked.has_borders());
    while left > 0 {
        let now = pieces.map_or(left, |locked| left.min(locked.until_border(here)));
        match way {
            Way::ToDevice => copies.push(there, here, now as usize),
            Way::FromDevice => copies.push(here, there, now as usize),
        }
        (there, here, left) = (there + now, here + now, left - now);
    }
}

const fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
