//! `out[m][n] = Σ_k x[m][k] · w[n][k]`: activations times a packed weight matrix.
//!
//! Weights are packed once, at load, into panels of 16 output columns (`[n/16][k][16]`, the last
//! panel padded with zeros). Activations are packed per call into tiles of a few rows
//! (`[m/MR][k][MR]`), so that the inner loop reads both operands sequentially. Long `k` is split
//! into blocks that fit the L1 cache. A block continues the chain of the previous block, so
//! splitting does not change results.

use super::PANEL;
use super::buffer::{AlignedBuffer, ElementType, narrow, widen};
use super::micro::{Tile, fma_chain, panel, panel_mut, with_vectors_per_panel, zero};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use std::ops::Range;

/// Rows of `k` per block: a panel block is then 16 KiB, half of a usual L1 cache.
const K_BLOCK: usize = 256;
/// As [`K_BLOCK`] when four bf16 panels are widened at a time: together they take 16 KiB.
const K_BLOCK_WIDENED: usize = 64;
/// Rows of `x` per block: with [`K_BLOCK`] they take 192 KiB of the L2 cache.
const M_BLOCK: usize = 192;
/// Minimum of multiply-adds for parallel execution: below it, waking a thread (some 10 µs) costs
/// more than it saves.
const PARALLEL_THRESHOLD: usize = 1 << 18;

/// A weight matrix of `n` rows (outputs) by `k` columns (inputs), packed in panels.
pub struct PackedMatrix {
    n: usize,
    k: usize,
    element: ElementType,
    panels: AlignedBuffer,
}

impl PackedMatrix {
    /// Creates an all-zero matrix, to be filled with [`Self::fill_rows`].
    #[must_use]
    pub fn zeroed(n: usize, k: usize, element: ElementType) -> Self {
        Self { n, k, element, panels: AlignedBuffer::zeroed(n.div_ceil(PANEL) * PANEL * k * element.bytes()) }
    }

    /// Packs a row-major `[n][k]` matrix, rounding to `element`.
    #[must_use]
    pub fn pack(rows: &[f32], n: usize, k: usize, element: ElementType) -> Self {
        let mut packed = Self::zeroed(n, k, element);
        packed.fill_rows(0, rows);
        packed
    }

    /// Overwrites the rows from `first` on with row-major `rows`. Fuses source matrices that share
    /// an input (Q, K and V; gate and up).
    ///
    /// # Panics
    /// The rows do not lie within the matrix.
    pub fn fill_rows(&mut self, first: usize, rows: &[f32]) {
        let k = self.k;
        assert!(rows.len().is_multiple_of(k) && first + rows.len() / k <= self.n, "rows must lie within the matrix");
        for (offset, row) in rows.chunks_exact(k).enumerate() {
            let (panel, lane) = ((first + offset) / PANEL, (first + offset) % PANEL);
            let span = panel * k * PANEL..(panel + 1) * k * PANEL;
            match self.element {
                ElementType::F32 => {
                    let panel = &mut self.panels.as_f32_mut()[span];
                    panel.iter_mut().skip(lane).step_by(PANEL).zip(row).for_each(|(slot, value)| *slot = *value);
                }
                ElementType::Bf16 => {
                    let panel = &mut self.panels.as_bf16_mut()[span];
                    panel
                        .iter_mut()
                        .skip(lane)
                        .step_by(PANEL)
                        .zip(row)
                        .for_each(|(slot, value)| *slot = narrow(*value));
                }
            }
        }
    }

    /// Number of outputs.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of inputs.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of the packed panels.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.panels.as_bytes().len()
    }

    /// Copies row `row` to `out`, which must have `k` values. Used for embedding lookups.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let span = row / PANEL * self.k * PANEL..(row / PANEL + 1) * self.k * PANEL;
        let lane = row % PANEL;
        match self.element {
            ElementType::F32 => {
                let panel = &self.panels.as_f32()[span];
                out.iter_mut().zip(panel.iter().skip(lane).step_by(PANEL)).for_each(|(slot, value)| *slot = *value);
            }
            ElementType::Bf16 => {
                let panel = &self.panels.as_bf16()[span];
                out.iter_mut()
                    .zip(panel.iter().skip(lane).step_by(PANEL))
                    .for_each(|(slot, value)| *slot = widen(*value));
            }
        }
    }

    fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Rows `k_range` of a panel as f32: in place for f32, widened into `scratch` for bf16.
    #[inline(always)]
    fn panel_block<'a>(&'a self, panel: usize, k_range: Range<usize>, scratch: &'a mut [f32]) -> &'a [f32] {
        let span = (panel * self.k + k_range.start) * PANEL..(panel * self.k + k_range.end) * PANEL;
        match self.element {
            ElementType::F32 => &self.panels.as_f32()[span],
            ElementType::Bf16 => {
                let bits = &self.panels.as_bf16()[span];
                let scratch = &mut scratch[..bits.len()];
                for (slot, bits) in scratch.iter_mut().zip(bits) {
                    *slot = widen(*bits);
                }
                scratch
            }
        }
    }
}

/// Tile heights for this machine, largest first. The largest fills the registers together with one
/// row of a panel; smaller ones cover the remaining rows. Each height is compiled as a loop of its
/// own, so the list is short.
fn tile_sizes() -> &'static [usize] {
    struct Lanes;
    impl WithSimd for Lanes {
        type Output = usize;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _simd: S) -> usize {
            S::F32_LANES
        }
    }
    match Arch::new().dispatch(Lanes) {
        16 => &[12, 6, 4, 2, 1],
        4 | 8 => &[6, 4, 2, 1],
        _ => &[1],
    }
}

/// `x` packed in tiles `[k][rows]`.
struct PackedRows {
    m: usize,
    k: usize,
    tiles: Vec<Range<usize>>,
    /// Number of tiles that cover about [`M_BLOCK`] rows.
    tiles_per_block: usize,
    values: Vec<f32>,
}

impl PackedRows {
    fn pack(x: &[f32], m: usize, k: usize, parallel: bool) -> Self {
        let sizes = tile_sizes();
        let mut tiles = Vec::new();
        let mut first = 0;
        while first < m {
            let rows = sizes.iter().copied().find(|rows| *rows <= m - first).unwrap_or(1);
            tiles.push(first..first + rows);
            first += rows;
        }
        let mut values = vec![0.0; m * k];
        let mut rest = values.as_mut_slice();
        let mut parts = Vec::with_capacity(tiles.len());
        for tile in &tiles {
            let (part, behind) = rest.split_at_mut(tile.len() * k);
            parts.push((part, &x[tile.start * k..tile.end * k]));
            rest = behind;
        }
        let pack_tile = |(tile, rows): (&mut [f32], &[f32])| {
            let count = rows.len() / k;
            for (lane, row) in rows.chunks_exact(k).enumerate() {
                tile.iter_mut().skip(lane).step_by(count).zip(row).for_each(|(slot, value)| *slot = *value);
            }
        };
        if parallel {
            parts.into_par_iter().for_each(pack_tile);
        } else {
            parts.into_iter().for_each(pack_tile);
        }
        Self { m, k, tiles, tiles_per_block: M_BLOCK / sizes[0], values }
    }

    /// The values of a tile for `k_range`.
    #[inline(always)]
    fn values(&self, tile: &Range<usize>, k_range: &Range<usize>) -> &[f32] {
        let at = tile.start * self.k;
        &self.values[at + k_range.start * tile.len()..at + k_range.end * tile.len()]
    }
}

/// Multiplies `m` rows of `x` (`[m][w.k()]`) with `w` into `out` (`[m][w.n()]`), and adds `bias` if
/// given.
///
/// Parallel over columns on the current rayon pool; results do not depend on the number of threads.
///
/// # Panics
/// The length of `x` or `out` does not match.
pub fn matmul(x: &[f32], m: usize, w: &PackedMatrix, bias: Option<&[f32]>, out: &mut [f32]) {
    assert_eq!(x.len(), m * w.k, "x must be [m][k]");
    assert_eq!(out.len(), m * w.n, "out must be [m][n]");
    if m == 0 || w.n == 0 {
        return;
    }
    let parallel = m * w.n * w.k >= PARALLEL_THRESHOLD;
    let packed = PackedRows::pack(x, m, w.k, parallel);
    let panels = w.panels();
    // At least four panels per task: the one-row kernel runs four at once to hide the latency of
    // its chains.
    let tasks = if parallel { (rayon::current_num_threads() * 4).min(panels.div_ceil(4)) } else { 1 };
    let per_task = panels.div_ceil(tasks).next_multiple_of(4);
    let mut columns: Vec<ColumnTask<'_>> = (0..panels)
        .step_by(per_task)
        .map(|first| ColumnTask {
            x: &packed,
            w,
            bias,
            panels: first..(first + per_task).min(panels),
            out: Vec::with_capacity(m),
        })
        .collect();
    for row in out.chunks_exact_mut(w.n) {
        for (task, part) in columns.iter_mut().zip(row.chunks_mut(per_task * PANEL)) {
            task.out.push(part);
        }
    }
    let arch = Arch::new();
    if parallel {
        columns.into_par_iter().for_each(|task| arch.dispatch(task));
    } else {
        columns.into_iter().for_each(|task| arch.dispatch(task));
    }
}

/// A range of panels for all rows, computed as one task.
struct ColumnTask<'a> {
    x: &'a PackedRows,
    w: &'a PackedMatrix,
    bias: Option<&'a [f32]>,
    panels: Range<usize>,
    /// Per row, the columns of `panels`.
    out: Vec<&'a mut [f32]>,
}

impl WithSimd for ColumnTask<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        with_vectors_per_panel!(S, V, self.run::<S, V>(simd));
        if let Some(bias) = self.bias {
            for row in &mut self.out {
                for (value, bias) in row.iter_mut().zip(&bias[self.panels.start * PANEL..]) {
                    *value += bias;
                }
            }
        }
    }
}

impl ColumnTask<'_> {
    #[inline(always)]
    fn run<S: Simd, const V: usize>(&mut self, simd: S) {
        let mut scratch = match self.w.element {
            ElementType::F32 => AlignedBuffer::zeroed(0),
            ElementType::Bf16 => AlignedBuffer::zeroed(4 * K_BLOCK * PANEL * 4),
        };
        let x = self.x;
        let k_block = if self.x.m <= 2 && self.w.element == ElementType::Bf16 { K_BLOCK_WIDENED } else { K_BLOCK };
        for k_start in (0..self.w.k).step_by(k_block) {
            let k_range = k_start..(k_start + k_block).min(self.w.k);
            for tiles in x.tiles.chunks(x.tiles_per_block) {
                let mut panel = self.panels.start;
                while panel < self.panels.end {
                    // One or two rows leave most multipliers idle; several panels at once fill
                    // them.
                    let wide = match x.m {
                        _ if V > 4 => 1,
                        1 => 4,
                        2 => 2,
                        _ if V == 1 => 2,
                        _ => 1,
                    };
                    let left = self.panels.end - panel;
                    panel += match wide {
                        4 if left >= 4 => self.panel_group::<S, V, 4>(simd, panel, &k_range, tiles, &mut scratch),
                        2 if left >= 2 => self.panel_group::<S, V, 2>(simd, panel, &k_range, tiles, &mut scratch),
                        _ => self.panel_group::<S, V, 1>(simd, panel, &k_range, tiles, &mut scratch),
                    };
                }
            }
        }
    }

    /// Computes `P` panels starting at `panel` for the rows of `tiles`. Returns `P`.
    #[inline(always)]
    fn panel_group<S: Simd, const V: usize, const P: usize>(
        &mut self,
        simd: S,
        panel: usize,
        k_range: &Range<usize>,
        tiles: &[Range<usize>],
        scratch: &mut AlignedBuffer,
    ) -> usize {
        let mut parts = scratch.as_f32_mut().chunks_exact_mut(K_BLOCK * PANEL);
        let w = self.w;
        let blocks: [&[f32]; P] =
            std::array::from_fn(|p| w.panel_block(panel + p, k_range.clone(), parts.next().unwrap_or_default()));
        let b = blocks.map(|block| super::micro::panel::<S, V>(block));
        let column = (panel - self.panels.start) * PANEL;
        for tile in tiles {
            let a = self.x.values(tile, k_range);
            let out = &mut self.out[tile.clone()];
            let fresh = k_range.start == 0;
            macro_rules! rows {
                ($($mr:literal)*) => {
                    match tile.len() {
                        $($mr => tile_step::<S, $mr, P, V>(simd, a, b, out, column, fresh),)*
                        rows => unreachable!("a tile of {rows} rows is none of `tile_sizes`"),
                    }
                };
            }
            // The conditions are constants. They exclude tile sizes that an instruction set never
            // uses.
            if P == 4 || V > 4 {
                rows!(1);
            } else if V == 1 {
                rows!(1 2 4 6 12);
            } else if P == 2 {
                rows!(2);
            } else {
                rows!(1 2 4 6);
            }
        }
        P
    }
}

/// Continues the chains of one tile, or begins them if `fresh`.
#[inline(always)]
fn tile_step<S: Simd, const MR: usize, const P: usize, const V: usize>(
    simd: S,
    a: &[f32],
    b: [&[[S::f32s; V]]; P],
    out: &mut [&mut [f32]],
    column: usize,
    fresh: bool,
) {
    let a = a.as_chunks::<MR>().0;
    let mut tile: Tile<S, MR, P, V> = zero(simd);
    let width = P * PANEL;
    // The last panel may extend beyond the row: it is then computed in the full-width buffer
    // `edge`.
    let ragged = out[0].len() < column + width;
    let mut edge = [[0.0_f32; 64]; MR];
    if !fresh {
        for (m, row) in out.iter().enumerate().take(MR) {
            let values = if ragged {
                edge[m][..row.len() - column].copy_from_slice(&row[column..]);
                &edge[m][..width]
            } else {
                &row[column..column + width]
            };
            tile[m].copy_from_slice(&panel::<S, V>(values)[..P]);
        }
    }
    tile = fma_chain(simd, tile, a.len(), |i, m| a[i][m], b);
    for (m, row) in out.iter_mut().enumerate().take(MR) {
        if ragged {
            panel_mut::<S, V>(&mut edge[m][..width]).copy_from_slice(&tile[m]);
            let left = row.len() - column;
            row[column..].copy_from_slice(&edge[m][..left]);
        } else {
            panel_mut::<S, V>(&mut row[column..column + width]).copy_from_slice(&tile[m]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::prng::Prng;

    fn random(len: usize, prng: &mut Prng) -> Vec<f32> {
        (0..len).map(|_| prng.next_f64() as f32 - 0.5).collect()
    }

    /// Definition of the product: one chain per element.
    fn oracle(x: &[f32], m: usize, w: &[f32], n: usize, k: usize) -> Vec<f32> {
        (0..m * n).map(|at| (0..k).fold(0.0_f32, |sum, i| x[at / n * k + i].mul_add(w[at % n * k + i], sum))).collect()
    }

    #[test]
    fn every_element_is_one_chain_over_k() {
        let mut prng = Prng::new(11);
        let sizes = [
            (1, 5, 7),
            (2, 16, 300),
            (3, 33, 17),
            (7, 100, 257),
            (13, 64, 513),
            (25, 130, 64),
            (200, 48, 600),
            (1, 200, 2048),
        ];
        for (m, n, k) in sizes {
            let (x, w) = (random(m * k, &mut prng), random(n * k, &mut prng));
            for element in [ElementType::F32, ElementType::Bf16] {
                let rounded: Vec<f32> = match element {
                    ElementType::F32 => w.clone(),
                    ElementType::Bf16 => w.iter().map(|value| widen(narrow(*value))).collect(),
                };
                let packed = PackedMatrix::pack(&w, n, k, element);
                let mut out = vec![f32::NAN; m * n];
                matmul(&x, m, &packed, None, &mut out);
                assert_eq!(out, oracle(&x, m, &rounded, n, k), "{m}x{n}x{k} {element}");
            }
        }
    }

    #[test]
    fn the_result_does_not_depend_on_thread_count() {
        let mut prng = Prng::new(12);
        let (m, n, k) = (37, 530, 300);
        let (x, w) = (random(m * k, &mut prng), random(n * k, &mut prng));
        let packed = PackedMatrix::pack(&w, n, k, ElementType::F32);
        let bias = random(n, &mut prng);
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = vec![0.0; m * n];
            pool.install(|| matmul(&x, m, &packed, Some(&bias), &mut out));
            out
        };
        let one = with(1);
        assert_eq!(one, with(2));
        assert_eq!(one, with(7));
    }

    #[test]
    fn row_returns_the_packed_row() {
        let mut prng = Prng::new(13);
        let w = random(21 * 9, &mut prng);
        let packed = PackedMatrix::pack(&w, 21, 9, ElementType::F32);
        let mut row = vec![0.0; 9];
        for at in 0..21 {
            packed.row(at, &mut row);
            assert_eq!(row, w[at * 9..(at + 1) * 9]);
        }
    }
}
