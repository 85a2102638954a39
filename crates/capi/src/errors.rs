//! C errors: a number, and a text for [`cenote_last_error`]. Every call from C runs inside
//! [`status`] or [`or`], which catch panics.

use cenote_mem::MapError;
use cenote_pool::{OpenError, PoolError};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

// A build that aborts on a panic would end the C program.
#[cfg(not(panic = "unwind"))]
compile_error!("libcenote turns panics into errors, which needs `panic = \"unwind\"`");

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Text of this thread's last error; empty if there was none. It stays until the thread's next
/// error.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_last_error() -> *const c_char {
    // A thread that is ending has no text any more.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// An error: its number and its text.
#[derive(Debug)]
pub struct Fault {
    pub number: c_int,
    pub text: String,
}

impl Fault {
    pub fn new(number: c_int, text: impl Into<String>) -> Self {
        Self { number, text: text.into() }
    }

    /// A bug in this library, as an error that the program survives.
    fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words");
        Self::new(libc::EFAULT, format!("a bug in libcenote: {text}"))
    }
}

impl From<PoolError> for Fault {
    fn from(error: PoolError) -> Self {
        let number = match &error {
            PoolError::NoRoom(_) | PoolError::BlockTooLarge { .. } => libc::ENOMEM,
            PoolError::TableFull { .. } | PoolError::WorkersFull { .. } => libc::ENOSPC,
            PoolError::Lock { .. } => libc::ETIMEDOUT,
            PoolError::DeclaredDead | PoolError::LeftToDead => libc::EAGAIN,
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
            OpenError::Map(MapError::Missing { .. } | MapError::NoFolder { .. }) => libc::ENOENT,
            OpenError::Map(MapError::Exists { .. }) => libc::EEXIST,
            OpenError::Map(MapError::Permission { .. }) => libc::EACCES,
            OpenError::Map(MapError::NoSpace { .. }) => libc::ENOSPC,
            OpenError::Map(MapError::NotARegion { .. } | MapError::TooSmall { .. }) => libc::EINVAL,
            OpenError::Map(_) => libc::EIO,
            OpenError::Flush(_) => libc::ENOTSUP,
            OpenError::Pool(_) => libc::EINVAL,
        };
        Self::new(number, error.to_string())
    }
}

/// Stores an error for [`cenote_last_error`] and returns its number.
fn note(fault: &Fault) -> c_int {
    let text = CString::new(fault.text.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no place to store it.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    fault.number
}

/// Runs the body of a call from C. The next caller takes over locks of this process that a panic
/// leaves behind.
fn enter<T>(call: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| Err(Fault::of_panic(&*payload)))
}

/// Runs a call that returns an error number.
pub fn status(call: impl FnOnce() -> Result<c_int, Fault>) -> c_int {
    enter(call).unwrap_or_else(|fault| -note(&fault))
}

/// Runs a call that returns another value; `failed` is its value on error.
pub fn or<T>(otherwise: T, call: impl FnOnce() -> Result<T, Fault>) -> T {
    enter(call).unwrap_or_else(|fault| {
        note(&fault);
        otherwise
    })
}

/// A text from C.
///
/// # Safety
/// Callers must guarantee that it is null or ends with a zero.
pub unsafe fn text<'a>(what: &str, given: *const c_char) -> Result<&'a str, Fault> {
    if given.is_null() {
        return Err(Fault::new(libc::EINVAL, format!("no {what} was given")));
    }
    // SAFETY: callers guarantee that it ends with a zero; null was excluded above.
    let given = unsafe { CStr::from_ptr(given) };
    given.to_str().map_err(|_| Fault::new(libc::EINVAL, format!("the {what} is no UTF-8")))
}
