//! Loads and saves through the fake driver, which is opened as the driver of CUDA is.

mod calls;
mod faults;
mod locking;
mod orders;
mod rig;
mod trial;
