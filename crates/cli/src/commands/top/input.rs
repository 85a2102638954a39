//! Keys of `top`.

use super::panels::Panel;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Quit,
    /// Leaves help, filter or zoom; otherwise quits.
    Back,
    Show(Panel),
    NextPanel(isize),
    NextSort,
    Reverse,
    Zoom,
    Help,
    Move(isize),
    Top,
    BeginFilter,
    Type(char),
    Erase,
    EndFilter,
}

/// Keys and their help, as the help page shows them.
pub const HELP: &[(&str, &str)] = &[
    ("1 … 7, Tab", "choose a panel"),
    ("s, r", "sort by the next column; reverse the order"),
    ("/", "show only rows with a text; Esc ends it"),
    ("z", "zoom: the table takes the whole screen"),
    ("↑ ↓ PgUp PgDn Home", "scroll"),
    ("?", "this help"),
    ("Esc", "leave help, filter or zoom"),
    ("q, Ctrl-C", "quit"),
];

const PAGE: isize = 10;

impl Action {
    /// `None`: the event means nothing, or only a new size of the terminal.
    pub fn of(event: &Event, is_typing: bool) -> Option<Self> {
        let Event::Key(key) = event else { return None };
        let KeyEvent { code, modifiers, kind, .. } = *key;
        if kind == KeyEventKind::Release {
            return None;
        }
        if modifiers.contains(KeyModifiers::CONTROL) {
            return (code == KeyCode::Char('c')).then_some(Self::Quit);
        }
        if is_typing { Self::of_typing(code) } else { Self::of_command(code) }
    }

    fn of_typing(code: KeyCode) -> Option<Self> {
        Some(match code {
            KeyCode::Char(letter) => Self::Type(letter),
            KeyCode::Backspace => Self::Erase,
            KeyCode::Enter => Self::EndFilter,
            KeyCode::Esc => Self::Back,
            _ => return None,
        })
    }

    fn of_command(code: KeyCode) -> Option<Self> {
        Some(match code {
            KeyCode::Char('q') => Self::Quit,
            KeyCode::Esc => Self::Back,
            KeyCode::Char(digit @ '1'..='7') => Self::Show(Panel::ALL[digit as usize - '1' as usize]),
            KeyCode::Tab => Self::NextPanel(1),
            KeyCode::BackTab => Self::NextPanel(-1),
            KeyCode::Char('s') => Self::NextSort,
            KeyCode::Char('r') => Self::Reverse,
            KeyCode::Char('z') => Self::Zoom,
            KeyCode::Char('?' | 'h') => Self::Help,
            KeyCode::Char('/') => Self::BeginFilter,
            KeyCode::Up | KeyCode::Char('k') => Self::Move(-1),
            KeyCode::Down | KeyCode::Char('j') => Self::Move(1),
            KeyCode::PageUp => Self::Move(-PAGE),
            KeyCode::PageDown => Self::Move(PAGE),
            KeyCode::Home => Self::Top,
            _ => return None,
        })
    }
}
