//! Draws the state of `top`. All is legible without colour, and `NO_COLOR` turns it off.

use super::input::HELP;
use super::panels::{Cell, Panel};
use super::state::State;
use crate::gauges::Look;
use crate::observer::Observed;
use cenote_base::units::ByteSize;
use cenote_console::output;
use cenote_pool::Counter;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Gauge, Paragraph, Row, Sparkline, Table, Wrap};
use unicode_width::UnicodeWidthStr;

/// From this height on, the hit rates of the last intervals are drawn.
const TALL: u16 = 32;
/// Most findings above the table; all are in a panel of their own.
const FINDINGS_MAX: usize = 3;
/// Widest column that is not the last.
const COLUMN_MAX: u16 = 32;

fn coloured(color: Color) -> Style {
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        Style::new()
    } else {
        Style::new().fg(color)
    }
}

pub fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    match &state.seen {
        Ok(seen) if state.is_zoomed => {
            let [table, keys] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(area);
            draw_table(frame, table, state, seen);
            draw_keys(frame, keys, state);
        }
        Ok(seen) => draw_all(frame, area, state, seen),
        Err(words) => draw_absence(frame, area, state, words),
    }
    if state.shows_help {
        draw_help(frame, area);
    }
}

fn draw_all(frame: &mut Frame<'_>, area: Rect, state: &State, seen: &Observed) {
    let findings = seen.findings.len().min(FINDINGS_MAX) as u16;
    let trace = if area.height >= TALL { 4 } else { 0 };
    let [title, fill, numbers, trace, findings, table, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(3),
        Constraint::Length(trace),
        Constraint::Length(findings),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_title(frame, title, state, seen);
    draw_fill(frame, fill, &seen.look);
    frame.render_widget(Paragraph::new(numbers_of(seen).map(Line::from).to_vec()), numbers);
    draw_trace(frame, trace, state);
    let lines = seen.findings.iter().take(FINDINGS_MAX);
    let lines = lines.map(|finding| Line::styled(format!("! {}", finding.what), coloured(Color::Yellow)));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), findings);
    draw_table(frame, table, state, seen);
    draw_keys(frame, keys, state);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, state: &State, seen: &Observed) {
    let time = output::utc(seen.now_us);
    let time = time.split('.').next().unwrap_or_default();
    let alive = seen.look.info.workers.iter().filter(|worker| worker.alive != Some(false)).count();
    let left = format!("cenote top  {}  {}", state.region, ByteSize(seen.look.info.region_bytes));
    let life = if alive == 0 { "no process has it open".to_owned() } else { format!("{alive} processes") };
    let right = format!("{life}  {time} UTC");
    let space = usize::from(area.width).saturating_sub(left.width() + right.width()).max(1);
    let line = Line::styled(format!("{left}{}{right}", " ".repeat(space)), Modifier::BOLD);
    frame.render_widget(Paragraph::new(line), area);
}

fn draw_fill(frame: &mut Frame<'_>, area: Rect, look: &Look) {
    let (taken, all) = (look.info.chunks_taken, look.info.num_chunks);
    let ratio = if all == 0 { 0.0 } else { (taken as f64 / all as f64).clamp(0.0, 1.0) };
    let label = format!("{taken} of {all} chunks taken ({:.0} %)", 100.0 * ratio);
    let [words, bar] = Layout::horizontal([Constraint::Length(36), Constraint::Min(10)]).areas(area);
    frame.render_widget(Paragraph::new(label), words);
    let colour = if taken == all { Color::Yellow } else { Color::Green };
    frame.render_widget(Gauge::default().ratio(ratio).label("").use_unicode(true).gauge_style(coloured(colour)), bar);
}

/// Three lines with the numbers of the last interval.
fn numbers_of(seen: &Observed) -> [String; 3] {
    let look = &seen.look;
    let blocks = format!("blocks {} ({})", look.info.blocks_ready, ByteSize(look.info.bytes_ready));
    let content = format!("{blocks}  pins {}  locks {}", look.pinned, look.info.locks_given);
    let Some(rates) = &seen.rates else { return ["rates after the next look".to_owned(), content, String::new()] };
    let rate = |counter| rates.per_second(counter);
    let hits =
        rates.hit_share().map_or_else(|| "no lookups".to_owned(), |share| format!("hits {:.1} %", 100.0 * share));
    let misses = rate(Counter::Lookups) - rate(Counter::Found);
    let first = format!(
        "{hits}  looked up {:.0}/s  missed {misses:.0}/s  published {:.0}/s  evicted {:.0}/s",
        rate(Counter::Lookups),
        rate(Counter::Published),
        rate(Counter::Evicted)
    );
    let bytes = |counter| ByteSize(rate(counter) as u64);
    let copies = format!("read {}/s  written {}/s", bytes(Counter::ReadBytes), bytes(Counter::PublishedBytes));
    let faults = format!(
        "refused {:.0}/s  damaged {:.0}/s  lock timeouts {:.0}/s  late from the cold tier {:.0}/s",
        rate(Counter::NoRoom) + rate(Counter::QuotaRefused),
        rate(Counter::ReadsDamaged),
        rate(Counter::LockTimeouts),
        rate(Counter::ColdLate)
    );
    [first, format!("{content}  {copies}"), faults]
}

fn draw_trace(frame: &mut Frame<'_>, area: Rect, state: &State) {
    if area.height == 0 {
        return;
    }
    let width = usize::from(area.width);
    let last = state.hits.iter().skip(state.hits.len().saturating_sub(width)).copied().collect::<Vec<u64>>();
    let block = Block::new().title(format!("hits in percent, {:.0} s each", state.every.as_secs_f64()));
    frame.render_widget(Sparkline::default().block(block).max(100).data(&last).style(coloured(Color::Cyan)), area);
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, state: &State, seen: &Observed) {
    let sort = state.sort();
    let rows = state.panel.rows(seen, &state.filter, sort);
    let mut headings: Vec<String> = state.panel.headings().into_iter().map(ToOwned::to_owned).collect();
    let widths = widths(&headings, &rows);
    if let Some(heading) = sort.column.and_then(|column| headings.get_mut(column)) {
        heading.push(if sort.is_ascending { '▲' } else { '▼' });
    }
    let height = usize::from(area.height.saturating_sub(2));
    let first = state.first.min(rows.len().saturating_sub(height));
    let shown = rows.iter().skip(first).take(height).map(|row| Row::new(row.iter().map(aligned)));
    let tabs = Panel::ALL.iter().zip(1..).map(|(panel, number)| {
        let name = format!("{number} {}", panel.name());
        if *panel == state.panel {
            Span::styled(format!("[{name}]"), Modifier::BOLD)
        } else {
            Span::raw(format!(" {name} "))
        }
    });
    let block = Block::new().title(Line::from_iter(tabs));
    let is_number = |column: usize| rows.first().is_some_and(|row| row[column].is_number());
    let heading = |(column, heading): (usize, String)| {
        let line = Line::from(heading);
        if is_number(column) { line.right_aligned() } else { line }
    };
    let header =
        Row::new(headings.into_iter().enumerate().map(heading)).style(Style::new().add_modifier(Modifier::UNDERLINED));
    frame.render_widget(Table::new(shown, widths).header(header).block(block), area);
}

fn aligned(cell: &Cell) -> Line<'static> {
    let line = Line::from(cell.text.clone());
    if cell.is_number() { line.right_aligned() } else { line }
}

/// Columns as wide as their content; the last takes the rest.
fn widths(headings: &[String], rows: &[Vec<Cell>]) -> Vec<Constraint> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].text.width());
        // A mark of the order fits behind each heading.
        cells.chain([headings[column].width() + 1]).max().unwrap_or(0) as u16
    };
    let last = headings.len() - 1;
    let of = |column: usize| {
        if column == last {
            Constraint::Min(width(column).min(COLUMN_MAX))
        } else {
            Constraint::Max(width(column).min(COLUMN_MAX))
        }
    };
    (0..headings.len()).map(of).collect()
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let text = if state.is_typing || !state.filter.is_empty() {
        let cursor = if state.is_typing { "_" } else { "  (Esc ends it)" };
        format!("/{}{cursor}", state.filter)
    } else {
        "q quit  1-7 panel  s sort  r reverse  / filter  z zoom  ? help".to_owned()
    };
    frame.render_widget(Paragraph::new(text), area);
}

fn draw_absence(frame: &mut Frame<'_>, area: Rect, state: &State, words: &str) {
    let text = format!(
        "cenote top  {}\n\nThe region cannot be read: {words}\n\n`cenote doctor --region {}` says more. Waiting for it; q quits.",
        state.region, state.region
    );
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<Line<'_>> = HELP.iter().map(|(keys, what)| Line::from(format!(" {keys:<20} {what}"))).collect();
    let (width, height) = (72.min(area.width), (lines.len() as u16 + 2).min(area.height));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" help ")), place);
}
