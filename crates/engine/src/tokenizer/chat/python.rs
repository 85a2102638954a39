//! What templates get from Python: `json.dumps`, the `%` operator of texts, and `strftime`.

use super::bounds::{WIDTH_MAX, take};
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;
use std::time::Duration;

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

// --- Values -----------------------------------------------------------------------------------------

/// A text that takes from the budget of the render as it grows.
#[derive(Default)]
struct Bounded(String);

impl Bounded {
    fn push(&mut self, text: &str) -> Result<(), Error> {
        take(text.len() + 1)?;
        self.0.push_str(text);
        Ok(())
    }

    fn fill(&mut self, with: &str, times: usize) -> Result<(), Error> {
        take(with.len().saturating_mul(times))?;
        (0..times).for_each(|_| self.0.push_str(with));
        Ok(())
    }
}

/// `repr` of a float: the shortest digits, with an exponent from 1e16 on and below 1e-4.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// `str` of a value, or its `repr`.
fn write_value(out: &mut Bounded, value: &Value, is_repr: bool) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String if is_repr => out.push(&text_repr(value.as_str().unwrap_or_default())),
        ValueKind::String => out.push(value.as_str().unwrap_or_default()),
        ValueKind::Undefined => Ok(()),
        ValueKind::None => out.push("None"),
        ValueKind::Bool => out.push(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push(&number_repr(value)),
        ValueKind::Seq | ValueKind::Iterable => {
            let is_tuple = value.is_tuple();
            out.push(if is_tuple { "(" } else { "[" })?;
            let mut items = 0;
            for item in value.try_iter()?.checked() {
                if items > 0 {
                    out.push(", ")?;
                }
                write_value(out, &item?, true)?;
                items += 1;
            }
            out.push(match (is_tuple, items) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            })
        }
        ValueKind::Map => {
            out.push("{")?;
            for (at, (key, item)) in pairs(value).into_iter().enumerate() {
                out.push(if at > 0 { ", " } else { "" })?;
                write_value(out, &key, true)?;
                out.push(": ")?;
                write_value(out, &item, true)?;
            }
            out.push("}")
        }
        _ => out.push(&value.to_string()),
    }
}

fn number_repr(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => float_repr(float),
        _ => value.to_string(),
    }
}

/// `repr` of a text.
fn text_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            c if c == quote => out.extend(['\\', c]),
            c if (c as u32) < 0x20 || (0x7f..0xa0).contains(&(c as u32)) || c == '\u{ad}' => {
                out += &format!("\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

fn pairs(map: &Value) -> Vec<(Value, Value)> {
    map.as_object().and_then(|map| map.try_iter_pairs()).into_iter().flatten().collect()
}

// --- tojson -----------------------------------------------------------------------------------------

/// The layout of a JSON text.
struct Layout {
    ensure_ascii: bool,
    /// What one level is indented by; `None` writes one line.
    indent: Option<String>,
    between_items: String,
    after_key: String,
    sort_keys: bool,
}

/// `tojson` as in transformers: `json.dumps(value, ensure_ascii=False, indent, separators, sort_keys)`.
/// Jinja's own would escape `<`, `>`, `&` and `'` for HTML.
pub(super) fn tojson(value: &Value, options: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let options = options.into_values();
    let (positional, kwargs) = from_args::<(&[Value], Kwargs)>(&options)?;
    if positional.len() > 4 {
        return Err(invalid("tojson: more than four options"));
    }
    let named = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = match positional.get(at) {
            Some(value) => Some(value.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let indent = named(1, "indent")?.map(|indent| indentation(&indent)).transpose()?;
    let (between_items, after_key) = match named(2, "separators")? {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => {
            let pair = pair.try_iter()?.map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
            let Some([between_items, after_key]) = pair.and_then(|pair| <[String; 2]>::try_from(pair).ok()) else {
                return Err(invalid("tojson: separators are two texts"));
            };
            (between_items, after_key)
        }
    };
    let layout = Layout {
        ensure_ascii: named(0, "ensure_ascii")?.is_some_and(|yes| yes.is_true()),
        indent,
        between_items,
        after_key,
        sort_keys: named(3, "sort_keys")?.is_some_and(|yes| yes.is_true()),
    };
    kwargs.assert_all_used()?;
    let mut out = Bounded::default();
    layout.write(&mut out, value, 0)?;
    Ok(Value::from(out.0))
}

/// Python takes a text, or a number of spaces; a negative number is 0, and true is 1.
fn indentation(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    let spaces = match indent.kind() {
        ValueKind::Bool => i64::from(indent.is_true()),
        _ => indent.as_i64().ok_or_else(|| invalid("tojson: indent is a number of spaces or a text"))?,
    };
    let spaces = usize::try_from(spaces.max(0)).unwrap_or(usize::MAX);
    take(spaces)?;
    Ok(" ".repeat(spaces))
}

impl Layout {
    /// `depth` is bounded: values of any depth cannot be made (see `bounds`).
    fn write(&self, out: &mut Bounded, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > 200 {
            return Err(invalid("tojson: too many lists and maps in each other"));
        }
        match value.kind() {
            ValueKind::String => self.text(out, value.as_str().unwrap_or_default()),
            ValueKind::None => out.push("null"),
            ValueKind::Bool => out.push(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push(&json_number(value)),
            ValueKind::Seq | ValueKind::Iterable => {
                out.push("[")?;
                let mut items = 0;
                for item in value.try_iter()?.checked() {
                    self.begin(out, items, depth + 1)?;
                    self.write(out, &item?, depth + 1)?;
                    items += 1;
                }
                self.end(out, items, depth, "]")
            }
            ValueKind::Map => {
                out.push("{")?;
                let mut all = pairs(value);
                if self.sort_keys {
                    all.sort_by(|one, other| one.0.cmp(&other.0));
                }
                let items = all.len();
                for (at, (key, item)) in all.into_iter().enumerate() {
                    self.begin(out, at, depth + 1)?;
                    match key.kind() {
                        ValueKind::String => self.text(out, key.as_str().unwrap_or_default())?,
                        ValueKind::None => out.push("\"null\"")?,
                        ValueKind::Bool => out.push(if key.is_true() { "\"true\"" } else { "\"false\"" })?,
                        ValueKind::Number => out.push(&format!("\"{}\"", json_number(&key)))?,
                        kind => return Err(invalid(format!("tojson: a key of kind {kind}"))),
                    }
                    out.push(&self.after_key)?;
                    self.write(out, &item, depth + 1)?;
                }
                self.end(out, items, depth, "}")
            }
            kind => Err(invalid(format!("tojson: a value of kind {kind} has no JSON"))),
        }
    }

    fn begin(&self, out: &mut Bounded, items: usize, depth: usize) -> Result<(), Error> {
        if items > 0 {
            out.push(&self.between_items)?;
        }
        self.line(out, depth)
    }

    fn end(&self, out: &mut Bounded, items: usize, depth: usize, close: &str) -> Result<(), Error> {
        if items > 0 {
            self.line(out, depth)?;
        }
        out.push(close)
    }

    fn line(&self, out: &mut Bounded, depth: usize) -> Result<(), Error> {
        let Some(indent) = &self.indent else { return Ok(()) };
        out.push("\n")?;
        out.fill(indent, depth)
    }

    fn text(&self, out: &mut Bounded, text: &str) -> Result<(), Error> {
        let mut json = String::with_capacity(text.len() + 2);
        take(text.len())?;
        json.push('"');
        for c in text.chars() {
            match c {
                '"' => json += "\\\"",
                '\\' => json += "\\\\",
                '\n' => json += "\\n",
                '\r' => json += "\\r",
                '\t' => json += "\\t",
                '\u{8}' => json += "\\b",
                '\u{c}' => json += "\\f",
                c if (c as u32) < 0x20 || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(json, "\\u{unit:04x}").map_err(Error::from)?;
                    }
                }
                c => json.push(c),
            }
        }
        json.push('"');
        out.push(&json)
    }
}

/// Python writes infinity and NaN as JavaScript does.
fn json_number(value: &Value) -> String {
    match number_repr(value).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        other => other.to_owned(),
    }
}

// --- Text % values ----------------------------------------------------------------------------------

/// Flags, width and precision of one `%` conversion.
#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    zero: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
}

/// Python's `format % values`.
pub(super) fn percent(format: &str, values: &Value) -> Result<Value, Error> {
    let mut out = Bounded::default();
    let mut given = if values.is_tuple() { values.try_iter()?.collect::<Vec<_>>() } else { vec![values.clone()] };
    given.reverse();
    let (mut is_named, mut chars) = (false, format.chars().peekable());
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c.encode_utf8(&mut [0; 4]))?;
            continue;
        }
        let mut named = None;
        if chars.next_if_eq(&'(').is_some() {
            is_named = true;
            let key: String = chars.by_ref().take_while(|c| *c != ')').collect();
            let value = values.get_item(&Value::from(key.as_str())).ok().filter(|value| !value.is_undefined());
            named = Some(value.ok_or_else(|| invalid(format!("format: no value for `{key}`")))?);
        }
        let mut next = || given.pop().ok_or_else(|| invalid("not enough arguments for format string"));
        let mut spec = Spec::default();
        while let Some(flag) = chars.next_if(|c| "-+ 0#".contains(*c)) {
            match flag {
                '-' => spec.left = true,
                '+' => spec.plus = true,
                ' ' => spec.space = true,
                '0' => spec.zero = true,
                _ => spec.alternate = true,
            }
        }
        let mut size = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| -> Result<(usize, bool), Error> {
            let (size, is_left) = if chars.next_if_eq(&'*').is_some() {
                let size = next()?.as_i64().ok_or_else(|| invalid("* wants int"))?;
                (usize::try_from(size.unsigned_abs()).unwrap_or(usize::MAX), size < 0)
            } else {
                let mut size = 0_usize;
                while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                    size = size.saturating_mul(10).saturating_add(digit as usize - '0' as usize);
                }
                (size, false)
            };
            if size > WIDTH_MAX {
                return Err(invalid(format!("format: a width of {size}; at most {WIDTH_MAX}")));
            }
            Ok((size, is_left))
        };
        let (width, is_left) = size(&mut chars)?;
        spec.width = width;
        spec.left |= is_left;
        if chars.next_if_eq(&'.').is_some() {
            let (precision, is_negative) = size(&mut chars)?;
            spec.precision = Some(if is_negative { 0 } else { precision });
        }
        while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
        let Some(kind) = chars.next() else { return Err(invalid("incomplete format")) };
        if kind == '%' {
            out.push("%")?;
            continue;
        }
        let value = match named {
            Some(value) => value,
            None => next()?,
        };
        convert(&mut out, &spec, kind, &value)?;
    }
    // Python allows values that are left over only in a map.
    if !given.is_empty() && !is_named && values.kind() != ValueKind::Map {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    Ok(Value::from(out.0))
}

fn convert(out: &mut Bounded, spec: &Spec, kind: char, value: &Value) -> Result<(), Error> {
    let float =
        || f64::try_from(value.clone()).map_err(|_| invalid(format!("%{kind} format: a real number is required")));
    let integer = || -> Result<i128, Error> {
        match i128::try_from(value.clone()) {
            Ok(integer) => Ok(integer),
            Err(_) if value.kind() == ValueKind::Number && "diu".contains(kind) => Ok(float()?.trunc() as i128),
            Err(_) => {
                Err(invalid(format!("%{kind} format: an integer is required, not a value of kind {}", value.kind())))
            }
        }
    };
    match kind {
        's' | 'r' | 'a' => {
            let mut text = Bounded::default();
            write_value(&mut text, value, kind != 's')?;
            let mut text = text.0;
            if kind == 'a' {
                text = escaped(&text);
            }
            if let Some((at, _)) = spec.precision.and_then(|most| text.char_indices().nth(most)) {
                text.truncate(at);
            }
            pad(out, spec, "", &text, false)
        }
        'c' => match value.as_str() {
            Some(text) if text.chars().count() == 1 => pad(out, spec, "", text, false),
            Some(_) => Err(invalid("%c requires int or char")),
            None => {
                let c = u32::try_from(integer()?).ok().and_then(char::from_u32);
                let c = c.ok_or_else(|| invalid("%c arg not in range(0x110000)"))?;
                pad(out, spec, "", c.encode_utf8(&mut [0; 4]), false)
            }
        },
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let number = integer()?;
            let magnitude = number.unsigned_abs();
            let (prefix, mut digits) = match kind {
                'x' => ("0x", format!("{magnitude:x}")),
                'X' => ("0X", format!("{magnitude:X}")),
                'o' => ("0o", format!("{magnitude:o}")),
                _ => ("", magnitude.to_string()),
            };
            if let Some(most) = spec.precision {
                digits = "0".repeat(most.saturating_sub(digits.len())) + &digits;
            }
            let prefix = if spec.alternate { prefix } else { "" };
            pad(out, spec, &format!("{}{prefix}", spec.sign(number < 0)), &digits, true)
        }
        'f' | 'F' | 'e' | 'E' | 'g' | 'G' => {
            let number = float()?;
            let text = spec.float(number.abs(), kind);
            let text = if kind.is_ascii_uppercase() { text.to_uppercase() } else { text };
            pad(out, spec, spec.sign(number.is_sign_negative() && !number.is_nan()), &text, number.is_finite())
        }
        other => Err(invalid(format!("unsupported format character '{other}'"))),
    }
}

impl Spec {
    const fn sign(&self, is_negative: bool) -> &'static str {
        match (is_negative, self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        }
    }

    fn float(&self, number: f64, kind: char) -> String {
        if !number.is_finite() {
            return if number.is_nan() { "nan" } else { "inf" }.to_owned();
        }
        let precision = self.precision.unwrap_or(6);
        let exponential = |precision: usize| {
            let text = format!("{number:.precision$e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let exponent: i32 = exponent.parse().unwrap_or(0);
            (digits.to_owned(), exponent)
        };
        let written = |digits: &str, exponent: i32| {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        };
        match kind.to_ascii_lowercase() {
            'f' => {
                let point = if precision == 0 && self.alternate { "." } else { "" };
                format!("{number:.precision$}{point}")
            }
            'e' => {
                let (digits, exponent) = exponential(precision);
                let point = if precision == 0 && self.alternate { "." } else { "" };
                written(&(digits + point), exponent)
            }
            _ => {
                let precision = precision.max(1);
                let (digits, exponent) = exponential(precision - 1);
                let trimmed = |text: String| match (self.alternate, text.contains('.')) {
                    (false, true) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                    (true, false) => text + ".",
                    _ => text,
                };
                match usize::try_from(exponent) {
                    Ok(above) if above < precision => trimmed(format!("{number:.*}", precision - 1 - above)),
                    Err(_) if exponent >= -4 => {
                        trimmed(format!("{number:.*}", precision - 1 + exponent.unsigned_abs() as usize))
                    }
                    _ => written(&trimmed(digits), exponent),
                }
            }
        }
    }
}

/// Writes a converted value at its width. Zeros come between the sign and the digits.
fn pad(out: &mut Bounded, spec: &Spec, sign: &str, text: &str, is_number: bool) -> Result<(), Error> {
    let fill = spec.width.saturating_sub(sign.chars().count() + text.chars().count());
    let zeros = is_number && spec.zero && !spec.left;
    if !spec.left && !zeros {
        out.fill(" ", fill)?;
    }
    out.push(sign)?;
    if zeros {
        out.fill("0", fill)?;
    }
    out.push(text)?;
    if spec.left {
        out.fill(" ", fill)?;
    }
    Ok(())
}

/// As `ascii` writes characters beyond ASCII.
fn escaped(text: &str) -> String {
    let one = |c: char| match c as u32 {
        0..0x80 => c.to_string(),
        code @ 0x80..0x100 => format!("\\x{code:02x}"),
        code @ 0x100..0x1_0000 => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    };
    text.chars().map(one).collect()
}

// --- strftime ---------------------------------------------------------------------------------------

/// A date and time of day in UTC.
struct Moment {
    year: u64,
    /// From 1.
    month: u64,
    /// From 1.
    day: u64,
    /// From 0.
    day_of_year: u64,
    /// From Sunday, 0.
    weekday: u64,
    hour: u64,
    minute: u64,
    second: u64,
    micros: u32,
    since_1970: u64,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl Moment {
    fn at(since_1970: Duration) -> Self {
        let seconds = since_1970.as_secs();
        let days = seconds / 86_400;
        // Days since 1 March of year 0, then eras of 400 years
        // (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * from_march + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let day_of_year = if month <= 2 { from_march - 306 } else { from_march + 59 + u64::from(is_leap) };
        Self {
            year,
            month,
            day: from_march - (153 * month_from_march + 2) / 5 + 1,
            day_of_year,
            weekday: (days + 4) % 7,
            hour: seconds / 3600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            micros: since_1970.subsec_micros(),
            since_1970: seconds,
        }
    }

    /// Monday is 1, Sunday 7.
    const fn iso_weekday(&self) -> u64 {
        if self.weekday == 0 { 7 } else { self.weekday }
    }

    /// Year and week by ISO 8601: week 1 has the year's first Thursday.
    fn iso_week(&self) -> (u64, u64) {
        let days_of = |year: u64| {
            let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
            365 + u64::from(is_leap)
        };
        // The day of year of this week's Thursday, from 0; it may lie in a neighbouring year.
        let thursday = (self.day_of_year + 4).checked_sub(self.iso_weekday());
        match thursday {
            None => (self.year - 1, (self.day_of_year + 4 + days_of(self.year - 1) - self.iso_weekday()) / 7 + 1),
            Some(day) if day >= days_of(self.year) => (self.year + 1, 1),
            Some(day) => (self.year, day / 7 + 1),
        }
    }
}

/// Formats a time since 1970 in UTC as Python's `datetime.strftime` does on Linux, in the C locale, with its
/// flags (`%-d`). Unknown directives stay unchanged.
pub(super) fn strftime(format: &str, since_1970: Duration) -> Result<String, Error> {
    let mut out = Bounded::default();
    write_time(&mut out, format, &Moment::at(since_1970))?;
    Ok(out.0)
}

fn write_time(out: &mut Bounded, format: &str, at: &Moment) -> Result<(), Error> {
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c.encode_utf8(&mut [0; 4]))?;
            continue;
        }
        let (mut written, mut flag) = (String::from('%'), None);
        let directive = loop {
            match chars.next() {
                Some(c @ ('-' | '_' | '0' | '^' | '#')) => {
                    written.push(c);
                    flag = Some(c);
                }
                other => break other,
            }
        };
        written.extend(directive);
        match directive.and_then(|directive| field(directive, at)) {
            Some(Field::Number(value, width, fill)) => {
                let digits = value.to_string();
                let fill = match flag {
                    Some('-') => "",
                    Some('_') => " ",
                    Some('0') => "0",
                    _ => fill,
                };
                out.fill(fill, if fill.is_empty() { 0 } else { usize::from(width).saturating_sub(digits.len()) })?;
                out.push(&digits)?;
            }
            Some(Field::Text(text)) => match (flag, directive) {
                // glibc swaps the case of these with `#`.
                (Some('#'), Some('p' | 'Z')) => out.push(&text.to_lowercase())?,
                (Some('^' | '#'), _) => out.push(&text.to_uppercase())?,
                _ => out.push(text)?,
            },
            Some(Field::Format(format)) => {
                let mut inner = Bounded::default();
                write_time(&mut inner, format, at)?;
                out.push(&if flag == Some('^') { inner.0.to_uppercase() } else { inner.0 })?;
            }
            None => out.push(&written)?,
        }
    }
    Ok(())
}

/// What a directive stands for.
enum Field {
    /// A number, its width, and what fills it.
    Number(u64, u8, &'static str),
    Text(&'static str),
    /// Other directives.
    Format(&'static str),
}

fn field(directive: char, at: &Moment) -> Option<Field> {
    use Field::{Format, Number, Text};
    let hour_of_12 = if at.hour.is_multiple_of(12) { 12 } else { at.hour % 12 };
    Some(match directive {
        'Y' => Number(at.year, 1, "0"),
        'C' => Number(at.year / 100, 2, "0"),
        'y' => Number(at.year % 100, 2, "0"),
        'm' => Number(at.month, 2, "0"),
        'd' => Number(at.day, 2, "0"),
        'e' => Number(at.day, 2, " "),
        'j' => Number(at.day_of_year + 1, 3, "0"),
        'H' => Number(at.hour, 2, "0"),
        'I' => Number(hour_of_12, 2, "0"),
        'k' => Number(at.hour, 2, " "),
        'l' => Number(hour_of_12, 2, " "),
        'M' => Number(at.minute, 2, "0"),
        'S' => Number(at.second, 2, "0"),
        'f' => Number(u64::from(at.micros), 6, "0"),
        's' => Number(at.since_1970, 1, "0"),
        'u' => Number(at.iso_weekday(), 1, "0"),
        'w' => Number(at.weekday, 1, "0"),
        'U' => Number((at.day_of_year + 7 - at.weekday) / 7, 2, "0"),
        'W' => Number((at.day_of_year + 8 - at.iso_weekday()) / 7, 2, "0"),
        'V' => Number(at.iso_week().1, 2, "0"),
        'G' => Number(at.iso_week().0, 1, "0"),
        'g' => Number(at.iso_week().0 % 100, 2, "0"),
        'b' | 'h' => Text(&MONTHS[at.month as usize - 1][..3]),
        'B' => Text(MONTHS[at.month as usize - 1]),
        'a' => Text(&DAYS[at.weekday as usize][..3]),
        'A' => Text(DAYS[at.weekday as usize]),
        'p' => Text(if at.hour < 12 { "AM" } else { "PM" }),
        'P' => Text(if at.hour < 12 { "am" } else { "pm" }),
        // A `datetime` without a zone prints none.
        'z' | 'Z' => Text(""),
        'n' => Text("\n"),
        't' => Text("\t"),
        '%' => Text("%"),
        'c' => Format("%a %b %e %H:%M:%S %Y"),
        'x' | 'D' => Format("%m/%d/%y"),
        'X' | 'T' => Format("%H:%M:%S"),
        'F' => Format("%Y-%m-%d"),
        'R' => Format("%H:%M"),
        'r' => Format("%I:%M:%S %p"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::chat::bounds::budgeted;

    fn at(seconds: u64, format: &str) -> String {
        budgeted(0, || strftime(format, Duration::from_secs(seconds)).expect("a date"))
    }

    /// Expected values are of CPython 3.11 on Linux, in the C locale.
    #[test]
    fn strftime_is_python_s() {
        let all = "%a %A %w %d %b %B %m %y %Y %H %I %p %M %S %f %j %U %W %G %u %V %C %D %e %F %g %h %k %l %P %r %R %s \
                   %T %x %X|%c|%z%Z%n%t%%";
        let leap = "Thu Thursday 4 29 Feb February 02 24 2024 13 01 PM 05 09 000000 060 08 09 2024 4 09 20 02/29/24 29 \
                    2024-02-29 24 Feb 13  1 pm 01:05:09 PM 13:05 1709211909 13:05:09 02/29/24 13:05:09|\
                    Thu Feb 29 13:05:09 2024|\n\t%";
        assert_eq!(at(1_709_211_909, all), leap);
        let zero = "Thu Thursday 4 01 Jan January 01 70 1970 00 12 AM 00 00 000000 001 00 00 1970 4 01 19 01/01/70  1 \
                    1970-01-01 70 Jan  0 12 am 12:00:00 AM 00:00 0 00:00:00 01/01/70 00:00:00|\
                    Thu Jan  1 00:00:00 1970|\n\t%";
        assert_eq!(at(0, all), zero);
        let flags = "%-d %-m %-j %_d %_j %0e %^a %^B %#p %#a %-I %^c";
        assert_eq!(at(0, flags), "1 1 1  1   1 01 THU JANUARY am THU 12 THU JAN  1 00:00:00 1970");
        // Weeks by ISO around the turn of years.
        for (seconds, week) in [
            (1_609_459_200, "2020-53-5"),
            (1_230_508_800, "2009-01-1"),
            (1_136_073_600, "2005-52-7"),
            (1_704_067_200, "2024-01-1"),
        ] {
            assert_eq!(at(seconds, "%G-%V-%u"), week);
        }
        assert_eq!(at(951_782_400, "%a, %d %b %y"), "Tue, 29 Feb 00");
        assert_eq!(at(1_767_225_599, "%Y-%m-%d 100%% %q %-q %"), "2025-12-31 100% %q %-q %");
    }
}
