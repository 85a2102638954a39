//! `cenote generate`: one prompt, without a server.

use crate::args::GenerateArgs;
use cenote_base::engine::{ChatMessage, FinishReason, Phase, Prompt, Usage};
use cenote_base::{Engine, Event, Request, RequestId, SamplingParams};
use cenote_console::args::WatchArgs;
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::output::{self, facts};
use serde::Serialize;
use std::io::Read;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

#[derive(Serialize)]
struct Generated {
    text: String,
    tokens: Vec<u32>,
    finish_reason: FinishReason,
    usage: Usage,
    ttft_ms: f64,
    total_ms: f64,
}

/// Timeout of a prompt without a server, which only its user waits for.
const TIMEOUT: Duration = Duration::from_secs(3600);

pub fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let region = args.region.region.is_some().then_some(&args.region);
    let running = engine::start(&args.engine, region, &WatchArgs::default(), "generate")?;
    let request = request(args)?;
    let (events, received) = channel();
    let started = Instant::now();
    running.engine.submit(request, Box::new(move |event| events.send((Instant::now(), event)).is_ok()))?;
    let mut generated = Generated {
        text: String::new(),
        tokens: Vec::new(),
        finish_reason: FinishReason::Stop,
        usage: Usage::default(),
        ttft_ms: 0.0,
        total_ms: 0.0,
    };
    let print = |text: &str| {
        if !args.output.is_json_on_stdout() {
            output::print_piece(text);
        }
    };
    loop {
        let (at, event) =
            received.recv_timeout(TIMEOUT).map_err(|_| Failure::new("the engine ended without an answer"))?;
        match event {
            Event::Token { token, text, .. } => {
                if generated.tokens.is_empty() {
                    generated.ttft_ms = (at - started).as_secs_f64() * 1e3;
                }
                print(&text);
                generated.text.push_str(&text);
                generated.tokens.push(token);
            }
            Event::Finished { reason, text, usage, .. } => {
                print(&text);
                generated.text.push_str(&text);
                (generated.finish_reason, generated.usage) = (reason, usage);
                generated.total_ms = (at - started).as_secs_f64() * 1e3;
                break;
            }
            Event::Failed(error) => return Err(error.into()),
        }
    }
    print("\n");
    if let (Some(_), Some(fact)) = (region, too_short(generated.usage.prompt_tokens, args.engine.block_tokens)) {
        output::say(&format!("note: {fact}"));
    }
    args.output.show(&generated, || {
        let usage = generated.usage;
        let decoded = generated.tokens.len().saturating_sub(1) as f64;
        let per_token = (generated.total_ms - generated.ttft_ms) / decoded.max(1.0);
        facts(&[
            ("prompt", format!("{} tokens, {} from the region", usage.prompt_tokens, usage.cached_tokens)),
            ("first token", format!("{:.1} ms", generated.ttft_ms)),
            ("output", format!("{} tokens, {per_token:.2} ms each", usage.completion_tokens)),
        ])
    })
}

/// A note on a prompt that cannot hit: only whole blocks are shared, and at least one token is
/// always computed.
fn too_short(prompt_tokens: u32, block_tokens: u32) -> Option<String> {
    (prompt_tokens <= block_tokens).then(|| {
        format!(
            "the prompt has {prompt_tokens} tokens; only prompts longer than one block of {block_tokens} tokens are shared"
        )
    })
}

fn request(args: &GenerateArgs) -> Result<Request, Failure> {
    let mut text = args.prompt.clone();
    if text == "-" {
        text.clear();
        std::io::stdin().read_to_string(&mut text).map_err(|error| Failure::new(format!("stdin: {error}")))?;
    }
    let prompt = if args.chat {
        Prompt::Chat(vec![ChatMessage { role: "user".to_owned(), content: text }].into())
    } else {
        Prompt::Text(text)
    };
    Ok(Request {
        id: RequestId(1),
        prompt,
        sampling: SamplingParams {
            temperature: args.temperature,
            top_p: args.top_p,
            top_k: args.top_k,
            seed: args.seed,
            stop: args.stop.clone(),
            max_tokens: Some(args.max_tokens),
            ignore_eos: args.ignore_eos,
            ..SamplingParams::default()
        },
        phase: Phase::Whole,
        use_pool: args.region.region.is_some(),
        cache_salt: None,
        tenant: None,
        priority: 0,
        label: None,
        continues_in_ms: None,
        retain: None,
        timeout_ms: TIMEOUT.as_millis() as u64,
    })
}
