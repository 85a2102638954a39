//! Instruction sets: detection, the selection of kernels, and what kernels of several codecs share.
//!
//! Every codec has a scalar reference, which runs on all machines. Kernels return bit for bit what
//! the reference returns. Each codec lists its kernels by [`Level`] in a static [`ByLevel`].

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod rows;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vector;

use std::cell::Cell;
use std::sync::LazyLock;

thread_local! {
    /// Set inside [`at_level`].
    static FORCED: Cell<Option<Level>> = const { Cell::new(None) };
}

/// Instruction sets that codecs tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every machine.
    Scalar,
    /// x86-64 with AVX2, FMA, F16C, BMI and POPCNT.
    Avx2,
    /// The same with AVX-512 (F, BW, VL, DQ, VBMI and VBMI2: Ice Lake, Zen 4 and later).
    Avx512,
}

static FASTEST: LazyLock<Level> = LazyLock::new(|| *Level::available().last().expect("scalar code runs everywhere"));

impl Level {
    /// All levels of this machine, the fastest last.
    #[must_use]
    pub fn available() -> &'static [Self] {
        #[cfg(target_arch = "x86_64")]
        {
            macro_rules! has {
                ($($feature:tt),*) => { $(std::is_x86_feature_detected!($feature))&&* };
            }
            if has!("avx2", "fma", "f16c", "bmi1", "bmi2", "popcnt") {
                let has_more = has!("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vbmi", "avx512vbmi2");
                return if has_more { &[Self::Scalar, Self::Avx2, Self::Avx512] } else { &[Self::Scalar, Self::Avx2] };
            }
        }
        &[Self::Scalar]
    }

    /// The level that codecs use: the fastest, except inside [`at_level`].
    #[must_use]
    pub fn current() -> Self {
        FORCED.get().unwrap_or_else(|| *FASTEST)
    }

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Runs a closure with the codecs of this thread at a level. For tests and benches.
///
/// # Panics
/// The machine does not have the level.
#[doc(hidden)]
pub fn at_level<T>(level: Level, run: impl FnOnce() -> T) -> T {
    /// Restores the level before, also if `run` panics.
    struct Before(Option<Level>);
    impl Drop for Before {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    assert!(Level::available().contains(&level), "this machine has no {level:?}");
    let _before = Before(FORCED.replace(Some(level)));
    run()
}

/// The kernels of a codec: `K` is a struct of function pointers, one value for each level.
pub(crate) struct ByLevel<K> {
    /// The reference. Its functions are safe to call on every machine.
    pub scalar: K,
    #[cfg(target_arch = "x86_64")]
    pub avx2: K,
    #[cfg(target_arch = "x86_64")]
    pub avx512: K,
}

impl<K> ByLevel<K> {
    /// The kernels of [`Level::current`], which this machine has: their functions may be called.
    pub fn current(&self) -> &K {
        match Level::current() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &self.avx2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => &self.avx512,
            _ => &self.scalar,
        }
    }
}
