//! Demand lines: what hosts tell each other about their use of space, and the rack's recency clock.
//!
//! The clock counts lookups: those of this host as they happen, those of the others when they tell
//! (docs/internals/protocol.md#recency). So ages of blocks on different hosts can be compared.

use super::Hosts;
use crate::region::host_layout::Peer;
use crate::region::layout::LINE_WORDS;
use crate::region::lines::{DemandLine, Line};
use crate::sync::{Heap, Holds, Membership};
use cenote_mem::{Fabric, HostLocal, Word};
use std::sync::atomic::Ordering::Relaxed;

/// A chunk on a host's offer board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub chunk: u64,
    /// Lookups since the last use of its oldest blocks.
    pub age: u64,
}

/// What another host has told since the last tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct News {
    /// Age to which its next eviction would reach; `None`: it has no block.
    pub oldest: Option<u64>,
    /// Ticks of this host since the other one has last evicted.
    pub calm_ticks: u64,
}

/// The word of an offer: chunk plus one in the low half, instant in the high half.
const fn offer_word(chunk: u64, instant: u64) -> u64 {
    (chunk + 1) & 0xffff_ffff | instant << 32
}

impl<F: Fabric, H: HostLocal> Hosts<F, H> {
    /// Whether hosts share space and recency here: there may be several.
    #[inline]
    pub fn shares(&self) -> bool {
        self.region.layout.is_shared() && !self.region.is_coherent()
    }

    /// The other hosts that live, as far as this host knows.
    pub fn living_peers(&self) -> Vec<u64> {
        let region = &self.region;
        let lives = |host: &u64| {
            *host != region.host && region.read_host(*host).is_some_and(|line| !region.is_dead(*host, line.incarnation))
        };
        (0..region.layout.max_hosts).filter(lives).collect()
    }

    fn demand_of(&self, host: u64) -> Option<DemandLine> {
        let at = self.region.layout.demand(host);
        DemandLine::open(self.region.fresh_line(at), at, self.region.salt)
    }

    /// Continues the clock and the ring of this host's earlier lives, in new host memory.
    pub fn continue_demand(&self, _: &Holds<Heap>) {
        let region = &self.region;
        let Some(last) = self.demand_of(region.host).filter(|_| self.shares()) else { return };
        region.access_clock().store(last.lookups, Relaxed);
        self.continue_hits(last.hits);
    }

    /// Reads another host's line: counts its lookups.
    pub fn hear_demand(&self, _: &Holds<Heap>, host: u64) -> Option<News> {
        let region = &self.region;
        let told = self.demand_of(host)?;
        let known = region.peer(host);
        // A line of nonsense with a valid check word costs the order of evictions, nothing else.
        let more = told.lookups.saturating_sub(known.lookups);
        region.heard().fetch_add(more, Relaxed);
        let clock = region.access_clock().fetch_add(more, Relaxed).wrapping_add(more);
        let calm_ticks = if told.evicted == known.evicted { known.calm_ticks.saturating_add(1) } else { 0 };
        let peer = Peer { lookups: told.lookups.max(known.lookups), evicted: told.evicted, calm_ticks, ..known };
        region.set_peer(host, peer);
        let oldest = told.oldest.checked_sub(1).map(|instant| clock.saturating_sub(instant));
        Some(News { oldest, calm_ticks })
    }

    /// The age of the oldest chunk that a host offers.
    pub fn oldest_offer(&self, host: u64) -> Option<u64> {
        let clock = self.region.access_clock().load(Relaxed);
        let told = self.demand_of(host)?;
        told.offered.checked_sub(1).map(|instant| clock.saturating_sub(instant))
    }

    /// Tells the other hosts about this one.
    pub fn tell_demand(&self, _: &Holds<Membership>, evicted: u64, oldest: Option<u64>, offers: &[Offer]) {
        let region = &self.region;
        let clock = region.access_clock().load(Relaxed);
        let instant = |age: u64| clock.saturating_sub(age).saturating_add(1);
        let mut words = offers.iter().map(|offer| offer_word(offer.chunk, clock.saturating_sub(offer.age)));
        for line in 0..region.layout.offer_lines_per_host {
            let words = std::array::from_fn(|_| words.next().unwrap_or(0));
            let at = region.layout.offer_line(region.host, line);
            let is_new = region.fabric.load_line(at) != words;
            if is_new {
                region.fabric.write_line(at, &words);
            }
        }
        let line = DemandLine {
            lookups: clock.saturating_sub(region.heard().load(Relaxed)),
            evicted,
            oldest: oldest.map_or(0, instant),
            offered: offers.first().map_or(0, |offer| instant(offer.age)),
            hits: region.next_hit().load(Relaxed),
            ..DemandLine::default()
        };
        region.write(region.layout.demand(region.host), line);
    }

    /// The chunks on a host's offer board, the oldest first. They may be taken by now.
    pub fn board(&self, host: u64) -> impl Iterator<Item = Offer> + '_ {
        let region = &*self.region;
        let clock = region.access_clock().load(Relaxed);
        let lines = (0..region.layout.offer_lines_per_host).map(move |line| region.layout.offer_line(host, line));
        let words = lines.flat_map(|at| region.fresh_line(at)).take_while(|&word| word != 0);
        let offer = move |word: u64| {
            let chunk = (word & 0xffff_ffff).checked_sub(1)?;
            // The low half of the instant suffices: an age is less than 2^32 lookups.
            let age = (clock as u32).wrapping_sub((word >> 32) as u32);
            let age = if age > u32::MAX / 2 { 0 } else { age };
            (chunk < region.layout.num_chunks).then_some(Offer { chunk, age: age.into() })
        };
        words.filter_map(offer)
    }
}

const _: () = assert!(LINE_WORDS == 8, "a line of a board has eight offers");
