//! `cenote-lab choose`: the best codec of each layer, measured.

use crate::args::ChooseArgs;
use cenote_base::Clock;
use cenote_codec::{CodecSpec, SpecError};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::{engine, profile};
use cenote_lab::choose::Trial;
use cenote_quality::table::{CodecTable, Limits};
use cenote_quality::text::Windows;

/// Default rates of `qpack` and `qpackz`.
const RATES: [f32; 7] = [0.25, 0.35, 0.5, 0.7, 0.9, 1.2, 1.7];

pub fn run(args: &ChooseArgs) -> Result<(), Failure> {
    let candidates = candidates(&args.codec)?;
    let limits = match (args.kl_max, args.loss_max) {
        (Some(kl_max), _) => Limits { kl_max, loss_percent_max: None },
        (None, percent) => Limits::of_loss(percent),
    };
    let model = engine::load_to_study(&args.model)?;
    let profile = args.profile.as_ref().map(|path| profile::read(path, &model)).transpose()?;
    for candidate in &candidates {
        candidate.build(profile.as_ref()).map_err(|error| match error {
            SpecError::NoProfile(_) => Failure::from(error).hint("name it with --profile"),
            other => other.into(),
        })?;
    }
    let windows = Windows::new(profile::open(&args.text)?, model.tokenizer(), args.context).take_some(args.windows)?;
    let trial = Trial {
        model: &model,
        profile: profile.as_ref(),
        windows: &windows,
        block_tokens: args.block_tokens,
        clock: Clock::system(),
    };
    let progress = output::progress("measuring layers", (candidates.len() * model.layout().num_layers) as u64);
    let table = trial.choose(&candidates, limits, &mut |steps| progress.inc(steps as u64))?;
    progress.finish_and_clear();
    std::fs::write(&args.out, table.to_json())
        .map_err(|error| Failure::new(format!("{}: cannot write the table: {error}", args.out.display())))?;
    args.output.show(&table, || shown(model.name(), &table))
}

fn candidates(named: &[String]) -> Result<Vec<CodecSpec>, Failure> {
    if named.is_empty() {
        let rates = |codec: fn(f32) -> CodecSpec| RATES.map(codec);
        let mut all: Vec<CodecSpec> = vec!["int8".parse()?];
        all.extend(rates(CodecSpec::QPack).into_iter().chain(rates(CodecSpec::QPackZ)));
        return Ok(all);
    }
    let mut all: Vec<CodecSpec> = named.iter().map(|name| name.parse()).collect::<Result<_, SpecError>>()?;
    // Raw is always a choice.
    all.retain(|codec| *codec != CodecSpec::Raw);
    Ok(all)
}

fn shown(model: &str, table: &CodecTable) -> String {
    let mut rows = output::table(&["pressure", "codec", "ratio", "KL ×1000", "of layers alone", "loss %"]);
    for choice in &table.choices {
        rows.add_row([
            format!("from {:.1}", choice.pressure),
            choice.codec.clone(),
            format!("{:.2}", choice.ratio),
            format!("{:.3} ± {:.3}", 1e3 * choice.kl, 1e3 * choice.kl_se),
            format!("{:.3}", 1e3 * choice.kl_predicted),
            format!("{:+.3} ± {:.3}", choice.loss_percent, choice.loss_percent_se),
        ]);
    }
    let loss = table.limits.loss_percent_max.map_or_else(String::new, |most| format!(", loss at most {most} %"));
    let words = format!(
        "{model}: {} layers, {} windows of {} tokens, blocks of {}; KL ×1000 at most {:.3}{loss}; layers alone may add up to \
         {:.3}",
        table.layers.len(),
        table.windows,
        table.context,
        table.block_tokens,
        1e3 * table.limits.kl_max,
        1e3 * table.kl_budget
    );
    format!("{}\n\n{rows}", output::wrapped(&words, ""))
}
