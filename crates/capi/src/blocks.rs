//! KV blocks by the names of their content, for programs that fill the pool.

use crate::errors::{Fault, status, text};
use crate::region::region;
use cenote_pool::{Namespace, NamespaceRecord, NewBlock, Publish};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// Blocks of one model shard, by number. It is valid in this process until `cenote_close`.
pub type CenoteNamespace = u32;

/// A block to publish.
#[repr(C)]
pub struct CenoteBlock {
    /// Key of the content, not all zeros. It names a block of this namespace only, and Python's
    /// `Namespace.alias` names the same block by it.
    pub hash: [u8; 16],
    /// The payload: as many bytes as a block of the namespace has. Nothing may write it meanwhile.
    pub payload: *const c_void,
    /// Number of the block in its sequence, from 0.
    pub depth: u32,
    /// Set by `cenote_publish`. 0: readers find the block now. -EEXIST: the region had it already.
    /// -ENOMEM: there is no room, or a lock was busy for too long. -EDQUOT: the namespace has used
    /// its quota.
    pub outcome: c_int,
}

/// Namespaces that this process has opened.
#[derive(Default)]
pub struct Namespaces(Mutex<BTreeMap<CenoteNamespace, Namespace>>);

impl Namespaces {
    pub fn get(&self, space: CenoteNamespace) -> Result<Namespace, Fault> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&space).cloned();
        known.ok_or_else(|| Fault::new(libc::EINVAL, format!("namespace {space} is not open")))
    }
}

/// Opens the namespace of blocks that have this fingerprint, or registers it. `fingerprint` has 32
/// bytes and must cover all facts that two programs must share to exchange a block: weights,
/// element type, layout, shard, tenant. `label` is for display. `block_size` is the bytes of a
/// block.
/// -EINVAL: the fingerprint has blocks of another size. -ENOMEM: a block is larger than a chunk of
/// the region. -ENOSPC: all namespaces of the region are taken.
///
/// # Safety
/// `fingerprint` must point to 32 bytes, `label` must end with a zero, and `space` must point to a
/// `CenoteNamespace`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_namespace(
    fingerprint: *const u8,
    label: *const c_char,
    block_size: u64,
    space: *mut CenoteNamespace,
) -> c_int {
    status(|| {
        if fingerprint.is_null() || space.is_null() {
            return Err(Fault::new(libc::EINVAL, "no fingerprint, or no place for the namespace, was given"));
        }
        // SAFETY: callers guarantee 32 bytes, which have no alignment, and a text that ends with a
        // zero.
        let (fingerprint, label) = unsafe { (fingerprint.cast::<[u8; 32]>().read(), text("label", label)?) };
        let region = region()?;
        let found = region.pool.namespace(&NamespaceRecord {
            fingerprint,
            label: label.to_owned(),
            block_bytes: block_size,
            block_tokens: 0,
            num_layers: 0,
        })?;
        let number = CenoteNamespace::from(found.id.0);
        region.namespaces.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number, found);
        // SAFETY: callers guarantee the place. It may be unaligned, in a packed structure.
        unsafe { space.write_unaligned(number) };
        Ok(0)
    })
}

/// Publishes blocks, and sets the outcome of each. They share fences and locks, so a call of many
/// blocks is faster than many calls. A block that is not published does not keep others from it.
/// -EINVAL, and nothing is published: the namespace is not open, or a hash or payload is missing.
///
/// # Safety
/// `blocks` must point to `count` blocks, and the payload of each must be a block's bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_publish(space: CenoteNamespace, blocks: *mut CenoteBlock, count: usize) -> c_int {
    status(|| {
        let region = region()?;
        if count == 0 {
            return Ok(0);
        }
        if blocks.is_null() || !blocks.is_aligned() || count > isize::MAX as usize / size_of::<CenoteBlock>() {
            return Err(Fault::new(libc::EINVAL, format!("{blocks:p} does not point to {count} blocks")));
        }
        // SAFETY: callers guarantee `count` blocks, which are aligned and fit into the address
        // space, as tested above.
        let blocks = unsafe { std::slice::from_raw_parts_mut(blocks, count) };
        let known = region.namespaces.get(space)?;
        if let Some(at) = blocks.iter().position(|block| block.hash == [0; 16] || block.payload.is_null()) {
            return Err(Fault::new(libc::EINVAL, format!("block {at} has no hash or no payload")));
        }
        let bytes = |block: &CenoteBlock| {
            // SAFETY: callers guarantee a block's bytes, which nothing writes meanwhile.
            [unsafe { std::slice::from_raw_parts(block.payload.cast::<u8>(), known.block_bytes as usize) }]
        };
        let parts: Vec<[&[u8]; 1]> = blocks.iter().map(bytes).collect();
        let new = |block: &CenoteBlock| NewBlock::new(&known, known.hasher.alias(&block.hash), block.depth);
        let new = blocks.iter().map(new).zip(parts.iter().map(<[&[u8]; 1]>::as_slice));
        let outcomes = region.pool.publish_all(&new.collect::<Vec<_>>());
        for (block, outcome) in blocks.iter_mut().zip(outcomes) {
            block.outcome = match outcome {
                Publish::Published => 0,
                Publish::Duplicate => -libc::EEXIST,
                Publish::NoRoom => -libc::ENOMEM,
                Publish::OverQuota => -libc::EDQUOT,
            };
        }
        Ok(0)
    })
}
