//! Lines of a log that tell why a request's hit ended early: those of `cenote serve --log-misses`, as text or
//! JSON, and those of the setting `log_misses` of vLLM's connector, also inside of another log's lines.
//!
//! A log is input, and clients choose the ids of requests. A line counts only if all behind its message has
//! the form that the writers give it.

use cenote_base::BlockHash;
use cenote_store::{MISS_MESSAGE, MissReason};
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::io::{self, BufRead};

/// Longest line that is read. Prompts in logs are longer, and are left out.
const LINE_MAX: usize = 64 << 10;
/// Most lines of one request that are kept: the last ones.
const KEPT_MAX: usize = 16;

/// What a log says of one request.
#[derive(Debug, Default)]
pub struct Told {
    /// The request's misses with the numbers of their lines, the last [`KEPT_MAX`] in the order of the log.
    pub misses: VecDeque<(u64, Missed)>,
    /// All of its misses.
    pub count: u64,
    /// They have the id itself, not one that the engine derived from it.
    is_exact: bool,
    /// Other lines with its id.
    pub mentions: u64,
    /// The last line of a miss with its id that does not have its form, and what is wrong with it.
    pub unreadable: Option<(u64, String)>,
    /// Lines of misses of any request.
    pub of_any: u64,
    /// Lines that are longer than [`LINE_MAX`].
    pub too_long: u64,
    pub lines: u64,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The request's id, as the line has it: without control characters and with escapes.
    pub request: String,
    /// Full blocks of the prompt.
    pub blocks: u64,
    /// Of these: the first ones, which were found.
    pub found: u64,
    /// Of those found: the first ones, which the engine had itself.
    pub own: u64,
    /// Of those found: the last ones, which came from a slower tier or a peer.
    pub fetched: u64,
    /// Name of the block behind those found.
    pub hash: BlockHash,
    /// Row of its model in the region.
    pub model: u16,
    /// When the request asked, in seconds since 1970.
    pub at_s: u64,
    /// What the writer found out then.
    pub reason: MissReason,
    /// Seconds from the block's removal until the writer looked.
    pub ago_s: Option<u64>,
}

/// A request's id, in the forms in which logs have it.
struct Wanted<'a> {
    id: &'a str,
    /// As the writers of lines escape it: Rust's and JSON's way.
    escaped: [String; 2],
}

impl Wanted<'_> {
    fn is(&self, found: &str) -> bool {
        self.escaped.iter().any(|escaped| found == escaped)
    }

    /// vLLM puts the number of the choice and random digits behind the id that it answers with.
    fn is_part(&self, found: &str) -> bool {
        self.escaped
            .iter()
            .any(|escaped| found.strip_prefix(escaped.as_str()).is_some_and(|rest| rest.starts_with('-')))
    }

    fn is_in(&self, line: &str) -> bool {
        line.contains(self.id) || self.escaped.iter().any(|escaped| line.contains(escaped.as_str()))
    }
}

impl Told {
    /// Reads a log to its end. Keeps a bounded part of it, however long it is.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(log: &mut impl BufRead, id: &str) -> io::Result<Self> {
        let json = Value::from(id).to_string();
        let wanted = Wanted { id, escaped: [escaped(id), json[1..json.len() - 1].to_owned()] };
        let (mut told, mut line) = (Self::default(), Vec::new());
        while let Some(is_whole) = next_line(log, &mut line)? {
            told.lines += 1;
            if is_whole {
                told.take(&String::from_utf8_lossy(&line), &wanted);
            } else {
                told.too_long += 1;
            }
        }
        Ok(told)
    }

    fn take(&mut self, line: &str, wanted: &Wanted<'_>) {
        let is_of_it = wanted.is_in(line);
        if !line.contains(MISS_MESSAGE) {
            self.mentions += u64::from(is_of_it);
            return;
        }
        match missed(line) {
            Some(Ok(missed)) => {
                self.of_any += 1;
                let is_exact = wanted.is(&missed.request);
                if is_exact && !self.is_exact {
                    // Those that only begin alike are other requests.
                    *self = Self { is_exact, count: 0, misses: VecDeque::new(), ..std::mem::take(self) };
                }
                if is_exact || !self.is_exact && wanted.is_part(&missed.request) {
                    self.count += 1;
                    self.misses.push_back((self.lines, missed));
                    if self.misses.len() > KEPT_MAX {
                        self.misses.pop_front();
                    }
                }
            }
            Some(Err(fact)) if is_of_it => self.unreadable = Some((self.lines, fact)),
            Some(Err(_)) => {}
            None => self.mentions += u64::from(is_of_it),
        }
    }
}

/// A text as it is within the quotes of a text line.
fn escaped(text: &str) -> String {
    let quoted = format!("{text:?}");
    quoted[1..quoted.len() - 1].to_owned()
}

/// Reads the next line without its end. `Some(false)`: it is too long, and `line` has its begin. `None`: there
/// is none.
fn next_line(log: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    let mut is_whole = true;
    let mut is_any = false;
    loop {
        let part = match log.fill_buf() {
            Ok(part) => part,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if part.is_empty() {
            return Ok(is_any.then_some(is_whole));
        }
        is_any = true;
        let end = part.iter().position(|&byte| byte == b'\n');
        let bytes = &part[..end.unwrap_or(part.len())];
        if line.len() + bytes.len() > LINE_MAX {
            is_whole = false;
        } else if is_whole {
            line.extend_from_slice(bytes);
        }
        let used = end.map_or(part.len(), |end| end + 1);
        log.consume(used);
        if end.is_some() {
            return Ok(Some(is_whole));
        }
    }
}

/// The miss of a line; `None`: it is none. Or what is wrong with it.
fn missed(line: &str) -> Option<Result<Missed, String>> {
    if let Some(object) = line.find('{').and_then(|at| serde_json::from_str::<Map<String, Value>>(&line[at..]).ok()) {
        let message = ["message", "msg", "MESSAGE"].iter().find_map(|name| object.get(*name)?.as_str())?;
        return if message == MISS_MESSAGE { Some(of_object(&object)) } else { of_text(message) };
    }
    of_text(line)
}

/// A line of JSON: `cenote serve --log-format json`.
fn of_object(object: &Map<String, Value>) -> Result<Missed, String> {
    Fields(|name: &str| {
        Some(match object.get(name)? {
            // The text form has escapes.
            Value::String(text) if name == "request" => escaped(text),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    })
    .missed()
}

/// A line of text. Its message follows its place: the target of `cenote serve`, or what vLLM's logger and the
/// connector put before it. An id cannot forge that, because quotes within it are escaped.
fn of_text(line: &str) -> Option<Result<Missed, String>> {
    let line = without_colours(line);
    let begin = format!("{MISS_MESSAGE} request=\"");
    let (before, rest) = line.split_once(&begin)?;
    if !["misses: ", "Cenote: "].iter().any(|place| before.ends_with(place)) {
        return None;
    }
    Some(of_fields(rest))
}

/// The fields behind the message. `rest` begins within the quotes of the first.
fn of_fields(rest: &str) -> Result<Missed, String> {
    let (request, mut rest) = quoted(rest).ok_or("it ends within the request's id")?;
    let mut fields = vec![("request", request)];
    while !rest.trim().is_empty() {
        let (name, value) = rest.trim_start().split_once('=').ok_or("behind its last field is more")?;
        let (value, behind) = match value.strip_prefix('"') {
            Some(value) => quoted(value).ok_or("it ends within a text")?,
            None => value.split_at(value.find(' ').unwrap_or(value.len())),
        };
        if fields.iter().any(|(known, _)| *known == name) {
            return Err(format!("it has `{}` twice", name.escape_debug()));
        }
        fields.push((name, value));
        rest = behind;
    }
    Fields(|name: &str| fields.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())).missed()
}

/// The text up to the next quote that is not escaped, and what is behind it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '"' if !is_escaped => return Some((&text[..at], &text[at + 1..])),
            _ => is_escaped = letter == '\\' && !is_escaped,
        }
    }
    None
}

/// Values of a line by the names of their fields.
struct Fields<F>(F);

impl<F: Fn(&str) -> Option<String>> Fields<F> {
    fn missed(&self) -> Result<Missed, String> {
        let hash = self.text("hash")?;
        let reason = self.text("reason")?;
        let missed = Missed {
            request: self.text("request")?,
            blocks: self.number("blocks")?,
            found: self.number("found")?,
            own: self.count("own")?,
            fetched: self.count("fetched")?,
            hash: BlockHash::from_hex(&hash).ok_or_else(|| wrong("hash", &hash))?,
            model: u16::try_from(self.number("model")?).map_err(|_| "`model` is no row of a region".to_owned())?,
            at_s: self.number("at_s")?,
            reason: MissReason::from_name(&reason).ok_or_else(|| wrong("reason", &reason))?,
            ago_s: (self.0)("ago_s").map(|_| self.number("ago_s")).transpose()?,
        };
        if missed.found > missed.blocks || missed.own.saturating_add(missed.fetched) > missed.found {
            return Err("its numbers of blocks do not fit together".to_owned());
        }
        if missed.request.chars().any(char::is_control) {
            return Err("the request's id has control characters".to_owned());
        }
        Ok(missed)
    }

    fn text(&self, name: &str) -> Result<String, String> {
        (self.0)(name).ok_or_else(|| format!("`{name}` is missing"))
    }

    fn number(&self, name: &str) -> Result<u64, String> {
        let text = self.text(name)?;
        text.parse().map_err(|_| wrong(name, &text))
    }

    /// A number that is 0 if the line lacks it.
    fn count(&self, name: &str) -> Result<u64, String> {
        if (self.0)(name).is_some() { self.number(name) } else { Ok(0) }
    }
}

fn wrong(name: &str, value: &str) -> String {
    let short: String = value.chars().take(40).collect();
    format!("`{name}` is `{}`", short.escape_debug())
}

/// A line without the colours that loggers write to terminals, and containers' logs keep.
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, behind)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        let end = behind.find(|letter: char| !letter.is_ascii_digit() && letter != ';').unwrap_or(behind.len());
        rest = behind[end..].strip_prefix('m').unwrap_or(&behind[end..]);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_pool::Cause;

    const FIELDS: &str = "blocks=14 found=9 fetched=4 hash=000102030405060708090a0b0c0d0e0f model=3 at_s=1764200000 \
                          reason=\"evicted\" why=\"other blocks needed its space\" ago_s=12";

    fn told(log: &str, id: &str) -> Told {
        Told::read(&mut log.as_bytes(), id).expect("memory can be read")
    }

    fn of_serve(request: &str) -> String {
        format!("2026-11-27T04:46:33.123456Z  INFO misses: a hit ends early request={request:?} {FIELDS}\n")
    }

    fn expected(request: &str) -> Missed {
        Missed {
            request: request.to_owned(),
            blocks: 14,
            found: 9,
            own: 0,
            fetched: 4,
            hash: BlockHash::from_hex("000102030405060708090a0b0c0d0e0f").expect("32 digits"),
            model: 3,
            at_s: 1_764_200_000,
            reason: MissReason::Removed(Cause::Evicted),
            ago_s: Some(12),
        }
    }

    #[test]
    fn all_forms_of_a_line_say_the_same() {
        let json = "{\"timestamp\":\"2026-11-27T04:46:33Z\",\"level\":\"INFO\",\"message\":\"a hit ends early\",\
                    \"request\":\"req-1\",\"blocks\":14,\"found\":9,\"fetched\":4,\
                    \"hash\":\"000102030405060708090a0b0c0d0e0f\",\"model\":3,\"at_s\":1764200000,\
                    \"reason\":\"evicted\",\"why\":\"other blocks needed its space\",\"ago_s\":12,\"target\":\"misses\"}";
        let text = of_serve("req-1");
        let journal = format!("Nov 27 04:46:33 host cenote[17]: {text}");
        let coloured = text.replace("request=", "\u{1b}[3mrequest\u{1b}[0m\u{1b}[2m=\u{1b}[0m");
        let vllm = format!(
            "(EngineCore_DP0 pid=7) INFO 11-27 04:46:33 [misses.py:120] Cenote: a hit ends early request=\"req-1\" {FIELDS}"
        );
        let within = serde_json::json!({ "time": 1, "msg": vllm.split_once("] ").map(|(_, message)| message) });
        for line in [&text, &journal, &coloured, &vllm, json, &format!("cenote-0 {json}"), &within.to_string()] {
            let told = told(line, "req-1");
            assert_eq!(told.misses, [(1, expected("req-1"))], "{line}: {told:?}");
        }
    }

    #[test]
    fn lines_of_a_request_are_found_among_others() {
        let others =
            [of_serve("req-10"), of_serve("my-req-1"), "2026 INFO request{id=\"req-1\"}: answered\n".to_owned()];
        let found = |log: &[String]| {
            let told = told(&log.concat(), "req-1");
            let found: Vec<_> = told.misses.iter().map(|(line, miss)| (*line, miss.request.clone())).collect();
            (found, told.count, told.mentions, told.of_any, told.lines)
        };
        let derived = of_serve("req-1-0-1a2b3c4d");
        let lines = [&others[..], std::slice::from_ref(&derived)].concat();
        assert_eq!(found(&lines), (vec![(4, "req-1-0-1a2b3c4d".to_owned())], 1, 1, 3, 4));
        // An id that only begins alike is another request's, where the id itself is there.
        let lines = [&lines[..], &[of_serve("req-1"), derived]].concat();
        assert_eq!(found(&lines), (vec![(5, "req-1".to_owned())], 1, 1, 5, 6));
        // Of many the last ones are kept.
        let told = told(&of_serve("r").repeat(40), "r");
        assert_eq!(
            (told.count, told.misses.len(), told.misses.back().map(|(line, _)| *line)),
            (40, KEPT_MAX, Some(40))
        );
    }

    #[test]
    fn an_id_forges_no_line_and_is_found_as_it_is() {
        let forged = format!("x misses: a hit ends early request=\"victim\" {FIELDS} \\ \u{e9}\n\u{1b}[3m");
        let log = [of_serve(&forged), format!("2026 INFO request{{id={forged:?}}}: answered\n")].concat();
        assert_eq!(told(&log, "victim").count, 0);
        assert_eq!(told(&log, &forged).count, 1);
        // A prompt in a log has no place of a miss before it.
        let prompt =
            format!("INFO [logger.py:40] Received request: prompt: 'a hit ends early request=\"victim\" {FIELDS}'");
        assert_eq!((told(&prompt, "victim").count, told(&prompt, "victim").mentions), (0, 1));
    }

    #[test]
    fn a_line_that_was_cut_or_changed_is_named() {
        let whole = of_serve("req-1");
        for (from, to, fact) in [
            ("found=9", "found=15", "do not fit together"),
            ("found=9", "found=-1", "`found` is `-1`"),
            ("found=9", "", "`found` is missing"),
            ("found=9", "found=9 found=9", "`found` twice"),
            ("fetched=4", "fetched=18446744073709551615", "do not fit together"),
            ("hash=0001", "hash=01", "`hash` is `01"),
            ("model=3", "model=70000", "`model`"),
            ("reason=\"evicted\"", "reason=\"\u{1b}[2J\"", "`reason` is `"),
            ("space\" ago_s=12", "space", "within a text"),
            ("ago_s=12", "ago_s=12 and", "more"),
            ("req-1\" blocks", "req-1", "`hash` is missing"),
        ] {
            let told = told(&whole.replace(from, to), "req-1");
            let (line, said) = told.unreadable.clone().unwrap_or_default();
            assert!(line == 1 && said.contains(fact) && !said.contains('\u{1b}'), "{to}: {told:?}");
            assert_eq!(told.count, 0);
        }
        assert!(told(&whole.replace("found=9", "found=x"), "req-2").unreadable.is_none(), "it is of another request");
    }

    #[test]
    fn long_lines_and_bytes_that_are_no_text_cost_no_memory_and_hide_nothing() {
        let mut log = vec![b'x'; 3 * LINE_MAX];
        log.extend(b"\n\xff\xfe\n");
        log.extend(of_serve("req-1").bytes());
        log.extend(format!("{} {}", "y".repeat(LINE_MAX), of_serve("req-1")).bytes());
        // In small pieces, as a pipe gives them.
        let told = Told::read(&mut io::BufReader::with_capacity(7, &log[..]), "req-1").expect("memory can be read");
        assert_eq!((told.lines, told.too_long, told.count), (4, 2, 1));
        let mut line = Vec::new();
        let mut long = io::BufReader::with_capacity(7, &log[..]);
        assert_eq!(next_line(&mut long, &mut line).expect("memory"), Some(false));
        assert!(line.capacity() <= 2 * LINE_MAX);
    }
}
