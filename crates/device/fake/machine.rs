//! The GPUs: memory, streams, and a schedule that takes every liberty.
//!
//! - Permitted: any order of the copies of one call, pieces between other streams' work, stalls.
//! - Required: the calls of a stream in order, waits, and events only after all earlier work.

use crate::{ILLEGAL_ADDRESS, INVALID_HANDLE, SUCCESS, rows};
use cenote_device::rows::RowGather;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard};
use std::thread::ThreadId;

/// The GPU sees page-locked memory at other addresses than the processor.
pub const SEEN: u64 = 1 << 60;

pub static GPUS: LazyLock<Mutex<HashMap<u32, Arc<Locked>>>> = LazyLock::new(Mutex::default);

/// A GPU, and the calls that do not return.
pub struct Locked {
    state: Mutex<Gpu>,
    /// Closed gates, each with the thread that closed it and may pass; and how many threads wait.
    gates: Mutex<(Vec<(String, ThreadId)>, u64)>,
    opened: Condvar,
}

/// The GPU with this number.
pub fn gpu(number: u32) -> Arc<Locked> {
    let mut all = GPUS.lock().expect("no test panics with it");
    let new = || Locked { state: Mutex::new(Gpu::new()), gates: Mutex::default(), opened: Condvar::new() };
    Arc::clone(all.entry(number).or_insert_with(|| Arc::new(new())))
}

impl Locked {
    pub fn state(&self) -> MutexGuard<'_, Gpu> {
        self.state.lock().expect("the machine does not panic")
    }

    pub fn gate(&self, call: String, closed: bool) {
        let mut gates = self.gates.lock().expect("as above");
        gates.0.retain(|gate| gate.0 != call);
        if closed {
            gates.0.push((call, std::thread::current().id()));
        }
        self.opened.notify_all();
    }

    pub fn at_gate(&self) -> u64 {
        self.gates.lock().expect("as above").1
    }

    pub fn pass_gate(&self, call: &str) {
        let own = std::thread::current().id();
        let is_closed = |gates: &mut (Vec<(String, ThreadId)>, u64)| {
            gates.0.iter().any(|(gate, closer)| gate == call && *closer != own)
        };
        let mut gates = self.gates.lock().expect("as above");
        if is_closed(&mut gates) {
            gates.1 += 1;
            gates = self.opened.wait_while(gates, is_closed).expect("as above");
            gates.1 -= 1;
        }
    }
}

/// A point in a stream, which an event marks.
#[derive(Clone, Default)]
pub struct Point(Arc<AtomicBool>);

impl Point {
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Clone, Copy)]
pub struct Copy {
    pub to: u64,
    pub from: u64,
    pub bytes: usize,
}

pub enum Work {
    /// Copies to the GPU (0) or from it (1).
    Copies(usize, Vec<Copy>),
    Record(Point),
    Wait(Point),
    Write {
        to: usize,
        content: Vec<u8>,
    },
    Read {
        from: usize,
        to: usize,
        bytes: usize,
    },
    Kernel(Launch),
}

/// How a call ends.
pub enum Fault {
    None,
    Call,
    Device,
}

pub struct Gpu {
    random: u64,
    pub retained: usize,
    pub streams: BTreeMap<usize, VecDeque<Work>>,
    /// Streams that were destroyed with work in them. They end with it.
    pub ending: BTreeMap<usize, VecDeque<Work>>,
    pub events: HashMap<usize, Point>,
    handles: usize,
    /// Page-locked memory, and memory of the GPU: address and length.
    pub locked: BTreeMap<usize, usize>,
    pub known: BTreeMap<usize, usize>,
    pub allocated: HashMap<usize, Box<[u64]>>,
    pub held: [bool; 3],
    pub calls: HashMap<String, u64>,
    fails: HashMap<String, u64>,
    /// A call that fails some times, after so many successful ones.
    pub fail_times: Option<(String, u64, u64)>,
    pub captures: bool,
    pub broken: bool,
    pub register_max: usize,
    pub page: usize,
    pub allocate_max: usize,
    pub spoil: Option<(Range<usize>, usize)>,
    pub spoils_moves: bool,
    pub engine_is_a_thread: bool,
    pub wrongs: Vec<String>,
}

fn within(memory: &BTreeMap<usize, usize>, address: u64, bytes: usize) -> bool {
    let before = memory.range(..=address as usize).next_back();
    before.is_some_and(|(at, length)| address as usize + bytes <= at + length)
}

impl Gpu {
    fn new() -> Self {
        Self {
            random: 1,
            retained: 0,
            // The default stream is the engine's.
            streams: BTreeMap::from([(0, VecDeque::new())]),
            ending: BTreeMap::new(),
            events: HashMap::new(),
            handles: 0x10,
            locked: BTreeMap::new(),
            known: BTreeMap::new(),
            allocated: HashMap::new(),
            held: [false; 3],
            calls: HashMap::new(),
            fails: HashMap::new(),
            fail_times: None,
            captures: false,
            broken: false,
            register_max: usize::MAX,
            page: 1,
            allocate_max: usize::MAX,
            spoil: None,
            spoils_moves: false,
            engine_is_a_thread: false,
            wrongs: Vec::new(),
        }
    }

    pub const fn seed(&mut self, seed: u64) {
        self.random = seed.wrapping_mul(2).wrapping_add(1);
    }

    fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    pub fn wrong(&mut self, what: String) -> c_int {
        self.wrongs.push(what);
        ILLEGAL_ADDRESS
    }

    pub fn count(&mut self, call: &str) -> Fault {
        *self.calls.entry(call.to_owned()).or_default() += 1;
        if self.broken {
            return Fault::Device;
        }
        if let Some((_, after, times)) = self.fail_times.as_mut().filter(|(name, ..)| name == call) {
            match (*after, *times) {
                (0, 0) => {}
                (0, _) => {
                    *times -= 1;
                    return Fault::Call;
                }
                _ => *after -= 1,
            }
        }
        match self.fails.get_mut(call) {
            Some(0) => Fault::Call,
            Some(left) => {
                *left -= 1;
                Fault::None
            }
            None => Fault::None,
        }
    }

    pub fn fail(&mut self, call: String, after: u64) {
        match after {
            u64::MAX => _ = self.fails.remove(&call),
            after => _ = self.fails.insert(call, after),
        }
    }

    pub fn new_stream(&mut self) -> usize {
        self.handles += 1;
        self.streams.insert(self.handles, VecDeque::new());
        self.handles
    }

    pub fn new_event(&mut self) -> usize {
        self.handles += 1;
        self.events.insert(self.handles, Point::default());
        self.handles
    }

    pub fn allocate(&mut self, bytes: usize) -> usize {
        let memory = vec![0; bytes.div_ceil(64) * 8 + 8].into_boxed_slice();
        let address = memory.as_ptr().expose_provenance();
        self.allocated.insert(address, memory);
        address
    }

    pub fn is_locked(&self, address: usize, bytes: usize) -> bool {
        within(&self.locked, address as u64, bytes)
    }

    pub fn unlock(&mut self, address: usize) -> Option<()> {
        let bytes = self.locked.remove(&address)?;
        if self.is_under_work(address, bytes) {
            self.wrong("page-locked memory was freed under a copy".to_owned());
        }
        Some(())
    }

    /// Whether work that is queued uses some of this memory.
    pub fn is_under_work(&self, address: usize, bytes: usize) -> bool {
        let memory = address as u64..(address + bytes) as u64;
        let touches = |at: u64, length: usize| {
            let at = at & !SEEN;
            at < memory.end && memory.start < at + length as u64
        };
        self.streams.values().chain(self.ending.values()).flatten().any(|work| match work {
            Work::Copies(_, copies) => {
                copies.iter().any(|copy| touches(copy.to, copy.bytes) || touches(copy.from, copy.bytes))
            }
            Work::Kernel(launch) => launch.memory().iter().any(|&(at, length)| touches(at, length)),
            _ => false,
        })
    }

    pub fn push(&mut self, stream: usize, work: Work) -> c_int {
        let is_thread = self.engine_is_a_thread && stream == 0;
        match work {
            Work::Record(point) if is_thread => point.0.store(true, Ordering::Release),
            Work::Wait(point) if is_thread => while !point.came() && self.step() {},
            Work::Kernel(launch) if is_thread => self.run_kernel(&launch),
            work => match self.streams.get_mut(&stream) {
                Some(queue) => queue.push_back(work),
                None => return INVALID_HANDLE,
            },
        }
        SUCCESS
    }

    /// Queues the copies of one call, between memory of the GPU and page-locked memory.
    pub fn queue_copies(&mut self, stream: usize, copies: Vec<Copy>) -> c_int {
        let mut ways = [0, 0];
        for copy in &copies {
            let (to, from, bytes) = (copy.to, copy.from, copy.bytes);
            let is_host = |at| within(&self.locked, at, bytes);
            let is_known = |at| within(&self.known, at, bytes);
            let way = match () {
                () if is_host(from) && is_known(to) => 0,
                () if is_known(from) && is_host(to) => 1,
                () => return self.wrong(format!("{bytes} bytes from {from:#x} to {to:#x} are not in known memory")),
            };
            ways[way] += 1;
        }
        let mut targets: Vec<(u64, usize)> = copies.iter().map(|copy| (copy.to, copy.bytes)).collect();
        targets.sort_unstable();
        if targets.array_windows().any(|[left, right]| left.0 + left.1 as u64 > right.0) {
            return self.wrong("two copies of a call write the same bytes".to_owned());
        }
        let way = usize::from(ways[1] > 0);
        if ways[1 - way] > 0 {
            return self.wrong("copies of both ways in one call".to_owned());
        }
        self.push(stream, Work::Copies(way, copies))
    }

    pub fn queue_kernel(&mut self, stream: usize, launch: Launch) -> c_int {
        for (at, bytes) in launch.memory() {
            if !within(&self.known, at, bytes) && !within(&self.locked, at.wrapping_sub(SEEN), bytes) {
                return self.wrong(format!("a kernel got {bytes} bytes at {at:#x}, which are not the GPU's"));
            }
        }
        // Tests ask how often a kernel ran.
        let name = match launch {
            Launch::Sums { .. } => "cenote_sums",
            Launch::Move { .. } => "cenote_move",
            Launch::Rows(_) => "cenote_rows",
        };
        *self.calls.entry(name.to_owned()).or_default() += 1;
        self.push(stream, Work::Kernel(launch))
    }

    pub fn some_steps(&mut self) {
        for _ in 0..self.below(20) {
            self.step();
        }
    }

    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Executes a piece of some stream's work. Returns false if none can be executed.
    fn step(&mut self) -> bool {
        let able = |(_, work): &(&usize, &VecDeque<Work>)| match work.front() {
            None => false,
            Some(Work::Copies(way, _)) => !self.held[*way],
            Some(Work::Wait(point)) => point.came(),
            Some(Work::Write { .. } | Work::Read { .. } | Work::Kernel(_)) => !self.held[2],
            Some(Work::Record(_)) => true,
        };
        let all = self.streams.iter().chain(&self.ending);
        let able: Vec<usize> = all.filter(able).map(|(&stream, _)| stream).collect();
        if able.is_empty() {
            return false;
        }
        let stream = able[self.below(able.len())];
        let mut work = self.queue(stream).pop_front().expect("it has work");
        let has_ended = match &mut work {
            Work::Copies(_, copies) => {
                self.copy_some(copies);
                copies.is_empty()
            }
            Work::Record(point) => {
                point.0.store(true, Ordering::Release);
                true
            }
            Work::Wait(_) => true,
            Work::Write { to, content } => {
                // SAFETY: the test queued a write to its own memory.
                unsafe { at(*to as u64).copy_from_nonoverlapping(content.as_ptr(), content.len()) };
                true
            }
            Work::Read { from, to, bytes } => {
                // SAFETY: the test queued a read of its own memory.
                unsafe { at(*to as u64).copy_from_nonoverlapping(at(*from as u64), *bytes) };
                true
            }
            Work::Kernel(launch) => {
                self.run_kernel(launch);
                true
            }
        };
        if !has_ended {
            self.queue(stream).push_front(work);
        }
        true
    }

    fn run_kernel(&mut self, launch: &Launch) {
        let wrong = launch
            .execute(&|at, bytes| within(&self.known, at, bytes) || within(&self.locked, at.wrapping_sub(SEEN), bytes));
        if let (Launch::Move { to, .. }, true, None) = (launch, self.spoils_moves, &wrong) {
            // SAFETY: the kernel has just written the page.
            unsafe { *at(words(*to, 1)[0]) ^= 1 };
        }
        self.wrongs.extend(wrong);
    }

    fn queue(&mut self, stream: usize) -> &mut VecDeque<Work> {
        self.streams.get_mut(&stream).or_else(|| self.ending.get_mut(&stream)).expect("it lives")
    }

    /// Copies a piece of some copy.
    fn copy_some(&mut self, copies: &mut Vec<Copy>) {
        let number = self.below(copies.len());
        let copy = copies.swap_remove(number);
        let now = copy.bytes.min([64, 192, 1024, copy.bytes][self.below(4)]);
        // SAFETY: the memory was known when the copy was queued, and may not be freed before its end:
        // `is_under_work` reports that. Only this copy writes the destination.
        unsafe { at(copy.to).copy_from(at(copy.from), now) };
        let spoils = |(range, _): &(Range<usize>, usize)| range.contains(&(copy.from as usize));
        if let Some((_, byte)) = self.spoil.take_if(|spoil| spoils(spoil)) {
            // SAFETY: the test owns the byte.
            unsafe { *at(byte as u64) ^= 1 };
        }
        if now < copy.bytes {
            let rest = now as u64;
            copies.push(Copy { to: copy.to + rest, from: copy.from + rest, bytes: copy.bytes - now });
        }
    }
}

/// Memory at an address of the GPU.
pub fn at(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut((address & !SEEN) as usize)
}

/// The kernels of `kernels.cu`, by their handles.
#[derive(Clone, Copy)]
pub enum Kernel {
    Sums = 101,
    Move = 102,
    Rows = 103,
}

impl Kernel {
    pub fn named(name: &CStr) -> Option<Self> {
        [(c"cenote_sums", Self::Sums), (c"cenote_move", Self::Move), (c"cenote_rows", Self::Rows)]
            .into_iter()
            .find(|(own, _)| *own == name)
            .map(|(_, kernel)| kernel)
    }

    /// # Safety
    /// Callers must guarantee that `parameters` has a pointer to each parameter of the kernel.
    pub unsafe fn launch(function: usize, parameters: *const *const c_void, block: u32) -> Option<Launch> {
        // SAFETY: by the contract of this function.
        let number = |index| unsafe { parameters.add(index).read().cast::<u64>().read_unaligned() };
        // SAFETY: as above.
        let short = |index| unsafe { parameters.add(index).read().cast::<u32>().read_unaligned() };
        match function {
            of if of == Self::Sums as usize => Some(Launch::Sums {
                pages: number(0),
                pages_per_block: short(1),
                page_bytes: short(2),
                keys: number(3),
                out: number(4),
                blocks: short(5),
                threads: block,
            }),
            of if of == Self::Move as usize => {
                Some(Launch::Move { to: number(0), from: number(1), page_bytes: short(2), pages: number(3) })
            }
            of if of == Self::Rows as usize => {
                // SAFETY: by the contract of this function.
                Some(Launch::Rows(unsafe { parameters.read().cast::<RowGather>().read_unaligned() }))
            }
            _ => None,
        }
    }
}

/// A kernel with its parameters.
pub enum Launch {
    Sums { pages: u64, pages_per_block: u32, page_bytes: u32, keys: u64, out: u64, blocks: u32, threads: u32 },
    Move { to: u64, from: u64, page_bytes: u32, pages: u64 },
    Rows(RowGather),
}

pub fn words(from: u64, count: usize) -> Vec<u64> {
    // SAFETY: `queue_kernel` and `execute` checked that the words are in known memory.
    (0..count).map(|word| unsafe { at(from + word as u64 * 8).cast::<u64>().read_unaligned() }).collect()
}

impl Launch {
    /// The tables of the launch.
    fn memory(&self) -> Vec<(u64, usize)> {
        match *self {
            Self::Sums { pages, pages_per_block, keys, out, blocks, .. } => {
                let blocks = blocks as usize;
                vec![(pages, blocks * pages_per_block as usize * 8), (keys, blocks * 64), (out, blocks * 192)]
            }
            Self::Move { to, from, pages, .. } => vec![(to, pages as usize * 8), (from, pages as usize * 8)],
            Self::Rows(ref of) => rows::memory(of),
        }
    }

    fn execute(&self, may_use: &dyn Fn(u64, usize) -> bool) -> Option<String> {
        match *self {
            Self::Rows(ref of) => rows::execute(of, may_use),
            Self::Move { to, from, page_bytes, pages } => {
                let bytes = page_bytes as usize;
                for (to, from) in words(to, pages as usize).into_iter().zip(words(from, pages as usize)) {
                    if !may_use(to, bytes) || !may_use(from, bytes) {
                        return Some(format!("cenote_move: {bytes} bytes from {from:#x} to {to:#x}"));
                    }
                    // SAFETY: both pages are in known memory.
                    unsafe { at(to).copy_from(at(from), bytes) };
                }
                None
            }
            Self::Sums { pages, pages_per_block, page_bytes, keys, out, blocks, threads } => {
                if threads != 288 {
                    return Some(format!("cenote_sums: {threads} threads, and it is compiled for 288"));
                }
                let per_block = pages_per_block as usize;
                for block in 0..blocks as usize {
                    let places = words(pages + (block * per_block * 8) as u64, per_block);
                    if let Some(place) = places.iter().find(|&&place| !may_use(place, page_bytes as usize)) {
                        return Some(format!("cenote_sums: {page_bytes} bytes at {place:#x}"));
                    }
                    let keys = words(keys + block as u64 * 64, 8);
                    for (lane, key) in keys.into_iter().enumerate() {
                        let sums = lane_sums(&places, page_bytes as usize, lane, key);
                        for (word, sum) in sums.into_iter().enumerate() {
                            let place = out + (block * 24 + word * 8 + lane) as u64 * 8;
                            // SAFETY: `queue_kernel` checked the output.
                            unsafe { at(place).cast::<u64>().write_unaligned(sum) };
                        }
                    }
                }
                None
            }
        }
    }
}

/// Product, sum and prefix of one lane, by the definition in `mem/src/checksum.rs`.
fn lane_sums(pages: &[u64], page_bytes: usize, lane: usize, mut key: u64) -> [u64; 3] {
    let (mut product, mut sum, mut prefix, mut lines) = (0_u64, 0_u64, 0_u64, 0);
    for &page in pages {
        for line in 0..page_bytes / 64 {
            let word = words(page + (line * 64 + lane * 8) as u64, 1)[0];
            let mixed = word ^ key;
            product = product.wrapping_add((mixed & 0xffff_ffff).wrapping_mul(mixed >> 32));
            sum = sum.wrapping_add(word);
            prefix = prefix.wrapping_add(sum);
            key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
            lines += 1;
            if lines % 16 == 0 {
                product = ((product ^ (product >> 47)).wrapping_add(prefix)).wrapping_mul(0x9e37_79b1);
            }
        }
    }
    [product, sum, prefix]
}
