//! By NIXL, within one process. Two processes are in the tests of the command.

use crate::support::{Tally, patience};
use cenote_base::Clock;
use cenote_base::testing::until;
use cenote_mem::RegionSource;
use cenote_reach::nixl::Nixl;
use cenote_reach::{Key, Memory, Reader, Share, connect, offer_of};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

mod exchange {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    /// What a share says needs no NIXL until a region is there.
    pub fn serve(share: &Arc<Share>, is_over: &Arc<AtomicBool>) -> (String, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (share, is_over) = (Arc::clone(share), Arc::clone(is_over));
        let thread = std::thread::spawn(move || {
            let heard: Arc<dyn Fn(std::net::SocketAddr, std::io::Result<()>) + Send + Sync> = Arc::new(|_, _| ());
            share.serve(&listener, &heard, || {
                std::thread::yield_now();
                !is_over.load(Ordering::Acquire)
            });
        });
        (address, thread)
    }

    /// An end that has no key learns nothing, and one that says anything is dropped.
    pub fn garbage(address: &str) {
        for words in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 48], b"cenote reach 1\r\n", &[0xff; 4096]] {
            let mut stream = TcpStream::connect(address).expect("it listens");
            let _ = stream.write_all(words);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.len() <= 80, "{} bytes for an end without a key", answer.len());
        }
    }
}

fn library() -> Option<PathBuf> {
    std::env::var_os("CENOTE_TEST_NIXL").map(PathBuf::from)
}

#[test]
fn a_library_that_is_not_there_is_named_with_the_next_step() {
    let error = Nixl::open(Some("/nowhere/libnixl_capi.so".as_ref())).err().expect("it is not there").to_string();
    assert!(error.contains("/nowhere/libnixl_capi.so") && error.contains("nixl-cu12"), "{error}");
}

#[test]
#[ignore = "needs NIXL: cargo xtask reach"]
fn a_region_is_read_by_nixl_until_it_is_made_anew() {
    use crate::support::{chain, config, pace, payload, readable};
    use cenote_base::seal::Seal;
    use cenote_mem::{Coherent, MapOptions, Mapping};
    use cenote_pool::{AttachOptions, NewBlock, Pool, Publish, Superblock};

    let library = library().expect("CENOTE_TEST_NIXL names libnixl_capi.so");
    let nixl = Nixl::open(Some(&library)).expect("NIXL");
    let source: RegionSource = format!("shm:cenote-test-reach-{}", std::process::id()).parse().expect("a name");
    let make = |identity: u8| {
        let mapping = Mapping::create(&source, 8 << 20, 0o600, &MapOptions::default()).expect("shared memory");
        let fabric = Arc::new(Coherent::new(mapping));
        Superblock::format(&fabric, &config(identity, 7, Seal::None)).expect("it fits");
        let options = AttachOptions { private: true, ..AttachOptions::named("test") };
        Pool::attach(Arc::clone(&fabric), &options).expect("a fresh region")
    };
    let key = Key::new([3; 32]);
    let share = Arc::new(Share::new(key.clone(), Clock::system()));
    let mut memory = Memory::new(source.clone(), Arc::clone(&nixl));
    let is_over = Arc::new(AtomicBool::new(false));
    let (address, thread) = exchange::serve(&share, &is_over);
    assert!(memory.follow().is_err(), "there is no region yet");
    exchange::garbage(&address);
    assert_eq!(offer_of(&address, &key, patience()).expect("it answers"), None);
    assert!(offer_of(&address, &Key::new([4; 32]), patience()).is_err());

    let pool = make(1);
    let namespace = crate::support::namespace(&pool, 1);
    let hashes = chain(&namespace, 1, 300);
    for (depth, &hash) in (0..).zip(&hashes) {
        let bytes = payload(hash, namespace.block_bytes);
        let new = NewBlock { names: crate::support::names(hash), ..NewBlock::new(&namespace, hash, depth) };
        assert_eq!(pool.publish(&new, &[&bytes]), Publish::Published);
    }
    let offer = memory.follow().expect("it is shared");
    share.set(Some(&offer));
    assert_eq!((memory.follow().expect("still").registration, offer.registration), (1, 1));
    let seed = pool.superblock().config.seed;
    let other = cenote_base::HashSeed([8; 32]);
    let refused = connect(&nixl, &address, &key, &other, "other", patience()).err().expect("another seed");
    assert!(refused.to_string().contains("hash seed"), "{refused}");
    let remote = connect(&nixl, &address, &key, &seed, "reader", patience()).expect("it connects");
    let mut reader = Reader::open(remote, &seed, None, patience()).expect("a region");
    let hits = reader.find(&hashes, pace()).expect("it answers");
    let mut tally = Tally::default();
    reader
        .fetch((&namespace, &readable()), &hits, pace(), |hit, fetched| tally.count(hit, fetched))
        .expect("it answers");
    assert_eq!(tally, Tally { whole: 300, ..Tally::default() });

    drop(pool);
    Mapping::remove(&source).expect("it is there");
    assert!(memory.follow().is_err());
    let pool = make(2);
    let again = memory.follow().expect("the new one is shared");
    share.set(Some(&again));
    assert!(again.registration == 2 && again.region != offer.region);
    until("the old registration reads no more, or reads the old region", || {
        reader.check(patience()).is_err().then_some(())
    });
    let remote = connect(&nixl, &address, &key, &seed, "reader-2", patience()).expect("it connects");
    assert!(Reader::open(remote, &seed, None, patience()).is_ok());
    drop(pool);
    is_over.store(true, Ordering::Release);
    thread.join().expect("it ends");
    Mapping::remove(&source).expect("it is there");
}
