"""Times prefill of PyPI transformers: reads a job as JSON from stdin, writes times as JSON to stdout."""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM

job = json.load(sys.stdin)
torch.set_num_threads(job["threads"])
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[job["dtype"]]
model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=dtype).eval()

results = []
with torch.inference_mode():
    for prompt in job["prompts"]:
        ids = torch.tensor([prompt])
        times = []
        # The first call of a length pays for allocation and is not counted.
        for call in range(job["repeat"] + 1):
            start = time.perf_counter()
            logits = model(ids, use_cache=True, logits_to_keep=1).logits
            logits[0, -1].argmax().item()
            if call > 0:
                times.append((time.perf_counter() - start) * 1e3)
        results.append({"length": len(prompt), "times_ms": times})
json.dump(results, sys.stdout)
