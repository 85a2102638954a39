//! Requests with blocks on their way from a slower tier into the store. The scheduler gets them
//! when the blocks are there or the promotion's deadline has passed; running requests continue
//! meanwhile.

use super::request::Admission;
use cenote_base::RequestId;
use cenote_store::{PrefixStore, Promotion};
use std::time::Duration;

/// Time between two looks at promotions while nothing else happens.
pub(super) const POLL: Duration = Duration::from_millis(1);

/// The waiting requests, in their order of arrival.
#[derive(Default)]
pub(super) struct Promoting(Vec<(Box<Admission>, Promotion)>);

impl Promoting {
    /// Keeps a request if there are blocks to wait for, and fewer than `most` requests wait;
    /// otherwise returns it.
    pub fn keep(
        &mut self,
        store: Option<&mut (dyn PrefixStore + 'static)>,
        admission: Box<Admission>,
        most: usize,
    ) -> Option<Box<Admission>> {
        let Some(store) = store.filter(|_| admission.use_pool && self.0.len() < most) else { return Some(admission) };
        let root = admission.cache_salt.as_ref().map(|salt| store.root(salt));
        match store.promote(root, &admission.prompt) {
            Some(promotion) => {
                self.0.push((admission, promotion));
                None
            }
            None => Some(admission),
        }
    }

    /// Takes up to `most` requests that wait no longer.
    pub fn take_over(&mut self, most: usize) -> impl Iterator<Item = Box<Admission>> + use<> {
        let mut room = most;
        let goes = |(_, promotion): &mut (Box<Admission>, Promotion)| {
            let goes = room > 0 && promotion.is_over();
            room -= usize::from(goes);
            goes
        };
        let over: Vec<_> = self.0.extract_if(.., goes).collect();
        over.into_iter().map(|(admission, _)| admission)
    }

    /// Requests whose timeout has passed.
    pub fn expired(&self, now_ns: u64) -> Vec<RequestId> {
        let late = self.0.iter().filter(|(admission, _)| admission.deadline_ns <= now_ns);
        late.map(|(admission, _)| admission.id).collect()
    }

    pub fn has(&self, id: RequestId) -> bool {
        self.0.iter().any(|(admission, _)| admission.id == id)
    }

    /// Takes a request out.
    pub fn take(&mut self, id: RequestId) -> Option<Box<Admission>> {
        let at = self.0.iter().position(|(admission, _)| admission.id == id)?;
        Some(self.0.remove(at).0)
    }

    /// Takes all requests out.
    pub fn take_all(&mut self) -> impl Iterator<Item = Box<Admission>> {
        std::mem::take(&mut self.0).into_iter().map(|(admission, _)| admission)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
