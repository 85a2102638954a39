//! The load: a trace from a file, or drawn requests.

use super::Load;
use crate::args::{LoadArg, SimArgs, TraceFormatArg};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_serving_sim::workload::{
    CPEN_PROMPTS, Length, Read, Synthetic, TraceError, cpen, read_azure, read_burstgpt, read_mooncake,
};
use std::io::BufReader;

/// Invalid lines that are listed individually; the others are counted.
const BAD_LINES_TOLD: usize = 5;
/// Number of requests of a drawn load.
const DRAWN: usize = 2_000;

pub fn read(args: &SimArgs) -> Result<Load, Failure> {
    let (name, mut workload) = match (&args.trace, args.load) {
        (Some(path), _) => {
            let file =
                std::fs::File::open(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
            let by_name = || match path.extension() {
                Some(ending) if ending.eq_ignore_ascii_case("csv") => TraceFormatArg::Azure,
                _ => TraceFormatArg::Mooncake,
            };
            let reader = BufReader::with_capacity(1 << 20, file);
            let read = match args.format.unwrap_or_else(by_name) {
                TraceFormatArg::Mooncake => read_mooncake(reader, args.block_tokens, args.strict),
                TraceFormatArg::Azure => read_azure(reader, args.block_tokens, args.strict),
                TraceFormatArg::Burstgpt => read_burstgpt(reader, args.block_tokens, args.strict),
            };
            let read = read.map_err(|error| {
                let failure = Failure::new(format!("{}: {error}", path.display()));
                match error {
                    TraceError::Bad(_) if args.strict => failure.hint("without --strict such lines are left out"),
                    TraceError::Bad(_) => failure.hint("no line of it is a request; is --format right?"),
                    _ => failure,
                }
            })?;
            tell(&path.display().to_string(), &read, args.block_tokens);
            let name = path.file_name().map_or_else(|| "trace".to_owned(), |name| name.to_string_lossy().into_owned());
            (name, read.workload)
        }
        (None, Some(load)) => drawn(load, args),
        (None, None) => return Err(Failure::new("no load: give --trace FILE or --load LOAD")),
    };
    if let Some(requests) = args.requests {
        workload.truncate(requests);
    }
    workload.speed_up(args.speed);
    Ok(Load { name, workload })
}

fn drawn(load: LoadArg, args: &SimArgs) -> (String, cenote_serving_sim::Workload) {
    let requests = args.requests.unwrap_or(DRAWN);
    let tract = |name| Synthetic::tract(name, requests, args.rate).expect("there are A, B and C").draw(args.seed);
    match load {
        LoadArg::Poisson => {
            let spec = Synthetic {
                requests,
                rate: args.rate,
                input: Length { mean: 1_155.0, deviation: 1_100.0 },
                output: Length { mean: 211.0, deviation: 160.0 },
                unique: None,
                groups: 1,
                block_tokens: args.block_tokens,
            };
            ("poisson".to_owned(), spec.draw(args.seed))
        }
        LoadArg::TractA => ("tract-a".to_owned(), tract('A')),
        LoadArg::TractB => ("tract-b".to_owned(), tract('B')),
        LoadArg::TractC => ("tract-c".to_owned(), tract('C')),
        LoadArg::Cpen => ("cpen".to_owned(), cpen(args.requests.unwrap_or(CPEN_PROMPTS), 1.0, args.seed)),
    }
}

/// Reports what was left out of a trace, and its peculiarities.
fn tell(name: &str, read: &Read, block_tokens: u32) {
    for bad in read.bad.iter().take(BAD_LINES_TOLD) {
        output::say(&format!("{name}: {bad}; left out"));
    }
    if let Some(more) = read.bad.len().checked_sub(BAD_LINES_TOLD).filter(|more| *more > 0) {
        output::say(&format!("{name}: {more} more lines were left out"));
    }
    if read.odd_lengths > 0 {
        output::say(&format!(
            "{name}: {} of {} requests have another number of blocks than their tokens make in blocks of {block_tokens}",
            read.odd_lengths,
            read.workload.requests().len()
        ));
        output::hint("--block-tokens says how many tokens a block of the trace has");
    }
}
