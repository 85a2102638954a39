//! `cenote demo`: a prefill and a decode worker on one region, queried over HTTP like any server.
//!
//! Each prompt is sent three times: without the region, cold (its blocks are not in the region) and
//! warm (all of them are). The three alternate, so that load from other programs affects all alike.
//! Then all prompts are sent at once. The greedy answers must be the same every time.

use super::serve::Workers;
use crate::args::{DemoArgs, WorkerSettings};
use cenote_base::{Clock, Engine, TokenId};
use cenote_console::args::{EngineArgs, WatchArgs};
use cenote_console::demo_model;
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::measure::{BenchRow, bench_table, percentiles};
use cenote_console::output::{self, wrapped};
use cenote_console::region::{TemporaryRegion, own_region_bytes};
use cenote_serve::{AppState, Grace, HttpConfig};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

const START_TIMEOUT: Duration = Duration::from_secs(120);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// A region with room for the demo's prompts many times over.
const DEMO_REGION_BYTES: u64 = 512 << 20;
/// A prompt of more than a block, so that its second answer finds some of it.
const NEXT_PROMPT: &str =
    "The cave lies at the foot of a limestone cliff, and only a boat can reach its entrance when the tide is low";

#[derive(Serialize)]
struct Report {
    model: String,
    prompt_tokens: u64,
    cached_tokens: u64,
    ttft_no_pool_ms_p50: f64,
    ttft_cold_ms_p50: f64,
    ttft_warm_ms_p50: f64,
    outputs_equal: bool,
    output: String,
    front_pid: u32,
    worker_pids: Vec<u32>,
    region: String,
    rows: Vec<BenchRow>,
}

pub fn run(args: &DemoArgs) -> Result<ExitCode, Failure> {
    if let Some(settings) = &args.engine.cold {
        // Its second run would find the prompts that it must compute.
        return Err(Failure::new(format!("--cold {}: the demo's prompts must be new", settings.place))
            .hint("leave --cold and CENOTE_COLD out; `cenote serve --cold` keeps blocks"));
    }
    let region = TemporaryRegion::until_signal("demo", own_region_bytes().min(DEMO_REGION_BYTES))?;
    let dir = engine::model_dir(&args.engine)?;
    let prompts = prompts(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let spinner = output::spinner("starting a prefill worker and a decode worker");
        let settings = WorkerSettings {
            engine: EngineArgs { model: Some(dir), ..args.engine.clone() },
            region: region.args().clone(),
            watch: WatchArgs::default(),
        };
        let workers = Workers::spawn(1, 1, &settings, 5)?;
        workers.supervisor.all_ready(Clock::system().after(START_TIMEOUT)).await?;
        spinner.finish_and_clear();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let state = AppState::new(workers.engine.clone(), HttpConfig::default(), Clock::system());
        let description = workers.engine.describe();
        let (stop, stopped) = oneshot::channel::<()>();
        let grace = Grace { drain: Duration::from_secs(5), ..Grace::default() };
        let server = tokio::spawn(cenote_serve::serve(listener, state, async { drop(stopped.await) }, grace));
        let client = Client {
            http: reqwest::Client::builder().timeout(REQUEST_TIMEOUT).build()?,
            url,
            model: description.model.clone(),
            max_tokens: args.max_tokens,
        };
        let measured = measure(&client, &prompts).await;
        let _ = stop.send(());
        let _ = server.await;
        workers.supervisor.shutdown().await;
        let measured = measured?;
        let own = std::process::id();
        let worker_pids = description.process_ids.iter().copied().filter(|&pid| pid != own).collect();
        Ok::<_, Failure>(measured.report(description.model, worker_pids, region.args().source()?.to_string()))
    })?;
    args.output
        .show(&report, || format!("{}\n\n{}", text(&report), next(&report.model, args.engine.model.as_deref())))?;
    if report.outputs_equal {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::new("the answers differ between cold, warm and no region"))
    }
}

/// Prompts of real text without common beginnings: each starts at another place of the text.
fn prompts(args: &DemoArgs) -> Result<Vec<Vec<TokenId>>, Failure> {
    let spinner = output::spinner("reading the text");
    let model = engine::load(&args.engine, None)?;
    let tokens = model.tokenizer().encode(demo_model::TEXT).map_err(Failure::new)?;
    spinner.finish_and_clear();
    let (length, count) = (args.prompt_tokens as usize, args.repeat as usize + 1);
    let room = model.max_model_len().saturating_sub(args.max_tokens as usize);
    if length > room || length * 2 > tokens.len() {
        let most = room.min(tokens.len() / 2);
        return Err(Failure::new(format!("--prompt-tokens {length}: with this model and text at most {most}")));
    }
    let stride = (tokens.len() - length) / count;
    Ok((0..count).map(|n| tokens[n * stride..n * stride + length].to_vec()).collect())
}

struct Client {
    http: reqwest::Client,
    url: String,
    model: String,
    max_tokens: u32,
}

/// One answer, as a client received it.
struct Answer {
    ttft_ms: f64,
    text: String,
    cached_tokens: u64,
    prompt_tokens: u64,
}

impl Client {
    /// Sends a streaming completion and times its first token.
    async fn ask(&self, prompt: &[TokenId], use_pool: bool) -> Result<Answer, Failure> {
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": self.max_tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true}, "use_pool": use_pool,
        });
        let started = Instant::now();
        let mut response = self.http.post(format!("{}/v1/completions", self.url)).json(&body).send().await?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(Failure::new(format!(
                "the server answered {status}: {}",
                response.text().await.unwrap_or_default()
            )));
        }
        let mut answer = Answer { ttft_ms: 0.0, text: String::new(), cached_tokens: 0, prompt_tokens: 0 };
        let mut pending = Vec::new();
        let mut done = false;
        while let Some(bytes) = response.chunk().await? {
            pending.extend_from_slice(&bytes);
            while let Some(end) = pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                let Some(data) = line.strip_prefix(b"data: ") else { continue };
                if data.starts_with(b"[DONE]") {
                    done = true;
                    continue;
                }
                let event: Value = serde_json::from_slice(data)?;
                if let Some(error) = event.get("error") {
                    return Err(Failure::new(format!("the server ended the stream: {error}")));
                }
                if answer.ttft_ms == 0.0 {
                    answer.ttft_ms = started.elapsed().as_secs_f64() * 1e3;
                }
                if let Some(piece) = event["choices"][0]["text"].as_str() {
                    answer.text.push_str(piece);
                }
                if let Some(prompt_tokens) = event["usage"]["prompt_tokens"].as_u64() {
                    answer.prompt_tokens = prompt_tokens;
                    answer.cached_tokens =
                        event["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
                }
            }
        }
        if done { Ok(answer) } else { Err(Failure::new("the server's stream broke off")) }
    }
}

#[derive(Default)]
struct Measured {
    no_pool_ms: Vec<f64>,
    cold_ms: Vec<f64>,
    warm_ms: Vec<f64>,
    prompt_tokens: u64,
    /// Least number of cached tokens of all warm answers.
    cached_tokens: u64,
    outputs_equal: bool,
    output: String,
}

async fn measure(client: &Client, prompts: &[Vec<TokenId>]) -> Result<Measured, Failure> {
    let mut measured = Measured { outputs_equal: true, cached_tokens: u64::MAX, ..Measured::default() };
    let progress = output::progress("asking", prompts.len() as u64 * 4);
    // The first prompt warms the machine up (page faults, threads) and is not counted.
    client.ask(&prompts[0], false).await?;
    client.ask(&prompts[0], true).await?;
    let mut texts = Vec::new();
    for (number, prompt) in prompts[1..].iter().enumerate() {
        // The first of the two may find colder caches, so the order alternates.
        let (no_pool, cold) = if number % 2 == 0 {
            let no_pool = client.ask(prompt, false).await?;
            (no_pool, client.ask(prompt, true).await?)
        } else {
            let cold = client.ask(prompt, true).await?;
            (client.ask(prompt, false).await?, cold)
        };
        if cold.cached_tokens > 0 || no_pool.cached_tokens > 0 {
            return Err(Failure::new("a prompt that was never sent before was found in the region"));
        }
        let warm = client.ask(prompt, true).await?;
        measured.no_pool_ms.push(no_pool.ttft_ms);
        measured.cold_ms.push(cold.ttft_ms);
        measured.warm_ms.push(warm.ttft_ms);
        measured.outputs_equal &= no_pool.text == cold.text && cold.text == warm.text;
        measured.cached_tokens = measured.cached_tokens.min(warm.cached_tokens);
        measured.prompt_tokens = warm.prompt_tokens;
        texts.push(cold.text);
        progress.inc(3);
    }
    let together = futures_all(prompts[1..].iter().map(|prompt| client.ask(prompt, true))).await?;
    measured.outputs_equal &= together.iter().map(|answer| &answer.text).eq(texts.iter());
    progress.finish_and_clear();
    measured.output = texts.pop().unwrap_or_default();
    Ok(measured)
}

/// All answers to simultaneous requests, in order.
async fn futures_all(
    asks: impl Iterator<Item = impl Future<Output = Result<Answer, Failure>>>,
) -> Result<Vec<Answer>, Failure> {
    futures::future::join_all(asks).await.into_iter().collect()
}

impl Measured {
    fn report(self, model: String, worker_pids: Vec<u32>, region: String) -> Report {
        let [(no_pool, no_pool_p99), (cold, cold_p99), (warm, warm_p99)] =
            [self.no_pool_ms, self.cold_ms, self.warm_ms].map(percentiles);
        let row = |name: &str, p50, p99, ratio| BenchRow {
            name: name.to_owned(),
            unit: "ms",
            p50,
            p99,
            ratio,
            // They are of `cenote-lab bench ttft`: a machine that is busy or small proves nothing here.
            goal: None,
            met: None,
        };
        Report {
            rows: vec![
                row("first token, no region", no_pool, no_pool_p99, None),
                row("first token, cold (against no region)", cold, cold_p99, Some(cold / no_pool)),
                row("first token, warm (against cold)", warm, warm_p99, Some(warm / cold)),
            ],
            model,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            ttft_no_pool_ms_p50: no_pool,
            ttft_cold_ms_p50: cold,
            ttft_warm_ms_p50: warm,
            outputs_equal: self.outputs_equal,
            output: self.output,
            front_pid: std::process::id(),
            worker_pids,
            region,
        }
    }
}

fn text(report: &Report) -> String {
    let kept = report.output.trim();
    let words = format!(
        "Each prompt has {} tokens; {} of them came from the region when it was warm, and started {:.0} times sooner.\n\
         Prefill and decode ran in processes {:?}, which share {} and nothing else.\n\
         The greedy answers without a region, cold, warm and all at once are {}. One of them:",
        report.prompt_tokens,
        report.cached_tokens,
        report.ttft_cold_ms_p50 / report.ttft_warm_ms_p50,
        report.worker_pids,
        report.region,
        if report.outputs_equal { "the same" } else { "DIFFERENT" },
    );
    let answer = wrapped(&format!("…{kept}"), "  ");
    format!("{}\n\n{}\n{answer}", bench_table(&report.rows), wrapped(&words, ""))
}

/// What to do next, as lines to copy.
fn next(model: &str, dir: Option<&Path>) -> String {
    let flag = dir.map_or_else(String::new, |dir| format!(" --model {}", quoted(&dir.display().to_string())));
    let body = json!({"model": model, "prompt": NEXT_PROMPT, "max_tokens": 8, "temperature": 0}).to_string();
    format!(
        "Serve on a region that stays, ask twice (the second answer has cached_tokens above 0), and look:\n\n\
         cenote serve --region shm:kv --region-size 1GiB{flag}\n\
         curl -s localhost:8000/v1/completions -H 'content-type: application/json' -d {}\n\
         cenote pool info --region shm:kv",
        quoted(&body)
    )
}

/// A word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_to_copy_are_words_of_a_shell() {
        let said = next("it's", Some(Path::new("/a b/it's")));
        let lines: Vec<&str> = said.lines().skip(2).collect();
        assert_eq!(lines.len(), 3, "{said}");
        let words = |line: &str| {
            let script = format!("set -- {line}; for word; do printf '%s\\n' \"$word\"; done");
            let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
            String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words(lines[0]).last().map(String::as_str), Some("/a b/it's"));
        let body: Value = serde_json::from_str(words(lines[1]).last().expect("a body")).expect("JSON");
        assert_eq!((&body["model"], &body["prompt"]), (&json!("it's"), &json!(NEXT_PROMPT)));
        assert_eq!(words(lines[2])[..3], ["cenote", "pool", "info"]);
    }
}
