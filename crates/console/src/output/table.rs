//! Tables that fit the terminal's width: one rule under the header, numbers to the right, no
//! trailing spaces.
//!
//! Columns shrink by breaking lines between words. If the words of all columns do not fit beside
//! each other, the columns are spread over several tables with the same first columns. If that does
//! not fit either, each row becomes a list.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, TableStyle, Width};
use std::fmt;
use std::io::IsTerminal;
use unicode_width::UnicodeWidthStr;

/// Columns of an output that is no terminal, without `COLUMNS`.
const WIDTH: usize = 80;
/// Least number of columns; a narrower terminal is treated as this wide.
const WIDTH_MIN: usize = 24;
/// Spaces between two columns.
const GAP: usize = 2;
/// A longer word, such as a path, may be broken.
const WORD_MAX: usize = 32;
/// Stands for a space at which no line may break. The table crate breaks lines at plain spaces
/// only.
const GLUE: &str = "\u{a0}";

/// Columns of stdout: the terminal's, or those of `COLUMNS`, or 80.
pub fn width() -> usize {
    let stdout = std::io::stdout();
    let terminal = || rustix::termios::tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col));
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    let columns = if stdout.is_terminal() { terminal().filter(|columns| *columns > 0) } else { None };
    columns.or_else(variable).unwrap_or(WIDTH).max(WIDTH_MIN)
}

/// Rows under a header.
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Number of first columns that identify a row.
    keys: usize,
    /// Whether programs that read lines may read it.
    is_log: bool,
}

impl Table {
    /// No rows yet.
    pub fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(|&cell| cell.to_owned()).collect(), rows: Vec::new(), keys: 1, is_log: false }
    }

    /// The first `keys` columns identify a row.
    #[must_use]
    pub const fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// Rows keep to one line, however long, if stdout is no terminal: `grep` must find whole rows.
    #[must_use]
    pub const fn log(mut self) -> Self {
        self.is_log = true;
        self
    }

    /// Adds a row of as many cells as the header has.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.header.len(), "a row has a cell in each column: {cells:?}");
        self.rows.push(cells);
    }

    /// The table in lines of at most `width` columns.
    pub fn fit(&self, width: usize) -> String {
        let column = |at: usize| {
            let cells: Vec<&str> = self.rows.iter().map(|row| row[at].as_str()).collect();
            Column::of(&self.header[at], &cells)
        };
        let columns: Vec<Column> = (0..self.header.len()).map(column).collect();
        let widths = |shown: &[usize]| arrange(&shown.iter().map(|at| &columns[*at]).collect::<Vec<_>>(), width);
        let mut shown: Vec<usize> = Vec::new();
        let mut parts = Vec::new();
        for at in 0..columns.len() {
            shown.push(at);
            if widths(&shown).is_none() {
                shown.pop();
                parts.push(std::mem::replace(&mut shown, (0..self.keys).chain([at]).collect()));
            }
        }
        parts.push(shown);
        let part = |shown: &Vec<usize>| Some(self.part(shown, &columns, &widths(shown)?));
        // A part with only key columns has no content.
        let parts: Option<Vec<String>> = match parts.iter().all(|shown| shown.len() > self.keys) || parts.len() == 1 {
            true => parts.iter().map(part).collect(),
            false => None,
        };
        parts.map_or_else(|| self.as_lists(width), |parts| parts.join("\n\n"))
    }

    /// The table of these columns only.
    fn part(&self, shown: &[usize], columns: &[Column], widths: &[usize]) -> String {
        let mut table = comfy_table::Table::new();
        // Rows of many lines need a separator.
        let is_tall = shown.iter().zip(widths).any(|(at, width)| columns[*at].lines(*width) > 2);
        let style = TableStyle::new().header_separator(LineStyle::none().fill('─'));
        table.load_style(if is_tall { style.row_separator(LineStyle::none().fill(' ')) } else { style });
        table.set_header(shown.iter().map(|at| &self.header[*at]));
        table.add_rows(self.rows.iter().map(|row| shown.iter().map(|at| glued(&row[*at])).collect::<Vec<_>>()));
        for (place, _) in shown.iter().enumerate().filter(|(_, at)| columns[**at].is_numeric) {
            table.column_mut(place).expect("it has a header").set_cell_alignment(CellAlignment::Right);
        }
        laid_out(table, widths)
    }

    /// Each row as names and values.
    fn as_lists(&self, width: usize) -> String {
        let list = |row: &Vec<String>| {
            let pairs = self.header.iter().map(String::as_str).zip(row.iter().cloned());
            facts(&pairs.filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>(), width)
        };
        self.rows.iter().map(list).collect::<Vec<_>>().join("\n\n")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_free = self.is_log && !std::io::stdout().is_terminal();
        f.write_str(&self.fit(if is_free { usize::from(u16::MAX) } else { width() }))
    }
}

/// Names and values in lines of at most `width` columns.
pub fn facts(rows: &[(&str, String)], width: usize) -> String {
    let names = rows.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
    let values = rows.iter().map(|(_, value)| value.width()).max().unwrap_or(0);
    // Names keep to one line unless they take more than half the width.
    let names = names.min(width / 2).max(1);
    let values = values.min(width - names - GAP).max(1);
    let mut table = comfy_table::Table::new();
    table.load_style(TableStyle::new());
    table.add_rows(rows.iter().map(|(name, value)| [(*name).to_owned(), glued(value)]));
    if rows.is_empty() { String::new() } else { laid_out(table, &[names, values]) }
}

/// Prose in lines of at most `width` columns, each after `indent`. A longer word stays whole, so
/// that it can be copied, and so do words with a no-break space between them.
pub fn wrapped(text: &str, indent: &str, width: usize) -> String {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split(' ').filter(|word| !word.is_empty()) {
            if !line.is_empty() && indent.width() + line.width() + 1 + word.width() > width {
                lines.push(format!("{indent}{line}"));
                line.clear();
            }
            line += if line.is_empty() { "" } else { " " };
            line += word;
        }
        lines.push(format!("{indent}{line}").trim_end().to_owned());
    }
    lines.join("\n").replace(GLUE, " ")
}

/// A column and its useful widths.
struct Column {
    /// Its header and cells.
    texts: Vec<String>,
    /// The longest word: a narrower column breaks words.
    least: usize,
    /// The longest line: a wider column gains nothing.
    most: usize,
    is_numeric: bool,
}

impl Column {
    fn of(header: &str, cells: &[&str]) -> Self {
        let texts: Vec<String> =
            std::iter::once(header.to_owned()).chain(cells.iter().map(|cell| glued(cell))).collect();
        let longest = |ends: &[char]| {
            texts.iter().flat_map(|text| text.split(ends)).map(UnicodeWidthStr::width).max().unwrap_or(0).max(1)
        };
        let (least, most) = (longest(&[' ', '\n']).min(WORD_MAX), longest(&['\n']));
        let is_neutral = |cell: &str| matches!(cell, "" | "-" | "none" | "infinite" | "not known");
        let mut is_numeric = cells.iter().any(|cell| is_quantity(cell));
        is_numeric &= cells.iter().all(|cell| is_quantity(cell) || is_neutral(cell));
        Self { texts, least, most, is_numeric }
    }

    /// Lines of its tallest cell at this width.
    fn lines(&self, width: usize) -> usize {
        self.texts.iter().map(|text| text.lines().map(|line| lines_of(line, width)).sum()).max().unwrap_or(1)
    }
}

/// Lines that a line's words need.
fn lines_of(line: &str, width: usize) -> usize {
    let (mut lines, mut at) = (1, 0);
    for word in line.split(' ').map(UnicodeWidthStr::width) {
        if at > 0 && at + 1 + word > width {
            (lines, at) = (lines + 1, 0);
        }
        at += if at > 0 { 1 + word } else { word };
        lines += at.saturating_sub(1) / width;
        at -= at.saturating_sub(1) / width * width;
    }
    lines
}

/// A number, perhaps with a bound before it, and an error or a unit after it.
fn is_quantity(cell: &str) -> bool {
    let is_number = |word: &str| {
        let digits = word.trim_start_matches(['+', '-']).trim_end_matches(['%', '×']).replace(',', "");
        digits.starts_with(|first: char| first.is_ascii_digit()) && digits.parse::<f64>().is_ok()
    };
    let words: Vec<&str> = cell.split(' ').collect();
    match words.strip_prefix(&["<="]).or_else(|| words.strip_prefix(&[">="])).unwrap_or(&words) {
        [number] | [number, _] => is_number(number),
        [number, "±", error] => is_number(number) && is_number(error),
        _ => false,
    }
}

/// The cell, so that no line breaks between a number and its unit.
fn glued(cell: &str) -> String {
    if is_quantity(cell) { cell.replace(' ', GLUE) } else { cell.to_owned() }
}

/// The width of each column without gaps; none if the words do not fit.
fn arrange(columns: &[&Column], width: usize) -> Option<Vec<usize>> {
    let room = width.checked_sub(GAP * columns.len().saturating_sub(1))?;
    let mut widths: Vec<usize> = columns.iter().map(|column| column.least).collect();
    let mut spare = room.checked_sub(widths.iter().sum())?;
    // The tallest column gets as much spare width as saves it a line.
    loop {
        let mut tall: Vec<(usize, usize)> =
            (0..columns.len()).map(|at| (at, columns[at].lines(widths[at]))).filter(|(_, lines)| *lines > 1).collect();
        tall.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
        let wider = tall.into_iter().find_map(|(at, lines)| {
            let most = columns[at].most.min(widths[at] + spare);
            (widths[at] + 1..=most).find(|width| columns[at].lines(*width) < lines).map(|width| (at, width))
        });
        let Some((at, width)) = wider else { break };
        spare -= width - widths[at];
        widths[at] = width;
    }
    Some(widths)
}

/// The table's text with columns of these widths.
fn laid_out(mut table: comfy_table::Table, widths: &[usize]) -> String {
    // The crate lays out only tables with a width; the columns' own decide.
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(u16::MAX);
    for (at, column) in table.column_iter_mut().enumerate() {
        let gap = if at + 1 < widths.len() { GAP } else { 0 };
        let whole = u16::try_from(widths[at] + gap).unwrap_or(u16::MAX);
        column.set_padding((0, gap as u16));
        column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(whole)));
    }
    table.trim_fmt().replace(GLUE, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> Table {
        let mut table = Table::new(&["pool", "eviction", "time to first token", "bytes"]);
        table.add_row(["256 GiB", "s3-fifo", "12.5 ms", "1,024"].map(str::to_owned));
        table.add_row(["infinite", "least recently used", "7 ms", "none"].map(str::to_owned));
        table
    }

    #[test]
    fn a_table_has_one_rule_and_numbers_to_the_right() {
        assert_eq!(
            runs().fit(80),
            "    pool  eviction             time to first token  bytes\n\
             ─────────────────────────────────────────────────────────\n \
              256 GiB  s3-fifo                          12.5 ms  1,024\n\
             infinite  least recently used                 7 ms   none"
        );
    }

    #[test]
    fn columns_give_way_between_words_only() {
        for width in 36..60 {
            let text = runs().fit(width);
            assert!(text.lines().all(|line| line.width() <= width && line == line.trim_end()), "{width}:\n{text}");
            for whole in ["256 GiB", "12.5 ms", "infinite", "eviction", "s3-fifo", "recently"] {
                assert!(text.contains(whole), "{width}: `{whole}` is broken:\n{text}");
            }
        }
    }

    #[test]
    fn rows_of_many_lines_stand_apart() {
        let mut table = Table::new(&["codec", "why they differ"]);
        for codec in ["int8", "oaken"] {
            table.add_row([codec.to_owned(), "scales count here: four bytes a token and group".to_owned()]);
        }
        assert!(table.fit(24).contains("\n\noaken"), "{}", table.fit(24));
        assert!(!table.fit(80).contains("\n\n"), "{}", table.fit(80));
    }

    #[test]
    fn columns_take_no_more_than_spares_them_a_line() {
        assert_eq!((lines_of("", 5), lines_of("a bb ccc", 4), lines_of("a bb ccc", 8)), (1, 2, 1));
        assert_eq!((lines_of("abcdefgh", 4), lines_of("a abcdefghi", 4)), (2, 4));
        let mut table = Table::new(&["watermark", "blocks swapped × fixed", "mean of loads"]);
        table.add_row(["opt:2", "1.1", "2.2"].map(str::to_owned));
        let text = table.fit(34);
        assert!(text.lines().count() == 4, "{text}");
        assert!(text.starts_with("watermark  blocks swapped  mean of\n"), "{text}");
    }

    #[test]
    fn columns_that_do_not_fit_move_to_tables_below() {
        let text = runs().keys(2).fit(32);
        assert!(text.lines().all(|line| line.width() <= 32 && line == line.trim_end()), "{text}");
        assert_eq!(text.matches("s3-fifo").count(), 2, "each table names its rows:\n{text}");
        assert_eq!((text.matches("12.5 ms").count(), text.matches("1,024").count()), (1, 1), "{text}");
    }

    #[test]
    fn rows_that_do_not_fit_become_lists() {
        let text = runs().keys(2).fit(24);
        assert!(text.lines().all(|line| line.width() <= 24 && line == line.trim_end()), "{text}");
        assert!(!text.contains('─') && text.contains("\n\n") && text.contains("256 GiB"), "{text}");
        assert_eq!(text.matches("eviction").count(), 2, "each list names its values:\n{text}");
    }

    #[test]
    fn values_wrap_beside_their_names() {
        let rows =
            [("size", "4 GiB".to_owned()), ("hosts", "up to 16, flushed with clwb, locks of kind bakery".into())];
        assert_eq!(
            facts(&rows, 32),
            "size   4 GiB\nhosts  up to 16, flushed with\n       clwb, locks of kind\n       bakery"
        );
        assert_eq!(facts(&[], 80), "");
    }

    #[test]
    fn prose_wraps_and_keeps_long_words() {
        assert_eq!(wrapped("a bb ccc /a/long/path d", "  ", 8), "  a bb\n  ccc\n  /a/long/path\n  d");
        assert_eq!(wrapped("one\n\ntwo", "", 80), "one\n\ntwo");
        assert_eq!(wrapped("5\u{a0}puts, 16\u{a0}gets", "", 10), "5 puts,\n16 gets", "a glued pair stays together");
    }

    #[test]
    fn only_quantities_are_numbers() {
        for quantity in ["1", "-2.5", "+12 %", "1,024", "12.5 ms", "4.2×", "85.1%", "1e-3", ">= 0.9 x", "1.2 ± 0.3"] {
            assert!(is_quantity(quantity), "{quantity}");
        }
        for text in ["", "none", "0-1=int8", "5 to 7: factor a", "2026-01-31 23:59:59", "-", "s3"] {
            assert!(!is_quantity(text), "{text}");
        }
    }
}
