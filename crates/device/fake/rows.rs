//! The kernel `cenote_rows`, one row after the other, by plain arithmetic.

use crate::machine::{at, words};
use cenote_device::rows::{RowGather, Stored};

/// The tables and the output of a launch: what must be known from the first.
pub fn memory(of: &RowGather) -> Vec<(u64, usize)> {
    let tokens = of.rows / of.heads.max(1);
    if tokens == 0 {
        return Vec::new();
    }
    let ids = (tokens as i64 - 1) * of.id_stride_token + (of.known_heads.min(of.heads) as i64 - 1) * of.id_stride_head;
    let end = (tokens - 1) * of.out_stride + of.heads * u64::from(out_bytes(of));
    vec![(of.ids, (ids + 1) as usize * of.id_bytes as usize), (of.out, end as usize), (of.starts, 8)]
}

const fn out_bytes(of: &RowGather) -> u32 {
    if matches!(of.stored, Stored::AsStored) { of.row_bytes } else { 2 * of.values }
}

/// Returns what a real GPU would not forgive.
pub fn execute(of: &RowGather, may_use: &dyn Fn(u64, usize) -> bool) -> Option<String> {
    let bytes = out_bytes(of) as usize;
    if of.stored != Stored::AsStored && !(of.out | of.out_stride).is_multiple_of(2) {
        return Some(format!("cenote_rows: values at an odd address, {:#x}", of.out));
    }
    for number in 0..of.rows {
        let (token, head) = (number / of.heads, number % of.heads);
        let row = if head < of.known_heads { number_at(of, token, head) } else { -1 };
        let mut output = vec![0; bytes];
        if (of.first_row..of.end_row).contains(&row) {
            let (extent, within) = (row as u64 / of.extent_rows, row as u64 % of.extent_rows);
            if !may_use(of.starts + 8 * extent, 8) {
                return Some(format!("cenote_rows: extent {extent} has no place"));
            }
            let from = of.region + words(of.starts + 8 * extent, 1)[0] + within * u64::from(of.row_bytes);
            if !may_use(from, of.row_bytes as usize) {
                return Some(format!("cenote_rows: row {row} at {from:#x}"));
            }
            // SAFETY: the row is in known memory.
            let stored = unsafe { std::slice::from_raw_parts(at(from), of.row_bytes as usize) };
            output = decoded(of, stored);
        }
        let to = of.out + token * of.out_stride + head * bytes as u64;
        // SAFETY: `memory` named the output, and `queue_kernel` checked it.
        unsafe { at(to).copy_from_nonoverlapping(output.as_ptr(), bytes) };
    }
    None
}

fn number_at(of: &RowGather, token: u64, head: u64) -> i64 {
    let place = token as i64 * of.id_stride_token + head as i64 * of.id_stride_head;
    let from = at(of.ids.wrapping_add_signed(place * i64::from(of.id_bytes)));
    // SAFETY: `memory` named the row numbers, and `queue_kernel` checked them.
    unsafe {
        match of.id_bytes {
            8 => from.cast::<i64>().read_unaligned(),
            _ => i64::from(from.cast::<i32>().read_unaligned()),
        }
    }
}

fn decoded(of: &RowGather, row: &[u8]) -> Vec<u8> {
    let values = of.values as usize;
    let halves = || row.chunks_exact(2).map(|half| u16::from_le_bytes([half[0], half[1]]));
    let bits: Vec<u16> = match of.stored {
        Stored::AsStored | Stored::Bf16 => return row.to_vec(),
        Stored::F16 => halves().map(|half| bf16(of_f16(half))).collect(),
        Stored::E4m3 => row.iter().map(|&code| bf16(of_e4m3(code) * of.scale)).collect(),
        Stored::E4m3Ue8m0 => {
            let (codes, scales) = row.split_at(values);
            let scale = |number: usize| f32::from_bits(u32::from(scales[number / 32]) << 23);
            codes.iter().enumerate().map(|(number, &code)| bf16(of_e4m3(code) * scale(number))).collect()
        }
    };
    bits.into_iter().flat_map(u16::to_le_bytes).collect()
}

/// The nearest bf16, ties to even.
fn bf16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fc0;
    }
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn of_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match exponent {
        15 if code & 7 == 7 => f32::NAN,
        0 => mantissa / 512.0,
        exponent => (1.0 + mantissa / 8.0) * 2_f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { size } else { -size }
}

fn of_f16(code: u16) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 10 & 31), f32::from(code & 1023));
    let size = match exponent {
        31 if code & 1023 != 0 => f32::NAN,
        31 => f32::INFINITY,
        0 => mantissa * 2_f32.powi(-24),
        exponent => (1.0 + mantissa / 1024.0) * 2_f32.powi(exponent - 15),
    };
    if code & 0x8000 == 0 { size } else { -size }
}
