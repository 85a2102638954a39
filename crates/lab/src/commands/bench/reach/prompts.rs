//! The first token of a prompt that is warm on another host, against a hit in the own region, computing, and
//! Mooncake Store. One engine computes and publishes; another one, with a region of its own, asks for it.

use super::super::Setting;
use super::super::regions::Shape;
use super::super::rows::{Row, Times, median};
use super::super::ttft::Bench;
use super::sharing::{Sharing, own_cpu_ns, patience};
use super::{is_emulated, opened};
use cenote_base::Engine;
use cenote_base::prng::Prng;
use cenote_console::args::{EngineArgs, WatchArgs};
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_mem::Flush;
use serde::Deserialize;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const TOKENS: usize = 2_000;
const REGION_BYTES: u64 = 1 << 30;
/// Goal: most of Mooncake Store's time, over TCP.
const RIVAL_GOAL: f64 = 0.5;

/// What Mooncake Store took, in seconds a prompt.
#[derive(Deserialize)]
struct Rival {
    wall: Times,
    own_cpu: Times,
    owner_cpu: Times,
}

pub fn rows(setting: &Setting) -> Result<Vec<Row>, Failure> {
    if opened(setting).is_none() {
        return Ok(Vec::new());
    }
    let shape = Shape {
        min_block_bytes: 64 << 10,
        max_hosts: 1,
        hash_seed: Some([7; 32]),
        ..Shape::of(Flush::None, REGION_BYTES)
    };
    let (there, here) = (setting.regions.make(&shape)?, setting.regions.make_beside(&shape)?);
    let args = EngineArgs::of_model(None)?;
    let start = |args: &EngineArgs, region| engine::start(args, Some(region), &WatchArgs::default(), "bench");
    let mut owner = Bench::new(start(&args, &there)?);
    let sharing = Sharing::start(&there, setting.nixl.as_deref())?;
    let key = key_file(&sharing)?;
    let peers = format!("{},deadline=60", sharing.address).parse().map_err(|error| Failure::new(format!("{error}")))?;
    let asking = EngineArgs {
        peers: Some(peers),
        peer_key_file: Some(key.path().to_owned()),
        nixl: setting.nixl.clone(),
        ..args.clone()
    };
    let mut reader = Bench::new(start(&asking, &here)?);
    let until = patience();
    while reader.running.engine.stats().values.get("remote_peers_good") != Some(&1.0) {
        if until.passed() {
            return Err(Failure::new("the sharing process cannot be reached"));
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let mut prng = Prng::new(1);
    let (mut computed, mut remote, mut local) = (Times::new(), Times::new(), Times::new());
    let (mut reader_cpu, mut owner_cpu) = (Times::new(), Times::new());
    let repeat = setting.choose(20, 3);
    for _ in 0..repeat {
        let prompt: Vec<u32> = (0..TOKENS).map(|_| 100 + prng.below(150) as u32).collect();
        computed.push(owner.ask(&prompt, true)?.0 * 1e6);
        // Until the owner finds all of it, not all is published.
        hit(&mut owner, &prompt)?;
        let before = (own_cpu_ns(), sharing.cpu_ns()?);
        remote.push(hit(&mut reader, &prompt)?);
        reader_cpu.push(own_cpu_ns() - before.0);
        owner_cpu.push(sharing.cpu_ns()? - before.1);
        local.push(hit(&mut reader, &prompt)?);
    }
    let block_bytes = there.attach("bench")?.namespaces().iter().map(|row| row.block_bytes).max().unwrap_or(0);
    let blocks = (TOKENS / args.block_tokens as usize) as u64;
    let each = format!("{blocks} x {} KiB", block_bytes >> 10);
    let of = |way: &str| format!("first token of {TOKENS} tokens, {way}");
    let found = Row::milliseconds(of(&format!("hit at the other host ({each})")), &remote);
    let mut rows = vec![
        Row::milliseconds(of("computed and published"), &computed),
        Row::milliseconds(of("hit in the own region"), &local),
        found.ratio(median(&remote) / median(&computed)),
        Row::milliseconds(of("the asking process's processor time"), &reader_cpu),
        Row::milliseconds(of("the owner's processor time"), &owner_cpu),
    ];
    if let Some(python) = &setting.mooncake {
        rows.extend(beside_mooncake(python, (blocks, block_bytes, repeat), &remote, &local)?);
    }
    Ok(rows)
}

/// A file with the key, which lives as long as the value.
fn key_file(sharing: &Sharing) -> Result<tempfile::NamedTempFile, Failure> {
    let mut file = tempfile::NamedTempFile::new()?;
    writeln!(file, "{}", hex::encode(sharing.secret))?;
    Ok(file)
}

/// Nanoseconds of a prompt that must be cached but for its end.
fn hit(bench: &mut Bench, prompt: &[u32]) -> Result<f64, Failure> {
    let (milliseconds, usage) = bench.ask(prompt, true)?;
    if usage.cached_tokens as usize + 16 < prompt.len() {
        return Err(Failure::new(format!("{} of {} tokens were cached", usage.cached_tokens, prompt.len())));
    }
    Ok(milliseconds * 1e6)
}

/// As many bytes out of Mooncake Store. Behind them an engine has what a hit in its own region has.
fn beside_mooncake(
    python: &Path,
    (blocks, block_bytes, repeat): (u64, u64, u64),
    remote: &Times,
    local: &Times,
) -> Result<Vec<Row>, Failure> {
    let job = serde_json::json!({ "blocks": blocks, "block_bytes": block_bytes, "repeat": repeat });
    let mut child = Command::new(python)
        .args(["-c", include_str!("mooncake_store.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::new(format!("{}: cannot start: {error}", python.display())))?;
    child.stdin.take().expect("it is piped").write_all(job.to_string().as_bytes())?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rival: Option<Rival> = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    let rival = rival.ok_or_else(|| {
        Failure::new(format!("{}: Mooncake Store could not be measured ({})", python.display(), output.status))
    })?;
    let nanoseconds = |seconds: &Times| seconds.iter().map(|seconds| seconds * 1e9).collect::<Times>();
    let moved = nanoseconds(&rival.wall);
    let with_hit: Times = moved.iter().map(|ns| ns + median(local)).collect();
    let of = |what: &str| format!("Mooncake Store over TCP, {blocks} x {} KiB: {what}", block_bytes >> 10);
    let row = Row::milliseconds(of("found, copied, and a hit in the own region"), &with_hit);
    let ratio = median(remote) / median(&with_hit);
    Ok(vec![
        Row::milliseconds(of("found and copied"), &moved),
        if is_emulated() { row.ratio_at_most(ratio, RIVAL_GOAL) } else { row.ratio(ratio) },
        Row::milliseconds(of("the asking process's processor time"), &nanoseconds(&rival.own_cpu)),
        Row::milliseconds(of("its servers' processor time"), &nanoseconds(&rival.owner_cpu)),
    ])
}
