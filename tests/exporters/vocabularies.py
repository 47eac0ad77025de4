"""Tokenizers of SentencePiece in our GGUF: the package gguf reads what SentencePiece and transformers have, and
llama.cpp, if it is there, makes the same tokens of texts.

    python vocabularies.py --nvfp4 PROGRAM --work FOLDER [--tokens PROGRAM] [--out FILE]

prints what is wrong and ends with 1 then. With --out FILE it writes a JSON list instead, of objects with `name` and
`problem`, which is null where all is right.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import sentencepiece
import torch
import transformers

import models

HERE = Path(__file__).parent
# Words, spaces at both ends and in a row, bytes without a piece, lines.
TEXTS = [
    "The blocks run along the input dimension.", " two  spaces ", "x", "naïve Größe 模型 🦀", "a\nb\n\n\tc",
    "e4m3 448.0 0x7f", "ſ",
]
FORMS = ["tokenizer.model", "tokenizer.json", "without a space"]


def trained(folder: Path, adds_space: bool) -> sentencepiece.SentencePieceProcessor:
    """SentencePiece's byte pairs over the texts of this folder."""
    corpus = folder / "corpus.txt"
    corpus.write_text("".join(path.read_text() for path in sorted(HERE.glob("*.py"))))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=700, byte_fallback=True,
        add_dummy_prefix=adds_space, remove_extra_whitespaces=False, normalization_rule_name="identity",
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


def checked(form: str, program: Path, tokens: Path | None, folder: Path) -> None:
    """Fails with what is wrong."""
    own = trained(folder, form != "without a space")
    size = models.Size(hidden=64, intermediate=64, layers=1, experts=2, head=16, vocabulary=own.vocab_size())
    source = folder / "source"
    models.build("llama", size, torch.float32).save_pretrained(source)
    # SentencePiece's own have a token of the beginning, that of transformers 5.24 only if its template says so.
    whole = transformers.LlamaTokenizer.from_pretrained(folder)
    adds_first = form != "tokenizer.json" or whole("x")["input_ids"][0] == own.bos_id()
    expected = [[own.bos_id()] * adds_first + own.encode(text) for text in TEXTS]
    if form == "tokenizer.json":
        # transformers makes the same of texts, but puts no space before one that begins with a space.
        for text, ids in zip(TEXTS, expected):
            read = whole(text)["input_ids"]
            if read != ids and not text.startswith(" "):
                raise RuntimeError(f"{text!r}: transformers has {read}, SentencePiece {ids}")
    if form == "tokenizer.json":
        # transformers' own conversion of the model.
        whole.save_pretrained(source)
        (source / "tokenizer.model").unlink(missing_ok=True)
    else:
        shutil.copy(folder / "tokenizer.model", source)
    out = folder / "out"
    subprocess.run(
        [program, "quantize", source, "--format", "nvfp4", "--layout", "gguf", "--out", out],
        check=True, stdout=subprocess.DEVNULL,
    )
    fields = gguf.GGUFReader(out / "model.gguf").fields
    contents = {key: fields[f"tokenizer.ggml.{key}"].contents() for key in [
        "model", "tokens", "scores", "token_type", "bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token",
        "add_space_prefix",
    ]}
    pieces = [own.id_to_piece(id) for id in range(own.vocab_size())]
    types = [
        gguf.TokenType.UNKNOWN if own.is_unknown(id) else gguf.TokenType.CONTROL if own.is_control(id)
        else gguf.TokenType.BYTE if own.is_byte(id) else gguf.TokenType.NORMAL for id in range(own.vocab_size())
    ]
    right = {
        "model": "llama", "tokens": pieces, "token_type": [int(kind) for kind in types], "bos_token_id": own.bos_id(),
        "eos_token_id": own.eos_id(), "unknown_token_id": own.unk_id(), "add_bos_token": adds_first,
        "add_space_prefix": form != "without a space",
    }
    if form != "tokenizer.json":
        right["scores"] = [own.get_score(id) for id in range(own.vocab_size())]
    for key, value in right.items():
        if contents[key] != value:
            raise RuntimeError(f"{key} is {str(contents[key])[:200]}, expected {str(value)[:200]}")
    if tokens is None:
        return
    done = subprocess.run([tokens, out / "model.gguf", *TEXTS], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"llama.cpp ends with {done.returncode}: {done.stderr.strip()[-300:]}")
    found = [[int(token) for token in line.split()] for line in done.stdout.splitlines()]
    for text, ids, other in zip(TEXTS, expected, found, strict=True):
        if other != ids:
            raise RuntimeError(f"{text!r}: llama.cpp has {other}, SentencePiece {ids}")


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--nvfp4", type=Path, required=True)
    arguments.add_argument("--work", type=Path, required=True)
    arguments.add_argument("--tokens", type=Path)
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    results = []
    for form in FORMS:
        folder = chosen.work / form.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            checked(form, chosen.nvfp4, chosen.tokens, folder)
            problem = None
        except (RuntimeError, subprocess.CalledProcessError) as error:
            problem = str(error)
        results.append({"name": f"SentencePiece, {form}", "problem": problem})
    if chosen.out:
        chosen.out.write_text(json.dumps(results))
        return
    for result in results:
        print(f"{result['name']}: {result['problem'] or 'ok'}", flush=True)
    sys.exit(int(any(result["problem"] for result in results)))


if __name__ == "__main__":
    main()
