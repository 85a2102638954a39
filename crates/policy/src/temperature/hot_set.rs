//! The pages that one reader keeps in L1.

use super::{Heat, Temperature, Thresholds};
use std::collections::BTreeMap;

/// The pages that L1 keeps for one reader, for example a group of heads of a request.
///
/// While there is room, each page that is read stays. Then a page replaces the coldest one if it was
/// read more often in the window and is not cold itself.
#[derive(Clone, Debug, Default)]
pub struct HotSet {
    kept: BTreeMap<u32, Heat>,
    /// Pages that were read and are not kept.
    passed: BTreeMap<u32, Heat>,
}

/// Result of [`HotSet::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotRead {
    /// The page was kept already.
    Kept,
    /// Keep it from now on, in the place of this one.
    Admitted(Option<u32>),
    /// Do not keep it.
    Passed,
}

impl HotSet {
    /// Records that `token` read a page. At most `room` pages are kept.
    pub fn read(&mut self, page: u32, token: u64, room: usize, thresholds: &Thresholds) -> HotRead {
        if let Some(heat) = self.kept.get_mut(&page) {
            heat.read(token);
            return HotRead::Kept;
        }
        let heat = self.passed.entry(page).or_insert_with(|| Heat::new(token));
        heat.read(token);
        let (heat, window) = (*heat, thresholds.window());
        let replaced = if self.kept.len() < room {
            None
        } else {
            if thresholds.temperature(&heat, token) == Temperature::Cold {
                return HotRead::Passed;
            }
            let reads = |heat: &Heat| heat.reads(token, window);
            let coldest = self.kept.iter().map(|(page, heat)| (reads(heat), *page)).min();
            match coldest {
                Some((least, coldest)) if least < reads(&heat) => Some(coldest),
                _ => return HotRead::Passed,
            }
        };
        if let Some(page) = replaced {
            let heat = self.kept.remove(&page).expect("the coldest page is kept");
            self.passed.insert(page, heat);
        }
        self.passed.remove(&page);
        self.kept.insert(page, heat);
        HotRead::Admitted(replaced)
    }

    /// Whether a page is kept.
    #[must_use]
    pub fn contains(&self, page: u32) -> bool {
        self.kept.contains_key(&page)
    }

    /// Number of kept pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether no page is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Forgets the pages from number `first` on.
    pub fn truncate(&mut self, first: u32) {
        self.kept.split_off(&first);
        self.passed.split_off(&first);
    }
}
