"""Times transformers on a model in bf16, to compare with `generate --random 512 --max-tokens 128`.

    python transformers_speed.py FOLDER BATCH [BATCH ..]

A static cache, and a step of one token compiled with CUDA graphs (`torch.compile`, `reduce-overhead`), without whose first 20
steps the rate is. Prints a line for each batch.
"""

import sys
import time

import torch
from transformers import AutoModelForCausalLM, StaticCache

PROMPT, TOKENS, WARM = 512, 128, 20


def seconds() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


@torch.inference_mode()
def measure(model: torch.nn.Module, batch: int) -> None:
    step = torch.compile(model.forward, mode="reduce-overhead")
    ids = torch.randint(0, model.config.vocab_size, (batch, PROMPT), device="cuda")
    cache = StaticCache(config=model.config, max_cache_len=PROMPT + TOKENS)
    # The first round compiles.
    for _ in range(2):
        cache.reset()
        begin = seconds()
        positions = torch.arange(PROMPT, device="cuda")
        logits = model(ids, past_key_values=cache, cache_position=positions, logits_to_keep=1).logits
        token = logits[:, -1].argmax(-1, keepdim=True)
        first = seconds() - begin
        for at in range(TOKENS - 1):
            if at == WARM:
                begin = seconds()
            position = torch.tensor([PROMPT + at], device="cuda")
            logits = step(token.clone(), past_key_values=cache, cache_position=position, logits_to_keep=1).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
        rate = batch * (TOKENS - 1 - WARM) / (seconds() - begin)
    print(f"batch {batch}: first token after {first:.3f} s, {rate:.1f} tokens/s", flush=True)
    torch._dynamo.reset()


def main(folder: str, *batches: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cuda").eval()
    for batch in batches:
        measure(model, int(batch))


if __name__ == "__main__":
    main(*sys.argv[1:])
