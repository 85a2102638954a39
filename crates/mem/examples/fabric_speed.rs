//! Speed of both fabrics against the memory's own, in one run over the same shared memory.
//!
//! `cargo run --release -p cenote-mem --example fabric_speed [-- ROUNDS]`. Ratios are speeds over
//! the limit: the faster of `memcpy` and of a plain copy around the cache, in the same direction.
//! Blocks rotate through a region that no cache holds a significant part of. The methods alternate,
//! so that load from other programs affects all of them.
#![allow(clippy::print_stdout)]

use cenote_mem::checksum::Level;
use cenote_mem::{Fabric, Flush, MapOptions, Mapped, Mapping, Offset, RegionSource};
use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::time::Instant;

const REGION_BYTES: usize = 512 << 20;
/// Area of the lines: as large as a region's control structures, so that the processor's TLB holds
/// most of their addresses.
const CONTROL_BYTES: u64 = 4 << 20;
const LINES_TIMED: usize = 20_000;

/// A second mapping of the region, as bare memory.
struct Bare(*mut u8);

impl Bare {
    fn map(file: &File) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: the call creates a mapping of a file of this length, at an address that the
        // kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), REGION_BYTES, protection, flags, file.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED, "mapped");
        Self(base.cast())
    }

    fn at(&self, at: u64, len: usize) -> *mut u8 {
        assert!(at as usize + len <= REGION_BYTES && len.is_multiple_of(64));
        // SAFETY: inside the mapping, as asserted.
        unsafe { self.0.add(at as usize) }
    }

    fn copy_out(&self, at: u64, to: &mut [u8], around: bool) {
        let (from, len) = (self.at(at, to.len()), to.len());
        // SAFETY: `at` checked the bounds, and no other thread writes meanwhile.
        unsafe { copy(from, to.as_mut_ptr(), len, around) };
    }

    fn copy_in(&self, at: u64, from: &[u8], around: bool) {
        let to = self.at(at, from.len());
        // SAFETY: as in `copy_out`.
        unsafe { copy(from.as_ptr(), to, from.len(), around) };
    }
}

/// # Safety
/// Callers must guarantee that `len` bytes, a multiple of 64, are readable and writable and do not
/// overlap.
unsafe fn copy(from: *const u8, to: *mut u8, len: usize, around: bool) {
    // SAFETY: callers guarantee both ranges of `len` bytes, a multiple of 64.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if around && std::is_x86_feature_detected!("avx2") {
            return copy_around(from, to, len);
        }
        let _ = around;
        std::ptr::copy_nonoverlapping(from, to, len);
    }
}

/// # Safety
/// As for [`copy`]; the machine must have AVX2 and `to` must be aligned to 32 bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[allow(clippy::cast_ptr_alignment, reason = "callers guarantee the alignment")]
unsafe fn copy_around(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    assert!(to.addr().is_multiple_of(32));
    for at in (0..len).step_by(64) {
        // SAFETY: callers guarantee the ranges, the alignment of `to` and AVX2.
        unsafe {
            let first = _mm256_loadu_si256(from.add(at).cast());
            let second = _mm256_loadu_si256(from.add(at + 32).cast());
            _mm256_stream_si256(to.add(at).cast(), first);
            _mm256_stream_si256(to.add(at + 32).cast(), second);
        }
    }
    _mm_sfence();
}

/// Private memory half a page away from the region's page offsets. Some processors' `memcpy` is
/// several times slower if source and destination have nearly the same page offset, which is not
/// measured here.
struct Private {
    memory: Vec<u8>,
    block: usize,
    blocks: usize,
    turn: usize,
}

impl Private {
    fn new(block: usize, blocks: usize) -> Self {
        Self { memory: vec![0x5a; (block + 4096) * (blocks + 1)], block, blocks, turn: 0 }
    }

    fn next(&mut self) -> &mut [u8] {
        self.turn = (self.turn + 1) % self.blocks;
        let first = self.memory.as_ptr().addr().wrapping_neg() % 4096 + 2048;
        let start = first + self.turn * self.block.next_multiple_of(4096);
        &mut self.memory[start..start + self.block]
    }
}

/// An operation on a place of the region and a private buffer.
type Way<'a> = Box<dyn FnMut(u64, &mut [u8]) + 'a>;

fn median(mut list: Vec<f64>) -> f64 {
    list.sort_by(f64::total_cmp);
    list[list.len() / 2]
}

fn payload_table(bare: &Bare, coherent: &Mapped, flushed: &Mapped, private_bytes: usize, rounds: usize) {
    for block in [256 << 10, 1 << 20, 4 << 20] {
        let blocks = REGION_BYTES / block;
        let mut private = Private::new(block, (private_bytes / block).max(1));
        let len = block as u64;
        let mut ways: [(&str, Way<'_>); 10] = [
            ("memcpy out", Box::new(|at, to| bare.copy_out(at, to, false))),
            ("around out", Box::new(|at, to| bare.copy_out(at, to, true))),
            (
                "get Coherent",
                Box::new(|at, to| {
                    black_box(coherent.read_payload(at, &mut [to], 1));
                }),
            ),
            (
                "get Flushed, seen",
                Box::new(|at, to| {
                    black_box(flushed.read_payload(at, &mut [to], 1));
                }),
            ),
            (
                "get Flushed, first",
                Box::new(|at, to| {
                    flushed.refresh_payload(at, len);
                    black_box(flushed.read_payload(at, &mut [to], 1));
                }),
            ),
            ("sweep alone", Box::new(|at, _| flushed.refresh_payload(at, len))),
            ("memcpy in", Box::new(|at, from| bare.copy_in(at, from, false))),
            ("around in", Box::new(|at, from| bare.copy_in(at, from, true))),
            (
                "put Coherent",
                Box::new(|at, from| {
                    black_box(coherent.write_payload(at, &[from], 1));
                    coherent.publish_payload();
                }),
            ),
            (
                "put Flushed",
                Box::new(|at, from| {
                    black_box(flushed.write_payload(at, &[from], 1));
                    flushed.publish_payload();
                }),
            ),
        ];
        let mut times = [const { Vec::new() }; 10];
        let mut turn = 0_u64;
        for round in 0..rounds {
            // Each method pays for what its predecessor left in the caches, so each follows every
            // other one.
            let step = [1, 3, 7, 9][round % 4];
            for turn_of_round in 0..ways.len() {
                let index = (turn_of_round * step + round) % ways.len();
                let way = &mut ways[index].1;
                let at = turn * 7919 % blocks as u64 * block as u64;
                turn += 1;
                let warm = private.blocks == 1;
                let private = private.next();
                if warm {
                    // A method that writes around the cache must not evict the buffer for the next
                    // one.
                    private.fill(turn as u8);
                }
                let start = Instant::now();
                way(at, private);
                times[index].push(start.elapsed().as_secs_f64());
            }
        }
        let times = times.map(median);
        for (index, (name, _)) in ways.iter().enumerate() {
            let limit = if index < 6 { times[0].min(times[1]) } else { times[6].min(times[7]) };
            println!(
                "{:<9} {name:<19} {:>9.1} us {:>7.1} GB/s {:>6.2}x",
                format!("{} KiB", block >> 10),
                times[index] * 1e6,
                block as f64 / times[index] / 1e9,
                limit / times[index],
            );
        }
    }
}

/// Prints percentiles of an operation on lines all over an area, minus the cost of reading the
/// clock.
fn line_row(name: &str, per: usize, mut operation: impl FnMut(u64)) {
    let lines = CONTROL_BYTES / 64;
    let mut list = Vec::with_capacity(LINES_TIMED);
    let mut clock = Vec::with_capacity(LINES_TIMED);
    for turn in 0..LINES_TIMED as u64 {
        let start = Instant::now();
        clock.push(start.elapsed().as_nanos() as f64);
        let at = turn * 1_000_003 % (lines - 64) * 64;
        let start = Instant::now();
        operation(at);
        list.push(start.elapsed().as_nanos() as f64);
    }
    let clock = median(clock);
    list.sort_by(f64::total_cmp);
    let at = |part: f64| (list[(list.len() as f64 * part) as usize] - clock).max(0.0) / per as f64;
    println!("{name:<40} {:>7.0} {:>7.0} {:>7.0} ns", at(0.5), at(0.99), at(0.999));
}

fn line_table(coherent: &Mapped, flushed: &Mapped) {
    for (fabric, name) in [(coherent, "Coherent"), (flushed, "Flushed")] {
        line_row(&format!("{name}: publish_line, cold line"), 1, |at| fabric.publish_line(at, &[at; 8]));
        line_row(&format!("{name}: publish_line, one line"), 1, |_| fabric.publish_line(0, &[1; 8]));
        line_row(&format!("{name}: store_line + publish, cold line"), 1, |at| {
            fabric.store_line(at, &[at; 8]);
            fabric.publish(&[at]);
        });
        line_row(&format!("{name}: store + publish, one line"), 1, |_| {
            fabric.store(Offset::new(0), 1);
            fabric.publish(&[0]);
        });
        line_row(&format!("{name}: refresh + load"), 1, |at| {
            fabric.refresh(&[at]);
            black_box(fabric.load_line(at));
        });
        line_row(&format!("{name}: refresh + load of 64, per line"), 64, |at| {
            let lines: [u64; 64] = std::array::from_fn(|index| at + 64 * index as u64);
            fabric.refresh(&lines);
            for line in lines {
                black_box(fabric.load_line(line));
            }
        });
        line_row(&format!("{name}: refresh of 64, per line"), 64, |at| {
            let lines: [u64; 64] = std::array::from_fn(|index| at + 64 * index as u64);
            fabric.refresh(&lines);
        });
    }
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(100, |text| text.parse().expect("a number of rounds"));
    let source = RegionSource::Shm(format!("cenote-fabric-speed-{}", std::process::id()));
    let options = MapOptions { prefault: true, ..MapOptions::default() };
    let first = Mapping::create(&source, REGION_BYTES as u64, 0o600, &options).expect("memory is mapped");
    let second = Mapping::open(&source, &options).expect("memory is mapped twice");
    let path = source.path().expect("shared memory has a path");
    let file = File::options().read(true).write(true).open(path).expect("memory is opened");
    Mapping::remove(&source).expect("the name is removed");
    let bare = Bare::map(&file);
    let flush = Flush::best().expect("the processor has a flush instruction");
    let coherent = Mapped::new(first, Flush::None).expect("needs no instruction");
    let flushed = Mapped::new(second, flush).expect("the processor has it");
    let filler = vec![0x33; 1 << 20];
    for at in (0..REGION_BYTES as u64).step_by(filler.len()) {
        coherent.write_payload(at, &[&filler], 0);
        flushed.write_payload(at, &[&filler], 0);
    }
    println!("kernel {}, {flush}, {rounds} rounds, medians", Level::chosen().name());
    println!("-- one private buffer, in the cache as far as it fits");
    payload_table(&bare, &coherent, &flushed, 0, rounds);
    println!("-- private buffers that rotate through 128 MiB");
    payload_table(&bare, &coherent, &flushed, 128 << 20, rounds);
    println!("-- lines of {} MiB: p50, p99, p99.9, less the clock's own time", CONTROL_BYTES >> 20);
    line_table(&coherent, &flushed);
}
