//! `cenote top`: a region, live. It reads from outside, so it needs no server, and shows a region whose
//! processes have all ended.

mod input;
mod panels;
mod state;
#[cfg(test)]
mod tests;
mod view;

use crate::args::TopArgs;
use crate::observer::{Observer, named};
use crate::snapshot::Snapshot;
use cenote_base::Clock;
use cenote_console::failure::Failure;
use cenote_console::signals::EndSignals;
use input::Action;
use ratatui::Terminal;
use ratatui::backend::{Backend, TestBackend};
use ratatui::crossterm::event;
use ratatui::crossterm::terminal;
use state::State;
use std::io::IsTerminal;
use std::sync::mpsc::channel;

/// Size of a picture where there is no terminal.
const PICTURE: (u16, u16) = (80, 24);

pub fn run(args: &TopArgs) -> Result<(), Failure> {
    let region = named(&args.region, "top")?;
    let clock = Clock::system();
    let mut observer = Observer::open(&region, clock)?;
    let mut state = State::new(region.source()?.to_string(), args.every);
    state.take(observer.look());
    if args.once || args.output.is_json_on_stdout() {
        let (_open, never) = channel::<()>();
        let _ = clock.after(args.every).receive(&never);
        state.take(observer.look());
        let seen = state.seen.as_ref().map_err(|words| Failure::new(words.clone()))?;
        return args.output.show(&Snapshot::of(seen), || picture(&state));
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::new("stdout is no terminal")
            .hint("`cenote top --once` prints one picture; `cenote stat` a line a second"));
    }
    // A signal must not leave the terminal in raw mode.
    EndSignals::catch()?.then(|code| {
        ratatui::restore();
        std::process::exit(code.into());
    });
    let mut terminal = ratatui::try_init()?;
    let ended = follow(&mut terminal, &mut observer, &mut state, clock);
    ratatui::restore();
    ended
}

/// Draws and reacts until the user quits.
fn follow<B: Backend>(
    terminal: &mut Terminal<B>,
    observer: &mut Observer,
    state: &mut State,
    clock: Clock,
) -> Result<(), Failure>
where
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let mut due = clock.after(state.every);
    loop {
        terminal.draw(|frame| view::draw(frame, state)).map_err(|error| Failure::new(format!("terminal: {error}")))?;
        if event::poll(due.remaining())?
            && let Some(action) = Action::of(&event::read()?, state.is_typing)
        {
            state.apply(action);
        }
        if state.is_done {
            return Ok(());
        }
        if due.passed() {
            state.take(observer.look());
            due = clock.after(state.every);
        }
    }
}

/// The picture as text, as large as the terminal.
fn picture(state: &State) -> String {
    let (width, height) = if std::io::stdout().is_terminal() { terminal::size().unwrap_or(PICTURE) } else { PICTURE };
    picture_of(state, width, height)
}

fn picture_of(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory takes all");
    terminal.draw(|frame| view::draw(frame, state)).expect("memory takes all");
    let buffer = terminal.backend().buffer();
    let line = |row: &[ratatui::buffer::Cell]| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
    let lines = buffer.content.chunks(usize::from(width).max(1)).map(|row| line(row).trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}
