//! Operations with hand-written gradients. Composed from candle's elementary operations, each would
//! pass over memory five to ten times. With one pass each, training on one core spends its time in
//! matrix products.
//!
//! Inputs and outputs are contiguous `f32` on the CPU. The tests compare every gradient with a
//! numeric one.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail};

use crate::lanes;

/// The values of a contiguous input.
pub fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("a fused operation needs contiguous input") };
    Ok(&storage.as_slice::<f32>()?[start..end])
}

/// An output.
pub fn made(values: Vec<f32>, shape: impl Into<Shape>) -> Result<(CpuStorage, Shape)> {
    Ok((CpuStorage::F32(values), shape.into()))
}

/// Softmax over the last dimension with a causal mask, for scores `[.., rows, T]`. Row `r` is at
/// position `r mod T` and sees columns `0..=r mod T`. The scores are multiplied by the scale first.
/// Masked entries are 0.
pub struct CausalSoftmax(pub f32);

impl CustomOp1 for CausalSoftmax {
    fn name(&self) -> &'static str {
        "causal-softmax"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let scores = values(storage, layout)?;
        let length = layout.dims().last().copied().unwrap_or(1);
        let mut out = vec![0.0; scores.len()];
        for (row, (scores, out)) in scores.chunks_exact(length).zip(out.chunks_exact_mut(length)).enumerate() {
            let seen = row % length + 1;
            let (scores, out) = (&scores[..seen], &mut out[..seen]);
            let largest = lanes::max(scores);
            for (out, score) in out.iter_mut().zip(scores) {
                *out = lanes::exp((score - largest) * self.0);
            }
            let scale = 1.0 / lanes::sum(out);
            out.iter_mut().for_each(|out| *out *= scale);
        }
        made(out, layout.shape().clone())
    }

    fn bwd(&self, _: &Tensor, res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(res.apply_op2_no_bwd(&grad.contiguous()?, &CausalSoftmaxBack(self.0))?))
    }
}

struct CausalSoftmaxBack(f32);

impl CustomOp2 for CausalSoftmaxBack {
    fn name(&self) -> &'static str {
        "causal-softmax-back"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let (probabilities, grads) = (values(s1, l1)?, values(s2, l2)?);
        let length = l1.dims().last().copied().unwrap_or(1);
        let mut out = vec![0.0; grads.len()];
        let rows = probabilities.chunks_exact(length).zip(grads.chunks_exact(length)).zip(out.chunks_exact_mut(length));
        for (row, ((p, g), out)) in rows.enumerate() {
            let seen = row % length + 1;
            let (p, g) = (&p[..seen], &g[..seen]);
            let mean = lanes::dot(p, g);
            for ((out, p), g) in out[..seen].iter_mut().zip(p).zip(g) {
                *out = p * (g - mean) * self.0;
            }
        }
        made(out, l1.shape().clone())
    }
}

/// `x · rsqrt(mean(x²) + eps) · weight` over the last dimension. `x` is `[.., D]`, `weight` `[D]`.
pub struct RmsNorm(pub f32);

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (values(s1, l1)?, values(s2, l2)?);
        let mut out = Vec::with_capacity(x.len());
        for x in x.chunks_exact(weight.len()) {
            let scale = inverse_rms(x, self.0);
            out.extend(x.iter().zip(weight).map(|(x, weight)| x * scale * weight));
        }
        made(out, l1.shape().clone())
    }

    fn bwd(&self, x: &Tensor, weight: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let grad = grad.contiguous()?;
        let dx = x.apply_op3_no_bwd(weight, &grad, &RmsNormBack(self.0))?;
        let dweight = x.apply_op2_no_bwd(&grad, &RmsNormWeightBack(self.0))?;
        Ok((Some(dx), Some(dweight)))
    }
}

fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (lanes::dot(x, x) / x.len() as f32 + eps).sqrt()
}

struct RmsNormBack(f32);

impl CustomOp3 for RmsNormBack {
    fn name(&self) -> &'static str {
        "rms-norm-back"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight, grad) = (values(s1, l1)?, values(s2, l2)?, values(s3, l3)?);
        let width = weight.len();
        let mut weighted = vec![0.0; width];
        let mut out = Vec::with_capacity(x.len());
        for (x, grad) in x.chunks_exact(width).zip(grad.chunks_exact(width)) {
            for ((weighted, grad), weight) in weighted.iter_mut().zip(grad).zip(weight) {
                *weighted = grad * weight;
            }
            let scale = inverse_rms(x, self.0);
            let mean = lanes::dot(x, &weighted) * scale * scale / width as f32;
            out.extend(x.iter().zip(&weighted).map(|(x, weighted)| scale * (weighted - x * mean)));
        }
        made(out, l1.shape().clone())
    }
}

struct RmsNormWeightBack(f32);

impl CustomOp2 for RmsNormWeightBack {
    fn name(&self) -> &'static str {
        "rms-norm-weight-back"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, grad) = (values(s1, l1)?, values(s2, l2)?);
        let width = l1.dims().last().copied().unwrap_or(1);
        let mut out = vec![0.0; width];
        for (x, grad) in x.chunks_exact(width).zip(grad.chunks_exact(width)) {
            let scale = inverse_rms(x, self.0);
            for ((out, x), grad) in out.iter_mut().zip(x).zip(grad) {
                *out += grad * x * scale;
            }
        }
        made(out, width)
    }
}

/// `silu(gate) · up`, the gate of Llama's feed-forward; both have the same shape.
pub struct SwiGlu;

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (values(s1, l1)?, values(s2, l2)?);
        let out = gate.iter().zip(up).map(|(gate, up)| gate * sigmoid(*gate) * up).collect();
        made(out, l1.shape().clone())
    }

    fn bwd(&self, gate: &Tensor, up: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let grad = grad.contiguous()?;
        let dup = gate.apply_op2_no_bwd(&grad, &SwiGlu)?;
        Ok((Some(gate.apply_op3_no_bwd(up, &grad, &SwiGluBack)?), Some(dup)))
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + lanes::exp(-x))
}

struct SwiGluBack;

impl CustomOp3 for SwiGluBack {
    fn name(&self) -> &'static str {
        "swiglu-back"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (gate, up, grad) = (values(s1, l1)?, values(s2, l2)?, values(s3, l3)?);
        let derivative = |gate: f32| {
            let s = sigmoid(gate);
            s * (1.0 + gate * (1.0 - s))
        };
        let out = gate.iter().zip(up).zip(grad).map(|((gate, up), grad)| grad * up * derivative(*gate)).collect();
        made(out, l1.shape().clone())
    }
}

/// Cosines and sines of the rotary embedding: `[positions, head_dim / 2]` each, row-major.
pub struct RopeTable {
    half: usize,
    cosine: Vec<f32>,
    sine: Vec<f32>,
}

impl RopeTable {
    /// Angles `position / theta^(2 i / head_dim)`, computed in `f64`.
    pub fn new(positions: usize, head_dim: usize, theta: f64) -> Self {
        let half = head_dim / 2;
        let angle = |index: usize| {
            let (position, pair) = (index / half, index % half);
            position as f64 / theta.powf(2.0 * pair as f64 / head_dim as f64)
        };
        let cosine = (0..positions * half).map(|index| angle(index).cos() as f32).collect();
        let sine = (0..positions * half).map(|index| angle(index).sin() as f32).collect();
        Self { half, cosine, sine }
    }
}

/// Rotates, and moves the head dimension forward: `[B, T, H, D]` → `[B, H, T, D]`. Its gradient is
/// the inverse operation.
///
/// The pairs are (`i`, `i + D/2`), as in Hugging Face's `rotate_half`, not (`2i`, `2i + 1`) as in
/// the RoFormer paper.
pub struct Rope {
    /// Table of at least `T` positions.
    pub table: Arc<RopeTable>,
    /// False for the inverse: `[B, H, T, D]` → `[B, T, H, D]` with the opposite angle.
    pub forward: bool,
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = values(storage, layout)?;
        let (batch, outer, inner, width) = layout.shape().dims4()?;
        let half = self.table.half;
        let positions = if self.forward { outer } else { inner };
        if width != 2 * half || positions * half > self.table.cosine.len() {
            bail!("rope: {positions} positions of width {width} do not fit the table");
        }
        let sign = if self.forward { 1.0 } else { -1.0 };
        let mut out = vec![0.0; x.len()];
        for (index, x) in x.chunks_exact(width).enumerate() {
            let (batch, first, second) = (index / (outer * inner), index / inner % outer, index % inner);
            let position = if self.forward { first } else { second };
            let target = ((batch * inner + second) * outer + first) * width;
            let (low, high) = out[target..target + width].split_at_mut(half);
            let cosine = &self.table.cosine[position * half..][..half];
            let sine = &self.table.sine[position * half..][..half];
            for pair in 0..half {
                let (a, b, c, s) = (x[pair], x[pair + half], cosine[pair], sign * sine[pair]);
                low[pair] = a * c - b * s;
                high[pair] = b * c + a * s;
            }
        }
        made(out, (batch, inner, outer, width))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let back = Rope { table: self.table.clone(), forward: !self.forward };
        Ok(Some(grad.contiguous()?.apply_op1_no_bwd(&back)?))
    }
}

/// Mean cross-entropy in nats for logits `[N, V]` and one target per row; the result is a scalar.
pub struct CrossEntropy(pub Arc<[u32]>);

impl CrossEntropy {
    fn check(&self, layout: &Layout) -> Result<usize> {
        let (rows, width) = layout.shape().dims2()?;
        if rows != self.0.len() || self.0.iter().any(|target| *target as usize >= width) {
            bail!("cross-entropy: {} targets do not fit logits [{rows}, {width}]", self.0.len());
        }
        Ok(width)
    }
}

/// Each row's cross-entropy in nats, for logits `[N, V]` and one target per row.
pub fn row_losses(logits: &[f32], targets: &[u32]) -> Vec<f32> {
    let rows = logits.chunks_exact(logits.len() / targets.len().max(1)).zip(targets);
    rows.map(|(row, target)| log_sum_exp(row) - row[*target as usize]).collect()
}

fn log_sum_exp(row: &[f32]) -> f32 {
    let largest = lanes::max(row);
    let mut lanes_sum = [0.0f32; 8];
    let (chunks, rest) = row.as_chunks::<8>();
    for chunk in chunks {
        for (sum, value) in lanes_sum.iter_mut().zip(chunk) {
            *sum += lanes::exp(value - largest);
        }
    }
    let rest = rest.iter().map(|value| lanes::exp(value - largest)).sum::<f32>();
    (lanes_sum.iter().sum::<f32>() + rest).ln() + largest
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.check(layout)?;
        let losses = row_losses(values(storage, layout)?, &self.0);
        let mean = losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / losses.len() as f64;
        made(vec![mean as f32], ())
    }

    fn bwd(&self, logits: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(logits.apply_op2_no_bwd(&grad.contiguous()?, &CrossEntropyBack(CrossEntropy(self.0.clone())))?))
    }
}

struct CrossEntropyBack(CrossEntropy);

impl CustomOp2 for CrossEntropyBack {
    fn name(&self) -> &'static str {
        "cross-entropy-back"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let width = self.0.check(l1)?;
        let (logits, targets) = (values(s1, l1)?, &self.0.0);
        let scale = values(s2, l2)?[0] / targets.len() as f32;
        let mut out = Vec::with_capacity(logits.len());
        for (row, target) in logits.chunks_exact(width).zip(targets.iter()) {
            let total = log_sum_exp(row);
            let start = out.len();
            out.extend(row.iter().map(|logit| scale * lanes::exp(logit - total)));
            out[start + *target as usize] -= scale;
        }
        made(out, l1.shape().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};
    use cenote_base::prng::Prng;

    fn random(shape: impl Into<Shape>, seed: u64) -> Tensor {
        let shape = shape.into();
        let mut prng = Prng::new(seed);
        let data = (0..shape.elem_count()).map(|_| (prng.next_f64() * 2.0 - 1.0) as f32).collect::<Vec<_>>();
        Tensor::from_vec(data, shape, &Device::Cpu).unwrap()
    }

    /// Compares the gradient of `sum(f(x) · w)` with central differences.
    fn check_gradient(x: &Tensor, f: impl Fn(&Tensor) -> Tensor) {
        let weights = random(f(x).shape().clone(), 99);
        let loss = |x: &Tensor| (f(x) * &weights).unwrap().sum_all().unwrap();
        let var = Var::from_tensor(x).unwrap();
        let grads = loss(&var).backward().unwrap();
        let analytic = grads.get(&var).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let base = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let step = 1e-2;
        for index in 0..base.len() {
            let at = |delta: f32| {
                let mut moved = base.clone();
                moved[index] += delta;
                let moved = Tensor::from_vec(moved, x.shape().clone(), &Device::Cpu).unwrap();
                loss(&moved).to_scalar::<f32>().unwrap()
            };
            let numeric = (at(step) - at(-step)) / (2.0 * step);
            assert!((numeric - analytic[index]).abs() < 2e-3, "element {index}: {numeric} {}", analytic[index]);
        }
    }

    #[test]
    fn gradients_equal_central_differences() {
        check_gradient(&random((2, 10, 5), 1), |x| x.apply_op1(CausalSoftmax(0.7)).unwrap());
        let weight = random(9, 2);
        check_gradient(&random((3, 9), 3), |x| x.apply_op2(&weight, RmsNorm(1e-5)).unwrap());
        let x = random((3, 9), 4);
        check_gradient(&weight, |weight| x.apply_op2(weight, RmsNorm(1e-5)).unwrap());
        let other = random((3, 9), 5);
        check_gradient(&x, |x| x.apply_op2(&other, SwiGlu).unwrap());
        check_gradient(&x, |x| other.apply_op2(x, SwiGlu).unwrap());
        let table = Arc::new(RopeTable::new(5, 8, 100.0));
        check_gradient(&random((2, 5, 3, 8), 6), |x| {
            x.apply_op1(Rope { table: table.clone(), forward: true }).unwrap()
        });
        let targets: Arc<[u32]> = Arc::from([3, 0, 11]);
        check_gradient(&random((3, 12), 7), |x| x.apply_op1(CrossEntropy(targets.clone())).unwrap());
    }

    #[test]
    fn softmax_masks_the_future_and_equal_logits_have_the_log_of_their_count_as_loss() {
        let out = random((1, 4, 4), 8).apply_op1(CausalSoftmax(1.0)).unwrap().to_vec3::<f32>().unwrap();
        for (row, values) in out[0].iter().enumerate() {
            assert!(values[row + 1..].iter().all(|value| *value == 0.0));
            assert!((values.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        assert!((row_losses(&[0.5; 24], &[3, 9])[1] - 12f32.ln()).abs() < 1e-6);
    }

    /// `rotate_half` of `transformers`: `x·cos + cat(−x[d/2..], x[..d/2])·sin`, with the angles
    /// repeated for both halves.
    #[test]
    fn rope_matches_rotate_half() {
        let (positions, width, theta) = (3usize, 4usize, 10_000f64);
        let x = random((1, positions, 1, width), 9);
        let table = Arc::new(RopeTable::new(positions, width, theta));
        let ours = x.apply_op1(Rope { table, forward: true }).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let x = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for position in 0..positions {
            let x = &x[position * width..][..width];
            let rotated = [-x[2], -x[3], x[0], x[1]];
            for index in 0..width {
                let angle = position as f64 * theta.powf(-2.0 * (index % 2) as f64 / width as f64);
                let expected = x[index] * angle.cos() as f32 + rotated[index] * angle.sin() as f32;
                assert!((ours[position * width + index] - expected).abs() < 1e-6);
            }
        }
    }
}
