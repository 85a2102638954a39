//! Unrelated processes read one table, and memory has it once.

use crate::support::*;
use cenote_mem::Flush;
use cenote_tables::checkpoint::tensor_table;
use cenote_tables::{LoadOptions, Opening, Table, load};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};

const ROWS: usize = 200_000;
const VALUES: usize = 80;
const TABLE_BYTES: u64 = (ROWS * VALUES * 2) as u64;
const READERS: u64 = 3;

/// Bytes that this process alone has and its part of shared ones, in mappings of a file.
fn proportional_bytes(file: &str) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
    let (mut counts, mut bytes) = (false, 0);
    for line in maps.lines() {
        match line.split_once(':') {
            Some(("Pss", rest)) if counts => {
                bytes += rest.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10;
            }
            // A mapping begins with its addresses.
            _ if line.split_whitespace().next().is_some_and(|word| word.contains('-') && !word.contains(':')) => {
                counts = line.contains(file);
            }
            _ => {}
        }
    }
    bytes
}

/// Reads all rows, says so, and says its memory once all readers have read.
#[test]
#[ignore = "the process that another test starts"]
fn reader() {
    let (region, _) = given();
    let pool = attach(&region, 0);
    let table = Table::open(&pool, "t", Opening::Verified).expect("it was loaded");
    let rows: Vec<u64> = (0..ROWS as u64).collect();
    let mut to = vec![0; TABLE_BYTES as usize];
    table.gather(&rows, &mut to).expect("it is there");
    let say = |text: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n@{text}").and_then(|()| out.flush()).expect("the test listens");
    };
    say("read".to_owned());
    std::io::stdin().read_line(&mut String::new()).expect("the test says so");
    let name = region.to_string();
    let file = name.strip_prefix("shm:").expect("shared memory");
    say(format!("{} {}", proportional_bytes(file), fnv_of(&to)));
    std::io::stdin().read_line(&mut String::new()).expect("the test says so");
}

fn fnv_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(1469598103934665603, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(1099511628211))
}

struct Reader {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    go: ChildStdin,
}

impl Reader {
    fn said(&mut self) -> String {
        let line = self.lines.by_ref().map(|line| line.expect("text")).find(|line| line.starts_with('@'));
        line.expect("the reader ended early")[1..].to_owned()
    }
}

#[test]
fn unrelated_processes_share_one_copy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    let bytes = bf16_file(&file, ROWS, VALUES, 1);
    let region = Region::new("sharing", 64 << 20, 2 << 20, Flush::None);
    let source = tensor_table(&file, "table", None, None).unwrap();
    load(&region.attach(0), "t", &source, &LoadOptions::waiting(patience())).unwrap();
    let mut readers: Vec<Reader> = (0..READERS)
        .map(|_| {
            let mut command = region.process("sharing::reader", &file, None);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
            let go = child.stdin.take().expect("piped");
            Reader { child, lines, go }
        })
        .collect();
    for reader in &mut readers {
        assert_eq!(reader.said(), "read");
    }
    readers.iter_mut().for_each(|reader| writeln!(reader.go, "go").unwrap());
    let said: Vec<String> = readers.iter_mut().map(Reader::said).collect();
    let mut total = 0;
    for said in &said {
        let (pss, sum) = said.split_once(' ').expect("two numbers");
        assert_eq!(sum, fnv_of(&bytes).to_string(), "every reader has all rows");
        total += pss.parse::<u64>().unwrap();
    }
    for mut reader in readers {
        writeln!(reader.go, "end").unwrap();
        assert!(reader.child.wait().unwrap().success());
    }
    // The areas of the region besides the table are a few hundred kilobytes.
    let copies = total as f64 / TABLE_BYTES as f64;
    assert!((0.95..1.1).contains(&copies), "{READERS} readers have {copies:.2} copies: {said:?}");
}
