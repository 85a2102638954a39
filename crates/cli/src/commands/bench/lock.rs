//! `cenote bench lock`: a lock that hosts contend for. Processes of this machine play the hosts, so with more hosts
//! than processors a turn also waits for the kernel to let its host run.

use super::Setting;
use super::child::Child;
use super::party::Job;
use super::regions::{Shape, fabrics};
use super::rows::{Row, Times};
use crate::args::HostsLockArg;
use crate::failure::Failure;

pub fn rows(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let hosts_max = setting.choose(16, 4) as u8;
    for (fabric, flush) in fabrics() {
        if flush.is_coherent() {
            let shape = Shape::of(flush, 64 << 20);
            rows.extend(contend(setting, &shape, "processes", fabric, hosts_max.min(2))?);
            continue;
        }
        for (hosts_lock, name) in [(HostsLockArg::Bakery, "bakery"), (HostsLockArg::Manager, "manager")] {
            let shape = Shape { max_hosts: 16, hosts_lock, ..Shape::of(flush, 64 << 20) };
            rows.extend(contend(setting, &shape, "hosts", name, hosts_max)?);
        }
    }
    Ok(rows)
}

/// Rows for one, two, four … who take one lock again and again.
fn contend(setting: &Setting, shape: &Shape, who: &str, name: &str, most: u8) -> Result<Vec<Row>, Failure> {
    let region = setting.regions.make(shape)?;
    // To join takes locks, so it is there first and goes last.
    let managed = shape.hosts_lock == HostsLockArg::Manager;
    let manager = if managed { Some(Child::manager(&region)?) } else { None };
    let hosts = |number| if shape.flush.is_coherent() { 0 } else { number };
    let mut children = (0..most).map(|number| Child::start(&region, hosts(number))).collect::<Result<Vec<_>, _>>()?;
    let mut rows = Vec::new();
    for count in [1, 2, 4, 8, 16].into_iter().filter(|&count| count <= most) {
        let rounds = setting.choose(4_000, 1_000) / u64::from(count);
        let busy = &mut children[..usize::from(count)];
        for child in &mut *busy {
            child.begin(&Job::Lock { rounds })?;
        }
        let mut times = Times::new();
        for child in busy {
            times.extend(child.finish()?.remove(0));
        }
        rows.push(Row::nanoseconds(format!("{name}: take and give back, {count} {who}"), &times));
    }
    drop(children);
    drop(manager);
    Ok(rows)
}
