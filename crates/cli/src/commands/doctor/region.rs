//! `cenote doctor --region`: what is wrong with a region, why it matters, and the next command.

use crate::args::DoctorArgs;
use crate::findings::Finding;
use crate::observer::{Observed, Observer};
use cenote_base::Clock;
use cenote_base::seal::Seal;
use cenote_base::units::ByteSize;
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_console::output::wrapped;
use cenote_mem::{AreaFile, HostArea, RegionSource, cpu};
use cenote_pool::{Superblock, area_identity};
use cenote_store::cold::{Place, Settings, survey};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;

/// Exit code if there is a finding.
const UNWELL: u8 = 2;

/// A disk with less space than this counts as full: one extent of the cold tier takes more.
const DISK_ROOM_MIN: u64 = 64 << 20;

#[derive(Serialize)]
struct Report {
    region: String,
    /// The faults, the worst first.
    findings: Vec<Finding>,
    /// What was looked at, for a report without findings.
    seen: Option<String>,
}

pub fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let source = args.region.source()?;
    let there = args.region.map_read_only();
    let identity =
        there.as_ref().ok().and_then(|fabric| Superblock::read(&**fabric).ok()).map(|block| block.config.uuid);
    let mut findings: Vec<Finding> = lost(source, identity, &HostArea::list(|name| area_identity(name).is_some()));
    let seen = match there.and_then(|_| observe(args)) {
        Ok(seen) => Some(seen),
        // The name leads nowhere, and no process misses a region there: a wrong name.
        Err(failure) if findings.is_empty() => return Err(failure),
        Err(_) => None,
    };
    let text = seen.as_ref().map(summary);
    findings.extend(seen.into_iter().flat_map(|seen| seen.findings));
    if let Some(settings) = &args.cold {
        // A finding by errors alone says less.
        let found = cold(settings, &args.region);
        findings.retain(|finding| found.is_none() || finding.kind != "cold tier");
        findings.extend(found);
    }
    let report = Report { region: source.to_string(), findings, seen: text };
    args.output.show(&report, || report.text())?;
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(UNWELL) })
}

fn observe(args: &DoctorArgs) -> Result<Observed, Failure> {
    let clock = Clock::system();
    let mut observer = Observer::open(&args.region, clock)?;
    observer.look()?;
    let (_open, never) = channel::<()>();
    let _ = clock.after(args.every).receive(&never);
    observer.look()
}

/// The region, in one line.
fn summary(seen: &Observed) -> String {
    let info = &seen.look.info;
    let workers = info.workers.iter().filter(|worker| worker.alive != Some(false)).count();
    format!(
        "{}, {} of {} chunks taken, {} blocks ({}), {workers} processes",
        ByteSize(info.region_bytes),
        info.chunks_taken,
        info.num_chunks,
        info.blocks_ready,
        ByteSize(info.bytes_ready)
    )
}

impl Report {
    fn text(&self) -> String {
        let mut text = format!("{}: {}", self.region, self.seen.as_deref().unwrap_or("it cannot be read"));
        if self.findings.is_empty() {
            text += "\n\nnothing is wrong";
        }
        for (finding, number) in self.findings.iter().zip(1..) {
            text += &format!("\n\n{number}. {}\n", wrapped(&finding.what, "   ").trim_start());
            text += &wrapped(finding.why, "   ");
            text += &format!("\n   next: {}", finding.next);
        }
        text
    }
}

/// Faults of the name: processes use another region than the one that it leads to now. `identity`: of
/// that region, if it is one.
fn lost(source: &RegionSource, identity: Option<[u8; 16]>, areas: &[AreaFile]) -> Vec<Finding> {
    let Some(path) = source.path() else { return Vec::new() };
    let now = identity.map(hex::encode);
    let used = areas.iter().filter(|area| area.is_open && area.region.as_deref() == Some(&*path));
    let other = used.filter(|area| now.is_none() || area_identity(&area.name) != now.as_deref());
    let is_there = path.symlink_metadata().is_ok();
    let finding = |area: &AreaFile| {
        let (kind, what, why) = match (is_there, &now) {
            (false, _) => (
                "region gone",
                format!("{}: the file is gone, and processes still use its memory", path.display()),
                "They share among themselves only. No other process can join, and their blocks end with them.",
            ),
            (true, Some(_)) => (
                "region replaced",
                format!("{}: another region has the name, and processes still use the earlier one", path.display()),
                "Processes with the earlier region share nothing with those that have joined since.",
            ),
            (true, None) => (
                "superblock changed",
                format!("{}: processes use it, but its first line is not a region's any more", path.display()),
                "No other process can join. A running process repairs up to four words of it by itself.",
            ),
        };
        let next = format!("restart the processes that `grep -ls {} /proc/[0-9]*/maps` prints", area.name);
        Finding { kind, what, why, next }
    };
    other.map(finding).collect()
}

/// The cold tier's fault, seen from its place.
fn cold(settings: &Settings, region: &RegionArgs) -> Option<Finding> {
    let keys = region.keys().ok().flatten();
    let seal =
        region.map_read_only().ok().and_then(|fabric| Superblock::read(&*fabric).ok()).map(|block| block.config.seal);
    let seal = seal.filter(|seal| *seal != Seal::None).zip(keys);
    let place = &settings.place;
    if let Err(error) = survey(&Settings { seal, ..settings.clone() }, Clock::system()) {
        let next = if matches!(place, Place::Server(_)) { "start" } else { "mount or make" };
        return Some(Finding {
            kind: "cold tier closed",
            what: format!("the cold tier in {place} cannot be read: {error}"),
            why: "Blocks that leave the region are lost, and a new region begins empty.",
            next: format!("{next} {place}; processes open it again by themselves"),
        });
    }
    let Place::Directory(directory) = place else { return None };
    let space = cpu::space(Path::new(directory)).filter(|space| space.free_bytes < DISK_ROOM_MIN)?;
    Some(Finding {
        kind: "cold tier full",
        what: format!("the disk of the cold tier in {place} has {} left", ByteSize(space.free_bytes)),
        why: "Serving goes on. Blocks are not written, so those that leave the region are lost.",
        next: format!("free space there, or `cenote pool cold {place} --size SIZE` with a smaller limit"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_name_is_compared_with_what_processes_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("kv");
        let source = RegionSource::File(path.clone());
        let uuid = [0xab; 16];
        let area = |digits: &str, region: PathBuf, is_open| AreaFile {
            name: format!("cenote-{}-h0", digits.repeat(16)),
            region: Some(region),
            bytes: 4096,
            is_open,
        };
        let kinds = |identity, areas: &[AreaFile]| -> Vec<&str> {
            lost(&source, identity, areas).into_iter().map(|finding| finding.kind).collect()
        };
        let own = [area("ab", path.clone(), true)];
        assert_eq!(kinds(None, &own), ["region gone"]);
        std::fs::write(&path, "x").expect("new");
        assert_eq!(kinds(None, &own), ["superblock changed"]);
        assert!(kinds(Some(uuid), &own).is_empty(), "they use the region that has the name");
        assert_eq!(kinds(Some([1; 16]), &own), ["region replaced"]);
        let others = [area("cd", path, false), area("cd", dir.path().join("other"), true)];
        assert!(kinds(Some(uuid), &others).is_empty(), "an orphan, and another region's");
    }
}
