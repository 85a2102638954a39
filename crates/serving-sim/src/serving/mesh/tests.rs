use crate::hardware::h200::H200;
use crate::hardware::rdma::{CX_100G, TCP_100G};
use crate::model::{Link, ModelShape};
use crate::provision::Engine;
use crate::serving::{Pool, Setup, simulate_on_network};
use crate::workload::Synthetic;
use crate::{Card, Hosts, Network, NetworkReads, Outcome, Workload};

/// Hosts of one engine each, with a region of 32 GiB each.
fn setup(hosts: usize, network: Network) -> Setup {
    let shape = *ModelShape::named("llama-8b").expect("a preset");
    let alone = Engine { gpu: H200, gpus: 1, shape }.alone(256, 8_192).expect("it fits");
    Setup {
        instances: hosts as u32,
        shared: Some(Pool { bytes: Some(32 << 30), link: alone.swap_link }),
        hosts: Some(Hosts { network: Some(network), ..Hosts::new(hosts) }),
        ..alone
    }
}

fn load(hosts: usize, groups: u64) -> Workload {
    let drawn = Synthetic::tract('A', 40 * hosts, 4.0 * hosts as f64).expect("there is A");
    Synthetic { groups, block_tokens: 128, ..drawn }.draw(3)
}

fn run(setup: &Setup, load: &Workload) -> (Outcome, NetworkReads) {
    simulate_on_network(setup, load, &mut |_| ()).expect("it can be served")
}

fn slow(bytes_per_s: u64) -> Network {
    let card = TCP_100G.card();
    Network::Mesh(Card { link: Link { bytes_per_s, ..card.link }, ..card })
}

#[test]
fn a_prompt_that_is_warm_on_one_host_is_warm_on_all() {
    let load = load(8, 8);
    let (mesh, fetched) = run(&setup(8, Network::Mesh(CX_100G.card())), &load);
    // So slow that nothing is read beyond trials.
    let (apart, declined) = run(&setup(8, slow(1_000_000)), &load);
    assert!(mesh.hit_rate > apart.hit_rate + 0.1, "{} {}", mesh.hit_rate, apart.hit_rate);
    assert!(mesh.ttft_mean_ms < apart.ttft_mean_ms, "{} {}", mesh.ttft_mean_ms, apart.ttft_mean_ms);
    assert_eq!(mesh.requests, 320);
    assert!(
        fetched.read > 500 && fetched.late == 0 && fetched.read_bytes == fetched.read * (128 * 131_072),
        "{fetched:?}"
    );
    // A block for each of 56 pairs of hosts, and little more.
    assert!((1..112).contains(&declined.read) && declined.declined > 1_000, "{declined:?}");
    // A trial costs its request the deadline at most.
    assert!(apart.ttft_p99_ms < mesh.ttft_p99_ms + 1_000.0, "{} {}", apart.ttft_p99_ms, mesh.ttft_p99_ms);
    assert_eq!(run(&setup(8, Network::Mesh(CX_100G.card())), &load), (mesh, fetched), "equal runs");
}

#[test]
fn a_network_that_is_slower_than_computing_is_left_alone() {
    let load = load(8, 8);
    let read = |gigabytes: u64| run(&setup(8, slow(gigabytes * 1_000_000_000)), &load).1.read;
    // A block of 128 tokens takes an H200 some 5 ms, and 16 MiB are 3.4 GB/s.
    let (fast, little) = (read(40), read(1));
    assert!(fast > 10 * little.max(1), "{fast} {little}");
}

/// All hosts asked the same peer first, so one owner sent most of what a hot prompt's readers got.
#[test]
fn no_owner_of_a_hot_prompt_serves_all_readers() {
    let load = load(16, 1);
    let (_, fetched) = run(&setup(16, Network::Mesh(CX_100G.card())), &load);
    let share = fetched.sent_bytes_max as f64 / fetched.read_bytes as f64;
    assert!(fetched.read > 200 && share < 0.5, "{share} of {fetched:?}");
}

#[test]
fn an_object_store_gives_what_is_worth_its_latency() {
    let load = load(8, 8);
    let fast = Link { bytes_per_s: 50_000_000_000, latency_ns: 1_000_000 };
    let (near, fetched) = run(&setup(8, Network::Objects(fast)), &load);
    let (far, little) = run(&setup(8, Network::Objects(crate::hardware::objects::S3)), &load);
    assert!(fetched.read > 500 && near.hit_rate > far.hit_rate, "{fetched:?} {} {}", near.hit_rate, far.hit_rate);
    assert!(little.declined > little.read, "{little:?}");
    assert_eq!((near.requests, far.requests), (320, 320));
}
