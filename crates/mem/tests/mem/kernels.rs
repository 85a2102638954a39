//! The kernels for GPUs, compiled for the processor, against this crate's checksum.
//! `crates/device/kernels/on_processor.cpp` states the form of a job.

use cenote_base::prng::Prng;
use cenote_base::testing::skip;
use cenote_mem::checksum::{ACCUMULATORS, checksum, fold_lanes, lane_keys};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../device/kernels");
const SUMS: u64 = 0;
const MOVE: u64 = 1;

/// Jobs for the program that runs the kernels.
#[derive(Default)]
struct Jobs {
    input: Vec<u8>,
}

/// The words of a job before its tables, but for the kernel and the size of its memory.
#[derive(Clone, Copy, Debug)]
struct Shape {
    grid: u64,
    order: u64,
    page_bytes: u64,
    pages_per_block: u64,
    count: u64,
}

impl Jobs {
    fn add(&mut self, kernel: u64, shape: Shape, tables: &[&[u64]], memory: &[u8]) {
        let Shape { grid, order, page_bytes, pages_per_block, count } = shape;
        let head = [kernel, grid, order, page_bytes, pages_per_block, count, memory.len() as u64];
        for word in head.iter().chain(tables.iter().copied().flatten()) {
            self.input.extend(word.to_le_bytes());
        }
        self.input.extend(memory);
    }

    /// The program's output. None, after a visible skip, if there is no C++ compiler.
    fn run(self) -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("on_processor");
        let source = Path::new(KERNELS).join("on_processor.cpp");
        let flags = ["-std=c++17", "-O1", "-Wno-unknown-pragmas", "-o"];
        let Ok(built) = Command::new("c++").args(flags).arg(&program).arg(source).output() else {
            skip("no C++ compiler, so the kernels for GPUs are not run on the processor");
            return None;
        };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        let (mut stdin, mut stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let writer = thread::spawn(move || stdin.write_all(&self.input));
        let mut output = Vec::new();
        stdout.read_to_end(&mut output).expect("its output");
        assert!(child.wait().expect("it ends").success(), "the program failed; its message is above");
        writer.join().expect("no panic").expect("it reads all jobs");
        Some(output)
    }
}

/// Distinct places for pages in a memory that has room for a few more, in random order.
fn places(prng: &mut Prng, count: usize, page_bytes: u64, align: u64) -> (Vec<u64>, usize) {
    let slot = page_bytes + align;
    let mut slots: Vec<u64> = (0..count as u64 + 2).collect();
    for at in (1..slots.len()).rev() {
        slots.swap(at, prng.below(at as u64 + 1) as usize);
    }
    let memory = slots.len() * slot as usize;
    (slots[..count].iter().map(|number| number * slot).collect(), memory)
}

fn random(prng: &mut Prng, len: usize) -> Vec<u8> {
    (0..len).map(|_| prng.next_u64() as u8).collect()
}

/// Page sizes and pages of a block: whole and partial groups of 16 lines, pages that end in a group,
/// one tile of 32 groups, some tiles, and a last tile that is not full.
const SHAPES: [(u64, u64); 16] = [
    (64, 0),
    (64, 1),
    (64, 15),
    (64, 16),
    (64, 1025),
    (192, 7),
    (960, 40),
    (1024, 1),
    (1024, 32),
    (1024, 33),
    (1088, 61),
    (8192, 5),
    (18_432, 3),
    (32_768, 2),
    (65_536, 2),
    (65_600, 3),
];

#[test]
fn the_kernel_for_gpus_sums_as_the_processor_does() {
    let (mut jobs, mut prng, mut wanted) = (Jobs::default(), Prng::new(42), Vec::new());
    for (page_bytes, pages_per_block) in SHAPES {
        for (blocks, grid) in [(1_usize, 1), (3, 2), (2, 5)] {
            let count = blocks * pages_per_block as usize;
            let (table, len) = places(&mut prng, count, page_bytes, 64);
            let mut memory = random(&mut prng, len);
            if blocks == 2 {
                // The largest words make every addition carry.
                memory.fill(0xff);
            }
            let keys: Vec<u64> = (0..blocks).map(|_| prng.next_u64()).collect();
            let lanes: Vec<u64> = keys.iter().flat_map(|&key| lane_keys(key)).collect();
            let shape = Shape { grid, order: prng.next_u64(), page_bytes, pages_per_block, count: blocks as u64 };
            jobs.add(SUMS, shape, &[&table, &lanes], &memory);
            for (block, &key) in keys.iter().enumerate() {
                let pages = &table[block * pages_per_block as usize..][..pages_per_block as usize];
                let page = |&at: &u64| &memory[at as usize..][..page_bytes as usize];
                let payload: Vec<u8> = pages.iter().flat_map(page).copied().collect();
                wanted.push((shape, key, payload.len() as u64, checksum(&payload, key)));
            }
        }
    }
    let Some(output) = jobs.run() else { return };
    let words: Vec<u64> =
        output.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
    assert_eq!(words.len(), wanted.len() * ACCUMULATORS);
    for (accumulators, (shape, key, bytes, sum)) in words.chunks_exact(ACCUMULATORS).zip(wanted) {
        let accumulators = accumulators.try_into().expect("24 words");
        assert_eq!(fold_lanes(accumulators, bytes, key), sum, "{shape:?}, key {key}");
    }
}

#[test]
fn the_kernel_for_gpus_moves_exactly_the_pages() {
    let (mut jobs, mut prng, mut wanted) = (Jobs::default(), Prng::new(43), Vec::new());
    for page_bytes in [1_u64, 64, 100, 1000, 4096, 4104, 20_000] {
        for (pages, grid, align) in [(1_usize, 3, 16), (9, 2, 16), (7, 7, 8), (5, 1, 1)] {
            let (slots, len) = places(&mut prng, 2 * pages, page_bytes.next_multiple_of(align), align);
            let (to, from) = slots.split_at(pages);
            let memory = random(&mut prng, len);
            let shape = Shape { grid, order: prng.next_u64(), page_bytes, pages_per_block: 1, count: pages as u64 };
            jobs.add(MOVE, shape, &[to, from], &memory);
            let mut after = memory.clone();
            for (&to, &from) in to.iter().zip(from) {
                after.copy_within(from as usize..(from + page_bytes) as usize, to as usize);
            }
            wanted.push((shape, after));
        }
    }
    let Some(output) = jobs.run() else { return };
    let mut rest = &output[..];
    for (shape, after) in wanted {
        let (moved, more) = rest.split_at(after.len());
        assert!(moved == after, "{shape:?}");
        rest = more;
    }
    assert!(rest.is_empty());
}
