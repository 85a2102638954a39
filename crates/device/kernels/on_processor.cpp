// Runs the kernels on a processor, for tests. The threads of a thread block are fibers: a barrier hands over to
// the next one. Their order between two barriers is shuffled, so that a missing barrier changes the result.
//
// Standard input has jobs, each in 64-bit words: kernel (0: sums, 1: move, 2: rows), grid, seed of the order, bytes of a
// page, pages of a block (sums) or 1, blocks or pages, bytes of memory; then offsets in that memory: per block and
// page (sums), or per page the destinations and then the sources (move); then 8 lane keys per block (sums); then
// the memory. Standard output has the 24 words of each block (sums), or the memory (move, rows). Rows have no tables
// but a `RowGather`, whose first four words are offsets in the memory.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <ucontext.h>
#include <vector>

struct Index {
    unsigned int x;
};
struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

static void meet();

#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __syncthreads() meet()
#define __ldg(address) (*(address))
using std::min;

#include "kernels.cu"

static const size_t STACK_BYTES = 64 << 10;

// One thread of the current thread block.
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    bool ended = false;
};

static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static size_t current;
static void (*kernel)();

static void meet() { swapcontext(&fibers[current].context, &scheduler); }

static void run_fiber() {
    kernel();
    fibers[current].ended = true;
}

static void run_block(unsigned int threads, std::mt19937_64 &random) {
    blockDim.x = threads;
    if (fibers.size() < threads)
        fibers.resize(threads);
    std::vector<size_t> order(threads);
    std::iota(order.begin(), order.end(), 0);
    for (size_t number : order) {
        Fiber &fiber = fibers[number];
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK_BYTES;
        fiber.context.uc_link = &scheduler;
        fiber.ended = false;
        makecontext(&fiber.context, run_fiber, 0);
    }
    for (size_t ended = 0; ended == 0;) {
        std::shuffle(order.begin(), order.end(), random);
        for (size_t number : order) {
            current = number;
            threadIdx.x = (unsigned int)number;
            swapcontext(&scheduler, &fibers[number].context);
            ended += fibers[number].ended;
        }
        if (ended != 0 && ended != threads) {
            fprintf(stderr, "%zu of %u threads ended, and the others wait at a barrier\n", ended, threads);
            exit(1);
        }
    }
}

static void launch(unsigned int grid, unsigned int threads, u64 seed) {
    std::mt19937_64 random(seed);
    gridDim.x = grid;
    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)
        run_block(threads, random);
}

template <typename Item> static std::vector<Item> read_all(size_t count) {
    std::vector<Item> items(count);
    if (fread(items.data(), sizeof(Item), count, stdin) != count) {
        fprintf(stderr, "the job is incomplete\n");
        exit(1);
    }
    return items;
}

template <typename Item> static void write_all(const Item *items, size_t count) {
    if (fwrite(items, sizeof(Item), count, stdout) != count)
        exit(1);
    fflush(stdout);
}

static u64 page_bytes, pages_per_block, count;
static std::vector<u64> table, keys, out;
static RowGather rows;

int main() {
    for (u64 number; fread(&number, sizeof number, 1, stdin) == 1;) {
        std::vector<u64> head = read_all<u64>(6);
        unsigned int grid = (unsigned int)head[0];
        page_bytes = head[2], pages_per_block = head[3], count = head[4];
        table = read_all<u64>(number == 0 ? count * pages_per_block : number == 1 ? 2 * count : 0);
        rows = number == 2 ? read_all<RowGather>(1)[0] : RowGather();
        keys = read_all<u64>(number == 0 ? LANES * count : 0);
        std::vector<char> given = read_all<char>(head[5]);
        std::unique_ptr<char, void (*)(void *)> memory((char *)aligned_alloc(64, (head[5] + 63) / 64 * 64), free);
        std::copy(given.begin(), given.end(), memory.get());
        for (u64 &place : table)
            place += (u64)memory.get();
        if (number == 0) {
            out.assign(3 * LANES * count, 0);
            kernel = [] {
                cenote_sums(table.data(), (u32)pages_per_block, (u32)page_bytes, keys.data(), out.data(), (u32)count);
            };
            launch(grid, SUM_THREADS, head[1]);
            write_all(out.data(), out.size());
        } else if (number == 2) {
            for (u64 *place : {&rows.region, &rows.starts, &rows.ids, &rows.out})
                *place += (u64)memory.get();
            kernel = [] { cenote_rows(rows); };
            launch(grid, ROW_THREADS, head[1]);
            write_all(memory.get(), head[5]);
        } else {
            kernel = [] { cenote_move(table.data(), table.data() + count, (u32)page_bytes, count); };
            launch(grid, MOVE_THREADS, head[1]);
            write_all(memory.get(), head[5]);
        }
    }
}
