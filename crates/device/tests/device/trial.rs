//! The trial at start that decides whether loads pass through the GPU's buffer.

use crate::rig::{Gpu, share};
use cenote_base::testing::{ManualTime, PATIENCE};
use cenote_device::layout::{Layer, Layout};
use cenote_device::memory::Staging;
use cenote_device::mover::{Mover, Settings};
use std::sync::Arc;

const COPY: &str = "cuMemcpyBatchAsync";
/// Bytes of the slots, and of the buffer's half for loads: enough for a trial.
const BUFFER: u64 = 9 << 20;

/// A mover of pages of so many bytes, with such a half of a buffer, on a GPU whose `COPY` fails after so many
/// calls.
fn start(gpu: &Gpu, page: u64, half: u64, fails_after: u64) -> Mover {
    let clock = ManualTime::start().clock();
    let device = gpu.open(clock);
    let blocks = vec![0_u64; 4 * page as usize / 8];
    gpu.know(&blocks);
    let at = blocks.as_ptr().expose_provenance() as u64;
    let layer = Layer { address: at, stride: page, runs: vec![(0, page)] };
    let layout = Layout::new(&[layer], 4, &[(at, 4 * page)]).expect("a layout");
    let staging = Staging::new(&device, page as usize, BUFFER as usize).expect("slots");
    let registered = || share(&device, &Arc::new(vec![0; 512]), 1 << 30, clock);
    gpu.fail(COPY, fails_after);
    let (threads, gpu_buffer_bytes) = (2, 2 * half);
    let settings = Settings { threads, backlog_bytes: 0, gpu_buffer_bytes, scatter_below: None, clock };
    Mover::start(&device, layout, staging, Some(registered), settings, || ()).expect("threads")
}

#[test]
fn a_trial_under_a_clock_that_stands_still_leaves_it_to_the_size_of_pages() {
    for (page, scatters) in [(8 << 10, true), ((32 << 10) - 64, true), (32 << 10, false), (256 << 10, false)] {
        let gpu = Gpu::new(page);
        let mover = start(&gpu, page, BUFFER, u64::MAX);
        assert_eq!((mover.why_no_kernels(), mover.scatters()), ("", scatters), "pages of {page} bytes");
        // Three rounds of whole blocks and of pages, two copies when the driver was opened, and two when the
        // kernel was tried.
        let calls = 3 * (1 + (BUFFER / page).div_ceil(256)) + 4;
        assert_eq!(gpu.calls(COPY), calls, "pages of {page} bytes");
        assert!(mover.close(PATIENCE));
        assert_eq!((gpu.locked(), gpu.allocations(), gpu.wrong()), (0, 0, String::new()));
    }
}

#[test]
fn the_trial_of_kernels_takes_little_memory_whatever_the_pages() {
    let gpu = Gpu::new(4);
    gpu.allocate_max(BUFFER as usize);
    let mover = start(&gpu, 4 << 20, BUFFER, u64::MAX);
    assert_eq!(mover.why_no_kernels(), "");
    assert!(mover.close(PATIENCE));
    assert_eq!((gpu.locked(), gpu.allocations(), gpu.wrong()), (0, 0, String::new()));
}

/// The reason against kernels, and the blocks of a part, for two layers with pages of these sizes.
fn unequal(pages: [u64; 2]) -> (String, usize) {
    let (gpu, clock) = (Gpu::new(5), ManualTime::start().clock());
    let device = gpu.open(clock);
    let blocks = vec![0_u64; (pages[0] + pages[1]) as usize / 8];
    gpu.know(&blocks);
    let start = blocks.as_ptr().expose_provenance() as u64;
    let layers = [(start, pages[0]), (start + pages[0], pages[1])];
    let layers = layers.map(|(address, page)| Layer { address, stride: page, runs: vec![(0, page)] });
    let block = pages[0] + pages[1];
    let layout = Layout::new(&layers, 1, &[(start, block)]).expect("a layout");
    let staging = Staging::new(&device, block as usize, block as usize).expect("slots");
    let registered = || share(&device, &Arc::new(vec![0; 512]), 1 << 30, clock);
    let (threads, gpu_buffer_bytes) = (2, 128 * block);
    let settings = Settings { threads, backlog_bytes: 0, gpu_buffer_bytes, scatter_below: Some(0), clock };
    let mover = Mover::start(&device, layout, staging, Some(registered), settings, || ()).expect("threads");
    let found = (mover.why_no_kernels().to_owned(), mover.part_blocks(false));
    assert!(mover.close(PATIENCE));
    assert_eq!((gpu.locked(), gpu.allocations(), gpu.wrong()), (0, 0, String::new()));
    found
}

#[test]
fn pages_of_unequal_sizes_have_kernels_if_their_tables_are_small() {
    // Those of multi-head latent attention, and of an indexer beside it: their divisor is 768.
    assert_eq!(unequal([73_728, 8_448]), (String::new(), 16));
    let (why, blocks) = unequal([64 << 10, (64 << 10) + 64]);
    assert!(why.contains("2049 pages of 64 bytes a block"), "{why}");
    assert_eq!(blocks, 32);
    // Parts have fewer blocks, so that their tables stay small.
    assert_eq!(unequal([512 * 4000, 512 * 97]), (String::new(), 15));
}

#[test]
fn small_buffers_have_no_trial() {
    let gpu = Gpu::new(1);
    let mover = start(&gpu, 8 << 10, BUFFER / 2, u64::MAX);
    assert_eq!((mover.why_no_kernels(), mover.scatters(), gpu.calls(COPY)), ("", true, 4));
    assert!(mover.close(PATIENCE));
}

#[test]
fn a_device_that_fails_in_the_trial_gets_no_kernels_and_keeps_the_memory_of_its_copies() {
    let gpu = Gpu::new(2);
    let mover = start(&gpu, 8 << 10, BUFFER, 4);
    let why = "cuMemcpyBatchAsync of 256 copies, at copy 0: CUDA_ERROR_UNKNOWN (999)";
    assert_eq!((mover.why_no_kernels(), mover.scatters()), (why, false));
    assert!(mover.close(PATIENCE));
    gpu.run();
    assert_eq!(gpu.wrong(), "", "nothing was freed under a copy");
    assert!(gpu.locked() > 0 && gpu.allocations() > 0);
}

#[test]
fn a_gpu_whose_kernel_moves_other_bytes_has_no_kernels() {
    let gpu = Gpu::new(3);
    gpu.spoil_moves();
    let mover = start(&gpu, 8 << 10, BUFFER, u64::MAX);
    let why = "cenote_move: the kernel moved other bytes than it was given";
    assert_eq!((mover.why_no_kernels(), mover.scatters()), (why, false));
    assert!(mover.close(PATIENCE));
    assert_eq!((gpu.locked(), gpu.allocations(), gpu.wrong()), (0, 0, String::new()));
}
