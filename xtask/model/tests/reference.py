"""Makes `reference.json`: `python reference.py target/models/smollm2 > reference.json`.

Greedy texts of PyPI's transformers, which needs torch. `margin` is the smallest distance of a chosen token's
logit to the next one: a distance far above the rounding of 32-bit floats makes texts comparable."""

import json
import sys
from typing import Any

import torch
import transformers

PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "1, 2, 3, 4, 5,"]
MESSAGE = "What is the capital of France? Answer in one short sentence, and then name the river that flows through it."
TOKENS = 16


def main(folder: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def continued(text: str) -> dict[str, Any]:
        tokens = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        made = model.generate(**tokens, max_new_tokens=TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True)
        new = made.sequences[0, tokens["input_ids"].shape[1] :]
        best = [logits[0].topk(2).values.tolist() for logits in made.logits]
        text = tokenizer.decode(new, skip_special_tokens=True)
        return {"tokens": len(tokens["input_ids"][0]), "text": text, "margin": round(min(one - two for one, two in best), 3)}

    messages = [{"role": "user", "content": MESSAGE}]
    chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    answers = {prompt: continued(prompt) for prompt in PROMPTS}
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    print(json.dumps({**versions, "completions": answers, "message": MESSAGE, "chat": continued(chat)}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1])
