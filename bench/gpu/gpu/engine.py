"""One vLLM engine: `python -m gpu.engine SETTINGS`, as JSON. Prints a record of JSON for each measurement.

`bench/gpu` starts it in a process of its own, because an engine does not give all of a GPU's memory back."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

# Vocabulary of prompts, which every model here has.
_WORDS = range(1000, 30000)


class Engine:
    """An engine of this process, driven step by step."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm import LLM

        self.settings = settings
        transfer = {"kv_transfer_config": settings["transfer"]} if settings["transfer"] else {}
        self.llm = LLM(
            settings["model"], skip_tokenizer_init=True, load_format="dummy", seed=0, enable_prefix_caching=True, max_num_seqs=64,
            **settings["engine"], **transfer,
        )  # fmt: skip
        self.engine = self.llm.llm_engine
        self.requests = 0

    def add(self, prompt: list[int], tokens: int) -> str:
        from vllm import SamplingParams

        self.requests += 1
        name = f"bench-{self.requests}"
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        return name

    def steps(self) -> Any:
        """Each step's end, and the outputs of the step."""
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            yield time.perf_counter(), outputs

    def first_token(self, prompt: list[int]) -> tuple[float, int]:
        """Milliseconds until the first token, and cached tokens."""
        begun, first, cached = time.perf_counter(), 0.0, 0
        self.add(prompt, 4)
        for now, outputs in self.steps():
            for output in outputs:
                if first == 0.0 and output.outputs[0].token_ids:
                    first, cached = 1e3 * (now - begun), output.num_cached_tokens or 0
        return round(first, 2), cached

    def forget(self) -> None:
        """Lets saves end, then empties vLLM's own prefix cache."""
        for _ in range(2):
            # An idle engine makes no steps, and some connectors end their saves in steps.
            self.first_token(words(40, random.randrange(1 << 40)))
            time.sleep(self.settings["settle_seconds"])
        self.llm.reset_prefix_cache()


def words(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(_WORDS, k=count)


def hits(engine: Engine, lengths: list[int]) -> Any:
    """Computed prompts, and hits after vLLM's own cache was emptied."""
    engine.first_token(words(max(lengths), 7))
    for length in lengths:
        for seed in range(2):
            prompt = words(length, 1000 * seed + length)
            engine.forget()
            cold, _ = engine.first_token(prompt)
            engine.forget()
            hit, cached = engine.first_token(prompt)
            yield {"tokens": length, "cold_ms": cold, "hit_ms": hit, "cached": cached}


def decode(engine: Engine, sequences: int, prompt: int, tokens: int) -> Any:
    """Sequences that decode together."""
    engine.forget()
    for number in range(sequences):
        engine.add(words(prompt, 100_000 + number), tokens)
    ends, done = [], 0
    for now, outputs in engine.steps():
        made = sum(len(output.outputs[0].token_ids) for output in outputs)
        # Before all have their first token, steps are prefills.
        if len(outputs) == sequences and done < sequences:
            done = len(outputs)
        if done == sequences:
            ends.append((now, made))
    gaps = sorted(1e3 * (later - now) for (now, _), (later, _) in zip(ends, ends[1:], strict=False))
    yield {
        "sequences": sequences, "ms_per_token": round(sum(gaps) / len(gaps), 3), "median_ms": round(gaps[len(gaps) // 2], 3),
        "longest_ms": round(gaps[-1], 3),
    }  # fmt: skip


def disturbed(engine: Engine, length: int) -> Any:
    """The longest step of decoding sequences while a hit arrives."""
    prompt = words(length, 5)
    engine.first_token(prompt)
    engine.forget()
    for number in range(16):
        engine.add(words(500, 200_000 + number), 120)
    late, begun, last, steps, first, gaps = "", 0.0, time.perf_counter(), 0, 0.0, []
    for now, outputs in engine.steps():
        steps += 1
        if late and first == 0.0:
            gaps.append(1e3 * (now - last))
            if any(output.request_id == late and output.outputs[0].token_ids for output in outputs):
                first = now
        last = now
        if steps == 60:
            begun, late = time.perf_counter(), engine.add(prompt, 2)
    yield {"tokens": length, "first_token_ms": round(1e3 * (first - begun), 2), "longest_step_ms": round(max(gaps), 2)}


def main() -> None:
    settings = json.loads(sys.argv[1])
    engine = Engine(settings)
    sizes = settings["sizes"]
    for measurement in (
        hits(engine, sizes["lengths"]),
        decode(engine, sizes["sequences"], sizes["prompt"], 128),
        disturbed(engine, sizes["hit"]),
    ):
        for record in measurement:
            print(f"@{json.dumps(record)}", flush=True)
    sys.stdout.flush()
    # Engines wait long for their threads at an exit.
    os._exit(0)


if __name__ == "__main__":
    main()
