// Shared with build.rs, which cannot name the crate. No module comment, because it is included.

/// A module that becomes a model.
pub struct Top {
    /// The name of the model.
    pub name: &'static str,
    /// The module.
    pub module: &'static str,
    /// Parameters, `NAME=VALUE`.
    pub parameters: &'static [&'static str],
}

const fn top(module: &'static str) -> Top {
    Top { name: module, module, parameters: &[] }
}

/// The model of the feature `whole`.
pub const WHOLE: Top = Top { name: "cache_system", module: "cache_system", parameters: &["DEPTH=256"] };

/// All other models, those that take longest to build first.
pub const TOPS: &[Top] = &[
    Top { name: "cache_engine", module: "cache_engine", parameters: &["DEPTH=256"] },
    top("oaken_engine"),
    top("memory_path"),
    top("float_bench"),
    top("latency_bench"),
    top("byte_pack"),
    Top { name: "compact", module: "compact", parameters: &["N=64", "W=8", "U=7"] },
    Top { name: "speckv_encode", module: "speckv_encode", parameters: &["DEPTH=256"] },
    top("speckv_decode"),
    top("qpack_encode"),
    top("qpack_decode"),
    top("oaken_encode"),
    top("oaken_decode"),
    top("oaken_store"),
    top("atu"),
    top("dma_read"),
    top("dma_write"),
    top("service_meter"),
    top("wrr_weights"),
    top("channel_front"),
    Top { name: "frame_write", module: "frame_write", parameters: &["DEPTH=256"] },
    top("frame_read"),
];
