//! `cenote pool snapshot` and `cenote pool restore`.

use crate::args::{PoolRestoreArgs, PoolSnapshotArgs};
use cenote_base::units::ByteSize;
use cenote_console::failure::Failure;
use cenote_console::output::{self, facts};
use cenote_console::region;
use cenote_mem::Fabric;
use cenote_store::snapshot::{self, SnapshotError};
use serde::Serialize;
use std::process::ExitCode;

/// Exit code of a restoration that left damaged parts out.
const PARTIAL: u8 = 2;

#[derive(Serialize)]
struct SavedReport {
    path: String,
    namespaces: u64,
    objects: u64,
    blocks: u64,
    block_bytes: u64,
    missed: u64,
}

pub fn save(args: &PoolSnapshotArgs) -> Result<ExitCode, Failure> {
    let pool = args.region.attach("snapshot")?;
    let spinner = output::spinner("saving the region");
    let saved = snapshot::save(&pool, &args.path).map_err(|error| {
        let failure = Failure::new(error.to_string());
        match (&error, &args.region.region) {
            (SnapshotError::Restoring(path), Some(source)) => failure.hint(format!(
                "end it first: cenote pool restore --region {source} {path}; \
                 or remove the region with `cenote pool destroy`"
            )),
            _ => failure,
        }
    })?;
    spinner.finish_and_clear();
    let report = SavedReport {
        path: args.path.display().to_string(),
        namespaces: saved.namespaces,
        objects: saved.objects,
        blocks: saved.blocks,
        block_bytes: saved.block_bytes,
        missed: saved.missed,
    };
    args.output.show(&report, || {
        facts(&[
            ("snapshot", report.path.clone()),
            ("models", report.namespaces.to_string()),
            ("objects", report.objects.to_string()),
            ("blocks", format!("{} of {}", report.blocks, ByteSize(report.block_bytes))),
            ("blocks that left meanwhile", report.missed.to_string()),
        ])
    })?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct RestoredReport {
    region: String,
    region_bytes: u64,
    namespaces: u64,
    objects: u64,
    blocks: u64,
    no_room: u64,
    damaged: u64,
    is_whole: bool,
}

pub fn restore(args: &PoolRestoreArgs) -> Result<ExitCode, Failure> {
    let settings = snapshot::open_with(&args.path, args.region.keys()?.as_ref())?;
    let pool = region::join_to_restore(&args.region, &args.path, &settings, args.size, args.mode)?;
    let region_bytes = pool.fabric().len();
    let spinner = output::spinner("restoring the region");
    let restored = snapshot::restore(&pool, &args.path)?;
    spinner.finish_and_clear();
    let report = RestoredReport {
        region: args.region.source()?.to_string(),
        region_bytes,
        namespaces: restored.namespaces,
        objects: restored.objects,
        blocks: restored.blocks,
        no_room: restored.no_room,
        damaged: restored.damaged,
        is_whole: restored.is_whole(),
    };
    args.output.show(&report, || {
        facts(&[
            ("region", report.region.clone()),
            ("size", ByteSize(report.region_bytes).to_string()),
            ("models", report.namespaces.to_string()),
            ("objects", report.objects.to_string()),
            ("blocks", report.blocks.to_string()),
            ("without room", report.no_room.to_string()),
            ("damaged parts", report.damaged.to_string()),
        ])
    })?;
    if report.is_whole {
        return Ok(ExitCode::SUCCESS);
    }
    let path = args.path.display();
    output::say(&format!("warning: {path}: it is damaged or not complete; what is missing is computed again"));
    Ok(ExitCode::from(PARTIAL))
}
