//! A trace in a file of one of the formats.

use super::{
    AGENTIC_BLOCK_TOKENS, BadLine, Conversations, MOONCAKE_BLOCK_TOKENS, Read, Sessions, TraceError, read_agentic,
    read_azure, read_burstgpt, read_mooncake,
};
use std::io::BufReader;
use std::path::Path;

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// [`read_mooncake`].
    Mooncake,
    /// [`read_azure`].
    Azure,
    /// [`read_burstgpt`].
    BurstGpt,
    /// [`read_agentic`].
    Agentic(Sessions),
}

/// Invalid lines that are listed individually; the others are counted.
const BAD_LINES_TOLD: usize = 5;

impl TraceFormat {
    /// By a file's name: `.csv` is Azure's, all others are Mooncake's.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        match path.extension() {
            Some(ending) if ending.eq_ignore_ascii_case("csv") => Self::Azure,
            _ => Self::Mooncake,
        }
    }

    /// Reads a file. Invalid lines are skipped and listed, or are an error if `strict` is set.
    ///
    /// # Errors
    /// Reading failed, the trace has no requests, or a line is invalid and `strict` is set.
    pub fn read(self, file: impl std::io::Read, block_tokens: u32, strict: bool) -> Result<Read, TraceError> {
        let reader = BufReader::with_capacity(1 << 20, file);
        match self {
            Self::Mooncake => read_mooncake(reader, block_tokens, strict),
            Self::Azure => read_azure(reader, block_tokens, strict),
            Self::BurstGpt => read_burstgpt(reader, block_tokens, strict),
            Self::Agentic(sessions) => read_agentic(reader, block_tokens, strict, &sessions),
        }
    }

    /// Tokens of a block of published traces. `None`: the format has no blocks.
    #[must_use]
    pub const fn block_tokens(self) -> Option<u32> {
        match self {
            Self::Mooncake => Some(MOONCAKE_BLOCK_TOKENS),
            Self::Agentic(_) => Some(AGENTIC_BLOCK_TOKENS),
            Self::Azure | Self::BurstGpt => None,
        }
    }
}

fn remarks(notes: &[String], bad: &[BadLine]) -> Vec<String> {
    let mut lines = notes.to_vec();
    lines.extend(bad.iter().take(BAD_LINES_TOLD).map(|bad| format!("{bad}; left out")));
    if let Some(more) = bad.len().checked_sub(BAD_LINES_TOLD).filter(|more| *more > 0) {
        lines.push(format!("{more} more lines were left out"));
    }
    lines
}

impl Conversations {
    /// How they were drawn, and what was left out. In lines.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        remarks(&self.notes, &self.bad)
    }
}

impl Read {
    /// How the load was made, and what was left out. In lines.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        remarks(&self.notes, &self.bad)
    }

    /// Says so if prompts have another number of blocks than their tokens make.
    #[must_use]
    pub fn odd_blocks(&self) -> Option<String> {
        let (requests, block_tokens) = (self.workload.requests().len(), self.workload.block_tokens());
        (self.odd_lengths > 0).then(|| {
            format!(
                "{} of {requests} requests have another number of blocks than their tokens make in blocks of \
                 {block_tokens}",
                self.odd_lengths
            )
        })
    }
}
