use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

impl Fetched for u32 {}

const CONFIG: StagingConfig = StagingConfig { buffers: 3, buffer_pages: 4, tiles: false };

fn actions(staging: &mut Staging<u32>, now: u64) -> Vec<StagingAction<u32>> {
    std::iter::from_fn(|| staging.poll_action(now)).collect()
}

fn fetches(actions: &[StagingAction<u32>]) -> Vec<(Place, u32)> {
    let of = |action: &StagingAction<u32>| match action {
        StagingAction::Fetch { place, page, .. } => Some((*place, *page)),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn the_next_two_layers_arrive_while_one_computes() {
    let mut staging = Staging::new(CONFIG);
    staging.push_step(vec![vec![10, 11], vec![20], vec![30], vec![40]]).expect("layers fit");
    let first = actions(&mut staging, 0);
    let fetched = fetches(&first);
    assert_eq!(fetched.iter().map(|(_, page)| *page).collect::<Vec<_>>(), [10, 11, 20, 30], "layer 3 has no buffer");
    fetched.iter().for_each(|(place, _)| staging.handle(5, StagingEvent::Arrived(*place)));
    let [StagingAction::Compute { layer: 0, pages, .. }] = &actions(&mut staging, 5)[..] else {
        panic!("layer 0 is staged")
    };
    assert_eq!(pages, &[10, 11]);
    staging.handle(9, StagingEvent::Computed);
    let after = actions(&mut staging, 9);
    assert!(matches!(after[0], StagingAction::Compute { layer: 1, .. }), "{after:?}");
    assert_eq!(fetches(&after).iter().map(|(_, page)| *page).collect::<Vec<_>>(), [40]);
    assert_eq!((staging.counts().cold, staging.counts().late, staging.counts().stall_ns), (2, 0, 5));
}

#[test]
fn a_late_page_is_urged_once_and_counted() {
    let mut staging = Staging::new(CONFIG);
    staging.push_step(vec![vec![], vec![20]]).expect("layers fit");
    let first = actions(&mut staging, 0);
    assert!(matches!(first[0], StagingAction::Compute { layer: 0, .. }));
    let (place, _) = fetches(&first)[0];
    staging.handle(10, StagingEvent::Computed);
    assert_eq!(actions(&mut staging, 10), [StagingAction::Urge(place)]);
    staging.handle(17, StagingEvent::Arrived(place));
    assert!(matches!(actions(&mut staging, 17)[..], [StagingAction::Compute { layer: 1, .. }]));
    assert_eq!((staging.counts().late, staging.counts().stall_ns, staging.counts().hidden_ns), (1, 7, 10));
}

#[test]
fn a_copy_that_was_given_up_or_is_damaged_is_repaired() {
    let mut staging = Staging::new(CONFIG);
    staging.push_step(vec![vec![7, 8]]).expect("the layer fits");
    let places = fetches(&actions(&mut staging, 0));
    staging.handle(1, StagingEvent::GivenUp(places[0].0));
    staging.handle(1, StagingEvent::Damaged(places[1].0));
    let repairs = [StagingAction::ReadNow(places[0].0, 7), StagingAction::Recompute(places[1].0, 8)];
    assert_eq!(actions(&mut staging, 1), repairs);
    places.iter().for_each(|(place, _)| staging.handle(2, StagingEvent::Arrived(*place)));
    assert!(matches!(actions(&mut staging, 2)[..], [StagingAction::Compute { .. }]));
}

#[test]
fn a_layer_beyond_a_buffer_is_an_error_or_two_tiles() {
    let layers = || vec![vec![1, 2, 3, 4, 5]];
    let error = Staging::new(CONFIG).push_step(layers()).expect_err("five pages in a buffer of four");
    assert_eq!(error.to_string(), "layer 0 needs 5 pages beyond L1, but a staging buffer has 4; enlarge it");
    let mut staging = Staging::new(StagingConfig { tiles: true, ..CONFIG });
    staging.push_step(layers()).expect("tiles are on");
    assert_eq!(staging.num_tiles(), 2);
}

/// A memory of buffers and copies that arrive in any order, fail, or arrive after they were cancelled.
#[derive(Default)]
struct World {
    memory: BTreeMap<(u32, u32), u32>,
    flying: Vec<(Place, u32)>,
    cancelled: Vec<(Place, u32)>,
    is_computing: bool,
    computed: Vec<(u64, u32, Vec<u32>)>,
    /// Step and layer of the pages in `part`, the computed tiles of an unfinished layer.
    part_of: (u64, u32),
    part: Vec<u32>,
    repairs: u64,
}

impl World {
    fn apply(&mut self, action: StagingAction<u32>, config: &StagingConfig) {
        match action {
            StagingAction::Fetch { place, page, .. } => {
                assert!(place.buffer < config.buffers && place.slot < config.buffer_pages);
                let shared = self.flying.iter().chain(&self.cancelled);
                let is_free = |(other, _): &(Place, u32)| (other.buffer, other.slot) != (place.buffer, place.slot);
                assert!(shared.clone().all(is_free), "two copies write one slot");
                self.flying.push((place, page));
            }
            StagingAction::Urge(place) => assert!(self.flying.iter().any(|(other, _)| *other == place)),
            StagingAction::Cancel(place) => {
                // The copy was given up before and waits for its repair: there is nothing in flight.
                let at = self.flying.iter().position(|(other, _)| *other == place);
                self.cancelled.push(at.map_or((place, u32::MAX), |at| self.flying.swap_remove(at)));
            }
            StagingAction::ReadNow(place, page) | StagingAction::Recompute(place, page) => {
                self.flying.push((place, page));
                self.repairs += 1;
            }
            StagingAction::Compute { step, layer, buffer, pages, is_last, .. } => {
                assert!(!std::mem::replace(&mut self.is_computing, true));
                for (slot, page) in (0..).zip(&pages) {
                    assert_eq!(self.memory.get(&(buffer, slot)), Some(page), "a page is not in its slot");
                }
                if std::mem::replace(&mut self.part_of, (step, layer)) != (step, layer) {
                    self.part.clear();
                }
                self.part.extend(pages);
                if is_last {
                    self.computed.push((step, layer, std::mem::take(&mut self.part)));
                }
            }
        }
    }

    /// Lets one thing happen.
    fn advance(&mut self, staging: &mut Staging<u32>, now: u64, draw: u64) {
        let pick = draw as usize / 8;
        match draw % 8 {
            0 if self.is_computing => {
                self.is_computing = false;
                staging.handle(now, StagingEvent::Computed);
            }
            1 if !self.cancelled.is_empty() => {
                let (place, page) = self.cancelled.swap_remove(pick % self.cancelled.len());
                self.memory.insert((place.buffer, place.slot), page);
                staging.handle(now, StagingEvent::Cancelled(place));
            }
            2 if !self.flying.is_empty() => {
                let (place, _) = self.flying.swap_remove(pick % self.flying.len());
                let event =
                    if draw.is_multiple_of(3) { StagingEvent::GivenUp(place) } else { StagingEvent::Damaged(place) };
                staging.handle(now, event);
            }
            _ if !self.flying.is_empty() => {
                let (place, page) = self.flying.swap_remove(pick % self.flying.len());
                self.memory.insert((place.buffer, place.slot), page);
                staging.handle(now, StagingEvent::Arrived(place));
            }
            _ if self.is_computing => {
                self.is_computing = false;
                staging.handle(now, StagingEvent::Computed);
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_needed_page_arrives_before_its_tile_computes(
        steps in prop::collection::vec(prop::collection::vec(0_usize..10, 1..6), 1..6),
        buffers in 2_u32..4,
        buffer_pages in 1_u32..6,
        draws in prop::collection::vec(any::<u64>(), 400),
        abandoned in prop::option::of(0_u64..6),
    ) {
        let config = StagingConfig { buffers, buffer_pages, tiles: true };
        let (mut staging, mut world, mut expected) = (Staging::new(config), World::default(), Vec::new());
        for (step, layers) in (0..).zip(&steps) {
            let pages: Vec<Vec<u32>> =
                (0..).zip(layers).map(|(layer, &count)| (0..count as u32).map(|at| 10_000 * step + 100 * layer + at).collect()).collect();
            expected.extend((0..).zip(&pages).map(|(layer, pages)| (u64::from(step), layer, pages.clone())));
            prop_assert_eq!(staging.push_step(pages), Ok(u64::from(step)));
        }
        let mut dropped = 0;
        for (now, draw) in (0..).zip(draws) {
            while let Some(action) = staging.poll_action(now) {
                world.apply(action, &config);
            }
            world.advance(&mut staging, now, draw);
            if now == 20 && abandoned.is_some() {
                dropped = staging.abandon_from(abandoned.unwrap_or(0));
                staging.push_step(vec![vec![1, 2, 3]; 3]).expect("tiles are on");
                expected.retain(|(step, layer, _)| *step < abandoned.unwrap_or(0)
                    || world.computed.iter().any(|(s, l, _)| (s, l) == (step, layer)));
                expected.extend((0..3).map(|layer| (steps.len() as u64, layer, vec![1, 2, 3])));
            }
        }
        // Nothing more fails: the rest must end.
        let mut now = 1_000;
        while staging.num_tiles() > 0 {
            while let Some(action) = staging.poll_action(now) {
                world.apply(action, &config);
            }
            let draw = if world.cancelled.is_empty() { 3 } else { 1 };
            world.advance(&mut staging, now, draw);
            now += 1;
            prop_assert!(now < 10_000, "the schedule hangs");
        }
        if dropped == 0 && abandoned.is_none() {
            prop_assert_eq!(&world.computed, &expected);
        } else {
            prop_assert!(world.computed.ends_with(&expected[expected.len() - 3..]), "the new step is computed whole");
        }
        let counts = staging.counts();
        prop_assert_eq!(counts.read_now + counts.recomputed >= world.repairs, true);
        prop_assert!(counts.pages + counts.wasted >= counts.fetched);
    }

    #[test]
    fn a_fixed_subset_has_as_many_hits_as_belady_and_lru_has_none(pages in 2_u32..14, capacity in 1_usize..13) {
        let capacity = capacity.min(pages as usize - 1);
        let steps = 8;
        // Every page of the subset is a hit in every step but the first.
        let pinned = (steps - 1) * capacity;
        let accesses: Vec<u32> = (0..steps as u32).flat_map(|_| 0..pages).collect();
        let best = belady(&accesses, capacity);
        prop_assert_eq!(pinned, best, "Belady with bypass");
        prop_assert_eq!(lru(&accesses, capacity), 0);
    }
}

/// Hits of Belady's policy that may read without keeping: it keeps the pages with the nearest next use.
fn belady(accesses: &[u32], capacity: usize) -> usize {
    let next = |page: u32, from: usize| {
        accesses[from..].iter().position(|other| *other == page).map_or(usize::MAX, |at| from + at)
    };
    let (mut kept, mut hits) = (Vec::new(), 0);
    for (at, &page) in accesses.iter().enumerate() {
        if let Some(slot) = kept.iter().position(|other| *other == page) {
            kept.swap_remove(slot);
            hits += 1;
        }
        kept.push(page);
        if kept.len() > capacity {
            let farthest = (0..kept.len()).max_by_key(|&slot| next(kept[slot], at + 1)).expect("pages are kept");
            kept.swap_remove(farthest);
        }
    }
    hits
}

fn lru(accesses: &[u32], capacity: usize) -> usize {
    let (mut kept, mut hits): (Vec<u32>, usize) = (Vec::new(), 0);
    for &page in accesses {
        if let Some(slot) = kept.iter().position(|other| *other == page) {
            kept.remove(slot);
            hits += 1;
        } else if kept.len() == capacity {
            kept.remove(0);
        }
        kept.push(page);
    }
    hits
}
