//! An engine of this process behind the server of `cenote serve`, under a load, with the time of
//! each step: data for fitting models and for comparing them.

use super::client::{Answered, Client};
use cenote_base::{Clock, Engine, TokenId};
use cenote_console::args::{EngineArgs, WatchArgs};
use cenote_console::demo_model;
use cenote_console::engine::{self, Running};
use cenote_console::failure::Failure;
use cenote_console::region::TemporaryRegion;
use cenote_engine::{Observer, StepRecord, SwapRecord, TakenRecord};
use cenote_serve::{AppState, Grace, HttpConfig};
use cenote_serving_sim::Workload;
use cenote_serving_sim::model::Sample;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longest time of one answer: a crowd's last one waits for all others.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Size of a region for such loads: room for a thousand prompts of the demo model.
pub const LIVE_REGION_BYTES: u64 = 512 << 20;

/// Events of an engine.
#[derive(Default)]
struct Records {
    taken: Vec<(Instant, TakenRecord)>,
    steps: Vec<StepRecord>,
    swaps: Vec<SwapRecord>,
}

struct Recorder(Arc<Mutex<Records>>);

fn lock(records: &Mutex<Records>) -> MutexGuard<'_, Records> {
    // Every push stands alone.
    records.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Observer for Recorder {
    fn taken(&mut self, record: &TakenRecord) {
        lock(&self.0).taken.push((Instant::now(), *record));
    }

    fn swapped(&mut self, record: &SwapRecord) {
        lock(&self.0).swaps.push(*record);
    }

    fn stepped(&mut self, record: &StepRecord) {
        lock(&self.0).steps.push(*record);
    }
}

/// A running server.
pub struct Live {
    running: Running,
    records: Arc<Mutex<Records>>,
    client: Client,
    model: String,
    stop: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<bool>>,
    text: Vec<TokenId>,
    /// Position in the text of the next prompt.
    next_prompt: usize,
    /// Number of requests so far.
    asked: usize,
}

impl Live {
    /// Starts an engine on this region, and its server. Requires a tokio runtime of several
    /// threads.
    pub async fn start(args: &EngineArgs, region: &TemporaryRegion) -> Result<Self, Failure> {
        let records = Arc::new(Mutex::new(Records::default()));
        let observer = Box::new(Recorder(Arc::clone(&records)));
        let running = tokio::task::block_in_place(|| {
            engine::start_observed(args, Some(region.args()), &WatchArgs::default(), "live", observer)
        })?;
        let text = running.engine.model().tokenizer().encode(demo_model::TEXT).map_err(Failure::new)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let config = HttpConfig { request_timeout: TIMEOUT, ..HttpConfig::default() };
        let state = AppState::new(running.engine.clone(), config, Clock::system());
        let (stop, stopped) = oneshot::channel::<()>();
        let grace = Grace { drain: Duration::from_secs(5), ..Grace::default() };
        let server = tokio::spawn(cenote_serve::serve(listener, state, async { drop(stopped.await) }, grace));
        let client = Client::new(&url, TIMEOUT)?;
        let model = running.engine.describe().model;
        let (stop, server) = (Some(stop), Some(server));
        Ok(Self { running, records, client, model, stop, server, text, next_prompt: 0, asked: 0 })
    }

    /// The engine.
    pub fn engine(&self) -> &cenote_engine::LlmEngine {
        &self.running.engine
    }

    /// The steps since the last call, as samples.
    pub fn take_steps(&self) -> Vec<Sample> {
        let steps = std::mem::take(&mut lock(&self.records).steps);
        let sample = |step: &StepRecord| Sample {
            count: 1,
            requests: step.requests,
            tokens: step.tokens,
            pairs: step.pairs,
            context: step.context,
            ns: step.ns,
        };
        steps.iter().map(sample).collect()
    }

    /// The requests since the last call, in the order and at the times at which the engine took
    /// them. Each counts as if it generated its maximum.
    pub fn take_taken(&self) -> Workload {
        let taken = std::mem::take(&mut lock(&self.records).taken);
        let begin = taken.first().map_or_else(Instant::now, |(at, _)| *at);
        let block_tokens = self.engine().model().config().block_tokens;
        let requests = taken.iter().map(|(at, record)| {
            let output = record.max_num_tokens - record.prompt_tokens;
            ((*at - begin).as_nanos() as u64, record.prompt_tokens, output)
        });
        Workload::alone(u32::try_from(block_tokens).unwrap_or(u32::MAX), requests)
    }

    /// The swaps since the last call.
    pub fn take_swaps(&self) -> Vec<SwapRecord> {
        std::mem::take(&mut lock(&self.records).swaps)
    }

    /// The engine's counters when it is idle: clients may have their answers before the last step
    /// ends.
    pub async fn settled(&self) -> Result<BTreeMap<String, f64>, Failure> {
        let deadline = Clock::system().after(Duration::from_secs(60));
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        loop {
            let stats = self.running.engine.stats().values;
            // Counters are published between steps.
            if stats.get("requests_finished_total").is_some_and(|&finished| finished >= self.asked as f64) {
                return Ok(stats);
            }
            if deadline.passed() {
                return Err(Failure::new(format!(
                    "of {} requests the engine has not finished all: {stats:?}",
                    self.asked
                )));
            }
            pace.tick().await;
        }
    }

    /// A prompt of real text with a beginning of its own.
    fn prompt(&mut self, length: usize) -> Vec<TokenId> {
        let start = self.next_prompt;
        self.next_prompt += 1;
        // The first tokens encode its number, so that prompts share no block when the text is used
        // again.
        let mut prompt: Vec<TokenId> = start.to_string().bytes().map(|digit| 100 + TokenId::from(digit)).collect();
        prompt.extend(self.text.iter().cycle().skip(start * 7 % self.text.len()).take(length));
        prompt.truncate(length);
        prompt
    }

    /// Sends a load's requests at their times, and waits for all answers, in the order of the load.
    pub async fn replay(&mut self, load: &Workload, progress: &dyn Fn()) -> Result<Vec<Answered>, Failure> {
        let bodies = load.requests().iter().map(|request| {
            json!({
                "model": self.model, "prompt": self.prompt(request.input_tokens as usize), "temperature": 0,
                "max_tokens": request.output_tokens, "ignore_eos": true, "stream": true,
            })
        });
        let bodies: Vec<Value> = bodies.collect();
        let answers = self.client.replay(load, bodies, progress).await?;
        self.asked += answers.len();
        self.settled().await?;
        Ok(answers)
    }

    /// Stops the server, then the engine.
    pub async fn end(mut self) {
        drop(self.stop.take());
        if let Some(server) = self.server.take() {
            // No client waits for its remaining output.
            let _ = server.await;
        }
        tokio::task::block_in_place(|| drop(self.running));
    }
}
