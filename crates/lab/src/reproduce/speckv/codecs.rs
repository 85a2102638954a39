//! Table 9 and the claims about values in §3.1, by the product's codecs on the demo model.

use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_base::Clock;
use cenote_codec::{CodecSpec, PageKind};
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
        "speckv.s3-1.delta",
        "speckv.s3-1.layer-ratios",
        "speckv.s3-5-2.ratio",
    ],
    is_quick: false,
    run,
};

const CODECS: [&str; 4] = ["raw", "int8", "int8+delta", "int8+delta+rle"];
const WINDOWS: usize = 6;
const CONTEXT: usize = 256;
const BLOCK_TOKENS: usize = 32;
/// Other settings that the paper leaves open.
const OTHER_BLOCKS: [usize; 2] = [16, 64];
const OTHER_CONTEXT: usize = 128;

const WHY: &str = "demo model, 6 windows of 256 tokens of its own text; neighbouring channels are not alike, so differences \
                   take more bits and a page that would grow stays INT8";
const LAYERS: &str = "demo model of four layers, INT8 with differences and runs, which hardly compress";
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

/// The evaluation, and each codec's bits by layer.
fn evaluated(window_tokens: usize, block_tokens: usize) -> Option<(Evaluation, Vec<Vec<u64>>)> {
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
    let borrowed: Vec<&dyn Subject> = subjects.iter().map(|subject| subject as &dyn Subject).collect();
    let evaluation = evaluate(&model, &windows, block_tokens, &borrowed, &mut |_| ()).ok()?;
    let bits = subjects.iter().map(|subject| subject.bits.lock().expect("done").values().copied().collect());
    Some((evaluation, bits.collect()))
}

fn run(_: &Context) -> Vec<Measured> {
    const IDS: [&str; 8] = [
        "speckv.table9.ratio",
        "speckv.table9.steps",
        "speckv.table9.loss",
        "speckv.s3-1.int8",
        "speckv.s3-1.int8-ratio",
        "speckv.s3-1.delta",
        "speckv.s3-1.layer-ratios",
        "speckv.s3-5-2.ratio",
    ];
    let mut rows = vec![Measured::not_testable("speckv.table9.perplexity", "needs a real LLaMA-2 70B")];
    let settings = [
        (CONTEXT, BLOCK_TOKENS),
        (CONTEXT, OTHER_BLOCKS[0]),
        (CONTEXT, OTHER_BLOCKS[1]),
        (OTHER_CONTEXT, BLOCK_TOKENS),
    ];
    let all: Option<Vec<Values>> = settings.iter().map(|&(window, block)| values(window, block)).collect();
    let Some([base, small, large, short]) = all.and_then(|all| <[Values; 4]>::try_from(all).ok()) else {
        rows.extend(IDS.map(|id| Measured::not_testable(id, NO_MODEL)));
        return rows;
    };
    let whys = [
        WHY,
        WHY,
        WHY,
        "share of tokens after which the demo model chooses the same next one",
        "headers and scales count",
        WHY,
        LAYERS,
        LAYERS,
    ];
    rows.extend((0..IDS.len()).map(|at| {
        let blocks = vec![small[at].clone(), large[at].clone()];
        let blocks =
            Sensitivity::from("tokens of a page", &base[at], OTHER_BLOCKS.map(|of| of.to_string()).to_vec(), blocks);
        let windows = vec![short[at].clone()];
        let windows = Sensitivity::from("tokens of a window", &base[at], vec![OTHER_CONTEXT.to_string()], windows);
        Measured::new(IDS[at], base[at].clone(), whys[at]).sensitive(blocks).sensitive(windows)
    }));
    rows
}

/// The values of all rows.
type Values = [Vec<f64>; 8];

/// The values of the rows, in the order of their ids.
fn values(window_tokens: usize, block_tokens: usize) -> Option<Values> {
    let (evaluation, bits) = evaluated(window_tokens, block_tokens)?;
    let codecs = &evaluation.codecs;
    let ratios: Vec<f64> = codecs.iter().map(|codec| codec.ratio).collect();
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
        codecs.iter().map(|codec| codec.harm.loss_percent).collect(),
        vec![100.0 * codecs[1].harm.greedy_agreement],
        vec![ratios[1] / ratios[0]],
        vec![ratios[2] / ratios[1]],
        thirds,
        vec![least, each.iter().sum::<f64>() / layers as f64, most],
    ])
}
