//! The arithmetic modules against the processor's singles and the crate `half`.

use super::same;
use crate::bench::{Bench, Failure};
use cenote_base::prng::Prng;
use half::{bf16, f16};
use std::collections::VecDeque;

/// A single of any kind, often close to another one, so that sums cancel and round.
fn any(prng: &mut Prng, other: f32) -> f32 {
    let exponent = |prng: &mut Prng, from: u64, count: u64| ((from + prng.below(count)) as u32) << 23;
    let bits = prng.next_u64() as u32;
    match prng.below(8) {
        0 => f32::from_bits(bits),
        1 => f32::from_bits(bits & 0x807f_ffff),
        2 => f32::from_bits(other.to_bits() ^ (bits & 0x8000_0007)),
        3 => f16::from_bits(bits as u16).to_f32(),
        4 => f32::from(bits as i8) * 0.5,
        5 => 0.0_f32.copysign(f32::from_bits(bits)),
        // Around one.
        _ => f32::from_bits((bits & 0x807f_ffff) | exponent(prng, 110, 30)),
    }
}

/// The integer of `to_int`: nearest, ties to even, saturated to ±255.
fn rounded(value: f32) -> u32 {
    (value.round_ties_even().clamp(-255.0, 255.0) as i32).cast_unsigned() & 0x1ff
}

/// Sum, product, conversions and quotient of random numbers.
///
/// # Errors
/// A bit differs.
pub fn arithmetic(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut bench = Bench::new("float_bench", seed);
    bench.reset();
    let pins =
        ["a", "b", "sum", "sum_half", "sum_bfloat", "sum_int", "product", "widened", "quotient", "done", "start"];
    let [a, b, sum, sum_half, sum_bfloat, sum_int, product, widened, quotient, done, start] =
        pins.map(|name| bench.model.pin(name));
    bench.model.set(start, 0);
    for _ in 0..400 * rounds {
        let first = any(&mut prng, 1.0);
        let second = any(&mut prng, first);
        bench.model.set(a, first.to_bits());
        bench.model.set(b, second.to_bits());
        for _ in 0..4 {
            bench.step()?;
        }
        let (exact_sum, exact_product) = (first + second, first * second);
        let finite = first.is_finite() && second.is_finite();
        let what = format!("{first:e} ({:08x}) and {second:e} ({:08x})", first.to_bits(), second.to_bits());
        // The modules keep 24 bits below 2^-126, where singles do not.
        let is_normal = |value: f32| value == 0.0 || value.abs() >= f32::MIN_POSITIVE;
        if finite && is_normal(exact_sum) {
            same(&format!("sum of {what}"), &bench.model.get(sum), &exact_sum.to_bits())?;
        }
        let vanishes = exact_product == 0.0 && first != 0.0 && second != 0.0;
        if finite && is_normal(exact_product) && !vanishes {
            same(&format!("product of {what}"), &bench.model.get(product), &exact_product.to_bits())?;
        }
        if finite {
            let half = u32::from(f16::from_f32(exact_sum).to_bits());
            same(&format!("half of the sum of {what}"), &bench.model.get(sum_half), &half)?;
            let bfloat = u32::from(bf16::from_f32(exact_sum).to_bits());
            same(&format!("bfloat of the sum of {what}"), &bench.model.get(sum_bfloat), &bfloat)?;
            same(&format!("integer of the sum of {what}"), &bench.model.get(sum_int), &rounded(exact_sum))?;
        }
        let half = f16::from_bits(first.to_bits() as u16);
        if half.is_finite() {
            same(
                &format!("single of half {:04x}", half.to_bits()),
                &bench.model.get(widened),
                &half.to_f32().to_bits(),
            )?;
        }
    }
    for _ in 0..20 * rounds {
        let first = any(&mut prng, 1.0);
        let second = any(&mut prng, first);
        let exact = first / second;
        if !first.is_finite() || !second.is_finite() || !exact.is_normal() {
            continue;
        }
        bench.model.set(a, first.to_bits());
        bench.model.set(b, second.to_bits());
        bench.model.set(start, 1);
        bench.step()?;
        bench.model.set(start, 0);
        bench.run(40, |bench| bench.model.get(done) == 1)?;
        same(&format!("quotient of {first:e} and {second:e}"), &bench.model.get(quotient), &exact.to_bits())?;
        bench.step()?;
    }
    quotients(&mut bench, &mut prng, rounds)
}

/// Cycles of the divider with a stage for each bit.
const DIVISION: usize = 27;

/// Quotients of a new pair in every cycle.
fn quotients(bench: &mut Bench, prng: &mut Prng, rounds: u64) -> Result<(), Failure> {
    let [a, b, quotient] = ["a", "b", "quotient_pipe"].map(|name| bench.model.pin(name));
    let mut inside = VecDeque::new();
    for _ in 0..200 * rounds {
        let first = any(prng, 1.0);
        let second = any(prng, first);
        bench.model.set(a, first.to_bits());
        bench.model.set(b, second.to_bits());
        bench.step()?;
        inside.push_back((first, second));
        if inside.len() < DIVISION {
            continue;
        }
        let Some((first, second)) = inside.pop_front() else { continue };
        let (exact, rtl) = (first / second, bench.model.get(quotient));
        if first.is_finite() && second.is_finite() && exact.is_normal() {
            same(&format!("quotient of {first:e} and {second:e}, in a row"), &rtl, &exact.to_bits())?;
        }
        if first.is_finite() && second == 0.0 {
            same(&format!("quotient of {first:e} and zero"), &(rtl << 1), &0)?;
        }
    }
    Ok(())
}
