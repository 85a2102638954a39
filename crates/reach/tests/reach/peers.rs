//! Requests at peers that are slow, dead, or hang.

use crate::support::{Host, Trouble, chain, codec, config, frames, namespace, readable};
use cenote_base::seal::Seal;
use cenote_base::testing::{ManualTime, until};
use cenote_base::{BlockHash, Deadline};
use cenote_mem::Coherent;
use cenote_policy::fetch::{EXPLORED_BYTES, PATIENCE_MIN, Prefill, asking_order};
use cenote_pool::{AttachOptions, NewBlock, Pool, Publish};
use cenote_reach::fake::Lie;
use cenote_reach::{Beside, Count, ReadError, Remote, Settings};
use cenote_store::{Computing, Peers, Promotion, Readable, Wanted};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BLOCKS: usize = 20;

/// Owners, and a reader whose time passes where a test says so.
struct World {
    owners: Arc<Vec<Host>>,
    troubles: Vec<Trouble>,
    local: Host,
    readable: Readable,
    time: &'static ManualTime,
    beside: Arc<Beside<Arc<Coherent>>>,
    connections: Arc<AtomicU64>,
}

impl World {
    fn new(owners: usize) -> Self {
        let owner = |number: usize| Host::new(2 << 20, &config(10 + number as u8, 7, Seal::None));
        let owners: Arc<Vec<Host>> = Arc::new((0..owners).map(owner).collect());
        let troubles: Vec<Trouble> = owners.iter().map(|_| Trouble::default()).collect();
        let local = Host::new(2 << 20, &config(1, 7, Seal::None));
        let time = ManualTime::start();
        let addresses: Vec<String> = (0..owners.len()).map(|number| format!("peer:{}", number + 1)).collect();
        let settings: Settings = format!("{},deadline=1", addresses.join(",")).parse().expect("a setting");
        let connections = Arc::new(AtomicU64::new(0));
        let connect = {
            let (owners, troubles, connections) = (Arc::clone(&owners), troubles.clone(), Arc::clone(&connections));
            move |address: &str, _: Deadline| -> Result<Box<dyn Remote>, ReadError> {
                let number: usize = address.strip_prefix("peer:").unwrap().parse().unwrap();
                let trouble = &troubles[number - 1];
                if trouble.set().is_dead {
                    return Err(ReadError::Gone("no route".to_owned()));
                }
                connections.fetch_add(1, Ordering::SeqCst);
                Ok(Box::new(trouble.peer(&owners[number - 1], 1)))
            }
        };
        let beside = Beside::start(local.pool.clone(), &settings, connect, time.clock());
        let world = Self { owners, troubles, local, readable: Readable::default(), time, beside, connections };
        world.wait_for("remote_peers_good", world.owners.len() as f64);
        world
    }

    fn wait_for(&self, name: &str, value: f64) {
        until(name, || (self.beside.stats()[name] == value).then_some(()));
    }

    fn get(&self, count: Count) -> usize {
        self.beside.counters().get(count) as usize
    }

    fn chain(&self, prompt: u32) -> Vec<BlockHash> {
        chain(&self.local.namespace, prompt, BLOCKS)
    }

    /// The owner publishes the first blocks of a prompt.
    fn publish(&self, owner: usize, prompt: u32, blocks: std::ops::Range<usize>) {
        for (depth, hash) in self.chain(prompt).into_iter().enumerate().skip(blocks.start).take(blocks.len()) {
            assert_eq!(self.owners[owner].publish(hash, depth as u32), Publish::Published);
        }
    }

    fn promote(&self, hashes: &[BlockHash]) -> Option<Promotion> {
        self.promote_or(hashes, &Computing::default())
    }

    /// Promotes what takes less time than computing.
    fn promote_or(&self, hashes: &[BlockHash], computing: &Computing) -> Option<Promotion> {
        self.beside.promote(&self.local.namespace, hashes, &self.readable, Wanted::Leading, computing)
    }

    /// The peer that is asked first.
    fn first(&self, hashes: &[BlockHash]) -> usize {
        let [reader, _] = BlockHash(self.local.pool.superblock().config.uuid).words();
        asking_order(hashes[0].words()[0], reader, self.owners.len()).next().expect("a peer")
    }

    /// Promotes, and waits until that is over. Returns the number of leading blocks here.
    fn bring(&self, hashes: &[BlockHash]) -> usize {
        let promotion = self.promote(hashes).expect("a peer is asked");
        until("the promotion ends", || promotion.is_over().then_some(()));
        self.local.read(hashes)
    }
}

#[test]
fn blocks_of_a_peer_come_here_and_are_shared() {
    let world = World::new(1);
    world.publish(0, 1, 0..15);
    let hashes = world.chain(1);
    assert_eq!(world.local.has(&hashes), 0);
    assert_eq!(world.bring(&hashes), 15);
    assert_eq!((world.get(Count::Sought), world.get(Count::Found), world.get(Count::Hits)), (BLOCKS, 15, 15));
    assert_eq!(world.get(Count::Absent), 5);
    // Names travel, so that routers that follow this region's events know the copies.
    let hit = world.local.pool.peek(&hashes)[0];
    assert_eq!(world.local.pool.describe(&hit).map(|listed| listed.names), Some(crate::support::names(hashes[0])));
    // What is here is not read again.
    let bytes = world.get(Count::ReadBytes);
    assert_eq!(world.bring(&hashes), 15);
    assert_eq!(world.get(Count::ReadBytes), bytes);
}

#[test]
fn what_one_peer_lacks_another_one_is_asked_for() {
    let world = World::new(3);
    for prompt in 1..=6 {
        world.publish((prompt % 3) as usize, prompt, 0..10);
        assert_eq!(world.bring(&world.chain(prompt)), 10, "prompt {prompt}");
    }
    assert_eq!(world.get(Count::Hits), 60);
    // The peers after the one that had the beginning are asked for the rest.
    let hashes = world.chain(7);
    let first = world.first(&hashes);
    world.publish(first, 7, 0..10);
    world.publish((first + 1) % 3, 7, 10..20);
    assert_eq!(world.bring(&hashes), 20);
}

/// Layers with windows and other programs' objects are of use behind a gap.
#[test]
fn all_blocks_are_brought_if_all_are_wanted() {
    let world = World::new(2);
    let hashes = world.chain(1);
    let first = world.first(&hashes);
    world.publish(first, 1, 3..6);
    world.publish(1 - first, 1, 5..9);
    let promote =
        |wanted| world.beside.promote(&world.local.namespace, &hashes, &world.readable, wanted, &Computing::default());
    for (wanted, here, read) in [(Wanted::Leading, 0, 0), (Wanted::All, 6, 6)] {
        let promotion = promote(wanted).expect("a peer is asked");
        until("the promotion ends", || promotion.is_over().then_some(()));
        assert_eq!((world.local.has(&hashes[3..9]), world.get(Count::Hits)), (here, read), "{wanted:?}");
    }
    assert_eq!(world.get(Count::Absent), BLOCKS + BLOCKS - 6);
}

/// A peer that served with another codec filled the region with blocks that this engine found, missed, and
/// could not replace by its own.
#[test]
fn a_block_that_this_engine_cannot_decode_stays_at_its_peer() {
    // Without a codec, and with one of other pages.
    for (readable, heads) in [(Readable::default(), 1), (readable(), 2)] {
        let mut world = World::new(2);
        world.readable = readable;
        let hashes = world.chain(1);
        let first = world.first(&hashes);
        let frames = frames(&codec(heads));
        for (depth, &hash) in (0..).zip(&hashes[..5]) {
            let owner = &world.owners[first];
            let new = NewBlock { encoding: 1, ..NewBlock::new(&owner.namespace, hash, depth) };
            assert_eq!(owner.pool.publish(&new, &[&frames]), Publish::Published);
        }
        let promotion = world.promote(&hashes).expect("a peer is asked");
        until("the promotion ends", || promotion.is_over().then_some(()));
        assert_eq!((world.local.has(&hashes), world.get(Count::Hits), world.get(Count::Unreadable)), (0, 0, 5));
        // The next peer is asked for what this one has in another codec.
        world.publish(1 - first, 1, 0..8);
        assert_eq!(world.bring(&hashes), 8);
        assert_eq!(world.get(Count::Wrong), 0);
    }
    // Frames of this engine's codec are taken as they are.
    let mut world = World::new(1);
    world.readable = readable();
    let (hash, frames) = (world.chain(1)[0], frames(&codec(1)));
    let new = NewBlock { encoding: 1, ..NewBlock::new(&world.owners[0].namespace, hash, 0) };
    assert_eq!(world.owners[0].pool.publish(&new, &[&frames]), Publish::Published);
    let promotion = world.promote(&[hash]).expect("a peer is asked");
    until("the promotion ends", || promotion.is_over().then_some(()));
    assert_eq!((world.local.has(&[hash]), world.get(Count::Hits)), (1, 1));
}

#[test]
fn a_slow_peer_costs_one_deadline_and_then_none() {
    let world = World::new(1);
    world.publish(0, 1, 0..BLOCKS);
    let time = world.time;
    world.troubles[0].set().before = Some(Box::new(move || time.advance(Duration::from_secs(2))));
    let hashes = world.chain(1);
    assert_eq!(world.bring(&hashes), 0);
    world.wait_for("remote_peers_suspect", 1.0);
    until("the blocks are counted", || (world.get(Count::Late) == BLOCKS).then_some(()));
    assert_eq!(world.get(Count::Suspected), 1);
    assert!(world.promote(&hashes).is_none() && !world.beside.may_have(), "nothing waits for a suspect peer");
    assert!(world.beside.trouble().expect("it is in trouble").contains("peer:1"));
    // It is well again, and asked again after a pause.
    world.troubles[0].set().before = None;
    until("the peer is good", || {
        time.advance(Duration::from_millis(100));
        (world.beside.stats()["remote_peers_good"] == 1.0).then_some(())
    });
    assert_eq!(world.beside.trouble(), None);
    assert_eq!(world.bring(&hashes), BLOCKS);
}

/// One deadline of the request stood for the health of each peer that it met.
#[test]
fn a_request_whose_time_was_spent_elsewhere_makes_no_peer_suspect() {
    let world = World::new(2);
    let hashes = world.chain(1);
    let first = world.first(&hashes);
    world.publish(first, 1, 0..10);
    world.publish(1 - first, 1, 10..BLOCKS);
    let time = world.time;
    // Each read is faster than the deadline, and all together are slower.
    for trouble in &world.troubles {
        trouble.set().before = Some(Box::new(move || time.advance(Duration::from_millis(200))));
    }
    let promotion = world.promote(&hashes).expect("a peer is asked");
    until("the promotion ends", || promotion.is_over().then_some(()));
    until("the blocks are counted", || {
        (world.get(Count::Hits) + world.get(Count::Late) + world.get(Count::Absent) >= BLOCKS).then_some(())
    });
    assert!(world.get(Count::Late) > 0 && world.get(Count::Absent) == 0);
    assert_eq!((world.get(Count::Suspected), world.connections.load(Ordering::SeqCst)), (0, 2));
    world.wait_for("remote_peers_good", 2.0);
}

#[test]
fn a_request_whose_time_has_passed_in_a_queue_makes_no_peer_suspect() {
    let world = World::new(1);
    world.publish(0, 1, 0..BLOCKS);
    let (entered, is_in) = channel();
    let (go, wait) = channel::<()>();
    let (time, mut is_first) = (world.time, true);
    world.troubles[0].set().before = Some(Box::new(move || {
        if std::mem::take(&mut is_first) {
            let _ = entered.send(());
            let _ = wait.recv();
        } else {
            time.advance(Duration::from_millis(200));
        }
    }));
    let first = world.promote(&world.chain(2)).expect("a peer is asked");
    is_in.recv().expect("the read begins");
    let second = world.promote(&world.chain(1)).expect("a peer is asked");
    time.advance(Duration::from_millis(900));
    drop(go);
    for promotion in [first, second] {
        until("each request ends", || promotion.is_over().then_some(()));
    }
    until("the blocks are counted", || (world.get(Count::Late) >= BLOCKS).then_some(()));
    assert_eq!((world.get(Count::Suspected), world.connections.load(Ordering::SeqCst)), (0, 1));
    assert_eq!(world.bring(&world.chain(1)), BLOCKS);
}

/// Blocks are read in batches, each of which has a deadline of its own.
#[test]
fn a_long_prompt_stops_between_batches_and_keeps_the_connection() {
    let world = World::new(1);
    let hashes = chain(&world.local.namespace, 1, 300);
    for (depth, &hash) in (0..).zip(&hashes) {
        assert_eq!(world.owners[0].publish(hash, depth), Publish::Published);
    }
    let time = world.time;
    world.troubles[0].set().before = Some(Box::new(move || time.advance(Duration::from_millis(300))));
    let promotion = world.promote(&hashes).expect("a peer is asked");
    until("the promotion ends", || promotion.is_over().then_some(()));
    until("the blocks are counted", || (world.get(Count::Late) > 0).then_some(()));
    assert_eq!((world.get(Count::Suspected), world.connections.load(Ordering::SeqCst)), (0, 1));
    world.troubles[0].set().before = None;
    assert_eq!(world.bring(&hashes), 300);
}

/// Each connection that could be opened set the pause back, so a slow peer cost a deadline every quarter of a
/// second, for ever.
#[test]
fn a_peer_that_opens_and_then_is_slow_is_left_alone_for_longer_each_time() {
    let world = World::new(1);
    let time = world.time;
    let slow = Box::new(move || time.advance(Duration::from_secs(2)));
    let mut pauses = Vec::new();
    for round in 1..=6 {
        world.troubles[0].set().before = Some(slow.clone());
        let promotion = world.promote(&world.chain(round)).expect("a peer is asked");
        until("the promotion ends", || promotion.is_over().then_some(()));
        world.wait_for("remote_peers_suspect", 1.0);
        world.troubles[0].set().before = None;
        let suspect_at = time.clock().now_ns();
        until("the peer is good", || {
            time.advance(Duration::from_millis(50));
            (world.beside.stats()["remote_peers_good"] == 1.0).then_some(())
        });
        pauses.push(time.clock().since(suspect_at));
    }
    // Time passes in steps until the thread has looked, so a pause is at least as long as it should be.
    let least = |round: u32| Duration::from_millis(250) * 2_u32.pow(round);
    assert!((0..6).all(|round| pauses[round as usize] >= least(round)), "{pauses:?}");
}

/// Changes a byte of each payload.
fn wrong_payloads() -> Lie {
    Box::new(|pieces, bytes| {
        let mut at = 0;
        for piece in pieces {
            if piece.length == crate::support::BLOCK_BYTES as usize {
                bytes[at] ^= 1;
            }
            at += piece.length;
        }
    })
}

/// A peer with damaged memory, or one that lies, was asked for each prompt again.
#[test]
fn a_peer_whose_blocks_are_all_wrong_is_suspect() {
    let world = World::new(1);
    for prompt in 1..=4 {
        world.publish(0, prompt, 0..6);
    }
    world.troubles[0].set().lie = Some(wrong_payloads());
    assert_eq!(world.bring(&world.chain(1)), 0);
    assert_eq!((world.get(Count::Wrong), world.get(Count::Suspected)), (6, 0), "it may be chance");
    assert_eq!(world.bring(&world.chain(2)), 0);
    world.wait_for("remote_peers_suspect", 1.0);
    assert!(world.beside.trouble().expect("it is in trouble").contains("in a row"));
    // One that answers as before is suspect at its next block.
    until("the peer is good", || {
        world.time.advance(Duration::from_millis(100));
        (world.beside.stats()["remote_peers_good"] == 1.0).then_some(())
    });
    assert_eq!(world.bring(&world.chain(3)[..1]), 0);
    until("the peer is suspect again", || (world.get(Count::Suspected) == 2).then_some(()));
    // A whole block clears it.
    world.troubles[0].set().lie = None;
    until("the peer is good again", || {
        world.time.advance(Duration::from_millis(100));
        (world.beside.stats()["remote_peers_good"] == 1.0).then_some(())
    });
    assert_eq!(world.bring(&world.chain(4)), 6);
    assert_eq!(world.get(Count::Suspected), 2);
}

/// Eight wrong blocks condemned the next visit, too, which had read none.
#[test]
fn a_visit_is_not_condemned_for_blocks_that_others_read() {
    let world = World::new(1);
    world.publish(0, 1, 0..10);
    world.troubles[0].set().lie = Some(wrong_payloads());
    assert_eq!(world.bring(&world.chain(1)), 0);
    world.wait_for("remote_peers_suspect", 1.0);
    until("the peer is good", || {
        world.time.advance(Duration::from_millis(100));
        (world.beside.stats()["remote_peers_good"] == 1.0).then_some(())
    });
    // The peer has none of its blocks.
    assert_eq!(world.bring(&world.chain(2)), 0);
    assert_eq!((world.get(Count::Wrong), world.get(Count::Suspected)), (10, 1));
    assert_eq!(world.beside.stats()["remote_peers_good"], 1.0);
}

/// Wrong blocks of a region that is gone counted for the one in its place.
#[test]
fn a_region_made_anew_answers_for_its_own_blocks_only() {
    let world = World::new(1);
    world.publish(0, 1, 0..7);
    world.troubles[0].set().lie = Some(wrong_payloads());
    assert_eq!(world.bring(&world.chain(1)), 0);
    assert_eq!((world.get(Count::Wrong), world.get(Count::Suspected)), (7, 0));
    let fabric = Arc::clone(&world.owners[0].fabric);
    cenote_pool::Superblock::format(&fabric, &config(99, 7, Seal::None)).expect("it fits");
    let options = AttachOptions { private: true, ..AttachOptions::named("anew") };
    let pool = Pool::attach(Arc::clone(&fabric), &options).expect("it attaches");
    let namespace = namespace(&pool, 1);
    let anew = Host { fabric, pool, namespace };
    for (depth, hash) in (0..).zip(&world.chain(2)[..7]) {
        assert_eq!(anew.publish(*hash, depth), Publish::Published);
    }
    let connections = world.connections.load(Ordering::SeqCst);
    assert_eq!(world.bring(&world.chain(3)), 0);
    until("the new region is open", || {
        world.time.advance(Duration::from_millis(10));
        let is_open = world.connections.load(Ordering::SeqCst) > connections;
        (is_open && world.beside.stats()["remote_peers_good"] == 1.0).then_some(())
    });
    let suspected = world.get(Count::Suspected);
    assert_eq!(world.bring(&world.chain(2)), 0);
    assert_eq!((world.get(Count::Wrong), world.get(Count::Suspected)), (14, suspected));
}

/// A call of the fabric that does not return keeps its thread, and no request.
#[test]
fn a_peer_that_hangs_costs_one_deadline_and_then_none() {
    let world = World::new(2);
    let hashes = world.chain(1);
    let first = world.first(&hashes);
    let (hangs, release): (_, Receiver<()>) = channel();
    let (entered, is_in) = channel();
    let release = Mutex::new(release);
    world.troubles[first].set().before = Some(Box::new(move || {
        let _ = entered.send(());
        let _ = release.lock().expect("one reader").recv();
    }));
    let promotion = world.promote(&hashes).expect("a peer is asked");
    is_in.recv().expect("the read begins");
    assert!(!promotion.is_over());
    world.time.advance(Duration::from_secs(1));
    until("the request goes on", || promotion.is_over().then_some(()));
    world.wait_for("remote_peers_suspect", 1.0);
    // The other peer serves meanwhile.
    let other = 1 - first;
    for prompt in 2..6 {
        world.publish(other, prompt, 0..5);
        assert_eq!(world.bring(&world.chain(prompt)), 5);
    }
    drop(hangs);
}

#[test]
fn a_dead_peer_costs_misses_and_is_found_again() {
    let world = World::new(2);
    for prompt in 1..=4 {
        world.publish(0, prompt, 0..5);
        world.publish(1, prompt, 0..5);
    }
    world.troubles[0].set().is_dead = true;
    for prompt in 1..=4 {
        assert_eq!(world.bring(&world.chain(prompt)), 5, "the other peer has them");
    }
    world.wait_for("remote_peers_suspect", 1.0);
    let before = world.connections.load(Ordering::SeqCst);
    world.troubles[0].set().is_dead = false;
    until("the peer is good", || {
        world.time.advance(Duration::from_millis(100));
        (world.beside.stats()["remote_peers_good"] == 2.0).then_some(())
    });
    assert!(world.connections.load(Ordering::SeqCst) > before);
}

/// No request finds a peer dead that died while it was idle: its thread looks now and then.
#[test]
fn a_death_without_requests_is_noticed() {
    let world = World::new(1);
    world.troubles[0].set().is_dead = true;
    until("the peer is suspect", || {
        world.time.advance(Duration::from_millis(100));
        (world.beside.stats()["remote_peers_suspect"] == 1.0).then_some(())
    });
    assert!(world.promote(&world.chain(1)).is_none());
    assert_eq!(world.get(Count::Late) + world.get(Count::Failed), 0);
}

/// A thread that ended by a panic left its peer good, and each request waited for it.
#[test]
fn a_peer_whose_thread_has_ended_is_not_asked() {
    let world = World::new(1);
    world.troubles[0].set().before = Some(Box::new(|| panic!("of this test")));
    // No request runs: the thread looks whether the peer is there.
    until("the thread has ended", || {
        world.time.advance(Duration::from_millis(100));
        world.beside.trouble().filter(|trouble| trouble.contains("restart"))
    });
    assert!(world.promote(&world.chain(1)).is_none());
    assert_eq!(world.beside.stats()["remote_peers_suspect"], 1.0);
}

#[test]
fn a_region_made_anew_is_opened_again() {
    let world = World::new(1);
    world.publish(0, 1, 0..5);
    assert_eq!(world.bring(&world.chain(1)), 5);
    let owner = &world.owners[0];
    cenote_pool::Superblock::format(&owner.fabric, &config(99, 7, Seal::None)).expect("it fits");
    assert_eq!(world.bring(&world.chain(2)), 0);
    until("the new region is open", || {
        world.time.advance(Duration::from_millis(10));
        (world.connections.load(Ordering::SeqCst) >= 2 && world.beside.may_have()).then_some(())
    });
}

#[test]
fn more_requests_than_a_queue_has_are_refused() {
    let world = World::new(1);
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    world.troubles[0].set().before = Some(Box::new(move || _ = wait.lock().expect("one reader").recv()));
    let hashes = world.chain(1);
    let promotions: Vec<Option<Promotion>> = (0..80).map(|_| world.promote(&hashes)).collect();
    let refused = promotions.iter().filter(|promotion| promotion.is_none()).count();
    assert!((15..=16).contains(&refused), "{refused} of 80");
    assert_eq!(world.get(Count::Refused), refused * BLOCKS);
    drop(go);
    for promotion in promotions.into_iter().flatten() {
        until("each request ends", || promotion.is_over().then_some(()));
    }
}

#[test]
fn a_full_region_takes_what_it_can() {
    let world = World::new(1);
    world.publish(0, 1, 0..BLOCKS);
    let hashes = world.chain(1);
    world.local.pool.set_quota(world.local.namespace.id, 3 * crate::support::BLOCK_BYTES).expect("no lock is held");
    let promotion = world.promote(&hashes).expect("a peer is asked");
    until("the promotion ends", || promotion.is_over().then_some(()));
    assert!(world.local.has(&hashes) <= 3);
    assert_eq!(world.get(Count::Wrong) + world.get(Count::Stale), 0);
}

#[test]
fn the_end_ends_all_requests() {
    let world = World::new(1);
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    world.troubles[0].set().before = Some(Box::new(move || _ = wait.lock().expect("one reader").recv()));
    let promotion = world.promote(&world.chain(1)).expect("a peer is asked");
    let World { beside, time, .. } = world;
    let ended = std::thread::spawn(move || drop(beside));
    until("the request ends", || promotion.is_over().then_some(()));
    drop(go);
    until("the threads end", || {
        time.advance(Duration::from_millis(100));
        ended.is_finished().then_some(())
    });
}

/// With `--peers`, each missing block was sought, however slow its peer was.
#[test]
fn a_peer_that_is_slower_than_computing_is_asked_no_more() {
    let world = World::new(1);
    let mut prefill = Prefill::default();
    // A block is computed in a microsecond.
    prefill.has_computed(16, 0, 1_000);
    let computing = Computing { prefill, block_tokens: 16, before_tokens: 0 };
    let time = world.time;
    world.troubles[0].set().before = Some(Box::new(move || time.advance(Duration::from_millis(10))));
    (1..=2).for_each(|prompt| world.publish(0, prompt, 0..BLOCKS));
    let bring = |prompt: u32| {
        let Some(promotion) = world.promote_or(&world.chain(prompt), &computing) else { return false };
        until("the promotion ends", || promotion.is_over().then_some(()));
        true
    };
    assert!(bring(1), "nothing is known yet, so it is tried");
    assert!(world.get(Count::Hits) as u64 * world.local.namespace.block_bytes <= EXPLORED_BYTES);
    assert!(!bring(2), "reads take 10 ms each");
    let before = world.get(Count::Declined);
    let asked = (0..2 * PATIENCE_MIN).filter(|_| bring(2)).count();
    assert_eq!(asked, 1, "one trial");
    assert_eq!(world.get(Count::Declined) - before, (2 * PATIENCE_MIN as usize - 1) * BLOCKS);
    // Slower computing makes it worth asking.
    let mut prefill = Prefill::default();
    prefill.has_computed(16, 0, 1_000_000_000);
    let slow = Computing { prefill, ..computing };
    assert!(world.promote_or(&world.chain(3), &slow).is_some());
}
