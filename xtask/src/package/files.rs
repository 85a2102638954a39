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
    let linked = metadata::linked(&work.root, &["cenote-cli"])?;
    Ok(Texts { licenses: licenses::text(&work.root, &linked)?, sbom: sbom::text(&linked, "cenote-cli", work.time) })
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
    let guides = work.root.join("docs/guides");
    for name in names_in(&guides)? {
        install(&guides.join(&name), &to.join(&name), 0o644)?;
    }
    install(&work.root.join("CHANGELOG.md"), &to.join("CHANGELOG.md"), 0o644)?;
    install(&work.root.join("deploy/prometheus/alerts.yml"), &root.join("usr/share/cenote/alerts.yml"), 0o644)?;
    install(&work.root.join("deploy/grafana/cenote.json"), &root.join("usr/share/cenote/dashboard.json"), 0o644)?;
    legal(texts, &to)
}

/// Licences and the bill of materials.
pub fn legal(texts: &Texts, to: &Path) -> Result<(), String> {
    put(&to.join("third-party-licenses.txt"), texts.licenses.as_bytes(), 0o644)?;
    put(&to.join("sbom.cdx.json"), texts.sbom.as_bytes(), 0o644)
}
