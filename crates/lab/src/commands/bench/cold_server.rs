//! `cenote-lab bench cold --server`: L4 in a Redis or Valkey server, beside the same client's own reads and
//! writes of as many bytes.

use super::cold::{first_tokens_from, found};
use super::rows::{Row, Times, median};
use super::{Part, Setting};
use crate::commands::cold_region::{ColdRegion, Shape};
use cenote_base::units::ByteSize;
use cenote_base::{BlockHash, Clock, HashSeed};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_store::cold::{Place, Settings};
use futures::stream::{StreamExt, TryStreamExt, iter};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, cmd};
use std::time::{Duration, Instant};

pub const PARTS: &[Part] =
    &[Part { name: "cold-server", measure: copies }, Part { name: "cold-server-ttft", measure: first_tokens }];

const BLOCK_BYTES: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections that read, and writes at once on one connection, as L4 has them.
const READERS: u64 = 4;
const WRITES: usize = 16;
/// Blocks of one question.
const ASKED: u64 = 256;
/// Time after which the server drops what a run leaves there.
const TTL: u64 = 600;

/// The server as a place with keys of its own for this run. `None`: none is named.
fn settings(setting: &Setting, purpose: &str) -> Result<Option<Settings>, Failure> {
    let Some(url) = &setting.server else {
        output::say("note: the rows of a Redis or Valkey server are left out; --server URL names one");
        return Ok(None);
    };
    let sign = if url.contains('?') { '&' } else { '?' };
    let run = format!("bench-{purpose}-{}-{}", std::process::id(), Clock::system().unix().as_nanos());
    let settings: Settings = format!("{url}{sign}ttl={TTL}&prefix={run},deadline=60").parse()?;
    match &settings.place {
        Place::Server(address) if !address.is_cluster => Ok(Some(settings)),
        place => Err(Failure::new(format!("--server {place}: this is no single Redis or Valkey server"))),
    }
}

/// Milliseconds of writing behind and of promotion, beside the client without a tier, and of a question
/// for blocks that are not there.
fn copies(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let count = setting.choose(256, 16);
    let bytes = count * BLOCK_BYTES;
    let payload: Vec<u8> = (0..BLOCK_BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
    let (mut raw_write, mut raw_read, mut write, mut read, mut ask) = (vec![], vec![], vec![], vec![], vec![]);
    let mut least_found = count;
    for round in 0..3 {
        let Some(settings) = settings(setting, &format!("copies-{round}"))? else { return Ok(Vec::new()) };
        let (set, get) = raw(setting, &payload, count)?;
        raw_write.push(set);
        raw_read.push(get);
        let shape =
            Shape { region_bytes: bytes + (64 << 20), chunk_bytes: 8 << 20, block_bytes: BLOCK_BYTES, prefault: true };
        let region = || ColdRegion::open(&settings, HashSeed([1; 32]), shape);
        let world = region()?;
        let hashes: Vec<BlockHash> = (0..count).map(|number| world.hash(number)).collect();
        if !(0..count).all(|number| world.publish(number, &payload)) {
            return Err(Failure::new("the region has no room for the blocks"));
        }
        let begin = Instant::now();
        world.cold.offer(&world.namespace, hashes.iter().copied());
        world.cold.settle(Clock::system().after(PATIENCE));
        write.push(begin.elapsed().as_nanos() as f64);
        drop(world);
        let world = region()?;
        let absent: Vec<BlockHash> = (0..ASKED).map(|number| world.hash(1 << 32 | number)).collect();
        for (hashes, times) in [(&absent, &mut ask), (&hashes, &mut read)] {
            let begin = Instant::now();
            if let Some(promotion) = world.cold.promote(&world.namespace, hashes) {
                promotion.wait();
            }
            times.push(begin.elapsed().as_nanos() as f64);
        }
        least_found = least_found.min(world.pool.peek(&hashes).len() as u64);
    }
    let size = ByteSize(bytes);
    let row = |name: &str, times: &Times| Row::milliseconds(format!("{name} {size}"), times);
    Ok(vec![
        row("SET of the client", &raw_write),
        row("write behind to the server", &write).ratio(median(&write) / median(&raw_write)),
        row("GET of the client", &raw_read),
        row("promote from the server", &read).ratio(median(&read) / median(&raw_read)),
        Row::milliseconds(format!("ask the server for {ASKED} absent blocks"), &ask),
        found(&format!("blocks found of {count} in the server"), least_found, count),
    ])
}

/// Nanoseconds of the client for so many values: written on one connection, and read on several.
fn raw(setting: &Setting, payload: &[u8], count: u64) -> Result<(f64, f64), Failure> {
    let failed = |error: redis::RedisError| Failure::new(format!("--server: {error}"));
    let client = redis::Client::open(setting.server.as_deref().unwrap_or_default()).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let key = |number: u64| format!("cenote-bench-raw:{}:{number}", std::process::id());
    let connect = async || {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        client.get_multiplexed_async_connection_with_config(&config).await
    };
    let measured: RedisResult<(f64, f64)> = runtime.block_on(async {
        let connection: MultiplexedConnection = connect().await?;
        let begin = Instant::now();
        let sets = iter(0..count).map(|number| {
            let mut connection = connection.clone();
            let set = cmd("SET").arg(key(number)).arg(payload).arg("EX").arg(TTL).to_owned();
            async move { set.query_async::<()>(&mut connection).await }
        });
        sets.buffer_unordered(WRITES).try_collect::<Vec<()>>().await?;
        let write = begin.elapsed().as_nanos() as f64;
        let begin = Instant::now();
        let reads = (0..READERS).map(|reader| async move {
            let mut connection = connect().await?;
            for number in (reader..count).step_by(READERS as usize) {
                let found: Vec<u8> = cmd("GET").arg(key(number)).query_async(&mut connection).await?;
                assert_eq!(found.len(), payload.len());
            }
            Ok::<(), redis::RedisError>(())
        });
        futures::future::try_join_all(reads).await?;
        let read = begin.elapsed().as_nanos() as f64;
        let mut connection = connection.clone();
        let keys: Vec<String> = (0..count).map(key).collect();
        cmd("UNLINK").arg(keys).query_async::<()>(&mut connection).await?;
        Ok((write, read))
    });
    measured.map_err(failed)
}

/// Time to first token of the demo model: computed, from the server in a new region, and from that region.
fn first_tokens(setting: &Setting) -> Result<Vec<Row>, Failure> {
    settings(setting, "ttft")?.map_or(Ok(Vec::new()), |settings| first_tokens_from(setting, &settings, "the server"))
}
