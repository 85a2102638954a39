//! RDMA cards: messages, queues, bounce buffers and aggregation.

use crate::model::Link;
use crate::rack::Card;
use cenote_plan::traffic::GBE_100_BYTES_PER_S;

/// A card and the software that drives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nic {
    /// Line rate, and latency of one message.
    pub link: Link,
    /// Nanoseconds of the sender per message: a work request and its completion.
    pub message_ns: f64,
    /// Messages outstanding at once.
    pub queue_depth: u32,
    /// Bytes per second of a copy through a bounce buffer, on each side that needs one.
    pub bounce_bytes_per_s: Option<f64>,
    /// Sides that copy through a bounce buffer.
    pub bounces: u32,
}

/// A card of 100 Gb/s (TraCT §5.1). Our assumptions: 5 µs end to end, 0.4 µs per message, a queue of
/// 128, and no bounce buffer.
pub const CX_100G: Nic = Nic {
    link: Link { bytes_per_s: GBE_100_BYTES_PER_S, latency_ns: 5_000 },
    message_ns: 400.0,
    queue_depth: 128,
    bounce_bytes_per_s: None,
    bounces: 0,
};

/// The same, with rows that pass a bounce buffer in host memory on both sides (Engram paper §2.2). Our
/// assumption: a copy of 10 GB/s.
pub const CX_100G_BOUNCED: Nic = CX_100G.bounced(10e9, 2);

/// A card of 100 Gb/s whose bytes the kernels carry by TCP, with reads that the owner's process answers. Our
/// assumptions: half of the line, 50 µs there and back, 5 µs a message, 16 outstanding.
pub const TCP_100G: Nic = Nic {
    link: Link { bytes_per_s: GBE_100_BYTES_PER_S / 2, latency_ns: 50_000 },
    message_ns: 5_000.0,
    queue_depth: 16,
    bounce_bytes_per_s: None,
    bounces: 0,
};

impl Nic {
    /// With a bounce buffer on `sides` sides, filled at this rate.
    #[must_use]
    pub const fn bounced(mut self, bytes_per_s: f64, sides: u32) -> Self {
        self.bounce_bytes_per_s = Some(bytes_per_s);
        self.bounces = sides;
        self
    }

    /// The card as one-sided reads see it, which need no bounce buffer: regions are registered.
    #[must_use]
    pub const fn card(&self) -> Card {
        Card { link: self.link, message_ns: self.message_ns as u64, outstanding: self.queue_depth as u64 }
    }

    /// Nanoseconds to send `messages` of `bytes` each. The slowest of line, sender and window counts.
    /// A bounce buffer delays the first message and bounds the rate.
    #[must_use]
    pub fn send_ns(&self, messages: u64, bytes: u64) -> f64 {
        if messages == 0 {
            return 0.0;
        }
        let size = bytes as f64;
        let line = size * 1e9 / self.link.bytes_per_s as f64;
        let window = self.link.latency_ns as f64 / f64::from(self.queue_depth.max(1));
        let bounce = self.bounce_bytes_per_s.map_or(0.0, |rate| size * 1e9 / rate);
        let each = line.max(self.message_ns).max(window).max(bounce);
        let first = self.link.latency_ns as f64 + line + bounce * f64::from(self.bounces);
        first + (messages - 1) as f64 * each
    }

    /// Nanoseconds to send `count` pieces of `bytes` each, aggregated into messages of at most
    /// `message_bytes`.
    #[must_use]
    pub fn aggregated_ns(&self, count: u64, bytes: u64, message_bytes: u64) -> f64 {
        let pieces = (message_bytes / bytes.max(1)).max(1);
        self.send_ns(count.div_ceil(pieces), bytes * pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_messages_are_bound_by_the_sender_and_aggregation_helps() {
        let rows = 10_000;
        let single = CX_100G.send_ns(rows, 256);
        assert!((single / (rows as f64 * 400.0) - 1.0).abs() < 0.02, "{single}");
        assert!(CX_100G.aggregated_ns(rows, 256, 1 << 20) < single / 10.0);
    }

    #[test]
    fn a_slow_bounce_buffer_bounds_the_rate() {
        let plain = CX_100G.send_ns(100, 1 << 20);
        let bounced = CX_100G.bounced(6.25e9, 2).send_ns(100, 1 << 20);
        assert!((1.9..2.1).contains(&(bounced / plain)), "{}", bounced / plain);
    }
}
