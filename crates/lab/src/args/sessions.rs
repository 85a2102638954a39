//! Flags of `cenote-lab bench sessions`.

use super::sim::SessionArgs;
use cenote_base::units::ByteSize;
use cenote_console::args::{StudiedModelArgs, parse_seconds, positive};
use cenote_console::output::OutputArgs;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// A running server to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedUrl {
    /// Name in tables and plots.
    pub name: String,
    /// As in `http://127.0.0.1:8000`.
    pub url: String,
}

#[derive(Args, Debug)]
pub struct BenchSessionsArgs {
    /// Three sessions of four turns without think times, unless other flags say otherwise
    #[arg(long)]
    pub quick: bool,
    /// Sessions of agents, one line of JSON each
    #[arg(long, value_name = "FILE", help_heading = "Load")]
    pub trace: PathBuf,
    #[command(flatten)]
    pub drawn: SessionArgs,
    /// Seed of the draw, of the starts and of the tokens
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = super::seed(), help_heading = "Load")]
    pub seed: u64,
    /// Turns of a session, from the first [default: 20]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Load")]
    pub turns: Option<usize>,
    /// Tokens of prompt and answer; the session ends before a longer turn [default: what the servers take]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(32..), help_heading = "Load")]
    pub context: Option<u32>,
    /// Tokens per hash id, which stands for 64; below 1, some ids have none
    #[arg(long, value_name = "N", default_value = "2", value_parser = parse_scale, help_heading = "Load")]
    pub tokens_per_id: f64,
    /// Tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Load")]
    pub output_tokens: u32,
    /// Multiplies think times and the times between starts [default: 0.02]
    #[arg(long, value_name = "F", value_parser = parse_factor, help_heading = "Load")]
    pub think_scale: Option<f64>,
    /// Longest think time after that, in seconds
    #[arg(long, value_name = "S", default_value = "5", value_parser = parse_seconds, help_heading = "Load")]
    pub think_max: Duration,
    /// Sessions at a time; others wait [default: all that have started]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Load")]
    pub concurrency: Option<usize>,
    /// Running server with an OpenAI API, several are measured one after the other; ratios are of the
    /// first [default: `cenote serve` without a region, with one, with one too small, and that with L4]
    #[arg(long, value_name = "NAME=URL", value_parser = parse_url, help_heading = "Servers")]
    pub url: Vec<NamedUrl>,
    /// Longest time of a request, in seconds
    #[arg(long, value_name = "S", default_value = "120", value_parser = parse_seconds, help_heading = "Servers")]
    pub timeout: Duration,
    /// Compare all answers with those of the first server; a single one is asked twice
    #[arg(long, help_heading = "Servers")]
    pub check: bool,
    /// Tokens of a server's KV block [default: what it reports, else 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Servers")]
    pub block_tokens: Option<u32>,
    /// The command `cenote` [default: the one beside this program]
    #[arg(long, value_name = "FILE", conflicts_with = "url", help_heading = "Servers")]
    pub program: Option<PathBuf>,
    /// Bytes of the region that is large enough
    #[arg(long, value_name = "SIZE", default_value = "1GiB", conflicts_with = "url", help_heading = "Servers")]
    pub region_size: ByteSize,
    /// Bytes of the region that is too small, as a share of what the sessions published in the large one
    #[arg(
        long,
        value_name = "SHARE",
        default_value = "0.25",
        value_parser = parse_share,
        conflicts_with = "url",
        help_heading = "Servers"
    )]
    pub share: f64,
    /// Directory for L4, which may hold blocks of an earlier run [default: one that is removed afterwards]
    #[arg(long, value_name = "DIR", conflicts_with = "url", help_heading = "Servers")]
    pub cold_dir: Option<PathBuf>,
    #[command(flatten)]
    pub model: StudiedModelArgs,
    /// Write table and plots as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the plots as an SVG file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl BenchSessionsArgs {
    /// Turns of a session.
    pub fn turns(&self) -> usize {
        self.turns.unwrap_or(if self.quick { 4 } else { 20 })
    }

    /// Factor of think times.
    pub fn think_scale(&self) -> f64 {
        self.think_scale.unwrap_or(if self.quick { 0.0 } else { 0.02 })
    }

    /// The sessions to draw.
    pub fn sessions(&self) -> SessionArgs {
        let few = if self.quick { Some(3) } else { None };
        SessionArgs { sessions: self.drawn.sessions.or(few), ..self.drawn.clone() }
    }
}

fn parse_number(text: &str, low: f64, high: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ => Err(format!("must be a number from {low} to {high}")),
    }
}

fn parse_scale(text: &str) -> Result<f64, String> {
    parse_number(text, 0.01, 64.0)
}

fn parse_factor(text: &str) -> Result<f64, String> {
    parse_number(text, 0.0, 1000.0)
}

fn parse_share(text: &str) -> Result<f64, String> {
    parse_number(text, 0.01, 1.0)
}

fn parse_url(text: &str) -> Result<NamedUrl, String> {
    let is_url = |text: &str| text.starts_with("http://") || text.starts_with("https://");
    let named = |name: &str, url: &str| NamedUrl { name: name.to_owned(), url: url.trim_end_matches('/').to_owned() };
    match text.split_once('=') {
        _ if is_url(text) => Ok(named(text, text)),
        Some((name, url)) if is_url(url) && !name.is_empty() => Ok(named(name, url)),
        _ => Err("must be a URL, or NAME=URL, as in vllm=http://127.0.0.1:8000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_a_name_or_their_url() {
        let of = |text| parse_url(text).map(|one| (one.name, one.url));
        assert_eq!(of("vllm=http://h:1/"), Ok(("vllm".to_owned(), "http://h:1".to_owned())));
        let bare = "http://h:1/?a=http://b".to_owned();
        assert_eq!(of(&bare), Ok((bare.clone(), bare.clone())));
        assert!(of("=http://h").is_err() && of("h:1").is_err() && of("a=h:1").is_err());
    }

    #[test]
    fn factors_are_finite_and_within_bounds() {
        assert_eq!((parse_scale("0.5"), parse_factor("0")), (Ok(0.5), Ok(0.0)));
        for wrong in ["0", "-1", "nan", "inf", "65"] {
            assert!(parse_scale(wrong).is_err(), "{wrong}");
        }
        assert!(parse_share("1.5").is_err() && parse_factor("-0.1").is_err());
    }
}
