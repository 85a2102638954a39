//! Gathers of rows: hostile sets, lists, shapes and sizes.

use super::input::Input;
use super::{CHUNK_BYTES, HOSTILE, Program, must};
use cenote::*;
use libc::{EINVAL, ENXIO};
use std::ptr::{null, null_mut};

const BLOCK_BYTES: u64 = 4096;
const BLOCKS: u8 = 3;
/// Most rows of a list.
const ROWS_MAX: u64 = 40;

fn payload(block: u8) -> Vec<u8> {
    (0..BLOCK_BYTES).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ block).collect()
}

/// Publishes the blocks, as far as there is room for them, and returns their namespace.
fn publish() -> CenoteNamespace {
    let mut space = 0;
    // SAFETY: 32 bytes, a text that ends with a zero, and a place for the namespace.
    must(unsafe { cenote_namespace([3; 32].as_ptr(), c"rows".as_ptr(), BLOCK_BYTES, &raw mut space) }, 0);
    let payloads: Vec<Vec<u8>> = (0..BLOCKS).map(payload).collect();
    let block = |(block, payload): (u8, &Vec<u8>)| CenoteBlock {
        hash: [block + 1; 16],
        payload: payload.as_ptr().cast(),
        depth: block.into(),
        outcome: 0,
    };
    let mut blocks: Vec<CenoteBlock> = (0..BLOCKS).zip(&payloads).map(block).collect();
    // SAFETY: these blocks, each with a block's bytes.
    must(unsafe { cenote_publish(space, blocks.as_mut_ptr(), blocks.len()) }, 0);
    space
}

fn number(input: &mut Input<'_>, most: u64) -> u64 {
    match input.below(24) {
        0 => HOSTILE[input.below(HOSTILE.len() as u64) as usize],
        1 => input.word(),
        _ => input.below(most),
    }
}

fn shape(input: &mut Input<'_>) -> CenoteRowShape {
    CenoteRowShape {
        offset: number(input, 200),
        stride: number(input, 100),
        size: number(input, 65),
        pieces: 1 + number(input, 3),
        piece_stride: number(input, 90),
        rows: if input.chance(128) { 0 } else { number(input, 20) },
    }
}

/// Bytes of a row, if the model knows this shape.
fn row_bytes(shape: &CenoteRowShape) -> Option<u64> {
    let small = |bytes: u64| (bytes <= CHUNK_BYTES).then_some(bytes);
    let numbers = [shape.offset, shape.stride, shape.size, shape.pieces, shape.piece_stride];
    numbers.into_iter().try_for_each(|number| small(number).map(drop))?;
    (shape.size > 0 && shape.pieces > 0).then_some(shape.size * shape.pieces)
}

/// Offset of a row and the end of its last piece.
fn extent(shape: &CenoteRowShape, row: u32) -> (u64, u64) {
    let start = shape.offset + u64::from(row) * shape.stride;
    (start, start + (shape.pieces - 1) * shape.piece_stride + shape.size)
}

/// A gather into a buffer of `size` bytes: its result, the buffer and the missed blocks.
fn gather(set: CenoteRows, list: &[CenoteRow], shape: &CenoteRowShape, size: usize) -> (i32, Vec<u8>, Vec<u32>) {
    let (mut to, mut missed) = (vec![0xee; size], vec![u32::MAX; list.len()]);
    // SAFETY: this list, this shape, these bytes, and room for a number for each row.
    let found = unsafe {
        cenote_gather(set, list.as_ptr(), list.len(), shape, to.as_mut_ptr().cast(), size, missed.as_mut_ptr())
    };
    (found, to, missed)
}

impl Program {
    pub fn rows(&self, input: &mut Input<'_>) {
        let mut set = input.word() as u32;
        let hashes: Vec<u8> = (0..=BLOCKS).flat_map(|block| [block + 1; 16]).collect();
        if !self.open {
            // SAFETY: these hashes, and a place for the set.
            must(unsafe { cenote_pin_rows(0, hashes.as_ptr(), BLOCKS.into(), &raw mut set) }, -ENXIO);
            must(cenote_unpin_rows(set), -ENXIO);
            return must(gather(set, &[], &shape(input), 0).0, -ENXIO);
        }
        let space = publish();
        // SAFETY: these hashes, and a place for the set. No namespace of this number is open.
        must(unsafe { cenote_pin_rows(space + 1000, hashes.as_ptr(), 1, &raw mut set) }, -EINVAL);
        // SAFETY: the library accepts null as missing hashes and a missing place.
        unsafe {
            must(cenote_pin_rows(space, null(), 1, &raw mut set), -EINVAL);
            must(cenote_pin_rows(space, hashes.as_ptr(), usize::MAX, &raw mut set), -EINVAL);
            must(cenote_pin_rows(space, hashes.as_ptr(), 1, null_mut()), -EINVAL);
        }
        // SAFETY: these hashes, the last of a block that was never published.
        let missing = unsafe { cenote_pin_rows(space, hashes.as_ptr(), usize::from(BLOCKS) + 1, &raw mut set) };
        assert!((1..=i32::from(BLOCKS) + 1).contains(&missing), "{missing}");
        for _ in 0..4 {
            gather_any(set, input);
        }
        refuse(set);
        must(cenote_unpin_rows(set), 0);
        must(cenote_unpin_rows(set), -EINVAL);
        must(gather(set, &[], &shape(input), 0).0, -EINVAL);
    }
}

/// A gather of any list with any shape into a buffer of any size.
fn gather_any(set: CenoteRows, input: &mut Input<'_>) {
    let shape = shape(input);
    let row = |input: &mut Input<'_>| CenoteRow {
        block: number(input, u64::from(BLOCKS) + 1) as u32,
        row: number(input, 20) as u32,
    };
    let list: Vec<CenoteRow> = (0..input.below(ROWS_MAX)).map(|_| row(input)).collect();
    let right = row_bytes(&shape).map(|bytes| bytes * list.len() as u64).filter(|&bytes| bytes <= 1 << 20);
    let size = if input.chance(20) { input.below(5000) } else { right.unwrap_or(64) };
    let (found, to, missed) = gather(set, &list, &shape, size as usize);
    if found < 0 {
        must(found, -EINVAL);
        assert!(to.iter().all(|&byte| byte == 0xee) && missed.iter().all(|&block| block == u32::MAX), "it copied");
    }
    // The model does not know whether a shape or a row beyond a block is refused as such.
    let Some(bytes) = row_bytes(&shape) else { return };
    let is_row = |row: &CenoteRow| shape.rows == 0 || u64::from(row.row) < shape.rows;
    let in_block = |row: &CenoteRow| row.block < BLOCKS.into() && extent(&shape, row.row).1 <= BLOCK_BYTES;
    let never = |row: &CenoteRow| row.block == u32::from(BLOCKS);
    if !list.iter().all(|row| is_row(row) && (in_block(row) || never(row))) || right != Some(size) {
        return;
    }
    assert!(found >= 0, "{}", super::words());
    let missed = &missed[..found as usize];
    assert!(missed.is_sorted() && list.iter().any(never) == missed.contains(&u32::from(BLOCKS)), "{missed:?}");
    for (row, got) in list.iter().zip(to.chunks_exact(bytes as usize)) {
        if missed.contains(&row.block) {
            continue;
        }
        let (payload, start) = (payload(row.block as u8), extent(&shape, row.row).0);
        let pieces = (0..shape.pieces).map(|piece| (start + piece * shape.piece_stride) as usize);
        assert!(pieces.flat_map(|at| &payload[at..at + shape.size as usize]).eq(got), "row {} is wrong", row.row);
    }
}

/// Arguments that cannot be.
fn refuse(set: CenoteRows) {
    let shape = CenoteRowShape { offset: 0, stride: 64, size: 64, pieces: 1, piece_stride: 0, rows: 0 };
    let (row, mut to) = (CenoteRow { block: 0, row: 0 }, [0_u8; 64]);
    let to = to.as_mut_ptr().cast();
    // SAFETY: the library accepts null as a missing argument, and refuses counts that are more than
    // memory before it reads a row.
    unsafe {
        must(cenote_gather(set, null(), 1, &raw const shape, to, 64, null_mut()), -EINVAL);
        must(cenote_gather(set, &raw const row, 1, null(), to, 64, null_mut()), -EINVAL);
        must(cenote_gather(set, &raw const row, 1, &raw const shape, null_mut(), 64, null_mut()), -EINVAL);
        must(cenote_gather(set, &raw const row, usize::MAX, &raw const shape, to, 64, null_mut()), -EINVAL);
        must(cenote_gather(set, &raw const row, 1, &raw const shape, to, usize::MAX, null_mut()), -EINVAL);
        must(cenote_gather(set, null(), 0, &raw const shape, null_mut(), 0, null_mut()), 0);
    }
}
