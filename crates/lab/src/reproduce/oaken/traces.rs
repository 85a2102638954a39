//! Figure 14: batches of requests with the lengths of two traces.

use super::systems::{KIVI, KVQUANT, LPDDR, QSERVE, System, TENDER, VLLM, model};
use super::throughput::mean;
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
    is_quick: false,
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

fn run(context: &Context) -> Vec<Measured> {
    let seed = context.seed;
    let llama = model("llama-2-13b");
    let mixtral = model("mixtral-8x7b");
    let [conversation, burst] =
        [Lengths::AZURE_CONVERSATION, Lengths::BURSTGPT].map(|lengths| Batches::draw(lengths, LARGE, seed));
    let chats = Lengths::BURSTGPT_CONVERSATION;
    let names = || vec!["its first 38 conversations".to_owned()];
    let outputs = |lengths: Lengths| vec![lengths.output.mean / Lengths::AZURE_CONVERSATION.output.mean];
    let longer = outputs(Lengths::BURSTGPT);
    let longer_chats = Sensitivity::from("BurstGPT", &longer, names(), vec![outputs(chats)]);
    let gain = |burst: &Batches| vec![burst.over(LPDDR, VLLM, &llama) / conversation.over(LPDDR, VLLM, &llama)];
    let gains = gain(&burst);
    let gains_chats = Sensitivity::from("BurstGPT", &gains, names(), vec![gain(&Batches::draw(chats, LARGE, seed))]);
    // Tender pads.
    let advantage = |batches: &Batches, oaken: System| {
        let others = [VLLM, KVQUANT, KIVI, QSERVE].map(|system| batches.rate(system, &llama));
        let best = others.into_iter().fold(batches.padded().rate(TENDER, &llama), f64::max);
        batches.rate(oaken, &llama) / best
    };
    let padding = |batches: &Batches| batches.padded().rate(TENDER, &llama) / batches.rate(TENDER, &llama);
    let advantages = |both: &[Batches; 2], oaken: System| both.each_ref().map(|one| advantage(one, oaken)).to_vec();
    let paddings = |both: &[Batches; 2], _: System| both.each_ref().map(padding).to_vec();
    let drawn = [&conversation, &burst];
    let few = [Lengths::AZURE_CONVERSATION, Lengths::BURSTGPT].map(|lengths| Batches::draw(lengths, SMALL, seed));
    // Other units of Oaken, other draws, and lengths that differ less.
    let variants = |row: Measured, of: &dyn Fn(&[Batches; 2], System) -> Vec<f64>| {
        let base = row.values.clone().unwrap_or_default();
        let both = |seed: u64, part: f64| {
            let narrower = |length: Length| Length { deviation: part * length.deviation, ..length };
            [Lengths::AZURE_CONVERSATION, Lengths::BURSTGPT].map(|lengths| {
                let lengths = Lengths { input: narrower(lengths.input), output: narrower(lengths.output) };
                Batches::draw(lengths, LARGE, seed)
            })
        };
        let drawn = both(seed, 1.0);
        let shares = Sensitivity::of("part of the peak that Oaken reaches", &base, &[0.3, 0.9], |&flops_share| {
            of(&drawn, System::Accelerator(Oaken { flops_share, ..OAKEN_LPDDR }))
        });
        let seeds = Sensitivity::of("seed", &base, &[seed + 100, seed + 200], |&seed| of(&both(seed, 1.0), LPDDR));
        let deviations =
            Sensitivity::of("deviation of lengths over the base", &base, &[0.5], |&part| of(&both(seed, part), LPDDR));
        row.sensitive(shares).sensitive(seeds).sensitive(deviations)
    };
    let little = |model: &Architecture| few.iter().map(|few| few.over(LPDDR, VLLM, model)).collect::<Vec<f64>>();
    let growth = |model: &Architecture| {
        let both = [&conversation, &burst].into_iter().zip(&few);
        both.map(|(many, few)| many.over(LPDDR, VLLM, model) / few.over(LPDDR, VLLM, model)).collect::<Vec<f64>>()
    };
    let window = |base: &[f64], value: &dyn Fn(&Architecture) -> Vec<f64>| {
        Sensitivity::from("window", base, vec![WINDOW.to_string()], vec![value(&mixtral.window(WINDOW))])
    };
    let (little_base, growth_base) = (little(&mixtral), growth(&mixtral));
    let (little_window, growth_window) = (window(&little_base, &little), window(&growth_base, &growth));
    vec![
        Measured::new("oaken.figure14.outputs", longer, OUTPUTS).sensitive(longer_chats),
        Measured::new("oaken.figure14.gain", gains, DRAWN).sensitive(gains_chats),
        variants(
            Measured::new("oaken.figure14.llama", drawn.map(|one| advantage(one, LPDDR)).to_vec(), DRAWN),
            &advantages,
        ),
        variants(Measured::new("oaken.figure14.tender", drawn.map(padding).to_vec(), DRAWN), &paddings),
        Measured::new("oaken.figure14.mixtral", little_base, DRAWN).sensitive(little_window),
        Measured::new("oaken.figure14.mixtral-growth", growth_base, DRAWN).sensitive(growth_window),
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
