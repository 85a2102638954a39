//! The load: a trace from a file, or drawn requests.

use super::Load;
use crate::args::{LoadArg, SimArgs};
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_serving_sim::Workload;
use cenote_serving_sim::workload::{CPEN_PROMPTS, Length, MOONCAKE_BLOCK_TOKENS, Read, Synthetic, TraceError, cpen};

/// Number of requests of a drawn load.
const DRAWN: usize = 2_000;

pub fn read(args: &SimArgs) -> Result<Load, Failure> {
    let (name, mut workload) = match (&args.trace, args.load) {
        (Some(path), _) => {
            let format = args.sessions.format(args.format, path, args.seed);
            let file = input::open(path).map_err(|fact| Failure::new(format!("{}: {fact}", path.display())))?;
            let block_tokens = args.block_tokens.or(format.block_tokens()).unwrap_or(MOONCAKE_BLOCK_TOKENS);
            let read = format.read(file, block_tokens, args.strict).map_err(|error| {
                let failure = Failure::new(format!("{}: {error}", path.display()));
                match error {
                    TraceError::Bad(_) if args.strict => failure.hint("without --strict such lines are left out"),
                    TraceError::Bad(_) => failure.hint("no line of it is a request; is --format right?"),
                    _ => failure,
                }
            })?;
            tell(&path.display().to_string(), &read);
            let name = path.file_name().map_or_else(|| "trace".to_owned(), |name| name.to_string_lossy().into_owned());
            (name, read.workload)
        }
        (None, Some(load)) => drawn(load, args)?,
        (None, None) => return Err(Failure::new("no load: give --trace FILE or --load LOAD")),
    };
    if let Some(requests) = args.requests {
        workload.truncate(requests);
    }
    workload.speed_up(args.speed);
    Ok(Load { name, workload })
}

fn drawn(load: LoadArg, args: &SimArgs) -> Result<(String, Workload), Failure> {
    let requests = args.requests.unwrap_or(DRAWN);
    let tract = |name| {
        let load = Synthetic::tract(name, requests, args.rate).expect("there are A, B and C");
        Synthetic { block_tokens: args.block_tokens.unwrap_or(load.block_tokens), ..load }.draw(args.seed)
    };
    if let (LoadArg::Cpen, Some(tokens)) = (load, args.block_tokens) {
        return Err(Failure::new(format!("--block-tokens {tokens}: the paper's blocks have 16 tokens")));
    }
    Ok(match load {
        LoadArg::Poisson => {
            let spec = Synthetic {
                requests,
                rate: args.rate,
                input: Length { mean: 1_155.0, deviation: 1_100.0 },
                output: Length { mean: 211.0, deviation: 160.0 },
                unique: None,
                groups: 1,
                block_tokens: args.block_tokens.unwrap_or(MOONCAKE_BLOCK_TOKENS),
            };
            ("poisson".to_owned(), spec.draw(args.seed))
        }
        LoadArg::TractA => ("tract-a".to_owned(), tract('A')),
        LoadArg::TractB => ("tract-b".to_owned(), tract('B')),
        LoadArg::TractC => ("tract-c".to_owned(), tract('C')),
        LoadArg::Cpen => ("cpen".to_owned(), cpen(args.requests.unwrap_or(CPEN_PROMPTS), 1.0, args.seed)),
    })
}

/// Reports how the load was made of a trace, what was left out, and its peculiarities.
fn tell(name: &str, read: &Read) {
    read.remarks().iter().for_each(|line| output::say(&format!("{name}: {line}")));
    if let Some(odd) = read.odd_blocks() {
        output::say(&format!("{name}: {odd}"));
        output::hint("--block-tokens says how many tokens a block of the trace has");
    }
}
