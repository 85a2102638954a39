// Kernels for blocks in GPU memory: checksums, and pages from or to a buffer. And one for rows of tables, which reads
// them out of the processor's memory.
//
// `kernels.ptx` is this file, compiled by NVRTC; `cargo xtask python` compiles it again and compares. No
// header is included, because NVRTC has none. `on_processor.cpp` runs the same source on a processor.
//
// All tables of addresses are in GPU memory. Any grid is correct; a kernel's threads per thread block are fixed.
//
// **Checksums.** crates/mem/src/checksum.rs defines them. A lane's accumulators depend on all earlier lines,
// but a group of 16 lines contributes to them in three numbers that need no earlier line: the sum of its
// products, of its words, and of its words weighted by their distance from the end. So 256 threads sum 32 groups
// at once, and one warp joins them in order.
//
// What bounds a block is that joining. `sum` and `prefix` are linear, so their joins could form a tree. The
// mixing of `product` between groups is not: each takes the result of the one before, so it is a chain of an
// addition, a shift, an addition and a multiplication for each KiB of the block, on eight threads. Other blocks
// run beside it. A format that sums pieces of a block apart would cut the chain; that is another format version.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
typedef long long i64;

static constexpr u64 STEP = 0x9e3779b97f4a7c15ull;
static constexpr u64 PRIME = 0x9e3779b1ull;

static constexpr u32 LANES = 8;
static constexpr u32 LINE_BYTES = 64;
// Lines between two mixings of `product`.
static constexpr u32 GROUP_LINES = 16;

// Groups that a thread block sums between two barriers.
static constexpr u32 TILE_GROUPS = 32;
// A warp more than the threads that sum: it joins the tile before.
static constexpr u32 SUM_THREADS = TILE_GROUPS * LANES + 32;
static constexpr u32 MOVE_THREADS = 256;
static constexpr u32 WARP = 32;
static constexpr u32 ROW_THREADS = 4 * WARP;

// What some lines of one lane contribute, as if no line came before them.
struct Group {
    u64 products, words, weighted;
};

static __device__ __forceinline__ void add_word(Group &group, u64 word, u64 key) {
    u64 keyed = word ^ key;
    group.products += (u64)(u32)keyed * (u32)(keyed >> 32);
    group.words += word;
    group.weighted += group.words;
}

// Sums `count` lines of a lane from `line` on. `key` is the lane's key at `line`.
static __device__ __forceinline__ Group sum_group(
    const u64 *pages, u32 page_lines, u32 line, u32 count, u32 lane, u64 key
) {
    Group group = {0, 0, 0};
    u32 page = line / page_lines, first = line % page_lines;
    if (count == GROUP_LINES && first + GROUP_LINES <= page_lines) {
        const u64 *from = (const u64 *)pages[page] + (u64)first * LANES + lane;
        u64 words[GROUP_LINES];
        // All loads first, so that they are under way together.
#pragma unroll
        for (u32 at = 0; at < GROUP_LINES; at++)
            words[at] = __ldg(from + at * LANES);
#pragma unroll
        for (u32 at = 0; at < GROUP_LINES; at++)
            add_word(group, words[at], key + at * STEP);
        return group;
    }
    for (u32 at = 0; at < count; at++) {
        add_word(group, __ldg((const u64 *)pages[page] + (u64)first * LANES + lane), key + at * STEP);
        if (++first == page_lines) {
            first = 0;
            page++;
        }
    }
    return group;
}

// The accumulators of each block's lanes, in the order in which crates/mem/src/checksum.rs folds them: 8 times
// `product`, 8 times `sum`, 8 times `prefix`.
//
// `page_addresses`: per block, its pages in the order of the payload. `page_bytes`: a multiple of 64.
// `lane_keys`: 8 for each block. `out`: 24 words for each block. Threads: SUM_THREADS.
extern "C" __global__ void __launch_bounds__(SUM_THREADS) cenote_sums(
    const u64 *page_addresses, u32 pages_per_block, u32 page_bytes, const u64 *lane_keys, u64 *out, u32 blocks
) {
    // Two tiles: one is summed while the other is joined.
    __shared__ u64 products[2][TILE_GROUPS][LANES];
    __shared__ u64 words[2][TILE_GROUPS][LANES];
    __shared__ u64 weighted[2][TILE_GROUPS][LANES];

    u32 lane = threadIdx.x % LANES, place = threadIdx.x / LANES;
    u32 page_lines = page_bytes / LINE_BYTES, lines = pages_per_block * page_lines;
    u32 groups = (lines + GROUP_LINES - 1) / GROUP_LINES, tiles = (groups + TILE_GROUPS - 1) / TILE_GROUPS;

    for (u32 block = blockIdx.x; block < blocks; block += gridDim.x) {
        const u64 *pages = page_addresses + (u64)block * pages_per_block;
        u64 key = lane_keys[(u64)block * LANES + lane];
        u64 product = 0, sum = 0, prefix = 0;
        for (u32 tile = 0; tile <= tiles; tile++) {
            if (place < TILE_GROUPS) {
                u32 line = (tile * TILE_GROUPS + place) * GROUP_LINES;
                if (tile < tiles && line < lines) {
                    u32 count = min(lines - line, GROUP_LINES);
                    Group group = sum_group(pages, page_lines, line, count, lane, key + line * STEP);
                    products[tile % 2][place][lane] = group.products;
                    words[tile % 2][place][lane] = group.words;
                    weighted[tile % 2][place][lane] = group.weighted;
                }
            } else if (place == TILE_GROUPS && tile > 0) {
                u32 before = (tile - 1) * TILE_GROUPS, slot = (tile - 1) % 2;
                u32 count = min(groups - before, TILE_GROUPS);
#pragma unroll 8
                for (u32 at = 0; at < count; at++) {
                    u32 in_group = min(lines - (before + at) * GROUP_LINES, GROUP_LINES);
                    product += products[slot][at][lane];
                    prefix += in_group * sum + weighted[slot][at][lane];
                    sum += words[slot][at][lane];
                    if (in_group == GROUP_LINES)
                        product = ((product ^ (product >> 47)) + prefix) * PRIME;
                }
            }
            __syncthreads();
        }
        if (place == TILE_GROUPS) {
            u64 *to = out + (u64)block * 3 * LANES + lane;
            to[0] = product;
            to[LANES] = sum;
            to[2 * LANES] = prefix;
        }
    }
}

template <typename Word> static __device__ __forceinline__ void copy_page(u64 to, u64 from, u32 bytes) {
    Word *__restrict__ target = (Word *)to;
    const Word *__restrict__ source = (const Word *)from;
    u32 count = bytes / (u32)sizeof(Word);
#pragma unroll 4
    for (u32 at = threadIdx.x; at < count; at += blockDim.x)
        target[at] = source[at];
}

// Copies page `n` from `from[n]` to `to[n]`: a gather into a buffer or a scatter out of one. No page overlaps
// another. Addresses and sizes that are multiples of 16 are copied fastest. Threads: MOVE_THREADS.
extern "C" __global__ void __launch_bounds__(MOVE_THREADS)
    cenote_move(const u64 *to, const u64 *from, u32 page_bytes, u64 pages) {
    for (u64 page = blockIdx.x; page < pages; page += gridDim.x) {
        u64 together = to[page] | from[page] | page_bytes;
        if (together % 16 == 0)
            copy_page<uint4>(to[page], from[page], page_bytes);
        else if (together % 8 == 0)
            copy_page<u64>(to[page], from[page], page_bytes);
        else
            copy_page<unsigned char>(to[page], from[page], page_bytes);
    }
}

// How a table stores its rows.
enum Stored : u32 {
    E4M3_UE8M0, // values, then a scale for each 32 of them
    E4M3,       // values, and one scale for the table
    F16,
    BF16,
    AS_STORED // the output has the same bytes
};

// Rows of tokens and heads: token t and head h have the row number `ids[t * id_stride_token + h * id_stride_head]`,
// in `id_bytes` bytes. Row r of the table lies in extent r / extent_rows, which begins `starts[..]` bytes behind
// `region`. A token's rows follow one another from byte t * out_stride of `out`. Numbers outside of `first_row ..
// end_row`, and heads from `known_heads` on, give zeros. `rows` counts tokens times heads.
struct RowGather {
    u64 region, starts, ids, out;
    u64 extent_rows, rows, heads, known_heads;
    i64 id_stride_token, id_stride_head;
    i64 first_row, end_row;
    u64 out_stride;
    u32 id_bytes, row_bytes, values, stored;
    float scale;
    u32 unused;
};

static __device__ __forceinline__ float float_of(u32 bits) {
    union {
        u32 bits;
        float value;
    } both = {bits};
    return both.value;
}

static __device__ __forceinline__ u32 bits_of(float value) {
    union {
        float value;
        u32 bits;
    } both = {value};
    return both.bits;
}

// Bits of the nearest bf16, ties to even; 7fc0 for all that is no number.
static __device__ __forceinline__ u16 bf16_of(float value) {
    u32 bits = bits_of(value);
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static __device__ __forceinline__ float of_e4m3(u32 code) {
    u32 sign = (code & 0x80) << 24, size = code & 0x7f;
    u32 bits = size == 0x7f ? 0x7fc00000 : size < 8 ? bits_of((float)size * 0.001953125f) : (size << 20) + (120u << 23);
    return float_of(bits | sign);
}

static __device__ __forceinline__ float of_f16(u32 code) {
    u32 sign = (code & 0x8000) << 16, size = code & 0x7fff;
    // 2^112: the difference of the exponents' biases. It makes subnormal numbers normal.
    u32 bits = size >= 0x7c00 ? size << 13 | 0x7f800000 : bits_of(float_of(size << 13) * 5192296858534827628530496329220096.0f);
    return float_of(bits | sign);
}

// Value `at` of a row, as bits of bf16.
static __device__ __forceinline__ u16 value_of(const RowGather &of, u64 row, u32 at) {
    const unsigned char *bytes = (const unsigned char *)row;
    switch (of.stored) {
    case E4M3_UE8M0:
        return bf16_of(of_e4m3(bytes[at]) * float_of((u32)bytes[of.values + at / 32] << 23));
    case E4M3:
        return bf16_of(of_e4m3(bytes[at]) * of.scale);
    case F16:
        return bf16_of(of_f16(((const u16 *)row)[at]));
    default:
        return ((const u16 *)row)[at];
    }
}

template <typename Word> static __device__ __forceinline__ void put_row(u64 to, u64 from, u32 bytes, bool is_owned) {
    Word *target = (Word *)to;
    const Word *source = (const Word *)from;
    u32 count = bytes / (u32)sizeof(Word);
    for (u32 at = threadIdx.x % WARP; at < count; at += WARP)
        target[at] = is_owned ? source[at] : Word();
}

// One warp for a row. The rows are read over the bus, so many warps are to be under way. Threads: ROW_THREADS.
extern "C" __global__ void __launch_bounds__(ROW_THREADS) cenote_rows(const RowGather of) {
    u64 first = ((u64)blockIdx.x * ROW_THREADS + threadIdx.x) / WARP, warps = (u64)gridDim.x * ROW_THREADS / WARP;
    for (u64 number = first; number < of.rows; number += warps) {
        u64 token = number / of.heads, head = number % of.heads;
        i64 row = -1;
        if (head < of.known_heads) {
            i64 place = (i64)token * of.id_stride_token + (i64)head * of.id_stride_head;
            row = of.id_bytes == 8 ? ((const i64 *)of.ids)[place] : ((const int *)of.ids)[place];
        }
        bool is_owned = of.first_row <= row && row < of.end_row;
        u64 from = 0;
        if (is_owned) {
            u64 start = ((const u64 *)of.starts)[(u64)row / of.extent_rows];
            from = of.region + start + (u64)row % of.extent_rows * of.row_bytes;
        }
        u64 to = of.out + token * of.out_stride;
        if (of.stored == AS_STORED) {
            to += head * of.row_bytes;
            u64 together = to | from | of.row_bytes;
            if (together % 16 == 0)
                put_row<uint4>(to, from, of.row_bytes, is_owned);
            else if (together % 8 == 0)
                put_row<u64>(to, from, of.row_bytes, is_owned);
            else
                put_row<unsigned char>(to, from, of.row_bytes, is_owned);
            continue;
        }
        u16 *values = (u16 *)to + head * of.values;
        for (u32 at = threadIdx.x % WARP; at < of.values; at += WARP)
            values[at] = is_owned ? value_of(of, from, at) : 0;
    }
}
