//! What attention reads at once: one layer's pages of a few sequences.

use cenote_policy::kv_blocks::BlockId;
use std::collections::BTreeSet;

/// The sequences of a tile, ascending, and their spilled blocks.
pub(super) type Tile = (Vec<usize>, BTreeSet<BlockId>);

/// Divides sequences, given by their spilled blocks, into tiles of `least` blocks or a little more.
/// Sequences without spilled blocks compute first, while the others' pages arrive. Sequences that share
/// blocks share a tile, so that a shared block is staged once.
pub(super) fn divide(spilled: &[BTreeSet<BlockId>], least: usize) -> Vec<Tile> {
    let mut tiles: Vec<Tile> = Vec::new();
    let resident: Vec<usize> = (0..spilled.len()).filter(|at| spilled[*at].is_empty()).collect();
    if !resident.is_empty() || spilled.is_empty() {
        tiles.push((resident, BTreeSet::new()));
    }
    let first = tiles.len();
    for (at, blocks) in spilled.iter().enumerate().filter(|(_, blocks)| !blocks.is_empty()) {
        let shares = |(_, of_tile): &Tile| !of_tile.is_disjoint(blocks);
        let sharing = (first..tiles.len()).find(|tile| shares(&tiles[*tile]));
        let open = (first..tiles.len()).next_back().filter(|tile| tiles[*tile].1.len() < least);
        match sharing.or(open) {
            Some(tile) => {
                tiles[tile].0.push(at);
                tiles[tile].1.extend(blocks);
            }
            None => tiles.push((vec![at], blocks.clone())),
        }
    }
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn divided(spilled: &[&[BlockId]], least: usize) -> Vec<(Vec<usize>, Vec<BlockId>)> {
        let spilled: Vec<BTreeSet<BlockId>> = spilled.iter().map(|blocks| blocks.iter().copied().collect()).collect();
        divide(&spilled, least).into_iter().map(|(at, blocks)| (at, blocks.into_iter().collect())).collect()
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

    proptest! {
        #[test]
        fn each_sequence_is_in_one_tile_with_its_blocks(
            spilled in prop::collection::vec(prop::collection::btree_set(0_u32..60, 0..8), 0..12),
            least in 1_usize..20,
        ) {
            let tiles = divide(&spilled, least);
            let mut sequences: Vec<usize> = tiles.iter().flat_map(|(sequences, _)| sequences.clone()).collect();
            sequences.sort_unstable();
            prop_assert_eq!(sequences, (0..spilled.len()).collect::<Vec<_>>());
            for (sequences, blocks) in &tiles {
                prop_assert!(sequences.is_sorted());
                let own: BTreeSet<BlockId> = sequences.iter().flat_map(|at| spilled[*at].clone()).collect();
                prop_assert_eq!(&own, blocks);
            }
        }
    }
}
