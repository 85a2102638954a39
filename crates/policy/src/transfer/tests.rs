use super::*;
use proptest::prelude::*;

fn copy(class: Class, item: u32) -> Wanted<u32> {
    Wanted { class, bytes: 4_096, deadline_ns: None, item }
}

fn started(transfers: &mut Transfers<u32>, now: u64) -> Vec<(Ticket, u32)> {
    let mut all = Vec::new();
    while let Some(action) = transfers.poll_action(now) {
        if let Action::Start(batch) = action {
            all.extend(batch.copies);
        }
    }
    all
}

#[test]
fn urgent_classes_and_early_deadlines_start_first() {
    let mut transfers = Transfers::new(TransferConfig { batch_copies_max: 1, ..TransferConfig::default() });
    let at = |class, deadline, item| Wanted { deadline_ns: deadline, ..copy(class, item) };
    for (class, deadline, item) in [
        (Class::WriteBack, None, 6),
        (Class::Speculative, None, 5),
        (Class::Exact, None, 4),
        (Class::Exact, Some(90), 3),
        (Class::Exact, Some(50), 2),
        (Class::Demand, None, 1),
    ] {
        transfers.submit(at(class, deadline, item));
    }
    let order: Vec<u32> = started(&mut transfers, 0).into_iter().map(|(_, item)| item).collect();
    assert_eq!(order, [1, 2, 3, 4, 5], "write-back waits for an idle mover");
}

#[test]
fn a_demand_copy_starts_beside_a_full_load_of_speculation() {
    let mut transfers = Transfers::new(TransferConfig::default());
    (0..100).for_each(|item| {
        transfers.submit(copy(Class::Speculative, item));
    });
    assert_eq!(started(&mut transfers, 0).len(), 8);
    let ticket = transfers.submit(copy(Class::Demand, 1_000));
    assert_eq!(started(&mut transfers, 0), [(ticket, 1_000)]);
}

#[test]
fn a_saturated_mover_keeps_its_batches() {
    let mut transfers = Transfers::new(TransferConfig { limits: [16; CLASSES], ..TransferConfig::default() });
    (0..64).for_each(|item| {
        transfers.submit(copy(Class::Exact, item));
    });
    let mut running = started(&mut transfers, 0);
    while let Some((ticket, _)) = running.pop() {
        assert_eq!(transfers.completed(ticket), Completed::Use);
        running.extend(started(&mut transfers, 0));
    }
    assert_eq!((transfers.counts().started[1], transfers.counts().batches[1]), (64, 16));
}

#[test]
fn a_batch_respects_its_bytes_but_starts_a_large_copy_alone() {
    let config = TransferConfig { batch_bytes_max: 10_000, ..TransferConfig::default() };
    let mut transfers = Transfers::new(config);
    for (item, bytes) in [(0, 4_000), (1, 4_000), (2, 4_000), (3, 50_000)] {
        transfers.submit(Wanted { bytes, ..copy(Class::Demand, item) });
    }
    let mut sizes = Vec::new();
    while let Some(Action::Start(batch)) = transfers.poll_action(0) {
        sizes.push((batch.copies.len(), batch.bytes));
    }
    assert_eq!(sizes, [(2, 8_000), (1, 4_000), (1, 50_000)]);
}

#[test]
fn a_deadline_expires_a_waiting_copy_and_reports_an_outstanding_one_once() {
    let mut transfers = Transfers::new(TransferConfig::window(1));
    let first = transfers.submit(Wanted { deadline_ns: Some(10), ..copy(Class::Demand, 1) });
    let second = transfers.submit(Wanted { deadline_ns: Some(20), ..copy(Class::Demand, 2) });
    assert_eq!(started(&mut transfers, 0), [(first, 1)]);
    assert_eq!((transfers.poll_timeout(), transfers.poll_action(10)), (Some(11), None));
    assert_eq!(transfers.poll_action(11), Some(Action::Late(first)));
    assert_eq!((transfers.poll_timeout(), transfers.poll_action(11)), (Some(21), None));
    assert_eq!(transfers.poll_action(21), Some(Action::Expired(second, 2)));
    assert_eq!((transfers.completed(first), transfers.completed(second)), (Completed::Use, Completed::Unknown));
    assert_eq!((transfers.counts().late[0], transfers.counts().expired[0]), (1, 1));
}

#[test]
fn promotion_moves_a_waiting_copy_to_the_front() {
    let mut transfers = Transfers::new(TransferConfig::window(1));
    let (first, second) = (transfers.submit(copy(Class::Exact, 1)), transfers.submit(copy(Class::Speculative, 2)));
    assert_eq!(transfers.promote(second, Class::Demand), Promoted::Queued);
    assert_eq!(transfers.promote(second, Class::Exact), Promoted::Unchanged);
    assert_eq!(started(&mut transfers, 0), [(second, 2)]);
    assert_eq!(transfers.promote(second, Class::Demand), Promoted::Unchanged);
    assert_eq!(transfers.completed(second), Completed::Use);
    assert_eq!(transfers.promote(second, Class::Demand), Promoted::Unknown);
    assert_eq!(started(&mut transfers, 0), [(first, 1)]);
}

#[test]
fn batching_gains_nearly_its_size_while_the_doorbell_dominates() {
    assert_eq!(batch_gain(1_000, 10, 1), 1.0);
    assert!((7.4..7.6).contains(&batch_gain(1_000, 10, 8)));
    assert!(batch_gain(1_000, 1_000, 1_000) < 2.0);
}

#[derive(Clone, Debug)]
enum Step {
    Submit { class: usize, bytes: u64, due: Option<u64> },
    Complete(usize),
    Cancel(usize),
    Promote(usize, usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..CLASSES, 1_u64..2 << 20, prop::option::of(0_u64..40))
            .prop_map(|(class, bytes, due)| Step::Submit { class, bytes, due }),
        4 => any::<usize>().prop_map(Step::Complete),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => (any::<usize>(), 0..CLASSES).prop_map(|(at, class)| Step::Promote(at, class)),
        2 => (1_u64..20).prop_map(Step::Wait),
    ]
}

/// What the mover knows about its copies, checked against every answer.
#[derive(Default)]
struct Model {
    all: Vec<Ticket>,
    running: Vec<(Ticket, Class)>,
    gone: BTreeSet<Ticket>,
    cancelled_running: BTreeSet<Ticket>,
    deadlines: BTreeMap<Ticket, u64>,
    ended: usize,
}

impl Model {
    /// Polls until idle and checks each action.
    fn poll(&mut self, transfers: &mut Transfers<u64>, now: u64) {
        let config = transfers.config;
        while let Some(action) = transfers.poll_action(now) {
            match action {
                Action::Start(batch) => {
                    assert!(!batch.copies.is_empty() && batch.copies.len() <= config.batch_copies_max as usize);
                    assert!(batch.copies.len() == 1 || batch.bytes <= config.batch_bytes_max);
                    for (ticket, _) in &batch.copies {
                        assert!(!self.gone.contains(ticket), "a cancelled or expired copy started");
                        assert!(self.deadlines.get(ticket).is_none_or(|due| *due >= now), "started after its deadline");
                        self.running.push((*ticket, batch.class));
                    }
                    assert!(
                        self.running.len() <= config.limits[batch.class as usize] as usize,
                        "a class is over its limit"
                    );
                }
                Action::Expired(ticket, _) => {
                    assert!(self.deadlines[&ticket] < now && self.gone.insert(ticket));
                    self.ended += 1;
                }
                Action::Late(ticket) => assert!(self.running.iter().any(|(other, _)| *other == ticket)),
            }
        }
        assert_eq!(transfers.num_outstanding() as usize, self.running.len());
        if transfers.num_queued(Class::Demand) > 0 {
            let demand = self.running.iter().filter(|(_, class)| *class == Class::Demand).count() as u32;
            let [window, exact, ..] = config.limits;
            let is_full = transfers.num_outstanding() == window && demand >= window - exact;
            assert!(is_full || demand >= config.batch_copies_max, "a demand copy waits behind other classes");
        }
        let waiting: usize = Class::ALL.iter().map(|class| transfers.num_queued(*class)).sum();
        assert!(waiting == 0 || !self.running.is_empty(), "copies wait for an idle mover");
    }

    fn complete(&mut self, transfers: &mut Transfers<u64>, at: usize) {
        let (ticket, _) = self.running.swap_remove(at);
        let expected = if self.cancelled_running.contains(&ticket) { Completed::Discard } else { Completed::Use };
        assert_eq!(transfers.completed(ticket), expected);
        self.ended += 1;
    }

    fn cancel(&mut self, transfers: &mut Transfers<u64>, ticket: Ticket) {
        let is_running = self.running.iter().any(|(other, _)| *other == ticket);
        match transfers.cancel(ticket) {
            Cancelled::Queued(_) => {
                assert!(!is_running && self.gone.insert(ticket));
                self.ended += 1;
            }
            Cancelled::Started => assert!(is_running && self.cancelled_running.insert(ticket)),
            Cancelled::Unknown => assert!(!is_running || self.cancelled_running.contains(&ticket)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn windows_classes_deadlines_and_cancellations_hold(
        steps in prop::collection::vec(step(), 1..200),
        window in 1_u32..20,
        batch in 1_u32..6,
    ) {
        let config = TransferConfig { batch_copies_max: batch, ..TransferConfig::window(window) };
        let (mut transfers, mut model, mut now) = (Transfers::new(config), Model::default(), 0);
        for step in steps {
            match step {
                Step::Submit { class, bytes, due } => {
                    let deadline_ns = due.map(|due| now + due);
                    let ticket = transfers.submit(Wanted { class: Class::ALL[class], bytes, deadline_ns, item: now });
                    model.all.push(ticket);
                    deadline_ns.map(|due| model.deadlines.insert(ticket, due));
                }
                Step::Complete(at) if !model.running.is_empty() => {
                    let at = at % model.running.len();
                    model.complete(&mut transfers, at);
                }
                Step::Cancel(at) if !model.all.is_empty() => {
                    let ticket = model.all[at % model.all.len()];
                    model.cancel(&mut transfers, ticket);
                }
                Step::Promote(at, class) if !model.all.is_empty() => {
                    let _ = transfers.promote(model.all[at % model.all.len()], Class::ALL[class]);
                }
                Step::Wait(ns) => now += ns,
                _ => {}
            }
            model.poll(&mut transfers, now);
        }
        // Every copy ends: no class starves once the others are done.
        while !model.running.is_empty() {
            model.complete(&mut transfers, 0);
            model.poll(&mut transfers, now);
        }
        prop_assert_eq!(model.ended, model.all.len());
    }
}
