//! `cenote record`: the requests of a region as a trace in Mooncake's format (FAST '25), a line of JSON each.
//!
//! `timestamp` in milliseconds from the first request on, `input_length` and `output_length` in tokens, and
//! `hash_ids`, a number for each block of the prompt, the last one also if it is not full. The region knows
//! no tokens and no text, and numbers are given in the order of first use.

use super::pool::find_namespace;
use crate::args::RecordArgs;
use cenote_base::Clock;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::region::HostPool;
use cenote_console::signals::EndSignals;
use cenote_console::whatif;
use cenote_mem::ReadOnly;
use cenote_pool::{Asked, NamespaceInfo, Requests, requests};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks of a recorder.
const EVERY: Duration = Duration::from_millis(100);
/// A request is written when its answer has ended, or so long after it came. Traces are in order of
/// arrival, so a line also waits for those before it.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// For so long the record has all blocks after a look. A recorder that dies leaves it so no longer.
const AHEAD_S: u64 = 10;

/// A line of the trace.
#[derive(Serialize)]
struct Line {
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// Writes requests of one model.
struct Recorder<W: Write> {
    to: W,
    block_tokens: u32,
    /// Bits of all hashes: samples of different rates cannot be in one trace.
    shift: u8,
    first_us: Option<u64>,
    numbers: BTreeMap<u32, u64>,
    next: u64,
    written: u64,
    unanswered: u64,
    sampled: u64,
}

impl<W: Write> Recorder<W> {
    fn new(to: W, block_tokens: u32, shift: u8) -> Self {
        let numbers = BTreeMap::new();
        Self { to, block_tokens, shift, first_us: None, numbers, next: 0, written: 0, unanswered: 0, sampled: 0 }
    }

    fn write(&mut self, asked: &Asked) -> Result<(), Failure> {
        if asked.shift != self.shift {
            self.sampled += 1;
            return Ok(());
        }
        let mut hash_ids: Vec<u64> = asked.names.iter().map(|&name| self.number(Some(name))).collect();
        if u64::from(asked.tokens) > u64::from(asked.blocks) * u64::from(self.block_tokens) {
            hash_ids.push(self.number(None));
        }
        let first = *self.first_us.get_or_insert(asked.time_us);
        let line = Line {
            timestamp: asked.time_us.saturating_sub(first) / 1000,
            input_length: asked.tokens.max(1),
            output_length: asked.answer.unwrap_or(1).max(1),
            hash_ids,
        };
        self.unanswered += u64::from(asked.answer.is_none());
        self.written += 1;
        serde_json::to_writer(&mut self.to, &line).map_err(|error| Failure::new(error.to_string()))?;
        self.to.write_all(b"\n").map_err(Failure::from)
    }

    /// The number of a block; `None`: one that occurs once.
    fn number(&mut self, name: Option<u32>) -> u64 {
        let new = self.next;
        let number = name.map_or(new, |name| *self.numbers.entry(name).or_insert(new));
        self.next += u64::from(number == new);
        number
    }

    fn end(mut self, lost: u64) -> Result<(), Failure> {
        self.to.flush()?;
        output::say(&format!("{} requests with {} different blocks", self.written, self.next));
        for (count, what) in [
            (self.unanswered, "the length of the answer is not known, and 1 in the trace"),
            (self.sampled, "left out: the record has a sample of their blocks, as on other hosts"),
            (lost, "left out: they were overwritten before they were read, or torn"),
        ] {
            if count > 0 {
                output::say(&format!("note: of {count} requests {what}"));
            }
        }
        Ok(())
    }
}

pub fn run(args: &RecordArgs) -> Result<(), Failure> {
    if args.follow || args.seconds.is_some() { follow(args) } else { once(args) }
}

fn open(path: &Path) -> Result<Box<dyn Write>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(BufWriter::new(std::io::stdout())));
    }
    let file = File::create(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    Ok(Box::new(BufWriter::new(file)))
}

/// The model that is asked for, or the one with the most requests.
fn model(args: &RecordArgs, rows: &[NamespaceInfo], found: &Requests) -> Result<Option<NamespaceInfo>, Failure> {
    if let Some(name) = &args.model {
        return find_namespace(args.region.source()?, rows, name).map(|row| Some(row.clone()));
    }
    let count = |row: &NamespaceInfo| found.all.iter().filter(|asked| asked.namespace == row.id).count();
    Ok(rows.iter().filter(|row| count(row) > 0).max_by_key(|row| count(row)).cloned())
}

/// Writes what the region has recorded.
fn once(args: &RecordArgs) -> Result<(), Failure> {
    let source = args.region.source()?.to_string();
    let inspector = args.region.inspect()?;
    let mut found = requests(&*args.region.map_read_only()?).map_err(|error| args.region.explain(&error))?;
    let row = model(args, &inspector.namespaces(), &found)?;
    let Some(row) = row else { return Err(whatif::none(&source, inspector.superblock().config.requests_per_host)) };
    found.all.retain(|asked| asked.namespace == row.id);
    let shift = found.shift();
    if shift > 0 && !args.sampled {
        return Err(Failure::new(format!("{source}: the record has one in {} blocks", 1_u64 << shift.min(63)))
            .hint("--seconds and --follow record all blocks from now on; --sampled writes the sample"));
    }
    let mut recorder = Recorder::new(open(&args.out)?, row.block_tokens, shift);
    at_one_rate(&found).try_for_each(|asked| recorder.write(&asked))?;
    recorder.end(found.torn)
}

/// Each request at the lowest rate of the sample and with names of the same bits, so that equal blocks have
/// equal names.
fn at_one_rate(found: &Requests) -> impl Iterator<Item = Asked> {
    let shift = found.shift();
    found.sampled().map(move |(asked, names)| {
        let names = names.into_iter().map(|name| name as u32).collect();
        Asked { names, names_above: 0, shift, ..asked.clone() }
    })
}

/// Requests of one host that a recorder has not read, by their numbers among its requests.
///
/// Threads of an engine write at once: a request's line may be missing in one look and there in the next, and
/// requests of one moment may be in another order than their numbers. So a gap counts as lost only if a later
/// look has not filled it.
#[derive(Default)]
struct Gaps {
    last: Option<u32>,
    /// Ranges without a request, by their first number: the last one, and the look that found the gap.
    missing: BTreeMap<u32, (u32, u64)>,
    /// Requests of earlier gaps.
    lost: u64,
}

impl Gaps {
    /// A request by so many numbers below the last one is late. A larger step back is a new host memory, in
    /// which the numbers begin anew.
    const LATE_MAX: u32 = 1024;
    /// Most open gaps. Older ones are not filled any more.
    const OPEN_MAX: usize = 4096;

    /// A look has read the request of this number.
    fn take(&mut self, ordinal: u32, look: u64) {
        let Some(last) = self.last.filter(|&last| last >= ordinal) else {
            if let Some(last) = self.last.replace(ordinal).filter(|last| ordinal - last > 1) {
                self.missing.insert(last + 1, (ordinal - 1, look));
            }
            return self.forget(Self::OPEN_MAX);
        };
        let gap = self.missing.range(..=ordinal).next_back().map(|(&first, &(end, look))| (first, end, look));
        if let Some((first, end, look)) = gap.filter(|gap| ordinal <= gap.1) {
            self.missing.remove(&first);
            if first < ordinal {
                self.missing.insert(first, (ordinal - 1, look));
            }
            if ordinal < end {
                self.missing.insert(ordinal + 1, (end, look));
            }
        } else if last - ordinal > Self::LATE_MAX {
            self.forget(0);
            self.last = Some(ordinal);
        }
    }

    /// Keeps so many gaps open, the last ones.
    fn forget(&mut self, most: usize) {
        while self.missing.len() > most {
            let oldest = self.missing.pop_first();
            self.lost += oldest.map_or(0, |(first, (end, _))| u64::from(end - first) + 1);
        }
    }

    /// Requests that no look before this one has found.
    fn lost_before(&self, look: u64) -> u64 {
        let open = self.missing.iter().filter(|(_, (_, found))| *found < look);
        self.lost + open.map(|(first, (end, _))| u64::from(end - first) + 1).sum::<u64>()
    }
}

/// Requests of all models that were not written yet.
#[derive(Default)]
struct Seen {
    /// By time, host and number.
    waiting: BTreeMap<(u64, u8, u64), Asked>,
    /// Numbers of each host that were written, or were there before.
    done: BTreeSet<(u8, u64)>,
    /// What was not read of each host.
    gaps: BTreeMap<u8, Gaps>,
    /// Looks at the record so far.
    looks: u64,
}

impl Seen {
    /// Takes what is new. Lines of before are left out.
    fn take(&mut self, found: Requests) {
        self.looks += 1;
        let there: BTreeSet<(u8, u64)> = found.all.iter().map(|asked| (asked.host, asked.number)).collect();
        for asked in found.all {
            if self.done.contains(&(asked.host, asked.number)) {
                continue;
            }
            let (host, ordinal) = (asked.host, asked.ordinal);
            if self.waiting.insert((asked.time_us, host, asked.number), asked).is_none() {
                self.gaps.entry(host).or_default().take(ordinal, self.looks);
            }
        }
        // What the ring has lost cannot come again.
        self.done.retain(|key| there.contains(key));
    }

    /// The requests that are complete, in order.
    fn ready(&mut self, now_us: u64) -> Vec<Asked> {
        let mut ready = Vec::new();
        while let Some(entry) = self.waiting.first_entry() {
            let asked = entry.get();
            let is_late = asked.time_us.saturating_add(ANSWER_PATIENCE.as_micros() as u64) < now_us;
            if asked.answer.is_none() && !is_late {
                break;
            }
            let asked = entry.remove();
            self.done.insert((asked.host, asked.number));
            ready.push(asked);
        }
        ready
    }

    /// Requests that were recorded between those that were read, and are gone. The last look's gaps may yet
    /// be filled.
    fn lost(&self) -> u64 {
        self.gaps.values().map(|gaps| gaps.lost_before(self.looks)).sum()
    }
}

/// Ends the record of all blocks when it is dropped.
struct AllBlocks(HostPool);

impl AllBlocks {
    fn prolong(&self) {
        self.0.record_all_until(Clock::system().unix().as_secs() + AHEAD_S);
    }
}

impl Drop for AllBlocks {
    fn drop(&mut self) {
        self.0.record_all_until(0);
    }
}

fn follow(args: &RecordArgs) -> Result<(), Failure> {
    let source = args.region.source()?.to_string();
    let pauses = EndSignals::catch()?.into_pauses();
    let inspector = args.region.inspect()?;
    if inspector.superblock().config.requests_per_host == 0 {
        return Err(whatif::none(&source, 0));
    }
    let fabric: Arc<ReadOnly> = args.region.map_read_only()?;
    let look = || requests(&*fabric).map_err(|error| args.region.explain(&error));
    let all = AllBlocks(args.region.attach("record")?);
    all.prolong();
    let mut seen = Seen::default();
    let before = look()?;
    seen.done.extend(before.all.iter().map(|asked| (asked.host, asked.number)));
    let mut to = Some(open(&args.out)?);
    output::say(&format!("{source}: recording all requests of this host"));
    let clock = Clock::system();
    let end_ns = args.seconds.map(|time| clock.now_ns().saturating_add(time.as_nanos() as u64));
    let mut recorder: Option<(u16, Recorder<Box<dyn Write>>)> = None;
    loop {
        let is_over = end_ns.is_some_and(|end| clock.now_ns() >= end) || !pauses.pause(EVERY);
        all.prolong();
        all.0.tick();
        let found = look()?;
        if recorder.is_none()
            && let Some(row) = model(args, &inspector.namespaces(), &of_now(&found, &seen))?
            && let Some(to) = to.take()
        {
            output::say(&format!("model {} ({})", row.id.0, row.label));
            recorder = Some((row.id.0, Recorder::new(to, row.block_tokens, 0)));
        }
        seen.take(found);
        // At the end no request waits for its answer.
        let now_us = if is_over { u64::MAX } else { u64::try_from(clock.unix().as_micros()).unwrap_or(u64::MAX) };
        for asked in seen.ready(now_us) {
            if let Some((_, recorder)) = recorder.as_mut().filter(|recorder| recorder.0 == asked.namespace.0) {
                recorder.write(&asked)?;
            }
        }
        if is_over {
            break;
        }
    }
    drop(all);
    match recorder {
        Some((_, recorder)) => recorder.end(seen.lost()),
        None => {
            output::say("no engine has recorded a request meanwhile");
            Ok(())
        }
    }
}

/// The requests that came since the recorder began.
fn of_now(found: &Requests, seen: &Seen) -> Requests {
    let is_new = |asked: &&Asked| !seen.done.contains(&(asked.host, asked.number));
    Requests { all: found.all.iter().filter(is_new).cloned().collect(), torn: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::NamespaceId;

    fn asked(number: u64, names: &[u32], tokens: u32, answer: Option<u32>) -> Asked {
        Asked {
            number,
            host: 0,
            namespace: NamespaceId(0),
            time_us: 1_000_000 * number,
            tokens,
            blocks: names.len() as u32,
            above: 0,
            shift: 0,
            names: names.to_vec(),
            names_above: 0,
            asked: names.len() as u64,
            requests: 1,
            ordinal: number as u32,
            answer,
        }
    }

    #[test]
    fn a_line_has_a_number_for_each_block_and_one_for_an_unfinished_block() {
        let mut recorder = Recorder::new(Vec::new(), 16, 0);
        for asked in [asked(5, &[70, 71], 32, Some(9)), asked(6, &[70, 99], 40, None), asked(8, &[70, 99], 40, Some(0))]
        {
            recorder.write(&asked).expect("memory takes all");
        }
        let lines = String::from_utf8(recorder.to.clone()).expect("JSON");
        let expected = "{\"timestamp\":0,\"input_length\":32,\"output_length\":9,\"hash_ids\":[0,1]}\n\
                        {\"timestamp\":1000,\"input_length\":40,\"output_length\":1,\"hash_ids\":[0,2,3]}\n\
                        {\"timestamp\":3000,\"input_length\":40,\"output_length\":1,\"hash_ids\":[0,2,4]}\n";
        assert_eq!((lines.as_str(), recorder.unanswered), (expected, 1));
    }

    /// A record keeps more bits of a name at a lower rate. Blocks of two rates had two numbers.
    #[test]
    fn a_trace_of_two_rates_has_one_number_for_a_block() {
        let bits = [0xfedc_ba98_0000_0008_u64, 0x1234_5678_8765_4320, 0x00ff_00ff_00ff_0010];
        let sampled = |number, shift: u8| {
            let names: Vec<u32> = bits.iter().map(|bits| (bits >> shift) as u32).collect();
            Asked { shift, ..asked(number, &names, 48, Some(1)) }
        };
        for shifts in [[1, 3], [3, 1], [0, 3]] {
            let all = vec![sampled(1, shifts[0]), sampled(2, shifts[1])];
            let found = Requests { all, torn: 0 };
            let mut recorder = Recorder::new(Vec::new(), 16, found.shift());
            at_one_rate(&found).try_for_each(|asked| recorder.write(&asked)).expect("memory takes all");
            let lines = String::from_utf8(recorder.to.clone()).expect("JSON");
            assert_eq!(lines.matches("\"hash_ids\":[0,1,2]").count(), 2, "{shifts:?}: {lines}");
            assert_eq!(recorder.sampled, 0);
        }
    }

    #[test]
    fn requests_are_written_in_order_when_their_answers_have_ended() {
        let mut seen = Seen::default();
        let found = |all: &[Asked]| Requests { all: all.to_vec(), torn: 0 };
        let (first, second) = (asked(1, &[1], 16, None), asked(2, &[2], 16, Some(3)));
        seen.take(found(&[first.clone(), second.clone()]));
        assert!(seen.ready(2_000_000).is_empty(), "the second waits for the first");
        let ended = Asked { answer: Some(4), ..first };
        seen.take(found(&[ended.clone(), second.clone()]));
        assert_eq!(seen.ready(2_000_000), [ended.clone(), second.clone()]);
        seen.take(found(&[ended, second]));
        assert!(seen.ready(u64::MAX).is_empty(), "each once");
        assert_eq!(seen.lost(), 0);
        let late = asked(9, &[1], 16, None);
        seen.take(found(std::slice::from_ref(&late)));
        assert!(seen.ready(10_000_000).is_empty());
        assert_eq!(seen.ready(9_000_000 + 31_000_000), [late]);
        seen.take(found(&[]));
        assert_eq!(seen.lost(), 6, "those between the second and the ninth");
    }

    /// A request whose line came after a later one's was counted as lost, and written all the same.
    #[test]
    fn a_request_that_is_not_written_yet_is_not_lost() {
        let mut seen = Seen::default();
        let look = |seen: &mut Seen, numbers: &[u32]| {
            let all = numbers.iter().map(|&number| asked(number.into(), &[number], 16, Some(1))).collect();
            seen.take(Requests { all, torn: 0 });
            seen.ready(u64::MAX).len()
        };
        assert_eq!(look(&mut seen, &[20, 22, 25]), 3);
        assert_eq!(seen.lost(), 0, "their lines may be on their way");
        assert_eq!(look(&mut seen, &[20, 21, 22, 24, 25]), 2);
        assert_eq!(seen.lost(), 1, "23");
        assert_eq!(look(&mut seen, &[20, 21, 22, 23, 24, 25]), 1);
        assert_eq!(seen.lost(), 0);
        // One from before the recorder began is late, and none behind it is lost.
        assert_eq!(look(&mut seen, &[19, 26]), 2);
        assert_eq!((look(&mut seen, &[26]), seen.lost()), (0, 0));
        // Numbers that begin anew lose nothing, but what was lost before stays so.
        assert_eq!(look(&mut seen, &[9_000, 9_002]), 2);
        assert_eq!((look(&mut seen, &[1, 2]), seen.lost()), (2, 8_973 + 1));
        assert_eq!((look(&mut seen, &[2, 3]), seen.lost()), (1, 8_973 + 1));
    }

    #[test]
    fn gaps_of_one_moment_are_in_any_order_and_bounded() {
        let mut gaps = Gaps::default();
        for ordinal in [5, 9, 7, 6, 8] {
            gaps.take(ordinal, 1);
        }
        assert_eq!((gaps.lost_before(u64::MAX), gaps.missing.len()), (0, 0));
        for ordinal in (10..100_000).step_by(2) {
            gaps.take(ordinal, 2);
        }
        assert!(gaps.missing.len() <= Gaps::OPEN_MAX);
        assert_eq!(gaps.lost_before(3), 49_994);
    }
}
