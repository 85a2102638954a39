//! Hosts in network namespaces, with NIXL over TCP. Each has a region in a `/dev/shm` of its own.
//!
//! No outcome depends on a clock: a peer that is slow, cut or dead costs counted misses, and a wrong byte ends
//! the host's process.

mod host;

use cenote_base::prng::Prng;
use cenote_base::testing::{PATIENCE, until};
use cenote_reach::lan::Lan;
use host::{ANSWER, PORT};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// Blocks of a prompt, and prompts that hosts know.
const BLOCKS: usize = 32;
const PROMPTS: u32 = 64;
/// Room for all prompts, and for few of them.
const ROOMY: u64 = 64;
const NARROW: u64 = 4;

/// A host's process.
struct Host<'a> {
    lan: &'a Lan,
    number: usize,
    process: Child,
    answers: Receiver<String>,
}

impl<'a> Host<'a> {
    fn start(lan: &'a Lan, number: usize, mebibytes: u64) -> Self {
        let program = std::env::current_exe().expect("this test");
        let mut command = lan.command(number, program);
        command.args(["--exact", "lan::process", "--ignored", "--nocapture"]);
        command.env("CENOTE_TEST_HOST", format!("{number} {} {mebibytes}", lan.address(number)));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("nsenter");
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let (tell, answers) = channel();
        std::thread::spawn(move || {
            let answers = lines.map_while(Result::ok).filter_map(|line| Some(line.strip_prefix(ANSWER)?.to_owned()));
            answers.map_while(|answer| tell.send(answer).ok()).for_each(drop);
        });
        let host = Self { lan, number, process, answers };
        assert_eq!(host.answer(), "ready");
        host
    }

    fn say(&mut self, words: &str) {
        let pipe = self.process.stdin.as_mut().expect("it is piped");
        writeln!(pipe, "{words}").unwrap_or_else(|error| panic!("host {} is gone: {error}", self.number));
    }

    /// The next answer. The process itself waits no longer for anything.
    fn answer(&self) -> String {
        let answer = self.answers.recv_timeout(3 * PATIENCE);
        answer.unwrap_or_else(|error| panic!("host {} gave no answer, its words are above: {error}", self.number))
    }

    fn ask(&mut self, words: &str) -> String {
        self.say(words);
        self.answer()
    }

    fn count(&mut self, name: &str) -> usize {
        self.ask(&format!("count remote_{name}")).parse().expect("a number")
    }

    fn wait_for(&mut self, name: &str, least: usize) {
        self.ask(&format!("wait remote_{name} {least}"));
    }

    /// Names its peers, and waits until all are good.
    fn meet(&mut self, peers: &[usize], deadline: u32) {
        let addresses: Vec<String> = peers.iter().map(|&peer| address(self.lan, peer)).collect();
        self.ask(&format!("peers {},deadline={deadline}", addresses.join(",")));
        self.wait_for("peers_good", peers.len());
    }

    /// Leading blocks of a prompt that are here after its peers were asked; `None`: none was.
    fn bring(&mut self, prompt: usize) -> Option<usize> {
        self.ask(&format!("bring {prompt}")).parse().ok()
    }

    /// Asks until a prompt is here.
    fn bring_at_last(&mut self, prompt: usize) {
        until("the prompt is here", || (self.bring(prompt) == Some(BLOCKS)).then_some(()));
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("it is our child");
    }

    fn kill(mut self) {
        self.process.kill().expect("it is our child");
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn address(lan: &Lan, host: usize) -> String {
    format!("{}:{PORT}", lan.address(host))
}

/// The process of a host.
#[test]
#[ignore = "the process that other tests start"]
fn process() {
    host::run();
}

/// An owner with these prompts, and a reader that has met it.
fn pair(lan: &Lan, prompts: std::ops::Range<usize>, deadline: u32) -> [Host<'_>; 2] {
    let mut owner = Host::start(lan, 0, ROOMY);
    prompts.for_each(|prompt| _ = owner.ask(&format!("publish {prompt}")));
    let mut reader = Host::start(lan, 1, ROOMY);
    reader.meet(&[0], deadline);
    [owner, reader]
}

fn expect_no_wrong(reader: &mut Host<'_>) {
    assert_eq!(reader.count("wrong_total"), 0);
}

#[test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
fn four_hosts_read_each_other() {
    let Some(lan) = Lan::start(4) else { return };
    let mut hosts: Vec<Host<'_>> = (0..4).map(|number| Host::start(&lan, number, ROOMY)).collect();
    for (number, host) in hosts.iter_mut().enumerate() {
        host.ask(&format!("publish {number}"));
        host.ask(&format!("publish {}", number + 4));
    }
    for (number, host) in hosts.iter_mut().enumerate() {
        let others: Vec<usize> = (0..4).filter(|other| *other != number).collect();
        host.meet(&others, 60);
    }
    // All at a time, so each host is read by others while it reads.
    for prompt in 0..8 {
        hosts.iter_mut().for_each(|host| host.say(&format!("bring {prompt}")));
        hosts.iter().for_each(|host| assert_eq!(host.answer(), BLOCKS.to_string(), "prompt {prompt}"));
    }
    for host in &mut hosts {
        assert_eq!(host.ask("all"), (8 * BLOCKS).to_string());
        assert_eq!(host.count("hits_total"), 6 * BLOCKS);
        expect_no_wrong(host);
    }
    // The others serve each other without it.
    hosts.pop().expect("the fourth").kill();
    hosts[0].ask("publish 8");
    hosts[1].bring_at_last(8);
    hosts[2].bring_at_last(8);
}

#[test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
fn lost_packets_cost_no_block() {
    let Some(lan) = Lan::start(2) else { return };
    let [_owner, mut reader] = pair(&lan, 0..8, 60);
    lan.lose(0, 5);
    lan.lose(1, 5);
    (0..8).for_each(|prompt| assert_eq!(reader.bring(prompt), Some(BLOCKS)));
    expect_no_wrong(&mut reader);
}

#[test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
fn short_packets_carry_all_blocks() {
    for bytes in [576, 1400] {
        // Networks of their own: regions outlive the processes of a host.
        let Some(lan) = Lan::start(2) else { return };
        lan.mtu(0, bytes);
        lan.mtu(1, bytes);
        let [_owner, mut reader] = pair(&lan, 0..4, 60);
        for prompt in 0..4 {
            assert_eq!(reader.bring(prompt), Some(BLOCKS), "packets of {bytes} bytes");
        }
        assert_eq!(reader.count("hits_total"), 4 * BLOCKS);
        expect_no_wrong(&mut reader);
    }
}

/// The first request that meets a peer in trouble waits for its deadline; later ones do not ask. `stays` keeps the
/// peer from being connected to again.
fn expect_one_deadline(reader: &mut Host<'_>, prompts: std::ops::Range<usize>, stays: impl FnOnce()) {
    let (late, suspected) = (reader.count("late_total"), reader.count("suspected_total"));
    // The peer's thread may have looked before.
    let here = reader.bring(prompts.start);
    assert_ne!(here, Some(BLOCKS));
    reader.wait_for("suspected_total", suspected + 1);
    stays();
    reader.wait_for("peers_suspect", 1);
    if let Some(here) = here {
        until("its blocks are counted", || (reader.count("late_total") - late + here >= BLOCKS).then_some(()));
    }
    let late_once = reader.count("late_total");
    assert!(late_once - late <= BLOCKS, "{} blocks were late: one request waited", late_once - late);
    for prompt in prompts.skip(1) {
        assert_eq!(reader.bring(prompt), None, "no request asks a suspect peer");
    }
    assert_eq!(reader.count("late_total"), late_once, "nothing waited");
}

#[test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
fn a_slow_link_costs_one_deadline_and_then_none() {
    let Some(lan) = Lan::start(2) else { return };
    let [_owner, mut reader] = pair(&lan, 0..8, 2);
    // A prompt takes four seconds.
    lan.rate(0, Some(1));
    expect_one_deadline(&mut reader, 0..4, || lan.cut(0));
    lan.heal(0);
    lan.rate(0, None);
    (0..8).for_each(|prompt| reader.bring_at_last(prompt));
    expect_no_wrong(&mut reader);
}

#[test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
fn a_link_of_a_hundred_megabits_brings_all_blocks_in_time() {
    let Some(lan) = Lan::start(2) else { return };
    let [_owner, mut reader] = pair(&lan, 0..4, 60);
    lan.rate(0, Some(100));
    (0..4).for_each(|prompt| assert_eq!(reader.bring(prompt), Some(BLOCKS)));
    assert_eq!(reader.count("late_total"), 0);
    expect_no_wrong(&mut reader);
}

#[test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
fn a_cut_in_the_middle_of_a_read_costs_one_deadline_and_heals() {
    let Some(lan) = Lan::start(2) else { return };
    let [_owner, mut reader] = pair(&lan, 0..8, 2);
    // So slow that the cut comes before the end.
    lan.rate(0, Some(2));
    let begin = lan.sent(0);
    reader.say("bring 0");
    until("a quarter of the prompt has come", || (lan.sent(0) > begin + (128 << 10)).then_some(()));
    lan.cut(0);
    assert_ne!(reader.answer(), BLOCKS.to_string());
    reader.wait_for("peers_suspect", 1);
    for prompt in 1..4 {
        assert_eq!(reader.bring(prompt), None, "no request asks a suspect peer");
    }
    let late = reader.count("late_total") + reader.count("failed_total");
    assert!(late <= BLOCKS, "{late} blocks were late: one request waited");
    lan.heal(0);
    lan.rate(0, None);
    (0..8).for_each(|prompt| reader.bring_at_last(prompt));
    expect_no_wrong(&mut reader);
}

#[test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
fn a_stopped_owner_costs_one_deadline_and_then_none() {
    let Some(lan) = Lan::start(2) else { return };
    let [owner, mut reader] = pair(&lan, 0..8, 2);
    owner.signal(Signal::STOP);
    expect_one_deadline(&mut reader, 0..4, || {});
    owner.signal(Signal::CONT);
    (0..8).for_each(|prompt| reader.bring_at_last(prompt));
    expect_no_wrong(&mut reader);
}

/// Moments are numbers of bytes that the owner has sent, so they lie within lookups, reads and connecting.
#[test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
fn owners_and_readers_die_at_any_moment() {
    let Some(lan) = Lan::start(2) else { return };
    let mut random = Prng::new(5);
    let [mut owner, mut reader] = pair(&lan, 0..PROMPTS as usize, 60);
    // Two prompts take a second, so that the moments are within them.
    lan.rate(0, Some(8));
    for round in 0..12 {
        let prompt = 2 * round;
        let (begin, moment) = (lan.sent(0), random.below(400 << 10));
        reader.say(&format!("bring {prompt}"));
        until("the moment", || (lan.sent(0) > begin + moment).then_some(()));
        if random.below(2) == 0 {
            // Its region stays, and so do the blocks.
            owner.kill();
            reader.answer();
            owner = Host::start(&lan, 0, ROOMY);
            reader.wait_for("peers_good", 1);
        } else {
            reader.kill();
            reader = Host::start(&lan, 1, ROOMY);
            // What the dead reader had published is whole.
            let kept: usize = reader.ask("all").parse().expect("a number");
            assert!(kept <= (prompt + 1) * BLOCKS);
            reader.meet(&[0], 60);
        }
        reader.bring_at_last(prompt);
        reader.bring_at_last(prompt + 1);
    }
    expect_no_wrong(&mut reader);
    assert_eq!(owner.ask("all"), (PROMPTS as usize * BLOCKS).to_string());
}

#[test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
fn a_region_made_anew_under_its_name_is_read_anew() {
    let Some(lan) = Lan::start(2) else { return };
    let [mut owner, mut reader] = pair(&lan, 0..4, 60);
    reader.bring_at_last(0);
    for life in 1..4 {
        owner.ask(&format!("remake {}", 100 + life));
        owner.ask(&format!("publish {}", 10 + life));
        reader.bring_at_last(10 + life);
        // The old region's blocks are at no peer now.
        assert_eq!(reader.bring(life), Some(0));
    }
    expect_no_wrong(&mut reader);
}

/// The reader compares each block with what its name says, besides its checksum.
#[test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
fn damage_at_an_owner_costs_hits_and_brings_no_wrong_byte() {
    let Some(lan) = Lan::start(2) else { return };
    let [mut owner, mut reader] = pair(&lan, 0..16, 60);
    let sweep = format!("sweep {} 16", address(&lan, 0));
    assert_eq!(reader.ask(&sweep), format!("{} 0", 16 * BLOCKS));
    let mut wrong = 0;
    for round in 0..9 {
        // While it is read. At the end a byte of each KiB is damaged, so no block is whole.
        reader.say(&sweep);
        owner.ask(&format!("damage {round} {}", (256 << 10) >> round));
        wrong += counts(&reader.answer())[1];
    }
    let [whole, last] = counts(&reader.ask(&sweep));
    assert_eq!(whole, 0, "damage costs hits");
    assert!(wrong + last > 0);
}

/// Blocks that were whole, and others.
fn counts(answer: &str) -> [usize; 2] {
    let (whole, others) = answer.split_once(' ').expect("two numbers");
    [whole, others].map(|number| number.parse().expect("a number"))
}

#[test]
#[ignore = "needs NIXL and namespaces: cargo xtask reach"]
fn ten_thousand_remote_reads_under_eviction_bring_no_wrong_byte() {
    let Some(lan) = Lan::start(2) else { return };
    let mut owner = Host::start(&lan, 0, NARROW);
    let mut reader = Host::start(&lan, 1, NARROW);
    owner.ask("churn 1");
    let tally = reader.ask(&format!("read {} 10000 2", address(&lan, 0)));
    owner.ask("calm");
    let [whole, overtaken] = counts(&tally);
    assert!(whole >= 10_000 && overtaken > 0, "{tally}");
}
