//! Fabrics over mapped memory, for each flush instruction of the machine.

use cenote_mem::{
    Fabric, Flush, Flushed, MapError, MapOptions, Mapped, Mapping, Offset, ReadMapping, ReadOnly, RegionSource,
    conformance,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

const MIB: u64 = 1 << 20;

/// A name in shared memory, removed after the test.
struct Shm(RegionSource);

impl Shm {
    fn new(test: &str, flush: Flush) -> Self {
        Self(RegionSource::Shm(format!("cenote-test-{test}-{flush}-{}", std::process::id())))
    }
    fn create(&self, len: u64, flush: Flush) -> Mapped {
        fabric(Mapping::create(&self.0, len, 0o600, &MapOptions::default()), flush)
    }
    fn open(&self, flush: Flush) -> Mapped {
        fabric(Mapping::open(&self.0, &MapOptions::default()), flush)
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        let _ = Mapping::remove(&self.0);
    }
}

fn fabric(mapping: Result<Mapping, MapError>, flush: Flush) -> Mapped {
    Mapped::new(mapping.expect("mapped"), flush).expect("an instruction that is there")
}

fn anon(len: u64, flush: Flush) -> Mapped {
    fabric(Mapping::create(&RegionSource::Anon, len, 0o600, &MapOptions::default()), flush)
}

/// Every flush instruction of this machine, and none.
fn all() -> Vec<Flush> {
    let mut all = vec![Flush::None];
    all.extend(Flush::available());
    all
}

fn bytes(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

#[test]
fn mapped_fabrics_conform() {
    for flush in all() {
        let name = Shm::new("conforms", flush);
        conformance::fabric(&name.create(conformance::REGION_BYTES, flush), &name.open(flush));
        conformance::bad_offsets_panic(&name.open(flush));
        let writer = Arc::new(anon(conformance::REGION_BYTES, flush));
        conformance::fabric(&writer, &Arc::clone(&writer));
    }
}

#[test]
fn a_read_only_fabric_conforms_as_a_reader() {
    for flush in all() {
        let name = Shm::new("read-conforms", flush);
        let writer = name.create(conformance::REGION_BYTES, flush);
        let reader = ReadOnly::new(ReadMapping::open(&name.0).expect("it may be read"), flush).expect("it is there");
        conformance::fabric(&writer, &reader);
    }
}

#[test]
fn payload_overwrites_nothing_after_its_end() {
    for flush in all() {
        let fabric = anon(MIB, flush);
        for len in (0_usize..=200).chain([1023, 4095, 4097, 16_383, 16_384, 16_385, 65_536, 100_001]) {
            let room = len.next_multiple_of(64) + 64;
            fabric.copy_plain_in(64, &vec![0xee; room]);
            let sum = fabric.write_payload(64, &[&bytes(len, len as u32)], 5);
            fabric.publish_payload();
            fabric.refresh_payload(64, room as u64);
            assert_eq!(fabric.checksum_payload(64, len as u64, 5), sum, "{flush}, {len} bytes");
            let mut around = vec![0; room];
            fabric.copy_plain_out(64, &mut around);
            assert!(around[len..].iter().all(|byte| *byte == 0xee), "{flush}, {len} bytes: wrote after the end");
            assert_eq!(fabric.load_line(0), [0; 8]);
        }
    }
}

/// Large reads write around the cache if the destination's alignment allows it. Another thread must
/// find every byte of them.
#[test]
fn large_reads_arrive_at_any_alignment() {
    for flush in all() {
        let fabric = anon(4 * MIB, flush);
        let payload = bytes(2_100_001, 3);
        let sum = fabric.write_payload(64, &[&payload], 9);
        fabric.publish_payload();
        fabric.refresh_payload(64, payload.len() as u64);
        for off in [0, 1, 8, 16, 32, 48] {
            let mut memory = vec![0; payload.len() + 128];
            let start = memory.as_ptr().addr().wrapping_neg() % 64 + off;
            let (left, right) = memory[start..start + payload.len()].split_at_mut(640);
            assert_eq!(fabric.read_payload(64, &mut [left, right], 9), sum, "{flush}, {off} bytes off");
            let back = &memory[start..start + payload.len()];
            let seen = thread::scope(|scope| scope.spawn(|| back == payload).join().expect("compared"));
            assert!(seen, "{flush}, {off} bytes off");
            assert!(memory[..start].iter().chain(&memory[start + payload.len()..]).all(|byte| *byte == 0));
        }
    }
}

#[test]
fn the_whole_region_is_payload() {
    for flush in all() {
        let fabric = anon(8192, flush);
        let payload = bytes(8192, 1);
        let sum = fabric.write_payload(0, &[&payload], 0);
        fabric.publish_payload();
        fabric.refresh_payload(0, 8192);
        fabric.refresh_payload(8192, 0);
        assert_eq!(fabric.checksum_payload(0, 8192, 0), sum);
        // The last line of a mapping, complete and incomplete.
        let sum = fabric.write_payload(8128, &[&payload[..63]], 0);
        fabric.publish_payload();
        fabric.refresh_payload(8128, 63);
        assert_eq!(fabric.checksum_payload(8128, 63, 0), sum);
    }
}

#[test]
fn a_panic_names_the_callers_place() {
    for flush in all() {
        let fabric = Arc::new(anon(4096, flush));
        let place = Arc::new(std::sync::Mutex::new(String::new()));
        let told = Arc::clone(&place);
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // Other tests of this program panic on purpose too.
            if thread::current().name() == Some("asks") {
                *told.lock().expect("not poisoned") = info.location().expect("a place").file().to_owned();
            }
        }));
        let asks = thread::Builder::new().name("asks".into()).spawn(move || fabric.publish_line(8, &[0; 8]));
        assert!(asks.expect("started").join().is_err());
        std::panic::set_hook(before);
        assert_eq!(*place.lock().expect("not poisoned"), file!(), "{flush}");
    }
}

#[test]
fn two_mappings_share_bytes() {
    for flush in all() {
        let name = Shm::new("share", flush);
        let first = name.create(2 * MIB + 1, flush);
        let second = name.open(flush);
        assert_eq!(first.len(), 2 * MIB + 4096, "lengths are whole pages");
        assert_eq!(second.len(), first.len());
        first.store(Offset::new(4096), 17);
        first.publish(&[4096]);
        first.publish_line(4160, &[18; 8]);
        second.refresh(&[4096, 4160]);
        assert_eq!((second.load(Offset::new(4096)), second.load_line(4160)), (17, [18; 8]));
        for round in 0..3 {
            let payload = bytes(100_000, round);
            let sum = first.write_payload(8192, &[&payload], 5);
            first.publish_payload();
            second.refresh_payload(8192, payload.len() as u64);
            let mut back = vec![0; payload.len()];
            assert_eq!(second.read_payload(8192, &mut [&mut back], 5), sum);
            assert_eq!(back, payload, "{flush}");
        }
    }
}

/// A writer publishes payload and then a line that identifies it; a reader polls the line. The
/// line's words may come from two rounds, so it carries a check word.
#[test]
fn messages_pass_between_two_threads() {
    const ROUNDS: u64 = 300;
    for flush in all() {
        let name = Shm::new("messages", flush);
        let writer = name.create(MIB, flush);
        let reader = name.open(flush);
        let lens = |round: u64| 100 + (round * 977 % 40_000);
        let answered = |round| {
            writer.refresh(&[64]);
            writer.load(Offset::new(64)) == round
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    let sum = writer.write_payload(4096, &[&bytes(lens(round) as usize, round as u32)], round);
                    writer.publish_payload();
                    writer.publish_line(0, &[round, sum, 0, 0, 0, 0, 0, round ^ sum]);
                    while !answered(round) {
                        thread::yield_now();
                    }
                }
            });
            for round in 1..=ROUNDS {
                let sum = loop {
                    reader.refresh(&[0]);
                    let [seen, sum, .., check] = reader.load_line(0);
                    if seen == round && check == seen ^ sum {
                        break sum;
                    }
                    thread::yield_now();
                };
                reader.refresh_payload(4096, lens(round));
                let mut back = vec![0; lens(round) as usize];
                assert_eq!(reader.read_payload(4096, &mut [&mut back], round), sum, "{flush}, round {round}");
                assert_eq!(back, bytes(back.len(), round as u32));
                reader.store(Offset::new(64), round);
                reader.publish(&[64]);
            }
        });
    }
}

#[test]
fn an_unsupported_flush_is_refused() {
    let mapping = || Mapping::create(&RegionSource::Anon, 4096, 0o600, &MapOptions::default()).expect("mapped");
    let error = Flushed::new(mapping(), Flush::None).expect_err("none is no instruction");
    assert!(error.to_string().contains("needs a flush instruction"), "{error}");
    assert!(matches!(Mapped::new(mapping(), Flush::None), Ok(Mapped::Coherent(_))));
    for flush in [Flush::Clflush, Flush::ClflushOpt, Flush::Clwb, Flush::DcCivac] {
        let opened = Mapped::new(mapping(), flush);
        if Flush::available().contains(&flush) {
            assert!(matches!(opened, Ok(Mapped::Flushed(_))), "{flush}");
        } else {
            let error = opened.expect_err("not there");
            assert_eq!(error.flush, flush);
            let wanted = format!("lacks the flush instruction {flush}");
            assert!(error.to_string().contains(&wanted), "{error}");
        }
    }
}

#[test]
fn a_region_opened_to_be_read_shows_changes_and_takes_none() {
    for flush in all() {
        let name = Shm::new("read-only", flush);
        let writer = name.create(MIB, flush);
        let open = || ReadOnly::new(ReadMapping::open(&name.0).expect("it may be read"), flush).expect("it is there");
        let reader = open();
        writer.publish_line(64, &[7; 8]);
        reader.refresh(&[64]);
        assert_eq!((reader.load_line(64), reader.load(Offset::new(72))), ([7; 8], 7));
        let payload = bytes(256, 5);
        let sum = writer.write_payload(4096, &[&payload], 9);
        writer.publish_payload();
        reader.refresh_payload(4096, 256);
        let mut copy = vec![0; 256];
        assert_eq!((reader.read_payload(4096, &mut [&mut copy], 9), &copy), (sum, &payload));
        let stores: [&dyn Fn(); 4] = [
            &|| reader.store(Offset::new(64), 1),
            &|| reader.publish_line(64, &[1; 8]),
            &|| reader.publish_word(Offset::new(64), 1),
            &|| assert_ne!(reader.write_payload(4096, &[&payload[..64]], 1), 0),
        ];
        for store in stores {
            assert!(catch_unwind(AssertUnwindSafe(store)).is_err(), "a store is refused");
        }
        assert_eq!(writer.load_line(64), [7; 8]);
    }
}
