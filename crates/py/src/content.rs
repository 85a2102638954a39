//! Stamps and digests of files, for names of models and adapters by content.

use crate::errors::CenoteError;
use cenote_mem::files;
use cenote_store::content::digests;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::fs::{fstat, fstatfs};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Device, inode, size, mtime and ctime in nanoseconds, file system type.
type Stamp = (u64, u64, u64, i128, i128, u64);

fn stamp(file: &File) -> io::Result<Stamp> {
    let (found, system) = (fstat(file)?, fstatfs(file)?);
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    let modified = nanoseconds(found.st_mtime, found.st_mtime_nsec as i64);
    let changed = nanoseconds(found.st_ctime, found.st_ctime_nsec as i64);
    // The magic numbers of file systems are unsigned 32-bit numbers; `f_type` may be signed.
    let kind = u64::from(system.f_type as u32);
    Ok((found.st_dev, found.st_ino, found.st_size as u64, modified, changed, kind))
}

fn failed(path: &Path, error: io::Error) -> PyErr {
    io::Error::new(error.kind(), format!("{}: {error}", path.display())).into()
}

fn open(paths: &[PathBuf]) -> PyResult<Vec<(File, Stamp)>> {
    let one = |path: &PathBuf| -> PyResult<(File, Stamp)> {
        // Its errors name the path.
        let file = files::open_input(path).map_err(|error| match error.kind() {
            kind @ (ErrorKind::IsADirectory | ErrorKind::InvalidInput) => {
                io::Error::new(kind, format!("{}: is not a regular file", path.display()))
            }
            _ => error,
        })?;
        let found = stamp(&file).map_err(|error| failed(path, error))?;
        Ok((file, found))
    };
    paths.iter().map(one).collect()
}

/// One stamp per file. A changed file has another stamp.
#[pyfunction]
pub fn file_stamps(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Vec<Stamp>> {
    py.detach(|| Ok(open(&paths)?.into_iter().map(|(_, found)| found).collect()))
}

/// Stamp and BLAKE3 hash of the content of each file. Fails if a file changes while it is read.
#[pyfunction]
pub fn file_digests(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Vec<(Stamp, Py<PyBytes>)>> {
    let found = py.detach(|| {
        let files = open(&paths)?;
        let made = digests(&files.iter().map(|(file, _)| file).collect::<Vec<_>>())
            .map_err(|(number, error)| failed(&paths[number], error))?;
        // Open the paths again, because a path may have been renamed to another file.
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
