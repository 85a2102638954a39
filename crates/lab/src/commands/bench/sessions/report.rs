//! Figures of a run: by server, and by turn.

use super::plan::{BLOCK, Plan};
use super::replay::{Answer, Asked};
use super::tiers::Tiers;
use super::{BenchSessionsArgs, size};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_lab::plot::{self, Axis, Drawn, Scale, Series};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

#[derive(Serialize)]
pub struct Report {
    quick: bool,
    model: String,
    sessions: usize,
    eligible_sessions: usize,
    all_sessions: usize,
    /// Sessions that ended before a turn that is too long.
    cut_sessions: usize,
    requests: usize,
    prompt_tokens: u64,
    longest_prompt: usize,
    context: u32,
    tokens_per_id: f64,
    output_tokens: u32,
    think_scale: f64,
    concurrency: Option<usize>,
    seed: u64,
    /// Hit rate of a cache that loses nothing.
    repeated: f64,
    small_region_bytes: Option<u64>,
    checked: bool,
    rows: Vec<Row>,
    turns: Vec<Turns>,
}

/// One server.
#[derive(Default, Serialize)]
pub struct Row {
    name: String,
    #[serde(skip)]
    asked: Vec<Asked>,
    /// Time of the whole replay.
    wall_s: f64,
    answered: usize,
    failed: usize,
    /// Turns behind a failed one.
    not_asked: usize,
    /// Number of failures by reason.
    failures: BTreeMap<String, usize>,
    /// Share of the prompts' tokens that were not computed; `None` if the server does not say.
    hit_rate: Option<f64>,
    /// By tier, as counters of the server say. In tokens.
    tiers: Option<Tiers>,
    ttft: Option<Spread>,
    /// Time of the whole answer.
    answer: Option<Spread>,
    /// The median and the others over those of the first server.
    ttft_ratio: Option<Spread>,
    /// Answers that were compared with the first server's, and those that differ.
    compared: usize,
    differ: usize,
}

/// Milliseconds, or ratios of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    p50: f64,
    p90: f64,
    p99: f64,
    mean: f64,
}

/// Turns of all sessions with these numbers.
#[derive(Serialize)]
struct Turns {
    /// The first and the last, from 1.
    first: usize,
    last: usize,
    /// In the order of the servers.
    servers: Vec<OfTurns>,
}

#[derive(Serialize)]
struct OfTurns {
    answered: usize,
    ttft: Option<Spread>,
    hit_rate: Option<f64>,
    /// Median over that of the first server.
    ratio: Option<f64>,
}

impl Spread {
    /// Of times; `None` if there are none.
    fn of(times: impl Iterator<Item = Duration>) -> Option<Self> {
        let mut ms: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let at = |share: f64| ms.get(((ms.len().max(1) - 1) as f64 * share).round() as usize).copied();
        Some(Self { p50: at(0.5)?, p90: at(0.9)?, p99: at(0.99)?, mean: ms.iter().sum::<f64>() / ms.len() as f64 })
    }

    fn over(self, other: Self) -> Self {
        let Self { p50, p90, p99, mean } = other;
        Self { p50: self.p50 / p50, p90: self.p90 / p90, p99: self.p99 / p99, mean: self.mean / mean }
    }
}

fn hit_rate<'a>(answers: impl Iterator<Item = &'a Answer>) -> Option<f64> {
    let (mut cached, mut prompt) = (0, 0);
    for answer in answers {
        cached += answer.cached_tokens?;
        prompt += answer.prompt_tokens;
    }
    (prompt > 0).then(|| cached as f64 / prompt as f64)
}

/// Answers with the index of their turn.
fn answers(row: &Row) -> impl Iterator<Item = (usize, &Answer)> + Clone {
    row.asked.iter().filter_map(|one| Some((one.turn, one.answer.as_ref().ok()?)))
}

impl Row {
    pub fn new(name: String, asked: Vec<Asked>, tiers: Option<Tiers>, wall: Duration) -> Self {
        Self { name, asked, tiers, wall_s: wall.as_secs_f64(), ..Self::default() }
    }

    /// Its figures, beside those of the first server.
    fn finish(&mut self, requests: usize, first: Option<&Self>) {
        let all = || answers(self).map(|(_, answer)| answer);
        let (ttft, answer) = (Spread::of(all().map(|one| one.first)), Spread::of(all().map(|one| one.whole)));
        let (answered, rate) = (all().count(), hit_rate(all()));
        let mut failures = BTreeMap::new();
        for reason in self.asked.iter().filter_map(|one| one.answer.as_ref().err()) {
            *failures.entry(reason.clone()).or_default() += 1;
        }
        if let Some(first) = first {
            let key = |one: &Asked| Some(((one.session, one.turn), one.answer.as_ref().ok()?.digest));
            let reference: HashMap<_, _> = first.asked.iter().filter_map(key).collect();
            let both = self.asked.iter().filter_map(key).filter_map(|(at, own)| Some((own, *reference.get(&at)?)));
            let same: Vec<bool> = both.map(|(own, other)| own == other).collect();
            (self.compared, self.differ) = (same.len(), same.iter().filter(|same| !**same).count());
        }
        self.ttft_ratio = ttft.zip(first.and_then(|first| first.ttft)).map(|(own, first)| own.over(first));
        self.failed = self.asked.len() - answered;
        self.not_asked = requests - self.asked.len();
        (self.ttft, self.answer, self.answered, self.hit_rate, self.failures) =
            (ttft, answer, answered, rate, failures);
    }

    /// Share of the prompts' tokens that a tier had.
    fn share(&self, of: impl Fn(&Tiers) -> Option<f64>) -> Option<f64> {
        let prompt: u64 = answers(self).map(|(_, answer)| answer.prompt_tokens).sum();
        Some(of(self.tiers.as_ref()?)? / (prompt.max(1) as f64))
    }
}

/// Groups of turns: 1, 2, 3 to 4, 5 to 8 and so on; the last one ends with `last`.
fn groups(last: usize) -> Vec<(usize, usize)> {
    let ends = std::iter::successors(Some(1), |end| Some(end * 2)).take_while(|end| end / 2 < last);
    ends.map(|end| (end / 2 + 1, end.min(last))).collect()
}

impl Report {
    pub fn new(
        args: &BenchSessionsArgs,
        model: String,
        plan: &Plan,
        context: u32,
        small_region_bytes: Option<u64>,
        mut rows: Vec<Row>,
    ) -> Self {
        for index in 0..rows.len() {
            let (before, rest) = rows.split_at_mut(index);
            rest[0].finish(plan.requests, before.first());
        }
        let last = plan.sessions.iter().map(super::plan::Session::turns).max().unwrap_or(0);
        let turns = groups(last).into_iter().map(|(first, last)| Turns::new(&rows, first, last)).collect();
        Self {
            quick: args.quick,
            model,
            sessions: plan.sessions.len(),
            eligible_sessions: plan.eligible.0,
            all_sessions: plan.eligible.1,
            cut_sessions: plan.cut,
            requests: plan.requests,
            prompt_tokens: plan.prompt_tokens,
            longest_prompt: plan.longest,
            context,
            tokens_per_id: args.tokens_per_id,
            output_tokens: args.output_tokens,
            think_scale: args.think_scale(),
            concurrency: args.concurrency,
            seed: args.seed,
            repeated: plan.repeated,
            small_region_bytes,
            checked: args.check,
            rows,
            turns,
        }
    }

    /// An error if a request failed, or if an answer differs and that was to be checked.
    pub fn verdict(&self) -> Result<(), Failure> {
        if let Some(row) = self.rows.iter().find(|row| row.failed > 0) {
            let reason = row.failures.keys().next().map_or("", String::as_str);
            return Err(Failure::new(format!(
                "{}: {} requests failed and {} were not asked, the first reason: {reason}",
                row.name, row.failed, row.not_asked
            )));
        }
        match self.rows.iter().find(|row| self.checked && row.differ > 0) {
            Some(row) => Err(Failure::new(format!(
                "{}: {} of {} answers differ from those of {}",
                row.name, row.differ, row.compared, self.rows[0].name
            ))
            .hint("an engine whose arithmetic depends on the batch may differ, too; ask with --concurrency 1")),
            None => Ok(()),
        }
    }

    fn load(&self) -> String {
        format!(
            "{}: {} sessions, {} requests of {} tokens in all, the longest of {}, answers of {}; {} tokens per id of 64, \
             think times × {}; {:.1} % of the tokens are in blocks of {BLOCK} that came before; {} of {} sessions of the \
             file have two prompts that fit, {} sessions ended before a prompt that does not",
            self.model,
            self.sessions,
            self.requests,
            self.prompt_tokens,
            self.longest_prompt,
            self.output_tokens,
            self.tokens_per_id,
            self.think_scale,
            100.0 * self.repeated,
            self.eligible_sessions,
            self.all_sessions,
            self.cut_sessions
        )
    }

    pub fn text(&self) -> String {
        let mut servers = output::table(&HEADER);
        self.cells().into_iter().for_each(|cells| servers.add_row(cells));
        let header: Vec<&str> = ["turns", "requests"].into_iter().chain(self.names()).collect();
        let mut turns = output::table(&header);
        self.turn_cells().into_iter().for_each(|cells| turns.add_row(cells));
        let small =
            self.small_region_bytes.map_or_else(String::new, |bytes| format!("; the small region has {}", size(bytes)));
        let mut text = format!("{}\n\n{servers}\n\n{turns}", output::wrapped(&format!("{}{small}", self.load()), ""));
        for row in &self.rows {
            for (reason, count) in &row.failures {
                text += &format!("\n{}: {count} requests failed: {reason}", row.name);
            }
        }
        text
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| row.name.as_str())
    }

    /// Cells of the table by server.
    fn cells(&self) -> Vec<Vec<String>> {
        let number =
            |value: Option<f64>, digits: usize| value.map_or_else(String::new, |value| format!("{value:.digits$}"));
        let percent = |value: Option<f64>| number(value.map(|value| 100.0 * value), 1);
        let cells = |row: &Row| {
            let is_compared = self.checked && row.compared > 0;
            let differ = if is_compared { format!("{} of {}", row.differ, row.compared) } else { String::new() };
            vec![
                row.name.clone(),
                row.answered.to_string(),
                (row.failed + row.not_asked).to_string(),
                percent(row.hit_rate),
                percent(row.share(|tiers| tiers.own)),
                percent(row.share(|tiers| Some(tiers.region))),
                percent(row.share(|tiers| Some(tiers.cold))),
                percent(row.share(|tiers| Some(tiers.peers))),
                number(row.ttft.map(|ttft| ttft.p50), 1),
                number(row.ttft.map(|ttft| ttft.p90), 1),
                number(row.ttft.map(|ttft| ttft.p99), 1),
                number(row.ttft_ratio.map(|ratio| ratio.p50), 2),
                number(row.ttft_ratio.map(|ratio| ratio.p90), 2),
                number(row.ttft_ratio.map(|ratio| ratio.p99), 2),
                differ,
            ]
        };
        self.rows.iter().map(cells).collect()
    }

    /// Cells of the table by turn.
    fn turn_cells(&self) -> Vec<Vec<String>> {
        let of = |one: &OfTurns| match (one.ttft, one.ratio, one.hit_rate) {
            (None, _, _) => String::new(),
            (Some(ttft), ratio, hits) => {
                let ratio = ratio.map_or_else(String::new, |ratio| format!(", × {ratio:.2}"));
                let hits = hits.map_or_else(String::new, |hits| format!(", {:.0} %", 100.0 * hits));
                format!("{:.1} ms{ratio}{hits}", ttft.p50)
            }
        };
        let row = |turns: &Turns| {
            let name = if turns.first == turns.last {
                turns.first.to_string()
            } else {
                format!("{}–{}", turns.first, turns.last)
            };
            let most = turns.servers.iter().map(|one| one.answered).max().unwrap_or(0);
            [name, most.to_string()].into_iter().chain(turns.servers.iter().map(of)).collect()
        };
        self.turns.iter().map(row).collect()
    }

    /// The plots: time to first token and hit rate by turn.
    fn plots(&self) -> Vec<(&'static str, Drawn)> {
        let series = |value: fn(&OfTurns) -> Option<f64>, unit: &str| -> Vec<Series> {
            let of = |(index, row): (usize, &Row)| {
                let point = |turns: &Turns| {
                    let value = value(&turns.servers[index])?;
                    Some((turns.first as f64, value, format!("{}, turn {}: {value:.1} {unit}", row.name, turns.first)))
                };
                Series { name: row.name.clone(), points: self.turns.iter().filter_map(point).collect() }
            };
            self.rows.iter().enumerate().map(of).collect()
        };
        let turn = Axis { label: "turn", scale: Scale::Log };
        let first = series(|one| one.ttft.map(|ttft| ttft.p50), "ms");
        let hits = series(|one| one.hit_rate.map(|rate| 100.0 * rate), "%");
        let time = Axis { label: "time to first token, median, ms", scale: Scale::Log };
        let rate = Axis { label: "prompt tokens that were not computed, %", scale: Scale::Linear };
        let drawn = [("Time to first token", turn, time, first), ("Hit rate", turn, rate, hits)];
        drawn.into_iter().filter_map(|(title, x, y, series)| Some((title, plot::draw(title, x, y, &series)?))).collect()
    }

    /// An HTML page.
    pub fn page(&self) -> String {
        let header: Vec<&str> = ["turns", "requests"].into_iter().chain(self.names()).collect();
        let plots: String =
            self.plots().iter().map(|(title, drawn)| format!("<h2>{title}</h2>\n{}", drawn.figure())).collect();
        let body = format!(
            "<h1>Sessions of agents</h1>\n<p>{}</p>\n{}{}{plots}",
            plot::escaped(&self.load()),
            plot::table(&HEADER, self.cells()),
            plot::table(&header, self.turn_cells()),
        );
        plot::page("cenote-lab bench sessions", &body)
    }

    /// An SVG file.
    pub fn picture(&self) -> String {
        plot::picture(self.plots().iter().map(|(_, drawn)| drawn))
    }
}

/// Hit rates are in percent of prompt tokens, times in milliseconds, ratios of the first server's.
const HEADER: [&str; 15] = [
    "server", "answered", "failed", "hits %", "own %", "region %", "L4 %", "peers %", "TTFT p50", "p90", "p99",
    "p50 ×", "p90 ×", "p99 ×", "differ",
];

impl Turns {
    fn new(rows: &[Row], first: usize, last: usize) -> Self {
        let within = |row: &Row| -> Vec<Answer> {
            answers(row).filter(|(turn, _)| (first..=last).contains(&(turn + 1))).map(|(_, answer)| *answer).collect()
        };
        let mut servers: Vec<OfTurns> = Vec::new();
        for row in rows {
            let of = within(row);
            let ttft = Spread::of(of.iter().map(|one| one.first));
            let reference = servers.first().and_then(|one| one.ttft);
            let ratio = ttft.zip(reference).map(|(own, first)| own.over(first).p50);
            servers.push(OfTurns { answered: of.len(), ttft, hit_rate: hit_rate(of.iter()), ratio });
        }
        Self { first, last, servers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(session: usize, turn: usize, answer: Result<(u64, Option<u64>, &str), &str>) -> Asked {
        let answer = answer.map(|(ms, cached_tokens, text)| Answer {
            first: Duration::from_millis(ms),
            whole: Duration::from_millis(2 * ms),
            prompt_tokens: 100,
            cached_tokens,
            digest: blake3::hash(text.as_bytes()),
        });
        Asked { session, turn, answer: answer.map_err(str::to_owned) }
    }

    #[test]
    fn groups_of_turns_double_and_end_with_the_last() {
        assert_eq!(groups(1), [(1, 1)]);
        assert_eq!(groups(2), [(1, 1), (2, 2)]);
        assert_eq!(groups(20), [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 20)]);
        assert_eq!(groups(0), []);
    }

    #[test]
    fn failures_are_counted_with_the_turns_behind_them() {
        let row = |asked| Row { asked, ..Row::default() };
        let mut first = row(vec![asked(0, 0, Ok((80, Some(0), "a"))), asked(0, 1, Ok((40, Some(50), "b")))]);
        let mut other = row(vec![asked(0, 0, Ok((20, Some(50), "x"))), asked(0, 1, Err("late"))]);
        first.finish(3, None);
        other.finish(3, Some(&first));
        assert_eq!((first.answered, first.failed, first.not_asked), (2, 0, 1));
        assert_eq!((other.answered, other.failed, other.not_asked), (1, 1, 1));
        assert_eq!((other.failures["late"], other.compared, other.differ), (1, 1, 1));
        assert_eq!((first.hit_rate, other.hit_rate), (Some(0.25), Some(0.5)));
        let turns = Turns::new(&[first, other], 1, 1);
        assert_eq!((turns.servers[1].ratio, turns.servers[0].answered), (Some(0.25), 1));
    }

    #[test]
    fn no_answers_have_no_times() {
        assert_eq!(Spread::of(std::iter::empty()), None);
        assert_eq!(hit_rate([].into_iter()), None);
        let mut row = Row { asked: vec![asked(0, 0, Ok((5, None, "a")))], ..Row::default() };
        row.finish(1, None);
        assert_eq!((row.hit_rate, row.ttft.map(|ttft| ttft.p99)), (None, Some(5.0)));
    }
}
