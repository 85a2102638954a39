//! Mutual exclusion: locks within a host and between hosts, the heartbeat of a host that waits, and
//! the breaker that trips when locks time out.

mod bakery;
pub mod breaker;
mod heartbeat;
mod locks;
pub mod manager;
mod names;

pub(crate) use locks::{Guard, Locks, Timeout};
pub(crate) use names::{Chunks, Heap, Holds, Intent, Lock, Membership, Name, Shard, Tables, User};
