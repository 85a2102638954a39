//! L4 below real regions: what one region published, the next one finds on disk.

use crate::support::{self, region_in};
use cenote_base::seal::{Seal, SealKeys};
use cenote_base::testing::{ManualTime, PATIENCE, redis, until};
use cenote_base::{Clock, Deadline, HashSeed, TokenId};
use cenote_mem::{Coherent, RegionSource};
use cenote_pool::{Pool, PoolConfig};
use cenote_store::cold::{ColdTier, Sealing, Settings, seed_of};
use cenote_store::{Computed, NamespaceSpec, PrefixStore, RegionStore};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = 4096;
const BLOCKS: usize = 40;

fn spec(model: u8) -> NamespaceSpec {
    support::spec(model, PAGE, "")
}

fn patience() -> Deadline {
    Clock::system().after(PATIENCE)
}

/// A region of this process, with L4 in a directory. L4's time passes only where a test says so.
struct World {
    time: &'static ManualTime,
    store: RegionStore<Arc<Coherent>>,
    pool: Pool<Arc<Coherent>>,
    cold: Arc<ColdTier>,
}

impl World {
    fn new(directory: &Path, bytes: u64, model: u8, options: &str) -> Self {
        Self::with_seed(directory, bytes, model, options, model)
    }

    /// A region that would have this seed without the place.
    fn with_seed(directory: &Path, bytes: u64, model: u8, options: &str, seed: u8) -> Self {
        Self::with_seal(directory, bytes, model, options, seed, None)
    }

    /// A region with this seal.
    fn with_seal(directory: &Path, bytes: u64, model: u8, options: &str, seed: u8, seal: Sealing) -> Self {
        let settings: Settings = format!("{},{options}", directory.display()).parse().expect("a setting");
        let settings = Settings { seal, ..settings };
        let time = ManualTime::start();
        let seed = seed_of(&settings, &HashSeed([seed; 32]), time.clock()).expect("a directory");
        let config =
            PoolConfig { chunk_bytes: 256 << 10, max_hosts: 1, workers_per_host: 4, ..PoolConfig::new(seed, [4; 16]) };
        let config = match &settings.seal {
            Some((seal, keys)) => config.sealed(*seal, keys),
            None => config,
        };
        let keys = settings.seal.clone().map(|(_, keys)| keys);
        let pool = region_in(&RegionSource::Anon, &config, bytes, keys).expect("it attaches");
        // It takes the seal from the pool.
        let settings = Settings { seal: None, ..settings };
        let cold = ColdTier::start(pool.clone(), &settings, time.clock()).expect("a directory");
        let store =
            RegionStore::new(pool.clone(), &spec(model), time.clock()).expect("room").with_cold(Arc::clone(&cold));
        assert!(cold.wait_open(patience()), "{:?}", cold.last_error());
        Self { time, store, pool, cold }
    }

    fn save(&mut self, tokens: &[TokenId]) {
        let hashes = self.store.naming().names(None, tokens);
        // Engines look a prompt up before they compute it, which ages other blocks.
        self.store.match_prefix(&hashes);
        for (depth, &hash) in (0..).zip(hashes.iter()) {
            let pages: Vec<Vec<u8>> = (0..4).map(|page| page_bytes(tokens[depth as usize * 16], page)).collect();
            let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
            assert_eq!(self.store.save_all(None, &[Computed { hash, depth, pages: &pages }]), 1);
        }
    }

    /// Number of leading blocks found with the right bytes.
    fn load(&mut self, tokens: &[TokenId]) -> usize {
        let names = self.store.naming().names(None, tokens);
        let matched = self.store.match_prefix(&names);
        for (depth, &hash) in names[..matched].iter().enumerate() {
            let mut pages = vec![vec![0; PAGE]; 4];
            let mut parts: Vec<&mut [u8]> = pages.iter_mut().map(Vec::as_mut_slice).collect();
            assert!(self.store.load(hash, &mut parts).finish(&mut []), "block {depth}");
            let right = (0..4).map(|page| page_bytes(tokens[depth * 16], page));
            assert!(right.eq(pages), "block {depth} has wrong bytes");
        }
        matched
    }

    fn promote(&mut self, tokens: &[TokenId]) -> bool {
        self.store.promote(None, &self.store.naming().names(None, tokens)).is_some_and(|promotion| {
            until("the reads end", || promotion.is_over().then_some(()));
            promotion.wait()
        })
    }
}

fn page_bytes(first: TokenId, page: u8) -> Vec<u8> {
    (0..PAGE).map(|at| (first as usize * 7 + page as usize * 3 + at) as u8).collect()
}

fn prompt(number: u32) -> Vec<TokenId> {
    (number * 100_000..number * 100_000 + 16 * BLOCKS as u32).collect()
}

#[test]
fn a_new_region_finds_what_an_earlier_one_published() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut first = World::new(directory.path(), 32 << 20, 1, "size=64MiB");
    first.save(&prompt(1));
    assert!(first.cold.settle(patience()));
    drop(first);
    let mut second = World::new(directory.path(), 32 << 20, 1, "size=64MiB");
    assert_eq!(second.load(&prompt(1)), 0);
    assert!(second.promote(&prompt(1)));
    assert_eq!(second.load(&prompt(1)), BLOCKS);
    assert!(!second.promote(&prompt(1)), "everything is in the region");
    assert!(!second.promote(&prompt(2)), "L4 has none of these");
    let stats = second.store.stats();
    assert_eq!((stats["cold_hits_total"], stats["cold_misses_total"], stats["cold_blocks"]), (40.0, 0.0, 40.0));
}

#[test]
fn a_region_finds_in_a_redis_server_what_another_one_published() {
    let Some(server) = redis::Server::start(&[]) else { return };
    let url = server.url();
    let world = || World::new(Path::new(&url), 32 << 20, 1, "deadline=20");
    let mut first = world();
    first.save(&prompt(1));
    assert!(first.cold.settle(patience()));
    let mut second = world();
    assert_eq!(second.load(&prompt(1)), 0);
    let names = second.store.naming().names(None, &prompt(1));
    assert_eq!(second.store.promotable(None, &names), 1, "a question costs one block");
    assert!(second.promote(&prompt(1)));
    assert_eq!(second.load(&prompt(1)), BLOCKS);
    assert!(!second.promote(&prompt(1)), "everything is in the region");
    assert!(second.promote(&prompt(2)), "the server is asked for these, too");
    assert_eq!(second.load(&prompt(2)), 0);
    assert!(!second.promote(&prompt(2)), "it has none of them, and is not asked again at once");
    let stats = second.store.stats();
    assert_eq!([stats["cold_hits_total"], stats["cold_misses_total"], stats["cold_errors_total"]], [40.0, 0.0, 0.0]);
    // Without the server nothing waits, and the region has what it has.
    drop(server);
    let mut third_prompt = || second.promote(&prompt(3));
    assert!(third_prompt(), "the question fails");
    assert!(!third_prompt(), "no request waits for a server that is down");
    assert_eq!(second.load(&prompt(1)), BLOCKS);
    assert!(second.store.health() != cenote_base::Health::Ok);
}

#[test]
fn a_sealed_region_has_sealed_keys_in_its_redis_server() {
    let Some(server) = redis::Server::start(&[]) else { return };
    let url = format!("{}?prefix=sealed", server.url());
    let sealed =
        |number| World::with_seal(Path::new(&url), 32 << 20, 1, "deadline=20", 1, sealing(Seal::Encrypt, number));
    let mut first = sealed(1);
    first.save(&prompt(1));
    assert!(first.cold.settle(patience()));
    let mut second = sealed(1);
    assert!(second.promote(&prompt(1)));
    assert_eq!(second.load(&prompt(1)), BLOCKS);
    for other in [None, sealing(Seal::Encrypt, 2), sealing(Seal::Mac, 1)] {
        let settings = Settings { seal: other, ..url.parse().expect("a setting") };
        assert!(seed_of(&settings, &HashSeed([1; 32]), first.time.clock()).is_err_and(|error| error.is_refusal()));
    }
}

#[test]
fn another_model_or_seed_finds_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut first = World::new(directory.path(), 32 << 20, 1, "size=64MiB");
    first.save(&prompt(1));
    assert!(first.cold.settle(patience()));
    drop(first);
    let mut other = World::new(directory.path(), 32 << 20, 2, "size=64MiB");
    assert!(!other.promote(&prompt(1)));
}

#[test]
fn blocks_evicted_from_a_small_region_return() {
    let directory = tempfile::tempdir().expect("a directory");
    for options in ["size=64MiB,write=published", "size=64MiB,write=cold"] {
        let mut world = World::new(directory.path(), 8 << 20, 1, options);
        // Each prompt has 640 KiB of the region's blocks.
        for number in 1..=40 {
            world.save(&prompt(number));
            assert!(world.cold.settle(patience()));
        }
        assert!(world.pool.peek(&world.store.naming().names(None, &prompt(1))).is_empty(), "it was evicted");
        until(options, || {
            // Cold blocks of a full region are looked for so often.
            world.time.advance(Duration::from_millis(200));
            (world.store.stats()["cold_written_total"] > 0.0).then_some(())
        });
        if options.ends_with("published") {
            assert!(world.promote(&prompt(1)));
            assert_eq!(world.load(&prompt(1)), BLOCKS);
        }
        drop(world);
        std::fs::remove_dir_all(directory.path()).expect("it is there");
    }
}

/// A cleaner that deleted a tier's files under a server took all that the server published later.
#[test]
fn what_is_published_after_files_were_deleted_is_found() {
    for deleted in ["", "tier", ".extent", ".index", "owner"] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut first = World::new(directory.path(), 32 << 20, 1, "size=64MiB");
        first.save(&prompt(1));
        assert!(first.cold.settle(patience()));
        for entry in std::fs::read_dir(directory.path()).expect("a directory") {
            let path = entry.expect("a file").path();
            if path.to_string_lossy().ends_with(deleted) {
                std::fs::remove_file(path).expect("it is there");
            }
        }
        first.save(&prompt(2));
        assert!(first.cold.settle(patience()));
        assert_eq!(first.store.stats()["cold_written_total"], 2.0 * BLOCKS as f64);
        // Nothing looked at the place meanwhile. A process that ends now leaves what finds the blocks.
        drop(first);
        let mut second = World::with_seed(directory.path(), 32 << 20, 1, "size=64MiB", 7);
        assert!(second.promote(&prompt(2)), "without {deleted}");
        assert_eq!(second.load(&prompt(2)), BLOCKS, "without {deleted}");
    }
}

fn sealing(seal: Seal, number: u64) -> Sealing {
    Some((seal, SealKeys::parse(&format!("{number:064x}")).expect("a key")))
}

/// Whether any page of a prompt lies in a file of this directory.
fn shows(directory: &Path, tokens: &[TokenId]) -> bool {
    let files = std::fs::read_dir(directory).expect("a directory");
    let all: Vec<u8> = files.flat_map(|entry| std::fs::read(entry.expect("a file").path()).expect("ours")).collect();
    let page = page_bytes(tokens[0], 0);
    all.windows(64).any(|part| part == &page[..64])
}

#[test]
fn a_sealed_region_has_a_sealed_place_below_it() {
    for seal in [Seal::Mac, Seal::Encrypt] {
        let directory = tempfile::tempdir().expect("a directory");
        let world = || World::with_seal(directory.path(), 32 << 20, 1, "size=64MiB", 1, sealing(seal, 1));
        let mut first = world();
        first.save(&prompt(1));
        assert!(first.cold.settle(patience()));
        assert_eq!(first.store.stats()["cold_written_total"], BLOCKS as f64);
        drop(first);
        assert_eq!(shows(directory.path(), &prompt(1)), seal == Seal::Mac);
        let mut second = world();
        assert!(second.promote(&prompt(1)));
        assert_eq!(second.load(&prompt(1)), BLOCKS);
        drop(second);
        // A region with another seal is told so when it is made, and its tier never opens the place.
        let settings: Settings = directory.path().display().to_string().parse().expect("a setting");
        for other in [None, sealing(seal, 2)] {
            let given = Settings { seal: other.clone(), ..settings.clone() };
            let error = seed_of(&given, &HashSeed([1; 32]), Clock::system()).expect_err("it is refused");
            assert!(error.is_refusal() && error.to_string().contains("another place"), "{error}");
            let other_place = tempfile::tempdir().expect("a directory");
            let made = World::with_seal(other_place.path(), 8 << 20, 1, "size=64MiB", 1, other);
            let cold = ColdTier::start(made.pool.clone(), &settings, made.time.clock()).expect("a directory");
            let error = until("the tier is refused", || cold.last_error());
            assert!(error.contains("sealed") && !cold.wait_open(Clock::system().after(Duration::ZERO)), "{error}");
        }
    }
}

/// Frames that another engine had written down came back into the region of an engine without their codec,
/// which found them, missed them, and could not publish its own block.
#[test]
fn a_block_that_this_engine_cannot_decode_stays_below() {
    use crate::region_store::{block_codec, number_pages};

    let directory = tempfile::tempdir().expect("a directory");
    let mut first = World::new(directory.path(), 32 << 20, 1, "size=64MiB");
    first.store = first.store.with_codec(block_codec("int8"), &spec(1));
    let tokens = prompt(1);
    let hashes = first.store.naming().names(None, &tokens);
    let mut pages = number_pages(0);
    pages.iter_mut().for_each(|page| page.resize(PAGE, 0));
    let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    let block = Computed { hash: hashes[0], depth: 0, pages: &pages };
    assert_eq!(first.store.save_all(None, &[block]), 1);
    assert!(first.store.stats()["store_encoded_bytes_total"] > 0.0);
    assert!(first.cold.settle(patience()));
    drop(first);
    let mut plain = World::new(directory.path(), 32 << 20, 1, "size=64MiB");
    assert!(plain.promote(&tokens));
    assert_eq!(plain.store.match_prefix(&hashes), 0);
    assert_eq!(plain.store.save_all(None, &[block]), 1);
    let mut bytes = vec![vec![0; PAGE]; 4];
    let mut parts: Vec<&mut [u8]> = bytes.iter_mut().map(Vec::as_mut_slice).collect();
    assert!(plain.store.load(hashes[0], &mut parts).finish(&mut []), "its own block is there");
    drop(plain);
    // With the codec it comes back.
    let mut again = World::new(directory.path(), 32 << 20, 1, "size=64MiB");
    again.store = again.store.with_codec(block_codec("int8"), &spec(1));
    assert!(again.promote(&tokens));
    assert_eq!(again.store.match_prefix(&hashes), 1);
}
