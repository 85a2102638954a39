//! Two virtual hosts that share one emulated CXL memory device. docs/guides/several-hosts.md
//! explains the results.

mod debian;
mod guest;
mod image;
mod scenario;

use debian::Debian;
use image::Images;
use scenario::{Program, Scenario, Verdict};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LITMUS: Program = Program { package: "cenote-mem", name: "litmus" };
const TWO_HOSTS: Program = Program { package: "cenote-pool", name: "two_hosts" };

const SCENARIOS: [Scenario; 8] = [
    Scenario {
        name: "litmus",
        shows: "messages, a lock of plain words and locked instructions between two hosts",
        program: LITMUS,
        arguments: [
            "/dev/dax0.0 a messages=200000 crossing=50000 lock=100000 xadd=20000000",
            "/dev/dax0.0 b messages=200000 crossing=50000 lock=100000 xadd=20000000",
        ],
        cpus: 2,
        pool_mib: 256,
        kill_a_at: None,
        wanted: [
            &["xadd: 40000000 of 40000000 exact", "litmus a: all passed"],
            &["xadd: 40000000 of 40000000 exact", "litmus b: all passed"],
        ],
        hoped_of_b: None,
        limit: Duration::from_secs(300),
    },
    // Locked instructions are not atomic between two emulators of one processor each. The control
    // loses updates there. So the first scenario, whose count is exact, needs no atomics.
    Scenario {
        name: "no-atomics",
        shows: "the lock of plain words holds where locked instructions lose updates",
        program: LITMUS,
        arguments: [
            "/dev/dax0.0 a messages=20000 crossing=20000 lock=100000 xadd=50000000",
            "/dev/dax0.0 b messages=20000 crossing=20000 lock=100000 xadd=50000000",
        ],
        cpus: 1,
        pool_mib: 256,
        kill_a_at: None,
        wanted: [&["counter 200000 exact", "litmus a: all passed"], &["counter 200000 exact", "litmus b: all passed"]],
        hoped_of_b: Some("LOST"),
        limit: Duration::from_secs(300),
    },
    Scenario {
        name: "takeover",
        shows: "a host is killed in the middle of an update; the other notices and finishes it",
        program: LITMUS,
        arguments: ["/dev/dax0.0 a takeover", "/dev/dax0.0 b takeover"],
        cpus: 2,
        pool_mib: 256,
        kill_a_at: Some("litmus a: holds the lock in the middle of an update"),
        wanted: [
            &[],
            &[
                "waits for the lock of a living host",
                "the lock is taken over",
                "half an update found and finished",
                "litmus b: all passed",
            ],
        ],
        hoped_of_b: None,
        limit: Duration::from_secs(180),
    },
    Scenario {
        name: "pool",
        shows: "locks and blocks of a pool between two hosts, with slots reused under the reader",
        program: TWO_HOSTS,
        arguments: ["/dev/dax0.0 a lock=20000 blocks=400 churn=200", "/dev/dax0.0 b lock=20000 blocks=400 churn=200"],
        cpus: 2,
        pool_mib: 256,
        kill_a_at: None,
        wanted: [
            &["counter 40000 exact", " 0 damaged", "two_hosts a: all passed"],
            &["counter 40000 exact", " 0 damaged", "two_hosts b: all passed"],
        ],
        hoped_of_b: None,
        limit: Duration::from_secs(300),
    },
    // The pool's locks are words that one host writes each, so non-atomic instructions do no harm.
    Scenario {
        name: "pool-no-atomics",
        shows: "the same where locked instructions are not atomic between the hosts",
        program: TWO_HOSTS,
        arguments: ["/dev/dax0.0 a lock=20000 blocks=400 churn=100", "/dev/dax0.0 b lock=20000 blocks=400 churn=100"],
        cpus: 1,
        pool_mib: 256,
        kill_a_at: None,
        wanted: [
            &["counter 40000 exact", " 0 damaged", "two_hosts a: all passed"],
            &["counter 40000 exact", " 0 damaged", "two_hosts b: all passed"],
        ],
        hoped_of_b: None,
        limit: Duration::from_secs(300),
    },
    Scenario {
        name: "pool-capacity",
        shows: "a host that works gets the space of a host that is idle, with the blocks in it",
        program: TWO_HOSTS,
        arguments: ["/dev/dax0.0 a capacity=90", "/dev/dax0.0 b capacity=90"],
        cpus: 2,
        pool_mib: 256,
        kill_a_at: None,
        wanted: [
            &["check clean", "two_hosts a: all passed"],
            &["chunks moved", "check clean", "two_hosts b: all passed"],
        ],
        hoped_of_b: None,
        limit: Duration::from_secs(300),
    },
    Scenario {
        name: "pool-recency",
        shows: "a block that one host uses stays while another host evicts",
        program: TWO_HOSTS,
        arguments: ["/dev/dax0.0 a recency=2", "/dev/dax0.0 b recency=2"],
        cpus: 2,
        pool_mib: 256,
        kill_a_at: None,
        wanted: [&["blocks evicted", "two_hosts a: all passed"], &["found the hot block", "two_hosts b: all passed"]],
        hoped_of_b: None,
        limit: Duration::from_secs(300),
    },
    Scenario {
        name: "pool-takeover",
        shows: "a host is killed in the middle of a publish, with a lock held; the other repairs and inherits",
        program: TWO_HOSTS,
        arguments: ["/dev/dax0.0 a takeover=index.counted", "/dev/dax0.0 b takeover=index.counted"],
        cpus: 2,
        pool_mib: 256,
        kill_a_at: Some("two_hosts a: holds the lock mid-publish"),
        wanted: [
            &[],
            &[
                "waits for the lock of a living host",
                "the lock is taken over",
                "chunks adopted",
                "two_hosts b: recovered",
                "two_hosts b: all passed",
            ],
        ],
        hoped_of_b: None,
        limit: Duration::from_secs(180),
    },
];

/// Runs these scenarios, or all.
///
/// # Errors
/// A scenario failed, or one of its requirements is missing; the message says which.
pub fn run(root: &Path, names: &[&str]) -> Result<(), String> {
    let known = || SCENARIOS.iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
    if let Some(name) = names.iter().find(|name| SCENARIOS.iter().all(|scenario| scenario.name != **name)) {
        return Err(format!("there is no scenario `{name}`; there are {}", known()));
    }
    let cache = root.join("target/two-host");
    crate::process::make_folder(&cache)?;
    let debian = Debian::prepare(&cache)?;
    let images = Images::prepare(&debian, &cache)?;
    let chosen = SCENARIOS.iter().filter(|scenario| names.is_empty() || names.contains(&scenario.name));
    let mut initramfs: BTreeMap<&str, PathBuf> = BTreeMap::new();
    let mut table = Vec::new();
    for scenario in chosen {
        let program = scenario.program.name;
        if !initramfs.contains_key(program) {
            println!("building {program}");
            let built = scenario.program.build(root, &cache)?;
            initramfs.insert(program, images.with_program(program, &built)?);
        }
        println!("{}: {}", scenario.name, scenario.shows);
        let start = Instant::now();
        let verdict = scenario.run(&debian, &images, &initramfs[program], &cache)?;
        table.push((scenario.name, verdict, start.elapsed().as_secs_f64()));
    }
    println!("\n{:<16} {:<14} {:>7}", "scenario", "verdict", "seconds");
    for (name, verdict, seconds) in &table {
        let (word, reason) = match verdict {
            Verdict::Passed => ("passed", ""),
            Verdict::Inconclusive(reason) => ("inconclusive", reason.as_str()),
            Verdict::Failed(reason) => ("FAILED", reason.as_str()),
        };
        println!("{}", format!("{name:<16} {word:<14} {seconds:>7.1}  {reason}").trim_end());
    }
    println!("logs: target/two-host/<scenario>/");
    let failed: Vec<&str> =
        table.iter().filter(|(_, verdict, _)| matches!(verdict, Verdict::Failed(_))).map(|(name, ..)| *name).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}
