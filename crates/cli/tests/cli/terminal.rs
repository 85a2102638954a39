//! Output on a terminal: tables fit its width, and progress is cleared.

use super::support::process::{Cenote, bare, bare_lab, cenote};
use super::support::region::Region;
use super::support::repository;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetwinsize, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::process::Stdio;

/// Runs a command on a terminal of this many columns and returns its output, escapes included. Its
/// stderr goes there only `with_words`.
async fn at_terminal(columns: u16, command: Cenote, with_words: bool) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("it is ours");
    let name = ptsname(&ours, Vec::new()).expect("it has a name").into_string().expect("ASCII");
    tcsetwinsize(&ours, Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
    let theirs = File::options().read(true).write(true).open(name).expect("the other end");
    assert_eq!(tcgetwinsize(&theirs).expect("a size").ws_col, columns);
    let reader = std::thread::spawn(move || {
        let (mut ours, mut bytes, mut piece) = (File::from(ours), Vec::new(), [0; 4096]);
        // On Linux, reading after the last writer's end is an error (EIO).
        while let Ok(length @ 1..) = ours.read(&mut piece) {
            bytes.extend_from_slice(&piece[..length]);
        }
        String::from_utf8_lossy(&bytes).replace("\r\n", "\n")
    });
    let words = if with_words { theirs.try_clone().expect("a descriptor").into() } else { Stdio::null() };
    command.run_at(theirs, words).await;
    reader.join().expect("it reads")
}

/// The screen at the end: each line without cleared text.
fn stays(written: &str) -> Vec<&str> {
    written.lines().map(|line| line.rsplit("\u{1b}[2K").next().unwrap_or(line).trim_start_matches('\r')).collect()
}

fn expect_to_fit(columns: usize, text: &str) {
    for line in text.lines() {
        let line = line.trim_start_matches('\r');
        assert!(line.chars().count() <= columns, "over {columns} columns: `{line}`\n{text}");
        assert_eq!(line.trim_end(), line, "spaces at the end:\n{text}");
    }
}

const SWEEP: [&str; 8] =
    ["sim", "--load", "cpen", "--pool", "none,64GiB,infinite", "--eviction", "lru,cost-aware", "--requests=40"];

#[tokio::test]
async fn tables_fit_the_terminal() {
    for columns in [60, 80, 132] {
        let written = at_terminal(columns, bare_lab(SWEEP), false).await;
        let screen = stays(&written).join("\n");
        assert!(screen.contains("cost-aware") && screen.contains('─'), "{screen}");
        expect_to_fit(columns.into(), &screen);
    }
}

/// Earlier, tables were as wide as their content without a known width.
#[tokio::test]
async fn tables_have_80_columns_without_a_terminal() {
    let region = Region::create("64MiB").await;
    let generate = ["generate", "--region", &region.name, "--prompt", "The cave", "--max-tokens", "2", "--model-name"];
    cenote(generate.into_iter().chain(["a-model-with-a-name-as-long-as-some-people-like"])).ok().await;
    let info = ["pool", "info", "--region", &region.name];
    let commands: [&dyn Fn() -> Cenote; 3] = [&|| bare(info), &|| bare(["doctor"]), &|| bare_lab(SWEEP)];
    for command in commands {
        let outcome = command().ok().await;
        expect_to_fit(80, &outcome.out);
        let narrow = command().env("COLUMNS", "50").ok().await;
        let fits = |line: &str| line.chars().count() <= 50 || !line.trim().contains(' ');
        assert!(narrow.out.lines().all(fits), "{}", narrow.out);
    }
    let info = bare(info).ok().await.out;
    let tables: Vec<&str> = info.split("\n\n").filter(|table| table.contains('─')).collect();
    assert!(tables.len() >= 2, "{info}");
    for table in tables {
        let rules: Vec<usize> =
            table.lines().enumerate().filter(|(_, line)| line.starts_with('─')).map(|(at, _)| at).collect();
        let header =
            table.lines().position(|line| line.starts_with(|first: char| first.is_ascii_digit() || first == ' '));
        assert!(rules.len() == 1 && rules[0] > 0, "one rule, under the header:\n{info}");
        assert!(header.is_some(), "and rows below it:\n{info}");
    }
}

/// Earlier, a model that failed to load left `⠁ loading the model` above the error.
#[tokio::test]
async fn a_failure_leaves_no_progress_behind() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::copy(repository("models/demo/config.json"), dir.path().join("config.json")).expect("it is copied");
    let model = dir.path().to_str().expect("UTF-8");
    let written = at_terminal(80, bare(["generate", "--prompt", "x", "--model", model]), true).await;
    let screen = stays(&written);
    assert!(screen.iter().any(|line| line.starts_with("error: ")), "{written}");
    assert!(!screen.iter().any(|line| line.contains("loading the model")), "{written}");
}
