//! Stop texts, which may span several tokens.

/// Searches generated text for stop texts.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text held back: the longest suffix that may begin a stop text.
    held: String,
}

/// Result of [`StopMatcher::push`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Text that is final: no stop text can begin in it.
    pub text: String,
    /// Whether a stop text was found. `text` then ends before the stop text.
    pub stopped: bool,
}

impl StopMatcher {
    /// Creates a matcher for `stops`; empty stop texts are ignored.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Appends text. The stop text that ends first wins, so the result does not depend on the token
    /// boundaries.
    pub fn push(&mut self, text: &str) -> Passed {
        self.held.push_str(text);
        let first = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|begin| (begin + stop.len(), begin)))
            .min();
        if let Some((_, begin)) = first {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(begin);
            return Passed { text, stopped: true };
        }
        let tail = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - tail);
        Passed { text: std::mem::replace(&mut self.held, kept), stopped: false }
    }

    /// Returns the text held back, when generation ends without a complete stop text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length in bytes of the longest suffix of `text` that is a proper prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    (1..=most).rev().find(|&n| stop.is_char_boundary(n) && text.ends_with(&stop[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(&stops.iter().map(|stop| (*stop).to_owned()).collect::<Vec<_>>());
        let mut all = String::new();
        for piece in pieces {
            let passed = matcher.push(piece);
            all.push_str(&passed.text);
            if passed.stopped {
                return (all, true);
            }
        }
        (all + &matcher.finish(), false)
    }

    #[test]
    fn a_stop_text_may_cross_pieces() {
        assert_eq!(run(&["END"], &["one E", "N", "Dtwo"]), ("one ".to_owned(), true));
        assert_eq!(run(&["END"], &["one E", "NE", "ND"]), ("one EN".to_owned(), true));
        assert_eq!(run(&["END"], &["one EN"]), ("one EN".to_owned(), false));
        assert_eq!(run(&["", "ü"], &["grün"]), ("gr".to_owned(), true));
        assert_eq!(run(&["abc", "b"], &["xabc"]), ("xa".to_owned(), true));
    }

    #[test]
    fn text_is_held_only_while_it_may_begin_a_stop_text() {
        let mut matcher = StopMatcher::new(&["\n\n".to_owned()]);
        assert_eq!(matcher.push("line").text, "line");
        assert_eq!(matcher.push("\n").text, "");
        assert_eq!(matcher.push("next").text, "\nnext");
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_piece_boundaries(text in "[abé]{0,24}", stops in prop::collection::vec("[abé]{1,4}", 0..3), cuts in prop::collection::vec(0_usize..24, 0..6)) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let chars: Vec<char> = text.chars().collect();
            let mut ends: Vec<usize> = cuts.into_iter().map(|cut| cut.min(chars.len())).chain([chars.len()]).collect();
            ends.sort_unstable();
            let mut begin = 0;
            let pieces: Vec<String> = ends.into_iter().map(|end| {
                let piece = chars[begin..end].iter().collect();
                begin = end;
                piece
            }).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            // Definition: the text before the stop text that ends first.
            let first = (0..=text.len()).filter(|end| text.is_char_boundary(*end)).find_map(|end| {
                stops.iter().filter(|stop| text[..end].ends_with(**stop)).map(|stop| end - stop.len()).min()
            });
            let want = first.map_or((text.clone(), false), |begin| (text[..begin].to_owned(), true));
            prop_assert_eq!(run(&stops, &pieces), want);
        }
    }
}
