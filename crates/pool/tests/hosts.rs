//! Two hosts that share a region without coherence, as one process sees them.

mod support;

use cenote_base::HostId;
use cenote_mem::{Flush, Flushed, MapOptions, Mapping, RegionSource};
use cenote_pool::{AttachOptions, Inspector, Pool, Superblock};
use std::sync::Arc;
use std::time::Duration;
use support::small_config;

/// Nobody else is at the lock, or nobody will ever leave it.
const SOON: Duration = Duration::from_millis(20);

#[test]
fn a_dead_host_is_told_of_once() {
    let mapping = Mapping::create(&RegionSource::Anon, 2 << 20, 0o600, &MapOptions::default()).expect("memory");
    let flush = Flush::available()[0];
    let fabric = Arc::new(Flushed::new(mapping, flush).expect("it is available"));
    Superblock::format(&fabric, &small_config(21)).expect("the configuration fits");
    let attach = |host| {
        let options = AttachOptions { private: true, host: HostId(host), ..AttachOptions::named("test") };
        Pool::attach(Arc::clone(&fabric), &options).expect("each host has its slot")
    };
    let (first, second) = (attach(0), attach(1));
    // A host that is gone never gives its lock back.
    std::mem::forget(first.lock_user(0, SOON).expect("nobody has it"));
    assert!(second.lock_user(0, SOON).is_err(), "a living host has it");
    second.fence_host(HostId(0)).expect("it attached");
    let told: Vec<bool> =
        (0..3).map(|_| second.lock_user(0, SOON).expect("the dead hold nothing").abandoned()).collect();
    assert_eq!(told, [true, false, false], "only the first is to repair");
    assert!(!second.lock_user(1, SOON).expect("nobody had it").abandoned());
}

#[test]
fn hosts_are_told_of_with_what_they_own() {
    let mapping = Mapping::create(&RegionSource::Anon, 2 << 20, 0o600, &MapOptions::default()).expect("memory");
    let fabric = Arc::new(Flushed::new(mapping, Flush::available()[0]).expect("it is available"));
    Superblock::format(&fabric, &small_config(22)).expect("the configuration fits");
    let options = |host| AttachOptions { private: true, host: HostId(host), ..AttachOptions::named("test") };
    let attach = |host| Pool::attach(Arc::clone(&fabric), &options(host)).expect("each host has its slot");
    let (first, second) = (attach(0), attach(1));
    first.put_object("root", b"bytes").expect("there is room");
    let rows = |pool: &Pool<Arc<Flushed>>| -> Vec<_> {
        let hosts = pool.info().hosts;
        hosts.iter().map(|host| (host.host, host.alive, host.marked_dead, host.workers, host.chunks)).collect()
    };
    assert_eq!(rows(&second), [(0, None, false, 1, 1), (1, Some(true), false, 1, 0)], "nobody has listened yet");
    second.tick();
    assert_eq!(rows(&second)[0], (0, Some(true), false, 1, 1), "its heart was heard");
    second.fence_host(HostId(0)).expect("it attached");
    assert_eq!(rows(&second)[0], (0, Some(false), true, 1, 1));
    let inspector = Inspector::open(&fabric, &options(1)).expect("it is a region");
    let report = inspector.check(true);
    assert!(report.is_clean(), "{report:#?}");
    let dead = report.pending.iter().find(|finding| finding.what == "host 0").expect("it is told");
    assert!(dead.fact.contains("owns 1 chunk"), "{dead:?}");
    assert_eq!((report.objects, report.chunks), (1, 1), "chunks of all hosts are walked");
    drop(first);
}
