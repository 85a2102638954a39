//! `cenote-lab bench sessions` with servers of its own, and with servers that run already.

use super::support::process::{bare_lab, cenote_program, lab};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

/// Sessions that grow by six ids of 64 tokens a turn; the third turn branches.
fn trace(folder: &Path) -> String {
    let session = |number: u64| {
        let turn =
            |nth: u64, runs: &str, ids: u64| format!("[{}, {}, 20, {runs}, 0, 1.0, 2.0]", 3 * nth, 64 * ids + 30);
        let turns = [
            turn(0, "[[1, 60]]", 60),
            turn(1, "[[1, 66]]", 66),
            turn(2, "[[1, 62], [100, 10]]", 72),
            turn(3, "[[1, 62], [100, 16]]", 78),
            turn(4, "[[1, 62], [100, 900]]", 962),
        ];
        format!("{{\"session\": {number}, \"block\": 64, \"requests\": [{}]}}\n", turns.join(", "))
    };
    let path = folder.join("sessions.jsonl");
    std::fs::write(&path, (0..3).map(session).collect::<String>()).expect("a file");
    path.to_str().expect("a name").to_owned()
}

fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
}

#[tokio::test]
async fn servers_answer_alike_and_the_region_holds_what_came_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path());
    let program = cenote_program().to_str().expect("the path is UTF-8");
    let [page, picture] = ["page.html", "plot.svg"].map(|name| folder.path().join(name).display().to_string());
    let args = ["bench", "sessions", "--quick", "--json", "--check", "--trace", &trace, "--program", program];
    let more = ["--tokens-per-id", "8", "--context", "700", "--output-tokens", "3", "--region-size", "128MiB"];
    let report = lab(args.into_iter().chain(more).chain(["--html", &page, "--svg", &picture])).ok().await.json();
    assert_eq!((report["sessions"].as_u64(), report["requests"].as_u64()), (Some(3), Some(12)), "{report}");
    let repeated = report["repeated"].as_f64().expect("a share");
    assert!((0.6..0.8).contains(&repeated), "{repeated}");
    for name in ["no region", "region", "small region", "small region, L4"] {
        let row = row(&report, name);
        assert_eq!((&row["answered"], &row["failed"], &row["not_asked"]), (&12.into(), &0.into(), &0.into()), "{row}");
        assert_eq!(row["differ"], 0, "{row}");
        let [p50, p90, p99] = ["p50", "p90", "p99"].map(|key| row["ttft"][key].as_f64().expect("a time"));
        assert!(0.0 < p50 && p50 <= p90 && p90 <= p99, "{row}");
        let is_first = name == "no region";
        assert_eq!(row["compared"], if is_first { 0 } else { 12 }, "{row}");
        let hits = row["hit_rate"].as_f64().expect("a share");
        assert!(if is_first { hits == 0.0 } else { hits <= repeated + 1e-9 }, "{row}");
        if !is_first {
            let evicted = row["tiers"]["evicted_blocks"].as_f64().expect("a count");
            assert_eq!(evicted > 0.0, name != "region", "{row}");
        }
    }
    let region = row(&report, "region");
    // Blocks of 16 tokens, as in the share of repeated tokens.
    assert!((region["hit_rate"].as_f64().expect("a share") - repeated).abs() < 1e-9, "{report}");
    let prompt = report["prompt_tokens"].as_f64().expect("tokens");
    let of_region = region["tiers"]["region"].as_f64().expect("tokens");
    assert!((of_region / prompt - repeated).abs() < 1e-9, "{report}");
    let turns: Vec<_> = report["turns"].as_array().expect("turns").iter().map(|one| &one["last"]).collect();
    assert_eq!(turns, [1, 2, 4]);
    assert_eq!(std::fs::read_to_string(page).expect("a page").matches("<svg").count(), 2);
    assert!(std::fs::read_to_string(picture).expect("a picture").starts_with("<svg xmlns="));
}

/// A whole request: a server that leaves a part of it unread resets the connection.
fn request(stream: &mut TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let start = head.len();
        if reader.read_line(&mut head).unwrap_or(0) == 0 || head[start..].trim().is_empty() {
            break;
        }
        if let Some((name, value)) = head[start..].split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    // The client may be gone.
    let _ = reader.read_exact(&mut vec![0; length]);
    head
}

/// A server that has a model and refuses every request.
fn refusing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let request = request(&mut stream);
            let (status, body) = if request.starts_with("GET /v1/models") {
                ("200 OK", "{\"data\": [{\"id\": \"m\", \"max_model_len\": 900}]}")
            } else {
                ("503 Service Unavailable", "no worker")
            };
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            // The client may be gone.
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    url
}

#[tokio::test]
async fn failures_are_counted_and_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path());
    let server = format!("broken={}", refusing());
    let args = ["bench", "sessions", "--quick", "--json", "--trace", &trace, "--url", &server, "--tokens-per-id", "8"];
    let outcome = bare_lab(args).fails(&["broken: 3 requests failed and 9 were not asked", "answered 503"]).await;
    let report = outcome.json();
    let row = row(&report, "broken");
    assert_eq!((&row["answered"], &row["failed"], &row["not_asked"]), (&0.into(), &3.into(), &9.into()), "{row}");
    assert!(row["ttft"].is_null() && row["hit_rate"].is_null() && row["tiers"].is_null(), "{row}");
    assert_eq!(row["failures"].as_object().map(serde_json::Map::len), Some(1), "{row}");

    let args = ["bench", "sessions", "--trace", &trace, "--url", &server, "--context", "40"];
    bare_lab(args).fails(&["the trace has no requests", "--tokens-per-id"]).await;
    bare_lab(["bench", "sessions", "--trace", &trace, "--url", "somewhere"]).fails(&["NAME=URL"]).await;
}
