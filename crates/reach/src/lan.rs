//! Hosts of tests that share a network and nothing else.
//!
//! Each is a network namespace with one link to a common switch, and a mount namespace with a `/dev/shm` of its
//! own. The switch is in the namespace of the tests: `cargo xtask reach` starts them in one where they may change
//! links. A namespace ends with the processes in it, so a test that is killed leaves nothing.
//!
//! Budget of faults: a link may be slow, lose packets, carry short packets only, and be cut. It neither delays
//! nor changes packets.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Set where tests may make such networks.
pub const VARIABLE: &str = "CENOTE_TEST_LAN";
/// What a host runs until it is dropped.
const HOLD: &str = "mount -t tmpfs tmpfs /dev/shm && echo held && exec cat";
/// A link's end at its host.
const DEVICE: &str = "eth0";

static SWITCHES: AtomicU32 = AtomicU32::new(1);

/// A switch with hosts.
pub struct Lan {
    number: u32,
    /// A process in each host's namespaces.
    hosts: Vec<Child>,
}

fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Runs a command of words.
fn run(words: &str) -> Output {
    let mut words = words.split(' ');
    output(Command::new(words.next().expect("a program")).args(words))
}

impl Lan {
    /// Makes a switch and hosts. `None`: tests may not do so here, which is told.
    ///
    /// # Panics
    /// A command fails, or under `CI=1` networks cannot be made.
    #[must_use]
    pub fn start(hosts: usize) -> Option<Self> {
        if std::env::var_os(VARIABLE).is_none() {
            cenote_base::testing::skip("no network namespaces; `cargo xtask reach` names what is missing");
            return None;
        }
        let number = SWITCHES.fetch_add(1, Ordering::Relaxed);
        let mut lan = Self { number, hosts: Vec::new() };
        run(&format!("ip link add s{number} type bridge"));
        run(&format!("ip addr add 10.77.{number}.254/24 dev s{number}"));
        run(&format!("ip link set s{number} up"));
        for host in 0..hosts {
            let mut holder = Command::new("unshare");
            holder.args(["--net", "--mount", "--", "sh", "-c", HOLD]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut holder = holder.spawn().expect("unshare");
            let mut word = String::new();
            let said = BufReader::new(holder.stdout.take().expect("it is piped")).read_line(&mut word);
            assert!(said.is_ok() && word == "held\n", "a host's namespaces cannot be made");
            let (port, pid, address) = (lan.port(host), holder.id(), lan.address(host));
            lan.hosts.push(holder);
            run(&format!("ip link add {port} type veth peer name {DEVICE} netns {pid}"));
            run(&format!("ip link set {port} master s{number} up"));
            lan.within(host, &format!("ip addr add {address}/24 dev {DEVICE}"));
            lan.within(host, &format!("ip link set {DEVICE} up"));
            lan.within(host, "ip link set lo up");
        }
        Some(lan)
    }

    /// A link's end at the switch.
    fn port(&self, host: usize) -> String {
        format!("s{}h{host}", self.number)
    }

    /// Runs a command of words on a host.
    fn within(&self, host: usize, words: &str) {
        let mut words = words.split(' ');
        output(self.command(host, words.next().expect("a program")).args(words));
    }

    /// A host's address, which the tests' own processes reach, too.
    #[must_use]
    pub fn address(&self, host: usize) -> String {
        format!("10.77.{}.{}", self.number, host + 1)
    }

    /// Words that begin a command on a host. The program has the process number of what is started.
    #[must_use]
    pub fn prefix(&self, host: usize) -> Vec<String> {
        ["nsenter", "--target", &self.hosts[host].id().to_string(), "--net", "--mount", "--"].map(str::to_owned).into()
    }

    /// Variables that make UCX use a host's link.
    #[must_use]
    pub const fn variables() -> [(&'static str, &'static str); 2] {
        [("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", DEVICE)]
    }

    /// A command on a host.
    #[must_use]
    pub fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let prefix = self.prefix(host);
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]).arg(program).envs(Self::variables());
        command
    }

    /// Bounds a link's rate, in both directions, to megabits per second; `None`: no bound.
    pub fn rate(&self, host: usize, megabits: Option<u32>) {
        let change = |device: &str| match megabits {
            Some(rate) => format!("tc qdisc replace dev {device} root tbf rate {rate}mbit burst 16kb latency 200ms"),
            None => format!("tc qdisc del dev {device} root"),
        };
        run(&change(&self.port(host)));
        self.within(host, &change(DEVICE));
    }

    /// From now on, a host loses this percentage of the packets for it.
    pub fn lose(&self, host: usize, percent: u32) {
        let share = f64::from(percent) / 100.0;
        self.within(host, &format!("iptables -A INPUT -m statistic --mode random --probability {share} -j DROP"));
    }

    /// Bounds the bytes of a packet on a link. For connections that are made from now on.
    pub fn mtu(&self, host: usize, bytes: u32) {
        run(&format!("ip link set {} mtu {bytes}", self.port(host)));
        self.within(host, &format!("ip link set {DEVICE} mtu {bytes}"));
    }

    /// Cuts a link, as if its cable were pulled.
    pub fn cut(&self, host: usize) {
        run(&format!("ip link set {} down", self.port(host)));
    }

    /// Undoes [`Lan::cut`].
    pub fn heal(&self, host: usize) {
        run(&format!("ip link set {} up", self.port(host)));
    }

    /// Bytes that a host has sent so far.
    #[must_use]
    pub fn sent(&self, host: usize) -> u64 {
        let shown = run(&format!("ip -s -j link show {}", self.port(host))).stdout;
        let shown: serde_json::Value = serde_json::from_slice(&shown).expect("ip prints JSON");
        shown[0]["stats64"]["rx"]["bytes"].as_u64().expect("a counter")
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            let _ = host.kill();
            let _ = host.wait();
        }
        let _ = Command::new("ip").args(["link", "del", &format!("s{}", self.number)]).output();
    }
}
