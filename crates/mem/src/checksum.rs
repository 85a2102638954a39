//! A keyed 64-bit checksum that is computed while bytes are copied.
//!
//! It detects torn, stale and misplaced payload: a reader copies a block and compares the sum with
//! its descriptor's, under a key made of the block's hash and generation. It is no message
//! authentication code: a process that can write the region and knows the key can forge it.
//!
//! **Definition**, over `n` bytes padded with zeros to lines of eight little-endian 64-bit words,
//! where lane `i` takes word `i` of every line and all arithmetic wraps at 64 bits:
//! - `k_i` starts as the `i`-th number of SplitMix64 seeded with the key, and grows by `STEP` per
//!   line;
//! - per line, with `x = d ^ k_i`: `product_i += low32(x) * high32(x)`, `sum_i += d`, `prefix_i +=
//!   sum_i`;
//! - after every 16th line `product_i = ((product_i ^ product_i >> 47) + prefix_i) * PRIME`;
//! - the lanes' 24 accumulators, `n` and the key are folded by bijective steps.
//!
//! With `sum`, every change within a single word reaches the fold. `prefix` weighs a line by its
//! position (as Fletcher's sum does). With `product`, other changes collide no more often than
//! chance. The lanes are independent, so a vector unit computes them side by side at memory speed.
//! The 32×32→64 multiplication of keyed words is taken from XXH3, but this is not XXH3.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;

use crate::offset::LINE;
use cenote_base::prng::Prng;
use std::sync::OnceLock;

const LINE_BYTES: usize = LINE as usize;
/// Lanes of a line: its words.
pub const LANES: usize = 8;
/// Accumulators of all lanes.
pub const ACCUMULATORS: usize = 3 * LANES;
/// Lines between two mixings of `product`.
const MIX_LINES: u64 = 16;
/// The golden ratio's fraction in 64 bits: odd, so that `k_i` runs through all values.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// The same in 32 bits; a narrow multiplier costs two vector multiplications instead of three.
const PRIME: u64 = 0x9e37_79b1;

/// Alignment of private memory that is written around the cache: that of large buffers from
/// allocators.
const PRIVATE_STREAM_ALIGN: usize = 16;

/// Instruction sets with a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// One word at a time; every machine.
    Scalar,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX-512F.
    Avx512,
    /// AArch64, which always has NEON.
    Neon,
}

impl Level {
    /// All levels of this machine, the fastest last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx2") {
                levels.push(Self::Avx2);
            }
            if std::is_x86_feature_detected!("avx512f") {
                levels.push(Self::Avx512);
            }
        }
        #[cfg(target_arch = "aarch64")]
        levels.push(Self::Neon);
        levels
    }

    /// The level that every copy of this process uses: the fastest one, or the one that the
    /// environment variable `CENOTE_SIMD` names (`scalar`, `avx2`, `avx512`, `neon`) if the machine
    /// has it.
    #[must_use]
    pub fn chosen() -> Self {
        static CHOSEN: OnceLock<Level> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let wanted = std::env::var("CENOTE_SIMD").unwrap_or_default();
            let available = Self::available();
            let named = available.iter().find(|level| level.name() == wanted);
            *named.or(available.last()).expect("the scalar level is always there")
        })
    }

    /// The level's name in `CENOTE_SIMD` and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }
}

/// The checksum of `bytes` under `key`.
#[must_use]
pub fn checksum(bytes: &[u8], key: u64) -> u64 {
    let mut sum = Checksummer::new(key);
    sum.absorb(bytes);
    sum.finish()
}

/// The keys of the eight lanes at a payload's first line, `k_i` of the definition.
#[must_use]
pub fn lane_keys(key: u64) -> [u64; LANES] {
    let mut prng = Prng::new(key);
    std::array::from_fn(|_| prng.next_u64())
}

/// Folds the lanes' accumulators after the last line into the checksum of a payload of `bytes` bytes.
///
/// Their order: `product` of lane 0 to 7, then `sum`, then `prefix`. For payload that another device
/// has summed, such as a GPU.
#[must_use]
pub fn fold_lanes(accumulators: &[u64; ACCUMULATORS], bytes: u64, key: u64) -> u64 {
    // Each step is a bijection of the word so far and of the accumulator, so a difference in a single
    // accumulator always shows.
    let mut folded = avalanche(key ^ bytes.wrapping_mul(STEP));
    for (index, value) in accumulators.iter().enumerate() {
        let value = avalanche(value.wrapping_add(STEP.wrapping_mul(index as u64 + 1)));
        folded = (folded ^ value).rotate_left(29).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }
    avalanche(folded)
}

/// Accumulators of the eight lanes.
#[derive(Clone)]
#[repr(C, align(64))]
struct State {
    key: [u64; LANES],
    product: [u64; LANES],
    sum: [u64; LANES],
    prefix: [u64; LANES],
    lines: u64,
}

impl State {
    /// The accumulators in the order of [`fold_lanes`].
    fn accumulators(&self) -> [u64; ACCUMULATORS] {
        let mut all = [0; ACCUMULATORS];
        for (to, from) in all.chunks_exact_mut(LANES).zip([&self.product, &self.sum, &self.prefix]) {
            to.copy_from_slice(from);
        }
        all
    }
}

/// Source and destination of a kernel.
#[derive(Clone, Copy)]
enum Job {
    /// Private memory, not copied.
    Private,
    /// Shared memory, not copied.
    Shared,
    /// From shared to private memory.
    Out,
    /// From shared to private memory, around the cache.
    OutStreamed,
    /// From shared to private memory that is aligned to lines, around the cache: fewer and wider
    /// stores.
    OutStreamedLines,
    /// From private to shared memory, through the cache.
    In,
    /// From private to shared memory, around the cache.
    InStreamed,
}

/// A checksum of parts. Each part but the last must be a multiple of 64 bytes long.
pub(crate) struct Checksummer {
    state: State,
    level: Level,
    seed: u64,
    bytes: u64,
    ended: bool,
}

impl Checksummer {
    pub(crate) fn new(key: u64) -> Self {
        Self::at_level(Level::chosen(), key)
    }

    /// A checksum with the kernel of a level. The machine must have the level.
    pub(crate) fn at_level(level: Level, key: u64) -> Self {
        let none = [0; LANES];
        let state = State { key: lane_keys(key), product: none, sum: none, prefix: none, lines: 0 };
        Self { state, level, seed: key, bytes: 0, ended: false }
    }

    /// Adds private bytes.
    pub(crate) fn absorb(&mut self, part: &[u8]) {
        let (lines, tail) = self.split(part.len());
        // SAFETY: the first `lines` lines of `part` are readable; nothing is written.
        unsafe { self.run(Job::Private, part.as_ptr(), std::ptr::null_mut(), lines) };
        self.tail(&part[part.len() - tail..]);
    }

    /// Adds `len` bytes of shared memory.
    ///
    /// # Safety
    /// Callers must guarantee that `from` is aligned to 64 bytes and `len` bytes from it are
    /// readable. Others may write them meanwhile.
    pub(crate) unsafe fn absorb_shared(&mut self, from: *const u8, len: usize) {
        let (lines, tail) = self.split(len);
        // SAFETY: callers guarantee `len` readable bytes at the aligned `from`; `lines` whole lines
        // and `tail` bytes make up `len`.
        unsafe {
            self.run(Job::Shared, from, std::ptr::null_mut(), lines);
            let mut last = [0; LINE_BYTES];
            copy_tail_out(from.add(len - tail), &mut last[..tail]);
            self.tail(&last[..tail]);
        }
    }

    /// Copies shared memory into `part`, around the cache if `stream` and its alignment allow, and
    /// adds exactly the bytes that arrived there.
    ///
    /// # Safety
    /// Callers must guarantee that `from` is aligned to 64 bytes and `part.len()` bytes from it are
    /// readable and do not overlap `part`. Others may write them meanwhile. After streaming,
    /// callers must execute a store fence before another thread may see `part`.
    pub(crate) unsafe fn copy_out(&mut self, from: *const u8, part: &mut [u8], stream: bool) {
        let (lines, tail) = self.split(part.len());
        let (body, end) = part.split_at_mut(part.len() - tail);
        let aligned = |bytes| body.as_ptr().addr().is_multiple_of(bytes);
        let job = match stream {
            true if aligned(LINE_BYTES) => Job::OutStreamedLines,
            true if aligned(PRIVATE_STREAM_ALIGN) => Job::OutStreamed,
            _ => Job::Out,
        };
        // SAFETY: callers guarantee `from`; `body` is exactly `lines` lines long, and aligned if it
        // is streamed to.
        unsafe {
            self.run(job, from, body.as_mut_ptr(), lines);
            copy_tail_out(from.add(body.len()), end);
        }
        self.tail(end);
    }

    /// Copies `part` into shared memory, around the cache if `stream`, and adds its bytes.
    ///
    /// # Safety
    /// Callers must guarantee that `to` is aligned to 64 bytes and `part.len()` bytes from it are
    /// writable and do not overlap `part`. Others may read them meanwhile. Streamed bytes are
    /// visible to others only after a store fence.
    pub(crate) unsafe fn copy_in(&mut self, part: &[u8], to: *mut u8, stream: bool) {
        let (lines, tail) = self.split(part.len());
        let (body, end) = part.split_at(part.len() - tail);
        let job = if stream { Job::InStreamed } else { Job::In };
        // SAFETY: callers guarantee `to`; `body` is exactly `lines` lines long.
        unsafe {
            self.run(job, body.as_ptr(), to, lines);
            for (index, byte) in end.iter().enumerate() {
                to.add(body.len() + index).write_volatile(*byte);
            }
        }
        self.tail(end);
    }

    /// The checksum of all parts.
    pub(crate) fn finish(self) -> u64 {
        fold_lanes(&self.state.accumulators(), self.bytes, self.seed)
    }

    /// Counts a part and cuts it into whole lines and a tail.
    fn split(&mut self, len: usize) -> (usize, usize) {
        assert!(!self.ended || len == 0, "each part but the last must be a multiple of 64 bytes long");
        let tail = len % LINE_BYTES;
        self.ended |= tail != 0;
        self.bytes += len as u64;
        (len / LINE_BYTES, tail)
    }

    /// Adds fewer than 64 bytes as a line padded with zeros.
    fn tail(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut line = [0; LINE_BYTES];
        line[..bytes.len()].copy_from_slice(bytes);
        // SAFETY: `line` is one readable line.
        unsafe { self.run(Job::Private, line.as_ptr(), std::ptr::null_mut(), 1) };
    }

    /// # Safety
    /// Callers must guarantee that the shared side of `job` is aligned to 64 bytes, that both sides
    /// have `lines` lines and do not overlap, and that a private side that is streamed to is
    /// aligned to [`PRIVATE_STREAM_ALIGN`], and to 64 bytes for [`Job::OutStreamedLines`].
    unsafe fn run(&mut self, job: Job, from: *const u8, to: *mut u8, lines: usize) {
        let state = &mut self.state;
        // SAFETY: callers guarantee both sides of `job`. A level other than `Scalar` only comes
        // from `Level::available`, so the machine has its instructions.
        unsafe {
            match self.level {
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => avx2::run(state, job, from, to, lines),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => avx512::run(state, job, from, to, lines),
                #[cfg(target_arch = "aarch64")]
                Level::Neon => neon::run(state, job, from, to, lines),
                _ => lanes::run::<u64, 8>(state, job, from, to, lines),
            }
        }
    }
}

/// Copies fewer than 64 bytes out of shared memory.
///
/// # Safety
/// Callers must guarantee that `to.len()` bytes from `from` are readable and do not overlap `to`.
unsafe fn copy_tail_out(from: *const u8, to: &mut [u8]) {
    for (index, byte) in to.iter_mut().enumerate() {
        // SAFETY: callers guarantee `to.len()` readable bytes at `from`. Volatile, because other
        // processes may write these bytes meanwhile.
        *byte = unsafe { from.add(index).read_volatile() };
    }
}

/// SplitMix64's finaliser (Stafford's mix 13): a bijection that flips about half of the output bits
/// for each changed input bit.
const fn avalanche(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
