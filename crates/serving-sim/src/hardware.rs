//! Models of hardware, one file per device, with the source of each figure.
//!
//! A figure is a data sheet's, a paper's description of its machine, or marked as our assumption. No
//! figure is fitted to a result that it then explains.

pub mod a100;
pub mod a6000;
pub mod architecture;
pub mod cache_engine;
pub mod cxl;
pub mod dram;
pub mod gpu;
pub mod h200;
pub mod hbm;
pub mod kv_kernels;
pub mod l20;
pub mod lpddr;
pub mod niagara;
pub mod nvlink;
pub mod nvme;
pub mod oaken;
pub mod objects;
pub mod pcie;
pub mod power;
pub mod price;
pub mod rdma;
pub mod roofline;
pub mod switch;
pub mod tender;

pub use architecture::Architecture;
pub use gpu::Gpu;
pub use kv_kernels::KvKernels;
pub use roofline::{LayerTime, Roofline};

/// All GPUs; their names are their devices'.
pub const GPUS: [Gpu; 5] = [a100::A100_80, h200::H200, l20::L20, a6000::A6000, a100::A100_40];

/// Nanoseconds to start and join the threads of a gather, or to launch a kernel. Our assumption.
pub const START_NS: u64 = 10_000;

/// Gigabytes per second, or gigabytes.
pub(crate) const GB: u64 = 1_000_000_000;
