//! Tests wait for events, not for time, and only rims name the machine's clock.
//!
//! A pause, a bound of a test's own and an assertion about elapsed time make the outcome depend on
//! the machine's load. `PATIENCE` and `until` are in the one helper of each language. A comment
//! `tidy:` with a reason, on the line or above it, permits a place.

use super::{Finding, SourceFile, Tree};
use crate::python_text::{self, is_number};
use crate::rust_text::{self, is_word, line_of, test_modules, words};

/// Where tests may pause. Both files have `PATIENCE` and `until`.
const RUST_HELPER: &str = "crates/base/src/testing.rs";
const PYTHON_HELPER: &str = "crates/py/tests/waiting.py";

/// Most tests in files `real_time.rs` and `test_real_time.py`, where these rules do not hold.
const REAL_TIME_MAX: usize = 3;
/// Most permitted places of the tree.
const MARKS_MAX: usize = 12;

/// Rust calls that block for a time. The argument must be `PATIENCE` or be computed.
const RUST_WAITS: [&str; 9] = [
    "recv_timeout",
    "park_timeout",
    "wait_timeout",
    "wait_timeout_while",
    "wait_timeout_ms",
    "interval",
    "sleep_until",
    "settle",
    "timeout",
];

/// Python methods whose last positional argument is a time.
const PYTHON_WAITS: [&str; 9] =
    ["wait", "wait_layer", "join", "result", "poll", "settle", "settle_cold", "close", "receive"];

/// Functions of Python's module `time` that pause or read a clock.
const PYTHON_CLOCKS: [&str; 8] =
    ["sleep", "monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "perf_counter_ns", "clock_gettime"];

/// Crates at the edge of the system, which pass the machine's clock to what they start.
const RIMS: [&str; 14] = [
    "crates/base/src/testing.rs",
    "crates/base/src/time.rs",
    "crates/mem/",
    "crates/py/",
    "crates/capi/",
    "crates/dynamo/",
    "crates/cli/",
    "crates/lab/",
    "crates/console/",
    "crates/memcheck/",
    "crates/train/",
    "crates/rtl/",
    "xtask/",
    "fuzz/",
];

const PAUSE: &str =
    "a test must not sleep; wait for the event itself, through a pipe, a channel, a condition or `until`";
const BOUND: &str =
    "a test has no bound of its own; a wait that must end has `PATIENCE`, one that must not has manual time";
const CLOCK: &str = "a test reads no clock; use `until`, `PATIENCE` or manual time";
const ELAPSED: &str = "elapsed time depends on the machine's load; check counts or orders, or use manual time";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let (mut findings, mut marks) = (Vec::new(), Vec::new());
    for file in &tree.files {
        let found = match &file.blanked {
            Some(blanked) => rust(file, blanked),
            None if is_python_test(&file.path) => python(file),
            None => continue,
        };
        for (at, advice) in found {
            match mark(&file.text, at) {
                Some(Mark::Reason) => marks.push(file.finding_at(at, "")),
                Some(Mark::Bare) => findings.push(file.finding_at(at, "the mark `tidy:` gives no reason; add it")),
                None => findings.push(file.finding_at(at, advice)),
            }
        }
        findings.extend(file.blanked.iter().flat_map(|blanked| clocks(file, blanked)));
    }
    if let Some(last) = marks.get(MARKS_MAX) {
        let advice = format!("more than {MARKS_MAX} places have a mark `tidy:`; wait for events instead");
        findings.push(Finding { advice, path: last.path.clone(), line: last.line });
    }
    findings.extend(real_time(tree));
    findings
}

/// A comment `tidy:` that permits a place.
pub enum Mark {
    Reason,
    Bare,
}

/// The mark of the line of `at`: on it, or in the comment above it.
pub fn mark(text: &str, at: usize) -> Option<Mark> {
    let number = line_of(text, at);
    let lines: Vec<&str> = text.lines().take(number).collect();
    let comment = |line: &str| {
        let reason = line.split_once("// tidy:").or_else(|| line.split_once("# tidy:"))?.1;
        Some(if reason.trim().is_empty() { Mark::Bare } else { Mark::Reason })
    };
    let above = lines[..number - 1].iter().rev().take_while(|line| line.trim_start().starts_with(['/', '#']));
    comment(lines[number - 1]).or_else(|| above.filter_map(|line| comment(line)).next())
}

fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs")
}

fn is_real_time(path: &str) -> bool {
    is_test_file(path) && (path.ends_with("/real_time.rs") || path.ends_with("/test_real_time.py"))
}

fn is_python_test(path: &str) -> bool {
    is_test_file(path) && path.ends_with(".py")
}

/// Places in a Rust file's tests where time decides.
fn rust(file: &SourceFile, blanked: &str) -> Vec<(usize, &'static str)> {
    if is_real_time(&file.path) || file.path == RUST_HELPER {
        return Vec::new();
    }
    let modules = test_modules(blanked);
    let in_tests = |at: &usize| is_test_file(&file.path) || modules.iter().any(|module| module.contains(at));
    let mut found: Vec<(usize, &str)> =
        words(blanked, "sleep").filter(|at| named_by_path(blanked, *at)).map(|at| (at, PAUSE)).collect();
    for name in RUST_WAITS {
        for at in words(blanked, name) {
            let Some(arguments) = arguments(blanked, at + name.len()) else { continue };
            let is_declared = blanked[..at].trim_end().ends_with("fn");
            if !is_declared && arguments.iter().any(|argument| has_literal_time(argument)) {
                found.push((at, BOUND));
            }
        }
    }
    found.extend(elapsed(blanked));
    found.retain(|(at, _)| in_tests(at));
    found
}

/// Whether the word at `at` has a path before it, or is imported.
fn named_by_path(blanked: &str, at: usize) -> bool {
    let line_start = blanked[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let line = blanked[line_start..].lines().next().unwrap_or_default().trim_start();
    blanked[..at].trim_end().ends_with("::") || line.starts_with("use ")
}

/// Whether a Rust argument states a time above zero: `Duration::from_millis(50)`, `10 * MILLISECOND`.
/// A constant has a name, and `PATIENCE` is the only one that should end a wait.
fn has_literal_time(argument: &str) -> bool {
    let is_time = argument.contains("Duration::from_") || is_number(argument);
    is_time && numbers(argument).any(|number| number.bytes().any(|byte| (b'1'..=b'9').contains(&byte)))
}

/// The words of a text that begin with a digit.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    text.split(move |c: char| !is_part(c)).filter(|word| word.starts_with(|first: char| first.is_ascii_digit()))
}

/// Assertions about elapsed time.
fn elapsed(blanked: &str) -> Vec<(usize, &'static str)> {
    // A bound of `PATIENCE` fails only if the test is stuck.
    let compares = |text: &str| text.contains(['<', '>']) && !text.contains("PATIENCE");
    let at_name = |name: &'static str| {
        words(blanked, name).filter_map(move |at| {
            // Rust's `assert!(…)`, and the rest of the line after Python's `assert`.
            let rest = &blanked[at + name.len()..];
            let body = match rest.strip_prefix('!') {
                Some(_) => &rest[..end_of_call(rest, 1)?],
                None => rest.lines().next().unwrap_or_default(),
            };
            (words(body, "elapsed").next().is_some() && compares(body)).then_some((at, ELAPSED))
        })
    };
    at_name("assert").chain(at_name("debug_assert")).collect()
}

/// The arguments of the call whose parenthesis follows `from`, split at commas of the top level.
/// `None` if no call begins there.
fn arguments(blanked: &str, from: usize) -> Option<Vec<&str>> {
    let open = from + blanked[from..].find('(').filter(|skipped| blanked[from..from + skipped].trim().is_empty())?;
    let close = end_of_call(blanked, open)?;
    let (mut split, mut depth, mut start) = (Vec::new(), 0, open + 1);
    for (at, byte) in blanked.as_bytes()[..close].iter().enumerate().skip(open + 1) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                split.push(&blanked[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    split.push(&blanked[start..close]);
    split.retain(|argument| !argument.trim().is_empty());
    Some(split)
}

/// The place of the parenthesis that closes the one at `open`.
fn end_of_call(blanked: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, byte) in blanked.as_bytes().iter().enumerate().skip(open) {
        match byte {
            b'(' => depth += 1,
            b')' if depth <= 1 => return Some(at),
            b')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Places in a Python test where time decides.
fn python(file: &SourceFile) -> Vec<(usize, &'static str)> {
    if is_real_time(&file.path) || file.path == PYTHON_HELPER {
        return Vec::new();
    }
    let blanked = python_text::blank_out(&file.text);
    let before = |at: usize, text: &str| blanked[..at].trim_end().ends_with(text);
    let mut found = Vec::new();
    for name in PYTHON_CLOCKS {
        let advice = if name == "sleep" { PAUSE } else { CLOCK };
        found.extend(words(&blanked, name).filter(|at| before(*at, "time.")).map(|at| (at, advice)));
    }
    found.extend(blanked.match_indices("from time import").map(|(at, _)| (at, CLOCK)));
    for name in PYTHON_WAITS {
        for at in words(&blanked, name).filter(|at| before(*at, ".")) {
            let positional = arguments(&blanked, at + name.len()).unwrap_or_default();
            let last = positional.into_iter().rfind(|argument| !argument.contains('='));
            found.extend(last.filter(|argument| is_time(argument)).map(|_| (at, BOUND)));
        }
    }
    // `timeout=5`, `timeout: float = 5`, and `"timeout": 5` for a setting of the product.
    for text in [blanked.as_str(), file.text.as_str()] {
        for at in words(text, "timeout") {
            let rest = text[at + "timeout".len()..].trim_start_matches(['"', '\'']).trim_start();
            let value = match rest.split_at_checked(1) {
                Some((":", rest)) => rest.trim_start().trim_start_matches("float").trim_start().trim_start_matches('='),
                Some(("=", rest)) => rest,
                _ => continue,
            };
            let end = value.find([',', ')', '}', '\n', ':', ';', '|']).unwrap_or(value.len());
            // In the plain text only the key of a dictionary counts: comments and strings have the word, too.
            let is_key = text[..at].ends_with(['"', '\'']);
            let counts = is_key != std::ptr::eq(text, blanked.as_str());
            found.extend((counts && is_time(&value[..end])).then_some((at, BOUND)));
        }
    }
    found.extend(elapsed(&blanked));
    found
}

/// A number above zero. Zero waits for nothing.
fn is_time(argument: &str) -> bool {
    is_number(argument) && argument.bytes().any(|byte| (b'1'..=b'9').contains(&byte))
}

/// The machine's clock outside of rims and tests.
fn clocks<'a>(file: &'a SourceFile, blanked: &'a str) -> Vec<Finding> {
    let is_rim = RIMS.iter().any(|rim| file.path.starts_with(rim));
    if is_rim || file.path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "examples" | "benches")) {
        return Vec::new();
    }
    let modules = test_modules(blanked);
    let advice = "only rims name the machine's clock; take a `Clock` as an argument or in the configuration";
    let named = blanked.match_indices("Clock::system").map(|(at, _)| at);
    named
        .filter(|at| *at == 0 || !is_word(blanked.as_bytes()[at - 1]))
        .filter(|at| !modules.iter().any(|module| module.contains(at)))
        .map(|at| file.finding_at(at, advice))
        .collect()
}

fn real_time(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut count = 0;
    for file in tree.files.iter().filter(|file| is_real_time(&file.path)) {
        let (text, name) = match &file.blanked {
            Some(blanked) => (blanked.clone(), "test]"),
            None => (python_text::blank_out(&file.text), "def test_"),
        };
        for (at, _) in text.match_indices(name) {
            count += 1;
            if count > REAL_TIME_MAX {
                let advice = format!("the tree has more than {REAL_TIME_MAX} tests in real time; use manual time");
                findings.push(Finding { path: file.path.clone(), line: rust_text::line_of(&text, at), advice });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let mut lines: Vec<_> = check(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect();
        lines.sort_unstable();
        lines
    }

    fn is_found(path: &str, text: &str) -> bool {
        !lines(path, text).is_empty()
    }

    #[test]
    fn tests_do_not_sleep() {
        let text =
            "use tokio::time::{sleep, Duration};\nfn f() { std::thread::sleep(d); }\nfn g() { engine.sleep(); }\n";
        assert_eq!(lines("crates/cli/tests/x.rs", text), [1, 2]);
        assert_eq!(lines("crates/cli/src/x/tests.rs", text), [1, 2]);
        assert!(lines("crates/cli/src/x.rs", text).is_empty());
        let module = format!(
            "fn f() {{ thread::sleep(d) }}\n#[cfg(test)]\nmod tests {{\n{text}}}\nfn g() {{ thread::sleep(d) }}\n"
        );
        assert_eq!(lines("crates/cli/src/x.rs", &module), [4, 5]);
    }

    #[test]
    fn waits_of_rust_tests_have_no_bound_of_their_own() {
        for bad in [
            "x.recv_timeout(Duration::from_millis(50));",
            "thread::park_timeout(Duration::from_micros(5));",
            "c.wait_timeout(guard, Duration::from_secs(1));",
            "tokio::time::interval(Duration::from_millis(10));",
            "tier.settle(clock.after(Duration::from_millis(50)));",
            "settle(50);",
            "tokio::time::timeout(\n    Duration::from_secs(20), free)",
            "assert!(begin.elapsed() < Duration::from_secs(10), \"x\");",
            "let elapsed = f();\nassert!(elapsed > limit);",
        ] {
            let bad = format!("fn f() {{ {bad} }}");
            assert!(is_found("crates/cli/tests/x.rs", &bad), "{bad}");
            assert!(!is_found("crates/cli/src/x.rs", &bad), "{bad}");
            assert!(!is_found(RUST_HELPER, &format!("#[cfg(test)]\nmod tests {{ {bad} }}")), "{bad}");
            assert!(!is_found("crates/cli/tests/cli/real_time.rs", &bad), "{bad}");
        }
        for good in [
            "x.recv_timeout(PATIENCE);",
            "timeout(PATIENCE, wait)",
            "tier.settle(soon())",
            "fn settle(world: &World, hosts: usize, seed: u64) {}",
            "settle(&world, hosts, seed)",
            "x.recv_timeout(Duration::from_secs(0));",
            "// x.recv_timeout(Duration::from_millis(50));",
            "assert!(queue.len() < 5, \"elapsed\");",
            "assert!(began.elapsed() < PATIENCE, \"stuck\");",
            "Settings { timeout: Duration::from_secs(1) }",
        ] {
            assert!(!is_found("crates/cli/tests/x.rs", good), "{good}");
        }
    }

    #[test]
    fn waits_of_python_tests_have_no_bound_of_their_own() {
        for bad in [
            "time.sleep(0.1)",
            "from time import sleep",
            "end = time.monotonic() + SECONDS",
            "began = time.perf_counter()",
            "load.wait(10)",
            "load.wait_layer(layer, 10)",
            "thread.join(0.5)",
            "future.result(30)",
            "socket.poll(10_000)",
            "region.settle_cold(30)",
            "memory.close(0.2)",
            "subprocess.run(command, timeout=60)",
            "queue.get(timeout=5)",
            "def receive(self, timeout: float = 240) -> Any:",
            "Settings({\"timeout\": 2})",
            "assert elapsed < limit",
        ] {
            assert!(is_found("crates/py/tests/test_x.py", bad), "{bad}");
            assert!(is_found("crates/py/tests/vllm/engines.py", bad), "{bad}");
            assert!(!is_found("crates/py/python/cenote/x.py", bad), "{bad}");
            assert!(!is_found(PYTHON_HELPER, bad), "{bad}");
            assert!(!is_found("crates/py/tests/test_real_time.py", bad), "{bad}");
        }
        for good in [
            "load.wait(PATIENCE)",
            "load.wait_layer(3, PATIENCE)",
            "load.wait(0)",
            "', '.join(names)",
            "thread.join()",
            "os.path.join(a, b)",
            "names.get(key, 30)",
            "time.process_time()",
            "run(command, timeout=PATIENCE)",
            "({\"timeout\": -1}, {}, \"timeout is -1\")",
            "({\"timeout\": 0}, {}, \"timeout is 0, so 5\")",
            "# load.wait(10), timeout=5",
            "'load.wait(10), timeout=5'",
            "region.close()",
        ] {
            assert!(!is_found("crates/py/tests/test_x.py", good), "{good}");
        }
    }

    #[test]
    fn a_mark_with_a_reason_permits_a_place() {
        let wait = "x.recv_timeout(Duration::from_millis(50));";
        for good in [
            format!("{wait} // tidy: the message must not come\n"),
            format!("// tidy: the message must not come, and a longer\n// wait finds more.\n{wait}\n"),
        ] {
            assert!(lines("crates/cli/tests/x.rs", &good).is_empty(), "{good}");
        }
        assert_eq!(lines("crates/cli/tests/x.rs", &format!("// tidy:\n{wait}\n")), [2]);
        assert_eq!(lines("crates/cli/tests/x.rs", &format!("// tidy: no\nf();\n{wait}\n")), [3]);
        assert!(lines("crates/py/tests/x.py", "# tidy: it must not end\nload.wait(5)\n").is_empty());
        let many = format!("{wait} // tidy: why\n").repeat(MARKS_MAX + 1);
        assert_eq!(lines("crates/cli/tests/x.rs", &many), [MARKS_MAX + 1]);
    }

    #[test]
    fn few_tests_are_in_real_time() {
        let tests = |count| "#[test]\n".repeat(count);
        let (path, python) = ("crates/cli/tests/cli/real_time.rs", "crates/py/tests/test_real_time.py");
        assert!(lines(path, &tests(3)).is_empty());
        assert_eq!(lines(path, &tests(4)), [4]);
        let both = Tree::of(&[(path, &tests(2)), (python, &"def test_x():\n    pass\n".repeat(2))]);
        assert_eq!(check(&both).len(), 1);
    }

    #[test]
    fn only_rims_name_the_machines_clock() {
        let text = "fn f() { let c = Clock::system(); }\n#[cfg(test)]\nmod tests { fn g() { Clock::system(); } }\n";
        assert_eq!(lines("crates/pool/src/x.rs", text), [1]);
        for rim in
            ["crates/py/src/x.rs", "crates/pool/tests/x.rs", "crates/pool/examples/x.rs", "crates/base/src/time.rs"]
        {
            assert!(lines(rim, text).is_empty(), "{rim}");
        }
        assert!(lines("crates/pool/src/x.rs", "// Clock::system\nSomeClock::system(); Clock::stopped();").is_empty());
    }
}
