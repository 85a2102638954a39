//! Value by value arithmetic in loops of fixed length, which the compiler turns into the vector
//! instructions of the function that it is inlined into.

/// Values of a vector; sums have one part for each.
pub const LANES: usize = 16;

/// Values of a block: those of a panel's rows.
pub const BLOCK: usize = super::matrix::PANEL;

/// Adding and subtracting 1.5 × 2^23 rounds to the nearest integer.
pub const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts, so that its multiples are subtracted almost without an error.
pub const LN2_HIGH: f32 = 0.693_359_4;
pub const LN2_LOW: f32 = -2.121_944_4e-4;
/// Taylor's series of e to the x: its sixth power to the first. The argument is at most ln 2 / 2.
pub const POWERS: [f32; 6] = [1.388_888_9e-3, 8.333_334e-3, 4.166_666_8e-2, 0.166_666_67, 0.5, 1.0];
/// Exponents are clamped, so that results are normal numbers.
pub const EXPONENT_MIN: f32 = -87.0;
pub const EXPONENT_MAX: f32 = 88.0;

/// e to the `x`, with a relative error below 1e-6. Fused operations have one rounding on every machine.
#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = if x > EXPONENT_MIN { x } else { EXPONENT_MIN };
    let x = if x < EXPONENT_MAX { x } else { EXPONENT_MAX };
    let biased = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let power = biased - ROUND;
    let rest = power.mul_add(-LN2_LOW, power.mul_add(-LN2_HIGH, x));
    let mut sum = POWERS[0];
    for factor in &POWERS[1..] {
        sum = sum.mul_add(rest, *factor);
    }
    let mantissa = sum.mul_add(rest, 1.0);
    let exponent = biased.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    mantissa * f32::from_bits(exponent)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (1.0 + exp(x + x))
}

#[inline(always)]
pub fn step_cells(gates: &[f32], memory: &mut [f32], shown: &mut [u8]) {
    let (input, rest) = gates.split_at(memory.len());
    let (forget, rest) = rest.split_at(memory.len());
    let (cell, output) = rest.split_at(memory.len());
    let vectors = memory.as_chunks_mut::<LANES>().0.iter_mut().zip(shown.as_chunks_mut::<LANES>().0);
    let gates = input.as_chunks::<LANES>().0.iter().zip(forget.as_chunks::<LANES>().0);
    let gates = gates.zip(cell.as_chunks::<LANES>().0.iter().zip(output.as_chunks::<LANES>().0));
    for ((memory, shown), ((input, forget), (cell, output))) in vectors.zip(gates) {
        for lane in 0..LANES {
            memory[lane] = sigmoid(forget[lane]) * memory[lane] + sigmoid(input[lane]) * tanh(cell[lane]);
            let value = 127.0 * (sigmoid(output[lane]) * tanh(memory[lane]));
            shown[lane] = ((value + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as u8) ^ 0x80;
        }
    }
}

/// A part of a distribution before all of it is known: each value is e to its difference from the
/// highest of the part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part {
    pub highest: f32,
    pub sum: f32,
}

/// The scalar reference of a maximum; negative infinity if none is a number.
pub fn highest(values: &[f32]) -> f32 {
    values.iter().copied().fold(f32::NEG_INFINITY, |highest, value| if value > highest { value } else { highest })
}

/// Turns the logits of a block, of which this is the highest, into a part.
#[inline(always)]
pub fn to_part(logits: &mut [f32], highest: f32) -> Part {
    // The compiler finds vectors in loops over slices, and not in unrolled ones over arrays.
    logits.iter_mut().for_each(|value| *value = exp(*value - highest));
    let mut sums = [0.0; BLOCK];
    sums[..logits.len()].copy_from_slice(logits);
    let mut count = BLOCK;
    while count > 1 {
        count /= 2;
        let (low, high) = sums[..2 * count].split_at_mut(count);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
    }
    Part { highest, sum: sums[0] }
}

/// Turns the parts of a distribution into probabilities. The highest probability of each part takes
/// the place of its highest logit.
#[inline(always)]
pub fn join(values: &mut [f32], parts: &mut [Part]) {
    let highest = parts.iter().fold(f32::NEG_INFINITY, |all, part| if part.highest > all { part.highest } else { all });
    parts.iter_mut().for_each(|part| part.highest = exp(part.highest - highest));
    let sum: f32 = parts.iter().map(|part| part.highest * part.sum).sum();
    let inverse = 1.0 / sum;
    for (values, part) in values.chunks_mut(BLOCK).zip(parts) {
        part.highest *= inverse;
        values.iter_mut().for_each(|value| *value *= part.highest);
    }
}
