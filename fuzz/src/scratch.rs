//! A folder for the files of one input.

use std::path::{Path, PathBuf};

/// A private folder in memory, removed with this value.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder anew. One target runs in a process, with one input at a time.
    ///
    /// # Panics
    /// There is no place for files.
    pub fn new(target: &str) -> Self {
        use std::os::unix::fs::DirBuilderExt;
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let thread = format!("{:?}", std::thread::current().id()).replace(|letter: char| !letter.is_ascii_digit(), "");
        let path = place.join(format!("fuzz-{target}-{}-{thread}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::DirBuilder::new().mode(0o700).create(&path).expect("memory has room for a folder");
        Self(path)
    }

    /// Path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file.
    ///
    /// # Panics
    /// There is no room.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.join(name), bytes).expect("memory has room for a file");
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
