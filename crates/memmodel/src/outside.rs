//! Reads by a network card, for a reader on a host without the region's memory.

use crate::machine::{LINE, Words};
use crate::world::{Kind, Process};

/// What answers a network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The device alone: a card on the fabric, which no cache of a host answers.
    Device,
    /// The caches of this host, and the device for lines that it does not cache. Cards of a host read so:
    /// their reads snoop its caches, and an emulated read is a load of the host's processor. Stores in a
    /// processor's buffer are not seen.
    Through(usize),
}

impl Process {
    /// Reads the line at this offset, a multiple of 64, as a card does. Other processes may run before
    /// and during the read, so the line may be torn. Zeros after a crash of this process.
    #[must_use]
    pub fn line_from_outside(&self, view: View, at: u64) -> Words {
        let through = match view {
            View::Device => None,
            View::Through(host) => Some(host),
        };
        let Ok(mut state) = self.shared.look(self.number) else { return [0; 8] };
        assert!(at.is_multiple_of(LINE) && at < state.machine.bytes(), "no line at {at:#x}");
        let mut words = state.machine.seen_from_outside(through, at);
        if !state.scripted && state.machine.prng.below(16) == 0 {
            let torn_at = state.machine.prng.below(8) as usize;
            drop(state);
            let Ok(again) = self.shared.step(self.number, Kind::Look) else { return [0; 8] };
            let later = again.machine.seen_from_outside(through, at);
            words[torn_at..].copy_from_slice(&later[torn_at..]);
        }
        words
    }

    /// Flips bits of the word at this offset, a multiple of 8, as failing memory does before any cache
    /// fetches it.
    pub fn damage(&self, at: u64, bits: u64) {
        self.shared.state().machine.damage(at, bits);
    }
}
