//! The seal of a snapshot: which keys open it, and the line that authenticates its settings.
//!
//! Settings are readable without a key, because they name the key. So their part has the sums of an
//! unsealed snapshot, and its last line is a digest under the snapshot's key of all lines before.

use super::format::{Kind, SnapshotError, SnapshotSettings, lines, unhex};
use cenote_base::seal::{KeyId, Seal, SealKeys};
use cenote_cold::Sealing;
use cenote_cold::record::Sums;
use std::path::Path;

const TAG: &str = "seal_tag=";

const fn context(kind: Kind) -> &'static [u8] {
    match kind {
        Kind::End => b"cenote snapshot end v1\n",
        _ => b"cenote snapshot settings v1\n",
    }
}

/// `text` of a settings or an end, with the line that authenticates it if the snapshot is sealed.
pub fn sign(sums: &Sums, kind: Kind, text: &str) -> String {
    let tag = sums.tag(sums.key_name(), context(kind), text.as_bytes());
    tag.map_or_else(|| text.to_owned(), |tag| format!("{text}{TAG}{}\n", hex::encode(tag)))
}

/// Whether this text is what [`sign`] made of it. Digests are compared in constant time.
pub fn is_signed(sums: &Sums, kind: Kind, text: &[u8]) -> bool {
    if sums.seal_mode() == Seal::None {
        return true;
    }
    let expected = || {
        let key = u64::from_str_radix(lines(text)?.get("seal_key")?, 16).ok().map(KeyId)?;
        let (signed, tag) = std::str::from_utf8(text).ok()?.rsplit_once(TAG)?;
        let found: [u8; 32] = unhex(tag.strip_suffix('\n')?)?;
        let tag = sums.tag(key.short(), context(kind), signed.as_bytes())?;
        Some(blake3::Hash::from_bytes(tag) == blake3::Hash::from_bytes(found))
    };
    expected().unwrap_or(false)
}

/// The seal of a snapshot with these settings, which are not authenticated yet, for a process with
/// these keys.
pub fn admit(settings: &SnapshotSettings, keys: Option<&SealKeys>, path: &Path) -> Result<Sealing, SnapshotError> {
    let path = path.display().to_string();
    let key = KeyId(settings.config.seal_key);
    match (settings.config.seal, keys) {
        (Seal::None, None) => Ok(None),
        (Seal::None, Some(_)) => Err(SnapshotError::NotSealed(path)),
        (seal, None) => Err(SnapshotError::Sealed { path, seal, key }),
        (_, Some(keys)) if keys.ids().all(|id| id != key) => {
            Err(SnapshotError::OtherKey { path, given: keys.sealing(), key })
        }
        (seal, Some(keys)) => Ok(Some((seal, keys.clone()))),
    }
}
