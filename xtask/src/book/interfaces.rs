//! What programs in Rust and Python call: pages of rustdoc and pdoc, for the book.

use crate::process::{make_folder, read_lossy, write};
use crate::python;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The line of the contents.
pub const ENTRY: &str = "- [interfaces in Rust and Python](interfaces/README.md)\n";
const FOLDER: &str = "interfaces";
/// Crates below the commands, from the ground up. `docs/internals/imports.md` shows which uses which.
const CRATES: [&str; 17] = [
    "base",
    "mem",
    "device",
    "pool",
    "codec",
    "policy",
    "engram",
    "cold",
    "store",
    "tables",
    "reach",
    "engine",
    "serve",
    "plan",
    "predict",
    "quality",
    "serving-sim",
];
/// Parts of the Python package that need an engine when they are imported.
const OF_ENGINES: [&str; 5] =
    ["cenote.vllm", "cenote.vllm_plugin", "cenote.sglang", "cenote.lmcache", "cenote.tensorrt_llm"];

/// Adds both to a book's sources. `python` has pdoc.
///
/// # Errors
/// A build failed, its own output is above; or a page cannot be written.
pub fn add(root: &Path, python: &Path, source: &Path) -> Result<(), String> {
    let folder = source.join(FOLDER);
    make_folder(&folder)?;
    write(&folder.join("README.md"), page(root)?)?;
    let mut rustdoc = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    rustdoc.args(["doc", "--no-deps", "--lib", "--quiet"]).current_dir(root);
    CRATES.iter().for_each(|name| _ = rustdoc.arg("--package").arg(format!("cenote-{name}")));
    // A place of its own, so that no page of another build gets in.
    let target = root.join("target/book-rustdoc");
    python::shown(rustdoc.arg("--target-dir").arg(&target), "cargo doc")?;
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(target.join("doc")).arg(folder.join("rust"));
    python::shown(&mut copy, "cp of rustdoc's pages")?;
    let installed = python::installed(root)?;
    let mut pdoc = Command::new(python);
    pdoc.args(["-m", "pdoc", "--docformat", "markdown", "--output-directory"]).arg(folder.join("python"));
    pdoc.arg("cenote").args(OF_ENGINES.map(|module| format!("!{module}"))).env("PYTHONPATH", installed);
    python::shown(&mut pdoc, "pdoc")
}

/// The page that leads to both.
fn page(root: &Path) -> Result<String, String> {
    let mut page = String::from(
        "# Interfaces in Rust and Python\n\n[The package `cenote`](python/cenote.html), as pdoc shows it; [the \
         guide](../docs/guides/python.md) begins with an example. Connectors of engines have settings and no \
         interface of their own. C programs have [one header](../docs/guides/c.md).\n\n| crate | |\n|---|---|\n",
    );
    for name in CRATES {
        let text = read_lossy(&root.join(format!("crates/{name}/src/lib.rs")))?;
        let first: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//! ")).collect();
        let module = name.replace('-', "_");
        let first = first.join(" ").replace("[`", "`").replace("`]", "`");
        writeln!(page, "| [cenote-{name}](rust/cenote_{module}/index.html) | {first} |").expect("a string");
    }
    Ok(page)
}
