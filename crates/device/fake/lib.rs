//! A CUDA driver for tests, in the driver's own C interface, and calls that control it (`fake_…`).
//!
//! It has as many GPUs as a test numbers, each with its own memory, streams and schedule. It executes
//! work late, in pieces and in any permitted order, and records what a real driver would not forgive:
//! calls without a context, addresses outside of known or page-locked memory, memory that is freed
//! under a copy, handles that were destroyed. `machine.rs` has the schedule.
//!
//! Budget of faults: a call that fails from some number on, registrations above a size, a device that
//! fails all calls, a call that does not return, a byte that changes during its copy.

#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "the driver's interface has pointers, and its callers are foreign to the compiler anyway"
)]

mod machine;
mod rows;

use machine::{Copy, Fault, GPUS, Gpu, Kernel, Work, gpu};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

type Handle = usize;

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NOT_INITIALIZED: c_int = 3;
const INVALID_CONTEXT: c_int = 201;
const INVALID_HANDLE: c_int = 400;
const NOT_FOUND: c_int = 500;
const NOT_READY: c_int = 600;
const ILLEGAL_ADDRESS: c_int = 700;
const ALREADY_REGISTERED: c_int = 712;
const NOT_REGISTERED: c_int = 713;
const CAPTURE_UNSUPPORTED: c_int = 900;
const UNKNOWN: c_int = 999;

const UNSAFE_IN_CAPTURES: [&str; 5] =
    ["cuMemHostRegister", "cuMemHostUnregister", "cuMemHostAlloc", "cuMemAlloc", "cuEventQuery"];

/// A context's handle is this plus the number of its GPU.
const CONTEXTS: Handle = 0x7f00_0000;

/// The version of `cuMemcpyBatchAsync` whose arguments this file has.
const COPY_BATCH_VERSION: c_int = 12_080;

thread_local! {
    static CURRENT: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static CAPTURE_MODE: Cell<c_int> = const { Cell::new(0) };
}

static INITIALIZED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Makes a call on the GPU of the current context: counts it, and fails it if a test wants that.
fn on(name: &str, call: impl FnOnce(&mut Gpu) -> c_int) -> c_int {
    CALLS.set(CALLS.get() + 1);
    let Some(context) = CURRENT.with_borrow(|stack| stack.last().copied()) else {
        return INVALID_CONTEXT;
    };
    let gpu = gpu((context - CONTEXTS) as u32);
    gpu.pass_gate(name);
    let mut gpu = gpu.state();
    // While a thread captures a graph, the driver refuses such calls of threads that are not relaxed.
    if gpu.captures && UNSAFE_IN_CAPTURES.contains(&name) && CAPTURE_MODE.get() != 2 {
        gpu.wrong(format!("{name} during a capture, in a thread that is not relaxed"));
        return CAPTURE_UNSUPPORTED;
    }
    match gpu.count(name) {
        Fault::None => call(&mut gpu),
        Fault::Call => UNKNOWN,
        Fault::Device => ILLEGAL_ADDRESS,
    }
}

/// Writes a result through a pointer of the caller.
fn put<T>(to: *mut T, value: T) {
    assert!(!to.is_null(), "a null pointer for a result");
    // SAFETY: callers of the driver pass a valid out argument, as its interface demands.
    unsafe { to.write(value) };
}

/// The driver's calls. `cuda.h` documents them.
macro_rules! driver {
    ($(fn $symbol:ident($($name:ident: $type:ty),*) $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($symbol), "`.")]
            #[unsafe(no_mangle)]
            pub extern "C" fn $symbol($($name: $type),*) -> c_int $body
        )*
    };
}

driver! {
    fn cuInit(flags: c_uint) {
        INITIALIZED.store(true, std::sync::atomic::Ordering::Release);
        if flags == 0 { SUCCESS } else { INVALID_VALUE }
    }

    fn cuDeviceGet(device: *mut c_int, number: c_int) {
        if !INITIALIZED.load(std::sync::atomic::Ordering::Acquire) {
            return NOT_INITIALIZED;
        }
        put(device, number);
        SUCCESS
    }

    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) {
        gpu(device as u32).state().retained += 1;
        put(context, CONTEXTS + device as usize);
        SUCCESS
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let gpu = gpu(device as u32);
        let mut gpu = gpu.state();
        gpu.retained -= 1;
        let left = gpu.streams.len() - 1 + gpu.events.len() + gpu.allocated.len();
        if gpu.retained == 0 && left > 0 {
            gpu.wrong(format!("the context was released with {left} streams, events and allocations"));
        }
        SUCCESS
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        CURRENT.with_borrow_mut(|stack| stack.push(context));
        SUCCESS
    }

    fn cuCtxPopCurrent_v2(context: *mut Handle) {
        let Some(popped) = CURRENT.with_borrow_mut(Vec::pop) else { return INVALID_CONTEXT };
        put(context, popped);
        SUCCESS
    }

    fn cuGetErrorName(error: c_int, name: *mut *const c_char) {
        let text = match error {
            INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
            OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
            INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
            ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
            UNKNOWN => c"CUDA_ERROR_UNKNOWN",
            _ => c"CUDA_ERROR_OF_THE_FAKE",
        };
        put(name, text.as_ptr());
        SUCCESS
    }

    fn cuGetProcAddress_v2(
        name: *const c_char, found: *mut *const c_void, version: c_int, flags: u64, status: *mut c_int
    ) {
        // SAFETY: the caller passes a string.
        let name = unsafe { CStr::from_ptr(name) };
        let there = name == c"cuMemcpyBatchAsync" && version == COPY_BATCH_VERSION && flags == 0;
        put(found, if there { cuMemcpyBatchAsync as *const c_void } else { std::ptr::null() });
        put(status, c_int::from(!there));
        if there { SUCCESS } else { NOT_FOUND }
    }

    fn cuStreamCreate(stream: *mut Handle, flags: c_uint) {
        on("cuStreamCreate", |gpu| {
            put(stream, gpu.new_stream());
            if flags == 1 { SUCCESS } else { INVALID_VALUE }
        })
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        on("cuStreamDestroy", |gpu| match gpu.streams.remove(&stream) {
            Some(work) => {
                gpu.ending.insert(stream, work);
                SUCCESS
            }
            None => INVALID_HANDLE,
        })
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) {
        on("cuStreamWaitEvent", |gpu| match gpu.events.get(&event) {
            Some(point) if flags == 0 => {
                let point = point.clone();
                gpu.push(stream, Work::Wait(point))
            }
            _ => INVALID_HANDLE,
        })
    }

    fn cuEventCreate(event: *mut Handle, flags: c_uint) {
        on("cuEventCreate", |gpu| {
            put(event, gpu.new_event());
            if flags == 2 { SUCCESS } else { INVALID_VALUE }
        })
    }

    fn cuEventDestroy_v2(event: Handle) {
        on("cuEventDestroy", |gpu| gpu.events.remove(&event).map_or(INVALID_HANDLE, |_| SUCCESS))
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        on("cuEventRecord", |gpu| match gpu.events.get(&event) {
            Some(point) => {
                let point = point.clone();
                gpu.push(stream, Work::Record(point))
            }
            None => INVALID_HANDLE,
        })
    }

    fn cuEventQuery(event: Handle) {
        on("cuEventQuery", |gpu| {
            gpu.some_steps();
            match gpu.events.get(&event) {
                Some(point) if point.came() => SUCCESS,
                Some(_) => NOT_READY,
                None => INVALID_HANDLE,
            }
        })
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) {
        on("cuMemcpyAsync", |gpu| gpu.queue_copies(stream, vec![Copy { to, from, bytes }]))
    }

    fn cuMemcpyBatchAsync(
        to: *const u64, from: *const u64, bytes: *const usize, count: usize, attributes: *const [c_int; 6],
        firsts: *const usize, kinds: usize, failed: *mut usize, stream: Handle
    ) {
        on("cuMemcpyBatchAsync", |gpu| {
            put(failed, usize::MAX);
            // SAFETY: the arrays have `count` elements, and one kind has attributes.
            let (to, from, bytes, first, attributes) = unsafe {
                use std::slice::from_raw_parts;
                let (to, from) = (from_raw_parts(to, count), from_raw_parts(from, count));
                (to, from, from_raw_parts(bytes, count), firsts.read(), attributes.read())
            };
            if kinds != 1 || first != 0 || attributes != [1, 0, 0, 0, 0, 0] || stream == 0 || count == 0 {
                return gpu.wrong("cuMemcpyBatchAsync with other attributes, or on the default stream".to_owned());
            }
            let copies = to.iter().zip(from).zip(bytes);
            let copies = copies.map(|((&to, &from), &bytes)| Copy { to, from, bytes });
            gpu.queue_copies(stream, copies.collect())
        })
    }

    fn cuMemHostRegister_v2(address: usize, bytes: usize, flags: c_uint) {
        on("cuMemHostRegister", |gpu| {
            if bytes > gpu.register_max {
                return OUT_OF_MEMORY;
            }
            // Whole pages are locked, each once.
            let (start, end) = (address / gpu.page * gpu.page, (address + bytes).next_multiple_of(gpu.page));
            let before = gpu.locked.range(..end).next_back();
            if flags != 0 || before.is_some_and(|(at, len)| (at + len).next_multiple_of(gpu.page) > start) {
                return ALREADY_REGISTERED;
            }
            gpu.locked.insert(address, bytes);
            SUCCESS
        })
    }

    fn cuMemHostUnregister(address: usize) {
        on("cuMemHostUnregister", |gpu| gpu.unlock(address).map_or(NOT_REGISTERED, |()| SUCCESS))
    }

    fn cuMemHostGetDevicePointer_v2(seen: *mut u64, address: usize, flags: c_uint) {
        on("cuMemHostGetDevicePointer", |gpu| {
            if flags != 0 || !gpu.is_locked(address, 1) {
                return INVALID_VALUE;
            }
            put(seen, address as u64 + machine::SEEN);
            SUCCESS
        })
    }

    fn cuMemHostAlloc(address: *mut usize, bytes: usize, flags: c_uint) {
        on("cuMemHostAlloc", |gpu| {
            let memory = gpu.allocate(bytes);
            gpu.locked.insert(memory, bytes);
            put(address, memory);
            if flags == 0 { SUCCESS } else { INVALID_VALUE }
        })
    }

    fn cuMemFreeHost(address: usize) {
        on("cuMemFreeHost", |gpu| match gpu.unlock(address).and_then(|()| gpu.allocated.remove(&address)) {
            Some(_) => SUCCESS,
            None => INVALID_VALUE,
        })
    }

    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        on("cuMemAlloc", |gpu| {
            if bytes > gpu.allocate_max {
                return OUT_OF_MEMORY;
            }
            let memory = gpu.allocate(bytes);
            gpu.known.insert(memory, bytes);
            put(address, memory as u64);
            SUCCESS
        })
    }

    fn cuMemFree_v2(address: u64) {
        on("cuMemFree", |gpu| {
            let bytes = gpu.known.remove(&(address as usize));
            if bytes.is_some_and(|bytes| gpu.is_under_work(address as usize, bytes)) {
                return gpu.wrong("memory of the GPU was freed under its work".to_owned());
            }
            bytes.and_then(|_| gpu.allocated.remove(&(address as usize))).map_or(INVALID_VALUE, |_| SUCCESS)
        })
    }

    fn cuModuleLoadData(module: *mut Handle, image: *const c_char) {
        on("cuModuleLoadData", |_| {
            // SAFETY: an image in PTX is a string.
            let image = unsafe { CStr::from_ptr(image) }.to_string_lossy();
            put(module, 1);
            if image.contains(".entry") { SUCCESS } else { INVALID_VALUE }
        })
    }

    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) {
        on("cuModuleGetFunction", |_| {
            // SAFETY: the caller passes a string.
            let kernel = Kernel::named(unsafe { CStr::from_ptr(name) });
            put(function, kernel.map_or(0, |kernel| kernel as usize));
            if module == 1 && kernel.is_some() { SUCCESS } else { NOT_FOUND }
        })
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        on("cuThreadExchangeStreamCaptureMode", |_| {
            // SAFETY: the caller passes a valid argument, as the driver's interface demands.
            let new = unsafe { mode.read() };
            put(mode, CAPTURE_MODE.replace(new));
            if (0..3).contains(&new) { SUCCESS } else { INVALID_VALUE }
        })
    }

    fn cuLaunchKernel(
        function: Handle, grid: c_uint, grid_y: c_uint, grid_z: c_uint, block: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: Handle, parameters: *const *const c_void, extra: *const c_void
    ) {
        on("cuLaunchKernel", |gpu| {
            if (grid_y, grid_z, block_y, block_z, shared) != (1, 1, 1, 1, 0) || grid == 0 || block == 0 || !extra.is_null() {
                return INVALID_VALUE;
            }
            // SAFETY: the parameters are those of the kernel with this handle.
            match unsafe { Kernel::launch(function, parameters, block) } {
                Some(work) => gpu.queue_kernel(stream, work),
                None => INVALID_HANDLE,
            }
        })
    }
}

macro_rules! controls {
    ($($(#[$note:meta])* fn $symbol:ident($($name:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        $(
            $(#[$note])*
            #[unsafe(no_mangle)]
            pub extern "C" fn $symbol($($name: $type),*) -> $result $body
        )*
    };
}

fn text(of: *const c_char) -> String {
    // SAFETY: tests pass a string.
    unsafe { CStr::from_ptr(of) }.to_str().expect("a name").to_owned()
}

controls! {
    /// Begins a GPU anew, with a seed of its schedule.
    fn fake_begin(number: u32, seed: u64) -> () {
        GPUS.lock().expect("no test panics with it").remove(&number);
        gpu(number).state().seed(seed);
    }

    /// Memory of the GPU that a test owns.
    fn fake_know(number: u32, address: usize, bytes: usize) -> () {
        gpu(number).state().known.insert(address, bytes);
    }

    /// Stalls copies to the GPU (0) or from it (1), or the engine's work and all kernels (2).
    fn fake_hold(number: u32, what: u32, held: bool) -> () {
        gpu(number).state().held[what as usize] = held;
    }

    /// Makes a call fail after so many more successful ones; `u64::MAX`: never.
    fn fake_fail(number: u32, call: *const c_char, after: u64) -> () {
        gpu(number).state().fail(text(call), after);
    }

    /// Makes calls fail as often as `times` says, after so many more successful ones.
    fn fake_fail_times(number: u32, call: *const c_char, after: u64, times: u64) -> () {
        gpu(number).state().fail_times = Some((text(call), after, times));
    }

    /// The kernel that moves pages changes a byte of each launch from now on.
    fn fake_spoil_moves(number: u32) -> () {
        gpu(number).state().spoils_moves = true;
    }

    /// A thread captures a graph, or does so no more.
    fn fake_capture(number: u32, captures: bool) -> () {
        gpu(number).state().captures = captures;
    }

    /// Makes all calls fail, as after a fault of the device.
    fn fake_break(number: u32, broken: bool) -> () {
        gpu(number).state().broken = broken;
    }

    /// Threads other than this one stop at the begin of this call until the gate is open.
    fn fake_gate(number: u32, call: *const c_char, closed: bool) -> () {
        gpu(number).gate(text(call), closed);
    }

    /// Number of threads that stand at a closed gate.
    fn fake_at_gate(number: u32) -> u64 {
        gpu(number).at_gate()
    }

    /// The largest registration that succeeds.
    fn fake_register_max(number: u32, bytes: usize) -> () {
        gpu(number).state().register_max = bytes;
    }

    /// Bytes of a page of the processor: registrations that share one are refused.
    fn fake_page(number: u32, bytes: usize) -> () {
        gpu(number).state().page = bytes;
    }

    /// The largest allocation on the GPU that succeeds.
    fn fake_allocate_max(number: u32, bytes: usize) -> () {
        gpu(number).state().allocate_max = bytes;
    }

    /// Flips a bit of a byte while a copy reads memory from `address` on.
    fn fake_spoil(number: u32, address: usize, bytes: usize, byte: usize) -> () {
        gpu(number).state().spoil = Some((address..address + bytes, byte));
    }

    /// Whether the bit was flipped.
    fn fake_spoiled(number: u32) -> bool {
        gpu(number).state().spoil.is_none()
    }

    /// The engine's stream is the calling thread: its events occur at once, and it waits for others.
    fn fake_engine_is_a_thread(number: u32, so: bool) -> () {
        gpu(number).state().engine_is_a_thread = so;
    }

    /// Queues a write of the engine's stream.
    fn fake_engine_writes(number: u32, to: usize, from: *const u8, bytes: usize) -> () {
        // SAFETY: the test lends so many bytes.
        let content = unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec();
        gpu(number).state().push(0, Work::Write { to, content });
    }

    /// Queues a read of the engine's stream.
    fn fake_engine_reads(number: u32, from: usize, to: usize, bytes: usize) -> () {
        gpu(number).state().push(0, Work::Read { from, to, bytes });
    }

    /// Executes all work that is not held or waiting.
    fn fake_run(number: u32) -> () {
        gpu(number).state().run();
    }

    /// Whether no stream has work left.
    fn fake_idle(number: u32) -> bool {
        {
            let gpu = gpu(number);
            let gpu = gpu.state();
            gpu.streams.values().chain(gpu.ending.values()).all(|work| work.is_empty())
        }
    }

    /// Looks until this call was made so often. Returns false after so many looks.
    fn fake_await(number: u32, call: *const c_char, count: u64, looks: u64) -> bool {
        (0..looks).any(|_| {
            std::thread::yield_now();
            fake_calls(number, call) >= count
        })
    }

    /// Calls with this name so far.
    fn fake_calls(number: u32, call: *const c_char) -> u64 {
        gpu(number).state().calls.get(&text(call)).copied().unwrap_or(0)
    }

    /// All calls of this thread so far.
    fn fake_calls_of_this_thread() -> u64 {
        CALLS.get()
    }

    /// Bytes of page-locked memory.
    fn fake_locked(number: u32) -> usize {
        gpu(number).state().locked.values().sum()
    }

    /// Number of allocations.
    fn fake_allocations(number: u32) -> usize {
        gpu(number).state().allocated.len()
    }

    /// Copies what was wrong, and returns its length in bytes.
    fn fake_wrong(number: u32, to: *mut u8, most: usize) -> usize {
        let all = gpu(number).state().wrongs.join("\n");
        let count = all.len().min(most);
        // SAFETY: the test lends `most` bytes.
        unsafe { to.copy_from_nonoverlapping(all.as_ptr(), count) };
        count
    }
}
