//! Requirements that every [`Fabric`] and every [`HostLocal`] meets: real memory, the cache-line
//! model and the schedule explorer run the same assertions. Compiled with the feature
//! `conformance`.

#![allow(clippy::missing_panics_doc, reason = "each function panics if its argument does not conform")]

use crate::checksum::checksum;
use crate::fabric::Fabric;
use crate::host::{HeldLock, HostLocal, LockTimeout};
use crate::offset::{LINE, Offset};
use crate::{HostSpec, Word};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

/// Least bytes of a region for [`fabric`]. They must be zero.
pub const REGION_BYTES: u64 = 16 << 10;

/// Shape of host memory for [`host_local`]. All of its words must be zero.
pub const HOST_SPEC: HostSpec = HostSpec { mutexes: 2, words32: 4, words64: 4, slots: 3 };

/// Bytes without a pattern of 64.
fn bytes(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

/// Checks one region through the fabrics of two hosts, or of one host twice. Only `writer` stores.
pub fn fabric(writer: &impl Fabric, reader: &impl Fabric) {
    assert!(writer.len() >= REGION_BYTES && writer.len().is_multiple_of(LINE) && !writer.is_empty());
    assert_eq!((writer.len(), writer.flush()), (reader.len(), reader.flush()));
    lines_are_shared(writer, reader);
    payload_is_shared(writer, reader);
}

fn lines_are_shared(writer: &impl Fabric, reader: &impl Fabric) {
    let words = [1, 2, 3, 4, 5, 6, 7, 8];
    // A writer sees its own stores, and its reader those that are published.
    writer.store_line(64, &words);
    writer.store(Offset::new(128), 7);
    assert_eq!((writer.load_line(64), writer.load(Offset::new(72)), writer.load(Offset::new(128))), (words, 2, 7));
    writer.publish(&[64]);
    reader.refresh(&[0, 64]);
    assert_eq!((reader.load_line(0), reader.load_line(64), reader.load(Offset::new(72))), ([0; 8], words, 2));
    // A word that is dirty in the cache does not overwrite a published line later.
    let tripled = words.map(|word| word * 3);
    writer.publish_line(128, &tripled);
    writer.refresh(&[128]);
    reader.refresh(&[128]);
    assert_eq!((writer.load_line(128), reader.load_line(128)), (tripled, tripled));
    // One word, and several lines with one fence; the lines beside them stay.
    writer.publish_word(Offset::new(192 + 24), 9);
    writer.publish_lines(&[(256, words), (320, tripled)]);
    reader.refresh(&[192, 256, 320]);
    assert_eq!(reader.load_line(192), [0, 0, 0, 9, 0, 0, 0, 0]);
    assert_eq!((reader.load_line(256), reader.load_line(320), reader.load_line(384)), (words, tripled, [0; 8]));
    // A flush without a fence of its own is complete after the next fence.
    writer.store(Offset::new(64), 10);
    writer.publish_unfenced(64);
    writer.fence();
    reader.prefetch(64);
    reader.refresh(&[64]);
    assert_eq!(reader.load(Offset::new(64)), 10);
    writer.publish(&[]);
    reader.refresh(&[]);
}

fn payload_is_shared(writer: &impl Fabric, reader: &impl Fabric) {
    let at = 4096;
    for len in (0..=200).chain([1023, 1024, 4095, 4096, 4097]) {
        let payload = bytes(len, len as u32);
        let sum = writer.write_payload(at, &[&payload], 5);
        writer.publish_payload();
        reader.refresh_payload(at, len as u64);
        let mut back = vec![0; len];
        assert_eq!(reader.read_payload(at, &mut [&mut back], 5), sum, "{len} bytes");
        assert_eq!((back == payload, sum), (true, checksum(&payload, 5)), "{len} bytes");
        assert_eq!(reader.checksum_payload(at, len as u64, 5), sum, "{len} bytes");
        assert_ne!(reader.checksum_payload(at, len as u64, 6), sum, "{len} bytes under another key");
    }
    // Parts end between lines; writer and reader cut differently.
    let payload = bytes(3000, 7);
    let (head, rest) = payload.split_at(640);
    let sum = writer.write_payload(at, &[head, &[], rest], 5);
    writer.publish_payload();
    reader.refresh_payload(at, payload.len() as u64);
    let mut back = vec![0; payload.len()];
    let (left, right) = back.split_at_mut(128);
    assert_eq!(reader.read_payload(at, &mut [left, right], 5), sum);
    assert_eq!((back == payload, sum), (true, checksum(&payload, 5)));
    assert_eq!(reader.load_line(384), [0; 8], "payload stays in its place");
    // Rows of any length from any place, in the order of the call.
    for bytes in [0, 1, 8, 63, 64, 100, 256] {
        let starts = [700, 0, 64, 2743, 700, 1].map(|start| at + start);
        let mut rows = vec![0; starts.len() * bytes];
        reader.copy_rows(&starts, bytes, &mut rows);
        let expected = starts.iter().flat_map(|start| &payload[(start - at) as usize..][..bytes]);
        assert!(expected.eq(&rows), "rows of {bytes} bytes");
    }
}

/// Checks that misaligned offsets and offsets outside the region panic.
pub fn bad_offsets_panic(fabric: &impl Fabric) {
    let end = fabric.len();
    let calls: [(&str, &dyn Fn()); 21] = [
        ("a word after the end", &|| _ = fabric.load(Offset::new(end))),
        ("an unaligned word", &|| fabric.store(Offset::new(4), 0)),
        ("a word at the end of all offsets", &|| _ = fabric.load(Offset::new(u64::MAX - 7))),
        ("an unaligned line", &|| _ = fabric.load_line(8)),
        ("a line outside", &|| fabric.store_line(end, &[0; 8])),
        ("publishing a line outside", &|| fabric.publish(&[0, end])),
        ("publishing half a line", &|| fabric.publish_unfenced(32)),
        ("publishing a whole line outside", &|| fabric.publish_line(end, &[0; 8])),
        ("publishing two halves of lines", &|| fabric.publish_line(32, &[0; 8])),
        ("refreshing a line outside", &|| fabric.refresh(&[1 << 40])),
        ("refreshing a word", &|| fabric.refresh(&[8])),
        ("payload over the end", &|| _ = fabric.write_payload(end - 64, &[&[0; 65]], 0)),
        ("payload at half a line", &|| _ = fabric.read_payload(32, &mut [&mut [0; 8]], 0)),
        ("payload whose end overflows", &|| _ = fabric.checksum_payload(64, u64::MAX, 0)),
        ("refreshing payload outside", &|| fabric.refresh_payload(end, 1)),
        ("refreshing payload at half a line", &|| fabric.refresh_payload(32, 1)),
        ("writing a part after a partial line", &|| _ = fabric.write_payload(0, &[&[0; 8], &[0; 8]], 0)),
        ("reading a part after a partial line", &|| _ = fabric.read_payload(0, &mut [&mut [0; 8], &mut [0; 8]], 0)),
        ("a row over the end", &|| fabric.copy_rows(&[end - 63], 64, &mut [0; 64])),
        ("a row whose end overflows", &|| fabric.copy_rows(&[u64::MAX - 7], 64, &mut [0; 64])),
        ("rows into a buffer of another size", &|| fabric.copy_rows(&[0, 64], 64, &mut [0; 64])),
    ];
    for (name, call) in calls {
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err(), "{name} is accepted");
    }
}

/// Checks the memory of one host through the views of two of its processes.
pub fn host_local<H: HostLocal>(first: &H, second: &H) {
    words_are_shared(first, second);
    locks_exclude(first, second);
    slots_show_the_living(first, second);
    assert!(!first.is_inherited());
    let (then, since_1970) = (first.now(), first.unix_time());
    first.pause(0);
    assert!(second.now() >= then && since_1970 > Duration::ZERO);
    assert!(first.unix_seconds() >= since_1970.as_secs());
}

fn words_are_shared<H: HostLocal>(first: &H, second: &H) {
    assert_eq!((first.words32().len(), first.words64().len()), (4, 4));
    assert_eq!((first.words32()[1].load(Acquire), second.words64()[2].load(Acquire)), (0, 0));
    first.words32()[1].store(3, Release);
    assert_eq!(second.words32()[1].swap(4, Acquire), 3);
    assert_eq!(first.words32()[1].compare_exchange(3, 5, Acquire, Acquire), Err(4));
    assert_eq!(first.words32()[1].compare_exchange(4, 5, Acquire, Acquire), Ok(4));
    assert_eq!(second.words64()[2].fetch_add(7, Release), 0);
    assert_eq!((first.words64()[2].fetch_max(9, Release), second.words64()[2].fetch_min(8, Release)), (7, 9));
    assert_eq!((first.words64()[2].load(Acquire), first.words64()[3].load(Acquire)), (8, 0));
    assert_eq!((first.words32()[1].load(Acquire), first.words32()[2].load(Acquire)), (5, 0));
}

fn locks_exclude<H: HostLocal>(first: &H, second: &H) {
    let held = first.lock(0, Duration::ZERO).expect("the lock is free");
    assert!(!held.abandoned());
    assert!(matches!(second.lock(0, Duration::ZERO), Err(LockTimeout::Passed { index: 0 })), "the lock is held");
    drop(second.lock(1, Duration::ZERO).expect("another lock is free"));
    drop(held);
    second.lock(0, Duration::ZERO).expect("the lock was released").abandon();
    let next = first.lock(0, Duration::ZERO).expect("an abandoned lock is free");
    assert!(next.abandoned(), "the next holder learns that the last one abandoned the lock");
    drop(next);
    assert!(!second.lock(0, Duration::ZERO).expect("the lock was released").abandoned(), "only one holder learns it");
}

fn slots_show_the_living<H: HostLocal>(first: &H, second: &H) {
    assert!(!first.slot_alive(0) && !second.slot_alive(0));
    let claim = first.claim_slot(0).expect("the system allows it").expect("the slot is free");
    assert!(first.slot_alive(0) && second.slot_alive(0) && !second.slot_alive(1));
    assert!(second.claim_slot(0).expect("the system allows it").is_none(), "the slot is claimed");
    let other = second.claim_slot(2).expect("the system allows it").expect("the slot is free");
    drop(claim);
    assert!(!second.slot_alive(0) && first.slot_alive(2));
    assert!(second.claim_slot(0).expect("the system allows it").is_some(), "a released slot is free");
    drop(other);
}
