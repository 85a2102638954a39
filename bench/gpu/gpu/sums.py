"""Checksums: on the processor by threads, and by the kernel on the GPU, which is compared with the definition."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path
from typing import Any

import cenote
from gpu.cards import Card, Cuda
from gpu.report import GIB, Report, Skip, rate

PTX = Path(__file__).parents[3] / "crates/device/kernels/kernels.ptx"
# Threads of a thread block, as the kernels demand (crates/device/kernels/kernels.cu).
SUM_THREADS, MOVE_THREADS = 288, 256
# Blocks, pages of a block, bytes of a page.
SHAPES = (
    (64, 32, 64 << 10),
    (512, 32, 64 << 10),
    (2048, 32, 64 << 10),
    (128, 32, 256 << 10),
    (512, 80, 8 << 10),
    (2048, 80, 8 << 10),
)
MASK = (1 << 64) - 1


def on_the_processor(report: Report, region: cenote.Region, size: int) -> None:
    """Verifies published blocks of 2 MiB in place."""
    block = 2 << 20
    count = size // block
    namespace = region.namespace(b"bench sums", block)
    names = namespace.hash_tokens(list(range(16 * count)), 16)
    content = bytes(range(256)) * (block // 256)
    begun = time.perf_counter()
    for number in range(count):
        namespace.publish(names[number], number, content)
    report.add("sums", where="processor", what="publish", threads=1, GBps=rate(count * block, time.perf_counter() - begun))
    lease = namespace.lookup(names)
    views = [lease.view(number, verify=False) for number in range(len(lease))]
    lease.release()
    for threads in (1, 2, 4):
        right: list[bool] = []
        workers = [
            threading.Thread(target=lambda part=part: right.extend(view.verify() for view in views[part::threads])) for part in range(threads)
        ]
        begun = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds = time.perf_counter() - begun
        is_right = right == [True] * len(views)
        report.add("sums", where="processor", what="verify", threads=threads, GBps=rate(len(views) * block, seconds), equal=is_right)
    views.clear()
    namespace.forget()


def on_the_gpu(report: Report, card: Card) -> None:
    """Times both kernels, and compares the sums of a block and the bytes of all pages."""
    if not isinstance(card, Cuda):
        raise Skip("the tests' driver runs no kernels; the Rust tests run them on the processor")
    kernels = Kernels(card)
    for blocks, pages, page in SHAPES:
        size = blocks * pages * page
        if card.torch.cuda.mem_get_info()[0] < 2 * size + GIB:
            report.skipped[f"kernels, {blocks} blocks of {pages} x {page}"] = "the GPU has no room"
            continue
        report.add("sums", where="GPU", blocks=blocks, pages=pages, page=page, **kernels.measure(blocks, pages, page))


class Kernels:
    """The kernels of the package's PTX, in PyTorch's context."""

    def __init__(self, card: Cuda) -> None:
        self.card, self.torch, self.driver = card, card.torch, ctypes.CDLL("libcuda.so.1")
        module = ctypes.c_void_p()
        self._check(self.driver.cuModuleLoadData(ctypes.byref(module), PTX.read_bytes() + b"\0"))
        self.functions = {}
        for name in ("cenote_sums", "cenote_move"):
            function = ctypes.c_void_p()
            self._check(self.driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            self.functions[name] = function

    def measure(self, blocks: int, pages: int, page: int) -> dict[str, Any]:
        """Milliseconds of each kernel, and whether its result is right."""
        torch, where = self.torch, self.card.where
        source, target = self.card.make(blocks * pages * page), self.card.make(blocks * pages * page)
        order = torch.randperm(blocks * pages, generator=torch.Generator().manual_seed(1)).to(where)
        table = source.data_ptr() + order * page
        places = target.data_ptr() + torch.arange(blocks * pages, device=where) * page
        keys = torch.randint(-(1 << 62), 1 << 62, (8 * blocks,), device=where)
        out = torch.zeros(24 * blocks, dtype=torch.int64, device=where)
        stream = torch.cuda.current_stream()

        def sums() -> None:
            arguments = (ctypes.c_uint64(table.data_ptr()), ctypes.c_uint32(pages), ctypes.c_uint32(page), ctypes.c_uint64(keys.data_ptr()),
                         ctypes.c_uint64(out.data_ptr()), ctypes.c_uint32(blocks))  # fmt: skip
            self._launch("cenote_sums", blocks, SUM_THREADS, stream, arguments)

        def move() -> None:
            arguments = (ctypes.c_uint64(places.data_ptr()), ctypes.c_uint64(table.data_ptr()), ctypes.c_uint32(page),
                         ctypes.c_uint64(blocks * pages))  # fmt: skip
            self._launch("cenote_move", min(blocks * pages, 2048), MOVE_THREADS, stream, arguments)

        seconds = {"sums": self.card.seconds(sums, stream, 5), "move": self.card.seconds(move, stream, 5)}
        gathered = source.view(-1, page)[order].reshape(-1)
        # Of the last block the lines of some groups, because the definition is slow.
        lines = min(pages * page // 64, 4096)
        first = gathered[-pages * page :][: 64 * lines].cpu().numpy().tobytes()
        part = torch.zeros(24, dtype=torch.int64, device=where)
        whole_pages = max(64 * lines // page, 1)
        start = table[-pages:].contiguous()
        arguments = (ctypes.c_uint64(start.data_ptr()), ctypes.c_uint32(whole_pages), ctypes.c_uint32(min(page, 64 * lines)),
                     ctypes.c_uint64(keys.data_ptr()), ctypes.c_uint64(part.data_ptr()), ctypes.c_uint32(1))  # fmt: skip
        self._launch("cenote_sums", 1, SUM_THREADS, stream, arguments)
        self.card.synchronize()
        wanted = accumulators(first[: whole_pages * min(page, 64 * lines)], [key & MASK for key in keys[:8].tolist()])
        return {
            "sums_ms": round(1e3 * seconds["sums"], 3),
            "sums_GBps": rate(blocks * pages * page, seconds["sums"]),
            "sums_equal": [word & MASK for word in part.tolist()] == wanted,
            "move_ms": round(1e3 * seconds["move"], 3),
            "move_GBps": rate(blocks * pages * page, seconds["move"]),
            "move_equal": bool(torch.equal(target, gathered)),
        }

    def _launch(self, name: str, grid: int, threads: int, stream: Any, arguments: tuple[Any, ...]) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.cast(ctypes.pointer(each), ctypes.c_void_p).value for each in arguments))
        handle = ctypes.c_void_p(stream.cuda_stream)
        self._check(self.driver.cuLaunchKernel(self.functions[name], grid, 1, 1, threads, 1, 1, 0, handle, pointers, None))

    @staticmethod
    def _check(error: int) -> None:
        if error != 0:
            raise RuntimeError(f"the driver refused a kernel: error {error}")


def accumulators(payload: bytes, keys: list[int]) -> list[int]:
    """The lanes' accumulators by the definition in crates/mem/src/checksum.rs."""
    product, total, prefix = [0] * 8, [0] * 8, [0] * 8
    for line in range(len(payload) // 64):
        for lane in range(8):
            at = 64 * line + 8 * lane
            word = int.from_bytes(payload[at : at + 8], "little")
            keyed = word ^ (keys[lane] + line * 0x9E3779B97F4A7C15) & MASK
            product[lane] = product[lane] + (keyed & 0xFFFFFFFF) * (keyed >> 32) & MASK
            total[lane] = total[lane] + word & MASK
            prefix[lane] = prefix[lane] + total[lane] & MASK
            if line % 16 == 15:
                product[lane] = ((product[lane] ^ product[lane] >> 47) + prefix[lane]) * 0x9E3779B1 & MASK
    return product + total + prefix
