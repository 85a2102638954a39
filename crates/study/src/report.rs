//! An evaluation as one HTML file: the table, and divergence over bits.

use crate::evaluate::{Evaluation, Quality};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const MARGIN: f64 = 56.0;
const COLOURS: [&str; 7] = ["#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#c2255c", "#868e96", "#1864ab"];

/// The file.
#[must_use]
pub fn html(model: &str, evaluation: &Evaluation) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>KV codecs</title>\n<style>body{font:15px/1.5 \
         system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#212529}table{border-collapse:collapse;\
         width:100%}td,th{padding:.2rem .5rem;text-align:right;border-bottom:1px solid #dee2e6}td:first-child,\
         th:first-child{text-align:left}svg{width:100%;height:auto}</style>\n",
    );
    let Evaluation { windows, context, block_tokens, perplexity, perplexity_se, codecs } = evaluation;
    let _ = write!(
        out,
        "<h1>KV codecs on {}</h1>\n<p>{windows} windows of {context} tokens, blocks of {block_tokens}. Perplexity without a codec: \
         {perplexity:.3} ± {perplexity_se:.3}.</p>\n{}\n<table><tr><th>codec</th><th>bits a value</th><th>ratio</th>\
         <th>KL × 1000</th><th>perplexity</th><th>loss %</th><th>same token %</th><th>K error</th><th>V error</th></tr>\n",
        escaped(model),
        plot(codecs)
    );
    for quality in codecs {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{:.3}</td><td>{:.2}</td><td>{:.3} ± {:.3}</td><td>{:.3}</td><td>{:+.3} ± {:.3}</td>\
             <td>{:.2}</td><td>{:.2e}</td><td>{:.2e}</td></tr>",
            escaped(&quality.codec),
            quality.bits,
            quality.ratio,
            1e3 * quality.kl,
            1e3 * quality.kl_se,
            quality.perplexity,
            quality.loss_percent,
            quality.loss_percent_se,
            100.0 * quality.greedy_agreement,
            quality.k_mse,
            quality.v_mse
        );
    }
    out + "</table></html>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// What codecs of one kind are called before their settings.
fn family(quality: &Quality) -> &str {
    quality.codec.split([':', ' ', '+']).next().unwrap_or_default()
}

/// Divergence, by powers of ten, over bits a value.
fn plot(codecs: &[Quality]) -> String {
    let shown: Vec<&Quality> = codecs.iter().filter(|quality| quality.kl > 0.0 && quality.bits <= 9.0).collect();
    if shown.is_empty() {
        return String::new();
    }
    let extent = |of: &dyn Fn(&Quality) -> f64| {
        let values = shown.iter().map(|quality| of(quality));
        (values.clone().fold(f64::INFINITY, f64::min).floor(), values.fold(f64::NEG_INFINITY, f64::max).ceil())
    };
    let (bits, decades) = (extent(&|quality| quality.bits), extent(&|quality| quality.kl.log10()));
    let x = |value: f64| MARGIN + (value - bits.0) / (bits.1 - bits.0).max(1.0) * (WIDTH - 2.0 * MARGIN);
    let y =
        |value: f64| HEIGHT - MARGIN - (value - decades.0) / (decades.1 - decades.0).max(1.0) * (HEIGHT - 2.0 * MARGIN);
    let mut out =
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-size=\"12\" role=\"img\" aria-label=\"KL over bits\">\n");
    let mut line = |from: (f64, f64), to: (f64, f64), label: &str, at: (f64, f64), anchor: &str| {
        let _ = writeln!(
            out,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#dee2e6\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"{anchor}\">{label}</text>",
            from.0, from.1, to.0, to.1, at.0, at.1
        );
    };
    for bit in bits.0 as i64..=bits.1 as i64 {
        let at = x(bit as f64);
        line((at, MARGIN), (at, HEIGHT - MARGIN), &bit.to_string(), (at, HEIGHT - MARGIN + 18.0), "middle");
    }
    for decade in decades.0 as i64..=decades.1 as i64 {
        let at = y(decade as f64);
        line((MARGIN, at), (WIDTH - MARGIN, at), &format!("1e{decade}"), (MARGIN - 8.0, at + 4.0), "end");
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">bits a value</text><text x=\"{MARGIN}\" y=\"{:.1}\">KL, nats a \
         token</text>",
        WIDTH / 2.0,
        HEIGHT - 14.0,
        MARGIN - 16.0
    );
    let mut families: Vec<&str> = Vec::new();
    for quality in &shown {
        if !families.contains(&family(quality)) {
            families.push(family(quality));
        }
    }
    for (index, name) in families.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut members: Vec<&&Quality> = shown.iter().filter(|quality| family(quality) == *name).collect();
        members.sort_by(|a, b| a.bits.total_cmp(&b.bits));
        let points: Vec<(f64, f64)> = members.iter().map(|quality| (x(quality.bits), y(quality.kl.log10()))).collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(out, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>", path.join(" "));
        for ((x, y), quality) in points.iter().zip(&members) {
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"><title>{}: {:.3} bits, KL {:.2e}</title></circle>",
                escaped(&quality.codec),
                quality.bits,
                quality.kl
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" text-anchor=\"end\">{}</text>",
            WIDTH - MARGIN,
            MARGIN + 16.0 * index as f64,
            escaped(name)
        );
    }
    out + "</svg>"
}
