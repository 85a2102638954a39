//! Installs libcenote for C programs: header, libraries, and the file for pkg-config. Shared by
//! `cargo xtask install-c` and the tests.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Libraries of the system that the static library needs: `cargo rustc -- --print
/// native-static-libs`.
const SYSTEM_LIBRARIES: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// Copies what lies in `built` (`libcenote.so`, `libcenote.a`) and in the package `capi` to
/// `prefix`, in place of an earlier installation.
///
/// # Errors
/// The libraries are not built, or the prefix is not writable.
pub fn install(built: &Path, package: &Path, version: &str, prefix: &Path) -> io::Result<()> {
    let (include, library) = (prefix.join("include"), prefix.join("lib"));
    fs::create_dir_all(&include)?;
    fs::create_dir_all(library.join("pkgconfig"))?;
    copy(&package.join("include/cenote.h"), &include.join("cenote.h"))?;
    copy(&built.join("libcenote.a"), &library.join("libcenote.a"))?;
    let whole = format!("libcenote.so.{version}");
    let major = format!("libcenote.so.{}", version.split('.').next().unwrap_or_default());
    copy(&built.join("libcenote.so"), &library.join(&whole))?;
    for (link, to) in [(major.as_str(), &whole), ("libcenote.so", &major)] {
        let link = library.join(link);
        if link.is_symlink() || link.exists() {
            fs::remove_file(&link)?;
        }
        symlink(to, link)?;
    }
    fs::write(library.join("pkgconfig/cenote.pc"), package_file(version, prefix))
}

/// A copy under a name of its own, so that programs that have the old file open keep it.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let explain = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", from.display()));
    if to.exists() {
        fs::remove_file(to)?;
    }
    fs::copy(from, to).map(|_| ()).map_err(explain)
}

fn package_file(version: &str, prefix: &Path) -> String {
    format!(
        "prefix={}\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         # Flags for a program that carries the library: pkg-config --variable=static_libs cenote\n\
         static_libs=${{libdir}}/libcenote.a {SYSTEM_LIBRARIES}\n\
         \n\
         Name: cenote\n\
         Description: Shared memory of several hosts (CXL)\n\
         Version: {version}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -lcenote\n\
         Libs.private: {SYSTEM_LIBRARIES}\n",
        prefix.display()
    )
}
