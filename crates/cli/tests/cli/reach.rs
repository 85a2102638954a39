//! Two hosts that share no memory: each has a region, and one reads the other's by NIXL. `cargo xtask
//! reach` installs NIXL and runs the tests that need it.

use super::support::client::greedy;
use super::support::process::{Server, cenote, signal};
use super::support::region::{Region, remove};
use super::support::{tokens, until};
use cenote_reach::lan::Lan;
use rustix::process::Signal;
use std::io::Write;

const LENGTH: usize = 400;
const SEED: &str = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a";

fn library() -> String {
    std::env::var("CENOTE_TEST_NIXL").expect("CENOTE_TEST_NIXL names libnixl_capi.so: cargo xtask reach")
}

/// A file with the key number `number`, which no other user reads.
fn key(number: u8) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    writeln!(file, "{}", hex::encode([number; 32])).expect("it is ours");
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().expect("its path is text")
}

async fn create(region: &Region) {
    cenote(["pool", "create", "--region", &region.name, "--size", "128MiB", "--hash-seed", SEED]).ok().await;
}

/// A region that is shared, and a server on another region that reads it.
struct Hosts {
    owner: Region,
    owner_server: Server,
    share: Server,
    reader: Region,
    reader_server: Server,
}

impl Hosts {
    async fn start(variables: &[(&str, &str)], deadline: &str) -> Self {
        let (library, key) = (library(), key(7));
        let (owner, reader) = (Region::name_only(), Region::name_only());
        create(&owner).await;
        create(&reader).await;
        let flags =
            ["pool", "share", "--region", &owner.name, "--listen", "127.0.0.1:0", "--key-file", path(&key), "--nixl"];
        let share = Server::of(cenote(flags.into_iter().chain([library.as_str()])), variables).await;
        let owner_server = Server::start(&["--region", &owner.name]).await;
        let peers = format!("{},deadline={deadline}", share.url);
        let flags = ["--region", &reader.name, "--peers", &peers, "--peer-key-file", path(&key), "--nixl", &library];
        let reader_server = Server::start_with(&flags, variables).await;
        let hosts = Self { owner, owner_server, share, reader, reader_server };
        hosts.wait_for("cenote_remote_peers_good", 1.0).await;
        hosts
    }

    async fn wait_for(&self, name: &str, value: f64) {
        until(name, async || (self.reader_server.client.metric(name).await == value).then_some(())).await;
    }

    /// The prompt's text on the owner, and its text and cached tokens on the reader.
    async fn both(&self, prompt: u64) -> (String, String, u64) {
        let body = greedy(&tokens(prompt, LENGTH), 6);
        let first = self.owner_server.client.complete(&body).await;
        let blocks = LENGTH as u64 / 16;
        until("the owner's blocks", async || {
            (self.owner.info().await["blocks_ready"].as_u64() >= Some(blocks)).then_some(())
        })
        .await;
        let second = self.reader_server.client.complete(&body).await;
        (first.text, second.text, second.cached_tokens)
    }

    async fn stop(self) {
        self.reader_server.stop().await;
        self.owner_server.stop().await;
        self.reader.expect_clean().await;
    }
}

async fn a_prompt_of_one_host_is_warm_on_the_other(variables: &[(&str, &str)]) {
    let hosts = Hosts::start(variables, "60").await;
    for prompt in 0..3 {
        let (first, second, cached) = hosts.both(prompt).await;
        assert_eq!(first, second, "prompt {prompt}");
        assert!(cached >= LENGTH as u64 / 16 * 16 - 16, "{cached} cached tokens of prompt {prompt}");
    }
    let client = &hosts.reader_server.client;
    // The engine's counters are those of its last step, or of the last second.
    until("all blocks count as hits", async || {
        (client.metric("cenote_remote_hits_total").await >= 3.0 * 24.0).then_some(())
    })
    .await;
    for none in ["wrong", "stale", "failed", "late"] {
        assert_eq!(client.metric(&format!("cenote_remote_{none}_total")).await, 0.0, "{none}");
    }
    // The copies are this host's own: it needs the other one no more.
    hosts.share.stop().await;
    hosts.owner_server.stop().await;
    let again = hosts.reader_server.client.complete(&greedy(&tokens(1, LENGTH), 6)).await;
    assert!(again.cached_tokens > 0);
    hosts.reader_server.stop().await;
    hosts.reader.expect_clean().await;
}

#[tokio::test]
#[ignore = "needs NIXL: cargo xtask reach"]
async fn over_shared_memory() {
    a_prompt_of_one_host_is_warm_on_the_other(&[]).await;
}

#[tokio::test]
#[ignore = "needs NIXL: cargo xtask reach"]
async fn over_tcp() {
    a_prompt_of_one_host_is_warm_on_the_other(&[("UCX_TLS", "tcp,self")]).await;
}

#[tokio::test]
#[ignore = "needs NIXL: cargo xtask reach"]
async fn a_killed_share_costs_misses_and_a_new_one_is_found() {
    let hosts = Hosts::start(&[("UCX_TLS", "tcp,self")], "1").await;
    let address = hosts.share.url.clone();
    hosts.share.kill().await;
    let alone = |prompt: u64| greedy(&tokens(prompt, LENGTH), 6);
    for prompt in 10..13 {
        let first = hosts.owner_server.client.complete(&alone(prompt)).await;
        assert_eq!(hosts.reader_server.client.complete(&alone(prompt)).await.text, first.text);
    }
    until("the peer is suspect", async || {
        (hosts.reader_server.client.metric("cenote_remote_peers_suspect").await == 1.0).then_some(())
    })
    .await;
    let health = hosts.reader_server.client.health().await.to_string();
    assert!(health.contains(&address), "{health}");
    let late = hosts.reader_server.client.metric("cenote_remote_late_total").await;
    let first = hosts.owner_server.client.complete(&alone(13)).await;
    assert_eq!(hosts.reader_server.client.complete(&alone(13)).await.text, first.text);
    assert_eq!(hosts.reader_server.client.metric("cenote_remote_late_total").await, late, "nothing waited");
    // Another share at the same address.
    let (library, key) = (library(), key(7));
    let flags = ["pool", "share", "--region", &hosts.owner.name, "--listen", &address, "--key-file", path(&key)];
    let share = cenote(flags.into_iter().chain(["--nixl", library.as_str()]));
    let share = Server::of(share, &[("UCX_TLS", "tcp,self")]).await;
    until("the peer is good", async || {
        (hosts.reader_server.client.metric("cenote_remote_peers_good").await == 1.0).then_some(())
    })
    .await;
    share.stop().await;
    hosts.reader_server.stop().await;
    hosts.owner_server.stop().await;
    hosts.reader.expect_clean().await;
}

/// A process and those that its first thread has started.
fn with_children(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it lives");
    let children = children.split_whitespace().map(|word| word.parse().expect("a number"));
    std::iter::once(pid).chain(children).collect()
}

#[tokio::test]
#[ignore = "needs NIXL: cargo xtask reach"]
async fn a_stopped_share_costs_one_deadline_and_then_none() {
    let hosts = Hosts::start(&[("UCX_TLS", "tcp,self")], "1").await;
    let both = with_children(hosts.share.pid);
    assert_eq!(both.len(), 2, "the process with the key, and that with the memory");
    both.iter().for_each(|&pid| signal(pid, Signal::STOP));
    let body = |prompt: u64| greedy(&tokens(prompt, LENGTH), 6);
    // The first of these waits for its deadline, unless the peer's thread looked before.
    for prompt in 20..23 {
        let first = hosts.owner_server.client.complete(&body(prompt)).await;
        assert_eq!(hosts.reader_server.client.complete(&body(prompt)).await.text, first.text);
    }
    hosts.wait_for("cenote_remote_peers_suspect", 1.0).await;
    let late = hosts.reader_server.client.metric("cenote_remote_late_total").await;
    assert!(late <= LENGTH as f64 / 16.0, "{late} blocks were late: one request waited");
    both.iter().for_each(|&pid| signal(pid, Signal::CONT));
    hosts.wait_for("cenote_remote_peers_good", 1.0).await;
    let (first, second, _) = hosts.both(24).await;
    assert_eq!(first, second);
    let share = hosts.share;
    hosts.reader_server.stop().await;
    hosts.owner_server.stop().await;
    share.stop().await;
    hosts.reader.expect_clean().await;
}

#[tokio::test]
#[ignore = "needs NIXL: cargo xtask reach"]
async fn a_region_made_anew_is_shared_anew() {
    let hosts = Hosts::start(&[], "60").await;
    let Hosts { owner, owner_server, share, reader, reader_server } = hosts;
    owner_server.stop().await;
    remove(&owner.name);
    until("the share has noticed", async || share.words().contains("not shared").then_some(())).await;
    create(&owner).await;
    until("the share has the new one", async || share.words().contains("registration 2").then_some(())).await;
    until("the reader has it, too", async || {
        (reader_server.client.metric("cenote_remote_connections_total").await >= 2.0
            && reader_server.client.metric("cenote_remote_peers_good").await == 1.0)
            .then_some(())
    })
    .await;
    let owner_server = Server::start(&["--region", &owner.name]).await;
    let hosts = Hosts { owner, owner_server, share, reader, reader_server };
    let (first, second, cached) = hosts.both(30).await;
    assert_eq!(first, second);
    assert!(cached > 0);
    hosts.stop().await;
}

/// Hosts in network namespaces, each with a `/dev/shm` of its own. Each asks all others.
async fn all_hosts_answer_alike(count: usize) {
    let Some(lan) = Lan::start(count) else { return };
    let (library, key) = (library(), key(7));
    let on = |host: usize, words: &[&str]| {
        let command = cenote(words.iter().copied()).behind(&lan.prefix(host));
        Lan::variables().into_iter().fold(command, |command, (name, value)| command.env(name, value))
    };
    let address = |host: usize| format!("{}:7411", lan.address(host));
    let mut shares = Vec::new();
    for host in 0..count {
        on(host, &["pool", "create", "--region", "shm:kv", "--size", "128MiB", "--hash-seed", SEED]).ok().await;
        let (listen, key) = (address(host), path(&key));
        let share = ["pool", "share", "--region", "shm:kv", "--listen", &listen, "--key-file", key, "--nixl", &library];
        shares.push(Server::of(on(host, &share), &[]).await);
    }
    let mut servers = Vec::new();
    for host in 0..count {
        let others: Vec<String> = (0..count).filter(|other| *other != host).map(address).collect();
        let (peers, own) = (format!("{},deadline=60", others.join(",")), lan.address(host));
        let serve = ["serve", "--host", &own, "--port", "0", "--threads", "1", "--region", "shm:kv", "--peers", &peers];
        let serve = [&serve[..], &["--peer-key-file", path(&key), "--nixl", &library]].concat();
        servers.push(Server::of(on(host, &serve), &[]).await);
    }
    for server in &servers {
        until("its peers are good", async || {
            (server.client.metric("cenote_remote_peers_good").await == (count - 1) as f64).then_some(())
        })
        .await;
    }
    let whole = LENGTH as u64 / 16 * 16 - 16;
    for prompt in 0..count {
        let body = greedy(&tokens(50 + prompt as u64, LENGTH), 6);
        let first = servers[prompt].client.complete(&body).await;
        assert_eq!(first.cached_tokens, 0, "prompt {prompt} is new");
        until("the owner's blocks", async || {
            (servers[prompt].client.complete(&body).await.cached_tokens >= whole).then_some(())
        })
        .await;
        for server in servers.iter().enumerate().filter(|(host, _)| *host != prompt).map(|(_, server)| server) {
            let other = server.client.complete(&body).await;
            assert_eq!(other.text, first.text, "prompt {prompt}");
            assert!(other.cached_tokens >= whole, "{} cached tokens of prompt {prompt}", other.cached_tokens);
        }
    }
    for server in servers {
        for none in ["wrong", "stale", "failed", "late"] {
            assert_eq!(server.client.metric(&format!("cenote_remote_{none}_total")).await, 0.0, "{none}");
        }
        assert!(server.client.metric("cenote_remote_hits_total").await >= ((count - 1) * LENGTH / 16) as f64);
        server.stop().await;
    }
    for share in shares {
        share.stop().await;
    }
}

#[tokio::test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
async fn two_hosts_that_share_no_memory_answer_alike() {
    all_hosts_answer_alike(2).await;
}

#[tokio::test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
async fn four_hosts_that_share_no_memory_answer_alike() {
    all_hosts_answer_alike(4).await;
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let region = Region::create("64MiB").await;
    let key = key(7);
    let share = ["pool", "share", "--region", &region.name, "--listen", "127.0.0.1:0", "--key-file"];
    cenote([&share[..], &["/nowhere/key"]].concat()).fails(&["/nowhere/key"]).await;
    let no_library = [&share[..], &[path(&key), "--nixl", "/nowhere/libnixl_capi.so"]].concat();
    cenote(no_library).fails(&["/nowhere/libnixl_capi.so", "nixl-cu12", "reach.md"]).await;
    let serve = ["serve", "--region", &region.name, "--peers", "127.0.0.1:1"];
    cenote(serve).fails(&["--peer-key-file"]).await;
    cenote([&serve[..4], &["nowhere", "--peer-key-file", path(&key)]].concat()).fails(&["`nowhere`"]).await;
}
