//! Blocks on their way from a slower tier into the store, before they are needed (CXL-SpecKV §3.4).
//!
//! A waiting request whose prefix lies there gets to the scheduler when its blocks have arrived, or a
//! deadline has passed; running requests continue meanwhile. A conversation whose client announced its
//! next turn is fetched shortly before that. Both are exact, so nothing is predicted here. The planner
//! ([`cenote_policy::prefetch`]) begins those that wait first, and bounds the bytes on their way.

use super::request::{Admission, Running};
use cenote_base::{BlockHash, RequestId, TokenId};
use cenote_policy::prefetch::{Offer, Planner, PlannerConfig, PrefetchAction, PrefetchEvent, Source};
use cenote_store::{PrefixStore, Promotion};
use std::collections::VecDeque;
use std::time::Duration;

/// Time between two looks at promotions while nothing else happens.
pub(super) const POLL: Duration = Duration::from_millis(1);
/// Longest time for which a request waits until its promotion begins.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Time before the announced turn at which its blocks are fetched. An idle engine looks once a second.
const LEAD_NS: u64 = 2_000_000_000;
/// Most announced turns; then the oldest is forgotten.
const HINTS_MAX: usize = 256;
/// Most bytes on their way for waiting requests and announced turns.
const BYTES_MAX: u64 = 1 << 30;

/// What a promotion is for: a waiting request, or an announced turn by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Waiting(RequestId),
    Hint(u64),
}

/// A request that waits for blocks.
struct Waiting {
    admission: Box<Admission>,
    /// `None`: it has not begun.
    promotion: Option<Promotion>,
    /// Nothing is left to wait for, or the deadline for the begin has passed.
    is_over: bool,
    until_ns: u64,
}

/// A conversation whose next turn was announced.
struct Hint {
    number: u64,
    root: Option<BlockHash>,
    tokens: Vec<TokenId>,
    due_ns: u64,
    is_offered: bool,
    promotion: Option<Promotion>,
}

/// Counters by Prometheus name.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    hints: u64,
    hints_dropped: u64,
    hints_promoted: u64,
}

/// The promotions of an engine.
pub(super) struct Promoting {
    /// In their order of arrival.
    waiting: Vec<Waiting>,
    hints: VecDeque<Hint>,
    planner: Planner<Key>,
    block_bytes: u64,
    next: u64,
    totals: Totals,
}

impl Promoting {
    pub fn new(block_bytes: usize) -> Self {
        Self {
            waiting: Vec::new(),
            hints: VecDeque::new(),
            planner: Planner::new(PlannerConfig::with_buffer(BYTES_MAX)),
            block_bytes: block_bytes as u64,
            next: 0,
            totals: Totals::default(),
        }
    }

    fn offer(&mut self, key: Key, request: RequestId, source: Source, blocks: usize, until_ns: Option<u64>) {
        // One request alone may exceed the bound.
        let bytes = (blocks as u64 * self.block_bytes).min(BYTES_MAX);
        let _ = self.planner.offer(Offer { key, request, source, bytes, generation: 0, needed_at_ns: until_ns });
    }

    /// Keeps a request if there are blocks to wait for, and fewer than `most` requests wait;
    /// otherwise returns it.
    pub fn keep(
        &mut self,
        store: Option<&mut (dyn PrefixStore + 'static)>,
        admission: Box<Admission>,
        most: usize,
        now_ns: u64,
    ) -> Option<Box<Admission>> {
        let has_room = self.waiting.len() < most;
        let Some(store) = store.filter(|_| admission.use_pool && has_room) else { return Some(admission) };
        let root = admission.cache_salt.as_ref().map(|salt| store.root(salt));
        let blocks = store.promotable(root, &admission.prompt);
        if blocks == 0 {
            return Some(admission);
        }
        let (id, until_ns) = (admission.id, now_ns.saturating_add(PATIENCE_NS));
        let position = u32::try_from(self.next).unwrap_or(u32::MAX);
        self.next += 1;
        self.waiting.push(Waiting { admission, promotion: None, is_over: false, until_ns });
        self.offer(Key::Waiting(id), id, Source::Waiting(position), blocks, Some(until_ns));
        self.pump(store, now_ns);
        None
    }

    /// A request has ended whose client announced the conversation's next turn, in so many
    /// milliseconds.
    pub fn expect(&mut self, request: &Running, ms: u64, now_ns: u64) {
        if self.hints.len() >= HINTS_MAX {
            self.hints.pop_front();
            self.totals.hints_dropped += 1;
        }
        self.totals.hints += 1;
        let due_ns = now_ns.saturating_add(ms.saturating_mul(1_000_000)).saturating_sub(LEAD_NS);
        let (number, root, tokens) = (self.next, request.root, request.tokens.clone());
        self.next += 1;
        self.hints.push_back(Hint { number, root, tokens, due_ns, is_offered: false, promotion: None });
    }

    /// Fetches for announced turns that are near, and takes notice of what has arrived.
    pub fn advance(&mut self, store: Option<&mut (dyn PrefixStore + 'static)>, now_ns: u64) {
        let Some(store) = store else { return };
        let mut offers = Vec::new();
        for hint in self.hints.iter_mut().filter(|hint| hint.due_ns <= now_ns && !hint.is_offered) {
            // The lookup keeps what the store has from eviction for a while.
            let _ = store.match_prefix(hint.root, &hint.tokens);
            hint.is_offered = true;
            offers.push((hint.number, store.promotable(hint.root, &hint.tokens)));
        }
        for (number, blocks) in offers {
            if blocks == 0 {
                self.hints.retain(|hint| hint.number != number);
            } else {
                self.offer(Key::Hint(number), RequestId(number), Source::Hint, blocks, None);
            }
        }
        for waiting in self.waiting.iter_mut().filter(|waiting| !waiting.is_over) {
            let key = Key::Waiting(waiting.admission.id);
            match &waiting.promotion {
                Some(promotion) if promotion.is_over() => self.planner.handle(PrefetchEvent::Arrived(key, 0)),
                None if waiting.until_ns <= now_ns => {}
                _ => continue,
            }
            waiting.is_over = true;
        }
        let (planner, totals) = (&mut self.planner, &mut self.totals);
        self.hints.retain(|hint| {
            let has_arrived = hint.promotion.as_ref().is_some_and(Promotion::is_over);
            if has_arrived {
                totals.hints_promoted += 1;
                planner.handle(PrefetchEvent::Arrived(Key::Hint(hint.number), 0));
                // The blocks are in the store now, where only the store decides on them.
                planner.handle(PrefetchEvent::Used(Key::Hint(hint.number)));
            }
            !has_arrived
        });
        self.pump(store, now_ns);
    }

    /// Begins what the planner wants.
    fn pump(&mut self, store: &mut (dyn PrefixStore + 'static), now_ns: u64) {
        while let Some(action) = self.planner.poll_action(now_ns) {
            // Promotions are neither urged nor cancelled: what was read is shared.
            let PrefetchAction::Fetch { key, .. } = action else { continue };
            let began = match key {
                Key::Waiting(id) => {
                    let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.admission.id == id) else {
                        self.planner.handle(PrefetchEvent::Failed(key));
                        continue;
                    };
                    let root = waiting.admission.cache_salt.as_ref().map(|salt| store.root(salt));
                    waiting.promotion = store.promote(root, &waiting.admission.prompt);
                    waiting.is_over = waiting.promotion.is_none();
                    !waiting.is_over
                }
                Key::Hint(number) => {
                    let hint = self.hints.iter_mut().find(|hint| hint.number == number);
                    hint.is_some_and(|hint| {
                        hint.promotion = store.promote(hint.root, &hint.tokens);
                        hint.promotion.is_some()
                    })
                }
            };
            if !began {
                self.planner.handle(PrefetchEvent::Failed(key));
                self.hints.retain(|hint| key != Key::Hint(hint.number));
            }
        }
    }

    /// Takes up to `most` requests that wait no longer.
    pub fn take_over(&mut self, most: usize) -> impl Iterator<Item = Box<Admission>> {
        let mut room = most;
        let goes = |waiting: &mut Waiting| {
            let goes = room > 0 && waiting.is_over;
            room -= usize::from(goes);
            goes
        };
        let over: Vec<Waiting> = self.waiting.extract_if(.., goes).collect();
        over.into_iter().map(|waiting| self.leave(waiting))
    }

    /// A request waits no longer: its promotion has no more bytes on their way.
    fn leave(&mut self, waiting: Waiting) -> Box<Admission> {
        let (id, key) = (waiting.admission.id, Key::Waiting(waiting.admission.id));
        if waiting.promotion.is_some_and(|promotion| promotion.is_over()) {
            self.planner.handle(PrefetchEvent::Used(key));
        } else {
            self.planner.handle(PrefetchEvent::Failed(key));
        }
        self.planner.handle(PrefetchEvent::Ended(id));
        waiting.admission
    }

    /// Requests whose timeout has passed.
    pub fn expired(&self, now_ns: u64) -> Vec<RequestId> {
        let late = self.waiting.iter().filter(|waiting| waiting.admission.deadline_ns <= now_ns);
        late.map(|waiting| waiting.admission.id).collect()
    }

    pub fn has(&self, id: RequestId) -> bool {
        self.waiting.iter().any(|waiting| waiting.admission.id == id)
    }

    /// Takes a request out.
    pub fn take(&mut self, id: RequestId) -> Option<Box<Admission>> {
        let at = self.waiting.iter().position(|waiting| waiting.admission.id == id)?;
        let waiting = self.waiting.remove(at);
        Some(self.leave(waiting))
    }

    /// Takes all requests out.
    pub fn take_all(&mut self) -> impl Iterator<Item = Box<Admission>> {
        std::mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.admission)
    }

    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Counters by Prometheus name.
    pub fn stats(&self) -> [(String, f64); 4] {
        let waiting = Source::Waiting(0).index();
        [
            ("prefetch_waiting_total", self.planner.counts().fetched[waiting]),
            ("prefetch_hints_total", self.totals.hints),
            ("prefetch_hints_dropped_total", self.totals.hints_dropped),
            ("prefetch_hints_promoted_total", self.totals.hints_promoted),
        ]
        .map(|(name, value)| (name.to_owned(), value as f64))
    }
}
