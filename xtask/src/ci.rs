//! All checks, the cheapest first. A check whose inputs passed on this machine before is skipped, and
//! the summary says so; `--all` repeats everything.

pub mod inputs;
pub mod nextest;
mod stamps;

use crate::{apart, apt, book, deploy, documented, model, python, release, rtl, tidy};
use inputs::{Packages, Tree, version};
use stamps::Stamps;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Cargo's switch for what a second build of a changed tree needs. This one builds once: it takes less
/// time and some gigabytes less without.
pub const INCREMENTAL: &str = "CARGO_INCREMENTAL";
/// The package whose models take minutes to build.
const RTL: &str = "cenote-rtl";

/// Runs the checks, and stops at the first that fails. With `all`, no earlier result counts.
///
/// # Errors
/// Names the step that failed; its own output is above.
pub fn run(root: &Path, all: bool) -> Result<(), String> {
    if std::env::var_os(INCREMENTAL).is_none() {
        // For all builds alike, also those that maturin starts: a build of another kind begins anew.
        let program = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let flags = if all { &["ci", "--all"][..] } else { &["ci"] };
        let again = Command::new(program).args(flags).env(INCREMENTAL, "0").current_dir(root).status();
        let status = again.map_err(|error| format!("the checks cannot be run: {error}"))?;
        return if status.success() { Ok(()) } else { Err(format!("a check failed ({status})")) };
    }
    let mut steps = Steps::start(root, all)?;
    let result = check(root, &mut steps);
    println!("\n{}", steps.table());
    result?;
    println!("ci: all passed in {:.1} s", steps.start.elapsed().as_secs_f64());
    // Repeated, because the first messages are far above by now.
    steps.notices.iter().for_each(|notice| println!("{notice}"));
    Ok(())
}

fn check(root: &Path, steps: &mut Steps) -> Result<(), String> {
    steps.run("format", || {
        cargo(root, &["fmt", "--all", "--check"], &[])?;
        apart::MANIFESTS.into_iter().try_for_each(|manifest| apart::check_format(root, manifest))
    })?;
    steps.run("tidy", || tidy::run(root))?;
    steps.run("tools", || {
        apt::install(apt::OF_RTL)?;
        apt::install(apt::OF_PAGE)?;
        nextest::install()
    })?;
    let verilator = version("verilator", &["--version"]);
    let of_rtl = ["rtl", "xtask/src/rtl", "xtask/src/rtl.rs"].map(str::to_owned).into();
    steps.once("lint of the RTL", &of_rtl, std::slice::from_ref(&verilator), || rtl::lint(root).map(|_| ()))?;

    let members: Vec<String> = steps.packages.members().map(str::to_owned).collect();
    steps.each("clippy", &members, &[], |chosen| {
        cargo(root, &[&["clippy", "--all-targets", "--quiet"], chosen, &["--", "-D", "warnings"]].concat(), &[]).into()
    })?;
    steps.each("documentation", &members, &[], |chosen| {
        let mut variables = of_clippy();
        variables.push(("RUSTDOCFLAGS", "-D warnings".to_owned()));
        cargo(root, &[&["doc", "--no-deps", "--quiet"], chosen].concat(), &variables).into()
    })?;

    let python = steps.run("Python environment", || Ok(python::prepare(root)))?;
    if let Err(reason) = &python {
        steps.leave_out(&format!(
            "the tests of the Python package and those with the PyPI client `openai`, because there is no Python for them: {reason}"
        ))?;
    }
    let variable = python.as_ref().ok().map(|path| ("CENOTE_TEST_PYTHON", path.display().to_string()));
    let tools = nextest::install()?;
    let mut report = nextest::Report::default();
    // The RTL's models are worth a key of their own, which has Verilator's version.
    steps.each("tests", &members, &[verilator, version("c++", &["--version"])], |chosen| {
        let packages: Vec<&str> = chosen.iter().filter(|word| !word.starts_with("--")).copied().collect();
        let run = nextest::Run { root, packages: &packages, variables: variable.as_slice(), tools: tools.as_deref() };
        let outcome = run.run();
        report = outcome.report;
        Ran { failure: outcome.failure, unfinished: outcome.unfinished }
    })?;
    if !report.slowest.is_empty() {
        println!("the slowest tests:\n{}", report.list());
    }
    steps.notices.extend(report.skipped);
    let libraries: Vec<String> = steps.packages.libraries(root).map(str::to_owned).collect();
    steps.each("examples in documentation", &libraries, &[], |chosen| {
        cargo(root, &[&["test", "--doc", "--quiet"], chosen].concat(), &[]).into()
    })?;

    let of_dynamo = steps.packages.inputs("cenote-dynamo");
    steps.once("crate for Dynamo's router", &of_dynamo, &[], || apart::check(root, apart::DYNAMO))?;
    let of_train = steps.packages.inputs("cenote-train");
    steps.once("training program", &of_train, &[], || apart::check(root, apart::TRAIN))?;
    // After the tests, whose build of the command goes into the package.
    if let Ok(python) = &python {
        let mut of_package = steps.packages.inputs("cenote-py");
        of_package.extend(steps.packages.inputs("cenote"));
        of_package.extend(["xtask/src/python.rs", "xtask/model", "xtask/src/model.rs"].map(str::to_owned));
        let mut missing = None;
        steps.once_whole("Python package, model from PyPI", &of_package, &[], || {
            python::test_package(root, python)?;
            // With the command that the package has brought.
            missing = model::test(root, python)?;
            Ok(missing.is_none())
        })?;
        if let Some(reason) = missing {
            steps.leave_out(&format!("the engine on a model from PyPI: {reason}"))?;
        }
    }
    operations(root, steps)
}

/// What is installed and operated, after the tests, whose build of the command is packed.
fn operations(root: &Path, steps: &mut Steps) -> Result<(), String> {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<String>>();
    let members = steps.packages.members().map(|name| format!("{}/Cargo.toml", steps.packages.folder(name)));
    let manifests: BTreeSet<String> = members.chain(["Cargo.toml".to_owned()]).collect();
    let mut of_deny = names(&["Cargo.lock", "deny.toml", "deploy/tests/requirements.txt", "xtask/src/deploy.rs"]);
    of_deny.extend(manifests.iter().cloned());
    steps.once_or_missing("cargo deny", &of_deny, &[deploy::advisories()], || deploy::deny(root))?;
    if !deploy::has_advisories() {
        // A machine that reaches registries alone cannot have it, so this fails no run.
        steps.notices.push("NOT CHECKED: advisories about crates; `cargo deny fetch` brings their database".to_owned());
    }
    // Sources within a crate's folder are packed as they are; `tidy` refuses others.
    steps.once("crates for an index", &manifests, &[], || release::crates(root, false))?;
    let pages = steps.tree.as_ref().map(Tree::pages).unwrap_or_default();
    let mut of_book = names(&["docs", "xtask/book-requirements.txt", "xtask/src/book.rs", "xtask/src/markdown.rs"]);
    of_book.extend(pages);
    steps.once_or_missing("book", &of_book, &[], || book::build(root, false))?;
    let mut of_commands = steps.packages.inputs("cenote-lab");
    of_commands.extend(steps.packages.inputs("cenote"));
    of_commands.extend(names(&["docs/guides", "docs/evidence", "README.md", "xtask/src"]));
    steps.once("commands of the documents", &of_commands, &[], || documented::run(root, &[]))?;
    let helm = version("helm", &["version"]);
    if helm.is_empty() {
        steps.notices.push("NOT CHECKED: `helm lint` of the chart; helm is not installed".to_owned());
    }
    let of_chart = names(&[
        "deploy/chart",
        "deploy/grafana",
        "deploy/kubernetes",
        "deploy/prometheus",
        "deploy/tests",
        "crates/py/tests/waiting.py",
        "xtask/src/deploy.rs",
    ]);
    steps.once_or_missing("chart", &of_chart, &[helm], || deploy::chart(root))?;
    let mut of_deploy = steps.packages.inputs("cenote");
    of_deploy.extend(names(&["deploy", "docs", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "xtask/src"]));
    of_deploy.insert("crates/py/tests/waiting.py".to_owned());
    // Bills of all artefacts come from them.
    of_deploy.extend(manifests);
    steps.once_or_missing("packages, alerts, manifests", &of_deploy, &[], || deploy::test(root, None, &[]))
}

/// How `cargo clippy -- -D warnings` calls the compiler. A build of documentation that calls it alike
/// uses what clippy has compiled; another compiles all packages again. Nothing if there is no sysroot.
fn of_clippy() -> Vec<(&'static str, String)> {
    let found = Command::new("rustc").args(["--print", "sysroot"]).output().ok();
    let sysroot = found.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    let driver = Path::new(sysroot.trim()).join("bin/clippy-driver");
    if !driver.is_file() {
        return Vec::new();
    }
    let flags = ["-D", "warnings"].map(|flag| format!("{flag}__CLIPPY_HACKERY__")).concat();
    vec![("RUSTC_WORKSPACE_WRAPPER", driver.display().to_string()), ("CLIPPY_ARGS", flags)]
}

/// What a step has shown of its packages.
struct Ran {
    failure: Option<String>,
    /// Packages that failed or of which something was left out; `None` if that is not known.
    unfinished: Option<BTreeSet<String>>,
}

impl From<Result<(), String>> for Ran {
    fn from(result: Result<(), String>) -> Self {
        let unfinished = result.is_ok().then(BTreeSet::new);
        Self { failure: result.err(), unfinished }
    }
}

/// The steps of a run, and what they took.
struct Steps {
    start: Instant,
    packages: Packages,
    /// `None`: every step runs.
    tree: Option<Tree>,
    stamps: Stamps,
    rows: Vec<(String, Duration, String)>,
    notices: Vec<String>,
}

impl Steps {
    fn start(root: &Path, all: bool) -> Result<Self, String> {
        let tree = Tree::read(root).inspect_err(|reason| println!("every step runs: {reason}")).ok();
        let packages = Packages::read(root)?;
        let stamps = Stamps::open(all);
        Ok(Self { start: Instant::now(), packages, tree, stamps, rows: Vec::new(), notices: Vec::new() })
    }

    /// Runs one step under a heading, and prints its time.
    fn run<T>(&mut self, name: &str, step: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        self.run_part(name, "", step)
    }

    fn run_part<T>(&mut self, name: &str, part: &str, step: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        println!("\n== {name}");
        let start = Instant::now();
        let result = step();
        let word = if result.is_ok() { "done" } else { "FAILED" };
        println!("== {name}: {word} in {:.1} s", start.elapsed().as_secs_f64());
        let note = if result.is_ok() { part.to_owned() } else { "failed".to_owned() };
        self.rows.push((name.to_owned(), start.elapsed(), note));
        result.map_err(|reason| format!("step `{name}`: {reason}"))
    }

    /// Runs a step unless it has passed with the same inputs and tools.
    fn once(
        &mut self,
        name: &str,
        inputs: &BTreeSet<String>,
        tools: &[String],
        step: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        self.once_whole(name, inputs, tools, || step().map(|()| true))
    }

    /// The same for a step that returns whether all of it ran: only then it counts as passed.
    fn once_whole(
        &mut self,
        name: &str,
        inputs: &BTreeSet<String>,
        tools: &[String],
        step: impl FnOnce() -> Result<bool, String>,
    ) -> Result<(), String> {
        let key = self.tree.as_ref().map(|tree| tree.key(name, inputs, tools));
        if key.as_ref().is_some_and(|key| self.stamps.has(name, key)) {
            println!("\n== {name}: skipped, because it passed on this machine with the same inputs");
            self.rows.push((name.to_owned(), Duration::ZERO, "skipped: inputs unchanged".to_owned()));
            return Ok(());
        }
        if self.run(name, step)? {
            key.inspect(|key| self.stamps.pass(name, key));
        }
        Ok(())
    }

    /// The same for a step that returns what it lacked, if it lacked something.
    fn once_or_missing(
        &mut self,
        name: &str,
        inputs: &BTreeSet<String>,
        tools: &[String],
        step: impl FnOnce() -> Result<Option<String>, String>,
    ) -> Result<(), String> {
        let mut missing = None;
        self.once_whole(name, inputs, tools, || {
            missing = step()?;
            Ok(missing.is_none())
        })?;
        missing.map_or(Ok(()), |reason| self.leave_out(&format!("{name}: {reason}")))
    }

    /// Notes what no test has shown because something is missing here.
    fn leave_out(&mut self, what: &str) -> Result<(), String> {
        let notice = format!("SKIPPED: {what}");
        if let Ok("1" | "true") = std::env::var("CI").as_deref() {
            return Err(format!("{notice}; CI forbids skips"));
        }
        self.notices.push(notice);
        Ok(())
    }

    /// Runs a step for those packages whose inputs have not passed it. The step gets cargo's flags that
    /// choose them. A package that passed is not repeated, also if others failed or lacked something.
    fn each(
        &mut self,
        name: &str,
        members: &[String],
        tools_of_rtl: &[String],
        step: impl FnOnce(&[&str]) -> Ran,
    ) -> Result<(), String> {
        let key = |member: &String| {
            let tools = if member == RTL { tools_of_rtl } else { &[] };
            self.tree.as_ref().map(|tree| tree.key(name, &self.packages.inputs(member), tools))
        };
        let keys: Vec<Option<String>> = members.iter().map(key).collect();
        let is_due = |key: &Option<String>| key.as_ref().is_none_or(|key| !self.stamps.has(name, key));
        let due: Vec<(&String, &Option<String>)> = members.iter().zip(&keys).filter(|(_, key)| is_due(key)).collect();
        if due.is_empty() {
            println!("\n== {name}: skipped, because all packages passed on this machine with the same inputs");
            self.rows.push((name.to_owned(), Duration::ZERO, "skipped: inputs unchanged".to_owned()));
            return Ok(());
        }
        let names = || due.iter().map(|(member, _)| member.strip_prefix("cenote-").unwrap_or(member));
        let (flags, part) = if due.len() == members.len() {
            (vec!["--workspace"], String::new())
        } else {
            let part =
                format!("{} of {} packages: {}", due.len(), members.len(), names().collect::<Vec<_>>().join(", "));
            println!("\n{name}: the others passed on this machine with the same inputs");
            (due.iter().flat_map(|(member, _)| ["--package", member.as_str()]).collect(), part)
        };
        let mut unfinished = None;
        let result = self.run_part(name, &part, || {
            let ran = step(&flags);
            unfinished = ran.unfinished;
            ran.failure.map_or(Ok(()), Err)
        });
        let passed = |member: &String| unfinished.as_ref().is_some_and(|unfinished| !unfinished.contains(member));
        let passed = due.iter().filter(|(member, _)| passed(member));
        passed.filter_map(|(_, key)| key.as_ref()).for_each(|key| self.stamps.pass(name, key));
        result
    }

    /// The times of the steps, as a table of CONTRIBUTING.md.
    fn table(&self) -> String {
        let mut table = String::from("| step | seconds | |\n|---|---:|---|\n");
        for (name, time, note) in &self.rows {
            writeln!(table, "| {name} | {:.0} | {note} |", time.as_secs_f64()).expect("a string");
        }
        writeln!(table, "| all | {:.0} | |", self.start.elapsed().as_secs_f64()).expect("a string");
        table
    }
}

/// The cargo that started this task; its output is passed through.
pub fn cargo(root: &Path, arguments: &[&str], variables: &[(&str, String)]) -> Result<(), String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program)
        .args(arguments)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir(root)
        .status()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {} failed ({status})", arguments.join(" "))) }
}
