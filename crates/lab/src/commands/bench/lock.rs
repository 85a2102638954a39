//! `cenote-lab bench lock`: a lock that hosts contend for. Processes of this machine play the
//! hosts, so with more hosts than processors a turn also waits for the kernel to schedule its host.

use super::child::{Child, perform_together};
use super::regions::{Shape, fabrics};
use super::rows::{Row, Times, median};
use super::worker::Job;
use super::{Part, Setting};
use cenote_console::args::HostsLockArg;
use cenote_console::failure::Failure;
use cenote_mem::Flush;

pub const PARTS: &[Part] = &[Part { name: "locks", measure: rows }];

fn rows(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let hosts_max = setting.choose(16, 4) as u8;
    for (fabric, flush) in fabrics() {
        if flush.is_coherent() {
            let shape = Shape { max_hosts: 1, ..Shape::of(flush, 64 << 20) };
            rows.push(alone(setting, &shape, &format!("{fabric}: lock of processes, uncontended"))?.0);
            rows.extend(contend(setting, &shape, fabric, "processes", 2)?);
            continue;
        }
        for (hosts_lock, name) in [(HostsLockArg::Bakery, "bakery"), (HostsLockArg::Manager, "manager")] {
            rows.extend(hosts(setting, flush, hosts_lock, name, hosts_max)?);
        }
    }
    Ok(rows)
}

/// Cost of a lock between hosts: uncontended, by the number of host slots of the region, and
/// contended.
fn hosts(setting: &Setting, flush: Flush, hosts_lock: HostsLockArg, name: &str, most: u8) -> Result<Vec<Row>, Failure> {
    let shape = |max_hosts| Shape { max_hosts, hosts_lock, ..Shape::of(flush, 64 << 20) };
    let mut rows = Vec::new();
    let mut medians = Vec::new();
    for room in [1, 2, 4, 8, 16].into_iter().filter(|&room| room <= most) {
        let (row, median) = alone(setting, &shape(room), &format!("{name}: uncontended, room for {room} hosts"))?;
        rows.push(row);
        medians.push(median);
    }
    if let [first, .., last] = medians[..] {
        let each = (last - first) / f64::from(most - 1);
        rows.push(Row::nanoseconds(format!("{name}: uncontended, per further host"), &vec![each]));
    }
    rows.extend(contend(setting, &shape(most), name, "hosts", most)?);
    Ok(rows)
}

/// The manager of the region's locks, if they have one. Joining takes locks, so it starts first and
/// ends last.
fn manager(shape: &Shape, region: &cenote_console::args::RegionArgs) -> Result<Option<Child>, Failure> {
    let managed = shape.hosts_lock == HostsLockArg::Manager && !shape.flush.is_coherent();
    managed.then(|| Child::manager(region)).transpose()
}

/// One process takes and releases the lock.
fn alone(setting: &Setting, shape: &Shape, name: &str) -> Result<(Row, f64), Failure> {
    let region = setting.regions.make(shape)?;
    let manager = manager(shape, &region)?;
    let mut child = Child::start(&region, 0)?;
    let times = child.perform(&Job::Lock { rounds: setting.choose(20_000, 2_000) })?;
    drop(child);
    drop(manager);
    Ok((Row::nanoseconds(name, &times[0]), median(&times[0])))
}

/// Rows for two, four … processes that take one lock repeatedly: the wait of each, and the time of
/// a turn.
fn contend(setting: &Setting, shape: &Shape, name: &str, contenders: &str, most: u8) -> Result<Vec<Row>, Failure> {
    let region = setting.regions.make(shape)?;
    let manager = manager(shape, &region)?;
    let hosts = |number| if shape.flush.is_coherent() { 0 } else { number };
    let mut children = (0..most).map(|number| Child::start(&region, hosts(number))).collect::<Result<Vec<_>, _>>()?;
    let mut rows = Vec::new();
    for count in [2, 4, 8, 16].into_iter().filter(|&count| count <= most) {
        // Long enough that all contend although they share few processors.
        let rounds = setting.choose(16_000, 4_000) / u64::from(count) / if manager.is_some() { 8 } else { 1 };
        let job = Job::Lock { rounds };
        let mut jobs: Vec<_> = children[..usize::from(count)].iter_mut().map(|child| (child, &job)).collect();
        let results = perform_together(&mut jobs)?;
        let waits: Times = results.iter().flat_map(|result| result[0].clone()).collect();
        let last = results.iter().map(|result| result[1][0]).fold(0.0, f64::max);
        let turn = last / (rounds * u64::from(count)) as f64;
        rows.push(Row::nanoseconds(format!("{name}: {count} {contenders} at once, wait"), &waits));
        rows.push(Row::nanoseconds(format!("{name}: {count} {contenders} at once, turn"), &vec![turn]));
    }
    drop(children);
    drop(manager);
    Ok(rows)
}
