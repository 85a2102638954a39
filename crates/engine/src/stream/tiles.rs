//! What attention reads at once: one layer's pages of a few sequences, or of some KV heads of a long one.

use cenote_policy::kv_blocks::BlockId;
use std::collections::BTreeSet;
use std::ops::Range;

/// A tile of each layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// Its sequences, ascending.
    pub sequences: Vec<usize>,
    /// Their spilled blocks.
    pub blocks: BTreeSet<BlockId>,
    /// Parts of the pages.
    pub parts: Range<usize>,
}

/// Divides sequences, given by their spilled blocks, into tiles of about `least` blocks with all of their
/// `parts`, or as many bytes of more blocks. Sequences without spilled blocks compute first, while the
/// others' pages arrive. Sequences that share blocks share a tile, so that a shared block is staged once.
pub(super) fn divide(spilled: &[BTreeSet<BlockId>], least: usize, parts: usize) -> Vec<Tile> {
    let mut tiles: Vec<Tile> = Vec::new();
    let resident: Vec<usize> = (0..spilled.len()).filter(|at| spilled[*at].is_empty()).collect();
    if !resident.is_empty() || spilled.is_empty() {
        tiles.push(Tile { sequences: resident, blocks: BTreeSet::new(), parts: 0..parts });
    }
    let first = tiles.len();
    for (at, blocks) in spilled.iter().enumerate().filter(|(_, blocks)| !blocks.is_empty()) {
        let sharing = (first..tiles.len()).find(|tile| !tiles[*tile].blocks.is_disjoint(blocks));
        let open = (first..tiles.len()).next_back().filter(|tile| tiles[*tile].blocks.len() < least);
        match sharing.or(open) {
            Some(tile) => {
                tiles[tile].sequences.push(at);
                tiles[tile].blocks.extend(blocks);
            }
            None => tiles.push(Tile { sequences: vec![at], blocks: blocks.clone(), parts: 0..parts }),
        }
    }
    tiles.into_iter().flat_map(|tile| by_parts(tile, least, parts)).collect()
}

/// Tiles of equal parts of the pages, if there are many blocks.
fn by_parts(tile: Tile, least: usize, parts: usize) -> impl Iterator<Item = Tile> {
    let count = (tile.blocks.len() / least.max(1)).clamp(1, parts);
    (0..count).map(move |at| Tile { parts: at * parts / count..(at + 1) * parts / count, ..tile.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn divided(spilled: &[&[BlockId]], least: usize) -> Vec<(Vec<usize>, Vec<BlockId>)> {
        let spilled: Vec<BTreeSet<BlockId>> = spilled.iter().map(|blocks| blocks.iter().copied().collect()).collect();
        let tiles = divide(&spilled, least, 1).into_iter();
        tiles.map(|tile| (tile.sequences, tile.blocks.into_iter().collect())).collect()
    }

    #[test]
    fn a_tile_closes_when_it_has_enough() {
        let tiles = divided(&[&[1, 2], &[], &[3], &[4, 5, 6], &[7]], 3);
        assert_eq!(
            tiles,
            [(vec![1], vec![]), (vec![0, 2], vec![1, 2, 3]), (vec![3], vec![4, 5, 6]), (vec![4], vec![7])]
        );
    }

    #[test]
    fn a_shared_block_is_staged_once() {
        let tiles = divided(&[&[1, 2], &[3, 4], &[1, 9]], 1);
        assert_eq!(tiles, [(vec![0, 2], vec![1, 2, 9]), (vec![1], vec![3, 4])]);
    }

    #[test]
    fn a_step_has_a_tile() {
        assert_eq!(divided(&[], 1), [(vec![], vec![])]);
        assert_eq!(divided(&[&[], &[]], 1), [(vec![0, 1], vec![])]);
    }

    #[test]
    fn a_long_sequence_is_divided_by_heads() {
        let blocks: BTreeSet<BlockId> = (0..10).collect();
        let parts: Vec<Range<usize>> = divide(&[blocks], 3, 8).into_iter().map(|tile| tile.parts).collect();
        assert_eq!(parts, [0..2, 2..5, 5..8]);
    }

    proptest! {
        #[test]
        fn each_part_of_each_sequence_is_in_one_tile_with_its_blocks(
            spilled in prop::collection::vec(prop::collection::btree_set(0_u32..60, 0..8), 0..12),
            least in 1_usize..20,
            parts in 1_usize..6,
        ) {
            let tiles = divide(&spilled, least, parts);
            let mut found: Vec<(usize, usize)> = Vec::new();
            for Tile { sequences, blocks, parts } in &tiles {
                prop_assert!(sequences.is_sorted() && !parts.is_empty());
                let own: BTreeSet<BlockId> = sequences.iter().flat_map(|at| spilled[*at].clone()).collect();
                prop_assert_eq!(&own, blocks);
                found.extend(sequences.iter().flat_map(|at| parts.clone().map(move |part| (*at, part))));
            }
            found.sort_unstable();
            let all: Vec<(usize, usize)> = (0..spilled.len()).flat_map(|at| (0..parts).map(move |part| (at, part))).collect();
            prop_assert_eq!(found, all);
        }
    }
}
