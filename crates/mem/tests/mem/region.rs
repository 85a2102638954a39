//! Regions on the machine's real memory and file systems.

use cenote_base::testing::skip;
use cenote_mem::{Coherent, Fabric, MapError, MapOptions, Mapping, Offset, RegionSource};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const MIB: u64 = 1 << 20;

fn shm(test: &str) -> Removed {
    Removed(RegionSource::Shm(format!("cenote-test-{test}-{}", std::process::id())))
}

/// A source, with its file removed after the test.
struct Removed(RegionSource);

impl Drop for Removed {
    fn drop(&mut self) {
        // `Mapping::remove` leaves files that are no regions, such as a planted link.
        let _ = self.0.path().map(fs::remove_file);
    }
}

fn create(source: &RegionSource, len: u64) -> Result<Mapping, MapError> {
    Mapping::create(source, len, 0o600, &MapOptions::default())
}

fn open(source: &RegionSource) -> Result<Mapping, MapError> {
    Mapping::open(source, &MapOptions::default())
}

#[test]
fn a_name_is_created_once_and_opened_when_there() {
    let name = shm("once");
    assert!(matches!(open(&name.0), Err(MapError::Missing { .. })));
    assert!(matches!(Mapping::remove(&name.0), Err(MapError::Missing { .. })));
    let first = create(&name.0, MIB).expect("created");
    assert!(matches!(create(&name.0, MIB), Err(MapError::Exists { .. })));
    Mapping::remove(&name.0).expect("removed");
    assert!(matches!(open(&name.0), Err(MapError::Missing { .. })));
    // The memory outlives its name.
    Coherent::new(first).store(Offset::new(0), 1);
}

/// As if its creator had died before it was complete: none of its bytes exists under any name.
#[test]
fn unpublished_blocks_leave_nothing() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = RegionSource::File(directory.path().join("region"));
    let (mapping, fresh) = Mapping::prepare(&source, MIB, 0o600, &MapOptions::default()).expect("prepared");
    let names = || fs::read_dir(directory.path()).expect("a directory").count();
    assert_eq!(names(), 0, "it has a name already");
    std::mem::forget(fresh);
    Coherent::new(mapping).store(Offset::new(0), 1);
    assert_eq!(names(), 0);
    assert!(matches!(open(&source), Err(MapError::Missing { .. })));
}

/// Many workers of a machine start at once, and the region's size is all that the machine has.
#[test]
fn one_of_many_creators_allocates_the_region() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = RegionSource::File(directory.path().join("region"));
    let prepare = || Mapping::prepare(&source, MIB, 0o600, &MapOptions::default());
    let (mapping, fresh) = prepare().expect("prepared");
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..3).map(|_| scope.spawn(prepare)).collect();
        fresh.publish().expect("named");
        for other in others {
            // A creator that continued at once would have allocated its own file.
            assert!(matches!(other.join().expect("no panic"), Err(MapError::Exists { .. })));
        }
    });
    Coherent::new(mapping).store(Offset::new(0), 5);
    assert_eq!(Coherent::new(open(&source).expect("there")).load(Offset::new(0)), 5);
}

#[test]
fn a_file_is_its_owners_and_really_allocated() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = RegionSource::File(directory.path().join("region"));
    drop(Mapping::create(&source, MIB, 0o640, &MapOptions::default()).expect("created"));
    let status = fs::metadata(directory.path().join("region")).expect("there");
    assert_eq!(status.permissions().mode() & 0o7777, 0o640, "the mode is exact whatever the umask");
    assert!(std::os::unix::fs::MetadataExt::blocks(&status) * 512 >= MIB, "a sparse file can fail later");
}

#[test]
fn too_much_is_an_error_and_leaves_nothing() {
    let name = shm("huge");
    let error = create(&name.0, 1 << 50).expect_err("no machine has a pebibyte in /dev/shm");
    let MapError::NoSpace { wanted, free, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*wanted, 1 << 50);
    assert!(*free > 0 && *free < 1 << 50);
    assert!(error.to_string().contains("cenote-test-huge"), "{error}");
    assert!(matches!(open(&name.0), Err(MapError::Missing { .. })), "the half-made file was left behind");
    assert!(create(&name.0, 0).is_err());
    assert!(create(&name.0, u64::MAX).is_err());
    assert!(matches!(open(&name.0), Err(MapError::Missing { .. })));
}

#[test]
fn files_that_are_no_regions_are_not_mapped() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, len: usize| {
        let path = directory.path().join(name);
        fs::write(&path, vec![1; len]).expect("written");
        RegionSource::File(path)
    };
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).expect("made");
    for source in [
        RegionSource::Anon,
        RegionSource::File(directory.path().into()),
        RegionSource::File("/dev/null".into()),
        RegionSource::File(pipe),
        RegionSource::DevDax(directory.path().into()),
        RegionSource::DevDax("/dev/null".into()),
        RegionSource::Shm("../tmp".into()),
        file("empty", 0),
        file("part", 4097),
    ] {
        let error = open(&source).expect_err("not a region");
        assert!(matches!(error, MapError::NotARegion { .. } | MapError::Permission { .. }), "{source}: {error:?}");
    }
    open(&file("page", 4096)).expect("one page is enough");
    let missing = RegionSource::DevDax("/dev/dax99.99".into());
    assert!(matches!(create(&missing, 0), Err(MapError::Missing { .. })));
    assert!(matches!(Mapping::remove(&missing), Err(MapError::NotRemovable { .. })));
    assert!(Mapping::remove(&RegionSource::File(directory.path().into())).is_err());
}

#[test]
fn a_new_file_in_a_missing_folder_names_the_folder_and_the_next_step() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().join("none/such");
    let source = RegionSource::File(folder.join("kv"));
    let error = create(&source, 2 * MIB).expect_err("no folder").to_string();
    assert!(error.contains(&format!("mkdir -p {}", folder.display())), "{error}");
    assert!(matches!(open(&source), Err(MapError::Missing { .. })));
    fs::create_dir_all(&folder).expect("made");
    create(&source, 2 * MIB).expect("created");
}

#[test]
fn a_truncated_file_is_detected() {
    let name = shm("cut");
    let mapping = create(&name.0, 2 * MIB).expect("created");
    assert!(mapping.still_whole());
    let path = name.0.path().expect("a file");
    fs::File::options().write(true).open(&path).expect("opened").set_len(MIB).expect("cut");
    assert!(!mapping.still_whole());
    assert!(create(&RegionSource::Anon, MIB).expect("mapped").still_whole());
    // The first half is there, and the second reads as zeros instead of ending the process.
    let fabric = Coherent::new(mapping);
    fabric.store(Offset::new(0), 7);
    assert_eq!((fabric.load(Offset::new(0)), fabric.load(Offset::new(MIB + 8))), (7, 0));
    fabric.store(Offset::new(2 * MIB - 8), 9);
    assert_eq!(fabric.load(Offset::new(2 * MIB - 8)), 9, "stores go on as well");
    fs::File::options().write(true).open(&path).expect("opened").set_len(2 * MIB).expect("made longer again");
    assert!(!fabric.still_whole(), "what was lost stays lost");
}

/// A bus error outside of regions goes to the previous handler.
#[test]
fn other_bus_errors_end_the_process() {
    const ROLE: &str = "CENOTE_TEST_ROLE";
    if std::env::var_os(ROLE).is_some() {
        let name = shm("bus");
        let _mapping = create(&name.0, MIB).expect("created");
        Mapping::remove(&name.0).expect("removed");
        let file = tempfile::tempfile().expect("a file");
        let (length, shared) = (4096, rustix::mm::MapFlags::SHARED);
        // SAFETY: the mapping is new, and the load from it is meant to fail: the file is empty.
        unsafe {
            let address = rustix::mm::mmap(std::ptr::null_mut(), length, rustix::mm::ProtFlags::READ, shared, &file, 0);
            address.expect("mapped").cast::<u8>().read_volatile();
        }
        return;
    }
    let mut this = std::process::Command::new(std::env::current_exe().expect("this test"));
    let output =
        this.args(["--exact", "region::other_bus_errors_end_the_process"]).env(ROLE, "1").output().expect("it ends");
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(libc::SIGBUS), "{}", String::from_utf8_lossy(&output.stdout));
}

/// In a directory that every user may write, the first to take a name controls what others read and
/// sees what they write.
#[test]
fn a_planted_region_is_refused() {
    let name = shm("planted");
    let path = name.0.path().expect("a file");
    assert!(!Mapping::is_there(&name.0, 0o600).expect("asked"));
    drop(create(&name.0, MIB).expect("created"));
    assert!(Mapping::is_there(&name.0, 0o600).expect("its own"));
    let link = shm("planted-link");
    let at = link.0.path().expect("a file");
    std::os::unix::fs::symlink(&path, &at).expect("linked");
    let error = open(&link.0).expect_err("it is a link").to_string();
    assert!(error.contains("symbolic link"), "{error}");
    assert!(Mapping::is_there(&link.0, 0o600).is_err());
    if !rustix::process::geteuid().is_root() {
        return skip("a_planted_region_is_refused, another user's file: it takes root to make one");
    }
    const OUTSIDER: u32 = 61_003;
    std::os::unix::fs::chown(&path, Some(OUTSIDER), Some(OUTSIDER)).expect("root may");
    let as_mode = |mode: u32| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("root may");
    for mode in [0o600, 0o660, 0o666] {
        as_mode(mode);
        let error = open(&name.0).expect_err("it is another user's");
        assert!(matches!(error, MapError::Untrusted { user: OUTSIDER, .. }), "{mode:o}: {error}");
        assert!(matches!(Mapping::is_there(&name.0, 0o660), Err(MapError::Untrusted { .. })));
    }
    // A file of a group that this process is in: shared on purpose, but not with a creator that
    // wants a region of its own.
    let group = rustix::process::getegid().as_raw();
    std::os::unix::fs::chown(&path, None, Some(group)).expect("root may");
    assert!(open(&name.0).is_err(), "everybody may write it");
    as_mode(0o660);
    open(&name.0).expect("a member shared it");
    assert!(Mapping::is_there(&name.0, 0o660).expect("shared"));
    assert!(matches!(Mapping::is_there(&name.0, 0o600), Err(MapError::Untrusted { .. })));
}

/// Kilobytes of the region that this process has mapped.
fn resident(name: &Removed) -> u64 {
    let path = name.0.path().expect("a file").display().to_string();
    let smaps = fs::read_to_string("/proc/self/smaps").expect("Linux");
    let of_region = smaps.lines().skip_while(|line| !line.ends_with(&path));
    let rss = of_region.filter_map(|line| line.strip_prefix("Rss:")).next().expect("it is mapped");
    rss.trim_end_matches("kB").trim().parse().expect("a number")
}

#[test]
fn a_touched_part_is_resident_and_unchanged() {
    let name = shm("touched");
    drop(create(&name.0, 8 * MIB).expect("created"));
    // The kernel knows a mapping by the name that its file had then.
    let fabric = Coherent::new(open(&name.0).expect("opened"));
    let (in_it, behind) = (Offset::new(2 * MIB), Offset::new(6 * MIB));
    fabric.store(behind, 42);
    let before = resident(&name);
    fabric.mapping().touch(2 * MIB, 2 * MIB).expect("touched");
    let after = resident(&name);
    assert!((before + 2048..8192).contains(&after), "{before} kB were resident, now {after}");
    assert_eq!((fabric.load(in_it), fabric.load(behind)), (0, 42));
    for (offset, len) in [(7 * MIB, 2 * MIB), (u64::MAX, 1), (100, MIB)] {
        assert!(fabric.mapping().touch(offset, len).is_err(), "{len} bytes at {offset}");
    }
}

#[test]
fn wishes_that_cannot_be_met_are_notes() {
    let name = shm("wishes");
    let options = MapOptions { numa_node: Some(777), huge_pages: true, prefault: true };
    for source in [&name.0, &RegionSource::Anon] {
        let mapping = Mapping::create(source, 4 * MIB, 0o600, &options).expect("mapped all the same");
        let obtained = mapping.obtained();
        assert!(obtained.page_bytes >= 4096);
        assert!(obtained.notes.iter().any(|note| note.contains("777")), "{obtained:?}");
        // The pages are on some node of the machine.
        let nodes = cenote_mem::numa::nodes(std::path::Path::new("/"));
        assert!(obtained.numa_node.is_none_or(|node| nodes.is_empty() || nodes.iter().any(|known| known.id == node)));
    }
}
