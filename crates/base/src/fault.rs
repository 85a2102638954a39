//! Named places in the code at which a test can kill the process, and deliberate mistakes that a
//! test must detect.
//!
//! Cost of a point: one relaxed atomic load while nothing is armed. [`arm`] arms a [`Point`] for
//! the whole process; the command line takes a [`Plan`] from `CENOTE_FAULT=name:count`. The handler
//! runs when the count is reached. The command's handler kills the process with SIGKILL, because
//! the pool must survive that death.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

/// Declares an enum whose variants have names, a list of all, and the conversions.
macro_rules! named {
    ($(#[$about:meta])* $Name:ident, $what:literal: $($(#[$doc:meta])* $Variant:ident = $name:literal,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $Name {
            $($(#[$doc])* $Variant,)*
        }

        impl $Name {
            /// All of them, in the order of their names.
            pub const ALL: &[Self] = &[$(Self::$Variant),*];

            /// Its name, as settings and reports spell it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)*
                }
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $Name {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, UnknownName> {
                let found = Self::ALL.iter().find(|one| one.name() == name);
                found.copied().ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|one| one.name()).collect();
                    UnknownName(format!(concat!("unknown ", $what, " `{}`; known are {}"), name, names.join(", ")))
                })
            }
        }
    };
}

/// A name that no fault point or mistake has. The text lists the known ones.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnknownName(String);

named! {
    /// A place in the code at which a test may kill the process. Each tells the state at that
    /// instant.
    Point, "fault point":
    /// A dead host's chunk has its new owner; its blocks are not taken over yet.
    ChunkAdopted = "chunk.adopted",
    /// A chunk has its owner and size class; its slots are not listed yet.
    ChunkClaimed = "chunk.claimed",
    /// A holder of the chunk lock has looked at a chunk whose line it will write.
    ChunkFound = "chunk.found",
    /// A chunk that another host offered has its new owner; its blocks are not taken over yet.
    ChunkMoved = "chunk.moved",
    /// A host has named the chunk whose line it is about to write, and was not declared dead.
    ChunkNamed = "chunk.named",
    /// A chunk is offered to all hosts, and its line says so.
    ChunkOffered = "chunk.offered",
    /// The engine has saved one block of a request.
    EngineBlockSaved = "engine.block_saved",
    /// A prefill engine has placed its hold and has not answered yet.
    EngineHandOver = "engine.hand_over",
    /// The engine has scheduled a step and has not computed it yet.
    EngineStep = "engine.step",
    /// An event has its number and is not in the log yet.
    EventNumbered = "event.numbered",
    /// An event is in the log.
    EventTold = "event.told",
    /// A victim's slot is free again.
    EvictFreed = "evict.freed",
    /// Victims are marked as evicting and still in the index.
    EvictMarked = "evict.marked",
    /// A victim has left the index; its slot is not free yet.
    EvictUnlinked = "evict.unlinked",
    /// All tables of a new region are zero; the superblock is not written yet.
    FormatCleared = "format.cleared",
    /// A new region has its superblock.
    FormatWritten = "format.written",
    /// A host file has its space and no header.
    HostAreaAllocated = "host-area.allocated",
    /// A host file is empty.
    HostAreaEmptied = "host-area.emptied",
    /// One word of a host file's header is written, the magic number last.
    HostAreaHeader = "host-area.header",
    /// An orphaned host file is about to be deleted.
    HostAreaSweeping = "host-area.sweeping",
    /// A host is declared dead; its chunks are not adopted yet.
    HostMarked = "host.marked",
    /// A host begins a new life and has dropped its stale lines.
    HostReborn = "host.reborn",
    /// An insertion has raised overflow counts; its entry is not written yet.
    IndexCounted = "index.counted",
    /// An entry is gone; its overflow counts are not lowered yet.
    IndexUnlinked = "index.unlinked",
    /// A host's first worker has rebuilt the heap and has not said so yet.
    JoinRebuilt = "join.rebuilt",
    /// A worker has its line; dead workers are not recovered yet.
    JoinRegistered = "join.registered",
    /// A load has copied one layer into an engine's pages.
    LoadLayer = "load.layer",
    /// A lock between hosts is held; its holder has changed nothing yet.
    LockEntered = "lock.entered",
    /// A user lock is allocated; its caller does not know it yet.
    LockGiven = "lock.given",
    /// A lock's ticket is withdrawn in this host's memory and not flushed yet.
    LockLeft = "lock.left",
    /// A user lock is freed, and its caller still holds it.
    LockTakenBack = "lock.taken_back",
    /// Memory is allocated; its caller does not know it yet.
    MemoryAllocated = "memory.allocated",
    /// An arena counts a piece that is not taken yet.
    MemoryCounted = "memory.counted",
    /// A slot is described as memory and not in use yet.
    MemoryDescribed = "memory.described",
    /// A piece of memory is free; its slot does not know it yet.
    MemoryFreed = "memory.freed",
    /// A row shows memory that does not bear a name yet.
    MemoryNamed = "memory.named",
    /// A namespace row has its name and no record yet.
    NamespaceNamed = "namespace.named",
    /// A namespace row is free again; its next namespace is not written yet.
    NamespaceReclaimed = "namespace.reclaimed",
    /// An object has its row; the object that it replaces is not freed yet.
    ObjectEntered = "object.entered",
    /// A row shows an object; the row that it replaces is not cleared yet.
    ObjectNamed = "object.named",
    /// An object has its bytes and descriptor and no row yet.
    ObjectWritten = "object.written",
    /// A payload is copied and not fenced; later ones of the same call are not copied yet.
    PublishCopied = "publish.copied",
    /// A block is in the index; the policy does not know it yet.
    PublishIndexed = "publish.indexed",
    /// Payloads and names of a call's blocks are written; their descriptors are not.
    PublishPayload = "publish.payload",
    /// A block's descriptor is ready; the block is not in the index yet, and descriptors of later
    /// blocks of the call are not written.
    PublishReady = "publish.ready",
    /// A publisher holds the slots of a call and has written nothing.
    PublishReserved = "publish.reserved",
    /// A reader has copied a payload and not confirmed the generation yet.
    ReadCopied = "read.copied",
    /// A reader is about to drop stale lines of a slot's earlier use.
    ReadUnseen = "read.unseen",
    /// A dead worker's reservations are free; its line is still there.
    RecoverFreed = "recover.freed",
    /// A dead worker's reservations are found and not freed yet.
    RecoverScanned = "recover.scanned",
    /// Blocks to be repacked are retracted; their empty chunks are not released yet.
    RepackEmptied = "repack.emptied",
    /// Repacked blocks have new slots and are not written yet.
    RepackReserved = "repack.reserved",
    /// A save has copied a layer of its blocks out of an engine; passed once for each page.
    SavePage = "save.page",
    /// A slot is reserved and charged; the heap's lock is still held, for later slots of the call.
    SlotTaken = "slot.taken",
    /// A swapped-out block has a slot and no bytes.
    SwapReserved = "swap.reserved",
    /// A swapped-out block's bytes are in its slot.
    SwapWritten = "swap.written",
    /// A holder of the table lock is about to name what it will change.
    TableFound = "table.found",
    /// A holder of the table lock has named what it is about to change, and was not declared dead.
    TableNamed = "table.named",
    /// A torture child is in the middle of an increment and holds a user lock.
    TortureIncrement = "torture.increment",
    /// A host has stored its use of a namespace and not fenced it yet.
    UsageStored = "usage.stored",
    /// A user lock is held.
    UserLocked = "user.locked",
}

named! {
    /// A deliberate mistake, compiled in with the feature `sabotage`. A test that does not detect
    /// an enabled mistake is too weak.
    Mistake, "mistake":
    /// The only live host takes a lock without showing its ticket.
    BakeryAloneUnsaid = "bakery.alone-unsaid",
    /// A host does not wait for another that draws its ticket.
    BakeryChoosingIgnored = "bakery.choosing-ignored",
    /// No event logs a removed block.
    EventRemovedUntold = "event.removed-untold",
    /// No event logs a stored block.
    EventStoredUntold = "event.stored-untold",
    /// Eviction does not look at pins.
    EvictScanSkipped = "evict.scan-skipped",
    /// An insertion does not raise overflow counts.
    IndexOverflowUncounted = "index.overflow-uncounted",
    /// The next holder of a lock does not repair what a dead holder left.
    LockRepairSkipped = "lock.repair-skipped",
    /// A namespace row is reclaimed although a worker has it open.
    NamespaceTakenInUse = "namespace.taken-in-use",
    /// A pin does not confirm that its block is still there.
    PinRecheckSkipped = "pin.recheck-skipped",
    /// A reused slot keeps its generation.
    PublishGenerationKept = "publish.generation-kept",
    /// The descriptor is ready before the payload is written back.
    PublishReadyEarly = "publish.ready-early",
    /// A reader does not compare the checksum.
    ReadChecksumSkipped = "read.checksum-skipped",
    /// A reader does not confirm the generation.
    ReadRecheckSkipped = "read.recheck-skipped",
    /// A reader records that stale lines are dropped before it drops them.
    ReadSeenEarly = "read.seen-early",
    /// Recovery restores a block that was being evicted.
    RecoverEvictingRevived = "recover.evicting-revived",
    /// A remote reader compares neither checksum nor seal.
    RemoteChecksumSkipped = "remote.checksum-skipped",
    /// A remote reader does not compare the namespace.
    RemoteNamespaceSkipped = "remote.namespace-skipped",
    /// A remote reader does not compare the second descriptor.
    RemoteRecheckSkipped = "remote.recheck-skipped",
}

/// When a handler runs, as text `name:count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The point.
    pub point: Point,
    /// The pass of the point, 1 being the first.
    pub pass: u64,
}

impl Plan {
    /// At the first pass of a point.
    #[must_use]
    pub const fn first(point: Point) -> Self {
        Self { point, pass: 1 }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.point, self.pass)
    }
}

impl FromStr for Plan {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let (name, count) = text.split_once(':').unwrap_or((text, "1"));
        let pass = count.parse().ok().filter(|&pass| pass > 0);
        let pass = pass.ok_or_else(|| UnknownName(format!("`{count}` is no count; write `{name}:1` or more")))?;
        Ok(Self { point: name.parse()?, pass })
    }
}

static ARMED: AtomicBool = AtomicBool::new(false);
static PENDING: Mutex<Option<Pending>> = Mutex::new(None);
static OBSERVER: OnceLock<fn(Point)> = OnceLock::new();

struct Pending {
    point: Point,
    passes_left: u64,
    handler: fn(Point),
}

/// Runs `handler` once, at the planned pass.
pub fn arm(plan: Plan, handler: fn(Point)) {
    *PENDING.lock().expect("no fault handler panics") =
        Some(Pending { point: plan.point, passes_left: plan.pass, handler });
    ARMED.store(true, Ordering::Release);
}

/// Calls `observer` at every point from now on, whether armed or not. Simulations use it to decide
/// the effect of a point on the simulated process. Only the first observer is kept.
pub fn observe(observer: fn(Point)) {
    let _ = OBSERVER.set(observer);
    ARMED.store(true, Ordering::Release);
}

/// Whether the code must make this mistake here. Always false in builds without assertions and without
/// the feature `sabotage`.
#[inline]
#[must_use]
pub fn makes(mistake: Mistake) -> bool {
    #[cfg(any(feature = "sabotage", debug_assertions))]
    return sabotage::is_chosen(mistake);
    #[cfg(not(any(feature = "sabotage", debug_assertions)))]
    {
        let _ = mistake;
        false
    }
}

#[cfg(any(feature = "sabotage", debug_assertions))]
pub mod sabotage {
    //! Selects the deliberate mistake of this process.

    use super::Mistake;
    use std::sync::RwLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    static CHOSEN: RwLock<Option<Mistake>> = RwLock::new(None);
    // Read in every call of a hot path, so apart from the lock.
    static ANY: AtomicBool = AtomicBool::new(false);

    /// Selects the mistake to make from now on; `None` makes none.
    pub fn choose(mistake: Option<Mistake>) {
        *CHOSEN.write().expect("no reader panics") = mistake;
        ANY.store(mistake.is_some(), Ordering::Release);
    }

    pub(super) fn is_chosen(mistake: Mistake) -> bool {
        ANY.load(Ordering::Acquire) && *CHOSEN.read().expect("no writer panics") == Some(mistake)
    }
}

/// Disarms the armed point. An observer stays, but is no longer called.
pub fn disarm() {
    ARMED.store(false, Ordering::Release);
    *PENDING.lock().expect("no fault handler panics") = None;
}

/// Marks a point at which a test may kill the process.
#[inline]
pub fn point(point: Point) {
    if ARMED.load(Ordering::Relaxed) {
        reached(point);
    }
}

#[cold]
fn reached(point: Point) {
    if let Some(observer) = OBSERVER.get() {
        return observer(point);
    }
    let mut pending = PENDING.lock().expect("no fault handler panics");
    let Some(armed) = pending.as_mut().filter(|armed| armed.point == point) else { return };
    armed.passes_left -= 1;
    if armed.passes_left == 0 {
        let handler = armed.handler;
        *pending = None;
        ARMED.store(false, Ordering::Release);
        drop(pending);
        handler(point);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    static FIRED: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn a_point_fires_once_at_its_count() {
        let plan = "read.copied:3".parse().expect("a plan");
        arm(plan, |_| {
            FIRED.fetch_add(1, Ordering::Relaxed);
        });
        for passes in 1..=5 {
            point(Point::ReadUnseen);
            point(Point::ReadCopied);
            assert_eq!(FIRED.load(Ordering::Relaxed), u64::from(passes >= 3));
        }
        disarm();
    }

    #[test]
    fn names_are_unique_sorted_and_parse() {
        assert!(Point::ALL.is_sorted_by(|a, b| a.name() < b.name()));
        assert!(Mistake::ALL.is_sorted_by(|a, b| a.name() < b.name()));
        for &point in Point::ALL {
            assert_eq!(point.name().parse::<Point>().expect("it is known"), point);
        }
        let error = "read.copid".parse::<Plan>().expect_err("it is unknown");
        assert!(error.to_string().starts_with("unknown fault point `read.copid`; known are chunk.adopted"), "{error}");
        assert!("read.copied:0".parse::<Plan>().is_err());
    }
}
