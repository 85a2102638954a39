//! Token selection from logits. Pure: token `n` of a request depends only on its logits, its
//! parameters and `(seed, n)`, so another worker continues a request with the same tokens.

use cenote_base::prng::Prng;
use cenote_base::{SamplingParams, TokenId};
use std::collections::BTreeMap;

/// Chooses output token number `position` (0: the first) of a request.
#[must_use]
pub fn sample(logits: &[f32], params: &SamplingParams, seed: u64, position: u64) -> TokenId {
    if params.temperature <= 0.0 || params.top_k == 1 {
        return greedy(logits);
    }
    let mut candidates = probabilities(logits, params);
    keep_top(&mut candidates, params);
    let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
    let mut left = Prng::at(seed, position).next_f64() * total;
    for (token, weight) in &candidates {
        left -= weight;
        if left < 0.0 {
            return *token;
        }
    }
    // Rounding may leave a remainder after the last candidate.
    candidates.last().map_or_else(|| greedy(logits), |(token, _)| *token)
}

/// The logits of the next token after bias and penalties, applied in vLLM's order. Tokens that are not
/// allowed have minus infinity.
#[must_use]
pub fn adjusted(logits: &[f32], params: &SamplingParams, prompt: &[TokenId], output: &[TokenId]) -> Vec<f32> {
    let mut logits = match &params.allowed_token_ids {
        None => logits.to_vec(),
        Some(allowed) => {
            let mut only = vec![f32::NEG_INFINITY; logits.len()];
            for &token in allowed {
                if let (Some(to), Some(from)) = (only.get_mut(token as usize), logits.get(token as usize)) {
                    *to = *from;
                }
            }
            only
        }
    };
    for (&token, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit += bias;
        }
    }
    let mut counts: BTreeMap<TokenId, f32> = prompt.iter().map(|&token| (token, 0.0)).collect();
    output.iter().for_each(|&token| *counts.entry(token).or_default() += 1.0);
    for (token, count) in counts {
        let Some(logit) = logits.get_mut(token as usize) else { continue };
        if *logit > 0.0 {
            *logit /= params.repetition_penalty;
        } else {
            *logit *= params.repetition_penalty;
        }
        if count > 0.0 {
            *logit -= params.frequency_penalty * count + params.presence_penalty;
        }
    }
    logits
}

/// Log-probabilities of `token` and of the `top` likeliest tokens. Equal logits are ordered by
/// token id.
#[must_use]
pub fn logprobs(logits: &[f32], token: TokenId, top: usize) -> (f32, Vec<(TokenId, f32)>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().filter(|logit| !logit.is_nan()).map(|&logit| f64::from(logit - max).exp()).sum();
    let of = |logit: f32| (f64::from(logit - max) - sum.ln()) as f32;
    let mut likeliest: Vec<(TokenId, f32)> =
        (0..).zip(logits.iter().copied()).filter(|(_, logit)| !logit.is_nan()).collect();
    let by_logit = |one: &(TokenId, f32), other: &(TokenId, f32)| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0));
    if top < likeliest.len() {
        likeliest.select_nth_unstable_by(top, by_logit);
        likeliest.truncate(top);
    }
    likeliest.sort_unstable_by(by_logit);
    let chosen = logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| of(logit));
    (chosen, likeliest.into_iter().map(|(token, logit)| (token, of(logit))).collect())
}

/// The token with the largest logit. Ties go to the lowest id; NaN never wins.
#[must_use]
pub fn greedy(logits: &[f32]) -> TokenId {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in (0..).zip(logits) {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    best.0
}

/// Unnormalised probabilities at `params.temperature`, in token order.
fn probabilities(logits: &[f32], params: &SamplingParams) -> Vec<(TokenId, f64)> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let temperature = f64::from(params.temperature);
    (0..)
        .zip(logits)
        .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
        .map(|(token, &logit)| (token, ((f64::from(logit) - f64::from(max)) / temperature).exp()))
        .collect()
}

/// Keeps the `top_k` likeliest candidates, then the smallest subset that reaches `top_p` (vLLM's
/// order).
fn keep_top(candidates: &mut Vec<(TokenId, f64)>, params: &SamplingParams) {
    let top_k = params.top_k as usize;
    if top_k == 0 && params.top_p >= 1.0 {
        return;
    }
    // Equal weights are ordered by id, so that the choice is the same on every machine.
    let by_weight = |a: &(TokenId, f64), b: &(TokenId, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if top_k > 0 && top_k < candidates.len() {
        candidates.select_nth_unstable_by(top_k, by_weight);
        candidates.truncate(top_k);
    }
    candidates.sort_unstable_by(by_weight);
    if params.top_p < 1.0 {
        let enough = f64::from(params.top_p) * candidates.iter().map(|(_, weight)| weight).sum::<f64>();
        let mut sum = 0.0;
        let kept = candidates.iter().take_while(|(_, weight)| {
            let wanted = sum < enough;
            sum += weight;
            wanted
        });
        let kept = kept.count().max(1);
        candidates.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(temperature: f32, top_k: u32, top_p: f32) -> SamplingParams {
        SamplingParams { temperature, top_k, top_p, ..SamplingParams::default() }
    }

    /// Share of each of the `logits.len()` tokens over many draws.
    fn shares(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
        const DRAWS: u64 = 20_000;
        let mut counts = vec![0.0; logits.len()];
        for position in 0..DRAWS {
            counts[sample(logits, params, 42, position) as usize] += 1.0 / DRAWS as f64;
        }
        counts
    }

    fn close(left: &[f64], right: &[f64]) -> bool {
        left.iter().zip(right).all(|(a, b)| (a - b).abs() < 0.015)
    }

    #[test]
    fn penalties_apply_to_seen_tokens_and_bias_to_listed_ones() {
        let logits = [1.0, -1.0, 2.0, 0.5];
        let plain = SamplingParams::default();
        assert!(!plain.changes_logits());
        assert_eq!(adjusted(&logits, &plain, &[0, 1], &[2, 2, 3]), logits);
        let with = |change: &dyn Fn(&mut SamplingParams)| {
            let mut params = plain.clone();
            change(&mut params);
            assert!(params.changes_logits());
            adjusted(&logits, &params, &[0, 1], &[2, 2, 3])
        };
        assert_eq!(with(&|params| params.frequency_penalty = 0.25), [1.0, -1.0, 1.5, 0.25]);
        assert_eq!(with(&|params| params.presence_penalty = -0.5), [1.0, -1.0, 2.5, 1.0]);
        assert_eq!(with(&|params| params.repetition_penalty = 2.0), [0.5, -2.0, 1.0, 0.25], "the prompt counts, too");
        // A token outside the vocabulary changes nothing.
        assert_eq!(with(&|params| params.logit_bias = [(1, 3.0), (9, 1.0)].into()), [1.0, 2.0, 2.0, 0.5]);
        let all = with(&|params| {
            params.logit_bias = [(1, 3.0)].into();
            params.repetition_penalty = 2.0;
        });
        assert_eq!(all, [0.5, 1.0, 1.0, 0.25], "the penalty applies after the bias");
    }

    #[test]
    fn only_allowed_tokens_are_chosen() {
        let logits = [9.0, 1.0, 8.0, 0.5];
        for (temperature, top_k, top_p) in [(0.0, 0, 1.0), (1.0, 0, 1.0), (2.0, 3, 0.99)] {
            let mut params = params(temperature, top_k, top_p);
            params.allowed_token_ids = Some(vec![1, 3, 99]);
            params.logit_bias = [(0, 100.0)].into();
            assert!(params.changes_logits());
            let adjusted = adjusted(&logits, &params, &[0], &[2]);
            let chosen: Vec<TokenId> = (0..500).map(|position| sample(&adjusted, &params, 7, position)).collect();
            assert!(chosen.iter().all(|token| [1, 3].contains(token)), "{chosen:?}");
            assert_eq!(chosen.contains(&3), temperature > 0.0);
        }
    }

    #[test]
    fn logprobs_are_those_of_the_softmax() {
        let logits = [0.0, 2.0_f32.ln(), f32::NAN, 2.0_f32.ln(), 3.0_f32.ln()];
        let ln = |share: f32| (share / 8.0).ln();
        let near = |got: f32, wanted: f32| assert!((got - wanted).abs() < 1e-6, "{got} {wanted}");
        let (chosen, top) = logprobs(&logits, 0, 3);
        near(chosen, ln(1.0));
        assert_eq!(top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [4, 1, 3]);
        top.iter().zip([3.0, 2.0, 2.0]).for_each(|((_, got), share)| near(*got, ln(share)));
        assert_eq!(logprobs(&logits, 0, 0).1, []);
        assert_eq!(logprobs(&logits, 0, 99).1.len(), 4);
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_equal_logits() {
        assert_eq!(greedy(&[1.0, 3.0, 3.0, f32::NAN]), 1);
        assert_eq!(greedy(&[f32::NAN, f32::NEG_INFINITY]), 0);
        assert_eq!(sample(&[1.0, 3.0, 3.0], &params(0.0, 0, 1.0), 1, 1), 1);
        assert_eq!(sample(&[1.0, 3.0, 3.0], &params(1.0, 1, 1.0), 1, 1), 1);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.5_f32, 0.3, 0.15, 0.05].map(f32::ln);
        assert!(close(&shares(&logits, &params(1.0, 0, 1.0)), &[0.5, 0.3, 0.15, 0.05]));
        let squares = [0.25, 0.09, 0.0225, 0.0025].map(|share: f64| share / 0.365);
        assert!(close(&shares(&logits, &params(0.5, 0, 1.0)), &squares));
        assert!(close(&shares(&logits, &params(1.0, 2, 1.0)), &[0.625, 0.375, 0.0, 0.0]));
        assert!(close(&shares(&logits, &params(1.0, 0, 0.79)), &[0.625, 0.375, 0.0, 0.0]));
        assert!(close(&shares(&logits, &params(1.0, 0, 0.1)), &[1.0, 0.0, 0.0, 0.0]));
        assert!(close(&shares(&logits, &params(1.0, 3, 0.9)), &[0.526, 0.316, 0.158, 0.0]));
    }

    #[test]
    fn a_draw_depends_on_seed_and_position_only() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
        let at = |seed, position| sample(&logits, &params(1.0, 0, 1.0), seed, position);
        assert_eq!(at(1, 5), at(1, 5));
        assert!((0..20).any(|position| at(1, position) != at(2, position)));
        assert!((0..20).any(|position| at(1, position) != at(1, position + 1)));
    }
}
