/* Two processes on one region: `first` makes what they share and adds to it, `second` finds it and adds to it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/cenote.h"

#define ROUNDS 300

struct root {
    CenoteLock lock;
    uint64_t table; /* an offset: pointers differ from process to process */
    uint64_t count;
};

#define MUST(call)                                                                        \
    do {                                                                                  \
        if (!(call)) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cenote_last_error()); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static void add(struct root *root) {
    uint32_t *table = cxl_shm_get_ptr(root->table);
    MUST(table != NULL);
    for (int round = 0; round < ROUNDS; round++) {
        MUST(cxl_shm_acquire_lock(root->lock) == 0);
        clflush(root, sizeof *root);
        table[root->count % 1024]++;
        root->count++;
        clflush(table, 4096);
        clflush(root, sizeof *root);
        MUST(cxl_shm_release_lock(root->lock) == 0);
    }
}

static void refuse_mistakes(void) {
    void *pointer;
    CenoteLock none = 99;
    MUST(cxl_shm_get("nobody", &pointer) == -ENOENT);
    MUST(strstr(cenote_last_error(), "nobody") != NULL);
    MUST(cxl_shm_destroy("nobody") == -ENOENT);
    MUST(cxl_shm_put("", &none) == -EINVAL);
    MUST(cxl_shm_acquire_lock(none) == -EINVAL);
    MUST(cxl_shm_release_lock(3) == -EPERM);
    MUST(shfree(&none) == -EINVAL);
    MUST(shfree(NULL) == 0);
    MUST(shmalloc((size_t)1 << 40) == NULL);
    MUST(cxl_shm_get_offset(&none) == 0);
    MUST(cxl_shm_get_ptr((uint64_t)1 << 50) == NULL);
    MUST(cenote_open("shm:other", "me", 0) == -EBUSY);
}

static void use_handles(void) {
    uint64_t handle = cxl_malloc(10000, CXL_HINT_SEQUENTIAL);
    MUST(handle != 0);
    memset(cxl_access(handle, 0, 10000), 7, 10000);
    unsigned char *byte = cxl_access(handle, 9999, 1);
    MUST(byte != NULL && *byte == 7);
    MUST(cxl_access(handle, 0, 1 << 20) == NULL);
    MUST(cxl_free(handle) == 0);
    MUST(cxl_free(handle) == -EINVAL);
    MUST(cxl_malloc(1, 77) == 0);
}

int main(int argc, char **argv) {
    MUST(argc == 3);
    int first = strcmp(argv[1], "first") == 0;
    MUST(cenote_last_error()[0] == 0);
    MUST(cxl_shm_get("root", NULL) == -ENXIO);
    if (first) {
        MUST(cenote_create(argv[2], 32 << 20, 0, 1) == 0);
        MUST(cenote_create(argv[2], 32 << 20, 0, 1) == -EEXIST);
    }
    MUST(cenote_open(argv[2], argv[1], 0) == 0);
    struct root *root;
    if (first) {
        refuse_mistakes();
        use_handles();
        root = shmalloc(sizeof *root);
        void *table = shmalloc(4096);
        MUST(root != NULL && table != NULL);
        memset(root, 0, sizeof *root);
        memset(table, 0, 4096);
        root->table = cxl_shm_get_offset(table);
        MUST(cxl_shm_put("table", table) == 0);
        MUST(cxl_shm_allocate_lock(&root->lock) == 0);
        MUST(cxl_shm_put("root", root) == 0);
        MUST(shfree(root) == -EINVAL);
        /* The other one begins when it reads this. */
        printf("ready\n");
        fflush(stdout);
    } else {
        void *found;
        MUST(cxl_shm_get("root", &found) == 0);
        root = found;
    }
    add(root);
    MUST(cxl_shm_acquire_lock(root->lock) == 0);
    MUST(cxl_shm_acquire_lock(root->lock) == -EDEADLK);
    MUST(cenote_close() == -EBUSY);
    uint64_t count = root->count;
    MUST(cxl_shm_release_lock(root->lock) == 0);
    if (first) {
        /* Until the other one has done as much. */
        char line[16];
        MUST(fgets(line, sizeof line, stdin) != NULL);
        clflush(root, sizeof *root);
        count = root->count;
        uint32_t sum = 0, *table = cxl_shm_get_ptr(root->table);
        for (int slot = 0; slot < 1024; slot++) sum += table[slot];
        MUST(sum == count);
        MUST(cxl_shm_free_lock(root->lock) == 0);
        MUST(cxl_shm_free_lock(root->lock) == -EINVAL);
        MUST(cxl_shm_destroy("root") == 0 && cxl_shm_destroy("table") == 0);
    }
    MUST(cenote_close() == 0);
    printf("%llu\n", (unsigned long long)count);
    return 0;
}
