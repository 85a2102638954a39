//! A store over a real region: one engine loads the bytes that another engine saved.

use crate::support::{self, region};
use cenote_base::engine::Retain;
use cenote_base::testing::ManualTime;
use cenote_base::{BlockHash, Clock, HashSeed, TokenId};
use cenote_codec::{
    Bases, Basis, CodecId, CodecSpec, Declined, DecodeError, Element, Frame, Layout, Order, Page, PageCodec, PageKind,
    PageMut, Prism, Shape, Side, SpecKv,
};
use cenote_mem::Coherent;
use cenote_policy::fetch::Way;
use cenote_policy::retention::ARRIVING_NS;
use cenote_pool::{Design, Namespace, Pool, PoolConfig};
use cenote_store::{
    BlockCodec, Computed, Computing, Loaded, Names, NamespaceSpec, Peers, PrefixStore, Promotion, Readable,
    RegionStore, Wanted,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = 1024;

fn pool() -> Pool<Arc<Coherent>> {
    pool_of(Design::Cenote)
}

fn pool_of(design: Design) -> Pool<Arc<Coherent>> {
    region(&PoolConfig { design, ..config() }, 16 << 20)
}

fn config() -> PoolConfig {
    PoolConfig {
        max_hosts: 1,
        workers_per_host: 4,
        hazard_lines_per_worker: 2,
        ..PoolConfig::new(HashSeed([3; 32]), [4; 16])
    }
}

fn spec(tenant_salt: &str) -> NamespaceSpec {
    support::spec(9, PAGE, tenant_salt)
}

fn pages(fill: u8) -> Vec<Vec<u8>> {
    (0..4).map(|page| vec![fill ^ page; PAGE]).collect()
}

/// The names of a prompt's blocks, and how many of the first ones the store has.
fn look_up(store: &mut RegionStore<Arc<Coherent>>, tokens: &[TokenId]) -> (Names, usize) {
    let names = store.naming().names(None, tokens);
    let matched = store.match_prefix(&names);
    (names, matched)
}

fn save_one(store: &mut RegionStore<Arc<Coherent>>, hash: BlockHash, depth: u32, pages: &[&[u8]]) -> bool {
    store.save_all(None, &[Computed { hash, depth, pages }]) == 1
}

fn save(store: &mut RegionStore<Arc<Coherent>>, tokens: &[TokenId], blocks: usize) {
    let hashes = store.naming().names(None, tokens);
    let all: Vec<Vec<Vec<u8>>> = (1..=blocks as u8).map(pages).collect();
    let all: Vec<Vec<&[u8]>> = all.iter().map(|pages| pages.iter().map(Vec::as_slice).collect()).collect();
    let computed = |(depth, (&hash, pages))| Computed { hash, depth, pages };
    let computed: Vec<Computed<'_>> =
        (0..).zip(hashes.iter().zip(all.iter().map(Vec::as_slice))).map(computed).collect();
    assert_eq!(store.save_all(None, &computed), blocks);
}

/// Loads a block and decodes it if it is pending.
fn load(store: &mut RegionStore<Arc<Coherent>>, hash: BlockHash, pages: &mut [Vec<u8>]) -> bool {
    let mut pages: Vec<&mut [u8]> = pages.iter_mut().map(Vec::as_mut_slice).collect();
    store.load(hash, &mut pages).finish(&mut pages)
}

#[test]
fn a_saved_block_loads_in_another_store() {
    for design in Design::ALL {
        let pool = pool_of(design);
        let mut one = RegionStore::new(pool.clone(), &spec(""), Clock::stopped()).unwrap();
        let mut other = RegionStore::new(pool, &spec(""), Clock::stopped()).unwrap();
        let tokens: Vec<TokenId> = (0..70).collect();
        save(&mut one, &tokens, 3);
        let (hashes, matched) = look_up(&mut other, &tokens);
        assert_eq!((hashes.len(), matched), (4, 3), "70 tokens have four full blocks; three were saved");
        for (depth, &hash) in hashes.iter().enumerate() {
            let mut loaded = vec![vec![0; PAGE]; 4];
            let whole = load(&mut other, hash, &mut loaded);
            assert_eq!(whole, depth < 3);
            assert!(!whole || loaded == pages(depth as u8 + 1));
        }
    }
}

#[test]
fn a_swapped_block_is_private_and_unchanged() {
    let pool = pool();
    // A lossy codec must not affect swapped blocks.
    let mut store =
        RegionStore::new(pool.clone(), &spec(""), Clock::stopped()).unwrap().with_codec(block_codec("int8"), &spec(""));
    let pages = pages(3);
    let swapped = store.swap_out(None, &pages.iter().map(Vec::as_slice).collect::<Vec<_>>()).expect("there is room");
    assert_eq!((pool.check(true).unwrap().reserved, pool.info().blocks_ready), (1, 0));
    let mut back = vec![vec![0; PAGE]; 4];
    assert!(swapped.read_all(&mut back.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()));
    assert!(back == pages);
    drop(swapped);
    assert_eq!(pool.check(true).unwrap().reserved, 0);
}

#[test]
fn tenants_do_not_share_blocks() {
    let pool = pool();
    let tokens: Vec<TokenId> = (0..16).collect();
    save(&mut RegionStore::new(pool.clone(), &spec("a"), Clock::stopped()).unwrap(), &tokens, 1);
    for (tenant, found) in [("b", 0), ("a", 1)] {
        let mut store = RegionStore::new(pool.clone(), &spec(tenant), Clock::stopped()).unwrap();
        assert_eq!(look_up(&mut store, &tokens).1, found, "{tenant}");
    }
}

/// An idle prefill worker kept the blocks of its last hand-over pinned until its next request.
#[test]
fn a_hold_expires_while_its_engine_is_idle() {
    let pool = pool();
    let time = ManualTime::start();
    let mut store = RegionStore::new(pool.clone(), &spec(""), time.clock()).unwrap();
    let tokens: Vec<TokenId> = (0..48).collect();
    save(&mut store, &tokens, 3);
    let hashes = store.naming().names(None, &tokens);
    let expire = store.upkeep();
    store.hold(&hashes[..2], 1000);
    let kept = store.hold(&hashes[1..], 1001);
    let held = |store: &RegionStore<_>| (pool.check(true).unwrap().pinned, store.stats()["store_holds"] as u64);
    time.advance(Duration::from_millis(999));
    expire();
    assert_eq!(held(&store), (3, 2));
    time.advance(Duration::from_millis(1));
    expire();
    assert_eq!(held(&store), (2, 1), "another hold has one of its blocks");
    store.release(kept);
    assert_eq!(pool.check(true).unwrap().pinned, 0);
}

/// A wish delays eviction while its time lasts, and no longer.
#[test]
fn kept_blocks_outlast_others() {
    let config = PoolConfig { chunk_bytes: 64 << 10, min_block_bytes: 1 << 10, ..config() };
    let pool = region(&config, 2 << 20);
    let time = ManualTime::start();
    let mut store = RegionStore::new(pool.clone(), &spec(""), time.clock()).unwrap();
    let upkeep = store.upkeep();
    let prompt = |number: u32| (0..64).map(|token| number << 8 | token).collect::<Vec<TokenId>>();
    let there =
        |store: &RegionStore<Arc<Coherent>>, number| pool.peek(&store.naming().names(None, &prompt(number))).len();
    let fill = |store: &mut RegionStore<Arc<Coherent>>, from: u32| {
        for number in from..from + 400 {
            save(store, &prompt(number), 4);
            upkeep();
        }
    };
    save(&mut store, &prompt(0), 4);
    save(&mut store, &prompt(1), 4);
    let names = store.naming().names(None, &prompt(0));
    store.retain(None, &names, &Retain { ms: 1000, priority: 0, session: None });
    fill(&mut store, 10);
    let stats = store.stats();
    assert_eq!((there(&store, 0), there(&store, 1)), (4, 0), "only the other prompt left: {stats:?}");
    assert_eq!(["retained_blocks", "retain_added_total", "retain_lost_total"].map(|name| stats[name]), [4.0, 4.0, 0.0]);
    time.advance(Duration::from_millis(1001));
    fill(&mut store, 1000);
    let stats = store.stats();
    assert_eq!(there(&store, 0), 0, "its time is over");
    assert_eq!(["retained_blocks", "retain_ended_total"].map(|name| stats[name]), [0.0, 4.0]);
    // All wishes together have a quarter of the region.
    (2000..2400).for_each(|number| {
        let names = store.naming().names(None, &prompt(number));
        store.retain(None, &names, &Retain { ms: 3_600_000, priority: 0, session: None });
    });
    upkeep();
    let stats = store.stats();
    let bytes = stats["retained_blocks"] * 4.0 * PAGE as f64;
    assert!(stats["retain_dropped_total"] > 1000.0 && bytes <= f64::from(2 << 20) / 4.0, "{stats:?}");
    time.advance(Duration::from_nanos(ARRIVING_NS));
    upkeep();
    let stats = store.stats();
    assert_eq!(stats["retained_blocks"], 0.0, "none was ever saved: {stats:?}");
}

fn page_codec(codec: &str) -> Arc<dyn PageCodec> {
    codec.parse::<CodecSpec>().unwrap().build(None).unwrap()
}

/// Pages of 16 tokens, one head of 16 channels, `f32`: those of `spec`.
pub fn block_codec(codec: &str) -> BlockCodec {
    block_codec_of(&page_codec(codec))
}

fn block_codec_of(codec: &Arc<dyn PageCodec>) -> BlockCodec {
    let kind = |layer: u16, side: Side| PageKind {
        shape: Shape { heads: 1, tokens: 16, dim: 16 },
        element: Element::F32,
        layout: Layout { order: Order::TokenMajor, capacity: 16 },
        side,
        layer,
    };
    let pages = (0..2).flat_map(|layer| [(layer, Side::K), (layer, Side::V)]);
    BlockCodec::new(pages.map(|(layer, side)| (kind(layer, side), Arc::clone(codec))).collect())
}

/// A codec with both layers in a frame. Its components are the channels, in steps of a tenth.
fn prism() -> Arc<dyn PageCodec> {
    let channels = 32;
    let basis = |side: Side| Basis {
        means: vec![0.0; channels],
        metric: match side {
            Side::K => vec![1.0; channels],
            Side::V => (0..channels * 16).map(|at| f32::from(u8::from(at % 16 == at / 16 % 16))).collect(),
        },
        scales: vec![1.0 / 32767.0; channels],
        matrix: (0..channels * channels).map(|at| if at % channels == at / channels { i16::MAX } else { 0 }).collect(),
        deviations: vec![70.0; channels],
        magnitudes: vec![60.0; channels],
    };
    let frequencies = (0..8_u8).map(|pair| 0.5_f32.powi(pair.into())).collect();
    let bases = Bases { frequencies, group: 2, groups: vec![[basis(Side::K), basis(Side::V)]] };
    Arc::new(Prism::new(&bases, 2, [0.1; 2], 0x0091_5e4e).expect("steps are sound"))
}

/// Values that eight bits represent exactly.
pub fn number_pages(depth: u32) -> Vec<Vec<u8>> {
    let value = |page: u32, at: u32| ((at + page + depth) % 255) as f32 - 127.0;
    (0..4).map(|page| (0..256).flat_map(|at| value(page, at).to_le_bytes()).collect()).collect()
}

#[test]
fn encoded_blocks_are_smaller_and_load_only_with_their_codec() {
    for design in Design::ALL {
        let pool = pool_of(design);
        let open = || RegionStore::new(pool.clone(), &spec(""), Clock::stopped()).unwrap();
        let mut encoding = open().with_codec(block_codec("int8"), &spec(""));
        let mut plain = open();
        let tokens: Vec<TokenId> = (0..64).collect();
        let hashes = encoding.naming().names(None, &tokens);
        for (depth, &hash) in (0..).zip(hashes.iter()) {
            let pages = number_pages(depth);
            let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
            // A store without a codec saves the second and the last block.
            let store = if depth % 2 == 0 { &mut encoding } else { &mut plain };
            assert!(save_one(store, hash, depth, &pages));
        }
        let stats = encoding.stats();
        let (bytes, from) = (stats["store_encoded_bytes_total"], stats["store_encoded_from_bytes_total"]);
        assert!(from == 8192.0 && bytes < from / 3.0, "{bytes} of {from}");
        let loaded = |store: &mut RegionStore<Arc<Coherent>>, hash| {
            let mut loaded = vec![vec![0; PAGE]; 4];
            load(store, hash, &mut loaded).then_some(loaded)
        };
        for (depth, &hash) in (0..).zip(hashes.iter()) {
            let number = |page: &[u8]| f32::from_le_bytes(page[..4].try_into().unwrap());
            let loaded_pages = loaded(&mut encoding, hash).expect("it knows both");
            for (page, expected) in loaded_pages.iter().zip(number_pages(depth)) {
                let pairs = page.chunks(4).zip(expected.chunks(4));
                assert!(pairs.map(|(a, b)| (number(a) - number(b)).abs()).fold(0.0, f32::max) <= 0.51);
            }
            // A store without the codec misses, and counts the block as unreadable.
            assert_eq!(loaded(&mut plain, hash).is_some(), depth % 2 == 1);
        }
        assert!(plain.stats()["store_unreadable_total"] >= 2.0);
        assert_eq!(encoding.stats()["store_unreadable_total"], 0.0);
        let checked = pool.check(true).expect("it is not busy");
        assert!(checked.damage.is_empty() && checked.leaks.is_empty(), "{checked:?}");
    }
}

/// One frame has the same side of all layers: pages are decoded from it one by one, in any order.
#[test]
fn blocks_with_layers_in_one_frame_load_page_by_page() {
    let pool = pool();
    let open = || RegionStore::new(pool.clone(), &spec(""), Clock::stopped()).unwrap();
    let mut store = open().with_codec(block_codec_of(&prism()), &spec(""));
    let tokens: Vec<TokenId> = (0..64).collect();
    let hashes = store.naming().names(None, &tokens);
    for (depth, &hash) in (0..).zip(hashes.iter()) {
        let pages = number_pages(depth);
        assert!(save_one(&mut store, hash, depth, &pages.iter().map(Vec::as_slice).collect::<Vec<_>>()));
    }
    let stats = store.stats();
    let (bytes, from) = (stats["store_encoded_bytes_total"], stats["store_encoded_from_bytes_total"]);
    assert!(bytes < from / 2.0, "{bytes} of {from}");
    assert_eq!(store.match_prefix(&hashes), 4);
    for (depth, &hash) in (0..).zip(hashes.iter()) {
        let Loaded::Pending(pending) = store.load(hash, &mut []) else { panic!("its headers hold") };
        for index in [3, 0, 2, 1] {
            let mut page = vec![0; PAGE];
            assert!(pending.decode(index, &mut page));
            let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
            let pairs = page.chunks(4).zip(number_pages(depth)[index].chunks(4).map(number).collect::<Vec<_>>());
            let worst = pairs.map(|(a, b)| (number(a) - b).abs()).fold(0.0, f32::max);
            // 0.6 steps of both of a pair of keys.
            assert!(worst <= 0.086, "{worst} in page {index} of block {depth}");
        }
    }
    // Without its profile the block is a miss.
    let mut other = open().with_codec(block_codec("int8"), &spec(""));
    other.match_prefix(&hashes);
    assert!(matches!(other.load(hashes[0], &mut []), Loaded::Miss));
    assert_eq!(other.stats()["store_unreadable_total"], 1.0);
}

#[test]
fn under_pressure_cold_blocks_are_shortened_and_more_blocks_stay() {
    let tokens = |prompt: u32| (0..16).map(|token| prompt << 8 | token).collect::<Vec<TokenId>>();
    // Returns, of `count` prompts: blocks present, blocks present bit-exact, blocks shortened,
    // blocks evicted.
    let kept = |codec: BlockCodec, count: u32| {
        let config = PoolConfig { chunk_bytes: 64 << 10, min_block_bytes: 1 << 10, ..config() };
        let pool = region(&config, 2 << 20);
        let mut store =
            RegionStore::new(pool.clone(), &spec(""), Clock::stopped()).unwrap().with_codec(codec, &spec(""));
        for prompt in 0..count {
            let hashes = store.naming().names(None, &tokens(prompt));
            let pages = number_pages(prompt);
            assert!(save_one(&mut store, hashes[0], 0, &pages.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        }
        let (mut whole, mut exact) = (0_u32, 0_u32);
        for prompt in 0..count {
            let (hashes, matched) = look_up(&mut store, &tokens(prompt));
            if matched == 1 {
                let mut loaded = vec![vec![0; PAGE]; 4];
                assert!(load(&mut store, hashes[0], &mut loaded));
                exact += u32::from(loaded == number_pages(prompt));
                whole += 1;
            }
        }
        let checked = pool.check(true).expect("it is not busy");
        assert!(checked.damage.is_empty() && checked.leaks.is_empty(), "{checked:?}");
        let stats = store.stats();
        assert_eq!(stats["store_unreadable_total"], 0.0);
        (whole, exact, stats["pool_repacked_total"] as u32, stats["pool_evicted_total"] as u32)
    };
    let cold = |codec: &str| block_codec(codec).with_cold(vec![page_codec("int8"); 4]);
    let (capacity, exact, repacked, evicted) = kept(block_codec("raw"), 1000);
    assert!(capacity == exact && repacked == 0 && evicted + capacity == 1000, "{capacity} {evicted}");
    // With half as many blocks again as fit, none is evicted, and only cold blocks lose precision.
    let more = capacity + capacity / 2;
    let (whole, exact, repacked, evicted) = kept(cold("raw"), more);
    assert_eq!((whole, evicted), (more, 0));
    assert!(exact >= capacity / 8 && exact + repacked >= more, "{exact} of {more} are exact, {repacked} are shorter");
    // So with a codec that has several layers in a frame.
    let (whole, _, repacked, evicted) = kept(block_codec("raw").with_cold(vec![prism(); 4]), more);
    assert!(whole == more && evicted == 0 && repacked > 0, "{whole} of {more}, {repacked} are shorter");
    // Blocks that cannot be shortened further are evicted as usual.
    let (whole, _, repacked, evicted) = kept(cold("raw"), 1000);
    assert!(whole >= 2 * capacity && whole + evicted == 1000, "{whole} of {capacity}, {repacked} were made shorter");
    // Blocks that are as short as possible already stay unchanged and are not tried again.
    let (as_saved, ..) = kept(block_codec("int8"), 1500);
    let (whole, _, repacked, evicted) = kept(cold("int8"), 1500);
    assert!(
        whole.abs_diff(as_saved) < 80 && repacked <= 1500 && evicted > 0,
        "{whole}, {as_saved} without; {repacked}"
    );
}

/// INT8, but frames of layer 1 have a valid header and an invalid payload.
struct Forger;

impl PageCodec for Forger {
    fn id(&self) -> CodecId {
        CodecId::SpecKv
    }

    fn encode_payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        if page.kind().layer == 1 {
            payload.push(200);
            return Ok(());
        }
        SpecKv::default().encode_payload(page, payload)
    }

    fn decode_payload(&self, _: &Frame<'_>, _: &mut PageMut<'_>) -> Result<(), DecodeError> {
        unreachable!("it only encodes")
    }
}

#[test]
fn an_invalid_payload_is_a_miss_when_decoded_and_at_once_afterwards() {
    let pool = pool();
    let open =
        |codec| RegionStore::new(pool.clone(), &spec(""), Clock::stopped()).unwrap().with_codec(codec, &spec(""));
    let forging: Arc<dyn PageCodec> = Arc::new(Forger);
    let (mut forger, mut reader) = (open(block_codec_of(&forging)), open(block_codec("int8")));
    let tokens: Vec<TokenId> = (0..32).collect();
    let hashes = reader.naming().names(None, &tokens);
    let saved = number_pages(0);
    let saved: Vec<&[u8]> = saved.iter().map(Vec::as_slice).collect();
    assert!(save_one(&mut forger, hashes[0], 0, &saved) && save_one(&mut reader, hashes[1], 1, &saved));
    let unreadable = |reader: &RegionStore<Arc<Coherent>>| reader.stats()["store_unreadable_total"] as u64;
    assert_eq!(reader.match_prefix(&hashes), 2);
    let mut page = vec![0; PAGE];
    let Loaded::Pending(pending) = reader.load(hashes[0], &mut []) else { panic!("its headers hold") };
    assert!(pending.decode(0, &mut page) && pending.decode(1, &mut page));
    assert_eq!(unreadable(&reader), 0);
    assert!(!pending.decode(3, &mut page) && !pending.decode(2, &mut page));
    assert_eq!(unreadable(&reader), 1, "a block is counted once");
    drop(pending);
    let mut pages = vec![vec![0; PAGE]; 4];
    assert_eq!(reader.match_prefix(&hashes), 2);
    assert!(matches!(reader.load(hashes[0], &mut []), Loaded::Miss), "it is not tried again");
    assert_eq!(unreadable(&reader), 2);
    assert!(load(&mut reader, hashes[1], &mut pages), "the next block still loads");
}

/// A region without room for all of a prompt keeps its first blocks.
#[test]
fn a_store_says_how_many_of_the_first_blocks_it_has() {
    let small = PoolConfig { chunk_bytes: 64 << 10, min_block_bytes: 4 << 10, ..config() };
    let mut store = RegionStore::new(region(&small, 1 << 20), &spec("a"), Clock::stopped()).unwrap();
    let tokens: Vec<TokenId> = (0..16 * 1000).collect();
    let hashes = store.naming().names(None, &tokens);
    let pages = pages(1);
    let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    let computed: Vec<Computed<'_>> =
        (0..).zip(hashes.iter()).map(|(depth, &hash)| Computed { hash, depth, pages: &pages }).collect();
    assert_eq!(store.save_all(None, &computed[..64]), 64);
    // Later blocks evict earlier ones only from the end of the prompt.
    let saved = store.save_all(None, &computed);
    assert!((64..1000).contains(&saved), "{saved}");
    let found = store.match_prefix(&hashes);
    assert!(found >= 64, "{found} of {saved}");
}

/// Peers that may have anything.
struct AnyPeers;

impl Peers for AnyPeers {
    fn may_have(&self) -> bool {
        true
    }

    fn way(&self, _: &Namespace, _: BlockHash) -> Option<Way> {
        None
    }

    fn promote(
        &self,
        _: &Namespace,
        missing: &[BlockHash],
        readable: &Readable,
        wanted: Wanted,
        _: &Computing,
    ) -> Option<Promotion> {
        assert_eq!(wanted, Wanted::Leading);
        assert!(readable.may_read(0) && !readable.may_read(1), "this store has no codec");
        (!missing.is_empty()).then(|| Promotion::of(1, Clock::stopped().after(Duration::from_secs(1))))
    }

    fn stats(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    fn trouble(&self) -> Option<String> {
        None
    }
}

/// All missing blocks were charged to the budget of bytes on their way, whether a peer had them or not. So
/// long prompts asked peers one after the other, and waited for that longer than their deadline.
#[test]
fn a_question_to_peers_costs_one_block() {
    let mut store = RegionStore::new(pool(), &spec(""), Clock::stopped()).unwrap();
    let tokens: Vec<TokenId> = (0..1600).collect();
    let names = store.naming().names(None, &tokens);
    assert_eq!(store.promotable(None, &names), 0);
    store = store.with_peers(Arc::new(AnyPeers));
    assert_eq!(store.promotable(None, &names), 1);
    assert!(store.promote(None, &names).is_some());
    save(&mut store, &tokens, 3);
    assert_eq!(store.promotable(None, &names[..3]), 0, "nothing is missing");
}
