//! What clients ask: clipped conversations, as tokens.
//!
//! The file names blocks of 64 tokens by ids. Each id becomes `tokens_per_id` tokens, so that all prompts
//! become shorter by one factor. Prompts of a session still grow, rewind and branch where they did, and keep
//! their relative lengths. The alternative, the first tokens of each prompt, would make all later turns of a
//! long session equal. With less than one token per id, each id has one or none, by its name.
//!
//! Prompts share tokens exactly as far as they share ids: the first token of an id differs from those of all
//! other ids that follow the same one. A prompt's last tokens, which fill no block, occur in no other prompt.

use crate::args::BenchSessionsArgs;
use cenote_base::TokenId;
use cenote_base::prng::Prng;
use cenote_console::failure::Failure;
use cenote_console::{input, output};
use cenote_serving_sim::workload::{
    AGENTIC_BLOCK_TOKENS, Conversation, Conversations, TraceError, Turn, read_conversations,
};
use std::collections::{HashMap, HashSet};
use std::io::BufReader;
use std::ops::Range;
use std::time::Duration;

/// Ids of tokens: every vocabulary has them, and they are no special tokens.
const TOKENS: Range<u64> = 100..600;
/// Tokens of a block for the share of repeated tokens.
pub const BLOCK: usize = 16;
/// Names of the tokens behind the last block of a prompt. No block of a trace has this bit alone.
const TAIL: u64 = 1 << 62;
/// What the first id of a prompt follows.
const ROOT: u64 = u64::MAX;

/// How sessions are clipped.
#[derive(Clone, Copy, Debug)]
pub struct Clip {
    pub tokens_per_id: f64,
    /// Longest prompt, in tokens.
    pub prompt_max: u32,
    pub turns: usize,
}

impl Clip {
    /// Approximate tokens of a prompt that had `input` in the trace.
    fn scaled(&self, input: u32) -> f64 {
        f64::from(input) * self.tokens_per_id / f64::from(AGENTIC_BLOCK_TOKENS)
    }
}

/// A clipped conversation.
pub struct Session {
    conversation: Conversation,
    draw: u64,
    /// From the first start.
    pub start: Duration,
    /// Think time before each turn, as recorded.
    pub thinks: Vec<Duration>,
}

impl Session {
    /// Number of turns.
    pub const fn turns(&self) -> usize {
        self.thinks.len()
    }
}

/// The conversations of a run.
pub struct Plan {
    pub sessions: Vec<Session>,
    words: Words,
    pub requests: usize,
    pub prompt_tokens: u64,
    /// Tokens of the longest prompt.
    pub longest: usize,
    /// Share of the prompts' tokens in blocks that an earlier prompt had with all that precedes them: the
    /// hit rate of a cache that loses nothing.
    pub repeated: f64,
    /// Sessions that were cut before a turn that is too long.
    pub cut: usize,
    /// Sessions of the file with two turns that are short enough, and all of them.
    pub eligible: (usize, usize),
}

impl Plan {
    /// Draws sessions of the file, and clips them.
    pub fn read(args: &BenchSessionsArgs, prompt_max: u32) -> Result<Self, Failure> {
        let failed = |fact: String| Failure::new(format!("{}: {fact}", args.trace.display()));
        let clip = Clip { tokens_per_id: args.tokens_per_id, prompt_max, turns: args.turns() };
        let file = BufReader::with_capacity(1 << 20, input::open(&args.trace).map_err(failed)?);
        let sessions = args.sessions().sessions(args.seed);
        let fits = |prompts: &mut dyn Iterator<Item = u32>| {
            prompts.take(2).filter(|&input| clip.scaled(input) <= f64::from(prompt_max)).count() == 2
        };
        let read = read_conversations(file, AGENTIC_BLOCK_TOKENS, false, &sessions, fits).map_err(|error| {
            let failure = failed(error.to_string());
            match error {
                TraceError::Empty => failure.hint(format!(
                    "no session has two prompts of {prompt_max} tokens or less; a smaller --tokens-per-id shortens them"
                )),
                _ => failure,
            }
        })?;
        read.remarks().iter().for_each(|line| output::say(&format!("{}: {line}", args.trace.display())));
        let plan = Self::of(read, clip, args.seed);
        if plan.requests == 0 { Err(failed("no turn is short enough".to_owned())) } else { Ok(plan) }
    }

    fn of(read: Conversations, clip: Clip, seed: u64) -> Self {
        let mut words = Words { seed, tokens_per_id: clip.tokens_per_id, ..Words::default() };
        let mut plan = Self {
            sessions: Vec::new(),
            words: Words::default(),
            requests: 0,
            prompt_tokens: 0,
            longest: 0,
            repeated: 0.0,
            cut: 0,
            eligible: read.eligible,
        };
        let (mut seen, mut repeated) = (HashSet::new(), 0);
        for (draw, conversation) in (0..).zip(read.drawn) {
            let mut thinks = Vec::new();
            for (nth, turn) in conversation.turns().take(clip.turns).enumerate() {
                let prompt = words.prompt(&names(&conversation, draw, nth, turn, clip));
                if prompt.len() > clip.prompt_max as usize {
                    plan.cut += 1;
                    break;
                }
                repeated += repeated_tokens(&prompt, &mut seen);
                thinks.push(Duration::from_nanos(turn.think));
                plan.prompt_tokens += prompt.len() as u64;
                plan.longest = plan.longest.max(prompt.len());
            }
            plan.requests += thinks.len();
            let start = Duration::from_nanos(conversation.start());
            plan.sessions.push(Session { conversation, draw, start, thinks });
        }
        plan.repeated = repeated as f64 / plan.prompt_tokens.max(1) as f64;
        Self { words, ..plan }
    }

    /// The tokens of a turn's prompt.
    pub fn prompt(&self, session: &Session, turn: usize) -> Vec<TokenId> {
        let clip = Clip { tokens_per_id: self.words.tokens_per_id, prompt_max: u32::MAX, turns: usize::MAX };
        let recorded = session.conversation.turns().nth(turn).expect("its caller counts turns");
        let names = names(&session.conversation, session.draw, turn, recorded, clip);
        self.words.known(&names)
    }
}

/// The names that a prompt's tokens come from, with the number of tokens of each.
fn names(conversation: &Conversation, draw: u64, nth: usize, turn: Turn, clip: Clip) -> Vec<(u64, usize)> {
    let (whole, part) = (clip.tokens_per_id.floor(), clip.tokens_per_id.fract());
    let count = |name: u64| whole as usize + usize::from(Prng::at(name, 1).next_f64() < part);
    let mut names: Vec<(u64, usize)> =
        conversation.names(nth).map(|name| (name, count(name))).filter(|(_, count)| *count > 0).collect();
    let tail = clip.scaled(turn.input_tokens % AGENTIC_BLOCK_TOKENS).round() as usize;
    // A server computes at least the last token of a prompt.
    names.push((TAIL | (draw << 32) | nth as u64, tail.max(1)));
    names
}

/// The tokens of names.
#[derive(Default)]
struct Words {
    seed: u64,
    tokens_per_id: f64,
    /// First token of a name.
    first: HashMap<u64, TokenId>,
    /// Number of different names that follow a name.
    followers: HashMap<u64, u64>,
}

impl Words {
    /// The tokens of a prompt, of which names may be new.
    fn prompt(&mut self, names: &[(u64, usize)]) -> Vec<TokenId> {
        let mut after = ROOT;
        for &(name, _) in names {
            if !self.first.contains_key(&name) {
                let count = self.followers.entry(after).or_default();
                let begin = Prng::at(self.seed, after).below(TOKENS.end - TOKENS.start);
                let token = TOKENS.start + (begin + *count) % (TOKENS.end - TOKENS.start);
                *count += 1;
                self.first.insert(name, token as TokenId);
            }
            after = name;
        }
        self.known(names)
    }

    /// The same of names that are known.
    fn known(&self, names: &[(u64, usize)]) -> Vec<TokenId> {
        let mut prompt = Vec::with_capacity(names.iter().map(|(_, count)| count).sum());
        for &(name, count) in names {
            let mut prng = Prng::at(self.seed, name);
            prompt.push(self.first[&name]);
            prompt.extend((1..count).map(|_| (TOKENS.start + prng.below(TOKENS.end - TOKENS.start)) as TokenId));
        }
        prompt
    }
}

/// Tokens of a prompt in blocks that were `seen` after the same tokens; adds the others.
fn repeated_tokens(prompt: &[TokenId], seen: &mut HashSet<[u8; 32]>) -> usize {
    let mut chain = blake3::Hasher::new();
    let known = prompt.chunks_exact(BLOCK).filter(|block| {
        for token in *block {
            chain.update(&token.to_le_bytes());
        }
        !seen.insert(*chain.finalize().as_bytes())
    });
    known.count() * BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_serving_sim::workload::Sessions;

    /// Grows, branches after two blocks, goes on at the first branch, and is then too long.
    const SESSION: &str = "{\"block\": 64, \"requests\": [[0, 200, 9, [[1, 3]], 0, 0, 1], \
         [5, 330, 9, [[1, 5]], 0, 4, 1], [9, 270, 9, [[1, 2], [9, 2]], 0, 3, 1], [11, 390, 9, [[1, 6]], 0, 1, 1], \
         [20, 64000, 9, [[1, 1000]], 0, 1, 1]]}\n";

    fn plan(text: &str, clip: Clip, seed: u64) -> Plan {
        let sessions = Sessions { gap: 0, ..Sessions::default() };
        let read = read_conversations(text.as_bytes(), 64, true, &sessions, |_| true).expect("sessions");
        Plan::of(read, clip, seed)
    }

    fn prompts(plan: &Plan) -> Vec<Vec<TokenId>> {
        let of = |session| (0..Session::turns(session)).map(|turn| plan.prompt(session, turn));
        plan.sessions.iter().flat_map(of).collect()
    }

    fn common(one: &[TokenId], other: &[TokenId]) -> usize {
        one.iter().zip(other).take_while(|(one, other)| one == other).count()
    }

    #[test]
    fn prompts_share_tokens_exactly_as_far_as_ids() {
        for (tokens_per_id, per_id) in [(1.0, 1), (4.0, 4), (64.0, 64)] {
            let clip = Clip { tokens_per_id, prompt_max: 500, turns: 9 };
            let plan = plan(SESSION, clip, 7);
            assert_eq!((plan.requests, plan.cut), (4, 1), "{tokens_per_id}");
            let prompts = prompts(&plan);
            assert_eq!(common(&prompts[0], &prompts[1]), 3 * per_id);
            assert_eq!(common(&prompts[1], &prompts[2]), 2 * per_id, "a branch");
            assert_eq!(common(&prompts[1], &prompts[3]), 5 * per_id, "back at the first branch");
            let tokens: Vec<usize> = prompts.iter().map(Vec::len).collect();
            assert!(tokens_per_id < 64.0 || tokens == [200, 330, 270, 390], "{tokens:?}");
            assert!(prompts.iter().flatten().all(|token| TOKENS.contains(&u64::from(*token))));
        }
    }

    #[test]
    fn tokens_depend_on_the_seed_and_the_session_alone() {
        let clip = Clip { tokens_per_id: 4.0, prompt_max: 500, turns: 2 };
        let twice = SESSION.repeat(2);
        let of = |seed| prompts(&plan(&twice, clip, seed));
        let first = of(7);
        assert_eq!(first, of(7));
        assert_ne!(first, of(8));
        assert_eq!((first.len(), common(&first[0], &first[2])), (4, 0), "two draws share nothing");
    }

    #[test]
    fn fewer_tokens_than_ids_keep_the_order_of_lengths() {
        let clip = Clip { tokens_per_id: 0.5, prompt_max: 600, turns: 9 };
        let plan = plan(SESSION, clip, 7);
        assert_eq!(plan.requests, 5);
        let last = plan.longest as f64;
        assert!((last - 500.0).abs() < 60.0, "{last}");
        let prompts = prompts(&plan);
        assert!(common(&prompts[3], &prompts[4]) >= prompts[3].len() - 1);
    }

    #[test]
    fn a_cache_that_loses_nothing_finds_the_repeated_blocks() {
        let plan = plan(SESSION, Clip { tokens_per_id: 16.0, prompt_max: 500, turns: 9 }, 7);
        // Of 50, 83, 68 and 98 tokens, 3, 2 and 5 ids of 16 tokens came before.
        assert_eq!(plan.prompt_tokens, 50 + 83 + 68 + 98);
        assert!((plan.repeated - 160.0 / 299.0).abs() < 1e-9, "{}", plan.repeated);
    }
}
