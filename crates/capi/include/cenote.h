/* libcenote: shared memory of several hosts, for programs in C. Made by cbindgen from crates/capi; do not edit. */

#ifndef CENOTE_H
#define CENOTE_H

#include <stddef.h>
#include <stdint.h>

/*
 Read once from start to end: an access prefetches what follows.
 */
#define CXL_HINT_SEQUENTIAL 1

/*
 Read at random: an access prefetches the requested bytes only.
 */
#define CXL_HINT_RANDOM 2

/*
 Blocks of one model shard, by number. It is valid in this process until `cenote_close`.
 */
typedef uint32_t CenoteNamespace;

/*
 A block to publish.
 */
typedef struct {
  /*
   Key of the content, not all zeros. It names a block of this namespace only, and Python's
   `Namespace.alias` names the same block by it.
   */
  uint8_t hash[16];
  /*
   The payload: as many bytes as a block of the namespace has. Nothing may write it meanwhile.
   */
  const void *payload;
  /*
   Number of the block in its sequence, from 0.
   */
  uint32_t depth;
  /*
   Set by `cenote_publish`. 0: readers find the block now. -EEXIST: the region had it already.
   -ENOMEM: there is no room, or a lock was busy for too long. -EDQUOT: the namespace has used
   its quota.
   */
  int outcome;
} CenoteBlock;

/*
 A lock of the region, by number. The number is the same in all processes, so it can be stored in
 the region.
 */
typedef uint32_t CenoteLock;

/*
 A set of pinned blocks. It is valid in this process until `cenote_unpin_rows` or
 `cenote_close`.
 */
typedef uint32_t CenoteRows;

/*
 One row: the number of its block in the set, and its number in the block.
 */
typedef struct {
  /*
   Number of the block in the set, from 0.
   */
  uint32_t block;
  /*
   Number of the row in the block, from 0.
   */
  uint32_t row;
} CenoteRow;

/*
 Where rows lie in the payload of a block, in bytes. Row `r` has `pieces` pieces of `size` bytes;
 piece `p` begins at `offset + r * stride + p * piece_stride`.
 */
typedef struct {
  /*
   Start of row 0 in the payload.
   */
  uint64_t offset;
  /*
   Distance between the starts of neighbouring rows.
   */
  uint64_t stride;
  /*
   Bytes of a piece.
   */
  uint64_t size;
  /*
   Pieces of a row, at least 1.
   */
  uint64_t pieces;
  /*
   Distance between the starts of neighbouring pieces.
   */
  uint64_t piece_stride;
  /*
   Rows of a block, such as the tokens of a page; 0: as many as fit.
   */
  uint64_t rows;
} CenoteRowShape;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Opens the namespace of blocks that have this fingerprint, or registers it. `fingerprint` has 32
 bytes and must cover all facts that two programs must share to exchange a block: weights,
 element type, layout, shard, tenant. `label` is for display. `block_size` is the bytes of a
 block.
 -EINVAL: the fingerprint has blocks of another size. -ENOMEM: a block is larger than a chunk of
 the region. -ENOSPC: all namespaces of the region are taken.

 # Safety
 `fingerprint` must point to 32 bytes, `label` must end with a zero, and `space` must point to a
 `CenoteNamespace`.
 */
int cenote_namespace(const uint8_t *fingerprint,
                     const char *label,
                     uint64_t block_size,
                     CenoteNamespace *space);

/*
 Publishes blocks, and sets the outcome of each. They share fences and locks, so a call of many
 blocks is faster than many calls. A block that is not published does not keep others from it.
 -EINVAL, and nothing is published: the namespace is not open, or a hash or payload is missing.

 # Safety
 `blocks` must point to `count` blocks, and the payload of each must be a block's bytes.
 */
int cenote_publish(CenoteNamespace space, CenoteBlock *blocks, uintptr_t count);

/*
 Text of this thread's last error; empty if there was none. It stays until the thread's next
 error.
 */
const char *cenote_last_error(void);

/*
 Allocates one of 1,024 locks. It needs no memory of the region, and stays allocated until a
 process of any host frees it. -ENOSPC: all are allocated.

 # Safety
 `lock` must point to a lock.
 */
int cxl_shm_allocate_lock(CenoteLock *lock);

/*
 Frees an allocated lock. -EBUSY: a thread of some process holds it. -EINVAL: it is not
 allocated. A thread that waits for the lock is refused when it gets it.
 */
int cxl_shm_free_lock(CenoteLock lock);

/*
 Takes a lock, waiting for a minute at most (-ETIMEDOUT). Returns 1 instead of 0 if its last
 holder died with it: the guarded state may be half changed. -EDEADLK: this thread holds it.
 -EINVAL: it is not allocated, or was freed during the wait.
 */
int cxl_shm_acquire_lock(CenoteLock lock);

/*
 As `cxl_shm_acquire_lock`, waiting for this many milliseconds at most.
 */
int cxl_shm_acquire_lock_within(CenoteLock lock, uint32_t milliseconds);

/*
 Releases a lock that this thread holds. -EPERM: it does not hold it.
 */
int cxl_shm_release_lock(CenoteLock lock);

/*
 Allocates memory of the region, in lines of 64 bytes and aligned to them. It belongs to the
 region: it outlives this process until a process of any host frees it. 0 bytes get a line. NULL:
 there is no room, or `size` exceeds the region's chunk size.
 */
void *shmalloc(uintptr_t size);

/*
 Frees memory that `shmalloc` returned to any process of any host and that has no name. Hosts
 that wrote to it must have flushed that before. NULL is ignored. -EINVAL: any other pointer, or
 one that was freed before.
 */
int shfree(void *pointer);

/*
 The offset of a pointer into the region, which every process can convert to its own pointer; 0:
 it does not point into the region's space.
 */
uint64_t cxl_shm_get_offset(const void *pointer);

/*
 A pointer to an offset in the region; NULL: it is outside the region's space. The caller must
 know that memory is allocated there.
 */
void *cxl_shm_get_ptr(uint64_t offset);

/*
 Writes back and drops this processor's cached lines of these bytes: after writing, so that other
 hosts see the bytes; before reading what other hosts wrote. Waits until it is done. If all
 processes that share the region share their caches, it is a fence. -EINVAL: some bytes are
 outside the region's space.
 */
int cenote_flush(const void *address, uintptr_t size);

/*
 TraCT's name for `cenote_flush`. Ignores bytes outside the region.
 */
void clflush(void *address, uintptr_t size);

/*
 Names memory that `shmalloc` returned to any process. It replaces the memory that had the name,
 which is freed. `key` has 1 to 56 bytes of UTF-8 and does not begin with `cenote/`. Other
 processes find the memory by its name. This host's stores to it are flushed. -EINVAL: another
 key, or another pointer. -ENOSPC: 1,023 keys have names.

 # Safety
 `key` must end with a zero.
 */
int cxl_shm_put(const char *key, void *pointer);

/*
 Finds memory by its name. -ENOENT: there is none. The pointer is valid until a process destroys
 the name or gives it to other memory; the processes that share the memory must agree on that,
 for example by a lock.

 # Safety
 `key` must end with a zero, and `pointer` must be null or point to a pointer.
 */
int cxl_shm_get(const char *key, void **pointer);

/*
 Removes a name and frees its memory. -ENOENT: there is none.

 # Safety
 `key` must end with a zero.
 */
int cxl_shm_destroy(const char *key);

/*
 Creates a region of `size` bytes: `shm:NAME`, a file, or a hugetlbfs path. `chunk_size` is the
 largest piece of memory that can be allocated, a power of two from 64 KiB to 512 MiB; 0: 2 MiB.
 `hosts`, 1 to 64, is the number of hosts that may share it; with more than one, the region is
 made for hosts that do not share their caches. -EEXIST: it exists already. -EINVAL: an invalid
 argument, `hosts` 0 included. -ENOSPC: there is no space for it.

 # Safety
 `region` must end with a zero.
 */
int cenote_create(const char *region, uint64_t size, uint64_t chunk_size, uint8_t hosts);

/*
 Opens a region for this process, as host `host` of those that share it. `cenote pool info` shows
 `name`. The keys of a sealed region are those of the file that `CENOTE_SEAL_KEY_FILE` names, or
 of what the command in `CENOTE_SEAL_KEY_COMMAND` prints. -EBUSY: this process has a region open.

 # Safety
 `region` and `name` must end with zeros.
 */
int cenote_open(const char *region, const char *name, uint8_t host);

/*
 Leaves the region. Memory stays allocated; pointers into the region are invalid from then on.
 -EBUSY: a thread holds a lock or waits for one.
 */
int cenote_close(void);

/*
 Looks blocks of a namespace up by their hashes, of 16 bytes each, and pins them, so that their
 rows can be gathered. Sets `rows`. A block keeps its place in `hashes` as its number. Returns the number of
 blocks that are misses: not in the namespace, encoded by a codec, or beyond the pins of a process
 (448 unless the region was made with another number). Their rows are misses of each gather.
 -EINVAL: the namespace is not open, or no hashes or no place were given.

 # Safety
 `hashes` must point to `count` times 16 bytes, and `rows` to a `CenoteRows`.
 */
int cenote_pin_rows(CenoteNamespace space,
                    const uint8_t *hashes,
                    uintptr_t count,
                    CenoteRows *rows);

/*
 Copies rows into `buffer`, in the order of `list` and without gaps. `size` is the bytes of the
 buffer: `count` rows of `shape->pieces * shape->size` bytes. Returns 0 if all rows are there, or
 the number of blocks of the list that are misses, and stores their numbers, in ascending order,
 in `missed`, which has room for `count` numbers or is NULL. The buffer's bytes for rows of
 missed blocks are meaningless. The bytes of all other rows are those that were published.

 The first gather that reaches a block reads it as a whole, to verify it. Threads may gather from
 one set at once.
 -EINVAL, and nothing is copied: there is no such set, no row has this shape, a block or a row of
 the list does not exist, or the buffer has another size.

 # Safety
 `list` must point to `count` rows, `shape` to a shape, and `buffer` to `size` bytes that nothing
 else uses meanwhile. `missed` must be NULL or point to `count` numbers.
 */
int cenote_gather(CenoteRows rows,
                  const CenoteRow *list,
                  uintptr_t count,
                  const CenoteRowShape *shape,
                  void *buffer,
                  uintptr_t size,
                  uint32_t *missed);

/*
 Unpins the blocks of a set. A gather of another thread that is under way ends first.
 -EINVAL: there is no such set.
 */
int cenote_unpin_rows(CenoteRows rows);

/*
 Allocates memory of the region and returns its handle; 0: there is no room, as for `shmalloc`.
 `hint` is 0 or one of CXL_HINT_….
 */
uint64_t cxl_malloc(uintptr_t size, uint32_t hint);

/*
 A pointer to `size` bytes at `offset` of the memory, which are being prefetched. NULL: they are
 outside the memory, or the handle is invalid. Drop bytes that another host may have written
 since first (`cenote_flush`).
 */
void *cxl_access(uint64_t handle, uint64_t offset, uintptr_t size);

/*
 Frees memory. -EINVAL: the handle is none, or was freed before.
 */
int cxl_free(uint64_t handle);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CENOTE_H */
