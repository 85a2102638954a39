//! Digests of files, for what names models and adapters by their content.

use crate::errors::CenoteError;
use cenote_store::content::digests;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::fs::{OFlags, fstat, fstatfs};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Device, inode, size, nanoseconds of the last change of the content and of anything, kind of file system.
type Stamp = (u64, u64, u64, i128, i128, u64);

fn stamp(file: &File) -> io::Result<Stamp> {
    let (found, system) = (fstat(file)?, fstatfs(file)?);
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    let modified = nanoseconds(found.st_mtime, found.st_mtime_nsec as i64);
    let changed = nanoseconds(found.st_ctime, found.st_ctime_nsec as i64);
    // The kernel defines the kind as an unsigned number of 32 bits.
    let kind = u64::from(system.f_type as u32);
    Ok((found.st_dev, found.st_ino, found.st_size as u64, modified, changed, kind))
}

fn failed(path: &Path, error: io::Error) -> PyErr {
    io::Error::new(error.kind(), format!("{}: {error}", path.display())).into()
}

fn open(paths: &[PathBuf]) -> PyResult<Vec<(File, Stamp)>> {
    let one = |path: &PathBuf| {
        // Without waiting for a writer, should it be a pipe.
        let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
        let found = stamp(&file)?;
        if file.metadata()?.is_file() { Ok((file, found)) } else { Err(io::Error::other("is not a regular file")) }
    };
    paths.iter().map(|path| one(path).map_err(|error| failed(path, error))).collect()
}

/// What tells whether a file has changed, for each.
#[pyfunction]
pub fn file_stamps(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Vec<Stamp>> {
    py.detach(|| Ok(open(&paths)?.into_iter().map(|(_, found)| found).collect()))
}

/// Stamps of files and the BLAKE3 hashes of their content.
#[pyfunction]
pub fn file_digests(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Vec<(Stamp, Py<PyBytes>)>> {
    let found = py.detach(|| {
        let files = open(&paths)?;
        let made = digests(&files.iter().map(|(file, _)| file).collect::<Vec<_>>())
            .map_err(|(number, error)| failed(&paths[number], error))?;
        // The path is opened again, because it may lead to another file by now.
        for ((path, before), after) in paths.iter().zip(&files).zip(open(&paths)?) {
            if after.1 != before.1 {
                let fact = "changed while it was read; start again when nothing writes to it";
                return Err(CenoteError::new_err(format!("{}: {fact}", path.display())));
            }
        }
        Ok(files.into_iter().map(|(_, found)| found).zip(made).collect::<Vec<_>>())
    })?;
    Ok(found.into_iter().map(|(stamp, digest)| (stamp, PyBytes::new(py, &digest).unbind())).collect())
}
