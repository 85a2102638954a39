//! Steps that passed, by key. A stamp lies outside of the checkout, so that a fresh clone on the same
//! machine need not repeat what another one has shown.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Longest time for which a stamp counts as used; older ones are removed.
const KEPT_DAYS: u64 = 30;

/// The folder of stamps.
pub struct Stamps(Option<PathBuf>);

impl Stamps {
    /// Stamps in `${XDG_CACHE_HOME:-~/.cache}/cenote-ci`; `None` of them count if `ignored`.
    pub fn open(ignored: bool) -> Self {
        if ignored {
            return Self(None);
        }
        let cache = cache_folder();
        if let Some(cache) = &cache {
            remove_old(&cache.join("passed"));
        }
        Self(cache.map(|cache| cache.join("passed")))
    }

    /// Whether a step with this key has passed on this machine.
    pub fn has(&self, step: &str, key: &str) -> bool {
        self.path(step, key).is_some_and(|path| path.is_file())
    }

    /// Notes that a step with this key passed. Without a folder to write to, the step runs again.
    pub fn pass(&self, step: &str, key: &str) {
        let Some(path) = self.path(step, key) else { return };
        if let Some(folder) = path.parent() {
            let _ = fs::create_dir_all(folder);
        }
        let _ = fs::write(path, "");
    }

    fn path(&self, step: &str, key: &str) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(step.replace(' ', "-")).join(key))
    }
}

/// The folder of this tool's files between checkouts.
pub fn cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("cenote-ci"))
}

fn remove_old(folder: &Path) {
    let steps = fs::read_dir(folder).into_iter().flatten().flatten();
    for stamp in steps.flat_map(|step| fs::read_dir(step.path()).into_iter().flatten().flatten()) {
        let age = stamp.metadata().and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age.as_secs() > KEPT_DAYS * 86_400) {
            let _ = fs::remove_file(stamp.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_step_with_the_same_key_has_passed() {
        let folder = env::temp_dir().join(format!("cenote-stamps-{}", std::process::id()));
        let stamps = Stamps(Some(folder.clone()));
        stamps.pass("a step", "k1");
        assert!(stamps.has("a step", "k1"));
        assert!(!stamps.has("a step", "k2") && !stamps.has("other", "k1"));
        assert!(!Stamps::open(true).has("a step", "k1"));
        fs::remove_dir_all(folder).expect("it was made");
    }
}
