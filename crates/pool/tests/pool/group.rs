//! Users of one group on one region. These tests change users, so they need root; without it they
//! print that they are skipped, and under `CI=1` they fail.
//!
//! Children are this test binary, as another user. They execute commands line by line, and answer
//! each.

use crate::support::shared::{identified, shm};
use crate::support::*;
use cenote_base::fault;
use cenote_mem::region::TRUSTED_OWNERS;
use cenote_mem::{Coherent, Flush, MapOptions, Mapping, ReadMapping, ReadOnly, RegionSource};
use cenote_pool::{AttachOptions, Counter, Inspector, Pool, Publish, ReadOutcome, Superblock};
use rustix::fs::Mode;
use rustix::process::{Gid, Uid};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

const REGION: &str = "CENOTE_TEST_REGION";
const USER: &str = "CENOTE_TEST_USER";
const GROUPS: &str = "CENOTE_TEST_GROUPS";

/// Numbers without accounts on this machine; the kernel needs none.
const FIRST: u32 = 61_001;
const SECOND: u32 = 61_002;
const OUTSIDER: u32 = 61_003;
const GROUP: u32 = 61_100;
const OTHER_GROUP: u32 = 61_101;

/// Guard of a test that becomes other users; `None`: this process may not. Printed past the
/// harness's capture, so that a skip is visible.
///
/// One test at a time, of all processes: a user that sweeps counts all files of this user.
fn as_root() -> Option<File> {
    if !rustix::process::geteuid().is_root() {
        cenote_base::testing::skip("users of one group, which takes root to become them");
        return None;
    }
    let alone = File::create(std::env::temp_dir().join("cenote-test-group.lock")).expect("root may");
    alone.lock().expect("the system has locks of files");
    Some(alone)
}

struct Region {
    source: RegionSource,
    superblock: Superblock,
}

impl Region {
    /// A region of the first user.
    fn new(test: &str, identity: u8, mode: u32) -> Self {
        let source = shm(&format!("group-{test}"));
        let mapping = Mapping::create(&source, 2 << 20, mode, &MapOptions::default()).expect("shared memory");
        let config = identified(small_config(identity));
        let superblock = Superblock::format(&Coherent::new(mapping), &config).expect("the configuration fits");
        let region = Self { source, superblock };
        chown(region.path(), Some(FIRST), Some(GROUP)).expect("root may");
        region
    }

    fn path(&self) -> PathBuf {
        self.source.path().expect("shared memory has a path")
    }

    fn host_file(&self) -> PathBuf {
        let hex: String = self.superblock.config.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        Path::new("/dev/shm").join(format!("cenote-{hex}-h0"))
    }

    /// Owner, group and mode of the host's memory.
    fn host_file_is(&self) -> (u32, u32, u32) {
        let status = self.host_file().symlink_metadata().expect("a worker has attached");
        (status.uid(), status.gid(), status.mode() & 0o7777)
    }

    /// Puts a file of the same bytes in place of the host's memory.
    fn plant(&self, bytes: &[u8], user: u32, group: u32, mode: u32) {
        let file = self.host_file();
        let _ = std::fs::remove_file(&file);
        std::fs::write(&file, bytes).expect("shared memory");
        chown(&file, Some(user), Some(group)).expect("root may");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("root may");
    }

    fn as_user(&self, user: u32, groups: &[u32]) -> Worker {
        Worker::start(&self.source, user, groups)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = Mapping::remove(&self.source);
        let _ = std::fs::remove_file(self.host_file());
    }
}

struct Worker {
    child: Child,
    told: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Worker {
    fn start(region: &RegionSource, user: u32, groups: &[u32]) -> Self {
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        let mut child = this_binary()
            .envs([(REGION, region.to_string()), (USER, user.to_string()), (GROUPS, groups.join(","))])
            // Root is in no group here, and trusts the users that it was told to trust.
            .envs((user == 0).then(|| (TRUSTED_OWNERS, FIRST.to_string())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test starts itself");
        let (told, says) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, told, says: BufReader::new(says) }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.told, "{what}").expect("it listens");
    }

    /// Its answer to a command.
    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.says.read_line(&mut line).expect("text"), 0, "it ended instead of answering `{what}`");
            if let Some((_, answer)) = line.trim_end().split_once('@') {
                return answer.to_owned();
            }
        }
    }

    /// The answer is an error that names `file` and contains `fact`.
    fn fails(&mut self, what: &str, file: &Path, fact: &str) {
        let answer = self.ask(what);
        let named = answer.contains(file.to_str().expect("UTF-8"));
        assert!(answer.starts_with("error") && named && answer.contains(fact), "{what}: {answer}");
    }

    /// Kills it and waits until the kernel has released its resources.
    fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it was a child");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This binary, even if another user cannot access its folders.
fn this_binary() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "group::worker", "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// Another user's process, which the tests start.
#[test]
#[ignore = "the process that other tests start"]
fn worker() {
    let region = std::env::var(REGION).expect("other tests start this one");
    if let Ok(user) = std::env::var(USER) {
        // Users are changed per thread, so a new program starts with all of it changed.
        let user: u32 = user.parse().expect("a number");
        let groups = std::env::var(GROUPS).expect("told");
        let groups: Vec<Gid> = groups.split(',').filter_map(|group| group.parse().ok()).map(Gid::from_raw).collect();
        rustix::thread::set_thread_groups(&groups).expect("root may");
        let (own, user) = (Gid::from_raw(user), Uid::from_raw(user));
        rustix::thread::set_thread_res_gid(own, own, own).expect("root may");
        rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
        panic!("the program does not start: {}", this_binary().env_remove(USER).exec());
    }
    // Sharing does not depend on the umask.
    rustix::process::umask(Mode::from_raw_mode(0o077));
    let source: RegionSource = region.parse().expect("a region");
    let mut pool = None;
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let (what, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let answer = obey(&source, &mut pool, what, number).unwrap_or_else(|error| format!("error: {error}"));
        // In one write, so that the line is whole; the harness may have begun one.
        std::io::stdout().write_all(format!("\n@{answer}\n").as_bytes()).expect("the parent listens");
    }
}

fn obey(
    source: &RegionSource,
    pool: &mut Option<TestPool>,
    what: &str,
    rest: &str,
) -> Result<String, Box<dyn std::error::Error>> {
    if what == "attach" {
        let mapping = Mapping::open(source, &MapOptions::default())?;
        *pool = Some(Pool::attach(Arc::new(Coherent::new(mapping)), &AttachOptions::named("group"))?);
        return Ok("attached".into());
    }
    if what == "look" {
        let fabric = Arc::new(ReadOnly::new(ReadMapping::open(source)?, Flush::None)?);
        let inspector = Inspector::open(&fabric, &AttachOptions::named(""))?;
        let alive = inspector.info().workers.iter().filter(|worker| worker.alive == Some(true)).count();
        return Ok(format!("{alive} alive, {} leaks", inspector.check(true).leaks.len()));
    }
    if what == "sweep" {
        return Ok(cenote_pool::sweep_host_memory().to_string());
    }
    if what == "remove" {
        let superblock = Superblock::read(&Coherent::new(Mapping::open(source, &MapOptions::default())?))?;
        return Ok(format!("{:?}", cenote_pool::remove_host_memory(&superblock)?));
    }
    let pool = pool.as_ref().ok_or("nothing is attached")?;
    let ns = namespace(pool, 1, BLOCK_BYTES);
    let number = rest.parse().unwrap_or(0);
    let hashes = chain(&ns, number, 4);
    match what {
        "publish" => {
            let stored =
                hashes.iter().zip(0..).filter(|(hash, depth)| publish(pool, &ns, **hash, *depth) == Publish::Published);
            return Ok(stored.count().to_string());
        }
        "read" => {
            let hits = pool.lookup(&hashes);
            let whole = hits.iter().filter(|hit| read(pool, hit) == ReadOutcome::Whole).count();
            return Ok(whole.to_string());
        }
        "evict" => return Ok(pool.evict(number as usize).to_string()),
        "die" => fault::arm(rest.parse().expect("a fault point"), |_| {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("it can");
        }),
        "abandoned" => return Ok(pool.counter(Counter::LocksAbandoned).to_string()),
        "tick" => {
            let recovered = pool.tick();
            return Ok(format!("{} dead, {} reserved", recovered.workers, recovered.reservations));
        }
        "check" => {
            let report = pool.check(true)?;
            return Ok(if report.is_clean() { "clean".into() } else { format!("{report:?}") });
        }
        _ => return Err(format!("{what}?").into()),
    }
    Ok("done".into())
}

#[test]
fn users_of_a_group_share_a_region_and_clean_up_after_each_other() {
    let Some(_alone) = as_root() else { return };
    let region = Region::new("share", 31, 0o660);
    let mut second = region.as_user(SECOND, &[GROUP]);
    assert_eq!(second.ask("attach"), "attached");
    assert_eq!(region.host_file_is(), (SECOND, GROUP, 0o660), "the first worker creates it, for all");
    let mut first = region.as_user(FIRST, &[GROUP]);
    assert_eq!(first.ask("attach"), "attached");
    assert_eq!(first.ask("publish 1"), "4");
    assert_eq!(second.ask("read 1"), "4", "what one has published another reads");
    assert_eq!(second.ask("evict 4"), "4", "and evicts");
    assert_eq!(first.ask("read 1"), "0");

    // A worker of another user is seen to live, then to be dead, and its reservations are
    // recovered.
    for (point, in_hand) in [("publish.payload", "1 dead, 1 reserved"), ("index.counted", "1 dead, 0 reserved")] {
        assert_eq!(second.ask("look"), "2 alive, 0 leaks");
        first.ask(&format!("die {point}"));
        first.tell("publish 2");
        first.child.wait().expect("it ran");
        assert!(second.ask("look").starts_with("1 alive"), "{point}");
        assert_eq!(second.ask("tick"), in_hand, "{point}");
        assert_eq!(second.ask("check"), "clean", "{point}");
        first = region.as_user(FIRST, &[GROUP]);
        assert_eq!(first.ask("attach"), "attached");
        first.ask("publish 3");
        assert_eq!(second.ask("read 3"), "4", "{point}");
        second.ask("evict 8");
    }
    assert_ne!(second.ask("abandoned"), "0", "the other one died with a lock held, which its successor was told");
    // The creator of the memory may die too; the next worker is of the same group.
    second.kill();
    assert!(first.ask("tick").starts_with("1 dead"));
    assert_eq!(region.as_user(SECOND, &[GROUP]).ask("attach"), "attached");

    let mut outsider = region.as_user(OUTSIDER, &[]);
    outsider.fails("attach", &region.path(), "permission denied");
    outsider.fails("look", &region.path(), "permission denied");

    // In a directory with the sticky bit only its owner may remove a file. The result reports that,
    // without an error.
    assert_eq!(first.ask("sweep"), "0");
    let left = first.ask("remove");
    assert!(left.contains(region.host_file().to_str().expect("UTF-8")), "{left}");
    assert_eq!(region.as_user(SECOND, &[GROUP]).ask("remove"), "[]");
    assert!(!region.host_file().exists());
}

/// Memory of a removed region is swept by its owner or by root.
#[test]
fn members_sweep_their_own_files() {
    let Some(_alone) = as_root() else { return };
    let region = Region::new("sweep", 32, 0o660);
    let (mut first, mut second) = (region.as_user(FIRST, &[GROUP]), region.as_user(SECOND, &[GROUP]));
    assert_eq!(second.ask("attach"), "attached");
    std::fs::remove_file(region.path()).expect("root may");
    assert_eq!((first.ask("sweep").as_str(), region.host_file().exists()), ("0", true));
    second.kill();
    // Root sweeps the files of all users whenever it attaches to any region, as other tests do. So
    // whether the file is still there says nothing.
    assert_eq!(first.ask("sweep"), "0");
    region.as_user(SECOND, &[GROUP]).ask("sweep");
    assert!(!region.host_file().exists(), "shared memory of one's own is swept too");
}

#[test]
fn an_outsiders_file_is_refused() {
    let Some(_alone) = as_root() else { return };
    let region = Region::new("planted", 33, 0o660);
    assert_eq!(region.as_user(FIRST, &[GROUP]).ask("attach"), "attached");
    let bytes = std::fs::read(region.host_file()).expect("root may");
    for user in [FIRST, SECOND, 0] {
        let mut worker = region.as_user(user, &[GROUP]);
        for what in ["attach", "look"] {
            region.plant(&bytes, OUTSIDER, OUTSIDER, 0o666);
            worker.fails(what, &region.host_file(), "others may open it");
            region.plant(&bytes, OUTSIDER, OUTSIDER, 0o660);
            let fact = if user == 0 { "it may have been planted" } else { "user 61003, group 61003, mode 0660" };
            worker.fails(what, &region.host_file(), fact);
        }
    }
    // A group that the member is in too, but that is not the region's.
    let mut worker = region.as_user(SECOND, &[GROUP, OTHER_GROUP]);
    region.plant(&bytes, OUTSIDER, OTHER_GROUP, 0o660);
    worker.fails("attach", &region.host_file(), "it may have been planted");
    worker.fails("look", &region.host_file(), "it may have been planted");
    // A member's file is as trustworthy as the region, which the member can write too.
    region.plant(&bytes, OUTSIDER, GROUP, 0o660);
    assert_eq!(worker.ask("attach"), "attached");
}

#[test]
fn a_private_region_is_its_owners() {
    let Some(_alone) = as_root() else { return };
    let region = Region::new("private", 34, 0o600);
    let mut first = region.as_user(FIRST, &[GROUP]);
    assert_eq!(first.ask("attach"), "attached");
    assert_eq!(region.host_file_is(), (FIRST, FIRST, 0o600));
    region.as_user(SECOND, &[GROUP]).fails("attach", &region.path(), "permission denied");
    let bytes = std::fs::read(region.host_file()).expect("root may");
    region.plant(&bytes, OUTSIDER, GROUP, 0o660);
    region.as_user(FIRST, &[GROUP]).fails("attach", &region.host_file(), "it may have been planted");
    region.as_user(0, &[]).fails("attach", &region.host_file(), "it may have been planted");
    // An inspection by root does not exclude the region's user.
    std::fs::remove_file(region.host_file()).expect("root may");
    assert_eq!(region.as_user(0, &[]).ask("attach"), "attached");
    assert_eq!(region.as_user(FIRST, &[]).ask("attach"), "attached");
}

#[test]
fn a_region_may_be_shared_later_and_change_its_group() {
    let Some(_alone) = as_root() else { return };
    let region = Region::new("chgrp", 35, 0o600);
    let mut first = region.as_user(FIRST, &[GROUP, OTHER_GROUP]);
    let mut second = region.as_user(SECOND, &[GROUP, OTHER_GROUP]);
    assert_eq!(first.ask("attach"), "attached");
    first.ask("publish 1");
    std::fs::set_permissions(region.path(), PermissionsExt::from_mode(0o660)).expect("root may");
    second.fails("attach", &region.host_file(), "before the region was shared");
    second.fails("look", &region.host_file(), "before the region was shared");
    assert_eq!(region.as_user(FIRST, &[GROUP]).ask("attach"), "attached");
    assert_eq!(region.host_file_is(), (FIRST, GROUP, 0o660), "its owner has opened it to the group");
    assert_eq!(second.ask("attach"), "attached");
    assert_eq!(second.ask("read 1"), "4", "and it is the same that the first one has");

    chown(region.path(), None, Some(OTHER_GROUP)).expect("root may");
    let mut again = region.as_user(FIRST, &[GROUP, OTHER_GROUP]);
    again.fails("attach", &region.host_file(), "permissions were changed");
    assert_eq!(second.ask("read 1"), "4", "a process that has it open continues");
    second.kill();
    first.kill();
    assert_eq!(again.ask("attach"), "attached");
    assert_eq!(region.host_file_is(), (FIRST, OTHER_GROUP, 0o660), "made anew");
    let mut second = region.as_user(SECOND, &[OTHER_GROUP]);
    assert_eq!(second.ask("attach"), "attached");
    assert_eq!(second.ask("read 1"), "4");
    region.as_user(OUTSIDER, &[GROUP]).fails("attach", &region.path(), "permission denied");
}
