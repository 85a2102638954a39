/* libcenote: shared memory of several hosts, for programs in C. Made by cbindgen from crates/capi; do not edit. */

#ifndef CENOTE_H
#define CENOTE_H

#include <stddef.h>
#include <stdint.h>

/*
 Read through once, from its start to its end: an access fetches what comes next.
 */
#define CXL_HINT_SEQUENTIAL 1

/*
 Read here and there: an access fetches what was asked for and nothing more.
 */
#define CXL_HINT_RANDOM 2

/*
 A lock of the region, by number: the same in all processes, so it can be kept in the region.
 */
typedef uint32_t CenoteLock;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 What went wrong in this thread last, in words; empty if nothing did. It stays until the thread's next error.
 */
const char *cenote_last_error(void);

/*
 Gives out a lock that nobody has. -ENOSPC: there is none left. -ENOMEM: the region is full, and has no room to record it.

 # Safety
 `lock` must point to a lock.
 */
int cxl_shm_allocate_lock(CenoteLock *lock);

/*
 Takes a lock back that was given out. -EBUSY: a thread of some process holds it. -EINVAL: it is not given out. -ENOMEM: the
 region is full, and the lock stays given out. Nobody may use it again: a thread that waits for it is refused when it gets it.
 */
int cxl_shm_free_lock(CenoteLock lock);

/*
 Takes a lock, waiting for a minute at most (-ETIMEDOUT). 1 instead of 0: whoever had it died with it, so what it guards
 may be half changed. -EDEADLK: this thread has it. -EINVAL: it is not given out, or no longer.
 */
int cxl_shm_acquire_lock(CenoteLock lock);

/*
 As `cxl_shm_acquire_lock`, waiting for so many milliseconds at most.
 */
int cxl_shm_acquire_lock_within(CenoteLock lock, uint32_t milliseconds);

/*
 Gives a lock back that this thread holds. -EPERM: it does not.
 */
int cxl_shm_release_lock(CenoteLock lock);

/*
 Allocates memory of the region, aligned to 64 bytes. It is this process's, and goes with it, until `cxl_shm_put` names it.
 0 bytes get the smallest piece. NULL: there is no room, or `size` is above the region's chunk size.
 */
void *shmalloc(uintptr_t size);

/*
 Gives memory back that `shmalloc` gave this process and that has no name. NULL is nothing to give back. -EINVAL: the
 pointer is none of these, or was given back before.
 */
int shfree(void *pointer);

/*
 The offset of a pointer into the region, which every process can turn into a pointer of its own; 0: it does not point to
 where memory can be.
 */
uint64_t cxl_shm_get_offset(const void *pointer);

/*
 A pointer to an offset in the region; NULL: no memory can be there. That there is some is the caller's to know.
 */
void *cxl_shm_get_ptr(uint64_t offset);

/*
 Writes back what this processor's caches have of these bytes and drops it: after writing, so that other hosts see it; before
 reading what other hosts wrote. Waits until it is done. Where all who share the region share their caches, a fence.
 -EINVAL: they do not all lie where memory can be.
 */
int cenote_flush(const void *address,
                 uintptr_t size);

/*
 TraCT's name for `cenote_flush`. What does not lie in the region is left alone.
 */
void clflush(void *address, uintptr_t size);

/*
 Names memory that `shmalloc` gave this process, in place of what had the name, whose memory goes. `key` has 1 to 56 bytes of
 UTF-8 and does not begin with `cenote/`. From here on the memory is the region's and outlives this process. What this process
 has written to it is flushed. -EINVAL: such a key, or a pointer to anything else.

 # Safety
 `key` must end with a zero.
 */
int cxl_shm_put(const char *key,
                void *pointer);

/*
 Finds memory by its name. -ENOENT: there is none. The pointer is good until somebody destroys the name or gives it to other
 memory, which who shares the memory must agree on, by a lock for instance.

 # Safety
 `key` must end with a zero, and `pointer` must be null or point to a pointer.
 */
int cxl_shm_get(const char *key,
                void **pointer);

/*
 Takes a name away, and the memory with it. -ENOENT: there is none.

 # Safety
 `key` must end with a zero.
 */
int cxl_shm_destroy(const char *key);

/*
 Makes a region of `size` bytes: `shm:NAME`, a file, or a hugetlbfs path. `chunk_size` is the largest piece of memory that can
 be allocated, a power of two from 64 KiB to 512 MiB; 0: 2 MiB. `hosts`, 1 to 64, is how many may share it; with more than one
 the region is made for hosts that do not share their caches. -EEXIST: it is there already. -EINVAL: such a region cannot be,
 for `hosts` 0 as well. -ENOSPC: there is no room for it.

 # Safety
 `region` must end with a zero.
 */
int cenote_create(const char *region,
                  uint64_t size,
                  uint64_t chunk_size,
                  uint8_t hosts);

/*
 Opens a region for this process, as host `host` of those that share it. `name` is what `cenote pool info` shows. -EBUSY: this process has
 one open.

 # Safety
 `region` and `name` must end with zeros.
 */
int cenote_open(const char *region,
                const char *name,
                uint8_t host);

/*
 Leaves the region. Memory that was not named by `cxl_shm_put` goes; pointers into the region must not be used any more.
 -EBUSY: a thread holds a lock or waits for one.
 */
int cenote_close(void);

/*
 Allocates memory of the region; returns its handle, 0: there is none, as for `shmalloc`. `hint` is 0 or one of CXL_HINT_….
 */
uint64_t cxl_malloc(uintptr_t size,
                    uint32_t hint);

/*
 A pointer to `size` bytes at `offset` of the memory, on their way into the processor's caches already; NULL: they leave it,
 or nothing is there. Bytes that another host may have written since are to be dropped first (`cenote_flush`).
 */
void *cxl_access(uint64_t handle,
                 uint64_t offset,
                 uintptr_t size);

/*
 Gives memory back. -EINVAL: the handle is none of this process, or was given back before.
 */
int cxl_free(uint64_t handle);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CENOTE_H */
