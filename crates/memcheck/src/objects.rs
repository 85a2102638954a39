//! Operations on objects.

use crate::oracle::Checker;
use crate::scenario::{Actor, SimPool};
use crate::shape::SEED;
use cenote_base::ChainHasher;
use cenote_base::prng::Prng;
use std::sync::LazyLock;

/// Keys of two objects and of named memory. Their probes begin at one row or at the row before it,
/// so that they pass each other's rows.
pub static KEYS: LazyLock<[String; 3]> = LazyLock::new(|| {
    let hasher = ChainHasher::new(&SEED, &[0xff; 32]);
    let home = |key: &String| {
        let tokens: Vec<u32> = key.bytes().map(u32::from).collect();
        hasher.block(None, &tokens).words()[0] % 1024
    };
    let first = "object 0".to_owned();
    let at = |row| (1..).map(|number| format!("object {number}")).find(|key| home(key) == row).expect("endless");
    [first.clone(), at(home(&first) - 1), at(home(&first))]
});

impl Actor {
    pub fn object(&self, pool: &SimPool, key: u8, prng: &mut Prng) {
        let name = KEYS[usize::from(key)].clone();
        let value = prng.next_u64();
        match prng.below(8) {
            0..3 => {
                let write = self.oracle.notes().begin_write(&name, Some(value));
                let put = pool.put_object(&name, &value.to_le_bytes().repeat(12));
                if put.is_ok() && self.process.lives(self.process.number()) {
                    self.oracle.notes().end_write(&name, write);
                }
            }
            3 => {
                let write = self.oracle.notes().begin_write(&name, None);
                if pool.destroy_object(&name).is_ok() && self.process.lives(self.process.number()) {
                    self.oracle.notes().end_write(&name, write);
                }
            }
            _ => self.get_object(pool, &name, false),
        }
    }

    /// Reads an object, which must have the last value put. `strict`: no process writes objects
    /// now.
    pub fn get_object(&self, pool: &SimPool, name: &str, strict: bool) {
        let from = self.oracle.notes().now();
        let Ok(bytes) = pool.get_object(name) else { return };
        let value = bytes.as_ref().and_then(|bytes| bytes.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes));
        if !self.process.lives(self.process.number()) {
            return;
        }
        if bytes != value.map(|value| value.to_le_bytes().repeat(12)) {
            self.oracle.report(Checker::Blocks, format!("{name} has bytes that no process put"));
        } else if !self.oracle.notes().may_be(name, value, from, strict) {
            // A damaged object may be missing if a chunk was lost.
            if value.is_some() || pool.info().chunks_lost == 0 {
                let fact = format!("{name} has value {value:x?}, which is not the last one put");
                self.oracle.report_unless_lossy(Checker::Index, fact);
            }
        }
    }
}
