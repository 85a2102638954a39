//! One pool for all hosts: which chunks this host offers, and which it takes from others
//! (docs/internals/protocol.md#offers). The decisions are `cenote_policy::sharing`.

use super::Evictor;
use crate::hosts::demand::Offer;
use crate::region::counters::Counter;
use crate::sync::{Heap, Holds, Membership, Timeout};
use cenote_mem::{Fabric, HostLocal, Word};
use cenote_policy::Candidate;
use cenote_policy::sharing::{
    IDLE_TICKS, Need, PRESSED_TICKS, TAKEN_AT_ONCE, chunk_age, is_worth_taking, leaving_age, offers, report_pace,
    taken_at_once,
};
use std::sync::atomic::Ordering::Relaxed;

impl<F: Fabric, H: HostLocal> Evictor<F, H> {
    /// Hears what the other hosts use and want, offers them chunks, and tells them about this host.
    /// Every tick calls it.
    pub fn share(&self, membership: &Holds<Membership>) {
        if !self.hosts.shares() {
            return;
        }
        // If the lock is busy, the next tick does it.
        let Ok(heap) = self.blocks.lock_heap_within(Timeout::TRY) else { return };
        let region = &self.region;
        let peers = self.hosts.living_peers();
        let news: Vec<_> = peers.iter().filter_map(|&peer| self.hosts.hear_demand(&heap, peer)).collect();
        self.blocks.hear_hits(&heap, &peers);
        self.blocks.settle_offers(&heap);
        let evicted = region.counters().get(Counter::Evicted) + region.counters().get(Counter::NoRoom);
        if peers.is_empty() {
            // No host needs to know the age of these blocks.
            self.blocks.take_back_all(&heap);
            self.hosts.tell_demand(membership, evicted, None, &[]);
            return self.note_best_offer(None);
        }
        let reserved = region.reserved().load(Relaxed);
        let quiet_ticks = region.quiet_ticks();
        if region.reserved_before().swap(reserved, Relaxed) == reserved {
            quiet_ticks.fetch_add(1, Relaxed);
        } else {
            quiet_ticks.store(0, Relaxed);
        }
        let is_busy = quiet_ticks.load(Relaxed) < IDLE_TICKS;
        if is_busy {
            // It may have to evict from them, and offers those that are the oldest now.
            self.blocks.take_back_all(&heap);
        }
        let blocks = region.listed_chunks().flat_map(|chunk| self.published(chunk));
        let oldest = leaving_age(&mut blocks.map(|block| self.age(block)).collect::<Vec<u64>>());
        let first_to_leave = news.iter().filter_map(|news| news.oldest).chain(oldest).min();
        region.report_pace().store(report_pace(first_to_leave.unwrap_or(0)), Relaxed);
        if !self.space.finds_free_chunk() {
            let own = self.ages(region.listed_chunks());
            let rivals = news.iter().filter(|news| news.calm_ticks == 0);
            let need = Need {
                rival: rivals.map(|news| news.oldest.unwrap_or(0)).min(),
                has_newcomer: news.iter().any(|news| news.oldest.is_none()),
                by_age: self.blocks.policy().evicts_by_age() && news.iter().any(|news| news.calm_ticks < PRESSED_TICKS),
            };
            let ages: Vec<u64> = own.iter().map(|offer| offer.age).collect();
            let room = (region.layout.offers_max() as usize).saturating_sub(self.blocks.offered_chunks().count());
            let chosen = own.iter().take(offers(&ages, is_busy, need).min(room)).map(|offer| offer.chunk);
            self.blocks.offer(&heap, &chosen.collect::<Vec<_>>());
            region.offers_all().store(u64::from(!is_busy), Relaxed);
        }
        let board = self.ages(self.blocks.offered_chunks());
        self.hosts.tell_demand(membership, evicted, oldest, &board);
        let best = peers.iter().filter_map(|&peer| self.hosts.oldest_offer(peer));
        self.note_best_offer(best.chain(board.first().map(|offer| offer.age)).max());
    }

    fn note_best_offer(&self, age: Option<u64>) {
        let clock = self.region.access_clock().load(Relaxed);
        let word = age.map_or(0, |age| clock.saturating_sub(age).saturating_add(1));
        self.region.best_offer().store(word, Relaxed);
    }

    /// The ages of chunks whose slots are all published or free and of which nothing is kept, the oldest
    /// first. A chunk without blocks is as old as the clock.
    fn ages(&self, chunks: impl Iterator<Item = u64>) -> Vec<Offer> {
        let clock = self.region.access_clock().load(Relaxed);
        let kept = self.kept_from(None);
        let age = |chunk| {
            if !kept.lets_chunk(self, chunk) {
                return None;
            }
            let blocks = self.blocks.published_alone(chunk)?;
            let mut ages: Vec<u64> = blocks.into_iter().map(|block| self.age(block)).collect();
            Some(Offer { chunk, age: chunk_age(&mut ages).unwrap_or(clock) })
        };
        let mut ages: Vec<Offer> = chunks.filter_map(age).collect();
        ages.sort_unstable_by_key(|offer| (std::cmp::Reverse(offer.age), offer.chunk));
        ages
    }

    /// Takes chunks that hosts offer, this one too, if they are older than the blocks that this host
    /// would evict next. Returns whether it took any.
    pub(super) fn take_offers(&self, heap: &Holds<Heap>, own: &[Candidate]) -> bool {
        let region = &self.region;
        let Some(best) = region.best_offer().load(Relaxed).checked_sub(1) else { return false };
        let own = leaving_age(&mut own.iter().map(|candidate| self.age(candidate.block)).collect::<Vec<u64>>());
        let best = region.access_clock().load(Relaxed).saturating_sub(best);
        if !is_worth_taking(best, own, true) {
            return false;
        }
        let is_open = |offer: &Offer| {
            region.class_of_chunk(offer.chunk).is_none()
                && region.read_chunk(offer.chunk).is_none_or(|line| line.offered == 1)
        };
        let hosts = 0..region.layout.max_hosts;
        let boards = hosts.flat_map(|host| self.hosts.board(host).filter(is_open).take(2 * TAKEN_AT_ONCE));
        let mut open: Vec<Offer> = boards.collect();
        open.sort_unstable_by_key(|offer| (std::cmp::Reverse(offer.age), offer.chunk));
        self.note_best_offer(open.get(TAKEN_AT_ONCE).map(|offer| offer.age));
        let most = taken_at_once(region.listed_chunks().count(), best, own, TAKEN_AT_ONCE);
        let is_own = |offer: &Offer| region.own_chunk(offer.chunk).is_some();
        let worth = open.into_iter().filter(|offer| is_worth_taking(offer.age, own, is_own(offer)));
        let worth = worth.map(|offer| offer.chunk);
        let worth: Vec<u64> = worth.collect();
        !worth.is_empty() && self.blocks.take_offered(heap, worth, most) > 0
    }
}
