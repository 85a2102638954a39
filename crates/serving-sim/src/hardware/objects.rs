//! An object store, as one of its clients sees it.
//!
//! Amazon's guide to the performance of S3 ("Performance design patterns"): first bytes of an object come
//! after 100 to 200 ms, and a connection carries 85 to 90 MB/s. The cold tier reads with four threads, a
//! connection each. The store itself is taken as large enough for all hosts.

use crate::model::Link;

/// Bytes per second of a connection.
const CONNECTION_BYTES_PER_S: u64 = 85_000_000;
/// Connections of a client: the threads of the cold tier that read.
const CONNECTIONS: u64 = 4;

/// What a host reads.
pub const S3: Link = Link { bytes_per_s: CONNECTIONS * CONNECTION_BYTES_PER_S, latency_ns: 100_000_000 };
