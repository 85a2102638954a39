//! A matrix of signed bytes, in the order in which a product reads it.

/// Rows of a panel.
pub const PANEL: usize = 64;
/// Columns whose products an instruction adds.
pub const QUAD: usize = 4;

/// 16 rows of 4 columns.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Line(pub [i8; 64]);

/// Lines of four columns of a panel.
pub const LINES: usize = PANEL * QUAD / 64;

/// Rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub rows: usize,
    pub columns: usize,
}

/// Rows in panels of 64, the last one filled up with zeros. A panel has its columns in groups of
/// four, and a group its rows one after the other.
#[derive(Clone, Debug)]
pub struct Matrix {
    shape: Shape,
    lines: Vec<Line>,
    /// Of each row: its scale.
    scales: Vec<f32>,
    /// Of each row: what the 128 in each input adds, negated.
    offsets: Vec<i32>,
}

/// Integer sums of a panel's rows, for each of `V` inputs.
pub type Sums<const V: usize> = [[i32; PANEL]; V];

impl Matrix {
    /// From codes row by row, none of them -128, and the scale of each row.
    ///
    /// # Panics
    /// Lengths differ from the shape, or columns are no multiple of 4.
    pub fn new(shape: Shape, codes: &[i8], scales: &[f32]) -> Self {
        let Shape { rows, columns } = shape;
        assert!(codes.len() == rows * columns && scales.len() == rows, "codes and scales for each row");
        assert!(columns > 0 && columns.is_multiple_of(QUAD), "columns in groups of four");
        // `maddubs` adds two products in 16 bits, and `sign` cannot negate -128.
        assert!(codes.iter().all(|code| *code != i8::MIN), "codes have a negative");
        let mut lines = vec![Line([0; 64]); rows.div_ceil(PANEL) * (columns / QUAD) * LINES];
        for (row, codes) in codes.chunks_exact(columns).enumerate() {
            let (panel, row) = (row / PANEL, row % PANEL);
            for (quad, codes) in codes.as_chunks::<QUAD>().0.iter().enumerate() {
                let line = &mut lines[(panel * (columns / QUAD) + quad) * LINES + row / 16];
                line.0[row % 16 * QUAD..][..QUAD].copy_from_slice(codes);
            }
        }
        let sum = |codes: &[i8]| codes.iter().map(|code| i32::from(*code)).sum::<i32>();
        let mut offsets: Vec<i32> = codes.chunks_exact(columns).map(|codes| -128 * sum(codes)).collect();
        offsets.resize(rows.div_ceil(PANEL) * PANEL, 0);
        Self { shape, lines, scales: scales.to_vec(), offsets }
    }

    /// Refuses inputs and outputs of other lengths.
    pub fn check(&self, inputs: &[&[u8]], factors: &[f32], bias: Option<&[f32]>, out: &[&mut [f32]]) {
        assert!(inputs.len() == factors.len() && inputs.len() == out.len(), "an output for each input");
        assert!(inputs.iter().all(|input| input.len() == self.shape.columns), "inputs have the columns of the matrix");
        assert!(bias.is_none_or(|bias| bias.len() == self.shape.rows), "a bias has the rows of the matrix");
        assert!(out.iter().all(|out| out.len() == self.shape.rows), "outputs have the rows of the matrix");
    }

    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// The product with each panel by `panel`, which gets the panel's lines and offsets and returns
    /// sums without the 128 in the inputs. `finish` gets the number of the vector, the number of the
    /// panel, and its entries, which are still in the first cache. The product is added to `bias`, or
    /// without one to what `out` has.
    #[inline(always)]
    pub fn each_panel<const V: usize>(
        &self,
        factors: &[f32],
        bias: Option<&[f32]>,
        out: &mut [&mut [f32]],
        mut panel: impl FnMut(&[[Line; LINES]], &[i32; PANEL]) -> Sums<V>,
        mut finish: impl FnMut(usize, usize, &mut [f32]),
    ) {
        let per_panel = self.shape.columns / QUAD;
        let panels = self.lines.as_chunks::<LINES>().0.chunks_exact(per_panel).zip(self.offsets.as_chunks::<PANEL>().0);
        for (at, (lines, offsets)) in panels.enumerate() {
            let sums = panel(lines, offsets);
            let scales = &self.scales[at * PANEL..self.shape.rows.min((at + 1) * PANEL)];
            for (vector, sums) in sums.iter().enumerate() {
                let factor = factors[vector];
                let out = &mut out[vector][at * PANEL..][..scales.len()];
                let products = sums.iter().zip(scales).map(|(sum, scale)| *sum as f32 * (scale * factor));
                match bias {
                    Some(bias) => {
                        let entries = out.iter_mut().zip(&bias[at * PANEL..]).zip(products);
                        entries.for_each(|((out, bias), product)| *out = bias + product);
                    }
                    None => out.iter_mut().zip(products).for_each(|(out, product)| *out += product),
                }
                finish(vector, at, out);
            }
        }
    }
}

/// The scalar reference: sums of a panel for each input.
pub fn panel<const V: usize>(lines: &[[Line; LINES]], offsets: &[i32; PANEL], inputs: &[&[u8]; V]) -> Sums<V> {
    let mut sums = [*offsets; V];
    for (quad, lines) in lines.iter().enumerate() {
        for (sums, input) in sums.iter_mut().zip(inputs) {
            let input = &input[quad * QUAD..][..QUAD];
            for (row, codes) in lines.iter().flat_map(|line| line.0.as_chunks::<QUAD>().0).enumerate() {
                let products = codes.iter().zip(input).map(|(code, value)| i32::from(*code) * i32::from(*value));
                sums[row] += products.sum::<i32>();
            }
        }
    }
    sums
}
