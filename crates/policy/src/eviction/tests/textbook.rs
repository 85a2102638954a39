//! The algorithms as their papers print them, one object at a time.

use super::harness::Id;
use crate::eviction::Eviction;
use std::collections::{BTreeMap, HashMap, VecDeque};

pub trait Textbook {
    /// Whether `id` was there; it is afterwards.
    fn access(&mut self, id: Id) -> bool;
}

/// `None`: the policy is our own.
pub fn textbook(eviction: Eviction, capacity: usize) -> Option<Box<dyn Textbook>> {
    match eviction {
        Eviction::Lru => Some(Box::new(LruList::new(capacity))),
        Eviction::Sieve => Some(Box::new(SieveList::new(capacity))),
        Eviction::S3Fifo => Some(Box::new(S3Queues::new(capacity))),
        Eviction::CostAware => None,
    }
}

pub struct LruList {
    capacity: usize,
    clock: u64,
    used: HashMap<Id, u64>,
    order: BTreeMap<u64, Id>,
}

impl LruList {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, clock: 0, used: HashMap::new(), order: BTreeMap::new() }
    }
}

impl Textbook for LruList {
    fn access(&mut self, id: Id) -> bool {
        self.clock += 1;
        let before = self.used.insert(id, self.clock);
        self.order.insert(self.clock, id);
        match before {
            Some(before) => drop(self.order.remove(&before)),
            None if self.used.len() > self.capacity => {
                let (_, oldest) = self.order.pop_first().expect("full");
                self.used.remove(&oldest);
            }
            None => {}
        }
        before.is_some()
    }
}

struct Node {
    id: Id,
    visited: bool,
    newer: Option<usize>,
    older: Option<usize>,
}

/// SIEVE's Algorithm 1: a doubly linked list, inserted at the head, a hand that goes from tail to
/// head.
pub struct SieveList {
    capacity: usize,
    nodes: Vec<Node>,
    free: Vec<usize>,
    at: HashMap<Id, usize>,
    head: Option<usize>,
    tail: Option<usize>,
    hand: Option<usize>,
}

impl SieveList {
    pub fn new(capacity: usize) -> Self {
        let (nodes, free, at) = (Vec::new(), Vec::new(), HashMap::new());
        Self { capacity, nodes, free, at, head: None, tail: None, hand: None }
    }

    fn evict(&mut self) {
        let mut at = self.hand.or(self.tail).expect("full");
        while self.nodes[at].visited {
            self.nodes[at].visited = false;
            at = self.nodes[at].newer.or(self.tail).expect("full");
        }
        let Node { id, newer, older, .. } = self.nodes[at];
        self.hand = newer;
        match newer {
            Some(newer) => self.nodes[newer].older = older,
            None => self.head = older,
        }
        match older {
            Some(older) => self.nodes[older].newer = newer,
            None => self.tail = newer,
        }
        self.at.remove(&id);
        self.free.push(at);
    }
}

impl Textbook for SieveList {
    fn access(&mut self, id: Id) -> bool {
        if let Some(&at) = self.at.get(&id) {
            self.nodes[at].visited = true;
            return true;
        }
        if self.at.len() == self.capacity {
            self.evict();
        }
        let node = Node { id, visited: false, newer: None, older: self.head };
        let at = self.free.pop().unwrap_or(self.nodes.len());
        if at == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[at] = node;
        }
        match self.head {
            Some(head) => self.nodes[head].newer = Some(at),
            None => self.tail = Some(at),
        }
        self.head = Some(at);
        self.at.insert(id, at);
        false
    }
}

/// S3-FIFO's Algorithm 1. As in its authors' simulator, a block that goes from small to main evicts
/// no block of main: what is there in all does not change.
pub struct S3Queues {
    capacity: usize,
    small: VecDeque<Id>,
    main: VecDeque<Id>,
    hits: HashMap<Id, u8>,
    ghost: VecDeque<(Id, u64)>,
    remembered: HashMap<Id, u64>,
    departures: u64,
}

impl S3Queues {
    pub fn new(capacity: usize) -> Self {
        let (small, main, ghost) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { capacity, small, main, hits: HashMap::new(), ghost, remembered: HashMap::new(), departures: 0 }
    }

    fn evict(&mut self) {
        let capacity = self.capacity;
        while self.hits.len() == capacity {
            if self.small.len() >= capacity / 10 {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
    }

    fn evict_small(&mut self) {
        while let Some(id) = self.small.pop_front() {
            if self.hits[&id] > 1 {
                self.hits.insert(id, 0);
                self.main.push_back(id);
                continue;
            }
            self.hits.remove(&id);
            self.departures += 1;
            self.ghost.push_back((id, self.departures));
            self.remembered.insert(id, self.departures);
            if self.ghost.len() > self.capacity - self.capacity / 10 {
                let (oldest, departure) = self.ghost.pop_front().expect("just filled");
                if self.remembered.get(&oldest) == Some(&departure) {
                    self.remembered.remove(&oldest);
                }
            }
            return;
        }
    }

    fn evict_main(&mut self) {
        while let Some(id) = self.main.pop_front() {
            let hits = self.hits.get_mut(&id).expect("in main");
            if *hits == 0 {
                self.hits.remove(&id);
                return;
            }
            *hits -= 1;
            self.main.push_back(id);
        }
    }
}

impl Textbook for S3Queues {
    fn access(&mut self, id: Id) -> bool {
        if let Some(hits) = self.hits.get_mut(&id) {
            *hits = (*hits + 1).min(3);
            return true;
        }
        self.evict();
        if self.remembered.remove(&id).is_some() {
            self.main.push_back(id);
        } else {
            self.small.push_back(id);
        }
        self.hits.insert(id, 0);
        debug_assert_eq!(self.small.len() + self.main.len(), self.hits.len());
        false
    }
}
