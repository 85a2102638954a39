//! Many short rows, copied one after the other into one buffer.
//!
//! Rows that a sparse attention picks lie anywhere, so the processor's own prefetching does not
//! reach the next one. The copy asks for the first lines of rows that are due soon.

use crate::fabric::prefetch;
use crate::offset::LINE;

/// Bytes that are asked for ahead of the copy: as many lines as a core keeps on their way.
const AHEAD_BYTES: usize = 4 << 10;
/// Most rows ahead of the copy. With very short rows, lines asked for earlier would be evicted
/// before their turn.
const AHEAD_ROWS_MAX: usize = 16;
/// Lines of a row that are asked for. The processor's own prefetching follows a longer row.
const AHEAD_LINES_MAX: usize = 16;

/// Copies `bytes` bytes from each of `starts` of `from` into `to`, one after the other.
///
/// # Panics
/// A row lies outside `from`, or `to` does not have the size of all rows.
pub fn copy(from: &[u8], starts: &[u64], bytes: usize, to: &mut [u8]) {
    copy_each(from, starts.len(), |row| starts[row], bytes, to);
}

/// As [`copy`], with `count` rows that begin where `start_of` says. It is called once for each row,
/// while earlier rows are on their way.
///
/// # Panics
/// As [`copy`].
pub fn copy_each(from: &[u8], count: usize, start_of: impl Fn(usize) -> u64, bytes: usize, to: &mut [u8]) {
    let row = |at: usize| {
        let start = start_of(at);
        let fits = start.checked_add(bytes as u64).is_some_and(|end| end <= from.len() as u64);
        assert!(fits, "a row lies outside of {} bytes", from.len());
        from[start as usize..].as_ptr()
    };
    // SAFETY: all rows lie inside `from`, and a mutable borrow overlaps no other.
    unsafe { copy_from(count, row, bytes, to) };
}

/// As [`copy_each`], from memory that others may write meanwhile; `row_of` gives a row's address.
///
/// # Safety
/// Callers must guarantee that `bytes` bytes from each address are readable and do not overlap `to`.
///
/// # Panics
/// `to` does not have the size of all rows.
#[inline]
pub(crate) unsafe fn copy_from(count: usize, row_of: impl Fn(usize) -> *const u8, bytes: usize, to: &mut [u8]) {
    assert_eq!(to.len(), count * bytes, "the buffer does not have the size of {count} rows");
    if bytes == 0 {
        return;
    }
    let ahead = (AHEAD_BYTES / bytes).clamp(1, AHEAD_ROWS_MAX);
    // Addresses of the rows that are due, as a ring: computing them overlaps with the copies.
    let mut due = [std::ptr::null(); AHEAD_ROWS_MAX];
    for (at, due) in due[..ahead.min(count)].iter_mut().enumerate() {
        *due = row_of(at);
        prefetch_row(*due, bytes);
    }
    let mut place = 0;
    for (index, to) in to.chunks_exact_mut(bytes).enumerate() {
        let row = due[place];
        if index + ahead < count {
            due[place] = row_of(index + ahead);
            prefetch_row(due[place], bytes);
        }
        place = if place + 1 == ahead { 0 } else { place + 1 };
        // SAFETY: callers guarantee `bytes` readable bytes outside of `to`. If others write them,
        // the copy is some mix of old and new bytes, which callers detect and drop.
        unsafe { std::ptr::copy_nonoverlapping(row, to.as_mut_ptr(), bytes) };
    }
}

#[inline(always)]
fn prefetch_row(row: *const u8, bytes: usize) {
    let lines = (bytes + row.addr() % LINE as usize).div_ceil(LINE as usize);
    for line in 0..lines.min(AHEAD_LINES_MAX) {
        // A prefetch of any address is harmless, so the address need not stay inside the row.
        prefetch(row.wrapping_add(line * LINE as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_copied_in_order_from_any_start() {
        let from: Vec<u8> = (0..100_000_u32).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut prng = cenote_base::prng::Prng::new(3);
        for bytes in [0, 1, 7, 64, 100, 128, 512, 4096, 5000] {
            let starts: Vec<u64> = (0..50).map(|_| prng.below((from.len() - bytes) as u64 + 1)).collect();
            let mut to = vec![0; starts.len() * bytes];
            copy(&from, &starts, bytes, &mut to);
            let expected = starts.iter().flat_map(|&start| &from[start as usize..start as usize + bytes]);
            assert!(expected.eq(&to), "{bytes} bytes");
        }
    }

    #[test]
    #[should_panic(expected = "a row lies outside of 64 bytes")]
    fn a_row_over_the_end_panics() {
        copy(&[0; 64], &[0, 33], 32, &mut [0; 64]);
    }

    #[test]
    #[should_panic(expected = "does not have the size of 2 rows")]
    fn a_buffer_of_another_size_panics() {
        copy(&[0; 64], &[0, 32], 32, &mut [0; 65]);
    }
}
