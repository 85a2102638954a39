//! The digest of a table's content.
//!
//! BLAKE3 over the format, the row's length, the number of rows and the scale, and then over the
//! BLAKE3 digests of each 64 stored rows. So threads hash runs of their own, and equal tables have
//! equal digests wherever they lie.

use crate::format::Stored;
use blake3::Hasher;

/// Rows with one digest.
pub const RUN_ROWS: u64 = 64;

/// Digests of runs of stored rows, one after the other. `rows` begins with a run.
#[must_use]
pub fn run_digests(row_bytes: usize, rows: &[u8]) -> Vec<u8> {
    rows.chunks(RUN_ROWS as usize * row_bytes).flat_map(|run| *blake3::hash(run).as_bytes()).collect()
}

/// Computes a table's digest.
pub struct TableDigest {
    hasher: Hasher,
    row_bytes: usize,
    /// Rows of a run that has not ended.
    begun: Vec<u8>,
}

impl TableDigest {
    /// A table of `rows` rows of `row_bytes` bytes; `scale` is that of all its values, if it has one.
    #[must_use]
    pub fn new(stored: Stored, row_bytes: usize, rows: u64, scale: Option<f32>) -> Self {
        let mut hasher = Hasher::new();
        let scale = scale.map_or(0, f32::to_bits);
        hasher.update(format!("cenote table v1 {stored} {row_bytes} {rows} {scale:08x}\n").as_bytes());
        Self { hasher, row_bytes, begun: Vec::new() }
    }

    /// Adds the next stored rows.
    pub fn rows(&mut self, rows: &[u8]) {
        let run = RUN_ROWS as usize * self.row_bytes;
        let mut rest = rows;
        if !self.begun.is_empty() {
            let taken = rest.len().min(run - self.begun.len());
            self.begun.extend_from_slice(&rest[..taken]);
            rest = &rest[taken..];
            if self.begun.len() < run {
                return;
            }
            let begun = std::mem::take(&mut self.begun);
            self.runs(&run_digests(self.row_bytes, &begun));
        }
        let whole = rest.len() / run * run;
        self.runs(&run_digests(self.row_bytes, &rest[..whole]));
        self.begun.extend_from_slice(&rest[whole..]);
    }

    /// Adds what [`run_digests`] returned for the next rows.
    pub fn runs(&mut self, digests: &[u8]) {
        self.hasher.update(digests);
    }

    /// The digest.
    #[must_use]
    pub fn finish(mut self) -> [u8; 32] {
        let last = std::mem::take(&mut self.begun);
        self.runs(&run_digests(self.row_bytes, &last));
        *self.hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_do_not_change_a_digest(count in 1..400_usize, cuts in proptest::collection::vec(0..400_usize, 0..6)) {
            let rows: Vec<u8> = (0..count * 6).map(|at| (at * 37 % 251) as u8).collect();
            let new = || TableDigest::new(Stored::Bf16, 6, count as u64, None);
            let mut whole = new();
            whole.runs(&run_digests(6, &rows));
            let mut pieces = new();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(count) * 6).collect();
            cuts.sort_unstable();
            let mut from = 0;
            for cut in cuts.into_iter().chain([rows.len()]) {
                pieces.rows(&rows[from..cut]);
                from = cut;
            }
            prop_assert_eq!(whole.finish(), pieces.finish());
        }
    }

    #[test]
    fn each_fact_and_each_row_counts() {
        let of = |stored, rows: u64, scale, byte| {
            let mut digest = TableDigest::new(stored, 2, rows, scale);
            digest.rows(&[byte; 20]);
            digest.finish()
        };
        let all = [
            of(Stored::Bf16, 10, None, 1),
            of(Stored::F16, 10, None, 1),
            of(Stored::Bf16, 11, None, 1),
            of(Stored::E4m3, 10, Some(1.0), 1),
            of(Stored::E4m3, 10, Some(2.0), 1),
            of(Stored::Bf16, 10, None, 2),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
    }
}
