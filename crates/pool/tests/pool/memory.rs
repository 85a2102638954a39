//! Memory of users that outlives its maker (TraCT §3.5): on one host, and on two hosts without
//! coherence. The maker is a process of its own, which dies by SIGKILL.

use crate::support::shared::{Shared, attach_host, region_of_process};
use crate::support::*;
use cenote_base::HostId;
use cenote_base::fault::{Plan, Point};
use cenote_base::prng::Prng;
use cenote_base::testing::PATIENCE;
use cenote_mem::{Fabric, Flush, Offset};
use cenote_pool::{AttachOptions, HostPool, Inspector, Maker, PoolConfig, PoolError, Publish};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

const NODES: u64 = 500;

/// Stores words at the start of a piece, around the caches.
fn store(pool: &HostPool, offset: u64, words: &[u64]) {
    for (at, &word) in (offset..).step_by(8).zip(words) {
        pool.fabric().write_word(Offset::new(at), word);
    }
}

fn load(pool: &HostPool, offset: u64) -> [u64; 8] {
    pool.fabric().refresh(&[offset]);
    pool.fabric().load_line(offset)
}

/// The process that the test starts and kills. It builds a list of unnamed nodes. Its root is a
/// named piece with the offset of the first one.
#[test]
#[ignore = "the process that another test starts"]
fn maker() {
    let pool = attach_host(&region_of_process(), 0);
    let root = pool.allocate(64).expect("there is room");
    let mut next = 0;
    for number in (0..NODES).rev() {
        let node = pool.allocate(64 + number % 5 * 64).expect("there is room");
        store(&pool, node, &[next, number]);
        next = node;
    }
    store(&pool, root, &[next, NODES]);
    pool.fabric().fence();
    pool.name_memory("list", root).expect("the table has room");
    // Nothing leads to it.
    pool.allocate(1000).expect("there is room");
    pool.allocate(50_000).expect("there is room");
    std::io::stdout().write_all(b"\n@built\n").expect("the test listens");
    std::io::stdin().read_line(&mut String::new()).expect("the test kills it before");
}

fn build_and_die(region: &Shared) {
    let mut maker: Child = region
        .process("memory::maker", None)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test starts itself");
    let said = BufReader::new(maker.stdout.take().expect("piped"));
    assert!(said.lines().any(|line| line.expect("text") == "@built"), "the maker ended early");
    maker.kill().expect("it lives");
    maker.wait().expect("it ended");
}

/// Earlier, memory without a name was freed with its process, and only its process could free it.
#[test]
fn a_list_outlives_the_process_that_built_it() {
    let flushes = [Flush::None].into_iter().chain(Flush::available().first().copied());
    for flush in flushes {
        let region = Shared::for_flush("list", flush);
        let reader_host = u8::from(flush != Flush::None);
        let reader = region.attach_host(reader_host);
        build_and_die(&region);
        reader.tick();
        if reader_host == 1 {
            // The maker's chunks change hands.
            reader.fence_host(HostId(0)).expect("it attached");
            reader.gc().expect("the locks are free");
        }

        let (root, _) = reader.find_memory("list").expect("a key").expect("it outlives its maker");
        let [mut node, nodes, ..] = load(&reader, root);
        let mut list = Vec::new();
        while node != 0 {
            let [next, number, ..] = load(&reader, node);
            assert_eq!(number, list.len() as u64, "{flush:?}");
            assert_eq!(reader.allocated_bytes(node).expect("a piece begins there"), 64 + number % 5 * 64);
            list.push(node);
            node = next;
        }
        assert_eq!((nodes, list.len() as u64), (NODES, NODES));

        let report = reader.check(true).expect("the locks are free");
        assert!(report.is_clean(), "{report:?}");
        let memory = report.memory_of_users;
        assert_eq!((memory.named_pieces, memory.pieces), (1, NODES + 2), "{flush:?}");
        let [of_dead] = &memory.makers[..] else { panic!("one maker: {memory:?}") };
        assert_eq!((of_dead.maker.host, of_dead.alive, of_dead.pieces), (0, Some(false), NODES + 2));
        assert!(of_dead.bytes > 50_000 + NODES * 64);

        for node in list {
            reader.free(node).expect("any host frees it");
            assert!(reader.free(node).is_err(), "twice");
        }
        let own = reader.allocate(64).expect("there is room");
        assert!(reader.destroy_object("list").expect("a key"));
        let me = reader.info().memory.makers.iter().find(|of| of.alive == Some(true)).expect("this one").maker;
        assert!(matches!(reader.free_memory_of(Some(me), |_| false), Err(PoolError::Config(_))), "it lives");
        let freed = reader.free_memory_of(None, |_| false).expect("the table is free");
        assert_eq!(freed.pieces, 2, "what nothing leads to");
        assert!(freed.bytes >= 51_000);
        let memory = reader.info().memory;
        assert_eq!((memory.pieces, memory.named_pieces), (1, 0), "{memory:?}");
        reader.free(own).expect("it is allocated");
        reader.tick();
        assert_eq!(reader.check(true).expect("the locks are free").memory, 0, "no slot is left");
    }
}

/// Two hosts allocate, free and name at random, and compare with a model: no piece overlaps
/// another, and each keeps its content until it is freed.
#[test]
fn pieces_never_overlap_and_keep_their_content() {
    let region = Shared::for_flush("random", Flush::available().first().copied().unwrap_or(Flush::None));
    let hosts = if region.superblock.flush.is_coherent() { [0, 0] } else { [0, 1] };
    let pools = hosts.map(|host| region.attach_host(host));
    let mut prng = Prng::new(5);
    let mut pieces = BTreeMap::<u64, (u64, u64)>::new();
    let mut refused = 0;
    for step in 0..20_000_u64 {
        let pool = &pools[prng.below(2) as usize];
        let any = pieces.keys().nth(prng.below(pieces.len().max(1) as u64) as usize).copied();
        match any.filter(|_| prng.below(100) < 48) {
            Some(offset) => {
                let (bytes, mark) = pieces.remove(&offset).expect("chosen from it");
                assert_eq!(load(pool, offset)[0], mark, "{offset:#x} at {step}");
                assert_eq!(load(pool, offset + bytes - 64)[7], mark, "{offset:#x} at {step}");
                pool.free(offset).expect("it is allocated");
                assert!(pool.free(offset).is_err(), "{offset:#x} twice");
            }
            None => {
                let most = [64, 200, 2_000, 30_000][prng.below(4) as usize];
                let wanted = 1 + prng.below(most);
                let Ok(offset) = pool.allocate(wanted) else {
                    refused += 1;
                    continue;
                };
                let bytes = pool.allocated_bytes(offset).expect("it was just allocated");
                assert!(bytes >= wanted && (wanted > 1_792 || bytes < wanted + 64), "{bytes} for {wanted}");
                let before = pieces.range(..offset).next_back();
                assert!(before.is_none_or(|(start, (bytes, _))| start + bytes <= offset), "{offset:#x} at {step}");
                assert!(pieces.range(offset..).next().is_none_or(|(&start, _)| offset + bytes <= start), "at {step}");
                store(pool, offset, &[step]);
                store(pool, offset + bytes - 8, &[step]);
                if bytes == 64 {
                    store(pool, offset, &[step]);
                }
                pool.fabric().fence();
                pieces.insert(offset, (bytes, step));
            }
        }
        if step % 1_000 == 0 {
            for pool in &pools {
                pool.tick();
                let report = pool.check(true).expect("the locks are free");
                assert!(report.is_clean(), "{report:?}");
                let sum = pieces.values().map(|(bytes, _)| bytes).sum::<u64>();
                let memory = report.memory_of_users;
                assert_eq!((memory.pieces, memory.bytes), (pieces.len() as u64, sum));
            }
        }
    }
    assert!(refused < 5_000 && pieces.len() > 20, "{refused} refused, {} pieces", pieces.len());
    for &offset in pieces.keys() {
        pools[1].free(offset).expect("it is allocated");
    }
    for pool in &pools {
        pool.tick();
        let report = pool.check(true).expect("the locks are free");
        assert!(report.is_clean() && report.memory == 0, "{report:?}");
    }
}

/// Small pieces share slots: a slot each would take 64 times the space.
#[test]
fn small_pieces_take_lines_and_not_slots() {
    let (_, pool) = anonymous(4 << 20, &small_config(61));
    let pieces: Vec<u64> = (0..5_000).map(|_| pool.allocate(40).expect("there is room")).collect();
    let info = pool.info();
    assert_eq!((info.memory.pieces, info.memory.bytes), (5_000, 5_000 * 64));
    assert!(info.memory_slots * 4096 < 5_000 * 64 * 9 / 8 + 3 * 4096, "{} slots of 4 KiB", info.memory_slots);
    pieces.iter().for_each(|&piece| pool.free(piece).expect("it is allocated"));
    assert_eq!(pool.info().memory_slots, 0);
}

/// Words of an arena that became corrupt lead to no memory and end no process.
#[test]
fn corrupt_words_of_memory_are_found_and_not_believed() {
    let (fabric, pool) = anonymous(4 << 20, &small_config(62));
    let pieces: Vec<u64> = (0..10).map(|_| pool.allocate(64).expect("there is room")).collect();
    let [table, ..] = pieces[..] else { panic!("ten pieces") };
    // Eight lines of words lie before the first data line of a slot of 4 KiB.
    let word = |piece: u64| table - 8 * 64 + piece * 8;
    for wrong in [1, u64::MAX, fabric.load(Offset::new(word(4)))] {
        let right = fabric.load(Offset::new(word(3)));
        fabric.write_word(Offset::new(word(3)), wrong);
        assert!(pool.free(pieces[3]).is_err(), "{wrong:#x}");
        let report = pool.check(true).expect("the locks are free");
        assert_eq!(report.damage.len(), 1, "{report:?}");
        let more = pool.allocate(64).expect("there is room elsewhere");
        assert!(!pieces.contains(&more));
        pool.free(more).expect("it is allocated");
        fabric.write_word(Offset::new(word(3)), right);
    }
    pieces.iter().for_each(|&piece| pool.free(piece).expect("it is allocated"));
    assert!(pool.check(true).expect("the locks are free").is_clean());
    assert_eq!("0.3.17".parse(), Ok(Maker { host: 0, slot: 3, epoch: 17 }));
    assert!("0.3".parse::<Maker>().is_err());
}

/// The only line of the region that `is_it` holds for.
fn line_of<F: Fabric>(fabric: &F, is_it: impl Fn(&[u64; 8]) -> bool) -> u64 {
    let lines: Vec<u64> = (0..fabric.len()).step_by(64).filter(|&at| is_it(&fabric.load_line(at))).collect();
    let [line] = lines[..] else { panic!("one line: {lines:x?}") };
    line
}

/// Writes a line with the check word of its place, in a region of `small_config(identity)`.
fn forge<F: Fabric>(fabric: &F, at: u64, mut words: [u64; 8], identity: u8) {
    let half = u64::from_le_bytes([identity; 8]);
    let mut sum = (half ^ half.rotate_left(17)) ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for word in &words[..7] {
        sum = (sum ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
        sum ^= sum >> 32;
    }
    sum = sum.wrapping_mul(0xd6e8_feb8_6659_fd93);
    words[7] = (sum ^ sum >> 29) | 1;
    fabric.write_line(at, &words);
    fabric.fence();
}

/// Earlier, the name of memory was removed and its memory stayed, with a name that no key leads to.
#[test]
fn a_name_takes_its_memory_with_it_while_its_chunks_line_is_written() {
    let (fabric, [first, second]) = two_hosts(&small_config(65));
    let piece = first.allocate(64).expect("there is room");
    let other = first.allocate(64).expect("there is room");
    first.name_memory("root", piece).expect("the table has room");
    let chunk = line_of(&fabric, |words| matches!(words, [1, 1, slot, 1, 0, 0, 0, _] if *slot >= 64));
    let whole = fabric.load_line(chunk);
    fabric.write_word(Offset::new(chunk + 8), whole[1] + 1);
    let error = second.free(other).expect_err("its slot is not known").to_string();
    assert!(error.contains("corrupt"), "{error}");
    assert!(second.find_memory("root").expect("a key").is_some(), "the row leads to its memory");
    assert!(second.destroy_object("root").expect("a key"));
    fabric.write_word(Offset::new(chunk + 8), whole[1]);
    let memory = second.info().memory;
    assert_eq!((memory.named_pieces, memory.pieces), (0, 1), "{memory:?}");
    second.free(other).expect("it is allocated");
}

/// Earlier, a host that others held dead counted pieces at the same time as they.
#[test]
fn a_host_that_is_declared_dead_frees_and_gives_out_nothing() {
    let (_, [first, second]) = two_hosts(&small_config(69));
    let piece = first.allocate(64).expect("there is room");
    let lock = first.allocate_lock().expect("there are locks");
    second.fence_host(HostId(0)).expect("it attached");
    let refused = [
        first.free(piece).err(),
        first.name_memory("root", piece).err(),
        first.destroy_object("root").err(),
        first.allocate(64).err(),
        first.allocate(8192).err(),
        first.allocate_lock().err(),
        first.free_lock(lock).err(),
    ];
    // It takes no chunk either, for the piece that needs one.
    let is_refusal = |error: &Option<PoolError>| matches!(error, Some(PoolError::DeclaredDead | PoolError::NoRoom(_)));
    assert!(refused.iter().all(is_refusal), "{refused:?}");
    assert_eq!(second.info().memory.pieces, 1);
    first.tick();
    first.free(piece).expect("it has a new life");
    first.free_lock(lock).expect("it is allocated");
}

/// Earlier, callers were told the length that a row says, and stored behind the memory.
#[test]
fn a_row_that_exceeds_its_memory_leads_to_none() {
    let (fabric, pool) = anonymous(4 << 20, &small_config(66));
    let piece = pool.allocate(64).expect("there is room");
    pool.name_memory("root", piece).expect("the table has room");
    let row = line_of(&fabric, |words| words[5] == piece && words[3] == 64);
    let right = fabric.load_line(row);
    for length in [65, 4 << 20, u64::MAX] {
        let mut words = right;
        words[3] = length;
        forge(&fabric, row, words, 66);
        assert_eq!(pool.find_memory("root").expect("a key"), None, "{length:#x}");
    }
    forge(&fabric, row, right, 66);
    assert_eq!(fabric.load_line(row), right, "the check word is the library's");
    assert_eq!(pool.find_memory("root").expect("a key"), Some((piece, 64)));
}

/// Earlier, lines of other slots were allocated.
#[test]
fn a_descriptor_that_exceeds_its_slot_is_no_arena() {
    let (fabric, pool) = anonymous(4 << 20, &small_config(67));
    let piece = pool.allocate(64).expect("there is room");
    let space = pool.space();
    let slot = space.start + (piece - space.start) / 4096 * 4096;
    let descriptor = line_of(&fabric, |words| words[3] == 64 | (slot / 64) << 24);
    let mut words = fabric.load_line(descriptor);
    for (lines, start) in [(128, slot), (64, slot + 4096), (1 << 14, slot), (0, slot)] {
        words[3] = lines | (start / 64) << 24;
        forge(&fabric, descriptor, words, 67);
        let more: Vec<u64> = (0..200).map_while(|_| pool.allocate(64).ok()).collect();
        assert_eq!(more.len(), 200, "other slots have room");
        assert!(more.iter().all(|at| !(slot..slot + 4096).contains(at)), "{lines} lines at {start:#x}");
        assert!(pool.free(piece).is_err(), "{lines} lines at {start:#x}");
        more.into_iter().for_each(|piece| pool.free(piece).expect("it is allocated"));
    }
    words[3] = 64 | (slot / 64) << 24;
    forge(&fabric, descriptor, words, 67);
    pool.free(piece).expect("it is allocated");
    assert!(pool.check(true).expect("the locks are free").is_clean());
}

/// Earlier, the slot was free and its memory was given to others.
#[test]
fn a_slot_with_a_corrupt_word_keeps_its_memory() {
    let (fabric, pool) = anonymous(4 << 20, &small_config(68));
    let small = pool.allocate(64).expect("there is room");
    let before: Vec<u64> = (0..fabric.len()).step_by(8).map(|at| fabric.load(Offset::new(at))).collect();
    let large = pool.allocate(16 << 10).expect("there is room");
    // The words of both slots lie in one area, which ends before the buckets.
    let maker = pool.info().memory.makers[0].maker;
    let of_maker = |word: u64| word >> 13 & 0x7f == 1 && (word >> 32 & 0xff_ffff) as u32 == maker.epoch;
    let words: Vec<u64> = (0..pool.space().start)
        .step_by(8)
        .filter(|&at| of_maker(fabric.load(Offset::new(at))) && fabric.load(Offset::new(at)) >> 56 != 0)
        .collect();
    let [of_small, of_large] = words[..] else { panic!("two words: {words:x?}") };
    assert_ne!(before[of_large as usize / 8], fabric.load(Offset::new(of_large)));
    for word in [of_small, of_large] {
        fabric.write_word(Offset::new(word), fabric.load(Offset::new(word)) ^ 1 << 60);
    }
    pool.tick();
    let report = pool.check(true).expect("the locks are free");
    assert_eq!((report.memory, report.damage.len()), (2, 2), "{report:?}");
    assert!(pool.free(large).is_err() && pool.free(small).is_err(), "their words are corrupt");
    let others: Vec<u64> = std::iter::from_fn(|| pool.allocate(4096).ok()).collect();
    let taken = |at: &u64| (large..large + (16 << 10)).contains(at);
    assert!(!others.iter().any(taken), "memory was given to others");
    pool.gc().expect("the locks are free");
    assert!(pool.check(true).expect("the locks are free").is_clean(), "gc has written the words anew");
    for piece in others.into_iter().chain([small, large]) {
        pool.free(piece).expect("it is allocated");
    }
    assert_eq!(pool.check(true).expect("the locks are free").memory, 0);
}

/// The process that the next test starts: it frees a lock and dies while it holds it.
#[test]
#[ignore = "the process that another test starts"]
fn freer() {
    let pool = attach_host(&region_of_process(), 0);
    let lock = pool.allocate_lock().expect("there are locks");
    let _ = pool.free_lock(lock);
}

/// Earlier, the next user of the lock waited for the dead process, because survivors released locks
/// only while they were allocated.
#[test]
fn a_lock_is_free_after_its_holder_died_at_freeing_it() {
    let Some(flush) = Flush::available().first().copied() else {
        return cenote_base::testing::skip("this processor has no flush instruction");
    };
    let region = Shared::for_flush("freer", flush);
    let (survivor, other) = (region.attach_host(0), region.attach_host(1));
    let death = Plan::first(Point::LockTakenBack);
    let mut freer = region.process("memory::freer", Some(death));
    let died = freer.stdout(Stdio::null()).status().expect("the test starts itself");
    assert!(!died.success(), "it was killed");
    survivor.tick();
    let lock = other.allocate_lock().expect("there are locks");
    drop(other.lock_user(lock, PATIENCE).expect("the dead hold nothing"));
    drop(survivor.lock_user(lock, PATIENCE).expect("it is free"));
}

/// Earlier, there were six locks, and allocating one needed memory of the region.
#[test]
fn a_thousand_locks_are_allocated_in_a_full_region() {
    let (fabric, pool) = anonymous(2 << 20, &small_config(63));
    while pool.allocate(64 << 10).is_ok() {}
    while pool.allocate(4096).is_ok() {}
    assert!(matches!(pool.put_object("key", b"value"), Err(PoolError::NoRoom(_))));
    let locks: Vec<u16> = std::iter::from_fn(|| pool.allocate_lock().ok()).collect();
    assert_eq!(locks.len(), 1024);
    assert!(matches!(pool.allocate_lock(), Err(PoolError::TableFull { .. })));
    // Free locks are taken without a wait, and a freed one is refused without a wait.
    let soon = Duration::from_millis(10);
    let held: Vec<_> = locks.iter().map(|&lock| pool.lock_user(lock, soon).expect("it is free")).collect();
    assert!(held.iter().all(|lock| !lock.abandoned()));
    assert!(matches!(pool.free_lock(locks[700]), Err(PoolError::Lock { .. })), "it is held");
    drop(held);
    for &lock in &locks {
        pool.free_lock(lock).expect("it is free");
        assert!(matches!(pool.free_lock(lock), Err(PoolError::Config(_))), "twice");
        assert!(matches!(pool.lock_user(lock, soon), Err(PoolError::Config(_))), "it is freed");
    }
    assert_eq!(pool.allocate_lock().ok(), locks.first().copied(), "it is used again");
    assert_eq!(pool.info().locks_given, 1);
    assert!(pool.free_lock(0).is_err() && pool.lock_user(0, soon).is_ok(), "it needs no allocation");
    let inspector = Inspector::open(&fabric, &AttachOptions { private: true, ..AttachOptions::named("") });
    assert_eq!(inspector.expect("it is a region").info().locks_given, 1);
}

/// Earlier, a get looked through all rows, and a full table refused new values of its keys.
#[test]
fn a_full_table_of_objects_takes_new_values_of_its_keys() {
    let config = PoolConfig { chunk_bytes: 64 << 10, ..small_config(64) };
    let (_, pool) = anonymous(8 << 20, &config);
    let key = |number: u64| format!("object {number}");
    let put = |number: u64, value: u64| pool.put_object(&key(number), &value.to_le_bytes());
    let entered = (0..).take_while(|&number| put(number, number).is_ok()).count() as u64;
    assert_eq!(entered, 1023, "one row stays free");
    let error = put(entered, 0).expect_err("the table is full");
    assert!(matches!(error, PoolError::TableFull { .. }) && error.to_string().contains("destroy an object"), "{error}");
    let mut prng = Prng::new(9);
    let mut values: Vec<Option<u64>> = (0..entered).map(Some).collect();
    for value in 0..3_000 {
        let number = prng.below(entered);
        if prng.below(3) == 0 {
            let existed = pool.destroy_object(&key(number)).expect("a key");
            assert_eq!(existed, values[number as usize].take().is_some());
        } else {
            put(number, value).expect("each key has a row");
            values[number as usize] = Some(value);
        }
    }
    for (number, value) in (0..).zip(&values) {
        let found = pool.get_object(&key(number)).expect("a key");
        assert_eq!(found, value.map(|value| value.to_le_bytes().to_vec()), "{number}");
    }
    assert_eq!(pool.object_keys().len(), values.iter().flatten().count());
    let report = pool.check(true).expect("the locks are free");
    assert!(report.is_clean() && report.objects == values.iter().flatten().count() as u64, "{report:?}");
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    assert_eq!(publish(&pool, &ns, chain(&ns, 1, 1)[0], 0), Publish::Published);
}
