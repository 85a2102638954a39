//! Figure 14: batches of requests with the lengths of two traces.

use super::systems::{KIVI, KVQUANT, LPDDR, QSERVE, System, TENDER, VLLM, model};
use super::throughput::{OAKEN_SHARE, mean};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::Workload;
use cenote_serving_sim::hardware::Architecture;
use cenote_serving_sim::hardware::oaken::{OAKEN_LPDDR, Oaken};
use cenote_serving_sim::workload::{Length, Lengths, Synthetic};

pub const EXPERIMENT: Experiment = Experiment {
    id: "oaken.traces",
    title: "throughput with the lengths of two traces",
    covers: &["oaken.figure14"],
    is_quick: true,
    run,
};

const SMALL: u32 = 16;
const LARGE: u32 = 128;
/// Batches whose throughputs are averaged (§6.1: "multiple batches").
const BATCHES: u64 = 4;
/// The window that §6.1 names for Mixtral; its `config.json` has none.
const WINDOW: u32 = 4_096;

const DRAWN: &str = "log-normal lengths with the moments of Azure's trace and of BurstGPT";
const OUTPUTS: &str = "211 tokens in Azure's file; 126 in BurstGPT as a whole, API calls included";

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

/// Values of a row by the draws and the accelerator.
type Values<'a> = &'a dyn Fn(&Drawn, System) -> Vec<f64>;

/// A row, with the effects of Oaken's units, of other draws, and of lengths that differ less.
fn varied(id: &'static str, seed: u64, drawn: &Drawn, of: Values<'_>) -> Measured {
    let base = of(drawn, LPDDR);
    let shares = Sensitivity::of(OAKEN_SHARE, &base, &[0.3, 0.9], |&flops_share| {
        of(drawn, System::Accelerator(Oaken { flops_share, ..OAKEN_LPDDR }))
    });
    let seeds = Sensitivity::of("seed", &base, &[seed + 100, seed + 200], |&seed| of(&Drawn::new(seed, 1.0), LPDDR));
    let deviations = Sensitivity::of("deviation of lengths over the base", &base, &[0.5], |&part| {
        of(&Drawn::new(seed, part), LPDDR)
    });
    Measured::new(id, base, DRAWN).sensitive(shares).sensitive(seeds).sensitive(deviations)
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
    let longer_chats = Sensitivity::from("BurstGPT", &longer, names(), vec![outputs(chats)]);
    let over_vllm = |batches: &Batches, oaken: System| batches.over(oaken, VLLM, &llama);
    let gain = |drawn: &Drawn, oaken: System| {
        let [conversation, burst] = drawn.large.each_ref().map(|batches| over_vllm(batches, oaken));
        vec![burst / conversation]
    };
    let gain_chats = over_vllm(&Batches::draw(chats, LARGE, seed), LPDDR) / over_vllm(&drawn.large[0], LPDDR);
    // Tender pads.
    let advantage = |batches: &Batches, oaken: System| {
        let others = [VLLM, KVQUANT, KIVI, QSERVE].map(|system| batches.rate(system, &llama));
        let best = others.into_iter().fold(batches.padded().rate(TENDER, &llama), f64::max);
        batches.rate(oaken, &llama) / best
    };
    let padding = |batches: &Batches| batches.padded().rate(TENDER, &llama) / batches.rate(TENDER, &llama);
    let each = |both: &[Batches; 2], model: &Architecture, oaken: System| {
        both.each_ref().map(|batches| batches.over(oaken, VLLM, model))
    };
    let row = |id: &'static str, of: Values<'_>| varied(id, seed, &drawn, of);
    // Mixtral with the window that §6.1 names.
    let mixed = |id: &'static str, of: &dyn Fn(&Architecture, &Drawn, System) -> Vec<f64>| {
        let window = vec![of(&mixtral.window(WINDOW), &drawn, LPDDR)];
        let base = of(&mixtral, &drawn, LPDDR);
        let windows = Sensitivity::from("window", &base, vec![WINDOW.to_string()], window);
        row(id, &|drawn, oaken| of(&mixtral, drawn, oaken)).sensitive(windows)
    };
    let gains = row("oaken.figure14.gain", &gain);
    let base = gains.values.clone().unwrap_or_default();
    vec![
        Measured::new("oaken.figure14.outputs", longer, OUTPUTS).sensitive(longer_chats),
        gains.sensitive(Sensitivity::from("BurstGPT", &base, names(), vec![vec![gain_chats]])),
        row("oaken.figure14.llama", &|drawn, oaken| {
            drawn.large.each_ref().map(|batches| advantage(batches, oaken)).to_vec()
        }),
        row("oaken.figure14.tender", &|drawn, _| drawn.large.each_ref().map(padding).to_vec()),
        mixed("oaken.figure14.mixtral", &|mixtral, drawn, oaken| each(&drawn.small, mixtral, oaken).to_vec()),
        mixed("oaken.figure14.mixtral-advantage", &|mixtral, drawn, oaken| each(&drawn.large, mixtral, oaken).to_vec()),
        mixed("oaken.figure14.mixtral-burst", &|mixtral, drawn, oaken| {
            let [conversation, burst] = each(&drawn.large, mixtral, oaken);
            vec![burst / conversation]
        }),
        mixed("oaken.figure14.mixtral-growth", &|mixtral, drawn, oaken| {
            let [large, small] = [&drawn.large, &drawn.small].map(|both| each(both, mixtral, oaken));
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
