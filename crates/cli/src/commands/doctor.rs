//! `cenote doctor`: what is wrong with a region, or the features of this machine and the recommended
//! region.

mod region;

use crate::args::DoctorArgs;
use crate::inventory::{self, Found, State};
use cenote_base::units::ByteSize;
use cenote_console::failure::Failure;
use cenote_console::output::{facts, wrapped};
use cenote_mem::cpu::{self, Machine};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

#[derive(Serialize)]
struct Diagnosis {
    machine: Machine,
    /// Bytes of swap, to which the kernel may write KV; `None`: not known.
    swap_bytes: Option<u64>,
    advice: Vec<Advice>,
    /// What a GPU's start on a region of all of `/dev/shm` costs; `None`: there is none.
    page_locking: Option<PageLocking>,
    /// Orphans of killed processes.
    orphans: Vec<Found>,
}

/// Shared memory with less space than this counts as full: a region of the smallest models takes
/// more.
const ROOM_MIN: u64 = 64 << 20;

/// A region that can be created here, the best first.
#[derive(Serialize, Debug, PartialEq, Eq)]
struct Advice {
    region: String,
    reason: String,
}

/// Seconds a GiB of page-locking with pages of 4 KiB: memory that was never touched, and memory that was
/// (docs/evidence/gpu.md).
const LOCK_FRESH_SECONDS: f64 = 0.85;
const LOCK_TOUCHED_SECONDS: f64 = 0.05;

/// The projected time of page-locking a region for a GPU.
#[derive(Serialize, Debug, PartialEq)]
struct PageLocking {
    region_bytes: u64,
    /// Of the first process on a new region.
    first_seconds: f64,
    /// Of each further process.
    further_seconds: f64,
}

impl PageLocking {
    fn of(region_bytes: u64) -> Self {
        let gib = region_bytes as f64 / (1_u64 << 30) as f64;
        Self { region_bytes, first_seconds: gib * LOCK_FRESH_SECONDS, further_seconds: gib * LOCK_TOUCHED_SECONDS }
    }

    fn text(&self) -> String {
        format!(
            "a region of {} takes about {:.0} s in the first process and {:.0} s in each further one, projected from \
             {LOCK_FRESH_SECONDS} and {LOCK_TOUCHED_SECONDS} s a GiB with pages of 4 KiB; huge pages are fewer, and were \
             not measured (docs/evidence/gpu.md)",
            ByteSize(self.region_bytes),
            self.first_seconds,
            self.further_seconds
        )
    }
}

pub fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    if args.region.region.is_some() {
        return region::run(args);
    }
    let machine = cpu::probe(Path::new("/"));
    let mut orphans = inventory::look(&machine);
    orphans.retain(|found| found.state == State::Orphan);
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let page_locking = machine.shm.map(|shm| PageLocking::of(shm.free_bytes));
    let (advice, swap_bytes) = (advise(&machine), swap_bytes(&meminfo));
    let diagnosis = Diagnosis { machine, swap_bytes, advice, page_locking, orphans };
    args.output.show(&diagnosis, || text(&diagnosis))?;
    Ok(ExitCode::SUCCESS)
}

fn advise(machine: &Machine) -> Vec<Advice> {
    let mut advice = Vec::new();
    for device in &machine.dax_devices {
        if device.mappable {
            advice.push(Advice {
                region: format!("/dev/{}", device.name),
                reason: "a DAX device: CXL or persistent memory, mapped directly; the only kind that several hosts can share".to_owned(),
            });
        } else {
            advice.push(Advice {
                region: format!("/dev/{}", device.name),
                reason: "a DAX device that the kernel uses as ordinary memory; `daxctl reconfigure-device --mode=devdax` would free it".to_owned(),
            });
        }
    }
    let huge = machine.huge_pages.iter().any(|size| size.free > 0);
    if let Some(mount) = machine.hugetlbfs_mounts.first().filter(|_| huge) {
        advice.push(Advice {
            region: format!("{mount}/cenote"),
            reason: "hugetlbfs with free huge pages: fewest TLB misses".to_owned(),
        });
    }
    if let Some(shm) = machine.shm.filter(|shm| shm.free_bytes >= ROOM_MIN) {
        let transparent = match machine.transparent_huge_shmem.as_deref() {
            Some("always" | "within_size" | "advise") => "with transparent huge pages",
            _ => "without huge pages (shmem_enabled is off)",
        };
        advice.push(Advice {
            region: "shm:cenote".to_owned(),
            reason: format!(
                "shared memory of this host, {transparent}, {} free: works everywhere",
                ByteSize(shm.free_bytes)
            ),
        });
    }
    advice
}

fn swap_bytes(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("SwapTotal:"))?;
    rest.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Shared memory is swapped as other memory is, so prompts may reach a disk.
fn swap_text(bytes: Option<u64>) -> String {
    match bytes {
        None => "not known".to_owned(),
        Some(0) => "none".to_owned(),
        Some(bytes) => format!(
            "{}; KV in shared memory may be written to it: encrypt it, turn it off, or use hugetlbfs or a device \
             (docs/internals/threats.md)",
            ByteSize(bytes)
        ),
    }
}

fn text(diagnosis: &Diagnosis) -> String {
    let machine = &diagnosis.machine;
    let yes = |flags: &[(&str, bool)]| {
        let names: Vec<&str> = flags.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "not known".to_owned(), |bytes| ByteSize(bytes).to_string());
    let limit = |limit: &cpu::Limit, bytes: bool| match limit.soft {
        None => "no limit".to_owned(),
        Some(value) if bytes => ByteSize(value).to_string(),
        Some(value) => value.to_string(),
    };
    let flush = machine.flush;
    let huge: Vec<String> = machine
        .huge_pages
        .iter()
        .map(|pages| format!("{} of {} free of {}", pages.free, pages.total, ByteSize(pages.page_bytes)))
        .collect();
    let dax: Vec<String> = machine
        .dax_devices
        .iter()
        .map(|device| {
            format!(
                "{} ({}, {})",
                device.name,
                size(device.size_bytes),
                if device.mappable { "mappable" } else { "used by the kernel" }
            )
        })
        .collect();
    let orphans: Vec<String> = diagnosis
        .orphans
        .iter()
        .map(|found| format!("{} ({})", found.region, ByteSize(found.memory_bytes.unwrap_or(found.bytes))))
        .collect();
    let none = |list: &[String]| if list.is_empty() { "none".to_owned() } else { list.join(", ") };
    let mut text = facts(&[
        ("processor", format!("{}, {}", machine.processor.as_deref().unwrap_or("not known"), machine.architecture)),
        ("payload copies use", machine.simd.clone()),
        (
            "flush instructions",
            yes(&[
                ("clflush", flush.clflush),
                ("clflushopt", flush.clflushopt),
                ("clwb", flush.clwb),
                ("movdir64b", flush.movdir64b),
            ]),
        ),
        ("memory", format!("{}, {} available", size(machine.memory_total_bytes), size(machine.memory_available_bytes))),
        ("swap", swap_text(diagnosis.swap_bytes)),
        ("NUMA nodes", machine.numa_nodes.len().to_string()),
        ("huge pages", none(&huge)),
        (
            "transparent huge pages",
            format!(
                "{}; shared memory: {}",
                machine.transparent_huge.as_deref().unwrap_or("not known"),
                machine.transparent_huge_shmem.as_deref().unwrap_or("not known")
            ),
        ),
        (
            "/dev/shm",
            machine.shm.map_or_else(|| "missing".to_owned(), |shm| format!("{} free", ByteSize(shm.free_bytes))),
        ),
        (
            "page-locking for GPUs",
            diagnosis.page_locking.as_ref().map_or_else(|| "no shared memory".to_owned(), PageLocking::text),
        ),
        ("orphans", none(&orphans)),
        ("hugetlbfs", none(&machine.hugetlbfs_mounts)),
        ("DAX devices", none(&dax)),
        ("CXL devices", none(&machine.cxl_devices)),
        ("lockable memory", limit(&machine.memlock, true)),
        ("open files", limit(&machine.open_files, false)),
    ]);
    text.push_str("\n\nregions to choose from, the best first");
    for advice in &diagnosis.advice {
        text.push_str(&format!("\n  --region {}\n{}", advice.region, wrapped(&advice.reason, "      ")));
    }
    if diagnosis.advice.is_empty() {
        text.push_str("\n  a file on any file system, as in --region ./kv.region");
    }
    if let Some(shm) = machine.shm.filter(|shm| shm.free_bytes < ROOM_MIN) {
        let full = format!(
            "/dev/shm is full: {} of {} free. `cenote pool list` shows its regions; a container gets more with \
             --shm-size, a machine with `mount -o remount,size=… /dev/shm`",
            ByteSize(shm.free_bytes),
            ByteSize(shm.total_bytes)
        );
        text.push_str(&format!("\n\n{}", wrapped(&full, "")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_a_warning() {
        let bytes = |meminfo| swap_bytes(meminfo);
        assert_eq!(bytes("MemTotal: 8 kB\nSwapTotal:       2048 kB\n"), Some(2 << 20));
        assert_eq!((bytes("SwapTotal: 0 kB\n"), bytes("")), (Some(0), None));
        assert_eq!((swap_text(Some(0)).as_str(), swap_text(None).as_str()), ("none", "not known"));
        assert!(swap_text(Some(2 << 20)).contains("KV in shared memory may be written to it"));
    }

    #[test]
    fn the_cost_of_page_locking_grows_with_the_region() {
        let of = PageLocking::of(500 << 30);
        assert_eq!((of.first_seconds.round(), of.further_seconds.round()), (425.0, 25.0));
        let said = of.text();
        assert!(
            said.starts_with("a region of 500 GiB takes about 425 s in the first process and 25 s in each"),
            "{said}"
        );
    }

    #[test]
    fn a_machine_with_a_device_is_advised_to_share_it() {
        let mut machine = cpu::probe(Path::new("/nonexistent"));
        assert_eq!(advise(&machine), [], "nothing there, nothing advised");
        machine.shm = Some(cpu::Space { total_bytes: 1 << 30, free_bytes: 1 << 30 });
        machine.hugetlbfs_mounts = vec!["/dev/hugepages".to_owned()];
        machine.huge_pages = vec![cpu::HugePages { page_bytes: 2 << 20, total: 8, free: 8 }];
        let device = cpu::DaxDevice {
            name: "dax0.0".to_owned(),
            mappable: true,
            size_bytes: None,
            align_bytes: None,
            numa_node: None,
        };
        machine.dax_devices = vec![device];
        let regions: Vec<String> = advise(&machine).into_iter().map(|advice| advice.region).collect();
        assert_eq!(regions, ["/dev/dax0.0", "/dev/hugepages/cenote", "shm:cenote"]);
        machine.shm = Some(cpu::Space { total_bytes: 1 << 30, free_bytes: 1 << 20 });
        assert!(advise(&machine).iter().all(|advice| advice.region != "shm:cenote"), "it is full");
        let (advice, orphans) = (advise(&machine), Vec::new());
        let full = text(&Diagnosis { machine, swap_bytes: None, advice, page_locking: None, orphans });
        assert!(full.contains("/dev/shm is full"), "{full}");
    }
}
