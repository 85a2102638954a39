//! The part of the GPU's buffer that saves pass through. Their parts use its places in turn.
//!
//! A part takes the next places although the part that had them before may still be crossing the bus: its
//! gather waits on the device for that part's end. So a save of any size passes through the buffer, and the
//! engine's thread waits for nothing.

use super::lock;
use crate::driver::{Device, DeviceBytes, DeviceError, Event};
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

/// Places for blocks in the GPU's memory.
pub(crate) struct Ring {
    memory: DeviceBytes,
    block_bytes: u64,
    turns: Mutex<Turns<Arc<Event>>>,
}

/// Places that a part uses. The drop ends its turn, so the device must have left them.
pub(crate) struct Places {
    of: Arc<Ring>,
    places: Range<usize>,
    part: Arc<()>,
}

impl Ring {
    pub fn new(device: &Arc<Device>, block_bytes: u64, count: usize) -> Result<Arc<Self>, DeviceError> {
        let memory = device.allocate(count * block_bytes as usize)?;
        Ok(Arc::new(Self { memory, block_bytes, turns: Mutex::new(Turns::of(count)) }))
    }

    /// The next places, and the events behind which the device has left them; `None`: no event tells that of
    /// enough places.
    pub fn take(self: &Arc<Self>, count: usize) -> Option<(Places, Vec<Arc<Event>>)> {
        let part = Arc::new(());
        let (places, before) = lock(&self.turns).take(&part, count)?;
        Some((Places { of: Arc::clone(self), places, part }, before))
    }
}

impl Places {
    /// Addresses of the places.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        self.places.clone().map(|place| self.of.memory.address() + place as u64 * self.of.block_bytes)
    }

    /// Tells the event behind which the device has left the places. It is behind the events that
    /// [`Ring::take`] gave.
    pub fn end_behind(&self, event: Event) {
        lock(&self.of.turns).end_behind(&self.part, Arc::new(event));
    }
}

/// Who uses which places. `E` are events.
struct Turns<E> {
    /// Number of places.
    count: usize,
    /// The place after the last one that was taken.
    next: usize,
    /// The turns of parts that have not ended, in the order of their begin.
    all: Vec<Turn<E>>,
}

struct Turn<E> {
    places: Range<usize>,
    /// Dead after the end of the part.
    part: Weak<()>,
    /// Occurs when the device has left the places. `None`: not queued yet, or the device did not tell.
    end: Option<E>,
}

impl<E: Clone> Turns<E> {
    const fn of(count: usize) -> Self {
        Self { count, next: 0, all: Vec::new() }
    }

    fn take(&mut self, part: &Arc<()>, count: usize) -> Option<(Range<usize>, Vec<E>)> {
        self.all.retain(|turn| turn.part.strong_count() > 0);
        let (places, before) = self.find(count)?;
        self.next = places.end;
        self.all.push(Turn { places: places.clone(), part: Arc::downgrade(part), end: None });
        Some((places, before))
    }

    fn find(&self, count: usize) -> Option<(Range<usize>, Vec<E>)> {
        let mut first = self.next;
        // From here to the end, from the start on, and behind each turn without an end.
        for _ in 0..self.all.len() + 2 {
            let places = if first + count > self.count { 0..count } else { first..first + count };
            let overlaps = |turn: &&Turn<E>| turn.places.start < places.end && places.start < turn.places.end;
            let before: Vec<&Turn<E>> = self.all.iter().filter(overlaps).collect();
            match before.iter().find(|turn| turn.end.is_none()) {
                Some(blocking) => first = blocking.places.end,
                None if places.end > self.count => return None,
                None => return Some((places, before.iter().filter_map(|turn| turn.end.clone()).collect())),
            }
        }
        None
    }

    fn end_behind(&mut self, part: &Arc<()>, event: E) {
        let own = Arc::downgrade(part);
        let Some(at) = self.all.iter().position(|turn| turn.part.ptr_eq(&own)) else { return };
        self.all[at].end = Some(event);
        let places = self.all[at].places.clone();
        // Who waits for this turn has waited for earlier ones of the same places.
        let is_within = |turn: &Turn<E>| places.start <= turn.places.start && turn.places.end <= places.end;
        let mut number = 0..;
        self.all.retain(|turn| number.next().is_some_and(|number| number >= at) || !is_within(turn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places that a part has taken, and what it waits for.
    type Taken = Option<(Range<usize>, Vec<u32>)>;

    fn take(turns: &mut Turns<u32>, count: usize) -> (Arc<()>, Taken) {
        let part = Arc::new(());
        let taken = turns.take(&part, count);
        (part, taken)
    }

    #[test]
    fn a_part_waits_for_those_that_had_its_places() {
        let mut turns = Turns::of(10);
        let parts: Vec<_> = [4, 4, 4, 3]
            .into_iter()
            .zip(1..)
            .map(|(count, event)| {
                let (part, taken) = take(&mut turns, count);
                turns.end_behind(&part, event);
                (part, taken.expect("places"))
            })
            .collect();
        let taken: Vec<_> = parts.iter().map(|(_, taken)| taken.clone()).collect();
        // The third one has the places of the first, and the fourth waits for the second alone.
        assert_eq!(taken, [(0..4, vec![]), (4..8, vec![]), (0..4, vec![1]), (4..7, vec![2])]);
        let (_part, taken) = take(&mut turns, 10);
        assert_eq!(taken, Some((0..10, vec![2, 3, 4])), "the second one has a place that the fourth had not");
    }

    #[test]
    fn ended_parts_are_not_waited_for() {
        let mut turns = Turns::of(4);
        let (first, _) = take(&mut turns, 4);
        turns.end_behind(&first, 1);
        drop(first);
        assert_eq!(take(&mut turns, 4).1, Some((0..4, vec![])));
    }

    #[test]
    fn places_of_a_part_without_an_end_are_passed_over() {
        let mut turns = Turns::of(10);
        let (lost, taken) = take(&mut turns, 3);
        assert_eq!(taken, Some((0..3, vec![])));
        let (part, taken) = take(&mut turns, 6);
        assert_eq!(taken, Some((3..9, vec![])));
        turns.end_behind(&part, 2);
        // Behind the second one is one place, and the first has no end.
        let (_part, taken) = take(&mut turns, 4);
        assert_eq!(taken, Some((3..7, vec![2])));
        assert_eq!(take(&mut turns, 4).1, None, "the third one has no end yet");
        drop(lost);
        assert_eq!(take(&mut turns, 3).1, Some((7..10, vec![2])));
        assert_eq!(take(&mut turns, 3).1, Some((0..3, vec![])));
        assert_eq!(take(&mut turns, 11).1, None);
    }
}
