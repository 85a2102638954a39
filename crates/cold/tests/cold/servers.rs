//! Keys of real Redis or Valkey servers and clusters, and of servers that say what a test wants.

use cenote_base::testing::redis::{Cluster, Server};
use cenote_base::testing::{ManualTime, until};
use cenote_base::{BlockHash, HashSeed};
use cenote_cold::record::{Aligned, HEADER_BYTES, Head, Name, Sums, record_bytes};
use cenote_cold::{Backend, ColdError, Sealed, Servers};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const SEED: HashSeed = HashSeed([9; 32]);
const LENGTH: usize = 100_032;
const DEADLINE: Duration = Duration::from_secs(20);
/// The first pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// Time for which an absent block is not asked for again, for which a present one is not, and for which a
/// damaged one is not.
const ABSENT_FOR: Duration = Duration::from_secs(1);
const PRESENT_FOR: Duration = Duration::from_secs(30);
const DAMAGED_FOR: Duration = Duration::from_mins(10);
/// Longer than any wait for a server.
const LONG: Duration = Duration::from_secs(60);

fn servers(url: &str, time: &'static ManualTime) -> Servers {
    let address = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
    Servers::new(&address, DEADLINE, time.clock()).expect("threads start")
}

fn opened(url: &str, time: &'static ManualTime) -> Servers {
    let servers = servers(url, time);
    servers.open(&SEED).expect("the server answers");
    servers
}

fn name(number: u8) -> Name {
    Name { namespace: [2; 32], hash: BlockHash([number; 16]) }
}

/// The key of a block without a prefix.
fn key(number: u8) -> String {
    format!("cenote-v2:{}:{}", "02".repeat(32), format!("{number:02x}").repeat(16))
}

fn byte(number: u8, at: usize) -> u8 {
    (usize::from(number) * 31 + at) as u8
}

fn record(number: u8, seed: HashSeed) -> (Head, Vec<u8>) {
    let head = Head { name: name(number), length: LENGTH as u64, depth: 3, encoding: 1, names: [5, 6] };
    let mut record = vec![0; record_bytes(LENGTH as u64) as usize];
    let payload = &mut record[HEADER_BYTES..HEADER_BYTES + LENGTH];
    payload.iter_mut().enumerate().for_each(|(at, value)| *value = byte(number, at));
    Sums::of(&seed).seal(&head, &mut record);
    (head, record)
}

fn write(servers: &Servers, numbers: Range<u8>) -> Result<(), ColdError> {
    let records: Vec<(Head, Vec<u8>)> = numbers.map(|number| record(number, SEED)).collect();
    let sealed: Vec<Sealed<'_>> = records.iter().map(|(head, bytes)| Sealed { head: *head, bytes }).collect();
    servers.write(&sealed, &[])
}

fn read(servers: &Servers, number: u8) -> Result<(), ColdError> {
    let mut memory = Aligned::default();
    let head = servers.read(&name(number), LENGTH as u64, &mut memory)?;
    assert_eq!((head.depth, head.encoding, head.names), (3, 1, [5, 6]));
    let payload = &memory.bytes()[HEADER_BYTES..HEADER_BYTES + LENGTH];
    assert!(payload.iter().enumerate().all(|(at, &found)| found == byte(number, at)), "wrong bytes of {number}");
    Ok(())
}

fn found(servers: &Servers, numbers: Range<u8>) -> usize {
    numbers.filter(|&number| read(servers, number).is_ok()).count()
}

/// Asks for blocks, and returns which of them are listed then.
fn listed(servers: &Servers, numbers: Range<u8>, leading: bool) -> Vec<u8> {
    servers.ask(&numbers.clone().map(name).collect::<Vec<_>>(), leading).expect("the server answers");
    numbers.filter(|&number| servers.length(&name(number)).is_some()).collect()
}

#[test]
fn a_server_keeps_blocks_for_other_processes() {
    let Some(server) = Server::start(&[]) else { return };
    let (url, time) = (server.url(), ManualTime::start());
    let one = opened(&url, time);
    write(&one, 0..40).expect("it has memory");
    assert_eq!(one.used().blocks, 40);
    let next = opened(&url, time);
    assert_eq!((next.length(&name(0)), next.used().blocks), (None, 0), "it has not asked yet");
    assert!(next.may_have(&name(0)) && next.may_have(&name(41)));
    assert_eq!(listed(&next, 0..50, false), (0..40).collect::<Vec<_>>());
    assert_eq!(next.length(&name(0)), Some(record_bytes(LENGTH as u64)));
    assert!(!next.may_have(&name(41)), "it is not asked for again at once");
    assert_eq!((found(&one, 0..41), found(&next, 0..41)), (40, 40));
    // A block that another process writes is found a moment later.
    write(&one, 41..42).expect("it has memory");
    time.advance(ABSENT_FOR);
    assert_eq!(listed(&next, 41..42, true), [41]);
    // A question ends at the first batch with a block that is missing.
    time.advance(PRESENT_FOR);
    let hashes = |number: u64| Name { namespace: [2; 32], hash: BlockHash::from_words([number, 7]) };
    next.ask(&(0..600).map(hashes).collect::<Vec<_>>(), true).expect("the server answers");
    assert_eq!([0, 255, 256].map(|number| next.may_have(&hashes(number))), [false, false, true]);
    // Keys are versioned, and those of two prefixes are apart.
    assert!(server.ask(&["KEYS", "*"]).lines().all(|key| key.starts_with("cenote-v2:")));
    assert_eq!(server.ask(&["EXISTS", &key(3), "cenote-v2:tier"]), "2");
    let apart = opened(&format!("{url}?prefix=team-a&db=0"), time);
    assert!(listed(&apart, 0..40, false).is_empty());
    write(&apart, 0..1).expect("it has memory");
    assert_eq!(server.ask(&["EXISTS", &format!("team-a:{}", key(0))]), "1");
    let error = servers(&url, time).open(&HashSeed([1; 32])).expect_err("another seed").to_string();
    assert!(error.contains("another hash seed"), "{error}");
    assert!(one.resize(1 << 20).expect_err("the limit is the server's").to_string().contains("maxmemory"));
    one.survey().expect("it answers");
}

/// Every client of the server can write any key.
#[test]
fn what_others_wrote_under_our_keys_is_a_miss_and_is_written_over() {
    let Some(server) = Server::start(&[]) else { return };
    let time = ManualTime::start();
    let servers = opened(&server.url(), time);
    write(&servers, 0..12).expect("it has memory");
    let put = |number: u8, value: &[u8]| assert_eq!(server.ask(&[b"SET", key(number).as_bytes(), value]), "OK");
    let (_, whole) = record(0, SEED);
    let mut flipped = whole.clone();
    flipped[5000] ^= 1;
    put(0, &flipped);
    put(1, &whole[..4096]);
    put(2, &[&whole[..], &[0; 4096]].concat());
    put(3, b"something else");
    // Another block's record, and one that another place's seed has sealed.
    put(4, &whole);
    put(5, &record(5, HashSeed([1; 32])).1);
    server.ask(&["DEL", &key(6)]);
    server.ask(&["RPUSH", &key(6), "a list"]);
    server.ask(&["DEL", &key(7)]);
    let of = |number: u8| read(&servers, number).expect_err("it is no record of this block");
    for number in 0..7 {
        let error = of(number);
        assert!(matches!(error, ColdError::Damaged { .. }), "{number}: {error}");
    }
    assert!(matches!(of(7), ColdError::Gone(_)));
    assert_eq!(found(&servers, 0..12), 4);
    time.advance(PRESENT_FOR);
    assert_eq!(listed(&servers, 0..12, false), [8, 9, 10, 11], "what is damaged is not read again and again");
    write(&servers, 0..6).expect("a string is written over");
    assert_eq!((found(&servers, 0..12), listed(&servers, 0..6, true).len()), (10, 6));
    // A new process sees by the length that it is no record, or by its sums.
    put(3, b"something else");
    put(4, &whole);
    let next = opened(&server.url(), time);
    assert_eq!(listed(&next, 3..7, false), [4, 5]);
    assert!(read(&next, 4).is_err() && !next.may_have(&name(4)));
    time.advance(DAMAGED_FOR);
    assert!(next.may_have(&name(4)), "another process may have written it again");
    // The identity is repaired, and one of another seed closes the place.
    assert_eq!(server.ask(&["SET", "cenote-v2:tier", "none"]), "OK");
    assert_eq!(servers.refresh().expect("it answers").damage.len(), 1, "it is told");
    // A key of another type is damage, too.
    server.ask(&["DEL", "cenote-v2:tier"]);
    server.ask(&["RPUSH", "cenote-v2:tier", "a list"]);
    time.advance(PRESENT_FOR);
    assert_eq!(servers.refresh().expect("it answers").damage.len(), 1, "it is told");
    assert_eq!(server.ask(&["TYPE", "cenote-v2:tier"]), "string");
    server.ask(&["DEL", "cenote-v2:tier"]);
    drop(opened(&server.url(), ManualTime::start()));
    time.advance(PRESENT_FOR);
    assert_eq!(servers.refresh().expect("it answers").damage.len(), 0, "another process has written it");
    server.ask(&["DEL", "cenote-v2:tier"]);
    servers_with_seed(&server.url(), [1; 32]);
    time.advance(PRESENT_FOR);
    assert!(servers.refresh().expect_err("regions with another seed use it").is_refusal());
}

fn servers_with_seed(url: &str, seed: [u8; 32]) {
    servers(url, ManualTime::start()).open(&HashSeed(seed)).expect("the server answers");
}

#[test]
fn a_full_server_takes_nothing_and_is_read() {
    let Some(server) = Server::start(&["--maxmemory-policy", "noeviction"]) else { return };
    let time = ManualTime::start();
    let servers = opened(&server.url(), time);
    write(&servers, 0..10).expect("it has memory");
    assert_eq!(server.ask(&["CONFIG", "SET", "maxmemory", "1mb"]), "OK");
    let error = write(&servers, 10..20).expect_err("there is no memory");
    assert!(matches!(error, ColdError::Full { .. }) && error.to_string().contains("maxmemory"), "{error}");
    assert_eq!(found(&servers, 0..10), 10, "reads go on");
    assert_eq!(server.ask(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
    write(&servers, 10..20).expect("it has memory again");
    assert_eq!(found(&servers, 0..20), 20);
    // One that evicts takes everything, and what it evicted is a miss.
    assert_eq!(server.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]), "OK");
    assert_eq!(server.ask(&["CONFIG", "SET", "maxmemory", "6mb"]), "OK");
    write(&servers, 20..120).expect("it evicts");
    let stays = found(&servers, 0..120);
    assert!((1..80).contains(&stays), "{stays} blocks stay");
    // The identity may have left, too; the process writes it again.
    time.advance(PRESENT_FOR);
    servers.refresh().expect("it answers");
    assert_eq!(server.ask(&["EXISTS", "cenote-v2:tier"]), "1");
}

#[test]
fn the_server_drops_blocks_by_their_ttl() {
    let Some(server) = Server::start(&[]) else { return };
    let time = ManualTime::start();
    let servers = opened(&format!("{}?ttl=3600", server.url()), time);
    write(&servers, 0..2).expect("it has memory");
    let left: u64 = server.ask(&["TTL", &key(0)]).parse().expect("a time");
    assert!((1..=3600).contains(&left), "{left}");
    assert_eq!(server.ask(&["TTL", "cenote-v2:tier"]), "-1", "the identity stays");
    assert_eq!(server.ask(&["EXPIRE", &key(0), "0"]), "1");
    assert!(matches!(read(&servers, 0), Err(ColdError::Gone(_))));
    assert_eq!((servers.length(&name(0)), found(&servers, 0..2)), (None, 1));
}

#[test]
fn a_password_opens_the_server() {
    let Some(server) = Server::start(&["--requirepass", "a p@ss"]) else { return };
    let (socket, time) = (server.socket().display().to_string(), ManualTime::start());
    let at = |secrets: &str| servers(&format!("redis+unix://{secrets}{socket}"), time);
    for secrets in ["", ":wrong@", "nobody:a%20p%40ss@"] {
        let servers = at(secrets);
        let error = servers.open(&SEED).expect_err(secrets).to_string();
        assert!(error.contains("REDIS_PASSWORD") && !error.contains("p@ss"), "{secrets}: {error}");
        let again = servers.open(&SEED).expect_err(secrets).to_string();
        assert!(again.contains("not asked again"), "{again}");
    }
    let servers = at(":a%20p%40ss@");
    servers.open(&SEED).expect("the right password");
    write(&servers, 0..3).expect("it has memory");
    assert_eq!(found(&servers, 0..3), 3);
    // A user with the rights of docs/guides/cold.md#redis-and-valkey.
    let ask = |words: &[&str]| {
        let mut socket = std::os::unix::net::UnixStream::connect(server.socket()).expect("it listens");
        cenote_base::testing::redis::ask(&mut socket, &["AUTH", "a p@ss"]).expect("it answers");
        cenote_base::testing::redis::ask(&mut socket, words).expect("it answers")
    };
    let rights = ["+getrange", "+strlen", "+set", "+select", "+ping", "+asking", "+cluster|slots"];
    let user = [&["ACL", "SETUSER", "cenote", "on", ">secret", "~cenote-v2:*"][..], &rights].concat();
    assert_eq!(ask(&user), "OK");
    let own = at("cenote:secret@");
    own.open(&SEED).expect("its keys");
    write(&own, 3..6).expect("its keys");
    assert_eq!((listed(&own, 0..9, false).len(), found(&own, 0..9)), (6, 6));
}

#[test]
fn a_server_that_dies_is_left_alone_until_it_is_back() {
    let Some(mut server) = Server::start(&[]) else { return };
    let time = ManualTime::start();
    let servers = opened(&server.url(), time);
    write(&servers, 0..10).expect("it has memory");
    server.kill();
    assert!(matches!(read(&servers, 0), Err(ColdError::Io { .. })), "it is down");
    assert!(!servers.may_have(&name(0)) && !servers.may_have(&name(99)), "no request waits for it");
    let error = read(&servers, 1).expect_err("it is down").to_string();
    assert!(error.contains("not asked again"), "{error}");
    time.advance(PAUSE);
    assert!(servers.refresh().is_err() && !servers.may_have(&name(99)), "a trial failed");
    let server = server.restarted();
    assert!(servers.refresh().is_ok() && !servers.may_have(&name(99)), "the pause is not over");
    time.advance(2 * PAUSE);
    assert_eq!(servers.refresh().expect("it is back").damage.len(), 1, "it lost the identity");
    assert!(servers.may_have(&name(99)) && server.ask(&["EXISTS", "cenote-v2:tier"]) == "1");
    assert!(matches!(read(&servers, 0), Err(ColdError::Gone(_))), "it lost its blocks");
    write(&servers, 0..10).expect("it has memory");
    // A connection that the server closed meanwhile costs no miss.
    server.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_eq!(found(&servers, 0..10), 10);
}

#[test]
fn a_replica_is_read_and_not_written() {
    let Some(server) = Server::start(&[]) else { return };
    let servers = opened(&server.url(), ManualTime::start());
    write(&servers, 0..3).expect("it has memory");
    // Its primary does not exist.
    assert_eq!(server.ask(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    let error = write(&servers, 3..6).expect_err("it is a replica").to_string();
    assert!(error.contains("name the primary"), "{error}");
    assert_eq!(found(&servers, 0..3), 3);
}

#[test]
fn a_cluster_spreads_blocks_and_goes_on_without_a_node() {
    let Some(mut cluster) = Cluster::start(3) else { return };
    let time = ManualTime::start();
    let servers = opened(&cluster.url(), time);
    write(&servers, 0..60).expect("it has memory");
    for node in &cluster.nodes {
        let keys: usize = node.ask(&["DBSIZE"]).parse().expect("a number");
        assert!((5..50).contains(&keys), "{keys} keys");
    }
    let next = opened(&cluster.url(), time);
    assert_eq!((listed(&next, 0..70, false).len(), found(&next, 0..70)), (60, 60));
    // Its blocks are misses, and no others.
    let lost: usize = cluster.nodes[2].ask(&["KEYS", &format!("{}*", &key(0)[..70])]).lines().count();
    cluster.nodes[2].kill();
    let mut hits = 0;
    for number in 0..60 {
        // Between reads the writer's thread looks.
        drop(next.refresh());
        time.advance(PAUSE);
        hits += usize::from(read(&next, number).is_ok());
    }
    assert_eq!(hits, 60 - lost);
    let asked = opened_without(&cluster.url(), time);
    assert!(asked.is_none_or(|asked| listed(&asked, 0..60, false).len() == 60 - lost));
    let node = cluster.nodes.pop().expect("the one that was killed");
    cluster.nodes.push(node.restarted());
    cluster.wait();
    until("it is written again", || {
        drop(next.refresh());
        time.advance(PAUSE);
        write(&next, 0..60).ok()
    });
    until("all nodes are read", || {
        drop(next.refresh());
        time.advance(PAUSE);
        (found(&next, 0..60) == 60).then_some(())
    });
}

/// A new process, unless the identity is on the node that is gone.
fn opened_without(url: &str, time: &'static ManualTime) -> Option<Servers> {
    let servers = servers(url, time);
    servers.open(&SEED).ok().map(|()| servers)
}

/// A server that answers each command with what a test wants, and zeros after it.
struct Fake {
    port: u16,
    sent: Arc<AtomicU64>,
}

impl Fake {
    fn start(answer: impl Fn(&[Vec<u8>]) -> Option<(Vec<u8>, u64)> + Send + Sync + 'static) -> Self {
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

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

type Answer = dyn Fn(&[Vec<u8>]) -> Option<(Vec<u8>, u64)>;

fn serve(socket: &TcpStream, answer: &Answer, sent: &AtomicU64) -> std::io::Result<()> {
    let mut reader = BufReader::new(socket);
    loop {
        let mut number = || -> std::io::Result<usize> {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let digits = line.get(1..).ok_or(std::io::ErrorKind::UnexpectedEof)?;
            digits.trim().parse().map_err(std::io::Error::other)
        };
        let count = number()?;
        let mut words = Vec::new();
        for _ in 0..count {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let length: usize = line[1..].trim().parse().map_err(std::io::Error::other)?;
            let mut word = vec![0; length + 2];
            reader.read_exact(&mut word)?;
            word.truncate(length);
            words.push(word);
        }
        let mut socket = socket;
        // `None`: it stays silent.
        let Some((content, zeros)) = answer(&words) else { continue };
        socket.write_all(&content)?;
        let piece = vec![0; 1 << 16];
        for _ in 0..zeros / piece.len() as u64 {
            socket.write_all(&piece)?;
            sent.fetch_add(piece.len() as u64, Relaxed);
        }
    }
}

/// The answers of an empty server to all but reads of blocks.
fn usual(words: &[Vec<u8>], identity: &[u8]) -> Option<Vec<u8>> {
    match &*words[0] {
        b"GETRANGE" if words[1].ends_with(b"tier") => {
            Some([format!("${}\r\n", identity.len()).as_bytes(), identity, b"\r\n"].concat())
        }
        b"GETRANGE" | b"STRLEN" => None,
        _ => Some(b"+OK\r\n".to_vec()),
    }
}

fn identity() -> Vec<u8> {
    let identity = cenote_cold::identity::Identity { seed: SEED, bytes_max: u64::MAX };
    cenote_cold::identity::encode(&identity, &None).to_vec()
}

/// More than sockets hold.
const FLOOD: u64 = 1 << 30;

/// A client keeps all that a server sends, however much that is.
#[test]
fn an_answer_is_bounded_by_its_request() {
    for head in ["$1073741824\r\n", "$40960\r\n", "*1000000000\r\n$1073741824\r\n", "+", "", "*1\r\n"] {
        let fake = Fake::start(move |words| {
            usual(words, &identity()).map(|usual| (usual, 0)).or_else(|| Some((head.into(), FLOOD)))
        });
        let time = ManualTime::start();
        let servers = opened(&fake.url(), time);
        assert!(read(&servers, 0).is_err(), "{head:?}");
        time.advance(PAUSE);
        assert!(servers.ask(&[name(1), name(2)], true).is_err() || servers.length(&name(1)).is_none(), "{head:?}");
        assert!(fake.sent.load(Relaxed) < FLOOD / 4, "{head:?}: {} bytes were read", fake.sent.load(Relaxed));
    }
    // Without a request, too.
    let fake = Fake::start(|words| Some((usual(words, &identity()).unwrap_or_default(), FLOOD)));
    assert!(servers(&fake.url(), ManualTime::start()).open(&SEED).is_err());
    assert!(fake.sent.load(Relaxed) < FLOOD / 4);
}

#[test]
fn odd_answers_are_misses() {
    let long = format!("-ERR {}\r\n", "x".repeat(2000));
    for (answer, is_down) in [
        ("-LOADING the dataset\r\n", true),
        ("-CLUSTERDOWN Hash slot not served\r\n", true),
        ("-NOAUTH Authentication required.\r\n", true),
        ("-MOVED 3999 127.0.0.1:1\r\n", false),
        ("-ASK 3999 127.0.0.1:1\r\n", false),
        ("-MASTERDOWN Link with MASTER is down\r\n", true),
        ("-OOM command not allowed\r\n", false),
        ("-\r\n", false),
        ("-ERR a line\x1b[2J\nof its own\r\n", false),
        (&*long, false),
        (":-5\r\n", true),
        (":18446744073709551615\r\n", true),
        ("$-1\r\n", false),
        ("$-9\r\n", false),
        ("$3\r\nabcde", true),
        ("*-1\r\n", false),
        ("*2\r\n:1\r\n:2\r\n", false),
        ("!\r\n", true),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", true),
    ] {
        let text = answer.to_owned();
        let fake =
            Fake::start(move |words| Some((usual(words, &identity()).unwrap_or_else(|| text.clone().into()), 0)));
        let time = ManualTime::start();
        let servers = opened(&fake.url(), time);
        let error = read(&servers, 0).expect_err(answer);
        assert!(!error.is_refusal(), "{answer}: {error}");
        assert!(error.to_string().len() < 400 && !error.to_string().contains(char::is_control), "{error:?}");
        assert_eq!(servers.may_have(&name(9)), !is_down, "{answer}: {error}");
        time.advance(LONG);
        // Of a question each key's odd answer says that the block is not there, or nothing.
        drop(servers.ask(&[name(1), name(2)], true));
        assert_eq!(servers.length(&name(1)), None, "{answer}");
        time.advance(LONG);
        servers.refresh().expect("it answers about the identity");
        assert!(servers.may_have(&name(9)), "{answer}");
    }
}

#[test]
fn a_silent_server_costs_one_deadline() {
    let time = ManualTime::start();
    let fake = Fake::start(move |words| {
        let usual = usual(words, &identity());
        if usual.is_none() {
            // The command has arrived, and its answer never comes.
            time.advance(LONG);
        }
        usual.map(|usual| (usual, 0))
    });
    let servers = opened(&fake.url(), time);
    assert!(matches!(read(&servers, 0), Err(ColdError::Slow { .. })));
    assert!(!servers.may_have(&name(0)), "no request waits for it");
    let error = servers.ask(&[name(0)], true).expect_err("it is left alone").to_string();
    assert!(error.contains("not asked again"), "{error}");
    time.advance(PAUSE);
    servers.refresh().expect("it answers about the identity");
    assert!(servers.may_have(&name(0)));
    assert!(matches!(servers.ask(&[name(0)], true), Err(ColdError::Slow { .. })));
}

#[test]
fn of_a_batch_in_which_one_fails_the_others_are_known() {
    let fake = Fake::start(|words| {
        let is_refused = words[0] == b"SET" && words[1] == key(3).as_bytes();
        let refusal = || b"-OOM command not allowed\r\n".to_vec();
        Some((if is_refused { refusal() } else { usual(words, &identity())? }, 0))
    });
    let servers = opened(&fake.url(), ManualTime::start());
    assert!(matches!(write(&servers, 0..40), Err(ColdError::Full { .. })));
    let lacks: Vec<u8> = (0..40).filter(|&number| servers.length(&name(number)).is_none()).collect();
    assert_eq!(lacks, [3]);
}

/// Its last batch has the rest of the deadline, which may be a millisecond.
#[test]
fn the_end_of_a_long_question_is_no_fault_of_the_server() {
    let time = ManualTime::start();
    let asked = AtomicU64::new(0);
    let fake = Fake::start(move |words| {
        if words[0] != b"STRLEN" {
            return usual(words, &identity()).map(|usual| (usual, 0));
        }
        match asked.fetch_add(1, Relaxed) {
            255 => time.advance(DEADLINE - PAUSE),
            256 => {
                time.advance(LONG);
                return None;
            }
            _ => {}
        }
        Some((b":4096\r\n".to_vec(), 0))
    });
    let servers = opened(&fake.url(), time);
    let hashes = |number: u64| Name { namespace: [2; 32], hash: BlockHash::from_words([number, 7]) };
    servers.ask(&(0..600).map(hashes).collect::<Vec<_>>(), true).expect("a part of it was answered");
    assert_eq!(servers.used().blocks, 256);
    assert!(servers.may_have(&hashes(300)), "it is asked again");
}

/// A server ended in a task of its own runtime, and panicked there.
#[tokio::test]
async fn a_place_may_be_dropped_in_a_task() {
    let time = ManualTime::start();
    drop(servers("redis://127.0.0.1:1", time));
    drop(cenote_cold::Objects::new("file:///tmp", None, DEADLINE, time.clock()).expect("a URL"));
}
