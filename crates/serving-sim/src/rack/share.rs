//! What hosts tell each other, and chunks that move (`eviction/sharing.rs` and `blocks/offers.rs`
//! of the pool).

use super::host::{Demand, Host, Peer, Seen};
use super::{NONE, OFFERS_MAX, Rack};
use cenote_policy::Candidate;
use cenote_policy::sharing::{
    IDLE_TICKS, Need, PRESSED_TICKS, TAKEN_AT_ONCE, chunk_age, is_worth_taking, leaving_age, moved_word, offers,
    report_pace, taken_at_once,
};
use std::cmp::Reverse;

/// Ticks after which no count of ticks changes a decision any more.
const STILL_TICKS: u64 = if IDLE_TICKS > PRESSED_TICKS { IDLE_TICKS } else { PRESSED_TICKS } + 1;

impl Rack {
    /// A host's tick: it hears the others, offers chunks, and tells about itself. Where nothing has changed
    /// for longer than any count of ticks matters, it would do nothing, and does not look.
    pub fn tick(&mut self, host: usize) {
        if self.shape.count == 1 {
            return;
        }
        let one = &mut self.hosts[host];
        one.still_ticks = if one.changes == self.changes { one.still_ticks + 1 } else { 0 };
        one.changes = self.changes;
        if one.still_ticks > STILL_TICKS {
            return;
        }
        let told = |one: &Host| (one.clock, one.offered().len(), one.demand, one.best_offer, one.report_pace);
        let before = told(&self.hosts[host]);
        self.hear_and_tell(host);
        self.changes += u64::from(told(&self.hosts[host]) != before);
    }

    fn hear_and_tell(&mut self, host: usize) {
        let heard: Vec<Heard> = self.peers(host).map(|peer| self.hear_demand(host, peer)).collect();
        self.hear_hits(host);
        self.settle_offers(host);
        let one = &mut self.hosts[host];
        one.quiet_ticks = if one.reserved == one.reserved_before { one.quiet_ticks + 1 } else { 0 };
        one.reserved_before = one.reserved;
        let is_busy = one.quiet_ticks < IDLE_TICKS;
        if is_busy {
            self.take_back_all(host);
        }
        let oldest = self.leaving_age(host, &self.candidates(host));
        let first_to_leave = heard.iter().filter_map(|heard| heard.oldest).chain(oldest).min();
        self.hosts[host].report_pace = report_pace(first_to_leave.unwrap_or(0));
        if self.claimed == self.chunks.len() {
            let own = self.ages(host, self.hosts[host].listed());
            let evicted = heard.iter().filter(|heard| heard.calm_ticks == 0);
            let need = Need {
                rival: evicted.map(|heard| heard.oldest.unwrap_or(0)).min(),
                has_newcomer: heard.iter().any(|heard| heard.oldest.is_none()),
                by_age: self.policy.evicts_by_age() && heard.iter().any(|heard| heard.calm_ticks < PRESSED_TICKS),
            };
            let ages: Vec<u64> = own.iter().map(|&(age, _)| age).collect();
            let room = OFFERS_MAX.min(self.chunks.len()).next_multiple_of(8) - self.hosts[host].offered().len();
            let count = offers(&ages, is_busy, need).min(room);
            self.offer(host, own.into_iter().take(count).map(|(_, chunk)| chunk).collect());
            self.hosts[host].offers_all = !is_busy;
        }
        let board = self.ages(host, self.hosts[host].offered());
        self.tell(host, oldest, &board);
        let others = self.peers(host).filter_map(|peer| self.hosts[peer].demand.offered);
        let others = others.map(|instant| self.hosts[host].age_of(instant));
        let best = others.chain(board.first().map(|&(age, _)| age)).max();
        self.note_best_offer(host, best);
    }

    fn peers(&self, host: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.shape.count).filter(move |&peer| peer != host)
    }

    fn note_best_offer(&mut self, host: usize, age: Option<u64>) {
        let one = &mut self.hosts[host];
        one.best_offer = age.map(|age| one.age_of(age));
    }

    /// Counts another host's lookups.
    fn hear_demand(&mut self, host: usize, peer: usize) -> Heard {
        let told = self.hosts[peer].demand;
        let one = &mut self.hosts[host];
        let known = one.peers[peer];
        let more = told.lookups - known.lookups;
        one.heard += more;
        one.clock += more;
        let calm_ticks = if told.evicted == known.evicted { known.calm_ticks + 1 } else { 0 };
        one.peers[peer] = Peer { lookups: told.lookups, evicted: told.evicted, calm_ticks, ..known };
        Heard { oldest: told.oldest.map(|instant| one.age_of(instant)), calm_ticks }
    }

    /// Marks blocks that other hosts have reported.
    pub(super) fn hear_hits(&mut self, host: usize) {
        for peer in self.peers(host) {
            let told = self.hosts[peer].hits.len();
            let known = self.hosts[host].peers[peer].hits;
            self.hosts[host].peers[peer].hits = told;
            for position in known.max(told.saturating_sub(self.ring()))..told {
                let slot = self.hosts[peer].hits[position] as usize;
                let one = &mut self.hosts[host];
                one.words[slot] = self.policy.accessed(one.words[slot], one.clock);
            }
        }
    }

    fn tell(&mut self, host: usize, oldest: Option<u64>, board: &[(u64, usize)]) {
        let one = &mut self.hosts[host];
        one.board = board.iter().map(|&(age, chunk)| (chunk, one.age_of(age))).collect();
        one.demand = Demand {
            lookups: one.clock - one.heard,
            evicted: one.evicted + one.no_room,
            oldest: oldest.map(|age| one.age_of(age)),
            offered: board.first().map(|&(age, _)| one.age_of(age)),
        };
    }

    /// Ages of chunks as the host sees them, the oldest first. A chunk without blocks is as old as the
    /// clock.
    fn ages(&self, host: usize, chunks: &[usize]) -> Vec<(u64, usize)> {
        let one = &self.hosts[host];
        let age = |chunk: usize| {
            let slots = self.slots_of(chunk).filter(|&slot| self.slots[slot].block != NONE);
            let mut ages: Vec<u64> = slots.map(|slot| self.policy.age(one.words[slot], one.clock)).collect();
            (chunk_age(&mut ages).unwrap_or(one.clock), chunk)
        };
        let mut ages: Vec<(u64, usize)> = chunks.iter().copied().map(age).collect();
        ages.sort_unstable_by_key(|&(age, chunk)| (Reverse(age), chunk));
        ages
    }

    fn leaving_age(&self, host: usize, own: &[Candidate]) -> Option<u64> {
        let clock = self.hosts[host].clock;
        leaving_age(&mut own.iter().map(|candidate| self.policy.age(candidate.word, clock)).collect::<Vec<u64>>())
    }

    /// Takes chunks that are offered and older than the blocks that the host would evict next.
    /// Returns whether it took any.
    pub(super) fn take_offers(&mut self, host: usize, own: &[Candidate]) -> bool {
        let Some(best) = self.hosts[host].best_offer else { return false };
        let own = self.leaving_age(host, own);
        let one = &self.hosts[host];
        let best = one.age_of(best);
        if !is_worth_taking(best, own, true) {
            return false;
        }
        let is_open = |chunk: usize| one.sees(chunk) != Seen::Listed && self.chunks[chunk].is_offered;
        let boards = self
            .hosts
            .iter()
            .flat_map(|owner| owner.board.iter().filter(|&&(chunk, _)| is_open(chunk)).take(2 * TAKEN_AT_ONCE));
        let mut open: Vec<(u64, usize)> = boards.map(|&(chunk, instant)| (one.age_of(instant), chunk)).collect();
        open.sort_unstable_by_key(|&(age, chunk)| (Reverse(age), chunk));
        let most = taken_at_once(one.listed().len(), best, own, TAKEN_AT_ONCE);
        self.note_best_offer(host, open.get(TAKEN_AT_ONCE).map(|&(age, _)| age));
        let is_own = |chunk: usize| self.chunks[chunk].owner == host as u32;
        let worth = open.into_iter().filter(|&(age, chunk)| is_worth_taking(age, own, is_own(chunk)));
        let worth: Vec<usize> = worth.map(|(_, chunk)| chunk).collect();
        self.take_offered(host, worth, most) > 0
    }

    fn offer(&mut self, host: usize, mut chunks: Vec<usize>) {
        chunks.sort_unstable();
        let chunk_blocks = self.shape.chunk_blocks;
        if !chunks.is_empty() {
            let free = &mut self.hosts[host].free;
            free.retain(|&slot| chunks.binary_search(&(slot as usize / chunk_blocks)).is_err());
        }
        for chunk in chunks {
            for slot in self.slots_of(chunk) {
                self.recency[slot] = self.hosts[host].words[slot];
            }
            self.chunks[chunk].is_offered = true;
            self.hosts[host].see(chunk, Seen::Offered);
        }
    }

    /// Takes offered chunks, in this order, until `most` are taken. Returns their number.
    fn take_offered(&mut self, host: usize, chunks: impl IntoIterator<Item = usize>, most: usize) -> usize {
        let mut taken = 0;
        for chunk in chunks {
            if taken == most {
                break;
            }
            if !self.chunks[chunk].is_offered {
                continue;
            }
            self.chunks[chunk].is_offered = false;
            if self.chunks[chunk].owner != host as u32 {
                self.chunks[chunk].owner = host as u32;
                self.read_recency(host, chunk);
                self.hosts[host].moved += 1;
            }
            self.list(host, chunk);
            taken += 1;
        }
        taken
    }

    fn read_recency(&mut self, host: usize, chunk: usize) {
        for slot in self.slots_of(chunk) {
            let one = &mut self.hosts[host];
            one.words[slot] = moved_word(self.policy, self.recency[slot], one.words[slot], one.clock);
        }
    }

    /// Takes back the chunks that the host offers, all that no other host has taken.
    pub(super) fn take_back_all(&mut self, host: usize) {
        let offered: Vec<usize> = self.hosts[host].offered().to_vec();
        if !offered.is_empty() {
            self.take_offered(host, offered, usize::MAX);
            self.settle_offers(host);
        }
    }

    /// Forgets chunks that the host offered and another one has taken.
    fn settle_offers(&mut self, host: usize) {
        let offered: Vec<usize> = self.hosts[host].offered().to_vec();
        for chunk in offered {
            if self.chunks[chunk].owner != host as u32 {
                self.hosts[host].see(chunk, Seen::Elsewhere);
            }
        }
    }
}

/// What a host hears of another one.
struct Heard {
    /// Age of the blocks that it would evict next; `None`: it has none.
    oldest: Option<u64>,
    /// Ticks since it has last evicted.
    calm_ticks: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rack::Hosts;
    use cenote_base::prng::Prng;
    use cenote_policy::eviction::Eviction;

    /// What the skipped ticks of a still rack would leave as it is.
    #[test]
    fn ticks_of_a_still_rack_change_nothing() {
        let mut prng = Prng::new(5);
        let mut skipped = 0;
        for round in 0..24 {
            let eviction = Eviction::ALL[round % Eviction::ALL.len()];
            let hosts = 2 + prng.below(4) as usize;
            let mut rack = Rack::new(eviction, Some(400), 2_000, Hosts::new(hosts));
            for _ in 0..prng.below(6) {
                for _ in 0..prng.below(200) {
                    let first = prng.below(1_900) as u32;
                    let blocks: Vec<u32> = (first..first + 1 + prng.below(30) as u32).collect();
                    rack.serve(prng.below(hosts as u64) as usize, &blocks);
                }
                for tick in 0..prng.below(60 * hosts as u64) {
                    rack.tick(tick as usize % hosts);
                }
            }
            while rack.hosts.iter().any(|host| host.still_ticks <= STILL_TICKS) {
                (0..hosts).for_each(|host| rack.tick(host));
            }
            let state = |rack: &Rack| {
                let of = |host: &Host| {
                    let lists =
                        (host.listed().to_vec(), host.offered().to_vec(), host.free.clone(), host.board.clone());
                    (lists, host.words.clone(), host.clock, host.demand, host.best_offer, host.report_pace)
                };
                let owners: Vec<_> = rack.chunks.iter().map(|chunk| (chunk.owner, chunk.is_offered)).collect();
                (owners, rack.recency.clone(), rack.hosts.iter().map(of).collect::<Vec<_>>())
            };
            let before = state(&rack);
            for host in (0..3 * hosts).map(|tick| tick % hosts) {
                rack.hear_and_tell(host);
                skipped += 1;
            }
            assert!(state(&rack) == before, "round {round}");
        }
        assert!(skipped > 100);
    }
}
