//! Options of the layout in a lower tier, and of the order of copies within a layer (CXL-SpecKV
//! §3.3.3). `cenote-lab study prefetch` measures their gain. They are a model of hardware: the product's
//! region is memory, whose controllers interleave small units of addresses by themselves.

use std::fmt;

/// Channel of a lower tier on which a page lies. A channel is a memory controller, a bank or a disk
/// that carries one copy at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// A request's KV in the order in which it was written: the pages of one layer of one token
    /// block follow those of the layer before. With as many layers as a multiple of the channels,
    /// all pages of a layer share a channel.
    #[default]
    Sequential,
    /// Layers in separate regions: layer *l* lies on the channels of its parity, so that *l* + 1 and
    /// *l* + 2 arrive in parallel. Pages of a layer alternate among its channels.
    LayerAware,
    /// Pages of all requests of a layer alternate among all channels.
    BatchAware,
}

impl Placement {
    /// All placements.
    pub const ALL: [Self; 3] = [Self::Sequential, Self::LayerAware, Self::BatchAware];

    /// Channel, below `channels`, of page `index` of a request in a layer. `request` is the request's
    /// row in the batch.
    ///
    /// # Panics
    /// Panics if `channels` is 0.
    #[must_use]
    pub fn channel(self, channels: u32, layers: u32, layer: u32, request: u32, index: u32) -> u32 {
        assert!(channels > 0, "a tier has a channel");
        let [channels, layers, layer, request, index] = [channels, layers, layer, request, index].map(u64::from);
        let channel = match self {
            Self::Sequential => (index * layers + layer) % channels,
            Self::LayerAware if channels > 1 => {
                let half = channels / 2;
                (layer % 2) * half + (request + index) % (half + (layer % 2) * (channels % 2))
            }
            Self::LayerAware => 0,
            Self::BatchAware => (request + index + layer) % channels,
        };
        channel as u32
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sequential => "sequential",
            Self::LayerAware => "layer-aware",
            Self::BatchAware => "batch-aware",
        })
    }
}

/// Order of a layer's fetches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FetchOrder {
    /// Request by request.
    #[default]
    ByRequest,
    /// One page of each request by turns (batch-aware interleaving), which spreads a short window of
    /// copies over more channels.
    Interleaved,
}

impl FetchOrder {
    /// Orders pages given as (request row, index, page). The sort is stable.
    pub fn arrange<P>(self, pages: &mut [(u32, u32, P)]) {
        match self {
            Self::ByRequest => pages.sort_by_key(|&(request, index, _)| (request, index)),
            Self::Interleaved => pages.sort_by_key(|&(request, index, _)| (index, request)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn placements_name_a_channel_and_spread_layers() {
        for placement in Placement::ALL {
            for channels in 1..9 {
                let used: BTreeSet<u32> =
                    (0..64).map(|at| placement.channel(channels, 32, at % 4, at / 16, at)).collect();
                assert!(used.iter().all(|channel| *channel < channels), "{placement} on {channels}");
            }
        }
        let of = |placement: Placement, layer| {
            (0..32).map(|at| placement.channel(8, 32, layer, 0, at)).collect::<BTreeSet<_>>()
        };
        assert_eq!(of(Placement::Sequential, 3).len(), 1, "all pages of a layer share a channel");
        assert!(of(Placement::LayerAware, 3).is_disjoint(&of(Placement::LayerAware, 4)));
        assert_eq!(of(Placement::BatchAware, 3).len(), 8);
    }

    #[test]
    fn fetch_orders_keep_all_pages() {
        let mut pages = vec![(0, 0, 'a'), (0, 1, 'b'), (1, 0, 'c'), (1, 1, 'd')];
        FetchOrder::Interleaved.arrange(&mut pages);
        assert_eq!(pages.iter().map(|(.., page)| *page).collect::<String>(), "acbd");
        FetchOrder::ByRequest.arrange(&mut pages);
        assert_eq!(pages.iter().map(|(.., page)| *page).collect::<String>(), "abcd");
    }
}
