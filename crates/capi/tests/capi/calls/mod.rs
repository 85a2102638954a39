//! Hostile C programs: any calls in any order, with hostile sizes, offsets, pointers and keys, by
//! two threads. A byte string selects the calls; any byte string is an input.
//!
//! A model predicts each result: which calls succeed, and the error numbers of the others.
//! Allocated memory never overlaps, never leaves the region, and keeps its bytes. At the end a
//! check of the region is clean.
//!
//! Two callers drive it: libFuzzer (`cargo xtask fuzz capi`) and a test that draws inputs from
//! seeds.
//!
//! Not covered: unreadable pointers, several processes, and forks.

#[path = "../../../../../fuzz/src/input.rs"]
#[allow(dead_code, reason = "the fuzzer's other targets use the rest")]
mod input;
mod rows;

use cenote::*;
use cenote_mem::{MapOptions, RegionSource};
use cenote_pool::{AttachOptions, Pool, Superblock, open_region};
use input::Input;
use libc::{EBUSY, EDEADLK, EEXIST, EINVAL, ENOENT, ENOSPC, ENXIO, EPERM, ETIMEDOUT};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, OnceLock};

/// Most calls of one input.
const STEPS_MAX: u32 = 64;
const REGION_BYTES: u64 = 1 << 20;
const CHUNK_BYTES: u64 = 64 << 10;
/// The locks that can be allocated.
const LOCKS: std::ops::Range<u32> = 8..1032;
/// Valid keys, from the shortest to the longest.
const KEYS: [&[u8]; 4] = [b"a", "köy".as_bytes(), b"table/of contents", &[b'k'; 56]];
const WRONG_KEYS: [&[u8]; 5] = [b"", &[b'k'; 57], &[0xff, 0xfe], b"cenote/locks given out", b"cenote/"];
const HOSTILE: [u64; 12] = [
    0,
    1,
    63,
    64,
    CHUNK_BYTES,
    CHUNK_BYTES + 1,
    REGION_BYTES - 64,
    REGION_BYTES,
    1 << 40,
    (1 << 63) - 1,
    (1 << 63) + 1,
    u64::MAX - 63,
];

type Job = Box<dyn FnOnce() + Send>;

/// The second thread. It lives as long as the process, because locks belong to threads.
fn second() -> &'static Sender<Job> {
    static SECOND: OnceLock<Sender<Job>> = OnceLock::new();
    SECOND.get_or_init(|| {
        let (jobs, todo) = channel::<Job>();
        std::thread::spawn(move || todo.iter().for_each(|job| job()));
        jobs
    })
}

/// Makes a call in one of the two threads.
fn on<T: Send + 'static>(thread: usize, call: impl FnOnce() -> T + Send + 'static) -> T {
    if thread == 0 {
        return call();
    }
    let (said, answer) = channel();
    let job = move || said.send(call()).expect("it is waited for");
    second().send(Box::new(job)).expect("the thread lives");
    answer.recv().expect("the call returns")
}

/// Makes two calls at once.
fn race<T: Send + 'static>(
    first: impl FnOnce() -> T + Send + 'static,
    other: impl FnOnce() -> T + Send + 'static,
) -> (T, T) {
    let (start, said) = (Arc::new(Barrier::new(2)), channel());
    let (ready, answers) = (Arc::clone(&start), said.0);
    let job = move || {
        ready.wait();
        answers.send(other()).expect("it is waited for");
    };
    second().send(Box::new(job)).expect("the thread lives");
    start.wait();
    let first = first();
    (first, said.1.recv().expect("the call returns"))
}

/// Memory that the library allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    offset: u64,
    /// Requested bytes.
    bytes: u64,
    /// The byte that fills it.
    fill: u8,
}

struct Program {
    name: CString,
    open: bool,
    /// Memory without a name, by offset.
    own: BTreeMap<u64, Piece>,
    named: BTreeMap<Vec<u8>, Piece>,
    given: BTreeSet<u32>,
    held: [BTreeSet<u32>; 2],
    fills: u8,
}

fn words() -> String {
    // SAFETY: the library's text of this thread ends with a zero.
    unsafe { CStr::from_ptr(cenote_last_error()) }.to_string_lossy().into_owned()
}

#[track_caller]
fn must(found: c_int, wanted: c_int) {
    assert_eq!(found, wanted, "{}", words());
}

fn pointer(offset: u64) -> usize {
    cxl_shm_get_ptr(offset).addr()
}

fn at(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

fn key(bytes: &[u8]) -> CString {
    CString::new(bytes).expect("keys of the tables have no zero")
}

fn put(key: &CStr, address: usize) -> c_int {
    // SAFETY: the key ends with a zero.
    unsafe { cxl_shm_put(key.as_ptr(), at(address)) }
}

/// Runs an input.
///
/// # Panics
/// The library contradicts the model.
pub fn play(input: &[u8]) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut input = Input::new(input);
    let shm = format!("cenote-calls-{}-{number}", std::process::id());
    let name = CString::new(format!("shm:{shm}")).expect("no zeros");
    // A few inputs have a flushed region, which takes longer.
    let hosts = if input.byte() < 16 { 2 } else { 1 };
    // SAFETY: the name ends with a zero.
    let made = unsafe { cenote_create(name.as_ptr(), REGION_BYTES, CHUNK_BYTES, hosts) };
    if made == -libc::ENOTSUP {
        return;
    }
    must(made, 0);
    let mut program = Program {
        name,
        open: false,
        own: BTreeMap::new(),
        named: BTreeMap::new(),
        given: BTreeSet::new(),
        held: Default::default(),
        fills: 0,
    };
    program.open();
    for _ in 0..STEPS_MAX {
        if input.is_spent() {
            break;
        }
        program.step(&mut input);
    }
    program.end();
    let source: RegionSource = format!("shm:{shm}").parse().expect("a name");
    let fabric = open_region(&source, &MapOptions::default()).expect("it is there");
    let superblock = Superblock::read(&fabric).expect("it is whole");
    let pool = Pool::attach(fabric, &AttachOptions::named("check")).expect("there is a slot");
    let report = pool.check(true).expect("no lock is held");
    assert!(report.is_clean(), "{report:?}");
    let memory = &report.memory_of_users;
    let pieces = [program.own.len() as u64, program.named.len() as u64];
    assert_eq!([memory.pieces, memory.named_pieces], pieces, "{report:?}");
    assert_eq!((report.objects, report.reserved), (0, 0), "{report:?}");
    drop(pool);
    std::fs::remove_file(Path::new("/dev/shm").join(shm)).expect("it is there");
    cenote_pool::remove_host_memory(&superblock).expect("it can be removed");
}

impl Program {
    fn open(&mut self) {
        // SAFETY: both end with zeros.
        must(unsafe { cenote_open(self.name.as_ptr(), c"calls".as_ptr(), 0) }, 0);
        self.open = true;
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(17) {
            0..=2 => self.allocate(input),
            3..=4 => self.free(input),
            5 => self.name(input),
            6 => self.find(input),
            7 => self.destroy(input),
            8 => self.look(input),
            9..=10 => self.lock(input),
            11 => self.open_and_close(input),
            12 => self.access(input),
            13 => self.write(input),
            14 => self.race(input),
            15 => self.rows(input),
            _ => self.verify(),
        }
    }

    fn size(input: &mut Input<'_>) -> u64 {
        match input.below(3) {
            0 => input.below(CHUNK_BYTES),
            1 => HOSTILE[input.below(HOSTILE.len() as u64) as usize],
            _ => input.word(),
        }
    }

    /// An offset where memory begins, one near it, or any.
    fn offset(&self, input: &mut Input<'_>) -> u64 {
        let known: Vec<Piece> = self.own.values().chain(self.named.values()).copied().collect();
        if known.is_empty() || input.below(4) == 0 {
            return Self::size(input);
        }
        let piece = known[input.below(known.len() as u64) as usize];
        match input.below(8) {
            0 => piece.offset + 1,
            1 => piece.offset + 64,
            2 => piece.offset.wrapping_sub(64),
            3 => piece.offset + piece.bytes,
            _ => piece.offset,
        }
    }

    fn key(input: &mut Input<'_>) -> Vec<u8> {
        let wrong = input.below(4) == 0;
        let keys = if wrong { &WRONG_KEYS[..] } else { &KEYS[..] };
        keys[input.below(keys.len() as u64) as usize].to_vec()
    }

    /// Records allocated memory, and fills it.
    fn handed_out(&mut self, offset: u64, bytes: u64) {
        let bytes = bytes.max(1);
        assert!(bytes <= CHUNK_BYTES && offset.is_multiple_of(64), "{bytes} bytes at {offset:#x}");
        assert!(offset >= 4096 && offset + bytes <= REGION_BYTES, "{bytes} bytes at {offset:#x} leave the region");
        assert_ne!(pointer(offset + bytes - 1), 0, "{bytes} bytes at {offset:#x} leave the region's space");
        for other in self.own.values().chain(self.named.values()) {
            let apart = offset + bytes <= other.offset || other.offset + other.bytes <= offset;
            assert!(apart, "{bytes} bytes at {offset:#x} overlap {other:?}");
        }
        let piece = Piece { offset, bytes, fill: 0 };
        self.own.insert(offset, piece);
        self.fill(offset);
    }

    fn fill(&mut self, offset: u64) {
        self.fills = self.fills.wrapping_add(1);
        let fill = self.fills;
        let all = self.own.values_mut().chain(self.named.values_mut());
        let piece = all.into_iter().find(|piece| piece.offset == offset).expect("it is known");
        piece.fill = fill;
        // SAFETY: the library allocated these bytes.
        unsafe { at(pointer(offset)).cast::<u8>().write_bytes(fill, piece.bytes as usize) };
    }

    fn verify(&self) {
        if !self.open {
            return;
        }
        for piece in self.own.values().chain(self.named.values()) {
            let start = at(pointer(piece.offset)).cast::<u8>();
            // SAFETY: as in `fill`; no other thread writes them.
            let bytes = unsafe { std::slice::from_raw_parts(start, piece.bytes as usize) };
            assert!(bytes.iter().all(|&byte| byte == piece.fill), "{piece:?} was overwritten");
        }
    }

    fn allocate(&mut self, input: &mut Input<'_>) {
        let (size, by_handle) = (Self::size(input), input.chance(64));
        let thread = input.below(2) as usize;
        let offset = if by_handle {
            let hint = input.below(4) as u32;
            let handle = on(thread, move || cxl_malloc(size as usize, hint));
            assert!(handle == 0 || (hint < 3 && handle & 63 == u64::from(hint)), "{handle:#x} for hint {hint}");
            handle & !63
        } else {
            let address = on(thread, move || shmalloc(size as usize).addr());
            if address == 0 { 0 } else { cxl_shm_get_offset(at(address)) }
        };
        if offset != 0 {
            assert!(self.open && size <= CHUNK_BYTES, "{size} bytes were handed out");
            self.handed_out(offset, size);
        }
    }

    fn free(&mut self, input: &mut Input<'_>) {
        let (by_handle, thread) = (input.chance(64), input.below(2) as usize);
        // A handle has its hint in the bits that are zero in offsets.
        let offset = self.offset(input) & if by_handle { !63 } else { u64::MAX };
        let wanted = match (self.open, self.own.contains_key(&offset)) {
            (false, _) => -ENXIO,
            (true, true) => 0,
            (true, false) => -EINVAL,
        };
        if by_handle {
            let hint = input.below(3);
            must(on(thread, move || cxl_free(offset | hint)), wanted);
        } else {
            // Memory outside the region's space has no offset: use this process's own memory
            // instead.
            let mine = std::ptr::from_ref(self).addr();
            let address = Some(pointer(offset)).filter(|&address| address != 0).unwrap_or(mine);
            must(on(thread, move || shfree(at(address))), wanted);
        }
        if wanted == 0 {
            self.own.remove(&offset);
        }
        must(shfree(null_mut()), 0);
    }

    fn name(&mut self, input: &mut Input<'_>) {
        let (name, offset) = (Self::key(input), self.offset(input));
        let (given, address) = (key(&name), pointer(offset));
        let found = on(input.below(2) as usize, move || put(&given, address));
        let is_key = KEYS.contains(&name.as_slice());
        match self.own.get(&offset).filter(|_| is_key && self.open).copied() {
            Some(piece) => {
                must(found, 0);
                self.own.remove(&offset);
                self.named.insert(name, piece);
            }
            None => must(found, if self.open { -EINVAL } else { -ENXIO }),
        }
        // SAFETY: the library accepts null as a missing key.
        must(unsafe { cxl_shm_put(null(), null_mut()) }, if self.open { -EINVAL } else { -ENXIO });
    }

    fn no_name(&self, name: &[u8]) -> c_int {
        match (self.open, KEYS.contains(&name)) {
            (false, _) => -ENXIO,
            (true, true) => -ENOENT,
            (true, false) => -EINVAL,
        }
    }

    fn find(&self, input: &mut Input<'_>) {
        let name = Self::key(input);
        let (given, mut found) = (key(&name), null_mut());
        // SAFETY: the key ends with a zero, and there is a place for the pointer.
        let status = unsafe { cxl_shm_get(given.as_ptr(), &raw mut found) };
        match self.named.get(&name).filter(|_| self.open) {
            Some(piece) => {
                must(status, 0);
                assert_eq!(found.addr(), pointer(piece.offset));
            }
            None => must(status, self.no_name(&name)),
        }
    }

    fn destroy(&mut self, input: &mut Input<'_>) {
        let name = Self::key(input);
        let given = key(&name);
        // SAFETY: the key ends with a zero.
        let status = on(input.below(2) as usize, move || unsafe { cxl_shm_destroy(given.as_ptr()) });
        let wanted = if self.open && self.named.contains_key(&name) { 0 } else { self.no_name(&name) };
        must(status, wanted);
        if wanted == 0 {
            self.named.remove(&name);
        }
    }

    /// Offsets, pointers and flushes of anything.
    fn look(&self, input: &mut Input<'_>) {
        let (offset, size) = (self.offset(input), Self::size(input));
        let address = pointer(offset);
        if address == 0 {
            let space = self.own.values().chain(self.named.values());
            let inside = space.into_iter().any(|piece| (piece.offset..piece.offset + piece.bytes).contains(&offset));
            assert!(!self.open || !inside, "{offset:#x} has no pointer");
        } else {
            assert!(self.open && offset < REGION_BYTES, "{offset:#x} has a pointer");
            assert_eq!(cxl_shm_get_offset(at(address)), offset);
            let flushed = cenote_flush(at(address), size as usize);
            assert!(flushed == 0 || (flushed == -EINVAL && size > 0), "{size} bytes at {offset:#x}: {}", words());
            assert!(flushed != 0 || offset.checked_add(size).is_some_and(|end| end <= REGION_BYTES));
        }
        let any = input.word() as usize;
        let found = cxl_shm_get_offset(at(any));
        assert!(found < REGION_BYTES && (found == 0 || pointer(found) == any));
        clflush(at(any), size as usize);
    }

    fn lock(&mut self, input: &mut Input<'_>) {
        let thread = input.below(2) as usize;
        let lock = if input.chance(32) { input.word() as u32 } else { 6 + input.below(8) as u32 };
        let is_lock = LOCKS.contains(&lock);
        let is_held = self.held.iter().any(|held| held.contains(&lock));
        let is_given = self.given.contains(&lock);
        match input.below(5) {
            0 => {
                let mut place = 0;
                // SAFETY: there is a place for the lock.
                let found = unsafe { cxl_shm_allocate_lock(&raw mut place) };
                let free = LOCKS.into_iter().find(|lock| !self.given.contains(lock));
                match free.filter(|_| self.open) {
                    Some(free) => {
                        must(found, 0);
                        assert_eq!(place, free);
                        self.given.insert(free);
                    }
                    None => must(found, if self.open { -ENOSPC } else { -ENXIO }),
                }
                // SAFETY: the library accepts null as a missing place.
                must(unsafe { cxl_shm_allocate_lock(null_mut()) }, -EINVAL);
            }
            1 => {
                let found = on(thread, move || cxl_shm_free_lock(lock));
                match (is_lock, self.open) {
                    (false, _) => must(found, -EINVAL),
                    (true, false) => must(found, -ENXIO),
                    (true, true) if !is_given => must(found, -EINVAL),
                    (true, true) if is_held => must(found, -EBUSY),
                    (true, true) => {
                        must(found, 0);
                        self.given.remove(&lock);
                    }
                }
            }
            2 => {
                let found = on(thread, move || cxl_shm_release_lock(lock));
                must(found, if self.held[thread].remove(&lock) { 0 } else { -EPERM });
            }
            _ => {
                let found = on(thread, move || cxl_shm_acquire_lock_within(lock, 0));
                match (is_lock, self.open) {
                    (false, _) => must(found, -EINVAL),
                    (true, false) => must(found, -ENXIO),
                    (true, true) if self.held[thread].contains(&lock) => must(found, -EDEADLK),
                    (true, true) if !is_given => must(found, -EINVAL),
                    (true, true) if is_held => must(found, -ETIMEDOUT),
                    (true, true) => {
                        must(found, 0);
                        self.held[thread].insert(lock);
                    }
                }
            }
        }
    }

    fn open_and_close(&mut self, input: &mut Input<'_>) {
        match input.below(4) {
            0 => self.close(),
            1 if !self.open => self.open(),
            1 => {
                // SAFETY: both end with zeros.
                must(unsafe { cenote_open(self.name.as_ptr(), c"twice".as_ptr(), 0) }, -EBUSY);
            }
            2 => {
                let names = [c"", c"shm:", c"shm:../x", c"anon", c"shm:cenote-calls-none", c"/dev", c"/dev/null"];
                let name = names[input.below(names.len() as u64) as usize];
                let host = input.byte();
                // SAFETY: both end with zeros, or are null.
                let found = unsafe { cenote_open(name.as_ptr(), c"x".as_ptr(), host) };
                assert!(found < 0, "{name:?} was opened");
                // SAFETY: as above.
                must(unsafe { cenote_open(null(), null(), host) }, -EINVAL);
            }
            _ => {
                let (size, chunk, hosts) = (Self::size(input), Self::size(input), input.byte());
                // SAFETY: the name ends with a zero.
                let found = unsafe { cenote_create(self.name.as_ptr(), size, chunk, hosts) };
                assert!(found < 0, "a region of {size} bytes took the place of another");
                if hosts == 0 || hosts > 64 {
                    must(found, -EINVAL);
                } else if hosts == 1 && (size, chunk) == (REGION_BYTES, CHUNK_BYTES) {
                    must(found, -EEXIST);
                }
                // SAFETY: as above.
                must(unsafe { cenote_create(c"anon".as_ptr(), REGION_BYTES, CHUNK_BYTES, 1) }, -EINVAL);
            }
        }
    }

    fn close(&mut self) {
        let found = cenote_close();
        if !self.open {
            return must(found, -ENXIO);
        }
        if self.held.iter().any(|held| !held.is_empty()) {
            return must(found, -EBUSY);
        }
        must(found, 0);
        self.open = false;
    }

    fn access(&self, input: &mut Input<'_>) {
        let (start, offset, size) = (self.offset(input), Self::size(input), Self::size(input));
        let hint = input.below(64);
        let found = cxl_access(start & !63 | hint, offset, size as usize);
        let piece = self.own.get(&(start & !63)).filter(|_| self.open && hint < 3);
        let end = offset.checked_add(size);
        if found.is_null() {
            let inside = piece.is_some_and(|piece| offset < piece.bytes && end.is_some_and(|end| end <= piece.bytes));
            assert!(!inside, "{size} bytes at {offset} of {piece:?} were refused: {}", words());
        } else {
            let piece = piece.expect("only memory without a name has a handle");
            assert!(end.is_some_and(|end| end <= CHUNK_BYTES), "{size} bytes at {offset} of {piece:?}");
            assert_eq!(found.addr(), pointer(piece.offset + offset));
        }
    }

    fn write(&mut self, input: &mut Input<'_>) {
        let known: Vec<u64> = self.own.values().chain(self.named.values()).map(|piece| piece.offset).collect();
        if self.open && !known.is_empty() {
            self.fill(known[input.below(known.len() as u64) as usize]);
        }
    }

    /// Two threads compete for a thing that only one may get.
    fn race(&mut self, input: &mut Input<'_>) {
        if !self.open {
            return;
        }
        let offset = self.offset(input);
        let (address, is_own) = (pointer(offset), self.own.contains_key(&offset));
        let one = |(first, other): (c_int, c_int), there: bool, refused: c_int| {
            let wanted = if there { [refused, 0] } else { [refused, refused] };
            let mut found = [first, other];
            found.sort_unstable();
            assert_eq!(found, wanted, "{}", words());
            first == 0
        };
        match input.below(4) {
            0 if address != 0 => {
                one(race(move || shfree(at(address)), move || shfree(at(address))), is_own, -EINVAL);
                self.own.remove(&offset);
            }
            1 if address != 0 => {
                let (left, right) = (key(KEYS[0]), key(KEYS[1]));
                let first = one(race(move || put(&left, address), move || put(&right, address)), is_own, -EINVAL);
                if let Some(piece) = self.own.remove(&offset) {
                    self.named.insert(KEYS[usize::from(!first)].to_vec(), piece);
                }
            }
            2 if address != 0 => {
                let name = key(KEYS[2]);
                let first = one(race(move || put(&name, address), move || shfree(at(address))), is_own, -EINVAL);
                if let Some(piece) = self.own.remove(&offset).filter(|_| first) {
                    self.named.insert(KEYS[2].to_vec(), piece);
                }
            }
            _ => {
                let size = input.below(CHUNK_BYTES);
                let take = move || shmalloc(size as usize).addr();
                let (first, other) = race(take, take);
                for address in [first, other].into_iter().filter(|&address| address != 0) {
                    self.handed_out(cxl_shm_get_offset(at(address)), size);
                }
            }
        }
    }

    fn end(&mut self) {
        for thread in 0..2 {
            for lock in std::mem::take(&mut self.held[thread]) {
                must(on(thread, move || cxl_shm_release_lock(lock)), 0);
            }
        }
        if !self.open {
            self.open();
        }
        self.verify();
        for (name, piece) in &self.named {
            let mut found = null_mut();
            // SAFETY: the key ends with a zero, and there is a place for the pointer.
            must(unsafe { cxl_shm_get(key(name).as_ptr(), &raw mut found) }, 0);
            assert_eq!(cxl_shm_get_offset(found), piece.offset);
        }
        self.close();
        assert!(!self.open, "{}", words());
    }
}
