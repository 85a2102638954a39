//! A region, mapped to be read. The view joins nothing: its pages cannot be written, and it takes no
//! lock and no pin.

use crate::counts::Miss;
use crate::naming::Naming;
use cenote_base::{BlockHash, ChainHasher, Deadline, HostId};
use cenote_mem::{Flush, ReadMapping, ReadOnly, RegionSource};
use cenote_pool::{AttachOptions, Inspector, NamespaceInfo, Superblock};
use std::sync::Arc;

/// Fewest digits of a fingerprint that name a namespace, as `cenote pool diff` prints them.
const DIGITS_MIN: usize = 12;

/// Blocks that are named and looked up between two looks at the clock.
const PIECE: usize = 128;

pub(crate) struct View {
    fabric: Arc<ReadOnly>,
    inspector: Inspector<Arc<ReadOnly>>,
    /// Identity of the region behind the name when it was opened.
    file: Option<(u64, u64)>,
    identity: [u8; 16],
}

/// A namespace that a query asks.
pub(crate) struct Asked {
    hasher: ChainHasher,
    block_tokens: usize,
}

impl View {
    /// Opens the region. An error is text for the log.
    pub fn open(source: &RegionSource, host_slot: u8) -> Result<Self, String> {
        let file = file_of(source)?;
        let superblock = Superblock::read(&map(source, Flush::best().unwrap_or(Flush::None))?);
        let superblock = superblock.map_err(|error| format!("{source}: {error}"))?;
        let fabric = Arc::new(map(source, superblock.flush)?);
        // Host memory has what writers share; an observer needs none of it.
        let options = AttachOptions { host: HostId(host_slot), private: true, ..AttachOptions::named("") };
        let inspector = Inspector::open(&fabric, &options).map_err(|error| format!("{source}: {error}"))?;
        let identity = inspector.superblock().config.uuid;
        if file_of(source)? != file {
            return Err(format!("{source}: the region was replaced while it was opened"));
        }
        Ok(Self { fabric, inspector, file, identity })
    }

    /// Whether the name still leads to this region, and all of it is there.
    pub fn is_current(&self, source: &RegionSource) -> bool {
        file_of(source).is_ok_and(|file| file == self.file)
            && self.fabric.mapping().still_whole()
            && Superblock::read(&self.fabric).is_ok_and(|superblock| superblock.config.uuid == self.identity)
    }

    /// The namespaces that the texts name.
    pub fn namespaces(&self, texts: &[String]) -> Result<Vec<Asked>, String> {
        let rows = self.inspector.namespaces();
        let seed = self.inspector.superblock().config.seed;
        let asked = |text: &String| {
            let row = one(&rows, text)?;
            let fingerprint = from_hex(&row.fingerprint).ok_or_else(|| format!("`{text}` has a corrupt row"))?;
            Ok(Asked { hasher: ChainHasher::new(&seed, &fingerprint), block_tokens: row.block_tokens as usize })
        };
        texts.iter().map(asked).collect()
    }

    /// For each of the router's blocks, whether all namespaces may have its tokens.
    pub fn look(
        &self,
        asked: &[Asked],
        naming: &Naming,
        weights: &[u8],
        tokens: &[u32],
        block_tokens: usize,
        salt: Option<&str>,
        deadline: Deadline,
    ) -> Result<Vec<bool>, Miss> {
        let mut there = vec![true; tokens.len().checked_div(block_tokens).ok_or(Miss::BlockSize)?];
        for namespace in asked {
            let size = namespace.block_tokens;
            if size == 0 || !(size.is_multiple_of(block_tokens) || block_tokens.is_multiple_of(size)) {
                return Err(Miss::BlockSize);
            }
            let mut names = naming.begin(&namespace.hasher, weights, size, salt).ok_or(Miss::BlockSize)?;
            let mut found = Vec::with_capacity(tokens.len() / size);
            let blocks: Vec<&[u32]> = tokens.chunks_exact(size).collect();
            for piece in blocks.chunks(PIECE) {
                if deadline.passed() {
                    return Err(Miss::Late);
                }
                let hashes: Vec<BlockHash> = piece.iter().map(|block| names.next(block)).collect();
                found.extend(self.inspector.may_have(&hashes));
            }
            for (number, there) in there.iter_mut().enumerate() {
                // The namespace's blocks that hold these tokens.
                let (first, end) = (number * block_tokens / size, ((number + 1) * block_tokens).div_ceil(size));
                *there &= found.get(first..end).is_some_and(|blocks| blocks.iter().all(|&block| block));
            }
        }
        // Memory that went missing reads as zeros, so an answer from it is not to be trusted.
        if self.fabric.mapping().has_read_lost() { Err(Miss::Region) } else { Ok(there) }
    }
}

fn map(source: &RegionSource, flush: Flush) -> Result<ReadOnly, String> {
    let mapping = ReadMapping::open(source).map_err(|error| error.to_string())?;
    ReadOnly::new(mapping, flush).map_err(|error| format!("{source}: {error}"))
}

fn file_of(source: &RegionSource) -> Result<Option<(u64, u64)>, String> {
    source.file().map_err(|error| format!("{source}: {error}"))
}

/// The only row with this label, or with a fingerprint that begins so.
fn one<'a>(rows: &'a [NamespaceInfo], text: &str) -> Result<&'a NamespaceInfo, String> {
    let fits = |row: &&NamespaceInfo| {
        row.label == text || text.len() >= DIGITS_MIN && row.fingerprint.starts_with(&text.to_ascii_lowercase())
    };
    let mut found = rows.iter().filter(fits);
    match (found.next(), found.next()) {
        (Some(row), None) => Ok(row),
        (None, _) => Err(format!("no namespace is named `{text}`")),
        (Some(_), Some(_)) => Err(format!("several namespaces are named `{text}`; give their fingerprints")),
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}
