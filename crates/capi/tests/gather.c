/* Gathers rows of pinned blocks: packed ones, and such that consist of pieces. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/cenote.h"

#define BLOCKS 4
#define TOKENS 16
#define HEADS 2
#define VALUES 32
/* A page of keys, token after token, and a page of values, head after head. */
#define PAGE (TOKENS * HEADS * VALUES)
#define BYTES (2 * PAGE)

static void expect(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, cenote_last_error());
        exit(1);
    }
}

static unsigned char value_of(int block, int page, int token, int head) {
    return (unsigned char)(block * 64 + page * 37 + token * 2 + head);
}

static CenoteNamespace publish(void) {
    static unsigned char payloads[BLOCKS][BYTES];
    CenoteBlock blocks[BLOCKS];
    CenoteNamespace space;
    unsigned char fingerprint[32] = {9};

    expect(cenote_namespace(fingerprint, "from C", BYTES, &space) == 0, "namespace");
    for (int at = 0; at < BLOCKS; at++) {
        for (int token = 0; token < TOKENS; token++) {
            for (int head = 0; head < HEADS; head++) {
                memset(payloads[at] + (token * HEADS + head) * VALUES, value_of(at, 0, token, head), VALUES);
                memset(payloads[at] + PAGE + (head * TOKENS + token) * VALUES, value_of(at, 1, token, head), VALUES);
            }
        }
        memset(blocks[at].hash, at + 1, sizeof blocks[at].hash);
        blocks[at].payload = payloads[at];
        blocks[at].depth = (uint32_t)at;
    }
    expect(cenote_publish(space, blocks, BLOCKS) == 0 && blocks[BLOCKS - 1].outcome == 0, "publish");
    return space;
}

int main(int count, char **words) {
    const CenoteRow list[] = {{3, 15}, {0, 0}, {4, 1}, {3, 2}, {1, 7}};
    const CenoteRowShape shapes[] = {
        {0, HEADS * VALUES, HEADS * VALUES, 1, 0, TOKENS},
        {PAGE, VALUES, VALUES, HEADS, TOKENS * VALUES, TOKENS},
    };
    const size_t rows = sizeof list / sizeof *list;
    unsigned char hashes[BLOCKS + 1][16], buffer[5][HEADS][VALUES];
    uint32_t missed[5];
    CenoteRow beyond = {1, TOKENS};
    CenoteNamespace space;
    CenoteRows set, other;

    expect(count == 2, "usage: gather REGION");
    expect(cenote_create(words[1], 4 << 20, 64 << 10, 1) == 0, "create");
    expect(cenote_open(words[1], "gather", 0) == 0, "open");
    space = publish();
    for (int at = 0; at <= BLOCKS; at++) {
        memset(hashes[at], at + 1, sizeof hashes[at]);
    }
    expect(cenote_pin_rows(space, hashes[0], BLOCKS + 1, &set) == 1, "one block is not there");
    expect(cenote_pin_rows(space, hashes[0], BLOCKS, &other) == 0 && other != set, "another set");
    for (int page = 0; page < 2; page++) {
        memset(buffer, 0xee, sizeof buffer);
        expect(cenote_gather(set, list, rows, &shapes[page], buffer, sizeof buffer, missed) == 1, "gather");
        expect(missed[0] == BLOCKS, "the block that is not there");
        for (size_t row = 0; row < rows; row++) {
            for (int head = 0; head < HEADS && list[row].block < BLOCKS; head++) {
                unsigned char value = value_of((int)list[row].block, page, (int)list[row].row, head);
                expect(buffer[row][head][0] == value && buffer[row][head][VALUES - 1] == value, "a row");
            }
        }
    }
    expect(cenote_gather(other, list, 2, shapes, buffer, 2 * sizeof *buffer, NULL) == 0, "no block is missed");
    expect(cenote_gather(other, list, rows, shapes, buffer, sizeof buffer, NULL) == -EINVAL, "a block beyond the set");
    expect(cenote_gather(set, &beyond, 1, shapes, buffer, sizeof *buffer, NULL) == -EINVAL, "a row beyond the block");
    expect(strstr(cenote_last_error(), "has 16 rows") != NULL, "the limit is named");
    expect(cenote_gather(set, list, rows, shapes, buffer, sizeof buffer - 1, NULL) == -EINVAL, "a short buffer");
    expect(cenote_pin_rows(space + 1, hashes[0], BLOCKS, &other) == -EINVAL, "a namespace that is not open");
    expect(cenote_unpin_rows(set) == 0 && cenote_unpin_rows(set) == -EINVAL, "unpin");
    expect(cenote_gather(set, list, rows, shapes, buffer, sizeof buffer, NULL) == -EINVAL, "an unpinned set");
    expect(cenote_close() == 0, "close");
    expect(cenote_gather(other, list, 2, shapes, buffer, 2 * sizeof *buffer, NULL) == -ENXIO, "no region is open");
    return 0;
}
