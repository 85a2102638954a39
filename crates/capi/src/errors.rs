//! Errors as C has them: a number, and words for whoever asks.

use cenote_mem::MapError;
use cenote_pool::{OpenError, PoolError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// What went wrong in this thread last, in words; empty if nothing did. It stays until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// An error: its number, and the fact.
#[derive(Debug)]
pub struct Fault {
    pub number: c_int,
    pub text: String,
}

impl Fault {
    pub fn new(number: c_int, text: impl Into<String>) -> Self {
        Self { number, text: text.into() }
    }
}

impl From<PoolError> for Fault {
    fn from(error: PoolError) -> Self {
        let number = match &error {
            PoolError::NoRoom(_) | PoolError::BlockTooLarge { .. } => libc::ENOMEM,
            PoolError::TableFull { .. } | PoolError::WorkersFull { .. } => libc::ENOSPC,
            PoolError::Lock { .. } => libc::ETIMEDOUT,
            PoolError::Host(_) => libc::EIO,
            _ => libc::EINVAL,
        };
        Self::new(number, error.to_string())
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::new(libc::EIO, error.to_string())
    }
}

impl From<OpenError> for Fault {
    fn from(error: OpenError) -> Self {
        let number = match &error {
            OpenError::Map(MapError::Missing { .. }) => libc::ENOENT,
            OpenError::Map(MapError::Exists { .. }) => libc::EEXIST,
            OpenError::Map(_) => libc::EIO,
            OpenError::Flush(_) => libc::ENOTSUP,
            OpenError::Pool(_) => libc::EINVAL,
        };
        Self::new(number, error.to_string())
    }
}

/// Notes an error for [`cenote_last_error`] and returns its number.
fn note(fault: &Fault) -> c_int {
    let text = CString::new(fault.text.replace('\0', " ")).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = text);
    fault.number
}

/// What a call that returns a number returns.
pub fn status(done: Result<c_int, Fault>) -> c_int {
    done.unwrap_or_else(|fault| -note(&fault))
}

/// What a call that returns something returns instead.
pub fn or<T>(done: Result<T, Fault>, otherwise: T) -> T {
    done.unwrap_or_else(|fault| {
        note(&fault);
        otherwise
    })
}

/// A text that C gave.
///
/// # Safety
/// Callers must guarantee that it is null or ends with a zero.
pub unsafe fn text<'a>(what: &str, given: *const c_char) -> Result<&'a str, Fault> {
    if given.is_null() {
        return Err(Fault::new(libc::EINVAL, format!("no {what} was given")));
    }
    // SAFETY: the caller's guarantee.
    let given = unsafe { CStr::from_ptr(given) };
    given.to_str().map_err(|_| Fault::new(libc::EINVAL, format!("the {what} is no UTF-8")))
}
