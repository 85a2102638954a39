//! Hostile calls from C: sizes and offsets that passed the checks of earlier versions, and the
//! fuzzer's inputs drawn from seeds. `cargo xtask fuzz capi` searches further, guided by coverage
//! (docs/evidence/testing.md).

use cenote::*;
use cenote_base::fault::{self, Plan, Point};
use cenote_base::prng::Prng;
use cenote_base::testing::PATIENCE;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A process has one region open.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Region {
    shm: String,
    name: CString,
    _alone: MutexGuard<'static, ()>,
}

impl Region {
    fn open(purpose: &str) -> Self {
        let alone = alone();
        let shm = format!("cenote-boundary-{purpose}-{}", std::process::id());
        let name = CString::new(format!("shm:{shm}")).expect("no zeros");
        // SAFETY: all texts end with zeros.
        unsafe {
            assert_eq!(cenote_create(name.as_ptr(), 1 << 20, 64 << 10, 1), 0, "{}", words());
            assert_eq!(cenote_open(name.as_ptr(), c"boundary".as_ptr(), 0), 0, "{}", words());
        }
        Self { shm, name, _alone: alone }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        cenote_close();
        let _ = std::fs::remove_file(std::path::Path::new("/dev/shm").join(&self.shm));
    }
}

fn words() -> String {
    // SAFETY: the library's text ends with a zero.
    unsafe { CStr::from_ptr(cenote_last_error()) }.to_string_lossy().into_owned()
}

/// Sizes near 2^63 were rounded up to 2^64, which is 0: memory of no bytes was returned repeatedly.
#[test]
fn a_size_above_the_chunk_size_is_refused_and_does_no_harm() {
    let _region = Region::open("sizes");
    let kept = shmalloc(4096);
    assert!(!kept.is_null());
    for size in [(64 << 10) + 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, usize::MAX - 63, usize::MAX] {
        assert!(shmalloc(size).is_null(), "{size} bytes");
        assert!(words().contains("64 KiB"), "the limit is named: {}", words());
        assert_eq!(cxl_malloc(size, 0), 0, "{size} bytes");
    }
    let mut others: Vec<*mut c_void> =
        std::iter::from_fn(|| Some(shmalloc(64 << 10))).take_while(|p| !p.is_null()).collect();
    others.push(shmalloc(0));
    let mut starts: Vec<usize> = others.iter().chain([&kept]).filter(|p| !p.is_null()).map(|p| p.addr()).collect();
    starts.sort_unstable();
    assert!(starts.array_windows().all(|[left, right]| right - left >= 64), "{starts:x?}");
    assert!(starts.len() > 4);
}

/// The last line of offsets made the library abort.
#[test]
fn an_offset_outside_of_the_space_has_no_pointer() {
    let _region = Region::open("offsets");
    let memory = shmalloc(64);
    let offset = cxl_shm_get_offset(memory);
    assert_eq!(cxl_shm_get_ptr(offset), memory);
    for offset in (u64::MAX - 130..=u64::MAX).chain([0, 1, 64, 4095, 1 << 20, (1 << 20) + 1]) {
        assert!(cxl_shm_get_ptr(offset).is_null(), "{offset:#x}");
    }
    assert_eq!(cxl_shm_get_offset(memory.wrapping_sub(offset as usize)), 0, "the superblock is no allocated memory");
    for size in [usize::MAX, usize::MAX - 64, 1 << 63, 1 << 20] {
        assert_eq!(cenote_flush(memory, size), -libc::EINVAL);
    }
    assert_eq!(cenote_flush(memory.wrapping_add(7), 0), 0);
}

#[test]
fn a_handle_is_valid_only_as_returned() {
    let _region = Region::open("handles");
    let handle = cxl_malloc(4096, 2);
    for low in 3..64 {
        assert!(cxl_access(handle & !63 | low, 0, 1).is_null(), "{low}");
        assert_eq!(cxl_free(handle & !63 | low), -libc::EINVAL, "{low}");
    }
    for (offset, size) in [(u64::MAX, 1), (4096, 0), (4096, usize::MAX), (u64::MAX - 63, 64), (1, 4096)] {
        assert!(cxl_access(handle, offset, size).is_null(), "{size} at {offset}");
    }
    assert!(!cxl_access(handle, 4095, 1).is_null());
    assert_eq!([cxl_free(handle), cxl_free(handle)], [0, -libc::EINVAL]);
}

/// A freed lock could be taken, and then the region could not be closed.
#[test]
fn a_lock_that_is_not_given_out_is_refused() {
    let _region = Region::open("locks");
    assert_eq!(cxl_shm_acquire_lock_within(3, 0), -libc::EINVAL);
    let mut lock = 0;
    // SAFETY: there is a place for the lock.
    assert_eq!(unsafe { cxl_shm_allocate_lock(&raw mut lock) }, 0);
    assert_eq!(cxl_shm_acquire_lock_within(lock, 0), 0);
    assert_eq!(cxl_shm_free_lock(lock), -libc::EBUSY);
    assert_eq!(std::thread::spawn(move || cxl_shm_free_lock(lock)).join().expect("no panic"), -libc::EBUSY);
    assert_eq!(cenote_close(), -libc::EBUSY);
    assert_eq!([cxl_shm_release_lock(lock), cxl_shm_free_lock(lock)], [0, 0]);
    assert_eq!(cxl_shm_acquire_lock_within(lock, 0), -libc::EINVAL);
    assert_eq!(cxl_shm_free_lock(lock), -libc::EINVAL);
    for key in [c"cenote/locks given out", c"cenote/"] {
        // SAFETY: the key ends with a zero.
        unsafe {
            assert_eq!(cxl_shm_put(key.as_ptr(), shmalloc(8)), -libc::EINVAL);
            assert_eq!(cxl_shm_destroy(key.as_ptr()), -libc::EINVAL);
        }
    }
    assert_eq!(cenote_close(), 0);
}

/// A thread that waits for a lock while another frees it must not get a lock that was allocated
/// again.
#[test]
fn a_lock_that_is_freed_while_a_thread_waits_for_it_is_refused() {
    let _region = Region::open("waiters");
    for _ in 0..50 {
        let mut lock = 0;
        // SAFETY: there is a place for the lock.
        assert_eq!(unsafe { cxl_shm_allocate_lock(&raw mut lock) }, 0);
        let (freed, acquired) = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let acquired = cxl_shm_acquire_lock_within(lock, PATIENCE.as_millis() as u32);
                (acquired, cxl_shm_release_lock(lock))
            });
            let mut freed = cxl_shm_free_lock(lock);
            while freed == -libc::EBUSY {
                freed = cxl_shm_free_lock(lock);
            }
            (freed, waiter.join().expect("no panic"))
        });
        assert_eq!(freed, 0, "{}", words());
        assert!(acquired == (0, 0) || acquired == (-libc::EINVAL, -libc::EPERM), "{acquired:?}");
    }
}

#[test]
fn a_region_that_cannot_be_is_refused_with_the_limit() {
    let region = Region::open("regions");
    let create = |size: u64, chunk: u64, hosts: u8| {
        let name = format!("shm:cenote-boundary-never-{}", std::process::id());
        let name = CString::new(name).expect("no zeros");
        // SAFETY: the name ends with a zero.
        unsafe { cenote_create(name.as_ptr(), size, chunk, hosts) }
    };
    assert_eq!(create(1 << 20, 64 << 10, 0), -libc::EINVAL);
    assert!(words().contains("1 to 64"), "{}", words());
    assert_eq!(create(1 << 20, 64 << 10, 65), -libc::EINVAL);
    for size in [0, 1, 4096, 1 << 46 | 1, 1 << 63, u64::MAX] {
        assert_eq!(create(size, 64 << 10, 1), -libc::EINVAL, "{size}: {}", words());
    }
    assert!(words().contains("64 TiB"), "{}", words());
    assert_eq!(create(1 << 45, 64 << 10, 1), -libc::ENOSPC, "{}", words());
    for chunk in [1, 64 << 10 | 1, 1 << 30, 1 << 63, u64::MAX] {
        assert_eq!(create(1 << 20, chunk, 1), -libc::EINVAL, "{chunk}");
    }
    // SAFETY: the texts end with zeros.
    unsafe {
        assert_eq!(cenote_create(c"anon".as_ptr(), 1 << 20, 64 << 10, 1), -libc::EINVAL);
        assert_eq!(cenote_close(), 0);
        assert_eq!(cenote_open(region.name.as_ptr(), c"x".as_ptr(), 1), -libc::EINVAL, "a host that cannot be");
    }
}

/// A bug in the library must not end the program.
#[test]
fn a_panic_does_not_cross_into_c() {
    let _region = Region::open("panics");
    fault::arm(Plan::first(Point::MemoryAllocated), |point| panic!("at {point}"));
    assert!(shmalloc(64).is_null());
    assert!(words().contains("a bug in libcenote: at memory.allocated"), "{}", words());
    let memory = shmalloc(64);
    assert!(!memory.is_null());
    fault::arm(Plan::first(Point::MemoryNamed), |point| panic!("at {point}"));
    // SAFETY: the key ends with a zero.
    assert_eq!(unsafe { cxl_shm_put(c"key".as_ptr(), memory) }, -libc::EFAULT);
    fault::arm(Plan::first(Point::LockGiven), |point| panic!("at {point}"));
    let mut lock = 0;
    // SAFETY: there is a place for the lock.
    let mut allocate = || unsafe { cxl_shm_allocate_lock(&raw mut lock) };
    assert_eq!(allocate(), -libc::EFAULT);
    assert_eq!(allocate(), 0, "{}", words());
    assert_eq!(shfree(null_mut()), 0);
    assert_eq!(cenote_close(), 0, "{}", words());
}

#[test]
#[allow(clippy::print_stderr, reason = "a failure names its seed")]
fn calls_in_any_order_match_the_model() {
    let _alone = alone();
    for seed in 0..600 {
        let mut prng = Prng::new(seed);
        let input: Vec<u8> = (0..64 + prng.below(448)).map(|_| prng.next_u64() as u8).collect();
        if let Err(panic) = std::panic::catch_unwind(|| crate::calls::play(&input)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
