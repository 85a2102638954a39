//! A suffix automaton that grows by one token at a time (Blumer et al., 1985), with the number of
//! occurrences of each state.
//!
//! A state stands for all token runs that end at the same places of the texts. Its link leads to the
//! longest of their ends that also ends elsewhere.

/// A place in the automaton: the longest known end of some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    at: u32,
    /// Tokens of the end; at most the longest of the state.
    pub length: u32,
}

impl State {
    /// The end without tokens.
    pub const EMPTY: Self = Self { at: ROOT, length: 0 };
}

const ROOT: u32 = 0;
/// Link of the root.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Node {
    /// Tokens of its longest run.
    length: u32,
    link: u32,
    /// Places where its runs end.
    count: u32,
    /// Nodes behind each token, by token.
    next: Vec<(u32, u32)>,
}

/// All runs of tokens of some texts.
#[derive(Clone, Debug)]
pub struct Automaton {
    nodes: Vec<Node>,
    /// The node of the whole text so far.
    last: u32,
}

impl Default for Automaton {
    fn default() -> Self {
        Self { nodes: vec![Node { length: 0, link: NONE, count: 0, next: Vec::new() }], last: ROOT }
    }
}

impl FromIterator<u32> for Automaton {
    fn from_iter<T: IntoIterator<Item = u32>>(text: T) -> Self {
        let mut automaton = Self::default();
        text.into_iter().for_each(|token| automaton.push(token));
        automaton
    }
}

impl Automaton {
    /// Appends a token to the text. Counting takes a step for each state among the ends of the text,
    /// which are few unless the text repeats itself at length.
    pub fn push(&mut self, token: u32) {
        self.last = self.extend(token);
        let mut node = self.last;
        while node != ROOT {
            self.nodes[node as usize].count += 1;
            node = self.nodes[node as usize].link;
        }
    }

    /// Begins another text: no run crosses its start.
    pub fn end_text(&mut self) {
        self.last = ROOT;
    }

    /// The longest end of the text that also ends elsewhere.
    #[must_use]
    pub fn repeated_end(&self) -> State {
        match self.nodes[self.last as usize].link {
            NONE => State::EMPTY,
            link => State { at: link, length: self.nodes[link as usize].length },
        }
    }

    /// The longest end of a known end and a token that is known.
    #[must_use]
    pub fn follow(&self, from: State, token: u32) -> State {
        let State { mut at, mut length } = from;
        loop {
            if let Some(next) = self.next(at, token) {
                return State { at: next, length: length + 1 };
            }
            if at == ROOT {
                return State::EMPTY;
            }
            at = self.nodes[at as usize].link;
            length = self.nodes[at as usize].length;
        }
    }

    /// The next shorter end with other followers; none below the empty one.
    #[must_use]
    pub fn shorter(&self, state: State) -> Option<State> {
        let link = self.nodes[state.at as usize].link;
        (link != NONE).then(|| State { at: link, length: self.nodes[link as usize].length })
    }

    /// Tokens that followed this end, and how often, by token.
    pub fn followers(&self, state: State) -> impl Iterator<Item = (u32, u32)> {
        self.nodes[state.at as usize].next.iter().map(|(token, node)| (*token, self.nodes[*node as usize].count))
    }

    fn next(&self, node: u32, token: u32) -> Option<u32> {
        let next = &self.nodes[node as usize].next;
        next.binary_search_by_key(&token, |(token, _)| *token).ok().map(|at| next[at].1)
    }

    fn set_next(&mut self, node: u32, token: u32, to: u32) {
        let next = &mut self.nodes[node as usize].next;
        match next.binary_search_by_key(&token, |(token, _)| *token) {
            Ok(at) => next[at].1 = to,
            Err(at) => next.insert(at, (token, to)),
        }
    }

    fn add(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// The node of the text with this token.
    fn extend(&mut self, token: u32) -> u32 {
        let before = self.last;
        // With several texts, the run may be known already.
        if let Some(known) = self.next(before, token) {
            return self.longest_at(before, token, known);
        }
        let length = self.nodes[before as usize].length + 1;
        let new = self.add(Node { length, link: ROOT, count: 0, next: Vec::new() });
        let mut at = before;
        while at != NONE {
            if let Some(known) = self.next(at, token) {
                self.nodes[new as usize].link = self.longest_at(at, token, known);
                break;
            }
            self.set_next(at, token, new);
            at = self.nodes[at as usize].link;
        }
        new
    }

    /// The node whose longest run is that of `from` and `token`. It is `known`, or is split off.
    fn longest_at(&mut self, from: u32, token: u32, known: u32) -> u32 {
        let length = self.nodes[from as usize].length + 1;
        if self.nodes[known as usize].length == length {
            return known;
        }
        let split = self.add(Node { length, ..self.nodes[known as usize].clone() });
        self.nodes[known as usize].link = split;
        let mut at = from;
        while at != NONE && self.next(at, token) == Some(known) {
            self.set_next(at, token, split);
            at = self.nodes[at as usize].link;
        }
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// How often each token follows `end` in the texts, by token.
    fn stated(texts: &[Vec<u32>], end: &[u32]) -> Vec<(u32, u32)> {
        let mut counts = [0; 4];
        for text in texts {
            let windows = text.windows(end.len() + 1).filter(|window| window.starts_with(end));
            windows.for_each(|window| counts[window[end.len()] as usize] += 1);
        }
        (0..).zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    fn occurs(texts: &[Vec<u32>], end: &[u32]) -> bool {
        end.is_empty() || texts.iter().any(|text| text.windows(end.len()).any(|window| window == end))
    }

    fn automaton(texts: &[Vec<u32>]) -> Automaton {
        let mut automaton = Automaton::default();
        for text in texts {
            text.iter().for_each(|token| automaton.push(*token));
            automaton.end_text();
        }
        automaton
    }

    proptest! {
        #[test]
        fn known_ends_and_their_followers_are_those_of_a_search(
            texts in prop::collection::vec(prop::collection::vec(0u32..4, 0..24), 1..4),
            query in prop::collection::vec(0u32..4, 0..24),
        ) {
            let automaton = automaton(&texts);
            let mut state = State::EMPTY;
            for end in 0..query.len() {
                state = automaton.follow(state, query[end]);
                let read = &query[..=end];
                let longest = (0..=read.len()).rev().find(|length| occurs(&texts, &read[read.len() - length..]));
                prop_assert_eq!(Some(state.length as usize), longest);
                let mut shorter = Some(state);
                while let Some(state) = shorter {
                    let known = &read[read.len() - state.length as usize..];
                    prop_assert_eq!(automaton.followers(state).collect::<Vec<_>>(), stated(&texts, known));
                    shorter = automaton.shorter(state);
                }
            }
        }

        #[test]
        fn the_repeated_end_is_the_longest_that_ended_before(text in prop::collection::vec(0u32..3, 1..40)) {
            let mut automaton = Automaton::default();
            for end in 1..=text.len() {
                automaton.push(text[end - 1]);
                let read = &text[..end];
                let before = [read[..end - 1].to_vec()];
                let longest = (0..end).rev().find(|length| occurs(&before, &read[end - length..]));
                let state = automaton.repeated_end();
                prop_assert_eq!(Some(state.length as usize), longest);
                let known = &read[end - state.length as usize..];
                prop_assert_eq!(automaton.followers(state).collect::<Vec<_>>(), stated(&[read.to_vec()], known));
            }
        }
    }
}
