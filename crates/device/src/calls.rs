//! The functions of the driver's library.

use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// A context, stream, event, module or function. The driver's type is a pointer.
pub type Handle = usize;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemcpyAttributes`. The driver ignores the hints for memory that is not managed.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Attributes {
    source_order: c_int,
    source_hint: Location,
    destination_hint: Location,
    flags: c_uint,
}

impl Attributes {
    /// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`: a source is read in the order of the stream.
    pub fn in_stream_order() -> Self {
        Self { source_order: 1, ..Self::default() }
    }
}

/// `cuMemcpyBatchAsync` of CUDA 12.8. Version 13 has other arguments, under another version of the
/// symbol.
pub type CopyBatch = unsafe extern "C" fn(
    to: *const u64,
    from: *const u64,
    bytes: *const usize,
    count: usize,
    attributes: *const Attributes,
    firsts: *const usize,
    kinds: usize,
    failed: *mut usize,
    stream: Handle,
) -> c_int;

/// The version of [`CopyBatch`], as the driver writes it.
pub const COPY_BATCH_VERSION: c_int = 12_080;

macro_rules! calls {
    ($($name:ident = $symbol:ident($($argument:ty),*);)*) => {
        /// One function pointer for each call.
        pub struct Calls {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Calls {
            /// Looks all calls up.
            ///
            /// # Errors
            /// The name of a call that the library lacks.
            pub fn of(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $(
                        // SAFETY: the driver's interface declares the symbol with this type
                        // (`cuda.h` of CUDA 12); a handle is as large as a pointer.
                        $name: *unsafe { library.get(concat!(stringify!($symbol), "\0").as_bytes()) }
                            .map_err(|_| stringify!($symbol))?,
                    )*
                })
            }
        }
    };
}

calls! {
    init = cuInit(c_uint);
    device_get = cuDeviceGet(*mut c_int, c_int);
    context_retain = cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    context_release = cuDevicePrimaryCtxRelease_v2(c_int);
    context_push = cuCtxPushCurrent_v2(Handle);
    context_pop = cuCtxPopCurrent_v2(*mut Handle);
    capture_mode = cuThreadExchangeStreamCaptureMode(*mut c_int);
    look_up = cuGetProcAddress_v2(*const c_char, *mut Option<CopyBatch>, c_int, u64, *mut c_int);
    error_name = cuGetErrorName(c_int, *mut *const c_char);
    stream_create = cuStreamCreate(*mut Handle, c_uint);
    stream_destroy = cuStreamDestroy_v2(Handle);
    stream_wait = cuStreamWaitEvent(Handle, Handle, c_uint);
    event_create = cuEventCreate(*mut Handle, c_uint);
    event_destroy = cuEventDestroy_v2(Handle);
    event_record = cuEventRecord(Handle, Handle);
    event_query = cuEventQuery(Handle);
    copy = cuMemcpyAsync(u64, u64, usize, Handle);
    host_register = cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    host_unregister = cuMemHostUnregister(*mut c_void);
    host_seen = cuMemHostGetDevicePointer_v2(*mut u64, *mut c_void, c_uint);
    host_allocate = cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    host_free = cuMemFreeHost(*mut c_void);
    allocate = cuMemAlloc_v2(*mut u64, usize);
    free = cuMemFree_v2(u64);
    module_load = cuModuleLoadData(*mut Handle, *const c_void);
    module_function = cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    launch = cuLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}
