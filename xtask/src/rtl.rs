//! `cargo xtask rtl`: the cache engine in SystemVerilog (rtl/README.md). Lints it, compares it with
//! the Rust codecs, demands that deliberate faults are detected, and counts its cells.

mod diagram;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

const USAGE: &str = "usage: cargo xtask rtl [lint | compare | mutate | synthesize]… | diagram";
const STEPS: [&str; 4] = ["lint", "compare", "mutate", "synthesize"];
/// Modules with their parameters for synthesis. Buffers are small, because their memory would become
/// registers.
const SYNTHESIZED: [(&str, &[(&str, u32)]); 14] = [
    ("fmul", &[]),
    ("fadd", &[]),
    ("quant_lane", &[]),
    ("dequant_lane", &[]),
    ("delta_enc", &[]),
    ("delta_dec", &[]),
    ("run_mark", &[]),
    ("compact", &[]),
    ("byte_pack", &[]),
    ("run_parse", &[]),
    ("oaken_decompose_lane", &[]),
    ("atu", &[]),
    ("wrr_pick", &[]),
    ("channel_front", &[]),
];

/// Runs the named steps, or all of them, and prints a table.
///
/// # Errors
/// A tool is missing, or a step failed; its own output is above.
pub fn run(root: &Path, steps: &[&str]) -> Result<(), String> {
    if steps == ["diagram"] {
        return diagram::draw(root);
    }
    if let Some(unknown) = steps.iter().find(|step| !STEPS.contains(step)) {
        return Err(format!("there is no step `{unknown}`\n{USAGE}"));
    }
    install(root)?;
    let mut table = String::new();
    for step in STEPS.into_iter().filter(|step| steps.is_empty() || steps.contains(step)) {
        println!("\n== {step}");
        let start = Instant::now();
        match step {
            "lint" => lint(root)?,
            "compare" => compare(root)?,
            "mutate" => mutate(root)?,
            _ => synthesize(root)?,
        }
        writeln!(table, "  {step:<12} passed in {:>6.1} s", start.elapsed().as_secs_f64()).expect("a string");
    }
    println!("\nrtl:\n{table}");
    Ok(())
}

fn is_there(tool: &str, argument: &str) -> bool {
    Command::new(tool).arg(argument).output().is_ok_and(|output| output.status.success())
}

/// Installs Verilator and Yosys with apt, if they are missing and this user may install packages.
///
/// # Errors
/// A tool is missing, and cannot be installed, under `CI=1`. Elsewhere the tests of the RTL are
/// skipped visibly.
pub fn install(_: &Path) -> Result<(), String> {
    let missing: Vec<&str> = [("verilator", "--version"), ("yosys", "-V")]
        .into_iter()
        .filter(|(tool, argument)| !is_there(tool, argument))
        .map(|(tool, _)| tool)
        .collect();
    if missing.is_empty() {
        println!("Verilator and Yosys are installed");
        return Ok(());
    }
    let apt = |arguments: &[&str]| {
        let status = Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
        status.is_ok_and(|status| status.success())
    };
    let install = [&["install", "-y", "--no-install-recommends"], missing.as_slice()].concat();
    if apt(&install) || (apt(&["update"]) && apt(&install)) {
        return Ok(());
    }
    let notice = format!("{} cannot be installed with apt-get", missing.join(" and "));
    if matches!(env::var("CI").as_deref(), Ok("1" | "true")) {
        return Err(format!("{notice}; CI forbids skips"));
    }
    println!("SKIPPED: the tests of the RTL, because {notice}");
    Ok(())
}

/// Folders of `rtl/` with modules, and the modules' files.
fn sources(root: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), String> {
    let list = |folder: &Path| -> Result<Vec<PathBuf>, String> {
        let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        Ok(paths)
    };
    let folders: Vec<PathBuf> = list(&root.join("rtl"))?.into_iter().filter(|path| path.is_dir()).collect();
    let mut files = Vec::new();
    for folder in &folders {
        files.extend(list(folder)?.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "sv")));
    }
    Ok((folders, files))
}

/// Lints every module alone and with what it instantiates: no warning of `verilator -Wall`.
///
/// # Errors
/// A module has a warning, or a diagram is stale.
pub fn lint(root: &Path) -> Result<(), String> {
    diagram::check(root)?;
    if !is_there("verilator", "--version") {
        println!("SKIPPED: the lint of the RTL, because Verilator is missing");
        return Ok(());
    }
    let (folders, files) = sources(root)?;
    for file in &files {
        let top = file.file_stem().unwrap_or_default();
        let mut command = Command::new("verilator");
        command.args(["--lint-only", "-Wall", "--top-module"]).arg(top);
        folders.iter().for_each(|folder| {
            command.arg("-y").arg(folder);
        });
        let status = command.arg(file).status().map_err(|error| format!("verilator cannot be run: {error}"))?;
        if !status.success() {
            return Err(format!("{} has warnings", file.display()));
        }
    }
    println!("{} modules without a warning", files.len());
    Ok(())
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program).args(arguments).current_dir(root).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo {} failed ({status})", arguments.join(" "))),
        Err(error) => Err(format!("cargo cannot be run: {error}")),
    }
}

fn compare(root: &Path) -> Result<(), String> {
    cargo(root, &["test", "--package", "cenote-rtl"])
}

/// Every fault of `crates/rtl/src/faults.rs` must make its check fail.
fn mutate(root: &Path) -> Result<(), String> {
    cargo(root, &["run", "--quiet", "--package", "cenote-rtl", "--features", "faults", "--", "mutate"])
}

/// Cells of a generic library of six-input tables, by Yosys. They compare modules with each other;
/// they are no cells of a device.
fn synthesize(root: &Path) -> Result<(), String> {
    if !is_there("yosys", "-V") {
        return Err("Yosys is missing; `apt-get install yosys` brings it".to_owned());
    }
    let (_, files) = sources(root)?;
    let modules: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    println!("{:<24} {:>8} {:>8}", "module", "LUT6", "flip-flops");
    for (module, parameters) in SYNTHESIZED {
        let parameters: String =
            parameters.iter().map(|(name, value)| format!("chparam -set {name} {value} {module}; ")).collect();
        let script = format!(
            "read_verilog -sv -defer {}; {parameters}hierarchy -top {module}; synth -flatten -noabc -top {module}; abc -lut 6; stat",
            modules.join(" ")
        );
        let output = Command::new("yosys").args(["-Q", "-T", "-p", &script]).output();
        let output = output.map_err(|error| format!("yosys cannot be run: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            return Err(format!("yosys failed for `{module}`: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let last = text.rfind("Number of cells").map_or("", |at| &text[at..]);
        let count = |wanted: fn(&str) -> bool| -> u64 {
            let words = last.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            words
                .filter(|words| words.len() == 2 && wanted(words[0]))
                .filter_map(|words| words[1].parse::<u64>().ok())
                .sum()
        };
        println!(
            "{module:<24} {:>8} {:>8}",
            count(|cell| cell == "$lut"),
            count(|cell| cell.starts_with("$_") && cell.contains("DFF"))
        );
    }
    Ok(())
}
