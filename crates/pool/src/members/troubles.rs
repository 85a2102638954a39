//! What is wrong with a region although its workers go on: for health reports. A tick finds it, so that
//! asking costs no system call.

use super::Member;
use cenote_mem::{Fabric, HostLocal};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a host's death is reported.
const REPORTED: Duration = Duration::from_mins(10);

/// The troubles of the last tick.
#[derive(Default)]
pub struct Troubles(Mutex<State>);

#[derive(Default)]
struct State {
    all: Vec<String>,
    /// When this process noticed the death of a host's life; `None`: it was dead before.
    deaths: BTreeMap<(u64, u64), Option<Duration>>,
    has_looked: bool,
}

impl Troubles {
    pub fn all(&self) -> Vec<String> {
        self.state().all.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Numbers are left out: a text that changes with each tick would be logged with each tick.
    pub fn look_for_troubles(&self) {
        let mut all: Vec<String> = self.lost_name().into_iter().collect();
        if self.blocks.is_in_doubt() {
            all.push(
                "blocks of the region were damaged in the last ten minutes; `cenote pool check` finds all damage"
                    .to_owned(),
            );
        }
        let dead: Vec<(u64, u64)> = self.dead_hosts();
        let now = self.region.area.now();
        let mut state = self.troubles.state();
        // Hosts that were dead at the first look may be so for days.
        let first = !state.has_looked;
        state.has_looked = true;
        let known = std::mem::take(&mut state.deaths);
        let noticed = |death: &(u64, u64)| known.get(death).copied().unwrap_or((!first).then_some(now));
        state.deaths = dead.into_iter().map(|death| (death, noticed(&death))).collect();
        let is_recent = |noticed: &Option<Duration>| noticed.is_some_and(|at| now.saturating_sub(at) < REPORTED);
        let recent = state.deaths.iter().filter(|(_, noticed)| is_recent(noticed));
        all.extend(
            recent.map(|((host, _), _)| format!("host {host} was declared dead; `cenote pool info` shows its chunks")),
        );
        state.all = all;
    }

    fn lost_name(&self) -> Option<String> {
        let file = self.region.fabric.region_file().filter(|file| !file.has_its_name())?;
        let path = file.path.display();
        Some(if file.path.exists() {
            format!("{path} is another file now: no other process can join this region; restart its users")
        } else {
            format!("{path} is gone: no other process can join this region; restart its users")
        })
    }

    /// The hosts whose present life is declared dead.
    fn dead_hosts(&self) -> Vec<(u64, u64)> {
        if self.region.is_coherent() {
            return Vec::new();
        }
        let others = (0..self.region.layout.max_hosts).filter(|&host| host != self.region.host);
        let life = |host| Some((host, self.region.read_host(host)?.incarnation));
        others.filter_map(life).filter(|&(host, life)| self.region.is_dead(host, life)).collect()
    }
}
