//! Object stores that are slow, broken or hostile: servers that say what a test wants.

use cenote_base::testing::ManualTime;
use cenote_base::{BlockHash, Clock, HashSeed};
use cenote_cold::identity::{self, Identity};
use cenote_cold::record::{Aligned, Name};
use cenote_cold::{Backend, ColdError, Objects};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SEED: HashSeed = HashSeed([9; 32]);
const LIMIT: u64 = 4 << 20;
const DEADLINE: Duration = Duration::from_secs(20);
/// Time between two listings.
const LIST_EVERY: Duration = Duration::from_secs(30);
/// Names of a page.
const PAGE: u64 = 100;
/// More than sockets hold.
const FLOOD: u64 = 1 << 30;

/// An answer: status, content, and zeros after it.
struct Answer(u16, Vec<u8>, u64);

fn ok(content: impl Into<Vec<u8>>) -> Answer {
    Answer(200, content.into(), 0)
}

/// A server. `answer` gets method and target of each request, but for those of the identity.
struct Server {
    port: u16,
    sent: Arc<AtomicU64>,
}

impl Server {
    fn start(answer: impl Fn(&str, &str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (sent, answer) = (Arc::<AtomicU64>::default(), Arc::new(answer));
        let counted = Arc::clone(&sent);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (answer, sent) = (Arc::clone(&answer), Arc::clone(&counted));
                // A client that closes its connection ends it.
                std::thread::spawn(move || drop(serve(&socket, &*answer, &sent)));
            }
        });
        Self { port, sent }
    }

    fn objects(&self, clock: Clock) -> Objects {
        let variables = [
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", "key".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        let objects = Objects::with_options("s3://bucket", Some(LIMIT), DEADLINE, clock, variables).expect("a URL");
        objects.open(&SEED).expect("the server answers");
        objects
    }
}

fn serve(socket: &TcpStream, answer: &dyn Fn(&str, &str) -> Answer, sent: &AtomicU64) -> std::io::Result<()> {
    let mut reader = BufReader::new(socket);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        let mut words = first.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let Answer(status, content, zeros) = if target.contains("/tier") {
            ok(identity::encode(&Identity { seed: SEED, bytes_max: LIMIT }, &None))
        } else {
            answer(method, target)
        };
        let mut socket = socket;
        let length = content.len() as u64 + zeros;
        write!(socket, "HTTP/1.1 {status} said\r\nContent-Length: {length}\r\nETag: \"1\"\r\n")?;
        write!(socket, "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n")?;
        socket.write_all(&content)?;
        let piece = vec![0; 1 << 16];
        for _ in 0..zeros / piece.len() as u64 {
            socket.write_all(&piece)?;
            sent.fetch_add(piece.len() as u64, Relaxed);
        }
    }
}

/// A page of a listing that begins after the name with this number.
fn page(after: u64, is_last: bool) -> Vec<u8> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut text = String::from("<ListBucketResult>");
    for number in after + 1..=after + PAGE {
        let hash = format!("{number:032x}");
        let key = format!("cenote-v2/blocks/{}/{hash}", hex(&[2; 32]));
        let _ = write!(
            text,
            "<Contents><Key>{key}</Key><Size>4096</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
             <ETag>1</ETag></Contents>"
        );
    }
    let _ = write!(text, "<IsTruncated>{}</IsTruncated>", !is_last);
    if !is_last {
        let _ = write!(text, "<NextContinuationToken>{}</NextContinuationToken>", after + PAGE);
    }
    text.push_str("</ListBucketResult>");
    text.into()
}

/// The number after which a requested page begins.
fn begin_of(target: &str) -> u64 {
    let parameter = |name: &str| Some(target.split_once(name)?.1.split('&').next().unwrap_or_default().to_owned());
    match (parameter("continuation-token="), parameter("start-after=")) {
        (Some(token), _) => token.parse().expect("one of ours"),
        (None, Some(after)) => u64::from_str_radix(after.rsplit(['/', 'F']).next().expect("a name"), 16).expect("ours"),
        (None, None) => 0,
    }
}

/// Four reads of a block of a few bytes took a gibibyte of memory.
#[test]
fn a_read_is_bounded_by_its_block() {
    let name = Name { namespace: [2; 32], hash: BlockHash([1; 16]) };
    for (status, content) in [(200, Vec::new()), (404, b"<Error>".to_vec())] {
        let server = Server::start(move |_, _| Answer(status, content.clone(), FLOOD));
        let objects = server.objects(ManualTime::start().clock());
        let error = objects.read(&name, 65_536, &mut Aligned::default()).expect_err("no record");
        assert!(!matches!(error, ColdError::Gone(_)), "{error}");
        assert!(server.sent.load(Relaxed) < FLOOD / 4, "{} bytes were read", server.sent.load(Relaxed));
    }
}

/// A listing that did not end took memory until the server had none.
#[test]
fn a_listing_is_bounded_by_the_limit() {
    let server = Server::start(|method, target| match method {
        "GET" => ok(page(begin_of(target), false)),
        _ => ok("<DeleteResult><Deleted><Key>one</Key></Deleted></DeleteResult>"),
    });
    let objects = server.objects(ManualTime::start().clock());
    let error = loop {
        match objects.refresh() {
            Ok(looked) => assert!(looked.has_more && objects.used().bytes <= LIMIT),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("more names than its limit"), "{error}");
    assert!(objects.survey().is_err());
    // A page without an end.
    let server = Server::start(|_, _| Answer(200, b"<ListBucketResult>".to_vec(), FLOOD));
    let objects = server.objects(ManualTime::start().clock());
    assert!(objects.refresh().is_err() && server.sent.load(Relaxed) < FLOOD / 4);
}

/// A place whose listing took longer than half a minute never opened, and began again and again.
#[test]
fn a_long_listing_makes_progress_with_each_page() {
    let (time, pages) = (ManualTime::start(), Arc::<Mutex<Vec<u64>>>::default());
    let asked = Arc::clone(&pages);
    let server = Server::start(move |_, target| {
        let begin = begin_of(target);
        let mut pages = asked.lock().expect("no panic");
        pages.push(begin);
        // Less than a page may take.
        time.advance(Duration::from_secs(10));
        if begin == 4 * PAGE && pages.len() == 5 {
            Answer(403, Vec::new(), 0)
        } else {
            ok(page(begin, begin == 8 * PAGE))
        }
    });
    let objects = server.objects(time.clock());
    let mut listed = Vec::new();
    let error = loop {
        match objects.refresh() {
            Ok(looked) => assert!(looked.has_more),
            Err(error) => break error,
        }
        listed.push(objects.used().blocks);
    };
    assert!(listed.len() >= 2 && listed.is_sorted_by(|one, next| one < next), "it grows meanwhile: {listed:?}");
    assert!(matches!(error, ColdError::Io { .. }) && objects.used().blocks == 4 * PAGE, "{error}");
    time.advance(LIST_EVERY);
    while objects.refresh().expect("the server answers").has_more {}
    assert_eq!(objects.used().blocks, 9 * PAGE);
    let pages = pages.lock().expect("no panic").clone();
    assert_eq!(pages, [0, 1, 2, 3, 4, 4, 5, 6, 7, 8].map(|page| page * PAGE), "it goes on where it was");
}
