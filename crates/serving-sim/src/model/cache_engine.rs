//! The cache engine in hardware: cycles of its RTL, and what follows from them at a clock.
//!
//! The cycles are those of `rtl/cycles.json`, which a simulation of the RTL measures; a test compares
//! them. The clock is the caller's assumption: nothing here supports one. The equations are
//! CXL-SpecKV's (§3.5), with the numbers of this RTL.

use super::Link;

/// Values of the page that was measured: 2 heads, 16 tokens and 64 channels.
pub const PAGE_VALUES: u64 = 2 * 16 * 64;
/// Its bytes: two a value.
pub const PAGE_BYTES: u64 = PAGE_VALUES * 2;

/// Cycles of one direction of a codec, for pages of [`PAGE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineCycles {
    /// From a page's first beat in to its first beat out.
    pub latency: u64,
    /// From page to page.
    pub page_interval: u64,
}

impl PipelineCycles {
    /// Values a cycle, in pages that follow each other.
    #[must_use]
    pub const fn values_per_cycle(&self) -> f64 {
        PAGE_VALUES as f64 / self.page_interval as f64
    }

    /// The pipeline at a clock, as a link that carries pages. Its latency is rounded up to whole
    /// nanoseconds.
    #[must_use]
    pub const fn at(&self, clock_hz: u64) -> Link {
        Link {
            bytes_per_s: PAGE_BYTES * clock_hz / self.page_interval,
            latency_ns: (self.latency * 1_000_000_000).div_ceil(clock_hz),
        }
    }
}

/// Cycles of both directions of a codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecCycles {
    /// Encoding.
    pub encode: PipelineCycles,
    /// Decoding.
    pub decode: PipelineCycles,
}

const fn cycles(encode: [u64; 2], decode: [u64; 2]) -> CodecCycles {
    CodecCycles {
        encode: PipelineCycles { latency: encode[0], page_interval: encode[1] },
        decode: PipelineCycles { latency: decode[0], page_interval: decode[1] },
    }
}

/// SpecKV's pipelines.
pub const SPECKV: CodecCycles = cycles([185, 66], [13, 66]);
/// QPack's.
pub const QPACK: CodecCycles = cycles([51, 67], [14, 67]);
/// Oaken's. The latency of encoding is a token's, that of decoding has its grids in it.
pub const OAKEN: CodecCycles = cycles([62, 64], [48, 65]);
/// SpecKV's, with AXI, frames and checksums.
pub const SPECKV_FRAMES: CodecCycles = cycles([271, 66], [17, 66]);
/// Raw frames, which bypass SpecKV's decoder (SpecKV §3.5.3), with AXI and checksums.
pub const BYPASS: PipelineCycles = PipelineCycles { latency: 5, page_interval: 66 };
/// Address translation: cycles of a hit, and what a walk adds with a memory of [`ATU_MEMORY_CYCLES`].
pub const ATU: [u64; 2] = [3, 13];
/// Reads of the page table in a walk.
pub const ATU_READS: u64 = 3;
/// Latency of the memory that answered them where [`ATU`] was measured.
pub const ATU_MEMORY_CYCLES: u64 = 3;
/// What a read of a frame takes before its first beat, besides the memory's latency, if its page is
/// translated already.
pub const READ: u64 = 10;
/// Lines that one to four engines ask for in 10,000 cycles, each for a random line in every cycle, over
/// sixteen channels.
pub const LINES: [u64; 4] = [10_000, 19_371, 28_092, 36_232];
/// Reads that are open at once.
const OPEN: u64 = 16;

/// Cycles of gathering `beats` beats from a memory of a latency, from the list to the last beat
/// (SpecKV §3.5.1).
#[must_use]
pub const fn gather_cycles(beats: u64, latency: u64) -> u64 {
    let (rounds, each) = (beats.div_ceil(OPEN), if latency + 2 > OPEN { latency + 2 } else { OPEN });
    let in_last = beats - (rounds - 1) * OPEN;
    (rounds - 1) * each + latency + 3 + in_last
}

/// What contention for channels takes from each of one to four engines (SpecKV §3.5.5, eq. 6).
#[must_use]
pub fn contention(engines: usize) -> f64 {
    1.0 - LINES[engines - 1] as f64 / (engines as u64 * LINES[0]) as f64
}

/// Mean latency of decoding if a share of the frames is raw (SpecKV §3.5.3).
#[must_use]
pub fn decoding_latency(raw_share: f64) -> f64 {
    (1.0 - raw_share) * SPECKV_FRAMES.decode.latency as f64 + raw_share * BYPASS.latency as f64
}

/// Mean cycles of a translation (SpecKV §3.5.1, eq. 1): `L_hit + (1 - H) · L_walk`.
#[must_use]
pub fn translation_cycles(hit_rate: f64, hit: f64, walk: f64) -> f64 {
    hit + (1.0 - hit_rate) * walk
}

/// Throughput of `engines` engines over a memory (SpecKV §3.5.5, eq. 6): what contention leaves of
/// their sum, at most the memory's.
#[must_use]
pub fn aggregate_bytes_per_s(engines: u32, single: u64, contention: f64, memory: u64) -> u64 {
    ((f64::from(engines) * single as f64 * (1.0 - contention)) as u64).min(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// The simulator's cycles are the measured ones.
    #[test]
    fn cycles_are_those_that_the_rtl_takes() {
        let text = include_str!("../../../../rtl/cycles.json");
        let measured: Value = serde_json::from_str(text).expect("cargo run -p cenote-rtl -- cycles prints JSON");
        let of = |name: &str| measured[name].as_u64().unwrap_or_else(|| panic!("rtl/cycles.json has no `{name}`"));
        assert_eq!(measured["page"], "2 heads, 16 tokens, 64 channels, f16", "PAGE_BYTES is of this shape");
        for (codec, cycles) in [("speckv", SPECKV), ("qpack", QPACK), ("oaken", OAKEN)] {
            for (direction, cycles) in [("encode", cycles.encode), ("decode", cycles.decode)] {
                let latency = of(&format!("{codec}_{direction}.latency"));
                let page_interval = of(&format!("{codec}_{direction}.page_interval"));
                assert_eq!(cycles, PipelineCycles { latency, page_interval }, "{codec}_{direction}");
            }
        }
        let frames = |direction: &str| PipelineCycles {
            latency: of(&format!("cache_engine.{direction}.latency")),
            page_interval: of(&format!("cache_engine.{direction}.page_interval")),
        };
        assert_eq!(SPECKV_FRAMES, CodecCycles { encode: frames("encode"), decode: frames("decode") });
        assert_eq!(BYPASS, frames("bypass"));
        assert_eq!(ATU, [of("atu.hit_latency"), of("atu.walk")]);
        assert_eq!(READ + 12, of("memory_path.read_at_latency_12"));
        for latency in [8, 12, 14, 64] {
            assert_eq!(
                gather_cycles(1024, latency),
                of(&format!("dma_read.kilobeat_at_latency_{latency}")),
                "{latency}"
            );
        }
        assert_eq!(LINES, [1, 2, 3, 4].map(|engines| of(&format!("channel_front.lines_in_10000_cycles_of_{engines}"))));
    }

    #[test]
    fn speckv_carries_nearly_a_beat_a_cycle() {
        let link = SPECKV.encode.at(800_000_000);
        assert_eq!(link, Link { bytes_per_s: 49_648_484_848, latency_ns: 232 });
    }

    /// Both of Oaken's engines carry 64 bytes of values a cycle, as SpecKV's do.
    #[test]
    fn oaken_streams_a_beat_a_cycle() {
        let [encode, decode] = [OAKEN.encode, OAKEN.decode].map(|cycles| cycles.values_per_cycle());
        assert!((31.0..=32.0).contains(&encode) && (31.0..=32.0).contains(&decode), "{encode} {decode}");
        assert!(SPECKV.encode.values_per_cycle() > 31.0);
    }

    #[test]
    fn the_memory_bounds_many_engines() {
        assert_eq!(aggregate_bytes_per_s(2, 400, 0.25, 1_000), 600);
        assert_eq!(aggregate_bytes_per_s(8, 400, 0.0, 1_000), 1_000);
    }

    /// Engines that ask sixteen channels at random get the channels that are named at least once.
    #[test]
    fn engines_collide_as_often_as_chance_has_it() {
        for engines in 1..=4 {
            let named = 16.0 * (1.0 - (15.0_f64 / 16.0).powi(engines));
            let measured = 1.0 - contention(engines as usize);
            assert!((measured - named / f64::from(engines)).abs() < 5e-3, "{engines} engines: {measured}");
        }
    }

    #[test]
    fn raw_frames_and_misses_count_by_their_share() {
        assert!((decoding_latency(0.0) - SPECKV_FRAMES.decode.latency as f64).abs() < 1e-9);
        assert!((decoding_latency(1.0) - BYPASS.latency as f64).abs() < 1e-9);
        assert!((translation_cycles(0.75, 3.0, 40.0) - 13.0).abs() < 1e-9);
    }
}
