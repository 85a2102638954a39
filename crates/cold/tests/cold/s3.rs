//! Objects on a real S3 server, which runs in this process, and in a local directory.

use cenote_base::testing::{ManualTime, PATIENCE, until};
use cenote_base::{BlockHash, HashSeed};
use cenote_cold::identity::Identity;
use cenote_cold::record::{Aligned, HEADER_BYTES, Head, Name, Sums, record_bytes};
use cenote_cold::{Backend, ColdError, Objects, Sealed, Used};
use hyper::http::{Extensions, HeaderMap, Method, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use s3s::auth::SimpleAuth;
use s3s::route::S3Route;
use s3s::service::S3ServiceBuilder;
use s3s::{Body, S3Request, S3Response, S3Result};
use s3s_fs::FileSystem;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const PLACE: &str = "s3://bucket/some/prefix";
const SEED: HashSeed = HashSeed([9; 32]);
const LENGTH: usize = 100_032;
const DEADLINE: Duration = Duration::from_secs(20);

/// Longer than any wait for the store.
const LONG: Duration = Duration::from_secs(60);
/// Longer than the wait for a put with a condition, and shorter than the others.
const SHORT: Duration = Duration::from_secs(5);
/// Time between two listings.
const LIST_EVERY: Duration = Duration::from_secs(30);

/// What a server does wrong. Time passes only where it says so.
struct Trouble {
    time: &'static ManualTime,
    /// Refuses puts with a condition, as some stores do, after [`SHORT`].
    has_no_conditions: bool,
    /// Does not answer, for [`LONG`] and more.
    is_silent: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl S3Route for Trouble {
    fn is_match(&self, method: &Method, _: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        let has_condition = method == Method::PUT && headers.contains_key("if-none-match");
        self.is_silent.load(Relaxed) || self.has_no_conditions && has_condition
    }

    async fn call(&self, _: S3Request<Body>) -> S3Result<S3Response<Body>> {
        if self.is_silent.load(Relaxed) {
            self.time.advance(LONG);
            std::future::pending::<()>().await;
        }
        self.time.advance(SHORT);
        Err(s3s::s3_error!(NotImplemented, "this store has no conditions"))
    }
}

/// An S3 server over a directory, on a port of this machine.
struct Server {
    runtime: Runtime,
    port: u16,
    time: &'static ManualTime,
    is_silent: Arc<AtomicBool>,
}

impl Server {
    fn start(root: &Path) -> Self {
        Self::start_with(root, false)
    }

    fn start_with(root: &Path, has_no_conditions: bool) -> Self {
        let runtime = Runtime::new().expect("threads");
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(root).expect("a directory"));
        builder.set_auth(SimpleAuth::from_single("key", "secret"));
        let (time, is_silent) = (ManualTime::start(), Arc::new(AtomicBool::new(false)));
        builder.set_route(Trouble { time, has_no_conditions, is_silent: Arc::clone(&is_silent) });
        let service = builder.build();
        runtime.spawn(async move {
            let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            while let Ok((socket, _)) = listener.accept().await {
                let connection = http.serve_connection(TokioIo::new(socket), service.clone()).into_owned();
                tokio::spawn(connection);
            }
        });
        Self { runtime, port, time, is_silent }
    }

    /// Ends the server: connections are refused.
    fn end(self) -> &'static ManualTime {
        self.runtime.shutdown_timeout(PATIENCE);
        self.time
    }

    fn variables(&self, secret: &str) -> Vec<(String, String)> {
        [
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", "key".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Objects on this server that are not open yet.
    fn at(&self, url: &str, bytes: u64, secret: &str) -> Objects {
        Objects::with_options(url, Some(bytes), DEADLINE, self.time.clock(), self.variables(secret)).expect("a URL")
    }

    fn objects(&self, bytes: u64) -> Objects {
        let objects = self.at(PLACE, bytes, "secret");
        objects.open(&SEED).expect("the server answers");
        objects.refresh().expect("it lists");
        objects
    }
}

fn name(number: u8) -> Name {
    Name { namespace: [2; 32], hash: BlockHash([number; 16]) }
}

fn byte(number: u8, at: usize) -> u8 {
    (usize::from(number) * 31 + at) as u8
}

fn write(objects: &Objects, numbers: std::ops::Range<u8>) -> Result<(), ColdError> {
    let records: Vec<(Head, Vec<u8>)> = numbers
        .map(|number| {
            let head = Head { name: name(number), length: LENGTH as u64, depth: 3, encoding: 1, names: [5, 6] };
            let mut record = vec![0; record_bytes(LENGTH as u64) as usize];
            let payload = &mut record[HEADER_BYTES..HEADER_BYTES + LENGTH];
            payload.iter_mut().enumerate().for_each(|(at, value)| *value = byte(number, at));
            Sums::of(&SEED).seal(&head, &mut record);
            (head, record)
        })
        .collect();
    let sealed: Vec<Sealed<'_>> = records.iter().map(|(head, bytes)| Sealed { head: *head, bytes }).collect();
    objects.write(&sealed, &[])
}

fn read(objects: &Objects, number: u8) -> Result<(), ColdError> {
    let mut memory = Aligned::default();
    let head = objects.read(&name(number), LENGTH as u64, &mut memory)?;
    assert_eq!((head.depth, head.encoding, head.names), (3, 1, [5, 6]));
    let payload = &memory.bytes()[HEADER_BYTES..HEADER_BYTES + LENGTH];
    assert!(payload.iter().enumerate().all(|(at, &found)| found == byte(number, at)), "wrong bytes of {number}");
    Ok(())
}

fn found(objects: &Objects, numbers: std::ops::Range<u8>) -> usize {
    numbers.filter(|&number| read(objects, number).is_ok()).count()
}

/// The files below a directory.
fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all
}

#[test]
fn an_s3_server_keeps_blocks_for_the_next_process() {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(root.path().join("bucket")).expect("a bucket");
    let server = Server::start(root.path());
    let objects = server.objects(64 << 20);
    write(&objects, 0..40).expect("the server takes them");
    let next = server.objects(64 << 20);
    assert_eq!((found(&objects, 0..41), found(&next, 0..41), next.used().blocks), (40, 40, 40));
    let other = server.at(PLACE, 1 << 20, "secret");
    let error = other.open(&HashSeed([1; 32])).expect_err("another seed").to_string();
    assert!(error.contains("another hash seed"), "{error}");
    let wrong = server.at(PLACE, 1 << 20, "wrong");
    assert!(wrong.open(&SEED).is_err(), "a wrong key");
}

#[test]
fn damaged_removed_and_unreachable_objects_are_misses() {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(root.path().join("bucket")).expect("a bucket");
    let server = Server::start(root.path());
    let objects = server.objects(64 << 20);
    write(&objects, 0..10).expect("the server takes them");
    let of = |number: u8| {
        let hash = format!("{number:02x}").repeat(16);
        files(root.path()).into_iter().find(|path| path.ends_with(&hash)).expect("its file")
    };
    let (damaged, cut, gone) = (of(0), of(1), of(2));
    let mut bytes = std::fs::read(&damaged).expect("it is there");
    bytes[5000] ^= 1;
    std::fs::write(&damaged, &bytes).expect("it is written");
    std::fs::write(&cut, &bytes[..4096]).expect("it is written");
    std::fs::remove_file(&gone).expect("it is there");
    // Two blocks under each other's name.
    let (three, four) = (of(3), of(4));
    std::fs::copy(&three, &four).expect("it is written");
    assert_eq!(found(&objects, 0..10), 6);
    assert_eq!(objects.used().blocks, 6, "what failed left the list");
    server.is_silent.store(true, Relaxed);
    assert!(matches!(read(&objects, 5), Err(ColdError::Slow { ms: 20_000, .. })));
    assert!(matches!(write(&objects, 20..21), Err(ColdError::Slow { .. })));
    let time = server.end();
    let refused = |error| matches!(error, Err(ColdError::Io { .. } | ColdError::Slow { .. }));
    assert!(refused(while_time_passes(time, || read(&objects, 5))));
    assert!(refused(while_time_passes(time, || write(&objects, 20..21))));
}

/// Does work that ends when enough time has passed.
fn while_time_passes<T: Send>(time: &ManualTime, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let working = scope.spawn(work);
        until("the wait ends", || {
            time.advance(Duration::from_secs(1));
            working.is_finished().then_some(())
        });
        working.join().expect("no panic")
    })
}

#[test]
fn the_oldest_objects_leave_at_the_limit() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", directory.path().display());
    let time = ManualTime::start();
    let objects = Objects::new(&url, Some(1 << 20), DEADLINE, time.clock()).expect("a URL");
    objects.open(&SEED).expect("it opens");
    objects.refresh().expect("it lists");
    for number in 0..40 {
        time.advance(Duration::from_millis(1));
        write(&objects, number..number + 1).expect("old ones leave");
    }
    let Used { blocks, bytes, .. } = objects.used();
    assert!((5..=10).contains(&blocks) && bytes <= 1 << 20, "{blocks} blocks of {bytes} bytes");
    assert_eq!(found(&objects, 36..40), 4, "the latest stay");
    let next = Objects::new(&url, Some(1 << 20), DEADLINE, time.clock()).expect("a URL");
    next.open(&SEED).expect("it opens");
    next.refresh().expect("it lists");
    assert_eq!(next.used().blocks, blocks);
}

/// The identity was put with a condition only. A store without conditions never opened, and the
/// error named a timeout.
#[test]
fn a_store_without_conditional_puts_is_usable() {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(root.path().join("bucket")).expect("a bucket");
    let server = Server::start_with(root.path(), true);
    let objects = server.objects(64 << 20);
    write(&objects, 0..4).expect("the server takes them");
    // The next process keeps the first one's identity.
    let next = server.at(PLACE, 1 << 20, "secret");
    let own = Identity { seed: HashSeed([1; 32]), bytes_max: 1 << 20 };
    assert!(next.identity(&own).expect("it answers").seed == SEED);
    assert_eq!(found(&server.objects(64 << 20), 0..4), 4);
    // A store that refuses more than conditions says why.
    let wrong = server.at("s3://bucket/new", 1 << 20, "wrong");
    let error = wrong.open(&SEED).expect_err("a wrong key").to_string();
    assert!(error.contains("SignatureDoesNotMatch"), "{error}");
}

/// A store whose listing takes long kept the writer in one listing after the other.
#[test]
fn a_listing_that_failed_is_not_repeated_at_once() {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(root.path().join("bucket")).expect("a bucket");
    let server = Server::start(root.path());
    let objects = server.objects(64 << 20);
    write(&objects, 0..4).expect("the server takes them");
    // The next listing is due.
    objects.open(&SEED).expect("the server answers");
    server.is_silent.store(true, Relaxed);
    let is_slow = || matches!(objects.refresh(), Err(ColdError::Slow { .. }));
    assert!(is_slow());
    server.time.advance(LIST_EVERY - Duration::from_nanos(1));
    objects.refresh().expect("the next listing is not due");
    assert_eq!(objects.used().blocks, 4, "the list stays");
    server.time.advance(Duration::from_nanos(1));
    assert!(is_slow(), "it is due");
}

#[test]
fn a_survey_changes_nothing() {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(root.path().join("bucket")).expect("a bucket");
    let server = Server::start(root.path());
    write(&server.objects(64 << 20), 0..20).expect("the server takes them");
    let before = files(root.path());
    // Its limit is below what is there.
    let small = server.at(PLACE, 1 << 20, "secret");
    assert_eq!(small.survey().expect("the server answers").blocks, 20);
    let empty = server.at("s3://bucket/empty", 1 << 20, "secret");
    assert_eq!(empty.survey().expect("the server answers").blocks, 0);
    assert_eq!(files(root.path()), before);
}

#[test]
fn an_object_longer_than_a_record_is_not_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", directory.path().display());
    let objects = Objects::new(&url, Some(64 << 20), DEADLINE, ManualTime::start().clock()).expect("a URL");
    objects.open(&SEED).expect("it opens");
    write(&objects, 0..1).expect("it has space");
    let path = files(directory.path()).into_iter().find(|path| path.ends_with("00".repeat(16))).expect("its file");
    // A terabyte of nothing.
    std::fs::File::options().write(true).open(path).expect("it is there").set_len(1 << 40).expect("it is sparse");
    assert!(matches!(read(&objects, 0), Err(ColdError::Damaged { .. })));
    assert_eq!(objects.used().blocks, 0);
}

/// A process with a smaller limit removed the others' blocks; only the identity's object, once it was
/// gone, left them to no one.
#[test]
fn the_limit_and_the_identity_of_a_store_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, time) = (format!("file://{}", directory.path().display()), ManualTime::start());
    let opened = |bytes: u64| {
        let objects = Objects::new(&url, Some(bytes), DEADLINE, time.clock()).expect("a URL");
        objects.open(&SEED).expect("it opens");
        objects.refresh().expect("it lists");
        objects
    };
    let one = opened(8 << 20);
    write(&one, 0..20).expect("it has space");
    let small = opened(1 << 20);
    write(&small, 20..21).expect("it has space");
    assert_eq!((small.used().blocks, small.used().bytes_max, found(&one, 0..20)), (21, 8 << 20, 20));
    let tier = directory.path().join("cenote-v2/tier");
    std::fs::remove_file(&tier).expect("it is there");
    time.advance(LIST_EVERY);
    assert_eq!(one.refresh().expect("it lists").damage.len(), 1, "it is told");
    assert!(tier.exists() && opened(1 << 20).used().bytes_max == 8 << 20);
    // A command makes it smaller, and the others obey.
    let command = Objects::new(&url, None, DEADLINE, time.clock()).expect("a URL");
    command.resize(1 << 20).expect("it is there");
    let Used { blocks, bytes, bytes_max } = command.survey().expect("it is there");
    assert!(blocks < 11 && bytes <= bytes_max && bytes_max == 1 << 20, "{blocks} blocks of {bytes} bytes");
    time.advance(LIST_EVERY);
    one.refresh().expect("it lists");
    assert_eq!((one.used().blocks, one.used().bytes_max), (blocks, 1 << 20));
}

/// A directory of another user was believed through its URL.
#[test]
fn a_local_store_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", directory.path().display());
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    let objects = Objects::new(&url, None, DEADLINE, ManualTime::start().clock()).expect("a URL");
    let error = objects.open(&SEED).expect_err("others can write it").to_string();
    assert!(error.contains("other users can write the folder"), "{error}");
}
