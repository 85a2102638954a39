//! The pages that stay in L1.
//!
//! **A fixed subset is optimal.** Dense attention reads all *N* pages once per step, in the same
//! order. A hit on a page needs a slot of L1 from its last read to this one, which is *N* reads. *C*
//! slots over *T* reads are *C·T* slot-reads, so no policy has more than *C·T/N* hits, not even
//! Belady's, if it may read a page without keeping it. A fixed subset of *C* pages has exactly *C*
//! hits per step, which is that bound. LRU has none. Staging buffers provide the reads without
//! keeping. `staging/tests.rs` compares all three.
//!
//! **Which subset.** All subsets have equal hits, but the mover can run only a few tiles ahead, so a
//! layer with many absent pages stalls. [`unpinned_per_layer`] minimizes the largest ratio of absent
//! pages to the time that a layer computes. Every layer then leaves the mover the same share of time.

use std::collections::{BTreeMap, BTreeSet};

/// The pages that a layer reads in each step, and the time in which it computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPages<P> {
    /// Distinct pages, in the order of reads.
    pub pages: Vec<P>,
    /// Relative time of the layer's computation, at least 1. Equal layers have equal weights.
    pub weight: u32,
}

/// Changes of the resident set. Apply `unpin` first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinChanges<P> {
    /// (layer, page) that leave L1. Write a page back first if no lower tier has it.
    pub unpin: Vec<(u32, P)>,
    /// (layer, page) to keep in L1 from their next arrival on, which costs no copy of its own. Call
    /// [`Pins::keep`] then, or at once if L1 holds the page already.
    pub pin: Vec<(u32, P)>,
}

/// The resident set of an engine, per layer.
#[derive(Clone, Debug)]
pub struct Pins<P> {
    capacity: usize,
    /// Per layer the chosen pages, and whether they are in L1 yet.
    pinned: Vec<BTreeMap<P, bool>>,
}

impl<P: Clone + Ord> Pins<P> {
    /// An empty set for `capacity` pages of L1, without the pages of the staging buffers.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self { capacity, pinned: Vec::new() }
    }

    /// Adapts the set to the pages of the next step. Keeps as many pinned pages as it can, so that an
    /// unchanged batch causes no copies.
    pub fn update(&mut self, layers: &[LayerPages<P>]) -> PinChanges<P> {
        let shapes: Vec<(usize, u32)> = layers.iter().map(|layer| (layer.pages.len(), layer.weight)).collect();
        let absent = unpinned_per_layer(&shapes, self.capacity);
        let mut changes = PinChanges { unpin: Vec::new(), pin: Vec::new() };
        let count = layers.len().max(self.pinned.len());
        self.pinned.resize_with(count, BTreeMap::new);
        for (at, pinned) in self.pinned.iter_mut().enumerate() {
            let (pages, quota) = match layers.get(at) {
                Some(layer) => (&layer.pages[..], layer.pages.len() - absent[at]),
                None => (&[][..], 0),
            };
            let needed: BTreeSet<&P> = pages.iter().collect();
            let mut kept = BTreeMap::new();
            for (page, is_resident) in std::mem::take(pinned) {
                if kept.len() < quota && needed.contains(&page) {
                    kept.insert(page, is_resident);
                } else if is_resident {
                    changes.unpin.push((at as u32, page));
                }
            }
            for page in pages {
                if kept.len() < quota && !kept.contains_key(page) {
                    kept.insert(page.clone(), false);
                    changes.pin.push((at as u32, page.clone()));
                }
            }
            *pinned = kept;
        }
        self.pinned.truncate(layers.len());
        changes
    }

    /// Records that a chosen page is in L1. Returns whether it is chosen; if not, do not keep it.
    pub fn keep(&mut self, layer: u32, page: &P) -> bool {
        let chosen = self.pinned.get_mut(layer as usize).and_then(|pinned| pinned.get_mut(page));
        chosen.map(|is_resident| *is_resident = true).is_some()
    }

    /// Whether the page is chosen and in L1.
    #[must_use]
    pub fn is_resident(&self, layer: u32, page: &P) -> bool {
        self.pinned.get(layer as usize).and_then(|pinned| pinned.get(page)) == Some(&true)
    }

    /// Number of chosen pages, at most the capacity.
    #[must_use]
    pub fn num_pinned(&self) -> usize {
        self.pinned.iter().map(BTreeMap::len).sum()
    }

    /// Per layer the pages that must arrive in the next step, in the order of reads: the input of
    /// [`super::Staging::push_step`].
    #[must_use]
    pub fn absent(&self, layers: &[LayerPages<P>]) -> Vec<Vec<P>> {
        let of = |(at, layer): (u32, &LayerPages<P>)| {
            layer.pages.iter().filter(|page| !self.is_resident(at, page)).cloned().collect()
        };
        (0..).zip(layers).map(of).collect()
    }
}

/// Number of pages per layer that stay outside L1, for layers of (pages, weight) and `capacity` pages
/// in all.
///
/// The largest ratio of absent pages to weight is minimal. If all pages fit, every number is 0.
///
/// # Panics
/// Panics if a weight is 0.
#[must_use]
pub fn unpinned_per_layer(layers: &[(usize, u32)], capacity: usize) -> Vec<usize> {
    assert!(layers.iter().all(|(_, weight)| *weight > 0), "a layer computes for some time");
    let pages: usize = layers.iter().map(|(pages, _)| pages).sum();
    // Absent pages at a level, in 1/1024 pages per unit of weight.
    let at = |level: u64| -> Vec<usize> {
        let of = |&(pages, weight): &(usize, u32)| {
            pages.min((u128::from(level) * u128::from(weight) / 1024).min(usize::MAX as u128) as usize)
        };
        layers.iter().map(of).collect()
    };
    let fits = |absent: &[usize]| pages - absent.iter().sum::<usize>() <= capacity;
    let (mut low, mut high) = (0_u64, 1024 * (pages as u64 + 1));
    while low < high {
        let middle = low + (high - low) / 2;
        if fits(&at(middle)) { high = middle } else { low = middle + 1 }
    }
    let mut absent = at(low);
    // Rounding at this level may leave room: pin one more page where most are absent.
    let mut room = capacity.min(pages) - (pages - absent.iter().sum::<usize>());
    while room > 0 {
        let ratio = |at: usize| absent[at] as u128 * 1_000_000 / u128::from(layers[at].1);
        let most = (0..layers.len()).max_by_key(|&at| (ratio(at), std::cmp::Reverse(at)));
        let Some(most) = most.filter(|&at| absent[at] > 0) else { break };
        absent[most] -= 1;
        room -= 1;
    }
    absent
}
