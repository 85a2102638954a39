//! What looks at the region and its engines all the time: pages of metrics, and `cenote pool explain`.

use super::engines::Place;
use super::load::{Prompt, SALTS};
use super::tally::Tally;
use crate::commands::client::Client;
use cenote_base::prng::Prng;
use cenote_console::failure::Failure;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::watch;

/// Between two rounds.
const PAUSE: Duration = Duration::from_secs(1);
/// For one page or one explanation.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Where an engine is, and whether kills may end a read of its page.
pub struct Watched {
    pub name: &'static str,
    pub dies: bool,
    pub place: watch::Receiver<Place>,
}

/// Reads pages and explains prompts until it shall stop.
pub struct Watcher {
    /// With the exporter of the region.
    pub watched: Vec<Watched>,
    pub program: PathBuf,
    pub region: String,
    /// The file of the prompt to explain.
    pub prompt: PathBuf,
    pub seed: u64,
    pub prng: Prng,
    pub tally: Arc<Tally>,
    pub stop: watch::Receiver<bool>,
    /// The exporter's last page.
    pub page: Arc<Mutex<BTreeMap<String, f64>>>,
    pub exporter: &'static str,
}

impl Watcher {
    pub async fn run(mut self) -> Result<(), Failure> {
        let mut stop = self.stop.clone();
        loop {
            for watched in &self.watched {
                self.scrape(watched).await?;
            }
            self.explain().await?;
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn scrape(&self, watched: &Watched) -> Result<(), Failure> {
        let place = watched.place.borrow().clone();
        let Place::At { url, .. } = &place else { return Ok(()) };
        match Client::new(url, TIMEOUT)?.get("/metrics").await {
            Ok(text) => {
                self.tally.count(|counts| counts.scrapes += 1);
                if watched.name == self.exporter {
                    *self.page.lock().unwrap_or_else(PoisonError::into_inner) = values(&text);
                }
            }
            Err(_) if watched.dies => {}
            Err(failure) => self.tally.fail(format!("{}: metrics: {failure}", watched.name)),
        }
        Ok(())
    }

    async fn explain(&mut self) -> Result<(), Failure> {
        let tokens = format!("{:?}", Prompt::draw(&mut self.prng).tokens(self.seed));
        std::fs::write(&self.prompt, tokens)?;
        let mut command = Command::new(&self.program);
        command.args(["pool", "explain", "--json", "--region", &self.region, "--tokens"]).arg(&self.prompt);
        if let Some(salt) = SALTS[self.prng.below(SALTS.len() as u64) as usize] {
            command.args(["--cache-salt", salt]);
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(TIMEOUT, command.output()).await {
            Err(_) => self.tally.hang(format!("pool explain did not end within {} s", TIMEOUT.as_secs())),
            Ok(output) => {
                let output = output?;
                let words = String::from_utf8_lossy(&output.stderr);
                if output.status.success() && output.stdout.starts_with(b"{") {
                    self.tally.count(|counts| counts.explained += 1);
                } else if !words.contains("no model has used the region") {
                    self.tally.fail(format!("pool explain: {}: {}", output.status, words.trim()));
                }
            }
        }
        Ok(())
    }
}

/// Values of a page of metrics by name, summed over labels.
fn values(text: &str) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let name = name.split('{').next().unwrap_or_default();
        if let Ok(value) = value.parse::<f64>() {
            *values.entry(name.to_owned()).or_default() += value;
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_summed_over_labels() {
        let text = "# HELP a b\na{host=\"0\"} 2\na{host=\"1, 2\"} 3\nb_total 4\n# EOF\n";
        assert_eq!(values(text), [("a".to_owned(), 5.0), ("b_total".to_owned(), 4.0)].into());
    }
}
