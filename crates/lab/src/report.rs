//! Renders an evaluation as one HTML file: a table, and a plot of divergence over bits.

use crate::plot::{self, Axis, Scale, Series};
use cenote_quality::evaluate::{Evaluation, Quality};

/// A value with its standard error, as words. The error of one window is unknown.
#[must_use]
pub fn with_error(value: &str, error: f64) -> String {
    if error.is_nan() { format!("{value} ± —") } else { format!("{value} ± {error:.3}") }
}

/// The share of reads that see raw KV, as words.
#[must_use]
pub fn raw_reads(evaluation: &Evaluation) -> String {
    let what = if evaluation.step == 1 { "each token is encoded at once" } else { "whole blocks are encoded" };
    format!("{what}, so {:.1} % of reads see raw KV", 100.0 * evaluation.raw_reads)
}

/// The HTML file.
#[must_use]
pub fn html(model: &str, evaluation: &Evaluation) -> String {
    let Evaluation { windows, context, block_tokens, perplexity, perplexity_se, codecs, .. } = evaluation;
    let header =
        ["codec", "bits per value", "ratio", "KL × 1000", "perplexity", "loss %", "same token %", "K error", "V error"];
    let row = |quality: &Quality| {
        vec![
            quality.codec.clone(),
            format!("{:.3}", quality.bits),
            format!("{:.2}", quality.ratio),
            with_error(&format!("{:.3}", 1e3 * quality.harm.kl), 1e3 * quality.harm.kl_se),
            format!("{:.3}", quality.harm.perplexity),
            with_error(&format!("{:+.3}", quality.harm.loss_percent), quality.harm.loss_percent_se),
            format!("{:.2}", 100.0 * quality.harm.greedy_agreement),
            format!("{:.2e}", quality.k_mse),
            format!("{:.2e}", quality.v_mse),
        ]
    };
    let body = format!(
        "<h1>KV codecs on {}</h1>\n<p>{windows} windows of {context} tokens, blocks of {block_tokens}; {}. Perplexity without a codec: \
         {}.</p>\n{}\n{}",
        plot::escaped(model),
        raw_reads(evaluation),
        with_error(&format!("{perplexity:.3}"), *perplexity_se),
        divergence(codecs),
        plot::table(&header, codecs.iter().map(row))
    );
    plot::page("KV codecs", &body)
}

/// Name of a codec without its settings.
fn family(quality: &Quality) -> &str {
    quality.codec.split([':', ' ', '+']).next().unwrap_or_default()
}

/// Plot of divergence (logarithmic) over bits per value.
fn divergence(codecs: &[Quality]) -> String {
    let shown = || codecs.iter().filter(|quality| quality.bits <= 9.0);
    let mut families: Vec<&str> = Vec::new();
    for quality in shown() {
        if !families.contains(&family(quality)) {
            families.push(family(quality));
        }
    }
    let point = |quality: &Quality| {
        let told = format!("{}: {:.3} bits, KL {:.2e}", quality.codec, quality.bits, quality.harm.kl);
        (quality.bits, quality.harm.kl, told)
    };
    let series = families.iter().map(|name| Series {
        name: (*name).to_owned(),
        points: shown().filter(|quality| family(quality) == *name).map(point).collect(),
    });
    let x_axis = Axis { label: "bits per value", scale: Scale::Linear };
    let y_axis = Axis { label: "KL, nats per token", scale: Scale::Log };
    plot::plot("KL over bits", x_axis, y_axis, &series.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_error_is_not_zero() {
        assert_eq!(with_error("+1.977", f64::NAN), "+1.977 ± —");
        assert_eq!(with_error("1.977", 0.25), "1.977 ± 0.250");
    }
}
