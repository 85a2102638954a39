//! Table 9 and the claims about values in §3.1, by the product's codecs on the demo model.
//!
//! The values are another model's than the paper's, so they stand beside the paper's and decide no row. The
//! entropies say what any coder of order 0 could gain on them.

use crate::reproduce::row::Measured;
use crate::reproduce::{Context, Experiment};
use cenote_base::Clock;
use cenote_codec::{CodecSpec, Page, PageKind};
use cenote_console::engine::named_dir;
use cenote_console::input;
use cenote_engine::{EngineConfig, LoadedModel};
use cenote_quality::evaluate::{Evaluation, evaluate};
use cenote_quality::text::Windows;
use cenote_quality::{CodecSubject, StudyError, Subject};
use std::collections::BTreeMap;
use std::io::BufReader;
use std::sync::Mutex;

pub const EXPERIMENT: Experiment = Experiment {
    id: "speckv.codecs",
    title: "codecs on the demo model",
    covers: &[
        "speckv.table9",
        "speckv.s3-1.int8",
        "speckv.s3-1.int8-ratio",
        "speckv.s3-1.layer-ratios",
        "speckv.s3-5-2.ratio",
    ],
    is_quick: false,
    draws: false,
    run,
};

const CODECS: [&str; 4] = ["raw", "int8", "int8+delta", "int8+delta+rle"];
const WINDOWS: usize = 6;
const CONTEXT: usize = 256;
const BLOCK_TOKENS: usize = 32;
const FORMAT: &str = "a count of the format's bytes";

const WHY: &str = "another model than the paper's; beside: the demo model of 3.4 million parameters, 6 windows of 256 tokens \
                   of its own text";
const LAYERS: &str =
    "another model than the paper's; beside: the demo model of four layers, INT8 with differences and runs";
const ENTROPY: &str = "another model than the paper's; beside: the demo model. Differences take more bits than codes, so that no \
                       coder gains by them there";
const NO_MODEL: &str = "the demo model (models/demo) is not here";

/// A codec that counts its bits by layer.
struct ByLayer {
    codec: CodecSubject,
    bits: Mutex<BTreeMap<u32, u64>>,
}

impl Subject for ByLayer {
    fn name(&self) -> String {
        self.codec.name()
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        let bits = self.codec.round_trip(kind, page)?;
        *self.bits.lock().expect("no round trip panicked").entry(u32::from(kind.layer)).or_default() += bits;
        Ok(bits)
    }
}

/// Counts of codes of eight bits and of their differences along channels and along tokens.
struct Codes(Mutex<[Vec<u64>; 3]>);

/// Differences of two codes from -127 to 127, from 0.
const DIFFERENCES: usize = 4 * 127 + 1;

impl Codes {
    /// Bits of an ideal coder of order 0 for each.
    fn entropies(&self) -> Vec<f64> {
        let of = |counts: &Vec<u64>| {
            let all = counts.iter().sum::<u64>() as f64;
            let part = |count: &u64| *count as f64 / all;
            counts.iter().filter(|count| **count > 0).map(|count| -part(count) * part(count).log2()).sum()
        };
        self.0.lock().expect("done").iter().map(of).collect()
    }
}

impl Subject for Codes {
    fn name(&self) -> String {
        "codes".to_owned()
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        let (heads, dim) = (usize::from(kind.shape.heads), usize::from(kind.shape.dim));
        let page = Page::new(*kind, page);
        let mut values = vec![vec![0.0; kind.shape.head_values()]; heads];
        values.iter_mut().enumerate().for_each(|(head, values)| page.read_head(head, values));
        // One scale a page, as in Algorithm 2.
        let most = values.iter().flatten().fold(0.0_f32, |most, value| most.max(value.abs())).max(f32::MIN_POSITIVE);
        let mut counts = self.0.lock().expect("no round trip panicked");
        for head in values {
            let codes: Vec<i32> = head.iter().map(|value| (value / most * 127.0).round() as i32).collect();
            for (at, &code) in codes.iter().enumerate() {
                let mut count = |which: usize, value: i32| counts[which][(value + 2 * 127) as usize] += 1;
                count(0, code);
                if at % dim > 0 {
                    count(1, code - codes[at - 1]);
                }
                if at >= dim {
                    count(2, code - codes[at - dim]);
                }
            }
        }
        Ok(16 * kind.shape.values() as u64)
    }
}

/// The evaluation, and each codec's bits by layer, and the entropies of the codes.
fn evaluated(window_tokens: usize, block_tokens: usize) -> Option<(Evaluation, Vec<Vec<u64>>, Vec<f64>)> {
    let dir = named_dir(None).ok()?;
    let model =
        LoadedModel::load(&EngineConfig { threads: 1, ..EngineConfig::new(dir.clone(), Clock::stopped()) }).ok()?;
    let text = BufReader::new(input::open(dir.join("demo.txt")).ok()?);
    let windows = Windows::new(text, model.tokenizer(), window_tokens).take_some(WINDOWS).ok()?;
    let subject = |name: &str| {
        let spec: CodecSpec = name.parse().expect("a codec of ours");
        let codec = CodecSubject::new(name, spec.build(None).expect("it needs no profile"));
        ByLayer { codec, bits: Mutex::default() }
    };
    let subjects = CODECS.map(subject);
    let codes = Codes(Mutex::new(std::array::from_fn(|_| vec![0; DIFFERENCES])));
    let borrowed: Vec<&dyn Subject> =
        subjects.iter().map(|subject| subject as &dyn Subject).chain([&codes as &dyn Subject]).collect();
    let evaluation = evaluate(&model, &windows, block_tokens, &borrowed, &mut |_| ()).ok()?;
    let bits = subjects.iter().map(|subject| subject.bits.lock().expect("done").values().copied().collect());
    Some((evaluation, bits.collect(), codes.entropies()))
}

fn run(_: &Context) -> Vec<Measured> {
    const IDS: [(&str, &str); 8] = [
        ("speckv.table9.ratio", WHY),
        ("speckv.table9.steps", WHY),
        ("speckv.table9.loss", WHY),
        ("speckv.table9.entropy", ENTROPY),
        ("speckv.s3-1.int8", WHY),
        ("speckv.s3-1.int8-ratio", "headers and scales count"),
        ("speckv.s3-1.layer-ratios", LAYERS),
        ("speckv.s3-5-2.ratio", LAYERS),
    ];
    let mut rows = vec![Measured::not_testable("speckv.table9.perplexity", "needs a real LLaMA-2 70B")];
    let Some(values) = values(CONTEXT, BLOCK_TOKENS) else {
        rows.extend(IDS.map(|(id, _)| Measured::not_testable(id, NO_MODEL)));
        return rows;
    };
    rows.extend(IDS.into_iter().zip(values).map(|((id, why), values)| match id {
        // Bytes of the format do not depend on the model.
        "speckv.s3-1.int8-ratio" => Measured::new(id, values, why).fixed(FORMAT).tied("eight bits of sixteen"),
        _ => Measured::beside(id, why, values),
    }));
    rows
}

/// The values of all rows.
type Values = [Vec<f64>; 8];

/// The values of the rows, in the order of their ids.
fn values(window_tokens: usize, block_tokens: usize) -> Option<Values> {
    let (evaluation, bits, entropies) = evaluated(window_tokens, block_tokens)?;
    let codecs = &evaluation.codecs;
    let ratios: Vec<f64> = codecs[..CODECS.len()].iter().map(|codec| codec.ratio).collect();
    let layers = bits[0].len();
    let mean = |of: std::ops::Range<usize>| {
        let of_bits = |bits: &[u64]| bits[of.clone()].iter().sum::<u64>() as f64;
        of_bits(&bits[0]) / of_bits(&bits[3])
    };
    // Layers below a third and above two thirds.
    let thirds = vec![mean(0..layers.div_ceil(3)), mean((2 * layers).div_ceil(3)..layers)];
    let each: Vec<f64> = (0..layers).map(|layer| mean(layer..layer + 1)).collect();
    let least = each.iter().copied().fold(f64::INFINITY, f64::min);
    let most = each.iter().copied().fold(0.0, f64::max);
    Some([
        ratios.clone(),
        [2, 3].map(|step| 100.0 * (ratios[step] / ratios[step - 1] - 1.0)).to_vec(),
        codecs[..CODECS.len()].iter().map(|codec| codec.harm.loss_percent).collect(),
        entropies,
        vec![100.0 * codecs[1].harm.greedy_agreement],
        vec![ratios[1] / ratios[0]],
        thirds,
        vec![least, each.iter().sum::<f64>() / layers as f64, most],
    ])
}
