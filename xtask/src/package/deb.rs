//! A Debian package: command, units, manual pages, completions, guides.

use super::files::{self, Texts, install, put};
use super::{Work, architecture};
use crate::process::{make_folder, names_in};
use std::path::{Path, PathBuf};
use std::process::Command;

const UNITS: &str = "usr/lib/systemd/system";

pub fn make(work: &Work, texts: &Texts) -> Result<PathBuf, String> {
    let tree = work.folder.join("deb");
    files::command(work, &tree)?;
    files::manuals(work, &tree)?;
    files::documents(work, texts, &tree)?;
    let deploy = work.root.join("deploy");
    for unit in names_in(&deploy.join("systemd"))?.iter().filter(|name| name.ends_with(".service")) {
        install(&deploy.join("systemd").join(unit), &tree.join(UNITS).join(unit), 0o644)?;
    }
    install(&deploy.join("systemd/kv.conf"), &tree.join("etc/cenote/kv.conf"), 0o644)?;
    install(&deploy.join("debian/sysusers.conf"), &tree.join("usr/lib/sysusers.d/cenote.conf"), 0o644)?;
    install(&deploy.join("debian/copyright"), &tree.join("usr/share/doc/cenote/copyright"), 0o644)?;
    for script in ["postinst", "prerm", "postrm"] {
        install(&deploy.join("debian").join(script), &tree.join("DEBIAN").join(script), 0o755)?;
    }
    put(&tree.join("DEBIAN/conffiles"), b"/etc/cenote/kv.conf\n", 0o644)?;
    put(&tree.join("DEBIAN/control"), control(work, &tree)?.as_bytes(), 0o644)?;
    let sums = work.call(
        Command::new("sh").args(["-c", "find usr -type f | sort | xargs md5sum"]).current_dir(&tree),
        "md5sum of the package's files",
    )?;
    put(&tree.join("DEBIAN/md5sums"), sums.as_bytes(), 0o644)?;
    let package = work.out.join(format!("cenote_{}_{}.deb", work.version, architecture()));
    make_folder(&work.out)?;
    files::set_modes(&tree)?;
    let mut pack = Command::new("dpkg-deb");
    // A higher level saves a tenth of the bytes and costs minutes on small machines.
    pack.args(["--root-owner-group", "-Zxz", "-z1", "--build"]).arg(&tree).arg(&package);
    work.call(&mut pack, "dpkg-deb --build")?;
    Ok(package)
}

fn control(work: &Work, tree: &Path) -> Result<String, String> {
    let symbols = work.call(Command::new("readelf").args(["--version-info", "--wide"]).arg(&work.binary), "readelf")?;
    let libc = newest_libc(&symbols).ok_or("the command is not linked with a C library of GNU")?;
    let used = work.call(Command::new("du").args(["-sk", "--apparent-size"]).arg(tree), "du")?;
    let used = used.split_whitespace().next().unwrap_or("0");
    Ok(format!(
        "Package: cenote\n\
         Version: {}\n\
         Architecture: {}\n\
         Maintainer: The Cenote maintainers <maintainers@cenote.invalid>\n\
         Installed-Size: {used}\n\
         Depends: libc6 (>= {libc}), libgcc-s1, passwd\n\
         Recommends: ca-certificates\n\
         Suggests: prometheus\n\
         Section: admin\n\
         Priority: optional\n\
         Description: shared, crash-proof KV-cache pool for LLM serving\n \
         One region of memory keeps the KV cache of vLLM, SGLang, TensorRT-LLM and LMCache: what one\n \
         engine has computed, every engine of the host loads. There is no server. This package has the\n \
         command, units that create a region and export its metrics, and the guides.\n",
        work.version,
        architecture()
    ))
}

/// The newest version of the C library whose symbols a program needs, from readelf's list.
fn newest_libc(symbols: &str) -> Option<String> {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let numbers: Option<Vec<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
        Some((numbers?, version.to_owned()))
    });
    versions.max().map(|(_, version)| version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_decides_on_the_c_library() {
        let listed = "Name: GLIBC_2.9  Flags\n Name: GLIBC_2.31 Flags: none\n Name: GLIBC_PRIVATE\n GLIBC_2.3.4 x";
        assert_eq!(newest_libc(listed).as_deref(), Some("2.31"));
        assert_eq!(newest_libc("Name: GCC_3.0"), None);
    }
}
