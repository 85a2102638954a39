//! A file system that is really full: a tmpfs of two mebibytes in a mount namespace of its own.

use cenote_base::{BlockHash, Clock, HashSeed};
use cenote_cold::disk::LocalDisk;
use cenote_cold::record::{Aligned, HEADER_BYTES, Head, Name, Sums, record_bytes};
use cenote_cold::{Backend, ColdError, Extents, ExtentsConfig, Sealed};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

const SEED: HashSeed = HashSeed([1; 32]);
const LENGTH: usize = 65_536;
const DISK: &str = "CENOTE_TEST_SMALL_DISK";

fn head(number: u8) -> Head {
    let name = Name { namespace: [2; 32], hash: BlockHash([number + 1; 16]) };
    Head { name, length: LENGTH as u64, depth: 0, encoding: 0, names: [0; 2] }
}

fn write(extents: &Extents, number: u8) -> Result<(), ColdError> {
    let mut memory = Aligned::default();
    memory.resize(record_bytes(LENGTH as u64) as usize);
    memory.bytes_mut()[HEADER_BYTES..HEADER_BYTES + LENGTH].fill(number);
    Sums::of(&SEED).seal(&head(number), memory.bytes_mut());
    extents.write(&[Sealed { head: head(number), bytes: memory.bytes() }], memory.bytes())
}

fn is_right(extents: &Extents, number: u8) -> bool {
    let mut memory = Aligned::default();
    let read = extents.read(&head(number).name, LENGTH as u64, &mut memory);
    read.is_ok_and(|_| memory.bytes()[HEADER_BYTES..HEADER_BYTES + LENGTH].iter().all(|&byte| byte == number))
}

#[test]
fn a_full_file_system_costs_the_blocks_that_do_not_fit() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = r#"mount -t tmpfs -o size=2m,mode=0700 none "$CENOTE_TEST_SMALL_DISK" || exit 99
                    exec "$0" --exact full_disk::inside_of_a_small_disk --ignored --nocapture"#;
    let program = std::env::current_exe().expect("this test");
    let ran = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(&program)
        .env(DISK, directory.path())
        .output();
    match ran {
        Ok(ran) if ran.status.success() => {}
        Ok(ran) if ran.status.code() == Some(101) => panic!("{}", String::from_utf8_lossy(&ran.stdout)),
        refused => cenote_base::testing::skip(&format!("no tmpfs can be mounted here: {refused:?}")),
    }
}

#[test]
#[ignore = "the test above runs it where the disk is small"]
fn inside_of_a_small_disk() {
    let directory: PathBuf = std::env::var_os(DISK).expect("the test above sets it").into();
    let open = || {
        let extents = Extents::new(
            ExtentsConfig { directory: directory.clone(), bytes: Some(64 << 20) },
            Arc::new(LocalDisk),
            Clock::system(),
        );
        extents.open(&SEED).expect("it opens");
        extents.refresh().expect("it lists");
        extents
    };
    let extents = open();
    let refused = (0..100).find_map(|number| write(&extents, number).err().map(|error| (number, error)));
    let (first, error) = refused.expect("the disk is smaller than the limit");
    assert!(first > 10 && matches!(error, ColdError::Full { .. }), "{first}: {error}");
    let other = open();
    assert!((0..first).all(|number| is_right(&extents, number) && is_right(&other, number)));
    assert!(!is_right(&other, first) && write(&extents, first).is_err());
}
