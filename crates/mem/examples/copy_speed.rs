//! Payload copy speeds: medians of plain `memcpy`, of the copy that also sums, of the check in
//! place and of the write around the cache, for blocks from DRAM and from the cache.
//!
//! `cargo run --release -p cenote-mem --example copy_speed`; `CENOTE_SIMD=scalar|avx2|avx512|neon`
//! selects the kernel. Ratios are to the memcpy of the same line.
#![allow(clippy::print_stdout)]

use cenote_base::prng::Prng;
use cenote_mem::checksum::Level;
use cenote_mem::{Coherent, Fabric, MapOptions, Mapping, RegionSource};
use std::hint::black_box;
use std::time::Instant;

/// Large enough that no cache holds a significant part of it.
const REGION_BYTES: u64 = 512 << 20;
const ROUNDS: usize = 400;

/// Medians, in seconds, of several methods for the same work. The methods alternate, so that load
/// from other programs affects all of them. `warm` first runs each method once untimed, so that
/// source and destination are in the cache.
fn medians<const N: usize>(mut ways: [&mut dyn FnMut(u64); N], warm: bool, places: impl Fn(usize) -> u64) -> [f64; N] {
    let mut times = [const { Vec::new() }; N];
    for round in 0..ROUNDS {
        for (index, way) in ways.iter_mut().enumerate() {
            let at = places(round * N + index);
            if warm {
                way(at);
            }
            let start = Instant::now();
            way(at);
            times[index].push(start.elapsed().as_secs_f64());
        }
    }
    times.map(|mut list| {
        list.sort_by(f64::total_cmp);
        list[list.len() / 2]
    })
}

/// A buffer half a page away from the region's page offsets. Some processors' `memcpy` is several
/// times slower if source and destination have nearly the same page offset, which is not measured
/// here.
fn half_a_page_off(buffer: &mut [u8], bytes: usize) -> &mut [u8] {
    let start = (buffer.as_ptr() as usize).wrapping_neg() % 4096 + 2048;
    &mut buffer[start..start + bytes]
}

fn main() {
    let fabric = Coherent::new(
        Mapping::create(&RegionSource::Anon, REGION_BYTES, 0o600, &MapOptions::default()).expect("memory is mapped"),
    );
    let mut prng = Prng::new(1);
    let filler: Vec<u8> = (0..1 << 20).map(|_| prng.next_u64() as u8).collect();
    (0..REGION_BYTES).step_by(1 << 20).for_each(|at| {
        fabric.write_payload(at, &[&filler], 0);
    });
    fabric.publish_payload();

    println!("kernel {}, {} rounds, medians", Level::chosen().name(), ROUNDS);
    println!(
        "{:<8} {:<7} {:>10} {:>8} {:>8} {:>8} {:>10} {:>8}",
        "block", "source", "memcpy", "GB/s", "read", "check", "memcpy in", "write"
    );
    for bytes in [4 << 10, 64 << 10, 256 << 10, 1 << 20] {
        for cached in [false, true] {
            let blocks = REGION_BYTES / bytes as u64;
            let places = |turn: usize| if cached { 0 } else { turn as u64 * 7919 % blocks * bytes as u64 };
            let mut buffers = [(); 3].map(|()| vec![0_u8; bytes + 8192]);
            let [to, sums, from] = buffers.each_mut().map(|buffer| half_a_page_off(buffer, bytes));
            from.copy_from_slice(&filler[..bytes]);
            let from = &*from;
            let [copy, read, check, copy_in, write] = medians(
                [
                    &mut |at| fabric.copy_plain_out(at, black_box(to)),
                    &mut |at| {
                        black_box(fabric.read_payload(at, &mut [black_box(sums)], 1));
                    },
                    &mut |at| {
                        black_box(fabric.checksum_payload(at, bytes as u64, 1));
                    },
                    &mut |at| fabric.copy_plain_in(at, black_box(from)),
                    &mut |at| {
                        black_box(fabric.write_payload(at, &[black_box(from)], 1));
                        fabric.publish_payload();
                    },
                ],
                cached,
                places,
            );
            println!(
                "{:<8} {:<7} {:>7.2} us {:>8.1} {:>7.2}x {:>7.2}x {:>7.2} us {:>7.2}x",
                format!("{} KiB", bytes >> 10),
                if cached { "cache" } else { "DRAM" },
                copy * 1e6,
                bytes as f64 / copy / 1e9,
                copy / read,
                copy / check,
                copy_in * 1e6,
                copy_in / write,
            );
        }
    }
}
