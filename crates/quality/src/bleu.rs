//! BLEU of answers against reference answers (Papineni et al., ACL 2002).
//!
//! Words are tokens, so no second tokenizer decides. Counts are summed over all answers before
//! precisions are formed, as the paper does for a corpus. There is no smoothing: if no four tokens in
//! a row agree anywhere, BLEU is 0.

use std::collections::HashMap;

/// The longest n-gram.
const LONGEST: usize = 4;

/// BLEU of `answers`, one reference each, from 0 to 100. `None`: no answer has a token.
///
/// # Panics
/// The numbers of answers and references differ.
#[must_use]
pub fn bleu(answers: &[Vec<u32>], references: &[Vec<u32>]) -> Option<f64> {
    assert_eq!(answers.len(), references.len(), "each answer has a reference");
    if answers.iter().all(Vec::is_empty) {
        return None;
    }
    let mut logarithms = 0.0;
    for n in 1..=LONGEST {
        let (mut matched, mut total) = (0, 0);
        for (answer, reference) in answers.iter().zip(references) {
            let known = counts(reference, n);
            for (gram, count) in counts(answer, n) {
                matched += count.min(known.get(gram).copied().unwrap_or(0));
                total += count;
            }
        }
        if matched == 0 {
            return Some(0.0);
        }
        logarithms += (f64::from(matched) / f64::from(total)).ln() / LONGEST as f64;
    }
    let length = |all: &[Vec<u32>]| all.iter().map(Vec::len).sum::<usize>() as f64;
    let brevity = (1.0 - length(references) / length(answers)).min(0.0);
    Some(100.0 * (brevity + logarithms).exp())
}

fn counts(tokens: &[u32], n: usize) -> HashMap<&[u32], u32> {
    let mut counts = HashMap::new();
    for gram in tokens.windows(n) {
        *counts.entry(gram).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {

    fn bleu(answers: &[Vec<u32>], references: &[Vec<u32>]) -> f64 {
        super::bleu(answers, references).expect("answers with tokens")
    }

    #[test]
    fn equal_answers_have_a_hundred_and_foreign_ones_nothing() {
        let answers = [vec![1, 2, 3, 4, 5], vec![9, 8, 7, 6]];
        assert!((bleu(&answers, &answers) - 100.0).abs() < 1e-9);
        assert_eq!(bleu(&answers, &[vec![11, 12, 13, 14, 15], vec![16; 4]]), 0.0);
    }

    #[test]
    fn no_answers_have_no_score() {
        assert_eq!(super::bleu(&[], &[]), None);
        assert_eq!(super::bleu(&[Vec::new()], &[vec![1]]), None);
    }

    #[test]
    fn precisions_are_clipped_and_multiplied() {
        // Of 8 tokens 7 agree, of 7 pairs 5, of 6 triples 4, of 5 quadruples 3.
        let (answer, reference) = (vec![1, 2, 3, 4, 5, 6, 9, 8], vec![1, 2, 3, 4, 5, 6, 7, 8]);
        let expected = (7.0 / 8.0 * 5.0 / 7.0 * 4.0 / 6.0 * 3.0 / 5.0_f64).powf(0.25) * 100.0;
        assert!((bleu(&[answer], std::slice::from_ref(&reference)) - expected).abs() < 1e-9);
        // A shorter answer without errors pays for its brevity only.
        let expected = 100.0 * (1.0 - 8.0 / 5.0_f64).exp();
        assert!((bleu(&[vec![1, 2, 3, 4, 5]], &[reference]) - expected).abs() < 1e-9);
        // A repeated token counts once if the reference has it once.
        assert_eq!(bleu(&[vec![1; 8]], &[vec![1, 2, 3, 4]]), 0.0);
    }
}
