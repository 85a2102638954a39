//! Gives `libcenote.so` its name for the loader: programs that were linked with one version load no
//! other one.

fn main() {
    let version = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcenote.so.{version}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
