//! The map of a region: a cell for each chunk, or for some neighbours in a large region.

use crate::gauges::Look;
use cenote_pool::{ChunkInfo, ModelShare};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Most cells that a page draws.
const CELLS_MAX: usize = 2048;
/// Most hosts and models that a cell names: those with most of it.
const NAMED_MAX: usize = 4;

#[derive(Debug, Serialize)]
pub struct Map {
    chunk_bytes: u64,
    chunks: u64,
    chunks_per_cell: u64,
    cells: Vec<Cell>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Cell {
    /// Its first chunk.
    first: usize,
    chunks: u64,
    /// Of these: chunks that hosts have taken.
    taken: u64,
    /// Of these: chunks of which a dead host may have lost content.
    lost: u64,
    slots: u64,
    blocks: u64,
    bytes: u64,
    objects: u64,
    memory_slots: u64,
    /// Seconds since the publication of its blocks; `null`: it has none.
    age: Option<Age>,
    /// Host and number of chunks, the largest first.
    hosts: Vec<(u8, u64)>,
    /// Row of a model and number of blocks, the largest first.
    models: Vec<(u16, u64)>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Age {
    newest: u32,
    mean: f64,
    oldest: u32,
}

impl Map {
    pub fn of(look: &Look) -> Self {
        let per_cell = look.chunks.len().div_ceil(CELLS_MAX).max(1);
        let cells = look.chunks.chunks(per_cell).enumerate().map(|(at, chunks)| Cell::of(at * per_cell, chunks));
        Self {
            chunk_bytes: look.info.chunk_bytes,
            chunks: look.chunks.len() as u64,
            chunks_per_cell: per_cell as u64,
            cells: cells.collect(),
        }
    }
}

impl Cell {
    fn of(first: usize, chunks: &[ChunkInfo]) -> Self {
        let sum = |of: fn(&ChunkInfo) -> u64| chunks.iter().map(of).sum::<u64>();
        let blocks = sum(|chunk| chunk.blocks);
        let ages = chunks.iter().filter_map(|chunk| chunk.ages);
        let ages = ages.reduce(|(oldest, newest), (other, young)| (oldest.max(other), newest.min(young)));
        let models = chunks.iter().flat_map(|chunk| &chunk.models);
        Self {
            first,
            chunks: chunks.len() as u64,
            taken: sum(|chunk| u64::from(chunk.slots > 0)),
            lost: sum(|chunk| u64::from(chunk.is_lost)),
            slots: sum(|chunk| chunk.slots),
            blocks,
            bytes: sum(|chunk| chunk.bytes),
            objects: sum(|chunk| chunk.objects),
            memory_slots: sum(|chunk| chunk.memory_slots),
            age: ages.map(|(oldest, newest)| Age {
                newest,
                mean: sum(|chunk| chunk.age_sum) as f64 / blocks as f64,
                oldest,
            }),
            hosts: largest(chunks.iter().filter_map(|chunk| Some((chunk.owner?, 1)))),
            models: largest(models.map(|share: &ModelShare| (share.id.0, share.blocks))),
        }
    }
}

/// The counts by key, the largest first.
fn largest<K: Ord + Copy>(counts: impl Iterator<Item = (K, u64)>) -> Vec<(K, u64)> {
    let mut sums = BTreeMap::<K, u64>::new();
    counts.for_each(|(key, count)| *sums.entry(key).or_default() += count);
    let mut sums: Vec<(K, u64)> = sums.into_iter().collect();
    sums.sort_by_key(|(_, count)| Reverse(*count));
    sums.truncate(NAMED_MAX);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::NamespaceId;

    fn chunk(owner: u8, blocks: u64, row: u16, ages: (u32, u32)) -> ChunkInfo {
        ChunkInfo {
            owner: Some(owner),
            slots: 16,
            blocks,
            bytes: blocks << 10,
            ages: Some(ages),
            age_sum: blocks * u64::from(ages.0),
            models: vec![ModelShare { id: NamespaceId(row), blocks, bytes: blocks << 10, new_bytes: 0 }],
            ..ChunkInfo::default()
        }
    }

    #[test]
    fn a_small_region_has_a_cell_for_each_chunk() {
        let look = Look { chunks: vec![chunk(3, 4, 7, (20, 10)), ChunkInfo::default()], ..Look::default() };
        let map = Map::of(&look);
        assert_eq!((map.chunks, map.chunks_per_cell, map.cells.len()), (2, 1, 2));
        let taken = &map.cells[0];
        assert_eq!((taken.taken, taken.slots, taken.blocks, taken.bytes), (1, 16, 4, 4 << 10));
        assert_eq!((&taken.hosts[..], &taken.models[..]), (&[(3, 1)][..], &[(7, 4)][..]));
        assert_eq!(taken.age, Some(Age { newest: 10, mean: 20.0, oldest: 20 }));
        assert_eq!(map.cells[1], Cell { first: 1, chunks: 1, ..Cell::default() });
    }

    #[test]
    fn neighbours_share_a_cell_in_a_large_region() {
        let mut chunks = vec![ChunkInfo::default(); 2 * CELLS_MAX + 1];
        chunks[0] = chunk(1, 1, 5, (100, 90));
        chunks[1] = chunk(1, 3, 6, (30, 10));
        chunks[2] = chunk(2, 1, 5, (9, 9));
        let look = Look { chunks, ..Look::default() };
        let map = Map::of(&look);
        assert_eq!((map.chunks_per_cell, map.cells.len() <= CELLS_MAX), (3, true));
        let first = &map.cells[0];
        assert_eq!((&first.hosts[..], &first.models[..]), (&[(1, 2), (2, 1)][..], &[(6, 3), (5, 2)][..]));
        assert_eq!((first.taken, first.chunks, first.blocks), (3, 3, 5));
        assert_eq!(first.age, Some(Age { newest: 9, mean: (100.0 + 90.0 + 9.0) / 5.0, oldest: 100 }));
        assert_eq!(map.cells.iter().map(|cell| cell.chunks).sum::<u64>(), map.chunks);
    }
}
