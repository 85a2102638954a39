//! A container image in the layout of the Open Container Initiative: one layer, a configuration, a manifest
//! and an index (github.com/opencontainers/image-spec). Its tar file is also what `docker save` writes: stores
//! of Docker without containerd read `manifest.json` alone.

use super::files::{self, Texts, install, put};
use super::{Work, architecture};
use crate::debian::Tree;
use crate::process::{make_folder, names_in, read, write};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs of busybox for scripts and for a look into a container.
const APPLETS: [&str; 10] = ["cat", "chgrp", "chmod", "df", "env", "ls", "mkdir", "ps", "sh", "stat"];
/// Certificates of authorities, for object stores as a cold tier.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Packages of Debian in the image, and the licences of their part in it.
const COPIED: [(&str, &str); 4] = [
    ("busybox-static", "GPL-2.0-only"),
    ("ca-certificates", "MPL-2.0"),
    ("libc6", "LGPL-2.1-or-later"),
    ("libgcc-s1", "GPL-3.0-or-later WITH GCC-exception-3.1"),
];
/// Texts that Debian's files `copyright` name.
const LICENSES: &str = "usr/share/common-licenses";

pub fn make(work: &Work, texts: &Texts, debian: &Tree) -> Result<PathBuf, String> {
    let root = work.folder.join("root");
    fill(work, texts, debian, &root)?;
    let layout = work.folder.join("layout");
    let blobs = Blobs(layout.join("blobs/sha256"));
    make_folder(&blobs.0)?;

    let layer = work.folder.join("layer.tar");
    work.tar(&root, &layer)?;
    let unpacked = digest(&read(&layer)?);
    work.call(Command::new("gzip").args(["-6", "-n"]).arg(&layer), "gzip of the layer")?;
    let packed = read(&work.folder.join("layer.tar.gz"))?;

    let settings = settings(work, &unpacked);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blobs.add("application/vnd.oci.image.config.v1+json", settings.to_string().as_bytes())?,
        "layers": [blobs.add("application/vnd.oci.image.layer.v1.tar+gzip", &packed)?],
    });
    let mut entry = blobs.add("application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes())?;
    entry["platform"] = json!({"architecture": architecture(), "os": "linux"});
    // A name with a registry, as in the manifests of deploy: engines look up `cenote` as a public image.
    let name = format!("localhost/cenote:{}", work.version);
    // containerd reads the name from the second key.
    entry["annotations"] = json!({
        "org.opencontainers.image.ref.name": work.version,
        "io.containerd.image.name": name,
    });
    let path = |blob: &Value| blob["digest"].as_str().unwrap_or_default().replace("sha256:", "blobs/sha256/");
    let saved = json!([{
        "Config": path(&manifest["config"]),
        "RepoTags": [name],
        "Layers": [path(&manifest["layers"][0])],
    }]);
    write(&layout.join("manifest.json"), saved.to_string())?;
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    });
    write(&layout.join("index.json"), index.to_string())?;
    write(&layout.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    let image = work.out.join(format!("cenote-{}-{}.oci.tar", work.version, architecture()));
    files::set_modes(&layout)?;
    work.tar(&layout, &image)?;
    Ok(image)
}

/// The root of the image's file system.
fn fill(work: &Work, texts: &Texts, debian: &Tree, root: &Path) -> Result<(), String> {
    files::command(work, root)?;
    for library in debian.libraries_of(&work.binary)? {
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let folder = if name.starts_with("ld-linux") { "lib64" } else { "lib/x86_64-linux-gnu" };
        install(&library, &root.join(folder).join(&name), 0o755)?;
    }
    install(&debian.folder.join("usr/bin/busybox"), &root.join("bin/busybox"), 0o755)?;
    for applet in APPLETS {
        let link = root.join("bin").join(applet);
        symlink("busybox", &link).map_err(|error| format!("{}: {error}", link.display()))?;
    }
    put(&root.join(CERTIFICATES), &certificates(&debian.folder)?, 0o644)?;
    put(&root.join("etc/passwd"), b"root:x:0:0:root:/:/bin/sh\ncenote:x:6470:6470:cenote:/:/bin/sh\n", 0o644)?;
    put(&root.join("etc/group"), b"root:x:0:\ncenote:x:6470:\n", 0o644)?;
    ["dev", "proc", "sys", "tmp"].iter().try_for_each(|folder| make_folder(&root.join(folder)))?;
    let documents = root.join("usr/share/doc");
    for package in super::IMAGE_PACKAGES {
        let copyright = Path::new(package).join("copyright");
        install(&debian.folder.join("usr/share/doc").join(&copyright), &documents.join(&copyright), 0o644)?;
    }
    install(&work.root.join("deploy/debian/copyright"), &documents.join("cenote/copyright"), 0o644)?;
    for name in names_in(&debian.folder.join(LICENSES))? {
        install(&debian.folder.join(LICENSES).join(&name), &root.join(LICENSES).join(&name), 0o644)?;
    }
    let (versions, mut sbom) = (debian.versions()?, texts.sbom.clone());
    for (name, license) in COPIED {
        let version = versions.get(name).ok_or_else(|| format!("the archive of {name} is not listed"))?;
        sbom = super::sbom::with_debian(&sbom, name, version, license)?;
    }
    let texts = Texts { licenses: texts.licenses.clone(), sbom };
    files::legal(work, &texts, &documents.join("cenote"))?;
    files::set_modes(root)?;
    let temporary = root.join("tmp");
    set_permissions(&temporary, Permissions::from_mode(0o1777))
        .map_err(|error| format!("{}: {error}", temporary.display()))
}

/// All authorities in one file.
fn certificates(debian: &Path) -> Result<Vec<u8>, String> {
    let folder = debian.join("usr/share/ca-certificates/mozilla");
    let names = names_in(&folder)?;
    let all: Result<Vec<Vec<u8>>, String> = names.iter().map(|name| read(&folder.join(name))).collect();
    Ok(all?.concat())
}

fn settings(work: &Work, layer: &str) -> Value {
    let created = super::sbom::rfc3339(work.time);
    json!({
        "created": created,
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/cenote"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/bin:/bin"],
            "WorkingDir": "/",
            "ExposedPorts": {"8000/tcp": {}, "9470/tcp": {}},
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "cenote",
                "org.opencontainers.image.description": super::DESCRIPTION,
                "org.opencontainers.image.version": work.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [layer]},
        "history": [{"created": created, "created_by": "cargo xtask package image"}],
    })
}

/// The folder of an image's content, by digest.
struct Blobs(PathBuf);

impl Blobs {
    /// Adds content; returns its descriptor.
    fn add(&self, kind: &str, content: &[u8]) -> Result<Value, String> {
        let digest = digest(content);
        write(&self.0.join(digest.trim_start_matches("sha256:")), content)?;
        Ok(json!({"mediaType": kind, "digest": digest, "size": content.len()}))
    }
}

fn digest(content: &[u8]) -> String {
    let hash: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hash}")
}
