//! The kernel, generic over the vector width.

use super::{Job, MIX_LINES, PRIME, STEP, State};

/// A register of 64-bit lanes. Pointers are to the register's first lane.
pub(super) trait Vector: Copy {
    /// # Safety
    /// Callers must guarantee the level's instructions and a readable register's worth of bytes, of
    /// any alignment, that no other thread writes meanwhile.
    unsafe fn load(from: *const u8) -> Self;
    /// Loads exactly once, so that the bytes that are summed are the bytes that are stored.
    ///
    /// # Safety
    /// Callers must guarantee the level's instructions and a readable, aligned register's worth of
    /// bytes.
    unsafe fn load_shared(from: *const u8) -> Self;
    /// # Safety
    /// Callers must guarantee the level's instructions and a writable register's worth of bytes, of
    /// any alignment.
    unsafe fn store(self, to: *mut u8);
    /// # Safety
    /// Callers must guarantee the level's instructions and a writable, aligned register's worth of
    /// bytes.
    unsafe fn store_shared(self, to: *mut u8);
    /// Stores around the cache if the machine can.
    ///
    /// # Safety
    /// As for [`Vector::store_shared`].
    unsafe fn stream(self, to: *mut u8);
    /// Stores around the cache if the machine can.
    ///
    /// # Safety
    /// As for [`Vector::store`]; `to` must be aligned to
    /// [`PRIVATE_STREAM_ALIGN`](super::PRIVATE_STREAM_ALIGN).
    unsafe fn stream_private(self, to: *mut u8);
    /// # Safety
    /// Callers must guarantee the level's instructions.
    unsafe fn splat(value: u64) -> Self;
    /// # Safety
    /// Callers must guarantee the level's instructions.
    unsafe fn add(self, other: Self) -> Self;
    /// # Safety
    /// Callers must guarantee the level's instructions.
    unsafe fn xor(self, other: Self) -> Self;
    /// `low32(self) * low32(other)` per lane.
    ///
    /// # Safety
    /// Callers must guarantee the level's instructions.
    unsafe fn multiply_low(self, other: Self) -> Self;
    /// # Safety
    /// Callers must guarantee the level's instructions.
    unsafe fn shift_right<const N: i32>(self) -> Self;
    /// # Safety
    /// Callers must guarantee the level's instructions.
    unsafe fn shift_left<const N: i32>(self) -> Self;
}

/// Sums, and copies if `job` has a destination, `lines` lines with `N` registers per line.
///
/// # Safety
/// Callers must guarantee the level's instructions, that the shared side of `job` is aligned to 64
/// bytes, that both sides have `lines` lines and do not overlap, and that a private side that is
/// streamed to is aligned to [`PRIVATE_STREAM_ALIGN`](super::PRIVATE_STREAM_ALIGN), and to 64 bytes
/// for [`Job::OutStreamedLines`].
#[inline(always)]
pub(super) unsafe fn run<V: Vector, const N: usize>(
    state: &mut State,
    job: Job,
    from: *const u8,
    to: *mut u8,
    lines: usize,
) {
    // SAFETY: callers guarantee the level and both sides; each arm passes the side that is shared.
    unsafe {
        match job {
            Job::Private => pass::<V, N, false, NOWHERE>(state, from, to, lines),
            Job::Shared => pass::<V, N, true, NOWHERE>(state, from, to, lines),
            Job::Out => pass::<V, N, true, PRIVATE>(state, from, to, lines),
            Job::OutStreamed => pass::<V, N, true, PRIVATE_STREAM>(state, from, to, lines),
            Job::OutStreamedLines => pass::<V, N, true, STREAM>(state, from, to, lines),
            Job::In => pass::<V, N, false, SHARED>(state, from, to, lines),
            Job::InStreamed => pass::<V, N, false, STREAM>(state, from, to, lines),
        }
    }
}

const NOWHERE: u8 = 0;
const PRIVATE: u8 = 1;
const SHARED: u8 = 2;
const STREAM: u8 = 3;
const PRIVATE_STREAM: u8 = 4;

/// Distance in lines at which the source is prefetched. The processor's own prefetching stops at
/// the end of a page and is too short; with 64 lines or more, huge pages are read a tenth more
/// slowly. Every line is prefetched: prefetching only some is slower than none.
const PREFETCH_LINES: usize = 32;

/// The accumulators in registers, `N` per line.
struct Lanes<V, const N: usize> {
    key: [V; N],
    product: [V; N],
    sum: [V; N],
    prefix: [V; N],
}

impl<V: Vector, const N: usize> Lanes<V, N> {
    /// Adds one line, and stores it if `TO` has a destination.
    ///
    /// # Safety
    /// As for [`run`], for the one line at these pointers.
    #[inline(always)]
    unsafe fn line<const FROM_SHARED: bool, const TO: u8>(&mut self, from: *const u8, to: *mut u8, step: V) {
        for register in 0..N {
            let at = register * size_of::<V>();
            // SAFETY: `N` registers are one line, so all addresses stay within the callers' line.
            unsafe {
                let data = if FROM_SHARED { V::load_shared(from.add(at)) } else { V::load(from.add(at)) };
                match TO {
                    PRIVATE => data.store(to.add(at)),
                    SHARED => data.store_shared(to.add(at)),
                    STREAM => data.stream(to.add(at)),
                    PRIVATE_STREAM => data.stream_private(to.add(at)),
                    _ => (),
                }
                let keyed = data.xor(self.key[register]);
                self.key[register] = self.key[register].add(step);
                let product = keyed.multiply_low(keyed.shift_right::<32>());
                self.product[register] = self.product[register].add(product);
                self.sum[register] = self.sum[register].add(data);
                self.prefix[register] = self.prefix[register].add(self.sum[register]);
            }
        }
    }

    /// # Safety
    /// Callers must guarantee the level's instructions.
    #[inline(always)]
    unsafe fn mix(&mut self, prime: V) {
        for register in 0..N {
            // SAFETY: callers guarantee the level's instructions.
            unsafe {
                let old = self.product[register];
                let mixed = old.xor(old.shift_right::<47>()).add(self.prefix[register]);
                // A 64×32-bit product from two 32×32-bit ones.
                let high = mixed.shift_right::<32>().multiply_low(prime);
                self.product[register] = mixed.multiply_low(prime).add(high.shift_left::<32>());
            }
        }
    }
}

/// One job with its kinds of loads and stores fixed at compile time.
///
/// # Safety
/// As for [`run`]; `FROM_SHARED` and `TO` say which side is shared.
#[inline(always)]
unsafe fn pass<V: Vector, const N: usize, const FROM_SHARED: bool, const TO: u8>(
    state: &mut State,
    from: *const u8,
    to: *mut u8,
    lines: usize,
) {
    const GROUP: usize = MIX_LINES as usize;
    // SAFETY: lane arrays of eight words hold the `N` registers of a line, and all addresses below
    // stay within the callers' `lines` lines. A pass that stores nothing may have no `to`, so only
    // `wrapping_add` moves it.
    unsafe {
        let mut lanes = Lanes::<V, N> {
            key: load_lanes(&state.key),
            product: load_lanes(&state.product),
            sum: load_lanes(&state.sum),
            prefix: load_lanes(&state.prefix),
        };
        let (step, prime) = (V::splat(STEP), V::splat(PRIME));
        let mut done = 0;
        while done < lines {
            let until_mix = GROUP - (state.lines % MIX_LINES) as usize;
            let now = until_mix.min(lines - done);
            // A whole group has its own loop, of a length known at compile time. Prefetches never
            // pass the end of the source: bytes after it may be another host's, and prefetching
            // them would make them stale.
            if now == GROUP && done + GROUP + PREFETCH_LINES <= lines {
                for line in done..done + GROUP {
                    prefetch(from.add((line + PREFETCH_LINES) * 64));
                    lanes.line::<FROM_SHARED, TO>(from.add(line * 64), to.wrapping_add(line * 64), step);
                }
            } else {
                for line in done..done + now {
                    lanes.line::<FROM_SHARED, TO>(from.add(line * 64), to.wrapping_add(line * 64), step);
                }
            }
            done += now;
            state.lines += now as u64;
            if now == until_mix {
                lanes.mix(prime);
            }
        }
        store_lanes(&lanes.key, &mut state.key);
        store_lanes(&lanes.product, &mut state.product);
        store_lanes(&lanes.sum, &mut state.sum);
        store_lanes(&lanes.prefix, &mut state.prefix);
    }
}

/// Prefetches a line. A hint: it changes nothing and cannot fail.
#[inline(always)]
fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch of any address is without effect on the
    // program.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch of any address is without effect on the program.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

/// # Safety
/// Callers must guarantee the level's instructions and that `N` registers are eight words.
#[inline(always)]
unsafe fn load_lanes<V: Vector, const N: usize>(words: &[u64; 8]) -> [V; N] {
    const { assert!(size_of::<V>() * N == 64, "N registers are one line") };
    // SAFETY: `N` registers are exactly the eight words.
    unsafe {
        let from = words.as_ptr().cast::<u8>();
        // A loop, not `from_fn`: a closure would be compiled without the level's instructions.
        let mut registers = [V::load(from); N];
        for (register, value) in registers.iter_mut().enumerate() {
            *value = V::load(from.add(register * size_of::<V>()));
        }
        registers
    }
}

/// # Safety
/// Callers must guarantee the level's instructions and that `N` registers are eight words.
#[inline(always)]
unsafe fn store_lanes<V: Vector, const N: usize>(registers: &[V; N], words: &mut [u64; 8]) {
    for (register, value) in registers.iter().enumerate() {
        // SAFETY: `N` registers are exactly the eight words.
        unsafe { value.store(words.as_mut_ptr().cast::<u8>().add(register * size_of::<V>())) };
    }
}

/// One lane at a time, for machines without a kernel of their own.
impl Vector for u64 {
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: callers guarantee readable bytes that no other thread writes.
        unsafe { from.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_shared(from: *const u8) -> Self {
        // SAFETY: callers guarantee readable, aligned bytes.
        unsafe { aligned::<Self>(from).read_volatile() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: callers guarantee writable bytes.
        unsafe { to.cast::<Self>().write_unaligned(self) };
    }
    #[inline(always)]
    unsafe fn store_shared(self, to: *mut u8) {
        // SAFETY: callers guarantee writable, aligned bytes.
        unsafe { aligned_mut::<Self>(to).write_volatile(self) };
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as for `store_shared`.
        unsafe {
            std::arch::x86_64::_mm_stream_si64(aligned_mut(to), self.cast_signed());
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: as for `store`.
        unsafe {
            self.store_shared(to);
        }
    }
    #[inline(always)]
    unsafe fn stream_private(self, to: *mut u8) {
        // SAFETY: callers guarantee the instructions.
        unsafe { self.stream(to) };
    }
    #[inline(always)]
    unsafe fn splat(value: u64) -> Self {
        value
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        self ^ other
    }
    #[inline(always)]
    unsafe fn multiply_low(self, other: Self) -> Self {
        // Two 32-bit factors cannot overflow 64 bits.
        (self & 0xffff_ffff) * (other & 0xffff_ffff)
    }
    #[inline(always)]
    unsafe fn shift_right<const N: i32>(self) -> Self {
        self >> N
    }
    #[inline(always)]
    unsafe fn shift_left<const N: i32>(self) -> Self {
        self << N
    }
}

/// A pointer with an alignment that the caller of a [`Vector`] operation guarantees.
#[inline(always)]
#[allow(clippy::cast_ptr_alignment, reason = "the vector trait's contract is alignment")]
pub(super) const fn aligned<T>(from: *const u8) -> *const T {
    from.cast()
}

/// As [`aligned`], for writing.
#[inline(always)]
#[allow(clippy::cast_ptr_alignment, reason = "the vector trait's contract is alignment")]
pub(super) const fn aligned_mut<T>(to: *mut u8) -> *mut T {
    to.cast()
}
