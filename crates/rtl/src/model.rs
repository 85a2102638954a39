//! Verilated models, with pins that are found by name.

use std::ffi::CString;

/// Whether this build has models: Verilator was there.
#[must_use]
pub const fn is_available() -> bool {
    cfg!(have_verilator)
}

/// Stands for Verilator's model.
#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}

#[cfg(have_verilator)]
mod raw {
    use super::Opaque;
    use std::ffi::c_char;

    // crates/rtl/shim/shim.cpp
    unsafe extern "C" {
        pub fn cenote_rtl_open(name: *const c_char, seed: u32) -> *mut Opaque;
        pub fn cenote_rtl_close(model: *mut Opaque);
        pub fn cenote_rtl_eval(model: *mut Opaque);
        pub fn cenote_rtl_pin(model: *const Opaque, name: *const c_char) -> i32;
        pub fn cenote_rtl_bits(model: *const Opaque, pin: i32) -> i32;
        pub fn cenote_rtl_set(model: *mut Opaque, pin: i32, words: *const u32);
        pub fn cenote_rtl_get(model: *const Opaque, pin: i32, words: *mut u32);
        pub fn cenote_rtl_set_fault(fault: u32);
    }
}

/// The same functions where Verilator is absent. Nothing calls them: no model can be opened.
#[cfg(not(have_verilator))]
mod raw {
    use super::Opaque;
    use std::ffi::c_char;

    pub unsafe fn cenote_rtl_open(_: *const c_char, _: u32) -> *mut Opaque {
        std::ptr::null_mut()
    }
    pub unsafe fn cenote_rtl_close(_: *mut Opaque) {}
    pub unsafe fn cenote_rtl_eval(_: *mut Opaque) {}
    pub unsafe fn cenote_rtl_pin(_: *const Opaque, _: *const c_char) -> i32 {
        -1
    }
    pub unsafe fn cenote_rtl_bits(_: *const Opaque, _: i32) -> i32 {
        0
    }
    pub unsafe fn cenote_rtl_set(_: *mut Opaque, _: i32, _: *const u32) {}
    pub unsafe fn cenote_rtl_get(_: *const Opaque, _: i32, _: *mut u32) {}
    pub unsafe fn cenote_rtl_set_fault(_: u32) {}
}

/// A pin of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    number: i32,
    bits: usize,
}

impl Pin {
    /// Words of its value, of 32 bits.
    #[must_use]
    pub const fn words(self) -> usize {
        self.bits.div_ceil(32)
    }

    /// Its bits.
    #[must_use]
    pub const fn bits(self) -> usize {
        self.bits
    }
}

/// A module in simulation.
pub struct Model {
    handle: *mut Opaque,
    name: &'static str,
}

impl Model {
    /// A model of [`TOPS`](crate::tops::TOPS). Its registers start with random bits of `seed`.
    ///
    /// # Panics
    /// There is no model of that name in this build.
    #[must_use]
    pub fn open(name: &'static str, seed: u32) -> Self {
        let text = CString::new(name).expect("a name has no zero");
        // SAFETY: `text` ends with a zero and lives until the call returns.
        let handle = unsafe { raw::cenote_rtl_open(text.as_ptr(), seed) };
        assert!(!handle.is_null(), "no model `{name}`; src/tops.rs lists them, and Verilator makes them");
        Self { handle, name }
    }

    /// A pin by name.
    ///
    /// # Panics
    /// The module has no such port.
    #[must_use]
    pub fn pin(&self, pin: &str) -> Pin {
        let text = CString::new(pin).expect("a name has no zero");
        // SAFETY: `open` made the handle, which lives as long as `self`; `text` ends with a zero.
        let number = unsafe { raw::cenote_rtl_pin(self.handle, text.as_ptr()) };
        assert!(number >= 0, "module `{}` has no port `{pin}`", self.name);
        // SAFETY: the same handle, and the number is one of its pins.
        let bits = unsafe { raw::cenote_rtl_bits(self.handle, number) };
        Pin { number, bits: usize::try_from(bits).expect("a pin has bits") }
    }

    /// Sets an input; `words` has [`Pin::words`] words, the lowest first. Unused bits are cleared.
    ///
    /// # Panics
    /// The number of words differs.
    pub fn set_words(&mut self, pin: Pin, words: &[u32]) {
        assert_eq!(words.len(), pin.words(), "words of a pin of {}", self.name);
        let mut copy = words.to_vec();
        if let (false, Some(last)) = (pin.bits.is_multiple_of(32), copy.last_mut()) {
            *last &= (1 << (pin.bits % 32)) - 1;
        }
        // SAFETY: `pin` is a pin of a model of this name; `copy` has as many words as it.
        unsafe { raw::cenote_rtl_set(self.handle, pin.number, copy.as_ptr()) }
    }

    /// Sets an input of at most 32 bits.
    pub fn set(&mut self, pin: Pin, value: u32) {
        self.set_words(pin, &[value]);
    }

    /// Reads a pin to `words`, which has [`Pin::words`] words.
    ///
    /// # Panics
    /// The number of words differs.
    pub fn get_words(&self, pin: Pin, words: &mut [u32]) {
        assert_eq!(words.len(), pin.words(), "words of a pin of {}", self.name);
        // SAFETY: `pin` is a pin of a model of this name; `words` has as many words as it.
        unsafe { raw::cenote_rtl_get(self.handle, pin.number, words.as_mut_ptr()) }
    }

    /// Reads a pin of at most 32 bits.
    #[must_use]
    pub fn get(&self, pin: Pin) -> u32 {
        let mut word = [0];
        self.get_words(pin, &mut word);
        word[0]
    }

    /// Computes all signals from inputs and registers.
    pub fn eval(&mut self) {
        // SAFETY: `open` made the handle, which lives as long as `self`.
        unsafe { raw::cenote_rtl_eval(self.handle) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: `open` made the handle, and this is its last use.
        unsafe { raw::cenote_rtl_close(self.handle) }
    }
}

/// Runs `run` with a fault of [`FAULTS`](crate::faults::FAULTS) in all models of this thread.
/// `number` is the fault's index and 1.
pub fn with_fault<T>(number: u32, run: impl FnOnce() -> T) -> T {
    /// Removes the fault, also if `run` panics.
    struct Sound;
    impl Drop for Sound {
        fn drop(&mut self) {
            // SAFETY: the function takes any number.
            unsafe { raw::cenote_rtl_set_fault(0) }
        }
    }
    let _sound = Sound;
    // SAFETY: the function takes any number.
    unsafe { raw::cenote_rtl_set_fault(number) }
    run()
}
