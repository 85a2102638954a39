//! What is wrong with a region, why it matters, and the next command. Pure: looks in, findings out, so that
//! `doctor`, `top` and tests say the same.

use crate::gauges::Look;
use crate::rates::Rates;
use cenote_base::units::ByteSize;
use cenote_pool::{Counter, Event, NamespaceInfo, Record};
use serde::Serialize;

/// Records of the flight recorder that are younger than this count as recent.
const RECENT_US: u64 = 600 * 1_000_000;

/// Share of a quota from which a model is at it.
const AT_QUOTA: f64 = 0.95;

/// Share of the newest bytes from which a model floods the region.
const FLOOD: f64 = 0.5;

/// Share of found blocks below which a hit rate is low.
const LOW_HITS: f64 = 0.5;
/// Fewest blocks looked up of which a share says something: one new prompt finds nothing, as it must.
const LOOKUPS_MIN: u64 = 1000;

/// A fault of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A word for programs.
    pub kind: &'static str,
    pub what: String,
    pub why: &'static str,
    /// A command, or an action.
    pub next: String,
}

/// A process of this machine that has joined and does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    pub pid: u64,
    pub name: String,
}

/// All that findings are derived from.
pub struct Sight<'a> {
    pub region: &'a str,
    pub look: &'a Look,
    /// Since an earlier look.
    pub rates: Option<&'a Rates>,
    pub records: &'a [Record],
    /// Microseconds since 1970.
    pub now_us: u64,
    pub stopped: &'a [Stopped],
}

impl Sight<'_> {
    /// The faults, the worst first.
    pub fn findings(&self) -> Vec<Finding> {
        let mut all = Vec::new();
        all.extend(self.damage());
        all.extend(self.dead_hosts());
        all.extend(self.dead_workers());
        all.extend(self.stopped.iter().map(|process| self.stopped(process)));
        all.extend(self.cold());
        all.extend(self.quotas());
        all.extend(self.full());
        all.extend(self.low_hits());
        all.extend(self.locks());
        all.extend(self.restoring());
        all
    }

    fn grows(&self, counter: Counter) -> u64 {
        self.rates.map_or(0, |rates| rates.delta(counter))
    }

    /// Number of recent records of a kind, and the last one.
    fn recent(&self, event: Event) -> Option<(u64, &Record)> {
        let since = self.now_us.saturating_sub(RECENT_US);
        let of = self.records.iter().filter(|record| record.event == event && record.time_us >= since);
        let times = of.clone().fold(0_u64, |sum, record| sum.saturating_add(record.times));
        of.max_by_key(|record| record.time_us).map(|last| (times, last))
    }

    fn pool(&self, command: &str) -> String {
        format!("cenote pool {command} --region {}", self.region)
    }

    fn damage(&self) -> Option<Finding> {
        let reads = self.grows(Counter::ReadsDamaged);
        let recent = self.recent(Event::ReadDamaged);
        let what = match recent {
            Some((times, last)) => {
                format!("{times} blocks were damaged in the last ten minutes; the last: {}", last.what)
            }
            None if reads > 0 => format!("{reads} reads met damage just now"),
            None => return None,
        };
        Some(Finding {
            kind: "damage",
            what,
            why: "A program writes where it must not, or memory fails. Each damaged block is a miss once; no wrong \
                  KV is returned.",
            next: self.pool("check"),
        })
    }

    fn dead_hosts(&self) -> Vec<Finding> {
        let dead = self.look.info.hosts.iter().filter(|host| host.marked_dead);
        let found = dead.map(|host| Finding {
            kind: "host dead",
            what: format!("host {} is declared dead and owns {} chunks", host.host, host.chunks),
            why: "Its blocks stay readable. Its space takes no new blocks until another host adopts it.",
            next: format!("{} --host {}", self.pool("history"), host.host),
        });
        let silent = self.look.info.hosts.iter().filter(|host| {
            !host.marked_dead && host.alive == Some(false) && host.workers > 0 && host.silent_ms.is_some()
        });
        let silent = silent.map(|host| Finding {
            kind: "host silent",
            what: format!(
                "host {} has been silent for {:.0} s with {} workers",
                host.host,
                host.silent_ms.unwrap_or(0) as f64 / 1e3,
                host.workers
            ),
            why: "It hangs, or its link is lost. The next tick of another host declares it dead.",
            next: format!("{} --dead-host {}", self.pool("fence"), host.host),
        });
        found.chain(silent).collect()
    }

    fn dead_workers(&self) -> Vec<Finding> {
        let dead = self.look.info.workers.iter().filter(|worker| worker.alive == Some(false));
        dead.map(|worker| Finding {
            kind: "worker dead",
            what: format!(
                "process {} ({}) of host {} is dead and not recovered",
                worker.pid,
                worker.name.escape_debug(),
                worker.host
            ),
            why: "Its reservations are not free, and blocks that it pinned stay.",
            next: self.pool("gc"),
        })
        .collect()
    }

    fn stopped(&self, Stopped { pid, name }: &Stopped) -> Finding {
        Finding {
            kind: "worker silent",
            what: format!("process {pid} ({}) is stopped", name.escape_debug()),
            why: "It lives, so nothing recovers it, but it answers nothing.",
            next: format!("kill -CONT {pid}, or kill -KILL {pid} so that others recover it"),
        }
    }

    fn cold(&self) -> Option<Finding> {
        let (errors, failed) = (Counter::ColdErrors, Counter::ColdDroppedFailed);
        let (all, new) = (self.look.counter(errors), self.grows(errors).saturating_add(self.grows(failed)));
        (all > 0).then(|| Finding {
            kind: "cold tier",
            what: format!(
                "the cold tier had {all} errors since this host's start, {new} just now; {} blocks were not written",
                self.look.counter(failed)
            ),
            why: "Its disk is full, slow or gone. Serving goes on; blocks that leave the region are lost.",
            next: "cenote doctor --region … --cold PLACE".replace('…', self.region),
        })
    }

    fn quotas(&self) -> Vec<Finding> {
        let at =
            |row: &&NamespaceInfo| row.quota_bytes > 0 && row.used_bytes as f64 > AT_QUOTA * row.quota_bytes as f64;
        let rows = self.look.info.namespaces.iter().filter(at);
        rows.map(|row| Finding {
            kind: "quota",
            what: format!(
                "{} takes {} of its quota of {}",
                named(row),
                ByteSize(row.used_bytes),
                ByteSize(row.quota_bytes)
            ),
            why: "It evicts its own blocks to publish others. A block that finds no room is not shared.",
            next: format!("{} {} SIZE", self.pool("quota"), row.id.0),
        })
        .collect()
    }

    /// A region without free chunks evicts. That is a fault only if one of several models pushes the
    /// others out.
    fn full(&self) -> Option<Finding> {
        let info = &self.look.info;
        let evicted = self.grows(Counter::Evicted);
        let recent = self.recent(Event::Evicted).map_or(0, |(_, last)| last.time_us);
        let evicts = evicted > 0 || recent >= self.now_us.saturating_sub(60 * 1_000_000);
        if self.look.chunks_free() > 0 || info.num_chunks == 0 || !evicts {
            return None;
        }
        let new: u64 = info.namespaces.iter().map(|row| row.new_bytes).sum();
        let others = |row: &NamespaceInfo| info.namespaces.iter().any(|other| other.id != row.id && other.blocks > 0);
        let flood = info.namespaces.iter().filter(|row| others(row)).max_by_key(|row| row.new_bytes);
        let flood = flood.filter(|row| row.new_bytes as f64 > FLOOD * new as f64);
        Some(match flood {
            Some(row) => Finding {
                kind: "flood",
                what: format!(
                    "the region is full, and {} published {} of the {} of the last minute; it holds {} of {}",
                    named(row),
                    ByteSize(row.new_bytes),
                    ByteSize(new),
                    ByteSize(row.bytes),
                    ByteSize(info.bytes_ready)
                ),
                why: "It pushes the blocks of other models and tenants out, which then miss. `pool quota --keep` \
                      keeps room for those.",
                next: format!("{} {} SIZE", self.pool("quota"), row.id.0),
            },
            None => Finding {
                kind: "full",
                what: format!(
                    "the region is full: all {} chunks are taken, and blocks are evicted{}",
                    info.num_chunks,
                    self.returned()
                ),
                why: "Its users want more than it holds. Blocks leave before they are used again.",
                next: "a larger region, a cold tier (--cold PLACE), or a quota: docs/guides/operate.md".to_owned(),
            },
        })
    }

    /// What a larger region would have had, if the region knows.
    fn returned(&self) -> String {
        let returns = self.look.returns.as_ref().filter(|returns| returns.removed > 0);
        returns.map_or_else(String::new, |returns| {
            format!("; of the last {} that left, {} were stored again", returns.removed, returns.returned)
        })
    }

    fn low_hits(&self) -> Option<Finding> {
        let rates = self.rates?;
        let share = rates.hit_share().filter(|share| *share < LOW_HITS)?;
        if rates.delta(Counter::Lookups) < LOOKUPS_MIN {
            return None;
        }
        Some(Finding {
            kind: "low hits",
            what: format!(
                "{:.1} % of {} blocks were found in the last {:.0} s",
                100.0 * share,
                rates.delta(Counter::Lookups),
                rates.seconds
            ),
            why: "Prompts are new, their blocks were evicted, or engines differ in a fact that names blocks.",
            next: self.pool("diff"),
        })
    }

    fn locks(&self) -> Option<Finding> {
        let timeouts = self.grows(Counter::LockTimeouts);
        (timeouts > 0).then(|| Finding {
            kind: "locks",
            what: format!("{timeouts} waits for locks timed out just now"),
            why: "A worker with four of them in ten seconds leaves the region and computes.",
            next: self.pool("check"),
        })
    }

    fn restoring(&self) -> Option<Finding> {
        self.look.is_restoring.then(|| Finding {
            kind: "restoring",
            what: "a snapshot is being restored into the region".to_owned(),
            why: "What is not there yet is computed.",
            next: self.pool("info"),
        })
    }
}

/// A model by the words that tell it from others of the same name.
fn named(row: &NamespaceInfo) -> String {
    let fingerprint: String = row.fingerprint.chars().take(6).collect();
    format!("model {} (row {}, {fingerprint})", row.label.escape_debug(), row.id.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::NamespaceId;
    use cenote_pool::{HostInfo, PoolInfo, WorkerInfo};

    const NOW: u64 = 1_700_000_000_000_000;

    fn model(row: u16, bytes: u64, new_bytes: u64, quota_bytes: u64) -> NamespaceInfo {
        NamespaceInfo {
            id: NamespaceId(row),
            label: "demo".to_owned(),
            fingerprint: format!("{row:064}"),
            block_bytes: 1 << 10,
            block_tokens: 16,
            num_layers: 2,
            blocks: bytes >> 10,
            bytes,
            new_bytes,
            used_bytes: bytes,
            quota_bytes,
            kept_bytes: 0,
            workers: 1,
        }
    }

    fn record(event: Event, seconds_ago: u64, times: u64) -> Record {
        Record {
            time_us: NOW - seconds_ago * 1_000_000,
            host: 0,
            slot: None,
            pid: 1,
            life: 1,
            sequence: 1,
            event,
            operands: [0; 2],
            times,
            what: "what happened".to_owned(),
        }
    }

    fn full() -> Look {
        let namespaces = vec![model(1, 100 << 10, 2 << 10, 0), model(2, 900 << 10, 98 << 10, 0)];
        let info = PoolInfo { num_chunks: 8, chunks_taken: 8, namespaces, ..PoolInfo::default() };
        Look { info, ..Look::default() }
    }

    fn kinds(look: &Look, rates: Option<&Rates>, records: &[Record], stopped: &[Stopped]) -> Vec<&'static str> {
        let sight = Sight { region: "shm:kv", look, rates, records, now_us: NOW, stopped };
        let found = sight.findings();
        for finding in &found {
            assert!(!finding.what.is_empty() && finding.why.ends_with('.') && !finding.next.is_empty(), "{finding:?}");
        }
        found.into_iter().map(|finding| finding.kind).collect()
    }

    fn counted(counts: &[(Counter, u64)]) -> Look {
        let counters = counts.iter().map(|(counter, count)| (counter.name(), *count)).collect();
        let info = PoolInfo { counters, ..full().info };
        Look { info, ..full() }
    }

    #[test]
    fn a_sound_region_has_no_findings() {
        let look = Look { info: PoolInfo { num_chunks: 8, ..PoolInfo::default() }, ..Look::default() };
        assert!(
            kinds(&look, None, &[record(Event::Attached, 1, 1), record(Event::ReadDamaged, 700, 9)], &[]).is_empty()
        );
        assert!(kinds(&full(), None, &[], &[]).is_empty(), "full, but nothing is evicted");
    }

    #[test]
    fn a_flooding_tenant_is_named_by_its_row() {
        let evicting = [record(Event::Evicted, 5, 40)];
        assert_eq!(kinds(&full(), None, &evicting, &[]), ["flood"]);
        let look = full();
        let sight = Sight { region: "shm:kv", look: &look, rates: None, records: &evicting, now_us: NOW, stopped: &[] };
        let next = &sight.findings()[0].next;
        assert_eq!(next, "cenote pool quota --region shm:kv 2 SIZE");
        let mut alone = full();
        alone.info.namespaces.remove(0);
        assert_eq!(kinds(&alone, None, &evicting, &[]), ["full"], "one model floods nobody else");
    }

    #[test]
    fn faults_of_a_running_region_are_found_by_the_interval() {
        let before = counted(&[]);
        let now = counted(&[
            (Counter::Lookups, 1000),
            (Counter::Found, 40),
            (Counter::ReadsDamaged, 3),
            (Counter::ColdErrors, 2),
            (Counter::LockTimeouts, 1),
        ]);
        let rates = Rates::between(&before, &now, 2.0).expect("one region");
        assert_eq!(kinds(&now, Some(&rates), &[], &[]), ["damage", "cold tier", "low hits", "locks"]);
    }

    #[test]
    fn the_dead_the_silent_and_the_damaged_are_found_without_an_interval() {
        let host = |host, marked_dead| HostInfo {
            host,
            incarnation: 1,
            alive: Some(false),
            silent_ms: Some(12_000),
            marked_dead,
            workers: 1,
            chunks: 2,
        };
        let worker = WorkerInfo { host: 0, slot: 1, pid: 77, name: "decode".to_owned(), joined: 0, alive: Some(false) };
        let mut look = full();
        look.info.namespaces = vec![model(1, 990, 0, 1000)];
        (look.info.hosts, look.info.workers) = (vec![host(1, true), host(2, false)], vec![worker]);
        let stopped = [Stopped { pid: 78, name: "prefill".to_owned() }];
        let found = kinds(&look, None, &[record(Event::ReadDamaged, 300, 66)], &stopped);
        assert_eq!(found, ["damage", "host dead", "host silent", "worker dead", "worker silent", "quota"]);
    }
}
