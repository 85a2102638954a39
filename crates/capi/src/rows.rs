//! Rows of pinned blocks, gathered into one buffer (docs/internals/protocol.md#gather).

use crate::blocks::CenoteNamespace;
use crate::errors::{Fault, status};
use crate::region::{Region, region};
use cenote_base::BlockHash;
use cenote_mem::Mapped;
use cenote_pool::{Namespace, PinnedRows, RowRef, RowShape};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// A set of pinned blocks. It is valid in this process until `cenote_unpin_rows` or
/// `cenote_close`.
pub type CenoteRows = u32;

/// One row: the number of its block in the set, and its number in the block.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CenoteRow {
    /// Number of the block in the set, from 0.
    pub block: u32,
    /// Number of the row in the block, from 0.
    pub row: u32,
}

/// Where rows lie in the payload of a block, in bytes. Row `r` has `pieces` pieces of `size` bytes;
/// piece `p` begins at `offset + r * stride + p * piece_stride`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CenoteRowShape {
    /// Start of row 0 in the payload.
    pub offset: u64,
    /// Distance between the starts of neighbouring rows.
    pub stride: u64,
    /// Bytes of a piece.
    pub size: u64,
    /// Pieces of a row, at least 1.
    pub pieces: u64,
    /// Distance between the starts of neighbouring pieces.
    pub piece_stride: u64,
    /// Rows of a block, such as the tokens of a page; 0: as many as fit.
    pub rows: u64,
}

/// Sets that this process has pinned.
#[derive(Default)]
pub struct RowSets(Mutex<Sets>);

type Set = PinnedRows<Arc<Mapped>>;

#[derive(Default)]
struct Sets {
    last: CenoteRows,
    of: BTreeMap<CenoteRows, Arc<Set>>,
}

impl RowSets {
    fn change<T>(&self, change: impl FnOnce(&mut Sets) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, set: Set) -> Result<CenoteRows, Fault> {
        self.change(|sets| {
            let number = sets.last.checked_add(1);
            sets.last = number.ok_or_else(|| Fault::new(libc::ENOSPC, "this process has used all numbers of sets"))?;
            sets.of.insert(sets.last, Arc::new(set));
            Ok(sets.last)
        })
    }

    fn get(&self, rows: CenoteRows) -> Result<Arc<Set>, Fault> {
        self.change(|sets| sets.of.get(&rows).cloned()).ok_or_else(|| no_set(rows))
    }
}

fn no_set(rows: CenoteRows) -> Fault {
    Fault::new(libc::EINVAL, format!("{rows} is no set of pinned blocks: call cenote_pin_rows"))
}

/// Looks blocks of a namespace up by their hashes, of 16 bytes each, and pins them, so that their
/// rows can be gathered. Sets `rows`. A block keeps its place in `hashes` as its number. Returns the number of
/// blocks that are misses: not in the namespace, encoded by a codec, or beyond the pins of a process
/// (448 unless the region was made with another number). Their rows are misses of each gather.
/// -EINVAL: the namespace is not open, or no hashes or no place were given.
///
/// # Safety
/// `hashes` must point to `count` times 16 bytes, and `rows` to a `CenoteRows`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_pin_rows(
    space: CenoteNamespace,
    hashes: *const u8,
    count: usize,
    rows: *mut CenoteRows,
) -> c_int {
    status(|| {
        let region = region()?;
        if rows.is_null() || (hashes.is_null() && count > 0) || count > c_int::MAX as usize {
            return Err(Fault::new(libc::EINVAL, format!("no place for the set, or no {count} hashes, were given")));
        }
        let space = region.namespaces.get(space)?;
        let hash = |at: usize| {
            // SAFETY: callers guarantee `count` hashes, which are bytes and have no alignment.
            space.hasher.alias(&unsafe { hashes.cast::<[u8; 16]>().add(at).read() })
        };
        let hashes: Vec<BlockHash> = (0..count).map(hash).collect();
        let (set, missing) = pinned(&region, &space, &hashes);
        let number = region.rows.add(set)?;
        // SAFETY: callers guarantee the place. It may be unaligned, in a packed structure.
        unsafe { rows.write_unaligned(number) };
        Ok(missing)
    })
}

/// The set, and the number of blocks that are misses.
fn pinned(region: &Region, space: &Namespace, hashes: &[BlockHash]) -> (Set, c_int) {
    let mut set = region.pool.pin_rows(&[]);
    let mut hits = region.pool.lookup(hashes).into_iter();
    let mut missing = 0;
    for &hash in hashes {
        // A lookup ends at the first miss; blocks behind it may be there.
        let hit = hits.next().or_else(|| region.pool.lookup(&[hash]).pop());
        let number = match hit.filter(|hit| hit.encoding == 0 && hit.namespace == space.id) {
            Some(hit) => set.push(&hit),
            None => set.push_missing(),
        };
        missing += c_int::from(!set.is_there(number));
    }
    (set, missing)
}

/// Copies rows into `buffer`, in the order of `list` and without gaps. `size` is the bytes of the
/// buffer: `count` rows of `shape->pieces * shape->size` bytes. Returns 0 if all rows are there, or
/// the number of blocks of the list that are misses, and stores their numbers, in ascending order,
/// in `missed`, which has room for `count` numbers or is NULL. The buffer's bytes for rows of
/// missed blocks are meaningless. The bytes of all other rows are those that were published.
///
/// The first gather that reaches a block reads it as a whole, to verify it. Threads may gather from
/// one set at once.
/// -EINVAL, and nothing is copied: there is no such set, no row has this shape, a block or a row of
/// the list does not exist, or the buffer has another size.
///
/// # Safety
/// `list` must point to `count` rows, `shape` to a shape, and `buffer` to `size` bytes that nothing
/// else uses meanwhile. `missed` must be NULL or point to `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_gather(
    rows: CenoteRows,
    list: *const CenoteRow,
    count: usize,
    shape: *const CenoteRowShape,
    buffer: *mut c_void,
    size: usize,
    missed: *mut u32,
) -> c_int {
    status(|| {
        let set = region()?.rows.get(rows)?;
        let fits = |count: usize, unit: usize| count <= isize::MAX as usize / unit;
        let no_list = count > 0 && (list.is_null() || !list.is_aligned()) || !fits(count, size_of::<CenoteRow>());
        if no_list || shape.is_null() || (buffer.is_null() && size > 0) || !fits(size, 1) || count > c_int::MAX as usize
        {
            return Err(Fault::new(libc::EINVAL, format!("no {count} rows, no shape or no {size} bytes were given")));
        }
        // SAFETY: callers guarantee the shape, which may be unaligned, in a packed structure.
        let CenoteRowShape { offset, stride, size: bytes, pieces, piece_stride, rows } =
            unsafe { shape.read_unaligned() };
        let rows = if rows == 0 { u64::MAX } else { rows };
        let shape = RowShape { offset, stride, bytes, pieces, piece_stride, rows };
        let list: &[RowRef] = match count {
            0 => &[],
            // SAFETY: callers guarantee `count` rows, which are aligned and fit into the address
            // space, as tested above. Both structures are two numbers of 32 bits in C's layout.
            _ => unsafe { std::slice::from_raw_parts(list.cast(), count) },
        };
        let to: &mut [u8] = match size {
            0 => &mut [],
            // SAFETY: callers guarantee `size` bytes that nothing else uses; they are not null and
            // fit into the address space, as tested above.
            _ => unsafe { std::slice::from_raw_parts_mut(buffer.cast(), size) },
        };
        let gathered = set.gather(list, &shape, to).map_err(|error| Fault::new(libc::EINVAL, error.to_string()))?;
        if !missed.is_null() {
            for (at, &block) in gathered.missed.iter().enumerate() {
                // SAFETY: callers guarantee room for `count` numbers, and each missed block has a
                // row in the list. The place may be unaligned.
                unsafe { missed.add(at).write_unaligned(block) };
            }
        }
        Ok(gathered.missed.len() as c_int)
    })
}

/// Unpins the blocks of a set. A gather of another thread that is under way ends first.
/// -EINVAL: there is no such set.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_unpin_rows(rows: CenoteRows) -> c_int {
    status(|| {
        let region = region()?;
        let set = region.rows.change(|sets| sets.of.remove(&rows));
        set.map(|_| 0).ok_or_else(|| no_set(rows))
    })
}
