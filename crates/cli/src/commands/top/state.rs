//! What `top` shows, and how keys change it. No terminal, no clock.

use super::input::Action;
use super::panels::Panel;
use crate::observer::Observed;
use cenote_console::failure::Failure;
use std::collections::VecDeque;
use std::time::Duration;

/// Most intervals of which the hit rate is kept.
const HISTORY_MAX: usize = 512;

/// Column by which a panel is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sort {
    /// `None`: the panel's own order.
    pub column: Option<usize>,
    pub is_ascending: bool,
}

pub struct State {
    pub region: String,
    pub every: Duration,
    /// The last look, or why there is none.
    pub seen: Result<Observed, String>,
    pub panel: Panel,
    sorts: [Sort; Panel::ALL.len()],
    /// Rows that contain this text are shown.
    pub filter: String,
    /// Keys are written to the filter.
    pub is_typing: bool,
    /// The table has the whole screen.
    pub is_zoomed: bool,
    pub shows_help: bool,
    /// First row shown.
    pub first: usize,
    /// Hit rates in percent of the last intervals, the newest last.
    pub hits: VecDeque<u64>,
    pub is_done: bool,
}

impl State {
    pub fn new(region: String, every: Duration) -> Self {
        Self {
            region,
            every,
            seen: Err("no look yet".to_owned()),
            panel: Panel::Models,
            sorts: [Sort::default(); Panel::ALL.len()],
            filter: String::new(),
            is_typing: false,
            is_zoomed: false,
            shows_help: false,
            first: 0,
            hits: VecDeque::new(),
            is_done: false,
        }
    }

    /// Takes a look's result.
    pub fn take(&mut self, seen: Result<Observed, Failure>) {
        if let Ok(Observed { rates: Some(rates), .. }) = &seen {
            // An interval without lookups has no share.
            self.hits.extend(rates.hit_share().map(|share| (100.0 * share).round() as u64));
            self.hits.drain(..self.hits.len().saturating_sub(HISTORY_MAX));
        }
        self.seen = seen.map_err(|failure| failure.to_string());
    }

    pub fn sort(&self) -> Sort {
        self.sorts[self.panel as usize]
    }

    pub fn apply(&mut self, action: Action) {
        match action {
            Action::Quit => self.is_done = true,
            Action::Back => self.back(),
            Action::Show(panel) => self.show(panel),
            Action::NextPanel(by) => {
                let count = Panel::ALL.len();
                self.show(Panel::ALL[(self.panel as usize + count).wrapping_add_signed(by) % count]);
            }
            Action::NextSort => self.next_sort(),
            Action::Reverse => {
                let sort = &mut self.sorts[self.panel as usize];
                sort.is_ascending = !sort.is_ascending;
            }
            Action::Zoom => self.is_zoomed = !self.is_zoomed,
            Action::Help => self.shows_help = !self.shows_help,
            Action::Move(by) => self.first = self.first.saturating_add_signed(by),
            Action::Top => self.first = 0,
            Action::BeginFilter => (self.is_typing, self.first) = (true, 0),
            Action::Type(letter) => self.filter.push(letter),
            Action::Erase => drop(self.filter.pop()),
            Action::EndFilter => self.is_typing = false,
        }
    }

    /// Leaves what was entered last, or quits.
    fn back(&mut self) {
        if self.shows_help {
            self.shows_help = false;
        } else if self.is_typing || !self.filter.is_empty() {
            (self.is_typing, self.filter) = (false, String::new());
        } else if self.is_zoomed {
            self.is_zoomed = false;
        } else {
            self.is_done = true;
        }
    }

    fn show(&mut self, panel: Panel) {
        (self.panel, self.first) = (panel, 0);
    }

    fn next_sort(&mut self) {
        let columns = self.panel.headings().len();
        let sort = &mut self.sorts[self.panel as usize];
        sort.column = match sort.column {
            None => Some(0),
            Some(last) if last + 1 >= columns => None,
            Some(column) => Some(column + 1),
        };
        self.first = 0;
    }
}
