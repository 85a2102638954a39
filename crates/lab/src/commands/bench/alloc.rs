//! `cenote-lab bench alloc`: the cost of space, with blocks so small that their bytes cost nothing.

use super::child::{Child, perform_together};
use super::regions::{Shape, fabrics, other_host};
use super::rows::{Row, Times};
use super::worker::Job;
use super::{Part, Setting};
use cenote_console::failure::Failure;

pub const PARTS: &[Part] = &[Part { name: "space", measure: rows }];

const BLOCK: u64 = 64;

fn rows(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let count = setting.choose(50_000, 10_000);
    for (fabric, flush) in fabrics() {
        // The free region has room for all blocks, the full one does not.
        let full = Shape { chunk_bytes: 64 << 10, min_block_bytes: 512, ..Shape::of(flush, 16 << 20) };
        let roomy = Shape { bytes: count * 4 * 1024 + (32 << 20), ..full };
        let region = setting.regions.make(&roomy)?;
        let (mut here, mut there) = (Child::start(&region, 0)?, Child::start(&region, other_host(flush))?);
        let job = |turn| Job::Publish { block_bytes: BLOCK, first: turn * count, count };
        let alone = here.perform(&job(0))?.remove(0);
        rows.push(Row::nanoseconds(format!("{fabric}: publish, with room"), &alone));
        let both: Times = perform_together(&mut [(&mut here, &job(1)), (&mut there, &job(2))])?
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        rows.push(Row::nanoseconds(format!("{fabric}: publish, with room, 2 processes at once"), &both));
        drop((here, there));
        rows.push(Row::nanoseconds(format!("{fabric}: publish, evicting"), &evicting(setting, &full, count)?));
        rows.push(Row::nanoseconds(format!("{fabric}: publish, claiming a chunk"), &claiming(setting, &full)?));
    }
    Ok(rows)
}

/// Publishes into a full region. Evictions free groups of blocks, so most publishes find room and a
/// few make it.
fn evicting(setting: &Setting, shape: &Shape, count: u64) -> Result<Times, Failure> {
    let region = setting.regions.make(shape)?;
    let mut child = Child::start(&region, 0)?;
    let full = shape.bytes / shape.min_block_bytes;
    child.perform(&Job::Fill { block_bytes: BLOCK, first: 0, count: full })?;
    Ok(child.perform(&Job::Publish { block_bytes: BLOCK, first: full, count })?.remove(0))
}

/// Chunks with room for one block, so that each publish claims one.
fn claiming(setting: &Setting, shape: &Shape) -> Result<Times, Failure> {
    let count = 1000;
    let shape = Shape { min_block_bytes: shape.chunk_bytes, bytes: (count + 512) * shape.chunk_bytes, ..*shape };
    let region = setting.regions.make(&shape)?;
    Ok(Child::start(&region, 0)?.perform(&Job::Publish { block_bytes: BLOCK, first: 0, count })?.remove(0))
}
