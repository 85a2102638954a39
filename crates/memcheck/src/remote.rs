//! A reader on a host without the region's memory: the product's own (`cenote_reach::Reader`), over what a
//! network card sees of the model.
//!
//! In most of its runs the region has one host, and the card reads through that host's caches. That is
//! what peers do: a card's reads snoop the caches of its host, and UCX's emulated reads are loads of the
//! host's processor. `cenote pool share` refuses regions of several hosts that flush lines, because such a
//! card would see its own host's stale copies. In the other runs there are several hosts, and the card
//! reads the device alone, as one on the fabric would: it sees what was written back, and nothing else.
//! So the reader may rely on the order in which an owner writes lines back, and on no more.

use crate::namespaces::{STAYING, model_label};
use crate::oracle::Checker;
use crate::run::OPERATIONS_MAX;
use crate::scenario::{Actor, SimPool, names_of};
use crate::shape::{SEED, Shape};
use cenote_base::Clock;
use cenote_base::prng::Prng;
use cenote_memmodel::{Process, Rates, View, World};
use cenote_pool::{AttachOptions, Hit, HostsLock, Namespace, Pool, Superblock};
use cenote_reach::{Fetched, Landing, Pace, Piece, ReadError, Reader, Remote};
use cenote_store::Readable;
use std::sync::Arc;

const LINE: u64 = 64;
/// Most lookups of a reader.
const ROUNDS: u64 = 600;
/// Nanoseconds of one delay within a batch; one is drawn. A slot is emptied and filled again within the
/// longer ones.
const DELAYS_NS: [u64; 5] = [500, 5_000, 20_000, 80_000, 400_000];
/// First and longest pause after a lookup that finds nothing: the others may sleep for long.
const PAUSE_MIN_NS: u64 = 1_000;
const PAUSE_MAX_NS: u64 = 10_000_000;
/// The label of a namespace in which no process publishes.
const UNUSED: &str = "absent";

/// The namespaces that a remote reader asks for, by label, as its own region has them.
#[derive(Clone)]
pub struct Local(Arc<[(String, Namespace)]>);

impl Local {
    /// Namespaces of a further region, which no other process of the run has.
    pub fn new(shape: &Shape) -> Self {
        // Without TraCT's manager, which is a process of its own.
        let shape = Shape { chunks: 1, namespaces: 256, hosts_lock: HostsLock::Bakery, ..shape.clone() };
        let world = World::new(0, 1, shape.region_bytes(), Rates::of_seed(0, false), OPERATIONS_MAX);
        let process = world.scene_setter(0);
        Superblock::format(&process.fabric(), &shape.config()).expect("the shape fits");
        let options = AttachOptions { keys: shape.keys(), ..AttachOptions::named("reader") };
        let pool: SimPool = Pool::attach_on(process.fabric(), &options, |_, spec| Ok(process.host_memory(spec)))
            .expect("a fresh region attaches");
        let named = |label: String| {
            let namespace = pool.namespace(&shape.record(&label)).expect("the table has room");
            (label, namespace)
        };
        let labels = ["sim", UNUSED].map(str::to_owned).into_iter().chain((0..STAYING).map(model_label));
        Self(labels.map(named).collect())
    }
}

/// A network card: it reads the lines of a batch in any order, and others work meanwhile.
struct Card {
    process: Process,
    view: View,
    region_bytes: u64,
    prng: Prng,
    landed: [Vec<u8>; 2],
}

impl Remote for Card {
    fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    fn read(&mut self, pieces: &[Piece], landing: Landing, _: cenote_base::Deadline) -> Result<(), ReadError> {
        let (mut parts, mut bytes) = (Vec::new(), 0);
        for (number, piece) in pieces.iter().enumerate() {
            let end = piece.at + piece.length as u64;
            let lines = (piece.at / LINE..end.div_ceil(LINE)).map(|line| line * LINE);
            parts.extend(lines.map(|line| (line, number, bytes)));
            bytes += piece.length;
        }
        // Lines of one piece come together, or between those of others.
        if self.prng.below(2) == 0 {
            let keys: Vec<u64> = pieces.iter().map(|_| self.prng.next_u64()).collect();
            parts.sort_by_key(|&(_, piece, _)| keys[piece]);
        } else {
            parts.sort_by_cached_key(|_| self.prng.next_u64());
        }
        // Of two batches, one is not held up.
        let delays = if self.prng.below(2) == 0 { 0 } else { 1 + self.prng.below(3) };
        let held_up: Vec<u64> = (0..delays).map(|_| self.prng.below(parts.len() as u64)).collect();
        let landed = &mut self.landed[landing as usize];
        landed.clear();
        landed.resize(bytes, 0);
        for (number, (line, piece, start)) in (0..).zip(parts) {
            let piece = pieces[piece];
            if held_up.contains(&number) {
                self.process.sleep(DELAYS_NS[self.prng.below(DELAYS_NS.len() as u64) as usize]);
            }
            let words = self.process.line_from_outside(self.view, line).map(u64::to_le_bytes).concat();
            let (from, to) = (line.max(piece.at), (line + LINE).min(piece.at + piece.length as u64));
            let place = start + (from - piece.at) as usize;
            let part = &words[(from - line) as usize..(to - line) as usize];
            landed[place..place + part.len()].copy_from_slice(part);
        }
        Ok(())
    }

    fn landed(&mut self, landing: Landing) -> &mut [u8] {
        &mut self.landed[landing as usize]
    }
}

/// What became of blocks that a reader found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    Whole,
    /// In a codec that this reader has not: its payload is not read.
    Unreadable,
    Missed,
}

impl Actor {
    fn reader(&self, prng: Prng) -> Option<Reader<Card>> {
        let view = if self.shape.hosts == 1 { View::Through(0) } else { View::Device };
        let process = self.process.clone();
        let card = Card { process, view, region_bytes: self.shape.region_bytes(), prng, landed: Default::default() };
        let deadline = pace().until;
        match Reader::open(card, &SEED, self.shape.keys().as_ref(), deadline) {
            Ok(reader) => Some(reader),
            Err(error) => {
                self.oracle.report(Checker::Liveness, format!("a remote reader cannot open the region: {error}"));
                None
            }
        }
    }

    /// The program of a remote reader: finds and fetches while the processes of the region work.
    pub fn read_remotely(&self, seed: u64, local: &Local, others: &[usize]) {
        let mut prng = Prng::at(seed, 100 + self.process.number() as u64);
        let Some(mut reader) = self.reader(Prng::new(prng.next_u64())) else { return };
        let mut pause_ns = PAUSE_MIN_NS;
        for _ in 0..ROUNDS {
            if !others.iter().any(|&other| self.process.lives(other)) {
                return;
            }
            let universe = self.shape.universe as u64;
            let (first, count) = (prng.below(universe), [1, 1, 2, universe][prng.below(4) as usize]);
            let numbers: Vec<usize> = (0..count).map(|step| ((first + step) % universe) as usize).collect();
            let label = if prng.below(4) > 0 { 0 } else { prng.below(local.0.len() as u64) as usize };
            let came = self.fetch_remotely(&mut reader, &numbers, &local.0[label]);
            pause_ns = if came.is_empty() { (2 * pause_ns).min(PAUSE_MAX_NS) } else { PAUSE_MIN_NS };
            if !self.process.sleep(pause_ns) {
                return;
            }
        }
    }

    /// Finds the leading ones of these blocks and fetches them. A block that comes whole must have been
    /// published with these bytes and names, in this namespace.
    fn fetch_remotely(
        &self,
        reader: &mut Reader<Card>,
        numbers: &[usize],
        named: &(String, Namespace),
    ) -> Vec<(usize, Came)> {
        let hits = self.find_remotely(reader, numbers);
        self.fetch_found(reader, numbers, &hits, named)
    }

    fn find_remotely(&self, reader: &mut Reader<Card>, numbers: &[usize]) -> Vec<Hit> {
        let hashes: Vec<_> = numbers.iter().map(|&number| self.shape.hash(number)).collect();
        reader.find(&hashes, pace()).unwrap_or_else(|error| {
            self.oracle.report(Checker::Liveness, format!("a remote reader failed: {error}"));
            Vec::new()
        })
    }

    fn fetch_found(
        &self,
        reader: &mut Reader<Card>,
        numbers: &[usize],
        hits: &[Hit],
        named: &(String, Namespace),
    ) -> Vec<(usize, Came)> {
        let number_of = |hit: &Hit| {
            let number = numbers.iter().find(|&&number| self.shape.hash(number) == hit.hash);
            *number.expect("it was asked for")
        };
        let mut came = Vec::new();
        let outcome = reader.fetch((&named.1, &Readable::default()), hits, pace(), |hit, fetched| {
            let number = number_of(hit);
            let one = match fetched {
                Fetched::Whole { names, payload } => {
                    self.expect_published(hit, number, named, names == names_of(number), payload);
                    Came::Whole
                }
                Fetched::Unreadable => Came::Unreadable,
                Fetched::Stale | Fetched::Wrong => Came::Missed,
            };
            came.push((number, one));
        });
        if let Err(error) = outcome {
            self.oracle.report(Checker::Liveness, format!("a remote reader failed: {error}"));
        }
        let whole = came.iter().filter(|(_, one)| *one != Came::Missed).count() as u64;
        let mut notes = self.oracle.notes();
        notes.remote_whole += whole;
        notes.remote_stale += came.len() as u64 - whole;
        drop(notes);
        came
    }

    /// Changes each of these blocks after a remote reader has found it, while no process works: a bit of the
    /// payload, or the descriptor and the names, as an owner does that fills the slot anew. The reader must
    /// refuse them.
    pub fn expect_changes_seen(&self, seed: u64, local: &Local, numbers: impl IntoIterator<Item = usize>) {
        let mut prng = Prng::at(seed, 14);
        let Some(mut reader) = self.reader(Prng::new(prng.next_u64())) else { return };
        for number in numbers {
            let hits = self.find_remotely(&mut reader, &[number]);
            let Some(hit) = hits.first() else { continue };
            let (at, length) = reader.outline().payload(hit);
            let outline = reader.outline();
            match outline.names(hit.block).filter(|_| prng.below(2) == 0) {
                None => self.process.damage(at + 8 * prng.below(length / 8), 1 << prng.below(64)),
                Some(names) => {
                    self.process.damage(outline.descriptor(hit.block), 1 << 16);
                    self.process.damage(names, 1);
                }
            }
            for named in local.0.iter() {
                let came = self.fetch_found(&mut reader, &[number], &hits, named);
                if came.iter().any(|(_, one)| *one == Came::Whole) {
                    let fact = format!("a remote reader took block {number}, which had changed: {hit:?}");
                    self.oracle.report(Checker::Blocks, fact);
                }
            }
        }
    }

    fn expect_published(
        &self,
        hit: &Hit,
        number: usize,
        (label, namespace): &(String, Namespace),
        is_named: bool,
        payload: &[u8],
    ) {
        if *payload != *self.shape.payload(number) {
            let fact = format!("a remote reader took wrong bytes for block {number}: {hit:?}");
            self.oracle.report(Checker::Blocks, fact);
        }
        if !self.oracle.notes().published.contains(&(namespace.fingerprint(), number)) {
            let fact =
                format!("a remote reader took block {number} for one of `{label}`, where no process published it");
            self.oracle.report(Checker::Blocks, fact);
        }
        // A host that was declared dead may write names over later ones: no checksum is of them.
        if !is_named {
            let fact = format!("a remote reader took other names for those of block {number}: {hit:?}");
            self.oracle.report_unless_lossy(Checker::Blocks, fact);
        }
    }

    /// Checks, while no process works, that a remote reader finds the blocks that the hosts found.
    pub fn expect_remotely(&self, seed: u64, local: &Local, numbers: impl IntoIterator<Item = usize>) {
        let Some(mut reader) = self.reader(Prng::at(seed, 13)) else { return };
        for number in numbers {
            let mut came = local.0.iter().flat_map(|named| self.fetch_remotely(&mut reader, &[number], named));
            if !came.any(|(_, one)| one != Came::Missed) {
                let fact = format!("a remote reader misses block {number}, which the hosts find");
                self.oracle.report_unless_lossy(Checker::Index, fact);
            }
        }
    }
}

/// No time passes for a reader of the model: its host's clock is none of the region's.
fn pace() -> Pace {
    Pace::by(Clock::stopped().after(std::time::Duration::from_secs(1)))
}
