//! A GPU through the CUDA driver. The library is opened at run time, so one build serves every
//! version of CUDA, and machines without one.

use crate::calls::{Attributes, COPY_BATCH_VERSION, Calls, CopyBatch, Handle};
use cenote_base::Clock;
use libloading::Library;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use thiserror::Error;

/// Most copies of one call: the calls of another thread come in between, and the device begins to
/// copy before all is queued. 128 to 1,024 copies a call are equally fast.
pub const COPIES_A_CALL: usize = 256;

const NOT_READY: c_int = 600;
const NON_BLOCKING: u32 = 1;
const NO_TIMING: u32 = 2;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// A call of the driver that failed, or that cannot be made.
#[derive(Debug, Error)]
#[error("{what}: {why}")]
pub struct DeviceError {
    what: String,
    why: String,
    is_of_arguments: bool,
}

impl DeviceError {
    pub(crate) fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into(), is_of_arguments: false }
    }

    pub(crate) fn of_arguments(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { is_of_arguments: true, ..Self::new(what, why) }
    }

    /// True if the caller has given wrong numbers.
    #[must_use]
    pub const fn is_of_arguments(&self) -> bool {
        self.is_of_arguments
    }
}

/// The engine's stream, as its library names it; 0 is the default stream.
#[derive(Clone, Copy, Debug)]
pub struct EngineStream(pub usize);

/// Copies between memory of the GPU and page-locked memory. They have no mutual order.
#[derive(Default)]
pub struct Copies {
    to: Vec<u64>,
    from: Vec<u64>,
    bytes: Vec<usize>,
}

impl Copies {
    /// Adds a copy of so many bytes between addresses.
    pub fn push(&mut self, to: u64, from: u64, bytes: usize) {
        self.to.push(to);
        self.from.push(from);
        self.bytes.push(bytes);
    }

    /// Number of copies.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.to.len()
    }

    /// Whether there is nothing to copy.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.to.is_empty()
    }

    /// The copies of each call: first and end.
    pub fn calls(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let count = self.len();
        (0..count).step_by(COPIES_A_CALL).map(move |first| first..count.min(first + COPIES_A_CALL))
    }
}

/// One GPU, in the context that all libraries of this process share (the primary context).
pub struct Device {
    calls: Calls,
    copy_batch: Option<CopyBatch>,
    /// Why copies are not batches, once that is known.
    one_by_one: OnceLock<String>,
    /// The kernels, once they are loaded.
    module: Mutex<Option<Handle>>,
    context: Handle,
    number: c_int,
    /// Keeps the functions behind `calls`.
    _library: Library,
}

/// Makes the context current in this thread until the drop.
struct Entered<'a>(&'a Device);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: the context was pushed when this value was made, in the same thread: the value
        // does not leave the call that made it.
        unsafe { (self.0.calls.context_pop)(&raw mut ours) };
    }
}

impl Device {
    /// Opens the GPU with this number through the driver's library, usually `libcuda.so.1`.
    ///
    /// # Errors
    /// The library is missing or too old, or has no such GPU.
    pub fn open(library: &str, number: u32, clock: Clock) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: the initializers of NVIDIA's library may run in any process; it is the one that
        // the engine has loaded.
        let opened = unsafe { Library::new(library) }.map_err(|error| DeviceError::new(library, error.to_string()))?;
        let calls = Calls::of(&opened).map_err(|call| {
            DeviceError::new(library, format!("it has no {call}; the NVIDIA driver must be of CUDA 12 or newer"))
        })?;
        let (mut device, mut context) = (0, 0);
        // SAFETY: `cuInit` takes flags, which must be 0.
        let error = unsafe { (calls.init)(0) };
        check(&calls, "cuInit", error)?;
        // SAFETY: the out argument is valid.
        let error = unsafe { (calls.device_get)(&raw mut device, number as c_int) };
        check(&calls, "cuDeviceGet", error)?;
        // SAFETY: the device is the driver's own.
        let error = unsafe { (calls.context_retain)(&raw mut context, device) };
        check(&calls, "cuDevicePrimaryCtxRetain", error)?;
        let (copy_batch, one_by_one, module) = (copy_batch(&calls), OnceLock::new(), Mutex::default());
        let device =
            Arc::new(Self { calls, copy_batch, one_by_one, module, context, number: device, _library: opened });
        let tried = match device.copy_batch {
            Some(_) => try_batches(&device, clock).map_err(|error| error.to_string()),
            None => Err("the driver has no cuMemcpyBatchAsync, which CUDA 12.8 brought".to_owned()),
        };
        if let Err(why) = tried {
            device.one_by_one.get_or_init(|| why);
        }
        Ok(device)
    }

    /// Why each copy is a call of the driver; empty if many copies are one call.
    #[must_use]
    pub fn why_one_by_one(&self) -> &str {
        self.one_by_one.get().map_or("", String::as_str)
    }

    /// To be called in each thread of this crate before all else: while another thread captures a graph,
    /// the driver would refuse this one's events and page-locking, and end the capture.
    pub(crate) fn enter_thread(&self) {
        let mut mode = RELAXED;
        // SAFETY: the argument is valid. Without a context the driver refuses, so one is current.
        let relaxed =
            self.call("cuThreadExchangeStreamCaptureMode", |calls| unsafe { (calls.capture_mode)(&raw mut mode) });
        // A driver that cannot do it makes calls fail, which are misses.
        drop(relaxed);
    }

    fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        // SAFETY: this value retains the context.
        let error = unsafe { (self.calls.context_push)(self.context) };
        check(&self.calls, "cuCtxPushCurrent", error)?;
        Ok(Entered(self))
    }

    fn call(&self, what: &str, call: impl FnOnce(&Calls) -> c_int) -> Result<(), DeviceError> {
        let _entered = self.enter()?;
        check(&self.calls, what, call(&self.calls))
    }

    /// Queues the copies of one call, a range of [`Copies::calls`].
    ///
    /// # Safety
    /// Callers must guarantee that all addresses are valid, page-locked on the processor's side,
    /// until the device has done the copies, and that their destinations are used by nothing else.
    ///
    /// # Errors
    /// The driver refuses a copy. It may have queued the ones before it.
    pub unsafe fn copy(
        &self,
        stream: &Stream,
        copies: &Copies,
        range: std::ops::Range<usize>,
    ) -> Result<(), DeviceError> {
        let (to, from, bytes) = (&copies.to[range.clone()], &copies.from[range.clone()], &copies.bytes[range]);
        let _entered = self.enter()?;
        let Some(batch) = self.copy_batch.filter(|_| self.one_by_one.get().is_none()) else {
            for ((&to, &from), &bytes) in to.iter().zip(from).zip(bytes) {
                // SAFETY: the addresses are valid by the contract of this function.
                let error = unsafe { (self.calls.copy)(to, from, bytes, stream.handle) };
                check(&self.calls, "cuMemcpyAsync", error)?;
            }
            return Ok(());
        };
        let (attributes, first, mut failed) = (Attributes::in_stream_order(), 0, 0);
        // SAFETY: the three arrays have `to.len()` elements, one kind of attributes begins at copy
        // 0, and the addresses are valid by the contract of this function.
        let error = unsafe {
            let (to, from, bytes, count) = (to.as_ptr(), from.as_ptr(), bytes.as_ptr(), to.len());
            batch(to, from, bytes, count, &raw const attributes, &raw const first, 1, &raw mut failed, stream.handle)
        };
        let what = || format!("cuMemcpyBatchAsync of {} copies, at copy {failed}", to.len());
        if error == 0 { Ok(()) } else { check(&self.calls, &what(), error) }
    }

    /// An event that occurs when all work queued on the stream so far is done.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn record(self: &Arc<Self>, stream: &Stream) -> Result<Event, DeviceError> {
        self.record_on(stream.handle)
    }

    /// As [`Device::record`] for the engine's stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn record_engine(self: &Arc<Self>, stream: EngineStream) -> Result<Event, DeviceError> {
        self.record_on(stream.0)
    }

    fn record_on(self: &Arc<Self>, stream: Handle) -> Result<Event, DeviceError> {
        let mut handle = 0;
        // SAFETY: the out argument is valid.
        self.call("cuEventCreate", |calls| unsafe { (calls.event_create)(&raw mut handle, NO_TIMING) })?;
        let event = Event { device: Arc::clone(self), handle };
        // SAFETY: event and stream live.
        self.call("cuEventRecord", |calls| unsafe { (calls.event_record)(event.handle, stream) })?;
        Ok(event)
    }

    /// Work queued on the stream from now on begins after the event.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn wait(&self, stream: &Stream, event: &Event) -> Result<(), DeviceError> {
        self.wait_on(stream.handle, event)
    }

    /// As [`Device::wait`] for the engine's stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn wait_engine(&self, stream: EngineStream, event: &Event) -> Result<(), DeviceError> {
        self.wait_on(stream.0, event)
    }

    fn wait_on(&self, stream: Handle, event: &Event) -> Result<(), DeviceError> {
        // SAFETY: stream and event live.
        self.call("cuStreamWaitEvent", |calls| unsafe { (calls.stream_wait)(stream, event.handle, 0) })
    }

    /// The module of this crate's kernels, which is compiled once. It stays until the context ends.
    pub(crate) fn module(&self, image: &CStr) -> Result<Handle, DeviceError> {
        let mut known = self.module.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = *known {
            return Ok(module);
        }
        let mut module = 0;
        // SAFETY: the out argument is valid, and the image is a string.
        self.call("cuModuleLoadData", |calls| unsafe { (calls.module_load)(&raw mut module, image.as_ptr().cast()) })?;
        *known = Some(module);
        Ok(module)
    }

    pub(crate) fn function(&self, module: Handle, name: &CStr) -> Result<Handle, DeviceError> {
        let mut function = 0;
        let get = |calls: &Calls| {
            // SAFETY: the out argument is valid, the module is loaded, and the name is a string.
            unsafe { (calls.module_function)(&raw mut function, module, name.as_ptr()) }
        };
        self.call("cuModuleGetFunction", get)?;
        Ok(function)
    }

    /// Queues a kernel of one-dimensional thread blocks.
    ///
    /// # Safety
    /// Callers must guarantee that `parameters` point to the parameters of this function, and that the
    /// memory behind them is valid until the kernel has ended.
    pub(crate) unsafe fn launch(
        &self,
        function: Handle,
        grid: u32,
        threads: u32,
        stream: Handle,
        parameters: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        self.call("cuLaunchKernel", |calls| {
            let (parameters, extra) = (parameters.as_mut_ptr(), std::ptr::null_mut());
            // SAFETY: by the contract of this function; the driver copies the parameters.
            unsafe { (calls.launch)(function, grid, 1, 1, threads, 1, 1, 0, stream, parameters, extra) }
        })
    }

    /// Page-locks memory of the processor for access by the device.
    ///
    /// # Safety
    /// Callers must guarantee that the memory stays mapped until [`Device::unregister`].
    ///
    /// # Errors
    /// The memory cannot be locked. Nothing of it is locked then.
    pub unsafe fn register(&self, address: usize, bytes: usize) -> Result<(), DeviceError> {
        let what = format!("cuMemHostRegister of {bytes} bytes");
        // SAFETY: the memory is mapped by the contract of this function.
        self.call(&what, |calls| unsafe { (calls.host_register)(at(address), bytes, 0) })
    }

    /// Unlocks the memory that was registered at this address.
    ///
    /// # Errors
    /// No memory was registered there.
    pub fn unregister(&self, address: usize) -> Result<(), DeviceError> {
        // SAFETY: the driver knows what is registered, and refuses other addresses.
        self.call("cuMemHostUnregister", |calls| unsafe { (calls.host_unregister)(at(address)) })
    }

    /// The device's address of page-locked memory.
    ///
    /// # Errors
    /// The memory is not registered.
    pub fn seen(&self, address: usize) -> Result<u64, DeviceError> {
        let mut seen = 0;
        // SAFETY: the out argument is valid; the driver refuses addresses that it does not know.
        self.call("cuMemHostGetDevicePointer", |calls| unsafe { (calls.host_seen)(&raw mut seen, at(address), 0) })?;
        Ok(seen)
    }

    /// Memory of the device.
    ///
    /// # Errors
    /// There is not so much.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<DeviceBytes, DeviceError> {
        let mut address = 0;
        let what = format!("cuMemAlloc of {bytes} bytes");
        // SAFETY: the out argument is valid.
        self.call(&what, |calls| unsafe { (calls.allocate)(&raw mut address, bytes) })?;
        Ok(DeviceBytes { device: Arc::clone(self), address })
    }

    /// Page-locked memory of the processor.
    ///
    /// # Errors
    /// There is not so much.
    pub fn lock(self: &Arc<Self>, bytes: usize) -> Result<Locked, DeviceError> {
        let mut address = std::ptr::null_mut();
        let what = format!("cuMemHostAlloc of {bytes} bytes");
        // SAFETY: the out argument is valid.
        self.call(&what, |calls| unsafe { (calls.host_allocate)(&raw mut address, bytes, 0) })?;
        Ok(Locked { device: Arc::clone(self), address: address.addr(), bytes })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: streams, events and memory hold the device, so nothing of it is left.
        unsafe { (self.calls.context_release)(self.number) };
    }
}

fn at(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

fn check(calls: &Calls, what: &str, error: c_int) -> Result<(), DeviceError> {
    if error == 0 {
        return Ok(());
    }
    let mut name = std::ptr::null();
    // SAFETY: the out argument is valid; the driver gives a string of its own, or null.
    let name = unsafe {
        (calls.error_name)(error, &raw mut name);
        if name.is_null() { "unknown".into() } else { CStr::from_ptr(name).to_string_lossy() }
    };
    Err(DeviceError::new(what, format!("{name} ({error})")))
}

/// Copies some bytes to the device and back by batches, and compares them. A driver whose call has
/// other arguments would copy other bytes.
fn try_batches(device: &Arc<Device>, clock: Clock) -> Result<(), DeviceError> {
    const SIZE: usize = 512;
    const PATIENCE: Duration = Duration::from_secs(5);
    let (here, there, stream) = (device.lock(2 * SIZE)?, device.allocate(SIZE)?, Stream::new(device)?);
    let pattern: [u8; SIZE] = std::array::from_fn(|at| (at * 31 + 7) as u8);
    // SAFETY: the memory is this function's own, and the device has no copies of it yet.
    unsafe { at(here.address()).cast::<[u8; SIZE]>().write(pattern) };
    let (host, device_side, half) = (here.address() as u64, there.address(), SIZE as u64 / 2);
    for (to, from) in [(device_side, host), (host + SIZE as u64, device_side)] {
        let mut copies = Copies::default();
        // Crossed, so that the order of the copies is seen.
        [0, half].into_iter().for_each(|at| copies.push(to + at, from + half - at, half as usize));
        // SAFETY: all addresses are within `here` and `there`. They live until the event behind the
        // copies; after an error they are kept for ever.
        let copied = unsafe { device.copy(&stream, &copies, 0..2) };
        if let Err(error) = copied {
            std::mem::forget((here, there));
            return Err(error);
        }
    }
    let mut ended = stream.wait("cuMemcpyBatchAsync", clock, PATIENCE);
    if ended.is_ok() {
        // SAFETY: the device has done its copies.
        let back = unsafe { at(here.address() + SIZE).cast::<[u8; SIZE]>().read() };
        if back != pattern {
            ended = Err(DeviceError::new("cuMemcpyBatchAsync", "it copied other bytes than it was given"));
        }
    } else {
        std::mem::forget((here, there));
    }
    ended
}

fn copy_batch(calls: &Calls) -> Option<CopyBatch> {
    let (mut found, mut status) = (None, 0);
    let name = c"cuMemcpyBatchAsync".as_ptr();
    // SAFETY: the out arguments are valid, and the call of this version has the type `CopyBatch`.
    let error = unsafe { (calls.look_up)(name, &raw mut found, COPY_BATCH_VERSION, 0, &raw mut status) };
    found.filter(|_| error == 0)
}

/// A queue of work for the device, executed in order. Only events order two streams.
pub struct Stream {
    device: Arc<Device>,
    handle: Handle,
}

impl Stream {
    /// A new stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(device: &Arc<Device>) -> Result<Self, DeviceError> {
        let mut handle = 0;
        // SAFETY: the out argument is valid.
        device.call("cuStreamCreate", |calls| unsafe { (calls.stream_create)(&raw mut handle, NON_BLOCKING) })?;
        Ok(Self { device: Arc::clone(device), handle })
    }

    pub(crate) const fn handle(&self) -> Handle {
        self.handle
    }

    /// Waits until the device has done all work that was queued so far, for trials at a start.
    ///
    /// # Errors
    /// It failed, or has not done the work of `what` after `patience`. It may still do it.
    pub(crate) fn wait(&self, what: &str, clock: Clock, patience: Duration) -> Result<(), DeviceError> {
        let (end, deadline) = (self.device.record(self)?, clock.after(patience));
        while !end.occurred()? {
            if deadline.passed() {
                return Err(DeviceError::new(what, format!("a trial did not end within {patience:?}")));
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handle is this value's own. The driver frees the stream after its work.
        let _ = self.device.call("cuStreamDestroy", |calls| unsafe { (calls.stream_destroy)(self.handle) });
    }
}

/// A point in a stream.
pub struct Event {
    device: Arc<Device>,
    handle: Handle,
}

impl Event {
    /// Whether the event has occurred.
    ///
    /// # Errors
    /// The device failed. It may still execute work.
    pub fn occurred(&self) -> Result<bool, DeviceError> {
        let _entered = self.device.enter()?;
        // SAFETY: the event lives.
        match unsafe { (self.device.calls.event_query)(self.handle) } {
            NOT_READY => Ok(false),
            error => check(&self.device.calls, "cuEventQuery", error).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is this value's own. The driver frees an event after its use.
        let _ = self.device.call("cuEventDestroy", |calls| unsafe { (calls.event_destroy)(self.handle) });
    }
}

/// Memory of the device. The drop frees it, so the device must have ended its work there.
pub struct DeviceBytes {
    device: Arc<Device>,
    address: u64,
}

impl DeviceBytes {
    /// The device's address of the first byte.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceBytes {
    fn drop(&mut self) {
        // SAFETY: the memory is this value's own.
        let _ = self.device.call("cuMemFree", |calls| unsafe { (calls.free)(self.address) });
    }
}

/// Page-locked memory. The drop frees it, so the device must have ended its copies.
pub struct Locked {
    device: Arc<Device>,
    address: usize,
    bytes: usize,
}

impl Locked {
    /// Address of the first byte.
    #[must_use]
    pub const fn address(&self) -> usize {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: the memory is this value's own.
        let _ = self.device.call("cuMemFreeHost", |calls| unsafe { (calls.host_free)(at(self.address)) });
    }
}
