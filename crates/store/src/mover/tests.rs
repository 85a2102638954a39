//! What holds for every mover, and what holds for one of them.

use super::*;
use cenote_base::testing::{ManualTime, until};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A job that waits for its signal, if it has one.
#[derive(Debug)]
struct Number {
    number: u32,
    runs: u32,
    wait: Option<Receiver<()>>,
}

impl Job for Number {
    fn bytes(&self) -> u64 {
        4096
    }

    fn run(&mut self) {
        self.runs += 1;
        if let Some(wait) = &self.wait {
            wait.recv().expect("the test releases it");
        }
    }
}

const KINDS: [MoverKind; 3] = [MoverKind::Inline, MoverKind::Threads(1), MoverKind::Threads(3)];

fn start(kind: MoverKind, limits: TransferConfig, link: Option<LinkSpeed>, clock: Clock) -> Box<dyn Mover<Number>> {
    MoverConfig { kind, link, clock }.start_with(limits).expect("threads")
}

fn jobs(numbers: std::ops::Range<u32>) -> Vec<Number> {
    numbers.map(|number| Number { number, runs: 0, wait: None }).collect()
}

/// The next job that ends. A microsecond passes between two looks.
fn next(time: &ManualTime, mover: &mut Box<dyn Mover<Number>>) -> (Ticket, Moved<Number>) {
    until("the end of a job", || {
        let ended = mover.poll();
        if ended.is_none() {
            time.advance(Duration::from_micros(1));
        }
        ended
    })
}

#[test]
fn every_job_comes_back_once_and_has_run_once() {
    for (kind, speed) in KINDS.into_iter().flat_map(|kind| [(kind, None), (kind, Some(LinkSpeed::NIAGARA))]) {
        let time = ManualTime::start();
        let mut mover = start(kind, TransferConfig::default(), speed, time.clock());
        let classes = Class::ALL.iter().zip(0..);
        let tickets: BTreeMap<Ticket, u32> = classes
            .flat_map(|(class, at)| {
                let numbers = 100 * at..100 * at + 100;
                mover.submit(*class, None, jobs(numbers.clone())).into_iter().zip(numbers)
            })
            .collect();
        let mut seen = BTreeMap::new();
        for _ in 0..400 {
            let (ticket, Moved::Done(job)) = next(time, &mut mover) else { panic!("none was cancelled") };
            assert_eq!((tickets[&ticket], job.runs), (job.number, 1));
            assert!(seen.insert(ticket, ()).is_none());
        }
        assert!(mover.poll().is_none());
        assert_eq!(mover.counts().completed.iter().sum::<u64>(), 400);
    }
}

#[test]
fn a_job_under_way_is_discarded_and_a_queued_one_returns() {
    let time = ManualTime::start();
    let mut mover = start(MoverKind::Threads(1), TransferConfig::window(1), None, time.clock());
    let (release, wait) = channel();
    let first = Number { number: 0, runs: 0, wait: Some(wait) };
    let first = mover.submit(Class::Exact, None, vec![first])[0];
    let rest = mover.submit(Class::Exact, None, jobs(1..4));
    // Only one is outstanding, so these have not started.
    assert_eq!(mover.cancel(rest[0]).expect("it waits").runs, 0);
    let mut taken = mover.take(rest[1]).expect("it waits");
    mover.run_now(&mut taken);
    assert_eq!((taken.number, taken.runs), (2, 1));
    until("the start of the first", || (mover.counts().started[Class::Exact as usize] > 0).then_some(()));
    assert!(mover.cancel(first).is_none() && mover.take(first).is_none(), "it is under way");
    release.send(()).expect("it waits for this");
    let ended = [next(time, &mut mover), next(time, &mut mover)];
    assert!(matches!(&ended[0], (ticket, Moved::Discarded(_)) if *ticket == first), "{ended:?}");
    assert!(matches!(&ended[1], (ticket, Moved::Done(job)) if *ticket == rest[2] && job.number == 3), "{ended:?}");
}

#[test]
fn a_job_that_waits_beyond_its_deadline_never_runs() {
    let time = ManualTime::start();
    let mut mover = start(MoverKind::Threads(1), TransferConfig::window(1), None, time.clock());
    let (release, wait) = channel();
    mover.submit(Class::Demand, None, vec![Number { number: 0, runs: 0, wait: Some(wait) }]);
    let late = mover.submit(Class::Exact, Some(mover.now_ns()), jobs(1..2))[0];
    time.advance(Duration::from_nanos(1));
    release.send(()).expect("it waits for this");
    let ended: BTreeMap<Ticket, Moved<Number>> = [next(time, &mut mover), next(time, &mut mover)].into();
    assert!(matches!(&ended[&late], Moved::Expired(job) if job.runs == 0), "{ended:?}");
}

#[test]
fn without_a_thread_only_the_caller_copies() {
    let mut mover = start(MoverKind::Threads(0), TransferConfig::default(), None, Clock::stopped());
    let tickets = mover.submit(Class::Exact, None, jobs(0..2));
    assert!(mover.poll().is_none());
    let mut job = mover.take(tickets[1]).expect("it waits");
    mover.run_now(&mut job);
    assert_eq!((job.number, job.runs), (1, 1));
}

/// 4096 bytes take 4,096 ns, and the first byte 1,000 ns more.
const SLOW: LinkSpeed = LinkSpeed { bytes_per_s: 1e9, latency: Duration::from_nanos(1_000) };

#[test]
fn a_thread_hands_a_job_over_when_its_link_delivers_it() {
    let time = ManualTime::start();
    let mut mover = start(MoverKind::Threads(1), TransferConfig::default(), Some(SLOW), time.clock());
    mover.submit(Class::Exact, None, jobs(0..1));
    until("the start of the job", || (mover.counts().started[Class::Exact as usize] > 0).then_some(()));
    time.advance(Duration::from_nanos(5_095));
    assert!(mover.poll().is_none(), "its last byte is still on its way");
    // The copy may begin late, and then it is delivered late.
    time.advance(Duration::from_nanos(5_096));
    assert!(matches!(next(time, &mut mover), (_, Moved::Done(job)) if job.runs == 1));
}

#[test]
fn an_inline_job_runs_when_it_is_polled_and_ends_when_its_link_delivers_it() {
    let time = ManualTime::start();
    let mut mover = start(MoverKind::Inline, TransferConfig::window(2), Some(SLOW), time.clock());
    let exact = mover.submit(Class::Exact, None, jobs(0..2));
    let demand = mover.submit(Class::Demand, None, jobs(2..3));
    assert_eq!(mover.counts().started, [0; 4]);
    assert!(mover.poll().is_none(), "the first byte needs a microsecond");
    assert_eq!(mover.counts().started, [1, 0, 0, 0], "one exact copy at a time, and demand goes first");
    mover.pause();
    assert_eq!(time.clock().now_ns(), 5_096);
    let (ticket, Moved::Done(job)) = mover.poll().expect("it is delivered") else { panic!("not cancelled") };
    assert_eq!((ticket, job.number), (demand[0], 2));
    assert!(mover.poll().is_none());
    // The first copy is under way, and the caller makes the second itself, behind it.
    assert!(mover.cancel(exact[0]).is_none());
    let mut taken = mover.take(exact[1]).expect("it waits");
    mover.run_now(&mut taken);
    assert_eq!((taken.runs, time.clock().now_ns()), (1, 5_096 + 2 * 4_096 + 1_000));
    assert!(matches!(mover.poll(), Some((ticket, Moved::Discarded(_))) if ticket == exact[0]));
    assert!(mover.poll().is_none());
}

#[test]
fn an_inline_job_that_is_polled_after_its_deadline_never_runs() {
    let time = ManualTime::start();
    let mut mover = start(MoverKind::Inline, TransferConfig::default(), None, time.clock());
    mover.submit(Class::Exact, Some(10), jobs(0..1));
    time.advance(Duration::from_nanos(11));
    assert!(matches!(mover.poll(), Some((_, Moved::Expired(job))) if job.runs == 0));
}
