//! `cenote ui`: what its server answers, and to whom.

use super::support::process::{Server, cenote};
use super::support::region::Region;
use super::support::{PATIENCE, soon, tokens, until};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Pages at once, as the server has it.
const STREAMS_MAX: usize = 32;

async fn filled() -> Region {
    let region = Region::create("64MiB").await;
    let prompt = "A cenote is a natural pit, or sinkhole, that exposes the groundwater below. ".repeat(4);
    cenote(["generate", "--prompt", &prompt, "--max-tokens", "2", "--region", &region.name]).ok().await;
    region
}

/// The server of a page.
struct Site {
    server: Server,
    http: reqwest::Client,
}

impl Site {
    async fn start(region: &Region) -> Self {
        let ui = cenote(["ui", "--region", &region.name, "--listen", "127.0.0.1:0", "--every", "0.1"]);
        let http = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build().expect("a client");
        Self { server: Server::of(ui, &[]).await, http }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Response {
        let request = self.http.request(method, format!("{}{path}", self.server.url)).body(body);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.send().await.expect("the server answers")
    }

    async fn get(&self, path: &str) -> Response {
        self.ask(Method::GET, path, &[], "").await
    }

    async fn explain(&self, question: &Value) -> (u16, Value) {
        let answer =
            self.ask(Method::POST, "/explain", &[("content-type", "application/json")], question.to_string()).await;
        (answer.status().as_u16(), answer.json().await.expect("JSON"))
    }

    async fn events(&self) -> Events {
        let response = self.get("/events").await;
        assert_eq!((response.status().as_u16(), header(&response, "content-type")), (200, "text/event-stream"));
        Events { response, text: String::new() }
    }
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).unwrap_or_else(|| panic!("{name} is missing")).to_str().expect("text")
}

/// A stream of events.
struct Events {
    response: Response,
    text: String,
}

impl Events {
    /// The next event; `None` at the stream's proper end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                let found = field("event").map(|name| {
                    let data = field("data").expect("an event has data");
                    (name.to_owned(), serde_json::from_str(data).expect("JSON"))
                });
                self.text = rest.to_owned();
                match found {
                    // A comment that keeps the stream alive is no event.
                    None => continue,
                    found => return found,
                }
            }
            let piece = soon("an event", self.response.chunk()).await.expect("the stream does not break")?;
            self.text.push_str(std::str::from_utf8(&piece).expect("ASCII"));
        }
    }

    /// The next event of this kind.
    async fn find(&mut self, kind: &str) -> Value {
        loop {
            let (name, data) = self.next().await.expect("the stream goes on");
            if name == kind {
                return data;
            }
        }
    }
}

/// The paths of all values; elements of a list are alike.
fn shape(value: &Value, at: &str, paths: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| shape(value, &format!("{at}/{name}"), paths)),
        Value::Array(items) => items.iter().for_each(|item| shape(item, &format!("{at}/*"), paths)),
        _ => drop(paths.insert(at.to_owned())),
    }
}

fn shape_of(value: &Value) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    shape(value, "", &mut paths);
    paths
}

#[tokio::test]
async fn an_event_is_what_top_prints_as_json() {
    let region = filled().await;
    let site = Site::start(&region).await;
    let mut events = site.events().await;
    let about = events.find("about").await;
    let first = events.find("look").await;
    assert!(first["gauges"]["cenote_region_blocks"].as_f64() > Some(0.0), "{first}");
    let mut look = loop {
        let look = events.find("look").await;
        if !look["interval"].is_null() {
            break look;
        }
    };
    let mut top = cenote(["top", "--region", &region.name, "--once", "--every", "0.1", "--json"]).ok().await.json();
    assert_eq!(shape_of(&look), shape_of(&top));
    // The one gauge that grows by itself.
    let ages = [&mut look, &mut top].map(|fact| fact["gauges"]["cenote_region_oldest_block_seconds"].take().as_f64());
    assert!(ages[0].is_some() && ages[0] <= ages[1], "{ages:?}");
    for fact in ["region", "uuid", "gauges", "counters", "models", "hosts", "workers", "findings", "events"] {
        assert_eq!(look[fact], top[fact], "{fact}");
    }
    // Charts have a value for each of their lines.
    let lines: usize = about["charts"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|chart| chart["lines"].as_array().expect("lines").len())
        .sum();
    let point = events.find("point").await;
    assert_eq!(point["values"].as_array().expect("a list").len(), lines, "{point}");
    assert!(about["points"].as_array().is_some_and(|points| !points.is_empty()), "{about}");
    // Columns of the page's tables are those of the rows.
    for (table, row) in [("models", &look["models"][0]), ("hosts", &look["hosts"][0]), ("region", &look["gauges"])] {
        let columns = about["columns"][table].as_array().expect("a list");
        let known = columns.iter().filter(|column| row.get(column["name"].as_str().expect("a name")).is_some());
        assert!(known.count() > 2, "{table}: {row}");
    }
    site.server.terminate();
    while events.next().await.is_some() {}
    site.server.ended().await;
}

#[tokio::test]
async fn the_map_sums_up_to_the_region() {
    let region = filled().await;
    let site = Site::start(&region).await;
    let map: Value = site.get("/map").await.json().await.expect("JSON");
    let info = region.info().await;
    let cells = map["cells"].as_array().expect("a list");
    let sum = |field: &str| cells.iter().map(|cell| cell[field].as_u64().expect("a number")).sum::<u64>();
    for (field, fact) in
        [("chunks", "num_chunks"), ("taken", "chunks_taken"), ("blocks", "blocks_ready"), ("bytes", "bytes_ready")]
    {
        assert_eq!(Some(sum(field)), info[fact].as_u64(), "{field}");
        assert!(sum(field) > 0, "{field}");
    }
    let taken = cells.iter().find(|cell| cell["blocks"].as_u64() > Some(0)).expect("a cell with blocks");
    assert_eq!((&taken["hosts"], &taken["models"][0]), (&json!([[0, taken["taken"]]]), &json!([0, taken["blocks"]])));
    assert!(taken["age"]["oldest"].as_u64() >= taken["age"]["newest"].as_u64(), "{taken}");
    site.server.stop().await;
}

#[tokio::test]
async fn pages_of_other_sites_get_no_answer() {
    let region = Region::create("8MiB").await;
    let site = Site::start(&region).await;
    for (headers, path, status) in [
        (&[("host", "evil.example")][..], "/", 403),
        (&[("host", "evil.example")], "/events", 403),
        (&[("host", "127.0.0.1.evil.example:80")], "/map", 403),
        (&[("host", "localhost")], "/", 200),
        (&[("host", "[::1]:9471")], "/map", 200),
        (&[("sec-fetch-site", "cross-site")], "/map", 403),
        (&[("sec-fetch-site", "same-site")], "/events", 403),
        (&[("sec-fetch-site", "cross-site")], "/", 200),
        (&[("sec-fetch-site", "same-origin")], "/map", 200),
        (&[], "/nowhere", 404),
    ] {
        let answer = site.ask(Method::GET, path, headers, "").await;
        assert_eq!(answer.status().as_u16(), status, "{headers:?} {path}");
        assert_eq!(header(&answer, "x-content-type-options"), "nosniff");
        assert!(answer.headers().get("access-control-allow-origin").is_none());
    }
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::PATCH] {
        for path in ["/", "/events", "/map", "/health"] {
            let answer = site.ask(method.clone(), path, &[], "").await;
            assert_eq!(answer.status().as_u16(), 405, "{method} {path}");
        }
    }
    assert_eq!(site.get("/explain").await.status().as_u16(), 405);
    assert_eq!(site.get("/health").await.text().await.expect("text"), "ok\n");
    site.server.stop().await;
}

#[tokio::test]
async fn the_page_permits_its_own_script_only() {
    let region = Region::create("8MiB").await;
    let site = Site::start(&region).await;
    let mut words = BTreeSet::new();
    for _ in 0..2 {
        let answer = site.get("/").await;
        let policy = header(&answer, "content-security-policy").to_owned();
        assert_eq!(header(&answer, "cache-control"), "no-store");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let word = policy.split("script-src 'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).expect("a word");
        assert_eq!(word.len(), 32, "{policy}");
        let page = answer.text().await.expect("text");
        assert_eq!(page.matches(&format!("nonce=\"{word}\"")).count(), 2, "script and style");
        assert!(!page.contains("{{"));
        words.insert(word.to_owned());
    }
    assert_eq!(words.len(), 2, "each page has a word of its own");
    site.server.stop().await;
}

#[tokio::test]
async fn a_prompt_is_explained_as_by_the_command() {
    let region = Region::create("64MiB").await;
    let site = Site::start(&region).await;
    let (status, answer) = site.explain(&json!({ "tokens": "1 2 3" })).await;
    assert_eq!(status, 422, "{answer}");
    assert!(answer["error"].as_str().is_some_and(|words| words.contains("no model has used the region")), "{answer}");
    let server = Server::start(&["--region", &region.name]).await;
    server.client.complete(&super::support::client::greedy(&tokens(3, 200), 4)).await;
    until("the prompt's blocks", async || (region.info().await["blocks_ready"].as_u64() >= Some(12)).then_some(()))
        .await;
    server.stop().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokens");
    // Twelve blocks of the first prompt; then blocks that nothing has stored.
    let prompt = [tokens(3, 192), tokens(4, 64)].concat();
    let text = format!("{prompt:?}");
    std::fs::write(&path, &text).expect("it is writable");
    let command = ["pool", "explain", "--region", &region.name, "--tokens", path.to_str().expect("ASCII")];
    let mut told = cenote(command.into_iter().chain(["--json"])).ok().await.json();
    let table = cenote(command).ok().await.out;
    let (status, mut answer) = site.explain(&json!({ "tokens": text })).await;
    assert_eq!(status, 200, "{answer}");
    let rows = answer.as_object_mut().expect("an object").remove("rows").expect("rows");
    for of in [&mut told, &mut answer] {
        of["blocks"].as_array_mut().expect("a list").iter_mut().for_each(|block| {
            block.as_object_mut().expect("an object").remove("age_s");
        });
    }
    assert_eq!(answer, told);
    assert_eq!((told["prefix_blocks"].as_u64(), rows.as_array().map(Vec::len)), (Some(12), Some(2)), "{rows}");
    for (row, first, last) in [(&rows[0], 0, 11), (&rows[1], 12, 15)] {
        assert_eq!((&row["first"], &row["last"]), (&json!(first), &json!(last)), "{rows}");
        assert!(table.contains(row["what"].as_str().expect("words")), "{row}\n{table}");
    }
    // By name, and with another salt.
    let name = answer["blocks"][0]["name"].clone();
    let (_, by_name) = site.explain(&json!({ "names": name, "model": "0" })).await;
    assert_eq!(by_name["blocks"][0]["state"], "present", "{by_name}");
    let (_, salted) = site.explain(&json!({ "tokens": text, "cache_salt": "red" })).await;
    assert_eq!(salted["blocks"][0]["state"], "other_salt", "{salted}");
    for (question, words) in [
        (json!({ "tokens": "1, two" }), "tokens: `two` is no token's number"),
        (json!({ "names": "12" }), "names: `12` is no name of a block"),
        (json!({ "tokens": "1", "names": "2" }), "either tokens or names"),
        (json!({}), "either tokens or names"),
        (json!({ "tokens": "1", "model": "none" }), "does not name one of its models"),
    ] {
        let (status, answer) = site.explain(&question).await;
        assert_eq!(status, 422, "{question}: {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(words)), "{question}: {answer}");
    }
    site.server.stop().await;
}

#[tokio::test]
async fn a_question_has_a_form_and_a_size() {
    let region = Region::create("8MiB").await;
    let site = Site::start(&region).await;
    let json_type = ("content-type", "application/json");
    for (headers, body, status) in [
        (&[("content-type", "text/plain")][..], "{}".to_owned(), 415),
        (&[], "{}".to_owned(), 415),
        (&[json_type], "{".to_owned(), 400),
        (&[json_type], r#"{"tokens": "1", "region": "shm:other"}"#.to_owned(), 400),
        (&[json_type], "x".repeat((4 << 20) + 1), 413),
        (&[json_type, ("host", "evil.example")], "{}".to_owned(), 403),
    ] {
        let answer = site.ask(Method::POST, "/explain", headers, body).await;
        assert_eq!(answer.status().as_u16(), status, "{headers:?}");
    }
    site.server.stop().await;
}

#[tokio::test]
async fn the_number_of_pages_is_bounded() {
    let region = Region::create("8MiB").await;
    let site = Site::start(&region).await;
    let mut open = Vec::new();
    for _ in 0..STREAMS_MAX {
        open.push(site.events().await);
    }
    let refused = site.get("/events").await;
    assert_eq!((refused.status().as_u16(), header(&refused, "retry-after")), (503, "1"));
    assert!(refused.text().await.is_ok_and(|words| words.contains("too many pages are open")));
    assert_eq!(site.get("/health").await.status().as_u16(), 200, "other requests are answered");
    drop(open.pop());
    until("the seat of the page that was closed", async || {
        (site.get("/events").await.status().as_u16() == 200).then_some(())
    })
    .await;
    drop(open);
    site.server.stop().await;
}

#[tokio::test]
async fn a_region_that_goes_and_comes_back_is_told() {
    let region = Region::create("8MiB").await;
    let site = Site::start(&region).await;
    let mut events = site.events().await;
    let before = events.find("look").await;
    cenote(["pool", "destroy", "--region", &region.name]).ok().await;
    let gone = events.find("gone").await;
    assert!(gone["words"].as_str().is_some_and(|words| words.contains("no such region")), "{gone}");
    assert_eq!((site.get("/map").await.status().as_u16(), site.get("/health").await.status().as_u16()), (503, 503));
    cenote(["pool", "create", "--region", &region.name, "--size", "16MiB"]).ok().await;
    let after = events.find("look").await;
    assert_ne!(before["uuid"], after["uuid"]);
    assert_eq!(after["gauges"]["cenote_region_bytes"].as_f64(), Some(f64::from(16 << 20)));
    site.server.stop().await;
}

#[tokio::test]
async fn without_a_region_or_a_port_the_command_says_what_to_do() {
    let region = Region::create("8MiB").await;
    cenote(["ui", "--region", "shm:no-such-region"]).fails(&["no such region", "cenote pool create"]).await;
    let site = Site::start(&region).await;
    let address = site.server.url.trim_start_matches("http://");
    cenote(["ui", "--region", &region.name, "--listen", address])
        .fails(&["the port is in use", "port of --listen"])
        .await;
    cenote(["ui", "--region", &region.name, "--every", "0.01"]).fails(&["at least 0.1"]).await;
    site.server.stop().await;
}
