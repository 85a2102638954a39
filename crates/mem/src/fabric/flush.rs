//! The instruction that moves a line between a cache and the device, and those that this processor
//! has.

mod instructions;
mod whole_line;

pub(crate) use instructions::prefetch;
pub(super) use instructions::{STREAMS, drain, drain_streams, loads_first};
pub(super) use whole_line::WholeLine;

use std::fmt;
use std::str::FromStr;

/// The instruction that moves a line between a cache and the device: chosen once per region,
/// recorded in its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flush {
    /// None: all processes that share the region share their caches too. One host.
    None = 0,
    /// x86 `clflush`: writes the line back and drops it, ordered with stores and other `clflush`.
    Clflush = 1,
    /// x86 `clflushopt`: as `clflush`, but ordered by fences only.
    ClflushOpt = 2,
    /// x86 `clwb` to publish, which may keep the line, and `clflushopt` to refresh, which must not.
    Clwb = 3,
    /// Arm `dc civac`: clean and invalidate to the point of coherency, ordered by `dsb`.
    DcCivac = 4,
}

impl Flush {
    const ALL: [Self; 5] = [Self::None, Self::Clflush, Self::ClflushOpt, Self::Clwb, Self::DcCivac];

    /// The instructions of this processor, best last; [`Flush::None`] is never among them.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let has = crate::cpu::flush_instructions();
        let wanted = [
            (Self::Clflush, has.clflush),
            (Self::ClflushOpt, has.clflushopt),
            (Self::Clwb, has.clwb && has.clflushopt),
            // Every AArch64 processor has it, and Linux allows it in programs.
            (Self::DcCivac, cfg!(target_arch = "aarch64")),
        ];
        wanted.into_iter().filter_map(|(flush, there)| there.then_some(flush)).collect()
    }

    /// The best instruction of this processor, for a region of hosts with the same processor.
    /// `None` on architectures without a supported instruction.
    #[must_use]
    pub fn best() -> Option<Self> {
        Self::available().pop()
    }

    /// Name on command lines and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Clflush => "clflush",
            Self::ClflushOpt => "clflushopt",
            Self::Clwb => "clwb",
            Self::DcCivac => "dc-civac",
        }
    }

    /// The instruction with this number in a superblock; `None` if the number is unknown.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|flush| *flush as u64 == number)
    }

    /// Whether caches are coherent without flushes.
    #[must_use]
    pub const fn is_coherent(self) -> bool {
        matches!(self, Self::None)
    }
}

impl fmt::Display for Flush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Text that names no flush instruction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no flush instruction: none, clflush, clflushopt, clwb or dc-civac")]
pub struct ParseFlushError(String);

impl FromStr for Flush {
    type Err = ParseFlushError;

    /// Parses the names that [`Flush::name`] returns.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|flush| flush.name() == text).ok_or_else(|| ParseFlushError(text.to_owned()))
    }
}

/// This processor lacks a region's flush instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedFlush {
    /// The requested instruction.
    pub flush: Flush,
}

impl std::error::Error for UnsupportedFlush {}

impl fmt::Display for UnsupportedFlush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.flush.is_coherent() {
            return f.write_str("memory that hosts share without coherence needs a flush instruction");
        }
        let has = Flush::available().into_iter().map(Flush::name).collect::<Vec<_>>().join(", ");
        let has = if has.is_empty() { "none that is known" } else { &has };
        write!(f, "this processor lacks the flush instruction {} (it has {has})", self.flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back() {
        for flush in Flush::ALL {
            assert_eq!(flush.name().parse(), Ok(flush));
            assert_eq!(Flush::from_number(flush as u64), Some(flush));
        }
        assert_eq!(Flush::from_number(5), None);
        let error = "CLWB".parse::<Flush>().expect_err("names are lower case");
        assert!(error.to_string().starts_with("`CLWB` is no flush instruction"), "{error}");
    }

    #[test]
    fn every_supported_processor_has_one() {
        let available = Flush::available();
        assert!(!available.contains(&Flush::None));
        assert_eq!(Flush::best(), available.last().copied());
        if cfg!(target_arch = "x86_64") {
            assert_eq!(available[0], Flush::Clflush);
        }
        if cfg!(target_arch = "aarch64") {
            assert_eq!(available, [Flush::DcCivac]);
        }
    }
}
