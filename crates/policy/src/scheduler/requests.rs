//! The scheduler's requests, by id and by slot. Queues hold slots, so that a step needs no search.

use super::NewRequest;
use crate::kv_blocks::BlockId;
use cenote_base::RequestId;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// Index of a request's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// The queue that a request is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Waiting,
    Running,
    /// Its block table names blocks of the swap space.
    Swapped,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub id: RequestId,
    pub num_tokens: u32,
    pub num_computed_tokens: u32,
    pub priority: u32,
    pub deadline_ns: u64,
    pub place: Place,
    /// Spilled blocks first, then those of L1.
    pub block_table: Vec<BlockId>,
    /// Number of spilled blocks.
    pub num_spilled: u32,
    /// Whether the step that made it running has not been reported as computed. Its blocks may be
    /// without content until then.
    pub is_fresh: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    by_id: BTreeMap<RequestId, Slot>,
    states: Vec<Option<State>>,
    vacant: Vec<Slot>,
}

impl Requests {
    /// # Panics
    /// The id is in use.
    pub fn insert(&mut self, new: NewRequest) -> Slot {
        let state = State {
            id: new.id,
            num_tokens: new.num_tokens,
            num_computed_tokens: 0,
            priority: new.priority,
            deadline_ns: new.deadline_ns,
            place: Place::Waiting,
            block_table: Vec::new(),
            num_spilled: 0,
            is_fresh: false,
        };
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.states.push(None);
            Slot(u32::try_from(self.states.len() - 1).expect("fewer than four billion requests"))
        });
        assert!(self.by_id.insert(new.id, slot).is_none(), "request {} is already known", new.id);
        self.states[slot.0 as usize] = Some(state);
        slot
    }

    pub fn remove(&mut self, id: RequestId) -> Option<(Slot, State)> {
        let slot = self.by_id.remove(&id)?;
        self.vacant.push(slot);
        Some((slot, self.states[slot.0 as usize].take().expect("named slots are taken")))
    }

    /// # Panics
    /// The request is unknown.
    pub fn slot(&self, id: RequestId) -> Slot {
        *self.by_id.get(&id).unwrap_or_else(|| panic!("request {id} is unknown to the scheduler"))
    }

    /// Iterates in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = &State> {
        self.by_id.values().map(|&slot| &self[slot])
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }
}

impl Index<Slot> for Requests {
    type Output = State;

    fn index(&self, slot: Slot) -> &State {
        self.states[slot.0 as usize].as_ref().expect("queues hold slots of known requests")
    }
}

impl IndexMut<Slot> for Requests {
    fn index_mut(&mut self, slot: Slot) -> &mut State {
        self.states[slot.0 as usize].as_mut().expect("queues hold slots of known requests")
    }
}
