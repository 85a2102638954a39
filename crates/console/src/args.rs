//! Flags that both programs have.

mod engine;
mod headings;
mod prices;
mod region;
mod shell;
mod wire;

pub use engine::{CodecArg, DtypeArg, EngineArgs, Predictor, StudiedModelArgs, positive};
pub use headings::with_headings;
pub use prices::MemoryPriceArgs;
pub use region::{
    DesignArg, FlushArg, HostsLockArg, KeyArgs, NewRegionArgs, RegionArgs, SealArgs, WatchArgs, host_slot, parse_flush,
    parse_mode, parse_seal, parse_seconds,
};
pub use shell::{CompletionsArgs, ManArgs};
