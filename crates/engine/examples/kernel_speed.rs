//! Prints the speed of this crate's matrix product and of candle's, at prefill and decode shapes.
//!
//! `cargo run --release -p cenote-engine --example kernel_speed -- [threads]`
#![allow(clippy::print_stdout, reason = "an example prints")]

use candle_core::{DType, Device, Tensor};
use cenote_engine::kernels::ElementType;
use cenote_engine::kernels::gemm::{PackedMatrix, matmul};
use std::time::Instant;

/// Best of seven runs after a warm-up, in seconds.
fn best(mut work: impl FnMut()) -> f64 {
    work();
    (0..7)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::MAX, f64::min)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    println!("{threads} threads; GFLOP/s");
    println!("{:>18} {:>8} {:>8} {:>8}", "m x n x k", "f32", "bf16", "candle");
    for (m, n, k) in [
        (512, 2048, 2048),
        (512, 5632, 2048),
        (512, 1536, 512),
        (64, 2048, 2048),
        (4, 2048, 2048),
        (1, 2048, 2048),
        (1, 512, 512),
    ] {
        let w = Tensor::randn(0_f32, 1., (n, k), &Device::Cpu)?;
        let x = Tensor::randn(0_f32, 1., (m, k), &Device::Cpu)?;
        let (rows, values) = (w.flatten_all()?.to_vec1::<f32>()?, x.flatten_all()?.to_vec1::<f32>()?);
        let gflops = |seconds: f64| 2.0 * (m * n * k) as f64 / seconds / 1e9;
        let mut out = vec![0.0; m * n];
        let ours = [ElementType::F32, ElementType::Bf16].map(|element| {
            let packed = PackedMatrix::pack(&rows, n, k, element);
            gflops(best(|| matmul(&values, m, &packed, None, &mut out)))
        });
        let transposed = w.t()?.to_dtype(DType::F32)?;
        let candle = gflops(best(|| drop(x.matmul(&transposed))));
        println!("{:>18} {:8.1} {:8.1} {candle:8.1}", format!("{m}x{n}x{k}"), ours[0], ours[1]);
    }
    Ok(())
}
