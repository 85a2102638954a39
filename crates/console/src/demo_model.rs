//! The demo model, which each command carries: so `cenote demo`, `serve` and `generate` need no checkout.
//! Engines read models from a folder, so its files are unpacked into a cache of this user.

use crate::failure::Failure;
use cenote_mem::files::{self, Draft, OwnFolder};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A text like those on which the model was trained.
pub const TEXT: &str = include_str!("../demo/demo.txt");

/// Of models/demo, without what only training and studies read. The crate's folder `demo` has links to them, which
/// a package of the crate holds as files.
const FILES: [(&str, &[u8]); 6] = [
    ("README.md", include_bytes!("../demo/README.md")),
    ("config.json", include_bytes!("../demo/config.json")),
    ("generation_config.json", include_bytes!("../demo/generation_config.json")),
    ("model.safetensors", include_bytes!("../demo/model.safetensors")),
    ("tokenizer.json", include_bytes!("../demo/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../demo/tokenizer_config.json")),
];
/// Folders below a cache's own one. The last part is the served model's name.
const FOLDERS: [&str; 2] = ["models", "demo"];

/// The folder with the model, in the first cache that this user can write.
///
/// # Errors
/// No cache can be written, or another user can write it.
pub fn unpacked() -> Result<PathBuf, Failure> {
    let mut reasons = Vec::new();
    for cache in caches() {
        match unpack(&cache) {
            Ok(folder) => return Ok(folder),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(Failure::new(format!("the demo model cannot be unpacked: {}", reasons.join("; ")))
        .hint("set XDG_CACHE_HOME to a folder of this user, or name a model with --model DIR"))
}

/// Folders of caches of this program. The last one is for a user without a home, as of a container.
fn caches() -> impl Iterator<Item = PathBuf> {
    // The specification of XDG ignores relative paths.
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = absolute("HOME").map(|home| home.join(".cache"));
    let user = rustix::process::getuid().as_raw();
    let temporary = std::env::temp_dir().join(format!("cenote-{user}"));
    absolute("XDG_CACHE_HOME").into_iter().chain(home).map(|cache| cache.join("cenote")).chain([temporary])
}

/// Writes the files that are missing or differ; returns their folder. Processes that do so at once write
/// equal bytes.
fn unpack(cache: &Path) -> io::Result<PathBuf> {
    // Each of them: the owner of an upper folder could put another one in a lower one's place.
    let mut folder = OwnFolder::make(cache)?;
    for part in FOLDERS {
        folder = OwnFolder::make(&folder.path().join(part))?;
    }
    for (name, content) in FILES {
        let path = folder.path().join(name);
        if files::read_own(&path, content.len() as u64).is_ok_and(|there| there == content) {
            continue;
        }
        let draft = Draft::new(&path, 0o600)?;
        draft.file().write_all(content)?;
        draft.replace()?;
    }
    Ok(folder.path().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_written_again() {
        let cache = tempfile::tempdir().expect("a folder");
        let folder = unpack(cache.path()).expect("the folder is writable");
        let (name, content) = FILES[1];
        let read = || std::fs::read(folder.join(name)).expect("it is there");
        assert_eq!(read(), content);
        std::fs::write(folder.join(name), &content[..content.len() / 2]).expect("it is there");
        assert_eq!(unpack(cache.path()).expect("the folder is writable"), folder);
        assert_eq!(read(), content);
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let cache = tempfile::tempdir().expect("a folder");
        let upper = cache.path().join(FOLDERS[0]);
        std::fs::create_dir_all(&upper).expect("a folder");
        std::fs::set_permissions(&upper, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert!(unpack(cache.path()).is_err());
        assert!(!upper.join(FOLDERS[1]).exists());
    }

    #[test]
    fn the_model_is_that_of_the_tree() {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let named: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        let left_out = ["demo.txt", "token_predictor.weights", "training.json"];
        let mut names: Vec<String> = std::fs::read_dir(tree)
            .expect("it is there")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| !left_out.contains(&name.as_str()))
            .collect();
        names.sort();
        assert_eq!(names, named);
    }
}
