//! Host areas: what processes share, and what remains when they are killed.
//!
//! Children are this test binary, run with a role in the environment. They report their position
//! through a pipe and are then killed with SIGKILL. No test waits for a time to pass.

use cenote_base::fault::{self, Point};
use cenote_base::testing::{ManualTime, PATIENCE, skip, until};
use cenote_base::{Clock, Deadline};
use cenote_mem::host::{HostError, LockTimeout};
use cenote_mem::region::RegionFile;
use cenote_mem::{AreaFile, HostArea, HostLocal, HostSpec, conformance};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const SPEC: HostSpec = HostSpec { mutexes: 3, words32: 10, words64: 20, slots: 70 };
const ROLE: &str = "CENOTE_TEST_ROLE";
const NAME: &str = "CENOTE_TEST_NAME";
const FAULT: &str = "CENOTE_TEST_FAULT";

fn soon() -> Deadline {
    Clock::system().after(PATIENCE)
}

fn at_once() -> Deadline {
    Clock::system().after(Duration::ZERO)
}

/// An area's name, removed after the test.
struct Name(String);

impl Name {
    fn new(test: &str) -> Self {
        Self(format!("cenote-test-{test}-{}", std::process::id()))
    }
    fn open(&self) -> (HostArea, bool) {
        HostArea::open(&self.0, SPEC, false).expect("the area opens")
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = HostArea::remove(&self.0);
    }
}

/// A child that is killed at the latest when the test ends.
struct Helper {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Helper {
    fn start(role: &str, name: &Name, fault: &str) -> Self {
        Self::start_by(Command::new(std::env::current_exe().expect("this binary has a path")), role, name, fault)
    }

    /// Starts it in its own PID namespace, where it has process id 1. `Err`: this machine does not
    /// allow it.
    fn start_apart(role: &str, name: &Name) -> Result<Self, String> {
        let unshare = || {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--kill-child"]);
            command
        };
        match unshare().arg("true").output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => return Err(format!("unshare: {error}")),
        }
        let mut command = unshare();
        command.arg(std::env::current_exe().expect("this binary has a path"));
        Ok(Self::start_by(command, role, name, ""))
    }

    fn start_by(mut command: Command, role: &str, name: &Name, fault: &str) -> Self {
        let mut child = command
            .args(["--exact", "host::child_role", "--ignored", "--nocapture", "--test-threads=1"])
            .envs([(ROLE, role), (NAME, &name.0), (FAULT, fault)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let says = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, says }
    }

    /// Waits until the child prints a line that starts with `word`, and returns the rest.
    fn told(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.says.read_line(&mut line).expect("readable"), 0, "the child ended before it said {word}");
            if let Some(rest) = line.trim_end().strip_prefix(&format!("@{word} ")) {
                return rest.to_owned();
            }
        }
    }

    /// Waits until the child prints `word`; skips the test harness's own lines.
    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.trim_end().ends_with(&format!("@{word}")) {
            line.clear();
            assert_ne!(self.says.read_line(&mut line).expect("readable"), 0, "the child ended before it said {word}");
        }
    }

    /// Kills the child and waits until the kernel has released its resources.
    fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it was a child");
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(word: &str) {
    // In one write, so that the line is whole; the harness may have begun one.
    std::io::stdout().write_all(format!("\n@{word}\n").as_bytes()).expect("the parent listens");
    std::io::stdout().flush().expect("the parent listens");
}

/// Waits until the parent kills this process, or dies.
fn wait_for_death() -> ! {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(1);
}

fn kill_self(_: Point) {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("killed");
}

/// Two words that are equal whenever lock 0 is free and its owners lived.
fn step(area: &HostArea) {
    let lock = area.lock(0, soon()).expect("it is held briefly");
    let [left, right] = [&area.words64()[0], &area.words64()[1]];
    if lock.abandoned() {
        right.store(left.load(Ordering::Relaxed), Ordering::Relaxed);
        area.words64()[2].fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(left.load(Ordering::Relaxed), right.load(Ordering::Relaxed), "two were inside");
    left.fetch_add(1, Ordering::Relaxed);
    std::hint::black_box(&area);
    right.fetch_add(1, Ordering::Relaxed);
}

/// Forks. Returns the child's process id in the parent, and `None` in the child.
fn fork() -> Option<rustix::process::Pid> {
    // SAFETY: the roles that fork have one thread, so the child may use all inherited state.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    rustix::process::Pid::from_raw(pid)
}

/// A child of this process drops everything that it inherited, and stores wherever it can.
fn fork_and_drop(area: HostArea) {
    let lock = area.lock(1, soon()).expect("free");
    let claim = area.claim_slot(69).expect("asked").expect("free");
    area.words64()[7].store(7, Ordering::Release);
    let Some(child) = fork() else {
        assert!(area.is_inherited());
        area.words64()[7].store(8, Ordering::Release);
        assert!(area.try_lock(2).is_none(), "an inherited area gives no locks");
        assert_eq!(area.lock(1, soon()).err(), Some(LockTimeout::Inherited { index: 1 }));
        drop(lock);
        drop(claim);
        drop(area);
        std::process::exit(0);
    };
    let (_, status) =
        rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).expect("a child").expect("ended");
    assert_eq!(status.exit_status(), Some(0));
    say("forked");
    wait_for_death();
}

/// A child of this process keeps everything that it inherited until it is killed, long after its
/// parent.
fn fork_and_linger(area: &HostArea) {
    let _lock = area.lock(1, soon()).expect("free");
    let _claim = area.claim_slot(69).expect("asked").expect("free");
    if fork().is_none() {
        say(&format!("child {}", std::process::id()));
    }
    loop {
        std::thread::park();
    }
}

/// The processes that the tests start.
#[test]
#[ignore = "the process that other tests start"]
fn child_role() {
    let role = std::env::var(ROLE).expect("other tests start this one");
    let name = std::env::var(NAME).expect("a child has a name");
    if let Ok(fault) = std::env::var(FAULT)
        && !fault.is_empty()
    {
        fault::arm(fault.parse().expect("name:count"), kill_self);
    }
    let (area, _) = HostArea::open(&name, SPEC, false).expect("the area opens");
    match role.as_str() {
        "open" => {}
        "hold" => {
            let _lock = area.lock(1, soon()).expect("free");
            let _claim = area.claim_slot(69).expect("asked").expect("free");
            area.words32()[3].store(33, Ordering::Release);
            say("holding");
            wait_for_death();
        }
        "wait" => {
            say("waiting");
            let lock = area.lock(1, soon()).expect("obtained");
            say(if lock.abandoned() { "abandoned" } else { "obtained" });
            wait_for_death();
        }
        "fork" => return fork_and_drop(area),
        "fork-linger" => fork_and_linger(&area),
        "recover" => {
            let lock = area.lock(1, soon()).expect("obtained");
            assert!(lock.abandoned());
            say("recovering");
            wait_for_death();
        }
        "count" => {
            for round in 0_u64.. {
                step(&area);
                if round == 200 {
                    say("counting");
                }
            }
        }
        other => panic!("no role {other}"),
    }
    drop(area);
    std::process::exit(0);
}

#[test]
fn a_host_area_conforms() {
    let name = Name::new("conforms");
    let open = || HostArea::open(&name.0, conformance::HOST_SPEC, false).expect("the area opens").0;
    conformance::host_local(&open(), &open());
    let private = HostArea::open("private", conformance::HOST_SPEC, true).expect("it opens").0;
    conformance::host_local(&private, &private.clone());
}

#[test]
fn openers_share_words_and_the_first_is_told() {
    let name = Name::new("words");
    let (first, created) = name.open();
    assert!(created);
    assert_eq!((first.words32().len(), first.words64().len(), first.spec()), (10, 20, SPEC));
    assert!(first.words32().iter().all(|word| word.load(Ordering::Relaxed) == 0));
    first.words64()[19].store(7, Ordering::Release);
    first.words32()[9].store(8, Ordering::Release);
    let (second, created) = name.open();
    assert!(!created);
    assert_eq!(second.words64()[19].load(Ordering::Acquire), 7);
    assert_eq!(second.words32()[9].load(Ordering::Acquire), 8);
    HostArea::remove(&name.0).expect("removed");
    HostArea::remove(&name.0).expect("removing what is gone is no error");
    assert!(name.open().1, "a removed name is made anew");
    first.words64()[0].store(1, Ordering::Release);
}

#[test]
fn many_openers_initialise_once() {
    let name = Name::new("race");
    let created = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (area, first) = name.open();
                created.fetch_add(first.into(), Ordering::Relaxed);
                area.words64()[5].fetch_add(1, Ordering::AcqRel);
                drop(area.lock(0, soon()).expect("usable"));
            });
        }
    });
    assert_eq!(created.into_inner(), 1);
    assert_eq!(name.open().0.words64()[5].load(Ordering::Acquire), 8, "no words were reset");
}

#[test]
fn another_specification_is_refused() {
    let name = Name::new("spec");
    let (_area, _) = name.open();
    let other = HostSpec { mutexes: 4, ..SPEC };
    let error = HostArea::open(&name.0, other, false).expect_err("the area is of another kind");
    assert!(matches!(error, HostError::Spec { found: Some(SPEC), wanted, .. } if wanted == other), "{error}");
    let silly = HostSpec { words64: u64::MAX, ..SPEC };
    assert!(matches!(HostArea::open(&name.0, silly, false), Err(HostError::TooLarge(_))));
    for bad in ["", "..", "a/b"] {
        assert!(matches!(HostArea::open(bad, SPEC, false), Err(HostError::Name { .. })), "{bad}");
    }
}

#[test]
fn a_planted_file_is_not_trusted() {
    use std::os::unix::fs::PermissionsExt;
    let name = Name::new("planted");
    let path = format!("/dev/shm/{}", name.0);
    std::fs::write(&path, [0; 64]).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).expect("set");
    assert!(matches!(HostArea::open(&name.0, SPEC, false), Err(HostError::NotAnArea { .. })));
    std::fs::remove_file(&path).expect("removed");
    std::os::unix::fs::symlink("/dev/null", &path).expect("linked");
    assert!(matches!(HostArea::open(&name.0, SPEC, false), Err(HostError::Io { .. })));
    std::fs::remove_file(&path).expect("removed");
    std::fs::write(&path, b"no area").expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
    assert!(name.open().1, "a file without the ready word is begun anew");
    std::fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(4096).expect("cut");
    assert!(matches!(HostArea::open(&name.0, SPEC, false), Err(HostError::NotAnArea { .. })), "no SIGBUS later");
}

/// The clock of an area is that of its times and of its waits.
#[test]
fn an_area_runs_on_the_clock_that_it_is_given() {
    let name = Name::new("clock");
    let time = ManualTime::start();
    let area = name.open().0.with_clock(time.clock());
    let (then, since_1970) = (HostLocal::now(&area), area.unix_time());
    time.advance(Duration::from_secs(5));
    assert_eq!(HostLocal::now(&area) - then, Duration::from_secs(5));
    assert_eq!(area.unix_time() - since_1970, Duration::from_secs(5));
    let held = area.lock(0, at_once()).expect("free");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| HostLocal::lock(&area, 0, Duration::from_secs(1)).map(drop));
        // Whether it waits already or not, it has a second from its first look on.
        until("the wait ends", || {
            time.advance(Duration::from_millis(100));
            waiter.is_finished().then_some(())
        });
        assert_eq!(waiter.join().expect("ended"), Err(LockTimeout::Passed { index: 0 }));
    });
    drop(held);
    // Without one it runs on the kernel's clock, whose origin all processes share.
    let kernel = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).expect("below a second"))
    };
    let (before, now, after) = (kernel(), HostLocal::now(&name.open().0), kernel());
    assert!((before..=after).contains(&now), "{before:?}, {now:?}, {after:?}");
}

#[test]
fn a_lock_excludes_and_gives_up_at_its_deadline() {
    let name = Name::new("exclude");
    let shared = name.open().0;
    let private = HostArea::open("any name", SPEC, true).expect("memory").0;
    for area in [&shared, &private] {
        let held = area.lock(0, at_once()).expect("a free lock is obtained after the deadline too");
        assert!(!held.abandoned());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert!(area.try_lock(0).is_none());
                assert_eq!(area.lock(0, at_once()).err(), Some(LockTimeout::Passed { index: 0 }));
                // Held all the time, so the wait ends with its time.
                let late = area.lock(0, Clock::system().after(Duration::from_millis(5)));
                assert_eq!(late.err(), Some(LockTimeout::Passed { index: 0 }));
                assert_eq!(area.try_lock(1).expect("another lock is free").index(), 1);
            });
            other.join().expect("the other thread was kept out");
        });
        drop(held);
        assert!(area.try_lock(0).is_some());
    }
}

#[test]
fn a_thread_that_leaks_its_guard_abandons_the_lock() {
    let name = Name::new("leak");
    let area = name.open().0;
    let clone = name.open().0;
    std::thread::spawn(move || std::mem::forget(clone.lock(2, soon()).expect("free"))).join().expect("ended");
    let lock = area.lock(2, soon()).expect("recovered");
    assert!(lock.abandoned(), "the thread ended while it held the lock, and its mapping was dropped");
    drop(lock);
    assert!(!area.lock(2, soon()).expect("free").abandoned());
}

#[test]
fn a_killed_process_gives_back_its_lock_and_its_slot() {
    let name = Name::new("killed");
    let area = name.open().0;
    assert!(!area.slot_alive(69));
    let mut helper = Helper::start("hold", &name, "");
    helper.wait_for("holding");
    assert_eq!(area.words32()[3].load(Ordering::Acquire), 33);
    assert!(area.slot_alive(69) && !area.slot_alive(68));
    assert!(area.claim_slot(69).expect("asked").is_none());
    assert!(area.try_lock(1).is_none());
    helper.kill();
    assert!(!area.slot_alive(69), "the dead hold no slot");

    // The repairer may die as well, and the next holder must be told again.
    let mut second = Helper::start("recover", &name, "");
    second.wait_for("recovering");
    second.kill();
    let lock = area.lock(1, soon()).expect("recovered");
    assert!(lock.abandoned());
    drop(lock);
    assert!(!area.lock(1, soon()).expect("free").abandoned(), "told once only");
    let claim = area.claim_slot(69).expect("asked").expect("free again");
    assert_eq!(claim.slot(), 69);
}

#[test]
fn a_waiter_gets_the_lock_of_a_killed_holder() {
    let name = Name::new("waiter");
    let area = name.open().0;
    let mut helper = Helper::start("hold", &name, "");
    helper.wait_for("holding");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| area.lock(1, soon()).map(|lock| lock.abandoned()));
        helper.kill();
        assert_eq!(waiter.join().expect("ended"), Ok(true));
    });
}

#[test]
fn slots_are_claimed_once() {
    let name = Name::new("slots");
    let shared = name.open();
    let private = HostArea::open("any name", SPEC, true).expect("memory");
    // Another opener of the same area, and a clone of the private one, which has no name to open.
    for (area, other) in [(shared.0, name.open().0), (private.0.clone(), private.0)] {
        let claim = area.claim_slot(0).expect("asked").expect("free");
        let last = other.claim_slot(69).expect("asked").expect("free");
        for view in [&area, &other] {
            assert!(view.slot_alive(0) && view.slot_alive(69) && !view.slot_alive(1));
            assert!(view.claim_slot(0).expect("asked").is_none());
        }
        drop(other);
        assert!(area.slot_alive(69), "a claim does not depend on the area it came from");
        drop(claim);
        assert!(!area.slot_alive(0) && area.slot_alive(69));
        assert!(area.claim_slot(0).expect("asked").is_some());
        drop(last);
        assert!(!area.slot_alive(69));
    }
}

#[test]
fn a_claim_survives_the_removal_of_the_name() {
    let name = Name::new("gone");
    let area = name.open().0;
    HostArea::remove(&name.0).expect("removed");
    let (other, created) = name.open();
    assert!(created);
    let _claim = area.claim_slot(4).expect("asked").expect("free");
    assert!(area.slot_alive(4) && !other.slot_alive(4), "the slot of another area of the same name");
}

#[test]
fn an_area_whose_maker_was_killed_is_made_anew() {
    // The header has five words, the ready word last: at the fourth the area is not ready, at the
    // fifth it is.
    for (fault, ready) in [
        ("host-area.emptied:1", false),
        ("host-area.allocated:1", false),
        ("host-area.header:1", false),
        ("host-area.header:4", false),
        ("host-area.header:5", true),
    ] {
        let name = Name::new(&fault.replace(':', "-"));
        let mut helper = Helper::start("open", &name, fault);
        let status = helper.child.wait().expect("it was a child");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL), "{fault}: {status}");
        let (area, created) = name.open();
        assert_eq!(created, !ready, "{fault}");
        (0..3).for_each(|index| drop(area.lock(index, soon()).expect("usable")));
        assert!(area.claim_slot(0).expect("asked").is_some());
    }
}

#[test]
fn counts_stay_right_while_processes_are_killed() {
    let name = Name::new("count");
    let area = name.open().0;
    for _ in 0..10 {
        let mut helpers = [(); 3].map(|()| Helper::start("count", &name, ""));
        helpers.iter_mut().for_each(|helper| helper.wait_for("counting"));
        for helper in &mut helpers {
            helper.kill();
            step(&area);
        }
    }
    step(&area);
    assert_eq!(area.words64()[0].load(Ordering::Acquire), area.words64()[1].load(Ordering::Acquire));
    assert!(area.words64()[0].load(Ordering::Acquire) > 30 * 200);
}

#[test]
fn a_view_shows_words_and_claims_and_changes_nothing() {
    let name = Name::new("view");
    assert!(HostArea::view(&name.0, SPEC, None).expect("a name").is_none(), "it does not exist");
    let (area, _) = name.open();
    let view = HostArea::view(&name.0, SPEC, None).expect("it is ours").expect("it is there");
    area.words64()[3].store(7, Ordering::Relaxed);
    assert_eq!(view.words64()[3].load(Ordering::Relaxed), 7);
    let path = std::path::Path::new("/dev/shm").join(&name.0);
    let before = std::fs::read(&path).expect("a file");
    view.words64()[3].store(8, Ordering::Relaxed);
    assert!(view.try_lock(0).is_none() && view.lock(0, at_once()).is_err(), "there is nothing to lock");
    assert!(view.claim_slot(1).expect("it is asked").is_none());
    assert!(std::fs::read(&path).expect("a file") == before, "what the view stored stayed its own");
    assert!(area.try_lock(0).is_some());
    assert!(!view.slot_alive(2));
    let claim = area.claim_slot(2).expect("a file").expect("it is free");
    assert!(view.slot_alive(2), "a claim is seen from outside");
    drop(claim);
    assert!(!view.slot_alive(2));
    let other = HostSpec { mutexes: 4, ..SPEC };
    assert!(matches!(HostArea::view(&name.0, other, None), Err(HostError::Spec { .. })));
}

fn path_of(name: &Name) -> std::path::PathBuf {
    std::path::Path::new("/dev/shm").join(&name.0)
}

/// A private region that does not exist any more.
fn gone_region() -> RegionFile {
    let user = rustix::process::geteuid().as_raw();
    RegionFile { path: "/no/such/region".into(), user, group: 0, mode: 0o600, identity: (0, 0) }
}

/// Sweeps only this area.
fn sweep(name: &Name, is_orphan: bool) -> usize {
    HostArea::sweep(|other| other == name.0, |_, owner| is_orphan && owner == std::path::Path::new("/no/such/region"))
}

/// As [`sweep`], once no process has it open: a process that another test is starting holds all
/// open files until its `exec`.
fn sweep_once_closed(name: &Name, is_orphan: bool) -> usize {
    until("a swept area", || Some(sweep(name, is_orphan)).filter(|&swept| swept > 0))
}

#[test]
fn an_unused_orphaned_area_is_swept() {
    let name = Name::new("sweep");
    let open = || HostArea::open_for(&name.0, SPEC, Some(&gone_region())).expect("it opens");
    let (area, _) = open();
    let claim = area.claim_slot(1).expect("a file").expect("it is free");
    assert_eq!(sweep(&name, true), 0, "it is open");
    drop(claim);
    let (second, made) = open();
    assert!(!made);
    drop(area);
    assert_eq!(sweep(&name, true), 0, "it is open elsewhere");
    let listed = || HostArea::list(|other| other == name.0);
    let bytes = path_of(&name).metadata().expect("it is there").len();
    let region = Some(std::path::PathBuf::from("/no/such/region"));
    assert_eq!(listed(), [AreaFile { name: name.0.clone(), region, bytes, is_open: true }]);
    drop(second);
    assert_eq!(sweep(&name, false), 0, "its owner is there");
    assert!(path_of(&name).exists());
    assert_eq!((sweep_once_closed(&name, true), path_of(&name).exists()), (1, false));
    assert_eq!(listed(), []);
    // This area has no recorded region.
    drop(name.open());
    assert_eq!(sweep(&name, true), 0);
    HostArea::remove(&name.0).expect("it is ours");
    // This area's creator died; the next opener would initialise it again.
    std::fs::write(path_of(&name), [0; 100]).expect("shared memory");
    std::fs::set_permissions(path_of(&name), std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("it is ours");
    assert_eq!((sweep_once_closed(&name, false), path_of(&name).exists()), (1, false));
}

/// A killed process releases its area, and a living one keeps it, whatever happens to its region.
#[test]
fn the_killed_hold_no_area() {
    let name = Name::new("sweep-killed");
    drop(HostArea::open_for(&name.0, SPEC, Some(&gone_region())).expect("it opens"));
    let mut child = Helper::start("hold", &name, "");
    child.wait_for("holding");
    assert_eq!(sweep(&name, true), 0, "a process lives in it");
    child.kill();
    assert_eq!((sweep_once_closed(&name, true), path_of(&name).exists()), (1, false));
}

/// Sweepers, openers and removers at once: an area that a process has open is never swept, so that
/// later openers of the name share it.
#[test]
fn sweeping_never_separates_openers() {
    /// Before each of so many rounds an opener has nothing open until one more sweep has succeeded. It
    /// does at the latest when the other opener waits too.
    const ROUNDS_PER_SWEEP: u64 = 500;
    let name = Name::new("sweep-race");
    let swept = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let owner = &gone_region();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    swept.fetch_add(sweep(&name, true) as u64, Ordering::Relaxed);
                }
            });
        }
        let openers = [1, 2].map(|number: u64| {
            let (name, swept) = (&name, &swept);
            scope.spawn(move || {
                for round in 0..2000_u64 {
                    if round % ROUNDS_PER_SWEEP == 1 {
                        let wanted = round / ROUNDS_PER_SWEEP + 1;
                        until("a sweep", || (swept.load(Ordering::Relaxed) >= wanted).then_some(()));
                    }
                    let (area, _) = HostArea::open_for(&name.0, SPEC, Some(owner)).expect("it opens");
                    area.words64()[number as usize].store(round + 1, Ordering::Relaxed);
                    let (again, _) = HostArea::open_for(&name.0, SPEC, Some(owner)).expect("it opens");
                    let seen = again.words64()[number as usize].load(Ordering::Relaxed);
                    assert_eq!(seen, round + 1, "the name leads to another area while this one is open");
                }
            })
        });
        let ended = openers.map(|opener| opener.join());
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "an opener found another area");
    });
}

/// A process and its forked child do not share what the process holds.
#[test]
fn a_forked_child_releases_nothing_of_its_parent() {
    let name = Name::new("fork");
    let area = name.open().0;
    let mut parent = Helper::start("fork", &name, "");
    parent.wait_for("forked");
    assert!(area.slot_alive(69), "the child released its parent's slot");
    assert!(area.try_lock(1).is_none(), "the child released its parent's lock");
    assert_eq!(area.words64()[7].load(Ordering::Acquire), 7, "the child stored to its parent's words");
    parent.kill();
    assert!(!area.slot_alive(69));
    assert!(area.lock(1, soon()).expect("recovered").abandoned());
}

#[test]
fn a_forked_child_keeps_nothing_of_its_dead_parent() {
    let name = Name::new("fork-linger");
    let area = name.open().0;
    let mut parent = Helper::start("fork-linger", &name, "");
    let child: i32 = parent.told("child").parse().expect("a number");
    parent.kill();
    let alive = area.slot_alive(69);
    let lock = area.lock(1, soon()).map(|lock| lock.abandoned());
    let child = rustix::process::Pid::from_raw(child).expect("a process id");
    rustix::process::kill_process(child, rustix::process::Signal::KILL).expect("it lived until now");
    assert!(!alive, "the child keeps its dead parent's slot");
    assert_eq!(lock, Ok(true), "the child keeps its dead parent's lock");
}

/// Containers that share `/dev/shm` and not a PID namespace: the same process and thread ids in
/// each. With the C library's robust mutexes, the death of a waiter marked the lock of a living
/// owner with the same thread id as abandoned.
#[test]
fn a_waiter_of_another_pid_namespace_dies_without_harm() {
    let name = Name::new("namespaces");
    let area = name.open().0;
    let mut holder = match Helper::start_apart("hold", &name) {
        Ok(holder) => holder,
        Err(reason) => return skip(&format!("a_waiter_of_another_pid_namespace_dies_without_harm: {reason}")),
    };
    holder.wait_for("holding");
    for _ in 0..20 {
        let mut waiter = Helper::start_apart("wait", &name).expect("it worked before");
        waiter.wait_for("waiting");
        // The waiter dies at any progress. The owner holds the lock all the time, so each wait ends
        // with its time.
        let late = area.lock(1, Clock::system().after(Duration::from_millis(20))).map(|lock| lock.abandoned());
        assert_eq!(late, Err(LockTimeout::Passed { index: 1 }), "the owner lives");
        waiter.kill();
        let late = area.lock(1, Clock::system().after(Duration::from_millis(20))).map(|lock| lock.abandoned());
        assert_eq!(late, Err(LockTimeout::Passed { index: 1 }), "the owner lives, a waiter was killed");
    }
    let mut waiter = Helper::start_apart("wait", &name).expect("it worked before");
    waiter.wait_for("waiting");
    assert!(area.slot_alive(69));
    holder.kill();
    waiter.wait_for("abandoned");
    assert!(!area.slot_alive(69));
}

/// An opener that gets a dead opener's number must not count as the owner of the dead one's locks.
#[test]
fn the_number_of_a_dead_opener_is_free_of_its_locks() {
    let name = Name::new("number");
    let mut helper = Helper::start("hold", &name, "");
    helper.wait_for("holding");
    helper.kill();
    // The lowest number again.
    let area = name.open().0;
    assert!(area.lock(1, at_once()).expect("free").abandoned());
    assert!(!area.lock(1, at_once()).expect("free").abandoned());
}

#[test]
fn the_next_holder_learns_of_an_abandoned_lock() {
    let name = Name::new("abandon");
    let area = name.open().0;
    area.lock(0, soon()).expect("free").abandon();
    assert!(name.open().0.lock(0, soon()).expect("free").abandoned());
    assert!(!area.lock(0, soon()).expect("free").abandoned());
}

#[test]
fn an_area_of_another_version_is_refused() {
    let name = Name::new("version");
    drop(name.open());
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(path_of(&name)).expect("it is there");
    file.write_all_at(b"cenoteh1", 0).expect("written");
    assert!(matches!(HostArea::open(&name.0, SPEC, false), Err(HostError::Spec { found: None, .. })));
}
