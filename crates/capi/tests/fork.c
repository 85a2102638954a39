/* A process that forks, threads that end, and a main thread that exits, each with a lock of the region held.
 *
 * fork.c ROLE REGION: `holds` makes the region, takes its first lock in its main thread, forks children that exit in every way, and
 * then waits for a line; `exits`, `returns` and `thread` end with a lock held; `asks` prints what taking that lock returns. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../include/cenote.h"

#define MUST(call)                                                                        \
    do {                                                                                  \
        if (!(call)) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cenote_last_error()); \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

static CenoteLock held;
static void *memory;

static void *hold(void *none) {
    MUST(cxl_shm_acquire_lock(held) >= 0);
    return none;
}

/* Everything that a child calls leaves the region alone and says why. */
static void child(const char *region, int way) {
    void *pointer;
    MUST(cxl_shm_release_lock(held) == -EPERM);
    MUST(cxl_shm_acquire_lock(held) == -EPERM);
    MUST(shmalloc(64) == NULL && strstr(cenote_last_error(), "parent") != NULL);
    MUST(shfree(memory) == -EPERM);
    MUST(cxl_shm_get("nobody", &pointer) == -EPERM);
    MUST(cenote_close() == -EPERM);
    memset(memory, 0xbb, 64); /* It is the child's own copy. */
    if (way == 1) {
        MUST(cenote_open(region, "child", 0) == 0);
        MUST(cxl_shm_acquire_lock_within(held, 20) == -ETIMEDOUT);
        pointer = shmalloc(64);
        MUST(pointer != NULL && shfree(pointer) == 0);
        MUST(cenote_close() == 0);
    }
    if (way == 2)
        _exit(0);
    exit(0);
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    MUST(count == 3);
    const char *role = arguments[1], *region = arguments[2];
    if (strcmp(role, "holds") == 0) {
        MUST(cenote_create(region, 16 << 20, 0, 1) == 0);
        MUST(cenote_open(region, role, 0) == 0);
        MUST(cxl_shm_allocate_lock(&held) == 0 && held == 8);
        MUST(cxl_shm_acquire_lock(held) == 0);
        memory = shmalloc(64);
        MUST(memory != NULL);
        memset(memory, 0xaa, 64);
        for (int way = 0; way < 3; way++) {
            pid_t pid = fork();
            if (pid == 0)
                child(region, way);
            int status;
            MUST(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
        }
        MUST(*(unsigned char *)memory == 0xaa);
        puts("forked");
        getchar();
        MUST(*(unsigned char *)memory == 0xaa && shfree(memory) == 0);
        MUST(cxl_shm_release_lock(held) == 0);
        MUST(cenote_close() == 0);
        return 0;
    }
    held = 8;
    MUST(cenote_open(region, role, 0) == 0);
    if (strcmp(role, "asks") == 0) {
        printf("%d\n", cxl_shm_acquire_lock_within(held, 100));
        if (cxl_shm_release_lock(held) == 0)
            MUST(cenote_close() == 0);
        return 0;
    }
    if (strcmp(role, "thread") == 0) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, hold, NULL) == 0 && pthread_join(thread, NULL) == 0);
        printf("%d\n", cxl_shm_acquire_lock_within(held, 1000));
        MUST(cxl_shm_release_lock(held) == 0);
        MUST(cenote_close() == 0);
        return 0;
    }
    hold(NULL);
    if (strcmp(role, "exits") == 0)
        exit(0);
    return 0;
}
