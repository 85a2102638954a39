/* A linked list in the region, in C and in C++. One process builds it and ends; another one, on this host or on
 * another, reads it and frees it.
 *
 *     list build REGION HOST HOSTS   makes the region, unless it is there, and a list of the words on standard input
 *     list read REGION HOST          prints the words
 *     list free REGION HOST          frees the list
 *
 * Links are offsets: they are the same in every process, pointers are not. */
#include <cenote.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the name "words" leads to. */
struct root {
    uint64_t first; /* offset of the first word, 0: none */
    CenoteLock lock;
};

struct word {
    uint64_t next;
    char text[48];
};

static void must(int done, const char *what) {
    if (!done) {
        fprintf(stderr, "%s: %s\n", what, cenote_last_error());
        exit(1);
    }
}

static struct word *word_at(uint64_t offset) {
    struct word *word = (struct word *)cxl_shm_get_ptr(offset);
    must(word != NULL, "cxl_shm_get_ptr");
    /* Another host may have written it: drop older copies from this processor's caches. */
    must(cenote_flush(word, sizeof *word) == 0, "cenote_flush");
    return word;
}

static void build(void) {
    char line[48];
    struct root *root = (struct root *)shmalloc(sizeof *root);
    must(root != NULL, "shmalloc");
    root->first = 0;
    must(cxl_shm_allocate_lock(&root->lock) == 0, "cxl_shm_allocate_lock");
    while (fgets(line, sizeof line, stdin) != NULL) {
        struct word *word = (struct word *)shmalloc(sizeof *word);
        must(word != NULL, "shmalloc");
        line[strcspn(line, "\n")] = 0;
        strcpy(word->text, line);
        word->next = root->first;
        /* Other hosts see what was written back. */
        must(cenote_flush(word, sizeof *word) == 0, "cenote_flush");
        root->first = cxl_shm_get_offset(word);
    }
    /* Flushes the root. The words have no names, and outlive this process all the same. */
    must(cxl_shm_put("words", root) == 0, "cxl_shm_put");
}

static void print_or_free(int freeing) {
    void *found = NULL;
    struct root *root;
    CenoteLock lock;
    uint64_t offset;
    must(cxl_shm_get("words", &found) == 0, "cxl_shm_get");
    root = (struct root *)found;
    lock = root->lock;
    /* 1: the last holder died with it. This list changes only as a whole, so it is right all the same. */
    must(cxl_shm_acquire_lock(lock) >= 0, "cxl_shm_acquire_lock");
    /* The last holder may have changed it since `cxl_shm_get`. */
    must(cenote_flush(root, sizeof *root) == 0, "cenote_flush");
    offset = root->first;
    while (offset != 0) {
        struct word *word = word_at(offset);
        uint64_t next = word->next;
        if (freeing)
            must(shfree(word) == 0, "shfree");
        else
            puts(word->text);
        offset = next;
    }
    if (freeing)
        must(cxl_shm_destroy("words") == 0, "cxl_shm_destroy");
    must(cxl_shm_release_lock(lock) == 0, "cxl_shm_release_lock");
    if (freeing)
        must(cxl_shm_free_lock(lock) == 0, "cxl_shm_free_lock");
}

int main(int count, char **arguments) {
    uint8_t host;
    if (count < 4) {
        fprintf(stderr, "usage: list build REGION HOST HOSTS | list read REGION HOST | list free REGION HOST\n");
        return 2;
    }
    host = (uint8_t)atoi(arguments[3]);
    if (strcmp(arguments[1], "build") == 0) {
        int made = cenote_create(arguments[2], 32 << 20, 0, (uint8_t)(count > 4 ? atoi(arguments[4]) : 1));
        must(made == 0 || made == -EEXIST, "cenote_create");
    }
    must(cenote_open(arguments[2], "list", host) == 0, "cenote_open");
    if (strcmp(arguments[1], "build") == 0)
        build();
    else
        print_or_free(strcmp(arguments[1], "free") == 0);
    must(cenote_close() == 0, "cenote_close");
    return 0;
}
