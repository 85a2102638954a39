//! Converts documents into question-and-answer conversations. They train the chat template's
//! special tokens, and teach that an answer ends where its paragraph ends. Questions follow fixed
//! patterns; answers are paragraphs of the documents.

use cenote_base::prng::Prng;

use crate::tokens::{ASSISTANT, BOS, EOS, SYSTEM, USER};

/// Accepted length of an answer in bytes; other paragraphs make poor turns.
const ANSWER_BYTES: std::ops::RangeInclusive<usize> = 60..=1200;

const QUESTIONS: [&str; 6] = [
    "What is {}?",
    "Tell me about {}.",
    "Can you explain {}?",
    "What do you know about {}?",
    "Please describe {}.",
    "I would like to read about {}.",
];

const SYSTEM_LINES: [&str; 3] = [
    "You are a helpful assistant.",
    "Answer the user's question in plain words.",
    "You know the documentation. Be brief.",
];

/// A question and its answer.
type Turn = (String, String);

/// Conversations of one to four turns from a document called `title`; empty if no section
/// qualifies.
pub fn from_document(title: &str, text: &str, prng: &mut Prng) -> Vec<String> {
    let turns = sections(title, text, prng);
    let mut conversations = Vec::new();
    let mut rest = turns.as_slice();
    while !rest.is_empty() {
        let count = (1 + prng.below(4) as usize).min(rest.len());
        let (these, later) = rest.split_at(count);
        conversations.push(render(these, prng));
        rest = later;
    }
    conversations
}

/// Renders turns to the same bytes as the `chat_template` of `tokenizer_config.json`.
fn render(turns: &[Turn], prng: &mut Prng) -> String {
    let mut text = BOS.to_owned();
    if prng.below(2) == 0 {
        text += &format!("{SYSTEM}\n{}{EOS}", SYSTEM_LINES[prng.below(SYSTEM_LINES.len() as u64) as usize]);
    }
    for (question, answer) in turns {
        text += &format!("{USER}\n{question}{EOS}{ASSISTANT}\n{answer}{EOS}");
    }
    text
}

/// Pairs each heading with the first paragraph below it. Supports Markdown (`## Name`) and WikiText
/// (`= = Name = =`) headings.
fn sections(title: &str, text: &str, prng: &mut Prng) -> Vec<Turn> {
    let mut turns = Vec::new();
    let mut subject = Some(title.to_owned());
    let mut in_code = false;
    for paragraph in Paragraphs(text) {
        let first = paragraph.lines().next().unwrap_or_default().trim();
        in_code ^= paragraph.matches("```").count() % 2 == 1;
        if let Some(heading) = heading(first) {
            subject = Some(if heading == title { title.to_owned() } else { format!("{heading} in {title}") });
        } else if !in_code
            && !paragraph.contains("```")
            && ANSWER_BYTES.contains(&paragraph.len())
            && let Some(subject) = subject.take()
        {
            let question = QUESTIONS[prng.below(QUESTIONS.len() as u64) as usize].replace("{}", &subject);
            turns.push((question, paragraph.trim().to_owned()));
        }
    }
    turns
}

fn heading(line: &str) -> Option<String> {
    let markdown = line.starts_with('#') && !line.starts_with("#[") && !line.starts_with("#!");
    let wikitext = line.starts_with("= ") && line.ends_with(" =");
    let name = line.trim_matches(|character| character == '#' || character == '=' || character == ' ');
    ((markdown || wikitext) && !name.is_empty() && name.len() < 80).then(|| name.to_owned())
}

/// Paragraphs separated by empty lines. A heading line is a paragraph of its own, and WikiText's
/// paragraphs are single lines.
struct Paragraphs<'a>(&'a str);

impl<'a> Iterator for Paragraphs<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start_matches(['\n', ' ']);
        if text.is_empty() {
            return None;
        }
        let mut end = 0;
        for line in text.split_inclusive('\n') {
            let alone = heading(line.trim()).is_some();
            if end > 0 && (alone || line.trim().is_empty()) {
                break;
            }
            end += line.len();
            if alone {
                break;
            }
        }
        let (paragraph, rest) = text.split_at(end);
        self.0 = rest;
        Some(paragraph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_becomes_a_question_and_its_paragraph_the_answer() {
        let answer = "A region is the mapped bytes that every participant of a host shares with the others.";
        let text = format!("# Region\n{answer}\n\n```rust\nlet a = 1;\n```\n");
        let conversations = from_document("demo", &text, &mut Prng::new(1));
        assert_eq!(conversations.len(), 1);
        assert!(conversations[0].contains("Region in demo"), "{}", conversations[0]);
        assert!(conversations[0].ends_with(&format!("{ASSISTANT}\n{answer}{EOS}")));
    }

    #[test]
    fn wikitext_headings_are_recognised() {
        assert_eq!(heading("= = Early life = =").as_deref(), Some("Early life"));
        assert_eq!(heading("a = b"), None);
    }
}
