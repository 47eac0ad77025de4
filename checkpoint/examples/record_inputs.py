"""Records the largest magnitude of each linear layer's inputs, for `nvfp4 quantize --calibration`.

    python record_inputs.py MODEL TEXTS OUT.safetensors

MODEL: a folder that transformers opens. TEXTS: a file with a text on each line. OUT gets an F32 scalar for each
linear layer, under the name of its module. Layers that no text reaches have 0.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TOKENS = 512


def main(folder: str, texts: str, out: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", device_map="auto").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    largest: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            largest[name] = torch.zeros(())

            def record(_: torch.nn.Module, inputs: tuple, name: str = name) -> None:
                if inputs[0].numel():
                    largest[name] = torch.maximum(largest[name], inputs[0].detach().abs().max().float().cpu())

            module.register_forward_pre_hook(record)
    with torch.no_grad():
        for text in filter(None, Path(texts).read_text().splitlines()):
            model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=TOKENS).to(model.device))
    save_file(largest, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
