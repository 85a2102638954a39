//! NIXL's C interface, from `libnixl_capi.so`, opened at run time: so one build serves machines with and
//! without it. Its own binding for Rust wants a C++ compiler and libclang to build, looks for the library
//! under one name only, and ends the process if it is missing.

use super::NixlError;
use libloading::Library;
use std::ffi::{c_char, c_int, c_void};

/// An object of the library.
pub type Handle = *mut c_void;

/// `NIXL_CAPI_SUCCESS` and `NIXL_CAPI_IN_PROG`.
pub const SUCCESS: c_int = 0;
pub const IN_PROGRESS: c_int = 1;
/// `NIXL_CAPI_MEM_DRAM`.
pub const DRAM: c_int = 0;
/// `NIXL_CAPI_XFER_OP_READ`.
pub const READ: c_int = 0;

/// `nixl_capi_agent_config_s`.
#[repr(C)]
pub struct AgentConfig {
    pub enable_prog_thread: bool,
    pub enable_listen_thread: bool,
    pub listen_port: c_int,
    pub thread_sync: c_int,
    pub num_workers: u32,
    pub pthr_delay_us: u64,
    pub lthr_delay_us: u64,
    pub capture_telemetry: bool,
}

macro_rules! calls {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        /// The functions that are used here. All return a status.
        #[allow(missing_docs, reason = "they are NIXL's")]
        pub struct Calls { $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int),* }

        impl Calls {
            /// Finds all functions.
            ///
            /// # Safety
            /// Callers must guarantee that the library is NIXL's C interface, whose functions have these
            /// types, and that it stays open for as long as they are called.
            pub unsafe fn of(library: &Library) -> Result<Self, NixlError> {
                // SAFETY: the caller guarantees the types.
                unsafe { Ok(Self { $($name: *library.get($symbol).map_err(|error| NixlError::new("open NIXL", error))?),* }) }
            }
        }
    };
}

calls! {
    create_agent = b"nixl_capi_create_configured_agent\0": fn(*const c_char, *const AgentConfig, *mut Handle);
    destroy_agent = b"nixl_capi_destroy_agent\0": fn(Handle);
    plugin_params = b"nixl_capi_get_plugin_params\0": fn(Handle, *const c_char, *mut Handle, *mut Handle);
    destroy_mem_list = b"nixl_capi_destroy_mem_list\0": fn(Handle);
    destroy_params = b"nixl_capi_destroy_params\0": fn(Handle);
    create_backend = b"nixl_capi_create_backend\0": fn(Handle, *const c_char, Handle, *mut Handle);
    destroy_backend = b"nixl_capi_destroy_backend\0": fn(Handle);
    local_metadata = b"nixl_capi_get_local_md\0": fn(Handle, *mut *mut c_void, *mut usize);
    load_metadata = b"nixl_capi_load_remote_md\0": fn(Handle, *const c_void, usize, *mut *mut c_char);
    create_registrations = b"nixl_capi_create_reg_dlist\0": fn(c_int, *mut Handle);
    destroy_registrations = b"nixl_capi_destroy_reg_dlist\0": fn(Handle);
    add_registration = b"nixl_capi_reg_dlist_add_desc\0": fn(Handle, usize, usize, u64, *const c_void, usize);
    register = b"nixl_capi_register_mem\0": fn(Handle, Handle, Handle);
    deregister = b"nixl_capi_deregister_mem\0": fn(Handle, Handle, Handle);
    create_places = b"nixl_capi_create_xfer_dlist\0": fn(c_int, *mut Handle);
    destroy_places = b"nixl_capi_destroy_xfer_dlist\0": fn(Handle);
    add_place = b"nixl_capi_xfer_dlist_add_desc\0": fn(Handle, usize, usize, u64);
    create_transfer = b"nixl_capi_create_xfer_req\0": fn(Handle, c_int, Handle, Handle, *const c_char, *mut Handle, Handle);
    post = b"nixl_capi_post_xfer_req\0": fn(Handle, Handle, Handle);
    status = b"nixl_capi_get_xfer_status\0": fn(Handle, Handle);
    release_transfer = b"nixl_capi_release_xfer_req\0": fn(Handle, Handle);
    destroy_transfer = b"nixl_capi_destroy_xfer_req\0": fn(Handle);
}
