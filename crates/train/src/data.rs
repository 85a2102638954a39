//! The training text as three token streams (articles, documentation, conversations), and windows
//! of them.

use cenote_base::prng::Prng;
use tokenizers::Tokenizer;

use crate::corpus::Document;
use crate::dialogue;
use crate::error::{Error, Result};
use crate::tokens::{BOS, EOS, encode};

/// Texts before tokenizing. Every document and conversation begins with `BOS` and ends with `EOS`.
pub struct Texts {
    /// The main text's articles, without the held-out end.
    pub articles: Vec<String>,
    /// Documentation, one long contiguous text per crate.
    pub documentation: Vec<String>,
    /// Conversations in the format of the chat template.
    pub conversations: Vec<String>,
    /// The end of the main text, unchanged and excluded from training.
    pub held_out: String,
}

impl Texts {
    /// Splits `main` at the first line end after `1 − held_out_share` of its bytes. Makes
    /// conversations from the first part and from `documents`.
    pub fn new(main: &str, documents: &[Document], held_out_share: f64, seed: u64) -> Result<Self> {
        if !(0.0..0.5).contains(&held_out_share) {
            return Err(Error::Flag(format!("--held-out {held_out_share} is not in 0.0..0.5")));
        }
        let mut cut = (main.len() as f64 * (1.0 - held_out_share)) as usize;
        while cut < main.len() && !(main.is_char_boundary(cut) && main[..cut].ends_with('\n')) {
            cut += 1;
        }
        let (train, held_out) = main.split_at(cut);
        let mut prng = Prng::new(seed);
        let mut articles = Vec::new();
        let mut conversations = Vec::new();
        for (title, text) in split_articles(train) {
            conversations.extend(dialogue::from_document(title, text, &mut prng));
            articles.push(format!("{BOS}{text}{EOS}"));
        }
        let mut documentation = Vec::<String>::new();
        let mut last = None;
        for document in documents {
            conversations.extend(dialogue::from_document(&document.name, &document.text, &mut prng));
            let key = (&document.name, &document.version);
            match documentation.last_mut() {
                Some(text) if last == Some(key) => {
                    text.truncate(text.len() - EOS.len());
                    *text += &format!("\n{}{EOS}", document.text);
                }
                _ => documentation.push(format!("{BOS}{}{EOS}", document.text)),
            }
            last = Some(key);
        }
        Ok(Self { articles, documentation, conversations, held_out: held_out.to_owned() })
    }

    /// All texts for training.
    pub fn training(&self) -> impl Iterator<Item = &str> + Send {
        self.articles.iter().chain(&self.documentation).chain(&self.conversations).map(String::as_str)
    }
}

/// Splits a text into titles and articles. WikiText marks an article by a line ` = Title = `; a
/// text without such lines is one article.
fn split_articles(text: &str) -> Vec<(&str, &str)> {
    let title = |line: &str| line.starts_with(" = ") && !line.starts_with(" = =") && line.trim_end().ends_with(" =");
    let mut starts = Vec::new();
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        if title(line) {
            starts.push((offset, line.trim_matches([' ', '=', '\n'])));
        }
        offset += line.len();
    }
    if starts.is_empty() {
        return vec![("this text", text)];
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([text.len()]);
    starts.iter().zip(ends).map(|((start, title), end)| (*title, &text[*start..end])).collect()
}

/// A token stream, and the weight with which windows are drawn from it.
struct Stream {
    tokens: Vec<u32>,
    share: f64,
}

/// The tokenized training text.
pub struct Streams {
    streams: Vec<Stream>,
    /// Probability that a window repeats its own beginning; see [`Streams::batch`].
    repeat_share: f64,
}

/// Input ids and the ids that follow them, `batch` windows concatenated.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch {
    /// Input of the model.
    pub ids: Vec<u32>,
    /// Next token of each input token.
    pub targets: Vec<u32>,
}

impl Streams {
    /// Tokenizes the texts. `shares` are the weights of articles, documentation and conversations,
    /// in any unit.
    pub fn new(texts: &Texts, tokenizer: &Tokenizer, shares: [f64; 3], repeat_share: f64) -> Result<Self> {
        let mut streams = Vec::new();
        for (texts, share) in [&texts.articles, &texts.documentation, &texts.conversations].into_iter().zip(shares) {
            let mut tokens = Vec::new();
            for text in texts {
                tokens.extend(encode(tokenizer, text)?);
            }
            let share = if tokens.is_empty() { 0.0 } else { share };
            streams.push(Stream { tokens, share });
        }
        if !(streams.iter().all(|stream| stream.share >= 0.0) && streams.iter().any(|stream| stream.share > 0.0)) {
            return Err(Error::Flag("no text has a share above zero: nothing to train on".into()));
        }
        Ok(Self { streams, repeat_share })
    }

    /// Number of tokens in each stream.
    pub fn lengths(&self) -> Vec<usize> {
        self.streams.iter().map(|stream| stream.tokens.len()).collect()
    }

    /// Share of each token among those that windows are drawn from.
    pub fn frequencies(&self, vocabulary: usize) -> Vec<f64> {
        let mut frequencies = vec![0.0; vocabulary];
        let all = self.streams.iter().map(|stream| stream.share).sum::<f64>();
        for stream in self.streams.iter().filter(|stream| stream.share > 0.0) {
            let each = stream.share / all / stream.tokens.len() as f64;
            stream.tokens.iter().for_each(|token| frequencies[*token as usize] += each);
        }
        frequencies
    }

    /// Draws `batch` windows of `length` contiguous tokens from random places. A stream shorter
    /// than a window wraps around.
    ///
    /// Some windows repeat a stretch of text up to their end. Only attention to the earlier copy
    /// predicts the later copies. These windows teach the model to look far back earlier in
    /// training than plain text would.
    pub fn batch(&self, batch: usize, length: usize, prng: &mut Prng) -> Batch {
        let total = self.streams.iter().map(|stream| stream.share).sum::<f64>();
        let mut made = Batch { ids: Vec::new(), targets: Vec::new() };
        for _ in 0..batch {
            let mut point = prng.next_f64() * total;
            let mut chosen = &self.streams[0].tokens;
            for stream in self.streams.iter().filter(|stream| stream.share > 0.0) {
                chosen = &stream.tokens;
                point -= stream.share;
                if point < 0.0 {
                    break;
                }
            }
            let start = prng.below(chosen.len().saturating_sub(length).max(1) as u64) as usize;
            let repeats = length >= 64 && prng.next_f64() < self.repeat_share;
            let period = if repeats { 16 + prng.below(length as u64 / 2) as usize } else { length + 1 };
            let token = |index: usize| chosen[(start + index % period) % chosen.len()];
            made.ids.extend((0..length).map(token));
            made.targets.extend((1..=length).map(token));
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: &str = " \n = One = \n \n First text .\n = = Part = = \n More .\n = Two = \n Second .\n Last line .\n";

    #[test]
    fn articles_split_at_titles_and_the_held_out_end_is_not_trained_on() {
        assert_eq!(split_articles(MAIN).iter().map(|(title, _)| *title).collect::<Vec<_>>(), ["One", "Two"]);
        let texts = Texts::new(MAIN, &[], 0.1, 1).unwrap();
        assert_eq!(texts.held_out, "");
        let texts = Texts::new(MAIN, &[], 0.2, 1).unwrap();
        assert_eq!(texts.held_out, " Last line .\n");
        assert!(texts.training().all(|text| !text.contains("Last line")));
        assert!(Texts::new(MAIN, &[], 1.5, 1).is_err());
    }

    #[test]
    fn targets_are_the_next_tokens_and_equal_seeds_give_equal_batches() {
        let stream = |from: u32, share| Stream { tokens: (from..from + 50).collect(), share };
        let streams = vec![stream(0, 1.0), stream(1000, 0.0), stream(2000, 1.0)];
        let streams = Streams { streams, repeat_share: 0.0 };
        let make = || streams.batch(8, 10, &mut Prng::new(3));
        let frequencies = streams.frequencies(2050);
        assert!((frequencies[0] - 0.01).abs() < 1e-12 && frequencies[1000] == 0.0 && frequencies[60] == 0.0);
        let batch = make();
        assert!(batch.ids.iter().zip(&batch.targets).all(|(id, target)| id + 1 == *target));
        assert!(batch.ids.iter().all(|id| !(1000..2000).contains(id)) && batch.ids.iter().any(|id| *id >= 2000));
        assert_eq!(batch, make());
    }

    #[test]
    fn a_repeating_window_has_a_period() {
        let streams = vec![Stream { tokens: (0..1000).collect(), share: 1.0 }];
        let batch = Streams { streams, repeat_share: 1.0 }.batch(1, 200, &mut Prng::new(3));
        let period = batch.ids.iter().skip(1).position(|id| *id == batch.ids[0]).unwrap() + 1;
        assert!((16..=116).contains(&period));
        assert!((period..200).all(|index| batch.ids[index] == batch.ids[index - period]));
        assert_eq!(batch.ids[1..], batch.targets[..199]);
    }
}
