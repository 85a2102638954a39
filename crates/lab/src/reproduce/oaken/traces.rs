//! Figure 14: batches of requests with the lengths of two traces.

use super::systems::{KIVI, KVQUANT, LPDDR, QSERVE, System, TENDER, VLLM, model};
use super::throughput::{jointly, mean};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::Workload;
use cenote_serving_sim::hardware::Architecture;
use cenote_serving_sim::workload::{Length, Lengths, Synthetic};

pub const EXPERIMENT: Experiment = Experiment {
    id: "oaken.traces",
    title: "throughput with the lengths of two traces",
    covers: &["oaken.figure14"],
    is_quick: false,
    draws: true,
    run,
};

const SMALL: u32 = 16;
const LARGE: u32 = 128;
/// Batches whose throughputs are averaged (§6.1: "multiple batches").
const BATCHES: u64 = 4;
/// The window that §6.1 names for Mixtral; its `config.json` has none.
const WINDOW: u32 = 4_096;

const DRAWN: &str = "log-normal lengths with the moments of Azure's trace and of BurstGPT";
const OUTPUTS: &str = "needs the part of BurstGPT that the paper took; beside: 126 tokens in BurstGPT as a whole, API calls \
                       included, over 211 in Azure's file";

/// Batches of a trace's lengths.
struct Batches(Vec<Workload>);

impl Batches {
    fn draw(lengths: Lengths, batch: u32, seed: u64) -> Self {
        let spec = Synthetic {
            requests: batch as usize,
            rate: 0.0,
            input: lengths.input,
            output: lengths.output,
            unique: None,
            groups: 1,
            block_tokens: 16,
        };
        Self((0..BATCHES).map(|at| spec.draw(seed + at)).collect())
    }

    /// With all prompts of a batch as long as its longest.
    fn padded(&self) -> Self {
        let pad = |load: &Workload| {
            let longest = load.requests().iter().map(|request| request.input_tokens).max().unwrap_or(1);
            let requests = load.requests().iter().map(|request| (0, longest, request.output_tokens));
            Workload::alone(load.block_tokens(), requests)
        };
        Self(self.0.iter().map(pad).collect())
    }

    fn rate(&self, system: System, model: &Architecture) -> f64 {
        mean(self.0.iter().map(|load| system.batch_tokens_per_s(model, load).unwrap_or(0.0)))
    }

    fn over(&self, a: System, b: System, model: &Architecture) -> f64 {
        self.rate(a, model) / self.rate(b, model)
    }
}

/// Batches with the lengths of both traces.
struct Drawn {
    large: [Batches; 2],
    small: [Batches; 2],
}

impl Drawn {
    /// With lengths that deviate by this part of what they do.
    fn new(seed: u64, part: f64) -> Self {
        let narrower = |length: Length| Length { deviation: part * length.deviation, ..length };
        let of = |batch: u32| {
            [Lengths::AZURE_CONVERSATION, Lengths::BURSTGPT].map(|lengths| {
                let lengths = Lengths { input: narrower(lengths.input), output: narrower(lengths.output) };
                Batches::draw(lengths, batch, seed)
            })
        };
        Self { large: of(LARGE), small: of(SMALL) }
    }
}

/// A change of a system.
type Change<'a> = &'a dyn Fn(System) -> System;
/// Values of a row by the draws, with all systems changed.
type Values<'a> = &'a dyn Fn(&Drawn, Change<'_>) -> Vec<f64>;

/// A row, with the effects of GPU kernels and Oaken's units, and of lengths that differ less.
fn varied(id: &'static str, context: &Context, drawn: &Drawn, of: Values<'_>) -> Measured {
    let (seed, is_varied) = (context.seed, context.is_varied);
    let same = |system: System| system;
    let base = of(drawn, &same);
    let deviations = Sensitivity::of("deviation of lengths over the base", &base, &[0.5], |&part| {
        of(&Drawn::new(seed, part), &same)
    });
    let row = Measured::new(id, base, DRAWN).sensitive(deviations);
    // The first run's effects stand for all.
    if is_varied { jointly(row, |at| of(drawn, at)) } else { row }
}

fn run(context: &Context) -> Vec<Measured> {
    let seed = context.seed;
    let llama = model("llama-2-13b");
    let mixtral = model("mixtral-8x7b");
    let drawn = Drawn::new(seed, 1.0);
    let chats = Lengths::BURSTGPT_CONVERSATION;
    let names = || vec!["its first 38 conversations".to_owned()];
    let outputs = |lengths: Lengths| vec![lengths.output.mean / Lengths::AZURE_CONVERSATION.output.mean];
    let longer = outputs(Lengths::BURSTGPT);
    let over_vllm = |batches: &Batches, at: Change<'_>| batches.over(at(LPDDR), at(VLLM), &llama);
    let gain = |drawn: &Drawn, at: Change<'_>| {
        let [conversation, burst] = drawn.large.each_ref().map(|batches| over_vllm(batches, at));
        vec![burst / conversation]
    };
    let same = |system: System| system;
    let gain_chats = over_vllm(&Batches::draw(chats, LARGE, seed), &same) / over_vllm(&drawn.large[0], &same);
    // Tender pads.
    let advantage = |batches: &Batches, at: Change<'_>| {
        let others = [VLLM, KVQUANT, KIVI, QSERVE].map(|system| batches.rate(at(system), &llama));
        let best = others.into_iter().fold(batches.padded().rate(at(TENDER), &llama), f64::max);
        batches.rate(at(LPDDR), &llama) / best
    };
    let padding = |batches: &Batches, at: Change<'_>| {
        batches.padded().rate(at(TENDER), &llama) / batches.rate(at(TENDER), &llama)
    };
    let each = |both: &[Batches; 2], model: &Architecture, at: Change<'_>| {
        both.each_ref().map(|batches| batches.over(at(LPDDR), at(VLLM), model))
    };
    let row = |id: &'static str, of: Values<'_>| varied(id, context, &drawn, of);
    // Mixtral with the window that §6.1 names.
    let mixed = |id: &'static str, of: &dyn Fn(&Architecture, &Drawn, Change<'_>) -> Vec<f64>| {
        let window = vec![of(&mixtral.window(WINDOW), &drawn, &same)];
        let base = of(&mixtral, &drawn, &same);
        let windows = Sensitivity::from("window", &base, vec![WINDOW.to_string()], window);
        row(id, &|drawn, at| of(&mixtral, drawn, at)).sensitive(windows)
    };
    let gains = row("oaken.figure14.gain", &gain);
    let base = gains.values.clone().unwrap_or_default();
    vec![
        Measured::beside("oaken.figure14.outputs", OUTPUTS, longer),
        gains.sensitive(Sensitivity::from("BurstGPT", &base, names(), vec![vec![gain_chats]])),
        row("oaken.figure14.llama", &|drawn, at| drawn.large.each_ref().map(|batches| advantage(batches, at)).to_vec()),
        row("oaken.figure14.tender", &|drawn, at| drawn.large.each_ref().map(|batches| padding(batches, at)).to_vec()),
        mixed("oaken.figure14.mixtral", &|mixtral, drawn, at| each(&drawn.small, mixtral, at).to_vec()),
        mixed("oaken.figure14.mixtral-advantage", &|mixtral, drawn, at| each(&drawn.large, mixtral, at).to_vec()),
        mixed("oaken.figure14.mixtral-burst", &|mixtral, drawn, at| {
            let [conversation, burst] = each(&drawn.large, mixtral, at);
            vec![burst / conversation]
        }),
        mixed("oaken.figure14.mixtral-growth", &|mixtral, drawn, at| {
            let [large, small] = [&drawn.large, &drawn.small].map(|both| each(both, mixtral, at));
            large.iter().zip(small).map(|(large, small)| large / small).collect()
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_lengthens_prompts_to_the_longest() {
        let batches = Batches(vec![Workload::alone(16, [(0, 10, 3), (0, 40, 5)])]);
        let padded = &batches.padded().0[0];
        let lengths: Vec<(u32, u32)> =
            padded.requests().iter().map(|request| (request.input_tokens, request.output_tokens)).collect();
        assert_eq!(lengths, [(40, 3), (40, 5)]);
    }
}
