/* Publishes blocks, several in one call. The test that starts it reads them. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/cenote.h"

#define BLOCKS 16
#define BYTES 4096

static void expect(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, cenote_last_error());
        exit(1);
    }
}

int main(int count, char **words) {
    static unsigned char payloads[BLOCKS][BYTES];
    CenoteBlock blocks[BLOCKS + 1];
    CenoteNamespace space, other;
    CenoteRows rows;
    unsigned char fingerprint[32] = {7}, another[32] = {8};

    expect(count == 2, "usage: publish REGION");
    expect(cenote_create(words[1], 4 << 20, 64 << 10, 1) == 0, "create");
    expect(cenote_open(words[1], "publisher", 0) == 0, "open");
    expect(cenote_publish(0, NULL, 0) == 0, "no blocks");
    expect(cenote_namespace(fingerprint, "from C", BYTES, &space) == 0, "namespace");
    for (int at = 0; at < BLOCKS; at++) {
        memset(payloads[at], at, BYTES);
        memset(blocks[at].hash, at + 1, sizeof blocks[at].hash);
        blocks[at].payload = payloads[at];
        blocks[at].depth = (uint32_t)at;
    }
    blocks[BLOCKS] = blocks[3];
    expect(cenote_publish(space + 1, blocks, BLOCKS) == -EINVAL, "another namespace");
    blocks[5].payload = NULL;
    expect(cenote_publish(space, blocks, BLOCKS) == -EINVAL, "a block without a payload");
    blocks[5].payload = payloads[5];
    expect(cenote_publish(space, blocks, BLOCKS + 1) == 0, "publish");
    for (int at = 0; at < BLOCKS; at++) {
        expect(blocks[at].outcome == 0, "each is published");
    }
    expect(blocks[BLOCKS].outcome == -EEXIST, "a repeated hash");
    expect(cenote_publish(space, blocks, BLOCKS) == 0 && blocks[9].outcome == -EEXIST, "again");
    /* Two models never share a block, whatever their hashes. */
    expect(cenote_namespace(another, "another", BYTES, &other) == 0, "another namespace");
    expect(cenote_pin_rows(other, blocks[2].hash, 1, &rows) == 1, "a block of another model is a miss");
    memset(payloads[2], 0xcc, BYTES);
    expect(cenote_publish(other, &blocks[2], 1) == 0 && blocks[2].outcome == 0, "it is none of this model");
    expect(cenote_pin_rows(other, blocks[2].hash, 1, &rows) == 0, "this model's block");
    expect(cenote_pin_rows(space, blocks[2].hash, 1, &rows) == 0, "and that of the other");
    expect(cenote_close() == 0, "close");
    return 0;
}
