//! Files that a user names as inputs: texts, traces, tables, configurations. Any user may have made them;
//! their readers check the content. Errors are facts without the path, as callers name it.

use cenote_mem::files;
use std::fs::File;
use std::io;
use std::path::Path;

/// Longest input that is read as a whole.
const BYTES_MAX: u64 = 64 << 30;

/// Opens an input, which must be a regular file or a link to one.
///
/// # Errors
/// It is no such file, or cannot be opened.
pub fn open(path: impl AsRef<Path>) -> Result<File, String> {
    files::open_input(path.as_ref()).map_err(|error| fact(path.as_ref(), &error))
}

/// The whole of an input.
///
/// # Errors
/// As [`open`]; or it cannot be read.
pub fn bytes(path: impl AsRef<Path>) -> Result<Vec<u8>, String> {
    files::read_input(path.as_ref(), BYTES_MAX).map_err(|error| fact(path.as_ref(), &error))
}

/// The whole of a text.
///
/// # Errors
/// As [`bytes`]; or it is no UTF-8.
pub fn text(path: impl AsRef<Path>) -> Result<String, String> {
    files::read_input_text(path.as_ref(), BYTES_MAX).map_err(|error| fact(path.as_ref(), &error))
}

/// An error of [`files`] without the path before it.
#[must_use]
pub fn fact(path: &Path, error: &io::Error) -> String {
    let text = error.to_string();
    text.strip_prefix(&format!("{}: ", path.display())).map_or_else(|| text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_no_path() {
        let missing = Path::new("no-such-file");
        assert_eq!(text(missing), Err("No such file or directory (os error 2)".to_owned()));
        assert_eq!(bytes("/dev/null"), Err("it is no regular file".to_owned()));
        assert!(open("/").is_err_and(|fact| fact == "it is a folder"));
        assert_eq!(fact(missing, &io::Error::other("another")), "another");
    }
}
