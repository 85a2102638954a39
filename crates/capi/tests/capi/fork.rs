//! Effects of forks on a process's handles, by the pool's own calls. They are tested here because
//! `fork` needs unsafe code, which this crate may use.
//!
//! The child inherits every handle. Dropping them in the child must release nothing of the
//! parent's.
//!
//! The tests start this binary again with a role, because a process that forks may have one thread
//! only.

use cenote_base::prng::Prng;
use cenote_base::testing::PATIENCE;
use cenote_base::{BlockHash, HashSeed};
use cenote_mem::{Flush, MapOptions, Mapped, Mapping, RegionSource};
use cenote_pool::{
    AttachOptions, HostPool, Names, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, PoolError, Publish,
    ReadOutcome, Recovered, Superblock,
};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const BLOCK_BYTES: u64 = 16 << 10;
const REGION: &str = "CENOTE_TEST_REGION";
const ROLE: &str = "CENOTE_TEST_ROLE";

/// Timeout of locks that are free, which are taken without a wait, and of locks that another process
/// holds all the time.
const SOON: Duration = Duration::from_millis(20);
/// The user lock that the parent holds.
const LOCK: u16 = 3;

/// A region in shared memory, removed after the test.
struct Region {
    source: RegionSource,
    superblock: Superblock,
}

impl Region {
    fn new(test: &str, flush: Flush) -> Self {
        let source = RegionSource::Shm(format!("cenote-test-{test}-{}", std::process::id()));
        let mapping = Mapping::create(&source, 2 << 20, 0o600, &MapOptions::default()).expect("shared memory");
        let mut config = PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: 4 << 10,
            max_hosts: 2,
            ..PoolConfig::new(HashSeed([77; 32]), [77; 16])
        };
        config.uuid[..4].copy_from_slice(&std::process::id().to_le_bytes());
        config.uuid[4] = test.len() as u8;
        let fabric = Mapped::new(mapping, flush).expect("this processor has it");
        let superblock = Superblock::format(&fabric, &config).expect("the configuration fits");
        Self { source, superblock }
    }

    fn attach(&self) -> HostPool {
        attach(&self.source)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = Mapping::remove(&self.source);
        let _ = cenote_pool::remove_host_memory(&self.superblock);
    }
}

fn attach(source: &RegionSource) -> HostPool {
    let fabric = cenote_pool::open_region(source, &MapOptions::default()).expect("the region is there");
    let options = AttachOptions { lock_timeout: PATIENCE, ..AttachOptions::named("test") };
    Pool::attach(fabric, &options).expect("it attaches")
}

fn namespace(pool: &HostPool) -> Namespace {
    let record = NamespaceRecord {
        fingerprint: [9; 32],
        label: "model".to_owned(),
        block_bytes: BLOCK_BYTES,
        block_tokens: 16,
        num_layers: 2,
    };
    pool.namespace(&record).expect("the table has room")
}

/// Hashes of `blocks` blocks of prompt number `prompt`.
fn chain(namespace: &Namespace, prompt: u32, blocks: usize) -> Vec<BlockHash> {
    let tokens: Vec<u32> = (0..blocks as u32 * 16).map(|token| token ^ (prompt << 12)).collect();
    namespace.hasher.chain(&tokens, 16)
}

/// The payload for a hash.
fn payload(hash: BlockHash, bytes: u64) -> Vec<u8> {
    let mut prng = Prng::new(hash.words()[0]);
    (0..bytes / 8).flat_map(|_| prng.next_u64().to_le_bytes()).collect()
}

fn publish(pool: &HostPool, namespace: &Namespace, hash: BlockHash) -> Publish {
    pool.publish(&NewBlock::new(namespace, hash, 0), &[&payload(hash, BLOCK_BYTES)])
}

/// Whether a block is there with the payload for its hash.
fn has(pool: &HostPool, hash: BlockHash) -> Result<(), ReadOutcome> {
    let hit = *pool.lookup(&[hash]).first().ok_or(ReadOutcome::Stale)?;
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    match pool.read(&hit, &mut [&mut bytes]) {
        ReadOutcome::Whole => {
            assert!(bytes == payload(hash, BLOCK_BYTES), "a whole read returned another block's bytes");
            Ok(())
        }
        outcome => Err(outcome),
    }
}

/// Writes part of a block in place, as a device would.
fn write_in_place(pool: &HostPool, offset: u64, bytes: &[u8]) {
    let address = pool.fabric().address(offset, bytes.len().next_multiple_of(64) as u64);
    // SAFETY: the memory is a reservation of this process, and no other thread writes it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, bytes.len()) };
}

fn say(word: &str) {
    std::io::stdout().write_all(format!("\n@{word}\n").as_bytes()).expect("the test listens");
}

fn wait_for_go() {
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

/// Forks. Returns the child's process id in the parent, and `None` in the child.
fn fork() -> Option<rustix::process::Pid> {
    // SAFETY: roles have one thread, so the child may use all inherited state.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    rustix::process::Pid::from_raw(pid)
}

fn wait_for(child: rustix::process::Pid) {
    let ended = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
    let (_, status) = ended.expect("a child").expect("it ended");
    assert_eq!(status.exit_status(), Some(0), "the child failed");
}

/// The process that the tests start. It forks.
#[test]
#[ignore = "the process that other tests start"]
fn role() {
    let role = std::env::var(ROLE).expect("other tests start this one");
    let source: RegionSource = std::env::var(REGION).expect("a region").parse().expect("a name");
    let pool = attach(&source);
    let ns = namespace(&pool);
    let hashes = chain(&ns, 1, 3);
    assert_eq!(publish(&pool, &ns, hashes[0]), Publish::Published);
    let pin = pool.pin(&pool.lookup(&hashes[..1])[0]).expect("it is there");
    let kept = pool.swap_out(&ns, &[&payload(hashes[2], BLOCK_BYTES)]).expect("there is room");
    let memory = pool.allocate(4096).expect("there is room");
    let filling = pool.begin_in_place(&NewBlock::new(&ns, hashes[1], 1)).expect("there is room");
    let lock = pool.lock_user(LOCK, SOON).expect("free");
    let bytes = payload(hashes[1], BLOCK_BYTES);
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let (offset, _) = filling.extent();
    write_in_place(&pool, offset, first);
    let child = fork();
    if role == "linger" {
        if child.is_none() {
            say(&format!("child {}", std::process::id()));
        }
        loop {
            std::thread::park();
        }
    }
    let Some(child) = child else {
        // None of these calls changes the region.
        assert!(pool.lookup(&hashes).is_empty() && pool.peek(&hashes).is_empty() && pool.pin(pin.hit()).is_none());
        assert_eq!(publish(&pool, &ns, hashes[2]), Publish::NoRoom);
        assert_eq!(
            pool.begin(&NewBlock { names: Names::default(), ..NewBlock::new(&ns, hashes[2], 0) }).err(),
            Some(Publish::NoRoom)
        );
        assert_eq!(pool.swap_out(&ns, &[&bytes]).err(), Some(Publish::NoRoom));
        assert_eq!(pool.read(pin.hit(), &mut [&mut bytes.clone()]), ReadOutcome::Stale);
        assert_eq!(kept.read(&mut [&mut bytes.clone()]), ReadOutcome::Stale);
        assert_eq!(pin.verify(), ReadOutcome::Stale);
        assert_eq!((pool.evict(10), pool.forget(&ns), pool.tick()), (0, 0, Recovered::default()));
        for error in [
            pool.allocate(64).err(),
            pool.free(memory).err(),
            pool.allocated_bytes(memory).err(),
            pool.name_memory("name", memory).err(),
            pool.find_memory("name").err(),
            pool.put_object("key", b"bytes").err(),
            pool.get_object("key").err(),
            pool.destroy_object("key").err(),
            pool.lock_user(LOCK + 1, SOON).err(),
            pool.gc().err(),
        ] {
            assert!(matches!(error, Some(PoolError::Inherited)), "{error:?}");
        }
        write_in_place(&pool, offset, &vec![0xbb; BLOCK_BYTES as usize]);
        drop((lock, pin, kept));
        drop(filling);
        // The child may join as a worker of its own.
        let own = attach(&source);
        assert_eq!(publish(&own, &namespace(&own), hashes[2]), Publish::Published);
        drop((own, pool));
        std::process::exit(0);
    };
    wait_for(child);
    say(&format!("filling {offset}"));
    wait_for_go();
    write_in_place(&pool, offset + first.len() as u64, second);
    assert_eq!(filling.publish(), Publish::Published);
    let mut back = vec![0; BLOCK_BYTES as usize];
    assert_eq!(kept.read(&mut [&mut back]), ReadOutcome::Whole);
    assert!(back == payload(hashes[2], BLOCK_BYTES));
    assert_eq!(pin.verify(), ReadOutcome::Whole);
    assert!(pool.allocated_bytes(memory).expect("it is this worker's") >= 4096);
    say("published");
    wait_for_go();
    drop(lock);
    drop((pin, kept, pool));
    std::process::exit(0);
}

struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, region: &Region) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "fork::role", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(REGION, region.source.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test starts itself");
        let says = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, says }
    }

    fn told(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.says.read_line(&mut line).expect("readable"), 0, "the process ended before it said {word}");
            if let Some(rest) = line.trim_end().strip_prefix(&format!("@{word}")) {
                return rest.trim().to_owned();
            }
        }
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("it listens");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn flushes() -> [Flush; 2] {
    [Flush::None, Flush::available()[0]]
}

/// Earlier, the exit of a forked child gave its parent's reservation to this worker. The parent's
/// hash then read this worker's bytes as whole.
#[test]
fn a_childs_end_takes_nothing_from_its_parent() {
    for flush in flushes() {
        let region = Region::new("ends", flush);
        let pool = region.attach();
        let ns = namespace(&pool);
        let hashes = chain(&ns, 1, 3);
        let mut parent = Process::start("drop", &region);
        let offset: u64 = parent.told("filling").parse().expect("a number");
        assert_eq!(pool.tick(), Recovered::default(), "all members live");
        assert!(pool.lock_user(LOCK, SOON).is_err(), "{flush:?}: the parent holds the lock");
        assert_eq!(has(&pool, hashes[2]), Ok(()), "{flush:?}: the child published as itself");
        // Reserve all remaining space: the parent's reservations and pins must stay its own.
        let mut taken = Vec::new();
        while let Ok(filling) = pool.begin_in_place(&NewBlock::new(&ns, chain(&ns, 100 + taken.len() as u32, 1)[0], 0))
        {
            write_in_place(&pool, filling.extent().0, &vec![0xaa; BLOCK_BYTES as usize]);
            taken.push(filling);
        }
        assert!(taken.len() > 8, "{} blocks", taken.len());
        assert!(taken.iter().all(|filling| filling.extent().0 != offset), "{flush:?}: the parent's reservation");
        assert_eq!(has(&pool, hashes[0]), Ok(()), "{flush:?}: the parent's pin");
        assert!(pool.lookup(&hashes[1..2]).is_empty(), "the block is not published yet");
        parent.go();
        parent.told("published");
        assert_eq!(has(&pool, hashes[1]), Ok(()), "{flush:?}");
        drop(taken);
        parent.go();
        assert!(parent.child.wait().expect("it ends").success());
        let report = pool.check(true).expect("the locks are free");
        assert!(report.is_clean() && (report.reserved, report.pinned) == (0, 0), "{flush:?}: {report:?}");
    }
}

/// The child had duplicates of the descriptors whose locks show that its parent lives.
#[test]
fn a_child_that_outlives_its_parent_holds_nothing_of_it() {
    for flush in flushes() {
        let region = Region::new("lingers", flush);
        let pool = region.attach();
        let mut parent = Process::start("linger", &region);
        let child: i32 = parent.told("child").parse().expect("a number");
        parent.child.kill().expect("it can be killed");
        parent.child.wait().expect("it was a child");
        let recovered = pool.tick();
        let lock = pool.lock_user(LOCK, PATIENCE).map(|lock| lock.abandoned());
        let child = rustix::process::Pid::from_raw(child).expect("a process id");
        rustix::process::kill_process(child, rustix::process::Signal::KILL).expect("it lived until now");
        assert_eq!(recovered.workers, 1, "{flush:?}");
        assert!(matches!(lock, Ok(true)), "{flush:?}: {lock:?}");
        let report = pool.check(true).expect("the locks are free");
        assert!(report.is_clean() && (report.reserved, report.pinned) == (0, 0), "{flush:?}: {report:?}");
    }
}
