//! The tests of all packages as one pool, by cargo-nextest, with a list of the slowest.

use super::stamps::cache_folder;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version that is installed where there is none.
const VERSION: &str = "0.9.143";
/// Tests in the list of the slowest.
const SLOWEST: usize = 15;

/// Finds cargo-nextest, or installs it into the cache. Returns the folder to search it in, if it is not
/// on the path.
///
/// # Errors
/// It cannot be installed; the message has the next step.
pub fn install() -> Result<Option<PathBuf>, String> {
    let works = |program: &Path| {
        Command::new(program).args(["nextest", "--version"]).output().is_ok_and(|output| output.status.success())
    };
    if works(Path::new("cargo-nextest")) {
        return Ok(None);
    }
    let folder =
        cache_folder().ok_or("neither XDG_CACHE_HOME nor HOME names a folder for cargo-nextest")?.join("tools");
    if works(&folder.join("bin/cargo-nextest")) {
        return Ok(Some(folder.join("bin")));
    }
    println!("installing cargo-nextest {VERSION} into {}; that takes minutes", folder.display());
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["install", "--locked", "--quiet", "cargo-nextest", "--version", VERSION, "--root"])
        .arg(&folder)
        .status()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if status.success() && works(&folder.join("bin/cargo-nextest")) {
        return Ok(Some(folder.join("bin")));
    }
    Err(format!(
        "cargo-nextest cannot be installed ({status}); install it by hand: cargo install --locked cargo-nextest"
    ))
}

/// Nextest's exit status if tests ran and some failed.
const TESTS_FAILED: i32 = 100;

/// How a notice begins about real inputs beside the repository (`cenote_base::testing::beside`). The key of
/// a result has them.
const BESIDE: &str = "SKIPPED without ";

/// Packages of commands.
const COMMANDS: [&str; 2] = ["cenote", "cenote-lab"];

/// A run of tests.
pub struct Run<'a> {
    pub root: &'a Path,
    /// Packages whose tests run; none: all of the workspace.
    pub packages: &'a [&'a str],
    pub variables: &'a [(&'a str, String)],
    /// Folder of cargo-nextest, as of [`install`].
    pub tools: Option<&'a Path>,
}

/// What tests took, and which parts they skipped.
#[derive(Debug, Default, PartialEq)]
pub struct Report {
    /// Test and seconds, the slowest first.
    pub slowest: Vec<(String, f64)>,
    /// Lines of tests that lacked something.
    pub skipped: Vec<String>,
    /// Tests that passed and lacked nothing but what lies beside the repository, which is in the key of the
    /// result: program and name, as nextest lists them.
    passed: BTreeSet<String>,
}

/// How a run ended.
pub struct Outcome {
    pub report: Report,
    /// Tests failed, or they could not be built.
    pub failure: Option<String>,
    /// Packages of which a test failed, did not run, or lacked something else than what the key of the result
    /// has; `None` if that is not known.
    pub unfinished: Option<BTreeSet<String>>,
}

impl Run<'_> {
    fn command(&self, verb: &str, flags: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["nextest", verb]).args(flags).current_dir(self.root);
        if self.packages.is_empty() {
            command.arg("--workspace");
        } else {
            let mut packages = self.packages.to_vec();
            if packages.iter().any(|package| COMMANDS.contains(package)) {
                packages.extend(COMMANDS);
            }
            packages.sort_unstable();
            packages.dedup();
            packages.iter().for_each(|package| {
                command.args(["--package", package]);
            });
        }
        // Tests of one command start the other one.
        command.env("CENOTE_TEST_BUILT", "1");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(tools) = self.tools {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::iter::once(tools.to_owned()).chain(std::env::split_paths(&path));
            command.env("PATH", std::env::join_paths(folders).expect("folders of a path"));
        }
        command
    }

    /// Builds the tests.
    ///
    /// # Errors
    /// The tests cannot be built; the compiler's output is above.
    pub fn build(&self) -> Result<(), String> {
        let status =
            self.command("run", &["--no-run"]).status().map_err(|error| format!("cargo cannot be run: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("the tests cannot be built ({status})")) }
    }

    /// Builds the tests and runs them; nextest's own output is above. A run without tests has failed.
    pub fn run(&self) -> Outcome {
        let results = self.root.join("target/nextest/ci/junit.xml");
        let _ = fs::remove_file(&results);
        let status = match self.command("run", &["--profile", "ci", "--no-fail-fast"]).status() {
            Ok(status) => status,
            Err(error) => {
                let failure = Some(format!("cargo cannot be run: {error}"));
                return Outcome { report: Report::default(), failure, unfinished: None };
            }
        };
        let report = fs::read_to_string(&results).map(|text| report(&text)).unwrap_or_default();
        let failure = (!status.success()).then(|| format!("cargo nextest run failed ({status})"));
        let is_told = failure.is_none() || status.code() == Some(TESTS_FAILED);
        let unfinished = is_told.then(|| self.unfinished(&report.passed)).flatten();
        Outcome { report, failure, unfinished }
    }

    /// Packages of which not all listed tests are among those that passed. A run that was ended early lacks
    /// some.
    fn unfinished(&self, passed: &BTreeSet<String>) -> Option<BTreeSet<String>> {
        let listed = self.command("list", &["--message-format", "oneline"]).output();
        let listed = listed.ok().filter(|output| output.status.success())?.stdout;
        Some(packages_missing(&String::from_utf8_lossy(&listed), passed))
    }
}

/// The packages of listed tests, a line each, of which a test is missing in `passed`.
fn packages_missing(listed: &str, passed: &BTreeSet<String>) -> BTreeSet<String> {
    let package = |test: &str| test.split([':', ' ']).next().unwrap_or_default().to_owned();
    listed.lines().filter(|test| !passed.contains(*test)).map(package).collect()
}

impl Report {
    /// The list of the slowest tests, a line each.
    pub fn list(&self) -> String {
        self.slowest.iter().map(|(name, seconds)| format!("  {seconds:>7.1} s  {name}\n")).collect()
    }
}

/// Reads nextest's report in JUnit's format.
fn report(text: &str) -> Report {
    let (mut slowest, mut passed) = (Vec::new(), BTreeSet::new());
    for case in text.split("<testcase ").skip(1) {
        let head = &case[..case.find('>').unwrap_or(case.len())];
        let (Some(program), Some(name)) = (attribute(head, "classname"), attribute(head, "name")) else { continue };
        let test = format!("{program} {name}");
        let lacks = case.lines().filter_map(notice).any(|notice| !notice.starts_with(BESIDE));
        if !lacks && !["<failure", "<error", "<skipped"].iter().any(|word| case.contains(word)) {
            passed.insert(test.clone());
        }
        slowest.extend(attribute(head, "time").and_then(|time| time.parse::<f64>().ok()).map(|time| (test, time)));
    }
    slowest.sort_by(|one, other| other.1.total_cmp(&one.1));
    slowest.truncate(SLOWEST);
    let skipped = text.lines().filter_map(notice).map(str::to_owned).collect();
    Report { slowest, skipped, passed }
}

/// The part of a line that says what a test lacked.
fn notice(line: &str) -> Option<&str> {
    let rest = &line[line.find("SKIPPED")?..];
    Some(&rest[..rest.find('<').unwrap_or(rest.len())])
}

/// The value of an XML attribute that needs no unescaping: names of tests and numbers.
fn attribute<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let start = head.find(&format!("{name}=\""))? + name.len() + 2;
    // `name` also ends `classname`.
    if name == "name" && head[..start].ends_with("classname=\"") {
        let rest = &head[start..];
        return attribute(&rest[rest.find('"')? + 1..], name);
    }
    Some(&head[start..start + head[start..].find('"')?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_tests_and_what_was_skipped_are_read() {
        let text = r#"<testsuites><testsuite name="cenote-pool::pool">
            <testcase name="crash::all" classname="cenote-pool::pool" timestamp="x" time="1.500">
                <system-err>SKIPPED: no namespaces here</system-err></testcase>
            <testcase name="rack::one" classname="cenote-pool::pool" time="20.25"/></testsuite></testsuites>"#;
        let report = report(text);
        let expected =
            [("cenote-pool::pool rack::one".to_owned(), 20.25), ("cenote-pool::pool crash::all".to_owned(), 1.5)];
        assert_eq!(report.slowest, expected);
        assert_eq!(report.skipped, ["SKIPPED: no namespaces here"]);
        assert_eq!(report.passed, ["cenote-pool::pool rack::one".to_owned()].into(), "one of them lacked something");
    }

    #[test]
    fn a_test_without_real_inputs_has_passed() {
        let text = r#"<testcase name="one" classname="cenote-sim" time="1"><system-err>
            SKIPPED without ../shared/data/trace.jsonl</system-err></testcase>"#;
        let report = report(text);
        assert_eq!(report.skipped, ["SKIPPED without ../shared/data/trace.jsonl"]);
        assert_eq!(report.passed, ["cenote-sim one".to_owned()].into());
    }

    #[test]
    fn a_package_has_passed_if_all_of_its_tests_did() {
        let text = r#"<testcase name="one" classname="cenote-pool::pool" time="1"/>
            <testcase name="two" classname="cenote-pool" time="1"><failure type="test failure">&lt;testcase</failure>
            </testcase><testcase name="three" classname="cenote-mem" time="1"></testcase>
            <testcase name="four" classname="xtask::bin/xtask" time="1"/>"#;
        let listed = "cenote-pool::pool one\ncenote-pool two\ncenote-mem three\nxtask::bin/xtask four\n";
        let passed = report(text).passed;
        assert_eq!(packages_missing(listed, &passed), ["cenote-pool".to_owned()].into());
        let more = format!("{listed}cenote-mem::mem five\n");
        let missing = ["cenote-mem", "cenote-pool"].map(str::to_owned);
        assert_eq!(packages_missing(&more, &passed), missing.into(), "a test did not run");
        assert!(packages_missing("", &passed).is_empty());
    }
}
