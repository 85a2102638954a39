//! Rows of the namespace table: they are reclaimed when no worker has them open and no block is
//! left.

use crate::support::shared::{Shared, attach, region_of_process};
use crate::support::*;
use cenote_base::fault::{Plan, Point};
use cenote_base::testing::ManualTime;
use cenote_base::{Health, HostId};
use cenote_mem::{Fabric, Flush, Offset};
use cenote_pool::{
    AttachOptions, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, PoolError, Publish, ReadOutcome,
};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

const MODEL: &str = "CENOTE_TEST_MODEL";
/// The line with which a worker says that its model is open.
const OPEN: &str = "the model is open";

/// A region in shared memory with few rows, removed after the test.
struct Region(Shared);

impl Region {
    fn new(test: &str, namespaces: u16) -> Self {
        let config = PoolConfig { namespaces, ..small_config(81) };
        Self(Shared::make(&format!("rows-{test}"), 2 << 20, config, Flush::None))
    }

    fn attach(&self) -> TestPool {
        self.0.attach()
    }

    /// A process that opens a model and waits to be killed.
    fn worker(&self, model: u32, fault: Option<Plan>) -> Child {
        let mut command = self.0.process("namespaces::worker", fault);
        command.env(MODEL, model.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().expect("the test starts itself")
    }
}

/// The process that tests start and kill.
#[test]
#[ignore = "the process that other tests start"]
fn worker() {
    let model = std::env::var(MODEL).expect("a model").parse().expect("a number");
    let pool = attach(&region_of_process());
    let _model = open(&pool, model).expect("a row is free");
    writeln!(std::io::stdout(), "{OPEN}").expect("the test reads");
    // Until the test ends.
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn open<F: Fabric>(pool: &Pool<F>, model: u32) -> Result<Namespace, PoolError> {
    let mut fingerprint = [7; 32];
    fingerprint[..4].copy_from_slice(&model.to_le_bytes());
    pool.namespace(&NamespaceRecord {
        fingerprint,
        label: format!("model {model}"),
        block_bytes: BLOCK_BYTES,
        block_tokens: 16,
        num_layers: 2,
    })
}

fn publish_one<F: Fabric>(pool: &Pool<F>, ns: &Namespace, prompt: u32) -> Publish {
    publish(pool, ns, chain(ns, prompt, 1)[0], 0)
}

fn is_whole<F: Fabric>(pool: &Pool<F>, ns: &Namespace, prompt: u32) -> bool {
    let hits = pool.lookup(&chain(ns, prompt, 1));
    hits.first().is_some_and(|hit| read(pool, hit) == ReadOutcome::Whole)
}

fn labels<F: Fabric>(pool: &Pool<F>) -> Vec<String> {
    pool.info().namespaces.into_iter().map(|row| row.label).collect()
}

/// Each upgrade of a model took a row for ever: the 257th found the table full.
#[test]
fn a_region_serves_more_models_than_it_has_rows() {
    let region = Region::new("many", 256);
    let keeper = region.attach();
    let kept = open(&keeper, 0).expect("the first");
    assert_eq!(publish_one(&keeper, &kept, 1), Publish::Published);
    for model in 1..=300 {
        let pool = region.attach();
        let ns = open(&pool, model).expect("an older model's row is free");
        assert_ne!(ns.id, kept.id, "a living worker has that row open");
        assert_eq!(publish_one(&pool, &ns, 2), Publish::Published);
        assert!(is_whole(&pool, &ns, 2) && pool.lookup(&chain(&ns, 1, 1)).is_empty());
        assert_eq!(pool.forget(&ns), 1);
    }
    assert!(is_whole(&keeper, &kept, 1), "its block is still there");
    let info = keeper.info();
    assert_eq!((info.namespaces.len(), info.namespaces[0].workers, info.namespaces[1].workers), (256, 1, 0));
    assert!(keeper.check(true).expect("no lock is held").is_clean());
}

#[test]
fn a_row_that_a_living_worker_has_open_is_not_reclaimed() {
    let region = Region::new("open", 3);
    let keeper = region.attach();
    // It has no block, so only its worker keeps it.
    let kept = open(&keeper, 0).expect("a free table");
    for model in 1..10 {
        let pool = region.attach();
        assert_ne!(open(&pool, model).expect("two rows are free in turn").id, kept.id);
    }
    assert_eq!(publish_one(&keeper, &kept, 1), Publish::Published);
    let again = open(&region.attach(), 0).expect("it is there");
    assert_eq!(again.id, kept.id);
}

#[test]
fn a_row_is_not_reclaimed_before_its_last_block_is_evicted() {
    let region = Region::new("blocks", 1);
    let pool = region.attach();
    let (ns, mut prompts) = (open(&pool, 0).expect("a free table"), 0..5);
    prompts.clone().for_each(|prompt| assert_eq!(publish_one(&pool, &ns, prompt), Publish::Published));
    drop(pool);
    let pool = region.attach();
    for left in (0..5).rev() {
        assert!(matches!(open(&pool, 1), Err(PoolError::TableFull { .. })), "{} blocks are left", left + 1);
        assert_eq!(pool.evict(1), 1);
    }
    let other = open(&pool, 1).expect("the last block is gone");
    assert_eq!(other.id, ns.id);
    assert_eq!(labels(&pool), ["model 1"]);
    assert!(prompts.all(|prompt| pool.lookup(&chain(&ns, prompt, 1)).is_empty()));
}

#[test]
fn a_full_table_names_the_next_step() {
    let region = Region::new("full", 2);
    let pool = region.attach();
    let _both = [0, 1].map(|model| open(&pool, model).expect("a free table"));
    let error = open(&pool, 2).err().expect("both rows are open").to_string();
    for part in ["namespace table is full (2 rows)", "workers have all of them open", "`cenote pool info`", "Stop"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_new_model_has_no_quota_of_an_earlier_one_and_rows_with_quota_go_last() {
    let region = Region::new("quota", 3);
    let ids = {
        let pool = region.attach();
        let all = [0, 1, 2].map(|model| open(&pool, model).expect("a free table"));
        pool.set_quota(all[0].id, BLOCK_BYTES).expect("the row is there");
        all.map(|ns| ns.id)
    };
    let pool = region.attach();
    let taken = [3, 4, 5].map(|model| open(&pool, model).expect("no worker has the earlier ones").id);
    assert_eq!(taken, [ids[1], ids[2], ids[0]]);
    assert!(pool.info().namespaces.iter().all(|row| row.quota_bytes == 0));
    let last = open(&pool, 5).expect("it is open");
    assert!((0..3).all(|prompt| publish_one(&pool, &last, prompt) == Publish::Published));
}

/// A handle outlives the worker that opened it. Its row may be another model's.
#[test]
fn a_handle_of_another_worker_publishes_nothing() {
    let region = Region::new("stale", 1);
    let pool = region.attach();
    let stale = open(&pool, 0).expect("a free table");
    drop(pool);
    let pool = region.attach();
    assert_eq!(publish_one(&pool, &stale, 1), Publish::NoRoom, "this worker has not opened it");
    let ns = open(&pool, 1).expect("no worker has the row");
    assert_eq!(ns.id, stale.id);
    assert_eq!(publish_one(&pool, &ns, 1), Publish::Published);
    assert_eq!(publish_one(&pool, &stale, 1), Publish::NoRoom, "the row is another model's");
    assert!(pool.begin(&NewBlock::new(&stale, chain(&stale, 2, 1)[0], 0)).is_err());
    assert!(pool.swap_out(&stale, &[&[0; BLOCK_BYTES as usize]]).is_err());
    assert_eq!((pool.forget(&stale), is_whole(&pool, &ns, 1)), (0, true));
    assert_eq!(pool.info().namespaces[0].used_bytes, BLOCK_BYTES);
}

#[test]
fn a_killed_workers_row_is_reclaimed() {
    let region = Region::new("killed", 2);
    let pool = region.attach();
    let _kept = open(&pool, 0).expect("a free table");
    let mut child = region.worker(1, None);
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains(OPEN)), "the worker opened its model");
    assert!(matches!(open(&pool, 2), Err(PoolError::TableFull { .. })), "another process has it open");
    child.kill().expect("it can be killed");
    child.wait().expect("it ran");
    open(&pool, 2).expect("its worker is dead");
    assert_eq!(labels(&pool), ["model 0", "model 2"]);
}

#[test]
fn a_death_while_a_row_is_reclaimed_leaves_a_free_row() {
    let region = Region::new("death", 2);
    let pool = region.attach();
    let kept = open(&pool, 0).expect("a free table");
    open(&region.attach(), 1).expect("a free row");
    for point in [Point::NamespaceReclaimed, Point::NamespaceNamed] {
        let status = region.worker(2, Some(Plan::first(point))).wait().expect("it ran");
        assert_eq!(status.signal(), Some(9), "{point} was never reached");
        pool.tick();
        assert_eq!(labels(&pool), ["model 0"], "{point}");
        // The next death finds a taken row again.
        open(&region.attach(), 1).expect("the row is free");
        assert_eq!(labels(&pool), ["model 0", "model 1"], "{point}");
    }
    assert_eq!(publish_one(&pool, &kept, 1), Publish::Published);
    assert!(pool.check(true).expect("no lock is held").is_clean());
}

#[test]
fn a_row_that_another_host_has_open_is_not_reclaimed() {
    let (fabric, [first, second]) = two_hosts(&PoolConfig { namespaces: 2, ..small_config(82) });
    let (kept, theirs) = (open(&first, 0).expect("a free table"), open(&second, 1).expect("a free row"));
    assert!(matches!(open(&first, 2), Err(PoolError::TableFull { .. })));
    assert_eq!(publish_one(&second, &theirs, 1), Publish::Published);
    drop(second);
    assert!(matches!(open(&first, 2), Err(PoolError::TableFull { .. })), "its block is left");
    let second = attach_host(&fabric, 1);
    assert_eq!(second.evict(10), 1);
    let ns = open(&first, 2).expect("no worker has it open, and its block is gone");
    assert_eq!(ns.id, theirs.id);
    assert_eq!(open(&second, 2).expect("it is there").id, ns.id);
    assert_eq!(publish_one(&second, &theirs, 3), Publish::NoRoom, "the handle of the earlier worker");
    assert!(publish_one(&first, &kept, 1) == Publish::Published && is_whole(&second, &kept, 1));
}

/// Its workers may have written before they noticed.
#[test]
fn a_dead_hosts_row_is_reclaimed_and_its_return_withdraws_what_it_wrote() {
    let (_fabric, [first, second]) = two_hosts(&PoolConfig { namespaces: 2, ..small_config(83) });
    let theirs = open(&second, 1).expect("a free table");
    let both = open(&second, 0).expect("a free row");
    assert!(matches!(open(&first, 2), Err(PoolError::TableFull { .. })));
    assert_eq!(open(&first, 0).expect("it is there").id, both.id);
    // A chunk of its own: a host that is held dead takes none.
    assert_eq!(publish_one(&second, &both, 9), Publish::Published);
    first.fence_host(HostId(1)).expect("it attached");
    let ns = open(&first, 2).expect("its host is dead");
    assert_eq!(ns.id, theirs.id);
    // The other host lives, and does not know yet.
    assert_eq!(publish_one(&second, &theirs, 1), Publish::Published);
    assert_eq!(publish_one(&second, &both, 1), Publish::Published);
    second.tick();
    assert_eq!(publish_one(&second, &theirs, 2), Publish::NoRoom);
    assert!(!is_whole(&first, &theirs, 1) && is_whole(&first, &both, 1));
    assert_eq!(publish_one(&second, &both, 2), Publish::Published, "a row that it kept");
    assert!(matches!(open(&second, 1), Err(PoolError::TableFull { .. })));
    let row = first.info().namespaces.into_iter().find(|row| row.id == ns.id).expect("it is there");
    assert_eq!((row.label.as_str(), row.blocks, row.used_bytes, row.workers), ("model 2", 0, 0, 1));
    for pool in [&first, &second] {
        let report = pool.check(true).expect("no lock is held");
        assert!(report.is_clean(), "{report:#?}");
    }
}

/// A corrupt line hides which rows its worker has open.
#[test]
fn a_corrupt_line_keeps_all_rows_until_its_worker_repairs_it() {
    let time = ManualTime::start();
    let fabric = without_coherence(2 << 20, &PoolConfig { namespaces: 2, ..small_config(84) });
    let [first, second] = [0, 1].map(|host| {
        let options = AttachOptions { clock: Some(time.clock()), ..private(host) };
        Pool::attach(Arc::clone(&fabric), &options).expect("each host has its slot")
    });
    open(&first, 0).expect("a free table");
    let words = || -> Vec<[u64; 8]> { (0..fabric.len() / 64).map(|line| fabric.load_line(line * 64)).collect() };
    let before = words();
    let _theirs = open(&second, 0).expect("it is there");
    // Its own line, and those of the table lock.
    let bits =
        (0..).zip(words()).filter(|(line, now)| before[*line] == [0; 8] && now[0] == 1 && now[4] > 0 && now[7] > 0);
    let lines: Vec<u64> = bits.map(|(line, _)| line as u64 * 64).collect();
    let [line] = lines[..] else { panic!("one line shows the open row: {lines:?}") };
    fabric.write_word(Offset::new(line), 8);
    assert!(matches!(open(&first, 1), Err(PoolError::TableFull { .. })), "the free row is not given out either");
    assert!(!second.check(false).expect("no lock is held").pending.is_empty());
    second.tick();
    assert!(second.health().is_degraded(), "it has found the line");
    second.tick();
    assert!(second.health().is_degraded(), "its first attempt to repair comes later");
    time.advance(Duration::from_secs(1));
    second.tick();
    assert_eq!(second.health(), Health::Ok);
    open(&first, 1).expect("the line holds again");
}
