//! Latencies that the heads of modules state, against simulation.

use crate::bench::{Bench, Failure};
use crate::checks::same;
use crate::cycles::Measured;
use cenote_base::prng::Prng;
use std::fs;
use std::path::Path;

/// Modules of `rtl/common/latency_bench.sv` whose data are seen.
const DATA: [&str; 15] = [
    "fadd",
    "fmul",
    "fdiv_pipe",
    "to_f16",
    "to_bf16",
    "to_16",
    "to_int",
    "quant_lane",
    "dequant_lane",
    "qpack_code_lane",
    "qpack_channel_enc",
    "qpack_channel_dec",
    "oaken_decompose_lane",
    "oaken_code_lane",
    "oaken_value_lane",
];
/// Those that say when a beat leaves, the words before their latency, and the cycles in which the bench
/// or its memory prepares their beat.
const STREAMS: [(&str, &str, u64); 32] = [
    ("oaken_bounds", "Latency", 0),
    ("delta_enc", "Latency", 0),
    ("delta_dec", "Latency", 0),
    ("run_count", "Latency", 0),
    ("run_mark", "Latency", 0),
    ("run_parse", "Latency", 0),
    ("run_expand", "Latency", 0),
    ("page_max", "Latency", 0),
    ("crc32_stream", "Latency", 0),
    ("byte_pack", "Latency", 0),
    ("slice", "Latency", 0),
    ("fifo", "Latency", 0),
    ("page_split", "Latency", 0),
    ("fdiv", "Latency", 0),
    ("scale", "Latency", 0),
    ("oaken_grid", "Latency", 0),
    ("oaken_grids", "Latency", 0),
    ("crc32_zeros", "Latency", 0),
    ("channel_front", "Latency", 0),
    ("port_share", "Latency", 0),
    ("compact", "Latency", 0),
    ("page_fifo", "Latency", 1),
    ("run_emit", "Latency", 0),
    ("dma_write", "Latency", 1),
    ("translate", "Latency", 0),
    ("oaken_table", "Latency", 0),
    ("oaken_lines", "Latency", 1),
    ("oaken_fetch", "Latency of each head", 1),
    ("channel_back", "Latency", 0),
    ("service_meter", "Latency", 1),
    ("byte_unpack", "Latency", 0),
    ("axi_lite_regs", "Latency", 0),
];
/// No module has more.
const LATENCY_MAX: u64 = 40;
const TRIALS: usize = 12;

/// The comment at the head of a module's file, without its line breaks.
fn head_of(module: &str) -> Result<String, Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rtl");
    let folders = fs::read_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    let texts = folders.filter_map(|folder| fs::read_to_string(folder.ok()?.path().join(format!("{module}.sv"))).ok());
    let text = texts.last().ok_or_else(|| format!("no folder has `{module}.sv`"))?;
    let lines = text.lines().map_while(|line| line.strip_prefix("//"));
    Ok(lines.map(str::trim).collect::<Vec<&str>>().join(" "))
}

/// The number behind `words` in the head of a module.
fn stated(module: &str, words: &str) -> Result<u64, Failure> {
    let head = head_of(module)?;
    let at = head.find(words).ok_or_else(|| format!("the head of `{module}` does not say `{words}`"))?;
    let digits: String = head[at + words.len()..].chars().skip(1).take_while(char::is_ascii_digit).collect();
    digits.parse().map_err(|_| format!("the head of `{module}` has no number behind `{words}`"))
}

/// Every pipeline of the bench needs the cycles of its head, and gives its data at once: a change of
/// its inputs changes its outputs in one cycle.
///
/// # Errors
/// A latency differs.
pub fn pipelines() -> Result<(), Failure> {
    let mut prng = Prng::new(0x1a7e);
    let mut bench = Bench::new("latency_bench", 1);
    let (go, word) = (bench.model.pin("go"), bench.model.pin("word"));
    let pin = |bench: &Bench, prefix: &str, module: &str| bench.model.pin(&format!("{prefix}_{module}"));
    let data = DATA.map(|module| pin(&bench, "y", module));
    let streams = STREAMS.map(|(module, ..)| pin(&bench, "v", module));
    bench.model.set(go, 0);
    bench.reset();
    // Registers without a reset still have random bits.
    (0..LATENCY_MAX).for_each(|_| bench.step_alone());
    let mut seen = [0; DATA.len()];
    for trial in 0..TRIALS {
        let words: Vec<u32> = (0..word.words()).map(|_| prng.next_u64() as u32).collect();
        let outputs = |bench: &Bench| {
            data.map(|pin| {
                let mut words = vec![0; pin.words()];
                bench.model.get_words(pin, &mut words);
                words
            })
        };
        let mut before = outputs(&bench);
        bench.model.set_words(word, &words);
        bench.model.set(go, 1);
        let (mut changes, mut leaves) = (vec![Vec::new(); DATA.len()], vec![Vec::new(); STREAMS.len()]);
        for cycle in 1..=LATENCY_MAX {
            bench.step_alone();
            bench.model.set(go, 0);
            bench.model.eval();
            let now = outputs(&bench);
            for (at, changes) in changes.iter_mut().enumerate().filter(|(at, _)| now[*at] != before[*at]) {
                changes.push(cycle);
                seen[at] += 1;
            }
            before = now;
            let left = streams.iter().zip(&mut leaves).filter(|(pin, _)| bench.model.get(**pin) == 1);
            left.for_each(|(_, leaves)| leaves.push(cycle));
        }
        for (module, changes) in DATA.iter().zip(changes).filter(|(_, changes)| !changes.is_empty()) {
            same(&format!("latency of `{module}`"), &changes, &vec![stated(module, "Latency")?])?;
        }
        // The first trial fills the table of translations.
        for ((module, words, before), leaves) in STREAMS.iter().zip(leaves).filter(|_| trial > 0) {
            same(&format!("latency of `{module}`"), &leaves, &vec![stated(module, words)? + before])?;
        }
    }
    same("modules whose data changed", &seen.map(|count| count > 0), &[true; DATA.len()])
}

/// Beats of a page of [`crate::cycles`], of one of its tokens, and of a head's 16 tokens; bits of the
/// bytes of a measured payload.
const BEATS: u64 = 64;
const TOKENS: u64 = crate::cycles::SHAPE.tokens as u64;
const OF_TOKEN: u64 = BEATS / TOKENS;
const OF_GROUP: u64 = BEATS / 2;
/// What the bounds of a page's first token take, as the head of `oaken_decode` says behind its latency.
const GRIDS: u64 = 36;
const LENGTH_BITS: u64 = (BEATS * 64).ilog2() as u64 + 1;
/// What [`crate::cycles`] measures, the module, the words before its latency, and cycles that are not
/// in its head.
const ENGINES: [(&str, &str, &str, u64); 12] = [
    ("speckv_encode.latency", "speckv_encode", "beat to its first:", 2 * BEATS),
    ("speckv_decode.latency", "speckv_decode", "Latency", 0),
    ("qpack_encode.latency", "qpack_encode", "Latency", OF_GROUP),
    ("qpack_decode.latency", "qpack_decode", "Latency", 0),
    ("oaken_encode.latency", "oaken_encode", "beat to its first:", OF_TOKEN - 1),
    ("oaken_decode.latency", "oaken_decode", "Latency", GRIDS),
    ("frame_write.latency", "frame_write", "Latency", BEATS - 1 + LENGTH_BITS),
    ("frame_read.latency", "frame_read", "Latency", 0),
    // A slice before it, and the order of frames behind it.
    ("cache_engine.bypass.latency", "frame_read", "Latency", 2),
    ("atu.hit_latency", "atu", "Latency of a hit", 0),
    ("dma_read.kilobeat_at_latency_12", "dma_read", "Latency", 1024 + 12),
    ("memory_path.read_at_latency_12", "memory_path", "Latency of a read", 12),
];

/// The heads of engines state the latencies that [`crate::cycles`] measures, for its pages of 64 beats.
///
/// # Errors
/// A latency differs, or was not measured.
pub fn engines(measured: &Measured) -> Result<(), Failure> {
    for (name, module, words, more) in ENGINES {
        let found = measured.iter().find(|(known, _)| known == name);
        let (_, cycles) = found.ok_or_else(|| format!("`{name}` was not measured"))?;
        same(&format!("`{name}` by the head of `{module}`"), cycles, &(stated(module, words)? + more))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every module whose head states cycles is measured, here or by [`crate::cycles`].
    #[test]
    fn every_stated_latency_is_measured() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rtl");
        let mut stated = 0;
        for folder in fs::read_dir(&root).unwrap().flatten().filter(|folder| folder.path().is_dir()) {
            for file in fs::read_dir(folder.path()).unwrap().flatten() {
                let module = file.path().file_stem().unwrap().to_str().unwrap().to_owned();
                let head = head_of(&module).unwrap();
                let digit = head.split("Latency ").nth(1).and_then(|rest| rest.chars().next());
                if !digit.is_some_and(|digit| ('1'..='9').contains(&digit)) {
                    continue;
                }
                stated += 1;
                let streams = STREAMS.iter().map(|(name, ..)| *name);
                let mut known = DATA.into_iter().chain(streams).chain(ENGINES.iter().map(|(_, name, ..)| *name));
                assert!(known.any(|name| name == module), "the latency in the head of `{module}` is not measured");
            }
        }
        assert!(stated > 40, "{stated}");
    }
}
