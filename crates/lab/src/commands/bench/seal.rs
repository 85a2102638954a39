//! `cenote-lab bench seal`: puts and gets of sealed regions beside those of an unsealed one, in turns.

use super::blocks::Blocks;
use super::rows::{Row, Times, median};
use super::{Part, Setting};
use cenote_base::HashSeed;
use cenote_base::prng::Prng;
use cenote_base::seal::{Seal, SealKeys};
use cenote_console::failure::Failure;
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{AttachOptions, Pool, PoolConfig, ReadOutcome, Superblock};
use std::sync::Arc;
use std::time::Instant;

pub const PARTS: &[Part] = &[Part { name: "seal", measure: rows }];

/// Least part of the unsealed rate, for blocks of 1 MiB.
const GOALS: [(Seal, f64); 2] = [(Seal::Mac, 0.90), (Seal::Encrypt, 0.75)];
const GOAL_BYTES: u64 = 1 << 20;

/// A region of this process.
struct World {
    seal: Seal,
    blocks: Blocks<Arc<Coherent>>,
    put: Times,
    get: Times,
}

impl World {
    fn new(seal: Seal, block_bytes: u64, region_bytes: u64) -> Result<Self, Failure> {
        let keys = SealKeys::parse(&"0123456789abcdef".repeat(4)).map_err(|error| Failure::new(error.to_string()))?;
        let keys = (seal != Seal::None).then_some(keys);
        let config = PoolConfig { max_hosts: 1, ..PoolConfig::new(HashSeed([3; 32]), [7; 16]) };
        let config = keys.as_ref().map_or_else(|| config.clone(), |keys| config.clone().sealed(seal, keys));
        let options = MapOptions { prefault: true, ..MapOptions::default() };
        let mapping = Mapping::create(&RegionSource::Anon, region_bytes, 0o600, &options)?;
        let fabric = Arc::new(Coherent::new(mapping));
        Superblock::format(&fabric, &config)?;
        let pool = Pool::attach(fabric, &AttachOptions { private: true, keys, ..AttachOptions::named("bench") })?;
        Ok(Self { seal, blocks: Blocks::of(pool, block_bytes)?, put: Times::new(), get: Times::new() })
    }

    fn put(&mut self, number: u64, payload: &[u8]) -> Result<(), Failure> {
        let start = Instant::now();
        let outcome = self.blocks.put(number, payload);
        self.put.push(start.elapsed().as_nanos() as f64);
        outcome
    }

    fn get(&mut self, number: u64, payload: &mut [u8]) -> Result<(), Failure> {
        let start = Instant::now();
        let hits = self.blocks.pool.lookup(&[self.blocks.name(number)]);
        let outcome = hits.first().map(|hit| self.blocks.pool.read(hit, &mut [&mut *payload]));
        self.get.push(start.elapsed().as_nanos() as f64);
        if outcome == Some(ReadOutcome::Whole) {
            Ok(())
        } else {
            Err(Failure::new(format!("a get ended with {outcome:?}")))
        }
    }
}

fn rows(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for block_bytes in [64 << 10, 256 << 10, GOAL_BYTES] {
        rows.extend(of_size(setting, block_bytes)?);
    }
    Ok(rows)
}

/// What is measured, on one region with the block of this number.
type Operation<'a> = Box<dyn FnMut(&mut World, u64) -> Result<(), Failure> + 'a>;

/// Blocks of one size. The regions together exceed every cache, and each operation takes another block,
/// so all bytes come from memory and go there. The three regions take turns in random order.
fn of_size(setting: &Setting, block_bytes: u64) -> Result<Vec<Row>, Failure> {
    let region_bytes = setting.choose(192 << 20, 48 << 20);
    // Half of a region, so that no put evicts.
    let blocks = region_bytes / 2 / block_bytes;
    let mut worlds = Vec::new();
    for seal in Seal::ALL {
        worlds.push(World::new(seal, block_bytes, region_bytes)?);
    }
    let mut prng = Prng::new(block_bytes);
    let mut payloads: Vec<Vec<u8>> = (0..32).map(|_| vec![0; block_bytes as usize]).collect();
    payloads.iter_mut().flatten().for_each(|byte| *byte = prng.next_u64() as u8);
    let mut turns = |mut operation: Operation<'_>| {
        for number in 0..blocks {
            let first = prng.below(3) as usize;
            for turn in 0..3 {
                operation(&mut worlds[(first + turn) % 3], number)?;
            }
        }
        Ok::<_, Failure>(())
    };
    turns(Box::new(|world, number| world.put(number, &payloads[number as usize % 32])))?;
    let mut buffers: Vec<Vec<u8>> = vec![vec![1; block_bytes as usize]; 32];
    let mut at = 0;
    for _ in 0..setting.choose(3, 1) {
        turns(Box::new(|world, number| {
            at = (at + 1) % buffers.len();
            world.get(number, &mut buffers[at])
        }))?;
    }
    Ok(worlds[1..].iter().flat_map(|world| compared(&worlds[0], world, block_bytes)).collect())
}

fn compared(plain: &World, sealed: &World, block_bytes: u64) -> [Row; 2] {
    let of = |name: &str, plain: &Times, times: &Times| {
        let name = format!("{}: {name} {} KiB, beside an unsealed one", sealed.seal, block_bytes >> 10);
        let (row, ratio) = (Row::rate(name, block_bytes, times), median(plain) / median(times));
        let goal = GOALS.iter().find(|(seal, _)| *seal == sealed.seal && block_bytes == GOAL_BYTES);
        match goal {
            Some((_, least)) => row.ratio_at_least(ratio, *least),
            None => row.ratio(ratio),
        }
    };
    [of("put", &plain.put, &sealed.put), of("get", &plain.get, &sealed.get)]
}
