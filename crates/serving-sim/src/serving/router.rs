//! The router before the instances: to the one with the fewest requests, of the rack that is likely to
//! have the prompt.
//!
//! One rack: the instance with the fewest unfinished requests, the first of several. Several racks: the
//! router remembers to which rack it last sent each block, and takes that of the longest such part of a
//! prompt, unless that rack has, for each of its instances, a quarter more requests than the least busy one,
//! and one more. The rack may have evicted the blocks since, or not have published them yet.

use super::Setup;
use crate::workload::BlockNumber;

/// No rack.
const NONE: u16 = u16::MAX;

pub(super) struct Router {
    /// Unfinished requests by instance.
    unfinished: Vec<u32>,
    racks: Vec<Rack>,
    /// Hosts of a rack.
    hosts: usize,
    /// The rack that was last sent each block; empty with one rack.
    sent: Vec<u16>,
}

#[derive(Default)]
struct Rack {
    instances: Vec<u32>,
    unfinished: u64,
}

impl Rack {
    const fn size(&self) -> u64 {
        self.instances.len() as u64
    }

    /// Requests for each instance, times the instances of both: compares without fractions.
    const fn load_times(&self, other: &Self) -> u64 {
        self.unfinished * other.size()
    }
}

impl Router {
    pub(super) fn new(setup: &Setup, num_blocks: usize) -> Self {
        let racks = setup.racks();
        assert!(racks < usize::from(NONE), "{racks} racks have no number");
        let mut router = Self {
            unfinished: vec![0; setup.instances as usize],
            racks: (0..racks).map(|_| Rack::default()).collect(),
            hosts: setup.hosts.map_or(1, |hosts| hosts.count),
            sent: if racks > 1 { vec![NONE; num_blocks] } else { Vec::new() },
        };
        for instance in 0..setup.instances {
            let rack = router.rack_of(instance as usize);
            router.racks[rack].instances.push(instance);
        }
        router
    }

    /// The rack of an instance.
    pub(super) fn rack_of(&self, instance: usize) -> usize {
        instance / self.hosts % self.racks.len()
    }

    /// Sends a prompt of these blocks to an instance.
    pub(super) fn route(&mut self, blocks: &[BlockNumber]) -> usize {
        let rack = if self.racks.len() == 1 { 0 } else { self.choose(blocks) };
        let fewest = self.racks[rack].instances.iter().min_by_key(|&&instance| self.unfinished[instance as usize]);
        let at = fewest.map_or(0, |&instance| instance as usize);
        self.unfinished[at] += 1;
        self.racks[rack].unfinished += 1;
        if !self.sent.is_empty() {
            blocks.iter().for_each(|&block| self.sent[block as usize] = rack as u16);
        }
        at
    }

    fn choose(&self, blocks: &[BlockNumber]) -> usize {
        let with_instances = self.racks.iter().enumerate().filter(|(_, rack)| !rack.instances.is_empty());
        let (idle, least) =
            with_instances.min_by(|(_, a), (_, b)| a.load_times(b).cmp(&b.load_times(a))).expect("there are instances");
        // The block furthest from the beginning that was sent anywhere.
        let Some(block) = blocks.iter().rev().find(|&&block| self.sent[block as usize] != NONE) else { return idle };
        let known = usize::from(self.sent[*block as usize]);
        let rack = &self.racks[known];
        // unfinished / instances <= 5/4 of the least, and 1
        let most = 5 * least.load_times(rack) + 4 * rack.size() * least.size();
        if 4 * rack.load_times(least) <= most { known } else { idle }
    }

    /// A request of an instance ended.
    pub(super) fn finished(&mut self, instance: usize) {
        self.unfinished[instance] -= 1;
        let rack = self.rack_of(instance);
        self.racks[rack].unfinished -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hosts;
    use crate::hardware::h200::H200;
    use crate::model::ModelShape;
    use crate::provision::Engine;

    fn router(instances: u32, racks: usize) -> Router {
        let shape = *ModelShape::named("llama-8b").expect("a preset");
        let alone = Engine { gpu: H200, gpus: 1, shape }.alone(8, 64).expect("it fits");
        let hosts = Hosts { racks, ..Hosts::new(2) };
        Router::new(&Setup { instances, hosts: Some(hosts), ..alone }, 100)
    }

    #[test]
    fn one_rack_takes_the_instance_with_the_fewest_requests() {
        let mut router = router(3, 1);
        let first: Vec<usize> = (0..4).map(|_| router.route(&[])).collect();
        assert_eq!(first, [0, 1, 2, 0]);
        router.finished(1);
        assert_eq!(router.route(&[]), 1);
    }

    #[test]
    fn a_prompt_follows_its_beginning_until_its_rack_is_busier() {
        let mut router = router(4, 2);
        assert_eq!((0..4).map(|at| router.rack_of(at)).collect::<Vec<_>>(), [0, 0, 1, 1]);
        let racks: Vec<usize> = (10..20)
            .map(|end| {
                let at = router.route(&[1, 2, end]);
                router.rack_of(at)
            })
            .collect();
        // The other rack is idle: a request for each instance is the most that the first may be ahead.
        assert_eq!(racks[..4], [0, 0, 0, 1], "{racks:?}");
        // The longest part that any rack was sent decides.
        let mut other = super::tests::router(4, 2);
        let far = other.route(&[1, 2, 3]);
        let near = other.route(&[7]);
        assert_ne!(other.rack_of(far), other.rack_of(near));
        let last = other.route(&[1, 2, 7]);
        assert_eq!(other.rack_of(last), other.rack_of(near));
    }

    #[test]
    fn a_smaller_rack_gets_fewer_requests() {
        let mut router = router(3, 2);
        let racks = (1..=30).map(|block| {
            let at = router.route(&[block]);
            router.rack_of(at)
        });
        assert_eq!(racks.filter(|rack| *rack == 1).count(), 10);
    }
}
