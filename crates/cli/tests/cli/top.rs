//! `cenote top` and `cenote stat`, also on a region without live processes.

use super::support::process::{cenote, cenote_program};
use super::support::region::Region;
use super::support::{PATIENCE, until};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::num::NonZero;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

async fn filled() -> Region {
    let region = Region::create("64MiB").await;
    let prompt = "A cenote is a natural pit, or sinkhole, that exposes the groundwater below. ".repeat(4);
    cenote(["generate", "--prompt", &prompt, "--max-tokens", "2", "--region", &region.name]).ok().await;
    region
}

#[tokio::test]
async fn one_picture_of_a_dead_region_is_text_or_json() {
    let region = filled().await;
    let once = ["top", "--region", &region.name, "--once", "--every", "0.1"];
    let picture = cenote(once).ok().await.out;
    assert!(picture.lines().count() <= 24 && picture.lines().all(|line| line.chars().count() <= 80), "{picture}");
    for fact in ["no process has it open", "chunks taken", "[1 models]", "demo", "no lookups"] {
        assert!(picture.contains(fact), "{fact}:\n{picture}");
    }
    let json = cenote(once.into_iter().chain(["--json"])).ok().await.json();
    let info = region.info().await;
    assert_eq!(json["gauges"]["cenote_region_blocks"].as_f64(), info["blocks_ready"].as_f64(), "{json}");
    assert!(info["blocks_ready"].as_u64() > Some(0), "{info}");
    let published = "/counters/cenote_pool_published_total";
    assert_eq!(json.pointer(published), info.pointer("/counters/pool_published_total"), "{json}");
    assert_eq!(json["models"][0]["cenote_model_blocks"].as_f64(), info["namespaces"][0]["blocks"].as_f64(), "{json}");
    assert!(json["interval"]["seconds"].as_f64() >= Some(0.1), "{json}");
    assert!(json["events"].as_array().is_some_and(|events| !events.is_empty()), "{json}");
    assert_eq!(json["findings"], Value::Array(Vec::new()), "{json}");
}

#[tokio::test]
async fn stat_prints_a_line_an_interval() {
    let region = filled().await;
    let stat = ["stat", "--region", &region.name, "--every", "0.1", "--count", "3"];
    let text = cenote(stat).ok().await.out;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].contains("time (UTC)") && lines[0].contains("hits"), "{text}");
    assert!(lines[1..].iter().all(|line| line.chars().count() == lines[0].chars().count()), "{text}");
    let json = cenote(stat.into_iter().chain(["--json"])).ok().await.out;
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line["gauges"]["cenote_region_blocks"].as_f64() > Some(0.0)), "{json}");
}

#[tokio::test]
async fn history_is_cut_by_age_and_followed() {
    let region = filled().await;
    let history = |flags: &[&'static str]| {
        cenote(["pool", "history", "--region", &region.name].iter().copied().chain(flags.iter().copied()))
    };
    let all = history(&["--json"]).ok().await.json();
    let count = |records: &Value| records.as_array().expect("an array").len();
    assert!(count(&all) > 0, "{all}");
    assert_eq!(count(&history(&["--json", "--since", "1h"]).ok().await.json()), count(&all));
    assert_eq!(count(&history(&["--json", "--since", "0"]).ok().await.json()), 0);
    history(&["--since", "5 parsecs"]).fails(&["no time"]).await;
    let mut child = Command::new(cenote_program())
        .args(["pool", "history", "-f", "--json", "--region", &region.name])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let wanted = count(&all) + 1;
    let reader = std::thread::spawn(move || -> Vec<Value> {
        let lines = lines.map(|line| serde_json::from_str(&line.expect("text")).expect("JSON"));
        lines.take(wanted).collect()
    });
    // It joins, which is a new event.
    cenote(["pool", "gc", "--region", &region.name]).ok().await;
    until("the new event", async || reader.is_finished().then_some(())).await;
    let followed = reader.join().expect("it reads");
    assert_eq!(followed[..wanted - 1], all.as_array().expect("an array")[..]);
    assert!(followed[wanted - 1]["sequence"].as_u64() > followed[wanted - 2]["sequence"].as_u64(), "{followed:?}");
    child.kill().and_then(|()| child.wait()).expect("it is our child");
}

#[tokio::test]
async fn without_a_terminal_or_a_region_top_says_what_to_do() {
    let region = Region::create("8MiB").await;
    cenote(["top", "--region", &region.name]).fails(&["stdout is no terminal", "cenote top --once"]).await;
    cenote(["top", "--once", "--region", "shm:no-such-region"]).fails(&["no such region"]).await;
}

/// A program on a terminal of its own, with what it has written.
struct Screen {
    keys: File,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Screen {
    /// The terminal after what was written so far. Only changes are written, so the words on it need not
    /// be in there as they stand.
    fn terminal(&self) -> vt100::Parser {
        let [rows, columns] = [24, 80].map(|count| NonZero::new(count).expect("it is not zero"));
        let mut terminal = vt100::Parser::new(rows, columns, 0);
        terminal.process(&self.written.lock().expect("its reader lives"));
        terminal
    }

    async fn shows(&self, words: &str) {
        until(words, async || self.terminal().screen().contents().contains(words).then_some(())).await;
    }

    fn is_second(&self) -> bool {
        self.terminal().screen().alternate_screen()
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal is there");
    }
}

#[tokio::test]
async fn top_lives_on_a_terminal_and_leaves_it_as_it_was() {
    let region = filled().await;
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("it is ours");
    let name = ptsname(&ours, Vec::new()).expect("it has a name").into_string().expect("ASCII");
    tcsetwinsize(&ours, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
    let theirs = File::options().read(true).write(true).open(name).expect("the other end");
    let end = || Stdio::from(theirs.try_clone().expect("a descriptor"));
    let mut child = tokio::process::Command::new(cenote_program())
        .args(["top", "--region", &region.name, "--every", "0.1"])
        .env("TERM", "xterm-256color")
        .stdin(end())
        .stdout(end())
        .stderr(end())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts");
    drop(theirs);
    let mut ours = File::from(ours);
    let mut screen = Screen { keys: ours.try_clone().expect("a descriptor"), written: Arc::default() };
    let written = Arc::clone(&screen.written);
    let reader = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        // On Linux, reading after the last writer's end is an error (EIO).
        while let Ok(length @ 1..) = ours.read(&mut piece) {
            written.lock().expect("its users live").extend_from_slice(&piece[..length]);
        }
    });
    screen.shows("[1 models]").await;
    screen.shows("chunks").await;
    screen.press("2");
    screen.shows("[2 hosts]").await;
    screen.press("?");
    screen.shows("choose").await;
    screen.press("?/de");
    screen.shows("/de_").await;
    assert!(screen.is_second(), "it has not left the second screen");
    screen.press("\u{1b}");
    screen.shows("q quit").await;
    // Ctrl-C is a key there.
    screen.press("\u{3}");
    let status = tokio::time::timeout(PATIENCE, child.wait()).await;
    let status = status.expect("it ends").expect("it is our child");
    drop(screen.keys.flush());
    reader.join().expect("it reads");
    assert!(status.success(), "{status}");
    assert!(!screen.is_second(), "it has left the second screen");
}
