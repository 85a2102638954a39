//! Files that come from the command and the tree: manual pages, completions, guides, licences.

use super::{Work, licenses, metadata, sbom};
use crate::process::{make_folder, names_in, read, write};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Completions, by shell and place.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/cenote"),
    ("zsh", "usr/share/zsh/vendor-completions/_cenote"),
    ("fish", "usr/share/fish/vendor_completions.d/cenote.fish"),
];

/// Texts that every package has.
pub struct Texts {
    /// Licences of all that is linked.
    pub licenses: String,
    /// Bill of materials, CycloneDX.
    pub sbom: String,
}

pub fn texts(work: &Work) -> Result<Texts, String> {
    let linked = metadata::linked(&work.root, &["cenote"])?;
    Ok(Texts { licenses: licenses::text(&work.root, &linked)?, sbom: sbom::text(&linked, "cenote", work.time) })
}

/// Copies a file with a mode, and makes its folder.
pub fn install(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    put(to, &read(from)?, mode)
}

/// Writes a file with a mode, and makes its folder.
pub fn put(to: &Path, content: &[u8], mode: u32) -> Result<(), String> {
    make_folder(to.parent().expect("it lies in a folder"))?;
    write(to, content)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(|error| format!("{}: {error}", to.display()))
}

/// Gives folders and files of a tree the modes of a package, whatever the umask of its maker: all may read,
/// and the owner alone may write. Files keep whether they are programs.
pub fn set_modes(tree: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", tree.display());
    let kind = fs::symlink_metadata(tree).map_err(failed)?;
    if kind.is_symlink() {
        return Ok(());
    }
    let is_open = kind.is_dir() || kind.permissions().mode() & 0o100 != 0;
    let mode = if is_open { 0o755 } else { 0o644 };
    fs::set_permissions(tree, fs::Permissions::from_mode(mode)).map_err(failed)?;
    if kind.is_dir() {
        names_in(tree)?.iter().try_for_each(|name| set_modes(&tree.join(name)))?;
    }
    Ok(())
}

/// The command and its script.
pub fn command(work: &Work, root: &Path) -> Result<(), String> {
    install(&work.binary, &root.join("usr/bin/cenote"), 0o755)?;
    install(&work.root.join("deploy/ensure-region"), &root.join("usr/lib/cenote/ensure-region"), 0o755)
}

/// Manual pages and completions, as the command writes them.
pub fn manuals(work: &Work, root: &Path) -> Result<(), String> {
    let pages = root.join("usr/share/man/man1");
    make_folder(&pages)?;
    work.call(Command::new(&work.binary).args(["man", "--out"]).arg(&pages), "cenote man")?;
    for name in names_in(&pages)? {
        work.call(Command::new("gzip").args(["-9", "-n"]).arg(pages.join(name)), "gzip")?;
    }
    for (shell, place) in COMPLETIONS {
        let text = work.call(Command::new(&work.binary).args(["completions", shell]), "cenote completions")?;
        put(&root.join(place), text.as_bytes(), 0o644)?;
    }
    Ok(())
}

/// Guides, alerts, dashboard, licences and the bill of materials.
pub fn documents(work: &Work, texts: &Texts, root: &Path) -> Result<(), String> {
    let to = root.join("usr/share/doc/cenote");
    // Guides link to the other two.
    for folder in ["guides", "internals", "evidence"] {
        let from = work.root.join("docs").join(folder);
        for name in names_in(&from)? {
            install(&from.join(&name), &to.join(folder).join(&name), 0o644)?;
        }
    }
    install(&work.root.join("CHANGELOG.md"), &to.join("CHANGELOG.md"), 0o644)?;
    install(&work.root.join("deploy/prometheus/alerts.yml"), &root.join("usr/share/cenote/alerts.yml"), 0o644)?;
    install(&work.root.join("deploy/grafana/cenote.json"), &root.join("usr/share/cenote/dashboard.json"), 0o644)?;
    legal(work, texts, &to)
}

/// Licences and the bill of materials.
pub fn legal(work: &Work, texts: &Texts, to: &Path) -> Result<(), String> {
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        install(&work.root.join(name), &to.join(name), 0o644)?;
    }
    put(&to.join("third-party-licenses.txt"), texts.licenses.as_bytes(), 0o644)?;
    put(&to.join("sbom.cdx.json"), texts.sbom.as_bytes(), 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_umask_of_the_builder_is_not_that_of_the_package() {
        let tree = std::env::temp_dir().join(format!("cenote-modes-{}", std::process::id()));
        put(&tree.join("usr/bin/program"), b"", 0o700).expect("a file");
        put(&tree.join("usr/text"), b"", 0o660).expect("a file");
        for (folder, mode) in [("usr", 0o775), ("usr/bin", 0o700)] {
            fs::set_permissions(tree.join(folder), fs::Permissions::from_mode(mode)).expect("it is there");
        }
        set_modes(&tree).expect("all are this user's");
        let mode = |path: &str| fs::metadata(tree.join(path)).expect("it is there").permissions().mode() & 0o7777;
        assert_eq!(["usr", "usr/bin", "usr/bin/program", "usr/text"].map(mode), [0o755, 0o755, 0o755, 0o644]);
        fs::remove_dir_all(tree).expect("it was made");
    }
}
